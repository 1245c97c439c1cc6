/* test_engine_embedding.c - hidden states, and the embeddings that the executor pools from them.
 *
 * Hidden states are compared with the transformers library's (tests/tiny/make_goldens.py); pooling with sums written out
 * here, over the scripted model's states, which are small whole numbers by a formula; purity by running the same requests
 * alone and in random company. */
#include "base/mem.h"
#include "exec/methods/embedding.h"
#include "model/model_int.h"
#include "tiny/tiny_model.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static gen_request embedding_request(const int32_t *ids, size_t n, uint64_t arg) {
    gen_request r = {.id = "", .method = "embedding", .method_arg = arg, .prompt = ids, .n_prompt = n};
    sampling_defaults(&r.sampling);
    return r;
}

/* ---- tiny models in files ---- */

typedef struct {
    char path[40];
    model *m;
    engine *e;
} rig;

static rig open_tiny(const char *variant, const char *isa, unsigned threads, const engine_options *opt) {
    rig g = {.path = "/tmp/heddle-embedding-XXXXXX"};
    model_options mo = {.isa = isa, .n_threads = threads};
    int fd = mkstemp(g.path);
    hd_err err;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find(variant), NULL, g.path), 0);
    if (model_open(&g.m, g.path, &mo, &err)) fail_msg("%s: %s", variant, err.msg);
    if (opt && engine_open(&g.e, g.m, opt, &err)) fail_msg("%s: %s", variant, err.msg);
    return g;
}

static void close_rig(rig *g) {
    engine_close(g->e);
    model_close(g->m);
    unlink(g->path);
}

static double relative(const float *got, const double *want, size_t n) {
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++) d += (got[i] - want[i]) * (got[i] - want[i]), w += want[i] * want[i];
    return sqrt(d / w);
}

static double distance(engine *e, const int32_t *ids, size_t n, embedding_pooling how, const double *want, size_t width) {
    gen_request r = embedding_request(ids, n, how | EMBEDDING_RAW);
    run_result a;
    double d;
    run_all(e, &r, 1, NULL, &a);
    assert_int_equal(a.finish, FINISH_STOP);
    assert_int_equal(a.n_logprobs, width);
    d = relative(a.logprobs, want, width);
    run_result_deinit(&a);
    return d;
}

/* A decoder's state at position i is that of the prompt cut after i. */
static void check_goldens(const char *variant, const char *isa, uint32_t step_tokens) {
    engine_options eo = {.kv_type = KV_F32, .step_tokens = step_tokens, .kv_budget_bytes = 64 << 20};
    rig t = open_tiny(variant, isa, 2, &eo);
    uint32_t width = model_get(t.m)->width;
    double worst = 0, *want = hd_calloc(width, sizeof *want), *sum = hd_calloc(width, sizeof *sum);
    tiny_golden g;
    assert_int_equal(tiny_golden_read(&g, TEST_DIR "/golden", variant), 0);
    for (uint32_t q = 0; q < g.n_seqs; q++) {
        const tiny_sequence *s = &g.seqs[q];
        float *h = hd_reallocarray(NULL, (size_t)s->n * width, sizeof *h);
        assert_int_equal(tiny_hidden_read(h, TEST_DIR "/golden", variant, q, s->n, width), 0);
        memset(sum, 0, width * sizeof *sum);
        for (uint32_t i = 0; i < s->n; i++) {
            double d;
            for (uint32_t k = 0; k < width; k++) want[k] = h[(size_t)i * width + k], sum[k] += want[k];
            if (!((d = distance(t.e, s->ids, i + 1, EMBEDDING_LAST, want, width)) <= worst)) worst = d;
        }
        for (uint32_t k = 0; k < width; k++) want[k] = h[k], sum[k] /= s->n;
        if (!(distance(t.e, s->ids, s->n, EMBEDDING_CLS, want, width) <= 1e-3)) fail_msg("%s: the first state", variant);
        if (!(distance(t.e, s->ids, s->n, EMBEDDING_MEAN, sum, width) <= 1e-3)) fail_msg("%s: the mean", variant);
        hd_free(h);
    }
    print_message("%-8s %-8s relative L2 of hidden states at most %.1e\n", isa, variant, worst);
    if (!(worst <= 1e-3)) fail_msg("%s on %s: %g", variant, isa, worst);
    tiny_golden_free(&g);
    hd_free(want);
    hd_free(sum);
    close_rig(&t);
}

