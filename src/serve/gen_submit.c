/* gen_submit.c - from a plan to sessions of the engine.  Planner threads; gen_submit_more is the loop's.  See gen.h. */
#include "serve/gen.h"

#include "base/mem.h"
#include "serve/bounds.h"
#include "serve/durable.h"
#include "serve/runner.h"
#include "text/replay.h"

#include <stdio.h>
#include <string.h>

enum {
    PIECE_MAX = 64 << 20, /* rendered entries of one kind of one choice */
    TEXT_MAX = 64 << 20,
};

void gen_submit_error(gen *g, serve_error *e, hd_status st, const hd_err *err) {
    server *s = g->srv;
    engine_view v = {0};
    switch (st) {
    case HD_INVALID: serve_fail(e, 400, "invalid_value", err->field, "%s", err->msg); break;
    case HD_UNSUPPORTED: serve_fail(e, 422, "unsupported_parameter", err->field, "%s", err->msg); break;
    case HD_NEVER_FITS: serve_fail(e, 400, "never_fits", err->field, "%s", err->msg); break;
    case HD_FULL:
        engine_look(s->eng, &v);
        serve_fail(e, 429, "queue_full", NULL, "the queue is full: %u requests wait, the limit is %u", v.waiting,
                   s->max_queued);
        e->retry_after_s = v.retry_after_ms < 1000 ? 1 : (uint32_t)((v.retry_after_ms + 999) / 1000);
        e->waiting = v.waiting;
        e->max_queued = s->max_queued;
        break;
    case HD_CLOSED:
        serve_fail(e, 503, "draining", NULL, "the server is shutting down");
        e->retry_after_s = 5;
        break;
    case HD_NOMEM: serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request"); break;
    default: serve_fail(e, 500, "internal_error", NULL, "%s", err->msg);
    }
}

static const char *prompt_field(const gen *g) {
    return g->d == &dialect_embeddings ? "input" : g->d == &dialect_completions ? "prompt" : "messages";
}

/* What is left of a deadline for a choice that is submitted late. */
static uint64_t left_us(const gen *g, uint64_t timeout_us) {
    uint64_t spent = g->n_submitted ? server_now_us() - g->t_start_us : 0;
    return !timeout_us ? 0 : timeout_us > spent ? timeout_us - spent : 1;
}

/* In another life the total deadline goes on from where the request was accepted, by the wall clock; a clock that was set
 * back gives the whole time again.  The others are about this life's queue, and are over for one that had begun. */
static void left_again(const gen *g, bool begun, gen_request *r) {
    const gen_params *p = &g->plan;
    int64_t gone = server_wall_us() - g->accepted_us;
    uint64_t spent = gone > 0 ? (uint64_t)gone : 0;
    r->total_timeout_us = !p->total_timeout_us ? 0 : p->total_timeout_us > spent ? p->total_timeout_us - spent : 1;
    r->queue_timeout_us = begun ? 0 : p->queue_timeout_us;
    r->first_token_timeout_us = begun ? 0 : p->first_token_timeout_us;
}

/* Where the context ended when the request was accepted, it ends still. */
static uint32_t cap(const gen *g, size_t n_prompt) {
    uint32_t room = g->ctx > n_prompt ? g->ctx - (uint32_t)n_prompt : 0;
    return g->readmit && g->ctx < g->srv->ctx && g->plan.max_tokens > room ? room : g->plan.max_tokens;
}

/* One id to the world; the engine's own are told apart by a suffix that state.c cuts off again. */
static void fill_request(const gen *g, uint32_t i, const resumed_choice *was, char id[64], gen_request *r) {
    const gen_params *p = &g->plan;
    const gen_prompt *prompt = &g->prompts[g->choices[i].prompt];
    if (g->srv->opt.n_api_keys) snprintf(id, 64, "%.38s#%u~%zu", g->id, i, g->key);
    else if (g->n_choices == 1) snprintf(id, 64, "%s", g->id);
    else snprintf(id, 64, "%.50s#%u", g->id, i);
    *r = (gen_request){.id = id,
                       .method = p->method,
                       .method_arg = p->method_arg,
                       .priority = p->priority,
                       .share = p->share,
                       .cache_space = p->space,
                       .no_cache = p->no_cache,
                       .boundary = prompt->facts.boundary,
                       .pin_us = p->pin_us,
                       .prompt = prompt->ids.ids,
                       .n_prompt = prompt->ids.n,
                       .max_tokens = cap(g, prompt->ids.n),
                       .readmit = g->readmit,
                       .sampling = p->sampling,
                       .stops = p->stops,
                       .n_stops = p->n_stops,
                       .stop_ids = p->stop_ids,
                       .n_stop_ids = p->n_stop_ids,
                       .ignore_eos = p->ignore_eos,
                       .min_tokens = p->min_tokens,
                       .special = p->special,
                       .prompt_logprobs = p->score_prompt,
                       .queue_timeout_us = left_us(g, p->queue_timeout_us),
                       .first_token_timeout_us = left_us(g, p->first_token_timeout_us),
                       .total_timeout_us = left_us(g, p->total_timeout_us)};
    r->sampling.sample_index = i % p->n;
    r->sampling.logprobs = p->logprobs;
    if (!was) return;
    r->said = was->said;
    r->n_said = was->n_said;
    left_again(g, was->begun, r);
}

