/* attn_loops.h - the two inner loops of attn_avx2.c: scores of 16 positions, values of 16 dimensions.
 *
 * Rows are taken up to 6 at a time so that 12 accumulators stay in registers while K or V streams by.  Everything is widened
 * to f32 on the fly: the conversion runs beside the multiplications and costs less than a widened copy would.  `scheme`, `n`
 * and `wide` are constants in every use but the rare narrow one, so each gets loops of its own.
 *
 * One stream of reads cannot keep the memory busy, and hints a few lines ahead in the same stream gain nothing; asking for V
 * while K is read, and for the next K while V is, into L2, doubles decode speed (docs/performance.md). */
#ifndef HD_KERNELS_AVX2_ATTN_LOOPS_H
#define HD_KERNELS_AVX2_ATTN_LOOPS_H

#include "kernels/attn_int.h"
#include "kernels/avx2/math_avx2.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define IN_ORDER __asm__ volatile("" ::: "memory") /* else clang loads all broadcasts first and spills accumulators */
#else
#define UNROLL _Pragma("GCC unroll 8")
#define IN_ORDER ((void)0)
#endif

enum { GROUP_ROWS = 6 /* 2 x 6 accumulators, 2 loaded vectors, 1 broadcast: 15 of 16 registers */ };

INLINE __m256 floats8(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
INLINE __m256 halves8(const char *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
/* The low (or high) halves of bytes, less 8. */
INLINE __m128i nibbles(__m128i bytes, bool high) {
    if (high) bytes = _mm_srli_epi16(bytes, 4);
    return _mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8(15)), _mm_set1_epi8(8));
}

