/* opts.c - command-line options by table. */
#include "cli/opts.h"
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_size(const char *s, uint64_t *out) {
    char *end;
    double v;
    uint64_t unit = 1;
    if (*s < '0' || *s > '9') return false;
    v = strtod(s, &end);
    switch (*end) {
    case 'k': case 'K': unit = 1u << 10, end++; break;
    case 'm': case 'M': unit = 1u << 20, end++; break;
    case 'g': case 'G': unit = 1u << 30, end++; break;
    case 't': case 'T': unit = 1ull << 40, end++; break;
    default: break;
    }
    if (!strcmp(end, "iB") || !strcmp(end, "B") || !strcmp(end, "b")) end += strlen(end);
    if (*end || !(v * (double)unit < 9e18)) return false;
    *out = (uint64_t)(v * (double)unit);
    return true;
}

static bool set_value(const opt_def *d, const char *s) {
    char *end;
    errno = 0;
    switch (d->kind) {
    case OPT_FLAG: *(bool *)d->where = true; return true;
    case OPT_STR: *(const char **)d->where = s; return true;
    case OPT_UINT:
    case OPT_COUNT: {
        unsigned long long v = strtoull(s, &end, 10);
        if (*s < '0' || *s > '9' || *end || errno || v > UINT32_MAX - 1) return false;
        *(uint32_t *)d->where = (uint32_t)v;
        return v || d->kind == OPT_UINT;
    }
    case OPT_I64: {
        long long v = strtoll(s, &end, 10);
        if (*end == 0 && end != s && errno == ERANGE && *s != '-') { /* a seed may use all 64 bits */
            errno = 0;
            v = (long long)strtoull(s, &end, 10);
        }
        if (end == s || *end || errno) return false;
        *(int64_t *)d->where = v;
        return true;
    }
    case OPT_FLOAT: {
        float v = strtof(s, &end);
        if (end == s || *end || !isfinite(v)) return false;
        *(float *)d->where = v;
        return true;
    }
    case OPT_SIZE: return parse_size(s, d->where);
    case OPT_BYTES: return parse_size(s, d->where) && *(uint64_t *)d->where;
    case OPT_LIST: {
        opt_list *l = d->where;
        if (l->n == OPT_LIST_MAX) return false;
        l->items[l->n++] = s;
        return true;
    }
    }
    return false;
}

static int wrong(const char *usage, const char *what, const char *arg) {
    fprintf(stderr, "heddle: %s: %s\nusage: %s\n", what, arg, usage);
    return EXIT_USAGE;
}

static int bad_value(const opt_def *d, const char *s) {
    static const char *const wants[] = {[OPT_UINT] = "a whole number", [OPT_COUNT] = "a whole number of at least 1", [OPT_I64] = "an integer",
                                        [OPT_FLOAT] = "a number", [OPT_SIZE] = "a size such as 512M",
                                        [OPT_BYTES] = "a size of at least 1 byte, such as 512M", [OPT_LIST] = "fewer of them"};
    fprintf(stderr, "heddle: %s takes %s, not '%.100s'\n", d->name, wants[d->kind] ? wants[d->kind] : "another value", s);
    return EXIT_USAGE;
}

/* Edits (Levenshtein) between an option and what was typed; long ones count as far. */
static size_t distance(const char *a, const char *b, size_t n) {
    size_t row[33], m = strlen(a);
    if (m > 32 || n > 32) return 99;
    for (size_t i = 0; i <= m; i++) row[i] = i;
    for (size_t j = 1; j <= n; j++) {
        size_t diagonal = row[0];
        row[0] = j;
        for (size_t i = 1; i <= m; i++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[i];
            if (row[i] + 1 < best) best = row[i] + 1;
            if (row[i - 1] + 1 < best) best = row[i - 1] + 1;
            row[i] = best;
        }
    }
    return row[m];
}

static int unknown(const char *a, size_t len, const opt_def *defs, size_t n_defs, const char *usage) {
    const char *best = NULL;
    size_t least = 3;
    for (size_t j = 0; j < n_defs; j++) {
        size_t d = distance(defs[j].name, a, len);
        if (d < least) least = d, best = defs[j].name;
    }
    if (!best) return wrong(usage, "unknown option", a);
    fprintf(stderr, "heddle: unknown option: %s; did you mean %s?\n", a, best);
    return EXIT_USAGE;
}

int opts_parse(int argc, char **argv, const opt_def *defs, size_t n_defs, const char **args, size_t max_args, size_t *n_args,
               const char *usage) {
    bool plain = false;
    *n_args = 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = NULL, *eq;
        size_t len, j;
        if (plain || a[0] != '-' || !a[1]) {
            if (*n_args == max_args) return wrong(usage, "too many arguments", a);
            args[(*n_args)++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            plain = true;
            continue;
        }
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            printf("usage: %s\n", usage);
            exit(0);
        }
        eq = a[1] == '-' ? strchr(a, '=') : NULL;
        len = eq ? (size_t)(eq - a) : strlen(a);
        for (j = 0; j < n_defs; j++)
            if (strlen(defs[j].name) == len && !memcmp(defs[j].name, a, len)) break;
        if (j == n_defs) return unknown(a, len, defs, n_defs, usage);
        if (defs[j].kind != OPT_FLAG) {
            value = eq ? eq + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value) return wrong(usage, "this option needs a value", a);
        }
        if (!set_value(&defs[j], value)) return bad_value(&defs[j], value);
        if (defs[j].given) *defs[j].given = true;
    }
    return 0;
}
