/* test_exec_cache.c - what rows share: counted in pages, in computed tokens, in steps; and why it was not more.
 *
 * The engine is turned by hand; the scripted model writes tokens into pages, and what it answers is a function of the
 * prompt alone.  Reports R021, R022 and R024 (docs/reports.md) are here as far as memory goes. */
#include "base/mem.h"
#include "exec/engine_int.h"
#include "model/script.h"
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

enum { MANY = 64, LONG = 2000, PAGE = 16 };

typedef struct {
    model *m;
    engine *e;
    uint64_t most_used; /* pages of rows, over all turns */
} rig;

static hd_err err;

static rig open_rig(const char *more, engine_options opt) {
    char json[400];
    rig r = {0};
    int n = snprintf(json, sizeof json,
                     "{\"vocab\":[\"<s>\",\"</s>\",\"a\",\"b\",\"c\",\"d\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":8192,%s"
                     "\"default\":{\"emit\":[2,3,4],\"then\":\"loop\"}}", more);
    if (script_open_memory(&r.m, json, (size_t)n, "test", NULL, &err)) fail_msg("%s", err.msg);
    opt.manual = true;
    if (!opt.page_tokens) opt.page_tokens = PAGE;
    if (!opt.step_tokens) opt.step_tokens = 256; /* also where constants are hostile */
    if (!opt.kv_budget_bytes) opt.kv_budget_bytes = 64 << 20;
    if (engine_open(&r.e, r.m, &opt, &err)) fail_msg("%s", err.msg);
    return r;
}

static void close_rig(rig *r) {
    engine_close(r->e);
    model_close(r->m);
}

static gen_request asks(const int32_t *prompt, uint32_t n, uint32_t max_tokens) {
    gen_request q = {.id = "", .prompt = prompt, .n_prompt = n, .max_tokens = max_tokens};
    sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    return q;
}

/* Run all at once; their ends in end[]. */
static void run(rig *r, const gen_request *q, size_t n, gen_event *end) {
    session *s[MANY];
    size_t left = n;
    memset(end, 0, n * sizeof *end);
    if (engine_submit(r->e, q, n, NULL, NULL, s, &err)) fail_msg("%s", err.msg);
    for (int turns = 0; left; turns++) {
        engine_view v = {0};
        assert_true(turns < 100000);
        engine_turn(r->e);
        engine_look(r->e, &v);
        if (v.pages_used > r->most_used) r->most_used = v.pages_used;
        for (size_t i = 0; i < n; i++) {
            gen_event ev;
            while (!end[i].kind && (session_next(s[i], &ev), ev.kind != EV_NONE))
                if (ev.kind == EV_DONE) end[i] = ev, left--;
        }
    }
    for (size_t i = 0; i < n; i++) {
        assert_int_not_equal(end[i].finish, FINISH_FAILED);
        session_free(s[i]);
    }
}

static engine_view look(const rig *r) {
    engine_view v = {0};
    engine_look(r->e, &v);
    return v;
}

/* Tokens 2..5 in an order that does not repeat soon. */
static void fill(int32_t *out, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) out[i] = 2 + (int32_t)rng_below(&seed, 4);
}

/* Of 64 requests with one long beginning, the first computes it, and its pages are taken once. */
static void one_system_prompt_for_all(void **state) {
    static int32_t p[MANY][LONG + 20];
    gen_request q[MANY];
    gen_event end[MANY];
    uint64_t computed = 0, cached = 0;
    const uint32_t own = (20 + 8) / PAGE + 2; /* pages of what is a row's own, at most */
    (void)state;
    for (int windows = 0; windows < 2; windows++) {
        rig r = open_rig(windows ? "\"window\":100," : "", (engine_options){.max_rows = MANY, .max_queued = MANY});
        const uint32_t groups = windows ? 2 : 1;
        computed = cached = 0;
        for (int i = 0; i < MANY; i++) {
            fill(p[i], LONG, 1);
            fill(p[i] + LONG, 20, 100 + (uint64_t)i);
            q[i] = asks(p[i], LONG + 20, 8);
        }
        run(&r, q, MANY, end);
        for (int i = 0; i < MANY; i++) {
            computed += end[i].stats.computed_tokens;
            cached += end[i].stats.cached_tokens;
            assert_true(!i || end[i].stats.cached_tokens >= LONG / PAGE * PAGE);
            assert_true(end[i].stats.cached_tokens < LONG + 20);
        }
        assert_int_equal(computed + cached, MANY * (LONG + 20 + 7)); /* nobody computes the last token */
        assert_true(computed <= LONG + MANY * (PAGE + 20 + 7));
        if (r.most_used > (uint64_t)groups * (LONG / PAGE + MANY * own))
            fail_msg("%llu pages are used", (unsigned long long)r.most_used);
        assert_int_equal(look(&r).pages_used, 0);
        close_rig(&r);
    }
}

