/* test_exec_resume.c - a request that goes on after tokens it generated in another life (gen_request.said).
 *
 * Each request runs whole once; then, for every cut, it is asked to go on behind the cut, on another engine.  What comes
 * must be the rest of the whole run, bit for bit: tokens, log-probabilities, text, the end and its counts. */
#include "base/mem.h"
#include "exec/engine.h"
#include "model/script.h"
#include "tiny/tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX = 64, TEXT = 4096 };

typedef struct {
    int32_t ids[MAX];
    float lp[MAX], top[MAX];
    size_t text_at[MAX + 1]; /* bytes of text that came with the tokens before */
    uint32_t n;
    char text[TEXT];
    size_t n_text;
    gen_event end;
} record;

static hd_err err;

static void run(engine *e, const gen_request *q, record *r) {
    session *s;
    gen_event ev;
    memset(r, 0, sizeof *r);
    if (engine_submit(e, q, 1, NULL, NULL, &s, &err)) fail_msg("%s", err.msg);
    do {
        session_wait(s, &ev, UINT64_MAX);
        if (ev.kind == EV_TOKEN) {
            assert_true(r->n < MAX);
            r->text_at[r->n] = r->n_text;
            r->ids[r->n] = ev.sample.id;
            r->lp[r->n] = ev.sample.logprob;
            r->top[r->n++] = ev.sample.n_top ? ev.sample.top[0].logprob : 0;
        }
        assert_true(r->n_text + ev.n_text < TEXT);
        if (ev.n_text) memcpy(r->text + r->n_text, ev.text, ev.n_text);
        r->n_text += ev.n_text;
        if (ev.kind == EV_TOKEN) r->text_at[r->n] = r->n_text;
    } while (ev.kind != EV_DONE);
    r->end = ev;
    session_free(s);
}

/* Everything behind the first `cut` tokens of `whole`. */
static void same_rest(const record *whole, const record *rest, uint32_t cut) {
    size_t from = whole->text_at[cut];
    if (whole->end.finish != rest->end.finish) fail_msg("cut %u: ends %d, not %d: %s", cut, rest->end.finish, whole->end.finish, rest->end.err.msg);
    assert_int_equal(rest->n, whole->n - cut);
    assert_memory_equal(rest->ids, whole->ids + cut, rest->n * sizeof *rest->ids);
    assert_memory_equal(rest->lp, whole->lp + cut, rest->n * sizeof *rest->lp);
    assert_memory_equal(rest->top, whole->top + cut, rest->n * sizeof *rest->top);
    assert_int_equal(rest->n_text, whole->n_text - from);
    assert_memory_equal(rest->text, whole->text + from, rest->n_text);
    assert_int_equal(rest->end.stop_index, whole->end.stop_index);
    assert_int_equal(rest->end.ended_by_eos, whole->end.ended_by_eos);
    assert_int_equal(rest->end.stats.generated_tokens, whole->end.stats.generated_tokens);
    assert_int_equal(rest->end.stats.prompt_tokens, whole->end.stats.prompt_tokens);
    assert_true(rest->end.stats.cached_tokens <= rest->end.stats.prompt_tokens);
}

static void every_cut(engine *first, engine *second, gen_request q) {
    record whole, rest;
    run(first, &q, &whole);
    assert_true(whole.end.finish == FINISH_STOP || whole.end.finish == FINISH_LENGTH);
    q.said = whole.ids;
    for (uint32_t cut = 0; cut <= whole.n; cut++) {
        q.n_said = cut;
        run(second, &q, &rest);
        same_rest(&whole, &rest, cut);
    }
}

static engine_options small(bool no_cache) {
    return (engine_options){.max_rows = 2, .page_tokens = 8, .step_tokens = 16, .kv_budget_bytes = 4 << 20, .no_cache = no_cache};
}

static const int32_t prompt[] = {5, 9, 13, 44, 5, 9, 13, 45, 101, 7, 8, 9, 30, 31, 32, 33, 34, 5, 9, 13};
enum { N_PROMPT = sizeof prompt / sizeof *prompt };

