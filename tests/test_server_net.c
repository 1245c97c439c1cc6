/* test_server_net.c - what happens on the wire: peers that leave, stall, flood and crawl, limits, keys, draining.
 *
 * Times: "at once" is 250 ms of the contract plus what a busy test machine may add. */
#include "base/mem.h"
#include "util/server_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define COMPLETE "/v1/completions"
#define MSG(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
enum { AT_ONCE = 1000 };

/* "run" never ends, 5 ms a step; "numbers" counts 200 tokens; any prompt costs 2 ms a token from 40 tokens' worth. */
#define SCRIPT(more)                                                                                                   \
    "{\"vocab\":[\"<s>\",\"</s>\",\"X\",\"one \",\"two \"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":100000,"    \
    "\"rules\":[{\"match\":\"run\",\"emit\":[2],\"then\":\"loop\"},{\"match\":\"short\",\"emit\":[3,4]}],"             \
    "\"default\":{\"emit\":[2]}" more "}"
static const char slow[] = SCRIPT(",\"step_delay_ms\":5");
static const char quick[] = SCRIPT("");
static const char slow_prompt[] = SCRIPT(",\"prompt_delay_ms\":5");

static bool say(client *c, const char *text) { return client_send(c, text, strlen(text)); }

static int open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* A body whose only message is `n` bytes of w. */
static char *long_chat(size_t n, const char *more) {
    char *s = malloc(n + 300);
    int at0 = sprintf(s, "{%s\"messages\":[{\"role\":\"user\",\"content\":\"", more);
    memset(s + at0, 'w', n);
    strcpy(s + at0 + n, "\"}]}");
    return s;
}

/* R001, R003, R004: the peer leaves while its request runs, in every way, streamed or not. */
static void leaving_while_it_runs(void **state) {
    rig r;
    (void)state;
    rig_open(&r, slow, NULL, NULL);
    for (int how = 0; how < 6; how++) {
        client c;
        char json[200];
        long cancelled = rig_state(&r, "cancelled.client_disconnected");
        snprintf(json, sizeof json, "{" MSG("run") ",\"max_tokens\":100000,\"stream\":%s}", how % 2 ? "true" : "false");
        assert_true(client_open(&c, r.port) && client_request(&c, "POST", CHAT, NULL, json));
        assert_true(rig_wait(&r, "rows", 1, 2000));
        sleep_ms(30);
        if (how / 2 == 0) client_close(&c);
        else if (how / 2 == 1) client_reset(&c);
        else shutdown(c.fd, SHUT_WR); /* a half-close counts */
        if (!rig_wait(&r, "rows", 0, AT_ONCE)) fail_msg("way %d: the row goes on", how);
        assert_true(rig_wait(&r, "cancelled.client_disconnected", cancelled + 1, AT_ONCE));
        if (how / 2 == 2) client_close(&c);
    }
    rig_close(&r);
}

static void leaving_while_it_reads_the_prompt(void **state) {
    rig r;
    char *json;
    (void)state;
    rig_open(&r, slow_prompt, NULL, NULL);
    for (int streamed = 0; streamed < 2; streamed++) {
        client c;
        json = long_chat(4000, streamed ? "\"stream\":true," : ""); /* 20 s of prefill */
        assert_true(client_open(&c, r.port) && client_request(&c, "POST", CHAT, NULL, json));
        assert_true(rig_wait(&r, "rows", 1, 2000));
        client_close(&c);
        assert_true(rig_wait(&r, "rows", 0, 2500)); /* within one step of at most 256 tokens, cut short */
        free(json);
    }
    rig_close(&r);
}

/* R002, R007: who leaves while waiting disappears from the line; who runs is not touched. */
static void leaving_while_waiting(void **state) {
    engine_options eo = {.max_rows = 1};
    client a, b[10], late;
    rig r;
    char *alone;
    (void)state;
    rig_open(&r, slow, NULL, &eo);
    assert_int_equal(client_once(r.port, "POST", COMPLETE, NULL, "{\"prompt\":\"run\",\"max_tokens\":60}", &alone), 200);
    assert_true(client_open(&a, r.port) && client_request(&a, "POST", COMPLETE, NULL, "{\"prompt\":\"run\",\"max_tokens\":60}"));
    assert_true(rig_wait(&r, "rows", 1, 2000));
    for (int i = 0; i < 10; i++)
        assert_true(client_open(&b[i], r.port) && client_request(&b[i], "POST", CHAT, NULL, "{" MSG("run") ",\"max_tokens\":256}"));
    assert_true(rig_wait(&r, "queue", 10, 2000));
    assert_true(client_open(&late, r.port) && client_request(&late, "POST", CHAT, NULL, "{" MSG("short") "}"));
    assert_true(rig_wait(&r, "queue", 11, 2000));
    for (int i = 0; i < 10; i++) i % 2 ? client_close(&b[i]) : client_reset(&b[i]);
    if (rig_state(&r, "rows") == 1) assert_true(rig_wait(&r, "queue", 1, AT_ONCE));
    assert_true(client_finish(&a, 10000));
    assert_int_equal(a.status, 200);
    {
        json_t *x = json_loads(a.body.data, 0, NULL), *y = json_loads(alone, 0, NULL);
        assert_string_equal(str_at(x, "choices.0.text"), str_at(y, "choices.0.text"));
        json_decref(x);
        json_decref(y);
    }
    assert_true(client_finish(&late, 2000));
    assert_int_equal(late.status, 200);
    client_close(&a);
    client_close(&late);
    hd_free(alone);
    rig_close(&r);
}

