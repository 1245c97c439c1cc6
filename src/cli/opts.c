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
    case OPT_UINT: {
        unsigned long long v = strtoull(s, &end, 10);
        if (*s < '0' || *s > '9' || *end || errno || v > UINT32_MAX - 1) return false;
        *(uint32_t *)d->where = (uint32_t)v;
        return true;
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
        if (!strcmp(a, "--help")) {
            printf("usage: %s\n", usage);
            exit(0);
        }
        eq = a[1] == '-' ? strchr(a, '=') : NULL;
        len = eq ? (size_t)(eq - a) : strlen(a);
        for (j = 0; j < n_defs; j++)
            if (strlen(defs[j].name) == len && !memcmp(defs[j].name, a, len)) break;
        if (j == n_defs) return wrong(usage, "unknown option", a);
        if (defs[j].kind != OPT_FLAG) {
            value = eq ? eq + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value) return wrong(usage, "this option needs a value", a);
        }
        if (!set_value(&defs[j], value)) return wrong(usage, "bad value for option", defs[j].name);
        if (defs[j].given) *defs[j].given = true;
    }
    return 0;
}
