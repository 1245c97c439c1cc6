/* neon_int.h - what the sets for 64-bit Arm share: quantisation of activations, attention and vectors are those of neon. */
#ifndef HD_KERNELS_NEON_NEON_INT_H
#define HD_KERNELS_NEON_NEON_INT_H

#include "kernels/mm_layout.h"

void mm_neon_act_f32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_neon_act_i8_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_neon_act_top_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);
void mm_neon_act_i8_256(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst);

#endif
