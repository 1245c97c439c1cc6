/* explore.c - many seeds in child processes, so that a crash, an assertion or a hang is one more way to find a fault. */
#include "sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 200, MAX_JOBS = 64 };

typedef struct {
    volatile uint64_t seed; /* being run */
    sim_totals totals;
} report;

static void be_quiet(void) {
    int fd = open("/dev/null", O_WRONLY);
    if (fd < 0) return;
    dup2(fd, 2);
    close(fd);
}

bool sim_fails(const sim_plan *p, unsigned seconds, bool quiet) {
    sim_totals t = {0};
    int status = 0;
    pid_t pid;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        if (quiet) be_quiet();
        alarm(seconds);
        sim_run(p, &t);
        _Exit(0);
    }
    if (pid < 0) return false;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(status) && !quiet)
        fprintf(stderr, "sim: ended by signal %d%s\n", WTERMSIG(status), WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
    return status != 0;
}

static void run_batch(report *r, uint64_t first, uint64_t n, unsigned seconds) {
    static sim_plan p;
    for (uint64_t i = 0; i < n; i++) {
        r->seed = first + i;
        alarm(seconds);
        sim_plan_make(&p, first + i);
        sim_run(&p, &r->totals);
    }
    _Exit(0);
}

static void add(sim_totals *a, const sim_totals *b) {
    uint64_t *x = (uint64_t *)a;
    const uint64_t *y = (const uint64_t *)b;
    for (size_t i = 0; i < sizeof *a / sizeof *x; i++) x[i] += y[i];
}

typedef struct {
    sim_exploration *x;
    report *reports;
    pid_t pids[MAX_JOBS];
    uint64_t next, end;
    unsigned running;
} crew;

static void start(crew *p) {
    for (unsigned i = 0; i < p->x->jobs && p->next < p->end && !p->x->failed; i++) {
        uint64_t n = p->end - p->next < BATCH ? p->end - p->next : BATCH;
        if (p->pids[i]) continue;
        memset(&p->reports[i], 0, sizeof p->reports[i]);
        fflush(NULL);
        if ((p->pids[i] = fork()) == 0) {
            be_quiet(); /* the failing seed is run once more, aloud */
            run_batch(&p->reports[i], p->next, n, p->x->seconds_each);
        }
        if (p->pids[i] < 0) {
            p->pids[i] = 0;
            return;
        }
        p->next += n;
        p->running++;
    }
}

static void reap(crew *p) {
    int status;
    pid_t pid = wait(&status);
    for (unsigned i = 0; i < p->x->jobs; i++) {
        if (p->pids[i] != pid) continue;
        p->pids[i] = 0;
        p->running--;
        add(&p->x->totals, &p->reports[i].totals);
        if (!status) return;
        if (!p->x->failed || p->reports[i].seed < p->x->failing_seed) p->x->failing_seed = p->reports[i].seed;
        p->x->failed = true;
    }
}

/* Leave out events in ever smaller runs, as long as it still fails (delta debugging: Zeller, Hildebrandt 2002). */
void sim_shrink(sim_plan *p, unsigned seconds) {
    static sim_plan q;
    for (uint32_t run = p->n_events / 2; run >= 1; run /= 2)
        for (uint32_t at = 0; at < p->n_events;) {
            uint32_t n = p->n_events - at < run ? p->n_events - at : run;
            q = *p;
            memmove(&q.events[at], &q.events[at + n], (q.n_events - at - n) * sizeof *q.events);
            q.n_events -= n;
            if (sim_fails(&q, seconds, true)) *p = q;
            else at += n;
        }
}

static void tell(const sim_exploration *x) {
    static sim_plan p;
    sim_plan_make(&p, x->failing_seed);
    fprintf(stderr, "sim: seed %llu fails\n", (unsigned long long)x->failing_seed);
    sim_fails(&p, x->seconds_each, false);
    if (!x->shrink) return;
    sim_shrink(&p, x->seconds_each);
    fprintf(stderr, "sim: the shortest schedule found that fails, %u events (build/sim --replay FILE):\n", p.n_events);
    sim_fails(&p, x->seconds_each, false);
    sim_plan_print(&p, stderr);
}

void sim_explore(sim_exploration *x) {
    crew p = {.x = x, .next = x->first, .end = x->first + x->n};
    if (x->jobs > MAX_JOBS) x->jobs = MAX_JOBS;
    if (!x->jobs) x->jobs = 1;
    p.reports = mmap(NULL, MAX_JOBS * sizeof *p.reports, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p.reports == MAP_FAILED) {
        x->failed = true;
        return;
    }
    for (start(&p); p.running; start(&p)) reap(&p);
    x->tried = x->totals.schedules + x->failed;
    munmap(p.reports, MAX_JOBS * sizeof *p.reports);
    if (x->failed && !x->quiet) tell(x);
}

void sim_print_totals(const sim_totals *t, FILE *f) {
    double n = t->schedules ? (double)t->schedules : 1;
    fprintf(f, "%llu schedules, %.1f events and %.1f turns each; %llu requests, %llu refused, %llu tokens in %llu steps, ",
            (unsigned long long)t->schedules, (double)t->events / n, (double)t->turns / n, (unsigned long long)t->requests,
            (unsigned long long)t->refused, (unsigned long long)t->tokens, (unsigned long long)t->steps);
    fprintf(f, "%llu cancelled, %llu failed, %llu preempted, %llu paused, %llu pinned, %llu jobs, %llu calls of leases",
            (unsigned long long)t->cancelled, (unsigned long long)t->failed, (unsigned long long)t->preemptions,
            (unsigned long long)t->pauses, (unsigned long long)t->pinned, (unsigned long long)t->jobs, (unsigned long long)t->leases);
}
