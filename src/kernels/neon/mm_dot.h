/* mm_dot.h - matrix products for 64-bit Arm: the template of three sets.
 *
 *   neon     what every such CPU has: products of bytes are widened and added in pairs
 *   dotprod  SDOT: four products of signed bytes into each 32-bit lane
 *   i8mm     SMMLA: 2 rows x 8 columns times 8 columns x 2 tokens
 *
 * There is one way through a matrix: 8 rows x some columns are unpacked to signed bytes in scratch (L1) and then meet all
 * tokens, 4 at a time.  Offsets are taken off while unpacking, so sums need no correction; all are exact, and equal to
 * generic's.
 *
 * A file of a set's folder defines SET(name) and includes this.  Read: drive, *_tile, multiply, unpack. */
#ifndef HD_KERNELS_NEON_MM_DOT_H
#define HD_KERNELS_NEON_MM_DOT_H

#include "kernels/mm_layout.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define MMLA 1
#else
#define MMLA 0
#endif

enum {
    M_BLOCK = 128, /* tokens whose activations stay in L2 while all rows pass by */
    N_ACC = 8,     /* accumulators of 8 rows x 4 tokens */
    HALVES = MMLA ? 4 : 2, /* registers of what 8 rows have one of, beside accumulators: MMLA's hold each row twice */
};

/* ---- 32 columns of 8 rows: unpacked as 16 vectors, rows 4h..4h+3 x columns 4q..4q+3 in v[2q + h] ---- */

INLINE uint8x16_t shr(uint8x16_t v, const int n) { return vshlq_u8(v, vdupq_n_s8((int8_t)-n)); }
INLINE uint8x16_t shl(uint8x16_t v, const int n) { return vshlq_u8(v, vdupq_n_s8((int8_t)n)); }
INLINE uint8x16_t keep(uint8x16_t v, const int mask) { return vandq_u8(v, vdupq_n_u8((uint8_t)mask)); }
INLINE uint8x16_t cut(uint8x16_t v, const int from, const int mask, const int to) { return shl(keep(shr(v, from), mask), to); }

/* The layouts by their names in mm_layout.h: x[b] is vector b of the half, q[j] the values of columns 4j..4j+3. */
INLINE void nibbles(const uint8x16_t *x, uint8x16_t *q) {
    UNROLL
    for (int j = 0; j < 4; j++) {
        q[j] = keep(x[j], 15);
        q[4 + j] = shr(x[j], 4);
    }
}
INLINE void twos(const uint8x16_t *x, uint8x16_t *q) {
    UNROLL
    for (int j = 0; j < 8; j++) q[j] = keep(shr(x[j >> 2], 2 * (j & 3)), 3);
}
INLINE void threes(const uint8x16_t *x, uint8x16_t *q) {
    UNROLL
    for (int j = 0; j < 6; j++) q[j] = keep(shr(x[j >> 1], 3 * (j & 1)), 7);
    q[6] = vorrq_u8(shr(x[0], 6), cut(x[1], 6, 1, 2));
    q[7] = vorrq_u8(shr(x[2], 6), cut(x[1], 7, 1, 2));
}
INLINE void fives(const uint8x16_t *x, uint8x16_t *q) {
    UNROLL
    for (int j = 0; j < 5; j++) q[j] = keep(x[j], 31);
    q[5] = vorrq_u8(shr(x[0], 5), cut(x[1], 6, 3, 3));
    q[6] = vorrq_u8(shr(x[2], 5), cut(x[3], 6, 3, 3));
    q[7] = vorrq_u8(shr(x[4], 5), vorrq_u8(cut(x[1], 5, 1, 3), cut(x[3], 5, 1, 4)));
}
INLINE void sixes(const uint8x16_t *x, uint8x16_t *q) {
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint8x16_t *y = x + 3 * i;
        UNROLL
        for (int j = 0; j < 3; j++) q[4 * i + j] = keep(y[j], 63);
        q[4 * i + 3] = vorrq_u8(shr(y[0], 6), vorrq_u8(cut(y[1], 6, 3, 2), cut(y[2], 6, 3, 4)));
    }
}

