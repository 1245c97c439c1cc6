/* api_method.c - heddle.h: methods that an application registers, and the view of a row that they get.
 *
 * struct heddle_row stands between the row and the method: it is the row's mstate.  What a method cannot be trusted with
 * stays here: a segment is always the row's own next tokens and then the draft, and how much of the segment may be kept is
 * found by comparing it with what was published.  So a method can be slow or silly, but not impure.
 *
 * In a consume: positions [pos0, pos0 + good) of the segment hold what the row's tokens say.  Logits for the next token are
 * those after position n_tokens - 1, if that is among them. */
#include "base/mem.h"
#include "exec/api_int.h"
#include "exec/executor.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DRAFT = 63 };

struct api_method {
    gen_method base; /* first: what the engine knows */
    heddle_method m;
    char name[64];
};

struct heddle_row {
    row *r;
    const api_method *m;
    void *state;
    int32_t tokens[1 + MAX_DRAFT]; /* of a segment with a draft */
    bool hidden;                   /* wanted for this segment */
    uint32_t may_publish;
    /* during consume */
    const segment *seg;
    uint32_t good;
    uint32_t sampled_at; /* position that `sample` is for, or NOWHERE */
    sample_result sample;
};
#define NOWHERE UINT32_MAX

/* ---- the engine's vtable ---- */

static const api_method *method_of(const row *r) { return (const api_method *)(const void *)r->method; }

static void from_public(hd_err *err, hd_status st, const heddle_error *pub) {
    hd_fail_field(err, st, pub->field, "%.*s", (int)sizeof pub->message - 1, pub->message[0] ? pub->message : "the method refused");
}

/* What a callback of the application returned, as a status of ours. */
static hd_status to_status(heddle_status st) { return st >= HEDDLE_OK && st <= HEDDLE_FAILED ? (hd_status)st : HD_FAILED; }

static hd_status on_open(row *r, hd_err *err) {
    const api_method *m = method_of(r);
    heddle_row *w = hd_calloc(1, sizeof *w);
    heddle_error pub;
    hd_status st;
    if (!w) return hd_fail(err, HD_NOMEM, "no memory for a row");
    w->r = r;
    w->m = m;
    w->sampled_at = NOWHERE;
    HEDDLE_INIT(&pub);
    if (m->m.open && (st = to_status(m->m.open(m->m.ctx, w, &w->state, &pub)))) {
        from_public(err, st, &pub);
        hd_free(w);
        return st;
    }
    r->mstate = w;
    return HD_OK;
}

static void on_close(row *r) {
    heddle_row *w = r->mstate;
    if (w->m->m.close) w->m->m.close(w->m->m.ctx, w->state);
    hd_free(w);
    r->mstate = NULL;
}

static uint32_t on_wants(const row *r) {
    const heddle_row *w = r->mstate;
    uint32_t n = w->m->m.wants ? w->m->m.wants(w->m->m.ctx, w) : 0;
    return 1 + (n < MAX_DRAFT ? n : MAX_DRAFT);
}

/* Draft tokens that fit behind the row's last one: in the step, in the row, and of use (the last token has no successor). */
static uint32_t max_draft(const row *r, const step_grant *grant) {
    uint32_t n = grant->tokens - 1, left = r->cap_generated - r->n_generated;
    if (n > grant->logits - 1) n = grant->logits - 1;
    if (n + 1 > left) n = left ? left - 1 : 0;
    return n < MAX_DRAFT ? n : MAX_DRAFT;
}

static bool on_plan(row *r, const step_grant *grant, segment *g) {
    heddle_row *w = r->mstate;
    uint32_t own = r->n_tokens - r->n_done;
    heddle_plan p;
    if (!own) return false;
    HEDDLE_INIT(&p);
    g->pos0 = r->n_done;
    g->tokens = r->tokens + r->n_done;
    g->n = own < grant->tokens ? own : grant->tokens;
    /* Only the position after which a token is to be sampled. */
    g->first_logits = g->n == own && r->cap_generated ? g->n - 1 : g->n;
    if (own == 1) p.max_draft = max_draft(r, grant);
    if (w->m->m.plan) w->m->m.plan(w->m->m.ctx, w, &p);
    if (p.n_draft > p.max_draft) p.n_draft = p.max_draft;
    if (p.n_draft && p.draft) {
        w->tokens[0] = r->tokens[r->n_done];
        for (uint32_t i = 0; i < p.n_draft && p.draft[i] >= 0 && (uint32_t)p.draft[i] < r->x->info->n_vocab; i++)
            w->tokens[g->n++] = p.draft[i];
        g->tokens = w->tokens;
    }
    w->hidden = p.hidden && r->x->info->width;
    if (w->hidden) g->end_hidden = g->n;
    w->may_publish = own == 1 ? g->n : 1; /* the engine left room for as many */
    return true;
}

