/* kv_int.h - how keys and values lie in a page, scheme by scheme, and how a position gets there.
 *
 * f16, f32, bf16 keep each value by itself, rounded to nearest even.  q8 and q4 cut a position's head_dim into blocks of
 * 32 (the last may be shorter), each an f16 scale and integers: value = scale * integer; q4 turns the block before
 * (kv_turn).  A block belongs to one position,
 * and no byte is shared by two: what is stored depends on that key or value alone, and threads may store neighbours.
 *
 * Layout for one layer and kv head; B = min(16, page_tokens), a chunk is 16 dimensions (8 at the end of an odd head_dim):
 *   plain K  [page_tokens / B][head_dim][B]        16 positions side by side: a score needs no horizontal sum
 *   plain V  [chunk][page_tokens][16]              a run of positions for 16 dimensions
 *   q8 K     [page_tokens / B][block]{ [32][B] int8, [B] f16 }
 *   q8 V     [block]{ [page_tokens] f16, [2 chunks][page_tokens][16] int8 }
 *   q4       as q8 with two integers a byte, each plus 8: in K dimensions 2i (low half) and 2i + 1, in V dimensions i (low
 *            half) and i + 8 of a chunk, which takes 8 bytes also when it has only 8 dimensions
 * Both regions are read front to back, and a position is a small scatter when it is stored. */
#ifndef HD_KERNELS_KV_INT_H
#define HD_KERNELS_KV_INT_H

#include "kernels/kernels.h"
#include "kernels/math_int.h"

#include <string.h>

enum {
    KV_LANES = 16, /* positions side by side in K, dimensions side by side in V */
    KV_BLOCK = 32, /* dimensions with one scale in q8 and q4 */
    KV_SCALE_BYTES = 2,
    ATTN_HEAD_MAX = 512,
    KV_BLOCKS_MAX = ATTN_HEAD_MAX / KV_BLOCK
};

static inline bool kv_blocked(const kv_shape *s) { return s->scheme == KV_Q8 || s->scheme == KV_Q4; }
/* Bytes of one value of a plain scheme. */
static inline size_t kv_plain_bytes(const kv_shape *s) { return s->scheme == KV_F32 ? 4 : 2; }
static inline uint32_t kv_blocks(const kv_shape *s) { return (s->head_dim + KV_BLOCK - 1) / KV_BLOCK; }

/* Bytes of n of a position's values in K, scales apart. */
static inline size_t kv_k_run(const kv_shape *s, size_t n) {
    return s->scheme == KV_Q8 ? n : s->scheme == KV_Q4 ? n / 2 : n * kv_plain_bytes(s);
}
/* Bytes of a position's `width` values of one chunk in V. */
static inline size_t kv_v_run(const kv_shape *s, uint32_t width) {
    return s->scheme == KV_Q8 ? width : s->scheme == KV_Q4 ? KV_LANES / 2 : width * kv_plain_bytes(s);
}
/* Bytes of a position in K. */
static inline size_t kv_k_bytes(const kv_shape *s) {
    return kv_k_run(s, s->head_dim) + (kv_blocked(s) ? (size_t)kv_blocks(s) * KV_SCALE_BYTES : 0);
}
/* Bytes of a position in V; at least those in K. */
static inline size_t kv_v_bytes(const kv_shape *s) {
    uint32_t whole = s->head_dim / KV_LANES * KV_LANES, rest = s->head_dim - whole;
    return kv_v_run(s, KV_LANES) * (whole / KV_LANES) + (rest ? kv_v_run(s, rest) : 0) +
           (kv_blocked(s) ? (size_t)kv_blocks(s) * KV_SCALE_BYTES : 0);
}

static inline uint32_t kv_lanes(const kv_shape *s) { return s->page_tokens < KV_LANES ? s->page_tokens : KV_LANES; }
/* Where value d (q4: the pair d, d + 1 with d even) of a position lies in the K region. */
static inline size_t kv_k_at(const kv_shape *s, uint32_t slot, uint32_t d) {
    uint32_t b = kv_lanes(s), c = d / KV_BLOCK;
    size_t at = slot / b * b * kv_k_bytes(s) + kv_k_run(s, d) * b;
    if (!kv_blocked(s)) return at + slot % b * kv_plain_bytes(s);
    return at + (size_t)c * KV_SCALE_BYTES * b + slot % b;
}
/* Where the scale of block c lies in the K region. */
static inline size_t kv_k_scale_at(const kv_shape *s, uint32_t slot, uint32_t c) {
    uint32_t b = kv_lanes(s), end = (c + 1) * KV_BLOCK < s->head_dim ? (c + 1) * KV_BLOCK : s->head_dim;
    return slot / b * b * kv_k_bytes(s) + (kv_k_run(s, end) + (size_t)c * KV_SCALE_BYTES) * b + slot % b * KV_SCALE_BYTES;
}
/* Where a position's values of the chunk of dimension d begin in the V region. */
static inline size_t kv_v_at(const kv_shape *s, uint32_t slot, uint32_t d) {
    uint32_t chunk = d / KV_LANES * KV_LANES, left = s->head_dim - chunk;
    size_t before = chunk / KV_LANES * kv_v_run(s, KV_LANES);
    if (kv_blocked(s)) before += (d / KV_BLOCK + 1) * KV_SCALE_BYTES;
    return before * s->page_tokens + slot * kv_v_run(s, left < KV_LANES ? left : KV_LANES);
}
/* Where the scale of block c lies in the V region. */
static inline size_t kv_v_scale_at(const kv_shape *s, uint32_t slot, uint32_t c) {
    return (size_t)c * (KV_BLOCK / KV_LANES * kv_v_run(s, KV_LANES) + KV_SCALE_BYTES) * s->page_tokens +
           (size_t)slot * KV_SCALE_BYTES;
}

