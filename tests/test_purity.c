/* test_purity.c (slow-test) - law 1: a request answers the same, bit for bit, alone and in any company.
 *
 * 24 requests of mixed kinds run one by one, then all together in 20 random interleavings: order of arrival, step budget,
 * threads, rows, page size, KV budget (small ones preempt), neighbours that are cancelled half-way.  Ids, logprobs, text
 * and ends must be equal.  Models: small random ones in the formats of real files, and the demo model where
 * $HEDDLE_TEST_MODEL names it. */
#include "base/mem.h"
#include "tiny/tiny_model.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_REQS = 24, ROUNDS = 20, MAX_PROMPT = 200 };

typedef struct {
    int32_t prompts[N_REQS][MAX_PROMPT];
    gen_request reqs[N_REQS];
    stop_string stops[2];
    logit_bias bias[2];
} workload;

/* Mixed on purpose: every sampler, stops, scores, caps at 0 and none, and prompts shorter and longer than any chunk. */
static void make_workload(workload *w, uint32_t n_vocab) {
    uint64_t seed = 12345;
    memset(w, 0, sizeof *w);
    w->stops[0] = (stop_string){"th", 2};
    w->stops[1] = (stop_string){"e", 1};
    w->bias[0] = (logit_bias){7, 2.5f};
    w->bias[1] = (logit_bias){11, -100};
    for (uint32_t i = 0; i < N_REQS; i++) {
        gen_request *r = &w->reqs[i];
        sampling_params *s = &r->sampling;
        uint32_t n = i % 5 == 0 ? 1 + i / 5 : 3 + rng_below(&seed, MAX_PROMPT - 3);
        for (uint32_t j = 0; j < n; j++) w->prompts[i][j] = (int32_t)rng_below(&seed, n_vocab < 300 ? n_vocab : 300);
        *r = (gen_request){.id = "", .prompt = w->prompts[i], .n_prompt = n, .max_tokens = 8 + rng_below(&seed, 40),
                           .ignore_eos = i % 3 == 0};
        sampling_defaults(s);
        s->seed = i * 77;
        s->sample_index = i % 4;
        s->temperature = i % 4 == 0 ? 0 : 0.5f + (float)(i % 7) * 0.25f;
        if (i % 4 == 1) s->top_k = 20, s->top_p = 0.9f;
        if (i % 4 == 2) s->min_p = 0.05f, s->repetition_penalty = 1.2f;
        if (i % 4 == 3) s->typical_p = 0.9f, s->xtc_probability = 0.5f, s->xtc_threshold = 0.1f;
        if (i % 6 == 0) s->frequency_penalty = 0.5f, s->presence_penalty = 0.3f;
        if (i % 6 == 4) s->dry_multiplier = 0.8f, s->dry_base = 1.75f, s->dry_allowed_length = 2;
        if (i % 2 == 0) s->logprobs = true, s->n_top_logprobs = i % 21;
        if (i % 8 == 5) r->stops = w->stops, r->n_stops = 2;
        if (i % 8 == 7) r->prompt_logprobs = true;
        if (i % 12 == 9) s->bias = w->bias, s->n_bias = 2;
        if (i == 10) r->max_tokens = 0, r->prompt_logprobs = true;
        if (i == 17) r->max_tokens = GEN_NO_CAP;
        if (i == 20) r->min_tokens = 6, r->ignore_eos = false;
    }
}

typedef struct {
    unsigned threads;
    engine_options opt;
} setting;

static setting random_setting(uint64_t *seed, uint64_t one_row_bytes) {
    static const uint32_t steps[] = {1, 3, 16, 64, 256}, rows[] = {1, 2, 5, 16, 24}, pages[] = {2, 16, 32, 64};
    setting s = {1 + rng_below(seed, 2), {.kv_type = TENSOR_F16}};
    s.opt.step_tokens = steps[rng_below(seed, 5)];
    s.opt.max_rows = rows[rng_below(seed, 5)];
    s.opt.page_tokens = pages[rng_below(seed, 4)];
    /* From two rows' worth (waiting and preemption) to plenty. */
    s.opt.kv_budget_bytes = one_row_bytes * (2 + rng_below(seed, 12));
    s.opt.default_max_tokens = 4;
    s.opt.ctx = 512;
    return s;
}

static engine *open_with(const char *path, const setting *s, model **m) {
    model_options mo = {.n_threads = s->threads};
    engine *e;
    hd_err err;
    if (model_open(m, path, &mo, &err)) fail_msg("%s", err.msg);
    if (engine_open(&e, *m, &s->opt, &err)) fail_msg("%s", err.msg);
    return e;
}

