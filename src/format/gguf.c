/* gguf.c - one GGUF file: map it, check everything once, and hand out views.
 *
 * Layout (GGUF specification, versions 2 and 3; all integers little-endian):
 *
 *   "GGUF"  u32 version  u64 n_tensors  u64 n_keys
 *   n_keys    x  string key, u32 value type, value        string: u64 length, bytes
 *   n_tensors x  string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset from the start of the data area
 *   zeros up to a multiple of general.alignment (32 if absent), then the data area
 *
 * The file is hostile until gguf_open returns HD_OK.  Every length is compared with the bytes that are left before it
 * is used, and memory grows with what was really read, never with what a count promises.  After that, nothing in this
 * folder checks again: every view lies in the file. */
#include "format/gguf_int.h"

#include "base/checked.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- messages --- */

gguf_quoted gguf_quote(gguf_str s) {
    gguf_quoted q;
    size_t n = s.n < sizeof q.s - 4 ? s.n : sizeof q.s - 4;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        q.s[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    strcpy(q.s + n, n < s.n ? "..." : "");
    return q;
}

hd_status gguf_fail(const gguf *g, size_t part, hd_err *err, hd_status code, uint64_t at, const char *field,
                    const char *fmt, ...) {
    char msg[sizeof err->msg];
    const char *path = g && part < g->n_parts ? g->parts[part].path : NULL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    hd_fail_field(err, code, field, "%s%s%s", path ? path : "", path ? ": " : "", msg);
    if (err) err->at = at;
    return code;
}

/* --- reading with a bound --- */

typedef struct {
    gguf *g;
    const uint8_t *p;
    uint64_t size, at; /* at <= size, always */
    hd_err *err;
} reader;

static uint64_t left(const reader *r) { return r->size - r->at; }

static bool take(reader *r, void *dst, size_t n) {
    if (left(r) < n) return false;
    memcpy(dst, r->p + r->at, n);
    r->at += n;
    return true;
}

static hd_status truncated(reader *r, const char *field, const char *what) {
    return gguf_fail(r->g, 0, r->err, HD_INVALID, r->at, field,
                     "the file is truncated or damaged: it ends inside %s (at byte %llu of %llu)", what,
                     (unsigned long long)r->at, (unsigned long long)r->size);
}

static hd_status take_str(reader *r, gguf_str *out, const char *field, const char *what) {
    uint64_t n, at = r->at;
    if (!take(r, &n, 8)) return truncated(r, field, what);
    if (n > left(r))
        return gguf_fail(r->g, 0, r->err, HD_INVALID, at, field, "%s has %llu bytes by its length, but %llu are left",
                         what, (unsigned long long)n, (unsigned long long)left(r));
    *out = (gguf_str){(const char *)r->p + r->at, (size_t)n};
    r->at += n;
    return HD_OK;
}

/* --- the two name orders --- */

static int str_cmp(gguf_str a, gguf_str b) {
    int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int cmp_keys(const gguf *g, uint32_t a, uint32_t b) { return str_cmp(g->keys[a].name, g->keys[b].name); }
static int cmp_tensors(const gguf *g, uint32_t a, uint32_t b) {
    return str_cmp(g->tensors[a].name, g->tensors[b].name);
}
static int cmp_offsets(const gguf *g, uint32_t a, uint32_t b) {
    const gguf_tensor *x = &g->tensors[a], *y = &g->tensors[b];
    return (x->offset > y->offset) - (x->offset < y->offset);
}

typedef int (*cmp_fn)(const gguf *g, uint32_t a, uint32_t b);

/* Heap sort: in place, n log n for every input, and (unlike qsort) no heap call of its own. */
static void sift(const gguf *g, uint32_t *v, size_t i, size_t n, cmp_fn cmp) {
    for (size_t kid; (kid = 2 * i + 1) < n; i = kid) {
        uint32_t t;
        if (kid + 1 < n && cmp(g, v[kid], v[kid + 1]) < 0) kid++;
        if (cmp(g, v[i], v[kid]) >= 0) return;
        t = v[i], v[i] = v[kid], v[kid] = t;
    }
}

static uint32_t *sorted(const gguf *g, size_t n, cmp_fn cmp) {
    uint32_t *v = hd_reallocarray(NULL, n ? n : 1, sizeof *v);
    if (!v) return NULL;
    for (size_t i = 0; i < n; i++) v[i] = (uint32_t)i;
    for (size_t i = n / 2; i-- > 0;) sift(g, v, i, n, cmp);
    for (size_t i = n; i-- > 1;) {
        uint32_t t = v[0];
        v[0] = v[i], v[i] = t;
        sift(g, v, 0, i, cmp);
    }
    return v;
}

static hd_status no_memory(hd_err *err) { return hd_fail(err, HD_NOMEM, "gguf: no memory for the file's index"); }

static hd_status index_keys(gguf *g, hd_err *err) {
    if (!(g->key_order = sorted(g, g->n_keys, cmp_keys))) return no_memory(err);
    for (size_t i = 1; i < g->n_keys; i++) {
        gguf_str name = g->keys[g->key_order[i]].name;
        gguf_quoted q = gguf_quote(name);
        if (!cmp_keys(g, g->key_order[i - 1], g->key_order[i]))
            return gguf_fail(g, 0, err, HD_INVALID, (uint64_t)((const uint8_t *)name.s - g->parts[0].data), q.s,
                             "the key '%s' occurs twice", q.s);
    }
    return HD_OK;
}

hd_status gguf_index_tensors(gguf *g, hd_err *err) {
    hd_free(g->tensor_order);
    if (!(g->tensor_order = sorted(g, g->n_tensors, cmp_tensors))) return no_memory(err);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const gguf_tensor *a = &g->tensors[g->tensor_order[i - 1]], *b = &g->tensors[g->tensor_order[i]];
        gguf_quoted q = gguf_quote(b->name);
        if (!str_cmp(a->name, b->name))
            return gguf_fail(g, b->part, err, HD_INVALID, b->offset, q.s, "the tensor '%s' occurs twice", q.s);
    }
    return HD_OK;
}

/* --- keys --- */

/* Bytes per element; 0 for strings and arrays, which have no fixed size. */
static size_t elem_bytes(uint32_t type) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static hd_status read_value(reader *r, gguf_kv *kv) {
    gguf_quoted q = gguf_quote(kv->name);
    uint64_t at = r->at, bytes;
    uint32_t type, elem;
    if (!take(r, &type, 4)) return truncated(r, q.s, "a key's type");
    if (type > GGUF_F64)
        return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s, "the key '%s' has the unknown value type %u", q.s, type);
    elem = type;
    kv->n = 1;
    if (type == GGUF_ARRAY) {
        at = r->at;
        if (!take(r, &elem, 4) || !take(r, &kv->n, 8)) return truncated(r, q.s, "an array's head");
        if (elem == GGUF_ARRAY)
            return gguf_fail(r->g, 0, r->err, HD_UNSUPPORTED, at, q.s, "the key '%s' is an array of arrays", q.s);
        if (elem > GGUF_F64)
            return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s, "the key '%s' has the unknown element type %u", q.s,
                             elem);
    }
    kv->type = (gguf_type)type;
    kv->elem = (gguf_type)elem;
    kv->p = r->p + r->at;
    if (elem == GGUF_STRING) {
        gguf_str s;
        if (kv->n > left(r) / 8) return truncated(r, q.s, "an array of strings");
        for (uint64_t i = 0; i < kv->n; i++) {
            hd_status st = take_str(r, &s, q.s, "a string value");
            if (st) return st;
        }
        return HD_OK;
    }
    if (!hd_mul(kv->n, elem_bytes(elem), &bytes) || bytes > left(r)) return truncated(r, q.s, "a key's value");
    for (uint64_t i = 0; elem == GGUF_BOOL && i < kv->n; i++)
        if (kv->p[i] > 1)
            return gguf_fail(r->g, 0, r->err, HD_INVALID, r->at + i, q.s, "the key '%s' has the boolean %u", q.s,
                             kv->p[i]);
    r->at += bytes;
    return HD_OK;
}

