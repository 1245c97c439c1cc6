/* lanes.h - registers of the kernel sets that multiply bytes with vpdpbusd and words with vpdpwssd.
 *
 * Two sets are made from the same sources: avx512 (512-bit registers, 32 of them) and avxvnni (256 bits, 16 of them).
 * A file of a set's folder defines LANES_WIDE as 1 or 0 and includes one of the templates beside this header.
 *
 *   __m256i  8 rows, as in avx2: what reads packed weights directly
 *   pair     16 rows, two groups of 8: what reads an unpacked panel; one register in avx512, two in avxvnni
 *
 * vpdpbusd adds four products of unsigned and signed bytes to 32 bits and cannot saturate, vpdpwssd likewise two of
 * signed words: every sum is exact, and so equal to generic's. */
#ifndef HD_KERNELS_VNNI_LANES_H
#define HD_KERNELS_VNNI_LANES_H

#include "kernels/avx2/mm_avx2.h"

#if LANES_WIDE
#define DP8(acc, w, a)  _mm256_dpbusd_epi32(acc, w, a)
#define DP16(acc, w, a) _mm256_dpwssd_epi32(acc, w, a)
/* Sums of so many tiles of 8 rows stay in registers beside their accumulators, and of so many pairs. */
enum { SUMS_IN_REGS = 8, PAIRS_IN_REGS = 8 };

