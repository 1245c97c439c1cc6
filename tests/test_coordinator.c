/* test_coordinator.c - shared and exclusive leases: each rule, a random walk beside a naive reference, threads.
 *
 * The rules are the reference's (closed, cancelled, grant, full, wait; first come first served; no overtaking).  Not
 * tested in release builds: that one owner asks twice, which is an assertion. */
#include "base/mem.h"
#include "base/plant.h"
#include "exec/coordinator.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What `told` said, as text: "+3" granted, "-3" cancelled, "!3" closed. */
typedef struct {
    char text[256];
    size_t n;
} story;

/* One who asks. */
typedef struct asker {
    story *s;
    int id;
    lease *l;       /* held, or waiting */
    hd_status last; /* what told said, or HD_FULL: not told yet */
    int n_told;
    bool release_at_once;
    struct asker *then_release; /* in told */
} asker;

static void told(void *ctx, lease *l, hd_status st) {
    asker *a = ctx;
    a->n_told++;
    a->last = st;
    assert_true(a->s->n + 16 < sizeof a->s->text);
    a->s->n += (size_t)snprintf(a->s->text + a->s->n, sizeof a->s->text - a->s->n, "%c%d",
                                st == HD_OK          ? '+'
                                : st == HD_CANCELLED ? '-'
                                                     : '!',
                                a->id);
    a->l = st == HD_OK ? l : NULL;
    if (st == HD_OK && a->release_at_once) a->l = NULL, lease_release(l);
    if (a->then_release) {
        lease *other = a->then_release->l;
        a->then_release->l = NULL;
        lease_release(other);
    }
}

static coordinator *fresh(uint32_t max_queued) {
    coordinator *c;
    hd_err err;
    assert_int_equal(coordinator_new(&c, max_queued, &err), HD_OK);
    return c;
}

static void end(coordinator *c) {
    coordinator_view v;
    coordinator_close(c);
    v = coordinator_look(c);
    assert_true(v.closed && !v.exclusive_held && !v.shared_held && !v.waiting && !v.waiting_exclusive);
    coordinator_free(c);
    assert_int_equal(hd_mem_live(), 0);
}

static cancellation *source(void) {
    cancellation *k;
    assert_int_equal(cancel_new(&k, NULL), HD_OK);
    return k;
}

static hd_status ask(coordinator *c, asker *a, lease_mode mode, cancellation *k) {
    lease *l = NULL;
    hd_status st;
    a->last = HD_FULL;
    st = coordinator_acquire(c, mode, NULL, k, told, a, &l, NULL);
    if (st == HD_OK)
        assert_non_null(l);
    else
        assert_null(l);
    if (st == HD_OK && a->last == HD_FULL) a->l = l;
    return st;
}

static void give_back(asker *a) {
    lease *l = a->l;
    a->l = NULL;
    lease_release(l);
}

static void looks(coordinator *c, uint32_t shared, bool exclusive, uint32_t waiting, uint32_t waiting_exclusive) {
    coordinator_view v = coordinator_look(c);
    assert_int_equal(v.shared_held, shared);
    assert_int_equal(v.exclusive_held, exclusive);
    assert_int_equal(v.waiting, waiting);
    assert_int_equal(v.waiting_exclusive, waiting_exclusive);
}

#define ASKERS(n)                                                                                                      \
    story s = {0};                                                                                                     \
    asker a[n] = {0};                                                                                                  \
    (void)state;                                                                                                       \
    for (int i_ = 0; i_ < (n); i_++) a[i_].s = &s, a[i_].id = i_

/* ---- the order of decisions ---- */

static void closed_comes_before_cancelled(void **state) {
    coordinator *c = fresh(4);
    cancellation *k = source();
    hd_err err = {0};
    lease *l;
    ASKERS(1);
    cancel_fire(k, CANCEL_BY_REQUEST);
    coordinator_close(c);
    assert_int_equal(coordinator_acquire(c, LEASE_SHARED, NULL, k, told, a, &l, &err), HD_CLOSED);
    assert_string_equal(err.msg, "execution coordinator is closed");
    assert_string_equal(s.text, "");
    cancel_unref(k);
    end(c);
}

static void cancelled_comes_before_the_grant_and_before_full(void **state) {
    coordinator *c = fresh(0);
    cancellation *k = source();
    hd_err err = {0};
    lease *l;
    ASKERS(2);
    cancel_fire(k, CANCEL_DEADLINE_QUEUE);
    assert_int_equal(coordinator_acquire(c, LEASE_SHARED, NULL, k, told, a, &l, &err), HD_CANCELLED);
    assert_string_equal(err.msg, "generation cancelled: deadline_queue");
    assert_int_equal(ask(c, &a[1], LEASE_EXCLUSIVE, NULL), HD_OK);
    assert_int_equal(ask(c, &a[0], LEASE_SHARED, k), HD_CANCELLED); /* the line of 0 is full, too */
    assert_string_equal(s.text, "+1");
    give_back(&a[1]);
    cancel_unref(k);
    end(c);
}

