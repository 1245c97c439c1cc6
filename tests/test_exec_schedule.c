/* test_exec_schedule.c - who runs when: classes, ageing, shares, budget, giving way, steering, collecting, exclusive jobs.
 *
 * A manual engine, a scripted model and a clock that the test turns: every assertion is about one turn.  Only what prompts
 * get of a step is asked with the real clock, and there the answer is a floor that a slow machine does not change. */
#include "base/mem.h"
#include "model/model_int.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define SECOND 1000000ull
enum { N = 64, TOKEN_BYTES = 1024 };

static uint64_t read_clock(void *ctx) { return *(uint64_t *)ctx; }

typedef struct {
    uint64_t now;
    hd_clock clock;
    model *m;
    engine *e;
    session *s[N];
    uint32_t n_got[N];   /* tokens read */
    gen_event end[N];    /* kind EV_DONE once it is over */
} bench;

/* clock: NULL is the test's own. */
static void open_bench_at(bench *b, const char *rules, engine_options opt, const hd_clock *clock) {
    char json[4096];
    hd_err err;
    int n = snprintf(json, sizeof json, "{\"vocab\":[\"<s>\",\"</s>\",\"a\",\"b\",\"c\",\"d\"],\"special\":{\"bos\":0,\"eos\":[1]},%s}",
                     rules ? rules : "\"default\":{\"emit\":[2,3],\"then\":\"loop\"}");
    memset(b, 0, sizeof *b);
    b->now = 1000 * SECOND;
    b->clock = (hd_clock){read_clock, &b->now};
    if (script_open_memory(&b->m, json, (size_t)n, "test", NULL, &err)) fail_msg("%s", err.msg);
    opt.clock = clock ? clock : &b->clock;
    opt.manual = true;
    if (!opt.page_tokens) opt.page_tokens = 4;
    if (!opt.step_tokens) opt.step_tokens = 256; /* also where constants are hostile */
    if (!opt.kv_budget_bytes) opt.kv_budget_bytes = 1 << 24;
    if (engine_open(&b->e, b->m, &opt, &err)) fail_msg("%s", err.msg);
}

static void open_bench(bench *b, const char *rules, engine_options opt) { open_bench_at(b, rules, opt, NULL); }

static void close_bench(bench *b) {
    for (int i = 0; i < N; i++) session_free(b->s[i]);
    engine_close(b->e);
    model_close(b->m);
}

