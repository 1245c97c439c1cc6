/* store.c - the disk tier's calls: opening, putting into the queue, finding, getting.  The rest: store_int.h. */
#include "state/store_int.h"

#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static _Thread_local bool fail_start; /* test seam */
void store_fail_start(bool on) { fail_start = on; }

uint64_t store_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void store_wait(store *s, pthread_cond_t *c, uint64_t until_us) {
    struct timespec t = {(time_t)(until_us / 1000000), (long)(until_us % 1000000 * 1000)};
    pthread_cond_timedwait(c, &s->mu, &t);
}

/* ---- opening and closing ---- */

static hd_status settle_options(store *s, const store_opts *opts, hd_err *err) {
    store_opts *o = &s->opt;
    *o = *opts;
    if (!o->cap_bytes) o->cap_bytes = (uint64_t)4 << 30;
    if (!o->queue_bytes) o->queue_bytes = (uint64_t)64 << 20;
    /* Larger ones are written no faster (docs/performance.md), and go as a whole; but a large cap must not need many files. */
    if (!o->segment_bytes) o->segment_bytes = o->cap_bytes / 2048 > 8 << 20 ? o->cap_bytes / 2048 : 8 << 20;
    if (!o->max_files) o->max_files = 4096;
    if (!o->max_pages) o->max_pages = 262144;
    if (!o->max_queued) o->max_queued = 4096;
    if (!o->linger_ms) o->linger_ms = 1000;
    if (!o->retry_ms) o->retry_ms = 30000;
    if (!o->rescan_ms) o->rescan_ms = 1000;
    if (o->cap_bytes < 1 << 20) return hd_fail_field(err, HD_INVALID, "cap_bytes", "state: a cap of at least 1 MiB is needed");
    if (o->max_files > STORE_MAX_LISTED / 2) o->max_files = STORE_MAX_LISTED / 2;
    if (o->max_pages > 1u << 28) o->max_pages = 1u << 28;
    if (o->max_queued > 1u << 20) o->max_queued = 1u << 20;
    if (o->segment_bytes > o->cap_bytes / 8) o->segment_bytes = o->cap_bytes / 8;
    if (o->segment_bytes > o->queue_bytes / 2) o->segment_bytes = o->queue_bytes / 2;
    s->fs = o->fs ? o->fs : &vfs_real;
    s->n.cap_bytes = o->cap_bytes;
    s->n.queue_cap_bytes = o->queue_bytes;
    s->n.writing = true;
    return HD_OK;
}

uint64_t store_bytes(const store_opts *opts) {
    store s = {.n_known = 0};
    const store_opts *o = &s.opt;
    uint64_t pages;
    if (settle_options(&s, opts, NULL)) return 0;
    pages = o->cap_bytes / SEG_BLOCK_FIXED; /* no block is smaller */
    pages = (pages < o->max_pages ? pages : o->max_pages) + o->max_queued;
    /* An entry, and its bucket while there are two tables of them. */
    return sizeof s + o->queue_bytes + o->max_queued * sizeof(store_slot) + STORE_SCRATCH +
           SEG_MAX_BLOCKS * (sizeof(seg_page *) + sizeof(seg_entry)) + pages * (sizeof(store_entry) + 3 * sizeof(int32_t)) +
           o->max_files * sizeof(store_seg) + store_listing_bytes();
}

static hd_status refused(hd_err *err, const char *path, int r, const char *what) {
    return hd_fail_field(err, r == -ENOENT ? HD_NOTFOUND : HD_IO, "dir", "state directory %s: %s: %s", path, what, strerror(-r));
}

