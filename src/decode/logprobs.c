/* logprobs.c - log-softmax of logits: of one token and of the best few. */
#include "decode/sampler_int.h"

#include <math.h>

/* What no softmax can hold (-inf, NaN, logits without a finite maximum) has probability 0. */
float logprobs_of(float x, double lse) {
    double d = (double)x - lse;
    if (!(x > -INFINITY) || !isfinite(lse)) return -INFINITY;
    return d < 0 ? (float)d : 0.0f; /* rounding of lse must not make a probability above 1 */
}

/* The n_top best by (value descending, id ascending), by insertion: most values fail the first comparison, and of most runs
 * of SOME even the best does. */
void logprobs_top(const kernels *k, const float *x, size_t n, double lse, uint32_t n_top, sample_result *out) {
    enum { SOME = 256 };
    float best[SAMPLER_MAX_TOP_LOGPROBS];
    uint32_t have = 0;
    if (n_top > SAMPLER_MAX_TOP_LOGPROBS) n_top = SAMPLER_MAX_TOP_LOGPROBS;
    for (size_t i = 0; n_top && i < n; i++) {
        float v;
        uint32_t j;
        while (i % SOME == 0 && i + SOME <= n && have == n_top && !(x[i + vec_argmax(k, x + i, SOME)] > best[n_top - 1]))
            i += SOME;
        if (i == n) break;
        v = isnan(x[i]) ? -INFINITY : x[i];
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
    logprobs_top(k, logits, n_vocab, lse, n_top, out);
}
