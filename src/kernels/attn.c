/* attn.c - the public attention calls: schemes, sizes, checks, and the table. */
#include "base/err.h"
#include "kernels/attn_int.h"

#include <string.h>

static const char *const scheme_names[KV_SCHEMES] = {"default", "f16", "f32", "bf16", "q8", "q4"};

const char *kv_scheme_name(kv_scheme scheme) { return scheme_names[scheme]; }

bool kv_scheme_by_name(const char *name, size_t n, kv_scheme *out) {
    for (int i = KV_F16; i < KV_SCHEMES; i++)
        if (strlen(scheme_names[i]) == n && !memcmp(scheme_names[i], name, n)) {
            *out = (kv_scheme)i;
            return true;
        }
    return false;
}

size_t kv_head_bytes(const kv_shape *s) {
    size_t n = (size_t)s->page_tokens * kv_v_bytes(s);
    return (n + 63) & ~(size_t)63;
}

static void check(const kv_shape *s) {
    HD_ASSERT(s->head_dim >= 8 && s->head_dim <= ATTN_HEAD_MAX && s->head_dim % 8 == 0);
    HD_ASSERT(s->page_tokens > 0 && (s->page_tokens & (s->page_tokens - 1)) == 0);
    HD_ASSERT(s->scheme > KV_DEFAULT && s->scheme < KV_SCHEMES);
    (void)s;
}

void kv_store(const kernels *k, const kv_shape *s, void *page, size_t k_off, size_t v_off, uint32_t slot,
              const float *key, const float *value) {
    check(s);
    HD_ASSERT(slot < s->page_tokens);
    k->attn->store(s, (char *)page + k_off, (char *)page + v_off, slot, key, value);
}

void attn_run(const kernels *k, const attn_job *job, void *scratch) {
    check(&job->shape);
    if (job->n_q && job->n_group) k->attn->run(job, scratch);
}

/* Blocks of positions are merged as they come, so neither the context nor the group enters. */
size_t attn_scratch_bytes(uint32_t max_positions, uint32_t max_group) {
    (void)max_positions;
    (void)max_group;
#if HD_HAVE_AVX2
    return attn_avx2.scratch_bytes > attn_avx512.scratch_bytes ? attn_avx2.scratch_bytes : attn_avx512.scratch_bytes;
#elif HD_HAVE_NEON
    return attn_neon.scratch_bytes;
#else
    return attn_generic.scratch_bytes;
#endif
}
