/* attn_avx2.c - kernels/avx2/attn_run.h with registers of 8 floats. */
#define ATTN_WIDE 0
#define ATTN_OPS  attn_avx2
#include "kernels/avx2/attn_run.h"
