/* pool.c - a fixed crew of threads that run one function together.
 *
 * Four words carry everything between members: `gen` counts runs, says how many members take part, and starts one;
 * `pending` counts the workers that have not finished it; `phase` counts barriers passed; `more` counts runs with more members
 * than the one before, which those who were left out wait for.  Each is a futex word with a count of sleepers beside it, so that the
 * usual case (everyone arrives while the others still spin) costs no system call.
 *
 * Waiting has two stages: spin with the pause instruction, then sleep.  How long the first lasts adapts between SPIN_MIN
 * and SPIN_MAX, per member, and apart for waits between runs and inside one: a wait shorter than SPIN_MAX, slept through
 * or not, doubles it, a longer one halves it.  So a quiet decode loop spins through its short barriers, and a machine
 * with a busy neighbour, where the missing member is not even running, soon sleeps at once.  With more members than cores
 * nobody spins.  There is no sched_yield between the stages: beside a busy neighbour it gives a whole time slice away
 * (milliseconds per barrier, bench_pool), while one who sleeps is let in when woken.
 *
 * In pool_run_some each member finds out how long it was ready to run without running: the time of its part, less what it
 * slept in waits, less the time that the system says it ran.
 *
 * Read: sleep_until_changed, wake and wait_change, then worker, pool_run, pool_barrier. */
#include "base/pool.h"

#include "base/crew.h"
#include "base/fp.h"
#include "base/mem.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    POOL_MAX = 256,
    SPIN_MIN_NS = 1000,  /* about what a futex call costs: spinning less saves nothing */
    SPIN_MAX_NS = 50000, /* about what a sleep and a wake-up cost; spinning longer cannot pay */
    PAUSES = 16,         /* between two looks at the clock */
    LATE_NS = 200000,    /* a worker that begins later than this was kept from its core; waking takes less */
    GEN_MEMBERS = 256,   /* gen: the number of the run times this, plus the index of its last member */
};

/* A futex word on a line of its own, with the number of members that sleep on it or are about to. */
typedef struct {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
} pool_word;

typedef struct {
    _Alignas(64) pool *owner;
    pthread_t thread;
    unsigned index;
    uint32_t idle_spin_ns, spin_ns; /* between runs, inside one; the member's own */
    uint64_t slept_ns, off_ns;      /* of this run, while it is watched; off_ns is published by pending */
} pool_member;
_Static_assert((int)POOL_MAX <= (int)GEN_MEMBERS, "the index of a member fits gen");

struct pool {
    pool_word gen;     /* publishes fn, ctx, active, watched, t_run_ns */
    pool_word more;
    pool_word pending; /* publishes what the workers wrote */
    pool_word phase;   /* publishes what was written before the barrier */
    _Alignas(64) atomic_uint arrived;
    unsigned n, n_started, active; /* active: of this run */
    atomic_bool stop;
    bool may_spin, watched;
    uint64_t t_run_ns; /* when a watched run began */
    crew crew;         /* the caller's */
    pool_fn fn;
    void *ctx;
    pool_member members[];
};

static _Thread_local long fail_start_after = -1;
void pool_fail_start_after(long n) { fail_start_after = n; }

/* ---- waiting ---- */

