/* error.h - one error of a request, and its body in the OpenAI dialect.
 *
 * Planners and the loop fill a serve_error; the dialect of the route writes it (routes of Anthropic's API: in that shape).
 * Status, type and code follow the error table in docs/http.md. */
#ifndef HD_SERVE_ERROR_H
#define HD_SERVE_ERROR_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int status;             /* 0: no error */
    const char *type;       /* static text; NULL: by status */
    const char *code;       /* static text; NULL: null */
    char param[96];         /* "" : null */
    char msg[640];
    uint32_t retry_after_s; /* > 0: a Retry-After header, whole seconds */
    /* context_length_exceeded: the counts, when n_ctx > 0 */
    uint64_t n_prompt_tokens, n_ctx;
    /* queue_full: the queue, when max_queued > 0 */
    uint32_t waiting, max_queued;
    /* a generation that was cut: what it had made */
    bool anthropic;         /* the body has Anthropic's shape */
    bool has_generated;
    uint64_t generated_tokens;
} serve_error;

/* Fill e, unless it already holds an error (the first one is the cause).  Always returns false, so that a check can
 * `return serve_fail(...)`. */
bool serve_fail(serve_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define bad_field(e, param, ...) serve_fail(e, 400, "invalid_value", param, __VA_ARGS__)

/* {"error":{"message","type","param","code",...}} appended to out; for Anthropic's clients {"type":"error","error":{"type","message"}}. */
void serve_error_json(hd_buf *out, const serve_error *e);
const char *serve_error_type(const serve_error *e);

#endif
