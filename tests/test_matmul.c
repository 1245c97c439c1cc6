/* test_matmul.c - the matrix products: generic against double precision, all sets of kernels against generic bit by bit.
 *
 * Weights are random block bytes with sane scales, so that every bit of every format matters.  The reference
 * dequantises with tensor_dequant_row and sums in double; with the activations as quantised it bounds the arithmetic,
 * with the ones given it bounds the quantisation: half a step of the block's scale per element. */
#include "base/mem.h"
#include "kernels/mm_layout.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const tensor_type all_types[] = {TENSOR_F32,    TENSOR_F16,    TENSOR_BF16,   TENSOR_Q4_0,
                                        TENSOR_Q4_1,   TENSOR_Q5_0,   TENSOR_Q5_1,   TENSOR_Q8_0,
                                        TENSOR_Q2_K,   TENSOR_Q3_K,   TENSOR_Q4_K,   TENSOR_Q5_K,
                                        TENSOR_Q6_K,   TENSOR_IQ4_NL, TENSOR_IQ4_XS};
enum { N_TYPES = sizeof all_types / sizeof *all_types };

static uint64_t rng = 88172645463325252u;
static uint32_t rnd(void) { /* xorshift64*, high half */
    rng ^= rng >> 12, rng ^= rng << 25, rng ^= rng >> 27;
    return (uint32_t)((rng * 2685821657736338717u) >> 32);
}
static float rndf(void) { return (float)(int32_t)rnd() * 0x1p-31f; }

static const tensor_type_info *info_of(tensor_type t) { return tensor_type_get((uint32_t)t); }
static const char *name_of(tensor_type t) { return info_of(t)->name; }
static uint32_t block_of(tensor_type t) { return info_of(t)->block_elems; }
static size_t row_bytes(tensor_type t, uint32_t n) { return (size_t)(n / block_of(t)) * info_of(t)->block_bytes; }
static void dequant(tensor_type t, const uint8_t *row, float *w, uint32_t n) {
    assert_true(tensor_dequant_row(t, row, w, n));
}
static bool is_float(tensor_type t) { return block_of(t) == 1; }

/* Where a block keeps its half precision scale and min; -1: none. */
static void half_fields(tensor_type t, int *d, int *m) {
    *d = 0;
    *m = -1;
    switch ((int)t) {
    case TENSOR_Q4_1:
    case TENSOR_Q5_1:
    case TENSOR_Q4_K:
    case TENSOR_Q5_K: *m = 2; break;
    case TENSOR_Q2_K: *d = 80, *m = 82; break;
    case TENSOR_Q3_K: *d = 108; break;
    case TENSOR_Q6_K: *d = 208; break;
    default: break;
    }
}

/* fill: -1 random, else every byte (other than scales) is `fill`, with scale 1 and min 1. */
static void make_weights(tensor_type t, uint8_t *dst, uint32_t n_rows, uint32_t n_cols, int fill) {
    size_t bytes = row_bytes(t, n_cols) * n_rows, block = info_of(t)->block_bytes;
    int d, m;
    if (is_float(t)) {
        for (size_t i = 0; i < (size_t)n_rows * n_cols; i++) {
            float f = fill < 0 ? rndf() : 1;
            uint16_t h = float_to_half(f);
            uint32_t b;
            memcpy(&b, &f, 4);
            if (t == TENSOR_BF16) h = (uint16_t)(b >> 16);
            if (t == TENSOR_F32)
                memcpy(dst + 4 * i, &f, 4);
            else
                memcpy(dst + 2 * i, &h, 2);
        }
        return;
    }
    half_fields(t, &d, &m);
    for (size_t i = 0; i < bytes; i++) dst[i] = fill < 0 ? (uint8_t)rnd() : (uint8_t)fill;
    for (size_t i = 0; i < bytes; i += block) {
        uint16_t hd = float_to_half(fill < 0 ? rndf() * 0.01f : 1), hm = float_to_half(fill < 0 ? rndf() * 0.1f : 1);
        memcpy(dst + i + d, &hd, 2);
        if (m >= 0) memcpy(dst + i + m, &hm, 2);
    }
}

typedef struct {
    tensor_type type;
    uint32_t n, k, m;
    uint8_t *raw;
    float *x, *y;
    mm_weight w;
    void *act, *scratch;
    act_kind kind;
} problem;

