/* test_sampler.c - the sampler against stored cases of an independent program (golden/make_sampling.py), against a
 * naive sampler in double precision on large vocabularies, and in its laws: pure, contained, never out of bounds. */
#include "base/mem.h"
#include "base/philox.h"
#include "decode/sampler_int.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const kernels *K;

static uint64_t rng_state = 88172645463325252u;
static uint32_t rnd(void) { /* xorshift64 (Marsaglia 2003) */
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}
static double rnd_unit(void) { return rnd() * 0x1p-32; }
static double rnd_normal(void) { /* sum of 12 uniforms: good enough for a bell */
    double s = -6;
    for (int i = 0; i < 12; i++) s += rnd_unit();
    return s;
}

static void *xalloc(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    assert_non_null(p);
    return p;
}
/* Scratch holds anything before a call: fill it with a different nonsense each time. */
static void *dirty_work(size_t n_vocab) {
    void *w = xalloc(1, sampler_work_bytes(n_vocab));
    memset(w, (int)(rnd() & 255), sampler_work_bytes(n_vocab));
    return w;
}

/* ---- stored cases ---- */
static double num(json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }
static uint32_t whole(json_t *o, const char *key) { return (uint32_t)json_integer_value(json_object_get(o, key)); }
static int32_t *ints(json_t *a, size_t *n) {
    int32_t *v = xalloc(*n = json_array_size(a), sizeof *v);
    for (size_t i = 0; i < *n; i++) v[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return v;
}

static void stored_case(json_t *c, size_t number) {
    json_t *logits = json_object_get(c, "logits"), *want = json_object_get(c, "expect"),
           *bias = json_object_get(c, "bias"), *allowed = json_object_get(c, "allowed"),
           *ids = json_object_get(want, "ids"), *pr = json_object_get(want, "probs"),
           *top = json_object_get(want, "top");
    size_t n = json_array_size(logits), n_history, n_banned, n_breakers;
    int32_t *history = ints(json_object_get(c, "history"), &n_history),
            *banned = ints(json_object_get(c, "banned"), &n_banned),
            *breakers = ints(json_object_get(c, "dry_breakers"), &n_breakers);
    float *x = xalloc(n, sizeof *x), *y = xalloc(n, sizeof *y);
    double *probs = xalloc(n, sizeof *probs), sum = 0;
    uint32_t *mask = xalloc(n / 32 + 1, sizeof *mask);
    uint64_t position = (uint64_t)json_integer_value(json_object_get(c, "position"));
    logit_bias biases[8];
    sampling_params p;
    sample_result r;
    sampler *s;
    void *work = dirty_work(n);
    for (size_t i = 0; i < n; i++) x[i] = y[i] = (float)json_number_value(json_array_get(logits, i));
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(allowed, i));
        mask[id / 32] |= 1u << id % 32;
    }
    sampling_defaults(&p);
    p.temperature = (float)num(c, "temperature");
    p.top_p = (float)num(c, "top_p");
    p.min_p = (float)num(c, "min_p");
    p.typical_p = (float)num(c, "typical_p");
    p.top_k = whole(c, "top_k");
    p.xtc_probability = (float)num(c, "xtc_probability");
    p.xtc_threshold = (float)num(c, "xtc_threshold");
    p.repetition_penalty = (float)num(c, "repetition_penalty");
    p.presence_penalty = (float)num(c, "presence_penalty");
    p.frequency_penalty = (float)num(c, "frequency_penalty");
    p.repetition_window = whole(c, "repetition_window");
    p.presence_window = whole(c, "presence_window");
    p.frequency_window = whole(c, "frequency_window");
    p.dry_multiplier = (float)num(c, "dry_multiplier");
    p.dry_base = (float)num(c, "dry_base");
    p.dry_allowed_length = whole(c, "dry_allowed_length");
    p.dry_window = whole(c, "dry_window");
    p.dry_breakers = breakers;
    p.n_dry_breakers = n_breakers;
    for (size_t i = 0; i < json_array_size(bias); i++) {
        json_t *v = json_array_get(json_array_get(bias, i), 1);
        biases[i].id = (int32_t)json_integer_value(json_array_get(json_array_get(bias, i), 0));
        biases[i].bias = json_is_null(v) ? -INFINITY : (float)json_number_value(v);
    }
    p.bias = biases;
    p.n_bias = json_array_size(bias);
    p.seed = strtoull(json_string_value(json_object_get(c, "seed")), NULL, 10);
    p.sample_index = whole(c, "sample");
    p.logprobs = true;
    p.n_top_logprobs = (uint32_t)json_array_size(top);
    assert_int_equal(sampler_open(&s, &p, n, NULL), HD_OK);

    assert_int_equal(sampler_distribution(s, K, y, n, history, n_history, position, banned, n_banned,
                                          json_is_null(allowed) ? NULL : mask, work, probs, NULL),
                     HD_OK);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        size_t id = (size_t)json_integer_value(json_array_get(ids, i));
        double want_p = json_number_value(json_array_get(pr, i));
        if (fabs(probs[id] - want_p) > 2e-6 || (want_p > 1e-8 && !(probs[id] > 0)))
            fail_msg("case %zu: token %zu has probability %.9f, not %.9f", number, id, probs[id], want_p);
        sum += probs[id];
        probs[id] = 0;
    }
    for (size_t i = 0; i < n; i++)
        if (probs[i] > 0) fail_msg("case %zu: token %zu is not allowed", number, i);
    if (fabs(sum - 1) > 1e-6) fail_msg("case %zu: probabilities sum to %.9f", number, sum);

    assert_int_equal(sampler_sample(s, K, x, n, history, n_history, position, banned, n_banned,
                                    json_is_null(allowed) ? NULL : mask, work, &r, NULL),
                     HD_OK);
    if (r.id != (int32_t)whole(want, "token"))
        fail_msg("case %zu: drew %d, not %u", number, r.id, whole(want, "token"));
    if (fabs((double)r.logprob - num(want, "logprob")) > 1e-5 * (1 + fabs(num(want, "logprob"))))
        fail_msg("case %zu: logprob %.7f", number, (double)r.logprob);
    assert_int_equal(r.n_top, json_array_size(top));
    for (size_t i = 0; i < r.n_top; i++) {
        double lp = json_number_value(json_array_get(json_array_get(top, i), 1));
        if (r.top[i].id != (int32_t)json_integer_value(json_array_get(json_array_get(top, i), 0)))
            fail_msg("case %zu: top %zu is %d", number, i, r.top[i].id);
        if (lp <= -1e30 ? r.top[i].logprob > -1e29f : fabs((double)r.top[i].logprob - lp) > 1e-5 * (1 + fabs(lp)))
            fail_msg("case %zu: top %zu has logprob %.7f, not %.7f", number, i, (double)r.top[i].logprob, lp);
    }
    sampler_close(s);
    free(work);
    free(mask);
    free(probs);
    free(x);
    free(y);
    free(history);
    free(banned);
    free(breakers);
}

