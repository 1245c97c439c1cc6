/* test_server.c - the OpenAI endpoints over real sockets with a scripted model: shapes, order, errors, texts. */
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

#define CHAT "/v1/chat/completions"
#define COMPLETE "/v1/completions"

/* Ids: 0 <s>, 1 </s>, 2 hello, 3 " world", 4 ABC, 5 DEF, 6 G, 7 HI, 8 J, 9 X, 10 F0 9F, 11 98 8A, 12 80, 13 "?",
 * 14 "?\n", 15 as, 16 ple, 17 "E4 BD A0 E5", 18 "A5 BD", 19 C3, 20 "(", 21 "F0 9F 98"; then the bytes. */
static const char script[] =
    "{\"vocab\":[\"<s>\",\"</s>\",\"hello\",\" world\",\"ABC\",\"DEF\",\"G\",\"HI\",\"J\",\"X\",{\"hex\":\"F09F\"},"
    "{\"hex\":\"988A\"},{\"hex\":\"80\"},\"?\",\"?\\n\",\"as\",\"ple\",{\"hex\":\"E4BDA0E5\"},{\"hex\":\"A5BD\"},"
    "{\"hex\":\"C3\"},\"(\",{\"hex\":\"F09F98\"}],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":512,"
    "\"rules\":[{\"match\":\"greet\",\"emit\":[2,3]},{\"match\":\"stop1\",\"emit\":[4,5,6,7,8,9]},"
    "{\"match\":\"alarm\",\"emit\":[4,5,9]},{\"match\":\"emoji\",\"emit\":[10,11,17,18,9]},"
    "{\"match\":\"quest\",\"emit\":[14]},{\"match\":\"mark\",\"emit\":[13]},{\"match\":\"inner\",\"emit\":[16,15]},"
    "{\"match\":\"bad1\",\"emit\":[12]},{\"match\":\"bad2\",\"emit\":[19,20]},{\"match\":\"bad3\",\"emit\":[2,21]},"
    "{\"match\":\"long\",\"emit\":[9],\"then\":\"loop\"},{\"match\":\"broken\",\"emit\":[2],\"then\":\"fail\"},"
    "{\"match\":\"dice\",\"emit\":[4,4,4,4,4,4,4,4],\"top\":[[[4,1],[5,1],[6,1],[7,1]],[[4,1],[5,1],[6,1],[7,1]],"
    "[[4,1],[5,1],[6,1],[7,1]],[[4,1],[5,1],[6,1],[7,1]],[[4,1],[5,1],[6,1],[7,1]],[[4,1],[5,1],[6,1],[7,1]],"
    "[[4,1],[5,1],[6,1],[7,1]],[[4,1],[5,1],[6,1],[7,1]]]},"
    "{\"match\":\"known\",\"emit\":[2,3],\"top\":[[[2,5],[3,4],[4,3]],[[3,2],[5,1]]]}],"
    "\"default\":{\"emit\":[2]}}";

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

/* Post and expect 200. */
static json_t *good(const char *path, const char *json) {
    int status;
    json_t *v = rig_post(&R, path, json, &status);
    if (status != 200) fail_msg("%s: %d %s", json, status, str_at(v, "error.message"));
    return v;
}

static void stream(const char *path, const char *json, sse_list *l) {
    char *body;
    assert_int_equal(client_once(R.port, "POST", path, NULL, json, &body), 200);
    sse_parse(body, l);
    hd_free(body);
}

/* Text of the same request streamed and not; both must agree with `want`. */
static void both(const char *fields, const char *want) {
    char json[1000], *got;
    json_t *v;
    sse_list l;
    snprintf(json, sizeof json, "{%s}", fields);
    v = good(CHAT, json);
    assert_string_equal(str_at(v, "choices.0.message.content"), want);
    json_decref(v);
    snprintf(json, sizeof json, "{%s,\"stream\":true}", fields);
    stream(CHAT, json, &l);
    got = sse_text(&l, 0);
    assert_string_equal(got, want);
    hd_free(got);
    sse_free(&l);
}
#define MSG(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"

static void plain_reply(void **state) {
    json_t *v = good(CHAT, "{" MSG("greet") ",\"seed\":-1}");
    (void)state;
    assert_string_equal(str_at(v, "object"), "chat.completion");
    assert_int_equal(strncmp(str_at(v, "id"), "chatcmpl-", 9), 0);
    assert_true(json_is_integer(at(v, "created")));
    assert_string_equal(str_at(v, "model"), server_model_id(R.s));
    assert_int_equal(strncmp(str_at(v, "system_fingerprint"), "fp_", 3), 0);
    assert_string_equal(str_at(v, "choices.0.message.role"), "assistant");
    assert_string_equal(str_at(v, "choices.0.message.content"), "hello world");
    assert_true(json_is_null(at(v, "choices.0.message.refusal")));
    assert_true(json_is_null(at(v, "choices.0.logprobs")));
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    assert_int_equal(json_integer_value(at(v, "usage.prompt_tokens")), 5); /* g r e e t */
    assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 3); /* two and the EOS */
    assert_int_equal(json_integer_value(at(v, "usage.total_tokens")), 8);
    assert_int_equal(json_integer_value(at(v, "usage.prompt_tokens_details.cached_tokens")), 0);
    assert_int_equal(json_integer_value(at(v, "seed")), -1);
    json_decref(v);
}

