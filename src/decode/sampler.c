/* sampler.c - see sampler.h: parameters, their checks, and the order in which the other files are called. */
#include "decode/sampler.h"
#include "decode/sampler_int.h"

#include "base/mem.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

void sampling_defaults(sampling_params *p) {
    *p = (sampling_params){
        .temperature = 1,
        .top_p = 1,
        .typical_p = 1,
        .xtc_threshold = 0.1f,
        .repetition_penalty = 1,
        .repetition_window = 20,
        .presence_window = 20,
        .frequency_window = 20,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
    };
}

/* lo <= v <= hi; false for NaN. */
static bool within(float v, double lo, double hi) { return (double)v >= lo && (double)v <= hi; }

static hd_status check_ranges(const sampling_params *p, hd_err *err) {
    const struct {
        const char *name;
        float v;
        double lo, hi;
    } fields[] = {
        {"temperature", p->temperature, 0, 100},
        {"top_p", p->top_p, 0, 1},
        {"min_p", p->min_p, 0, 1},
        {"typical_p", p->typical_p, 0, 1},
        {"xtc_probability", p->xtc_probability, 0, 1},
        {"xtc_threshold", p->xtc_threshold, 0, 1},
        {"repetition_penalty", p->repetition_penalty, 0.01, 100},
        {"presence_penalty", p->presence_penalty, -2, 2},
        {"frequency_penalty", p->frequency_penalty, -2, 2},
        {"dry_multiplier", p->dry_multiplier, 0, 100},
        {"dry_base", p->dry_base, 1, 100},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!within(fields[i].v, fields[i].lo, fields[i].hi))
            return hd_fail_field(err, HD_INVALID, fields[i].name, "%s is %g, it must be in %g..%g", fields[i].name,
                                 (double)fields[i].v, fields[i].lo, fields[i].hi);
    return HD_OK;
}

hd_status sampling_check(const sampling_params *p, size_t n_vocab, hd_err *err) {
    hd_status st = check_ranges(p, err);
    if (st) return st;
    if (p->dry_allowed_length > DRY_MAX_MATCH)
        return hd_fail_field(err, HD_INVALID, "dry_allowed_length", "dry_allowed_length is %u, at most %d is taken",
                             p->dry_allowed_length, DRY_MAX_MATCH);
    if (p->n_top_logprobs > SAMPLER_MAX_TOP_LOGPROBS)
        return hd_fail_field(err, HD_INVALID, "top_logprobs", "top_logprobs is %u, at most %d are given",
                             p->n_top_logprobs, SAMPLER_MAX_TOP_LOGPROBS);
    if (p->n_bias > SAMPLER_MAX_BIAS)
        return hd_fail_field(err, HD_INVALID, "logit_bias", "%zu logit biases, at most %d are taken", p->n_bias,
                             SAMPLER_MAX_BIAS);
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || (size_t)p->bias[i].id >= n_vocab)
            return hd_fail_field(err, HD_INVALID, "logit_bias", "token %d is not in the vocabulary of %zu",
                                 p->bias[i].id, n_vocab);
        if (!(p->bias[i].bias < INFINITY))
            return hd_fail_field(err, HD_INVALID, "logit_bias", "the bias of token %d is not a number", p->bias[i].id);
    }
    if (p->n_dry_breakers > SAMPLER_MAX_BREAKERS)
        return hd_fail_field(err, HD_INVALID, "dry_sequence_breakers", "%zu sequence breakers, at most %d are taken",
                             p->n_dry_breakers, SAMPLER_MAX_BREAKERS);
    for (size_t i = 0; i < p->n_dry_breakers; i++)
        if (p->dry_breakers[i] < 0 || (size_t)p->dry_breakers[i] >= n_vocab)
            return hd_fail_field(err, HD_INVALID, "dry_sequence_breakers", "token %d is not in the vocabulary of %zu",
                                 p->dry_breakers[i], n_vocab);
    return HD_OK;
}

hd_status sampler_open(sampler **out, const sampling_params *p, size_t n_vocab, hd_err *err) {
    sampler *s;
    logit_bias *bias;
    int32_t *breakers;
    hd_status st;
    *out = NULL;
    if ((st = sampling_check(p, n_vocab, err))) return st; /* bounds both counts */
    s = hd_alloc(sizeof *s + p->n_bias * sizeof *bias + p->n_dry_breakers * sizeof *breakers);
    if (!s) return hd_fail(err, HD_NOMEM, "no memory for a sampler");
    *s = (sampler){.p = *p, .n_vocab = n_vocab};
    bias = (logit_bias *)(s + 1);
    breakers = (int32_t *)(bias + p->n_bias);
    if (p->n_bias) memcpy(bias, p->bias, p->n_bias * sizeof *bias);
    if (p->n_dry_breakers) memcpy(breakers, p->dry_breakers, p->n_dry_breakers * sizeof *breakers);
    s->p.bias = bias;
    s->p.dry_breakers = breakers;
    *out = s;
    return HD_OK;
}

void sampler_close(sampler *s) { hd_free(s); }
const sampling_params *sampler_params(const sampler *s) { return &s->p; }

