/* test_crew.c - a crew stays whole when nothing disturbs it, shrinks beside a neighbour, and comes back. */
#include "base/crew.h"
#include "base/mem.h"
#include "base/pool.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <time.h>

static const uint64_t MS = 1000000;

/* Steps of wall_ns each for span_ns; off_share of the time a member beyond the `room`th is off its core, each of them. */
typedef struct {
    crew c;
    uint64_t now, tries; /* tries: how often it grew */
} world;

static void live(world *w, uint64_t span_ns, uint64_t wall_ns, unsigned room, double off_share) {
    for (uint64_t end = w->now + span_ns; w->now < end;) {
        unsigned active = w->c.active, crowded = active > room ? active - room : 0;
        w->now += wall_ns;
        crew_note(&w->c, w->now, wall_ns, (uint64_t)(off_share * (double)wall_ns) * crowded);
        assert_in_range(w->c.active, 1, w->c.n);
        if (w->c.active > active) w->tries++;
    }
}

static void quiet_crews_stay_whole(void **state) {
    (void)state;
    for (unsigned n = 1; n <= 256; n *= 4) {
        world w = {.now = 5};
        crew_init(&w.c, n);
        live(&w, 2000 * MS, 3 * MS, n, 0);
        assert_int_equal(w.c.active, n);
        assert_int_equal(w.tries, 0);
    }
}

static void a_neighbour_takes_one_member(void **state) {
    (void)state;
    for (unsigned n = 2; n <= 16; n *= 2) {
        world w = {.now = 5};
        crew_init(&w.c, n);
        live(&w, 80 * MS, 3 * MS, n - 1, 0.5); /* the last one shares its core */
        assert_int_equal(w.c.active, n - 1);
        live(&w, 10000 * MS, 3 * MS, n - 1, 0.5);
        assert_true(w.c.active >= n - 1);
        assert_in_range(w.tries, 3, 12); /* it is tried again, ever more rarely */
        live(&w, 2000 * MS, 3 * MS, n, 0); /* the neighbour goes */
        assert_int_equal(w.c.active, n);
        w.tries = 0;
        live(&w, 1000 * MS, 3 * MS, n, 0);
        assert_int_equal(w.tries, 0);
    }
}

static void many_neighbours_leave_one(void **state) {
    (void)state;
    world w = {.now = 5};
    crew_init(&w.c, 8);
    live(&w, 600 * MS, 3 * MS, 0, 0.7);
    assert_int_equal(w.c.active, 1);
    live(&w, 5000 * MS, 3 * MS, 8, 0);
    assert_int_equal(w.c.active, 8);
}

/* One lost time slice is no reason, be steps short or long, and neither is a loss below what a member is worth. */
static void small_losses_are_borne(void **state) {
    (void)state;
    crew c;
    crew_init(&c, 2);
    crew_note(&c, 1, 3 * (uint64_t)MS, 4 * MS);
    assert_int_equal(c.active, 2);
    crew_init(&c, 2);
    crew_note(&c, 1, 800 * MS, 90 * MS);
    assert_int_equal(c.active, 2);
    crew_note(&c, 1, 800 * MS, 350 * MS);
    assert_int_equal(c.active, 1);
}

/* A sleep that is none of the pool's own waits looks like a core that was taken away. */
typedef struct {
    pool *p;
    unsigned runs[2];
    bool off;
} job;

static void part(void *ctx, unsigned member, unsigned n) {
    job *j = ctx;
    if (j->off && n == 2 && member == 1) nanosleep(&(struct timespec){.tv_nsec = 8000000}, NULL);
    j->runs[member]++;
    pool_barrier(j->p, member);
}

static void the_pool_leaves_members_out_and_takes_them_back(void **state) {
    (void)state;
    job j = {.off = true};
    assert_int_equal(pool_new(&j.p, 2, NULL), HD_OK);
    assert_int_equal(pool_some(j.p), 2);
    for (int i = 0; i < 4 && pool_some(j.p) == 2; i++) pool_run_some(j.p, part, &j);
    assert_int_equal(pool_some(j.p), 1);
    unsigned with = j.runs[1];
    for (int i = 0; i < 100; i++) {
        if (pool_some(j.p) == 2) with++; /* tried again: only where these runs take long */
        pool_run_some(j.p, part, &j);
        assert_int_equal(j.runs[1], with);
    }
    pool_run(j.p, part, &j); /* everybody, all the same */
    assert_int_equal(j.runs[1], with + 1);
    assert_true(j.runs[0] >= j.runs[1] + 50);
    j.off = false;
    for (int i = 0; i < 20000 && pool_some(j.p) == 1; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        for (int k = 0; k < 100; k++) pool_run_some(j.p, part, &j);
    }
    pool_free(j.p); /* whole again or not: on a machine that is never quiet it may not be */
    for (int i = 0; i < 3; i++) { /* closing while one is left out */
        j.off = true;
        assert_int_equal(pool_new(&j.p, 2, NULL), HD_OK);
        for (int k = 0; k < 4; k++) pool_run_some(j.p, part, &j);
        pool_free(j.p);
    }
    assert_int_equal(hd_mem_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quiet_crews_stay_whole),
        cmocka_unit_test(a_neighbour_takes_one_member),
        cmocka_unit_test(many_neighbours_leave_one),
        cmocka_unit_test(small_losses_are_borne),
        cmocka_unit_test(the_pool_leaves_members_out_and_takes_them_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
