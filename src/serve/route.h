/* route.h - which request goes where: paths, methods, keys, origins.  Loop thread. */
#ifndef HD_SERVE_ROUTE_H
#define HD_SERVE_ROUTE_H

#include "serve/http.h"

typedef struct route route;

/* The head is complete: find c->route; refusals go to c->early. */
void route_head(conn *c);
/* The message is complete: answer now, or start a generation that will. */
void route_dispatch(conn *c);
bool route_origin_allowed(const server *s, const char *origin);

/* control.c: answers that need no planner. */
void control_health(conn *c);
void control_root(conn *c);
void control_models(conn *c);   /* c->path decides: the list or one */
void control_metrics(conn *c);
void control_state(conn *c);
void control_cancel(conn *c);
void control_steer(conn *c);
void control_preflight(conn *c);

#endif
