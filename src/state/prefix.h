/* prefix.h - pages by the tokens they hold: the prefix tree.
 *
 * A node holds the pages (one of each layer group) of the tokens that follow its parent's: page_tokens of them in a full
 * node, fewer in a partial one, which has no children.  Roots are namespaces.  The pages of a node are read by rows and
 * never written again; who needs to write gets a copy.  A node that a row uses stays, with all before it; what nobody uses
 * is cache and goes, the least worth first, when someone needs a page (prefix_evict).
 *
 * Groups with a window: a row lets go of pages that its window has left behind, and the tree may lose them while the other
 * groups' pages of the same node stay.  A prefix of n tokens can be taken up where every group without a window has all its
 * pages and every other one those that the window of position n touches.
 *
 * What is worth keeping: seconds of computing that a page saves, per byte, times how often it was taken up, on a clock that
 * moves on with each eviction (GreedyDual-Size with frequency: Cao and Irani 1997; Cherkasova 1998).  A page of a windowed
 * group is worth a whole prefix at places where rows are known to go on (prefix_mark), and little elsewhere.  What is
 * pinned is not dropped however little it is worth; whoever pins sees to it that rows have room beside it.
 * Executor thread only. */
#ifndef HD_STATE_PREFIX_H
#define HD_STATE_PREFIX_H

#include "state/kv.h"
#include "state/pagekey.h"

typedef struct prefix_tree prefix_tree;
typedef struct prefix_node prefix_node;

struct prefix_node {
    prefix_node *parent;             /* NULL: a root */
    prefix_node **child;             /* by tokens, ascending */
    uint32_t n_children, cap_children;
    uint32_t n_tokens, depth;        /* depth: pages before it */
    uint32_t users;                  /* rows whose tokens go through it */
    uint32_t leaving;                /* so many of them would leave: a caller's note, otherwise 0 */
    void *page[KV_MAX_GROUPS];       /* NULL: gone */
    uint32_t held[KV_MAX_GROUPS];    /* rows that hold this page */
    uint32_t heap_at[KV_MAX_GROUPS]; /* 1 + index among what may be evicted; 0: not there */
    double worth[KV_MAX_GROUPS];
    uint64_t since[KV_MAX_GROUPS];   /* order in which pages came to be unused: the longest unused goes first among equals */
    uint32_t hits;
    uint32_t pins[KV_MAX_GROUPS];    /* so many keep this page from being dropped */
    bool marked;
    bool keyed;                      /* key is known: it is worked out when it is first asked for */
    pagekey key;
    uint64_t hash;                   /* of all tokens up to its end, and of its namespace */
    int32_t *tokens;
};

/* windows[g]: positions that group g sees, 0: all of them.  k is borrowed. */
hd_status prefix_open(prefix_tree **out, kv *k, uint32_t page_tokens, uint32_t n_groups, const uint32_t *windows, hd_err *err);
void prefix_close(prefix_tree *t); /* nobody uses a node any more */

#define PREFIX_MISSES(X)                                                                                               \
    X(NONE, "none")           /* everything that could be taken up was */                                             \
    X(NEW, "new")             /* nothing was ever known beyond the hit */                                             \
    X(DIFFERS, "differs")     /* what is known has another token at `at` */                                           \
    X(EVICTED, "evicted")     /* it was known, and had to make room */                                                \
    X(BOUNDARY, "boundary")   /* known up to `at`, but a sliding window's pages are gone there */                      \
    X(NAMESPACE, "namespace") /* known to another tenant or adapter only */                                           \
    X(OFF, "off")             /* the request, or its method, does not take anything up */
typedef enum {
#define X(id, name) PREFIX_MISS_##id,
    PREFIX_MISSES(X)
#undef X
    N_PREFIX_MISSES
} prefix_miss;
const char *prefix_miss_name(prefix_miss m);

