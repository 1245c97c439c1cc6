/* store_write.c - the writer thread: from the queue to segments.
 *
 * Many pages share a segment because what costs is the sync, not the bytes: a file per page is several times slower
 * (docs/performance.md).  So pages wait for each other, up to segment_bytes or linger_ms, whichever comes first.
 * A page is settled once: durable, written by another process meanwhile, or given up.
 * Read: store_writer, then write_some, write_segment, settle. */
#include "state/store_int.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The pages at the head of the queue that may be written together; full: waiting brings no more into this segment.
 * mu is held. */
static uint32_t ready(store *s, uint64_t *bytes, bool *full) {
    uint32_t n = 0;
    *bytes = 0;
    *full = false;
    while (n < s->n_slots && !*full) {
        const store_slot *q = store_slot_at(s, n);
        uint64_t b = seg_block_bytes(&q->page.e);
        if (q->state == Q_FILLING) break;
        if (n && *bytes + b > s->opt.segment_bytes) {
            *full = true;
        } else {
            *bytes += b;
            *full = ++n == SEG_MAX_BLOCKS || *bytes >= s->opt.segment_bytes;
        }
    }
    return n;
}

/* The first n pages leave the queue: durable in segment `seg`, or given up (seg == STORE_NONE).  mu is held. */
static void settle(store *s, uint32_t n, int32_t seg) {
    for (uint32_t i = 0, block = 0; i < n; i++) {
        store_slot *q = store_slot_at(s, i);
        const store_entry *e = store_index_find(s, &q->page.e.key);
        /* Is it this very page?  A fuller one may have been put under the same key since. */
        bool current = e && e->seg == STORE_QUEUED_SEG && &s->slots[e->number] == q;
        if (q->state == Q_SKIP) continue;
        if (seg == STORE_NONE) {
            if (current) store_index_drop(s, &q->page.e.key);
            s->n.put_failed++;
            s->failed_since_flush++;
        }
        if (seg != STORE_NONE && current) store_index_set(s, &q->page.e, seg, block);
        block++; /* blocks lie in the order of the queue */
    }
    for (uint32_t i = 0; i < n; i++) {
        store_slot *q = store_slot_at(s, 0);
        /* None comes anew: it is not found any more, except under a fuller one's key, which has another slot. */
        while (q->readers) pthread_cond_wait(&s->done, &s->mu);
        s->n.queue_bytes -= q->ring_bytes;
        s->n.queue_pages--;
        s->done_seq = q->seq + 1;
        s->slot_head = (s->slot_head + 1) % s->opt.max_queued;
        s->n_slots--;
    }
    pthread_cond_broadcast(&s->done);
}

static hd_status failed(store *s, hd_err *err, int r, const char *what) {
    return hd_fail_at(err, HD_IO, (uint64_t)-r, "%s: %s: %s", s->path, what, strerror(-r));
}

/* Write the batch as one file.  With the directory's lock held; it is given back once the file has its size, and taken
 * again to rename: who lists a directory may miss a file whose name changes meanwhile, and would let it grow past the cap. */
static hd_status write_segment(store *s, uint32_t n, uint64_t size, seg_head *h, hd_err *err) {
    const vfs *fs = s->fs;
    uint8_t id[SEG_ID];
    char tmp[SEG_NAME], name[SEG_NAME];
    hd_status st = HD_OK;
    bool renamed = false;
    int fd = -1, r = fs->random(fs->ctx, id, sizeof id);
    if (!r) {
        seg_name(tmp, id, true);
        seg_name(name, id, false);
        if ((fd = fs->open(fs->ctx, s->dir, tmp, VFS_MAKE)) < 0) r = fd;
    }
    if (!r) r = fs->lock(fs->ctx, fd, true); /* tells others that its writer lives */
    if (!r) r = fs->reserve(fs->ctx, fd, size);
    store_dir_unlock(s);
    if (r) st = failed(s, err, r, "a new file");
    if (!st) st = seg_write(h, fs, fd, id, &s->master, s->batch, n, s->scratch, STORE_SCRATCH, err);
    if (!st && (r = fs->sync(fs->ctx, fd))) st = failed(s, err, r, "sync");
    if (!st && !(st = store_dir_lock(s, err))) {
        if ((r = fs->rename(fs->ctx, s->dir, tmp, name))) st = failed(s, err, r, "rename");
        store_dir_unlock(s);
    }
    if (!st) {
        renamed = true;
        if ((r = fs->sync(fs->ctx, s->dir))) st = failed(s, err, r, "sync of the directory");
    }
    if (fd >= 0) fs->close(fs->ctx, fd);
    /* After a failed sync nobody knows what reached the disk, so the file is of no use, renamed or not. */
    if (st && fd >= 0) fs->unlink(fs->ctx, s->dir, renamed ? name : tmp);
    return st;
}

