/* test_server_fork.c - conversations that the server keeps: a request that names the stored response it goes on from is answered
 * as if its client had sent the whole list, to the bit, whatever was cached, deleted or cut off in between.
 *
 * The oracle is the other way of asking: a client that keeps its history itself, on a server without a log. */
#include "base/mem.h"
#include "serve/record.h"
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

/* As in test_server_replay.c: the answer "Hanzi and Hanzi" has other ids than it is sampled as.  A template that cuts an answer's
 * reasoning off, and shows tools. */
#define SCRIPT(content, emit)                                                                                          \
    "{\"vocab\":[\"<s>\",\"</s>\",\"Han\",\"zi\",\"H\",\"anzi\",\"[user]\",\"[bot]\"],"                                \
    "\"special\":{\"bos\":0,\"eos\":[1,6,7]},\"context\":65536,\"token_delay_ms\":0,"                                  \
    "\"template\":\"{% if tools %}tools:{{ tools | tojson }}{% endif %}{% for m in messages %}"                        \
    "{{ '[bot]' if m.role == 'assistant' else '[user]' }}" content                                                     \
    "{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}\","       \
    "\"rules\":[{\"match\":\"long\",\"emit\":[\"abcdefghij\"],\"then\":\"loop\"},"                                    \
    "{\"match\":\"fail\",\"emit\":[\"ab\"],\"then\":\"fail\"}],"                                                       \
    "\"default\":{\"emit\":" emit "}}"
static const char plain[] = SCRIPT("{{ m.content }}", "[4,5,\" and \",4,5]");
static const char reasoning[] = SCRIPT("{{ m.content.split('</think>')[-1] | trim }}", "[\"hm, \",4,5,\"</think>\\n\",4,5,\" and \",4,5]");

#define STORE "\"store\":true,"
#define FIRST "{\"role\":\"system\",\"content\":\"Be brief. \"},{\"role\":\"user\",\"content\":\"What is it called over there? \"}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define IDS "\"return_token_ids\":true,"

static json_t *parsed(char *body) {
    json_t *v = json_loads(body, 0, NULL);
    if (!v) fail_msg("no JSON: %s", body);
    hd_free(body);
    return v;
}

static json_t *good(drig *d, const char *json) { return parsed(ask_good(d, CHAT, NULL, NULL, json)); }

static const char *id(json_t *v) { return str_at(v, "id"); }

/* `fields` and the new messages, going on from `from`. */
static json_t *after(drig *d, const char *from, const char *fields, const char *messages) {
    char json[2000];
    snprintf(json, sizeof json, "{%s\"previous_response_id\":\"%s\",\"messages\":[%s]}", fields, from, messages);
    return good(d, json);
}

static const char *no(drig *d, const char *from, const char *fields, int status) {
    char json[2000];
    snprintf(json, sizeof json, "{%s\"previous_response_id\":\"%s\",\"messages\":[" USER("x") "]}", fields, from);
    return ask_bad(d, "POST", CHAT, NULL, json, status);
}

static long detail(json_t *v, const char *name) {
    json_t *x = json_object_get(at(v, "usage.prompt_tokens_details"), name);
    return x ? (long)json_integer_value(x) : -1;
}

/* The history that a client keeps: its messages, and choice k of an answer as it came. */
static json_t *history(const char *first) {
    char json[1000];
    snprintf(json, sizeof json, "[%s]", first);
    return json_loads(json, JSON_ALLOW_NUL, NULL);
}

static void add_answer(json_t *list, json_t *v, size_t k) {
    json_array_append(list, json_object_get(json_array_get(at(v, "choices"), k), "message"));
}

static void add(json_t *list, const char *messages) {
    json_t *more = history(messages);
    json_array_extend(list, more);
    json_decref(more);
}

static json_t *whole_list(rig *r, const char *fields, json_t *list) {
    char *messages = json_dumps(list, 0), *json = malloc(strlen(messages) + strlen(fields) + 40);
    json_t *v;
    int status;
    sprintf(json, "{%s\"messages\":%s}", fields, messages);
    v = rig_post(r, CHAT, json, &status);
    if (status != 200) fail_msg("%s: %d %s", json, status, str_at(v, "error.message"));
    free(messages);
    free(json);
    return v;
}