#define SUB(ty)                                                                                                        \
    ((ty) == TENSOR_Q2_K                           ? 64                                                                \
     : (ty) == TENSOR_Q3_K                         ? 96                                                                \
     : (ty) == TENSOR_Q6_K                         ? 192                                                               \
     : (ty) == TENSOR_Q8_0                         ? 256                                                               \
     : (ty) == TENSOR_Q5_0 || (ty) == TENSOR_Q5_1 || (ty) == TENSOR_Q5_K ? 160                                         \
                                                   : 128)
#define OFFSET(ty)                                                                                                     \
    ((ty) == TENSOR_Q4_0 ? 8 : (ty) == TENSOR_Q5_0 ? 16 : (ty) == TENSOR_Q6_K ? 32 : (ty) == TENSOR_Q3_K ? 4 : 0)

INLINE void unpack(const tensor_type ty, const uint8_t *p, int8x16_t *v) {
    const int n_vectors = SUB(ty) / 32;
    UNROLL
    for (int h = 0; h < 2; h++) {
        uint8x16_t x[8], q[8];
        UNROLL
        for (int b = 0; b < n_vectors; b++) x[b] = vld1q_u8(p + 32 * b + 16 * h);
        switch ((int)ty) {
        case TENSOR_Q2_K: twos(x, q); break;
        case TENSOR_Q3_K: threes(x, q); break;
        case TENSOR_Q5_0:
        case TENSOR_Q5_1:
        case TENSOR_Q5_K: fives(x, q); break;
        case TENSOR_Q6_K: sixes(x, q); break;
        case TENSOR_Q8_0: break; /* whole bytes */
        default: nibbles(x, q); break;
        }
        UNROLL
        for (int j = 0; j < 8; j++) {
            if (ty == TENSOR_IQ4_NL || ty == TENSOR_IQ4_XS) {
                static const int8_t table[16] = {MM_IQ4_TABLE};
                v[2 * j + h] = vqtbl1q_s8(vld1q_s8(table), q[j]);
            } else if (ty == TENSOR_Q8_0) {
                v[2 * j + h] = vreinterpretq_s8_u8(veorq_u8(x[j], vdupq_n_u8(128)));
            } else {
                v[2 * j + h] = vsubq_s8(vreinterpretq_s8_u8(q[j]), vdupq_n_s8(OFFSET(ty)));
            }
        }
    }
}

/* To a panel: 256 bytes, in the order `multiply` wants. */
INLINE void put_weights(int8_t *o, const int8x16_t *v) {
#if MMLA /* [8 columns][2 rows], rows 2i and 2i + 1 of columns 8t..8t+7 at 4t + i */
    UNROLL
    for (int t = 0; t < 4; t++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            int32x4_t a = vreinterpretq_s32_s8(v[4 * t + h]), b = vreinterpretq_s32_s8(v[4 * t + 2 + h]);
            vst1q_s8(o + 16 * (4 * t + 2 * h), vreinterpretq_s8_s32(vzip1q_s32(a, b)));
            vst1q_s8(o + 16 * (4 * t + 2 * h + 1), vreinterpretq_s8_s32(vzip2q_s32(a, b)));
        }
    }
#else
    UNROLL
    for (int i = 0; i < 16; i++) vst1q_s8(o + 16 * i, v[i]);
#endif
}

/* What each of 8 rows has one of, beside the accumulators. */
INLINE void put_rows(int32_t *o, int32x4_t a, int32x4_t b) {
#if MMLA
    vst1q_s32(o, vzip1q_s32(a, a));
    vst1q_s32(o + 4, vzip2q_s32(a, a));
    vst1q_s32(o + 8, vzip1q_s32(b, b));
    vst1q_s32(o + 12, vzip2q_s32(b, b));
#else
    vst1q_s32(o, a);
    vst1q_s32(o + 4, b);
#endif
}

/* ---- sums of products ---- */

#if MMLA

