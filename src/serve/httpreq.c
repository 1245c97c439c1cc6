/* httpreq.c - see httpreq.h.
 *
 * http_parser keeps a process-wide header limit of its own (80 KiB); ours is lower and per request, so that one never
 * decides.  Read: httpreq_feed, then the callbacks in the order the parser calls them. */
#include "serve/httpreq.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char *const kept_names[HTTPREQ_N_HEADERS] = {
#define X(id, name) name,
    HTTPREQ_HEADERS(X)
#undef X
};

static int bad(httpreq *r, int status, const char *why) {
    if (r->state != HTTPREQ_BAD) {
        r->state = HTTPREQ_BAD;
        r->status = status;
        r->why = why;
    }
    return -1; /* any callback's non-zero stops the parser */
}

static int on_url(http_parser *p, const char *at, size_t n) {
    httpreq *r = p->data;
    if (buf_add(&r->target, at, n)) return 0;
    return r->target.failed == HD_FULL ? bad(r, 414, "the request target is too long") : bad(r, 503, "out of memory");
}

static int on_field(http_parser *p, const char *at, size_t n) {
    httpreq *r = p->data;
    if (r->state != HTTPREQ_HEAD) return 0; /* trailers of a chunked body */
    if (r->in_value) r->in_value = false, r->n_name = 0;
    for (size_t i = 0; i < n; i++) {
        if (r->n_name + 1 < sizeof r->name) r->name[r->n_name] = (char)tolower((unsigned char)at[i]);
        if (r->n_name < sizeof r->name) r->n_name++; /* an over-long name ends at the full size: it matches nothing */
    }
    return 0;
}

static int on_value(http_parser *p, const char *at, size_t n) {
    httpreq *r = p->data;
    if (r->state != HTTPREQ_HEAD) return 0;
    if (!r->in_value) {
        r->in_value = true;
        r->current = -1;
        for (int i = 0; i < HTTPREQ_N_HEADERS; i++)
            if (r->n_name == strlen(kept_names[i]) && !memcmp(r->name, kept_names[i], r->n_name)) r->current = i;
        /* A repeated header: the first one counts, as the later may come from someone else on the way. */
        if (r->current >= 0 && r->sent[r->current]) r->current = -1;
        if (r->current >= 0) r->sent[r->current] = true;
    }
    /* http_parser leaves the first byte of a value unchecked. */
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)at[i] < 32 && at[i] != '\t') || at[i] == 127) return bad(r, 400, "invalid character in header");
    if (r->current < 0) return 0;
    if (buf_add(&r->header[r->current], at, n)) return 0;
    if (r->header[r->current].failed != HD_FULL) return bad(r, 503, "out of memory");
    snprintf(r->too_long, sizeof r->too_long, "the header %s is too long", kept_names[r->current]);
    return bad(r, 431, r->too_long);
}

/* White space behind a value is no part of it (RFC 9110, 5.5); http_parser drops only what is in front. */
static void trim(hd_buf *b) {
    while (b->len && (b->data[b->len - 1] == ' ' || b->data[b->len - 1] == '\t')) b->data[--b->len] = 0;
}

