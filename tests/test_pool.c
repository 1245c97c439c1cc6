/* test_pool.c - everyone runs once, barriers hold, work is handed out exactly once, sleepers wake. */
#include "base/mem.h"
#include "base/pool.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MEMBERS_MAX = 8 };

typedef struct {
    pool *p;
    unsigned runs[MEMBERS_MAX];
    unsigned n_seen;
    /* For the barrier test: plain memory, so that a race detector sees whether barriers publish it. */
    uint64_t cell[MEMBERS_MAX];
    uint64_t sum;
    bool wrong;
    int rounds;
    /* For the cursor test. */
    pool_cursor cursor;
    unsigned char taken[1000];
} crew;

static void count_run(void *ctx, unsigned member, unsigned n) {
    crew *c = ctx;
    c->runs[member]++;
    if (member == 0) c->n_seen = n;
}

static void every_member_runs_once(void **state) {
    (void)state;
    for (unsigned n = 1; n <= 5; n++) {
        crew c = {0};
        assert_int_equal(pool_new(&c.p, n, NULL), HD_OK);
        assert_int_equal(pool_size(c.p), n);
        for (int i = 0; i < 200; i++) pool_run(c.p, count_run, &c);
        for (unsigned m = 0; m < MEMBERS_MAX; m++) assert_int_equal(c.runs[m], m < n ? 200 : 0);
        assert_int_equal(c.n_seen, n);
        pool_free(c.p);
    }
    assert_int_equal(hd_mem_live(), 0);
}

/* Each round every member writes its cell from its left neighbour's cell of the round before. */
static void ring(void *ctx, unsigned member, unsigned n) {
    crew *c = ctx;
    for (int r = 0; r < c->rounds; r++) {
        uint64_t left = c->cell[(member + n - 1) % n];
        pool_barrier(c->p, member);
        c->cell[member] = left + 1;
        pool_barrier(c->p, member);
        for (unsigned m = 0; m < n; m++)
            if (c->cell[m] != (uint64_t)r + 1) c->wrong = true;
        pool_barrier(c->p, member);
    }
}

static void barriers_publish(void **state) {
    (void)state;
    for (unsigned n = 1; n <= 4; n++) { /* 4 is more than some test machines have cores */
        crew c = {.rounds = 500};
        assert_int_equal(pool_new(&c.p, n, NULL), HD_OK);
        pool_run(c.p, ring, &c);
        assert_false(c.wrong);
        memset(c.cell, 0, sizeof c.cell);
        pool_run(c.p, ring, &c);
        assert_false(c.wrong);
        pool_free(c.p);
    }
}

/* What the last one to arrive does at a barrier, everybody sees, and it sees everybody's; it is done once. */
static void add_up(void *ctx, unsigned member, unsigned n) {
    crew *c = ctx;
    (void)member;
    for (unsigned m = 0; m < n; m++) c->sum += c->cell[m];
}

static void meet(void *ctx, unsigned member, unsigned n) {
    crew *c = ctx;
    for (int r = 0; r < c->rounds; r++) {
        c->cell[member] = (uint64_t)r;
        pool_barrier_then(c->p, member, add_up, c);
        if (c->sum != (uint64_t)n * (uint64_t)r * ((uint64_t)r + 1) / 2) c->wrong = true;
        pool_barrier(c->p, member);
    }
}

static void the_last_one_works_alone(void **state) {
    (void)state;
    for (unsigned n = 1; n <= 4; n++) {
        crew c = {.rounds = 500};
        assert_int_equal(pool_new(&c.p, n, NULL), HD_OK);
        pool_run(c.p, meet, &c);
        assert_false(c.wrong);
        assert_int_equal(c.sum, n * 500 * 499 / 2);
        pool_free(c.p);
    }
}

static void take_pieces(void *ctx, unsigned member, unsigned n) {
    crew *c = ctx;
    (void)n;
    for (int r = 0; r < c->rounds; r++) {
        size_t b, e;
        if (member == 0) pool_cursor_init(&c->cursor, sizeof c->taken);
        pool_barrier(c->p, member);
        while (pool_next(&c->cursor, 7, &b, &e))
            for (size_t i = b; i < e; i++) c->taken[i]++;
        pool_barrier(c->p, member);
    }
}

