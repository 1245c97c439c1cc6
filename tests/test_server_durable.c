/* test_server_durable.c - durable requests within one process life: keys, replays, viewers, detaching, the stored ones. */
#include "base/mem.h"
#include "util/durable_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HI "{" MSG("hello") "}"

/* A repeat gives the same bytes, streamed or not, from the log or by id; a stream goes on behind any of its events. */
static void replays(void **state) {
    drig d;
    char *once, *again, *stream, *other, id[64], path[120];
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    once = ask_good(&d, CHAT, "k", NULL, HI);
    assert_non_null(strstr(once, "Hi there"));
    again = ask_good(&d, CHAT, "k", NULL, HI);
    assert_string_equal(once, again);
    id_of(once, id);
    snprintf(path, sizeof path, CHAT "/%s", id);
    other = ask_good(&d, path, NULL, NULL, NULL);
    assert_string_equal(once, other);
    stream = ask_good(&d, CHAT, "k", NULL, "{\"stream\":true,\"stream_options\":{\"include_usage\":true}," MSG("hello") "}");
    check_numbers(stream, 0);
    assert_non_null(strstr(stream, id));
    for (int n = 0; n < 5; n++) { /* role, two tokens, finish, usage */
        char last[60], *rest;
        snprintf(last, sizeof last, "Last-Event-ID: %d\r\n", n);
        rest = ask_good(&d, CHAT, "k", last, "{\"stream_options\":{\"include_usage\":true},\"stream\":true," MSG("hello") "}");
        assert_string_equal(rest, behind(stream, n));
        hd_free(rest);
        { /* as a browser's EventSource comes back, with the URL it began with */
            char by_id[200], *without = ask_good(&d, (snprintf(by_id, sizeof by_id, "%s?stream=true", path), by_id), NULL, last, NULL);
            check_numbers(without, n + 1);
            hd_free(without);
            snprintf(by_id, sizeof by_id, "%s?stream=true&starting_after=0", path);
            without = ask_good(&d, by_id, NULL, last, NULL);
            check_numbers(without, n + 1);
            hd_free(without);
        }
    }
    assert_null(strstr(stream, "id: 5\n"));
    hd_free(once);
    hd_free(again);
    hd_free(other);
    hd_free(stream);
    assert_true(durable_is(&d, "running", 0));
    assert_int_equal(durable_now(&d, "stored"), 1);
    assert_true(rig_wait(&d.r, "planned_bytes", 0, 2000)); /* readers leave nothing behind */
    drig_close(&d);
}

/* What is the same request, and what is not. */
static void conflicts(void **state) {
    static const char *const keys[] = {"one", "two"};
    server_options so = {.api_keys = keys, .n_api_keys = 2};
    drig d;
    char *a, *b, id[64], path[120], *body;
    int status;
    (void)state;
    drig_open(&d, durable_script, &so, NULL);
    a = ask_good(&d, COMPLETE, "k", "x-api-key: one\r\n", "{\"prompt\":\"x\",\"seed\":3,\"max_tokens\":4}");
    b = ask_good(&d, COMPLETE, "k", "x-api-key: one\r\n", " {\"max_tokens\" : 4,\n\"stream\":false,\"seed\":3, \"prompt\":\"x\"}");
    assert_string_equal(a, b);
    body = ask(&d, "POST", COMPLETE, "k", "x-api-key: one\r\n", "{\"prompt\":\"x\",\"seed\":4,\"max_tokens\":4}", &status);
    assert_int_equal(status, 409);
    assert_non_null(strstr(body, "idempotency_conflict"));
    hd_free(body);
    body = ask(&d, "POST", CHAT, "k", "x-api-key: one\r\n", HI, &status); /* another route */
    assert_int_equal(status, 409);
    hd_free(body);
    id_of(a, id);
    snprintf(path, sizeof path, COMPLETE "/%s", id);
    for (int k = 0; k < 2; k++) { /* another key sees nothing of it, and may use the same words */
        static const char *const methods[] = {"GET", "DELETE"};
        body = ask(&d, methods[k], path, NULL, "x-api-key: two\r\n", NULL, &status);
        assert_int_equal(status, 404);
        hd_free(body);
    }
    hd_free(b);
    b = ask_good(&d, COMPLETE, "k", "x-api-key: two\r\n", "{\"prompt\":\"other\",\"max_tokens\":4}");
    assert_true(strcmp(a, b) != 0);
    hd_free(a);
    hd_free(b);
    snprintf(path, sizeof path, CHAT "/%s", id); /* of another kind */
    body = ask(&d, "GET", path, NULL, "x-api-key: one\r\n", NULL, &status);
    assert_int_equal(status, 404);
    hd_free(body);
    drig_close(&d);
}

