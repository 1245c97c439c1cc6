/* tok_longest.c - see tok_longest.h.
 *
 * Ordinary entries are user-defined tokens and special ones control tokens, so the trie of specials.c already does the
 * longest match from the left and keeps control tokens out of untrusted text.  What it leaves over are single bytes. */
#include "text/tok_longest.h"
#include "base/mem.h"
#include "text/tokenizer_int.h"

#include <stdio.h>
#include <string.h>

hd_status longest_encode(encoder *e, const char *s, size_t n) {
    hd_status st = HD_OK;
    for (size_t i = 0; !st && i < n; i++) st = id_list_add(e->out, e->t->byte_id[(uint8_t)s[i]], e->err);
    return st;
}

/* The names and what they print are the same bytes: entries, then the 256 bytes. */
static hd_status fill_names(tokenizer *t, const longest_vocab *v, hd_err *err) {
    size_t bytes = 256, at = 0;
    for (size_t i = 0; i < v->n; i++) {
        if (!v->entries[i].n) return hd_fail_field(err, HD_INVALID, "vocab", "entry %zu is empty", i);
        bytes += v->entries[i].n;
    }
    if (bytes > UINT32_MAX) return hd_fail_field(err, HD_NEVER_FITS, "vocab", "the entries are larger than 4 GiB");
    t->names = hd_alloc(bytes);
    t->texts = hd_alloc(bytes);
    t->name_at = hd_reallocarray(NULL, t->n + 1, sizeof *t->name_at);
    t->text_at = hd_reallocarray(NULL, t->n + 1, sizeof *t->text_at);
    t->type = hd_alloc(t->n);
    if (!t->names || !t->texts || !t->name_at || !t->text_at || !t->type)
        return hd_fail(err, HD_NOMEM, "tokenizer: no memory for %zu entries", v->n);
    for (size_t i = 0; i < t->n; i++) {
        char byte = (char)(i - v->n);
        gguf_str s = i < v->n ? v->entries[i] : (gguf_str){&byte, 1};
        t->name_at[i] = (uint32_t)at;
        memcpy(t->names + at, s.s, s.n);
        at += s.n;
        t->type[i] = i >= v->n ? TYPE_BYTE : v->special[i] ? TYPE_CONTROL : TYPE_USER;
        if (i >= v->n) t->byte_id[i - v->n] = (int32_t)i;
    }
    t->name_at[t->n] = (uint32_t)at;
    memcpy(t->texts, t->names, bytes);
    memcpy(t->text_at, t->name_at, (t->n + 1) * sizeof *t->text_at);
    t->names_len = t->names_cap = bytes;
    return HD_OK;
}

hd_status tokenizer_from_entries(tokenizer **out, const longest_vocab *v, hd_err *err) {
    tokenizer *t = hd_calloc(1, sizeof *t);
    hd_status st;
    *out = NULL;
    if (!t) return hd_fail(err, HD_NOMEM, "tokenizer: no memory");
    t->algorithm = TOK_LONGEST;
    snprintf(t->kind, sizeof t->kind, "longest");
    t->n = t->n_syms = v->n + 256;
    t->bos = v->bos;
    t->eos = v->n_eos ? v->eos[0] : -1;
    t->unk = t->sep = -1;
    if ((st = fill_names(t, v, err)) || (st = specials_build(t, err))) {
        tokenizer_free(t);
        return st;
    }
    for (size_t i = 0; i < v->n_eos; i++) t->type[v->eos[i]] |= TYPE_EOG;
    *out = t;
    return HD_OK;
}
