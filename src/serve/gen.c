/* gen.c - see gen.h.
 *
 * Flow control: events are taken out of a session only while the connection has less than HTTP_OUTPUT_MARK unsent, so
 * a reader that stalls leaves its events in the session's bounded queue and pauses its own row.  Unstreamed replies are
 * collected under one bound for the whole server (options.collect_tokens): at the bound only the oldest goes on, and
 * the held ones read one event now and then so that their sessions do not count as idle.
 * Read: gen_start, gen_submit, gen_planned, gen_drain, take_event, settle. */
#include "serve/gen.h"

#include "base/mem.h"
#include "serve/metrics.h"
#include "serve/planner.h"
#include "serve/stream.h"

#include <stdio.h>
#include <string.h>

enum {
    DRAIN_EVENTS = 64,         /* taken in one turn before other connections get theirs */
    HELD_READ_US = 10000000,   /* well below the engine's idle timeout */
    PIECE_MAX = 64 << 20,      /* rendered entries of one kind of one choice */
    TEXT_MAX = 64 << 20,
};

/* ---- life ---- */

static void link_gen(gen *g) {
    server *s = g->srv;
    g->next = NULL;
    if ((g->prev = s->gens_last)) g->prev->next = g;
    else s->gens = g;
    s->gens_last = g;
    s->n_gens++;
}

static void choice_deinit(choice *ch) {
    if (ch->s) session_free(ch->s);
    buf_deinit(&ch->text);
    for (int i = 0; i < N_PIECES; i++) buf_deinit(&ch->pieces[i]);
    hd_free(ch->pending);
}

enum { TRACE_FIRST = 1000000000 }; /* lines of sessions are numbered from 0 */

uint64_t gen_trace(const gen *g, const char *name, uint64_t t0_us, const char *arg, uint64_t v) {
    trace *t = g->srv->opt.trace;
    uint64_t now;
    if (!t) return 0;
    now = server_now_us();
    trace_request(t, name, g->id[0] ? g->id : g->d->name, g->trace_order, t0_us, now, arg, v);
    return now;
}

/* Back to the pool.  The planner is not working on it. */
static void release(gen *g) {
    static const struct timeval at_once = {0, 0};
    server *s = g->srv;
    if (g->phase == GEN_PLANNING) s->n_planning--;
    gen_trace(g, g->d->name, g->t_begin_us, "choices", g->n_choices);
    if (g->timer) event_free(g->timer);
    g->timer = NULL;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        s->collected_tokens -= g->choices[i].collected;
        choice_deinit(&g->choices[i]);
    }
    hd_free(g->choices);
    g->choices = NULL;
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        id_list_deinit(&g->prompts[i].ids);
        hd_free(g->prompts[i].echo);
    }
    hd_free(g->prompts);
    g->prompts = NULL;
    g->n_choices = g->n_prompts = 0;
    gen_params_deinit(&g->plan);
    buf_deinit(&g->body);
    buf_deinit(&g->reply);
    buf_deinit(&g->frame_head);
    buf_deinit(&g->frame_tail);
    s->body_bytes -= g->body_counted;
    g->body_counted = 0;
    if (g->id[0]) memcpy(s->recent[s->n_recent++ % RECENT_IDS], g->id, sizeof g->id);
    if (g->prev) g->prev->next = g->next;
    else s->gens = g->next;
    if (g->next) g->next->prev = g->prev;
    else s->gens_last = g->prev;
    g->phase = GEN_FREE;
    g->prev = NULL;
    g->next = s->gens_free;
    s->gens_free = g;
    s->n_gens--;
    /* Someone held back by the bound on collected tokens may go on. */
    for (gen *h = s->gens; h; h = h->next)
        if (h->held) evtimer_add(h->timer, &at_once);
    server_rest(s);
    server_check_drained(s);
}

