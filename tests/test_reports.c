/* test_reports.c - faults reported of other servers that no other test covers; docs/reports.md says where the rest is.
 *
 * Scripted models through the engine and the server, and small random ones where kernels or a real tokenizer matter. */
#include "base/mem.h"
#include "model/model_int.h"
#include "tiny/tiny_model.h"
#include "util/gguf_edit.h"
#include "util/runs.h"
#include "util/server_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHAT      "/v1/chat/completions"
#define COMPLETE  "/v1/completions"
#define MSG(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define VOCAB                                                                                                          \
    "\"vocab\":[\"<s>\",\"</s>\",\"X\",\"one \",\"two \"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":4096"
enum { BYTE0 = 5 };

/* ---- (a) peers that leave ---- */

/* R004: twenty unstreamed requests lose their clients at once; their pages come back, and who comes next is served as
 * on an idle server. */
static void r004_clients_killed_together(void **state) {
    static const char script[] = "{" VOCAB ",\"step_delay_ms\":5,\"default\":{\"emit\":[2],\"then\":\"loop\"},"
                                 "\"rules\":[{\"match\":\"short\",\"emit\":[3,4]}]}";
    engine_options eo = {.max_rows = 8};
    client c[20];
    rig r;
    json_t *v;
    uint64_t t;
    (void)state;
    rig_open(&r, script, NULL, &eo);
    for (int i = 0; i < 20; i++)
        assert_true(client_open(&c[i], r.port) &&
                    client_request(&c[i], "POST", COMPLETE, NULL,
                                   "{\"prompt\":\"a\",\"max_tokens\":4000,\"ignore_eos\":true}"));
    assert_true(rig_wait(&r, "queue", 12, 3000));
    t = now_ms();
    while (rig_state(&r, "pages.used") <= 0 && now_ms() - t < 3000) sleep_ms(5);
    assert_true(rig_state(&r, "pages.used") > 0);
    for (int i = 0; i < 20; i++) client_reset(&c[i]);
    t = now_ms();
    v = rig_post(&r, CHAT, "{" MSG("short") "}", NULL);
    assert_string_equal(str_at(v, "choices.0.message.content"), "one two ");
    assert_true(now_ms() - t < 2000);
    json_decref(v);
    assert_true(rig_wait(&r, "rows", 0, 1000));
    assert_true(rig_wait(&r, "queue", 0, 1000));
    assert_true(rig_wait(&r, "pages.used", 0, 1000));
    assert_true(rig_wait(&r, "cancelled.client_disconnected", 20, 1000));
    rig_close(&r);
}

static void nap_us(long us) { nanosleep(&(struct timespec){0, us * 1000}, NULL); }

/* R006: requests end in every way at any moment, also while they move from one list to the next.  Each ends once, and
 * none that was cancelled runs on to its natural end, which is a thousand steps of a millisecond away. */
