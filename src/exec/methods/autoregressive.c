/* autoregressive.c - one token after another: read what is not yet in pages, sample after the last of it.
 *
 * The random number of a token is keyed by its absolute position, stop strings and characters are tracked from the
 * tokens alone: nothing here depends on how the work was cut into steps. */
#include "base/mem.h"
#include "exec/executor.h"

#include <string.h>

typedef struct {
    uint32_t n_scored; /* prompt positions whose scores or logits were handed out (kept through preemption) */
} ar_state;

static void ar_close(row *r) {
    hd_free(r->mstate);
    r->mstate = NULL;
}

static hd_status ar_open(row *r, hd_err *err) {
    ar_state *a = hd_calloc(1, sizeof *a);
    if (!(r->mstate = a)) return hd_fail(err, HD_NOMEM, "no memory for a row");
    if (r->n_generated) a->n_scored = r->n_prompt; /* scores came before the first token */
    return HD_OK;
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
    g->only_best = row_takes_best(r);
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
        if (pos >= r->n_prompt || pos < a->n_scored) continue;
        const float *logits = g->logits + (uint64_t)(j - g->first_logits) * x->info->n_vocab;
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

static void ar_choose(row *r, const segment *g, void *work) {
    if (wants_scores(r) || g->only_best || g->first_logits == g->n || r->n_done + g->n < r->n_tokens || !r->cap_generated) return;
    row_choose(r, g->logits + (uint64_t)(g->n - 1 - g->first_logits) * r->x->info->n_vocab, work);
}

static void ar_consume(row *r, const segment *g) {
    sample_result s;
    if (wants_scores(r)) publish_scores(r, g);
    if (r->n_done < r->n_tokens) return; /* more of the prompt (or of a replay) to come */
    if (!r->cap_generated) {
        row_end(r, FINISH_LENGTH);
        return;
    }
    uint32_t l = g->n - 1 - g->first_logits;
    bool ok = g->only_best ? row_take_best(r, g->best[l], &s) : row_sample(r, g->logits + (uint64_t)l * r->x->info->n_vocab, &s);
    if (ok) row_publish(r, &s);
}

/* Scores are of every position: nothing may be skipped. */
static uint32_t ar_skips(const session *s, uint32_t n_tokens) {
    return s->copy.req.prompt_logprobs || s->copy.req.prompt_logits ? 0 : n_tokens;
}

const gen_method method_autoregressive = {.name = "autoregressive", .open = ar_open, .close = ar_close, .plan = ar_plan,
                                          .consume = ar_consume, .choose = ar_choose, .tail = row_tail, .resumes = true,
                                          .skips = ar_skips};
