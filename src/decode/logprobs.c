/* logprobs.c - log-softmax of logits: of one token and of the best few. */
#include "decode/sampler_int.h"

#include <math.h>

/* What no softmax can hold (-inf, NaN, logits without a finite maximum) has probability 0. */
float logprobs_of(float x, double lse) {
    double d = (double)x - lse;
    if (!(x > -INFINITY) || !isfinite(lse)) return -INFINITY;
    return d < 0 ? (float)d : 0.0f; /* rounding of lse must not make a probability above 1 */
}

/* The n_top best by (value descending, id ascending), by insertion: most values fail the first comparison. */
void logprobs_top(const float *x, size_t n, double lse, uint32_t n_top, sample_result *out) {
    float best[SAMPLER_MAX_TOP_LOGPROBS];
    uint32_t have = 0;
    if (n_top > SAMPLER_MAX_TOP_LOGPROBS) n_top = SAMPLER_MAX_TOP_LOGPROBS;
    for (size_t i = 0; n_top && i < n; i++) {
        float v = isnan(x[i]) ? -INFINITY : x[i];
        uint32_t j;
        if (have == n_top && !(v > best[n_top - 1])) continue;
        if (have < n_top) have++;
        for (j = have - 1; j && best[j - 1] < v; j--) {
            best[j] = best[j - 1];
            out->top[j] = out->top[j - 1];
        }
        best[j] = v;
        out->top[j] = (token_logprob){(int32_t)i, 0};
    }
    for (uint32_t j = 0; j < have; j++) out->top[j].logprob = logprobs_of(best[j], lse);
    out->n_top = have;
}

void logprobs_read(const kernels *k, const float *logits, size_t n_vocab, int32_t id, uint32_t n_top,
                   sample_result *out) {
    double lse = vec_logsumexp(k, logits, n_vocab);
    out->id = id;
    out->logprob = logprobs_of(logits[id], lse);
    logprobs_top(logits, n_vocab, lse, n_top, out);
}