static int on_headers_complete(http_parser *p) {
    httpreq *r = p->data;
    for (int i = 0; i < HTTPREQ_N_HEADERS; i++) trim(&r->header[i]);
    if (p->http_major != 1) return bad(r, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    r->method = p->method;
    r->minor = p->http_minor;
    r->chunked = (p->flags & F_CHUNKED) != 0;
    r->content_length = p->flags & F_CONTENTLENGTH ? p->content_length : 0;
    r->has_body = r->chunked || r->content_length > 0;
    r->keep_alive = http_should_keep_alive(p) != 0;
    /* Upgrade offers (h2c, websocket) are declined by answering the request as it is; CONNECT has no body either way
     * and is refused by its method. */
    p->upgrade = 0;
    r->state = HTTPREQ_HEAD_DONE;
    if (r->content_length > r->max_body_bytes) return bad(r, 413, "the request body is larger than the limit");
    http_parser_pause(p, 1);
    return 0;
}

static int on_body(http_parser *p, const char *at, size_t n) {
    httpreq *r = p->data;
    r->body_bytes += n;
    if (r->body_bytes > r->max_body_bytes) return bad(r, 413, "the request body is larger than the limit");
    if (r->discard_body || buf_add(&r->body, at, n)) return 0;
    return bad(r, r->body.failed == HD_FULL ? 413 : 503,
               r->body.failed == HD_FULL ? "the request body is larger than the limit" : "out of memory");
}

static int on_message_complete(http_parser *p) {
    httpreq *r = p->data;
    r->state = HTTPREQ_DONE;
    http_parser_pause(p, 1);
    return 0;
}

static const http_parser_settings callbacks = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void httpreq_init(httpreq *r, size_t max_head_bytes, size_t max_body_bytes) {
    memset(r, 0, sizeof *r);
    r->max_head_bytes = max_head_bytes;
    r->max_body_bytes = max_body_bytes;
    buf_init(&r->target, HTTPREQ_MAX_TARGET);
    for (int i = 0; i < HTTPREQ_N_HEADERS; i++) buf_init(&r->header[i], HTTPREQ_MAX_VALUE);
    buf_init(&r->body, max_body_bytes);
    http_parser_init(&r->parser, HTTP_REQUEST);
    r->parser.data = r;
    r->current = -1;
}

void httpreq_deinit(httpreq *r) {
    buf_deinit(&r->target);
    for (int i = 0; i < HTTPREQ_N_HEADERS; i++) buf_deinit(&r->header[i]);
    buf_deinit(&r->body);
}

void httpreq_reset(httpreq *r) {
    size_t head = r->max_head_bytes, body = r->max_body_bytes;
    httpreq_deinit(r);
    httpreq_init(r, head, body);
}

size_t httpreq_feed(httpreq *r, const char *data, size_t n) {
    size_t taken;
    if (r->state == HTTPREQ_DONE || r->state == HTTPREQ_BAD || !n) return 0;
    if (r->state == HTTPREQ_HEAD_DONE) {
        r->state = HTTPREQ_BODY;
        http_parser_pause(&r->parser, 0);
    }
    if (r->state == HTTPREQ_HEAD) {
        if (r->head_bytes >= r->max_head_bytes) {
            bad(r, 431, "the request head is larger than the limit");
            return 0;
        }
        if (n > r->max_head_bytes - r->head_bytes) n = r->max_head_bytes - r->head_bytes;
    }
    taken = http_parser_execute(&r->parser, &callbacks, data, n);
    if (r->state == HTTPREQ_HEAD || r->state == HTTPREQ_HEAD_DONE) r->head_bytes += taken;
    if (r->state != HTTPREQ_BAD && HTTP_PARSER_ERRNO(&r->parser) != HPE_OK &&
        HTTP_PARSER_ERRNO(&r->parser) != HPE_PAUSED) {
        enum http_errno e = HTTP_PARSER_ERRNO(&r->parser);
        if (e == HPE_HEADER_OVERFLOW) bad(r, 431, "the request head is larger than the limit");
        else bad(r, 400, http_errno_description(e));
    }
    return taken;
}

static int hex(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool httpreq_path(const httpreq *r, hd_buf *out) {
    struct http_parser_url u;
    const char *t = buf_cstr(&r->target), *end;
    http_parser_url_init(&u);
    if (!r->target.len || http_parser_parse_url(t, r->target.len, r->method == HTTP_CONNECT, &u)) return false;
    if (!(u.field_set & (1u << UF_PATH))) return buf_str(out, r->method == HTTP_OPTIONS ? "*" : "/");
    t += u.field_data[UF_PATH].off;
    end = t + u.field_data[UF_PATH].len;
    while (t < end) {
        int c = (unsigned char)*t++;
        if (c == '%') {
            int hi = t < end ? hex((unsigned char)t[0]) : -1, lo = t + 1 < end ? hex((unsigned char)t[1]) : -1;
            if (hi < 0 || lo < 0 || !(hi | lo)) return false;
            c = hi << 4 | lo;
            t += 2;
        }
        if (!buf_byte(out, (char)c)) return false;
    }
    return true;
}
