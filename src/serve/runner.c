/* runner.c - see runner.h.  Read: runner_drain, take, runner_end, the tail, the lists. */
#include "serve/runner.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/bounds.h"
#include "serve/durable.h"
#include "serve/metrics.h"
#include "serve/record.h"

#include <stdio.h>
#include <string.h>

enum { DRAIN_EVENTS = 256 }; /* taken in one turn before others get theirs */

static void runner_drain(runner *r);

static void wake(waker *w) { runner_drain((runner *)(void *)((char *)w - offsetof(runner, w))); }

runner *runner_new(server *s, const dialect *d, const char *id, uint32_t n_choices) {
    runner *r = hd_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->w.srv = r->srv = s;
    r->w.wake = wake;
    r->d = d;
    snprintf(r->id, sizeof r->id, "%s", id);
    if (!(r->ch = hd_calloc(n_choices, sizeof *r->ch)) || !(r->end_job = log_job_new(LOG_FLUSH))) {
        runner_free(r);
        return NULL;
    }
    r->end_job->r = r;
    r->n_choices = n_choices;
    for (uint32_t i = 0; i < n_choices; i++) {
        buf_init(&r->ch[i].tail, SIZE_MAX); /* bounded by trim_tail and tail_full */
        buf_init(&r->ch[i].let_go, JOURNAL_EVENT_BYTES);
    }
    return r;
}

static void free_sessions(runner *r) {
    bounds_runner_end(r);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        session_free(r->ch[i].s);
        r->ch[i].s = NULL;
    }
}

void runner_free(runner *r) {
    if (!r) return;
    free_sessions(r);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        hd_free(r->ch[i].known);
        buf_deinit(&r->ch[i].tail);
        buf_deinit(&r->ch[i].let_go);
    }
    hd_free(r->ch);
    log_job_free(r->end_job);
    hd_free(r);
}

/* ---- the tail ---- */

static size_t tail_bytes(const runner *r) {
    size_t n = TAIL_ALL_BYTES / r->n_choices;
    return n > TAIL_BYTES ? TAIL_BYTES : n < TAIL_LEAST_BYTES ? TAIL_LEAST_BYTES : n;
}

/* Events that somebody who watches a request without durability has not seen yet must stay; who is behind the tail already
 * depends on the log. */
static uint64_t must_keep(const runner *r, uint32_t i) {
    uint64_t least = r->ch[i].n_events;
    for (const gen *g = r->lost ? r->viewers : NULL; g; g = g->view.next)
        if (g->choices[i].at.next >= r->ch[i].tail_first && g->choices[i].at.next < least) least = g->choices[i].at.next;
    return least;
}

/* Drop the oldest down to tail_bytes once there is twice that. */
static void trim_tail(runner *r, uint32_t i) {
    runner_choice *ch = &r->ch[i];
    uint64_t keep;
    size_t at = 0;
    if (ch->tail.len < 2 * tail_bytes(r)) return;
    keep = must_keep(r, i);
    while (ch->tail_first < keep && ch->tail.len - at > tail_bytes(r)) {
        journal_event e;
        at += event_unpack(ch->tail.data + at, ch->tail.len - at, &e);
        ch->tail_first++;
    }
    buf_drop_front(&ch->tail, at);
    ch->tail_base += at;
}

static bool tail_full(const runner *r, uint32_t i) {
    const runner_choice *ch = &r->ch[i];
    return r->lost && r->viewers && ch->tail.len >= 2 * tail_bytes(r) && must_keep(r, i) <= ch->tail_first;
}

const char *runner_event(runner *r, uint32_t i, view_place *p, size_t *n) {
    runner_choice *ch = &r->ch[i];
    uint64_t pos = p->tail_pos;
    journal_event e;
    size_t at;
    if (p->next < ch->tail_first || p->next >= ch->n_events) return NULL;
    if (!p->tail_known || pos < ch->tail_base) { /* it came from the log: find the place once */
        pos = ch->tail_base;
        for (uint64_t k = ch->tail_first; k < p->next; k++) {
            at = (size_t)(pos - ch->tail_base);
            pos += event_unpack(ch->tail.data + at, ch->tail.len - at, &e);
        }
    }
    at = (size_t)(pos - ch->tail_base);
    *n = event_unpack(ch->tail.data + at, ch->tail.len - at, &e);
    HD_ASSERT(*n);
    p->tail_known = true;
    p->tail_pos = pos + *n;
    return ch->tail.data + at;
}

/* ---- events ---- */

static void tell_viewers(runner *r) {
    for (int i = 0; i < 2; i++)
        for (gen *g = i ? r->cancels : r->viewers, *next; g; g = next) {
            next = g->view.next;
            gen_drain(g);
        }
}

