/* test_exec_leaks.c - nothing is lost: every n-th allocation fails on the way from submit to the end, and ten thousand
 * sessions come and go at random. */
#include "base/mem.h"
#include "model/model_int.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char script[] = "{\"vocab\":[\"<s>\",\"</s>\",\"Hello\",\" world\",\"!\",\"AB\"],\"special\":{\"bos\":0,\"eos\":[1]},"
                             "\"context\":512,\"rules\":[{\"match\":\"!\",\"emit\":[2,3],\"then\":\"loop\"}],"
                             "\"default\":{\"emit\":[2,3,4],\"then\":\"eos\"}}";
static const int32_t prompt[] = {2, 3, 5, 2, 3};

static model *open_model(void) {
    model *m;
    hd_err err;
    if (script_open_memory(&m, script, sizeof script - 1, "test", NULL, &err)) fail_msg("%s", err.msg);
    return m;
}

static gen_request asks(uint32_t max_tokens) {
    gen_request r = {.id = "", .prompt = prompt, .n_prompt = 5, .max_tokens = max_tokens};
    sampling_defaults(&r.sampling);
    r.sampling.temperature = 0;
    return r;
}

/* ---- the n-th allocation ---- */

/* One request on a manual engine, everything on this thread.  Refusing begins at allocation n (-1: never), counted from the
 * submit on.  True: all went as without refusals. */
static bool one_life(long n, const gen_request *r, run_result *out) {
    engine_options opt = {.manual = true, .max_rows = 2, .page_tokens = 4, .kv_budget_bytes = 1 << 20};
    model *m = open_model();
    engine *e;
    session *s = NULL;
    cancellation *c = NULL;
    gen_request q = *r;
    gen_event ev;
    hd_err err;
    hd_status st;
    memset(out, 0, sizeof *out); /* its memory is there before: only heddle's allocations are refused */
    assert_true(hd_grow(&out->ids, &out->cap_ids, 256, sizeof *out->ids, 256));
    assert_true(hd_grow(&out->logprobs, &out->cap_logprobs, 1024, sizeof *out->logprobs, 1024));
    assert_true(hd_grow(&out->text, &out->cap_text, 1024, 1, 1024));
    assert_int_equal(engine_open(&e, m, &opt, &err), HD_OK);
    assert_int_equal(cancel_new(&c, &err), HD_OK);
    q.cancel = c;
    hd_mem_fail_after(n);
    st = engine_submit(e, &q, 1, NULL, NULL, &s, &err);
    if (!st) {
        int turns = 0;
        do {
            engine_turn(e);
            if (++turns == 200) hd_mem_fail_after(-1); /* what waits for memory gets some */
            assert_in_range(turns, 1, 1000);
            session_next(s, &ev);
            run_result_add(out, &ev);
        } while (ev.kind != EV_DONE);
    }
    hd_mem_fail_after(-1);
    if (st) {
        assert_int_equal(st, HD_NOMEM);
        assert_null(s);
    }
    session_free(s);
    engine_close(e);
    cancel_unref(c);
    model_close(m);
    return !st && out->finish != FINISH_FAILED;
}

static void check_every_n(const gen_request *r, long at_least) {
    run_result calm, now;
    long n = 0, failures = 0, in_a_row = 0;
    assert_int_equal(hd_mem_live(), 0);
    assert_true(one_life(-1, r, &calm));
    for (; in_a_row < 20; n++) {
        bool ok = one_life(n, r, &now);
        if (ok) {
            const char *what = run_result_differs(&calm, &now);
            if (what) fail_msg("allocation %ld refused: %s differ", n, what);
            in_a_row++;
        } else {
            failures++;
            in_a_row = 0;
            /* What was told before the end is a beginning of the answer. */
            assert_true(now.n_ids <= calm.n_ids);
            if (now.n_ids) assert_memory_equal(now.ids, calm.ids, now.n_ids * sizeof *now.ids);
        }
        run_result_deinit(&now);
        if (n > 2000) fail_msg("it never works again");
    }
    run_result_deinit(&calm);
    assert_true(failures >= at_least); /* there were allocations to refuse */
    assert_int_equal(hd_mem_live(), 0);
}

static void plain(void **state) {
    gen_request r = asks(8);
    (void)state;
    check_every_n(&r, 8);
}

static void with_everything(void **state) {
    static const stop_string stops[] = {{"xyz", 3}, {"lo w", 4}};
    static const int32_t stop_ids[] = {7};
    static const logit_bias bias[] = {{5, -1.0f}};
    gen_request r = asks(20);
    (void)state;
    r.stops = stops;
    r.n_stops = 2;
    r.stop_ids = stop_ids;
    r.n_stop_ids = 1;
    r.prompt_logprobs = true;
    r.collect = true;
    r.share = "someone";
    r.sampling.bias = bias;
    r.sampling.n_bias = 1;
    r.sampling.logprobs = true;
    r.sampling.n_top_logprobs = 3;
    r.sampling.repetition_penalty = 1.1f;
    check_every_n(&r, 8);
}

/* Text that is held for a stop string until the end, which releases it: all of it comes, or the request fails. */
static void with_held_text(void **state) {
    static const stop_string stops[] = {{" world!?", 8}};
    gen_request r = asks(20);
    (void)state;
    r.stops = stops;
    r.n_stops = 1;
    check_every_n(&r, 8);
}

