/* mm_generic.c - matrix products in plain C: the definition every other path is compared with, bit by bit.
 *
 * Written for being read.  The order of operations is the one stated in mm_layout.h: integer sums are exact, so their
 * order is free; floats are touched once per block (twice with mins), in rising k, by a fused multiply-add. */
#include "kernels/mm_layout.h"

#include <math.h>

/* ---- activations ---- */

static float f32_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Scale of a block and the factor that brings it to -top..top.  The largest magnitude is taken on the bit patterns, so
 * that a NaN is larger than an infinity and that larger than every number. */
static float block_scale(const float *x, uint32_t n, float top, float *inv) {
    uint32_t max = 0;
    float amax;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, x + i, 4);
        b &= 0x7fffffffu;
        if (b > max) max = b;
    }
    *inv = 0;
    amax = f32_of(max);
    if (max >= 0x7f800000u) return f32_of(0x7fc00000u);
    if (amax < MM_TINY) return 0;
    *inv = top / amax;
    return amax / top;
}

/* n values of the block starting at c, of which those past n_cols are 0; true when the block is all zeros. */
static bool load_block(float *v, uint32_t n, const float *x, uint32_t c, uint32_t n_cols) {
    uint32_t have = c >= n_cols ? 0 : n_cols - c < n ? n_cols - c : n;
    memset(v, 0, n * sizeof *v);
    memcpy(v, x + (have ? c : 0), have * sizeof *v);
    return have == 0;
}

/* inv is 0 when the block is quiet or not finite: then nothing is converted. */
static int quant(float v, float inv) { return inv == 0 ? 0 : (int)lrintf(v * inv); }

static void act_i8_32_block(act_i8_32 *a, const float *v) {
    int sum = 0, lane[2] = {0, 0};
    float inv;
    a->scale = block_scale(v, 32, 127, &inv);
    for (int i = 0; i < 32; i++) {
        int q = quant(v[i], inv);
        a->q[i] = (int8_t)q;
        sum += q;
        lane[i >> 1 & 1] += q;
    }
    a->init[0] = (int16_t)(-8 * lane[0]);
    a->init[1] = (int16_t)(-8 * lane[1]);
    a->minus8 = -8 * sum;
    a->ssum = a->scale * (float)sum;
}

static void act_top_32_block(act_i8_32 *a, const float *v) {
    uint32_t max = 0, second = 0, first_at = 0;
    float ref, top = 127, inv = 0;
    int sum = 0;
    memset(a, 0, sizeof *a);
    for (uint32_t i = 0; i < 32; i++) { /* as block_scale: on the bit patterns */
        uint32_t b;
        memcpy(&b, v + i, 4);
        b &= 0x7fffffffu;
        if (b > max)
            second = max, max = b, first_at = i;
        else if (b > second)
            second = b;
    }
    ref = f32_of(max);
    a->scale = max >= 0x7f800000u ? f32_of(0x7fc00000u) : 0;
    if (max >= 0x7f800000u || ref < MM_TINY) return;
    if (ref > 2 * f32_of(second)) {
        if (ref < 128 * f32_of(second)) ref = f32_of(second); /* above MM_TINY / 128: its reciprocal is finite */
        else top = MM_TOP;
        a->at = 32 * (first_at / 4);
    }
    inv = top / ref;
    a->scale = ref / top;
    for (uint32_t i = 0; i < 32; i++) {
        int q = quant(v[i], inv);
        sum += q;
        if (i == first_at && f32_of(max) > 2 * f32_of(second)) {
            a->top[i % 4] = (int8_t)((q + 64) >> 7);
            q -= 128 * a->top[i % 4];
        }
        a->q[i] = (int8_t)q;
    }
    a->minus8 = -8 * sum;
}

static void act_i16_32_block(act_i16_32 *a, const float *v) {
    act_i8_32 b;
    act_i8_32_block(&b, v);
    for (uint32_t i = 0; i < 32; i++) a->q[i / 4 * 4 + (i % 4 == 1 ? 2 : i % 4 == 2 ? 1 : i % 4)] = b.q[i];
    a->minus128 = 16 * b.minus8;
    a->scale = b.scale;
}

static void act_i16_top_block(act_i16_32 *a, const float *v) {
    act_i8_32 b;
    int sum = 0;
    act_top_32_block(&b, v);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t j = i - b.at / 8;
        int q = b.q[i] + 128 * (j < 4 ? b.top[j] : 0);
        a->q[i / 4 * 4 + (i % 4 == 1 ? 2 : i % 4 == 2 ? 1 : i % 4)] = (int16_t)q;
        sum += q;
    }
    a->minus128 = -128 * sum;
    a->scale = b.scale;
}