static void hidden_states_agree_with_the_library(void **state) {
    static const char *const variants[] = {"llama", "qwen3", "gemma3"};
    (void)state;
    for (size_t k = 0; kernels_built(k); k++) {
        const char *isa = kernels_built(k);
        if (!kernels_get(isa)) {
            print_message("not run on kernel path %s: this CPU has not got it\n", isa);
            continue;
        }
        for (size_t i = 0; i < 3; i++) check_goldens(variants[i], isa, (i + k) % 2 ? 256 : 7);
    }
}

/* ---- the model alone: segments that want hidden states, logits, both or neither ---- */

enum { PAGE = 16, N_IDS = 45, N_PAGES = (N_IDS + PAGE - 1) / PAGE };

typedef struct {
    void *pages[MODEL_MAX_GROUPS][N_PAGES];
} page_set;

static void take_pages(page_set *p, model *m, segment *g) {
    for (uint32_t k = 0; k < model_get(m)->n_groups; k++) {
        for (size_t i = 0; i < N_PAGES; i++)
            assert_non_null(p->pages[k][i] = hd_alloc_aligned(64, model_page_bytes(m, k, PAGE, KV_F16)));
        g->pages[k] = p->pages[k];
    }
}

static void drop_pages(page_set *p, model *m) {
    for (uint32_t k = 0; k < model_get(m)->n_groups; k++)
        for (size_t i = 0; i < N_PAGES; i++) hd_free_aligned(p->pages[k][i]);
}

static void forward(model *m, segment *segs, uint32_t n) {
    step st = {segs, n, 0, NULL};
    uint32_t bad;
    hd_err err;
    for (uint32_t i = 0; i < n; i++) st.n_tokens += segs[i].n;
    if (model_forward(m, &st, &bad, &err)) fail_msg("%s", err.msg);
}

static void wants_in_any_mix(void **state) {
    const step_limits lim = {.max_tokens = 128, .max_segs = 4, .max_logits = 64, .max_hidden = 96, .ctx = 64,
                             .page_tokens = PAGE, .kv_type = {KV_F16, KV_F16}};
    step_limits none = lim;
    rig t = open_tiny("q4_k", NULL, 2, NULL);
    uint32_t width = model_get(t.m)->width, vocab = model_get(t.m)->n_vocab;
    float *logits = hd_reallocarray(NULL, N_IDS * vocab, sizeof *logits), *hidden = hd_reallocarray(NULL, N_IDS * width, sizeof *hidden);
    int32_t ids[N_IDS];
    segment base = {.tokens = ids, .n = N_IDS, .first_logits = 0}, g, two[2];
    page_set p, q;
    hd_err err;
    (void)state;
    none.max_hidden = 0;
    assert_true(model_workspace_bytes(t.m, &lim) >= model_workspace_bytes(t.m, &none) + 96 * width * sizeof(float));
    for (int i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 5) % 300;
    if (model_plan(t.m, &lim, &err)) fail_msg("%s", err.msg);
    take_pages(&p, t.m, &base);
    g = base; /* logits alone */
    forward(t.m, &g, 1);
    memcpy(logits, g.logits, N_IDS * vocab * sizeof *logits);
    g = base; /* hidden states alone */
    g.first_logits = N_IDS;
    g.end_hidden = N_IDS;
    forward(t.m, &g, 1);
    memcpy(hidden, g.hidden, N_IDS * width * sizeof *hidden);
    g = base; /* both, overlapping in part */
    g.first_logits = 9;
    g.first_hidden = 3;
    g.end_hidden = 21;
    forward(t.m, &g, 1);
    assert_memory_equal(g.logits, logits + 9 * vocab, (N_IDS - 9) * vocab * sizeof *logits);
    assert_memory_equal(g.hidden, hidden + 3 * width, 18 * width * sizeof *hidden);
    for (uint32_t i = 0; i < N_IDS; i++) { /* one by one, beside another row that wants something else */
        two[0] = base, two[1] = base;
        if (!i) take_pages(&q, t.m, &two[1]);
        for (uint32_t k = 0; k < model_get(t.m)->n_groups; k++) two[1].pages[k] = q.pages[k];
        two[0].first_logits = i % 2 ? N_IDS : 30;
        two[0].first_hidden = i;
        two[0].end_hidden = i % 3 ? N_IDS : i;
        two[1].tokens = ids + i;
        two[1].pos0 = i;
        two[1].n = 1;
        two[1].first_logits = i % 3 == 1;
        two[1].end_hidden = i % 3 != 2;
        forward(t.m, two, 2);
        if (i % 2 == 0) assert_memory_equal(two[0].logits, logits + 30 * vocab, (N_IDS - 30) * vocab * sizeof *logits);
        if (i % 3) assert_memory_equal(two[0].hidden, hidden + i * width, (N_IDS - i) * width * sizeof *hidden);
        if (i % 3 != 1) assert_memory_equal(two[1].logits, logits + i * vocab, vocab * sizeof *logits);
        if (i % 3 != 2) assert_memory_equal(two[1].hidden, hidden + i * width, width * sizeof *hidden);
    }
    drop_pages(&p, t.m);
    drop_pages(&q, t.m);
    hd_free(logits);
    hd_free(hidden);
    close_rig(&t);
}