/* A peer that leaves while its body is parsed and tokenised is never submitted. */
static void leaving_while_planning(void **state) {
    server_options so = {.n_planners = 1};
    client c[6];
    rig r;
    char *json = long_chat(4 << 20, "");
    (void)state;
    rig_open(&r, quick, &so, NULL);
    for (int i = 0; i < 6; i++) assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", CHAT, NULL, json));
    for (int i = 0; i < 6; i++) i % 2 ? client_close(&c[i]) : client_reset(&c[i]);
    assert_true(rig_wait(&r, "planning", 0, 30000)); /* at most the one being parsed is still there for a while */
    assert_true(rig_wait(&r, "body_bytes", 0, AT_ONCE));
    assert_int_equal(rig_state(&r, "rows"), 0);
    free(json);
    rig_close(&r);
}

/* R005: 200 streams cut by resets in the middle; nothing leaks, nobody dies. */
static void reset_storm(void **state) {
    rig r;
    int before;
    (void)state;
    rig_open(&r, slow, NULL, NULL);
    rig_state(&r, "rows");
    before = open_files();
    for (int round = 0; round < 25; round++) {
        client c[8];
        for (int i = 0; i < 8; i++)
            assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", CHAT, NULL, "{" MSG("run") ",\"stream\":true}"));
        for (int i = 0; i < 8; i++) {
            if (i % 4 != 3) client_until(&c[i], "id: 2", 3000);
            client_reset(&c[i]);
        }
    }
    assert_true(rig_wait(&r, "rows", 0, AT_ONCE));
    assert_true(rig_wait(&r, "planning", 0, AT_ONCE));
    assert_true(rig_wait(&r, "connections", 1, AT_ONCE)); /* the one that asks */
    sleep_ms(50);
    assert_true(open_files() <= before);
    rig_close(&r);
}

/* R006: peers that leave at random moments, in whatever place their request is then; in the end nothing is left. */
static void leaving_at_any_moment(void **state) {
    engine_options eo = {.max_rows = 4, .max_queued = 100, .step_tokens = 32};
    rig r;
    uint32_t seed = 12345;
    char *json = long_chat(3000, "\"stream\":true,");
    (void)state;
    rig_open(&r, slow, NULL, &eo);
    for (int round = 0; round < 6; round++) {
        client c[32];
        for (int i = 0; i < 32; i++) {
            assert_true(client_open(&c[i], r.port));
            client_request(&c[i], "POST", CHAT, NULL, i % 3 == 2 ? json : i % 3 ? "{" MSG("run") "}" : "{" MSG("run") ",\"stream\":true,\"n\":2}");
        }
        for (int i = 0; i < 32; i++) {
            struct timespec t = {0, 0};
            seed = seed * 1664525 + 1013904223;
            t.tv_nsec = (long)(seed >> 8) % 3000000;
            nanosleep(&t, NULL);
            if (seed >> 31) client_reset(&c[i]);
            else client_close(&c[i]);
        }
    }
    assert_true(rig_wait(&r, "planning", 0, AT_ONCE));
    assert_true(rig_wait(&r, "rows", 0, AT_ONCE));
    assert_true(rig_wait(&r, "queue", 0, AT_ONCE));
    assert_true(rig_wait(&r, "connections", 1, AT_ONCE));
    assert_int_equal(rig_state(&r, "pages.used"), 0);
    assert_int_equal(rig_state(&r, "body_bytes"), 0);
    json_decref(rig_post(&r, CHAT, "{" MSG("short") "}", NULL));
    free(json);
    rig_close(&r);
}

