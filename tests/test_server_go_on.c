/* test_server_go_on.c - a stored response that ended at its cap goes on: as if it had had the larger cap from the beginning. */
#include "base/mem.h"
#include "util/durable_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two prompts, two answers each: one goes on for ever, the other ends by itself. */
#define WORK "\"prompt\":[\"long\",\"hello\"],\"n\":2,\"seed\":7,\"temperature\":0.8,\"logprobs\":2,\"return_token_ids\":true"

/* What is a response's own: its id and when it was made. */
static void blank(char *body, const char *name, char end) {
    for (char *p = body; (p = strstr(p, name));)
        for (p += strlen(name); *p && *p != end; p++) *p = '.';
}

static char *ask_cap(drig *d, const char *key, bool stream, const char *from, unsigned cap) {
    char json[400], *body;
    if (from) snprintf(json, sizeof json, "{\"continue_response\":\"%s\",\"max_tokens\":%u,\"stream\":%s}", from, cap, stream ? "true" : "false");
    else snprintf(json, sizeof json, "{" WORK ",\"max_tokens\":%u,\"stream\":%s}", cap, stream ? "true" : "false");
    body = ask_good(d, COMPLETE, key, NULL, json);
    return body;
}

static void same(char *a, char *b) {
    blank(a, "\"id\":\"", '"');
    blank(b, "\"id\":\"", '"');
    blank(a, "\"created\":", ',');
    blank(b, "\"created\":", ',');
    blank(a, "\"model\":\"heddle-script-", '"'); /* each start gives the script another name, */
    blank(b, "\"model\":\"heddle-script-", '"');
    blank(a, "\"system_fingerprint\":\"fp_", '"'); /* of which this is made */
    blank(b, "\"system_fingerprint\":\"fp_", '"');
    assert_string_equal(a, b);
    hd_free(a);
    hd_free(b);
}

/* The part of a reply that says what was answered. */
static json_t *choices_of(const char *body) {
    json_t *v = json_loads(body, 0, NULL), *c;
    assert_non_null(v);
    c = json_incref(json_object_get(v, "choices"));
    assert_int_equal(json_array_size(c), 4);
    json_decref(v);
    return c;
}

static long completion_tokens(const char *body) {
    const char *p = strstr(body, "\"completion_tokens\":");
    assert_non_null(p);
    return atol(p + 20);
}

/* Streamed and not, once and again, and by way of a cap between: always what the larger cap gives at once. */
static void as_from_the_beginning(void **state) {
    drig d;
    char *first, *whole, *on, id[64], id2[64];
    json_t *a, *b;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    first = ask_cap(&d, "six", false, NULL, 6);
    assert_non_null(strstr(first, "\"length\""));
    assert_non_null(strstr(first, "\"stop\""));
    id_of(first, id);
    hd_free(first);
    same(ask_cap(&d, "whole", true, NULL, 30), ask_cap(&d, "on", true, id, 30));
    same(ask_cap(&d, "on", true, id, 30), ask_cap(&d, "on", true, id, 30)); /* the key's */
    whole = ask_cap(&d, "whole", false, NULL, 30);
    on = ask_cap(&d, "on", false, id, 30);
    a = choices_of(whole), b = choices_of(on);
    assert_true(json_equal(a, b));
    assert_int_equal(completion_tokens(whole), completion_tokens(on));
    json_decref(a), json_decref(b);
    hd_free(whole), hd_free(on);
    first = ask_cap(&d, "twelve", false, id, 12);
    id_of(first, id2);
    hd_free(first);
    same(ask_cap(&d, "whole", true, NULL, 30), ask_cap(&d, "again", true, id2, 30));
    first = ask_cap(&d, "six", false, NULL, 6); /* the old one is as it was */
    assert_int_equal(completion_tokens(first), 2 * 6 + 2 * 3);
    hd_free(first);
    drig_close(&d);
}

/* Who has the events of the old one asks for the rest. */
static void only_the_rest(void **state) {
    static const char json[] = "{\"stream\":true,\"seed\":1,\"max_tokens\":%u," MSG("long") "}";
    drig d;
    char *old, *whole, *rest, id[64], body[200], last[40];
    long n = 0;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    snprintf(body, sizeof body, json, 10u);
    old = ask_good(&d, CHAT, "a", NULL, body);
    id_of(old, id);
    for (const char *p = old; (p = strstr(p, "id: ")); p++) n = atol(p + 4);
    snprintf(body, sizeof body, json, 25u);
    whole = ask_good(&d, CHAT, "b", NULL, body);
    snprintf(body, sizeof body, "{\"continue_response\":\"%s\",\"max_completion_tokens\":25,\"stream\":true}", id);
    snprintf(last, sizeof last, "Last-Event-ID: %ld\r\n", n - 1); /* the old one's last text; n has its finish */
    whole = memmove(whole, behind(whole, n - 1), strlen(behind(whole, n - 1)) + 1);
    rest = ask_good(&d, CHAT, NULL, last, body); /* without a key too */
    same(hd_strdup(whole), rest);
    rest = ask_good(&d, CHAT, "c", last, body);
    same(whole, rest);
    hd_free(old);
    drig_close(&d);
}

