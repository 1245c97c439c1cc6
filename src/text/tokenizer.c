/* tokenizer.c - the public calls: special tokens, BOS and EOS around the algorithms.
 *
 * A text is first cut at special tokens; what stands between goes to bpe.c, spm.c or wpm.c.  A prompt in pieces is
 * joined before that, so that tokens may reach over the borders, with a note of which bytes the template wrote: a
 * control token counts only inside a stretch of those. */
#include "text/tokenizer_int.h"

#include "base/checked.h"
#include "base/mem.h"

#include <string.h>

/* ---------------------------------------------------------------------------------------------------- lists of ids */

void id_list_init(id_list *l, size_t max) { *l = (id_list){.max = max}; }

void id_list_deinit(id_list *l) {
    hd_free(l->ids);
    id_list_init(l, l->max);
}

hd_status id_list_add(id_list *l, int32_t id, hd_err *err) {
    if (l->n >= l->max) return hd_fail(err, HD_FULL, "more than %zu tokens", l->max);
    if (!hd_grow(&l->ids, &l->cap, l->n + 1, sizeof *l->ids, l->max))
        return hd_fail(err, HD_NOMEM, "no memory for %zu tokens", l->n + 1);
    l->ids[l->n++] = id;
    return HD_OK;
}

/* ---------------------------------------------------------------------------------------------------- scratch */

void encoder_init(encoder *e, const tokenizer *t, id_list *out, hd_err *err) {
    *e = (encoder){.t = t, .out = out, .err = err};
    buf_init(&e->text, SIZE_MAX);
    buf_init(&e->text2, SIZE_MAX);
}

void encoder_deinit(encoder *e) {
    hd_free(e->unis);
    hd_free(e->cut);
    hd_free(e->sym);
    hd_free(e->next);
    hd_free(e->prev);
    hd_free(e->rank);
    hd_free(e->heap);
    buf_deinit(&e->text);
    buf_deinit(&e->text2);
}

hd_status encoder_oom(encoder *e) { return hd_fail(e->err, HD_NOMEM, "no memory to tokenise"); }

hd_status encoder_unis(encoder *e, size_t n) {
    if (n > INT32_MAX) return hd_fail(e->err, HD_NEVER_FITS, "a text of %zu bytes is too long to tokenise", n);
    if (!hd_grow(&e->unis, &e->cap_unis, n, sizeof *e->unis, INT32_MAX) ||
        !hd_grow(&e->cut, &e->cap_cut, n + 1, 1, (size_t)INT32_MAX + 1))
        return encoder_oom(e);
    return HD_OK;
}

hd_status encoder_lists(encoder *e, size_t n) {
    size_t cap = 64;
    if (n <= e->cap_merge) return HD_OK;
    if (n > INT32_MAX) return hd_fail(e->err, HD_NEVER_FITS, "a text of %zu bytes is too long to tokenise", n);
    while (cap < n) cap *= 2;
    e->cap_merge = 0;
    hd_free(e->sym), hd_free(e->next), hd_free(e->prev), hd_free(e->rank), hd_free(e->heap);
    e->sym = hd_reallocarray(NULL, cap, sizeof *e->sym);
    e->next = hd_reallocarray(NULL, cap, sizeof *e->next);
    e->prev = hd_reallocarray(NULL, cap, sizeof *e->prev);
    e->rank = hd_reallocarray(NULL, cap, sizeof *e->rank);
    e->heap = hd_reallocarray(NULL, cap * 2, sizeof *e->heap);
    if (!e->sym || !e->next || !e->prev || !e->rank || !e->heap) return encoder_oom(e);
    e->cap_merge = cap;
    return HD_OK;
}

/* ---------------------------------------------------------------------------------------------------- encoding */

static hd_status plain(encoder *e, const char *s, size_t n, bool prefix) {
    switch (e->t->algorithm) {
    case TOK_BPE: return bpe_encode(e, s, n);
    case TOK_SPM: return spm_encode(e, s, n, prefix);
    case TOK_WPM: return wpm_encode(e, s, n);
    case TOK_LONGEST: return longest_encode(e, s, n);
    }
    return HD_OK;
}

static const char *skip_space(const char *p, const char *end) {
    while (p < end) {
        uni u[4];
        size_t n = (size_t)(end - p) < 4 ? (size_t)(end - p) : 4;
        uni_decode(p, n, u);
        if (!(u[0] & UNI_SPACE)) break;
        p += uni_bytes(u[0]);
    }
    return p;
}

