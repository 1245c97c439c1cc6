/* record.h - the bytes by which the request log holds a request's policy, its events and its end.
 *
 * The policy is the resolved one: every value after defaults, so that other defaults at the next start change nothing.
 * All numbers are little-endian.  The first byte of a policy and of an end is the version; an unknown one is refused.
 * Reading trusts nothing: the log has checksums, but may have been written by another build. */
#ifndef HD_SERVE_RECORD_H
#define HD_SERVE_RECORD_H

#include "serve/gen.h"
#include "state/journal.h"

enum { EVENT_EXTRA_MAX = 8 + 8 * SAMPLER_MAX_TOP_LOGPROBS + 128 };

/* The policy of g, whose prompts and plan are complete.  False: no memory, or too large. */
bool record_write(gen *g, hd_buf *out);
/* Fill g's plan and prompts from a stored request; g's plan is clear.  d is the dialect it must have.  HD_NOTFOUND: it has
 * another.  HD_UNSUPPORTED: another version.  HD_INVALID: not what record_write wrote.  HD_NOMEM. */
hd_status record_read(gen *g, const dialect *d, const journal_entry *e, hd_err *err);
/* The name of its dialect; NULL: it has none that is known. */
const dialect *record_dialect(const journal_entry *e);

/* An event as the log takes it; text is the event's own, extra is written to `extra`. */
void event_write(const gen_event *ev, bool logprobs, uint8_t extra[EVENT_EXTRA_MAX], journal_event *out);
/* False: not an event of ours.  Text stays borrowed. */
bool event_read(const journal_event *in, gen_event *ev);
/* What must be equal of an event that is computed again: its kind and its token. */
uint32_t event_mark(const journal_event *e);
/* The token of such a mark; false: it is none of an answer. */
bool event_mark_token(uint32_t mark, int32_t *id);

/* Events one behind another in a buffer: a head of 12 bytes, text, extra. */
bool event_pack(hd_buf *out, const journal_event *e);
/* The event at p, of at most n bytes; returns what it takes, 0 if it is cut. */
size_t event_unpack(const char *p, size_t n, journal_event *e);

/* Why a request ended early, or (status 0) that it did not. */
bool finish_write(const serve_error *e, hd_buf *out);
bool finish_read(const void *p, size_t n, serve_error *e);

#endif