/* What is answered and what was asked, in ids; what was cached may differ. */
static void same(json_t *a, json_t *b) {
    char *x = json_dumps(at(a, "choices"), JSON_SORT_KEYS), *y = json_dumps(at(b, "choices"), JSON_SORT_KEYS);
    assert_string_equal(x, y);
    if (!json_equal(at(a, "prompt_token_ids"), at(b, "prompt_token_ids")))
        fail_msg("%s\n%s", json_dumps(at(a, "prompt_token_ids"), 0), json_dumps(at(b, "prompt_token_ids"), 0));
    assert_int_equal(detail(a, "replayed_tokens"), detail(b, "replayed_tokens"));
    assert_true(json_equal(at(a, "usage.completion_tokens"), at(b, "usage.completion_tokens")));
    free(x);
    free(y);
}

static void open_rig(drig *d, const char *script, const server_options *so) {
    drig_open(d, script, so, &(engine_options){.page_tokens = 16});
}

static void as_the_whole_list(const char *script, long replayed) {
#define TWO IDS "\"seed\":7,\"temperature\":0.9,\"logprobs\":true,"
#define THREE IDS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"b\":1.5,\"a\":[2,null]}}}],"
    static const char second[] = USER("And here?") "," USER("\\u0000 \\ud83d\\ude00 [bot] </s>"), third[] = USER("Why?");
    drig d;
    rig other;
    json_t *one, *two, *three, *fork, *list = history(FIRST), *v;
    open_rig(&d, script, NULL);
    rig_open(&other, script, NULL, &(engine_options){.page_tokens = 16});
    one = good(&d, "{" STORE IDS "\"messages\":[" FIRST "]}");
    two = after(&d, id(one), STORE TWO, second);
    assert_int_equal(detail(two, "replayed_tokens"), replayed);
    three = after(&d, id(two), STORE THREE, third);
    fork = after(&d, id(one), TWO, second); /* it need not be stored itself */
    assert_true(detail(fork, "cached_tokens") >= detail(two, "cached_tokens"));
    same(fork, two);
    add_answer(list, one, 0), add(list, second);
    v = whole_list(&other, TWO, list);
    same(two, v);
    json_decref(v);
    v = whole_list(&d.r, TWO, list); /* and on the same server */
    same(two, v);
    json_decref(v);
    add_answer(list, two, 0), add(list, third);
    v = whole_list(&other, THREE, list);
    same(three, v);
    json_decref(v);
    rig_close(&other);
    drig_restart(&d, 1); /* cold: nothing but the log is left */
    v = after(&d, id(two), THREE, third);
    assert_int_equal(detail(v, "cached_tokens"), 0);
    same(three, v);
    json_decref(v);
    json_decref(one), json_decref(two), json_decref(three), json_decref(fork), json_decref(list);
    drig_close(&d);
}

static void plain_template(void **state) {
    (void)state;
    as_the_whole_list(plain, 9);
}

static void reasoning_is_cut(void **state) {
    (void)state;
    as_the_whole_list(reasoning, -1);
}

/* All that a warm fork computes is its own: the answer before is a hit to its last token. */
static void nothing_again(void **state) {
    drig d;
    json_t *one, *two;
    long known;
    (void)state;
    open_rig(&d, plain, NULL);
    one = good(&d, "{" STORE IDS "\"messages\":[" FIRST "]}");
    known = (long)(json_array_size(at(one, "prompt_token_ids")) + json_array_size(at(one, "choices.0.token_ids")));
    for (int i = 0; i < 3; i++) {
        two = after(&d, id(one), "", USER("And here?"));
        assert_true(detail(two, "cached_tokens") >= known);
        json_decref(two);
    }
    json_decref(one);
    drig_close(&d);
}

/* Eight at once hold what they share once. */
static void forks_share_pages(void **state) {
    enum { FORKS = 8, WORDS = 1600 };
    drig d;
    client c[FORKS];
    char *json = malloc(WORDS + 200), ask_for[300];
    json_t *one;
    long whole_pages, shared = 0;
    (void)state;
    drig_open(&d, plain, NULL, &(engine_options){.page_tokens = 16, .max_rows = FORKS, .kv_budget_bytes = 64 << 20});
    sprintf(json, "{" STORE IDS "\"messages\":[{\"role\":\"user\",\"content\":\"%0*d\"}]}", WORDS, 0);
    one = good(&d, json);
    whole_pages = (long)json_array_size(at(one, "prompt_token_ids")) / 16;
    assert_true(whole_pages >= WORDS / 16);
    snprintf(ask_for, sizeof ask_for, "{\"stream\":true,\"max_tokens\":5000,\"previous_response_id\":\"%s\",\"messages\":[" USER("long") "]}",
             id(one));
    for (int i = 0; i < FORKS; i++) begin(&c[i], &d, CHAT, NULL, ask_for, "id: 3\n");
    for (uint64_t until = now_ms() + LONG_DONE; now_ms() < until && shared < (FORKS - 1) * whole_pages;) shared = rig_state(&d.r, "pages.shared");
    assert_true(shared >= (FORKS - 1) * whole_pages);
    for (int i = 0; i < FORKS; i++) client_reset(&c[i]);
    json_decref(one);
    free(json);
    drig_close(&d);
}