/* A reader that stalls pauses its own row only, soon, and gets every byte once it reads again. */
static void stalled_reader(void **state) {
    client c;
    rig r;
    json_t *v;
    bool paused = false;
    uint64_t end;
    sse_list l;
    (void)state;
    rig_open(&r, quick, NULL, NULL);
    assert_true(client_open(&c, r.port));
    {
        int small = 65536;
        setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    assert_true(client_request(&c, "POST", CHAT, NULL, "{" MSG("run") ",\"max_tokens\":20000,\"stream\":true}"));
    end = now_ms() + 5000;
    while (!paused && now_ms() < end) {
        v = rig_get(&r, "/v1/heddle/state", NULL);
        paused = !strcmp(str_at(v, "rows.0.phase"), "paused");
        if (paused) assert_true(json_integer_value(at(v, "rows.0.generated_tokens")) < 6000);
        json_decref(v);
        sleep_ms(10);
    }
    assert_true(paused);
    v = rig_post(&r, CHAT, "{" MSG("short") "}", NULL); /* others go on */
    assert_string_equal(str_at(v, "choices.0.message.content"), "one two ");
    json_decref(v);
    assert_true(client_finish(&c, 20000));
    sse_parse(buf_cstr(&c.body), &l);
    assert_int_equal(l.n, 20003); /* role, tokens, finish, [DONE] */
    for (size_t i = 0; i + 1 < l.n; i++)
        if (l.ev[i].number != (long)i) fail_msg("event %zu has number %ld", i, l.ev[i].number);
    sse_free(&l);
    client_close(&c);
    rig_close(&r);
}

/* A reader that never comes back ends: its row by the idle deadline, its connection by the write deadline. */
static void reader_that_never_returns(void **state) {
    engine_options eo = {.idle_timeout_us = 200000};
    server_options so = {.write_timeout_us = 600000};
    client c;
    rig r;
    (void)state;
    rig_open(&r, quick, &so, &eo);
    assert_true(client_open(&c, r.port));
    assert_true(client_request(&c, "POST", CHAT, NULL, "{" MSG("run") ",\"stream\":true}"));
    assert_true(rig_wait(&r, "cancelled.idle_timeout", 1, 10000));
    assert_true(rig_wait(&r, "rows", 0, 2000)); /* a turn later on a busy machine */
    assert_true(rig_wait(&r, "connections", 1, 10000));
    client_close(&c);
    rig_close(&r);
}

static void deadlines(void **state) {
    static const struct {
        const char *field, *code;
    } cases[] = {{"queue_timeout_ms", "deadline_queue"}, {"first_token_timeout_ms", "deadline_first_token"}, {"total_timeout_ms", "deadline_total"}};
    engine_options eo = {.max_rows = 1};
    client busy;
    rig r;
    (void)state;
    rig_open(&r, slow, NULL, &eo);
    assert_true(client_open(&busy, r.port) && client_request(&busy, "POST", CHAT, NULL, "{" MSG("run") ",\"stream\":true}"));
    assert_true(rig_wait(&r, "rows", 1, 2000));
    for (int i = 0; i < 6; i++) {
        char json[200];
        snprintf(json, sizeof json, "{" MSG("run") ",\"%s\":50,\"stream\":%s}", cases[i / 2].field, i % 2 ? "true" : "false");
        if (i % 2) {
            char *body;
            sse_list l;
            assert_int_equal(client_once(r.port, "POST", CHAT, NULL, json, &body), 200);
            sse_parse(body, &l);
            assert_int_equal(l.n, 2); /* the role chunk, the error */
            assert_string_equal(str_at(l.ev[1].data, "error.code"), cases[i / 2].code);
            sse_free(&l);
            hd_free(body);
        } else {
            int status;
            json_t *v = rig_post(&r, CHAT, json, &status);
            assert_int_equal(status, 504);
            assert_string_equal(str_at(v, "error.code"), cases[i / 2].code);
            assert_string_equal(str_at(v, "error.type"), "timeout_error");
            json_decref(v);
        }
    }
    client_close(&busy);
    assert_true(rig_wait(&r, "rows", 0, 2000));
    /* One choice runs, the others wait too long: it ends for their reason; nothing failed. */
    int status;
    json_t *v = rig_post(&r, CHAT, "{" MSG("run") ",\"n\":5,\"queue_timeout_ms\":50}", &status);
    assert_int_equal(status, 504);
    json_decref(v);
    assert_true(rig_wait(&r, "rows", 0, 2000));
    assert_int_equal(rig_state(&r, "cancelled.failed"), 0);
    rig_close(&r);
}

/* R011, R016: one runs, one waits, the rest is told at once, with Retry-After and the queue's length. */
static void full_queue(void **state) {
    engine_options eo = {.max_rows = 1, .max_queued = 1};
    client c[6];
    rig r;
    int ok = 0, refused = 0;
    (void)state;
    rig_open(&r, slow, NULL, &eo);
    for (int i = 0; i < 6; i++)
        assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", CHAT, NULL, "{" MSG("run") ",\"max_tokens\":50}"));
    for (int i = 0; i < 6; i++) {
        char v[20];
        if (!client_head(&c[i], 100) || c[i].status == 200) continue;
        refused++;
        assert_int_equal(c[i].status, 429);
        assert_true(client_finish(&c[i], 1000));
        assert_true(client_header(&c[i], "retry-after", v, sizeof v));
        assert_true(atoi(v) >= 1 && strspn(v, "0123456789") == strlen(v));
        assert_non_null(strstr(c[i].body.data, "\"max_queued\":1"));
        assert_non_null(strstr(c[i].body.data, "\"code\":\"queue_full\""));
    }
    assert_int_equal(refused, 4);
    {
        char *body; /* health says ok with a full queue */
        assert_int_equal(client_once(r.port, "GET", "/health", NULL, NULL, &body), 200);
        hd_free(body);
    }
    for (int i = 0; i < 6; i++) {
        client_finish(&c[i], 5000);
        ok += c[i].status == 200;
        client_close(&c[i]);
    }
    assert_int_equal(ok, 2);
    rig_close(&r);
}

