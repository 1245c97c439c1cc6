/* mm_i8_256.c - kernels/vnni/mm_i8_256.h with the registers of avxvnni. */
#define LANES_WIDE 0
#include "kernels/vnni/mm_i8_256.h"
