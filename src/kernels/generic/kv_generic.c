/* kv_generic.c - storing a position's key and value: the definition of what each scheme keeps. */
#include "kernels/attn_int.h"

#include <string.h>

static void put_plain(const kv_shape *s, char *at, float x) {
    uint16_t h = s->scheme == KV_F16 ? float_to_half(x) : kv_to_bf16(x);
    if (s->scheme == KV_F32) memcpy(at, &x, sizeof x);
    else memcpy(at, &h, sizeof h);
}

/* x / step to the nearest integer (ties to even) within [min, max]. */
static int8_t whole(float x, float inv, int32_t min, int32_t max) {
    int32_t n = (int32_t)(math_bits_f(fmaf(x, inv, MATH_ROUND_F)) - math_bits_f(MATH_ROUND_F));
    return (int8_t)(n < min ? min : n > max ? max : n);
}

/* q4's step for a block whose extreme value (of largest magnitude; of two alike the positive) is `extreme`: each of these
 * fractions of it is tried, with the factor that suits the integers best; the smallest squared error wins, the first of
 * equals.  Sums in 8 lanes by index modulo 8, by fma, then math_sum8's tree. */
static float q4_step(const float *x, uint32_t n, float extreme) {
    static const float fractions[] = KV_Q4_FRACTIONS;
    float best = -1, step = 0;
    for (size_t f = 0; f < sizeof fractions / sizeof *fractions; f++) {
        float inv = fractions[f] / extreme, xn[8] = {0}, nn[8] = {0}, a, b, gain;
        for (uint32_t i = 0; i < n; i++) {
            float w = whole(x[i], inv, -8, 7);
            xn[i % 8] = fmaf(x[i], w, xn[i % 8]);
            nn[i % 8] = fmaf(w, w, nn[i % 8]);
        }
        a = math_sum8(xn);
        b = math_sum8(nn);
        gain = a * (a / b);
        if (gain > best) {
            best = gain;
            step = a / b;
        }
    }
    return step;
}

/* A block of n values.  NaN makes the scale NaN, an infinity or what overflows the scale makes it infinite, and the integers
 * 0: whoever attends to the position gets NaN. */
static uint16_t quantise(const kv_shape *s, const float *x, uint32_t n, int8_t *out) {
    uint32_t mag = 0;
    float min = 0, max = 0, step, inv;
    uint16_t h;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = math_bits_f(x[i]) & 0x7fffffff;
        mag = u > mag ? u : mag;
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    step = math_from_bits_f(mag);
    if (mag > 0x7f800000) h = 0x7e00;
    else if (mag == 0x7f800000) h = 0x7c00;
    else if (s->scheme == KV_Q8) h = float_to_half(step / 127);
    else h = float_to_half(step < KV_Q4_LEAST || step > KV_Q4_MOST ? step / 8 : q4_step(x, n, max >= -min ? max : min));
    step = half_to_float(h);
    inv = h & 0x7fff && (h & 0x7fff) < 0x7c00 ? 1 / step : 0;
    for (uint32_t i = 0; i < n; i++)
        out[i] = inv == 0 ? 0 : s->scheme == KV_Q8 ? whole(x[i], inv, -127, 127) : whole(x[i], inv, -8, 7);
    return h;
}

static void store_blocked(const kv_shape *s, char *k, char *v, uint32_t slot, const float *key, const float *value) {
    uint32_t b = kv_lanes(s);
    for (uint32_t c = 0, d = 0; d < s->head_dim; c++, d += KV_BLOCK) {
        uint32_t n = s->head_dim - d < KV_BLOCK ? s->head_dim - d : KV_BLOCK;
        int8_t kn[KV_BLOCK], vn[KV_BLOCK];
        uint16_t h = quantise(s, key + d, n, kn);
        memcpy(k + kv_k_scale_at(s, slot, c), &h, sizeof h);
        h = quantise(s, value + d, n, vn);
        memcpy(v + kv_v_scale_at(s, slot, c), &h, sizeof h);
        kv_put_numbers(s, k + kv_k_at(s, slot, d), b, v, slot, d, n, kn, vn);
    }
}

void kv_store_generic(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value) {
    if (s->scheme == KV_Q4) {
        float turned[2][ATTN_HEAD_MAX];
        kv_turn(key, turned[0], s->head_dim, KV_TURN_STORED);
        kv_turn(value, turned[1], s->head_dim, KV_TURN_STORED);
        store_blocked(s, k, v, slot, turned[0], turned[1]);
        return;
    }
    if (s->scheme == KV_Q8) {
        store_blocked(s, k, v, slot, key, value);
        return;
    }
    for (uint32_t d = 0; d < s->head_dim; d++) {
        put_plain(s, (char *)k + kv_k_at(s, slot, d), key[d]);
        put_plain(s, (char *)v + kv_v_at(s, slot, d) + d % KV_LANES * kv_plain_bytes(s), value[d]);
    }
}
