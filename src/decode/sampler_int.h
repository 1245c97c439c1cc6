/* sampler_int.h - what the files of the sampler share, and a view of the final distribution for tests. */
#ifndef HD_DECODE_SAMPLER_INT_H
#define HD_DECODE_SAMPLER_INT_H

#include "decode/order.h"
#include "decode/sampler.h"

enum { DRY_MAX_MATCH = 4096 /* longer repeats count as this long */ };

struct sampler {
    sampling_params p; /* its arrays point behind the struct */
    size_t n_vocab;
};

/* Scratch of one call, cut from the caller's block. */
typedef struct {
    order_entry *c, *tmp; /* n_vocab each */
    float *y;             /* n_vocab; the distances of typical */
    uint32_t *count;      /* n_vocab, the same memory as y: penalties are done before y is needed */
    uint32_t *ids;        /* n_vocab */
    uint32_t *hist;       /* ORDER_BUCKETS */
    uint16_t *z;          /* DRY_MAX_MATCH */
} sampler_work;
void sampler_work_layout(sampler_work *w, void *block, size_t n_vocab);

/* penalties.c: change x[n_vocab] by bias, then repetition, presence, frequency and DRY over the history. */
void penalties_apply(const sampling_params *p, float *x, size_t n_vocab, const int32_t *history, size_t n_history,
                     const sampler_work *w);

/* truncate.c: the candidates that are left, c[a..b) of the order, or c[a..) to its end when `open`.  x is changed: what
 * typical removes becomes -inf. */
typedef struct {
    const kernels *k;
    float *x;
    size_t n;
    order o;
    size_t a, b;
    bool open;
    double sum; /* of exp(x - max) over all of x, as sum_of; NAN: not known */
    const sampler_work *w;
} cut;
/* vec_sum_exp of x, in which NaN becomes -inf: it counts as forbidden. */
double sum_of(const kernels *k, float *x, size_t n, float ref, float t);
/* max: the finite maximum of x.  sum: sum_of(k, x, n, max, 1), or NAN when not known. */
void truncate_run(cut *c, const kernels *k, const sampling_params *p, float *x, size_t n, float max, double sum,
                  uint64_t position, const sampler_work *w);
/* Apply temperature (> 0) and take the candidate where the cumulative distribution passes u.  probs (may be NULL):
 * n probabilities by id. */
int32_t truncate_draw(cut *c, float temperature, double u, double *probs);

/* logprobs.c */
void logprobs_top(const kernels *k, const float *x, size_t n, double lse, uint32_t n_top, sample_result *out);
float logprobs_of(float x, double lse);

/* As sampler_sample, but gives the distribution it would draw from: probs[n_vocab] by id (greedy: one 1). */
hd_status sampler_distribution(const sampler *s, const kernels *k, float *logits, size_t n_vocab,
                               const int32_t *history, size_t n_history, uint64_t position, const int32_t *banned,
                               size_t n_banned, const uint32_t *mask, void *work, double *probs, hd_err *err);

#endif
