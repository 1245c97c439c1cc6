/* wpm.c - WordPiece (BERT) for one stretch of text.
 *
 * Uncased vocabularies get decomposed text without accents in lower case.  Control characters vanish, white space,
 * punctuation and every Han ideograph end a word.  A word is then eaten from the left by the longest token that fits;
 * a word with a rest that fits nothing, or of more than 100 characters, is one unknown token.  GGUF files write the
 * first piece of a word with U+2581 in front and the others bare.
 *
 * As the reference, BERT's own tokenizer, this is lossy on purpose: bytes that are not UTF-8 read as U+FFFD, which it
 * drops. */
#include "text/tokenizer_int.h"

#include "base/jsonw.h"

#include <string.h>
#include <utf8proc.h>

enum { MAX_WORD = 100 }; /* characters, as in the reference */

static bool is_han(uint32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/* Control, format, surrogate and private characters; of white space those that are control characters too. */
static bool is_dropped(uni u) {
    uint32_t c = uni_cp(u);
    if ((u & UNI_BAD) || c == 0xfffd) return true;
    if (c == '\t' || c == '\n' || c == '\r') return false;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO: return true;
    default: return false;
    }
}

static bool is_mark(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN; }
static bool is_alone(uni u) { return (u & UNI_P) || (uni_cp(u) < 0x80 && (u & UNI_S)) || is_han(uni_cp(u)); }

static hd_status unknown(encoder *e) {
    if (e->t->unk < 0) return hd_fail(e->err, HD_INVALID, "the vocabulary has no unknown token");
    return id_list_add(e->out, e->t->unk, e->err);
}

/* w is U+2581 and the word, of which the mark is left out once the first piece is found. */
static hd_status encode_word(encoder *e, const char *w, size_t n) {
    const tokenizer *t = e->t;
    size_t at = e->out->n, i = 0;
    hd_status st;
    while (i < n) {
        size_t len = n - i < t->max_name ? n - i : t->max_name;
        int32_t id = -1;
        for (; len; len--) {
            if (i + len < n && ((uint8_t)w[i + len] & 0xc0) == 0x80) continue; /* inside a character */
            id = vocab_find(t, w + i, len);
            if (id >= 0 && vocab_is_text(t, id)) break;
        }
        if (!len || (i == 0 && len <= 3)) {
            e->out->n = at;
            return unknown(e);
        }
        if ((st = id_list_add(e->out, id, e->err))) return st;
        i += len;
    }
    return HD_OK;
}

static void put(hd_buf *b, uint32_t c) {
    utf8proc_uint8_t s[4];
    buf_add(b, s, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, s));
}

static hd_status end_word(encoder *e, size_t *chars) {
    hd_status st = HD_OK;
    if (e->text.failed) return encoder_oom(e);
    if (*chars) st = *chars > MAX_WORD ? unknown(e) : encode_word(e, e->text.data, e->text.len);
    *chars = 0;
    buf_clear(&e->text);
    buf_str(&e->text, "\xe2\x96\x81");
    return st;
}

hd_status wpm_encode(encoder *e, const char *s, size_t n) {
    size_t k, chars = 0;
    hd_status st;
    if (e->t->lower) {
        buf_clear(&e->text2);
        if ((st = uni_normalise(s, n, false, &e->text2, e->err))) return st;
        s = buf_cstr(&e->text2);
        n = e->text2.len;
    }
    if ((st = encoder_unis(e, n))) return st;
    k = uni_decode(s, n, e->unis);
    buf_clear(&e->text);
    if ((st = end_word(e, &chars))) return st;
    for (size_t i = 0; i < k; i++) {
        uni u = e->unis[i];
        uint32_t c = uni_cp(u);
        if (is_dropped(u)) continue;
        if (e->t->lower && is_mark(c)) continue;
        if ((u & UNI_SPACE) || is_alone(u)) {
            if ((st = end_word(e, &chars))) return st;
            if (u & UNI_SPACE) continue;
        }
        put(&e->text, e->t->lower ? (uint32_t)utf8proc_tolower((utf8proc_int32_t)c) : c);
        chars++;
        if (is_alone(u) && (st = end_word(e, &chars))) return st;
    }
    return end_word(e, &chars);
}
