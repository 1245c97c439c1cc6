/* test_attention.c - attention over pages: against naive double precision, and the same bits for every kernel set, page
 * size, chunk, group split and window, with everything that must not be read poisoned or absent. */
#include "base/mem.h"
#include "base/philox.h"
#include "kernels/kernels.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

static const kernels *set_generic, *set_fast; /* set_fast: the best there is, or NULL when that is generic */

static float rnd(uint32_t a, uint32_t b) { /* about normal */
    uint32_t ctr[4] = {a, b, 0, 0}, key[2] = {17, 5}, out[4];
    double s = 0;
    philox4x32(ctr, key, out);
    for (int j = 0; j < 4; j++) s += out[j] * 0x1p-32;
    return (float)((s - 2) * 1.7);
}
static float key_at(uint32_t pos, uint32_t d) { return rnd(pos, d); }
static float value_at(uint32_t pos, uint32_t d) { return rnd(pos, d + 10000); }
static float query_at(uint32_t pos, uint32_t h, uint32_t d) { return rnd(pos, 20000 + h * 600 + d); }
static float cached(tensor_type t, float x) { return t == TENSOR_F16 ? half_to_float(float_to_half(x)) : x; }

/* ---- a row's pages ---- */

typedef struct {
    kv_shape shape;
    size_t k_off, v_off, bytes;
    uint32_t n_pages;
    void **pages;
} row;

/* Positions [from, n) stored; pages wholly before `from` are absent; all other bytes are NaN. */
static row row_new(const kernels *k, kv_shape shape, uint32_t from, uint32_t n) {
    row r = {.shape = shape, .k_off = 64, .v_off = 128 + kv_head_bytes(&shape)};
    float key[512], value[512];
    r.bytes = r.v_off + kv_head_bytes(&shape) + 64;
    r.n_pages = (n + shape.page_tokens - 1) / shape.page_tokens;
    r.pages = hd_calloc(r.n_pages + 1, sizeof *r.pages);
    assert_non_null(r.pages);
    for (uint32_t i = from / shape.page_tokens; i < r.n_pages; i++) {
        assert_non_null(r.pages[i] = hd_alloc_aligned(64, r.bytes));
        memset(r.pages[i], 0xff, r.bytes);
    }
    for (uint32_t p = from; p < n; p++) {
        for (uint32_t d = 0; d < shape.head_dim; d++) {
            key[d] = key_at(p, d);
            value[d] = value_at(p, d);
        }
        kv_store(k, &shape, r.pages[p / shape.page_tokens], r.k_off, r.v_off, p % shape.page_tokens, key, value);
    }
    return r;
}

static void row_free(row *r) {
    for (uint32_t i = 0; i < r->n_pages; i++) hd_free_aligned(r->pages[i]);
    hd_free(r->pages);
}

/* ---- a case: what is asked, answered in one call or in many ---- */

typedef struct {
    uint32_t head_dim, group, pos0, n_q, kv_end, window;
    float softcap;
    bool sinks;
    tensor_type type;
} ask;

static const float sink_values[16] = {0.5f, -1, 2, 0, 1.5f, 3, -2, 0.25f, 1, 0.1f, 0.2f, 0.3f, 4, -4, 5, 0};

static uint32_t ask_end(const ask *a) { return a->kv_end ? a->kv_end : a->pos0 + a->n_q; }
static uint32_t ask_begin(const ask *a) { return a->window && a->pos0 >= a->window ? a->pos0 - a->window + 1 : 0; }

/* out[n_q][group][head_dim], asked in pieces of dq queries and dh heads. */
static float *answer(const kernels *k, const ask *a, uint32_t page_tokens, uint32_t dq, uint32_t dh) {
    kv_shape shape = {a->head_dim, page_tokens, a->type};
    row r = row_new(k, shape, ask_begin(a), ask_end(a));
    size_t stride = (size_t)a->group * a->head_dim, n = a->n_q * stride;
    float *q = hd_alloc_aligned(64, (n + stride) * sizeof *q), *out = hd_alloc_aligned(64, (n + 1) * sizeof *out);
    void *scratch = hd_alloc_aligned(64, attn_scratch_bytes(ask_end(a), a->group));
    assert_true(q && out && scratch);
    for (uint32_t i = 0; i < a->n_q; i++)
        for (uint32_t h = 0; h < a->group; h++)
            for (uint32_t d = 0; d < a->head_dim; d++)
                q[i * stride + h * a->head_dim + d] = query_at(a->pos0 + i, h, d);
    for (size_t i = 0; i < n; i++) out[i] = NAN;
    out[n] = 77;
    for (uint32_t i = 0; i < a->n_q; i += dq)
        for (uint32_t h = 0; h < a->group; h += dh) {
            memset(scratch, 0xff, attn_scratch_bytes(ask_end(a), a->group)); /* nothing may live there between calls */
            attn_job job = {
                .shape = shape,
                .pages = (const void *const *)r.pages,
                .k_off = r.k_off,
                .v_off = r.v_off,
                .n_group = a->group - h < dh ? a->group - h : dh,
                .q = q + i * stride + h * a->head_dim,
                .out = out + i * stride + h * a->head_dim,
                .ldq = stride,
                .ldout = stride,
                .pos0 = a->pos0 + i,
                .n_q = a->n_q - i < dq ? a->n_q - i : dq,
                .kv_end = a->kv_end,
                .window = a->window,
                .scale = 1 / sqrtf((float)a->head_dim),
                .softcap = a->softcap,
                .sinks = a->sinks ? sink_values + h : NULL,
            };
            attn_run(k, &job, scratch);
        }
    assert_true(out[n] == 77);
    hd_free_aligned(scratch);
    hd_free_aligned(q);
    row_free(&r);
    return out;
}

