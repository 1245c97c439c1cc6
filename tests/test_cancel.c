/* test_cancel.c - the rules of cancellation, one test each, then threads that race, and memory that runs out.
 *
 * The rules C1..C8 are the reference's; where C differs (a handle per subscription, no exceptions) the test says how.
 */
#include "base/mem.h"
#include "exec/cancel.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What observers wrote: one letter each, in the order they were told, and the reasons they were given. */
typedef struct {
    char told[64];
    cancel_reason why[64];
    size_t n;
} diary;

typedef struct note {
    diary *d;
    char letter;
    void (*also)(struct note *n); /* what this observer does besides */
    cancellation *c;
    cancel_sub *remove; /* for removes_another */
    bool result;        /* of the call it made */
} note;

static void observe(void *ctx, cancel_reason why) {
    note *n = ctx;
    assert_true(n->d->n + 1 < sizeof n->d->told);
    n->d->why[n->d->n] = why;
    n->d->told[n->d->n++] = n->letter;
    if (n->also) n->also(n);
}

static cancellation *source(void) {
    cancellation *c;
    hd_err err;
    assert_int_equal(cancel_new(&c, &err), HD_OK);
    assert_int_equal(cancel_why(c), CANCEL_NONE);
    return c;
}

static cancel_sub *subscribe(cancellation *c, note *n) {
    cancel_sub *s;
    hd_err err;
    assert_int_equal(cancel_subscribe(c, observe, n, &s, &err), HD_OK);
    return s;
}

static void c1_the_first_reason_wins(void **state) {
    diary d = {0};
    note a = {.d = &d, .letter = 'a'};
    cancellation *c = source();
    cancel_sub *s = subscribe(c, &a);
    (void)state;
    assert_true(cancel_fire(c, CANCEL_IDLE_TIMEOUT));
    assert_false(cancel_fire(c, CANCEL_SHUTDOWN));
    assert_false(cancel_fire(c, CANCEL_IDLE_TIMEOUT));
    assert_int_equal(cancel_why(c), CANCEL_IDLE_TIMEOUT);
    assert_string_equal(d.told, "a");
    assert_int_equal(d.why[0], CANCEL_IDLE_TIMEOUT);
    cancel_unsubscribe(s);
    cancel_unref(c);
    assert_int_equal(hd_mem_live(), 0);
}

static void c2_a_late_subscriber_is_told_at_once(void **state) {
    diary d = {0};
    note a = {.d = &d, .letter = 'a'};
    cancellation *c = source();
    (void)state;
    assert_true(cancel_fire(c, CANCEL_DEADLINE_TOTAL));
    assert_null(subscribe(c, &a));
    assert_string_equal(d.told, "a");
    assert_int_equal(d.why[0], CANCEL_DEADLINE_TOTAL);
    assert_false(cancel_unsubscribe(NULL)); /* the no-op of the rule */
    cancel_unref(c);
    assert_int_equal(hd_mem_live(), 0);
}

static void fires_again(note *n) { n->result = cancel_fire(n->c, CANCEL_SHUTDOWN); }

static void c3_each_is_told_once_and_in_order(void **state) {
    diary d = {0};
    cancellation *c = source();
    note a = {.d = &d, .letter = 'a', .also = fires_again, .c = c, .result = true}, b = {.d = &d, .letter = 'b'},
         e = {.d = &d, .letter = 'e'};
    cancel_sub *s[3] = {subscribe(c, &a), subscribe(c, &b), subscribe(c, &e)};
    (void)state;
    cancel_fire(c, CANCEL_BY_REQUEST);
    cancel_fire(c, CANCEL_BY_REQUEST);
    assert_string_equal(d.told, "abe");
    assert_false(a.result); /* a cancel from inside an observer comes second */
    for (int i = 0; i < 3; i++) assert_int_equal(d.why[i], CANCEL_BY_REQUEST);
    for (int i = 0; i < 3; i++) assert_false(cancel_unsubscribe(s[i]));
    cancel_unref(c);
    assert_int_equal(hd_mem_live(), 0);
}

static void removes_another(note *n) { n->result = cancel_unsubscribe(n->remove); }

