/* test_trace.c - the trace file read back by a JSON parser of others: contents, bound, drops, threads, failing disks.
 */
#include "base/log.h"
#include "base/mem.h"
#include "base/trace.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[200], path[256];

static int make_dir(void **state) {
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(dir, sizeof dir, "%.150s/heddle-trace-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/trace.json", dir);
    return 0;
}

static int drop_dir(void **state) {
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static trace *begin(uint64_t max_bytes) {
    trace *t;
    hd_err err = {0};
    assert_int_equal(trace_open(&t, path, max_bytes, &err), HD_OK);
    return t;
}

static off_t size_of_file(void) {
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_size;
}

static json_t *parse(void) {
    json_error_t e;
    json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!all) fail_msg("%s:%d: %s", e.source, e.line, e.text);
    assert_true(json_is_array(all));
    return all;
}

static const char *text(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "(none)";
}

static long long number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static long long arg(const json_t *o, const char *key) { return number(json_object_get(o, "args"), key); }
static bool flag(const json_t *o, const char *key) {
    const json_t *v = json_object_get(json_object_get(o, "args"), key);
    assert_true(json_is_boolean(v));
    return json_is_true(v);
}

/* The last record, which every file ends with. */
static json_t *last(const json_t *all) {
    json_t *e = json_array_get(all, json_array_size(all) - 1);
    assert_string_equal(text(e, "name"), "end of trace");
    assert_string_equal(text(e, "ph"), "i");
    return e;
}

/* The only event of this name; NULL: none. */
static json_t *only(const json_t *all, const char *name) {
    json_t *found = NULL, *e;
    size_t i;
    json_array_foreach(all, i, e) {
        if (strcmp(text(e, "name"), name)) continue;
        assert_null(found);
        found = e;
    }
    return found;
}

/* The name that metadata gives to a process (tid 0) or a thread. */
static const char *named(const json_t *all, const char *what, long long pid, long long tid) {
    json_t *e;
    size_t i;
    json_array_foreach(all, i, e) if (!strcmp(text(e, "ph"), "M") && !strcmp(text(e, "name"), what) &&
                                      number(e, "pid") == pid &&
                                      number(e, "tid") == tid) return text(json_object_get(e, "args"), "name");
    return "(unnamed)";
}

static size_t count(const json_t *all, const char *ph) {
    json_t *e;
    size_t i, n = 0;
    json_array_foreach(all, i, e) n += !strcmp(text(e, "ph"), ph);
    return n;
}

/* ---- contents ---- */

static void spans_requests_and_marks_read_back(void **state) {
    trace *t = begin(0);
    json_t *all, *e;
    (void)state;
    trace_span(t, "step", 0, 1000, 1750, "rows", 3, "tokens", 17);
    trace_span(t, "pool", 2, 1100, 1100, NULL, 0, NULL, 0);
    trace_request(t, "prefill", "cmpl-7", 7, 900, 1500, "tokens", 12);
    trace_request(t, "decode", "cmpl-8", 8, 1500, 2500, NULL, 9);
    trace_mark(t, "first token", "cmpl-7", 7, 1600);
    trace_close(t);
    all = parse();
    assert_string_equal(named(all, "process_name", 1, 0), "heddle");
    assert_string_equal(named(all, "process_name", 2, 0), "requests");

    e = only(all, "step");
    assert_string_equal(text(e, "ph"), "X");
    assert_int_equal(number(e, "ts"), 1000);
    assert_int_equal(number(e, "dur"), 750);
    assert_int_equal(number(e, "pid"), 1);
    assert_int_equal(arg(e, "rows"), 3);
    assert_int_equal(arg(e, "tokens"), 17);
    assert_int_equal(json_object_size(json_object_get(e, "args")), 2);
    assert_string_equal(named(all, "thread_name", 1, number(e, "tid")), "executor");

    e = only(all, "pool");
    assert_int_equal(number(e, "dur"), 0);
    assert_int_equal(json_object_size(json_object_get(e, "args")), 0);
    assert_string_equal(named(all, "thread_name", 1, number(e, "tid")), "lane 2");

    e = only(all, "prefill");
    assert_string_equal(text(e, "ph"), "X");
    assert_int_equal(number(e, "pid"), 2);
    assert_int_equal(number(e, "dur"), 600);
    assert_int_equal(arg(e, "tokens"), 12);
    assert_string_equal(text(json_object_get(e, "args"), "id"), "cmpl-7");
    assert_string_equal(named(all, "thread_name", 2, number(e, "tid")), "cmpl-7");
    assert_string_equal(named(all, "thread_name", 2, number(only(all, "decode"), "tid")), "cmpl-8");
    assert_true(number(only(all, "decode"), "tid") > number(e, "tid")); /* in the order of requests */

    assert_int_equal(number(only(all, "first token"), "tid"), number(e, "tid")); /* one line per request */
    assert_string_equal(text(only(all, "first token"), "ph"), "i");
    assert_int_equal(number(only(all, "first token"), "ts"), 1600);

    e = last(all);
    assert_int_equal(arg(e, "records"), 5);
    assert_int_equal(arg(e, "dropped"), 0);
    assert_int_equal(arg(e, "omitted"), 0);
    assert_false(flag(e, "file_full"));
    assert_false(flag(e, "write_failed"));
    assert_int_equal(number(e, "ts"), 2500); /* when the last thing happened */
    json_decref(all);
    assert_int_equal(hd_mem_live(), 0);
}

