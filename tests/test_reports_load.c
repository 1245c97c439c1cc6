/* test_reports_load.c - faults reported of other servers: long prompts, full memory, full queues, idle and stuck machines.
 *
 * Turned by hand (a manual engine, a clock the test turns) where the order of steps matters, over sockets where waiting does;
 * docs/reports.md says which other tests belong to these areas. */
#include "base/mem.h"
#include "base/pool.h"
#include "base/topology.h"
#include "model/model_int.h"
#include "tiny/tiny_model.h"
#include "util/runs.h"
#include "util/server_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHAT      "/v1/chat/completions"
#define COMPLETE  "/v1/completions"
#define MSG(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define VOCAB(ctx)                                                                                                     \
    "\"vocab\":[\"<s>\",\"</s>\",\"X\",\"one \",\"two \"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":" ctx
#define FOREVER "\"default\":{\"emit\":[2,3],\"then\":\"loop\"}"
#define SECOND  1000000ull
enum { TOKEN_BYTES = 1024, MANY = 40, PROMPT_MAX = 4096 };

/* ---- an engine turned by hand ---- */

typedef struct {
    uint64_t now;
    hd_clock clock;
    model *m;
    engine *e;
    session *s[MANY];
    uint32_t n_got[MANY];
    gen_event end[MANY]; /* kind EV_DONE once it is over */
} bench;

static int32_t prompt[PROMPT_MAX];

static uint64_t read_clock(void *ctx) { return *(uint64_t *)ctx; }

static void bench_open(bench *b, const char *script, engine_options opt) {
    hd_err err;
    memset(b, 0, sizeof *b);
    for (int i = 0; i < PROMPT_MAX; i++) prompt[i] = 2 + i % 3;
    b->now = 1000 * SECOND;
    b->clock = (hd_clock){read_clock, &b->now};
    opt.clock = &b->clock;
    opt.manual = true;
    if (!opt.kv_budget_bytes) opt.kv_budget_bytes = 1 << 24;
    if (script_open_memory(&b->m, script, strlen(script), "test", NULL, &err)) fail_msg("%s", err.msg);
    if (engine_open(&b->e, b->m, &opt, &err)) fail_msg("%s", err.msg);
}

static void bench_close(bench *b) {
    for (int i = 0; i < MANY; i++) session_free(b->s[i]);
    engine_close(b->e);
    model_close(b->m);
}

static void ask(bench *b, int i, uint32_t n_prompt, uint32_t max_tokens, gen_priority priority) {
    gen_request r = {.id = "", .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .priority = priority};
    hd_err err;
    sampling_defaults(&r.sampling);
    r.sampling.temperature = 0;
    if (engine_submit(b->e, &r, 1, NULL, NULL, &b->s[i], &err)) fail_msg("request %d: %s", i, err.msg);
}

/* One turn; everything is read, and the pages never exceed the budget. */
static void turn(bench *b) {
    engine_view v = {0};
    gen_event ev;
    engine_turn(b->e);
    engine_look(b->e, &v);
    if (v.kv_bytes_used > v.kv_bytes_total || v.pages_used > v.pages_total)
        fail_msg("%llu bytes of KV, %llu allowed", (unsigned long long)v.kv_bytes_used, (unsigned long long)v.kv_bytes_total);
    for (int i = 0; i < MANY; i++) {
        if (!b->s[i]) continue;
        while (session_next(b->s[i], &ev), ev.kind != EV_NONE) {
            b->n_got[i] += ev.kind == EV_TOKEN;
            if (ev.kind == EV_DONE) b->end[i] = ev;
        }
    }
}

static bool over(const bench *b, int i) { return b->end[i].kind == EV_DONE; }

static bool started(bench *b, int i) {
    row_view rows[MANY];
    engine_view v = {.rows = rows, .cap_rows = MANY};
    engine_look(b->e, &v);
    for (uint32_t k = 0; k < v.n_rows; k++)
        if (!strcmp(rows[k].id, session_id(b->s[i]))) return true;
    return over(b, i);
}

/* ---- (b) scheduling ---- */

