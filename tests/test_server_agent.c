/* test_server_agent.c - conversations as agents have them: tools in the template, tool results, reasoning that the template
 * drops from past turns.  From the second turn on nearly everything that was computed before is taken up again, and answers
 * are to the bit those of a server that keeps nothing.
 *
 * What could be taken up is worked out here, from the token ids of all turns before: the longest common beginning of the
 * prompt with what was computed.  The models: a scripted one; a tiny random one with sliding windows; and where
 * $HEDDLE_TEST_MODEL names it the demo model, with its own template and with the one below. */
#include "base/mem.h"
#include "tiny/tiny_model.h"
#include "util/gguf_edit.h"
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

#define CHAT "/v1/chat/completions"
enum { TURNS = 4, CONVERSATIONS = 8 };

/* In the manner of reasoning models: tools first, results of tools as a user's words, and the reasoning of an assistant's
 * turn is kept only behind the last question. */
static const char agent_template[] =
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last %}{{ m.content or '' }}{% else %}{{ (m.content or '').split('</think>')[-1] }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static const char *const emits[][2] = {
    {"the fourth", "<think>The fourth is easy.</think>Four."},
    {"the third", "<think>Now I add what is known to what was asked.</think>The loom has twelve shafts."},
    {"</tool_response>", "<think>The tool says seven.</think>It is seven."},
    {"", "<think>I should look that up first.</think>Let me look.<tool_call>look_up {\"word\": \"weft\"}</tool_call>"},
};

static char dir[] = "/tmp/heddle-agent-XXXXXX";

/* ---- rigs ---- */

typedef struct {
    const char *model; /* a path, or NULL: the scripted one */
    uint32_t page, max_tokens, window;
} subject;

typedef struct {
    rig r;
    store *st;
} place;

static char *script(uint32_t window) {
    json_t *v = json_pack("{s:[s,s,s,s,s],s:{s:i,s:[i]},s:i,s:s,s:[]}", "vocab", "<s>", "</s>", "<think>", "</think>", " the",
                          "special", "bos", 0, "eos", 1, "context", 8192, "template", agent_template, "rules");
    char *text;
    if (window) json_object_set_new(v, "window", json_integer(window));
    for (size_t i = 0; i < sizeof emits / sizeof *emits; i++) {
        json_t *rule = json_pack("{s:[s]}", "emit", emits[i][1]);
        if (*emits[i][0]) {
            json_object_set_new(rule, "match", json_string(emits[i][0]));
            json_array_append_new(json_object_get(v, "rules"), rule);
        } else {
            json_object_set_new(v, "default", rule);
        }
    }
    text = json_dumps(v, 0);
    json_decref(v);
    return text;
}

static void place_open(place *p, const subject *s, uint64_t budget, const char *state_dir, bool cold) {
    engine_options eo = {.page_tokens = s->page, .kv_budget_bytes = budget, .step_tokens = 64, .no_cache = cold};
    hd_err err;
    memset(p, 0, sizeof *p);
    if (state_dir) {
        store_opts so = {.dir = state_dir, .linger_ms = 1};
        if (store_open(&p->st, &so, &err)) fail_msg("%s", err.msg);
        eo.store = p->st;
    }
    if (!s->model) {
        char *text = script(s->window);
        rig_open(&p->r, text, NULL, &eo);
        free(text);
        return;
    }
    model_options mo = {.n_threads = 1};
    if (model_open(&p->r.m, s->model, &mo, &err) || engine_open(&p->r.e, p->r.m, &eo, &err) ||
        server_open(&p->r.s, p->r.e, p->r.m, NULL, &err))
        fail_msg("%s", err.msg);
    p->r.port = server_port(p->r.s);
}

static void place_close(place *p) {
    rig_close(&p->r);
    if (p->st) store_close(p->st);
}

/* ---- conversations ---- */

/* Everything that the server under test has computed. */
static struct {
    int32_t *ids;
    size_t n;
} known[TURNS * CONVERSATIONS + 1];
static size_t n_known;

static void forget(void) {
    while (n_known) hd_free(known[--n_known].ids);
}

typedef struct {
    int number;
    bool parses; /* its client takes tool calls out of the text, and drops what it does not know */
    bool brings_ids;
    size_t replayed;
    json_t *messages, *tools;
    int turn;
} talk;

static void talk_open(talk *t, int number, bool tools, bool parses) {
    memset(t, 0, sizeof *t);
    t->number = number;
    t->parses = parses;
    t->messages = json_array();
    if (tools)
        t->tools = json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s}}}}}]", "type", "function", "function", "name", "look_up",
                             "description", "Looks a word up in the weaver's dictionary and gives what it means", "parameters",
                             "type", "object", "properties", "word", "type", "string");
}

