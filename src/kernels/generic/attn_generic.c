/* attn_generic.c - attention over pages, one query and head at a time: the definition (attn_int.h has the order). */
#include "kernels/attn_int.h"

static void put(const kv_shape *s, void *region, size_t i, float x) {
    if (s->kv_type == TENSOR_F16) ((uint16_t *)region)[i] = float_to_half(x);
    else ((float *)region)[i] = x;
}

static float get(const kv_shape *s, const void *region, size_t i) {
    return s->kv_type == TENSOR_F16 ? half_to_float(((const uint16_t *)region)[i]) : ((const float *)region)[i];
}

static void store(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value) {
    for (uint32_t d = 0; d < s->head_dim; d++) {
        put(s, k, kv_k_index(s, slot, d), key[d]);
        put(s, v, kv_v_index(s, slot, d), value[d]);
    }
}

/* One block's (m, l, o) for positions [lo, hi) of the same block. */
static void block(const attn_job *job, const float *q, uint32_t lo, uint32_t hi, float *m, float *l, float *o) {
    const kv_shape *s = &job->shape;
    float p[ATTN_BLOCK], lane[8] = {0};
    *m = -INFINITY;
    for (uint32_t j = lo; j < hi; j++) {
        const void *k = attn_page(job, j, job->k_off);
        float x = 0;
        for (uint32_t d = 0; d < s->head_dim; d++) x = fmaf(q[d], get(s, k, kv_k_index(s, j % s->page_tokens, d)), x);
        x *= job->scale;
        if (job->softcap > 0) x = math_softcapf(x, job->softcap);
        p[j % ATTN_BLOCK] = x;
        *m = x > *m ? x : *m;
    }
    for (uint32_t d = 0; d < s->head_dim; d++) o[d] = 0;
    for (uint32_t j = lo; j < hi; j++) {
        const void *v = attn_page(job, j, job->v_off);
        float e = math_weightf(p[j % ATTN_BLOCK] - *m);
        lane[j % 8] += e;
        for (uint32_t d = 0; d < s->head_dim; d++)
            o[d] = fmaf(e, get(s, v, kv_v_index(s, j % s->page_tokens, d)), o[d]);
    }
    *l = math_sum8(lane);
}

static uint32_t block_end(uint32_t lo, uint32_t hi) {
    uint32_t end = (lo / ATTN_BLOCK + 1) * ATTN_BLOCK;
    return end < hi ? end : hi;
}

static void one(const attn_job *job, const float *q, float *out, uint32_t pos, const float *sink) {
    uint32_t head_dim = job->shape.head_dim, lo, hi, end;
    float o[ATTN_HEAD_MAX], big_m, big_l, a, b, m, l;
    attn_visible(job, pos, &lo, &hi);
    if (lo >= hi) { /* sees nothing */
        for (uint32_t d = 0; d < head_dim; d++) out[d] = 0;
        return;
    }
    end = block_end(lo, hi);
    block(job, q, lo, end, &big_m, &big_l, out);
    for (lo = end; lo < hi; lo = end) {
        end = block_end(lo, hi);
        block(job, q, lo, end, &m, &l, o);
        float max = m > big_m ? m : big_m;
        a = math_weightf(big_m - max);
        b = math_weightf(m - max);
        big_m = max;
        big_l = fmaf(l, b, big_l * a);
        for (uint32_t d = 0; d < head_dim; d++) out[d] = fmaf(o[d], b, out[d] * a);
    }
    a = 1;
    if (sink) {
        float max = *sink > big_m ? *sink : big_m;
        a = math_weightf(big_m - max);
        b = math_weightf(*sink - max);
        big_l = fmaf(1.0f, b, big_l * a);
    }
    float inv = a * (1.0f / big_l);
    for (uint32_t d = 0; d < head_dim; d++) out[d] *= inv;
}

static void run(const attn_job *job, void *scratch) {
    (void)scratch;
    for (uint32_t i = 0; i < job->n_q; i++)
        for (uint32_t h = 0; h < job->n_group; h++)
            one(job, job->q + i * job->ldq + (size_t)h * job->shape.head_dim,
                job->out + i * job->ldout + (size_t)h * job->shape.head_dim, job->pos0 + i,
                job->sinks ? &job->sinks[h] : NULL);
}

const attn_ops attn_generic = {.store = store, .run = run, .scratch_bytes = 64};