/* ---- the scripted model: values ---- */

enum { WIDTH = 8 };
#define SCRIPT(more) "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":400" more ",\"default\":{\"emit\":[1],\"then\":\"loop\"}}"

static rig open_script(const char *json, engine_options opt) {
    rig g = {.path = ""};
    hd_err err;
    if (!opt.kv_budget_bytes) opt.kv_budget_bytes = 16 << 20;
    if (script_open_memory(&g.m, json, strlen(json), "test", NULL, &err)) fail_msg("%s", err.msg);
    if (engine_open(&g.e, g.m, &opt, &err)) fail_msg("%s", err.msg);
    return g;
}

static double script_state(int32_t id, uint32_t pos, uint32_t i) {
    return (double)((31 * id + 7 * (int)(pos + 1) * (int)(i + 1)) % 101 - 50);
}

static void naive(const int32_t *ids, uint32_t n, uint64_t arg, float *out) {
    double v[WIDTH], length = 0;
    for (uint32_t i = 0; i < WIDTH; i++) {
        double sum = 0;
        for (uint32_t p = 0; p < n; p++) sum += script_state(ids[p], p, i);
        v[i] = (arg & 3) == EMBEDDING_MEAN ? sum / n : script_state((arg & 3) == EMBEDDING_CLS ? ids[0] : ids[n - 1],
                                                                    (arg & 3) == EMBEDDING_CLS ? 0 : n - 1, i);
        length += v[i] * v[i];
    }
    for (uint32_t i = 0; i < WIDTH; i++) out[i] = (float)(arg & EMBEDDING_RAW ? v[i] : v[i] / sqrt(length));
}

static void fill_ids(int32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&seed, 258);
}

static const uint64_t args[] = {EMBEDDING_LAST, EMBEDDING_MEAN, EMBEDDING_CLS, EMBEDDING_LAST | EMBEDDING_RAW,
                                EMBEDDING_MEAN | EMBEDDING_RAW, EMBEDDING_CLS | EMBEDDING_RAW};
enum { N_ARGS = sizeof args / sizeof *args };

static void poolings_are_what_they_say(void **state) {
    static const uint32_t lengths[] = {1, 2, 17, 150, 400};
    int32_t ids[400];
    rig t = open_script(SCRIPT(""), (engine_options){.step_tokens = 16});
    (void)state;
    fill_ids(ids, 400, 3);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (size_t a = 0; a < N_ARGS; a++) {
            gen_request r = embedding_request(ids, lengths[k], args[a]);
            float want[WIDTH];
            run_result got;
            run_all(t.e, &r, 1, NULL, &got);
            naive(ids, lengths[k], args[a], want);
            assert_int_equal(got.finish, FINISH_STOP);
            assert_int_equal(got.n_ids + got.n_text, 0);
            assert_int_equal(got.n_logprobs, WIDTH);
            assert_memory_equal(got.logprobs, want, sizeof want);
            run_result_deinit(&got);
        }
    close_rig(&t);
}

