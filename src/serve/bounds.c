/* bounds.c - see bounds.h. */
#include "serve/bounds.h"

#include "base/mem.h"
#include "exec/session.h"
#include "serve/metrics.h"
#include "serve/planner.h"
#include "serve/runner.h"

#include <string.h>

enum {
    /* What one more piece of something takes; upper bounds, measured or counted in the structures they name. */
    CONN_BYTES = 8 << 10,          /* struct conn, its bufferevent, evbuffers, timers */
    INPUT_BYTES = 16 << 10,        /* libevent reads so much at once, on top of what is wanted */
    EVENT_BYTES = 64 << 10,        /* an event that is written whole above the mark */
    CHOICE_BYTES = 2 << 10,        /* struct choice, its share of the lists of a submit */
    GEN_BYTES = 16 << 10,          /* struct gen, parameters, biases, breakers, timer, frames */
    SMALL_BUFFER = 256 << 10,      /* from here on blocks are the system's, and touched only as far as they are filled */
    LOG_BYTES = 24 << 20,          /* two queues of 4 MiB, caches of SQLite, a chunk and a finish record on their way */
    PATIENCE_US = 5000000,         /* a peer takes so many bytes in so long, or goes when there is no room */
    PATIENCE_BYTES = 250 << 10,
    TREE_BYTES = 112,              /* of jansson for one JSON value; the dearest is {} */
    ENCODE_BYTES = 64,             /* of a tokeniser for one byte of one long word: lists, heap, ids */
    RENDER_BYTES = (64 + 16) << 20, /* values and output of a template: its own limits */
};

/* ---- requests ---- */

static size_t stop_bytes(const gen_params *p, size_t *longest) {
    size_t sum = 0;
    *longest = 0;
    for (size_t i = 0; i < p->n_stops; i++) {
        sum += 3 * p->stops[i].n + 64; /* text, failure table, matched state */
        if (p->stops[i].n > *longest) *longest = p->stops[i].n;
    }
    return sum;
}

static uint64_t request_bytes(const gen *g) {
    const server *s = g->srv;
    const gen_params *p = &g->plan;
    uint64_t n = (uint64_t)g->n_prompts * p->n, live = n, at_once = (uint64_t)s->max_rows + s->max_queued, bytes = GEN_BYTES;
    size_t longest, stops = stop_bytes(p, &longest), pending;
    if (p->method && live > at_once) live = at_once; /* of embeddings a few are sessions at one time */
    if (g->view.how == VIEW_STORED) live = 0;        /* they are its runner's, if there is one still */
    for (uint32_t i = 0; i < g->n_prompts; i++) bytes += g->prompts[i].ids.n * sizeof(int32_t) + g->prompts[i].n_echo;
    bytes += n * CHOICE_BYTES + live * (stops + (p->method ? session_waiting_bytes() : session_bytes()));
    /* Entries wait for their text, and text for what may become a stop string. */
    pending = longest + 16 < GEN_MAX_PENDING ? longest + 16 : GEN_MAX_PENDING;
    if (p->logprobs) bytes += n * pending * sizeof(token_entry);
    if (g->view.how) bytes += live * VIEW_CHUNK; /* read from the log */
    return bytes;
}

bool bounds_request(gen *g, serve_error *e) {
    server *s = g->srv;
    uint64_t bytes = request_bytes(g);
    size_t max = s->max_request_bytes;
    if (bytes <= max && atomic_fetch_add(&s->request_bytes, (size_t)bytes) + bytes <= max) {
        g->request_bytes = (size_t)bytes;
        return true;
    }
    if (bytes <= max) atomic_fetch_sub(&s->request_bytes, (size_t)bytes);
    serve_fail(e, bytes <= max ? 503 : 400, bytes <= max ? "overloaded" : "request_too_large", NULL,
               "the request takes %llu bytes of memory, and all together may take %zu", (unsigned long long)bytes, max);
    if (bytes <= max) e->retry_after_s = 1;
    return false;
}

void bounds_request_to(gen *g, runner *r) {
    if (g->readmit) { /* let in before: it is counted, but not refused */
        g->request_bytes = (size_t)request_bytes(g);
        atomic_fetch_add(&g->srv->request_bytes, g->request_bytes);
    }
    r->request_bytes = g->request_bytes;
    g->request_bytes = 0;
}

void bounds_runner_end(runner *r) {
    atomic_fetch_sub(&r->srv->request_bytes, r->request_bytes);
    r->request_bytes = 0;
}

