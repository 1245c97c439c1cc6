/* test_hostile.c - model files with one wrong place, and odd command lines: a message or a run, and nothing left
 * behind.
 *
 * A valid tiny model is changed at one place of its head (a byte, a word, or a cut), loaded and asked for a few tokens.
 * What comes out of a file that still loads is of no interest; that it neither crashes nor leaks is.  The long form,
 * every key and tensor changed on purpose in a process of its own, is tests/hostile/files.py (docs/robustness.md). */
#include "base/log.h"
#include "base/mem.h"
#include "exec/engine.h"
#include "tiny/tiny_model.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MUTATIONS = 120, /* per model; a second or two */
    HEAD = 9000,     /* about where the tiny models' weights begin */
    MAX_FILE = 4 << 20
};

typedef struct {
    char path[40];
    uint8_t *bytes;
    size_t n;
    unsigned loaded, refused;
} subject;

static void subject_init(subject *s, const char *name) {
    FILE *f;
    int fd;
    memset(s, 0, sizeof *s);
    strcpy(s->path, "/tmp/heddle-hostile-XXXXXX");
    fd = mkstemp(s->path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find(name), NULL, s->path), 0);
    s->bytes = malloc(MAX_FILE);
    f = fopen(s->path, "rb");
    assert_true(s->bytes && f);
    s->n = fread(s->bytes, 1, MAX_FILE, f);
    fclose(f);
    assert_true(s->n > HEAD && s->n < MAX_FILE);
}

static void subject_deinit(subject *s) {
    unlink(s->path);
    free(s->bytes);
}

static void ask(model *m) {
    static const int32_t prompt[] = {97, 98, 99};
    engine_options eo = {.kv_budget_bytes = 16 << 20};
    gen_request r = {.id = "", .prompt = prompt, .n_prompt = 3, .max_tokens = 12};
    engine *e;
    session *s;
    gen_event ev;
    hd_err err;
    if (engine_open(&e, m, &eo, &err)) {
        assert_true(err.msg[0] != 0);
        return;
    }
    sampling_defaults(&r.sampling);
    if (engine_submit(e, &r, 1, NULL, NULL, &s, &err)) {
        assert_true(err.msg[0] != 0);
    } else {
        do session_wait(s, &ev, UINT64_MAX);
        while (ev.kind != EV_DONE);
        session_free(s);
    }
    engine_close(e);
}

static void try_file(subject *s, const uint8_t *bytes, size_t n) {
    size_t live = (size_t)hd_mem_live();
    model_options mo = {.n_threads = 1};
    FILE *f = fopen(s->path, "wb");
    model *m;
    hd_err err = {0};
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    if (model_open(&m, s->path, &mo, &err)) {
        assert_null(m);
        assert_true(err.msg[0] != 0);
        s->refused++;
    } else {
        s->loaded++;
        ask(m);
        model_close(m);
    }
    assert_int_equal(hd_mem_live(), live);
}

static void one_wrong_place(void **state) {
    static const char *const names[] = {"llama", "qwen3", "gemma3"};
    static const uint64_t words[] = {0, 1, 2, 3, 255, 1u << 16, 1u << 31, UINT32_MAX, 1ull << 62, UINT64_MAX};
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        subject s;
        uint64_t rng = 7 + k;
        uint8_t *bytes;
        subject_init(&s, names[k]);
        bytes = malloc(s.n);
        assert_non_null(bytes);
        for (int i = 0; i < MUTATIONS; i++) {
            size_t at = rng_below(&rng, HEAD - 8), n = s.n;
            uint64_t word = words[rng_below(&rng, sizeof words / sizeof *words)];
            memcpy(bytes, s.bytes, s.n);
            switch (rng_below(&rng, 8)) {
            case 0: n = rng_below(&rng, (uint32_t)s.n); break;
            case 1:
            case 2: memcpy(bytes + at, &word, 8); break;
            case 3:
            case 4: memcpy(bytes + at, &word, 4); break;
            default: bytes[at] = (uint8_t)rng_below(&rng, 256); break;
            }
            try_file(&s, bytes, n);
        }
        /* Both must occur, or the test looks at nothing. */
        assert_true(s.loaded > MUTATIONS / 20 && s.refused > MUTATIONS / 20);
        free(bytes);
        subject_deinit(&s);
    }
}

/* Run heddle with `args` (the last one NULL) onto a full disk; its stderr into text[n].  Status, or -signal; it gets 30
 * s. */
static int run_heddle(const char *const *args, char *text, size_t n) {
    const char *argv[16] = {"heddle"};
    size_t used = 0;
    ssize_t k;
    int fds[2], status;
    pid_t pid;
    for (size_t i = 0; args[i]; i++) argv[i + 1] = args[i];
    assert_int_equal(pipe(fds), 0);
    if (!(pid = fork())) {
        alarm(30);
        dup2(open("/dev/full", O_WRONLY), 1);
        dup2(fds[1], 2);
        close(fds[0]), close(fds[1]);
        execv(HEDDLE_BIN, (char *const *)argv);
        _exit(99);
    }
    close(fds[1]);
    while (used < n - 1 && (k = read(fds[0], text + used, n - 1 - used)) > 0) used += (size_t)k;
    text[used] = 0;
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Each was a fault once: a leak (seen by sanitizer builds), a file that never ends, a failure without a message. */
static void command_lines(void **state) {
    char path[] = "/tmp/heddle-hostile-XXXXXX", text[4096];
    int fd = mkstemp(path);
    const struct {
        const char *args[10], *says;
    } cases[] = {
        {{"generate", path, "--prompt", "a", "--stop", "b", "--stop", ""}, "stop string is empty"},
        {{"generate", "/no/such", "--prompt", "a", "--stop", "b"}, "/no/such"},
        {{"generate", path, "--batch-file", "/no/such"}, "/no/such"},
        {{"serve", "/no/such", "--port", "0", "--api-key-file", "/dev/zero"}, "too large"},
        {{"logits", path, "--ids", "1,2", "--out", "/dev/full"}, "/dev/full"},
        {{"--version"}, "cannot write"},
        {{"--help"}, "cannot write"},
    };
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find("llama"), NULL, path), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = run_heddle(cases[i].args, text, sizeof text);
        if (rc != 1 || !strstr(text, cases[i].says) || strstr(text, "Sanitizer"))
            fail_msg("case %zu: status %d: %s", i, rc, text);
    }
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_wrong_place), cmocka_unit_test(command_lines)};
    hd_log_set(HD_LOG_ERROR); /* most of these files are worth a warning */
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
