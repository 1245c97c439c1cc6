/* type.h - element types of tensors and their block formats.
 *
 * Ids and layouts are those of GGUF (GGUF specification, ggml type ids).  A row is a whole number of blocks. */
#ifndef HD_TENSOR_TYPE_H
#define HD_TENSOR_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(id, name, GGUF id, elements per block, bytes per block) */
#define TENSOR_TYPES(X)                                                                                                \
    X(F32, "F32", 0, 1, 4)                                                                                             \
    X(F16, "F16", 1, 1, 2)                                                                                             \
    X(Q4_0, "Q4_0", 2, 32, 18)                                                                                         \
    X(Q4_1, "Q4_1", 3, 32, 20)                                                                                         \
    X(Q5_0, "Q5_0", 6, 32, 22)                                                                                         \
    X(Q5_1, "Q5_1", 7, 32, 24)                                                                                         \
    X(Q8_0, "Q8_0", 8, 32, 34)                                                                                         \
    X(Q2_K, "Q2_K", 10, 256, 84)                                                                                       \
    X(Q3_K, "Q3_K", 11, 256, 110)                                                                                      \
    X(Q4_K, "Q4_K", 12, 256, 144)                                                                                      \
    X(Q5_K, "Q5_K", 13, 256, 176)                                                                                      \
    X(Q6_K, "Q6_K", 14, 256, 210)                                                                                      \
    X(IQ4_NL, "IQ4_NL", 20, 32, 18)                                                                                    \
    X(IQ4_XS, "IQ4_XS", 23, 256, 136)                                                                                  \
    X(I8, "I8", 24, 1, 1)                                                                                              \
    X(I16, "I16", 25, 1, 2)                                                                                            \
    X(I32, "I32", 26, 1, 4)                                                                                            \
    X(I64, "I64", 27, 1, 8)                                                                                            \
    X(F64, "F64", 28, 1, 8)                                                                                            \
    X(BF16, "BF16", 30, 1, 2)                                                                                          \
    X(MXFP4, "MXFP4", 39, 32, 17)

typedef enum {
#define X(id, name, gguf, elems, bytes) TENSOR_##id = gguf,
    TENSOR_TYPES(X)
#undef X
} tensor_type;

typedef struct {
    const char *name;
    uint32_t block_elems, block_bytes;
} tensor_type_info;

/* NULL for an id heddle does not know. */
const tensor_type_info *tensor_type_get(uint32_t gguf_id);

/* n elements of one row -> f32 values; n is a multiple of block_elems.  src needs no alignment.
 * Products are formed as in the format's definition (docs/formats.md), in f32 without contraction.
 * Returns false for types that hold no real numbers (integers). */
bool tensor_dequant_row(tensor_type type, const void *src, float *dst, size_t n);

/* The other way: n f32 values -> blocks, deterministic.  Returns false where heddle cannot write the type. */
bool tensor_quant_row(tensor_type type, const float *src, void *dst, size_t n);

float half_to_float(uint16_t h);
uint16_t float_to_half(float f); /* round to nearest even */

#endif
