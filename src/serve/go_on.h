/* go_on.h - going on with a stored response that ended at its cap (docs/durable.md, "Going on").
 *
 * `"continue_response": ID` with a larger cap makes a new stored request of an old one: its policy, prompts and seed, the
 * new cap, and the tokens it had, which are read like a prompt instead of being generated again.  By law 1 the answer is that
 * of a request that had the larger cap from the beginning, and so are its events and their numbers: who has those of the
 * old one asks for the rest with Last-Event-ID. */
#ifndef HD_SERVE_GO_ON_H
#define HD_SERVE_GO_ON_H

#include "serve/durable.h"
#include "serve/runner.h"

/* Planner thread.  Does the body ask for it? */
bool go_on_asked(const json_t *body);
/* Instead of planning: fill g from the stored response and the new cap.  g->source is then set. */
bool go_on_plan(gen *g, const json_t *body, serve_error *e);
/* What the source had of each choice, for a runner of g that has nothing yet; was[] as gen_submit_choices wants it. */
hd_status go_on_recall(gen *g, runner *r, resumed_choice *was, hd_err *err);
/* The new request is in the log, empty: put the source's events there. */
hd_status go_on_copy(const gen *g, const runner *r, hd_err *err);

#endif