/* acc[4 * (c / 2) + i]: rows 2i, 2i + 1 times tokens c, c + 1.  n: columns, 16 or 32; x: those of each token. */
INLINE void multiply(const int nc, const int n, const int8_t *w, const int8_t *const *x, int32x4_t *acc) {
    UNROLL
    for (int t = 0; t < n / 8; t++) {
        UNROLL
        for (int c = 0; c < nc; c += 2) {
            int8x16_t a = vcombine_s8(vld1_s8(x[c] + 8 * t), vld1_s8(x[c + 1 < nc ? c + 1 : c] + 8 * t));
            UNROLL
            for (int i = 0; i < 4; i++) acc[2 * c + i] = vmmlaq_s32(acc[2 * c + i], vld1q_s8(w + 16 * (4 * t + i)), a);
        }
    }
}
INLINE int n_acc(const int nc) { return nc > 2 ? 8 : 4; }
/* Rows 4h..4h+3 of token c. */
INLINE int32x4_t rows(const int32x4_t *acc, const int c, const int h) {
    const int32x4_t *a = acc + 4 * (c / 2) + 2 * h;
    return c % 2 ? vuzp2q_s32(a[0], a[1]) : vuzp1q_s32(a[0], a[1]);
}

#else

#if defined(__ARM_FEATURE_DOTPROD)
#define DOT(acc, w, a, lane) vdotq_laneq_s32(acc, w, a, lane)
#else
INLINE int32x4_t dot(int32x4_t acc, int8x16_t w, int8x16_t a) { /* two products of -128 and -128 need 17 bits */
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(a)), high = vmull_high_s8(w, a);
    return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
#define DOT(acc, w, a, lane) dot(acc, w, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(a), lane)))
#endif

/* acc[2c + h]: rows 4h..4h+3 times token c.  n: columns, 16 or 32; x: those of each token. */
INLINE void multiply(const int nc, const int n, const int8_t *w, const int8_t *const *x, int32x4_t *acc) {
    UNROLL
    for (int t = 0; t < n / 16; t++) {
        int8x16_t a[4];
        UNROLL
        for (int c = 0; c < nc; c++) a[c] = vld1q_s8(x[c] + 16 * t);
#define LANE(q)                                                                                                        \
    UNROLL                                                                                                             \
    for (int h = 0; h < 2; h++) {                                                                                      \
        int8x16_t v = vld1q_s8(w + 16 * (8 * t + 2 * (q) + h));                                                        \
        UNROLL                                                                                                         \
        for (int c = 0; c < nc; c++) acc[2 * c + h] = DOT(acc[2 * c + h], v, a[c], q);                                 \
    }
        LANE(0) LANE(1) LANE(2) LANE(3)
#undef LANE
    }
}
INLINE int n_acc(const int nc) { return 2 * nc; }
INLINE int32x4_t rows(const int32x4_t *acc, const int c, const int h) { return acc[2 * c + h]; }

#endif

INLINE void clear(const int n, int32x4_t *v) {
    UNROLL
    for (int i = 0; i < n; i++) v[i] = vdupq_n_s32(0);
}
INLINE void halves8(const uint8_t *p, float *o) {
    float16x8_t h = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)p));
    vst1q_f32(o, vcvt_f32_f16(vget_low_f16(h)));
    vst1q_f32(o + 4, vcvt_high_f32_f16(h));
}
/* sums += v * (d * scale), rows 4h..4h+3 of a token. */
INLINE float32x4_t add(float32x4_t sum, int32x4_t v, const float *d, float scale) {
    return vfmaq_f32(sum, vcvtq_f32_s32(v), vmulq_n_f32(vld1q_f32(d), scale));
}

/* ---- 32-blocks: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS ---- */

typedef struct {
    int8_t w[256];
    float d[8], m[8];
} block_32;

#define HAS_MIN_32(ty) ((ty) == TENSOR_Q4_1 || (ty) == TENSOR_Q5_1)
#define HEAD_32(ty)    ((ty) == TENSOR_IQ4_XS ? 80 : HAS_MIN_32(ty) ? 64 : 32)
#define BLOCKS(ty)     ((ty) == TENSOR_IQ4_XS ? 8 : 2)