static void the_grant_comes_before_full(void **state) {
    coordinator *c = fresh(0); /* grant now or refuse */
    hd_err err = {0};
    lease *l;
    ASKERS(4);
    assert_int_equal(ask(c, &a[0], LEASE_SHARED, NULL), HD_OK);
    assert_int_equal(ask(c, &a[1], LEASE_SHARED, NULL), HD_OK);
    assert_int_equal(ask(c, &a[2], LEASE_EXCLUSIVE, NULL), HD_FULL);
    looks(c, 2, false, 0, 0);
    give_back(&a[0]);
    give_back(&a[1]);
    assert_int_equal(ask(c, &a[2], LEASE_EXCLUSIVE, NULL), HD_OK);
    assert_int_equal(coordinator_acquire(c, LEASE_SHARED, NULL, NULL, told, &a[3], &l, &err), HD_FULL);
    assert_int_equal(err.code, HD_FULL);
    looks(c, 0, true, 0, 0);
    assert_string_equal(s.text, "+0+1+2");
    give_back(&a[2]);
    end(c);
}

static void the_line_is_bounded(void **state) {
    coordinator *c = fresh(2);
    ASKERS(5);
    assert_int_equal(ask(c, &a[0], LEASE_EXCLUSIVE, NULL), HD_OK);
    assert_int_equal(ask(c, &a[1], LEASE_SHARED, NULL), HD_OK);
    assert_int_equal(ask(c, &a[2], LEASE_EXCLUSIVE, NULL), HD_OK);
    assert_int_equal(ask(c, &a[3], LEASE_SHARED, NULL), HD_FULL);
    looks(c, 0, true, 2, 1);
    give_back(&a[0]); /* 1 goes, 2 stays: one place is free */
    assert_int_equal(ask(c, &a[3], LEASE_SHARED, NULL), HD_OK);
    assert_int_equal(ask(c, &a[4], LEASE_SHARED, NULL), HD_FULL);
    give_back(&a[1]);
    give_back(&a[2]);
    give_back(&a[3]);
    assert_string_equal(s.text, "+0+1+2+3");
    end(c);
}

/* ---- first come, first served ---- */

static void shared_leases_run_together_and_an_exclusive_one_alone(void **state) {
    coordinator *c = fresh(8);
    ASKERS(4);
    for (int i = 0; i < 3; i++) assert_int_equal(ask(c, &a[i], LEASE_SHARED, NULL), HD_OK);
    assert_int_equal(ask(c, &a[3], LEASE_EXCLUSIVE, NULL), HD_OK);
    looks(c, 3, false, 1, 1);
    give_back(&a[1]);
    give_back(&a[0]);
    assert_string_equal(s.text, "+0+1+2");
    give_back(&a[2]);
    assert_string_equal(s.text, "+0+1+2+3");
    looks(c, 0, true, 0, 0);
    give_back(&a[3]);
    looks(c, 0, false, 0, 0);
    end(c);
}

static void a_shared_request_never_overtakes_a_waiting_exclusive_one(void **state) {
    coordinator *c = fresh(8);
    ASKERS(3);
    ask(c, &a[0], LEASE_SHARED, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, NULL);
    assert_int_equal(ask(c, &a[2], LEASE_SHARED, NULL), HD_OK);
    assert_string_equal(s.text, "+0"); /* though only shared leases are held */
    looks(c, 1, false, 2, 1);
    give_back(&a[0]);
    assert_string_equal(s.text, "+0+1");
    give_back(&a[1]);
    assert_string_equal(s.text, "+0+1+2");
    give_back(&a[2]);
    end(c);
}

static void shared_heads_in_a_row_are_granted_together(void **state) {
    coordinator *c = fresh(8);
    ASKERS(7);
    ask(c, &a[0], LEASE_EXCLUSIVE, NULL);
    for (int i = 1; i < 4; i++) ask(c, &a[i], LEASE_SHARED, NULL);
    ask(c, &a[4], LEASE_EXCLUSIVE, NULL);
    ask(c, &a[5], LEASE_SHARED, NULL);
    ask(c, &a[6], LEASE_EXCLUSIVE, NULL);
    give_back(&a[0]);
    assert_string_equal(s.text, "+0+1+2+3"); /* those before the next exclusive one, in their order */
    looks(c, 3, false, 3, 2);
    for (int i = 1; i < 4; i++) give_back(&a[i]);
    assert_string_equal(s.text, "+0+1+2+3+4");
    give_back(&a[4]);
    give_back(&a[5]);
    give_back(&a[6]);
    assert_string_equal(s.text, "+0+1+2+3+4+5+6");
    end(c);
}

/* ---- cancellation ---- */

static void a_cancelled_exclusive_head_frees_the_readers_behind_it(void **state) {
    coordinator *c = fresh(8);
    cancellation *k = source();
    ASKERS(5);
    ask(c, &a[0], LEASE_SHARED, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, k);
    ask(c, &a[2], LEASE_SHARED, NULL);
    ask(c, &a[3], LEASE_SHARED, NULL);
    ask(c, &a[4], LEASE_EXCLUSIVE, NULL);
    cancel_fire(k, CANCEL_CLIENT_DISCONNECTED);
    assert_string_equal(s.text, "+0-1+2+3");
    looks(c, 3, false, 1, 1);
    for (int i = 0; i < 4; i++)
        if (i != 1) give_back(&a[i]);
    give_back(&a[4]);
    cancel_unref(k);
    end(c);
}

