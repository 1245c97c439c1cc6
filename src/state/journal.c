/* journal.c - see journal.h.  The queue, the table of running requests and the writer thread; the file is journal_db.c's.
 *
 *     append, finish ──copy──> ring being filled ──one swap──> ring being written ─┐
 *     accept, delete, sweep, flush ──> list of jobs, their callers waiting ────────┴─> one transaction, one sync
 *
 * A *batch* is what the writer took in one swap: the ring first, then jobs in the order they came.  It is committed whole
 * or not at all.  When it fails, its jobs fail, and each request with something in it loses durability.
 *
 * A request in the table is running, or has ended and its end is not on disk yet:
 *
 *     queued end    `ended`; its finish record is in a ring
 *     owed end      `ended` and `owed`; the record was dropped, each batch tries to write the bare state
 *
 * mu guards everything but what is marked as the writer's; it is never held over a disk access, an allocation or a
 * callback.  There is no second lock above it (db.r_mu is taken without it).  Only the writer takes requests out.
 * Read: struct journal, the callers' side, the batch, writer, opening and closing. */
#include "state/journal_int.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH_JOBS = 256,           /* accepts that share a commit */
    BATCH_BYTES = 16 << 20,     /* and their bytes, beyond the first */
    SWEEP_STEP = 32,            /* requests a sweep deletes per transaction, so that accepts get in between */
    RESERVE_SHARE = 8,          /* 1/8 of max_bytes is for events of what is running: accepts stop before */
    DEFAULT_MAX_REQUESTS = 100000,
    DEFAULT_MAX_RUNNING = 4096, /* more than the waiting line and the rows of a server hold */
    DEFAULT_RETAIN_SECONDS = 24 * 3600,
    DEFAULT_APPEND_EVERY = 32,
    DEFAULT_GATHER_MS = 50,     /* lost on kill -9 at most, and computed again at the next start */
    DEFAULT_QUEUE_BYTES = 4 << 20,
    MAX_QUEUE_BYTES = 1 << 30,
    PID_TEXT = 32,
};
static const uint64_t DEFAULT_MAX_BYTES = UINT64_C(1) << 30;

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
    pthread_cond_t some;   /* the writer has something to do */
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

const char *journal_state_name(journal_state s) {
    static const char *const names[] = {"running", "finished", "failed", "cancelled"};
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : "unknown";
}

/* ---- the table ---- */

static live *live_find(journal *j, uint64_t order) {
    live *l = j->table[order & j->mask];
    while (l && l->order != order) l = l->chain;
    return l;
}

static live *live_new(const char *id, uint32_t n_choices) {
    live *l = hd_calloc(1, sizeof *l + n_choices * sizeof *l->next);
    if (!l) return NULL;
    l->next = (uint64_t *)(void *)(l + 1);
    l->n_choices = n_choices;
    memcpy(l->id, id, strlen(id));
    return l;
}

static void live_put(journal *j, live *l) {
    live **at = &j->table[l->order & j->mask];
    l->chain = *at;
    *at = l;
    j->n_live++;
}

static void live_lose(journal *j, live *l, journal_loss why) {
    if (l->lost) return;
    l->lost = why;
    j->n_untold++;
    if (why == JOURNAL_LOST_QUEUE) j->stat.lost_queue++;
    else if (why == JOURNAL_LOST_WRITE) j->stat.lost_write++;
    else j->stat.lost_space++;
}

/* ---- the callers' side: what never waits ---- */

static size_t record_size(uint64_t n_text, uint64_t n_extra) {
    return (sizeof(record_head) + (size_t)n_text + (size_t)n_extra + 7) & ~(size_t)7; /* both are bounded */
}

/* With mu held, and room. */
static void ring_put(journal *j, const record_head *h, const void *text, const void *extra) {
    ring *r = &j->filling;
    unsigned char *at = r->p + r->n;
    if (r->n == 0) j->t_first_us = hd_now_us(&hd_clock_real);
    memcpy(at, h, sizeof *h);
    if (h->n_text) memcpy(at + sizeof *h, text, h->n_text);
    if (h->n_extra) memcpy(at + sizeof *h + h->n_text, extra, h->n_extra);
    r->n += record_size(h->n_text, h->n_extra);
    j->n_events++;
    if (r->n > j->stat.queue_bytes_max) j->stat.queue_bytes_max = r->n;
}

/* Wake the writer for what does not hurry: it must learn of the first record, and of a full gathering. */
static bool worth_waking(const journal *j, uint32_t before) {
    return (before == 0 && j->n_events) || (before < j->cfg.append_every && j->n_events >= j->cfg.append_every);
}

