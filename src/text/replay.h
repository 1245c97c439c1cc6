/* replay.h - the ids of an answer, carried by whoever brings its text back.
 *
 * Text that was sampled often has other ids when it is tokenised again ("Han" + "zi" comes back as "H" + "anzi").  A client
 * that keeps the answer in its history can bring the ids along, as a code that the server gave with the answer; then what was
 * computed for them is taken up again, and the model reads its own words the way it wrote them.  The ids are a part of the
 * request, so what it answers depends on no server's memory.
 *
 * A code is "1." and base64url without padding (RFC 4648) of the ids as LEB128.  It is not secret and not signed: ids
 * count only where together they stand for exactly the bytes of the text, and none of them is a control token, so a client
 * can choose with them how its own text is cut, and nothing else. */
#ifndef HD_TEXT_REPLAY_H
#define HD_TEXT_REPLAY_H

#include "text/tokenizer.h"

enum { REPLAY_MAX_IDS = 16384 }; /* of one answer: some milliseconds of work at its end; longer ones come back as text only */

/* Append the code of an answer that is `n_text` bytes long to out, where it is of use: the ids stand for well-formed text of
 * that length, and that text alone is tokenised otherwise, or white space at its edges could be.  False: nothing was written. */
bool replay_write(const tokenizer *t, const int32_t *ids, size_t n, size_t n_text, hd_buf *out);

/* The ids in a code, if they stand for exactly text[0..n_text).  False: they do not, or there is no memory; out is then empty. */
bool replay_read(const tokenizer *t, const char *code, size_t n, const char *text, size_t n_text, id_list *out);

/* Ids [*first, *first + *n) of l are those of bytes [at, at + n_bytes) of their text.  False: a border is inside of one. */
bool replay_part(const tokenizer *t, const id_list *l, size_t at, size_t n_bytes, size_t *first, size_t *n);

#endif
