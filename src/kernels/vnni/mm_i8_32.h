/* mm_i8_32.h - Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL and IQ4_XS by vpdpbusd: the template of two sets (lanes.h).
 *
 * Values are unsigned (of IQ4 the code point + 128); their offset (8, 16 or 128) is where the 32-bit sum of a block starts,
 * -offset * sum of the tokens' values.  Eight vpdpbusd later the block is done: no widening, no bound to keep.  Q8_0: a
 * ninth where a column stands out in the token's block (act_i8_32). */
#include "kernels/vnni/lanes.h"

#define HAS_BIT5(ty) ((ty) == TENSOR_Q5_0 || (ty) == TENSOR_Q5_1)
#define HAS_MIN(ty)  ((ty) == TENSOR_Q4_1 || (ty) == TENSOR_Q5_1)
#define IN_BYTES(ty) ((ty) == TENSOR_Q8_0)
#define IN_CODES(ty) ((ty) == TENSOR_IQ4_NL || (ty) == TENSOR_IQ4_XS)
#define N_BLOCKS(ty) ((ty) == TENSOR_IQ4_XS ? 8 : 2)
#define HEAD(ty)     ((ty) == TENSOR_IQ4_XS ? 80 : HAS_MIN(ty) ? 64 : 32)
#define BLOCK(ty)    (IN_BYTES(ty) ? 256 : HAS_BIT5(ty) ? 160 : 128)
#define UNIT(ty)     (HEAD(ty) + N_BLOCKS(ty) * BLOCK(ty))

/* What a sum starts at. */
TILE_INLINE __m256i start(const tensor_type ty, const act_i8_32 *a) {
    __m256i v;
    if (HAS_MIN(ty)) return _mm256_setzero_si256();
    v = bcast32(&a->minus8);
    if (IN_BYTES(ty) || IN_CODES(ty)) return _mm256_slli_epi32(v, 4);
    return HAS_BIT5(ty) ? _mm256_add_epi32(v, v) : v;
}
TILE_INLINE pair start_pair(const tensor_type ty, const act_i8_32 *a) {
    pair v;
    if (HAS_MIN(ty)) return pair_zero();
    v = pair_start(&a->minus8);
    if (IN_BYTES(ty) || IN_CODES(ty)) return pair_shl(v, 4);
    return HAS_BIT5(ty) ? pair_add(v, v) : v;
}

TILE_INLINE __m256i unpack(const tensor_type ty, const uint8_t *blk, const int q) {
    const __m256i table = _mm256_xor_si256(_mm256_setr_epi8(MM_IQ4_TABLE, MM_IQ4_TABLE), _mm256_set1_epi8((char)0x80));
    if (IN_CODES(ty)) return _mm256_shuffle_epi8(table, nibble_vec(blk, q));
    return IN_BYTES(ty) ? load256(blk + 32 * q) : HAS_BIT5(ty) ? five_vec(blk, q) : nibble_vec(blk, q);
}

/* What the column that stands out adds to a sum: w are its weights. */
TILE_INLINE __m256i add_top(__m256i sum, const uint8_t *w, const act_i8_32 *a) {
    __m256i v = DP8(_mm256_setzero_si256(), load256(w), bcast32(a->top));
    return _mm256_add_epi32(sum, _mm256_slli_epi32(v, 7));
}

/* Scale of block b; whole: of the unit, where all blocks share one. */
TILE_INLINE __m256 scale_of(const tensor_type ty, const uint8_t *unit, int b, __m256 whole) {
    if (ty != TENSOR_IQ4_XS) return half8(unit + 16 * b);
    __m256i s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(unit + 16 + 8 * b)));
    return _mm256_mul_ps(whole, _mm256_cvtepi32_ps(s));
}