/* Neighbours that come and go: their fate must not matter. */
static void disturb(engine *e, const workload *w, uint64_t *seed, session **s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        gen_request r = w->reqs[rng_below(seed, N_REQS)];
        hd_err err;
        r.total_timeout_us = 200000; /* nobody reads them: they would hold a row until their idle deadline */
        if (engine_submit(e, &r, 1, NULL, NULL, &s[i], &err)) s[i] = NULL;
    }
}

static void check_model(const char *name, const char *path, int rounds) {
    workload *w = hd_calloc(1, sizeof *w);
    run_result alone[N_REQS], mixed[N_REQS];
    setting base = {1, {.kv_type = TENSOR_F16, .max_rows = 1, .ctx = 512, .kv_budget_bytes = 256u << 20}};
    uint64_t seed = 99, one_row;
    uint32_t preemptions = 0;
    model *m;
    engine *e = open_with(path, &base, &m);
    one_row = model_page_bytes(m, 0, 64, TENSOR_F16) * 8;
    for (uint32_t g = 1; g < model_get(m)->n_groups; g++) one_row += model_page_bytes(m, g, 64, TENSOR_F16) * 8;
    make_workload(w, model_get(m)->n_vocab);
    for (size_t i = 0; i < N_REQS; i++) {
        run_all(e, &w->reqs[i], 1, NULL, &alone[i]);
        assert_int_not_equal(alone[i].finish, FINISH_FAILED);
    }
    engine_close(e);
    model_close(m);
    for (int round = 0; round < rounds; round++) {
        setting s = random_setting(&seed, one_row);
        size_t order[N_REQS];
        session *others[4];
        engine_view view = {0};
        for (size_t i = 0; i < N_REQS; i++) order[i] = i;
        for (size_t i = N_REQS - 1; i > 0; i--) {
            size_t j = rng_below(&seed, (uint32_t)i + 1), t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        e = open_with(path, &s, &m);
        disturb(e, w, &seed, others, 4);
        for (size_t i = 0; i < 2; i++)
            if (others[i]) session_cancel(others[i], CANCEL_BY_REQUEST);
        run_all(e, w->reqs, N_REQS, order, mixed);
        for (size_t i = 0; i < 4; i++) session_free(others[i]);
        engine_look(e, &view);
        preemptions += (uint32_t)view.preemptions_total;
        for (size_t i = 0; i < N_REQS; i++) {
            const char *what = run_result_differs(&alone[i], &mixed[i]);
            if (what)
                fail_msg("%s round %d request %zu: %s differ (threads %u, step %u, rows %u, page %u, budget %llu)", name, round,
                         i, what, s.threads, s.opt.step_tokens, s.opt.max_rows, s.opt.page_tokens,
                         (unsigned long long)s.opt.kv_budget_bytes);
            run_result_deinit(&mixed[i]);
        }
        engine_close(e);
        model_close(m);
    }
    print_message("%s: %d requests equal in %d interleavings, %u preemptions on the way\n", name, N_REQS, rounds, preemptions);
    for (size_t i = 0; i < N_REQS; i++) run_result_deinit(&alone[i]);
    hd_free(w);
}

/* $HEDDLE_TEST_ROUNDS asks for more, or for fewer where a sanitizer makes each one slow. */
static int rounds(int dflt) {
    const char *want = getenv("HEDDLE_TEST_ROUNDS");
    return want && atoi(want) > 0 ? atoi(want) : dflt;
}

static void check_tiny(const char *variant) {
    char path[] = "/tmp/heddle-purity-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find(variant), NULL, path), 0);
    check_model(variant, path, rounds(ROUNDS));
    unlink(path);
}

static void f32_llama(void **state) { (void)state, check_tiny("llama"); }
static void sliding_gemma3(void **state) { (void)state, check_tiny("gemma3"); }
static void q4_1_llama(void **state) { (void)state, check_tiny("q4_1"); }
static void q4_k_llama(void **state) { (void)state, check_tiny("q4_k"); }

static void demo_model(void **state) {
    const char *path = getenv("HEDDLE_TEST_MODEL");
    (void)state;
    if (!path || !*path) {
        print_message("skipped: HEDDLE_TEST_MODEL does not name a model\n");
        skip();
    }
    check_model("demo model", path, rounds(3)); /* a real model takes its time */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_llama), cmocka_unit_test(sliding_gemma3), cmocka_unit_test(q4_1_llama),
        cmocka_unit_test(q4_k_llama), cmocka_unit_test(demo_model),
    };
    return cmocka_run_group_tests_name("purity", tests, NULL, NULL);
}