static const int32_t prompt[] = {2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5};
static gen_request asks(uint32_t n_prompt, uint32_t max_tokens) {
    gen_request r = {.id = "", .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    sampling_defaults(&r.sampling);
    r.sampling.temperature = 0;
    return r;
}

static void submit(bench *b, int i, const gen_request *r) {
    hd_err err;
    if (engine_submit(b->e, r, 1, NULL, NULL, &b->s[i], &err)) fail_msg("request %d: %s", i, err.msg);
}

/* Read everything that waits. */
static void drain(bench *b, int i) {
    gen_event ev;
    for (;;) {
        session_next(b->s[i], &ev);
        if (ev.kind == EV_NONE) return;
        if (ev.kind == EV_TOKEN) b->n_got[i]++;
        if (ev.kind == EV_DONE) {
            assert_int_equal(b->end[i].kind, EV_NONE); /* once */
            b->end[i] = ev;
        }
    }
}

static void turn(bench *b, int n) {
    while (n--) {
        engine_turn(b->e);
        for (int i = 0; i < N; i++)
            if (b->s[i]) drain(b, i);
    }
}

static bool runs(bench *b, int i) {
    row_view rows[N];
    engine_view v = {.rows = rows, .cap_rows = N};
    engine_look(b->e, &v);
    for (uint32_t k = 0; k < v.n_rows; k++)
        if (!strcmp(rows[k].id, session_id(b->s[i]))) return true;
    return false;
}

static row_view waits(bench *b, int i) {
    row_view queue[N];
    engine_view v = {.queue = queue, .cap_queue = N};
    engine_look(b->e, &v);
    for (uint32_t k = 0; k < v.n_queue; k++)
        if (!strcmp(queue[k].id, session_id(b->s[i]))) return queue[k];
    return (row_view){.wait_reason = "not in the queue"};
}

static bool over(const bench *b, int i) { return b->end[i].kind == EV_DONE; }

/* ---- what a step takes ---- */

/* A prompt is read whole while nobody decodes, and in pieces when that would keep one who does waiting; real time, as the
 * script sleeps. */
static void prompts_take_little_of_a_step(void **state) {
    static const char slow[] = "\"prompt_delay_ms\":1,\"default\":{\"emit\":[2,3],\"then\":\"loop\"}";
    static int32_t text[150];
    (void)state;
    for (int limited = 0; limited < 2; limited++) {
        bench b;
        gen_request r = asks(100, 200);
        engine_view v = {.n_rows = 0};
        engine_options o = {.max_rows = 4, .step_target_us = limited ? 2000 : 10 * SECOND};
        for (int i = 0; i < 150; i++) text[i] = 2 + i % 4;
        r.prompt = text;
        open_bench_at(&b, slow, o, &hd_clock_real);
        submit(&b, 0, &r);
        turn(&b, 1);
        engine_look(b.e, &v);
        assert_int_equal(v.step_tokens_last, 100); /* alone */
        text[0] = 5;
        r.n_prompt = 150;
        submit(&b, 1, &r);
        turn(&b, 1);
        engine_look(b.e, &v);
        assert_int_equal(v.step_tokens_last, limited ? 1 + 16 : 1 + 150); /* 1 ms each: 2 by time, but 16 at least */
        close_bench(&b);
    }
}

/* With ten rows that decode, prompts get twenty tokens however slow they are. */
static void prompts_get_twice_what_decodes(void **state) {
    static const char slow[] = "\"prompt_delay_ms\":1,\"default\":{\"emit\":[2,3],\"then\":\"loop\"}";
    static int32_t text[150];
    bench b;
    gen_request r = asks(4, 200);
    engine_view v = {.n_rows = 0};
    (void)state;
    open_bench_at(&b, slow, (engine_options){.max_rows = 12, .step_target_us = 2000}, &hd_clock_real);
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 4; j++) text[j] = 2 + (i >> j & 1); /* nobody has what another has read */
        r.prompt = text;
        submit(&b, i, &r);
    }
    turn(&b, 3);
    for (int i = 0; i < 150; i++) text[i] = 4 + i % 2;
    r.n_prompt = 150;
    submit(&b, 10, &r);
    turn(&b, 1);
    engine_look(b.e, &v);
    assert_int_equal(v.step_tokens_last, 10 + 20);
    close_bench(&b);
}

/* ---- classes ---- */

static void a_class_goes_before_another(void **state) {
    bench b;
    gen_request r = asks(2, 4);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    r.priority = PRIORITY_HIGH; /* occupies the row, and nothing preempts it */
    submit(&b, 0, &r);
    turn(&b, 1);
    r.priority = PRIORITY_LOW;
    submit(&b, 1, &r);
    r.priority = PRIORITY_NORMAL;
    submit(&b, 2, &r);
    submit(&b, 3, &r);
    r.priority = PRIORITY_HIGH;
    submit(&b, 4, &r);
    turn(&b, 1);
    assert_string_equal(waits(&b, 4).wait_reason, "rows");
    assert_string_equal(waits(&b, 2).wait_reason, "rows"); /* the head of its own class */
    assert_string_equal(waits(&b, 3).wait_reason, "order");
    {
        static const int order[] = {0, 4, 2, 3, 1};
        for (int k = 0; k < 5; k++) {
            for (int j = k + 1; j < 5; j++) assert_false(over(&b, order[j]));
            while (!over(&b, order[k])) turn(&b, 1);
            assert_int_equal(b.end[order[k]].finish, FINISH_LENGTH);
        }
    }
    close_bench(&b);
}

static void waiting_lifts_a_class(void **state) {
    bench b;
    gen_request r = asks(2, 4);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1, .age_us = 10 * SECOND});
    r.priority = PRIORITY_HIGH;
    submit(&b, 0, &r);
    turn(&b, 1);
    r.priority = PRIORITY_LOW;
    submit(&b, 1, &r);
    b.now += 20 * SECOND; /* LOW counts as HIGH now, and is older */
    r.priority = PRIORITY_HIGH;
    submit(&b, 2, &r);
    while (!over(&b, 0)) turn(&b, 1);
    turn(&b, 1);
    assert_true(runs(&b, 1));
    assert_false(runs(&b, 2));
    close_bench(&b);
}

