/* test_server_durable_crash.c - durable requests across power cuts and starts, on a disk that drops and scrambles what was
 * not synced: taken up again to the same answer, or ended with an error, never other tokens. */
#include "base/mem.h"
#include "util/durable_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const requests[] = {
    "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"seed\":1,\"max_tokens\":300,\"prompt\":\"long\"}",
    "{\"stream\":true,\"seed\":2,\"max_tokens\":60,\"n\":3,\"temperature\":3,\"prompt\":[\"long\",\"hello\"],\"logprobs\":3,\"echo\":true}",
    "{\"stream\":true,\"seed\":3,\"max_tokens\":200,\"n\":18,\"temperature\":3,\"prompt\":\"long\",\"stop\":[\"jab\",\"ccc\"]}",
    "{\"stream\":true,\"seed\":4,\"max_tokens\":250,\"temperature\":2.5,\"prompt\":\"long\",\"logit_bias\":{\"2\":15},\"top_p\":0.9,\"repetition_penalty\":1.1,\"dry_multiplier\":0.5,\"return_token_ids\":true}",
};
enum { N_REQUESTS = sizeof requests / sizeof *requests };

/* Without what differs between two runs of one request: its id, its time, and what the cache knew. */
static json_t *essence(const char *body) {
    sse_list l;
    json_t *all = json_array();
    sse_parse(body, &l);
    for (size_t i = 0; i < l.n; i++)
        if (!l.ev[i].done) json_array_append(all, json_object_get(l.ev[i].data, "choices"));
    sse_free(&l);
    return all;
}

/* Whole lines of what a client has got are the beginning of what it gets later. */
static void check_prefix(const char *seen, size_t n_seen, const char *all) {
    size_t n = n_seen;
    while (n && seen[n - 1] != '\n') n--;
    if (strncmp(seen, all, n)) fail_msg("a later answer differs from what was seen");
}

/* The answers of a server that nothing happens to, then cuts at different times, each followed by the whole answer. */
static void power_cuts(void **state) {
    static const int after[] = {0, 1, 5, 30, 120};
    json_t *want[N_REQUESTS];
    drig d;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    for (int q = 0; q < N_REQUESTS; q++) {
        char *s = ask_good(&d, COMPLETE, "reference", NULL, requests[q]), id[64], path[100];
        int status;
        want[q] = essence(s);
        check_numbers(s, 0);
        id_of(s, id);
        hd_free(s);
        snprintf(path, sizeof path, COMPLETE "/%s", id);
        hd_free(ask(&d, "DELETE", path, NULL, NULL, NULL, &status));
        assert_int_equal(status, 200);
    }
    for (size_t t = 0; t < sizeof after / sizeof *after; t++) {
        client c[N_REQUESTS];
        for (int q = 0; q < N_REQUESTS; q++) {
            char key[30], until[20];
            snprintf(key, sizeof key, "%zu-%d", t, q);
            snprintf(until, sizeof until, "id: %d\n", after[t]);
            begin(&c[q], &d, COMPLETE, key, requests[q], until);
        }
        d.eo.max_rows = t % 2 ? 3 : 16; /* what must not matter */
        d.eo.step_tokens = t % 2 ? 7 : 256;
        drig_restart(&d, t * 7 + 1);
        for (int q = 0; q < N_REQUESTS; q++) {
            char key[30], last[60], *s, *rest;
            json_t *got;
            snprintf(key, sizeof key, "%zu-%d", t, q);
            s = ask_good(&d, COMPLETE, key, NULL, requests[q]);
            check_numbers(s, 0);
            got = essence(s);
            if (!json_equal(got, want[q])) fail_msg("request %d, cut after %d: other tokens", q, after[t]);
            check_prefix(buf_cstr(&c[q].body), c[q].body.len, s);
            snprintf(last, sizeof last, "Last-Event-ID: %d\r\n", after[t]);
            rest = ask_good(&d, COMPLETE, key, last, requests[q]);
            assert_string_equal(rest, behind(s, after[t]));
            json_decref(got);
            hd_free(s);
            hd_free(rest);
            client_close(&c[q]);
        }
    }
    for (int q = 0; q < N_REQUESTS; q++) json_decref(want[q]);
    assert_int_equal(durable_now(&d, "lost"), 0);
    drig_close(&d);
}

