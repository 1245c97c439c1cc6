/* executor.h - rows, pages and steps: the part of the engine that decides.
 *
 * One thread calls it.  It knows no threads and no waiting: a caller feeds it sessions and asks it for steps, so that
 * tests can drive it with a turned clock.  A tick is: sweep cancels and deadlines, admit, plan, forward, consume in
 * row order, publish, settle, evict. */
#ifndef HD_EXEC_EXECUTOR_H
#define HD_EXEC_EXECUTOR_H

#include "exec/row.h"
#include "state/kv.h"

enum { PROMPT_LOGITS = 16 }; /* rows of logits kept for prompt scoring beside one per decoding row */

struct executor {
    model *m;
    const model_info *info;
    engine_options opt;          /* filled in: no zeros */
    kv *kv;
    uint32_t n_groups, max_pages;
    row **rows;                  /* [max_rows], admission order */
    uint32_t n_rows;
    uint64_t reserved_bytes;     /* sum over rows, <= budget */
    uint32_t max_step_tokens, max_logits;
    segment *segs;               /* [max_rows] */
    row **seg_rows;
    void *sample_work;
    hd_buf text_a, text_b;       /* of one token: detokenised, then past the stop filter */
    session *preempted;          /* rows that gave their pages back, by order; before all waiting ones */
    /* counters */
    uint64_t steps, prompt_tokens, generated_tokens, preemptions;
    uint64_t finished[4], cancelled[16];
    uint32_t step_tokens_last;
    double service_us;           /* moving mean of admission to end, for Retry-After */
};

/* Fill in defaults, bound the context by the budget, allocate everything a step needs. */
hd_status executor_open(executor *x, model *m, const engine_options *opt, hd_err *err);
void executor_close(executor *x); /* no rows left */

/* Can this prompt ever run?  HD_INVALID / HD_NEVER_FITS with the numbers. */
hd_status executor_check(const executor *x, const gen_request *req, hd_err *err);
/* Bytes that a row with n tokens in all would hold at most. */
uint64_t executor_project(const executor *x, uint32_t n_tokens);

/* May it run now?  HD_FULL: not yet, *why says for what. */
hd_status executor_admissible(const executor *x, const session *s, const char **why);
/* Admit it: HD_OK (the row runs), HD_FULL (it must wait: *why), or it failed and has been ended. */
hd_status executor_admit(executor *x, session *s, const char **why);
/* End cancelled and overdue rows.  Returns microseconds until the next deadline of a row (UINT64_MAX: none). */
uint64_t executor_sweep(executor *x);
/* One step.  False: no row could do anything (none, or all paused). */
bool executor_step(executor *x);
/* A session that never became a row, or whose row was preempted. */
void executor_end_waiting(executor *x, session *s, finish_reason why, cancel_reason reason, const hd_err *err);
cancel_reason executor_overdue(const session *s, uint64_t now); /* CANCEL_NONE: not yet */
void executor_check_invariants(const executor *x);              /* debug builds */

#endif
