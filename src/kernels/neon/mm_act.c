/* mm_act.c - quantisation of activations, 4 values at a time; the records of mm_layout.h, bit for bit as generic. */
#include "kernels/neon/neon_int.h"

#include <arm_neon.h>

/* n values (a multiple of 32, at most 256) from column c on, zeros past n_cols. */
static const float *columns(const float *x, uint32_t c, uint32_t n, uint32_t n_cols, float *spare) {
    uint32_t have = c >= n_cols ? 0 : n_cols - c;
    if (have >= n) return x + c;
    memset(spare, 0, n * sizeof *spare);
    if (have) memcpy(spare, x + c, have * sizeof *spare);
    return spare;
}

/* As generic: the largest bit pattern decides, the reciprocal is 0 when nothing may be converted. */
static float block_scale(const float *x, uint32_t n, float top, float *inv) {
    uint32x4_t max = vdupq_n_u32(0);
    uint32_t bits;
    float amax;
    for (uint32_t i = 0; i < n; i += 4)
        max = vmaxq_u32(max, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), vdupq_n_u32(0x7fffffff)));
    bits = vmaxvq_u32(max);
    *inv = 0;
    if (bits >= 0x7f800000u) bits = 0x7fc00000u;
    memcpy(&amax, &bits, 4);
    if (bits == 0x7fc00000u) return amax;
    if (amax < MM_TINY) return 0;
    *inv = top / amax;
    return amax / top;
}

static inline int32x4_t quant4(const float *x, float inv) { return vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inv)); }
static inline int16x8_t quant8(const float *x, float inv) {
    if (inv == 0) return vdupq_n_s16(0); /* the values may be infinite */
    return vcombine_s16(vqmovn_s32(quant4(x, inv)), vqmovn_s32(quant4(x + 4, inv)));
}
static inline int8x16_t quant16(const float *x, float inv) {
    return vcombine_s8(vqmovn_s16(quant8(x, inv)), vqmovn_s16(quant8(x + 8, inv)));
}

/* Sums over k%4 in {0, 1} and {2, 3} of 16 values, twice. */
static inline int16x4_t lane_sums(int8x16_t q) {
    int16x8_t p = vpaddlq_s8(q);
    int16x4_t s = vadd_s16(vget_low_s16(p), vget_high_s16(p));
    return vadd_s16(s, vext_s16(s, s, 2));
}

void mm_neon_act_i8_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I8_32, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i8_32 *a = (act_i8_32 *)((uint8_t *)dst + mm_act_at(ACT_I8_32, n_blocks, m, t, &step));
        for (uint32_t b = 0; b < n_blocks; b++, a += step) {
            float spare[32], inv;
            const float *v = columns(x + t * ldx, 32 * b, 32, n_cols, spare);
            int16x4_t sums = vdup_n_s16(0);
            int sum;
            a->scale = block_scale(v, 32, 127, &inv);
            for (int i = 0; i < 32; i += 16) {
                int8x16_t q = quant16(v + i, inv);
                vst1q_s8(a->q + i, q);
                sums = vadd_s16(sums, lane_sums(q));
            }
            a->init[0] = (int16_t)(-8 * vget_lane_s16(sums, 0));
            a->init[1] = (int16_t)(-8 * vget_lane_s16(sums, 1));
            sum = vget_lane_s16(sums, 0) + vget_lane_s16(sums, 1);
            a->minus8 = -8 * sum;
            a->ssum = a->scale * (float)sum;
        }
    }
}

