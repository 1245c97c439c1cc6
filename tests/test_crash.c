/* test_crash.c (slow-test) - the short form of scripts/crash: a server under durable requests is killed a few times with
 * kill -9, and every answer is what it is without crashes; faults put in on purpose are found.
 *
 * tests/crash/crash.py does the work and says what is compared; this runs it on the program of this build. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Run the harness with `args`; its output goes to `out`.  The status it exits with. */
static int harness(const char *args, char *out, size_t size) {
    char dir[200], cmd[1200];
    const char *tmp = getenv("TMPDIR");
    size_t n;
    int status;
    FILE *f;
    if (system("command -v python3 >/dev/null 2>&1")) {
        print_message("skipped: there is no python3 on this machine\n");
        skip();
    }
    snprintf(dir, sizeof dir, "%.150s/heddle-crash-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    snprintf(cmd, sizeof cmd, "exec python3 %s/crash/crash.py --heddle %s --out %s %s 2>&1", TEST_DIR, HEDDLE_BIN, dir, args);
    f = popen(cmd, "r");
    assert_non_null(f);
    n = fread(out, 1, size - 1, f);
    out[n] = 0;
    status = pclose(f);
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    assert_int_equal(system(cmd), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static char out[64 << 10];

static void nothing_is_lost(void **state) {
    const char *last;
    (void)state;
    if (harness("--specimens 30 --run 6=script", out, sizeof out)) fail_msg("%s", out);
    last = strstr(out, "crash: 6 cycles");
    if (!last || !strstr(last, " 0 failures")) fail_msg("%s", out);
    print_message("%s", last);
}

static void planted_faults_are_found(void **state) {
    static const char *const plants[] = {"event-dropped", "accept-lost"};
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        char args[100];
        snprintf(args, sizeof args, "--specimens 12 --seed 1 --run 4=script --plant %s", plants[i]);
        if (harness(args, out, sizeof out)) fail_msg("%s", out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(planted_faults_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
