/* runs.c - see runs.h. */
#include "util/runs.h"
#include "base/mem.h"

#include <semaphore.h>
#include <string.h>

void run_result_deinit(run_result *r) {
    hd_free(r->ids);
    hd_free(r->logprobs);
    hd_free(r->text);
    memset(r, 0, sizeof *r);
}

static void add_float(run_result *r, float v) {
    if (hd_grow(&r->logprobs, &r->cap_logprobs, r->n_logprobs + 1, sizeof v, SIZE_MAX / 8)) r->logprobs[r->n_logprobs++] = v;
}

void run_result_add(run_result *r, const gen_event *ev) {
    if (ev->kind == EV_TOKEN && hd_grow(&r->ids, &r->cap_ids, r->n_ids + 1, sizeof *r->ids, SIZE_MAX / 8))
        r->ids[r->n_ids++] = ev->sample.id;
    if (ev->kind == EV_TOKEN || ev->kind == EV_PROMPT) {
        add_float(r, ev->sample.logprob);
        for (uint32_t i = 0; i < ev->sample.n_top; i++) {
            add_float(r, (float)ev->sample.top[i].id);
            add_float(r, ev->sample.top[i].logprob);
        }
    }
    if (ev->kind == EV_LOGITS)
        for (size_t i = 0; i < ev->n_logits; i++) add_float(r, ev->logits[i]);
    for (size_t i = 0; i < ev->n_vector; i++) add_float(r, ev->vector[i]);
    if (ev->n_text && hd_grow(&r->text, &r->cap_text, r->n_text + ev->n_text, 1, SIZE_MAX / 8)) {
        memcpy(r->text + r->n_text, ev->text, ev->n_text);
        r->n_text += ev->n_text;
    }
    if (ev->kind != EV_DONE) return;
    r->finish = ev->finish;
    r->reason = ev->reason;
    r->stop_index = ev->stop_index;
    r->ended_by_eos = ev->ended_by_eos;
    r->generated_tokens = ev->stats.generated_tokens;
    r->cached_tokens = ev->stats.cached_tokens;
    r->err = ev->err;
}

const char *run_result_rest_differs(const run_result *a, size_t said, const run_result *b) {
    run_result rest = *a;
    size_t scores = a->n_ids ? a->n_logprobs / a->n_ids * said : 0; /* as many for each token */
    rest.ids += said;
    rest.n_ids -= said;
    rest.logprobs += scores;
    rest.n_logprobs -= scores;
    if (b->n_text > a->n_text) return "text"; /* where exactly it was cut: test_exec_resume.c */
    rest.text += a->n_text - b->n_text;
    rest.n_text = b->n_text;
    return run_result_differs(&rest, b);
}

const char *run_result_differs(const run_result *a, const run_result *b) {
    if (a->n_ids != b->n_ids || (a->n_ids && memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids))) return "ids";
    if (a->n_logprobs != b->n_logprobs || (a->n_logprobs && memcmp(a->logprobs, b->logprobs, a->n_logprobs * sizeof *a->logprobs)))
        return "logprobs";
    if (a->n_text != b->n_text || (a->n_text && memcmp(a->text, b->text, a->n_text))) return "text";
    if (a->finish != b->finish || a->reason != b->reason || a->stop_index != b->stop_index ||
        a->ended_by_eos != b->ended_by_eos || a->generated_tokens != b->generated_tokens)
        return "finish";
    return NULL;
}

static void on_event(void *ctx) { sem_post(ctx); }

void run_all(engine *e, const gen_request *reqs, size_t n, const size_t *order, run_result *out) {
    session **s = hd_calloc(n, sizeof *s);
    bool *done = hd_calloc(n, sizeof *done);
    size_t left = n;
    sem_t ready;
    void *ctx = &ready;
    sem_init(&ready, 0, 0);
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        size_t k = order ? order[i] : i;
        if (!engine_submit(e, &reqs[k], 1, on_event, &ctx, &s[k], &out[k].err)) continue;
        out[k].finish = FINISH_FAILED;
        done[k] = true;
        left--;
    }
    while (left) {
        sem_wait(&ready);
        for (size_t i = 0; i < n; i++) {
            gen_event ev;
            if (done[i]) continue;
            for (session_next(s[i], &ev); ev.kind != EV_NONE; session_next(s[i], &ev)) {
                run_result_add(&out[i], &ev);
                if (ev.kind == EV_DONE) done[i] = true, left--;
            }
        }
    }
    for (size_t i = 0; i < n; i++) session_free(s[i]);
    sem_destroy(&ready);
    hd_free(s);
    hd_free(done);
}
