/* prefix.c - see prefix.h. */
#include "state/prefix.h"
#include "base/mem.h"

#include <string.h>

enum { GHOSTS = 4096, MAX_SPACE = 63, OTHER_SPACES = 64 };

typedef struct {
    prefix_node *node;
    uint32_t g;
} candidate;

struct prefix_tree {
    kv *kv;
    uint32_t page_tokens, n_groups, n_windowed, max_nodes;
    uint32_t window[KV_MAX_GROUPS];
    prefix_node **root; /* by name; a root's tokens hold its name */
    uint32_t n_roots, cap_roots;
    candidate *heap;    /* pages that nobody uses, the least worth first */
    uint32_t n_heap, cap_heap;
    double clock;
    uint64_t uses;
    uint64_t in_use, pinned; /* pinned: and not counted in in_use */
    void (*leaving)(void *ctx, prefix_node *n);
    void *leaving_ctx;
    uint64_t ghost[GHOSTS]; /* hashes of nodes that were evicted: a table that forgets by overwriting */
    prefix_stats st;
};

const char *prefix_miss_name(prefix_miss m) {
    static const char *const names[] = {
#define X(id, name) name,
        PREFIX_MISSES(X)
#undef X
    };
    return names[m];
}

/* ---- hashes: only to remember what was evicted; tokens decide everything else ---- */

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_tokens(uint64_t h, const int32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) h = mix(h, (uint32_t)tokens[i] + 1u);
    return h;
}

static const char *space_name(const prefix_node *root) { return (const char *)root->tokens; }

/* ---- what may go, by worth: a binary heap ---- */

static bool goes_first(const prefix_tree *t, uint32_t a, uint32_t b) {
    const candidate *x = &t->heap[a], *y = &t->heap[b];
    double u = x->node->worth[x->g], v = y->node->worth[y->g];
    return u != v ? u < v : x->node->since[x->g] < y->node->since[y->g];
}

static void heap_swap(prefix_tree *t, uint32_t a, uint32_t b) {
    candidate c = t->heap[a];
    t->heap[a] = t->heap[b];
    t->heap[b] = c;
    t->heap[a].node->heap_at[t->heap[a].g] = a + 1;
    t->heap[b].node->heap_at[t->heap[b].g] = b + 1;
}

static void heap_up(prefix_tree *t, uint32_t i) {
    for (; i && goes_first(t, i, (i - 1) / 2); i = (i - 1) / 2) heap_swap(t, i, (i - 1) / 2);
}

static void heap_down(prefix_tree *t, uint32_t i) {
    for (;;) {
        uint32_t least = i;
        for (uint32_t c = 2 * i + 1; c <= 2 * i + 2 && c < t->n_heap; c++)
            if (goes_first(t, c, least)) least = c;
        if (least == i) return;
        heap_swap(t, i, least);
        i = least;
    }
}

static void heap_remove(prefix_tree *t, prefix_node *n, uint32_t g) {
    uint32_t i = n->heap_at[g];
    if (!i--) return;
    heap_swap(t, i, t->n_heap - 1);
    t->n_heap--;
    n->heap_at[g] = 0;
    if (i == t->n_heap) return;
    heap_up(t, i);
    heap_down(t, i);
}

/* Computing a position costs the weights once, and attention grows with depth: about as much again at 4096. */
static double node_worth(const prefix_tree *t, const prefix_node *n, uint32_t g) {
    double page = 1 + (double)n->depth * t->page_tokens / 4096, often = 1 + (n->hits < 8 ? n->hits : 8);
    double filled = (double)n->n_tokens / t->page_tokens;
    if (!t->window[g]) return page * filled * often;
    if (!n->marked) return 0.05 * page * filled;
    return page * often * (1 + (double)n->depth / (1 + t->window[g] / t->page_tokens));
}

static bool may_go(const prefix_tree *t, const prefix_node *n, uint32_t g) {
    return n->page[g] && !n->held[g] && !n->pins[g] && (t->window[g] || (!n->users && !n->n_children));
}

