/* mm_act.c - quantisation of activations, 8 values at a time; the records of mm_layout.h, bit for bit as generic. */
#include "kernels/avx2/mm_avx2.h"

/* 8 values from column c on, zeros past n_cols. */
static inline __m256 load8(const float *x, uint32_t c, uint32_t n_cols) {
    if (c + 8 <= n_cols) return _mm256_loadu_ps(x + c);
    if (c >= n_cols) return _mm256_setzero_ps();
    __m256i have = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n_cols - c)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_maskload_ps(x + c, have);
}

/* 32 values from column c on. */
TILE_INLINE void load32(const float *x, uint32_t c, uint32_t n_cols, __m256 v[4]) {
    if (c + 32 <= n_cols) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) v[i] = _mm256_loadu_ps(x + c + 8 * i);
    } else {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) v[i] = load8(x, c + 8 * i, n_cols);
    }
}

static inline __m256i magnitude(__m256 v) {
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}

/* As generic: the largest bit pattern decides, the reciprocal is 0 when nothing may be converted. */
static inline float scale_of(__m256i max, float top, float *inv) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    uint32_t bits;
    float amax;
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    bits = (uint32_t)_mm_cvtsi128_si32(m);
    memcpy(&amax, &bits, 4);
    *inv = 0;
    if (bits >= 0x7f800000u) {
        bits = 0x7fc00000u;
        memcpy(&amax, &bits, 4);
        return amax;
    }
    if (amax < MM_TINY) return 0;
    *inv = top / amax;
    return amax / top;
}

TILE_INLINE __m256i max_magnitude(const __m256 v[4]) {
    return _mm256_max_epu32(_mm256_max_epu32(magnitude(v[0]), magnitude(v[1])), _mm256_max_epu32(magnitude(v[2]), magnitude(v[3])));
}

static inline __m256i quant8(__m256 v, __m256 inv) { return _mm256_cvtps_epi32(_mm256_mul_ps(v, inv)); }

/* What packs_epi32 made of 32 numbers, to bytes in their order. */
TILE_INLINE __m256i bytes_of(__m256i a, __m256i b) {
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 32 values -> 32 int8 in order.  With inv 0 a value may be infinite, and 0 * inf is not 0. */
TILE_INLINE __m256i quant32(const __m256 v[4], float inv) {
    __m256 s = _mm256_set1_ps(inv);
    if (inv == 0) return _mm256_setzero_si256();
    __m256i a = _mm256_packs_epi32(quant8(v[0], s), quant8(v[1], s));
    __m256i b = _mm256_packs_epi32(quant8(v[2], s), quant8(v[3], s));
    return bytes_of(a, b);
}

/* int16 lane sums of each 16 values: dwords 0..3 of a 128-bit half hold (k%4 in {0,1}, {2,3}) pairs; add the four. */
static inline __m256i lane_sums(__m256i q) {
    __m256i p = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    p = _mm256_add_epi16(p, _mm256_shuffle_epi32(p, 0x4e));
    return _mm256_add_epi16(p, _mm256_shuffle_epi32(p, 0xb1));
}

void mm_avx2_act_i8_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I8_32, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i8_32 *a = (act_i8_32 *)((uint8_t *)dst + mm_act_at(ACT_I8_32, n_blocks, m, t, &step));
        const float *row = x + t * ldx;
        for (uint32_t b = 0; b < n_blocks; b++, a += step) {
            __m256 v[4];
            __m256i q;
            __m128i sums;
            float inv;
            int sum;
            load32(row, 32 * b, n_cols, v);
            a->scale = scale_of(max_magnitude(v), 127, &inv);
            q = quant32(v, inv);
            _mm256_storeu_si256((__m256i *)a->q, q);
            q = lane_sums(q);
            sums = _mm_add_epi16(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
            _mm_storeu_si32(a->init, _mm_mullo_epi16(sums, _mm_set1_epi16(-8)));
            sum = _mm_cvtsi128_si32(_mm_madd_epi16(sums, _mm_set1_epi16(1)));
            a->minus8 = -8 * sum;
            a->ssum = a->scale * (float)sum;
        }
    }
}