static void act_i8_256_block(act_i8_256 *a, const float *v) {
    float inv;
    memset(a, 0, sizeof *a);
    a->scale = block_scale(v, 256, 127, &inv);
    for (int j = 0; j < 16; j++) {
        int lane[2] = {0, 0};
        for (int i = 0; i < 16; i++) {
            int q = quant(v[16 * j + i], inv);
            a->q[16 * j + i] = (int8_t)q;
            lane[i >> 1 & 1] += q;
        }
        a->sum16[j] = (int16_t)(lane[0] + lane[1]);
        a->sum32[j / 2] = (int16_t)(a->sum32[j / 2] + lane[0] + lane[1]);
        a->init[j][0] = (int16_t)(-32 * lane[0]);
        a->init[j][1] = (int16_t)(-32 * lane[1]);
        a->minus32[j] = -32 * (lane[0] + lane[1]);
    }
}

static void act_pack(act_kind kind, const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1,
                     void *dst) {
    uint32_t n_blocks = mm_act_blocks(kind, n_cols), size = kind == ACT_F32 ? 1 : kind == ACT_I8_256 ? 256 : 32, step;
    size_t rec = mm_act_record(kind);
    float v[256];
    for (uint32_t t = t0; t < t1; t++) {
        uint8_t *p = (uint8_t *)dst + mm_act_at(kind, n_blocks, m, t, &step);
        for (uint32_t b = 0; b < n_blocks; b++, p += step * rec) {
            load_block(v, size, x + t * ldx, b * size, n_cols);
            switch (kind) {
            case ACT_F32: memcpy(p, v, 4); break;
            case ACT_I8_32: act_i8_32_block((act_i8_32 *)p, v); break;
            case ACT_I8_32_TOP: act_top_32_block((act_i8_32 *)p, v); break;
            case ACT_I16_TOP: act_i16_top_block((act_i16_32 *)p, v); break;
            case ACT_I8_256: act_i8_256_block((act_i8_256 *)p, v); break;
            default: act_i16_32_block((act_i16_32 *)p, v); break;
            }
        }
    }
}

static void act_f32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    act_pack(ACT_F32, x, ldx, n_cols, m, t0, t1, dst);
}
static void act_i8_32_pack(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1,
                           void *dst) {
    act_pack(ACT_I8_32, x, ldx, n_cols, m, t0, t1, dst);
}
static void act_top_32(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    act_pack(ACT_I8_32_TOP, x, ldx, n_cols, m, t0, t1, dst);
}
static void act_i16_pack(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1, void *dst) {
    act_pack(ACT_I16_32, x, ldx, n_cols, m, t0, t1, dst);
}
static void act_i16_top_pack(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1,
                             void *dst) {
    act_pack(ACT_I16_TOP, x, ldx, n_cols, m, t0, t1, dst);
}
static void act_i8_256_pack(const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0, uint32_t t1,
                            void *dst) {
    act_pack(ACT_I8_256, x, ldx, n_cols, m, t0, t1, dst);
}

/* ---- a row of a unit, unpacked ---- */

typedef struct {
    int8_t w[256];    /* value less its offset (Q4_1 and Q5_1: none), or the IQ4 code point */
    int32_t sc[16];   /* 256-blocks: scale of each sub-block */
    int32_t mn[16];   /* 256-blocks with mins */
    float d[8], m[8]; /* 256-blocks: d[0] and dmin in m[0]; else per 32 columns */
} unit_row;

static float half_at(const uint8_t *p) { return half_to_float(mm_ld16(p)); }

static unsigned nibble_at(const uint8_t *nib, unsigned r, unsigned k) {
    return nib[32 * (k % 16 / 4) + 4 * r + k % 4] >> (k < 16 ? 0 : 4) & 15;
}
static unsigned two_at(const uint8_t *p, unsigned r, unsigned k) {
    return p[k / 16 * 32 + 4 * r + k % 4] >> 2 * (k % 16 / 4) & 3;
}
/* Values cut over several bytes: x[b] is byte b of this row and k % 4, j says which value. */
static unsigned three_at(const uint8_t *p, unsigned r, unsigned k) {
    unsigned j = k / 4, x[3];
    for (unsigned b = 0; b < 3; b++) x[b] = p[32 * b + 4 * r + k % 4];
    if (j < 6) return x[j / 2] >> 3 * (j % 2) & 7;
    return j == 6 ? x[0] >> 6 | (x[1] >> 6 & 1) << 2 : x[2] >> 6 | (x[1] >> 7) << 2;
}
static unsigned five_at(const uint8_t *p, unsigned r, unsigned k) {
    unsigned j = k / 4, x[5];
    for (unsigned b = 0; b < 5; b++) x[b] = p[32 * b + 4 * r + k % 4];
    if (j < 5) return x[j] & 31;
    if (j < 7) return x[2 * (j - 5)] >> 5 | (x[2 * (j - 5) + 1] >> 6) << 3;
    return x[4] >> 5 | (x[1] >> 5 & 1) << 3 | (x[3] >> 5 & 1) << 4;
}
static unsigned six_at(const uint8_t *p, unsigned r, unsigned k) {
    unsigned j = k % 16 / 4, x[3];
    for (unsigned b = 0; b < 3; b++) x[b] = p[k / 16 * 96 + 32 * b + 4 * r + k % 4];
    return j < 3 ? x[j] & 63 : x[0] >> 6 | (x[1] >> 6) << 2 | (x[2] >> 6) << 4;
}

