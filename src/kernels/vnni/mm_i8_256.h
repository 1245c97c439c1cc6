/* mm_i8_256.h - Q2_K, Q3_K, Q4_K, Q5_K, Q6_K by vpdpbusd: the template of two sets (lanes.h).
 *
 * The sum of a sub-block (32 columns in Q4_K and Q5_K, else 16) of unsigned values is multiplied by its scale in 32
 * bits, or in 16 where it fits there (Q2_K 16 * 3 * 127, Q3_K 16 * 7 * 127), which is one instruction instead of two.
 * The offset of Q3_K and Q6_K is where a sub-block's sum starts: -offset * sum of the tokens' values.  Mins join the block
 * once: sum over j of min_j times the sum of the tokens' values, as products of words, two sub-blocks each. */
#include "kernels/vnni/lanes.h"

#define HAS_MIN(ty) ((ty) == TENSOR_Q2_K || (ty) == TENSOR_Q4_K || (ty) == TENSOR_Q5_K)
/* Scales of 32 columns (Q4_K, Q5_K) or of 16. */
#define SCALES_32(ty) ((ty) == TENSOR_Q4_K || (ty) == TENSOR_Q5_K)
#define IN_WORDS(ty)  ((ty) == TENSOR_Q2_K || (ty) == TENSOR_Q3_K)
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
#define N_SCALES(ty)   (SCALES_32(ty) ? 8 : 16)

TILE_INLINE __m256i unpack(const tensor_type ty, const uint8_t *p, const int q) {
    return ty == TENSOR_Q2_K   ? two_vec(p, q)
           : ty == TENSOR_Q3_K ? three_vec(p, q)
           : ty == TENSOR_Q4_K ? nibble_vec(p, q)
           : ty == TENSOR_Q5_K ? five_vec(p, q)
                               : six_vec(p, q);
}

/* The 16 bytes of scales of pair j, widened: [r0-3 even][r0-3 odd] | [r4-7 even][r4-7 odd]. */
TILE_INLINE __m256i scale_pair(const tensor_type ty, const uint8_t *unit, int j) {
    __m128i s = load128(unit + SCALES_AT(ty) + 16 * j);
    if (ty == TENSOR_Q2_K) s = _mm_and_si128(s, _mm_set1_epi8(15));
    return ty == TENSOR_Q3_K || ty == TENSOR_Q6_K ? _mm256_cvtepi8_epi16(s) : _mm256_cvtepu8_epi16(s);
}
/* The scale of each row for the even or the odd one of a pair: (s, 0) as words, or s in 32 bits. */
TILE_INLINE __m256i scale_of(const tensor_type ty, __m256i scales, const int odd) {
    const __m256i zero = _mm256_setzero_si256();
    if (ty != TENSOR_Q6_K) return odd ? _mm256_unpackhi_epi16(scales, zero) : _mm256_unpacklo_epi16(scales, zero);
    return _mm256_srai_epi32(odd ? _mm256_unpackhi_epi16(zero, scales) : _mm256_unpacklo_epi16(zero, scales), 16);
}
/* (even, odd) of each row's mins. */
TILE_INLINE __m256i min_pair(const tensor_type ty, const uint8_t *unit, int j) {
    __m256i v;
    if (SCALES_32(ty)) return _mm256_cvtepu8_epi16(load128(unit + 96 + 16 * j));
    v = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(load128(unit + 32 + 16 * j), 4), _mm_set1_epi8(15)));
    return _mm256_unpacklo_epi16(v, _mm256_srli_si256(v, 8));
}
TILE_INLINE const void *sum_pair(const tensor_type ty, const act_i8_256 *a, int j) {
    return SCALES_32(ty) ? a->sum32 + 2 * j : a->sum16 + 2 * j;
}

/* What the sum of 16 columns starts at: -32, or -4, times that of the token. */
TILE_INLINE __m256i start(const tensor_type ty, const act_i8_256 *a, int j) {
    if (ty == TENSOR_Q6_K) return bcast32(a->minus32 + j);
    if (ty == TENSOR_Q3_K) return _mm256_srai_epi32(bcast32(a->minus32 + j), 3);
    return _mm256_setzero_si256();
}
TILE_INLINE pair start_pair(const tensor_type ty, const act_i8_256 *a, int j) {
    if (ty == TENSOR_Q6_K) return pair_start(a->minus32 + j);
    if (ty == TENSOR_Q3_K) return pair_shr(pair_start(a->minus32 + j), 3);
    return pair_zero();
}