TILE_INLINE __m256 finish(const tensor_type ty, __m256i sum, __m256 d, __m256 m, __m256 f, const act_i8_32 *a) {
    f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_broadcast_ss(&a->scale)), f);
    return HAS_MIN(ty) ? _mm256_fmadd_ps(m, _mm256_broadcast_ss(&a->ssum), f) : f;
}

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums, __m256i *tmp) {
    const int head = HEAD(ty), size = BLOCK(ty), unit = UNIT(ty), n_blocks = N_BLOCKS(ty);
    const bool in_regs = nr * nc <= SUMS_IN_REGS;
    const act_i8_32 *a = act;
    const uint8_t *p[4];
    __m256 f[SUMS_IN_REGS];
    (void)tmp;
    UNROLL
    for (int r = 0; r < nr; r++) p[r] = w[r];
    UNROLL
    for (int i = 0; i < nr * nc; i++) {
        if (in_regs) f[i] = sums[i];
    }
    for (uint32_t u = 0; u < n_units; u++) {
        __m256 whole[4];
        UNROLL
        for (int r = 0; r < nr; r++) whole[r] = half8(p[r]);
        for (int two = 0; two < n_blocks; two += 2) { /* all eight of IQ4_XS at once would be too much code: 1.02 to 1.04 */
            UNROLL
            for (int b = two; b < two + 2; b++, a += nc) {
                __m256i acc[16];
                UNROLL
                for (int i = 0; i < nr * nc; i++) acc[i] = start(ty, a + i / nr);
                UNROLL
                for (int i = 0; i < 8; i++) {
                    const int q = HAS_BIT5(ty) || IN_BYTES(ty) ? i : i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                    __m256i v[4], x[4];
                    FENCE();
                    prefetch_turn(p, unit / n_blocks * b, ahead, unit / n_blocks, nr, i, 8);
                    UNROLL
                    for (int c = 0; c < nc; c++) x[c] = bcast32(a[c].q + 4 * q);
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        v[r] = unpack(ty, p[r] + head + size * b, q);
                        UNROLL
                        for (int c = 0; c < nc; c++) acc[c * nr + r] = DP8(acc[c * nr + r], v[r], x[c]);
                    }
                }
                UNROLL
                for (int c = 0; c < nc; c++) {
                    if (!IN_BYTES(ty) || !mm_has_top(a + c)) continue;
                    UNROLL
                    for (int r = 0; r < nr; r++)
                        acc[c * nr + r] = add_top(acc[c * nr + r], p[r] + head + size * b + a[c].at, a + c);
                }
                UNROLL
                for (int r = 0; r < nr; r++) {
                    __m256 d = scale_of(ty, p[r], b, whole[r]), m = d;
                    if (HAS_MIN(ty)) m = half8(p[r] + 32 + 16 * b);
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        const int i = c * nr + r;
                        if (in_regs)
                            f[i] = finish(ty, acc[i], d, m, f[i], a + c);
                        else
                            sums[i] = finish(ty, acc[i], d, m, sums[i], a + c);
                    }
                }
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += unit;
    }
    if (in_regs) {
        UNROLL
        for (int i = 0; i < nr * nc; i++) sums[i] = f[i];
    }
}

/* ---- panel: per block 8 pairs of bytes, then d and m as floats ---- */

enum { PANEL_BLOCK = 8 * 64 + 2 * 64 };

TILE_INLINE void panel_unpack(const tensor_type ty, const uint8_t *w0, const uint8_t *w1, uint32_t n_units,
                              uint8_t *o) {
    const int head = HEAD(ty), size = BLOCK(ty), unit = UNIT(ty);
    for (uint32_t u = 0; u < n_units; u++, w0 += unit, w1 += unit)
        for (int b = 0; b < N_BLOCKS(ty); b++, o += PANEL_BLOCK) {
            UNROLL
            for (int r = 0; r < 2; r++) {
                const uint8_t *p = r ? w1 : w0;
                UNROLL
                for (int q = 0; q < 8; q++)
                    _mm256_store_si256((__m256i *)(o + 64 * q + 32 * r), unpack(ty, p + head + size * b, q));
                _mm256_store_ps((float *)(o + 512 + 32 * r), scale_of(ty, p, b, half8(p)));
                if (HAS_MIN(ty)) _mm256_store_ps((float *)(o + 576 + 32 * r), half8(p + 32 + 16 * b));
            }
        }
}