static void talk_close(talk *t) {
    json_decref(t->messages);
    json_decref(t->tools);
}

static void say(talk *t, const char *role, const char *text) {
    json_array_append_new(t->messages, json_pack("{s:s,s:s}", "role", role, "content", text));
}

/* What comes before the turn: a question, or after the first answer a tool's result. */
static void next_question(talk *t) {
    char text[200];
    if (t->turn == 1 && t->tools) {
        json_array_append_new(t->messages, json_pack("{s:s,s:s,s:s}", "role", "tool", "tool_call_id", "call_1", "content",
                                                     "weft: the seven threads that go across"));
        return;
    }
    snprintf(text, sizeof text, "Conversation %d, %s question: what does the weaver do with the shuttle then?", t->number,
             t->turn == 0 ? "the first" : t->turn == 1 ? "the second" : t->turn == 2 ? "the third" : "the fourth");
    say(t, "user", text);
}

/* The answer goes into the history the way its client keeps it. */
static void keep_answer(talk *t, json_t *reply) {
    const char *text = str_at(reply, "choices.0.message.content"), *call = strstr(text, "<tool_call>look_up ");
    t->brings_ids = !t->parses && at(reply, "choices.0.message.extra_content");
    if (!call && t->parses) {
        say(t, "assistant", text);
    } else if (call && t->parses) {
        json_t *m = json_pack("{s:s,s:s%,s:[{s:s,s:s,s:{s:s,s:s}}]}", "role", "assistant", "content", text, call - text,
                              "tool_calls", "id", "call_1", "type", "function", "function", "name", "look_up", "arguments",
                              "{\"word\": \"weft\"}");
        assert_non_null(m);
        json_array_append_new(t->messages, m);
    } else {
        json_array_append(t->messages, at(reply, "choices.0.message"));
    }
}

static json_t *post(place *p, const talk *t, const subject *s, bool no_cache) {
    json_t *body = json_pack("{s:O,s:i,s:i,s:b,s:f,s:b,s:i}", "messages", t->messages, "max_tokens", s->max_tokens, "seed",
                             100 * t->number + t->turn, "return_token_ids", 1, "temperature", 1.0, "logprobs", 1, "top_logprobs", 2);
    char *json;
    json_t *v;
    int status;
    if (t->tools) json_object_set(body, "tools", t->tools);
    if (no_cache) json_object_set_new(body, "cache_prompt", json_false());
    json = json_dumps(body, 0);
    v = rig_post(&p->r, CHAT, json, &status);
    if (status != 200) fail_msg("turn %d: %d %s", t->turn, status, str_at(v, "error.message"));
    free(json);
    json_decref(body);
    return v;
}

static size_t read_ids(json_t *list, int32_t *out) {
    for (size_t i = 0; i < json_array_size(list); i++) out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return json_array_size(list);
}

static size_t common(const int32_t *a, size_t n, const int32_t *b, size_t m) {
    size_t i = 0;
    while (i < n && i < m && a[i] == b[i]) i++;
    return i;
}

/* Tokens of the prompt that some turn before has computed. */
static size_t could_be_known(json_t *reply) {
    json_t *list = at(reply, "prompt_token_ids");
    int32_t *ids = hd_reallocarray(NULL, json_array_size(list), sizeof *ids);
    size_t n, best = 0;
    assert_non_null(ids);
    n = read_ids(list, ids);
    for (size_t i = 0; i < n_known; i++) {
        size_t k = common(ids, n, known[i].ids, known[i].n);
        if (k > best) best = k;
    }
    hd_free(ids);
    return best < n ? best : n - 1; /* the last token's output is wanted */
}

