/* quant.c - f32 to the plain types and the blocks of 32; the entry for all types.  quant_k.c has the others.
 *
 * The blocks of 32 are written exactly as everybody writes them (largest value on the grid's end, one pass), so that
 * files made by heddle and by other tools agree byte for byte; tests/test_tensor.c compares. */
#include "tensor/quant_int.h"

#include "base/err.h"

#include <math.h>

/* v cut to 0..top; NaN gives 0. */
static uint8_t whole(float v, int top) { return (uint8_t)(v > 0 ? v < (float)top ? (int)v : top : 0); }

static float inverse(float d) { return d != 0 ? 1 / d : 0; }

/* The value of largest magnitude, the first of equals. */
static float extreme(const float *x, int n) {
    float best = 0, mag = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > mag) mag = fabsf(x[i]), best = x[i];
    return best;
}

static void range(const float *x, int n, float *min, float *max) {
    *min = *max = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *min) *min = x[i];
        if (x[i] > *max) *max = x[i];
    }
}

static void q4_0(const float *x, uint8_t *b) {
    float d = extreme(x, 32) / -8, id = inverse(d);
    block_put_u16(b, float_to_half(d));
    for (int j = 0; j < 16; j++)
        b[2 + j] = (uint8_t)(whole(x[j] * id + 8.5f, 15) | whole(x[j + 16] * id + 8.5f, 15) << 4);
}

static void q4_1(const float *x, uint8_t *b) {
    float min, max, d, id;
    range(x, 32, &min, &max);
    d = (max - min) / 15, id = inverse(d);
    block_put_u16(b, float_to_half(d));
    block_put_u16(b + 2, float_to_half(min));
    for (int j = 0; j < 16; j++)
        b[4 + j] = (uint8_t)(whole((x[j] - min) * id + 0.5f, 15) | whole((x[j + 16] - min) * id + 0.5f, 15) << 4);
}

/* 32 quants of five bits: the fifth bits in four bytes, then the nibbles. */
static void put_fives(const uint8_t q[32], uint8_t *b) {
    memset(b, 0, 4);
    for (int e = 0; e < 32; e++) b[e / 8] |= (uint8_t)(q[e] >> 4 << e % 8);
    for (int j = 0; j < 16; j++) b[4 + j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
}

static void q5_0(const float *x, uint8_t *b) {
    float d = extreme(x, 32) / -16, id = inverse(d);
    uint8_t q[32];
    block_put_u16(b, float_to_half(d));
    for (int e = 0; e < 32; e++) q[e] = whole(x[e] * id + 16.5f, 31);
    put_fives(q, b + 2);
}

static void q5_1(const float *x, uint8_t *b) {
    float min, max, d, id;
    uint8_t q[32];
    range(x, 32, &min, &max);
    d = (max - min) / 31, id = inverse(d);
    block_put_u16(b, float_to_half(d));
    block_put_u16(b + 2, float_to_half(min));
    for (int e = 0; e < 32; e++) q[e] = whole((x[e] - min) * id + 0.5f, 31);
    put_fives(q, b + 4);
}

/* Ties go away from zero here, as in the format's reference. */
static void q8_0(const float *x, uint8_t *b) {
    float d = fabsf(extreme(x, 32)) / 127, id = inverse(d);
    block_put_u16(b, float_to_half(d));
    for (int e = 0; e < 32; e++) {
        float v = x[e] * id, mag = fabsf(v);
        int q = whole(mag, 127), up = mag - (float)q >= 0.5f && q < 127;
        q += up;
        b[2 + e] = (uint8_t)(int8_t)(v < 0 ? -q : q);
    }
}

/* The scale that puts the largest magnitude into [4, 8) of a grid that ends at 6; then the nearest, first of equals. */
static void mxfp4(const float *x, uint8_t *b) {
    float amax = fabsf(extreme(x, 32)), d;
    uint8_t q[32];
    uint32_t bits;
    memcpy(&bits, &amax, 4);
    bits >>= 23; /* the exponent with its bias of 127, as in the block */
    b[0] = (uint8_t)(bits > 2 ? bits - 2 : 0);
    d = block_mx_half_scale(b[0]);
    for (int i = 0; i < 32; i++) {
        float least = INFINITY;
        q[i] = 0;
        for (uint8_t k = 0; k < 16; k++) {
            float err = fabsf(d * (float)block_e2m1_twice[k] - x[i]);
            if (err < least) least = err, q[i] = k;
        }
    }
    for (int j = 0; j < 16; j++) b[1 + j] = (uint8_t)(q[j] | q[j + 16] << 4);
}

static uint16_t bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 64); /* NaN, made quiet */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

typedef void (*block_fn)(const float *x, uint8_t *b);

static block_fn block_writer(tensor_type type) {
    switch (type) {
    case TENSOR_Q4_0: return q4_0;
    case TENSOR_Q4_1: return q4_1;
    case TENSOR_Q5_0: return q5_0;
    case TENSOR_Q5_1: return q5_1;
    case TENSOR_Q8_0: return q8_0;
    case TENSOR_Q2_K: return quant_q2_k;
    case TENSOR_Q3_K: return quant_q3_k;
    case TENSOR_Q4_K: return quant_q4_k;
    case TENSOR_Q5_K: return quant_q5_k;
    case TENSOR_Q6_K: return quant_q6_k;
    case TENSOR_IQ4_NL: return quant_iq4_nl;
    case TENSOR_IQ4_XS: return quant_iq4_xs;
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

static bool scalars(tensor_type type, const float *src, uint8_t *p, size_t n) {
    if (type == TENSOR_F32) {
        memcpy(p, src, n * 4);
    } else if (type == TENSOR_F16) {
        for (size_t i = 0; i < n; i++) block_put_u16(p + 2 * i, float_to_half(src[i]));
    } else if (type == TENSOR_BF16) {
        for (size_t i = 0; i < n; i++) block_put_u16(p + 2 * i, bf16(src[i]));
    } else if (type == TENSOR_F64) {
        for (size_t i = 0; i < n; i++) {
            double v = (double)src[i];
            memcpy(p + 8 * i, &v, 8);
        }
    } else {
        return false;
    }
    return true;
}

bool tensor_quant_row(tensor_type type, const float *src, void *dst, size_t n) {
    const tensor_type_info *info = tensor_type_get(type);
    block_fn write = block_writer(type);
    uint8_t *p = dst;
    if (!write) return info && scalars(type, src, p, n);
    HD_ASSERT(n % info->block_elems == 0);
    for (; n >= info->block_elems; n -= info->block_elems) {
        write(src, p);
        src += info->block_elems;
        p += info->block_bytes;
    }
    return true;
}
