/* test_prefix.c - the prefix tree: by hand, and at random against the list of everything that was put in.
 *
 * Pages hold their tokens, so that a wrong page is seen.  While nothing is evicted, a hit must be the longest beginning in
 * common with anything that was put in; when pages are scarce, everything that it says is there must be. */
#include "base/mem.h"
#include "state/prefix.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4, SYSTEM = 4096, MAX_LEN = 40 };

typedef struct {
    kv *k;
    prefix_tree *t;
    uint32_t n_groups, window[2];
} rig;

static hd_err err;

static rig open_rig(uint32_t pages, uint32_t n_groups, uint32_t window) {
    rig r = {.n_groups = n_groups, .window = {0, window}};
    const uint64_t bytes[2] = {SYSTEM, SYSTEM};
    if (n_groups == 1) r.window[0] = window;
    if (kv_open(&r.k, (uint64_t)pages * SYSTEM, n_groups, bytes, &err)) fail_msg("%s", err.msg);
    if (prefix_open(&r.t, r.k, PAGE, n_groups, r.window, &err)) fail_msg("%s", err.msg);
    return r;
}

static void close_rig(rig *r) {
    prefix_check(r->t);
    prefix_close(r->t);
    assert_int_equal(kv_used_pages(r->k), 0);
    kv_close(r->k);
}

static void *page_of(rig *r, uint32_t g, const int32_t *tokens, uint32_t n) {
    void *p;
    while (!(p = kv_take(r->k, g)))
        if (!prefix_evict(r->t)) return NULL;
    memcpy(p, tokens, n * sizeof *tokens);
    return p;
}

/* Put a whole sequence in as a row does that computes it alone, then leaves.  False: no page was to be had. */
static bool put(rig *r, const char *space, const int32_t *tokens, uint32_t n) {
    prefix_node *path[MAX_LEN / PAGE + 1], *at = prefix_root(r->t, space);
    uint32_t d = 0;
    bool all = true;
    assert_non_null(at);
    prefix_enter(r->t, at, false);
    path[0] = at;
    for (uint32_t done = 0; done < n && all; done += PAGE) {
        uint32_t len = n - done < PAGE ? n - done : PAGE;
        void *pages[2] = {NULL, NULL};
        for (uint32_t g = 0; g < r->n_groups && all; g++) all = (pages[g] = page_of(r, g, tokens + done, len));
        if (!all) {
            for (uint32_t g = 0; g < r->n_groups; g++) kv_drop(r->k, g, pages[g]);
            break;
        }
        assert_non_null(at = prefix_add(r->t, at, tokens + done, len, pages));
        if (len == PAGE) prefix_enter(r->t, path[++d] = at, false);
    }
    do prefix_leave(r->t, path[d]);
    while (d--);
    prefix_check(r->t);
    return all;
}

static uint32_t find(rig *r, const char *space, const int32_t *tokens, uint32_t n, prefix_hit *h) {
    prefix_find(r->t, space, tokens, n, true, h);
    if (h->tail)
        for (uint32_t g = 0; g < r->n_groups; g++)
            assert_memory_equal(h->tail->page[g], tokens + h->n_nodes * PAGE, h->n_tail * sizeof *tokens);
    for (const prefix_node *at = h->last; at && at->parent; at = at->parent) {
        assert_memory_equal(at->tokens, tokens + at->depth * PAGE, PAGE * sizeof *tokens);
        for (uint32_t g = 0; g < r->n_groups; g++)
            if (at->page[g]) assert_memory_equal(at->page[g], tokens + at->depth * PAGE, PAGE * sizeof *tokens);
    }
    assert_int_equal(h->n_tokens, h->n_nodes * PAGE + h->n_tail);
    return h->n_tokens;
}

/* ---- by hand ---- */