/* R008: while a long prompt is read, a running stream gets its token in every single step, and the prompt the rest. */
static void r008_a_long_prompt_shares_every_step(void **state) {
    bench b;
    uint32_t turns = 0;
    (void)state;
    bench_open(&b, "{" VOCAB("8192") "," FOREVER "}", (engine_options){.max_rows = 4, .step_tokens = 64});
    ask(&b, 0, 4, 400, PRIORITY_NORMAL);
    ask(&b, 1, 4, 400, PRIORITY_NORMAL);
    while (b.n_got[0] < 5 || b.n_got[1] < 5) turn(&b);
    ask(&b, 2, 4000, 3, PRIORITY_NORMAL);
    while (!b.n_got[2]) {
        uint32_t before[2] = {b.n_got[0], b.n_got[1]};
        turn(&b);
        turns++;
        for (int i = 0; i < 2; i++)
            if (b.n_got[i] != before[i] + 1) fail_msg("turn %u: stream %d got %u tokens", turns, i, b.n_got[i] - before[i]);
    }
    assert_in_range(turns, 4000 / 64, 4000 / 62 + 2); /* two tokens of 64 went to the streams, the rest to the prompt */
    bench_close(&b);
}

/* R009, R109: four requests of a thousand tokens in a memory of a thousand.  With their caps known they wait for each
 * other; without, they grow and give way.  Everybody gets all that it would get alone, and no page too many is taken. */
static void r009_each_that_fits_alone_is_served(void **state) {
    (void)state;
    for (int named = 0; named < 2; named++) {
        bench b;
        bench_open(&b, "{" VOCAB("1024") "," FOREVER "}",
                   (engine_options){.max_rows = 4, .page_tokens = 16, .kv_budget_bytes = 1024 * TOKEN_BYTES, .default_max_tokens = 8});
        for (int i = 0; i < 4; i++) ask(&b, i, 200, named ? 800 : GEN_NO_CAP, PRIORITY_NORMAL);
        for (int n = 0; n < 20000 && !(over(&b, 0) && over(&b, 1) && over(&b, 2) && over(&b, 3)); n++) turn(&b);
        for (int i = 0; i < 4; i++) {
            assert_true(over(&b, i));
            assert_int_equal(b.end[i].finish, FINISH_LENGTH);
            assert_int_equal(b.n_got[i], named ? 800 : 824);
        }
        bench_close(&b);
    }
}

/* R012: the head of a class waits for memory.  Small ones of its own class behind it wait too, whoever arrives; another
 * class passes it, until it has waited for the ageing time: from then on nobody does, and it runs once there is room. */
static void r012_passed_for_the_ageing_time_and_no_longer(void **state) {
    enum { BIG = 1, SAME = 2, OTHER = 12, AGE = 10 };
    bench b;
    int other = OTHER, same = SAME, passed = 0;
    uint64_t t0;
    (void)state;
    bench_open(&b, "{" VOCAB("4096") "," FOREVER "}", /* all prompts are alike: sharing would make room */
               (engine_options){.max_rows = 8, .page_tokens = 4, .kv_budget_bytes = 400 * TOKEN_BYTES, .age_us = AGE * SECOND,
                                .no_cache = true});
    ask(&b, 0, 160, 80, PRIORITY_NORMAL); /* 60 pages of 100 */
    turn(&b);
    ask(&b, BIG, 160, 40, PRIORITY_NORMAL); /* 50 */
    t0 = b.now;
    while (!over(&b, 0)) {
        uint64_t waited = (b.now += SECOND / 4) - t0;
        if (b.n_got[0] % 3 == 0 && same < OTHER) ask(&b, same++, 2, 2, PRIORITY_NORMAL); /* 1 each, steadily */
        if (b.n_got[0] % 3 == 0 && other < MANY) ask(&b, other++, 2, 2, PRIORITY_LOW);
        turn(&b);
        assert_false(started(&b, BIG));
        for (int i = SAME; i < same; i++) assert_false(started(&b, i));
        if (other == OTHER) continue; /* nobody yet */
        if (waited < AGE * SECOND) assert_true(started(&b, other - 1)); /* at once: there is room */
        else if (other > passed && started(&b, other - 1)) fail_msg("overtaken after %.2f s", (double)waited * 1e-6);
        if (waited < AGE * SECOND) passed = other;
    }
    assert_true(passed > OTHER && other > passed); /* both times were tried */
    turn(&b);
    assert_true(started(&b, BIG));
    for (int n = 0; n < 2000; n++) {
        bool all = true;
        turn(&b);
        for (int i = 0; i < MANY; i++) all &= !b.s[i] || over(&b, i);
        if (all) break;
    }
    for (int i = 0; i < MANY; i++)
        if (b.s[i] && b.end[i].finish != FINISH_LENGTH) fail_msg("request %d did not finish", i);
    bench_close(&b);
}