static void r006_cancelled_at_any_moment(void **state) {
    static const char script[] = "{" VOCAB ",\"step_delay_ms\":1,\"default\":{\"emit\":[2,3,4],\"then\":\"loop\"}}";
    enum { STORM = 64, ROUNDS = 20, MAX_PROMPT = 200 };
    /* Six prompts just fit (1 KiB a token): rows wait for pages, and are preempted once they have grown a little. */
    engine_options eo = {.max_rows = 6, .page_tokens = 4, .kv_budget_bytes = 1200 << 10, .default_max_tokens = 1};
    int32_t prompt[MAX_PROMPT];
    uint64_t seed = 4711, total = 0, capped = 0, ended = 0;
    engine_view v = {0};
    model *m;
    engine *e;
    hd_err err;
    (void)state;
    for (int i = 0; i < MAX_PROMPT; i++) prompt[i] = 2 + i % 3;
    if (script_open_memory(&m, script, sizeof script - 1, "storm", NULL, &err)) fail_msg("%s", err.msg);
    if (engine_open(&e, m, &eo, &err)) fail_msg("%s", err.msg);
    for (int round = 0; round < ROUNDS; round++) {
        session *s[STORM];
        bool done[STORM] = {0}, cap[STORM];
        char id[32];
        gen_event ev;
        for (int i = 0; i < STORM; i++) {
            gen_request q = {.id = id, .prompt = prompt, .n_prompt = 180 + rng_below(&seed, MAX_PROMPT - 180)};
            snprintf(id, sizeof id, "r%d-%d", round, i);
            cap[i] = !rng_below(&seed, 4);
            capped += cap[i];
            q.max_tokens = cap[i] ? rng_below(&seed, 5) : GEN_NO_CAP;
            sampling_defaults(&q.sampling);
            if (engine_submit(e, &q, 1, NULL, NULL, &s[i], &err)) fail_msg("%s", err.msg);
            total++;
        }
        for (int k = 0; k < STORM; k++) {
            int i = (k * 37 + round) % STORM; /* another order every round */
            if (rng_below(&seed, 2)) nap_us(rng_below(&seed, 2000));
            snprintf(id, sizeof id, "r%d-%d", round, i);
            switch (rng_below(&seed, 4)) {
            case 0: session_cancel(s[i], CANCEL_CLIENT_DISCONNECTED); break;
            case 1: engine_cancel(e, id, CANCEL_BY_REQUEST); break;
            case 2:
                session_free(s[i]); /* leaves without a word */
                s[i] = NULL;
                break;
            case 3:
                engine_cancel(e, id, CANCEL_BY_REQUEST); /* two at once: the first counts */
                session_cancel(s[i], CANCEL_CLIENT_DISCONNECTED);
            }
        }
        for (int i = 0; i < STORM; i++) {
            if (!s[i]) continue;
            while (!done[i]) {
                session_wait(s[i], &ev, 20000000);
                if (ev.kind == EV_NONE) fail_msg("round %d: request %d never ends", round, i);
                if (!(done[i] = ev.kind == EV_DONE)) continue;
                if (!cap[i] && ev.finish != FINISH_CANCELLED)
                    fail_msg("round %d: request %d was not cancelled", round, i);
            }
            session_next(s[i], &ev);
            assert_int_equal(ev.kind, EV_NONE); /* once */
            session_free(s[i]);
        }
    }
    for (int i = 0; i < 2000 && (engine_look(e, &v), v.running || v.waiting || v.pages_used); i++) nap_us(1000);
    assert_int_equal(v.running, 0);
    assert_int_equal(v.waiting, 0);
    assert_int_equal(v.pages_used, 0);
    assert_int_equal(v.kv_bytes_used, 0);
    assert_int_equal(v.requests_total, total);
    for (int i = 0; i < 16; i++) ended += v.cancelled[i];
    assert_int_equal(ended + v.finished_length, total);
    assert_true(v.finished_length <= capped);
    assert_true(engine_idle(e));
    print_message("%llu requests, %llu preemptions\n", (unsigned long long)total,
                  (unsigned long long)v.preemptions_total);
    engine_close(e);
    model_close(m);
}

/* ---- (f) what is on the wire ---- */

/* R049, R050 for text completions: usage only when asked for, in its own chunk with no choices, behind the finish. */
static void r049_r050_completion_chunks(void **state) {
    static const char script[] = "{" VOCAB ",\"default\":{\"emit\":[3,4]}}";
    static const char *const options[] = {"", ",\"stream_options\":null",
                                          ",\"stream_options\":{\"include_usage\":false}",
                                          ",\"stream_options\":{\"include_usage\":true}"};
    rig r;
    (void)state;
    rig_open(&r, script, NULL, NULL);
    for (int k = 0; k < 4; k++) {
        char json[200], *body;
        size_t with_choices = 0, with_usage = 0;
        sse_list l;
        snprintf(json, sizeof json, "{\"prompt\":\"a\",\"stream\":true%s}", options[k]);
        assert_int_equal(client_once(r.port, "POST", COMPLETE, NULL, json, &body), 200);
        sse_parse(body, &l);
        for (size_t i = 0; i + 1 < l.n; i++) {
            bool last = k == 3 && i + 2 == l.n;
            assert_int_equal(json_array_size(at(l.ev[i].data, "choices")), last ? 0 : 1);
            assert_int_equal(json_is_object(at(l.ev[i].data, "usage")), last);
            with_choices += json_array_size(at(l.ev[i].data, "choices"));
            with_usage += json_is_object(at(l.ev[i].data, "usage"));
        }
        assert_int_equal(with_choices, 3); /* two tokens and the finish */
        assert_int_equal(with_usage, k == 3);
        assert_string_equal(str_at(l.ev[2].data, "choices.0.finish_reason"), "stop");
        assert_true(l.ev[l.n - 1].done);
        sse_free(&l);
        hd_free(body);
    }
    rig_close(&r);
}