/* 8 values, f32 or of 2 or 1 bytes each. */
INLINE __m256 load8(const kv_scheme scheme, const char *p) {
    if (scheme == KV_F16) return halves8(p);
    if (scheme == KV_F32) return _mm256_loadu_ps((const float *)p);
    if (scheme == KV_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
    return floats8(_mm_loadl_epi64((const __m128i *)p));
}

/* Bytes of 8 values. */
INLINE size_t bytes8(const kv_scheme scheme) {
    return scheme == KV_F32 ? 32 : scheme == KV_Q8 ? 8 : scheme == KV_Q4 ? 4 : 16;
}

/* acc[r] += x[r][at] (y0, y1) */
INLINE void fma_pair(const uint32_t n, const bool wide, __m256 acc[][2], const float *const *x, size_t at, __m256 y0,
                     __m256 y1) {
    UNROLL for (uint32_t r = 0; r < n; r++) {
        __m256 b = _mm256_broadcast_ss(x[r] + at);
        acc[r][0] = _mm256_fmadd_ps(b, y0, acc[r][0]);
        if (wide) acc[r][1] = _mm256_fmadd_ps(b, y1, acc[r][1]);
        IN_ORDER;
    }
}

/* Dimensions d and d + 1 of 16 positions at k. */
INLINE void fma_k(const uint32_t n, const kv_scheme scheme, __m256 acc[][2], const float *const *q, size_t d, const char *k) {
    if (scheme == KV_Q4) {
        __m128i b = _mm_loadu_si128((const __m128i *)k), low = nibbles(b, false), high = nibbles(b, true);
        fma_pair(n, true, acc, q, d, floats8(low), floats8(_mm_unpackhi_epi64(low, low)));
        fma_pair(n, true, acc, q, d + 1, floats8(high), floats8(_mm_unpackhi_epi64(high, high)));
        return;
    }
    size_t b = bytes8(scheme);
    fma_pair(n, true, acc, q, d, load8(scheme, k), load8(scheme, k + b));
    fma_pair(n, true, acc, q, d + 1, load8(scheme, k + 2 * b), load8(scheme, k + 3 * b));
}

/* 16 (or 8) dimensions of position j at v. */
INLINE void fma_v(const uint32_t n, const bool wide, const kv_scheme scheme, __m256 acc[][2], const float *const *p, size_t j,
                  const char *v) {
    if (scheme == KV_Q4) {
        __m128i b = _mm_loadl_epi64((const __m128i *)v);
        fma_pair(n, wide, acc, p, j, floats8(nibbles(b, false)), wide ? floats8(nibbles(b, true)) : _mm256_setzero_ps());
        return;
    }
    fma_pair(n, wide, acc, p, j, load8(scheme, v), wide ? load8(scheme, v + bytes8(scheme)) : _mm256_setzero_ps());
}

/* What to ask for while K of 16 positions is read: V of the same, chunk by chunk of 16 dimensions. */
typedef struct {
    const char *at, *scales;  /* of the first chunk; of the first block */
    size_t chunk, block;      /* to the next chunk of a block; what a block has besides its chunks */
} v_ahead;

/* Lines 2 dimensions of K at a time; d counts within the chunk. */
INLINE void ask_v(const kv_scheme scheme, const char *at, uint32_t d) {
    size_t b = 4 * bytes8(scheme); /* of K in 2 dimensions, as many as of V */
    if (b < 64 && d % (128 / b)) return;
    _mm_prefetch(at + d / 2 * b, _MM_HINT_T1);
    if (b > 64) _mm_prefetch(at + d / 2 * b + 64, _MM_HINT_T1);
}

/* p[r][0..16) = scale * sum_d q[r][d] k[d][0..16) for n rows; p rows lie ATTN_BLOCK apart. */
INLINE void scores_n(const uint32_t n, const kv_scheme scheme, const float *const *q, const char *k, uint32_t head_dim,
                     float scale, float *p, const v_ahead *ahead) {
    const bool blocked = scheme == KV_Q8 || scheme == KV_Q4;
    const char *at = ahead->at, *scales = ahead->scales;
    __m256 acc[GROUP_ROWS][2];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        row[r] = q[r];
    }
    for (uint32_t c = 0; c < head_dim; c += KV_LANES, at += ahead->chunk) {
        uint32_t width = head_dim - c < KV_LANES ? 8 : KV_LANES;
        for (uint32_t d = 0; d < width; d += 2, k += 4 * bytes8(scheme)) {
            ask_v(scheme, at, d);
            fma_k(n, scheme, acc, row, c + d, k);
        }
        if (blocked && (c % KV_BLOCK || c + KV_LANES >= head_dim)) { /* the block's sums join those of the blocks before */
            __m256 s0 = halves8(k), s1 = halves8(k + 16);
            k += KV_LANES * KV_SCALE_BYTES;
            _mm_prefetch(scales, _MM_HINT_T1);
            scales += 2 * ahead->chunk + ahead->block;
            at += ahead->block;
            UNROLL for (uint32_t r = 0; r < n; r++) {
                float *x = p + (size_t)r * ATTN_BLOCK;
                __m256 x0 = c < KV_BLOCK ? _mm256_setzero_ps() : _mm256_loadu_ps(x);
                __m256 x1 = c < KV_BLOCK ? _mm256_setzero_ps() : _mm256_loadu_ps(x + 8);
                _mm256_storeu_ps(x, _mm256_fmadd_ps(acc[r][0], s0, x0));
                _mm256_storeu_ps(x + 8, _mm256_fmadd_ps(acc[r][1], s1, x1));
                acc[r][0] = acc[r][1] = _mm256_setzero_ps();
            }
        }
    }
    __m256 s = _mm256_set1_ps(scale);
    UNROLL for (uint32_t r = 0; r < n; r++) {
        float *x = p + (size_t)r * ATTN_BLOCK;
        _mm256_storeu_ps(x, _mm256_mul_ps(blocked ? _mm256_loadu_ps(x) : acc[r][0], s));
        _mm256_storeu_ps(x + 8, _mm256_mul_ps(blocked ? _mm256_loadu_ps(x + 8) : acc[r][1], s));
    }
}

