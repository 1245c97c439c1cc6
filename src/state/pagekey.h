/* pagekey.h - names of pages: a chain of SHA-256 over the identity and every token up to and including the page.
 *
 *     key of nothing:  SHA-256("heddle page chain 1" ‖ identity)
 *     key of page i:   SHA-256(key before it ‖ n, 4 bytes ‖ n token ids, 4 bytes each)       (little-endian)
 *
 * So two pages have the same key only if identity, all token ids from position 0 on and the cuts between pages are equal.
 * SHA-256 because two conversations of different users must never meet, whatever they write. */
#ifndef HD_STATE_PAGEKEY_H
#define HD_STATE_PAGEKEY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint8_t b[32];
} pagekey;

/* Both return false only when the digest has no memory. */
bool pagekey_root(pagekey *out, const uint8_t identity[32]);
bool pagekey_next(pagekey *out, const pagekey *before, const int32_t *tokens, uint32_t n); /* out may be before */

#endif