static void an_embedding(void **state) {
    gen_request r = asks(0);
    (void)state;
    r.method = "embedding";
    check_every_n(&r, 8);
}

/* ---- ten thousand sessions ---- */

static size_t count_entries(const char *path) {
    DIR *d = opendir(path);
    size_t n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

enum { SESSIONS = 10000, AT_ONCE = 48 };

/* A sanitizer starts a thread of its own with the first of ours: let that happen before anything is counted. */
static void open_and_close(const engine_options *opt) {
    model *m = open_model();
    engine *e;
    hd_err err;
    assert_int_equal(engine_open(&e, m, opt, &err), HD_OK);
    engine_close(e);
    model_close(m);
}

/* What cannot be seen from outside is tried: a request that needs all memory there is, and two that collect unread as
 * much as may be collected, side by side: nobody waits for what is gone. */
static void everything_is_free(engine *e, const engine_options *opt) {
    uint32_t tokens = (uint32_t)(opt->kv_budget_bytes / 1024), each = (uint32_t)opt->collect_tokens / 2;
    gen_request r[2] = {asks(tokens - 5), asks(each)};
    engine_view before = {0}, after = {0};
    session *s[2];
    gen_event ev;
    hd_err err;
    r[0].ignore_eos = true;
    assert_int_equal(engine_submit(e, r, 1, NULL, NULL, s, &err), HD_OK);
    do {
        session_wait(s[0], &ev, 10 * 1000000);
        assert_true(ev.kind != EV_NONE); /* it runs */
    } while (ev.kind != EV_DONE);
    session_free(s[0]);
    assert_int_equal(ev.finish, FINISH_LENGTH);
    r[1].collect = r[1].ignore_eos = true;
    r[0] = r[1];
    engine_look(e, &before);
    assert_int_equal(engine_submit(e, r, 2, NULL, NULL, s, &err), HD_OK);
    for (int tries = 0; !engine_idle(e) && tries < 20000; tries++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(engine_idle(e));
    engine_look(e, &after);
    assert_int_equal(after.pauses_total, before.pauses_total);
    for (int i = 0; i < 2; i++) session_free(s[i]);
}

static void ten_thousand_sessions(void **state) {
    engine_options opt = {.max_rows = 8, .max_queued = 64, .page_tokens = 4, .kv_budget_bytes = 64 * 4096, .collect_tokens = 200};
    size_t fds, threads;
    session *s[AT_ONCE] = {NULL};
    uint64_t seed = 20000;
    uint32_t opened = 0, refused = 0;
    engine_view v = {0};
    model *m;
    engine *e;
    hd_err err;
    (void)state;
    open_and_close(&opt);
    fds = count_entries("/proc/self/fd");
    threads = count_entries("/proc/self/task");
    assert_int_equal(hd_mem_live(), 0);
    m = open_model();
    assert_int_equal(engine_open(&e, m, &opt, &err), HD_OK);
    while (opened < SESSIONS) {
        session **at = &s[rng_below(&seed, AT_ONCE)];
        gen_event ev;
        if (!*at) {
            gen_request r = asks(rng_below(&seed, 3) ? 1 + rng_below(&seed, 60) : GEN_NO_CAP);
            r.n_prompt = 1 + rng_below(&seed, 5);
            r.priority = (gen_priority)((int)rng_below(&seed, 3) - 1);
            r.collect = rng_below(&seed, 4) == 0 && r.max_tokens != GEN_NO_CAP;
            if (rng_below(&seed, 8) == 0) r.method = "embedding", r.max_tokens = 0;
            if (engine_submit(e, &r, 1, NULL, NULL, at, &err)) *at = NULL, refused++;
            else opened++;
            continue;
        }
        switch (rng_below(&seed, 4)) {
        case 0: session_cancel(*at, CANCEL_BY_REQUEST); break;
        case 1:
            session_free(*at);
            *at = NULL;
            break;
        case 2: session_wait(*at, &ev, 200); break;
        default: session_next(*at, &ev);
        }
    }
    for (size_t i = 0; i < AT_ONCE; i++) session_free(s[i]);
    for (int tries = 0; !engine_idle(e) && tries < 20000; tries++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(engine_idle(e));
    for (int tries = 0; tries < 20000; tries++) { /* the copy for those who look comes a moment later */
        engine_look(e, &v);
        if (!v.running && !v.pages_used) break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    assert_int_equal(v.running, 0);
    assert_int_equal(v.waiting, 0);
    assert_int_equal(v.pages_used, 0);
    assert_int_equal(v.kv_bytes_used, 0);
    assert_int_equal(v.requests_total, SESSIONS);
    {
        uint64_t ended = v.finished_stop + v.finished_length + v.finished_failed;
        for (int i = 0; i < 16; i++) ended += v.cancelled[i];
        assert_int_equal(ended, SESSIONS);
        assert_int_equal(v.finished_failed, 0);
        assert_true(v.finished_stop + v.finished_length > SESSIONS / 20); /* they did run */
    }
    everything_is_free(e, &opt);
    engine_close(e);
    model_close(m);
    assert_int_equal(hd_mem_live(), 0);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    assert_int_equal(count_entries("/proc/self/task"), threads);
    print_message("%d sessions, %u more refused, %llu preemptions\n", SESSIONS, refused, (unsigned long long)v.preemptions_total);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(with_everything),
        cmocka_unit_test(with_held_text),
        cmocka_unit_test(an_embedding),
        cmocka_unit_test(ten_thousand_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