/* ---- where the largest value of a block may stand out.  Steps are worked out for 8 blocks at once: the way to one is long,
 * and a core sees little of the next block's meanwhile (together 0.75 of the time, measured). ---- */

enum { STEPS = 8 };
typedef struct {
    __m256i first;         /* largest magnitude of each block */
    __m256 inv, scale;     /* factor and step; a step of 0 or NaN: the factor is 0 */
    __m256i apart;         /* all bits: the largest stands out */
} steps;

/* The two largest magnitudes of some lanes, the same again if two have it; of the lanes of x and y that face each other. */
typedef struct {
    __m256i h, l;
} two;
TILE_INLINE two two_of(__m256i xh, __m256i xl, __m256i yh, __m256i yl) {
    return (two){_mm256_max_epu32(xh, yh), _mm256_max_epu32(_mm256_min_epu32(xh, yh), _mm256_max_epu32(xl, yl))};
}
TILE_INLINE two two_dwords(two x, two y) {
    return two_of(_mm256_unpacklo_epi32(x.h, y.h), _mm256_unpacklo_epi32(x.l, y.l), _mm256_unpackhi_epi32(x.h, y.h),
                  _mm256_unpackhi_epi32(x.l, y.l));
}
TILE_INLINE two two_qwords(two x, two y) {
    return two_of(_mm256_unpacklo_epi64(x.h, y.h), _mm256_unpacklo_epi64(x.l, y.l), _mm256_unpackhi_epi64(x.h, y.h),
                  _mm256_unpackhi_epi64(x.l, y.l));
}

/* Of n blocks of a row from b on, up to 8.  Whether a column stands out is as good as random: so
 * no branch depends on it. */
static inline void steps_of(steps *s, const float *row, uint32_t n_cols, uint32_t b, uint32_t n) {
    two t[STEPS], half[2];
    __m256 first, second, out, far, ref, top, none;
    __m256i big;
    for (uint32_t i = 0; i < n; i++) {
        __m256 v[4];
        __m256i m[4];
        load32(row, 32 * (b + i), n_cols, v);
        UNROLL
        for (int j = 0; j < 4; j++) m[j] = magnitude(v[j]);
        t[i] = two_of(_mm256_max_epu32(m[0], m[1]), _mm256_min_epu32(m[0], m[1]), _mm256_max_epu32(m[2], m[3]),
                      _mm256_min_epu32(m[2], m[3]));
    }
    for (uint32_t i = n; i < STEPS; i++) t[i] = t[0];
    UNROLL
    for (int i = 0; i < 2; i++) /* lanes of 4 blocks, twice */
        half[i] = two_qwords(two_dwords(t[4 * i], t[4 * i + 1]), two_dwords(t[4 * i + 2], t[4 * i + 3]));
    t[0] = two_of(_mm256_permute2x128_si256(half[0].h, half[1].h, 0x20), _mm256_permute2x128_si256(half[0].l, half[1].l, 0x20),
                  _mm256_permute2x128_si256(half[0].h, half[1].h, 0x31), _mm256_permute2x128_si256(half[0].l, half[1].l, 0x31));
    first = _mm256_castsi256_ps(t[0].h), second = _mm256_castsi256_ps(t[0].l);
    out = _mm256_cmp_ps(first, _mm256_mul_ps(second, _mm256_set1_ps(2)), _CMP_GT_OQ);
    far = _mm256_andnot_ps(_mm256_cmp_ps(first, _mm256_mul_ps(second, _mm256_set1_ps(128)), _CMP_LT_OQ), out);
    ref = _mm256_blendv_ps(first, second, _mm256_andnot_ps(far, out));
    top = _mm256_blendv_ps(_mm256_set1_ps(127), _mm256_set1_ps(MM_TOP), far);
    big = _mm256_cmpgt_epi32(t[0].h, _mm256_set1_epi32(0x7f7fffff));
    none = _mm256_or_ps(_mm256_cmp_ps(first, _mm256_set1_ps(MM_TINY), _CMP_LT_OQ), _mm256_castsi256_ps(big));
    s->first = t[0].h;
    s->inv = _mm256_andnot_ps(none, _mm256_div_ps(top, ref));
    s->scale = _mm256_or_ps(_mm256_andnot_ps(none, _mm256_div_ps(ref, top)),
                            _mm256_castsi256_ps(_mm256_and_si256(big, _mm256_set1_epi32(0x7fc00000))));
    s->apart = _mm256_castps_si256(_mm256_andnot_ps(none, out));
}

