/* type.c - the table of element types, and half precision in plain C. */
#include "tensor/type.h"

#include <string.h>

const tensor_type_info *tensor_type_get(uint32_t gguf_id) {
#define X(id, name, gguf, elems, bytes)                                                                                \
    case gguf: {                                                                                                       \
        static const tensor_type_info info = {name, elems, bytes};                                                     \
        return &info;                                                                                                  \
    }
    switch (gguf_id) { TENSOR_TYPES(X) }
#undef X
    return NULL;
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 0x3FF, bits;
    float f;
    if (exp == 31)
        bits = sign | 0x7F800000 | frac << 13; /* infinity, NaN with its payload */
    else if (exp)
        bits = sign | (exp + 112) << 23 | frac << 13;
    else {
        f = (float)frac * 0x1p-24f; /* zero and subnormals: exact */
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    memcpy(&f, &bits, 4);
    return f;
}

uint16_t float_to_half(float f) {
    uint32_t bits, sign, mag;
    memcpy(&bits, &f, 4);
    sign = bits >> 16 & 0x8000;
    mag = bits & 0x7FFFFFFF;
    if (mag > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (mag >> 13 & 0x3FF)); /* NaN, made quiet */
    if (mag >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* 65520 and above round to infinity */
    if (mag < 0x38800000) {
        /* Below 2^-14 the result counts units of 2^-24; adding 0.5 leaves a float whose unit that is. */
        float m;
        memcpy(&m, &mag, 4);
        m += 0.5f;
        memcpy(&mag, &m, 4);
        return (uint16_t)(sign | (mag - 0x3F000000));
    }
    mag += 0xFFF + (mag >> 13 & 1); /* ties go to the even fraction; a carry moves into the exponent */
    return (uint16_t)(sign | ((mag - 0x38000000) >> 13));
}
