/* log.h - the only module that prints below cli: lines on stderr, one write each, so that threads do not mix. */
#ifndef HD_BASE_LOG_H
#define HD_BASE_LOG_H

typedef enum { HD_LOG_ERROR, HD_LOG_WARN, HD_LOG_INFO, HD_LOG_DEBUG } hd_log_level;

void hd_log(hd_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Highest level that is printed; process-wide, set once by main from $HEDDLE_LOG (error, warn, info, debug). */
void hd_log_set(hd_log_level level);

#endif