/* s is the pieces joined.  trusted_end walks along: the end of the stretch of trusted pieces that p is in. */
static hd_status encode_joined(encoder *e, const char *s, size_t n, const text_piece *pieces, size_t n_pieces,
                               bool all_trusted, bool prefix) {
    const tokenizer *t = e->t;
    const char *p = s, *start = s, *end = s + n, *piece_end = s, *trusted_end = s;
    size_t k = 0;
    hd_status st;
    if (all_trusted) piece_end = trusted_end = end;
    while (p < end) {
        const char *control_end;
        size_t len = 0;
        int32_t id;
        bool running;
        while (p >= piece_end && k < n_pieces) {
            piece_end += pieces[k].n;
            if (pieces[k].trusted && piece_end > trusted_end) {
                size_t j = k + 1;
                for (trusted_end = piece_end; j < n_pieces && (pieces[j].trusted || !pieces[j].n); j++)
                    trusted_end += pieces[j].n;
            }
            k++;
        }
        control_end = p < trusted_end ? trusted_end : NULL;
        if (!t->specials.first[(uint8_t)*p] || (id = specials_match(&t->specials, p, end, control_end, &len)) < 0) {
            p++;
            continue;
        }
        /* SentencePiece models begin anew after a marker.  A user-defined token is part of the running text: the space
         * in front of a text stands before it too.  (phi-3's are markers in this respect, also </s>.) */
        running = vocab_type(t, id) == TYPE_USER && !(t->type[id] & TYPE_RSTRIP);
        if ((p > start || running) && (st = plain(e, start, (size_t)(p - start), prefix))) return st;
        if ((st = id_list_add(e->out, id, e->err))) return st;
        prefix = !running;
        p += len;
        if (t->type[id] & TYPE_RSTRIP) p = skip_space(p, end);
        start = p;
    }
    return end > start ? plain(e, start, (size_t)(end - start), prefix) : HD_OK;
}

static hd_status begin(encoder *e, unsigned flags) {
    const tokenizer *t = e->t;
    return (flags & TOK_BOS) && t->add_bos && t->bos >= 0 ? id_list_add(e->out, t->bos, e->err) : HD_OK;
}

/* Appends the token that ends a text, and takes back the BOS of begin() if the text wrote one itself. */
static hd_status finish(encoder *e, unsigned flags, size_t at) {
    const tokenizer *t = e->t;
    id_list *out = e->out;
    int32_t last = t->add_eos ? t->eos : t->add_sep ? t->sep : -1;
    if (!(flags & TOK_BOS)) return HD_OK;
    if (t->add_bos && t->bos >= 0 && out->n - at > 1 && out->ids[at + 1] == t->bos) {
        out->n--;
        memmove(out->ids + at, out->ids + at + 1, (out->n - at) * sizeof *out->ids);
    }
    if (last < 0 || (out->n > at && out->ids[out->n - 1] == last && !(out->n - at == 1 && last == t->bos)))
        return HD_OK;
    return id_list_add(out, last, e->err);
}

static hd_status encode(const tokenizer *t, const char *s, size_t n, const text_piece *pieces, size_t n_pieces,
                        bool all_trusted, unsigned flags, id_list *out, hd_err *err) {
    encoder e;
    size_t at = out->n;
    hd_status st;
    encoder_init(&e, t, out, err);
    if (!(st = begin(&e, flags)) &&
        !(st = encode_joined(&e, s, n, pieces, n_pieces, all_trusted, !(flags & TOK_CONTINUES))))
        st = finish(&e, flags, at);
    encoder_deinit(&e);
    if (st) out->n = at;
    return st;
}

hd_status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, id_list *out, hd_err *err) {
    return encode(t, n ? text : "", n, NULL, 0, flags & TOK_SPECIAL, flags, out, err);
}

hd_status tokenizer_encode_pieces(const tokenizer *t, const text_piece *pieces, size_t n_pieces, unsigned flags,
                                  id_list *out, hd_err *err) {
    uint64_t total = 0;
    char *joined;
    size_t at = 0;
    hd_status st;
    for (size_t i = 0; i < n_pieces; i++)
        if (!hd_add(total, pieces[i].n, &total) || total > INT32_MAX)
            return hd_fail(err, HD_NEVER_FITS, "a prompt of more than %d bytes is too long to tokenise", INT32_MAX);
    if (!(joined = hd_alloc((size_t)total + 1)))
        return hd_fail(err, HD_NOMEM, "no memory to join %zu pieces", n_pieces);
    for (size_t i = 0; i < n_pieces; at += pieces[i++].n)
        if (pieces[i].n) memcpy(joined + at, pieces[i].text, pieces[i].n);
    joined[at] = 0;
    st = encode(t, joined, at, pieces, n_pieces, flags & TOK_SPECIAL, flags, out, err);
    hd_free(joined);
    return st;
}

/* ---------------------------------------------------------------------------------------------------- questions */

size_t tokenizer_size(const tokenizer *t) { return t->n; }

bool tokenizer_is_control(const tokenizer *t, int32_t id) {
    unsigned y;
    if (id < 0 || (size_t)id >= t->n) return false;
    y = vocab_type(t, id);
    return y == TYPE_CONTROL || y == TYPE_UNKNOWN;
}

gguf_str tokenizer_bytes(const tokenizer *t, int32_t id, bool special) {
    if (id < 0 || (size_t)id >= t->n || (!special && tokenizer_is_control(t, id))) return (gguf_str){"", 0};
    return (gguf_str){t->texts + t->text_at[id], t->text_at[id + 1] - t->text_at[id]};
}

int32_t tokenizer_bos(const tokenizer *t) { return t->bos; }
int32_t tokenizer_eos(const tokenizer *t) { return t->eos; }
bool tokenizer_adds_bos(const tokenizer *t) { return t->add_bos && t->bos >= 0; }
const char *tokenizer_kind(const tokenizer *t) { return t->kind; }

bool tokenizer_is_eog(const tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n && (t->type[id] & TYPE_EOG);
}

int32_t tokenizer_find(const tokenizer *t, const char *name, size_t n) {
    int32_t id = vocab_find(t, name, n);
    return id >= 0 && (size_t)id < t->n ? id : -1;
}
