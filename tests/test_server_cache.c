/* test_server_cache.c - the prefix cache as clients see it: usage, state, metrics, salts and keys, agent turns. */
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
#include <time.h>

#define CHAT "/v1/chat/completions"
#define COMPLETE "/v1/completions"

/* A template that drops the reasoning of past turns, as those of reasoning models do. */
static const char script[] =
    "{\"vocab\":[\"<s>\",\"</s>\",\"<think>\",\"</think>\",\"Hi\",\" there\",\"[user]\",\"[bot]\"],"
    "\"special\":{\"bos\":0,\"eos\":[1]},\"context\":4096,"
    "\"template\":\"{% for m in messages %}[{{ 'bot' if m.role == 'assistant' else 'user' }}]"
    "{{ m.content.split('</think>')[-1] }}{% endfor %}[bot]\","
    "\"rules\":[{\"match\":\"reason\",\"emit\":[\"<think>\",\"xyz so it is\",\"</think>\",\"Hi\"]}],"
    "\"default\":{\"emit\":[\"Hi\",\" there\"]}}";

static rig R;

static long cached(json_t *v) { return (long)json_integer_value(at(v, "usage.prompt_tokens_details.cached_tokens")); }
static const char *miss(json_t *v) { return str_at(v, "usage.prompt_tokens_details.cache_miss"); }
static long miss_at(json_t *v) { return (long)json_integer_value(at(v, "usage.prompt_tokens_details.cache_miss_at")); }
static long prompt_tokens(json_t *v) { return (long)json_integer_value(at(v, "usage.prompt_tokens")); }

/* Post and expect 200. */
static json_t *good(const char *path, const char *json) {
    int status;
    json_t *v = rig_post(&R, path, json, &status);
    if (status != 200) fail_msg("%s: %d %s", json, status, str_at(v, "error.message"));
    return v;
}

static void open_server(void) {
    engine_options eo = {.page_tokens = 16, .kv_budget_bytes = 32 << 20};
    rig_open(&R, script, NULL, &eo);
}

static void second_turn(char *out, size_t n, const char *kept, const char *more) {
    snprintf(out, n, "{\"messages\":[{\"role\":\"user\",\"content\":\"please reason about the shuttle and the loom\"},"
             "{\"role\":\"assistant\",\"content\":\"%sHi\"},{\"role\":\"user\",\"content\":\"and now?\"}]%s}", kept, more);
}

/* R018: the template renders past turns without their reasoning.  The second turn computes what comes after the first
 * one's prompt, and answers as if nothing had been kept. */
static void r018_reasoning_is_dropped(void **state) {
    static const char *const kept[] = {"", "<think>xyz so it is</think>"}; /* clients do either */
    char json[600];
    (void)state;
    for (int k = 0; k < 2; k++) {
        json_t *v, *w;
        long first;
        open_server();
        v = good(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"please reason about the shuttle and the loom\"}]}");
        assert_string_equal(str_at(v, "choices.0.message.content"), "<think>xyz so it is</think>Hi");
        assert_int_equal(cached(v), 0);
        assert_string_equal(miss(v), "new");
        first = prompt_tokens(v);
        json_decref(v);
        second_turn(json, sizeof json, kept[k], "");
        v = good(CHAT, json);
        assert_int_equal(cached(v), first); /* to the token: what follows is <think> there and Hi here */
        assert_string_equal(miss(v), "differs");
        assert_int_equal(miss_at(v), first);
        second_turn(json, sizeof json, kept[k], ",\"cache_prompt\":false");
        w = good(CHAT, json);
        assert_int_equal(cached(w), 0);
        assert_string_equal(miss(w), "off");
        assert_true(json_equal(at(v, "choices"), at(w, "choices")));
        json_decref(v);
        json_decref(w);
        rig_close(&R);
    }
}

/* An answer that comes back as it was said is not computed again. */
static void three_turns(void **state) {
    char json[2000] = "{\"messages\":[", *p;
    long known = 0;
    (void)state;
    open_server();
    for (int turn = 0; turn < 3; turn++) {
        json_t *v;
        p = json + strlen(json);
        snprintf(p, sizeof json - strlen(json),
                 "{\"role\":\"user\",\"content\":\"turn %d: the weaver sets the warp and then the weft, over and under\"}]}", turn);
        v = good(CHAT, json);
        assert_string_equal(str_at(v, "choices.0.message.content"), "Hi there");
        assert_int_equal(cached(v), known);
        known = prompt_tokens(v) + 2; /* its two tokens; the EOS was not computed */
        json[strlen(json) - 2] = 0;
        strcat(json, ",{\"role\":\"assistant\",\"content\":\"Hi there\"},");
        json_decref(v);
    }
    rig_close(&R);
}

static void salts_and_fields(void **state) {
    static const char *const wrong[][2] = {
        {"\"cache_prompt\":3", "cache_prompt"}, {"\"cache_salt\":[]", "cache_salt"}, {"\"cache_pin\":0", "cache_pin"},
        {"\"cache_pin\":-5", "cache_pin"},      {"\"cache_pin\":1.5", "cache_pin"}, {"\"cache_pin\":86401", "cache_pin"},
        {"\"cache_pin\":\"5m\"", "cache_pin"}};
    json_t *v;
    int status;
    (void)state;
    open_server();
#define PROMPT "\"prompt\":\"a prompt of some thirty tokens, it seems\",\"max_tokens\":2"
    json_decref(good(COMPLETE, "{" PROMPT ",\"cache_salt\":\"one\"}"));
    v = good(COMPLETE, "{" PROMPT ",\"cache_salt\":\"one\"}");
    assert_int_equal(cached(v), prompt_tokens(v) - 1);
    json_decref(v);
    v = good(COMPLETE, "{" PROMPT ",\"cache_salt\":\"two\"}");
    assert_int_equal(cached(v), 0);
    assert_string_equal(miss(v), "namespace");
    json_decref(v);
    v = good(COMPLETE, "{" PROMPT "}");
    assert_int_equal(cached(v), 0);
    json_decref(v);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char json[200];
        snprintf(json, sizeof json, "{" PROMPT ",%s}", wrong[i][0]);
        v = rig_post(&R, COMPLETE, json, &status);
        assert_int_equal(status, 400);
        assert_string_equal(str_at(v, "error.param"), wrong[i][1]);
        json_decref(v);
    }
    rig_close(&R);
}