/* R011: those who wait to be read are bounded too: large bodies come faster than they are tokenised; who finds the place full
 * is told at once, and all others get their answer. */
static void full_planning(void **state) {
    enum { N_BIG = 12, PLACES = 2 };
    server_options so = {.n_planners = 1, .max_planning = PLACES};
    client c[N_BIG];
    char *json = long_chat(4 << 20, "");
    int refused = 0, answered = 0;
    rig r;
    (void)state;
    rig_open(&r, quick, &so, NULL);
    for (int i = 0; i < N_BIG; i++) {
        assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", CHAT, NULL, json));
        assert_in_range(rig_state(&r, "planning"), 0, PLACES + 1); /* and the one that is being read */
    }
    for (int i = 0; i < N_BIG; i++) {
        char v[20];
        assert_true(client_finish(&c[i], 30000));
        if (c[i].status == 429) {
            assert_true(client_header(&c[i], "retry-after", v, sizeof v) && atoi(v) >= 1);
            assert_non_null(strstr(c[i].body.data, "\"max_queued\":2"));
            refused++;
        } else {
            assert_int_equal(c[i].status, 400); /* longer than the context, as it found out */
            answered++;
        }
        client_close(&c[i]);
    }
    assert_true(answered >= 1 + PLACES && refused >= 1);
    assert_int_equal(client_once(r.port, "POST", CHAT, NULL, "{" MSG("x") "}", NULL), 200);
    free(json);
    rig_close(&r);
}