/* o[r][0..16 or 8) += sum_j p[r][j] v[j][..] for n rows and n_pos positions; o rows lie head_dim apart.
 * ahead: as many bytes of the next block's K. */
INLINE void values_n(const uint32_t n, const bool wide, const kv_scheme scheme, const float *p, const char *v, uint32_t n_pos,
                     float *o, size_t head_dim, const char *ahead) {
    const size_t bytes = scheme == KV_Q4 ? 8 : bytes8(scheme) * (wide ? 2 : 1);
    /* Scales lie between the integers of K: 17 bytes for 16, 9 for 8. */
    const size_t ask = scheme == KV_Q8 || scheme == KV_Q4 ? bytes + 1 : bytes;
    __m256 acc[GROUP_ROWS][2];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = _mm256_loadu_ps(o + r * head_dim);
        acc[r][1] = wide ? _mm256_loadu_ps(o + r * head_dim + 8) : acc[r][0];
        row[r] = p + (size_t)r * ATTN_BLOCK;
    }
    uint32_t j = 0;
    for (; j + 2 <= n_pos; j += 2, v += 2 * bytes) {
        _mm_prefetch(ahead + j * ask, _MM_HINT_T1);
        if (scheme == KV_F32) _mm_prefetch(ahead + j * ask + 64, _MM_HINT_T1);
        fma_v(n, wide, scheme, acc, row, j, v);
        fma_v(n, wide, scheme, acc, row, j + 1, v + bytes);
    }
    if (j < n_pos) fma_v(n, wide, scheme, acc, row, j, v);
    UNROLL for (uint32_t r = 0; r < n; r++) {
        _mm256_storeu_ps(o + r * head_dim, acc[r][0]);
        if (wide) _mm256_storeu_ps(o + r * head_dim + 8, acc[r][1]);
    }
}

/* Each number of rows, and each scheme, gets loops of its own. */
#define BY_ROWS(n, call, scheme)                                                                                       \
    switch (n) {                                                                                                       \
    case 1: call(1, scheme); break;                                                                                    \
    case 2: call(2, scheme); break;                                                                                    \
    case 3: call(3, scheme); break;                                                                                    \
    case 4: call(4, scheme); break;                                                                                    \
    case 5: call(5, scheme); break;                                                                                    \
    default: call(6, scheme); break;                                                                                   \
    }
#define BY_SCHEME(n, call, scheme)                                                                                     \
    switch (scheme) {                                                                                                  \
    case KV_F16: BY_ROWS(n, call, KV_F16) break;                                                                       \
    case KV_F32: BY_ROWS(n, call, KV_F32) break;                                                                       \
    case KV_BF16: BY_ROWS(n, call, KV_BF16) break;                                                                     \
    case KV_Q8: BY_ROWS(n, call, KV_Q8) break;                                                                         \
    default: BY_ROWS(n, call, KV_Q4) break;                                                                            \
    }

static void scores_16(uint32_t n, kv_scheme scheme, const float *const *q, const char *k, uint32_t head_dim, float scale,
                      float *p, const v_ahead *ahead) {
#define SCORES(n, scheme) scores_n(n, scheme, q, k, head_dim, scale, p, ahead)
    BY_SCHEME(n, SCORES, scheme)
#undef SCORES
}

static void values_16(uint32_t n, uint32_t width, kv_scheme scheme, const float *p, const char *v, uint32_t n_pos, float *o,
                      size_t head_dim, const char *ahead) {
#define WIDE(n, scheme) values_n(n, true, scheme, p, v, n_pos, o, head_dim, ahead)
#define NARROW(n, scheme) values_n(n, false, scheme, p, v, n_pos, o, head_dim, ahead)
    if (width < KV_LANES) {
        BY_ROWS(n, NARROW, scheme)
    } else {
        BY_SCHEME(n, WIDE, scheme)
    }
#undef WIDE
#undef NARROW
}

#endif
