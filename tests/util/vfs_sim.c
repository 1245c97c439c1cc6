/* vfs_sim.c - the directory of vfs_sim.h. */
#include "util/vfs_sim.h"

#include "util/runs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void drop(sim_file *f) {
    if (!f || --f->refs) return;
    free(f->data);
    free(f->disk);
    free(f);
}

static sim_file *take(sim_file *f) {
    f->refs++;
    return f;
}

static sim_name *look(sim_name *names, const char *name) {
    for (int i = 0; i < SIM_FILES; i++)
        if (names[i].f && !strcmp(names[i].name, name)) return &names[i];
    return NULL;
}

static void forget(sim_name *names, const char *name) {
    sim_name *n = look(names, name);
    if (!n) return;
    drop(n->f);
    n->f = NULL;
}

static void set(sim_name *names, const char *name, sim_file *f) {
    take(f);
    forget(names, name);
    for (int i = 0; i < SIM_FILES; i++)
        if (!names[i].f) {
            strcpy(names[i].name, name);
            names[i].f = f;
            return;
        }
    abort();
}

static void note(vfs_sim *s, const char *from, const char *to, sim_file *f) {
    s->changes++;
    if (s->n_log == SIM_LOG) abort();
    strcpy(s->log[s->n_log].from, from);
    strcpy(s->log[s->n_log].to, to);
    s->log[s->n_log++].f = f ? take(f) : NULL;
}

static void apply(sim_name *names, const char *from, const char *to, sim_file *f) {
    if (*from) forget(names, from);
    if (*to) set(names, to, f);
}

/* Count an operation.  0, or what it fails with. */
static int enter(vfs_sim *s) {
    long n;
    pthread_mutex_lock(&s->mu);
    n = s->n_ops++;
    if (s->fail_at >= 0 && (n == s->fail_at || (s->fail_stays && n > s->fail_at))) return -s->fail_errno;
    return 0;
}

static int leave(vfs_sim *s, int r) {
    pthread_mutex_unlock(&s->mu);
    return r;
}

static int new_fd(vfs_sim *s, sim_file *f) {
    for (int i = 0; i < SIM_FDS; i++)
        if (!s->fds[i].used) {
            s->fds[i].used = true;
            s->fds[i].dir = !f;
            s->fds[i].f = f ? take(f) : NULL;
            return i;
        }
    return -EMFILE;
}

static int sim_open_dir(void *ctx, const char *path, bool own) {
    vfs_sim *s = ctx;
    int r = enter(s);
    (void)path;
    (void)own;
    return leave(s, r ? r : new_fd(s, NULL));
}

static int sim_open(void *ctx, int dir, const char *name, vfs_mode mode) {
    vfs_sim *s = ctx;
    int r = enter(s);
    sim_name *n = look(s->names, name);
    sim_file *f;
    (void)dir;
    if (r) return leave(s, r);
    if (!n && mode == VFS_READ) return leave(s, -ENOENT);
    if (n && mode == VFS_MAKE) return leave(s, -EEXIST);
    if (s->read_only && mode != VFS_READ) return leave(s, -EROFS);
    if (n) return leave(s, new_fd(s, n->f));
    f = calloc(1, sizeof *f);
    f->mtime_s = s->now_s;
    set(s->names, name, f);
    note(s, "", name, f);
    return leave(s, new_fd(s, f));
}

static void sim_close(void *ctx, int fd) {
    vfs_sim *s = ctx;
    pthread_mutex_lock(&s->mu);
    if (fd < 0 || fd >= SIM_FDS || !s->fds[fd].used) abort();
    if (s->fds[fd].f && s->fds[fd].f->locker == fd + 1) s->fds[fd].f->locker = 0;
    drop(s->fds[fd].f);
    s->fds[fd].used = false;
    s->fds[fd].f = NULL;
    pthread_mutex_unlock(&s->mu);
}

static size_t part(vfs_sim *s, size_t n) { return s->short_io && n > 1 ? 1 + rng_next(&s->rng) % n : n; }

static int64_t sim_pread(void *ctx, int fd, void *buf, size_t n, uint64_t at) {
    vfs_sim *s = ctx;
    int r = enter(s);
    sim_file *f = s->fds[fd].f;
    if (r) return leave(s, r);
    if (at >= f->size) return leave(s, 0);
    if (n > f->size - at) n = f->size - at;
    n = part(s, n);
    memcpy(buf, f->data + at, n);
    leave(s, 0);
    return (int64_t)n;
}

uint64_t vfs_sim_bytes(vfs_sim *s, const char *suffix) {
    uint64_t n = 0;
    for (int i = 0; i < SIM_FILES; i++) {
        size_t len = strlen(s->names[i].name), k = strlen(suffix);
        if (s->names[i].f && len >= k && !strcmp(s->names[i].name + len - k, suffix)) n += s->names[i].f->size;
    }
    return n;
}

