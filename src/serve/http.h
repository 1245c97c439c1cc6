/* http.h - connections: bytes in, requests up, replies down.
 *
 * Everything here is the loop thread's.  A connection reads one request at a time; while its reply is pending it keeps
 * listening, because a peer that leaves (EOF, reset, half-close) must be noticed at once whatever the request is doing.
 * What the peer sends meanwhile stays in the input, up to 64 KiB; more closes. */
#ifndef HD_SERVE_HTTP_H
#define HD_SERVE_HTTP_H

#include "serve/error.h"
#include "serve/httpreq.h"
#include "serve/server_int.h"

#include <event2/bufferevent.h>

enum {
    HTTP_OUTPUT_MARK = 64 * 1024, /* streams are written only below this much unsent output; also SO_SNDBUF */
    HTTP_EXTRA_INPUT = 64 * 1024, /* unread input while a reply is pending */
    HTTP_LIST_OVER = 64,          /* connections above the limit that may wait to be told so */
};

/* READ: waits for or reads a request.  BUSY: a request is being answered.  FLUSH: the last reply is leaving.
 * LINGER: everything was sent and our side shut; input is dropped until the peer closes (so that it gets the reply
 * rather than a reset). */
typedef enum { CONN_READ, CONN_BUSY, CONN_FLUSH, CONN_LINGER } conn_state;

struct conn {
    server *srv;
    conn *prev, *next;
    struct bufferevent *bev;
    struct event *timer;
    httpreq req;
    conn_state state;
    bool dead;           /* closed; memory goes at the end of the turn */
    bool eof;            /* the peer shut its side while a complete reply was leaving */
    bool in_read;        /* http_read is on the stack: it goes on by itself after a reply */
    bool keep_alive;     /* after the current reply */
    bool head_only;      /* HEAD: headers without body */
    bool streaming, chunked;
    bool continued;      /* 100 Continue was sent */
    serve_error early;   /* refusal known at the head, answered when the short body has passed */
    const char *allow;   /* 405: methods that the path has */
    char request_id[132];
    hd_buf path;
    const struct route *route;
    size_t key;          /* 1 + index of the API key that was given, 0: none */
    gen *gen;            /* BUSY: what will answer */
    size_t counted;      /* of srv->body_bytes */
    size_t output_bytes; /* of srv->output_bytes */
    size_t output_then;  /* the same at t_output_us: what its peer takes in a while */
    uint64_t t_output_us;
    uint64_t t_begin_us; /* first byte of the request */
    uint64_t t_body_end_us, t_linger_end_us;
    uint64_t lingered;
};

/* A new socket (owned from here on). */
void http_accept(server *s, int fd);
/* Close now; a pending generation is cancelled. */
void http_close(conn *c);
void http_reap(server *s); /* free what was closed */

/* Answer the pending request and go on to the next.  extra: further header lines, each ending in CRLF, or NULL. */
void http_reply(conn *c, int status, const char *type, const char *extra, const char *body, size_t n);
/* The same; the body's memory is the connection's from now on. */
void http_reply_take(conn *c, int status, const char *type, const char *extra, hd_buf *body);
void http_reply_error(conn *c, const serve_error *e);
/* For lines of the debug level: method and path of c's request, printable; returns out. */
enum { HTTP_TOLD = 140 };
const char *http_tell(const conn *c, char out[HTTP_TOLD]);
/* What became of c's request, in such a line; without the message, which may quote what the client wrote. */
void http_tell_error(const conn *c, const serve_error *e);
/* A reply whose length is not known: head now, pieces later (each is sent at once), end. */
void http_stream_begin(conn *c, int status, const char *type, const char *extra);
void http_stream_write(conn *c, const char *p, size_t n);
void http_stream_end(conn *c, bool broken); /* broken: close afterwards */
/* Output the kernel has not taken yet. */
size_t http_unsent(const conn *c);
/* The body was taken over by a generation, with its share of srv->body_bytes. */
void http_take_body(conn *c, hd_buf *body, size_t *counted);

#endif
