/* test_store.c - the disk tier: what comes back, what is refused, what has to go, what a key file does, who shares. */
#include "base/mem.h"
#include "state/store_int.h"
#include "util/store_pages.h"
#include "util/vfs_sim.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/heddle-store-XXXXXX";
static vfs_sim sim;

static store *open_sim(const store_opts *o) {
    store_opts opts = o ? *o : (store_opts){0};
    hd_err err = {0};
    store *s;
    opts.dir = "sim";
    opts.fs = &sim.table;
    if (store_open(&s, &opts, &err)) fail_msg("%s", err.msg);
    return s;
}

static int sim_up(void **state) {
    (void)state;
    vfs_sim_init(&sim, 7);
    return 0;
}

static int sim_down(void **state) {
    (void)state;
    vfs_sim_deinit(&sim);
    return hd_mem_live() != 0;
}

static store_counts counts(store *s) {
    store_counts n;
    store_stats(s, &n);
    return n;
}

static void flush(store *s) {
    hd_err err = {0};
    if (store_flush(s, 20000, &err)) fail_msg("%s", err.msg);
}

/* ---- keys: expected values are hashlib's (tests/oracle/page_keys.py) ---- */

static void expect_hex(const pagekey *k, const char *want) {
    char have[65];
    for (int i = 0; i < 32; i++) sprintf(have + 2 * i, "%02x", k->b[i]);
    assert_string_equal(have, want);
}

static void keys_are_a_chain_of_digests(void **state) {
    uint8_t identity[32];
    int32_t a[] = {1, 2, -3}, b[100];
    pagekey k;
    (void)state;
    for (int i = 0; i < 32; i++) identity[i] = (uint8_t)i;
    for (int i = 0; i < 100; i++) b[i] = i;
    assert_true(pagekey_root(&k, identity));
    expect_hex(&k, "6d13f98dc61b4846285d1b555131f69c535bfa3693a932bcbf6fac638f069c26");
    assert_true(pagekey_next(&k, &k, a, 3));
    expect_hex(&k, "f3651145121f619ffb3290849163c37a3ef87dbd227dee8df969461e39c01c97");
    assert_true(pagekey_next(&k, &k, b, 100));
    expect_hex(&k, "32e309bbdbd4fc2fd627042c68e6b4087665d73d6838976c89571f5e4a954018");
}

/* ---- putting and getting ---- */

static void comes_back_from_queue_disk_and_restart(void **state) {
    test_page p[9];
    store_info info;
    store *s = open_sim(&(store_opts){.linger_ms = 600000});
    (void)state;
    for (uint32_t i = 0; i < 9; i++) page_fill(&p[i], 1, 0, i, 1000 + 37 * i, i % 3 ? 0 : 77);
    for (int i = 0; i < 9; i++) assert_int_equal(store_put(s, &p[i].page, 0), HD_OK);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(store_find(s, &p[i].page.key, &info), STORE_QUEUED);
        assert_int_equal(info.bytes[0], 1000 + 37 * i);
        assert_int_equal(info.bytes[1], i % 3 ? 0 : 77);
        assert_int_equal(info.n_tokens, PAGE_TOKENS);
        assert_int_equal(page_get(s, &p[i]), PAGE_HIT);
    }
    assert_int_equal(vfs_sim_segments(&sim), 0);
    flush(s);
    assert_int_equal(vfs_sim_segments(&sim), 1); /* one file for all */
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < 9; i++) {
            assert_int_equal(store_find(s, &p[i].page.key, &info), STORE_DURABLE);
            assert_int_equal(info.bytes[0], 1000 + 37 * i);
            assert_int_equal(page_get(s, &p[i]), PAGE_HIT);
            assert_int_equal(store_put(s, &p[i].page, 0), HD_OK);
        }
        assert_int_equal(counts(s).put_known, 9);
        assert_int_equal(counts(s).pages, 9);
        assert_int_equal(counts(s).files, 1);
        assert_int_equal(counts(s).bytes, vfs_sim_bytes(&sim, ".kv"));
        store_close(s);
        s = open_sim(NULL);
    }
    store_close(s);
}

