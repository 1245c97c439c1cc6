/* store_pages.c - see store_pages.h. */
#include "util/store_pages.h"

#include "util/runs.h"

#include <stdlib.h>
#include <string.h>

static void tokens_of(int32_t *t, uint32_t c, uint32_t i) {
    for (uint32_t k = 0; k < PAGE_TOKENS; k++) t[k] = (int32_t)(c * 7919 + i * 131 + k);
}

void page_fill(test_page *p, uint8_t who, uint32_t c, uint32_t i, uint32_t bytes0, uint32_t bytes1) {
    uint64_t rng = who * 1000003u + c * 10007u + i * 101u + 1;
    uint32_t bytes[STORE_GROUPS] = {bytes0, bytes1};
    memset(p, 0, sizeof *p);
    memset(p->identity, who, 32);
    if (!pagekey_root(&p->page.parent, p->identity)) abort();
    for (uint32_t k = 0; k <= i; k++) {
        tokens_of(p->tokens, c, k);
        if (k) p->page.parent = p->page.key;
        if (!pagekey_next(&p->page.key, &p->page.parent, p->tokens, PAGE_TOKENS)) abort();
    }
    p->page.identity = p->identity;
    p->page.tokens = p->tokens;
    p->page.n_tokens = PAGE_TOKENS;
    for (int g = 0; g < STORE_GROUPS; g++) {
        if (bytes[g] > PAGE_BYTES) abort();
        for (uint32_t k = 0; k < bytes[g]; k++) p->blob[g][k] = (uint8_t)(rng_next(&rng) >> 3);
        if (!bytes[g]) continue;
        p->page.blob[g] = p->blob[g];
        p->page.bytes[g] = bytes[g];
    }
}

page_got page_get(store *s, const test_page *p) {
    uint8_t got[STORE_GROUPS][PAGE_BYTES];
    store_want w = {.key = p->page.key, .identity = p->identity, .tokens = p->tokens, .n_tokens = PAGE_TOKENS};
    hd_err err;
    hd_status st;
    for (int g = 0; g < STORE_GROUPS; g++) {
        w.bytes[g] = p->page.bytes[g];
        w.into[g] = p->page.bytes[g] ? got[g] : NULL;
    }
    st = store_get(s, &w, &err);
    if (st) return st == HD_NOTFOUND ? PAGE_MISS : PAGE_WRONG;
    for (int g = 0; g < STORE_GROUPS; g++)
        if (memcmp(got[g], p->blob[g], (size_t)p->page.bytes[g])) return PAGE_WRONG;
    return PAGE_HIT;
}
