/* attn_int.h - the table of attention kernels, the layout of a page's K and V, and what every version must agree on.
 *
 * Layout within a page, for one layer and kv head, B = min(16, page_tokens):
 *   K  [page_tokens / B][head_dim][B]   16 positions side by side: a score needs no horizontal sum
 *   V  [head_dim / 16][page_tokens][16] a run of positions for 16 dimensions; 8 wide at the end of an odd head_dim
 * Both are read front to back, and a position is a small scatter when it is stored.
 *
 * Order of operations for one (query, head) with visible positions [lo, hi):
 *   positions are cut into blocks of ATTN_BLOCK at absolute multiples; each block that has a visible position gives
 *     s[j] = sum over d ascending, by fma from 0, of q[d] k[j][d];  s[j] *= scale;  softcap
 *     m    = max s[j] (NaN never wins);  p[j] = exp(s[j] - m)  (exp here is math_weightf)
 *     l    = sum of p[j] in 8 lanes by j modulo 8, ascending, then math_sum8's tree
 *     o[d] = sum over j ascending, by fma from 0, of p[j] v[j][d]
 *   blocks are merged in ascending order into (M, L, O), which starts as the first block's (m, l, o):
 *     M' = max(M, m);  a = exp(M - M');  b = exp(m - M');  L = fma(l, b, L a);  O = fma(o, b, O a)
 *   a sink merges last, like a block with m = sink, l = 1, o = 0;  out = O (a (1 / L)), a = 1 without a sink
 * So blocks depend on nothing but the query and their own positions. */
#ifndef HD_KERNELS_ATTN_INT_H
#define HD_KERNELS_ATTN_INT_H

#include "kernels/kernels_int.h"
#include "kernels/math_int.h"

enum {
    ATTN_BLOCK = 256, /* scores of a tile of queries stay in L2; merging costs below 1 % */
    ATTN_HEAD_MAX = 512,
    KV_LANES = 16, /* positions side by side in K, dimensions side by side in V */
};

struct attn_ops {
    void (*store)(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value);
    void (*run)(const attn_job *job, void *scratch);
    size_t scratch_bytes;
};

extern const attn_ops attn_generic;
#if HD_HAVE_AVX2
extern const attn_ops attn_avx2;
#endif

static inline size_t kv_elem_bytes(const kv_shape *s) { return s->kv_type == TENSOR_F16 ? 2 : 4; }

/* Index of an element in the K or V region. */
static inline size_t kv_k_index(const kv_shape *s, uint32_t slot, uint32_t d) {
    uint32_t b = s->page_tokens < KV_LANES ? s->page_tokens : KV_LANES;
    return ((size_t)(slot / b) * s->head_dim + d) * b + slot % b;
}
static inline size_t kv_v_index(const kv_shape *s, uint32_t slot, uint32_t d) {
    uint32_t chunk = d / KV_LANES * KV_LANES, left = s->head_dim - chunk;
    uint32_t width = left < KV_LANES ? left : KV_LANES;
    return (size_t)chunk * s->page_tokens + (size_t)slot * width + d % KV_LANES;
}

/* Positions [*lo, *hi) that the query at position p sees; empty as *lo >= *hi. */
static inline void attn_visible(const attn_job *job, uint32_t p, uint32_t *lo, uint32_t *hi) {
    *hi = job->kv_end ? job->kv_end : p + 1;
    *lo = job->window && p >= job->window ? p - job->window + 1 : 0;
}

static inline const void *attn_page(const attn_job *job, uint32_t position, size_t region) {
    return (const char *)job->pages[position / job->shape.page_tokens] + region;
}

#endif
