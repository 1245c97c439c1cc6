/* gen.c - life of a gen, what planners give back, cancelling, steering.  See gen.h.
 *
 * Read: gen_start, gen_planned, then gen_submit.c and gen_flow.c. */
#include "serve/gen.h"

#include "base/mem.h"
#include "serve/bounds.h"
#include "serve/durable.h"
#include "serve/planner.h"
#include "serve/runner.h"
#include "serve/stored.h"

#include <stdio.h>
#include <string.h>

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
    id_list_deinit(&ch->ids);
    for (int i = 0; i < N_PIECES; i++) buf_deinit(&ch->pieces[i]);
    hd_free(ch->pending);
    buf_deinit(&ch->at.chunk);
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

void gen_clear_plan(gen *g) {
    bounds_request_end(g);
    for (uint32_t i = 0; i < g->n_choices; i++) choice_deinit(&g->choices[i]);
    hd_free(g->choices);
    g->choices = NULL;
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        id_list_deinit(&g->prompts[i].ids);
        hd_free(g->prompts[i].echo);
    }
    hd_free(g->prompts);
    g->prompts = NULL;
    g->n_choices = g->n_prompts = g->n_submitted = 0;
    gen_params_deinit(&g->plan);
    journal_entry_free(g->source);
    g->source = NULL;
    hd_free(g->model_name);
    g->model_name = NULL;
    g->warning[0] = 0;
    g->fingerprint[0] = 0;
    g->not_kept = NULL;
    g->has_big_seed = g->readmit = g->background = false;
    g->accepted_us = 0;
    g->ctx = 0;
    g->after = g->n_before = 0;
    buf_deinit(&g->turn);
    buf_clear(&g->frame_head);
    buf_clear(&g->frame_tail);
}

/* Back to the pool.  The planner is not working on it. */
void gen_release(gen *g) {
    static const struct timeval at_once = {0, 0};
    server *s = g->srv;
    bool kept; /* in the log, which is asked then */
    if (g->phase == GEN_PLANNING) s->n_planning--;
    gen_trace(g, g->d->name, g->t_begin_us, "choices", g->n_choices);
    if (g->timer) event_free(g->timer);
    g->timer = NULL;
    for (uint32_t i = 0; i < g->n_choices; i++) s->collected_tokens -= g->choices[i].collected;
    kept = g->view.how != VIEW_NONE;
    viewer_detach(g);
    gen_clear_plan(g);
    bounds_collect_end(g);
    buf_deinit(&g->body);
    buf_deinit(&g->reply);
    buf_deinit(&g->idem_key);
    buf_deinit(&g->frame_head);
    buf_deinit(&g->frame_tail);
    s->body_bytes -= g->body_counted;
    g->body_counted = 0;
    g->view.serial++; /* late answers of the log are nobody's */
    if (g->id[0] && !kept) {
        recent_id *r = &s->recent[s->n_recent++ % RECENT_IDS];
        memcpy(r->id, g->id, sizeof r->id);
        r->key = g->key;
    }
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

static void wake(waker *w) { gen_drain((gen *)(void *)((char *)w - offsetof(gen, w))); }

/* A gen for c, its fields as at birth; NULL: c was answered. */
static gen *make(conn *c, const dialect *d, gen_kind kind) {
    server *s = c->srv;
    uint64_t serial;
    gen *g = s->gens_free;
    if (g) {
        s->gens_free = g->next;
    } else if ((g = hd_calloc(1, sizeof *g))) {
        g->srv = s; /* these are never written again: a late notify may read them */
        g->w.srv = s;
        g->w.wake = wake;
    } else {
        serve_error e = {0};
        serve_fail(&e, 503, "out_of_memory", NULL, "no memory for the request");
        http_reply_error(c, &e);
        return NULL;
    }
    g->phase = GEN_PLANNING;
    g->conn = c;
    g->d = d;
    g->kind = kind;
    g->key = c->key;
    g->created = hd_wall_seconds();
    g->t_start_us = server_now_us();
    g->t_begin_us = c->t_begin_us;
    g->trace_order = TRACE_FIRST + s->n_started++ % TRACE_FIRST;
    g->event_no = g->from = 0;
    g->n_done = g->n_submitted = 0;
    g->has_key = g->collecting = g->held = g->ending = g->has_from = g->want_stream = false;
    g->id[0] = g->want_id[0] = g->warning[0] = g->name[0] = 0;
    g->long_before = false;
    memset(&g->error, 0, sizeof g->error);
    memset(&g->plan, 0, sizeof g->plan);
    serial = g->view.serial;
    memset(&g->view, 0, sizeof g->view);
    g->view.serial = serial;
    atomic_store_explicit(&g->cancelled, 0, memory_order_relaxed);
    buf_init(&g->reply, s->opt.max_replies_bytes);
    buf_init(&g->idem_key, HTTPREQ_MAX_VALUE);
    buf_init(&g->turn, JOURNAL_REQUEST_BYTES);
    buf_init(&g->frame_head, 4096);
    buf_init(&g->frame_tail, 4096);
    return g;
}

/* To the planners, or 429. */
static void push(gen *g) {
    server *s = g->srv;
    conn *c = g->conn;
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
        gen_release(g);
        http_reply_error(c, &e);
    }
}

void gen_start(conn *c, const dialect *d) {
    gen *g = make(c, d, GEN_POST);
    serve_error e = {0};
    if (!g) return;
    if (d->id_prefix) {
        size_t n = strlen(d->id_prefix);
        memcpy(g->id, d->id_prefix, n);
        server_random_id(g->id + n, 24);
    }
    if (!durable_headers(g, &c->req, &e)) {
        link_gen(g);
        g->srv->n_planning++;
        g->id[0] = 0;
        gen_release(g);
        http_reply_error(c, &e);
        return;
    }
    push(g);
}

