/* dequant.c - blocks to f32.  This is what the formats mean: kernels are tested against it.
 *
 * docs/formats.md has the layouts as tables.  Products are formed in f32 and in this order: first scale x sub-block
 * scale, then x quant, then minus the minimum's product; no contraction.  lo and hi are the halves of a byte. */
#include "tensor/block.h"

#include "base/err.h"

static float lo(uint8_t b) { return (float)(b & 15); }
static float hi(uint8_t b) { return (float)(b >> 4); }

/* --- blocks of 32: quant j in the low half of byte j, quant j + 16 in the high half --- */

static void q4_0(const uint8_t *b, float *y) {
    float d = block_half(b);
    for (int j = 0; j < 16; j++) y[j] = d * (lo(b[2 + j]) - 8), y[j + 16] = d * (hi(b[2 + j]) - 8);
}

static void q4_1(const uint8_t *b, float *y) {
    float d = block_half(b), m = block_half(b + 2);
    for (int j = 0; j < 16; j++) y[j] = d * lo(b[4 + j]) + m, y[j + 16] = d * hi(b[4 + j]) + m;
}

/* The fifth bits of all 32 quants in four bytes, quant e in bit e. */
static int fifth(const uint8_t *b, int e) { return (b[e / 8] >> e % 8 & 1) << 4; }

static void q5_0(const uint8_t *b, float *y) {
    float d = block_half(b);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(((b[6 + j] & 15) | fifth(b + 2, j)) - 16);
        y[j + 16] = d * (float)((b[6 + j] >> 4 | fifth(b + 2, j + 16)) - 16);
    }
}

static void q5_1(const uint8_t *b, float *y) {
    float d = block_half(b), m = block_half(b + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b[8 + j] & 15) | fifth(b + 4, j)) + m;
        y[j + 16] = d * (float)(b[8 + j] >> 4 | fifth(b + 4, j + 16)) + m;
    }
}

static void q8_0(const uint8_t *b, float *y) {
    float d = block_half(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(int8_t)b[2 + j];
}

static void iq4_nl(const uint8_t *b, float *y) {
    float d = block_half(b);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)block_iq4_values[b[2 + j] & 15];
        y[j + 16] = d * (float)block_iq4_values[b[2 + j] >> 4];
    }
}

/* The scale is a power of two, 2^(e - 127), and the quants are E2M1 numbers.  The table has them doubled, so half the
 * scale is used; for e < 2 that is a subnormal. */
static void mxfp4(const uint8_t *b, float *y) {
    float d = block_mx_half_scale(b[0]);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)block_e2m1_twice[b[1 + j] & 15];
        y[j + 16] = d * (float)block_e2m1_twice[b[1 + j] >> 4];
    }
}

/* --- blocks of 256 --- */

/* 16 sub-blocks of 16.  Element 128n + 32j + l has bits 2j, 2j+1 of quant byte 32n + l. */
static void q2_k(const uint8_t *b, float *y) {
    const uint8_t *scales = b, *qs = b + 16;
    float d = block_half(b + 80), dmin = block_half(b + 82);
    for (int e = 0; e < 256; e++) {
        int n = e / 128, j = e / 32 % 4, l = e % 32, s = e / 16;
        float scale = d * lo(scales[s]), min = dmin * hi(scales[s]);
        y[e] = scale * (float)(qs[32 * n + l] >> 2 * j & 3) - min;
    }
}

/* As Q2_K, with the third bit of element 32k + l in bit k of mask byte l: set means +0, clear means -4. */
static void q3_k(const uint8_t *b, float *y) {
    const uint8_t *mask = b, *qs = b + 32, *scales = b + 96;
    float d = block_half(b + 108), scale[16];
    for (int s = 0; s < 16; s++) scale[s] = d * (float)(block_q3_scale(scales, s) - 32);
    for (int e = 0; e < 256; e++) {
        int n = e / 128, j = e / 32 % 4, l = e % 32;
        int q = (qs[32 * n + l] >> 2 * j & 3) - (mask[l] >> (4 * n + j) & 1 ? 0 : 4);
        y[e] = scale[e / 16] * (float)q;
    }
}

/* 8 sub-blocks of 32.  Sub-blocks 2c and 2c+1 are the low and high halves of quant bytes 32c.. */
static void q4_k(const uint8_t *b, float *y) {
    const uint8_t *qs = b + 16;
    float d = block_half(b), dmin = block_half(b + 2);
    for (int s = 0; s < 8; s++) {
        int scale, min;
        float dl, ml;
        block_k4_scale(b + 4, s, &scale, &min);
        dl = d * (float)scale, ml = dmin * (float)min;
        for (int l = 0; l < 32; l++) {
            uint8_t q = qs[32 * (s / 2) + l];
            y[32 * s + l] = dl * (s % 2 ? hi(q) : lo(q)) - ml;
        }
    }
}

