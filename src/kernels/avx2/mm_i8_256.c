/* mm_i8_256.c - Q2_K, Q3_K, Q4_K, Q5_K, Q6_K: 256-blocks, integer sub-scales, one float update per block.
 *
 * int16 sums of 16 columns (32 for Q4_K) are multiplied by their sub-scale in the same madd that widens them, so the
 * scale is free, and stay 32-bit integers for the whole block.  Bounds of a lane: Q4_K 16 * 15 * 127 = 30480, Q5_K
 * 8 * 31 * 127 = 31496, Q6_K starts at -32 * lane sums and ends within 8 * 32 * 127 = 32512; a 32-bit sum within
 * 16 * 16 * 32 * 127 * 128 = 1.4e8. */
#include "kernels/avx2/mm_avx2.h"

#define HAS_MIN(ty) ((ty) == TENSOR_Q2_K || (ty) == TENSOR_Q4_K || (ty) == TENSOR_Q5_K)
/* Scales of 32 columns (Q4_K, Q5_K) or of 16. */
#define SCALES_32(ty) ((ty) == TENSOR_Q4_K || (ty) == TENSOR_Q5_K)
/* Unit bytes, bytes of 32 columns, and where the scales and the columns start (mm_layout.h). */
#define UNIT(ty)                                                                                                       \
    ((ty) == TENSOR_Q2_K   ? 672                                                                                       \
     : (ty) == TENSOR_Q3_K ? 912                                                                                       \
     : (ty) == TENSOR_Q4_K ? 1184                                                                                      \
     : (ty) == TENSOR_Q5_K ? 1440                                                                                      \
                           : 1680)
#define SUB(ty)                                                                                                        \
    ((ty) == TENSOR_Q2_K ? 64 : (ty) == TENSOR_Q3_K ? 96 : (ty) == TENSOR_Q4_K ? 128 : (ty) == TENSOR_Q5_K ? 160 : 192)
#define SCALES_AT(ty)  (HAS_MIN(ty) ? 32 : 16)
#define COLUMNS_AT(ty) (SCALES_32(ty) || (ty) == TENSOR_Q2_K ? 160 : 144)

TILE_INLINE __m256i unpack(const tensor_type ty, const uint8_t *p, const int q) {
    return ty == TENSOR_Q2_K   ? two_vec(p, q)
           : ty == TENSOR_Q3_K ? three_vec(p, q)
           : ty == TENSOR_Q4_K ? nibble_vec(p, q)
           : ty == TENSOR_Q5_K ? five_vec(p, q)
                               : six_vec(p, q);
}

/* The 16 bytes of scales of pair p, widened: [r0-3 even][r0-3 odd] | [r4-7 even][r4-7 odd]. */
TILE_INLINE __m256i scale_pair(const tensor_type ty, const uint8_t *unit, int p) {
    __m128i s = load128(unit + SCALES_AT(ty) + 16 * p);
    if (ty == TENSOR_Q2_K) s = _mm_and_si128(s, _mm_set1_epi8(15));
    return ty == TENSOR_Q3_K || ty == TENSOR_Q6_K ? _mm256_cvtepi8_epi16(s) : _mm256_cvtepu8_epi16(s);
}
/* (s, s) of each row, for the even or the odd one of a pair. */
TILE_INLINE __m256i scale_of(__m256i pair, const int odd) {
    return odd ? _mm256_unpackhi_epi16(pair, pair) : _mm256_unpacklo_epi16(pair, pair);
}
/* (even, odd) of each row's mins. */
TILE_INLINE __m256i min_pair(const tensor_type ty, const uint8_t *unit, int p) {
    __m256i v;
    if (ty != TENSOR_Q2_K) return _mm256_cvtepu8_epi16(load128(unit + 96 + 16 * p));
    v = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(load128(unit + 32 + 16 * p), 4), _mm_set1_epi8(15)));
    return _mm256_unpacklo_epi16(v, _mm256_srli_si256(v, 8));
}
TILE_INLINE const void *sum_pair(const tensor_type ty, const act_i8_256 *a, int p) {
    return ty == TENSOR_Q2_K ? a->sum16 + 2 * p : a->sum32 + 2 * p;
}