/* cache_pin: what was pinned is said, and shown. */
static void pins(void **state) {
    static const char *const fields[] = {"true", "86400", "3600.0", "null", "false"};
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char json[200];
        json_t *v, *pinned;
        open_server();
        snprintf(json, sizeof json, "{" PROMPT ",\"cache_pin\":%s}", fields[i]);
        v = good(COMPLETE, json);
        pinned = json_object_get(at(v, "usage.prompt_tokens_details"), "pinned_tokens");
        if (i < 3) assert_int_equal(json_integer_value(pinned), 32); /* whole pages of 16 */
        else assert_null(pinned);
        json_decref(v);
        assert_true(rig_wait(&R, "rows", 0, 5000)); /* not "pages.used": none are yet when a row is first shown */
        assert_int_equal(rig_state(&R, "pages.pinned"), i < 3 ? 2 : 0);
        assert_int_equal(rig_state(&R, "pages.pins"), i < 3);
        rig_close(&R);
    }
}

static json_t *as(const char *key, const char *json) {
    char head[100], *body;
    json_t *v;
    snprintf(head, sizeof head, "Authorization: Bearer %s\r\n", key);
    assert_int_equal(client_once(R.port, "POST", COMPLETE, head, json, &body), 200);
    assert_non_null(v = json_loads(body, 0, NULL));
    hd_free(body);
    return v;
}

/* How fast an answer comes must not tell one key what another one asked. */
static void keys_do_not_share(void **state) {
    static const char *const keys[] = {"ann", "ben"};
    server_options so = {.api_keys = keys, .n_api_keys = 2};
    engine_options eo = {.page_tokens = 16};
    json_t *v;
    (void)state;
    rig_open(&R, script, &so, &eo);
    json_decref(as("ann", "{" PROMPT "}"));
    v = as("ann", "{" PROMPT "}");
    assert_true(cached(v) > 0);
    json_decref(v);
    v = as("ben", "{" PROMPT "}");
    assert_int_equal(cached(v), 0);
    json_decref(v);
    rig_close(&R);
}

/* Spaces have the same names after a restart on the same state directory, and still nobody takes up what is another's. */
static void spaces_survive_a_restart(void **state) {
    static const char *const keys[] = {"ann", "ben"};
    char dir[] = "/tmp/heddle-spaces-XXXXXX", cmd[80];
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int keyed = 0; keyed < 2; keyed++)
        for (int start = 0; start < 2; start++) {
            server_options so = {.api_keys = keys, .n_api_keys = keyed ? 2 : 0};
            store_opts to = {.dir = dir, .linger_ms = 1};
            engine_options eo = {.page_tokens = 16};
            hd_err err;
            json_t *v;
            assert_int_equal(store_open(&eo.store, &to, &err), HD_OK);
            rig_open(&R, script, &so, &eo);
            if (keyed) {
                v = as("ann", "{" PROMPT "}");
                assert_int_equal(cached(v), start ? 32 : 0); /* whole pages */
                json_decref(v);
                v = as("ben", "{" PROMPT ",\"max_tokens\":1}");
                assert_int_equal(cached(v), start ? 32 : 0); /* his own of the first start */
            } else {
                v = good(COMPLETE, "{" PROMPT ",\"cache_salt\":\"one\"}");
                assert_int_equal(cached(v), start ? 32 : 0);
                json_decref(v);
                v = good(COMPLETE, "{" PROMPT ",\"cache_salt\":\"another\"}");
                if (!start) assert_int_equal(cached(v), 0);
            }
            json_decref(v);
            rig_close(&R);
            store_close(eo.store);
        }
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    assert_int_equal(system(cmd), 0);
}

static void seen_from_outside(void **state) {
    json_t *v;
    char *text;
    int status;
    (void)state;
    open_server();
    json_decref(good(COMPLETE, "{" PROMPT "}"));
    json_decref(good(COMPLETE, "{" PROMPT "}"));
    for (int i = 0;; i++) { /* pages are let go of a moment after the reply */
        v = rig_get(&R, "/v1/heddle/state", &status);
        if (!json_integer_value(at(v, "pages.used"))) break;
        assert_true(i < 2000);
        json_decref(v);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    assert_true(json_integer_value(at(v, "pages.cached")) > 0);
    assert_int_equal(json_integer_value(at(v, "pages.shared")), 0);
    json_decref(v);
    assert_int_equal(client_once(R.port, "GET", "/metrics", NULL, NULL, &text), 200);
    assert_non_null(strstr(text, "reason=\"new\"} 1\n"));
    assert_non_null(strstr(text, "reason=\"none\"} 1\n"));
    hd_free(text);
    rig_close(&R);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r018_reasoning_is_dropped), cmocka_unit_test(three_turns),       cmocka_unit_test(salts_and_fields),
        cmocka_unit_test(keys_do_not_share),         cmocka_unit_test(spaces_survive_a_restart),
        cmocka_unit_test(seen_from_outside),         cmocka_unit_test(pins),
    };
    return cmocka_run_group_tests_name("cache over HTTP", tests, NULL, NULL);
}
