/* api_session.c - heddle.h: sessions and what they say. */
#include "base/mem.h"
#include "exec/api_int.h"

#include <string.h>

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "heddle.h and the engine number this alike")
SAME(HEDDLE_EVENT_NONE, EV_NONE);
SAME(HEDDLE_EVENT_PROMPT, EV_PROMPT);
SAME(HEDDLE_EVENT_LOGITS, EV_LOGITS);
SAME(HEDDLE_EVENT_TOKEN, EV_TOKEN);
SAME(HEDDLE_EVENT_VECTOR, EV_VECTOR);
SAME(HEDDLE_EVENT_TEXT, EV_TEXT);
SAME(HEDDLE_EVENT_DONE, EV_DONE);
SAME(HEDDLE_FINISH_STOP, FINISH_STOP);
SAME(HEDDLE_FINISH_LENGTH, FINISH_LENGTH);
SAME(HEDDLE_FINISH_CANCELLED, FINISH_CANCELLED);
SAME(HEDDLE_FINISH_FAILED, FINISH_FAILED);
SAME(HEDDLE_CANCEL_NONE, CANCEL_NONE);
SAME(HEDDLE_CANCEL_CLIENT_DISCONNECTED, CANCEL_CLIENT_DISCONNECTED);
SAME(HEDDLE_CANCEL_BY_REQUEST, CANCEL_BY_REQUEST);
SAME(HEDDLE_CANCEL_IDLE_TIMEOUT, CANCEL_IDLE_TIMEOUT);
SAME(HEDDLE_CANCEL_DEADLINE_QUEUE, CANCEL_DEADLINE_QUEUE);
SAME(HEDDLE_CANCEL_DEADLINE_FIRST_TOKEN, CANCEL_DEADLINE_FIRST_TOKEN);
SAME(HEDDLE_CANCEL_DEADLINE_TOTAL, CANCEL_DEADLINE_TOTAL);
SAME(HEDDLE_CANCEL_ENGINE_CLOSED, CANCEL_ENGINE_CLOSED);
SAME(HEDDLE_CANCEL_SHUTDOWN, CANCEL_SHUTDOWN);
SAME(HEDDLE_CANCEL_FAILED, CANCEL_FAILED);
_Static_assert(sizeof(heddle_token_logprob) == sizeof(token_logprob) &&
                   offsetof(heddle_token_logprob, logprob) == offsetof(token_logprob, logprob),
               "one shape");

const char *heddle_finish_name(int32_t finish) {
    return finish >= HEDDLE_FINISH_STOP && finish <= HEDDLE_FINISH_FAILED ? finish_reason_name((finish_reason)finish)
                                                                          : "unknown";
}

const char *heddle_cancel_reason_name(int32_t reason) {
    return reason >= HEDDLE_CANCEL_NONE && reason <= HEDDLE_CANCEL_FAILED ? cancel_reason_name((cancel_reason)reason)
                                                                          : "unknown";
}

cancel_reason api_reason(int32_t reason) {
    return reason > HEDDLE_CANCEL_NONE && reason <= HEDDLE_CANCEL_FAILED ? (cancel_reason)reason : CANCEL_BY_REQUEST;
}

static heddle_stats to_stats(const gen_stats *t) {
    heddle_stats own;
    HEDDLE_INIT(&own);
    own.prompt_tokens = t->prompt_tokens;
    own.cached_tokens = t->cached_tokens;
    own.generated_tokens = t->generated_tokens;
    own.preemptions = t->preemptions;
    own.queue_us = t->queue_us;
    own.prefill_us = t->prefill_us;
    own.decode_us = t->decode_us;
    own.gap_p50_us = t->gap_p50_us;
    own.gap_p99_us = t->gap_p99_us;
    own.paused_us = t->paused_us;
    own.preempted_us = t->preempted_us;
    return own;
}

/* ---- one event ---- */

/* The engine's next event into s->ev.  HD_TIMEOUT, HD_CLOSED. */
static hd_status read_event(heddle_session *s, uint64_t timeout_us) {
    if (s->done) return HD_CLOSED;
    if (timeout_us)
        session_wait(s->s, &s->ev, timeout_us);
    else
        session_next(s->s, &s->ev);
    if (s->ev.kind == EV_NONE) return HD_TIMEOUT;
    s->done = s->ev.kind == EV_DONE;
    return HD_OK;
}

static void to_event(heddle_session *s, heddle_event *own) {
    const gen_event *ev = &s->ev;
    bool sampled = ev->kind == EV_TOKEN || ev->kind == EV_PROMPT;
    own->kind = ev->kind;
    own->position = ev->position;
    if (sampled) {
        own->token = ev->sample.id;
        own->logprob = ev->sample.logprob;
        own->n_top = ev->sample.n_top;
        own->top = (const heddle_token_logprob *)ev->sample.top;
    }
    if (ev->text) {
        own->text = ev->text;
        own->n_text = ev->n_text;
    }
    own->logits = ev->logits;
    own->n_logits = ev->n_logits;
    own->vector = ev->vector;
    own->n_vector = ev->n_vector;
    if (ev->kind != EV_DONE) return;
    s->stats = to_stats(&ev->stats);
    own->finish = ev->finish;
    own->reason = ev->finish == FINISH_CANCELLED ? ev->reason : CANCEL_NONE;
    own->stop_index = ev->stop_index;
    own->ended_by_eos = ev->ended_by_eos;
    own->stats = &s->stats;
    if (ev->finish != FINISH_FAILED) return;
    s->error = api_error(&ev->err);
    own->error = &s->error;
}