static const int8_t iq4[16] = {MM_IQ4_TABLE};

static void unpack_32(tensor_type type, unit_row *o, const uint8_t *unit, unsigned r) {
    for (unsigned b = 0; b < 2; b++) {
        int8_t *w = o->w + 32 * b;
        o->d[b] = half_at(unit + 16 * b + 2 * r);
        if (type == TENSOR_Q4_1 || type == TENSOR_Q5_1) o->m[b] = half_at(unit + 32 + 16 * b + 2 * r);
        for (unsigned k = 0; k < 32; k++) switch ((int)type) {
            case TENSOR_Q4_0: w[k] = (int8_t)(nibble_at(unit + 32 + 128 * b, r, k) - 8); break;
            case TENSOR_Q4_1: w[k] = (int8_t)nibble_at(unit + 64 + 128 * b, r, k); break;
            case TENSOR_Q5_0: w[k] = (int8_t)(five_at(unit + 32 + 160 * b, r, k) - 16); break;
            case TENSOR_Q5_1: w[k] = (int8_t)five_at(unit + 64 + 160 * b, r, k); break;
            case TENSOR_IQ4_NL: w[k] = iq4[nibble_at(unit + 32 + 128 * b, r, k)]; break;
            default: /* Q8_0 */ w[k] = (int8_t)(unit[32 + 256 * b + 32 * (k / 4) + 4 * r + k % 4] ^ 0x80); break;
            }
    }
}

static void unpack_256(tensor_type type, unit_row *o, const uint8_t *unit, unsigned r) {
    bool mins = type == TENSOR_Q4_K || type == TENSOR_Q5_K || type == TENSOR_Q2_K;
    o->d[0] = half_at(unit + 2 * r);
    if (mins) o->m[0] = half_at(unit + 16 + 2 * r);
    for (unsigned j = 0; j < 16; j++) switch ((int)type) {
        case TENSOR_Q4_K:
        case TENSOR_Q5_K: /* 8 scales: each counts for both halves of its 32 */
            o->sc[j] = unit[32 + mm_scale_at(r, j / 2)];
            o->mn[j] = unit[96 + mm_min_at(r, j / 2)];
            break;
        case TENSOR_Q2_K:
            o->sc[j] = unit[32 + mm_scale_at(r, j)] & 15;
            o->mn[j] = unit[32 + mm_scale_at(r, j)] >> 4;
            break;
        default: o->sc[j] = (int8_t)unit[16 + mm_scale_at(r, j)]; break;
        }
    for (unsigned s = 0; s < 8; s++) {
        int8_t *w = o->w + 32 * s;
        for (unsigned k = 0; k < 32; k++) switch ((int)type) {
            case TENSOR_Q4_K: w[k] = (int8_t)nibble_at(unit + 160 + 128 * s, r, k); break;
            case TENSOR_Q5_K: w[k] = (int8_t)five_at(unit + 160 + 160 * s, r, k); break;
            case TENSOR_Q6_K: w[k] = (int8_t)(six_at(unit + 144 + 192 * s, r, k) - 32); break;
            case TENSOR_Q2_K: w[k] = (int8_t)two_at(unit + 160 + 64 * s, r, k); break;
            default: /* Q3_K */ w[k] = (int8_t)(three_at(unit + 144 + 96 * s, r, k) - 4); break;
            }
    }
}

static void unpack_iq4_xs(unit_row *o, const uint8_t *unit, unsigned r) {
    for (unsigned s = 0; s < 8; s++) {
        o->d[s] = half_at(unit + 2 * r) * (float)(int8_t)unit[16 + 8 * s + r]; /* exact: 11 + 6 bits */
        for (unsigned k = 0; k < 32; k++) o->w[32 * s + k] = iq4[nibble_at(unit + 80 + 128 * s, r, k)];
    }
}

/* ---- products ---- */

