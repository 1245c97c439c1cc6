/* mm_f32.c - F32, F16, BF16 with 16 rows in a register: panels only.
 *
 * Reading packed weights directly waits for memory and is left to the AVX2 tiles; so is unpacking, which leaves
 * [k][16 rows] floats. */
#define LANES_WIDE 1
#include "kernels/vnni/lanes.h"

/* nc tokens: up to 4 at act, or 8 of which the last 4 are at act2.  from, to, ldt: as mm_two_panels. */
TILE_INLINE void panel_tile(const int nc, const uint8_t *p, const void *act, const void *act2, uint32_t n_units,
                            const float *from, float *to, size_t ldt) {
    const int step = nc < 4 ? nc : 4;
    const float *a = act, *a2 = act2;
    pair_f f[8];
    UNROLL
    for (int c = 0; c < nc; c++) {
        f[c] = pair_zero_f();
        if (from) f[c] = pair_load_f(from + 2 * MM_ROWS * c);
    }
    for (uint32_t u = 0; u < n_units; u++, p += 512) {
        UNROLL
        for (int k = 0; k < 8; k++, a += step, a2 += nc > 4 ? step : 0) {
            pair_f v;
            FENCE();
            v = pair_load_f(p + 64 * k);
            UNROLL
            for (int c = 0; c < nc; c++) f[c] = pair_fma(v, pair_set_f(c < 4 ? a[c] : a2[c - 4]), f[c]);
        }
    }
    UNROLL
    for (int c = 0; c < nc; c++) pair_store_f(to + ldt * c, f[c]);
}

#define ONE(nc)                                                                                                        \
    static void p##nc(const uint8_t *p, const void *a, uint32_t n_units, __m256 *sums, __m256i *tmp) {                 \
        (void)tmp;                                                                                                     \
        panel_tile(nc, p, a, a, n_units, (const float *)sums, (float *)sums, 2 * MM_ROWS);                             \
    }
ONE(1)
ONE(2)
ONE(3)
ONE(4)

static void two(const uint8_t *p, const void *a, const void *b, uint32_t n_units, const float *from, float *to, size_t ldt) {
    panel_tile(8, p, a, b, n_units, from, to, ldt);
}

#define MUL(name)                                                                                                      \
    static void mul_##name(const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,         \
                           uint32_t r1, void *scratch) {                                                               \
        mm_tiles t = mm_avx2_##name;                                                                                   \
        t.panel[1] = p1, t.panel[2] = p2, t.panel[3] = p3, t.panel[4] = p4, t.two_panels = two;                        \
        mm_avx2_drive(&t, w, act, m, y, ldy, r0, r1, scratch);                                                         \
    }
MUL(f32)
MUL(f16)
MUL(bf16)

mm_mul_fn mm_avx512_floats(tensor_type type) {
    switch ((int)type) {
    case TENSOR_F32: return mul_f32;
    case TENSOR_F16: return mul_f16;
    case TENSOR_BF16: return mul_bf16;
    default: return NULL;
    }
}