static void a_cancel_in_the_middle_moves_nobody(void **state) {
    coordinator *c = fresh(8);
    cancellation *k = source();
    ASKERS(4);
    ask(c, &a[0], LEASE_EXCLUSIVE, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, NULL);
    ask(c, &a[2], LEASE_EXCLUSIVE, k);
    ask(c, &a[3], LEASE_SHARED, NULL);
    cancel_fire(k, CANCEL_BY_REQUEST);
    assert_string_equal(s.text, "+0-2");
    looks(c, 0, true, 2, 1);
    give_back(&a[0]);
    give_back(&a[1]);
    give_back(&a[3]);
    assert_string_equal(s.text, "+0-2+1+3");
    cancel_unref(k);
    end(c);
}

static void a_cancel_after_the_grant_does_nothing(void **state) {
    coordinator *c = fresh(8);
    cancellation *k = source();
    ASKERS(3);
    ask(c, &a[0], LEASE_EXCLUSIVE, k);
    ask(c, &a[1], LEASE_EXCLUSIVE, k);
    give_back(&a[0]); /* 1 waited with k, and holds now */
    cancel_fire(k, CANCEL_BY_REQUEST);
    assert_string_equal(s.text, "+0+1");
    looks(c, 0, true, 0, 0);
    ask(c, &a[2], LEASE_SHARED, NULL);
    give_back(&a[1]);
    give_back(&a[2]);
    cancel_unref(k);
    end(c);
}

/* One source ends the head; the reader behind it is granted inside that cancel, before its own observer of the same
 * source is told: a cancel after the grant.  It lets go at once, so its lease is gone when the observer comes. */
static void a_reader_freed_by_its_own_cancel_keeps_its_lease(void **state) {
    coordinator *c = fresh(8);
    cancellation *k = source();
    ASKERS(4);
    ask(c, &a[0], LEASE_SHARED, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, k);
    a[2].release_at_once = true;
    ask(c, &a[2], LEASE_SHARED, k);
    ask(c, &a[3], LEASE_SHARED, k);
    cancel_fire(k, CANCEL_BY_REQUEST);
    assert_string_equal(s.text, "+0-1+2+3");
    looks(c, 2, false, 0, 0);
    give_back(&a[0]);
    give_back(&a[3]);
    cancel_unref(k);
    end(c);
}

/* ---- ends ---- */

static void close_tells_the_waiting_and_leaves_the_held(void **state) {
    coordinator *c = fresh(8);
    cancellation *k = source();
    ASKERS(4);
    ask(c, &a[0], LEASE_SHARED, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, k);
    ask(c, &a[2], LEASE_SHARED, k);
    coordinator_close(c);
    assert_string_equal(s.text, "+0!1!2");
    looks(c, 1, false, 0, 0);
    coordinator_close(c); /* again: nothing */
    cancel_fire(k, CANCEL_SHUTDOWN);
    assert_string_equal(s.text, "+0!1!2");
    assert_int_equal(ask(c, &a[3], LEASE_SHARED, NULL), HD_CLOSED);
    give_back(&a[0]);
    lease_release(NULL);
    cancel_unref(k);
    end(c);
}

/* Decisions are told outside the lock: who is told may call again. */
static void callbacks_may_release_and_ask(void **state) {
    coordinator *c = fresh(8);
    ASKERS(5);
    a[1].release_at_once = a[2].release_at_once = true;
    ask(c, &a[0], LEASE_EXCLUSIVE, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, NULL);
    ask(c, &a[2], LEASE_SHARED, NULL);
    ask(c, &a[3], LEASE_SHARED, NULL);
    ask(c, &a[4], LEASE_EXCLUSIVE, NULL);
    a[4].then_release = &a[4]; /* its own, too */
    give_back(&a[0]);          /* 1 runs and lets 2 and 3 in, 2 runs */
    assert_string_equal(s.text, "+0+1+2+3");
    looks(c, 1, false, 1, 1);
    give_back(&a[3]);
    assert_string_equal(s.text, "+0+1+2+3+4");
    looks(c, 0, false, 0, 0);
    end(c);
}

static void quiesce_waits_for_the_last_lease(void **state) {
    coordinator *c = fresh(8);
    hd_err err = {0};
    ASKERS(2);
    assert_int_equal(coordinator_quiesce(c, 0, &err), HD_OK); /* nothing to wait for */
    ask(c, &a[0], LEASE_SHARED, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, NULL);
    assert_int_equal(coordinator_quiesce(c, 0, &err), HD_TIMEOUT);
    assert_int_equal(coordinator_quiesce(c, 3000, &err), HD_TIMEOUT);
    assert_non_null(strstr(err.msg, "1 shared, 0 exclusive, 1 waiting"));
    give_back(&a[0]);
    assert_int_equal(coordinator_quiesce(c, 3000, NULL), HD_TIMEOUT); /* 1 holds */
    coordinator_close(c);
    assert_int_equal(coordinator_quiesce(c, 3000, NULL), HD_TIMEOUT);
    give_back(&a[1]);
    assert_int_equal(coordinator_quiesce(c, UINT64_MAX, NULL), HD_OK);
    end(c);
}

