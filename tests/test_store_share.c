/* test_store_share.c (slow-test) - the disk tier under threads and processes, on the real file system, with room for a part of the pages. */
#include "base/log.h"
#include "state/store.h"
#include "util/runs.h"
#include "util/store_pages.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    SECONDS = 3 /* each test; how much gets done depends on the disk's syncs */,
    CONVERSATIONS = 400,
    CAP = 1 << 20 /* a page has 4 or 8.5 KiB: about 160 of them */
};
static char dir[] = "/tmp/heddle-share-XXXXXX";

static store *open_real(hd_err *err) {
    store_opts o = {.dir = dir,
                    .cap_bytes = CAP,
                    .segment_bytes = 40000,
                    .linger_ms = 2,
                    .rescan_ms = 5,
                    .queue_bytes = 200000,
                    .max_queued = 64};
    store *s;
    store_open(&s, &o, err);
    return s;
}

typedef struct {
    store *s;
    uint64_t rng;
    double until;
    int rounds, hits, wrong, errors;
} worker;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *work(void *arg) {
    worker *w = arg;
    test_page *p = malloc(sizeof *p);
    for (; now() < w->until; w->rounds++) {
        uint32_t c = rng_below(&w->rng, CONVERSATIONS);
        hd_status st = HD_OK;
        page_got got;
        page_fill(p, 1, c, c % 3, 4096, c % 2 ? 4096 : 0);
        got = page_get(w->s, p);
        if (got == PAGE_MISS) st = store_put(w->s, &p->page, rng_below(&w->rng, 2) * 10);
        if (st == HD_FULL) usleep(500); /* nothing is gained by filling a full queue */
        w->hits += got == PAGE_HIT;
        w->wrong += got == PAGE_WRONG;
        w->errors += st && st != HD_FULL;
        if (rng_below(&w->rng, 40) == 0) store_flush(w->s, 500, NULL);
        if (rng_below(&w->rng, 40) == 0) store_find(w->s, &p->page.key, NULL);
        if (rng_below(&w->rng, 100) == 0) store_rescan(w->s);
    }
    free(p);
    return NULL;
}

/* Under the lock that room is made under, so that nothing comes meanwhile. */
static uint64_t bytes_on_disk(void) {
    uint64_t n = 0;
    char path[100];
    DIR *d;
    int fd;
    snprintf(path, sizeof path, "%s/kv/lock", dir);
    if ((fd = open(path, O_RDONLY)) < 0 || flock(fd, LOCK_EX)) return 0;
    snprintf(path, sizeof path, "%s/kv", dir);
    d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat sb;
        if (!fstatat(dirfd(d), e->d_name, &sb, 0) && S_ISREG(sb.st_mode)) n += (uint64_t)sb.st_size;
    }
    closedir(d);
    close(fd);
    return n;
}

/* Threads of this process on one store, and a second store besides. */
static void threads(void **state) {
    enum { N = 4 };
    hd_err err = {0};
    store *a = open_real(&err), *b = open_real(&err);
    worker w[N];
    pthread_t t[N];
    int hits = 0;
    store_counts n;
    (void)state;
    if (!a || !b) fail_msg("%s", err.msg);
    for (int i = 0; i < N; i++) {
        w[i] = (worker){.s = i < 3 ? a : b, .rng = (uint64_t)i + 1, .until = now() + SECONDS};
        assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(w[i].wrong, 0);
        if (w[i].errors) {
            store_stats(w[i].s, &n);
            fail_msg("%d puts failed: %s", w[i].errors, n.last_error);
        }
        hits += w[i].hits;
    }
    assert_true(hits > 0);
    assert_int_equal(store_flush(a, 20000, &err), HD_OK);
    store_stats(a, &n);
    assert_int_equal(n.damaged_files, 0);
    assert_int_equal(n.foreign, 0);
    assert_int_equal(n.queue_bytes, 0);
    assert_true(n.evicted_files > 0);
    store_close(a);
    store_close(b);
    assert_true(bytes_on_disk() <= CAP);
}

/* Exit status of a child: 0, or what went wrong. */
static int child(uint64_t seed, double seconds) {
    hd_err err;
    store *s;
    worker w;
    store_counts n;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a parent that is given up takes us along */
    hd_log_set(HD_LOG_ERROR);
    if (!(s = open_real(&err))) return 10;
    w = (worker){.s = s, .rng = seed, .until = now() + seconds};
    work(&w);
    store_flush(s, 20000, NULL);
    store_stats(s, &n);
    store_close(s);
    if (w.wrong) return 11;
    if (w.errors) {
        fprintf(stderr, "%d puts failed: %s\n", w.errors, n.last_error);
        return 12;
    }
    return n.damaged_files ? 13 : 0;
}

/* Two processes at work, a third killed again and again at any moment; the cap holds all the while. */
static void processes(void **state) {
    pid_t pid[2];
    uint64_t rng = 99;
    int kills = 0, status, running = 2;
    (void)state;
    for (int i = 0; i < 2; i++)
        if (!(pid[i] = fork())) _exit(child((uint64_t)i + 50, SECONDS));
    while (running) {
        pid_t victim = fork();
        if (!victim) _exit(child(1000 + (uint64_t)kills, 3600));
        for (uint32_t ms = 20 + rng_below(&rng, 60); ms; ms -= 10 > ms ? ms : 10) {
            usleep(10000);
            if (bytes_on_disk() > CAP) fail_msg("%llu bytes", (unsigned long long)bytes_on_disk());
        }
        kill(victim, SIGKILL);
        assert_int_equal(waitpid(victim, &status, 0), victim);
        if (!WIFSIGNALED(status)) fail_msg("a victim ended by itself with %d", WEXITSTATUS(status));
        kills++; /* what it leaves half written must not take up the room for long */
        for (int i = 0; i < 2; i++)
            if (pid[i] && waitpid(pid[i], &status, WNOHANG) == pid[i]) {
                if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("a process ended with %#x", (unsigned)status);
                pid[i] = 0;
                running--;
            }
        if (kills > 2000) fail_msg("no end");
    }
    print_message("%d processes were killed\n", kills);
    assert_true(kills > 1);
    assert_true(bytes_on_disk() <= CAP);
}

static int make(void **state) {
    (void)state;
    hd_log_set(HD_LOG_ERROR);
    return mkdtemp(dir) ? 0 : -1;
}

static int clean(void **state) {
    char cmd[100];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes), /* first: it forks, so no thread may run yet */
        cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests_name("store shared", tests, make, clean);
}
