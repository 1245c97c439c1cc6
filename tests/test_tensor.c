/* test_tensor.c - block formats, both ways, against files made with the gguf Python package (golden/make_blocks.py),
 * and the quality of the writers that are our own. */
#include "base/philox.h"
#include "tensor/block.h"
#include "tensor/type.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *read_file(const char *name, size_t *n) {
    char path[500];
    FILE *f;
    unsigned char *p;
    snprintf(path, sizeof path, "%s/golden/%s", TEST_DIR, name);
    f = fopen(path, "rb");
    assert_non_null(f);
    p = malloc(1 << 20);
    assert_non_null(p);
    *n = fread(p, 1, 1 << 20, f);
    assert_true(*n > 0 && *n < 1 << 20);
    fclose(f);
    return p;
}

/* Calls check(type, n_elems, n_bytes, first part, second part) for each record; returns the number of records. */
typedef void (*record_fn)(uint32_t type, uint32_t elems, uint32_t bytes, const unsigned char *values,
                          const unsigned char *blocks);

static int records(const char *name, bool blocks_first, record_fn check) {
    size_t n, at = 0;
    unsigned char *p = read_file(name, &n);
    int count = 0;
    while (at < n) {
        uint32_t head[3];
        const unsigned char *a, *b;
        memcpy(head, p + at, 12);
        at += 12;
        a = p + at, b = a + (blocks_first ? head[2] : 4 * head[1]);
        at += head[2] + 4 * head[1];
        assert_true(at <= n);
        if (blocks_first)
            check(head[0], head[1], head[2], b, a);
        else
            check(head[0], head[1], head[2], a, b);
        count++;
    }
    free(p);
    return count;
}

static void check_read(uint32_t type, uint32_t elems, uint32_t bytes, const unsigned char *values,
                       const unsigned char *blocks) {
    const tensor_type_info *info = tensor_type_get(type);
    float *got = malloc(4 * elems);
    unsigned char *odd = malloc(bytes + 1); /* blocks need no alignment */
    assert_non_null(info);
    assert_non_null(got);
    assert_non_null(odd);
    assert_int_equal(elems % info->block_elems, 0);
    assert_int_equal(bytes, elems / info->block_elems * info->block_bytes);
    memcpy(odd + 1, blocks, bytes);
    assert_true(tensor_dequant_row((tensor_type)type, odd + 1, got, elems));
    for (uint32_t i = 0; i < elems; i++)
        if (memcmp(got + i, values + 4 * i, 4)) {
            float want;
            memcpy(&want, values + 4 * i, 4);
            fail_msg("%s element %u: %a, not %a", info->name, i, (double)got[i], (double)want);
        }
    free(got);
    free(odd);
}

static void blocks_are_read_bit_for_bit(void **state) {
    (void)state;
    assert_int_equal(records("blocks.bin", true, check_read), 15);
}

static void check_write(uint32_t type, uint32_t elems, uint32_t bytes, const unsigned char *values,
                        const unsigned char *blocks) {
    const tensor_type_info *info = tensor_type_get(type);
    float *x = malloc(4 * elems);
    unsigned char *got = malloc(bytes);
    assert_non_null(x);
    assert_non_null(got);
    memcpy(x, values, 4 * elems);
    assert_true(tensor_quant_row((tensor_type)type, x, got, elems));
    for (uint32_t i = 0; i < bytes; i++)
        if (got[i] != blocks[i])
            fail_msg("%s block %u byte %u: %02x, not %02x", info->name, i / info->block_bytes, i % info->block_bytes,
                     got[i], blocks[i]);
    free(x);
    free(got);
}

static void plain_blocks_are_written_bit_for_bit(void **state) {
    (void)state;
    assert_int_equal(records("quants.bin", false, check_write), 8);
}

/* Every half is itself again, and NaN stays NaN. */
static void halves_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = half_to_float((uint16_t)h);
        if ((h & 0x7FFF) > 0x7C00) {
            assert_true(isnan(f));
            assert_true(isnan(half_to_float(float_to_half(f))));
        } else
            assert_int_equal(float_to_half(f), h);
    }
}

static void types_without_reals(void **state) {
    float x[1] = {0};
    (void)state;
    assert_false(tensor_dequant_row(TENSOR_I32, x, x, 1));
    assert_false(tensor_quant_row(TENSOR_I8, x, x, 1));
    assert_false(tensor_dequant_row((tensor_type)999, x, x, 1));
    assert_null(tensor_type_get(9));
    assert_null(tensor_type_get(UINT32_MAX));
}