INLINE void unpack_32(const tensor_type ty, const uint8_t *p, uint32_t n_units, void *panel) {
    block_32 *o = panel;
    for (uint32_t u = 0; u < n_units; u++, p += HEAD_32(ty) + BLOCKS(ty) * SUB(ty))
        for (int b = 0; b < BLOCKS(ty); b++, o++) {
            int8x16_t v[16];
            unpack(ty, p + HEAD_32(ty) + b * SUB(ty), v);
            put_weights(o->w, v);
            if (ty == TENSOR_IQ4_XS) {
                float d[8];
                halves8(p, d);
                for (int r = 0; r < 8; r++) o->d[r] = d[r] * (float)(int8_t)p[16 + 8 * b + r];
            } else {
                halves8(p + 16 * b, o->d);
                if (HAS_MIN_32(ty)) halves8(p + 32 + 16 * b, o->m);
            }
        }
}

/* What the column that stands out in a token's block (act_i8_32) adds to rows 4h..4h+3; one by one, as few blocks have one. */
INLINE int32x4_t top_rows(const int8_t *w, const act_i8_32 *a, const int h) {
    int32_t v[4] = {0, 0, 0, 0};
    for (uint32_t i = 0, k = a->at / 8; i < 4; i++, k++)
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t at = MMLA ? 16 * (4 * (k / 8) + 2 * (uint32_t)h + r / 2) + 8 * (r % 2) + k % 8
                               : 16 * (2 * (k / 4) + (uint32_t)h) + 4 * r + k % 4;
            v[r] += 128 * w[at] * a->top[i];
        }
    return vld1q_s32(v);
}

INLINE void i8_32_tile(const tensor_type ty, const int nc, const void *panel, const void *act, uint32_t n_units, float *sums) {
    const block_32 *p = panel;
    const act_i8_32 *a = act;
    for (uint32_t b = 0; b < BLOCKS(ty) * n_units; b++, p++, a += nc) {
        int32x4_t acc[N_ACC];
        const int8_t *x[4];
        clear(n_acc(nc), acc);
        UNROLL
        for (int c = 0; c < nc; c++) x[c] = a[c].q;
        multiply(nc, 32, p->w, x, acc);
        UNROLL
        for (int c = 0; c < nc; c++) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                float *s = sums + 8 * c + 4 * h;
                int32x4_t v = rows(acc, c, h);
                float32x4_t f;
                if (ty == TENSOR_Q8_0 && mm_has_top(a + c)) v = vaddq_s32(v, top_rows(p->w, a + c, h));
                f = add(vld1q_f32(s), v, p->d + 4 * h, a[c].scale);
                if (HAS_MIN_32(ty)) f = vfmaq_n_f32(f, vld1q_f32(p->m + 4 * h), a[c].ssum);
                vst1q_f32(s, f);
            }
        }
    }
}

/* ---- 256-blocks: Q2_K to Q6_K ---- */

#define HAS_MIN(ty)   ((ty) == TENSOR_Q2_K || (ty) == TENSOR_Q4_K || (ty) == TENSOR_Q5_K)
#define SCALES_32(ty) ((ty) == TENSOR_Q4_K || (ty) == TENSOR_Q5_K)
#define N_SCALES(ty)  (SCALES_32(ty) ? 8 : 16)
#define HEAD_256(ty)  (HAS_MIN(ty) ? 160 : 144)

typedef struct {
    int8_t w[8][256];
    int32_t scale[16][4 * HALVES];
    int32_t min[16][8];
    float d[8], dmin[8];
} block_256;

