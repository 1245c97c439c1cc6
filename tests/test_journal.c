/* test_journal.c - the request log: every function, its limits, damaged and foreign files, failing memory and disks.
 * Power cuts and kill -9: test_journal_crash.c.  What is expected is computed here, from order, choice and index. */
#include "base/log.h"
#include "base/mem.h"
#include "state/journal.h"
#include "util/memvfs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[200], file[256];
static memvfs *vfs;

/* ---- helpers ---- */

static int make_dir(void **state) {
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(dir, sizeof dir, "%.150s/heddle-journal-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) return -1;
    snprintf(file, sizeof file, "%s/requests.db", dir);
    if (vfs) memvfs_clear(vfs);
    return 0;
}

static int drop_dir(void **state) {
    DIR *d = opendir(dir);
    (void)state;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    return rmdir(dir);
}

static journal *begin(const journal_config *c) {
    journal *j;
    hd_err err = {0};
    if (journal_open(&j, dir, c, &err)) fail_msg("journal_open: %s", err.msg);
    return j;
}

static void end(journal *j) {
    hd_err err = {0};
    if (journal_close(j, 10000, &err)) fail_msg("journal_close: %s", err.msg);
}

static const int32_t prompt[] = {5, -1, 70000, 9};

static journal_request request(const char *id, const char *key, int body) {
    journal_request r = {.id = id, .key = key, .n_key = key ? strlen(key) : 0, .seed = 0xfedcba9876543210u, .n_choices = 2,
                         .created = 1700000000, .record = "policy\0bytes", .n_record = 12, .prompt = prompt, .n_prompt = 4};
    memset(r.ns, 7, sizeof r.ns);
    memset(r.body, body, sizeof r.body);
    memset(r.identity, 9, sizeof r.identity);
    return r;
}

static uint64_t accept_one(journal *j, const char *id) {
    journal_request r = request(id, NULL, 1);
    journal_accepted a;
    hd_err err = {0};
    if (journal_accept(j, &r, &a, &err)) fail_msg("journal_accept: %s", err.msg);
    assert_int_equal(a.outcome, JOURNAL_NEW);
    return a.order;
}

/* The event that belongs there. */
static journal_event event_of(uint64_t order, uint32_t choice, uint64_t i, char text[32]) {
    uint64_t h = (order * 1000003 + choice) * 1000003 + i;
    int n = snprintf(text, 32, "%llx", (unsigned long long)(h * 0x9e3779b97f4a7c15u));
    return (journal_event){(int32_t)(h % 50000), text, (size_t)n, text, i % 3 ? 0 : (size_t)n};
}

static hd_status append(journal *j, uint64_t order, uint32_t choice, uint64_t first, size_t n, hd_err *err) {
    journal_event ev[64];
    char text[64][32];
    hd_status st;
    for (size_t i = 0; i < n; i++) ev[i] = event_of(order, choice, first + i, text[i]);
    hd_mem_forbid(true); /* a step may call it: the heap is out of bounds there */
    st = journal_append(j, order, choice, first, ev, n, err);
    hd_mem_forbid(false);
    return st;
}

typedef struct {
    uint64_t order, next, stop_after;
    uint32_t choice;
} reader;

static bool check_event(void *ctx, uint64_t index, const journal_event *ev) {
    reader *r = ctx;
    char text[32];
    journal_event want = event_of(r->order, r->choice, index, text);
    assert_int_equal(index, r->next);
    assert_int_equal(ev->token, want.token);
    assert_int_equal(ev->n_text, want.n_text);
    assert_memory_equal(ev->text, want.text, want.n_text);
    assert_int_equal(ev->n_extra, want.n_extra);
    if (want.n_extra) assert_memory_equal(ev->extra, want.extra, want.n_extra);
    r->next++;
    return r->next != r->stop_after;
}

/* How many events there are from `from` on; each is checked. */
static uint64_t count(journal *j, uint64_t order, uint32_t choice, uint64_t from) {
    reader r = {order, from, 0, choice};
    hd_err err = {0};
    if (journal_read_events(j, order, choice, from, check_event, &r, &err)) fail_msg("journal_read_events: %s", err.msg);
    return r.next - from;
}

static journal_entry *find(journal *j, const char *id) {
    journal_entry *e;
    hd_err err = {0};
    if (journal_find(j, id, &e, &err)) fail_msg("journal_find %s: %s", id, err.msg);
    return e;
}

static hd_status state_of(journal *j, const char *id, journal_state *s, bool *lost) {
    journal_entry *e;
    hd_status st = journal_find(j, id, &e, NULL);
    if (st) return st;
    *s = e->state;
    *lost = e->lost;
    journal_entry_free(e);
    return HD_OK;
}

static void flush(journal *j) {
    hd_err err = {0};
    if (journal_flush(j, &err)) fail_msg("journal_flush: %s", err.msg);
}

static void exec_sql(const char *sql) {
    sqlite3 *c;
    char *msg = NULL;
    assert_int_equal(sqlite3_open(file, &c), SQLITE_OK);
    if (sqlite3_exec(c, sql, NULL, NULL, &msg)) fail_msg("%s: %s", sql, msg);
    assert_int_equal(sqlite3_close(c), SQLITE_OK);
}

typedef struct {
    atomic_int n;
    atomic_int why;
    _Atomic uint64_t order;
} losses;

static void on_lost(void *ctx, uint64_t order, const char *id, journal_loss why) {
    losses *l = ctx;
    (void)id;
    atomic_store(&l->why, (int)why);
    atomic_store(&l->order, order);
    atomic_fetch_add(&l->n, 1);
}

/* ---- what it does ---- */

static void test_life(void **state) {
    journal *j = begin(NULL);
    journal_request r = request("resp_1", "key \x01", 1), other = request("resp_2", "key \x01", 2);
    journal_accepted a, b;
    journal_entry *e;
    journal_stat s;
    hd_err err = {0};
    struct stat sb;
    (void)state;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_OK);
    assert_int_equal(a.outcome, JOURNAL_NEW);
    assert_int_equal(stat(file, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0600);
    /* the same again, another body, another namespace, an id that is taken */
    r.id = "resp_1b";
    assert_int_equal(journal_accept(j, &r, &b, &err), HD_OK);
    assert_int_equal(b.outcome, JOURNAL_SAME);
    assert_int_equal(b.order, a.order);
    assert_string_equal(b.id, "resp_1");
    assert_int_equal(journal_accept(j, &other, &b, &err), HD_OK);
    assert_int_equal(b.outcome, JOURNAL_CONFLICT);
    assert_string_equal(b.id, "resp_1");
    other.ns[0] = 8;
    assert_int_equal(journal_accept(j, &other, &b, &err), HD_OK);
    assert_int_equal(b.outcome, JOURNAL_NEW);
    assert_true(b.order > a.order);
    other.ns[0] = 9;
    assert_int_equal(journal_accept(j, &other, &b, &err), HD_INVALID);
    assert_string_equal(err.field, "id");
    /* events, in two choices, more than a batch */
    for (uint64_t i = 0; i < 100; i += 10) assert_int_equal(append(j, a.order, 0, i, 10, &err), HD_OK);
    assert_int_equal(append(j, a.order, 1, 0, 3, &err), HD_OK);
    assert_int_equal(append(j, a.order, 1, 4, 1, &err), HD_INVALID); /* a gap */
    assert_int_equal(append(j, a.order, 1, 2, 1, &err), HD_INVALID); /* again */
    assert_int_equal(append(j, a.order, 2, 0, 1, &err), HD_INVALID);
    assert_int_equal(append(j, 77, 0, 0, 1, &err), HD_INVALID);
    assert_int_equal(journal_finish(j, a.order, JOURNAL_RUNNING, 1, "", 0, &err), HD_INVALID);
    flush(j);
    assert_int_equal(count(j, a.order, 0, 0), 100);
    assert_int_equal(count(j, a.order, 0, 97), 3);
    assert_int_equal(count(j, a.order, 1, 0), 3);
    assert_int_equal(count(j, a.order, 0, 100), 0);
    {
        reader some = {a.order, 10, 15, 0};
        assert_int_equal(journal_read_events(j, a.order, 0, 10, check_event, &some, &err), HD_OK);
        assert_int_equal(some.next, 15);
    }
    assert_int_equal(journal_delete(j, "resp_1", &err), HD_INVALID); /* it runs */
    assert_int_equal(journal_finish(j, a.order, JOURNAL_FINISHED, 1700000009, "usage", 5, &err), HD_OK);
    assert_int_equal(journal_finish(j, a.order, JOURNAL_FINISHED, 1700000009, "usage", 5, &err), HD_INVALID);
    assert_int_equal(append(j, a.order, 0, 100, 1, &err), HD_INVALID);
    flush(j);
    end(j);

    j = begin(NULL);
    assert_int_equal(journal_find_by_key(j, r.ns, "key \x01", 5, &e, &err), HD_OK);
    assert_int_equal(e->order, a.order);
    assert_int_equal(e->state, JOURNAL_FINISHED);
    assert_false(e->lost);
    assert_int_equal(e->finished, 1700000009);
    assert_int_equal(e->n_finish, 5);
    assert_memory_equal(e->finish, "usage", 5);
    assert_string_equal(e->request.id, "resp_1");
    assert_int_equal(e->request.n_key, 5);
    assert_memory_equal(e->request.key, "key \x01", 5);
    assert_memory_equal(e->request.ns, r.ns, 32);
    assert_memory_equal(e->request.body, r.body, 32);
    assert_memory_equal(e->request.identity, r.identity, 32);
    assert_true(e->request.seed == r.seed);
    assert_int_equal(e->request.created, r.created);
    assert_int_equal(e->request.n_record, 12);
    assert_memory_equal(e->request.record, "policy\0bytes", 12);
    assert_int_equal(e->request.n_prompt, 4);
    assert_memory_equal(e->request.prompt, prompt, sizeof prompt);
    assert_int_equal(e->request.n_choices, 2);
    assert_int_equal(e->published[0], 100);
    assert_int_equal(e->published[1], 3);
    journal_entry_free(e);
    assert_int_equal(journal_find_by_key(j, r.ns, "key", 3, &e, &err), HD_NOTFOUND);
    assert_null(e);
    assert_int_equal(journal_find(j, "resp_1b", &e, &err), HD_NOTFOUND);
    assert_int_equal(count(j, a.order, 0, 0), 100);
    assert_int_equal(journal_delete(j, "resp_1", &err), HD_OK);
    assert_int_equal(journal_delete(j, "resp_1", &err), HD_NOTFOUND);
    assert_int_equal(journal_find(j, "resp_1", &e, &err), HD_NOTFOUND);
    assert_int_equal(count(j, a.order, 0, 0), 0);
    journal_stats(j, &s);
    assert_int_equal(s.requests, 1);
    assert_int_equal(s.running, 1);
    end(j);
    assert_string_equal(journal_state_name(JOURNAL_CANCELLED), "cancelled");
}

typedef struct {
    journal *j;
    uint64_t order[8];
    int n, stop_after;
} listing;

static bool list(void *ctx, const journal_entry *e) {
    listing *l = ctx;
    assert_int_equal(e->state, JOURNAL_RUNNING);
    assert_true(l->n < 8);
    l->order[l->n++] = e->order;
    return l->n != l->stop_after;
}

static bool go_on(void *ctx, const journal_entry *e) {
    listing *l = ctx;
    l->n++;
    for (uint32_t c = 0; c < e->request.n_choices; c++) {
        assert_int_equal(append(l->j, e->order, c, e->published[c], 2, NULL), HD_OK);
    }
    assert_int_equal(journal_finish(l->j, e->order, JOURNAL_CANCELLED, 5, NULL, 0, NULL), HD_OK);
    flush(l->j);
    return true;
}

static void test_resume(void **state) {
    journal *j = begin(NULL);
    uint64_t o[4];
    listing l = {0};
    hd_err err = {0};
    journal_entry *e;
    (void)state;
    for (int i = 0; i < 4; i++) {
        char id[8];
        snprintf(id, sizeof id, "r%d", 9 - i); /* ids do not sort as they came */
        o[i] = accept_one(j, id);
        assert_int_equal(append(j, o[i], 0, 0, (size_t)i + 1, NULL), HD_OK);
    }
    assert_int_equal(journal_finish(j, o[1], JOURNAL_FAILED, 1, NULL, 0, NULL), HD_OK);
    end(j);
    j = begin(NULL);
    assert_int_equal(journal_unfinished(j, list, &l, &err), HD_OK);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.order[0], o[0]);
    assert_int_equal(l.order[1], o[2]);
    assert_int_equal(l.order[2], o[3]);
    l = (listing){.stop_after = 2};
    assert_int_equal(journal_unfinished(j, list, &l, &err), HD_OK);
    assert_int_equal(l.n, 2);
    assert_int_equal(append(j, o[2], 0, 0, 1, &err), HD_INVALID); /* it has 3 */
    l = (listing){.j = j};
    assert_int_equal(journal_unfinished(j, go_on, &l, &err), HD_OK);
    assert_int_equal(l.n, 3);
    end(j);
    j = begin(NULL);
    assert_int_equal(count(j, o[3], 0, 0), 6);
    assert_int_equal(count(j, o[3], 1, 0), 2);
    e = find(j, "r6");
    assert_int_equal(e->state, JOURNAL_CANCELLED);
    assert_null(e->finish);
    journal_entry_free(e);
    l = (listing){0};
    assert_int_equal(journal_unfinished(j, list, &l, &err), HD_OK);
    assert_int_equal(l.n, 0);
    assert_true(accept_one(j, "new") > o[3]);
    end(j);
}

