/* stop.h - stop strings over a stream of text pieces.
 *
 * The result is that of searching the whole text at once: of all occurrences the earliest start wins, then the one that
 * is complete first, then the first listed.  How the text was cut into pieces never changes what passes (reports of the
 * class "hold back any suffix that is a prefix of a stop string").  Held back is exactly the longest suffix that is a
 * proper prefix of a stop string; everything else passes at once.  When a stop is decided, the text before it has passed
 * and it and all after it are swallowed.
 *
 * A complete stop is not decided while another one that began earlier may still be completed (stops "bc" and "abcd",
 * text "abc"): at most STOP_MAX_BYTES - 1 bytes later it is, or stop_finish says so.  Bytes, not characters: strings of
 * valid UTF-8 never cut a character of valid UTF-8 text. */
#ifndef HD_DECODE_STOP_H
#define HD_DECODE_STOP_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { STOP_MAX_STRINGS = 64, STOP_MAX_BYTES = 4096 /* of one string */ };

typedef struct stop_set stop_set; /* immutable; one per request; any thread may read it */
typedef struct {
    const char *s; /* n bytes, NULs allowed */
    size_t n;
} stop_string;
/* Copies the strings; n may be 0.  HD_INVALID (field "stop"): too many, an empty or a too long one.  HD_NOMEM. */
hd_status stop_set_new(stop_set **out, const stop_string *strings, size_t n, hd_err *err);
void stop_set_free(stop_set *s); /* NULL is fine */

typedef struct stop_stream stop_stream; /* the state of one row */
hd_status stop_stream_new(stop_stream **out, const stop_set *set, hd_err *err); /* borrows set; HD_NOMEM */
void stop_stream_free(stop_stream *s);                                         /* NULL is fine */

/* Feed a piece (n may be 0); text that may pass is appended to out, whose own failure state tells whether it held.
 * True: a stop is decided, *which (may be NULL) is its index in the list; it stays true and nothing passes any more.
 * Linear in n times the number of strings; no heap calls but those of out. */
bool stop_push(stop_stream *s, const char *text, size_t n, hd_buf *out, size_t *which);

/* The text ended otherwise (EOS, a cap): release what is held.  True: a complete stop was waiting for an earlier one
 * that now cannot come; it counts, only the text before it is released, *which (may be NULL) is its index. */
bool stop_finish(stop_stream *s, hd_buf *out, size_t *which);

size_t stop_held(const stop_stream *s); /* bytes held back now */

#endif
