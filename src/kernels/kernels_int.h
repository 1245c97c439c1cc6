/* kernels_int.h - what an instruction set fills in.
 *
 * Three sub-tables with one owner each: matrix products, attention, vectors.  The public calls of kernels.h do what all
 * instruction sets share and go through these pointers for the rest. */
#ifndef HD_KERNELS_KERNELS_INT_H
#define HD_KERNELS_KERNELS_INT_H

#include "kernels/kernels.h"

/* Packed layouts are the same for all sets (mm_layout.h), so one packed file serves them all. */
typedef void (*mm_act_fn)(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
typedef void (*mm_mul_fn)(const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,
                          uint32_t r1, void *scratch);
typedef struct {
    mm_act_fn act_pack[ACT_KINDS];      /* NULL for a kind that no type of the set meets */
    mm_mul_fn (*mul)(tensor_type type); /* NULL for a type without a kernel */
    bool words;                         /* IQ4 meets ACT_I16_32 and Q8_0 ACT_I16_TOP, elsewhere ACT_I8_32 and ACT_I8_32_TOP */
} mm_ops;

typedef struct attn_ops attn_ops;
typedef struct vec_ops vec_ops;

struct kernels {
    const char *name;
    const mm_ops *mm;
    const attn_ops *attn;
    const vec_ops *vec;
};

#if defined(__x86_64__)
#define HD_HAVE_AVX2 1
#else
#define HD_HAVE_AVX2 0
#endif
#if defined(__aarch64__)
#define HD_HAVE_NEON 1
#else
#define HD_HAVE_NEON 0
#endif

#endif