/* The same with room for little more than one of them: what is shared is counted once when rows are admitted. */
static void sharing_makes_room(void **state) {
    static int32_t p[16][LONG + 20];
    gen_request q[16];
    gen_event end[16];
    uint32_t together = 0;
    rig r = open_rig("", (engine_options){.max_rows = 16, .kv_budget_bytes = (LONG / PAGE + 1 + 16 * 4) * PAGE * SCRIPT_TOKEN_BYTES});
    (void)state;
    for (int i = 0; i < 16; i++) {
        fill(p[i], LONG, 1);
        fill(p[i] + LONG, 20, 100 + (uint64_t)i);
        q[i] = asks(p[i], LONG + 20, 24);
    }
    run(&r, q, 1, end); /* now it is known */
    {
        session *s[16];
        if (engine_submit(r.e, q, 16, NULL, NULL, s, &err)) fail_msg("%s", err.msg);
        for (int n = 0; n < 3; n++) engine_turn(r.e);
        together = look(&r).running;
        for (int i = 0; i < 16; i++) session_free(s[i]);
        while (!engine_idle(r.e)) engine_turn(r.e);
    }
    assert_int_equal(together, 16);
    close_rig(&r);
}

/* A conversation: each turn begins with all that was said.  What is new is computed, and the one token in hand. */
static void a_conversation(void **state) {
    static int32_t p[4000];
    gen_event end;
    uint32_t n = 300, known = 0;
    rig r = open_rig("", (engine_options){0});
    (void)state;
    fill(p, 300, 5);
    for (int turn = 0; turn < 6; turn++) {
        gen_request q = asks(p, n, 90);
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.cached_tokens, known);
        assert_string_equal(end.stats.cache_miss, "new");
        assert_int_equal(end.stats.cache_miss_at, known);
        for (int i = 0; i < 90; i++) p[n + (uint32_t)i] = 2 + i % 3; /* what the script says */
        known = n + 89;                                               /* the last token was never computed */
        n += 90;
        fill(p + n, 40, 50 + (uint64_t)turn);
        n += 40;
    }
    close_rig(&r);
}

/* R021: layers with a sliding window.  The same prompt again; then with its last ten tokens changed: no more is computed
 * than the changed end, and the page it lies in. */
static void r021_the_same_again_with_windows(void **state) {
    static int32_t p[1000];
    gen_event end;
    gen_request q = asks(p, 1000, 200);
    (void)state;
    for (int others = 0; others < 2; others++) {
        /* The second time with pages for little more than one: of the first one's windows only those worth keeping stay. */
        rig r = open_rig("\"window\":64,", (engine_options){.kv_budget_bytes = others ? 2 * (1200 / PAGE + 12) * PAGE * SCRIPT_TOKEN_BYTES : 0});
        fill(p, 1000, 9);
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.cached_tokens, 0);
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.cached_tokens, 999);
        for (int i = 990; i < 1000; i++) p[i] = 2 + (p[i] - 1) % 4;
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.cached_tokens, 990);
        assert_string_equal(end.stats.cache_miss, "differs");
        assert_int_equal(end.stats.cache_miss_at, 990);
        close_rig(&r);
    }
}

/* Where an answer ended the conversation goes on: the window there outlives those that nobody will look through, though
 * another conversation came and pages are short of all windows. */
