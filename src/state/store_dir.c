/* store_dir.c - the directory: what others wrote or removed, and what has to go to make room.
 *
 * Only whole segments have names that end in .kv, so whatever reads as damaged there is removed.  Files of another version
 * or another key are left alone, but count, and go like any other when there is no room: a cap is a cap.  Files with names
 * of another form are never touched.  Making room happens under the directory's lock, and a new file is given its full
 * size under it too, so that the files never have more than cap_bytes together, whoever writes. */
#include "state/store_int.h"

#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOCK_WAIT_MS = 2000, LOCK_STEP_MS = 5, VALUE_UNKNOWN_BYTES_PER_US = 32 /* about 1 ms per token of a small model */ };

typedef struct {
    uint8_t id[SEG_ID];
    bool temporary, stated, gone;
    int32_t seg;
    vfs_stat st;
    double score; /* the highest goes first */
} listed;

typedef struct {
    listed *v;
    size_t n, cap;
    bool no_memory;
} listing;

uint64_t store_listing_bytes(void) { return STORE_MAX_LISTED * sizeof(listed); }

static bool list_one(void *ctx, const char *name) {
    listing *l = ctx;
    listed x = {.seg = STORE_NONE};
    if (!seg_parse_name(name, x.id, &x.temporary)) return true;
    if (l->n == STORE_MAX_LISTED) return false;
    if (!hd_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v, STORE_MAX_LISTED)) {
        l->no_memory = true;
        return false;
    }
    l->v[l->n++] = x;
    return true;
}

static int by_id(const void *a, const void *b) {
    const listed *x = a, *y = b;
    int r = memcmp(x->id, y->id, SEG_ID);
    return r ? r : (int)x->temporary - (int)y->temporary;
}

static int by_score(const void *a, const void *b) {
    double x = ((const listed *)a)->score, y = ((const listed *)b)->score;
    return x < y ? 1 : x > y ? -1 : by_id(a, b);
}

void store_remove(store *s, const uint8_t id[SEG_ID]) {
    char name[SEG_NAME];
    seg_name(name, id, false);
    s->fs->unlink(s->fs->ctx, s->dir, name);
}

/* Forget what is no longer there; tell the listed ones which segment they are. */
static void match(store *s, listing *l, bool complete) {
    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < s->n_segs; i++) {
        listed want = {.temporary = false}, *at;
        if (!s->segs[i].used) continue;
        memcpy(want.id, s->segs[i].h.id, SEG_ID);
        at = l->n ? bsearch(&want, l->v, l->n, sizeof *l->v, by_id) : NULL;
        if (at) at->seg = (int32_t)i;
        else if (complete) store_seg_drop(s, (int32_t)i);
    }
    pthread_mutex_unlock(&s->mu);
}

static void count_damaged(store *s) {
    pthread_mutex_lock(&s->mu);
    s->n.damaged_files++;
    pthread_mutex_unlock(&s->mu);
}

static bool stat_one(store *s, listed *x) {
    char name[SEG_NAME];
    seg_name(name, x->id, x->temporary);
    if (!x->stated) x->gone = s->fs->stat(s->fs->ctx, s->dir, name, &x->st) != 0 || !x->st.regular;
    x->stated = true;
    return !x->gone;
}

/* Read an unknown segment's head and index.  HD_OK also when it is not for us; HD_NOMEM. */
static hd_status load(store *s, listed *x) {
    const vfs *fs = s->fs;
    char name[SEG_NAME];
    seg_head h;
    hd_status st;
    int fd;
    if (!stat_one(s, x)) return HD_OK;
    seg_name(name, x->id, false);
    if ((fd = fs->open(fs->ctx, s->dir, name, VFS_READ)) < 0) {
        x->gone = fd == -ENOENT;
        return HD_OK;
    }
    st = seg_read_head(&h, fs, fd, x->st.size, x->id, &s->master, NULL);
    if (!st) st = seg_read_index(s->loading, s->scratch, fs, fd, &h, NULL);
    fs->close(fs->ctx, fd);
    if (st == HD_INVALID) {
        x->gone = true;
        store_remove(s, x->id);
        count_damaged(s);
    } else if (st == HD_OK || st == HD_UNSUPPORTED) {
        if (st) memcpy(h.id, x->id, SEG_ID);
        pthread_mutex_lock(&s->mu);
        x->seg = store_seg_add(s, &h, st == HD_OK, x->st.mtime_s);
        if (x->seg != STORE_NONE && !st) store_index_take(s, x->seg, s->loading, h.n_blocks);
        pthread_mutex_unlock(&s->mu);
        if (x->seg == STORE_NONE) st = HD_NOMEM;
    }
    seal_wipe(&h, sizeof h);
    if (s->master.on) seal_wipe(s->loading, SEG_MAX_BLOCKS * sizeof *s->loading);
    return st == HD_NOMEM ? HD_NOMEM : HD_OK;
}

/* An unfinished file whose writer is gone: nobody holds its lock.  The directory's lock is held, as it is while a new file is
 * made and locked, so none is met in between. */
static void remove_orphan(store *s, listed *x) {
    const vfs *fs = s->fs;
    char name[SEG_NAME];
    int fd;
    seg_name(name, x->id, true);
    if ((fd = fs->open(fs->ctx, s->dir, name, VFS_READ)) < 0) return;
    if (!fs->lock(fs->ctx, fd, true) && !fs->unlink(fs->ctx, s->dir, name)) x->gone = true;
    fs->close(fs->ctx, fd);
}