static void c4_those_present_are_told_even_if_removed_meanwhile(void **state) {
    diary d = {0};
    cancellation *c = source();
    note a = {.d = &d, .letter = 'a'}, b = {.d = &d, .letter = 'b', .also = removes_another},
         e = {.d = &d, .letter = 'e', .also = removes_another};
    cancel_sub *sa = subscribe(c, &a), *sb = subscribe(c, &b), *se = subscribe(c, &e);
    (void)state;
    b.remove = se;                  /* not told yet: it will be */
    e.remove = sa, e.result = true; /* told long ago */
    cancel_fire(c, CANCEL_BY_REQUEST);
    assert_string_equal(d.told, "abe");
    assert_true(b.result);
    assert_false(e.result);
    assert_false(cancel_unsubscribe(sb));
    cancel_unref(c);
    assert_int_equal(hd_mem_live(), 0);
}

static void an_observer_may_remove_itself(void **state) {
    diary d = {0};
    cancellation *c = source();
    note a = {.d = &d, .letter = 'a', .also = removes_another, .result = true}, b = {.d = &d, .letter = 'b'};
    cancel_sub *s;
    (void)state;
    a.remove = subscribe(c, &a);
    s = subscribe(c, &b);
    cancel_fire(c, CANCEL_BY_REQUEST);
    assert_string_equal(d.told, "ab");
    assert_false(a.result);
    cancel_unsubscribe(s);
    cancel_unref(c);
    assert_int_equal(hd_mem_live(), 0);
}

static void drops_the_source(note *n) { cancel_unref(n->c); }
static void subscribes_late(note *n) {
    note late = {.d = n->d, .letter = 'L'};
    cancel_sub *s;
    assert_int_equal(cancel_subscribe(n->c, observe, &late, &s, NULL), HD_OK);
    assert_null(s);
}

/* C has no exceptions: the worst an observer can do is to call everything it may. */
static void c5_what_one_does_keeps_no_other_from_being_told(void **state) {
    diary d = {0};
    cancellation *c = source();
    note a = {.d = &d, .letter = 'a', .also = fires_again, .c = c},
         b = {.d = &d, .letter = 'b', .also = removes_another},
         e = {.d = &d, .letter = 'e', .also = drops_the_source, .c = c}, f = {.d = &d, .letter = 'f'};
    cancel_sub *sa = subscribe(c, &a), *sb = subscribe(c, &b), *se = subscribe(c, &e);
    (void)state;
    b.remove = subscribe(c, &f);
    cancel_fire(c, CANCEL_FAILED); /* e drops the maker's reference in the middle */
    assert_string_equal(d.told, "abef");
    cancel_unsubscribe(sa);
    cancel_unsubscribe(sb);
    cancel_unsubscribe(se); /* the last reference */
    assert_int_equal(hd_mem_live(), 0);
}

/* The same holds for one who comes while the others are being told: it is told at once, they are told after. */
static void c5_isolation_holds_for_late_subscribers_too(void **state) {
    diary d = {0};
    cancellation *c = source();
    note a = {.d = &d, .letter = 'a', .also = subscribes_late, .c = c}, b = {.d = &d, .letter = 'b'};
    cancel_sub *sa = subscribe(c, &a), *sb = subscribe(c, &b);
    (void)state;
    cancel_fire(c, CANCEL_SHUTDOWN);
    assert_string_equal(d.told, "aLb");
    for (size_t i = 0; i < d.n; i++) assert_int_equal(d.why[i], CANCEL_SHUTDOWN);
    subscribes_late(&a); /* and a late one that itself subscribes, long after */
    assert_string_equal(d.told, "aLbL");
    cancel_unsubscribe(sa);
    cancel_unsubscribe(sb);
    cancel_unref(c);
    assert_int_equal(hd_mem_live(), 0);
}

