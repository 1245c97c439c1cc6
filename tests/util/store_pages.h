/* store_pages.h - pages with contents that can be told from any other page's, for tests of the disk tier. */
#ifndef HD_TESTS_STORE_PAGES_H
#define HD_TESTS_STORE_PAGES_H

#include "state/store.h"

enum { PAGE_TOKENS = 16, PAGE_BYTES = 4096 };

typedef struct {
    uint8_t identity[32];
    int32_t tokens[PAGE_TOKENS];
    uint8_t blob[STORE_GROUPS][PAGE_BYTES];
    store_page page; /* points into the above */
} test_page;

/* Page i of conversation c under identity number `who`: bytes of group 0, and of group 1 (0: absent). */
void page_fill(test_page *p, uint8_t who, uint32_t c, uint32_t i, uint32_t bytes0, uint32_t bytes1);

typedef enum { PAGE_MISS, PAGE_HIT, PAGE_WRONG } page_got;
/* Get all groups of the page.  PAGE_WRONG: it was answered with other bytes. */
page_got page_get(store *s, const test_page *p);

#endif
