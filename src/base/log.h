/* log.h - the only module that prints below cli: lines on stderr, one write each, so that threads do not mix.
 *
 * Lines of the debug level carry the time (UTC) and are at most HD_LOG_DEBUG_LINES a second; how many were left out is said with
 * the next.  They are for counts, times and ids: never a prompt's or an answer's text, never keys. */
#ifndef HD_BASE_LOG_H
#define HD_BASE_LOG_H

#include <stdbool.h>

typedef enum { HD_LOG_ERROR, HD_LOG_WARN, HD_LOG_INFO, HD_LOG_DEBUG } hd_log_level;
enum { HD_LOG_DEBUG_LINES = 400 };

void hd_log(hd_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Is that level printed?  For callers that would have to work out what to say; costs a relaxed load. */
bool hd_log_on(hd_log_level level);
/* Highest level that is printed; process-wide, set once by main from $HEDDLE_LOG (error, warn, info, debug). */
void hd_log_set(hd_log_level level);

#endif
