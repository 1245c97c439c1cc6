/* vec_neon.c - vec_generic.c 4 lanes at a time, to the same bits.  What is left at the end goes through the same
 * one-value functions as there. */
#include "kernels/neon/math_neon.h"
#include "kernels/vec_int.h"

static void rms_norm(float *out, const float *x, const float *w, size_t n, float eps) {
    float32x4_t a = vdupq_n_f32(0), b = a;
    float lane[8], inv;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        float32x4_t v = vld1q_f32(x + i), u = vld1q_f32(x + i + 4);
        a = vfmaq_f32(a, v, v);
        b = vfmaq_f32(b, u, u);
    }
    vst1q_f32(lane, a);
    vst1q_f32(lane + 4, b);
    for (; i < n; i++) lane[i % 8] = fmaf(x[i], x[i], lane[i % 8]);
    inv = 1.0f / sqrtf(math_sum8(lane) / (float)n + eps);
    for (i = 0; i + 4 <= n; i += 4) {
        float32x4_t v = vmulq_n_f32(vld1q_f32(x + i), inv);
        vst1q_f32(out + i, w ? vmulq_f32(v, vld1q_f32(w + i)) : v);
    }
    for (; i < n; i++) out[i] = w ? x[i] * inv * w[i] : x[i] * inv;
}

static void add(float *x, const float *y, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(x + i, vaddq_f32(vld1q_f32(x + i), vld1q_f32(y + i)));
    for (; i < n; i++) x[i] += y[i];
}

static void scale(float *x, float s, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(x + i, vmulq_n_f32(vld1q_f32(x + i), s));
    for (; i < n; i++) x[i] *= s;
}

static void silu_mul(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(gate + i, vmulq_f32(silu4(vld1q_f32(gate + i)), vld1q_f32(up + i)));
    for (; i < n; i++) gate[i] = math_siluf(gate[i]) * up[i];
}

static void gelu_mul(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(gate + i, vmulq_f32(gelu4(vld1q_f32(gate + i)), vld1q_f32(up + i)));
    for (; i < n; i++) gate[i] = math_geluf(gate[i]) * up[i];
}

static void softcap(float *x, float cap, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(x + i, softcap4(vld1q_f32(x + i), vdupq_n_f32(cap)));
    for (; i < n; i++) x[i] = math_softcapf(x[i], cap);
}

/* a, b turned by (cos, sin): math_rotate. */
static void rotate4(float32x4_t *a, float32x4_t *b, float32x4x2_t cs) {
    float32x4_t x = *a, y = *b;
    *a = vfmaq_f32(vnegq_f32(vmulq_f32(y, cs.val[1])), x, cs.val[0]);
    *b = vfmaq_f32(vmulq_f32(x, cs.val[1]), y, cs.val[0]);
}

static void rope(float *x, const float *cs, uint32_t n_rot, bool neox) {
    uint32_t half = n_rot / 2, i = 0;
    for (; i + 4 <= half; i += 4) {
        float32x4x2_t t = vld2q_f32(cs + 2 * i), v;
        if (neox) {
            float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(x + i + half);
            rotate4(&a, &b, t);
            vst1q_f32(x + i, a);
            vst1q_f32(x + i + half, b);
        } else {
            v = vld2q_f32(x + 2 * i);
            rotate4(&v.val[0], &v.val[1], t);
            vst2q_f32(x + 2 * i, v);
        }
    }
    for (; i < half; i++) {
        uint32_t a = neox ? i : 2 * i, b = neox ? i + half : 2 * i + 1;
        math_rotate(&x[a], &x[b], cs[2 * i], cs[2 * i + 1]);
    }
}

/* The maximum of what is not NaN, -inf if there is nothing. */
static float max_of(const float *x, size_t n) {
    float32x4_t m[4];
    float max;
    size_t i = 0;
    for (int j = 0; j < 4; j++) m[j] = vdupq_n_f32(-INFINITY);
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 4; j++) m[j] = greater4(vld1q_f32(x + i + 4 * (size_t)j), m[j]);
    max = max4(greater4(greater4(m[0], m[1]), greater4(m[2], m[3])));
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static uint32_t argmax(const float *x, size_t n) {
    float max = max_of(x, n);
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        if (vmaxvq_u32(vceqq_f32(vld1q_f32(x + i), vdupq_n_f32(max)))) break;
    for (; i < n; i++)
        if (x[i] == max) return (uint32_t)i;
    return 0;
}

/* Few are: 16 are looked at together, and those of a hit one by one. */
static size_t between(const float *x, size_t n, float lo, float hi, uint32_t *ids) {
    const float32x4_t lo4 = vdupq_n_f32(lo), hi4 = vdupq_n_f32(hi);
    size_t found = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i + 16 <= n ? i + 16 : n;
        if (end == i + 16) {
            uint32x4_t any = vdupq_n_u32(0);
            for (int j = 0; j < 4; j++) {
                float32x4_t v = vld1q_f32(x + i + 4 * (size_t)j);
                any = vorrq_u32(any, vandq_u32(vcgtq_f32(v, lo4), vcleq_f32(v, hi4)));
            }
            if (!vmaxvq_u32(any)) i = end;
        }
        for (; i < end; i++)
            if (x[i] > lo && x[i] <= hi) ids[found++] = (uint32_t)i;
    }
    return found;
}

static double sum_exp(const float *x, size_t n, float ref, float t) {
    float64x2_t sum[4];
    double l[8];
    size_t i = 0;
    for (int j = 0; j < 4; j++) sum[j] = vdupq_n_f64(0);
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 4; j += 2) {
            float32x4_t e = exp4(vdivq_f32(vsubq_f32(vld1q_f32(x + i + 2 * (size_t)j), vdupq_n_f32(ref)), vdupq_n_f32(t)));
            sum[j] = vaddq_f64(sum[j], vcvt_f64_f32(vget_low_f32(e)));
            sum[j + 1] = vaddq_f64(sum[j + 1], vcvt_high_f64_f32(e));
        }
    for (int j = 0; j < 4; j++) vst1q_f64(l + 2 * j, sum[j]);
    for (; i < n; i++) l[i % 8] += (double)math_expf((x[i] - ref) / t);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

const vec_ops vec_neon = {
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
