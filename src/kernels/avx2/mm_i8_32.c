/* mm_i8_32.c - Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32, one float update per block.
 *
 * Eight maddubs run into one int16 accumulator.  Values are unsigned; an offset (8 or 16) is the accumulator's start,
 * -offset * the activations' lane sums: additions may wrap on the way, the final lane is a sum of 16 (q - off) * a,
 * at most 16 * 16 * 127 = 32512.  Q4_1 starts at 0 (16 * 15 * 127 = 30480); Q5_1 uses the offset 16 and adds
 * 16 * sum(a), twice minus8 taken off, to the 32-bit sum.
 *
 * Whole bytes are too large for that.  They are made signed again, their signs go over to the activations (-127..127), and
 * maddubs multiplies their sizes, at most 128: a pair is at most 2 * 128 * 127 = 32512 and goes to 32 bits by itself. */
#include "kernels/avx2/mm_avx2.h"

#define HAS_BIT5(ty) ((ty) == TENSOR_Q5_0 || (ty) == TENSOR_Q5_1)
#define HAS_MIN(ty)  ((ty) == TENSOR_Q4_1 || (ty) == TENSOR_Q5_1)
#define IN_BYTES(ty) ((ty) == TENSOR_Q8_0)
#define HEAD(ty)     (HAS_MIN(ty) ? 64 : 32)
#define BLOCK(ty)    (IN_BYTES(ty) ? 256 : HAS_BIT5(ty) ? 160 : 128)

/* A vector of weights and one token: acc += products; size: of the weights, for whole bytes. */
#define ADD(ty, acc, w, size, a)                                                                                       \
    do {                                                                                                               \
        if (IN_BYTES(ty))                                                                                              \
            MAC16(acc, _mm256_maddubs_epi16(size, _mm256_sign_epi8(a, w)), _mm256_set1_epi16(1));                      \
        else                                                                                                           \
            MAC(acc, w, a);                                                                                            \
    } while (0)

TILE_INLINE __m256i start(const tensor_type ty, const act_i8_32 *a) {
    __m256i init;
    if (ty == TENSOR_Q4_1 || IN_BYTES(ty)) return _mm256_setzero_si256();
    init = start32(a->init);
    return HAS_BIT5(ty) ? _mm256_add_epi16(init, init) : init;
}

TILE_INLINE __m256i unpack(const tensor_type ty, const uint8_t *blk, const int q) {
    if (IN_BYTES(ty)) return _mm256_xor_si256(load256(blk + 32 * q), _mm256_set1_epi8(-128));
    return HAS_BIT5(ty) ? five_vec(blk, q) : nibble_vec(blk, q);
}
TILE_INLINE __m256i size_of(const tensor_type ty, __m256i w) { return IN_BYTES(ty) ? _mm256_abs_epi8(w) : w; }

/* What the column that stands out in a token's block (act_i8_32) adds to a sum: w are its weights, signed. */
TILE_INLINE __m256i add_top(__m256i sum, __m256i w, const act_i8_32 *a) {
    __m256i v = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(bcast32(a->top), w));
    return _mm256_add_epi32(sum, _mm256_slli_epi32(_mm256_madd_epi16(v, _mm256_set1_epi16(1)), 7));
}

TILE_INLINE __m256 finish(const tensor_type ty, __m256i acc, __m256 d, __m256 m, __m256 f, const act_i8_32 *a) {
    __m256i sum = IN_BYTES(ty) ? acc : _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
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
                const int q = HAS_BIT5(ty) || IN_BYTES(ty) ? i : i >> 1 | (i & 1) << 2; /* both nibbles of a vector in turn */
                __m256i v[4], x[4], z[4];
                FENCE();
                prefetch_turn(p, unit / 2 * b, ahead, unit / 2, nr, i, 8);
                if (nr == 4) { /* activations stay in registers, weights pass */
                    UNROLL
                    for (int c = 0; c < nc; c++) x[c] = bcast32(a[c].q + 4 * q);
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        v[0] = unpack(ty, p[r] + head + size * b, q);
                        z[0] = size_of(ty, v[0]);
                        UNROLL
                        for (int c = 0; c < nc; c++) ADD(ty, acc[c * nr + r], v[0], z[0], x[c]);
                    }
                } else {
                    UNROLL
                    for (int r = 0; r < nr; r++) {
                        v[r] = unpack(ty, p[r] + head + size * b, q);
                        z[r] = size_of(ty, v[r]);
                    }
                    UNROLL
                    for (int c = 0; c < nc; c++) {
                        x[0] = bcast32(a[c].q + 4 * q);
                        UNROLL
                        for (int r = 0; r < nr; r++) ADD(ty, acc[c * nr + r], v[r], z[r], x[0]);
                    }
                }
            }
            UNROLL
            for (int c = 0; c < nc; c++) {
                if (!IN_BYTES(ty) || !mm_has_top(a + c)) continue;
                UNROLL
                for (int r = 0; r < nr; r++)
                    acc[c * nr + r] = add_top(acc[c * nr + r], unpack(ty, p[r] + head + size * b + a[c].at, 0), a + c);
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
            __m256i w0, w1, z0, z1;
            FENCE();
            w0 = load256(p + 64 * q), w1 = load256(p + 64 * q + 32);
            z0 = size_of(ty, w0), z1 = size_of(ty, w1);
            UNROLL
            for (int c = 0; c < nc; c++) {
                __m256i v = bcast32(a[c].q + 4 * q);
                ADD(ty, acc[2 * c], w0, z0, v);
                ADD(ty, acc[2 * c + 1], w1, z1, v);
            }
        }
        UNROLL
        for (int c = 0; c < nc; c++) {
            if (!IN_BYTES(ty) || !mm_has_top(a + c)) continue;
            acc[2 * c] = add_top(acc[2 * c], load256(p + 2 * a[c].at), a + c);
            acc[2 * c + 1] = add_top(acc[2 * c + 1], load256(p + 2 * a[c].at + 32), a + c);
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
#undef TY
#undef FN
#define TY         TENSOR_Q8_0
#define FN(nr, nc) q8_0_##nr##x##nc
MM_SHAPES(DIRECT)

TYPE(q4_0, TENSOR_Q4_0, 20)
TYPE(q4_1, TENSOR_Q4_1, 18)
TYPE(q5_0, TENSOR_Q5_0, 12)
TYPE(q5_1, TENSOR_Q5_1, 13)
TYPE(q8_0, TENSOR_Q8_0, 96)