static void choices_are_named(void **state) {
    drig d;
    json_t *one, *two, *list, *v;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL);
    one = good(&d, "{" STORE "\"n\":3,\"seed\":5,\"max_tokens\":4,\"temperature\":2,\"logit_bias\":{\"2\":-3},\"messages\":[" FIRST "]}");
    for (size_t k = 0; k < 3; k++) {
        char fields[80];
        snprintf(fields, sizeof fields, IDS "\"previous_choice\":%zu,", k);
        two = after(&d, id(one), fields, USER("y"));
        list = history(FIRST);
        add_answer(list, one, k), add(list, USER("y"));
        v = whole_list(&d.r, IDS, list);
        same(two, v);
        json_decref(v);
        if (!k) same(v = after(&d, id(one), IDS, USER("y")), two), json_decref(v);
        json_decref(two), json_decref(list);
    }
    assert_string_equal(no(&d, id(one), "\"previous_choice\":3,", 400), "invalid_value");
    assert_string_equal(no(&d, id(one), "\"previous_choice\":-1,", 400), "invalid_value");
    assert_string_equal(no(&d, id(one), "\"previous_choice\":0.5,", 400), "invalid_value");
    assert_string_equal(no(&d, id(one), "\"previous_choice\":\"0\",", 400), "invalid_value");
    assert_string_equal(no(&d, id(one), "\"previous_choice\":1e99,", 400), "invalid_value");
    json_decref(one);
    drig_close(&d);
}

static void delete_it(drig *d, const char *name) {
    char path[120];
    int status;
    snprintf(path, sizeof path, CHAT "/%s", name);
    hd_free(ask(d, "DELETE", path, NULL, NULL, NULL, &status));
    assert_int_equal(status, 200);
}

/* Who goes on from a response keeps what was before, whatever becomes of it. */
static void parents_go(void **state) {
    drig d;
    json_t *one, *two, *three, *again;
    (void)state;
    open_rig(&d, plain, &(server_options){.log.max_requests = 3});
    one = good(&d, "{" STORE "\"messages\":[" FIRST "]}");
    two = after(&d, id(one), STORE, USER("2"));
    three = after(&d, id(two), IDS STORE, USER("3"));
    delete_it(&d, id(one));
    assert_string_equal(no(&d, id(one), "", 404), "not_found");
    again = after(&d, id(two), IDS, USER("3"));
    same(again, three);
    json_decref(again);
    delete_it(&d, id(two));
    drig_restart(&d, 4);
    json_decref(two);
    two = after(&d, id(three), IDS STORE, USER("4"));
    assert_string_equal(str_at(two, "choices.0.message.content"), "Hanzi and Hanzi");
    for (int i = 0; i < 3; i++) json_decref(after(&d, id(two), STORE, USER("push"))); /* the last makes room by taking two away, and keeps its turn */
    assert_string_equal(no(&d, id(two), "", 404), "not_found");
    json_decref(one), json_decref(two), json_decref(three);
    drig_close(&d);
}

/* ---- names ---- */

static json_t *named(drig *d, const char *from, const char *name, const char *text) {
    char fields[200], user[100];
    snprintf(fields, sizeof fields, STORE IDS "\"response_name\":\"%s\",", name);
    snprintf(user, sizeof user, USER("%s"), text);
    return after(d, from, fields, user);
}

static void is_at(drig *d, const char *name, json_t *v) {
    char path[120];
    json_t *got;
    snprintf(path, sizeof path, CHAT "/%s", name);
    got = parsed(ask_good(d, path, NULL, NULL, NULL));
    assert_string_equal(id(got), id(v));
    assert_true(json_equal(at(got, "choices"), at(v, "choices")));
    json_decref(got);
}

static void nobody_at(drig *d, const char *name) {
    char path[120];
    snprintf(path, sizeof path, CHAT "/%s", name);
    assert_string_equal(ask_bad(d, "GET", path, NULL, NULL, 404), "not_found");
}

