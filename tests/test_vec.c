/* test_vec.c - vector kernels: the definition against double precision, every other set against the definition, bit by
 * bit, for all tail lengths. */
#include "base/philox.h"
#include "kernels/kernels.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { N_MAX = 300 };

static const kernels *set_generic, *set_fast; /* set_fast: the best there is, or NULL when that is generic */

static float rnd(uint32_t i) { /* about normal, |x| < 6 */
    uint32_t ctr[4] = {i, 1, 0, 0}, key[2] = {3, 5}, out[4];
    double s = 0;
    philox4x32(ctr, key, out);
    for (int j = 0; j < 4; j++) s += out[j] * 0x1p-32;
    return (float)((s - 2) * 3);
}

static void fill(float *x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) x[i] = rnd(seed * 1000 + (uint32_t)i);
}

static void same(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(isnan(a[i]) && isnan(b[i]))) assert_memory_equal(&a[i], &b[i], sizeof(float));
}

static void near(double got, double want, double rel) {
    if (!(fabs(got - want) <= rel * fabs(want) + 1e-37)) fail_msg("got %.9g, want %.9g", got, want);
}

static const float odd[] = {0.0f,     -0.0f,     1e-45f, -1e-38f, 1e-20f, FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN,
                            88.8f,    -88.8f,    104.0f, -104.0f, 0.625f, -0.625f, 1e10f,    -1e10f,   20.0f,     -20.0f};

static void against_double(void **state) {
    (void)state;
    float x[N_MAX], y[N_MAX], w[N_MAX];
    for (size_t n = 1; n <= N_MAX; n += n < 40 ? 1 : 37) {
        double ss = 0;
        fill(x, n, 1);
        fill(w, n, 2);
        for (size_t i = 0; i < n; i++) ss += (double)x[i] * x[i];
        vec_rms_norm(set_generic, y, x, w, n, 1e-5f);
        for (size_t i = 0; i < n; i++) near(y[i], x[i] / sqrt(ss / (double)n + 1e-5f) * w[i], 1e-6);
        vec_rms_norm(set_generic, y, x, NULL, n, 1e-5f);
        for (size_t i = 0; i < n; i++) near(y[i], x[i] / sqrt(ss / (double)n + 1e-5f), 1e-6);

        memcpy(y, x, sizeof x);
        vec_silu_mul(set_generic, y, w, n);
        for (size_t i = 0; i < n; i++) near(y[i], x[i] / (1 + exp(-(double)x[i])) * w[i], 5e-7);
        memcpy(y, x, sizeof x);
        vec_gelu_mul(set_generic, y, w, n);
        for (size_t i = 0; i < n; i++) {
            /* 1 + tanh(u) written as 2 / (1 + exp(-2u)): the direct form cancels even in double */
            double u = sqrt(2 / acos(-1)) * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
            near(y[i], x[i] / (1 + exp(-2 * u)) * w[i], 4e-6); /* the exponent reaches 2u = 30 */
        }
        memcpy(y, x, sizeof x);
        vec_softcap(set_generic, y, 2.5f, n);
        for (size_t i = 0; i < n; i++) near(y[i], 2.5 * tanh(x[i] / 2.5), 4e-7);

        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += exp((double)x[i] * 4);
        memcpy(y, x, sizeof x);
        vec_scale(set_generic, y, 4, n);
        near(vec_logsumexp(set_generic, y, n), log(sum), 3e-7);
        vec_add(set_generic, y, w, n);
        for (size_t i = 0; i < n; i++) assert_true(y[i] == 4 * x[i] + w[i]);
    }
}

static void rope_turns_pairs(void **state) {
    (void)state;
    enum { HEAD = 48, ROT = 36 }; /* the rest of the head stays as it is */
    float x[HEAD], y[HEAD], cs[ROT];
    for (int neox = 0; neox < 2; neox++) {
        fill(x, HEAD, 3);
        memcpy(y, x, sizeof x);
        for (int i = 0; i < ROT / 2; i++) hd_sincos(7 * hd_pow(10000, -2.0 * i / ROT), &cs[2 * i + 1], &cs[2 * i]);
        vec_rope(set_generic, y, cs, ROT, neox);
        for (int i = 0; i < ROT / 2; i++) {
            int a = neox ? i : 2 * i, b = neox ? i + ROT / 2 : 2 * i + 1;
            double angle = 7 * pow(10000, -2.0 * i / ROT);
            assert_true(fabs(y[a] - (x[a] * cos(angle) - x[b] * sin(angle))) < 1e-6);
            assert_true(fabs(y[b] - (x[a] * sin(angle) + x[b] * cos(angle))) < 1e-6);
        }
        assert_memory_equal(x + ROT, y + ROT, (HEAD - ROT) * sizeof(float));
    }
}