/* nc tokens: up to 4 at act, or 8 of which the last 4 are at act2.  from, to, ldt: as mm_two_panels. */
TILE_INLINE void panel_tile(const tensor_type ty, const int nc, const uint8_t *p, const void *act, const void *act2,
                            uint32_t n_units, const float *from, float *to, size_t ldt) {
    const int step = nc < 4 ? nc : 4;
    const bool in_regs = nc <= PAIRS_IN_REGS;
    const act_i8_32 *a = act, *a2 = act2;
    pair_f f[8];
    UNROLL
    for (int c = 0; c < nc; c++) {
        if (in_regs) f[c] = pair_zero_f();
        if (in_regs && from) f[c] = pair_load_f(from + 2 * MM_ROWS * c);
    }
    for (uint32_t b = 0; b < n_units * N_BLOCKS(ty); b++, a += step, a2 += nc > 4 ? step : 0, p += PANEL_BLOCK) {
        pair acc[8];
        pair_f d, m;
        UNROLL
        for (int c = 0; c < nc; c++) acc[c] = start_pair(ty, c < 4 ? a + c : a2 + c - 4);
        UNROLL
        for (int q = 0; q < 8; q++) {
            pair w;
            FENCE();
            w = pair_load(p + 64 * q);
            UNROLL
            for (int c = 0; c < nc; c++) acc[c] = pair_dp8(acc[c], w, pair_bcast((c < 4 ? a + c : a2 + c - 4)->q + 4 * q));
        }
        UNROLL
        for (int c = 0; c < nc; c++) {
            const act_i8_32 *x = c < 4 ? a + c : a2 + c - 4;
            if (!IN_BYTES(ty) || !mm_has_top(x)) continue;
            acc[c] = pair_add(acc[c], pair_shl(pair_dp8(pair_zero(), pair_load(p + 2 * x->at), pair_bcast(x->top)), 7));
        }
        d = pair_load_f(p + 512);
        m = HAS_MIN(ty) ? pair_load_f(p + 576) : d;
        UNROLL
        for (int c = 0; c < nc; c++) {
            const act_i8_32 *x = c < 4 ? a + c : a2 + c - 4;
            if (!in_regs) f[c] = pair_load_f(from + 2 * MM_ROWS * c);
            f[c] = pair_fma(pair_float(acc[c]), pair_mul_f(d, pair_set_f(x->scale)), f[c]);
            if (HAS_MIN(ty)) f[c] = pair_fma(m, pair_set_f(x->ssum), f[c]);
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

/* Columns 4q..4q+3 of the block whose vectors are v. */
TILE_INLINE pair pick(const tensor_type ty, const pair *v, const int q) {
    const pair table = _mm512_broadcast_i32x4(_mm_xor_si128(_mm_setr_epi8(MM_IQ4_TABLE), _mm_set1_epi8((char)0x80)));
    if (IN_CODES(ty)) return _mm512_shuffle_epi8(table, pick_nibble(v, q));
    return IN_BYTES(ty) ? v[q] : HAS_BIT5(ty) ? pick_five(v, q) : pick_nibble(v, q);
}

/* As scale_of. */
TILE_INLINE pair_f join_scale(const tensor_type ty, const uint8_t *p0, const uint8_t *p1, int b, pair_f whole) {
    __m128i s;
    if (ty != TENSOR_IQ4_XS) return join_half(p0 + 16 * b, p1 + 16 * b);
    s = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(p0 + 16 + 8 * b)), _mm_loadl_epi64((const __m128i *)(p1 + 16 + 8 * b)));
    return _mm512_mul_ps(whole, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s)));
}

