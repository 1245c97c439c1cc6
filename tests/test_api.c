/* test_api.c - heddle as a library, through include/heddle.h alone, on scripted models.
 *
 * The expected texts are what the scripts say.  Waiting is for conditions; nothing depends on how fast the machine is.
 */
#include <heddle.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Ids: 0 bos, 1 eos, 2 <|mark|> (control), 3.. words; byte b is 8 + b. */
#define HEAD                                                                                                           \
    "{\"vocab\":[\"<s>\",\"</s>\",\"<|mark|>\",\"Hello\",\" world\",\"!\",\"one\",\"two\"],"                           \
    "\"special\":{\"bos\":0,\"eos\":[1],\"control\":[2]},"
#define RULES                                                                                                          \
    "\"rules\":[{\"match\":\"loop\",\"emit\":[\"a\"],\"then\":\"loop\"},"                                              \
    "{\"match\":\"fail\",\"emit\":[\"one\"],\"then\":\"fail\"},"                                                       \
    "{\"match\":\"one\",\"emit\":[\"one\",\"!\"],\"then\":\"eos\"},"                                                   \
    "{\"match\":\"two\",\"emit\":[\"two\",\" world\",\"!\"],\"then\":\"eos\"}],"                                       \
    "\"default\":{\"emit\":[\"Hello\",\" world\",\"!\"],\"then\":\"eos\"}}"
enum { BYTES = 8 };

typedef struct {
    heddle_model *m;
    heddle_engine *e;
} rig;

static heddle_error err; /* of the last call that failed */

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        HEDDLE_INIT(&err);                                                                                             \
        if ((call) != HEDDLE_OK) fail_msg("%s: %s", #call, err.message);                                               \
    } while (0)
#define FAILS(call, status, name)                                                                                      \
    do {                                                                                                               \
        HEDDLE_INIT(&err);                                                                                             \
        assert_int_equal(call, status);                                                                                \
        assert_int_equal(err.code, status);                                                                            \
        assert_string_equal(err.field, name);                                                                          \
        assert_true(err.message[0]);                                                                                   \
    } while (0)

static heddle_model *open_script(const char *json) {
    char path[] = "/tmp/heddle-api-XXXXXX", name[64];
    int fd = mkstemp(path);
    heddle_model *m = NULL;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, json, strlen(json)), (ssize_t)strlen(json));
    close(fd);
    snprintf(name, sizeof name, "script:%s", path);
    OK(heddle_model_open(&m, name, NULL, &err));
    unlink(path);
    return m;
}

static rig open_rig(const char *extra, const heddle_engine_options *opt) {
    char json[2048];
    rig r;
    snprintf(json, sizeof json, HEAD "%s" RULES, extra);
    r.m = open_script(json);
    OK(heddle_engine_open(&r.e, r.m, opt, &err));
    return r;
}

static void close_rig(rig *r) {
    heddle_engine_close(r->e);
    heddle_model_close(r->m);
}

static heddle_session *ask(const rig *r, const char *prompt, uint32_t max_tokens, heddle_request *base) {
    heddle_request q;
    heddle_session *s = NULL;
    int32_t *ids = NULL;
    if (base)
        q = *base;
    else
        HEDDLE_REQUEST_INIT(&q);
    OK(heddle_tokenize(r->m, prompt, strlen(prompt), 0, &ids, &q.n_prompt, &err));
    q.prompt = ids;
    q.max_tokens = max_tokens;
    q.temperature = 0;
    OK(heddle_open(r->e, &q, 1, &s, &err));
    heddle_free(ids);
    return s;
}

