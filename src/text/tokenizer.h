/* tokenizer.h - text to token ids and back.
 *
 * Immutable after opening; every call may run on any thread at once.  Byte strings may hold anything, also NULs and
 * bytes that are not UTF-8. */
#ifndef HD_TEXT_TOKENIZER_H
#define HD_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"
#include "format/gguf.h"

typedef struct tokenizer tokenizer;

/* A growing list of ids with a limit. */
typedef struct {
    int32_t *ids;
    size_t n, cap, max;
} id_list;
void id_list_init(id_list *l, size_t max);
void id_list_deinit(id_list *l);
hd_status id_list_add(id_list *l, int32_t id, hd_err *err); /* HD_FULL past max */

/* From the metadata of a GGUF (tokenizer.ggml.*).  The gguf may be closed afterwards.  An unknown model or pre-type is
 * HD_UNSUPPORTED and named. */
hd_status tokenizer_from_gguf(tokenizer **out, const gguf *g, hd_err *err);
void tokenizer_free(tokenizer *t);

enum {
    TOK_SPECIAL = 1, /* control tokens written in the text are recognised (user-defined ones always are) */
    TOK_BOS = 2,     /* put BOS first / EOS last where the file says so (add_bos_token, add_eos_token, CLS and SEP);
                        one that the text wrote itself, as a recognised token, is not doubled */
    TOK_CONTINUES = 4 /* this text continues an earlier segment: no dummy-prefix space (SentencePiece) */
};
/* Append the ids of text to out.  Linear in n (times a logarithm); works in up to some 40 bytes for each byte of text.
 * On an error out is as it was.  HD_FULL: past out->max.  HD_NEVER_FITS: longer than 2 GiB.  HD_INVALID: the vocabulary
 * has no token for a part of the text and no unknown token either. */
hd_status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, id_list *out, hd_err *err);

/* A prompt in pieces: what the template wrote (control tokens recognised) and what users wrote (never).  Pieces are
 * tokenised as one text except that a special token is only recognised if all its bytes are from template pieces, so
 * that merges across the borders stay what the reference gives for the joined text. */
typedef struct {
    const char *text;
    size_t n;
    bool trusted; /* written by the template */
} text_piece;
hd_status tokenizer_encode_pieces(const tokenizer *t, const text_piece *pieces, size_t n_pieces, unsigned flags,
                                  id_list *out, hd_err *err);

size_t tokenizer_size(const tokenizer *t);
/* The bytes a token stands for in running text (▁ already a space, byte tokens as their byte).  Control tokens give
 * their name only if special is true, else nothing.  View into the tokenizer. id in [0, size). */
gguf_str tokenizer_bytes(const tokenizer *t, int32_t id, bool special);
int32_t tokenizer_bos(const tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t);
bool tokenizer_is_eog(const tokenizer *t, int32_t id);     /* ends a generation (eos, eot, eom and their kin) */
bool tokenizer_is_control(const tokenizer *t, int32_t id); /* control or unknown type: prints nothing */
int32_t tokenizer_find(const tokenizer *t, const char *name, size_t n); /* the token of exactly this name, or -1 */
const char *tokenizer_kind(const tokenizer *t); /* "bpe/qwen2", "spm", "wpm" ... for people */

/* Streaming detokeniser.  Bytes come out as soon as they are known to be whole characters: an unfinished character is
 * held (at most 3 bytes); each maximal invalid part becomes one U+FFFD.  Never takes back a byte. */
typedef struct {
    char held[4];
    uint8_t n_held;
    bool at_start; /* SentencePiece: strip one leading space of the very first token */
} detok;
void detok_init(detok *d, const tokenizer *t, bool at_start);
/* Append the text of `id` to out. */
void detok_push(detok *d, const tokenizer *t, int32_t id, bool special, hd_buf *out);
void detok_finish(detok *d, hd_buf *out); /* an unfinished character becomes one U+FFFD */

/* Whole-list convenience: ids -> text.  HD_INVALID names an id out of range. */
hd_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool special, hd_buf *out, hd_err *err);

#endif
