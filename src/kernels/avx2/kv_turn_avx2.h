/* kv_turn_avx2.h - kv_turn of kv_int.h with 8-wide registers, to the same bits. */
#ifndef HD_KERNELS_AVX2_KV_TURN_AVX2_H
#define HD_KERNELS_AVX2_KV_TURN_AVX2_H

#include "kernels/kv_int.h"

#include <immintrin.h>

/* Distances 1, 2, 4: the sum where the bit of the index is 0, the difference where it is 1. */
static inline __m256 hadamard8(__m256 x) {
    const __m256 d1 = _mm256_castsi256_ps(_mm256_set1_epi64x(INT64_MIN));
    const __m256 d2 = _mm256_castsi256_ps(_mm256_set_epi32(INT32_MIN, INT32_MIN, 0, 0, INT32_MIN, INT32_MIN, 0, 0));
    const __m256 d4 = _mm256_castsi256_ps(_mm256_set_epi32(INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, 0, 0, 0, 0));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0xb1), _mm256_xor_ps(x, d1));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0x4e), _mm256_xor_ps(x, d2));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 1), _mm256_xor_ps(x, d4));
}

static inline void hadamard_step(__m256 *a, __m256 *b) {
    __m256 sum = _mm256_add_ps(*a, *b);
    *b = _mm256_sub_ps(*a, *b);
    *a = sum;
}

/* The signs of values j .. j + 7 of a run. */
static inline __m256 turn_signs(uint32_t j) {
    const __m256i at = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24); /* value i's bit moves up to the sign's place */
    __m256i bits = _mm256_sllv_epi32(_mm256_set1_epi32((int32_t)(KV_TURN_SIGNS >> j)), at);
    return _mm256_and_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(-0.0f));
}

static inline void kv_turn_avx2(const float *x, float *out, uint32_t n, kv_turn_way way) {
    for (uint32_t i = 0, w; i < n; i += w) {
        __m256 v[4], factor;
        w = kv_turn_width(n - i);
        factor = _mm256_set1_ps(kv_turn_factor(w, way));
        for (uint32_t j = 0; j < w / 8; j++) {
            v[j] = _mm256_loadu_ps(x + i + 8 * j);
            if (way != KV_TURN_BACK) v[j] = _mm256_xor_ps(v[j], turn_signs(8 * j));
            v[j] = hadamard8(v[j]);
        }
        if (w >= 16) hadamard_step(&v[0], &v[1]);
        if (w == 32) {
            hadamard_step(&v[2], &v[3]);
            hadamard_step(&v[0], &v[2]);
            hadamard_step(&v[1], &v[3]);
        }
        for (uint32_t j = 0; j < w / 8; j++) {
            v[j] = _mm256_mul_ps(v[j], factor);
            if (way == KV_TURN_BACK) v[j] = _mm256_xor_ps(v[j], turn_signs(8 * j));
            _mm256_storeu_ps(out + i + 8 * j, v[j]);
        }
    }
}

#endif
