/* test_server_control.c - classes and shares, steering, the views (state, metrics, timings), names with NULs, health. */
#include "base/mem.h"
#include "util/server_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAT "/v1/chat/completions"
#define COMPLETE "/v1/completions"
#define EMBED "/v1/embeddings"
#define STEER "/v1/heddle/steer"
enum { AT_ONCE = 1000, SOON = 5000 };

/* "run" never ends; "slow" words cost prompt_delay_ms each. */
#define SCRIPT(more)                                                                                                   \
    "{\"vocab\":[\"<s>\",\"</s>\",\"X\",\"one \",\"two \"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":100000,"    \
    "\"rules\":[{\"match\":\"run\",\"emit\":[2],\"then\":\"loop\"}],\"default\":{\"emit\":[3,4]}" more "}"
static const char slow[] = SCRIPT(",\"step_delay_ms\":5");
static const char slower[] = SCRIPT(",\"step_delay_ms\":25"); /* also for a test that waits for its core */
static const char quick[] = SCRIPT("");

static int status_of(rig *r, const char *path, const char *json, const char *param) {
    int status;
    json_t *v = rig_post(r, path, json, &status);
    if (param && strcmp(str_at(v, "error.param"), param) != 0) fail_msg("%s: param is '%s': %s", json, str_at(v, "error.param"), str_at(v, "error.message"));
    json_decref(v);
    return status;
}

static void priorities(void **state) {
    static const char *const good[] = {"\"high\"", "\"normal\"", "\"low\"", "-1", "0", "1", "1.0", "null"};
    static const char *const bad[] = {"\"High\"", "\"\"", "\"low\\u0000\"", "2", "-2", "0.5", "true", "[]", "{}", "\"0\"", "1e300"};
    char json[200];
    rig r;
    (void)state;
    rig_open(&r, quick, NULL, NULL);
    for (int k = 0; k < 3; k++) {
        static const struct {
            const char *path, *body;
        } routes[] = {{CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"X\"}]"}, {COMPLETE, "\"prompt\":\"X\""}, {EMBED, "\"input\":\"X\""}};
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            snprintf(json, sizeof json, "{%s,\"priority\":%s}", routes[k].body, good[i]);
            assert_int_equal(status_of(&r, routes[k].path, json, NULL), 200);
        }
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            snprintf(json, sizeof json, "{%s,\"priority\":%s}", routes[k].body, bad[i]);
            if (status_of(&r, routes[k].path, json, "priority") != 400) fail_msg("%s was taken", json);
        }
        snprintf(json, sizeof json, "{%s,\"user\":5}", routes[k].body);
        assert_int_equal(status_of(&r, routes[k].path, json, "user"), 400);
        snprintf(json, sizeof json, "{%s,\"user\":\"a\\u0000b\"}", routes[k].body);
        assert_int_equal(status_of(&r, routes[k].path, json, NULL), 200);
    }
    rig_close(&r);
}

static void ask(client *c, rig *r, const char *extra, const char *json) {
    assert_true(client_open(c, r->port) && client_request(c, "POST", COMPLETE, extra, json));
}

