/* bounds.h - memory that requests and replies hold: sums over the whole server, each with a limit.
 *
 *   bodies    as they arrive, until they are planned (http.c counts them): at the limit 503 before the rest is read
 *   requests  what planning made of them - ids, choices, stop strings, sessions' queues - until the reply is over: at the
 *             limit 503 before anything runs
 *   replies   unstreamed ones being collected: at the limit all but the oldest pause
 *   output    what peers have not taken yet, beyond HTTP_OUTPUT_MARK of a connection: at the limit finished replies wait,
 *             and connections whose peers take less than 50 KiB a second are closed
 *
 * server_plan says what that comes to before there is a server. */
#ifndef HD_SERVE_BOUNDS_H
#define HD_SERVE_BOUNDS_H

#include "serve/gen.h"

/* Planner thread, before g is submitted: count what it holds from now on.  False: all together hold too much; e is filled. */
bool bounds_request(gen *g, serve_error *e);
/* Any thread that owns g, at its end. */
void bounds_request_end(gen *g);
/* From now on it is r's, until bounds_runner_end.  What comes from the log at a start is counted here. */
void bounds_request_to(gen *g, runner *r);
void bounds_runner_end(runner *r);

/* Loop.  Count what an unstreamed reply has collected by now.  False: more than one reply may have. */
bool bounds_collect(gen *g);
void bounds_collect_end(gen *g);
/* May another than the oldest go on collecting? */
bool bounds_collect_room(const server *s);

/* Loop.  c's output has grown. */
void bounds_output(conn *c);
/* Is there room for n more bytes?  May close connections that stand still. */
bool bounds_output_room(server *s, size_t n);
void bounds_output_end(conn *c);

/* At attach: the limit of requests is at least this much, so that every place in rows and queue can be taken. */
size_t bounds_least_requests(uint32_t max_rows, uint32_t max_queued);

/* Bytes that a server takes beside its engine, at most. */
typedef struct {
    uint64_t connections, bodies, requests, replies, planners, log, total; /* log: of durable requests, with a state directory */
} server_needs;
/* renders: the model has a chat template. */
server_needs server_plan(const server_options *o, uint32_t max_rows, uint32_t max_queued, bool renders);

#endif
