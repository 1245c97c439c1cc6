/* mm_ops.h - the matrix products of a set: template of its mm_ops.c.  Activations are quantised by the AVX2 code, floats
 * multiplied by it where a set has nothing wider. */
#include "kernels/vnni/lanes.h"

extern const mm_tiles SET(q4_0), SET(q4_1), SET(q5_0), SET(q5_1), SET(q8_0);
extern const mm_tiles SET(q2_k), SET(q3_k), SET(q4_k), SET(q5_k), SET(q6_k);
extern const mm_tiles SET(iq4_nl), SET(iq4_xs);
#if LANES_WIDE
#define FLOATS mm_avx512_floats
#else
#define FLOATS mm_avx2.mul
#endif

#define X(type, name)                                                                                                  \
    static void mul_##name(const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,         \
                           uint32_t r1, void *scratch) {                                                               \
        mm_avx2_drive(&SET(name), w, act, m, y, ldy, r0, r1, scratch);                                                 \
    }
MM_BLOCK_TYPES(X)
#undef X

static mm_mul_fn mul_of(tensor_type type) {
    switch ((int)type) {
#define X(type, name)                                                                                                  \
    case TENSOR_##type: return mul_##name;
        MM_BLOCK_TYPES(X)
#undef X
    default: return FLOATS(type);
    }
}

#if LANES_WIDE
const mm_ops mm_avx512 = {
#else
const mm_ops mm_avxvnni = {
#endif
    .act_pack = {[ACT_F32] = mm_avx2_act_f32,
                 [ACT_I8_32] = mm_avx2_act_i8_32,
                 [ACT_I8_256] = mm_avx2_act_i8_256,
                 [ACT_I8_32_TOP] = mm_avx2_act_top_32},
    .mul = mul_of,
};
