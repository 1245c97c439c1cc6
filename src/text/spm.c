/* spm.c - SentencePiece-style pair encoding of one stretch of text.
 *
 * Spaces become U+2581 and the model may want one more in front.  Then every character is a symbol, and of all
 * neighbouring pairs that together are a token the one of highest score becomes one symbol, the leftmost first among
 * equals, until none is left.  A symbol that is no token falls to its bytes, or to the unknown token where the
 * vocabulary has no bytes.  Control and byte tokens never arise from text, whatever it spells.
 *
 * Bytes that are not UTF-8 are symbols of their own and end as byte tokens, so that they survive. */
#include "text/tokenizer_int.h"

#include "base/jsonw.h"

#include <string.h>

#define NO_KEY UINT32_MAX

/* Scores as keys that sort the other way round: the highest score is the lowest key. */
static uint32_t key_of_score(float score) {
    uint32_t u;
    if (score != score) return NO_KEY - 1;
    score += 0.0f; /* -0 and 0 are equal */
    memcpy(&u, &score, 4);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    u = ~u;
    return u < NO_KEY - 1 ? u : NO_KEY - 1;
}

/* The text token that is s[0..n), or -1. */
static int32_t token_of(const tokenizer *t, const char *s, size_t n) {
    int32_t id;
    if (n > t->max_name) return -1;
    id = vocab_find(t, s, n);
    return id >= 0 && vocab_is_text(t, id) ? id : -1;
}

static hd_status give(encoder *e, const char *s, size_t n, bool *was_unknown) {
    const tokenizer *t = e->t;
    int32_t id = token_of(t, s, n);
    hd_status st;
    if (id >= 0) return *was_unknown = false, id_list_add(e->out, id, e->err);
    if (t->has_bytes) {
        for (size_t i = 0; i < n; i++)
            if ((st = id_list_add(e->out, t->byte_id[(uint8_t)s[i]], e->err))) return st;
        return HD_OK;
    }
    /* A run of unknown characters is one unknown token, as in the reference. */
    if (*was_unknown) return HD_OK;
    *was_unknown = true;
    if (t->unk < 0) return hd_fail(e->err, HD_INVALID, "the vocabulary has neither byte tokens nor an unknown token");
    return id_list_add(e->out, t->unk, e->err);
}

/* Symbols of one chunk: sym[i] is the length in bytes of the symbol at byte i, where one starts. */
static void rate(encoder *e, const char *s, uint32_t i, size_t n, size_t *n_heap) {
    uint32_t j = i + e->sym[i];
    int32_t id = j < n ? token_of(e->t, s + i, (size_t)e->sym[i] + e->sym[j]) : -1;
    e->rank[i] = id < 0 ? NO_KEY : key_of_score(e->t->scores[id]);
    if (id >= 0) heap_push(e->heap, n_heap, (uint64_t)e->rank[i] << 32 | i);
}

static hd_status encode_chunk(encoder *e, const char *s, size_t n, bool *was_unknown) {
    size_t n_heap = 0;
    hd_status st;
    uint32_t last = UINT32_MAX;
    if (token_of(e->t, s, n) >= 0 && utf8_next(s, n, &(uint32_t){0}) == (int)n)
        return give(e, s, n, was_unknown); /* one character */
    if ((st = encoder_lists(e, n))) return st;
    for (uint32_t i = 0; i < n; i += e->sym[i]) {
        uint32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        e->sym[i] = len < 0 ? 1 : (uint32_t)len;
        e->prev[i] = last;
        last = i;
    }
    for (uint32_t i = 0; i < n; i += e->sym[i]) {
        uint32_t j = i + e->sym[i];
        int32_t id = j < n ? token_of(e->t, s + i, (size_t)e->sym[i] + e->sym[j]) : -1;
        e->rank[i] = id < 0 ? NO_KEY : key_of_score(e->t->scores[id]);
        if (id >= 0) e->heap[n_heap++] = (uint64_t)e->rank[i] << 32 | i;
    }
    heap_make(e->heap, n_heap);
    while (n_heap) {
        uint64_t x = heap_pop(e->heap, &n_heap);
        uint32_t i = (uint32_t)x, j, after;
        if (e->rank[i] != (uint32_t)(x >> 32)) continue; /* this pair is no more */
        j = i + e->sym[i];
        after = j + e->sym[j];
        e->rank[j] = NO_KEY;
        e->sym[i] += e->sym[j];
        if (after < n) e->prev[after] = i;
        rate(e, s, i, n, &n_heap);
        if (e->prev[i] != UINT32_MAX) rate(e, s, e->prev[i], n, &n_heap);
    }
    for (size_t i = 0; i < n; i += e->sym[i])
        if ((st = give(e, s + i, e->sym[i], was_unknown))) return st;
    return HD_OK;
}

hd_status spm_encode(encoder *e, const char *text, size_t n_text, bool prefix) {
    const uint8_t *joins = e->t->joins;
    const char *s;
    size_t n, start = 0, i = 0;
    unsigned last = 256;
    bool was_unknown = false;
    hd_status st;
    buf_clear(&e->text);
    if (prefix && e->t->space_prefix) buf_str(&e->text, "\xe2\x96\x81");
    for (size_t a = 0, b; a < n_text; a = b) {
        for (b = a; b < n_text && text[b] != ' '; b++) continue;
        buf_add(&e->text, text + a, b - a);
        for (; b < n_text && text[b] == ' '; b++) buf_str(&e->text, "\xe2\x96\x81");
    }
    if (e->text.failed) return encoder_oom(e);
    s = buf_cstr(&e->text);
    n = e->text.len;
    if (n > INT32_MAX) return hd_fail(e->err, HD_NEVER_FITS, "a text of %zu bytes is too long to tokenise", n);
    while (i < n) {
        uint32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        size_t step = len < 0 ? 1 : (size_t)len;
        bool space = len > 0 && cp == 0x2581;
        unsigned first = space ? ' ' : (uint8_t)s[i];
        if (last < 256 && !(joins[(last << 8 | first) >> 3] >> (first & 7) & 1)) {
            if ((st = encode_chunk(e, s + start, i - start, &was_unknown))) return st;
            start = i;
        }
        i += step;
        last = space ? ' ' : (uint8_t)s[i - 1];
    }
    return n > start ? encode_chunk(e, s + start, n - start, &was_unknown) : HD_OK;
}
