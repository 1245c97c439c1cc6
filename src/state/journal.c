/* journal.c - see journal.h.  The callers' side: the queue, the table of running requests, opening and closing.  The
 * writer thread is in journal_writer.c, what it does to the file in journal_db.c.
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
 * Read: struct journal (journal_run.h), this file down to the waiting calls, journal_writer.c, opening and closing. */
#include "state/journal_run.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
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

const char *journal_state_name(journal_state s) {
    static const char *const names[] = {"running", "finished", "failed", "cancelled"};
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : "unknown";
}

/* ---- the table ---- */

live *journal_live_find(journal *j, uint64_t order) {
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

void journal_live_put(journal *j, live *l) {
    live **at = &j->table[l->order & j->mask];
    l->chain = *at;
    *at = l;
    j->n_live++;
}

void journal_live_lose(journal *j, live *l, journal_loss why) {
    if (l->lost) return;
    l->lost = why;
    j->n_untold++;
    if (why == JOURNAL_LOST_QUEUE) j->stat.lost_queue++;
    else if (why == JOURNAL_LOST_WRITE) j->stat.lost_write++;
    else j->stat.lost_space++;
}

/* ---- the callers' side: what never waits ---- */

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
    l = journal_live_find(j, order);
    if (!l || l->ended || choice >= l->n_choices) {
        st = hd_fail(err, HD_INVALID, "request log: request %llu is not running or has no choice %u",
                     (unsigned long long)order, choice);
    } else if (l->lost) {
        st = hd_fail(err, HD_CLOSED, "request log: request %llu is not durable any more", (unsigned long long)order);
    } else if (first != l->next[choice]) {
        st = hd_fail(err, HD_INVALID, "request log: the next event of request %llu, choice %u is %llu, not %llu",
                     (unsigned long long)order, choice, (unsigned long long)l->next[choice], (unsigned long long)first);
    } else if (need > j->cfg.queue_bytes - j->filling.n) {
        journal_live_lose(j, l, JOURNAL_LOST_QUEUE);
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
    l = journal_live_find(j, order);
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
            journal_live_lose(j, l, JOURNAL_LOST_QUEUE);
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
    if (r->name && (!*r->name || strnlen(r->name, JOURNAL_NAME_BYTES + 1) > JOURNAL_NAME_BYTES))
        return hd_fail_field(err, HD_INVALID, "name", "request log: a name has 1 to %d bytes", JOURNAL_NAME_BYTES);
    if (!hd_mul(r->n_prompt, sizeof *r->prompt, &bytes) || !hd_add(bytes, r->n_record, &bytes) ||
        !hd_add(bytes, r->turn ? r->n_turn : 0, &bytes) || bytes > JOURNAL_REQUEST_BYTES)
        return hd_fail_field(err, HD_INVALID, "record", "request log: record, prompt and turn are above %d bytes",
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

static void count_damage(journal *j, hd_status st) {
    if (st != HD_FAILED) return;
    pthread_mutex_lock(&j->mu);
    j->stat.damaged++;
    pthread_mutex_unlock(&j->mu);
}

hd_status journal_find(journal *j, const char *id, journal_entry **out, hd_err *err) {
    hd_status st = db_find_id(&j->db, id, out, err);
    count_damage(j, st);
    return st;
}

hd_status journal_find_by_key(journal *j, const uint8_t ns[JOURNAL_DIGEST], const void *key, size_t n_key,
                              journal_entry **out, hd_err *err) {
    hd_status st = db_find_key(&j->db, ns, key, n_key, out, err);
    count_damage(j, st);
    return st;
}

void journal_entry_free(journal_entry *e) { hd_free(e); }

hd_status journal_read_events(journal *j, uint64_t order, uint32_t choice, uint64_t from,
                              bool (*cb)(void *ctx, uint64_t index, const journal_event *ev), void *ctx, hd_err *err) {
    uint64_t next;
    hd_status st = db_read_events(&j->db, order, choice, from, cb, ctx, &next, err);
    count_damage(j, st);
    return st;
}

hd_status journal_conversation(journal *j, uint64_t order, uint32_t *n_turns, uint64_t *n_bytes, hd_err *err) {
    db_turn t = {0};
    hd_status st = db_conversation(&j->db, order, &t, err);
    *n_turns = (uint32_t)t.depth;
    *n_bytes = t.bytes;
    return st;
}

hd_status journal_turns(journal *j, uint64_t order, bool (*cb)(void *ctx, const void *data, size_t n), void *ctx, hd_err *err) {
    hd_status st = db_read_turns(&j->db, order, cb, ctx, err);
    count_damage(j, st);
    return st;
}

hd_status journal_named(journal *j, const uint8_t ns[JOURNAL_DIGEST], const char *name, char id[JOURNAL_ID_BYTES + 1], hd_err *err) {
    hd_status st = db_named(&j->db, ns, name, id, err);
    count_damage(j, st);
    return st;
}

hd_status journal_names(journal *j, const uint8_t ns[JOURNAL_DIGEST], const char *from,
                        bool (*cb)(void *ctx, const char *name, const char *id, int64_t created), void *ctx, hd_err *err) {
    hd_status st = db_names(&j->db, ns, from, cb, ctx, err);
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

/* ---- opening and closing ---- */

void journal_destroy(journal *j) {
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
        return hd_fail(err, HD_IO, "request log: the state directory %s is in use by %s%s: give each server its own, or start without a log (--no-durable)", dir,
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
        return db_put_outcome(&j->db, order, JOURNAL_FAILED, DB_LOST, hd_wall_seconds(), NULL, 0, err);
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
    journal_live_put(j, l);
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
    if (!j->cfg.vfs) db_note_place(&j->db, dir);
    j->cfg.vfs = NULL; /* the caller's text */
    if (pthread_create(&j->thread, NULL, journal_writer, j)) goto no_thread;
    *out = j;
    return HD_OK;
no_thread:
    st = hd_fail(err, HD_NOMEM, "request log: no writer thread");
fail:
    journal_destroy(j);
    return st;
}

hd_status journal_close(journal *j, uint32_t timeout_ms, hd_err *err) {
    struct timespec t;
    hd_status st;
    bool gone;
    if (!j) return HD_OK;
    journal_deadline(&t, hd_now_us(&hd_clock_real) + timeout_ms * UINT64_C(1000));
    pthread_mutex_lock(&j->mu);
    j->closing = true;
    pthread_cond_signal(&j->some);
    while (!j->gone && pthread_cond_timedwait(&j->settled, &j->mu, &t) == 0) {}
    gone = j->gone;
    if (gone) {
        pthread_mutex_unlock(&j->mu);
        pthread_join(j->thread, NULL);
        st = j->close_status ? hd_fail(err, HD_IO, "request log: the last write failed") : HD_OK;
        journal_destroy(j);
        return st;
    }
    j->abandoned = true; /* from here on it is the writer's */
    pthread_detach(j->thread);
    pthread_mutex_unlock(&j->mu);
    return hd_fail(err, HD_TIMEOUT, "request log: still writing after %u ms", timeout_ms);
}