/* R014: the cap counts generated tokens wherever the prompt ends; the context ends a row openly, and nothing shifts. */
static void r014_the_cap_counts_generated_tokens(void **state) {
    static const uint32_t prompts[] = {1, 63, 64, 65, 512, 513, 900, 1022, 1023};
    (void)state;
    for (size_t k = 0; k < sizeof prompts / sizeof *prompts; k++)
        for (uint32_t page = 4; page <= 64; page *= 16) {
            bench b;
            uint32_t room = 1024 - prompts[k];
            bench_open(&b, "{" VOCAB("1024") "," FOREVER "}", (engine_options){.page_tokens = page, .step_tokens = 100});
            ask(&b, 0, prompts[k], 512, PRIORITY_NORMAL);
            ask(&b, 1, prompts[k], 1, PRIORITY_NORMAL);
            for (int n = 0; n < 2000 && !(over(&b, 0) && over(&b, 1)); n++) turn(&b);
            assert_int_equal(b.n_got[0], room < 512 ? room : 512);
            assert_int_equal(b.end[0].stats.generated_tokens, b.n_got[0]);
            assert_int_equal(b.end[0].finish, FINISH_LENGTH);
            assert_int_equal(b.n_got[1], 1);
            bench_close(&b);
        }
}

/* R013: one step of three seconds.  Every route that only looks answers meanwhile, and cancels are taken. */
static void r013_control_never_waits_for_a_step(void **state) {
    static const char *const paths[] = {"/health", "/metrics", "/v1/models", "/v1/heddle/state"};
    rig r;
    client c;
    json_t *v;
    char json[100], *body;
    int status;
    (void)state;
    rig_open(&r, "{" VOCAB("4096") ",\"step_delay_ms\":3000," FOREVER "}", NULL, NULL);
    assert_true(client_open(&c, r.port) && client_request(&c, "POST", COMPLETE, NULL, "{\"prompt\":\"a b c\",\"max_tokens\":9}"));
    assert_true(rig_wait(&r, "rows", 1, 2000));
    for (int i = 0; i < 12; i++) {
        uint64_t t = now_ms();
        assert_int_equal(client_once(r.port, "GET", paths[i % 4], NULL, NULL, &body), 200);
        if (now_ms() - t > 1000) fail_msg("%s took %d ms", paths[i % 4], (int)(now_ms() - t));
        hd_free(body);
    }
    assert_int_equal(client_once(r.port, "POST", "/tokenize", NULL, "{\"content\":\"one two \"}", &body), 200);
    hd_free(body);
    v = rig_get(&r, "/v1/heddle/state", NULL);
    assert_int_equal(json_integer_value(at(v, "rows.0.prompt_tokens")), 5);
    snprintf(json, sizeof json, "{\"id\":\"%s\"}", str_at(v, "rows.0.id"));
    json_decref(v);
    json_decref(rig_post(&r, "/v1/heddle/cancel", json, &status));
    assert_int_equal(status, 200);
    assert_true(client_finish(&c, 1500)); /* not at the end of the step */
    assert_int_equal(c.status, 499);
    client_close(&c);
    rig_close(&r);
}

/* R010, R015: a prompt that is too long is refused with its numbers before a byte of a stream; one that just fits is read
 * whole, the system prompt in front included. */