/* As Q4_K, with the fifth bit of sub-block s, element l in bit s of byte l. */
static void q5_k(const uint8_t *b, float *y) {
    const uint8_t *qh = b + 16, *qs = b + 48;
    float d = block_half(b), dmin = block_half(b + 2);
    for (int s = 0; s < 8; s++) {
        int scale, min;
        float dl, ml;
        block_k4_scale(b + 4, s, &scale, &min);
        dl = d * (float)scale, ml = dmin * (float)min;
        for (int l = 0; l < 32; l++) {
            uint8_t q = qs[32 * (s / 2) + l];
            y[32 * s + l] = dl * (float)((s % 2 ? q >> 4 : q & 15) | (qh[l] >> s & 1) << 4) - ml;
        }
    }
}

/* 16 sub-blocks of 16 with signed 8-bit scales.  In each half of 128, quarter k (32 elements) takes its low four bits
 * from the low (k < 2) or high half of byte 32(k % 2) + l, and its upper two from bits 2k of high byte l. */
static void q6_k(const uint8_t *b, float *y) {
    float d = block_half(b + 208);
    for (int e = 0; e < 256; e++) {
        int n = e / 128, k = e / 32 % 4, l = e % 32;
        uint8_t low = b[64 * n + 32 * (k % 2) + l], high = b[128 + 32 * n + l];
        int q = (k < 2 ? low & 15 : low >> 4) | (high >> 2 * k & 3) << 4;
        y[e] = d * (float)(int8_t)b[192 + e / 16] * (float)(q - 32);
    }
}

/* 8 sub-blocks of 32, each laid out as IQ4_NL with a 6-bit scale. */
static void iq4_xs(const uint8_t *b, float *y) {
    float d = block_half(b);
    uint16_t high = block_u16(b + 2);
    for (int s = 0; s < 8; s++) {
        const uint8_t *qs = b + 8 + 16 * s;
        int scale = (s % 2 ? b[4 + s / 2] >> 4 : b[4 + s / 2] & 15) | (high >> 2 * s & 3) << 4;
        float dl = d * (float)(scale - 32);
        for (int j = 0; j < 16; j++) {
            y[32 * s + j] = dl * (float)block_iq4_values[qs[j] & 15];
            y[32 * s + j + 16] = dl * (float)block_iq4_values[qs[j] >> 4];
        }
    }
}

/* --- rows --- */

typedef void (*block_fn)(const uint8_t *b, float *y);

static block_fn block_reader(tensor_type type) {
    switch (type) {
    case TENSOR_Q4_0: return q4_0;
    case TENSOR_Q4_1: return q4_1;
    case TENSOR_Q5_0: return q5_0;
    case TENSOR_Q5_1: return q5_1;
    case TENSOR_Q8_0: return q8_0;
    case TENSOR_Q2_K: return q2_k;
    case TENSOR_Q3_K: return q3_k;
    case TENSOR_Q4_K: return q4_k;
    case TENSOR_Q5_K: return q5_k;
    case TENSOR_Q6_K: return q6_k;
    case TENSOR_IQ4_NL: return iq4_nl;
    case TENSOR_IQ4_XS: return iq4_xs;
    case TENSOR_MXFP4: return mxfp4;
    case TENSOR_F32:
    case TENSOR_F16:
    case TENSOR_BF16:
    case TENSOR_F64:
    case TENSOR_I8:
    case TENSOR_I16:
    case TENSOR_I32:
    case TENSOR_I64: break;
    }
    return NULL;
}

static bool scalars(tensor_type type, const uint8_t *p, float *dst, size_t n) {
    if (type == TENSOR_F32) {
        memcpy(dst, p, n * 4);
    } else if (type == TENSOR_F16) {
        for (size_t i = 0; i < n; i++) dst[i] = block_half(p + 2 * i);
    } else if (type == TENSOR_BF16) {
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)block_u16(p + 2 * i) << 16;
            memcpy(dst + i, &bits, 4);
        }
    } else if (type == TENSOR_F64) {
        for (size_t i = 0; i < n; i++) {
            double v;
            memcpy(&v, p + 8 * i, 8);
            dst[i] = (float)v;
        }
    } else {
        return false;
    }
    return true;
}

bool tensor_dequant_row(tensor_type type, const void *src, float *dst, size_t n) {
    const tensor_type_info *info = tensor_type_get(type);
    block_fn read = block_reader(type);
    const uint8_t *p = src;
    if (!read) return info && scalars(type, p, dst, n);
    HD_ASSERT(n % info->block_elems == 0);
    for (; n >= info->block_elems; n -= info->block_elems) {
        read(p, dst);
        p += info->block_bytes;
        dst += info->block_elems;
    }
    return true;
}
