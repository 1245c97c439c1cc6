/* publish.c - from logits to a token in the session's queue: what all methods that make text share.
 *
 * The random number of a token is keyed by its absolute position; characters and stop strings are tracked from the tokens
 * alone.  So nothing here depends on how many tokens a step brought. */
#include "base/mem.h"
#include "exec/executor.h"

#include <math.h>
#include <string.h>

void gap_add(gap_counts *g, uint64_t us) {
    int b = us ? (int)(4 * log2((double)us)) : 0;
    g->n++;
    g->bucket[b < GAP_BUCKETS ? b : GAP_BUCKETS - 1]++;
}

uint64_t gap_quantile(const gap_counts *g, double q) {
    uint64_t want = (uint64_t)ceil(q * g->n), seen = 0;
    for (int b = 0; b < GAP_BUCKETS && g->n; b++)
        if ((seen += g->bucket[b]) >= want) return (uint64_t)exp2((b + 0.5) / 4);
    return 0;
}

hd_status row_text_open(row *r, hd_err *err) {
    detok_init(&r->detok, r->x->info->tok, false);
    return stop_stream_new(&r->stops, r->s->copy.stops, err);
}

void row_text_close(row *r) {
    stop_stream_free(r->stops);
    r->stops = NULL;
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

static bool take_forced(row *r, const float *logits, sample_result *out) {
    const sampling_params *p = &r->s->copy.req.sampling;
    if (!atomic_load_explicit(&r->s->has_forced, memory_order_relaxed) || !session_take_forced(r->s, &out->id, 1)) return false;
    if (p->logprobs)
        logprobs_read(model_kernels(r->x->m), logits, r->x->info->n_vocab, out->id, p->n_top_logprobs, out);
    return true;
}

static hd_status sample(const row *r, float *logits, void *work, sample_result *out, hd_err *err) {
    const executor *x = r->x;
    const gen_request *q = &r->s->copy.req;
    int32_t banned[MODEL_MAX_EOG + 64];
    size_t n_banned = 0;
    if (r->n_generated < q->min_tokens) {
        for (uint32_t i = 0; i < x->info->n_eog; i++) banned[n_banned++] = x->info->eog[i];
        for (size_t i = 0; i < q->n_stop_ids && i < 64; i++) banned[n_banned++] = q->stop_ids[i];
    }
    return sampler_sample(r->s->copy.sampler, model_kernels(x->m), logits, x->info->n_vocab, r->tokens, r->n_tokens, r->n_tokens,
                          banned, n_banned, NULL, work, out, err);
}

void row_choose(row *r, float *logits, void *work) {
    if (atomic_load_explicit(&r->s->has_forced, memory_order_relaxed)) return; /* its logprobs are of untouched logits */
    memset(&r->chosen.s, 0, sizeof r->chosen.s);
    r->chosen.st = sample(r, logits, work, &r->chosen.s, &r->chosen.err);
    r->chosen.at = r->n_tokens;
    r->chosen.made = true;
}

bool row_sample(row *r, float *logits, sample_result *out) {
    hd_err err;
    memset(out, 0, sizeof *out);
    if (r->chosen.made && r->chosen.at == r->n_tokens) { /* what was forced since is for the next token */
        r->chosen.made = false;
        *out = r->chosen.s;
        if (r->chosen.st == HD_OK) return true;
        row_fail(r, &r->chosen.err);
        return false;
    }
    if (take_forced(r, logits, out)) return true;
    if (sample(r, logits, r->x->sample_work, out, &err) == HD_OK) return true;
    row_fail(r, &err);
    return false;
}

bool row_takes_best(const row *r) {
    return r->n_generated >= r->s->copy.req.min_tokens && sampler_takes_best(r->s->copy.sampler);
}

bool row_take_best(row *r, logit_best best, sample_result *out) {
    hd_err err;
    memset(out, 0, sizeof *out);
    if (take_forced(r, NULL, out)) return true;
    out->id = (int32_t)best.id;
    out->logprob = -INFINITY; /* not asked for; as the sampler leaves it */
    if (isfinite(best.logit)) return true;
    hd_fail(&err, HD_FAILED, "the logits are not numbers"); /* nothing was forbidden, so -inf is what NaN alone comes to */
    row_fail(r, &err);
    return false;
}

static void note_time(row *r) {
    uint64_t now = hd_now_us(r->x->opt.clock);
    if (!r->t_first_us) {
        r->t_first_us = now;
        tell_first(r, now);
    } else gap_add(&r->gaps, now - r->t_last_us);
    r->t_last_us = now;
}

/* No memory for the text of the token just added: the row ends before it. */
static void take_back(row *r) {
    hd_err err;
    r->n_tokens--;
    r->n_generated--;
    r->x->generated_tokens--;
    r->closed_text = true; /* what is held may be part of the token */
    r->end.stop_index = -1;
    hd_fail(&err, HD_NOMEM, "no memory for a request's text");
    row_fail(r, &err);
}

/* The text of one more token in text_a, what of it may go out in text_b.  True: a stop string is complete. */
static bool push_text(row *r, int32_t id, size_t *which) {
    executor *x = r->x;
    buf_clear(&x->text_a);
    buf_clear(&x->text_b);
    detok_push(&r->detok, x->info->tok, id, r->s->copy.req.special, &x->text_a);
    return stop_push(r->stops, buf_cstr(&x->text_a), x->text_a.len, &x->text_b, which);
}

/* A stop string or the cap ended the row with the token just added. */
static void look_for_end(row *r, bool stopped, size_t which) {
    if (stopped) {
        r->closed_text = true;
        r->end.stop_index = (int32_t)which;
        row_end(r, FINISH_STOP);
    } else if (r->n_generated == r->cap_generated) {
        row_end(r, FINISH_LENGTH);
    }
}

static void cannot_go_on(row *r, uint32_t position, const char *why) {
    hd_err err;
    r->closed_text = true;
    hd_fail_field(&err, HD_INVALID, "said", "token %u of what it said before %s", position - r->n_prompt, why);
    row_fail(r, &err);
}

void row_take_up(row *r) {
    executor *x = r->x;
    for (uint32_t i = r->n_prompt; i < r->n_tokens && !r->ended; i++) {
        size_t which = 0;
        bool stopped = push_text(r, r->tokens[i], &which);
        if (x->text_a.failed || x->text_b.failed) cannot_go_on(r, i, "finds no memory for its text");
        else if (ends_generation(r, r->tokens[i])) cannot_go_on(r, i, "would have ended it");
        else if (i + 1 == r->n_tokens) look_for_end(r, stopped, which);
        else if (stopped) cannot_go_on(r, i, "completes a stop string");
    }
}

bool row_publish(row *r, const sample_result *s) {
    executor *x = r->x;
    session_record rec = {.kind = EV_TOKEN, .position = r->n_tokens, .sample = *s};
    size_t which = 0;
    bool stopped;
    HD_ASSERT(!r->ended && r->n_generated < r->cap_generated);
    note_time(r);
    x->generated_tokens++;
    if (ends_generation(r, s->id)) {
        r->end.ended_by_eos = true;
        row_end(r, FINISH_STOP);
        return false;
    }
    r->tokens[r->n_tokens++] = s->id;
    r->n_generated++;
    stopped = push_text(r, s->id, &which);
    look_for_end(r, stopped, which);
    rec.n_text = (uint32_t)x->text_b.len;
    if (x->text_a.failed || x->text_b.failed || !session_push(r->s, &rec, buf_cstr(&x->text_b))) take_back(r);
    return !r->ended;
}

/* The unfinished character becomes U+FFFD, which may still complete a stop string; then what is held goes out. */
void row_tail(row *r, hd_buf *out) {
    executor *x = r->x;
    size_t which;
    if (r->closed_text || !r->stops) return;
    r->closed_text = true;
    buf_clear(&x->text_a);
    detok_finish(&r->detok, &x->text_a);
    if (x->text_a.failed) {
        out->failed = x->text_a.failed;
        return;
    }
    if (!stop_push(r->stops, buf_cstr(&x->text_a), x->text_a.len, out, &which) && !stop_finish(r->stops, out, &which)) return;
    if (r->end.finish != FINISH_STOP && r->end.finish != FINISH_LENGTH) return;
    r->end.finish = FINISH_STOP;
    r->end.stop_index = (int32_t)which;
}
