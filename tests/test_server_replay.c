/* test_server_replay.c - R019: an answer whose text tokenises otherwise than it was sampled comes back in the history.  With
 * the ids that the message brought along it is a hit to its end; without them up to where the ids part.  What is answered
 * is a function of the request alone: a server that never saw the first turn makes the same prompt of the second. */
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

/* Ids: 0 <s>, 1 </s>, 2 Han, 3 zi, 4 H, 5 anzi, 6 [user], 7 [bot]; then the bytes.  Markers are control tokens. */
enum { EOS = 1, HAN, ZI, H, ANZI, BOT = 7, BYTE0 };
#define SCRIPT(content, emit)                                                                                          \
    "{\"vocab\":[\"<s>\",\"</s>\",\"Han\",\"zi\",\"H\",\"anzi\",\"[user]\",\"[bot]\"],"                                \
    "\"special\":{\"bos\":0,\"eos\":[1,6,7]},\"context\":4096,"                                                        \
    "\"template\":\"{% for m in messages %}{{ '[bot]' if m.role == 'assistant' else '[user]' }}" content               \
    "{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}\","       \
    "\"default\":{\"emit\":" emit "}}"
static const char plain[] = SCRIPT("{{ m.content }}", "[4,5,\" and \",4,5]");
static const char trims[] = SCRIPT("{{ m.content | trim }}", "[\"\\n\",4,5,\" and \",4,5,\" \"]");
static const char strips[] = SCRIPT("{{ m.content.split('.')[-1] }}", "[4,5,\" and.\",4,5]");
static const char half_trimmed[] = SCRIPT("{{ m.content | trim }}", "[\"\\n\",4,5]"); /* as trims, the first id differs */

#define QUESTION "{\"role\":\"user\",\"content\":\"What is it called over there? \"}"
#define NEXT "{\"role\":\"user\",\"content\":\"And here?\"}"

static json_t *good(rig *r, json_t *body) {
    char *json = json_dumps(body, 0);
    int status;
    json_t *v = rig_post(r, CHAT, json, &status);
    if (status != 200) fail_msg("%s: %d %s", json, status, str_at(v, "error.message"));
    free(json);
    return v;
}

static long detail(json_t *v, const char *name) {
    json_t *x = json_object_get(at(v, "usage.prompt_tokens_details"), name);
    return x ? (long)json_integer_value(x) : -1;
}

static json_t *first_turn(rig *r) {
    json_t *body = json_loads("{\"messages\":[" QUESTION "],\"return_token_ids\":true}", 0, NULL), *v = good(r, body);
    json_decref(body);
    return v;
}

/* The question again, `message`, and another question. */
static json_t *second_body(json_t *message) {
    json_t *body = json_loads("{\"messages\":[" QUESTION ",0," NEXT "],\"return_token_ids\":true}", 0, NULL);
    json_array_set(at(body, "messages"), 1, message);
    return body;
}

static json_t *second_turn(rig *r, json_t *message) {
    json_t *body = second_body(message), *v = good(r, body);
    json_decref(body);
    return v;
}

static void open_rig(rig *r, const char *script) { rig_open(r, script, NULL, &(engine_options){.page_tokens = 16}); }

/* Tokens that the first turn computed: its prompt and its answer. */
static long computed(json_t *v) {
    return (long)(json_array_size(at(v, "prompt_token_ids")) + json_array_size(at(v, "choices.0.token_ids")));
}

static void same_prompt_elsewhere(const char *script, json_t *message, json_t *warm) {
    rig r;
    json_t *v;
    open_rig(&r, script);
    v = second_turn(&r, message);
    assert_int_equal(detail(v, "cached_tokens"), 0);
    assert_true(json_equal(at(v, "prompt_token_ids"), at(warm, "prompt_token_ids")));
    assert_true(json_equal(at(v, "choices"), at(warm, "choices")));
    json_decref(v);
    rig_close(&r);
}