/* One runs, the others wait: the urgent come first, and the state and the metrics say who waits and why. */
static void classes_in_the_line(void **state) {
    static const char *const order[] = {"high", "normal", "low"};
    engine_options eo = {.max_rows = 1};
    client busy, c[3];
    json_t *v;
    char json[200], *body;
    rig r;
    (void)state;
    rig_open(&r, slow, NULL, &eo);
    ask(&busy, &r, NULL, "{\"prompt\":\"run\",\"stream\":true,\"priority\":-1}"); /* gives way to nobody */
    assert_true(client_until(&busy, "id: 3", SOON));
    for (int i = 2; i >= 0; i--) {
        snprintf(json, sizeof json, "{\"prompt\":\"run\",\"max_tokens\":60,\"priority\":\"%s\",\"user\":\"evil\\\"label-%d\"}", order[i], i);
        ask(&c[i], &r, NULL, json);
        assert_true(rig_wait(&r, "queue", 3 - i, SOON));
    }
    v = rig_get(&r, "/v1/heddle/state", NULL);
    assert_string_equal(str_at(v, "rows.0.method"), "autoregressive");
    assert_string_equal(str_at(v, "rows.0.priority"), "high");
    assert_int_equal(json_integer_value(at(v, "rows.0.prompt_done")), 3);
    assert_true(json_is_integer(at(v, "rows.0.preemptions")));
    assert_true(json_is_number(at(v, "step.ms_max")));
    assert_int_equal(json_integer_value(at(v, "leases_waiting")), 0);
    assert_int_equal(json_integer_value(at(v, "limits.max_rows")), 1);
    for (int i = 0; i < 3; i++) {
        json_t *q = json_array_get(json_object_get(v, "queue"), (size_t)i);
        assert_string_equal(str_at(q, "priority"), order[i]);
        assert_string_equal(str_at(q, "phase"), "queued");
        assert_string_equal(str_at(q, "method"), "autoregressive");
        assert_true(str_at(q, "reason")[0]);
        assert_true(json_is_integer(at(q, "waited_ms")) && json_is_integer(at(q, "expected_wait_ms")));
    }
    json_decref(v);
    assert_int_equal(client_once(r.port, "GET", "/metrics", NULL, NULL, &body), 200);
    for (int i = 0; i < 3; i++) {
        snprintf(json, sizeof json, ",priority=\"%s\"} 1\n", order[i]);
        assert_non_null(strstr(body, json));
    }
    assert_non_null(strstr(body, "heddle:queue_reasons{"));
    assert_non_null(strstr(body, "heddle:faults_contained_total{"));
    assert_non_null(strstr(body, "heddle:exclusive_jobs_total{"));
    assert_null(strstr(body, "evil"));
    hd_free(body);
    client_close(&busy);
    for (int i = 0; i < 3; i++) { /* each ends before the next one */
        assert_true(client_finish(&c[i], SOON));
        assert_int_equal(c[i].status, 200);
        for (int k = i + 2; k < 3; k++) assert_false(client_head(&c[k], 1));
        client_close(&c[i]);
    }
    rig_close(&r);
}

/* Two users of one key take turns, whoever asked first and more. */
static void fair_shares(void **state) {
    static const char *const keys[] = {"sesame"};
    static const char auth[] = "Authorization: Bearer sesame\r\n";
    server_options so = {.api_keys = keys, .n_api_keys = 1};
    engine_options eo = {.max_rows = 1};
    client busy, many[6], few;
    rig r;
    int before = 0;
    char *body;
    (void)state;
    rig_open(&r, slow, &so, &eo);
    ask(&busy, &r, auth, "{\"prompt\":\"run\",\"max_tokens\":300,\"user\":\"a\"}");
    sleep_ms(50);
    for (int i = 0; i < 6; i++) ask(&many[i], &r, auth, "{\"prompt\":\"run\",\"max_tokens\":40,\"user\":\"a\"}");
    sleep_ms(100);
    ask(&few, &r, auth, "{\"prompt\":\"run\",\"max_tokens\":5,\"user\":\"b\"}");
    assert_true(client_finish(&few, SOON));
    assert_int_equal(few.status, 200);
    for (int i = 0; i < 6; i++) before += client_head(&many[i], 1);
    assert_true(before <= 2); /* in order of arrival all six would be over */
    assert_int_equal(client_once(r.port, "GET", "/v1/heddle/state", auth, NULL, &body), 200);
    assert_null(strstr(body, "sesame"));
    hd_free(body);
    client_close(&busy);
    client_close(&few);
    for (int i = 0; i < 6; i++) client_close(&many[i]);
    rig_close(&r);
}

/* The id of the only row. */
static void row_id(rig *r, char id[100]) {
    json_t *v;
    assert_true(rig_wait(r, "rows", 1, SOON));
    v = rig_get(r, "/v1/heddle/state", NULL);
    snprintf(id, 100, "%s", str_at(v, "rows.0.id"));
    json_decref(v);
}

static int steer(rig *r, const char *id, const char *fields, const char *param, bool *did) {
    char json[1600];
    int status;
    json_t *v;
    snprintf(json, sizeof json, "{\"id\":\"%s\"%s}", id, fields);
    v = rig_post(r, STEER, json, &status);
    if (did) *did = json_is_true(at(v, "steered"));
    if (status == 200) assert_string_equal(str_at(v, "id"), id);
    if (param) assert_string_equal(str_at(v, "error.param"), param);
    json_decref(v);
    return status;
}