/* What it had computed is computed again, unless the cache kept it. */
static void give_way(bool no_cache) {
    bench b;
    gen_request r = asks(2, 40);
    r.no_cache = no_cache;
    open_bench(&b, NULL, (engine_options){.max_rows = 2, .age_us = 10 * SECOND});
    r.priority = PRIORITY_LOW;
    submit(&b, 0, &r);
    submit(&b, 1, &r);
    turn(&b, 5);
    r.priority = PRIORITY_NORMAL;
    r.max_tokens = 3;
    submit(&b, 2, &r);
    turn(&b, 1);
    assert_true(runs(&b, 2) && runs(&b, 0)); /* the youngest of the lowest gave way */
    assert_int_equal(waits(&b, 1).phase, ROW_PREEMPTED);
    while (!over(&b, 0) || !over(&b, 1)) turn(&b, 1);
    assert_int_equal(b.end[1].stats.preemptions, 1);
    assert_int_equal(b.n_got[1], 40);
    assert_int_equal(b.end[0].stats.computed_tokens, 41); /* the last token is computed by nobody */
    if (no_cache) assert_true(b.end[1].stats.computed_tokens > 41);
    else assert_true(b.end[1].stats.computed_tokens <= 41);
    close_bench(&b);
}

static void a_high_one_makes_a_low_one_give_way(void **state) {
    (void)state;
    give_way(true);
    give_way(false);
}

static void one_that_aged_does_not_give_way(void **state) {
    bench b;
    gen_request r = asks(2, 40);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1, .age_us = 10 * SECOND});
    r.priority = PRIORITY_HIGH;
    r.max_tokens = 2;
    submit(&b, 0, &r);
    turn(&b, 1);
    r.priority = PRIORITY_LOW;
    r.max_tokens = 40;
    submit(&b, 1, &r);
    b.now += 20 * SECOND;
    turn(&b, 4);
    assert_true(runs(&b, 1));
    r.priority = PRIORITY_HIGH;
    submit(&b, 2, &r);
    turn(&b, 3);
    assert_true(runs(&b, 1));
    assert_false(runs(&b, 2));
    close_bench(&b);
}

/* ---- shares ---- */

static void a_flood_of_one_share_leaves_the_other_its_part(void **state) {
    bench b;
    gen_request r = asks(2, 6);
    int done_a = 0;
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    r.share = "a";
    for (int i = 0; i < 20; i++) submit(&b, i, &r);
    r.share = "b";
    for (int i = 20; i < 25; i++) submit(&b, i, &r);
    while (!over(&b, 24)) turn(&b, 1);
    for (int i = 0; i < 20; i++) done_a += over(&b, i);
    assert_in_range(done_a, 4, 6); /* they took turns; FIFO would have run all 20 first */
    for (int i = 1; i < 20; i++) assert_true(!over(&b, i) || over(&b, i - 1)); /* FIFO within a share */
    close_bench(&b);
}

static void an_idle_share_saves_nothing_up(void **state) {
    bench b;
    gen_request r = asks(2, 6);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    r.share = "a";
    for (int i = 0; i < 10; i++) {
        submit(&b, i, &r);
        while (!over(&b, i)) turn(&b, 1);
    }
    for (int i = 10; i < 16; i++) submit(&b, i, &r);
    r.share = "b"; /* new: it gets its part from now on, not the ten it missed */
    for (int i = 16; i < 22; i++) submit(&b, i, &r);
    while (!over(&b, 21)) turn(&b, 1);
    {
        int done_a = 0;
        for (int i = 10; i < 16; i++) done_a += over(&b, i);
        assert_in_range(done_a, 4, 6);
    }
    close_bench(&b);
}

static void new_shares_without_end_starve_nobody(void **state) {
    bench b;
    gen_request r = asks(2, 4);
    int i = 1;
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1, .age_us = 10 * SECOND});
    r.priority = PRIORITY_HIGH; /* so that no class helps anyone */
    r.share = "old";            /* it has been served, so each newcomer has a better claim */
    submit(&b, 0, &r);
    while (!over(&b, 0)) turn(&b, 1);
    submit(&b, N - 2, &r);
    submit(&b, N - 1, &r);
    for (; i < N - 2 && !over(&b, N - 1); i++) { /* one newcomer after another, always one in the line */
        char key[16];
        snprintf(key, sizeof key, "new-%d", i);
        r.share = key;
        submit(&b, i, &r);
        b.now += SECOND;
        turn(&b, 4);
    }
    assert_true(over(&b, N - 1));
    assert_in_range(i, 10, 40); /* its turn came by age, after 30 s, not at once */
    close_bench(&b);
}

/* ---- budget ---- */

