/* memvfs.c - see memvfs.h. */
#include "util/memvfs.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECTOR = 512, SHM_LOCKS = 8, SHM_REGIONS = 64 };

typedef struct op { /* a write, or a truncation (data NULL) to `at` */
    struct op *next;
    uint64_t at;
    size_t n;
    unsigned char *data;
} op;

typedef struct {
    unsigned char *p;
    size_t n, cap;
} image;

typedef struct file {
    struct file *next;
    char name[256];
    image now, disk;
    op *first, **last;
    bool exists, on_disk; /* as programs see it; as the disk has it */
    int refs;
    int n_shared;
    void *reserved, *pending, *exclusive; /* which handle holds it */
    unsigned char *shm[SHM_REGIONS];
    int shm_shared[SHM_LOCKS];
    void *shm_exclusive[SHM_LOCKS];
} file;

struct memvfs {
    sqlite3_vfs base;
    pthread_mutex_t mu;
    pthread_cond_t released;
    char name[64];
    file *files;
    long fail_in, fail_times, cut_sync, cut_write;
    int fail_code;
    long n_syncs, n_writes;
    bool cut, hold;
};

typedef struct {
    sqlite3_file base;
    memvfs *v;
    file *f;
    int lock;
    unsigned shm_shared; /* bit i: this handle holds it */
} handle;

static void grow(image *m, size_t n) {
    if (n > m->cap) {
        m->cap = n * 2;
        m->p = realloc(m->p, m->cap);
        if (!m->p) abort();
    }
    if (n > m->n) {
        memset(m->p + m->n, 0, n - m->n);
        m->n = n;
    }
}

static void set_size(image *m, size_t n) {
    if (n > m->n) grow(m, n);
    m->n = n;
}

static void put(image *m, uint64_t at, const void *p, size_t n) {
    if (!n) return;
    grow(m, (size_t)at + n);
    memcpy(m->p + at, p, n);
}

static void copy(image *to, const image *from) {
    to->n = 0;
    put(to, 0, from->p, from->n);
}

static void drop_ops(file *f) {
    for (op *o; (o = f->first);) {
        f->first = o->next;
        free(o->data);
        free(o);
    }
    f->last = &f->first;
}

static void remember(file *f, uint64_t at, const void *p, size_t n) {
    op *o = calloc(1, sizeof *o);
    if (!o) abort();
    o->at = at;
    o->n = n;
    if (p) {
        o->data = malloc(n ? n : 1);
        if (!o->data) abort();
        memcpy(o->data, p, n);
    }
    *f->last = o;
    f->last = &o->next;
}

/* SQLITE_OK, or what a write, truncation or sync meets.  With mu held. */
static int trouble(memvfs *v, int io) {
    if (v->cut) return io;
    v->n_writes++;
    if (v->fail_in > 0) {
        v->fail_in--;
    } else if (v->fail_in == 0) {
        if (--v->fail_times <= 0) v->fail_in = -1;
        return v->fail_code == SQLITE_IOERR ? io : v->fail_code;
    }
    return SQLITE_OK;
}

static int x_close(sqlite3_file *s) {
    handle *h = (handle *)s;
    pthread_mutex_lock(&h->v->mu);
    h->f->refs--;
    pthread_mutex_unlock(&h->v->mu);
    return SQLITE_OK;
}

static int x_read(sqlite3_file *s, void *p, int n, sqlite3_int64 at) {
    handle *h = (handle *)s;
    const image *m = &h->f->now;
    int rc = SQLITE_OK;
    pthread_mutex_lock(&h->v->mu);
    if (h->v->cut) {
        rc = SQLITE_IOERR_READ;
    } else {
        size_t have = (size_t)at >= m->n ? 0 : m->n - (size_t)at < (size_t)n ? m->n - (size_t)at : (size_t)n;
        if (have) memcpy(p, m->p + at, have);
        memset((char *)p + have, 0, (size_t)n - have);
        if (have < (size_t)n) rc = SQLITE_IOERR_SHORT_READ;
    }
    pthread_mutex_unlock(&h->v->mu);
    return rc;
}

