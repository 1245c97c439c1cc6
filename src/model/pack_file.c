/* pack_file.c - opening a packed file: is it the one that is wanted, is it whole, and into which memory it goes.
 *
 * First choice is to map it: its pages are in the page cache once, whatever number of processes use them, and nothing is
 * copied.  But matrix products want huge pages under the weights (docs/performance.md), and whether a mapping has them is
 * the file system's affair (large folios) and its history's.  So the mapping is looked at, and when less than half of it is
 * huge, the file is read into anonymous memory that is.
 *
 * After the check the mapping is trusted, as the program's own text is: pages that the system drops and reads again
 * are not checked again, and a file that somebody cuts raises SIGBUS.  Our own writers never change a finished file (mode 0400);
 * removing one leaves those who map it alone. */
#include "model/pack_int.h"
#include "base/checked.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

static const char magic[8] = "HEDLPAK\n";

void pack_digest(const void *p, size_t n, uint8_t out[PACK_DIGEST]) {
    XXH128_canonicalFromHash((XXH128_canonical_t *)out, XXH3_128bits(p, n));
}

uint64_t pack_sum(const pack_want *w, uint64_t i, const void *p, size_t n) {
    uint64_t seed;
    memcpy(&seed, w->mark, sizeof seed);
    return XXH3_64bits_withSeed(p, n, seed ^ i * 0x9e3779b97f4a7c15u);
}

void pack_head_fill(pack_head *h, const pack_want *w) {
    *h = (pack_head){.file_version = PACK_FILE_VERSION, .version = w->version, .bytes = w->bytes};
    memcpy(h->magic, magic, sizeof magic);
    memcpy(h->mark, w->mark, PACK_DIGEST);
    memcpy(h->plan, w->plan, PACK_DIGEST);
    memcpy(h->layout, w->layout, sizeof h->layout);
    h->n_pieces = pack_pieces(w->bytes);
    h->file_bytes = pack_file_bytes(w->bytes);
}

uint64_t pack_file_bytes(uint64_t bytes) {
    uint64_t n = pack_pieces(bytes);
    return pack_data_at(n) + n * PACK_PIECE;
}

void pack_name(const pack_want *w, char out[PACK_NAME]) {
    pack_head h;
    uint8_t d[PACK_DIGEST];
    pack_head_fill(&h, w);
    pack_digest(&h, offsetof(pack_head, sums), d);
    for (size_t i = 0; i < sizeof d; i++) snprintf(out + 2 * i, 3, "%02x", d[i]);
    strcpy(out + 32, ".pack");
}

hd_status pack_alloc(pack_block *b, uint64_t bytes, hd_err *err) {
    uint64_t room;
    void *p = MAP_FAILED;
    *b = (pack_block){0};
    /* Aligned by hand: not all systems begin a large mapping at a huge page. */
    if (hd_add(bytes, PACK_PIECE, &room) && room <= SIZE_MAX)
        p = mmap(NULL, (size_t)room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return hd_fail(err, HD_NOMEM, "model: no memory for %llu bytes of weights", (unsigned long long)bytes);
    b->map = p;
    b->map_bytes = (size_t)room;
    b->data = (void *)(((uintptr_t)p + PACK_PIECE - 1) & ~((uintptr_t)PACK_PIECE - 1));
    madvise(b->data, (size_t)bytes, MADV_HUGEPAGE); /* a refusal costs speed only */
    return HD_OK;
}

void pack_free(pack_block *b) {
    if (b->map) munmap(b->map, b->map_bytes);
    *b = (pack_block){0};
}

/* ---- head and checksums ---- */

static bool read_all(int fd, void *p, size_t n, uint64_t at) {
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p = (char *)p + got, n -= (size_t)got, at += (uint64_t)got;
    }
    return true;
}

/* The checksums of a file that is what `w` wants, freed by the caller.  NULL: it is not; *damaged if what it says is wrong, and
 * not if it could not be asked. */