/* Open dir/kv and its lock, and see that files can be made there. */
static hd_status open_dirs(store *s, hd_err *err) {
    const vfs *fs = s->fs;
    uint8_t id[SEG_ID];
    char name[SEG_NAME];
    int r, n = snprintf(s->path, sizeof s->path, "%s/kv", s->opt.dir);
    if (n < 0 || (size_t)n >= sizeof s->path) return hd_fail_field(err, HD_INVALID, "dir", "state directory: the path is too long");
    if ((r = fs->open_dir(fs->ctx, s->opt.dir, false)) < 0) return refused(err, s->opt.dir, r, "cannot be opened or made");
    s->dir = fs->open_dir(fs->ctx, s->path, true);
    if (s->dir >= 0) fs->sync(fs->ctx, r); /* if that fails, files may later be lost: a miss */
    fs->close(fs->ctx, r);
    if (s->dir < 0) return refused(err, s->path, s->dir, "cannot be opened or made");
    if ((s->lock_fd = fs->open(fs->ctx, s->dir, "lock", VFS_KEEP)) < 0)
        return refused(err, s->path, s->lock_fd, "cannot be written");
    if ((r = fs->random(fs->ctx, id, sizeof id)) || (r = fs->random(fs->ctx, &s->seed, sizeof s->seed)))
        return hd_fail(err, HD_IO, "state: random numbers: %s", strerror(-r));
    seg_name(name, id, true);
    if ((r = fs->open(fs->ctx, s->dir, name, VFS_MAKE)) >= 0) {
        fs->close(fs->ctx, r);
        fs->unlink(fs->ctx, s->dir, name);
    } else if (r != -ENOSPC && r != -EDQUOT) { /* a full disk can still be read */
        return refused(err, s->path, r, "cannot be written");
    }
    return HD_OK;
}

static hd_status first_pass(store *s, hd_err *err) {
    hd_status st = store_dir_lock(s, err);
    if (st == HD_OK) {
        st = store_dir_pass(s, true, 0, 0, 0, err);
        store_dir_unlock(s);
        if (st == HD_FULL) st = HD_OK; /* nothing was removed; writing will say so */
    } else if (st == HD_TIMEOUT) {
        st = store_dir_pass(s, false, 0, 0, 0, err);
    }
    return st;
}

static int start_writer(store *s) {
    sigset_t all, old;
    int r;
    if (fail_start) return EAGAIN;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the program's own threads */
    r = pthread_create(&s->writer, NULL, store_writer, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    s->started = r == 0;
    return r;
}

hd_status store_open(store **out, const store_opts *opts, hd_err *err) {
    pthread_condattr_t attr;
    hd_status st;
    store *s;
    int r;
    *out = NULL;
    if (!opts->dir || !*opts->dir) return hd_fail_field(err, HD_INVALID, "dir", "state: no directory is named");
    if (!(s = hd_calloc(1, sizeof *s))) return hd_fail(err, HD_NOMEM, "state: no memory");
    s->dir = s->lock_fd = -1;
    pthread_mutex_init(&s->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &attr);
    pthread_cond_init(&s->done, &attr);
    pthread_condattr_destroy(&attr);
    if ((st = settle_options(s, opts, err))) goto fail;
    if (s->opt.key_file && (st = seal_load(&s->master, s->opt.key_file, err))) goto fail;
    if (!store_index_init(s) || !(s->scratch = hd_alloc(STORE_SCRATCH)) ||
        !(s->batch = hd_calloc(SEG_MAX_BLOCKS, sizeof *s->batch)) ||
        !(s->loading = hd_calloc(SEG_MAX_BLOCKS, sizeof *s->loading)) || !(s->ring = hd_alloc(s->opt.queue_bytes)) ||
        !(s->slots = hd_calloc(s->opt.max_queued, sizeof *s->slots))) {
        st = hd_fail(err, HD_NOMEM, "state: no memory for a queue of %llu bytes", (unsigned long long)s->opt.queue_bytes);
        goto fail;
    }
    if ((st = open_dirs(s, err)) || (st = first_pass(s, err))) goto fail;
    if ((r = start_writer(s))) {
        st = hd_fail(err, HD_IO, "state: no thread to write with: %s", strerror(r));
        goto fail;
    }
    s->opt.dir = s->opt.key_file = NULL; /* borrowed for this call */
    *out = s;
    return HD_OK;
fail:
    store_close(s);
    return st;
}

void store_close(store *s) {
    if (!s) return;
    if (s->started) {
        pthread_mutex_lock(&s->mu);
        s->stop = true;
        pthread_cond_broadcast(&s->work);
        pthread_cond_broadcast(&s->done);
        pthread_mutex_unlock(&s->mu);
        pthread_join(s->writer, NULL);
    }
    if (s->lock_fd >= 0) s->fs->close(s->fs->ctx, s->lock_fd);
    if (s->dir >= 0) s->fs->close(s->fs->ctx, s->dir);
    store_index_free(s);
    hd_free(s->scratch);
    hd_free(s->batch);
    hd_free(s->loading);
    hd_free(s->ring);
    hd_free(s->slots);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->mu);
    seal_wipe(&s->master, sizeof s->master);
    hd_free(s);
}

