/* kv.h - pages of attention state, under one budget in bytes.
 *
 * A page holds page_tokens positions of every layer of one layer group; groups have pages of different size and share
 * the budget.  Address space for the whole budget is reserved per group; memory behind a page appears at first use and
 * is handed back to the system when another group needs the bytes, so resident bytes never exceed the budget, and when
 * the engine rests (kv_trim).
 * A page is held or free; held bytes + free resident bytes <= budget, always (kv_check).  Executor thread only. */
#ifndef HD_STATE_KV_H
#define HD_STATE_KV_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_MAX_GROUPS = 2 };

typedef struct kv kv;

/* page_bytes[g] of group g, each at least 1.  HD_INVALID: the budget holds no page. */
hd_status kv_open(kv **out, uint64_t budget_bytes, uint32_t n_groups, const uint64_t *page_bytes, hd_err *err);
void kv_close(kv *k);

/* A page of group g, or NULL when the budget is used up.  Contents are undefined (debug builds: NaN). */
void *kv_take(kv *k, uint32_t g);
void kv_drop(kv *k, uint32_t g, void *page);
/* Hand the memory of up to n free pages back to the system.  False: there is none left behind free pages. */
bool kv_trim(kv *k, uint32_t n);

uint64_t kv_budget(const kv *k);
uint64_t kv_used_bytes(const kv *k);
uint64_t kv_used_pages(const kv *k);
uint64_t kv_page_bytes(const kv *k, uint32_t g);
/* What one page of page_bytes counts in the budget: whole pages of the system, so that it can be given back alone.  0: too large. */
uint64_t kv_stride(uint64_t page_bytes);
/* Bytes of a group's lists of pages. */
uint64_t kv_tables_bytes(uint64_t budget_bytes, uint64_t stride);
void kv_check(const kv *k); /* asserts the invariant in debug builds */

#endif