/* There is room in the heap for every page: prefix_add saw to it. */
static void heap_update(prefix_tree *t, prefix_node *n, uint32_t g) {
    heap_remove(t, n, g);
    if (!may_go(t, n, g)) return;
    n->worth[g] = t->clock + node_worth(t, n, g);
    n->since[g] = ++t->uses;
    t->heap[t->n_heap] = (candidate){n, g};
    n->heap_at[g] = ++t->n_heap;
    heap_up(t, t->n_heap - 1);
}

static void heap_update_all(prefix_tree *t, prefix_node *n) {
    for (uint32_t g = 0; g < t->n_groups; g++) heap_update(t, n, g);
}

/* ---- children, in the order of their tokens ---- */

static uint32_t common(const int32_t *a, uint32_t n, const int32_t *b, uint32_t m) {
    uint32_t i = 0, least = n < m ? n : m;
    while (i < least && a[i] == b[i]) i++;
    return i;
}

static bool before(const prefix_node *c, const int32_t *tokens, uint32_t n) {
    uint32_t same = common(c->tokens, c->n_tokens, tokens, n);
    if (same == n) return false;
    return same == c->n_tokens || c->tokens[same] < tokens[same];
}

/* Where a child with these tokens is, or would be. */
static uint32_t place_of(const prefix_node *n, const int32_t *tokens, uint32_t n_tokens) {
    uint32_t lo = 0, hi = n->n_children;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (before(n->child[mid], tokens, n_tokens)) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* The child that has most of these tokens at its beginning: one of the two neighbours of their place. */
static prefix_node *nearest(const prefix_node *n, const int32_t *tokens, uint32_t n_tokens, uint32_t *same) {
    uint32_t at = place_of(n, tokens, n_tokens);
    prefix_node *best = NULL;
    *same = 0;
    for (uint32_t i = at ? at - 1 : 0; i <= at && i < n->n_children; i++) {
        uint32_t k = common(n->child[i]->tokens, n->child[i]->n_tokens, tokens, n_tokens);
        if (k > *same) best = n->child[i], *same = k;
    }
    return best;
}

static prefix_node *exact(const prefix_node *n, const int32_t *tokens, uint32_t n_tokens) {
    uint32_t at = place_of(n, tokens, n_tokens);
    prefix_node *c = at < n->n_children ? n->child[at] : NULL;
    return c && c->n_tokens == n_tokens && !memcmp(c->tokens, tokens, n_tokens * sizeof *tokens) ? c : NULL;
}

/* Room for one more pointer. */
static bool grow(prefix_node ***list, uint32_t n, uint32_t *cap) {
    uint32_t more = *cap ? *cap * 2 : 4;
    prefix_node **p;
    if (n < *cap) return true;
    if (!(p = hd_reallocarray(*list, more, sizeof *p))) return false;
    *list = p;
    *cap = more;
    return true;
}

static void insert(prefix_node **list, uint32_t *n, uint32_t at, prefix_node *node) {
    memmove(&list[at + 1], &list[at], (*n - at) * sizeof *list);
    list[at] = node;
    ++*n;
}

static void take_out(prefix_node **list, uint32_t *n, uint32_t at) {
    memmove(&list[at], &list[at + 1], (--*n - at) * sizeof *list);
}

/* ---- roots ---- */

static uint32_t root_place(const prefix_tree *t, const char *space, bool *found) {
    uint32_t lo = 0, hi = t->n_roots;
    *found = false;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(space_name(t->root[mid]), space);
        if (!c) return *found = true, mid;
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static prefix_node *node_new(const void *tokens, size_t bytes) {
    prefix_node *n = hd_calloc(1, sizeof *n);
    if (n && (n->tokens = hd_alloc(bytes))) {
        memcpy(n->tokens, tokens, bytes);
        return n;
    }
    hd_free(n);
    return NULL;
}

static void node_free(prefix_node *n) {
    hd_free(n->child);
    hd_free(n->tokens);
    hd_free(n);
}

static prefix_node *find_root(const prefix_tree *t, const char *space) {
    bool found;
    uint32_t at = root_place(t, space, &found);
    return found ? t->root[at] : NULL;
}

prefix_node *prefix_root(prefix_tree *t, const char *space) {
    bool found;
    uint32_t at = root_place(t, space, &found);
    prefix_node *n;
    if (found) return t->root[at];
    if (!grow(&t->root, t->n_roots, &t->cap_roots) || !(n = node_new(space, strlen(space) + 1))) return NULL;
    for (const char *p = space; *p; p++) n->hash = mix(n->hash, (unsigned char)*p);
    n->depth = UINT32_MAX; /* its children's is 0 */
    insert(t->root, &t->n_roots, at, n);
    return n;
}

/* ---- taking nodes out ---- */

static void drop_page(prefix_tree *t, prefix_node *n, uint32_t g) {
    HD_ASSERT(!n->held[g] && !n->pins[g]);
    if (!n->page[g]) return;
    heap_remove(t, n, g);
    kv_drop(t->kv, g, n->page[g]);
    n->page[g] = NULL;
    t->st.pages--;
    t->st.cached_pages--;
    t->st.bytes -= kv_page_bytes(t->kv, g);
    t->st.cached_bytes -= kv_page_bytes(t->kv, g);
    t->st.evicted_pages++;
}

static void tell(prefix_tree *t, prefix_node *n) {
    if (t->leaving && n->n_tokens == t->page_tokens) t->leaving(t->leaving_ctx, n);
}

static bool is_empty(const prefix_tree *t, const prefix_node *n) {
    for (uint32_t g = 0; g < t->n_groups; g++)
        if (n->page[g]) return false;
    return true;
}

static void remove_root(prefix_tree *t, prefix_node *n) {
    bool found;
    uint32_t at = root_place(t, space_name(n), &found);
    HD_ASSERT(found && t->root[at] == n);
    take_out(t->root, &t->n_roots, at);
    node_free(n);
}

/* Take a leaf that nobody uses out, and those above it that are then nothing but a way to it. */
static void remove_leaf(prefix_tree *t, prefix_node *n) {
    while (n->parent) {
        prefix_node *up = n->parent;
        uint32_t at = place_of(up, n->tokens, n->n_tokens);
        HD_ASSERT(!n->users && !n->n_children && up->child[at] == n);
        if (!is_empty(t, n)) tell(t, n);
        for (uint32_t g = 0; g < t->n_groups; g++) drop_page(t, n, g);
        take_out(up->child, &up->n_children, at);
        t->ghost[n->hash % GHOSTS] = n->hash;
        t->st.nodes--;
        node_free(n);
        n = up;
        if (n->n_children || n->users || !n->parent) break;
        if (!is_empty(t, n)) {
            heap_update_all(t, n);
            return;
        }
    }
    if (!n->parent && !n->n_children && !n->users) remove_root(t, n);
}

void prefix_each(prefix_tree *t, bool (*visit)(void *ctx, prefix_node *n), void *ctx) {
    for (uint32_t i = 0; i < t->n_roots; i++) {
        prefix_node *n = t->root[i], *up;
        while (n) {
            uint32_t next = 0;
            if (n->parent && n->n_tokens == t->page_tokens && !is_empty(t, n) && !visit(ctx, n)) return;
            /* Down; or to the next one beside it, or beside the nearest above that has one. */
            while (next >= n->n_children && (up = n->parent)) {
                next = place_of(up, n->tokens, n->n_tokens) + 1;
                n = up;
            }
            n = next < n->n_children ? n->child[next] : NULL;
        }
    }
}

bool prefix_evict(prefix_tree *t) {
    candidate c;
    if (!t->n_heap) return false;
    c = t->heap[0];
    if (c.node->worth[c.g] > t->clock) t->clock = c.node->worth[c.g];
    if (t->window[c.g]) {
        if (c.node->marked) tell(t, c.node);
        drop_page(t, c.node, c.g);
        if (c.node->users || c.node->n_children || !is_empty(t, c.node)) return true;
    }
    remove_leaf(t, c.node);
    return true;
}

/* ---- using ---- */

static void change_hold(prefix_tree *t, prefix_node *n, uint32_t g, bool more) {
    uint64_t bytes = kv_page_bytes(t->kv, g);
    HD_ASSERT(n->page[g] && (more || n->held[g]));
    if (n->pins[g] && !t->window[g] && n->held[g] == !more) t->pinned = more ? t->pinned - bytes : t->pinned + bytes; /* the first, or the last one */
    if (more && n->held[g]++) t->st.extra_holds++;
    else if (more) t->st.cached_pages--, t->st.cached_bytes -= bytes, t->in_use += t->window[g] ? 0 : bytes;
    else if (--n->held[g]) t->st.extra_holds--;
    else t->st.cached_pages++, t->st.cached_bytes += bytes, t->in_use -= t->window[g] ? 0 : bytes;
}

void prefix_enter(prefix_tree *t, prefix_node *n, bool took) {
    n->users++;
    n->hits += took;
    for (uint32_t g = 0; n->parent && g < t->n_groups; g++) {
        if (t->window[g]) continue;
        change_hold(t, n, g, true);
        heap_update(t, n, g);
    }
}

void prefix_leave(prefix_tree *t, prefix_node *n) {
    HD_ASSERT(n->users);
    n->users--;
    for (uint32_t g = 0; n->parent && g < t->n_groups; g++) {
        if (t->window[g]) continue;
        change_hold(t, n, g, false);
        heap_update(t, n, g);
    }
    if (n->users || n->n_children) return;
    if (!n->parent) remove_root(t, n);
    else if (is_empty(t, n)) remove_leaf(t, n);
}

void prefix_hold(prefix_tree *t, prefix_node *n, uint32_t g) {
    HD_ASSERT(t->window[g] && n->users);
    change_hold(t, n, g, true);
    heap_update(t, n, g);
}

void prefix_release(prefix_tree *t, prefix_node *n, uint32_t g) {
    HD_ASSERT(t->window[g] && n->users);
    change_hold(t, n, g, false);
    heap_update(t, n, g);
}

void prefix_pin(prefix_tree *t, prefix_node *n, uint32_t g, bool on) {
    uint64_t bytes = kv_page_bytes(t->kv, g);
    bool counts = t->window[g] || !n->held[g];
    HD_ASSERT(n->page[g] && (on || n->pins[g]) && n->n_tokens == t->page_tokens);
    if (on ? n->pins[g]++ : --n->pins[g]) return; /* neither the first nor the last */
    if (on) t->st.pinned_pages++, t->st.pinned_bytes += bytes, t->pinned += counts ? bytes : 0;
    else t->st.pinned_pages--, t->st.pinned_bytes -= bytes, t->pinned -= counts ? bytes : 0;
    heap_update(t, n, g);
}

uint64_t prefix_pinned_bytes(const prefix_tree *t) { return t->pinned; }

bool prefix_is_pinned(const prefix_tree *t, const prefix_node *n) {
    for (uint32_t g = 0; g < t->n_groups; g++)
        if (n->pins[g] && !t->window[g]) return true;
    return false;
}

void prefix_mark(prefix_tree *t, prefix_node *n) {
    uint32_t widest = 0;
    if (!t->n_windowed) return;
    for (uint32_t g = 0; g < t->n_groups; g++)
        if (t->window[g] > widest) widest = t->window[g];
    /* The pages of a window that ends inside this node's page or the one before it. */
    for (uint32_t left = widest / t->page_tokens + 3; n->parent && left; n = n->parent, left--) {
        n->marked = true;
        heap_update_all(t, n);
    }
}

/* ---- putting in ---- */

static void give(prefix_tree *t, prefix_node *n, void *const *pages) {
    for (uint32_t g = 0; g < t->n_groups; g++) {
        if (!pages[g]) continue;
        if (n->page[g]) {
            kv_drop(t->kv, g, pages[g]);
            continue;
        }
        n->page[g] = pages[g];
        t->st.pages++;
        t->st.cached_pages++;
        t->st.bytes += kv_page_bytes(t->kv, g);
        t->st.cached_bytes += kv_page_bytes(t->kv, g);
    }
    heap_update_all(t, n);
}

/* The heap never needs memory later. */
static bool heap_room(prefix_tree *t) {
    uint64_t need = t->st.pages + t->n_groups, cap = t->cap_heap ? t->cap_heap : 64;
    candidate *h;
    if (need <= t->cap_heap) return true;
    while (cap < need) cap *= 2;
    if (!(h = hd_reallocarray(t->heap, cap, sizeof *h))) return false;
    t->heap = h;
    t->cap_heap = (uint32_t)cap;
    return true;
}

/* Partial children whose tokens are the beginning of these say nothing more. */
static void remove_beginnings(prefix_tree *t, prefix_node *at, const int32_t *tokens, uint32_t n) {
    for (uint32_t i = place_of(at, tokens, n); i-- > 0;) {
        prefix_node *c = at->child[i];
        if (c->n_tokens >= n || common(c->tokens, c->n_tokens, tokens, n) < c->n_tokens) return;
        if (!c->users && !c->n_children) remove_leaf(t, c);
    }
}

prefix_node *prefix_add(prefix_tree *t, prefix_node *at, const int32_t *tokens, uint32_t n, void *const *pages) {
    prefix_node *c = exact(at, tokens, n);
    HD_ASSERT(n && n <= t->page_tokens && (!at->parent || at->n_tokens == t->page_tokens));
    if (!heap_room(t)) return NULL;
    if (!c) {
        if (t->st.nodes >= t->max_nodes || !grow(&at->child, at->n_children, &at->cap_children) ||
            !(c = node_new(tokens, n * sizeof *tokens)))
            return NULL;
        c->parent = at;
        c->n_tokens = n;
        c->depth = at->depth + 1;
        c->hash = hash_tokens(at->hash, tokens, n);
        insert(at->child, &at->n_children, place_of(at, tokens, n), c);
        t->st.nodes++;
        heap_update_all(t, at); /* no leaf any more */
    }
    give(t, c, pages);
    remove_beginnings(t, at, tokens, n);
    return c;
}

/* ---- finding ---- */

uint32_t prefix_first_seen(const prefix_tree *t, uint32_t g, uint32_t n) {
    return t->window[g] && n + 1 > t->window[g] ? (n + 1 - t->window[g]) / t->page_tokens : 0;
}

static bool whole(const prefix_tree *t, const prefix_node *n) {
    for (uint32_t g = 0; g < t->n_groups; g++)
        if (!n->page[g]) return false;
    return true;
}

prefix_node *prefix_next(prefix_tree *t, prefix_node *at, const int32_t *tokens, bool all) {
    prefix_node *c = exact(at, tokens, t->page_tokens);
    return c && (!all || whole(t, c)) ? c : NULL;
}

const char *prefix_space(const prefix_node *root) { return space_name(root); }

void prefix_watch(prefix_tree *t, void (*leaving)(void *ctx, prefix_node *n), void *ctx) {
    t->leaving = leaving;
    t->leaving_ctx = ctx;
}

/* from[g]: the first of the pages that go on without a gap up to page `end`.  Does a row of n tokens see no gap? */
static bool can_go_on(const prefix_tree *t, const uint32_t *from, uint32_t end, uint32_t n) {
    for (uint32_t g = 0; g < t->n_groups; g++) {
        uint32_t first = prefix_first_seen(t, g, n);
        if (first < end && from[g] > first) return false;
    }
    return true;
}

static bool known_elsewhere(const prefix_tree *t, const prefix_node *root, const int32_t *tokens, uint32_t n) {
    uint32_t same;
    for (uint32_t i = 0; i < t->n_roots && i < OTHER_SPACES; i++)
        if (t->root[i] != root && nearest(t->root[i], tokens, n, &same) && same == n) return true;
    return false;
}

/* Nothing more was found after node `at` with d pages before it, whose nearest child has `same` tokens in common; ended:
 * and no more. */
static void explain(const prefix_tree *t, const prefix_node *at, uint32_t d, uint32_t same, bool ended, const int32_t *tokens,
                    uint32_t n, prefix_hit *h) {
    uint32_t done = d * t->page_tokens, left = n - done, page = left < t->page_tokens ? left : t->page_tokens;
    uint64_t hash = page == t->page_tokens ? hash_tokens(at->hash, tokens + done, page) : 0;
    h->miss_at = done + same;
    if (same == left) h->miss = PREFIX_MISS_NONE;
    else if (hash && t->ghost[hash % GHOSTS] == hash) h->miss = PREFIX_MISS_EVICTED;
    else if (at->n_children && !ended) h->miss = PREFIX_MISS_DIFFERS;
    else h->miss = PREFIX_MISS_NEW;
}

void prefix_find(prefix_tree *t, const char *space, const int32_t *tokens, uint32_t n, bool tail, prefix_hit *h) {
    prefix_node *at = find_root(t, space), *c = NULL;
    uint32_t from[KV_MAX_GROUPS] = {0}, d = 0, same = 0, page = t->page_tokens;
    memset(h, 0, sizeof *h);
    h->last = at;
    for (; at && n - d * page >= page && (c = exact(at, tokens + d * page, page)); d++) {
        at = c;
        for (uint32_t g = 0; g < t->n_groups; g++)
            if (!c->page[g]) from[g] = d + 1;
        if (!can_go_on(t, from, d + 1, (d + 1) * page)) continue;
        h->last = at;
        h->n_nodes = d + 1;
        h->n_tokens = (d + 1) * page;
    }
    c = NULL;
    if (at && n > d * page) {
        uint32_t left = n - d * page;
        c = nearest(at, tokens + d * page, left < page ? left : page, &same);
        if (tail && c && whole(t, c) && can_go_on(t, from, d, d * page + same)) {
            h->last = at;
            h->n_nodes = d;
            h->tail = c;
            h->n_tail = same;
            h->n_tokens = d * page + same;
        }
    }
    if (h->n_tokens == n) {
        h->miss_at = n;
        return;
    }
    if (at) explain(t, at, d, same, c && same == c->n_tokens, tokens, n, h);
    else h->miss = PREFIX_MISS_NEW;
    if (h->n_tokens < h->miss_at) h->miss = PREFIX_MISS_BOUNDARY, h->miss_at = h->n_tokens;
    if (!h->n_tokens && h->miss == PREFIX_MISS_NEW && known_elsewhere(t, at, tokens, n < page ? n : page))
        h->miss = PREFIX_MISS_NAMESPACE;
}

/* ---- opening, looking ---- */

hd_status prefix_open(prefix_tree **out, kv *k, uint32_t page_tokens, uint32_t n_groups, const uint32_t *windows, hd_err *err) {
    prefix_tree *t = hd_calloc(1, sizeof *t);
    uint64_t pages = 0;
    *out = NULL;
    if (!t) return hd_fail(err, HD_NOMEM, "prefix: no memory");
    t->kv = k;
    t->page_tokens = page_tokens;
    t->n_groups = n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        t->window[g] = windows[g];
        t->n_windowed += windows[g] != 0;
        pages += kv_budget(k) / kv_page_bytes(k, g);
    }
    /* Nodes without pages are few: only those on the way to one with a window's. */
    t->max_nodes = pages < UINT32_MAX / 4 ? (uint32_t)pages * 2 + 64 : UINT32_MAX / 2;
    *out = t;
    return HD_OK;
}

void prefix_close(prefix_tree *t) {
    if (!t) return;
    while (prefix_evict(t)) {}
    HD_ASSERT(!t->n_roots && !t->st.nodes && !t->st.pages && !t->in_use);
    hd_free(t->root);
    hd_free(t->heap);
    hd_free(t);
}

uint64_t prefix_tables_bytes(uint64_t n_nodes, uint64_t n_pages, uint32_t page_tokens) {
    /* A node, its tokens, its list of children (4 at first) and what the heap adds to each; a list of candidates that doubles. */
    uint64_t node = sizeof(prefix_node) + page_tokens * sizeof(int32_t) + 4 * sizeof(prefix_node *) + 3 * 16;
    return sizeof(prefix_tree) + n_nodes * node + 2 * n_pages * sizeof(candidate);
}

uint64_t prefix_in_use_bytes(const prefix_tree *t) { return t->in_use; }

uint64_t prefix_node_bytes(const prefix_tree *t) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < t->n_groups; g++) bytes += t->window[g] ? 0 : kv_page_bytes(t->kv, g);
    return bytes;
}