static void test_bounds(void **state) {
    journal *j = begin(NULL);
    char id[200];
    static char big[JOURNAL_EVENT_BYTES + 1];
    journal_request r = request("x", "", 1);
    journal_accepted a;
    journal_event ev = {1, big, sizeof big, NULL, 0};
    journal *none;
    hd_err err = {0};
    uint64_t o;
    (void)state;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_INVALID); /* an empty key */
    r.n_key = 256;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_INVALID);
    r = request("", NULL, 1);
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_INVALID);
    memset(id, 'a', sizeof id);
    id[128] = 0;
    r.id = id;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_INVALID);
    id[127] = 0;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_OK);
    r = request("c", NULL, 1);
    r.n_choices = 0;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_INVALID);
    r.n_choices = JOURNAL_CHOICES + 1;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_INVALID);
    r.n_choices = JOURNAL_CHOICES;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_OK);
    assert_int_equal(append(j, a.order, JOURNAL_CHOICES - 1, 0, 1, &err), HD_OK);
    r = request("d", NULL, 1);
    r.n_prompt = SIZE_MAX / 2;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_INVALID);
    o = accept_one(j, "e");
    assert_int_equal(journal_append(j, o, 0, 0, &ev, 1, &err), HD_INVALID);
    ev.n_text--;
    assert_int_equal(journal_append(j, o, 0, 0, &ev, 1, &err), HD_OK);
    ev.n_extra = 1;
    assert_int_equal(journal_append(j, o, 0, 1, &ev, 1, &err), HD_INVALID);
    assert_int_equal(journal_finish(j, o, JOURNAL_FINISHED, 1, big, JOURNAL_FINISH_BYTES + 1, &err), HD_INVALID);
    end(j);
    assert_int_equal(journal_open(&none, dir, &(journal_config){.max_bytes = 4096}, &err), HD_INVALID);
    assert_int_equal(journal_open(&none, dir, &(journal_config){.queue_bytes = 16}, &err), HD_INVALID);
    assert_int_equal(journal_open(&none, "/nowhere/at/all", NULL, &err), HD_IO);
    assert_null(none);
    assert_int_equal(journal_close(NULL, 0, NULL), HD_OK);
}

