/* gguf_get.c - typed access to the keys of an open GGUF file.
 *
 * Writers differ in what they store: a count may be u32, u64 or i32, a length-one array stands for a scalar, an integer
 * may be written as a float.  All of these are read if the value is exact and in range; anything else is an error that
 * names the key.  The views were checked when the file was opened. */
#include "format/gguf_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};

static hd_status not_found(const gguf *g, const char *key, hd_err *err) {
    return gguf_fail(g, 0, err, HD_NOTFOUND, HD_NOWHERE, key, "missing key '%s'", key);
}

static hd_status wrong(const gguf *g, const gguf_kv *kv, const char *key, const char *want, hd_err *err) {
    uint64_t at = (uint64_t)(kv->p - g->parts[0].data);
    return gguf_fail(g, 0, err, HD_INVALID, at, key, "the key '%s' must be %s, but is %s%s of %llu", key, want,
                     kv->type == GGUF_ARRAY ? "an array, " : "", type_names[kv->elem], (unsigned long long)kv->n);
}

/* A number as sign and magnitude if it is whole, and as double always. */
typedef struct {
    bool whole, negative;
    uint64_t magnitude;
    double real;
} number;

static number from_i64(int64_t v) {
    uint64_t m = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    return (number){true, v < 0, m, (double)v};
}
static number from_u64(uint64_t v) { return (number){true, false, v, (double)v}; }
static number from_real(double v) {
    number x = {false, v < 0, 0, v};
    double m = fabs(v);
    if (m < 18446744073709551616.0 && m == floor(m)) x.whole = true, x.magnitude = (uint64_t)m; /* false for NaN */
    return x;
}

#define LOAD(T) (memcpy(&(T), p, sizeof(T)), T)
static bool load(gguf_type type, const uint8_t *base, uint64_t i, number *out) {
    const uint8_t *p = base;
    uint8_t u8;
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
    int64_t i64;
    float f32;
    double f64;
    switch (type) {
    case GGUF_U8: p += i; return *out = from_u64(LOAD(u8)), true;
    case GGUF_I8: p += i; return *out = from_i64(LOAD(i8)), true;
    case GGUF_U16: p += 2 * i; return *out = from_u64(LOAD(u16)), true;
    case GGUF_I16: p += 2 * i; return *out = from_i64(LOAD(i16)), true;
    case GGUF_U32: p += 4 * i; return *out = from_u64(LOAD(u32)), true;
    case GGUF_I32: p += 4 * i; return *out = from_i64(LOAD(i32)), true;
    case GGUF_U64: p += 8 * i; return *out = from_u64(LOAD(u64)), true;
    case GGUF_I64: p += 8 * i; return *out = from_i64(LOAD(i64)), true;
    case GGUF_F32: p += 4 * i; return *out = from_real((double)LOAD(f32)), true;
    case GGUF_F64: p += 8 * i; return *out = from_real(LOAD(f64)), true;
    case GGUF_BOOL:
    case GGUF_STRING:
    case GGUF_ARRAY: break;
    }
    return false;
}

static hd_status find(const gguf *g, const char *key, bool scalar, const char *want, const gguf_kv **kv, hd_err *err) {
    if (!(*kv = gguf_kv_find(g, key))) return not_found(g, key, err);
    if (scalar && (*kv)->n != 1) return wrong(g, *kv, key, want, err);
    return HD_OK;
}

static hd_status get_uint(const gguf *g, const gguf_kv *kv, const char *key, uint64_t i, uint64_t min, uint64_t max,
                          uint64_t *out, hd_err *err) {
    number x;
    if (!load(kv->elem, kv->p, i, &x)) return wrong(g, kv, key, "an integer", err);
    if (!x.whole || (x.negative && x.magnitude) || x.magnitude < min || x.magnitude > max)
        return gguf_fail(g, 0, err, HD_INVALID, (uint64_t)(kv->p - g->parts[0].data), key,
                         "the key '%s' is %.17g, not an integer from %llu to %llu", key, x.real,
                         (unsigned long long)min, (unsigned long long)max);
    *out = x.magnitude;
    return HD_OK;
}

hd_status gguf_get_uint(const gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, hd_err *err) {
    const gguf_kv *kv;
    hd_status st = find(g, key, true, "one integer", &kv, err);
    return st ? st : get_uint(g, kv, key, 0, min, max, out, err);
}