static int resize(vfs_sim *s, sim_file *f, size_t size) {
    uint8_t *p;
    if (size <= f->size) return 0;
    if (vfs_sim_bytes(s, "") + (size - f->size) > s->capacity) return -ENOSPC;
    p = realloc(f->data, size);
    memset(p + f->size, 0, size - f->size);
    f->data = p;
    f->size = size;
    return 0;
}

static int64_t sim_pwrite(void *ctx, int fd, const void *buf, size_t n, uint64_t at) {
    vfs_sim *s = ctx;
    int r = enter(s), full;
    sim_file *f = s->fds[fd].f;
    n = part(s, n);
    if (r) n /= 2; /* a failing write leaves half of it */
    if ((full = resize(s, f, at + n))) return leave(s, full);
    if (n) memcpy(f->data + at, buf, n);
    f->mtime_s = s->now_s;
    leave(s, 0);
    return r ? r : (int64_t)n;
}

static int sim_reserve(void *ctx, int fd, uint64_t size) {
    vfs_sim *s = ctx;
    int r = enter(s);
    return leave(s, r ? r : resize(s, s->fds[fd].f, size));
}

static int sim_sync(void *ctx, int fd) {
    vfs_sim *s = ctx;
    int r = enter(s);
    sim_file *f = s->fds[fd].f;
    s->n_syncs++;
    if (r) return leave(s, r);
    if (f) {
        f->disk = realloc(f->disk, f->size ? f->size : 1);
        if (f->size) memcpy(f->disk, f->data, f->size);
        f->disk_size = f->size;
    } else {
        for (int i = 0; i < s->n_log; i++) {
            apply(s->disk, s->log[i].from, s->log[i].to, s->log[i].f);
            drop(s->log[i].f);
        }
        s->n_log = 0;
    }
    return leave(s, 0);
}

static int sim_rename(void *ctx, int dir, const char *from, const char *to) {
    vfs_sim *s = ctx;
    int r = enter(s);
    sim_name *n = look(s->names, from);
    (void)dir;
    if (r || !n) return leave(s, r ? r : -ENOENT);
    note(s, from, to, n->f);
    apply(s->names, from, to, s->log[s->n_log - 1].f);
    return leave(s, 0);
}

static int sim_unlink(void *ctx, int dir, const char *name) {
    vfs_sim *s = ctx;
    int r = enter(s);
    (void)dir;
    if (!r && !look(s->names, name)) r = -ENOENT;
    if (!r) {
        note(s, name, "", NULL);
        forget(s->names, name);
    }
    return leave(s, r);
}

static int sim_lock(void *ctx, int fd, bool on) {
    vfs_sim *s = ctx;
    int r = enter(s);
    sim_file *f = s->fds[fd].f;
    if (!on) {
        if (f->locker == fd + 1) f->locker = 0;
    } else if (!r) {
        if (f->locker && f->locker != fd + 1) r = -EWOULDBLOCK;
        else f->locker = fd + 1;
    }
    return leave(s, r);
}

static int sim_stat(void *ctx, int dir, const char *name, vfs_stat *out) {
    vfs_sim *s = ctx;
    int r = enter(s);
    sim_name *n = look(s->names, name);
    (void)dir;
    if (r || !n) return leave(s, r ? r : -ENOENT);
    *out = (vfs_stat){n->f->size, n->f->mtime_s, true};
    return leave(s, 0);
}

static int sim_touch(void *ctx, int fd) {
    vfs_sim *s = ctx;
    int r = enter(s);
    if (!r) s->fds[fd].f->mtime_s = s->now_s;
    return leave(s, r);
}

static int sim_list(void *ctx, int dir, bool (*each)(void *, const char *), void *each_ctx) {
    vfs_sim *s = ctx;
    int r = enter(s);
    (void)dir;
    for (int i = 0; i < SIM_FILES && !r; i++)
        if (s->names[i].f && !each(each_ctx, s->names[i].name)) break;
    return leave(s, r);
}

static uint64_t sim_changed(void *ctx, int dir) {
    vfs_sim *s = ctx;
    uint64_t n;
    (void)dir;
    pthread_mutex_lock(&s->mu);
    n = s->changes + 1;
    pthread_mutex_unlock(&s->mu);
    return n;
}

static int sim_random(void *ctx, void *buf, size_t n) {
    vfs_sim *s = ctx;
    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < n; i++) ((uint8_t *)buf)[i] = (uint8_t)(rng_next(&s->rng) >> 8);
    return leave(s, 0);
}

static int64_t sim_now_s(void *ctx) {
    vfs_sim *s = ctx;
    int64_t t;
    pthread_mutex_lock(&s->mu);
    t = s->now_s;
    pthread_mutex_unlock(&s->mu);
    return t;
}