static void nap(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }
#define WAIT_FOR(cond)                                                                                                 \
    do {                                                                                                               \
        int tries_ = 0;                                                                                                \
        while (!(cond)) {                                                                                              \
            if (++tries_ > 20000) fail_msg("never came true: %s", #cond);                                              \
            nap();                                                                                                     \
        }                                                                                                              \
    } while (0)

static void names_and_sizes(void **state) {
    (void)state;
    assert_string_equal(heddle_version(), HEDDLE_VERSION);
    assert_string_equal(heddle_status_name(HEDDLE_NEVER_FITS), "never_fits");
    assert_string_equal(heddle_status_name(99), "unknown");
    assert_string_equal(heddle_status_name(-1), "unknown");
    assert_string_equal(heddle_finish_name(HEDDLE_FINISH_LENGTH), "length");
    assert_string_equal(heddle_cancel_reason_name(HEDDLE_CANCEL_DEADLINE_TOTAL), "deadline_total");
    assert_string_equal(heddle_cancel_reason_name(1000), "unknown");
    assert_int_equal(heddle_struct_size("heddle_event"), sizeof(heddle_event));
    assert_int_equal(heddle_struct_size("heddle_request"), sizeof(heddle_request));
    assert_int_equal(heddle_struct_size("heddle_nothing"), 0);
    heddle_free(NULL);
    heddle_model_close(NULL);
    heddle_engine_close(NULL);
    heddle_session_free(NULL);
    heddle_result_free(NULL);
}

static void models_and_text(void **state) {
    heddle_model *m = open_script(HEAD "\"context\":77," RULES), *none = (heddle_model *)1;
    heddle_model_info in;
    int32_t *ids;
    size_t n;
    char *text;
    (void)state;
    HEDDLE_INIT(&in);
    heddle_model_look(m, &in);
    assert_int_equal(in.n_vocab, BYTES + 256);
    assert_int_equal(in.context, 77);
    assert_int_equal(in.bos, 0);
    assert_int_equal(in.eos, 1);
    assert_int_equal(in.n_eog, 1);
    assert_int_equal(in.eog[0], 1);
    assert_true(in.scripted);
    assert_non_null(in.name);
    assert_true(isnan(in.temperature));

    OK(heddle_tokenize(m, "Hello world!\0x", 14, 0, &ids, &n, &err));
    {
        const int32_t want[] = {3, 4, 5, BYTES + 0, BYTES + 'x'};
        assert_int_equal(n, 5);
        assert_memory_equal(ids, want, sizeof want);
    }
    OK(heddle_detokenize(m, ids, n, 0, &text, &n, &err));
    assert_int_equal(n, 14);
    assert_memory_equal(text, "Hello world!\0x", 15);
    heddle_free(ids);
    heddle_free(text);
    OK(heddle_tokenize(m, "", 0, 0, &ids, &n, &err));
    assert_non_null(ids);
    assert_int_equal(n, 0);
    OK(heddle_detokenize(m, ids, 0, 0, &text, &n, &err));
    assert_string_equal(text, "");
    heddle_free(ids);
    heddle_free(text);
    OK(heddle_detokenize(m, (const int32_t[]){BYTES + 0xe2, BYTES + '?'}, 2, 0, &text, &n, &err));
    assert_string_equal(text, "\xef\xbf\xbd?");
    heddle_free(text);

    HEDDLE_INIT(&err);
    assert_int_equal(heddle_detokenize(m, (const int32_t[]){3, 9999}, 2, 0, &text, &n, &err), HEDDLE_INVALID);
    assert_null(text);
    assert_int_equal(n, 0);
    assert_int_equal(heddle_detokenize(m, (const int32_t[]){3, 9999}, 2, 0, &text, &n, NULL),
                     HEDDLE_INVALID); /* no err */
    FAILS(heddle_tokenize(m, "x", 1, 64, &ids, &n, &err), HEDDLE_UNSUPPORTED, "flags");
    FAILS(heddle_tokenize(m, NULL, 3, 0, &ids, &n, &err), HEDDLE_INVALID, "text");
    FAILS(heddle_detokenize(m, NULL, 3, 0, &text, &n, &err), HEDDLE_INVALID, "ids");
    FAILS(heddle_render(m, NULL, 3, &text, &n, &err), HEDDLE_INVALID, "json");
    FAILS(heddle_render_ids(m, NULL, 3, &ids, &n, &err), HEDDLE_INVALID, "json");
    OK(heddle_tokenize(m, NULL, 0, 0, &ids, &n, &err));
    heddle_free(ids);
    OK(heddle_detokenize(m, NULL, 0, 0, &text, &n, &err));
    heddle_free(text);
    HEDDLE_INIT(&err);
    assert_int_equal(heddle_model_open(&none, "/nowhere/at/all.gguf", NULL, &err), HEDDLE_NOT_FOUND);
    assert_null(none);
    FAILS(heddle_model_open(&none, NULL, NULL, &err), HEDDLE_INVALID, "name");
    heddle_model_close(m);
}

static void conversations(void **state) {
    static const char chat[] = "[{\"role\":\"user\",\"content\":\"<s>Hello\"},{\"role\":\"user\",\"content\":\"two\"}]";
    static const char with[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"one\"}],\"add_generation_prompt\":false,\"who\":\"me\"}";
    heddle_model *m =
        open_script(HEAD "\"template\":\"{{ bos_token }}{% for m in messages %}{{ m.content }};{% endfor %}"
                         "{% if add_generation_prompt %}!{% endif %}{{ who }}{% if messages|length > 5 %}{{ "
                         "raise_exception('no more') }}{% endif %}\"," RULES);
    char *text;
    int32_t *ids;
    size_t n;
    (void)state;
    OK(heddle_render(m, chat, strlen(chat), &text, &n, &err));
    assert_string_equal(text, "<s><s>Hello;two;!");
    assert_int_equal(n, strlen(text));
    heddle_free(text);
    OK(heddle_render(m, with, strlen(with), &text, &n, &err));
    assert_string_equal(text, "<s>one;me");
    heddle_free(text);
    /* The template's <s> is the token 0; the user's is four bytes of text. */
    OK(heddle_render_ids(m, chat, strlen(chat), &ids, &n, &err));
    {
        const int32_t want[] = {0, BYTES + '<', BYTES + 's', BYTES + '>', 3, BYTES + ';', 7, BYTES + ';', 5};
        assert_int_equal(n, sizeof want / sizeof *want);
        assert_memory_equal(ids, want, sizeof want);
    }
    heddle_free(ids);

    HEDDLE_INIT(&err);
    assert_int_equal(heddle_render(m, "[{\"role\":", 9, &text, &n, &err), HEDDLE_INVALID);
    assert_null(text);
    assert_in_range(err.at, 8, 9);
    FAILS(heddle_render(m, "[]", 2, &text, &n, &err), HEDDLE_INVALID, "messages");
    FAILS(heddle_render(m, "[1]", 3, &text, &n, &err), HEDDLE_INVALID, "messages");
    FAILS(heddle_render(m, "{\"messages\":{}}", 15, &text, &n, &err), HEDDLE_INVALID, "messages");
    FAILS(heddle_render_ids(m, "[{},{},{},{},{},{}]", 19, &ids, &n, &err), HEDDLE_INVALID, "raise");
    assert_string_equal(err.message, "no more");
    assert_int_equal(err.line, 1);
    assert_null(ids);
    heddle_model_close(m);
}

static void wake(void *ctx) { sem_post((sem_t *)ctx); }

/* One thread reads three sessions that were opened together. */
static void three_at_once(void **state) {
    static const char *const prompts[] = {"one", "two", "x"}, *const texts[] = {"one!", "two world!", "Hello world!"};
    static const uint32_t tokens[] = {2, 3, 3};
    rig r = open_rig("\"token_delay_ms\":1,", NULL);
    heddle_request q[3];
    heddle_session *s[3];
    char text[3][64] = {{0}};
    uint32_t n_tokens[3] = {0};
    int open = 3;
    sem_t ready;
    (void)state;
    sem_init(&ready, 0, 0);
    for (int i = 0; i < 3; i++) {
        int32_t *ids;
        HEDDLE_REQUEST_INIT(&q[i]);
        OK(heddle_tokenize(r.m, prompts[i], strlen(prompts[i]), 0, &ids, &q[i].n_prompt, &err));
        q[i].prompt = ids;
        q[i].temperature = 0;
        q[i].notify = wake;
        q[i].notify_ctx = &ready;
    }
    OK(heddle_open(r.e, q, 3, s, &err));
    for (int i = 0; i < 3; i++) heddle_free((void *)(uintptr_t)q[i].prompt); /* they were copied */
    assert_string_not_equal(heddle_session_id(s[0]), heddle_session_id(s[1]));
    while (open) {
        sem_wait(&ready);
        for (int i = 0; i < 3; i++) {
            heddle_event ev;
            HEDDLE_INIT(&ev);
            while (heddle_next(s[i], &ev, 0) == HEDDLE_OK) {
                strncat(text[i], ev.text, ev.n_text);
                if (ev.kind == HEDDLE_EVENT_TOKEN) {
                    assert_int_equal(ev.position, 1 + n_tokens[i]);
                    assert_int_equal(ev.stop_index, -1);
                    assert_null(ev.stats);
                    n_tokens[i]++;
                }
                if (ev.kind != HEDDLE_EVENT_DONE) continue;
                assert_int_equal(ev.finish, HEDDLE_FINISH_STOP);
                assert_int_equal(ev.reason, HEDDLE_CANCEL_NONE);
                assert_true(ev.ended_by_eos);
                assert_null(ev.error);
                assert_int_equal(ev.token, -1);
                assert_int_equal(ev.stats->size, sizeof *ev.stats);
                assert_int_equal(ev.stats->prompt_tokens, q[i].n_prompt);
                assert_int_equal(ev.stats->generated_tokens, tokens[i] + 1);
                open--;
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        heddle_event ev;
        HEDDLE_INIT(&ev);
        assert_string_equal(text[i], texts[i]);
        assert_int_equal(n_tokens[i], tokens[i]);
        assert_int_equal(heddle_next(s[i], &ev, HEDDLE_FOREVER), HEDDLE_CLOSED);
        assert_int_equal(ev.kind, HEDDLE_EVENT_NONE);
        heddle_session_free(s[i]);
    }
    sem_destroy(&ready);
    close_rig(&r);
}

static void collected(void **state) {
    rig r = open_rig("", NULL);
    heddle_request q;
    heddle_result *out;
    heddle_session *s;
    heddle_event ev;
    heddle_text stops[] = {{"zz", 2}, {"rld", 3}};
    (void)state;
    HEDDLE_INIT(&ev);
    HEDDLE_REQUEST_INIT(&q);
    q.logprobs = 1;
    s = ask(&r, "x", HEDDLE_NO_CAP, &q);
    OK(heddle_collect(s, &out, &err));
    assert_int_equal(out->size, sizeof *out);
    assert_string_equal(out->text, "Hello world!");
    assert_int_equal(out->n_ids, 3);
    assert_memory_equal(out->ids, ((const int32_t[]){3, 4, 5}), 12);
    /* One logit of 20, the other 263 are 0. */
    for (int i = 0; i < 3; i++) assert_true(fabs(out->logprobs[i] - -log1p((BYTES + 255) * exp(-20))) < 1e-6);
    assert_int_equal(out->finish, HEDDLE_FINISH_STOP);
    assert_true(out->ended_by_eos);
    assert_int_equal(out->stop_index, -1);
    assert_int_equal(out->stats->generated_tokens, 4);
    assert_null(out->error);
    assert_null(out->vector);
    heddle_result_free(out);
    FAILS(heddle_collect(s, &out, &err), HEDDLE_CLOSED, "");
    assert_null(out);
    heddle_session_free(s);

    s = ask(&r, "x", 2, NULL); /* the first event by hand, the rest together */
    assert_int_equal(heddle_next(s, &ev, HEDDLE_FOREVER), HEDDLE_OK);
    assert_int_equal(ev.token, 3);
    assert_string_equal(ev.text, "Hello");
    OK(heddle_collect(s, &out, &err));
    assert_string_equal(out->text, " world");
    assert_int_equal(out->finish, HEDDLE_FINISH_LENGTH);
    assert_null(out->logprobs);
    heddle_result_free(out);
    heddle_session_free(s);

    HEDDLE_REQUEST_INIT(&q);
    q.stops = stops;
    q.n_stops = 2;
    q.n_top_logprobs = 2;
    s = ask(&r, "x", HEDDLE_NO_CAP, &q);
    assert_int_equal(heddle_next(s, &ev, HEDDLE_FOREVER), HEDDLE_OK);
    assert_int_equal(ev.n_top, 2);
    assert_int_equal(ev.top[0].id, 3);
    assert_int_equal(ev.top[1].id, 0);
    OK(heddle_collect(s, &out, &err));
    assert_string_equal(out->text, " wo");
    assert_int_equal(out->finish, HEDDLE_FINISH_STOP);
    assert_int_equal(out->stop_index, 1);
    assert_false(out->ended_by_eos);
    heddle_result_free(out);
    heddle_session_free(s);
    close_rig(&r);
}

static void prompt_scores(void **state) {
    rig r = open_rig("", NULL);
    heddle_request q;
    heddle_session *s;
    heddle_event ev;
    int scores = 0, logits = 0;
    (void)state;
    HEDDLE_INIT(&ev);
    HEDDLE_REQUEST_INIT(&q);
    q.prompt_logprobs = q.prompt_logits = 1;
    s = ask(&r, "Hello world!", 0, &q);
    while (heddle_next(s, &ev, HEDDLE_FOREVER) == HEDDLE_OK) {
        if (ev.kind == HEDDLE_EVENT_PROMPT) {
            scores++;
            assert_int_equal(ev.token, 3 + (int)ev.position);
        } else if (ev.kind == HEDDLE_EVENT_LOGITS) {
            logits++;
            assert_int_equal(ev.n_logits, BYTES + 256);
            assert_true(isfinite(ev.logits[0]));
        }
    }
    assert_int_equal(scores, 2);
    assert_int_equal(logits, 3);
    heddle_session_free(s);
    close_rig(&r);
}

/* The scripted model's state of token t at position p, by its formula, is in dimension i: (31t + 7(p+1)(i+1)) mod 101 - 50. */
static float hidden(int32_t t, uint32_t p, uint32_t i) { return (float)((31 * t + 7 * (p + 1) * (i + 1)) % 101) - 50; }

static void vectors(void **state) {
    rig r = open_rig("", NULL);
    heddle_request q;
    heddle_result *out;
    heddle_model_info in;
    heddle_session *s;
    (void)state;
    HEDDLE_INIT(&in);
    heddle_model_look(r.m, &in);
    assert_int_equal(in.pooling, HEDDLE_POOL_LAST);
    HEDDLE_REQUEST_INIT(&q);
    q.method = "embedding";
    q.method_arg = HEDDLE_POOL_LAST | HEDDLE_POOL_RAW;
    s = ask(&r, "Hello world!", 0, &q);
    OK(heddle_collect(s, &out, &err));
    assert_int_equal(out->n_vector, in.width);
    for (uint32_t i = 0; i < in.width; i++) assert_true(out->vector[i] == hidden(5, 2, i));
    assert_int_equal(out->n_ids, 0);
    heddle_result_free(out);
    heddle_session_free(s);
    q.method_arg = HEDDLE_POOL_MEAN;
    s = ask(&r, "Hello world!", 0, &q);
    {
        heddle_event ev;
        double dot = 0, length = 0, norm = 0;
        HEDDLE_INIT(&ev);
        assert_int_equal(heddle_next(s, &ev, HEDDLE_FOREVER), HEDDLE_OK);
        assert_int_equal(ev.kind, HEDDLE_EVENT_VECTOR);
        assert_int_equal(ev.n_vector, in.width);
        for (uint32_t i = 0; i < in.width; i++) {
            double m = (hidden(3, 0, i) + hidden(4, 1, i) + hidden(5, 2, i)) / 3;
            dot += m * ev.vector[i];
            norm += m * m;
            length += ev.vector[i] * ev.vector[i];
        }
        assert_true(fabs(length - 1) < 1e-5);
        assert_true(fabs(dot / sqrt(norm) - 1) < 1e-5);
    }
    heddle_session_free(s);
    q.prompt = &in.bos;
    q.n_prompt = 1;
    q.max_tokens = 0;
    q.method_arg = 77;
    FAILS(heddle_open(r.e, &q, 1, &s, &err), HEDDLE_INVALID, "method_arg");
    q.method = "no such thing";
    FAILS(heddle_open(r.e, &q, 1, &s, &err), HEDDLE_INVALID, "method");
    close_rig(&r);
}

static void cancelling(void **state) {
    rig r = open_rig("\"token_delay_ms\":1,", NULL);
    heddle_request q;
    heddle_result *out;
    heddle_session *s;
    heddle_event ev;
    heddle_counters c;
    (void)state;
    HEDDLE_INIT(&ev);
    HEDDLE_INIT(&c);
    s = ask(&r, "loop", HEDDLE_NO_CAP, NULL);
    assert_int_equal(heddle_next(s, &ev, HEDDLE_FOREVER), HEDDLE_OK);
    heddle_cancel(s, HEDDLE_CANCEL_SHUTDOWN);
    heddle_cancel(s, HEDDLE_CANCEL_BY_REQUEST); /* the first reason wins */
    FAILS(heddle_collect(s, &out, &err), HEDDLE_CANCELLED, "");
    assert_string_equal(err.message, "generation cancelled: shutdown");
    assert_non_null(out);
    assert_int_equal(out->finish, HEDDLE_FINISH_CANCELLED);
    assert_int_equal(out->reason, HEDDLE_CANCEL_SHUTDOWN);
    assert_int_equal(out->stats->generated_tokens, out->n_ids + 1);
    heddle_result_free(out);
    heddle_session_free(s);

    HEDDLE_REQUEST_INIT(&q);
    q.id = "mine";
    s = ask(&r, "loop", HEDDLE_NO_CAP, &q);
    assert_string_equal(heddle_session_id(s), "mine");
    assert_false(heddle_cancel_id(r.e, "other", HEDDLE_CANCEL_BY_REQUEST));
    assert_false(heddle_cancel_id(r.e, NULL, HEDDLE_CANCEL_BY_REQUEST));
    assert_true(heddle_cancel_id(r.e, "mine", 12345)); /* a reason that is none */
    assert_int_equal(heddle_collect(s, &out, NULL), HEDDLE_CANCELLED);
    assert_int_equal(out->reason, HEDDLE_CANCEL_BY_REQUEST);
    heddle_result_free(out);
    assert_false(heddle_cancel_id(r.e, "mine", HEDDLE_CANCEL_BY_REQUEST)); /* it is over */
    heddle_session_free(s);

    HEDDLE_REQUEST_INIT(&q);
    q.total_timeout_us = 20000;
    s = ask(&r, "loop", HEDDLE_NO_CAP, &q);
    assert_int_equal(heddle_collect(s, &out, NULL), HEDDLE_CANCELLED);
    assert_int_equal(out->reason, HEDDLE_CANCEL_DEADLINE_TOTAL);
    heddle_result_free(out);
    heddle_session_free(s);

    heddle_session_free(ask(&r, "loop", HEDDLE_NO_CAP, NULL)); /* given up while it runs */
    WAIT_FOR(heddle_engine_idle(r.e));
    WAIT_FOR((heddle_engine_look(r.e, &c), c.running == 0));
    assert_int_equal(c.requests_total, 4);
    assert_int_equal(c.finished_cancelled, 4);
    close_rig(&r);
}

static void a_failure_is_contained(void **state) {
    rig r = open_rig("", NULL);
    heddle_session *bad = ask(&r, "fail", 9, NULL), *good = ask(&r, "two", 9, NULL);
    heddle_result *out;
    (void)state;
    HEDDLE_INIT(&err);
    assert_int_equal(heddle_collect(bad, &out, &err), HEDDLE_FAILED);
    assert_int_equal(out->finish, HEDDLE_FINISH_FAILED);
    assert_string_equal(out->text, "one");
    assert_non_null(out->error);
    assert_true(out->error->message[0]);
    assert_string_equal(out->error->message, err.message);
    heddle_result_free(out);
    OK(heddle_collect(good, &out, &err));
    assert_string_equal(out->text, "two world!");
    heddle_result_free(out);
    heddle_session_free(bad);
    heddle_session_free(good);
    close_rig(&r);
}

static void limits(void **state) {
    heddle_engine_options o;
    heddle_engine *second;
    heddle_request q, four[4];
    heddle_session *s[4], *more[4];
    heddle_event ev;
    heddle_counters c;
    rig r;
    int32_t prompt[40] = {3};
    int queued = -1;
    uint32_t done, total;
    (void)state;
    HEDDLE_INIT(&ev);
    HEDDLE_INIT(&c);
    HEDDLE_INIT(&o);
    o.max_rows = 1;
    o.max_queued = 2;
    o.context = 32;
    o.kv_budget_bytes = 1 << 20;
    r = open_rig("\"token_delay_ms\":5,\"context\":64,", &o);
    FAILS(heddle_engine_open(&second, r.m, NULL, &err), HEDDLE_FULL, "");
    assert_null(second);
    heddle_engine_look(r.e, &c);
    assert_int_equal(c.context, 32);
    assert_int_equal(c.max_rows, 1);
    assert_int_equal(c.max_queued, 2);

    for (int i = 0; i < 3; i++) s[i] = ask(&r, "loop", 20, NULL);
    HEDDLE_REQUEST_INIT(&q);
    q.prompt = prompt;
    q.n_prompt = 1;
    FAILS(heddle_open(r.e, &q, 1, more, &err), HEDDLE_FULL, "");
    assert_null(more[0]);
    for (int i = 0; i < 4; i++) four[i] = q;
    FAILS(heddle_open(r.e, four, 4, more, &err), HEDDLE_NEVER_FITS, "n");
    FAILS(heddle_open(r.e, &q, 0, more, &err), HEDDLE_INVALID, "n");
    q.n_prompt = 40;
    HEDDLE_INIT(&err);
    heddle_cancel(s[1], HEDDLE_CANCEL_BY_REQUEST);
    WAIT_FOR((heddle_engine_look(r.e, &c), c.waiting < 2));
    FAILS(heddle_open(r.e, &q, 1, more, &err), HEDDLE_NEVER_FITS, "prompt");
    heddle_session_progress(s[2], &done, &total, &queued);
    assert_int_equal(queued, 1);
    assert_int_equal(done, 0);
    assert_int_equal(total, 4);
    heddle_session_progress(s[2], NULL, NULL, NULL);
    assert_int_equal(heddle_next(s[2], &ev, 0), HEDDLE_TIMEOUT); /* it waits for the first */
    assert_int_equal(heddle_next(s[2], &ev, 1000), HEDDLE_TIMEOUT);
    heddle_engine_look(r.e, &c);
    assert_true(c.rejected_full >= 1);
    assert_true(c.retry_after_ms >= 1000);

    heddle_engine_drain(r.e);
    q.n_prompt = 1;
    FAILS(heddle_open(r.e, &q, 1, more, &err), HEDDLE_CLOSED, "");
    heddle_engine_look(r.e, &c);
    assert_true(c.draining);
    heddle_model_close(r.m); /* the engine keeps it */
    heddle_engine_close(r.e);
    for (int i = 0; i < 3; i++) { /* sessions outlive their engine */
        int kind = HEDDLE_EVENT_NONE;
        while (heddle_next(s[i], &ev, 0) == HEDDLE_OK) kind = ev.kind;
        assert_int_equal(kind, HEDDLE_EVENT_DONE);
        heddle_cancel(s[i], HEDDLE_CANCEL_BY_REQUEST);
        heddle_session_free(s[i]);
    }
}

static void wrong_fields(void **state) {
    rig r = open_rig("", NULL);
    heddle_engine_options o;
    heddle_model_options mo;
    heddle_engine *e;
    heddle_model *m;
    heddle_request q, good;
    heddle_session *s[2];
    const int32_t prompt[] = {3, 4};
    (void)state;
    HEDDLE_REQUEST_INIT(&good);
    good.prompt = prompt;
    good.n_prompt = 2;
#define REFUSED(name, change)                                                                                          \
    do {                                                                                                               \
        q = good;                                                                                                      \
        change;                                                                                                        \
        FAILS(heddle_open(r.e, &q, 1, s, &err), HEDDLE_INVALID, name);                                                 \
        assert_null(s[0]);                                                                                             \
    } while (0)
    REFUSED("prompt", q.prompt = NULL);
    REFUSED("prompt", q.n_prompt = 0);
    REFUSED("prompt", q.prompt = ((const int32_t[]){3, 100000}));
    REFUSED("temperature", q.temperature = -1);
    REFUSED("top_p", q.top_p = 2);
    REFUSED("n_top_logprobs", q.n_top_logprobs = 21);
    REFUSED("bias", q.n_bias = 3);
    REFUSED("bias", (q.bias = &(const heddle_logit_bias){-4, 1}, q.n_bias = 1));
    REFUSED("stops", q.n_stops = 1);
    REFUSED("stops", (q.stops = &(const heddle_text){"", 0}, q.n_stops = 1));
    REFUSED("stops", (q.stops = &(const heddle_text){NULL, 4}, q.n_stops = 1));
    REFUSED("stop_ids", (q.stop_ids = &(const int32_t){-1}, q.n_stop_ids = 1));
    REFUSED("priority", q.priority = 7);
    REFUSED("id", q.id = "0123456789012345678901234567890123456789012345678901234567890123");
    REFUSED("size", q.size = 0);
    {
        heddle_request two[2] = {good, good};
        two[1].size -= 8;
        FAILS(heddle_open(r.e, two, 2, s, &err), HEDDLE_INVALID, "size");
        assert_null(s[0]);
        two[1].size += 8;
        two[1].top_p = 3; /* one wrong, none is opened */
        FAILS(heddle_open(r.e, two, 2, s, &err), HEDDLE_INVALID, "top_p");
        assert_null(s[0]);
        assert_null(s[1]);
        assert_true(heddle_engine_idle(r.e));
    }
    HEDDLE_INIT(&o);
    o.kv_type = 9;
    m = r.m;
    FAILS(heddle_engine_open(&e, m, &o, &err), HEDDLE_UNSUPPORTED, "kv_type");
    o.kv_type = HEDDLE_KV_Q8;
    o.kv_type_sliding = -1;
    FAILS(heddle_engine_open(&e, m, &o, &err), HEDDLE_UNSUPPORTED, "kv_type_sliding");
    heddle_engine_close(r.e);
#define ENGINE_REFUSED(name, change)                                                                                   \
    do {                                                                                                               \
        HEDDLE_INIT(&o);                                                                                               \
        change;                                                                                                        \
        FAILS(heddle_engine_open(&e, m, &o, &err), HEDDLE_INVALID, name);                                              \
        assert_null(e);                                                                                                \
    } while (0)
    ENGINE_REFUSED("page_tokens", o.page_tokens = 3);
    ENGINE_REFUSED("max_rows", o.max_rows = 1000000);
    ENGINE_REFUSED("max_queued", o.max_queued = UINT32_MAX);
    ENGINE_REFUSED("kv_budget_bytes", o.kv_budget_bytes = 10);
    ENGINE_REFUSED("size", o.size = 0);
    OK(heddle_engine_open(&e, m, NULL, &err)); /* a refused engine does not hold its model */
    heddle_engine_close(e);
    heddle_model_close(m);
    HEDDLE_INIT(&mo);
    mo.n_threads = 5000;
    FAILS(heddle_model_open(&m, "script:/x", &mo, &err), HEDDLE_INVALID, "n_threads");
}

/* A caller that was compiled with a shorter or a longer header. */
static void structs_grow(void **state) {
    rig r = open_rig("", NULL);
    struct {
        size_t size;
        int32_t kind, token;
        char guard[64];
    } old;
    struct {
        heddle_request q;
        uint64_t newer;
    } young;
    struct {
        size_t size;
        int32_t code;
        char guard[12];
    } old_err;
    const int32_t prompt[] = {3};
    heddle_session *s;
    (void)state;
    memset(&old, 0x5a, sizeof old);
    old.size = offsetof(heddle_event, position);
    s = ask(&r, "x", 5, NULL);
    assert_int_equal(heddle_next(s, (heddle_event *)(void *)&old, HEDDLE_FOREVER), HEDDLE_OK);
    assert_int_equal(old.size, offsetof(heddle_event, position));
    assert_int_equal(old.kind, HEDDLE_EVENT_TOKEN);
    assert_int_equal(old.token, 3);
    for (size_t i = 0; i < sizeof old.guard; i++) assert_int_equal(old.guard[i], 0x5a);
    old.size = 0; /* not set: nothing is lost */
    assert_int_equal(heddle_next(s, (heddle_event *)(void *)&old, HEDDLE_FOREVER), HEDDLE_INVALID);
    old.size = sizeof(size_t);
    assert_int_equal(heddle_next(s, (heddle_event *)(void *)&old, HEDDLE_FOREVER), HEDDLE_INVALID);
    old.size = offsetof(heddle_event, position);
    assert_int_equal(heddle_next(s, (heddle_event *)(void *)&old, HEDDLE_FOREVER), HEDDLE_OK);
    assert_int_equal(old.token, 4);
    heddle_session_free(s);

    heddle_request_init(&young.q, sizeof young);
    assert_int_equal(young.newer, 0);
    young.q.prompt = prompt;
    young.q.n_prompt = 1;
    OK(heddle_open(r.e, &young.q, 1, &s, &err)); /* a member it does not know, but which asks for nothing */
    heddle_session_free(s);
    young.newer = 1;
    FAILS(heddle_open(r.e, &young.q, 1, &s, &err), HEDDLE_UNSUPPORTED, "heddle_request");
    memset(&old_err, 0x5a, sizeof old_err);
    old_err.size = offsetof(heddle_error, line);
    assert_int_equal(heddle_open(r.e, &young.q, 1, &s, (heddle_error *)(void *)&old_err), HEDDLE_UNSUPPORTED);
    assert_int_equal(old_err.code, HEDDLE_UNSUPPORTED);
    for (size_t i = 0; i < sizeof old_err.guard; i++) assert_int_equal(old_err.guard[i], 0x5a);
    close_rig(&r);
}

/* Two engines in one process know nothing of each other. */
static void two_engines(void **state) {
    rig a = open_rig("\"token_delay_ms\":1,", NULL), b = open_rig("", NULL);
    heddle_session *sa = ask(&a, "loop", HEDDLE_NO_CAP, NULL), *sb = ask(&b, "one", 9, NULL);
    heddle_result *out;
    (void)state;
    OK(heddle_collect(sb, &out, &err));
    assert_string_equal(out->text, "one!");
    heddle_result_free(out);
    heddle_session_free(sb);
    close_rig(&a);
    assert_int_equal(heddle_collect(sa, &out, NULL), HEDDLE_CANCELLED);
    assert_int_equal(out->reason, HEDDLE_CANCEL_ENGINE_CLOSED);
    heddle_result_free(out);
    heddle_session_free(sa);
    sb = ask(&b, "two", 9, NULL);
    OK(heddle_collect(sb, &out, &err));
    assert_string_equal(out->text, "two world!");
    heddle_result_free(out);
    heddle_session_free(sb);
    close_rig(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes), cmocka_unit_test(models_and_text),
        cmocka_unit_test(conversations),   cmocka_unit_test(three_at_once),
        cmocka_unit_test(collected),       cmocka_unit_test(prompt_scores),
        cmocka_unit_test(vectors), cmocka_unit_test(cancelling), cmocka_unit_test(a_failure_is_contained),
        cmocka_unit_test(limits),          cmocka_unit_test(wrong_fields),
        cmocka_unit_test(structs_grow),    cmocka_unit_test(two_engines),
    };
    return cmocka_run_group_tests_name("api", tests, NULL, NULL);
}