static void names_move(void **state) {
    drig d;
    json_t *one, *two, *draft, *v, *names;
    char *body;
    (void)state;
    open_rig(&d, plain, NULL);
    nobody_at(&d, "main");
    one = good(&d, "{" STORE "\"response_name\":\"main\",\"messages\":[" FIRST "]}");
    is_at(&d, "main", one);
    draft = named(&d, "main", "draft", "d");
    two = named(&d, "main", "main", "2");
    is_at(&d, "main", two);
    is_at(&d, "draft", draft);
    is_at(&d, id(one), one); /* it has its id still */
    v = named(&d, "draft", "draft", "e");
    json_decref(draft), draft = v;
    drig_restart(&d, 3);
    is_at(&d, "draft", draft);
    is_at(&d, "main", two);
    names = parsed(ask_good(&d, "/v1/heddle/names", NULL, NULL, NULL));
    assert_int_equal(json_array_size(at(names, "data")), 2);
    assert_string_equal(str_at(names, "data.0.name"), "draft");
    assert_string_equal(str_at(names, "data.0.id"), id(draft));
    assert_string_equal(str_at(names, "data.1.name"), "main");
    assert_true(json_is_false(at(names, "has_more")));
    json_decref(names);
    names = parsed(ask_good(&d, "/v1/heddle/names?after=draft", NULL, NULL, NULL));
    assert_int_equal(json_array_size(at(names, "data")), 1);
    json_decref(names);
    v = named(&d, "main", "main", "3");
    is_at(&d, "main", v);
    delete_it(&d, "main"); /* the response, and with it the name */
    nobody_at(&d, "main");
    nobody_at(&d, id(v));
    is_at(&d, id(two), two);
    assert_string_equal(no(&d, "main", "", 404), "not_found");
    json_decref(v);
    body = ask_good(&d, COMPLETE, NULL, NULL, "{" STORE "\"response_name\":\"text.1\",\"prompt\":\"x\"}");
    hd_free(body);
    nobody_at(&d, "text.1"); /* of another kind */
    hd_free(ask_good(&d, COMPLETE "/text.1", NULL, NULL, NULL));
    assert_string_equal(no(&d, "text.1", "", 404), "not_found");
    json_decref(one), json_decref(two), json_decref(draft);
    drig_close(&d);
}

/* One that was accepted before and ends later does not take the name back. */
static void last_accepted_has_it(void **state) {
    static const char slow[] = "{%s\"max_tokens\":3000,\"response_name\":\"main\",\"previous_response_id\":\"main\",\"messages\":[" USER("long") "]}";
    drig d;
    json_t *one, *two;
    char *body, json[300], first[64];
    client c;
    (void)state;
    drig_open(&d, durable_script, NULL, NULL); /* 1 ms a token */
    one = good(&d, "{" STORE "\"response_name\":\"main\",\"messages\":[" FIRST "]}");
    snprintf(json, sizeof json, slow, "\"stream\":true,");
    begin(&c, &d, CHAT, "slow", json, "id: 3\n");
    id_of(buf_cstr(&c.body), first);
    is_at(&d, "main", one); /* not before it has ended */
    two = named(&d, "main", "main", "3");
    is_at(&d, "main", two);
    assert_int_equal(durable_now(&d, "running"), 1);
    assert_true(client_until(&c, "[DONE]", LONG_DONE));
    client_close(&c);
    is_at(&d, "main", two);
    snprintf(json, sizeof json, slow, ""); /* the same request again, under its key, changes nothing */
    body = ask_good(&d, CHAT, "slow", NULL, json);
    assert_non_null(strstr(body, first));
    hd_free(body);
    is_at(&d, "main", two);
    json_decref(one), json_decref(two);
    drig_close(&d);
}

/* The power goes at any time: a name stands for the last turn that was said to have ended, or a later one; never for half a one. */
static void across_power_cuts(void **state) {
    drig d;
    json_t *v, *list = history(FIRST), *got;
    (void)state;
    open_rig(&d, plain, NULL);
    v = good(&d, "{" STORE IDS "\"response_name\":\"main\",\"messages\":[" FIRST "]}");
    for (uint64_t life = 0; life < 24; life++) {
        char json[300], key[40], text[20];
        client c;
        snprintf(key, sizeof key, "Idempotency-Key: %d\r\n", (int)life);
        snprintf(text, sizeof text, "turn %d", (int)life);
        snprintf(json, sizeof json, "{" IDS "\"response_name\":\"main\",\"previous_response_id\":\"main\",\"messages\":[" USER("%s") "]}", text);
        assert_true(client_open(&c, d.r.port));
        if (life % 3 == 0) memvfs_cut_at_write(d.disk, (int)(life / 2));
        else if (life % 3 == 1) memvfs_cut_at_sync(d.disk, (int)(life % 4));
        assert_true(client_request(&c, "POST", CHAT, key, json));
        if (life % 3 == 2) client_finish(&c, 2000);
        else sleep_ms(20);
        drig_restart(&d, life);
        client_close(&c);
        snprintf(key, sizeof key, "%d", (int)life);
        got = parsed(ask_good(&d, CHAT, key, NULL, json)); /* found, gone on with, or done now */
        is_at(&d, "main", got);
        add_answer(list, v, 0);
        snprintf(json, sizeof json, USER("%s"), text);
        add(list, json);
        json_decref(v);
        v = whole_list(&d.r, IDS, list);
        same(got, v);
        json_decref(v), v = got;
    }
    json_decref(v), json_decref(list);
    drig_close(&d);
}

