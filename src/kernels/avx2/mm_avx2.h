/* mm_avx2.h - what the AVX2 matrix products share: tile tables, the driver, and how to keep a compiler from spilling.
 *
 * A tile multiplies nr groups of 8 rows with nc tokens of one panel over all of k.  Vectors are 8 rows, so nothing is
 * summed across lanes and every tile shape gives the same bits.  Ways through a matrix:
 *
 *   direct  weights are unpacked in registers as they are read, from distant streams in short runs
 *   panel   for many tokens: 16 rows x some k are unpacked once into scratch (L1) and then meet all panels of tokens
 *   wide    for more than one, with 32 registers of 512 bits: 16 rows are unpacked in registers for 8 tokens at once
 *
 * Tiles are always_inline functions of constants (type, nr, nc), instantiated by the tables at the end of each file. */
#ifndef HD_KERNELS_AVX2_MM_AVX2_H
#define HD_KERNELS_AVX2_MM_AVX2_H

#include "kernels/avx2/unroll.h"
#include "kernels/mm_layout.h"

#include <immintrin.h>

/* gcc hoists all multiplies of a step above its additions and then spills them all (measured: -40 %).  KEEP pins the
 * order of one accumulation, FENCE keeps loads in their step. */
#define KEEP(v) __asm__("" : "+x"(v))
#define FENCE() __asm__ volatile("" ::: "memory")

/* int16 lanes: acc += pairs of unsigned w * signed a. */
#define MAC(acc, w, a)                                                                                                 \
    do {                                                                                                               \
        acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, a));                                                       \
        KEEP(acc);                                                                                                     \
    } while (0)

/* int32 lanes: acc += pairs of int16. */
#define MAC16(acc, w, a)                                                                                               \
    do {                                                                                                               \
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w, a));                                                          \
        KEEP(acc);                                                                                                     \
    } while (0)

