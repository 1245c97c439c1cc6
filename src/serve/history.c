/* history.c - see history.h. */
#include "serve/history.h"

#include "base/mem.h"
#include "serve/request.h"
#include "text/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* One message's text without white space at its edges. */
typedef struct {
    const char *text; /* in the messages */
    size_t n, before; /* before: bytes of white space in front of it */
    const char *all;
    size_t n_all;
    uint64_t hash;
    size_t order;
    size_t next; /* of the first one of equal ones: so many of them have been met */
    id_list ids; /* of all of the text; empty: none came along */
} entry;

struct history {
    entry *v; /* by hash, then length, then order */
    size_t n;
};

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void trim(const char **s, size_t *n) {
    while (*n && is_space(**s)) ++*s, --*n;
    while (*n && is_space((*s)[*n - 1])) --*n;
}

/* The code of message i, NULL: it has none.  False: what is there is no string. */
static bool code_of(const json_t *m, size_t i, const char **code, size_t *n, serve_error *e) {
    const json_t *v = req_get(req_get(req_get(m, "extra_content"), "heddle"), "ids");
    char at[80];
    *code = NULL;
    if (!v) return true;
    snprintf(at, sizeof at, "messages[%zu].extra_content.heddle.ids", i);
    if (!json_is_string(v)) return bad_field(e, at, "%s must be a string", at);
    *code = json_string_value(v);
    *n = json_string_length(v);
    return true;
}

static int by_text(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

void history_close(history *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) id_list_deinit(&s->v[i].ids);
    hd_free(s->v);
    hd_free(s);
}

/* Does any message bring ids along?  Otherwise there is nothing to do. */
static bool any_code(const json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (req_get(json_array_get(messages, i), "extra_content")) return true;
    return false;
}

bool history_open(history **out, const tokenizer *t, json_t *messages, size_t n_before, serve_error *e) {
    size_t n = json_array_size(messages);
    bool some = false;
    history *s;
    *out = NULL;
    if (!any_code(messages)) return true;
    if (!(s = hd_calloc(1, sizeof *s)) || !(s->v = hd_calloc(n, sizeof *s->v))) {
        history_close(s);
        return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    }
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(messages, i);
        const json_t *c = json_object_get(m, "content");
        const char *code, *role = json_string_value(json_object_get(m, "role"));
        size_t n_code = 0;
        if (!code_of(m, i < n_before ? i : i - n_before, &code, &n_code, e)) {
            history_close(s);
            return false;
        }
        if (json_string_length(c)) {
            entry *x = &s->v[s->n++];
            x->all = x->text = json_string_value(c);
            x->n_all = x->n = json_string_length(c);
            trim(&x->text, &x->n);
            x->before = (size_t)(x->text - x->all);
            x->hash = XXH3_64bits(x->text, x->n);
            x->order = i;
            some |= code && role && !strcmp(role, "assistant") && replay_read(t, code, n_code, x->all, x->n_all, &x->ids);
        }
        json_object_del(m, "extra_content"); /* the code is not needed any more; the text stays */
    }
    if (!some) {
        history_close(s);
        return true;
    }
    qsort(s->v, s->n, sizeof *s->v, by_text);
    *out = s;
    return true;
}

/* The message that this run is, if it is one: each time it is asked for the next of those with this text. */
static const entry *message_of(history *s, const char *text, size_t n) {
    entry want = {.text = text, .n = n, .hash = XXH3_64bits(text, n)}, *first;
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (by_text(&s->v[mid], &want) < 0) lo = mid + 1;
        else hi = mid;
    }
    first = &s->v[lo];
    if (lo == s->n || first->hash != want.hash || first->n != n || memcmp(first->text, text, n) != 0) return NULL;
    lo += first->next;
    if (lo == s->n || s->v[lo].hash != want.hash || s->v[lo].n != n) return NULL; /* all of them have been met */
    first->next++;
    return &s->v[lo];
}

/* The ids that came along for this piece: from *ids on, *n of them. */
static bool replay_of(history *s, const tokenizer *t, const text_piece *p, const int32_t **ids, size_t *n) {
    const char *core = p->text;
    size_t n_core = p->n, before, behind, first;
    const entry *x;
    trim(&core, &n_core);
    if (p->trusted || !n_core || !(x = message_of(s, core, n_core)) || !x->ids.n) return false;
    before = (size_t)(core - p->text);
    behind = p->n - n_core - before;
    /* What the template left of the white space at the edges must be the text's own. */
    if (before > x->before || behind > x->n_all - x->before - x->n ||
        memcmp(p->text, x->text - before, p->n) != 0 || !replay_part(t, &x->ids, x->before - before, p->n, &first, n))
        return false;
    *ids = x->ids.ids + first;
    return true;
}

hd_status history_encode(history *s, const tokenizer *t, const text_piece *pieces, size_t n_pieces, id_list *out, size_t *n_replayed,
                      hd_err *err) {
    size_t from = 0;
    hd_status st = HD_OK;
    *n_replayed = 0;
    for (size_t i = 0; i <= n_pieces && !st; i++) {
        const int32_t *ids = NULL;
        size_t n = 0;
        if (i < n_pieces && (!s || !replay_of(s, t, &pieces[i], &ids, &n))) continue;
        if (i > from) st = tokenizer_encode_pieces(t, pieces + from, i - from, from ? TOK_CONTINUES : 0, out, err);
        for (size_t k = 0; k < n && !st; k++) st = id_list_add(out, ids[k], err);
        *n_replayed += n;
        from = i + 1;
    }
    return st;
}