/* The longest known beginning of a row of tokens. */
typedef struct {
    prefix_node *last;   /* deepest full node of it; the namespace's root; NULL: no such namespace */
    uint32_t n_nodes;    /* full nodes down to `last` */
    prefix_node *tail;   /* its first n_tail tokens go on from there: to be copied.  NULL: none */
    uint32_t n_tail;
    uint32_t n_tokens;   /* in all */
    prefix_miss miss;    /* why it is not longer */
    uint32_t miss_at;    /* the first position that could not be taken up for that reason */
} prefix_hit;
/* tokens[n]: what may be taken up at most.  tail: also a part of a page. */
void prefix_find(prefix_tree *t, const char *space, const int32_t *tokens, uint32_t n, bool tail, prefix_hit *h);
/* The first page of group g (index) that a row with n tokens done still sees. */
uint32_t prefix_first_seen(const prefix_tree *t, uint32_t g, uint32_t n);
/* The full node after `at` with these page_tokens tokens; NULL: none.  whole: all of its pages must be there. */
prefix_node *prefix_next(prefix_tree *t, prefix_node *at, const int32_t *tokens, bool whole);

/* The namespace's root, made if need be.  NULL: no memory. */
prefix_node *prefix_root(prefix_tree *t, const char *space);
/* A row goes through this node, and holds the pages of its groups without a window, until it leaves.  took: it was taken
 * up, not put in. */
void prefix_enter(prefix_tree *t, prefix_node *n, bool took);
void prefix_leave(prefix_tree *t, prefix_node *n);
/* The same for the page of one windowed group.  The page is there. */
void prefix_hold(prefix_tree *t, prefix_node *n, uint32_t g);
void prefix_release(prefix_tree *t, prefix_node *n, uint32_t g);
/* Put in n (1..page_tokens) tokens after the full node (or root) `at`.  pages[g] (NULL: a window has left it) become the
 * tree's, or are dropped where it had the same.  NULL: no memory or no place, then the pages stay the caller's. */
prefix_node *prefix_add(prefix_tree *t, prefix_node *at, const int32_t *tokens, uint32_t n, void *const *pages);
/* Rows will go on from somewhere near the end of this node: windows that end there are worth the whole prefix. */
void prefix_mark(prefix_tree *t, prefix_node *n);
/* Keep the page of group g, which is there, from being dropped; or no longer.  The node is a full one. */
void prefix_pin(prefix_tree *t, prefix_node *n, uint32_t g, bool on);
/* Bytes of pages that are pinned and that prefix_in_use_bytes does not count: of groups without a window those that no row
 * uses, of the others all. */
uint64_t prefix_pinned_bytes(const prefix_tree *t);
bool prefix_is_pinned(const prefix_tree *t, const prefix_node *n); /* a page of a group without a window is */
const char *prefix_space(const prefix_node *root);
/* leaving(ctx, n) is told of full nodes just before they, or the windowed page of one that is marked, are dropped. */
void prefix_watch(prefix_tree *t, void (*leaving)(void *ctx, prefix_node *n), void *ctx);
/* Visit full nodes that have pages, each after all before it, until visit(ctx, n) says no. */
void prefix_each(prefix_tree *t, bool (*visit)(void *ctx, prefix_node *n), void *ctx);
/* Drop what is worth least of what nobody uses.  False: there is nothing. */
bool prefix_evict(prefix_tree *t);

/* Pages of groups without a window that rows use, each counted once. */
uint64_t prefix_in_use_bytes(const prefix_tree *t);
uint64_t prefix_node_bytes(const prefix_tree *t); /* of such pages of one node */
uint64_t prefix_cached_bytes(const prefix_tree *t, const prefix_node *n); /* of all its pages that no row holds */
typedef struct {
    uint64_t nodes, pages, bytes;      /* all that the tree has */
    uint64_t cached_pages, cached_bytes; /* held by no row */
    uint64_t extra_holds;              /* pages that would be taken if nothing were shared, beyond those that are */
    uint64_t evicted_pages;
    uint64_t pinned_pages, pinned_bytes;
} prefix_stats;
prefix_stats prefix_look(const prefix_tree *t);
/* Bytes of a tree of so many full nodes with so many pages in all, beside the pages, at most. */
uint64_t prefix_tables_bytes(uint64_t n_nodes, uint64_t n_pages, uint32_t page_tokens);
void prefix_check(const prefix_tree *t); /* asserts everything in debug builds */

#endif