void gen_start(conn *c, const dialect *d) {
    server *s = c->srv;
    gen *g = s->gens_free;
    if (g) {
        s->gens_free = g->next;
    } else if ((g = hd_calloc(1, sizeof *g))) {
        g->srv = s; /* never written again: a late notify may read it */
    } else {
        serve_error e = {0};
        serve_fail(&e, 503, "out_of_memory", NULL, "no memory for the request");
        http_reply_error(c, &e);
        return;
    }
    g->phase = GEN_PLANNING;
    g->conn = c;
    g->d = d;
    g->key = c->key;
    g->created = hd_wall_seconds();
    g->t_start_us = server_now_us();
    g->t_begin_us = c->t_begin_us;
    g->trace_order = TRACE_FIRST + s->n_started++ % TRACE_FIRST;
    g->event_no = 0;
    g->n_done = g->n_submitted = 0;
    g->collecting = g->held = g->ending = false;
    g->warning[0] = 0;
    g->id[0] = 0;
    memset(&g->error, 0, sizeof g->error);
    memset(&g->plan, 0, sizeof g->plan);
    atomic_store_explicit(&g->cancelled, 0, memory_order_relaxed);
    buf_init(&g->reply, GEN_MAX_REPLY_BYTES);
    buf_init(&g->frame_head, 4096);
    buf_init(&g->frame_tail, 4096);
    if (d->id_prefix) {
        size_t n = strlen(d->id_prefix);
        memcpy(g->id, d->id_prefix, n);
        server_random_id(g->id + n, 24);
    }
    http_take_body(c, &g->body, &g->body_counted);
    gen_trace(g, "read", g->t_begin_us, "bytes", g->body.len);
    link_gen(g);
    s->n_planning++;
    c->gen = g;
    if (!planner_push(s->planner, g)) {
        serve_error e = {0};
        serve_fail(&e, 429, "queue_full", NULL, "%u requests are waiting to be read already", s->opt.max_planning);
        e.retry_after_s = 1;
        e.waiting = e.max_queued = s->opt.max_planning;
        c->gen = NULL;
        g->id[0] = 0;
        release(g);
        http_reply_error(c, &e);
    }
}

/* ---- planner thread ---- */

static void notify(void *ctx) {
    gen *g = ctx;
    server *s = g->srv;
    bool first = false;
    pthread_mutex_lock(&s->mu);
    if (!g->ready) {
        g->ready = true;
        g->ready_next = NULL;
        first = !s->ready_head;
        if (s->ready_tail) s->ready_tail->ready_next = g;
        else s->ready_head = g;
        s->ready_tail = g;
    }
    pthread_mutex_unlock(&s->mu);
    if (first) server_wake(s);
}