/* Three lives for one answer; a viewer that comes while it is taken up again gets all of it. */
static void many_lives(void **state) {
    drig d;
    char *s, *again;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    for (int k = 0; k < 3; k++) {
        client c;
        char until[20];
        snprintf(until, sizeof until, "id: %d\n", 40 + 80 * k);
        begin(&c, &d, COMPLETE, "k", requests[0], until);
        client_close(&c);
        drig_restart(&d, (uint64_t)k);
        assert_int_equal(durable_now(&d, "running"), 1);
    }
    s = ask_good(&d, COMPLETE, "k", NULL, requests[0]);
    check_numbers(s, 0);
    assert_true(durable_is(&d, "running", 0));
    drig_restart(&d, 9); /* ended: nothing goes on, and it is still there */
    assert_int_equal(rig_state(&d.r, "rows"), 0);
    again = ask_good(&d, COMPLETE, "k", NULL, requests[0]);
    assert_string_equal(s, again);
    hd_free(s);
    hd_free(again);
    drig_close(&d);
}

/* The policy is the one that was resolved when the request came; a larger context and other defaults change nothing. */
static void changed_defaults(void **state) {
    engine_options eo = {.ctx = 300};
    drig d;
    client c;
    json_t *v;
    char *body;
    (void)state;
    drig_open(&d, durable_script, NULL, &eo);
    begin(&c, &d, COMPLETE, "k", "{\"stream\":true,\"prompt\":\"long\"}", "id: 10\n"); /* no cap: the context ends it */
    client_close(&c);
    d.eo = (engine_options){.ctx = 2000, .max_rows = 2, .default_max_tokens = 3, .page_tokens = 16};
    drig_restart(&d, 1);
    body = ask_good(&d, COMPLETE, "k", NULL, "{\"prompt\":\"long\"}");
    v = json_loads(body, 0, NULL);
    assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 296);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "length");
    json_decref(v);
    hd_free(body);
    /* A smaller one might end it elsewhere: an error, not another answer. */
    begin(&c, &d, COMPLETE, "s", "{\"stream\":true,\"prompt\":\"long\"}", "id: 10\n");
    client_close(&c);
    begin(&c, &d, COMPLETE, "t", "{\"stream\":true,\"prompt\":\"long\",\"max_tokens\":250}", "id: 10\n");
    client_close(&c);
    d.eo.ctx = 300;
    drig_restart(&d, 2);
    assert_string_equal(ask_bad(&d, "POST", COMPLETE, "s", "{\"prompt\":\"long\"}", 410), "identity_changed");
    hd_free(ask_good(&d, COMPLETE, "t", NULL, "{\"prompt\":\"long\",\"max_tokens\":250}")); /* it fits still */
    drig_close(&d);
}

/* Another model, or another scheme of keys and values: never other tokens. */
static void changed_identity(void **state) {
    static const char other[] = "{\"vocab\":[\"<s>\",\"</s>\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":40000,"
                                "\"default\":{\"emit\":[\"zyx\"],\"then\":\"loop\"}}";
    (void)state;
    for (int k = 0; k < 2; k++) {
        drig d;
        client c;
        drig_open(&d, durable_script, NULL, NULL);
        hd_free(ask_good(&d, COMPLETE, "done", NULL, "{\"prompt\":\"hello\",\"max_tokens\":2}"));
        begin(&c, &d, COMPLETE, "k", "{\"stream\":true,\"prompt\":\"long\",\"max_tokens\":500}", "id: 10\n");
        client_close(&c);
        assert_true(durable_is(&d, "running", 1));
        if (k) d.eo.kv_type = KV_Q8;
        else d.script = other;
        drig_restart(&d, 1);
        for (int i = 0; i < 2; i++)
            assert_string_equal(ask_bad(&d, "POST", COMPLETE, "k", "{\"prompt\":\"long\",\"max_tokens\":500}", 410), "identity_changed");
        hd_free(ask_good(&d, COMPLETE, "done", NULL, "{\"prompt\":\"hello\",\"max_tokens\":2}")); /* what has ended is read as it was */
        assert_int_equal(durable_now(&d, "running"), 0);
        drig_close(&d);
    }
}

/* The total deadline counts on across lives. */
static void deadline(void **state) {
    static const char json[] = "{\"stream\":true,\"prompt\":\"long\",\"total_timeout_ms\":1500,\"max_tokens\":39000}";
    drig d;
    client c;
    char *s;
    uint64_t t;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    begin(&c, &d, COMPLETE, "k", json, "id: 3\n");
    client_close(&c);
    drig_cut(&d, 1);
    sleep_ms(1600);
    drig_start(&d);
    t = now_ms();
    s = ask_good(&d, COMPLETE, "k", NULL, json);
    assert_non_null(strstr(s, "deadline_total"));
    assert_true(now_ms() - t < 1400);
    hd_free(s);
    drig_close(&d);
}

