/* attn_neon.c - attention over pages with 4-wide registers, to the bits of attn_generic.c (order: attn_int.h).
 *
 * Rows, a row being one (query, head), are taken up to 4 at a time: 16 accumulators, while the keys of 16 positions or
 * the values of 16 dimensions go by and are widened to f32 once for the 4.  Rows of a group mostly see the same
 * positions; values that only some of them see are added row by row, before and after what all see.
 *
 * A lane is one position (scores) or one dimension (values), so no sum is ever split.  Pages of less than 16 positions,
 * which have another layout, are left to the generic version.
 * Read: run, group_run, block_of, scores, values. */
#include "kernels/attn_int.h"
#include "kernels/neon/math_neon.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { ROWS = 4 };

typedef struct {
    _Alignas(64) float p[ROWS][ATTN_BLOCK]; /* scores, then exp(score - m) */
    float scaled[ROWS][ATTN_BLOCK];         /* q8, q4: p times the scale of a position's value block */
    float o[ROWS][ATTN_HEAD_MAX];           /* this block's value sums */
    float turned[ROWS][ATTN_HEAD_MAX];      /* q4: the queries */
    const float *q[ROWS];
    float *out[ROWS];
    float big_m[ROWS], big_l[ROWS];
    uint32_t lo[ROWS], hi[ROWS]; /* visible positions */
} group;

typedef struct {
    float32x4_t v[4];
} sixteen;

static uint32_t later(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t sooner(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- 16 values to f32 ---- */

INLINE sixteen from_s8(int8x16_t x) {
    int16x8_t a = vmovl_s8(vget_low_s8(x)), b = vmovl_high_s8(x);
    return (sixteen){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), vcvtq_f32_s32(vmovl_high_s16(a)),
                      vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), vcvtq_f32_s32(vmovl_high_s16(b))}};
}
INLINE int8x16_t less_8(uint8x16_t x) { return vsubq_s8(vreinterpretq_s8_u8(x), vdupq_n_s8(8)); }

INLINE sixteen load16(const kv_scheme scheme, const char *at) {
    const uint16_t *p = (const uint16_t *)at;
    sixteen x;
    if (scheme == KV_Q8) return from_s8(vld1q_s8((const int8_t *)at));
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (scheme == KV_F32) x.v[i] = vld1q_f32((const float *)at + 4 * i);
        else if (scheme == KV_F16) x.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
        else x.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
    }
    return x;
}

/* Scales of 16 (or n) positions. */
static void halves(const char *at, uint32_t n, float *out) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)at + i))));
    for (; i < n; i++) out[i] = half_to_float(((const uint16_t *)at)[i]);
}

/* ---- scores of 16 positions ---- */

INLINE void fma16(const int n, float32x4_t acc[][4], const float *const *x, size_t at, sixteen y) {
    UNROLL
    for (int r = 0; r < n; r++) {
        UNROLL
        for (int i = 0; i < 4; i++) acc[r][i] = vfmaq_n_f32(acc[r][i], y.v[i], x[r][at]);
    }
}

