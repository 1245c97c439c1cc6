/* trace.h - what happened when, for people: a file in Chrome's trace format (chrome://tracing, Perfetto).
 *
 * Calls copy one record into a bounded ring and never wait; a writer thread empties it.  A full ring drops records and
 * counts them, a file that reached its bound takes no more; both are said in the file's last record.  Thread-safe.
 * A NULL trace is allowed everywhere and does nothing. */
#ifndef HD_BASE_TRACE_H
#define HD_BASE_TRACE_H

#include "base/err.h"

#include <stdint.h>

typedef struct trace trace;

/* max_bytes: bound of the file, 0: 256 MiB.  An existing file is replaced. */
hd_status trace_open(trace **out, const char *path, uint64_t max_bytes, hd_err *err);
void trace_close(trace *t); /* writes what waits and the end of the file */

/* name and arg names: static text.  Times: microseconds of one monotonic clock.  Unused arg names are NULL. */
/* A span of the thread `lane` (0: executor). */
void trace_span(trace *t, const char *name, uint32_t lane, uint64_t t0_us, uint64_t t1_us, const char *arg1,
                uint64_t v1, const char *arg2, uint64_t v2);
/* A span of a request, on a line of its own: id is copied (63 bytes). */
void trace_request(trace *t, const char *name, const char *id, uint64_t order, uint64_t t0_us, uint64_t t1_us,
                   const char *arg1, uint64_t v1);
/* Something at a moment of a request. */
void trace_mark(trace *t, const char *name, const char *id, uint64_t order, uint64_t t_us);

#endif