static int x_write(sqlite3_file *s, const void *p, int n, sqlite3_int64 at) {
    handle *h = (handle *)s;
    memvfs *v = h->v;
    int rc;
    pthread_mutex_lock(&v->mu);
    if (!v->cut && v->cut_write >= 0 && v->cut_write-- == 0) v->cut = true;
    if (!(rc = trouble(v, SQLITE_IOERR_WRITE))) {
        put(&h->f->now, (uint64_t)at, p, (size_t)n);
        remember(h->f, (uint64_t)at, p, (size_t)n);
    }
    pthread_mutex_unlock(&v->mu);
    return rc;
}

static int x_truncate(sqlite3_file *s, sqlite3_int64 n) {
    handle *h = (handle *)s;
    int rc;
    pthread_mutex_lock(&h->v->mu);
    if (!(rc = trouble(h->v, SQLITE_IOERR_TRUNCATE))) {
        set_size(&h->f->now, (size_t)n);
        remember(h->f, (uint64_t)n, NULL, 0);
    }
    pthread_mutex_unlock(&h->v->mu);
    return rc;
}

static int x_sync(sqlite3_file *s, int flags) {
    handle *h = (handle *)s;
    memvfs *v = h->v;
    int rc;
    (void)flags;
    pthread_mutex_lock(&v->mu);
    while (v->hold) pthread_cond_wait(&v->released, &v->mu);
    if (!v->cut && v->cut_sync >= 0 && v->cut_sync-- == 0) v->cut = true;
    if (!(rc = trouble(v, SQLITE_IOERR_FSYNC))) {
        v->n_syncs++;
        copy(&h->f->disk, &h->f->now);
        h->f->on_disk = true;
        drop_ops(h->f);
    }
    pthread_mutex_unlock(&v->mu);
    return rc;
}

static int x_size(sqlite3_file *s, sqlite3_int64 *n) {
    handle *h = (handle *)s;
    pthread_mutex_lock(&h->v->mu);
    *n = (sqlite3_int64)h->f->now.n;
    pthread_mutex_unlock(&h->v->mu);
    return SQLITE_OK;
}

static int x_lock(sqlite3_file *s, int to) {
    handle *h = (handle *)s;
    file *f = h->f;
    int rc = SQLITE_OK;
    pthread_mutex_lock(&h->v->mu);
    if (h->lock < to) {
        if (to == SQLITE_LOCK_SHARED) {
            if ((f->pending && f->pending != h) || (f->exclusive && f->exclusive != h)) rc = SQLITE_BUSY;
            else f->n_shared++;
        } else if (to == SQLITE_LOCK_RESERVED) {
            if (f->reserved && f->reserved != h) rc = SQLITE_BUSY;
            else f->reserved = h;
        } else { /* exclusive, by way of pending */
            if (f->pending && f->pending != h) rc = SQLITE_BUSY;
            else f->pending = h;
            if (!rc && f->n_shared > (h->lock >= SQLITE_LOCK_SHARED ? 1 : 0)) rc = SQLITE_BUSY;
            if (!rc) f->exclusive = h;
        }
        if (!rc) h->lock = to;
    }
    pthread_mutex_unlock(&h->v->mu);
    return rc;
}

static int x_unlock(sqlite3_file *s, int to) {
    handle *h = (handle *)s;
    file *f = h->f;
    pthread_mutex_lock(&h->v->mu);
    if (h->lock > to) {
        if (f->exclusive == h) f->exclusive = NULL;
        if (f->pending == h) f->pending = NULL;
        if (f->reserved == h) f->reserved = NULL;
        if (to == SQLITE_LOCK_NONE && h->lock >= SQLITE_LOCK_SHARED) f->n_shared--;
        h->lock = to;
    }
    pthread_mutex_unlock(&h->v->mu);
    return SQLITE_OK;
}

static int x_reserved(sqlite3_file *s, int *out) {
    handle *h = (handle *)s;
    pthread_mutex_lock(&h->v->mu);
    *out = h->f->reserved != NULL;
    pthread_mutex_unlock(&h->v->mu);
    return SQLITE_OK;
}

