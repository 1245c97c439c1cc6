/* arena.c - see arena.h.  Chunks double from 16 KiB to 1 MiB, or have the size of a larger request; the newest chunk
 * is the one that is filled. */
#include "base/arena.h"
#include "base/checked.h"
#include "base/mem.h"

#include <string.h>

/* Under AddressSanitizer blocks are kept apart and what lies between them is out of bounds. */
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
enum { GAP = 16 };
#define CLOSE(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define OPEN(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
enum { GAP = 0 };
#define CLOSE(p, n) ((void)(p), (void)(n))
#define OPEN(p, n) ((void)(p), (void)(n))
#endif

enum { ALIGN = 16, CHUNK_MIN = 16 << 10, CHUNK_MAX = 1 << 20 };

struct arena_chunk {
    arena_chunk *next;
    size_t used, cap; /* bytes after the header */
    _Alignas(ALIGN) unsigned char data[];
};

void arena_init(arena *a, size_t max_bytes) {
    *a = (arena){.max_bytes = max_bytes};
}

void arena_deinit(arena *a) {
    while (a->head) {
        arena_chunk *c = a->head;
        a->head = c->next;
        OPEN(c->data, c->cap);
        hd_free(c);
    }
    a->taken_bytes = 0;
}

static arena_chunk *chunk_add(arena *a, size_t need) {
    size_t cap = a->head ? a->head->cap * 2 : CHUNK_MIN;
    uint64_t total;
    arena_chunk *c;
    if (cap > CHUNK_MAX) cap = CHUNK_MAX;
    if (a->max_bytes - a->taken_bytes < cap + sizeof *c) cap = need; /* near the limit take only what is asked */
    if (cap < need) cap = need;
    if (!hd_add(cap, sizeof *c, &total) || total > a->max_bytes - a->taken_bytes) {
        a->failed = HD_FULL;
        return NULL;
    }
    if (!(c = hd_alloc(total))) {
        a->failed = HD_NOMEM;
        return NULL;
    }
    c->next = a->head;
    c->used = 0;
    c->cap = cap;
    a->head = c;
    a->taken_bytes += total;
    CLOSE(c->data, cap);
    return c;
}

static size_t rounded(size_t n) {
    return (n ? (n + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN) + GAP;
}

void *arena_alloc(arena *a, size_t n) {
    arena_chunk *c = a->head;
    size_t need;
    if (n > SIZE_MAX / 2) {
        a->failed = HD_FULL;
        return NULL;
    }
    need = rounded(n);
    if (!c || c->cap - c->used < need) {
        if (!(c = chunk_add(a, need))) return NULL;
    }
    c->used += need;
    OPEN(c->data + c->used - need, n ? n : 1);
    return c->data + c->used - need;
}

void *arena_calloc(arena *a, size_t n, size_t size) {
    uint64_t total;
    void *p;
    if (!hd_mul(n, size, &total)) {
        a->failed = HD_FULL;
        return NULL;
    }
    if ((p = arena_alloc(a, total))) memset(p, 0, total);
    return p;
}

void *arena_grow(arena *a, void *p, size_t old, size_t n) {
    arena_chunk *c = a->head;
    size_t was = rounded(old);
    void *q;
    if (!p) return arena_alloc(a, n);
    if (n > SIZE_MAX / 2) {
        a->failed = HD_FULL;
        return NULL;
    }
    if (rounded(n) <= was) {
        OPEN(p, n);
        return p;
    }
    if (c && c->used >= was && (unsigned char *)p == c->data + c->used - was && c->cap - c->used >= rounded(n) - was) {
        c->used += rounded(n) - was;
        OPEN(p, n);
        return p;
    }
    if ((q = arena_alloc(a, n))) memcpy(q, p, old);
    return q;
}
