/* pages.c - a row's pages: taking them within what was reserved, growing, giving way. */
#include "base/plant.h"
#include "exec/engine_int.h"
#include "exec/executor.h"

#include <string.h>

uint64_t executor_committed(const executor *x) {
    return x->reserved_bytes + prefix_in_use_bytes(x->tree) + prefix_pinned_bytes(x->tree);
}

void *pages_get(executor *x, uint32_t g) {
    void *page;
    while (!(page = kv_take(x->kv, g)) && prefix_evict(x->tree)) {}
    return page;
}

void pages_drop(row *r, bool keep) {
    executor *x = r->x;
    uint32_t own = r->n_shared;
    bool leak = PLANTED(PLANT_LEAK_PAGE) && r->ended && r->end.finish == FINISH_CANCELLED && r->n_done < r->n_prompt;
    share_end(x, r, keep);
    for (uint32_t g = 0; g < x->n_groups; g++) {
        for (uint32_t i = r->first_page[g] > own ? r->first_page[g] : own; i < r->n_pages[g]; i++) {
            if (leak) leak = false;
            else kv_drop(x->kv, g, r->pages[g][i]);
            r->pages[g][i] = NULL;
        }
        r->n_pages[g] = r->first_page[g] = 0;
    }
    r->held_bytes = 0;
    r->n_done = 0;
}

/* Give a row's pages back; it waits at the head of its line and goes on from what the cache still has then; the rest is
 * computed again, to the same bits (law 1). */
static void preempt(executor *x, row *r) {
    uint32_t i = 0;
    pages_drop(r, true);
    x->reserved_bytes -= r->reserved_bytes;
    r->reserved_bytes = 0;
    if (r->phase == ROW_PAUSED) r->paused_us += hd_now_us(x->opt.clock) - r->t_paused_us;
    r->phase = ROW_PREEMPTED;
    r->t_preempted_us = hd_now_us(x->opt.clock);
    r->preemptions++;
    x->preemptions++;
    x->freed = true;
    while (x->rows[i] != r) i++;
    memmove(&x->rows[i], &x->rows[i + 1], (--x->n_rows - i) * sizeof *x->rows);
    tell_preempted(r);
    trace_mark(x->opt.trace, "preempt", r->s->copy.id, r->order, r->t_preempted_us);
    engine_requeue(r->s->engine, r->s);
}

void executor_preempt_all(executor *x) {
    while (x->n_rows) preempt(x, x->rows[x->n_rows - 1]);
}

/* If r left: what it holds for itself, and what of the tree no one else uses then. */
static uint64_t note_leaving(executor *x, const row *r) {
    uint64_t bytes = r->reserved_bytes, node = prefix_node_bytes(x->tree);
    for (uint32_t i = 0; i < r->n_shared; i++)
        if (++r->path[i]->leaving == r->path[i]->users && !prefix_is_pinned(x->tree, r->path[i])) bytes += node;
    return bytes;
}

static void forget_leaving(executor *x, uint32_t n) {
    for (; n; n--) {
        const row *r = x->rows[x->n_rows - n];
        for (uint32_t i = 0; i < r->n_shared; i++) r->path[i]->leaving = 0;
    }
}

/* May r give way to a request of this class?  Not one that its age has lifted. */
static bool gives_way(const row *r, gen_priority p) {
    return !r->ended && r->s->copy.req.priority > p && r->rank == (uint32_t)(r->s->copy.req.priority - PRIORITY_HIGH);
}

/* Rows of lower classes stand last.  How many of them must go? */
bool executor_make_way(executor *x, const session *s) {
    uint64_t freed = 0;
    uint32_t n = 0;
    bool enough = false;
    prefix_hit h;
    share_find(x, s, &h);
    for (;;) {
        enough = x->n_rows - n < x->opt.max_rows &&
                 executor_committed(x) - freed + share_cost(x, s, &h) <= x->opt.kv_budget_bytes;
        if (enough || n == x->n_rows || !gives_way(x->rows[x->n_rows - 1 - n], s->copy.req.priority)) break;
        freed += note_leaving(x, x->rows[x->n_rows - 1 - n++]);
    }
    forget_leaving(x, n);
    while (enough && n--) preempt(x, x->rows[x->n_rows - 1]);
    /* Nothing runs whose end could be waited for: pins alone are in the way. */
    while (!enough && !x->n_rows && pins_yield(x)) {
        share_find(x, s, &h);
        enough = executor_committed(x) + share_cost(x, s, &h) <= x->opt.kv_budget_bytes;
    }
    return enough;
}

/* Bytes that r holds once it has pages for positions [0, n). */
static uint64_t bytes_with(const executor *x, const row *r, uint32_t want) {
    uint64_t bytes = r->held_bytes;
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (want > r->n_pages[g]) bytes += (want - r->n_pages[g]) * kv_page_bytes(x->kv, g);
    return bytes;
}

void pages_take(executor *x, row *r, uint32_t n) {
    uint32_t want = pages_for(n, x->opt.page_tokens);
    uint64_t need = bytes_with(x, r, want);
    while (need > r->reserved_bytes && executor_committed(x) - r->reserved_bytes + need > x->opt.kv_budget_bytes) {
        row *last = x->rows[x->n_rows - 1];
        if (x->fetch.on) {
            disk_fetch_end(x);
            continue;
        }
        if (x->n_rows == 1 && pins_yield(x)) continue;
        HD_ASSERT(x->n_rows > 1); /* one row alone always fits: executor_check */
        preempt(x, last);
        if (last == r) return;
    }
    if (need > r->reserved_bytes) {
        x->reserved_bytes += need - r->reserved_bytes;
        r->reserved_bytes = need;
    }
    for (uint32_t g = 0; g < x->n_groups; g++)
        while (r->n_pages[g] < want) {
            void *page = pages_get(x, g);
            HD_ASSERT(page); /* what rows hold is committed, and all else can be evicted */
            r->pages[g][r->n_pages[g]++] = page;
            r->held_bytes += kv_page_bytes(x->kv, g);
        }
}

/* Pages that no later query of a sliding group can see. */
void pages_drop_behind_window(executor *x, row *r) {
    for (uint32_t g = 0; g < x->n_groups; g++) {
        uint32_t window = x->info->groups[g].window, first_seen;
        if (!window || r->n_done + 1 <= window) continue;
        first_seen = (r->n_done + 1 - window) / x->opt.page_tokens; /* the next query sits at n_done */
        for (; r->first_page[g] < first_seen && r->first_page[g] < r->n_pages[g]; r->first_page[g]++) {
            if (r->first_page[g] < r->n_shared) share_release(x, r, g, r->first_page[g]);
            else kv_drop(x->kv, g, r->pages[g][r->first_page[g]]);
            r->pages[g][r->first_page[g]] = NULL;
            r->held_bytes -= kv_page_bytes(x->kv, g);
        }
    }
}