void gen_start_stored(conn *c, const dialect *d, gen_kind kind, const char *id) {
    gen *g = make(c, d, kind);
    serve_error e = {0};
    if (!g) return;
    snprintf(g->want_id, sizeof g->want_id, "%s", id); /* cut, it is still longer than an id or a name can be */
    if ((kind == GEN_GET || kind == GEN_NAMES) && !(stored_query(g, &c->req, &e) && durable_headers(g, &c->req, &e))) {
        link_gen(g);
        g->srv->n_planning++;
        gen_release(g);
        http_reply_error(c, &e);
        return;
    }
    push(g);
}

void gen_start_cancelled(conn *c, runner *r) {
    gen *g = make(c, r->d, GEN_CANCEL);
    if (!g) return;
    g->phase = GEN_ACTIVE;
    g->view.how = VIEW_STORED;
    memcpy(g->id, r->id, sizeof g->id);
    link_gen(g);
    c->gen = g;
    runner_view(r, g);
    if (gen_time(g, STORED_PATIENCE_US)) gen_drain(g);
    else stored_cancelled(g, true); /* without memory for a timer: not known to be on disk */
}

/* ---- loop thread ---- */

void gen_cancel_sessions(gen *g, cancel_reason why) {
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
    else gen_cancel_sessions(g, why);
}

void gen_abandon(gen *g) {
    g->conn = NULL;
    if (g->phase == GEN_PLANNING) {
        cancel_planning(g, CANCEL_CLIENT_DISCONNECTED);
        if (planner_remove(g->srv->planner, g)) gen_release(g);
        return; /* otherwise gen_planned ends it */
    }
    gen_cancel_sessions(g, CANCEL_CLIENT_DISCONNECTED); /* a viewer has none: what it watches goes on */
    gen_release(g);
}

/* The log has it: it lives on, whatever has become of its client. */
static void adopt(gen *g, int why) {
    runner_adopt(g->view.r);
    if (why && why != CANCEL_CLIENT_DISCONNECTED) runner_cancel(g->view.r, (cancel_reason)why);
}

void gen_planned(gen *g) {
    server *s = g->srv;
    conn *c = g->conn;
    int why = atomic_load_explicit(&g->cancelled, memory_order_relaxed);
    buf_deinit(&g->body);
    s->body_bytes -= g->body_counted;
    g->body_counted = 0;
    s->n_planning--;
    g->phase = GEN_ACTIVE;
    if (g->view.discard) {
        runner_discard(g->view.discard);
        g->view.discard = NULL;
    }
    if (g->view.how == VIEW_NEW) adopt(g, why);
    if (!c) {
        gen_cancel_sessions(g, CANCEL_CLIENT_DISCONNECTED);
        gen_release(g);
        return;
    }
    if (why && !g->error.status && !g->view.how) {
        gen_cancel_sessions(g, (cancel_reason)why);
        gen_cancel_error(&g->error, (cancel_reason)why);
    }
    if (g->error.status) {
        serve_error e = g->error;
        c->gen = NULL;
        gen_release(g);
        http_reply_error(c, &e);
        return;
    }
    if (g->view.how) viewer_attach(g);
    else gen_begin_reply(g);
}

/* 0: it is over.  -1: unknown, or somebody else's. */
static int in_recent(const server *s, size_t key, const char *id) {
    for (size_t i = 0; i < RECENT_IDS; i++)
        if (!strcmp(s->recent[i].id, id) && server_may(s, key, s->recent[i].key)) return 0;
    return -1;
}

static bool viewer(const gen *g) { return g->phase == GEN_ACTIVE && g->view.how; }

int gen_cancel_id(server *s, size_t key, const char *id, cancel_reason why) {
    runner *r = runner_find_id(s, id);
    if (r && !server_may(s, key, r->key)) return -1;
    if (r && r->over) return 0;
    if (r) {
        runner_cancel(r, why);
        return 1;
    }
    for (gen *g = s->gens; g; g = g->next) {
        if (strcmp(g->id, id) != 0 || viewer(g) || !server_may(s, key, g->key)) continue;
        cancel_gen(g, why);
        return 1;
    }
    return in_recent(s, key, id);
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

int gen_steer_id(server *s, size_t key, const char *id, const gen_steering *how, hd_status *st, hd_err *err) {
    runner *r = runner_find_id(s, id);
    *st = HD_OK;
    if (r && !server_may(s, key, r->key)) return -1;
    if (r) {
        if (r->over) return 0;
        if (how->stop || how->has_max_tokens || how->n_force) {
            *st = hd_fail(err, HD_UNSUPPORTED, "a durable request is not steered: what changes its tokens would be lost in a crash");
            return 1;
        }
        runner_set_priority(r, how->priority);
        return 1;
    }
    for (gen *g = s->gens; g; g = g->next) {
        if (strcmp(g->id, id) != 0 || viewer(g) || !server_may(s, key, g->key)) continue;
        if (g->phase == GEN_PLANNING || g->ending) return 0;
        *st = steer(g, how, err);
        return 1;
    }
    return in_recent(s, key, id);
}

void gen_cancel_all(server *s, cancel_reason why) {
    runner_cancel_all(s, why);
    for (gen *g = s->gens, *next; g; g = next) {
        next = g->next;
        if (viewer(g)) {
            serve_error e = {0};
            gen_cancel_error(&e, why);
            gen_fail(g, &e); /* what it watches is left to the next start, or is stored */
        } else {
            cancel_gen(g, why);
        }
    }
}

void gen_free_all(server *s) {
    while (s->gens) gen_release(s->gens);
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
