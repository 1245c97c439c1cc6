/* test_pack.c - packed weights on disk: what is found is what was written, and whatever is wrong is a miss with the same answers.
 *
 * The files of the first half hold random bytes instead of weights; pack.h does not know the difference.  The second half opens
 * small models with a packing directory and compares whole generations with those of a model opened without one.  The demo
 * model takes part where $HEDDLE_TEST_MODEL names it: peak memory of `heddle generate`, with and without a packed file. */
#include "base/log.h"
#include "base/mem.h"
#include "base/topology.h"
#include "exec/plan.h"
#include "model/pack_int.h"
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
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 2 * PACK_PIECE + 12345, MUTATIONS = 150 };

static char root[] = "/tmp/heddle-pack-XXXXXX", dir[64], model_path[64];
static pool *crew;
static gguf *source; /* of model_path */
static uint8_t *bytes;
static pack_want want;

static void sleep_for_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* ---- files ---- */

static void clear_dir(void) {
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    assert_int_equal(system(cmd), 0);
}

/* Number of our files with this ending; their bytes are added to *size, which may be NULL. */
static int count_files(const char *ending, uint64_t *size) {
    struct dirent *e;
    struct stat sb;
    int n = 0;
    DIR *d = opendir(dir);
    while (d && (e = readdir(d))) {
        size_t len = strlen(e->d_name), m = strlen(ending);
        if (len < m || strcmp(e->d_name + len - m, ending)) continue;
        n++;
        if (size && !fstatat(dirfd(d), e->d_name, &sb, 0)) *size += (uint64_t)sb.st_size;
    }
    if (d) closedir(d);
    return n;
}