TILE_INLINE __m256i add_scaled(const tensor_type ty, __m256i sum, __m256i acc, __m256i scale) {
    return IN_WORDS(ty) ? DP16(sum, acc, scale) : _mm256_add_epi32(sum, _mm256_mullo_epi32(acc, scale));
}

/* The float update of one block: f + I * (d * s) - N * (dmin * s). */
TILE_INLINE __m256 finish(const tensor_type ty, __m256 f, __m256i sum, __m256i mins, __m256 d, __m256 dmin,
                          const act_i8_256 *a) {
    __m256 s = _mm256_broadcast_ss(&a->scale);
    f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, s), f);
    return HAS_MIN(ty) ? _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins), _mm256_mul_ps(dmin, s), f) : f;
}

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums, __m256i *tmp) {
    const int n = nr * nc, n_pairs = N_SCALES(ty) / 2, step = SCALES_32(ty) ? 8 : 4; /* step: vectors per sub-block */
    const bool in_regs = n <= SUMS_IN_REGS;
    const act_i8_256 *a = act;
    const uint8_t *p[4];
    UNROLL
    for (int r = 0; r < nr; r++) p[r] = w[r];
    for (uint32_t u = 0; u < n_units; u++, a += nc) {
        __m256i sum[SUMS_IN_REGS];
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
                UNROLL
                for (int i = 0; i < step; i++) {
                    const int q = ty == TENSOR_Q4_K ? i >> 1 | (i & 1) << 2 : 4 * h + i;
                    __m256i v, x[4];
                    FENCE();
                    UNROLL
                    for (int c = 0; c < nc; c++) x[c] = bcast32(a[c].q + 32 * (s + sub) + 4 * q);
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        v = unpack(ty, p[r] + off + SUB(ty) * s, q);
                        UNROLL
                        for (int c = 0; c < nc; c++) acc[c * nr + r] = DP8(acc[c * nr + r], v, x[c]);
                    }
                }
                UNROLL
                for (int r = 0; r < nr; r++) {
                    __m256i sc = SCALES_32(ty) ? scale_of(ty, scale_pair(ty, p[r], s / 2), sub)
                                               : scale_of(ty, scale_pair(ty, p[r], s + sub), h);
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        const int i = c * nr + r;
                        if (in_regs) {
                            sum[i] = add_scaled(ty, sum[i], acc[i], sc);
                            HOLD(sum[i]);
                        } else
                            tmp[i] = add_scaled(ty, tmp[i], acc[i], sc);
                    }
                }
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) {
            __m256 d = half8(p[r]), dmin = HAS_MIN(ty) ? half8(p[r] + 16) : d;
            __m256i mins[4];
            UNROLL
            for (int c = 0; c < nc; c++) mins[c] = _mm256_setzero_si256();
            if (HAS_MIN(ty)) {
                UNROLL
                for (int j = 0; j < n_pairs; j++) {
                    __m256i v;
                    FENCE();
                    v = min_pair(ty, p[r], j);
                    UNROLL
                    for (int c = 0; c < nc; c++) mins[c] = DP16(mins[c], v, bcast32(sum_pair(ty, a + c, j)));
                }
            }
            UNROLL
            for (int c = 0; c < nc; c++) {
                const int i = c * nr + r;
                sums[i] = finish(ty, sums[i], in_regs ? sum[i] : tmp[i], mins[c], d, dmin, a + c);
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += UNIT(ty);
    }
}

/* ---- panel, per unit: 64 pairs of bytes, scales, mins, d and dmin ---- */

#define N_MINS(ty)     (HAS_MIN(ty) ? N_SCALES(ty) / 2 : 0)
#define PANEL_UNIT(ty) (64 * (64 + N_SCALES(ty) + N_MINS(ty) + 2))

TILE_INLINE void put(uint8_t *o, int index, int r, __m256i v) {
    _mm256_store_si256((__m256i *)(o + 64 * index + 32 * r), v);
}