static void c6_the_error_carries_the_reason(void **state) {
    static const char *const names[] = {"none",           "client_disconnected", "cancelled_by_request",
                                        "idle_timeout",   "deadline_queue",      "deadline_first_token",
                                        "deadline_total", "engine_closed",       "shutdown",
                                        "failed"};
    (void)state;
    for (int r = CANCEL_CLIENT_DISCONNECTED; r <= CANCEL_FAILED; r++) {
        cancellation *c = source();
        hd_err err = {0};
        char want[80];
        cancel_fire(c, (cancel_reason)r);
        assert_int_equal(cancel_check(c, &err), HD_CANCELLED);
        snprintf(want, sizeof want, "generation cancelled: %s", names[r]);
        assert_string_equal(err.msg, want);
        assert_int_equal(err.code, HD_CANCELLED);
        assert_string_equal(cancel_reason_name((cancel_reason)r), names[r]);
        cancel_unref(c);
    }
    assert_string_equal(cancel_reason_name((cancel_reason)77), "unknown");
}

static void c7_a_poll_raises_only_after_the_cancel(void **state) {
    cancellation *c = source();
    hd_err err = {.code = HD_FULL, .msg = "untouched"};
    (void)state;
    assert_int_equal(cancel_check(c, &err), HD_OK);
    assert_string_equal(err.msg, "untouched");
    cancel_fire(c, CANCEL_BY_REQUEST);
    assert_int_equal(cancel_check(c, NULL), HD_CANCELLED);
    assert_int_equal(cancel_check(c, &err), HD_CANCELLED); /* as often as asked */
    cancel_unref(c);
}

/* The reference's set holds the same listener once; here each subscription is its own handle. */
static void c8_each_subscription_is_its_own(void **state) {
    diary d = {0};
    note a = {.d = &d, .letter = 'a'};
    cancellation *c = source();
    cancel_sub *first = subscribe(c, &a), *second = subscribe(c, &a), *third = subscribe(c, &a);
    (void)state;
    assert_ptr_not_equal(first, second);
    assert_false(cancel_unsubscribe(second));
    cancel_fire(c, CANCEL_BY_REQUEST);
    assert_string_equal(d.told, "aa");
    cancel_unsubscribe(first);
    cancel_unsubscribe(third);
    cancel_unref(c);
    assert_int_equal(hd_mem_live(), 0);
}

static void a_removed_observer_is_not_told(void **state) {
    (void)state;
    for (int gone = 0; gone < 3; gone++) { /* the head, the middle, the tail */
        diary d = {0};
        note n[3] = {{.d = &d, .letter = '0'}, {.d = &d, .letter = '1'}, {.d = &d, .letter = '2'}};
        static const char *const want[] = {"12", "02", "01"};
        cancellation *c = source();
        cancel_sub *s[3];
        for (int i = 0; i < 3; i++) s[i] = subscribe(c, &n[i]);
        assert_false(cancel_unsubscribe(s[gone]));
        cancel_fire(c, CANCEL_BY_REQUEST);
        assert_string_equal(d.told, want[gone]);
        for (int i = 0; i < 3; i++)
            if (i != gone) cancel_unsubscribe(s[i]);
        cancel_unref(c);
    }
    assert_int_equal(hd_mem_live(), 0);
}

static void a_source_lives_as_long_as_its_handles(void **state) {
    diary d = {0};
    note a = {.d = &d, .letter = 'a'};
    cancellation *c = source();
    cancel_sub *s = subscribe(c, &a);
    (void)state;
    cancel_ref(c);
    cancel_unref(c);
    cancel_unref(c); /* the maker's; the subscription still holds one */
    cancel_fire(c, CANCEL_BY_REQUEST);
    assert_string_equal(d.told, "a");
    cancel_unsubscribe(s);
    cancel_unref(NULL);
    assert_int_equal(hd_mem_live(), 0);
}

/* ---- threads ---- */

/* Waits in its observer until another thread has been seen to wait for it, as far as that can be seen. */
typedef struct {
    atomic_bool started, returning, removed;
    cancel_sub *sub;
    cancellation *c;
} slow;

static void slow_observer(void *ctx, cancel_reason why) {
    slow *s = ctx;
    (void)why;
    atomic_store(&s->started, true);
    usleep(20000);
    assert_false(atomic_load(&s->removed)); /* unsubscribe is still waiting for us */
    atomic_store(&s->returning, true);
}

