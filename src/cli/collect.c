/* collect.c - the events of one generation put together. */
#include "cli/common.h"
#include "base/mem.h"

#include <string.h>

void collected_init(collected *c) {
    memset(c, 0, sizeof *c);
    buf_init(&c->text, SIZE_MAX);
}

void collected_deinit(collected *c) {
    hd_free(c->tokens);
    hd_free(c->tops);
    buf_deinit(&c->text);
    collected_init(c);
}

static void add_token(collected *c, const sample_result *s) {
    if (!hd_grow(&c->tokens, &c->cap, c->n + 1, sizeof *c->tokens, SIZE_MAX / sizeof *c->tokens) ||
        (s->n_top && !hd_grow(&c->tops, &c->cap_tops, c->n_tops + s->n_top, sizeof *c->tops, SIZE_MAX / sizeof *c->tops))) {
        c->text.failed = HD_NOMEM;
        return;
    }
    c->tokens[c->n++] = (collected_token){s->id, s->logprob, s->n_top, (uint32_t)c->n_tops};
    if (s->n_top) memcpy(c->tops + c->n_tops, s->top, s->n_top * sizeof *c->tops);
    c->n_tops += s->n_top;
}

bool collected_add(collected *c, const gen_event *ev) {
    if (ev->kind == EV_TOKEN) add_token(c, &ev->sample);
    if (ev->kind == EV_TOKEN || ev->kind == EV_TEXT) buf_add(&c->text, ev->text, ev->n_text);
    if (ev->kind != EV_DONE) return false;
    c->end = *ev;
    return c->done = true;
}