/* A callback that is still at work in another thread, though its lease is gone. */
typedef struct {
    coordinator *c;
    atomic_bool inside, returning;
} lingering;

static void lingers(void *ctx, lease *l, hd_status st) {
    lingering *g = ctx;
    assert_int_equal(st, HD_OK);
    lease_release(l);
    atomic_store(&g->inside, true);
    usleep(20000);
    atomic_store(&g->returning, true);
}

static void *ask_lingering(void *ctx) {
    lingering *g = ctx;
    lease *l;
    if (coordinator_acquire(g->c, LEASE_SHARED, NULL, NULL, lingers, g, &l, NULL) != HD_OK) abort();
    return NULL;
}

static void quiesce_waits_for_callbacks(void **state) {
    lingering g = {.c = fresh(1)};
    pthread_t t;
    (void)state;
    assert_int_equal(pthread_create(&t, NULL, ask_lingering, &g), 0);
    while (!atomic_load(&g.inside)) usleep(200);
    looks(g.c, 0, false, 0, 0);
    assert_int_equal(coordinator_quiesce(g.c, UINT64_MAX, NULL), HD_OK);
    assert_true(atomic_load(&g.returning));
    pthread_join(t, NULL);
    end(g.c);
}

/* ---- waiting in a call ---- */

static void waiting_ends_at_its_time(void **state) {
    coordinator *c = fresh(2);
    struct timespec t0, t1;
    hd_err err = {0};
    lease *l;
    ASKERS(3);
    assert_int_equal(coordinator_wait(c, LEASE_EXCLUSIVE, NULL, NULL, 0, &l, &err), HD_OK); /* no wait needed */
    clock_gettime(CLOCK_MONOTONIC, &t0);
    a[0].l = l;
    assert_int_equal(coordinator_wait(c, LEASE_SHARED, NULL, NULL, 0, &l, &err), HD_TIMEOUT);
    assert_null(l);
    assert_int_equal(coordinator_wait(c, LEASE_SHARED, NULL, NULL, 20000, &l, &err), HD_TIMEOUT);
    assert_int_equal(err.code, HD_TIMEOUT);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    assert_true((t1.tv_sec - t0.tv_sec) * 1000000 + (t1.tv_nsec - t0.tv_nsec) / 1000 >= 20000);
    looks(c, 0, true, 0, 0); /* it no longer stands in line */
    ask(c, &a[1], LEASE_SHARED, NULL);
    ask(c, &a[2], LEASE_SHARED, NULL);
    assert_int_equal(coordinator_wait(c, LEASE_SHARED, NULL, NULL, UINT64_MAX, &l, &err), HD_FULL);
    for (int i = 0; i < 3; i++) give_back(&a[i]);
    coordinator_close(c);
    assert_int_equal(coordinator_wait(c, LEASE_SHARED, NULL, NULL, UINT64_MAX, &l, &err), HD_CLOSED);
    end(c);
}

/* An exclusive waiter that gives up frees the readers behind it, like a cancelled one. */
typedef struct {
    coordinator *c;
    cancellation *k;
    uint64_t timeout_us;
    lease_mode mode;
    hd_status st;
    hd_err err;
    lease *l;
} waiter;

static void *wait_thread(void *ctx) {
    waiter *w = ctx;
    w->st = coordinator_wait(w->c, w->mode, w, w->k, w->timeout_us, &w->l, &w->err);
    return NULL;
}

static void until_waiting(coordinator *c, uint32_t n) {
    while (coordinator_look(c).waiting != n) usleep(200);
}

static void giving_up_frees_the_readers_behind(void **state) {
    coordinator *c = fresh(4);
    waiter w = {.c = c, .mode = LEASE_EXCLUSIVE, .timeout_us = 50000};
    pthread_t t;
    lease *l;
    ASKERS(2);
    ask(c, &a[0], LEASE_SHARED, NULL);
    assert_int_equal(pthread_create(&t, NULL, wait_thread, &w), 0);
    until_waiting(c, 1);
    assert_int_equal(coordinator_acquire(c, LEASE_SHARED, NULL, NULL, told, &a[1], &l, NULL),
                     HD_OK); /* told over there */
    pthread_join(t, NULL);
    assert_int_equal(w.st, HD_TIMEOUT);
    assert_string_equal(s.text, "+0+1");
    give_back(&a[0]);
    give_back(&a[1]);
    end(c);
}

static void waiting_is_ended_by_release_cancel_and_close(void **state) {
    static const hd_status want[] = {HD_OK, HD_CANCELLED, HD_CLOSED};
    for (int how = 0; how < 3; how++) {
        coordinator *c = fresh(4);
        cancellation *k = source();
        waiter w = {.c = c, .k = k, .mode = LEASE_EXCLUSIVE, .timeout_us = UINT64_MAX};
        pthread_t t;
        ASKERS(1);
        ask(c, &a[0], LEASE_EXCLUSIVE, NULL);
        assert_int_equal(pthread_create(&t, NULL, wait_thread, &w), 0);
        until_waiting(c, 1);
        if (how == 0)
            give_back(&a[0]);
        else if (how == 1)
            cancel_fire(k, CANCEL_SHUTDOWN);
        else
            coordinator_close(c);
        pthread_join(t, NULL);
        assert_int_equal(w.st, want[how]);
        if (how == 0)
            assert_non_null(w.l);
        else
            assert_null(w.l);
        if (how == 1) assert_string_equal(w.err.msg, "generation cancelled: shutdown");
        lease_release(w.l);
        give_back(&a[0]);
        cancel_unref(k);
        end(c);
    }
}

