/* decoder_clock.h - where the time of a step goes, on demand: each thread adds to its own line, anybody may read. */
#ifndef HD_MODEL_DECODER_CLOCK_H
#define HD_MODEL_DECODER_CLOCK_H

#include "model/decoder.h"

#include <stdatomic.h>
#include <time.h>

typedef struct {
    _Alignas(64) _Atomic uint64_t ns[STEP_PARTS]; /* written by one thread; readers want sums, no order */
    uint64_t since;                               /* up to when ns accounts for this step; the thread's own, then the executor's */
} step_clock_line;

typedef struct step_clock {
    unsigned n_lines;
    _Atomic uint64_t wall_ns, n_steps; /* written by the executor thread */
    step_clock_line lines[];
} step_clock;

static inline uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void clock_add(step_clock *c, unsigned member, step_part part, uint64_t ns) {
    atomic_fetch_add_explicit(&c->lines[member].ns[part], ns, memory_order_relaxed);
}

static inline void clock_add_step(step_clock *c, uint64_t ns) {
    atomic_fetch_add_explicit(&c->wall_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->n_steps, 1, memory_order_relaxed);
}

#endif
