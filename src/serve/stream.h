/* stream.h - the frames of server-sent events (WHATWG HTML, 9.2), appended to a buffer. */
#ifndef HD_SERVE_STREAM_H
#define HD_SERVE_STREAM_H

#include "base/buf.h"

#include <stdint.h>

#define SSE_TYPE "text/event-stream"
#define SSE_HEADERS "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"

void sse_open(hd_buf *out, uint64_t number); /* "id: N" and the start of the data line; the JSON (one line) follows */
void sse_open_plain(hd_buf *out);            /* a data line without a number */
void sse_close(hd_buf *out);
void sse_done(hd_buf *out);                  /* data: [DONE] */
void sse_comment(hd_buf *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