/* R051, the other side: a reply that is not a stream sends not one byte before it is there. */
static void r051_nothing_before_a_plain_reply(void **state) {
    static const char script[] = "{" VOCAB ",\"prompt_delay_ms\":5,\"default\":{\"emit\":[3,4]}}";
    server_options so = {.comment_us = 20000};
    engine_options eo = {.step_tokens = 8};
    char body[300];
    client c;
    rig r;
    json_t *v;
    (void)state;
    rig_open(&r, script, &so, &eo);
    snprintf(body, sizeof body, "{\"prompt\":\"%0100d\"}", 0); /* half a second of reading */
    assert_true(client_open(&c, r.port) && client_request(&c, "POST", COMPLETE, NULL, body));
    {
        struct pollfd p = {.fd = c.fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 250), 0);
    }
    assert_true(client_finish(&c, 5000));
    assert_int_equal(c.status, 200);
    v = json_loads(c.body.data, 0, NULL);
    assert_string_equal(str_at(v, "choices.0.text"), "one two ");
    json_decref(v);
    client_close(&c);
    rig_close(&r);
}

/* R052: whatever bytes a request holds, the error that quotes them is JSON and UTF-8, and the server lives. */
static void r052_errors_quote_anything(void **state) {
    static const char script[] =
        "{" VOCAB ",\"default\":{\"emit\":[3,4]},\"template\":"
        "\"{% if messages[0].content == 'long' %}{{ raise_exception('\xC3\xA9' * 300) }}{% endif %}"
        "{{ raise_exception(messages[0].content) }}\"}";
    static const struct {
        const char *method, *path, *json;
        int status;
    } cases[] = {
        {"POST", CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"caf\xE9\"}]}", 400}, /* Latin-1 */
        {"POST", CHAT, "{" MSG("\xFF\xFE") "}", 400},
        {"POST", CHAT, "{" MSG("\xF0\x9F\x98") "}", 400},
        {"POST", CHAT, "{" MSG("\xED\xA0\x80") "}", 400}, /* a surrogate */
        {"POST", CHAT, "{" MSG("\\ud800") "}", 400},
        {"POST", CHAT, "\xFF\xFF\xFF\xFF", 400},
        {"POST", CHAT, "{" MSG("long") "}", 400}, /* cut to fit, between characters */
        {"POST", CHAT, "{" MSG("say \\\"\\u0001\\n\\u0000\\ufffe") "}", 400},
        {"POST", CHAT, "{" MSG("x") ",\"model\":\"\\u0001\\\"\\u00e9\"}", 404},
        {"POST", CHAT,
         "{\"messages\":[{\"role\":"
         "\"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"
         "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9 \xC3\xA9\",\"content\":\"x\"}]}",
         400},
        {"GET", "/v1/models/%FF%FE%80", NULL, 404},
        {"GET", "/%c3%28", NULL, 404},
        {"GET", "/v1/models/%F0%9F%98", NULL, 404},
    };
    rig r;
    (void)state;
    rig_open(&r, script, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body;
        json_t *v;
        int status = client_once(r.port, cases[i].method, cases[i].path, NULL, cases[i].json, &body);
        if (status != cases[i].status) fail_msg("case %zu: %d", i, status);
        v = json_loads(body, JSON_ALLOW_NUL, NULL); /* strict about UTF-8 */
        if (!v || !*str_at(v, "error.message")) fail_msg("case %zu: %s", i, body);
        json_decref(v);
        hd_free(body);
    }
    json_decref(rig_get(&r, "/v1/models", NULL));
    rig_close(&r);
}

/* ---- (g) numbers ---- */

static char dir[] = "/tmp/heddle-reports-XXXXXX", tiny[64], edited[64];