static int x_control(sqlite3_file *s, int what, void *arg) {
    (void)s, (void)what, (void)arg;
    return SQLITE_NOTFOUND;
}

static int x_sector(sqlite3_file *s) {
    (void)s;
    return SECTOR;
}

static int x_device(sqlite3_file *s) {
    (void)s;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE; /* as SQLite's own file layer says: what is beside a write stays */
}

static int x_shm_map(sqlite3_file *s, int i, int size, int extend, void volatile **out) {
    handle *h = (handle *)s;
    int rc = SQLITE_OK;
    pthread_mutex_lock(&h->v->mu);
    *out = NULL;
    if (i >= SHM_REGIONS) rc = SQLITE_IOERR_SHMMAP;
    else if (!h->f->shm[i] && extend && !(h->f->shm[i] = calloc(1, (size_t)size))) rc = SQLITE_NOMEM;
    else *out = h->f->shm[i];
    pthread_mutex_unlock(&h->v->mu);
    return rc;
}

static int x_shm_lock(sqlite3_file *s, int from, int n, int flags) {
    handle *h = (handle *)s;
    file *f = h->f;
    int rc = SQLITE_OK;
    pthread_mutex_lock(&h->v->mu);
    for (int i = from; i < from + n && !rc; i++) { /* look first, then take all */
        bool mine = h->shm_shared >> i & 1;
        if (flags & SQLITE_SHM_UNLOCK) continue;
        if (f->shm_exclusive[i] && f->shm_exclusive[i] != h) rc = SQLITE_BUSY;
        if ((flags & SQLITE_SHM_EXCLUSIVE) && f->shm_shared[i] > mine) rc = SQLITE_BUSY;
    }
    for (int i = from; i < from + n && !rc; i++) {
        unsigned bit = 1u << i;
        if (flags & SQLITE_SHM_UNLOCK) {
            if (f->shm_exclusive[i] == h) f->shm_exclusive[i] = NULL;
            if (h->shm_shared & bit) f->shm_shared[i]--;
            h->shm_shared &= ~bit;
        } else if (flags & SQLITE_SHM_EXCLUSIVE) {
            f->shm_exclusive[i] = h;
        } else if (!(h->shm_shared & bit)) {
            f->shm_shared[i]++;
            h->shm_shared |= bit;
        }
    }
    pthread_mutex_unlock(&h->v->mu);
    return rc;
}

static void x_shm_barrier(sqlite3_file *s) {
    handle *h = (handle *)s;
    __sync_synchronize();
    pthread_mutex_lock(&h->v->mu);
    pthread_mutex_unlock(&h->v->mu);
}

static void drop_shm(file *f) {
    for (int i = 0; i < SHM_REGIONS; i++) {
        free(f->shm[i]);
        f->shm[i] = NULL;
    }
    memset(f->shm_shared, 0, sizeof f->shm_shared);
    memset(f->shm_exclusive, 0, sizeof f->shm_exclusive);
}

static int x_shm_unmap(sqlite3_file *s, int drop) {
    handle *h = (handle *)s;
    pthread_mutex_lock(&h->v->mu);
    for (int i = 0; i < SHM_LOCKS; i++) {
        if (h->f->shm_exclusive[i] == h) h->f->shm_exclusive[i] = NULL;
        if (h->shm_shared >> i & 1) h->f->shm_shared[i]--;
    }
    h->shm_shared = 0;
    if (drop) drop_shm(h->f);
    pthread_mutex_unlock(&h->v->mu);
    return SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    .iVersion = 2, .xClose = x_close, .xRead = x_read, .xWrite = x_write, .xTruncate = x_truncate, .xSync = x_sync,
    .xFileSize = x_size, .xLock = x_lock, .xUnlock = x_unlock, .xCheckReservedLock = x_reserved, .xFileControl = x_control,
    .xSectorSize = x_sector, .xDeviceCharacteristics = x_device, .xShmMap = x_shm_map, .xShmLock = x_shm_lock,
    .xShmBarrier = x_shm_barrier, .xShmUnmap = x_shm_unmap,
};

