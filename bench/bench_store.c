/* bench_store.c - the disk tier: what a seal costs, and putting and getting one conversation of 8,192 tokens.
 *
 *   bench_store [DIR] [rounds]      DIR: on the file system to measure (default .), rounds: default 5
 *
 * Pages of 64 tokens x 30 layers x 3 heads x 64 dimensions, K and V in f16: 1,474,560 bytes, 128 of them, 188.7 MB.
 * put: from the first store_put to the end of store_flush, all of it synced.  get: from opening the store to the last page,
 * "warm" right after writing, "cold" after the system was asked to forget the files (posix_fadvise).  Medians over the rounds;
 * MB are 10^6 bytes. */
#include "state/seal.h"
#include "state/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { PAGE = 64 * 30 * 3 * 64 * 2 * 2, PAGES = 128, TOKENS = 64, MAX_ROUNDS = 51 };
static uint8_t *data, *into;
static int32_t tokens[PAGES][TOKENS];
static uint8_t identity[32];
static pagekey keys[PAGES + 1];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, less);
    return v[n / 2];
}

static void die(const char *what) {
    fprintf(stderr, "bench_store: %s\n", what);
    exit(1);
}

/* ---- seals over one page ---- */

static void run_xxh3(void) {
    volatile uint64_t sink = XXH3_128bits(data, PAGE).low64;
    (void)sink;
}
static void run_xxh64(void) {
    volatile uint64_t sink = XXH64(data, PAGE, 0);
    (void)sink;
}
static void run_sha256(void) {
    uint8_t out[32];
    unsigned n = 32;
    EVP_Digest(data, PAGE, out, &n, EVP_sha256(), NULL);
}
#if defined(__x86_64__)
#include <nmmintrin.h>
__attribute__((target("sse4.2"))) static void run_crc32c(void) { /* one stream, as a plain loop does it */
    uint64_t c = ~0u, v;
    for (size_t i = 0; i < PAGE; i += 8) {
        memcpy(&v, data + i, 8);
        c = _mm_crc32_u64(c, v);
    }
    volatile uint64_t sink = c;
    (void)sink;
}
#endif
static void run_gcm(void) {
    static const uint8_t head[128];
    seal_file f = {true, {1}, 0, head, sizeof head};
    uint8_t tag[SEAL_BYTES];
    seal s;
    if (!seal_begin(&s, &f, 1, true) || !seal_data(&s, into, data, PAGE) || !seal_take(&s, tag)) die("gcm");
}

static void seals(void) {
    struct {
        const char *name;
        void (*run)(void);
    } kinds[] = {
        {"XXH3-128", run_xxh3},
        {"XXH64", run_xxh64},
#if defined(__x86_64__)
        {"CRC-32C", run_crc32c},
#endif
        {"SHA-256", run_sha256},
        {"AES-256-GCM", run_gcm}
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        double v[21];
        kinds[k].run();
        for (int i = 0; i < 21; i++) {
            double t = now();
            kinds[k].run();
            v[i] = now() - t;
        }
        printf("%-12s %8.1f us per page, %6.2f GB/s\n", kinds[k].name, median(v, 21) * 1e6, PAGE / median(v, 21) * 1e-9);
    }
}

/* ---- the tier ---- */

static char path[400], key_path[440];

static store *open_store(bool encrypted, uint64_t segment_bytes) {
    store_opts o = {.dir = path, .key_file = encrypted ? key_path : NULL, .segment_bytes = segment_bytes, .linger_ms = 60000};
    hd_err err;
    store *s;
    if (store_open(&s, &o, &err)) die(err.msg);
    return s;
}

/* Remove the segments, or ask the system to forget their contents.  Returns how many. */
static int each_file(bool forget) {
    char kv[430];
    int n = 0;
    DIR *d;
    snprintf(kv, sizeof kv, "%s/kv", path);
    if (!(d = opendir(kv))) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len < 3 || strcmp(e->d_name + len - 3, ".kv")) continue;
        n++;
        if (forget) {
            int fd = openat(dirfd(d), e->d_name, O_RDONLY);
            if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) die("fadvise");
            close(fd);
        } else if (unlinkat(dirfd(d), e->d_name, 0)) {
            die("unlink");
        }
    }
    closedir(d);
    return n;
}

