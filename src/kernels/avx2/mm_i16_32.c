/* mm_i16_32.c - IQ4_NL, IQ4_XS: signed 8 bit values times int16 activations, one float update per 32.
 *
 * vpmovsxbw + vpmaddwd: half the multiplies per instruction of maddubs, but signed values need no sign trick and no
 * bound, and the tokens keep 16 bits.  IQ4 code points come out of one shuffle. */
#include "kernels/avx2/mm_avx2.h"

#define HEAD(ty)     ((ty) == TENSOR_IQ4_XS ? 80 : 32)
#define BLOCK(ty)    128
#define N_BLOCKS(ty) ((ty) == TENSOR_IQ4_XS ? 8 : 2)
#define UNIT(ty)     (HEAD(ty) + BLOCK(ty) * N_BLOCKS(ty))

/* 8 rows x columns 4j..4j+3 of the block at p as code points. */
TILE_INLINE __m256i raw(const uint8_t *p, const int j) {
    const __m256i table = _mm256_setr_epi8(MM_IQ4_TABLE, MM_IQ4_TABLE);
    return _mm256_shuffle_epi8(table, nibble_vec(p, j));
}
/* Columns 4j, 4j+1 (odd = 0) or 4j+2, 4j+3 as int16, by shifts of raw, because shuffles are scarcer. */
TILE_INLINE __m256i widen(__m256i raw, const int odd) {
    return _mm256_srai_epi16(odd ? raw : _mm256_slli_epi16(raw, 8), 8);
}

TILE_INLINE __m256 scale_of(const tensor_type ty, const uint8_t *unit, int b) {
    if (ty != TENSOR_IQ4_XS) return half8(unit + 16 * b);
    __m256i s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(unit + 16 + 8 * b)));
    return _mm256_mul_ps(half8(unit), _mm256_cvtepi32_ps(s));
}

TILE_INLINE __m256 finish(__m256 f, __m256i sum, __m256 d, const act_i16_32 *a) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_broadcast_ss(&a->scale)), f);
}

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums) {
    const bool in_regs = nr * nc <= 4;
    const act_i16_32 *a = act;
    const uint8_t *p[4];
    __m256 f[4];
    UNROLL
    for (int r = 0; r < nr; r++) p[r] = w[r];
    UNROLL
    for (int i = 0; i < nr * nc; i++) {
        if (in_regs) f[i] = sums[i];
    }
    for (uint32_t u = 0; u < n_units; u++) {
        for (int b = 0; b < N_BLOCKS(ty); b++, a += nc) {
            __m256i acc[16];
            UNROLL
            for (int i = 0; i < nr * nc; i++) acc[i] = _mm256_setzero_si256();
            UNROLL
            for (int i = 0; i < 8; i++) {
                const int j = i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                __m256i x[4], v[4], y[4];
                FENCE();
                prefetch_turn(p, UNIT(ty) / N_BLOCKS(ty) * b, ahead, UNIT(ty) / N_BLOCKS(ty), nr, i, 8);
                if (nr == 4) { /* activations stay in registers, weights pass */
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        x[2 * c] = bcast32(a[c].q + 4 * j);
                        x[2 * c + 1] = bcast32(a[c].q + 4 * j + 2);
                    }
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        const uint8_t *blk = p[r] + HEAD(ty) + BLOCK(ty) * b;
                        y[0] = raw(blk, j);
                        UNROLL
                        for (int odd = 0; odd < 2; odd++) {
                            v[0] = widen(y[0], odd);
                            UNROLL
                            for (int c = 0; c < nc; c++) MAC16(acc[c * nr + r], v[0], x[2 * c + odd]);
                        }
                    }
                } else {
                    UNROLL
                    for (int r = 0; r < nr; r++) y[r] = raw(p[r] + HEAD(ty) + BLOCK(ty) * b, j);
                    UNROLL
                    for (int odd = 0; odd < 2; odd++) {
                        UNROLL
                        for (int r = 0; r < nr; r++) v[r] = widen(y[r], odd);
                        UNROLL
                        for (int c = 0; c < nc; c++) {
                            x[0] = bcast32(a[c].q + 4 * j + 2 * odd);
                            UNROLL
                            for (int r = 0; r < nr; r++) MAC16(acc[c * nr + r], v[r], x[0]);
                        }
                    }
                }
            }
            UNROLL
            for (int r = 0; r < nr; r++) {
                __m256 d = scale_of(ty, p[r], b);
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

/* ---- panel: per block 16 x 2 vectors of int16 and d, for two groups ---- */

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
                                       widen(raw(blk, i >> 1), i & 1));
                _mm256_store_ps((float *)(o + 1024 + 32 * r), scale_of(ty, p, b));
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
        (void)tmp;                                                                                                     \
        tile(TY, nr, nc, w, ahead, a, n_units, sums);                                                                  \
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
    const mm_tiles mm_avx2_##name = {.direct = MM_DIRECT(name),                                                        \
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