static void test_retention_and_quota(void **state) {
    journal_config c = {.max_requests = 4, .retain_seconds = 100, .max_running = 3};
    journal *j = begin(&c);
    journal_request r = request("f", NULL, 1);
    journal_accepted a;
    journal_stat s;
    journal_entry *e;
    hd_err err = {0};
    uint64_t o[4], n;
    (void)state;
    for (int i = 0; i < 3; i++) {
        char id[8];
        snprintf(id, sizeof id, "q%d", i);
        o[i] = accept_one(j, id);
    }
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_FULL); /* three run */
    for (int i = 0; i < 2; i++) assert_int_equal(journal_finish(j, o[i], JOURNAL_FINISHED, 1000 + i, "", 0, &err), HD_OK);
    flush(j);
    assert_int_equal(journal_sweep(j, 1100, &n, &err), HD_OK); /* q0 is 100 seconds old, not more */
    assert_int_equal(n, 0);
    assert_int_equal(journal_sweep(j, 1101, &n, &err), HD_OK);
    assert_int_equal(n, 1);
    assert_int_equal(journal_find(j, "q0", &e, &err), HD_NOTFOUND);
    journal_entry_free(find(j, "q1"));
    o[0] = accept_one(j, "q3");
    o[1] = accept_one(j, "q4"); /* four on disk: q1 finished, q2 q3 q4 run */
    assert_int_equal(journal_finish(j, o[0], JOURNAL_FINISHED, 900, "", 0, &err), HD_OK);
    flush(j);
    accept_one(j, "q5"); /* the one that finished first goes, whenever it came */
    assert_int_equal(journal_find(j, "q3", &e, &err), HD_NOTFOUND);
    journal_entry_free(find(j, "q1"));
    assert_int_equal(journal_sweep(j, INT64_MIN, &n, &err), HD_OK);
    assert_int_equal(n, 0);
    journal_stats(j, &s);
    assert_int_equal(s.requests, 4);
    assert_int_equal(s.evicted, 1);
    assert_int_equal(s.expired, 1);
    assert_int_equal(s.refused, 1);
    end(j);
    /* a lower limit at the next start */
    c.max_requests = 1;
    j = begin(&c);
    assert_int_equal(journal_sweep(j, 0, &n, &err), HD_OK);
    assert_int_equal(n, 1);
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_FULL); /* only unfinished ones are left */
    end(j);
}