void bounds_request_end(gen *g) {
    atomic_fetch_sub(&g->srv->request_bytes, g->request_bytes);
    g->request_bytes = 0;
}

size_t bounds_least_requests(uint32_t max_rows, uint32_t max_queued) {
    return ((size_t)max_rows + max_queued) * (GEN_BYTES + CHOICE_BYTES + session_bytes()) + ((size_t)16 << 20);
}

/* ---- replies that are being collected ---- */

static size_t resident(const hd_buf *b) { return b->cap > SMALL_BUFFER ? b->len + 4096 : b->cap; }

bool bounds_collect(gen *g) {
    server *s = g->srv;
    size_t bytes = resident(&g->reply);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const choice *ch = &g->choices[i];
        bytes += resident(&ch->text);
        for (int k = 0; k < N_PIECES; k++) bytes += resident(&ch->pieces[k]);
    }
    s->reply_bytes += bytes - g->reply_bytes;
    g->reply_bytes = bytes;
    return bytes <= s->opt.max_replies_bytes;
}

void bounds_collect_end(gen *g) {
    g->srv->reply_bytes -= g->reply_bytes;
    g->reply_bytes = 0;
}

bool bounds_collect_room(const server *s) {
    return s->collected_tokens < s->opt.collect_tokens && s->reply_bytes < s->opt.max_replies_bytes;
}

/* ---- output ---- */

void bounds_output_end(conn *c) {
    c->srv->output_bytes -= c->output_bytes;
    c->output_bytes = 0;
}

void bounds_output(conn *c) {
    size_t unsent = http_unsent(c);
    bounds_output_end(c);
    if (c->dead || unsent <= HTTP_OUTPUT_MARK) return;
    c->output_bytes = c->output_then = unsent;
    c->t_output_us = server_now_us();
    c->srv->output_bytes += unsent;
}

/* What its peer has taken meanwhile.  False: too little, and time is up. */
static bool reads(conn *c, uint64_t now) {
    size_t unsent = http_unsent(c);
    c->srv->output_bytes -= c->output_bytes - unsent;
    c->output_bytes = unsent;
    if (now - c->t_output_us < PATIENCE_US) return true;
    if (c->output_then - unsent < (size_t)PATIENCE_BYTES) return false;
    c->output_then = unsent;
    c->t_output_us = now;
    return true;
}

bool bounds_output_room(server *s, size_t n) {
    size_t max = s->opt.max_replies_bytes;
    uint64_t now = server_now_us();
    if (!s->output_bytes || s->output_bytes + n <= max) return true;
    for (conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (!c->output_bytes || reads(c, now)) continue;
        metrics_cut_reader(s->met);
        http_close(c);
    }
    return !s->output_bytes || s->output_bytes + n <= max;
}

/* ---- beforehand ---- */

static uint64_t plan_bytes(uint64_t body, bool renders) {
    uint64_t values = body < REQUEST_MAX_VALUES ? body : REQUEST_MAX_VALUES;
    return 2 * body + values * TREE_BYTES + body * ENCODE_BYTES + (renders ? RENDER_BYTES : 0);
}

server_needs server_plan(const server_options *opt, uint32_t max_rows, uint32_t max_queued, bool renders) {
    server_options o = *opt;
    server_needs n;
    uint64_t small, least = bounds_least_requests(max_rows, max_queued);
    server_defaults(&o);
    n.connections = (o.max_connections + (uint64_t)HTTP_LIST_OVER) *
                    (CONN_BYTES + o.max_head_bytes + HTTP_EXTRA_INPUT + INPUT_BYTES + HTTP_OUTPUT_MARK + EVENT_BYTES);
    n.bodies = o.max_bodies_bytes;
    n.requests = o.max_bodies_bytes > least ? o.max_bodies_bytes : least;
    /* Collected ones, the oldest alone as much again, its reply put together, what is not taken yet. */
    n.replies = 4 * (uint64_t)o.max_replies_bytes;
    small = o.max_body_bytes < PLANNER_LARGE_BODY ? o.max_body_bytes : PLANNER_LARGE_BODY;
    n.planners = plan_bytes(o.max_body_bytes, renders) + (o.n_planners - 1) * plan_bytes(small, renders);
    /* What runs keeps a tail of its events; a record is written from memory by each planner. */
    n.log = !o.state_dir ? 0 : LOG_BYTES + ((uint64_t)max_rows + max_queued) * 2 * TAIL_BYTES + o.n_planners * 2 * (uint64_t)o.max_body_bytes;
    n.total = n.connections + n.bodies + n.requests + n.replies + n.planners + n.log;
    return n;
}