static void what_does_not_match_is_a_miss(void **state) {
    test_page p, other;
    uint8_t got[PAGE_BYTES];
    store_want w;
    store *s = open_sim(NULL);
    (void)state;
    page_fill(&p, 1, 0, 0, 500, 0);
    page_fill(&other, 2, 0, 0, 500, 0);
    for (int durable = 0; durable < 2; durable++) {
        if (durable) flush(s);
        else assert_int_equal(store_put(s, &p.page, 0), HD_OK);
        assert_int_equal(page_get(s, &other), PAGE_MISS); /* other identity, so other key */
        w = (store_want){p.page.key, p.identity, p.tokens, PAGE_TOKENS, {got, NULL}, {500, 0}};
        assert_int_equal(store_get(s, &w, NULL), HD_OK);
        w.bytes[0] = 499;
        assert_int_equal(store_get(s, &w, NULL), HD_NOTFOUND);
        w.bytes[0] = 500;
        w.n_tokens = PAGE_TOKENS - 1;
        assert_int_equal(store_get(s, &w, NULL), HD_NOTFOUND);
        w.n_tokens = PAGE_TOKENS;
        w.into[1] = got; /* a group that is not there */
        w.bytes[1] = 10;
        assert_int_equal(store_get(s, &w, NULL), HD_NOTFOUND);
        w.into[1] = NULL;
        /* As if digests had collided: the same key, other identity or tokens. */
        w.identity = other.identity;
        assert_int_equal(store_get(s, &w, NULL), HD_NOTFOUND);
        w.identity = p.identity;
        p.tokens[PAGE_TOKENS - 1]++;
        assert_int_equal(store_get(s, &w, NULL), HD_NOTFOUND);
        p.tokens[PAGE_TOKENS - 1]--;
        assert_int_equal(store_get(s, &w, NULL), HD_OK);
        assert_int_equal(counts(s).foreign, 2 * (durable + 1));
        assert_int_equal(counts(s).damaged_files, 0);
    }
    assert_int_equal(vfs_sim_segments(&sim), 1); /* a miss of this kind removes nothing */
    store_close(s);
}

static void a_fuller_page_takes_the_place(void **state) {
    test_page part, full;
    store *s = open_sim(NULL);
    (void)state;
    page_fill(&full, 1, 0, 0, 500, 300);
    part = full;
    part.page.identity = part.identity;
    part.page.tokens = part.tokens;
    part.page.blob[0] = part.blob[0];
    part.page.blob[1] = NULL;
    part.page.bytes[1] = 0;
    for (int flushed = 0; flushed < 2; flushed++) {
        assert_int_equal(store_put(s, &part.page, 0), HD_OK);
        if (flushed) flush(s);
        assert_int_equal(page_get(s, &full), PAGE_MISS);
        assert_int_equal(store_put(s, &full.page, 0), HD_OK);
        assert_int_equal(page_get(s, &full), PAGE_HIT);
        flush(s);
        assert_int_equal(page_get(s, &full), PAGE_HIT);
        assert_int_equal(page_get(s, &part), PAGE_HIT);       /* one group of two */
        assert_int_equal(store_put(s, &part.page, 0), HD_OK); /* known: it changes nothing */
        assert_int_equal(page_get(s, &full), PAGE_HIT);
        store_close(s);
        s = open_sim(NULL);
        assert_int_equal(page_get(s, &full), PAGE_HIT);
        store_close(s);
        vfs_sim_deinit(&sim);
        vfs_sim_init(&sim, 8);
        s = open_sim(NULL);
    }
    store_close(s);
}