/* 1 MiB: old answers go; when only running ones are left, accepts are refused and then events are lost. */
static void test_quota_bytes(void **state) {
    losses lost = {0};
    journal_config c = {.max_bytes = 1 << 20, .lost = on_lost, .ctx = &lost};
    journal *j = begin(&c);
    static char big[100000];
    journal_request r = request("", NULL, 1);
    journal_accepted a;
    journal_stat s;
    journal_entry *e;
    hd_err err = {0};
    hd_status st = HD_OK;
    journal_event ev = {1, big, 50000, NULL, 0};
    struct stat sb;
    uint64_t n, last = 0;
    char id[16], id_of_last[16] = "";
    (void)state;
    r.record = big;
    r.n_record = sizeof big;
    r.id = id;
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "b%d", i);
        assert_int_equal(journal_accept(j, &r, &a, &err), HD_OK);
        assert_int_equal(journal_finish(j, a.order, JOURNAL_FINISHED, i, "", 0, &err), HD_OK);
        flush(j);
    }
    journal_stats(j, &s);
    assert_true(s.bytes <= 1 << 20);
    assert_true(s.evicted > 35 && s.evicted < 50);
    assert_int_equal(journal_find(j, "b0", &e, &err), HD_NOTFOUND);
    journal_entry_free(find(j, "b49"));
    for (int i = 0; i < 50 && !st; i++) {
        snprintf(id, sizeof id, "u%d", i);
        if (st = journal_accept(j, &r, &a, &err), st) break;
        last = a.order;
        memcpy(id_of_last, id, sizeof id);
    }
    assert_int_equal(st, HD_FULL);
    assert_true(last > 0);
    journal_stats(j, &s);
    /* one that can never fit costs nobody anything */
    snprintf(id, sizeof id, "huge");
    n = s.requests;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_FULL);
    journal_stats(j, &s);
    assert_int_equal(s.requests, n);
    for (uint64_t i = 0; i < 30; i++) {
        st = journal_append(j, last, 0, i, &ev, 1, &err);
        if (st) break;
        (void)!journal_flush(j, &err);
    }
    assert_int_equal(st, HD_CLOSED);
    assert_int_equal(atomic_load(&lost.n), 1);
    assert_int_equal(atomic_load(&lost.why), JOURNAL_LOST_SPACE);
    assert_int_equal(atomic_load(&lost.order), last);
    assert_int_equal(stat(file, &sb), 0);
    assert_true(sb.st_size <= 2 << 20);
    assert_int_equal(journal_finish(j, last, JOURNAL_FINISHED, 99, "u", 1, &err), HD_OK); /* ends still find room */
    flush(j);
    e = find(j, id_of_last);
    assert_true(e->lost && e->state == JOURNAL_FINISHED && e->n_finish == 1);
    journal_entry_free(e);
    assert_int_equal(journal_delete(j, id_of_last, &err), HD_OK);
    end(j);
}

/* A disk that does not answer: nobody but those who wait for it waits, the queue fills, one request loses, once. */
static void *accept_thread(void *p) {
    accept_one(p, "waits");
    return NULL;
}

