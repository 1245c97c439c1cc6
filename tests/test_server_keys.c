/* test_server_keys.c - several API keys: each sees, cancels and steers its own requests, the first one all. */
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
#include <unistd.h>

#define COMPLETE "/v1/completions"
#define RUN "{\"prompt\":\"run\",\"max_tokens\":5000,\"stream\":true}"
static const char script[] = "{\"vocab\":[\"<s>\",\"</s>\",\"X\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":100000,\"step_delay_ms\":5,"
                             "\"rules\":[{\"match\":\"run\",\"emit\":[2],\"then\":\"loop\"}],\"default\":{\"emit\":[2]}}";
static const char *const keys[] = {"op", "ann", "ben"};
enum { OP, ANN, BEN, N_KEYS };
static rig R;

static const char *as(int who) {
    static char head[N_KEYS][60];
    snprintf(head[who], sizeof head[who], "Authorization: Bearer %s\r\n", keys[who]);
    return head[who];
}

static void open_server(const engine_options *eo, const char *state_dir) {
    server_options so = {.api_keys = keys, .n_api_keys = N_KEYS, .state_dir = state_dir};
    rig_open(&R, script, &so, eo);
}

/* A stream that has begun, and the id of its response. */
static void begin(client *c, int who, const char *body, char id[64]) {
    const char *at;
    assert_true(client_open(c, R.port) && client_request(c, "POST", COMPLETE, as(who), body));
    assert_true(client_until(c, "\"id\":\"", 5000));
    at = strstr(c->body.data, "\"id\":\"") + 6;
    snprintf(id, 64, "%.*s", (int)strcspn(at, "\""), at);
}

static json_t *state_as(int who) {
    char *text = NULL;
    json_t *v;
    assert_int_equal(client_once(R.port, "GET", "/v1/heddle/state", as(who), NULL, &text), 200);
    v = json_loads(text, 0, NULL);
    assert_non_null(v);
    hd_free(text);
    return v;
}

/* How often `id` is in the list, and how long the list is. */
static size_t found(json_t *v, const char *list, const char *id, size_t *n) {
    size_t k = 0;
    json_t *l = json_object_get(v, list);
    *n = json_array_size(l);
    for (size_t i = 0; i < *n; i++) k += !strcmp(str_at(json_array_get(l, i), "id"), id);
    return k;
}

/* Status of a cancel; *did: what it says it did. */
static int cancel_as(int who, const char *id, bool *did) {
    char body[100], *text = NULL;
    int status;
    snprintf(body, sizeof body, "{\"id\":\"%s\"}", id);
    status = client_once(R.port, "POST", "/v1/heddle/cancel", as(who), body, &text);
    *did = strstr(text, "\"cancelled\":true") != NULL;
    hd_free(text);
    return status;
}

static int steer_as(int who, const char *id) {
    char body[100];
    snprintf(body, sizeof body, "{\"id\":\"%s\",\"priority\":\"low\"}", id);
    return client_once(R.port, "POST", "/v1/heddle/steer", as(who), body, NULL);
}

/* All rows of `who` that it sees are its own, `own` of them; the totals are everybody's. */
static void check_state(int who, size_t own, size_t all, const char *list, const char *own_id, const char *other_id) {
    json_t *v = state_as(who);
    size_t n;
    assert_int_equal(found(v, list, own_id, &n), own);
    if (other_id) assert_int_equal(found(v, list, other_id, &n), who == OP ? all - own : 0);
    assert_int_equal(n, who == OP ? all : own);
    json_decref(v);
}