/* Sizes of the parts of the work block; each begins 8-byte aligned. */
size_t sampler_work_bytes(size_t n_vocab) {
    size_t even = (n_vocab + 1) & ~(size_t)1;
    return 2 * n_vocab * sizeof(order_entry) + even * (sizeof(float) + sizeof(uint32_t)) + ORDER_BUCKETS * sizeof(uint32_t) +
           DRY_MAX_MATCH * sizeof(uint16_t);
}

void sampler_work_layout(sampler_work *w, void *block, size_t n_vocab) {
    size_t even = (n_vocab + 1) & ~(size_t)1;
    w->c = block;
    w->tmp = w->c + n_vocab;
    w->y = (float *)(w->tmp + n_vocab);
    w->count = (uint32_t *)(void *)w->y;
    w->ids = w->count + even;
    w->hist = w->ids + even;
    w->z = (uint16_t *)(w->hist + ORDER_BUCKETS);
}

static void forbid(float *x, size_t n, const int32_t *banned, size_t n_banned, const uint32_t *mask) {
    if (mask)
        for (size_t w = 0; w * 32 < n; w++) {
            size_t end = n - w * 32 < 32 ? n - w * 32 : 32;
            if (mask[w] == UINT32_MAX) continue;
            for (size_t b = 0; b < end; b++)
                if (!(mask[w] >> b & 1)) x[w * 32 + b] = -INFINITY;
        }
    for (size_t i = 0; i < n_banned; i++)
        if (banned[i] >= 0 && (size_t)banned[i] < n) x[banned[i]] = -INFINITY;
}

bool sampler_takes_best(const sampler *s) {
    const sampling_params *p = &s->p;
    return p->temperature == 0 && !p->logprobs && !p->n_bias && p->repetition_penalty == 1 && p->presence_penalty == 0 &&
           p->frequency_penalty == 0 && p->dry_multiplier == 0;
}

/* Everything before the truncations.  best: the arg-max. */
static hd_status prepare(const sampler *s, const kernels *k, float *x, size_t n, const int32_t *history,
                         size_t n_history, const int32_t *banned, size_t n_banned, const uint32_t *mask,
                         const sampler_work *w, uint32_t *best, hd_err *err) {
    HD_ASSERT(n == s->n_vocab);
    if (!n) return hd_fail(err, HD_FAILED, "no logits to sample from");
    forbid(x, n, banned, n_banned, mask);
    penalties_apply(&s->p, x, n, history, n_history, w);
    *best = vec_argmax(k, x, n); /* NaN never wins */
    if (x[*best] == -INFINITY) return hd_fail(err, HD_FAILED, "every token is forbidden");
    if (!isfinite(x[*best])) return hd_fail(err, HD_FAILED, "the logits are not numbers");
    return HD_OK;
}

hd_status sampler_sample(const sampler *s, const kernels *k, float *logits, size_t n_vocab, const int32_t *history,
                         size_t n_history, uint64_t position, const int32_t *banned, size_t n_banned,
                         const uint32_t *mask, void *work, sample_result *out, hd_err *err) {
    const sampling_params *p = &s->p;
    double sum = NAN, lse = NAN;
    sampler_work w;
    uint32_t best = 0;
    hd_status st;
    sampler_work_layout(&w, work, n_vocab);
    out->id = -1;
    out->logprob = -INFINITY;
    out->n_top = 0;
    st = prepare(s, k, logits, n_vocab, history, n_history, banned, n_banned, mask, &w, &best, err);
    if (st) return st;
    if (p->logprobs) {
        sum = sum_of(k, logits, n_vocab, logits[best], 1);
        lse = (double)logits[best] + hd_logd(sum);
        logprobs_top(k, logits, n_vocab, lse, p->n_top_logprobs, out);
    }
    if (p->temperature == 0) {
        out->id = (int32_t)best;
    } else {
        cut c;
        truncate_run(&c, k, p, logits, n_vocab, logits[best], sum, position, &w);
        out->id =
            truncate_draw(&c, p->temperature, philox_uniform(p->seed, p->sample_index, position, PHILOX_SAMPLE), NULL);
    }
    if (p->logprobs) out->logprob = logprobs_of(logits[out->id], lse); /* the chosen logit was never cut */
    return HD_OK;
}

hd_status sampler_distribution(const sampler *s, const kernels *k, float *logits, size_t n_vocab,
                               const int32_t *history, size_t n_history, uint64_t position, const int32_t *banned,
                               size_t n_banned, const uint32_t *mask, void *work, double *probs, hd_err *err) {
    double sum = NAN;
    sampler_work w;
    uint32_t best = 0;
    hd_status st;
    cut c;
    sampler_work_layout(&w, work, n_vocab);
    st = prepare(s, k, logits, n_vocab, history, n_history, banned, n_banned, mask, &w, &best, err);
    if (st) return st;
    if (s->p.temperature == 0) {
        for (size_t i = 0; i < n_vocab; i++) probs[i] = i == best;
        return HD_OK;
    }
    if (s->p.logprobs) sum = sum_of(k, logits, n_vocab, logits[best], 1);
    truncate_run(&c, k, &s->p, logits, n_vocab, logits[best], sum, position, &w);
    truncate_draw(&c, s->p.temperature, 0, probs);
    return HD_OK;
}