static void test_queue_full(void **state) {
    losses lost = {0};
    journal_config c = {.queue_bytes = 8192, .vfs = "mem", .lost = on_lost, .ctx = &lost};
    journal *j = begin(&c);
    uint64_t a = accept_one(j, "a"), b = accept_one(j, "b"), n = 0;
    pthread_t t;
    hd_err err = {0};
    hd_status st;
    journal_entry *e;
    journal_stat s;
    struct timespec t0, t1;
    (void)state;
    memvfs_hold(vfs, true);
    assert_int_equal(pthread_create(&t, NULL, accept_thread, j), 0);
    usleep(50000); /* the writer hangs in its sync */
    clock_gettime(CLOCK_MONOTONIC, &t0);
    while (!(st = append(j, a, 0, n, 10, &err))) n += 10;
    assert_int_equal(st, HD_FULL);
    assert_true(n > 0 && n < 1000);
    assert_int_equal(append(j, a, 0, n, 1, &err), HD_CLOSED);
    assert_int_equal(append(j, b, 0, 0, 1, &err), HD_OK); /* a small one still fits */
    {
        static char big[8192];
        assert_int_equal(journal_finish(j, b, JOURNAL_CANCELLED, 77, big, sizeof big, &err), HD_FULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &t1);
    assert_true(t1.tv_sec - t0.tv_sec < 5); /* milliseconds, had the machine nothing else to do */
    memvfs_hold(vfs, false);
    pthread_join(t, NULL);
    flush(j);
    flush(j);
    journal_stats(j, &s);
    assert_int_equal(s.lost_queue, 2);
    assert_int_equal(atomic_load(&lost.n), 2);
    assert_true(s.queue_bytes_max <= 8192);
    assert_int_equal(count(j, a, 0, 0), n); /* what was queued before is there */
    assert_int_equal(count(j, b, 0, 0), 1);
    e = find(j, "b");
    assert_int_equal(e->state, JOURNAL_CANCELLED);
    assert_true(e->lost);
    assert_null(e->finish);
    assert_int_equal(e->finished, 77);
    journal_entry_free(e);
    assert_int_equal(journal_finish(j, a, JOURNAL_FINISHED, 78, "u", 1, &err), HD_OK);
    flush(j);
    e = find(j, "a");
    assert_true(e->lost);
    assert_int_equal(e->n_finish, 1);
    journal_entry_free(e);
    end(j);
}

/* Closing does not wait for ever either; the writer tidies up behind us. */
static void test_close_timeout(void **state) {
    journal_config c = {.vfs = "mem"};
    journal *j = begin(&c), *k;
    uint64_t a = accept_one(j, "a");
    hd_err err = {0};
    hd_status st;
    (void)state;
    memvfs_hold(vfs, true);
    assert_int_equal(append(j, a, 0, 0, 5, &err), HD_OK);
    assert_int_equal(journal_close(j, 20, &err), HD_TIMEOUT);
    assert_int_equal(journal_open(&k, dir, &c, &err), HD_IO); /* still locked */
    memvfs_hold(vfs, false);
    for (int i = 0; (st = journal_open(&k, dir, &c, &err)) == HD_IO && i < 1000; i++) usleep(10000);
    assert_int_equal(st, HD_OK);
    assert_int_equal(count(k, a, 0, 0), 5);
    end(k);
}

typedef struct {
    journal *j;
    int n, k;
} crowd;

static void *crowd_member(void *p) {
    crowd *c = p;
    for (int i = 0; i < 10; i++) {
        char id[32];
        uint64_t o;
        snprintf(id, sizeof id, "t%d-%d", c->k, i);
        o = accept_one(c->j, id);
        for (uint64_t e = 0; e < 20; e++) assert_int_equal(append(c->j, o, e & 1, e / 2, 1, NULL), HD_OK);
        assert_int_equal(journal_finish(c->j, o, JOURNAL_FINISHED, 1, id, strlen(id), NULL), HD_OK);
        if (i == 5) {
            journal_entry *e;
            hd_status st = journal_find(c->j, "t0-0", &e, NULL);
            assert_true(st == HD_OK || st == HD_NOTFOUND);
            journal_entry_free(e);
        }
    }
    return NULL;
}

/* 16 threads; accepts share commits, all is there. */
static void test_crowd(void **state) {
    journal_config c = {.vfs = "mem"};
    journal *j = begin(&c);
    crowd who[16];
    pthread_t t[16];
    journal_stat s;
    (void)state;
    for (int i = 0; i < 16; i++) {
        who[i] = (crowd){j, 0, i};
        assert_int_equal(pthread_create(&t[i], NULL, crowd_member, &who[i]), 0);
    }
    for (int i = 0; i < 16; i++) pthread_join(t[i], NULL);
    flush(j);
    journal_stats(j, &s);
    assert_int_equal(s.accepted, 160);
    assert_int_equal(s.events, 3200);
    assert_int_equal(s.finished, 160);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.requests, 160);
    for (uint64_t o = 1; o <= 160; o++) assert_int_equal(count(j, o, 0, 0) + count(j, o, 1, 0), 20);
    end(j);
}

/* 16 accepts that come while a sync hangs share the next one. */
typedef struct {
    journal *j;
    char id[8];
} guest;

static void *guest_accepts(void *p) {
    guest *g = p;
    accept_one(g->j, g->id);
    return NULL;
}

static void test_group_commit(void **state) {
    journal_config c = {.vfs = "mem"};
    journal *j = begin(&c);
    pthread_t t[17];
    guest who[17];
    journal_stat s;
    long before;
    (void)state;
    accept_one(j, "first");
    before = memvfs_syncs(vfs);
    memvfs_hold(vfs, true);
    for (int i = 0; i < 17; i++) {
        who[i].j = j;
        snprintf(who[i].id, sizeof who[i].id, "g%d", i);
        assert_int_equal(pthread_create(&t[i], NULL, guest_accepts, &who[i]), 0);
        if (i == 0) usleep(50000); /* the writer hangs with the first one alone */
    }
    usleep(200000);
    memvfs_hold(vfs, false);
    for (int i = 0; i < 17; i++) pthread_join(t[i], NULL);
    journal_stats(j, &s);
    assert_int_equal(s.accepted, 18);
    if (memvfs_syncs(vfs) - before > 5) fail_msg("%ld syncs for 17 accepts", memvfs_syncs(vfs) - before);
    end(j);
}

/* ---- two processes, other files ---- */

static void test_lock(void **state) {
    journal *j = begin(NULL), *k;
    hd_err err = {0};
    char pid[32];
    int status, ready[2];
    pid_t child;
    (void)state;
    assert_int_equal(journal_open(&k, dir, NULL, &err), HD_IO);
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    assert_non_null(strstr(err.msg, pid));
    assert_non_null(strstr(err.msg, dir));
    end(j);
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) { /* another process holds it */
        if (journal_open(&k, dir, NULL, NULL) || write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], pid, 1), 1);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(journal_open(&k, dir, NULL, &err), HD_IO);
    assert_non_null(strstr(err.msg, "in use"));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    end(begin(NULL)); /* its lock went with it */
}