heddle_status heddle_next(heddle_session *s, heddle_event *ev, uint64_t timeout_us) {
    heddle_event own;
    hd_status st;
    if (ev->size < offsetof(heddle_event, token)) return HEDDLE_INVALID; /* it would be taken and never told */
    st = read_event(s, timeout_us);
    HEDDLE_INIT(&own);
    own.token = own.stop_index = -1;
    own.text = "";
    if (!st) to_event(s, &own);
    api_give(ev, &own, sizeof own);
    return (heddle_status)st;
}

/* ---- all of it ---- */

typedef struct {
    heddle_result pub; /* first: what heddle_result_free gets */
    heddle_stats stats;
    heddle_error error;
    int32_t *ids;
    float *logprobs, *vector;
    size_t n, cap_ids, cap_logprobs;
    hd_buf text;
} collected;

void heddle_result_free(heddle_result *r) {
    collected *c = (collected *)(void *)r;
    if (!c) return;
    hd_free(c->ids);
    hd_free(c->logprobs);
    hd_free(c->vector);
    buf_deinit(&c->text);
    hd_free(c);
}

/* Take what s->ev says.  False: no memory. */
static bool collect_event(collected *c, const heddle_session *s) {
    const gen_event *ev = &s->ev;
    if (ev->kind == EV_TOKEN) {
        if (!hd_grow(&c->ids, &c->cap_ids, c->n + 1, sizeof *c->ids, SIZE_MAX / 8)) return false;
        if (s->logprobs && !hd_grow(&c->logprobs, &c->cap_logprobs, c->n + 1, sizeof *c->logprobs, SIZE_MAX / 8))
            return false;
        if (s->logprobs) c->logprobs[c->n] = ev->sample.logprob;
        c->ids[c->n++] = ev->sample.id;
    }
    if (ev->kind == EV_VECTOR) {
        float *v = hd_reallocarray(c->vector, ev->n_vector ? ev->n_vector : 1, sizeof *v);
        if (!v) return false;
        memcpy(v, ev->vector, ev->n_vector * sizeof *v);
        c->vector = v;
        c->pub.n_vector = ev->n_vector;
    }
    return !ev->n_text || buf_add(&c->text, ev->text, ev->n_text);
}

static void fill_result(collected *c, const heddle_session *s) {
    const gen_event *end = &s->ev;
    heddle_result *r = &c->pub;
    r->ids = c->ids;
    r->n_ids = c->n;
    r->logprobs = c->logprobs;
    r->text = buf_cstr(&c->text);
    r->n_text = c->text.len;
    r->vector = c->vector;
    r->finish = end->finish;
    r->reason = end->finish == FINISH_CANCELLED ? end->reason : CANCEL_NONE;
    r->stop_index = end->stop_index;
    r->ended_by_eos = end->ended_by_eos;
    c->stats = to_stats(&end->stats);
    r->stats = &c->stats;
    if (end->finish != FINISH_FAILED) return;
    c->error = api_error(&end->err);
    r->error = &c->error;
}

heddle_status heddle_collect(heddle_session *s, heddle_result **out, heddle_error *err) {
    collected *c = hd_calloc(1, sizeof *c);
    hd_err e = {.at = HD_NOWHERE};
    bool ok = c != NULL;
    *out = NULL;
    if (c) {
        HEDDLE_INIT(&c->pub);
        buf_init(&c->text, SIZE_MAX); /* bounded by the request's cap */
    }
    if (s->done) {
        if (c) heddle_result_free(&c->pub);
        hd_fail(&e, HD_CLOSED, "the end of this session was read before");
        return api_fail(err, &e);
    }
    while (!s->done) {
        read_event(s, HEDDLE_FOREVER);
        ok = ok && collect_event(c, s);
    }
    if (!ok) {
        if (c) heddle_result_free(&c->pub);
        hd_fail(&e, HD_NOMEM, "no memory for a result");
        return api_fail(err, &e);
    }
    fill_result(c, s);
    *out = &c->pub;
    if (s->ev.finish == FINISH_FAILED) {
        api_fail(err, &s->ev.err);
        return HEDDLE_FAILED;
    }
    if (s->ev.finish != FINISH_CANCELLED) return HEDDLE_OK;
    hd_fail(&e, HD_CANCELLED, "generation cancelled: %s", cancel_reason_name(s->ev.reason));
    return api_fail(err, &e);
}

/* ---- the rest ---- */

const char *heddle_session_id(const heddle_session *s) { return session_id(s->s); }

void heddle_session_progress(heddle_session *s, uint32_t *prompt_done, uint32_t *prompt_total, int *queued) {
    uint32_t done, total;
    bool waits;
    session_progress(s->s, &done, &total, &waits);
    if (prompt_done) *prompt_done = done;
    if (prompt_total) *prompt_total = total;
    if (queued) *queued = waits;
}

void heddle_cancel(heddle_session *s, int32_t reason) { session_cancel(s->s, api_reason(reason)); }

void heddle_session_free(heddle_session *s) {
    if (!s) return;
    session_free(s->s); /* from here on it notifies no more */
    hd_free(s);
}
