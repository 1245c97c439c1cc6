/* vec_avx2.c - vec_generic.c 8 lanes at a time, to the same bits.  What is left after the last 8 goes through the same
 * one-value functions as there. */
#include "kernels/avx2/math_avx2.h"
#include "kernels/vec_int.h"

/* All-ones in the first n of 8 lanes. */
static __m256i first(size_t n) {
    static const int32_t m[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(m + 8 - n));
}

static void rms_norm(float *out, const float *x, const float *w, size_t n, float eps) {
    __m256 lane = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        lane = _mm256_fmadd_ps(v, v, lane);
    }
    if (i < n) { /* lanes past the end add +0, which changes no sum of squares */
        __m256 v = _mm256_maskload_ps(x + i, first(n - i));
        lane = _mm256_fmadd_ps(v, v, lane);
    }
    float inv = 1.0f / sqrtf(sum8(lane) / (float)n + eps);
    __m256 inv8 = _mm256_set1_ps(inv);
    i = 0;
    if (w) {
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i,
                             _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), inv8), _mm256_loadu_ps(w + i)));
        for (; i < n; i++) out[i] = x[i] * inv * w[i];
    } else {
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), inv8));
        for (; i < n; i++) out[i] = x[i] * inv;
    }
}

static void add(float *x, const float *y, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++) x[i] += y[i];
}

static void scale(float *x, float s, size_t n) {
    __m256 s8 = _mm256_set1_ps(s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), s8));
    for (; i < n; i++) x[i] *= s;
}

static void silu_mul(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(silu8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
    for (; i < n; i++) gate[i] = math_siluf(gate[i]) * up[i];
}

static void gelu_mul(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(gelu8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
    for (; i < n; i++) gate[i] = math_geluf(gate[i]) * up[i];
}

static void softcap(float *x, float cap, size_t n) {
    __m256 cap8 = _mm256_set1_ps(cap);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, softcap8(_mm256_loadu_ps(x + i), cap8));
    for (; i < n; i++) x[i] = math_softcapf(x[i], cap);
}

static void rope(float *x, const float *cs, uint32_t n_rot, bool neox) {
    uint32_t half = n_rot / 2, i = 0;
    if (neox) {
        for (; i + 8 <= half; i += 8) {
            __m256 lo = _mm256_loadu_ps(cs + 2 * i), hi = _mm256_loadu_ps(cs + 2 * i + 8); /* c0 s0 c1 s1 ... */
            __m256 c = _mm256_shuffle_ps(lo, hi, 0x88), s = _mm256_shuffle_ps(lo, hi, 0xdd);
            c = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(c), 0xd8));
            s = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(s), 0xd8));
            __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
            _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + i + half, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
        }
        for (; i < half; i++) math_rotate(&x[i], &x[i + half], cs[2 * i], cs[2 * i + 1]);
    } else {
        for (; i + 4 <= half; i += 4) {
            __m256 v = _mm256_loadu_ps(x + 2 * i), t = _mm256_loadu_ps(cs + 2 * i);
            __m256 swapped = _mm256_permute_ps(v, 0xb1);
            __m256 ys = _mm256_mul_ps(swapped, _mm256_movehdup_ps(t));
            _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(v, _mm256_moveldup_ps(t), ys)); /* even -, odd + */
        }
        for (; i < half; i++) math_rotate(&x[2 * i], &x[2 * i + 1], cs[2 * i], cs[2 * i + 1]);
    }
}

