/* stored.h - what can be asked about stored responses, by id or name: GET, DELETE, whether there is one, and the names. */
#ifndef HD_SERVE_STORED_H
#define HD_SERVE_STORED_H

#include "serve/gen.h"
#include "serve/httpreq.h"

/* Loop: ?stream=true and starting_after=N of a GET, ?after=NAME of the names. */
bool stored_query(gen *g, const httpreq *r, serve_error *e);
/* Planner thread: g->kind says what.  Afterwards g->error or g->reply is set, or view.how is VIEW_STORED. */
void stored_plan(gen *g);
/* Loop: answer that it is queued or in progress, and end. */
void stored_status(gen *g);
/* Loop: what g's connection cancelled has ended and that is on disk, or (late) has not in time: answer, and end.  Else nothing. */
enum { STORED_PATIENCE_US = 5000000 };
void stored_cancelled(gen *g, bool late);

#endif