INLINE void unpack_256(const tensor_type ty, const uint8_t *p, uint32_t n_units, void *panel) {
    block_256 *o = panel;
    for (uint32_t u = 0; u < n_units; u++, o++, p += HEAD_256(ty) + 8 * SUB(ty)) {
        const uint8_t *scales = p + (HAS_MIN(ty) ? 32 : 16);
        for (int s = 0; s < 8; s++) {
            int8x16_t v[16];
            unpack(ty, p + HEAD_256(ty) + s * SUB(ty), v);
            put_weights(o->w[s], v);
        }
        for (unsigned j = 0; j < N_SCALES(ty); j++) {
            int32_t s[8];
            for (unsigned r = 0; r < 8; r++) {
                uint8_t x = scales[mm_scale_at(r, j)];
                s[r] = ty == TENSOR_Q2_K ? x & 15 : HAS_MIN(ty) ? x : (int8_t)x;
                if (ty == TENSOR_Q2_K) o->min[j][r] = x >> 4;
                if (SCALES_32(ty)) o->min[j][r] = p[96 + mm_min_at(r, j)];
            }
            put_rows(o->scale[j], vld1q_s32(s), vld1q_s32(s + 4));
        }
        halves8(p, o->d);
        if (HAS_MIN(ty)) halves8(p + 16, o->dmin);
    }
}

INLINE void i8_256_tile(const tensor_type ty, const int nc, const void *panel, const void *act, uint32_t n_units, float *sums) {
    const int n = N_SCALES(ty), cols = 256 / n;
    const block_256 *p = panel;
    const act_i8_256 *a = act;
    for (uint32_t u = 0; u < n_units; u++, p++, a += nc) {
        int32x4_t sum[N_ACC];
        clear(n_acc(nc), sum);
        for (int j = 0; j < n; j++) {
            int32x4_t acc[N_ACC];
            const int8_t *x[4];
            clear(n_acc(nc), acc);
            UNROLL
            for (int c = 0; c < nc; c++) x[c] = a[c].q + cols * j;
            multiply(nc, cols, p->w[0] + 8 * cols * j, x, acc);
            UNROLL
            for (int i = 0; i < n_acc(nc); i++)
                sum[i] = vmlaq_s32(sum[i], acc[i], vld1q_s32(p->scale[j] + 4 * (i % HALVES)));
        }
        UNROLL
        for (int c = 0; c < nc; c++) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                float *s = sums + 8 * c + 4 * h;
                float32x4_t f = add(vld1q_f32(s), rows(sum, c, h), p->d + 4 * h, a[c].scale);
                if (HAS_MIN(ty)) {
                    const int16_t *bsum = SCALES_32(ty) ? a[c].sum32 : a[c].sum16;
                    int32x4_t m = vdupq_n_s32(0);
                    for (int j = 0; j < n; j++) m = vmlaq_n_s32(m, vld1q_s32(p->min[j] + 4 * h), bsum[j]);
                    f = vfmsq_f32(f, vcvtq_f32_s32(m), vmulq_n_f32(vld1q_f32(p->dmin + 4 * h), a[c].scale));
                }
                vst1q_f32(s, f);
            }
        }
    }
}

/* ---- floats: the panel is [column][8 rows] ---- */

INLINE void unpack_floats(const tensor_type ty, const uint8_t *p, uint32_t n_units, void *panel) {
    float *o = panel;
    if (ty == TENSOR_F32) {
        memcpy(o, p, (size_t)n_units * 256);
        return;
    }
    for (uint32_t k = 0; k < 8 * n_units; k++, p += 16, o += 8) {
        uint16x8_t h = vld1q_u16((const uint16_t *)p);
        if (ty == TENSOR_F16) {
            halves8(p, o);
        } else {
            vst1q_f32(o, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)));
            vst1q_f32(o + 4, vreinterpretq_f32_u32(vshll_high_n_u16(h, 16)));
        }
    }
}

