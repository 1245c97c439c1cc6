/* unicode.h - text as code points with their classes, and canonical normal forms.
 *
 * A `uni` is one code point with the classes that the pre-tokenisers ask for packed above it, so that a scanner touches
 * one array.  A byte that is not part of valid UTF-8 becomes a uni of its own with UNI_BAD: neither letter, number nor
 * space, one byte long, and never lost.  Categories come from utf8proc; white space is the White_Space property. */
#ifndef HD_TEXT_UNICODE_H
#define HD_TEXT_UNICODE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t uni;

#define UNI_LU    (1u << 21) /* Lu, Lt */
#define UNI_LL    (1u << 22) /* Ll */
#define UNI_LO    (1u << 23) /* Lm, Lo */
#define UNI_M     (1u << 24) /* Mn, Mc, Me */
#define UNI_N     (1u << 25) /* Nd, Nl, No */
#define UNI_P     (1u << 26) /* punctuation */
#define UNI_S     (1u << 27) /* symbols */
#define UNI_SPACE (1u << 28) /* White_Space */
#define UNI_BAD   (1u << 29) /* a byte that is not UTF-8; its value is the code point */
#define UNI_L     (UNI_LU | UNI_LL | UNI_LO)
#define UNI_CP    0x1fffffu

static inline uint32_t uni_cp(uni u) { return u & UNI_CP; }

/* Bytes of u in the text it came from. */
static inline size_t uni_bytes(uni u) {
    uint32_t c = uni_cp(u);
    if (u & UNI_BAD) return 1;
    return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

uni uni_classify(uint32_t cp); /* cp <= 0x10FFFF */

/* Decode s[0..n) into out[0..n) (room for one uni per byte); returns how many were written. */
size_t uni_decode(const char *s, size_t n, uni *out);

/* Canonical normal form of s[0..n) appended to out; bytes that are not UTF-8 pass unchanged.  Linear in n also for
 * hostile runs of combining marks.  compose: NFC, otherwise NFD.  HD_FULL or HD_NOMEM come from out or the heap. */
hd_status uni_normalise(const char *s, size_t n, bool compose, hd_buf *out, hd_err *err);
/* False if normalising to NFC cannot change s (a quick look: no code point from U+0300 up). */
bool uni_may_change(const char *s, size_t n);

#endif