static void an_empty_trace_is_a_file_too(void **state) {
    json_t *all;
    (void)state;
    trace_close(begin(0));
    all = parse();
    assert_int_equal(arg(last(all), "records"), 0);
    json_decref(all);
}

static void no_trace_does_nothing(void **state) {
    (void)state;
    trace_span(NULL, "a", 0, 0, 0, NULL, 0, NULL, 0);
    trace_request(NULL, "a", "id", 0, 0, 0, NULL, 0);
    trace_mark(NULL, "a", "id", 0, 0);
    trace_close(NULL);
}

static void odd_ids_and_numbers_stay_json(void **state) {
    trace *t = begin(0);
    char longest[200], want[64];
    json_t *all;
    (void)state;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    memset(want, 'x', 63);
    want[63] = 0;
    trace_request(t, "quoted", "a\"b\\c\n\x01", 1, 1, 2, NULL, 0);
    trace_request(t, "broken", "\xff\xc3", 2, 1, 2, NULL, 0);
    trace_request(t, "long", longest, 3, 1, 2, NULL, 0);
    trace_mark(t, "nameless", NULL, 4, 1);
    trace_span(t, "huge", 4000000000u, UINT64_MAX - 1, UINT64_MAX, "n", UINT64_MAX, NULL, 0);
    trace_request(t, "backwards", "z", UINT64_MAX, 10, 5, NULL, 0);
    trace_close(t);
    all = parse();
    assert_string_equal(text(json_object_get(only(all, "quoted"), "args"), "id"), "a\"b\\c\n\x01");
    assert_string_equal(text(json_object_get(only(all, "broken"), "args"), "id"), "\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(text(json_object_get(only(all, "long"), "args"), "id"), want);
    assert_string_equal(text(json_object_get(only(all, "nameless"), "args"), "id"), "");
    assert_true(arg(only(all, "huge"), "n") == INT64_MAX);
    assert_int_equal(number(only(all, "backwards"), "dur"), 0);
    assert_true(number(only(all, "backwards"), "tid") < INT32_MAX);
    assert_int_equal(arg(last(all), "records"), 6);
    json_decref(all);
}

static void the_file_is_whole_while_it_is_written(void **state) {
    trace *t = begin(0);
    json_t *all;
    (void)state;
    for (int i = 0; i < 2; i++) {
        trace_span(t, "step", 0, (uint64_t)i, (uint64_t)i + 1, NULL, 0, NULL, 0);
        for (int tries = 0;;
             tries++) { /* the writer gathers for a tenth of a second; a reader may come in its middle */
            all = json_load_file(path, 0, NULL);
            if (all && arg(last(all), "records") == i + 1) break;
            json_decref(all);
            assert_true(tries < 1000);
            usleep(10000);
        }
        assert_int_equal(count(all, "X"), i + 1);
        json_decref(all);
    }
    trace_close(t);
}

static void an_existing_file_is_replaced(void **state) {
    FILE *f = fopen(path, "w");
    json_t *all;
    (void)state;
    assert_non_null(f);
    for (int i = 0; i < 5000; i++) fputs("old ", f);
    fclose(f);
    trace_close(begin(0));
    all = parse();
    assert_true(size_of_file() < 2000);
    json_decref(all);
}

/* ---- limits ---- */

static void the_file_keeps_its_bound(void **state) {
    static const uint64_t bounds[] = {4096, 10000, 100000};
    (void)state;
    hd_log_set(HD_LOG_ERROR); /* that it is full is said as a warning */
    for (size_t k = 0; k < 3; k++) {
        enum { N = 4000 };
        trace *t = begin(bounds[k]);
        json_t *all;
        for (uint64_t i = 0; i < N; i++) trace_request(t, "decode", "some-id", i, i, i + 1, "n", i);
        trace_close(t);
        all = parse();
        assert_true((uint64_t)size_of_file() <= bounds[k]);
        assert_true((uint64_t)size_of_file() > bounds[k] - 800); /* and is used */
        assert_true(flag(last(all), "file_full"));
        assert_false(flag(last(all), "write_failed"));
        assert_int_equal(arg(last(all), "records"), count(all, "X"));
        assert_int_equal(arg(last(all), "records") + arg(last(all), "omitted") + arg(last(all), "dropped"), N);
        assert_true(arg(last(all), "omitted") > 0);
        json_decref(all);
    }
    hd_log_set(HD_LOG_WARN);
}

/* Far more in one go than the ring holds: the calls do not wait, so some are lost, and counted. */
static void a_full_ring_drops_and_counts(void **state) {
    enum { N = 400000 };
    trace *t = begin(0);
    long long kept, before = -1;
    json_t *all, *e;
    size_t i;
    (void)state;
    for (uint64_t n = 0; n < N; n++) trace_span(t, "s", 0, n, n + 1, "n", n, NULL, 0);
    trace_close(t);
    all = parse();
    kept = (long long)count(all, "X");
    assert_int_equal(arg(last(all), "records"), kept);
    assert_int_equal(arg(last(all), "omitted"), 0);
    assert_int_equal(arg(last(all), "dropped"), N - kept);
    assert_true(kept >= 8192 && kept < N);
    json_array_foreach(all, i, e) {
        if (strcmp(text(e, "ph"), "X")) continue;
        assert_true(arg(e, "n") > before); /* those kept are in order */
        before = arg(e, "n");
    }
    json_decref(all);
    assert_int_equal(hd_mem_live(), 0);
}

static void what_cannot_be_a_trace_is_refused(void **state) {
    trace *t;
    hd_err err = {0};
    char other[300];
    (void)state;
    assert_int_equal(trace_open(&t, path, 100, &err), HD_INVALID);
    assert_null(t);
    snprintf(other, sizeof other, "%s/none/trace.json", dir);
    assert_int_equal(trace_open(&t, other, 0, &err), HD_IO);
    assert_non_null(strstr(err.msg, other));
    assert_int_equal(trace_open(&t, dir, 0, &err), HD_IO);
    snprintf(other, sizeof other, "%s/pipe", dir);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_int_equal(trace_open(&t, other, 0, &err), HD_IO); /* and does not hang */
    unlink(other);
    assert_null(t);
    assert_int_equal(hd_mem_live(), 0);
}

/* ---- failing writes ---- */

static void a_full_disk_is_heard_of_at_once(void **state) {
    trace *t;
    hd_err err = {0};
    (void)state;
    if (access("/dev/full", W_OK)) {
        print_message("there is no /dev/full to write to\n");
        skip();
    }
    assert_int_equal(trace_open(&t, "/dev/full", 0, &err), HD_IO);
    assert_non_null(strstr(err.msg, "No space left"));
    assert_null(t);
}

/* The disk fills up later: here a limit on file sizes, which cuts a write short and then refuses it. */
static void a_write_that_fails_later_ends_the_file_well(void **state) {
    static const rlim_t limits[] = {4000, 20000, 20001, 150000};
    struct rlimit was, now;
    char log[256], said[4000];
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, SIG_IGN);
    snprintf(log, sizeof log, "%s/stderr", dir);
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
        enum { N = 5000 };
        int err_fd = dup(2), log_fd = open(log, O_RDWR | O_CREAT | O_TRUNC, 0600);
        const char *first;
        ssize_t n_said;
        json_t *all;
        trace *t;
        assert_true(err_fd >= 0 && log_fd >= 0);
        now = was;
        now.rlim_cur = limits[k];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
        assert_int_equal(dup2(log_fd, 2), 2);
        t = begin(0);
        for (uint64_t i = 0; i < N; i++) trace_request(t, "decode", "some-id", i, i, i + 1, "n", i);
        usleep(150000); /* the writer fails */
        for (uint64_t i = 0; i < N; i++) trace_request(t, "decode", "some-id", i, i, i + 1, "n", i);
        trace_close(t);
        dup2(err_fd, 2);
        close(err_fd);
        setrlimit(RLIMIT_FSIZE, &was);
        all = parse();
        assert_true((rlim_t)size_of_file() <= limits[k]);
        assert_true(flag(last(all), "write_failed"));
        assert_int_equal(arg(last(all), "records"), count(all, "X"));
        assert_int_equal(arg(last(all), "records") + arg(last(all), "omitted") + arg(last(all), "dropped"), 2 * N);
        json_decref(all);
        n_said = pread(log_fd, said, sizeof said - 1, 0);
        assert_true(n_said > 0);
        said[n_said] = 0;
        first = strstr(said, "cannot write any more");
        assert_non_null(first);
        assert_null(strstr(first + 1, "cannot write any more")); /* once */
        close(log_fd);
    }
    unlink(log);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(hd_mem_live(), 0);
}