enum { LONG = 300, SHORT = 24 };

/* A request whose every number shows: scores of the whole prompt and of the top 5 of each token. */
static gen_request scored(const int32_t *ids, size_t n) {
    gen_request q = {
        .id = "", .prompt = ids, .n_prompt = n, .max_tokens = SHORT, .ignore_eos = true, .prompt_logprobs = true};
    sampling_defaults(&q.sampling);
    q.sampling.seed = 7;
    q.sampling.logprobs = true;
    q.sampling.n_top_logprobs = 5;
    return q;
}

/* R056, R057, R058: copies of one request together with strangers, and the prompt read in pieces of 1, 7 or 512, give
 * what the lone request on a fresh engine gives, to the bit.  test_purity.c does the same at length. */
static void r056_r057_r058_company_and_chunks(void **state) {
    static const uint32_t copies[] = {1, 2, 3, 8, 16}, chunks[] = {1, 7, 512};
    int32_t ids[LONG];
    uint64_t seed = 3;
    run_result alone, got[21];
    (void)state;
    for (int i = 0; i < LONG; i++) ids[i] = (int32_t)rng_below(&seed, 300);
    for (int k = -1; k < 8; k++) {
        engine_options eo = {.kv_budget_bytes = 64 << 20, .max_rows = 21, .step_tokens = k < 5 ? 512 : chunks[k - 5]};
        size_t n = k < 0 || k >= 5 ? 1 : copies[k] + 5;
        gen_request q[21];
        model *m;
        engine *e;
        hd_err err;
        if (model_open(&m, tiny, &(model_options){.n_threads = 2}, &err)) fail_msg("%s", err.msg);
        if (engine_open(&e, m, &eo, &err)) fail_msg("%s", err.msg);
        for (size_t i = 0; i < n; i++) {
            q[i] = scored(ids, LONG);
            if (n == 1 || i < n - 5) continue;
            q[i] = scored(ids + i, 1 + rng_below(&seed, LONG - 30)); /* a stranger */
            q[i].sampling.seed = i;
        }
        run_all(e, q, n, NULL, k < 0 ? &alone : got);
        for (size_t i = 0; k >= 0 && i < n; i++) {
            const char *what = n == 1 || i < n - 5 ? run_result_differs(&alone, &got[i]) : NULL;
            if (what) fail_msg("run %d, request %zu: other %s", k, i, what);
            run_result_deinit(&got[i]);
        }
        engine_close(e);
        model_close(m);
        if (k < 0) assert_int_equal(alone.n_ids, SHORT);
    }
    run_result_deinit(&alone);
}

/* ---- (h) prompts over a real tokenizer ---- */

typedef struct {
    size_t n, bos, eos, first_is_bos;
} ids_seen;

static ids_seen ids_of(rig *r, const char *path, const char *fields) {
    ids_seen s = {0};
    char json[600];
    json_t *v, *ids;
    int status;
    snprintf(json, sizeof json, "{%s,\"max_tokens\":1,\"return_token_ids\":true}", fields);
    v = rig_post(r, path, json, &status);
    if (status != 200) fail_msg("%s: %s", json, str_at(v, "error.message"));
    ids = at(v, "prompt_token_ids") ? at(v, "prompt_token_ids") : at(v, "choices.0.prompt_token_ids");
    s.n = json_array_size(ids);
    assert_true(s.n > 0);
    for (size_t i = 0; i < s.n; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        s.bos += id == TINY_BOS;
        s.eos += id == TINY_EOS;
    }
    s.first_is_bos = json_integer_value(json_array_get(ids, 0)) == TINY_BOS;
    json_decref(v);
    return s;
}

/* R065: one BOS in a chat whose template writes one and none where it writes none, whatever the file's flag; text
 * prompts get one only by the flag. R061: a typed "<s>" or "</s>" is text in both. */