static void steering(void **state) {
    client c;
    json_t *v;
    char id[100];
    const char *text, *hit;
    bool did;
    rig r;
    (void)state;
    rig_open(&r, slow, NULL, NULL);
    /* raise the cap, force tokens by id and by text; then the new cap ends it */
    ask(&c, &r, NULL, "{\"prompt\":\"run\",\"max_tokens\":150}");
    row_id(&r, id);
    assert_int_equal(steer(&r, id, ",\"max_tokens\":200", NULL, &did), 200);
    assert_true(did);
    assert_int_equal(steer(&r, id, ",\"force_ids\":[3,4,4],\"priority\":\"low\"", NULL, &did), 200);
    assert_true(did);
    for (did = false; !did; sleep_ms(5)) { /* before the next token */
        v = rig_get(&r, "/v1/heddle/state", NULL);
        if (!json_array_size(at(v, "rows"))) fail_msg("the row is over with its old priority");
        did = !strcmp(str_at(v, "rows.0.priority"), "low");
        json_decref(v);
    }
    assert_int_equal(steer(&r, id, ",\"end_reasoning\":\"two one \"", NULL, &did), 200);
    assert_true(client_finish(&c, SOON));
    v = json_loads(c.body.data, 0, NULL);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "length");
    assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 200);
    text = str_at(v, "choices.0.text");
    assert_non_null(hit = strstr(text, "one two two "));
    assert_non_null(strstr(hit + 12, "two one "));
    json_decref(v);
    client_close(&c);
    /* over */
    assert_int_equal(steer(&r, id, ",\"stop\":true", NULL, &did), 200);
    assert_false(did);
    /* a closing marker is a control token, and one that ends the generation does so */
    assert_true(rig_wait(&r, "rows", 0, SOON)); /* the last one is out of the view */
    ask(&c, &r, NULL, "{\"prompt\":\"run\",\"max_tokens\":90000}");
    row_id(&r, id);
    assert_int_equal(steer(&r, id, ",\"end_reasoning\":\"two </s>\"", NULL, &did), 200);
    assert_true(did);
    assert_true(client_finish(&c, SOON));
    v = json_loads(c.body.data, 0, NULL);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    text = str_at(v, "choices.0.text");
    assert_true(strlen(text) >= 4 && !strcmp(text + strlen(text) - 4, "two "));
    json_decref(v);
    client_close(&c);
    /* stop all choices of a request */
    ask(&c, &r, NULL, "{\"prompt\":\"run\",\"n\":3}");
    assert_true(rig_wait(&r, "rows", 3, SOON));
    v = rig_get(&r, "/v1/heddle/state", NULL);
    snprintf(id, sizeof id, "%s", str_at(v, "rows.0.id"));
    json_decref(v);
    assert_int_equal(steer(&r, id, ",\"stop\":true", NULL, &did), 200);
    assert_true(did);
    assert_true(client_finish(&c, AT_ONCE));
    assert_int_equal(c.status, 200);
    v = json_loads(c.body.data, 0, NULL);
    assert_int_equal(json_array_size(at(v, "choices")), 3);
    for (size_t i = 0; i < 3; i++) assert_string_equal(str_at(json_array_get(at(v, "choices"), i), "finish_reason"), "stop");
    json_decref(v);
    client_close(&c);
    rig_close(&r);
}