static void problem_new(problem *p, const kernels *k, tensor_type t, uint32_t n, uint32_t n_cols, uint32_t m,
                        int fill) {
    p->type = t, p->n = n, p->k = n_cols, p->m = m;
    p->raw = hd_alloc(row_bytes(t, n_cols) * n);
    make_weights(t, p->raw, n, n_cols, fill);
    p->x = hd_alloc((size_t)m * n_cols * 4);
    for (size_t i = 0; i < (size_t)m * n_cols; i++) p->x[i] = rndf() * (i % 37 == 0 ? 8.0f : 1.0f);
    p->y = hd_alloc((size_t)m * n * 4);
    p->w = (mm_weight){.type = t, .n_rows = n, .n_cols = n_cols};
    p->w.data = hd_alloc_aligned(64, (size_t)mm_packed_bytes(k, t, n, n_cols));
    memset(p->w.data, 0xA5, (size_t)mm_packed_bytes(k, t, n, n_cols));
    mm_pack(k, &p->w, p->raw, 0, n);
    p->kind = mm_act_kind(k, t);
    p->act = hd_alloc_aligned(64, mm_act_bytes(k, p->kind, n_cols, m));
    mm_act_pack(k, p->kind, p->x, n_cols, n_cols, m, 0, m, p->act);
    p->scratch = hd_alloc_aligned(64, mm_scratch_bytes());
}
static void problem_free(problem *p) {
    hd_free(p->raw);
    hd_free(p->x);
    hd_free(p->y);
    hd_free_aligned(p->w.data);
    hd_free_aligned(p->act);
    hd_free_aligned(p->scratch);
}

/* The activation of token t, column c, as its record says, and its record's scale (0 for floats). */
static double act_value(const problem *p, uint32_t t, uint32_t c, float *scale) {
    uint32_t step, nb = mm_act_blocks(p->kind, p->k);
    const uint8_t *a = (const uint8_t *)p->act + mm_act_at(p->kind, nb, p->m, t, &step);
    const act_i8_32 *a8 = (const act_i8_32 *)a + (size_t)(c / 32) * step;
    const act_i8_256 *ak = (const act_i8_256 *)a + (size_t)(c / 256) * step;
    const act_i16_32 *a16 = (const act_i16_32 *)a + (size_t)(c / 32) * step;
    *scale = 0;
    switch (p->kind) {
    case ACT_I8_32: return (double)(*scale = a8->scale) * a8->q[c % 32];
    case ACT_I8_32_TOP: {
        uint32_t i = c % 32 - a8->at / 8;
        return (double)(*scale = a8->scale) * (a8->q[c % 32] + 128 * (i < 4 ? a8->top[i] : 0));
    }
    case ACT_I16_32:
    case ACT_I16_TOP: return (double)(*scale = a16->scale) * a16->q[c % 32 / 4 * 4 + (c % 4 == 1 ? 2 : c % 4 == 2 ? 1 : c % 4)];
    case ACT_I8_256: return (double)(*scale = ak->scale) * ak->q[c % 256];
    default: return ((const float *)a)[(size_t)c * step];
    }
}

static void check_reference(const kernels *k, tensor_type t, uint32_t n, uint32_t n_cols, uint32_t m, int fill) {
    problem p;
    float *w = hd_alloc(n_cols * sizeof *w);
    problem_new(&p, k, t, n, n_cols, m, fill);
    mm_mul(k, &p.w, p.act, m, p.y, n, 0, n, p.scratch);
    for (uint32_t r = 0; r < n; r++) {
        dequant(t, p.raw + r * row_bytes(t, n_cols), w, n_cols);
        for (uint32_t i = 0; i < m; i++) {
            double as_quantised = 0, as_given = 0, size = 0, slack = 0, got = p.y[i * n + r];
            for (uint32_t c = 0; c < n_cols; c++) {
                float scale;
                double a = act_value(&p, i, c, &scale), x = p.x[(size_t)i * n_cols + c];
                as_quantised += w[c] * a;
                as_given += w[c] * x;
                /* With a min, value and min cancel in w but are summed apart: count both sides. */
                size += (fabs(w[c]) + 40) * fabs(a) * (fill < 0 ? 1 : 64);
                slack += fabs((double)w[c]) * scale * 0.5001;
            }
            if (!(fabs(got - as_quantised) <= size * 2e-6) || !(fabs(got - as_given) <= slack + size * 2e-6)) {
                print_error("%s %ux%u row %u token %u: got %.9g, quantised %.9g, given %.9g (slack %g)\n", name_of(t),
                            n, n_cols, r, i, got, as_quantised, as_given, slack);
                fail();
            }
        }
    }
    problem_free(&p);
    hd_free(w);
}

