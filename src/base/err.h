/* err.h - the one error shape: a status to branch on and a message for people.
 *
 * Every call that can fail for input or resources returns hd_status and fills an hd_err.  Our own
 * mistakes are HD_ASSERT, active in debug and test builds.  Nothing below main exits or prints. */
#ifndef HD_BASE_ERR_H
#define HD_BASE_ERR_H

#include <stdint.h>

#define HD_STATUSES(X)                                                                                                 \
    X(OK, "ok")                                                                                                        \
    X(INVALID, "invalid")             /* the input is wrong: err->field or err->at says where */                       \
    X(UNSUPPORTED, "unsupported")     /* well-formed, but something heddle does not do; named in msg */                \
    X(NOTFOUND, "not_found")          /* a file, key, model or id that is not there */                                 \
    X(NOMEM, "no_memory")             /* the heap refused */                                                           \
    X(IO, "io")                       /* a read, write or map failed; msg has the reason */                            \
    X(FULL, "full")                   /* a stated limit was reached; nothing changed */                                \
    X(NEVER_FITS, "never_fits")       /* larger than a limit that will not move */                                     \
    X(CANCELLED, "cancelled")         /* ended by its owner, a deadline or a shutdown */                               \
    X(TIMEOUT, "timeout")             /* the caller's own limit of time passed; nothing changed */                      \
    X(CLOSED, "closed")               /* the thing asked is shutting down */                                           \
    X(FAILED, "failed")               /* a computation failed for this request only */

typedef enum {
#define X(id, name) HD_##id,
    HD_STATUSES(X)
#undef X
} hd_status;

/* at: byte offset in the input, or HD_NOWHERE.  line: 1-based line, or 0.  field: the parameter or key, or "". */
#define HD_NOWHERE UINT64_MAX
typedef struct {
    hd_status code;
    uint32_t line;
    uint64_t at;
    char field[64];
    char msg[360];
} hd_err;

const char *hd_status_name(hd_status s);

/* Fill err (which may be NULL) and return code, so that a caller can `return hd_fail(...)`. */
hd_status hd_fail(hd_err *err, hd_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
hd_status hd_fail_at(hd_err *err, hd_status code, uint64_t at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
hd_status hd_fail_field(hd_err *err, hd_status code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#ifdef HD_DEBUG
void hd_assert_failed(const char *expr, const char *file, int line) __attribute__((noreturn));
#define HD_ASSERT(e) ((e) ? (void)0 : hd_assert_failed(#e, __FILE__, __LINE__))
#else
#define HD_ASSERT(e) ((void)0)
#endif

#endif