static void *fires(void *ctx) {
    slow *s = ctx;
    cancel_fire(s->c, CANCEL_SHUTDOWN);
    return NULL;
}

static void removal_waits_for_a_running_observer(void **state) {
    slow s = {.c = source()};
    pthread_t t;
    (void)state;
    assert_int_equal(cancel_subscribe(s.c, slow_observer, &s, &s.sub, NULL), HD_OK);
    assert_int_equal(pthread_create(&t, NULL, fires, &s), 0);
    while (!atomic_load(&s.started)) sched_yield();
    assert_false(cancel_unsubscribe(s.sub));
    atomic_store(&s.removed, true);
    assert_true(atomic_load(&s.returning));
    pthread_join(t, NULL);
    cancel_unref(s.c);
    assert_int_equal(hd_mem_live(), 0);
}

/* Another thread removes one that is in line behind a running observer: it is not told, although it was present. */
static void removal_from_outside_is_final(void **state) {
    diary d = {0};
    note a = {.d = &d, .letter = 'a'};
    slow s = {.c = source()};
    cancel_sub *behind;
    pthread_t t;
    (void)state;
    assert_int_equal(cancel_subscribe(s.c, slow_observer, &s, &s.sub, NULL), HD_OK);
    behind = subscribe(s.c, &a);
    assert_int_equal(pthread_create(&t, NULL, fires, &s), 0);
    while (!atomic_load(&s.started)) sched_yield();
    assert_false(cancel_unsubscribe(behind));
    pthread_join(t, NULL);
    assert_string_equal(d.told, "");
    cancel_unsubscribe(s.sub);
    cancel_unref(s.c);
    assert_int_equal(hd_mem_live(), 0);
}

/* One source, several threads that subscribe and unsubscribe, several that fire.  An observer's memory is on the stack
 * of the thread that removes it, so a call after the removal is seen by a sanitizer, and by `alive`. */
enum { RACERS = 4, ROUNDS = 400 };
typedef struct {
    cancellation *c;
    atomic_uint wins, told;
    pthread_barrier_t gate;
} race;

typedef struct {
    race *r;
    atomic_uint calls;
    bool alive;
} racer_note;

static void racer_told(void *ctx, cancel_reason why) {
    racer_note *n = ctx;
    if (!n->alive || why == CANCEL_NONE || why != cancel_why(n->r->c)) abort();
    atomic_fetch_add(&n->calls, 1);
    atomic_fetch_add(&n->r->told, 1);
}

typedef struct {
    race *r;
    unsigned index;
    uint32_t seed;
} racer;

static uint32_t next(uint32_t *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 8; }

static void *run_racer(void *ctx) {
    racer *me = ctx;
    race *r = me->r;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&r->gate); /* the source of this round is there */
        racer_note n[6] = {0};
        cancel_sub *s[6] = {0};
        unsigned n_subs = 1 + next(&me->seed) % 5;
        for (unsigned i = 0; i < n_subs; i++) {
            n[i].r = r;
            n[i].alive = true;
            if (cancel_subscribe(r->c, racer_told, &n[i], &s[i], NULL) != HD_OK) abort();
            if (!s[i] && atomic_load(&n[i].calls) != 1) abort();
            if (next(&me->seed) % 4 == 0 && s[i]) {
                cancel_unsubscribe(s[i]);
                if (atomic_load(&n[i].calls) > 1) abort();
                n[i].alive = false;
                s[i] = NULL;
            }
        }
        if (next(&me->seed) % 2 && cancel_fire(r->c, (cancel_reason)(1 + me->index))) atomic_fetch_add(&r->wins, 1);
        for (unsigned i = 0; i < n_subs; i++) {
            bool was = s[i] != NULL;
            cancel_unsubscribe(s[i]);
            if (was) n[i].alive = false;
            if (atomic_load(&n[i].calls) > 1) abort();
        }
        pthread_barrier_wait(&r->gate); /* done with this source */
    }
    return NULL;
}

