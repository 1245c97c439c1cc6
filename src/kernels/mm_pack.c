/* mm_pack.c - GGUF rows into the packed layouts of mm_layout.h.
 *
 * Exact: every bit of a block's scales and values is kept, only moved (6-bit scales become whole bytes).  A block's
 * values are first unpacked to one byte each, in k order, and then folded four at a time into 32-bit words; where the
 * GGUF word already is the packed word (4-bit legacy types) it is copied.  Block formats: docs/formats.md. */
#include "kernels/mm_layout.h"

#include "base/err.h"

#include <string.h>

/* ---- folding: q[0..32) of row r, one byte each, into the pieces of 32 columns ---- */

static inline void put32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }

static inline void fold_nibbles(uint8_t *nib, unsigned r, const uint8_t *q) {
    for (unsigned j = 0; j < 4; j++) put32(nib + 32 * j + 4 * r, mm_ld32(q + 4 * j) | mm_ld32(q + 16 + 4 * j) << 4);
}
/* Bits [from, from + n) of each of four values, moved to bit `to` of their bytes. */
static inline uint32_t part(uint32_t w, unsigned from, unsigned n, unsigned to) {
    return (w >> from & 0x01010101u * ((1u << n) - 1)) << to;
}
static inline void fold_twos(uint8_t *o, unsigned r, const uint8_t *q) {
    for (unsigned h = 0; h < 2; h++) {
        uint32_t v = 0;
        for (unsigned j = 0; j < 4; j++) v |= mm_ld32(q + 16 * h + 4 * j) << 2 * j;
        put32(o + 32 * h + 4 * r, v);
    }
}
static inline void fold_threes(uint8_t *o, unsigned r, const uint8_t *q) {
    uint32_t w[8];
    memcpy(w, q, 32);
    put32(o + 4 * r, w[0] | w[1] << 3 | part(w[6], 0, 2, 6));
    put32(o + 32 + 4 * r, w[2] | w[3] << 3 | part(w[6], 2, 1, 6) | part(w[7], 2, 1, 7));
    put32(o + 64 + 4 * r, w[4] | w[5] << 3 | part(w[7], 0, 2, 6));
}
static inline void fold_fives(uint8_t *o, unsigned r, const uint8_t *q) {
    uint32_t w[8];
    memcpy(w, q, 32);
    put32(o + 4 * r, w[0] | part(w[5], 0, 3, 5));
    put32(o + 32 + 4 * r, w[1] | part(w[5], 3, 2, 6) | part(w[7], 3, 1, 5));
    put32(o + 64 + 4 * r, w[2] | part(w[6], 0, 3, 5));
    put32(o + 96 + 4 * r, w[3] | part(w[6], 3, 2, 6) | part(w[7], 4, 1, 5));
    put32(o + 128 + 4 * r, w[4] | part(w[7], 0, 3, 5));
}
static inline void fold_sixes(uint8_t *o, unsigned r, const uint8_t *q) {
    uint32_t w[8];
    memcpy(w, q, 32);
    for (unsigned h = 0; h < 2; h++)
        for (unsigned b = 0; b < 3; b++)
            put32(o + 96 * h + 32 * b + 4 * r, w[4 * h + b] | part(w[4 * h + 3], 2 * b, 2, 6));
}
/* Signed bytes to unsigned ones: + 128 turns the top bit round. */
static inline void put_octets(uint8_t *o, unsigned r, const uint8_t *qs) {
    for (unsigned j = 0; j < 8; j++) put32(o + 32 * j + 4 * r, mm_ld32(qs + 4 * j) ^ 0x80808080u);
}
static inline void copy_nibbles(uint8_t *nib, unsigned r, const uint8_t *qs) {
    for (unsigned j = 0; j < 4; j++) memcpy(nib + 32 * j + 4 * r, qs + 4 * j, 4);
}
/* Q5_0 and Q5_1: 16 bytes of nibbles and a word whose bit k is the high bit of element k. */
static inline void copy_fives(uint8_t *o, unsigned r, const uint8_t *qs, uint32_t qh) {
    uint8_t q[32];
    for (unsigned k = 0; k < 16; k++) {
        q[k] = (uint8_t)((qs[k] & 15) | (qh >> k & 1) << 4);
        q[16 + k] = (uint8_t)(qs[k] >> 4 | (qh >> (16 + k) & 1) << 4);
    }
    fold_fives(o, r, q);
}

/* ---- 32-blocks: unit u of one row, of which n (1 or 2) blocks exist ---- */