/* What is written to a file that was moved or removed would be lost: nothing is accepted until it is back. */
static void test_moved_while_used(void **state) {
    static const char *const names[] = {"requests.db", "requests.db-wal", "requests.lock"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        losses lost = {0};
        journal_config c = {.lost = on_lost, .ctx = &lost};
        journal *j = begin(&c);
        char from[300], to[310], id[8];
        uint64_t before;
        journal_request r = request("no", NULL, 1);
        journal_accepted a;
        hd_err err = {0};
        snprintf(id, sizeof id, "a%d", (int)i);
        before = accept_one(j, id);
        snprintf(from, sizeof from, "%s/%s", dir, names[i]);
        snprintf(to, sizeof to, "%s.away", from);
        assert_int_equal(rename(from, to), 0);
        assert_int_equal(journal_accept(j, &r, &a, &err), HD_IO);
        assert_non_null(strstr(err.msg, names[i]));
        assert_int_equal(append(j, before, 0, 0, 3, NULL), HD_OK);
        assert_int_equal(journal_flush(j, NULL), HD_IO);
        assert_int_equal(atomic_load(&lost.why), JOURNAL_LOST_WRITE);
        if (i == 0) { /* another file of that name is not it */
            FILE *f = fopen(from, "w");
            assert_non_null(f);
            fclose(f);
            assert_int_equal(journal_accept(j, &r, &a, &err), HD_IO);
        }
        assert_int_equal(rename(to, from), 0);
        snprintf(id, sizeof id, "b%d", (int)i);
        assert_int_equal(append(j, accept_one(j, id), 0, 0, 3, NULL), HD_OK);
        flush(j);
        end(j);
    }
    {
        journal *j = begin(NULL);
        for (int i = 0; i < 6; i++) {
            char id[8];
            snprintf(id, sizeof id, "%c%d", i % 2 ? 'a' : 'b', i / 2);
            journal_entry_free(find(j, id));
        }
        end(j);
    }
}

static void test_newer_schema(void **state) {
    journal *j = begin(NULL);
    hd_err err = {0};
    (void)state;
    accept_one(j, "kept");
    end(j);
    exec_sql("PRAGMA user_version=7");
    assert_int_equal(journal_open(&j, dir, NULL, &err), HD_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "version 7"));
    assert_non_null(strstr(err.msg, "up to 2"));
    exec_sql("PRAGMA user_version=2");
    j = begin(NULL);
    journal_entry_free(find(j, "kept"));
    end(j);
}

static void assert_aside(int n) {
    char path[300];
    journal_stat s;
    journal *j = begin(NULL);
    struct stat sb;
    journal_stats(j, &s);
    assert_int_equal(s.moved_aside, 1);
    assert_int_equal(s.requests, 0);
    accept_one(j, "after");
    end(j);
    snprintf(path, sizeof path, "%s.corrupt-%d", file, n);
    assert_int_equal(stat(path, &sb), 0);
}

static void test_moved_aside(void **state) {
    static char junk[9000];
    int fd;
    (void)state;
    memset(junk, 0x5a, sizeof junk);
    fd = open(file, O_RDWR | O_CREAT, 0644); /* no database at all */
    assert_int_equal(write(fd, junk, sizeof junk), sizeof junk);
    close(fd);
    assert_aside(1);
    fd = open(file, O_RDWR); /* a page in the middle is gone */
    assert_int_equal(pwrite(fd, junk, 4096, 4096 * 2), 4096);
    close(fd);
    assert_aside(2);
    assert_int_equal(unlink(file), 0);
    exec_sql("CREATE TABLE other(a)"); /* somebody else's */
    assert_aside(3);
    exec_sql("DROP TABLE event");
    assert_aside(4);
    end(begin(NULL));
}

/* A byte changed under SQLite's eyes is seen by our checksums. */
static void test_checksums(void **state) {
    journal *j = begin(NULL);
    journal_entry *e;
    journal_stat s;
    hd_err err = {0};
    uint64_t a = accept_one(j, "a"), b = accept_one(j, "b"), c = accept_one(j, "c");
    reader r = {c, 0, 0, 0};
    (void)state;
    assert_int_equal(append(j, a, 0, 0, 10, NULL), HD_OK);
    assert_int_equal(append(j, c, 0, 0, 10, NULL), HD_OK);
    assert_int_equal(journal_finish(j, c, JOURNAL_FINISHED, 1, "u", 1, NULL), HD_OK);
    end(j);
    exec_sql("UPDATE event SET token=token+1 WHERE idx=6;"
             "UPDATE request SET seed=seed+1 WHERE id=CAST('b' AS BLOB)");
    j = begin(NULL);
    /* a runs: it goes on after 6 events.  b cannot be trusted, so it has failed.  c is finished: one sees how far it is good. */
    assert_int_equal(count(j, a, 0, 0), 6);
    assert_int_equal(append(j, a, 0, 6, 4, &err), HD_OK);
    flush(j);
    assert_int_equal(count(j, a, 0, 0), 10);
    assert_int_equal(journal_find(j, "b", &e, &err), HD_FAILED);
    assert_non_null(strstr(err.msg, "damaged"));
    assert_int_equal(append(j, b, 0, 0, 1, &err), HD_INVALID);
    assert_int_equal(journal_read_events(j, c, 0, 0, check_event, &r, &err), HD_FAILED);
    assert_int_equal(r.next, 6);
    assert_int_equal(err.at, 6);
    journal_stats(j, &s);
    assert_true(s.damaged >= 3);
    assert_int_equal(s.running, 1);
    end(j);
    exec_sql("DELETE FROM event WHERE idx=9 AND ord=3"); /* the last one of c */
    j = begin(NULL);
    assert_int_equal(c, 3);
    assert_int_equal(journal_find(j, "c", &e, &err), HD_FAILED);
    assert_non_null(strstr(err.msg, "missing"));
    end(j);
    exec_sql("UPDATE outcome SET state=2 WHERE ord=(SELECT ord FROM request WHERE id=CAST('c' AS BLOB))");
    j = begin(NULL);
    assert_int_equal(journal_find(j, "c", &e, &err), HD_FAILED);
    assert_int_equal(journal_delete(j, "b", &err), HD_OK); /* damaged ones can be deleted */
    end(j);
}