static void to_the_token(void **state) {
    const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b[] = {1, 2, 3, 4, 5, 6, 99, 8, 9, 10}, c[] = {7, 7, 7};
    rig r = open_rig(64, 1, 0);
    prefix_hit h;
    (void)state;
    assert_int_equal(find(&r, "", a, 10, &h), 0);
    assert_int_equal(h.miss, PREFIX_MISS_NEW);
    put(&r, "", a, 10);
    assert_int_equal(find(&r, "", a, 10, &h), 10);
    assert_int_equal(h.miss, PREFIX_MISS_NONE);
    assert_int_equal(find(&r, "", a, 9, &h), 9); /* the last token is computed: asked for one less */
    assert_int_equal(find(&r, "", a, 8, &h), 8);
    assert_null(h.tail);
    assert_int_equal(find(&r, "", a, 7, &h), 7); /* inside a full page */
    assert_int_equal(find(&r, "", b, 10, &h), 6);
    assert_int_equal(h.miss, PREFIX_MISS_DIFFERS);
    assert_int_equal(h.miss_at, 6); /* the token that differs */
    assert_int_equal(find(&r, "", c, 3, &h), 0);
    assert_int_equal(h.miss, PREFIX_MISS_DIFFERS);
    assert_int_equal(find(&r, "other", a, 10, &h), 0);
    assert_int_equal(h.miss, PREFIX_MISS_NAMESPACE);
    put(&r, "", b, 10);
    assert_int_equal(find(&r, "", b, 10, &h), 10);
    assert_int_equal(find(&r, "", a, 10, &h), 10);
    close_rig(&r);
}

/* Nothing that a row uses goes; what goes is said to have been there. */
static void eviction(void **state) {
    rig r = open_rig(6, 1, 0);
    int32_t t[4][12];
    prefix_hit h;
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 12; j++) t[i][j] = i * 100 + j;
    put(&r, "", t[0], 12);
    find(&r, "", t[0], 12, &h);
    assert_int_equal(h.n_nodes, 3);
    for (prefix_node *n = h.last; n; n = n->parent) prefix_enter(r.t, n, true);
    assert_int_equal(prefix_in_use_bytes(r.t), 3 * SYSTEM);
    assert_true(put(&r, "", t[1], 12));
    assert_true(put(&r, "", t[2], 12)); /* t[1] makes room */
    assert_int_equal(find(&r, "", t[1], 12, &h), 0);
    assert_int_equal(h.miss, PREFIX_MISS_EVICTED);
    assert_int_equal(find(&r, "", t[0], 12, &h), 12);
    for (prefix_node *n = h.last, *up; n; n = up) up = n->parent, prefix_leave(r.t, n);
    assert_int_equal(prefix_in_use_bytes(r.t), 0);
    close_rig(&r);
}

/* What was taken up often outlives what passes through once, however recent. */
static void worth(void **state) {
    rig r = open_rig(8, 1, 0);
    int32_t system[8], once[8];
    prefix_hit h;
    (void)state;
    for (int j = 0; j < 8; j++) system[j] = j;
    put(&r, "", system, 8);
    for (int i = 0; i < 6; i++) {
        find(&r, "", system, 8, &h);
        for (prefix_node *n = h.last; n; n = n->parent) prefix_enter(r.t, n, true);
        for (prefix_node *n = h.last, *up; n; n = up) up = n->parent, prefix_leave(r.t, n);
    }
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 8; j++) once[j] = 1000 + i * 8 + j;
        assert_true(put(&r, "", once, 8));
    }
    assert_int_equal(find(&r, "", system, 8, &h), 8);
    assert_true(prefix_look(r.t).evicted_pages >= 10);
    close_rig(&r);
}

/* A window's pages may be gone where the others are not: the hit ends where all that is seen is there. */
static void windows(void **state) {
    int32_t a[32];
    rig r = open_rig(64, 2, 6);
    prefix_node *n;
    prefix_hit h;
    (void)state;
    for (int j = 0; j < 32; j++) a[j] = j;
    put(&r, "", a, 32);
    assert_int_equal(find(&r, "", a, 32, &h), 32);
    prefix_mark(r.t, h.last);
    while (prefix_look(r.t).pages > 8 + 5 && prefix_evict(r.t)) {} /* unmarked pages of windows are worth least */
    assert_int_equal(find(&r, "", a, 32, &h), 32);
    n = h.last;
    for (int i = 0; i < 7; i++) n = n->parent;
    assert_null(n->page[1]);
    assert_non_null(n->page[0]);
    assert_int_equal(find(&r, "", a, 7, &h), 0); /* position 7 sees positions 2.. */
    assert_int_equal(h.miss, PREFIX_MISS_BOUNDARY);
    assert_int_equal(h.miss_at, 0);
    close_rig(&r);
}

/* ---- at random ---- */