/* More than the queue holds go on after a start, before anything new, and nothing new is let in meanwhile. */
static void more_than_the_queue(void **state) {
    enum { N = 12 };
    engine_options eo = {.max_rows = 4, .max_queued = 20};
    drig d;
    (void)state;
    drig_open(&d, durable_script, NULL, &eo);
    for (int i = 0; i < N; i++) {
        char key[20], *body;
        int status;
        snprintf(key, sizeof key, "%d", i);
        body = ask(&d, "POST", COMPLETE, key, NULL, "{\"background\":true,\"prompt\":\"long\",\"max_tokens\":2000}", &status);
        assert_int_equal(status, 202);
        hd_free(body);
    }
    d.eo.max_queued = 1;
    d.eo.max_rows = 2;
    drig_restart(&d, 1);
    assert_true(durable_is(&d, "running", N));
    assert_string_equal(ask_bad(&d, "POST", COMPLETE, NULL, "{\"prompt\":\"hello\"}", 429), "queue_full");
    drig_close(&d);
}

/* The disk fails: the row goes on and its viewer gets all; it says what happened, and those who come too late hear it. */
static void lost_durability(void **state) {
    static const char json[] = "{\"stream\":true,\"prompt\":\"long\",\"max_tokens\":3000}";
    drig d;
    client c;
    char text[200];
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    begin(&c, &d, COMPLETE, "k", json, "id: 20\n");
    memvfs_fail(d.disk, 0, 1000000, SQLITE_IOERR_WRITE);
    assert_true(durable_is(&d, "lost", 1));
    assert_true(client_finish(&c, LONG_DONE));
    check_numbers(buf_cstr(&c.body), 0);
    assert_non_null(strstr(buf_cstr(&c.body), ": durability lost\n"));
    client_close(&c);
    memvfs_fail(d.disk, -1, 0, 0);
    assert_string_equal(ask_bad(&d, "POST", COMPLETE, "k", "{\"prompt\":\"long\",\"max_tokens\":3000}", 410), "events_lost");
    assert_true(durable_is(&d, "running", 0));
    /* Unstreamed, a header says it. */
    assert_true(client_open(&c, d.r.port));
    assert_true(client_request(&c, "POST", COMPLETE, "Idempotency-Key: u\r\n", "{\"prompt\":\"long\",\"max_tokens\":300}"));
    assert_true(durable_is(&d, "running", 1));
    memvfs_fail(d.disk, 0, 1000000, SQLITE_IOERR_WRITE);
    assert_true(client_finish(&c, LONG_DONE));
    assert_int_equal(c.status, 200);
    assert_true(client_header(&c, "x-heddle-warning", text, sizeof text));
    assert_non_null(strstr(text, "durability"));
    client_close(&c);
    assert_string_equal(ask_bad(&d, "POST", COMPLETE, "new", "{\"prompt\":\"hello\"}", 503), "log_failed");
    memvfs_fail(d.disk, -1, 0, 0);
    drig_close(&d);
}

/* Lost in one life, whole in the next: what was not written is computed again. */
static void lost_and_found(void **state) {
    static const char json[] = "{\"stream\":true,\"prompt\":\"long\",\"max_tokens\":2000,\"seed\":1}";
    drig d;
    client c;
    char *s;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    begin(&c, &d, COMPLETE, "k", json, "id: 20\n");
    memvfs_fail(d.disk, 0, 1000000, SQLITE_IOERR_WRITE);
    assert_true(durable_is(&d, "lost", 1));
    assert_true(client_until(&c, "id: 100\n", LONG_DONE));
    drig_restart(&d, 3);
    memvfs_fail(d.disk, -1, 0, 0);
    s = ask_good(&d, COMPLETE, "k", NULL, json);
    check_numbers(s, 0);
    { /* its comment on the loss is no event */
        char *seen = strdup(buf_cstr(&c.body)), *note = strstr(seen, ": durability lost\n\n");
        if (note) memmove(note, note + 19, strlen(note + 19) + 1);
        check_prefix(seen, strlen(seen), s);
        free(seen);
    }
    client_close(&c);
    hd_free(s);
    drig_close(&d);
}

