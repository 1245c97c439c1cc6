/* pack_write.c - a packed file is written once, by one thread of one process, under the directory's cap.
 *
 * The unfinished file has the name of the finished one and ".tmp", and its writer holds a lock (flock) on it: a second
 * process that wants to write the same sees that and lets it be, and one without a lock is a dead writer's.  Room is made, and
 * the file gets its whole size, under the directory's lock, so that the files never have more bytes together than the smallest
 * cap among those who write. */
#include "model/pack_int.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_WAIT_MS = 2000, LOCK_STEP_MS = 5, MAX_LISTED = 4096, NICE = 10 };

struct pack_writer {
    pthread_t thread;
    char *dir;
    uint64_t cap;
    pack_want want;
    const uint8_t *data;
    const gguf *g;
    bool done;
    /* of the writing thread */
    int dir_fd;
    char name[PACK_NAME], tmp[PACK_NAME];
    uint64_t *sums;
};

/* ---- the directory ---- */

typedef struct {
    char name[PACK_NAME];
    uint64_t bytes;
    int64_t used_ns;
} listed;

/* 32 hex digits and .pack or .tmp: other files are none of ours. */
static bool our_name(const char *s) {
    return strspn(s, "0123456789abcdef") == 32 && (!strcmp(s + 32, ".pack") || !strcmp(s + 32, ".tmp"));
}

static bool is_tmp(const char *name) { return !strcmp(name + 32, ".tmp"); }

