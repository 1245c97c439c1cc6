/* math_avx2.h - math_int.h for 8 values at once, operation by operation the same. */
#ifndef HD_KERNELS_AVX2_MATH_AVX2_H
#define HD_KERNELS_AVX2_MATH_AVX2_H

#include "kernels/math_int.h"

#include <immintrin.h>

static inline __m256 exp8(__m256 x) {
    const __m256 magic = _mm256_set1_ps(MATH_ROUND_F);
    x = _mm256_min_ps(_mm256_set1_ps(MATH_EXP_MAX), x); /* minps gives its second operand when one is NaN */
    x = _mm256_max_ps(_mm256_set1_ps(MATH_EXP_MIN), x);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(MATH_LOG2E_F), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATH_LN2_HI_F), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATH_LN2_LO_F), r);
    __m256 q = _mm256_fmadd_ps(r, _mm256_set1_ps(MATH_E4), _mm256_set1_ps(MATH_E3));
    q = _mm256_fmadd_ps(r, q, _mm256_set1_ps(MATH_E2));
    q = _mm256_fmadd_ps(r, q, _mm256_set1_ps(MATH_E1));
    q = _mm256_fmadd_ps(r, q, _mm256_set1_ps(MATH_E0));
    __m256 y = _mm256_add_ps(_mm256_set1_ps(1.0f), _mm256_fmadd_ps(_mm256_mul_ps(r, r), q, r));
    __m256i e = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    __m256i half = _mm256_srai_epi32(e, 1), rest = _mm256_sub_epi32(e, half), bias = _mm256_set1_epi32(127);
    y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

static inline __m256 weight8(__m256 x) { /* math_weightf */
    const __m256 magic = _mm256_set1_ps(MATH_ROUND_BIAS_F);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(MATH_LOG2E_F), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATH_LN2_HI_F), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATH_LN2_LO_F), r);
    __m256 q = _mm256_fmadd_ps(r, _mm256_set1_ps(MATH_E4), _mm256_set1_ps(MATH_E3));
    q = _mm256_fmadd_ps(r, q, _mm256_set1_ps(MATH_E2));
    q = _mm256_fmadd_ps(r, q, _mm256_set1_ps(MATH_E1));
    q = _mm256_fmadd_ps(r, q, _mm256_set1_ps(MATH_E0));
    __m256 y = _mm256_add_ps(_mm256_set1_ps(1.0f), _mm256_fmadd_ps(_mm256_mul_ps(r, r), q, r));
    y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(MATH_WEIGHT_MIN), _CMP_LT_OQ), y);
}

static inline __m256 tanh8(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 a = _mm256_andnot_ps(sign, x), u = _mm256_mul_ps(a, a);
    __m256 p = _mm256_fmadd_ps(u, _mm256_set1_ps(MATH_T4), _mm256_set1_ps(MATH_T3));
    p = _mm256_fmadd_ps(u, p, _mm256_set1_ps(MATH_T2));
    p = _mm256_fmadd_ps(u, p, _mm256_set1_ps(MATH_T1));
    p = _mm256_fmadd_ps(u, p, _mm256_set1_ps(MATH_T0));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(a, u), p, a);
    __m256 large = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), large));
    __m256 is_small = _mm256_cmp_ps(a, _mm256_set1_ps(MATH_TANH_SMALL), _CMP_LT_OQ);
    __m256 y = _mm256_blendv_ps(large, small, is_small);
    return _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, x));
}

static inline __m256 x_sigmoid8(__m256 x, __m256 z) {
    __m256 e = exp8(_mm256_or_ps(_mm256_set1_ps(-0.0f), z)); /* exp(-|z|) */
    __m256 up = _mm256_cmp_ps(z, _mm256_setzero_ps(), _CMP_GE_OQ);
    return _mm256_div_ps(_mm256_blendv_ps(_mm256_mul_ps(x, e), x, up), _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

static inline __m256 silu8(__m256 x) { return x_sigmoid8(x, x); }
static inline __m256 gelu8(__m256 x) {
    __m256 u = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(MATH_GELU_3), _mm256_set1_ps(MATH_GELU_1));
    return x_sigmoid8(x, _mm256_mul_ps(x, u));
}
static inline __m256 softcap8(__m256 x, __m256 cap) { return _mm256_mul_ps(cap, tanh8(_mm256_div_ps(x, cap))); }

static inline float sum8(__m256 v) { /* math_sum8 */
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float max8(__m256 v) {
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#endif