static void generic_agrees_with_double(void **state) {
    const kernels *k = kernels_get("generic");
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        uint32_t b = block_of(all_types[i]);
        check_reference(k, all_types[i], 8, b == 1 ? 64 : b, 1, -1);
        check_reference(k, all_types[i], 19, b == 1 ? 77 : b * 3, 6, -1);
        check_reference(k, all_types[i], 24, 768, 5, -1);
    }
}

static void extremes_do_not_saturate(void **state) {
    static const int fills[] = {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f};
    (void)state;
    for (size_t path = 0; kernels_built(path); path++) {
        const kernels *k = kernels_get(kernels_built(path));
        for (int i = 0; k && i < N_TYPES; i++)
            for (int f = 0; f < 6; f++)
                for (int sign = 0; sign < 4; sign++) {
                    problem p;
                    float *w = hd_alloc(512 * sizeof *w);
                    problem_new(&p, k, all_types[i], 8, 512, 5, fills[f]);
                    for (uint32_t c = 0; c < 5 * 512; c++) /* all quants +-127, also alternating in each phase of 4 */
                        p.x[c] = sign == 0 ? 1 : sign == 1 ? -1 : (c >> (sign - 2)) & 1 ? 1 : -1;
                    mm_act_pack(k, p.kind, p.x, 512, 512, 5, 0, 5, p.act);
                    mm_mul(k, &p.w, p.act, 5, p.y, 8, 0, 8, p.scratch);
                    for (uint32_t r = 0; r < 8; r++) {
                        double want = 0, size = 0;
                        dequant(all_types[i], p.raw + r * row_bytes(all_types[i], 512), w, 512);
                        for (uint32_t c = 0; c < 512; c++) {
                            want += w[c] * (double)p.x[c];
                            size += fabs((double)w[c]) + 64;
                        }
                        for (uint32_t t = 0; t < 5; t++)
                            if (!(fabs(p.y[t * 8 + r] - want) <= size * 1e-5)) {
                                print_error("%s %s fill %02x sign %d: got %.9g want %.9g\n", kernels_built(path),
                                            name_of(all_types[i]), (unsigned)fills[f], sign, (double)p.y[t * 8 + r],
                                            want);
                                fail();
                            }
                    }
                    problem_free(&p);
                    hd_free(w);
                }
    }
}

static void assert_same_bits(const problem *p, const float *a, size_t lda, const float *b, size_t ldb, uint32_t m,
                             const char *what) {
    for (uint32_t t = 0; t < m; t++)
        for (uint32_t r = 0; r < p->n; r++) {
            float x = a[t * lda + r], y = b[t * ldb + r];
            if (memcmp(&x, &y, 4) && !(isnan(x) && isnan(y))) {
                print_error("%s, %s %ux%u m %u: row %u token %u: %.9g is not %.9g\n", what, name_of(p->type), p->n,
                            p->k, p->m, r, t, (double)x, (double)y);
                fail();
            }
        }
}

