/* test_server_bounds.c - what requests and replies hold in a server's memory has limits, and what happens at them (bounds.h). */
#include "util/server_rig.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char quick[] = "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":400000,\"default\":{\"emit\":[1],\"then\":\"eos\"}}";
static const char slow[] = "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":100000,\"step_delay_ms\":20,"
                           "\"default\":{\"emit\":[1],\"then\":\"loop\"}}";
enum { MIB = 1 << 20 };

/* {"content":"zzz..."}: n bytes of text, as many tokens. */
static char *tokenize_body(size_t n) {
    char *s = malloc(n + 32);
    assert_non_null(s);
    strcpy(s, "{\"content\":\"");
    memset(s + 12, 'z', n);
    strcpy(s + 12 + n, "\"}");
    return s;
}

static double metric(rig *r, const char *name) {
    char *body = NULL, *at;
    double v;
    assert_int_equal(client_once(r->port, "GET", "/metrics", NULL, NULL, &body), 200);
    at = strstr(body, name);
    while (at && (at == body || at[-1] != '\n')) at = strstr(at + 1, name);
    assert_non_null(at);
    v = strtod(strchr(at, ' ') + 1, NULL);
    hd_free(body);
    return v;
}

/* Replies of more than a megabyte that nobody reads: all together stay below the limit, those that stand still go after a
 * while, and whoever reads gets all of it. */
static void replies_that_nobody_reads(void **state) {
    enum { N = 6 };
    server_options so = {.max_replies_bytes = 4 * MIB};
    char *body = tokenize_body(300000); /* "122,": four bytes a token */
    client c[N];
    rig r;
    int cut = 0;
    (void)state;
    rig_open(&r, quick, &so, NULL);
    for (int i = 0; i < N; i++) {
        assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", "/tokenize", NULL, body));
        if (i < 3) assert_true(client_head(&c[i], 60000)); /* and no more */
        sleep_ms(50);
        assert_in_range(rig_state(&r, "unread_bytes"), 1, 4 * MIB);
    }
    assert_true(client_finish(&c[N - 1], 90000));
    assert_true(metric(&r, "heddle:readers_cut_total") >= 1);
    assert_in_range(rig_state(&r, "unread_bytes"), 0, 4 * MIB);
    for (int i = 0; i < 3; i++) cut += !client_finish(&c[i], 5000) && c[i].eof; /* one of those that stood still */
    assert_in_range(cut, 1, 3);
    assert_int_equal(c[N - 1].status, 200);
    assert_true(c[N - 1].body.len > 1000000);
    for (int i = 0; i < N; i++) client_close(&c[i]);
    assert_true(rig_wait(&r, "unread_bytes", 0, 2000));
    free(body);
    rig_close(&r);
}

/* A reply that is larger than all may be is an error of its own and no crash; its neighbour gets its answer. */
static void one_reply_too_large(void **state) {
    server_options so = {.max_replies_bytes = MIB};
    char *body = tokenize_body(300000), *text = NULL;
    rig r;
    (void)state;
    rig_open(&r, quick, &so, NULL);
    assert_int_equal(client_once(r.port, "POST", "/tokenize", NULL, body, &text), 500);
    assert_non_null(strstr(text, "reply_too_large"));
    hd_free(text);
    assert_int_equal(client_once(r.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"a\",\"max_tokens\":3}", NULL), 200);
    assert_int_equal(rig_state(&r, "planned_bytes"), 0);
    assert_int_equal(rig_state(&r, "reply_bytes"), 0);
    free(body);
    rig_close(&r);
}

static void *read_all(void *c) {
    client_finish(c, 30000);
    return NULL;
}