static void r010_r015_nothing_is_cut(void **state) {
    static const char *const heads[] = {"{\"prompt\":\"", "{\"messages\":[{\"role\":\"user\",\"content\":\"",
                                        ("{\"messages\":[{\"role\":\"system\",\"content\":\"the code is 7734\"},"
                                         "{\"role\":\"user\",\"content\":\""),
                                        "{\"prompt\":[\"short\",\""};
    static const char *const tails[] = {"\"", "\"}]", "\"}]", "\"]"};
    char *text = malloc(4096), *json = malloc(5000);
    rig r;
    (void)state;
    memset(text, 'w', 2300);
    text[2300] = 0;
    rig_open(&r, "{" VOCAB("2048") "," FOREVER ",\"rules\":[{\"match\":\"7734\",\"emit\":[3,4]}]}", NULL, NULL);
    for (int k = 0; k < 8; k++) {
        const char *path = k / 2 == 1 || k / 2 == 2 ? CHAT : COMPLETE;
        client c;
        char type[80];
        json_t *v;
        snprintf(json, 5000, "%s%s%s%s}", heads[k / 2], text, tails[k / 2], k % 2 ? ",\"stream\":true" : "");
        assert_true(client_open(&c, r.port) && client_request(&c, "POST", path, NULL, json) && client_finish(&c, 5000));
        assert_int_equal(c.status, 400);
        assert_true(client_header(&c, "content-type", type, sizeof type) && !strncmp(type, "application/json", 16));
        v = json_loads(buf_cstr(&c.body), 0, NULL);
        assert_string_equal(str_at(v, "error.code"), "context_length_exceeded");
        assert_true(json_integer_value(at(v, "error.n_prompt_tokens")) >= 2300);
        assert_int_equal(json_integer_value(at(v, "error.n_ctx")), 2048);
        json_decref(v);
        client_close(&c);
    }
    { /* "the code is 7734", a line end, the rest: 17 + 2000 tokens and two to answer with */
        json_t *v;
        int status;
        text[2000] = 0;
        snprintf(json, 5000, "%s%s%s}", heads[2], text, tails[2]);
        v = rig_post(&r, CHAT, json, &status);
        assert_int_equal(status, 200);
        assert_string_equal(str_at(v, "choices.0.message.content"), "one two "); /* the model saw the code */
        assert_in_range(json_integer_value(at(v, "usage.prompt_tokens")), 2017, 2018);
        json_decref(v);
    }
    free(text);
    free(json);
    rig_close(&r);
}

/* R016, R011: far more at once than fit.  The surplus is told when to come back and how long the line is; all that were
 * taken finish; the limit and the refusals can be read. */
static void r016_a_flood_is_paced(void **state) {
    enum { FLOOD = 200, ROWS = 4, QUEUE = 16 };
    static client c[FLOOD];
    engine_options eo = {.max_rows = ROWS, .max_queued = QUEUE};
    server_options so = {.max_planning = 1000}; /* the line itself is the only limit here */
    rig r;
    int ok = 0, refused = 0;
    char *body, line[80];
    (void)state;
    rig_open(&r, "{" VOCAB("4096") ",\"step_delay_ms\":20," FOREVER "}", &so, &eo);
    for (int i = 0; i < FLOOD; i++)
        assert_true(client_open(&c[i], r.port) &&
                    client_request(&c[i], "POST", COMPLETE, NULL, "{\"prompt\":\"a\",\"max_tokens\":50}"));
    for (int i = 0; i < FLOOD; i++) {
        char wait[20];
        assert_true(client_finish(&c[i], 60000));
        if (c[i].status == 200) {
            json_t *v = json_loads(buf_cstr(&c[i].body), 0, NULL);
            assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 50);
            json_decref(v);
            ok++;
        } else {
            assert_int_equal(c[i].status, 429);
            assert_true(client_header(&c[i], "retry-after", wait, sizeof wait) && atoi(wait) >= 1);
            assert_non_null(strstr(buf_cstr(&c[i].body), "\"max_queued\":16"));
            refused++;
        }
        client_close(&c[i]);
    }
    assert_int_equal(ok + refused, FLOOD);
    assert_true(ok >= ROWS + QUEUE);
    assert_true(refused > 0);
    assert_int_equal(client_once(r.port, "GET", "/metrics", NULL, NULL, &body), 200);
    assert_non_null(strstr(body, "heddle:max_queued{"));
    snprintf(line, sizeof line, "} %d\n", refused);
    {
        const char *at0 = strstr(body, "\nheddle:requests_rejected_total{");
        assert_non_null(at0);
        at0 = strchr(at0, '}');
        assert_memory_equal(at0, line, strlen(line));
    }
    hd_free(body);
    rig_close(&r);
}

/* ---- (m) the machine ---- */

/* R103: bound to one processor, one thread is what pays, whatever the machine shows. */
static void r103_the_mask_counts(void **state) {
    cpu_set_t mine;
    pid_t pid;
    int st = -1;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    if (!(pid = fork())) {
        hd_topology t;
        for (int i = 0, seen = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &mine) && seen++) CPU_CLR(i, &mine);
        if (sched_setaffinity(0, sizeof mine, &mine)) _exit(2);
        hd_topology_get(&t);
        _exit(t.threads == 1 && t.cores == 1 && t.logical == 1 ? 0 : 1);
    }
    assert_true(pid > 0 && waitpid(pid, &st, 0) == pid);
    assert_true(WIFEXITED(st));
    assert_int_equal(WEXITSTATUS(st), 0);
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static double cpu_while_waiting(int ms) {
    double t = cpu_s();
    sleep_ms(ms);
    return cpu_s() - t;
}

