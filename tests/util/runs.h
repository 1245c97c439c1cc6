/* runs.h - requests run through an engine and kept whole, for tests that compare runs bit for bit. */
#ifndef HD_TESTS_RUNS_H
#define HD_TESTS_RUNS_H

#include "exec/engine.h"

/* Everything a client can see of one generation, times aside. */
typedef struct {
    int32_t *ids;
    float *logprobs;      /* chosen and top ones, in event order; prompt scores, logits, vectors too */
    size_t n_ids, n_logprobs, cap_ids, cap_logprobs;
    char *text;
    size_t n_text, cap_text;
    finish_reason finish;
    cancel_reason reason;
    int32_t stop_index;
    bool ended_by_eos;
    uint32_t generated_tokens;
    uint32_t cached_tokens; /* not compared: when, not what */
    hd_err err;
} run_result;

void run_result_deinit(run_result *r);
void run_result_add(run_result *r, const gen_event *ev);
/* NULL, or what differs first. */
const char *run_result_differs(const run_result *a, const run_result *b);
/* b went on after the first `said` ids of a: it must be the rest of it. */
const char *run_result_rest_differs(const run_result *a, size_t said, const run_result *b);

/* Submit all at once (in the order given by `order`, or as they are) and read them all to their ends. */
void run_all(engine *e, const gen_request *reqs, size_t n, const size_t *order, run_result *out);

/* A small reproducible generator for schedules. */
static inline uint32_t rng_next(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}
static inline uint32_t rng_below(uint64_t *s, uint32_t n) { return rng_next(s) % n; }

#endif