/* math_sincos for four angles. */
static void turns(float *cs, double pos, const double *freq, float scale, uint32_t n) {
    const __m256d round = _mm256_set1_pd(MATH_ROUND_D);
    const __m128 minus = _mm_set1_ps(-0.0f), scale4 = _mm_set1_ps(scale);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256d x = _mm256_mul_pd(_mm256_set1_pd(pos), _mm256_loadu_pd(freq + i)), ps = _mm256_setzero_pd(), pc = ps;
        __m256d t = _mm256_fmadd_pd(x, _mm256_set1_pd(MATH_TWO_OVER_PI), round), whole = _mm256_sub_pd(t, round);
        __m256d r = _mm256_fmadd_pd(whole, _mm256_set1_pd(-MATH_PI_2_LO), _mm256_fmadd_pd(whole, _mm256_set1_pd(-MATH_PI_2_HI), x));
        __m256d z = _mm256_mul_pd(r, r);
        for (int j = MATH_SIN_TERMS - 1; j >= 0; j--) ps = _mm256_fmadd_pd(ps, z, _mm256_set1_pd(math_sin_c[j]));
        for (int j = MATH_COS_TERMS - 1; j >= 0; j--) pc = _mm256_fmadd_pd(pc, z, _mm256_set1_pd(math_cos_c[j]));
        __m128 sn = _mm256_cvtpd_ps(_mm256_fmadd_pd(_mm256_mul_pd(r, z), ps, r));
        __m128 cn = _mm256_cvtpd_ps(_mm256_fmadd_pd(z, pc, _mm256_set1_pd(1.0)));
        /* quarter turns, out of the low words of t: odd ones swap; 2 and 3 turn the sine's sign, 1 and 2 the cosine's */
        __m256 words = _mm256_castpd_ps(t);
        __m128i q = _mm_castps_si128(_mm_shuffle_ps(_mm256_castps256_ps128(words), _mm256_extractf128_ps(words, 1), 0x88));
        __m128 odd = _mm_castsi128_ps(_mm_slli_epi32(q, 31));
        __m128 s = _mm_blendv_ps(sn, cn, odd), c = _mm_blendv_ps(cn, sn, odd);
        s = _mm_xor_ps(s, _mm_and_ps(minus, _mm_castsi128_ps(_mm_slli_epi32(q, 30))));
        c = _mm_xor_ps(c, _mm_and_ps(minus, _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(q, _mm_set1_epi32(1)), 30))));
        s = _mm_mul_ps(s, scale4);
        c = _mm_mul_ps(c, scale4);
        _mm_storeu_ps(cs + 2 * i, _mm_unpacklo_ps(c, s));
        _mm_storeu_ps(cs + 2 * i + 4, _mm_unpackhi_ps(c, s));
    }
    math_turns(cs + 2 * i, pos, freq + i, scale, n - i);
}

/* The maximum of what is not NaN, -inf if there is nothing: maxps gives its second operand when one is NaN. */
static float max_of(const float *x, size_t n) {
    __m256 m[4];
    size_t i = 0;
    for (int j = 0; j < 4; j++) m[j] = _mm256_set1_ps(-INFINITY);
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) m[j] = _mm256_max_ps(_mm256_loadu_ps(x + i + 8 * j), m[j]);
    float max = max8(_mm256_max_ps(_mm256_max_ps(m[0], m[1]), _mm256_max_ps(m[2], m[3])));
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static uint32_t argmax(const float *x, size_t n) {
    float max = max_of(x, n);
    __m256 max8 = _mm256_set1_ps(max);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        int hit = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), max8, _CMP_EQ_OQ));
        if (hit) return (uint32_t)i + (uint32_t)__builtin_ctz((unsigned)hit);
    }
    for (; i < n; i++)
        if (x[i] == max) return (uint32_t)i;
    return 0;
}

/* Few are: 32 are looked at together, and those of a hit one by one. */
static size_t between(const float *x, size_t n, float lo, float hi, uint32_t *ids) {
    const __m256 lo8 = _mm256_set1_ps(lo), hi8 = _mm256_set1_ps(hi);
    size_t found = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t hits = 0;
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            __m256 in = _mm256_and_ps(_mm256_cmp_ps(v, lo8, _CMP_GT_OQ), _mm256_cmp_ps(v, hi8, _CMP_LE_OQ));
            hits |= (uint32_t)_mm256_movemask_ps(in) << 8 * j;
        }
        for (; hits; hits &= hits - 1) ids[found++] = (uint32_t)i + (uint32_t)__builtin_ctz(hits);
    }
    for (; i < n; i++)
        if (x[i] > lo && x[i] <= hi) ids[found++] = (uint32_t)i;
    return found;
}

static double sum_exp(const float *x, size_t n, float ref, float t) {
    const __m256 ref8 = _mm256_set1_ps(ref), t8 = _mm256_set1_ps(t);
    __m256d lo = _mm256_setzero_pd(), hi = lo; /* lanes 0-3, 4-7 */
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_sub_ps(_mm256_loadu_ps(x + i), ref8), e;
        e = exp8(t == 1 ? v : _mm256_div_ps(v, t8));
        lo = _mm256_add_pd(lo, _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
        hi = _mm256_add_pd(hi, _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
    }
    double l[8];
    _mm256_storeu_pd(l, lo);
    _mm256_storeu_pd(l + 4, hi);
    for (; i < n; i++) l[i % 8] += (double)math_expf((x[i] - ref) / t);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

const vec_ops vec_avx2 = {
    .rms_norm = rms_norm,
    .add = add,
    .scale = scale,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .softcap = softcap,
    .rope = rope,
    .turns = turns,
    .argmax = argmax,
    .sum_exp = sum_exp,
    .max_of = max_of,
    .between = between,
};
