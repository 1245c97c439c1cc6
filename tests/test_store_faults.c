/* test_store_faults.c (slow-test) - the disk tier on spoiled files, failing disks and power cuts: a miss at worst, never other bytes.
 *
 * Everything random comes from the seed that a failure prints; HEDDLE_STORE_SEED=N runs that one alone. */
#include "base/log.h"
#include "base/mem.h"
#include "state/le.h"
#include "state/store_int.h"
#include "util/runs.h"
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

enum { N = 12, MUTATIONS = 600 /* plain, and as many encrypted */ };
static char dir[] = "/tmp/heddle-faults-XXXXXX";
static char keys[2][80]; /* key files */
static test_page pages[N];

static store *open_on(vfs_sim *sim, const char *key, uint64_t segment_bytes, hd_err *err) {
    store_opts o = {.dir = "sim",
                    .fs = &sim->table,
                    .key_file = key,
                    .segment_bytes = segment_bytes,
                    .retry_ms = 600000,
                    .queue_bytes = 1 << 20,
                    .max_queued = 64};
    store *s;
    store_open(&s, &o, err);
    return s;
}

/* ---- mutations ---- */

/* Three files of four pages each; pages of equal size, so that blocks can change places. */
static void make_base(vfs_sim *sim, const char *key) {
    hd_err err;
    store *s = open_on(sim, key, 1 << 20, &err);
    assert_non_null(s);
    for (int i = 0; i < N; i++) {
        assert_int_equal(store_put(s, &pages[i].page, 0), HD_OK);
        if (i % 4 == 3) assert_int_equal(store_flush(s, 20000, &err), HD_OK);
    }
    store_close(s);
    assert_int_equal(vfs_sim_segments(sim), 3);
}

static void resize(sim_file *f, size_t n) {
    uint8_t *p = calloc(1, n + 1);
    memcpy(p, f->data, n < f->size ? n : f->size);
    free(f->data);
    f->data = p;
    f->size = n;
}

#define KINDS(X)                                                                                                                   \
    X(FLIP) X(CUT) X(GROW) X(SWAP_NAMES) X(SPLICE) X(ZERO) X(VERSION) X(FOREIGN) X(SWAP_BLOCKS) X(NOISE) X(COPY) X(STALE_INDEX)
enum {
#define X(k) k,
    KINDS(X)
#undef X
        N_KINDS
};
static const char *const kinds[] = {
#define X(k) #k,
    KINDS(X)
#undef X
};

/* Spoil file `at` (and perhaps `other`).  False: nothing came of it. */
static bool mutate(vfs_sim *sim, const vfs_sim *donor, int kind, uint64_t *rng, int at, int other) {
    sim_file *f = vfs_sim_segment(sim, at)->f, *g = vfs_sim_segment(sim, other)->f;
    const sim_file *d = vfs_sim_segment((vfs_sim *)(uintptr_t)donor, (int)rng_below(rng, 3))->f;
    size_t size = f->size, block = (size_t)(seg_block_head(PAGE_TOKENS) + pages[0].page.bytes[0] + pages[0].page.bytes[1]);
    uint8_t *before = malloc(size), tag[SEAL_BYTES];
    bool differs;
    memcpy(before, f->data, size);
    switch (kind) {
    case FLIP: {
        /* One bit half of the time; near the head, the index or anywhere. */
        uint32_t n = rng_below(rng, 2) ? 1 : 1 + rng_below(rng, 8);
        while (n--) {
            size_t where = rng_below(rng, (uint32_t)size);
            if (rng_below(rng, 3) == 0) where = rng_below(rng, 512);
            else if (rng_below(rng, 3) == 0) where = size - 1 - rng_below(rng, 400);
            f->data[where] ^= (uint8_t)(1u << rng_below(rng, 8));
        }
        break;
    }
    case CUT: resize(f, rng_below(rng, 4) ? rng_below(rng, (uint32_t)size) : rng_below(rng, 300)); break;
    case GROW: resize(f, size + 1 + rng_below(rng, 5000)); break;
    case SWAP_NAMES: {
        sim_name *a = vfs_sim_segment(sim, at), *b = vfs_sim_segment(sim, other);
        a->f = g;
        b->f = f;
        break;
    }
    case SPLICE: {
        size_t n = 1 + rng_below(rng, (uint32_t)size / 2), from = rng_below(rng, (uint32_t)(g->size - n)),
               to = rng_below(rng, (uint32_t)(size - n));
        if (rng_below(rng, 2)) n = block, from = SEG_HEAD + block * rng_below(rng, 4), to = SEG_HEAD + block * rng_below(rng, 4);
        memcpy(f->data + to, g->data + from, n);
        break;
    }
    case ZERO: {
        size_t n = 1 + rng_below(rng, 2000), to = rng_below(rng, (uint32_t)(size - n));
        memset(f->data + to, 0, n);
        break;
    }
    case VERSION: /* well-formed, of another version or with unknown flags */
        if (rng_below(rng, 2)) le_put32(f->data + 8, rng_below(rng, 2) ? 0 : SEG_VERSION + 1 + rng_below(rng, 5));
        else le_put32(f->data + 12, 2u << rng_below(rng, 20));
        seal_checksum(f->data, SEG_HEAD - SEAL_BYTES, tag);
        memcpy(f->data + SEG_HEAD - SEAL_BYTES, tag, SEAL_BYTES);
        break;
    case FOREIGN: /* another's sound file, made to bear this name or not */
        resize(f, d->size);
        memcpy(f->data, d->data, d->size);
        if (rng_below(rng, 2)) {
            memcpy(f->data + 16, before + 16, SEG_ID);
            seal_checksum(f->data, SEG_HEAD - SEAL_BYTES, tag);
            memcpy(f->data + SEG_HEAD - SEAL_BYTES, tag, SEAL_BYTES);
        }
        break;
    case SWAP_BLOCKS: {
        uint32_t i = rng_below(rng, 4), k = (i + 1 + rng_below(rng, 3)) % 4;
        memcpy(f->data + SEG_HEAD + block * i, before + SEG_HEAD + block * k, block);
        memcpy(f->data + SEG_HEAD + block * k, before + SEG_HEAD + block * i, block);
        break;
    }
    case NOISE:
        resize(f, rng_below(rng, 3) ? size : rng_below(rng, 4000));
        for (size_t i = rng_below(rng, 2) ? 0 : 8; i < f->size; i++) f->data[i] = (uint8_t)rng_next(rng);
        break;
    case COPY: /* a file over another one's contents: its own name lies */
        resize(f, g->size);
        memcpy(f->data, g->data, g->size);
        break;
    case STALE_INDEX: { /* the other one's index behind this one's blocks */
        size_t n = 4 * SEG_INDEX_ENTRY + SEAL_BYTES;
        memcpy(f->data + size - n, g->data + g->size - n, n);
        break;
    }
    }
    differs = kind == SWAP_NAMES || f->size != size || memcmp(f->data, before, size);
    free(before);
    sim->changes++;
    return differs;
}