static void check_double(const ask *a, const float *out) {
    for (uint32_t i = 0; i < a->n_q; i++)
        for (uint32_t h = 0; h < a->group; h++) {
            uint32_t p = a->pos0 + i, hi = a->kv_end ? a->kv_end : p + 1, lo = 0;
            static double w[5000];
            double want[512] = {0}, max = -INFINITY, sum = 0;
            if (a->window && p + 1 > a->window) lo = p + 1 - a->window;
            for (uint32_t j = lo; j < hi; j++) {
                double s = 0;
                for (uint32_t d = 0; d < a->head_dim; d++)
                    s += (double)query_at(p, h, d) * (double)cached(a->type, key_at(j, d));
                s *= (double)(1 / sqrtf((float)a->head_dim));
                if (a->softcap > 0) s = (double)a->softcap * tanh(s / (double)a->softcap);
                w[j] = s;
                max = fmax(max, s);
            }
            if (a->sinks) max = fmax(max, (double)sink_values[h]);
            for (uint32_t j = lo; j < hi; j++) {
                sum += w[j] = exp(w[j] - max);
                for (uint32_t d = 0; d < a->head_dim; d++) want[d] += w[j] * (double)cached(a->type, value_at(j, d));
            }
            if (a->sinks) sum += exp((double)sink_values[h] - max);
            for (uint32_t d = 0; d < a->head_dim; d++) {
                double got = (double)out[(i * a->group + h) * a->head_dim + d], w_d = lo < hi ? want[d] / sum : 0;
                if (!(fabs(got - w_d) <= 2e-6))
                    fail_msg("hd %u group %u pos %u head %u dim %u: got %.9g, want %.9g", a->head_dim, a->group, p, h,
                             d, got, w_d);
            }
        }
}

static void same(const ask *a, const float *x, const float *y, const char *what, uint32_t arg) {
    for (size_t i = 0; i < (size_t)a->n_q * a->group * a->head_dim; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0)
            fail_msg("%s %u: hd %u group %u pos0 %u n_q %u end %u window %u: element %zu is %.9g, was %.9g", what, arg,
                     a->head_dim, a->group, a->pos0, a->n_q, a->kv_end, a->window, i, (double)y[i], (double)x[i]);
}

