/* mm_i16_32.c - kernels/vnni/mm_i16_32.h with the registers of avxvnni. */
#define LANES_WIDE 0
#include "kernels/vnni/mm_i16_32.h"