/* q4 keeps blocks turned by a Hadamard matrix: a key or value of few large dimensions, which would leave the others nothing
 * of the grid, becomes one of many middling ones.  Signs go before it, so that what is alike in all dimensions, or alternates,
 * does not become one large value: their product with any row of the matrix is at most a quarter of the whole (the sign of i
 * is that of the quadratic form i0 i1 + i2 i3 of its bits).  A query turned likewise has the same products with the keys, and
 * what is summed from turned values is turned back: the matrix is its own inverse but for a factor.
 *
 * In runs of 32 values (of 16 or 8 at a short block's end): on the way in signs, then sums and differences at distances 1, 2,
 * 4, 8, 16 (less than the run), then a power of two; on the way back signs last.  A key and a query, or a value in and back,
 * share the factor 1 / run.  out may be x. */
typedef enum { KV_TURN_STORED, KV_TURN_QUERY, KV_TURN_BACK } kv_turn_way;
#define KV_TURN_SIGNS 0x78887888u /* bit i: value i changes its sign */
static inline uint32_t kv_turn_width(uint32_t left) { return left >= 32 ? 32 : left >= 16 ? 16 : 8; }
static inline float kv_turn_factor(uint32_t width, kv_turn_way way) {
    if (way == KV_TURN_STORED) return width == 32 ? 0.125f : 0.25f;
    return width == 8 ? 0.5f : 0.25f;
}
static inline void kv_turn(const float *x, float *out, uint32_t n, kv_turn_way way) {
    for (uint32_t i = 0, w; i < n; i += w) {
        float y[KV_BLOCK];
        w = kv_turn_width(n - i);
        for (uint32_t j = 0; j < w; j++) y[j] = way != KV_TURN_BACK && KV_TURN_SIGNS >> j & 1 ? -x[i + j] : x[i + j];
        for (uint32_t h = 1; h < w; h *= 2)
            for (uint32_t j = 0; j < w; j++) {
                float a = y[j], b = y[j | h];
                if (j & h) continue;
                y[j] = a + b;
                y[j | h] = a - b;
            }
        for (uint32_t j = 0; j < w; j++) {
            float z = y[j] * kv_turn_factor(w, way);
            out[i + j] = way == KV_TURN_BACK && KV_TURN_SIGNS >> j & 1 ? -z : z;
        }
    }
}

/* q4: fractions of a block's extreme value that are tried as its step.  -8 puts it on the grid's end; more clips it for a
 * finer grid, less makes room on the other side.  These four and a fitted factor leave 0.90 of the squared error that -8
 * alone leaves in normal values; 32 of them would leave 0.89.  Outside LEAST..MOST the sums might leave f32's range. */
#define KV_Q4_FRACTIONS {-8, -8.6f, -9.4f, -7.4f}
#define KV_Q4_LEAST 0x1p-20f
#define KV_Q4_MOST 1e6f

/* Write the n integers of a block that begins at dimension d: kn to `k`, where the position's first one goes in a K of b
 * positions side by side, and vn into the region v. */
static inline void kv_put_numbers(const kv_shape *s, char *k, uint32_t b, char *v, uint32_t slot, uint32_t d, uint32_t n,
                                  const int8_t *kn, const int8_t *vn) {
    if (s->scheme == KV_Q8) {
        for (uint32_t i = 0; i < n; i++) k[(size_t)i * b] = (char)kn[i];
        for (uint32_t i = 0; i < n; i += 8) memcpy(v + kv_v_at(s, slot, d + i) + i % KV_LANES, vn + i, 8);
        return;
    }
    for (uint32_t i = 0; i < n; i += 2) k[(size_t)(i / 2) * b] = (char)((kn[i] + 8) | (kn[i + 1] + 8) << 4);
    for (uint32_t i = 0; i < n; i += KV_LANES) {
        char *at = v + kv_v_at(s, slot, d + i);
        for (uint32_t j = 0; j < 8; j++) at[j] = (char)((vn[i + j] + 8) | ((i + 8 < n ? vn[i + 8 + j] : 0) + 8) << 4);
    }
}

static inline uint16_t kv_to_bf16(float x) {
    uint32_t u = math_bits_f(x);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline float kv_from_bf16(uint16_t h) { return math_from_bits_f((uint32_t)h << 16); }

#endif