static double score(store *s, const listed *x, int64_t now_s) {
    double age = now_s > x->st.mtime_s ? (double)(now_s - x->st.mtime_s) : 0, value = 0;
    pthread_mutex_lock(&s->mu);
    if (x->seg != STORE_NONE && s->segs[x->seg].used) value = (double)s->segs[x->seg].h.value_us;
    pthread_mutex_unlock(&s->mu);
    if (value < 1) value = (double)x->st.size / VALUE_UNKNOWN_BYTES_PER_US + 1;
    /* A minute more, so that among fresh ones value decides and not the second. */
    return (age + 60) * (double)x->st.size / value;
}

static uint32_t pages_of(store *s, int32_t seg) {
    uint32_t n = 0;
    pthread_mutex_lock(&s->mu);
    if (seg != STORE_NONE && s->segs[seg].used && s->segs[seg].ours) n = s->segs[seg].h.n_blocks;
    pthread_mutex_unlock(&s->mu);
    return n;
}

static hd_status make_room_for(store *s, listing *l, uint64_t need_bytes, uint32_t need_files, uint32_t need_pages, hd_err *err) {
    int64_t now_s = s->fs->now_s(s->fs->ctx);
    uint64_t bytes = need_bytes, files = need_files, pages = need_pages;
    int r = 0;
    for (size_t i = 0; i < l->n; i++) {
        listed *x = &l->v[i];
        if (x->gone || !stat_one(s, x)) continue;
        if (x->temporary) remove_orphan(s, x);
        if (x->gone) continue;
        bytes += x->st.size;
        files++;
        pages += pages_of(s, x->seg);
        x->score = x->temporary ? -1 : score(s, x, now_s);
    }
    if (l->n) qsort(l->v, l->n, sizeof *l->v, by_score);
    for (size_t i = 0; i < l->n; i++) {
        listed *x = &l->v[i];
        char name[SEG_NAME];
        if (bytes <= s->opt.cap_bytes && files <= s->opt.max_files && pages <= s->opt.max_pages) break;
        if (x->gone || x->temporary) continue;
        seg_name(name, x->id, false);
        r = s->fs->unlink(s->fs->ctx, s->dir, name);
        if (r && r != -ENOENT) continue;
        x->gone = true;
        bytes -= x->st.size;
        files--;
        pages -= pages_of(s, x->seg);
        pthread_mutex_lock(&s->mu);
        if (x->seg != STORE_NONE) store_seg_drop(s, x->seg);
        s->n.evicted_files++;
        s->n.evicted_bytes += x->st.size;
        pthread_mutex_unlock(&s->mu);
    }
    pthread_mutex_lock(&s->mu);
    s->n.bytes = bytes - need_bytes;
    pthread_mutex_unlock(&s->mu);
    if (bytes <= s->opt.cap_bytes && files <= s->opt.max_files && pages <= s->opt.max_pages) return HD_OK;
    return hd_fail(err, HD_FULL, "%s: nothing more can go to make room%s%s", s->path, r ? ": " : "", r ? strerror(-r) : "");
}

static void count(store *s, const listing *l, bool stated) {
    uint64_t files = 0, bytes = 0, ignored = 0;
    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < l->n; i++) {
        const listed *x = &l->v[i];
        if (x->gone || x->temporary) continue;
        files++;
        if (x->seg == STORE_NONE || !s->segs[x->seg].used) continue;
        bytes += s->segs[x->seg].h.size;
        ignored += !s->segs[x->seg].ours;
    }
    s->n.files = files;
    s->n.ignored_files = ignored;
    if (!stated) s->n.bytes = bytes;
    pthread_mutex_unlock(&s->mu);
}

hd_status store_dir_pass(store *s, bool make_room, uint64_t need_bytes, uint32_t need_files, uint32_t need_pages, hd_err *err) {
    const vfs *fs = s->fs;
    listing l = {NULL, 0, 0, false};
    uint64_t changed = fs->changed(fs->ctx, s->dir);
    hd_status st = HD_OK;
    int r;
    if (!make_room && changed && changed == s->dir_changed) return HD_OK;
    if ((r = fs->list(fs->ctx, s->dir, list_one, &l))) st = hd_fail_at(err, HD_IO, (uint64_t)-r, "%s: %s", s->path, strerror(-r));
    if (!st && l.no_memory) st = hd_fail(err, HD_NOMEM, "%s: no memory to list it", s->path);
    if (!st) {
        if (l.n) qsort(l.v, l.n, sizeof *l.v, by_id);
        match(s, &l, l.n < STORE_MAX_LISTED);
        for (size_t i = 0; i < l.n && !st; i++)
            if (!l.v[i].temporary && l.v[i].seg == STORE_NONE) st = load(s, &l.v[i]);
        if (st) hd_fail(err, st, "%s: no memory for what is in it", s->path);
    }
    if (!st && make_room) st = make_room_for(s, &l, need_bytes, need_files, need_pages, err);
    if (!st) {
        count(s, &l, make_room);
        s->dir_changed = make_room ? 0 : changed;
    }
    hd_free(l.v);
    return st;
}

hd_status store_dir_lock(store *s, hd_err *err) {
    for (int ms = 0;; ms += LOCK_STEP_MS) {
        struct timespec step = {0, LOCK_STEP_MS * 1000000};
        int r = s->fs->lock(s->fs->ctx, s->lock_fd, true);
        if (!r) return HD_OK;
        if (r != -EWOULDBLOCK) return hd_fail_at(err, HD_IO, (uint64_t)-r, "%s/lock: %s", s->path, strerror(-r));
        if (ms >= LOCK_WAIT_MS)
            return hd_fail(err, HD_TIMEOUT, "%s/lock: held by another process for %d ms", s->path, LOCK_WAIT_MS);
        nanosleep(&step, NULL);
    }
}

void store_dir_unlock(store *s) { s->fs->lock(s->fs->ctx, s->lock_fd, false); }
