/* log.c - see log.h.  The level is the one process-wide setting of the library: it belongs to stderr, not to an engine. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_int max_level = HD_LOG_WARN; /* publishes nothing but itself */

void hd_log_set(hd_log_level level) { atomic_store_explicit(&max_level, (int)level, memory_order_relaxed); }

bool hd_log_on(hd_log_level level) { return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed); }

/* Lines of the second that `debug_second` names.  Two threads may both begin a second, or miss one line: a bound, no count. */
static atomic_llong debug_second;
static atomic_uint debug_lines;

/* The time and what was left out, at most 60 bytes; -1: this second has had its lines. */
static int debug_head(char *line, size_t size) {
    struct timespec t;
    unsigned over = 0;
    int n;
    clock_gettime(CLOCK_REALTIME, &t);
    if (atomic_exchange_explicit(&debug_second, (long long)t.tv_sec, memory_order_relaxed) != (long long)t.tv_sec) {
        unsigned lines = atomic_exchange_explicit(&debug_lines, 0, memory_order_relaxed);
        if (lines > HD_LOG_DEBUG_LINES) over = lines - HD_LOG_DEBUG_LINES;
    }
    if (atomic_fetch_add_explicit(&debug_lines, 1, memory_order_relaxed) >= HD_LOG_DEBUG_LINES) return -1;
    n = snprintf(line, size, "%02d:%02d:%02d.%03d ", (int)(t.tv_sec / 3600 % 24), (int)(t.tv_sec / 60 % 60), (int)(t.tv_sec % 60),
                 (int)(t.tv_nsec / 1000000));
    return over ? n + snprintf(line + n, size - (size_t)n, "(%u lines left out) ", over) : n;
}

void hd_log(hd_log_level level, const char *fmt, ...) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char line[1024];
    int n, m;
    va_list ap;
    if (!hd_log_on(level)) return;
    n = snprintf(line, sizeof line, "heddle: %s: ", names[level]);
    if (level == HD_LOG_DEBUG) {
        if ((m = debug_head(line + n, sizeof line - (size_t)n)) < 0) return;
        n += m;
    }
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) return;
    n += m < (int)sizeof line - n - 2 ? m : (int)sizeof line - n - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0) return; /* nobody is left to tell */
}
