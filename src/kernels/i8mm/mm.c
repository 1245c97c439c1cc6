/* mm.c - kernels/neon/mm_dot.h with the instructions of i8mm. */
#include "kernels/neon/mm_dot.h"
#include "kernels/neon/neon_int.h"

const mm_ops mm_i8mm = {
    .act_pack = {[ACT_F32] = mm_neon_act_f32,
                 [ACT_I8_32] = mm_neon_act_i8_32,
                 [ACT_I8_256] = mm_neon_act_i8_256,
                 [ACT_I8_32_TOP] = mm_neon_act_top_32},
    .mul = mul_of,
};