/* R049, R050, R093: exact order and members; numbers from 0. */
static void stream_shape(void **state) {
    static const char *const options[] = {"", ",\"stream_options\":null", ",\"stream_options\":{\"include_usage\":false}",
                                          ",\"stream_options\":{\"include_usage\":true}"};
    (void)state;
    for (int k = 0; k < 4; k++) {
        char json[300];
        bool usage = k == 3;
        sse_list l;
        const char *id;
        snprintf(json, sizeof json, "{" MSG("greet") ",\"stream\":true%s}", options[k]);
        stream(CHAT, json, &l);
        assert_int_equal(l.n, usage ? 6 : 5);
        id = str_at(l.ev[0].data, "id");
        for (size_t i = 0; i + 1 < l.n; i++) {
            json_t *d = l.ev[i].data;
            bool last = usage && i + 2 == l.n;
            assert_int_equal(l.ev[i].number, i);
            assert_string_equal(str_at(d, "id"), id);
            assert_string_equal(str_at(d, "object"), "chat.completion.chunk");
            assert_true(json_equal(at(d, "created"), at(l.ev[0].data, "created")));
            assert_int_equal(json_array_size(at(d, "choices")), last ? 0 : 1);
            assert_int_equal(at(d, "usage") != NULL, usage);
            if (usage) assert_int_equal(json_is_null(at(d, "usage")), !last);
            if (last) continue;
            assert_non_null(at(d, "choices.0.finish_reason"));
            assert_int_equal(at(d, "choices.0.delta.role") != NULL, i == 0);
        }
        assert_string_equal(str_at(l.ev[0].data, "choices.0.delta.role"), "assistant");
        assert_string_equal(str_at(l.ev[1].data, "choices.0.delta.content"), "hello");
        assert_string_equal(str_at(l.ev[2].data, "choices.0.delta.content"), " world");
        assert_int_equal(json_object_size(at(l.ev[3].data, "choices.0.delta")), 0);
        assert_string_equal(str_at(l.ev[3].data, "choices.0.finish_reason"), "stop");
        if (usage) assert_int_equal(json_integer_value(at(l.ev[4].data, "usage.completion_tokens")), 3);
        assert_true(l.ev[l.n - 1].done);
        assert_int_equal(l.ev[l.n - 1].number, -1);
        sse_free(&l);
    }
}

/* R045, R046, R047, R048, R052. */
static void texts_are_exact(void **state) {
    (void)state;
    both(MSG("emoji"), "\xF0\x9F\x98\x8A\xE4\xBD\xA0\xE5\xA5\xBDX");
    both(MSG("stop1") ",\"stop\":[\"DEFGHIJ\"]", "ABC");
    both(MSG("alarm") ",\"stop\":[\"DEFGHIJ\"]", "ABCDEFX");
    both(MSG("stop1") ",\"stop\":\"CD\"", "AB");
    both(MSG("stop1") ",\"stop\":[\"GHIJX!\",\"GHIJX?\"]", "ABCDEFGHIJX");
    both(MSG("quest") ",\"stop\":[\"\\n\"]", "?");
    both(MSG("quest") ",\"stop\":[\"?\\n\"]", "");
    both(MSG("mark") ",\"stop\":[\"?\\n\"]", "?");
    both(MSG("inner") ",\"stop\":[\"<|eot|><|h|>assistant<|/h|>\"]", "pleas");
    both(MSG("bad1"), "\xEF\xBF\xBD");
    both(MSG("bad2"), "\xEF\xBF\xBD(");
    both(MSG("bad3"), "hello\xEF\xBF\xBD");
    both(MSG("bad3") ",\"max_tokens\":2", "hello\xEF\xBF\xBD");
}