hd_status journal_append(journal *j, uint64_t order, uint32_t choice, uint64_t first, const journal_event *ev, size_t n,
                         hd_err *err) {
    uint64_t need = 0;
    hd_status st = HD_OK;
    bool wake = false;
    live *l;
    for (size_t i = 0; i < n; i++) {
        if (ev[i].n_text > JOURNAL_EVENT_BYTES || ev[i].n_extra > JOURNAL_EVENT_BYTES - ev[i].n_text)
            return hd_fail(err, HD_INVALID, "request log: an event is larger than %d bytes", JOURNAL_EVENT_BYTES);
        if (!hd_add(need, record_size(ev[i].n_text, ev[i].n_extra), &need)) need = UINT64_MAX;
    }
    pthread_mutex_lock(&j->mu);
    l = live_find(j, order);
    if (!l || l->ended || choice >= l->n_choices) {
        st = hd_fail(err, HD_INVALID, "request log: request %llu is not running or has no choice %u",
                     (unsigned long long)order, choice);
    } else if (l->lost) {
        st = hd_fail(err, HD_CLOSED, "request log: request %llu is not durable any more", (unsigned long long)order);
    } else if (first != l->next[choice]) {
        st = hd_fail(err, HD_INVALID, "request log: the next event of request %llu, choice %u is %llu, not %llu",
                     (unsigned long long)order, choice, (unsigned long long)l->next[choice], (unsigned long long)first);
    } else if (need > j->cfg.queue_bytes - j->filling.n) {
        live_lose(j, l, JOURNAL_LOST_QUEUE);
        wake = true;
        st = hd_fail(err, HD_FULL, "request log: the queue of %u bytes is full", j->cfg.queue_bytes);
    } else {
        uint32_t before = j->n_events;
        for (size_t i = 0; i < n; i++) {
            record_head h = {.kind = RECORD_EVENT, .order = order, .choice = choice, .index = first + i, .token = ev[i].token,
                             .n_text = (uint32_t)ev[i].n_text, .n_extra = (uint32_t)ev[i].n_extra};
            ring_put(j, &h, ev[i].text, ev[i].extra);
        }
        l->next[choice] += n;
        wake = worth_waking(j, before);
    }
    pthread_mutex_unlock(&j->mu);
    if (wake) pthread_cond_signal(&j->some);
    return st;
}

hd_status journal_finish(journal *j, uint64_t order, journal_state state, int64_t finished, const void *record, size_t n,
                         hd_err *err) {
    hd_status st = HD_OK;
    bool wake = false;
    live *l;
    if (state <= JOURNAL_RUNNING || state > JOURNAL_CANCELLED || n > JOURNAL_FINISH_BYTES)
        return hd_fail(err, HD_INVALID, "request log: a request ends finished, failed or cancelled, with at most %d bytes",
                       JOURNAL_FINISH_BYTES);
    pthread_mutex_lock(&j->mu);
    l = live_find(j, order);
    if (!l || l->ended) {
        st = hd_fail(err, HD_INVALID, "request log: request %llu is not running", (unsigned long long)order);
    } else {
        uint32_t before = j->n_events;
        l->ended = true;
        l->end_state = state;
        l->end_time = finished;
        if (record_size(n, 0) <= j->cfg.queue_bytes - j->filling.n) {
            record_head h = {.kind = record ? RECORD_END : RECORD_BARE_END, .order = order, .state = (uint8_t)state,
                             .finished = finished, .n_text = record ? (uint32_t)n : 0};
            ring_put(j, &h, record, NULL);
            wake = worth_waking(j, before);
        } else {
            live_lose(j, l, JOURNAL_LOST_QUEUE);
            l->owed = true;
            j->n_owed++;
            wake = true;
            st = hd_fail(err, HD_FULL, "request log: the queue of %u bytes is full", j->cfg.queue_bytes);
        }
    }
    pthread_mutex_unlock(&j->mu);
    if (wake) pthread_cond_signal(&j->some);
    return st;
}

void journal_stats(journal *j, journal_stat *out) {
    pthread_mutex_lock(&j->mu);
    *out = j->stat;
    out->running = j->n_live;
    out->queue_bytes = j->filling.n;
    pthread_mutex_unlock(&j->mu);
}

/* ---- the callers' side: what waits ---- */

static hd_status run_job(journal *j, job *b, hd_err *err) {
    pthread_mutex_lock(&j->mu);
    if (j->closing) {
        b->status = hd_fail(&b->err, HD_CLOSED, "request log: it is closing");
    } else {
        *j->last = b;
        j->last = &b->next;
        pthread_cond_signal(&j->some);
        while (!b->finished) pthread_cond_wait(&j->settled, &j->mu);
    }
    pthread_mutex_unlock(&j->mu);
    if (b->status && err) *err = b->err;
    return b->status;
}

