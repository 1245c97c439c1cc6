/* stop.h - stop strings over a stream of text pieces.
 *
 * Holds back exactly the longest suffix that could still begin a stop string; everything else passes at once.  When a
 * stop is complete, text before it passes and the rest is swallowed.  The earliest start wins, then the first listed. */
#ifndef HD_DECODE_STOP_H
#define HD_DECODE_STOP_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { STOP_MAX_STRINGS = 64, STOP_MAX_BYTES = 4096 /* of one string */ };

typedef struct stop_set stop_set; /* immutable; one per request */
typedef struct {
    const char *s;
    size_t n;
} stop_string;
hd_status stop_set_new(stop_set **out, const stop_string *strings, size_t n, hd_err *err); /* copies; n may be 0 */
void stop_set_free(stop_set *s);

typedef struct stop_stream stop_stream; /* the state of one row */
hd_status stop_stream_new(stop_stream **out, const stop_set *set, hd_err *err); /* borrows set */
void stop_stream_free(stop_stream *s);
/* Feed a piece; text that may pass is appended to out.  True: a stop was completed (index in *which). No heap calls. */
bool stop_push(stop_stream *s, const char *text, size_t n, hd_buf *out, size_t *which);
void stop_finish(stop_stream *s, hd_buf *out); /* the end came otherwise: release what is held */

#endif