static gen_request asks(uint32_t max_tokens, float temperature) {
    gen_request q = {.id = "", .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = max_tokens};
    sampling_defaults(&q.sampling);
    q.sampling.temperature = temperature;
    q.sampling.seed = 77;
    q.sampling.logprobs = true;
    q.sampling.n_top_logprobs = 2;
    return q;
}

/* Real arithmetic: full attention and windows shorter than the text, penalties over all that was said, forbidden ends. */
static void real_models(void **state) {
    static const char *const variants[] = {"llama", "gemma3"};
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        char path[] = "/tmp/heddle-resume-XXXXXX";
        int fd = mkstemp(path);
        model_options mo = {.n_threads = 1};
        model *m[2];
        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(tiny_model_write(tiny_variant_find(variants[v]), NULL, path), 0);
        for (int i = 0; i < 2; i++)
            if (model_open(&m[i], path, &mo, &err)) fail_msg("%s", err.msg);
        for (int no_cache = 0; no_cache < 2; no_cache++) {
            engine_options opt = small(no_cache);
            engine *e[2];
            gen_request q;
            for (int i = 0; i < 2; i++)
                if (engine_open(&e[i], m[i], &opt, &err)) fail_msg("%s", err.msg);
            every_cut(e[0], e[1], asks(24, 0));
            q = asks(24, 0.9F);
            q.sampling.repetition_penalty = 1.3F;
            q.sampling.repetition_window = 0;
            q.sampling.frequency_penalty = 0.5F;
            q.sampling.dry_multiplier = 0.8F;
            q.min_tokens = 12;
            every_cut(e[0], e[1], q);
            q.sampling.sample_index = 3;
            q.ignore_eos = true;
            every_cut(e[0], e[1], q);
            engine_close(e[0]);
            engine_close(e[1]);
        }
        model_close(m[0]);
        model_close(m[1]);
        unlink(path);
    }
}

/* Text: characters in several tokens, stop strings that begin in what was said and end behind it, or with it, or held at
 * the end; an end of the text that is no token. */
static void texts(void **state) {
    static const char json[] = "{\"vocab\":[\"<s>\",\"</s>\",\"a\",\"b\",\"c\",{\"hex\":\"F09F\"},{\"hex\":\"9880\"},\"END\"],"
                               "\"special\":{\"bos\":0,\"eos\":[1]},\"context\":256,"
                               "\"default\":{\"emit\":[2,3,5,6,4,2,3,4,5,6,2,3,7,3,5],\"then\":\"eos\"}}";
    static const stop_string stops[][2] = {{{"bc", 2}, {"cEND", 4}}, {{"ENDb", 4}, {"cx", 2}}, {{"abEN", 4}, {"zzz", 3}},
                                           {{"b\xef\xbf\xbd", 4}, {"END", 3}}, {{"bx", 2}, {"cy", 2}}};
    static const int32_t p[] = {2, 2, 3};
    engine_options opt = small(false);
    model *m[2];
    engine *e[2];
    (void)state;
    for (int i = 0; i < 2; i++)
        if (script_open_memory(&m[i], json, sizeof json - 1, "test", NULL, &err) || engine_open(&e[i], m[i], &opt, &err))
            fail_msg("%s", err.msg);
    for (uint32_t cap = 4; cap <= 16; cap += 4) {
        gen_request q = asks(cap, 0);
        q.prompt = p;
        q.n_prompt = 3;
        every_cut(e[0], e[1], q);
        for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
            q.stops = stops[i];
            q.n_stops = 2;
            every_cut(e[0], e[1], q);
        }
        q.n_stops = 0;
        q.stop_ids = (const int32_t[]){7};
        q.n_stop_ids = 1;
        every_cut(e[0], e[1], q);
    }
    engine_close(e[0]);
    engine_close(e[1]);
    model_close(m[0]);
    model_close(m[1]);
}