/* 32 values of which the largest may stand out: as act_top_32_block of generic, the two largest magnitudes by lanes first. */
static void top_block(act_i8_32 *a, const float *v) {
    const uint32x4_t low = vdupq_n_u32(0x7fffffff), lanes = {0, 1, 2, 3};
    uint32x4_t m[8], h = vdupq_n_u32(0), l = h, is, at = h;
    uint32_t bits[2];
    float max, second, ref, top = 127, inv;
    int sum = 0;
    bool apart;
    memset(a, 0, sizeof *a);
    for (unsigned i = 0; i < 8; i++) {
        m[i] = vandq_u32(vreinterpretq_u32_f32(vld1q_f32(v + 4 * i)), low);
        l = vmaxq_u32(l, vminq_u32(h, m[i]));
        h = vmaxq_u32(h, m[i]);
    }
    bits[0] = vmaxvq_u32(h);
    is = vceqq_u32(h, vdupq_n_u32(bits[0]));
    bits[1] = vaddvq_u32(vshrq_n_u32(is, 31)) > 1 ? bits[0] : vmaxvq_u32(vbslq_u32(is, l, h));
    memcpy(&max, bits, 4);
    memcpy(&second, bits + 1, 4);
    if (bits[0] >= 0x7f800000u) {
        bits[0] = 0x7fc00000u;
        memcpy(&a->scale, bits, 4);
        return;
    }
    if (max < MM_TINY) return;
    apart = max > 2 * second;
    ref = apart && max < 128 * second ? second : max;
    if (apart && ref == max) top = MM_TOP;
    inv = top / ref;
    a->scale = ref / top;
    for (unsigned i = 0; i < 32; i += 16) {
        int16x8_t q = quant8(v + i, inv), r = quant8(v + i + 8, inv);
        sum += vaddlvq_s16(q) + vaddlvq_s16(r);
        vst1q_s8(a->q + i, vcombine_s8(vqmovn_s16(q), vqmovn_s16(r)));
    }
    a->minus8 = -8 * sum;
    if (!apart) return;
    for (unsigned i = 0; i < 8; i++) /* no other value equals it */
        at = vmaxq_u32(at, vandq_u32(vceqq_u32(m[i], vdupq_n_u32(bits[0])), vaddq_u32(lanes, vdupq_n_u32(4 * i))));
    bits[1] = vmaxvq_u32(at);
    sum = vcvtns_s32_f32(v[bits[1]] * inv);
    a->top[bits[1] % 4] = (int8_t)((sum + 64) >> 7);
    a->q[bits[1]] = (int8_t)(sum - 128 * a->top[bits[1] % 4]);
    a->at = 32 * (bits[1] / 4);
}

void mm_neon_act_top_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I8_32_TOP, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i8_32 *a = (act_i8_32 *)((uint8_t *)dst + mm_act_at(ACT_I8_32_TOP, n_blocks, m, t, &step));
        for (uint32_t b = 0; b < n_blocks; b++, a += step) {
            float spare[32];
            top_block(a, columns(x + t * ldx, 32 * b, 32, n_cols, spare));
        }
    }
}

void mm_neon_act_i8_256(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n_blocks = mm_act_blocks(ACT_I8_256, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        act_i8_256 *a = (act_i8_256 *)((uint8_t *)dst + mm_act_at(ACT_I8_256, n_blocks, m, t, &step));
        for (uint32_t b = 0; b < n_blocks; b++, a += step) {
            float spare[256], inv;
            const float *v = columns(x + t * ldx, 256 * b, 256, n_cols, spare);
            a->scale = block_scale(v, 256, 127, &inv);
            memset(a->pad, 0, sizeof a->pad);
            for (int j = 0; j < 16; j++) {
                int8x16_t q = quant16(v + 16 * j, inv);
                int16x4_t s = lane_sums(q);
                int s0 = vget_lane_s16(s, 0), s1 = vget_lane_s16(s, 1);
                vst1q_s8(a->q + 16 * j, q);
                a->init[j][0] = (int16_t)(-32 * s0);
                a->init[j][1] = (int16_t)(-32 * s1);
                a->minus32[j] = -32 * (s0 + s1);
                a->sum16[j] = (int16_t)(s0 + s1);
                a->sum32[j / 2] = (int16_t)(j % 2 ? a->sum32[j / 2] + s0 + s1 : s0 + s1);
            }
        }
    }
}

void mm_neon_act_f32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    uint32_t n = mm_act_blocks(ACT_F32, n_cols), step;
    for (uint32_t t = t0; t < t1; t++) {
        float *a = (float *)((uint8_t *)dst + mm_act_at(ACT_F32, n, m, t, &step));
        const float *row = x + t * ldx;
        for (uint32_t c = 0; c < n; c++) a[(size_t)c * step] = c < n_cols ? row[c] : 0;
    }
}
