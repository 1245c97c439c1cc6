/* mm_i16_32.h - IQ4_NL, IQ4_XS: the template of two sets (lanes.h).
 *
 * As the AVX2 version, with multiplication and addition in one: signed bytes are widened and meet the tokens' words by
 * vpdpwssd.  For few tokens of IQ4 the words are split instead, and vpdpbusd multiplies bytes (tile_bytes). */
#include "kernels/vnni/lanes.h"

/* No wide tiles here. */
#undef WIDES
#undef WIDE_TABLE
#define WIDES(name, ty)
#define WIDE_TABLE(name) {NULL}

#define HEAD(ty)     ((ty) == TENSOR_IQ4_XS ? 80 : 32)
#define BLOCK(ty)    128
#define N_BLOCKS(ty) ((ty) == TENSOR_IQ4_XS ? 8 : 2)
#define UNIT(ty)     (HEAD(ty) + BLOCK(ty) * N_BLOCKS(ty))

#if LANES_WIDE
/* A word of pair nibbles holds columns 4j, 16 + 4j, 4j + 2, 16 + 4j + 2 from its low end on; vpermw looks words up by their
 * low 4 bits, and so does without masks and widening. */
TILE_INLINE __m256i raw(const uint8_t *p, const int j) {
    return load256(p + 32 * (j & 3));
}
TILE_INLINE __m256i widen(__m256i x, const int j, const int odd) {
    const __m256i table = _mm256_setr_epi16(MM_IQ4_TABLE);
    const int shift = 4 * (j >> 2) + 8 * odd;
    return _mm256_permutexvar_epi16(shift ? _mm256_srli_epi16(x, shift) : x, table);
}
#else
/* 8 rows x columns 4j..4j+3 of the block at p as code points. */
TILE_INLINE __m256i raw(const uint8_t *p, const int j) {
    const __m256i table = _mm256_setr_epi8(MM_IQ4_TABLE, MM_IQ4_TABLE);
    return _mm256_shuffle_epi8(table, nibble_vec(p, j));
}
/* Columns 4j, 4j+1 (odd = 0) or 4j+2, 4j+3 as int16. */
TILE_INLINE __m256i widen(__m256i x, const int j, const int odd) {
    (void)j;
    return _mm256_srai_epi16(odd ? x : _mm256_slli_epi16(x, 8), 8);
}
#endif

/* Of block b; whole: of the unit, where one belongs to all blocks. */
TILE_INLINE __m256 scale_of(const tensor_type ty, const uint8_t *unit, int b, __m256 whole) {
    if (ty != TENSOR_IQ4_XS) return half8(unit + 16 * b);
    __m256i s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(unit + 16 + 8 * b)));
    return _mm256_mul_ps(whole, _mm256_cvtepi32_ps(s));
}

TILE_INLINE __m256 finish(__m256 f, __m256i sum, __m256 d, const act_i16_32 *a) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_broadcast_ss(&a->scale)), f);
}

/* ---- few tokens of IQ4: sum q code = 256 sum high (code + 128) + sum low (code + 128) - 128 sum q
 *
 * q = 256 high + low, both of 8 bits with a sign.  vpdpbusd wants one side unsigned: the code + 128.  So half as many lookups
 * and shifts as with words; from 3 tokens on the multiplications take the time, as many as with words (measured,
 * docs/performance.md). ---- */

/* Up to so many tokens. */
enum { BYTES_MAX = LANES_WIDE ? 2 : 1 };

/* Per 8 words low, then high, both in the order of pair nibbles.  high is rounded: the upper byte of q + 128. */
TILE_INLINE __m256i split16(const int16_t *q) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15));
    const __m256i v = load256(q), up = _mm256_add_epi16(v, _mm256_set1_epi16(128));
    return _mm256_shuffle_epi8(_mm256_blendv_epi8(v, up, _mm256_set1_epi16((short)0xff00)), order);
}
TILE_INLINE void split(const int16_t *q, __m256i *o) {
    _mm256_store_si256(o, split16(q));
    _mm256_store_si256(o + 1, split16(q + 16));
}