/* Which file holds pages 0-3, 4-7, 8-11: by asking with all others away. */
static void locate(const vfs_sim *base, const char *key, int *where) {
    for (int i = 0; i < 3; i++) {
        vfs_sim one;
        hd_err err;
        store *s;
        vfs_sim_init(&one, 1);
        vfs_sim_copy(&one, base);
        for (int k = 2; k >= 0; k--)
            if (k != i) one.table.unlink(&one, 0, vfs_sim_segment(&one, k)->name);
        s = open_on(&one, key, 0, &err);
        assert_non_null(s);
        for (int p = 0; p < 3; p++)
            if (page_get(s, &pages[4 * p]) == PAGE_HIT) where[p] = i;
        store_close(s);
        vfs_sim_deinit(&one);
    }
}

/* where[i / 4]: the file of page i.  `open_first`: the store knows the files before they change. */
static void mutation(const vfs_sim *base, const int *where, const vfs_sim *donor, const char *key, uint64_t seed, bool open_first) {
    uint64_t rng = seed * 2654435761u + 12345;
    int kind = (int)(seed % N_KINDS), at, other, hits[3] = {0, 0, 0}, before;
    static vfs_sim sim;
    store_counts n;
    hd_err err;
    store *s;
    bool changed;
    vfs_sim_init(&sim, seed + 1000); /* not the base's numbers: names would come twice */
    vfs_sim_copy(&sim, base);
    at = (int)rng_below(&rng, 3);
    other = (at + 1 + (int)rng_below(&rng, 2)) % 3;
    s = open_first ? open_on(&sim, key, 0, &err) : NULL;
    changed = mutate(&sim, donor, kind, &rng, at, other);
    before = vfs_sim_segments(&sim);
    if (!s && !(s = open_on(&sim, key, 0, &err))) fail_msg("seed %d (%s): open: %s", (int)seed, kinds[kind], err.msg);
    for (int i = 0; i < N; i++) {
        page_got got = page_get(s, &pages[i]);
        if (got == PAGE_WRONG) fail_msg("seed %d (%s): page %d came back wrong", (int)seed, kinds[kind], i);
        hits[where[i / 4]] += got == PAGE_HIT;
    }
    for (int f = 0; f < 3; f++)
        if (f != at && (f != other || kind != SWAP_NAMES) && hits[f] != 4)
            fail_msg("seed %d (%s): a file that was left alone lost pages", (int)seed, kinds[kind]);
    if (changed && !open_first && hits[at] == 4) fail_msg("seed %d (%s): it was not noticed", (int)seed, kinds[kind]);
    store_stats(s, &n);
    if (!open_first && changed && n.damaged_files + n.ignored_files == 0)
        fail_msg("seed %d (%s): not counted", (int)seed, kinds[kind]);
    if (vfs_sim_segments(&sim) < before - 2) fail_msg("seed %d: sound files were removed", (int)seed);
    /* And it goes on: what was lost is put again and found. */
    for (int i = 0; i < N; i++) assert_int_equal(store_put(s, &pages[i].page, 0), HD_OK);
    assert_int_equal(store_flush(s, 20000, &err), HD_OK);
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < N; i++) {
            page_got got = page_get(s, &pages[i]);
            /* An open store notices damage when it meets it, so at the first reading some may be lost again. */
            if (got == PAGE_WRONG || (got == PAGE_MISS && !open_first))
                fail_msg("seed %d (%s): page %d afterwards", (int)seed, kinds[kind], i);
        }
        store_close(s);
        if (again) break;
        s = open_on(&sim, key, 0, &err);
        assert_non_null(s);
    }
    vfs_sim_deinit(&sim);
    if (hd_mem_live()) fail_msg("seed %d: %ld blocks leaked", (int)seed, hd_mem_live());
}

