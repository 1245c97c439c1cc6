/* philox.h - counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
 * numbers: as easy as 1, 2, 3").  There is no state: equal (key, counter) give equal numbers, for ever. */
#ifndef HD_BASE_PHILOX_H
#define HD_BASE_PHILOX_H

#include <stdint.h>

/* What a number is for.  Values are part of the numerics version: append, never renumber. */
typedef enum { PHILOX_SAMPLE = 0, PHILOX_XTC = 1, PHILOX_CANVAS = 2 } philox_purpose;

/* ctr and key in, four random words out. */
void philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) with 53 bits, keyed by (seed, index of the sample within its prompt, absolute position, purpose). */
double philox_uniform(uint64_t seed, uint32_t sample, uint64_t position, philox_purpose purpose);

#endif
