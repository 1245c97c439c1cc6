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

/* A name of this set: SET(q4_0) is mm_avx512_q4_0 or mm_avxvnni_q4_0. */
#if LANES_WIDE
#define SET(name) mm_avx512_##name
#else
#define SET(name) mm_avxvnni_##name
#endif

#if LANES_WIDE
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
#define TYPE(name, ty, units, at_least, near)                                                                          \
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
                                .unpack = name##_unpack,                                                               \
                                .panel_units = units,                                                                  \
                                .panel_min = at_least,                                                                 \
                                .ahead = near};

#endif
