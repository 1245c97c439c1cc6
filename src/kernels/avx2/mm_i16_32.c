/* mm_i16_32.c - IQ4_NL and IQ4_XS: code points, which one shuffle looks up, with a sign and up to 127 in size.
 *
 * Their products with the tokens' bytes fill the 16 bits of a maddubs with every pair.  So the tokens come as words
 * (ACT_I16_32), code points are widened, and vpmaddwd adds pairs in 32 bits: 2 multiplications for 32 products, no bound to
 * keep and nothing to add up at a block's end.  Halves of code points, 16 high + low, by maddubs take as many, and what a
 * block ends with then makes panels 8 % slower (measured).
 *
 * One or two tokens wait for the lookups and the widening instead: see tile_bytes. */
#include "kernels/avx2/mm_avx2.h"

#define HEAD(ty)     ((ty) == TENSOR_IQ4_XS ? 80 : 32)
#define N_BLOCKS(ty) ((ty) == TENSOR_IQ4_XS ? 8 : 2)
#define UNIT(ty)     (HEAD(ty) + BLOCK * N_BLOCKS(ty))
enum { BLOCK = 128 };

/* 8 rows x columns 4j..4j+3 of the block at p as code points. */
TILE_INLINE __m256i codes(const uint8_t *p, const int j) {
    const __m256i table = _mm256_setr_epi8(MM_IQ4_TABLE, MM_IQ4_TABLE);
    return _mm256_shuffle_epi8(table, nibble_vec(p, j));
}
/* Of these, columns 0 and 2 (odd = 0) or 1 and 3 as int16: by shifts, because shuffles are scarcer. */
TILE_INLINE __m256i widen(__m256i codes, const int odd) {
    return _mm256_srai_epi16(odd ? codes : _mm256_slli_epi16(codes, 8), 8);
}

/* Of block b; whole: of the unit, where all blocks share one. */
TILE_INLINE __m256 scale_of(const tensor_type ty, const uint8_t *unit, int b, __m256 whole) {
    if (ty != TENSOR_IQ4_XS) return half8(unit + 16 * b);
    __m256i s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(unit + 16 + 8 * b)));
    return _mm256_mul_ps(whole, _mm256_cvtepi32_ps(s));
}

TILE_INLINE __m256 finish(__m256 f, __m256i sum, __m256 d, const act_i16_32 *a) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_broadcast_ss(&a->scale)), f);
}

/* ---- one or two tokens: code points take the signs of the tokens' bytes and meet their sizes by maddubs; a pair is at
 * most 2 * 127 * 127 and goes to 32 bits by itself ---- */

enum { BYTES_MAX = 2 };

/* Words of a block to its bytes and their sizes, columns 4j..4j+3 at word at_word(j). */
TILE_INLINE void to_bytes(const int16_t *q, __m256i *o) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    __m256i v = _mm256_shuffle_epi8(_mm256_packs_epi16(load256(q), load256(q + 16)), order);
    _mm256_store_si256(o, v);
    _mm256_store_si256(o + 1, _mm256_abs_epi8(v));
}
#define AT_WORD(j) (((j)&1) | ((j)&4) >> 1 | ((j)&2) << 1)

