/* test_journal_crash.c (slow-test) - the request log after power cuts and kill -9, and out of files that were changed.
 *
 * Power: on tests/util/memvfs.c, at each sync and at many writes, with what was not synced dropped, torn or scrambled.
 * What must hold when the log is opened again:
 *   - each request that journal_accept confirmed is there, with its contents, and running or ended as it was told to end
 *   - events of each choice are a gapless prefix of what was appended, and at least what a flush confirmed
 *   - what a flush confirmed as ended has ended
 *   - nothing is there twice: a repeated key finds the one request
 *   - the log was not damaged
 * $HEDDLE_CRASH_CYCLES: power cuts, 2,000 by default.  slow-test
 * A hot rollback journal that came back from the dead was found this way: journal_db.c, EXTRA. */
#include "base/log.h"
#include "state/journal.h"
#include "util/memvfs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REQUESTS = 12, CHOICES = 2, CYCLES_PER_DISK = 5, KILLS = 40, MUTATIONS = 1000 };

static char dir[200];
static memvfs *vfs;

static int make_dir(void **state) {
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(dir, sizeof dir, "%.150s/heddle-journal-XXXXXX", tmp && *tmp ? tmp : "/tmp");
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

static uint64_t roll(uint64_t *s) { /* splitmix64 */
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* What the world knows of one request; for kill -9 it lies in shared memory. */
typedef struct {
    bool confirmed, tried;           /* accepted; accept was called */
    bool end_posted, end_confirmed, deleted, delete_tried;
    journal_state end;
    uint64_t order;
    uint64_t appended[CHOICES], flushed[CHOICES];
} fact;

/* Request number k, k < 2^16: contents are a function of k. */
static void make_request(int k, journal_request *r, char id[16], char key[16], int32_t prompt[600], char record[300]) {
    snprintf(id, 16, "id-%d", k);
    snprintf(key, 16, "key-%d", k);
    *r = (journal_request){.id = id, .key = k % 3 ? key : NULL, .n_key = k % 3 ? strlen(key) : 0, .seed = (uint64_t)k * 77,
                           .n_choices = CHOICES, .created = k, .record = record, .n_record = (size_t)k % 300, .prompt = prompt,
                           .n_prompt = (size_t)(k * 37) % 600};
    if (k % 4) r->turn = record, r->n_turn = (size_t)k % 50; /* of a conversation of its own */
    if (k % 5 == 0) r->name = "name";
    for (int i = 0; i < 600; i++) prompt[i] = k * 1000 + i;
    memset(record, k & 0x7f, 300);
    memset(r->ns, 1, sizeof r->ns);
    memset(r->body, k & 0xff, sizeof r->body);
    memset(r->identity, 3, sizeof r->identity);
}

static journal_event event_of(int k, uint32_t choice, uint64_t i, char text[40]) {
    uint64_t s = ((uint64_t)k << 32) + choice * 1000003u + i, h = roll(&s);
    int n = snprintf(text, 40, "%.*s%llx", (int)(h % 16), "................", (unsigned long long)h);
    return (journal_event){(int32_t)(h % 100000), text, (size_t)n, h & 1 ? text : NULL, h & 1 ? (size_t)n / 2 : 0};
}

typedef struct {
    int k;
    uint32_t choice;
    uint64_t next;
    bool wrong;
} reader;

static bool check_event(void *ctx, uint64_t index, const journal_event *ev) {
    reader *r = ctx;
    char text[40];
    journal_event want = event_of(r->k, r->choice, index, text);
    r->wrong |= index != r->next || ev->token != want.token || ev->n_text != want.n_text ||
                memcmp(ev->text, want.text, want.n_text) || ev->n_extra != want.n_extra ||
                (want.n_extra && memcmp(ev->extra, want.extra, want.n_extra));
    r->next++;
    return true;
}

#define MUST(e)                                                                                                        \
    do {                                                                                                               \
        if (!(e)) fail_msg("seed %llu, request %d: %s", (unsigned long long)seed, k, #e);                                \
    } while (0)

/* The log against the facts; the facts are brought to what is on disk, so that a later cycle goes on from there. */
static void check(journal *j, fact *facts, int n, uint64_t seed) {
    journal_stat s;
    uint64_t there = 0;
    int k = -1;
    journal_stats(j, &s);
    MUST(s.moved_aside == 0 && s.damaged == 0);
    for (k = 0; k < n; k++) {
        fact *f = &facts[k];
        journal_request r;
        journal_entry *e;
        char id[16], key[16], record[300];
        int32_t prompt[600];
        hd_status st;
        make_request(k, &r, id, key, prompt, record);
        st = journal_find(j, id, &e, NULL);
        MUST(st == HD_OK || st == HD_NOTFOUND);
        MUST(st == HD_OK || !f->confirmed || f->deleted || f->delete_tried);
        MUST(st == HD_NOTFOUND || !f->deleted);
        MUST(st == HD_NOTFOUND || f->tried);
        if (st == HD_NOTFOUND) {
            if (f->delete_tried) f->deleted = true;
            if (!f->deleted) memset(f, 0, sizeof *f);
            continue;
        }
        there++;
        MUST(!f->confirmed || e->order == f->order);
        MUST(e->request.seed == r.seed && e->request.created == r.created && e->request.n_choices == CHOICES);
        MUST(e->request.n_record == r.n_record && !memcmp(e->request.record, r.record, r.n_record));
        MUST(e->request.n_prompt == r.n_prompt && !memcmp(e->request.prompt, r.prompt, r.n_prompt * sizeof *r.prompt));
        MUST(!memcmp(e->request.body, r.body, sizeof r.body) && !memcmp(e->request.ns, r.ns, sizeof r.ns));
        MUST(e->request.n_key == r.n_key && (!r.key || !memcmp(e->request.key, r.key, r.n_key)));
        MUST(e->state == JOURNAL_RUNNING || (f->end_posted && e->state == f->end));
        MUST(e->state != JOURNAL_RUNNING || !f->end_confirmed);
        for (uint32_t c = 0; c < CHOICES; c++) {
            reader rd = {k, c, 0, false};
            MUST(journal_read_events(j, e->order, c, 0, check_event, &rd, NULL) == HD_OK);
            MUST(!rd.wrong && rd.next == e->published[c]);
            MUST(rd.next <= f->appended[c]);
            MUST(rd.next >= f->flushed[c]);
            MUST(e->state == JOURNAL_RUNNING || e->lost || rd.next == f->appended[c]);
            f->appended[c] = f->flushed[c] = rd.next;
        }
        f->confirmed = true;
        f->order = e->order;
        f->end_posted = f->end_confirmed = e->state != JOURNAL_RUNNING;
        f->delete_tried = false;
        if (r.key) {
            journal_accepted a;
            r.id = "another";
            MUST(journal_accept(j, &r, &a, NULL) == HD_OK && a.outcome == JOURNAL_SAME && a.order == e->order);
        }
        journal_entry_free(e);
    }
    k = -1;
    MUST(s.requests == there);
}

/* One thing that servers do.  Facts are changed before what may or may not happen, and after what was confirmed. */
static void act(journal *j, fact *facts, int n, uint64_t *s) {
    int k = (int)(roll(s) % (uint64_t)n);
    fact *f = &facts[k];
    unsigned what = roll(s) % 16;
    if (f->deleted) return;
    if (!f->confirmed) {
        journal_request r;
        journal_accepted a;
        char id[16], key[16], record[300];
        int32_t prompt[600];
        make_request(k, &r, id, key, prompt, record);
        f->tried = true;
        if (journal_accept(j, &r, &a, NULL)) return;
        f->order = a.order;
        f->confirmed = true;
    } else if (f->end_confirmed && what == 0) {
        char id[16];
        snprintf(id, sizeof id, "id-%d", k);
        f->delete_tried = true;
        if (journal_delete(j, id, NULL) == HD_OK) f->deleted = true;
    } else if (f->end_posted) {
        return;
    } else if (what < 11) {
        uint32_t c = roll(s) % CHOICES;
        journal_event ev[8];
        char text[8][40];
        size_t m = roll(s) % 9;
        for (size_t i = 0; i < m; i++) ev[i] = event_of(k, c, f->appended[c] + i, text[i]);
        f->appended[c] += m;
        if (journal_append(j, f->order, c, f->appended[c] - m, ev, m, NULL)) f->appended[c] -= m;
    } else if (what < 14) {
        uint64_t before[REQUESTS][CHOICES];
        bool ended[REQUESTS];
        journal_stat st;
        for (int i = 0; i < n; i++) {
            memcpy(before[i], facts[i].appended, sizeof before[i]);
            ended[i] = facts[i].end_posted;
        }
        if (journal_flush(j, NULL)) return;
        journal_stats(j, &st);
        if (st.lost_write + st.lost_space + st.lost_queue) return;
        for (int i = 0; i < n; i++) {
            memcpy(facts[i].flushed, before[i], sizeof before[i]);
            facts[i].end_confirmed = ended[i];
        }
    } else {
        f->end = JOURNAL_FINISHED + (journal_state)(roll(s) % 3);
        f->end_posted = true;
        if (journal_finish(j, f->order, f->end, 5, "end", 3, NULL)) f->end_posted = false;
    }
}

static void test_power_cuts(void **state) {
    const char *env = getenv("HEDDLE_CRASH_CYCLES");
    long cycles = env ? atol(env) : 2000, cut = 0;
    fact facts[REQUESTS];
    (void)state;
    for (long i = 0; cut < cycles && i < 4 * cycles; i++) {
        uint64_t seed = (uint64_t)i, s = seed * 1000003 + 17;
        journal_config c = {.vfs = "mem", .gather_ms = 1, .append_every = 1 + roll(&s) % 40};
        journal *j;
        hd_err err = {0};
        int n_acts = 5 + (int)(roll(&s) % 80);
        if (i % CYCLES_PER_DISK == 0) {
            memvfs_clear(vfs);
            memset(facts, 0, sizeof facts);
        }
        /* In turn each sync of what follows, opening and closing among them; every third time a write instead. */
        if (i % 3) memvfs_cut_at_sync(vfs, (i / CYCLES_PER_DISK) % 20);
        else memvfs_cut_at_write(vfs, (long)(roll(&s) % 150));
        if (!journal_open(&j, dir, &c, &err)) {
            for (int k = 0; k < n_acts && !memvfs_is_cut(vfs); k++) act(j, facts, REQUESTS, &s);
            (void)!journal_close(j, 20000, &err);
        } else if (!memvfs_is_cut(vfs)) {
            fail_msg("seed %ld: %s", i, err.msg);
        }
        cut += memvfs_is_cut(vfs);
        memvfs_reboot(vfs, roll(&s));
        if (journal_open(&j, dir, &c, &err)) fail_msg("seed %ld: after the cut: %s", i, err.msg);
        check(j, facts, REQUESTS, seed);
        if (journal_close(j, 20000, &err)) fail_msg("seed %ld: closing: %s", i, err.msg);
    }
    print_message("%ld power cuts\n", cut);
    assert_int_equal(cut, cycles);
}

static unsigned char *slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    unsigned char *p;
    long size;
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size = ftell(f);
    rewind(f);
    p = malloc((size_t)size);
    assert_non_null(p);
    *n = fread(p, 1, (size_t)size, f);
    fclose(f);
    return p;
}

/* Files that somebody or something changed: opened, moved aside or refused; whatever is answered is right. */
static void test_mutations(void **state) {
    fact facts[REQUESTS] = {{0}};
    unsigned char *good, *bad;
    char path[300], aside[320];
    size_t n;
    uint64_t s = 7;
    int moved = 0, damaged = 0;
    journal *j;
    (void)state;
    snprintf(path, sizeof path, "%s/requests.db", dir);
    snprintf(aside, sizeof aside, "%s.corrupt-1", path);
    assert_int_equal(journal_open(&j, dir, NULL, NULL), HD_OK);
    for (int i = 0; i < 600; i++) act(j, facts, REQUESTS, &s);
    assert_int_equal(journal_close(j, 20000, NULL), HD_OK);
    good = slurp(path, &n);
    bad = malloc(n);
    assert_non_null(bad);
    for (int i = 0; i < MUTATIONS; i++) {
        size_t size = n, page = roll(&s) % (n / 4096) * 4096, other = roll(&s) % (n / 4096) * 4096;
        uint64_t seed = (uint64_t)i;
        hd_err err = {0};
        journal_stat st;
        FILE *f;
        memcpy(bad, good, n);
        switch (i % 5) {
        case 0: bad[roll(&s) % n] ^= (unsigned char)(1u << roll(&s) % 8); break;
        case 1:
            for (int k = 0; k < 20; k++) bad[page + roll(&s) % 4096] = (unsigned char)roll(&s);
            break;
        case 2: memset(bad + page, 0, 4096); break;
        case 3: memcpy(bad + page, good + other, 4096); break;
        case 4: size = roll(&s) % n; break;
        }
        f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bad, 1, size, f), size);
        fclose(f);
        if (journal_open(&j, dir, NULL, &err)) {
            if (err.code != HD_UNSUPPORTED) fail_msg("%d: %s", err.code, err.msg); /* its schema version was hit */
            continue;
        }
        journal_stats(j, &st);
        moved += st.moved_aside != 0;
        for (int k = 0; k < REQUESTS && !st.moved_aside; k++) {
            journal_request r;
            journal_entry *e;
            char id[16], key[16], record[300];
            int32_t prompt[600];
            make_request(k, &r, id, key, prompt, record);
            if (journal_find(j, id, &e, NULL)) continue;
            MUST(facts[k].confirmed && e->order == facts[k].order && e->request.seed == r.seed);
            MUST(e->request.n_record == r.n_record && !memcmp(e->request.record, r.record, r.n_record));
            MUST(e->request.n_prompt == r.n_prompt && !memcmp(e->request.prompt, r.prompt, r.n_prompt * sizeof *r.prompt));
            MUST(e->state == (facts[k].end_posted ? facts[k].end : JOURNAL_RUNNING));
            for (uint32_t c = 0; c < CHOICES; c++) {
                reader rd = {k, c, 0, false};
                hd_status got = journal_read_events(j, e->order, c, 0, check_event, &rd, NULL);
                MUST(!rd.wrong && rd.next <= facts[k].appended[c]);
                MUST(got || e->state == JOURNAL_RUNNING || rd.next == facts[k].appended[c]);
            }
            journal_entry_free(e);
        }
        journal_stats(j, &st);
        damaged += st.damaged != 0;
        (void)!journal_close(j, 20000, NULL);
        unlink(aside);
    }
    free(good);
    free(bad);
    print_message("of %d mutated logs %d were moved aside, %d had rows that were seen to be damaged\n", MUTATIONS, moved, damaged);
    assert_true(moved > MUTATIONS / 10 && damaged > MUTATIONS / 100);
}

