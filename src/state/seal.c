/* seal.c - checksums and encryption of runs (seal.h), by xxHash and OpenSSL. */
#include "state/seal.h"

#include "state/le.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

void seal_wipe(void *p, size_t n) { OPENSSL_cleanse(p, n); }

static int hex(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool parse_key(uint8_t key[32], const uint8_t *text, size_t n) {
    if (n == 32) {
        memcpy(key, text, 32);
        return true;
    }
    if (n == 66 && text[64] == '\r' && text[65] == '\n') n = 64;
    if (n == 65 && text[64] == '\n') n = 64;
    if (n != 64) return false;
    for (size_t i = 0; i < 32; i++) {
        int hi = hex(text[2 * i]), lo = hex(text[2 * i + 1]);
        if (hi < 0 || lo < 0) return false;
        key[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

hd_status seal_load(seal_master *m, const char *path, hd_err *err) {
    uint8_t text[80];
    size_t n = 0;
    struct stat sb;
    hd_status st = HD_OK;
    int fd;
    memset(m, 0, sizeof *m);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0)
        return hd_fail_field(err, errno == ENOENT ? HD_NOTFOUND : HD_IO, "key_file", "key file %s: %s", path, strerror(errno));
    if (fstat(fd, &sb)) {
        st = hd_fail_field(err, HD_IO, "key_file", "key file %s: %s", path, strerror(errno));
    } else if (!S_ISREG(sb.st_mode)) {
        st = hd_fail_field(err, HD_INVALID, "key_file", "key file %s: not a regular file", path);
    } else if (sb.st_mode & 077) {
        st = hd_fail_field(err, HD_INVALID, "key_file", "key file %s: mode %04o lets group or others at it; chmod 600 it", path,
                     (unsigned)sb.st_mode & 07777);
    } else {
        while (n < sizeof text) {
            ssize_t r = read(fd, text + n, sizeof text - n);
            if (r < 0 && errno == EINTR) continue;
            if (r < 0) st = hd_fail_field(err, HD_IO, "key_file", "key file %s: %s", path, strerror(errno));
            if (r <= 0) break;
            n += (size_t)r;
        }
        if (!st && !parse_key(m->key, text, n))
            st = hd_fail_field(err, HD_INVALID, "key_file", "key file %s: %s of 32 bytes or 64 hex digits expected", path,
                         n == sizeof text ? "too long, a file" : "a file");
    }
    close(fd);
    seal_wipe(text, sizeof text);
    if (st) seal_wipe(m, sizeof *m);
    m->on = !st;
    return st;
}

static bool hmac(const seal_master *m, const char label[16], const uint8_t salt[SEAL_SALT], uint8_t out[32]) {
    uint8_t msg[16 + SEAL_SALT];
    unsigned n = 32;
    memcpy(msg, label, 16);
    memcpy(msg + 16, salt, SEAL_SALT);
    return HMAC(EVP_sha256(), m->key, 32, msg, sizeof msg, out, &n) && n == 32;
}

bool seal_derive(const seal_master *m, const uint8_t salt[SEAL_SALT], uint8_t key[32], uint8_t check[16]) {
    uint8_t full[32];
    if (!hmac(m, "heddle kv file 1", salt, key) || !hmac(m, "heddle kv test 1", salt, full)) return false;
    memcpy(check, full, 16);
    return true;
}

bool seal_secret(const seal_master *m, const char label[17], uint8_t out[32]) {
    static const uint8_t no_salt[SEAL_SALT];
    return hmac(m, label, no_salt, out);
}

bool seal_begin(seal *s, const seal_file *f, uint64_t number, bool writing) {
    *s = (seal){NULL, NULL, writing};
    if (!f->on) {
        /* An odd factor spreads neighbouring numbers over the seed (2^64 / golden ratio). */
        if (!(s->hash = XXH3_createState())) return false;
        if (XXH3_128bits_reset_withSeed(s->hash, f->seed ^ number * 0x9e3779b97f4a7c15u) == XXH_OK) return true;
    } else {
        uint8_t nonce[12] = {0};
        int n;
        le_put64(nonce + 4, number);
        if ((s->cipher = EVP_CIPHER_CTX_new()) && EVP_CipherInit_ex(s->cipher, EVP_aes_256_gcm(), NULL, f->key, nonce, writing) &&
            EVP_CipherUpdate(s->cipher, NULL, &n, f->aad, (int)f->aad_n))
            return true;
    }
    seal_drop(s);
    return false;
}

bool seal_data(seal *s, void *out, const void *in, size_t n) {
    enum { PIECE = 1 << 20 }; /* the cipher counts in int */
    if (s->hash) {
        if (out != in) memcpy(out, in, n);
        return XXH3_128bits_update(s->hash, in, n) == XXH_OK;
    }
    for (size_t at = 0; at < n;) {
        int k = n - at < PIECE ? (int)(n - at) : PIECE, done;
        if (!EVP_CipherUpdate(s->cipher, (uint8_t *)out + at, &done, (const uint8_t *)in + at, k) || done != k) return false;
        at += (size_t)k;
    }
    return true;
}

bool seal_take(seal *s, uint8_t tag[SEAL_BYTES]) {
    bool ok = true;
    if (s->hash) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(s->hash));
        memcpy(tag, c.digest, SEAL_BYTES);
    } else {
        uint8_t rest[16];
        int n;
        ok = EVP_CipherFinal_ex(s->cipher, rest, &n) && EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_AEAD_GET_TAG, SEAL_BYTES, tag);
    }
    seal_drop(s);
    return ok;
}

bool seal_match(seal *s, const uint8_t tag[SEAL_BYTES]) {
    bool ok;
    if (s->hash) {
        uint8_t have[SEAL_BYTES];
        return seal_take(s, have) && !memcmp(have, tag, SEAL_BYTES);
    }
    uint8_t want[SEAL_BYTES], rest[16];
    int n;
    memcpy(want, tag, SEAL_BYTES); /* the call takes no const */
    ok = EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_AEAD_SET_TAG, SEAL_BYTES, want) && EVP_CipherFinal_ex(s->cipher, rest, &n) > 0;
    seal_drop(s);
    return ok;
}

void seal_drop(seal *s) {
    if (s->hash) XXH3_freeState(s->hash);
    if (s->cipher) EVP_CIPHER_CTX_free(s->cipher);
    s->hash = s->cipher = NULL;
}

void seal_checksum(const void *p, size_t n, uint8_t tag[SEAL_BYTES]) {
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(p, n));
    memcpy(tag, c.digest, SEAL_BYTES);
}