static hd_status check_request(const journal_request *r, hd_err *err) {
    uint64_t bytes;
    size_t n_id = r->id ? strnlen(r->id, JOURNAL_ID_BYTES + 1) : 0;
    if (n_id < 1 || n_id > JOURNAL_ID_BYTES)
        return hd_fail_field(err, HD_INVALID, "id", "request log: an id has 1 to %d bytes", JOURNAL_ID_BYTES);
    if (r->key && (r->n_key < 1 || r->n_key > JOURNAL_KEY_BYTES))
        return hd_fail_field(err, HD_INVALID, "key", "an idempotency key has 1 to %d bytes", JOURNAL_KEY_BYTES);
    if (r->n_choices < 1 || r->n_choices > JOURNAL_CHOICES)
        return hd_fail_field(err, HD_INVALID, "n_choices", "request log: a request has 1 to %d choices", JOURNAL_CHOICES);
    if (!hd_mul(r->n_prompt, sizeof *r->prompt, &bytes) || !hd_add(bytes, r->n_record, &bytes) || bytes > JOURNAL_REQUEST_BYTES)
        return hd_fail_field(err, HD_INVALID, "record", "request log: record and prompt are above %d bytes",
                             JOURNAL_REQUEST_BYTES);
    return HD_OK;
}

hd_status journal_accept(journal *j, const journal_request *r, journal_accepted *out, hd_err *err) {
    job b = {.kind = JOB_ACCEPT, .request = r, .out = out};
    hd_status st;
    memset(out, 0, sizeof *out);
    if ((st = check_request(r, err))) return st;
    if (!(b.row = live_new(r->id, r->n_choices))) return hd_fail(err, HD_NOMEM, "request log: no memory for a request");
    st = run_job(j, &b, err);
    hd_free(b.row); /* unless it went into the table */
    return st;
}

hd_status journal_delete(journal *j, const char *id, hd_err *err) {
    job b = {.kind = JOB_DELETE, .id = id};
    return run_job(j, &b, err);
}

hd_status journal_sweep(journal *j, int64_t now, uint64_t *n, hd_err *err) {
    job b = {.kind = JOB_SWEEP, .now = now};
    hd_status st = run_job(j, &b, err);
    if (n) *n = b.n;
    return st;
}

hd_status journal_flush(journal *j, hd_err *err) {
    job b = {.kind = JOB_FLUSH};
    return run_job(j, &b, err);
}

hd_status journal_find(journal *j, const char *id, journal_entry **out, hd_err *err) {
    return db_find_id(&j->db, id, out, err);
}

hd_status journal_find_by_key(journal *j, const uint8_t ns[JOURNAL_DIGEST], const void *key, size_t n_key,
                              journal_entry **out, hd_err *err) {
    return db_find_key(&j->db, ns, key, n_key, out, err);
}

void journal_entry_free(journal_entry *e) { hd_free(e); }

static void count_damage(journal *j, hd_status st) {
    if (st != HD_FAILED) return;
    pthread_mutex_lock(&j->mu);
    j->stat.damaged++;
    pthread_mutex_unlock(&j->mu);
}

hd_status journal_read_events(journal *j, uint64_t order, uint32_t choice, uint64_t from,
                              bool (*cb)(void *ctx, uint64_t index, const journal_event *ev), void *ctx, hd_err *err) {
    uint64_t next;
    hd_status st = db_read_events(&j->db, order, choice, from, cb, ctx, &next, err);
    count_damage(j, st);
    return st;
}

hd_status journal_unfinished(journal *j, bool (*cb)(void *ctx, const journal_entry *e), void *ctx, hd_err *err) {
    uint64_t order = 0;
    hd_status st;
    while (!(st = db_next_running(&j->db, order, &order, err))) {
        journal_entry *e;
        bool on;
        st = db_find_order(&j->db, order, &e, err);
        if (st == HD_NOTFOUND || st == HD_FAILED) { /* it ended meanwhile and was deleted; or it went bad since the start */
            count_damage(j, st);
            continue;
        }
        if (st) return st;
        on = e->state != JOURNAL_RUNNING || cb(ctx, e);
        journal_entry_free(e);
        if (!on) return HD_OK;
    }
    return st == HD_NOTFOUND ? HD_OK : st;
}

/* ---- the batch: writer thread, inside a transaction ---- */

static const record_head *head_at(const ring *r, size_t at, record_head *h) {
    memcpy(h, r->p + at, sizeof *h);
    return h;
}

static live *row_of(journal *j, uint64_t order) {
    live *l;
    pthread_mutex_lock(&j->mu);
    l = live_find(j, order); /* only we take it out, so it stays */
    pthread_mutex_unlock(&j->mu);
    return l;
}

static void touch(journal *j, live *l) {
    if (l->in_batch) return;
    l->in_batch = true;
    l->touched = j->touched;
    j->touched = l;
}

static bool row_lost(journal *j, const live *l) {
    bool lost;
    pthread_mutex_lock(&j->mu);
    lost = l->lost != 0;
    pthread_mutex_unlock(&j->mu);
    return lost;
}

/* Delete the oldest finished request.  HD_NOTFOUND: there is none. */
static hd_status evict_one(journal *j, hd_err *err) {
    uint64_t order;
    int64_t finished;
    hd_status st = db_oldest(&j->db, &order, &finished, err);
    if (!st && !(st = db_drop(&j->db, order, err))) j->delta.evicted++;
    return st;
}