static void steering_refused(void **state) {
    static const struct {
        const char *fields, *param;
        int status;
    } cases[] = {
        {"", NULL, 400},
        {",\"stop\":false", NULL, 400},
        {",\"stop\":1", "stop", 400},
        {",\"max_tokens\":0", "max_tokens", 400},
        {",\"max_tokens\":\"9\"", "max_tokens", 400},
        {",\"priority\":3", "priority", 400},
        {",\"force_ids\":[]", "force_ids", 400},
        {",\"force_ids\":[-1]", "force_ids", 400},
        {",\"force_ids\":[100000]", "force_ids", 400},
        {",\"force_ids\":[3,\"x\"]", "force_ids", 400},
        {",\"force_ids\":[3],\"end_reasoning\":\"X\"", "force_ids", 400},
        {",\"end_reasoning\":\"\"", "end_reasoning", 400},
        {",\"end_reasoning\":7", "end_reasoning", 400},
    };
    client c;
    char id[100], many[400] = ",\"force_ids\":[2";
    rig r;
    (void)state;
    rig_open(&r, slower, NULL, NULL);
    ask(&c, &r, NULL, "{\"prompt\":\"run\",\"stream\":true}");
    row_id(&r, id);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (steer(&r, id, cases[i].fields, cases[i].param, NULL) != cases[i].status) fail_msg("%s", cases[i].fields);
    for (int i = 1; i < 64; i++) strcat(many, ",2");
    strcat(many, "]");
    assert_int_equal(steer(&r, id, many, NULL, NULL), 200);
    assert_int_equal(steer(&r, id, many, "force_ids", NULL), 409); /* 64 of them take longer than this */
    many[strlen(many) - 1] = 0;
    strcat(many, ",2]");
    assert_int_equal(steer(&r, id, many, "force_ids", NULL), 400);
    assert_int_equal(steer(&r, "cmpl-nobody", ",\"stop\":true", "id", NULL), 404);
    assert_int_equal(steer(&r, "", ",\"stop\":true", "id", NULL), 400);
    client_close(&c);
    rig_close(&r);
}

/* Forced tokens go to all choices of a request or to none: one that waits still has those of before. */
static void forced_for_all_or_none(void **state) {
    engine_options eo = {.max_rows = 1};
    char id[100], ones[400] = ",\"force_ids\":[3", twos[400] = ",\"force_ids\":[4";
    client c;
    json_t *v;
    long done;
    rig r;
    (void)state;
    for (int i = 1; i < 40; i++) strcat(ones, ",3"), strcat(twos, ",4");
    strcat(ones, "]"), strcat(twos, "]");
    rig_open(&r, slow, NULL, &eo);
    ask(&c, &r, NULL, "{\"prompt\":\"run\",\"n\":2,\"max_tokens\":150}");
    row_id(&r, id);
    assert_int_equal(steer(&r, id, ones, NULL, NULL), 200);
    do { /* the first takes its 40 */
        sleep_ms(5);
        v = rig_get(&r, "/v1/heddle/state", NULL);
        done = (long)json_integer_value(at(v, "rows.0.generated_tokens"));
        assert_int_equal(json_array_size(at(v, "queue")), 1);
        json_decref(v);
    } while (done < 45);
    assert_int_equal(steer(&r, id, twos, "force_ids", NULL), 409); /* the second has room for 24 */
    assert_true(client_finish(&c, 3 * SOON));
    v = json_loads(c.body.data, 0, NULL);
    for (size_t i = 0; i < 2; i++) {
        const char *text = str_at(json_array_get(at(v, "choices"), i), "text");
        assert_non_null(strstr(text, "one one "));
        assert_null(strstr(text, "two "));
    }
    json_decref(v);
    client_close(&c);
    rig_close(&r);
}

/* An urgent request takes the only row; who gave way waits in the queue, is called preempted, and ends as if alone. */
static void giving_way(void **state) {
    engine_options eo = {.max_rows = 1};
    enum { TOKENS = 800 };
    client a, b;
    json_t *v, *x;
    const char *text;
    bool seen = false;
    rig r;
    (void)state;
    rig_open(&r, slow, NULL, &eo);
    ask(&a, &r, NULL, "{\"prompt\":\"run X\",\"max_tokens\":800,\"timings_per_token\":true}");
    assert_true(rig_wait(&r, "rows", 1, SOON));
    ask(&b, &r, NULL, "{\"prompt\":\"run\",\"stream\":true,\"priority\":\"high\"}");
    for (uint64_t end = now_ms() + SOON; !seen && now_ms() < end; sleep_ms(5)) {
        v = rig_get(&r, "/v1/heddle/state", NULL);
        seen = !strcmp(str_at(v, "queue.0.phase"), "preempted") && !strcmp(str_at(v, "rows.0.priority"), "high");
        json_decref(v);
    }
    assert_true(seen);
    client_close(&b);
    assert_true(client_finish(&a, 3 * SOON));
    x = json_loads(a.body.data, 0, NULL);
    text = str_at(x, "choices.0.text");
    assert_int_equal(strlen(text), TOKENS); /* what the script says: X and X again */
    assert_int_equal(strspn(text, "X"), TOKENS);
    assert_int_equal(json_integer_value(at(x, "timings.preemptions")), 1);
    assert_true(json_number_value(at(x, "timings.preempted_ms")) > 0);
    json_decref(x);
    client_close(&a);
    rig_close(&r);
}

