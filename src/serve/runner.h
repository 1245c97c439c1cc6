/* runner.h - a durable generation while it runs: owner of its sessions, writer of its events into the request log.
 *
 * It needs no connection.  Its events go to the log and into a bounded tail in memory, from which viewers (viewer.h) read;
 * viewers come and go.  It ends when its choices have, and then leaves a finish record; ended, it stays until the log has
 * that on disk and the last viewer has left.  A planner makes it with its sessions; once adopted it is the loop's.
 *
 * After a start its sessions go on behind the tokens that the log has; where they cannot (scores of a prompt), what the log has is
 * computed again, compared and skipped.  An event that differs ends the request, `identity_changed`.
 *
 * When the log loses it (a full queue, a failed write) it goes on as an ordinary request: the tail is all there is, and
 * when that is full the row waits for the slowest viewer. */
#ifndef HD_SERVE_RUNNER_H
#define HD_SERVE_RUNNER_H

#include "base/buf.h"
#include "serve/gen.h"

/* Kept of a choice, up to twice that, so that dropping is rare; of many choices less each. */
enum { TAIL_BYTES = 64 * 1024, TAIL_ALL_BYTES = 1 << 20, TAIL_LEAST_BYTES = 2 * 1024 };

typedef struct {
    session *s;         /* NULL: it was over already at the start */
    uint64_t n_events;  /* published ones: what viewers may take.  After a start: at least n_logged */
    uint64_t n_logged;  /* those of an earlier life */
    uint64_t n_taken;   /* events taken from s; below n_logged they are compared, not published */
    uint32_t *known;    /* [n_logged] what they were: event_mark */
    hd_buf tail;        /* events [tail_first, n_events) */
    uint64_t tail_first, tail_base; /* index of the first; bytes dropped before it */
    hd_buf let_go;                  /* text released at the end, until it is known how it ended */
    bool done;
    finish_reason finish;
    gen_stats stats;
} runner_choice;

struct runner {
    waker w;              /* its sessions have something */
    server *srv;
    runner *prev, *next;  /* the server's list; dead: next only */
    gen *viewers;
    uint32_t n_viewers;
    gen *cancels;         /* who cancelled it and waits until its end is on disk */
    const dialect *d;
    char id[64];
    uint8_t ns[JOURNAL_DIGEST];
    size_t key;           /* whose it is, as conn.key; one more than there are: of a key that is gone */
    uint64_t order;       /* in the log */
    bool logprobs;
    size_t request_bytes; /* of srv->request_bytes */
    uint32_t n_choices;
    runner_choice *ch;
    bool adopted, over, flushed;
    uint64_t t_over_us;
    bool lost;            /* the log has not all of it */
    bool left;            /* ended by the server's end: it stays unfinished in the log */
    serve_error error;    /* why it ended early */
    log_job *end_job;     /* made with it, so that its end needs no memory */
};

/* Any thread.  NULL: no memory. */
runner *runner_new(server *s, const dialect *d, const char *id, uint32_t n_choices);
/* The thread that made it, or the loop for one that was never adopted: cancels its sessions.  Memory goes when the loop
 * names it nowhere any more, so a runner whose sessions were submitted must be discarded in the loop. */
void runner_discard(runner *r);
/* Not submitted, or the loop's thread is gone. */
void runner_free(runner *r);

/* Loop. */
void runner_adopt(runner *r);
runner *runner_find(server *s, uint64_t order);
runner *runner_find_id(server *s, const char *id);
void runner_view(runner *r, gen *g);   /* one more viewer, or who cancelled it (kind GEN_CANCEL) */
void runner_unview(runner *r, gen *g); /* one less */
/* The tail has event `index` of choice i: its bytes, as event_pack laid them out, and their number. */
const char *runner_event(runner *r, uint32_t i, view_place *p, size_t *n);
void runner_cancel(runner *r, cancel_reason why); /* takes effect soon; viewers get its error */
void runner_cancel_all(server *s, cancel_reason why);
void runner_set_priority(runner *r, gen_priority p);
bool runner_queued(const runner *r); /* none of its choices was admitted yet */
void runner_flushed(runner *r);      /* its end is on disk, or will never be */
void runner_reap(server *s);         /* end of a turn: free what is named nowhere */
void runner_free_all(server *s);     /* at close */

#endif