static void pack_32(tensor_type type, uint8_t *unit, unsigned r, const uint8_t *src, unsigned n) {
    for (unsigned b = 0; b < n; b++) {
        switch ((int)type) {
        case TENSOR_Q4_0:
        case TENSOR_IQ4_NL:
            memcpy(unit + 16 * b + 2 * r, src, 2);
            copy_nibbles(unit + 32 + 128 * b, r, src + 2);
            src += 18;
            break;
        case TENSOR_Q4_1:
            memcpy(unit + 16 * b + 2 * r, src, 2);
            memcpy(unit + 32 + 16 * b + 2 * r, src + 2, 2);
            copy_nibbles(unit + 64 + 128 * b, r, src + 4);
            src += 20;
            break;
        case TENSOR_Q5_0:
            memcpy(unit + 16 * b + 2 * r, src, 2);
            copy_fives(unit + 32 + 160 * b, r, src + 6, mm_ld32(src + 2));
            src += 22;
            break;
        case TENSOR_Q5_1:
            memcpy(unit + 16 * b + 2 * r, src, 2);
            memcpy(unit + 32 + 16 * b + 2 * r, src + 2, 2);
            copy_fives(unit + 64 + 160 * b, r, src + 8, mm_ld32(src + 4));
            src += 24;
            break;
        default: /* Q8_0 */
            memcpy(unit + 16 * b + 2 * r, src, 2);
            put_octets(unit + 32 + 256 * b, r, src + 2);
            src += 34;
            break;
        }
    }
}

/* ---- 256-blocks of one row ---- */

/* 6-bit scales and mins of Q4_K and Q5_K, 12 bytes for 8 of each. */
static void scales_6bit(uint8_t *scales, uint8_t *mins, unsigned r, const uint8_t *s) {
    for (unsigned j = 0; j < 8; j++) {
        unsigned sc, mn;
        if (j < 4) {
            sc = s[j] & 63;
            mn = s[j + 4] & 63;
        } else {
            sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
            mn = s[j + 4] >> 4 | (s[j] >> 6) << 4;
        }
        scales[mm_scale_at(r, j)] = (uint8_t)sc;
        mins[mm_min_at(r, j)] = (uint8_t)mn;
    }
}

static void pack_q4_k(uint8_t *unit, unsigned r, const uint8_t *src) {
    const uint8_t *qs = src + 16;
    memcpy(unit + 2 * r, src, 2);
    memcpy(unit + 16 + 2 * r, src + 2, 2);
    scales_6bit(unit + 32, unit + 96, r, src + 4);
    for (unsigned c = 0; c < 4; c++, qs += 32) {
        uint8_t q[64];
        for (unsigned l = 0; l < 32; l++) {
            q[l] = qs[l] & 15;
            q[32 + l] = qs[l] >> 4;
        }
        fold_nibbles(unit + 160 + 128 * (2 * c), r, q);
        fold_nibbles(unit + 160 + 128 * (2 * c + 1), r, q + 32);
    }
}

static void pack_q5_k(uint8_t *unit, unsigned r, const uint8_t *src) {
    const uint8_t *qh = src + 16, *qs = src + 48;
    memcpy(unit + 2 * r, src, 2);
    memcpy(unit + 16 + 2 * r, src + 2, 2);
    scales_6bit(unit + 32, unit + 96, r, src + 4);
    for (unsigned c = 0; c < 4; c++, qs += 32) {
        uint8_t q[64];
        for (unsigned l = 0; l < 32; l++) {
            q[l] = (uint8_t)((qs[l] & 15) | (qh[l] >> 2 * c & 1) << 4);
            q[32 + l] = (uint8_t)(qs[l] >> 4 | (qh[l] >> (2 * c + 1) & 1) << 4);
        }
        fold_fives(unit + 160 + 160 * (2 * c), r, q);
        fold_fives(unit + 160 + 160 * (2 * c + 1), r, q + 32);
    }
}

static void pack_q6_k(uint8_t *unit, unsigned r, const uint8_t *src) {
    const uint8_t *ql = src, *qh = src + 128, *sc = src + 192;
    memcpy(unit + 2 * r, src + 208, 2);
    for (unsigned j = 0; j < 16; j++) unit[16 + mm_scale_at(r, j)] = sc[j];
    for (unsigned n = 0; n < 2; n++, ql += 64, qh += 32) {
        uint8_t q[128];
        for (unsigned l = 0; l < 32; l++) {
            q[l] = (uint8_t)((ql[l] & 15) | (qh[l] & 3) << 4);
            q[32 + l] = (uint8_t)((ql[32 + l] & 15) | (qh[l] >> 2 & 3) << 4);
            q[64 + l] = (uint8_t)(ql[l] >> 4 | (qh[l] >> 4 & 3) << 4);
            q[96 + l] = (uint8_t)(ql[32 + l] >> 4 | (qh[l] >> 6) << 4);
        }
        for (unsigned s = 0; s < 4; s++) fold_sixes(unit + 144 + 192 * (4 * n + s), r, q + 32 * s);
    }
}

static void pack_q2_k(uint8_t *unit, unsigned r, const uint8_t *src) {
    const uint8_t *sc = src, *qs = src + 16;
    memcpy(unit + 2 * r, src + 80, 2);
    memcpy(unit + 16 + 2 * r, src + 82, 2);
    for (unsigned j = 0; j < 16; j++) unit[32 + mm_scale_at(r, j)] = sc[j];
    for (unsigned n = 0; n < 2; n++, qs += 32)
        for (unsigned s = 0; s < 4; s++) {
            uint8_t q[32];
            for (unsigned l = 0; l < 32; l++) q[l] = qs[l] >> 2 * s & 3;
            fold_twos(unit + 160 + 64 * (4 * n + s), r, q);
        }
}