static void submit_error(gen *g, serve_error *e, hd_status st, const hd_err *err) {
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

/* One id to the world; the engine's own are told apart by a suffix that state.c cuts off again. */
static void fill_request(gen *g, uint32_t i, char id[64], gen_request *r) {
    const gen_params *p = &g->plan;
    const gen_prompt *prompt = &g->prompts[g->choices[i].prompt];
    if (g->n_choices == 1) snprintf(id, 64, "%s", g->id);
    else snprintf(id, 64, "%.50s#%u", g->id, i);
    *r = (gen_request){.id = id,
                       .method = p->method,
                       .method_arg = p->method_arg,
                       .priority = p->priority,
                       .share = p->share,
                       .cache_space = p->space,
                       .no_cache = p->no_cache,
                       .prompt = prompt->ids.ids,
                       .n_prompt = prompt->ids.n,
                       .max_tokens = p->max_tokens,
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
}

/* Submit the next n choices together, or none of them. */
static hd_status submit_next(gen *g, uint32_t n, hd_err *err) {
    gen_request *reqs = hd_calloc(n, sizeof *reqs);
    session **out = hd_calloc(n, sizeof *out);
    void **ctx = hd_calloc(n, sizeof *ctx);
    char(*ids)[64] = hd_calloc(n, sizeof *ids);
    hd_status st = HD_NOMEM;
    if (!reqs || !out || !ctx || !ids) goto done;
    for (uint32_t i = 0; i < n; i++) {
        fill_request(g, g->n_submitted + i, ids[i], &reqs[i]);
        ctx[i] = g;
    }
    if ((st = engine_submit(g->srv->eng, reqs, n, notify, ctx, out, err))) goto done;
    for (uint32_t i = 0; i < n; i++) g->choices[g->n_submitted++].s = out[i];
done:
    hd_free(reqs);
    hd_free(out);
    hd_free(ctx);
    hd_free(ids);
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
    if (!prompts_fit(g)) return;
    if (!(g->choices = hd_calloc(n, sizeof *g->choices))) {
        serve_fail(&g->error, 503, "out_of_memory", NULL, "no memory for the request");
        return;
    }
    g->n_choices = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        choice *ch = &g->choices[i];
        ch->index = i;
        ch->prompt = i / p->n;
        ch->stop_index = -1;
        buf_init(&ch->text, TEXT_MAX);
        for (int j = 0; j < N_PIECES; j++) buf_init(&ch->pieces[j], PIECE_MAX);
        detok_init(&ch->dt, s->info->tok, p->score_prompt);
    }
    k = p->method && n > window(g) ? window(g) : (uint32_t)n;
    while ((st = submit_next(g, k, &err)) == HD_FULL && p->method && k > 1) k /= 2; /* the others follow */
    if (st) submit_error(g, &g->error, st, &err);
}

/* ---- loop thread ---- */

static bool streams(const gen *g) { return g->plan.stream; }

static void cancel_sessions(gen *g, cancel_reason why) {
    if (!g->ending) g->ending_why = why;
    g->ending = true; /* no longer held back: the end is read at once */
    for (uint32_t i = 0; i < g->n_submitted; i++)
        if (!g->choices[i].done) session_cancel(g->choices[i].s, why);
}

/* The first reason stands, here as in a session. */
static void cancel_planning(gen *g, cancel_reason why) {
    int none = CANCEL_NONE;
    atomic_compare_exchange_strong_explicit(&g->cancelled, &none, (int)why, memory_order_relaxed, memory_order_relaxed);
}

static void cancel_gen(gen *g, cancel_reason why) {
    if (g->phase == GEN_PLANNING) cancel_planning(g, why);
    else cancel_sessions(g, why);
}

void gen_abandon(gen *g) {
    g->conn = NULL;
    if (g->phase == GEN_PLANNING) {
        cancel_planning(g, CANCEL_CLIENT_DISCONNECTED);
        if (planner_remove(g->srv->planner, g)) release(g);
        return; /* otherwise gen_planned ends it */
    }
    cancel_sessions(g, CANCEL_CLIENT_DISCONNECTED);
    release(g);
}

/* Reply with an error, as the state of the reply allows, and end. */
static void fail(gen *g, const serve_error *e) {
    conn *c = g->conn;
    bool streaming = c->streaming;
    cancel_sessions(g, CANCEL_FAILED);
    c->gen = NULL;
    if (streaming) {
        hd_buf *out = &g->srv->scratch;
        buf_clear(out);
        sse_open_plain(out);
        serve_error_json(out, e);
        sse_close(out);
        http_stream_write(c, buf_cstr(out), out->len);
        release(g);
        http_stream_end(c, true);
    } else {
        release(g);
        http_reply_error(c, e);
    }
}

static uint64_t generated(const gen *g) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_choices; i++) n += g->choices[i].stats.generated_tokens;
    return n;
}

static void cancel_error(serve_error *e, cancel_reason why) {
    switch (why) {
    case CANCEL_BY_REQUEST: serve_fail(e, 499, cancel_reason_name(why), NULL, "the generation was cancelled"); break;
    case CANCEL_DEADLINE_QUEUE:
    case CANCEL_DEADLINE_FIRST_TOKEN:
    case CANCEL_DEADLINE_TOTAL:
    case CANCEL_IDLE_TIMEOUT:
        serve_fail(e, 504, cancel_reason_name(why), NULL, "the generation ran into a deadline (%s)",
                   cancel_reason_name(why));
        break;
    case CANCEL_SHUTDOWN:
    case CANCEL_ENGINE_CLOSED:
        serve_fail(e, 503, cancel_reason_name(why), NULL, "the server is shutting down");
        break;
    default: serve_fail(e, 500, "internal_error", NULL, "the generation ended: %s", cancel_reason_name(why));
    }
}

/* Move entries whose text is out (or, at the end, all that were not withheld) into the dialect's pieces. */
static void flush_entries(gen *g, choice *ch, bool all) {
    size_t i = 0;
    while (i < ch->n_pending && (all || ch->pending[i].start < ch->text_bytes)) g->d->entry(g, ch, &ch->pending[i++]);
    if (!i) return; /* pending may be NULL */
    memmove(ch->pending, ch->pending + i, (ch->n_pending - i) * sizeof *ch->pending);
    ch->n_pending -= i;
}

