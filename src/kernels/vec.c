/* vec.c - the public vector calls, straight to the table. */
#include "kernels/vec_int.h"

#include <math.h>

void vec_rms_norm(const kernels *k, float *out, const float *x, const float *w, size_t n, float eps) {
    k->vec->rms_norm(out, x, w, n, eps);
}
void vec_add(const kernels *k, float *x, const float *y, size_t n) { k->vec->add(x, y, n); }
void vec_scale(const kernels *k, float *x, float s, size_t n) { k->vec->scale(x, s, n); }
void vec_silu_mul(const kernels *k, float *gate, const float *up, size_t n) { k->vec->silu_mul(gate, up, n); }
void vec_gelu_mul(const kernels *k, float *gate, const float *up, size_t n) { k->vec->gelu_mul(gate, up, n); }
void vec_softcap(const kernels *k, float *x, float cap, size_t n) { k->vec->softcap(x, cap, n); }
void vec_rope(const kernels *k, float *x, const float *cs, uint32_t n_rot, bool neox) {
    k->vec->rope(x, cs, n_rot, neox);
}
size_t vec_between(const kernels *k, const float *x, size_t n, float lo, float hi, uint32_t *ids) {
    return k->vec->between(x, n, lo, hi, ids);
}
void vec_turns(const kernels *k, float *cs, double pos, const double *freq, float scale, uint32_t n) {
    k->vec->turns(cs, pos, freq, scale, n);
}
uint32_t vec_argmax(const kernels *k, const float *x, size_t n) { return k->vec->argmax(x, n); }
double vec_sum_exp(const kernels *k, const float *x, size_t n, float ref, float t) { return k->vec->sum_exp(x, n, ref, t); }
double vec_logsumexp(const kernels *k, const float *x, size_t n) {
    float max = k->vec->max_of(x, n);
    double sum;
    if (isinf(max)) { /* rare: nothing finite, or +inf */
        for (size_t i = 0; i < n; i++)
            if (isnan(x[i])) return NAN;
        return max;
    }
    sum = k->vec->sum_exp(x, n, max, 1);
    return isnan(sum) ? NAN : (double)max + hd_logd(sum);
}
