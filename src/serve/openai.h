/* openai.h - what the two OpenAI completion dialects share. */
#ifndef HD_SERVE_OPENAI_H
#define HD_SERVE_OPENAI_H

#include "base/jsonw.h"
#include "serve/gen.h"

/* Fields that would constrain the output: what is not built is 422, what is wrong 400.  Planner thread. */
bool openai_check_constraints(const json_t *body, serve_error *e);
/* Constant text of every stream frame: up to `"choices":[{"index":` and from `}]` on. */
bool openai_frames(gen *g, const char *object, serve_error *e);
/* `"id":...,"object":...,"created":...,"model":...` inside an open object. */
void openai_head(jsonw *w, const gen *g, const char *object);
void openai_usage(jsonw *w, const gen *g);
/* Members of the last frame and of whole replies: seed, timings when asked. */
void openai_extras(jsonw *w, const gen *g, const choice *ch);
void openai_ids(jsonw *w, const char *key, const id_list *ids);
/* The stream's end: the usage frame if asked for, then [DONE]. */
void openai_end(gen *g, const char *object, hd_buf *out);
const char *openai_finish(const choice *ch);
/* A log-probability as JSON writes it: minus infinity is -9999. */
void openai_logprob(hd_buf *b, float lp);

/* The members of an answer's message inside an open object: role, content, refusal, and (ids may be NULL) extra_content with the
 * ids, where the text would come back with others: the client keeps them in its history with the text.  It is the place
 * where servers of this dialect put what clients carry without reading it. */
void openai_message(jsonw *w, const tokenizer *t, const hd_buf *text, const id_list *ids);
/* Just that: `COMMA"extra_content":{...}`, or nothing. */
void openai_extra_content(const tokenizer *t, const id_list *ids, size_t n_text, const char *comma, hd_buf *out);

/* Start a piece: a comma where one is needed. */
static inline hd_buf *openai_piece(choice *ch, int i) {
    hd_buf *b = &ch->pieces[i];
    if (ch->n_piece) buf_byte(b, ',');
    return b;
}

#endif