enum { MAX_SEQS = 400 };
typedef struct {
    int32_t t[MAX_LEN];
    uint32_t n;
} seq;

/* Nothing is evicted in this one: the hit is the longest common beginning with anything that was put in. */
static void longest_of_all(void **state) {
    uint64_t seed = 7;
    (void)state;
    for (int round = 0; round < 30; round++) {
        rig r = open_rig(8192, 1 + round % 2, round % 2 ? 9 : 0);
        static seq s[MAX_SEQS];
        for (uint32_t i = 0; i < MAX_SEQS; i++) {
            uint32_t longest = 0, n;
            prefix_hit h;
            s[i].n = 1 + rng_below(&seed, MAX_LEN);
            if (i && rng_below(&seed, 3)) s[i] = s[rng_below(&seed, i)];
            for (uint32_t j = rng_below(&seed, s[i].n + 1); j < s[i].n; j++) s[i].t[j] = (int32_t)rng_below(&seed, 3);
            for (uint32_t k = 0; k < i; k++) {
                for (n = 0; n < s[i].n && n < s[k].n && s[i].t[n] == s[k].t[n]; n++) {}
                if (n > longest) longest = n;
            }
            assert_int_equal(find(&r, "", s[i].t, s[i].n, &h), longest);
            assert_true(put(&r, "", s[i].t, s[i].n));
            assert_int_equal(find(&r, "", s[i].t, s[i].n, &h), s[i].n);
        }
        close_rig(&r);
    }
}

/* Scarce pages, two groups: whatever is said to be there is there, and whole where the next position looks. */
static void scarce(void **state) {
    uint64_t seed = 11;
    (void)state;
    for (int round = 0; round < 40; round++) {
        uint32_t window = 1 + rng_below(&seed, 20), kind = (uint32_t)round % 3, hits = 0;
        rig r = open_rig(24 + rng_below(&seed, 40), kind ? kind : 1, kind ? window : 0);
        seq s = {{0}, 0};
        for (int i = 0; i < 300; i++) {
            const char *space = rng_below(&seed, 5) ? "" : "x";
            prefix_hit h;
            if (!s.n || !rng_below(&seed, 4)) s.n = 1 + rng_below(&seed, MAX_LEN);
            for (uint32_t j = rng_below(&seed, s.n + 1); j < s.n; j++) s.t[j] = (int32_t)rng_below(&seed, 2);
            put(&r, space, s.t, s.n);
            hits += find(&r, space, s.t, s.n, &h) != 0;
            for (uint32_t g = 0; g < r.n_groups; g++) {
                const prefix_node *n = h.last;
                uint32_t first = r.window[g] && h.n_tokens + 1 > r.window[g] ? (h.n_tokens + 1 - r.window[g]) / PAGE : 0;
                assert_int_equal(prefix_first_seen(r.t, g, h.n_tokens), first);
                for (uint32_t d = h.n_nodes; d-- > first; n = n->parent) assert_non_null(n->page[g]);
                if (h.tail) assert_non_null(h.tail->page[g]);
            }
            if (h.last && h.last->parent && !rng_below(&seed, 3)) prefix_mark(r.t, h.last);
            while (!rng_below(&seed, 3)) prefix_evict(r.t);
            prefix_check(r.t);
        }
        assert_true(hits > 30);
        close_rig(&r);
    }
}

/* Without memory nothing is put in, nothing is lost, and the pages stay with who offered them. */
static void no_memory(void **state) {
    const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)state;
    for (long n = 0; n < 12; n++) {
        rig r = open_rig(16, 1, 0);
        prefix_node *root = prefix_root(r.t, ""), *at;
        void *page[2] = {page_of(&r, 0, a, PAGE), NULL};
        prefix_enter(r.t, root, false);
        hd_mem_fail_after(n);
        at = prefix_add(r.t, root, a, PAGE, page);
        hd_mem_fail_after(-1);
        if (!at) kv_drop(r.k, 0, page[0]);
        prefix_check(r.t);
        prefix_leave(r.t, root);
        close_rig(&r);
        if (at && n > 4) return;
    }
    fail_msg("it never succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_the_token), cmocka_unit_test(eviction), cmocka_unit_test(worth),    cmocka_unit_test(windows),
        cmocka_unit_test(longest_of_all), cmocka_unit_test(scarce), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
