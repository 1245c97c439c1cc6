/* bpe.c - byte-level byte-pair encoding of one stretch of text.
 *
 * The text is normalised where the model's own tokenizer does so, cut into pieces (pretok.h), and each piece merged
 * by itself: of all neighbouring pairs that have a rule the one of lowest rank becomes one symbol, the leftmost first
 * among equals, until no pair has one.  Short pieces search for that pair; long ones (a megabyte of one letter is one
 * piece) keep the pairs in a heap over a linked list, which is n log n. */
#include "text/tokenizer_int.h"

#include <string.h>

enum { SHORT_PIECE = 24 }; /* below this, moving a few words beats a heap */
#define NO_RANK UINT32_MAX

static hd_status give(encoder *e, uint32_t sym) {
    const tokenizer *t = e->t;
    gguf_str name;
    if (sym < t->n && !tokenizer_is_control(t, (int32_t)sym)) return id_list_add(e->out, (int32_t)sym, e->err);
    /* A symbol of the rules that is no token: its letters one by one, and the unknown token for those without any.
     * (A letter whose token is marked as control, in a file that makes no sense, has none.) */
    name = vocab_name(t, sym);
    for (size_t i = 0; i < name.n;) {
        size_t len = (uint8_t)name.s[i] >= 0x80 && i + 1 < name.n ? 2 : 1; /* letters are below U+0800 */
        int32_t id = vocab_find(t, name.s + i, len);
        hd_status st;
        if (id < 0 || (size_t)id >= t->n || tokenizer_is_control(t, id)) id = t->unk;
        if (id < 0)
            return hd_fail(e->err, HD_INVALID, "the vocabulary has no token for the letter '%.*s' of a byte", (int)len,
                           name.s + i);
        if ((st = id_list_add(e->out, id, e->err))) return st;
        i += len;
    }
    return HD_OK;
}

/* Merge at most SHORT_PIECE symbols in place; returns how many are left. */
static size_t merge_short(const tokenizer *t, uint32_t *sym, uint32_t *rank, size_t n) {
    uint32_t result[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) {
        const merge_slot *m = vocab_merge(t, sym[i], sym[i + 1]);
        rank[i] = m ? m->rank : NO_RANK;
        result[i] = m ? m->result : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        sym[best] = result[best];
        n--;
        memmove(sym + best + 1, sym + best + 2, (n - best - 1) * sizeof *sym);
        memmove(rank + best, rank + best + 1, (n - best) * sizeof *rank);
        memmove(result + best, result + best + 1, (n - best) * sizeof *result);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const merge_slot *m = vocab_merge(t, sym[i], sym[i + 1]);
            rank[i] = m ? m->rank : NO_RANK;
            result[i] = m ? m->result : 0;
        }
    }
    return n;
}

/* Rank of the pair that starts at i, remembered in rank[i] so that stale heap entries are told apart. */
static void rate(encoder *e, uint32_t i, size_t n, size_t *n_heap) {
    const merge_slot *m;
    if (e->next[i] >= n) {
        e->rank[i] = NO_RANK;
        return;
    }
    m = vocab_merge(e->t, e->sym[i], e->sym[e->next[i]]);
    e->rank[i] = m ? m->rank : NO_RANK;
    if (m) heap_push(e->heap, n_heap, (uint64_t)m->rank << 32 | i);
}

/* The heap holds at most the n - 1 first pairs and two more for each of the n - 1 merges, of which each takes one out.
 */
static size_t merge_long(encoder *e, size_t n) {
    size_t n_heap = 0, k = 0;
    for (uint32_t i = 0; i < n; i++) {
        const merge_slot *m = i + 1 < n ? vocab_merge(e->t, e->sym[i], e->sym[i + 1]) : NULL;
        e->next[i] = i + 1;
        e->prev[i] = i - 1; /* of 0: UINT32_MAX, none */
        e->rank[i] = m ? m->rank : NO_RANK;
        if (m) e->heap[n_heap++] = (uint64_t)m->rank << 32 | i;
    }
    heap_make(e->heap, n_heap);
    while (n_heap) {
        uint64_t x = heap_pop(e->heap, &n_heap);
        uint32_t i = (uint32_t)x, j;
        if (e->rank[i] != (uint32_t)(x >> 32)) continue; /* this pair is no more */
        j = e->next[i];
        e->sym[i] = vocab_merge(e->t, e->sym[i], e->sym[j])->result;
        e->rank[j] = NO_RANK;
        e->next[i] = e->next[j];
        if (e->next[i] < n) e->prev[e->next[i]] = i;
        rate(e, i, n, &n_heap);
        if (e->prev[i] != UINT32_MAX) rate(e, e->prev[i], n, &n_heap);
    }
    for (size_t i = 0; i < n; i = e->next[i]) e->sym[k++] = e->sym[i];
    return k;
}

/* The token whose name is this piece in letters, or -1. */
static hd_status whole(encoder *e, const char *s, size_t n, int32_t *id) {
    *id = -1;
    if (n > e->t->max_name) return HD_OK;
    buf_clear(&e->text2);
    for (size_t i = 0; i < n; i++) {
        uint32_t cp = vocab_byte_letter((uint8_t)s[i]);
        if (cp >= 0x80) buf_byte(&e->text2, (char)(0xc0 | cp >> 6));
        buf_byte(&e->text2, (char)(cp < 0x80 ? cp : 0x80 | (cp & 0x3f)));
    }
    if (e->text2.failed) return encoder_oom(e);
    *id = vocab_find(e->t, e->text2.data, e->text2.len);
    if (*id >= 0 && ((size_t)*id >= e->t->n || !vocab_is_text(e->t, *id))) *id = -1;
    return HD_OK;
}

static hd_status encode_piece(encoder *e, const char *s, size_t n) {
    hd_status st;
    if (e->t->pre->flags & PRETOK_WHOLE) {
        int32_t id;
        if ((st = whole(e, s, n, &id))) return st;
        if (id >= 0) return id_list_add(e->out, id, e->err);
    }
    if ((st = encoder_lists(e, n))) return st;
    for (size_t i = 0; i < n; i++) e->sym[i] = (uint32_t)e->t->byte_id[(uint8_t)s[i]];
    n = n <= SHORT_PIECE ? merge_short(e->t, e->sym, e->rank, n) : merge_long(e, n);
    for (size_t i = 0; i < n; i++)
        if ((st = give(e, e->sym[i]))) return st;
    return HD_OK;
}

hd_status bpe_encode(encoder *e, const char *s, size_t n) {
    const pretok *pre = e->t->pre;
    size_t k;
    hd_status st;
    if ((pre->flags & PRETOK_NFC) && uni_may_change(s, n)) {
        buf_clear(&e->text);
        if ((st = uni_normalise(s, n, true, &e->text, e->err))) return st;
        s = e->text.data;
        n = e->text.len;
    }
    if ((st = encoder_unis(e, n))) return st;
    k = uni_decode(s, n, e->unis);
    pretok_cut(pre, e->unis, k, e->cut);
    for (size_t i = 0; i < k;) {
        size_t len = 0;
        do len += uni_bytes(e->unis[i++]);
        while (!e->cut[i]);
        while (len) {
            size_t part = pre->flags & PRETOK_BYTE_DIGITS ? pretok_byte_digits((const uint8_t *)s, len) : len;
            if ((st = encode_piece(e, s, part))) return st;
            s += part;
            len -= part;
        }
    }
    return HD_OK;
}
