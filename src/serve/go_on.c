/* go_on.c - see go_on.h. */
#include "serve/go_on.h"

#include "base/mem.h"
#include "serve/conversation.h"
#include "serve/durable_int.h"
#include "serve/record.h"

#include <stdio.h>
#include <string.h>

#define FIELD "continue_response"

enum { COPY_BYTES = 256 * 1024 }; /* a small part of the log's queue: others use it meanwhile */

bool go_on_asked(const json_t *body) { return req_get(body, FIELD) != NULL; }

/* ---- planning ---- */

static bool new_cap(const json_t *body, uint32_t *cap, serve_error *e) {
    const char *const names[] = {"max_completion_tokens", "max_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t v = -1;
        if (!req_int(body, names[i], 1, GEN_NO_CAP - 1, &v, e)) return false;
        if (v < 0) continue;
        *cap = (uint32_t)v;
        return true;
    }
    return bad_field(e, "max_tokens", "max_tokens is missing: to which length shall the response go on?");
}

static bool refuse(gen *g, journal_entry *e) {
    if (g->source != e) journal_entry_free(e);
    return false;
}

/* May it go on, as far as its entry shows? */
static bool may_go_on(const gen *g, const journal_entry *e, serve_error *why) {
    if (e->state == JOURNAL_RUNNING)
        return serve_fail(why, 409, "still_running", FIELD, "the response '%.100s' is still being made", e->request.id);
    if (e->state != JOURNAL_FINISHED)
        return serve_fail(why, 409, "not_finished", FIELD, "the response '%.100s' %s", e->request.id, e->state == JOURNAL_CANCELLED ? "was cancelled" : "failed");
    if (e->lost) return serve_fail(why, 410, "events_lost", FIELD, "the response '%.100s' lost durability: its tokens are gone", e->request.id);
    if (memcmp(e->request.identity, g->srv->dur->identity, JOURNAL_DIGEST) != 0)
        return serve_fail(why, 410, "identity_changed", FIELD,
                          "the model or the way it computes has changed since '%.100s' was made", e->request.id);
    return true;
}

static bool fill(gen *g, const journal_entry *e, uint32_t cap, serve_error *why) {
    bool stream = g->plan.stream, usage = g->plan.include_usage, background = g->background;
    int64_t created = g->created;
    hd_err err = {0};
    hd_status st;
    gen_clear_plan(g);
    if ((st = record_read(g, g->d, e, &err))) {
        if (st == HD_NOMEM) return serve_fail(why, 503, "out_of_memory", NULL, "%s", err.msg);
        if (st == HD_NOTFOUND) return serve_fail(why, 404, "not_found", FIELD, "there is no stored response '%.100s' here", e->request.id);
        return serve_fail(why, 410, "events_lost", FIELD, "%s", err.msg);
    }
    hd_free(g->model_name); /* this one's is today's */
    g->model_name = NULL;
    g->created = created;
    g->plan.stream = stream;
    g->plan.include_usage = usage;
    g->background = background;
    if (g->plan.max_tokens == GEN_NO_CAP) return bad_field(why, "max_tokens", "the response had no cap: it went to the end of the context");
    if (cap <= g->plan.max_tokens) return bad_field(why, "max_tokens", "max_tokens must be above the %u of the response", g->plan.max_tokens);
    g->plan.max_tokens = cap;
    return true;
}

bool go_on_plan(gen *g, const json_t *body, serve_error *e) {
    const char *id = "";
    journal_entry *source;
    uint32_t cap = 0;
    hd_status st;
    if (!request_check_model(g->srv, body, e) || !req_str(body, FIELD, &id, NULL, e) || !new_cap(body, &cap, e)) return false;
    if ((st = durable_find(g, id, &source))) {
        if (st == HD_NOTFOUND) return serve_fail(e, 404, "not_found", FIELD, "there is no stored response '%.100s' here", id);
        if (st == HD_FAILED) return serve_fail(e, 410, "events_lost", FIELD, "the stored response '%.100s' is damaged", id);
        return serve_fail(e, 503, "log_failed", NULL, "the request log cannot be read");
    }
    if (!may_go_on(g, source, e) || !fill(g, source, cap, e) || !g->d->frames(g, e)) return refuse(g, source);
    g->source = source;
    return conversation_same(g, e);
}

/* ---- its tokens ---- */

typedef struct {
    runner_choice *ch;
    uint64_t n_outputs; /* events up to the last token (or scored prompt token) */
    bool ended, at_cap, bad;
} look;

