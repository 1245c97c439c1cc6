/* log.c - see log.h.  The level is the one process-wide setting of the library: it belongs to stderr, not to an engine. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_int max_level = HD_LOG_WARN; /* publishes nothing but itself */

void hd_log_set(hd_log_level level) { atomic_store_explicit(&max_level, (int)level, memory_order_relaxed); }

void hd_log(hd_log_level level, const char *fmt, ...) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char line[1024];
    int n, m;
    va_list ap;
    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed)) return;
    n = snprintf(line, sizeof line, "heddle: %s: ", names[level]);
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) return;
    n += m < (int)sizeof line - n - 2 ? m : (int)sizeof line - n - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0) return; /* nobody is left to tell */
}
