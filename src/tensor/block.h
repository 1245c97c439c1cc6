/* block.h - what the block formats have in common, for readers and writers of blocks (docs/formats.md). */
#ifndef HD_TENSOR_BLOCK_H
#define HD_TENSOR_BLOCK_H

#include "tensor/type.h"

#include <string.h>

/* The 16 values of IQ4_NL and IQ4_XS, and twice those of MXFP4 (E2M1). */
static const int8_t block_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t block_e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline uint16_t block_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline float block_half(const uint8_t *p) { return half_to_float(block_u16(p)); }
static inline void block_put_u16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)v, p[1] = (uint8_t)(v >> 8); }

/* 2^(e - 128). */
static inline float block_mx_half_scale(uint8_t e) {
    uint32_t bits = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
    float d;
    memcpy(&d, &bits, 4);
    return d;
}

/* Scale and minimum of sub-block s (0..7) of Q4_K and Q5_K: 6 bits each, packed in 12 bytes.  The first four scales
 * and minima lie in the low six bits of bytes 0..3 and 4..7; the last four are split between bytes 8..11 (low four
 * bits, scale low and minimum high) and the free upper bits of bytes 0..7. */
static inline void block_k4_scale(const uint8_t b[12], int s, int *scale, int *min) {
    if (s < 4)
        *scale = b[s] & 63, *min = b[s + 4] & 63;
    else
        *scale = (b[s + 4] & 15) | b[s - 4] >> 6 << 4, *min = b[s + 4] >> 4 | b[s] >> 6 << 4;
}

static inline void block_k4_pack(uint8_t b[12], const uint8_t scale[8], const uint8_t min[8]) {
    for (int s = 0; s < 4; s++) {
        b[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        b[s + 4] = (uint8_t)(min[s] | min[s + 4] >> 4 << 6);
        b[s + 8] = (uint8_t)((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
    }
}

/* Scale s (0..15) of Q3_K, 0..63 (it means scale - 32): low four bits in bytes 0..7, upper two in bytes 8..11. */
static inline int block_q3_scale(const uint8_t b[12], int s) {
    int low = s < 8 ? b[s] & 15 : b[s - 8] >> 4;
    return low | (b[8 + s % 4] >> 2 * (s / 4) & 3) << 4;
}

static inline void block_q3_pack(uint8_t b[12], const uint8_t scale[16]) {
    memset(b, 0, 12);
    for (int s = 0; s < 16; s++) {
        b[s % 8] |= (uint8_t)(s < 8 ? scale[s] & 15 : (scale[s] & 15) << 4);
        b[8 + s % 4] |= (uint8_t)(scale[s] >> 4 << 2 * (s / 4));
    }
}

#endif
