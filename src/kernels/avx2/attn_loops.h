/* attn_loops.h - the two inner loops of attn_avx2.c: scores of 16 positions, values of 16 dimensions.
 *
 * Rows are taken up to 6 at a time so that 12 accumulators stay in registers while K or V streams by; up to 2 rows take two
 * such tiles of positions or dimensions at once, as so few sums would wait for each other.  Everything is widened to f32 on
 * the fly: beside the multiplications of one group of rows the conversion costs little.  Where several groups share a read,
 * q8 and q4 are widened once for all (attn_avx2.c), and come here as f32 with block scales apart.
 * `n`, `m`, `wide` and the scheme are constants in every use but the rare narrow one, so each gets loops of its own.
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

/* acc[r] += x[r][at] (y0, y1). */
INLINE void fma_pair(const uint32_t n, const bool wide, __m256 acc[][2], const float *const *x, size_t at, __m256 y0,
                     __m256 y1) {
    UNROLL for (uint32_t r = 0; r < n; r++) {
        __m256 b = _mm256_broadcast_ss(x[r] + at);
        acc[r][0] = _mm256_fmadd_ps(b, y0, acc[r][0]);

        if (wide) {
            acc[r][1] = _mm256_fmadd_ps(b, y1, acc[r][1]);

        }
        IN_ORDER;
    }
}

/* Dimensions d and d + 1 of 16 positions at k, and of another 16 at k + step for m = 2. */
INLINE void fma_k(const uint32_t n, const uint32_t m, const kv_scheme scheme, __m256 acc[][GROUP_ROWS][2],
                  const float *const *q, size_t d, const char *k, size_t step) {
    const size_t b = bytes8(scheme);
    if (scheme == KV_Q4) {
        UNROLL for (uint32_t i = 0; i < m; i++) {
            __m128i x = _mm_loadu_si128((const __m128i *)(k + i * step)), low = nibbles(x, false), high = nibbles(x, true);
            fma_pair(n, true, acc[i], q, d, floats8(low), floats8(_mm_unpackhi_epi64(low, low)));
            fma_pair(n, true, acc[i], q, d + 1, floats8(high), floats8(_mm_unpackhi_epi64(high, high)));
        }
        return;
    }
    UNROLL for (uint32_t i = 0; i < m; i++)
        fma_pair(n, true, acc[i], q, d, load8(scheme, k + i * step), load8(scheme, k + i * step + b));
    UNROLL for (uint32_t i = 0; i < m; i++)
        fma_pair(n, true, acc[i], q, d + 1, load8(scheme, k + i * step + 2 * b), load8(scheme, k + i * step + 3 * b));
}

/* 16 (or 8) dimensions of position j at v, and another 16 at v + step for m = 2. */
INLINE void fma_v(const uint32_t n, const uint32_t m, const bool wide, const kv_scheme scheme, __m256 acc[][GROUP_ROWS][2],
                  const float *const *p, size_t j, const char *v, size_t step) {
    UNROLL for (uint32_t i = 0; i < m; i++, v += step) {
        if (scheme == KV_Q4) {
            __m128i x = _mm_loadl_epi64((const __m128i *)v);
            fma_pair(n, wide, acc[i], p, j, floats8(nibbles(x, false)), wide ? floats8(nibbles(x, true)) : _mm256_setzero_ps());
        } else {
            fma_pair(n, wide, acc[i], p, j, load8(scheme, v), wide ? load8(scheme, v + bytes8(scheme)) : _mm256_setzero_ps());
        }
    }
}

/* K of 16 positions (and 16 more, `step` bytes on), and what to ask for meanwhile: V of the same positions, chunk by chunk of
 * 16 dimensions. */
typedef struct {
    const char *k, *block;     /* block: where the first block lies, which has its scales at the end; k, unless widened */
    size_t step;               /* to the next 16 positions */
    uint32_t pair_bytes, gap;  /* of 2 dimensions in a block; between the integers of two blocks at k */
    const char *ahead, *ahead_scales;
    size_t ahead_chunk, ahead_block; /* to the next chunk of a block; what a block has besides its chunks */
} k_tile;

