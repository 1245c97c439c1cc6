/* mem.c - heap calls, counted in debug builds, made to fail by tests. */
#include "base/mem.h"
#include "base/err.h"

#include <stdatomic.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* Test seams only: they change whether a call succeeds, never what the product computes. */
static _Thread_local long fail_after = -1;
static _Thread_local bool forbidden;
#ifdef HD_DEBUG
static atomic_long live; /* publishes nothing; a statistic read when all threads are quiet */
#define LIVE(n) atomic_fetch_add_explicit(&live, n, memory_order_relaxed)
#else
#define LIVE(n) ((void)0)
#endif

static bool refused(void) {
#ifdef HD_DEBUG
    HD_ASSERT(!forbidden);
#endif
    if (fail_after < 0) return false;
    if (fail_after == 0) return true;
    fail_after--;
    return false;
}

void hd_mem_fail_after(long n) { fail_after = n; }
void hd_mem_forbid(bool on) { forbidden = on; }

long hd_mem_live(void) {
#ifdef HD_DEBUG
    return atomic_load_explicit(&live, memory_order_relaxed);
#else
    return 0;
#endif
}

void *hd_alloc(size_t size) {
    void *p;
    if (refused()) return NULL;
    if ((p = malloc(size ? size : 1))) LIVE(1);
    return p;
}

void *hd_calloc(size_t n, size_t size) {
    void *p;
    if (refused()) return NULL;
    if ((p = calloc(n ? n : 1, size ? size : 1))) LIVE(1);
    return p;
}

void *hd_realloc(void *p, size_t size) {
    void *q;
    if (!p) return hd_alloc(size);
    if (refused()) return NULL;
    q = realloc(p, size ? size : 1);
    return q;
}

void *hd_reallocarray(void *p, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return hd_realloc(p, bytes);
}

char *hd_strndup(const char *s, size_t n) {
    char *p;
    if (n == SIZE_MAX || !(p = hd_alloc(n + 1))) return NULL;
    if (n) memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *hd_strdup(const char *s) { return hd_strndup(s, strlen(s)); }

void hd_free(void *p) {
    if (p) LIVE(-1);
    free(p);
}

void *hd_alloc_aligned(size_t align, size_t size) {
    void *p = NULL;
    if (refused() || posix_memalign(&p, align, size ? size : 1)) return NULL;
    LIVE(1);
    return p;
}

void hd_free_aligned(void *p) { hd_free(p); }

bool hd_grow(void *p, size_t *cap, size_t need, size_t size, size_t max) {
    size_t n = *cap ? *cap : 8;
    void *old, *grown;
    if (need <= *cap) return true;
    if (need > max) return false;
    while (n < need) n = n > max / 2 ? max : n * 2;
    if (n > max) n = max;
    memcpy(&old, p, sizeof old); /* *p is a pointer of any object type */
    if (!(grown = hd_reallocarray(old, n, size))) return false;
    memcpy(p, &grown, sizeof grown);
    *cap = n;
    return true;
}

void hd_mem_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void hd_mem_tune(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
    mallopt(M_ARENA_MAX, 4);
#endif
}
