/* kv_avx2.c - storing a position's key and value with 8-wide registers, to the bits of kv_generic.c. */
#include "kernels/attn_int.h"
#include "kernels/avx2/kv_turn_avx2.h"
#include "kernels/avx2/math_avx2.h"

#include <string.h>

/* ---- f16, bf16 ---- */

static __m128i to_bf16(__m256 x) {
    const __m256i low = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    __m256i u = _mm256_castps_si256(x), h = _mm256_srli_epi32(u, 16);
    h = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(low, _mm256_and_si256(h, one))), 16);
    h = _mm256_blendv_epi8(h, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

static __m128i to_16_bits(kv_scheme scheme, const float *x) {
    __m256 v = _mm256_loadu_ps(x);
    return scheme == KV_F16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : to_bf16(v);
}

static void store_16_bits(const kv_shape *s, char *k, char *v, uint32_t slot, const float *key, const float *value) {
    uint32_t b = kv_lanes(s);
    uint16_t *k16 = (uint16_t *)(k + kv_k_at(s, slot, 0)), lane[8];
    for (uint32_t d = 0; d < s->head_dim; d += 8) {
        _mm_storeu_si128((__m128i *)lane, to_16_bits(s->scheme, key + d));
        for (uint32_t i = 0; i < 8; i++) k16[(size_t)(d + i) * b] = lane[i];
        _mm_storeu_si128((__m128i *)((uint16_t *)(v + kv_v_at(s, slot, d)) + d % KV_LANES), to_16_bits(s->scheme, value + d));
    }
}

/* ---- q8, q4 ---- */

/* x / step to the nearest integer within [min, max]. */
static __m256i whole8(__m256 x, __m256 inv, __m256i min, __m256i max) {
    const __m256 magic = _mm256_set1_ps(MATH_ROUND_F);
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(_mm256_fmadd_ps(x, inv, magic)), _mm256_castps_si256(magic));
    return _mm256_min_epi32(_mm256_max_epi32(n, min), max);
}

static float q4_step(const __m256 *x, uint32_t n8, float extreme) {
    static const float fractions[] = KV_Q4_FRACTIONS;
    const __m256i min = _mm256_set1_epi32(-8), max = _mm256_set1_epi32(7);
    float best = -1, step = 0;
    for (size_t f = 0; f < sizeof fractions / sizeof *fractions; f++) {
        __m256 inv = _mm256_set1_ps(fractions[f] / extreme), xn = _mm256_setzero_ps(), nn = xn;
        for (uint32_t i = 0; i < n8; i++) {
            __m256 w = _mm256_cvtepi32_ps(whole8(x[i], inv, min, max));
            xn = _mm256_fmadd_ps(x[i], w, xn);
            nn = _mm256_fmadd_ps(w, w, nn);
        }
        float a = sum8(xn), b = sum8(nn), gain = a * (a / b);
        if (gain > best) {
            best = gain;
            step = a / b;
        }
    }
    return step;
}

static uint32_t max_u32(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* A block of n values: kv_generic.c. */
static uint16_t quantise(bool q4, const float *values, uint32_t n, int8_t *out) {
    const __m256i min = _mm256_set1_epi32(q4 ? -8 : -127), max = _mm256_set1_epi32(q4 ? 7 : 127);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 x[KV_BLOCK / 8], most = _mm256_setzero_ps(), least = most;
    __m256i mags = _mm256_setzero_si256();
    uint32_t n8 = n / 8, mag;
    float step;
    uint16_t h;
    for (uint32_t i = 0; i < n8; i++) {
        x[i] = _mm256_loadu_ps(values + 8 * i);
        mags = _mm256_max_epu32(mags, _mm256_castps_si256(_mm256_andnot_ps(sign, x[i])));
        most = _mm256_max_ps(x[i], most); /* the second operand where one is NaN */
        least = _mm256_max_ps(_mm256_xor_ps(sign, x[i]), least);
    }
    mag = max_u32(mags);
    step = math_from_bits_f(mag);
    if (mag > 0x7f800000) {
        h = 0x7e00;
    } else if (mag == 0x7f800000) {
        h = 0x7c00;
    } else {
        if (!q4) step /= 127;
        else if (step < KV_Q4_LEAST || step > KV_Q4_MOST) step /= 8;
        else step = q4_step(x, n8, max8(most) >= max8(least) ? step : -step);
        h = _cvtss_sh(step, _MM_FROUND_TO_NEAREST_INT);
    }
    if (!(h & 0x7fff) || (h & 0x7fff) >= 0x7c00) {
        memset(out, 0, n);
        return h;
    }
    __m256 inv = _mm256_set1_ps(1 / _cvtsh_ss(h));
    for (uint32_t i = 0; i < n8; i++) {
        __m256i w = whole8(x[i], inv, min, max);
        __m128i p = _mm_packs_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
        _mm_storel_epi64((__m128i *)(out + 8 * i), _mm_packs_epi16(p, p));
    }
    return h;
}

static void store_blocked(const kv_shape *s, char *k, char *v, uint32_t slot, const float *key, const float *value) {
    bool q4 = s->scheme == KV_Q4;
    for (uint32_t c = 0, d = 0; d < s->head_dim; c++, d += KV_BLOCK) {
        uint32_t n = s->head_dim - d < KV_BLOCK ? s->head_dim - d : KV_BLOCK;
        int8_t kn[KV_BLOCK], vn[KV_BLOCK];
        uint16_t h = quantise(q4, key + d, n, kn);
        memcpy(k + kv_k_scale_at(s, slot, c), &h, sizeof h);
        h = quantise(q4, value + d, n, vn);
        memcpy(v + kv_v_scale_at(s, slot, c), &h, sizeof h);
        kv_put_numbers(s, k + kv_k_at(s, slot, d), kv_lanes(s), v, slot, d, n, kn, vn);
    }
}

void kv_store_avx2(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value) {
    float turned[2][ATTN_HEAD_MAX];
    if (s->scheme == KV_Q4) {
        kv_turn_avx2(key, turned[0], s->head_dim, KV_TURN_STORED);
        kv_turn_avx2(value, turned[1], s->head_dim, KV_TURN_STORED);
        key = turned[0];
        value = turned[1];
    }
    if (kv_blocked(s)) store_blocked(s, k, v, slot, key, value);
    else if (s->scheme == KV_F32) kv_store_generic(s, k, v, slot, key, value);
    else store_16_bits(s, k, v, slot, key, value);
}
