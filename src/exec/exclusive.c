/* exclusive.c - managed jobs between rows: the executor's shared lease, and what gives way when a job waits.
 *
 * The executor holds one shared lease while rows run.  A waiting job stops admission; when the last row has left, or when
 * the job's patience is over and the rows were preempted, the lease goes back and the job gets the exclusive one.  Jobs
 * run on the executor's thread, so nothing can run beside them. */
#include "base/mem.h"
#include "exec/engine_int.h"

#include <string.h>

enum { SHARED_NONE, SHARED_ASKED, SHARED_HELD };

struct exclusive {
    engine *e;
    engine_job job;
    engine_job_done done;
    void *ctx;
    uint64_t due_us; /* when running rows are preempted for it */
    lease *l;
    exclusive *next, *prev;
};

static void unlink_job(engine *e, exclusive *j) {
    if (j->prev) j->prev->next = j->next;
    else e->jobs = j->next;
    if (j->next) j->next->prev = j->prev;
    else e->jobs_tail = j->prev;
}

static void on_exclusive(void *ctx, lease *l, hd_status st) {
    exclusive *j = ctx;
    engine *e = j->e;
    pthread_mutex_lock(&e->mu);
    unlink_job(e, j);
    if (!st) {
        HD_ASSERT(!e->granted);
        j->l = l;
        e->granted = j;
    }
    e->line_changed = true;
    pthread_mutex_unlock(&e->mu);
    engine_wake(e);
    if (!st) return;
    j->done(j->ctx, st);
    hd_free(j);
}

hd_status engine_exclusive(engine *e, engine_job job, engine_job_done done, void *ctx, uint64_t drain_us, cancellation *cancel,
                           hd_err *err) {
    exclusive *j = hd_calloc(1, sizeof *j);
    uint64_t now = hd_now_us(e->opt.clock);
    lease *l;
    hd_status st;
    if (!j) return hd_fail(err, HD_NOMEM, "no memory for a job");
    *j = (exclusive){.e = e, .job = job, .done = done, .ctx = ctx,
                     .due_us = drain_us > UINT64_MAX - now ? UINT64_MAX : now + drain_us};
    pthread_mutex_lock(&e->mu);
    if ((j->prev = e->jobs_tail)) j->prev->next = j;
    else e->jobs = j;
    e->jobs_tail = j;
    pthread_mutex_unlock(&e->mu);
    st = coordinator_acquire(e->leases, LEASE_EXCLUSIVE, j, cancel, on_exclusive, j, &l, err);
    if (st) {
        pthread_mutex_lock(&e->mu);
        unlink_job(e, j);
        pthread_mutex_unlock(&e->mu);
        hd_free(j);
    }
    engine_wake(e);
    return st;
}

static void on_shared(void *ctx, lease *l, hd_status st) {
    engine *e = ctx;
    if (st == HD_OK) e->shared = l; /* published by the store below */
    atomic_store(&e->shared_state, st == HD_OK ? SHARED_HELD : SHARED_NONE);
    engine_wake(e);
}

bool engine_may_run(engine *e, bool wanted, bool *refused) {
    coordinator_view v = coordinator_look(e->leases);
    int state = atomic_load(&e->shared_state);
    *refused = false;
    if (state == SHARED_HELD) return !v.waiting_exclusive;
    if (state == SHARED_NONE && wanted) {
        lease *l;
        hd_err err;
        atomic_store(&e->shared_state, SHARED_ASKED);
        if (coordinator_acquire(e->leases, LEASE_SHARED, e, NULL, on_shared, e, &l, &err)) {
            atomic_store(&e->shared_state, SHARED_NONE);
            *refused = true; /* nobody will tell us: ask again soon */
        }
        state = atomic_load(&e->shared_state);
    }
    return state == SHARED_HELD;
}

static void run_granted(engine *e) {
    exclusive *j;
    for (;;) {
        pthread_mutex_lock(&e->mu);
        j = e->granted;
        e->granted = NULL;
        if (j) e->exclusive_total++;
        pthread_mutex_unlock(&e->mu);
        if (!j) return;
        engine_copy_view(e, false, 0, true); /* those who look see that nothing runs */
        j->job(j->ctx);
        lease_release(j->l); /* may grant the next job */
        j->done(j->ctx, HD_OK);
        hd_free(j);
    }
}

uint64_t engine_serve_jobs(engine *e) {
    uint64_t due = UINT64_MAX;
    if (atomic_load(&e->shared_state) == SHARED_HELD) {
        coordinator_view v = coordinator_look(e->leases);
        if (v.waiting_exclusive) {
            pthread_mutex_lock(&e->mu);
            for (const exclusive *j = e->jobs; j; j = j->next) /* who waits behind a patient one may be in a hurry */
                if (j->due_us < due) due = j->due_us;
            pthread_mutex_unlock(&e->mu);
            if (due <= hd_now_us(e->opt.clock)) executor_preempt_all(&e->x), due = UINT64_MAX;
        }
        if (!e->x.n_rows) {
            lease *l = e->shared;
            e->shared = NULL;
            atomic_store(&e->shared_state, SHARED_NONE);
            lease_release(l);
        }
    }
    run_granted(e);
    return due;
}