static void limits_on_requests(void **state) {
    server_options so = {.max_body_bytes = 1000, .max_bodies_bytes = 1500, .max_head_bytes = 4000, .head_timeout_us = 200000, .body_timeout_us = 200000,
                         .idle_timeout_us = 300000};
    client c;
    rig r;
    char big[5000];
    (void)state;
    rig_open(&r, quick, &so, NULL);
    /* 413 comes at the head, with not one byte of the body sent. */
    assert_true(client_open(&c, r.port));
    say(&c, "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 413);
    assert_non_null(strstr(c.body.data, "\"code\":\"request_too_large\""));
    client_close(&c);
    /* The same for a chunked body once it is too long, and the reply survives what is still being sent. */
    assert_true(client_open(&c, r.port));
    say(&c, "POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    memset(big, 'x', sizeof big);
    say(&c, "3e8\r\n"), client_send(&c, big, 1000), say(&c, "\r\n3e8\r\n"), client_send(&c, big, 1000);
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 413);
    client_close(&c);
    /* 431 */
    assert_true(client_open(&c, r.port));
    say(&c, "GET /health HTTP/1.1\r\nX: "), client_send(&c, big, sizeof big);
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 431);
    client_close(&c);
    /* A head, then a body, that never ends: 408.  A head that drips does not live longer. */
    assert_true(client_open(&c, r.port));
    for (int i = 0; i < 10 && client_send(&c, &"GET /health HT"[i], 1); i++) sleep_ms(40);
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 408);
    client_close(&c);
    assert_true(client_open(&c, r.port));
    say(&c, "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\n{");
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 408);
    client_close(&c);
    /* Idle: closed without a word. */
    assert_true(client_open(&c, r.port));
    client_finish(&c, 1000);
    assert_true(c.eof);
    assert_int_equal(c.status, 0);
    client_close(&c);
    /* Bodies of all connections together. */
    {
        client d;
        assert_true(client_open(&c, r.port) && client_open(&d, r.port));
        say(&c, "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n");
        client_send(&c, big, 900);
        sleep_ms(20);
        say(&d, "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n");
        client_send(&d, big, 900);
        assert_true(client_finish(&d, 1000));
        assert_int_equal(d.status, 503);
        client_close(&c);
        client_close(&d);
    }
    assert_true(rig_wait(&r, "body_bytes", 0, AT_ONCE));
    /* Not HTTP at all. */
    assert_true(client_open(&c, r.port));
    client_send(&c, "\x16\x03\x01\x00\xa5\x01\x00\x00", 8);
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 400);
    assert_non_null(strstr(c.body.data, "{\"error\":{\"message\":"));
    client_close(&c);
    /* Expect: 100-continue is answered, and not where the request is refused. */
    assert_true(client_open(&c, r.port));
    say(&c, "POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n");
    sleep_ms(30);
    assert_true(recv(c.fd, big, sizeof big, MSG_PEEK) > 0);
    assert_int_equal(strncmp(big, "HTTP/1.1 100 ", 13), 0);
    say(&c, "{\"content\":\"X\"}");
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 200);
    client_close(&c);
    assert_true(client_open(&c, r.port));
    say(&c, "POST /nowhere HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n");
    assert_true(client_finish(&c, 1000));
    assert_int_equal(c.status, 404);
    client_close(&c);
    rig_close(&r);
}

static void connection_limit(void **state) {
    server_options so = {.max_connections = 5};
    client c[6];
    rig r;
    char *body;
    (void)state;
    rig_open(&r, quick, &so, NULL);
    for (int i = 0; i < 5; i++) assert_true(client_open(&c[i], r.port));
    sleep_ms(50);
    assert_true(client_open(&c[5], r.port));
    assert_true(client_request(&c[5], "GET", "/health", NULL, NULL) && client_finish(&c[5], 2000));
    assert_int_equal(c[5].status, 503);
    for (int i = 0; i < 6; i++) client_close(&c[i]);
    sleep_ms(50);
    assert_int_equal(client_once(r.port, "GET", "/health", NULL, NULL, &body), 200);
    hd_free(body);
    rig_close(&r);
}

static void pipelining(void **state) {
    rig r;
    client c;
    static const char one[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    hd_buf b;
    char flood[70000];
    (void)state;
    rig_open(&r, slow, NULL, NULL);
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 1000; i++) buf_add(&b, one, sizeof one - 1);
    assert_true(client_open(&c, r.port) && client_send(&c, b.data, b.len));
    shutdown(c.fd, SHUT_WR); /* what was asked before the half-close is answered */
    for (int i = 0; i < 1000; i++) {
        buf_clear(&c.head), buf_clear(&c.body);
        c.status = 0, c.length = -1, c.ended = false;
        assert_true(client_finish(&c, 5000));
        assert_int_equal(c.status, 200);
        assert_string_equal(c.body.data, "{\"status\":\"ok\"}");
    }
    client_close(&c);
    buf_deinit(&b);
    /* A request behind a stream is answered after it. */
    assert_true(client_open(&c, r.port));
    assert_true(client_request(&c, "POST", CHAT, NULL, "{" MSG("short") ",\"stream\":true}"));
    client_send(&c, one, sizeof one - 1);
    assert_true(client_finish(&c, 5000));
    assert_non_null(strstr(c.body.data, "data: [DONE]"));
    buf_clear(&c.head), buf_clear(&c.body);
    c.status = 0, c.length = -1, c.ended = c.chunked = false;
    assert_true(client_finish(&c, 5000));
    assert_string_equal(c.body.data, "{\"status\":\"ok\"}");
    client_close(&c);
    /* Too much behind a pending request: closed, and the request ends. */
    assert_true(client_open(&c, r.port));
    assert_true(client_request(&c, "POST", CHAT, NULL, "{" MSG("run") ",\"stream\":true}"));
    assert_true(client_until(&c, "id: 1", 3000));
    memset(flood, 'G', sizeof flood);
    client_send(&c, flood, sizeof flood);
    assert_true(rig_wait(&r, "rows", 0, AT_ONCE));
    client_close(&c);
    rig_close(&r);
}