/* 32 words as packs_epi32 orders them. */
TILE_INLINE void words_of(const __m256 v[4], __m256 inv, __m256i q[2]) {
    q[0] = _mm256_packs_epi32(quant8(v[0], inv), quant8(v[1], inv));
    q[1] = _mm256_packs_epi32(quant8(v[2], inv), quant8(v[3], inv));
}
/* n * sum of 32 words. */
TILE_INLINE int sum_times(const __m256i q[2], const int16_t n) {
    __m256i v = _mm256_add_epi32(_mm256_madd_epi16(q[0], _mm256_set1_epi16(n)), _mm256_madd_epi16(q[1], _mm256_set1_epi16(n)));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

/* Block b of a row, of which step i of s is. */
TILE_INLINE void top_block(act_i8_32 *a, const steps *s, uint32_t i, const float *row, uint32_t n_cols, uint32_t b) {
    const __m256i first = _mm256_set1_epi32(((const int32_t *)&s->first)[i]);
    const __m256 inv = _mm256_set1_ps(((const float *)&s->inv)[i]);
    const uint32_t apart = ((const uint32_t *)&s->apart)[i];
    __m256 v[4];
    __m256i is[4], q[2];
    uint32_t bits, at;
    int large, up;
    memcpy(&a->scale, (const float *)&s->scale + i, 4);
    load32(row, 32 * b, n_cols, v);
    UNROLL
    for (int j = 0; j < 4; j++) is[j] = _mm256_cmpeq_epi32(magnitude(v[j]), first);
    at = (uint32_t)__builtin_ctz(
        (uint32_t)_mm256_movemask_epi8(bytes_of(_mm256_packs_epi32(is[0], is[1]), _mm256_packs_epi32(is[2], is[3]))));
    words_of(v, inv, q);
    _mm256_storeu_si256((__m256i *)a->q, bytes_of(q[0], q[1]));
    a->minus8 = sum_times(q, -8);
    /* The largest again by itself: its byte above is right only where it does not stand out. */
    large = _mm_cvtss_si32(_mm_mul_ss(_mm_load_ss(row + 32 * b + at), _mm256_castps256_ps128(inv)));
    up = (large + 64) >> 7 & (int)apart;
    a->q[at] = (int8_t)(large - 128 * up);
    bits = ((uint32_t)up & 255) << 8 * (at % 4);
    memcpy(a->top, &bits, 4);
    a->at = 32 * (at / 4) & apart;
}

void mm_avx2_act_top_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I8_32_TOP, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i8_32 *a = (act_i8_32 *)((uint8_t *)dst + mm_act_at(ACT_I8_32_TOP, n_blocks, m, t, &step));
        const float *row = x + t * ldx;
        for (uint32_t b = 0, n; b < n_blocks; b += n) {
            steps s;
            n = n_blocks - b < STEPS ? n_blocks - b : STEPS;
            steps_of(&s, row, n_cols, b, n);
            for (uint32_t i = 0; i < n; i++, a += step) {
                if (((const float *)&s.inv)[i] > 0) {
                    top_block(a, &s, i, row, n_cols, b + i);
                } else {
                    memset(a, 0, sizeof *a);
                    memcpy(&a->scale, (const float *)&s.scale + i, 4);
                }
            }
        }
    }
}

/* Words as words_of has them. */
TILE_INLINE void put_words(act_i16_32 *a, const __m256i q[2]) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    UNROLL
    for (int i = 0; i < 2; i++)
        _mm256_storeu_si256((__m256i *)(a->q + 16 * i), _mm256_shuffle_epi8(_mm256_permute4x64_epi64(q[i], 0xd8), order));
    a->minus128 = sum_times(q, -128);
}

