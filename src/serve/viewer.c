/* viewer.c - see viewer.h. */
#include "serve/viewer.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/durable.h"
#include "serve/record.h"
#include "serve/runner.h"
#include "serve/stored.h"

#include <stdio.h>
#include <string.h>

enum {
    ASK_AGAIN_US = 20000, /* the request runs, but its runner is not here yet, or not any more */
    ASK_TIMES = 250,
    END_PATIENCE_US = 5000000,
};

static bool events_lost(serve_error *e) {
    return serve_fail(e, 410, "events_lost", NULL, "the request lost durability, and its first events are gone");
}

/* What the log answered where events or an end must be. */
static bool cannot_read(serve_error *e, hd_status st) {
    switch (st) {
    case HD_OK: return events_lost(e);
    case HD_NOTFOUND: return serve_fail(e, 410, "events_lost", NULL, "the stored response is gone: it was deleted, or its time was over");
    case HD_FAILED: return serve_fail(e, 410, "events_lost", NULL, "the stored response is damaged");
    default: return serve_fail(e, 503, "log_failed", NULL, "the request log cannot be read");
    }
}

/* Chunks that were read to their end, of choices that have ended perhaps. */
static void drop_chunks(gen *g) {
    for (uint32_t i = 0; i < g->n_choices; i++) {
        view_place *p = &g->choices[i].at;
        if (!p->chunk.data || p->chunk_at < p->chunk.len) continue;
        buf_deinit(&p->chunk);
        p->chunk_at = 0;
    }
}

static void ask(gen *g, log_kind kind, uint32_t i, uint64_t delay_us, serve_error *e) {
    log_job *j = log_job_new(kind);
    drop_chunks(g);
    if (!j) {
        serve_fail(e, 503, "out_of_memory", NULL, "no memory to read the request log");
        return;
    }
    j->g = g;
    j->serial = g->view.serial;
    j->order = g->view.order;
    j->choice = i;
    j->from = g->choices[i].at.next;
    j->t_due_us = delay_us ? server_now_us() + delay_us : 0;
    snprintf(j->id, sizeof j->id, "%s", g->id);
    g->view.reading = true;
    durable_ask(g->srv->dur, j);
}

/* ---- coming and going ---- */

/* Its place is known: begin the reply. */
static void begin(gen *g) {
    runner *r = g->view.r;
    bool running = r ? !r->over : g->view.state == JOURNAL_RUNNING;
    if (running && !gen_streams(g) && (g->background || g->kind == GEN_GET)) {
        stored_status(g);
        return;
    }
    gen_begin_reply(g);
}

static void find_place(gen *g) {
    runner *r = runner_find(g->srv, g->view.order);
    serve_error e = {0};
    if (r) {
        runner_view(r, g);
        begin(g);
    } else if (g->view.state != JOURNAL_RUNNING) {
        begin(g);
    } else if (g->view.tries++ == ASK_TIMES) { /* its end could not be written */
        events_lost(&e);
    } else {
        ask(g, LOG_FIND, 0, g->view.tries > 1 ? ASK_AGAIN_US : 0, &e);
    }
    if (e.status) gen_fail(g, &e);
}

void viewer_attach(gen *g) {
    serve_error e = {0};
    if (g->view.how == VIEW_NEW) {
        runner *r = g->view.r;
        g->view.r = NULL;
        runner_view(r, g);
        begin(g);
        return;
    }
    memcpy(g->id, g->view.id, sizeof g->id);
    if (!g->d->frames(g, &e)) gen_fail(g, &e);
    else find_place(g);
}

void viewer_detach(gen *g) {
    if (g->view.r && !g->view.r->adopted) runner_free(g->view.r); /* at close: the loop never got it */
    else if (g->view.r) runner_unview(g->view.r, g);
    runner_free(g->view.discard);
    g->view.r = g->view.discard = NULL;
    g->view.how = VIEW_NONE;
}

/* ---- events ---- */

/* Whose turn it is; false: all have ended. */
static bool whose_turn(gen *g, uint32_t *i) {
    uint32_t at = g->view.turn;
    while (at < g->n_choices) {
        uint32_t first = at - at % VIEW_BLOCK, end = first + VIEW_BLOCK < g->n_choices ? first + VIEW_BLOCK : g->n_choices;
        for (uint32_t k = 0; k < end - first; k++) {
            uint32_t c = first + (at - first + k) % (end - first);
            if (g->choices[c].done) continue;
            g->view.turn = *i = c;
            return true;
        }
        at = end;
    }
    return false;
}

