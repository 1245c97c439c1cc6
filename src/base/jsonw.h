/* jsonw.h - writing JSON text into a bounded buffer.
 *
 * Strings may hold any bytes: each maximal invalid part of UTF-8 becomes one U+FFFD (Unicode 15, 3.9), so that the
 * writer can never fail on content.  Numbers are written as the shortest text that reads back equal; NaN and
 * infinities (which JSON lacks) are written as null.  Commas are placed by the caller through json_* helpers. */
#ifndef HD_BASE_JSONW_H
#define HD_BASE_JSONW_H

#include "base/buf.h"

/* Writer state: a buffer and whether the next value needs a comma before it. */
typedef struct {
    hd_buf *b;
    bool comma;
} jsonw;

void jsonw_init(jsonw *w, hd_buf *b);
void jsonw_obj(jsonw *w);     /* { */
void jsonw_obj_end(jsonw *w); /* } */
void jsonw_arr(jsonw *w);
void jsonw_arr_end(jsonw *w);
void jsonw_key(jsonw *w, const char *key);
void jsonw_str(jsonw *w, const char *s);
void jsonw_strn(jsonw *w, const char *s, size_t n);
void jsonw_int(jsonw *w, int64_t v);
void jsonw_uint(jsonw *w, uint64_t v);
void jsonw_num(jsonw *w, double v);
void jsonw_f32(jsonw *w, float v); /* the shortest text that reads back as this float */
void jsonw_bool(jsonw *w, bool v);
void jsonw_null(jsonw *w);
void jsonw_raw(jsonw *w, const char *json, size_t n); /* text that is already one JSON value */

/* The escaped body of a JSON string, without quotes. */
void jsonw_escape(hd_buf *b, const char *s, size_t n);
/* Shortest text of v that strtod reads back equal, in JSON form ("1e+20" style as Python's repr: 1e+20, 0.1, 3.0). */
void jsonw_double(hd_buf *b, double v);

/* Length of the valid UTF-8 sequence at s (1..4), or minus the length of the maximal invalid part (>= 1). n >= 1.
 * A truncated but so far valid tail counts as an invalid part of its whole length. */
int utf8_next(const char *s, size_t n, uint32_t *cp);

#endif