/* As tile; tmp holds the split words of a block. */
TILE_INLINE void tile_bytes(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                            const void *act, uint32_t n_units, __m256 *sums, __m256i *tmp) {
    const __m256i table = _mm256_xor_si256(_mm256_setr_epi8(MM_IQ4_TABLE, MM_IQ4_TABLE), _mm256_set1_epi8((char)0x80));
    const bool in_regs = LANES_WIDE; /* 16 registers are just enough without them */
    const act_i16_32 *a = act;
    const uint8_t *p[4];
    __m256 f[8];
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
        for (int b = 0; b < N_BLOCKS(ty); b++, a += nc) {
            __m256i low[8], high[8];
            UNROLL
            for (int c = 0; c < nc; c++) split(a[c].q, tmp + 2 * c);
            UNROLL
            for (int i = 0; i < nr * nc; i++) {
                low[i] = bcast32(&a[i / nr].minus128);
                high[i] = _mm256_setzero_si256();
            }
            UNROLL
            for (int i = 0; i < 8; i++) {
                const int j = i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                __m256i x[2], y[2];
                FENCE();
                prefetch_turn(p, UNIT(ty) / N_BLOCKS(ty) * b, ahead, UNIT(ty) / N_BLOCKS(ty), nr, i, 8);
                UNROLL
                for (int c = 0; c < nc; c++) {
                    const uint8_t *at = (const uint8_t *)(tmp + 2 * c) + 16 * (j >> 1) + 4 * (j & 1);
                    x[c] = bcast32(at);
                    y[c] = bcast32(at + 8);
                }
                UNROLL
                for (int r = 0; r < nr; r++) {
                    __m256i v = _mm256_shuffle_epi8(table, nibble_vec(p[r] + HEAD(ty) + BLOCK(ty) * b, j));
                    UNROLL
                    for (int c = 0; c < nc; c++) low[c * nr + r] = DP8(low[c * nr + r], v, x[c]);
                    UNROLL
                    for (int c = 0; c < nc; c++) high[c * nr + r] = DP8(high[c * nr + r], v, y[c]);
                }
            }
            UNROLL
            for (int r = 0; r < nr; r++) {
                __m256 d = scale_of(ty, p[r], b, whole[r]);
                UNROLL
                for (int c = 0; c < nc; c++) {
                    const int i = c * nr + r;
                    __m256i s = _mm256_add_epi32(_mm256_slli_epi32(high[i], 8), low[i]);
                    if (in_regs)
                        f[i] = finish(f[i], s, d, a + c);
                    else
                        sums[i] = finish(sums[i], s, d, a + c);
                }
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += UNIT(ty);
    }
    UNROLL
    for (int i = 0; i < nr * nc; i++) {
        if (in_regs) sums[i] = f[i];
    }
}

/* ---- otherwise ---- */

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums, __m256i *tmp) {
    const bool in_regs = nr * nc <= SUMS_IN_REGS;
    const act_i16_32 *a = act;
    const uint8_t *p[4];
    __m256 f[SUMS_IN_REGS];
    if (nc <= BYTES_MAX) {
        tile_bytes(ty, nr, nc, w, ahead, act, n_units, sums, tmp);
        return;
    }
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
        for (int b = 0; b < N_BLOCKS(ty); b++, a += nc) {
            __m256i acc[16];
            UNROLL
            for (int i = 0; i < nr * nc; i++) acc[i] = _mm256_setzero_si256();
            UNROLL
            for (int i = 0; i < 8; i++) {
                const int j = i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                __m256i x[4], y[4], v;
                FENCE();
                prefetch_turn(p, UNIT(ty) / N_BLOCKS(ty) * b, ahead, UNIT(ty) / N_BLOCKS(ty), nr, i, 8);
                UNROLL
                for (int r = 0; r < nr; r++) y[r] = raw(p[r] + HEAD(ty) + BLOCK(ty) * b, j);
                UNROLL
                for (int odd = 0; odd < 2; odd++) {
                    UNROLL
                    for (int c = 0; c < nc; c++) x[c] = bcast32(a[c].q + 4 * j + 2 * odd);
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        v = widen(y[r], j, odd);
                        UNROLL
                        for (int c = 0; c < nc; c++) acc[c * nr + r] = DP16(acc[c * nr + r], v, x[c]);
                    }
                }
            }
            UNROLL
            for (int r = 0; r < nr; r++) {
                __m256 d = scale_of(ty, p[r], b, whole[r]);
                UNROLL
                for (int c = 0; c < nc; c++) {
                    const int i = c * nr + r;
                    if (in_regs)
                        f[i] = finish(f[i], acc[i], d, a + c);
                    else
                        sums[i] = finish(sums[i], acc[i], d, a + c);
                }
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += UNIT(ty);
    }
    if (in_regs) {
        UNROLL
        for (int i = 0; i < nr * nc; i++) sums[i] = f[i];
    }
}