/* mu is held. */
static void pause_writing(store *s, const hd_err *err) {
    s->n.write_errors++;
    s->n.writing = false;
    s->t_retry_us = store_now_us() + s->opt.retry_ms * (uint64_t)1000;
    snprintf(s->n.last_error, sizeof s->n.last_error, "%.199s", err->msg);
}

/* Write the first n pages, or give them up.  mu is held at entry and at return. */
static void write_some(store *s, uint32_t n, uint64_t bytes) {
    hd_err err = {0};
    seg_head h = {.size = 0};
    hd_status st;
    uint32_t batch = 0;
    int32_t seg = STORE_NONE;
    int64_t now_s;
    bool paused = false;
    pthread_mutex_unlock(&s->mu);
    st = store_dir_lock(s, &err);
    if (!st) {
        st = store_dir_pass(s, true, seg_file_bytes(bytes, n), 1, n, &err);
        if (st) store_dir_unlock(s);
    }
    if (!st) {
        pthread_mutex_lock(&s->mu);
        bytes = 0;
        for (uint32_t i = 0; i < n; i++) {
            store_slot *q = store_slot_at(s, i);
            if (q->state == Q_SKIP) continue;
            s->batch[batch++] = &q->page;
            bytes += seg_block_bytes(&q->page.e);
        }
        pthread_mutex_unlock(&s->mu);
        if (batch) st = write_segment(s, batch, seg_file_bytes(bytes, batch), &h, &err);
        else store_dir_unlock(s);
    }
    now_s = s->fs->now_s(s->fs->ctx);
    pthread_mutex_lock(&s->mu);
    if (!st && batch) {
        seg = store_seg_add(s, &h, true, now_s);
        s->n.written_bytes += h.size;
        s->n.files++;
        s->n.bytes += h.size;
    }
    if (st) {
        /* That others hold the lock or take all the room passes; a disk that fails had better be left alone for a while. */
        paused = s->n.writing && st != HD_TIMEOUT && st != HD_FULL;
        if (paused) pause_writing(s, &err);
        else snprintf(s->n.last_error, sizeof s->n.last_error, "%.199s", err.msg);
    }
    seal_wipe(&h, sizeof h);
    settle(s, n, seg);
    if (paused) {
        pthread_mutex_unlock(&s->mu);
        hd_log(HD_LOG_WARN, "state: no pages are written for %u s: %s", s->opt.retry_ms / 1000, err.msg);
        pthread_mutex_lock(&s->mu);
    }
}

void *store_writer(void *arg) {
    store *s = arg;
    pthread_mutex_lock(&s->mu);
    while (!s->stop) {
        uint64_t bytes, due;
        uint32_t n;
        bool full;
        const store_slot *q;
        if (s->scans_asked != s->scans_done) {
            uint64_t asked = s->scans_asked;
            pthread_mutex_unlock(&s->mu);
            store_dir_pass(s, false, 0, 0, 0, NULL);
            pthread_mutex_lock(&s->mu);
            s->scans_done = asked;
            pthread_cond_broadcast(&s->done);
            continue;
        }
        if (!(n = ready(s, &bytes, &full))) {
            pthread_cond_wait(&s->work, &s->mu);
            continue;
        }
        if (!s->n.writing) {
            settle(s, n, STORE_NONE);
            continue;
        }
        q = store_slot_at(s, 0);
        due = q->t_us + s->opt.linger_ms * (uint64_t)1000;
        if (full || q->seq < s->flush_seq || s->n.queue_bytes >= s->opt.queue_bytes / 2 || s->n_slots >= s->opt.max_queued / 2 ||
            store_now_us() >= due)
            write_some(s, n, bytes);
        else store_wait(s, &s->work, due);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}