/* A path gives generic's bits, for every number of tokens and every split of rows and tokens. */
static void check_same(const kernels *k, tensor_type t, uint32_t n, uint32_t n_cols, uint32_t m) {
    const kernels *g = kernels_get("generic");
    size_t act_bytes, ldy = n + 3;
    act_kind kind = mm_act_kind(k, t); /* its own, of which generic has the definition */
    problem p;
    void *act, *want;
    float *y;
    problem_new(&p, g, t, n, n_cols, m, -1);
    if (m > 2) { /* odd tokens: all zeros, quiet, and a block of infinities */
        for (uint32_t c = 0; c < n_cols; c++) p.x[c] = 0, p.x[n_cols + c] *= 1e-31f;
        for (uint32_t i = 3; i < m; i++) p.x[i * n_cols + rnd() % n_cols] *= (float)(1u << rnd() % 20); /* one stands out */
        if (rnd() % 4 == 0) p.x[2 * n_cols + rnd() % n_cols] = rnd() % 2 ? INFINITY : -NAN;
        mm_act_pack(g, p.kind, p.x, n_cols, n_cols, m, 0, m, p.act);
    }
    mm_mul(g, &p.w, p.act, m, p.y, n, 0, n, p.scratch);

    act_bytes = mm_act_bytes(k, kind, n_cols, m);
    act = hd_alloc_aligned(64, act_bytes);
    want = hd_alloc_aligned(64, act_bytes);
    mm_act_pack(g, kind, p.x, n_cols, n_cols, m, 0, m, want);
    memset(act, 0x5A, act_bytes);
    for (uint32_t t0 = 0, t1; t0 < m; t0 = t1) {
        t1 = t0 + 4 * (1 + rnd() % 4);
        if (t1 > m) t1 = m;
        mm_act_pack(k, kind, p.x, n_cols, n_cols, m, t0, t1, act);
    }
    assert_memory_equal(act, want, mm_act_blocks(kind, n_cols) * mm_act_record(kind) * m);
    memset(act, 0x5A, act_bytes); /* and by columns */
    for (uint32_t c0 = 0, c1; c0 < n_cols; c0 = c1) {
        c1 = c0 + mm_act_unit(kind) * (1 + rnd() % 3);
        if (c1 > n_cols) c1 = n_cols;
        mm_act_pack_cols(k, kind, p.x, n_cols, n_cols, m, c0, c1, act);
    }
    assert_memory_equal(act, want, mm_act_blocks(kind, n_cols) * mm_act_record(kind) * m);

    y = hd_alloc(ldy * m * 4);
    for (size_t i = 0; i < ldy * m; i++) y[i] = 12345;
    for (uint32_t r0 = 0, r1; r0 < n; r0 = r1) {
        r1 = r0 + 8 * (1 + rnd() % (n / 8 + 1));
        if (r1 > n || rnd() % 3 == 0) r1 = n;
        mm_mul(k, &p.w, act, m, y, ldy, r0, r1, p.scratch);
    }
    assert_same_bits(&p, y, ldy, p.y, n, m, kernels_name(k));
    for (uint32_t i = 0; i < m; i++)
        for (size_t r = n; r < ldy; r++) assert_true(y[i * ldy + r] == 12345); /* nothing outside [r0, r1) */

    /* one token of m by itself */
    for (uint32_t i = 0; i < m; i += 1 + rnd() % 5) {
        mm_act_pack(k, kind, p.x + (size_t)i * n_cols, n_cols, n_cols, 1, 0, 1, act);
        mm_mul(k, &p.w, act, 1, y, n, 0, n, p.scratch);
        assert_same_bits(&p, y, n, p.y + (size_t)i * n, n, 1, "alone");
    }
    hd_free(y);
    hd_free_aligned(act);
    hd_free_aligned(want);
    problem_free(&p);
}

static void every_path_has_the_same_bits(void **state) {
    (void)state;
    for (size_t path = 0; kernels_built(path); path++) {
        const kernels *k = kernels_get(kernels_built(path));
        if (!k) {
            print_message("no %s on this machine\n", kernels_built(path));
            continue;
        }
        for (int i = 0; i < N_TYPES; i++) {
            tensor_type t = all_types[i];
            uint32_t b = block_of(t), step = k == kernels_get("generic") ? 7 : 1;
            for (uint32_t m = 1; m <= 41; m += step) {
                uint32_t n = 1 + rnd() % 90, cols = b == 1 ? 1 + rnd() % 150 : b * (1 + rnd() % (b == 32 ? 9 : 3));
                check_same(k, t, n, cols, m);
            }
            check_same(k, t, 64, b == 1 ? 512 : 1024, 3);
            if (step == 1) { /* past the block of columns and of k */
                check_same(k, t, 40, 256, 131);
                check_same(k, t, 24, b == 1 ? 1100 : 2304, 37);
                check_same(k, t, 40, b == 1 ? 1100 : 2304, 6 + rnd() % 12);
            }
        }
    }
}

