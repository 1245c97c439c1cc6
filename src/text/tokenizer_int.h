/* tokenizer_int.h - the inside of a tokenizer, shared by its files and its tests.
 *
 *   vocab.c      reads the metadata: names, types, what each token prints, the ids that end a generation
 *   specials.c   the tokens that are found in the text as they are written, before any algorithm runs
 *   bpe.c spm.c wpm.c   the three algorithms, each for one stretch of text without special tokens
 *   tok_longest.c       the scripted model's vocabulary, found by the specials' trie; what is left over are bytes
 *   tokenizer.c  the public calls: pieces, specials, BOS and EOS;   detok.c  ids back to text
 *
 * Ids 0..n-1 are tokens.  Symbols n..n_syms-1 are strings that merge rules name though they are no tokens; they may
 * stand between two merges but are never given out. */
#ifndef HD_TEXT_TOKENIZER_INT_H
#define HD_TEXT_TOKENIZER_INT_H

#include "text/pretok.h"
#include "text/tokenizer.h"

typedef enum { TOK_BPE, TOK_SPM, TOK_WPM, TOK_LONGEST } tok_algorithm;

/* Types as in the file (low bits), and what heddle adds. */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_USER,
    TYPE_UNUSED,
    TYPE_BYTE,
    TYPE_MASK = 7,
    TYPE_EOG = 8,    /* ends a generation */
    TYPE_RSTRIP = 16 /* eats the white space after it (phi-3) */
};

typedef struct {
    uint32_t tag, sym1; /* hash bits; symbol + 1, 0 = empty */
} name_slot;

typedef struct {
    uint64_t pair; /* left << 32 | right; UINT64_MAX = empty */
    uint32_t rank, result;
} merge_slot;

typedef struct {
    uint32_t key1, node; /* (parent << 8 | byte) + 1, 0 = empty */
} edge_slot;

/* A trie over the names found in text; node 0 is the root.  At most one token of either kind ends at a node. */
typedef struct {
    int32_t user, control; /* id or -1 */
} special_node;

typedef struct {
    special_node *nodes;
    size_t n, cap;
    edge_slot *edges; /* open addressing, n_edges a power of two */
    size_t n_edges;
    uint32_t first[256]; /* child of the root, 0 = none */
} specials;

struct tokenizer {
    tok_algorithm algorithm;
    char kind[64];
    size_t n, n_syms, cap_syms;
    char *names; /* as in the file, one after the other */
    size_t names_len, names_cap;
    uint32_t *name_at; /* [n_syms + 1] */
    char *texts;       /* what tokens print */
    uint32_t *text_at; /* [n + 1] */
    uint8_t *type;     /* [n] */
    name_slot *slots;  /* by name; n_slots a power of two, at most half full */
    size_t n_slots, n_named;
    uint32_t max_name; /* longest name of a token that text may become, in bytes */
    specials specials;
    int32_t bos, eos, unk, sep;
    bool add_bos, add_eos, add_sep;
    int32_t byte_id[256]; /* bpe: symbol of the byte;  others: its byte token or -1 */
    bool has_bytes;       /* spm: every byte has a token */

    const pretok *pre;  /* bpe */
    merge_slot *merges; /* bpe; n_merge_slots a power of two */
    size_t n_merge_slots;

    float *scores;     /* spm, [n] */
    bool space_prefix; /* spm */
    uint8_t *joins;    /* spm: bit (a << 8 | b): some token has byte b after byte a at a character's border */

    bool lower; /* wpm: lower-case and strip accents */
};

/* The symbol of this name, or -1. */
int32_t vocab_find(const tokenizer *t, const char *name, size_t n);
static inline gguf_str vocab_name(const tokenizer *t, uint32_t sym) {
    return (gguf_str){t->names + t->name_at[sym], t->name_at[sym + 1] - t->name_at[sym]};
}
static inline unsigned vocab_type(const tokenizer *t, int32_t id) { return t->type[id] & TYPE_MASK; }
/* May plain text become this token?  Never a control, unknown or byte token, whatever it is called. */
static inline bool vocab_is_text(const tokenizer *t, int32_t id) {
    unsigned y = vocab_type(t, id);
    return y == TYPE_NORMAL || y == TYPE_USER || y == TYPE_UNUSED;
}
const merge_slot *vocab_merge(const tokenizer *t, uint32_t left, uint32_t right); /* NULL: no such rule */
uint32_t vocab_byte_letter(uint8_t b); /* the code point byte-level BPE writes for a byte */

hd_status specials_build(tokenizer *t, hd_err *err);
void specials_deinit(specials *s);
/* The longest special token that starts at p and ends by `user_end`, a control token only if it ends by `control_end`
 * (NULL: none may).  *len is its length.  -1: none. */
int32_t specials_match(const specials *s, const char *p, const char *user_end, const char *control_end, size_t *len);

/* One call to encode: where ids go and scratch that its stretches share. */
typedef struct {
    const tokenizer *t;
    id_list *out;
    hd_err *err;
    uni *unis;
    uint8_t *cut;
    size_t cap_unis, cap_cut;
    uint32_t *sym, *next, *prev, *rank; /* merge lists; spm: sym holds lengths */
    size_t cap_merge;
    uint64_t *heap; /* cap_merge * 2 entries */
    hd_buf text, text2;
} encoder;

void encoder_init(encoder *e, const tokenizer *t, id_list *out, hd_err *err);
void encoder_deinit(encoder *e);
hd_status encoder_oom(encoder *e);
/* Room for n unis and n + 1 cuts; for lists of n symbols and their heap. */
hd_status encoder_unis(encoder *e, size_t n);
hd_status encoder_lists(encoder *e, size_t n);

/* Append the ids of s[0..n), which holds no special token.  prefix: this stretch gets the SentencePiece space. */
hd_status bpe_encode(encoder *e, const char *s, size_t n);
hd_status spm_encode(encoder *e, const char *s, size_t n, bool prefix);
hd_status wpm_encode(encoder *e, const char *s, size_t n);
hd_status longest_encode(encoder *e, const char *s, size_t n);

/* A min-heap of 64-bit keys: (priority << 32 | position), so that equal priorities come leftmost first. */
static inline void heap_down(uint64_t *h, size_t n, size_t i) {
    uint64_t x = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c]) c++;
        if (h[c] >= x) break;
        h[i] = h[c];
    }
    h[i] = x;
}
static inline void heap_make(uint64_t *h, size_t n) {
    for (size_t i = n / 2; i-- > 0;) heap_down(h, n, i);
}
static inline uint64_t heap_pop(uint64_t *h, size_t *n) {
    uint64_t x = h[0];
    if (--*n) h[0] = h[*n], heap_down(h, *n, 0);
    return x;
}
static inline void heap_push(uint64_t *h, size_t *n, uint64_t x) {
    size_t i = (*n)++;
    for (; i && h[(i - 1) / 2] > x; i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = x;
}

#endif
