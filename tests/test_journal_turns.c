/* test_journal_turns.c - conversations and names in the request log: what goes on from what, who keeps it, who has a name.
 * A request is "c<number>", its turn "<number>." */
#include "base/log.h"
#include "state/journal.h"
#include "util/memvfs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[200];

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/heddle-turns-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
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

static void exec_sql(const char *sql) {
    char path[300], *msg = NULL;
    sqlite3 *c;
    snprintf(path, sizeof path, "%s/requests.db", dir);
    assert_int_equal(sqlite3_open(path, &c), SQLITE_OK);
    if (sqlite3_exec(c, sql, NULL, NULL, &msg)) fail_msg("%s: %s", sql, msg);
    assert_int_equal(sqlite3_close(c), SQLITE_OK);
}

static journal_request request(int n, char id[16], char turn[16], const char *name, uint64_t after) {
    journal_request r = {.id = id, .n_choices = 1, .record = "r", .n_record = 1, .name = name, .turn = turn, .after = after};
    snprintf(id, 16, "c%d", n);
    r.n_turn = (size_t)snprintf(turn, 16, "%d.", n);
    memset(r.ns, 7, sizeof r.ns);
    return r;
}

static hd_status try_accept(journal *j, int n, const char *name, uint64_t after, uint64_t *order, hd_err *err) {
    char id[16], turn[16];
    journal_request r = request(n, id, turn, name, after);
    journal_accepted a;
    hd_status st = journal_accept(j, &r, &a, err);
    *order = a.order;
    return st;
}

static uint64_t accept(journal *j, int n, const char *name, uint64_t after) {
    hd_err err = {0};
    uint64_t order;
    if (try_accept(j, n, name, after, &order, &err)) fail_msg("journal_accept: %s", err.msg);
    return order;
}

static void finish(journal *j, uint64_t order, journal_state state) {
    assert_int_equal(journal_finish(j, order, state, 1000 + (int64_t)order, "e", 1, NULL), HD_OK);
    assert_int_equal(journal_flush(j, NULL), HD_OK);
}

static uint64_t done(journal *j, int n, const char *name, uint64_t after) {
    uint64_t order = accept(j, n, name, after);
    finish(j, order, JOURNAL_FINISHED);
    return order;
}

static void drop(journal *j, int n) {
    char id[16];
    hd_err err = {0};
    snprintf(id, sizeof id, "c%d", n);
    if (journal_delete(j, id, &err)) fail_msg("journal_delete: %s", err.msg);
}

static bool gather(void *ctx, const void *data, size_t n) {
    strncat(ctx, data, n);
    return true;
}

/* Its turns, one behind the other. */
static const char *turns(journal *j, uint64_t order) {
    static char text[200];
    hd_err err = {0};
    uint32_t n;
    uint64_t bytes;
    text[0] = 0;
    if (journal_turns(j, order, gather, text, &err)) fail_msg("journal_turns: %s", err.msg);
    assert_int_equal(journal_conversation(j, order, &n, &bytes, &err), HD_OK);
    assert_int_equal(bytes, strlen(text));
    for (const char *p = text; (p = strchr(p, '.')); p++) n--;
    assert_int_equal(n, 0);
    return text;
}

/* Who has the name of namespace `ns`; "": nobody. */
static const char *holder(journal *j, int ns, const char *name) {
    static char id[JOURNAL_ID_BYTES + 1];
    uint8_t of[JOURNAL_DIGEST];
    hd_status st;
    memset(of, ns, sizeof of);
    st = journal_named(j, of, name, id, NULL);
    assert_true(st == HD_OK || st == HD_NOTFOUND);
    return st ? "" : id;
}