/* A child works on a real directory and is killed at a random moment; what it was told lies in shared memory. */
static void test_kill(void **state) {
    fact *facts = mmap(NULL, sizeof(fact) * REQUESTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t s = 99, acts = 0;
    (void)state;
    assert_true(facts != MAP_FAILED);
    for (int i = 0; i < KILLS; i++) {
        journal *j;
        hd_err err = {0};
        uint64_t child_seed = roll(&s);
        int status;
        pid_t child;
        if (i % CYCLES_PER_DISK == 0) {
            drop_dir(NULL);
            assert_int_equal(make_dir(NULL), 0);
            memset(facts, 0, sizeof(fact) * REQUESTS);
        }
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            uint64_t t = child_seed;
            if (journal_open(&j, dir, &(journal_config){.gather_ms = 2, .append_every = 4}, NULL)) _exit(1);
            for (;;) {
                act(j, facts, REQUESTS, &t);
                if (roll(&t) % 8 == 0) usleep(1000);
            }
        }
        usleep(5000 + (useconds_t)(roll(&s) % 150000));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status)) fail_msg("the child ended by itself: %#x", (unsigned)status);
        if (journal_open(&j, dir, NULL, &err)) fail_msg("cycle %d: %s", i, err.msg);
        check(j, facts, REQUESTS, (uint64_t)i);
        for (int k = 0; k < REQUESTS; k++) acts += facts[k].confirmed;
        if (journal_close(j, 20000, &err)) fail_msg("cycle %d: %s", i, err.msg);
    }
    munmap(facts, sizeof(fact) * REQUESTS);
    assert_true(acts > KILLS); /* it was about something */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_power_cuts, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_mutations, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_kill, make_dir, drop_dir),
    };
    int rc;
    hd_log_set(HD_LOG_ERROR); /* failing writes are what this is about */
    vfs = memvfs_new("mem");
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    memvfs_free(vfs);
    return rc;
}