/* 32 pages of 4 tokens: 100 blocks of the report, scaled. */
static engine_options small_budget(uint32_t rows) {
    return (engine_options){.max_rows = rows, .kv_budget_bytes = 32 * 4 * TOKEN_BYTES, .page_tokens = 4, .age_us = 10 * SECOND};
}

static void the_head_waits_for_pages_and_its_class_behind_it(void **state) {
    bench b;
    gen_request big = asks(8, 68), small = asks(2, 2);
    (void)state;
    open_bench(&b, NULL, small_budget(8));
    submit(&b, 0, &big); /* 19 pages of 32 */
    turn(&b, 1);
    submit(&b, 1, &big); /* does not fit */
    submit(&b, 2, &small);
    turn(&b, 1);
    assert_string_equal(waits(&b, 1).wait_reason, "pages");
    assert_string_equal(waits(&b, 2).wait_reason, "order");
    small.priority = PRIORITY_LOW;
    submit(&b, 3, &small); /* another class is not held up */
    turn(&b, 1);
    assert_true(runs(&b, 3) || over(&b, 3));
    b.now += 11 * SECOND; /* but not for ever: now nobody overtakes the head */
    submit(&b, 4, &small);
    turn(&b, 3);
    assert_false(runs(&b, 4) || over(&b, 4));
    while (!over(&b, 0)) turn(&b, 1);
    turn(&b, 1);
    assert_true(runs(&b, 1));
    for (int i = 1; i < 5; i++)
        while (!over(&b, i)) turn(&b, 1);
    close_bench(&b);
}

static void what_never_fits_is_refused_with_numbers(void **state) {
    bench b;
    int32_t *ids = hd_calloc(400, sizeof *ids);
    gen_request r;
    session *s;
    hd_err err;
    (void)state;
    open_bench(&b, NULL, small_budget(8));
    for (int i = 0; i < 400; i++) ids[i] = 2;
    r = asks(1, 1);
    r.prompt = ids;
    r.n_prompt = 400;
    assert_int_equal(engine_submit(b.e, &r, 1, NULL, NULL, &s, &err), HD_NEVER_FITS);
    assert_non_null(strstr(err.msg, "400"));
    assert_non_null(strstr(err.msg, "128"));
    r.n_prompt = 1;
    r.collect = true;
    r.max_tokens = 70000;
    assert_int_equal(engine_submit(b.e, &r, 1, NULL, NULL, &s, &err), HD_NEVER_FITS);
    assert_string_equal(err.field, "max_tokens");
    hd_free(ids);
    close_bench(&b);
}

static void growth_preempts_the_youngest(void **state) {
    bench b;
    engine_options opt = small_budget(8);
    gen_request r = asks(4, GEN_NO_CAP);
    (void)state;
    opt.default_max_tokens = 4;
    open_bench(&b, NULL, opt);
    for (int i = 0; i < 3; i++) submit(&b, i, &r);
    while (!over(&b, 2)) turn(&b, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b.end[i].finish, FINISH_LENGTH); /* at the context's end */
        assert_int_equal(b.n_got[i], 128 - 4);
    }
    assert_int_equal(b.end[0].stats.preemptions, 0);
    assert_true(b.end[2].stats.preemptions >= 1);
    close_bench(&b);
}

/* ---- steering ---- */

static void a_cap_is_raised_while_it_runs_and_while_it_waits(void **state) {
    bench b;
    gen_request r = asks(2, 5);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    submit(&b, 0, &r);
    submit(&b, 1, &r);
    turn(&b, 2);
    session_raise_cap(b.s[0], 3); /* never lowers */
    session_raise_cap(b.s[0], 9);
    session_raise_cap(b.s[1], 7);
    while (!over(&b, 1)) turn(&b, 1);
    assert_int_equal(b.n_got[0], 9);
    assert_int_equal(b.n_got[1], 7);
    close_bench(&b);
}

static void a_stop_ends_it_with_what_is_there(void **state) {
    bench b;
    gen_request r = asks(2, 50);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    submit(&b, 0, &r);
    submit(&b, 1, &r);
    turn(&b, 3);
    session_stop(b.s[0]);
    session_stop(b.s[1]);
    turn(&b, 1);
    assert_true(over(&b, 0) && over(&b, 1));
    assert_int_equal(b.end[0].finish, FINISH_STOP);
    assert_int_equal(b.n_got[0], 3);
    assert_int_equal(b.end[0].stats.generated_tokens, 3);
    assert_int_equal(b.end[1].finish, FINISH_STOP);
    assert_int_equal(b.n_got[1], 0);
    close_bench(&b);
}

