/* tok_longest.h - the scripted model's vocabulary: text is tokenised by longest match over its entries and single bytes. */
#ifndef HD_TEXT_TOK_LONGEST_H
#define HD_TEXT_TOK_LONGEST_H

#include "text/tokenizer.h"

typedef struct {
    const gguf_str *entries; /* ids 0..n-1; id n + b is the byte b */
    const bool *special;     /* [n]: control tokens, never matched in untrusted text */
    size_t n;
    int32_t bos;             /* -1: none */
    const int32_t *eos;
    size_t n_eos;
} longest_vocab;

/* Everything is copied.  HD_INVALID: an entry is empty. */
hd_status tokenizer_from_entries(tokenizer **out, const longest_vocab *v, hd_err *err);

#endif
