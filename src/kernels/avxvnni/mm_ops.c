/* mm_ops.c - the matrix products of avxvnni. */
#define LANES_WIDE 0
#include "kernels/vnni/mm_ops.h"