static void timings(void **state) {
    static const char *const keys[] = {"queue_ms", "prefill_ms", "decode_ms", "gap_p50_ms", "gap_p99_ms", "paused_ms", "preempted_ms", "preemptions"};
    rig r;
    json_t *v;
    double p50, p99;
    char *body;
    (void)state;
    rig_open(&r, slow, NULL, NULL);
    v = rig_post(&r, COMPLETE, "{\"prompt\":\"run\",\"max_tokens\":20,\"timings_per_token\":true}", NULL);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_is_number(json_object_get(at(v, "timings"), keys[i]))) fail_msg("no %s", keys[i]);
    p50 = json_number_value(at(v, "timings.gap_p50_ms"));
    p99 = json_number_value(at(v, "timings.gap_p99_ms"));
    assert_true(p50 >= 4 && p99 >= p50); /* a step sleeps 5 ms; to within 10 % */
    assert_true(json_number_value(at(v, "timings.decode_ms")) >= 19 * 4.5);
    json_decref(v);
    v = rig_post(&r, COMPLETE, "{\"prompt\":\"run\",\"max_tokens\":2}", NULL);
    assert_null(at(v, "timings"));
    json_decref(v);
    assert_int_equal(client_once(r.port, "GET", "/metrics", NULL, NULL, &body), 200);
    assert_non_null(strstr(body, "heddle:inter_token_p50_seconds_bucket{"));
    assert_non_null(strstr(body, "heddle:inter_token_p99_seconds_count{"));
    hd_free(body);
    rig_close(&r);
}

/* A name with a NUL behind it is not that name. */
static void names_with_nuls(void **state) {
    static const char *const names[] = {"gpt-4"};
    server_options so = {.aliases = names, .n_aliases = 1};
    static const struct {
        const char *path, *json, *param;
    } cases[] = {
        {CHAT, "{\"model\":\"gpt-4\\u0000x\",\"messages\":[{\"role\":\"user\",\"content\":\"X\"}]}", "model"},
        {CHAT, "{\"model\":\"\\u0000x\",\"messages\":[{\"role\":\"user\",\"content\":\"X\"}]}", "model"},
        {CHAT, "{\"messages\":[{\"role\":\"user\\u0000x\",\"content\":\"X\"}]}", "messages[0].role"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000\",\"text\":\"X\"}]}]}", NULL},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"X\"}],\"tool_choice\":\"auto\\u0000\"}", "tool_choice"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"X\"}],\"response_format\":{\"type\":\"text\\u0000\"}}", NULL},
        {EMBED, "{\"input\":\"X\",\"encoding_format\":\"float\\u0000\"}", "encoding_format"},
        {EMBED, "{\"input\":\"X\",\"pooling\":\"last\\u0000\"}", "pooling"},
        {"/v1/heddle/cancel", "{\"id\":\"x\\u0000\"}", "id"},
        {STEER, "{\"id\":\"x\\u0000\",\"stop\":true}", "id"},
    };
    rig r;
    (void)state;
    rig_open(&r, quick, &so, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (status_of(&r, cases[i].path, cases[i].json, cases[i].param) != 400) fail_msg("%s was taken", cases[i].json);
    assert_int_equal(status_of(&r, CHAT, "{\"model\":\"gpt-4\",\"messages\":[{\"role\":\"user\",\"content\":\"X\\u0000X\"}]}", NULL), 200);
    rig_close(&r);
}

/* Health: its status, and how long it took: never as long as the steps of these tests. */
static int health_after(rig *r, const char *want, uint64_t *ms) {
    char *body;
    uint64_t t = now_ms();
    int st = client_once(r->port, "GET", "/health", NULL, NULL, &body);
    *ms = now_ms() - t;
    assert_true(*ms < 1000);
    if (want && !strstr(body, want)) st = -1;
    hd_free(body);
    return st;
}