/* p[r][at..at+16) of n rows = scale * q k.  k: where the 16 positions begin. */
INLINE void scores(const int n, const kv_scheme scheme, const kv_shape *s, group *g, const char *k, uint32_t at, float scale) {
    const bool blocked = scheme == KV_Q8 || scheme == KV_Q4;
    const size_t bytes = scheme == KV_F32 ? 64 : scheme == KV_Q8 ? 16 : 32;
    const float *const *q = g->q;
    float32x4_t acc[ROWS][4];
    UNROLL
    for (int r = 0; r < n; r++)
        for (int i = 0; i < 4; i++) acc[r][i] = vdupq_n_f32(0);
    for (uint32_t d = 0; d < s->head_dim;) {
        uint32_t end = blocked ? sooner(d + KV_BLOCK, s->head_dim) : s->head_dim;
        bool first = d == 0;
        while (d < end) {
            if (scheme == KV_Q4) {
                uint8x16_t x = vld1q_u8((const uint8_t *)k);
                fma16(n, acc, q, d, from_s8(less_8(vandq_u8(x, vdupq_n_u8(15)))));
                fma16(n, acc, q, d + 1, from_s8(less_8(vshrq_n_u8(x, 4))));
                k += 16;
                d += 2;
            } else {
                fma16(n, acc, q, d, load16(scheme, k));
                k += bytes;
                d++;
            }
        }
        if (blocked) { /* the block's sums join those of the blocks before */
            float c[KV_LANES];
            halves(k, KV_LANES, c);
            k += KV_LANES * KV_SCALE_BYTES;
            UNROLL
            for (int r = 0; r < n; r++) {
                float *x = g->p[r] + at;
                for (int i = 0; i < 4; i++) {
                    vst1q_f32(x + 4 * i, fma4(acc[r][i], vld1q_f32(c + 4 * i), first ? vdupq_n_f32(0) : vld1q_f32(x + 4 * i)));
                    acc[r][i] = vdupq_n_f32(0);
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < n; r++)
        for (int i = 0; i < 4; i++) {
            float *x = g->p[r] + at + 4 * i;
            vst1q_f32(x, vmulq_n_f32(blocked ? vld1q_f32(x) : acc[r][i], scale));
        }
}

/* Scores [lo, hi) of a row become p; returns m and l. */
static void softmax_row(float *p, uint32_t lo, uint32_t hi, float softcap, float *m, float *l) {
    uint32_t begin = lo & ~7u, end = (hi + 7) & ~7u;
    float32x4_t max = vdupq_n_f32(-INFINITY), a = vdupq_n_f32(0), b = a;
    float lane[8];
    if (softcap > 0)
        for (uint32_t j = begin; j < end; j += 4) vst1q_f32(p + j, softcap4(vld1q_f32(p + j), vdupq_n_f32(softcap)));
    /* What shares a vector with the ends becomes p = 0, which adds nothing to a lane that is at least 0. */
    for (uint32_t j = begin; j < lo; j++) p[j] = -INFINITY;
    for (uint32_t j = hi; j < end; j++) p[j] = -INFINITY;
    for (uint32_t j = begin; j < end; j += 4) max = greater4(vld1q_f32(p + j), max);
    *m = max4(max);
    for (uint32_t j = begin; j < end; j += 8) {
        float32x4_t x = weight4(vsubq_f32(vld1q_f32(p + j), vdupq_n_f32(*m)));
        float32x4_t y = weight4(vsubq_f32(vld1q_f32(p + j + 4), vdupq_n_f32(*m)));
        a = vaddq_f32(a, x);
        b = vaddq_f32(b, y);
        vst1q_f32(p + j, x);
        vst1q_f32(p + j + 4, y);
    }
    vst1q_f32(lane, a);
    vst1q_f32(lane + 4, b);
    *l = math_sum8(lane);
}

/* ---- values ---- */

/* o[r][0..width) += sum over n_pos positions of p[r][j] v[j], for n rows from the r0-th on. */
INLINE void values_n(const int n, const kv_scheme scheme, const uint32_t width, const float *const *p, const char *v,
                     uint32_t n_pos, float *const *o) {
    const size_t bytes = scheme == KV_Q4 ? 8 : (scheme == KV_F32 ? 4 : scheme == KV_Q8 ? 1 : 2) * width;
    const int parts = width / 4;
    float32x4_t acc[ROWS][4];
    UNROLL
    for (int r = 0; r < n; r++) {
        UNROLL
        for (int i = 0; i < parts; i++) acc[r][i] = vld1q_f32(o[r] + 4 * i);
    }
    for (uint32_t j = 0; j < n_pos; j++, v += bytes) {
        sixteen x;
        if (scheme == KV_Q4) {
            uint8x8_t y = vld1_u8((const uint8_t *)v);
            x = from_s8(less_8(vcombine_u8(vand_u8(y, vdup_n_u8(15)), vshr_n_u8(y, 4))));
        } else if (width == 16) {
            x = load16(scheme, v);
        } else { /* half of it: nothing may be read past the region */
            char half[64] = {0};
            memcpy(half, v, bytes);
            x = load16(scheme, half);
        }
        UNROLL
        for (int r = 0; r < n; r++) {
            UNROLL
            for (int i = 0; i < parts; i++) acc[r][i] = vfmaq_n_f32(acc[r][i], x.v[i], p[r][j]);
        }
    }
    UNROLL
    for (int r = 0; r < n; r++) {
        UNROLL
        for (int i = 0; i < parts; i++) vst1q_f32(o[r] + 4 * i, acc[r][i]);
    }
}

#define BY_SCHEME(n, scheme, call, ...)                                                                                \
    switch (scheme) {                                                                                                  \
    case KV_F16: call(n, KV_F16, __VA_ARGS__); break;                                                                  \
    case KV_BF16: call(n, KV_BF16, __VA_ARGS__); break;                                                                \
    case KV_Q8: call(n, KV_Q8, __VA_ARGS__); break;                                                                    \
    case KV_Q4: call(n, KV_Q4, __VA_ARGS__); break;                                                                    \
    default: call(n, KV_F32, __VA_ARGS__); break;                                                                      \
    }
#define BY_ROWS(n, scheme, call, ...)                                                                                  \
    switch (n) {                                                                                                       \
    case 1: BY_SCHEME(1, scheme, call, __VA_ARGS__) break;                                                             \
    case 2: BY_SCHEME(2, scheme, call, __VA_ARGS__) break;                                                             \
    case 3: BY_SCHEME(3, scheme, call, __VA_ARGS__) break;                                                             \
    default: BY_SCHEME(4, scheme, call, __VA_ARGS__) break;                                                            \
    }

static void scores_16(uint32_t n, const kv_shape *s, group *g, const char *k, uint32_t at, float scale) {
    BY_ROWS(n, s->scheme, scores, s, g, k, at, scale)
}
static void values_16(uint32_t n, kv_scheme scheme, uint32_t width, const float *const *p, const char *v, uint32_t n_pos,
                      float *const *o) {
    if (width == KV_LANES) {
        BY_ROWS(n, scheme, values_n, 16, p, v, n_pos, o)
    } else {
        BY_ROWS(n, scheme, values_n, 8, p, v, n_pos, o)
    }
}

/* Positions [lo, hi) of the block at base, for rows [r0, r0 + n). */
static void values(const attn_job *job, group *g, uint32_t base, uint32_t lo, uint32_t hi, uint32_t r0, uint32_t n) {
    const kv_shape *s = &job->shape;
    for (uint32_t a = lo, b; a < hi; a = b) { /* what one page holds */
        uint32_t slot = (base + a) % s->page_tokens;
        const char *page = attn_page(job, base + a, job->v_off);
        b = sooner(hi, a + s->page_tokens - slot);
        for (uint32_t d = 0; d < s->head_dim; d += KV_LANES) {
            const float *p[ROWS];
            float *o[ROWS];
            if (kv_blocked(s) && d % KV_BLOCK == 0) {
                float c[ATTN_BLOCK];
                halves(page + kv_v_scale_at(s, slot, d / KV_BLOCK), b - a, c);
                for (uint32_t r = r0; r < r0 + n; r++)
                    for (uint32_t j = a; j < b; j++) g->scaled[r][j] = g->p[r][j] * c[j - a];
            }
            for (uint32_t r = 0; r < n; r++) {
                p[r] = (kv_blocked(s) ? g->scaled[r0 + r] : g->p[r0 + r]) + a;
                o[r] = g->o[r0 + r] + d;
            }
            values_16(n, s->scheme, sooner(KV_LANES, s->head_dim - d), p, page + kv_v_at(s, slot, d), b - a, o);
        }
    }
}

/* ---- a group of rows, block by block ---- */

static void merge_row(float *out, float *big_m, float *big_l, const float *o, float m, float l, uint32_t head_dim) {
    if (*big_l == 0) { /* the first: every l is at least 1 or NaN */
        *big_m = m;
        *big_l = l;
        memcpy(out, o, head_dim * sizeof *out);
        return;
    }
    float max = m > *big_m ? m : *big_m;
    float a = math_weightf(*big_m - max), b = math_weightf(m - max);
    *big_m = max;
    *big_l = fmaf(l, b, *big_l * a);
    for (uint32_t d = 0; d < head_dim; d += 4)
        vst1q_f32(out + d, fma4(vld1q_f32(o + d), vdupq_n_f32(b), vmulq_n_f32(vld1q_f32(out + d), a)));
}

static void block_of(const attn_job *job, group *g, uint32_t n, uint32_t base) {
    const kv_shape *s = &job->shape;
    uint32_t lo[ROWS], hi[ROWS], first = ATTN_BLOCK, last = 0, all_lo = 0, all_hi = ATTN_BLOCK;
    float m[ROWS], l[ROWS];
    for (uint32_t r = 0; r < n; r++) { /* visible, relative to base */
        lo[r] = later(g->lo[r], base) - base;
        hi[r] = g->hi[r] <= base ? 0 : sooner(g->hi[r] - base, ATTN_BLOCK);
        if (g->lo[r] >= g->hi[r] || lo[r] >= hi[r]) lo[r] = hi[r] = 0;
        all_lo = later(all_lo, lo[r]);
        all_hi = sooner(all_hi, hi[r]);
        if (lo[r] < hi[r]) {
            first = sooner(first, lo[r]);
            last = later(last, hi[r]);
        }
    }
    for (uint32_t at = first & ~15u; at < last; at += KV_LANES) {
        uint32_t slot = (base + at) % s->page_tokens;
        scores_16(n, s, g, (const char *)attn_page(job, base + at, job->k_off) + slot * kv_k_bytes(s), at, job->scale);
    }
    memset(g->o, 0, sizeof g->o);
    for (uint32_t r = 0; r < n; r++)
        if (lo[r] < hi[r]) softmax_row(g->p[r], lo[r], hi[r], job->softcap, &m[r], &l[r]);
    if (all_lo < all_hi) {
        for (uint32_t r = 0; r < n; r++) values(job, g, base, lo[r], all_lo, r, 1);
        values(job, g, base, all_lo, all_hi, 0, n);
        for (uint32_t r = 0; r < n; r++) values(job, g, base, all_hi, hi[r], r, 1);
    } else {
        for (uint32_t r = 0; r < n; r++) values(job, g, base, lo[r], hi[r], r, 1);
    }
    for (uint32_t r = 0; r < n; r++)
        if (lo[r] < hi[r]) merge_row(g->out[r], &g->big_m[r], &g->big_l[r], g->o[r], m[r], l[r], s->head_dim);
}

static void finish_row(float *out, float big_m, float big_l, const float *sink, uint32_t head_dim) {
    float a = 1, inv;
    if (sink) {
        float max = *sink > big_m ? *sink : big_m;
        a = math_weightf(big_m - max);
        big_l = fmaf(1.0f, math_weightf(*sink - max), big_l * a);
    }
    inv = a * (1.0f / big_l);
    for (uint32_t d = 0; d < head_dim; d += 4) vst1q_f32(out + d, vmulq_n_f32(vld1q_f32(out + d), inv));
}

/* Rows [row, row + n); row = query * n_group + head. */
static void group_run(const attn_job *job, group *g, uint32_t row, uint32_t n) {
    uint32_t head_dim = job->shape.head_dim, first = UINT32_MAX, last = 0;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t i = (row + r) / job->n_group, h = (row + r) % job->n_group;
        g->q[r] = job->q + i * job->ldq + (size_t)h * head_dim;
        g->out[r] = job->out + i * job->ldout + (size_t)h * head_dim;
        g->big_l[r] = 0;
        attn_visible(job, job->pos0 + i, &g->lo[r], &g->hi[r]);
        if (g->lo[r] >= g->hi[r]) { /* sees nothing */
            memset(g->out[r], 0, head_dim * sizeof(float));
            continue;
        }
        first = sooner(first, g->lo[r]);
        last = later(last, g->hi[r]);
        if (job->shape.scheme == KV_Q4) {
            kv_turn(g->q[r], g->turned[r], head_dim, KV_TURN_QUERY);
            g->q[r] = g->turned[r];
        }
    }
    if (first >= last) return;
    for (uint32_t base = first / ATTN_BLOCK * ATTN_BLOCK; base < last; base += ATTN_BLOCK) block_of(job, g, n, base);
    for (uint32_t r = 0; r < n; r++) {
        if (g->lo[r] >= g->hi[r]) continue;
        finish_row(g->out[r], g->big_m[r], g->big_l[r], job->sinks ? &job->sinks[(row + r) % job->n_group] : NULL, head_dim);
        if (job->shape.scheme == KV_Q4) kv_turn(g->out[r], g->out[r], head_dim, KV_TURN_BACK);
    }
}

static void run(const attn_job *job, void *scratch) {
    uint64_t n = (uint64_t)job->n_q * job->n_group;
    if (job->shape.page_tokens < KV_LANES) {
        attn_generic.run(job, scratch);
        return;
    }
    for (uint64_t row = 0; row < n; row += ROWS) group_run(job, scratch, (uint32_t)row, n - row < ROWS ? (uint32_t)(n - row) : ROWS);
}

/* ---- storing ---- */

static void store(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value) {
    uint32_t b = kv_lanes(s);
    if (s->scheme != KV_F16) {
        kv_store_generic(s, k, v, slot, key, value);
        return;
    }
    uint16_t *k16 = (uint16_t *)((char *)k + kv_k_at(s, slot, 0)), lane[4];
    for (uint32_t d = 0; d < s->head_dim; d += 4) {
        vst1_u16(lane, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(key + d))));
        for (uint32_t i = 0; i < 4; i++) k16[(size_t)(d + i) * b] = lane[i];
        vst1_u16((uint16_t *)((char *)v + kv_v_at(s, slot, d)) + d % KV_LANES,
                 vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(value + d))));
    }
}

const attn_ops attn_neon = {.store = store, .run = run, .scratch_bytes = sizeof(group)};