/* It is a durable request like others: the power goes while its beginning is copied, and while it goes on. */
static void across_power_cuts(void **state) {
    drig d;
    char *first, *whole, id[64], json[200];
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    first = ask_cap(&d, "six", false, NULL, 40);
    id_of(first, id);
    hd_free(first);
    whole = ask_cap(&d, "whole", true, NULL, 200);
    snprintf(json, sizeof json, "{\"continue_response\":\"%s\",\"max_tokens\":200,\"stream\":true}", id);
    for (uint64_t life = 0; life < 12; life++) {
        char key[20], *copy = hd_strdup(whole);
        client c;
        snprintf(key, sizeof key, "k%d", (int)life);
        assert_true(client_open(&c, d.r.port));
        snprintf(json + 150, 50, "Idempotency-Key: %s\r\n", key);
        assert_true(client_request(&c, "POST", COMPLETE, json + 150, json));
        if (life % 3 == 0) memvfs_cut_at_write(d.disk, (int)(life * 3));
        else client_until(&c, life % 3 == 1 ? "id: 100\n" : "id: 300\n", 2000);
        sleep_ms(life % 3 == 0 ? 30 : 1);
        drig_restart(&d, life);
        client_close(&c);
        same(copy, ask_cap(&d, key, true, id, 200));
    }
    hd_free(whole);
    drig_close(&d);
}

static const char *refused(drig *d, const char *path, const char *id, const char *rest, int status) {
    char json[300];
    snprintf(json, sizeof json, "{\"continue_response\":\"%s\"%s}", id, rest);
    return ask_bad(d, "POST", path, NULL, json, status);
}

static void refusals(void **state) {
    static const char *const keys[] = {"one", "two"};
    drig d;
    client c;
    char *body, id[64], json[200];
    int status;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    assert_string_equal(refused(&d, CHAT, "chatcmpl-none", ",\"max_tokens\":5", 404), "not_found");
    body = ask_good(&d, CHAT, "stops", NULL, "{" MSG("hello") "}");
    id_of(body, id);
    hd_free(body);
    assert_string_equal(refused(&d, CHAT, id, ",\"max_tokens\":9", 400), "invalid_value"); /* it had no cap */
    body = ask_good(&d, CHAT, "stops2", NULL, "{\"max_tokens\":8," MSG("hello") "}");
    id_of(body, id);
    hd_free(body);
    assert_string_equal(refused(&d, CHAT, id, ",\"max_tokens\":9", 409), "nothing_to_continue");
    assert_string_equal(refused(&d, CHAT, id, "", 400), "invalid_value");
    assert_string_equal(refused(&d, CHAT, id, ",\"max_tokens\":8", 400), "invalid_value");
    assert_string_equal(refused(&d, CHAT, id, ",\"max_tokens\":\"9\"", 400), "invalid_value");
    assert_string_equal(refused(&d, COMPLETE, id, ",\"max_tokens\":9", 404), "not_found"); /* of another kind */
    assert_string_equal(ask_bad(&d, "POST", CHAT, NULL, "{\"continue_response\":7,\"max_tokens\":9}", 400), "invalid_value");
    begin(&c, &d, CHAT, "runs", "{\"stream\":true,\"max_tokens\":3000," MSG("long") "}", "id: 3\n");
    id_of(buf_cstr(&c.body), id);
    assert_string_equal(refused(&d, CHAT, id, ",\"max_tokens\":4000", 409), "still_running");
    snprintf(json, sizeof json, "{\"id\":\"%s\"}", id);
    json_decref(rig_post(&d.r, "/v1/heddle/cancel", json, NULL));
    client_until(&c, "cancelled_by_request", LONG_DONE);
    client_close(&c);
    assert_true(durable_is(&d, "running", 0));
    assert_string_equal(refused(&d, CHAT, id, ",\"max_tokens\":4000", 409), "not_finished");
    drig_close(&d);

    drig_open(&d, durable_script, &(server_options){.api_keys = keys, .n_api_keys = 2}, NULL);
    body = ask_good(&d, CHAT, "k", "x-api-key: one\r\n", "{\"max_tokens\":4," MSG("long") "}");
    id_of(body, id);
    hd_free(body);
    snprintf(json, sizeof json, "{\"continue_response\":\"%s\",\"max_tokens\":9}", id);
    body = ask(&d, "POST", CHAT, NULL, "x-api-key: two\r\n", json, &status);
    assert_int_equal(status, 404);
    hd_free(body);
    hd_free(ask_good(&d, CHAT, NULL, "x-api-key: one\r\n", json));
    drig_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_from_the_beginning),
        cmocka_unit_test(only_the_rest),
        cmocka_unit_test(across_power_cuts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