static void every_allocation_may_fail(void **state) {
    hd_status st;
    long n = 0;
    (void)state;
    do {
        trace *t;
        hd_err err = {0};
        hd_mem_fail_after(n++);
        st = trace_open(&t, path, 0, &err);
        hd_mem_fail_after(-1);
        assert_true(st == HD_OK ? t != NULL : st == HD_NOMEM && !t && err.code == HD_NOMEM);
        trace_close(t);
        assert_int_equal(hd_mem_live(), 0);
    } while (st != HD_OK);
    assert_true(n > 3);
}

/* ---- threads ---- */

enum { THREADS = 4, EACH = 3000 };
typedef struct {
    trace *t;
    uint32_t index;
} teller;

static void *tell(void *ctx) {
    teller *me = ctx;
    char id[32];
    snprintf(id, sizeof id, "request-%u", me->index);
    for (uint64_t i = 0; i < EACH; i++) {
        if (i % 2)
            trace_span(me->t, "span", me->index, i, i + 5, "n", i, "n again", i ^ me->index);
        else
            trace_request(me->t, "request", id, me->index, i, i + 5, "n", i);
        if (i % 64 == 0) usleep(100);
    }
    return NULL;
}

static void records_of_threads_stay_whole(void **state) {
    trace *t = begin(0);
    teller who[THREADS];
    pthread_t threads[THREADS];
    long long before[2][THREADS], kept = 0;
    json_t *all, *e;
    size_t i;
    (void)state;
    for (uint32_t k = 0; k < THREADS; k++) {
        who[k] = (teller){.t = t, .index = k};
        before[0][k] = before[1][k] = -1;
        assert_int_equal(pthread_create(&threads[k], NULL, tell, &who[k]), 0);
    }
    for (int k = 0; k < THREADS; k++) pthread_join(threads[k], NULL);
    trace_close(t);
    all = parse();
    json_array_foreach(all, i, e) {
        long long n, k;
        bool span = !strcmp(text(e, "name"), "span");
        if (strcmp(text(e, "ph"), "X")) continue;
        kept++;
        n = arg(e, "n");
        assert_int_equal(number(e, "ts"), n);
        assert_int_equal(number(e, "dur"), 5);
        assert_int_equal(n % 2, span);
        if (span) {
            k = number(e, "tid");
            assert_int_equal(arg(e, "n again"), n ^ k);
        } else {
            assert_int_equal(sscanf(text(json_object_get(e, "args"), "id"), "request-%lld", &k), 1);
        }
        assert_true(k >= 0 && k < THREADS && n > before[span][k]);
        before[span][k] = n;
    }
    assert_int_equal(arg(last(all), "records"), kept);
    assert_int_equal(kept + arg(last(all), "dropped"), THREADS * EACH);
    json_decref(all);
    assert_int_equal(hd_mem_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_requests_and_marks_read_back),
        cmocka_unit_test(an_empty_trace_is_a_file_too),
        cmocka_unit_test(no_trace_does_nothing),
        cmocka_unit_test(odd_ids_and_numbers_stay_json),
        cmocka_unit_test(the_file_is_whole_while_it_is_written),
        cmocka_unit_test(an_existing_file_is_replaced),
        cmocka_unit_test(the_file_keeps_its_bound),
        cmocka_unit_test(a_full_ring_drops_and_counts),
        cmocka_unit_test(what_cannot_be_a_trace_is_refused),
        cmocka_unit_test(a_full_disk_is_heard_of_at_once),
        cmocka_unit_test(a_write_that_fails_later_ends_the_file_well),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(records_of_threads_stay_whole),
    };
    return cmocka_run_group_tests_name("trace", tests, make_dir, drop_dir);
}
