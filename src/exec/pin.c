/* pin.c - prompts whose pages stay for a while: not dropped until their time is over, within a part of the budget.
 *
 * A pin keeps the pages of a prompt from its beginning to its last full page; of windows those that a row sees which goes on
 * there.  Pinned bytes count as committed (executor_committed), so admission leaves rows the rest, and never counts on room
 * that is not there.  They never stop a request: when nothing runs any more and pins alone are in the way, or a row that is
 * alone grows into them, those that end first yield.  At most MAX_PINS, and pin_budget_bytes in all: a new one makes those
 * go that end before it, and is not taken if that is not enough.  A pin that begins like another and ends no sooner stands
 * for both, so a conversation has one. */
#include "exec/executor.h"

#include <string.h>

static void turn(executor *x, const exec_pin *p, bool on) {
    for (prefix_node *n = p->at; n->parent; n = n->parent)
        for (uint32_t g = 0; g < x->n_groups; g++)
            if (n->depth >= p->first[g]) prefix_pin(x->tree, n, g, on);
}

static void remove_at(executor *x, uint32_t i) {
    turn(x, &x->pins[i], false);
    memmove(&x->pins[i], &x->pins[i + 1], (--x->n_pins - i) * sizeof *x->pins);
    x->freed = true;
}

bool pins_yield(executor *x) {
    if (!x->n_pins) return false;
    remove_at(x, 0);
    return true;
}

uint64_t pins_sweep(executor *x, uint64_t now) {
    while (x->n_pins && x->pins[0].until_us <= now) remove_at(x, 0);
    return x->n_pins ? x->pins[0].until_us : UINT64_MAX;
}

/* What p would add: to what is pinned, and to what is committed.  False: a window has lost a page there. */
static bool cost(const executor *x, const exec_pin *p, uint64_t *pinned, uint64_t *committed) {
    *pinned = *committed = 0;
    for (const prefix_node *n = p->at; n->parent; n = n->parent)
        for (uint32_t g = 0; g < x->n_groups; g++) {
            if (n->depth < p->first[g]) continue;
            if (!n->page[g]) return false;
            if (n->pins[g]) continue;
            *pinned += kv_page_bytes(x->kv, g);
            if (x->info->groups[g].window) *committed += kv_page_bytes(x->kv, g); /* of the others its row uses all */
        }
    return true;
}

static void insert(executor *x, const exec_pin *p) {
    uint32_t i = x->n_pins++;
    for (; i && x->pins[i - 1].until_us > p->until_us; i--) x->pins[i] = x->pins[i - 1];
    x->pins[i] = *p;
    turn(x, p, true);
}

/* Those that p begins with, and outlives. */
static void replace(executor *x, const row *r, const exec_pin *p) {
    for (uint32_t i = x->n_pins; i-- > 0;) {
        const exec_pin *q = &x->pins[i];
        if (q->n_pages < p->n_pages && q->until_us <= p->until_us && r->path[q->n_pages - 1] == q->at) remove_at(x, i);
    }
}

void pins_take(executor *x, row *r) {
    uint64_t for_us = r->s->copy.req.pin_us, now, pinned, committed;
    exec_pin p = {.n_pages = r->n_prompt / x->opt.page_tokens};
    if (!for_us || r->pin_tried || !r->root || r->n_shared < p.n_pages) return;
    r->pin_tried = true;
    if (!p.n_pages) return;
    now = hd_now_us(x->opt.clock);
    p.at = r->path[p.n_pages - 1];
    p.until_us = for_us < UINT64_MAX - now ? now + for_us : UINT64_MAX;
    for (uint32_t g = 0; g < x->n_groups; g++) p.first[g] = prefix_first_seen(x->tree, g, p.n_pages * x->opt.page_tokens);
    for (uint32_t i = 0; i < x->n_pins; i++) {
        if (x->pins[i].at != p.at) continue;
        if (x->pins[i].until_us < p.until_us) remove_at(x, i); /* it is taken anew, for longer */
        else r->n_pinned = p.n_pages * x->opt.page_tokens;
        break;
    }
    if (r->n_pinned) return;
    for (;;) {
        if (!cost(x, &p, &pinned, &committed)) return;
        if (x->n_pins < MAX_PINS && prefix_look(x->tree).pinned_bytes + pinned <= x->opt.pin_budget_bytes &&
            executor_committed(x) + committed <= x->opt.kv_budget_bytes)
            break;
        if (!x->n_pins || x->pins[0].until_us > p.until_us) return;
        remove_at(x, 0);
    }
    insert(x, &p);
    replace(x, r, &p);
    r->n_pinned = p.n_pages * x->opt.page_tokens;
}