static void rows_that_run(void **state) {
    char ann_id[64], ben_id[64];
    client a, b;
    json_t *v;
    bool did;
    (void)state;
    open_server(NULL, NULL);
    begin(&a, ANN, RUN, ann_id);
    begin(&b, BEN, "{\"prompt\":\"run\",\"max_tokens\":5000,\"stream\":true,\"n\":3}", ben_id);
    check_state(ANN, 1, 4, "rows", ann_id, ben_id);
    check_state(BEN, 3, 4, "rows", ben_id, ann_id);
    check_state(OP, 1, 4, "rows", ann_id, ben_id);
    v = state_as(ANN);
    assert_int_equal(json_integer_value(at(v, "running")), 4);
    json_decref(v);
    /* Somebody else's id is as unknown as one that never was. */
    assert_int_equal(cancel_as(BEN, ann_id, &did), 404);
    assert_int_equal(steer_as(BEN, ann_id), 404);
    assert_int_equal(steer_as(ANN, ben_id), 404);
    check_state(ANN, 1, 4, "rows", ann_id, ben_id);
    assert_int_equal(steer_as(ANN, ann_id), 200);
    assert_int_equal(steer_as(OP, ben_id), 200);
    assert_int_equal(cancel_as(ANN, ann_id, &did), 200);
    assert_true(did);
    assert_true(client_finish(&a, 5000));
    assert_non_null(strstr(a.body.data, "cancelled_by_request"));
    /* The same when it is over. */
    assert_int_equal(cancel_as(ANN, ann_id, &did), 200);
    assert_false(did);
    assert_int_equal(cancel_as(BEN, ann_id, &did), 404);
    assert_int_equal(cancel_as(OP, ann_id, &did), 200);
    assert_int_equal(cancel_as(OP, ben_id, &did), 200);
    assert_true(did);
    client_close(&a);
    client_close(&b);
    rig_close(&R);
}

static void who_waits(void **state) {
    engine_options eo = {.max_rows = 1};
    char op_id[64], body[100];
    client o, a, b;
    json_t *v;
    size_t n;
    (void)state;
    open_server(&eo, NULL);
    begin(&o, OP, RUN, op_id);
    assert_true(client_open(&a, R.port) && client_request(&a, "POST", COMPLETE, as(ANN), RUN));
    snprintf(body, sizeof body, "{\"prompt\":\"run\",\"max_tokens\":50}");
    assert_true(client_open(&b, R.port) && client_request(&b, "POST", COMPLETE, as(BEN), body));
    for (int i = 0; i < 500; i++, sleep_ms(5)) {
        v = state_as(ANN);
        n = (size_t)json_integer_value(at(v, "waiting"));
        json_decref(v);
        if (n == 2) break;
    }
    for (int who = OP; who <= BEN; who++) {
        v = state_as(who);
        assert_int_equal(json_integer_value(at(v, "waiting")), 2);
        assert_int_equal(json_array_size(json_object_get(v, "queue")), who == OP ? 2 : 1);
        assert_int_equal(json_array_size(json_object_get(v, "rows")), who == OP ? 1 : 0);
        json_decref(v);
    }
    client_close(&o), client_close(&a), client_close(&b);
    rig_close(&R);
}

/* A durable one, which has no connection any more. */
static void detached(void **state) {
    char dir[] = "/tmp/heddle-keys-XXXXXX", cmd[80], *text = NULL, *p;
    char id[64];
    bool did;
    (void)state;
    assert_non_null(mkdtemp(dir));
    open_server(NULL, dir);
    assert_int_equal(client_once(R.port, "POST", COMPLETE, as(ANN), "{\"prompt\":\"run\",\"max_tokens\":5000,\"background\":true}", &text), 202);
    p = strstr(text, "\"id\":\"") + 6;
    snprintf(id, sizeof id, "%.*s", (int)strcspn(p, "\""), p);
    hd_free(text);
    for (int i = 0; i < 500; i++, sleep_ms(5)) {
        json_t *v = state_as(ANN);
        size_t n, k = found(v, "rows", id, &n);
        json_decref(v);
        if (k) break;
    }
    check_state(ANN, 1, 1, "rows", id, NULL);
    check_state(BEN, 0, 1, "rows", id, NULL);
    check_state(OP, 1, 1, "rows", id, NULL);
    assert_int_equal(cancel_as(BEN, id, &did), 404);
    assert_int_equal(steer_as(BEN, id), 404);
    /* A server that starts again knows whose it is. */
    rig_close(&R);
    open_server(NULL, dir);
    for (int i = 0; i < 500; i++, sleep_ms(5)) {
        json_t *v = state_as(OP);
        size_t n, k = found(v, "rows", id, &n);
        json_decref(v);
        if (k) break;
    }
    check_state(ANN, 1, 1, "rows", id, NULL);
    check_state(BEN, 0, 1, "rows", id, NULL);
    assert_int_equal(cancel_as(BEN, id, &did), 404);
    assert_int_equal(cancel_as(ANN, id, &did), 200);
    assert_true(did);
    rig_close(&R);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_run), cmocka_unit_test(who_waits), cmocka_unit_test(detached),
    };
    return cmocka_run_group_tests_name("server_keys", tests, NULL, NULL);
}
