/* test_engine.c - the executor behind its sessions, with a scripted model: bounds, isolation, ends, stats.
 *
 * Waiting here is for conditions, with a generous limit; no assertion depends on how fast the machine is. */
#include "base/mem.h"
#include "model/model_int.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Ids: 0 bos, 1 eos, 2.. words; bytes from 10 on. */
#define VOCAB "\"vocab\":[\"<s>\",\"</s>\",\"Hello\",\" world\",\"!\",\"AB\",\"DEF\",\"G\",\"HI\",\"J\"],\"special\":{\"bos\":0,\"eos\":[1]}"
enum { BYTES = 10 };

typedef struct {
    model *m;
    engine *e;
} fixture;

static fixture open_script(const char *rest, engine_options opt) {
    char json[4096];
    fixture f;
    hd_err err;
    int n = snprintf(json, sizeof json, "{" VOCAB ",%s}", rest);
    assert_true(n > 0 && n < (int)sizeof json);
    if (script_open_memory(&f.m, json, (size_t)n, "test", NULL, &err)) fail_msg("%s", err.msg);
    if (!opt.kv_budget_bytes) opt.kv_budget_bytes = 16 << 20;
    if (engine_open(&f.e, f.m, &opt, &err)) fail_msg("%s", err.msg);
    return f;
}

static void close_fixture(fixture *f) {
    engine_close(f->e);
    model_close(f->m);
}

static const int32_t one_prompt[] = {2};
static gen_request request(const int32_t *ids, size_t n, uint32_t max_tokens) {
    gen_request r = {.id = "", .prompt = ids, .n_prompt = n, .max_tokens = max_tokens};
    sampling_defaults(&r.sampling);
    r.sampling.temperature = 0;
    return r;
}

static session *submit(engine *e, const gen_request *r) {
    session *s = NULL;
    hd_err err;
    if (engine_submit(e, r, 1, NULL, NULL, &s, &err)) fail_msg("%s", err.msg);
    return s;
}

static void read_to_end(session *s, run_result *out) {
    gen_event ev;
    do {
        session_wait(s, &ev, UINT64_MAX);
        run_result_add(out, &ev);
    } while (ev.kind != EV_DONE);
}