/* R090 and the key: preflight and health need none, everything else does, also unknown paths. */
static void keys_and_origins(void **state) {
    static const char *const keys[] = {"sesame", "open"};
    server_options so = {.api_keys = keys, .n_api_keys = 2};
    static const struct {
        const char *method, *path, *extra;
        int status;
    } cases[] = {
        {"OPTIONS", CHAT, "Origin: http://a.example\r\nAccess-Control-Request-Headers: authorization,x-stainless-os\r\n", 204},
        {"GET", "/health", NULL, 200},
        {"GET", "/v1/health", NULL, 200},
        {"GET", "/", NULL, 200},
        {"GET", "/v1/models", NULL, 401},
        {"GET", "/nothing", NULL, 401},
        {"POST", CHAT, NULL, 401},
        {"GET", "/v1/models", "Authorization: Bearer wrong\r\n", 401},
        {"GET", "/v1/models", "Authorization: Bearer sesam\r\n", 401},
        {"GET", "/v1/models", "Authorization: Bearer sesamesesame\r\n", 401},
        {"GET", "/v1/models", "Authorization: Bearer \r\n", 401},
        {"GET", "/v1/models", "Authorization: Basic sesame\r\n", 401},
        {"GET", "/v1/models", "Authorization: Bearer sesame\r\n", 200},
        {"GET", "/v1/models", "authorization: bearer open\r\n", 200},
        {"GET", "/v1/models", "x-api-key: sesame\r\n", 200},
    };
    rig r;
    client c;
    char v[200];
    (void)state;
    rig_open(&r, quick, &so, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(client_open(&c, r.port) && client_request(&c, cases[i].method, cases[i].path, cases[i].extra, NULL));
        assert_true(client_finish(&c, 2000));
        if (c.status != cases[i].status) fail_msg("case %zu: %d", i, c.status);
        assert_true(client_header(&c, "x-request-id", v, sizeof v));
        if (c.status == 401) assert_non_null(strstr(c.body.data, "\"code\":\"invalid_api_key\""));
        if (c.status == 204) {
            assert_true(client_header(&c, "access-control-allow-origin", v, sizeof v));
            assert_string_equal(v, "http://a.example");
            assert_true(client_header(&c, "access-control-allow-headers", v, sizeof v));
            assert_string_equal(v, "authorization,x-stainless-os");
        }
        client_close(&c);
    }
    /* HEAD, 405 with Allow, an echoed request id. */
    assert_true(client_open(&c, r.port) && client_request(&c, "HEAD", "/", "X-Request-Id: abc-1\r\n", NULL) && client_head(&c, 2000));
    assert_int_equal(c.status, 200);
    assert_true(client_header(&c, "x-request-id", v, sizeof v));
    assert_string_equal(v, "abc-1");
    client_close(&c);
    assert_true(client_open(&c, r.port) && client_request(&c, "DELETE", CHAT, "Authorization: Bearer open\r\n", NULL) && client_finish(&c, 2000));
    assert_int_equal(c.status, 405);
    assert_true(client_header(&c, "allow", v, sizeof v));
    assert_string_equal(v, "POST, OPTIONS");
    client_close(&c);
    rig_close(&r);
}

/* Cancel by id: running, waiting, over, unknown. */
static void cancel_by_id(void **state) {
    engine_options eo = {.max_rows = 1};
    rig r;
    client a, b;
    json_t *v;
    char json[200], id[100];
    sse_list l;
    int status;
    (void)state;
    rig_open(&r, slow, NULL, &eo);
    assert_true(client_open(&a, r.port) && client_request(&a, "POST", CHAT, NULL, "{" MSG("run") ",\"stream\":true}"));
    assert_true(client_until(&a, "\"content\":\"X\"", 3000));
    assert_true(client_open(&b, r.port) && client_request(&b, "POST", CHAT, NULL, "{" MSG("run") "}"));
    assert_true(rig_wait(&r, "queue", 1, 2000));
    v = rig_get(&r, "/v1/heddle/state", NULL);
    assert_non_null(strstr(a.body.data, str_at(v, "rows.0.id")));
    snprintf(id, sizeof id, "%s", str_at(v, "queue.0.id"));
    json_decref(v);
    /* waiting */
    snprintf(json, sizeof json, "{\"id\":\"%s\"}", id);
    v = rig_post(&r, "/v1/heddle/cancel", json, &status);
    assert_int_equal(status, 200);
    assert_string_equal(str_at(v, "id"), id);
    assert_true(json_is_true(at(v, "cancelled")));
    json_decref(v);
    assert_true(client_finish(&b, AT_ONCE));
    assert_int_equal(b.status, 499);
    assert_non_null(strstr(b.body.data, "\"code\":\"cancelled_by_request\""));
    assert_non_null(strstr(b.body.data, "\"generated_tokens\":0"));
    client_close(&b);
    /* over */
    v = rig_post(&r, "/v1/heddle/cancel", json, &status);
    assert_int_equal(status, 200);
    assert_true(json_is_false(at(v, "cancelled")));
    json_decref(v);
    /* running: an error event, no [DONE] */
    v = rig_get(&r, "/v1/heddle/state", NULL);
    snprintf(json, sizeof json, "{\"id\":\"%s\"}", str_at(v, "rows.0.id"));
    json_decref(v);
    json_decref(rig_post(&r, "/v1/heddle/cancel", json, &status));
    assert_int_equal(status, 200);
    assert_true(client_finish(&a, AT_ONCE));
    sse_parse(a.body.data, &l);
    assert_string_equal(str_at(l.ev[l.n - 1].data, "error.code"), "cancelled_by_request");
    assert_true(json_integer_value(at(l.ev[l.n - 1].data, "error.generated_tokens")) > 0);
    sse_free(&l);
    client_close(&a);
    assert_true(rig_wait(&r, "cancelled.cancelled_by_request", 2, AT_ONCE));
    rig_close(&r);
}

