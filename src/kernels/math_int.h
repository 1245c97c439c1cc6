/* math_int.h - our own exp and tanh in f32 for one value: the definition that vector versions repeat bit for bit.
 *
 * libm's results change with its version and the CPU it finds; these do not.  Inline, so that each instruction set
 * compiles them with its own flags; fmaf is correctly rounded everywhere, so the bits agree.  Coefficients come from
 * scripts/fit_math.py. */
#ifndef HD_KERNELS_MATH_INT_H
#define HD_KERNELS_MATH_INT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define MATH_LOG2E_F 0x1.715476p+0f
#define MATH_LN2_HI_F 0x1.62e4p-1f /* 15 bits, so n * hi is exact */
#define MATH_LN2_LO_F 0x1.7f7d1cp-20f
#define MATH_ROUND_F 0x1.8p23f     /* x + this - this rounds to an integer, which stands in the low bits of the sum */

/* exp(r) = 1 + r + r^2 (E0 + E1 r + ...) on |r| <= ln2/2, relative error 2^-28.0 */
#define MATH_E0 0x1.fffffcp-2f
#define MATH_E1 0x1.555492p-3f
#define MATH_E2 0x1.5558f2p-5f
#define MATH_E3 0x1.1239e2p-7f
#define MATH_E4 0x1.6a2434p-10f
/* Beyond these the result is inf or 0 as the last multiplication rounds it. */
#define MATH_EXP_MAX 89.0f
#define MATH_EXP_MIN -104.0f

/* tanh(x) = x + x^3 (T0 + T1 x^2 + ...) on |x| < TANH_SMALL, relative error 2^-26.8 */
#define MATH_TANH_SMALL 0.625f
#define MATH_T0 -0x1.555532p-2f
#define MATH_T1 0x1.110726p-3f
#define MATH_T2 -0x1.b83c5ap-5f
#define MATH_T3 0x1.52269cp-6f
#define MATH_T4 -0x1.75e1ccp-8f

/* gelu(x) = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), the tanh form rewritten: no cancellation for x < 0 */
#define MATH_GELU_1 0x1.988454p+0f
#define MATH_GELU_3 0x1.2444f2p-4f

