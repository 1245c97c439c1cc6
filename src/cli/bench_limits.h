/* bench_limits.h - a model's speed beside what this machine allows in the same minute (bench --roofline). */
#ifndef HD_CLI_BENCH_LIMITS_H
#define HD_CLI_BENCH_LIMITS_H

#include "cli/common.h"
#include "kernels/meter.h"

enum { LIMITS_TURNS = 64 };

typedef struct {
    const model *m;
    pool *p; /* threads of its own, as many as the model has; NULL: not wanted */
    void *memory;
    size_t bytes;        /* of memory, for one thread */
    meter_rates last;    /* taken before the run that is being looked at */
    double all[METER_KINDS][LIMITS_TURNS];
    int n;
} limits;

hd_status limits_open(limits *l, const model *m, hd_err *err);
void limits_close(limits *l);
/* Measure the machine now, about 0.1 s.  Between runs: the engine is to be idle. */
void limits_take(limits *l);
/* Tokens a second that no program could pass, by the mean of what was taken last and what is taken now.
 * prompt: the products of n tokens through the trunk, and the head for one, each over its own loop. */
double limits_prompt(limits *l, uint32_t n);
/* rows decoding together, each behind `depth` positions: the slower of the bytes (the file's matrices once, each row's
 * keys and values) and the products.  kv_bytes: of a position in each layer group. */
double limits_decode(limits *l, uint32_t rows, uint32_t depth, const uint64_t *kv_bytes);
/* Medians of everything taken, as the object "roofline". */
void limits_write(limits *l, jsonw *w);
void limits_print(limits *l);

#endif