INLINE void f32_tile(const int nc, const void *panel, const void *act, uint32_t n_units, float *sums) {
    const float *p = panel, *a = act;
    float32x4_t f[8];
    UNROLL
    for (int i = 0; i < 2 * nc; i++) f[i] = vld1q_f32(sums + 4 * i);
    for (uint32_t k = 0; k < 8 * n_units; k++, p += 8, a += nc) {
        float32x4_t w0 = vld1q_f32(p), w1 = vld1q_f32(p + 4);
        UNROLL
        for (int c = 0; c < nc; c++) {
            f[2 * c] = vfmaq_n_f32(f[2 * c], w0, a[c]);
            f[2 * c + 1] = vfmaq_n_f32(f[2 * c + 1], w1, a[c]);
        }
    }
    UNROLL
    for (int i = 0; i < 2 * nc; i++) vst1q_f32(sums + 4 * i, f[i]);
}

/* ---- the way of a call through its matrix ---- */

/* panel: n_units of 8 rows, unpacked; act: the same units of one panel of tokens; sums: [token][8 rows], read and written. */
typedef void (*tile_fn)(const void *panel, const void *act, uint32_t n_units, float *sums);
typedef struct {
    void (*unpack)(const uint8_t *w, uint32_t n_units, void *panel);
    tile_fn tile[5];
    uint32_t run_units; /* that fit the panel */
} mm_tiles;

enum { PANEL_BYTES = 16 * 1024 };
typedef struct {
    float sums[M_BLOCK][8];
    _Alignas(16) uint8_t panel[PANEL_BYTES];
} work;
_Static_assert(sizeof(work) <= MM_SCRATCH_BYTES, "scratch holds sums and a panel");

static void drive(const mm_tiles *t, const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,
                  uint32_t r1, void *scratch) {
    act_kind kind = mm_act_kind(NULL, w->type);
    uint32_t n_blocks = mm_act_blocks(kind, w->n_cols), n_units = mm_units(w->type, w->n_cols), per_unit = n_blocks / n_units;
    size_t record = mm_act_record(kind), group = mm_group_bytes(w->type, w->n_cols), unit = group / n_units;
    work *s = scratch;
    for (uint32_t t0 = 0, t1; t0 < m; t0 = t1) {
        t1 = m - t0 < M_BLOCK ? m : t0 + M_BLOCK;
        for (uint32_t r = r0; r < r1; r += MM_ROWS) {
            const uint8_t *p = (const uint8_t *)w->data + r / MM_ROWS * group;
            uint32_t n_rows = r1 - r < MM_ROWS ? r1 - r : MM_ROWS;
            memset(s->sums, 0, (t1 - t0) * sizeof *s->sums);
            for (uint32_t u = 0, n; u < n_units; u += n) {
                n = n_units - u < t->run_units ? n_units - u : t->run_units;
                t->unpack(p + u * unit, n, s->panel);
                for (uint32_t i = t0; i < t1; i += MM_PANEL) {
                    uint32_t nc = m - i < MM_PANEL ? m - i : MM_PANEL;
                    const uint8_t *a = (const uint8_t *)act + ((size_t)i * n_blocks + (size_t)u * per_unit * nc) * record;
                    t->tile[nc](s->panel, a, n, s->sums[i - t0]);
                }
            }
            for (uint32_t i = t0; i < t1; i++) memcpy(y + i * ldy + r, s->sums[i - t0], n_rows * sizeof *y);
        }
    }
}

#define TILE(name, nc, call)                                                                                           \
    static void name##_t##nc(const void *p, const void *a, uint32_t n, float *sums) { call(nc, p, a, n, sums); }
