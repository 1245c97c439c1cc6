/* detok.c - ids back to text, as they come.
 *
 * Bytes go out once they are whole characters.  At most three are held: the longest beginning of a character that is
 * not yet decided.  What can no longer become one is one U+FFFD per maximal invalid part (Unicode 15, 3.9), so the
 * output is always UTF-8 and nothing in it is ever taken back. */
#include "text/tokenizer_int.h"

#include "base/jsonw.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

void detok_init(detok *d, const tokenizer *t, bool at_start) {
    *d = (detok){0};
    /* Only these put a space in front of a text that is not part of it. */
    d->at_start = at_start && ((t->algorithm == TOK_SPM && t->space_prefix) || t->algorithm == TOK_WPM);
}

/* Could s[0..n) still become a character?  utf8_next gave -n for it. */
static bool unfinished(const char *s, size_t n) {
    uint8_t c = (uint8_t)s[0];
    return c >= 0xc2 && c <= 0xf4 && n < (c < 0xe0 ? 2u : c < 0xf0 ? 3u : 4u);
}

/* Whole characters of s[0..n) to out; returns how many bytes at the end stay undecided. */
static size_t put(const char *s, size_t n, hd_buf *out) {
    size_t i = 0, run = 0;
    while (i < n) {
        uint32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        if (len > 0) {
            i += (size_t)len;
            continue;
        }
        buf_add(out, s + run, i - run);
        if (i + (size_t)-len == n && unfinished(s + i, n - i)) return n - i;
        buf_str(out, REPLACEMENT);
        run = i += (size_t)-len;
    }
    buf_add(out, s + run, n - run);
    return 0;
}

void detok_push(detok *d, const tokenizer *t, int32_t id, bool special, hd_buf *out) {
    gguf_str x = tokenizer_bytes(t, id, special);
    size_t held;
    if (!x.n) return;
    if (d->at_start) {
        d->at_start = false;
        if (x.s[0] == ' ' && !tokenizer_is_control(t, id)) x.s++, x.n--;
        if (!x.n) return;
    }
    /* Complete the held character byte by byte; the rest needs no copy. */
    while (d->n_held && x.n) {
        d->held[d->n_held] = *x.s++;
        x.n--;
        held = put(d->held, d->n_held + 1u, out);
        memmove(d->held, d->held + d->n_held + 1 - held, held);
        d->n_held = (uint8_t)held;
    }
    if (!x.n) return;
    held = put(x.s, x.n, out);
    memcpy(d->held, x.s + x.n - held, held);
    d->n_held = (uint8_t)held;
}

void detok_finish(detok *d, hd_buf *out) {
    if (d->n_held) buf_str(out, REPLACEMENT);
    d->n_held = 0;
}

hd_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool special, hd_buf *out, hd_err *err) {
    detok d;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= t->n)
            return hd_fail_at(err, HD_INVALID, i, "token id %d is outside the vocabulary of %zu tokens", ids[i], t->n);
    detok_init(&d, t, true);
    for (size_t i = 0; i < n; i++) detok_push(&d, t, ids[i], special, out);
    detok_finish(&d, out);
    return out->failed ? hd_fail(err, out->failed, "no room for the text of %zu tokens", n) : HD_OK;
}