static void keys_are_apart(void **state) {
    static const char *const keys[] = {"one", "two"};
    static const char mine[] = "x-api-key: one\r\n", theirs[] = "x-api-key: two\r\n";
    drig d;
    char first[64], json[300], *a, *b;
    int status;
    (void)state;
    open_rig(&d, plain, &(server_options){.api_keys = keys, .n_api_keys = 2});
    a = ask_good(&d, CHAT, NULL, mine, "{" STORE "\"response_name\":\"main\",\"messages\":[" FIRST "]}");
    id_of(a, first);
    hd_free(a);
    for (int i = 0; i < 2; i++) {
        snprintf(json, sizeof json, "{\"previous_response_id\":\"%s\",\"messages\":[" USER("x") "]}", i ? "main" : first);
        hd_free(ask_good(&d, CHAT, NULL, mine, json));
        a = ask(&d, "POST", CHAT, NULL, theirs, json, &status);
        assert_int_equal(status, 404);
        for (char *p = json; (p = strstr(p, i ? "main" : first)); p++) p[0] = p[0] == 'c' ? 'c' : 'n', p[3] = 'q'; /* one that never was */
        b = ask(&d, "POST", CHAT, NULL, theirs, json, &status);
        assert_int_equal(status, 404);
        if (!i) a[strstr(a, first) - a + 3] = 'q';
        else memcpy(strstr(a, "'main'"), "'naiq'", 6);
        assert_string_equal(a, b);
        hd_free(a), hd_free(b);
    }
    a = ask_good(&d, "/v1/heddle/names", NULL, theirs, NULL);
    assert_null(strstr(a, "main"));
    hd_free(a);
    hd_free(ask_good(&d, CHAT, NULL, theirs, "{" STORE "\"response_name\":\"main\",\"messages\":[" FIRST "]}")); /* a name of its own */
    a = ask_good(&d, CHAT "/main", NULL, mine, NULL);
    assert_non_null(strstr(a, first));
    hd_free(a);
    hd_free(ask(&d, "DELETE", CHAT "/main", NULL, theirs, NULL, &status));
    hd_free(ask_good(&d, CHAT "/main", NULL, mine, NULL));
    drig_close(&d);
}

/* ---- ends, and what an answer is part of ---- */

static void unfinished_ones(void **state) {
    drig d;
    client c;
    char runs[64], json[200], *body;
    int status;
    (void)state;
    open_rig(&d, plain, NULL);
    begin(&c, &d, CHAT, "runs", "{\"stream\":true,\"max_tokens\":60000,\"response_name\":\"r\"," MSG("long") "}", "id: 3\n");
    id_of(buf_cstr(&c.body), runs);
    assert_string_equal(no(&d, runs, "", 409), "still_running");
    assert_string_equal(no(&d, "r", "", 404), "not_found"); /* a name is taken at the end */
    snprintf(json, sizeof json, "{\"id\":\"%s\"}", runs);
    json_decref(rig_post(&d.r, "/v1/heddle/cancel", json, NULL));
    client_until(&c, "cancelled_by_request", LONG_DONE);
    client_close(&c);
    assert_true(durable_is(&d, "running", 0));
    assert_string_equal(no(&d, runs, "", 409), "not_finished");
    assert_string_equal(no(&d, "r", "", 404), "not_found");
    body = ask(&d, "POST", CHAT, "fails", NULL, "{\"stream\":true,\"response_name\":\"r\"," MSG("fail") "}", &status);
    id_of(body, runs);
    hd_free(body);
    assert_true(durable_is(&d, "running", 0));
    assert_string_equal(no(&d, runs, "", 409), "not_finished");
    assert_string_equal(no(&d, "r", "", 404), "not_found");
    drig_close(&d);
}