static void the_end_of_an_answer_is_kept(void **state) {
    static int32_t p[1300];
    gen_event end;
    gen_request q = asks(p, 1000, 200);
    rig r = open_rig("\"window\":64,", (engine_options){.kv_budget_bytes = (2 * 75 + 40) * PAGE * SCRIPT_TOKEN_BYTES});
    (void)state;
    fill(p, 1000, 9);
    run(&r, &q, 1, &end);
    fill(p, 1000, 10);
    run(&r, &q, 1, &end);
    assert_true(look(&r).pages_evicted > 50);
    fill(p, 1000, 9);
    for (int i = 0; i < 200; i++) p[1000 + i] = 2 + i % 3; /* what the script says */
    fill(p + 1200, 50, 11);
    q = asks(p, 1250, 1);
    run(&r, &q, 1, &end);
    assert_int_equal(end.stats.cached_tokens, 1199);
    close_rig(&r);
}

/* Where a next turn is expected to leave the prompt, well before its end: the window there outlives others, also when the
 * prompt is taken up and not computed. */
static void the_boundary_is_kept(void **state) {
    enum { AT = 501 };
    static int32_t p[1000];
    (void)state;
    for (int taken = 0; taken < 2; taken++)
        for (int told = 0; told < 2; told++) {
            gen_event end;
            gen_request q = asks(p, 1000, 200);
            rig r = open_rig("\"window\":64,", (engine_options){.kv_budget_bytes = (2 * 75 + 40) * PAGE * SCRIPT_TOKEN_BYTES});
            fill(p, 1000, 9);
            if (taken) run(&r, &q, 1, &end);
            q.boundary = told ? AT : 0;
            run(&r, &q, 1, &end);
            q.boundary = 0;
            fill(p, 1000, 10);
            run(&r, &q, 1, &end);
            assert_true(look(&r).pages_evicted > 50);
            fill(p, 1000, 9);
            fill(p + AT, 50, 12);
            p[AT] = 2 + (p[AT] - 1) % 4;
            q = asks(p, AT + 50, 1);
            run(&r, &q, 1, &end);
            if (told && end.stats.cached_tokens < AT)
                fail_msg("%u cached (%s at %u)", end.stats.cached_tokens, end.stats.cache_miss, end.stats.cache_miss_at);
            if (!told) assert_true(end.stats.cached_tokens < AT - PAGE); /* not for nothing */
            close_rig(&r);
        }
}

/* Who shares with whom, and what is said of it. */
static void spaces_and_switches(void **state) {
    int32_t p[100] = {0};
    gen_event end;
    gen_request q = asks(p, 100, 4);
    rig r = open_rig("", (engine_options){0});
    (void)state;
    fill(p, 100, 3);
    q.cache_space = "ann";
    run(&r, &q, 1, &end);
    run(&r, &q, 1, &end);
    assert_int_equal(end.stats.cached_tokens, 99);
    assert_string_equal(end.stats.cache_miss, "none");
    q.cache_space = "ben";
    run(&r, &q, 1, &end);
    assert_int_equal(end.stats.cached_tokens, 0);
    assert_string_equal(end.stats.cache_miss, "namespace");
    q.no_cache = true;
    run(&r, &q, 1, &end);
    assert_int_equal(end.stats.cached_tokens, 0);
    assert_string_equal(end.stats.cache_miss, "off");
    q.no_cache = false;
    q.prompt_logprobs = true; /* every position is wanted */
    run(&r, &q, 1, &end);
    assert_int_equal(end.stats.cached_tokens, 0);
    assert_string_equal(end.stats.cache_miss, "off");
    q.cache_space = "0123456789012345678901234567890123456789012345678901234567890123";
    {
        session *s;
        assert_int_equal(engine_submit(r.e, &q, 1, NULL, NULL, &s, &err), HD_INVALID);
        assert_string_equal(err.field, "cache_space");
    }
    close_rig(&r);
    r = open_rig("", (engine_options){.no_cache = true});
    q = asks(p, 100, 4);
    run(&r, &q, 1, &end);
    run(&r, &q, 1, &end);
    assert_int_equal(end.stats.cached_tokens, 0);
    assert_int_equal(look(&r).pages_cached, 0);
    close_rig(&r);
}

/* R022: nothing but the tokens decides.  Short prompts over two tokens, so that beginnings collide all the time: as without
 * a cache. */