static void wrong_arguments(void **state) {
    test_page p;
    store_page q;
    store *s = open_sim(&(store_opts){.queue_bytes = 1 << 20, .cap_bytes = 1 << 20});
    static uint8_t big[1 << 20];
    hd_err err;
    (void)state;
    page_fill(&p, 1, 0, 0, 500, 0);
    q = p.page;
    q.n_tokens = 0;
    assert_int_equal(store_put(s, &q, 0), HD_INVALID);
    q.n_tokens = STORE_MAX_TOKENS + 1;
    assert_int_equal(store_put(s, &q, 0), HD_INVALID);
    q = p.page;
    q.blob[0] = NULL;
    assert_int_equal(store_put(s, &q, 0), HD_INVALID);
    q = p.page;
    q.bytes[0] = 0;
    assert_int_equal(store_put(s, &q, 0), HD_INVALID);
    q.bytes[0] = STORE_MAX_GROUP_BYTES + 1;
    assert_int_equal(store_put(s, &q, 0), HD_INVALID);
    q.blob[0] = big;
    q.bytes[0] = 600 << 10;
    assert_int_equal(store_put(s, &q, 0), HD_NEVER_FITS);
    store_close(s);
    assert_int_equal(store_open(&s, &(store_opts){.dir = "x", .fs = &sim.table, .cap_bytes = 1000}, &err), HD_INVALID);
    assert_int_equal(store_open(&s, &(store_opts){.fs = &sim.table}, &err), HD_INVALID);
    assert_null(s);
}

static void a_full_queue_drops_and_counts(void **state) {
    test_page p;
    store *s = open_sim(&(store_opts){.max_queued = 3, .linger_ms = 600000});
    int taken = 0, dropped = 0;
    hd_status st;
    (void)state;
    pthread_mutex_lock(&sim.mu); /* the disk hangs */
    for (uint32_t i = 0; i < 10; i++) {
        page_fill(&p, 1, i, 0, 100, 0);
        st = store_put(s, &p.page, 0);
        taken += st == HD_OK;
        dropped += st == HD_FULL;
    }
    assert_int_equal(taken, 3);
    assert_int_equal(dropped, 7);
    assert_int_equal(counts(s).put_dropped, 7);
    assert_int_equal(store_put(s, &p.page, 50), HD_FULL); /* waits, in vain */
    assert_int_equal(store_flush(s, 50, NULL), HD_TIMEOUT);
    pthread_mutex_unlock(&sim.mu);
    assert_int_equal(store_put(s, &p.page, 20000), HD_OK);
    flush(s);
    assert_int_equal(counts(s).queue_pages, 0);
    assert_int_equal(counts(s).queue_bytes, 0);
    assert_int_equal(counts(s).pages, 4);
    store_close(s);
}

/* The ring goes around many times with pieces of all sizes. */
static void many_pages_through_a_small_queue(void **state) {
    enum { N = 300 };
    test_page p;
    store *s = open_sim(&(store_opts){.queue_bytes = 20000, .linger_ms = 1});
    uint32_t hits = 0;
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        page_fill(&p, 1, i, 0, 1 + i * 997 % 4096, i % 5 ? 0 : 1 + i * 31 % 4096);
        assert_int_equal(store_put(s, &p.page, 20000), HD_OK);
        assert_true(counts(s).queue_bytes <= 20000);
    }
    flush(s);
    for (uint32_t i = 0; i < N; i++) {
        page_fill(&p, 1, i, 0, 1 + i * 997 % 4096, i % 5 ? 0 : 1 + i * 31 % 4096);
        hits += page_get(s, &p) == PAGE_HIT;
    }
    assert_int_equal(hits, N);
    store_close(s);
}

/* ---- room ---- */