static long rows(const char *table) {
    char path[300], sql[100];
    sqlite3 *c;
    sqlite3_stmt *s;
    long n;
    snprintf(path, sizeof path, "%s/requests.db", dir);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", table);
    assert_int_equal(sqlite3_open(path, &c), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(c, sql, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    n = (long)sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(c);
    return n;
}

/* A tree: 1 - 2 - 3 and 2 - 4; 5 alone.  Whatever is deleted, the others keep what was before them, and nothing more. */
static void test_tree(void **state) {
    journal *j = begin(NULL);
    uint64_t one = done(j, 1, NULL, 0), two = done(j, 2, NULL, one), three = done(j, 3, NULL, two), four = done(j, 4, NULL, two),
             five = done(j, 5, NULL, 0), six;
    uint32_t n;
    uint64_t bytes;
    hd_err err = {0};
    (void)state;
    assert_string_equal(turns(j, three), "1.2.3.");
    assert_string_equal(turns(j, four), "1.2.4.");
    drop(j, 1);
    drop(j, 2);
    assert_string_equal(turns(j, three), "1.2.3.");
    assert_int_equal(try_accept(j, 9, NULL, two, &six, &err), HD_NOTFOUND); /* its turn is there, it is not */
    assert_int_equal(rows("turn"), 5);
    six = done(j, 6, NULL, three);
    end(j);
    j = begin(NULL);
    drop(j, 4);
    assert_int_equal(rows("turn"), 5);
    assert_string_equal(turns(j, six), "1.2.3.6.");
    drop(j, 3);
    assert_string_equal(turns(j, six), "1.2.3.6.");
    drop(j, 6);
    assert_int_equal(rows("turn"), 1);
    assert_string_equal(turns(j, five), "5.");
    assert_int_equal(journal_conversation(j, six, &n, &bytes, &err), HD_NOTFOUND);
    assert_int_equal(journal_turns(j, six, gather, NULL, &err), HD_NOTFOUND);
    end(j);
}

/* The one before may be what has to go to make room for the next: its turn stays. */
static void test_made_room_for(void **state) {
    journal *j = begin(&(journal_config){.max_requests = 1});
    uint64_t last = done(j, 1, "n", 0);
    journal_stat s;
    (void)state;
    for (int i = 2; i < 6; i++) last = done(j, i, NULL, last);
    assert_string_equal(turns(j, last), "1.2.3.4.5.");
    assert_string_equal(holder(j, 7, "n"), "");
    journal_stats(j, &s);
    assert_int_equal(s.requests, 1);
    assert_int_equal(s.evicted, 4);
    assert_int_equal(journal_sweep(j, INT64_MAX, NULL, NULL), HD_OK);
    assert_int_equal(rows("turn"), 0);
    assert_int_equal(rows("label"), 0);
    end(j);
}

static void test_depth(void **state) {
    journal *j = begin(NULL);
    uint64_t last = 0, no, bytes;
    uint32_t n;
    hd_err err = {0};
    (void)state;
    for (int i = 0; i < JOURNAL_TURNS; i++) last = accept(j, i, NULL, last);
    assert_int_equal(try_accept(j, 5000, NULL, last, &no, &err), HD_INVALID);
    assert_string_equal(err.field, "after");
    assert_int_equal(journal_conversation(j, last, &n, &bytes, &err), HD_OK);
    assert_int_equal(n, JOURNAL_TURNS);
    for (uint64_t o = last; o; o--) assert_int_equal(journal_finish(j, o, JOURNAL_FINISHED, (int64_t)o, NULL, 0, NULL), HD_OK);
    assert_int_equal(journal_flush(j, NULL), HD_OK);
    for (int i = 0; i + 1 < JOURNAL_TURNS; i++) drop(j, i);
    assert_int_equal(rows("turn"), JOURNAL_TURNS);
    drop(j, JOURNAL_TURNS - 1); /* with it all of them */
    assert_int_equal(rows("turn"), 0);
    end(j);
}

static void test_bytes(void **state) {
    char id[16], turn[16], *big = calloc(1, JOURNAL_CONVERSATION_BYTES / 2);
    journal *j = begin(NULL);
    journal_request r = request(1, id, turn, NULL, 0);
    journal_accepted a;
    hd_err err = {0};
    (void)state;
    r.turn = big;
    r.n_turn = JOURNAL_CONVERSATION_BYTES / 2;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_OK);
    r = request(2, id, turn, NULL, a.order);
    r.turn = big;
    r.n_turn = JOURNAL_CONVERSATION_BYTES / 2;
    assert_int_equal(journal_accept(j, &r, &a, &err), HD_OK);
    assert_int_equal(try_accept(j, 3, NULL, a.order, &a.order, &err), HD_INVALID);
    assert_string_equal(err.field, "after");
    free(big);
    end(j);
}

static bool list(void *ctx, const char *name, const char *id, int64_t created) {
    char *text = ctx, one[100];
    assert_int_equal(created, 0);
    snprintf(one, sizeof one, "%s=%s ", name, id);
    strcat(text, one);
    return strlen(text) < 30;
}

/* A name is taken at the end, by the last accepted, and goes with its holder. */
static void test_names(void **state) {
    char all[100] = "", long_name[JOURNAL_NAME_BYTES + 2];
    uint8_t ns[JOURNAL_DIGEST];
    journal *j = begin(NULL);
    uint64_t one = accept(j, 1, "main", 0), two = accept(j, 2, "main", 0), three = accept(j, 3, "main", 0), other;
    hd_err err = {0};
    (void)state;
    assert_string_equal(holder(j, 7, "main"), "");
    finish(j, two, JOURNAL_FINISHED);
    assert_string_equal(holder(j, 7, "main"), "c2");
    finish(j, one, JOURNAL_FINISHED); /* it was accepted before */
    assert_string_equal(holder(j, 7, "main"), "c2");
    finish(j, three, JOURNAL_FAILED);
    assert_string_equal(holder(j, 7, "main"), "c2");
    end(j);
    j = begin(NULL);
    other = accept(j, 4, "main", 0);
    end(j);
    j = begin(NULL); /* it is running still, and wants it still */
    assert_string_equal(holder(j, 7, "main"), "c2");
    finish(j, other, JOURNAL_FINISHED);
    assert_string_equal(holder(j, 7, "main"), "c4");
    assert_string_equal(holder(j, 8, "main"), "");
    drop(j, 2); /* it had it once */
    assert_string_equal(holder(j, 7, "main"), "c4");
    drop(j, 4);
    assert_string_equal(holder(j, 7, "main"), "");
    assert_string_equal(holder(j, 7, ""), "");
    assert_int_equal(rows("label"), 1); /* of the failed one */
    done(j, 5, "b", 0), done(j, 6, "a", 0), done(j, 7, "c", 0), done(j, 8, "d", 0), done(j, 9, "e", 0), done(j, 10, "f", 0);
    memset(ns, 7, sizeof ns);
    assert_int_equal(journal_names(j, ns, "", list, all, &err), HD_OK);
    assert_string_equal(all, "a=c6 b=c5 c=c7 d=c8 e=c9 f=c10 ");
    all[0] = 0;
    assert_int_equal(journal_names(j, ns, "d", list, all, &err), HD_OK);
    assert_string_equal(all, "e=c9 f=c10 ");
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    assert_int_equal(try_accept(j, 11, long_name, 0, &other, &err), HD_INVALID);
    assert_int_equal(try_accept(j, 11, "", 0, &other, &err), HD_INVALID);
    done(j, 11, long_name + 1, 0);
    assert_string_equal(holder(j, 7, long_name + 1), "c11");
    end(j);
}

/* Half a response gets no name: what it loses is its durability, and the name with it. */
static void test_lost(void **state) {
    journal *j = begin(&(journal_config){.queue_bytes = JOURNAL_MIN_QUEUE_BYTES});
    char big[JOURNAL_MIN_QUEUE_BYTES] = "";
    journal_event ev = {.token = 1, .text = big, .n_text = sizeof big};
    uint64_t order = accept(j, 1, "main", 0);
    (void)state;
    assert_int_equal(journal_append(j, order, 0, 0, &ev, 1, NULL), HD_FULL);
    finish(j, order, JOURNAL_FINISHED);
    assert_string_equal(holder(j, 7, "main"), "");
    end(j);
}

/* A log of schema 1 is brought up: what it has stays, and is of no conversation. */
static void test_schema_1(void **state) {
    journal *j = begin(NULL);
    uint64_t old = done(j, 1, NULL, 0), no, bytes;
    uint32_t n;
    hd_err err = {0};
    (void)state;
    end(j);
    exec_sql("DROP TABLE turn; DROP TABLE label; PRAGMA user_version=1");
    j = begin(NULL);
    assert_int_equal(journal_conversation(j, old, &n, &bytes, &err), HD_NOTFOUND);
    assert_int_equal(try_accept(j, 2, NULL, old, &no, &err), HD_NOTFOUND);
    assert_string_equal(turns(j, done(j, 3, "x", 0)), "3.");
    drop(j, 1);
    assert_string_equal(holder(j, 7, "x"), "c3");
    end(j);
}

/* What was changed under SQLite's eyes is told, not used. */
static void test_damage(void **state) {
    journal *j = begin(NULL);
    uint64_t one = done(j, 1, "main", 0), two = done(j, 2, NULL, one), four;
    char id[JOURNAL_ID_BYTES + 1], text[100] = "";
    uint8_t ns[JOURNAL_DIGEST];
    hd_err err = {0};
    (void)state;
    memset(ns, 7, sizeof ns);
    end(j);
    exec_sql("UPDATE turn SET data=x'322f' WHERE ord=2; UPDATE label SET ord=2");
    j = begin(NULL);
    assert_int_equal(journal_turns(j, two, gather, text, &err), HD_FAILED);
    assert_int_equal(journal_named(j, ns, "main", id, &err), HD_FAILED);
    four = done(j, 4, "main", 0); /* it takes the name from the damaged row */
    assert_string_equal(holder(j, 7, "main"), "c4");
    end(j);
    exec_sql("DELETE FROM turn WHERE ord=1");
    j = begin(NULL);
    assert_int_equal(journal_turns(j, two, gather, text, &err), HD_FAILED);
    assert_string_equal(turns(j, four), "4.");
    end(j);
    exec_sql("UPDATE turn SET prev=2 WHERE ord=2"); /* a ring */
    j = begin(NULL);
    assert_int_equal(journal_turns(j, two, gather, text, &err), HD_FAILED);
    drop(j, 2);
    end(j);
}

/* What was accepted or ended is there after a power cut, its turn and name with it; what was not is not, in any part. */
static void test_power_cuts(void **state) {
    memvfs *disk = memvfs_new("turns");
    journal_config cfg = {.vfs = "turns", .gather_ms = 1};
    (void)state;
    for (int cut = 1; cut < 120; cut++) {
        int n = 0, ended = 0;
        uint64_t last = 0, order;
        journal *j;
        memvfs_clear(disk);
        j = begin(&cfg);
        if (cut % 2) memvfs_cut_at_sync(disk, cut / 8);
        else memvfs_cut_at_write(disk, cut);
        for (int i = 1; i <= 6; i++) {
            if (try_accept(j, i, "main", last, &order, NULL)) break;
            n = i;
            if (journal_finish(j, order, JOURNAL_FINISHED, i, NULL, 0, NULL) || journal_flush(j, NULL)) break;
            ended = i;
            last = order;
        }
        journal_close(j, 10000, NULL);
        memvfs_cut_at_write(disk, -1);
        memvfs_reboot(disk, (uint64_t)cut);
        j = begin(&cfg);
        if (n) { /* orders count from 1: what is accepted last may have come through though nobody was told */
            char want[20] = ""; /* n is at most 6 */
            for (int i = 1; i <= n; i++) want[2 * i - 2] = (char)('0' + i), want[2 * i - 1] = '.';
            assert_string_equal(turns(j, (uint64_t)n), want);
            const char *has = holder(j, 7, "main");
            journal_entry *e;
            if (ended) assert_true(*has && atoi(has + 1) >= ended);
            if (*has) {
                assert_int_equal(journal_find(j, has, &e, NULL), HD_OK);
                assert_int_equal(e->state, JOURNAL_FINISHED);
                journal_entry_free(e);
            }
        }
        end(j);
    }
    memvfs_free(disk);
}

#define T(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(test_tree), T(test_made_room_for), T(test_depth), T(test_bytes), T(test_names), T(test_lost), T(test_schema_1), T(test_damage), T(test_power_cuts),
    };
    hd_log_set(HD_LOG_ERROR); /* power cuts are what this is about */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
