/* mm.c - the public calls of the matrix products: sizes, and the way into the table. */
#include "kernels/mm_layout.h"

#include "base/checked.h"
#include "base/err.h"

bool mm_supported(tensor_type type) {
    uint32_t cols, bytes;
    return mm_unit(type, &cols, &bytes);
}

act_kind mm_act_kind(const kernels *k, tensor_type type) {
    switch ((int)type) {
    case TENSOR_Q4_0:
    case TENSOR_Q4_1:
    case TENSOR_Q5_0:
    case TENSOR_Q5_1: return ACT_I8_32;
    case TENSOR_Q8_0: return k && k->mm->words ? ACT_I16_TOP : ACT_I8_32_TOP;
    case TENSOR_IQ4_NL:
    case TENSOR_IQ4_XS: return k && k->mm->words ? ACT_I16_32 : ACT_I8_32;
    case TENSOR_Q2_K:
    case TENSOR_Q3_K:
    case TENSOR_Q4_K:
    case TENSOR_Q5_K:
    case TENSOR_Q6_K: return ACT_I8_256;
    default: return ACT_F32;
    }
}

const char *mm_layout_name(const kernels *k) {
    (void)k; /* one for all sets (mm_layout.h) */
    return "rows8";
}

mm_weight mm_rows(const mm_weight *w, uint32_t r0, uint32_t r1) {
    HD_ASSERT(r0 % (4 * MM_ROWS) == 0 && r0 <= r1 && r1 <= w->n_rows);
    return (mm_weight){w->type, r1 - r0, w->n_cols, (uint8_t *)w->data + r0 / MM_ROWS * mm_group_bytes(w->type, w->n_cols)};
}

uint64_t mm_packed_bytes(const kernels *k, tensor_type type, uint32_t n_rows, uint32_t n_cols) {
    uint32_t cols, bytes;
    uint64_t n;
    (void)k;
    if (!mm_unit(type, &cols, &bytes)) return 0;
    n = n_rows / MM_ROWS + (n_rows % MM_ROWS != 0);
    if (!hd_mul(n, mm_group_bytes(type, n_cols), &n) || !hd_align_up(n, 64, &n)) return UINT64_MAX;
    return n;
}

size_t mm_act_bytes(const kernels *k, act_kind kind, uint32_t n_cols, uint32_t m) {
    uint64_t n;
    (void)k;
    if (!hd_mul(mm_act_blocks(kind, n_cols) * (uint64_t)mm_act_record(kind), m, &n) || !hd_align_up(n, 64, &n) ||
        n > SIZE_MAX)
        return SIZE_MAX;
    return (size_t)n;
}

size_t mm_act_offset(act_kind kind, uint32_t n_cols, uint32_t t) {
    HD_ASSERT(t % MM_PANEL == 0);
    return (size_t)mm_act_blocks(kind, n_cols) * mm_act_record(kind) * t;
}

void mm_act_pack(const kernels *k, act_kind kind, const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0,
                 uint32_t t1, void *dst) {
    HD_ASSERT(t0 <= t1 && t1 <= m);
    k->mm->act_pack[kind](x, ldx, n_cols, m, t0, t1, dst);
}

uint32_t mm_act_unit(act_kind kind) { return kind == ACT_F32 ? 8 : kind == ACT_I8_256 ? 256 : 64; }

void mm_act_pack_cols(const kernels *k, act_kind kind, const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t c0,
                      uint32_t c1, void *dst) {
    uint32_t before = mm_act_blocks(kind, c0), step; /* in a panel, blocks are the outer index: a range of them is a panel too */
    HD_ASSERT(c0 % mm_act_unit(kind) == 0 && (c1 % mm_act_unit(kind) == 0 || c1 == n_cols) && c1 <= n_cols);
    for (uint32_t t = 0; t < m; t += MM_PANEL) {
        size_t at = mm_act_at(kind, mm_act_blocks(kind, n_cols), m, t, &step);
        at += (size_t)before * step * mm_act_record(kind);
        k->mm->act_pack[kind](x + t * ldx + c0, ldx, c1 - c0, step, 0, step, (uint8_t *)dst + at);
    }
}

void mm_mul(const kernels *k, const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,
            uint32_t r1, void *scratch) {
    HD_ASSERT(r0 % MM_ROWS == 0 && (r1 % MM_ROWS == 0 || r1 == w->n_rows) && r1 <= w->n_rows);
    HD_ASSERT(w->n_cols > 0);
    if (r0 >= r1 || m == 0) return;
    k->mm->mul(w->type)(w, act, m, y, ldy, r0, r1, scratch);
}

size_t mm_scratch_bytes(void) { return MM_SCRATCH_BYTES; }
