/* math_neon.h - math_int.h for 4 values at once, operation by operation the same. */
#ifndef HD_KERNELS_NEON_MATH_NEON_H
#define HD_KERNELS_NEON_MATH_NEON_H

#include "kernels/math_int.h"

#include <arm_neon.h>

/* a b + c */
static inline float32x4_t fma4(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
static inline float32x4_t set4(float x) { return vdupq_n_f32(x); }
/* 2^n for n in the low bits; n is the exponent with its bias. */
static inline float32x4_t power4(int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(n, 23)); }
/* Where x > y, x, else y: a NaN in x never wins. */
static inline float32x4_t greater4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }

/* 1 + r + r^2 (E0 + E1 r + ...), r = x - n ln 2 */
static inline float32x4_t exp_part4(float32x4_t x, float32x4_t n) {
    float32x4_t r = fma4(n, set4(-MATH_LN2_HI_F), x), q;
    r = fma4(n, set4(-MATH_LN2_LO_F), r);
    q = fma4(r, set4(MATH_E4), set4(MATH_E3));
    q = fma4(r, q, set4(MATH_E2));
    q = fma4(r, q, set4(MATH_E1));
    q = fma4(r, q, set4(MATH_E0));
    return vaddq_f32(set4(1.0f), fma4(vmulq_f32(r, r), q, r));
}

static inline float32x4_t exp4(float32x4_t x) {
    const float32x4_t magic = set4(MATH_ROUND_F), max = set4(MATH_EXP_MAX), min = set4(MATH_EXP_MIN);
    float32x4_t t, y;
    int32x4_t e, half;
    x = vbslq_f32(vcltq_f32(max, x), max, x); /* NaN passes */
    x = vbslq_f32(vcgtq_f32(min, x), min, x);
    t = fma4(x, set4(MATH_LOG2E_F), magic);
    y = exp_part4(x, vsubq_f32(t, magic));
    e = vsubq_s32(vreinterpretq_s32_f32(t), vreinterpretq_s32_f32(magic));
    half = vshrq_n_s32(e, 1);
    y = vmulq_f32(y, power4(vaddq_s32(half, vdupq_n_s32(127))));
    return vmulq_f32(y, power4(vaddq_s32(vsubq_s32(e, half), vdupq_n_s32(127))));
}

static inline float32x4_t weight4(float32x4_t x) { /* math_weightf */
    const float32x4_t magic = set4(MATH_ROUND_BIAS_F);
    float32x4_t t = fma4(x, set4(MATH_LOG2E_F), magic);
    float32x4_t y = vmulq_f32(exp_part4(x, vsubq_f32(t, magic)), power4(vreinterpretq_s32_f32(t)));
    return vbslq_f32(vcltq_f32(x, set4(MATH_WEIGHT_MIN)), set4(0), y);
}

static inline float32x4_t tanh4(float32x4_t x) {
    const float32x4_t one = set4(1.0f);
    float32x4_t a = vabsq_f32(x), u = vmulq_f32(a, a), p, small, large;
    p = fma4(u, set4(MATH_T4), set4(MATH_T3));
    p = fma4(u, p, set4(MATH_T2));
    p = fma4(u, p, set4(MATH_T1));
    p = fma4(u, p, set4(MATH_T0));
    small = fma4(vmulq_f32(a, u), p, a);
    large = vsubq_f32(one, vdivq_f32(set4(2.0f), vaddq_f32(exp4(vaddq_f32(a, a)), one)));
    p = vbslq_f32(vcltq_f32(a, set4(MATH_TANH_SMALL)), small, large);
    return vbslq_f32(vdupq_n_u32(0x80000000u), x, p); /* the sign of x */
}

static inline float32x4_t x_sigmoid4(float32x4_t x, float32x4_t z) {
    float32x4_t e = exp4(vnegq_f32(vabsq_f32(z)));
    return vdivq_f32(vbslq_f32(vcgeq_f32(z, set4(0)), x, vmulq_f32(x, e)), vaddq_f32(set4(1.0f), e));
}

static inline float32x4_t silu4(float32x4_t x) { return x_sigmoid4(x, x); }
static inline float32x4_t gelu4(float32x4_t x) {
    return x_sigmoid4(x, vmulq_f32(x, fma4(vmulq_f32(x, x), set4(MATH_GELU_3), set4(MATH_GELU_1))));
}
static inline float32x4_t softcap4(float32x4_t x, float32x4_t cap) { return vmulq_f32(cap, tanh4(vdivq_f32(x, cap))); }

/* The largest of four, NaN never. */
static inline float max4(float32x4_t v) {
    float l[4], m = -INFINITY;
    vst1q_f32(l, v);
    for (int i = 0; i < 4; i++) m = l[i] > m ? l[i] : m;
    return m;
}

#endif
