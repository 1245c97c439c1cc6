/* attn_loops.h - the two inner loops of attn_run.h: scores of 16 positions, values of 16 dimensions.
 *
 * Rows are taken so many at a time that their accumulators stay in registers while K or V streams by; few rows take two
 * such tiles of positions or dimensions at once, as so few sums would wait for each other.  Everything is widened to f32 on
 * the fly: beside the multiplications of one group of rows the conversion costs little.  Where several groups share a read,
 * q8 and q4 are widened once for all (attn_run.h), and come here as f32 with block scales apart.
 * `n`, `m` and the scheme are constants in every use, so each gets loops of its own.
 *
 * One stream of reads cannot keep the memory busy, and hints a few lines ahead in the same stream gain nothing; asking for V
 * while K is read, and for the next K while V is, into L2, doubles decode speed (docs/performance.md). */
#ifndef HD_KERNELS_AVX2_ATTN_LOOPS_H
#define HD_KERNELS_AVX2_ATTN_LOOPS_H

#include "kernels/attn_int.h"
#include "kernels/avx2/math_avx2.h"
#include "kernels/avx2/unroll.h"

#if defined(__clang__)
#define IN_ORDER __asm__ volatile("" ::: "memory") /* else clang loads all broadcasts first and spills accumulators */
#else
#define IN_ORDER ((void)0)
#endif