/* Make the database hold `need` bytes more without going above `limit`.  HD_NOTFOUND: it cannot. */
static hd_status make_room(journal *j, uint64_t need, uint64_t limit, hd_err *err) {
    for (;;) {
        uint64_t used;
        hd_status st = db_used(&j->db, &used, err);
        if (st) return st;
        if (used + need <= limit) return HD_OK;
        if ((st = evict_one(j, err))) return st;
    }
}

static hd_status write_ring(journal *j, hd_err *err) {
    record_head h;
    hd_status st = HD_OK;
    for (size_t at = 0; at < j->writing.n && !st; at += record_size(h.n_text, h.n_extra)) {
        const unsigned char *p = j->writing.p + at + sizeof h;
        live *l = row_of(j, head_at(&j->writing, at, &h)->order);
        if (!l) continue; /* not reached: appends are refused unless it is in the table */
        if (h.kind != RECORD_EVENT) {
            st = db_put_outcome(&j->db, h.order, (journal_state)h.state, row_lost(j, l), h.finished,
                                h.kind == RECORD_END ? p : NULL, h.n_text, err);
            j->delta.finished++;
        } else if (!l->broken) {
            journal_event ev = {h.token, p, h.n_text, p + h.n_text, h.n_extra};
            st = db_put_event(&j->db, h.order, h.choice, h.index, &ev, err);
            j->delta.events++;
        }
    }
    return st;
}

/* The bare states of those whose finish record was dropped. */
static hd_status write_owed(journal *j, hd_err *err) {
    for (uint64_t b = 0; b <= j->mask; b++) {
        pthread_mutex_lock(&j->mu);
        live *l = j->table[b];
        pthread_mutex_unlock(&j->mu);
        for (; l; l = l->chain) { /* chains change only through us */
            hd_status st;
            bool owed;
            pthread_mutex_lock(&j->mu);
            owed = l->owed;
            pthread_mutex_unlock(&j->mu);
            if (!owed) continue;
            touch(j, l);
            l->end_in_batch = true;
            if ((st = db_put_outcome(&j->db, l->order, l->end_state, true, l->end_time, NULL, 0, err))) return st;
            j->delta.finished++;
        }
    }
    return HD_OK;
}

static uint64_t request_bytes(const journal_request *r) { return r->n_record + r->n_prompt * sizeof *r->prompt; }

/* A refusal of this job alone: not an error of the batch. */
static hd_status refuse(job *b, hd_status st) {
    b->status = st;
    return HD_OK;
}

static hd_status do_accept(journal *j, job *b, hd_err *err) {
    const journal_request *r = b->request;
    db_found f;
    hd_status st = r->key ? db_by_key(&j->db, r->ns, r->key, r->n_key, &f, &b->err) : HD_NOTFOUND;
    uint32_t n_running;
    uint64_t evicted;
    if (st == HD_FAILED) return refuse(b, st);
    if (!st) {
        b->out->outcome = memcmp(f.body, r->body, JOURNAL_DIGEST) ? JOURNAL_CONFLICT : JOURNAL_SAME;
        b->out->order = f.order;
        b->out->state = f.state;
        memcpy(b->out->id, f.id, sizeof f.id);
        if (b->out->outcome == JOURNAL_SAME) j->delta.repeated++;
        else j->delta.conflicts++;
        return HD_OK;
    }
    if (st != HD_NOTFOUND) goto broken;
    st = db_by_id(&j->db, r->id, &f, &b->err);
    if (st == HD_FAILED) return refuse(b, st);
    if (!st) return refuse(b, hd_fail_field(&b->err, HD_INVALID, "id", "request log: the id %s is taken", r->id));
    if (st != HD_NOTFOUND) goto broken;
    pthread_mutex_lock(&j->mu);
    n_running = j->n_live + j->n_accepted;
    pthread_mutex_unlock(&j->mu);
    if (n_running >= j->cfg.max_running) {
        j->delta.refused++;
        return refuse(b, hd_fail(&b->err, HD_FULL, "request log: %u durable requests are unfinished", n_running));
    }
    evicted = j->delta.evicted;
    if ((st = db_mark(&j->db, &b->err))) goto broken;
    while (!st && j->db.n_requests >= j->cfg.max_requests) st = evict_one(j, &b->err);
    if (!st) {
        uint64_t limit = j->cfg.max_bytes - j->cfg.max_bytes / RESERVE_SHARE;
        st = make_room(j, request_bytes(r) + DB_REQUEST_OVERHEAD, limit, &b->err);
    }
    if (st == HD_NOTFOUND) { /* nothing is deleted for a request that then does not fit */
        if ((st = db_mark_end(&j->db, true, &b->err))) goto broken;
        j->delta.evicted = evicted;
        j->delta.refused++;
        return refuse(b, hd_fail(&b->err, HD_FULL, "request log: full: %llu requests, at most %llu and %llu bytes, and nothing "
                                 "finished is left to delete", (unsigned long long)j->db.n_requests,
                                 (unsigned long long)j->cfg.max_requests, (unsigned long long)j->cfg.max_bytes));
    }
    if (st || (st = db_mark_end(&j->db, false, &b->err)) || (st = db_put_request(&j->db, r, &b->row->order, &b->err))) goto broken;
    b->out->outcome = JOURNAL_NEW;
    b->out->order = b->row->order;
    memcpy(b->out->id, r->id, strlen(r->id));
    j->n_accepted++;
    j->delta.accepted++;
    return HD_OK;
broken:
    if (err) *err = b->err;
    return st;
}