static void the_cap_holds_and_the_least_useful_goes(void **state) {
    enum { CAP = 1 << 20, EACH = 55 };
    test_page p;
    store *s = open_sim(&(store_opts){.cap_bytes = CAP, .segment_bytes = 1});
    uint32_t hits[2] = {0, 0};
    (void)state;
    /* 120 files fit.  The first and the last third are twice as dear to compute as the second. */
    for (uint32_t i = 0; i < 2 * EACH; i++) {
        page_fill(&p, 1, i, 0, 4096, 4096);
        p.page.value_us = i < EACH ? 2000000 : 1000000;
        assert_int_equal(store_put(s, &p.page, 20000), HD_OK);
        flush(s);
    }
    for (uint32_t i = 2 * EACH; i < 3 * EACH; i++) {
        page_fill(&p, 1, i, 0, 4096, 4096);
        p.page.value_us = 2000000;
        assert_int_equal(store_put(s, &p.page, 20000), HD_OK);
        flush(s);
        assert_true(vfs_sim_bytes(&sim, "") <= CAP);
    }
    for (uint32_t i = 0; i < 2 * EACH; i++) {
        page_fill(&p, 1, i, 0, 4096, 4096);
        hits[i / EACH] += page_get(s, &p) == PAGE_HIT;
    }
    assert_int_equal(hits[0], EACH);
    assert_in_range(hits[1], 1, 10);
    assert_int_equal(counts(s).evicted_files, EACH - hits[1]);
    store_close(s);

    /* Of equal value, what was used last stays; also over a restart, and for files of a larger cap. */
    vfs_sim_deinit(&sim);
    vfs_sim_init(&sim, 9);
    s = open_sim(&(store_opts){.cap_bytes = 8 * CAP, .segment_bytes = 1});
    for (uint32_t i = 0; i < 200; i++) {
        page_fill(&p, 1, i, 0, 4096, 4096);
        assert_int_equal(store_put(s, &p.page, 20000), HD_OK);
        flush(s);
        sim.now_s += 100;
    }
    for (uint32_t i = 0; i < 10; i++) {
        page_fill(&p, 1, i, 0, 4096, 4096);
        assert_int_equal(page_get(s, &p), PAGE_HIT);
    }
    store_close(s);
    s = open_sim(&(store_opts){.cap_bytes = CAP});
    assert_true(vfs_sim_bytes(&sim, "") <= CAP);
    for (uint32_t i = 0; i < 200; i++) {
        page_fill(&p, 1, i, 0, 4096, 4096);
        if (i < 10 || i >= 90) assert_int_equal(page_get(s, &p), PAGE_HIT);
        else if (i < 75) assert_int_equal(page_get(s, &p), PAGE_MISS);
    }
    store_close(s);
}

static void files_and_pages_are_bounded(void **state) {
    test_page p;
    store *s = open_sim(&(store_opts){.max_files = 5, .segment_bytes = 1});
    uint32_t hits = 0;
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        page_fill(&p, 1, i, 0, 100, 0);
        sim.now_s += 10;
        assert_int_equal(store_put(s, &p.page, 1000), HD_OK);
        flush(s);
        assert_in_range(vfs_sim_segments(&sim), 1, 5);
    }
    store_close(s);
    s = open_sim(&(store_opts){.max_pages = 3, .segment_bytes = 1});
    for (uint32_t i = 0; i < 20; i++) {
        page_fill(&p, 1, i, 0, 100, 0);
        hits += page_get(s, &p) == PAGE_HIT;
    }
    assert_int_equal(hits, 3);
    assert_int_equal(page_get(s, &p), PAGE_HIT); /* the youngest is among them */
    store_close(s);
}

static void leftovers_go_when_their_writer_is_gone(void **state) {
    static const char name[] = "00112233445566778899aabbccddeeff.tmp";
    const vfs *fs = &sim.table;
    store *s;
    int fd = fs->open(fs->ctx, 0, name, VFS_MAKE), other = fs->open(fs->ctx, 0, "notes.txt", VFS_MAKE);
    vfs_stat st;
    (void)state;
    assert_int_equal(fs->lock(fs->ctx, fd, true), 0);
    store_close(open_sim(NULL));
    assert_int_equal(fs->stat(fs->ctx, 0, name, &st), 0); /* its writer lives */
    fs->close(fs->ctx, fd);
    s = open_sim(NULL);
    assert_int_equal(fs->stat(fs->ctx, 0, name, &st), -ENOENT);
    assert_int_equal(fs->stat(fs->ctx, 0, "notes.txt", &st), 0); /* never ours */
    store_close(s);
    fs->close(fs->ctx, other);
}