static hd_status read_keys(reader *r, uint64_t n) {
    gguf *g = r->g;
    for (uint64_t i = 0; i < n; i++) {
        gguf_kv kv = {0};
        uint64_t at = r->at;
        hd_status st = take_str(r, &kv.name, "", "a key's name");
        if (st) return st;
        if (!kv.name.n || kv.name.n > GGUF_MAX_KEY_BYTES || memchr(kv.name.s, 0, kv.name.n))
            return gguf_fail(g, 0, r->err, HD_INVALID, at, "",
                             "key %llu has a name that is empty, longer than %d "
                             "bytes or holds a NUL",
                             (unsigned long long)i, GGUF_MAX_KEY_BYTES);
        if ((st = read_value(r, &kv))) return st;
        if (!hd_grow(&g->keys, &g->cap_keys, g->n_keys + 1, sizeof *g->keys, GGUF_MAX_KEYS)) return no_memory(r->err);
        g->keys[g->n_keys++] = kv;
    }
    return index_keys(g, r->err);
}

/* --- tensors --- */

/* Ids that exist elsewhere, so that a message can name what heddle lacks. */
static const char *foreign_type(uint32_t id) {
    static const struct {
        uint8_t id;
        const char *name;
    } known[] = {{9, "Q8_1"},     {15, "Q8_K"},    {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
                 {21, "IQ3_S"},   {22, "IQ2_S"},   {29, "IQ1_M"},   {34, "TQ1_0"},  {35, "TQ2_0"},   {40, "NVFP4"},
                 {41, "Q1_0"},    {42, "Q2_0"},    {4, "retired"},  {5, "retired"}, {31, "retired"}, {32, "retired"},
                 {33, "retired"}, {36, "retired"}, {37, "retired"}, {38, "retired"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].id == id) return known[i].name;
    return id > 96 ? "not part of GGUF; ik_llama.cpp has ids of its own above 96" : "unknown";
}

static hd_status read_tensor(reader *r, gguf_tensor *t) {
    const tensor_type_info *info;
    uint64_t at = r->at, n = 1, blocks;
    uint32_t type;
    gguf_quoted q;
    hd_status st = take_str(r, &t->name, "", "a tensor's name");
    if (st) return st;
    q = gguf_quote(t->name);
    if (!t->name.n || t->name.n > GGUF_MAX_NAME_BYTES || memchr(t->name.s, 0, t->name.n))
        return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s,
                         "the tensor name '%s' is empty, longer than %d bytes or "
                         "holds a NUL",
                         q.s, GGUF_MAX_NAME_BYTES);
    at = r->at;
    if (!take(r, &t->n_dims, 4)) return truncated(r, q.s, "a tensor's entry");
    if (t->n_dims < 1 || t->n_dims > 4)
        return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s, "the tensor '%s' has %u dimensions, 1 to 4 are possible",
                         q.s, t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->dims[d] = 1;
        if (d < t->n_dims && !take(r, &t->dims[d], 8)) return truncated(r, q.s, "a tensor's entry");
        if (!t->dims[d])
            return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s, "dimension %u of the tensor '%s' is zero", d, q.s);
        if (!hd_mul(n, t->dims[d], &n) || n > INT64_MAX)
            return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s, "the tensor '%s' has more than 2^63 elements", q.s);
    }
    at = r->at;
    if (!take(r, &type, 4) || !take(r, &t->offset, 8)) return truncated(r, q.s, "a tensor's entry");
    if (!(info = tensor_type_get(type)))
        return gguf_fail(r->g, 0, r->err, HD_UNSUPPORTED, at, q.s,
                         "the tensor '%s' has type %u (%s), which heddle "
                         "cannot read",
                         q.s, type, foreign_type(type));
    t->type = (tensor_type)type;
    if (t->dims[0] % info->block_elems)
        return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s,
                         "the tensor '%s' has rows of %llu elements, not a "
                         "multiple of %u as %s needs",
                         q.s, (unsigned long long)t->dims[0], info->block_elems, info->name);
    blocks = n / info->block_elems;
    if (!hd_mul(blocks, info->block_bytes, &t->size_bytes))
        return gguf_fail(r->g, 0, r->err, HD_INVALID, at, q.s, "the size of the tensor '%s' exceeds 2^64 bytes", q.s);
    return HD_OK;
}