/* An answer that ended at its cap, then went on: both can be gone on from. */
static void after_a_larger_cap(void **state) {
    drig d;
    json_t *one, *more, *two, *v, *list;
    (void)state;
    open_rig(&d, plain, NULL);
    one = good(&d, "{" STORE "\"response_name\":\"whole\",\"max_tokens\":5,\"messages\":[" FIRST "]}");
    more = good(&d, "{\"continue_response\":\"whole\",\"max_tokens\":50,\"response_name\":\"whole\"}");
    assert_string_equal(str_at(more, "choices.0.message.content"), "Hanzi and Hanzi");
    delete_it(&d, id(one));
    for (int i = 0; i < 2; i++) {
        list = history(FIRST);
        add_answer(list, more, 0), add(list, USER("y"));
        two = after(&d, "whole", IDS STORE, USER("y"));
        v = whole_list(&d.r, IDS, list);
        same(two, v);
        json_decref(v);
        add_answer(list, two, 0), add(list, USER("z"));
        v = whole_list(&d.r, IDS, list);
        json_decref(list);
        list = after(&d, id(two), IDS, USER("z"));
        same(v, list);
        json_decref(v), json_decref(list), json_decref(two);
        drig_restart(&d, 1);
    }
    json_decref(one), json_decref(more);
    drig_close(&d);
}

/* An answer that continued the client's own beginning is one message with it. */
static void continued_messages(void **state) {
    static const char *const begun[] = {"\"So \"", "[{\"type\":\"text\",\"text\":\"So \"}]"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        drig d;
        json_t *one, *two, *three, *v, *list;
        char json[500];
        open_rig(&d, plain, NULL);
        snprintf(json, sizeof json, "{" STORE "\"continue_final_message\":true,\"messages\":[" FIRST ",{\"role\":\"assistant\",\"content\":%s}]}",
                 begun[i]);
        one = good(&d, json);
        list = history(FIRST ",{\"role\":\"assistant\",\"content\":\"So Hanzi and Hanzi\"}," USER("y"));
        two = after(&d, id(one), IDS STORE, USER("y"));
        v = whole_list(&d.r, IDS, list);
        same(two, v);
        json_decref(v);
        add_answer(list, two, 0), add(list, USER("z"));
        three = after(&d, id(two), IDS, USER("z"));
        v = whole_list(&d.r, IDS, list);
        same(three, v);
        json_decref(v), json_decref(one), json_decref(two), json_decref(three), json_decref(list);
        drig_close(&d);
    }
}

/* ---- what is refused ---- */