/* ---- panel: per block 16 pairs of int16, then d as floats ---- */

enum { PANEL_BLOCK = 64 * 17 };

TILE_INLINE void panel_unpack(const tensor_type ty, const uint8_t *w0, const uint8_t *w1, uint32_t n_units,
                              uint8_t *o) {
    for (uint32_t u = 0; u < n_units; u++, w0 += UNIT(ty), w1 += UNIT(ty))
        for (int b = 0; b < N_BLOCKS(ty); b++, o += PANEL_BLOCK) {
            UNROLL
            for (int r = 0; r < 2; r++) {
                const uint8_t *p = r ? w1 : w0, *blk = p + HEAD(ty) + BLOCK(ty) * b;
                UNROLL
                for (int i = 0; i < 16; i++)
                    _mm256_store_si256((__m256i *)(o + 64 * i + 32 * r),
                                       widen(raw(blk, i >> 1), i >> 1, i & 1));
                _mm256_store_ps((float *)(o + 1024 + 32 * r), scale_of(ty, p, b, half8(p)));
            }
        }
}

/* nc tokens: up to 4 at act, or 8 of which the last 4 are at act2.  from, to, ldt: as mm_two_panels. */
TILE_INLINE void panel_tile(const tensor_type ty, const int nc, const uint8_t *p, const void *act, const void *act2,
                            uint32_t n_units, const float *from, float *to, size_t ldt) {
    const int step = nc < 4 ? nc : 4;
    const bool in_regs = nc <= PAIRS_IN_REGS;
    const act_i16_32 *a = act, *a2 = act2;
    pair_f f[8];
    UNROLL
    for (int c = 0; c < nc; c++) {
        if (in_regs) f[c] = pair_zero_f();
        if (in_regs && from) f[c] = pair_load_f(from + 2 * MM_ROWS * c);
    }
    for (uint32_t b = 0; b < n_units * N_BLOCKS(ty); b++, a += step, a2 += nc > 4 ? step : 0, p += PANEL_BLOCK) {
        pair acc[8];
        pair_f d;
        UNROLL
        for (int c = 0; c < nc; c++) acc[c] = pair_zero();
        UNROLL
        for (int q = 0; q < 16; q++) {
            pair w;
            FENCE();
            w = pair_load(p + 64 * q);
            UNROLL
            for (int c = 0; c < nc; c++)
                acc[c] = pair_dp16(acc[c], w, pair_bcast((c < 4 ? a + c : a2 + c - 4)->q + 2 * q));
        }
        d = pair_load_f(p + 1024);
        UNROLL
        for (int c = 0; c < nc; c++) {
            const act_i16_32 *x = c < 4 ? a + c : a2 + c - 4;
            if (!in_regs) f[c] = pair_load_f(from + 2 * MM_ROWS * c);
            f[c] = pair_fma(pair_float(acc[c]), pair_mul_f(d, pair_set_f(x->scale)), f[c]);
            if (!in_regs) pair_store_f(to + ldt * c, f[c]);
        }
    }
    UNROLL
    for (int c = 0; c < nc; c++) {
        if (in_regs) pair_store_f(to + ldt * c, f[c]);
    }
}

#define TY         TENSOR_IQ4_NL
#define FN(nr, nc) iq4_nl_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_IQ4_XS
#define FN(nr, nc) iq4_xs_##nr##x##nc
MM_SHAPES(DIRECT)

TYPE(iq4_nl, TENSOR_IQ4_NL, 5, 20, 0, 256)
TYPE(iq4_xs, TENSOR_IQ4_XS, 1, 16, 0, 256)
