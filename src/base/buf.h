/* buf.h - a byte buffer born with its limit.
 *
 * Appending past max_bytes or without memory sets `failed`, frees the bytes and makes every later append a
 * no-op, so that a writer may append freely and ask once at the end.  data is NUL-terminated (not counted). */
#ifndef HD_BASE_BUF_H
#define HD_BASE_BUF_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *data; /* NULL while empty */
    size_t len, cap, max_bytes;
    hd_status failed; /* HD_OK, HD_FULL or HD_NOMEM */
} hd_buf;

void buf_init(hd_buf *b, size_t max_bytes);
void buf_deinit(hd_buf *b);
void buf_clear(hd_buf *b); /* keeps the memory; also clears `failed` */
/* Make room for n more bytes, so that appending them holds.  False: there is none, and the buffer is as it was. */
bool buf_reserve(hd_buf *b, size_t n);
bool buf_add(hd_buf *b, const void *p, size_t n);
bool buf_str(hd_buf *b, const char *s);
bool buf_byte(hd_buf *b, char c);
bool buf_fmt(hd_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_drop_front(hd_buf *b, size_t n); /* remove the first n bytes, n <= len */
char *buf_take(hd_buf *b, size_t *len);   /* hand over the heap block (hd_free); NULL if failed; b is empty after */
const char *buf_cstr(const hd_buf *b);    /* "" while empty */

#endif