TILE_INLINE void panel_unpack(const tensor_type ty, const uint8_t *w0, const uint8_t *w1, uint32_t n_units,
                              uint8_t *o) {
    const int n = N_SCALES(ty), tail = 64 + n + N_MINS(ty);
    for (uint32_t u = 0; u < n_units; u++, w0 += UNIT(ty), w1 += UNIT(ty), o += PANEL_UNIT(ty))
        for (int r = 0; r < 2; r++) {
            const uint8_t *p = r ? w1 : w0;
            for (int s = 0; s < 8; s++) {
                UNROLL
                for (int q = 0; q < 8; q++) put(o, 8 * s + q, r, unpack(ty, p + COLUMNS_AT(ty) + SUB(ty) * s, q));
            }
            for (int j = 0; j < n; j += 2) {
                __m256i v = scale_pair(ty, p, j / 2);
                put(o, 64 + j, r, scale_of(ty, v, 0));
                put(o, 64 + j + 1, r, scale_of(ty, v, 1));
                if (HAS_MIN(ty)) put(o, 64 + n + j / 2, r, min_pair(ty, p, j / 2));
            }
            put(o, tail, r, _mm256_castps_si256(half8(p)));
            if (HAS_MIN(ty)) put(o, tail + 1, r, _mm256_castps_si256(half8(p + 16)));
        }
}

/* nc tokens: up to 4 at act, or 8 of which the last 4 are at act2.  from, to, ldt: as mm_two_panels. */
TILE_INLINE void panel_tile(const tensor_type ty, const int nc, const uint8_t *p, const void *act, const void *act2,
                            uint32_t n_units, const float *from, float *to, size_t ldt) {
    const int n = N_SCALES(ty), per = 64 / n, step = nc < 4 ? nc : 4;
    const bool in_regs = nc <= PAIRS_IN_REGS;
    const act_i8_256 *a = act, *a2 = act2;
    pair_f f[8];
    UNROLL
    for (int c = 0; c < nc; c++) {
        if (in_regs) f[c] = pair_zero_f();
        if (in_regs && from) f[c] = pair_load_f(from + 2 * MM_ROWS * c);
    }
    for (uint32_t u = 0; u < n_units; u++, a += step, a2 += nc > 4 ? step : 0, p += PANEL_UNIT(ty)) {
        const uint8_t *tail = p + 64 * (64 + n + N_MINS(ty));
        pair sum[8], mins[8];
        pair_f d, dmin;
        UNROLL
        for (int c = 0; c < nc; c++) sum[c] = pair_zero();
        for (int e = 0; e < n; e++) {
            pair acc[8], sc;
            UNROLL
            for (int c = 0; c < nc; c++) acc[c] = start_pair(ty, c < 4 ? a + c : a2 + c - 4, e);
            UNROLL
            for (int q = 0; q < per; q++) {
                pair w;
                FENCE();
                w = pair_load(p + 64 * (per * e + q));
                UNROLL
                for (int c = 0; c < nc; c++)
                    acc[c] = pair_dp8(acc[c], w, pair_bcast((c < 4 ? a + c : a2 + c - 4)->q + 4 * (per * e + q)));
            }
            sc = pair_load(p + 64 * (64 + e));
            UNROLL
            for (int c = 0; c < nc; c++)
                sum[c] = IN_WORDS(ty) ? pair_dp16(sum[c], acc[c], sc) : pair_add(sum[c], pair_mul(acc[c], sc));
        }
        UNROLL
        for (int c = 0; c < nc; c++) mins[c] = pair_zero();
        if (HAS_MIN(ty)) {
            UNROLL
            for (int j = 0; j < n / 2; j++) {
                pair v;
                FENCE();
                v = pair_load(p + 64 * (64 + n + j));
                UNROLL
                for (int c = 0; c < nc; c++)
                    mins[c] = pair_dp16(mins[c], v, pair_bcast(sum_pair(ty, c < 4 ? a + c : a2 + c - 4, j)));
            }
        }
        d = pair_load_f(tail);
        dmin = HAS_MIN(ty) ? pair_load_f(tail + 64) : d;
        UNROLL
        for (int c = 0; c < nc; c++) {
            const act_i8_256 *x = c < 4 ? a + c : a2 + c - 4;
            pair_f s = pair_set_f(x->scale);
            if (!in_regs) f[c] = pair_load_f(from + 2 * MM_ROWS * c);
            f[c] = pair_fma(pair_float(sum[c]), pair_mul_f(d, s), f[c]);
            if (HAS_MIN(ty)) f[c] = pair_fnma(pair_float(mins[c]), pair_mul_f(dmin, s), f[c]);
            if (!in_regs) pair_store_f(to + ldt * c, f[c]);
        }
    }
    UNROLL
    for (int c = 0; c < nc; c++) {
        if (in_regs) pair_store_f(to + ldt * c, f[c]);
    }
}