static void forced_tokens_come_next(void **state) {
    static const int32_t forced[] = {5, 4};
    bench b;
    gen_request r = asks(2, 8);
    int32_t ids[16], n = 0;
    gen_event ev;
    hd_err err;
    int32_t many[65] = {0}, wrong = 100000;
    bool told = false;
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    r.sampling.logprobs = true;
    submit(&b, 0, &r);
    assert_int_equal(session_force(b.s[0], many, 65, &err), HD_FULL);
    assert_int_equal(session_force(b.s[0], &wrong, 1, &err), HD_INVALID);
    do {
        if (n == 2 && !told) {
            assert_int_equal(session_force(b.s[0], forced, 2, &err), HD_OK);
            told = true;
        }
        session_next(b.s[0], &ev);
        if (ev.kind == EV_NONE) engine_turn(b.e);
        if (ev.kind != EV_TOKEN) continue;
        /* A forced token's logprob is that of the model: not the likely one here. */
        assert_true(n == 2 || n == 3 ? ev.sample.logprob < -10 : ev.sample.logprob > -0.01f);
        ids[n++] = ev.sample.id;
    } while (ev.kind != EV_DONE);
    {
        static const int32_t want[] = {2, 3, 5, 4, 2, 3, 2, 3}; /* the script counts positions */
        assert_int_equal(n, 8);
        assert_memory_equal(ids, want, sizeof want);
    }
    close_bench(&b);
}

/* What was asked for in several calls comes in their order, whatever else is steered meanwhile; what does not fit beside
 * those who wait is refused whole, and so is a list with one wrong id in it. */
static void forced_tokens_wait_in_order(void **state) {
    static const int32_t negative[] = {3, -1};
    bench b;
    gen_request r = asks(2, 70);
    int32_t ids[128], parts[2][40], n = 0;
    gen_event ev;
    hd_err err;
    (void)state;
    for (int i = 0; i < 40; i++) parts[0][i] = 4 + i % 2, parts[1][i] = 2 + i % 3;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    submit(&b, 0, &r);
    assert_int_equal(session_force_room(b.s[0]), 64);
    assert_int_equal(session_force(b.s[0], parts[0], 40, &err), HD_OK);
    assert_int_equal(session_force_room(b.s[0]), 24);
    assert_int_equal(session_force(b.s[0], parts[1], 40, &err), HD_FULL);
    assert_int_equal(session_force(b.s[0], negative, 2, &err), HD_INVALID);
    assert_int_equal(session_force(b.s[0], parts[1], 20, &err), HD_OK);
    assert_int_equal(session_force_room(b.s[0]), 4);
    do {
        if (n % 10 == 5) { /* taken up with a part of them still waiting */
            session_raise_cap(b.s[0], 75);
            session_set_priority(b.s[0], n % 20 < 10 ? PRIORITY_HIGH : PRIORITY_LOW);
        }
        session_next(b.s[0], &ev);
        if (ev.kind == EV_NONE) engine_turn(b.e);
        if (ev.kind == EV_TOKEN) ids[n++] = ev.sample.id;
    } while (ev.kind != EV_DONE && n < 128);
    assert_int_equal(ev.finish, FINISH_LENGTH);
    assert_int_equal(n, 75);
    assert_memory_equal(ids, parts[0], sizeof parts[0]);
    assert_memory_equal(ids + 40, parts[1], 20 * sizeof *ids);
    close_bench(&b);
}

/* A forced token is a token: it counts for the cap, an end token ends, and so does text that a stop string waits for. */
static void forced_tokens_end_as_others_do(void **state) {
    static const int32_t end[] = {4, 1, 4}, text[] = {3, 4, 2, 2};
    static const stop_string stops[] = {{"bc", 2}};
    for (int how = 0; how < 3; how++) {
        bench b;
        gen_request r = asks(2, how == 2 ? 2 : 8);
        hd_err err;
        (void)state;
        open_bench(&b, NULL, (engine_options){.max_rows = 1});
        if (how == 1) r.stops = stops, r.n_stops = 1;
        submit(&b, 0, &r);
        assert_int_equal(session_force(b.s[0], how ? text : end, how ? 4 : 3, &err), HD_OK);
        while (!over(&b, 0)) turn(&b, 1);
        assert_int_equal(b.end[0].finish, how == 2 ? FINISH_LENGTH : FINISH_STOP);
        assert_int_equal(b.end[0].ended_by_eos, how == 0);
        assert_int_equal(b.end[0].stop_index, how == 1 ? 0 : -1);
        assert_int_equal(b.n_got[0], how ? 2 : 1);
        assert_int_equal(b.end[0].stats.generated_tokens, 2);
        close_bench(&b);
    }
}