static void pieces_are_handed_out_once(void **state) {
    (void)state;
    crew c = {.rounds = 50};
    assert_int_equal(pool_new(&c.p, 3, NULL), HD_OK);
    pool_run(c.p, take_pieces, &c);
    for (size_t i = 0; i < sizeof c.taken; i++) assert_int_equal(c.taken[i], 50);
    pool_free(c.p);
}

/* Waits far longer than anyone spins: members sleep in all three waits and are woken from each. */
static void linger(void *ctx, unsigned member, unsigned n) {
    crew *c = ctx;
    for (unsigned late = 0; late < n; late++) {
        if (member == late) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        pool_barrier(c->p, member);
    }
    if (member == n - 1) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    c->runs[member]++;
}

static void sleepers_wake(void **state) {
    (void)state;
    crew c = {0};
    assert_int_equal(pool_new(&c.p, 3, NULL), HD_OK);
    for (int i = 0; i < 5; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        pool_run(c.p, linger, &c);
    }
    for (unsigned m = 0; m < 3; m++) assert_int_equal(c.runs[m], 5);
    pool_free(c.p);
}

/* An idle pool uses no CPU time: its workers sleep. */
static void idle_workers_sleep(void **state) {
    (void)state;
    crew c = {0};
    struct timespec a, b;
    assert_int_equal(pool_new(&c.p, 2, NULL), HD_OK);
    pool_run(c.p, count_run, &c);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used_ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
    assert_true(used_ms < 50);
    pool_free(c.p);
}

typedef struct {
    float halved[MEMBERS_MAX], third[MEMBERS_MAX];
} floats;

static void denormals(void *ctx, unsigned member, unsigned n) {
    floats *f = ctx;
    volatile float tiny = FLT_MIN, one = 1, three = 3;
    (void)n;
    f->halved[member] = tiny / 2;
    f->third[member] = one / three;
}

static void members_round_to_nearest_and_keep_denormals(void **state) {
    (void)state;
    pool *p;
    floats f = {0};
    assert_int_equal(pool_new(&p, 2, NULL), HD_OK);
#if defined(__x86_64__)
    unsigned csr = _mm_getcsr();
    _mm_setcsr(csr | 0x8040 | 0x6000); /* the caller's own habits: FTZ, DAZ, round to zero */
    pool_run(p, denormals, &f);
    unsigned after = _mm_getcsr();
    _mm_setcsr(csr);
    assert_int_equal(after & 0xffc0, (csr | 0x8040 | 0x6000) & 0xffc0); /* given back */
#else
    pool_run(p, denormals, &f);
#endif
    for (int m = 0; m < 2; m++) {
        assert_true(f.halved[m] > 0);
        assert_true(f.third[m] == 0x1.555556p-2f); /* rounding to zero would give ...554 */
    }
    pool_free(p);
}

static void failures_leave_nothing(void **state) {
    (void)state;
    pool *p;
    hd_err err;
    assert_int_equal(pool_new(&p, 0, &err), HD_INVALID);
    assert_string_equal(err.field, "threads");
    assert_int_equal(pool_new(&p, 257, &err), HD_INVALID);
    assert_null(p);
    hd_mem_fail_after(0);
    assert_int_equal(pool_new(&p, 2, &err), HD_NOMEM);
    hd_mem_fail_after(-1);
    assert_null(p);
    for (long n = 0; n < 3; n++) {
        pool_fail_start_after(n);
        assert_int_equal(pool_new(&p, 4, &err), HD_NOMEM);
        assert_null(p);
    }
    pool_fail_start_after(3);
    assert_int_equal(pool_new(&p, 4, &err), HD_OK);
    pool_fail_start_after(-1);
    pool_free(p);
    pool_free(NULL);
    assert_int_equal(hd_mem_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_runs_once),
        cmocka_unit_test(barriers_publish),
        cmocka_unit_test(the_last_one_works_alone),
        cmocka_unit_test(pieces_are_handed_out_once),
        cmocka_unit_test(sleepers_wake),
        cmocka_unit_test(idle_workers_sleep),
        cmocka_unit_test(members_round_to_nearest_and_keep_denormals),
        cmocka_unit_test(failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