static hd_status read_tensors(reader *r, uint64_t n) {
    gguf *g = r->g;
    for (uint64_t i = 0; i < n; i++) {
        gguf_tensor t = {0};
        hd_status st = read_tensor(r, &t);
        if (st) return st;
        if (!hd_grow(&g->tensors, &g->cap_tensors, g->n_tensors + 1, sizeof *g->tensors, GGUF_MAX_TENSORS))
            return no_memory(r->err);
        g->tensors[g->n_tensors++] = t;
    }
    return gguf_index_tensors(g, r->err);
}

/* Turn offsets into places in the file; refuse what is unaligned, outside or overlapping.  *end: where data ends. */
static hd_status place_tensors(reader *r, uint64_t align, uint64_t *end) {
    gguf *g = r->g;
    uint64_t base = g->parts[0].data_at;
    uint32_t *order;
    *end = base;
    for (size_t i = 0; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensors[i];
        gguf_quoted q = gguf_quote(t->name);
        uint64_t from = 0, to = 0;
        if (t->offset % align)
            return gguf_fail(g, 0, r->err, HD_INVALID, t->offset, q.s,
                             "the offset %llu of the tensor '%s' is not a "
                             "multiple of the alignment %llu",
                             (unsigned long long)t->offset, q.s, (unsigned long long)align);
        if (!hd_add(base, t->offset, &from) || !hd_add(from, t->size_bytes, &to) || to > r->size)
            return gguf_fail(g, 0, r->err, HD_INVALID, from, q.s,
                             "the file is truncated or damaged: the tensor '%s' "
                             "has %llu bytes at %llu in a file of %llu",
                             q.s, (unsigned long long)t->size_bytes, (unsigned long long)from,
                             (unsigned long long)r->size);
        t->offset = from;
        t->data = r->p + from;
        if (to > *end) *end = to;
    }
    if (!(order = sorted(g, g->n_tensors, cmp_offsets))) return no_memory(r->err);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const gguf_tensor *a = &g->tensors[order[i - 1]], *b = &g->tensors[order[i]];
        gguf_quoted qa = gguf_quote(a->name), qb = gguf_quote(b->name);
        if (a->offset + a->size_bytes <= b->offset) continue;
        hd_free(order);
        return gguf_fail(g, 0, r->err, HD_INVALID, b->offset, qb.s, "the tensors '%s' and '%s' overlap", qa.s, qb.s);
    }
    hd_free(order);
    return HD_OK;
}

