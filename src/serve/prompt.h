/* prompt.h - from messages to prompt tokens: validation, normalising, template, pieces with trust.  Planner thread. */
#ifndef HD_SERVE_PROMPT_H
#define HD_SERVE_PROMPT_H

#include "serve/error.h"
#include "serve/server_int.h"

#include <jansson.h>

typedef struct {
    size_t n_replayed; /* ids that came along with answers (serve/history.h) and stand in the prompt */
    size_t boundary;   /* so many tokens at its beginning a next turn will have too, as far as the template tells; 0: unknown */
} prompt_facts;

/* Render body's messages (with tools, template arguments, continue_final_message ...) and append their ids to out.  The client sent
 * those from n_before on: errors count from there.
 * warning (of n_warning bytes) receives what was ignored, or stays as it is.  facts may be NULL. */
bool prompt_chat(server *s, const json_t *body, size_t n_before, id_list *out, prompt_facts *facts, char *warning, size_t n_warning,
                 serve_error *e);

#endif