static void one_vector_then_the_end(void **state) {
    int32_t ids[20];
    rig t = open_script(SCRIPT(""), (engine_options){.step_tokens = 3});
    gen_request r = embedding_request(ids, 20, EMBEDDING_MEAN);
    session *s;
    gen_event ev;
    hd_err err;
    (void)state;
    fill_ids(ids, 20, 4);
    if (engine_submit(t.e, &r, 1, NULL, NULL, &s, &err)) fail_msg("%s", err.msg);
    session_wait(s, &ev, UINT64_MAX);
    assert_int_equal(ev.kind, EV_VECTOR);
    assert_int_equal(ev.n_vector, WIDTH);
    session_wait(s, &ev, UINT64_MAX);
    assert_int_equal(ev.kind, EV_DONE);
    assert_int_equal(ev.finish, FINISH_STOP);
    assert_false(ev.ended_by_eos);
    assert_int_equal(ev.stop_index, -1);
    assert_int_equal(ev.stats.prompt_tokens, 20);
    assert_int_equal(ev.stats.generated_tokens, 0);
    assert_int_equal(ev.stats.decode_us, 0);
    session_next(s, &ev);
    assert_int_equal(ev.kind, EV_NONE);
    session_free(s);
    if (engine_submit(t.e, &r, 1, NULL, NULL, &s, &err)) fail_msg("%s", err.msg);
    session_free(s); /* nobody reads the vector: it goes with the session */
    close_rig(&t);
}

static void refusals_name_the_field(void **state) {
    int32_t ids[401];
    rig t = open_script(SCRIPT(""), (engine_options){0});
    struct {
        gen_request r;
        hd_status st;
        const char *field;
    } cases[] = {
        {embedding_request(ids, 5, 0), HD_INVALID, "max_tokens"},     {embedding_request(ids, 5, 0), HD_INVALID, "max_tokens"},
        {embedding_request(ids, 5, 3), HD_INVALID, "method_arg"},     {embedding_request(ids, 5, 1 << 9), HD_INVALID, "method_arg"},
        {embedding_request(ids, 5, 0), HD_INVALID, "prompt_logits"},  {embedding_request(ids, 5, 0), HD_INVALID, "prompt_logprobs"},
        {embedding_request(ids, 5, 0), HD_INVALID, "method"},         {embedding_request(ids, 401, 0), HD_NEVER_FITS, "prompt"},
        {embedding_request(ids, 0, 0), HD_INVALID, "prompt"},
    };
    run_result got;
    (void)state;
    fill_ids(ids, 401, 5);
    cases[0].r.max_tokens = 1;
    cases[1].r.max_tokens = GEN_NO_CAP;
    cases[4].r.prompt_logits = true;
    cases[5].r.prompt_logprobs = true;
    cases[6].r.method = "embeddings";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        session *s = NULL;
        hd_err err = {0};
        assert_int_equal(engine_submit(t.e, &cases[i].r, 1, NULL, NULL, &s, &err), cases[i].st);
        assert_string_equal(err.field, cases[i].field);
        assert_null(s);
    }
    cases[0].r.max_tokens = 0;
    run_all(t.e, &cases[0].r, 1, NULL, &got);
    assert_int_equal(got.finish, FINISH_STOP);
    run_result_deinit(&got);
    close_rig(&t);
}

static void cancelled_in_the_middle(void **state) {
    int32_t ids[300];
    rig t = open_script(SCRIPT(",\"prompt_delay_ms\":5"), (engine_options){.step_tokens = 2});
    gen_request r = embedding_request(ids, 300, EMBEDDING_MEAN);
    uint32_t done = 0, total;
    bool queued;
    session *s;
    gen_event ev;
    float want[WIDTH];
    run_result got;
    hd_err err;
    (void)state;
    fill_ids(ids, 300, 6);
    if (engine_submit(t.e, &r, 1, NULL, NULL, &s, &err)) fail_msg("%s", err.msg);
    while (!done) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        session_progress(s, &done, &total, &queued);
    }
    session_cancel(s, CANCEL_BY_REQUEST);
    session_wait(s, &ev, UINT64_MAX);
    assert_int_equal(ev.kind, EV_DONE);
    assert_int_equal(ev.finish, FINISH_CANCELLED);
    assert_int_equal(ev.reason, CANCEL_BY_REQUEST);
    session_free(s);
    r.n_prompt = 4; /* the next one is none the worse */
    run_all(t.e, &r, 1, NULL, &got);
    naive(ids, 4, EMBEDDING_MEAN, want);
    assert_int_equal(got.n_logprobs, WIDTH);
    assert_memory_equal(got.logprobs, want, sizeof want);
    run_result_deinit(&got);
    close_rig(&t);
}

