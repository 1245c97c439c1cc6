/* embedding.c - one vector for a prompt, pooled from the hidden states of its tokens.
 *
 * The prompt is read in chunks like any other, in steps that decoding rows share.  A mean is summed in doubles in the order
 * of positions, so that the cut into chunks does not show; a row that gave its pages back begins again at position 0, and
 * so does its sum.  Nothing is generated: one EV_VECTOR, then FINISH_STOP. */
#include "exec/methods/embedding.h"
#include "base/mem.h"
#include "exec/executor.h"

#include <math.h>
#include <string.h>

typedef struct {
    embedding_pooling pooling;
    bool raw;
    uint32_t next;  /* position that is summed next */
    double *sum;    /* [width]: the sum, at the end the vector */
    float *vector;  /* [width]: what goes to the session, which then owns it */
} embedding_state;

bool embedding_by_name(const char *name, embedding_pooling *out) {
    static const char *const names[N_EMBEDDING_POOLINGS] = {"last", "mean", "cls"};
    for (int i = 0; i < N_EMBEDDING_POOLINGS; i++)
        if (!strcmp(name, names[i])) return *out = (embedding_pooling)i, true;
    return false;
}

static hd_status check(const gen_request *q, const model_info *in, hd_err *err) {
    if (!in->width) return hd_fail_field(err, HD_UNSUPPORTED, "method", "this model has no hidden states");
    if ((q->method_arg & ~(uint64_t)EMBEDDING_RAW) >= N_EMBEDDING_POOLINGS)
        return hd_fail_field(err, HD_INVALID, "method_arg", "there is no pooling %llu", (unsigned long long)q->method_arg);
    if (q->max_tokens) return hd_fail_field(err, HD_INVALID, "max_tokens", "an embedding generates nothing: max_tokens must be 0");
    if (q->prompt_logprobs) return hd_fail_field(err, HD_INVALID, "prompt_logprobs", "an embedding does not score its prompt");
    if (q->prompt_logits) return hd_fail_field(err, HD_INVALID, "prompt_logits", "an embedding has no logits");
    return HD_OK;
}

static void emb_close(row *r) {
    embedding_state *e = r->mstate;
    hd_free(e->vector);
    hd_free(e->sum);
    hd_free(e);
    r->mstate = NULL;
}

static hd_status emb_open(row *r, hd_err *err) {
    embedding_state *e = hd_calloc(1, sizeof *e);
    uint64_t arg = r->s->copy.req.method_arg;
    if (!e) return hd_fail(err, HD_NOMEM, "no memory for a row");
    r->mstate = e;
    e->pooling = (embedding_pooling)(arg & ~(uint64_t)EMBEDDING_RAW);
    e->raw = arg & EMBEDDING_RAW;
    e->sum = hd_calloc(r->x->info->width, sizeof *e->sum);
    e->vector = hd_calloc(r->x->info->width, sizeof *e->vector);
    if (e->sum && e->vector) return HD_OK;
    emb_close(r);
    return hd_fail(err, HD_NOMEM, "no memory for a row");
}

static bool emb_plan(row *r, const step_grant *grant, segment *g) {
    const embedding_state *e = r->mstate;
    uint32_t n = r->n_prompt - r->n_done;
    if (!n) return false;
    if (n > grant->tokens) n = grant->tokens;
    g->tokens = r->tokens + r->n_done;
    g->pos0 = r->n_done;
    g->n = g->first_logits = n;
    switch (e->pooling) {
    case EMBEDDING_MEAN: g->end_hidden = n; break;
    case EMBEDDING_CLS: g->end_hidden = r->n_done ? 0 : 1; break;
    default:
        if (r->n_done + n < r->n_prompt) break;
        g->first_hidden = n - 1;
        g->end_hidden = n;
    }
    return true;
}

/* Take the segment's states in.  For a mean they come in the order of positions, each once. */
static void gather(row *r, const segment *g) {
    embedding_state *e = r->mstate;
    uint32_t width = r->x->info->width;
    if (!g->pos0) memset(e->sum, 0, width * sizeof *e->sum);
    HD_ASSERT(e->pooling != EMBEDDING_MEAN || !g->pos0 || g->pos0 == e->next);
    e->next = g->pos0 + g->n;
    for (uint32_t j = g->first_hidden; j < g->end_hidden; j++) {
        const float *h = g->hidden + (uint64_t)(j - g->first_hidden) * width;
        for (uint32_t i = 0; i < width; i++) e->sum[i] += h[i];
    }
}

/* The sum becomes the vector.  False: it is not a vector of numbers. */
static bool finish(embedding_state *e, uint32_t n, uint32_t width) {
    double squares = 0, scale = 1;
    if (e->pooling == EMBEDDING_MEAN)
        for (uint32_t i = 0; i < width; i++) e->sum[i] /= n;
    for (uint32_t i = 0; i < width; i++) squares += e->sum[i] * e->sum[i];
    if (!isfinite(squares)) return false;
    if (!e->raw && squares > 0) scale = sqrt(squares);
    for (uint32_t i = 0; i < width; i++) e->vector[i] = (float)(e->sum[i] / scale);
    return true;
}

static void emb_consume(row *r, const segment *g) {
    embedding_state *e = r->mstate;
    uint32_t width = r->x->info->width;
    hd_err err;
    gather(r, g);
    if (r->n_done < r->n_prompt) return;
    if (!finish(e, r->n_prompt, width)) {
        hd_fail(&err, HD_FAILED, "the model's hidden states are not numbers");
        row_fail(r, &err);
        return;
    }
    session_push_vector(r->s, e->vector, width);
    e->vector = NULL;
    row_end(r, FINISH_STOP);
}

static uint32_t emb_skips(const session *s, uint32_t n_tokens) {
    return (s->copy.req.method_arg & ~(uint64_t)EMBEDDING_RAW) == EMBEDDING_LAST ? n_tokens : 0;
}

const gen_method method_embedding = {.name = "embedding", .check = check, .open = emb_open, .close = emb_close,
                                     .plan = emb_plan, .consume = emb_consume, .skips = emb_skips};