#if LANES_WIDE
/* ---- 16 rows without unpacking them first ---- */

/* Columns 4q..4q+3 of the 32 whose vectors are v. */
TILE_INLINE pair pick(const tensor_type ty, const pair *v, const int q) {
    const pair top = _mm512_set1_epi8((char)0xC0);
    pair x;
    if (ty == TENSOR_Q4_K) return pick_nibble(v, q);
    if (ty == TENSOR_Q5_K) return pick_five(v, q);
    if (ty == TENSOR_Q2_K)
        return _mm512_and_si512(q & 3 ? _mm512_srli_epi16(v[q >> 2], 2 * (q & 3)) : v[q >> 2], _mm512_set1_epi8(3));
    if (ty == TENSOR_Q3_K) {
        if (q < 6) return _mm512_and_si512(q & 1 ? _mm512_srli_epi16(v[q >> 1], 3) : v[q >> 1], _mm512_set1_epi8(7));
        x = _mm512_and_si512(_mm512_srli_epi16(v[q == 6 ? 0 : 2], 6), _mm512_set1_epi8(3));
        return _mm512_or_si512(x, _mm512_and_si512(_mm512_srli_epi16(v[1], q - 2), _mm512_set1_epi8(4)));
    }
    v += (q >> 2) * 3; /* Q6_K: a half */
    if ((q & 3) < 3) return _mm512_and_si512(v[q & 3], _mm512_set1_epi8(63));
    x = _mm512_srli_epi16(_mm512_and_si512(v[0], top), 2);
    x = _mm512_srli_epi16(_mm512_or_si512(x, _mm512_and_si512(v[1], top)), 2);
    return _mm512_srli_epi16(_mm512_or_si512(x, _mm512_and_si512(v[2], top)), 2);
}
/* The vector to load before pick(q), which come in the order of tile; -1: none. */
TILE_INLINE int vec_for(const tensor_type ty, const int q) {
    return ty == TENSOR_Q2_K   ? (q & 3 ? -1 : q >> 2)
           : ty == TENSOR_Q3_K ? (q < 6 && !(q & 1) ? q >> 1 : -1)
           : ty == TENSOR_Q4_K ? (q < 4 ? q : -1)
           : ty == TENSOR_Q5_K ? (q < 5 ? q : -1)
                               : ((q & 3) < 3 ? 3 * (q >> 2) + (q & 3) : -1);
}

/* As scale_pair, scale_of and min_pair, of 16 rows. */
TILE_INLINE pair wide_scales(const tensor_type ty, const uint8_t *p0, const uint8_t *p1, int j) {
    __m256i s = join16(p0 + SCALES_AT(ty) + 16 * j, p1 + SCALES_AT(ty) + 16 * j);
    if (ty == TENSOR_Q2_K) s = _mm256_and_si256(s, _mm256_set1_epi8(15));
    return ty == TENSOR_Q3_K || ty == TENSOR_Q6_K ? _mm512_cvtepi8_epi16(s) : _mm512_cvtepu8_epi16(s);
}
TILE_INLINE pair wide_scale(const tensor_type ty, pair scales, const int odd) {
    const pair zero = pair_zero();
    if (ty != TENSOR_Q6_K) return odd ? _mm512_unpackhi_epi16(scales, zero) : _mm512_unpacklo_epi16(scales, zero);
    return pair_shr(odd ? _mm512_unpackhi_epi16(zero, scales) : _mm512_unpacklo_epi16(zero, scales), 16);
}
TILE_INLINE pair wide_mins(const tensor_type ty, const uint8_t *p0, const uint8_t *p1, int j) {
    pair v;
    if (SCALES_32(ty)) return _mm512_cvtepu8_epi16(join16(p0 + 96 + 16 * j, p1 + 96 + 16 * j));
    v = _mm512_cvtepu8_epi16(_mm256_and_si256(_mm256_srli_epi16(join16(p0 + 32 + 16 * j, p1 + 32 + 16 * j), 4),
                                              _mm256_set1_epi8(15)));
    return _mm512_unpacklo_epi16(v, _mm512_bsrli_epi128(v, 8));
}