/* --- the file as a whole --- */

static hd_status check_magic(reader *r) {
    static const struct {
        const char *start, *what;
    } others[] = {
        {"version https://git-lfs", "it is a git-lfs pointer: the model itself was not downloaded"},
        {"<!DOCTYPE", "it is an HTML page, perhaps a failed download"},
        {"<html", "it is an HTML page, perhaps a failed download"},
        {"lmgg", "it is a GGML file from before GGUF"},
        {"tjgg", "it is a GGJT file from before GGUF"},
        {"fmgg", "it is a GGMF file from before GGUF"},
        {"algg", "it is a GGLA adapter from before GGUF"},
        {"\x28\xb5\x2f\xfd", "it is compressed with zstd"},
        {"\x1f\x8b", "it is compressed with gzip"},
        {"PK\x03\x04", "it is a zip file, perhaps a PyTorch checkpoint"},
    };
    char magic[4];
    if (take(r, magic, 4) && !memcmp(magic, "GGUF", 4)) return HD_OK;
    if (!r->size) return gguf_fail(r->g, 0, r->err, HD_INVALID, 0, "", "not a GGUF file: it is empty");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t n = strlen(others[i].start);
        if (n <= r->size && !memcmp(r->p, others[i].start, n))
            return gguf_fail(r->g, 0, r->err, HD_INVALID, 0, "", "not a GGUF file: %s", others[i].what);
    }
    return gguf_fail(r->g, 0, r->err, HD_INVALID, 0, "", "not a GGUF file: it does not start with 'GGUF'");
}

static hd_status check_version(reader *r) {
    uint32_t v;
    if (!take(r, &v, 4)) return truncated(r, "", "the header");
    r->g->version = v;
    if (v == 2 || v == 3) return HD_OK;
    if (v && !(v & 0xFFFF))
        return gguf_fail(r->g, 0, r->err, HD_UNSUPPORTED, 4, "",
                         "a big-endian GGUF file (version %u); heddle reads "
                         "little-endian ones",
                         __builtin_bswap32(v));
    if (v == 1)
        return gguf_fail(r->g, 0, r->err, HD_UNSUPPORTED, 4, "",
                         "GGUF version 1, from August 2023, is not supported; "
                         "convert the model again");
    return gguf_fail(r->g, 0, r->err, v ? HD_UNSUPPORTED : HD_INVALID, 4, "",
                     "GGUF version %u is not known; heddle reads 2 and 3", v);
}

