/* specials.c - tokens that are found in the text as written: a trie of their names.
 *
 * User-defined tokens (type 4) count everywhere, control and unknown tokens (3, 2) only where the caller trusts the
 * text.  At each place the longest name wins, and places are tried from the left, as Hugging Face's tokenizers do.
 * Names are at most MAX_SPECIAL bytes, so a search is linear in the text whatever the vocabulary. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_SPECIAL = 512, MAX_NODES = 1 << 23 };

static size_t edge_at(uint32_t key1, size_t mask) { return (size_t)((key1 * 0x9e3779b97f4a7c15u) >> 32) & mask; }

static uint32_t child(const specials *s, uint32_t node, uint8_t byte) {
    uint32_t key1 = (node << 8 | byte) + 1;
    size_t mask = s->n_edges - 1;
    for (size_t i = edge_at(key1, mask);; i = (i + 1) & mask) {
        if (s->edges[i].key1 == key1) return s->edges[i].node;
        if (!s->edges[i].key1) return 0;
    }
}

static void put_edge(edge_slot *edges, size_t n, uint32_t key1, uint32_t node) {
    size_t i = edge_at(key1, n - 1);
    while (edges[i].key1) i = (i + 1) & (n - 1);
    edges[i] = (edge_slot){key1, node};
}

static bool grow_edges(specials *s) {
    size_t n = s->n_edges ? s->n_edges * 2 : 256;
    edge_slot *e = hd_calloc(n, sizeof *e);
    if (!e) return false;
    for (size_t i = 0; i < s->n_edges; i++)
        if (s->edges[i].key1) put_edge(e, n, s->edges[i].key1, s->edges[i].node);
    hd_free(s->edges);
    s->edges = e;
    s->n_edges = n;
    return true;
}

static bool new_node(specials *s) {
    if (s->n * 2 >= s->n_edges && !grow_edges(s)) return false;
    if (!hd_grow(&s->nodes, &s->cap, s->n + 1, sizeof *s->nodes, MAX_NODES)) return false;
    s->nodes[s->n++] = (special_node){-1, -1};
    return true;
}

/* Enters the bytes of a name and returns its last node, 0 without memory. */
static uint32_t enter(specials *s, const char *name, size_t n) {
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)name[i];
        uint32_t next = child(s, node, byte);
        if (!next) {
            if (!new_node(s)) return 0;
            next = (uint32_t)s->n - 1;
            put_edge(s->edges, s->n_edges, (node << 8 | byte) + 1, next);
            if (!node) s->first[byte] = next;
        }
        node = next;
    }
    return node;
}

hd_status specials_build(tokenizer *t, hd_err *err) {
    specials *s = &t->specials;
    if (!new_node(s)) goto oom;
    for (size_t i = 0; i < t->n; i++) {
        unsigned type = vocab_type(t, (int32_t)i);
        bool user = type == TYPE_USER, control = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
        gguf_str x = vocab_name(t, (uint32_t)i);
        uint32_t node;
        /* What a SentencePiece token prints is what stands in the text: the space sign is a space there. */
        if (user) x = (gguf_str){t->texts + t->text_at[i], t->text_at[i + 1] - t->text_at[i]};
        if ((!user && !control) || !x.n) continue;
        if (x.n > MAX_SPECIAL)
            return hd_fail_field(err, HD_UNSUPPORTED, "tokenizer.ggml.tokens",
                                 "special token %zu is longer than %d bytes", i, MAX_SPECIAL);
        if (!(node = enter(s, x.s, x.n))) goto oom;
        if (user)
            s->nodes[node].user = (int32_t)i;
        else
            s->nodes[node].control = (int32_t)i;
    }
    return HD_OK;
oom:
    return hd_fail(err, HD_NOMEM, "tokenizer: no memory for special tokens");
}

void specials_deinit(specials *s) {
    hd_free(s->nodes);
    hd_free(s->edges);
}

int32_t specials_match(const specials *s, const char *p, const char *user_end, const char *control_end, size_t *len) {
    uint32_t node = s->first[(uint8_t)*p];
    int32_t best = -1;
    for (const char *q = p + 1; node; node = child(s, node, (uint8_t)*q++)) {
        const special_node *x = &s->nodes[node];
        int32_t id = x->control >= 0 && control_end && q <= control_end ? x->control : x->user;
        if (id >= 0) best = id, *len = (size_t)(q - p);
        if (q == user_end) break;
    }
    return best;
}