/* nc tokens: as mm_wide. */
TILE_INLINE void wide_tile(const tensor_type ty, const int nc, const uint8_t *const *w, const uint8_t *const *next,
                           const void *act, const void *act2, uint32_t n_units, const float *from, float *to, size_t ldt) {
    const int n = N_SCALES(ty), step = SCALES_32(ty) ? 8 : 4, part = UNIT(ty) / 4;
    const act_i8_256 *a = act, *a2 = act2;
    const uint8_t *p0 = w[0], *p1 = w[1];
    ahead_of h;
    pair_f f[8];
    ahead_begin(&h, w, next, n_units, UNIT(ty));
    UNROLL
    for (int c = 0; c < nc; c++) f[c] = from ? pair_load_f(from + 2 * MM_ROWS * c) : pair_zero_f();
    for (uint32_t u = 0; u < n_units; u++, p0 += UNIT(ty), p1 += UNIT(ty)) {
        pair sum[8], mins[8];
        pair_f d, dmin;
        ahead_unit(&h);
        UNROLL
        for (int c = 0; c < nc; c++) sum[c] = pair_zero();
        for (int s = 0; s < 8; s += 2) { /* two times 32 columns: one pair of scales, or two */
            UNROLL
            for (int sub = 0; sub < 2; sub++) {
                const int at = COLUMNS_AT(ty) + SUB(ty) * (s + sub);
                pair v[8];
                UNROLL
                for (int e = 0; e < 8 / step; e++) {
                    const int odd = SCALES_32(ty) ? sub : e;
                    pair acc[8], sc;
                    FENCE();
                    UNROLL
                    for (int c = 0; c < nc; c++) acc[c] = start_pair(ty, c < 4 ? a + c : a2 + c - 4, 2 * (s + sub) + e);
                    UNROLL
                    for (int i = 0; i < step; i++) {
                        const int q = ty == TENSOR_Q4_K ? i >> 1 | (i & 1) << 2 : step * e + i, l = vec_for(ty, q);
                        pair x;
                        FENCE();
                        if (l >= 0) v[l] = join(p0 + at + 32 * l, p1 + at + 32 * l);
                        ahead_turn(&h, part, 8 * sub + step * e + i, 16);
                        x = pick(ty, v, q);
                        UNROLL
                        for (int c = 0; c < nc; c++) {
                            const int8_t *y = (c < 4 ? a + c : a2 + c - 4)->q + 32 * (s + sub) + 4 * q;
                            acc[c] = pair_dp8(acc[c], x, pair_bcast(y));
                        }
                    }
                    sc = wide_scale(ty, wide_scales(ty, p0, p1, SCALES_32(ty) ? s / 2 : s + sub), odd);
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        sum[c] = IN_WORDS(ty) ? pair_dp16(sum[c], acc[c], sc) : pair_add(sum[c], pair_mul(acc[c], sc));
                        HOLD_PAIR(sum[c]);
                    }
                }
            }
            ahead_pass(&h, part);
        }
        UNROLL
        for (int c = 0; c < nc; c++) mins[c] = pair_zero();
        if (HAS_MIN(ty)) {
            UNROLL
            for (int j = 0; j < n / 2; j++) {
                pair v;
                FENCE();
                v = wide_mins(ty, p0, p1, j);
                UNROLL
                for (int c = 0; c < nc; c++)
                    mins[c] = pair_dp16(mins[c], v, pair_bcast(sum_pair(ty, c < 4 ? a + c : a2 + c - 4, j)));
            }
        }
        d = join_half(p0, p1);
        dmin = HAS_MIN(ty) ? join_half(p0 + 16, p1 + 16) : d;
        UNROLL
        for (int c = 0; c < nc; c++) {
            pair_f x = pair_set_f((c < 4 ? a + c : a2 + c - 4)->scale);
            f[c] = pair_fma(pair_float(sum[c]), pair_mul_f(d, x), f[c]);
            if (HAS_MIN(ty)) f[c] = pair_fnma(pair_float(mins[c]), pair_mul_f(dmin, x), f[c]);
        }
        a += nc < 4 ? nc : 4, a2 += nc < 4 ? 0 : nc - 4;
    }
    UNROLL
    for (int c = 0; c < nc; c++) pair_store_f(to + ldt * c, f[c]);
}
#endif

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

TYPE_WIDE(q2_k, TENSOR_Q2_K, 2, 20, 192)
TYPE_WIDE(q3_k, TENSOR_Q3_K, 2, 20, 192)
TYPE_WIDE(q4_k, TENSOR_Q4_K, 2, 24, 192)
TYPE_WIDE(q5_k, TENSOR_Q5_K, 2, 24, 192)
TYPE(q6_k, TENSOR_Q6_K, 2, 24, 56, 192)
