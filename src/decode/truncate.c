/* truncate.c - which candidates are left, and the draw among them.
 *
 * Every truncation but typical keeps a run of the candidates in order (XTC removes from its front), so the state is a
 * pair of indices and only the top of the vocabulary is ever sorted (order.h).  Typical keeps another set: it sets the
 * rest to -inf and the order starts anew.  A weight is exp(logit - reference) in float32 by our own exp; sums of
 * weights are double, in order, or over the whole vocabulary by vec_sum_exp: fixed either way.
 *
 * top_p: Holtzman et al. 2020.  typical: Meister et al. 2023.  min_p: Nguyen et al. 2024.  XTC: p-e-w's published
 * sampler ("exclude top choices").  Definitions in docs/sampling.md. */
#include "decode/sampler_int.h"

#include "base/philox.h"

#include <math.h>

/* Probabilities reach a bound a little early, so that rounding of 0.1 or of a sum cannot move a cut between equals:
 * half of four equal tokens is two of them. */
static const double REACH = 1 - 0x1p-20;

static void reorder(cut *c, const float *x, float max) {
    const sampler_work *w = c->w;
    c->o = (order){.k = c->k, .x = x, .n = c->n, .max = max, .c = w->c, .tmp = w->tmp, .ids = w->ids, .hist = w->hist};
    order_begin(&c->o);
}

double sum_of(const kernels *k, float *x, size_t n, float ref, float t) {
    double sum = vec_sum_exp(k, x, n, ref, t);
    if (!isnan(sum)) return sum;
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i])) x[i] = -INFINITY;
    return vec_sum_exp(k, x, n, ref, t);
}

/* Candidate number i exists and is not cut off. */
static bool has(cut *c, size_t i) { return (c->open || i < c->b) && order_has(&c->o, i); }
static void cut_at(cut *c, size_t b) {
    c->b = b;
    c->open = false;
}
static float value(const cut *c, size_t i) { return order_value(c->o.c[i]); }
/* Relative to the best one of the order. */
static double weight(const cut *c, size_t i) { return (double)hd_expf(value(c, i) - c->o.max); }

/* Sum of weight() over what is left; nothing was removed from the front yet. */
static double total(cut *c) {
    double sum = 0;
    if (c->open) {
        if (isnan(c->sum)) c->sum = sum_of(c->k, c->x, c->n, c->o.max, 1);
        return c->sum;
    }
    for (size_t i = 0; i < c->b; i++) sum += weight(c, i);
    return sum;
}

/* The shortest run from the front whose probability is at least p; never empty. */
static void top_p(cut *c, float p) {
    double want = (double)p * total(c) * REACH, sum = 0;
    for (size_t i = 0; has(c, i); i++) {
        sum += weight(c, i);
        if (sum >= want) {
            cut_at(c, i + 1);
            return;
        }
    }
}

/* Keep the shortest run, by |surprise - entropy| ascending, whose probability is at least p.  With surprise
 * lse - x and entropy lse - E[x], that distance is |x - E[x]|: nearest to the mean logit first.  Distances are float32;
 * equal ones go by id. */
static void typical(cut *c, float p) {
    float *y = c->w->y, max = c->o.max, near = -INFINITY;
    double sum = 0, mean = 0, want, got = 0;
    size_t kept = 0;
    if (!c->open) { /* only what is left counts from here */
        for (size_t i = 0; i < c->n; i++) c->x[i] = -INFINITY;
        for (size_t i = 0; i < c->b; i++) c->x[order_id(c->o.c[i])] = value(c, i);
    }
    for (size_t i = 0; i < c->n; i++) {
        double w;
        if (!(c->x[i] > -INFINITY)) continue;
        w = (double)hd_expf(c->x[i] - max);
        sum += w;
        mean += w * (double)c->x[i];
    }
    mean /= sum;
    for (size_t i = 0; i < c->n; i++) {
        y[i] = c->x[i] > -INFINITY ? -(float)fabs((double)c->x[i] - mean) : -INFINITY;
        if (y[i] > near) near = y[i];
    }
    reorder(c, y, near);
    for (want = (double)p * sum * REACH; order_has(&c->o, kept);) {
        got += (double)hd_expf(c->x[order_id(c->o.c[kept++])] - max);
        if (got >= want) break;
    }
    for (size_t i = 0; i < kept; i++) { /* y is done with as a whole: it carries the kept logits over */
        uint32_t id = order_id(c->o.c[i]);
        y[id] = c->x[id];
    }
    for (size_t i = 0; i < c->n; i++) c->x[i] = -INFINITY;
    max = -INFINITY;
    for (size_t i = 0; i < kept; i++) {
        uint32_t id = order_id(c->o.c[i]);
        c->x[id] = y[id];
        if (y[id] > max) max = y[id];
    }
    reorder(c, c->x, max);
    c->open = true;
    c->sum = NAN;
}

/* Keep what has at least p times the probability of the best. */
static void min_p(cut *c, float p) {
    for (size_t i = 0; has(c, i); i++)
        if (weight(c, i) < (double)p * REACH) {
            cut_at(c, i);
            return;
        }
}

/* If several reach the threshold, remove all of them but the last. */
static void xtc(cut *c, float threshold) {
    double want = (double)threshold * total(c) * REACH;
    size_t n = 0;
    for (; has(c, n); n++) {
        double w = weight(c, n);
        if (w < want || w == 0) break;
    }
    if (n > 1) c->a = n - 1;
}

static void top_k(cut *c, uint32_t k) {
    if (has(c, c->a + k)) cut_at(c, c->a + k);
}

void truncate_run(cut *c, const kernels *k, const sampling_params *p, float *x, size_t n, float max, double sum,
                  uint64_t position, const sampler_work *w) {
    *c = (cut){.k = k, .x = x, .n = n, .open = true, .w = w, .sum = sum};
    reorder(c, x, max);
    if (p->top_p < 1) top_p(c, p->top_p);
    if (p->typical_p < 1) typical(c, p->typical_p);
    if (p->min_p > 0) min_p(c, p->min_p);
    if (p->xtc_probability > 0 &&
        philox_uniform(p->seed, p->sample_index, position, PHILOX_XTC) < (double)p->xtc_probability)
        xtc(c, p->xtc_threshold);
    if (p->top_k) top_k(c, p->top_k);
}

int32_t truncate_draw(cut *c, float temperature, double u, double *probs) {
    double sum = 0, z = 0, target;
    size_t last = c->a;
    float ref;
    order_has(&c->o, c->a);
    ref = value(c, c->a);
    if (c->open) { /* the sum is over the whole vocabulary: not in order, but vectorised */
        for (size_t i = 0; i < c->a; i++) c->x[order_id(c->o.c[i])] = -INFINITY;
        z = c->a || temperature != 1 || isnan(c->sum) ? sum_of(c->k, c->x, c->n, ref, temperature) : c->sum;
    } else {
        for (size_t i = c->a; i < c->b; i++) z += (double)hd_expf((value(c, i) - ref) / temperature);
    }
    if (probs) {
        for (size_t i = 0; i < c->n; i++) probs[i] = 0;
        for (size_t i = c->a; has(c, i); i++)
            probs[order_id(c->o.c[i])] = (double)hd_expf((value(c, i) - ref) / temperature) / z;
    }
    target = u * z;
    for (size_t i = c->a; has(c, i); i++) {
        double w = (double)hd_expf((value(c, i) - ref) / temperature);
        sum += w;
        if (w > 0) last = i; /* should rounding leave the walk short of target, the last possible one is it */
        if (sum > target) break;
    }
    return (int32_t)order_id(c->o.c[last]);
}