static const ask cases[] = {
    /* decode at several depths and groups */
    {.head_dim = 64, .group = 1, .pos0 = 0, .n_q = 1, .type = TENSOR_F16},
    {.head_dim = 64, .group = 3, .pos0 = 255, .n_q = 1, .type = TENSOR_F16},
    {.head_dim = 64, .group = 4, .pos0 = 700, .n_q = 1, .type = TENSOR_F16},
    {.head_dim = 128, .group = 8, .pos0 = 515, .n_q = 1, .type = TENSOR_F16},
    {.head_dim = 256, .group = 2, .pos0 = 300, .n_q = 1, .type = TENSOR_F32},
    {.head_dim = 80, .group = 5, .pos0 = 97, .n_q = 1, .type = TENSOR_F16},
    {.head_dim = 96, .group = 7, .pos0 = 31, .n_q = 2, .type = TENSOR_F16},
    /* prefill and verify segments */
    {.head_dim = 64, .group = 3, .pos0 = 0, .n_q = 37, .type = TENSOR_F16},
    {.head_dim = 64, .group = 4, .pos0 = 250, .n_q = 70, .type = TENSOR_F16},
    {.head_dim = 128, .group = 1, .pos0 = 9, .n_q = 50, .type = TENSOR_F32},
    {.head_dim = 512, .group = 2, .pos0 = 250, .n_q = 9, .type = TENSOR_F16},
    {.head_dim = 64, .group = 16, .pos0 = 12, .n_q = 5, .type = TENSOR_F16},
    /* head widths that leave half a vector */
    {.head_dim = 8, .group = 2, .pos0 = 40, .n_q = 3, .type = TENSOR_F16},
    {.head_dim = 24, .group = 3, .pos0 = 250, .n_q = 13, .type = TENSOR_F32},
    {.head_dim = 72, .group = 1, .pos0 = 20, .n_q = 8, .type = TENSOR_F16},
    /* windows: shorter than the segment, across block ends, larger than the context */
    {.head_dim = 64, .group = 4, .pos0 = 600, .n_q = 40, .window = 33, .type = TENSOR_F16},
    {.head_dim = 32, .group = 2, .pos0 = 500, .n_q = 30, .window = 300, .type = TENSOR_F32},
    {.head_dim = 64, .group = 1, .pos0 = 900, .n_q = 1, .window = 512, .type = TENSOR_F16},
    {.head_dim = 64, .group = 2, .pos0 = 70, .n_q = 5, .window = 1, .type = TENSOR_F16},
    {.head_dim = 64, .group = 2, .pos0 = 70, .n_q = 5, .window = 4000, .type = TENSOR_F16},
    /* bidirectional, with and without a window, also one that sees nothing */
    {.head_dim = 64, .group = 2, .pos0 = 0, .n_q = 45, .kv_end = 45, .type = TENSOR_F16},
    {.head_dim = 64, .group = 3, .pos0 = 260, .n_q = 20, .kv_end = 280, .window = 100, .type = TENSOR_F16},
    {.head_dim = 16, .group = 2, .pos0 = 30, .n_q = 10, .kv_end = 34, .window = 3, .type = TENSOR_F16},
    /* softcap and sinks */
    {.head_dim = 64, .group = 2, .pos0 = 280, .n_q = 6, .softcap = 1.5f, .type = TENSOR_F16},
    {.head_dim = 64, .group = 8, .pos0 = 300, .n_q = 3, .window = 128, .sinks = true, .type = TENSOR_F16},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void against_double(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        float *out = answer(set_generic, &cases[c], 64, cases[c].n_q, cases[c].group);
        check_double(&cases[c], out);
        hd_free_aligned(out);
    }
}

static void sets_agree_and_nothing_else_matters(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        const ask *a = &cases[c];
        float *base = answer(set_generic, a, 64, a->n_q, a->group);
        for (int s = 0; s < 2; s++) {
            const kernels *k = s ? set_fast : set_generic;
            static const uint32_t page_sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
            static const uint32_t chunks[] = {1, 2, 3, 7, 16, 31};
            if (!k) continue;
            for (size_t i = 0; i < sizeof page_sizes / sizeof *page_sizes; i++) {
                if (!s && page_sizes[i] != 2 && page_sizes[i] != 128) continue; /* the plain one is slow */
                float *x = answer(k, a, page_sizes[i], a->n_q, a->group);
                same(a, base, x, "page size", page_sizes[i]);
                hd_free_aligned(x);
            }
            for (size_t i = 0; s && i < sizeof chunks / sizeof *chunks; i++) {
                if (chunks[i] >= a->n_q) continue;
                float *x = answer(k, a, i % 2 ? 64 : 16, chunks[i], a->group);
                same(a, base, x, "chunk", chunks[i]);
                hd_free_aligned(x);
            }
            for (uint32_t dh = 1; s && dh < a->group; dh += dh < 3 ? 1 : 3) {
                float *x = answer(k, a, 64, a->n_q, dh);
                same(a, base, x, "heads", dh);
                hd_free_aligned(x);
            }
        }
        hd_free_aligned(base);
    }
    assert_int_equal(hd_mem_live(), 0);
}

/* Random asks: the fast set against the definition. */
static void random_asks(void **state) {
    (void)state;
    if (!set_fast) skip();
    for (uint32_t t = 0; t < 120; t++) {
        uint32_t ctr[4] = {t, 99, 0, 0}, key[2] = {1, 2}, r[4];
        philox4x32(ctr, key, r);
        ask a = {.head_dim = 8 * (1 + r[0] % 12), .group = 1 + r[0] / 16 % 9, .pos0 = r[1] % 700,
                 .n_q = 1 + r[2] % (t % 4 ? 4 : 60), .type = r[3] % 2 ? TENSOR_F16 : TENSOR_F32};
        if (r[3] / 2 % 3 == 0) a.window = 1 + r[3] / 8 % 400;
        if (r[3] / 2 % 5 == 0) a.kv_end = a.pos0 + r[3] / 16 % a.n_q + 1;
        if (r[3] / 2 % 7 == 0) a.softcap = 20;
        float *x = answer(set_generic, &a, 1u << r[3] / 64 % 8, a.n_q, a.group);
        float *y = answer(set_fast, &a, 1u << r[3] / 512 % 8, 1 + r[2] / 64 % a.n_q, 1 + r[2] / 8192 % a.group);
        same(&a, x, y, "random", t);
        hd_free_aligned(x);
        hd_free_aligned(y);
    }
}