static void length_and_caps(void **state) {
    static const struct {
        const char *fields;
        int status, tokens;
    } cases[] = {
        {"\"max_completion_tokens\":5", 200, 5},
        {"\"max_tokens\":7", 200, 7},
        {"\"max_tokens\":7,\"max_completion_tokens\":5", 200, 5},
        {"\"max_completion_tokens\":5.0", 200, 5},
        {"\"max_completion_tokens\":0", 400, 0},
        {"\"max_completion_tokens\":-1", 400, 0},
        {"\"max_completion_tokens\":\"5\"", 400, 0},
        {"\"max_completion_tokens\":1000000000", 200, 508},
        {"\"max_completion_tokens\":1e9", 200, 508},
        {"\"max_tokens\":null", 200, 508}, /* ends at the context: 512 - 4 */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[300];
        int status;
        json_t *v;
        snprintf(json, sizeof json, "{" MSG("long") ",%s}", cases[i].fields);
        v = rig_post(&R, CHAT, json, &status);
        if (status != cases[i].status) fail_msg("%s: %d", json, status);
        if (status == 200) {
            assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), cases[i].tokens);
            assert_string_equal(str_at(v, "choices.0.finish_reason"), "length");
        } else {
            assert_string_equal(str_at(v, "error.param"), "max_completion_tokens");
        }
        json_decref(v);
    }
}

/* What is no cap is refused in the same words by both dialects; 0 has a use in completions (echo). */
static void bad_caps(void **state) {
    static const char *const names[] = {"max_tokens", "max_completion_tokens"}, *const caps[] = {"-1", "1.5", "\"5\"", "-1e30", "[]", "0"};
    (void)state;
    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < 2 * (sizeof caps / sizeof *caps) - 1; i++) {
            char json[200], want[80];
            int status;
            json_t *v;
            snprintf(json, sizeof json, "{%s,\"%s\":%s}", i % 2 ? "\"prompt\":\"greet\"" : MSG("greet"), names[n], caps[i / 2]);
            snprintf(want, sizeof want, "%s must be a whole number of at least 1", names[n]);
            v = rig_post(&R, i % 2 ? COMPLETE : CHAT, json, &status);
            if (status != 400) fail_msg("%s: %d", json, status);
            assert_string_equal(str_at(v, "error.message"), want);
            assert_string_equal(str_at(v, "error.param"), names[n]);
            json_decref(v);
        }
}

/* Every optional field as null is as absent (R086). */
static void nulls_are_absent(void **state) {
    json_t *v = good(CHAT, "{" MSG("greet") ",\"temperature\":null,\"top_p\":null,\"stop\":null,\"tools\":null,"
                           "\"tool_choice\":null,\"seed\":null,\"logit_bias\":null,\"response_format\":null,"
                           "\"stream_options\":null,\"max_tokens\":null,\"max_completion_tokens\":null,\"n\":null,"
                           "\"user\":null,\"metadata\":null,\"stream\":null,\"logprobs\":null,\"top_logprobs\":null,"
                           "\"model\":null,\"presence_penalty\":null,\"frequency_penalty\":null,\"modalities\":null,"
                           "\"audio\":null,\"parallel_tool_calls\":null,\"reasoning_effort\":null,\"top_k\":null}");
    (void)state;
    assert_string_equal(str_at(v, "choices.0.message.content"), "hello world");
    json_decref(v);
}

