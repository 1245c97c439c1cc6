/* journal_run.h - what journal.c (callers, opening, closing) and journal_writer.c (the writer thread) share. */
#ifndef HD_STATE_JOURNAL_RUN_H
#define HD_STATE_JOURNAL_RUN_H

#include "state/journal_int.h"

#include <time.h>

typedef struct live {
    struct live *chain;
    uint64_t order;
    journal_loss lost; /* 0: durable */
    bool told;         /* the callback was called */
    bool ended, owed;
    struct live *touched; /* writer's: the next one with something in this batch */
    bool in_batch;        /* writer's: it is in that list */
    bool end_in_batch;    /* writer's: its end is in the batch too */
    bool broken;          /* writer's: a batch with its events failed, so later ones would leave a gap */
    journal_state end_state;
    int64_t end_time;
    uint32_t n_choices;
    uint64_t *next; /* [n_choices], behind this struct: index of the next event */
    char id[JOURNAL_ID_BYTES + 1];
} live;

/* What lies in a ring: a head and n_text + n_extra bytes, padded to 8. */
typedef struct {
    uint64_t order, index;
    int64_t finished;
    uint32_t choice, n_text, n_extra;
    int32_t token;
    uint8_t kind, state, pad[6]; /* kind: an event, or an end whose record is the text */
} record_head;
enum { RECORD_EVENT, RECORD_END, RECORD_BARE_END };

typedef struct {
    unsigned char *p;
    size_t n;
} ring;

typedef enum { JOB_ACCEPT, JOB_DELETE, JOB_SWEEP, JOB_FLUSH } job_kind;
typedef struct job { /* lies in the caller's frame */
    struct job *next;
    job_kind kind;
    bool finished, more; /* more: a sweep that goes on in the next batch */
    hd_status status;
    hd_err err;
    const journal_request *request; /* accept */
    journal_accepted *out;
    live *row;
    const char *id; /* delete */
    int64_t now;    /* sweep */
    uint64_t n, n_expired, n_step;
} job;

struct journal {
    pthread_mutex_t mu;
    pthread_cond_t some;    /* the writer has something to do */
    pthread_cond_t settled; /* jobs are finished, or the writer is */
    bool mu_made, conds_made, thread_made;
    journal_config cfg;

    ring filling;
    uint32_t n_events;  /* in it */
    uint64_t t_first_us; /* when it got its first record */
    job *first, **last; /* waiting jobs */
    live **table;       /* by order; chains */
    uint64_t mask;      /* buckets - 1 */
    uint32_t n_live;
    uint32_t n_untold, n_owed; /* lost and not told; owed ends */
    bool closing, gone, abandoned; /* gone: the writer has closed the file */
    hd_status close_status;
    journal_stat stat;

    /* Writer's. */
    ring writing;
    live *touched;       /* those with something in this batch */
    uint32_t n_accepted; /* in this batch */
    journal_stat delta;  /* counted if this batch commits */
    db db;
    int lock_fd;
    pthread_t thread;
};

live *journal_live_find(journal *j, uint64_t order); /* these three with mu held */
void journal_live_put(journal *j, live *l);
void journal_live_lose(journal *j, live *l, journal_loss why);
void journal_destroy(journal *j); /* frees; accepts a half-made one */
void *journal_writer(void *j);    /* the thread */

/* What a record takes in a ring.  Both are bounded. */
static inline size_t record_size(uint64_t n_text, uint64_t n_extra) {
    return (sizeof(record_head) + (size_t)n_text + (size_t)n_extra + 7) & ~(size_t)7;
}

static inline uint64_t request_bytes(const journal_request *r) {
    return r->n_record + r->n_prompt * sizeof *r->prompt + (r->turn ? r->n_turn : 0);
}

/* Microseconds of CLOCK_MONOTONIC, as pthread_cond_timedwait takes them. */
static inline void journal_deadline(struct timespec *t, uint64_t us) {
    t->tv_sec = (time_t)(us / 1000000);
    t->tv_nsec = (long)(us % 1000000) * 1000;
}

#endif
