/* mm_ops.c - the matrix products of avx512. */
#define LANES_WIDE 1
#include "kernels/vnni/mm_ops.h"