static void errors(void **state) {
    static const struct {
        const char *path, *json;
        int status;
        const char *param, *code; /* NULL: not looked at */
    } cases[] = {
        {CHAT, "{", 400, NULL, "invalid_json"},
        {CHAT, "[]", 400, NULL, "invalid_json"},
        {CHAT, "", 400, NULL, "invalid_json"},
        {CHAT, "{\"messages\":\"x\"}", 400, "messages", NULL},
        {CHAT, "{}", 400, "messages", NULL},
        {CHAT, "{\"messages\":[]}", 400, "messages", NULL},
        {CHAT, "{\"messages\":[1]}", 400, "messages[0]", NULL},
        {CHAT, "{\"messages\":[{\"content\":\"x\"}]}", 400, "messages[0].role", NULL},
        {CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", 400, "messages[0].role", NULL},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "messages[0].content", NULL},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"contnet\":\"x\"}]}", 400, "messages[0].content", NULL},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"smell\"}]}]}", 400, "messages[0].content[1]", NULL},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}", 400, "messages[0].content[0]", "unsupported_modality"},
        {CHAT, "{" MSG("x") ",\"temperature\":\"hot\"}", 400, "temperature", NULL},
        {CHAT, "{" MSG("x") ",\"temperature\":-1}", 400, "temperature", NULL},
        {CHAT, "{" MSG("x") ",\"top_p\":2}", 400, "top_p", NULL},
        {CHAT, "{" MSG("x") ",\"n\":0}", 400, "n", NULL},
        {CHAT, "{" MSG("x") ",\"n\":129}", 400, "n", NULL},
        {CHAT, "{" MSG("x") ",\"stop\":[1]}", 400, "stop", NULL},
        {CHAT, "{" MSG("x") ",\"stop\":\"\"}", 400, "stop", NULL},
        {CHAT, "{" MSG("x") ",\"stream\":\"yes\"}", 400, "stream", NULL},
        {CHAT, "{" MSG("x") ",\"stream_options\":{\"include_usage\":1}}", 400, "stream_options.include_usage", NULL},
        {CHAT, "{" MSG("x") ",\"seed\":1.5}", 400, "seed", NULL},
        {CHAT, "{" MSG("x") ",\"seed\":18446744073709551616}", 400, "seed", NULL},
        {CHAT, "{" MSG("x") ",\"logit_bias\":{\"x\":1}}", 400, "logit_bias", NULL},
        {CHAT, "{" MSG("x") ",\"logit_bias\":{\"999999\":1}}", 400, "logit_bias", NULL},
        {CHAT, "{" MSG("x") ",\"logit_bias\":{\"2\":101}}", 400, "logit_bias", NULL},
        {CHAT, "{" MSG("x") ",\"top_logprobs\":3}", 400, "top_logprobs", NULL},
        {CHAT, "{" MSG("x") ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs", NULL},
        {CHAT, "{" MSG("x") ",\"response_format\":{\"type\":\"grammar\"}}", 400, "response_format.type", NULL},
        {CHAT, "{" MSG("x") ",\"response_format\":{\"type\":\"json_schema\"}}", 400, "response_format.json_schema", NULL},
        {CHAT, "{" MSG("x") ",\"response_format\":\"json\"}", 400, "response_format", NULL},
        {CHAT, "{" MSG("x") ",\"modalities\":[\"audio\"]}", 400, "modalities", NULL},
        {CHAT, "{" MSG("x") ",\"model\":\"other\"}", 404, "model", "model_not_found"},
        {CHAT, "{" MSG("x") ",\"model\":5}", 400, "model", NULL},
        {COMPLETE, "{}", 400, "prompt", NULL},
        {COMPLETE, "{\"prompt\":5}", 400, "prompt", NULL},
        {COMPLETE, "{\"prompt\":[]}", 400, "prompt", NULL},
        {COMPLETE, "{\"prompt\":[[]]}", 400, "prompt", NULL},
        {COMPLETE, "{\"prompt\":[1,\"x\"]}", 400, "prompt", NULL},
        {COMPLETE, "{\"prompt\":[-1]}", 400, "prompt", NULL},
        {COMPLETE, "{\"prompt\":[100000]}", 400, "prompt", NULL},
        {COMPLETE, "{\"prompt\":\"x\",\"suffix\":\"y\"}", 400, "suffix", "unsupported_parameter"},
        {COMPLETE, "{\"prompt\":\"x\",\"best_of\":3}", 400, "best_of", NULL},
        {COMPLETE, "{\"prompt\":\"x\",\"logprobs\":true}", 400, "logprobs", NULL},
        {"/tokenize", "{}", 400, "content", NULL},
        {"/detokenize", "{\"tokens\":[1,99999]}", 400, "tokens", NULL},
        {"/v1/nothing", "{}", 404, NULL, "not_found"},
        {"/v1/rerank", "{}", 404, NULL, "not_supported"},
        {"/chat/completions", "{" MSG("x") "}", 404, NULL, "not_found"},
        {"/v1/models", "{}", 405, NULL, "method_not_allowed"},
        {"/v1/heddle/cancel", "{\"id\":\"nobody\"}", 404, "id", NULL},
        {"/v1/heddle/cancel", "{\"id\":7}", 400, "id", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status;
        json_t *v = rig_post(&R, cases[i].path, cases[i].json, &status);
        if (status != cases[i].status) fail_msg("%s: %d: %s", cases[i].json, status, str_at(v, "error.message"));
        assert_true(*str_at(v, "error.message") && *str_at(v, "error.type"));
        assert_non_null(at(v, "error.param"));
        assert_non_null(at(v, "error.code"));
        if (cases[i].param) assert_string_equal(str_at(v, "error.param"), cases[i].param);
        if (cases[i].code) assert_string_equal(str_at(v, "error.code"), cases[i].code);
        json_decref(v);
    }
    /* R052: bytes that are not UTF-8 in a body are a 400, and the server lives. */
    {
        char *body;
        assert_int_equal(client_once(R.port, "POST", CHAT, NULL, "{" MSG("\xFF\xFE") "}", &body), 400);
        hd_free(body);
    }
}

/* What other servers have and this one does not is no reason to try again (SDKs do after 408, 409, 429 and from 500 on), and is told
 * where to go instead; so is who has the base URL wrong.  Anthropic's routes answer in its shape. */
