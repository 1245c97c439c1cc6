/* bench_journal.c - the request log: accepts per second from 1 and 64 threads, events per second, and what an append costs
 * the thread that calls it.
 *
 *     bench_journal [DIR] [SECONDS]     DIR: where the log is made and removed again (default .), on the disk to be measured
 *
 * An accept is timed from the call until it is committed and synced: prompt of 1,000 ids, record of 500 bytes.  Beside it
 * stands a bare fdatasync of a 4 KiB append to a file in the same place, in the same minute.  Events: 8 bytes of text and
 * 100 of extra; from the first append until a flush returned. */
#include "base/clock.h"
#include "state/journal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT = 1000, RECORD = 500, MAX_THREADS = 64, ROWS = 16, EVENTS = 200000 };

typedef struct {
    journal *j;
    int thread;
    double seconds;
    atomic_long *n;
} worker;

static atomic_int serial;

static double now(void) { return (double)hd_now_us(&hd_clock_real) / 1e6; }

static hd_status accept_one(journal *j, uint64_t *order, hd_err *err) {
    static const int32_t prompt[PROMPT];
    static const char record[RECORD];
    char id[32], key[32];
    int n = atomic_fetch_add(&serial, 1);
    journal_request r = {.id = id, .key = key, .n_choices = 1, .record = record, .n_record = RECORD, .prompt = prompt, .n_prompt = PROMPT};
    journal_accepted a;
    hd_status st;
    snprintf(id, sizeof id, "bench-%d", n);
    r.n_key = (size_t)snprintf(key, sizeof key, "key-%d", n);
    st = journal_accept(j, &r, &a, err);
    *order = a.order;
    return st;
}

static void *accepts(void *p) {
    worker *w = p;
    double until = now() + w->seconds;
    hd_err err = {0};
    while (now() < until) {
        uint64_t order;
        if (accept_one(w->j, &order, &err) || journal_finish(w->j, order, JOURNAL_FINISHED, 1, "", 0, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            exit(1);
        }
        atomic_fetch_add(w->n, 1);
    }
    return NULL;
}

static void bench_sync(const char *dir, double seconds) {
    char path[600], page[4096] = {1};
    double t0 = now();
    long n = 0;
    int fd;
    snprintf(path, sizeof path, "%s/sync", dir);
    fd = open(path, O_CREAT | O_RDWR, 0600);
    for (; now() < t0 + seconds; n++)
        if (write(fd, page, sizeof page) < 0 || fdatasync(fd)) break;
    printf("bare append of 4 KiB and fdatasync    %9.0f /s\n", (double)n / (now() - t0));
    close(fd);
    unlink(path);
}

static void bench_accepts(journal *j, int threads, double seconds) {
    pthread_t t[MAX_THREADS];
    worker w[MAX_THREADS];
    atomic_long n = 0;
    journal_stat before, after;
    double t0 = now();
    journal_stats(j, &before);
    for (int i = 0; i < threads; i++) {
        w[i] = (worker){j, i, seconds, &n};
        if (pthread_create(&t[i], NULL, accepts, &w[i])) exit(1);
    }
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    journal_stats(j, &after);
    printf("accepts, %2d thread%s                   %9.0f /s   %.1f per commit\n", threads, threads > 1 ? "s" : " ",
           (double)atomic_load(&n) / (now() - t0), (double)atomic_load(&n) / (double)(after.commits - before.commits));
}

static void bench_events(journal *j) {
    static const char extra[100];
    uint64_t order[ROWS];
    journal_event ev = {7, "8 bytes.", 8, extra, sizeof extra};
    hd_err err = {0};
    double t0, inside = 0;
    long n = 0;
    for (int i = 0; i < ROWS; i++)
        if (accept_one(j, &order[i], &err)) exit(1);
    t0 = now();
    for (uint64_t k = 0; n < EVENTS; k++) {
        double a = now();
        for (int i = 0; i < ROWS; i++, n++)
            if (journal_append(j, order[i], 0, k, &ev, 1, &err)) {
                fprintf(stderr, "%s\n", err.msg);
                exit(1);
            }
        inside += now() - a;
        if (k % 500 == 499 && journal_flush(j, &err)) exit(1); /* the queue is 4 MiB; nobody decodes this fast */
    }
    if (journal_flush(j, &err)) exit(1);
    printf("events to disk, %d rows               %9.0f /s   an append costs its caller %.2f us\n", ROWS, (double)n / (now() - t0),
           inside / (double)n * 1e6);
}

int main(int argc, char **argv) {
    char dir[400], path[600];
    double seconds = argc > 2 ? atof(argv[2]) : 5;
    journal *j;
    hd_err err = {0};
    snprintf(dir, sizeof dir, "%.300s/journal-XXXXXX", argc > 1 ? argv[1] : ".");
    if (!mkdtemp(dir)) {
        perror(dir);
        return 1;
    }
    if (journal_open(&j, dir, NULL, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    bench_sync(dir, seconds);
    bench_accepts(j, 1, seconds);
    bench_accepts(j, MAX_THREADS, seconds);
    bench_sync(dir, seconds);
    bench_events(j);
    journal_close(j, 60000, NULL);
    {
        double t0 = now();
        snprintf(path, sizeof path, "%s/requests.db", dir);
        FILE *f = fopen(path, "rb");
        long bytes = f && !fseek(f, 0, SEEK_END) ? ftell(f) : 0;
        if (f) fclose(f);
        if (journal_open(&j, dir, NULL, &err)) return 1;
        printf("opening %.0f MB, checked whole          %9.2f s\n", (double)bytes / 1e6, now() - t0);
        journal_close(j, 60000, NULL);
    }
    unlink(path);
    snprintf(path, sizeof path, "%s/requests.lock", dir);
    unlink(path);
    return rmdir(dir) != 0;
}
