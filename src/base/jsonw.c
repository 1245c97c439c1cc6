/* jsonw.c - see jsonw.h. */
#include "base/jsonw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Unicode 15.0 table 3-7: well-formed UTF-8 byte sequences. */
int utf8_next(const char *str, size_t n, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)str;
    unsigned char lo = 0x80, hi = 0xBF, c = s[0];
    uint32_t v;
    int need;
    *cp = 0xFFFD;
    if (c < 0x80) return *cp = c, 1;
    if (c >= 0xC2 && c <= 0xDF) need = 1, v = c & 0x1Fu;
    else if (c >= 0xE0 && c <= 0xEF) need = 2, v = c & 0x0Fu;
    else if (c >= 0xF0 && c <= 0xF4) need = 3, v = c & 0x07u;
    else return -1;
    if (c == 0xE0) lo = 0xA0;
    if (c == 0xED) hi = 0x9F;
    if (c == 0xF0) lo = 0x90;
    if (c == 0xF4) hi = 0x8F;
    for (int i = 1; i <= need; i++) {
        if ((size_t)i >= n || s[i] < lo || s[i] > hi) return -i;
        v = v << 6 | (s[i] & 0x3Fu);
        lo = 0x80, hi = 0xBF;
    }
    *cp = v;
    return need + 1;
}

void jsonw_escape(hd_buf *b, const char *s, size_t n) {
    size_t run = 0; /* start of bytes that can be copied as they are */
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp;
        int len = 1;
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        if (c >= 0x80 && (len = utf8_next(s + i, n - i, &cp)) > 0) {
            i += (size_t)len;
            continue;
        }
        buf_add(b, s + run, i - run);
        if (c >= 0x80) buf_str(b, "\xEF\xBF\xBD");
        else if (c == '"' || c == '\\') buf_byte(b, '\\'), buf_byte(b, (char)c);
        else if (c == '\n') buf_str(b, "\\n");
        else if (c == '\r') buf_str(b, "\\r");
        else if (c == '\t') buf_str(b, "\\t");
        else if (c == '\b') buf_str(b, "\\b");
        else if (c == '\f') buf_str(b, "\\f");
        else buf_fmt(b, "\\u%04x", c);
        i += (size_t)(len < 0 ? -len : len);
        run = i;
    }
    buf_add(b, s + run, n - run);
}

void jsonw_double(hd_buf *b, double v) {
    char t[40];
    int prec;
    if (!isfinite(v)) {
        buf_str(b, "null");
        return;
    }
    /* What reads back at 15 digits or fewer prints the same at 15, except among the subnormals. */
    for (prec = fabs(v) < 2.3e-308 ? 1 : 15; prec < 17; prec++) {
        snprintf(t, sizeof t, "%.*g", prec, v);
        if (strtod(t, NULL) == v) break;
    }
    if (prec == 17) snprintf(t, sizeof t, "%.17g", v);
    /* Exponents only where Python's repr has them: below 1e-4 and from 1e16 on. */
    if (strchr(t, 'e') && fabs(v) >= 1e-4 && fabs(v) < 1e16) snprintf(t, sizeof t, "%.0f", v);
    buf_str(b, t);
    if (!strpbrk(t, ".e")) buf_str(b, ".0");
}

void jsonw_init(jsonw *w, hd_buf *b) { w->b = b, w->comma = false; }

static void before(jsonw *w) {
    if (w->comma) buf_byte(w->b, ',');
    w->comma = true;
}

static void open_with(jsonw *w, char c) {
    before(w);
    buf_byte(w->b, c);
    w->comma = false;
}

static void close_with(jsonw *w, char c) {
    buf_byte(w->b, c);
    w->comma = true;
}

void jsonw_obj(jsonw *w) { open_with(w, '{'); }
void jsonw_obj_end(jsonw *w) { close_with(w, '}'); }
void jsonw_arr(jsonw *w) { open_with(w, '['); }
void jsonw_arr_end(jsonw *w) { close_with(w, ']'); }

void jsonw_key(jsonw *w, const char *key) {
    jsonw_str(w, key);
    buf_byte(w->b, ':');
    w->comma = false;
}

void jsonw_strn(jsonw *w, const char *s, size_t n) {
    before(w);
    buf_byte(w->b, '"');
    jsonw_escape(w->b, s, n);
    buf_byte(w->b, '"');
}

void jsonw_str(jsonw *w, const char *s) { jsonw_strn(w, s, strlen(s)); }

void jsonw_int(jsonw *w, int64_t v) {
    before(w);
    buf_fmt(w->b, "%lld", (long long)v);
}

void jsonw_uint(jsonw *w, uint64_t v) {
    before(w);
    buf_fmt(w->b, "%llu", (unsigned long long)v);
}

void jsonw_num(jsonw *w, double v) {
    before(w);
    jsonw_double(w->b, v);
}

void jsonw_f32(jsonw *w, float v) {
    char t[40];
    double shortest = (double)v;
    for (int prec = 1; prec <= 9 && isfinite(v); prec++) {
        snprintf(t, sizeof t, "%.*g", prec, (double)v);
        if (strtof(t, NULL) != v) continue;
        shortest = strtod(t, NULL);
        break;
    }
    jsonw_num(w, shortest);
}

void jsonw_bool(jsonw *w, bool v) {
    before(w);
    buf_str(w->b, v ? "true" : "false");
}

void jsonw_null(jsonw *w) {
    before(w);
    buf_str(w->b, "null");
}

void jsonw_raw(jsonw *w, const char *json, size_t n) {
    before(w);
    buf_add(w->b, json, n);
}
