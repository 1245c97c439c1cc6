/* opts.h - command-line options by table: one place for --help, unknown options and bad values. */
#ifndef HD_CLI_OPTS_H
#define HD_CLI_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* COUNT, BYTES: UINT, SIZE of at least 1, for options where 0 says nothing: it is refused, not taken for "the default". */
typedef enum { OPT_FLAG, OPT_STR, OPT_UINT, OPT_COUNT, OPT_I64, OPT_FLOAT, OPT_SIZE, OPT_BYTES, OPT_LIST } opt_kind;
enum { OPT_LIST_MAX = 64 };
typedef struct {
    const char *items[OPT_LIST_MAX];
    size_t n;
} opt_list;
/* where: bool*, const char**, uint32_t*, int64_t*, float*, uint64_t*, opt_list*.  given may be NULL. */
typedef struct {
    const char *name; /* "--threads", "-n" */
    opt_kind kind;
    void *where;
    bool *given;
} opt_def;
/* Parse argv[1..): options anywhere, up to max_args plain arguments into args.  0, or EXIT_USAGE after a message. */
int opts_parse(int argc, char **argv, const opt_def *defs, size_t n_defs, const char **args, size_t max_args,
               size_t *n_args, const char *usage);
bool parse_size(const char *s, uint64_t *out); /* 512, 64K, 2M, 1G */

#endif