static void packed_scales_round_trip(void **state) {
    uint8_t a[16], b[16], p[12];
    (void)state;
    for (int round = 0; round < 64; round++) {
        for (int s = 0; s < 16; s++)
            a[s] = (uint8_t)((s * 11 + round) & 63), b[s] = (uint8_t)((s * 23 + 5 * round) & 63);
        block_k4_pack(p, a, b);
        for (int s = 0; s < 8; s++) {
            int scale, min;
            block_k4_scale(p, s, &scale, &min);
            assert_int_equal(scale, a[s]);
            assert_int_equal(min, b[s]);
        }
        block_q3_pack(p, a);
        for (int s = 0; s < 16; s++) assert_int_equal(block_q3_scale(p, s), a[s]);
    }
}

/* Box-Muller over Philox: the same values everywhere. */
static float normal(uint32_t i) {
    double u = philox_uniform(7, 0, 2 * i, PHILOX_SAMPLE), v = philox_uniform(7, 0, 2 * i + 1, PHILOX_SAMPLE);
    return (float)(sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
}

enum { N_QUALITY = 64 * 256 };

/* Values like those of a trained matrix: normal, in columns of unequal scale, with a few far out. */
static float *weights_like(void) {
    float *x = malloc(4 * N_QUALITY);
    assert_non_null(x);
    for (uint32_t i = 0; i < N_QUALITY; i++) {
        float v = normal(i) * 0.04f * (1 + 0.5f * (float)(i / 64 % 4));
        x[i] = i % 97 == 0 ? v * 4 : v;
    }
    return x;
}

/* Root of the mean square error, relative to the root mean square of the values. */
static double error_of(tensor_type type, const float *x, size_t n) {
    const tensor_type_info *info = tensor_type_get(type);
    unsigned char *b = malloc(n / info->block_elems * info->block_bytes);
    float *y = malloc(4 * n);
    double err = 0, sum = 0;
    assert_non_null(b);
    assert_non_null(y);
    assert_true(tensor_quant_row(type, x, b, n));
    assert_true(tensor_dequant_row(type, b, y, n));
    for (size_t i = 0; i < n; i++) {
        double e = (double)x[i] - (double)y[i];
        err += e * e;
        sum += (double)x[i] * (double)x[i];
    }
    free(b);
    free(y);
    return sqrt(err / sum);
}

/* `reference`: what ggml's writers of these formats reach on the same values (golden/quality.py). */
static void writers_are_no_worse_than_the_reference(void **state) {
    static const struct {
        tensor_type type;
        double reference;
    } cases[] = {
        {TENSOR_Q2_K, 0.318074}, {TENSOR_Q3_K, 0.169825},   {TENSOR_Q4_K, 0.077897},   {TENSOR_Q5_K, 0.039992},
        {TENSOR_Q6_K, 0.020494}, {TENSOR_IQ4_NL, 0.086229}, {TENSOR_IQ4_XS, 0.087377},
    };
    float *x = weights_like();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double e = error_of(cases[i].type, x, N_QUALITY);
        if (!(e <= cases[i].reference))
            fail_msg("%s: relative error %.6f, the reference has %.6f", tensor_type_get(cases[i].type)->name, e,
                     cases[i].reference);
    }
    free(x);
}

/* Nothing a row can hold makes a writer misbehave, and zeros stay zeros. */
static void odd_rows(void **state) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 1e-39f, 0};
    (void)state;
#define X(id, name, gguf, elems, bytes)                                                                                \
    {                                                                                                                  \
        float x[256], y[256];                                                                                          \
        unsigned char b[256 * 8];                                                                                      \
        memset(x, 0, sizeof x);                                                                                        \
        if (tensor_quant_row(TENSOR_##id, x, b, 256)) {                                                                \
            assert_true(tensor_dequant_row(TENSOR_##id, b, y, 256));                                                   \
            for (int i = 0; i < 256; i++) assert_true(y[i] == 0);                                                      \
            for (size_t k = 0; k < sizeof odd / sizeof *odd; k++)                                                      \
                for (int share = 1; share <= 256; share *= 16) {                                                       \
                    for (int i = 0; i < 256; i++) x[i] = i % share ? normal((uint32_t)i) : odd[k];                     \
                    assert_true(tensor_quant_row(TENSOR_##id, x, b, 256));                                             \
                    assert_true(tensor_dequant_row(TENSOR_##id, b, y, 256));                                           \
                }                                                                                                      \
        }                                                                                                              \
    }
    TENSOR_TYPES(X)
#undef X
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_read_bit_for_bit),
        cmocka_unit_test(plain_blocks_are_written_bit_for_bit),
        cmocka_unit_test(halves_round_trip),
        cmocka_unit_test(types_without_reals),
        cmocka_unit_test(packed_scales_round_trip),
        cmocka_unit_test(writers_are_no_worse_than_the_reference),
        cmocka_unit_test(odd_rows),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