static hd_status parse(gguf *g, hd_err *err) {
    reader r = {g, g->parts[0].data, g->parts[0].size, 0, err};
    uint64_t n_tensors, n_keys, align = 32, end, next = 0;
    hd_status st;
    if ((st = check_magic(&r)) || (st = check_version(&r))) return st;
    if (!take(&r, &n_tensors, 8) || !take(&r, &n_keys, 8)) return truncated(&r, "", "the header");
    /* The smallest key has 8 + 1 + 4 + 1 bytes, the smallest tensor entry 8 + 1 + 4 + 8 + 4 + 8. */
    if (n_keys > left(&r) / 14 || n_tensors > left(&r) / 33)
        return gguf_fail(g, 0, err, HD_INVALID, 8, "",
                         "the file is truncated or damaged: %llu keys and %llu tensors "
                         "cannot be in %llu bytes",
                         (unsigned long long)n_keys, (unsigned long long)n_tensors, (unsigned long long)r.size);
    if (n_keys > GGUF_MAX_KEYS || n_tensors > GGUF_MAX_TENSORS)
        return gguf_fail(g, 0, err, HD_UNSUPPORTED, 8, "", "%llu keys and %llu tensors are more than heddle takes (%d)",
                         (unsigned long long)n_keys, (unsigned long long)n_tensors, GGUF_MAX_KEYS);
    if ((st = read_keys(&r, n_keys))) return st;
    if (gguf_has(g, "general.alignment")) {
        /* The specification asks for a multiple of 8: with less, an F64 or I64 could not be read in place. */
        if ((st = gguf_get_uint(g, "general.alignment", 8, 1u << 30, &align, err))) return st;
        if (align & (align - 1))
            return gguf_fail(g, 0, err, HD_INVALID, HD_NOWHERE, "general.alignment",
                             "the key 'general.alignment' is %llu, not a power of two", (unsigned long long)align);
    }
    if ((st = read_tensors(&r, n_tensors))) return st;
    if (!hd_align_up(r.at, align, &g->parts[0].data_at)) return truncated(&r, "", "the header");
    if ((st = place_tensors(&r, align, &end))) return st;
    /* Split parts that were joined with cat: the next one starts where this one's data, padded, ends. */
    if (!hd_align_up(end, align, &next)) next = end;
    for (int i = 0; i < 2; i++, next = end)
        if (next < r.size && r.size - next >= 24 && !memcmp(r.p + next, "GGUF", 4))
            return gguf_fail(g, 0, err, HD_INVALID, next, "",
                             "a second GGUF file begins at byte %llu: split parts do "
                             "not become one file by joining them (cat); keep them as NAME-00001-of-0000N.gguf and so "
                             "on in one folder and open any of them",
                             (unsigned long long)next);
    return HD_OK;
}

static gguf *new_gguf(void) {
    gguf *g = hd_calloc(1, sizeof *g);
    if (!g) return NULL;
    if (!(g->parts = hd_calloc(1, sizeof *g->parts))) {
        hd_free(g);
        return NULL;
    }
    g->n_parts = 1;
    return g;
}

void gguf_close(gguf *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_parts; i++) {
        if (g->parts[i].map) munmap(g->parts[i].map, g->parts[i].size);
        hd_free(g->parts[i].path);
    }
    hd_free(g->parts);
    hd_free(g->keys);
    hd_free(g->key_order);
    hd_free(g->tensors);
    hd_free(g->tensor_order);
    hd_free(g);
}

hd_status gguf_open_memory(gguf **out, const void *data, size_t size, hd_err *err) {
    gguf *g = new_gguf();
    hd_status st;
    *out = NULL;
    if (!g) return no_memory(err);
    g->parts[0].data = data;
    g->parts[0].size = size;
    st = parse(g, err);
    if (!st && gguf_has(g, "split.count")) {
        uint64_t count = 0;
        st = gguf_get_uint(g, "split.count", 0, UINT64_MAX, &count, err);
        if (!st && count > 1)
            st = hd_fail_field(err, HD_UNSUPPORTED, "split.count", "one part of a split model cannot be used alone");
    }
    if (st) {
        gguf_close(g);
        return st;
    }
    *out = g;
    return HD_OK;
}