static void nap(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

#define WAIT_FOR(cond)                                                                                                 \
    do {                                                                                                               \
        int tries_ = 0;                                                                                                \
        while (!(cond)) {                                                                                              \
            if (++tries_ > 20000) fail_msg("never came true: %s", #cond);                                              \
            nap();                                                                                                     \
        }                                                                                                              \
    } while (0)

static engine_view look(engine *e) {
    engine_view v = {0};
    engine_look(e, &v);
    return v;
}

static run_result run_one(fixture *f, const gen_request *r) {
    run_result out;
    run_all(f->e, r, 1, NULL, &out);
    return out;
}

#define assert_text(r, s)                                                                                              \
    do {                                                                                                               \
        assert_int_equal((r).n_text, strlen(s));                                                                       \
        assert_memory_equal((r).text ? (r).text : "", s, strlen(s));                                                   \
    } while (0)

static void emits_and_ends(void **state) {
    fixture f = open_script("\"default\":{\"emit\":[\"Hello\",\" world\",\"!\"],\"then\":\"eos\"}", (engine_options){0});
    gen_request r = request(one_prompt, 1, GEN_NO_CAP);
    run_result a = run_one(&f, &r);
    (void)state;
    assert_text(a, "Hello world!");
    assert_int_equal(a.n_ids, 3); /* without the ending EOS */
    assert_int_equal(a.generated_tokens, 4);
    assert_int_equal(a.finish, FINISH_STOP);
    assert_true(a.ended_by_eos);
    run_result_deinit(&a);
    r.max_tokens = 2;
    a = run_one(&f, &r);
    assert_text(a, "Hello world");
    assert_int_equal(a.finish, FINISH_LENGTH);
    assert_int_equal(a.generated_tokens, 2);
    run_result_deinit(&a);
    r.max_tokens = 0;
    a = run_one(&f, &r);
    assert_int_equal(a.n_ids + a.n_text, 0);
    assert_int_equal(a.finish, FINISH_LENGTH);
    run_result_deinit(&a);
    close_fixture(&f);
}

/* R046-R048: nothing of a stop string leaves, a false alarm is released whole, and text held at an end is flushed. */
static void stop_strings(void **state) {
    static const struct {
        const char *emit, *stop, *text;
        finish_reason finish;
    } cases[] = {
        {"[\"AB\",\"C\",\"DEF\",\"G\",\"HI\",\"J\"]", "DEFGHIJ", "ABC", FINISH_STOP},
        {"[\"AB\",\"DEF\",\"X\"]", "DEFGHIJ", "ABDEFX", FINISH_STOP},
        {"[\"AB\",\"DEF\"]", "DEFGHIJ", "ABDEF", FINISH_STOP},
        {"[\"?\",\"\\n\",\"Hello\"]", "\n", "?", FINISH_STOP},
        {"[\"ple\",\"as\"]", "<|eot|><|h|>assistant<|/h|>", "pleas", FINISH_STOP},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rest[200];
        stop_string stop = {cases[i].stop, strlen(cases[i].stop)};
        gen_request r = request(one_prompt, 1, GEN_NO_CAP);
        fixture f;
        run_result a;
        snprintf(rest, sizeof rest, "\"default\":{\"emit\":%s,\"then\":\"eos\"}", cases[i].emit);
        f = open_script(rest, (engine_options){0});
        r.stops = &stop;
        r.n_stops = 1;
        a = run_one(&f, &r);
        assert_text(a, cases[i].text);
        assert_int_equal(a.finish, cases[i].finish);
        run_result_deinit(&a);
        close_fixture(&f);
    }
}

/* A stop that completes with the last allowed token reports stop; the matched tokens are in ids. */
static void stop_at_the_cap_reports_stop(void **state) {
    fixture f = open_script("\"default\":{\"emit\":[\"Hello\",\"!\"],\"then\":\"loop\"}", (engine_options){0});
    stop_string stop = {"!", 1};
    gen_request r = request(one_prompt, 1, 2);
    run_result a;
    (void)state;
    r.stops = &stop;
    r.n_stops = 1;
    a = run_one(&f, &r);
    assert_text(a, "Hello");
    assert_int_equal(a.n_ids, 2);
    assert_int_equal(a.finish, FINISH_STOP);
    assert_int_equal(a.stop_index, 0);
    assert_false(a.ended_by_eos);
    run_result_deinit(&a);
    close_fixture(&f);
}

/* R045, R052: characters in pieces, bytes that are none, an end inside one. */
static void characters_come_whole(void **state) {
    fixture f = open_script("\"rules\":[{\"match\":\"world\",\"emit\":[138,50,205,250],\"then\":\"eos\"}],"
                            "\"default\":{\"emit\":[250,169,162,148,250,169],\"then\":\"eos\"}",
                            (engine_options){0}); /* byte b is id 10 + b: F0 9F 98 8A F0 9F; 80 28 C3 F0 */
    const int32_t world[] = {3};
    gen_request r = request(one_prompt, 1, GEN_NO_CAP);
    run_result a = run_one(&f, &r);
    (void)state;
    assert_text(a, "\xF0\x9F\x98\x8A\xEF\xBF\xBD");
    run_result_deinit(&a);
    r = request(world, 1, GEN_NO_CAP);
    a = run_one(&f, &r);
    assert_text(a, "\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD");
    run_result_deinit(&a);
    close_fixture(&f);
}

/* Law 3: a row whose forward fails ends alone. */
static void a_failing_row_fails_alone(void **state) {
    fixture f = open_script("\"rules\":[{\"match\":\"world\",\"emit\":[\"!\",\"!\"],\"then\":\"fail\"}],"
                            "\"default\":{\"emit\":[\"Hello\",\" world\",\"!\",\"!\",\"!\"],\"then\":\"eos\"}",
                            (engine_options){0});
    const int32_t world[] = {3};
    gen_request r[3] = {request(one_prompt, 1, GEN_NO_CAP), request(world, 1, GEN_NO_CAP), request(one_prompt, 1, GEN_NO_CAP)};
    run_result a[3];
    (void)state;
    run_all(f.e, r, 3, NULL, a);
    assert_text(a[0], "Hello world!!!");
    assert_text(a[2], "Hello world!!!");
    assert_int_equal(a[1].finish, FINISH_FAILED);
    assert_int_equal(a[1].err.code, HD_FAILED);
    assert_text(a[1], "!!");
    for (int i = 0; i < 3; i++) run_result_deinit(&a[i]);
    close_fixture(&f);
}

static void refuses_what_cannot_run(void **state) {
    fixture f = open_script("\"context\":16,\"default\":{\"emit\":[\"Hello\"],\"then\":\"loop\"}", (engine_options){0});
    int32_t ids[32] = {0};
    gen_request r = request(ids, 16, 4);
    session *s;
    hd_err err;
    run_result a;
    (void)state;
    assert_int_equal(engine_submit(f.e, &r, 1, NULL, NULL, &s, &err), HD_NEVER_FITS);
    assert_non_null(strstr(err.msg, "16"));
    assert_string_equal(err.field, "prompt");
    r.n_prompt = 0;
    assert_int_equal(engine_submit(f.e, &r, 1, NULL, NULL, &s, &err), HD_INVALID);
    r.n_prompt = 1;
    ids[0] = 1 << 20;
    assert_int_equal(engine_submit(f.e, &r, 1, NULL, NULL, &s, &err), HD_INVALID);
    ids[0] = 2;
    r.sampling.top_p = 7;
    assert_int_equal(engine_submit(f.e, &r, 1, NULL, NULL, &s, &err), HD_INVALID);
    assert_string_equal(err.field, "top_p");
    /* The context is a cap, not an error. */
    r = request(ids, 10, 1000);
    for (int i = 0; i < 10; i++) ids[i] = 2;
    a = run_one(&f, &r);
    assert_int_equal(a.n_ids, 6);
    assert_int_equal(a.finish, FINISH_LENGTH);
    run_result_deinit(&a);
    close_fixture(&f);
}

static void the_queue_has_a_bound(void **state) {
    engine_options o = {.max_rows = 1, .max_queued = 2};
    fixture f = open_script("\"token_delay_ms\":5,\"default\":{\"emit\":[\"Hello\"],\"then\":\"loop\"}", o);
    gen_request r = request(one_prompt, 1, 2000), many[4];
    session *s[3], *t[4];
    hd_err err;
    (void)state;
    for (int i = 0; i < 3; i++) s[i] = submit(f.e, &r);
    assert_int_equal(engine_submit(f.e, &r, 1, NULL, NULL, t, &err), HD_FULL);
    for (int i = 0; i < 4; i++) many[i] = r;
    assert_int_equal(engine_submit(f.e, many, 4, NULL, NULL, t, &err), HD_NEVER_FITS);
    assert_int_equal(look(f.e).rejected_full, 1);
    assert_true(look(f.e).retry_after_ms >= 1000);
    WAIT_FOR(look(f.e).running == 1 && look(f.e).waiting == 2);
    session_cancel(s[0], CANCEL_BY_REQUEST);
    WAIT_FOR(look(f.e).waiting == 1); /* request number two starts as soon as the row ends */
    for (int i = 0; i < 3; i++) session_free(s[i]);
    WAIT_FOR(engine_idle(f.e));
    WAIT_FOR(look(f.e).pages_used == 0);
    close_fixture(&f);
}

/* R002, R007: cancelling a waiting request touches nobody else, and it is never run. */
static void cancel_reaches_every_place(void **state) {
    engine_options o = {.max_rows = 1};
    fixture f = open_script("\"token_delay_ms\":2,\"default\":{\"emit\":[\"Hello\",\" world\"],\"then\":\"loop\"}", o);
    gen_request r = request(one_prompt, 1, 30), q = request(one_prompt, 1, 2000);
    run_result a = {0}, b = {0}, c = {0};
    session *s1 = submit(f.e, &r), *s2, *s3;
    (void)state;
    q.id = "waiting";
    s2 = submit(f.e, &q);
    q.id = "running";
    s3 = submit(f.e, &q);
    assert_true(engine_cancel(f.e, "waiting", CANCEL_BY_REQUEST));
    assert_false(engine_cancel(f.e, "nobody", CANCEL_BY_REQUEST));
    read_to_end(s2, &b);
    assert_int_equal(b.finish, FINISH_CANCELLED);
    assert_int_equal(b.reason, CANCEL_BY_REQUEST);
    assert_int_equal(b.generated_tokens, 0);
    read_to_end(s1, &a);
    assert_int_equal(a.n_ids, 30);
    WAIT_FOR(look(f.e).generated_tokens_total > 30); /* one more than the first had: any queue holds it */
    assert_true(engine_cancel(f.e, "running", CANCEL_BY_REQUEST));
    session_cancel(s3, CANCEL_SHUTDOWN); /* the first reason wins */
    read_to_end(s3, &c);
    assert_int_equal(c.reason, CANCEL_BY_REQUEST);
    assert_true(c.generated_tokens > 0 && c.generated_tokens == c.n_ids);
    WAIT_FOR(look(f.e).cancelled[CANCEL_BY_REQUEST] == 2);
    run_result_deinit(&a), run_result_deinit(&b), run_result_deinit(&c);
    session_free(s1), session_free(s2), session_free(s3);
    close_fixture(&f);
}

/* R003: a cancel during a long prefill is seen at the next step, also when the step sleeps. */
static void cancel_during_prefill(void **state) {
    engine_options o = {.step_tokens = 16};
    fixture f = open_script("\"context\":4096,\"prompt_delay_ms\":50,\"default\":{\"emit\":[\"Hello\"],\"then\":\"loop\"}", o);
    int32_t ids[3000];
    gen_request r;
    run_result a = {0};
    session *s;
    uint64_t t0;
    (void)state;
    for (int i = 0; i < 3000; i++) ids[i] = 2;
    r = request(ids, 3000, 5); /* 150 s of reading */
    s = submit(f.e, &r);
    WAIT_FOR(look(f.e).running == 1);
    t0 = hd_now_us(&hd_clock_real);
    session_cancel(s, CANCEL_CLIENT_DISCONNECTED);
    read_to_end(s, &a);
    assert_int_equal(a.reason, CANCEL_CLIENT_DISCONNECTED);
    assert_true(hd_now_us(&hd_clock_real) - t0 < 20u * 1000000); /* not 150 s: the step of 0.8 s was cut short */
    session_free(s);
    WAIT_FOR(look(f.e).kv_bytes_used == 0);
    close_fixture(&f);
}

/* A reader that stalls pauses its own row; the other one runs on to its end meanwhile. */
static void a_stalled_reader_pauses_its_row_only(void **state) {
    fixture f = open_script("\"default\":{\"emit\":[\"Hello\",\" world\"],\"then\":\"loop\"}", (engine_options){0});
    gen_request r = request(one_prompt, 1, 3000);
    session *stalled = submit(f.e, &r), *other = submit(f.e, &r);
    run_result a = {0}, b = {0};
    engine_view v = {0};
    row_view rows[4];
    (void)state;
    read_to_end(other, &b);
    assert_int_equal(b.n_ids, 3000);
    v.rows = rows;
    v.cap_rows = 4;
    WAIT_FOR((engine_look(f.e, &v), v.n_rows == 1)); /* the other one's row leaves after its last event */
    assert_true(v.rows[0].generated_tokens < 3000);
    WAIT_FOR((engine_look(f.e, &v), v.rows[0].phase == ROW_PAUSED));
    read_to_end(stalled, &a); /* and goes on, missing nothing */
    assert_null(run_result_differs(&a, &b));
    run_result_deinit(&a), run_result_deinit(&b);
    session_free(stalled), session_free(other);
    close_fixture(&f);
}

static uint64_t turned_us;
static uint64_t turned_now(void *ctx) {
    (void)ctx;
    return __atomic_load_n(&turned_us, __ATOMIC_RELAXED);
}

/* Deadlines and the idle time-out, on a clock the test turns. */
static void deadlines(void **state) {
    hd_clock clock = {turned_now, NULL};
    engine_options o = {.clock = &clock, .max_rows = 1, .idle_timeout_us = 1000000};
    fixture f = open_script("\"step_delay_ms\":1,\"default\":{\"emit\":[\"Hello\"],\"then\":\"loop\"}", o);
    gen_request r = request(one_prompt, 1, 4000), q;
    run_result a = {0}, b = {0}, c = {0};
    session *s, *w;
    (void)state;
    __atomic_store_n(&turned_us, 1000, __ATOMIC_RELAXED);
    r.total_timeout_us = 5000000;
    s = submit(f.e, &r);
    q = request(one_prompt, 1, 4);
    q.queue_timeout_us = 500000;
    w = submit(f.e, &q);
    WAIT_FOR(look(f.e).running == 1);
    __atomic_store_n(&turned_us, 600000, __ATOMIC_RELAXED);
    read_to_end(w, &b);
    assert_int_equal(b.reason, CANCEL_DEADLINE_QUEUE);
    __atomic_store_n(&turned_us, 5100000, __ATOMIC_RELAXED);
    read_to_end(s, &a);
    assert_int_equal(a.reason, CANCEL_DEADLINE_TOTAL);
    session_free(s), session_free(w);
    /* Unread and full: the idle time-out ends it. */
    r.total_timeout_us = 0;
    r.id = "unread";
    s = submit(f.e, &r);
    {
        row_view row;
        engine_view v = {.rows = &row, .cap_rows = 1};
        /* by name: the copy may still show the one before it */
        WAIT_FOR((engine_look(f.e, &v), v.n_rows == 1 && !strcmp(row.id, "unread") && row.phase == ROW_PAUSED));
    }
    __atomic_store_n(&turned_us, 7000000, __ATOMIC_RELAXED);
    q = request(one_prompt, 1, 1);
    w = submit(f.e, &q); /* any work wakes the executor, which then reads the turned clock */
    WAIT_FOR(look(f.e).cancelled[CANCEL_IDLE_TIMEOUT] == 1); /* before anything is read: a read starts the time anew */
    read_to_end(s, &c);
    assert_int_equal(c.reason, CANCEL_IDLE_TIMEOUT);
    run_result_deinit(&a), run_result_deinit(&b), run_result_deinit(&c);
    session_free(s), session_free(w);
    close_fixture(&f);
}

/* Rows that outgrow the budget give way, youngest first, and come back to the same answer.  With a cache equal rows share
 * their pages, so they are given something of their own. */
static void preemption_changes_nothing(void **state) {
    const char *rest = "\"context\":256,\"default\":{\"emit\":[\"Hello\",\" world\",\"!\",\"AB\",\"J\"],\"then\":\"loop\"}";
    engine_options roomy = {.page_tokens = 4, .default_max_tokens = 4};
    engine_options tight = {.page_tokens = 4, .default_max_tokens = 4, .kv_budget_bytes = 300 * 1024};
    static const char *const spaces[6] = {"a", "b", "c", "d", "e", "f"};
    fixture f = open_script(rest, roomy), g;
    gen_request r = request(one_prompt, 1, GEN_NO_CAP), many[6];
    run_result want = run_one(&f, &r), got[6];
    (void)state;
    close_fixture(&f);
    g = open_script(rest, tight);
    for (int i = 0; i < 6; i++) {
        many[i] = r;
        many[i].cache_space = spaces[i];
        many[i].no_cache = i % 2;
    }
    run_all(g.e, many, 6, NULL, got);
    for (int i = 0; i < 6; i++) {
        assert_null(run_result_differs(&want, &got[i]));
        run_result_deinit(&got[i]);
    }
    assert_int_equal(want.n_ids, 255);
    WAIT_FOR(look(g.e).preemptions_total > 0 && look(g.e).kv_bytes_used == 0);
    run_result_deinit(&want);
    close_fixture(&g);
}

static void close_ends_everything(void **state) {
    engine_options o = {.max_rows = 2};
    fixture f = open_script("\"token_delay_ms\":1,\"default\":{\"emit\":[\"Hello\"],\"then\":\"loop\"}", o);
    gen_request r = request(one_prompt, 1, 4000);
    session *s[5];
    (void)state;
    for (int i = 0; i < 5; i++) s[i] = submit(f.e, &r);
    WAIT_FOR(look(f.e).running == 2);
    engine_drain(f.e);
    {
        session *t;
        hd_err err;
        assert_int_equal(engine_submit(f.e, &r, 1, NULL, NULL, &t, &err), HD_CLOSED);
    }
    engine_close(f.e);
    for (int i = 0; i < 5; i++) { /* readable after the engine is gone */
        run_result a = {0};
        read_to_end(s[i], &a);
        assert_int_equal(a.finish, FINISH_CANCELLED);
        assert_int_equal(a.reason, CANCEL_ENGINE_CLOSED);
        run_result_deinit(&a);
        session_free(s[i]);
    }
    model_close(f.m);
    assert_int_equal(hd_mem_live(), 0);
}

/* Logprobs of known logits: log-softmax of what the script says, sorted, ties by id (R053, R054). */
static void logprobs_of_known_logits(void **state) {
    fixture f = open_script("\"default\":{\"emit\":[\"Hello\"],\"then\":\"eos\",\"top\":[[[2,3.0],[3,2.0],[4,1.0]]]}",
                            (engine_options){0});
    static const float temperatures[] = {0, 0.5f, 2};
    (void)state;
    for (int i = 0; i < 3; i++) {
        gen_request r = request(one_prompt, 1, 1);
        logit_bias force = {3, 5}; /* 2.0 + 5.0 */
        double z = 263.0 + 20.085536923187668 + 1096.6331584284585 + 2.718281828459045; /* 263 zeros, e^3, e^7, e^1 */
        gen_event ev;
        session *s;
        r.sampling.temperature = temperatures[i];
        r.sampling.top_k = 1;
        r.sampling.logprobs = true;
        r.sampling.n_top_logprobs = 3;
        r.sampling.bias = &force;
        r.sampling.n_bias = 1;
        s = submit(f.e, &r);
        session_wait(s, &ev, UINT64_MAX);
        assert_int_equal(ev.kind, EV_TOKEN);
        assert_int_equal(ev.sample.id, 3);
        assert_float_equal(ev.sample.logprob, 7 - __builtin_log(z), 1e-5);
        assert_int_equal(ev.sample.top[0].id, 3);
        assert_int_equal(ev.sample.top[1].id, 2);
        assert_float_equal(ev.sample.top[1].logprob, 3 - __builtin_log(z), 1e-5);
        assert_int_equal(ev.sample.top[2].id, 4);
        session_free(s);
    }
    close_fixture(&f);
}

/* The host's threads may flush denormals (a library made with -ffast-math does that to whoever loads it); tokens do not depend on
 * it.  All 266 weights are above 0, those 100 below the best as denormals (e^-100 = 3.7e-44): XTC with threshold 0 removes all but
 * the last of the order. */
static void tokens_do_not_depend_on_the_hosts_float_environment(void **state) {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flush results, take operands as zeros */
    fixture f = open_script("\"default\":{\"emit\":[\"Hello\"],\"then\":\"eos\",\"top\":[[[2,100.0]]]}", (engine_options){0});
    gen_request r = request(one_prompt, 1, 1);
    gen_event ev;
    session *s;
    (void)state;
    r.sampling.temperature = 1;
    r.sampling.xtc_probability = 1;
    r.sampling.xtc_threshold = 0;
    s = submit(f.e, &r);
    session_wait(s, &ev, UINT64_MAX);
    _mm_setcsr(before);
    assert_int_equal(ev.kind, EV_TOKEN);
    assert_int_equal(ev.sample.id, 265);
    session_free(s);
    close_fixture(&f);
#else
    (void)state;
    print_message("skipped: it sets the control register of x86\n");
    skip();
#endif
}

/* Several rows choose together; one that may choose nothing fails alone, with its reason. */
static void one_that_cannot_choose_fails_alone(void **state) {
    enum { ROWS = 5, BAD = 2, VOCABULARY = 266 };
    fixture f = open_script("\"default\":{\"emit\":[\"Hello\",\" world\",\"!\"],\"then\":\"eos\"}", (engine_options){0});
    logit_bias none[VOCABULARY];
    gen_request r[ROWS];
    session *s[ROWS];
    hd_err err;
    (void)state;
    assert_int_equal(model_get(f.m)->n_vocab, VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++) none[i] = (logit_bias){i, -INFINITY};
    for (int i = 0; i < ROWS; i++) {
        r[i] = request(one_prompt, 1, 8);
        r[i].sampling.temperature = 0.5f; /* the script's token has logit 20: e^-40 for any other */
        r[i].sampling.seed = (uint64_t)i;
    }
    r[BAD].sampling.bias = none;
    r[BAD].sampling.n_bias = VOCABULARY;
    if (engine_submit(f.e, r, ROWS, NULL, NULL, s, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < ROWS; i++) {
        run_result a = {0};
        read_to_end(s[i], &a);
        if (i == BAD) {
            assert_int_equal(a.finish, FINISH_FAILED);
            assert_string_equal(a.err.msg, "every token is forbidden");
        } else {
            assert_text(a, "Hello world!");
        }
        run_result_deinit(&a);
        session_free(s[i]);
    }
    close_fixture(&f);
}

/* Every n-th allocation on the submitting side fails cleanly. */
static void allocation_failures(void **state) {
    fixture f = open_script("\"default\":{\"emit\":[\"Hello\"],\"then\":\"eos\"}", (engine_options){0});
    gen_request r = request(one_prompt, 1, 4);
    stop_string stop = {"xyz", 3};
    hd_status st;
    long n = 0;
    (void)state;
    r.stops = &stop;
    r.n_stops = 1;
    do {
        session *s = NULL;
        hd_err err;
        hd_mem_fail_after(n++);
        st = engine_submit(f.e, &r, 1, NULL, NULL, &s, &err);
        hd_mem_fail_after(-1);
        assert_true(st == HD_OK ? s != NULL : st == HD_NOMEM && !s);
        if (!st) {
            run_result a = {0};
            read_to_end(s, &a);
            assert_text(a, "Hello");
            run_result_deinit(&a);
            session_free(s);
        }
    } while (st);
    assert_true(n > 3);
    close_fixture(&f);
    assert_int_equal(hd_mem_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emits_and_ends),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(stop_at_the_cap_reports_stop),
        cmocka_unit_test(characters_come_whole),
        cmocka_unit_test(a_failing_row_fails_alone),
        cmocka_unit_test(refuses_what_cannot_run),
        cmocka_unit_test(the_queue_has_a_bound),
        cmocka_unit_test(cancel_reaches_every_place),
        cmocka_unit_test(cancel_during_prefill),
        cmocka_unit_test(a_stalled_reader_pauses_its_row_only),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(preemption_changes_nothing),
        cmocka_unit_test(close_ends_everything),
        cmocka_unit_test(logprobs_of_known_logits),
        cmocka_unit_test(one_that_cannot_choose_fails_alone),
        cmocka_unit_test(tokens_do_not_depend_on_the_hosts_float_environment),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