static file *find(memvfs *v, const char *name) {
    for (file *f = v->files; f; f = f->next)
        if (!strcmp(f->name, name)) return f;
    return NULL;
}

static int x_open(sqlite3_vfs *b, const char *name, sqlite3_file *s, int flags, int *out_flags) {
    memvfs *v = (memvfs *)b;
    handle *h = (handle *)s;
    file *f;
    int rc = SQLITE_OK;
    memset(h, 0, sizeof *h);
    if (!name) return SQLITE_CANTOPEN; /* no temporary files: the journal keeps those in memory */
    pthread_mutex_lock(&v->mu);
    f = find(v, name);
    if (v->cut || ((!f || !f->exists) && !(flags & SQLITE_OPEN_CREATE))) {
        rc = SQLITE_CANTOPEN;
    } else {
        if (!f) {
            f = calloc(1, sizeof *f);
            if (!f) abort();
            snprintf(f->name, sizeof f->name, "%s", name);
            f->last = &f->first;
            f->next = v->files;
            v->files = f;
        }
        if (!f->exists) { /* a new file: nothing of an old one of that name shows through */
            f->on_disk = false;
            f->disk.n = 0;
        }
        f->exists = true;
        f->refs++;
        h->base.pMethods = &methods;
        h->v = v;
        h->f = f;
        if (out_flags) *out_flags = flags;
    }
    pthread_mutex_unlock(&v->mu);
    return rc;
}

static int x_delete(sqlite3_vfs *b, const char *name, int sync) {
    memvfs *v = (memvfs *)b;
    file *f;
    int rc;
    pthread_mutex_lock(&v->mu);
    f = find(v, name);
    if (!f || !f->exists) {
        rc = SQLITE_IOERR_DELETE_NOENT;
    } else if (!(rc = trouble(v, SQLITE_IOERR_DELETE))) {
        f->exists = false;
        f->now.n = 0;
        drop_ops(f);
        if (sync) f->on_disk = false;
    }
    pthread_mutex_unlock(&v->mu);
    return rc;
}

static int x_access(sqlite3_vfs *b, const char *name, int flags, int *out) {
    memvfs *v = (memvfs *)b;
    file *f;
    (void)flags;
    pthread_mutex_lock(&v->mu);
    f = find(v, name);
    *out = f && f->exists && (flags != SQLITE_ACCESS_EXISTS || f->now.n); /* as unix: an empty file does not count */
    pthread_mutex_unlock(&v->mu);
    return SQLITE_OK;
}

static int x_path(sqlite3_vfs *b, const char *name, int n, char *out) {
    (void)b;
    snprintf(out, (size_t)n, "%s", name);
    return SQLITE_OK;
}

static int x_random(sqlite3_vfs *b, int n, char *out) {
    sqlite3_vfs *os = ((memvfs *)b)->base.pAppData;
    return os->xRandomness(os, n, out);
}
static int x_sleep(sqlite3_vfs *b, int us) {
    sqlite3_vfs *os = ((memvfs *)b)->base.pAppData;
    return os->xSleep(os, us);
}
static int x_time(sqlite3_vfs *b, double *t) {
    sqlite3_vfs *os = ((memvfs *)b)->base.pAppData;
    return os->xCurrentTime(os, t);
}
static int x_last_error(sqlite3_vfs *b, int n, char *out) {
    (void)b;
    if (n > 0) *out = 0;
    return 0;
}

memvfs *memvfs_new(const char *name) {
    memvfs *v = calloc(1, sizeof *v);
    if (!v) abort();
    snprintf(v->name, sizeof v->name, "%s", name);
    pthread_mutex_init(&v->mu, NULL);
    pthread_cond_init(&v->released, NULL);
    v->fail_in = v->cut_sync = v->cut_write = -1;
    v->base = (sqlite3_vfs){.iVersion = 1, .szOsFile = sizeof(handle), .mxPathname = 255, .zName = v->name,
                            .pAppData = sqlite3_vfs_find(NULL), .xOpen = x_open, .xDelete = x_delete, .xAccess = x_access,
                            .xFullPathname = x_path, .xRandomness = x_random, .xSleep = x_sleep, .xCurrentTime = x_time,
                            .xGetLastError = x_last_error};
    if (!v->base.pAppData || sqlite3_vfs_register(&v->base, 0)) abort();
    return v;
}

