/* planner.h - the threads that turn bodies into submitted generations: JSON, template, tokens, admission.
 *
 * Planning a large body takes many times its bytes, so large ones are planned one at a time; small ones pass them meanwhile.
 * A bounded queue in front of a few threads.  A request whose peer leaves is taken out of the queue, or, when a thread
 * has it already, noticed between the stages, and never submitted. */
#ifndef HD_SERVE_PLANNER_H
#define HD_SERVE_PLANNER_H

#include "serve/gen.h"

enum { PLANNER_LARGE_BODY = 1 << 20 };

hd_status planner_new(planner **out, server *s, uint32_t n_threads, uint32_t max_waiting, hd_err *err);
void planner_free(planner *p);            /* waits for the threads; requests still queued stay with the loop */
bool planner_push(planner *p, gen *g);    /* false: the queue is full */
bool planner_remove(planner *p, gen *g);  /* false: a thread has it, gen_planned will come */
/* Planner thread, between stages: does anybody still want this? */
static inline bool planner_unwanted(const gen *g) {
    return atomic_load_explicit(&((gen *)(uintptr_t)g)->cancelled, memory_order_relaxed) != 0;
}

#endif