static void r022_a_thousand_prompts(void **state) {
    char path[] = "/tmp/heddle-cache-XXXXXX";
    model_options mo = {.n_threads = 1};
    engine_options eo = {.page_tokens = 4, .step_tokens = 64, .ctx = 64, .kv_budget_bytes = 1 << 20};
    engine *e;
    model *m;
    uint64_t seed = 1, cached = 0;
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find("llama"), NULL, path), 0);
    if (model_open(&m, path, &mo, &err) || engine_open(&e, m, &eo, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 1000; i++) {
        int32_t p[24] = {0};
        gen_request q = asks(p, 1 + rng_below(&seed, 24), 1);
        run_result warm, cold;
        const char *what;
        for (size_t j = 0; j < q.n_prompt; j++) p[j] = 10 + (int32_t)rng_below(&seed, 2);
        q.sampling.logprobs = true;
        q.sampling.n_top_logprobs = 3;
        run_all(e, &q, 1, NULL, &warm);
        q.no_cache = true;
        run_all(e, &q, 1, NULL, &cold);
        if ((what = run_result_differs(&cold, &warm))) fail_msg("prompt %d of %zu: %s differ", i, q.n_prompt, what);
        cached += warm.cached_tokens;
        run_result_deinit(&warm);
        run_result_deinit(&cold);
    }
    assert_true(cached > 1000);
    engine_close(e);
    model_close(m);
    unlink(path);
}

/* ---- pins ---- */

static uint64_t now_us;
static uint64_t turned(void *ctx) { return *(uint64_t *)ctx; }
static const hd_clock pin_clock = {turned, &now_us};

/* A conversation of its own, 500 tokens: computed, or taken up. */
static uint32_t taken(rig *r, uint64_t seed, uint64_t pin_us, uint32_t *pinned) {
    static int32_t p[500];
    gen_request q = asks(p, 500, 4);
    gen_event end;
    fill(p, 500, seed);
    q.pin_us = pin_us;
    run(r, &q, 1, &end);
    if (pinned) *pinned = end.stats.pinned_tokens;
    return end.stats.cached_tokens;
}

#define PINNED (500 / PAGE * PAGE)

/* A pinned prompt outlives ten others in a budget for three, until its time is over. */
static void a_pin_keeps(void **state) {
    (void)state;
    for (int windows = 0; windows < 2; windows++)
        for (int pin = 0; pin < 2; pin++) {
            rig r = open_rig(windows ? "\"window\":64," : "",
                             (engine_options){.clock = &pin_clock, .kv_budget_bytes = (windows + 1) * 100 * PAGE * SCRIPT_TOKEN_BYTES,
                                              .pin_budget_bytes = 40 * (windows + 1) * PAGE * SCRIPT_TOKEN_BYTES});
            uint32_t pinned, got;
            assert_int_equal(taken(&r, 1, pin ? 60000000 : 0, &pinned), 0);
            assert_int_equal(pinned, pin ? PINNED : 0);
            assert_int_equal(look(&r).pins, pin);
            assert_int_equal(look(&r).pages_used, 0);
            for (uint64_t i = 0; i < 10; i++) taken(&r, 10 + i, 0, NULL);
            got = taken(&r, 1, 0, NULL);
            if (pin && got < PINNED) fail_msg("%u cached", got);
            if (!pin) assert_true(got < PINNED);
            now_us += 60000001; /* once it is over it is like any other */
            engine_turn(r.e);
            assert_int_equal(look(&r).pages_pinned, 0);
            for (uint64_t i = 0; i < 10; i++) taken(&r, 30 + i, 0, NULL);
            assert_true(taken(&r, 1, 0, NULL) < PINNED);
            close_rig(&r);
        }
}

