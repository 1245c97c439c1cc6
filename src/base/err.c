/* err.c - filling hd_err. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *hd_status_name(hd_status s) {
    switch (s) {
#define X(id, name)                                                                                                    \
    case HD_##id: return name;
        HD_STATUSES(X)
#undef X
    }
    return "unknown";
}

__attribute__((format(printf, 5, 0))) static hd_status fill(hd_err *err, hd_status code, uint64_t at,
                                                            const char *field, const char *fmt, va_list ap) {
    if (!err) return code;
    err->code = code;
    err->at = at;
    err->line = 0;
    snprintf(err->field, sizeof err->field, "%s", field);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    return code;
}

hd_status hd_fail(hd_err *err, hd_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, HD_NOWHERE, "", fmt, ap);
    va_end(ap);
    return code;
}

hd_status hd_fail_at(hd_err *err, hd_status code, uint64_t at, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, at, "", fmt, ap);
    va_end(ap);
    return code;
}

hd_status hd_fail_field(hd_err *err, hd_status code, const char *field, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, HD_NOWHERE, field, fmt, ap);
    va_end(ap);
    return code;
}

#ifdef HD_DEBUG
void hd_assert_failed(const char *expr, const char *file, int line) {
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, expr);
    abort();
}
#endif
