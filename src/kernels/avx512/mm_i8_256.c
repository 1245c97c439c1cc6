/* mm_i8_256.c - kernels/vnni/mm_i8_256.h with the registers of avx512. */
#define LANES_WIDE 1
#include "kernels/vnni/mm_i8_256.h"
