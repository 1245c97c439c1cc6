/* arena.h - many small blocks with one end: bump allocation with a byte limit.
 *
 * Blocks are aligned to 16 bytes, never freed one by one, and gone after arena_deinit.  Memory comes from base/mem.h
 * in chunks.  One thread at a time. */
#ifndef HD_BASE_ARENA_H
#define HD_BASE_ARENA_H

#include "base/err.h"

#include <stddef.h>

typedef struct arena_chunk arena_chunk;
typedef struct {
    arena_chunk *head;
    size_t taken_bytes, max_bytes; /* taken from the heap; the limit on it */
    hd_status failed;              /* HD_OK, HD_FULL (limit) or HD_NOMEM, of the last refused call */
} arena;

void arena_init(arena *a, size_t max_bytes);
void arena_deinit(arena *a);

/* n bytes (0 counts as 1), not cleared; NULL when refused, a->failed says why. */
void *arena_alloc(arena *a, size_t n);
void *arena_calloc(arena *a, size_t n, size_t size); /* n * size is checked; cleared */

/* Make block p of old bytes hold n >= old: in place when it is the newest block and there is room, otherwise a copy.
 * NULL when refused; p stays valid. */
void *arena_grow(arena *a, void *p, size_t old, size_t n);

#endif
