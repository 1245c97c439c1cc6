/* test_store_salt.c - the salt of a state directory: one for all processes and restarts, damage and faults make a new one. */
#include "base/log.h"
#include "base/mem.h"
#include "state/store_int.h"
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
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_BYTES = STORE_SALT + SEAL_BYTES };

static char dir[] = "/tmp/heddle-salt-XXXXXX";

static store *open_store(const vfs *fs, const char *path, const char *key) {
    store_opts o = {.dir = path, .fs = fs, .key_file = key, .queue_bytes = 1 << 20, .max_queued = 16};
    hd_err err = {0};
    store *s;
    if (store_open(&s, &o, &err)) fail_msg("%s", err.msg);
    return s;
}

static bool salt_of(const vfs *fs, const char *path, const char *key, uint8_t out[STORE_SALT]) {
    store *s = open_store(fs, path, key);
    bool ok = store_salt(s, out);
    store_close(s);
    return ok;
}

static sim_file *file_of(vfs_sim *s, const char *name) {
    for (int i = 0; i < SIM_FILES; i++)
        if (s->names[i].f && !strcmp(s->names[i].name, name)) return s->names[i].f;
    return NULL;
}

static void the_same_again(void **state) {
    static vfs_sim sim;
    uint8_t a[STORE_SALT], b[STORE_SALT], zero[STORE_SALT] = {0};
    store *s, *t;
    (void)state;
    vfs_sim_init(&sim, 1);
    s = open_store(&sim.table, "x", NULL);
    t = open_store(&sim.table, "x", NULL);
    assert_true(store_salt(s, a));
    assert_true(store_salt(t, b));
    assert_memory_equal(a, b, STORE_SALT);
    assert_memory_not_equal(a, zero, STORE_SALT);
    store_close(s);
    store_close(t);
    assert_true(salt_of(&sim.table, "x", NULL, b));
    assert_memory_equal(a, b, STORE_SALT);
    assert_null(file_of(&sim, "salt.new"));
    vfs_sim_cut(&sim); /* what was answered is on the disk */
    assert_true(salt_of(&sim.table, "x", NULL, b));
    assert_memory_equal(a, b, STORE_SALT);
    vfs_sim_deinit(&sim);
    vfs_sim_init(&sim, 2);
    assert_true(salt_of(&sim.table, "x", NULL, b)); /* another directory, another salt */
    assert_memory_not_equal(a, b, STORE_SALT);
    vfs_sim_deinit(&sim);
}

/* Every byte wrong, every length: never an error, and one new salt from then on. */
static void damage(void **state) {
    (void)state;
    for (int i = 0; i < 2 * FILE_BYTES + 1; i++) {
        static vfs_sim sim;
        uint8_t a[STORE_SALT], b[STORE_SALT], c[STORE_SALT];
        sim_file *f;
        vfs_sim_init(&sim, (uint64_t)i);
        assert_true(salt_of(&sim.table, "x", NULL, a));
        assert_non_null(f = file_of(&sim, "salt"));
        assert_int_equal(f->size, FILE_BYTES);
        if (i < FILE_BYTES) {
            f->data[i] ^= (uint8_t)(1 << i % 8);
        } else if (i < 2 * FILE_BYTES) {
            f->size = (size_t)i - FILE_BYTES;
        } else {
            int fd = sim.table.open(&sim, 0, "salt", VFS_KEEP); /* one byte more */
            assert_int_equal(vfs_write(&sim.table, fd, "x", 1, FILE_BYTES), 0);
            sim.table.close(&sim, fd);
        }
        assert_true(salt_of(&sim.table, "x", NULL, b));
        assert_memory_not_equal(a, b, STORE_SALT);
        assert_true(salt_of(&sim.table, "x", NULL, c));
        assert_memory_equal(b, c, STORE_SALT);
        vfs_sim_deinit(&sim);
    }
}