static void bad_headers(void **state) {
    drig d;
    char key[300], *body;
    int status;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    memset(key, 'k', sizeof key);
    key[256] = 0;
    assert_string_equal(ask_bad(&d, "POST", CHAT, key, HI, 400), "invalid_value");
    for (int blank = 0; blank < 2; blank++) { /* asked for, and not said: not a request without one */
        body = ask(&d, "POST", CHAT, NULL, blank ? "Idempotency-Key:  \t\r\n" : "Idempotency-Key:\r\n", HI, &status);
        assert_int_equal(status, 400);
        assert_non_null(strstr(body, "\"param\":\"Idempotency-Key\""));
        hd_free(body);
    }
    key[255] = 0;
    hd_free(ask_good(&d, CHAT, key, NULL, HI));
    for (int get = 0; get < 2; get++) {
        body = ask(&d, get ? "GET" : "POST", get ? CHAT "/chatcmpl-none" : CHAT, get ? NULL : "k", "Last-Event-ID: x1\r\n", get ? NULL : HI, &status);
        assert_int_equal(status, 400);
        assert_non_null(strstr(body, "\"param\":\"Last-Event-ID\""));
        hd_free(body);
    }
    hd_free(ask_good(&d, CHAT, "sp", NULL, HI)); /* the same key, with and without white space behind it */
    body = ask(&d, "POST", CHAT, "sp ", NULL, "{" MSG("other") "}", &status);
    assert_int_equal(status, 409);
    hd_free(body);
    memset(key, 'x', 200);
    key[200] = 0;
    {
        char path[400];
        snprintf(path, sizeof path, CHAT "/%s", key); /* what was asked for is named */
        body = ask(&d, "GET", path, NULL, NULL, NULL, &status);
        assert_int_equal(status, 404);
        assert_non_null(strstr(body, "'xxx"));
        hd_free(body);
    }
    assert_string_equal(ask_bad(&d, "GET", CHAT "/chatcmpl-none", NULL, NULL, 404), "not_found");
    assert_string_equal(ask_bad(&d, "GET", CHAT "/chatcmpl-none?starting_after=x", NULL, NULL, 400), "invalid_value");
    assert_string_equal(ask_bad(&d, "DELETE", CHAT "/chatcmpl-none", NULL, NULL, 404), "not_found");
    assert_string_equal(ask_bad(&d, "PUT", CHAT "/chatcmpl-none", NULL, NULL, 405), "method_not_allowed");
    /* A request that is wrong leaves its key free. */
    assert_string_equal(ask_bad(&d, "POST", CHAT, "free", "{" MSG("hello") ",\"temperature\":-1}", 400), "invalid_value");
    hd_free(ask_good(&d, CHAT, "free", NULL, HI));
    drig_close(&d);
}

/* Its client leaves: it goes on, and another finds all of it, while it runs and afterwards. */
static void detached(void **state) {
    static const char json[] = "{\"stream\":true,\"max_tokens\":600,\"seed\":1," MSG("long") "}";
    drig d;
    client c;
    char *all, *later, id[64], cancel[100];
    json_t *v;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    begin(&c, &d, CHAT, "k", json, "id: 20\n");
    id_of(buf_cstr(&c.body), id);
    v = rig_get(&d.r, "/v1/heddle/state", NULL);
    assert_true(json_is_true(at(v, "rows.0.durable")));
    json_decref(v);
    client_reset(&c);
    sleep_ms(50);
    assert_int_equal(durable_now(&d, "running"), 1);
    assert_int_equal(durable_now(&d, "viewers"), 0);
    all = ask_good(&d, CHAT, "k", NULL, json);
    check_numbers(all, 0);
    later = ask_good(&d, CHAT, "k", NULL, json);
    assert_string_equal(all, later);
    snprintf(cancel, sizeof cancel, "{\"id\":\"%s\"}", id); /* known, and over */
    v = rig_post(&d.r, "/v1/heddle/cancel", cancel, NULL);
    assert_true(json_is_false(at(v, "cancelled")));
    json_decref(v);
    hd_free(all);
    hd_free(later);
    drig_close(&d);
}

