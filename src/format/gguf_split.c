/* gguf_split.c - models that are split over several files.
 *
 * Part i of N (from 1) is called PREFIX-0000i-of-0000N.gguf.  Each part is a GGUF file with the keys split.no (from 0),
 * split.count and split.tensors.count (over all parts); only the first is sure to have the model's own keys.  Opening
 * any part opens all, and the result looks like one file: the keys of the first, the tensors of all. */
#include "format/gguf_int.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PARTS = 4096 };

typedef struct {
    uint64_t no, count, n_tensors; /* no from 0; count 1 for a file that is not split */
} split_keys;

static hd_status read_split_keys(const gguf *g, split_keys *s, hd_err *err) {
    hd_status st;
    *s = (split_keys){0, 1, g->n_tensors};
    if (!gguf_has(g, "split.count")) return HD_OK;
    if ((st = gguf_get_uint(g, "split.count", 0, MAX_PARTS, &s->count, err))) return st;
    if (s->count <= 1) return s->count = 1, HD_OK;
    if ((st = gguf_get_uint(g, "split.no", 0, s->count - 1, &s->no, err))) return st;
    return gguf_get_uint(g, "split.tensors.count", 0, GGUF_MAX_TENSORS, &s->n_tensors, err);
}

/* The numbers in PREFIX-0000i-of-0000N.gguf and the length of PREFIX; false for other names. */
static bool read_name(const char *path, size_t *prefix, unsigned *no, unsigned *count) {
    static const char shape[] = "-00000-of-00000.gguf";
    size_t n = strlen(path);
    const char *p;
    if (n < sizeof shape - 1) return false;
    p = path + n - (sizeof shape - 1);
    for (size_t i = 0; i < sizeof shape - 1; i++)
        if (shape[i] == '0' ? !isdigit((unsigned char)p[i]) : p[i] != shape[i]) return false;
    *prefix = (size_t)(p - path);
    return sscanf(p, "-%5u-of-%5u", no, count) == 2;
}

static char *part_path(const char *path, size_t prefix, size_t no, size_t count) {
    size_t n = prefix + 64;
    char *s = hd_alloc(n);
    if (s) snprintf(s, n, "%.*s-%05zu-of-%05zu.gguf", (int)prefix, path, no, count);
    return s;
}

/* Does part `no` (from 0) belong with the first one? */
static hd_status check_part(const gguf *first, const split_keys *want, const gguf *g, uint64_t no, hd_err *err) {
    static const char *const same[] = {"general.architecture", "general.name"};
    split_keys s;
    hd_status st = read_split_keys(g, &s, err);
    if (st) return st;
    if (s.no != no || s.count != want->count || s.n_tensors != want->n_tensors)
        return gguf_fail(g, 0, err, HD_INVALID, HD_NOWHERE, "split.no",
                         "it is part %llu of %llu with %llu tensors in "
                         "all by its keys, but part %llu of %llu with %llu is needed: it was renamed or is from "
                         "another model",
                         (unsigned long long)s.no + 1, (unsigned long long)s.count, (unsigned long long)s.n_tensors,
                         (unsigned long long)no + 1, (unsigned long long)want->count,
                         (unsigned long long)want->n_tensors);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        gguf_str a, b;
        if (gguf_get_str(first, same[i], &a, NULL) || gguf_get_str(g, same[i], &b, NULL)) continue;
        if (a.n != b.n || memcmp(a.s, b.s, a.n))
            return gguf_fail(g, 0, err, HD_INVALID, HD_NOWHERE, same[i],
                             "it is from another model than the first part: the key '%s' differs", same[i]);
    }
    return HD_OK;
}

/* Move tensors and mapping of `g` into `first` and close what remains of it. */
static hd_status merge(gguf *first, gguf *g, hd_err *err) {
    gguf_part *parts = hd_reallocarray(first->parts, first->n_parts + 1, sizeof *parts);
    if (!parts) return hd_fail(err, HD_NOMEM, "gguf: no memory for the parts of a split");
    first->parts = parts;
    if (!hd_grow(&first->tensors, &first->cap_tensors, first->n_tensors + g->n_tensors, sizeof *first->tensors,
                 GGUF_MAX_TENSORS))
        return hd_fail(err, HD_NOMEM, "gguf: no memory for the tensors of a split");
    for (size_t i = 0; i < g->n_tensors; i++) {
        gguf_tensor t = g->tensors[i];
        t.part = (uint32_t)first->n_parts;
        first->tensors[first->n_tensors++] = t;
    }
    first->parts[first->n_parts++] = g->parts[0];
    g->n_parts = 0;
    gguf_close(g);
    return HD_OK;
}

static hd_status open_part(gguf **out, const char *path, size_t prefix, size_t no, size_t count, hd_err *err) {
    char *p = part_path(path, prefix, no, count);
    hd_status st;
    *out = NULL;
    if (!p) return hd_fail(err, HD_NOMEM, "gguf: no memory for a path");
    if ((st = gguf_open_one(out, p, err)) == HD_NOTFOUND)
        st = hd_fail(err, HD_NOTFOUND, "part %zu of %zu of the model is missing: %s", no, count, p);
    hd_free(p);
    return st;
}

static hd_status open_split(gguf **out, const char *path, size_t prefix, const split_keys *want, hd_err *err) {
    gguf *first, *g = NULL;
    hd_status st = open_part(&first, path, prefix, 1, (size_t)want->count, err);
    if (!st) st = check_part(first, want, first, 0, err);
    for (uint64_t no = 1; !st && no < want->count; no++) {
        if ((st = open_part(&g, path, prefix, (size_t)no + 1, (size_t)want->count, err))) break;
        if (!(st = check_part(first, want, g, no, err)) && !(st = merge(first, g, err))) g = NULL;
    }
    if (!st) st = gguf_index_tensors(first, err);
    if (!st && first->n_tensors != want->n_tensors)
        st = gguf_fail(first, 0, err, HD_INVALID, HD_NOWHERE, "split.tensors.count",
                       "the %llu parts hold %zu tensors, but split.tensors.count is %llu",
                       (unsigned long long)want->count, first->n_tensors, (unsigned long long)want->n_tensors);
    if (st) {
        gguf_close(g);
        gguf_close(first);
        return st;
    }
    *out = first;
    return HD_OK;
}

hd_status gguf_open(gguf **out, const char *path, hd_err *err) {
    gguf *g;
    split_keys keys;
    size_t prefix = 0;
    unsigned no = 1, count = 1;
    bool named = read_name(path, &prefix, &no, &count);
    hd_status st = gguf_open_one(&g, path, err);
    *out = NULL;
    if (st) return st;
    if ((st = read_split_keys(g, &keys, err))) goto fail;
    if (keys.count == 1) {
        if (named && count > 1) {
            st = gguf_fail(g, 0, err, HD_INVALID, HD_NOWHERE, "split.count",
                           "by its name it is part %u of %u, but it has no split keys: it is no part of a split GGUF",
                           no, count);
            goto fail;
        }
        *out = g;
        return HD_OK;
    }
    if (!named || no != keys.no + 1 || count != keys.count) {
        st = gguf_fail(g, 0, err, HD_INVALID, HD_NOWHERE, "split.no",
                       "by its keys it is part %llu of %llu: call it NAME-%05llu-of-%05llu.gguf and keep it with the "
                       "others",
                       (unsigned long long)keys.no + 1, (unsigned long long)keys.count, (unsigned long long)keys.no + 1,
                       (unsigned long long)keys.count);
        goto fail;
    }
    gguf_close(g);
    return open_split(out, path, prefix, &keys, err);
fail:
    gguf_close(g);
    return st;
}