TILE_INLINE __m256i start(const tensor_type ty, const act_i8_256 *a, int j) {
    if (ty == TENSOR_Q6_K) return start32(a->init[j]);
    if (ty == TENSOR_Q3_K) return _mm256_srai_epi16(start32(a->init[j]), 3); /* -4 of -32: exact */
    return _mm256_setzero_si256();
}

/* The float update of one block: f + I * (d * s) - N * (dmin * s). */
TILE_INLINE __m256 finish(const tensor_type ty, __m256 f, __m256i sum, __m256i mins, __m256 d, __m256 dmin,
                          const act_i8_256 *a) {
    __m256 s = _mm256_broadcast_ss(&a->scale);
    f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, s), f);
    return HAS_MIN(ty) ? _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins), _mm256_mul_ps(dmin, s), f) : f;
}

/* nq vectors of 4 columns of the 32 at p, from the q0-th on, into acc. */
TILE_INLINE void multiply(const tensor_type ty, const int nr, const int nc, const uint8_t *const *p, int off,
                          const act_i8_256 *a, int col, const int q0, const int nq, __m256i *acc) {
    UNROLL
    for (int i = 0; i < nq; i++) {
        const int q = nq == 8 ? i >> 1 | (i & 1) << 2 : q0 + i;
        __m256i v[4], x[4];
        FENCE();
        if (nr == 4) { /* activations stay in registers, weights pass */
            UNROLL
            for (int c = 0; c < nc; c++) x[c] = bcast32(a[c].q + col + 4 * q);
            UNROLL
            for (int r = 0; r < nr; r++) {
                v[0] = unpack(ty, p[r] + off, q);
                UNROLL
                for (int c = 0; c < nc; c++) MAC(acc[c * nr + r], v[0], x[c]);
            }
        } else {
            UNROLL
            for (int r = 0; r < nr; r++) v[r] = unpack(ty, p[r] + off, q);
            UNROLL
            for (int c = 0; c < nc; c++) {
                x[0] = bcast32(a[c].q + col + 4 * q);
                UNROLL
                for (int r = 0; r < nr; r++) MAC(acc[c * nr + r], v[r], x[0]);
            }
        }
    }
}

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums, __m256i *tmp) {
    const int n = nr * nc, step = ty == TENSOR_Q4_K ? 8 : 4; /* vectors per int16 accumulation */
    const bool in_regs = n <= 4;
    const act_i8_256 *a = act;
    const uint8_t *p[4];
    UNROLL
    for (int r = 0; r < nr; r++) p[r] = w[r];
    for (uint32_t u = 0; u < n_units; u++, a += nc) {
        __m256i sum[4];
        UNROLL
        for (int i = 0; i < n; i++) {
            if (in_regs)
                sum[i] = _mm256_setzero_si256();
            else
                tmp[i] = _mm256_setzero_si256();
        }
        UNROLL
        for (int r = 0; r < nr; r++) prefetch(p[r], ahead, COLUMNS_AT(ty));
        for (int s = 0; s < 8; s += 2) { /* two times 32 columns: one pair of scales, or two */
            UNROLL
            for (int e = 0; e < 16 / step; e++) {
                const int sub = e * step / 8, h = e * step % 8 / 4, off = COLUMNS_AT(ty) + SUB(ty) * sub;
                const int part = ty == TENSOR_Q6_K ? 2 : 1; /* prefetches are for two lines at least */
                __m256i acc[16];
                UNROLL
                for (int r = 0; r < nr; r++) {
                    if (h < part) prefetch(p[r] + off + SUB(ty) * s + SUB(ty) / 2 * h, ahead, SUB(ty) / part);
                }
                UNROLL
                for (int i = 0; i < n; i++) acc[i] = start(ty, a + i / nr, 2 * (s + sub) + h);
                multiply(ty, nr, nc, p, off + SUB(ty) * s, a, 32 * (s + sub), 4 * h, step, acc);
                UNROLL
                for (int r = 0; r < nr; r++) {
                    __m256i sc = SCALES_32(ty) ? scale_of(scale_pair(ty, p[r], s / 2), sub)
                                               : scale_of(scale_pair(ty, p[r], s + sub), h);
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        const int i = c * nr + r;
                        if (in_regs)
                            MAC16(sum[i], acc[i], sc);
                        else
                            tmp[i] = _mm256_add_epi32(tmp[i], _mm256_madd_epi16(acc[i], sc));
                    }
                }
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) {
            const int n_pairs = SCALES_32(ty) ? 4 : 8;
            __m256 d = half8(p[r]), dmin = d;
            __m256i mins[4];
            if (HAS_MIN(ty)) {
                dmin = half8(p[r] + 16);
                UNROLL
                for (int c = 0; c < nc; c++) mins[c] = _mm256_setzero_si256();
                UNROLL
                for (int j = 0; j < n_pairs; j++) {
                    __m256i v;
                    FENCE();
                    v = min_pair(ty, p[r], j);
                    UNROLL
                    for (int c = 0; c < nc; c++) MAC16(mins[c], v, bcast32(sum_pair(ty, a + c, j)));
                }
            }
            UNROLL
            for (int c = 0; c < nc; c++) {
                const int i = c * nr + r;
                sums[i] = finish(ty, sums[i], in_regs ? sum[i] : tmp[i], HAS_MIN(ty) ? mins[c] : tmp[i], d,
                                   dmin, a + c);
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += UNIT(ty);
    }
}

/* ---- panel, per unit and two groups: 64 x 2 vectors of bytes, scales as (s, s), mins as pairs, d and dmin ---- */

#define N_SCALES(ty)   (SCALES_32(ty) ? 8 : 16)
#define N_MINS(ty)     (!HAS_MIN(ty) ? 0 : SCALES_32(ty) ? 4 : 8)
#define PANEL_UNIT(ty) (64 * (64 + N_SCALES(ty) + N_MINS(ty) + 2))

TILE_INLINE void put(uint8_t *o, int index, int r, __m256i v) {
    _mm256_store_si256((__m256i *)(o + 64 * index + 32 * r), v);
}

TILE_INLINE void panel_unpack(const tensor_type ty, const uint8_t *w0, const uint8_t *w1, uint32_t n_units,
                              uint8_t *o) {
    for (uint32_t u = 0; u < n_units; u++, w0 += UNIT(ty), w1 += UNIT(ty), o += PANEL_UNIT(ty))
        for (int r = 0; r < 2; r++) {
            const uint8_t *p = r ? w1 : w0;
            for (int s = 0; s < 8; s++) {
                UNROLL
                for (int q = 0; q < 8; q++) put(o, 8 * s + q, r, unpack(ty, p + COLUMNS_AT(ty) + SUB(ty) * s, q));
            }
            for (int s = 0; s < N_SCALES(ty); s += 2) {
                __m256i v = scale_pair(ty, p, s / 2);
                put(o, 64 + s, r, scale_of(v, 0));
                put(o, 64 + s + 1, r, scale_of(v, 1));
            }
            for (int j = 0; j < N_MINS(ty); j++) put(o, 64 + N_SCALES(ty) + j, r, min_pair(ty, p, j));
            put(o, 64 + N_SCALES(ty) + N_MINS(ty), r, _mm256_castps_si256(half8(p)));
            if (HAS_MIN(ty)) put(o, 64 + N_SCALES(ty) + N_MINS(ty) + 1, r, _mm256_castps_si256(half8(p + 16)));
        }
}

TILE_INLINE void panel_tile(const tensor_type ty, const int nc, const uint8_t *p, const void *act, uint32_t n_units,
                            __m256 *f, __m256i *sum) {
    const int step = ty == TENSOR_Q4_K ? 8 : 4, n_pairs = SCALES_32(ty) ? 4 : 8;
    const act_i8_256 *a = act;
    for (uint32_t u = 0; u < n_units; u++, a += nc, p += PANEL_UNIT(ty)) {
        const uint8_t *tail = p + 64 * (64 + N_SCALES(ty));
        UNROLL
        for (int i = 0; i < 2 * nc; i++) sum[i] = _mm256_setzero_si256();
        for (int e = 0; e < 64 / step; e++) { /* one int16 accumulation */
            const uint8_t *scale = p + 64 * (64 + (ty == TENSOR_Q5_K ? e / 2 : e));
            __m256i acc[8];
            UNROLL
            for (int c = 0; c < nc; c++) acc[2 * c] = acc[2 * c + 1] = start(ty, a + c, e);
            UNROLL
            for (int q = 0; q < step; q++) {
                __m256i w0, w1;
                FENCE();
                w0 = load256(p + 64 * (step * e + q)), w1 = load256(p + 64 * (step * e + q) + 32);
                UNROLL
                for (int c = 0; c < nc; c++) {
                    __m256i v = bcast32(a[c].q + 4 * (step * e + q));
                    MAC(acc[2 * c], w0, v);
                    MAC(acc[2 * c + 1], w1, v);
                }
            }
            UNROLL
            for (int r = 0; r < 2; r++) {
                __m256i sc = load256(scale + 32 * r);
                UNROLL
                for (int c = 0; c < nc; c++)
                    sum[2 * c + r] = _mm256_add_epi32(sum[2 * c + r], _mm256_madd_epi16(acc[2 * c + r], sc));
            }
        }
        UNROLL
        for (int r = 0; r < 2; r++) {
            __m256 d = _mm256_load_ps((const float *)(tail + 64 * N_MINS(ty) + 32 * r)), dmin = d;
            __m256i mins[4];
            if (HAS_MIN(ty)) {
                dmin = _mm256_load_ps((const float *)(tail + 64 * (N_MINS(ty) + 1) + 32 * r));
                UNROLL
                for (int c = 0; c < nc; c++) mins[c] = _mm256_setzero_si256();
                UNROLL
                for (int j = 0; j < n_pairs; j++) {
                    __m256i v;
                    FENCE();
                    v = load256(tail + 64 * j + 32 * r);
                    UNROLL
                    for (int c = 0; c < nc; c++) MAC16(mins[c], v, bcast32(sum_pair(ty, a + c, j)));
                }
            }
            UNROLL
            for (int c = 0; c < nc; c++)
                f[2 * c + r] = finish(ty, f[2 * c + r], sum[2 * c + r], HAS_MIN(ty) ? mins[c] : sum[0], d, dmin, a + c);
        }
    }
}

#define DIRECT(nr, nc)                                                                                                 \
    static void FN(nr, nc)(const uint8_t *const *w, ptrdiff_t ahead, const void *a, uint32_t n_units,                  \
                           __m256 *sums, __m256i *tmp) {                                                               \
        tile(TY, nr, nc, w, ahead, a, n_units, sums, tmp);                                                             \
    }
#define PANEL(name, ty, nc)                                                                                            \
    static void name##_p##nc(const uint8_t *p, const void *a, uint32_t n_units, __m256 *sums, __m256i *tmp) {          \
        panel_tile(ty, nc, p, a, n_units, sums, tmp);                                                                  \
    }
#define TYPE(name, ty, from, near)                                                                                     \
    PANEL(name, ty, 1)                                                                                                 \
    PANEL(name, ty, 2)                                                                                                 \
    PANEL(name, ty, 3)                                                                                                 \
    PANEL(name, ty, 4)                                                                                                 \
    static void name##_unpack(const uint8_t *w0, const uint8_t *w1, uint32_t n_units, uint8_t *o) {                    \
        panel_unpack(ty, w0, w1, n_units, o);                                                                          \
    }                                                                                                                  \
    const mm_tiles mm_avx2_##name = {.direct = MM_DIRECT(name),                                                        \
                                     .panel = MM_PANELS(name),                                                         \
                                     .unpack = name##_unpack,                                                          \
                                     .panel_units = 2,                                                                 \
                                     .panel_min = from,                                                                \
                                     .ahead = near};

#define TY         TENSOR_Q2_K
#define FN(nr, nc) q2_k_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q3_K
#define FN(nr, nc) q3_k_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q4_K
#define FN(nr, nc) q4_k_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q5_K
#define FN(nr, nc) q5_k_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q6_K
#define FN(nr, nc) q6_k_##nr##x##nc
MM_SHAPES(DIRECT)

TYPE(q2_k, TENSOR_Q2_K, 10, 192)
TYPE(q3_k, TENSOR_Q3_K, 12, 192)
TYPE(q4_k, TENSOR_Q4_K, 16, 192)
TYPE(q5_k, TENSOR_Q5_K, 12, 192)
TYPE(q6_k, TENSOR_Q6_K, 12, 192)
