/* bench_pool.c - what a barrier costs, alone and beside busy neighbours.
 *
 *   bench_pool [threads] [neighbours]
 *
 * Each member works for about the given time between barriers; neighbours are processes that never sleep, as many as the
 * second argument says (default 2).  Wall time includes the work; CPU time is the whole process's, so what lies above
 * threads * work is spinning, system calls and memory traffic. */
#include "base/pool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    pool *p;
    int barriers, work;
} task;

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void work(int n) {
    volatile float x = 1;
    for (int i = 0; i < n; i++) x = x * 1.0001f;
}

static void run(void *ctx, unsigned member, unsigned n) {
    task *t = ctx;
    (void)n;
    for (int i = 0; i < t->barriers; i++) {
        work(t->work);
        pool_barrier(t->p, member);
    }
}

static void measure(pool *p, const char *what) {
    static const int sizes[] = {0, 3000, 30000};
    for (int s = 0; s < 3; s++) {
        task t = {p, s == 2 ? 300 : 2000, sizes[s]};
        double alone = now(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < 20; i++) work(sizes[s]);
        alone = (now(CLOCK_THREAD_CPUTIME_ID) - alone) / 20;
        pool_run(p, run, &t);
        double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        pool_run(p, run, &t);
        wall = (now(CLOCK_MONOTONIC) - wall) / t.barriers;
        cpu = (now(CLOCK_PROCESS_CPUTIME_ID) - cpu) / t.barriers;
        printf("%s: work %6.1f us: %8.1f us wall, %8.1f us CPU per barrier\n", what, alone, wall, cpu);
    }
}

int main(int argc, char **argv) {
    pool *p;
    int n = argc > 1 ? atoi(argv[1]) : 2, neighbours = argc > 2 ? atoi(argv[2]) : 2;
    pid_t pids[64];
    if (n < 1 || neighbours < 0 || neighbours > 64 || pool_new(&p, (unsigned)n, NULL)) return 64;
    measure(p, "alone     ");
    for (int i = 0; i < neighbours; i++)
        if ((pids[i] = fork()) == 0) {
            alarm(20);
            for (;;) work(1000);
        }
    if (neighbours) measure(p, "neighbours");
    for (int i = 0; i < neighbours; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    pool_free(p);
    return 0;
}