static void stores_round_to_nearest_even(void **state) {
    (void)state;
    const kernels *sets[] = {set_generic, set_fast};
    static const float in[] = {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 1.0f + 0x1.01p-11f, 65519.0f, 65520.0f, -65520.0f,
                               0x1p-25f, 0x1.01p-25f, -0x1p-25f, 0x1p-14f - 0x1p-26f, INFINITY, 0x1p-24f, 3.140625f,
                               -0.0f, 1e-30f, -1.0f - 0x1p-11f};
    static const uint16_t want[] = {0x3c00, 0x3c02, 0x3c01, 0x7bff, 0x7c00, 0xfc00, 0x0000, 0x0001,
                                    0x8000, 0x0400, 0x7c00, 0x0001, 0x4248, 0x8000, 0x0000, 0xbc00};
    for (int s = 0; s < 2; s++)
        for (uint32_t page_tokens = 1; page_tokens <= 64; page_tokens *= 8) {
            if (!sets[s]) continue;
            kv_shape shape = {16, page_tokens, TENSOR_F16};
            uint16_t *page = hd_alloc_aligned(64, 2 * kv_head_bytes(&shape));
            size_t v_off = kv_head_bytes(&shape);
            assert_non_null(page);
            memset(page, 0, 2 * kv_head_bytes(&shape));
            uint32_t slot = page_tokens - 1, b = page_tokens < 16 ? page_tokens : 16;
            kv_store(sets[s], &shape, page, 0, v_off, slot, in, in);
            for (uint32_t d = 0; d < 16; d++) {
                assert_int_equal(page[(slot / b * 16 + d) * b + slot % b], want[d]);
                assert_int_equal(page[v_off / 2 + slot * 16 + d], want[d]);
            }
            hd_free_aligned(page);
        }
}

/* NaN and infinite inputs give what they give, but end and touch nothing else. */
static void odd_numbers_do_no_harm(void **state) {
    (void)state;
    const kernels *sets[] = {set_generic, set_fast};
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    for (int s = 0; s < 2; s++)
        for (size_t o = 0; o < sizeof odd / sizeof *odd; o++) {
            if (!sets[s]) continue;
            kv_shape shape = {32, 16, TENSOR_F32};
            float x[32], q[64], out[65];
            void *pages[3], *scratch = hd_alloc_aligned(64, attn_scratch_bytes(40, 2));
            for (int i = 0; i < 3; i++) assert_non_null(pages[i] = hd_alloc_aligned(64, 2 * kv_head_bytes(&shape)));
            for (uint32_t p = 0; p < 40; p++) {
                for (int d = 0; d < 32; d++) x[d] = p == 20 ? odd[o] : 0.5f;
                kv_store(sets[s], &shape, pages[p / 16], 0, kv_head_bytes(&shape), p % 16, x, x);
            }
            for (int d = 0; d < 64; d++) q[d] = d % 3 ? 0.25f : odd[o];
            out[64] = 5;
            attn_job job = {.shape = shape, .pages = (const void *const *)pages, .v_off = kv_head_bytes(&shape),
                            .n_group = 2, .q = q, .out = out, .ldq = 64, .ldout = 64, .pos0 = 39, .n_q = 1, .scale = 1};
            attn_run(sets[s], &job, scratch);
            assert_true(out[64] == 5);
            job.pos0 = 19; /* does not see it */
            for (int d = 0; d < 64; d++) q[d] = 0.25f;
            attn_run(sets[s], &job, scratch);
            for (int d = 0; d < 64; d++) assert_true(fabsf(out[d] - 0.5f) < 1e-6f);
            for (int i = 0; i < 3; i++) hd_free_aligned(pages[i]);
            hd_free_aligned(scratch);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_double),
        cmocka_unit_test(sets_agree_and_nothing_else_matters),
        cmocka_unit_test(random_asks),
        cmocka_unit_test(stores_round_to_nearest_even),
        cmocka_unit_test(odd_numbers_do_no_harm),
    };
    set_generic = kernels_get("generic");
    set_fast = kernels_get(NULL);
    if (set_fast == set_generic) set_fast = NULL;
    if (!set_fast) print_message("this machine's best kernels are the generic ones: nothing to compare them with\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
