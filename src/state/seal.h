/* seal.h - 16 bytes that say a run of bytes is what was written: a checksum, or with a key also encryption.
 *
 * Without a key a seal is XXH3-128 (the xxHash specification), seeded with the file's id and the run's number: it finds
 * accidents of every kind, runs out of place among them, but not a forger.  With a key it is the tag of AES-256-GCM, and
 * the bytes are encrypted.  Each file has its own key, HMAC-SHA-256(master key, label ‖ the file's random salt), and a
 * run's number is its nonce, so no nonce comes twice under one key; the file's head is the associated data. */
#ifndef HD_STATE_SEAL_H
#define HD_STATE_SEAL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SEAL_BYTES = 16, SEAL_SALT = 32 };

typedef struct {
    bool on; /* false: checksums only */
    uint8_t key[32];
} seal_master;

/* A key file holds 32 bytes, or 64 hex digits and at most a line end.  HD_INVALID when it holds something else, is no
 * regular file, or may be read by group or others; HD_NOTFOUND, HD_IO.  Forget it with seal_wipe. */
hd_status seal_load(seal_master *m, const char *path, hd_err *err);
void seal_wipe(void *p, size_t n);

typedef struct {
    bool on;
    uint8_t key[32];
    uint64_t seed;
    const uint8_t *aad; /* borrowed */
    size_t aad_n;
} seal_file;

/* The keys of one file; `check` tells whether a file was made with this master key.  False: no memory. */
bool seal_derive(const seal_master *m, const uint8_t salt[SEAL_SALT], uint8_t key[32], uint8_t check[16]);

/* A secret that follows from the master key, by a label of 16 characters.  False: no memory. */
bool seal_secret(const seal_master *m, const char label[17], uint8_t out[32]);

typedef struct {
    void *hash, *cipher;
    bool writing;
} seal;

/* One run: begin, data in any pieces, then take (writing) or match (reading), which end it; drop ends it early.
 * data: out may be in; with a checksum and out == in nothing is written.  What was decrypted must not be used before
 * match said true.  seal_begin and seal_data are false when out of memory. */
bool seal_begin(seal *s, const seal_file *f, uint64_t number, bool writing);
bool seal_data(seal *s, void *out, const void *in, size_t n);
bool seal_take(seal *s, uint8_t tag[SEAL_BYTES]);
bool seal_match(seal *s, const uint8_t tag[SEAL_BYTES]);
void seal_drop(seal *s);

void seal_checksum(const void *p, size_t n, uint8_t tag[SEAL_BYTES]); /* XXH3-128 with seed 0, for what is never encrypted */

#endif