static hd_status do_delete(journal *j, job *b, hd_err *err) {
    db_found f;
    hd_status st = db_by_id(&j->db, b->id, &f, err);
    if (st == HD_NOTFOUND) return refuse(b, hd_fail(&b->err, st, "request log: there is no request %.*s", JOURNAL_ID_BYTES, b->id));
    if (st) return st;
    if (f.state == JOURNAL_RUNNING) return refuse(b, hd_fail(&b->err, HD_INVALID, "request log: %s is running", f.id));
    return db_drop(&j->db, f.order, err);
}

/* SWEEP_STEP deletions at most; b->more if there may be others. */
static hd_status do_sweep(journal *j, job *b, hd_err *err) {
    hd_status st;
    b->more = false;
    b->n_step = 0;
    while (b->n_step < SWEEP_STEP) {
        uint64_t order, used;
        int64_t finished, limit;
        bool expired;
        if ((st = db_oldest(&j->db, &order, &finished, err))) return st == HD_NOTFOUND ? HD_OK : st;
        if ((st = db_used(&j->db, &used, err))) return st;
        expired = !__builtin_sub_overflow(b->now, (int64_t)j->cfg.retain_seconds, &limit) && finished < limit;
        if (!expired && j->db.n_requests <= j->cfg.max_requests && used <= j->cfg.max_bytes) {
            return db_give_back(&j->db, err);
        }
        if ((st = db_drop(&j->db, order, err))) return st;
        b->n_step++;
        if (expired) j->delta.expired++;
        else j->delta.evicted++;
    }
    b->more = true;
    return HD_OK;
}

static hd_status write_jobs(journal *j, job *jobs, hd_err *err) {
    hd_status st = HD_OK;
    for (job *b = jobs; b && !st; b = b->next) {
        switch (b->kind) {
        case JOB_ACCEPT: st = do_accept(j, b, err); break;
        case JOB_DELETE: st = do_delete(j, b, err); break;
        case JOB_SWEEP: st = do_sweep(j, b, err); break;
        case JOB_FLUSH: break;
        }
    }
    return st;
}

/* ---- after the batch: writer thread, outside of the transaction ---- */

/* Tell of losses, one at a time so that the callback runs without the lock. */
static void tell_losses(journal *j) {
    bool more = true;
    for (uint64_t b = 0; b <= j->mask && more; b++) {
        pthread_mutex_lock(&j->mu);
        for (live *l = j->table[b]; l; l = l->chain) {
            uint64_t order = l->order;
            journal_loss why = l->lost;
            if (!why || l->told) continue;
            l->told = true;
            j->n_untold--;
            pthread_mutex_unlock(&j->mu);
            if (j->cfg.lost) j->cfg.lost(j->cfg.ctx, order, l->id, why);
            pthread_mutex_lock(&j->mu);
        }
        more = j->n_untold != 0;
        pthread_mutex_unlock(&j->mu);
    }
}

/* Everything with something in the batch has lost it; ends become owed. */
static void batch_failed(journal *j, hd_status st) {
    pthread_mutex_lock(&j->mu);
    for (live *l; (l = j->touched);) {
        j->touched = l->touched;
        live_lose(j, l, st == HD_FULL ? JOURNAL_LOST_SPACE : JOURNAL_LOST_WRITE);
        l->broken = true;
        if (l->end_in_batch && !l->owed) {
            l->owed = true;
            j->n_owed++;
        }
        l->in_batch = l->end_in_batch = false;
    }
    j->stat.failed_commits++;
    pthread_mutex_unlock(&j->mu);
}

static void live_take(journal *j, live *l) {
    live **at = &j->table[l->order & j->mask];
    while (*at != l) at = &(*at)->chain;
    *at = l->chain;
    j->n_live--;
}

/* Those whose end is on disk leave the table.  What they lost was told before: nothing is lost after the end is posted. */
static void batch_committed(journal *j) {
    live *out = NULL;
    pthread_mutex_lock(&j->mu);
    for (live *l; (l = j->touched);) {
        j->touched = l->touched;
        l->in_batch = false;
        if (!l->end_in_batch) continue;
        if (l->owed) j->n_owed--;
        live_take(j, l);
        l->touched = out;
        out = l;
    }
    pthread_mutex_unlock(&j->mu);
    for (live *l; (l = out);) {
        out = l->touched;
        hd_free(l);
    }
}

static void add_delta(journal *j, uint64_t us, uint64_t used) {
    journal_stat *s = &j->stat, *d = &j->delta;
    s->accepted += d->accepted;
    s->repeated += d->repeated;
    s->conflicts += d->conflicts;
    s->refused += d->refused;
    s->events += d->events;
    s->finished += d->finished;
    s->expired += d->expired;
    s->evicted += d->evicted;
    s->commits++;
    if (us > s->commit_us_max) s->commit_us_max = us;
    s->requests = j->db.n_requests;
    s->bytes = used;
}