/* A viewer that reads nothing stops nobody: the generation ends, far beyond what memory keeps of it. */
static void slow_viewer(void **state) {
    static const char json[] = "{\"stream\":true,\"max_tokens\":2000,\"seed\":1,\"logprobs\":true,\"top_logprobs\":20," MSG("fast") "}";
    static const char script[] =
        "{\"vocab\":[\"<s>\",\"</s>\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":40000,"
        "\"default\":{\"emit\":[\"abcdefghij\"],\"then\":\"loop\"}}";
    drig d;
    client c;
    char *all;
    (void)state;
    drig_open(&d, script, NULL, NULL);
    begin(&c, &d, CHAT, "k", json, "id: 3\n"); /* and reads no more */
    assert_true(durable_is(&d, "running", 0));
    all = ask_good(&d, CHAT, "k", NULL, json);
    check_numbers(all, 0);
    assert_true(client_finish(&c, LONG_DONE));
    assert_string_equal(buf_cstr(&c.body), all);
    client_close(&c);
    assert_int_equal(durable_now(&d, "lost"), 0);
    hd_free(all);
    drig_close(&d);
}

typedef struct {
    drig *d;
    char *body;
    int status;
} racer;

static void *race(void *arg) {
    racer *r = arg;
    r->body = ask(r->d, "POST", CHAT, "race", NULL, "{\"max_tokens\":50," MSG("long") "}", &r->status);
    return NULL;
}

/* Equal requests at once are one. */
static void races(void **state) {
    enum { N = 8 };
    server_options so = {.n_planners = 4};
    drig d;
    (void)state;
    drig_open(&d, durable_script, &so, NULL);
    for (int round = 0; round < 5; round++) {
        racer r[N];
        pthread_t t[N];
        char id[64], path[100];
        int status;
        for (int i = 0; i < N; i++) {
            r[i].d = &d;
            assert_int_equal(pthread_create(&t[i], NULL, race, &r[i]), 0);
        }
        for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
        for (int i = 0; i < N; i++) {
            if (r[i].status != 200) fail_msg("%d %s", r[i].status, r[i].body);
            assert_string_equal(r[i].body, r[0].body);
        }
        id_of(r[0].body, id);
        for (int i = 0; i < N; i++) hd_free(r[i].body);
        assert_true(durable_is(&d, "running", 0));
        assert_int_equal(durable_now(&d, "stored"), 1);
        assert_true(rig_wait(&d.r, "rows", 0, LONG_DONE)); /* the others' rows are gone */
        snprintf(path, sizeof path, CHAT "/%s", id);
        hd_free(ask(&d, "DELETE", path, NULL, NULL, NULL, &status));
        assert_int_equal(status, 200);
    }
    drig_close(&d);
}

/* Choices, echo, log-probabilities, stop strings: the stored answer is the one of an ordinary request, in an order of its own. */
static void many_choices(void **state) {
    static const char *const fields[] = {
        "\"prompt\":[\"long a\",\"hello\"],\"n\":3,\"max_tokens\":9,\"logprobs\":2,\"echo\":true",
        "\"prompt\":\"long\",\"n\":20,\"max_tokens\":6,\"temperature\":1.5,\"echo\":true,\"return_token_ids\":true",
        "\"prompt\":\"long\",\"stop\":[\"hi\",\"zz\"],\"logprobs\":0,\"max_tokens\":40",
        "\"prompt\":\"hello\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0",
    };
    drig d;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char plain[400], stream[400], key[20], *a, *b, *s, *s2;
        json_t *va, *vb;
        sse_list l;
        snprintf(plain, sizeof plain, "{\"seed\":-7,%s}", fields[i]);
        snprintf(stream, sizeof stream, "{\"seed\":-7,\"stream\":true,%s}", fields[i]);
        snprintf(key, sizeof key, "key %zu", i);
        a = ask_good(&d, COMPLETE, NULL, NULL, plain);
        s = ask_good(&d, COMPLETE, key, NULL, stream);
        b = ask_good(&d, COMPLETE, key, NULL, plain);
        s2 = ask_good(&d, COMPLETE, key, NULL, stream);
        va = json_loads(a, 0, NULL);
        vb = json_loads(b, 0, NULL);
        if (!json_equal(at(va, "choices"), at(vb, "choices"))) fail_msg("%s\n%s", a, b);
        assert_true(json_equal(at(va, "usage.completion_tokens"), at(vb, "usage.completion_tokens")));
        assert_non_null(strstr(b, "\"seed\":-7"));
        check_numbers(s, 0);
        assert_string_equal(s, s2);
        sse_parse(s, &l);
        for (size_t k = 0; k < json_array_size(at(va, "choices")); k++) {
            char *t = sse_text(&l, (long)k), where[50];
            snprintf(where, sizeof where, "choices.%zu.text", k);
            assert_string_equal(t, str_at(va, where));
            hd_free(t);
        }
        sse_free(&l);
        json_decref(va);
        json_decref(vb);
        hd_free(a);
        hd_free(b);
        hd_free(s);
        hd_free(s2);
    }
    for (int k = 0; k < 2; k++) { /* to the last bit, also from the log */
        char *a = ask_good(&d, CHAT, "big", NULL, "{\"seed\":18446744073709551615," MSG("hello") "}");
        assert_non_null(strstr(a, "\"seed\":18446744073709551615"));
        hd_free(a);
    }
    assert_string_equal(ask_bad(&d, "POST", CHAT, "big", "{\"seed\":18446744073709551614," MSG("hello") "}", 409),
                        "idempotency_conflict");
    drig_close(&d);
}