static void remember(json_t *reply) {
    json_t *prompt = at(reply, "prompt_token_ids"), *answer = at(reply, "choices.0.token_ids");
    int32_t *ids = hd_reallocarray(NULL, json_array_size(prompt) + json_array_size(answer), sizeof *ids);
    size_t n;
    assert_non_null(ids);
    assert_true(n_known < sizeof known / sizeof *known);
    n = read_ids(prompt, ids);
    n += read_ids(answer, ids + n);
    /* The last token of an answer that the cap ended was sampled and never computed. */
    if (!strcmp(str_at(reply, "choices.0.finish_reason"), "length")) n--;
    known[n_known].ids = ids;
    known[n_known++].n = n;
}

static size_t cached(json_t *v) { return (size_t)json_integer_value(at(v, "usage.prompt_tokens_details.cached_tokens")); }
static const char *miss(json_t *v) { return str_at(v, "usage.prompt_tokens_details.cache_miss"); }

static void same_answer(json_t *a, json_t *b, const char *what, const talk *t) {
    static const char *const parts[] = {"choices", "prompt_token_ids"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!json_equal(json_object_get(a, parts[i]), json_object_get(b, parts[i])))
            fail_msg("conversation %d, turn %d: %s: %s differ", t->number, t->turn, what, parts[i]);
}

/* One turn; the answers of the places agree.  *could: tokens that were computed before.  cold may be NULL. */
static json_t *turn(place *warm, place *cold, talk *t, const subject *s, size_t *could) {
    json_t *v, *w;
    next_question(t);
    v = post(warm, t, s, false);
    *could = could_be_known(v);
    if (cold) {
        w = post(cold, t, s, false);
        assert_int_equal(cached(w), 0);
        same_answer(v, w, "a cold server", t);
        json_decref(w);
    }
    remember(v);
    keep_answer(t, v);
    t->turn++;
    return v;
}

static void expect_share(talk *t, json_t *v, size_t could, size_t least) {
    if (cached(v) > could) fail_msg("turn %d: %zu tokens cached, %zu were computed", t->turn - 1, cached(v), could);
    t->replayed += (size_t)json_integer_value(at(v, "usage.prompt_tokens_details.replayed_tokens"));
    if (cached(v) < least)
        fail_msg("turn %d: %zu of %zu tokens cached (%s at %d)", t->turn - 1, cached(v), could, miss(v),
                 (int)json_integer_value(at(v, "usage.prompt_tokens_details.cache_miss_at")));
}

/* ---- what is tested of each model ---- */

/* One conversation after the other: 95 % and more.  verbatim: the template keeps answers as they are, so that one whose ids
 * came along is a hit to its end. */
static void alone(const subject *s, bool tools, bool verbatim) {
    place warm, cold;
    place_open(&warm, s, 64 << 20, NULL, false);
    place_open(&cold, s, 64 << 20, NULL, true);
    for (int i = 0; i < 2; i++) {
        size_t could = 0;
        talk t;
        talk_open(&t, i, tools, i == 1);
        for (int k = 0; k < TURNS; k++) {
            bool whole = verbatim && t.brings_ids;
            json_t *v = turn(&warm, &cold, &t, s, &could), *w;
            if (whole && could < known[n_known - 2].n)
                fail_msg("turn %d: only %zu tokens of the turn before are there again", k, could);
            expect_share(&t, v, could, (could * 95 + 99) / 100);
            if (k == TURNS - 1) { /* once more, told to take nothing up */
                json_array_remove(t.messages, json_array_size(t.messages) - 1);
                t.turn--;
                w = post(&warm, &t, s, true);
                assert_string_equal(miss(w), "off");
                same_answer(v, w, "cache_prompt false", &t);
                json_decref(w);
            }
            json_decref(v);
        }
        assert_true(could > 100);
        print_message("%zu ids of answers came along\n", t.replayed);
        talk_close(&t);
    }
    place_close(&cold);
    place_close(&warm);
    forget();
}

