/* autoregressive.c - one token after another: read what is not yet in pages, sample after the last of it.
 *
 * The random number of a token is keyed by its absolute position, stop strings and characters are tracked from the
 * tokens alone: nothing here depends on how the work was cut into steps. */
#include "base/mem.h"
#include "exec/executor.h"

#include <string.h>

typedef struct {
    detok detok;
    stop_stream *stops;
    uint32_t n_scored; /* prompt positions whose scores or logits were handed out (kept through preemption) */
    bool closed_text;  /* a stop string ended the text: nothing is released any more */
} ar_state;

static void ar_close(row *r) {
    ar_state *a = r->mstate;
    stop_stream_free(a->stops);
    hd_free(a);
    r->mstate = NULL;
}

static hd_status ar_open(row *r, hd_err *err) {
    ar_state *a = hd_calloc(1, sizeof *a);
    hd_status st;
    if (!a) return hd_fail(err, HD_NOMEM, "no memory for a row");
    r->mstate = a;
    detok_init(&a->detok, r->x->info->tok, false);
    if ((st = stop_stream_new(&a->stops, r->s->copy.stops, err))) ar_close(r);
    return st;
}

static bool wants_scores(const row *r) { return r->s->copy.req.prompt_logprobs || r->s->copy.req.prompt_logits; }

static bool ar_plan(row *r, const step_grant *grant, segment *g) {
    const ar_state *a = r->mstate;
    uint32_t n = r->n_tokens - r->n_done;
    if (!n) return false;
    if (n > grant->tokens) n = grant->tokens;
    g->tokens = r->tokens + r->n_done;
    g->pos0 = r->n_done;
    if (wants_scores(r) && r->n_done + n > a->n_scored && a->n_scored < r->n_prompt) {
        uint32_t first = a->n_scored > r->n_done ? a->n_scored - r->n_done : 0;
        if (n - first > grant->logits) n = first + grant->logits;
        g->first_logits = first;
        g->n = n;
        return true;
    }
    g->n = n;
    /* Only the position after which a token is to be sampled. */
    g->first_logits = r->n_done + n == r->n_tokens && r->cap_generated ? n - 1 : n;
    return true;
}

/* Hand out scores and logits of prompt positions. */
static void publish_scores(row *r, const segment *g) {
    ar_state *a = r->mstate;
    const executor *x = r->x;
    const gen_request *q = &r->s->copy.req;
    for (uint32_t j = g->first_logits; j < g->n; j++) {
        uint32_t pos = g->pos0 + j;
        const float *logits = g->logits + (uint64_t)(j - g->first_logits) * x->info->n_vocab;
        if (pos >= r->n_prompt || pos < a->n_scored) continue;
        a->n_scored = pos + 1;
        if (q->prompt_logits) session_push_logits(r->s, pos, logits);
        if (q->prompt_logprobs && pos + 1 < r->n_prompt) {
            session_record rec = {.kind = EV_PROMPT, .position = pos + 1};
            logprobs_read(model_kernels(x->m), logits, x->info->n_vocab, r->tokens[pos + 1], q->sampling.n_top_logprobs,
                          &rec.sample);
            session_push(r->s, &rec, "");
        }
    }
}

static bool in_list(const int32_t *ids, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static bool ends_generation(const row *r, int32_t id) {
    const model_info *in = r->x->info;
    const gen_request *q = &r->s->copy.req;
    return in_list(q->stop_ids, q->n_stop_ids, id) || (!q->ignore_eos && in_list(in->eog, in->n_eog, id));
}

/* Sample the token at position n_tokens from logits.  False: the row has ended without one. */
static bool sample(row *r, float *logits, sample_result *out) {
    executor *x = r->x;
    const gen_request *q = &r->s->copy.req;
    int32_t banned[MODEL_MAX_EOG + 64];
    size_t n_banned = 0;
    hd_err err;
    if (r->n_generated < q->min_tokens) {
        for (uint32_t i = 0; i < x->info->n_eog; i++) banned[n_banned++] = x->info->eog[i];
        for (size_t i = 0; i < q->n_stop_ids && i < 64; i++) banned[n_banned++] = q->stop_ids[i];
    }
    if (sampler_sample(r->s->copy.sampler, model_kernels(x->m), logits, x->info->n_vocab, r->tokens, r->n_tokens, r->n_tokens,
                       banned, n_banned, NULL, x->sample_work, out, &err) == HD_OK)
        return true;
    row_fail(r, &err);
    return false;
}

static void ar_consume(row *r, const segment *g) {
    ar_state *a = r->mstate;
    executor *x = r->x;
    session_record rec = {.kind = EV_TOKEN};
    size_t which;
    if (wants_scores(r)) publish_scores(r, g);
    if (r->n_done < r->n_tokens) return; /* more of the prompt (or of a replay) to come */
    if (!r->cap_generated) {
        row_end(r, FINISH_LENGTH);
        return;
    }
    rec.position = r->n_tokens;
    if (!sample(r, g->logits + (uint64_t)(g->n - 1 - g->first_logits) * x->info->n_vocab, &rec.sample)) return;
    if (!r->t_first_us) r->t_first_us = hd_now_us(x->opt.clock);
    x->generated_tokens++;
    if (ends_generation(r, rec.sample.id)) {
        r->end.ended_by_eos = true;
        row_end(r, FINISH_STOP);
        return;
    }
    r->tokens[r->n_tokens++] = rec.sample.id;
    r->n_generated++;
    buf_clear(&x->text_a);
    buf_clear(&x->text_b);
    detok_push(&a->detok, x->info->tok, rec.sample.id, r->s->copy.req.special, &x->text_a);
    if (stop_push(a->stops, buf_cstr(&x->text_a), x->text_a.len, &x->text_b, &which)) {
        a->closed_text = true;
        r->end.stop_index = (int32_t)which;
        row_end(r, FINISH_STOP);
    } else if (r->n_generated == r->cap_generated) {
        row_end(r, FINISH_LENGTH);
    }
    rec.n_text = (uint32_t)x->text_b.len;
    session_push(r->s, &rec, buf_cstr(&x->text_b));
}

/* The unfinished character becomes U+FFFD, which may still complete a stop string; then what is held goes out. */
static void ar_tail(row *r, hd_buf *out) {
    ar_state *a = r->mstate;
    executor *x = r->x;
    size_t which;
    if (!a || a->closed_text) return;
    a->closed_text = true;
    buf_clear(&x->text_a);
    detok_finish(&a->detok, &x->text_a);
    if (!stop_push(a->stops, buf_cstr(&x->text_a), x->text_a.len, out, &which) && !stop_finish(a->stops, out, &which)) return;
    if (r->end.finish != FINISH_STOP && r->end.finish != FINISH_LENGTH) return;
    r->end.finish = FINISH_STOP;
    r->end.stop_index = (int32_t)which;
}

const gen_method method_autoregressive = {.name = "autoregressive", .open = ar_open, .close = ar_close, .plan = ar_plan,
                                      .consume = ar_consume, .tail = ar_tail};