static void not_a_number_stays_in_its_token(void **state) {
    (void)state;
    for (size_t path = 0; kernels_built(path); path++) {
        const kernels *k = kernels_get(kernels_built(path));
        for (int i = 0; k && i < N_TYPES; i++) {
            problem p;
            problem_new(&p, k, all_types[i], 16, 512, 6, -1);
            p.x[1 * 512 + 300] = NAN;
            p.x[3 * 512 + 5] = INFINITY;
            p.x[4 * 512 + 5] = 3e38f;
            mm_act_pack(k, p.kind, p.x, 512, 512, 6, 0, 6, p.act);
            mm_mul(k, &p.w, p.act, 6, p.y, 16, 0, 16, p.scratch);
            for (uint32_t t = 0; t < 6; t++)
                for (uint32_t r = 0; r < 16; r++) {
                    float v = p.y[t * 16 + r];
                    if (t == 1 || (t == 3 && !is_float(all_types[i])))
                        assert_true(isnan(v));
                    else if (t == 3)
                        assert_false(isfinite(v));
                    else if (t != 4)
                        assert_true(isfinite(v));
                }
            problem_free(&p);
        }
    }
}

/* ACT_I8_32_TOP: a block is exact to half a step, which is 1/127 of the second largest value, or the 16256th part of the
 * largest; and to half of 1/127 of the largest where that is no more than twice the second. */
static void a_column_may_stand_out(void **state) {
    static const float ratios[] = {1, 2, 2.001f, 5, 63.9f, 127.9f, 128, 129, 1000, 1e20f, -2.001f, -64, -127.99f, -1e6f};
    enum { N = 8, M = sizeof ratios / sizeof *ratios };
    static const int fills[] = {0x80, 0x7f, 0x81, -1};
    (void)state;
    for (size_t path = 0; kernels_built(path); path++) {
        const kernels *k = kernels_get(kernels_built(path));
        for (uint32_t at = 0; k && at < 64; at++) {
            float w[64];
            problem p;
            problem_new(&p, k, TENSOR_Q8_0, N, 64, M, fills[at % 4]);
            for (uint32_t t = 0; t < M; t++) {
                for (uint32_t c = 0; c < 64; c++) p.x[64 * t + c] = at % 3 ? rndf() : rnd() % 2 ? 1 : -1;
                p.x[64 * t + (at + 7) % 32 + at / 32 * 32] = 1; /* the second */
                p.x[64 * t + at] = ratios[t];
            }
            mm_act_pack(k, p.kind, p.x, 64, 64, M, 0, M, p.act);
            mm_mul(k, &p.w, p.act, M, p.y, N, 0, N, p.scratch);
            for (uint32_t t = 0; t < M; t++) { /* the step is as it should be, no finer and no coarser */
                double top = fabs((double)ratios[t]), step = top > 2 ? fmax(1. / 127, top / 16256) : fmax(top, 1) / 127;
                float scale;
                act_value(&p, t, at, &scale);
                assert_true(fabs(scale - step) <= 1e-6 * step);
            }
            for (uint32_t r = 0; r < N; r++) {
                dequant(TENSOR_Q8_0, p.raw + r * row_bytes(TENSOR_Q8_0, 64), w, 64);
                for (uint32_t t = 0; t < M; t++) {
                    double want = 0, slack = 0, size = 0, top = fabs((double)ratios[t]);
                    for (uint32_t c = 0; c < 64; c++) {
                        bool there = c / 32 == at / 32;
                        double step = !there ? 1. / 127 : top > 2 ? fmax(1. / 127, top / 16256) : fmax(top, 1) / 127;
                        want += (double)w[c] * p.x[64 * t + c];
                        size += fabs((double)w[c]) * (fabs(p.x[64 * t + c]) + 1);
                        slack += fabs((double)w[c]) * step / 2;
                    }
                    if (!(fabs(p.y[t * N + r] - want) <= slack * 1.0001 + size * 2e-6))
                        fail_msg("%s column %u ratio %g: %.9g is not %.9g (slack %g)", kernels_built(path), at, (double)ratios[t],
                                 (double)p.y[t * N + r], want, slack);
                }
            }
            problem_free(&p);
        }
    }
}

/* Scales that a file should not have: one block of row 3 has a NaN, one of row 5 is 0, row 6 is all zeros, one of row 9 is
 * infinite, one of row 10 is the least there is.  Rows with finite scales are as in double, and no row disturbs another. */