#ifdef HD_DEBUG
/* Runs fn in a child; true: it died of an assertion. */
static bool asserts(void (*fn)(void)) {
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        signal(SIGABRT, SIG_DFL); /* cmocka catches it */
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void ask_twice(void) {
    coordinator *c;
    lease *l;
    int me;
    coordinator_new(&c, 4, NULL);
    coordinator_wait(c, LEASE_SHARED, &me, NULL, 0, &l, NULL);
    coordinator_wait(c, LEASE_SHARED, &me, NULL, 0, &l, NULL);
}
static void ask_once_each(void) {
    coordinator *c;
    lease *l;
    int me, you;
    coordinator_new(&c, 4, NULL);
    coordinator_wait(c, LEASE_SHARED, &me, NULL, 0, &l, NULL);
    coordinator_wait(c, LEASE_SHARED, &you, NULL, 0, &l, NULL);
    lease_release(l);
    coordinator_wait(c, LEASE_SHARED, &you, NULL, 0, &l, NULL);
}
#endif

static void one_owner_asks_once(void **state) {
    (void)state;
#ifdef HD_DEBUG
    assert_true(asserts(ask_twice));
    assert_false(asserts(ask_once_each));
#else
    print_message("asserted in debug builds only\n");
    skip();
#endif
}

/* ---- memory ---- */

static void every_allocation_may_fail(void **state) {
    hd_status st;
    long n = 0;
    do {
        coordinator *c = NULL;
        cancellation *k = source();
        hd_err err = {0};
        ASKERS(3);
        hd_mem_fail_after(n++);
        if ((st = coordinator_new(&c, 4, &err)) == HD_OK && (st = ask(c, &a[0], LEASE_SHARED, k)) == HD_OK &&
            (st = ask(c, &a[1], LEASE_EXCLUSIVE, k)) == HD_OK)
            st = ask(c, &a[2], LEASE_SHARED, k);
        hd_mem_fail_after(-1);
        if (st != HD_OK) assert_int_equal(st, HD_NOMEM);
        if (c) {
            give_back(&a[0]);
            for (int i = 1; i < 3; i++)
                if (a[i].last == HD_OK) give_back(&a[i]);
            if (a[2].last == HD_OK) give_back(&a[2]);
            for (int i = 0; i < 3; i++) assert_true(a[i].n_told <= 1);
            coordinator_close(c);
            coordinator_free(c);
        }
        cancel_unref(k);
        assert_int_equal(hd_mem_live(), 0);
    } while (st != HD_OK);
    assert_int_equal(n, 7); /* the coordinator, three leases, two subscriptions */
}

static void refusals_come_before_out_of_memory(void **state) {
    coordinator *c = fresh(0);
    ASKERS(2);
    ask(c, &a[0], LEASE_EXCLUSIVE, NULL);
    hd_mem_fail_after(0);
    assert_int_equal(ask(c, &a[1], LEASE_SHARED, NULL), HD_FULL);
    coordinator_close(c);
    assert_int_equal(ask(c, &a[1], LEASE_SHARED, NULL), HD_CLOSED);
    hd_mem_fail_after(-1);
    give_back(&a[0]);
    end(c);
}

/* ---- a random walk beside the naive reference ---- */

enum { N_SOURCES = 4, MANY = 64, LOG = 4096 };
typedef enum { M_FREE, M_WAITS, M_HOLDS } m_state;

/* The reference: one array of all who ever asked and are not done, in the order they came; everything is recomputed. */
typedef struct {
    struct {
        m_state state;
        lease_mode mode;
        int source; /* -1: none */
        int order;
    } who[MANY];
    bool fired[N_SOURCES], closed;
    uint32_t max_queued;
    int clock;
    char log[LOG];
    size_t n_log;
} model;

typedef struct {
    struct walk *w;
    int id;
    lease *l;
} walker;
typedef struct walk {
    coordinator *c;
    cancellation *k[N_SOURCES];
    walker who[MANY];
    char log[LOG];
    size_t n_log;
    model m;
} walk;

static void note(char *log, size_t *n, char what, int id) {
    assert_true(*n + 8 < LOG);
    *n += (size_t)snprintf(log + *n, LOG - *n, "%c%d", what, id);
}

static void walker_told(void *ctx, lease *l, hd_status st) {
    walker *w = ctx;
    note(w->w->log, &w->w->n_log, st == HD_OK ? '+' : st == HD_CANCELLED ? '-' : '!', w->id);
    w->l = st == HD_OK ? l : NULL;
}

static int m_count(const model *m, m_state s, lease_mode mode) {
    int n = 0;
    for (int i = 0; i < MANY; i++) n += m->who[i].state == s && m->who[i].mode == mode;
    return n;
}

static int m_head(const model *m) {
    int head = -1;
    for (int i = 0; i < MANY; i++)
        if (m->who[i].state == M_WAITS && (head < 0 || m->who[i].order < m->who[head].order)) head = i;
    return head;
}

static bool m_can(const model *m, lease_mode mode) {
    if (m_count(m, M_HOLDS, LEASE_EXCLUSIVE)) return false;
    return mode == LEASE_SHARED || !m_count(m, M_HOLDS, LEASE_SHARED);
}

static void m_drain(model *m) {
    for (int h; (h = m_head(m)) >= 0 && m_can(m, m->who[h].mode);) {
        m->who[h].state = M_HOLDS;
        note(m->log, &m->n_log, '+', h);
    }
}

static hd_status m_ask(model *m, int id, lease_mode mode, int src) {
    if (m->closed) return HD_CLOSED;
    if (src >= 0 && m->fired[src]) return HD_CANCELLED;
    if (m_head(m) < 0 && m_can(m, mode)) {
        m->who[id].state = M_HOLDS;
        note(m->log, &m->n_log, '+', id);
    } else {
        if ((uint32_t)(m_count(m, M_WAITS, LEASE_SHARED) + m_count(m, M_WAITS, LEASE_EXCLUSIVE)) >= m->max_queued)
            return HD_FULL;
        m->who[id].state = M_WAITS;
    }
    m->who[id].mode = mode;
    m->who[id].source = src;
    m->who[id].order = m->clock++;
    return HD_OK;
}

static void m_release(model *m, int id) {
    m->who[id].state = M_FREE;
    m_drain(m);
}

/* Observers are told in the order they subscribed; each removes its waiter, if it still waits, and lets others in. */
static void m_fire(model *m, int src) {
    bool seen[MANY] = {0};
    if (m->fired[src]) return;
    m->fired[src] = true;
    for (;;) {
        int first = -1;
        for (int i = 0; i < MANY; i++)
            if (m->who[i].state == M_WAITS && m->who[i].source == src && !seen[i] &&
                (first < 0 || m->who[i].order < m->who[first].order))
                first = i;
        if (first < 0) return;
        seen[first] = true;
        m->who[first].state = M_FREE;
        note(m->log, &m->n_log, '-', first);
        m_drain(m);
    }
}

static void m_close(model *m) {
    m->closed = true;
    for (int h; (h = m_head(m)) >= 0;) {
        m->who[h].state = M_FREE;
        note(m->log, &m->n_log, '!', h);
    }
}

static void same(walk *w) {
    coordinator_view v = coordinator_look(w->c);
    const model *m = &w->m;
    assert_string_equal(w->log, m->log);
    assert_int_equal(v.shared_held, m_count(m, M_HOLDS, LEASE_SHARED));
    assert_int_equal(v.exclusive_held, m_count(m, M_HOLDS, LEASE_EXCLUSIVE));
    assert_int_equal(v.waiting_exclusive, m_count(m, M_WAITS, LEASE_EXCLUSIVE));
    assert_int_equal(v.waiting, v.waiting_exclusive + (uint32_t)m_count(m, M_WAITS, LEASE_SHARED));
    assert_int_equal(v.closed, m->closed);
}

static uint32_t next(uint32_t *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 8; }

/* Any member of the model in state s, at random; -1: none. */
static int any(const model *m, m_state s, uint32_t *seed) {
    int found = -1, n = 0;
    for (int i = 0; i < MANY; i++)
        if (m->who[i].state == s && next(seed) % (uint32_t)++n == 0) found = i;
    return found;
}

/* One coordinator's life: n_ops operations, then the close. Adds what happened to tally: grants, cancels, refusals. */
static void one_walk(uint32_t seed, int n_ops, unsigned tally[4]) {
    walk *w = calloc(1, sizeof *w);
    uint32_t exclusive_in_16 = next(&seed) % 12;
    assert_non_null(w);
    w->m.max_queued = next(&seed) % 7;
    w->c = fresh(w->m.max_queued);
    for (int i = 0; i < N_SOURCES; i++) w->k[i] = source();
    for (int i = 0; i < MANY; i++) w->who[i] = (walker){.w = w, .id = i};
    for (int op = 0; op < n_ops; op++) {
        uint32_t r = next(&seed) % 16;
        w->n_log = w->m.n_log = 0;
        w->log[0] = w->m.log[0] = 0;
        if (r < 8) {
            int id = any(&w->m, M_FREE, &seed), src = (int)(next(&seed) % (N_SOURCES + 2)) - 2;
            lease_mode mode = next(&seed) % 16 < exclusive_in_16 ? LEASE_EXCLUSIVE : LEASE_SHARED;
            hd_status st, want;
            lease *l;
            if (src < -1) src = -1;
            want = m_ask(&w->m, id, mode, src);
            st = coordinator_acquire(w->c, mode, &w->who[id], src < 0 ? NULL : w->k[src], walker_told, &w->who[id], &l,
                                     NULL);
            assert_int_equal(st, want);
            tally[2] += st != HD_OK;
        } else if (r < 14) {
            int id = any(&w->m, M_HOLDS, &seed);
            if (id < 0) continue;
            m_release(&w->m, id);
            lease_release(w->who[id].l);
        } else if (r < 15) {
            int src = (int)(next(&seed) % N_SOURCES);
            m_fire(&w->m, src);
            cancel_fire(w->k[src], CANCEL_BY_REQUEST);
            if (next(&seed) % 2) { /* a fresh source for the ones to come; those that hold keep the old one's end */
                cancel_unref(w->k[src]);
                w->k[src] = source();
                w->m.fired[src] = false;
                for (int i = 0; i < MANY; i++)
                    if (w->m.who[i].source == src && w->m.who[i].state != M_FREE) w->m.who[i].source = -1;
            }
        } else if (next(&seed) % 64 == 0) {
            m_close(&w->m);
            coordinator_close(w->c);
        }
        for (size_t i = 0; i < w->n_log; i++)
            tally[0] += w->log[i] == '+', tally[1] += w->log[i] == '-', tally[3] += w->log[i] == '!';
        same(w);
    }
    coordinator_close(w->c);
    for (int i = 0; i < MANY; i++)
        if (w->m.who[i].state == M_HOLDS) lease_release(w->who[i].l);
    assert_int_equal(coordinator_quiesce(w->c, 0, NULL), HD_OK);
    for (int i = 0; i < N_SOURCES; i++) cancel_unref(w->k[i]);
    end(w->c);
    free(w);
}

static void a_random_walk_matches_the_naive_reference(void **state) {
    unsigned tally[4] = {0};
    (void)state;
    for (uint32_t seed = 1; seed <= 150; seed++) one_walk(seed * 2654435761u, 300, tally); /* 45,000 operations */
    /* The walk went everywhere: grants, cancels, refusals, closes of waiting ones. */
    assert_true(tally[0] > 10000 && tally[1] > 300 && tally[2] > 3000 && tally[3] > 10);
}

#ifdef HD_PLANT
static void the_planted_fault_overtakes(void **state) {
    coordinator *c = fresh(8);
    ASKERS(3);
    ask(c, &a[0], LEASE_SHARED, NULL);
    ask(c, &a[1], LEASE_EXCLUSIVE, NULL);
    hd_planted = PLANT_SHARED_OVERTAKES;
    ask(c, &a[2], LEASE_SHARED, NULL);
    hd_planted = PLANT_NONE;
    assert_string_equal(s.text, "+0+2");
    give_back(&a[2]);
    give_back(&a[0]);
    give_back(&a[1]);
    end(c);
}
#endif

/* ---- threads ---- */

enum { CREW = 6, TURNS = 600 };
typedef struct {
    coordinator *c;
    int plain; /* written under exclusive leases only, read under shared ones: a race detector watches */
    atomic_int inside_shared, inside_exclusive;
    atomic_uint granted, refused, cancelled, timed_out;
    cancellation *k; /* of the turn; swapped by the main thread under mu */
    pthread_mutex_t mu;
    atomic_bool stop;
} crew;

typedef struct {
    crew *w;
    uint32_t seed;
} member;

static cancellation *current(crew *w) {
    cancellation *k;
    pthread_mutex_lock(&w->mu);
    k = w->k;
    cancel_ref(k);
    pthread_mutex_unlock(&w->mu);
    return k;
}

static void work(crew *w, lease_mode mode) {
    if (mode == LEASE_EXCLUSIVE) {
        if (atomic_fetch_add(&w->inside_exclusive, 1) || atomic_load(&w->inside_shared)) abort();
        w->plain++;
        atomic_fetch_sub(&w->inside_exclusive, 1);
    } else {
        atomic_fetch_add(&w->inside_shared, 1);
        if (atomic_load(&w->inside_exclusive) || w->plain < 0) abort();
        atomic_fetch_sub(&w->inside_shared, 1);
    }
}

/* A lease asked for without waiting: what told says comes in any thread, at any time. */
typedef struct {
    crew *w;
    lease_mode mode;
    atomic_int n_told;
} async_ask;

static void async_told(void *ctx, lease *l, hd_status st) {
    async_ask *a = ctx;
    crew *w = a->w;
    if (atomic_fetch_add(&a->n_told, 1)) abort();
    if (st == HD_OK) {
        work(w, a->mode);
        atomic_fetch_add(&w->granted, 1);
        lease_release(l);
    } else {
        atomic_fetch_add(&w->cancelled, 1);
    }
}

static void *crew_main(void *ctx) {
    member *me = ctx;
    crew *w = me->w;
    async_ask *mine = calloc(TURNS, sizeof *mine);
    unsigned asked = 0;
    if (!mine) abort();
    for (int i = 0; i < TURNS; i++) {
        lease_mode mode = next(&me->seed) % 4 ? LEASE_SHARED : LEASE_EXCLUSIVE;
        cancellation *k = next(&me->seed) % 2 ? current(w) : NULL;
        lease *l;
        hd_status st;
        if (next(&me->seed) % 2) {
            async_ask *a = &mine[asked++];
            a->w = w;
            a->mode = mode;
            st = coordinator_acquire(w->c, mode, a, k, async_told, a, &l, NULL);
            if (st != HD_OK) {
                atomic_fetch_add(&w->refused, 1);
                atomic_store(&a->n_told, 1); /* never told */
            }
        } else {
            st =
                coordinator_wait(w->c, mode, &l, k, next(&me->seed) % 3 ? UINT64_MAX : next(&me->seed) % 100, &l, NULL);
            if (st == HD_OK) {
                work(w, mode);
                atomic_fetch_add(&w->granted, 1);
                lease_release(l);
            } else if (st == HD_TIMEOUT)
                atomic_fetch_add(&w->timed_out, 1);
            else if (st == HD_CANCELLED || st == HD_CLOSED)
                atomic_fetch_add(&w->cancelled, 1);
            else
                atomic_fetch_add(&w->refused, 1);
        }
        cancel_unref(k);
    }
    while (coordinator_quiesce(w->c, 1000, NULL) != HD_OK) {} /* the others', too */
    for (unsigned i = 0; i < asked; i++)
        if (atomic_load(&mine[i].n_told) != 1) abort();
    free(mine);
    return NULL;
}

static void *fire_now_and_then(void *ctx) {
    crew *w = ctx;
    while (!atomic_load(&w->stop)) {
        cancellation *fresh_one = source(), *old;
        pthread_mutex_lock(&w->mu);
        old = w->k;
        w->k = fresh_one;
        pthread_mutex_unlock(&w->mu);
        cancel_fire(old, CANCEL_BY_REQUEST);
        cancel_unref(old);
        usleep(100);
    }
    return NULL;
}

static void threads_never_meet_inside(void **state) {
    crew w = {.c = fresh(4), .k = source(), .mu = PTHREAD_MUTEX_INITIALIZER};
    member me[CREW];
    pthread_t t[CREW], firing;
    (void)state;
    assert_int_equal(pthread_create(&firing, NULL, fire_now_and_then, &w), 0);
    for (uint32_t i = 0; i < CREW; i++) {
        me[i].w = &w;
        me[i].seed = 99 + i;
        assert_int_equal(pthread_create(&t[i], NULL, crew_main, &me[i]), 0);
    }
    for (int i = 0; i < CREW; i++) pthread_join(t[i], NULL);
    atomic_store(&w.stop, true);
    pthread_join(firing, NULL);
    assert_int_equal(atomic_load(&w.granted) + atomic_load(&w.refused) + atomic_load(&w.cancelled) +
                         atomic_load(&w.timed_out),
                     CREW * TURNS);
    assert_true(atomic_load(&w.granted) > CREW * TURNS / 10);
    cancel_unref(w.k);
    end(w.c);
}

/* Closing while threads wait: each is told, none stays behind. */
static void close_ends_waiting_threads(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        coordinator *c = fresh(CREW);
        waiter w[CREW] = {0};
        pthread_t t[CREW];
        lease *l;
        assert_int_equal(coordinator_wait(c, LEASE_EXCLUSIVE, NULL, NULL, 0, &l, NULL), HD_OK);
        for (int i = 0; i < CREW; i++) {
            w[i] = (waiter){.c = c, .mode = i % 2 ? LEASE_EXCLUSIVE : LEASE_SHARED, .timeout_us = UINT64_MAX};
            assert_int_equal(pthread_create(&t[i], NULL, wait_thread, &w[i]), 0);
        }
        if (round % 2) until_waiting(c, CREW);
        coordinator_close(c);
        for (int i = 0; i < CREW; i++) pthread_join(t[i], NULL);
        for (int i = 0; i < CREW; i++) assert_int_equal(w[i].st, HD_CLOSED);
        lease_release(l);
        end(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_comes_before_cancelled),
        cmocka_unit_test(cancelled_comes_before_the_grant_and_before_full),
        cmocka_unit_test(the_grant_comes_before_full),
        cmocka_unit_test(the_line_is_bounded),
        cmocka_unit_test(shared_leases_run_together_and_an_exclusive_one_alone),
        cmocka_unit_test(a_shared_request_never_overtakes_a_waiting_exclusive_one),
        cmocka_unit_test(shared_heads_in_a_row_are_granted_together),
        cmocka_unit_test(a_cancelled_exclusive_head_frees_the_readers_behind_it),
        cmocka_unit_test(a_cancel_in_the_middle_moves_nobody),
        cmocka_unit_test(a_cancel_after_the_grant_does_nothing),
        cmocka_unit_test(a_reader_freed_by_its_own_cancel_keeps_its_lease),
        cmocka_unit_test(close_tells_the_waiting_and_leaves_the_held),
        cmocka_unit_test(callbacks_may_release_and_ask),
        cmocka_unit_test(quiesce_waits_for_the_last_lease),
        cmocka_unit_test(quiesce_waits_for_callbacks),
        cmocka_unit_test(waiting_ends_at_its_time),
        cmocka_unit_test(giving_up_frees_the_readers_behind),
        cmocka_unit_test(waiting_is_ended_by_release_cancel_and_close),
        cmocka_unit_test(one_owner_asks_once),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(refusals_come_before_out_of_memory),
        cmocka_unit_test(a_random_walk_matches_the_naive_reference),
#ifdef HD_PLANT
        cmocka_unit_test(the_planted_fault_overtakes),
#endif
        cmocka_unit_test(threads_never_meet_inside),
        cmocka_unit_test(close_ends_waiting_threads),
    };
    return cmocka_run_group_tests_name("coordinator", tests, NULL, NULL);
}