static void mutations(const char *key, const char *donor_key, uint8_t donor_identity) {
    vfs_sim base, donor;
    const char *one = getenv("HEDDLE_STORE_SEED");
    int where[3] = {0, 0, 0};
    vfs_sim_init(&base, 1);
    vfs_sim_init(&donor, 2);
    for (uint32_t i = 0; i < N; i++) page_fill(&pages[i], donor_identity, i, 0, 700, 200);
    make_base(&donor, donor_key);
    for (uint32_t i = 0; i < N; i++) page_fill(&pages[i], 1, i / 6, i % 6, 700, 200);
    make_base(&base, key);
    locate(&base, key, where);
    for (uint64_t seed = 0; seed < MUTATIONS; seed++)
        if (!one || seed == strtoull(one, NULL, 10)) mutation(&base, where, &donor, key, seed, seed / N_KINDS % 4 == 3);
    vfs_sim_deinit(&base);
    vfs_sim_deinit(&donor);
}

static void spoiled_files(void **state) {
    (void)state;
    mutations(NULL, NULL, 2);
}

static void spoiled_encrypted_files(void **state) {
    (void)state;
    mutations(keys[0], keys[1], 1);
}

/* ---- failing operations and power cuts ---- */

typedef struct {
    bool durable[N];
} promise;

/* A life of the tier: open, put, flush, get, close.  Whatever fails, it goes on. */
static void live(vfs_sim *sim, const char *key, promise *p, bool evict, uint64_t seed) {
    bool put[N] = {false};
    hd_err err;
    store_opts o = {.dir = "sim",
                    .fs = &sim->table,
                    .key_file = key,
                    .segment_bytes = 2500,
                    .retry_ms = 600000,
                    .queue_bytes = 1 << 20,
                    .max_queued = 64};
    store *s;
    if (evict) o.max_files = 2;
    if (store_open(&s, &o, &err)) return;
    for (int i = 0; i < N; i++) {
        put[i] = store_put(s, &pages[i].page, 20000) == HD_OK;
        if (i == 4 || i == N - 1) {
            bool ok = store_flush(s, 20000, &err) == HD_OK;
            for (int k = 0; k <= i; k++) {
                if (put[k] && ok) p->durable[k] = true;
                put[k] = false;
            }
        }
        for (int k = 0; k <= i; k++)
            if (page_get(s, &pages[k]) == PAGE_WRONG) fail_msg("seed %d: wrong while it lived", (int)seed);
    }
    store_close(s);
}

static void inspect(vfs_sim *sim, const char *key, const promise *p, bool must, const char *what, long n, uint64_t seed) {
    hd_err err;
    store *s = open_on(sim, key, 0, &err);
    if (!s) fail_msg("%s, op %ld, seed %d: cannot open again: %s", what, n, (int)seed, err.msg);
    for (int i = 0; i < N; i++) {
        page_got got = page_get(s, &pages[i]);
        if (got == PAGE_WRONG) fail_msg("%s, op %ld, seed %d: page %d is wrong", what, n, (int)seed, i);
        if (must && p->durable[i] && got == PAGE_MISS) fail_msg("%s, op %ld, seed %d: page %d was durable", what, n, (int)seed, i);
    }
    /* It works as before. */
    for (int i = 0; i < N; i++) assert_int_equal(store_put(s, &pages[i].page, 20000), HD_OK);
    if (store_flush(s, 20000, &err)) fail_msg("%s, op %ld: %s", what, n, err.msg);
    for (int i = 0; i < N; i++) assert_int_equal(page_get(s, &pages[i]), PAGE_HIT);
    store_close(s);
}

