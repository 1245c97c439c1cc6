/* test_exec_disk.c - the disk tier under the executor: what was computed before a restart, or had to make room, comes back
 * from disk, answers are those of a cold engine to the bit, and damage costs time only. */
#include "base/mem.h"
#include "exec/engine.h"
#include "tiny/tiny_model.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 16, LONG = 300 };

static hd_err err;
static char dir[] = "/tmp/heddle-disk-XXXXXX";
static int32_t prompt[LONG];

typedef struct {
    char path[40];
    store *st;
    model *m;
    engine *e;
} rig;

static const vfs *disk;       /* NULL: the real one */
static uint64_t segment_bytes; /* 0: the store's own */
static uint64_t other_weights; /* added to the seed of the model's weights */

static rig open_rig(const char *variant, uint64_t budget, bool with_store) {
    rig r = {.path = "/tmp/heddle-disk-m-XXXXXX"};
    tiny_variant v = *tiny_variant_find(variant);
    model_options mo = {.n_threads = 1};
    store_opts so = {.dir = dir, .linger_ms = 1, .fs = disk, .segment_bytes = segment_bytes, .queue_bytes = 2 * segment_bytes};
    engine_options eo = {.page_tokens = PAGE, .step_tokens = 64, .kv_budget_bytes = budget, .ctx = 512};
    int fd = mkstemp(r.path);
    assert_true(fd >= 0);
    close(fd);
    v.seed += other_weights;
    assert_int_equal(tiny_model_write(&v, NULL, r.path), 0);
    if (with_store && store_open(&r.st, &so, &err)) fail_msg("%s", err.msg);
    eo.store = r.st;
    if (model_open(&r.m, r.path, &mo, &err) || engine_open(&r.e, r.m, &eo, &err)) fail_msg("%s", err.msg);
    return r;
}

static void close_rig(rig *r) {
    engine_close(r->e);
    if (r->st) store_close(r->st);
    model_close(r->m);
    unlink(r->path);
}

static gen_request asks(uint32_t n) {
    gen_request q = {.id = "", .prompt = prompt, .n_prompt = n, .max_tokens = 20, .ignore_eos = true};
    sampling_defaults(&q.sampling);
    q.sampling.seed = 5;
    q.sampling.logprobs = true;
    q.sampling.n_top_logprobs = 5;
    return q;
}

static run_result ask(rig *r, uint32_t n) {
    gen_request q = asks(n);
    run_result out;
    run_all(r->e, &q, 1, NULL, &out);
    return out;
}

static void same(const run_result *a, run_result *b) {
    const char *what = run_result_differs(a, b);
    if (what) fail_msg("%s differ", what);
}

/* All files of the tier: remove them, or change a byte of each at a random place. */
static void each_file(bool damage, uint64_t *seed) {
    char path[300];
    DIR *d;
    struct dirent *e;
    snprintf(path, sizeof path, "%s/kv", dir);
    if (!(d = opendir(path))) return;
    while ((e = readdir(d))) {
        if (!strstr(e->d_name, ".kv")) continue;
        snprintf(path, sizeof path, "%s/kv/%.200s", dir, e->d_name);
        if (damage) {
            int fd = open(path, O_RDWR);
            off_t size = lseek(fd, 0, SEEK_END), at = (off_t)rng_below(seed, (uint32_t)size);
            uint8_t b;
            assert_int_equal(pread(fd, &b, 1, at), 1);
            b ^= (uint8_t)(1u << rng_below(seed, 8));
            assert_int_equal(pwrite(fd, &b, 1, at), 1);
            close(fd);
        } else {
            unlink(path);
        }
    }
    closedir(d);
}

static const char *const variants[] = {"llama", "gemma3", "q4_k"};

static void a_restart(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        rig r = open_rig(variants[i], 64 << 20, false);
        run_result cold = ask(&r, LONG), warm;
        close_rig(&r);
        r = open_rig(variants[i], 64 << 20, true);
        warm = ask(&r, LONG);
        same(&cold, &warm);
        assert_int_equal(warm.cached_tokens, 0); /* nothing of the models before: their identity is another */
        run_result_deinit(&warm);
        close_rig(&r);
        r = open_rig(variants[i], 64 << 20, true);
        warm = ask(&r, LONG);
        same(&cold, &warm);
        assert_int_equal(warm.cached_tokens, LONG / PAGE * PAGE); /* whole pages */
        run_result_deinit(&warm);
        close_rig(&r);
        run_result_deinit(&cold);
    }
    each_file(false, NULL);
}

/* A budget that holds two of eight conversations: the others come back from disk. */
static void evicted_and_back(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        run_result cold[8], warm;
        uint32_t again = 0;
        rig c = open_rig(variants[i], 64 << 20, false), r;
        engine_view v = {0};
        for (int k = 0; k < 8; k++) prompt[0] = k, cold[k] = ask(&c, LONG);
        engine_look(c.e, &v);
        close_rig(&c);
        r = open_rig(variants[i], (v.kv_bytes_cached / 8) * 5 / 2, true);
        for (int round = 0; round < 3; round++)
            for (int k = 0; k < 8; k++) {
                prompt[0] = k;
                warm = ask(&r, LONG);
                same(&cold[k], &warm);
                again += warm.cached_tokens;
                run_result_deinit(&warm);
                assert_int_equal(store_flush(r.st, 10000, &err), HD_OK);
            }
        if (again < 2 * 8 * (LONG / PAGE - 1) * PAGE) fail_msg("%s: %u tokens came back", variants[i], again);
        close_rig(&r);
        for (int k = 0; k < 8; k++) run_result_deinit(&cold[k]);
        prompt[0] = 0;
        each_file(false, NULL);
    }
}