hd_status gen_submit_choices(gen *g, uint32_t from, uint32_t n, const resumed_choice *was, waker *w, session **out, hd_err *err) {
    gen_request *reqs = hd_calloc(n, sizeof *reqs);
    session **made = hd_calloc(n, sizeof *made);
    void **ctx = hd_calloc(n, sizeof *ctx);
    char(*ids)[64] = hd_calloc(n, sizeof *ids);
    hd_status st = HD_NOMEM;
    uint32_t k = 0;
    if (!reqs || !made || !ctx || !ids) {
        hd_fail(err, st, "no memory for the request");
        goto done;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (was && was[i].done) continue;
        fill_request(g, from + i, was ? &was[i] : NULL, ids[k], &reqs[k]);
        ctx[k++] = w;
    }
    if ((st = k ? engine_submit(g->srv->eng, reqs, k, server_notify, ctx, made, err) : HD_OK)) goto done;
    for (uint32_t i = 0, at = 0; i < n; i++) out[i] = was && was[i].done ? NULL : made[at++];
done:
    hd_free(reqs);
    hd_free(made);
    hd_free(ctx);
    hd_free(ids);
    return st;
}

/* The next n choices of an ordinary request. */
static hd_status submit_next(gen *g, uint32_t n, hd_err *err) {
    session **out = hd_calloc(n, sizeof *out);
    hd_status st = out ? gen_submit_choices(g, g->n_submitted, n, NULL, &g->w, out, err) : HD_NOMEM;
    for (uint32_t i = 0; !st && i < n; i++) g->choices[g->n_submitted++].s = out[i];
    hd_free(out);
    return st;
}

static bool prompts_fit(gen *g) {
    const server *s = g->srv;
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        size_t n_ids = g->prompts[i].ids.n;
        if (!n_ids) return serve_fail(&g->error, 400, "invalid_value", prompt_field(g), "the prompt has no tokens");
        if (n_ids > s->ctx || (n_ids == s->ctx && g->plan.max_tokens)) {
            serve_fail(&g->error, 400, "context_length_exceeded", prompt_field(g),
                       "the prompt has %zu tokens, the context holds %u", n_ids, s->ctx);
            g->error.n_prompt_tokens = n_ids;
            g->error.n_ctx = s->ctx;
            return false;
        }
    }
    return true;
}

/* Choices of an embedding request that are the engine's at one time: enough to fill its steps and to follow at once, and
 * most of the queue stays free for others. */
static uint32_t window(const gen *g) {
    uint32_t rows = g->srv->max_rows, more = g->srv->max_queued / 4;
    return rows + (rows < more ? rows : more);
}

bool gen_make_choices(gen *g) {
    const gen_params *p = &g->plan;
    uint64_t n = (uint64_t)g->n_prompts * p->n;
    if (!bounds_request(g, &g->error)) return false;
    if (!(g->choices = hd_calloc(n, sizeof *g->choices)))
        return serve_fail(&g->error, 503, "out_of_memory", NULL, "no memory for the request");
    g->n_choices = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        choice *ch = &g->choices[i];
        ch->index = i;
        ch->prompt = i / p->n;
        ch->stop_index = -1;
        buf_init(&ch->text, TEXT_MAX);
        id_list_init(&ch->ids, REPLAY_MAX_IDS);
        for (int j = 0; j < N_PIECES; j++) buf_init(&ch->pieces[j], PIECE_MAX);
        detok_init(&ch->dt, g->srv->info->tok, p->score_prompt);
        buf_init(&ch->at.chunk, VIEW_CHUNK_MAX);
    }
    return true;
}

void gen_submit(gen *g) {
    server *s = g->srv;
    const gen_params *p = &g->plan;
    uint64_t n = (uint64_t)g->n_prompts * p->n;
    hd_err err = {0};
    hd_status st;
    uint32_t k, room = s->max_queued + s->max_rows, limit = room < GEN_MAX_CHOICES ? room : GEN_MAX_CHOICES;
    if (p->method) limit = GEN_MAX_INPUTS;
    if (n > limit) {
        serve_fail(&g->error, 400, "invalid_value", p->n > 1 ? "n" : prompt_field(g),
                   "%llu choices (prompts x n) are asked for; at most %u can run and wait", (unsigned long long)n, limit);
        return;
    }
    if (!prompts_fit(g) || !gen_make_choices(g)) return;
    if (g->view.how == VIEW_NEW) {
        durable_submit(g);
        return;
    }
    k = p->method && n > window(g) ? window(g) : (uint32_t)n;
    while ((st = submit_next(g, k, &err)) == HD_FULL && p->method && k > 1) k /= 2; /* the others follow */
    if (st) gen_submit_error(g, &g->error, st, &err);
}

/* A full queue is no error while some of its choices are the engine's. */
void gen_submit_more(gen *g, serve_error *e) {
    if (g->view.how) return;
    while (g->n_submitted < g->n_choices && g->n_submitted - g->n_done < window(g)) {
        hd_err err = {0};
        hd_status st;
        if (g->ending) {
            gen_cancel_error(e, g->ending_why);
            return;
        }
        st = submit_next(g, 1, &err);
        if (st == HD_FULL && g->n_submitted > g->n_done) return;
        if (st) {
            gen_submit_error(g, e, st, &err);
            return;
        }
    }
}

