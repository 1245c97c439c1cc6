/* attn_generic.c - attention over pages, one query and head at a time: the definition (attn_int.h has the order). */
#include "kernels/attn_int.h"

#include <string.h>

/* A value of a plain scheme. */
static float plain(const kv_shape *s, const char *at) {
    uint16_t h;
    float x;
    if (s->scheme == KV_F32) return memcpy(&x, at, sizeof x), x;
    memcpy(&h, at, sizeof h);
    return s->scheme == KV_F16 ? half_to_float(h) : kv_from_bf16(h);
}

static float half_at(const char *at) {
    uint16_t h;
    memcpy(&h, at, sizeof h);
    return half_to_float(h);
}

static float nibble(char byte, uint32_t which) { return (float)(int32_t)((uint8_t)byte >> 4 * which & 15) - 8; }

/* The value, or where there are block scales the integer, of dimension d. */
static float k_number(const kv_shape *s, const char *k, uint32_t slot, uint32_t d) {
    if (s->scheme == KV_Q8) return (int8_t)k[kv_k_at(s, slot, d)];
    if (s->scheme == KV_Q4) return nibble(k[kv_k_at(s, slot, d & ~1u)], d & 1);
    return plain(s, k + kv_k_at(s, slot, d));
}

static float v_number(const kv_shape *s, const char *v, uint32_t slot, uint32_t d) {
    const char *chunk = v + kv_v_at(s, slot, d);
    uint32_t i = d % KV_LANES;
    if (s->scheme == KV_Q8) return (int8_t)chunk[i];
    if (s->scheme == KV_Q4) return nibble(chunk[i % 8], i / 8);
    return plain(s, chunk + i * kv_plain_bytes(s));
}

static float score(const attn_job *job, const float *q, uint32_t j) {
    const kv_shape *s = &job->shape;
    const char *k = attn_page(job, j, job->k_off);
    uint32_t slot = j % s->page_tokens, step = kv_blocked(s) ? KV_BLOCK : s->head_dim;
    float x = 0;
    for (uint32_t c = 0; c < s->head_dim; c += step) {
        float part = 0;
        for (uint32_t d = c; d < c + step && d < s->head_dim; d++) part = fmaf(q[d], k_number(s, k, slot, d), part);
        x = kv_blocked(s) ? fmaf(part, half_at(k + kv_k_scale_at(s, slot, c / KV_BLOCK)), x) : part;
    }
    return x;
}

/* o += p v of position j */
static void add_value(const attn_job *job, float p, uint32_t j, float *o) {
    const kv_shape *s = &job->shape;
    const char *v = attn_page(job, j, job->v_off);
    uint32_t slot = j % s->page_tokens;
    float x = p;
    for (uint32_t d = 0; d < s->head_dim; d++) {
        if (kv_blocked(s) && d % KV_BLOCK == 0) x = p * half_at(v + kv_v_scale_at(s, slot, d / KV_BLOCK));
        o[d] = fmaf(x, v_number(s, v, slot, d), o[d]);
    }
}

/* One block's (m, l, o) for positions [lo, hi) of the same block. */
static void block(const attn_job *job, const float *q, uint32_t lo, uint32_t hi, float *m, float *l, float *o) {
    float p[ATTN_BLOCK], lane[8] = {0};
    *m = -INFINITY;
    for (uint32_t j = lo; j < hi; j++) {
        float x = score(job, q, j) * job->scale;
        if (job->softcap > 0) x = math_softcapf(x, job->softcap);
        p[j % ATTN_BLOCK] = x;
        *m = x > *m ? x : *m;
    }
    for (uint32_t d = 0; d < job->shape.head_dim; d++) o[d] = 0;
    for (uint32_t j = lo; j < hi; j++) {
        float e = math_weightf(p[j % ATTN_BLOCK] - *m);
        lane[j % 8] += e;
        add_value(job, e, j, o);
    }
    *l = math_sum8(lane);
}

static uint32_t block_end(uint32_t lo, uint32_t hi) {
    uint32_t end = (lo / ATTN_BLOCK + 1) * ATTN_BLOCK;
    return end < hi ? end : hi;
}

static void one(const attn_job *job, const float *q, float *out, uint32_t pos, const float *sink) {
    uint32_t head_dim = job->shape.head_dim, lo, hi, end;
    float o[ATTN_HEAD_MAX], turned[ATTN_HEAD_MAX], big_m, big_l, a, b, m, l;
    attn_visible(job, pos, &lo, &hi);
    if (lo >= hi) { /* sees nothing */
        for (uint32_t d = 0; d < head_dim; d++) out[d] = 0;
        return;
    }
    if (job->shape.scheme == KV_Q4) {
        kv_turn(q, turned, head_dim, KV_TURN_QUERY);
        q = turned;
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
    if (job->shape.scheme == KV_Q4) kv_turn(out, out, head_dim, KV_TURN_BACK);
}

static void run(const attn_job *job, void *scratch) {
    (void)scratch;
    for (uint32_t i = 0; i < job->n_q; i++)
        for (uint32_t h = 0; h < job->n_group; h++)
            one(job, job->q + i * job->ldq + (size_t)h * job->shape.head_dim,
                job->out + i * job->ldout + (size_t)h * job->shape.head_dim, job->pos0 + i,
                job->sinks ? &job->sinks[h] : NULL);
}

const attn_ops attn_generic = {.store = kv_store_generic, .run = run, .scratch_bytes = 64};