/* A row in which nothing can be read is refused alone: what else is in the batch is written. */
static void test_damage_is_its_own(void **state) {
    journal *j = begin(NULL);
    journal_stat s;
    hd_err err = {0};
    uint64_t a = accept_one(j, "a"), b = accept_one(j, "b");
    (void)state;
    assert_int_equal(journal_finish(j, b, JOURNAL_FINISHED, 1, "u", 1, NULL), HD_OK);
    end(j);
    exec_sql("UPDATE request SET body=x'00' WHERE id=CAST('b' AS BLOB)");
    j = begin(NULL);
    assert_int_equal(append(j, a, 0, 0, 10, NULL), HD_OK);
    assert_int_equal(journal_delete(j, "b", &err), HD_FAILED); /* in one batch with the events, which come first */
    assert_non_null(strstr(err.msg, "damaged"));
    assert_int_equal(append(j, a, 0, 10, 1, &err), HD_OK);
    flush(j);
    journal_stats(j, &s);
    assert_int_equal(s.failed_commits, 0);
    assert_int_equal(s.lost_write, 0);
    assert_int_equal(count(j, a, 0, 0), 11);
    end(j);
}

/* ---- failures ---- */

/* A short life of the log.  Returns the first failure of what waits. */
static hd_status short_life(journal *j, bool *accepted) {
    journal_request r = request("life", "k", 1);
    journal_accepted a;
    hd_status st;
    *accepted = false;
    if ((st = journal_accept(j, &r, &a, NULL))) return st;
    *accepted = true;
    for (uint64_t i = 0; i < 40; i++) (void)!append(j, a.order, 0, i, 1, NULL);
    st = journal_flush(j, NULL);
    for (uint64_t i = 40; i < 80; i++) (void)!append(j, a.order, 0, i, 1, NULL);
    (void)!journal_finish(j, a.order, JOURNAL_FINISHED, 3, "usage", 5, NULL);
    hd_status st2 = journal_flush(j, NULL);
    return st ? st : st2;
}

/* What is on disk after it: `accepted` was promised, or all of it. */
static void check_life(bool accepted, bool whole) {
    journal *j = begin(&(journal_config){.vfs = "mem"});
    journal_state s;
    bool lost;
    hd_status st = state_of(j, "life", &s, &lost);
    journal_stat stat;
    if (accepted) assert_int_equal(st, HD_OK);
    if (!st) {
        uint64_t n = count(j, 1, 0, 0);
        assert_true(n <= 80);
        if (s == JOURNAL_FINISHED && !lost) assert_int_equal(n, 80);
        if (whole) assert_true(s == JOURNAL_FINISHED && !lost);
    }
    journal_stats(j, &stat);
    assert_int_equal(stat.moved_aside, 0);
    end(j);
}

/* The n-th write or sync fails, once or for good, with a full disk or an error. */
static void test_failing_disk(void **state) {
    static const int codes[] = {SQLITE_IOERR, SQLITE_FULL};
    (void)state;
    for (int k = 0; k < 4; k++) {
        long n = 0;
        for (bool more = true; more; n++) {
            losses lost = {0};
            journal_config c = {.vfs = "mem", .gather_ms = 1, .lost = on_lost, .ctx = &lost};
            journal *j = NULL;
            bool accepted = false;
            hd_err err = {0};
            hd_status st;
            long before;
            memvfs_clear(vfs);
            before = memvfs_writes(vfs);
            memvfs_fail(vfs, n, k < 2 ? 1 : 1000000, codes[k & 1]);
            st = journal_open(&j, dir, &c, &err);
            if (!st) {
                journal_stat s;
                st = short_life(j, &accepted);
                journal_stats(j, &s);
                assert_int_equal(atomic_load(&lost.n), s.lost_write + s.lost_space + s.lost_queue);
                if (st && accepted) assert_int_equal(atomic_load(&lost.n), 1);
                (void)!journal_close(j, 10000, &err);
            } else {
                assert_true(st == HD_IO || st == HD_FULL);
            }
            more = memvfs_writes(vfs) - before > n;
            memvfs_fail(vfs, -1, 0, 0);
            check_life(accepted, !st && !atomic_load(&lost.n));
            assert_true(n < 1000);
        }
        assert_true(n > 15); /* it was about something */
    }
}