static void elsewhere(void **state) {
    static const struct {
        const char *method, *path, *says;
        bool anthropic;
    } cases[] = {{"POST", "/v1/responses", "POST /v1/chat/completions", false},
                 {"GET", "/v1/responses/resp_1", "POST /v1/chat/completions", false},
                 {"POST", "/v1/responses/resp_1/cancel", "POST /v1/chat/completions", false},
                 {"DELETE", "/v1/conversations/1", "POST /v1/chat/completions", false},
                 {"POST", "/v1/threads", "POST /v1/chat/completions", false},
                 {"POST", "/v1/messages", "POST /v1/chat/completions", true},
                 {"POST", "/v1/messages?beta=true", "POST /v1/chat/completions", true},
                 {"POST", "/v1/messages/count_tokens", "POST /tokenize", true},
                 {"POST", "/v1/messages/batches", "POST /v1/chat/completions", true},
                 {"POST", "/v1/rerank", "POST /v1/embeddings", false},
                 {"POST", "/v1/adapters", "adapters", false},
                 {"GET", "/v1/files", "/v1/completions", false},
                 {"POST", "/v1/images/generations", "text and embeddings", false},
                 {"POST", "/v1/audio/speech", "text and embeddings", false},
                 {"POST", "/api/chat", "POST /v1/chat/completions", false},
                 {"GET", "/api/tags", "GET /v1/models", false},
                 {"POST", "/chat/completions", "did you mean /v1/chat/completions?", false},
                 {"POST", "/v1/v1/embeddings", "did you mean /v1/embeddings?", false},
                 {"GET", "/models", "did you mean /v1/models?", false},
                 {"POST", "/responses", "there is nothing at /responses", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body;
        json_t *v;
        int status = client_once(R.port, cases[i].method, cases[i].path, NULL, strcmp(cases[i].method, "POST") ? NULL : "{}", &body);
        if (status != 404 || !strstr(body, cases[i].says)) fail_msg("%s: %d: %s", cases[i].path, status, body);
        assert_non_null(v = json_loads(body, 0, NULL));
        assert_string_equal(str_at(v, "error.type"), "not_found_error");
        if (cases[i].anthropic) assert_string_equal(str_at(v, "type"), "error");
        else assert_null(json_object_get(v, "type"));
        assert_int_equal(json_object_size(at(v, "error")), cases[i].anthropic ? 2 : 4);
        json_decref(v);
        hd_free(body);
    }
}

/* R015, R010: too long a prompt is refused before the stream starts, with the counts. */
static void too_long(void **state) {
    static const char *const paths[] = {CHAT, COMPLETE};
    (void)state;
    for (int k = 0; k < 4; k++) {
        char json[2000];
        int n = snprintf(json, sizeof json, "{\"stream\":%s,", k & 1 ? "true" : "false"), status;
        json_t *v;
        n += snprintf(json + n, sizeof json - (size_t)n, k < 2 ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":\"");
        memset(json + n, 'w', 600);
        strcpy(json + n + 600, k < 2 ? "\"}]}" : "\"}");
        v = rig_post(&R, paths[k / 2], json, &status);
        assert_int_equal(status, 400);
        assert_string_equal(str_at(v, "error.code"), "context_length_exceeded");
        assert_true(json_integer_value(at(v, "error.n_prompt_tokens")) >= 600);
        assert_int_equal(json_integer_value(at(v, "error.n_ctx")), 512);
        json_decref(v);
    }
}

/* R084, R085: what servers and SDKs send back as messages is accepted. */
static void message_shapes(void **state) {
    static const char *const lists[] = {
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"gre\"},{\"type\":\"text\",\"text\":\"et\"}]}",
        "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"greet\"}]}",
        "{\"role\":\"developer\",\"content\":\"greet\"}",
        "{\"role\":\"user\",\"content\":\"greet\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":null}",
        "{\"role\":\"user\",\"content\":\"greet\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"not json\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":[]}",
        "{\"role\":\"user\",\"content\":\"greet\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]}",
        "{\"role\":\"user\",\"content\":\"greet\"},{\"role\":\"assistant\",\"content\":[],\"refusal\":null,\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"role\":\"function\",\"name\":\"f\",\"content\":\"1\"}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char json[1000];
        json_t *v;
        snprintf(json, sizeof json, "{\"messages\":[%s]}", lists[i]);
        v = good(CHAT, json);
        assert_string_equal(str_at(v, "choices.0.message.content"), "hello world");
        json_decref(v);
    }
}

static double lse(const double *v, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) s += exp(v[i]);
    return log(s);
}

