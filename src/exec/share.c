/* share.c - rows and the prefix tree: taking up what is known, putting in what was computed, waiting for one another.
 *
 * Pages [0, n_shared) of a row belong to nodes of the tree and are never written; the rest is its own.  Every page that is
 * complete is put in at once, so that rows with the same tokens share also while they run, and the first of several equal
 * prompts computes it for all.  A page holds the same bits whoever computed it (law 1), so nothing here changes an answer. */
#include "exec/executor.h"

#include <string.h>

static bool shares(const executor *x, const session *s) { return !x->opt.no_cache && !s->copy.req.no_cache; }

static const char *space(const session *s) { return s->copy.space; }

/* The last token's output is always wanted. */
uint32_t share_most(const executor *x, const session *s) {
    uint32_t n_tokens = s->row ? s->row->n_tokens : session_tokens(s);
    uint32_t n = shares(x, s) && s->method->skips ? s->method->skips(s, n_tokens) : 0;
    return n < n_tokens ? n : n_tokens - 1;
}

static void find(const executor *x, const session *s, bool tail, prefix_hit *h) {
    const row *r = s->row;
    uint32_t n = share_most(x, s);
    if (n) {
        prefix_find(x->tree, space(s), r ? r->tokens : s->copy.req.prompt, n, tail, h);
    } else {
        memset(h, 0, sizeof *h);
        h->miss = PREFIX_MISS_OFF;
    }
}

void share_find(const executor *x, const session *s, prefix_hit *h) { find(x, s, false, h); }

uint64_t share_cost(const executor *x, const session *s, const prefix_hit *h) {
    uint64_t bytes = executor_project(x, executor_projected_tokens(x, s)), node = prefix_node_bytes(x->tree);
    const prefix_node *n = h->last;
    for (uint32_t i = h->n_nodes; i-- > 0; n = n->parent)
        if (n->users > n->leaving || prefix_is_pinned(x->tree, n)) bytes -= node; /* others hold it anyway */
    return bytes;
}

/* Windows: hold the pages that the next position sees. */
static void hold_windows(executor *x, row *r) {
    for (uint32_t g = 0; g < x->n_groups; g++) {
        r->n_pages[g] = r->n_shared;
        r->first_page[g] = 0;
        if (!x->info->groups[g].window) continue;
        r->first_page[g] = prefix_first_seen(x->tree, g, r->n_done);
        if (r->first_page[g] > r->n_shared) r->first_page[g] = r->n_shared;
        for (uint32_t i = r->first_page[g]; i < r->n_shared; i++) {
            prefix_hold(x->tree, r->path[i], g);
            r->held_bytes += kv_page_bytes(x->kv, g);
        }
    }
}

/* A copy of a page whose beginning the row takes up; it goes on writing where that ends. */
static void copy_tail(executor *x, row *r, prefix_node *tail) {
    prefix_enter(x->tree, tail, true); /* it must not make room for its own copy */
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (x->info->groups[g].window) prefix_hold(x->tree, tail, g);
    for (uint32_t g = 0; g < x->n_groups; g++) {
        void *page = pages_get(x, g);
        HD_ASSERT(page); /* share_begin saw that there is room for both */
        memcpy(page, tail->page[g], kv_page_bytes(x->kv, g));
        r->pages[g][r->n_pages[g]++] = page;
        r->held_bytes += kv_page_bytes(x->kv, g);
    }
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (x->info->groups[g].window) prefix_release(x->tree, tail, g);
    prefix_leave(x->tree, tail);
}

static void go_through(executor *x, row *r, prefix_node *n, bool took) {
    prefix_enter(x->tree, n, took);
    for (uint32_t g = 0; g < x->n_groups; g++) r->pages[g][r->n_shared] = n->page[g];
    r->path[r->n_shared++] = n;
}

/* n more tokens were taken up; those of the prompt are counted. */
static void count_taken(row *r, uint32_t n) {
    uint32_t room = r->n_prompt - r->n_taken;
    if (!r->t_first_us && !r->preemptions) r->n_taken += n < room ? n : room;
}

/* Rows will go on after n tokens of r, once the page that holds that place is in the tree. */
static void mark_at(executor *x, const row *r, uint32_t n, bool *done) {
    if (!r->root || *done || r->n_shared <= n / x->opt.page_tokens) return;
    prefix_mark(x->tree, r->path[n / x->opt.page_tokens]);
    *done = true;
}

static void mark_places(executor *x, row *r) {
    size_t boundary = r->s->copy.req.boundary;
    mark_at(x, r, r->n_prompt, &r->marked); /* a next turn begins like this prompt */
    if (boundary && boundary < r->n_prompt) mark_at(x, r, (uint32_t)boundary, &r->boundary_marked);
}

/* The longest hit; without its tail where original and copy do not both have room. */
static void choose(const executor *x, const session *s, prefix_hit *h) {
    find(x, s, true, h);
    if (!h->tail) return;
    if (executor_committed(x) + share_cost(x, s, h) + prefix_cached_bytes(x->tree, h->tail) > x->opt.kv_budget_bytes)
        find(x, s, false, h);
}