/* Nobody reads until all are done: a vector holds no row back. */
static void many_are_kept_until_they_are_read(void **state) {
    enum { N = 200 };
    static int32_t ids[N][40];
    static session *s[N];
    rig t = open_script(SCRIPT(""), (engine_options){.max_rows = 3, .max_queued = N, .step_tokens = 9});
    hd_err err;
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        gen_request r = embedding_request(ids[i], 1 + i % 40, args[i % N_ARGS]);
        r.collect = i % 2;
        fill_ids(ids[i], 40, i);
        if (engine_submit(t.e, &r, 1, NULL, NULL, &s[i], &err)) fail_msg("%s", err.msg);
    }
    while (!engine_idle(t.e)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (uint32_t i = 0; i < N; i++) {
        gen_event ev;
        float want[WIDTH];
        naive(ids[i], 1 + i % 40, args[i % N_ARGS], want);
        session_next(s[i], &ev);
        assert_int_equal(ev.kind, EV_VECTOR);
        assert_memory_equal(ev.vector, want, sizeof want);
        session_next(s[i], &ev);
        assert_int_equal(ev.kind, EV_DONE);
        session_free(s[i]);
    }
    close_rig(&t);
}

/* ---- purity ---- */

enum { N_REQS = 16, MAX_PROMPT = 130, CTX = 192 };

static void make_requests(gen_request *r, int32_t (*ids)[MAX_PROMPT]) {
    uint64_t seed = 7;
    for (uint32_t i = 0; i < N_REQS; i++) {
        uint32_t n = i == 1 ? 1 : 2 + rng_below(&seed, MAX_PROMPT - 2);
        for (uint32_t j = 0; j < n; j++) ids[i][j] = (int32_t)rng_below(&seed, 300);
        r[i] = embedding_request(ids[i], n, args[i % N_ARGS]);
        if (i % 4 < 2) continue;
        r[i] = (gen_request){.id = "", .prompt = ids[i], .n_prompt = n, .max_tokens = i % 4 == 2 ? GEN_NO_CAP : 10 + i,
                             .ignore_eos = true}; /* rows without a cap outgrow what was counted for them */
        sampling_defaults(&r[i].sampling);
        r[i].sampling.seed = i;
        r[i].prompt_logprobs = i == 7;
    }
}