/* R051, R013: silence is filled with comments; control answers meanwhile. */
static void comments_and_control(void **state) {
    server_options so = {.comment_us = 50000};
    engine_options eo = {.max_rows = 1, .step_tokens = 16};
    rig r;
    client a, b;
    sse_list l;
    char *json = long_chat(200, "\"stream\":true,"), *body; /* 1 s of prefill */
    uint64_t worst = 0;
    (void)state;
    rig_open(&r, slow_prompt, &so, &eo);
    assert_true(client_open(&a, r.port) && client_request(&a, "POST", CHAT, NULL, json));
    assert_true(client_head(&a, AT_ONCE)); /* headers at once */
    assert_true(client_until(&a, "id: 0\n", AT_ONCE));
    assert_true(client_open(&b, r.port) && client_request(&b, "POST", CHAT, NULL, "{" MSG("short") ",\"stream\":true}"));
    for (int i = 0; i < 10; i++) {
        static const char *const paths[] = {"/health", "/metrics", "/v1/models", "/v1/heddle/state"};
        uint64_t t = now_ms();
        assert_int_equal(client_once(r.port, "GET", paths[i % 4], NULL, NULL, &body), 200);
        hd_free(body);
        if (now_ms() - t > worst) worst = now_ms() - t;
    }
    assert_true(worst < 500);
    assert_true(client_until(&a, "\n: prefill ", 3000));
    assert_true(client_until(&b, ": queued\n", 3000));
    assert_true(client_finish(&a, 5000) && client_finish(&b, 5000));
    sse_parse(a.body.data, &l);
    assert_true(l.comments >= 3);
    assert_int_equal(l.n, 4);
    sse_free(&l);
    client_close(&a);
    client_close(&b);
    free(json);
    rig_close(&r);
}

/* R113: no new ones, running ones finish; at the deadline an error event. */
static void draining(void **state) {
    rig r;
    client a, b;
    char *body;
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        rig_open(&r, slow, NULL, NULL);
        assert_false(server_drained(r.s));
        assert_true(client_open(&a, r.port));
        assert_true(client_request(&a, "POST", CHAT, NULL, cut ? "{" MSG("run") ",\"stream\":true}" : "{" MSG("run") ",\"max_tokens\":40,\"stream\":true}"));
        assert_true(client_until(&a, "id: 1", 3000));
        assert_true(client_open(&b, r.port)); /* an open connection may still ask */
        server_drain(r.s, cut ? 200000 : 10000000);
        sleep_ms(50);
        assert_int_equal(client_once(r.port, "GET", "/health", NULL, NULL, &body), 503);
        assert_non_null(strstr(body, "\"status\":\"draining\""));
        hd_free(body);
        assert_true(client_request(&b, "POST", CHAT, NULL, "{" MSG("short") "}") && client_finish(&b, 2000));
        assert_int_equal(b.status, 503);
        assert_non_null(strstr(b.body.data, "\"code\":\"draining\""));
        assert_true(client_finish(&a, 5000));
        if (cut) assert_non_null(strstr(a.body.data, "\"code\":\"shutdown\""));
        else assert_non_null(strstr(a.body.data, "data: [DONE]"));
        for (int i = 0; i < 100 && !server_drained(r.s); i++) sleep_ms(20);
        assert_true(server_drained(r.s));
        client_close(&a);
        client_close(&b);
        rig_close(&r);
    }
}