static int32_t dot8(const int8_t *w, const int8_t *a, int n) {
    int32_t s = 0;
    for (int i = 0; i < n; i++) s += w[i] * a[i];
    return s;
}
static float add_top_32(float y, const unit_row *u, unsigned b, const act_i8_32 *a) {
    int32_t sum = dot8(u->w + 32 * b, a->q, 32) + 128 * dot8(u->w + 32 * b + a->at / 8, a->top, 4);
    return fmaf((float)sum, u->d[b] * a->scale, y);
}
static float add_i8_32(float y, const unit_row *u, unsigned b, bool mins, const act_i8_32 *a) {
    y = fmaf((float)dot8(u->w + 32 * b, a->q, 32), u->d[b] * a->scale, y);
    return mins ? fmaf(u->m[b], a->ssum, y) : y;
}
static float add_i8_256(float y, const unit_row *u, bool mins, const act_i8_256 *a) {
    int32_t s = 0, n = 0;
    for (int j = 0; j < 16; j++) {
        s += u->sc[j] * dot8(u->w + 16 * j, a->q + 16 * j, 16);
        if (mins) n += u->mn[j] * a->sum16[j];
    }
    y = fmaf((float)s, u->d[0] * a->scale, y);
    return mins ? fmaf(-(float)n, u->m[0] * a->scale, y) : y;
}

static void mul_quant(const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0, uint32_t r1,
                      void *scratch) {
    uint32_t cols, bytes, step, n_units = mm_units(w->type, w->n_cols);
    act_kind kind = mm_act_kind(NULL, w->type);
    uint32_t n_blocks = mm_act_blocks(kind, w->n_cols);
    bool mins = w->type == TENSOR_Q4_1 || w->type == TENSOR_Q5_1 || w->type == TENSOR_Q4_K || w->type == TENSOR_Q5_K ||
                w->type == TENSOR_Q2_K;
    unit_row o;
    (void)scratch;
    mm_unit(w->type, &cols, &bytes);
    for (uint32_t r = r0; r < r1; r++) {
        const uint8_t *unit = (const uint8_t *)w->data + (size_t)(r / MM_ROWS) * n_units * bytes;
        for (uint32_t t = 0; t < m; t++) y[t * ldy + r] = 0;
        for (uint32_t u = 0; u < n_units; u++, unit += bytes) {
            if (cols == 64)
                unpack_32(w->type, &o, unit, r % MM_ROWS);
            else if (w->type == TENSOR_IQ4_XS)
                unpack_iq4_xs(&o, unit, r % MM_ROWS);
            else
                unpack_256(w->type, &o, unit, r % MM_ROWS);
            for (uint32_t t = 0; t < m; t++) {
                const uint8_t *a = (const uint8_t *)act + mm_act_at(kind, n_blocks, m, t, &step);
                float s = y[t * ldy + r];
                if (kind == ACT_I8_32)
                    for (uint32_t b = 0; b < cols / 32; b++)
                        s = add_i8_32(s, &o, b, mins, (const act_i8_32 *)a + (size_t)(cols / 32 * u + b) * step);
                else if (kind == ACT_I8_32_TOP)
                    for (uint32_t b = 0; b < 2; b++) s = add_top_32(s, &o, b, (const act_i8_32 *)a + (size_t)(2 * u + b) * step);
                else
                    s = add_i8_256(s, &o, mins, (const act_i8_256 *)a + (size_t)u * step);
                y[t * ldy + r] = s;
            }
        }
    }
}

static void mul_float(const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0, uint32_t r1,
                      void *scratch) {
    uint32_t step, n = mm_act_blocks(ACT_F32, w->n_cols);
    (void)scratch;
    for (uint32_t r = r0; r < r1; r++) {
        size_t base = (size_t)(r / MM_ROWS) * n * MM_ROWS + r % MM_ROWS;
        for (uint32_t t = 0; t < m; t++) {
            const float *a = (const float *)((const uint8_t *)act + mm_act_at(ACT_F32, n, m, t, &step));
            float s = 0;
            for (uint32_t c = 0; c < n; c++) {
                size_t i = base + (size_t)c * MM_ROWS;
                float v = w->type == TENSOR_F32   ? ((const float *)w->data)[i]
                          : w->type == TENSOR_F16 ? half_to_float(((const uint16_t *)w->data)[i])
                                                  : f32_of((uint32_t)((const uint16_t *)w->data)[i] << 16);
                s = fmaf(v, a[(size_t)c * step], s);
            }
            y[t * ldy + r] = s;
        }
    }
}

static mm_mul_fn mul_of(tensor_type type) {
    switch ((int)type) {
    case TENSOR_F32:
    case TENSOR_F16:
    case TENSOR_BF16: return mul_float;
    default: return mm_supported(type) ? mul_quant : NULL;
    }
}

const mm_ops mm_generic = {
    .act_pack = {[ACT_F32] = act_f32,
                 [ACT_I8_32] = act_i8_32_pack,
                 [ACT_I8_256] = act_i8_256_pack,
                 [ACT_I16_32] = act_i16_pack,
                 [ACT_I8_32_TOP] = act_top_32,
                 [ACT_I16_TOP] = act_i16_top_pack},
    .mul = mul_of,
};
