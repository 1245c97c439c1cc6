/* pretok.h - where byte-level BPE cuts a text into pieces that are merged apart.
 *
 * Every vocabulary names its cutting pattern (tokenizer.ggml.pre).  The patterns are regular expressions in the models'
 * own files; here each is a scanner by hand over code points: no recursion, and linear in the text. */
#ifndef HD_TEXT_PRETOK_H
#define HD_TEXT_PRETOK_H

#include "text/unicode.h"

/* What else follows from the name. */
enum {
    PRETOK_BOS = 1,         /* BOS is added unless the file says otherwise */
    PRETOK_WHOLE = 2,       /* a piece that is a token is taken without merging (ignore_merges) */
    PRETOK_NFC = 4,         /* the original tokenizer normalises to NFC first */
    PRETOK_BYTE_DIGITS = 8, /* falcon: pieces are cut once more with pretok_byte_digits */
    PRETOK_GUESSED = 16     /* "default": what old files without a name mean; worth a warning */
};

typedef void pretok_stage(const uni *u, size_t a, size_t b, uint8_t *cut);

typedef struct {
    const char *name;
    unsigned flags;
    pretok_stage *stages[6]; /* applied one after the other to the pieces the earlier ones left; NULL ends */
} pretok;

/* The pattern of this name (not NUL-terminated), or NULL. */
const pretok *pretok_find(const char *name, size_t n);

/* Sets cut[i] to 1 if a piece starts at u[i], else to 0, for i < n; cut has n + 1 bytes and cut[n] becomes 1. */
void pretok_cut(const pretok *p, const uni *u, size_t n, uint8_t *cut);

/* Falcon looks for digits after bytes were mapped to letters, where six bytes above 127 look like digits too.
 * The length of the part that starts at s, n >= 1. */
size_t pretok_byte_digits(const uint8_t *s, size_t n);

#endif