static void two_stores_share(void **state) {
    test_page p, q;
    store_opts o = {.rescan_ms = 1};
    store *a = open_sim(&o), *b = open_sim(&o);
    (void)state;
    page_fill(&p, 1, 0, 0, 100, 0);
    page_fill(&q, 1, 1, 0, 100, 0);
    assert_int_equal(page_get(b, &p), PAGE_MISS);
    assert_int_equal(store_put(a, &p.page, 0), HD_OK);
    flush(a);
    store_rescan(b);
    assert_int_equal(page_get(b, &p), PAGE_HIT);
    /* The same page put by both: the second finds it written when its turn comes. */
    assert_int_equal(store_put(a, &q.page, 0), HD_OK);
    assert_int_equal(store_put(b, &q.page, 0), HD_OK);
    flush(a);
    flush(b);
    assert_int_equal(vfs_sim_segments(&sim), 2);
    assert_int_equal(page_get(a, &q), PAGE_HIT);
    assert_int_equal(page_get(b, &q), PAGE_HIT);
    assert_int_equal(store_find(b, &q.page.key, NULL), STORE_DURABLE);
    /* What one removes, the other misses, and forgets. */
    while (vfs_sim_segment(&sim, 0)) sim.table.unlink(&sim, 0, vfs_sim_segment(&sim, 0)->name);
    assert_int_equal(page_get(b, &q), PAGE_MISS);
    assert_int_equal(store_find(b, &q.page.key, NULL), STORE_ABSENT);
    assert_int_equal(counts(b).damaged_files, 0);
    store_rescan(a);
    assert_int_equal(counts(a).pages, 0);
    assert_int_equal(counts(a).files, 0);
    store_close(a);
    store_close(b);
}

static void another_holds_the_lock(void **state) {
    test_page p;
    store *s = open_sim(NULL);
    int fd = sim.table.open(&sim, 0, "lock", VFS_KEEP);
    hd_err err;
    (void)state;
    page_fill(&p, 1, 0, 0, 100, 0);
    assert_int_equal(sim.table.lock(&sim, fd, true), 0);
    assert_int_equal(store_put(s, &p.page, 0), HD_OK);
    assert_int_equal(store_flush(s, 20000, &err), HD_IO);
    assert_non_null(strstr(err.msg, "held by another"));
    assert_true(counts(s).writing); /* no reason to stop */
    sim.table.close(&sim, fd);
    assert_int_equal(store_put(s, &p.page, 0), HD_OK);
    flush(s);
    store_close(s);
}

/* ---- what fails ---- */

static void a_full_disk_pauses_writing(void **state) {
    test_page p, q;
    store *s = open_sim(&(store_opts){.retry_ms = 300});
    (void)state;
    page_fill(&p, 1, 0, 0, 4000, 0);
    page_fill(&q, 1, 1, 0, 4000, 0);
    assert_int_equal(store_put(s, &p.page, 0), HD_OK);
    flush(s);
    sim.capacity = vfs_sim_bytes(&sim, "") + 1000;
    assert_int_equal(store_put(s, &q.page, 0), HD_OK);
    assert_int_equal(store_flush(s, 20000, NULL), HD_IO);
    assert_false(counts(s).writing);
    assert_non_null(strstr(counts(s).last_error, "No space left"));
    assert_int_equal(counts(s).put_failed, 1);
    assert_int_equal(vfs_sim_bytes(&sim, ".tmp"), 0);
    assert_int_equal(store_put(s, &q.page, 0), HD_IO);
    assert_int_equal(page_get(s, &p), PAGE_HIT); /* reading goes on */
    sim.capacity = UINT64_MAX;
    usleep(350000);
    assert_true(counts(s).writing);
    assert_int_equal(store_put(s, &q.page, 0), HD_OK);
    flush(s);
    assert_int_equal(page_get(s, &q), PAGE_HIT);
    store_close(s);
    /* A disk that is full at the start can be read. */
    sim.capacity = 0;
    s = open_sim(NULL);
    assert_int_equal(page_get(s, &p), PAGE_HIT);
    store_close(s);
}