static int health(rig *r, const char *want) {
    uint64_t ms;
    return health_after(r, want, &ms);
}

static bool health_becomes(rig *r, int status, const char *want, int timeout_ms) {
    uint64_t end = now_ms() + (uint64_t)timeout_ms;
    while (health(r, want) != status) {
        if (now_ms() > end) return false;
        sleep_ms(10);
    }
    return true;
}

/* A step that takes longer than the deadline: failed while it lasts, ok again when it is over; nobody is cut. */
static void health_of_a_stuck_engine(void **state) {
    static const char stuck[] = SCRIPT(",\"step_delay_ms\":1500");
    engine_options eo = {.stuck_timeout_us = 400000};
    client c;
    rig r;
    (void)state;
    rig_open(&r, stuck, NULL, &eo);
    assert_int_equal(health(&r, "\"status\":\"ok\""), 200);
    ask(&c, &r, NULL, "{\"prompt\":\"run\",\"max_tokens\":2}");
    assert_true(health_becomes(&r, 503, "\"status\":\"failed\"", SOON));
    assert_true(health_becomes(&r, 200, "\"status\":\"ok\"", SOON));
    assert_true(client_finish(&c, 3 * SOON));
    assert_int_equal(c.status, 200);
    assert_true(health_becomes(&r, 200, "\"status\":\"ok\"", SOON)); /* the engine tells its end after the last token */
    client_close(&c);
    rig_close(&r);
}

/* A long prefill is no reason to fail, and no reason to wait for an answer: health answers within 100 ms (the contract)
 * in the middle of steps of 800 ms.
 *
 * One answer may take longer where the whole machine stands still for a moment, so the middle one of eleven counts; and on a
 * machine that is busy for long, the best of three such rounds.  An answer that waited for the step would take most of 800
 * ms each time, as each question comes soon after an answer: no round would come near. */
static void health_during_prefill(void **state) {
    enum { WORDS = 3000, ROUND = 11, ROUNDS = 3, CONTRACT_MS = 100 };
    static const char reading[] = SCRIPT(",\"prompt_delay_ms\":25");
    static char json[4 * WORDS + 100] = "{\"prompt\":\"run ";
    engine_options eo = {.stuck_timeout_us = 10000000, .step_tokens = 32};
    uint64_t best = UINT64_MAX;
    client c;
    json_t *v;
    size_t n = strlen(json);
    rig r;
    (void)state;
    rig_open(&r, reading, NULL, &eo);
    for (int i = 0; i < WORDS; i++, n += 4) memcpy(json + n, "one ", 5);
    memcpy(json + n, "\",\"max_tokens\":1,\"stream\":true}", 32);
    ask(&c, &r, NULL, json);
    assert_true(rig_wait(&r, "rows", 1, SOON));
    for (int round = 0; round < ROUNDS && best > CONTRACT_MS; round++) {
        uint64_t ms[ROUND], middle = 0;
        for (int i = 0; i < ROUND; i++) {
            int k = i;
            uint64_t t;
            assert_int_equal(health_after(&r, "\"status\":\"ok\"", &t), 200);
            for (; k && ms[k - 1] > t; k--) ms[k] = ms[k - 1];
            ms[k] = t;
            sleep_ms(30); /* another moment of the step */
        }
        middle = ms[ROUND / 2];
        if (middle > CONTRACT_MS) print_message("half of the answers took longer than %d ms\n", (int)middle);
        if (middle < best) best = middle;
    }
    assert_true(best <= CONTRACT_MS);
    v = rig_get(&r, "/v1/heddle/state", NULL); /* it was read all the time */
    assert_string_equal(str_at(v, "rows.0.phase"), "prefill");
    json_decref(v);
    client_close(&c);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(priorities),
        cmocka_unit_test(classes_in_the_line),
        cmocka_unit_test(fair_shares),
        cmocka_unit_test(steering),
        cmocka_unit_test(steering_refused),
        cmocka_unit_test(forced_for_all_or_none),
        cmocka_unit_test(giving_way),
        cmocka_unit_test(timings),
        cmocka_unit_test(names_with_nuls),
        cmocka_unit_test(health_of_a_stuck_engine),
        cmocka_unit_test(health_during_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