/* Tables of positions: each angle as hd_sincos gives it (test_math holds that against libm), in all quarters, for all lengths. */
static void turns_are_sincos(void **state) {
    enum { MOST = 70 };
    const kernels *sets[] = {set_generic, set_fast};
    (void)state;
    for (int s = 0; s < 2; s++)
        for (uint32_t n = 0; sets[s] && n <= MOST; n++)
            for (uint32_t pos = 0; pos < 200000; pos = pos * 3 + 1) {
                double freq[MOST];
                float cs[2 * MOST + 1];
                for (uint32_t i = 0; i < n; i++) freq[i] = hd_pow(10000, -2.0 * i / MOST);
                cs[2 * n] = 7;
                vec_turns(sets[s], cs, pos, freq, 1.25f, n);
                for (uint32_t i = 0; i < n; i++) {
                    float sn, cn;
                    hd_sincos(pos * freq[i], &sn, &cn);
                    cn *= 1.25f, sn *= 1.25f;
                    assert_memory_equal(&cs[2 * i], &cn, sizeof cn);
                    assert_memory_equal(&cs[2 * i + 1], &sn, sizeof sn);
                }
                assert_true(cs[2 * n] == 7);
            }
}

static void between_bounds(void **state) {
    static const float values[] = {-2, -1, -0.5f, -0.0f, 0, 0.5f, 1, 2, NAN, INFINITY, -INFINITY};
    static const float bounds[][2] = {{-1, 1}, {-INFINITY, 0}, {-INFINITY, INFINITY}, {1, INFINITY}, {0, 0}, {1, -1}, {-0.0f, 0.5f}};
    enum { MOST = 150 };
    const kernels *sets[] = {set_generic, set_fast};
    (void)state;
    for (int s = 0; s < 2; s++)
        for (size_t n = 0; sets[s] && n <= MOST; n++)
            for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
                float x[MOST], lo = bounds[b][0], hi = bounds[b][1];
                uint32_t ids[MOST + 1], found;
                size_t want = 0;
                for (size_t i = 0; i < n; i++) x[i] = values[(i * 7 + i / 11 * 3 + n) % (sizeof values / sizeof *values)];
                ids[n] = 12345;
                found = (uint32_t)vec_between(sets[s], x, n, lo, hi, ids);
                for (size_t i = 0; i < n; i++) {
                    if (!(x[i] > lo && x[i] <= hi)) continue;
                    assert_true(want < found);
                    assert_int_equal(ids[want++], i);
                }
                assert_int_equal(found, want);
                assert_int_equal(ids[n], 12345);
            }
}

static void argmax_and_sums_of_odd_inputs(void **state) {
    (void)state;
    const kernels *sets[] = {set_generic, set_fast};
    for (int s = 0; s < 2; s++) {
        const kernels *k = sets[s];
        float x[70];
        if (!k) continue;
        for (size_t n = 1; n <= 70; n++)
            for (size_t at = 0; at < n; at += 3) {
                for (size_t i = 0; i < n; i++) x[i] = -3;
                x[at] = 5;
                if (at + 9 < n) x[at + 9] = 5; /* a tie goes to the lower one */
                if (at) x[0] = NAN;
                assert_int_equal(vec_argmax(k, x, n), at);
                for (size_t i = 0; i < n; i++) x[i] = NAN;
                assert_int_equal(vec_argmax(k, x, n), 0);
                assert_true(isnan(vec_logsumexp(k, x, n)));
                x[at] = -INFINITY;
                assert_int_equal(vec_argmax(k, x, n), at);
                for (size_t i = 0; i < n; i++) x[i] = -INFINITY;
                assert_true(vec_logsumexp(k, x, n) == -INFINITY);
                x[at] = 2;
                assert_true(vec_logsumexp(k, x, n) == 2);
                x[at] = INFINITY;
                assert_true(vec_logsumexp(k, x, n) == INFINITY);
                if (n > 1) x[at ? 0 : 1] = NAN;
                assert_true(n == 1 || isnan(vec_logsumexp(k, x, n)));
            }
    }
}

