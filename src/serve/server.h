/* server.h - the HTTP server of one engine, usable in-process.
 *
 * server_open binds, starts its threads and answers at once: without an engine it says 503 loading until server_attach.
 * One event-loop thread owns every socket; planner threads parse, render and tokenise.  The engine and model are
 * borrowed and must outlive server_close.  No signal handlers are installed; the server's threads block all signals
 * (so a write to a dead peer is an error of that connection, never a SIGPIPE). */
#ifndef HD_SERVE_SERVER_H
#define HD_SERVE_SERVER_H

#include "base/err.h"
#include "exec/engine.h"
#include "model/model.h"
#include "state/journal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct server server;

/* Zero takes the default written beside it.  Strings are copied. */
typedef struct {
    const char *host;            /* 127.0.0.1 */
    uint16_t port;               /* any free one: see server_port */
    uint32_t max_connections;    /* 1024; one more is answered 503 and closed */
    size_t max_head_bytes;       /* 64 KiB: 431 */
    size_t max_body_bytes;       /* 32 MiB: 413 */
    size_t max_bodies_bytes;     /* bodies of all connections together, 8 x max_body_bytes: 503 */
    uint64_t head_timeout_us;    /* from the first byte of a request to the end of its head, 10 s: 408 */
    uint64_t body_timeout_us;    /* silence inside a body, 30 s: 408; the whole at 64 KiB/s plus 60 s */
    uint64_t idle_timeout_us;    /* between requests, 75 s: closed */
    uint64_t write_timeout_us;   /* a peer that reads nothing, 60 s: closed */
    uint64_t comment_us;         /* silence in a stream before a comment, 5 s */
    uint32_t n_planners;         /* 2 */
    uint32_t max_planning;       /* requests waiting for a planner, 256: 429 */
    uint32_t collect_tokens;     /* tokens held by all unstreamed replies, 65,536: all but the oldest pause */
    size_t max_replies_bytes;    /* the same in bytes, 128 MiB; of one reply; and of what peers have not taken yet */
    const char *const *api_keys; /* none: no key is asked for */
    size_t n_api_keys;
    const char *const *aliases;  /* further names of the model; "*" accepts any */
    size_t n_aliases;
    trace *trace;                /* arrival, parsing and tokenising of requests; borrowed; NULL: nothing is written */
    const char *state_dir;       /* the request log lies there; NULL: nothing is durable */
    journal_config log;          /* its limits; callbacks are the server's */
    const char *cors_origin;     /* "*": any page may call; otherwise the one origin that may */
} server_options;

/* e and m both or neither.  HD_IO: the address cannot be bound; the request log cannot be opened, or another process has
 * it.  HD_UNSUPPORTED: the log is a newer version's. */
hd_status server_open(server **out, engine *e, model *m, const server_options *opt, hd_err *err);
/* Once, after an open without them.  Unfinished requests of the log are submitted before a new one can be.  An error: they
 * could not be; close the server. */
hd_status server_attach(server *s, engine *e, model *m, hd_err *err);
uint16_t server_port(const server *s);
const char *server_model_id(const server *s); /* after attach */

/* New generations get 503 draining; running ones go on for up to timeout_us, then end with `shutdown`. */
void server_drain(server *s, uint64_t timeout_us);
bool server_drained(const server *s); /* nothing runs and every reply has left */
void server_close(server *s);         /* cuts what is left; NULL is fine */

#endif