/* A failed write does not stop those that come later, and a lost request's end is still recorded. */
static void test_recovers(void **state) {
    losses lost = {0};
    journal_config c = {.vfs = "mem", .lost = on_lost, .ctx = &lost};
    journal *j = begin(&c);
    uint64_t a = accept_one(j, "a"), b = accept_one(j, "b");
    journal_state s;
    bool gone;
    (void)state;
    assert_int_equal(append(j, a, 0, 0, 3, NULL), HD_OK);
    flush(j);
    assert_int_equal(append(j, a, 0, 3, 3, NULL), HD_OK);
    memvfs_fail(vfs, 0, 1, SQLITE_IOERR);
    assert_int_equal(journal_flush(j, NULL), HD_IO);
    assert_int_equal(atomic_load(&lost.n), 1);
    assert_int_equal(atomic_load(&lost.why), JOURNAL_LOST_WRITE);
    assert_int_equal(append(j, a, 0, 6, 3, NULL), HD_CLOSED);
    assert_int_equal(append(j, b, 0, 0, 3, NULL), HD_OK);
    flush(j);
    assert_int_equal(count(j, a, 0, 0), 3);
    assert_int_equal(count(j, b, 0, 0), 3);
    memvfs_fail(vfs, 0, 1, SQLITE_FULL);
    assert_int_equal(journal_finish(j, a, JOURNAL_CANCELLED, 9, "u", 1, NULL), HD_OK);
    assert_int_equal(journal_flush(j, NULL), HD_FULL);
    assert_int_equal(append(j, b, 0, 3, 3, NULL), HD_OK);
    flush(j); /* the end of a goes along */
    assert_int_equal(state_of(j, "a", &s, &gone), HD_OK);
    assert_int_equal(s, JOURNAL_CANCELLED);
    assert_true(gone);
    assert_int_equal(atomic_load(&lost.n), 1);
    assert_int_equal(count(j, b, 0, 0), 6);
    end(j);
}

/* Our own allocations. */
static void test_no_memory(void **state) {
    (void)state;
    for (long n = 0;; n++) {
        long live = hd_mem_live();
        journal *j;
        journal_entry *e = NULL;
        journal_accepted a;
        journal_request r = request("m", "k", 1);
        hd_status st;
        memvfs_clear(vfs);
        hd_mem_fail_after(n);
        st = journal_open(&j, dir, &(journal_config){.vfs = "mem"}, NULL);
        if (!st) {
            if (!(st = journal_accept(j, &r, &a, NULL))) {
                if (!(st = append(j, a.order, 0, 0, 3, NULL)) && !(st = journal_flush(j, NULL)))
                    st = journal_find(j, "m", &e, NULL);
                if (st) assert_null(e);
                journal_entry_free(e);
                if (!st) {
                    listing l = {0};
                    st = journal_unfinished(j, list, &l, NULL);
                }
            }
            hd_mem_fail_after(-1);
            end(j);
            hd_mem_fail_after(st ? 0 : n);
        } else {
            assert_null(j);
        }
        hd_mem_fail_after(-1);
        assert_true(st == HD_OK || st == HD_NOMEM);
        assert_int_equal(hd_mem_live(), live);
        if (!st) {
            assert_true(n >= 5);
            break;
        }
    }
    /* and at a start with something to resume */
    for (long n = 0;; n++) {
        long live = hd_mem_live();
        journal *j;
        hd_status st;
        hd_mem_fail_after(n);
        st = journal_open(&j, dir, &(journal_config){.vfs = "mem"}, NULL);
        hd_mem_fail_after(-1);
        assert_true(st == HD_OK || st == HD_NOMEM);
        if (!st) end(j);
        assert_int_equal(hd_mem_live(), live);
        if (!st) break;
    }
}

/* SQLite's allocations, on whatever thread: the n-th of all fails, once or for good. */
static sqlite3_mem_methods system_mem;
static atomic_long sqlite_fail_in = -1;
static atomic_bool sqlite_for_good;

static bool sqlite_refused(void) {
    long n = atomic_load(&sqlite_fail_in);
    if (n < 0) return false;
    if (n == 0) {
        if (!atomic_load(&sqlite_for_good)) atomic_store(&sqlite_fail_in, -1);
        return true;
    }
    atomic_store(&sqlite_fail_in, n - 1);
    return false;
}
static void *sqlite_malloc(int n) { return sqlite_refused() ? NULL : system_mem.xMalloc(n); }
static void *sqlite_realloc(void *p, int n) { return sqlite_refused() ? NULL : system_mem.xRealloc(p, n); }

static void test_sqlite_no_memory(void **state) {
    (void)state;
    for (int good = 0; good < 2; good++) {
        long step = 1;
        for (long n = 0;; n += step) {
            journal *j;
            bool accepted = false;
            hd_status st;
            bool used;
            memvfs_clear(vfs);
            atomic_store(&sqlite_for_good, good != 0);
            atomic_store(&sqlite_fail_in, n);
            st = journal_open(&j, dir, &(journal_config){.vfs = "mem", .gather_ms = 1}, NULL);
            if (!st) {
                st = short_life(j, &accepted);
                (void)!journal_close(j, 10000, NULL);
            } else if (st != HD_NOMEM && st != HD_IO) {
                fail_msg("allocation %ld of SQLite: %s", n, hd_status_name(st));
            }
            used = atomic_load(&sqlite_fail_in) <= 0;
            atomic_store(&sqlite_fail_in, -1);
            check_life(accepted, false);
            if (!used) break;
            if (n > 150) step = 7; /* openings are alike; samples of the rest */
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)
        T(test_life), T(test_resume), T(test_bounds), T(test_retention_and_quota), T(test_quota_bytes), T(test_queue_full),
        T(test_close_timeout), T(test_crowd), T(test_group_commit), T(test_lock), T(test_moved_while_used), T(test_newer_schema), T(test_moved_aside),
        T(test_checksums), T(test_damage_is_its_own), T(test_failing_disk), T(test_recovers), T(test_no_memory), T(test_sqlite_no_memory),
    };
    sqlite3_mem_methods mine;
    int rc;
    if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &system_mem)) return 1;
    mine = system_mem;
    mine.xMalloc = sqlite_malloc;
    mine.xRealloc = sqlite_realloc;
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &mine) || sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0)) return 1;
    if (sqlite3_initialize()) return 1;
    hd_log_set(HD_LOG_ERROR); /* failures are what this is about: hundreds of warnings */
    vfs = memvfs_new("mem");
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    memvfs_free(vfs);
    return rc;
}
