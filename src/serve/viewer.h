/* viewer.h - somebody who reads a durable generation: a gen whose events come from a runner or from the request log.
 *
 * A viewer takes the events of all choices in one canonical order, a function of the events alone: choices in blocks of
 * VIEW_BLOCK, one block after another; within a block in rounds, each choice that has not ended giving its next event.
 * So every viewer writes the same frames with the same numbers, whenever it comes.  An event is taken from the runner's
 * tail; one that has left the tail is read from the log, in chunks, by the log's thread.  All of this is the loop's. */
#ifndef HD_SERVE_VIEWER_H
#define HD_SERVE_VIEWER_H

#include "base/buf.h"
#include "serve/error.h"
#include "serve/server_int.h"
#include "state/journal.h"

enum {
    VIEW_BLOCK = 16, /* rows of a step by default: a block usually advances together */
    VIEW_CHUNK = 32 * 1024,                       /* bytes of events that are read at a time */
    VIEW_CHUNK_MAX = VIEW_CHUNK + (512 << 10),    /* the last of them may be as large as the log allows */
};

/* Where a viewer is in one choice. */
typedef struct {
    uint64_t next;     /* index of the event it takes next */
    uint64_t tail_pos; /* of that event in the runner's tail, if known */
    bool tail_known;
    hd_buf chunk;      /* events read from the log, from chunk_at on; the first of them is `next` */
    size_t chunk_at;
} view_place;

/* How a planner found the request. */
typedef enum {
    VIEW_NONE,   /* not durable */
    VIEW_NEW,    /* accepted just now; view.r is its runner, not adopted yet */
    VIEW_STORED, /* it was there: running or ended */
} view_how;

typedef struct view {
    view_how how;
    runner *r;         /* the runner it reads from, or (how NEW, before the loop has it) brings; NULL: the log alone */
    gen *prev, *next;  /* of the same runner */
    runner *discard;   /* a runner that lost a race, with its sessions: to be thrown away by the loop */
    char id[64];       /* of the response */
    uint8_t body[JOURNAL_DIGEST]; /* digest of what was asked */
    uint64_t order;
    journal_state state; /* as read from the log */
    bool lost;           /* it ended after it had lost durability */
    serve_error end;     /* of one that failed or was cancelled */
    bool has_end;
    uint32_t turn;     /* choice whose turn it is */
    bool told;         /* a comment said that durability is lost */
    bool reading;      /* a job of its is with the log's thread */
    uint32_t tries;
    uint64_t serial;   /* of this life of the gen: late answers are known by it */
} view;

/* g->view says how.  Attach it to its runner, or ask the log what has become of it; then the reply begins. */
void viewer_attach(gen *g);
void viewer_detach(gen *g);
/* The next event in canonical order, of *ch; false: none now.  e is filled when there will be none any more. */
bool viewer_next(gen *g, uint32_t *i, gen_event *ev, serve_error *e);
/* An answer of the log's thread for it. */
void viewer_answer(gen *g, log_job *j);
/* What it watches is not durable any more. */
bool viewer_lost(const gen *g);
/* What has been said to have ended has ended: its last bytes wait until the end is on disk - or for a while, on a disk that hangs. */
bool viewer_may_end(const gen *g);
/* For keep-alive comments. */
void viewer_progress(const gen *g, uint32_t *done, uint32_t *total, bool *queued);

#endif