/* One transaction for what was taken. */
static hd_status write_batch(journal *j, job *jobs, bool owed, hd_err *err) {
    uint64_t t0 = hd_now_us(&hd_clock_real), used = 0, need = j->writing.n;
    record_head h;
    hd_status st;
    memset(&j->delta, 0, sizeof j->delta);
    j->n_accepted = 0;
    for (size_t at = 0; at < j->writing.n; at += record_size(h.n_text, h.n_extra)) {
        live *l = row_of(j, head_at(&j->writing, at, &h)->order);
        if (l) touch(j, l); /* now, so that a failure before its turn counts for it too */
        if (l && h.kind != RECORD_EVENT) l->end_in_batch = true;
        need += DB_EVENT_OVERHEAD + (h.n_text + h.n_extra > DB_PAGE / 8 ? DB_PAGE : 0);
    }
    if ((st = db_begin(&j->db, err))) goto failed;
    if (j->writing.n && (st = make_room(j, need, j->cfg.max_bytes, err))) {
        if (st == HD_NOTFOUND) st = hd_fail(err, HD_FULL, "request log: %llu bytes are full of unfinished requests",
                                            (unsigned long long)j->cfg.max_bytes);
        goto failed;
    }
    if ((st = write_ring(j, err)) || (owed && (st = write_owed(j, err))) || (st = write_jobs(j, jobs, err)) ||
        (st = db_used(&j->db, &used, err)) || (st = db_commit(&j->db, err)))
        goto failed;
    pthread_mutex_lock(&j->mu);
    add_delta(j, hd_now_us(&hd_clock_real) - t0, used);
    pthread_mutex_unlock(&j->mu);
    return HD_OK;
failed:
    db_rollback(&j->db);
    return st;
}

/* Hand the jobs back to their callers; a sweep with more to do goes to the end of the list. */
static void settle(journal *j, job *jobs, hd_status st, const hd_err *err) {
    pthread_mutex_lock(&j->mu);
    for (job *b = jobs, *next; b; b = next) {
        next = b->next;
        b->next = NULL;
        if (st) {
            b->status = st;
            b->err = *err;
        } else if (b->kind == JOB_ACCEPT && !b->status && b->out->outcome == JOURNAL_NEW) {
            live_put(j, b->row);
            b->row = NULL;
        } else if (b->kind == JOB_SWEEP) {
            b->n += b->n_step;
            if (b->more) {
                *j->last = b;
                j->last = &b->next;
                continue;
            }
        }
        b->finished = true;
    }
    pthread_cond_broadcast(&j->settled);
    pthread_mutex_unlock(&j->mu);
}

/* ---- the writer ---- */

static void deadline_us(struct timespec *t, uint64_t us) {
    t->tv_sec = (time_t)(us / 1000000);
    t->tv_nsec = (long)(us % 1000000) * 1000;
}

/* Wait for work and take it.  False: closing, and all is written. */
static bool take(journal *j, job **jobs, bool *owed) {
    uint64_t bytes = 0;
    ring r;
    job **at;
    pthread_mutex_lock(&j->mu);
    while (!j->first && !j->closing && !j->n_untold && j->n_events < j->cfg.append_every) {
        if (j->filling.n) {
            struct timespec t;
            uint64_t until = j->t_first_us + j->cfg.gather_ms * UINT64_C(1000);
            if (hd_now_us(&hd_clock_real) >= until) break;
            deadline_us(&t, until);
            pthread_cond_timedwait(&j->some, &j->mu, &t);
        } else {
            pthread_cond_wait(&j->some, &j->mu);
        }
    }
    if (!j->first && !j->filling.n && !j->n_untold && j->closing) {
        pthread_mutex_unlock(&j->mu);
        return false;
    }
    r = j->filling;
    j->filling = j->writing;
    j->filling.n = 0;
    j->writing = r;
    j->n_events = 0;
    *owed = j->n_owed != 0;
    *jobs = j->first;
    at = &j->first;
    for (int n = 0; *at && n < BATCH_JOBS; n++) {
        bytes += (*at)->kind == JOB_ACCEPT ? request_bytes((*at)->request) : 0;
        if (n && bytes > BATCH_BYTES) break;
        at = &(*at)->next;
    }
    if (at == &j->first) { /* none waits */
        *jobs = NULL;
    } else {
        j->first = *at;
        if (!j->first) j->last = &j->first;
        *at = NULL;
    }
    pthread_mutex_unlock(&j->mu);
    return true;
}

static void destroy(journal *j);