/* As tile; tmp holds the bytes of a block.  Two tokens meet two groups at a time: four would not leave registers enough. */
TILE_INLINE void tile_bytes(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                            const void *act, uint32_t n_units, __m256 *sums, __m256i *tmp) {
    const int part = nc == 2 && nr == 4 ? 2 : nr, bytes = UNIT(ty) / N_BLOCKS(ty);
    const act_i16_32 *a = act;
    const uint8_t *p[4];
    UNROLL
    for (int r = 0; r < nr; r++) p[r] = w[r];
    for (uint32_t u = 0; u < n_units; u++) {
        for (int b = 0; b < N_BLOCKS(ty); b++, a += nc) {
            UNROLL
            for (int c = 0; c < nc; c++) to_bytes(a[c].q, tmp + 2 * c);
            UNROLL
            for (int g = 0; g < nr; g += part) {
                __m256i acc[4];
                UNROLL
                for (int i = 0; i < part * nc; i++) acc[i] = _mm256_setzero_si256();
                UNROLL
                for (int i = 0; i < 8; i++) {
                    const int j = i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                    __m256i x[2], y[2];
                    FENCE();
                    prefetch_turn(p + g, bytes * b, ahead, bytes, part, i, 8);
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        x[c] = bcast32((const int32_t *)(tmp + 2 * c) + AT_WORD(j));
                        y[c] = bcast32((const int32_t *)(tmp + 2 * c + 1) + AT_WORD(j));
                    }
                    UNROLL
                    for (int r = 0; r < part; r++) {
                        __m256i v = codes(p[g + r] + HEAD(ty) + BLOCK * b, j);
                        UNROLL
                        for (int c = 0; c < nc; c++)
                            MAC16(acc[c * part + r], _mm256_maddubs_epi16(y[c], _mm256_sign_epi8(v, x[c])), _mm256_set1_epi16(1));
                    }
                }
                UNROLL
                for (int r = 0; r < part; r++) {
                    __m256 d = scale_of(ty, p[g + r], b, half8(p[g + r]));
                    UNROLL
                    for (int c = 0; c < nc; c++)
                        sums[c * nr + g + r] = finish(sums[c * nr + g + r], acc[c * part + r], d, a + c);
                }
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += UNIT(ty);
    }
}

/* ---- otherwise ---- */

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums, __m256i *tmp) {
    const act_i16_32 *a = act;
    const uint8_t *p[4];
    if (nc <= BYTES_MAX) {
        tile_bytes(ty, nr, nc, w, ahead, act, n_units, sums, tmp);
        return;
    }
    UNROLL
    for (int r = 0; r < nr; r++) p[r] = w[r];
    for (uint32_t u = 0; u < n_units; u++) {
        for (int b = 0; b < N_BLOCKS(ty); b++, a += nc) {
            __m256i acc[8];
            UNROLL
            for (int i = 0; i < nr * nc; i++) acc[i] = _mm256_setzero_si256();
            UNROLL
            for (int i = 0; i < 8; i++) {
                const int j = i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                __m256i v[2], y[2];
                FENCE();
                prefetch_turn(p, UNIT(ty) / N_BLOCKS(ty) * b, ahead, UNIT(ty) / N_BLOCKS(ty), nr, i, 8);
                UNROLL
                for (int r = 0; r < nr; r++) y[r] = codes(p[r] + HEAD(ty) + BLOCK * b, j);
                UNROLL
                for (int odd = 0; odd < 2; odd++) {
                    UNROLL
                    for (int r = 0; r < nr; r++) v[r] = widen(y[r], odd);
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        __m256i x = bcast32(a[c].q + 4 * j + 2 * odd);
                        UNROLL
                        for (int r = 0; r < nr; r++) MAC16(acc[c * nr + r], v[r], x);
                    }
                }
            }
            UNROLL
            for (int r = 0; r < nr; r++) {
                __m256 d = scale_of(ty, p[r], b, half8(p[r]));
                UNROLL
                for (int c = 0; c < nc; c++) sums[c * nr + r] = finish(sums[c * nr + r], acc[c * nr + r], d, a + c);
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += UNIT(ty);
    }
}

/* ---- panel: per block 16 x 2 vectors of int16 and d, for two groups ---- */

enum { PANEL_BLOCK = 64 * 17 };

TILE_INLINE void panel_unpack(const tensor_type ty, const uint8_t *w0, const uint8_t *w1, uint32_t n_units,
                              uint8_t *o) {
    for (uint32_t u = 0; u < n_units; u++, w0 += UNIT(ty), w1 += UNIT(ty))
        for (int b = 0; b < N_BLOCKS(ty); b++, o += PANEL_BLOCK) {
            UNROLL
            for (int r = 0; r < 2; r++) {
                const uint8_t *p = r ? w1 : w0;
                UNROLL
                for (int i = 0; i < 16; i++)
                    _mm256_store_si256((__m256i *)(o + 64 * i + 32 * r), widen(codes(p + HEAD(ty) + BLOCK * b, i >> 1), i & 1));
                _mm256_store_ps((float *)(o + 1024 + 32 * r), scale_of(ty, p, b, half8(p)));
            }
        }
}

/* n: blocks. */
TILE_INLINE void panel_tile(const int nc, const uint8_t *p, const act_i16_32 *a, uint32_t n, __m256 *f) {
    for (uint32_t b = 0; b < n; b++, a += nc, p += PANEL_BLOCK) {
        __m256i acc[8];
        UNROLL
        for (int i = 0; i < 2 * nc; i++) acc[i] = _mm256_setzero_si256();
        UNROLL
        for (int q = 0; q < 16; q++) {
            __m256i v0, v1;
            FENCE();
            v0 = load256(p + 64 * q), v1 = load256(p + 64 * q + 32);
            UNROLL
            for (int c = 0; c < nc; c++) {
                __m256i x = bcast32(a[c].q + 2 * q);
                MAC16(acc[2 * c], v0, x);
                MAC16(acc[2 * c + 1], v1, x);
            }
        }
        UNROLL
        for (int r = 0; r < 2; r++) {
            __m256 d = _mm256_load_ps((const float *)(p + 1024 + 32 * r));
            UNROLL
            for (int c = 0; c < nc; c++) f[2 * c + r] = finish(f[2 * c + r], acc[2 * c + r], d, a + c);
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
        (void)tmp;                                                                                                     \
        panel_tile(nc, p, a, n_units *N_BLOCKS(ty), sums);                                                             \
    }
#define TYPE(name, ty, from)                                                                                           \
    PANEL(name, ty, 1)                                                                                                 \
    PANEL(name, ty, 2)                                                                                                 \
    PANEL(name, ty, 3)                                                                                                 \
    PANEL(name, ty, 4)                                                                                                 \
    static void name##_unpack(const uint8_t *w0, const uint8_t *w1, uint32_t n_units, uint8_t *o) {                    \
        panel_unpack(ty, w0, w1, n_units, o);                                                                          \
    }                                                                                                                  \
    const mm_tiles mm_avx2_##name = {.words = true,                                                                     \
                                     .direct = MM_DIRECT(name),                                                        \
                                     .panel = MM_PANELS(name),                                                         \
                                     .unpack = name##_unpack,                                                          \
                                     .panel_units = 10 / N_BLOCKS(ty),                                                 \
                                     .panel_min = from,                                                                \
                                     .ahead = 256};

#define TY         TENSOR_IQ4_NL
#define FN(nr, nc) iq4_nl_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_IQ4_XS
#define FN(nr, nc) iq4_xs_##nr##x##nc
MM_SHAPES(DIRECT)

TYPE(iq4_nl, TENSOR_IQ4_NL, 10)
TYPE(iq4_xs, TENSOR_IQ4_XS, 8)
