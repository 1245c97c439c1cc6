/* plan.h - what an engine with given options needs, known before anything of it exists.
 *
 * executor_open opens by it and `heddle fit` reports it, so that what is promised is what is done.  Needs a model's sizes
 * only (model_options.sizes_only). */
#ifndef HD_EXEC_PLAN_H
#define HD_EXEC_PLAN_H

#include "exec/engine.h"

typedef struct {
    uint32_t n_groups, page_tokens, max_step_tokens, max_logits;
    uint32_t window[MODEL_MAX_GROUPS];      /* positions that group g sees; 0: all */
    uint64_t page_bytes[MODEL_MAX_GROUPS];  /* what the model writes into a page of group g */
    uint64_t page_stride[MODEL_MAX_GROUPS]; /* what such a page counts in the budget */
    step_limits lim;                        /* lim.ctx: opt->ctx as it came out of engine_plan_make */
} engine_plan;

/* Fill in the defaults of *opt and check it.  memory_limit: what the default budget is taken from (hd_memory_limit).  The
 * context is bounded by the model's own, not yet by the budget.  HD_INVALID, HD_UNSUPPORTED: names the option. */
hd_status engine_plan_make(engine_plan *p, engine_options *opt, const model *m, uint64_t memory_limit, hd_err *err);
/* Lower opt->ctx, and the plan's, to the longest row that the budget holds.  HD_INVALID: it holds none. */
hd_status engine_plan_bound(engine_plan *p, engine_options *opt, hd_err *err);

/* Bytes of the budget that a row with n_tokens in all holds at most. */
uint64_t engine_plan_row_bytes(const engine_plan *p, uint32_t n_tokens);
/* The longest of `rows` equal rows of at most max_tokens that a budget holds together; 0: not even 2 tokens each. */
uint32_t engine_plan_longest(const engine_plan *p, uint64_t budget_bytes, uint32_t rows, uint32_t max_tokens);
/* How many rows of n_tokens that share nothing a budget holds together. */
uint64_t engine_plan_rows(const engine_plan *p, uint64_t budget_bytes, uint32_t n_tokens);

/* Bytes of what the engine keeps beside pages and workspace, at most: lists of pages, the prefix tree with every page in
 * it, opt->max_rows rows of opt->ctx tokens with their queues, opt->max_queued prompts that wait, the sampler. */
uint64_t engine_plan_tables_bytes(const engine_plan *p, const engine_options *opt, const model_info *info);
/* Threads that choose tokens at the same time, and bytes that each of them needs; a multiple of 64. */
unsigned engine_sample_members(const model_info *info);
size_t engine_sample_bytes(const model_info *info);

#endif
