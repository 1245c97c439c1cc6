/* test_kv.c - pages: memory behind free ones goes back when it is asked to, and only that. */
#include "state/kv.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/mman.h>

enum { SYSTEM = 4096, PAGE = 4 * SYSTEM, N = 40 };

static bool resident(void *page) {
    unsigned char in[PAGE / SYSTEM];
    assert_int_equal(mincore(page, PAGE, in), 0);
    return in[0] & 1;
}

static void trimming(void **state) {
    const uint64_t bytes[2] = {PAGE, PAGE};
    void *p[2][N];
    hd_err err;
    kv *k;
    (void)state;
    assert_int_equal(kv_open(&k, 2 * N * PAGE, 2, bytes, &err), HD_OK);
    assert_false(kv_trim(k, 1));
    for (uint32_t g = 0; g < 2; g++)
        for (int i = 0; i < N; i++) {
            assert_non_null(p[g][i] = kv_take(k, g));
            memset(p[g][i], 7, PAGE);
        }
    assert_false(kv_trim(k, 1)); /* all are held */
    for (uint32_t g = 0; g < 2; g++)
        for (int i = 0; i < N; i += 2) kv_drop(k, g, p[g][i]);
    assert_true(kv_trim(k, 0)); /* asks only */
    assert_true(kv_trim(k, N / 2));
    assert_false(kv_trim(k, N)); /* the rest, a second group's too */
    for (uint32_t g = 0; g < 2; g++)
        for (int i = 0; i < N; i++) {
            assert_int_equal(resident(p[g][i]), i % 2);
            if (i % 2) assert_int_equal(((char *)p[g][i])[PAGE - 1], 7);
        }
    kv_check(k);
    for (int i = 0; i < N / 2; i++) assert_non_null(kv_take(k, 0)); /* and can be had again */
    assert_int_equal(kv_used_pages(k), 3 * N / 2);
    kv_check(k);
    kv_close(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trimming)};
    return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