static void a_priority_changes_in_the_line(void **state) {
    bench b;
    gen_request r = asks(2, 3);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    for (int i = 0; i < 4; i++) submit(&b, i, &r);
    turn(&b, 1);
    session_set_priority(b.s[3], PRIORITY_HIGH);
    while (!over(&b, 3)) turn(&b, 1);
    assert_false(over(&b, 1) || over(&b, 2));
    close_bench(&b);
}

/* Times of "never": who pauses is not cancelled, who waits does not age, and nothing is due at once for ever. */
static void times_that_never_come(void **state) {
    bench b;
    gen_request r = asks(2, 1000), low = asks(2, 3);
    uint64_t wait = 0;
    engine_view v = {0};
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1, .idle_timeout_us = UINT64_MAX, .age_us = UINT64_MAX, .stuck_timeout_us = UINT64_MAX});
    r.total_timeout_us = r.first_token_timeout_us = r.queue_timeout_us = UINT64_MAX;
    submit(&b, 0, &r);
    low.priority = PRIORITY_LOW;
    submit(&b, 1, &low);
    for (int k = 0; k < 4; k++) { /* until it pauses, as nobody reads; then still */
        for (int i = 0; i < 600; i++) wait = engine_turn(b.e);
        assert_true(wait > 1000 * SECOND);
        b.now += 1000 * SECOND;
    }
    engine_look(b.e, &v);
    assert_int_equal(v.running, 1);
    assert_int_equal(v.waiting, 1);
    assert_int_equal(v.pauses_total, 1);
    assert_false(v.failed);
    session_set_priority(b.s[1], PRIORITY_NORMAL); /* older ones of its class are still first */
    for (int i = 0; i < 600; i++) wait = engine_turn(b.e);
    assert_true(wait > 1000 * SECOND);
    turn(&b, 3000);
    assert_int_equal(b.end[0].finish, FINISH_LENGTH);
    assert_int_equal(b.end[1].finish, FINISH_LENGTH);
    close_bench(&b);
}

/* ---- collecting ---- */

static void collecting_rows_share_a_bound_and_the_oldest_goes_on(void **state) {
    bench b;
    gen_request r = asks(2, 30);
    gen_event ev;
    engine_view v = {0};
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 4, .collect_tokens = 40, .idle_timeout_us = SECOND});
    r.collect = true;
    for (int i = 0; i < 2; i++) submit(&b, i, &r);
    for (int i = 0; i < 40; i++) engine_turn(b.e); /* nobody reads */
    b.now += 100 * SECOND;                         /* and nobody is idle: that is what collecting means */
    for (int i = 0; i < 60; i++) engine_turn(b.e);
    engine_look(b.e, &v);
    assert_int_equal(v.finished_length, 2); /* once the first was over, the second was the oldest */
    for (int i = 0; i < 2; i++) {
        int n = 0;
        do {
            session_next(b.s[i], &ev);
            n += ev.kind == EV_TOKEN;
        } while (ev.kind != EV_DONE);
        assert_int_equal(n, 30);
        assert_int_equal(ev.finish, FINISH_LENGTH);
    }
    close_bench(&b);
}

static void a_detached_one_needs_no_reader(void **state) {
    bench b;
    gen_request r = asks(2, 600);
    gen_event ev;
    int n = 0;
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1, .idle_timeout_us = SECOND});
    submit(&b, 0, &r);
    for (int i = 0; i < 400; i++) engine_turn(b.e);
    session_detach(b.s[0]);
    b.now += 10 * SECOND;
    for (int i = 0; i < 700; i++) engine_turn(b.e);
    do {
        session_next(b.s[0], &ev);
        n += ev.kind == EV_TOKEN;
    } while (ev.kind != EV_DONE);
    assert_int_equal(n, 600);
    assert_int_equal(ev.finish, FINISH_LENGTH);
    close_bench(&b);
}

/* ---- exclusive jobs ---- */

typedef struct {
    bench *b;
    int ran, told, rows;
    hd_status st;
} job;

