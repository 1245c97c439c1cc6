/* cmocka.h - what the kernel tests use of cmocka, for machines it is not installed for.  A failing test ends the program;
 * lines are printed as cmocka does, for scripts/tally. */
#ifndef HD_TESTS_EMULATE_CMOCKA_H
#define HD_TESTS_EMULATE_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f) {#f, f}

static jmp_buf cmocka_skip;

#define print_message(...) printf(__VA_ARGS__)
#define print_error(...)   fprintf(stderr, __VA_ARGS__)
#define fail_msg(...)                                                                                                  \
    do {                                                                                                               \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, "\n%s:%d: failed\n", __FILE__, __LINE__);                                                      \
        exit(1);                                                                                                       \
    } while (0)
#define fail() fail_msg("fail()")
#define skip() longjmp(cmocka_skip, 1)

#define assert_true(x)                                                                                                 \
    do {                                                                                                               \
        if (!(x)) fail_msg("not true: %s", #x);                                                                        \
    } while (0)
#define assert_false(x)              assert_true(!(x))
#define assert_null(x)               assert_true(!(x))
#define assert_non_null(x)           assert_true((x) != NULL)
#define assert_int_equal(a, b)       assert_true((long long)(a) == (long long)(b))
#define assert_memory_equal(a, b, n) assert_true(!memcmp(a, b, n))

#define cmocka_run_group_tests(tests, setup, teardown)            cmocka_run_(tests, sizeof(tests) / sizeof *(tests))
#define cmocka_run_group_tests_name(name, tests, setup, teardown) cmocka_run_(tests, sizeof(tests) / sizeof *(tests))

static int cmocka_run_(const struct CMUnitTest *tests, size_t n) {
    printf("[==========] Running %zu test(s).\n", n);
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        printf("[ RUN      ] %s\n", tests[i].name);
        fflush(stdout);
        if (setjmp(cmocka_skip)) {
            printf("[  SKIPPED ] %s\n", tests[i].name);
            continue;
        }
        tests[i].run(&state);
        printf("[       OK ] %s\n", tests[i].name);
    }
    return 0;
}

#endif