TILE_INLINE __m256i load256(const void *p) { return _mm256_loadu_si256(p); }
TILE_INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }
TILE_INLINE __m256 half8(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
TILE_INLINE __m256i bcast32(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
/* The same where gcc would load set1's argument into a general register first: what sums start at.  Elsewhere it costs. */
TILE_INLINE __m256i start32(const void *p) { return _mm256_castps_si256(_mm256_broadcast_ss(p)); }
/* Prefetch `bytes` (a constant) of a stream, `ahead` bytes from here. */
TILE_INLINE void prefetch(const uint8_t *p, ptrdiff_t ahead, const int bytes) {
    UNROLL
    for (int o = 0; o < bytes; o += 64) _mm_prefetch((const char *)p + ahead + o, _MM_HINT_T0);
}

/* Step i of n of a block of `bytes` at p[r] + off in nr streams: their prefetches take turns.  All at once they would be
 * more than a core can wait for, and what it computes would wait behind them (measured, docs/performance.md). */
TILE_INLINE void prefetch_turn(const uint8_t *const *p, int off, ptrdiff_t ahead, const int bytes, const int nr,
                               const int i, const int n) {
    if (i % (n / nr) == 0) prefetch(p[i / (n / nr)] + off, ahead, bytes);
}

/* Bits `mask` of v moved from bit `from` to bit `to`, in every byte. */
TILE_INLINE __m256i field(__m256i v, const int from, const int to, const int mask) {
    v = from > to ? _mm256_srli_epi16(v, from - to) : from < to ? _mm256_slli_epi16(v, to - from) : v;
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}
/* 8 rows x columns 4q..4q+3 of 32, by the names of mm_layout.h.  Nibble vectors are read once for each half and cut
 * values gather several vectors: loads are cheaper than registers. */
TILE_INLINE __m256i nibble_vec(const uint8_t *p, const int q) {
    return field(load256(p + 32 * (q & 3)), q < 4 ? 0 : 4, 0, 15);
}
TILE_INLINE __m256i two_vec(const uint8_t *p, const int q) {
    return field(load256(p + 32 * (q >> 2)), 2 * (q & 3), 0, 3);
}
TILE_INLINE __m256i three_vec(const uint8_t *p, const int q) {
    if (q < 6) return field(load256(p + 32 * (q >> 1)), 3 * (q & 1), 0, 7);
    return _mm256_or_si256(field(load256(p + (q == 6 ? 0 : 64)), 6, 0, 3), field(load256(p + 32), q, 2, 4));
}
TILE_INLINE __m256i five_vec(const uint8_t *p, const int q) { /* three masks in all: they live in registers */
    const __m256i low = _mm256_set1_epi8(31), top = _mm256_set1_epi8((char)0xC0), bit5 = _mm256_set1_epi8(32);
    const uint8_t *cut = p + (q == 7 ? 128 : 64 * (q - 5));
    __m256i v;
    if (q < 5) return _mm256_and_si256(load256(p + 32 * q), low);
    v = _mm256_srli_epi16(_mm256_andnot_si256(low, load256(cut)), 5);
    if (q < 7) return _mm256_or_si256(v, _mm256_srli_epi16(_mm256_and_si256(load256(cut + 32), top), 3));
    v = _mm256_or_si256(v, _mm256_srli_epi16(_mm256_and_si256(load256(p + 32), bit5), 2));
    return _mm256_or_si256(v, _mm256_srli_epi16(_mm256_and_si256(load256(p + 96), bit5), 1));
}
TILE_INLINE __m256i six_vec(const uint8_t *p, const int q) {
    const __m256i top = _mm256_set1_epi8((char)0xC0);
    __m256i v;
    p += 96 * (q >> 2);
    if ((q & 3) < 3) return field(load256(p + 32 * (q & 3)), 0, 0, 63);
    v = _mm256_srli_epi16(_mm256_and_si256(load256(p), top), 2);
    v = _mm256_srli_epi16(_mm256_or_si256(v, _mm256_and_si256(load256(p + 32), top)), 2);
    return _mm256_srli_epi16(_mm256_or_si256(v, _mm256_and_si256(load256(p + 64), top)), 2);
}

/* w: nr streams, prefetched `ahead` bytes ahead; a: records of the panel at the first unit.  sums: of (token c, group r) at
 * sums[c * nr + r], read and written, so that k can come in several runs; tmp: nr * nc vectors of scratch. */
typedef void (*mm_tile)(const uint8_t *const *w, ptrdiff_t ahead, const void *a, uint32_t n_units, __m256 *sums,
                        __m256i *tmp);
/* sums: 2 * nc vectors, read and written; tmp: as many. */
typedef void (*mm_panel_tile)(const uint8_t *panel, const void *a, uint32_t n_units, __m256 *sums, __m256i *tmp);
/* Two whole panels of tokens at once, for sets with more registers.  The sums of 16 rows begin with those at from + 16 c for
 * token c, or with zeros when from is NULL, and go to to + ldt * c: a call stores nothing twice. */
typedef void (*mm_two_panels)(const uint8_t *panel, const void *a, const void *b, uint32_t n_units, const float *from,
                              float *to, size_t ldt);
/* 16 rows, the two runs at w, and MM_WIDE_MIN to MM_WIDE tokens: up to 4 at a, the others at b.  next: the runs that are read
 * after these; what is ahead is asked for there when these end.  from, to, ldt: as mm_two_panels. */
enum { MM_WIDE_MIN = 2, MM_WIDE = 8 };
typedef void (*mm_wide)(const uint8_t *const *w, const uint8_t *const *next, const void *a, const void *b,
                        uint32_t n_units, const float *from, float *to, size_t ldt);

typedef struct {
    mm_tile direct[5][5]; /* [nr][nc]: nr 4 with nc 1..2; nr 2 and 1 with nc 1..4 */
    mm_panel_tile panel[5];
    mm_two_panels two_panels; /* or NULL: one after the other */
    mm_wide wide[MM_WIDE + 1]; /* [tokens], or NULLs: for sets with more registers */
    uint32_t wide_from, wide_below; /* tokens with which the wide tiles win (measured), the upper bound excluded */
    void (*unpack)(const uint8_t *w0, const uint8_t *w1, uint32_t n_units, uint8_t *panel);
    bool words;                      /* meets ACT_I16_32 or ACT_I16_TOP, whose records are alike */
    uint32_t panel_units, panel_min; /* units per run of k at most; tokens from which the panel wins (measured) */
    ptrdiff_t ahead;                 /* bytes of prefetch in a stream; further is slower than none (measured) */
} mm_tiles;

/* One call through the tiles of a set that has AVX2: arguments as mm_mul. */
void mm_avx2_drive(const mm_tiles *t, const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,
                   uint32_t r1, void *scratch);

void mm_avx2_act_f32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_avx2_act_i8_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_avx2_act_top_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_avx2_act_i16_top(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_avx2_act_i8_256(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_avx2_act_i16_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);

extern const mm_tiles mm_avx2_q4_0, mm_avx2_q4_1, mm_avx2_q5_0, mm_avx2_q5_1, mm_avx2_q8_0;
extern const mm_tiles mm_avx2_q2_k, mm_avx2_q3_k, mm_avx2_q4_k, mm_avx2_q5_k, mm_avx2_q6_k;
extern const mm_tiles mm_avx2_iq4_nl, mm_avx2_iq4_xs;
extern const mm_tiles mm_avx2_f32, mm_avx2_f16, mm_avx2_bf16;

/* fn(nr, nc) for every shape of the direct table. */
#define MM_SHAPES(fn) fn(4, 1) fn(4, 2) fn(2, 1) fn(2, 2) fn(2, 3) fn(2, 4) fn(1, 1) fn(1, 2) fn(1, 3) fn(1, 4)
#define MM_DIRECT(p)                                                                                                   \
    {                                                                                                                  \
        [4] = {[1] = p##_4x1, [2] = p##_4x2}, [2] = {[1] = p##_2x1, [2] = p##_2x2, [3] = p##_2x3, [4] = p##_2x4},      \
        [1] = {[1] = p##_1x1, [2] = p##_1x2, [3] = p##_1x3, [4] = p##_1x4},                                            \
    }
#define MM_PANELS(p)                                                                                                   \
    { [1] = p##_p1, [2] = p##_p2, [3] = p##_p3, [4] = p##_p4 }

/* X(type, name): the types that are kept in blocks of integers. */
#define MM_BLOCK_TYPES(X)                                                                                              \
    X(Q4_0, q4_0)                                                                                                      \
    X(Q4_1, q4_1)                                                                                                      \
    X(Q5_0, q5_0)                                                                                                      \
    X(Q5_1, q5_1)                                                                                                      \
    X(Q8_0, q8_0)                                                                                                      \
    X(Q2_K, q2_k)                                                                                                      \
    X(Q3_K, q3_k)                                                                                                      \
    X(Q4_K, q4_k)                                                                                                      \
    X(Q5_K, q5_k)                                                                                                      \
    X(Q6_K, q6_k)                                                                                                      \
    X(IQ4_NL, iq4_nl)                                                                                                  \
    X(IQ4_XS, iq4_xs)

#endif
