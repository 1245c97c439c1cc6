/* vec_generic.c - norms, activations, rope and reductions over one vector: the definition.
 *
 * Reductions run in 8 lanes by index modulo 8 and end in math_sum8's tree; everything else is element by element. */
#include "kernels/math_int.h"
#include "kernels/vec_int.h"

#include <math.h>

static void rms_norm(float *out, const float *x, const float *w, size_t n, float eps) {
    float lane[8] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 8] = fmaf(x[i], x[i], lane[i % 8]);
    float inv = 1.0f / sqrtf(math_sum8(lane) / (float)n + eps);
    for (size_t i = 0; i < n; i++) out[i] = w ? x[i] * inv * w[i] : x[i] * inv;
}

static void add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] += y[i];
}

static void scale(float *x, float s, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] *= s;
}

static void silu_mul(float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) gate[i] = math_siluf(gate[i]) * up[i];
}

static void gelu_mul(float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) gate[i] = math_geluf(gate[i]) * up[i];
}

static void softcap(float *x, float cap, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = math_softcapf(x[i], cap);
}

static void rope(float *x, const float *cs, uint32_t n_rot, bool neox) {
    uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        uint32_t a = neox ? i : 2 * i, b = neox ? i + half : 2 * i + 1;
        math_rotate(&x[a], &x[b], cs[2 * i], cs[2 * i + 1]);
    }
}

static uint32_t argmax(const float *x, size_t n) {
    size_t best = 0;
    bool found = false;
    for (size_t i = 0; i < n; i++)
        if (x[i] > x[best] || (!found && !isnan(x[i]))) {
            best = i;
            found = true;
        }
    return (uint32_t)best;
}

static size_t between(const float *x, size_t n, float lo, float hi, uint32_t *ids) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (x[i] > lo && x[i] <= hi) ids[found++] = (uint32_t)i;
    return found;
}

static float max_of(const float *x, size_t n) {
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static double sum_exp(const float *x, size_t n, float ref, float t) {
    double l[8] = {0};
    for (size_t i = 0; i < n; i++) l[i % 8] += (double)math_expf((x[i] - ref) / t);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

const vec_ops vec_generic = {
    .rms_norm = rms_norm,
    .add = add,
    .scale = scale,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .softcap = softcap,
    .rope = rope,
    .turns = math_turns,
    .argmax = argmax,
    .sum_exp = sum_exp,
    .max_of = max_of,
    .between = between,
};
