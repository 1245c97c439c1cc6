/* test_server_embeddings.c - POST /v1/embeddings: input shapes, encodings, refusals, company, leaving.
 *
 * The scripted model's hidden state of token t at position p is h[i] = (31 t + 7 (p + 1)(i + 1)) mod 101 - 50. */
#include "base/mem.h"
#include "util/server_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMBED "/v1/embeddings"
enum { WIDTH = 8 };
/* "X" is id 1; bytes follow from id 2 on. */
static const char script[] = "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":50,"
                             "\"default\":{\"emit\":[1],\"then\":\"loop\"}}";
static const char slow[] = "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":500,\"prompt_delay_ms\":10,"
                           "\"default\":{\"emit\":[1],\"then\":\"loop\"}}";
static rig R;

static int open_rig(void **state) {
    (void)state;
    rig_open(&R, script, NULL, NULL);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    rig_close(&R);
    return 0;
}

static double hidden(int id, int pos, int i) { return (31 * id + 7 * (pos + 1) * (i + 1)) % 101 - 50; }

/* The state of the last of n tokens, divided by its length unless raw. */
static void last_state(int id, int n, bool raw, double *v) {
    double length = 0;
    for (int i = 0; i < WIDTH; i++) v[i] = hidden(id, n - 1, i), length += v[i] * v[i];
    for (int i = 0; i < WIDTH && !raw; i++) v[i] = (float)(v[i] / sqrt(length));
}

static void assert_vector(json_t *reply, int index, const double *want) {
    char path[40];
    json_t *v;
    snprintf(path, sizeof path, "data.%d.embedding", index);
    v = at(reply, path);
    assert_int_equal(json_array_size(v), WIDTH);
    for (int i = 0; i < WIDTH; i++)
        if ((float)json_number_value(json_array_get(v, (size_t)i)) != (float)want[i])
            fail_msg("%s[%d] is %.9g, expected %.9g", path, i, json_number_value(json_array_get(v, (size_t)i)), want[i]);
    snprintf(path, sizeof path, "data.%d.index", index);
    assert_int_equal(json_integer_value(at(reply, path)), index);
    snprintf(path, sizeof path, "data.%d.object", index);
    assert_string_equal(str_at(reply, path), "embedding");
}

static json_t *post(const char *json) {
    int status;
    json_t *v = rig_post(&R, EMBED, json, &status);
    if (status != 200) fail_msg("%s: %d: %s", json, status, str_at(v, "error.message"));
    assert_string_equal(str_at(v, "object"), "list");
    assert_memory_equal(str_at(v, "model"), "heddle-script", 13);
    return v;
}

static void usage_is(json_t *v, int tokens) {
    assert_int_equal(json_integer_value(at(v, "usage.prompt_tokens")), tokens);
    assert_int_equal(json_integer_value(at(v, "usage.total_tokens")), tokens);
}

static void inputs_of_every_shape(void **state) {
    double v[WIDTH], w[WIDTH];
    json_t *r;
    (void)state;
    last_state(1, 3, false, v);
    r = post("{\"input\":\"XXX\"}");
    assert_int_equal(json_array_size(at(r, "data")), 1);
    assert_vector(r, 0, v);
    usage_is(r, 3);
    json_decref(r);
    r = post("{\"input\":[1,1,1],\"model\":\"\",\"encoding_format\":\"float\",\"user\":\"u\",\"dimensions\":8}");
    assert_int_equal(json_array_size(at(r, "data")), 1);
    assert_vector(r, 0, v);
    json_decref(r);
    last_state(2 + 'a', 1, false, w);
    r = post("{\"input\":[\"XXX\",\"a\",\"XXX\"],\"encoding_format\":null}");
    assert_int_equal(json_array_size(at(r, "data")), 3);
    assert_vector(r, 0, v);
    assert_vector(r, 1, w);
    assert_vector(r, 2, v);
    usage_is(r, 7);
    json_decref(r);
    r = post("{\"input\":[[99],[1,1.0,1e0],\"XXX\"]}");
    assert_vector(r, 0, w);
    assert_vector(r, 1, v);
    assert_vector(r, 2, v);
    json_decref(r);
}

static void pooling_and_length(void **state) {
    double v[WIDTH], mean[WIDTH];
    json_t *r = post("{\"input\":\"XX\",\"pooling\":\"last\",\"normalize\":false}");
    (void)state;
    last_state(1, 2, true, v);
    assert_vector(r, 0, v);
    json_decref(r);
    r = post("{\"input\":\"XX\",\"pooling\":\"mean\",\"normalize\":false}");
    for (int i = 0; i < WIDTH; i++) mean[i] = (hidden(1, 0, i) + hidden(1, 1, i)) / 2;
    assert_vector(r, 0, mean);
    json_decref(r);
    r = post("{\"input\":\"XX\",\"pooling\":\"cls\",\"normalize\":true}");
    last_state(1, 1, false, v);
    assert_vector(r, 0, v);
    json_decref(r);
}