static void fail_row(heddle_row *w, const char *what) {
    hd_err err;
    hd_fail(&err, HD_FAILED, "method %s: %s", w->m->name, what);
    row_fail(w->r, &err);
}

static void on_consume(row *r, const segment *g) {
    heddle_row *w = r->mstate;
    uint32_t before = r->n_tokens;
    bool complete = g->pos0 + g->n >= before;
    int32_t id;
    if (!complete && !w->hidden) return; /* more of the prompt (or of a replay) to come */
    w->seg = g;
    w->good = g->n;
    w->sampled_at = NOWHERE;
    if (complete) r->n_done = before; /* as the method sees it; a draft is not the row's */
    if (w->m->m.consume) w->m->m.consume(w->m->m.ctx, w);
    else while (complete && !r->ended && heddle_row_sample(w, &id) == HEDDLE_OK && heddle_row_publish(w, id)) {}
    w->seg = NULL;
    if (!complete || r->ended) return;
    if (r->n_generated >= r->cap_generated) {
        row_end(r, FINISH_LENGTH);
    } else if (r->n_tokens == before) {
        fail_row(w, "it neither published a token nor ended the row");
    } else {
        /* What was published is computed as far as the segment foresaw it; the last token always runs again, as the next
         * one is sampled after it. */
        r->n_done = g->pos0 + w->good < r->n_tokens - 1 ? g->pos0 + w->good : r->n_tokens - 1;
    }
}

/* ---- registering ---- */

heddle_status heddle_register(heddle_engine *e, const heddle_method *m, heddle_error *err) {
    api_method *a = hd_calloc(1, sizeof *a);
    hd_err he = {.at = HD_NOWHERE};
    size_t n;
    if (!a) {
        hd_fail(&he, HD_NOMEM, "no memory for a method");
        goto fail;
    }
    if (api_take(&a->m, sizeof a->m, m, "heddle_method", &he)) goto fail;
    n = a->m.name ? strlen(a->m.name) : 0;
    if (!n || n >= sizeof a->name) {
        hd_fail_field(&he, HD_INVALID, "name", "a method's name has 1 to %zu bytes", sizeof a->name - 1);
        goto fail;
    }
    memcpy(a->name, a->m.name, n);
    a->m.name = a->name;
    a->base = (gen_method){.name = a->name, .open = on_open, .close = on_close, .wants = on_wants, .plan = on_plan,
                           .consume = on_consume, .tail = row_tail};
    pthread_mutex_lock(&e->mu);
    if (e->n_methods == API_MAX_METHODS) hd_fail(&he, HD_FULL, "%d methods are registered already", API_MAX_METHODS);
    else if (!engine_register(e->e, &a->base, &he)) e->methods[e->n_methods++] = a, a = NULL;
    pthread_mutex_unlock(&e->mu);
    if (!a) return HEDDLE_OK;
fail:
    hd_free(a);
    return api_fail(err, &he);
}

/* The method's own opinion of a request, before the engine sees it. */
hd_status api_method_check(heddle_engine *e, const heddle_request *r, hd_err *err) {
    const api_method *m = NULL;
    heddle_model_info in;
    heddle_error pub;
    hd_status st;
    pthread_mutex_lock(&e->mu);
    for (size_t i = 0; r->method && i < e->n_methods && !m; i++)
        if (!strcmp(e->methods[i]->name, r->method)) m = e->methods[i];
    pthread_mutex_unlock(&e->mu);
    if (!m) return HD_OK;
    if (r->prompt_logprobs || r->prompt_logits)
        return hd_fail_field(err, HD_UNSUPPORTED, r->prompt_logprobs ? "prompt_logprobs" : "prompt_logits",
                             "the method %s does not score its prompt", m->name);
    if (!m->m.check) return HD_OK;
    HEDDLE_INIT(&in);
    HEDDLE_INIT(&pub);
    heddle_model_look(e->m, &in);
    st = to_status(m->m.check(m->m.ctx, r, &in, &pub));
    if (st) from_public(err, st, &pub);
    return st;
}