/* ---- putting ---- */

/* A piece of the ring and a slot for it, or NULL when there is no room.  mu is held. */
static store_slot *take_slot(store *s, uint64_t bytes) {
    uint64_t cap = s->opt.queue_bytes, at = s->ring_tail, head;
    store_slot *q;
    bytes = (bytes + 63) & ~(uint64_t)63;
    if (s->n_slots == s->opt.max_queued) return NULL;
    if (!s->n_slots) {
        at = 0;
    } else if (head = store_slot_at(s, 0)->ring_at, at > head) {
        if (cap - at < bytes) at = 0;
        if (!at && head < bytes) return NULL;
    } else if (head - at < bytes) {
        return NULL;
    }
    if (cap - at < bytes) return NULL;
    q = store_slot_at(s, s->n_slots++);
    *q = (store_slot){.ring_at = at, .ring_bytes = bytes, .seq = s->next_seq++, .state = Q_FILLING};
    q->page.block = s->ring + at;
    s->ring_tail = at + bytes;
    s->n.queue_bytes += bytes;
    s->n.queue_pages++;
    return q;
}

static hd_status describe(store *s, const store_page *p, seg_entry *e) {
    *e = (seg_entry){.key = p->key, .n_tokens = p->n_tokens, .value_us = p->value_us};
    if (!p->identity || !p->tokens || !p->n_tokens || p->n_tokens > STORE_MAX_TOKENS) return HD_INVALID;
    for (int g = 0; g < STORE_GROUPS; g++) {
        if (!p->blob[g]) continue;
        if (!p->bytes[g] || p->bytes[g] > STORE_MAX_GROUP_BYTES) return HD_INVALID;
        e->bytes[g] = p->bytes[g];
        e->mask |= 1u << g;
    }
    if (!e->mask) return HD_INVALID;
    if (!e->value_us) e->value_us = 1000 * (uint64_t)p->n_tokens;
    if (seg_block_bytes(e) > s->opt.queue_bytes - 63 || seg_file_bytes(seg_block_bytes(e), 1) > s->opt.cap_bytes / 2)
        return HD_NEVER_FITS;
    return HD_OK;
}

/* Is there already all that e has?  mu is held. */
static bool known(store *s, const seg_entry *e) {
    const store_entry *have = store_index_find(s, &e->key);
    if (!have || have->e.n_tokens != e->n_tokens) return false;
    for (int g = 0; g < STORE_GROUPS; g++)
        if (e->bytes[g] && have->e.bytes[g] != e->bytes[g]) return false;
    return true;
}

/* Take a slot for e, waiting at most until then.  mu is held.  HD_OK with *q NULL: known. */
static hd_status enter(store *s, const seg_entry *e, uint32_t wait_ms, store_slot **q) {
    uint64_t until = wait_ms ? store_now_us() + wait_ms * (uint64_t)1000 : 0;
    *q = NULL;
    for (;;) {
        if (s->stop) return HD_CLOSED;
        if (known(s, e)) {
            s->n.put_known++;
            return HD_OK;
        }
        if (!s->n.writing && store_now_us() < s->t_retry_us) return HD_IO;
        s->n.writing = true;
        if ((*q = take_slot(s, seg_block_bytes(e)))) break;
        if (!wait_ms || store_now_us() >= until) return HD_FULL;
        store_wait(s, &s->done, until);
    }
    (*q)->page.e = *e;
    if (store_index_set(s, e, STORE_QUEUED_SEG, (uint32_t)(*q - s->slots))) return HD_OK;
    /* It was the last one taken, so it can be given back. */
    s->n_slots--;
    s->next_seq--;
    s->ring_tail = (*q)->ring_at;
    s->n.queue_bytes -= (*q)->ring_bytes;
    s->n.queue_pages--;
    return HD_NOMEM;
}