/* Bytes as RFC 4648 has them: h of "X" is -12 -5 2 9 16 23 30 37, of "XX" (last) -5 9 23 37 -50 -36 -22 -8. */
static void base64_is_float32(void **state) {
    json_t *r = post("{\"input\":[\"X\",\"XX\"],\"encoding_format\":\"base64\",\"normalize\":false}");
    (void)state;
    /* python3 -c "import base64,struct; print(base64.b64encode(struct.pack('<8f', ...)))" */
    assert_string_equal(str_at(r, "data.0.embedding"), "AABAwQAAoMAAAABAAAAQQQAAgEEAALhBAADwQQAAFEI=");
    assert_string_equal(str_at(r, "data.1.embedding"), "AACgwAAAEEEAALhBAAAUQgAASMIAABDCAACwwQAAAME=");
    usage_is(r, 3);
    json_decref(r);
}

static void wrong_requests(void **state) {
    static const struct {
        const char *json;
        int status;
        const char *param, *code;
    } cases[] = {
        {"{}", 400, "input", "invalid_value"},
        {"{\"input\":null}", 400, "input", NULL},
        {"{\"input\":\"\"}", 400, "input", NULL},
        {"{\"input\":[]}", 400, "input", NULL},
        {"{\"input\":[\"X\",\"\"]}", 400, "input", NULL},
        {"{\"input\":[[]]}", 400, "input", NULL},
        {"{\"input\":5}", 400, "input", NULL},
        {"{\"input\":{\"text\":\"X\"}}", 400, "input", NULL},
        {"{\"input\":[1,\"X\"]}", 400, "input", NULL},
        {"{\"input\":[\"X\",1]}", 400, "input", NULL},
        {"{\"input\":[[1],null]}", 400, "input", NULL},
        {"{\"input\":[[1.5]]}", 400, "input", NULL},
        {"{\"input\":[258]}", 400, "input", NULL},
        {"{\"input\":[-1]}", 400, "input", NULL},
        {"{\"input\":[[[1]]]}", 400, "input", NULL},
        {"{\"input\":\"XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX\"}", 400, "input", "context_length_exceeded"},
        {"{\"input\":\"X\",\"encoding_format\":\"x\"}", 400, "encoding_format", NULL},
        {"{\"input\":\"X\",\"encoding_format\":7}", 400, "encoding_format", NULL},
        {"{\"input\":\"X\",\"dimensions\":4}", 400, "dimensions", "unsupported_parameter"},
        {"{\"input\":\"X\",\"dimensions\":0}", 400, "dimensions", NULL},
        {"{\"input\":\"X\",\"dimensions\":\"8\"}", 400, "dimensions", NULL},
        {"{\"input\":\"X\",\"pooling\":\"max\"}", 400, "pooling", NULL},
        {"{\"input\":\"X\",\"normalize\":1}", 400, "normalize", NULL},
        {"{\"input\":\"X\",\"model\":\"other\"}", 404, "model", "model_not_found"},
        {"{\"input\":\"X\"", 400, NULL, "invalid_json"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status;
        json_t *v = rig_post(&R, EMBED, cases[i].json, &status);
        if (status != cases[i].status) fail_msg("%s: %d: %s", cases[i].json, status, str_at(v, "error.message"));
        if (cases[i].param) assert_string_equal(str_at(v, "error.param"), cases[i].param);
        if (cases[i].code) assert_string_equal(str_at(v, "error.code"), cases[i].code);
        json_decref(v);
    }
}

/* An input that fills the context to the last token is embedded: nothing is generated behind it. */
static void a_full_context(void **state) {
    double v[WIDTH];
    json_t *r = post("{\"input\":\"XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX\"}");
    (void)state;
    last_state(1, 50, false, v);
    assert_vector(r, 0, v);
    usage_is(r, 50);
    json_decref(r);
}

static void beside_a_chat(void **state) {
    client c;
    sse_list l;
    char *text;
    double v[WIDTH];
    (void)state;
    last_state(1, 3, false, v);
    assert_true(client_open(&c, R.port));
    assert_true(client_request(&c, "POST", "/v1/chat/completions", NULL,
                               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":40,\"stream\":true}"));
    for (int i = 0; i < 20; i++) {
        json_t *r = post("{\"input\":[\"XXX\",\"XXX\"]}");
        assert_vector(r, 0, v);
        assert_vector(r, 1, v);
        json_decref(r);
    }
    assert_true(client_finish(&c, 20000));
    sse_parse(buf_cstr(&c.body), &l);
    text = sse_text(&l, 0);
    assert_int_equal(strlen(text), 40);
    hd_free(text);
    sse_free(&l);
    client_close(&c);
    assert_true(rig_wait(&R, "rows", 0, 5000));
}

/* Far more inputs than can wait: in order, while others find room in the queue. */
static void a_long_list(void **state) {
    enum { N = 2048 };
    hd_buf body;
    client c;
    rig r;
    json_t *v;
    int status;
    uint64_t end;
    (void)state;
    rig_open(&r, script, NULL, &(engine_options){.max_rows = 2, .max_queued = 4});
    buf_init(&body, 1 << 20);
    buf_str(&body, "{\"input\":[");
    for (int i = 0; i < N; i++) buf_fmt(&body, "%s[%d,%d]", i ? "," : "", i % 250, i % 7);
    buf_str(&body, "]}");
    assert_true(client_open(&c, r.port));
    assert_true(client_request(&c, "POST", EMBED, NULL, buf_cstr(&body)));
    for (int i = 0; i < 5; i++) {
        v = rig_post(&r, "/v1/completions", "{\"prompt\":\"X\",\"max_tokens\":2}", &status);
        if (status != 200) fail_msg("%d: %s", status, str_at(v, "error.message"));
        json_decref(v);
    }
    assert_true(client_finish(&c, 30000));
    v = json_loadb(buf_cstr(&c.body), c.body.len, 0, NULL);
    assert_int_equal(json_array_size(at(v, "data")), N);
    usage_is(v, 2 * N);
    for (int i = 0; i < N; i++) {
        double want[WIDTH];
        last_state(i % 7, 2, false, want);
        assert_vector(v, i, want);
    }
    json_decref(v);
    client_close(&c);
    body.len -= 2;
    buf_str(&body, ",[1]]}");
    v = rig_post(&r, EMBED, buf_cstr(&body), &status);
    assert_int_equal(status, 400);
    assert_string_equal(str_at(v, "error.param"), "input");
    json_decref(v);
    rig_close(&r);
    rig_open(&r, slow, NULL, &(engine_options){.max_rows = 2, .max_queued = 4}); /* cancelled or left in the middle */
    for (int leave = 0; leave < 2; leave++) {
        char id[80] = "", cancel[120];
        buf_clear(&body);
        buf_str(&body, "{\"input\":[[1]");
        for (int i = 0; i < 1000; i++) buf_str(&body, ",[1,1]");
        buf_str(&body, "]}");
        assert_true(client_open(&c, r.port));
        assert_true(client_request(&c, "POST", EMBED, NULL, buf_cstr(&body)));
        for (end = now_ms() + 10000; !*id && now_ms() < end;) {
            v = rig_get(&r, "/v1/heddle/state", NULL);
            snprintf(id, sizeof id, "%s", str_at(v, "rows.0.id"));
            json_decref(v);
        }
        assert_memory_equal(id, "embd-", 5);
        if (leave) {
            client_close(&c);
        } else {
            snprintf(cancel, sizeof cancel, "{\"id\":\"%s\"}", id);
            v = rig_post(&r, "/v1/heddle/cancel", cancel, &status);
            assert_true(json_is_true(at(v, "cancelled")));
            json_decref(v);
            assert_true(client_finish(&c, 10000));
            assert_int_equal(c.status, 499);
            client_close(&c);
        }
        assert_true(rig_wait(&r, "rows", 0, 5000));
        assert_int_equal(rig_state(&r, "waiting"), 0);
    }
    buf_deinit(&body);
    rig_close(&r);
}

/* It is seen in the state under its method, and a peer that leaves ends it. */
static void leaving(void **state) {
    client c;
    rig r;
    bool seen = false;
    (void)state;
    rig_open(&r, slow, NULL, &(engine_options){.step_tokens = 4});
    assert_true(client_open(&c, r.port));
    assert_true(client_request(&c, "POST", EMBED, NULL, "{\"input\":[[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                               "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]]}"));
    for (int i = 0; i < 5000 && !seen; i++) {
        json_t *v = rig_get(&r, "/v1/heddle/state", NULL);
        seen = !strncmp(str_at(v, "rows.0.id"), "embd-", 5);
        json_decref(v);
    }
    assert_true(seen);
    client_close(&c);
    assert_true(rig_wait(&r, "rows", 0, 5000));
    assert_int_equal(rig_state(&r, "cancelled.client_disconnected"), 1);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_of_every_shape), cmocka_unit_test(pooling_and_length), cmocka_unit_test(base64_is_float32),
        cmocka_unit_test(wrong_requests),        cmocka_unit_test(a_full_context),     cmocka_unit_test(beside_a_chat),
        cmocka_unit_test(a_long_list),           cmocka_unit_test(leaving),
    };
    return cmocka_run_group_tests_name("embeddings over HTTP", tests, open_rig, close_rig);
}
