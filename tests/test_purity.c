/* test_purity.c (slow-test) - law 1: a request answers the same, bit for bit, alone and in any company.
 *
 * 24 requests of mixed kinds run one by one, then all together in 20 random interleavings: order of arrival, step budget,
 * threads, rows, page size, KV budget (small ones preempt), priorities, shares, and a thread that makes trouble meanwhile:
 * exclusive jobs that preempt every row at random points, neighbours that come, stall, are cancelled and go.  Alone they
 * compute everything; together they take up what others computed, in the second half of the rounds from a warm cache.
 * A third goes on after tokens it said before, from a random one on.
 * Ids, logprobs, text and ends must be equal.  Models: small random ones in the formats of real files, with every scheme
 * of keys and values, and the demo model where $HEDDLE_TEST_MODEL names it. */
#include "base/mem.h"
#include "tiny/tiny_model.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
        /* Many begin like one before, up to some token; a few are the same. */
        if (i % 2) memcpy(w->prompts[i], w->prompts[rng_below(&seed, i)], (i % 3 ? rng_below(&seed, n + 1) : n) * sizeof(int32_t));
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

enum { CTX = 512 };
typedef struct {
    unsigned threads;
    uint32_t budget_rows; /* the budget holds so many rows of the whole context */
    engine_options opt;
} setting;

static setting random_setting(uint64_t *seed) {
    static const uint32_t steps[] = {1, 3, 16, 64, 256}, rows[] = {1, 2, 5, 16, 24}, pages[] = {2, 16, 32, 64};
    setting s = {1 + rng_below(seed, 2), 0, {0}};
    s.opt.step_tokens = steps[rng_below(seed, 5)];
    s.opt.max_rows = rows[rng_below(seed, 5)];
    s.opt.page_tokens = pages[rng_below(seed, 4)];
    /* From two rows' worth (waiting and preemption) to plenty. */
    s.budget_rows = 2 + rng_below(seed, 12);
    s.opt.default_max_tokens = 4;
    s.opt.ctx = CTX;
    return s;
}

/* Pages are counted in whole pages of the system. */
static uint64_t row_bytes(const model *m, const engine_options *o) {
    uint64_t n = 0;
    for (uint32_t g = 0; g < model_get(m)->n_groups; g++) {
        kv_scheme kv = model_get(m)->groups[g].window ? o->kv_type_sliding : o->kv_type;
        n += (model_page_bytes(m, g, o->page_tokens, kv) + 4095) / 4096 * 4096 * (CTX / o->page_tokens);
    }
    return n;
}

static engine *open_with(const char *path, setting *s, model **m) {
    model_options mo = {.n_threads = s->threads};
    engine *e;
    hd_err err;
    if (model_open(m, path, &mo, &err)) fail_msg("%s", err.msg);
    if (!s->opt.kv_budget_bytes) s->opt.kv_budget_bytes = row_bytes(*m, &s->opt) * s->budget_rows;
    if (engine_open(&e, *m, &s->opt, &err)) fail_msg("%s", err.msg);
    return e;
}

/* ---- trouble ---- */

enum { N_OTHERS = 4, MAX_JOBS = 4, MAX_TROUBLE = 40 };
typedef struct {
    engine *e;
    const workload *w;
    uint64_t seed;
    atomic_bool stop;
    atomic_int jobs_told;
    uint32_t jobs, stalled, cancelled;
} trouble;

static void job_runs(void *ctx) { (void)ctx; }
static void job_told(void *ctx, hd_status st) {
    trouble *t = ctx;
    assert_int_equal(st, HD_OK);
    atomic_fetch_add(&t->jobs_told, 1);
}

static void trouble_once(trouble *t, session **other) {
    session **s = &other[rng_below(&t->seed, N_OTHERS)];
    hd_err err;
    switch (rng_below(&t->seed, 4)) {
    case 0:
        if (t->jobs == MAX_JOBS) break; /* each costs every row its work so far */
        if (!engine_exclusive(t->e, job_runs, job_told, t, rng_below(&t->seed, 2) ? 0 : 3000, NULL, &err)) t->jobs++;
        break;
    case 1:
        if (*s) {
            session_cancel(*s, CANCEL_BY_REQUEST);
            t->cancelled++;
            break;
        }
        /* fall through */
    case 2: {
        gen_request r = t->w->reqs[rng_below(&t->seed, N_REQS)];
        r.priority = (gen_priority)((int)rng_below(&t->seed, 3) - 1);
        r.total_timeout_us = 200000; /* nobody reads it: it would hold a row until its idle deadline */
        session_free(*s);
        if (engine_submit(t->e, &r, 1, NULL, NULL, s, &err)) *s = NULL;
        t->stalled++;
        break;
    }
    default:
        if (*s) session_set_priority(*s, (gen_priority)((int)rng_below(&t->seed, 3) - 1));
    }
}