static void r065_r061_one_bos(void **state) {
    (void)state;
    for (int flag = 0; flag < 2; flag++) {
        gguf_edit e = {
            .keys = {
                {"tokenizer.ggml.add_bos_token", GGUF_BOOL, flag, NULL},
                {"tokenizer.chat_template", GGUF_STRING, 0,
                 "{% if messages[0].content != 'bare' %}{{ bos_token }}{% endif %}[{{ messages[0].content }}]</s>"}}};
        engine_options eo = {.kv_budget_bytes = 16 << 20};
        rig r = {0};
        ids_seen s;
        size_t plain;
        hd_err err;
        gguf_edit_copy(tiny, edited, &e);
        if (model_open(&r.m, edited, NULL, &err)) fail_msg("%s", err.msg);
        if (engine_open(&r.e, r.m, &eo, &err)) fail_msg("%s", err.msg);
        if (server_open(&r.s, r.e, r.m, NULL, &err)) fail_msg("%s", err.msg);
        r.port = server_port(r.s);
        s = ids_of(&r, COMPLETE, "\"prompt\":\"Hello\"");
        assert_int_equal(s.bos, flag);
        assert_int_equal(s.first_is_bos, flag);
        plain = s.n;
        s = ids_of(&r, COMPLETE, "\"prompt\":\"<s>Hello</s>\"");
        assert_int_equal(s.bos, flag);
        assert_int_equal(s.eos, 0);
        assert_true(s.n >= plain + 2);
        s = ids_of(&r, CHAT, MSG("Hello"));
        assert_true(s.bos == 1 && s.eos == 1 && s.first_is_bos);
        s = ids_of(&r, CHAT, MSG("<s>a</s><s>"));
        assert_true(s.bos == 1 && s.eos == 1 && s.first_is_bos);
        s = ids_of(&r, CHAT, MSG("bare"));
        assert_true(s.bos == 0 && s.eos == 1);
        rig_close(&r);
    }
}

/* The prompt that a scripted model gets, as text: control tokens as {0} and {1}. */
static char *prompt_text(rig *r, const char *fields, int *status) {
    char json[1000];
    hd_buf b;
    json_t *v, *ids;
    snprintf(json, sizeof json, "{%s,\"max_tokens\":1,\"return_token_ids\":true}", fields);
    v = rig_post(r, CHAT, json, status);
    ids = at(v, "prompt_token_ids");
    buf_init(&b, 1 << 20);
    buf_str(&b, str_at(v, "error.message"));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int id = (int)json_integer_value(json_array_get(ids, i));
        if (id < 2)
            buf_fmt(&b, "{%d}", id);
        else
            buf_byte(&b, (char)(id - BYTE0));
    }
    json_decref(v);
    return buf_take(&b, NULL);
}

static void expect_prompt(rig *r, const char *fields, const char *want) {
    int status;
    char *got = prompt_text(r, fields, &status);
    if (status != 200 || strcmp(got, want)) fail_msg("%s: %d: '%s', not '%s'", fields, status, got, want);
    hd_free(got);
}

/* R062: history comes in fields and stays in them: a marker inside moves nothing.  A continued answer is cut behind its
 * own text, not behind the same letters in the template's words. */
static void r062_history_in_fields(void **state) {
    static const char script[] =
        "{" VOCAB ",\"default\":{\"emit\":[3]},\"template\":\"{% for m in messages %}({{ m.role }})"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}</s>{% endfor "
        "%}\"}";
    rig r;
    (void)state;
    rig_open(&r, script, NULL, NULL);
    expect_prompt(&r, MSG("Repeat: hello </think> world"), "(user)Repeat: hello </think> world{1}");
    expect_prompt(
        &r, "\"messages\":[{\"role\":\"assistant\",\"content\":\"a </think> b\",\"reasoning_content\":\"r </s> s\"}]",
        "(assistant)<think>r </s> s</think>a </think> b{1}");
    expect_prompt(&r, "\"messages\":[{\"role\":\"assistant\",\"content\":\"c\",\"reasoning\":\"</think>\"}]",
                  "(assistant)<think></think></think>c{1}");
    expect_prompt(&r,
                  "\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"s\"}],"
                  "\"continue_final_message\":true",
                  "(user)u{1}(assistant)s");
    expect_prompt(&r,
                  "\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\">\"}],"
                  "\"continue_final_message\":true",
                  "(user)u{1}(assistant)>");
    rig_close(&r);
}

