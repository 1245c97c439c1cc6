/* math.c - exp, tanh, cos and sin in f32 precision and log, exp and pow in double, the same bits on every machine.
 *
 * Those in f32, sine and cosine are defined in math_int.h.  The double ones serve tables and sums, one value at a time: arguments are
 * reduced with fma in two parts, then plain Taylor or atanh series long enough for the last bit. */
#include "kernels/kernels.h"
#include "kernels/math_int.h"

#include <math.h>

/* Worst found against long double libm (tests/test_math.c): expf 0.98 ulp, tanhf 1.3, sincos 0.51 (inputs that are not
 * next to a zero of the function), expd 0.96, logd 0.84. */

#define LOG2E 0x1.71547652b82fep+0
#define LN2_HI 0x1.62e42fefa2p-1 /* 40 bits: n * hi is exact */
#define LN2_LO 0x1.9ef35793c7673p-41
#define ROUND_D MATH_ROUND_D

float hd_expf(float x) { return math_expf(x); }
float hd_tanhf(float x) { return math_tanhf(x); }

static uint64_t bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static double from_bits(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

double hd_expd(double x) {
    if (x > 710) x = 710; /* e^710 overflows, e^-746 rounds to 0; NaN passes */
    if (x < -746) x = -746;
    double t = fma(x, LOG2E, ROUND_D), n = t - ROUND_D;
    double r = fma(n, -LN2_LO, fma(n, -LN2_HI, x)); /* |r| <= ln2/2 */
    double p = 1.0 / 87178291200;                   /* 1/14! */
    static const double inv_fact[] = {0.5,           1.0 / 6,      1.0 / 24,       1.0 / 120,      1.0 / 720,
                                      1.0 / 5040,    1.0 / 40320,  1.0 / 362880,   1.0 / 3628800,  1.0 / 39916800,
                                      1.0 / 479001600, 1.0 / 6227020800};
    for (int i = 11; i >= 0; i--) p = fma(p, r, inv_fact[i]);
    double y = 1.0 + fma(r * r, p, r);
    int64_t e = (int64_t)(bits(t) - bits(ROUND_D)), half = e >> 1;
    y *= from_bits((uint64_t)(half + 1023) << 52);
    return y * from_bits((uint64_t)(e - half + 1023) << 52);
}

/* x = 2^e m with m in [sqrt(1/2), sqrt(2)); with s = f / (2 + f), f = m - 1:
 * log m = 2 atanh(s) = f - s (f - R),  R = 2 s^2/3 + 2 s^4/5 + ...; |s| < 0.172, so s^20 is the last that counts. */
double hd_logd(double x) {
    int64_t e = 0;
    if (!(x > 0)) return x == 0 ? -INFINITY : NAN;
    if (x == INFINITY) return x;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        e = -54;
    }
    uint64_t u = bits(x);
    e += (int64_t)(u >> 52) - 1023;
    double m = from_bits((u & 0xfffffffffffff) | (uint64_t)1023 << 52);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        e++;
    }
    double f = m - 1, s = f / (2 + f), z = s * s, p = 0;
    for (int k = 10; k >= 1; k--) p = fma(p, z, 2.0 / (2 * k + 1));
    double r = z * p;
    return fma((double)e, LN2_HI, f - (s * (f - r) - (double)e * LN2_LO));
}

/* The relative error of the logarithm grows with the exponent: 2^-52 * (1 + |e ln base|). */
double hd_pow(double base, double e) { return hd_expd(e * hd_logd(base)); }

void hd_sincos(double x, float *s, float *c) { math_sincos(x, s, c); }