static uint64_t count_chars(const char *s, size_t n) {
    uint64_t c = 0;
    for (size_t i = 0; i < n; i++) c += ((unsigned char)s[i] & 0xC0) != 0x80;
    return c;
}

/* Text of this choice for the client. */
static void emit_text(gen *g, choice *ch, const char *text, size_t n, hd_buf *out) {
    ch->text_bytes += n;
    flush_entries(g, ch, false);
    if (streams(g)) g->d->delta(g, ch, text, n, out);
    else buf_add(&ch->text, text, n);
}

/* A token is known: remember its entry and what text it stands for.  Only when the client wants to see tokens. */
static bool note_token(gen *g, choice *ch, const sample_result *r, bool first, hd_buf *text) {
    token_entry *t;
    if (!hd_grow(&ch->pending, &ch->cap_pending, ch->n_pending + 1, sizeof *ch->pending, GEN_MAX_PENDING)) return false;
    t = &ch->pending[ch->n_pending++];
    t->sample = *r;
    t->start = ch->seen_bytes;
    t->chars = ch->seen_chars;
    t->first = first;
    buf_clear(text);
    detok_push(&ch->dt, g->srv->info->tok, r->id, g->plan.special, text);
    ch->seen_bytes += text->len;
    ch->seen_chars += count_chars(buf_cstr(text), text->len);
    return true;
}

/* A prompt token to echo with its score. */
static void echo_token(gen *g, choice *ch, const sample_result *r, bool first, hd_buf *out) {
    hd_buf text;
    buf_init(&text, 1 << 20);
    if (!note_token(g, ch, r, first, &text)) {
        flush_entries(g, ch, true);
        note_token(g, ch, r, first, &text);
    }
    if (text.len) emit_text(g, ch, buf_cstr(&text), text.len, out);
    buf_deinit(&text);
}

/* The prompt is over, the answer begins: an unfinished character of the prompt does not reach into it. */
static void echo_end(gen *g, choice *ch, hd_buf *out) {
    hd_buf text;
    if (ch->echo_over) return;
    ch->echo_over = true;
    buf_init(&text, 64);
    detok_finish(&ch->dt, &text);
    ch->seen_bytes += text.len;
    ch->seen_chars += count_chars(buf_cstr(&text), text.len);
    if (text.len) emit_text(g, ch, buf_cstr(&text), text.len, out);
    flush_entries(g, ch, true);
    buf_deinit(&text);
}

static void collect_one(gen *g, choice *ch) {
    if (streams(g)) return;
    ch->collected++;
    g->srv->collected_tokens++;
}

static void take_token(gen *g, choice *ch, const gen_event *ev, hd_buf *out) {
    collect_one(g, ch);
    if (g->plan.return_token_ids) buf_fmt(&ch->pieces[PIECE_IDS], "%s%d", ch->pieces[PIECE_IDS].len ? "," : "", ev->sample.id);
    if (g->plan.logprobs) {
        hd_buf text;
        buf_init(&text, 1 << 20);
        if (!note_token(g, ch, &ev->sample, false, &text)) {
            /* Too many tokens without text: show them now, with an empty delta. */
            flush_entries(g, ch, true);
            if (streams(g)) g->d->delta(g, ch, "", 0, out);
            note_token(g, ch, &ev->sample, false, &text);
        }
        buf_deinit(&text);
    }
    if (ev->n_text) emit_text(g, ch, ev->text, ev->n_text, out);
}

/* One choice has ended: others may still wait to be the engine's.  A full queue is no error while some of them are. */
static void submit_more(gen *g, serve_error *e) {
    while (g->n_submitted < g->n_choices && g->n_submitted - g->n_done < window(g)) {
        hd_err err = {0};
        hd_status st;
        if (g->ending) {
            cancel_error(e, g->ending_why);
            return;
        }
        st = submit_next(g, 1, &err);
        if (st == HD_FULL && g->n_submitted > g->n_done) return;
        if (st) {
            submit_error(g, e, st, &err);
            return;
        }
    }
}