typedef __m512i pair;
typedef __m512 pair_f;
TILE_INLINE pair pair_zero(void) { return _mm512_setzero_si512(); }
TILE_INLINE pair pair_load(const void *p) { return _mm512_loadu_si512(p); }
TILE_INLINE void pair_store(void *p, pair v) { _mm512_storeu_si512(p, v); }
TILE_INLINE pair pair_bcast(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}
/* The same by the load ports alone (start32 of mm_avx2.h says why): what sums start at. */
TILE_INLINE pair pair_start(const void *p) {
    return _mm512_castps_si512(_mm512_broadcastss_ps(_mm_load_ss(p)));
}
TILE_INLINE pair pair_dp8(pair acc, pair w, pair a) { return _mm512_dpbusd_epi32(acc, w, a); }
TILE_INLINE pair pair_dp16(pair acc, pair w, pair a) { return _mm512_dpwssd_epi32(acc, w, a); }
TILE_INLINE pair pair_add(pair a, pair b) { return _mm512_add_epi32(a, b); }
TILE_INLINE pair pair_mul(pair a, pair b) { return _mm512_mullo_epi32(a, b); }
TILE_INLINE pair pair_shr(pair a, const int n) { return _mm512_srai_epi32(a, (unsigned)n); }
TILE_INLINE pair pair_shl(pair a, const int n) { return _mm512_slli_epi32(a, (unsigned)n); }
TILE_INLINE pair pair_set(int32_t v) { return _mm512_set1_epi32(v); }
TILE_INLINE pair_f pair_zero_f(void) { return _mm512_setzero_ps(); }
TILE_INLINE pair_f pair_load_f(const void *p) { return _mm512_loadu_ps(p); }
TILE_INLINE void pair_store_f(void *p, pair_f v) { _mm512_storeu_ps(p, v); }
TILE_INLINE pair_f pair_set_f(float v) { return _mm512_set1_ps(v); }
TILE_INLINE pair_f pair_float(pair v) { return _mm512_cvtepi32_ps(v); }
TILE_INLINE pair_f pair_mul_f(pair_f a, pair_f b) { return _mm512_mul_ps(a, b); }
TILE_INLINE pair_f pair_fma(pair_f a, pair_f b, pair_f c) { return _mm512_fmadd_ps(a, b, c); }   /* a b + c */
TILE_INLINE pair_f pair_fnma(pair_f a, pair_f b, pair_f c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */

#else
#define DP8(acc, w, a)  _mm256_dpbusd_avx_epi32(acc, w, a)
#define DP16(acc, w, a) _mm256_dpwssd_avx_epi32(acc, w, a)
enum { SUMS_IN_REGS = 4, PAIRS_IN_REGS = 0 };

typedef struct {
    __m256i lo, hi;
} pair;
typedef struct {
    __m256 lo, hi;
} pair_f;
TILE_INLINE pair pair_set(int32_t v) { return (pair){_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
TILE_INLINE pair pair_zero(void) { return pair_set(0); }
TILE_INLINE pair pair_load(const void *p) { return (pair){load256(p), load256((const char *)p + 32)}; }
TILE_INLINE void pair_store(void *p, pair v) {
    _mm256_storeu_si256(p, v.lo);
    _mm256_storeu_si256((__m256i *)p + 1, v.hi);
}
TILE_INLINE pair pair_bcast(const void *p) {
    __m256i v = bcast32(p);
    return (pair){v, v};
}
TILE_INLINE pair pair_start(const void *p) { return pair_bcast(p); }
TILE_INLINE pair pair_dp8(pair acc, pair w, pair a) { return (pair){DP8(acc.lo, w.lo, a.lo), DP8(acc.hi, w.hi, a.hi)}; }
TILE_INLINE pair pair_dp16(pair acc, pair w, pair a) {
    return (pair){DP16(acc.lo, w.lo, a.lo), DP16(acc.hi, w.hi, a.hi)};
}
TILE_INLINE pair pair_add(pair a, pair b) {
    return (pair){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
TILE_INLINE pair pair_mul(pair a, pair b) {
    return (pair){_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
TILE_INLINE pair pair_shr(pair a, const int n) {
    return (pair){_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}
TILE_INLINE pair pair_shl(pair a, const int n) {
    return (pair){_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
TILE_INLINE pair_f pair_zero_f(void) { return (pair_f){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TILE_INLINE pair_f pair_load_f(const void *p) {
    return (pair_f){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}
TILE_INLINE void pair_store_f(void *p, pair_f v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps((float *)p + 8, v.hi);
}
TILE_INLINE pair_f pair_set_f(float v) { return (pair_f){_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
TILE_INLINE pair_f pair_float(pair v) { return (pair_f){_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
TILE_INLINE pair_f pair_mul_f(pair_f a, pair_f b) {
    return (pair_f){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
TILE_INLINE pair_f pair_fma(pair_f a, pair_f b, pair_f c) {
    return (pair_f){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TILE_INLINE pair_f pair_fnma(pair_f a, pair_f b, pair_f c) {
    return (pair_f){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
#endif

/* As KEEP of mm_avx2.h, for all registers of the set. */
#if LANES_WIDE
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v) KEEP(v)
#endif
#ifdef TILE_PLAIN /* a pair may be a struct there */
#define HOLD_PAIR(v) ((void)0)
#else
#define HOLD_PAIR(v) HOLD(v)
#endif

/* A name of this set: SET(q4_0) is mm_avx512_q4_0 or mm_avxvnni_q4_0. */
#if LANES_WIDE
#define SET(name) mm_avx512_##name
#else
#define SET(name) mm_avxvnni_##name
#endif

#if LANES_WIDE
/* 16 rows out of two groups of packed weights: 32, or 16, bytes of each. */
TILE_INLINE pair join(const uint8_t *p0, const uint8_t *p1) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load256(p0)), load256(p1), 1);
}
TILE_INLINE __m256i join16(const uint8_t *p0, const uint8_t *p1) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p0)), load128(p1), 1);
}
TILE_INLINE pair_f join_half(const uint8_t *p0, const uint8_t *p1) { return _mm512_cvtph_ps(join16(p0, p1)); }

/* As nibble_vec and five_vec, out of the vectors of 32 columns. */
TILE_INLINE pair pick_nibble(const pair *v, const int q) {
    return _mm512_and_si512(q < 4 ? v[q] : _mm512_srli_epi16(v[q & 3], 4), _mm512_set1_epi8(15));
}
TILE_INLINE pair pick_five(const pair *v, const int q) {
    const pair low = _mm512_set1_epi8(31), top = _mm512_set1_epi8((char)0xC0), bit5 = _mm512_set1_epi8(32);
    pair x;
    if (q < 5) return _mm512_and_si512(v[q], low);
    x = _mm512_srli_epi16(_mm512_andnot_si512(low, v[q == 7 ? 4 : 2 * (q - 5)]), 5);
    if (q < 7) return _mm512_or_si512(x, _mm512_srli_epi16(_mm512_and_si512(v[2 * (q - 5) + 1], top), 3));
    x = _mm512_or_si512(x, _mm512_srli_epi16(_mm512_and_si512(v[1], bit5), 2));
    return _mm512_or_si512(x, _mm512_srli_epi16(_mm512_and_si512(v[3], bit5), 1));
}

/* The lines of two runs of units are asked for FAR_BYTES ahead into L2 and a unit ahead into L1.  Ahead is along the order
 * of reading: it goes on in the next runs where these end.  So 8 tokens multiply from memory as fast as from L2; asked for
 * behind the end instead, what comes next was missing each time (measured, docs/performance.md). */
enum { FAR_BYTES = 4608 };
typedef struct {
    const uint8_t *far[2], *near[2];
    const uint8_t *const *next;
    uint32_t far_left, near_left; /* units until the next runs begin */
} ahead_of;

TILE_INLINE void ahead_begin(ahead_of *h, const uint8_t *const *w, const uint8_t *const *next, uint32_t n_units,
                             const int unit) {
    const uint32_t most = (uint32_t)((FAR_BYTES + unit - 1) / unit), n = most < n_units ? most : n_units;
    h->next = next;
    h->far_left = n_units - n;
    h->near_left = n_units - 1;
    UNROLL
    for (int r = 0; r < 2; r++) {
        h->far[r] = w[r] + n * (uint32_t)unit;
        h->near[r] = w[r] + unit;
    }
}
/* Before each unit. */
TILE_INLINE void ahead_unit(ahead_of *h) {
    if (h->far_left-- == 0) h->far[0] = h->next[0], h->far[1] = h->next[1];
    if (h->near_left-- == 0) h->near[0] = h->next[0], h->near[1] = h->next[1];
}
/* Step i of n of the next `bytes`. */
TILE_INLINE void ahead_turn(const ahead_of *h, const int bytes, const int i, const int n) {
    const int lines = 2 * ((bytes + 63) / 64);
    UNROLL
    for (int k = lines * i / n; k < lines * (i + 1) / n; k++) {
        _mm_prefetch((const char *)h->far[k & 1] + 64 * (k >> 1), _MM_HINT_T1);
        _mm_prefetch((const char *)h->near[k & 1] + 64 * (k >> 1), _MM_HINT_T0);
    }
}
TILE_INLINE void ahead_pass(ahead_of *h, const int bytes) {
    UNROLL
    for (int r = 0; r < 2; r++) h->far[r] += bytes, h->near[r] += bytes;
}

mm_mul_fn mm_avx512_floats(tensor_type type); /* F32, F16, BF16; else NULL */
#endif

/* The tables of a file for one type: direct tiles, panels of 1 to 4 tokens, two whole panels at once.  at_least is where
 * the panel wins with 512-bit registers (measured at 1024 and 2048 columns); of avxvnni that is not known. */
#define DIRECT(nr, nc)                                                                                                 \
    static void FN(nr, nc)(const uint8_t *const *w, ptrdiff_t ahead, const void *a, uint32_t n_units,                  \
                           __m256 *sums, __m256i *tmp) {                                                               \
        tile(TY, nr, nc, w, ahead, a, n_units, sums, tmp);                                                             \
    }
#define PANEL(name, ty, nc)                                                                                            \
    static void name##_p##nc(const uint8_t *p, const void *a, uint32_t n_units, __m256 *sums, __m256i *tmp) {          \
        (void)tmp;                                                                                                     \
        panel_tile(ty, nc, p, a, a, n_units, (const float *)sums, (float *)sums, 2 * MM_ROWS);                         \
    }
#if LANES_WIDE
#define WIDE(name, ty, nc)                                                                                             \
    static void name##_w##nc(const uint8_t *const *w, const uint8_t *const *next, const void *a, const void *b,        \
                             uint32_t n_units, const float *from, float *to, size_t ldt) {                             \
        wide_tile(ty, nc, w, next, a, b, n_units, from, to, ldt);                                                      \
    }
#define WIDES(name, ty)                                                                                                \
    WIDE(name, ty, 2)                                                                                                  \
    WIDE(name, ty, 3)                                                                                                  \
    WIDE(name, ty, 4)                                                                                                  \
    WIDE(name, ty, 5)                                                                                                  \
    WIDE(name, ty, 6)                                                                                                  \
    WIDE(name, ty, 7)                                                                                                  \
    WIDE(name, ty, 8)
#define WIDE_TABLE(name)                                                                                               \
    {                                                                                                                  \
        [2] = name##_w2, [3] = name##_w3, [4] = name##_w4, [5] = name##_w5, [6] = name##_w6, [7] = name##_w7,          \
        [8] = name##_w8,                                                                                               \
    }
#define WIDE_BELOW(n) (n)
/* Below, four distant streams read faster (measured). */
#define WIDE_FROM(ty) ((ty) == TENSOR_Q8_0 ? 4 : (ty) == TENSOR_Q4_1 ? 3 : MM_WIDE_MIN)
#else
#define WIDES(name, ty)
#define WIDE_TABLE(name) {NULL}
#define WIDE_BELOW(n)    0
#define WIDE_FROM(ty)    0
#endif
#define TYPE(name, ty, units, at_least, below, near)                                                                   \
    WIDES(name, ty)                                                                                                    \
    PANEL(name, ty, 1)                                                                                                 \
    PANEL(name, ty, 2)                                                                                                 \
    PANEL(name, ty, 3)                                                                                                 \
    PANEL(name, ty, 4)                                                                                                 \
    static void name##_two(const uint8_t *p, const void *a, const void *b, uint32_t n_units, const float *from,        \
                           float *to, size_t ldt) {                                                                    \
        panel_tile(ty, 8, p, a, b, n_units, from, to, ldt);                                                            \
    }                                                                                                                  \
    static void name##_unpack(const uint8_t *w0, const uint8_t *w1, uint32_t n_units, uint8_t *o) {                    \
        panel_unpack(ty, w0, w1, n_units, o);                                                                          \
    }                                                                                                                  \
    const mm_tiles SET(name) = {.direct = MM_DIRECT(name),                                                             \
                                .panel = MM_PANELS(name),                                                              \
                                .two_panels = LANES_WIDE ? name##_two : NULL,                                          \
                                .wide = WIDE_TABLE(name),                                                              \
                                .wide_from = WIDE_FROM(ty),                                                            \
                                .wide_below = WIDE_BELOW(below),                                                       \
                                .unpack = name##_unpack,                                                               \
                                .panel_units = units,                                                                  \
                                .panel_min = at_least,                                                                 \
                                .ahead = near};
/* A type for which the wide tiles, where there are any, are best however many tokens there are. */
#if LANES_WIDE
#define TYPE_WIDE(name, ty, units, at_least, near)                                                                     \
    WIDES(name, ty)                                                                                                    \
    const mm_tiles SET(name) = {.direct = MM_DIRECT(name),                                                             \
                                .wide = WIDE_TABLE(name),                                                              \
                                .wide_from = WIDE_FROM(ty),                                                            \
                                .wide_below = UINT32_MAX,                                                              \
                                .ahead = near};
#else
#define TYPE_WIDE(name, ty, units, at_least, near) TYPE(name, ty, units, at_least, 0, near)
#endif

#endif