static void opening_says_what_it_cannot_have(void **state) {
    char path[100], key[100];
    hd_err err;
    store *s;
    FILE *f;
    (void)state;
    snprintf(path, sizeof path, "%s/no/such", dir);
    assert_int_equal(store_open(&s, &(store_opts){.dir = path}, &err), HD_NOTFOUND);
    assert_non_null(strstr(err.msg, path));
    snprintf(path, sizeof path, "%s/file", dir);
    f = fopen(path, "w");
    fclose(f);
    assert_int_equal(store_open(&s, &(store_opts){.dir = path}, &err), HD_IO);
    assert_non_null(strstr(err.msg, path));
    sim.read_only = true;
    assert_int_equal(store_open(&s, &(store_opts){.dir = "somewhere", .fs = &sim.table}, &err), HD_IO);
    assert_non_null(strstr(err.msg, "somewhere/kv"));
    assert_non_null(strstr(err.msg, "Read-only"));
    sim.read_only = false;
    snprintf(key, sizeof key, "%s/nokey", dir);
    assert_int_equal(store_open(&s, &(store_opts){.dir = "x", .fs = &sim.table, .key_file = key}, &err), HD_NOTFOUND);
    assert_non_null(strstr(err.msg, key));
    store_fail_start(true);
    assert_int_equal(store_open(&s, &(store_opts){.dir = "x", .fs = &sim.table}, &err), HD_IO);
    store_fail_start(false);
    assert_null(s);
    /* Not as root, who may do everything. */
    if (geteuid()) {
        snprintf(path, sizeof path, "%s/closed", dir);
        mkdir(path, 0500);
        assert_int_equal(store_open(&s, &(store_opts){.dir = path}, &err), HD_IO);
        assert_non_null(strstr(err.msg, path));
    }
}

static void every_allocation_may_fail(void **state) {
    test_page p;
    hd_status st = HD_NOMEM;
    long n;
    (void)state;
    page_fill(&p, 1, 0, 0, 100, 50);
    for (n = 0; st; n++) {
        store *s;
        hd_err err;
        hd_mem_fail_after(n);
        st = store_open(&s, &(store_opts){.dir = "x", .fs = &sim.table}, &err);
        if (!st) {
            hd_status put = store_put(s, &p.page, 0);
            assert_true(put == HD_OK || put == HD_NOMEM);
            if (put) st = HD_NOMEM;
            hd_mem_fail_after(-1);
            if (!put) {
                flush(s);
                assert_int_equal(page_get(s, &p), PAGE_HIT);
            }
            assert_int_equal(counts(s).queue_pages, 0);
            assert_int_equal(counts(s).queue_bytes, 0);
            store_close(s);
        } else {
            assert_int_equal(st, HD_NOMEM);
            assert_null(s);
        }
        hd_mem_fail_after(-1);
        assert_int_equal(hd_mem_live(), 0);
    }
    assert_true(n > 8);
}

/* ---- the key file ---- */