static void cancel_sessions(runner *r, cancel_reason why) {
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (!r->ch[i].done && r->ch[i].s) session_cancel(r->ch[i].s, why);
}

/* The first reason is the request's; the other choices need not go on. */
static void break_off(runner *r, int status, const char *code, const char *msg) {
    serve_fail(&r->error, status, code, NULL, "%s", msg);
    cancel_sessions(r, CANCEL_FAILED);
}

/* One more event of choice i, for the log and for whoever watches. */
static void publish(runner *r, uint32_t i, const journal_event *e) {
    runner_choice *ch = &r->ch[i];
    if (!r->lost && journal_append(durable_log(r->srv->dur), r->order, i, ch->n_events, e, 1, NULL)) r->lost = true; /* an ordinary one from here on; the log says why */
    if (!event_pack(&ch->tail, e)) { /* not even kept: nobody can be told of what follows */
        break_off(r, 500, "internal_error", "no memory for the events of a durable request");
        return;
    }
    ch->n_events++;
    trim_tail(r, i);
}

/* The next event of choice i: what an earlier life had of it is compared, the rest is published. */
static void add(runner *r, uint32_t i, const journal_event *e) {
    runner_choice *ch = &r->ch[i];
    if (ch->n_taken++ >= ch->n_logged) {
        publish(r, i, e);
    } else if (event_mark(e) != ch->known[ch->n_taken - 1]) {
        hd_log(HD_LOG_ERROR, "serve: request %s: event %llu of choice %u is not what it was before the restart", r->id,
               (unsigned long long)(ch->n_taken - 1), i);
        break_off(r, 410, "identity_changed", "computed again, the request gives other tokens than before; it is not continued");
    }
}

/* Half a character or the beginning of a stop string is released when a choice ends, cancelled ones included.  Of those it is
 * no event: the log must hold only what the generation would have given anyway, as a request that a shutdown cuts goes on
 * in the next life, and a cancel may be forgotten by a crash. */
static void add_let_go(runner *r, uint32_t i) {
    hd_buf *b = &r->ch[i].let_go;
    journal_event e;
    size_t n;
    for (size_t at = 0; at < b->len && !r->error.status; at += n) {
        n = event_unpack(b->data + at, b->len - at, &e);
        add(r, i, &e);
    }
    buf_clear(b);
}

static void take(runner *r, uint32_t i, const gen_event *ev) {
    runner_choice *ch = &r->ch[i];
    uint8_t extra[EVENT_EXTRA_MAX];
    journal_event e;
    bool ended = ev->kind == EV_DONE;
    if (ended) {
        ch->done = true;
        ch->finish = ev->finish;
        ch->stats = ev->stats;
        metrics_generation(r->srv->met, ev->finish, &ev->stats);
        if (ev->finish != FINISH_CANCELLED) add_let_go(r, i);
        if (ev->finish == FINISH_CANCELLED) {
            if (ev->reason == CANCEL_SHUTDOWN || ev->reason == CANCEL_ENGINE_CLOSED) r->left = true;
            gen_cancel_error(&r->error, ev->reason);
            cancel_sessions(r, ev->reason); /* the other choices are of no use now, but nothing failed */
        } else if (ev->finish == FINISH_FAILED) {
            serve_fail(&r->error, 500, "internal_error", NULL, "the generation failed: %s", ev->err.msg);
        }
        if (r->error.status) {
            cancel_sessions(r, CANCEL_FAILED);
            return;
        }
    }
    if (r->error.status) return; /* it ends anyway */
    event_write(ev, r->logprobs, extra, &e);
    if (ev->kind != EV_TEXT) add(r, i, &e);
    else if (!event_pack(&ch->let_go, &e)) break_off(r, 500, "internal_error", "no memory for the events of a durable request");
}

static void runner_end(runner *r) {
    durable *d = r->srv->dur;
    r->over = true;
    r->t_over_us = server_now_us();
    r->srv->n_running--;
    free_sessions(r);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        hd_free(r->ch[i].known);
        r->ch[i].known = NULL;
    }
    if (r->error.status) {
        r->error.has_generated = true;
        for (uint32_t i = 0; i < r->n_choices; i++) r->error.generated_tokens += r->ch[i].stats.generated_tokens;
    }
    if (r->left) { /* the next start goes on with it */
        r->flushed = true;
        return;
    }
    buf_clear(&r->srv->record);
    if (finish_write(&r->error, &r->srv->record))
        (void)journal_finish(durable_log(d), r->order,
                             !r->error.status                                                        ? JOURNAL_FINISHED
                             : r->error.code == cancel_reason_name(CANCEL_BY_REQUEST) ? JOURNAL_CANCELLED
                                                                                                     : JOURNAL_FAILED,
                             hd_wall_seconds(), r->srv->record.data, r->srv->record.len, NULL);
    durable_ask(d, r->end_job); /* the log's from here on */
    r->end_job = NULL;
}

