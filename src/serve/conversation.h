/* conversation.h - conversations that the request log keeps (docs/cache.md, "Forks"): `previous_response_id`, `response_name`.
 *
 * A request that goes on from a stored response brings its new messages only.  Here they become the whole list, as the client
 * would have sent it: the messages before, the answer with its exact ids (text/replay.h), the new ones.  Everything after
 * that is as for any request, so what is answered cannot differ.  For the log each stored request leaves a *turn*: what
 * it adds to the conversation, and nothing of what was before (state/journal.h).
 *
 * A name stands for the last accepted response that took it and finished.  Names and ids cannot be mixed up: what begins like an
 * id is no name. */
#ifndef HD_SERVE_CONVERSATION_H
#define HD_SERVE_CONVERSATION_H

#include "serve/gen.h"

/* Planner thread, between durable_plan and the dialect's: read the fields.  *whole: NULL, or the body with the whole list of
 * messages (json_decref).  False: g->error is set; or g->long_before has become true: nothing was planned, and it is to be
 * planned again when large bodies are. */
bool conversation_plan(gen *g, const json_t *body, json_t **whole);
/* g goes on with g->source (go_on.h), and so does its conversation. */
bool conversation_same(gen *g, serve_error *e);
/* Why the log did not take it, where its conversation is the reason. */
bool conversation_refused(gen *g, hd_status st, const hd_err *err);

/* Any thread.  Can it be the name of a response?  */
bool conversation_is_name(const char *s);
/* Planner thread: GET /v1/heddle/names of g's key, those behind g->want_id. */
void conversation_names(gen *g);

#endif