/* R053, R054: logarithms of the softmax of the known logits, whatever the sampling. */
static void chat_logprobs(void **state) {
    double logits[278] = {[2] = 5, [3] = 4, [4] = 3}, norm = lse(logits, 278);
    static const char *const sampling[] = {"\"temperature\":0", "\"temperature\":0.5,\"logit_bias\":{\"2\":0}", "\"temperature\":0,\"top_p\":0.1"};
    (void)state;
    for (size_t k = 0; k < sizeof sampling / sizeof *sampling; k++) {
        char json[300];
        json_t *v, *e;
        snprintf(json, sizeof json, "{" MSG("known") ",\"max_tokens\":1,\"logprobs\":true,\"top_logprobs\":3,%s}", sampling[k]);
        v = good(CHAT, json);
        assert_int_equal(json_array_size(at(v, "choices.0.logprobs.content")), 1);
        assert_true(json_is_null(at(v, "choices.0.logprobs.refusal")));
        e = at(v, "choices.0.logprobs.content.0");
        assert_int_equal(json_array_size(at(e, "top_logprobs")), 3);
        assert_string_equal(str_at(e, "top_logprobs.0.token"), "hello");
        for (int i = 0; i < 3; i++) {
            char path[40];
            snprintf(path, sizeof path, "top_logprobs.%d.logprob", i);
            assert_true(fabs(json_number_value(at(e, path)) - (5 - i - norm)) < 1e-4);
        }
        if (!strcmp(str_at(e, "token"), "hello")) {
            assert_int_equal(json_array_size(at(e, "bytes")), 5);
            assert_int_equal(json_integer_value(at(e, "bytes.1")), 'e');
        }
        json_decref(v);
    }
}

/* Entries of withheld stop tokens are left out; entries of held tokens come with the text; streams carry the same. */
static void logprobs_follow_the_text(void **state) {
    static const struct {
        const char *fields;
        int entries;
    } cases[] = {{MSG("stop1") ",\"stop\":[\"DEFGHIJ\"]", 1},
                 {MSG("alarm") ",\"stop\":[\"DEFGHIJ\"]", 3},
                 {MSG("stop1") ",\"stop\":[\"CDEF\"]", 1},
                 {MSG("emoji"), 5},
                 {MSG("bad3"), 2}};
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char json[400];
        json_t *v, *all = json_array();
        sse_list l;
        snprintf(json, sizeof json, "{%s,\"logprobs\":true}", cases[k].fields);
        v = good(CHAT, json);
        if ((int)json_array_size(at(v, "choices.0.logprobs.content")) != cases[k].entries)
            fail_msg("%s: %zu entries", json, json_array_size(at(v, "choices.0.logprobs.content")));
        snprintf(json, sizeof json, "{%s,\"logprobs\":true,\"stream\":true}", cases[k].fields);
        stream(CHAT, json, &l);
        for (size_t i = 0; i < l.n; i++)
            if (at(l.ev[i].data, "choices.0.logprobs.content")) json_array_extend(all, at(l.ev[i].data, "choices.0.logprobs.content"));
        assert_true(json_equal(all, at(v, "choices.0.logprobs.content")));
        sse_free(&l);
        json_decref(all);
        json_decref(v);
    }
}

/* R058: every seed is defined, reported, and repeats. */
static void seeds(void **state) {
    static const char *const values[] = {"0", "-1", "2147483648", "4294967295", "9223372036854775807", "9223372036854775808",
                                         "18446744073709551615", "-9223372036854775808", "7.0"};
    char first[2000] = "";
    bool differ = false;
    (void)state;
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        char json[200], text[2][2000], report[64], *body, *from;
        for (int again = 0; again < 2; again++) {
            snprintf(json, sizeof json, "{" MSG("dice") ",\"temperature\":1,\"max_tokens\":8,\"seed\":%s}", values[k]);
            assert_int_equal(client_once(R.port, "POST", CHAT, NULL, json, &body), 200);
            snprintf(report, sizeof report, "\"seed\":%.*s}", (int)strcspn(values[k], "."), values[k]);
            if (!strstr(body, report)) fail_msg("%s not in %s", report, body);
            from = strstr(body, "\"message\":"); /* as text: not every JSON reader takes the largest seeds */
            snprintf(text[again], sizeof *text, "%.*s", (int)(strstr(from, "\"logprobs\"") - from), from);
            hd_free(body);
        }
        assert_string_equal(text[0], text[1]);
        if (!k) snprintf(first, sizeof first, "%s", text[0]);
        differ |= strcmp(first, text[0]) != 0;
    }
    assert_true(differ);
}

