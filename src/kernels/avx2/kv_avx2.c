/* kv_avx2.c - storing a position's key and value with 8-wide registers, to the bits of kv_generic.c. */
#include "kernels/attn_int.h"
#include "kernels/avx2/math_avx2.h"

#include <string.h>

static void store_f16(const kv_shape *s, char *k, char *v, uint32_t slot, const float *key, const float *value) {
    uint32_t b = kv_lanes(s);
    uint16_t *k16 = (uint16_t *)(k + kv_k_at(s, slot, 0)), lane[8];
    for (uint32_t d = 0; d < s->head_dim; d += 8) {
        _mm_storeu_si128((__m128i *)lane, _mm256_cvtps_ph(_mm256_loadu_ps(key + d), _MM_FROUND_TO_NEAREST_INT));
        for (uint32_t i = 0; i < 8; i++) k16[(size_t)(d + i) * b] = lane[i];
        _mm_storeu_si128((__m128i *)((uint16_t *)(v + kv_v_at(s, slot, d)) + d % KV_LANES),
                         _mm256_cvtps_ph(_mm256_loadu_ps(value + d), _MM_FROUND_TO_NEAREST_INT));
    }
}

void kv_store_avx2(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value) {
    if (s->scheme == KV_F16) store_f16(s, k, v, slot, key, value);
    else kv_store_generic(s, k, v, slot, key, value);
}
