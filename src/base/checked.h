/* checked.h - arithmetic on sizes that came from a file or a client.  True = it did not overflow. */
#ifndef HD_BASE_CHECKED_H
#define HD_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool hd_add(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool hd_mul(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* Round up to a multiple of align (a power of two). */
static inline bool hd_align_up(uint64_t a, uint64_t align, uint64_t *out) {
    uint64_t t;
    if (!hd_add(a, align - 1, &t)) return false;
    *out = t & ~(align - 1);
    return true;
}

#endif