static void run_job(void *ctx) {
    job *j = ctx;
    engine_view v = {0};
    engine_look(j->b->e, &v);
    j->rows = (int)v.running;
    j->ran++;
}

static void job_done(void *ctx, hd_status st) {
    job *j = ctx;
    j->told++;
    j->st = st;
}

static void a_job_waits_for_rows_and_then_for_its_patience(void **state) {
    bench b;
    gen_request r = asks(2, 10);
    job one = {&b, 0, 0, -1, HD_FAILED}, two = one;
    hd_err err;
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 2});
    submit(&b, 0, &r);
    turn(&b, 2);
    assert_int_equal(engine_exclusive(b.e, run_job, job_done, &one, 60 * SECOND, NULL, &err), HD_OK);
    submit(&b, 1, &r); /* held back meanwhile */
    turn(&b, 2);
    assert_int_equal(one.ran, 0);
    assert_string_equal(waits(&b, 1).wait_reason, "exclusive_job");
    while (!over(&b, 0)) turn(&b, 1);
    turn(&b, 2);
    assert_int_equal(one.ran, 1);
    assert_int_equal(one.told, 1);
    assert_int_equal(one.st, HD_OK);
    assert_int_equal(one.rows, 0);
    assert_true(runs(&b, 1));
    turn(&b, 2);
    assert_int_equal(engine_exclusive(b.e, run_job, job_done, &two, 5 * SECOND, NULL, &err), HD_OK);
    turn(&b, 1);
    assert_int_equal(two.ran, 0);
    b.now += 6 * SECOND;
    turn(&b, 1);
    assert_int_equal(two.ran, 1);
    assert_int_equal(two.rows, 0);
    while (!over(&b, 1)) turn(&b, 1);
    assert_int_equal(b.n_got[1], 10);
    assert_int_equal(b.end[1].stats.preemptions, 1);
    close_bench(&b);
}

static void closing_tells_waiting_jobs(void **state) {
    bench b;
    gen_request r = asks(2, 10);
    job one = {&b, 0, 0, -1, HD_FAILED};
    hd_err err;
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 2});
    submit(&b, 0, &r);
    turn(&b, 2);
    assert_int_equal(engine_exclusive(b.e, run_job, job_done, &one, 60 * SECOND, NULL, &err), HD_OK);
    close_bench(&b);
    assert_int_equal(one.told, 1);
    assert_true(one.st == HD_CLOSED || one.ran == 1);
}

/* ---- faults ---- */

static hd_status (*real_forward)(model *, const step *, uint32_t *, hd_err *);
static int n_forwards;

/* Fails when token 5 is fed, and does not say for whom. */
static hd_status fragile_forward(model *m, const step *st, uint32_t *bad, hd_err *err) {
    (void)bad;
    n_forwards++;
    for (uint32_t i = 0; i < st->n_segs; i++)
        for (uint32_t j = 0; j < st->segs[i].n; j++)
            if (st->segs[i].tokens[j] == 5) return hd_fail(err, HD_FAILED, "token 5 is poison");
    return real_forward(m, st, bad, err);
}

static void a_fault_without_a_name_is_found_by_halving(void **state) {
    bench b;
    gen_request r = asks(2, 6), poison = asks(4, 6); /* its fourth token is 5 */
    model_ops ops;
    engine_view v = {0};
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 16});
    real_forward = b.m->ops->forward;
    ops = *b.m->ops;
    ops.forward = fragile_forward;
    b.m->ops = &ops;
    for (int i = 0; i < 16; i++) submit(&b, i, i == 11 ? &poison : &r);
    n_forwards = 0;
    turn(&b, 1);
    assert_in_range(n_forwards, 5, 9); /* 1 + 2 per halving of 16 */
    assert_int_equal(b.end[11].finish, FINISH_FAILED);
    assert_non_null(strstr(b.end[11].err.msg, "poison"));
    turn(&b, 6);
    for (int i = 0; i < 16; i++)
        if (i != 11) assert_int_equal(b.n_got[i], 6);
    engine_look(b.e, &v);
    assert_int_equal(v.faults_contained, 1);
    close_bench(&b);
}

/* ---- cancellation by source ---- */