#define TYPE(type, name, unpack_fn, call, bytes)                                                                       \
    TILE(name, 1, call)                                                                                                \
    TILE(name, 2, call)                                                                                                \
    TILE(name, 3, call)                                                                                                \
    TILE(name, 4, call)                                                                                                \
    static void name##_unpack(const uint8_t *w, uint32_t n, void *panel) { unpack_fn(type, w, n, panel); }             \
    static void mul_##name(const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,         \
                           uint32_t r1, void *scratch) {                                                               \
        static const mm_tiles t = {.unpack = name##_unpack,                                                            \
                                   .tile = {[1] = name##_t1, [2] = name##_t2, [3] = name##_t3, [4] = name##_t4},       \
                                   .run_units = PANEL_BYTES / (bytes)};                                                \
        drive(&t, w, act, m, y, ldy, r0, r1, scratch);                                                                 \
    }

#define CALL_Q4_0(nc, ...)   i8_32_tile(TENSOR_Q4_0, nc, __VA_ARGS__)
#define CALL_Q4_1(nc, ...)   i8_32_tile(TENSOR_Q4_1, nc, __VA_ARGS__)
#define CALL_Q8_0(nc, ...)   i8_32_tile(TENSOR_Q8_0, nc, __VA_ARGS__)
#define CALL_IQ4_XS(nc, ...) i8_32_tile(TENSOR_IQ4_XS, nc, __VA_ARGS__)
#define CALL_Q2_K(nc, ...)   i8_256_tile(TENSOR_Q2_K, nc, __VA_ARGS__)
#define CALL_Q4_K(nc, ...)   i8_256_tile(TENSOR_Q4_K, nc, __VA_ARGS__)
#define CALL_Q6_K(nc, ...)   i8_256_tile(TENSOR_Q6_K, nc, __VA_ARGS__)
/* Unpacked, types differ only in how many scales they have and whether they have mins. */
TYPE(TENSOR_F32, f32, unpack_floats, f32_tile, 256)
TYPE(TENSOR_F16, f16, unpack_floats, f32_tile, 256)
TYPE(TENSOR_BF16, bf16, unpack_floats, f32_tile, 256)
TYPE(TENSOR_Q4_0, q4_0, unpack_32, CALL_Q4_0, 2 * sizeof(block_32))
TYPE(TENSOR_Q4_1, q4_1, unpack_32, CALL_Q4_1, 2 * sizeof(block_32))
TYPE(TENSOR_Q5_0, q5_0, unpack_32, CALL_Q4_0, 2 * sizeof(block_32))
TYPE(TENSOR_Q5_1, q5_1, unpack_32, CALL_Q4_1, 2 * sizeof(block_32))
TYPE(TENSOR_Q8_0, q8_0, unpack_32, CALL_Q8_0, 2 * sizeof(block_32))
TYPE(TENSOR_IQ4_NL, iq4_nl, unpack_32, CALL_Q4_0, 2 * sizeof(block_32))
TYPE(TENSOR_IQ4_XS, iq4_xs, unpack_32, CALL_IQ4_XS, 8 * sizeof(block_32))
TYPE(TENSOR_Q2_K, q2_k, unpack_256, CALL_Q2_K, sizeof(block_256))
TYPE(TENSOR_Q3_K, q3_k, unpack_256, CALL_Q6_K, sizeof(block_256))
TYPE(TENSOR_Q4_K, q4_k, unpack_256, CALL_Q4_K, sizeof(block_256))
TYPE(TENSOR_Q5_K, q5_k, unpack_256, CALL_Q4_K, sizeof(block_256))
TYPE(TENSOR_Q6_K, q6_k, unpack_256, CALL_Q6_K, sizeof(block_256))

static mm_mul_fn mul_of(tensor_type type) {
    switch ((int)type) {
    case TENSOR_F32: return mul_f32;
    case TENSOR_F16: return mul_f16;
    case TENSOR_BF16: return mul_bf16;
    case TENSOR_Q4_0: return mul_q4_0;
    case TENSOR_Q4_1: return mul_q4_1;
    case TENSOR_Q5_0: return mul_q5_0;
    case TENSOR_Q5_1: return mul_q5_1;
    case TENSOR_Q8_0: return mul_q8_0;
    case TENSOR_IQ4_NL: return mul_iq4_nl;
    case TENSOR_IQ4_XS: return mul_iq4_xs;
    case TENSOR_Q2_K: return mul_q2_k;
    case TENSOR_Q3_K: return mul_q3_k;
    case TENSOR_Q4_K: return mul_q4_k;
    case TENSOR_Q5_K: return mul_q5_k;
    case TENSOR_Q6_K: return mul_q6_k;
    default: return NULL;
    }
}

#endif