/* Alone with everything in one step; then all together, cut every way, with budgets that make rows give way. */
static void check_purity(const char *variant, int n_rounds) {
    static int32_t ids[N_REQS][MAX_PROMPT];
    gen_request r[N_REQS];
    run_result alone[N_REQS], mixed[N_REQS];
    engine_options base = {.kv_type = KV_F16, .max_rows = 1, .ctx = CTX, .kv_budget_bytes = 64 << 20};
    rig t = open_tiny(variant, NULL, 1, &base);
    static const uint32_t steps[] = {1, 3, 16, 40, 256}, pages[] = {2, 16, 64}, rows[] = {2, 5, 16};
    uint64_t seed = 5, row[3] = {0};
    uint32_t preemptions = 0;
    make_requests(r, ids);
    for (uint32_t g = 0; g < model_get(t.m)->n_groups; g++)
        for (size_t i = 0; i < 3; i++) /* pages take whole pages of the system */
            row[i] += (model_page_bytes(t.m, g, pages[i], KV_F16) + 4095) / 4096 * 4096 * (CTX / pages[i]);
    for (size_t i = 0; i < N_REQS; i++) {
        run_all(t.e, &r[i], 1, NULL, &alone[i]);
        assert_true(alone[i].finish == FINISH_STOP || alone[i].finish == FINISH_LENGTH);
    }
    close_rig(&t);
    for (int round = 0; round < n_rounds; round++) {
        engine_options o = {.kv_type = KV_F16, .ctx = CTX, .default_max_tokens = 4};
        size_t order[N_REQS], page = rng_below(&seed, 3);
        engine_view view = {0};
        o.step_tokens = steps[rng_below(&seed, 5)];
        o.page_tokens = pages[page];
        o.max_rows = rows[rng_below(&seed, 3)];
        o.kv_budget_bytes = row[page] * (1 + rng_below(&seed, 3));
        for (size_t i = 0; i < N_REQS; i++) order[i] = i;
        for (size_t i = N_REQS - 1; i > 0; i--) {
            size_t j = rng_below(&seed, (uint32_t)i + 1), k = order[i];
            order[i] = order[j];
            order[j] = k;
        }
        t = open_tiny(variant, NULL, 1 + rng_below(&seed, 2), &o);
        run_all(t.e, r, N_REQS, order, mixed);
        engine_look(t.e, &view);
        preemptions += (uint32_t)view.preemptions_total;
        for (size_t i = 0; i < N_REQS; i++) {
            const char *what = run_result_differs(&alone[i], &mixed[i]);
            if (what)
                fail_msg("%s round %d request %zu: %s differ (step %u, rows %u, page %u, budget %llu)", variant, round, i, what,
                         o.step_tokens, o.max_rows, o.page_tokens, (unsigned long long)o.kv_budget_bytes);
            run_result_deinit(&mixed[i]);
        }
        close_rig(&t);
    }
    print_message("%s: %d requests equal in %d interleavings, %u preemptions on the way\n", variant, N_REQS, n_rounds, preemptions);
    for (size_t i = 0; i < N_REQS; i++) run_result_deinit(&alone[i]);
}

/* $HEDDLE_TEST_ROUNDS asks for more. */
static int rounds(void) {
    const char *want = getenv("HEDDLE_TEST_ROUNDS");
    return want && atoi(want) > 0 ? atoi(want) : 4;
}

static void alone_and_in_company_f32(void **state) { (void)state, check_purity("llama", rounds()); }
static void alone_and_in_company_sliding(void **state) { (void)state, check_purity("gemma3", rounds()); }
static void alone_and_in_company_q4_k(void **state) { (void)state, check_purity("q4_k", rounds()); }

/* An embedding that gives way starts its sum again.  Two uncapped rows outgrow the budget while the youngest, a long
 * embedding, is still being read. */
