/* journal_writer.c - the writer thread of the request log: takes what waits, writes it in one transaction, tells who waits.
 *
 * The head of journal.c says what a batch is and who may touch what.
 * Read from the end: journal_writer, take, write_batch, then its parts. */
#include "state/journal_run.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>

enum {
    BATCH_JOBS = 256,       /* accepts that share a commit */
    BATCH_BYTES = 16 << 20, /* and their bytes, beyond the first */
    SWEEP_STEP = 32,        /* requests a sweep deletes per transaction, so that accepts get in between */
    RESERVE_SHARE = 8,      /* 1/8 of max_bytes is for events of what is running: accepts stop before */
};

/* ---- the batch: writer thread, inside a transaction ---- */

static const record_head *head_at(const ring *r, size_t at, record_head *h) {
    memcpy(h, r->p + at, sizeof *h);
    return h;
}

static live *row_of(journal *j, uint64_t order) {
    live *l;
    pthread_mutex_lock(&j->mu);
    l = journal_live_find(j, order); /* only we take it out, so it stays */
    pthread_mutex_unlock(&j->mu);
    return l;
}

static void touch(journal *j, live *l) {
    if (l->in_batch) return;
    l->in_batch = true;
    l->touched = j->touched;
    j->touched = l;
}

/* How many events a request that has ended has; DB_LOST: some of them are not on disk. */
static int64_t all_events(journal *j, const live *l) {
    uint64_t n = 0;
    bool lost;
    pthread_mutex_lock(&j->mu);
    lost = l->lost != 0;
    for (uint32_t c = 0; c < l->n_choices; c++) n += l->next[c];
    pthread_mutex_unlock(&j->mu);
    return lost ? DB_LOST : (int64_t)n;
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
            int64_t n = all_events(j, l);
            st = db_put_outcome(&j->db, h.order, (journal_state)h.state, n, h.finished, h.kind == RECORD_END ? p : NULL, h.n_text, err);
            /* Only now, and only if all of it is there: a name never stands for half a response. */
            if (!st && h.state == JOURNAL_FINISHED && n != DB_LOST) st = db_take_name(&j->db, h.order, err);
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
            if ((st = db_put_outcome(&j->db, l->order, l->end_state, DB_LOST, l->end_time, NULL, 0, err))) return st;
            j->delta.finished++;
        }
    }
    return HD_OK;
}

/* A refusal of this job alone: not an error of the batch. */
static hd_status refuse(job *b, hd_status st) {
    b->status = st;
    return HD_OK;
}

/* May it go on from what it wants to go on from?  If not the job is refused. */
static hd_status may_follow(journal *j, job *b) {
    const journal_request *r = b->request;
    db_turn t = {0};
    db_found f;
    hd_status st;
    if (!r->turn || !r->after) return HD_OK;
    st = db_by_order(&j->db, r->after, &f, &b->err);
    if (!st) st = db_turn_look(&j->db, r->after, &t, &b->err);
    if (st == HD_NOTFOUND || st == HD_FAILED)
        return refuse(b, hd_fail_field(&b->err, HD_NOTFOUND, "after", "request log: what it goes on from is not there any more"));
    if (!st && (t.depth >= JOURNAL_TURNS || t.bytes + r->n_turn > JOURNAL_CONVERSATION_BYTES))
        return refuse(b, hd_fail_field(&b->err, HD_INVALID, "after", "a conversation has at most %d turns and %d bytes", JOURNAL_TURNS,
                                       JOURNAL_CONVERSATION_BYTES));
    return st;
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
    if ((st = may_follow(j, b))) goto broken;
    if (b->status) return HD_OK;
    if (n_running >= j->cfg.max_running) {
        j->delta.refused++;
        return refuse(b, hd_fail(&b->err, HD_FULL, "request log: %u durable requests are unfinished", n_running));
    }
    evicted = j->delta.evicted;
    if ((st = db_mark(&j->db, &b->err))) goto broken;
    j->db.keep_turn = r->turn ? r->after : 0; /* the request itself may be what has to go */
    while (!st && j->db.n_requests >= j->cfg.max_requests) st = evict_one(j, &b->err);
    if (!st) {
        uint64_t limit = j->cfg.max_bytes - j->cfg.max_bytes / RESERVE_SHARE;
        st = make_room(j, request_bytes(r) + DB_REQUEST_OVERHEAD + (r->turn || r->name ? DB_TURN_OVERHEAD : 0), limit, &b->err);
    }
    j->db.keep_turn = 0;
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
    hd_status st = db_by_id(&j->db, b->id, &f, &b->err);
    if (st == HD_FAILED) return refuse(b, st); /* this row, not the batch: others would lose their durability for it */
    if (st && st != HD_NOTFOUND) {
        if (err) *err = b->err;
        return st;
    }
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
        journal_live_lose(j, l, st == HD_FULL ? JOURNAL_LOST_SPACE : JOURNAL_LOST_WRITE);
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

/* There is no room for the events of this batch; ends, accepts and deletions go on. */
static void lose_events(journal *j) {
    record_head h;
    pthread_mutex_lock(&j->mu);
    for (size_t at = 0; at < j->writing.n; at += record_size(h.n_text, h.n_extra)) {
        live *l = journal_live_find(j, head_at(&j->writing, at, &h)->order);
        if (!l || h.kind != RECORD_EVENT) continue;
        journal_live_lose(j, l, JOURNAL_LOST_SPACE);
        l->broken = true;
    }
    pthread_mutex_unlock(&j->mu);
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
    if ((st = db_in_place(&j->db, err)) || (st = db_begin(&j->db, err))) goto failed;
    if (j->writing.n && (st = make_room(j, need, j->cfg.max_bytes, err))) {
        if (st != HD_NOTFOUND) goto failed;
        lose_events(j);
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
            journal_live_put(j, b->row);
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
            journal_deadline(&t, until);
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

enum { SAY_AGAIN_US = 60 * 1000000 };

/* A disk that stays full shall not fill another one with what is said about it. */
typedef struct {
    uint64_t n; /* failures since the last success */
    uint64_t t_said_us;
    hd_status said;
} failing;

static void say(failing *f, hd_status st, const hd_err *err) {
    uint64_t now = hd_now_us(&hd_clock_real);
    if (!st) {
        if (f->n) hd_log(HD_LOG_WARN, "request log: it can be written again; %llu commits had failed", (unsigned long long)f->n);
        memset(f, 0, sizeof *f);
        return;
    }
    f->n++;
    if (f->n > 1 && st == f->said && now - f->t_said_us < SAY_AGAIN_US) return;
    hd_log(HD_LOG_WARN, "%s (said again once a minute while it lasts; %llu failed so far)", err->msg, (unsigned long long)f->n);
    f->said = st;
    f->t_said_us = now;
}

void *journal_writer(void *arg) {
    journal *j = arg;
    hd_status last = HD_OK;
    failing f = {0};
    bool owed, abandoned;
    job *jobs;
    while (take(j, &jobs, &owed)) {
        hd_err err = {0};
        if (j->writing.n || jobs || owed) {
            hd_status st = write_batch(j, jobs, owed, &err);
            if (j->writing.n || owed) last = st;
            say(&f, st, &err);
            if (st) batch_failed(j, st);
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
    if (abandoned) journal_destroy(j);
    return NULL;
}
