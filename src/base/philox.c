/* philox.c - see philox.h. */
#include "base/philox.h"

void philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double philox_uniform(uint64_t seed, uint32_t sample, uint64_t position, philox_purpose purpose) {
    uint32_t ctr[4] = {(uint32_t)position, (uint32_t)(position >> 32), sample, (uint32_t)purpose};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
    uint64_t bits;
    philox4x32(ctr, key, out);
    bits = ((uint64_t)out[0] << 32 | out[1]) >> 11;
    return (double)bits * 0x1p-53;
}