static void cpu_pause(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t cpu_ns(void) { /* of this thread */
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool changed(const pool_word *w, unsigned old) {
    return atomic_load_explicit(&w->value, memory_order_acquire) != old;
}

static bool spin(const pool_word *w, unsigned old, uint64_t begin, uint32_t budget_ns) {
    for (;;) {
        for (int i = 0; i < PAUSES; i++) {
            if (changed(w, old)) return true;
            cpu_pause();
        }
        if (now_ns() - begin > budget_ns) return false;
    }
}

static void sleep_until_changed(pool_word *w, unsigned old) {
    /* Announce the sleep before the kernel compares the word; the waker changes the word before it looks for sleepers.
     * Both in one total order, so one of the two sees the other. */
    atomic_fetch_add(&w->sleepers, 1);
    while (!changed(w, old)) syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

/* Return once the word differs from `old`.  Everything its writer did before is visible then. */
static void wait_change(pool_member *m, pool_word *w, unsigned old, uint32_t *budget_ns) {
    uint64_t begin, asleep, end;
    if (changed(w, old)) return;
    begin = asleep = now_ns();
    if (!m->owner->may_spin || !spin(w, old, begin, *budget_ns)) {
        asleep = now_ns();
        sleep_until_changed(w, old);
        end = now_ns();
        m->slept_ns += end - asleep;
    } else {
        end = now_ns();
    }
    if (end - begin <= SPIN_MAX_NS)
        *budget_ns = *budget_ns * 2 > SPIN_MAX_NS ? SPIN_MAX_NS : *budget_ns * 2;
    else
        *budget_ns = *budget_ns / 2 < SPIN_MIN_NS ? SPIN_MIN_NS : *budget_ns / 2;
}

static void wake(pool_word *w) { /* after the word was changed */
    if (atomic_load(&w->sleepers) > 0) syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- members ---- */

static void run_part(pool *p, pool_member *m) {
    uint64_t begin, cpu, took, used;
    if (!p->watched) {
        p->fn(p->ctx, m->index, p->active);
        return;
    }
    begin = now_ns();
    cpu = cpu_ns();
    m->slept_ns = 0;
    p->fn(p->ctx, m->index, p->active);
    took = now_ns() - begin;
    used = cpu_ns() - cpu + m->slept_ns;
    m->off_ns = took > used ? took - used : 0;
    if (begin - p->t_run_ns > LATE_NS) m->off_ns += begin - p->t_run_ns;
}

static void *worker(void *arg) {
    pool_member *m = arg;
    pool *p = m->owner;
    unsigned seen = 0;
    hd_fp_enter();
    for (;;) {
        unsigned more = atomic_load(&p->more.value), gen = atomic_load(&p->gen.value); /* in this order: see run_with */
        if (gen == seen) {
            wait_change(m, &p->gen, seen, &m->idle_spin_ns);
            continue;
        }
        seen = gen; /* who takes part cannot miss a run: it ends when he has ended */
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return NULL;
        if (m->index > gen % GEN_MEMBERS) {
            sleep_until_changed(&p->more, more);
            continue;
        }
        run_part(p, m);
        if (atomic_fetch_sub(&p->pending.value, 1) == 1) wake(&p->pending);
    }
}

static void start_run(pool *p, unsigned active) {
    unsigned gen = atomic_load_explicit(&p->gen.value, memory_order_relaxed);
    bool grows = active > gen % GEN_MEMBERS + 1;
    atomic_store(&p->gen.value, (gen / GEN_MEMBERS + 1) * GEN_MEMBERS + active - 1);
    wake(&p->gen);
    if (!grows) return;
    /* A worker that was left out looked at `more` first, then at gen: either it saw this gen or it wakes now. */
    atomic_fetch_add(&p->more.value, 1);
    wake(&p->more);
}

static void run_with(pool *p, unsigned active, bool watched, pool_fn fn, void *ctx) {
    hd_fp fp = hd_fp_enter();
    p->fn = fn;
    p->ctx = ctx;
    p->active = active;
    p->watched = watched;
    if (watched) p->t_run_ns = now_ns();
    if (active > 1) {
        atomic_store_explicit(&p->pending.value, active - 1, memory_order_relaxed);
        start_run(p, active);
    }
    run_part(p, &p->members[0]);
    if (active > 1) {
        unsigned left;
        while ((left = atomic_load_explicit(&p->pending.value, memory_order_acquire)) != 0)
            wait_change(&p->members[0], &p->pending, left, &p->members[0].spin_ns);
    }
    hd_fp_leave(fp);
}

void pool_run(pool *p, pool_fn fn, void *ctx) { run_with(p, p->n, false, fn, ctx); }

void pool_run_some(pool *p, pool_fn fn, void *ctx) {
    unsigned active = p->crew.active;
    uint64_t off_ns = 0, now;
    if (p->n == 1) {
        pool_run(p, fn, ctx);
        return;
    }
    run_with(p, active, true, fn, ctx);
    for (unsigned i = 0; i < active; i++) off_ns += p->members[i].off_ns;
    now = now_ns();
    crew_note(&p->crew, now, now - p->t_run_ns, off_ns);
}

unsigned pool_some(const pool *p) { return p->crew.active; }

void pool_barrier_then(pool *p, unsigned member, pool_fn alone, void *ctx) {
    unsigned old = atomic_load_explicit(&p->phase.value, memory_order_relaxed); /* cannot move before we arrive */
    if (p->active == 1) {
        if (alone) alone(ctx, member, 1);
    } else if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == p->active) {
        if (alone) alone(ctx, member, p->active);
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed); /* published by phase */
        atomic_fetch_add(&p->phase.value, 1);
        wake(&p->phase);
    } else {
        wait_change(&p->members[member], &p->phase, old, &p->members[member].spin_ns);
    }
}

void pool_barrier(pool *p, unsigned member) { pool_barrier_then(p, member, NULL, NULL); }

unsigned pool_size(const pool *p) { return p->n; }

static int start(pool_member *m) {
    char name[16];
    if (fail_start_after == 0) return -1;
    if (fail_start_after > 0) fail_start_after--;
    if (pthread_create(&m->thread, NULL, worker, m) != 0) return -1;
    snprintf(name, sizeof name, "hd-pool-%u", m->index);
    pthread_setname_np(m->thread, name);
    return 0;
}

hd_status pool_new(pool **out, unsigned n_threads, hd_err *err) {
    *out = NULL;
    if (n_threads < 1 || n_threads > POOL_MAX)
        return hd_fail_field(err, HD_INVALID, "threads", "threads must be 1 to %d, not %u", POOL_MAX, n_threads);
    pool *p = hd_alloc_aligned(64, sizeof *p + n_threads * sizeof *p->members);
    if (!p) return hd_fail(err, HD_NOMEM, "no memory for a pool of %u threads", n_threads);
    *p = (pool){.n = n_threads};
    crew_init(&p->crew, n_threads);
    cpu_set_t cpus;
    p->may_spin = sched_getaffinity(0, sizeof cpus, &cpus) != 0 || (unsigned)CPU_COUNT(&cpus) >= n_threads;
    for (unsigned i = 0; i < n_threads; i++)
        p->members[i] = (pool_member){.owner = p, .index = i, .idle_spin_ns = SPIN_MAX_NS, .spin_ns = SPIN_MAX_NS};

    /* Signals belong to the threads that set handlers, never to a worker. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool ok = true;
    for (unsigned i = 1; ok && i < n_threads; i++)
        if ((ok = start(&p->members[i]) == 0)) p->n_started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!ok) {
        unsigned started = p->n_started;
        pool_free(p);
        return hd_fail(err, HD_NOMEM, "could start %u of %u compute threads", started, n_threads - 1);
    }
    *out = p;
    return HD_OK;
}

void pool_free(pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    start_run(p, POOL_MAX);
    for (unsigned i = 1; i <= p->n_started; i++) pthread_join(p->members[i].thread, NULL);
    hd_free_aligned(p);
}