static void *make_trouble(void *ctx) {
    trouble *t = ctx;
    session *other[N_OTHERS] = {NULL};
    uint64_t next = 0;
    for (int n = 0; n < MAX_TROUBLE && !atomic_load(&t->stop);) {
        engine_view v = {0};
        engine_look(t->e, &v);
        if (v.steps >= next) { /* by steps, not by time: slow machines get no more of it */
            trouble_once(t, other);
            next = v.steps + 1 + rng_below(&t->seed, 12);
            n++;
        }
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    for (int i = 0; i < N_OTHERS; i++) session_free(other[i]);
    while (atomic_load(&t->jobs_told) < (int)t->jobs) nanosleep(&(struct timespec){0, 1000000}, NULL);
    return NULL;
}

static void check_model(const char *name, const char *path, kv_scheme full, kv_scheme sliding, int rounds) {
    workload *w = hd_calloc(1, sizeof *w);
    run_result alone[N_REQS], mixed[N_REQS];
    setting base = {1, 0, {.kv_type = full, .kv_type_sliding = sliding, .max_rows = 1, .ctx = CTX, .kv_budget_bytes = 256u << 20, .no_cache = true}};
    uint64_t seed = 99, cached = 0, evicted = 0, resumed = 0;
    uint32_t preemptions = 0, jobs = 0;
    model *m;
    engine *e = open_with(path, &base, &m);
    make_workload(w, model_get(m)->n_vocab);
    for (size_t i = 0; i < N_REQS; i++) {
        run_all(e, &w->reqs[i], 1, NULL, &alone[i]);
        assert_int_not_equal(alone[i].finish, FINISH_FAILED);
    }
    engine_close(e);
    model_close(m);
    for (int round = 0; round < rounds; round++) {
        setting s = random_setting(&seed);
        size_t order[N_REQS], said[N_REQS];
        gen_request reqs[N_REQS];
        static const char *const keys[] = {"", "a", "b"};
        trouble tr = {.w = w, .seed = seed + (uint64_t)round};
        pthread_t troubler;
        engine_view view = {0};
        s.opt.kv_type = full;
        s.opt.kv_type_sliding = sliding;
        for (size_t i = 0; i < N_REQS; i++) order[i] = i;
        for (size_t i = N_REQS - 1; i > 0; i--) {
            size_t j = rng_below(&seed, (uint32_t)i + 1), t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        e = open_with(path, &s, &m);
        for (size_t i = 0; i < N_REQS; i++) {
            reqs[i] = w->reqs[i];
            reqs[i].priority = (gen_priority)((int)rng_below(&seed, 3) - 1);
            reqs[i].share = keys[rng_below(&seed, 3)];
            reqs[i].cache_space = i % 8 == 3 ? "other" : NULL;
            reqs[i].no_cache = rng_below(&seed, 12) == 0;
            said[i] = reqs[i].prompt_logprobs || rng_below(&seed, 3) ? 0 : rng_below(&seed, (uint32_t)alone[i].n_ids + 1);
            reqs[i].said = alone[i].ids;
            reqs[i].n_said = said[i];
            resumed += said[i];
        }
        if (round % 2) { /* warm */
            run_all(e, reqs, N_REQS, order, mixed);
            for (size_t i = 0; i < N_REQS; i++) run_result_deinit(&mixed[i]);
        }
        tr.e = e;
        assert_int_equal(pthread_create(&troubler, NULL, make_trouble, &tr), 0);
        run_all(e, reqs, N_REQS, order, mixed);
        atomic_store(&tr.stop, true);
        pthread_join(troubler, NULL);
        jobs += tr.jobs;
        engine_look(e, &view);
        preemptions += (uint32_t)view.preemptions_total;
        evicted += view.pages_evicted;
        for (size_t i = 0; i < N_REQS; i++) {
            const char *what = run_result_rest_differs(&alone[i], said[i], &mixed[i]);
            if (what)
                fail_msg("%s %s,%s round %d request %zu: %s differ (threads %u, step %u, rows %u, page %u, budget %llu): alone %zu ids, "
                         "%s; now %zu ids, %s %s %s", name, kv_scheme_name(full), kv_scheme_name(sliding), round, i, what,
                         s.threads, s.opt.step_tokens, s.opt.max_rows,
                         s.opt.page_tokens, (unsigned long long)s.opt.kv_budget_bytes, alone[i].n_ids,
                         finish_reason_name(alone[i].finish), mixed[i].n_ids, finish_reason_name(mixed[i].finish),
                         cancel_reason_name(mixed[i].reason), mixed[i].finish == FINISH_FAILED ? mixed[i].err.msg : "");
            cached += mixed[i].cached_tokens;
            run_result_deinit(&mixed[i]);
        }
        engine_close(e);
        model_close(m);
    }
    print_message("%s with %s and %s: %d requests equal in %d interleavings; on the way %u preemptions, %u exclusive jobs, %llu "
                  "tokens from the cache, %llu pages evicted, %llu tokens said before\n", name, kv_scheme_name(full), kv_scheme_name(sliding), N_REQS, rounds,
                  preemptions, jobs, (unsigned long long)cached, (unsigned long long)evicted, (unsigned long long)resumed);
    assert_true(preemptions > 0 && jobs > 0 && cached > 0 && evicted > 0 && resumed > 0);
    for (size_t i = 0; i < N_REQS; i++) run_result_deinit(&alone[i]);
    hd_free(w);
}

/* $HEDDLE_TEST_ROUNDS asks for more or fewer. */
static int rounds(int dflt) {
    const char *want = getenv("HEDDLE_TEST_ROUNDS");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    dflt = (dflt + 3) / 4; /* each takes many times as long; the plain build runs them all */
#endif
    return want && atoi(want) > 0 ? atoi(want) : dflt;
}

static void check_tiny(const char *variant, kv_scheme full, kv_scheme sliding, int n) {
    char path[] = "/tmp/heddle-purity-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find(variant), NULL, path), 0);
    check_model(variant, path, full, sliding, rounds(n));
    unlink(path);
}

static void f32_llama(void **state) { (void)state, check_tiny("llama", KV_F16, KV_F16, ROUNDS); }
static void sliding_gemma3(void **state) { (void)state, check_tiny("gemma3", KV_F16, KV_F16, ROUNDS); }
static void q4_1_llama(void **state) { (void)state, check_tiny("q4_1", KV_F16, KV_F16, ROUNDS); }
static void q4_0_with_a_head_in_bytes(void **state) { (void)state, check_tiny("q4_0-head8", KV_F16, KV_F16, ROUNDS / 2); }
static void q4_k_llama(void **state) { (void)state, check_tiny("q4_k", KV_F16, KV_F16, ROUNDS); }
/* gemma3 has layers of both kinds. */
static void kv_f32(void **state) { (void)state, check_tiny("gemma3", KV_F32, KV_F32, ROUNDS / 4); }
static void kv_bf16(void **state) { (void)state, check_tiny("gemma3", KV_BF16, KV_BF16, ROUNDS / 4); }
static void kv_q8(void **state) { (void)state, check_tiny("gemma3", KV_Q8, KV_Q8, ROUNDS / 2); }
static void kv_q4(void **state) { (void)state, check_tiny("gemma3", KV_Q4, KV_Q4, ROUNDS / 2); }
static void kv_mixed(void **state) { (void)state, check_tiny("gemma3", KV_Q8, KV_F16, ROUNDS / 4); }
static void kv_short_blocks(void **state) { (void)state, check_tiny("llama", KV_Q4, KV_Q4, ROUNDS / 4); }

static void demo_model(void **state) {
    const char *path = getenv("HEDDLE_TEST_MODEL");
    (void)state;
    if (!path || !*path) {
        print_message("skipped: HEDDLE_TEST_MODEL does not name a model\n");
        skip();
    }
    check_model("demo model", path, KV_F16, KV_F16, rounds(3));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    check_model("demo model", path, KV_Q8, KV_Q8, rounds(1)); /* a real model takes its time */
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_llama), cmocka_unit_test(sliding_gemma3), cmocka_unit_test(q4_1_llama),
        cmocka_unit_test(q4_0_with_a_head_in_bytes), cmocka_unit_test(q4_k_llama), cmocka_unit_test(kv_f32), cmocka_unit_test(kv_bf16), cmocka_unit_test(kv_q8),
        cmocka_unit_test(kv_q4), cmocka_unit_test(kv_mixed), cmocka_unit_test(kv_short_blocks), cmocka_unit_test(demo_model),
    };
    return cmocka_run_group_tests_name("purity", tests, NULL, NULL);
}