static void many_choices(void **state) {
    json_t *v = good(CHAT, "{" MSG("dice") ",\"n\":3,\"seed\":5,\"temperature\":1,\"max_tokens\":8}"), *w;
    sse_list l;
    (void)state;
    assert_int_equal(json_array_size(at(v, "choices")), 3);
    assert_int_equal(json_integer_value(at(v, "usage.prompt_tokens")), 4);
    assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 24);
    stream(CHAT, "{" MSG("dice") ",\"n\":3,\"seed\":5,\"temperature\":1,\"max_tokens\":8,\"stream\":true}", &l);
    for (int i = 0; i < 3; i++) {
        char path[64], *text = sse_text(&l, i);
        snprintf(path, sizeof path, "choices.%d.message.content", i);
        assert_string_equal(text, str_at(v, path));
        snprintf(path, sizeof path, "choices.%d.index", i);
        assert_int_equal(json_integer_value(at(v, path)), i);
        hd_free(text);
    }
    /* The first of three is the same as one alone. */
    w = good(CHAT, "{" MSG("dice") ",\"seed\":5,\"temperature\":1,\"max_tokens\":8}");
    assert_string_equal(str_at(w, "choices.0.message.content"), str_at(v, "choices.0.message.content"));
    sse_free(&l);
    json_decref(v);
    json_decref(w);
}

static void completions(void **state) {
    json_t *v = good(COMPLETE, "{\"prompt\":[\"greet\",\"inner\"],\"n\":2,\"temperature\":0}");
    (void)state;
    assert_string_equal(str_at(v, "object"), "text_completion");
    assert_int_equal(json_array_size(at(v, "choices")), 4);
    assert_string_equal(str_at(v, "choices.0.text"), "hello world");
    assert_string_equal(str_at(v, "choices.3.text"), "pleas");
    assert_int_equal(json_integer_value(at(v, "choices.3.index")), 3);
    json_decref(v);
    v = good(COMPLETE, "{\"prompt\":[2,3],\"echo\":true}");
    assert_string_equal(str_at(v, "choices.0.text"), "hello worldhello");
    json_decref(v);
    v = good(COMPLETE, "{\"prompt\":[[2,3],[9]],\"echo\":true,\"max_tokens\":0}");
    assert_string_equal(str_at(v, "choices.0.text"), "hello world");
    assert_string_equal(str_at(v, "choices.1.text"), "X");
    assert_string_equal(str_at(v, "choices.1.finish_reason"), "length");
    assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 0);
    json_decref(v);
    /* R055 */
    v = good(COMPLETE, "{\"prompt\":\"known\",\"logprobs\":2,\"max_tokens\":2,\"temperature\":0}");
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.tokens")), 2);
    assert_string_equal(str_at(v, "choices.0.logprobs.tokens.1"), " world");
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.token_logprobs")), 2);
    assert_int_equal(json_object_size(at(v, "choices.0.logprobs.top_logprobs.0")), 2);
    assert_non_null(json_object_get(at(v, "choices.0.logprobs.top_logprobs.0"), "hello"));
    assert_int_equal(json_integer_value(at(v, "choices.0.logprobs.text_offset.1")), 5);
    json_decref(v);
    for (int streamed = 0; streamed < 2; streamed++) {
        static const char q[] = "\"prompt\":\"hello\xC3\xA9 world\",\"logprobs\":1,\"echo\":true,\"max_tokens\":0,\"add_special_tokens\":false";
        char json[200];
        json_t *lp;
        if (streamed) {
            sse_list l;
            char *text;
            size_t n = 0;
            snprintf(json, sizeof json, "{%s,\"stream\":true}", q);
            stream(COMPLETE, json, &l);
            text = sse_text(&l, 0);
            assert_string_equal(text, "hello\xC3\xA9 world");
            for (size_t i = 0; i < l.n; i++) n += json_array_size(at(l.ev[i].data, "choices.0.logprobs.tokens"));
            assert_int_equal(n, 4);
            hd_free(text);
            sse_free(&l);
            continue;
        }
        snprintf(json, sizeof json, "{%s}", q);
        v = good(COMPLETE, json);
        lp = at(v, "choices.0.logprobs");
        assert_string_equal(str_at(v, "choices.0.text"), "hello\xC3\xA9 world");
        assert_int_equal(json_array_size(at(lp, "tokens")), 4); /* hello, C3, A9, " world" */
        assert_true(json_is_null(at(lp, "token_logprobs.0")));
        assert_true(json_is_null(at(lp, "top_logprobs.0")));
        assert_true(json_is_number(at(lp, "token_logprobs.3")));
        assert_string_equal(str_at(lp, "tokens.1"), "bytes:\\xc3");
        assert_int_equal(json_integer_value(at(lp, "text_offset.3")), 6); /* in characters */
        json_decref(v);
    }
}