hd_status store_put(store *s, const store_page *p, uint32_t wait_ms) {
    seg_entry e;
    store_slot *q;
    uint8_t *to;
    hd_status st = describe(s, p, &e);
    if (st) return st;
    pthread_mutex_lock(&s->mu);
    s->n.puts++;
    st = enter(s, &e, wait_ms, &q);
    if (st) s->n.put_dropped++;
    pthread_mutex_unlock(&s->mu);
    if (st || !q) return st;
    /* The slot is ours until it is READY. */
    seg_block_init(q->page.block, &e, &p->parent, p->identity, p->tokens);
    to = q->page.block + seg_block_head(e.n_tokens);
    for (int g = 0; g < STORE_GROUPS; to += e.bytes[g++])
        if (e.bytes[g]) memcpy(to, p->blob[g], e.bytes[g]);
    pthread_mutex_lock(&s->mu);
    q->state = Q_READY;
    q->t_us = store_now_us();
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->mu);
    return HD_OK;
}

hd_status store_flush(store *s, uint32_t timeout_ms, hd_err *err) {
    uint64_t until = store_now_us() + timeout_ms * (uint64_t)1000, upto;
    hd_status st = HD_OK;
    pthread_mutex_lock(&s->mu);
    upto = s->next_seq;
    if (s->flush_seq < upto) s->flush_seq = upto;
    pthread_cond_signal(&s->work);
    while (s->done_seq < upto && store_now_us() < until) store_wait(s, &s->done, until);
    if (s->done_seq < upto) {
        st = hd_fail(err, HD_TIMEOUT, "state: %llu pages still wait after %u ms", (unsigned long long)(upto - s->done_seq),
                     timeout_ms);
    } else if (s->failed_since_flush) {
        st = hd_fail(err, HD_IO, "state: %llu pages were not written: %s", (unsigned long long)s->failed_since_flush,
                     s->n.last_error);
        s->failed_since_flush = 0;
    }
    pthread_mutex_unlock(&s->mu);
    return st;
}

/* ---- finding and getting ---- */

/* Somebody else may have it: look, but not at every miss.  mu is held. */
static void missed(store *s) {
    uint64_t now = store_now_us();
    if (now - s->t_scan_us < s->opt.rescan_ms * (uint64_t)1000 && s->t_scan_us) return;
    s->t_scan_us = now;
    s->scans_asked++;
    pthread_cond_signal(&s->work);
}

store_where store_find(store *s, const pagekey *key, store_info *info) {
    store_where where = STORE_ABSENT;
    const store_entry *e;
    pthread_mutex_lock(&s->mu);
    if ((e = store_index_find(s, key))) {
        where = e->seg == STORE_QUEUED_SEG ? STORE_QUEUED : STORE_DURABLE;
        if (info) *info = (store_info){{e->e.bytes[0], e->e.bytes[1]}, e->e.value_us, e->e.n_tokens};
    } else {
        missed(s);
    }
    pthread_mutex_unlock(&s->mu);
    return where;
}

void store_rescan(store *s) {
    uint64_t asked;
    pthread_mutex_lock(&s->mu);
    asked = ++s->scans_asked;
    pthread_cond_signal(&s->work);
    while (s->scans_done < asked && !s->stop) pthread_cond_wait(&s->done, &s->mu);
    pthread_mutex_unlock(&s->mu);
}

/* The slot has a reader, so it stays. */
static hd_status get_queued(const store_slot *q, const store_want *w, hd_err *err) {
    const seg_entry *e = &q->page.e;
    const uint8_t *from = q->page.block + seg_block_head(e->n_tokens);
    if (!seg_block_is(q->page.block, e, w->identity, w->tokens))
        return hd_fail(err, HD_NOTFOUND, "state: queued with other tokens");
    for (int g = 0; g < STORE_GROUPS; from += e->bytes[g++])
        if (w->into[g]) memcpy(w->into[g], from, e->bytes[g]);
    return HD_OK;
}