/* More than the budget is not pinned; a newer one makes those go that end before it, and only those. */
static void pins_have_a_budget(void **state) {
    rig r = open_rig("", (engine_options){.clock = &pin_clock, .kv_budget_bytes = 200 * PAGE * SCRIPT_TOKEN_BYTES,
                                          .pin_budget_bytes = 80 * PAGE * SCRIPT_TOKEN_BYTES});
    uint32_t pinned;
    (void)state;
    taken(&r, 1, 100000000, &pinned);
    assert_int_equal(pinned, PINNED);
    taken(&r, 2, 50000000, &pinned);
    assert_int_equal(pinned, PINNED);
    taken(&r, 3, 40000000, &pinned); /* it would end first */
    assert_int_equal(pinned, 0);
    assert_int_equal(look(&r).pages_pinned, 2 * (PINNED / PAGE));
    taken(&r, 4, 70000000, &pinned); /* that of 2 goes */
    assert_int_equal(pinned, PINNED);
    assert_int_equal(look(&r).pins, 2);
    taken(&r, 4, 70000000, &pinned); /* again: the same pin */
    assert_int_equal(pinned, PINNED);
    assert_int_equal(look(&r).pins, 2);
    now_us += 70000001;
    engine_turn(r.e);
    assert_int_equal(look(&r).pins, 1);
    close_rig(&r);
    r = open_rig("", (engine_options){.kv_budget_bytes = 200 * PAGE * SCRIPT_TOKEN_BYTES, .pin_budget_bytes = 1});
    taken(&r, 1, 100000000, &pinned);
    assert_int_equal(pinned, 0);
    assert_int_equal(look(&r).pages_pinned, 0);
    close_rig(&r);
}

/* A conversation that pins each of its turns has one pin; no number of short ones is too many. */
static void pins_are_few(void **state) {
    static int32_t p[1000];
    gen_event end;
    rig r = open_rig("", (engine_options){.clock = &pin_clock});
    (void)state;
    fill(p, 1000, 5);
    for (uint32_t n = 100; n <= 1000; n += 100) {
        gen_request q = asks(p, n, 1);
        q.pin_us = 60000000;
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.pinned_tokens, n / PAGE * PAGE);
        assert_int_equal(look(&r).pins, 1);
        assert_int_equal(look(&r).pages_pinned, n / PAGE);
    }
    for (uint64_t i = 0; i < 3 * MAX_PINS; i++) {
        gen_request q = asks(p, 2 * PAGE, 1);
        fill(p, 2 * PAGE, 100 + i);
        q.pin_us = 60000000 + i;
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.pinned_tokens, 2 * PAGE);
        assert_true(look(&r).pins <= MAX_PINS);
    }
    assert_int_equal(look(&r).pages_pinned, 2 * MAX_PINS);
    {
        gen_request q = asks(p, PAGE - 1, 1); /* no page is full */
        q.pin_us = 1000000;
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.pinned_tokens, 0);
        q = asks(p, 2 * PAGE, 1);
        q.pin_us = 90000000;
        q.no_cache = true;
        run(&r, &q, 1, &end);
        assert_int_equal(end.stats.pinned_tokens, 0);
    }
    close_rig(&r);
}

/* Pins stop nobody: a prompt that needs their room gets it once nothing else runs, and so does a row that grows. */
static void pins_yield_to_rows(void **state) {
    static int32_t p[900];
    gen_event end;
    (void)state;
    for (int grows = 0; grows < 2; grows++) {
        rig r = open_rig("", (engine_options){.clock = &pin_clock, .ctx = 960, .default_max_tokens = 16,
                                              .kv_budget_bytes = 62 * PAGE * SCRIPT_TOKEN_BYTES,
                                              .pin_budget_bytes = 31 * PAGE * SCRIPT_TOKEN_BYTES});
        gen_request q = asks(p, grows ? 300 : 900, grows ? GEN_NO_CAP : 10);
        uint32_t pinned;
        taken(&r, 1, 60000000, &pinned);
        assert_int_equal(pinned, PINNED);
        fill(p, 900, 6);
        run(&r, &q, 1, &end);
        assert_int_equal(end.finish, FINISH_LENGTH);
        assert_int_equal(end.stats.generated_tokens, grows ? 660 : 10);
        assert_int_equal(look(&r).pins, 0);
        close_rig(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_system_prompt_for_all),
        cmocka_unit_test(sharing_makes_room),
        cmocka_unit_test(a_conversation),
        cmocka_unit_test(r021_the_same_again_with_windows),
        cmocka_unit_test(the_boundary_is_kept),
        cmocka_unit_test(a_pin_keeps),
        cmocka_unit_test(pins_have_a_budget),
        cmocka_unit_test(pins_are_few),
        cmocka_unit_test(pins_yield_to_rows),
        cmocka_unit_test(the_end_of_an_answer_is_kept),
        cmocka_unit_test(spaces_and_switches),
        cmocka_unit_test(r022_a_thousand_prompts),
    };
    return cmocka_run_group_tests_name("what rows share", tests, NULL, NULL);
}