static int lives;

/* For every operation of a life: it fails, once or from then on, with or without a power cut afterwards. */
static void every_operation(const char *key, int fault, bool stays, bool cut, bool short_io, bool evict, const char *what,
                            int seeds) {
    bool reached = true;
    for (long n = 0; reached; n++)
        for (int seed = 0; seed < seeds; seed++) {
            static vfs_sim sim;
            promise p = {{false}};
            vfs_sim_init(&sim, (uint64_t)(n * 100 + seed));
            sim.fail_at = n;
            sim.fail_errno = fault;
            sim.fail_stays = stays;
            sim.short_io = short_io;
            live(&sim, key, &p, evict, (uint64_t)seed);
            lives++;
            reached = sim.n_ops > n;
            sim.fail_at = -1;
            if (cut) vfs_sim_cut(&sim);
            inspect(&sim, key, &p, !evict, what, n, (uint64_t)seed);
            vfs_sim_deinit(&sim);
            if (hd_mem_live()) fail_msg("%s, op %ld: %ld blocks leaked", what, n, hd_mem_live());
            if (n > 5000) fail_msg("no end");
        }
}

static void the_nth_operation_fails(void **state) {
    (void)state;
    every_operation(NULL, EIO, false, false, false, false, "EIO once", 1);
    every_operation(keys[0], EIO, false, false, false, false, "EIO once, encrypted", 1);
    every_operation(NULL, ENOSPC, true, false, false, false, "ENOSPC from then on", 1);
    every_operation(NULL, EIO, false, true, true, false, "EIO once, short, then a cut", 1);
    every_operation(NULL, EIO, false, false, false, true, "EIO once while evicting", 1);
    print_message("%d lives with a failing operation\n", lives);
    assert_true(lives > 300);
}

static void power_cuts(void **state) {
    int before = lives;
    (void)state;
    every_operation(NULL, EIO, true, true, false, false, "dead, then a cut", 6);
    every_operation(keys[0], EIO, true, true, true, false, "dead, then a cut, encrypted", 3);
    every_operation(NULL, EIO, true, true, false, true, "dead while evicting, then a cut", 3);
    print_message("%d power cuts\n", lives - before);
    assert_true(lives - before > 1000);
}

/* The simulated disk must itself lose things, or the tests above prove nothing. */
static void the_simulation_loses_what_is_not_synced(void **state) {
    int lost_file = 0, lost_data = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        vfs_sim sim;
        const vfs *fs = &sim.table;
        uint8_t data[2000], back[2000];
        vfs_stat st;
        int fd, kept;
        vfs_sim_init(&sim, seed);
        memset(data, 7, sizeof data);
        fd = fs->open(&sim, 0, "a.kv", VFS_MAKE);
        assert_int_equal(vfs_write(fs, fd, data, sizeof data, 0), 0);
        if (seed % 2) fs->sync(&sim, fd);
        fs->close(&sim, fd);
        if (seed % 4 >= 2) {
            fd = fs->open_dir(&sim, "", true);
            fs->sync(&sim, fd);
            fs->close(&sim, fd);
        }
        vfs_sim_cut(&sim);
        kept = fs->stat(&sim, 0, "a.kv", &st) == 0;
        if (seed % 4 >= 2) assert_true(kept);
        lost_file += !kept;
        if (kept) {
            fd = fs->open(&sim, 0, "a.kv", VFS_READ);
            bool whole = !vfs_read(fs, fd, back, sizeof back, 0) && !memcmp(back, data, sizeof back);
            fs->close(&sim, fd);
            if (seed % 2) assert_true(whole);
            lost_data += !whole;
        }
        vfs_sim_deinit(&sim);
    }
    assert_in_range(lost_file, 10, 40);
    assert_in_range(lost_data, 10, 50);
}

static int make(void **state) {
    (void)state;
    hd_log_set(HD_LOG_ERROR);
    if (!mkdtemp(dir)) return -1;
    for (int i = 0; i < 2; i++) {
        FILE *f;
        snprintf(keys[i], sizeof keys[i], "%s/key%d", dir, i);
        if (!(f = fopen(keys[i], "w"))) return -1;
        fprintf(f, "%064d\n", i + 1);
        fclose(f);
        chmod(keys[i], 0600);
    }
    for (uint32_t i = 0; i < N; i++) page_fill(&pages[i], 1, i / 6, i % 6, 700, 200);
    return 0;
}

static int clean(void **state) {
    char cmd[100];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_simulation_loses_what_is_not_synced),
        cmocka_unit_test(spoiled_files),
        cmocka_unit_test(spoiled_encrypted_files),
        cmocka_unit_test(the_nth_operation_fails),
        cmocka_unit_test(power_cuts),
    };
    return cmocka_run_group_tests_name("store faults", tests, make, clean);
}
