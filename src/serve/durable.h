/* durable.h - the server's side of the request log (docs/durable.md): which requests are kept, taking them in, reading
 * them back, taking them up again at the next start, and the thread that waits for the log so that the loop need not.
 *
 * Planner threads look keys up and accept; they may wait for the disk.  The loop hands jobs to the log's thread and gets
 * them back through the server's list; it itself only appends and finishes, which never wait. */
#ifndef HD_SERVE_DURABLE_H
#define HD_SERVE_DURABLE_H

#include "serve/gen.h"
#include "serve/httpreq.h"
#include "state/journal.h"

/* Open the log of s->opt.state_dir and start the thread.  *out is NULL when there is no such directory given. */
hd_status durable_open(durable **out, server *s, hd_err *err);
/* The engine is there, and no new request can be yet: submit again what did not finish.  HD_IO, HD_NOMEM. */
hd_status durable_resume(durable *d, hd_err *err);
/* Loop and planners are gone.  What runs stays unfinished in the log. */
void durable_close(durable *d);
journal *durable_log(durable *d);
/* Namespace of an API key: 1 + index, 0: none. */
const uint8_t *durable_space(const durable *d, size_t key);

/* ---- loop, before the planners ---- */
/* Idempotency-Key and Last-Event-ID of a request that may be durable, or of a GET of a stored response. */
bool durable_headers(gen *g, const httpreq *r, serve_error *e);

/* ---- planner threads ---- */
/* Is it to be durable, and is it there already?  False: an error, or found (g->view.how is VIEW_STORED), and no planning. */
bool durable_plan(gen *g, const json_t *body, serve_error *e);
/* Submit and accept g, whose plan and choices are made.  Afterwards g->error is set, or view.how is NEW or STORED. */
void durable_submit(gen *g);
/* g->view and g's plan from a stored request, which stays the caller's. */
bool durable_load(gen *g, const journal_entry *e);
/* The id that is meant: id itself, or the one that has this name for g's key.  HD_NOTFOUND. */
hd_status durable_resolve(const gen *g, const char *id, char out[JOURNAL_ID_BYTES + 1]);
/* By id or name.  HD_NOTFOUND also when it is another key's. */
hd_status durable_find(const gen *g, const char *id, journal_entry **out);

/* ---- jobs for the log's thread ---- */
typedef enum {
    LOG_READ,  /* events of a choice; if there are none, as FIND */
    LOG_FIND,  /* how it stands */
    LOG_FLUSH, /* until what was queued is on disk */
} log_kind;
struct log_job {
    log_job *next;
    log_kind kind;
    gen *g; /* with view.serial as it was; or */
    uint64_t serial;
    runner *r;
    uint64_t t_due_us; /* not before */
    char id[64];
    uint64_t order, from;
    uint32_t choice;
    /* the answer */
    hd_status status;  /* of FIND, or of a READ without events */
    hd_buf events;     /* packed */
    journal_state state;
    bool lost, has_end;
    serve_error end;
};
log_job *log_job_new(log_kind kind); /* NULL: no memory */
void log_job_free(log_job *j);
void durable_ask(durable *d, log_job *j);        /* j is the thread's until the loop gets it back */
void durable_answered(log_job *list);            /* loop */

#endif