/* Before the engine is there: health says loading, generation waits to be asked again. */
static void loading(void **state) {
    rig r;
    server *s;
    hd_err err;
    char *body;
    (void)state;
    rig_open(&r, quick, NULL, NULL);
    assert_int_equal(server_open(&s, NULL, NULL, NULL, &err), HD_OK);
    assert_int_equal(client_once(server_port(s), "GET", "/health", NULL, NULL, &body), 503);
    assert_non_null(strstr(body, "\"status\":\"loading\""));
    hd_free(body);
    assert_int_equal(client_once(server_port(s), "POST", CHAT, NULL, "{" MSG("short") "}", &body), 503);
    hd_free(body);
    assert_int_equal(server_attach(s, r.e, r.m, &err), HD_OK);
    assert_int_equal(client_once(server_port(s), "POST", CHAT, NULL, "{" MSG("short") "}", &body), 200);
    hd_free(body);
    server_close(s);
    rig_close(&r);
}

static void aliases(void **state) {
    static const char *const names[] = {"gpt-4"}, *const any[] = {"*"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        server_options so = {.aliases = k ? any : names, .n_aliases = 1};
        rig r;
        int status;
        rig_open(&r, quick, &so, NULL);
        json_decref(rig_post(&r, CHAT, "{" MSG("short") ",\"model\":\"gpt-4\"}", &status));
        assert_int_equal(status, 200);
        json_decref(rig_post(&r, CHAT, "{" MSG("short") ",\"model\":\"\"}", &status));
        assert_int_equal(status, 200);
        json_decref(rig_post(&r, CHAT, "{" MSG("short") ",\"model\":\"other\"}", &status));
        assert_int_equal(status, k ? 200 : 404);
        rig_close(&r);
    }
}

/* The bound on collected tokens: beyond it only the oldest goes on, and all finish. */
static void collection_bound(void **state) {
    server_options so = {.collect_tokens = 100};
    rig r;
    client c[3];
    (void)state;
    rig_open(&r, slow, &so, NULL);
    for (int i = 0; i < 3; i++)
        assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", CHAT, NULL, "{" MSG("run") ",\"max_tokens\":300}"));
    for (int i = 0; i < 30; i++) {
        long held = rig_state(&r, "collected_tokens");
        assert_true(held < 100 + 300 + 20); /* the bound, the oldest's own, a step's worth */
        sleep_ms(20);
    }
    for (int i = 0; i < 3; i++) {
        json_t *v;
        assert_true(client_finish(&c[i], 15000));
        v = json_loads(c[i].body.data, 0, NULL);
        assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 300);
        assert_int_equal(strlen(str_at(v, "choices.0.message.content")), 300);
        json_decref(v);
        client_close(&c[i]);
    }
    assert_int_equal(rig_state(&r, "collected_tokens"), 0);
    rig_close(&r);
}

/* Closing the server with everything going on: no leak (the sanitizers say), no hang. */
static void closing_in_the_middle(void **state) {
    rig r;
    client c[12];
    char *json = long_chat(3 << 20, "");
    (void)state;
    for (int round = 0; round < 3; round++) {
        rig_open(&r, slow, NULL, NULL);
        for (int i = 0; i < 12; i++) {
            assert_true(client_open(&c[i], r.port));
            client_request(&c[i], "POST", CHAT, NULL,
                           i % 4 == 3 ? json : i % 2 ? "{" MSG("run") ",\"stream\":true}" : "{" MSG("run") "}");
        }
        sleep_ms(20 * round);
        rig_close(&r);
        for (int i = 0; i < 12; i++) client_close(&c[i]);
    }
    free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaving_while_it_runs),
        cmocka_unit_test(leaving_while_it_reads_the_prompt),
        cmocka_unit_test(leaving_while_waiting),
        cmocka_unit_test(leaving_while_planning),
        cmocka_unit_test(reset_storm),
        cmocka_unit_test(leaving_at_any_moment),
        cmocka_unit_test(stalled_reader),
        cmocka_unit_test(reader_that_never_returns),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(full_queue),
        cmocka_unit_test(full_planning),
        cmocka_unit_test(limits_on_requests),
        cmocka_unit_test(connection_limit),
        cmocka_unit_test(pipelining),
        cmocka_unit_test(keys_and_origins),
        cmocka_unit_test(cancel_by_id),
        cmocka_unit_test(comments_and_control),
        cmocka_unit_test(draining),
        cmocka_unit_test(loading),
        cmocka_unit_test(aliases),
        cmocka_unit_test(collection_bound),
        cmocka_unit_test(closing_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
