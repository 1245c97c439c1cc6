/* mm_i8_32.c - Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32, one float update per block.
 *
 * Eight maddubs run into one int16 accumulator.  Values are unsigned; an offset (8 or 16) is the accumulator's start,
 * -offset * the activations' lane sums: additions may wrap on the way, the final lane is a sum of 16 (q - off) * a,
 * at most 16 * 16 * 127 = 32512.  Q4_1 starts at 0 (16 * 15 * 127 = 30480); Q5_1 uses the offset 16 and adds
 * 16 * sum(a), twice minus8 taken off, to the 32-bit sum. */
#include "kernels/avx2/mm_avx2.h"

#define HAS_BIT5(ty) ((ty) == TENSOR_Q5_0 || (ty) == TENSOR_Q5_1)
#define HAS_MIN(ty)  ((ty) == TENSOR_Q4_1 || (ty) == TENSOR_Q5_1)
#define HEAD(ty)     (HAS_MIN(ty) ? 64 : 32)
#define BLOCK(ty)    (HAS_BIT5(ty) ? 160 : 128)

TILE_INLINE __m256i start(const tensor_type ty, const act_i8_32 *a) {
    __m256i init;
    if (ty == TENSOR_Q4_1) return _mm256_setzero_si256();
    init = start32(a->init);
    return HAS_BIT5(ty) ? _mm256_add_epi16(init, init) : init;
}

TILE_INLINE __m256i unpack(const tensor_type ty, const uint8_t *blk, const int q) {
    return HAS_BIT5(ty) ? five_vec(blk, q) : nibble_vec(blk, q);
}

TILE_INLINE __m256 finish(const tensor_type ty, __m256i acc, __m256 d, __m256 m, __m256 f, const act_i8_32 *a) {
    __m256i sum = _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
    if (ty == TENSOR_Q5_1) sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(bcast32(&a->minus8), 1));
    f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_broadcast_ss(&a->scale)), f);
    return HAS_MIN(ty) ? _mm256_fmadd_ps(m, _mm256_broadcast_ss(&a->ssum), f) : f;
}

TILE_INLINE void tile(const tensor_type ty, const int nr, const int nc, const uint8_t *const *w, ptrdiff_t ahead,
                      const void *act, uint32_t n_units, __m256 *sums) {
    const int head = HEAD(ty), size = BLOCK(ty), unit = head + 2 * size;
    const bool in_regs = nr * nc <= 4;
    const act_i8_32 *a = act;
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
            __m256i acc[16];
            UNROLL
            for (int i = 0; i < nr * nc; i++) acc[i] = start(ty, a + i / nr);
            UNROLL
            for (int i = 0; i < 8; i++) {
                const int q = HAS_BIT5(ty) ? i : i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                __m256i v[4], x[4];
                FENCE();
                prefetch_turn(p, unit / 2 * b, ahead, unit / 2, nr, i, 8);
                if (nr == 4) { /* activations stay in registers, weights pass */
                    UNROLL
                    for (int c = 0; c < nc; c++) x[c] = bcast32(a[c].q + 4 * q);
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        v[0] = unpack(ty, p[r] + head + size * b, q);
                        UNROLL
                        for (int c = 0; c < nc; c++) MAC(acc[c * nr + r], v[0], x[c]);
                    }
                } else {
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        v[r] = unpack(ty, p[r] + head + size * b, q);
                    }
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        x[0] = bcast32(a[c].q + 4 * q);
                        UNROLL
                        for (int r = 0; r < nr; r++) MAC(acc[c * nr + r], v[r], x[0]);
                    }
                }
            }
            UNROLL
            for (int r = 0; r < nr; r++) {
                __m256 d = half8(p[r] + 16 * b), m = d;
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
        UNROLL
        for (int r = 0; r < nr; r++) p[r] += unit;
    }
    if (in_regs) {
        UNROLL
        for (int i = 0; i < nr * nc; i++) sums[i] = f[i];
    }
}

/* ---- panel: per block 16 x 2 vectors of bytes, then d and m as floats, for two groups ---- */

enum { PANEL_BLOCK = 16 * 32 + 4 * 32 };

TILE_INLINE void panel_unpack(const tensor_type ty, const uint8_t *w0, const uint8_t *w1, uint32_t n_units,
                              uint8_t *o) {
    const int head = HEAD(ty), size = BLOCK(ty), unit = head + 2 * size;
    for (uint32_t u = 0; u < n_units; u++, w0 += unit, w1 += unit)
        for (int b = 0; b < 2; b++, o += PANEL_BLOCK) {
            UNROLL
            for (int r = 0; r < 2; r++) {
                const uint8_t *p = r ? w1 : w0;
                UNROLL
                for (int q = 0; q < 8; q++)
                    _mm256_store_si256((__m256i *)(o + 64 * q + 32 * r), unpack(ty, p + head + size * b, q));
                _mm256_store_ps((float *)(o + 512 + 32 * r), half8(p + 16 * b));
                if (HAS_MIN(ty)) _mm256_store_ps((float *)(o + 576 + 32 * r), half8(p + 32 + 16 * b));
            }
        }
}

TILE_INLINE void panel_tile(const tensor_type ty, const int nc, const uint8_t *p, const void *act, uint32_t n_units,
                            __m256 *sums) {
    const act_i8_32 *a = act;
    for (uint32_t b = 0; b < 2 * n_units; b++, a += nc, p += PANEL_BLOCK) {
        __m256i acc[8];
        UNROLL
        for (int c = 0; c < nc; c++) acc[2 * c] = acc[2 * c + 1] = start(ty, a + c);
        UNROLL
        for (int q = 0; q < 8; q++) {
            __m256i w0, w1;
            FENCE();
            w0 = load256(p + 64 * q), w1 = load256(p + 64 * q + 32);
            UNROLL
            for (int c = 0; c < nc; c++) {
                __m256i v = bcast32(a[c].q + 4 * q);
                MAC(acc[2 * c], w0, v);
                MAC(acc[2 * c + 1], w1, v);
            }
        }
        UNROLL
        for (int r = 0; r < 2; r++) {
            __m256 d = _mm256_load_ps((const float *)(p + 512 + 32 * r));
            __m256 m = _mm256_load_ps((const float *)(p + 576 + 32 * r));
            UNROLL
            for (int c = 0; c < nc; c++) sums[2 * c + r] = finish(ty, acc[2 * c + r], d, m, sums[2 * c + r], a + c);
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
        panel_tile(ty, nc, p, a, n_units, sums);                                                                       \
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
                                     .panel_units = 10,                                                                \
                                     .panel_min = from,                                                                \
                                     .ahead = 256};

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

TYPE(q4_0, TENSOR_Q4_0, 20)
TYPE(q4_1, TENSOR_Q4_1, 18)
TYPE(q5_0, TENSOR_Q5_0, 12)
TYPE(q5_1, TENSOR_Q5_1, 13)