/* call: the median of a store_put that did not wait. */
static double put_all(store *s, double *call) {
    double t = now(), took[PAGES];
    int n = 0;
    hd_err err;
    for (int i = 0; i < PAGES; i++) {
        store_page p = {.key = keys[i + 1],
                        .parent = keys[i],
                        .identity = identity,
                        .tokens = tokens[i],
                        .n_tokens = TOKENS,
                        .blob = {data + (size_t)i * PAGE},
                        .bytes = {PAGE}};
        double t0 = now();
        hd_status st = store_put(s, &p, 0);
        if (!st) took[n++] = now() - t0;
        if (st && store_put(s, &p, 60000)) die("put");
    }
    if (store_flush(s, 60000, &err)) die(err.msg);
    t = now() - t;
    *call = n ? median(took, n) : 0;
    return t;
}

static double get_all(bool encrypted) {
    double t = now();
    store *s = open_store(encrypted, 0);
    for (int i = 0; i < PAGES; i++) {
        store_want w = {keys[i + 1], identity, tokens[i], TOKENS, {into + (size_t)i * PAGE, NULL}, {PAGE, 0}};
        hd_err err;
        if (store_get(s, &w, &err)) die(err.msg);
    }
    t = now() - t;
    if (memcmp(into, data, (size_t)PAGE * PAGES)) die("other bytes came back");
    store_close(s);
    return t;
}

static void tier(const char *name, bool encrypted, uint64_t segment_bytes, int rounds) {
    double put[MAX_ROUNDS], warm[MAX_ROUNDS], cold[MAX_ROUNDS], call[MAX_ROUNDS], mb = (double)PAGE * PAGES * 1e-6;
    int files = 0;
    for (int r = 0; r < rounds; r++) {
        store *s;
        each_file(false);
        s = open_store(encrypted, segment_bytes);
        put[r] = put_all(s, &call[r]);
        store_close(s);
        warm[r] = get_all(encrypted);
        files = each_file(true);
        cold[r] = get_all(encrypted);
    }
    printf("%-28s %3d files  put %7.1f ms %6.0f MB/s (a call %4.2f ms)  get warm %6.1f ms %6.0f MB/s  cold %7.1f ms %6.0f MB/s\n",
           name, files, median(put, rounds) * 1e3, mb / median(put, rounds), median(call, rounds) * 1e3, median(warm, rounds) * 1e3,
           mb / median(warm, rounds), median(cold, rounds) * 1e3, mb / median(cold, rounds));
    each_file(false);
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    uint64_t x = 1;
    double t;
    FILE *f;
    if (rounds < 1 || rounds > MAX_ROUNDS) return 64;
    snprintf(path, sizeof path, "%s/bench-store-XXXXXX", argc > 1 ? argv[1] : ".");
    if (!mkdtemp(path)) die("no directory");
    snprintf(key_path, sizeof key_path, "%s/key", path);
    if (!(f = fopen(key_path, "w"))) die("key");
    fprintf(f, "%064d\n", 7);
    fclose(f);
    chmod(key_path, 0600);
    data = malloc((size_t)PAGE * PAGES);
    into = malloc((size_t)PAGE * PAGES);
    if (!data || !into) die("memory");
    for (size_t i = 0; i < (size_t)PAGE * PAGES; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(data + i, &x, 8);
    }
    memset(into, 0, (size_t)PAGE * PAGES);
    t = now();
    for (int i = 0; i < PAGES; i++)
        for (int k = 0; k < TOKENS; k++) tokens[i][k] = i * TOKENS + k;
    pagekey_root(&keys[0], identity);
    for (int i = 0; i < PAGES; i++) pagekey_next(&keys[i + 1], &keys[i], tokens[i], TOKENS);
    printf("keys of %d pages: %.0f us\n", PAGES, (now() - t) * 1e6);
    seals();
    tier("warming up", false, 0, 1);
    tier("8 MiB segments (default)", false, 0, rounds);
    tier("32 MiB segments", false, (uint64_t)32 << 20, rounds);
    tier("a file per page", false, 1, rounds);
    tier("8 MiB segments, encrypted", true, 0, rounds);
    unlink(key_path);
    {
        char cmd[500];
        snprintf(cmd, sizeof cmd, "rm -rf %s", path);
        return system(cmd) ? 1 : 0;
    }
}
