/* test_budget.c (slow-test) - a real server under random load that wants more than it may have: its memory is never more than
 * `heddle fit` declares for the same options, and what it admitted it finishes.  tests/budget/budget.py does it and says how
 * memory is counted; here are the models: keys and values outweigh everything else, so that a wrong page shows.  What a
 * server may take for all clients it allows would hide an error of that size, so these clients have a bound of their own (--slack).
 * scripts/budget is the long form, with the demo model. */
#include "tiny/tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* 4 layers x 8 heads x 128 x 2 = 8192 numbers a token: 32 KiB in f32. */
static const tiny_variant wide = {.name = "wide", .arch = "llama", .hidden = 128, .layers = 4, .heads = 8, .kv_heads = 8,
                                  .head_dim = 128, .ffn = 128, .eps = 1e-5, .theta = 10000, .tied = 1, .seed = 71};
/* Every second layer sees 64 positions: two groups of pages share the budget. */
static const tiny_variant windows = {.name = "windows", .arch = "gemma3", .hidden = 128, .layers = 4, .heads = 8, .kv_heads = 8,
                                     .head_dim = 128, .ffn = 128, .eps = 1e-6, .theta = 1000000, .window = 64, .pattern = 2,
                                     .qk_norm = 1, .tied = 1, .seed = 72};

#define LIMITS                                                                                                         \
    "--kv-budget 160M --kv-type f32 --threads 1 --max-rows 16 --max-queued 24 --max-body 64K --max-replies 2M --max-connections 40 "

static void run(const tiny_variant *v, const char *seed, const char *tight, const char *options, bool store) {
    char dir[] = "/tmp/heddle-budget-XXXXXX", cmd[2000], model[80], line[2000], dir_option[120] = "";
    FILE *p;
    int rc;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    print_message("skipped: a sanitizer's own memory hides what is measured\n");
    skip();
#endif
    if (system("python3 --version >/dev/null 2>&1")) {
        print_message("skipped: there is no python3\n");
        skip();
    }
    assert_non_null(mkdtemp(dir));
    snprintf(model, sizeof model, "%s/model.gguf", dir);
    assert_int_equal(tiny_model_write(v, NULL, model), 0);
    if (store) snprintf(dir_option, sizeof dir_option, "--state-dir %s/state --state-cap 48M", dir);
    snprintf(cmd, sizeof cmd, "python3 %s/budget/budget.py --heddle %s --model %s --seconds 5 --requests 100 --slack 20 --seed %s --tight %s -- %s %s %s 2>&1", TEST_DIR,
             HEDDLE_BIN, model, seed, tight, LIMITS, options, dir_option);
    assert_non_null(p = popen(cmd, "r"));
    while (fgets(line, sizeof line, p)) print_message("%s", line);
    rc = pclose(p);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
    assert_true(WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
}

static void one_group(void **state) {
    (void)state;
    run(&wide, "1", "0.85", "--default-max-tokens 16", false);
}

static void two_groups(void **state) {
    (void)state;
    run(&windows, "2", "0.85", "--default-max-tokens 16 --kv-budget 96M", false);
}

static void with_a_state_directory(void **state) {
    (void)state;
    run(&windows, "3", "0.5", "--default-max-tokens 16 --kv-budget 96M", true);
}

static void without_the_cache(void **state) {
    (void)state;
    run(&wide, "4", "0.8", "--default-max-tokens 16 --no-cache --kv-budget 64M", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_group), cmocka_unit_test(two_groups), cmocka_unit_test(with_a_state_directory),
        cmocka_unit_test(without_the_cache),
    };
    return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
