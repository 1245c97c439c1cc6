/* tell.h - what happens to requests, in lines for $HEDDLE_LOG=debug (base/log.h): ids, counts and times, never texts or keys.
 *
 * Each call looks at the level first and says nothing otherwise.  One line when a request is taken, admitted, has its first token,
 * gives way, ends; steps are told together, at most one line a second. */
#ifndef HD_EXEC_TELL_H
#define HD_EXEC_TELL_H

#include "base/log.h"
#include "exec/engine.h"

#include <stdint.h>

struct executor;
struct row;

/* Steps since the last line about them.  Executor thread. */
typedef struct {
    uint32_t steps, budget_min, budget_max;
    uint64_t us, us_max, tokens, t_begin_us;
    uint64_t t_told_us, generated, preempted, paused, evicted; /* when the last line was written, and the counters then */
} tell_steps;

void tell_opened(const struct executor *x);
/* Any thread.  What was asked for under this id; n_live: requests of the engine, with it. */
void tell_taken(const char *id, const gen_request *q, uint32_t n_live);
/* Executor thread, all of these. */
void tell_admitted(const struct row *r, uint64_t now);
void tell_first(const struct row *r, uint64_t now);
void tell_preempted(const struct row *r);
void tell_ended(const session *s, const gen_event *end);
/* A step of so many tokens is over that took `us`, its ended rows are gone; budget: tokens it could have had. */
void tell_step(struct executor *x, uint32_t tokens, uint32_t budget, uint64_t us);

#endif