/* A restart between turns: whole pages come back from disk. */
static void restarts(const subject *s) {
    place warm, cold;
    talk t;
    char state_dir[80];
    static int n_dirs;
    snprintf(state_dir, sizeof state_dir, "%s/%d", dir, n_dirs++);
    talk_open(&t, 3, true, false);
    place_open(&cold, s, 64 << 20, NULL, true);
    for (int k = 0; k < TURNS; k++) {
        size_t could;
        json_t *v;
        place_open(&warm, s, 64 << 20, state_dir, false);
        v = turn(&warm, &cold, &t, s, &could);
        expect_share(&t, v, could, could / s->page * s->page);
        if (k) assert_true(could >= s->page);
        json_decref(v);
        place_close(&warm);
    }
    place_close(&cold);
    talk_close(&t);
    forget();
}

static uint64_t cached_bytes(place *p) {
    engine_view v = {0};
    for (int i = 0; i < 5000; i++) { /* pages are let go of a moment after the reply */
        engine_look(p->r.e, &v);
        if (v.kv_bytes_cached && !v.kv_bytes_used) break;
        sleep_ms(1);
    }
    return v.kv_bytes_cached;
}

/* Eight of them in turn, with room for some: what misses says that it had to make room, and nothing else changes. */
static void interleaved(const subject *s, bool disk) {
    talk t[CONVERSATIONS];
    place warm, cold;
    uint64_t all;
    size_t hits = 0, evicted = 0, unexplained = 0, could;
    char state_dir[80];
    place_open(&cold, s, 64 << 20, NULL, false); /* of one conversation: what it takes */
    talk_open(&t[0], 0, true, false);
    for (int k = 0; k < TURNS; k++) json_decref(turn(&cold, NULL, &t[0], s, &could));
    all = cached_bytes(&cold);
    talk_close(&t[0]);
    place_close(&cold);
    forget();
    snprintf(state_dir, sizeof state_dir, "%s/interleaved-%d", dir, s->model != NULL);
    place_open(&warm, s, all * 2, disk ? state_dir : NULL, false);
    place_open(&cold, s, all * 2, NULL, true); /* the budget decides about the context, which is a part of what is asked */
    for (int i = 0; i < CONVERSATIONS; i++) talk_open(&t[i], i, true, i % 2);
    for (int k = 0; k < TURNS; k++)
        for (int i = 0; i < CONVERSATIONS; i++) {
            json_t *v = turn(&warm, &cold, &t[i], s, &could);
            expect_share(&t[i], v, could, 0);
            if (k && cached(v) * 100 >= could * 95) hits++;
            else if (k && !strcmp(miss(v), "evicted")) evicted++;
            else if (k && strcmp(miss(v), "boundary")) unexplained++;
            if (disk) {
                if (cached(v) < could / s->page * s->page)
                    fail_msg("conversation %d, turn %d: %zu of %zu, %s", i, k, cached(v), could, miss(v));
                assert_int_equal(store_flush(warm.st, 20000, NULL), HD_OK);
            }
            json_decref(v);
        }
    print_message("%s%s: of %d turns %zu hits, %zu after an eviction\n", s->model ? "tiny" : "scripted", disk ? " with disk" : "",
                  (TURNS - 1) * CONVERSATIONS, hits, evicted);
    /* What was evicted is remembered in a table that forgets by overwriting: nearly always, not always. */
    if (!disk) assert_true(hits && hits < (TURNS - 1) * CONVERSATIONS && unexplained * 4 <= TURNS * CONVERSATIONS);
    for (int i = 0; i < CONVERSATIONS; i++) talk_close(&t[i]);
    place_close(&cold);
    place_close(&warm);
    forget();
}

/* A conversation that comes with a history: its next question will drop the reasoning behind the last one, far before the end
 * of the prompt.  The window there is kept, though pages of windows are short, because the template tells. */