heddle_status heddle_error_set(heddle_error *err, heddle_status status, const char *field, const char *message) {
    hd_err e;
    hd_fail_field(&e, to_status(status), field ? field : "", "%s", message ? message : "");
    return api_fail(err, &e);
}

/* ---- a row, as its method sees it ---- */

void *heddle_row_state(const heddle_row *w) { return w->state; }
const char *heddle_row_id(const heddle_row *w) { return session_id(w->r->s); }
uint64_t heddle_row_arg(const heddle_row *w) { return w->r->s->copy.req.method_arg; }
uint32_t heddle_row_prompt_length(const heddle_row *w) { return w->r->n_prompt; }
uint32_t heddle_row_computed(const heddle_row *w) { return w->r->n_done; }
uint32_t heddle_row_left(const heddle_row *w) { return w->r->cap_generated - w->r->n_generated; }

const int32_t *heddle_row_tokens(const heddle_row *w, size_t *n) {
    *n = w->r->n_tokens;
    return w->r->tokens;
}

/* The logits for the token at position n_tokens, or NULL. */
static float *next_logits(const heddle_row *w) {
    const row *r = w->r;
    const segment *g = w->seg;
    uint32_t j;
    if (!g || r->ended || r->n_tokens <= g->pos0) return NULL;
    j = r->n_tokens - 1 - g->pos0;
    if (j >= w->good || j < g->first_logits) return NULL;
    return g->logits + (uint64_t)(j - g->first_logits) * r->x->info->n_vocab;
}

float *heddle_row_logits(heddle_row *w, size_t *n) {
    float *logits = w->sampled_at == w->r->n_tokens ? NULL : next_logits(w); /* sampling used them up */
    *n = logits ? w->r->x->info->n_vocab : 0;
    return logits;
}

heddle_status heddle_row_sample(heddle_row *w, int32_t *id) {
    float *logits = next_logits(w);
    *id = -1;
    if (w->r->ended) return w->r->end.finish == FINISH_FAILED ? HEDDLE_FAILED : HEDDLE_NOT_FOUND;
    if (!logits || w->r->n_generated >= w->r->cap_generated) return HEDDLE_NOT_FOUND;
    if (w->sampled_at != w->r->n_tokens) {
        if (!row_sample(w->r, logits, &w->sample)) return HEDDLE_FAILED;
        w->sampled_at = w->r->n_tokens;
    }
    *id = w->sample.id;
    return HEDDLE_OK;
}

int heddle_row_publish(heddle_row *w, int32_t id) {
    row *r = w->r;
    sample_result s = {.id = id};
    uint32_t j;
    if (r->ended || !w->seg) return 0;
    if (id < 0 || (uint32_t)id >= r->x->info->n_vocab) return fail_row(w, "it published a token outside the vocabulary"), 0;
    if (!w->may_publish) return fail_row(w, "it published more tokens than its segment has positions"), 0;
    if (r->n_generated >= r->cap_generated) return row_end(r, FINISH_LENGTH), 0;
    if (w->sampled_at == r->n_tokens && w->sample.id == id) s = w->sample;
    w->may_publish--;
    j = r->n_tokens - w->seg->pos0; /* its place in the segment, if the draft foresaw it */
    if (j < w->good && w->seg->tokens[j] != id) w->good = j;
    return row_publish(r, &s);
}

const float *heddle_row_hidden(const heddle_row *w, uint32_t *first, size_t *n) {
    bool there = w->seg && w->hidden;
    *first = there ? w->seg->pos0 : 0;
    *n = there ? w->seg->n : 0;
    return there ? w->seg->hidden : NULL;
}

void heddle_row_end(heddle_row *w, int32_t finish) {
    if (!w->r->ended && w->seg) row_end(w->r, finish == HEDDLE_FINISH_LENGTH ? FINISH_LENGTH : FINISH_STOP);
}

void heddle_row_fail(heddle_row *w, const char *message) {
    if (!w->r->ended && w->seg) fail_row(w, message ? message : "it failed");
}