void vfs_sim_init(vfs_sim *s, uint64_t seed) {
    memset(s, 0, sizeof *s);
    s->table = (vfs){s,          sim_open_dir, sim_open, sim_close, sim_pread, sim_pwrite,  sim_reserve, sim_sync, sim_rename,
                     sim_unlink, sim_lock,     sim_stat, sim_touch, sim_list,  sim_changed, sim_random,  sim_now_s};
    pthread_mutex_init(&s->mu, NULL);
    s->rng = seed * 2 + 1;
    s->now_s = 1000000;
    s->capacity = UINT64_MAX;
    s->fail_at = -1;
    s->fail_errno = EIO;
}

static void clear(vfs_sim *s) {
    for (int i = 0; i < SIM_FILES; i++) {
        drop(s->names[i].f);
        drop(s->disk[i].f);
        s->names[i].f = s->disk[i].f = NULL;
    }
    for (int i = 0; i < s->n_log; i++) drop(s->log[i].f);
    s->n_log = 0;
}

void vfs_sim_deinit(vfs_sim *s) {
    clear(s);
    pthread_mutex_destroy(&s->mu);
}

static bool coin(vfs_sim *s) { return rng_next(&s->rng) >> 7 & 1; }

/* What is left of a file: each sector as seen or as synced, what was only ever promised may be zeros. */
static sim_file *remains(vfs_sim *s, const sim_file *f) {
    sim_file *n = calloc(1, sizeof *n);
    size_t size = coin(s) ? f->size : f->disk_size;
    bool whole = f->size == f->disk_size && !memcmp(f->data ? f->data : (uint8_t *)"", f->disk ? f->disk : (uint8_t *)"", f->size);
    if (!whole && coin(s) && f->size > f->disk_size) size = f->disk_size + rng_next(&s->rng) % (f->size - f->disk_size + 1);
    n->size = n->disk_size = size;
    n->data = calloc(1, size + 1);
    n->disk = calloc(1, size + 1);
    n->mtime_s = f->mtime_s;
    for (size_t at = 0; at < size; at += 512) {
        size_t k = size - at < 512 ? size - at : 512;
        bool fresh = coin(s);
        for (size_t i = at; i < at + k; i++) {
            if (fresh && i < f->size) n->data[i] = f->data[i];
            else if (i < f->disk_size) n->data[i] = f->disk[i];
        }
    }
    memcpy(n->disk, n->data, size);
    return n;
}

void vfs_sim_cut(vfs_sim *s) {
    for (int i = 0; i < SIM_FDS; i++)
        if (s->fds[i].used) abort();
    for (int i = 0; i < s->n_log; i++)
        if (coin(s)) apply(s->disk, s->log[i].from, s->log[i].to, s->log[i].f);
    for (int i = 0; i < SIM_FILES; i++)
        if (s->disk[i].f) {
            sim_file *n = remains(s, s->disk[i].f);
            drop(s->disk[i].f);
            s->disk[i].f = take(n);
        }
    for (int i = 0; i < SIM_FILES; i++) {
        drop(s->names[i].f);
        s->names[i] = s->disk[i];
        if (s->names[i].f) take(s->names[i].f);
    }
    for (int i = 0; i < s->n_log; i++) drop(s->log[i].f);
    s->n_log = 0;
    s->changes++;
    s->fail_at = -1;
}

void vfs_sim_copy(vfs_sim *to, const vfs_sim *from) {
    clear(to);
    for (int i = 0; i < SIM_FILES; i++) {
        const sim_file *f = from->names[i].f;
        sim_file *n;
        if (!f) continue;
        n = calloc(1, sizeof *n);
        n->size = n->disk_size = f->size;
        n->data = malloc(f->size + 1);
        n->disk = malloc(f->size + 1);
        if (f->size) memcpy(n->data, f->data, f->size);
        if (f->size) memcpy(n->disk, f->data, f->size);
        n->mtime_s = f->mtime_s;
        set(to->names, from->names[i].name, n);
        set(to->disk, from->names[i].name, n);
    }
    to->changes++;
}

sim_name *vfs_sim_segment(vfs_sim *s, int i) {
    const char *last = "";
    for (;; i--) { /* the next one in the order of names */
        sim_name *best = NULL;
        for (int k = 0; k < SIM_FILES; k++) {
            sim_name *n = &s->names[k];
            if (!n->f || strlen(n->name) < 3 || strcmp(n->name + strlen(n->name) - 3, ".kv")) continue;
            if (strcmp(n->name, last) > 0 && (!best || strcmp(n->name, best->name) < 0)) best = n;
        }
        if (!best || !i) return best;
        last = best->name;
    }
}

int vfs_sim_segments(vfs_sim *s) {
    int n = 0;
    while (vfs_sim_segment(s, n)) n++;
    return n;
}