static void *writer(void *arg) {
    journal *j = arg;
    hd_status last = HD_OK;
    bool owed, abandoned;
    job *jobs;
    while (take(j, &jobs, &owed)) {
        hd_err err = {0};
        if (j->writing.n || jobs || owed) {
            hd_status st = write_batch(j, jobs, owed, &err);
            if (j->writing.n || owed) last = st;
            if (st) {
                batch_failed(j, st);
                hd_log(HD_LOG_WARN, "%s", err.msg);
            }
            tell_losses(j);
            if (!st) batch_committed(j);
            settle(j, jobs, st, &err);
        } else {
            tell_losses(j);
        }
    }
    if (j->n_owed) { /* one more chance; mu is not needed, nobody calls any more */
        hd_err err = {0};
        j->writing.n = 0;
        last = write_batch(j, NULL, true, &err);
    }
    db_close(&j->db);
    if (j->lock_fd >= 0) close(j->lock_fd);
    j->lock_fd = -1;
    pthread_mutex_lock(&j->mu);
    j->close_status = last;
    j->gone = true;
    abandoned = j->abandoned;
    pthread_cond_broadcast(&j->settled);
    pthread_mutex_unlock(&j->mu);
    if (abandoned) destroy(j);
    return NULL;
}

/* ---- opening and closing ---- */

static void destroy(journal *j) {
    if (!j) return;
    db_close(&j->db);
    if (j->lock_fd >= 0) close(j->lock_fd);
    if (j->table)
        for (uint64_t b = 0; b <= j->mask; b++)
            while (j->table[b]) {
                live *l = j->table[b];
                j->table[b] = l->chain;
                hd_free(l);
            }
    hd_free(j->table);
    hd_free(j->filling.p);
    hd_free(j->writing.p);
    if (j->conds_made) {
        pthread_cond_destroy(&j->some);
        pthread_cond_destroy(&j->settled);
    }
    if (j->mu_made) pthread_mutex_destroy(&j->mu);
    hd_free(j);
}

static hd_status set_config(journal_config *c, const journal_config *from, hd_err *err) {
    if (from) *c = *from;
    if (!c->max_bytes) c->max_bytes = DEFAULT_MAX_BYTES;
    if (!c->max_requests) c->max_requests = DEFAULT_MAX_REQUESTS;
    if (!c->max_running) c->max_running = DEFAULT_MAX_RUNNING;
    if (!c->retain_seconds) c->retain_seconds = DEFAULT_RETAIN_SECONDS;
    if (!c->append_every) c->append_every = DEFAULT_APPEND_EVERY;
    if (!c->gather_ms) c->gather_ms = DEFAULT_GATHER_MS;
    if (!c->queue_bytes) c->queue_bytes = DEFAULT_QUEUE_BYTES;
    if (c->max_bytes < JOURNAL_MIN_BYTES || c->max_bytes > INT64_MAX)
        return hd_fail_field(err, HD_INVALID, "max_bytes", "request log: its size limit is at least %d bytes", JOURNAL_MIN_BYTES);
    if (c->queue_bytes < JOURNAL_MIN_QUEUE_BYTES || c->queue_bytes > MAX_QUEUE_BYTES)
        return hd_fail_field(err, HD_INVALID, "queue_bytes", "request log: its queue has %d to %d bytes", JOURNAL_MIN_QUEUE_BYTES,
                             MAX_QUEUE_BYTES);
    if (c->retain_seconds > INT64_MAX) c->retain_seconds = INT64_MAX;
    return HD_OK;
}

