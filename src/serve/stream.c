/* stream.c - see stream.h.  JSON written by jsonw holds no line breaks, so that one data line always suffices. */
#include "serve/stream.h"

#include <stdarg.h>
#include <stdio.h>

void sse_open(hd_buf *out, uint64_t number) { buf_fmt(out, "id: %llu\ndata: ", (unsigned long long)number); }
void sse_open_plain(hd_buf *out) { buf_str(out, "data: "); }
void sse_close(hd_buf *out) { buf_str(out, "\n\n"); }
void sse_done(hd_buf *out) { buf_str(out, "data: [DONE]\n\n"); }

void sse_comment(hd_buf *out, const char *fmt, ...) {
    char text[120];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_fmt(out, ": %s\n\n", text);
}
