/* test_http.c - requests out of bytes: every split, every limit, malformed heads. */
#include "base/mem.h"
#include "serve/error.h"
#include "serve/httpreq.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Feed `n` bytes in pieces of `step`; returns the bytes taken in all. */
static size_t feed(httpreq *r, const char *s, size_t n, size_t step) {
    size_t at = 0;
    while (at < n && r->state != HTTPREQ_DONE && r->state != HTTPREQ_BAD) {
        size_t k = n - at < step ? n - at : step;
        at += httpreq_feed(r, s + at, k);
    }
    return at;
}

static const char post[] = "POST /v1/x%20y?beta=true HTTP/1.1\r\nHost: a\r\nX-Request-Id: r1\r\nauthorization: Bearer k\r\n"
                           "Idempotency-Key: a b \t \r\nOrigin:\r\nEmpty:\r\nContent-Length: 5\r\n\r\nhelloGET /next HTTP/1.1\r\n\r\n";

static void every_split_reads_the_same(void **state) {
    (void)state;
    for (size_t step = 1; step < sizeof post; step++) {
        httpreq r;
        hd_buf path;
        httpreq_init(&r, 1024, 1024);
        buf_init(&path, 1024);
        assert_int_equal(feed(&r, post, sizeof post - 1, step), strstr(post, "GET") - post); /* the next one stays */
        assert_int_equal(r.state, HTTPREQ_DONE);
        assert_int_equal(r.method, HTTP_POST);
        assert_true(r.keep_alive);
        assert_string_equal(httpreq_get(&r, HTTPREQ_REQUEST_ID), "r1");
        assert_string_equal(httpreq_get(&r, HTTPREQ_AUTHORIZATION), "Bearer k");
        assert_string_equal(httpreq_get(&r, HTTPREQ_IDEMPOTENCY_KEY), "a b"); /* white space behind is no part of it */
        assert_string_equal(httpreq_get(&r, HTTPREQ_ORIGIN), "");
        assert_true(httpreq_has(&r, HTTPREQ_ORIGIN)); /* there, and empty */
        assert_false(httpreq_has(&r, HTTPREQ_EXPECT));
        assert_int_equal(r.body.len, 5);
        assert_string_equal(r.body.data, "hello");
        assert_true(httpreq_path(&r, &path));
        assert_string_equal(path.data, "/v1/x y");
        httpreq_reset(&r);
        assert_int_equal(feed(&r, "GET /next HTTP/1.1\r\n\r\n", 22, step), 22);
        assert_int_equal(r.state, HTTPREQ_DONE);
        assert_false(httpreq_has(&r, HTTPREQ_ORIGIN)); /* of the one before */
        buf_deinit(&path);
        httpreq_deinit(&r);
    }
}

static void the_head_is_seen_before_the_body(void **state) {
    httpreq r;
    size_t at;
    (void)state;
    httpreq_init(&r, 1024, 1024);
    at = httpreq_feed(&r, post, sizeof post - 1);
    assert_int_equal(r.state, HTTPREQ_HEAD_DONE);
    assert_true(r.has_body);
    assert_int_equal(r.content_length, 5);
    r.discard_body = true;
    at += feed(&r, post + at, sizeof post - 1 - at, 3);
    assert_int_equal(r.state, HTTPREQ_DONE);
    assert_int_equal(r.body.len, 0);
    assert_int_equal(r.body_bytes, 5);
    httpreq_deinit(&r);
}

static void chunked_bodies(void **state) {
    static const char ok[] = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: v\r\n\r\n";
    (void)state;
    for (size_t step = 1; step < sizeof ok; step++) {
        httpreq r;
        httpreq_init(&r, 1024, 5);
        assert_int_equal(feed(&r, ok, sizeof ok - 1, step), sizeof ok - 1);
        assert_int_equal(r.state, HTTPREQ_DONE);
        assert_string_equal(r.body.data, "abcde");
        httpreq_deinit(&r);
        httpreq_init(&r, 1024, 4); /* one byte less is allowed: refused while reading */
        feed(&r, ok, sizeof ok - 1, step);
        assert_int_equal(r.state, HTTPREQ_BAD);
        assert_int_equal(r.status, 413);
        httpreq_deinit(&r);
    }
}