/* Rows arrive one after another, and the frames interleave all the same: round by round. */
static void order_is_canonical(void **state) {
    static const char json[] = "{\"stream\":true,\"prompt\":\"long\",\"n\":3,\"max_tokens\":5,\"temperature\":0}";
    char *text[2];
    (void)state;
    for (int k = 0; k < 2; k++) {
        engine_options eo = {.max_rows = k ? 1 : 16};
        drig d;
        sse_list l;
        drig_open(&d, durable_script, NULL, &eo);
        text[k] = ask_good(&d, COMPLETE, "k", NULL, json);
        sse_parse(text[k], &l);
        assert_int_equal(l.n, 3 * 6 + 1);
        for (size_t i = 0; i + 1 < l.n; i++) assert_int_equal(json_integer_value(at(l.ev[i].data, "choices.0.index")), i % 3);
        sse_free(&l);
        hd_free(text[k]);
        drig_close(&d);
    }
}

static void background(void **state) {
    static const char json[] = "{\"background\":true,\"max_tokens\":300," MSG("long") "}";
    drig d;
    char *body, id[64], path[140];
    int status;
    bool ended = false;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    body = ask(&d, "POST", CHAT, NULL, NULL, json, &status);
    assert_int_equal(status, 202);
    assert_true(strstr(body, "\"status\":\"queued\"") || strstr(body, "\"status\":\"in_progress\""));
    id_of(body, id);
    hd_free(body);
    snprintf(path, sizeof path, CHAT "/%s", id);
    assert_string_equal(ask_bad(&d, "DELETE", path, NULL, NULL, 409), "still_running");
    for (int i = 0; i < 3000 && !ended; i++) {
        body = ask_good(&d, path, NULL, NULL, NULL);
        ended = !strstr(body, "\"status\"");
        if (!ended) assert_non_null(strstr(body, "\"object\":\"chat.completion\""));
        if (ended) assert_non_null(strstr(body, "\"finish_reason\":\"length\""));
        hd_free(body);
        sleep_ms(10);
    }
    assert_true(ended);
    snprintf(path, sizeof path, CHAT "/%s?stream=true&starting_after=250", id);
    body = ask_good(&d, path, NULL, NULL, NULL);
    check_numbers(body, 251);
    hd_free(body);
    snprintf(path, sizeof path, CHAT "/%s", id);
    body = ask(&d, "DELETE", path, NULL, NULL, NULL, &status);
    assert_int_equal(status, 200);
    assert_non_null(strstr(body, "\"object\":\"chat.completion.deleted\",\"deleted\":true"));
    hd_free(body);
    ask_bad(&d, "GET", path, NULL, NULL, 404);
    assert_int_equal(durable_now(&d, "stored"), 0);
    drig_close(&d);
}