/* The directory, and it is ours alone.  The lock goes with the process, so none is ever left behind. */
static hd_status lock_dir(journal *j, const char *dir, hd_err *err) {
    char path[4100], text[PID_TEXT] = "";
    struct stat sb;
    ssize_t n;
    if (snprintf(path, sizeof path, "%s/requests.lock", dir) >= (int)sizeof path)
        return hd_fail(err, HD_INVALID, "request log: the path of the state directory is too long");
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return hd_fail(err, HD_IO, "request log: cannot make %s: %s", dir, strerror(errno));
    j->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (j->lock_fd < 0 || fstat(j->lock_fd, &sb) != 0) return hd_fail(err, HD_IO, "request log: %s: %s", path, strerror(errno));
    if (!S_ISREG(sb.st_mode)) return hd_fail(err, HD_IO, "request log: %s is not a plain file", path);
    if (flock(j->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return hd_fail(err, HD_IO, "request log: %s: %s", path, strerror(errno));
        n = pread(j->lock_fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = 0;
        text[strspn(text, "0123456789")] = 0;
        return hd_fail(err, HD_IO, "request log: the state directory %s is in use by %s%s: give each server its own", dir,
                       *text ? "process " : "another process", text);
    }
    n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    /* Who we are is a courtesy: a full disk is no reason to refuse. */
    if (ftruncate(j->lock_fd, 0) != 0 || pwrite(j->lock_fd, text, (size_t)n, 0) != n) (void)!ftruncate(j->lock_fd, 0);
    return HD_OK;
}

static bool any(void *ctx, uint64_t index, const journal_event *ev) {
    (void)ctx, (void)index, (void)ev;
    return true;
}

/* One unfinished request into the table; its events from the first damaged one on are dropped. */
static hd_status load_one(journal *j, uint64_t order, hd_err *err) {
    journal_entry *e;
    hd_err why = {0};
    live *l;
    hd_status st = db_find_order(&j->db, order, &e, &why);
    if (st == HD_FAILED || st == HD_NOTFOUND) {
        hd_log(HD_LOG_WARN, "request log: unfinished request %llu is damaged and cannot go on", (unsigned long long)order);
        j->stat.damaged++;
        return db_put_outcome(&j->db, order, JOURNAL_FAILED, true, hd_wall_seconds(), NULL, 0, err);
    }
    if (st) {
        if (err) *err = why;
        return st;
    }
    if (!(l = live_new(e->request.id, e->request.n_choices))) {
        st = hd_fail(err, HD_NOMEM, "request log: no memory for an unfinished request");
        goto out;
    }
    l->order = order;
    live_put(j, l);
    for (uint32_t c = 0; c < l->n_choices && !st; c++) {
        st = db_read_events(&j->db, order, c, 0, any, NULL, &l->next[c], &why);
        if (st == HD_FAILED) {
            hd_log(HD_LOG_WARN, "%s; it is computed again from there", why.msg);
            j->stat.damaged++;
            st = db_trim(&j->db, order, c, l->next[c], err);
        } else if (st && err) {
            *err = why;
        }
    }
out:
    journal_entry_free(e);
    return st;
}

static hd_status load(journal *j, hd_err *err) {
    uint64_t order = 0, buckets = 16, used;
    hd_status st;
    while (buckets < 2 * (uint64_t)j->cfg.max_running && buckets < 1 << 20) buckets *= 2;
    if (!(j->table = hd_calloc(buckets, sizeof *j->table))) return hd_fail(err, HD_NOMEM, "request log: no memory for its table");
    j->mask = buckets - 1;
    while (!(st = db_next_running(&j->db, order, &order, err)))
        if ((st = load_one(j, order, err))) return st;
    if (st != HD_NOTFOUND || (st = db_used(&j->db, &used, err))) return st;
    j->stat.requests = j->db.n_requests;
    j->stat.bytes = used;
    j->stat.moved_aside = j->db.moved_aside;
    return HD_OK;
}

static bool make_cond(pthread_cond_t *c) {
    pthread_condattr_t a;
    bool made;
    if (pthread_condattr_init(&a)) return false;
    made = !pthread_condattr_setclock(&a, CLOCK_MONOTONIC) && !pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
    return made;
}

hd_status journal_open(journal **out, const char *dir, const journal_config *cfg, hd_err *err) {
    journal *j = hd_calloc(1, sizeof *j);
    hd_status st;
    *out = NULL;
    if (!j) return hd_fail(err, HD_NOMEM, "request log: no memory");
    j->lock_fd = -1;
    j->last = &j->first;
    if ((st = set_config(&j->cfg, cfg, err))) goto fail;
    st = HD_NOMEM;
    if (!(j->filling.p = hd_alloc(j->cfg.queue_bytes)) || !(j->writing.p = hd_alloc(j->cfg.queue_bytes))) {
        hd_fail(err, st, "request log: no memory for a queue of twice %u bytes", j->cfg.queue_bytes);
        goto fail;
    }
    if (pthread_mutex_init(&j->mu, NULL)) goto no_thread;
    j->mu_made = true;
    if (!make_cond(&j->some)) goto no_thread;
    if (!make_cond(&j->settled)) {
        pthread_cond_destroy(&j->some);
        goto no_thread;
    }
    j->conds_made = true;
    if ((st = lock_dir(j, dir, err)) || (st = db_open(&j->db, dir, j->cfg.vfs, j->cfg.max_bytes, err)) || (st = load(j, err)))
        goto fail;
    j->cfg.vfs = NULL; /* the caller's text */
    if (pthread_create(&j->thread, NULL, writer, j)) goto no_thread;
    *out = j;
    return HD_OK;
no_thread:
    st = hd_fail(err, HD_NOMEM, "request log: no writer thread");
fail:
    destroy(j);
    return st;
}

hd_status journal_close(journal *j, uint32_t timeout_ms, hd_err *err) {
    struct timespec t;
    hd_status st;
    bool gone;
    if (!j) return HD_OK;
    deadline_us(&t, hd_now_us(&hd_clock_real) + timeout_ms * UINT64_C(1000));
    pthread_mutex_lock(&j->mu);
    j->closing = true;
    pthread_cond_signal(&j->some);
    while (!j->gone && pthread_cond_timedwait(&j->settled, &j->mu, &t) == 0) {}
    gone = j->gone;
    if (gone) {
        pthread_mutex_unlock(&j->mu);
        pthread_join(j->thread, NULL);
        st = j->close_status ? hd_fail(err, HD_IO, "request log: the last write failed") : HD_OK;
        destroy(j);
        return st;
    }
    j->abandoned = true; /* from here on it is the writer's */
    pthread_detach(j->thread);
    pthread_mutex_unlock(&j->mu);
    return hd_fail(err, HD_TIMEOUT, "request log: still writing after %u ms", timeout_ms);
}