/* A drain leaves what does not end in time to the next start. */
static void drain(void **state) {
    drig d;
    client c;
    char *s;
    uint64_t end;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    begin(&c, &d, COMPLETE, "k", requests[0], "id: 10\n");
    server_drain(d.r.s, 20000);
    assert_true(client_finish(&c, LONG_DONE));
    assert_non_null(strstr(buf_cstr(&c.body), "data: {\"error\""));
    assert_non_null(strstr(buf_cstr(&c.body), "\"shutdown\""));
    for (end = now_ms() + LONG_DONE; !server_drained(d.r.s) && now_ms() < end;) sleep_ms(5);
    assert_true(server_drained(d.r.s));
    rig_close(&d.r);
    drig_start(&d);
    assert_int_equal(durable_now(&d, "running"), 1);
    s = ask_good(&d, COMPLETE, "k", NULL, requests[0]);
    check_numbers(s, 0);
    hd_free(s);
    client_close(&c);
    drig_close(&d);
}

/* Cut in the middle of a character: what the cut released was no part of the answer, and the next life goes on with the rest. */
static void cut_in_a_character(void **state) {
    static const char script[] =
        "{\"vocab\":[\"<s>\",\"</s>\",{\"hex\":\"E2\"},{\"hex\":\"82\"},{\"hex\":\"AC\"}],\"special\":{\"bos\":0,\"eos\":[1]},"
        "\"context\":400,\"token_delay_ms\":100,\"default\":{\"emit\":[\"a\",2,3,4,\"b\",2,3,4,\"c\"]}}";
    drig d;
    client c;
    char *s, *text;
    sse_list l;
    (void)state;
    drig_open(&d, script, NULL, NULL);
    begin(&c, &d, COMPLETE, "k", "{\"stream\":true,\"prompt\":\"x\"}", "\"text\":\"a\"");
    sleep_ms(150); /* one or two bytes of the sign are there */
    server_drain(d.r.s, 1000);
    assert_true(client_finish(&c, LONG_DONE));
    while (!server_drained(d.r.s)) sleep_ms(5);
    rig_close(&d.r);
    drig_start(&d);
    s = ask_good(&d, COMPLETE, "k", NULL, "{\"stream\":true,\"prompt\":\"x\"}");
    check_numbers(s, 0);
    sse_parse(s, &l);
    text = sse_text(&l, 0);
    assert_string_equal(text, "a\xE2\x82\xAC" "b\xE2\x82\xAC" "c");
    hd_free(text);
    sse_free(&l);
    hd_free(s);
    client_close(&c);
    drig_close(&d);
}

/* One server a log: the second says who has it, and does not start. */
static void two_servers(void **state) {
    drig d;
    server *s;
    server_options so = {0};
    hd_err err = {0};
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    so.state_dir = d.dir;
    so.log.vfs = "drig";
    assert_int_equal(server_open(&s, d.r.e, d.r.m, &so, &err), HD_IO);
    assert_null(s);
    assert_non_null(strstr(err.msg, "in use by process"));
    assert_non_null(strstr(err.msg, "--no-durable"));
    drig_close(&d);
}

/* A cancel that was answered is on disk: the power goes at once, and the next life does not take it up again. */
static void cancels_are_kept(void **state) {
    drig d;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    for (uint64_t life = 0; life < 6; life++) {
        client c;
        char id[64], json[100], path[100], key[20];
        json_t *v;
        snprintf(key, sizeof key, "c%d", (int)life);
        begin(&c, &d, CHAT, key, "{\"stream\":true,\"max_tokens\":3000," MSG("long") "}", "id: 5\n");
        id_of(buf_cstr(&c.body), id);
        snprintf(json, sizeof json, "{\"id\":\"%s\"}", id);
        snprintf(path, sizeof path, CHAT "/%s", id);
        v = rig_post(&d.r, "/v1/heddle/cancel", json, NULL);
        assert_true(json_is_true(at(v, "cancelled")));
        json_decref(v);
        if (life % 2) assert_string_equal(ask_bad(&d, "GET", path, NULL, NULL, 499), "cancelled_by_request");
        drig_restart(&d, life);
        assert_string_equal(ask_bad(&d, "GET", path, NULL, NULL, 499), "cancelled_by_request");
        assert_int_equal(durable_now(&d, "running"), 0);
        client_close(&c);
    }
    drig_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(power_cuts),      cmocka_unit_test(many_lives),      cmocka_unit_test(changed_defaults),
        cmocka_unit_test(changed_identity), cmocka_unit_test(deadline),       cmocka_unit_test(more_than_the_queue),
        cmocka_unit_test(lost_durability), cmocka_unit_test(lost_and_found),  cmocka_unit_test(drain),
        cmocka_unit_test(cut_in_a_character), cmocka_unit_test(two_servers),    cmocka_unit_test(cancels_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