/* False: the whole request failed (e is filled). */
static bool take_event(gen *g, choice *ch, const gen_event *ev, hd_buf *out, serve_error *e) {
    switch (ev->kind) {
    case EV_PROMPT:
        collect_one(g, ch);
        echo_token(g, ch, &ev->sample, false, out);
        break;
    case EV_TOKEN:
        if (g->plan.score_prompt) echo_end(g, ch, out);
        take_token(g, ch, ev, out);
        break;
    case EV_TEXT: emit_text(g, ch, ev->text, ev->n_text, out); break;
    case EV_DONE:
        if (g->plan.score_prompt && !ev->stats.generated_tokens) echo_end(g, ch, out);
        ch->done = true;
        ch->finish = ev->finish;
        ch->stop_index = ev->stop_index;
        ch->ended_by_eos = ev->ended_by_eos;
        ch->stats = ev->stats;
        g->n_done++;
        metrics_generation(g->srv->met, g, ch);
        if (ev->finish == FINISH_FAILED) {
            serve_fail(e, 500, "internal_error", NULL, "the generation failed: %s", ev->err.msg);
        } else if (ev->finish == FINISH_CANCELLED) {
            cancel_error(e, ev->reason);
        } else {
            /* Entries that remain were withheld by the stop string; otherwise they belong to the reply. */
            if (ev->stop_index < 0) flush_entries(g, ch, true);
            else flush_entries(g, ch, false), ch->n_pending = 0;
            if (streams(g)) g->d->finish(g, ch, out);
            submit_more(g, e);
        }
        break;
    case EV_VECTOR: buf_add(&ch->text, (const char *)ev->vector, ev->n_vector * sizeof *ev->vector); break;
    case EV_LOGITS:
    case EV_NONE: break;
    }
    return !e->status;
}

static bool text_failed(const choice *ch) {
    if (ch->text.failed) return true;
    for (int i = 0; i < N_PIECES; i++)
        if (ch->pieces[i].failed) return true;
    return false;
}

/* The bound on collected tokens: may this one go on? */
static bool may_collect(gen *g) {
    server *s = g->srv;
    gen *oldest;
    if (streams(g) || g->ending || s->collected_tokens < s->opt.collect_tokens) return true;
    for (oldest = s->gens; oldest && !oldest->collecting; oldest = oldest->next) {}
    return oldest == g;
}

/* All choices are done: the last bytes. */
static void settle(gen *g, hd_buf *out) {
    conn *c = g->conn;
    server *s = g->srv;
    char extra[300] = "";
    metrics_request(s->met, g, server_now_us() - g->t_start_us);
    c->gen = NULL;
    if (streams(g)) {
        g->d->end(g, out);
        http_stream_write(c, buf_cstr(out), out->len);
        release(g);
        http_stream_end(c, false);
        return;
    }
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (text_failed(&g->choices[i])) {
            serve_error e = {0};
            serve_fail(&e, 500, "reply_too_large", NULL, "the reply is larger than the server can hold; stream it");
            fail(g, &e);
            return;
        }
    if (g->warning[0]) snprintf(extra, sizeof extra, "x-heddle-warning: %s\r\n", g->warning);
    g->d->reply(g, &g->reply);
    if (g->reply.failed) {
        serve_error e = {0};
        serve_fail(&e, 500, "reply_too_large", NULL, "the reply is larger than the server can hold; stream it");
        release(g);
        http_reply_error(c, &e);
        return;
    }
    http_reply(c, 200, "application/json", extra, buf_cstr(&g->reply), g->reply.len);
    release(g);
}

static void drain(gen *g, unsigned budget) {
    server *s = g->srv;
    hd_buf *out = &s->scratch;
    serve_error e = {0};
    bool progress = true, blocked = false;
    if (g->phase != GEN_ACTIVE || !g->conn || g->conn->dead) return;
    buf_clear(out);
    while (progress && budget && !e.status) {
        progress = false;
        for (uint32_t i = 0; i < g->n_submitted && budget && !e.status; i++) {
            choice *ch = &g->choices[i];
            gen_event ev;
            if (ch->done) continue;
            if (streams(g) && http_unsent(g->conn) + out->len >= HTTP_OUTPUT_MARK) {
                blocked = true;
                break;
            }
            session_next(ch->s, &ev);
            if (ev.kind == EV_NONE) continue;
            progress = true;
            budget--;
            take_event(g, ch, &ev, out, &e);
        }
        if (blocked) break;
        if (!may_collect(g)) {
            g->held = true;
            break;
        }
    }
    if (out->failed) serve_fail(&e, 500, "internal_error", NULL, "no memory for the reply");
    if (streams(g) && out->len) {
        http_stream_write(g->conn, buf_cstr(out), out->len);
        g->t_last_write_us = server_now_us();
        buf_clear(out);
    }
    if (e.status) {
        e.has_generated = true;
        e.generated_tokens = generated(g);
        fail(g, &e);
    } else if (g->n_done == g->n_choices) {
        settle(g, out);
    } else if (!budget && !g->held) {
        notify(g); /* more waits: after the others */
    }
}