/* Held by a living writer? */
static bool held(const pack_writer *pw, const char *name) {
    int fd = openat(pw->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool free_now;
    if (fd < 0) return false;
    free_now = !flock(fd, LOCK_EX | LOCK_NB);
    close(fd);
    return !free_now;
}

static int by_use(const void *a, const void *b) {
    const listed *x = a, *y = b;
    return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

/* Half of what is free on the disk, when `freed` bytes more are. */
static uint64_t disk_allows(const pack_writer *pw, uint64_t freed) {
    struct statvfs vfs;
    return fstatvfs(pw->dir_fd, &vfs) ? 0 : ((uint64_t)vfs.f_bavail * vfs.f_frsize + freed) / 2;
}

/* The longest unused go until `need` more bytes are within the cap.  None does if that is not enough, or the disk has no room
 * even then: nobody's weights go for a file that is not written. */
static bool evict(const pack_writer *pw, listed *v, size_t n, uint64_t total, uint64_t need) {
    uint64_t freed = 0;
    size_t k = 0;
    if (n) qsort(v, n, sizeof *v, by_use);
    while (k < n && total - freed > pw->cap - need) freed += v[k++].bytes;
    errno = ENOSPC;
    if (total - freed > pw->cap - need || disk_allows(pw, freed) < need) return false;
    for (size_t i = 0; i < n && total > pw->cap - need; i++)
        if (!unlinkat(pw->dir_fd, v[i].name, 0)) total -= v[i].bytes;
    errno = ENOSPC;
    return total <= pw->cap - need;
}

/* The directory's lock is held.  Remove dead writers' files, and others until `need` more bytes are within the cap.  False,
 * with the reason in errno: they cannot be. */
static bool make_room(const pack_writer *pw, uint64_t need) {
    listed *v = NULL;
    size_t n = 0, cap = 0;
    uint64_t total = 0;
    struct dirent *e;
    int fd = openat(pw->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    bool ok;
    if (!d) {
        if (fd >= 0) close(fd);
        return false;
    }
    while ((e = readdir(d))) {
        struct stat sb;
        if (!our_name(e->d_name) || !strcmp(e->d_name, pw->tmp)) continue; /* our own is not sized yet */
        if (fstatat(pw->dir_fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) || !S_ISREG(sb.st_mode)) continue;
        if (is_tmp(e->d_name) && !held(pw, e->d_name) && !unlinkat(pw->dir_fd, e->d_name, 0)) continue;
        total += (uint64_t)sb.st_size;
        if (is_tmp(e->d_name)) continue;
        if (!hd_grow(&v, &cap, n + 1, sizeof *v, MAX_LISTED)) break;
        snprintf(v[n].name, sizeof v[n].name, "%.38s", e->d_name);
        v[n].bytes = (uint64_t)sb.st_size;
        v[n++].used_ns = (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec;
    }
    closedir(d);
    ok = evict(pw, v, n, total, need);
    hd_free(v);
    if (!ok) errno = ENOSPC; /* also where the list could not be kept */
    return ok;
}

static int lock_dir(const pack_writer *pw) {
    int fd = openat(pw->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB); waited += LOCK_STEP_MS) {
        struct timespec step = {0, LOCK_STEP_MS * 1000000L};
        if ((errno != EWOULDBLOCK && errno != EINTR) || waited >= LOCK_WAIT_MS) {
            close(fd);
            return -1;
        }
        nanosleep(&step, NULL);
    }
    return fd;
}

/* ---- the file ---- */

/* The unfinished file, with its lock.  -1: it cannot be made; -2: somebody else is at it, or has finished. */
static int open_tmp(const pack_writer *pw) {
    struct stat mine, named;
    int fd = openat(pw->dir_fd, pw->tmp, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    /* Its writer may have renamed it between our opening and our lock: then ours is not the one of that name. */
    if (!flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &mine) && !fstatat(pw->dir_fd, pw->tmp, &named, AT_SYMLINK_NOFOLLOW) &&
        mine.st_ino == named.st_ino) {
        if (faccessat(pw->dir_fd, pw->name, F_OK, 0)) return fd;
        (void)unlinkat(pw->dir_fd, pw->tmp, 0);
    }
    close(fd);
    return -2;
}

/* What has the name and is nothing that pack_load would use: said, as otherwise every start would pack without a word. */
static void tell_what_is_in_the_way(const pack_writer *pw) {
    struct stat sb;
    if (fstatat(pw->dir_fd, pw->name, &sb, AT_SYMLINK_NOFOLLOW)) return;
    if (S_ISREG(sb.st_mode) && (sb.st_uid == geteuid() || sb.st_uid == 0) && !faccessat(pw->dir_fd, pw->name, R_OK, AT_EACCESS)) return;
    hd_log(HD_LOG_WARN, "pack cache: %s: %s is no file of this user: the weights are packed at every start", pw->dir, pw->name);
}

static bool write_all(int fd, const void *p, size_t n, uint64_t at) {
    while (n) {
        ssize_t put = pwrite(fd, p, n, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p = (const char *)p + put, n -= (size_t)put, at += (uint64_t)put;
    }
    return true;
}

/* Pieces first, each in one call: a file system with large folios keeps it as one huge page.  The head comes last. */
static bool write_file(const pack_writer *pw, int fd) {
    const pack_want *w = &pw->want;
    uint64_t n = pack_pieces(w->bytes), at = pack_data_at(n);
    pack_head h;
    pack_head_fill(&h, w);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t left = w->bytes - i * PACK_PIECE;
        size_t bytes = left < PACK_PIECE ? (size_t)left : PACK_PIECE;
        pw->sums[i] = pack_sum(w, i, pw->data + i * PACK_PIECE, bytes);
        if (!write_all(fd, pw->data + i * PACK_PIECE, bytes, at + i * PACK_PIECE)) return false;
    }
    if (!gguf_digest(pw->g, h.digest)) return errno = ENOMEM, false;
    if (!gguf_settled(pw->g)) return errno = ESTALE, false;
    pack_digest(pw->sums, (size_t)n * sizeof *pw->sums, h.sums);
    pack_digest(&h, offsetof(pack_head, self), h.self);
    return write_all(fd, pw->sums, (size_t)n * sizeof *pw->sums, PACK_HEAD_BYTES) && write_all(fd, &h, sizeof h, 0) &&
           !fsync(fd);
}

/* The whole size at once, so that others count it. */
static bool take_room(const pack_writer *pw, int fd, uint64_t need) {
    int failed;
    if (ftruncate(fd, 0) || !make_room(pw, need)) return false; /* a dead writer's of the same name had its room */
    failed = disk_allows(pw, 0) < need ? ENOSPC : posix_fallocate(fd, 0, (off_t)need);
    errno = failed;
    return !failed;
}

/* The unfinished file with its size; as open_tmp. */
static int begin(const pack_writer *pw, uint64_t need) {
    int lock = lock_dir(pw), fd, why;
    if (lock < 0) return -1;
    if ((fd = open_tmp(pw)) >= 0 && !take_room(pw, fd, need)) {
        why = errno;
        (void)unlinkat(pw->dir_fd, pw->tmp, 0);
        close(fd);
        fd = -1;
        errno = why;
    }
    why = errno;
    close(lock);
    errno = why;
    return fd;
}

static bool write_one(pack_writer *pw) {
    uint64_t need = pack_file_bytes(pw->want.bytes);
    int fd, why;
    if (need > pw->cap) {
        hd_log(HD_LOG_WARN, "pack cache: %s: the packed weights take %llu bytes, the cap is %llu: they are packed at every start",
               pw->dir, (unsigned long long)need, (unsigned long long)pw->cap);
        return false;
    }
    if (!gguf_settled(pw->g)) {
        hd_log(HD_LOG_INFO, "pack cache: the model file was just changed, or is open for writing: its packed weights are kept at a later start");
        return false;
    }
    if (mkdir(pw->dir, 0700) && errno != EEXIST) goto failed;
    if ((pw->dir_fd = open(pw->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) goto failed;
    if ((fd = begin(pw, need)) == -2) { /* another process does it, or did */
        tell_what_is_in_the_way(pw);
        return false;
    }
    if (fd < 0) goto failed;
    if (write_file(pw, fd) && !renameat(pw->dir_fd, pw->tmp, pw->dir_fd, pw->name)) {
        (void)fchmod(fd, 0400);   /* against slips: nobody has to write it again */
        (void)fsync(pw->dir_fd);  /* if the name is lost in a power cut, the next start packs */
        close(fd);                /* gives the lock back */
        return true;
    }
    why = errno;
    (void)unlinkat(pw->dir_fd, pw->tmp, 0);
    close(fd);
    errno = why;
failed:
    hd_log(HD_LOG_WARN, "pack cache: %s: %s: the weights are packed at every start", pw->dir,
           errno == ESTALE ? "the model file is changing" : strerror(errno));
    return false;
}

static void *writer_main(void *ctx) {
    pack_writer *pw = ctx;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE); /* this thread only: requests come first */
    pw->done = write_one(pw);
    return NULL;
}

static void writer_free(pack_writer *pw) {
    if (pw->dir_fd >= 0) close(pw->dir_fd);
    hd_free(pw->sums);
    hd_free(pw->dir);
    hd_free(pw);
}

hd_status pack_writer_start(pack_writer **out, const char *dir, uint64_t cap, const pack_want *w, const void *data, const gguf *g,
                            hd_err *err) {
    pack_writer *pw = hd_calloc(1, sizeof *pw);
    *out = NULL;
    if (!pw) goto oom;
    pw->dir_fd = -1;
    pw->cap = cap ? cap : PACK_CAP_DEFAULT;
    pw->want = *w;
    pw->data = data;
    pw->g = g;
    pack_name(w, pw->name);
    snprintf(pw->tmp, sizeof pw->tmp, "%.32s.tmp", pw->name);
    if (!(pw->dir = hd_strdup(dir)) || !(pw->sums = hd_calloc((size_t)pack_pieces(w->bytes), sizeof *pw->sums))) goto oom;
    if (pthread_create(&pw->thread, NULL, writer_main, pw)) goto oom;
    *out = pw;
    return HD_OK;
oom:
    if (pw) writer_free(pw);
    return hd_fail(err, HD_NOMEM, "pack cache: no memory");
}

bool pack_writer_finish(pack_writer *pw) {
    bool done;
    if (!pw) return false;
    pthread_join(pw->thread, NULL);
    done = pw->done;
    writer_free(pw);
    return done;
}
