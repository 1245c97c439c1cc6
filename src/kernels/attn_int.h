/* attn_int.h - the table of attention kernels, and the order of operations every version keeps (kv_int.h: the layout).
 *
 * Order for one (query, head) with visible positions [lo, hi):
 *   positions are cut into blocks of ATTN_BLOCK at absolute multiples; each block that has a visible position gives
 *     s[j] = sum over d ascending, by fma from 0, of q[d] k[j][d];  s[j] *= scale;  softcap
 *     m    = max s[j] (NaN never wins);  p[j] = exp(s[j] - m)  (exp here is math_weightf)
 *     l    = sum of p[j] in 8 lanes by j modulo 8, ascending, then math_sum8's tree
 *     o[d] = sum over j ascending, by fma from 0, of p[j] v[j][d]
 *   with block scales (q8, q4; c is the block of d, K[j][d] and V[j][d] the integers) instead
 *     s[j] = sum over c ascending, by fma from 0, of ck[j][c] (sum over d of c ascending, by fma from 0, of q[d] K[j][d])
 *     o[d] = sum over j ascending, by fma from 0, of (p[j] cv[j][c]) V[j][d]
 *   (q4: q is turned before, and the output in the end: kv_turn)
 *   blocks are merged in ascending order into (M, L, O), which starts as the first block's (m, l, o):
 *     M' = max(M, m);  a = exp(M - M');  b = exp(m - M');  L = fma(l, b, L a);  O = fma(o, b, O a)
 *   a sink merges last, like a block with m = sink, l = 1, o = 0;  out = O (a (1 / L)), a = 1 without a sink
 * So blocks depend on nothing but the query and their own positions.  Queries stay f32: quantising them would save nothing
 * where K is widened to f32 anyway, and cost precision. */
#ifndef HD_KERNELS_ATTN_INT_H
#define HD_KERNELS_ATTN_INT_H

#include "kernels/kernels_int.h"
#include "kernels/kv_int.h"

enum { ATTN_BLOCK = 256 /* scores of a tile of queries stay in L2; merging costs below 1 % */ };

struct attn_ops {
    void (*store)(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value);
    void (*run)(const attn_job *job, void *scratch);
    size_t scratch_bytes;
};

extern const attn_ops attn_generic;
void kv_store_generic(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value);
#if HD_HAVE_AVX2
extern const attn_ops attn_avx2, attn_avx512;
void kv_store_avx2(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value);
#endif
#if HD_HAVE_NEON
extern const attn_ops attn_neon;
#endif

/* Positions [*lo, *hi) that the query at position p sees; empty as *lo >= *hi. */
static inline void attn_visible(const attn_job *job, uint32_t p, uint32_t *lo, uint32_t *hi) {
    *hi = job->kv_end ? job->kv_end : p + 1;
    *lo = job->window && p >= job->window ? p - job->window + 1 : 0;
}

static inline const void *attn_page(const attn_job *job, uint32_t position, size_t region) {
    return (const char *)job->pages[position / job->shape.page_tokens] + region;
}

#endif