static void exec_sql(drig *d, const char *sql) {
    char path[100];
    sqlite3 *c;
    rig_close(&d->r);
    snprintf(path, sizeof path, "%s/requests.db", d->dir);
    assert_int_equal(sqlite3_open_v2(path, &c, SQLITE_OPEN_READWRITE, "drig"), SQLITE_OK);
    assert_int_equal(sqlite3_exec(c, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(c);
    drig_start(d);
}

static const char *bad_message(drig *d, const char *json, int status) {
    static char param[100];
    int got;
    json_t *v = parsed(ask(d, "POST", CHAT, NULL, NULL, json, &got));
    assert_int_equal(got, status);
    snprintf(param, sizeof param, "%s", str_at(v, "error.param"));
    json_decref(v);
    return param;
}

static void refusals(void **state) {
    static const struct {
        const char *json, *param;
        int status;
    } bad[] = {
        {"{\"previous_response_id\":7,\"messages\":[" FIRST "]}", "previous_response_id", 400},
        {"{\"previous_response_id\":[\"x\"],\"messages\":[" FIRST "]}", "previous_response_id", 400},
        {"{\"previous_response_id\":\"a\\u0000b\",\"messages\":[" FIRST "]}", "previous_response_id", 400},
        {"{\"previous_response_id\":\"\",\"messages\":[" FIRST "]}", "previous_response_id", 404},
        {"{\"previous_response_id\":\"../x y'%s%n\",\"messages\":[" FIRST "]}", "previous_response_id", 404},
        {"{\"previous_response_id\":\"chatcmpl-x\",\"messages\":[" FIRST "]}", "previous_response_id", 404},
        {"{\"previous_choice\":0,\"messages\":[" FIRST "]}", "previous_choice", 400},
        {"{\"response_name\":\"x\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":7,\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":\"\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":\"a b\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":\"\\u00e4\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":\"a\\u0000\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":\".\",\"messages\":[" FIRST "]}", "response_name", 400}, /* steps in a path */
        {"{" STORE "\"response_name\":\"..\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":\"chatcmpl-a\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{" STORE "\"response_name\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"messages\":[" FIRST "]}", "response_name", 400},
        {"{\"previous_response_id\":\"main\"}", "messages", 400},
        {"{\"previous_response_id\":\"main\",\"messages\":[]}", "messages", 400},
        {"{\"previous_response_id\":\"main\",\"messages\":{}}", "messages", 400},
        {"{\"previous_response_id\":\"main\",\"messages\":[" USER("x") ",{\"role\":\"me\",\"content\":\"\"}]}", "messages[1].role", 400},
        {"{\"previous_response_id\":\"main\",\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"extra_content\":{\"heddle\":{\"ids\":1}}}]}",
         "messages[0].extra_content.heddle.ids", 400},
        {"{\"previous_response_id\":\"main\",\"continue_response\":\"main\",\"max_tokens\":9,\"messages\":[" FIRST "]}", "previous_response_id", 400},
    };
    drig d;
    rig bare;
    json_t *v;
    int status;
    (void)state;
    open_rig(&d, plain, NULL);
    v = good(&d, "{" STORE "\"previous_response_id\":null,\"previous_choice\":null,\"response_name\":\"main\",\"messages\":[" FIRST "]}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_string_equal(bad_message(&d, bad[i].json, bad[i].status), bad[i].param);
    assert_string_equal(ask_bad(&d, "POST", COMPLETE, NULL, "{\"previous_response_id\":\"main\",\"prompt\":\"x\"}", 400), "unsupported_parameter");
    assert_int_equal(durable_now(&d, "running"), 0);
    assert_int_equal(durable_now(&d, "stored"), 1);
    exec_sql(&d, "UPDATE turn SET data=x'01005b5d'"); /* damaged */
    assert_string_equal(no(&d, "main", "", 410), "events_lost");
    exec_sql(&d, "DROP TABLE turn; DROP TABLE label; PRAGMA user_version=1"); /* of an earlier version */
    nobody_at(&d, "main");
    is_at(&d, id(v), v);
    assert_string_equal(no(&d, id(v), "", 410), "events_lost");
    json_decref(v);
    drig_close(&d);
    rig_open(&bare, plain, NULL, NULL);
    v = rig_post(&bare, CHAT, "{\"previous_response_id\":\"main\",\"messages\":[" FIRST "]}", &status);
    assert_int_equal(status, 422);
    json_decref(v);
    v = rig_post(&bare, CHAT, "{" STORE "\"response_name\":\"main\",\"messages\":[" FIRST "]}", &status);
    assert_int_equal(status, 422);
    json_decref(v);
    v = rig_get(&bare, "/v1/heddle/names", &status);
    assert_int_equal(status, 200);
    assert_int_equal(json_array_size(at(v, "data")), 0);
    json_decref(v);
    rig_close(&bare);
}

/* A stored turn "x" behind `from` ("" first), whose message holds this JSON too: the template drops it, the log keeps it. */
static void with_note(drig *d, char from[64], const char *note) {
    char *json = malloc(strlen(note) + 300);
    json_t *v;
    sprintf(json, "{" STORE "%s%s%s\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"note\":%s}]}", *from ? "\"previous_response_id\":\"" : "", from,
            *from ? "\"," : "", note);
    v = good(d, json);
    snprintf(from, 64, "%s", id(v));
    json_decref(v);
    free(json);
}

/* Conversations have the bounds of bodies: bytes and values. */
/* What was found may be deleted while its conversation is parsed, which takes long enough here: then it was not there.  Nothing is
 * answered as if it had said nothing. */
static void deleted_meanwhile(void **state) {
    enum { NOTE = 4 << 20, ROUNDS = 12 };
    drig d;
    char *json = malloc(NOTE + 200), path[200], ask_for[300];
    size_t whole = 0;
    (void)state;
    open_rig(&d, plain, NULL);
    sprintf(json, "{" STORE "\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"note\":\"%0*d\"}]}", NOTE, 0);
    for (int i = -1; i < ROUNDS; i++) {
        json_t *one = good(&d, json), *v;
        client c;
        int status;
        snprintf(ask_for, sizeof ask_for, "{" IDS "\"previous_response_id\":\"%s\",\"messages\":[" USER("y") "]}", id(one));
        snprintf(path, sizeof path, CHAT "/%s", id(one));
        assert_true(client_open(&c, d.r.port));
        assert_true(client_request(&c, "POST", CHAT, NULL, ask_for));
        sleep_ms(i < 0 ? 0 : 2 * i);
        if (i >= 0) hd_free(ask(&d, "DELETE", path, NULL, NULL, NULL, &status));
        assert_true(client_finish(&c, LONG_DONE));
        assert_non_null(v = json_loads(buf_cstr(&c.body), 0, NULL));
        if (i < 0) whole = json_array_size(at(v, "prompt_token_ids"));
        if (c.status == 200) assert_int_equal(json_array_size(at(v, "prompt_token_ids")), whole);
        else if (c.status != 404 || strcmp(str_at(v, "error.code"), "not_found") != 0) fail_msg("%d %s", c.status, buf_cstr(&c.body));
        client_close(&c);
        json_decref(v), json_decref(one);
    }
    free(json);
    drig_close(&d);
}

static void bounds(void **state) {
    enum { LARGE = 1200 * 1000, MANY = 700000, TURN = 2 + 9 + 1, QUESTION = 2 }; /* [user] x [bot] answer </s> */
    drig d;
    json_t *v;
    char *note = malloc(LARGE + 2 * MANY + 10), last[64] = "";
    (void)state;
    open_rig(&d, plain, &(server_options){.max_body_bytes = 3 * LARGE});
    /* Large: planned when other large bodies are. */
    note[0] = '"';
    memset(note + 1, 'n', LARGE);
    strcpy(note + 1 + LARGE, "\"");
    with_note(&d, last, note);
    for (int i = 1; i < 3; i++) {
        v = after(&d, last, IDS, USER("y"));
        assert_int_equal(json_array_size(at(v, "prompt_token_ids")), i * (TURN + 1) + QUESTION + 1);
        json_decref(v);
        with_note(&d, last, note);
    }
    assert_string_equal(no(&d, last, "", 413), "request_too_large");
    /* Each is within the bound on values, together they are not. */
    note[0] = '[', note[1] = '0';
    for (size_t i = 0; i < MANY; i++) note[2 + 2 * i] = ',', note[3 + 2 * i] = '0';
    strcpy(note + 2 + 2 * MANY, "]");
    last[0] = 0;
    with_note(&d, last, note);
    with_note(&d, last, note);
    json_decref(after(&d, last, "", USER("y")));
    free(note);
    drig_close(&d);
}

/* The longest conversation there can be: put into the log behind the server's back, as asking for each turn takes long. */
static void depth(void **state) {
    static const char turn[] = "\1\0[" USER("x") "]"; /* version, no flags */
    drig d;
    json_t *v;
    journal *j;
    journal_entry *e;
    journal_accepted a = {.order = 0};
    uint8_t extra[EVENT_EXTRA_MAX];
    journal_event done;
    char last[64] = "";
    (void)state;
    event_write(&(gen_event){.kind = EV_DONE, .finish = FINISH_STOP}, false, extra, &done); /* every answer has its end */
    open_rig(&d, plain, NULL);
    v = good(&d, "{" STORE "\"messages\":[" USER("x") "]}");
    rig_close(&d.r);
    assert_int_equal(journal_open(&j, d.dir, &(journal_config){.vfs = "drig"}, NULL), HD_OK);
    assert_int_equal(journal_find(j, id(v), &e, NULL), HD_OK);
    a.order = e->order;
    for (int i = 2; i <= JOURNAL_TURNS; i++) {
        journal_request r = e->request;
        snprintf(last, sizeof last, "chatcmpl-%d", i);
        r.id = last;
        r.turn = turn;
        r.n_turn = sizeof turn - 1;
        r.after = a.order;
        assert_int_equal(journal_accept(j, &r, &a, NULL), HD_OK);
        assert_int_equal(journal_append(j, a.order, 0, 0, &done, 1, NULL), HD_OK);
        assert_int_equal(journal_finish(j, a.order, JOURNAL_FINISHED, e->finished, e->finish, e->n_finish, NULL), HD_OK);
    }
    journal_entry_free(e);
    assert_int_equal(journal_close(j, LONG_DONE, NULL), HD_OK);
    json_decref(v);
    drig_start(&d);
    assert_string_equal(no(&d, last, STORE, 400), "invalid_value");
    v = after(&d, last, IDS, USER("y")); /* not stored, it adds none */
    assert_int_equal(json_array_size(at(v, "prompt_token_ids")), JOURNAL_TURNS * 2 + 2 + 2 + 1); /* an empty answer, y, [bot] */
    json_decref(v);
    drig_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_template),      cmocka_unit_test(reasoning_is_cut),     cmocka_unit_test(nothing_again),
        cmocka_unit_test(forks_share_pages),   cmocka_unit_test(choices_are_named),    cmocka_unit_test(parents_go),
        cmocka_unit_test(names_move),          cmocka_unit_test(last_accepted_has_it), cmocka_unit_test(across_power_cuts),
        cmocka_unit_test(keys_are_apart),      cmocka_unit_test(unfinished_ones),      cmocka_unit_test(after_a_larger_cap),
        cmocka_unit_test(continued_messages),  cmocka_unit_test(refusals),             cmocka_unit_test(bounds),
        cmocka_unit_test(deleted_meanwhile),   cmocka_unit_test(depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
