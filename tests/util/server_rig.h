/* server_rig.h - a scripted model, its engine and a server on a free port, in this process. */
#ifndef HD_TESTS_SERVER_RIG_H
#define HD_TESTS_SERVER_RIG_H

#include "serve/server.h"
#include "util/http_client.h"

#include <jansson.h>

typedef struct {
    model *m;
    engine *e;
    server *s;
    uint16_t port;
} rig;

/* script: the JSON text of the model.  so and eo may be NULL.  Fails the test on error. */
void rig_open(rig *r, const char *script, const server_options *so, const engine_options *eo);
void rig_close(rig *r);

/* POST json to path: the parsed reply (json_decref) and its status. */
json_t *rig_post(rig *r, const char *path, const char *json, int *status);
json_t *rig_get(rig *r, const char *path, int *status);
/* Number from /v1/heddle/state by "rows", "queue", "planning" (sizes count), or "cancelled.REASON". */
long rig_state(rig *r, const char *what);
/* Poll until rig_state(what) == want; false after timeout_ms. */
bool rig_wait(rig *r, const char *what, long want, int timeout_ms);

/* One data event of an SSE body: its number (-1: none) and parsed JSON (NULL for [DONE]). */
typedef struct {
    long number;
    json_t *data;
    bool done;
} sse_event;
typedef struct {
    sse_event *ev;
    size_t n;
    size_t comments;
} sse_list;
/* Parse a whole body; fails the test if a line is not what SSE allows. */
void sse_parse(const char *body, sse_list *out);
void sse_free(sse_list *l);
/* Deltas of choice `index` joined (chat: delta.content, completions: text). */
char *sse_text(const sse_list *l, long index);
/* json_object_get along a path like "choices.0.message.content". */
json_t *at(json_t *v, const char *path);
const char *str_at(json_t *v, const char *path); /* "" if it is not a string */

#endif
