/* mm_q8_0.c - Q8_0 for sets that multiply words: ACT_I16_TOP.
 *
 * Octets fill the 16 bits of a maddubs with every pair, and their signs must go over to the activations first: four
 * instructions for 32 products.  Words need four too, but no signs, no absolute values and no step of their own for the
 * column that stands out: one AND and one shift widen 32 octets, columns 0 and 2 of each four and then 1 and 3, which is
 * the order the activations have.  As much as 15 bits times 8, 32 times, is exact in 32 bits.  The offset 128 is where a
 * block's sum starts. */
#include "kernels/avx2/mm_avx2.h"

enum { HEAD = 32, BLOCK = 256, UNIT = HEAD + 2 * BLOCK };

/* Half of 8 rows x 4 columns as words. */
TILE_INLINE __m256i widen(__m256i v, const int odd) {
    return odd ? _mm256_srli_epi16(v, 8) : _mm256_and_si256(v, _mm256_set1_epi16(255));
}

TILE_INLINE __m256 finish(__m256 f, __m256i sum, __m256 d, const act_i16_32 *a) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_broadcast_ss(&a->scale)), f);
}

TILE_INLINE void tile(const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead, const void *act,
                      uint32_t n_units, __m256 *sums) {
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
        UNROLL
        for (int b = 0; b < 2; b++, a += nc) {
            __m256i acc[8];
            UNROLL
            for (int i = 0; i < nr * nc; i++) acc[i] = start32(&a[i / nr].minus128);
            UNROLL
            for (int j = 0; j < 8; j++) {
                __m256i x[4], v[4], y[4];
                FENCE();
                prefetch_turn(p, UNIT / 2 * b, ahead, UNIT / 2, nr, j, 8);
                if (nr == 4) { /* activations stay in registers, weights pass */
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        x[2 * c] = bcast32(a[c].q + 4 * j);
                        x[2 * c + 1] = bcast32(a[c].q + 4 * j + 2);
                    }
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        y[0] = load256(p[r] + HEAD + BLOCK * b + 32 * j);
                        UNROLL
                        for (int odd = 0; odd < 2; odd++) {
                            v[0] = widen(y[0], odd);
                            UNROLL
                            for (int c = 0; c < nc; c++) MAC16(acc[c * nr + r], v[0], x[2 * c + odd]);
                        }
                    }
                } else {
                    UNROLL
                    for (int r = 0; r < nr; r++) y[r] = load256(p[r] + HEAD + BLOCK * b + 32 * j);
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
                __m256 d = half8(p[r] + 16 * b);
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
        for (int r = 0; r < nr; r++) p[r] += UNIT;
    }
    if (in_regs) {
        UNROLL
        for (int i = 0; i < nr * nc; i++) sums[i] = f[i];
    }
}

/* ---- panel: per block 16 x 2 vectors of words, then d as floats, for two groups ---- */

enum { PANEL_BLOCK = 64 * 17 };

static void q8_0_unpack(const uint8_t *w0, const uint8_t *w1, uint32_t n_units, uint8_t *o) {
    for (uint32_t u = 0; u < n_units; u++, w0 += UNIT, w1 += UNIT)
        for (int b = 0; b < 2; b++, o += PANEL_BLOCK) {
            UNROLL
            for (int r = 0; r < 2; r++) {
                const uint8_t *p = r ? w1 : w0;
                UNROLL
                for (int i = 0; i < 16; i++)
                    _mm256_store_si256((__m256i *)(o + 64 * i + 32 * r),
                                       widen(load256(p + HEAD + BLOCK * b + 32 * (i >> 1)), i & 1));
                _mm256_store_ps((float *)(o + 1024 + 32 * r), half8(p + 16 * b));
            }
        }
}

TILE_INLINE void panel_tile(const int nc, const uint8_t *p, const void *act, uint32_t n_units, __m256 *f) {
    const act_i16_32 *a = act;
    for (uint32_t b = 0; b < 2 * n_units; b++, a += nc, p += PANEL_BLOCK) {
        __m256i acc[8];
        UNROLL
        for (int c = 0; c < nc; c++) acc[2 * c] = acc[2 * c + 1] = start32(&a[c].minus128);
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
    static void q8_0_##nr##x##nc(const uint8_t *const *w, ptrdiff_t ahead, const void *a, uint32_t n_units,            \
                                 __m256 *sums, __m256i *tmp) {                                                         \
        (void)tmp;                                                                                                     \
        tile(nr, nc, w, ahead, a, n_units, sums);                                                                      \
    }
#define PANEL(nc)                                                                                                      \
    static void q8_0_p##nc(const uint8_t *p, const void *a, uint32_t n_units, __m256 *sums, __m256i *tmp) {            \
        (void)tmp;                                                                                                     \
        panel_tile(nc, p, a, n_units, sums);                                                                           \
    }
MM_SHAPES(DIRECT)
PANEL(1)
PANEL(2)
PANEL(3)
PANEL(4)

const mm_tiles mm_avx2_q8_0 = {.direct = MM_DIRECT(q8_0),
                               .panel = MM_PANELS(q8_0),
                               .unpack = q8_0_unpack,
                               .words = true,
                               .panel_units = 5,
                               .panel_min = 20,
                               .ahead = 256};