static void stored_cases_of_an_independent_program(void **state) {
    json_error_t err;
    json_t *cases = json_load_file(TEST_DIR "/golden/sampling.json", 0, &err);
    (void)state;
    if (!cases) fail_msg("sampling.json: %s", err.text);
    assert_true(json_array_size(cases) >= 200);
    for (size_t i = 0; i < json_array_size(cases); i++) stored_case(json_array_get(cases, i), i);
    json_decref(cases);
}

/* ---- a naive sampler in double precision ---- */
typedef struct {
    double x;
    uint32_t id;
} item;
static int by_order(const void *a, const void *b) {
    const item *p = a, *q = b;
    if (p->x != q->x) return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

/* The largest and the smallest distribution that rounding at the cuts may leave: sure[i] must be in, maybe[i] may. */
static size_t naive_run(const sampling_params *p, const float *x, size_t n, item *it, size_t *slack) {
    size_t m = 0, b, a = 0;
    double z = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        if (x[i] > -INFINITY) it[m++] = (item){(double)x[i], (uint32_t)i};
    qsort(it, m, sizeof *it, by_order);
    b = m;
    *slack = 0;
    if (p->top_p < 1) {
        for (size_t i = 0; i < m; i++) z += exp(it[i].x - it[0].x);
        for (b = 0; b < m && (b == 0 || sum < (double)p->top_p * z * (1 - 2e-7)); b++) sum += exp(it[b].x - it[0].x);
        for (size_t i = b; i < m && sum < (double)p->top_p * z * (1 + 2e-7); i++, (*slack)++)
            sum += exp(it[i].x - it[0].x);
    }
    if (p->min_p > 0)
        while (b > 1 && exp(it[b - 1].x - it[0].x) < (double)p->min_p * (1 - 1e-6)) b--;
    if (p->top_k && b > a + p->top_k) b = p->top_k;
    if (p->top_k == b) *slack = 0;
    return b;
}

/* Distributions of many shapes: the set that may be drawn is the one of a full sort. */
static void large_vocabularies_agree_with_a_full_sort(void **state) {
    enum { N = 40000 };
    float *x = xalloc(N, sizeof *x), *y = xalloc(N, sizeof *y);
    double *probs = xalloc(N, sizeof *probs);
    item *it = xalloc(N, sizeof *it);
    (void)state;
    for (int round = 0; round < 48; round++) {
        size_t n = N - rnd() % 1000, b, slack, got = 0;
        double scale = (const double[]){0.01, 1, 4, 30, 1000, 1e30}[round % 6], z = 0, err = 0;
        float quantum = round % 4 == 1 ? 0.25f : 0;
        sampling_params p;
        sampler *s;
        void *work = dirty_work(n);
        for (size_t i = 0; i < n; i++) {
            x[i] = (float)(rnd_normal() * scale);
            if (quantum > 0) x[i] = roundf(x[i] / quantum) * quantum;
            if (round % 5 == 2 && rnd() % 3) x[i] = -INFINITY;
            y[i] = x[i];
        }
        sampling_defaults(&p);
        switch (round / 6 % 4) {
        case 0: p.top_p = (float)rnd_unit(); break;
        case 1: p.top_k = 1 + rnd() % 3000; break;
        case 2: p.min_p = (float)(rnd_unit() * 0.1); break;
        case 3: break;
        }
        p.temperature = (float)(0.3 + rnd_unit());
        assert_int_equal(sampler_open(&s, &p, n, NULL), HD_OK);
        assert_int_equal(sampler_distribution(s, K, y, n, NULL, 0, 5, NULL, 0, NULL, work, probs, NULL), HD_OK);
        b = naive_run(&p, x, n, it, &slack);
        for (size_t i = 0; i < b; i++) z += exp((it[i].x - it[0].x) / (double)p.temperature);
        for (size_t i = 0; i < n; i++) got += probs[i] > 0;
        for (size_t i = 0; i < b; i++) {
            double want = exp((it[i].x - it[0].x) / (double)p.temperature) / z;
            if (!slack) err = fmax(err, fabs(probs[it[i].id] - want) / (want + 1e-9));
            if (want > 1e-30 && !(probs[it[i].id] > 0)) fail_msg("round %d: token %u is missing", round, it[i].id);
        }
        if (got > b + slack) fail_msg("round %d: %zu candidates, not %zu", round, got, b);
        if (err > 2e-5) fail_msg("round %d: relative error %g", round, err);
        sampler_close(s);
        free(work);
    }
    free(x);
    free(y);
    free(probs);
    free(it);
}

/* The ordered view, to its very end, is the full sort. */
static void the_order_is_a_full_sort(void **state) {
    enum { N = 20000 };
    float *x = xalloc(N, sizeof *x);
    item *it = xalloc(N, sizeof *it);
    order_entry *c = xalloc(N, sizeof *c), *tmp = xalloc(N, sizeof *tmp);
    uint32_t *ids = xalloc(N, sizeof *ids);
    uint32_t *hist = xalloc(ORDER_BUCKETS, sizeof *hist);
    (void)state;
    for (int round = 0; round < 12; round++) {
        order o = {.k = kernels_get(NULL), .x = x, .n = N, .max = -INFINITY, .c = c, .tmp = tmp, .ids = ids, .hist = hist};
        size_t m = 0;
        double scale = (const double[]){0, 1, 20, 1e3, 1e38, 1e-40}[round % 6];
        for (size_t i = 0; i < N; i++) {
            x[i] = (float)(rnd_normal() * scale);
            if (rnd() % 9 == 0) x[i] = rnd() % 2 ? -INFINITY : NAN;
            if (rnd() % 9 == 0) x[i] = rnd() % 2 ? -0.0f : 0.0f;
            if (x[i] > 3e38f) x[i] = 3e38f;
            if (x[i] > o.max) o.max = x[i];
            if (x[i] > -INFINITY) it[m++] = (item){(double)x[i], (uint32_t)i};
        }
        qsort(it, m, sizeof *it, by_order);
        order_begin(&o);
        for (size_t i = 0; i < m; i++) {
            assert_true(order_has(&o, i));
            if (order_id(o.c[i]) != it[i].id || order_value(o.c[i]) != (float)it[i].x)
                fail_msg("round %d: place %zu holds %u, not %u", round, i, order_id(o.c[i]), it[i].id);
        }
        assert_false(order_has(&o, m));
    }
    free(x);
    free(it);
    free(c);
    free(tmp);
    free(ids);
    free(hist);
}

/* ---- laws ---- */
static sampling_params defaults(void) {
    sampling_params p;
    sampling_defaults(&p);
    return p;
}
/* Sample fresh copies of x with p; the logits and scratch are dirtied before. */
static hd_status once(const sampling_params *p, const float *x, size_t n, uint64_t position, sample_result *r) {
    float *copy = xalloc(n, sizeof *copy);
    void *work = dirty_work(n);
    sampler *s;
    hd_status st;
    static const int32_t history[] = {1, 2, 3, 1, 2, 3, 1, 2};
    memcpy(copy, x, n * sizeof *copy);
    assert_int_equal(sampler_open(&s, p, n, NULL), HD_OK);
    st = sampler_sample(s, K, copy, n, history, sizeof history / sizeof *history, position, NULL, 0, NULL, work, r,
                        NULL);
    sampler_close(s);
    free(work);
    free(copy);
    return st;
}

/* R053: at temperature 0 the logprobs are still ln softmax of the logits, sorted, with the chosen token among them. */
static void r053_logprobs_do_not_come_from_the_sampler(void **state) {
    static const float x[6] = {0, 3, 1, 3, -2, 2};
    sampling_params p = defaults();
    sample_result r;
    double z = 0, total = 0;
    (void)state;
    for (int i = 0; i < 6; i++) z += exp((double)x[i]);
    p.temperature = 0;
    p.logprobs = true;
    p.n_top_logprobs = 6;
    assert_int_equal(once(&p, x, 6, 0, &r), HD_OK);
    assert_int_equal(r.id, 1);
    assert_int_equal(r.n_top, 6);
    for (int i = 0; i < 6; i++) {
        static const int32_t want[6] = {1, 3, 5, 2, 0, 4};
        assert_int_equal(r.top[i].id, want[i]);
        assert_true(fabs((double)r.top[i].logprob - ((double)x[want[i]] - log(z))) < 1e-6);
        assert_true(r.top[i].logprob <= 0);
        total += exp((double)r.top[i].logprob);
    }
    assert_true(fabs(total - 1) < 1e-6);
    assert_true(r.logprob == r.top[0].logprob);
}

/* R054: temperature and truncation do not change them. */
static void r054_logprobs_do_not_depend_on_temperature_or_top_p(void **state) {
    float x[500];
    logit_bias force = {77, 100};
    sample_result first, r;
    int n = 0;
    (void)state;
    for (size_t i = 0; i < 500; i++) x[i] = (float)rnd_normal();
    for (int t = 0; t < 3; t++)
        for (int q = 0; q < 2; q++, n++) {
            sampling_params p = defaults();
            p.temperature = (const float[]){0, 0.5f, 2}[t];
            p.top_p = q ? 0.1f : 1;
            p.typical_p = q ? 0.9f : 1;
            p.bias = &force;
            p.n_bias = 1;
            p.logprobs = true;
            p.n_top_logprobs = 20;
            assert_int_equal(once(&p, x, 500, 9, &r), HD_OK);
            assert_int_equal(r.id, 77);
            if (!n) first = r;
            assert_memory_equal(&r.logprob, &first.logprob, sizeof r.logprob);
            assert_memory_equal(r.top, first.top, sizeof r.top);
        }
}

/* R056, R058: the same call gives the same bits whatever was sampled before and whatever the scratch holds; every seed
 * is defined and two of them differ somewhere. */
static void r056_r058_a_sample_depends_on_its_own_inputs_alone(void **state) {
    static const uint64_t seeds[] = {0, UINT64_MAX, 1u << 31, UINT32_MAX, 1ull << 63, 7};
    enum { N = 3000, S = 6, POS = 40 };
    float x[N];
    int32_t first[S][POS];
    (void)state;
    for (size_t i = 0; i < N; i++) x[i] = (float)rnd_normal();
    for (int round = 0; round < 3; round++)
        for (size_t k = 0; k < S * POS; k++) { /* another order each round */
            size_t j = (k * (size_t)(2 * round + 1) * 7 + 3) % (S * POS), seed = j / POS, pos = j % POS;
            sampling_params p = defaults();
            sample_result r;
            p.seed = seeds[seed];
            assert_int_equal(once(&p, x, N, pos, &r), HD_OK);
            if (!round) first[seed][pos] = r.id;
            assert_int_equal(r.id, first[seed][pos]);
        }
    for (size_t a = 0; a < S; a++)
        for (size_t b = 0; b < a; b++) assert_memory_not_equal(first[a], first[b], sizeof first[a]);
    { /* samples of one prompt differ from one another too, and the high half of the position counts */
        sampling_params p = defaults();
        sample_result a, b;
        int other = 0, far = 0;
        for (uint64_t pos = 0; pos < 20; pos++) {
            p.sample_index = 0;
            once(&p, x, N, pos, &a);
            p.sample_index = 1;
            once(&p, x, N, pos, &b);
            other += a.id != b.id;
            p.sample_index = 0;
            once(&p, x, N, pos + (1ull << 32), &b);
            far += a.id != b.id;
        }
        assert_true(other > 10 && far > 10);
    }
}

/* All logits are `rest` but number `at`, which is `value`. */
static hd_status sample_flat(const sampler *s, size_t n, float rest, size_t at, float value, const uint32_t *mask,
                             size_t n_banned, sample_result *r, hd_err *err) {
    float *x = xalloc(n, sizeof *x);
    int32_t *banned = xalloc(n_banned, sizeof *banned);
    void *work = dirty_work(n);
    hd_status st;
    for (size_t i = 0; i < n_banned; i++) banned[i] = (int32_t)i;
    for (size_t i = 0; i < n; i++) x[i] = i == at ? value : rest;
    st = sampler_sample(s, K, x, n, NULL, 0, 0, banned, n_banned, mask, work, r, err);
    free(work);
    free(banned);
    free(x);
    return st;
}

static void what_cannot_be_sampled_fails_that_row(void **state) {
    enum { N = 70 };
    uint32_t none[3] = {0}, beyond[3] = {0, 0, ~0u << (N - 64)}, one[3] = {0, 4, 0};
    hd_err err;
    sample_result r;
    sampler *s;
    (void)state;
    for (int greedy = 0; greedy < 2; greedy++)
        for (int lp = 0; lp < 2; lp++) {
            sampling_params p = defaults();
            p.temperature = greedy ? 0 : 1;
            p.logprobs = lp;
            p.n_top_logprobs = 3;
            assert_int_equal(sampler_open(&s, &p, N, NULL), HD_OK);
            assert_int_equal(sample_flat(s, N, 0, 0, 0, none, 0, &r, &err), HD_FAILED);
            assert_int_equal(sample_flat(s, N, 0, 0, 0, beyond, 0, &r, &err),
                             HD_FAILED); /* bits beyond the vocabulary allow nothing */
            assert_int_equal(sample_flat(s, N, 0, 0, 0, NULL, N, &r, &err), HD_FAILED);
            assert_int_equal(sample_flat(s, N, -INFINITY, 0, -INFINITY, NULL, 0, &r, &err), HD_FAILED);
            assert_non_null(strstr(err.msg, "forbidden"));
            assert_int_equal(sample_flat(s, N, NAN, 0, NAN, NULL, 0, &r, &err), HD_FAILED);
            assert_non_null(strstr(err.msg, "not numbers"));
            assert_int_equal(sample_flat(s, N, INFINITY, 0, INFINITY, NULL, 0, &r, &err), HD_FAILED);
            assert_int_equal(sample_flat(s, N, 1, 40, INFINITY, NULL, 0, &r, &err), HD_FAILED);
            assert_int_equal(sample_flat(s, N, 5, 34, -1e30f, one, 0, &r, &err), HD_OK); /* the only one left */
            assert_int_equal(r.id, 34);
            if (lp) {
                assert_true(r.logprob == 0);
                assert_int_equal(r.n_top, 3);
                assert_true(r.top[1].logprob == -INFINITY && r.top[1].id == 0 && r.top[2].id == 1);
            }
            assert_int_equal(sample_flat(s, N, NAN, 12, 0, NULL, 0, &r, &err), HD_OK); /* NaN is as good as forbidden */
            assert_int_equal(r.id, 12);
            if (lp) assert_true(r.logprob == 0 && r.top[0].id == 12 && r.top[1].logprob == -INFINITY);
            sampler_close(s);
        }
}

/* DRY must not forbid the only token a mask leaves, however long the repeat. */
static void dry_never_forbids(void **state) {
    enum { H = 60000 };
    int32_t *h = xalloc(H, sizeof *h);
    float x[4] = {0, 0, 0, 0};
    uint32_t mask = 2;
    sampling_params p = defaults();
    sample_result r;
    sampler *s;
    void *work = dirty_work(4);
    clock_t t0 = clock();
    (void)state;
    for (size_t i = 0; i < H; i++) h[i] = 1; /* also the worst case of a search by comparison */
    p.dry_multiplier = 0.8f;
    assert_int_equal(sampler_open(&s, &p, 4, NULL), HD_OK);
    assert_int_equal(sampler_sample(s, K, x, 4, h, H, H, NULL, 0, &mask, work, &r, NULL), HD_OK);
    assert_int_equal(r.id, 1);
    for (int i = 0; i < 200; i++) sampler_sample(s, K, x, 4, h, H, H, NULL, 0, NULL, work, &r, NULL);
    assert_true((double)(clock() - t0) / CLOCKS_PER_SEC < 10); /* by comparison: 200 * 60000 * 4096 steps */
    sampler_close(s);
    free(work);
    free(h);
}

/* Ids outside the vocabulary (placeholders of images) in the history touch nothing. */
static void placeholders_in_the_history_are_harmless(void **state) {
    int32_t h[] = {2, -1, 2, INT32_MAX, INT32_MIN, 2, -1, 2};
    float x[4] = {0, 0, 0.5f, 0};
    sampling_params p = defaults();
    sample_result r;
    sampler *s;
    void *work = dirty_work(4);
    (void)state;
    p.temperature = 0;
    p.repetition_penalty = 1.1f;
    p.presence_penalty = p.frequency_penalty = 0.1f;
    p.dry_multiplier = 1;
    p.dry_allowed_length = 1;
    assert_int_equal(sampler_open(&s, &p, 4, NULL), HD_OK);
    assert_int_equal(sampler_sample(s, K, x, 4, h, 8, 8, NULL, 0, NULL, work, &r, NULL), HD_OK);
    assert_int_equal(r.id, 0); /* 0.5 / 1.1 - 0.1 - 4 * 0.1 < 0; 2 never followed 2 directly */
    assert_true(fabsf(x[2] - (0.5f / 1.1f - 0.1f - 0.4f)) < 1e-6f);
    assert_true(x[0] == 0 && x[1] == 0 && x[3] == 0);
    sampler_close(s);
    free(work);
}

/* Draws follow the probabilities: Pearson's statistic stays below its 1 - 1e-6 quantile (Wilson and Hilferty 1931). */
static void draws_follow_the_distribution(void **state) {
    enum { N = 60, DRAWS = 40000 };
    float x[N], y[N];
    (void)state;
    for (size_t i = 0; i < N; i++) x[i] = (float)(rnd_normal() * 1.5);
    for (int kind = 0; kind < 5; kind++) {
        sampling_params p = defaults();
        double probs[N], chi = 0, rest_want = DRAWS, limit, df = -1;
        uint32_t seen[N] = {0}, rest = DRAWS;
        sampler *s;
        void *work = dirty_work(N);
        sample_result r;
        if (kind == 1) p.top_p = 0.8f;
        if (kind == 2) p.temperature = 2;
        if (kind == 3) p.typical_p = 0.9f;
        if (kind == 4) p.xtc_probability = 1, p.xtc_threshold = 0.05f;
        p.seed = 1234 + (uint64_t)kind;
        assert_int_equal(sampler_open(&s, &p, N, NULL), HD_OK);
        memcpy(y, x, sizeof y);
        assert_int_equal(sampler_distribution(s, K, y, N, NULL, 0, 0, NULL, 0, NULL, work, probs, NULL), HD_OK);
        for (uint64_t pos = 0; pos < DRAWS; pos++) {
            memcpy(y, x, sizeof y);
            assert_int_equal(sampler_sample(s, K, y, N, NULL, 0, pos, NULL, 0, NULL, work, &r, NULL), HD_OK);
            assert_true(probs[r.id] > 0);
            seen[r.id]++;
        }
        for (size_t i = 0; i < N; i++) {
            double want = probs[i] * DRAWS;
            if (want < 10) continue; /* the rare ones are one class together */
            chi += (seen[i] - want) * (seen[i] - want) / want;
            rest -= seen[i];
            rest_want -= want;
            df++;
        }
        if (rest_want > 10) {
            chi += (rest - rest_want) * (rest - rest_want) / rest_want;
            df++;
        }
        limit = df * pow(1 - 2 / (9 * df) + 4.753 * sqrt(2 / (9 * df)), 3);
        if (!(chi < limit)) fail_msg("kind %d: chi-square %.1f with %.0f degrees of freedom", kind, chi, df);
        sampler_close(s);
        free(work);
    }
}

/* XTC acts with its probability, on a number of its own. */
static void xtc_acts_as_often_as_asked(void **state) {
    static const float x[4] = {2, 2, 0, -9};
    sampling_params p = defaults();
    int acted = 0;
    (void)state;
    p.xtc_probability = 0.3f;
    p.xtc_threshold = 0.2f;
    p.top_k = 1; /* after XTC: 0 when it did not act, 1 when it did */
    for (uint64_t pos = 0; pos < 10000; pos++) {
        sample_result r;
        assert_int_equal(once(&p, x, 4, pos, &r), HD_OK);
        assert_true(r.id == 0 || r.id == 1);
        assert_int_equal(r.id, philox_uniform(0, 0, pos, PHILOX_XTC) < (double)p.xtc_probability);
        acted += r.id;
    }
    assert_in_range(acted, 2770, 3230); /* 5 standard deviations */
}

/* Bounds that equal tokens reach exactly; the numbers of tokens left are plain arithmetic. */
static void bounds_between_equals(void **state) {
    static const float four[4] = {1.5f, 1.5f, 1.5f, 1.5f}, ten[10] = {0}, three_high[5] = {3, 3, 3, 0, 0};
    sampling_params p;
    (void)state;
#define LEFT(x, want)                                                                                                  \
    do {                                                                                                               \
        enum { N = sizeof x / sizeof *x };                                                                             \
        double probs[N];                                                                                               \
        float y[N];                                                                                                    \
        uint32_t got = 0;                                                                                              \
        sampler *s;                                                                                                    \
        void *work = dirty_work(N);                                                                                    \
        memcpy(y, x, sizeof y);                                                                                        \
        assert_int_equal(sampler_open(&s, &p, N, NULL), HD_OK);                                                        \
        assert_int_equal(sampler_distribution(s, K, y, N, NULL, 0, 0, NULL, 0, NULL, work, probs, NULL), HD_OK);       \
        for (uint32_t i = 0; i < N; i++) got |= (uint32_t)(probs[i] > 0) << i;                                         \
        assert_int_equal(got, want);                                                                                   \
        sampler_close(s);                                                                                              \
        free(work);                                                                                                    \
    } while (0)
    p = defaults(), p.top_p = 0.5f;
    LEFT(four, 0x3);
    p = defaults(), p.top_p = 0.3f;
    LEFT(ten, 0x7);
    p = defaults(), p.typical_p = 0.3f;
    LEFT(ten, 0x7);
    p = defaults(), p.min_p = 1;
    LEFT(three_high, 0x7);
    p = defaults(), p.xtc_probability = 1, p.xtc_threshold = 0.25f;
    LEFT(four, 0x8);
    p = defaults(), p.xtc_probability = 1, p.xtc_threshold = 0.1f;
    LEFT(ten, 0x200);
    p = defaults(), p.xtc_probability = 1, p.xtc_threshold = 0.3f, p.top_k = 4; /* more than XTC leaves */
    LEFT(three_high, 0x1c);
    p.top_k = 2;
    LEFT(three_high, 0xc);
#undef LEFT
}

static void scoring_untouched_logits(void **state) {
    static const float x[5] = {1, -INFINITY, 4, 4, -1}, bad[2] = {NAN, NAN}, hole[4] = {NAN, NAN, 1, 0};
    sample_result r;
    double z = log(exp(1) + 2 * exp(4) + exp(-1));
    (void)state;
    logprobs_read(K, x, 5, 4, 3, &r);
    assert_int_equal(r.id, 4);
    assert_true(fabs((double)r.logprob - (-1 - z)) < 1e-6);
    assert_int_equal(r.n_top, 3);
    assert_true(r.top[0].id == 2 && r.top[1].id == 3 && r.top[2].id == 0);
    logprobs_read(K, x, 5, 1, 20, &r);
    assert_true(r.logprob == -INFINITY);
    assert_int_equal(r.n_top, 5);
    assert_true(r.top[4].id == 1 && r.top[4].logprob == -INFINITY);
    logprobs_read(K, hole, 4, 2, 1, &r);
    assert_true(r.n_top == 1 && r.top[0].id == 2);
    logprobs_read(K, bad, 2, 0, 1, &r);
    assert_true(r.logprob == -INFINITY && r.top[0].logprob == -INFINITY);
}

static void bad_parameters_are_named(void **state) {
    static const int32_t breaker = 10;
    static const logit_bias outside = {10, 1}, nan_bias = {0, NAN}, inf_bias = {0, INFINITY}, ban = {0, -INFINITY};
    sampling_params p = defaults();
    hd_err err;
    (void)state;
    assert_int_equal(sampling_check(&p, 10, &err), HD_OK);
#define BAD(set, value, name)                                                                                          \
    do {                                                                                                               \
        p = defaults();                                                                                                \
        p.set = value;                                                                                                 \
        assert_int_equal(sampling_check(&p, 10, &err), HD_INVALID);                                                    \
        assert_string_equal(err.field, name);                                                                          \
    } while (0)
    BAD(temperature, -0.1f, "temperature");
    BAD(temperature, NAN, "temperature");
    BAD(temperature, INFINITY, "temperature");
    BAD(top_p, 1.01f, "top_p");
    BAD(min_p, -1, "min_p");
    BAD(typical_p, 2, "typical_p");
    BAD(xtc_probability, 1.5f, "xtc_probability");
    BAD(xtc_threshold, NAN, "xtc_threshold");
    BAD(repetition_penalty, 0, "repetition_penalty");
    BAD(presence_penalty, 3, "presence_penalty");
    BAD(frequency_penalty, -3, "frequency_penalty");
    BAD(dry_multiplier, -1, "dry_multiplier");
    BAD(dry_base, 0.5f, "dry_base");
    BAD(dry_allowed_length, 5000, "dry_allowed_length");
    BAD(n_top_logprobs, 21, "top_logprobs");
    BAD(n_bias, SAMPLER_MAX_BIAS + 1, "logit_bias");
    BAD(n_dry_breakers, SAMPLER_MAX_BREAKERS + 1, "dry_sequence_breakers");
    BAD(n_bias = 1; p.bias, &outside, "logit_bias");
    BAD(n_bias = 1; p.bias, &nan_bias, "logit_bias");
    BAD(n_bias = 1; p.bias, &inf_bias, "logit_bias");
    BAD(n_dry_breakers = 1; p.dry_breakers, &breaker, "dry_sequence_breakers");
#undef BAD
    p = defaults();
    p.bias = &ban;
    p.n_bias = 1;
    assert_int_equal(sampling_check(&p, 10, &err), HD_OK);
    {
        sampler *s;
        long live = hd_mem_live();
        hd_mem_fail_after(0);
        assert_int_equal(sampler_open(&s, &p, 10, &err), HD_NOMEM);
        hd_mem_fail_after(-1);
        assert_null(s);
        assert_int_equal(sampler_open(&s, &p, 10, &err), HD_OK);
        assert_true(sampler_params(s)->bias != &ban); /* copied */
        assert_true(sampler_params(s)->bias[0].id == 0);
        sampler_close(s);
        assert_int_equal(hd_mem_live(), live);
    }
}

static void sampling_asks_the_heap_for_nothing(void **state) {
    enum { N = 5000 };
    float *x = xalloc(N, sizeof *x);
    int32_t h[] = {1, 2, 3, 1, 2};
    sampling_params p = defaults();
    sample_result r;
    sampler *s;
    void *work = dirty_work(N);
    hd_status st;
    (void)state;
    for (size_t i = 0; i < N; i++) x[i] = (float)rnd_normal() * 0.1f;
    p.top_p = 0.99f;
    p.typical_p = 0.99f;
    p.min_p = 0.001f;
    p.xtc_probability = 1;
    p.repetition_penalty = 1.1f;
    p.dry_multiplier = 1;
    p.logprobs = true;
    p.n_top_logprobs = 20;
    assert_int_equal(sampler_open(&s, &p, N, NULL), HD_OK);
    hd_mem_forbid(true);
    hd_mem_fail_after(0);
    st = sampler_sample(s, K, x, N, h, 5, 5, NULL, 0, NULL, work, &r, NULL);
    hd_mem_fail_after(-1);
    hd_mem_forbid(false);
    assert_int_equal(st, HD_OK);
    sampler_close(s);
    free(work);
    free(x);
}

static int find_kernels(void **state) {
    (void)state;
    K = kernels_get(NULL);
    return K ? 0 : -1;
}

/* A row that is not asked about anything else may be told its best token by the model, and must get what sampling gives. */
static void who_takes_the_best(void **state) {
    sampling_params p;
    sampler *s;
    hd_err err;
    logit_bias bias = {.id = 1, .bias = 0.5f};
    (void)state;
    for (int i = 0; i < 8; i++) {
        sampling_defaults(&p);
        p.temperature = 0;
        p.top_p = 0.5f; /* cuts only the others */
        p.top_k = 3;
        switch (i) {
        case 1: p.temperature = 0.1f; break;
        case 2: p.logprobs = true; break;
        case 3: p.bias = &bias, p.n_bias = 1; break;
        case 4: p.repetition_penalty = 1.1f; break;
        case 5: p.presence_penalty = -0.1f; break;
        case 6: p.frequency_penalty = 0.1f; break;
        case 7: p.dry_multiplier = 0.1f; break;
        default: break;
        }
        assert_int_equal(sampler_open(&s, &p, 5, &err), HD_OK);
        assert_int_equal(sampler_takes_best(s), i == 0);
        sampler_close(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_cases_of_an_independent_program),
        cmocka_unit_test(large_vocabularies_agree_with_a_full_sort),
        cmocka_unit_test(the_order_is_a_full_sort),
        cmocka_unit_test(r053_logprobs_do_not_come_from_the_sampler),
        cmocka_unit_test(r054_logprobs_do_not_depend_on_temperature_or_top_p),
        cmocka_unit_test(r056_r058_a_sample_depends_on_its_own_inputs_alone),
        cmocka_unit_test(what_cannot_be_sampled_fails_that_row),
        cmocka_unit_test(dry_never_forbids),
        cmocka_unit_test(placeholders_in_the_history_are_harmless),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(xtc_acts_as_often_as_asked),
        cmocka_unit_test(bounds_between_equals),
        cmocka_unit_test(scoring_untouched_logits),
        cmocka_unit_test(bad_parameters_are_named),
        cmocka_unit_test(who_takes_the_best),
        cmocka_unit_test(sampling_asks_the_heap_for_nothing),
    };
    return cmocka_run_group_tests_name("sampler", tests, find_kernels, NULL);
}