void share_begin(executor *x, row *r) {
    prefix_hit h;
    choose(x, r->s, &h);
    r->reserved_bytes = executor_project(x, executor_projected_tokens(x, r->s)) - h.n_nodes * prefix_node_bytes(x->tree);
    if (!shares(x, r->s)) {
        r->miss = PREFIX_MISS_OFF;
        return;
    }
    if (!(r->root = h.last ? h.last : prefix_root(x->tree, space(r->s)))) return; /* no memory: it goes alone */
    while (r->root->parent) r->root = r->root->parent;
    prefix_enter(x->tree, r->root, false);
    r->n_shared = h.n_nodes;
    for (prefix_node *n = h.last; n && n->parent; n = n->parent) r->path[n->depth] = n;
    for (uint32_t i = 0; i < h.n_nodes; i++) {
        prefix_enter(x->tree, r->path[i], true);
        for (uint32_t g = 0; g < x->n_groups; g++) r->pages[g][i] = r->path[i]->page[g];
    }
    r->n_done = h.n_tokens;
    hold_windows(x, r);
    if (h.tail) copy_tail(x, r, h.tail);
    count_taken(r, r->n_done);
    mark_places(x, r);
    if (!r->preemptions) {
        r->miss = h.miss;
        r->miss_at = h.miss_at;
    }
}

/* ---- putting in ---- */

static void publish_one(executor *x, row *r) {
    uint32_t i = r->n_shared, page = x->opt.page_tokens;
    prefix_node *at = i ? r->path[i - 1] : r->root, *n;
    void *pages[KV_MAX_GROUPS];
    uint64_t moved = prefix_node_bytes(x->tree);
    for (uint32_t g = 0; g < x->n_groups; g++) pages[g] = r->pages[g][i]; /* NULL: behind a window already */
    if (!(n = prefix_add(x->tree, at, r->tokens + (uint64_t)i * page, page, pages))) {
        r->alone = true;
        return;
    }
    go_through(x, r, n, false);
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (x->info->groups[g].window && pages[g]) prefix_hold(x->tree, n, g);
    r->held_bytes -= moved;
    r->reserved_bytes -= moved;
    x->reserved_bytes -= moved;
    x->freed = true; /* where the tree had it already */
}

void share_publish(executor *x, row *r) {
    while (r->root && !r->alone && r->n_done / x->opt.page_tokens > r->n_shared) publish_one(x, r);
    mark_places(x, r);
    pins_take(x, r);
}

/* ---- following ---- */

/* Is q just computing the page that r needs next?  Of two at the same place the first one computes. */
static bool computes_for(const executor *x, const row *q, const row *r, bool earlier) {
    uint32_t page = x->opt.page_tokens, d = r->n_shared;
    if (q->root != r->root || q->alone || q->phase == ROW_PAUSED || q->ended || !q->method->skips) return false;
    if (q->n_done < r->n_done || (q->n_done == r->n_done && !earlier) || q->n_done >= r->n_done + page) return false;
    if (q->n_shared != d || (d && q->path[d - 1] != r->path[d - 1]) || q->n_tokens < r->n_done + page) return false;
    return !memcmp(q->tokens + r->n_done, r->tokens + r->n_done, page * sizeof *r->tokens);
}

bool share_follow(executor *x, row *r) {
    uint32_t page = x->opt.page_tokens;
    bool earlier = true;
    prefix_node *n;
    if (!r->root || r->alone || r->n_done != r->n_shared * page) return false;
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (r->n_pages[g] != r->n_shared) return false; /* it has a page for what comes next */
    while (share_most(x, r->s) >= r->n_done + page &&
           (n = prefix_next(x->tree, r->n_shared ? r->path[r->n_shared - 1] : r->root, r->tokens + r->n_done, true))) {
        uint64_t moved = prefix_node_bytes(x->tree);
        go_through(x, r, n, true);
        r->n_done += page;
        for (uint32_t g = 0; g < x->n_groups; g++) {
            r->n_pages[g]++;
            if (!x->info->groups[g].window) continue;
            prefix_hold(x->tree, n, g);
            r->held_bytes += kv_page_bytes(x->kv, g);
        }
        r->reserved_bytes -= moved;
        x->reserved_bytes -= moved;
        x->freed = true;
        pages_drop_behind_window(x, r);
        count_taken(r, page);
    }
    if (share_most(x, r->s) < r->n_done + page) return false;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        if (x->rows[i] == r) earlier = false;
        else if (computes_for(x, x->rows[i], r, earlier)) return true;
    }
    return false;
}

/* ---- leaving ---- */

void share_release(executor *x, row *r, uint32_t g, uint32_t i) { prefix_release(x->tree, r->path[i], g); }

/* The incomplete page at the end: what the row holds of it for itself. */
static void keep_tail(executor *x, row *r) {
    uint32_t page = x->opt.page_tokens, n = r->n_done - r->n_shared * page;
    prefix_node *at = r->n_shared ? r->path[r->n_shared - 1] : r->root, *tail;
    void *pages[KV_MAX_GROUPS];
    if (!n && r->n_shared) prefix_mark(x->tree, at);
    if (!n || n > page || r->alone) return; /* several: it could not be put in */
    for (uint32_t g = 0; g < x->n_groups; g++) {
        if (r->n_pages[g] <= r->n_shared) return;
        pages[g] = r->pages[g][r->n_shared];
    }
    if (!(tail = prefix_add(x->tree, at, r->tokens + (uint64_t)r->n_shared * page, n, pages))) return;
    prefix_mark(x->tree, tail);
    for (uint32_t g = 0; g < x->n_groups; g++) r->pages[g][r->n_shared] = NULL;
}

void share_end(executor *x, row *r, bool keep) {
    if (!r->root) return;
    for (uint32_t g = 0; g < x->n_groups; g++)
        for (uint32_t i = r->first_page[g]; x->info->groups[g].window && i < r->n_shared; i++)
            prefix_release(x->tree, r->path[i], g);
    if (keep) keep_tail(x, r);
    while (r->n_shared) prefix_leave(x->tree, r->path[--r->n_shared]);
    prefix_leave(x->tree, r->root);
    r->root = NULL;
    r->alone = r->marked = r->boundary_marked = false;
}
