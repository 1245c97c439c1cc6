/* history.h - answers in a conversation whose ids came along (text/replay.h), and where the template put them.
 *
 * A message of the assistant may hold extra_content.heddle.ids, as the server gave it.  In what the template makes of the
 * conversation, a run of bytes that is all of one message's text (white space at its edges aside: templates trim) is that
 * message; of several with equal text the first run is the first of them.  Its ids then stand instead of its text's own.
 * Whatever does not fit (an edited text, another model's ids, a template that rewrites the text) is tokenised as text.
 * Planner thread. */
#ifndef HD_SERVE_HISTORY_H
#define HD_SERVE_HISTORY_H

#include "serve/error.h"
#include "text/tokenizer.h"

#include <jansson.h>

typedef struct history history;

/* From normalised messages; extra_content is taken out of them, as templates are not made for it.  *out is NULL when no ids
 * that fit came along, the usual case.  False: e is filled; it counts from message n_before on. */
bool history_open(history **out, const tokenizer *t, json_t *messages, size_t n_before, serve_error *e);
void history_close(history *s);

/* Append the ids of the pieces to out like tokenizer_encode_pieces.  *n_replayed: ids that came along, of those. */
hd_status history_encode(history *s, const tokenizer *t, const text_piece *pieces, size_t n_pieces, id_list *out, size_t *n_replayed,
                      hd_err *err);

#endif