uint64_t prefix_cached_bytes(const prefix_tree *t, const prefix_node *n) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < t->n_groups; g++) bytes += n->page[g] && !n->held[g] ? kv_page_bytes(t->kv, g) : 0;
    return bytes;
}

prefix_stats prefix_look(const prefix_tree *t) { return t->st; }

#ifdef HD_DEBUG
static void check_node(const prefix_tree *t, const prefix_node *n, prefix_stats *sum, uint64_t *in_use, uint64_t *pinned) {
    for (uint32_t g = 0; n->parent && g < t->n_groups; g++) {
        uint64_t bytes = kv_page_bytes(t->kv, g);
        HD_ASSERT(n->page[g] || !n->held[g]);
        HD_ASSERT(!n->users ? !n->held[g] : t->window[g] || n->held[g] == n->users);
        HD_ASSERT(t->window[g] || n->page[g]);
        HD_ASSERT((n->heap_at[g] != 0) == may_go(t, n, g));
        HD_ASSERT(n->page[g] || !n->pins[g]);
        if (!n->page[g]) continue;
        if (n->pins[g]) sum->pinned_pages++, sum->pinned_bytes += bytes, *pinned += t->window[g] || !n->held[g] ? bytes : 0;
        sum->pages++, sum->bytes += bytes;
        if (!n->held[g]) sum->cached_pages++, sum->cached_bytes += bytes;
        else sum->extra_holds += n->held[g] - 1, *in_use += t->window[g] ? 0 : bytes;
    }
    sum->nodes += n->parent != NULL;
    HD_ASSERT(!n->parent || n->n_tokens == t->page_tokens || !n->n_children);
    for (uint32_t i = 0; i < n->n_children; i++) {
        const prefix_node *c = n->child[i];
        HD_ASSERT(c->parent == n && c->depth == n->depth + 1);
        HD_ASSERT(i == 0 || before(n->child[i - 1], c->tokens, c->n_tokens));
        HD_ASSERT(c->users <= n->users);
    }
}

