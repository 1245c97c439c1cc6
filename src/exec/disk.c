/* disk.c - the prefix tree and the disk tier (state/store.h).
 *
 * What the tree drops goes to the store's queue, whole pages only.  Before a request is admitted, pages that it can take up
 * are read from the store into the tree, a bounded part in each turn, so that rows go on meanwhile; admission then finds them
 * there like any others.  While they are read a use of the fetch keeps them from being dropped again.  Windowed pages are
 * read only where the window at the end of the hit will look. */
#include "base/mem.h"
#include "exec/executor.h"

#include <openssl/evp.h>
#include <string.h>

enum { FETCH_BYTES = 16 << 20, CLOSE_MS = 10000 };

/* ---- names ---- */

/* Everything but the tokens: the model, how its pages look, whose they are. */
static bool space_identity(const executor *x, const char *space, uint8_t out[32]) {
    uint8_t all[32 + 4 * 4 + 64] = {0};
    uint32_t facts[4] = {x->opt.page_tokens, (uint32_t)x->opt.kv_type, (uint32_t)x->opt.kv_type_sliding, x->n_groups};
    memcpy(all, x->identity, 32);
    memcpy(all + 32, facts, sizeof facts);
    strncpy((char *)all + 48, space, 63);
    return EVP_Digest(all, sizeof all, out, NULL, EVP_sha256(), NULL);
}

static bool make_key(const executor *x, prefix_node *n) {
    uint8_t id[32];
    if (!n->parent) return n->keyed = space_identity(x, prefix_space(n), id) && pagekey_root(&n->key, id);
    return n->keyed = pagekey_next(&n->key, &n->parent->key, n->tokens, n->n_tokens);
}

/* The key of n, and of all before it that have none yet: from the first on, so many at a time that a long way is not walked for
 * each.  False: no memory. */
static bool key_of(const executor *x, prefix_node *n) {
    enum { AT_A_TIME = 512 };
    while (!n->keyed) {
        prefix_node *way[AT_A_TIME]; /* a ring: the last nodes on the way up */
        uint32_t k = 0, low;
        for (prefix_node *at = n; at && !at->keyed; at = at->parent) way[k++ % AT_A_TIME] = at;
        low = k > AT_A_TIME ? k - AT_A_TIME : 0;
        while (k > low)
            if (!make_key(x, way[--k % AT_A_TIME])) return false;
    }
    return true;
}

static const prefix_node *root_of(const prefix_node *n) {
    while (n->parent) n = n->parent;
    return n;
}

/* ---- out ---- */

static hd_status put(executor *x, prefix_node *n, uint32_t wait_ms) {
    uint8_t id[32];
    store_page p = {.identity = id, .tokens = n->tokens, .n_tokens = n->n_tokens};
    if (!key_of(x, n) || !space_identity(x, prefix_space(root_of(n)), id)) return HD_NOMEM;
    p.key = n->key;
    p.parent = n->parent->key;
    for (uint32_t g = 0; g < x->n_groups; g++) {
        p.blob[g] = n->page[g];
        p.bytes[g] = n->page[g] ? x->plan.page_bytes[g] : 0;
    }
    return store_put(x->opt.store, &p, wait_ms);
}

/* A page that finds no room is forgotten. */
static void spill(void *ctx, prefix_node *n) {
    executor *x = ctx;
    if (x->spilling) put(x, n, 0);
}

static uint32_t close_left_ms(const executor *x) {
    uint64_t now = hd_now_us(&hd_clock_real);
    return now < x->t_close_us ? (uint32_t)((x->t_close_us - now) / 1000) : 0;
}

/* At the end there is time to wait for the disk.  False: it is over, or the disk has failed. */
static bool keep(void *ctx, prefix_node *n) {
    executor *x = ctx;
    uint32_t left = close_left_ms(x);
    return left && !put(x, n, left);
}

hd_status disk_open(executor *x, hd_err *err) {
    hd_status st;
    if (!x->opt.store || x->opt.no_cache) return HD_OK;
    if ((st = model_identity(x->m, x->identity, err))) return st;
    if (!(x->fetch.has = hd_alloc(x->max_pages))) return hd_fail(err, HD_NOMEM, "engine: no memory");
    x->spilling = true;
    prefix_watch(x->tree, spill, x);
    return HD_OK;
}

void disk_close(executor *x) {
    disk_fetch_end(x);
    if (x->spilling) {
        /* Not as they would be evicted, ends first: what there is no time for had better be ends. */
        x->spilling = false;
        x->t_close_us = hd_now_us(&hd_clock_real) + CLOSE_MS * 1000;
        prefix_each(x->tree, keep, x);
        store_flush(x->opt.store, close_left_ms(x), NULL);
    }
    hd_free(x->fetch.has);
    x->fetch.has = NULL;
}

/* ---- in ---- */

void disk_fetch_end(executor *x) {
    if (!x->fetch.on) return;
    x->fetch.on = false;
    for (prefix_node *n = x->fetch.at, *up; n; n = up) {
        up = n->parent;
        prefix_leave(x->tree, n);
    }
    x->freed = true;
}