static void races_tell_each_at_most_once(void **state) {
    race r = {0};
    racer me[RACERS];
    pthread_t t[RACERS];
    unsigned fired = 0, told = 0;
    (void)state;
    pthread_barrier_init(&r.gate, NULL, RACERS + 1);
    for (unsigned i = 0; i < RACERS; i++) {
        me[i] = (racer){.r = &r, .index = i, .seed = 17 * i + 1};
        assert_int_equal(pthread_create(&t[i], NULL, run_racer, &me[i]), 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        r.c = source();
        atomic_store(&r.wins, 0);
        pthread_barrier_wait(&r.gate);
        pthread_barrier_wait(&r.gate);
        assert_true(atomic_load(&r.wins) <= 1);
        assert_int_equal(atomic_load(&r.wins) == 1, cancel_why(r.c) != CANCEL_NONE);
        fired += atomic_load(&r.wins);
        told = atomic_load(&r.told);
        cancel_unref(r.c);
    }
    for (unsigned i = 0; i < RACERS; i++) pthread_join(t[i], NULL);
    assert_true(fired > ROUNDS / 2 && fired < ROUNDS); /* about 15 in 16 */
    assert_true(told > 0);
    pthread_barrier_destroy(&r.gate);
    assert_int_equal(hd_mem_live(), 0);
}

/* ---- memory ---- */

static void every_allocation_may_fail(void **state) {
    hd_status st;
    long n = 0;
    (void)state;
    do {
        diary d = {0};
        note a = {.d = &d, .letter = 'a'}, b = {.d = &d, .letter = 'b'};
        cancellation *c = NULL;
        cancel_sub *sa = NULL, *sb = NULL;
        hd_err err = {0};
        hd_mem_fail_after(n++);
        if ((st = cancel_new(&c, &err)) == HD_OK && (st = cancel_subscribe(c, observe, &a, &sa, &err)) == HD_OK)
            st = cancel_subscribe(c, observe, &b, &sb, &err);
        hd_mem_fail_after(-1);
        if (st != HD_OK) {
            assert_int_equal(st, HD_NOMEM);
            assert_int_equal(err.code, HD_NOMEM);
            assert_null(sb);
        }
        if (c) cancel_fire(c, CANCEL_SHUTDOWN);
        assert_string_equal(d.told, !sa ? "" : !sb ? "a" : "ab"); /* a refused one is not told */
        cancel_unsubscribe(sa);
        cancel_unsubscribe(sb);
        cancel_unref(c);
        assert_int_equal(hd_mem_live(), 0);
    } while (st != HD_OK);
    assert_int_equal(n, 4); /* three allocations */
}

static void being_told_at_once_needs_no_memory(void **state) {
    diary d = {0};
    note a = {.d = &d, .letter = 'a'};
    cancellation *c = source();
    (void)state;
    cancel_fire(c, CANCEL_SHUTDOWN);
    hd_mem_fail_after(0);
    assert_null(subscribe(c, &a));
    hd_mem_fail_after(-1);
    assert_string_equal(d.told, "a");
    cancel_unref(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c1_the_first_reason_wins),
        cmocka_unit_test(c2_a_late_subscriber_is_told_at_once),
        cmocka_unit_test(c3_each_is_told_once_and_in_order),
        cmocka_unit_test(c4_those_present_are_told_even_if_removed_meanwhile),
        cmocka_unit_test(c5_what_one_does_keeps_no_other_from_being_told),
        cmocka_unit_test(c5_isolation_holds_for_late_subscribers_too),
        cmocka_unit_test(c6_the_error_carries_the_reason),
        cmocka_unit_test(c7_a_poll_raises_only_after_the_cancel),
        cmocka_unit_test(c8_each_subscription_is_its_own),
        cmocka_unit_test(an_observer_may_remove_itself),
        cmocka_unit_test(a_removed_observer_is_not_told),
        cmocka_unit_test(a_source_lives_as_long_as_its_handles),
        cmocka_unit_test(removal_waits_for_a_running_observer),
        cmocka_unit_test(removal_from_outside_is_final),
        cmocka_unit_test(races_tell_each_at_most_once),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(being_told_at_once_needs_no_memory),
    };
    return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}