/* Collected log probabilities count in bytes: beyond the limit only the oldest goes on, and all finish. */
static void replies_wait_for_room(void **state) {
    enum { N = 4 };
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":3000,\"logprobs\":20,\"ignore_eos\":true}";
    server_options so = {.max_replies_bytes = 2 * MIB};
    engine_options eo = {.max_rows = N};
    const char *fast = "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":100000,\"default\":{\"emit\":[1],\"then\":\"loop\"}}";
    client c[N];
    pthread_t readers[N];
    bool waited = false;
    size_t least = SIZE_MAX;
    rig r;
    (void)state;
    rig_open(&r, fast, &so, &eo);
    for (int i = 0; i < N; i++) assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", "/v1/completions", NULL, body));
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&readers[i], NULL, read_all, &c[i]), 0);
    for (int i = 0; i < 200; i++) {
        long held = rig_state(&r, "reply_bytes");
        assert_true(held <= 2 * 2 * MIB);
        waited |= held > 2 * MIB - 100000;
        sleep_ms(2);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(readers[i], NULL);
        assert_true(c[i].ended);
        assert_int_equal(c[i].status, 200);
        least = c[i].body.len < least ? c[i].body.len : least;
        assert_non_null(strstr(c[i].body.data, "\"completion_tokens\":3000"));
        client_close(&c[i]);
    }
    assert_in_range(least, MIB * 3 / 4, MIB * 3 / 2); /* four together are more than there is room for */
    assert_true(waited);
    assert_int_equal(rig_state(&r, "reply_bytes"), 0);
    rig_close(&r);
}

/* Stop strings, waiting entries, queues: what planned requests hold is counted before they run, refused beyond the limit and
 * given back when they leave. */
static void planned_requests(void **state) {
    enum { N = 6 };
    server_options so = {.max_bodies_bytes = 2 * MIB};
    engine_options eo = {.max_rows = 4, .max_queued = 28};
    char *body = malloc(600000), *p = body;
    int taken = 0, refused = 0;
    client c[N];
    rig r;
    (void)state;
    p += sprintf(p, "{\"prompt\":\"a\",\"max_tokens\":5000,\"n\":4,\"logprobs\":2,\"stream\":true,\"stop\":[");
    for (int i = 0; i < 64; i++) {
        *p++ = i ? ',' : ' ';
        *p++ = '"';
        memset(p, 'a' + i % 26, 4000);
        p += 4000;
        *p++ = '"';
    }
    strcpy(p, "]}");
    rig_open(&r, slow, &so, &eo);
    for (int i = 0; i < N; i++) {
        assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", "/v1/completions", NULL, body));
        assert_true(client_head(&c[i], 5000));
        assert_true(c[i].status == 200 || c[i].status == 503);
        if (c[i].status == 200) {
            taken++;
            continue;
        }
        refused++;
        assert_true(client_finish(&c[i], 5000));
        assert_non_null(strstr(c[i].body.data, "\"overloaded\""));
        assert_non_null(strstr(c[i].head.data, "Retry-After: 1"));
    }
    assert_in_range(taken, 2, N - 1);
    assert_in_range(rig_state(&r, "planned_bytes"), 4 * 64 * 4000, 32 * MIB);
    for (int i = 0; i < N; i++) client_close(&c[i]);
    assert_true(rig_wait(&r, "planned_bytes", 0, 5000));
    assert_int_equal(client_once(r.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"a\",\"max_tokens\":3}", NULL), 200);
    free(body);
    rig_close(&r);
}

/* Large bodies are planned one at a time, and a small one passes them. */
static void large_bodies_one_at_a_time(void **state) {
    char *body = tokenize_body(12 * MIB);
    client c[2];
    rig r;
    (void)state;
    rig_open(&r, quick, NULL, NULL);
    for (int i = 0; i < 2; i++) assert_true(client_open(&c[i], r.port) && client_request(&c[i], "POST", "/tokenize", NULL, body));
    assert_true(rig_wait(&r, "planning", 2, 5000));
    assert_int_equal(client_once(r.port, "POST", "/tokenize", NULL, "{\"content\":\"XX\"}", NULL), 200);
    assert_int_equal(rig_state(&r, "planning"), 2);
    for (int i = 0; i < 2; i++) {
        assert_true(client_finish(&c[i], 60000));
        assert_int_equal(c[i].status, 200);
        client_close(&c[i]);
    }
    free(body);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_that_nobody_reads), cmocka_unit_test(one_reply_too_large), cmocka_unit_test(replies_wait_for_room),
        cmocka_unit_test(planned_requests), cmocka_unit_test(large_bodies_one_at_a_time),
    };
    return cmocka_run_group_tests_name("server_bounds", tests, NULL, NULL);
}
