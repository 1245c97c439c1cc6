/* httpreq.h - one HTTP/1.x request out of bytes, with a limit on every part of it.
 *
 * Pure: no sockets, no clock.  The grammar is http_parser's; this file owns what is kept of a request (target, the few
 * headers the server reads, the body) and how much.  Bytes are fed as they come; feeding stops after the head, so that
 * a request can be refused before its body, and after the message, so that a pipelined next one stays with the caller. */
#ifndef HD_SERVE_HTTPREQ_H
#define HD_SERVE_HTTPREQ_H

#include "base/buf.h"

#include <http_parser.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The headers that are kept; all others are checked for grammar and size, and dropped. */
#define HTTPREQ_HEADERS(X)                                                                                             \
    X(AUTHORIZATION, "authorization")                                                                                  \
    X(X_API_KEY, "x-api-key")                                                                                          \
    X(REQUEST_ID, "x-request-id")                                                                                      \
    X(ORIGIN, "origin")                                                                                                \
    X(ACR_HEADERS, "access-control-request-headers")                                                                   \
    X(ACR_METHOD, "access-control-request-method")                                                                     \
    X(EXPECT, "expect")                                                                                                \
    X(IDEMPOTENCY_KEY, "idempotency-key")                                                                              \
    X(LAST_EVENT_ID, "last-event-id")                                                                                  \
    X(ANTHROPIC_VERSION, "anthropic-version")
typedef enum {
#define X(id, name) HTTPREQ_##id,
    HTTPREQ_HEADERS(X)
#undef X
    HTTPREQ_N_HEADERS
} httpreq_header;

enum {
    HTTPREQ_MAX_TARGET = 8 * 1024, /* longer: 414 */
    HTTPREQ_MAX_VALUE = 8 * 1024,  /* of a kept header; longer: 431 */
};

/* HEAD: reading request line and headers.  HEAD_DONE: they are complete, seen once per request.  BODY: the body is
 * being read.  DONE: the message is complete.  BAD: `status` and `why` say what to answer; then close. */
typedef enum { HTTPREQ_HEAD, HTTPREQ_HEAD_DONE, HTTPREQ_BODY, HTTPREQ_DONE, HTTPREQ_BAD } httpreq_state;

typedef struct {
    http_parser parser;
    httpreq_state state;
    size_t max_head_bytes, max_body_bytes;
    size_t head_bytes;           /* of this request so far */
    hd_buf target;               /* as sent */
    hd_buf header[HTTPREQ_N_HEADERS];
    bool sent[HTTPREQ_N_HEADERS]; /* it was there, if only with an empty value */
    char name[40];               /* header name being read, lower case */
    size_t n_name;
    bool in_value;
    int current;                 /* kept header of that name, or -1 */
    hd_buf body;
    uint64_t body_bytes;         /* seen, kept or not */
    bool discard_body;           /* set by the caller at HEAD_DONE: the body is read and dropped */
    int status;                  /* BAD */
    const char *why;
    char too_long[80];           /* why, when a header is */
    /* valid from HEAD_DONE on */
    unsigned method;             /* enum http_method */
    int minor;                   /* HTTP/1.minor */
    bool keep_alive, has_body, chunked;
    uint64_t content_length;     /* declared, 0 if none */
} httpreq;

void httpreq_init(httpreq *r, size_t max_head_bytes, size_t max_body_bytes);
void httpreq_reset(httpreq *r); /* ready for the next request on this connection */
void httpreq_deinit(httpreq *r);

/* Take bytes; returns how many were taken, fewer than n when the state became HEAD_DONE, DONE or BAD.  Feeding at
 * HEAD_DONE goes on with the body; at DONE and BAD nothing is taken. */
size_t httpreq_feed(httpreq *r, const char *data, size_t n);

/* True once any byte of this request was seen. */
static inline bool httpreq_begun(const httpreq *r) { return r->head_bytes > 0; }
/* Value of a kept header without white space at its ends, "" if absent. */
static inline const char *httpreq_get(const httpreq *r, httpreq_header h) { return buf_cstr(&r->header[h]); }
static inline bool httpreq_has(const httpreq *r, httpreq_header h) { return r->sent[h]; }
/* The path of the target, percent-decoded, without query; false: not a path we can read (a NUL, a bad escape). */
bool httpreq_path(const httpreq *r, hd_buf *out);

#endif
