/* test_sim.c - random schedules against the engine (tests/sim): some seeds in every build, and that the explorer can fail.
 *
 * Many more: make sim SEEDS=20000.  $HEDDLE_TEST_SEEDS asks for another number here. */
#include "base/plant.h"
#include "sim/sim.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seeds(void) {
    const char *want = getenv("HEDDLE_TEST_SEEDS");
    return want && atoi(want) > 0 ? (uint64_t)atoi(want) : 300;
}

static void no_schedule_violates(void **state) {
    sim_exploration x = {.first = 1, .n = seeds(), .jobs = 2, .shrink = true, .seconds_each = 120};
    (void)state;
    sim_explore(&x);
    sim_print_totals(&x.totals, stdout);
    printf("\n");
    assert_false(x.failed);
    assert_true(x.totals.schedules == x.n);
    assert_true(x.totals.events >= 40 * x.n);
    assert_true(x.totals.preemptions && x.totals.pauses && x.totals.cancelled && x.totals.refused && x.totals.jobs);
}

/* A plan printed and read again is the same plan. */
static void plans_as_text(void **state) {
    static sim_plan a, b;
    const char *why = "";
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    (void)state;
    sim_plan_make(&a, 77);
    sim_plan_print(&a, f);
    fclose(f);
    f = fmemopen(text, n, "r");
    assert_true(sim_plan_parse(&b, f, &why));
    fclose(f);
    free(text);
    assert_int_equal(a.n_events, b.n_events);
    for (uint32_t i = 0; i < a.n_events; i++) {
        assert_int_equal(a.events[i].kind, b.events[i].kind);
        assert_int_equal(a.events[i].slot, b.events[i].slot);
        assert_true(a.events[i].arg == b.events[i].arg);
    }
    assert_memory_equal(&a.opt, &b.opt, sizeof a.opt);
}

#ifdef HD_PLANT
static void planted_faults_are_found(void **state) {
    (void)state;
    for (int i = PLANT_NONE + 1; i < N_PLANTS; i++) {
        sim_exploration x = {.first = 1, .n = 2000, .jobs = 2, .quiet = true, .seconds_each = 120};
        hd_planted = (plant)i;
        sim_explore(&x);
        hd_planted = PLANT_NONE;
        if (!x.failed) fail_msg("planted fault %d is not found in %llu schedules", i, (unsigned long long)x.totals.schedules);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_as_text),
        cmocka_unit_test(no_schedule_violates),
#ifdef HD_PLANT
        cmocka_unit_test(planted_faults_are_found),
#endif
    };
    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