static void damage_costs_time_only(void **state) {
    uint64_t seed = 3;
    uint32_t whole = 0;
    rig c = open_rig("gemma3", 64 << 20, false);
    run_result cold = ask(&c, LONG);
    (void)state;
    close_rig(&c);
    for (int round = 0; round < 40; round++) {
        rig r = open_rig("gemma3", 64 << 20, true);
        run_result warm = ask(&r, LONG);
        same(&cold, &warm);
        whole += warm.cached_tokens == LONG / PAGE * PAGE;
        run_result_deinit(&warm);
        close_rig(&r);
        each_file(true, &seed);
    }
    assert_true(whole < 40); /* some damage was met */
    run_result_deinit(&cold);
    each_file(false, NULL);
}

static int make_dir(void **state) {
    uint64_t seed = 1;
    (void)state;
    for (int i = 0; i < LONG; i++) prompt[i] = (int32_t)rng_below(&seed, 300);
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    char cmd[100];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

/* R020: the weights in effect count, not a name.  The same architecture, name and shapes with other weights finds nothing of the
 * first, and answers as it does cold. */
static void r020_other_weights_of_the_same_name(void **state) {
    rig r = open_rig("llama", 64 << 20, true);
    run_result first = ask(&r, LONG), cold, warm;
    (void)state;
    close_rig(&r);
    other_weights = 1000;
    r = open_rig("llama", 64 << 20, false);
    cold = ask(&r, LONG);
    close_rig(&r);
    assert_non_null(run_result_differs(&first, &cold));
    r = open_rig("llama", 64 << 20, true);
    warm = ask(&r, LONG);
    close_rig(&r);
    same(&cold, &warm);
    assert_int_equal(warm.cached_tokens, 0);
    other_weights = 0;
    run_result_deinit(&warm);
    r = open_rig("llama", 64 << 20, true); /* and the first one's are still there */
    warm = ask(&r, LONG);
    close_rig(&r);
    same(&first, &warm);
    assert_int_equal(warm.cached_tokens, LONG / PAGE * PAGE);
    run_result_deinit(&warm);
    run_result_deinit(&cold);
    run_result_deinit(&first);
    each_file(false, NULL);
}

/* R024: a long preamble, then tasks that differ; the server starts again in between.  All whole pages of what is shared come back,
 * also where the first request went on far beyond them. */
static void r024_a_shared_preamble(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const uint32_t shared = 210;
        int32_t keep[LONG];
        run_result cold, warm;
        rig r = open_rig(variants[i], 64 << 20, true);
        memcpy(keep, prompt, sizeof keep);
        warm = ask(&r, LONG);
        run_result_deinit(&warm);
        close_rig(&r);
        for (uint32_t k = shared; k < LONG; k++) prompt[k] = 35 + (prompt[k] + 7) % 200;
        r = open_rig(variants[i], 64 << 20, false);
        cold = ask(&r, LONG - 40);
        close_rig(&r);
        r = open_rig(variants[i], 64 << 20, true);
        warm = ask(&r, LONG - 40);
        close_rig(&r);
        same(&cold, &warm);
        assert_int_equal(warm.cached_tokens, shared / PAGE * PAGE);
        run_result_deinit(&warm);
        run_result_deinit(&cold);
        memcpy(prompt, keep, sizeof keep);
        each_file(false, NULL);
    }
}

/* A disk that takes one file and then no more. */
static int files_taken;
static int one_file(void *ctx, int fd, uint64_t size) { return files_taken++ ? -ENOSPC : vfs_real.reserve(ctx, fd, size); }

/* When there is not the time, or the room, to write all that is cached at the end, beginnings are what is written: ends are
 * of no use without them. */
static void beginnings_first(void **state) {
    vfs small = vfs_real;
    rig r;
    run_result cold, warm;
    (void)state;
    small.reserve = one_file;
    for (size_t i = 0; i < 2; i++) {
        files_taken = 0;
        disk = &small;
        segment_bytes = 64 << 10;
        r = open_rig(variants[i], 64 << 20, true);
        cold = ask(&r, LONG);
        close_rig(&r);
        assert_true(files_taken > 1);
        disk = NULL;
        segment_bytes = 0;
        r = open_rig(variants[i], 64 << 20, true);
        warm = ask(&r, LONG);
        same(&cold, &warm);
        assert_in_range(warm.cached_tokens, PAGE, LONG - 2 * PAGE);
        run_result_deinit(&warm);
        run_result_deinit(&cold);
        close_rig(&r);
        each_file(false, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart),
        cmocka_unit_test(evicted_and_back),
        cmocka_unit_test(damage_costs_time_only),
        cmocka_unit_test(beginnings_first),
        cmocka_unit_test(r020_other_weights_of_the_same_name),
        cmocka_unit_test(r024_a_shared_preamble),
    };
    return cmocka_run_group_tests_name("disk tier", tests, make_dir, remove_dir);
}