/* In order, without recursion: trees are as deep as contexts are long. */
void prefix_check(const prefix_tree *t) {
    prefix_stats sum = {0};
    uint64_t in_use = 0, pinned = 0;
    for (uint32_t r = 0; r < t->n_roots; r++) {
        const prefix_node *n = t->root[r];
        while (n) {
            const prefix_node *up;
            check_node(t, n, &sum, &in_use, &pinned);
            if (n->n_children) {
                n = n->child[0];
                continue;
            }
            while ((up = n->parent)) {
                uint32_t at = place_of(up, n->tokens, n->n_tokens) + 1;
                if (at < up->n_children) {
                    n = up->child[at];
                    break;
                }
                n = up;
            }
            if (!up) n = NULL;
        }
    }
    HD_ASSERT(sum.nodes == t->st.nodes && sum.pages == t->st.pages && sum.bytes == t->st.bytes);
    HD_ASSERT(sum.cached_pages == t->st.cached_pages && sum.cached_bytes == t->st.cached_bytes);
    HD_ASSERT(sum.extra_holds == t->st.extra_holds && in_use == t->in_use);
    HD_ASSERT(sum.pinned_pages == t->st.pinned_pages && sum.pinned_bytes == t->st.pinned_bytes && pinned == t->pinned);
    for (uint32_t i = 1; i < t->n_heap; i++) HD_ASSERT(!goes_first(t, i, (i - 1) / 2));
}
#else
void prefix_check(const prefix_tree *t) { (void)t; }
#endif
