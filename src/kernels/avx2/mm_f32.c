/* mm_f32.c - F32, F16, BF16: one fma per column, in rising k, for 8 rows at a time.
 *
 * The chain of one output cannot be split (law 1), so 8 chains of different outputs hide its latency. */
#include "kernels/avx2/mm_avx2.h"

#define SIZE(ty) ((ty) == TENSOR_F32 ? 4 : 2)
#define UNIT(ty) (64 * SIZE(ty)) /* 8 columns x 8 rows */

/* 8 rows of column k. */
TILE_INLINE __m256 column(const tensor_type ty, const uint8_t *unit, const int k) {
    const uint8_t *p = unit + 8 * SIZE(ty) * k;
    if (ty == TENSOR_F32) return _mm256_loadu_ps((const float *)p);
    if (ty == TENSOR_F16) return half8(p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums) {
    const float *a = act;
    const uint8_t *p[4];
    __m256 f[16];
    UNROLL
    for (int r = 0; r < nr; r++) p[r] = w[r];
    UNROLL
    for (int i = 0; i < nr * nc; i++) f[i] = sums[i];
    for (uint32_t u = 0; u < n_units; u++) {
        UNROLL
        for (int k = 0; k < 8; k++, a += nc) {
            __m256 v[4], x[4];
            FENCE();
            UNROLL
            for (int r = 0; r < nr; r++) v[r] = column(ty, p[r], k);
            UNROLL
            for (int c = 0; c < nc; c++) {
                x[c] = _mm256_broadcast_ss(a + c);
                UNROLL
                for (int r = 0; r < nr; r++) {
                    f[c * nr + r] = _mm256_fmadd_ps(v[r], x[c], f[c * nr + r]);
                    KEEP(f[c * nr + r]);
                }
            }
        }
        UNROLL
        for (int r = 0; r < nr; r++) {
            prefetch(p[r], ahead, UNIT(ty));
            p[r] += UNIT(ty);
        }
    }
    UNROLL
    for (int i = 0; i < nr * nc; i++) sums[i] = f[i];
}

/* ---- panel: [k][group][8 rows] floats ---- */

TILE_INLINE void panel_unpack(const tensor_type ty, const uint8_t *w0, const uint8_t *w1, uint32_t n_units,
                              uint8_t *o) {
    for (uint32_t u = 0; u < n_units; u++, w0 += UNIT(ty), w1 += UNIT(ty), o += 512) {
        UNROLL
        for (int k = 0; k < 8; k++) {
            _mm256_store_ps((float *)(o + 64 * k), column(ty, w0, k));
            _mm256_store_ps((float *)(o + 64 * k + 32), column(ty, w1, k));
        }
    }
}

TILE_INLINE void panel_tile(const int nc, const uint8_t *p, const float *a, uint32_t n_units, __m256 *sums) {
    __m256 f[8];
    UNROLL
    for (int i = 0; i < 2 * nc; i++) f[i] = sums[i];
    for (uint32_t u = 0; u < n_units; u++, p += 512) {
        UNROLL
        for (int k = 0; k < 8; k++, a += nc) {
            __m256 v0, v1;
            FENCE();
            v0 = _mm256_load_ps((const float *)(p + 64 * k)), v1 = _mm256_load_ps((const float *)(p + 64 * k + 32));
            UNROLL
            for (int c = 0; c < nc; c++) {
                __m256 x = _mm256_broadcast_ss(a + c);
                f[2 * c] = _mm256_fmadd_ps(v0, x, f[2 * c]);
                KEEP(f[2 * c]);
                f[2 * c + 1] = _mm256_fmadd_ps(v1, x, f[2 * c + 1]);
                KEEP(f[2 * c + 1]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < 2 * nc; i++) sums[i] = f[i];
}

#define PANEL(nc)                                                                                                      \
    static void f_p##nc(const uint8_t *p, const void *a, uint32_t n_units, __m256 *sums, __m256i *tmp) {               \
        (void)tmp;                                                                                                     \
        panel_tile(nc, p, a, n_units, sums);                                                                           \
    }
PANEL(1)
PANEL(2)
PANEL(3)
PANEL(4)

#define DIRECT(nr, nc)                                                                                                 \
    static void FN(nr, nc)(const uint8_t *const *w, ptrdiff_t ahead, const void *a, uint32_t n_units,                  \
                           __m256 *sums, __m256i *tmp) {                                                               \
        (void)tmp;                                                                                                     \
        tile(TY, nr, nc, w, ahead, a, n_units, sums);                                                                  \
    }
#define TYPE(name, ty)                                                                                                 \
    static void name##_unpack(const uint8_t *w0, const uint8_t *w1, uint32_t n_units, uint8_t *o) {                    \
        panel_unpack(ty, w0, w1, n_units, o);                                                                          \
    }                                                                                                                  \
    const mm_tiles mm_avx2_##name = {.direct = MM_DIRECT(name),                                                        \
                                     .panel = MM_PANELS(f),                                                            \
                                     .unpack = name##_unpack,                                                          \
                                     .panel_units = 32,                                                                \
                                     .panel_min = 48,                                                                  \
                                     .ahead = 256};

#define TY         TENSOR_F32
#define FN(nr, nc) f32_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_F16
#define FN(nr, nc) f16_##nr##x##nc
MM_SHAPES(DIRECT)
#undef TY
#undef FN
#define TY         TENSOR_BF16
#define FN(nr, nc) bf16_##nr##x##nc
MM_SHAPES(DIRECT)

TYPE(f32, TENSOR_F32)
TYPE(f16, TENSOR_F16)
TYPE(bf16, TENSOR_BF16)