void gen_drain(gen *g) {
    if (g->phase == GEN_ACTIVE && g->held && may_collect(g)) g->held = false;
    if (g->phase != GEN_ACTIVE || g->held) return;
    drain(g, DRAIN_EVENTS);
}

void gen_resume(gen *g) {
    if (g->phase == GEN_ACTIVE && streams(g)) drain(g, DRAIN_EVENTS);
}

static void arm(gen *g, uint64_t us) {
    struct timeval tv = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
    evtimer_add(g->timer, &tv);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    gen *g = arg;
    server *s = g->srv;
    (void)fd, (void)what;
    if (g->phase != GEN_ACTIVE || !g->conn) return;
    if (!streams(g)) {
        arm(g, HELD_READ_US);
        if (may_collect(g)) g->held = false;
        drain(g, g->held ? 1 : DRAIN_EVENTS);
        return;
    }
    {
        uint64_t now = server_now_us(), silent = now - g->t_last_write_us;
        if (silent + 1000 >= s->opt.comment_us) {
            uint32_t done = 0, total = 0, i = 0;
            bool queued = false;
            hd_buf *out = &s->scratch;
            while (i + 1 < g->n_choices && g->choices[i].done) i++;
            session_progress(g->choices[i].s, &done, &total, &queued);
            buf_clear(out);
            if (queued) sse_comment(out, "queued");
            else if (done < total) sse_comment(out, "prefill %u/%u", done, total);
            else sse_comment(out, "ping");
            if (http_unsent(g->conn) < HTTP_OUTPUT_MARK) http_stream_write(g->conn, buf_cstr(out), out->len);
            g->t_last_write_us = now;
            silent = 0;
        }
        arm(g, s->opt.comment_us - silent);
    }
}

/* Echo of prompts in front of the answers. */
static void start_echo(gen *g, hd_buf *out) {
    for (uint32_t i = 0; i < g->n_choices; i++) {
        choice *ch = &g->choices[i];
        const gen_prompt *p = &g->prompts[ch->prompt];
        if (g->plan.score_prompt) {
            sample_result first = {.id = p->ids.ids[0]};
            echo_token(g, ch, &first, true, out);
        } else if (g->plan.echo && p->n_echo) {
            ch->seen_bytes = p->n_echo;
            ch->seen_chars = count_chars(p->echo, p->n_echo);
            emit_text(g, ch, p->echo, p->n_echo, out);
            if (!streams(g)) ch->collected = (uint32_t)p->ids.n, g->srv->collected_tokens += p->ids.n;
        }
    }
}