/* R105: a server that has nothing to do, or nothing it may do, leaves the processors alone.  Real kernels with a crew of
 * threads, after work; then with a kept connection; then with a reader that has stalled and a request behind it. */
static void r105_waiting_costs_nothing(void **state) {
    char dir[] = "/tmp/heddle-load-XXXXXX", path[64];
    engine_options eo = {.max_rows = 1, .kv_budget_bytes = 64 << 20};
    rig r = {0};
    client kept, stalled, behind;
    hd_err err;
    uint64_t end = now_ms() + 20000;
    bool paused = false;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    assert_int_equal(tiny_model_write(tiny_variant_find("q4_k"), NULL, path), 0);
    /* two: no more than most machines have cores, where members spin before they sleep */
    if (model_open(&r.m, path, &(model_options){.n_threads = 2}, &err)) fail_msg("%s", err.msg);
    if (engine_open(&r.e, r.m, &eo, &err)) fail_msg("%s", err.msg);
    if (server_open(&r.s, r.e, r.m, NULL, &err)) fail_msg("%s", err.msg);
    r.port = server_port(r.s);
    assert_true(client_open(&kept, r.port));
    assert_true(client_request(&kept, "POST", COMPLETE, NULL, "{\"prompt\":\"a\",\"max_tokens\":8,\"ignore_eos\":true}"));
    assert_true(client_finish(&kept, 10000));
    assert_int_equal(kept.status, 200);
    sleep_ms(50);
    {
        double used = cpu_while_waiting(1000);
        if (used > 0.1) fail_msg("idle, it used %.3f s in a second", used);
    }
    rig_close(&r);
    client_close(&kept);
    unlink(path);
    rmdir(dir);
    rig_open(&r, "{" VOCAB("1000000") "," FOREVER "}", NULL, &(engine_options){.max_rows = 1, .kv_budget_bytes = 1ull << 31});
    assert_true(client_open(&stalled, r.port) && client_open(&behind, r.port));
    assert_true(client_request(&stalled, "POST", COMPLETE, NULL, "{\"prompt\":\"a\",\"max_tokens\":500000,\"stream\":true}"));
    while (!paused && now_ms() < end) {
        json_t *v = rig_get(&r, "/v1/heddle/state", NULL);
        paused = !strcmp(str_at(v, "rows.0.phase"), "paused");
        json_decref(v);
        sleep_ms(20);
    }
    assert_true(paused);
    assert_true(client_request(&behind, "POST", COMPLETE, NULL, "{\"prompt\":\"a\",\"max_tokens\":8,\"stream\":true}"));
    sleep_ms(50);
    {
        double used = cpu_while_waiting(1000);
        if (used > 0.1) fail_msg("with a stalled reader, it used %.3f s in a second", used);
    }
    client_close(&stalled);
    client_close(&behind);
    rig_close(&r);
}

typedef struct {
    pool_cursor c;
    atomic_int done[2];
} crew;

static void pieces(void *ctx, unsigned member, unsigned n) {
    crew *k = ctx;
    size_t a, b;
    (void)n;
    while (pool_next(&k->c, 1, &a, &b)) {
        /* the busy core's member needs half a second for what takes the other one a millisecond */
        nanosleep(&(struct timespec){0, member ? 1000000 : 500000000}, NULL);
        atomic_fetch_add(&k->done[member], 1);
    }
}

/* R104, R105: with one core busy a step loses that core, not more: its member takes few pieces, the other the rest. */
static void r105_a_slow_member_holds_nobody_up(void **state) {
    pool *p;
    crew k = {0};
    (void)state;
    assert_int_equal(pool_new(&p, 2, NULL), HD_OK);
    pool_cursor_init(&k.c, 100);
    pool_run(p, pieces, &k);
    pool_free(p);
    assert_int_equal(atomic_load(&k.done[0]) + atomic_load(&k.done[1]), 100);
    assert_in_range(atomic_load(&k.done[0]), 1, 10); /* an even split would be 50 */
}

/* ---- (n) stuck and ending ---- */