/* Which groups of the pages of tokens[n] the tree or the disk has; as far as those without a window go.  Returns pages. */
static uint32_t survey(executor *x, prefix_node *root, const int32_t *tokens, uint32_t n) {
    uint32_t page = x->opt.page_tokens, d = 0;
    prefix_node *at = root;
    pagekey key = root->key;
    for (; d < n / page; d++) {
        store_info info = {0};
        uint8_t has = 0;
        if (at && (at = prefix_next(x->tree, at, tokens + d * page, false))) {
            if (!key_of(x, at)) break;
            key = at->key;
            for (uint32_t g = 0; g < x->n_groups; g++) has |= at->page[g] ? 1 << g : 0;
        } else if (!pagekey_next(&key, &key, tokens + d * page, page)) {
            break;
        }
        if (has != (1 << x->n_groups) - 1 && store_find(x->opt.store, &key, &info))
            for (uint32_t g = 0; g < x->n_groups; g++) has |= info.bytes[g] == x->plan.page_bytes[g] ? 1 << g : 0;
        for (uint32_t g = 0; g < x->n_groups; g++)
            if (!x->info->groups[g].window && !(has & 1 << g)) return d;
        x->fetch.has[d] = has;
    }
    return d;
}

/* The most pages after which every window that is then looked through is there. */
static uint32_t best_goal(const executor *x, uint32_t n_pages) {
    uint32_t from[MODEL_MAX_GROUPS] = {0}, best = 0;
    for (uint32_t d = 0; d < n_pages; d++) {
        bool good = true;
        for (uint32_t g = 0; g < x->n_groups; g++) {
            if (!(x->fetch.has[d] & 1 << g)) from[g] = d + 1;
            good &= from[g] <= prefix_first_seen(x->tree, g, (d + 1) * x->opt.page_tokens);
        }
        if (good) best = d + 1;
    }
    return best;
}

static bool begin(executor *x, const session *s, const int32_t *tokens, uint32_t n) {
    prefix_hit h;
    prefix_node *root;
    share_find(x, s, &h);
    if (h.n_nodes == n / x->opt.page_tokens) return false;
    if (!(root = prefix_root(x->tree, s->copy.space))) return false;
    prefix_enter(x->tree, root, false);
    x->fetch.on = true;
    x->fetch.order = s->order;
    x->fetch.at = root;
    x->fetch.n_nodes = 0;
    x->fetch.goal = key_of(x, root) ? best_goal(x, survey(x, root, tokens, n)) : 0;
    return x->fetch.goal > h.n_nodes;
}

/* Read what page i lacks.  False: it is not to be had after all. */
static bool fetch_page(executor *x, const char *space, const int32_t *tokens, uint64_t *bytes) {
    uint32_t page = x->opt.page_tokens, i = x->fetch.n_nodes;
    prefix_node *n = prefix_next(x->tree, x->fetch.at, tokens + i * page, false);
    uint8_t id[32];
    store_want w = {.identity = id, .tokens = tokens + i * page, .n_tokens = page};
    void *pages[KV_MAX_GROUPS] = {NULL};
    bool some = false, ok = key_of(x, x->fetch.at) && space_identity(x, space, id) &&
                            pagekey_next(&w.key, &x->fetch.at->key, w.tokens, page);
    if (n) prefix_enter(x->tree, n, false); /* it must not make room for its own pages */
    for (uint32_t g = 0; ok && g < x->n_groups; g++) {
        if (n && n->page[g]) continue;
        if (i < prefix_first_seen(x->tree, g, x->fetch.goal * page)) continue;
        ok = (pages[g] = w.into[g] = pages_get(x, g));
        w.bytes[g] = x->plan.page_bytes[g];
        *bytes += x->plan.page_bytes[g];
        some = true;
    }
    ok = ok && (!some || store_get(x->opt.store, &w, NULL) == HD_OK);
    if (ok && some) {
        prefix_node *known = n;
        ok = (n = prefix_add(x->tree, x->fetch.at, w.tokens, page, pages));
        if (!ok) n = known;
        else if (!known) prefix_enter(x->tree, n, false);
    }
    if (!ok) {
        for (uint32_t g = 0; g < x->n_groups; g++) kv_drop(x->kv, g, pages[g]);
        if (n) prefix_leave(x->tree, n);
        return false;
    }
    x->fetch.at = n;
    x->fetch.n_nodes++;
    return true;
}

bool disk_fetch(executor *x, const session *s) {
    const int32_t *tokens = s->row ? s->row->tokens : s->copy.req.prompt;
    uint32_t n = x->spilling ? share_most(x, s) : 0;
    uint64_t bytes = 0, node = x->spilling ? prefix_node_bytes(x->tree) : 0;
    if (n < x->opt.page_tokens) return false;
    if (!x->fetch.on || x->fetch.order != s->order) {
        disk_fetch_end(x);
        if (!begin(x, s, tokens, n)) {
            disk_fetch_end(x);
            return false;
        }
    }
    while (x->fetch.n_nodes < x->fetch.goal) {
        if (bytes >= FETCH_BYTES) return true;
        if (executor_committed(x) + 2 * node > x->opt.kv_budget_bytes || !fetch_page(x, s->copy.space, tokens, &bytes)) {
            disk_fetch_end(x); /* with what there is */
            return false;
        }
    }
    prefix_mark(x->tree, x->fetch.at);
    return false; /* it stays in use until the row has taken it up */
}