static void a_mean_survives_preemption(void **state) {
    int32_t ids[3][120];
    rig t = open_script(SCRIPT(""), (engine_options){.step_tokens = 3, .max_rows = 3, .page_tokens = 16,
                                                     .default_max_tokens = 1, .kv_budget_bytes = 160 << 10, .ctx = 128});
    gen_request r[3] = {{.id = "", .prompt = ids[0], .n_prompt = 2, .max_tokens = GEN_NO_CAP},
                        {.id = "", .prompt = ids[1], .n_prompt = 2, .max_tokens = GEN_NO_CAP},
                        embedding_request(ids[2], 120, EMBEDDING_MEAN)};
    run_result got = {0};
    session *s[3];
    engine_view view = {0};
    float want[WIDTH];
    gen_event ev;
    hd_err err;
    (void)state;
    for (int i = 0; i < 3; i++) fill_ids(ids[i], 120, (uint64_t)i + 20);
    for (int i = 0; i < 2; i++) sampling_defaults(&r[i].sampling);
    if (engine_submit(t.e, r, 3, NULL, NULL, s, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 3; i++) {
        do {
            session_wait(s[i], &ev, UINT64_MAX);
            if (i == 2) run_result_add(&got, &ev);
        } while (ev.kind != EV_DONE);
        session_free(s[i]);
    }
    engine_look(t.e, &view);
#ifndef HD_HOSTILE /* queues of 1 stop the first two until they are read */
    assert_true(view.preemptions_total > 0);
#endif
    naive(ids[2], 120, EMBEDDING_MEAN, want);
    assert_int_equal(got.n_logprobs, WIDTH);
    assert_memory_equal(got.logprobs, want, sizeof want);
    run_result_deinit(&got);
    close_rig(&t);
}

/* A broken file: its states are not numbers, and JSON has no word for them. */
static void states_that_are_not_numbers_fail(void **state) {
    engine_options eo = {.kv_type = KV_F16, .kv_budget_bytes = 64 << 20};
    const tiny_variant *v = tiny_variant_find("llama");
    rig t = open_tiny("llama", NULL, 1, NULL);
    float norm[64], nan = __builtin_nanf("");
    int32_t ids[] = {5, 6, 7};
    static char file[1 << 20];
    gen_request r = embedding_request(ids, 3, EMBEDDING_MEAN);
    model_options mo = {.n_threads = 1};
    run_result got;
    size_t n;
    char *at;
    hd_err err;
    FILE *f;
    (void)state;
    close_rig(&t);
    assert_int_equal(tiny_model_write(v, NULL, t.path), 0);
    tiny_values("output_norm.weight", v->seed, 0, norm, 64);
    assert_non_null(f = fopen(t.path, "r+b"));
    n = fread(file, 1, sizeof file, f);
    assert_true(n < sizeof file);
    assert_non_null(at = memmem(file, n, norm, sizeof norm));
    assert_int_equal(fseek(f, at - file + 8, SEEK_SET), 0);
    assert_int_equal(fwrite(&nan, sizeof nan, 1, f), 1);
    fclose(f);
    if (model_open(&t.m, t.path, &mo, &err) || engine_open(&t.e, t.m, &eo, &err)) fail_msg("%s", err.msg);
    run_all(t.e, &r, 1, NULL, &got);
    assert_int_equal(got.finish, FINISH_FAILED);
    assert_int_equal(got.n_logprobs, 0);
    assert_non_null(strstr(got.err.msg, "not numbers"));
    run_result_deinit(&got);
    close_rig(&t);
}

/* ---- the program ---- */

static void program(const char *options, const char *want, int want_status) {
    char command[512], out[4096];
    int fd, status;
    size_t n;
    FILE *p;
    char path[] = "/tmp/heddle-embedding-XXXXXX";
    static const char script[] = SCRIPT("");
    fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, script, sizeof script - 1) == (ssize_t)(sizeof script - 1));
    close(fd);
    snprintf(command, sizeof command, "%s embed script:%s %s 2>/dev/null", HEDDLE_BIN, path, options);
    assert_non_null(p = popen(command, "r"));
    n = fread(out, 1, sizeof out - 1, p);
    out[n] = 0;
    status = pclose(p);
    unlink(path);
    assert_int_equal(status, want_status << 8);
    assert_string_equal(out, want);
}

static void embed_prints_numbers(void **state) {
    (void)state; /* "XX" is ids 1, 1: h[i] = (31 + 7 (p + 1)(i + 1)) mod 101 - 50 */
    program("--text XX --pooling cls --no-normalize --json",
            "{\"embedding\":[-12.0,-5.0,2.0,9.0,16.0,23.0,30.0,37.0],\"tokens\":2}\n", 0);
    program("--text XX --pooling last --no-normalize --json",
            "{\"embedding\":[-5.0,9.0,23.0,37.0,-50.0,-36.0,-22.0,-8.0],\"tokens\":2}\n", 0);
    program("--text XX --no-normalize --json", "{\"embedding\":[-5.0,9.0,23.0,37.0,-50.0,-36.0,-22.0,-8.0],\"tokens\":2}\n", 0);
    program("--text XX --pooling mean --no-normalize", "-8.5\n2.0\n12.5\n23.0\n-17.0\n-6.5\n4.0\n14.5\n", 0);
    program("--text XX --pooling middle", "", 64);
    program("--pooling last", "", 64);
    program("--text ''", "", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states_agree_with_the_library), cmocka_unit_test(wants_in_any_mix),
        cmocka_unit_test(poolings_are_what_they_say), cmocka_unit_test(one_vector_then_the_end),
        cmocka_unit_test(refusals_name_the_field), cmocka_unit_test(cancelled_in_the_middle),
        cmocka_unit_test(many_are_kept_until_they_are_read), cmocka_unit_test(alone_and_in_company_f32),
        cmocka_unit_test(alone_and_in_company_sliding), cmocka_unit_test(alone_and_in_company_q4_k),
        cmocka_unit_test(a_mean_survives_preemption), cmocka_unit_test(states_that_are_not_numbers_fail),
        cmocka_unit_test(embed_prints_numbers),
    };
    return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