static void one_source_cancels_all_its_requests(void **state) {
    bench b;
    gen_request r = asks(2, 50);
    cancellation *c;
    hd_err err;
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 2});
    assert_int_equal(cancel_new(&c, &err), HD_OK);
    submit(&b, 3, &r);
    r.cancel = c;
    for (int i = 0; i < 3; i++) submit(&b, i, &r); /* one runs, two wait */
    turn(&b, 2);
    cancel_fire(c, CANCEL_CLIENT_DISCONNECTED);
    turn(&b, 1);
    for (int i = 0; i < 3; i++) {
        assert_true(over(&b, i));
        assert_int_equal(b.end[i].reason, CANCEL_CLIENT_DISCONNECTED);
    }
    assert_false(over(&b, 3));
    submit(&b, 4, &r); /* cancelled before it came */
    turn(&b, 1);
    assert_int_equal(b.end[4].reason, CANCEL_CLIENT_DISCONNECTED);
    cancel_unref(c);
    close_bench(&b);
}

/* ---- deadlines and timings, on the turned clock ---- */

static void deadlines_are_exact(void **state) {
    bench b;
    gen_request r = asks(2, 1000), q = asks(2, 5);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    r.total_timeout_us = 5 * SECOND;
    q.queue_timeout_us = 2 * SECOND;
    submit(&b, 0, &r);
    submit(&b, 1, &q);
    turn(&b, 1);
    b.now += 2 * SECOND - 1;
    turn(&b, 1);
    assert_false(over(&b, 1));
    b.now += 1;
    turn(&b, 1);
    assert_int_equal(b.end[1].reason, CANCEL_DEADLINE_QUEUE);
    assert_int_equal(b.end[1].stats.queue_us, 2 * SECOND);
    b.now += 3 * SECOND - 1;
    turn(&b, 1);
    assert_false(over(&b, 0));
    b.now += 1;
    turn(&b, 1);
    assert_int_equal(b.end[0].reason, CANCEL_DEADLINE_TOTAL);
    close_bench(&b);
}

static void timings_are_told_with_the_end(void **state) {
    bench b;
    gen_request r = asks(2, 101);
    (void)state;
    open_bench(&b, NULL, (engine_options){.max_rows = 1});
    submit(&b, 0, &r);
    b.now += 3000;
    for (int i = 0; i < 101; i++) {
        turn(&b, 1);
        b.now += i % 50 == 49 ? 90000 : 10000; /* two long gaps in a hundred */
    }
    assert_true(over(&b, 0));
    assert_int_equal(b.end[0].stats.queue_us, 3000);
    assert_in_range(b.end[0].stats.gap_p50_us, 9000, 11000);
    assert_in_range(b.end[0].stats.gap_p99_us, 81000, 99000);
    assert_int_equal(b.end[0].stats.decode_us, 98 * 10000 + 2 * 90000);
    assert_int_equal(b.end[0].stats.computed_tokens, 2 + 100);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_take_little_of_a_step),
        cmocka_unit_test(prompts_get_twice_what_decodes),
        cmocka_unit_test(a_class_goes_before_another),
        cmocka_unit_test(waiting_lifts_a_class),
        cmocka_unit_test(a_high_one_makes_a_low_one_give_way),
        cmocka_unit_test(one_that_aged_does_not_give_way),
        cmocka_unit_test(a_flood_of_one_share_leaves_the_other_its_part),
        cmocka_unit_test(an_idle_share_saves_nothing_up),
        cmocka_unit_test(new_shares_without_end_starve_nobody),
        cmocka_unit_test(the_head_waits_for_pages_and_its_class_behind_it),
        cmocka_unit_test(what_never_fits_is_refused_with_numbers),
        cmocka_unit_test(growth_preempts_the_youngest),
        cmocka_unit_test(a_cap_is_raised_while_it_runs_and_while_it_waits),
        cmocka_unit_test(a_stop_ends_it_with_what_is_there),
        cmocka_unit_test(times_that_never_come),
        cmocka_unit_test(forced_tokens_come_next),
        cmocka_unit_test(forced_tokens_wait_in_order),
        cmocka_unit_test(forced_tokens_end_as_others_do),
        cmocka_unit_test(a_priority_changes_in_the_line),
        cmocka_unit_test(collecting_rows_share_a_bound_and_the_oldest_goes_on),
        cmocka_unit_test(a_detached_one_needs_no_reader),
        cmocka_unit_test(a_job_waits_for_rows_and_then_for_its_patience),
        cmocka_unit_test(closing_tells_waiting_jobs),
        cmocka_unit_test(a_fault_without_a_name_is_found_by_halving),
        cmocka_unit_test(one_source_cancels_all_its_requests),
        cmocka_unit_test(deadlines_are_exact),
        cmocka_unit_test(timings_are_told_with_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
