/* pagekey.c - the chain of pagekey.h, by OpenSSL's SHA-256. */
#include "state/pagekey.h"

#include "state/le.h"

#include <openssl/evp.h>

static bool digest(pagekey *out, const void *head, size_t head_n, const int32_t *tokens, uint32_t n) {
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    uint8_t piece[256];
    bool ok = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) && EVP_DigestUpdate(c, head, head_n);
    for (uint32_t i = 0; ok && i < n;) {
        uint32_t k = 0;
        for (; i < n && k < sizeof piece; i++, k += 4) le_put32(piece + k, (uint32_t)tokens[i]);
        ok = EVP_DigestUpdate(c, piece, k);
    }
    ok = ok && EVP_DigestFinal_ex(c, out->b, NULL);
    EVP_MD_CTX_free(c);
    return ok;
}

bool pagekey_root(pagekey *out, const uint8_t identity[32]) {
    static const char label[] = "heddle page chain 1";
    uint8_t head[sizeof label - 1 + 32];
    for (size_t i = 0; i < sizeof label - 1; i++) head[i] = (uint8_t)label[i];
    for (size_t i = 0; i < 32; i++) head[sizeof label - 1 + i] = identity[i];
    return digest(out, head, sizeof head, NULL, 0);
}

bool pagekey_next(pagekey *out, const pagekey *before, const int32_t *tokens, uint32_t n) {
    uint8_t head[36];
    for (size_t i = 0; i < 32; i++) head[i] = before->b[i];
    le_put32(head + 32, n);
    return digest(out, head, sizeof head, tokens, n);
}