hd_status gguf_get_f32(const gguf *g, const char *key, float *out, hd_err *err) {
    const gguf_kv *kv;
    number x;
    hd_status st = find(g, key, true, "one number", &kv, err);
    if (st) return st;
    if (!load(kv->elem, kv->p, 0, &x)) return wrong(g, kv, key, "a number", err);
    *out = (float)x.real;
    return HD_OK;
}

hd_status gguf_get_bool(const gguf *g, const char *key, bool *out, hd_err *err) {
    const gguf_kv *kv;
    number x;
    hd_status st = find(g, key, true, "one boolean", &kv, err);
    if (st) return st;
    if (kv->elem == GGUF_BOOL) return *out = kv->p[0], HD_OK;
    if (!load(kv->elem, kv->p, 0, &x) || !x.whole || x.magnitude > 1 || (x.negative && x.magnitude))
        return wrong(g, kv, key, "a boolean", err);
    *out = x.magnitude;
    return HD_OK;
}

static gguf_str next_str(const uint8_t **p) {
    uint64_t n;
    gguf_str s;
    memcpy(&n, *p, 8);
    s = (gguf_str){(const char *)*p + 8, (size_t)n};
    *p += 8 + n;
    return s;
}

hd_status gguf_get_str(const gguf *g, const char *key, gguf_str *out, hd_err *err) {
    const gguf_kv *kv;
    const uint8_t *p;
    hd_status st = find(g, key, true, "one string", &kv, err);
    if (st) return st;
    if (kv->elem != GGUF_STRING) return wrong(g, kv, key, "a string", err);
    p = kv->p;
    *out = next_str(&p);
    return HD_OK;
}

hd_status gguf_arr_n(const gguf *g, const char *key, gguf_type *elem, size_t *n, hd_err *err) {
    const gguf_kv *kv;
    hd_status st = find(g, key, false, "", &kv, err);
    if (st) return st;
    if (elem) *elem = kv->elem;
    *n = (size_t)kv->n;
    return HD_OK;
}

/* The key with at least n elements. */
static hd_status find_arr(const gguf *g, const char *key, uint64_t n, const gguf_kv **kv, hd_err *err) {
    hd_status st = find(g, key, false, "", kv, err);
    if (st) return st;
    if ((*kv)->n < n)
        return gguf_fail(g, 0, err, HD_INVALID, (uint64_t)((*kv)->p - g->parts[0].data), key,
                         "the key '%s' has %llu elements, %llu are needed", key, (unsigned long long)(*kv)->n,
                         (unsigned long long)n);
    return HD_OK;
}

hd_status gguf_arr_uint(const gguf *g, const char *key, size_t i, uint64_t min, uint64_t max, uint64_t *out,
                        hd_err *err) {
    const gguf_kv *kv;
    hd_status st = find_arr(g, key, (uint64_t)i + 1, &kv, err);
    if (i == SIZE_MAX) return hd_fail_field(err, HD_INVALID, key, "no such element of the key '%s'", key);
    return st ? st : get_uint(g, kv, key, i, min, max, out, err);
}

hd_status gguf_arr_i64(const gguf *g, const char *key, int64_t *out, size_t n, hd_err *err) {
    const gguf_kv *kv;
    hd_status st = find_arr(g, key, n, &kv, err);
    if (st) return st;
    for (size_t i = 0; i < n; i++) {
        number x;
        if (kv->elem == GGUF_BOOL)
            x = from_u64(kv->p[i]);
        else if (!load(kv->elem, kv->p, i, &x))
            return wrong(g, kv, key, "an array of integers", err);
        if (!x.whole || x.magnitude > (uint64_t)INT64_MAX + x.negative)
            return gguf_fail(g, 0, err, HD_INVALID, (uint64_t)(kv->p - g->parts[0].data), key,
                             "element %zu of the key '%s' is not an integer of 64 bits", i, key);
        out[i] = (int64_t)(x.negative ? 0 - x.magnitude : x.magnitude);
    }
    return HD_OK;
}

hd_status gguf_arr_f32(const gguf *g, const char *key, float *out, size_t n, hd_err *err) {
    const gguf_kv *kv;
    hd_status st = find_arr(g, key, n, &kv, err);
    if (st) return st;
    for (size_t i = 0; i < n; i++) {
        number x;
        if (!load(kv->elem, kv->p, i, &x)) return wrong(g, kv, key, "an array of numbers", err);
        out[i] = (float)x.real;
    }
    return HD_OK;
}