/* V for 2 dimensions of K, which have b bytes, line by line; d counts within the chunk. */
INLINE void ask_v(const size_t b, const char *at, uint32_t d) {
    if (b < 64 && d & (128 / b - 1)) return;
    at += d / 2 * b;
    for (size_t i = 0; i < b; i += 64) _mm_prefetch(at + i, _MM_HINT_T1);
}

/* p[r][0..16m) = scale * sum_d q[r][d] k[d][0..16m) for n rows; p rows lie ATTN_BLOCK apart. */
INLINE void scores_n(const uint32_t n, const uint32_t m, const kv_scheme scheme, const bool blocked, const float *const *q,
                     const k_tile *t, uint32_t head_dim, float scale, float *p) {
    const char *k = t->k, *scales = t->block, *ahead = t->ahead, *ahead_scales = t->ahead_scales;
    __m256 acc[2][GROUP_ROWS][2];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        acc[0][r][0] = acc[0][r][1] = acc[1][r][0] = acc[1][r][1] = _mm256_setzero_ps();
        row[r] = q[r];
    }
    for (uint32_t c = 0; c < head_dim; c += KV_LANES, ahead += t->ahead_chunk) {
        uint32_t width = head_dim - c < KV_LANES ? 8 : KV_LANES;
        for (uint32_t d = 0; d < width; d += 2, k += 4 * bytes8(scheme)) {
            if (blocked && scheme == KV_F32) ask_v(t->pair_bytes == 32 ? 32 : 16, ahead, d);
            else ask_v(4 * m * bytes8(scheme), ahead, d);
            fma_k(n, m, scheme, acc, row, c + d, k, t->step);
        }
        if (blocked && (c % KV_BLOCK || c + KV_LANES >= head_dim)) { /* the block's sums join those of the blocks before */
            scales += (c % KV_BLOCK + width) / 2 * t->pair_bytes;
            UNROLL for (uint32_t i = 0; i < m; i++) {
                __m256 s0 = halves8(scales + i * t->step), s1 = halves8(scales + i * t->step + 16);
                UNROLL for (uint32_t r = 0; r < n; r++) {
                    float *x = p + (size_t)r * ATTN_BLOCK + i * KV_LANES;
                    __m256 x0 = c < KV_BLOCK ? _mm256_setzero_ps() : _mm256_loadu_ps(x);
                    __m256 x1 = c < KV_BLOCK ? _mm256_setzero_ps() : _mm256_loadu_ps(x + 8);
                    _mm256_storeu_ps(x, _mm256_fmadd_ps(acc[i][r][0], s0, x0));
                    _mm256_storeu_ps(x + 8, _mm256_fmadd_ps(acc[i][r][1], s1, x1));
                    acc[i][r][0] = acc[i][r][1] = _mm256_setzero_ps();
                }
            }
            _mm_prefetch(ahead_scales, _MM_HINT_T1);
            ahead_scales += 2 * t->ahead_chunk + t->ahead_block;
            ahead += t->ahead_block;
            scales += KV_LANES * KV_SCALE_BYTES;
            k += t->gap;
        }
    }
    __m256 s = _mm256_set1_ps(scale);
    UNROLL for (uint32_t i = 0; i < m; i++)
        UNROLL for (uint32_t r = 0; r < n; r++) {
            float *x = p + (size_t)r * ATTN_BLOCK + i * KV_LANES;
            _mm256_storeu_ps(x, _mm256_mul_ps(blocked ? _mm256_loadu_ps(x) : acc[i][r][0], s));
            _mm256_storeu_ps(x + 8, _mm256_mul_ps(blocked ? _mm256_loadu_ps(x + 8) : acc[i][r][1], s));
        }
}

/* V of a run of positions: 16 (or 8) dimensions, and 16 more `step` bytes on. */
typedef struct {
    const char *v, *ahead; /* ahead: the next block's K */
    size_t step, ask;      /* ask: bytes of K for 2 positions */
    uint32_t n_pos;
} v_tile;