/* R112, R116: a step that does not end.  /health says so within the time set, the metrics too; the server still answers,
 * whoever waits can leave, and when the one who holds it up goes, all is well again. */
static void r112_r116_a_stuck_step_shows(void **state) {
    engine_options eo = {.max_rows = 4, .stuck_timeout_us = SECOND / 2};
    rig r;
    client c;
    char *body;
    int status = 200;
    uint64_t t;
    (void)state;
    rig_open(&r, "{" VOCAB("4096") ",\"prompt_delay_ms\":1000," FOREVER ",\"rules\":[{\"match\":\"q\",\"emit\":[3]}]}", NULL, &eo);
    assert_int_equal(client_once(r.port, "GET", "/health", NULL, NULL, NULL), 200);
    assert_true(client_open(&c, r.port));
    assert_true(client_request(&c, "POST", COMPLETE, NULL, "{\"prompt\":\"wwwwwwwwwwwwwwwwwwwwwwwwwwwwww\",\"max_tokens\":2}"));
    assert_true(rig_wait(&r, "rows", 1, 2000));
    for (t = now_ms(); status == 200 && now_ms() - t < 5000;) { /* the step takes thirty seconds */
        status = client_once(r.port, "GET", "/health", NULL, NULL, &body);
        if (status == 200) hd_free(body);
        sleep_ms(20);
    }
    assert_int_equal(status, 503);
    assert_non_null(strstr(body, "\"status\":\"failed\""));
    hd_free(body);
    assert_int_equal(client_once(r.port, "GET", "/metrics", NULL, NULL, &body), 200);
    {
        const char *p = strstr(body, "\nvllm:engine_healthy{");
        assert_non_null(p);
        assert_memory_equal(strchr(p, '}'), "} 0\n", 4);
    }
    hd_free(body);
    client_reset(&c);
    assert_true(rig_wait(&r, "rows", 0, 5000)); /* not after thirty seconds */
    assert_int_equal(client_once(r.port, "GET", "/health", NULL, NULL, &body), 200);
    hd_free(body);
    rig_close(&r);
}

/* R113: a drain in the middle of one long step of a long prompt ends at its time, with an error for the client. */
static void r113_a_drain_cuts_a_long_prefill(void **state) {
    engine_options eo = {.step_tokens = 1024};
    rig r;
    client c, later;
    uint64_t t;
    (void)state;
    rig_open(&r, "{" VOCAB("4096") ",\"prompt_delay_ms\":1000," FOREVER "}", NULL, &eo);
    assert_true(client_open(&c, r.port) && client_open(&later, r.port));
    assert_true(client_request(&c, "POST", COMPLETE, NULL, "{\"prompt\":\"wwwwwwwwwwwwwwwwwwwwwwwwwwwwww\",\"stream\":true}"));
    assert_true(rig_wait(&r, "rows", 1, 2000));
    t = now_ms();
    server_drain(r.s, 300000);
    assert_true(client_request(&later, "POST", COMPLETE, NULL, "{\"prompt\":\"a\"}") && client_finish(&later, 2000));
    assert_int_equal(later.status, 503);
    assert_true(client_finish(&c, 10000));
    assert_non_null(strstr(buf_cstr(&c.body), "\"code\":\"shutdown\""));
    while (!server_drained(r.s) && now_ms() - t < 10000) sleep_ms(5);
    assert_true(server_drained(r.s));
    if (now_ms() - t > 5000) fail_msg("it took %d ms", (int)(now_ms() - t)); /* the step would take thirty seconds */
    client_close(&c);
    client_close(&later);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r008_a_long_prompt_shares_every_step),
        cmocka_unit_test(r009_each_that_fits_alone_is_served),
        cmocka_unit_test(r010_r015_nothing_is_cut),
        cmocka_unit_test(r012_passed_for_the_ageing_time_and_no_longer),
        cmocka_unit_test(r013_control_never_waits_for_a_step),
        cmocka_unit_test(r014_the_cap_counts_generated_tokens),
        cmocka_unit_test(r016_a_flood_is_paced),
        cmocka_unit_test(r103_the_mask_counts),
        cmocka_unit_test(r105_waiting_costs_nothing),
        cmocka_unit_test(r105_a_slow_member_holds_nobody_up),
        cmocka_unit_test(r112_r116_a_stuck_step_shows),
        cmocka_unit_test(r113_a_drain_cuts_a_long_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