/* nc tokens: as mm_wide. */
TILE_INLINE void wide_tile(const tensor_type ty, const int nc, const uint8_t *const *w, const uint8_t *const *next,
                           const void *act, const void *act2, uint32_t n_units, const float *from, float *to, size_t ldt) {
    const int head = HEAD(ty), size = BLOCK(ty), unit = UNIT(ty), n_blocks = N_BLOCKS(ty), n_vecs = size / 32;
    const act_i8_32 *a = act, *a2 = act2;
    const uint8_t *p0 = w[0], *p1 = w[1];
    ahead_of h;
    pair_f f[8];
    ahead_begin(&h, w, next, n_units, unit);
    UNROLL
    for (int c = 0; c < nc; c++) f[c] = from ? pair_load_f(from + 2 * MM_ROWS * c) : pair_zero_f();
    for (uint32_t u = 0; u < n_units; u++, p0 += unit, p1 += unit) {
        pair_f whole = join_half(p0, p1);
        ahead_unit(&h);
        for (int two = 0; two < n_blocks; two += 2) {
            UNROLL
            for (int b = two; b < two + 2; b++, a += nc < 4 ? nc : 4, a2 += nc < 4 ? 0 : nc - 4) {
                pair acc[8], v[8];
                pair_f d, m;
                UNROLL
                for (int c = 0; c < nc; c++) acc[c] = start_pair(ty, c < 4 ? a + c : a2 + c - 4);
                UNROLL
                for (int i = 0; i < 8; i++) {
                    const int q = HAS_BIT5(ty) || IN_BYTES(ty) ? i : i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                    pair x;
                    FENCE();
                    if (q < n_vecs) v[q] = join(p0 + head + size * b + 32 * q, p1 + head + size * b + 32 * q);
                    ahead_turn(&h, 2 * unit / n_blocks, 8 * (b - two) + i, 16);
                    x = pick(ty, v, q);
                    UNROLL
                    for (int c = 0; c < nc; c++)
                        acc[c] = pair_dp8(acc[c], x, pair_bcast((c < 4 ? a + c : a2 + c - 4)->q + 4 * q));
                }
                UNROLL
                for (int c = 0; c < nc; c++) {
                    const act_i8_32 *x = c < 4 ? a + c : a2 + c - 4;
                    size_t at = (size_t)(head + size * b);
                    if (!IN_BYTES(ty) || !mm_has_top(x)) continue;
                    at += x->at;
                    acc[c] = pair_add(acc[c], pair_shl(pair_dp8(pair_zero(), join(p0 + at, p1 + at), pair_bcast(x->top)), 7));
                }
                d = join_scale(ty, p0, p1, b, whole);
                m = HAS_MIN(ty) ? join_half(p0 + 32 + 16 * b, p1 + 32 + 16 * b) : d;
                UNROLL
                for (int c = 0; c < nc; c++) {
                    const act_i8_32 *x = c < 4 ? a + c : a2 + c - 4;
                    f[c] = pair_fma(pair_float(acc[c]), pair_mul_f(d, pair_set_f(x->scale)), f[c]);
                    if (HAS_MIN(ty)) f[c] = pair_fma(m, pair_set_f(x->ssum), f[c]);
                }
            }
            ahead_pass(&h, 2 * unit / n_blocks);
        }
    }
    UNROLL
    for (int c = 0; c < nc; c++) pair_store_f(to + ldt * c, f[c]);
}
#endif

#define TY         TENSOR_Q4_0
#define FN(nr, nc) q4_0_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q4_1
#define FN(nr, nc) q4_1_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q5_0
#define FN(nr, nc) q5_0_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q5_1
#define FN(nr, nc) q5_1_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_Q8_0
#define FN(nr, nc) q8_0_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_IQ4_NL
#define FN(nr, nc) iq4_nl_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_IQ4_XS
#define FN(nr, nc) iq4_xs_##nr##x##nc
MM_SHAPES(DIRECT)

TYPE_WIDE(q4_0, TENSOR_Q4_0, 10, 28, 256)
TYPE_WIDE(q4_1, TENSOR_Q4_1, 10, 24, 256)
TYPE_WIDE(q5_0, TENSOR_Q5_0, 10, 24, 256)
TYPE_WIDE(q5_1, TENSOR_Q5_1, 10, 28, 256)
TYPE(q8_0, TENSOR_Q8_0, 10, 64, 64, 128)
TYPE_WIDE(iq4_nl, TENSOR_IQ4_NL, 10, 20, 256)
TYPE_WIDE(iq4_xs, TENSOR_IQ4_XS, 2, 16, 256)