static bool look_at(void *ctx, uint64_t index, const journal_event *e) {
    look *l = ctx;
    gen_event ev;
    if (index >= l->ch->n_logged || !event_read(e, &ev)) return l->bad = true, false;
    l->ch->known[index] = event_mark(e);
    if (ev.kind == EV_TOKEN || ev.kind == EV_PROMPT) l->n_outputs = index + 1;
    if (ev.kind != EV_DONE) return true;
    l->ended = true;
    l->at_cap = ev.finish == FINISH_LENGTH;
    l->ch->finish = ev.finish;
    l->ch->stats = ev.stats;
    return true;
}

/* One choice: an ended one is taken over as it is; of one at its cap the tokens, without the text and the end that the cap
 * brought about. */
static hd_status recall_choice(gen *g, runner *r, uint32_t i, resumed_choice *was, bool *at_cap, hd_err *err) {
    runner_choice *ch = &r->ch[i];
    look l = {.ch = ch};
    hd_status st;
    ch->n_logged = g->source->published[i];
    if (!(ch->known = hd_reallocarray(NULL, ch->n_logged + 1, sizeof *ch->known))) return hd_fail(err, HD_NOMEM, "serve: no memory");
    if ((st = journal_read_events(durable_log(g->srv->dur), g->source->order, i, 0, look_at, &l, err))) return st;
    if (l.bad || !l.ended) return hd_fail(err, HD_FAILED, "its events cannot be read");
    was->begun = true;
    was->done = ch->done = !l.at_cap;
    if (l.at_cap) {
        ch->n_logged = l.n_outputs;
        memset(&ch->stats, 0, sizeof ch->stats);
        *at_cap = true;
    }
    ch->n_events = ch->tail_first = ch->n_logged;
    if (was->done || g->plan.score_prompt) return HD_OK; /* scores: all is computed again, and compared */
    if (!(was->said = hd_reallocarray(NULL, ch->n_logged + 1, sizeof *was->said))) return hd_fail(err, HD_NOMEM, "serve: no memory");
    while (was->n_said < ch->n_logged && event_mark_token(ch->known[was->n_said], &was->said[was->n_said])) was->n_said++;
    ch->n_taken = was->n_said;
    return HD_OK;
}

hd_status go_on_recall(gen *g, runner *r, resumed_choice *was, hd_err *err) {
    bool at_cap = false;
    hd_status st;
    for (uint32_t i = 0; i < r->n_choices; i++)
        if ((st = recall_choice(g, r, i, &was[i], &at_cap, err))) return st;
    return at_cap ? HD_OK : hd_fail_field(err, HD_INVALID, FIELD, "no choice of the response ended at its cap: there is nothing to go on with");
}

typedef struct {
    hd_buf events;
    uint64_t until;
    bool oom;
} gathering;

static bool gather(void *ctx, uint64_t index, const journal_event *e) {
    gathering *c = ctx;
    if (index >= c->until) return false;
    c->oom = !event_pack(&c->events, e);
    return !c->oom && c->events.len < COPY_BYTES;
}

/* What was gathered goes to the queue, and from there to the disk before more comes. */
static hd_status put(journal *j, uint64_t order, uint32_t i, const hd_buf *events, uint64_t *next, hd_err *err) {
    hd_status st = HD_OK;
    for (size_t at = 0; at < events->len && !st;) {
        journal_event e;
        at += event_unpack(events->data + at, events->len - at, &e);
        if (!(st = journal_append(j, order, i, *next, &e, 1, err))) ++*next;
    }
    return st ? st : journal_flush(j, err);
}

hd_status go_on_copy(const gen *g, const runner *r, hd_err *err) {
    journal *j = durable_log(g->srv->dur);
    gathering c = {.oom = false};
    hd_status st = HD_OK;
    buf_init(&c.events, COPY_BYTES + VIEW_CHUNK_MAX);
    for (uint32_t i = 0; i < r->n_choices && !st; i++) {
        uint64_t next = 0;
        c.until = r->ch[i].n_logged;
        while (next < c.until && !st) {
            uint64_t before = next;
            buf_clear(&c.events);
            st = journal_read_events(j, g->source->order, i, next, gather, &c, err);
            if (!st && c.oom) st = hd_fail(err, HD_NOMEM, "serve: no memory");
            if (!st) st = put(j, r->order, i, &c.events, &next, err);
            if (!st && next == before) st = hd_fail(err, HD_FAILED, "its events are gone");
        }
    }
    buf_deinit(&c.events);
    return st;
}
