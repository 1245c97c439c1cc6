/* prompt.h - from messages to prompt tokens: validation, normalising, template, pieces with trust.  Planner thread. */
#ifndef HD_SERVE_PROMPT_H
#define HD_SERVE_PROMPT_H

#include "serve/error.h"
#include "serve/server_int.h"

#include <jansson.h>

/* Render body's messages (with tools, template arguments, continue_final_message ...) and append their ids to out.
 * warning (of n_warning bytes) receives what was ignored, or stays as it is. */
bool prompt_chat(server *s, const json_t *body, id_list *out, char *warning, size_t n_warning, serve_error *e);

#endif
