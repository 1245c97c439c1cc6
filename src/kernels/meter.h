/* meter.h - what this machine can do, measured in the same minute as what is compared with it.
 *
 * Four plain loops: a read of memory as 4 distant streams a thread, and the three multiply-accumulates that matrix
 * products are made of, from registers.  A speed beside them is a share of a limit, which moves far less than the speed
 * itself does on a shared machine.  The loops are those of AVX2 also where the kernels are wider, so that shares of
 * different paths compare.  No state; any thread. */
#ifndef HD_KERNELS_METER_H
#define HD_KERNELS_METER_H

#include "base/pool.h"
#include "kernels/kernels.h"

#include <time.h>

typedef enum {
    METER_READ,  /* bytes */
    METER_INT8,  /* maddubs + paddw, 32 products each */
    METER_INT16, /* madd + paddd, 16 products each */
    METER_F32,   /* fma, 8 products each */
    METER_KINDS
} meter_kind;

/* The loop that limits products of this form of activations. */
meter_kind meter_of(act_kind kind);

/* Seconds of `clock` that it takes to read [p, p + bytes); bytes a multiple of 512, p 32-byte aligned. */
double meter_read(const void *p, size_t bytes, clockid_t clock);
/* 1e9 products a second of one thread by `clock`, in about 1 ms.  0: no such loop for this CPU; not for METER_READ. */
double meter_loop(meter_kind kind, clockid_t clock);

/* 1e9 bytes or products a second of all threads of a pool together, wall time. */
typedef struct {
    double rate[METER_KINDS];
} meter_rates;
/* Each thread reads its own `bytes` at memory + thread * bytes, which is to be more than its share of the caches, and runs
 * each loop; the median of a few turns, about 0.1 s in all.  Nobody else may be in pool_run. */
void meter_all(pool *p, const void *memory, size_t bytes, meter_rates *out);

#endif