/* O_NONBLOCK: opening a FIFO must not hang before we can see that it is one. */
static hd_status map_file(gguf *g, const char *path, hd_err *err) {
    gguf_part *p = &g->parts[0];
    hd_status st = HD_OK;
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return hd_fail(err, errno == ENOENT ? HD_NOTFOUND : HD_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &sb))
        st = hd_fail(err, HD_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(sb.st_mode))
        st = hd_fail(err, HD_INVALID, "%s: not a regular file", path);
    else if (p->stat = gguf_stat_of(&sb), sb.st_size > 0) {
        void *m = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (m == MAP_FAILED)
            st = hd_fail(err, HD_IO, "%s: cannot map it: %s", path, strerror(errno));
        else
            p->map = m, p->data = m, p->size = (size_t)sb.st_size;
    } else
        p->data = (const uint8_t *)"";
    close(fd);
    return st;
}

hd_status gguf_open_one(gguf **out, const char *path, hd_err *err) {
    gguf *g = new_gguf();
    hd_status st;
    *out = NULL;
    if (!g) return no_memory(err);
    if (!(g->parts[0].path = hd_strdup(path)))
        st = no_memory(err);
    else if (!(st = map_file(g, path, err)))
        st = parse(g, err);
    if (st) {
        gguf_close(g);
        return st;
    }
    *out = g;
    return HD_OK;
}

/* --- what it is --- */

const char *gguf_path(const gguf *g) { return g->parts[0].path ? g->parts[0].path : ""; }
uint32_t gguf_version(const gguf *g) { return g->version; }

uint64_t gguf_file_bytes(const gguf *g) {
    uint64_t n = 0;
    for (size_t i = 0; i < g->n_parts; i++) n += g->parts[i].size;
    return n;
}

size_t gguf_n_tensors(const gguf *g) { return g->n_tensors; }
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i) { return i < g->n_tensors ? &g->tensors[i] : NULL; }

const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name) {
    gguf_str want = {name, strlen(name)};
    for (size_t lo = 0, hi = g->n_tensors; lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        const gguf_tensor *t = &g->tensors[g->tensor_order[mid]];
        int c = str_cmp(want, t->name);
        if (!c) return t;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const gguf_kv *gguf_kv_find(const gguf *g, const char *key) {
    gguf_str want = {key, strlen(key)};
    for (size_t lo = 0, hi = g->n_keys; lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        const gguf_kv *kv = &g->keys[g->key_order[mid]];
        int c = str_cmp(want, kv->name);
        if (!c) return kv;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

uint64_t gguf_kv_bytes(const gguf_kv *kv) {
    const uint8_t *p = kv->p;
    uint64_t n;
    if (kv->elem != GGUF_STRING) return kv->n * elem_bytes(kv->elem);
    for (uint64_t i = 0; i < kv->n; i++) memcpy(&n, p, 8), p += 8 + n;
    return (uint64_t)(p - kv->p);
}

/* Bytes [at, at + n) of the tensor, out to multiples of `page` but not out of the file. */
static void advise(const gguf *g, const gguf_tensor *t, uint64_t at, uint64_t n, uintptr_t page, int advice) {
    const gguf_part *p = &g->parts[t->part];
    uintptr_t from = ((uintptr_t)t->data + at) & ~(page - 1), to = ((uintptr_t)t->data + at + n + page - 1) & ~(page - 1);
    if (!n || !p->map) return; /* memory of the caller */
    if (from < (uintptr_t)p->map) from = (uintptr_t)p->map;
    if (to > (uintptr_t)p->map + p->size) to = (uintptr_t)p->map + p->size;
    (void)madvise((void *)from, to - from, advice); /* if it fails, nothing is lost but time or memory */
}

void gguf_tensor_fetch(const gguf *g, const gguf_tensor *t, uint64_t at, uint64_t n) {
#ifdef MADV_POPULATE_READ
    advise(g, t, at, n, (uintptr_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_READ);
#else
    (void)g, (void)t, (void)at, (void)n;
#endif
}

/* Where the page cache has huge pages, one byte brings in all of one, so that what is around the range goes too. */
void gguf_tensor_release(const gguf *g, const gguf_tensor *t, uint64_t at, uint64_t n) {
    advise(g, t, at, n, (uintptr_t)2 << 20, MADV_DONTNEED);
}
