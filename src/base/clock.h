/* clock.h - time as a thing that can be handed in, so that tests turn it. */
#ifndef HD_BASE_CLOCK_H
#define HD_BASE_CLOCK_H

#include <stdint.h>

/* now_us: monotonic microseconds.  sleep_us: returns early when wanted by the implementation.  ctx: theirs. */
typedef struct {
    uint64_t (*now_us)(void *ctx);
    void *ctx;
} hd_clock;

extern const hd_clock hd_clock_real; /* CLOCK_MONOTONIC */
static inline uint64_t hd_now_us(const hd_clock *c) { return c->now_us(c->ctx); }
int64_t hd_wall_seconds(void); /* Unix time, for `created` fields */

#endif
