/* mm_i8_32.c - kernels/vnni/mm_i8_32.h with the registers of avx512. */
#define LANES_WIDE 1
#include "kernels/vnni/mm_i8_32.h"