static void r019_the_message_comes_back(void **state) {
    rig r;
    json_t *v, *w, *message, *bare;
    (void)state;
    open_rig(&r, plain);
    v = first_turn(&r);
    message = at(v, "choices.0.message");
    assert_string_equal(str_at(message, "content"), "Hanzi and Hanzi");
    /* H, anzi, five bytes, H, anzi: 4 5 28 69 6e 64 28 + 8 = 40 105 118 108 40 */
    assert_string_equal(str_at(message, "extra_content.heddle.ids"), "1.BAUoaXZsKAQF");
    w = second_turn(&r, message);
    assert_int_equal(detail(w, "cached_tokens"), computed(v));
    assert_int_equal(detail(w, "replayed_tokens"), 9);
    same_prompt_elsewhere(plain, message, w);
    json_decref(w);
    /* Only the text: up to where the ids part, which is the answer's first token. */
    bare = json_pack("{s:s,s:O}", "role", "assistant", "content", at(message, "content"));
    w = second_turn(&r, bare);
    assert_int_equal(detail(w, "cached_tokens"), (long)json_array_size(at(v, "prompt_token_ids")));
    assert_int_equal(detail(w, "replayed_tokens"), -1);
    same_prompt_elsewhere(plain, bare, w);
    json_decref(w);
    json_decref(bare);
    json_decref(v);
    rig_close(&r);
}

/* Streamed: the message is put together from deltas, as clients do. */
static void streamed(void **state) {
    rig r;
    json_t *v, *w, *message = json_object();
    char *body, *text;
    sse_list l;
    size_t k = 0;
    (void)state;
    open_rig(&r, plain);
    assert_int_equal(client_once(r.port, "POST", CHAT, NULL, "{\"stream\":true,\"messages\":[" QUESTION "]}", &body), 200);
    sse_parse(body, &l);
    text = sse_text(&l, 0);
    for (size_t i = 0; i < l.n; i++) {
        json_t *delta = at(l.ev[i].data, "choices.0.delta"), *x = json_object_get(delta, "extra_content");
        if (x) json_object_set(message, "extra_content", x), k++;
        if (x) assert_string_equal(str_at(l.ev[i].data, "choices.0.finish_reason"), "stop");
    }
    assert_int_equal(k, 1);
    json_object_set_new(message, "role", json_string("assistant"));
    json_object_set_new(message, "content", json_string(text));
    w = second_turn(&r, message);
    assert_int_equal(detail(w, "replayed_tokens"), 9);
    v = first_turn(&r);
    assert_int_equal(detail(w, "cached_tokens"), computed(v));
    json_decref(v);
    json_decref(w);
    json_decref(message);
    hd_free(text);
    hd_free(body);
    sse_free(&l);
    rig_close(&r);
}

/* An answer whose text has its own ids anyway brings nothing along; nor does one that a stop string cut inside a token. */
static void where_nothing_is_needed(void **state) {
    static const char own[] = SCRIPT("{{ m.content }}", "[2,3,\" and \",2,3]");
    rig r;
    json_t *v, *body;
    (void)state;
    open_rig(&r, own);
    v = first_turn(&r);
    assert_string_equal(str_at(v, "choices.0.message.content"), "Hanzi and Hanzi");
    assert_null(at(v, "choices.0.message.extra_content"));
    json_decref(v);
    rig_close(&r);
    open_rig(&r, plain);
    body = json_loads("{\"messages\":[" QUESTION "],\"stop\":\"nd Ha\"}", 0, NULL);
    v = good(&r, body);
    assert_string_equal(str_at(v, "choices.0.message.content"), "Hanzi a");
    assert_null(at(v, "choices.0.message.extra_content"));
    json_decref(v);
    json_decref(body);
    rig_close(&r);
}

/* What the template does to the text: trimmed, its ids are those of what is left, if they can be told apart; rewritten, the
 * text has its own. */