static void tokens(void **state) {
    json_t *v = good("/tokenize", "{\"content\":\"hello world\"}");
    (void)state;
    assert_int_equal(json_array_size(at(v, "tokens")), 2);
    assert_int_equal(json_integer_value(at(v, "tokens.1")), 3);
    json_decref(v);
    v = good("/tokenize", "{\"content\":\"hello\xC3\xA9\",\"with_pieces\":true}");
    assert_string_equal(str_at(v, "tokens.0.piece"), "hello");
    assert_int_equal(json_integer_value(at(v, "tokens.1.piece.0")), 0xC3);
    json_decref(v);
    v = good("/tokenize", "{\"prompt\":\"hello world\",\"add_special_tokens\":false,\"return_token_strs\":true}");
    assert_int_equal(json_integer_value(at(v, "count")), 2);
    assert_int_equal(json_integer_value(at(v, "max_model_len")), 512);
    assert_string_equal(str_at(v, "token_strs.0"), "hello");
    json_decref(v);
    v = good("/tokenize", "{" MSG("hello world") "}");
    assert_int_equal(json_integer_value(at(v, "count")), 2);
    json_decref(v);
    v = good("/detokenize", "{\"tokens\":[2,3,10,11]}");
    assert_string_equal(str_at(v, "content"), "hello world\xF0\x9F\x98\x8A");
    assert_string_equal(str_at(v, "prompt"), "hello world\xF0\x9F\x98\x8A");
    json_decref(v);
}

static void token_ids(void **state) {
    json_t *v = good(CHAT, "{" MSG("stop1") ",\"stop\":[\"DEF\"],\"return_token_ids\":true}"), *all = json_array();
    sse_list l;
    (void)state;
    assert_int_equal(json_array_size(at(v, "prompt_token_ids")), 5);
    assert_int_equal(json_array_size(at(v, "choices.0.token_ids")), 2); /* the stop's own token is among them */
    stream(CHAT, "{" MSG("stop1") ",\"stop\":[\"DEF\"],\"return_token_ids\":true,\"stream\":true}", &l);
    for (size_t i = 0; i < l.n; i++)
        if (at(l.ev[i].data, "choices.0.token_ids")) json_array_extend(all, at(l.ev[i].data, "choices.0.token_ids"));
    assert_true(json_equal(all, at(v, "choices.0.token_ids")));
    assert_int_equal(json_array_size(at(l.ev[0].data, "prompt_token_ids")), 5);
    sse_free(&l);
    json_decref(all);
    json_decref(v);
}

/* A row that fails is a 500, or an error in the stream without [DONE]; others go on. */
static void failing_row(void **state) {
    int status;
    sse_list l;
    json_t *v = rig_post(&R, CHAT, "{" MSG("broken") "}", &status);
    (void)state;
    assert_int_equal(status, 500);
    assert_string_equal(str_at(v, "error.type"), "server_error");
    json_decref(v);
    stream(CHAT, "{" MSG("broken") ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}", &l);
    assert_false(l.ev[l.n - 1].done);
    assert_string_equal(str_at(l.ev[l.n - 1].data, "error.type"), "server_error");
    sse_free(&l);
    v = good(CHAT, "{" MSG("greet") "}");
    json_decref(v);
}

static void models(void **state) {
    json_t *v = rig_get(&R, "/v1/models", NULL);
    char path[200];
    int status;
    (void)state;
    assert_string_equal(str_at(v, "object"), "list");
    assert_string_equal(str_at(v, "data.0.id"), server_model_id(R.s));
    assert_int_equal(json_integer_value(at(v, "data.0.max_model_len")), 512);
    json_decref(v);
    snprintf(path, sizeof path, "/v1/models/%s", server_model_id(R.s));
    v = rig_get(&R, path, &status);
    assert_int_equal(status, 200);
    assert_string_equal(str_at(v, "object"), "model");
    json_decref(v);
    v = rig_get(&R, "/v1/models/none", &status);
    assert_int_equal(status, 404);
    assert_string_equal(str_at(v, "error.code"), "model_not_found");
    json_decref(v);
}

static void metrics_text(void **state) {
    char *body;
    (void)state;
    assert_int_equal(client_once(R.port, "GET", "/metrics", NULL, NULL, &body), 200);
    assert_non_null(strstr(body, "vllm:num_requests_running{model_name=\""));
    assert_non_null(strstr(body, "vllm:request_success_total{"));
    assert_non_null(strstr(body, "_bucket{"));
    hd_free(body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_reply),
        cmocka_unit_test(stream_shape),
        cmocka_unit_test(texts_are_exact),
        cmocka_unit_test(length_and_caps),
        cmocka_unit_test(bad_caps),
        cmocka_unit_test(nulls_are_absent),
        cmocka_unit_test(elsewhere),
        cmocka_unit_test(errors),
        cmocka_unit_test(too_long),
        cmocka_unit_test(message_shapes),
        cmocka_unit_test(chat_logprobs),
        cmocka_unit_test(logprobs_follow_the_text),
        cmocka_unit_test(seeds),
        cmocka_unit_test(many_choices),
        cmocka_unit_test(completions),
        cmocka_unit_test(tokens),
        cmocka_unit_test(token_ids),
        cmocka_unit_test(failing_row),
        cmocka_unit_test(models),
        cmocka_unit_test(metrics_text),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