hd_status gguf_arr_strs(const gguf *g, const char *key, gguf_str *out, size_t n, hd_err *err) {
    const gguf_kv *kv;
    const uint8_t *p;
    hd_status st = find_arr(g, key, n, &kv, err);
    if (st) return st;
    if (kv->elem != GGUF_STRING) return wrong(g, kv, key, "an array of strings", err);
    p = kv->p;
    for (size_t i = 0; i < n; i++) out[i] = next_str(&p);
    return HD_OK;
}

/* --- listing --- */

size_t gguf_n_keys(const gguf *g) { return g->n_keys; }
gguf_str gguf_key(const gguf *g, size_t i) { return i < g->n_keys ? g->keys[i].name : (gguf_str){"", 0}; }
gguf_type gguf_key_type(const gguf *g, size_t i) { return i < g->n_keys ? g->keys[i].type : GGUF_U8; }
bool gguf_has(const gguf *g, const char *key) { return gguf_kv_find(g, key) != NULL; }

/* Text into a fixed space; what does not fit is dropped and `full` stays set. */
typedef struct {
    char *p;
    size_t n, cap; /* cap leaves room for the NUL */
    bool full;
} text;

static void put(text *t, const char *s, size_t n) {
    if (t->full || n > t->cap - t->n) {
        t->full = true;
        return;
    }
    memcpy(t->p + t->n, s, n);
    t->n += n;
}

/* Control characters as \n or ?; a character of several bytes is written whole or not at all. */
static void put_str(text *t, gguf_str s) {
    put(t, "\"", 1);
    for (size_t i = 0; i < s.n && !t->full;) {
        unsigned char c = (unsigned char)s.s[i];
        size_t len = 1;
        if (c == '\n')
            put(t, "\\n", 2);
        else if (c < 0x20 || c == 0x7f)
            put(t, "?", 1);
        else {
            while (c >= 0xC0 && len < 4 && i + len < s.n && ((unsigned char)s.s[i + len] & 0xC0) == 0x80) len++;
            put(t, s.s + i, len);
        }
        i += len;
    }
    put(t, "\"", 1);
}

static void put_elem(text *t, gguf_type type, const uint8_t *base, uint64_t i) {
    char s[40];
    number x;
    if (type == GGUF_BOOL)
        snprintf(s, sizeof s, "%s", base[i] ? "true" : "false");
    else if (!load(type, base, i, &x))
        return;
    else if ((type != GGUF_F32 && type != GGUF_F64) || (x.whole && x.magnitude < 1000000000000000))
        snprintf(s, sizeof s, "%s%llu", x.negative ? "-" : "", (unsigned long long)x.magnitude);
    else
        /* The shortest digits that read back equal. */
        for (int prec = 1; prec <= 17; prec++) {
            double back;
            snprintf(s, sizeof s, "%.*g", prec, x.real);
            back = strtod(s, NULL);
            if (type == GGUF_F32 ? (float)back == (float)x.real : back == x.real) break;
        }
    put(t, s, strlen(s));
}

void gguf_key_text(const gguf *g, size_t i, char *dst, size_t n) {
    enum { SHOWN = 8 }; /* elements of an array */
    const gguf_kv *kv;
    const uint8_t *p;
    text t = {dst, 0, n ? n - 1 : 0, false};
    char head[64];
    if (!n) return;
    dst[0] = 0;
    if (i >= g->n_keys) return;
    kv = &g->keys[i];
    p = kv->p;
    if (kv->type == GGUF_ARRAY) {
        snprintf(head, sizeof head, "%s[%llu] [", type_names[kv->elem], (unsigned long long)kv->n);
        put(&t, head, strlen(head));
    }
    for (uint64_t k = 0; k < kv->n && k < SHOWN && !t.full; k++) {
        if (k) put(&t, ", ", 2);
        if (kv->elem == GGUF_STRING)
            put_str(&t, next_str(&p));
        else
            put_elem(&t, kv->elem, kv->p, k);
    }
    if (kv->type == GGUF_ARRAY) put(&t, kv->n > SHOWN ? ", ...]" : "]", kv->n > SHOWN ? 6 : 1);
    if (t.full && t.cap >= 3) {
        /* Make room for "..." without leaving half a character behind. */
        if (t.n > t.cap - 3)
            for (t.n = t.cap - 3; t.n && ((unsigned char)dst[t.n] & 0xC0) == 0x80;) t.n--;
        memcpy(dst + t.n, "...", 3);
        t.n += 3;
    }
    dst[t.n] = 0;
}
