/* vocab_spec.h - small tokenizer vocabularies for tests, written as GGUF in memory. */
#ifndef HD_TESTS_UTIL_VOCAB_SPEC_H
#define HD_TESTS_UTIL_VOCAB_SPEC_H

#include "text/tokenizer.h"

#define SP "\xe2\x96\x81" /* U+2581, SentencePiece's space */

typedef struct {
    const char *text;
    int type; /* as in the file: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte */
    float score;
} vocab_token;

/* Every list of strings ends in NULL; zero is the default everywhere. */
typedef struct {
    const char *model, *pre, *arch; /* pre: no key if NULL; arch: "llama" */
    const vocab_token *tokens;
    size_t n;
    const char *const *merges;
    const char *const *ints;  /* key, value, key, value: u32 */
    const char *const *bools; /* key, "0" or "1" */
    const char *template;
    bool no_types, no_scores, no_tokens;
    bool byte_letters; /* the 256 letters of byte-level BPE follow, in the order of their bytes */
} vocab_spec;

/* The whole file into f (initialised here; buf_deinit it). */
void vocab_write(hd_buf *f, const vocab_spec *s);
/* The tokenizer of that file, which is gone afterwards.  vocab_open fails the test with the message. */
hd_status vocab_try(tokenizer **t, const vocab_spec *s, hd_err *err);
tokenizer *vocab_open(const vocab_spec *s);

/* Byte-level BPE: 0..9 are those of vocab_bpe_tokens, then the letters of the 256 bytes from VOCAB_L on. */
enum { VOCAB_L = 10 };
extern const vocab_spec vocab_bpe;

/* SentencePiece: VOCAB_SPM_FIXED tokens, then the byte tokens from VOCAB_H on.  Each call restores the tokens, which a
 * test may change until the next one. */
enum { VOCAB_SPM_FIXED = 17, VOCAB_H = VOCAB_SPM_FIXED };
extern vocab_token vocab_spm_tokens[VOCAB_SPM_FIXED + 256];
const vocab_spec *vocab_spm(void);

#endif