static inline uint32_t later(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline uint32_t sooner(uint32_t a, uint32_t b) { return a < b ? a : b; }

TILE_INLINE __m256 floats8(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
TILE_INLINE __m256 halves8(const char *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
TILE_INLINE __m256 brains8(const char *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
/* The low (or high) halves of bytes, less 8. */
TILE_INLINE __m128i nibbles(__m128i bytes, bool high) {
    if (high) bytes = _mm_srli_epi16(bytes, 4);
    return _mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8(15)), _mm_set1_epi8(8));
}

/* v16: 16 floats, one register of AVX-512 or two of AVX2. */
#if ATTN_WIDE
enum {
    GROUP_ROWS = 8, /* with up to 16 accumulators, of 32 registers */
};
typedef __m512 v16;
TILE_INLINE v16 zero16(void) { return _mm512_setzero_ps(); }
TILE_INLINE v16 set16(float x) { return _mm512_set1_ps(x); }
TILE_INLINE v16 load16(const void *p) { return _mm512_loadu_ps(p); }
TILE_INLINE void store16(void *p, v16 x) { _mm512_storeu_ps(p, x); }
TILE_INLINE v16 mul16(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
TILE_INLINE v16 fma16(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
TILE_INLINE v16 floats16(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
TILE_INLINE v16 halves16(const char *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
TILE_INLINE v16 brains16(const char *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
#else
enum {
    GROUP_ROWS = 6, /* 2 x 6 accumulators, 2 loaded vectors, 1 broadcast: 15 of 16 registers */
};
typedef struct {
    __m256 lo, hi;
} v16;
TILE_INLINE v16 zero16(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TILE_INLINE v16 set16(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TILE_INLINE v16 load16(const void *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)}; }
TILE_INLINE void store16(void *p, v16 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps((float *)p + 8, x.hi);
}
TILE_INLINE v16 mul16(v16 a, v16 b) { return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
TILE_INLINE v16 fma16(v16 a, v16 b, v16 c) { return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
TILE_INLINE v16 floats16(__m128i bytes) { return (v16){floats8(bytes), floats8(_mm_unpackhi_epi64(bytes, bytes))}; }
TILE_INLINE v16 halves16(const char *p) { return (v16){halves8(p), halves8(p + 16)}; }
TILE_INLINE v16 brains16(const char *p) { return (v16){brains8(p), brains8(p + 16)}; }
#endif

/* Tiles that n rows take at once, when no other rows share them: few sums would wait for each other, more would spill. */
enum { MAX_TILES = 4 };
TILE_INLINE uint32_t tiles_at_once(uint32_t n) { return ATTN_WIDE && n <= 4 ? 4 : n <= (ATTN_WIDE ? 6 : 2) ? 2 : 1; }

/* 16 values in a row, f32 or of 2 or 1 bytes each. */
TILE_INLINE v16 widen16(const kv_scheme scheme, const char *p) {
    if (scheme == KV_F16) return halves16(p);
    if (scheme == KV_F32) return load16(p);
    if (scheme == KV_BF16) return brains16(p);
    return floats16(_mm_loadu_si128((const __m128i *)p));
}

/* Bytes of 16 values. */
TILE_INLINE size_t bytes16(const kv_scheme scheme) {
    return scheme == KV_F32 ? 64 : scheme == KV_Q8 ? 16 : scheme == KV_Q4 ? 8 : 32;
}

/* acc[r] += x[r][at] y */
TILE_INLINE void fma_rows(const uint32_t n, v16 *acc, const float *const *x, size_t at, v16 y) {
    UNROLL for (uint32_t r = 0; r < n; r++) {
        acc[r] = fma16(set16(x[r][at]), y, acc[r]);
        IN_ORDER;
    }
}

/* Dimensions d and d + 1 of m tiles of 16 positions at k[i] + at. */
TILE_INLINE void fma_k(const uint32_t n, const uint32_t m, const kv_scheme scheme, v16 acc[][GROUP_ROWS], const float *const *q,
                       size_t d, const char *const *k, size_t at) {
    if (scheme == KV_Q4) {
        UNROLL for (uint32_t i = 0; i < m; i++) {
            __m128i x = _mm_loadu_si128((const __m128i *)(k[i] + at));
            fma_rows(n, acc[i], q, d, floats16(nibbles(x, false)));
            fma_rows(n, acc[i], q, d + 1, floats16(nibbles(x, true)));
        }
        return;
    }
    UNROLL for (uint32_t i = 0; i < m; i++) fma_rows(n, acc[i], q, d, widen16(scheme, k[i] + at));
    UNROLL for (uint32_t i = 0; i < m; i++) fma_rows(n, acc[i], q, d + 1, widen16(scheme, k[i] + at + bytes16(scheme)));
}

/* 16 dimensions of position j at v, and another 16 at v + step for m = 2. */
TILE_INLINE void fma_v(const uint32_t n, const uint32_t m, const kv_scheme scheme, v16 acc[][GROUP_ROWS], const float *const *p,
                       size_t j, const char *v, size_t step) {
    UNROLL for (uint32_t i = 0; i < m; i++, v += step) {
        if (scheme == KV_Q4) {
            __m128i x = _mm_loadl_epi64((const __m128i *)v);
            fma_rows(n, acc[i], p, j, floats16(_mm_unpacklo_epi64(nibbles(x, false), nibbles(x, true))));
        } else {
            fma_rows(n, acc[i], p, j, widen16(scheme, v));
        }
    }
}

/* K of m tiles of 16 positions, and what to ask for meanwhile, chunk by chunk of 16 dimensions: V of these positions, or K
 * of others. */
typedef struct {
    const char *k[MAX_TILES];
    const char *block[MAX_TILES]; /* where the first block lies, which has its scales at the end; k, unless widened */
    const char *ahead[MAX_TILES], *ahead_scales[MAX_TILES];
    uint32_t at[MAX_TILES];          /* where the scores go in a row of the block */
    uint32_t pair_bytes, gap;        /* of 2 dimensions in a block; between the integers of two blocks at k */
    size_t ahead_chunk, ahead_block; /* to the next chunk of a block; what a block has besides its chunks */
} k_tile;

/* What takes as much as 2 dimensions of K, b bytes, line by line; d counts within the chunk. */
TILE_INLINE void ask_chunk(const size_t b, const char *at, uint32_t d) {
    if (b < 64 && d & (128 / b - 1)) return;
    at += d / 2 * b;
    for (size_t i = 0; i < b; i += 64) _mm_prefetch(at + i, _MM_HINT_T1);
}

/* p[r][at[i]..+16) = scale * sum_d q[r][d] k[i][d][0..16) for n rows and m tiles; p rows lie ATTN_BLOCK apart. */
TILE_INLINE void scores_n(const uint32_t n, const uint32_t m, const kv_scheme scheme, const bool blocked, const float *const *q,
                          const k_tile *t, uint32_t head_dim, float scale, float *p) {
    const char *k[MAX_TILES], *ahead[MAX_TILES];
    size_t of_k = 0, of_scales = 0, of_ahead = 0, of_ahead_scales = 0;
    v16 acc[MAX_TILES][GROUP_ROWS];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) row[r] = q[r];
    UNROLL for (uint32_t i = 0; i < m; i++) {
        k[i] = t->k[i];
        ahead[i] = t->ahead[i];
        UNROLL for (uint32_t r = 0; r < n; r++) acc[i][r] = zero16();
    }
    for (uint32_t c = 0; c < head_dim; c += KV_LANES, of_ahead += t->ahead_chunk) {
        uint32_t width = head_dim - c < KV_LANES ? 8 : KV_LANES;
        for (uint32_t d = 0; d < width; d += 2, of_k += 2 * bytes16(scheme)) {
            UNROLL for (uint32_t i = 0; i < m; i++) {
                if (blocked && scheme == KV_F32) ask_chunk(t->pair_bytes == 32 ? 32 : 16, ahead[i] + of_ahead, d);
                else ask_chunk(2 * bytes16(scheme), ahead[i] + of_ahead, d);
            }
            fma_k(n, m, scheme, acc, row, c + d, k, of_k);
        }
        if (blocked && (c % KV_BLOCK || c + KV_LANES >= head_dim)) { /* the block's sums join those of the blocks before */
            of_scales += (c % KV_BLOCK + width) / 2 * t->pair_bytes;
            UNROLL for (uint32_t i = 0; i < m; i++) {
                v16 s = halves16(t->block[i] + of_scales);
                UNROLL for (uint32_t r = 0; r < n; r++) {
                    float *x = p + (size_t)r * ATTN_BLOCK + t->at[i];
                    store16(x, fma16(acc[i][r], s, c < KV_BLOCK ? zero16() : load16(x)));
                    acc[i][r] = zero16();
                }
                _mm_prefetch(t->ahead_scales[i] + of_ahead_scales, _MM_HINT_T1);
            }
            of_ahead_scales += 2 * t->ahead_chunk + t->ahead_block;
            of_ahead += t->ahead_block;
            of_scales += KV_LANES * KV_SCALE_BYTES;
            of_k += t->gap;
        }
    }
    v16 s = set16(scale);
    UNROLL for (uint32_t i = 0; i < m; i++) UNROLL for (uint32_t r = 0; r < n; r++) {
        float *x = p + (size_t)r * ATTN_BLOCK + t->at[i];
        store16(x, mul16(blocked ? load16(x) : acc[i][r], s));
    }
}

/* V of a run of positions: 16 (or 8) dimensions, and 16 more every `step` bytes. */
typedef struct {
    const char *v, *ahead, *ahead_end; /* ahead: m parts of what is wanted next, ahead_step apart, up to ahead_end at the end */
    size_t step, ahead_step, ask;      /* ask: bytes of a part to ask for with 2 positions */
    uint32_t n_pos;
} v_tile;

/* o[r][0..16m) += sum_j p[r][j] v[j][..] for n rows; o rows lie head_dim apart. */
TILE_INLINE void values_n(const uint32_t n, const uint32_t m, const kv_scheme scheme, const float *p, const v_tile *t, float *o,
                          size_t head_dim) {
    const size_t bytes = bytes16(scheme);
    const char *v = t->v, *ahead = t->ahead;
    v16 acc[MAX_TILES][GROUP_ROWS];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        UNROLL for (uint32_t i = 0; i < m; i++) acc[i][r] = load16(o + r * head_dim + i * KV_LANES);
        row[r] = p + (size_t)r * ATTN_BLOCK;
    }
    /* Each line once: one that is left out is waited for, and that costs more than all the rest of its block. */
    uint32_t j = 0;
    for (; j + 2 <= t->n_pos; j += 2, v += 2 * bytes, ahead += t->ask) {
        UNROLL for (uint32_t i = 0; i < m; i++) {
            _mm_prefetch(ahead + i * t->ahead_step, _MM_HINT_T1);
            if (scheme == KV_F32 && t->ask > 64) _mm_prefetch(ahead + i * t->ahead_step + 64, _MM_HINT_T1);
        }
        fma_v(n, m, scheme, acc, row, j, v, t->step);
        fma_v(n, m, scheme, acc, row, j + 1, v + bytes, t->step);
    }
    for (; ahead < t->ahead_end; ahead += 64)
        UNROLL for (uint32_t i = 0; i < m; i++) _mm_prefetch(ahead + i * t->ahead_step, _MM_HINT_T1);
    if (j < t->n_pos) fma_v(n, m, scheme, acc, row, j, v, t->step);
    UNROLL for (uint32_t r = 0; r < n; r++) UNROLL for (uint32_t i = 0; i < m; i++)
        store16(o + r * head_dim + i * KV_LANES, acc[i][r]);
}

/* The last 8 dimensions of a head that is no multiple of 16 wide, row by row: hardly any model has such heads. */
static void values_8(uint32_t n, kv_scheme scheme, size_t bytes, const float *p, const v_tile *t, float *o, size_t head_dim) {
    for (uint32_t r = 0; r < n; r++, p += ATTN_BLOCK, o += head_dim) {
        __m256 acc = _mm256_loadu_ps(o);
        const char *v = t->v;
        for (uint32_t j = 0; j < t->n_pos; j++, v += bytes) {
            __m256 x = scheme == KV_F16    ? halves8(v)
                       : scheme == KV_BF16 ? brains8(v)
                       : scheme == KV_F32  ? _mm256_loadu_ps((const float *)v)
                                           : floats8(scheme == KV_Q8 ? _mm_loadl_epi64((const __m128i *)v)
                                                                     : nibbles(_mm_loadl_epi64((const __m128i *)v), false));
            acc = _mm256_fmadd_ps(_mm256_set1_ps(p[j]), x, acc);
        }
        _mm256_storeu_ps(o, acc);
    }
}

/* Each number of rows and tiles, and each scheme, gets loops of its own. */
#define CASE(n, m, call, ...)                                                                                                      \
    case (n) + 16 * (m):                                                                                                           \
        call(n, m, __VA_ARGS__);                                                                                                   \
        break;
#define CASES_2(n, m, call, ...) CASE(n, m, call, __VA_ARGS__) CASE(n + 1, m, call, __VA_ARGS__)
#define CASES_4(n, m, call, ...) CASES_2(n, m, call, __VA_ARGS__) CASES_2(n + 2, m, call, __VA_ARGS__)
#if ATTN_WIDE
#define CASES(call, ...)                                                                                                           \
    CASES_4(1, 1, call, __VA_ARGS__)                                                                                               \
    CASES_4(5, 1, call, __VA_ARGS__)                                                                                               \
    CASES_4(1, 2, call, __VA_ARGS__)                                                                                               \
    CASES_2(5, 2, call, __VA_ARGS__) CASES_4(1, 3, call, __VA_ARGS__) CASES_4(1, 4, call, __VA_ARGS__)
#else
#define CASES(call, ...) CASES_4(1, 1, call, __VA_ARGS__) CASES_2(5, 1, call, __VA_ARGS__) CASES_2(1, 2, call, __VA_ARGS__)
#endif
#define BY_ROWS(n, m, call, ...)                                                                                                   \
    switch ((n) + 16 * (m)) { CASES(call, __VA_ARGS__) }

/* blocked: K has block scales; the scheme is then KV_Q8, KV_Q4 or, widened, KV_F32. */
static void scores_16(uint32_t n, uint32_t m, kv_scheme scheme, bool blocked, const float *const *q, const k_tile *t,
                      uint32_t head_dim, float scale, float *p) {
#define SCORES(n, m, scheme, blocked) scores_n(n, m, scheme, blocked, q, t, head_dim, scale, p)
    if (scheme == KV_F32 && blocked) {
        BY_ROWS(n, m, SCORES, KV_F32, true)
        return;
    }
    switch (scheme) {
    case KV_F16: BY_ROWS(n, m, SCORES, KV_F16, false) break;
    case KV_BF16: BY_ROWS(n, m, SCORES, KV_BF16, false) break;
    case KV_Q8: BY_ROWS(n, m, SCORES, KV_Q8, true) break;
    case KV_Q4: BY_ROWS(n, m, SCORES, KV_Q4, true) break;
    default: BY_ROWS(n, m, SCORES, KV_F32, false) break;
    }
#undef SCORES
}

static void values_16(uint32_t n, uint32_t m, kv_scheme scheme, const float *p, const v_tile *t, float *o, size_t head_dim) {
#define VALUES(n, m, scheme) values_n(n, m, scheme, p, t, o, head_dim)
    switch (scheme) {
    case KV_F16: BY_ROWS(n, m, VALUES, KV_F16) break;
    case KV_BF16: BY_ROWS(n, m, VALUES, KV_BF16) break;
    case KV_Q8: BY_ROWS(n, m, VALUES, KV_Q8) break;
    case KV_Q4: BY_ROWS(n, m, VALUES, KV_Q4) break;
    default: BY_ROWS(n, m, VALUES, KV_F32) break;
    }
#undef VALUES
}

#endif
