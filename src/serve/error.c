/* error.c - see error.h. */
#include "serve/error.h"

#include "base/jsonw.h"

#include <stdarg.h>
#include <stdio.h>

bool serve_fail(serve_error *e, int status, const char *code, const char *param, const char *fmt, ...) {
    va_list ap;
    if (e->status) return false;
    e->status = status;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return false;
}

const char *serve_error_type(const serve_error *e) {
    if (e->type) return e->type;
    switch (e->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 409: return "conflict_error";
    case 410: return "gone_error";
    case 429: return "rate_limit_error";
    case 499: return "cancelled_error";
    case 503: return "unavailable_error";
    case 504: return "timeout_error";
    default: return e->status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void serve_error_json(hd_buf *out, const serve_error *e) {
    jsonw w;
    jsonw_init(&w, out);
    jsonw_obj(&w);
    if (e->anthropic) jsonw_key(&w, "type"), jsonw_str(&w, "error");
    jsonw_key(&w, "error");
    jsonw_obj(&w);
    jsonw_key(&w, "message"), jsonw_str(&w, e->msg);
    jsonw_key(&w, "type"), jsonw_str(&w, serve_error_type(e));
    if (e->anthropic) goto end;
    jsonw_key(&w, "param");
    if (e->param[0]) jsonw_str(&w, e->param);
    else jsonw_null(&w);
    jsonw_key(&w, "code");
    if (e->code) jsonw_str(&w, e->code);
    else jsonw_null(&w);
    if (e->n_ctx) {
        jsonw_key(&w, "n_prompt_tokens"), jsonw_uint(&w, e->n_prompt_tokens);
        jsonw_key(&w, "n_ctx"), jsonw_uint(&w, e->n_ctx);
    }
    if (e->max_queued) {
        jsonw_key(&w, "waiting"), jsonw_uint(&w, e->waiting);
        jsonw_key(&w, "max_queued"), jsonw_uint(&w, e->max_queued);
    }
    if (e->has_generated) jsonw_key(&w, "generated_tokens"), jsonw_uint(&w, e->generated_tokens);
end:
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
}