static void pack_q3_k(uint8_t *unit, unsigned r, const uint8_t *src) {
    const uint8_t *hm = src, *qs = src + 32, *sc = src + 96;
    memcpy(unit + 2 * r, src + 108, 2);
    for (unsigned j = 0; j < 16; j++) {
        int lo = j < 8 ? sc[j] & 15 : sc[j - 8] >> 4, hi = sc[8 + j % 4] >> 2 * (j / 4) & 3;
        unit[16 + mm_scale_at(r, j)] = (uint8_t)((lo | hi << 4) - 32);
    }
    for (unsigned n = 0; n < 2; n++, qs += 32)
        for (unsigned s = 0; s < 4; s++) {
            uint8_t q[32];
            for (unsigned l = 0; l < 32; l++) q[l] = (uint8_t)((qs[l] >> 2 * s & 3) | (hm[l] >> (4 * n + s) & 1) << 2);
            fold_threes(unit + 144 + 96 * (4 * n + s), r, q);
        }
}

static void pack_iq4_xs(uint8_t *unit, unsigned r, const uint8_t *src) {
    const uint8_t *sl = src + 4, *qs = src + 8;
    unsigned sh = mm_ld16(src + 2);
    memcpy(unit + 2 * r, src, 2);
    for (unsigned j = 0; j < 8; j++) {
        int s = (sl[j / 2] >> 4 * (j & 1) & 15) | (int)(sh >> 2 * j & 3) << 4;
        unit[16 + 8 * j + r] = (uint8_t)(s - 32);
        copy_nibbles(unit + 80 + 128 * j, r, qs + 16 * j);
    }
}

/* ---- floats ---- */

static void pack_f(uint8_t *group, unsigned r, const uint8_t *src, uint32_t n_cols, unsigned size) {
    for (uint32_t c = 0; c < n_cols; c++) memcpy(group + (size_t)(8 * c + r) * size, src + (size_t)c * size, size);
}

static void pack_row(tensor_type type, uint8_t *group, unsigned r, const uint8_t *src, uint32_t n_cols) {
    uint32_t cols, bytes, block, n_units = mm_units(type, n_cols);
    mm_unit(type, &cols, &bytes);
    block = tensor_type_get((uint32_t)type)->block_bytes;
    switch ((int)type) {
    case TENSOR_F32: pack_f(group, r, src, n_cols, 4); return;
    case TENSOR_F16:
    case TENSOR_BF16: pack_f(group, r, src, n_cols, 2); return;
    default: break;
    }
    for (uint32_t u = 0; u < n_units; u++, group += bytes) {
        switch ((int)type) {
        case TENSOR_Q2_K: pack_q2_k(group, r, src + (size_t)u * block); break;
        case TENSOR_Q3_K: pack_q3_k(group, r, src + (size_t)u * block); break;
        case TENSOR_Q4_K: pack_q4_k(group, r, src + (size_t)u * block); break;
        case TENSOR_Q5_K: pack_q5_k(group, r, src + (size_t)u * block); break;
        case TENSOR_Q6_K: pack_q6_k(group, r, src + (size_t)u * block); break;
        case TENSOR_IQ4_XS: pack_iq4_xs(group, r, src + (size_t)u * block); break;
        default: pack_32(type, group, r, src + (size_t)u * 2 * block, n_cols / 32 - 2 * u >= 2 ? 2 : 1); break;
        }
    }
}

void mm_pack(const kernels *k, mm_weight *w, const void *src, uint32_t r0, uint32_t r1) {
    const tensor_type_info *info = tensor_type_get((uint32_t)w->type);
    size_t group_bytes = mm_group_bytes(w->type, w->n_cols);
    size_t row_bytes = (size_t)(w->n_cols / info->block_elems) * info->block_bytes;
    uint32_t cols, bytes;
    (void)k;
    HD_ASSERT(r0 % MM_ROWS == 0 && (r1 % MM_ROWS == 0 || r1 == w->n_rows) && r1 <= w->n_rows);
    HD_ASSERT(w->n_cols % info->block_elems == 0);
    mm_unit(w->type, &cols, &bytes);
    for (uint32_t r = r0; r < r1; r += MM_ROWS) {
        uint8_t *group = (uint8_t *)w->data + r / MM_ROWS * group_bytes;
        uint32_t n = r1 - r < MM_ROWS ? r1 - r : MM_ROWS;
        if (n < MM_ROWS)
            memset(group, 0, group_bytes);
        else if (w->n_cols % cols)
            memset(group + group_bytes - bytes, 0, bytes);
        for (uint32_t i = 0; i < n; i++)
            pack_row(w->type, group, i, (const uint8_t *)src + (size_t)(r + i) * row_bytes, w->n_cols);
    }
}