/* HD_IO with *gone: there is no such file any more. */
static hd_status get_durable(store *s, const seg_head *h, const store_entry *e, const store_want *w, bool touch, bool *gone,
                             hd_err *err) {
    const vfs *fs = s->fs;
    char name[SEG_NAME];
    hd_status st;
    int fd;
    seg_name(name, h->id, false);
    if ((fd = fs->open(fs->ctx, s->dir, name, VFS_READ)) < 0) {
        *gone = fd == -ENOENT;
        return hd_fail(err, HD_IO, "state: %s: %s", name, strerror(-fd));
    }
    st = seg_read_block(fs, fd, h, e->number, &e->e, w->identity, w->tokens, w->into, err);
    if (!st && touch) fs->touch(fs->ctx, fd);
    fs->close(fs->ctx, fd);
    return st;
}

/* What was asked of disk is there, is not, or was damaged.  mu is held. */
static hd_status judge_get(store *s, const store_entry *e, const seg_head *h, const store_want *w, hd_status st, bool gone) {
    bool same = s->segs[e->seg].used && !memcmp(s->segs[e->seg].h.id, h->id, SEG_ID);
    if (!st) {
        for (int g = 0; g < STORE_GROUPS; g++)
            if (w->into[g]) s->n.read_bytes += w->bytes[g];
        return HD_OK;
    }
    if (st == HD_NOTFOUND) s->n.foreign++;
    if (st == HD_INVALID) s->n.damaged_files++;
    if (same && (st == HD_INVALID || gone)) store_seg_drop(s, e->seg);
    return st == HD_NOMEM ? HD_NOMEM : HD_NOTFOUND;
}

hd_status store_get(store *s, const store_want *w, hd_err *err) {
    const store_entry *found;
    store_entry e;
    store_slot *q = NULL;
    seg_head h;
    bool touch = false, gone = false, fits;
    int64_t now_s = s->fs->now_s(s->fs->ctx);
    hd_status st = HD_NOTFOUND;
    pthread_mutex_lock(&s->mu);
    if (!(found = store_index_find(s, &w->key))) {
        s->n.misses++;
        missed(s);
        pthread_mutex_unlock(&s->mu);
        return hd_fail(err, HD_NOTFOUND, "state: no such page");
    }
    e = *found;
    fits = e.e.n_tokens == w->n_tokens;
    for (int g = 0; g < STORE_GROUPS; g++) fits = fits && (!w->into[g] || (w->bytes[g] && e.e.bytes[g] == w->bytes[g]));
    if (fits && e.seg == STORE_QUEUED_SEG) {
        q = &s->slots[e.number];
        if (q->state == Q_FILLING) q = NULL;
        else q->readers++;
    } else if (fits) {
        store_seg *g = &s->segs[e.seg];
        h = g->h;
        if ((touch = g->touched_s + STORE_TOUCH_S <= now_s)) g->touched_s = now_s;
    }
    pthread_mutex_unlock(&s->mu);

    if (!fits) st = hd_fail(err, HD_NOTFOUND, "state: the page lacks a group, or has another size");
    else if (q) st = get_queued(q, w, err);
    else if (e.seg == STORE_QUEUED_SEG) st = hd_fail(err, HD_NOTFOUND, "state: the page is being put");
    else st = get_durable(s, &h, &e, w, touch, &gone, err);
    if (st == HD_INVALID) store_remove(s, h.id);

    pthread_mutex_lock(&s->mu);
    if (q) {
        s->n.foreign += st == HD_NOTFOUND;
        if (--q->readers == 0) pthread_cond_broadcast(&s->done);
    } else if (fits && e.seg != STORE_QUEUED_SEG) {
        st = judge_get(s, &e, &h, w, st, gone);
        seal_wipe(h.key, sizeof h.key);
    }
    if (st) s->n.misses++;
    else s->n.hits++;
    pthread_mutex_unlock(&s->mu);
    if (st && err) err->code = st;
    return st;
}

void store_stats(store *s, store_counts *out) {
    pthread_mutex_lock(&s->mu);
    *out = s->n;
    out->pages = s->n_known - s->n.queue_pages;
    if (!out->writing && store_now_us() >= s->t_retry_us) out->writing = true;
    pthread_mutex_unlock(&s->mu);
}