static inline uint32_t math_bits_f(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float math_from_bits_f(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* e^x.  x > 88.72.. gives inf, x < -103.97.. gives 0, between -87.3 and there the denormals; NaN gives NaN. */
static inline float math_expf(float x) {
    x = MATH_EXP_MAX < x ? MATH_EXP_MAX : x; /* written so that NaN passes */
    x = MATH_EXP_MIN > x ? MATH_EXP_MIN : x;
    float t = fmaf(x, MATH_LOG2E_F, MATH_ROUND_F);
    float n = t - MATH_ROUND_F;
    float r = fmaf(n, -MATH_LN2_LO_F, fmaf(n, -MATH_LN2_HI_F, x));
    float q = fmaf(r, fmaf(r, fmaf(r, fmaf(r, MATH_E4, MATH_E3), MATH_E2), MATH_E1), MATH_E0);
    float y = 1.0f + fmaf(r * r, q, r);
    /* times 2^n in two halves, so that only the second can overflow or round into the denormals */
    int32_t e = (int32_t)(math_bits_f(t) - math_bits_f(MATH_ROUND_F));
    int32_t half = e >> 1;
    y *= math_from_bits_f((uint32_t)(half + 127) << 23);
    return y * math_from_bits_f((uint32_t)(e - half + 127) << 23);
}

/* e^x for weights of a softmax: x <= 0 or NaN.  Below e^-87, where the weight is less than 2^-125 of the largest, 0; so
 * the result is never denormal and one multiplication scales it. */
#define MATH_WEIGHT_MIN -87.0f
#define MATH_ROUND_BIAS_F 0x1.8000fep23f /* MATH_ROUND_F + 127: the sum's low bits are n with the exponent bias */
static inline float math_weightf(float x) {
    float t = fmaf(x, MATH_LOG2E_F, MATH_ROUND_BIAS_F);
    float n = t - MATH_ROUND_BIAS_F;
    float r = fmaf(n, -MATH_LN2_LO_F, fmaf(n, -MATH_LN2_HI_F, x));
    float q = fmaf(r, fmaf(r, fmaf(r, fmaf(r, MATH_E4, MATH_E3), MATH_E2), MATH_E1), MATH_E0);
    float y = 1.0f + fmaf(r * r, q, r);
    return x < MATH_WEIGHT_MIN ? 0 : y * math_from_bits_f(math_bits_f(t) << 23);
}

static inline float math_tanhf(float x) {
    float a = fabsf(x), u = a * a;
    float p = fmaf(u, fmaf(u, fmaf(u, fmaf(u, MATH_T4, MATH_T3), MATH_T2), MATH_T1), MATH_T0);
    float small = fmaf(a * u, p, a);
    float large = 1.0f - 2.0f / (math_expf(a + a) + 1.0f);
    return copysignf(a < MATH_TANH_SMALL ? small : large, x);
}

/* x * sigmoid(z); the exponential never overflows. */
static inline float math_x_sigmoid(float x, float z) {
    float e = math_expf(-fabsf(z));
    return (z >= 0 ? x : x * e) / (1.0f + e);
}

static inline float math_siluf(float x) { return math_x_sigmoid(x, x); }
static inline float math_geluf(float x) {
    return math_x_sigmoid(x, x * fmaf(x * x, MATH_GELU_3, MATH_GELU_1));
}
/* cap * tanh(x / cap) */
static inline float math_softcapf(float x, float cap) { return cap * math_tanhf(x / cap); }

/* Turn the pair (a, b) by the angle with cosine c and sine s. */
static inline void math_rotate(float *a, float *b, float c, float s) {
    float x = *a, y = *b;
    *a = fmaf(x, c, -(y * s));
    *b = fmaf(y, c, x * s);
}

/* Cosine and sine of |x| < 1e9, in double and then rounded: reduced to a quarter turn with pi/2 in two parts, then Taylor's series. */
#define MATH_ROUND_D 0x1.8p52
#define MATH_TWO_OVER_PI 0x1.45f306dc9c883p-1
#define MATH_PI_2_HI 0x1.921fb54442d18p+0
#define MATH_PI_2_LO 0x1.1a62633145c07p-54
enum { MATH_SIN_TERMS = 7, MATH_COS_TERMS = 8 };
static const double math_sin_c[MATH_SIN_TERMS] = {-1.0 / 6,        1.0 / 120,        -1.0 / 5040,         1.0 / 362880,
                                                  -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000};
static const double math_cos_c[MATH_COS_TERMS] = {-1.0 / 2,       1.0 / 24,        -1.0 / 720,         1.0 / 40320,
                                                  -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};

static inline void math_sincos(double x, float *s, float *c) {
    double t = fma(x, MATH_TWO_OVER_PI, MATH_ROUND_D), n = t - MATH_ROUND_D;
    double r = fma(n, -MATH_PI_2_LO, fma(n, -MATH_PI_2_HI, x)); /* the inner one is exact: both sides are multiples of 2^-52 */
    double z = r * r, ps = 0, pc = 0;
    uint64_t quarter;
    memcpy(&quarter, &t, sizeof quarter);
    for (int i = MATH_SIN_TERMS - 1; i >= 0; i--) ps = fma(ps, z, math_sin_c[i]);
    for (int i = MATH_COS_TERMS - 1; i >= 0; i--) pc = fma(pc, z, math_cos_c[i]);
    double sn = fma(r * z, ps, r), cn = fma(z, pc, 1.0);
    switch (quarter & 3) { /* turns */
    case 0: *s = (float)sn; *c = (float)cn; break;
    case 1: *s = (float)cn; *c = (float)-sn; break;
    case 2: *s = (float)-sn; *c = (float)-cn; break;
    default: *s = (float)-cn; *c = (float)sn; break;
    }
}

/* A rotary table of one position: cs[2 i] and cs[2 i + 1] are cosine and sine of pos * freq[i], times scale. */
static inline void math_turns(float *cs, double pos, const double *freq, float scale, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float s, c;
        math_sincos(pos * freq[i], &s, &c);
        cs[2 * i] = c * scale;
        cs[2 * i + 1] = s * scale;
    }
}

/* The fixed tree over 8 lanes: halves, quarters, the last two, as a wide register folds. */
static inline float math_sum8(const float *l) {
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

#endif
