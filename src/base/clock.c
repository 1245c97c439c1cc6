/* clock.c - the real clock. */
#include "base/clock.h"

#include <time.h>

static uint64_t real_now(void *ctx) {
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

const hd_clock hd_clock_real = {real_now, 0};

int64_t hd_wall_seconds(void) { return (int64_t)time(NULL); }