void mm_avx2_act_i16_top(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I16_TOP, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i16_32 *a = (act_i16_32 *)((uint8_t *)dst + mm_act_at(ACT_I16_TOP, n_blocks, m, t, &step));
        const float *row = x + t * ldx;
        for (uint32_t b = 0, n; b < n_blocks; b += n) {
            steps s;
            n = n_blocks - b < STEPS ? n_blocks - b : STEPS;
            steps_of(&s, row, n_cols, b, n);
            for (uint32_t i = 0; i < n; i++, a += step) {
                const float inv = ((const float *)&s.inv)[i];
                __m256 v[4];
                __m256i q[2];
                load32(row, 32 * (b + i), n_cols, v);
                words_of(v, _mm256_set1_ps(inv), q);
                if (inv == 0) q[0] = q[1] = _mm256_setzero_si256(); /* as in quant32 */
                put_words(a, q);
                memcpy(&a->scale, (const float *)&s.scale + i, 4);
            }
        }
    }
}

void mm_avx2_act_i8_256(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I8_256, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i8_256 *a = (act_i8_256 *)((uint8_t *)dst + mm_act_at(ACT_I8_256, n_blocks, m, t, &step));
        const float *row = x + t * ldx;
        for (uint32_t b = 0; b < n_blocks; b++, a += step) {
            __m256i max = _mm256_setzero_si256();
            float inv;
            for (uint32_t i = 0; i < 8; i++) {
                __m256 v[4];
                load32(row, 256 * b + 32 * i, n_cols, v);
                max = _mm256_max_epu32(max, max_magnitude(v));
            }
            a->scale = scale_of(max, 127, &inv);
            memset(a->pad, 0, sizeof a->pad);
            for (uint32_t s = 0; s < 8; s++) {
                __m256 v[4];
                __m256i q, sums;
                int s0, s1;
                load32(row, 256 * b + 32 * s, n_cols, v);
                q = quant32(v, inv);
                _mm256_storeu_si256((__m256i *)(a->q + 32 * s), q);
                q = lane_sums(q);
                sums = _mm256_mullo_epi16(q, _mm256_set1_epi16(-32));
                _mm_storeu_si32(a->init[2 * s], _mm256_castsi256_si128(sums));
                _mm_storeu_si32(a->init[2 * s + 1], _mm256_extracti128_si256(sums, 1));
                sums = _mm256_madd_epi16(q, _mm256_set1_epi16(1));
                s0 = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
                s1 = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
                a->sum16[2 * s] = (int16_t)s0;
                a->sum16[2 * s + 1] = (int16_t)s1;
                a->minus32[2 * s] = -32 * s0;
                a->minus32[2 * s + 1] = -32 * s1;
                a->sum32[s] = (int16_t)(s0 + s1);
            }
        }
    }
}

void mm_avx2_act_i16_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I16_32, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i16_32 *a = (act_i16_32 *)((uint8_t *)dst + mm_act_at(ACT_I16_32, n_blocks, m, t, &step));
        const float *row = x + t * ldx;
        for (uint32_t b = 0; b < n_blocks; b++, a += step) {
            __m256 v[4];
            __m256i q[2];
            float inv;
            load32(row, 32 * b, n_cols, v);
            a->scale = scale_of(max_magnitude(v), 127, &inv);
            words_of(v, _mm256_set1_ps(inv), q);
            if (inv == 0) q[0] = q[1] = _mm256_setzero_si256(); /* as in quant32 */
            put_words(a, q);
        }
    }
}

void mm_avx2_act_f32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n = mm_act_blocks(ACT_F32, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        float *a = (float *)((uint8_t *)dst + mm_act_at(ACT_F32, n, m, t, &step));
        const float *row = x + t * ldx;
        if (step == 1)
            memcpy(a, row, n_cols * sizeof *a);
        else
            for (uint32_t c = 0; c < n_cols; c++) a[(size_t)c * step] = row[c];
        for (uint32_t c = n_cols; c < n; c++) a[(size_t)c * step] = 0;
    }
}