static const char *path_of(const pack_want *w) {
    static char path[128];
    char name[PACK_NAME];
    pack_name(w, name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static bool exists(const pack_want *w) { return access(path_of(w), F_OK) == 0; }

static bool write_packed(const pack_want *w, uint64_t cap) {
    pack_writer *pw;
    hd_err err;
    assert_int_equal(pack_writer_start(&pw, dir, cap, w, bytes, source, &err), HD_OK);
    return pack_writer_finish(pw);
}

static uint8_t *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    uint8_t *p;
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    assert_non_null(p = malloc(*n + 1));
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

/* In writes of `chunk` bytes: small ones leave small folios in the page cache. */
static void write_file(const char *path, const uint8_t *p, size_t n, size_t chunk) {
    int fd;
    unlink(path);
    assert_true((fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600)) >= 0);
    for (size_t at = 0; at < n; at += chunk) {
        size_t k = n - at < chunk ? n - at : chunk;
        assert_int_equal(write(fd, p + at, k), k);
    }
    close(fd);
}

static pack_found load(const pack_want *w) {
    pack_block b;
    uint8_t digest[16];
    pack_found found = pack_load(&b, dir, w, crew);
    if (found) {
        assert_true(gguf_digest(source, digest));
        assert_memory_equal(b.digest, digest, sizeof digest);
        assert_int_equal((uintptr_t)b.data % 64, 0);
        assert_int_equal(b.mapped, found == PACK_MAPPED);
        assert_memory_equal(b.data, bytes, w->bytes);
    } else {
        assert_null(b.data);
        assert_null(b.map);
    }
    pack_free(&b);
    return found;
}

/* ---- packed files ---- */

static void found_again(void **state) {
    struct stat sb;
    (void)state;
    clear_dir();
    assert_int_equal(load(&want), PACK_MISS); /* no directory */
    assert_true(write_packed(&want, 0));
    assert_int_not_equal(load(&want), PACK_MISS);
    assert_int_not_equal(load(&want), PACK_MISS);
    assert_int_equal(stat(path_of(&want), &sb), 0);
    assert_int_equal(sb.st_size, pack_file_bytes(want.bytes));
    assert_int_equal(sb.st_mode & 0777, 0400);
    assert_int_equal(stat(dir, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    assert_int_equal(count_files(".pack", NULL), 1);
    assert_int_equal(count_files(".tmp", NULL), 0);
    /* It is there: nobody writes it again. */
    assert_false(write_packed(&want, 0));
}

/* A file in small folios is read; from its big ones the file system may have it mapped.  Both are the same bytes. */
static void read_where_pages_are_small(void **state) {
    size_t n;
    uint8_t *p;
    (void)state;
    clear_dir();
    assert_true(write_packed(&want, 0));
    p = read_file(path_of(&want), &n);
    write_file(path_of(&want), p, n, 4096);
    assert_int_equal(load(&want), PACK_READ);
    free(p);
}

/* Every byte that has a meaning, cuts, and bytes too many.  A damaged file is removed. */
static void damage_is_a_miss(void **state) {
    uint64_t rng = 7, n_pieces = pack_pieces(want.bytes), data_at = pack_data_at(n_pieces);
    size_t n, k;
    uint8_t *p, *q;
    (void)state;
    clear_dir();
    assert_true(write_packed(&want, 0));
    p = read_file(path_of(&want), &n);
    assert_non_null(q = malloc(n + 4096));
    for (int i = 0; i < MUTATIONS; i++) {
        size_t len = n, at;
        memcpy(q, p, n);
        switch (i % 6) {
        case 0: q[rng_below(&rng, sizeof(pack_head))] ^= (uint8_t)(1 << rng_below(&rng, 8)); break;
        case 1: q[PACK_HEAD_BYTES + rng_below(&rng, (uint32_t)n_pieces * 8)] ^= (uint8_t)(1 << rng_below(&rng, 8)); break;
        case 2: q[data_at + rng_below(&rng, (uint32_t)want.bytes)] ^= (uint8_t)(1 << rng_below(&rng, 8)); break;
        case 3: len = rng_below(&rng, (uint32_t)n); break;
        case 4: /* a sector that never reached the disk, or another one's */
            at = data_at + rng_below(&rng, (uint32_t)want.bytes / 4096) * 4096;
            if (rng_below(&rng, 2)) memset(q + at, 0, 4096);
            else memcpy(q + at, p + data_at + (at == data_at ? 4096 : 0), 4096);
            break;
        default: /* pieces that changed places */
            memcpy(q + data_at, p + data_at + PACK_PIECE, PACK_PIECE);
            memcpy(q + data_at + PACK_PIECE, p + data_at, PACK_PIECE);
            break;
        }
        write_file(path_of(&want), q, len, i % 2 ? 4096 : len + 1);
        if (load(&want)) fail_msg("mutation %d was not noticed", i);
        assert_false(exists(&want));
    }
    for (k = 1; k <= 4096; k += 4095) {
        memcpy(q, p, n);
        memset(q + n, 0, 4096);
        write_file(path_of(&want), q, n + k, n + k);
        assert_int_equal(load(&want), PACK_MISS);
    }
    write_file(path_of(&want), p, n, n);
    assert_int_not_equal(load(&want), PACK_MISS); /* the test's own writing is not what was noticed */
    free(q);
    free(p);
}

/* Another model, version, layout or plan has another name; and under the right name it is still not it. */
static void others_are_a_miss(void **state) {
    pack_want w[6];
    size_t n;
    uint8_t *p;
    (void)state;
    clear_dir();
    assert_true(write_packed(&want, 0));
    p = read_file(path_of(&want), &n);
    for (int i = 0; i < 5; i++) {
        w[i] = want;
        switch (i) {
        case 0: w[i].mark[15] ^= 1; break;
        case 1: w[i].plan[0] ^= 128; break;
        case 2: w[i].version++; break;
        case 3: strcpy(w[i].layout, "rows16"); break;
        default: w[i].bytes -= 64; break;
        }
        assert_false(exists(&w[i]));
        assert_int_equal(load(&w[i]), PACK_MISS);
        write_file(path_of(&w[i]), p, n, n);
        assert_int_equal(load(&w[i]), PACK_MISS);
    }
    assert_int_not_equal(load(&want), PACK_MISS);
    free(p);
}

/* How many warnings that writing gives; it must write nothing. */
static int warnings_of_writing(void) {
    char path[80], line[400];
    int was = dup(2), n = 0, fd;
    FILE *f;
    snprintf(path, sizeof path, "%s/said", root);
    fflush(stderr);
    assert_true((fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
    hd_log_set(HD_LOG_WARN);
    dup2(fd, 2);
    bool wrote = write_packed(&want, 0);
    fflush(stderr);
    hd_log_set(HD_LOG_ERROR);
    dup2(was, 2);
    close(was), close(fd);
    assert_false(wrote);
    assert_non_null(f = fopen(path, "r"));
    while (fgets(line, sizeof line, f)) n += strstr(line, "is no file of this user") != NULL;
    fclose(f);
    unlink(path);
    return n;
}

static void odd_things_in_the_directory(void **state) {
    char to[80];
    (void)state;
    clear_dir();
    assert_true(write_packed(&want, 0));
    snprintf(to, sizeof to, "%s/target", root);
    assert_int_equal(rename(path_of(&want), to), 0);
    assert_int_equal(symlink(to, path_of(&want)), 0);
    assert_int_equal(load(&want), PACK_MISS); /* not followed */
    unlink(path_of(&want));
    assert_int_equal(mkfifo(path_of(&want), 0600), 0);
    assert_int_equal(load(&want), PACK_MISS); /* and no waiting */
    unlink(path_of(&want));
    assert_int_equal(mkdir(path_of(&want), 0700), 0);
    assert_int_equal(load(&want), PACK_MISS);
    assert_int_equal(warnings_of_writing(), 1); /* it will be so at every start */
    assert_int_equal(rmdir(path_of(&want)), 0);
    /* Of another user: not used, and not ours to remove. */
    if (geteuid() == 0) {
        assert_true(write_packed(&want, 0));
        assert_int_equal(chown(path_of(&want), 12345, 12345), 0);
        assert_int_equal(load(&want), PACK_MISS);
        assert_int_equal(warnings_of_writing(), 1);
        assert_true(exists(&want));
        assert_int_equal(chown(path_of(&want), 0, 0), 0);
        assert_int_equal(warnings_of_writing(), 0); /* it was written before */
    }
    unlink(to);
}

static void directories_that_cannot_be_written(void **state) {
    char keep[sizeof dir];
    (void)state;
    memcpy(keep, dir, sizeof dir);
    snprintf(dir, sizeof dir, "%s/llama.gguf/packed", root); /* under a file */
    assert_int_equal(load(&want), PACK_MISS);
    assert_false(write_packed(&want, 0));
    snprintf(dir, sizeof dir, "%s/not/there", root);
    assert_false(write_packed(&want, 0));
    memcpy(dir, keep, sizeof dir);
}

/* The thread sanitizer lets no child of a process with threads start its own. */
static void needs_fork(void) {
#if defined __SANITIZE_THREAD__
    print_message("skipped: children with threads are nothing for the thread sanitizer\n");
    skip();
#endif
}

/* The disk is full: the system refuses to make the file so large. */
static void no_room_on_the_disk(void **state) {
    int status;
    pid_t pid;
    (void)state;
    needs_fork();
    clear_dir();
    fflush(NULL);
    if ((pid = fork()) == 0) {
        struct rlimit small = {PACK_PIECE * 2, PACK_PIECE * 2};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &small)) _exit(2);
        _exit(write_packed(&want, 0));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(count_files(".pack", NULL) + count_files(".tmp", NULL), 0);
}

static void cap_and_least_recently_used(void **state) {
    pack_want w[4];
    uint64_t one = pack_file_bytes(want.bytes), size;
    pack_block held;
    struct timespec old[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    char path[128];
    int fd;
    (void)state;
    clear_dir();
    assert_false(write_packed(&want, one - 1)); /* never fits */
    assert_int_equal(count_files(".pack", NULL), 0);
    for (int i = 0; i < 4; i++) {
        w[i] = want;
        w[i].mark[0] = (uint8_t)i;
    }
    assert_true(write_packed(&w[0], 2 * one + 100));
    assert_true(write_packed(&w[1], 2 * one + 100));
    /* Long unused, both; one is used again, and mapped. */
    for (int i = 0; i < 2; i++) {
        old[1].tv_sec = 1000 + i;
        assert_int_equal(utimensat(AT_FDCWD, path_of(&w[i]), old, 0), 0);
    }
    assert_int_not_equal(pack_load(&held, dir, &w[0], crew), PACK_MISS);
    assert_true(write_packed(&w[2], 2 * one + 100));
    assert_true(exists(&w[0]));
    assert_false(exists(&w[1]));
    assert_true(write_packed(&w[3], one)); /* a smaller cap is the one that holds: all others go */
    size = 0;
    assert_int_equal(count_files(".pack", &size), 1);
    assert_int_equal(size, one);
    assert_memory_equal(held.data, bytes, want.bytes); /* whoever maps it keeps it */
    pack_free(&held);
    /* What a dead writer left goes; what others put there stays. */
    snprintf(path, sizeof path, "%s/%032d.tmp", dir, 0);
    write_file(path, bytes, 1000, 1000);
    snprintf(path, sizeof path, "%s/notes.pack", dir);
    write_file(path, bytes, 1000, 1000);
    assert_true(write_packed(&w[0], 4 * one));
    assert_int_equal(count_files(".tmp", NULL), 0);
    assert_int_equal(access(path, F_OK), 0);
    /* A living one keeps its file, and counts. */
    snprintf(path, sizeof path, "%s/%032d.tmp", dir, 0);
    assert_true((fd = open(path, O_RDWR | O_CREAT, 0600)) >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(4 * one)), 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_false(write_packed(&w[1], 4 * one));
    assert_int_equal(access(path, F_OK), 0);
    assert_true(exists(&w[0]) && exists(&w[3])); /* nothing goes for what is not written then */
    close(fd);
}

/* Processes that write the same at once, some killed at it. */
static void writers_together_and_killed(void **state) {
    uint64_t rng = 99;
    pack_want other;
    (void)state;
    needs_fork();
    for (int round = 0; round < 12; round++) {
        pid_t pid[4];
        clear_dir();
        fflush(NULL);
        for (int i = 0; i < 4; i++) {
            if ((pid[i] = fork()) == 0) {
                (void)write_packed(&want, 0);
                _exit(0);
            }
        }
        if (round % 3) {
            sleep_for_ms((long)rng_below(&rng, 30));
            for (int i = 0; i < (round % 3 == 1 ? 2 : 4); i++) kill(pid[i], SIGKILL);
        }
        for (int i = 0; i < 4; i++) assert_int_equal(waitpid(pid[i], NULL, 0), pid[i]);
        if (round % 3 == 0) assert_true(exists(&want));
        if (!load(&want)) {
            assert_true(write_packed(&want, 0));
            assert_int_equal(count_files(".tmp", NULL), 0);
        }
        assert_int_not_equal(load(&want), PACK_MISS);
        assert_int_equal(count_files(".pack", NULL), 1);
        /* One that was killed may leave its file beside a whole one; the next writer of anything removes it. */
        assert_in_range(count_files(".tmp", NULL), 0, round % 3 != 0);
        other = want;
        other.mark[3] ^= 1;
        assert_true(write_packed(&other, 0));
        assert_int_equal(count_files(".tmp", NULL), 0);
    }
}

static void allocations_refused(void **state) {
    pack_writer *pw;
    hd_err err;
    long live = hd_mem_live();
    (void)state;
    clear_dir();
    for (long n = 0;; n++) {
        hd_status st;
        hd_mem_fail_after(n);
        st = pack_writer_start(&pw, dir, 0, &want, bytes, source, &err);
        hd_mem_fail_after(-1);
        if (st == HD_OK) break;
        assert_int_equal(st, HD_NOMEM);
        assert_null(pw);
        assert_int_equal(hd_mem_live(), live);
    }
    assert_true(pack_writer_finish(pw));
    hd_mem_fail_after(0);
    assert_int_equal(load(&want), PACK_MISS);
    hd_mem_fail_after(-1);
    assert_true(exists(&want)); /* it is not the file's fault */
    assert_int_not_equal(load(&want), PACK_MISS);
    assert_int_equal(hd_mem_live(), live);
}

/* ---- the model file's mark ---- */

static void mark_of(const char *path, uint8_t out[16], bool settled) {
    gguf *g;
    hd_err err;
    assert_int_equal(gguf_open(&g, path, &err), HD_OK);
    assert_true(gguf_mark(g, out));
    assert_int_equal(gguf_settled(g), settled);
    gguf_close(g);
}

static void marks(void **state) {
    uint8_t a[16], b[16];
    char copy[64], cmd[200];
    struct stat sb;
    struct timespec t[2];
    gguf *g;
    hd_err err;
    int fd;
    (void)state;
    snprintf(copy, sizeof copy, "%s/copy.gguf", root);
    snprintf(cmd, sizeof cmd, "cp %s %s", model_path, copy);
    assert_int_equal(system(cmd), 0);
    mark_of(model_path, a, true);
    mark_of(model_path, b, true);
    assert_memory_equal(a, b, 16);
    mark_of(copy, b, false); /* just written */
    assert_memory_not_equal(a, b, 16);
    sleep_for_ms(1100);
    mark_of(copy, a, true);
    /* One byte of a tensor changes, and size and time of modification are as before. */
    assert_int_equal(gguf_open(&g, copy, &err), HD_OK);
    assert_int_equal(stat(copy, &sb), 0);
    assert_true((fd = open(copy, O_RDWR)) >= 0);
    assert_int_equal(pwrite(fd, "x", 1, sb.st_size - 5000), 1);
    t[0] = sb.st_atim, t[1] = sb.st_mtim;
    assert_int_equal(futimens(fd, t), 0);
    close(fd);
    assert_false(gguf_settled(g)); /* who has it open notices too */
    gguf_close(g);
    mark_of(copy, b, false);
    assert_memory_not_equal(a, b, 16);
    unlink(copy);
    assert_int_equal(gguf_open(&g, model_path, &err), HD_OK);
    gguf_close(g);
}

/* ---- models ---- */

typedef struct {
    run_result r;
    weights_from from;
    uint8_t identity[32];
} answer;

static void ask(answer *a, const char *path, const char *pack_dir, unsigned threads) {
    static const int32_t prompt[] = {72, 101, 108, 108, 111};
    engine_options eo = {.kv_budget_bytes = 16 << 20, .ctx = 64};
    gen_request q = {.id = "", .prompt = prompt, .n_prompt = 5, .max_tokens = 12};
    model_options mo = {.n_threads = threads, .pack_dir = pack_dir};
    model *m;
    engine *e;
    hd_err err;
    memset(a, 0, sizeof *a);
    if (model_open(&m, path, &mo, &err)) fail_msg("%s: %s", path, err.msg);
    assert_int_equal(engine_open(&e, m, &eo, &err), HD_OK);
    a->from = model_get(m)->weights;
    assert_int_equal(model_identity(m, a->identity, &err), HD_OK);
    sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.logprobs = true;
    q.sampling.n_top_logprobs = 20;
    run_all(e, &q, 1, NULL, &a->r);
    assert_int_not_equal(a->r.finish, FINISH_FAILED);
    engine_close(e);
    model_close(m);
}

static void same(const answer *a, answer *b) {
    const char *what = run_result_differs(&a->r, &b->r);
    if (what) fail_msg("another answer: %s", what);
    assert_memory_equal(a->identity, b->identity, sizeof a->identity);
    run_result_deinit(&b->r);
}

static void answers_are_the_same(void **state) {
    static const char *const names[] = {"llama", "llama-untied", "llama-bias", "llama-f16", "qwen2", "q4_0-head8"};
    char path[64];
    struct dirent *e;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/v%zu.gguf", root, i);
        assert_int_equal(tiny_model_write(tiny_variant_find(names[i]), NULL, path), 0);
    }
    sleep_for_ms(1100);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        answer plain, a;
        DIR *d;
        snprintf(path, sizeof path, "%s/v%zu.gguf", root, i);
        clear_dir();
        ask(&plain, path, NULL, 1);
        ask(&a, path, dir, 2);
        assert_int_equal(a.from, WEIGHTS_PACKED);
        same(&plain, &a);
        ask(&a, path, dir, 1);
        assert_int_not_equal(a.from, WEIGHTS_PACKED);
        same(&plain, &a);
        /* A bit of the weights turns: packed anew, and kept again. */
        assert_non_null(d = opendir(dir));
        while ((e = readdir(d))) {
            char file[400];
            uint8_t *p;
            size_t n;
            if (!strstr(e->d_name, ".pack")) continue;
            snprintf(file, sizeof file, "%s/%s", dir, e->d_name);
            p = read_file(file, &n);
            p[PACK_PIECE + 4711] ^= 4;
            write_file(file, p, n, n);
            free(p);
        }
        closedir(d);
        ask(&a, path, dir, 2);
        assert_int_equal(a.from, WEIGHTS_PACKED);
        same(&plain, &a);
        ask(&a, path, dir, 3);
        assert_int_not_equal(a.from, WEIGHTS_PACKED);
        same(&plain, &a);
        run_result_deinit(&plain.r);
        unlink(path);
    }
}

/* The model file becomes another one in its place, of the same size and with the same time of modification. */
static void a_changed_model_is_packed_anew(void **state) {
    tiny_variant v = *tiny_variant_find("llama");
    answer first, other, a;
    char path[64], moved[64];
    struct stat sb;
    struct timespec t[2];
    size_t n;
    uint8_t *p;
    int fd;
    (void)state;
    clear_dir();
    snprintf(path, sizeof path, "%s/changing.gguf", root);
    snprintf(moved, sizeof moved, "%s/moved.gguf", root);
    assert_int_equal(tiny_model_write(&v, NULL, path), 0);
    ask(&a, path, dir, 1); /* just written: not kept */
    run_result_deinit(&a.r);
    assert_int_equal(count_files(".pack", NULL), 0);
    sleep_for_ms(1100);
    ask(&first, path, dir, 1);
    ask(&a, path, dir, 1);
    assert_int_not_equal(a.from, WEIGHTS_PACKED);
    same(&first, &a);
    v.seed += 1000;
    assert_int_equal(tiny_model_write(&v, NULL, moved), 0);
    ask(&other, moved, NULL, 1);
    assert_non_null(run_result_differs(&first.r, &other.r));
    p = read_file(moved, &n);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_size, n);
    assert_true((fd = open(path, O_RDWR)) >= 0);
    assert_int_equal(pwrite(fd, p, n, 0), n);
    t[0] = sb.st_atim, t[1] = sb.st_mtim;
    assert_int_equal(futimens(fd, t), 0);
    close(fd);
    free(p);
    ask(&a, path, dir, 1);
    assert_int_equal(a.from, WEIGHTS_PACKED);
    same(&other, &a);
    run_result_deinit(&first.r);
    run_result_deinit(&other.r);
    unlink(path);
    unlink(moved);
}

/* Stores to a mapped page that was stored to before move no time: a model file that somebody can write to is not kept. */
static void mapped_for_writing(void **state) {
    char path[64];
    uint8_t mark[16];
    struct stat before, after;
    answer a;
    char *p;
    int fd;
    (void)state;
    clear_dir();
    snprintf(path, sizeof path, "%s/mapped.gguf", root);
    assert_int_equal(tiny_model_write(tiny_variant_find("llama"), NULL, path), 0);
    assert_true((fd = open(path, O_RDWR)) >= 0);
    assert_int_equal(fcntl(fd, F_SETLEASE, F_RDLCK), -1);
    if (errno != EAGAIN) { /* a file system without leases */
        print_message("skipped: no leases in %s\n", root);
        close(fd);
        skip();
    }
    assert_int_equal(fstat(fd, &before), 0);
    p = mmap(NULL, (size_t)before.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    close(fd); /* the mapping is enough */
    *(volatile char *)(p + before.st_size - 5000) ^= 1;
    assert_int_equal(stat(path, &before), 0);
    sleep_for_ms(1100);
    mark_of(path, mark, false);
    ask(&a, path, dir, 1);
    assert_int_equal(a.from, WEIGHTS_PACKED);
    run_result_deinit(&a.r);
    assert_int_equal(count_files(".pack", NULL), 0);
    *(volatile char *)(p + before.st_size - 5001) ^= 1;
    assert_int_equal(stat(path, &after), 0);
    if (before.st_ctim.tv_sec == after.st_ctim.tv_sec && before.st_ctim.tv_nsec == after.st_ctim.tv_nsec) print_message("this store moved no time\n");
    munmap(p, (size_t)before.st_size);
    sleep_for_ms(1100); /* it may have */
    mark_of(path, mark, true);
    ask(&a, path, dir, 1);
    run_result_deinit(&a.r);
    assert_int_equal(count_files(".pack", NULL), 1);
    unlink(path);
}

static void a_directory_that_cannot_be_used_costs_nothing(void **state) {
    answer plain, a;
    char bad[80];
    (void)state;
    snprintf(bad, sizeof bad, "%s/llama.gguf/packed", root);
    ask(&plain, model_path, NULL, 1);
    ask(&a, model_path, bad, 1);
    assert_int_equal(a.from, WEIGHTS_PACKED);
    same(&plain, &a);
    run_result_deinit(&plain.r);
}

/* ---- the program ---- */

static int run_heddle(const char *opts, const char *path) {
    char cmd[600];
    snprintf(cmd, sizeof cmd, "%s generate %s --prompt Hello -n 2 --threads 2 %s >/dev/null 2>%s/err", HEDDLE_BIN, path, opts, root);
    int rc = system(cmd);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static void options(void **state) {
    char o[300], keep[sizeof dir];
    (void)state;
    memcpy(keep, dir, sizeof dir);
    clear_dir();
    snprintf(o, sizeof o, "--state-dir %s/state --pack-cache off", root);
    assert_int_equal(run_heddle(o, model_path), 0);
    snprintf(dir, sizeof dir, "%s/state/packed", root);
    assert_int_equal(count_files(".pack", NULL), 0);
    snprintf(o, sizeof o, "--state-dir %s/state2", root); /* which is made */
    assert_int_equal(run_heddle(o, model_path), 0);
    snprintf(dir, sizeof dir, "%s/state2/packed", root);
    assert_int_equal(count_files(".pack", NULL), 1);
    memcpy(dir, keep, sizeof dir);
    snprintf(o, sizeof o, "--pack-cache %s --pack-cap 1M", dir); /* a line on stderr, and the answer */
    assert_int_equal(run_heddle(o, model_path), 0);
    assert_int_equal(count_files(".pack", NULL), 0);
    snprintf(o, sizeof o, "--pack-cache %s --pack-cap 1G", dir);
    assert_int_equal(run_heddle(o, model_path), 0);
    assert_int_equal(count_files(".pack", NULL), 1);
    assert_int_equal(run_heddle("--pack-cap 1G", model_path), 64);
}

/* Peak resident memory of `heddle generate` in KiB. */
static long peak_kib(const char *path, const char *pack) {
    char *argv[] = {(char *)HEDDLE_BIN, "generate", (char *)path, "--prompt", "Hello", "-n", "4", "--threads", "2",
                    "--pack-cache", (char *)pack, NULL};
    struct rusage use;
    int status;
    pid_t pid;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        if (!freopen("/dev/null", "w", stdout)) _exit(2);
        execv(HEDDLE_BIN, argv);
        _exit(3);
    }
    assert_int_equal(wait4(pid, &status, 0, &use), pid);
    assert_int_equal(status, 0);
    return use.ru_maxrss;
}

/* Never more than 1.15 times the file, and what is declared beside the weights.  Packing, finding it packed and mapped, and
 * finding it in small folios, when it is read. */
static void memory_of_the_demo_model(void **state) {
    const char *path = getenv("HEDDLE_TEST_MODEL");
    struct stat sb;
    model *m;
    hd_err err;
    model_options mo = {.sizes_only = true, .n_threads = 2};
    engine_options eo = {0};
    engine_plan plan;
    long limit;
    (void)state;
    if (!path || !*path) {
        print_message("skipped: HEDDLE_TEST_MODEL does not name a model\n");
        skip();
    }
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    print_message("skipped: a sanitizer's own memory hides what is measured\n");
    skip();
#endif
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(model_open(&m, path, &mo, &err), HD_OK);
    assert_int_equal(engine_plan_make(&plan, &eo, m, hd_memory_limit(), &err), HD_OK);
    limit = (long)((double)sb.st_size * 1.15 / 1024) + (long)(model_workspace_bytes(m, &plan.lim) / 1024);
    model_close(m);
    clear_dir();
    for (int i = 0; i < 4; i++) {
        long kib = peak_kib(path, i ? dir : "off");
        print_message("peak %ld KiB of %ld (%s)\n", kib, limit,
                      i == 0 ? "no packed file" : i == 1 ? "packed and written" : i == 2 ? "found packed" : "found in small folios");
        assert_true(kib <= limit);
        if (i == 2) {
            struct dirent *e;
            DIR *d = opendir(dir);
            while ((e = readdir(d))) {
                char file[400];
                uint8_t *p;
                size_t n;
                if (!strstr(e->d_name, ".pack")) continue;
                snprintf(file, sizeof file, "%s/%s", dir, e->d_name);
                p = read_file(file, &n);
                write_file(file, p, n, 4096);
                free(p);
            }
            closedir(d);
        }
    }
}

static int setup(void **state) {
    hd_err err;
    uint64_t rng = 5;
    (void)state;
    hd_log_set(HD_LOG_ERROR); /* the notices are wanted here */
    if (!mkdtemp(root)) return -1;
    snprintf(dir, sizeof dir, "%s/packed", root);
    snprintf(model_path, sizeof model_path, "%s/llama.gguf", root);
    if (tiny_model_write(tiny_variant_find("llama"), NULL, model_path)) return -1;
    sleep_for_ms(1100); /* until it is settled */
    if (pool_new(&crew, 2, &err) || gguf_open(&source, model_path, &err) || !(bytes = malloc(BYTES))) return -1;
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (uint8_t)rng_next(&rng);
    want = (pack_want){.version = 1, .layout = "rows8", .bytes = BYTES};
    memset(want.plan, 3, sizeof want.plan);
    return gguf_mark(source, want.mark) ? 0 : -1;
}

static int teardown(void **state) {
    char cmd[100];
    (void)state;
    gguf_close(source);
    pool_free(crew);
    free(bytes);
    snprintf(cmd, sizeof cmd, "rm -rf %s", root);
    return system(cmd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_again), cmocka_unit_test(read_where_pages_are_small), cmocka_unit_test(damage_is_a_miss),
        cmocka_unit_test(others_are_a_miss), cmocka_unit_test(odd_things_in_the_directory),
        cmocka_unit_test(directories_that_cannot_be_written), cmocka_unit_test(no_room_on_the_disk),
        cmocka_unit_test(cap_and_least_recently_used), cmocka_unit_test(writers_together_and_killed),
        cmocka_unit_test(allocations_refused), cmocka_unit_test(marks), cmocka_unit_test(answers_are_the_same),
        cmocka_unit_test(a_changed_model_is_packed_anew), cmocka_unit_test(mapped_for_writing),
        cmocka_unit_test(a_directory_that_cannot_be_used_costs_nothing),
        cmocka_unit_test(options), cmocka_unit_test(memory_of_the_demo_model),
    };
    return cmocka_run_group_tests_name("pack", tests, setup, teardown);
}