static void write_key(const char *path, const void *text, size_t n, mode_t mode) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static void key_files(void **state) {
    static const char hex64[] = "000102030405060708090A0B0C0D0E0F101112131415161718191a1b1c1d1e1f\n";
    uint8_t raw[32];
    char path[100];
    seal_master m, n;
    hd_err err;
    (void)state;
    for (int i = 0; i < 32; i++) raw[i] = (uint8_t)i;
    snprintf(path, sizeof path, "%s/key", dir);
    write_key(path, raw, 32, 0600);
    assert_int_equal(seal_load(&m, path, &err), HD_OK);
    write_key(path, hex64, 65, 0400);
    assert_int_equal(seal_load(&n, path, &err), HD_OK);
    assert_memory_equal(m.key, n.key, 32);
    write_key(path, hex64, 64, 0600);
    assert_int_equal(seal_load(&n, path, &err), HD_OK);
    assert_memory_equal(m.key, n.key, 32);
    assert_true(n.on);
    for (size_t k = 0; k < 65; k++) {
        if (k == 32 || k == 64) continue;
        write_key(path, hex64, k, 0600);
        assert_int_equal(seal_load(&n, path, &err), HD_INVALID);
    }
    write_key(path, "x00102030405060708090A0B0C0D0E0F101112131415161718191a1b1c1d1e1f", 64, 0600);
    assert_int_equal(seal_load(&n, path, &err), HD_INVALID);
    for (int bit = 0; bit < 6; bit++) {
        write_key(path, raw, 32, 0600 | 1 << bit);
        assert_int_equal(seal_load(&n, path, &err), HD_INVALID);
        assert_non_null(strstr(err.msg, path));
        assert_false(n.on);
    }
    assert_int_equal(seal_load(&n, dir, &err), HD_INVALID);
    assert_int_equal(seal_load(&n, "/dev/zero", &err), HD_INVALID);
}

static bool holds(const char *what, size_t n) {
    for (int i = 0; vfs_sim_segment(&sim, i); i++) {
        const sim_file *f = vfs_sim_segment(&sim, i)->f;
        if (memmem(f->data, f->size, what, n)) return true;
    }
    return false;
}

static void encrypted_at_rest(void **state) {
    uint8_t raw[32] = {1, 2, 3};
    char path[100], other[100];
    test_page p, q;
    store *s;
    (void)state;
    snprintf(path, sizeof path, "%s/key1", dir);
    snprintf(other, sizeof other, "%s/key2", dir);
    write_key(path, raw, 32, 0600);
    raw[31] ^= 1;
    write_key(other, raw, 32, 0600);
    page_fill(&p, 1, 0, 0, 1000, 500);
    page_fill(&q, 1, 1, 0, 1000, 500);

    s = open_sim(NULL); /* a plain one shows everything, so the search can find */
    assert_int_equal(store_put(s, &p.page, 0), HD_OK);
    flush(s);
    assert_true(holds((char *)p.blob[0], 16) && holds((char *)p.tokens, 16) && holds((char *)p.page.key.b, 16));
    store_close(s);
    while (vfs_sim_segment(&sim, 0)) sim.table.unlink(&sim, 0, vfs_sim_segment(&sim, 0)->name);

    s = open_sim(&(store_opts){.key_file = path});
    assert_int_equal(store_put(s, &p.page, 0), HD_OK);
    flush(s);
    assert_int_equal(page_get(s, &p), PAGE_HIT);
    store_close(s);
    assert_int_equal(vfs_sim_segments(&sim), 1);
    assert_false(holds((char *)p.blob[0], 16) || holds((char *)p.blob[1], 16) || holds((char *)p.tokens, 16));
    assert_false(holds((char *)p.page.key.b, 16) || holds((char *)p.identity, 16));

    /* Another key, or none: a miss, and the file stays, counted. */
    for (int i = 0; i < 2; i++) {
        s = open_sim(&(store_opts){.key_file = i ? other : NULL});
        assert_int_equal(page_get(s, &p), PAGE_MISS);
        assert_int_equal(counts(s).ignored_files, i + 1);
        assert_int_equal(counts(s).files, i + 1);
        assert_true(counts(s).bytes > 1500);
        assert_int_equal(store_put(s, &q.page, 0), HD_OK);
        flush(s);
        assert_int_equal(page_get(s, &q), PAGE_HIT);
        store_close(s);
    }
    s = open_sim(&(store_opts){.key_file = path});
    assert_int_equal(page_get(s, &p), PAGE_HIT);
    assert_int_equal(page_get(s, &q), PAGE_MISS);
    assert_int_equal(counts(s).ignored_files, 2);
    assert_int_equal(counts(s).damaged_files, 0);
    store_close(s);
}