static void through_templates(void **state) {
    static const struct {
        const char *script;
        long replayed;
    } cases[] = {{trims, 9}, {half_trimmed, 2}, {strips, -1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        json_t *v, *w;
        open_rig(&r, cases[i].script);
        v = first_turn(&r);
        assert_non_null(at(v, "choices.0.message.extra_content"));
        w = second_turn(&r, at(v, "choices.0.message"));
        assert_int_equal(detail(w, "replayed_tokens"), cases[i].replayed);
        same_prompt_elsewhere(cases[i].script, at(v, "choices.0.message"), w);
        json_decref(w);
        json_decref(v);
        rig_close(&r);
    }
}

/* Ids that are not the text's: it is tokenised as if none had come.  Above all no control token gets in. */
static void what_does_not_fit_is_ignored(void **state) {
    static const char *const codes[] = {
        "", "1.", "2.BAUoaXZsKAQF", "1.BAUoaXZsKAQ", "1.BAUoaXZsKAUE", "1.BAUHKGl2bCgEBQ" /* [bot] within */, "1.BAUBKGl2bCgEBQ",
        "1.BAUoaXZsKAQFBg" /* [user] behind */, "no code at all",
    };
    json_t *text = json_string("Hanzi and Hanzi"), *want, *v, *message;
    int status;
    rig r;
    (void)state;
    open_rig(&r, plain);
    message = json_pack("{s:s,s:O}", "role", "assistant", "content", text);
    want = second_turn(&r, message);
    json_decref(message);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        message = json_pack("{s:s,s:O,s:{s:{s:s}}}", "role", "assistant", "content", text, "extra_content", "heddle", "ids", codes[i]);
        v = second_turn(&r, message);
        if (!json_equal(at(v, "prompt_token_ids"), at(want, "prompt_token_ids"))) fail_msg("%s changes the prompt", codes[i]);
        assert_int_equal(detail(v, "replayed_tokens"), -1);
        json_decref(v);
        json_decref(message);
    }
    /* Another text, another role; things of other servers at that place. */
    for (int i = 0; i < 4; i++) {
        static const char *const messages[] = {
            "{\"role\":\"assistant\",\"content\":\"Hanzi and HanzI\",\"extra_content\":{\"heddle\":{\"ids\":\"1.BAUoaXZsKAQF\"}}}",
            "{\"role\":\"user\",\"content\":\"Hanzi and Hanzi\",\"extra_content\":{\"heddle\":{\"ids\":\"1.BAUoaXZsKAQF\"}}}",
            "{\"role\":\"assistant\",\"content\":\"Hanzi and Hanzi\",\"extra_content\":{\"google\":{\"thought_signature\":\"x\"}}}",
            "{\"role\":\"assistant\",\"content\":\"Hanzi and Hanzi\",\"extra_content\":[3]}"};
        message = json_loads(messages[i], 0, NULL);
        v = second_turn(&r, message);
        assert_int_equal(detail(v, "replayed_tokens"), -1);
        json_decref(v);
        json_decref(message);
    }
    message = json_pack("{s:s,s:O,s:{s:{s:i}}}", "role", "assistant", "content", text, "extra_content", "heddle", "ids", 3);
    {
        json_t *body = second_body(message);
        char *json = json_dumps(body, 0);
        v = rig_post(&r, CHAT, json, &status);
        assert_int_equal(status, 400);
        assert_string_equal(str_at(v, "error.param"), "messages[1].extra_content.heddle.ids");
        free(json);
        json_decref(body);
    }
    json_decref(v);
    json_decref(message);
    json_decref(want);
    json_decref(text);
    rig_close(&r);
}

/* Equal texts: the ids go to the message they came with, also when a user says the same before. */
static void equal_texts(void **state) {
    rig r;
    json_t *body = json_loads("{\"return_token_ids\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hanzi\"},"
                              "{\"role\":\"assistant\",\"content\":\"Hanzi\",\"extra_content\":{\"heddle\":{\"ids\":\"1.BAU\"}}},"
                              "{\"role\":\"user\",\"content\":\"Hanzi\"},{\"role\":\"assistant\",\"content\":\"Hanzi\"},"
                              "{\"role\":\"user\",\"content\":\"Hanzi\"}]}",
                              0, NULL);
    static const int want[] = {6, HAN, ZI, BOT, H, ANZI, EOS, 6, HAN, ZI, BOT, HAN, ZI, EOS, 6, HAN, ZI, BOT};
    json_t *v, *ids;
    (void)state;
    open_rig(&r, plain);
    v = good(&r, body);
    ids = at(v, "prompt_token_ids");
    assert_int_equal(json_array_size(ids), sizeof want / sizeof *want);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_int_equal(json_integer_value(json_array_get(ids, i)), want[i]);
    json_decref(v);
    json_decref(body);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r019_the_message_comes_back), cmocka_unit_test(streamed),
        cmocka_unit_test(where_nothing_is_needed),     cmocka_unit_test(through_templates),
        cmocka_unit_test(what_does_not_fit_is_ignored), cmocka_unit_test(equal_texts),
    };
    return cmocka_run_group_tests_name("replay over HTTP", tests, NULL, NULL);
}