/* What was said cannot be: refused, or failed when only the text shows it. */
static void impossible(void **state) {
    static const char json[] = "{\"vocab\":[\"<s>\",\"</s>\",\"a\",\"b\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":32,"
                               "\"default\":{\"emit\":[2,3],\"then\":\"loop\"}}";
    static const int32_t p[] = {2, 2, 3}, ends[] = {2, 1, 2}, far[] = {2, 999}, many[40] = {2};
    static const stop_string ab = {"ab", 2};
    gen_request q = asks(8, 0);
    engine_options opt = small(false);
    record r;
    session *s;
    model *m;
    engine *e;
    (void)state;
    if (script_open_memory(&m, json, sizeof json - 1, "test", NULL, &err)) fail_msg("%s", err.msg);
    if (engine_open(&e, m, &opt, &err)) fail_msg("%s", err.msg);
    q.prompt = p;
    q.n_prompt = 3;
    q.said = many, q.n_said = 9;
    assert_int_equal(engine_submit(e, &q, 1, NULL, NULL, &s, &err), HD_NEVER_FITS);
    assert_string_equal(err.field, "said");
    q.max_tokens = GEN_NO_CAP, q.n_said = 30;
    assert_int_equal(engine_submit(e, &q, 1, NULL, NULL, &s, &err), HD_NEVER_FITS);
    q.said = far, q.n_said = 2;
    assert_int_equal(engine_submit(e, &q, 1, NULL, NULL, &s, &err), HD_INVALID);
    q.said = ends, q.n_said = 1, q.prompt_logprobs = true;
    assert_int_equal(engine_submit(e, &q, 1, NULL, NULL, &s, &err), HD_UNSUPPORTED);
    q.prompt_logprobs = false, q.method = "embedding";
    assert_int_equal(engine_submit(e, &q, 1, NULL, NULL, &s, &err), HD_UNSUPPORTED);
    q.method = NULL, q.n_said = 3;
    run(e, &q, &r);
    assert_int_equal(r.end.finish, FINISH_FAILED);
    assert_string_equal(r.end.err.field, "said");
    assert_int_equal(r.n + r.n_text, 0);
    q.said = (const int32_t[]){2, 3, 2}, q.stops = &ab, q.n_stops = 1;
    run(e, &q, &r);
    assert_int_equal(r.end.finish, FINISH_FAILED);
    assert_int_equal(r.n + r.n_text, 0);
    engine_close(e);
    model_close(m);
}

/* It is read in pieces like a prompt, beside others, and again after it gave way. */
static void costs_a_prefill(void **state) {
    static const char json[] = "{\"vocab\":[\"<s>\",\"</s>\",\"a\",\"b\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":512,"
                               "\"default\":{\"emit\":[2,3],\"then\":\"loop\"}}";
    int32_t p[100], said[200];
    engine_options opt = small(true);
    gen_request q = asks(204, 0);
    engine_view v = {0};
    model *m;
    engine *e;
    session *s;
    gen_event ev;
    int turns = 0;
    (void)state;
    for (int i = 0; i < 100; i++) p[i] = 2;
    for (int i = 0; i < 200; i++) said[i] = 2 + i % 2;
    if (script_open_memory(&m, json, sizeof json - 1, "test", NULL, &err)) fail_msg("%s", err.msg);
    opt.manual = true;
    opt.step_tokens = 100;
    if (engine_open(&e, m, &opt, &err)) fail_msg("%s", err.msg);
    q.prompt = p, q.n_prompt = 100, q.said = said, q.n_said = 200;
    if (engine_submit(e, &q, 1, NULL, NULL, &s, &err)) fail_msg("%s", err.msg);
    do {
        engine_turn(e);
        session_next(s, &ev);
        assert_true(++turns < 50);
    } while (ev.kind != EV_DONE);
    engine_look(e, &v);
    assert_int_equal(ev.stats.generated_tokens, 204);
    assert_int_equal(ev.stats.computed_tokens, 303);
    assert_int_equal(v.steps, 3 + 3); /* 300 positions, the last of which gives the first token, then three more */
    session_free(s);
    engine_close(e);
    model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_models),
        cmocka_unit_test(texts),
        cmocka_unit_test(impossible),
        cmocka_unit_test(costs_a_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
