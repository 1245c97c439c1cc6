/* main.c - finds the command in the table of cli.h.  One file per command. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

int cmd_version(int argc, char **argv) {
    (void)argc, (void)argv;
    printf("heddle %s\n", HEDDLE_VERSION);
    return 0;
}

static int usage(FILE *to) {
    fprintf(to, "usage: heddle COMMAND ...\n\n");
#define X(name, what) fprintf(to, "  %-12s %s\n", #name, what);
    COMMANDS(X)
#undef X
    return to == stderr ? EXIT_USAGE : 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return usage(stderr);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) return usage(stdout);
#define X(name, what)                                                                                                  \
    if (!strcmp(argv[1], #name)) return cmd_##name(argc - 1, argv + 1);
    COMMANDS(X)
#undef X
    fprintf(stderr, "heddle: unknown command '%s'\n", argv[1]);
    return usage(stderr);
}