void memvfs_clear(memvfs *v) {
    for (file *f; (f = v->files);) {
        if (f->refs) {
            fprintf(stderr, "memvfs: %s is still open\n", f->name);
            abort();
        }
        v->files = f->next;
        drop_ops(f);
        drop_shm(f);
        free(f->now.p);
        free(f->disk.p);
        free(f);
    }
    v->fail_in = v->cut_sync = v->cut_write = -1;
    v->cut = false;
}

void memvfs_free(memvfs *v) {
    memvfs_clear(v);
    sqlite3_vfs_unregister(&v->base);
    pthread_cond_destroy(&v->released);
    pthread_mutex_destroy(&v->mu);
    free(v);
}

#define LOCKED(...)                                                                                                    \
    do {                                                                                                               \
        pthread_mutex_lock(&v->mu);                                                                                    \
        __VA_ARGS__;                                                                                                   \
        pthread_mutex_unlock(&v->mu);                                                                                  \
    } while (0)

void memvfs_fail(memvfs *v, long n, long times, int code) { LOCKED(v->fail_in = n, v->fail_times = times, v->fail_code = code); }
void memvfs_cut_at_sync(memvfs *v, long n) { LOCKED(v->cut_sync = n); }
void memvfs_cut_at_write(memvfs *v, long n) { LOCKED(v->cut_write = n); }
void memvfs_hold(memvfs *v, bool on) { LOCKED(v->hold = on, pthread_cond_broadcast(&v->released)); }

bool memvfs_is_cut(memvfs *v) {
    bool cut;
    LOCKED(cut = v->cut);
    return cut;
}
long memvfs_syncs(memvfs *v) {
    long n;
    LOCKED(n = v->n_syncs);
    return n;
}
long memvfs_writes(memvfs *v) {
    long n;
    LOCKED(n = v->n_writes);
    return n;
}

static uint64_t roll(uint64_t *s) { /* splitmix64 */
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* An unsynced write, sector by sector.  kept: of 4, how many of them are there whole. */
static void maybe_put(image *m, const op *o, unsigned kept, uint64_t *s) {
    for (size_t i = 0; i < o->n;) {
        size_t n = SECTOR - (o->at + i) % SECTOR;
        if (n > o->n - i) n = o->n - i;
        if (roll(s) % 4 < kept) {
            put(m, o->at + i, o->data + i, n);
        } else if (roll(s) % 3 == 0) {
            put(m, o->at + i, o->data + i, roll(s) % (n + 1));
        } else if (roll(s) % 4 == 0) {
            put(m, o->at + i, o->data + i, n);
            for (size_t k = 0; k < n; k += 1 + roll(s) % 64) m->p[o->at + i + k] = (unsigned char)roll(s);
        }
        i += n;
    }
}

void memvfs_reboot(memvfs *v, uint64_t seed) {
    uint64_t s = seed;
    for (file *f = v->files; f; f = f->next) {
        unsigned kept = roll(&s) % 5; /* per file: nothing, some, everything */
        bool there = f->on_disk || (f->exists && roll(&s) % 2);
        if (f->refs) {
            fprintf(stderr, "memvfs: %s is still open\n", f->name);
            abort();
        }
        if (!f->exists && f->on_disk && roll(&s) % 2) there = false; /* deleted, and the deletion reached the disk */
        for (const op *o = f->first; o; o = o->next) {
            if (o->data) maybe_put(&f->disk, o, kept, &s);
            else if (roll(&s) % 2) set_size(&f->disk, (size_t)o->at);
        }
        drop_ops(f);
        drop_shm(f);
        if (!there) f->disk.n = 0;
        f->exists = f->on_disk = there;
        copy(&f->now, &f->disk);
        f->n_shared = 0;
        f->reserved = f->pending = f->exclusive = NULL;
    }
    v->fail_in = v->cut_sync = v->cut_write = -1;
    v->cut = v->hold = false;
}