static uint64_t *read_head(int fd, const pack_want *w, uint8_t digest[PACK_DIGEST], bool *damaged) {
    pack_head h, want;
    uint8_t d[PACK_DIGEST];
    uint64_t *sums;
    struct stat sb;
    size_t n = (size_t)pack_pieces(w->bytes);
    *damaged = false;
    pack_head_fill(&want, w);
    if (fstat(fd, &sb) || !S_ISREG(sb.st_mode) || (sb.st_uid != geteuid() && sb.st_uid != 0)) return NULL;
    *damaged = (uint64_t)sb.st_size != want.file_bytes;
    if (*damaged || !read_all(fd, &h, sizeof h, 0)) return NULL;
    pack_digest(&h, offsetof(pack_head, self), d);
    memcpy(want.digest, h.digest, sizeof want.digest); /* this one is told, not asked */
    *damaged = memcmp(d, h.self, sizeof d) || memcmp(&h, &want, offsetof(pack_head, sums));
    if (*damaged || !(sums = hd_reallocarray(NULL, n, sizeof *sums))) return NULL;
    if (read_all(fd, sums, n * sizeof *sums, PACK_HEAD_BYTES)) {
        pack_digest(sums, n * sizeof *sums, d);
        memcpy(digest, h.digest, sizeof h.digest);
        if (!(*damaged = memcmp(d, h.sums, sizeof d) != 0)) return sums;
    }
    hd_free(sums);
    return NULL;
}

/* ---- contents, by all threads ---- */

typedef struct {
    const pack_want *w;
    const uint64_t *sums;
    int fd;
    uint64_t data_at;
    uint8_t *data;
    pool_cursor next;
    atomic_bool failed, damaged; /* publish nothing else */
} look;

static size_t piece_bytes(const look *k, size_t i) {
    uint64_t left = k->w->bytes - (uint64_t)i * PACK_PIECE;
    return left < PACK_PIECE ? (size_t)left : PACK_PIECE;
}

/* Pages of the mapping that are there without a fault: a cut file is an error here and no signal. */
static void populate(void *ctx, unsigned member, unsigned n) {
    look *k = ctx;
    size_t i, e;
    (void)member, (void)n;
    while (pool_next(&k->next, 4, &i, &e)) {
        size_t from = i * PACK_PIECE, bytes = (e - i) * PACK_PIECE;
#ifdef MADV_POPULATE_READ
        if (!madvise(k->data + from, bytes, MADV_POPULATE_READ)) continue;
#endif
        (void)from, (void)bytes;
        atomic_store_explicit(&k->failed, true, memory_order_relaxed);
    }
}

static void check(void *ctx, unsigned member, unsigned n) {
    look *k = ctx;
    size_t i, e;
    (void)member, (void)n;
    while (pool_next(&k->next, 1, &i, &e))
        if (pack_sum(k->w, i, k->data + i * PACK_PIECE, piece_bytes(k, i)) != k->sums[i])
            atomic_store_explicit(&k->damaged, true, memory_order_relaxed);
}

static void read_and_check(void *ctx, unsigned member, unsigned n) {
    look *k = ctx;
    size_t i, e;
    (void)member, (void)n;
    while (pool_next(&k->next, 1, &i, &e)) {
        uint8_t *p = k->data + i * PACK_PIECE;
        if (!read_all(k->fd, p, piece_bytes(k, i), k->data_at + i * PACK_PIECE))
            atomic_store_explicit(&k->failed, true, memory_order_relaxed);
        else if (pack_sum(k->w, i, p, piece_bytes(k, i)) != k->sums[i])
            atomic_store_explicit(&k->damaged, true, memory_order_relaxed);
    }
}

static void all_pieces(look *k, pool *p, pool_fn fn) {
    pool_cursor_init(&k->next, (size_t)pack_pieces(k->w->bytes));
    pool_run(p, fn, k);
}