static void odd_scales_stay_in_their_rows(void **state) {
    static const struct {
        uint32_t row;
        uint16_t bits;
    } odd[] = {{3, 0x7e01}, {5, 0x0000}, {6, 0x8000}, {9, 0x7c00}, {10, 0x0001}};
    enum { N = 16, K = 512, M = 9 };
    (void)state;
    for (size_t path = 0; kernels_built(path); path++) {
        const kernels *k = kernels_get(kernels_built(path));
        for (int i = 0; k && i < N_TYPES; i++) {
            tensor_type t = all_types[i];
            size_t row = row_bytes(t, K), block = info_of(t)->block_bytes;
            float w[K], before[N * M];
            problem p;
            int d, min;
            if (is_float(t)) continue;
            half_fields(t, &d, &min);
            problem_new(&p, k, t, N, K, M, -1);
            mm_mul(k, &p.w, p.act, M, before, N, 0, N, p.scratch);
            for (size_t j = 0; j < sizeof odd / sizeof *odd; j++) {
                uint8_t *b = p.raw + odd[j].row * row + block; /* the second block */
                memcpy(b + d, &odd[j].bits, 2);
                if (min >= 0) memcpy(b + min, &odd[j].bits, 2);
            }
            memset(p.raw + 6 * row, 0, row);
            mm_pack(k, &p.w, p.raw, 0, N);
            mm_mul(k, &p.w, p.act, M, p.y, N, 0, N, p.scratch);
            for (uint32_t r = 0; r < N; r++) {
                dequant(t, p.raw + r * row, w, K);
                for (uint32_t m = 0; m < M; m++) {
                    float got = p.y[m * N + r];
                    double want = 0, size = 0;
                    for (uint32_t c = 0; c < K; c++) {
                        float scale;
                        double a = act_value(&p, m, c, &scale);
                        want += w[c] * a;
                        size += (fabs((double)w[c]) + 40) * fabs(a);
                    }
                    if (r == 3) assert_true(isnan(got));
                    else if (r == 9) assert_false(isfinite(got));
                    else if (r == 6) assert_true(got == 0);
                    else if (r == 5 || r == 10) assert_true(fabs(got - want) <= size * 2e-6);
                    else assert_memory_equal(&got, &before[m * N + r], sizeof got);
                }
            }
            problem_free(&p);
        }
    }
}

static void sizes(void **state) {
    const kernels *k = kernels_get("generic");
    (void)state;
    assert_false(mm_supported(TENSOR_I32));
    assert_int_equal(mm_packed_bytes(k, TENSOR_I32, 8, 32), 0);
    assert_int_equal(mm_packed_bytes(k, TENSOR_Q4_0, 16, 576), 2 * 9 * 288);
    assert_int_equal(mm_packed_bytes(k, TENSOR_Q8_0, 9, 96), 2 * 2 * 544);
    for (size_t i = 0; kernels_built(i); i++) {
        const kernels *s = kernels_get(kernels_built(i));
        bool words = s && !strcmp(kernels_name(s), "avx2");
        if (!s) continue;
        assert_int_equal(mm_act_kind(s, TENSOR_Q8_0), words ? ACT_I16_TOP : ACT_I8_32_TOP);
        assert_int_equal(mm_act_kind(s, TENSOR_IQ4_NL), words ? ACT_I16_32 : ACT_I8_32);
        assert_int_equal(mm_act_kind(s, TENSOR_IQ4_XS), words ? ACT_I16_32 : ACT_I8_32);
    }
    assert_int_equal(mm_packed_bytes(k, TENSOR_F32, 1, 1), 256);
    assert_true(mm_packed_bytes(k, TENSOR_F32, UINT32_MAX, UINT32_MAX - 8) > UINT64_C(1) << 60);
    assert_int_equal(mm_act_bytes(k, ACT_I8_256, 512, 3) % 64, 0);
    assert_null(kernels_get("none"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(generic_agrees_with_double),
        cmocka_unit_test(extremes_do_not_saturate),
        cmocka_unit_test(every_path_has_the_same_bits),
        cmocka_unit_test(not_a_number_stays_in_its_token),
        cmocka_unit_test(a_column_may_stand_out),
        cmocka_unit_test(odd_scales_stay_in_their_rows),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
