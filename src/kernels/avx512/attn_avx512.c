/* attn_avx512.c - kernels/avx2/attn_run.h with registers of 16 floats, 32 of them. */
#define ATTN_WIDE 1
#define ATTN_OPS  attn_avx512
#include "kernels/avx2/attn_run.h"
