/* main.c - finds the command in the table of cli.h.  One file per command. */
#include "cli/common.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void log_level_from_environment(void) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *want = getenv("HEDDLE_LOG");
    if (!want || !*want) return;
    for (int i = 0; i < 4; i++)
        if (!strcmp(want, names[i])) {
            hd_log_set((hd_log_level)i);
            return;
        }
    hd_log(HD_LOG_WARN, "$HEDDLE_LOG must be error, warn, info or debug, not '%.40s'", want);
}

int cmd_version(int argc, char **argv) {
    (void)argc, (void)argv;
    printf("heddle %s\n", HEDDLE_VERSION);
    return stdout_ok() ? 0 : EXIT_FAILED;
}

static int usage(FILE *to) {
    fprintf(to, "usage: heddle COMMAND ...\n\n");
#define X(name, what) fprintf(to, "  %-12s %s\n", #name, what);
    COMMANDS(X)
#undef X
    fprintf(to, "\n`heddle COMMAND --help` says what it takes; docs/cli.md explains the options of all that load a model.\n");
    if (to == stderr) return EXIT_USAGE;
    return stdout_ok() ? 0 : EXIT_FAILED;
}

int main(int argc, char **argv) {
    if (argc < 2) return usage(stderr);
    hd_mem_tune();
    log_level_from_environment();
    if (!strcmp(argv[1], "--version")) argv[1] = (char *)(uintptr_t)"version";
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) return usage(stdout);
#define X(name, what)                                                                                                  \
    if (!strcmp(argv[1], #name)) return cmd_##name(argc - 1, argv + 1);
    COMMANDS(X)
#undef X
    fprintf(stderr, "heddle: unknown command '%s'\n", argv[1]);
    return usage(stderr);
}