void gen_planned(gen *g) {
    server *s = g->srv;
    conn *c = g->conn;
    hd_buf *out = &s->scratch;
    int why = atomic_load_explicit(&g->cancelled, memory_order_relaxed);
    buf_deinit(&g->body);
    s->body_bytes -= g->body_counted;
    g->body_counted = 0;
    s->n_planning--;
    g->phase = GEN_ACTIVE;
    if (!c) {
        cancel_sessions(g, CANCEL_CLIENT_DISCONNECTED);
        release(g);
        return;
    }
    if (why && !g->error.status) {
        cancel_sessions(g, (cancel_reason)why);
        cancel_error(&g->error, (cancel_reason)why);
    }
    if (g->error.status) {
        serve_error e = g->error;
        c->gen = NULL;
        release(g);
        http_reply_error(c, &e);
        return;
    }
    if (!g->n_choices) { /* tokenize and its kin */
        c->gen = NULL;
        http_reply(c, 200, "application/json", NULL, buf_cstr(&g->reply), g->reply.len);
        release(g);
        return;
    }
    if (!(g->timer = evtimer_new(s->base, on_timer, g))) {
        serve_error e = {0};
        serve_fail(&e, 503, "out_of_memory", NULL, "no memory for the request");
        fail(g, &e);
        return;
    }
    buf_clear(out);
    if (streams(g)) {
        char extra[400];
        snprintf(extra, sizeof extra, "%s%s%s%s", SSE_HEADERS, g->warning[0] ? "x-heddle-warning: " : "", g->warning,
                 g->warning[0] ? "\r\n" : "");
        http_stream_begin(c, 200, SSE_TYPE, extra);
        g->d->start(g, out);
        start_echo(g, out);
        if (out->failed) {
            serve_error e = {0};
            serve_fail(&e, 500, "reply_too_large", NULL, "no memory for the echo of the prompts");
            fail(g, &e);
            return;
        }
        http_stream_write(c, buf_cstr(out), out->len);
        g->t_last_write_us = server_now_us();
        arm(g, s->opt.comment_us);
    } else {
        g->collecting = true;
        start_echo(g, out);
        arm(g, HELD_READ_US);
    }
    gen_drain(g);
}

int gen_cancel_id(server *s, const char *id, cancel_reason why) {
    for (gen *g = s->gens; g; g = g->next) {
        if (strcmp(g->id, id) != 0) continue;
        cancel_gen(g, why);
        return 1;
    }
    for (size_t i = 0; i < RECENT_IDS; i++)
        if (!strcmp(s->recent[i], id)) return 0;
    return -1;
}

/* Forced ids alone can be refused: all choices have room for them, or nothing changes.  Room only grows meanwhile, as
 * nobody else forces. */
static hd_status steer(gen *g, const gen_steering *how, hd_err *err) {
    hd_status st;
    for (uint32_t i = 0; how->n_force && i < g->n_submitted; i++)
        if (!g->choices[i].done && session_force_room(g->choices[i].s) < how->n_force)
            return hd_fail_field(err, HD_FULL, "ids", "choice %u has forced tokens waiting, and no room for %zu more", i,
                                 how->n_force);
    for (uint32_t i = 0; how->n_force && i < g->n_submitted; i++)
        if (!g->choices[i].done && (st = session_force(g->choices[i].s, how->force, how->n_force, err))) return st;
    if (how->has_priority) g->plan.priority = how->priority; /* also of the choices still to come */
    for (uint32_t i = 0; i < g->n_submitted; i++) {
        session *ss = g->choices[i].s;
        if (g->choices[i].done) continue;
        if (how->has_priority) session_set_priority(ss, how->priority);
        if (how->has_max_tokens) session_raise_cap(ss, how->max_tokens);
        if (how->stop) session_stop(ss);
    }
    return HD_OK;
}

int gen_steer_id(server *s, const char *id, const gen_steering *how, hd_status *st, hd_err *err) {
    *st = HD_OK;
    for (gen *g = s->gens; g; g = g->next) {
        if (strcmp(g->id, id) != 0) continue;
        if (g->phase == GEN_PLANNING || g->ending) return 0;
        *st = steer(g, how, err);
        return 1;
    }
    for (size_t i = 0; i < RECENT_IDS; i++)
        if (!strcmp(s->recent[i], id)) return 0;
    return -1;
}

void gen_cancel_all(server *s, cancel_reason why) {
    for (gen *g = s->gens; g; g = g->next) {
        cancel_gen(g, why);
    }
}

void gen_free_all(server *s) {
    while (s->gens) release(s->gens);
    while (s->gens_free) {
        gen *g = s->gens_free;
        s->gens_free = g->next;
        hd_free(g);
    }
}

void gen_usage(const gen *g, uint64_t *prompt, uint64_t *cached, uint64_t *completion) {
    *prompt = *cached = *completion = 0;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const choice *ch = &g->choices[i];
        *completion += ch->stats.generated_tokens;
        if (i % g->plan.n) continue; /* a prompt counts once, however many answers it has */
        *prompt += g->prompts[ch->prompt].ids.n;
        *cached += ch->stats.cached_tokens;
    }
}