/* Any operation fails, once or from then on, and the power goes: what was said to be kept is, and the next start works. */
static void faults(void **state) {
    int refused = 0;
    (void)state;
    for (int stays = 0; stays < 2; stays++)
        for (long n = 0;; n++) {
            static vfs_sim sim;
            uint8_t a[STORE_SALT], b[STORE_SALT], c[STORE_SALT];
            store *s;
            bool kept, reached;
            vfs_sim_init(&sim, (uint64_t)n);
            s = open_store(&sim.table, "x", NULL);
            sim.fail_at = sim.n_ops + n;
            sim.fail_errno = EIO;
            sim.fail_stays = stays;
            kept = store_salt(s, a);
            reached = sim.n_ops > sim.fail_at;
            store_close(s);
            sim.fail_at = -1;
            vfs_sim_cut(&sim);
            refused += !kept;
            assert_true(salt_of(&sim.table, "x", NULL, b));
            if (kept) assert_memory_equal(a, b, STORE_SALT);
            assert_true(salt_of(&sim.table, "x", NULL, c));
            assert_memory_equal(b, c, STORE_SALT);
            vfs_sim_deinit(&sim);
            assert_int_equal(hd_mem_live(), 0);
            if (!reached) break;
        }
    assert_true(refused >= 8);
}

static void write_key(const char *path, int n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%064d\n", n);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

/* With a key file nothing is written: python3 -c 'import hmac; print(hmac.new(bytes([0]*31+[1]), b"heddle spaces 1 "+bytes(32),
 * "sha256").hexdigest())' */
static void from_the_key(void **state) {
    static const char want[] = "9a9f9024ed0179ce5a56edfcb567d87c1a39204f13f32732d3dfc12d477c9452";
    static vfs_sim sim;
    char one[80], two[80], hex[65];
    uint8_t a[STORE_SALT], b[STORE_SALT];
    (void)state;
    snprintf(one, sizeof one, "%s/one", dir);
    snprintf(two, sizeof two, "%s/two", dir);
    write_key(one, 1);
    write_key(two, 2);
    vfs_sim_init(&sim, 3);
    assert_true(salt_of(&sim.table, "x", one, a));
    for (int i = 0; i < STORE_SALT; i++) snprintf(hex + 2 * i, 3, "%02x", a[i]);
    assert_string_equal(hex, want);
    assert_true(salt_of(&sim.table, "x", two, b));
    assert_memory_not_equal(a, b, STORE_SALT);
    assert_null(file_of(&sim, "salt"));
    vfs_sim_deinit(&sim);
}

/* Processes that start together on an empty directory: all get the same. */
static void processes(void **state) {
    enum { N = 8, ROUNDS = 5 };
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        char path[80], file[100];
        uint8_t got[N][STORE_SALT];
        struct stat sb;
        int pipes[2];
        pid_t pid[N];
        snprintf(path, sizeof path, "%s/d%d", dir, round);
        assert_int_equal(pipe(pipes), 0);
        for (int i = 0; i < N; i++) {
            if ((pid[i] = fork())) continue;
            uint8_t mine[STORE_SALT];
            _exit(!salt_of(&vfs_real, path, NULL, mine) || write(pipes[1], mine, STORE_SALT) != STORE_SALT);
        }
        for (int i = 0; i < N; i++) {
            int status;
            assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
            assert_int_equal(status, 0);
            assert_int_equal(read(pipes[0], got[i], STORE_SALT), STORE_SALT);
            assert_memory_equal(got[0], got[i], STORE_SALT);
        }
        close(pipes[0]);
        close(pipes[1]);
        snprintf(file, sizeof file, "%s/kv/salt", path);
        assert_int_equal(stat(file, &sb), 0);
        assert_int_equal(sb.st_mode & 07777, 0600);
    }
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
        cmocka_unit_test(the_same_again), cmocka_unit_test(damage), cmocka_unit_test(faults), cmocka_unit_test(from_the_key),
    };
    return cmocka_run_group_tests_name("salt", tests, make, clean);
}