/* The same bits from both sets: all lengths, ordinary and odd values, at unaligned addresses. */
static void bits_agree(void **state) {
    (void)state;
    if (!set_fast) skip();
    float base[N_MAX + 40], w0[N_MAX + 40], x[N_MAX + 40], a[N_MAX + 40], b[N_MAX + 40];
    const size_t n_odd = sizeof odd / sizeof *odd;
    for (size_t n = 0; n <= N_MAX; n += n < 70 ? 1 : 23)
        for (int strange = 0; strange < 2; strange++) {
            fill(base, n, 5 + (uint32_t)n);
            fill(w0, n, 900 + (uint32_t)n);
            for (size_t i = 0; strange && i < n; i++) base[i] = odd[(i + n) % n_odd];
            const float *w = w0 + 1;
            for (size_t i = n; i > 0; i--) w0[i] = w0[i - 1];
#define BOTH(call_generic, call_fast)                                                                                  \
    do {                                                                                                               \
        memcpy(a + 3, base, n * sizeof *a);                                                                            \
        memcpy(b + 3, base, n * sizeof *b);                                                                            \
        call_generic;                                                                                                  \
        call_fast;                                                                                                     \
        same(a + 3, b + 3, n);                                                                                         \
    } while (0)
            BOTH(vec_add(set_generic, a + 3, w, n), vec_add(set_fast, b + 3, w, n));
            BOTH(vec_scale(set_generic, a + 3, 1.7f, n), vec_scale(set_fast, b + 3, 1.7f, n));
            BOTH(vec_silu_mul(set_generic, a + 3, w, n), vec_silu_mul(set_fast, b + 3, w, n));
            BOTH(vec_gelu_mul(set_generic, a + 3, w, n), vec_gelu_mul(set_fast, b + 3, w, n));
            BOTH(vec_softcap(set_generic, a + 3, 30, n), vec_softcap(set_fast, b + 3, 30, n));
            memcpy(x, base, n * sizeof *x);
            if (n) {
                BOTH(vec_rms_norm(set_generic, a + 3, x, w, n, 1e-6f), vec_rms_norm(set_fast, b + 3, x, w, n, 1e-6f));
                BOTH(vec_rms_norm(set_generic, a + 3, a + 3, NULL, n, 1e-6f),
                     vec_rms_norm(set_fast, b + 3, b + 3, NULL, n, 1e-6f));
                assert_int_equal(vec_argmax(set_generic, base, n), vec_argmax(set_fast, base, n));
                double p = vec_logsumexp(set_generic, base, n), q = vec_logsumexp(set_fast, base, n);
                assert_true(isnan(p) ? isnan(q) : p == q);
            }
            for (int neox = 0; neox < 2; neox++)
                BOTH(vec_rope(set_generic, a + 3, w, (uint32_t)(n & ~(size_t)1), neox),
                     vec_rope(set_fast, b + 3, w, (uint32_t)(n & ~(size_t)1), neox));
        }
}

/* Scalar and vector versions of exp and tanh over a fine walk through all floats: softcap with cap 1 is tanh, and
 * logsumexp of (x, 0) shows exp through its sum; silu has both signs of the exponent. */
static void bits_agree_over_all_binades(void **state) {
    (void)state;
    if (!set_fast) skip();
    float a[64], b[64], ones[64];
    for (int i = 0; i < 64; i++) ones[i] = 1;
    for (uint64_t u = 0; u < 0x100000000; u += 64 * 4099) {
        for (uint64_t i = 0; i < 64; i++) {
            uint32_t v = (uint32_t)(u + i * 4099);
            memcpy(&a[i], &v, sizeof v);
        }
        memcpy(b, a, sizeof a);
        vec_softcap(set_generic, a, 1, 64);
        vec_softcap(set_fast, b, 1, 64);
        same(a, b, 64);
        for (uint64_t i = 0; i < 64; i++) {
            uint32_t v = (uint32_t)(u + i * 4099);
            memcpy(&a[i], &v, sizeof v);
        }
        memcpy(b, a, sizeof a);
        vec_silu_mul(set_generic, a, ones, 64);
        vec_silu_mul(set_fast, b, ones, 64);
        same(a, b, 64);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_double),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(turns_are_sincos),
        cmocka_unit_test(between_bounds),
        cmocka_unit_test(argmax_and_sums_of_odd_inputs),
        cmocka_unit_test(bits_agree),
        cmocka_unit_test(bits_agree_over_all_binades),
    };
    set_generic = kernels_get("generic");
    set_fast = kernels_get(NULL);
    if (set_fast == set_generic) set_fast = NULL;
    if (!set_fast) print_message("this machine's best kernels are the generic ones: nothing to compare them with\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