static void turn_over(gen *g, uint32_t i) {
    uint32_t first = i - i % VIEW_BLOCK, next = i + 1;
    g->view.turn = next < g->n_choices && next < first + VIEW_BLOCK ? next : first;
}

static bool from_chunk(view_place *p, gen_event *ev, serve_error *e) {
    journal_event je;
    size_t n = event_unpack(p->chunk.data + p->chunk_at, p->chunk.len - p->chunk_at, &je);
    if (!n || !event_read(&je, ev)) return serve_fail(e, 410, "events_lost", NULL, "a stored event cannot be read");
    p->chunk_at += n;
    p->tail_known = false;
    return true;
}

static bool from_tail(runner *r, uint32_t i, view_place *p, gen_event *ev, serve_error *e) {
    journal_event je;
    size_t n;
    const char *at = runner_event(r, i, p, &n);
    event_unpack(at, n, &je);
    return event_read(&je, ev) || serve_fail(e, 500, "internal_error", NULL, "an event cannot be read");
}

/* There is no event `next` of a choice that has not ended: live, it comes; else the request ended early. */
static void at_end(const gen *g, serve_error *e) {
    const runner *r = g->view.r;
    if (r && r->over && viewer_may_end(g)) *e = r->error;
    else if (r) return;
    else if (g->view.has_end && g->view.end.status) *e = g->view.end;
    else events_lost(e);
}

bool viewer_next(gen *g, uint32_t *i, gen_event *ev, serve_error *e) {
    runner *r = g->view.r;
    view_place *p;
    bool got;
    if (g->view.reading || !whose_turn(g, i)) return false;
    p = &g->choices[*i].at;
    if (p->chunk_at < p->chunk.len) {
        got = from_chunk(p, ev, e);
    } else if (r && p->next >= r->ch[*i].tail_first) {
        if (p->next >= r->ch[*i].n_events) {
            at_end(g, e);
            return false;
        }
        got = from_tail(r, *i, p, ev, e);
    } else {
        ask(g, LOG_READ, *i, 0, e);
        return false;
    }
    if (!got) return false;
    p->next++;
    turn_over(g, *i);
    if (r && r->lost && !r->over) server_notify(&r->w); /* its row may wait for us */
    return true;
}

void viewer_answer(gen *g, log_job *j) {
    view_place *p = &g->choices[j->choice].at;
    serve_error e = {0};
    g->view.reading = false;
    if (j->events.len) {
        buf_deinit(&p->chunk);
        p->chunk = j->events;
        p->chunk_at = 0;
        buf_init(&j->events, 0);
        gen_drain(g);
        return;
    }
    if (j->kind == LOG_FIND && !j->status) {
        g->view.state = j->state;
        g->view.lost = j->lost;
        g->view.end = j->end;
        g->view.has_end = j->has_end;
        find_place(g);
        return;
    }
    /* Nothing came where something must be: it was lost, deleted or damaged - or it ended early, and this is its end. */
    if (j->kind == LOG_READ && !j->status && !g->view.r && j->state != JOURNAL_RUNNING) {
        g->view.lost = j->lost;
        g->view.end = j->end;
        g->view.has_end = j->has_end;
        at_end(g, &e);
    } else {
        cannot_read(&e, j->status);
    }
    gen_fail(g, &e);
}

void viewer_progress(const gen *g, uint32_t *done, uint32_t *total, bool *queued) {
    uint32_t i = g->view.turn < g->n_choices ? g->view.turn : 0;
    const runner *r = g->view.r;
    if (r && r->ch[i].s && !r->ch[i].n_events) session_progress(r->ch[i].s, done, total, queued);
}

bool viewer_lost(const gen *g) { return g->view.how && (g->view.lost || (g->view.r && g->view.r->lost)); }

bool viewer_may_end(const gen *g) {
    const runner *r = g->view.r;
    return !r || (r->over && (r->flushed || server_now_us() - r->t_over_us >= END_PATIENCE_US));
}