/* Ended, on disk, and nobody watches: it goes. */
static void retire(runner *r) {
    server *s = r->srv;
    if (!r->adopted || !r->over || !r->flushed || r->viewers || r->cancels) return;
    if (r->prev) r->prev->next = r->next;
    else s->runners = r->next;
    if (r->next) r->next->prev = r->prev;
    else s->runners_last = r->prev;
    s->n_runners--;
    r->adopted = false;
    r->next = s->dead_runners;
    s->dead_runners = r;
    server_wake(s); /* to be reaped */
    server_check_drained(s);
}

static void runner_drain(runner *r) {
    unsigned budget = DRAIN_EVENTS;
    bool all = true;
    if (!r->adopted) return;
    for (uint32_t i = 0; i < r->n_choices && !r->over; i++) {
        runner_choice *ch = &r->ch[i];
        while (budget && ch->s && !ch->done && !tail_full(r, i)) {
            gen_event ev;
            session_next(ch->s, &ev);
            if (ev.kind == EV_NONE) break;
            budget--;
            take(r, i, &ev);
        }
        all &= ch->done;
    }
    if (all && !r->over) runner_end(r);
    tell_viewers(r);
    if (!budget && !r->over) server_notify(&r->w);
    retire(r);
}

/* ---- lists and viewers ---- */

void runner_adopt(runner *r) {
    server *s = r->srv;
    r->next = NULL;
    if ((r->prev = s->runners_last)) r->prev->next = r;
    else s->runners = r;
    s->runners_last = r;
    s->n_runners++;
    s->n_running++;
    r->adopted = true;
    server_notify(&r->w); /* what waits in its sessions; and it may be over already */
}

void runner_discard(runner *r) {
    free_sessions(r);
    r->next = r->srv->dead_runners;
    r->srv->dead_runners = r;
    server_wake(r->srv);
}

runner *runner_find(server *s, uint64_t order) {
    runner *r = s->runners;
    while (r && r->order != order) r = r->next;
    return r;
}

runner *runner_find_id(server *s, const char *id) {
    runner *r = s->runners;
    while (r && strcmp(r->id, id) != 0) r = r->next;
    return r;
}

void runner_view(runner *r, gen *g) {
    gen **list = g->kind == GEN_CANCEL ? &r->cancels : &r->viewers;
    g->view.r = r;
    g->view.prev = NULL;
    if ((g->view.next = *list)) (*list)->view.prev = g;
    *list = g;
    r->n_viewers += g->kind != GEN_CANCEL;
}

void runner_unview(runner *r, gen *g) {
    gen **list = g->kind == GEN_CANCEL ? &r->cancels : &r->viewers;
    if (g->view.prev) g->view.prev->view.next = g->view.next;
    else *list = g->view.next;
    if (g->view.next) g->view.next->view.prev = g->view.prev;
    g->view.prev = g->view.next = NULL;
    g->view.r = NULL;
    r->n_viewers -= g->kind != GEN_CANCEL;
    if (r->lost && !r->over) server_notify(&r->w); /* a row may have waited for this viewer */
    retire(r);
}

void runner_cancel(runner *r, cancel_reason why) {
    if (!r->over) cancel_sessions(r, why);
}

void runner_cancel_all(server *s, cancel_reason why) {
    for (runner *r = s->runners; r; r = r->next) runner_cancel(r, why);
}

void runner_set_priority(runner *r, gen_priority p) {
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->ch[i].s && !r->ch[i].done) session_set_priority(r->ch[i].s, p);
}

bool runner_queued(const runner *r) {
    for (uint32_t i = 0; i < r->n_choices; i++) {
        uint32_t done, total;
        bool queued = false;
        if (r->ch[i].n_events || r->ch[i].done) return false;
        if (r->ch[i].s) session_progress(r->ch[i].s, &done, &total, &queued);
        if (!queued) return false;
    }
    return true;
}

void runner_flushed(runner *r) {
    r->flushed = true;
    tell_viewers(r);
    retire(r);
}

void runner_reap(server *s) {
    runner **at = &s->dead_runners;
    while (*at) {
        runner *r = *at;
        bool named;
        pthread_mutex_lock(&s->mu);
        named = r->w.on;
        pthread_mutex_unlock(&s->mu);
        if (named) { /* in the list of wakes: the next turn looks there, finds nothing to do, and comes here again */
            at = &r->next;
            continue;
        }
        *at = r->next;
        runner_free(r);
    }
}

void runner_free_all(server *s) {
    runner *lists[] = {s->runners, s->resumed, s->dead_runners};
    s->runners = s->runners_last = s->resumed = s->dead_runners = NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        while (lists[i]) {
            runner *r = lists[i];
            lists[i] = r->next;
            runner_free(r);
        }
}