/* Two files with the same pages under the same key have nothing in common: each has a key of its own. */
static void files_have_their_own_keys(void **state) {
    uint8_t raw[32] = {9};
    char path[100];
    test_page p;
    const sim_file *a, *b;
    size_t same = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/key3", dir);
    write_key(path, raw, 32, 0600);
    page_fill(&p, 1, 0, 0, 4000, 0);
    for (int i = 0; i < 2; i++) {
        store *s = open_sim(&(store_opts){.key_file = path});
        sim_name *n = vfs_sim_segment(&sim, 0);
        char away[] = "0.away";
        if (n) sim.table.rename(&sim, 0, n->name, away);
        store_rescan(s);
        assert_int_equal(store_put(s, &p.page, 0), HD_OK);
        flush(s);
        store_close(s);
        if (n) sim.table.rename(&sim, 0, away, "00000000000000000000000000000000.kv");
    }
    a = vfs_sim_segment(&sim, 0)->f;
    b = vfs_sim_segment(&sim, 1)->f;
    assert_int_equal(a->size, b->size);
    for (size_t i = SEG_HEAD; i < a->size; i++) same += a->data[i] == b->data[i];
    assert_in_range(same, 0, a->size / 32); /* 1 in 256 by chance */
}

/* ---- the real file system ---- */

static void modes_on_disk(void **state) {
    char path[100];
    test_page p;
    hd_err err;
    store *s;
    struct stat sb;
    FILE *f;
    (void)state;
    snprintf(path, sizeof path, "%s/state", dir);
    umask(0);
    if (store_open(&s, &(store_opts){.dir = path}, &err)) fail_msg("%s", err.msg);
    page_fill(&p, 1, 0, 0, 1000, 0);
    assert_int_equal(store_put(s, &p.page, 0), HD_OK);
    flush(s);
    assert_int_equal(page_get(s, &p), PAGE_HIT);
    store_close(s);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0700);
    snprintf(path, sizeof path, "find %s/state/kv -printf '%%m %%y '", dir);
    f = popen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(path, sizeof path, f));
    pclose(f);
    assert_string_equal(path, "700 d 600 f 600 f ");
    snprintf(path, sizeof path, "%s/state", dir);
    assert_int_equal(chmod(path, 0755), 0); /* the directory above is the user's */
    if (store_open(&s, &(store_opts){.dir = path}, &err)) fail_msg("%s", err.msg);
    assert_int_equal(page_get(s, &p), PAGE_HIT);
    store_close(s);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0755);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    char cmd[100];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, sim_up, sim_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_a_chain_of_digests),
        T(comes_back_from_queue_disk_and_restart),
        T(what_does_not_match_is_a_miss),
        T(a_fuller_page_takes_the_place),
        T(wrong_arguments),
        T(a_full_queue_drops_and_counts),
        T(many_pages_through_a_small_queue),
        T(the_cap_holds_and_the_least_useful_goes),
        T(files_and_pages_are_bounded),
        T(leftovers_go_when_their_writer_is_gone),
        T(two_stores_share),
        T(another_holds_the_lock),
        T(a_full_disk_pauses_writing),
        T(opening_says_what_it_cannot_have),
        T(every_allocation_may_fail),
        T(key_files),
        T(encrypted_at_rest),
        T(files_have_their_own_keys),
        T(modes_on_disk),
    };
    return cmocka_run_group_tests_name("store", tests, make_dir, remove_dir);
}