/* What has failed or was cancelled says the same again. */
static void errors_are_kept(void **state) {
    drig d;
    client c;
    char *a, *b, id[64], json[100];
    int status;
    json_t *v;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    a = ask(&d, "POST", CHAT, "f", NULL, "{" MSG("fail") "}", &status);
    assert_int_equal(status, 500);
    b = ask(&d, "POST", CHAT, "f", NULL, "{" MSG("fail") "}", &status);
    assert_int_equal(status, 500);
    assert_string_equal(a, b);
    assert_non_null(strstr(a, "\"generated_tokens\":2"));
    hd_free(a);
    hd_free(b);
    a = ask_good(&d, CHAT, "f", NULL, "{\"stream\":true," MSG("fail") "}");
    assert_non_null(strstr(a, "data: {\"error\":"));
    assert_null(strstr(a, "[DONE]"));
    hd_free(a);
    begin(&c, &d, CHAT, "c", "{\"stream\":true," MSG("long") "}", "id: 5\n");
    id_of(buf_cstr(&c.body), id);
    client_close(&c); /* detached: and still cancelled by its id */
    snprintf(json, sizeof json, "{\"id\":\"%s\"}", id);
    v = rig_post(&d.r, "/v1/heddle/cancel", json, NULL);
    assert_true(json_is_true(at(v, "cancelled")));
    json_decref(v);
    assert_string_equal(ask_bad(&d, "POST", CHAT, "c", "{" MSG("long") "}", 499), "cancelled_by_request");
    assert_string_equal(ask_bad(&d, "POST", CHAT, "t", "{\"total_timeout_ms\":60," MSG("long") "}", 504), "deadline_total");
    assert_string_equal(ask_bad(&d, "POST", CHAT, "t", "{\"total_timeout_ms\":60," MSG("long") "}", 504), "deadline_total");
    snprintf(json, sizeof json, CHAT "/%s", id);
    assert_string_equal(ask_bad(&d, "GET", json, NULL, NULL, 499), "cancelled_by_request");
    assert_true(durable_is(&d, "running", 0));
    drig_close(&d);
}

/* One choice runs, the others wait too long: it ends for their reason, and none counts as failed. */
static void choices_end_together(void **state) {
    engine_options eo = {.max_rows = 1};
    drig d;
    (void)state;
    drig_open(&d, durable_script, NULL, &eo);
    assert_string_equal(ask_bad(&d, "POST", CHAT, "n", "{\"n\":5,\"queue_timeout_ms\":60," MSG("long") "}", 504), "deadline_queue");
    assert_true(durable_is(&d, "running", 0));
    assert_true(rig_wait(&d.r, "rows", 0, 5000));
    assert_int_equal(rig_state(&d.r, "cancelled.failed"), 0);
    drig_close(&d);
}

/* What would change its tokens is refused: a crash would forget it. */
static void steering(void **state) {
    static const char *const changes[] = {"\"stop\":true", "\"max_tokens\":900", "\"force_ids\":[2]", "\"end_reasoning\":\"x\""};
    drig d;
    client c;
    char id[64], json[160];
    int status;
    json_t *v;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    begin(&c, &d, CHAT, "c", "{\"stream\":true," MSG("long") "}", "id: 5\n");
    id_of(buf_cstr(&c.body), id);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        snprintf(json, sizeof json, "{\"id\":\"%s\",%s}", id, changes[i]);
        v = rig_post(&d.r, "/v1/heddle/steer", json, &status);
        assert_int_equal(status, 409);
        assert_string_equal(str_at(v, "error.code"), "durable_request");
        json_decref(v);
    }
    snprintf(json, sizeof json, "{\"id\":\"%s\",\"priority\":\"low\"}", id);
    v = rig_post(&d.r, "/v1/heddle/steer", json, &status);
    assert_int_equal(status, 200);
    assert_true(json_is_true(at(v, "steered")));
    json_decref(v);
    client_close(&c);
    drig_close(&d);
}

