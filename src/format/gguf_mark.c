/* gguf_mark.c - which file this is: by all of its contents, or by what tells without reading all of it.
 *
 * The mark is for caches of things that were computed from the file.  It rests on the change time, which the system sets at
 * every write and which no program can choose (but see has_writers); size, inode, head and samples are there for file systems that keep poor times. */
#include "format/gguf_int.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    SAMPLES = 16, /* of the data of all parts together: on a disk that must seek, a tenth of a second */
    SAMPLE_BYTES = 4096,
    PIECE_BYTES = 4 << 20,      /* of a digest: what is mapped of the file at a time */
    GRAIN_NS = 1000 * 1000 * 1000 /* of change times: 10 ms on local file systems, a second on old ones */
};

gguf_stat gguf_stat_of(const struct stat *sb) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (gguf_stat){.inode = sb->st_ino,
                       .size = (uint64_t)sb->st_size,
                       .modified_ns = (int64_t)sb->st_mtim.tv_sec * 1000000000 + sb->st_mtim.tv_nsec,
                       .changed_ns = (int64_t)sb->st_ctim.tv_sec * 1000000000 + sb->st_ctim.tv_nsec,
                       .looked_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec};
}

/* Hash bytes [at, at + n) and give their pages back, with what the system mapped around them: a program that looks at a file
 * should not seem to hold it. */
static void take(XXH3_state_t *h, const gguf_part *p, size_t at, size_t n) {
    uintptr_t huge = (uintptr_t)2 << 20, base = (uintptr_t)p->map, from = ((uintptr_t)p->data + at) & ~(huge - 1),
              to = ((uintptr_t)p->data + at + n + huge - 1) & ~(huge - 1);
    XXH3_128bits_update(h, p->data + at, n);
    if (!p->map) return;
    if (from < base) from = base;
    if (to > base + p->size) to = base + p->size;
    (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

static bool finish(XXH3_state_t *h, uint8_t out[16]) {
    XXH128_canonicalFromHash((XXH128_canonical_t *)out, XXH3_128bits_digest(h));
    XXH3_freeState(h);
    return true;
}

bool gguf_digest(const gguf *g, uint8_t out[16]) {
    XXH3_state_t *h = XXH3_createState();
    if (!h) return false;
    XXH3_128bits_reset(h);
    for (size_t i = 0; i < g->n_parts; i++) {
        const gguf_part *p = &g->parts[i];
        for (size_t at = 0; at < p->size; at += PIECE_BYTES)
            take(h, p, at, p->size - at < PIECE_BYTES ? p->size - at : PIECE_BYTES);
    }
    return finish(h, out);
}

bool gguf_mark(const gguf *g, uint8_t out[16]) {
    XXH3_state_t *h;
    size_t samples = SAMPLES / g->n_parts + 1;
    for (size_t i = 0; i < g->n_parts; i++)
        if (!g->parts[i].map) return false;
    if (!(h = XXH3_createState())) return false;
    XXH3_128bits_reset(h);
    for (size_t i = 0; i < g->n_parts; i++) {
        const gguf_part *p = &g->parts[i];
        const gguf_stat *s = &p->stat;
        uint64_t facts[4] = {s->inode, s->size, (uint64_t)s->modified_ns, (uint64_t)s->changed_ns};
        size_t head = p->data_at < p->size ? (size_t)p->data_at : p->size, rest = p->size - head;
        XXH3_128bits_update(h, facts, sizeof facts);
        XXH3_128bits_update(h, p->data, head); /* the vocabulary is in it and stays mapped: others read it */
        for (size_t k = 0; k < samples && rest > SAMPLE_BYTES; k++)
            take(h, p, head + (rest - SAMPLE_BYTES) / samples * k, SAMPLE_BYTES);
        if (rest) take(h, p, p->size - (rest < SAMPLE_BYTES ? rest : SAMPLE_BYTES), rest < SAMPLE_BYTES ? rest : SAMPLE_BYTES);
    }
    return finish(h, out);
}

/* NFS and SMB: they refuse a lease for reasons of their own, with the same error. */
static bool remote(uint32_t type) { return type == 0x6969 || type == 0x517b || type == 0xff534d42 || type == 0xfe534d42; }

/* Who has mapped the file for writing moves its times with the first store to a page only, and not with later ones until the system
 * has written the page back, which tmpfs never does.  The system gives a lease for reading when nobody has the file open or
 * mapped for writing.  Whoever opens it for writing after that moves its times.  Owners and root may ask; for others, and on
 * file systems without leases, the answer is no, and of an overlay's file only those who have it open are seen. */
static bool has_writers(int fd) {
    bool has = false;
    struct statfs fs;
    if (fstatfs(fd, &fs) || remote((uint32_t)fs.f_type)) return false;
    if (fcntl(fd, F_SETSIG, SIGURG)) return false; /* ignored, unlike SIGIO: somebody may open it in this moment */
    if (fcntl(fd, F_SETLEASE, F_RDLCK)) has = errno == EAGAIN;
    else (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    return has;
}

static bool part_settled(const gguf_part *p) {
    const gguf_stat *s = &p->stat;
    struct stat sb;
    gguf_stat now;
    bool ok;
    int fd = p->path ? open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd < 0) return false;
    ok = !has_writers(fd) && !fstat(fd, &sb);
    close(fd);
    if (!ok) return false;
    now = gguf_stat_of(&sb);
    return now.inode == s->inode && now.size == s->size && now.modified_ns == s->modified_ns && now.changed_ns == s->changed_ns &&
           s->looked_ns - s->changed_ns >= GRAIN_NS;
}

bool gguf_settled(const gguf *g) {
    for (size_t i = 0; i < g->n_parts; i++)
        if (!part_settled(&g->parts[i])) return false;
    return true;
}