/* A continued answer that the template drops, all of one letter, before a user's text of the same letter: the search
 * for it is linear.  Two million letters compared at every place would take minutes. */
static void continuing_is_linear(void **state) {
    static const char script[] = "{" VOCAB ",\"default\":{\"emit\":[3]},\"template\":\"{{ messages[0].content }}\"}";
    enum { N = 2000000 };
    char *json = malloc(2 * N + 400), *p = json;
    rig r;
    uint64_t t;
    json_t *v;
    int status;
    (void)state;
    assert_non_null(json);
    rig_open(&r, script, NULL, NULL);
    p += sprintf(p, "{\"continue_final_message\":true,\"messages\":[{\"role\":\"user\",\"content\":\"");
    memset(p, 'a', N), p += N;
    p += sprintf(p, "\"},{\"role\":\"assistant\",\"content\":\"");
    memset(p, 'a', N / 2), p += N / 2;
    sprintf(p, "b\"}]}");
    t = now_ms();
    v = rig_post(&r, CHAT, json, &status);
    assert_int_equal(status, 400);
    assert_string_equal(str_at(v, "error.param"), "continue_final_message");
    assert_true(now_ms() - t < 5000);
    json_decref(v);
    free(json);
    rig_close(&r);
}

/* ---- (i) templates ---- */

/* R067: a template that cannot be parsed costs chats an error that says why, and nothing else; it is never replaced by
 * another one silently. */
static void r067_broken_template(void **state) {
    static const char script[] =
        "{" VOCAB ",\"default\":{\"emit\":[3,4]},\"template\":\"{% for m in messages %}{% brake %}\"}";
    rig r;
    json_t *v;
    int status;
    (void)state;
    rig_open(&r, script, NULL, NULL);
    v = rig_post(&r, CHAT, "{" MSG("x") "}", &status);
    assert_int_equal(status, 400);
    assert_string_equal(str_at(v, "error.code"), "no_chat_template");
    assert_non_null(strstr(str_at(v, "error.message"), "brake"));
    json_decref(v);
    v = rig_post(&r, COMPLETE, "{\"prompt\":\"x\"}", &status);
    assert_int_equal(status, 200);
    assert_string_equal(str_at(v, "choices.0.text"), "one two ");
    json_decref(v);
    rig_close(&r);
}

/* R074: roles that must alternate and do not are the client's error, in the template's words. */
static void r074_roles_must_alternate(void **state) {
    static const char script[] =
        "{" VOCAB ",\"default\":{\"emit\":[3]},\"template\":\"{% for m in messages if m.role != 'system' %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif "
        "%}{% endfor %}k\"}";
    rig r;
    json_t *v;
    int status;
    (void)state;
    rig_open(&r, script, NULL, NULL);
    v = rig_post(
        &r, CHAT,
        "{\"stream\":true,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\",\"content\":\"c\"}]}",
        &status);
    assert_int_equal(status, 400);
    assert_string_equal(str_at(v, "error.type"), "invalid_request_error");
    assert_non_null(strstr(str_at(v, "error.message"), "roles must alternate"));
    json_decref(v);
    expect_prompt(&r, "\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}]",
                  "k");
    rig_close(&r);
}

static int make_files(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(tiny, sizeof tiny, "%s/tiny.gguf", dir);
    snprintf(edited, sizeof edited, "%s/edited.gguf", dir);
    return tiny_model_write(tiny_variant_find("q4_k"), NULL, tiny);
}

static int remove_files(void **state) {
    (void)state;
    unlink(tiny);
    unlink(edited);
    return rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r004_clients_killed_together),
        cmocka_unit_test(r006_cancelled_at_any_moment),
        cmocka_unit_test(r049_r050_completion_chunks),
        cmocka_unit_test(r051_nothing_before_a_plain_reply),
        cmocka_unit_test(r052_errors_quote_anything),
        cmocka_unit_test(r056_r057_r058_company_and_chunks),
        cmocka_unit_test(r065_r061_one_bos),
        cmocka_unit_test(r062_history_in_fields),
        cmocka_unit_test(continuing_is_linear),
        cmocka_unit_test(r067_broken_template),
        cmocka_unit_test(r074_roles_must_alternate),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
