/* pool.h - the compute pool: a fixed crew that runs one function together.
 *
 * pool_run lets every member, the caller being member 0, run fn(ctx, member, n) once and returns when all are done.
 * Inside fn, pool_barrier waits for all members; pool_next hands out [begin, end) pieces of an index range first come
 * first served, so that a slow core takes fewer (who computes a piece never changes its value).  Waiting spins for a
 * while, then sleeps on a futex, so that an idle or oversubscribed machine is left alone.  All members, the caller
 * too, have FTZ/DAZ off and round to nearest inside fn.  One thread at a time may call pool_run. */
#ifndef HD_BASE_POOL_H
#define HD_BASE_POOL_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pool pool;
typedef void (*pool_fn)(void *ctx, unsigned member, unsigned n);

hd_status pool_new(pool **out, unsigned n_threads, hd_err *err); /* n_threads in 1..256 */
void pool_free(pool *p);
unsigned pool_size(const pool *p);
void pool_run(pool *p, pool_fn fn, void *ctx);
/* The same with as many members as are worth it: [0, n) run, the last ones may be left out for a while when other programs
 * keep taking their cores away (crew.h).  For work that any number of members does to the same result. */
void pool_run_some(pool *p, pool_fn fn, void *ctx);
unsigned pool_some(const pool *p); /* how many the next pool_run_some will run; for its caller */
void pool_barrier(pool *p, unsigned member); /* only inside fn, by every member */
/* A barrier at which the last one to arrive runs alone(ctx, member, n) before anybody goes on, with what it passed itself:
 * small work between two large pieces costs no second barrier, and nobody has to be woken for it.  NULL: nothing to run. */
void pool_barrier_then(pool *p, unsigned member, pool_fn alone, void *ctx);

/* Fault seam for tests: n further thread starts by this thread succeed, the ones after fail; -1 switches it off. */
void pool_fail_start_after(long n);

/* A shared cursor over [0, n).  Reset by one member between barriers. */
typedef struct {
    _Alignas(64) atomic_size_t next;
    size_t n;
} pool_cursor;
static inline void pool_cursor_init(pool_cursor *c, size_t n) {
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    c->n = n;
}
/* Take up to `step` indices.  False when none are left. */
static inline bool pool_next(pool_cursor *c, size_t step, size_t *begin, size_t *end) {
    size_t b = atomic_fetch_add_explicit(&c->next, step, memory_order_relaxed);
    if (b >= c->n) return false;
    *begin = b;
    *end = c->n - b < step ? c->n : b + step;
    return true;
}

#endif