static void limits(void **state) {
    httpreq r;
    char *big = malloc(70000);
    (void)state;
    /* 413 at the head: no byte of the body is needed. */
    httpreq_init(&r, 1024, 4);
    feed(&r, "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 38, 100);
    assert_int_equal(r.state, HTTPREQ_BAD);
    assert_int_equal(r.status, 413);
    httpreq_deinit(&r);
    /* A head that never ends stops at its limit, whatever the step. */
    for (size_t step = 1; step <= 1000; step += 333) {
        size_t n = (size_t)sprintf(big, "GET / HTTP/1.1\r\n");
        while (n < 3000) n += (size_t)sprintf(big + n, "h%zu: v\r\n", n);
        httpreq_init(&r, 2000, 4);
        assert_int_equal(feed(&r, big, n, step), 2000);
        assert_int_equal(r.state, HTTPREQ_BAD);
        assert_int_equal(r.status, 431);
        httpreq_deinit(&r);
    }
    /* A long target, a long kept header, a long other header. */
    memset(big, 'a', 70000);
    httpreq_init(&r, 65536, 4);
    feed(&r, "GET /", 5, 5), feed(&r, big, 9000, 9000);
    assert_int_equal(r.status, 414);
    httpreq_deinit(&r);
    httpreq_init(&r, 65536, 4);
    feed(&r, "GET / HTTP/1.1\r\nOrigin: ", 24, 24), feed(&r, big, 9000, 500);
    assert_int_equal(r.status, 431);
    assert_non_null(strstr(r.why, "origin"));
    httpreq_deinit(&r);
    httpreq_init(&r, 65536, 4);
    feed(&r, "GET / HTTP/1.1\r\nOther: ", 23, 23), feed(&r, big, 60000, 500), feed(&r, "\r\n\r\n", 4, 4);
    assert_int_equal(r.state, HTTPREQ_DONE);
    httpreq_deinit(&r);
    /* A long header name that starts like a kept one is not it. */
    httpreq_init(&r, 65536, 4);
    feed(&r, "GET / HTTP/1.1\r\norigin", 22, 22), feed(&r, big, 100, 7), feed(&r, ": v\r\n\r\n", 7, 7);
    assert_int_equal(r.state, HTTPREQ_DONE);
    assert_string_equal(httpreq_get(&r, HTTPREQ_ORIGIN), "");
    httpreq_deinit(&r);
    free(big);
}

static void malformed(void **state) {
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"\x16\x03\x01\x02garbage\r\n\r\n", 400},
        {"GET\r\n\r\n", 400},
        {"BREW /pot HTTP/1.1\r\n\r\n", 400},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
        {"GET / HTTP/9.9\r\n\r\n", 505},
        {"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\na: \x01\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", 400},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step < 40; step += 19) {
            httpreq r;
            httpreq_init(&r, 4096, 1 << 20);
            feed(&r, cases[i].text, strlen(cases[i].text), step);
            if (r.state != HTTPREQ_BAD || r.status != cases[i].status) fail_msg("case %zu step %zu", i, step);
            assert_non_null(r.why);
            httpreq_deinit(&r);
        }
}

static void paths(void **state) {
    static const struct {
        const char *target, *path; /* NULL: refused */
    } cases[] = {
        {"/", "/"},
        {"/v1/models/a%2Fb", "/v1/models/a/b"},
        {"http://h:1/v1/models?x=/y#z", "/v1/models"},
        {"/a%00b", NULL},
        {"/a%zz", NULL},
        {"/a%4", NULL},
        {"*", "*"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        httpreq r;
        hd_buf path;
        char text[200];
        int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n\r\n", cases[i].target);
        httpreq_init(&r, 4096, 0);
        buf_init(&path, 4096);
        feed(&r, text, (size_t)n, 1000);
        assert_int_equal(r.state, HTTPREQ_DONE);
        assert_int_equal(httpreq_path(&r, &path), cases[i].path != NULL);
        if (cases[i].path) assert_string_equal(buf_cstr(&path), cases[i].path);
        buf_deinit(&path);
        httpreq_deinit(&r);
    }
}

static void keep_alive_and_upgrade(void **state) {
    static const struct {
        const char *text;
        bool keep;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        httpreq r;
        httpreq_init(&r, 4096, 0);
        assert_int_equal(feed(&r, cases[i].text, strlen(cases[i].text), 1000), strlen(cases[i].text));
        assert_int_equal(r.state, HTTPREQ_DONE);
        assert_int_equal(r.keep_alive, cases[i].keep);
        httpreq_deinit(&r);
    }
}

/* The n-th allocation fails, for every n: a 503, nothing leaked. */
static void no_memory(void **state) {
    long n = 0, live = hd_mem_live();
    httpreq r;
    (void)state;
    do {
        hd_mem_fail_after(n++);
        httpreq_init(&r, 1024, 1024);
        feed(&r, post, sizeof post - 1, 7);
        hd_mem_fail_after(-1);
        assert_true(r.state == HTTPREQ_DONE || (r.state == HTTPREQ_BAD && r.status == 503));
        assert_true(n < 100);
        if (r.state == HTTPREQ_DONE) break;
        httpreq_deinit(&r);
        assert_int_equal(hd_mem_live(), live);
    } while (true);
    assert_true(n > 3);
    httpreq_deinit(&r);
}

static void error_shape(void **state) {
    serve_error e = {0};
    hd_buf b;
    (void)state;
    buf_init(&b, 4096);
    assert_false(bad_field(&e, "messages[0].role", "no role \"%s\"", "x\xff"));
    serve_fail(&e, 500, NULL, NULL, "later ones do not replace the cause");
    serve_error_json(&b, &e);
    assert_string_equal(b.data, "{\"error\":{\"message\":\"no role \\\"x\xEF\xBF\xBD\\\"\",\"type\":\"invalid_request_error\","
                                "\"param\":\"messages[0].role\",\"code\":\"invalid_value\"}}");
    buf_deinit(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_reads_the_same), cmocka_unit_test(the_head_is_seen_before_the_body),
        cmocka_unit_test(chunked_bodies),             cmocka_unit_test(limits),
        cmocka_unit_test(malformed),                  cmocka_unit_test(paths),
        cmocka_unit_test(keep_alive_and_upgrade),     cmocka_unit_test(error_shape),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