/* Refused by the engine or by the log: nothing is left behind, and the key is free. */
static void refusals(void **state) {
    engine_options eo = {.max_rows = 1, .max_queued = 1};
    server_options so = {.log = {.max_running = 2}};
    drig d;
    client c[2];
    char wait[40];
    (void)state;
    drig_open(&d, durable_script, &so, &eo);
    begin(&c[0], &d, CHAT, "a", "{\"stream\":true," MSG("long") "}", "id: 3\n");
    begin(&c[1], &d, CHAT, NULL, "{\"stream\":true," MSG("long") "}", "id: 0\n");
    assert_string_equal(ask_bad(&d, "POST", CHAT, "b", HI, 429), "queue_full");
    assert_int_equal(durable_now(&d, "stored"), 1);
    client_close(&c[1]);
    assert_true(rig_wait(&d.r, "queue", 0, LONG_DONE));
    begin(&c[1], &d, CHAT, "b", "{\"stream\":true," MSG("long") "}", "id: 0\n");
    client_close(&c[0]);
    client_close(&c[1]);
    drig_close(&d);
    eo.max_queued = 8;
    drig_open(&d, durable_script, &so, &eo);
    begin(&c[0], &d, CHAT, "a", "{\"stream\":true," MSG("long") "}", "id: 3\n");
    begin(&c[1], &d, CHAT, "b", "{\"stream\":true," MSG("long") "}", "id: 0\n");
    client_close(&c[1]);
    assert_true(client_open(&c[1], d.r.port));
    assert_true(client_request(&c[1], "POST", CHAT, "Idempotency-Key: c\r\n", HI));
    assert_true(client_finish(&c[1], LONG_DONE));
    assert_int_equal(c[1].status, 429);
    assert_true(client_header(&c[1], "retry-after", wait, sizeof wait));
    assert_non_null(strstr(buf_cstr(&c[1].body), "log_full"));
    assert_int_equal(durable_now(&d, "stored"), 2);
    assert_true(rig_wait(&d.r, "queue", 1, LONG_DONE)); /* "b" alone */
    client_close(&c[0]);
    client_close(&c[1]);
    drig_close(&d);
}

/* Without a log: ignored with a warning, and background is refused by name. */
static void without_a_log(void **state) {
    static const char *const bodies[] = {HI, "{\"store\":true," MSG("hello") "}"};
    rig r;
    (void)state;
    rig_open(&r, durable_script, NULL, NULL);
    for (int k = 0; k < 2; k++) {
        client c;
        char text[200];
        assert_true(client_open(&c, r.port));
        assert_true(client_request(&c, "POST", CHAT, k ? NULL : "Idempotency-Key: k\r\n", bodies[k]));
        assert_true(client_finish(&c, LONG_DONE));
        assert_int_equal(c.status, 200);
        assert_true(client_header(&c, "x-heddle-warning", text, sizeof text));
        assert_non_null(strstr(text, "--state-dir"));
        assert_non_null(strstr(text, k ? "store" : "Idempotency-Key"));
        client_close(&c);
    }
    {
        int status;
        json_t *v = rig_post(&r, CHAT, "{\"background\":true," MSG("hello") "}", &status);
        assert_int_equal(status, 422);
        assert_string_equal(str_at(v, "error.param"), "background");
        assert_non_null(strstr(str_at(v, "error.message"), "--state-dir"));
        json_decref(v);
        v = rig_get(&r, CHAT "/chatcmpl-x", &status);
        assert_int_equal(status, 404);
        json_decref(v);
    }
    rig_close(&r);
}

/* Stored ones go after their time. */
static void retention(void **state) {
    server_options so = {.log = {.retain_seconds = 1}};
    drig d;
    (void)state;
    drig_open(&d, durable_script, &so, NULL);
    hd_free(ask_good(&d, CHAT, NULL, NULL, "{\"store\":true," MSG("hello") "}"));
    assert_int_equal(durable_now(&d, "stored"), 1);
    assert_true(durable_is(&d, "stored", 0));
    drig_close(&d);
}

/* Metrics name what the log does. */
static void metrics(void **state) {
    drig d;
    char *text;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    hd_free(ask_good(&d, CHAT, "k", NULL, HI));
    assert_true(durable_is(&d, "running", 0));
    text = ask_good(&d, "/metrics", NULL, NULL, NULL);
    assert_non_null(strstr(text, "\nheddle:durable_accepted_total{model_name="));
    assert_non_null(strstr(text, "\nheddle:durable_stored{"));
    assert_non_null(strstr(text, "\nheddle:durable_lost_total{"));
    hd_free(text);
    drig_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays),        cmocka_unit_test(conflicts),          cmocka_unit_test(bad_headers),
        cmocka_unit_test(detached),       cmocka_unit_test(slow_viewer),        cmocka_unit_test(races),
        cmocka_unit_test(many_choices),   cmocka_unit_test(order_is_canonical), cmocka_unit_test(background),
        cmocka_unit_test(choices_end_together), cmocka_unit_test(errors_are_kept), cmocka_unit_test(steering),          cmocka_unit_test(refusals),
        cmocka_unit_test(without_a_log),  cmocka_unit_test(retention),          cmocka_unit_test(metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