/* Bytes of the mapping at p that are in huge pages; 0 if the system does not say. */
static uint64_t huge_bytes(const void *p) {
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[400];
    unsigned long long from, kib = 0;
    bool here = false;
    while (f && fgets(line, sizeof line, f)) {
        char dash;
        if (sscanf(line, "%llx%c", &from, &dash) == 2 && dash == '-') {
            if (here) break;
            here = from == (uintptr_t)p;
        } else if (here && sscanf(line, "FilePmdMapped: %llu", &kib) == 1) {
            break;
        }
    }
    if (f) fclose(f);
    return kib * 1024;
}

/* Address space with the file's pieces at its first huge page; false: it cannot be mapped. */
static bool map_pieces(pack_block *b, look *k) {
    size_t bytes = (size_t)pack_pieces(k->w->bytes) * PACK_PIECE;
    b->map = mmap(NULL, bytes + PACK_PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->map == MAP_FAILED) {
        b->map = NULL;
        return false;
    }
    b->map_bytes = bytes + PACK_PIECE;
    b->data = (void *)(((uintptr_t)b->map + PACK_PIECE - 1) & ~((uintptr_t)PACK_PIECE - 1));
    k->data = b->data;
    if (mmap(b->data, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, k->fd, (off_t)k->data_at) == MAP_FAILED) return false;
    madvise(b->data, bytes, MADV_HUGEPAGE); /* what must come from the disk comes in huge pages then */
    return true;
}

static pack_found take_contents(pack_block *b, look *k, pool *p) {
    if (map_pieces(b, k)) {
        all_pieces(k, p, populate);
        if (!atomic_load(&k->failed) && huge_bytes(b->data) >= k->w->bytes / 2) {
            all_pieces(k, p, check);
            b->mapped = true;
            return atomic_load(&k->damaged) ? PACK_MISS : PACK_MAPPED;
        }
    }
    pack_free(b);
    atomic_store(&k->failed, false);
    if (pack_alloc(b, k->w->bytes, NULL)) return PACK_MISS;
    k->data = b->data;
    all_pieces(k, p, read_and_check);
    return atomic_load(&k->failed) || atomic_load(&k->damaged) ? PACK_MISS : PACK_READ;
}

/* When it was last used: what makes room goes by this. */
static void touch(int fd) {
    struct timespec now, t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    struct stat sb;
    clock_gettime(CLOCK_REALTIME, &now);
    if (!fstat(fd, &sb) && (now.tv_sec < sb.st_mtim.tv_sec || now.tv_sec - sb.st_mtim.tv_sec > 60)) (void)futimens(fd, t);
}

pack_found pack_load(pack_block *out, const char *dir, const pack_want *w, pool *p) {
    char name[PACK_NAME];
    uint8_t digest[PACK_DIGEST];
    uint64_t *sums = NULL;
    pack_found found = PACK_MISS;
    bool damaged;
    int dir_fd, fd = -1;
    *out = (pack_block){0};
    pack_name(w, name);
    if ((dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) return PACK_MISS;
    if ((fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) < 0) {
        close(dir_fd);
        return PACK_MISS;
    }
    if ((sums = read_head(fd, w, digest, &damaged))) {
        look k = {.w = w, .sums = sums, .fd = fd, .data_at = pack_data_at(pack_pieces(w->bytes))};
        atomic_init(&k.failed, false);
        atomic_init(&k.damaged, false);
        found = take_contents(out, &k, p);
        damaged = atomic_load(&k.damaged);
    }
    if (found) {
        memcpy(out->digest, digest, sizeof digest);
        touch(fd);
    } else {
        pack_free(out);
        if (damaged) (void)unlinkat(dir_fd, name, 0); /* only writers give this name, and they give it to whole files */
    }
    hd_free(sums);
    close(fd);
    close(dir_fd);
    return found;
}