static void joins_far_back(const subject *s) {
    place warm;
    talk t, other;
    json_t *v;
    size_t could, all;
    char text[2000];
    place_open(&warm, s, 64 << 20, NULL, false); /* how much one takes */
    for (int k = 0; k < 2; k++) {
        talk_open(&t, 1, true, false);
        talk_open(&other, 2, true, false);
        next_question(&t);
        memset(text, 0, sizeof text);
        for (size_t n = 0; n < 1500; n += 25) memcpy(text + n, "I think of the weft then.", 25);
        memcpy(text + 1500, "</think>Let me look.", 20);
        say(&t, "assistant", text);
        t.turn++;
        v = turn(&warm, NULL, &t, s, &could);
        json_decref(v);
        if (!k) {
            all = cached_bytes(&warm);
            place_close(&warm);
            place_open(&warm, s, all * 3 / 2, NULL, false);
        } else {
            for (int i = 0; i < 2; i++) { /* long ones that need the room */
                other.number = 3 + i;
                say(&other, "user", text);
                json_decref(post(&warm, &other, s, false));
            }
            v = turn(&warm, NULL, &t, s, &could);
            expect_share(&t, v, could, could);
            assert_true(could < (size_t)json_integer_value(at(v, "usage.prompt_tokens")) - 100);
            json_decref(v);
        }
        talk_close(&t);
        talk_close(&other);
        forget();
    }
    place_close(&warm);
}

/* ---- models ---- */

static const subject scripted = {NULL, 16, 200, 0}, scripted_window = {NULL, 16, 200, 64};

static void with_template(const char *from, const char *to) {
    gguf_edit e = {.keys = {{"tokenizer.chat_template", GGUF_STRING, 0, agent_template},
                            {"gemma3.context_length", GGUF_U32, 8192, NULL}}};
    gguf_edit_copy(from, to, &e);
}

static char tiny_path[80];
static const subject tiny = {tiny_path, 16, 24, 0};

static void make_tiny(void) {
    char plain[80];
    snprintf(plain, sizeof plain, "%s/plain.gguf", dir);
    snprintf(tiny_path, sizeof tiny_path, "%s/tiny.gguf", dir);
    assert_int_equal(tiny_model_write(tiny_variant_find("gemma3"), NULL, plain), 0);
    with_template(plain, tiny_path);
}

static void a_script(void **state) { (void)state, alone(&scripted, true, false); }
static void a_script_restarts(void **state) { (void)state, restarts(&scripted); }
static void a_script_with_a_window(void **state) { (void)state, alone(&scripted_window, true, false); }
static void a_history_with_a_window(void **state) { (void)state, joins_far_back(&scripted_window); }
static void a_script_interleaved(void **state) { (void)state, interleaved(&scripted, false); }
static void sliding_windows(void **state) { (void)state, alone(&tiny, true, false); }
static void sliding_windows_restart(void **state) { (void)state, restarts(&tiny); }
static void sliding_windows_interleaved(void **state) { (void)state, interleaved(&tiny, false); }
static void sliding_windows_interleaved_with_disk(void **state) { (void)state, interleaved(&tiny, true); }

static void the_demo_model(void **state) {
    const char *path = getenv("HEDDLE_TEST_MODEL");
    char edited[80];
    subject s = {path, 64, 40, 0};
    (void)state;
    if (!path || !*path) {
        print_message("skipped: HEDDLE_TEST_MODEL does not name a model\n");
        skip();
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a real model under a sanitizer takes minutes and shows nothing that the tiny ones do not\n");
    skip();
#endif
    alone(&s, false, true);
    snprintf(edited, sizeof edited, "%s/demo.gguf", dir);
    with_template(path, edited);
    s.model = edited;
    alone(&s, true, false);
    restarts(&s);
    unlink(edited);
}

static int start(void **state) {
    (void)state;
    forget();
    return 0;
}

static int make(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    make_tiny();
    return 0;
}

static int clean(void **state) {
    char cmd[100];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup(f, start)
        T(a_script),        T(a_script_restarts),       T(a_script_interleaved),
        T(a_script_with_a_window), T(a_history_with_a_window),
        T(sliding_windows), T(sliding_windows_restart), T(sliding_windows_interleaved),
        T(sliding_windows_interleaved_with_disk),       T(the_demo_model),
    };
    return cmocka_run_group_tests_name("agents", tests, make, clean);
}
