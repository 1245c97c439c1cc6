/* test_math.c - our exp, tanh, sin, cos, log and pow against long double libm. */
#include "kernels/kernels.h"
#include "base/philox.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Distance of got from the exact value in units of the last place that a float near it has. */
static double ulps_f(float got, long double exact) {
    if (isnan(got) || isnan(exact)) return isnan(got) && isnan(exact) ? 0 : INFINITY;
    if (fabsl(exact) >= 0x1.ffffffp127L) return isinf(got) && (got > 0) == (exact > 0) ? 0 : INFINITY;
    int e;
    frexpl(exact, &e);
    if (e < -125) e = -125;
    return (double)(fabsl((long double)got - exact) / ldexpl(1, e - 24));
}

static double ulps_d(double got, long double exact) {
    if (isnan(got) || isnan(exact)) return isnan(got) && isnan(exact) ? 0 : INFINITY;
    if (fabsl(exact) >= 0x1p1024L) return isinf(got) ? 0 : INFINITY;
    if (exact == 0) return got == 0 ? 0 : INFINITY;
    int e;
    frexpl(exact, &e);
    if (e < -1021) e = -1021;
    return (double)(fabsl((long double)got - exact) / ldexpl(1, e - 53));
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* A random 32-bit word by index. */
static uint32_t word(uint32_t i) {
    uint32_t ctr[4] = {i, 0, 0, 0}, key[2] = {7, 11}, out[4];
    philox4x32(ctr, key, out);
    return out[0];
}
static double unit(uint32_t i) { return word(i) * 0x1p-32; }

static void expf_within_an_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (uint32_t u = 0; u < 0x42d00001; u += 1009) { /* every binade up to 104, both signs */
        double a = ulps_f(hd_expf(float_of(u)), expl(float_of(u)));
        double b = ulps_f(hd_expf(-float_of(u)), expl(-float_of(u)));
        worst = fmax(worst, fmax(a, b));
    }
    for (uint32_t i = 0; i < 300000; i++) {
        float x = (float)(unit(i) * 195 - 105);
        worst = fmax(worst, ulps_f(hd_expf(x), expl(x)));
    }
    print_message("expf: %.3f ulp\n", worst);
    assert_true(worst < 1.0);
}

static void expf_edges(void **state) {
    (void)state;
    assert_true(hd_expf(0.0f) == 1 && hd_expf(-0.0f) == 1);
    assert_true(hd_expf(INFINITY) == INFINITY && hd_expf(FLT_MAX) == INFINITY);
    assert_true(hd_expf(88.73f) == INFINITY && hd_expf(88.72f) < INFINITY);
    assert_true(hd_expf(-INFINITY) == 0 && hd_expf(-FLT_MAX) == 0 && hd_expf(-104) == 0);
    assert_true(hd_expf(-103.9f) == 0x1p-149f); /* the least denormal */
    assert_true(isnan(hd_expf(NAN)));
}

static void tanhf_within_two_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (uint32_t u = 1; u < 0x42000000; u += 1009)
        worst = fmax(worst, ulps_f(hd_tanhf(float_of(u)), tanhl(float_of(u))));
    for (uint32_t i = 0; i < 300000; i++) {
        float x = (float)(unit(i) * 20 - 10);
        worst = fmax(worst, ulps_f(hd_tanhf(x), tanhl(x)));
    }
    print_message("tanhf: %.3f ulp\n", worst);
    assert_true(worst < 2.0);
    assert_true(hd_tanhf(INFINITY) == 1 && hd_tanhf(-INFINITY) == -1 && hd_tanhf(-100) == -1);
    assert_true(hd_tanhf(0.0f) == 0 && !signbit(hd_tanhf(0.0f)) && signbit(hd_tanhf(-0.0f)));
    assert_true(hd_tanhf(0x1p-149f) == 0x1p-149f);
    assert_true(isnan(hd_tanhf(NAN)));
}

static void sincos_half_ulp(void **state) {
    (void)state;
    static const double scale[] = {1, 10, 1e4, 1e6, 1e9};
    double worst = 0;
    for (size_t k = 0; k < sizeof scale / sizeof *scale; k++)
        for (uint32_t i = 0; i < 60000; i++) {
            double x = (unit(i) * 2 - 1) * scale[k];
            float s, c;
            hd_sincos(x, &s, &c);
            worst = fmax(worst, fmax(ulps_f(s, sinl(x)), ulps_f(c, cosl(x))));
        }
    for (int n = 0; n < 2000; n++) { /* whole positions, and next to the zeros */
        float s, c;
        hd_sincos(n, &s, &c);
        worst = fmax(worst, fmax(ulps_f(s, sinl(n)), ulps_f(c, cosl(n))));
        double x = n * 1.5707963267948966;
        hd_sincos(x, &s, &c);
        assert_true(fabsl(s - sinl(x)) < 1e-7L && fabsl(c - cosl(x)) < 1e-7L);
    }
    print_message("sincos: %.4f ulp\n", worst);
    assert_true(worst < 0.51);
    float s, c;
    hd_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    hd_sincos(INFINITY, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

static void doubles_within_an_ulp(void **state) {
    (void)state;
    double worst_e = 0, worst_l = 0;
    for (uint32_t i = 0; i < 200000; i++) {
        double x = unit(i) * 1460 - 748;
        worst_e = fmax(worst_e, ulps_d(hd_expd(x), expl(x)));
        x = unit(i) * 2 - 1;
        worst_e = fmax(worst_e, ulps_d(hd_expd(x), expl(x)));
        double y = ldexp(1 + unit(i), (int)(word(i) % 2100) - 1070);
        worst_l = fmax(worst_l, ulps_d(hd_logd(y), logl(y)));
        y = 0.5 + unit(i) * 1.5;
        worst_l = fmax(worst_l, ulps_d(hd_logd(y), logl(y)));
    }
    print_message("expd: %.3f ulp, logd: %.3f ulp\n", worst_e, worst_l);
    assert_true(worst_e < 1.0 && worst_l < 1.0);
    assert_true(hd_expd(0) == 1 && hd_expd(INFINITY) == INFINITY && hd_expd(-INFINITY) == 0 && isnan(hd_expd(NAN)));
    assert_true(hd_expd(709.79) == INFINITY && hd_expd(-745.2) == 0 && hd_expd(-745.1) == 0x1p-1074);
    assert_true(hd_logd(1) == 0 && hd_logd(0) == -INFINITY && isnan(hd_logd(-1)) && isnan(hd_logd(NAN)));
    assert_true(hd_logd(INFINITY) == INFINITY);
}

static void pow_for_frequency_tables(void **state) {
    (void)state;
    static const double theta[] = {10000, 500000, 1e6, 1e7};
    for (size_t k = 0; k < sizeof theta / sizeof *theta; k++)
        for (int i = 0; i < 256; i++) {
            double e = -i / 256.0;
            long double want = powl(theta[k], e);
            assert_true(fabsl(hd_pow(theta[k], e) - want) <= want * 0x1p-52L * (1 - e * logl(theta[k])));
        }
    assert_true(hd_pow(123.25, 0) == 1 && hd_pow(1, 55) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expf_within_an_ulp),    cmocka_unit_test(expf_edges),
        cmocka_unit_test(tanhf_within_two_ulp),  cmocka_unit_test(sincos_half_ulp),
        cmocka_unit_test(doubles_within_an_ulp), cmocka_unit_test(pow_for_frequency_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