/* o[r][0..16m, or 8) += sum_j p[r][j] v[j][..] for n rows; o rows lie head_dim apart. */
INLINE void values_n(const uint32_t n, const uint32_t m, const bool wide, const kv_scheme scheme, const float *p,
                     const v_tile *t, float *o, size_t head_dim) {
    const size_t bytes = scheme == KV_Q4 ? 8 : bytes8(scheme) * (wide ? 2 : 1);
    const char *v = t->v, *ahead = t->ahead;
    __m256 acc[2][GROUP_ROWS][2];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        UNROLL for (uint32_t i = 0; i < m; i++) {
            acc[i][r][0] = _mm256_loadu_ps(o + r * head_dim + i * KV_LANES);
            acc[i][r][1] = wide ? _mm256_loadu_ps(o + r * head_dim + i * KV_LANES + 8) : acc[i][r][0];
        }
        row[r] = p + (size_t)r * ATTN_BLOCK;
    }
    /* Each line once: one that is left out is waited for, and that costs more than all the rest of its block. */
    const char *end = ahead + t->n_pos * t->ask / 2;
    const size_t most = 2 * m * bytes < 64 ? 64 : 2 * m * bytes, step = t->ask < most ? t->ask : most;
    uint32_t j = 0;
    for (; j + 2 <= t->n_pos; j += 2, v += 2 * bytes, ahead += step) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        if (scheme != KV_F32 || t->ask > 64) /* f32 may be widened q8 or q4 */
            for (size_t i = 64; i < most; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T1);
        fma_v(n, m, wide, scheme, acc, row, j, v, t->step);
        fma_v(n, m, wide, scheme, acc, row, j + 1, v + bytes, t->step);
    }
    for (; ahead < end; ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
    if (j < t->n_pos) fma_v(n, m, wide, scheme, acc, row, j, v, t->step);
    UNROLL for (uint32_t r = 0; r < n; r++)
        UNROLL for (uint32_t i = 0; i < m; i++) {
            _mm256_storeu_ps(o + r * head_dim + i * KV_LANES, acc[i][r][0]);
            if (wide) _mm256_storeu_ps(o + r * head_dim + i * KV_LANES + 8, acc[i][r][1]);
        }
}

/* Each number of rows and tiles, and each scheme, gets loops of its own. */
enum { PAIR_ROWS = 2 /* so many rows at most take two tiles at once; 3 rows spill */ };
#define BY_ROWS(n, m, call, ...)                                                                                       \
    switch ((n) + ((m) > 1 ? GROUP_ROWS : 0)) {                                                                        \
    case 1: call(1, 1, __VA_ARGS__); break;                                                                            \
    case 2: call(2, 1, __VA_ARGS__); break;                                                                            \
    case 3: call(3, 1, __VA_ARGS__); break;                                                                            \
    case 4: call(4, 1, __VA_ARGS__); break;                                                                            \
    case 5: call(5, 1, __VA_ARGS__); break;                                                                            \
    case 6: call(6, 1, __VA_ARGS__); break;                                                                            \
    case 1 + GROUP_ROWS: call(1, 2, __VA_ARGS__); break;                                                               \
    default: call(2, 2, __VA_ARGS__); break;                                                                           \
    }

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

static void values_16(uint32_t n, uint32_t m, uint32_t width, kv_scheme scheme, const float *p, const v_tile *t, float *o,
                      size_t head_dim) {
#define WIDE(n, m, scheme) values_n(n, m, true, scheme, p, t, o, head_dim)
#define NARROW(n, m, scheme) values_n(n, 1, false, scheme, p, t, o, head_dim)
    if (width < KV_LANES) {
        BY_ROWS(n, 1, NARROW, scheme)
        return;
    }
    switch (scheme) {
    case KV_F16: BY_ROWS(n, m, WIDE, KV_F16) break;
    case KV_BF16: BY_ROWS(n, m, WIDE, KV_BF16) break;
    case KV_Q8: BY_ROWS(n, m, WIDE, KV_Q8) break;
    case KV_Q4: BY_ROWS(n, m, WIDE, KV_Q4) break;
    default: BY_ROWS(n, m, WIDE, KV_F32) break;
    }
#undef WIDE
#undef NARROW
}

#endif
