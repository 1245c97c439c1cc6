/* buf.c - see buf.h. */
#include "base/buf.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void buf_init(hd_buf *b, size_t max_bytes) {
    memset(b, 0, sizeof *b);
    b->max_bytes = max_bytes < SIZE_MAX - 1 ? max_bytes : SIZE_MAX - 1;
}

void buf_deinit(hd_buf *b) {
    hd_free(b->data);
    buf_init(b, b->max_bytes);
}

void buf_clear(hd_buf *b) {
    b->len = 0;
    b->failed = HD_OK;
    if (b->data) b->data[0] = 0;
}

static bool give_up(hd_buf *b, hd_status why) {
    hd_free(b->data);
    b->data = NULL;
    b->len = b->cap = 0;
    b->failed = why;
    return false;
}

static bool reserve(hd_buf *b, size_t n) {
    if (b->failed) return false;
    if (n > b->max_bytes - b->len) return give_up(b, HD_FULL);
    if (!hd_grow(&b->data, &b->cap, b->len + n + 1, 1, b->max_bytes + 1)) return give_up(b, HD_NOMEM);
    return true;
}

bool buf_reserve(hd_buf *b, size_t n) {
    if (b->failed || n > b->max_bytes - b->len) return false;
    if (!hd_grow(&b->data, &b->cap, b->len + n + 1, 1, b->max_bytes + 1)) return false;
    b->data[b->len] = 0;
    return true;
}

bool buf_add(hd_buf *b, const void *p, size_t n) {
    if (!reserve(b, n)) return false;
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
    return true;
}

bool buf_str(hd_buf *b, const char *s) { return buf_add(b, s, strlen(s)); }
bool buf_byte(hd_buf *b, char c) { return buf_add(b, &c, 1); }

bool buf_fmt(hd_buf *b, const char *fmt, ...) {
    va_list ap;
    int n;
    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !reserve(b, (size_t)n)) return false;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return true;
}

void buf_drop_front(hd_buf *b, size_t n) {
    HD_ASSERT(n <= b->len);
    if (!n) return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

char *buf_take(hd_buf *b, size_t *len) {
    char *p;
    if (!b->failed && !b->data) reserve(b, 0);
    if (b->failed) return NULL;
    b->data[b->len] = 0;
    p = b->data;
    if (len) *len = b->len;
    b->data = NULL;
    b->len = b->cap = 0;
    return p;
}

const char *buf_cstr(const hd_buf *b) { return b->data ? b->data : ""; }
