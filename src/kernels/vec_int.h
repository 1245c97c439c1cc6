/* vec_int.h - the table of vector operations; kernels.h says what each one does. */
#ifndef HD_KERNELS_VEC_INT_H
#define HD_KERNELS_VEC_INT_H

#include "kernels/kernels_int.h"

struct vec_ops {
    void (*rms_norm)(float *out, const float *x, const float *w, size_t n, float eps);
    void (*add)(float *x, const float *y, size_t n);
    void (*scale)(float *x, float s, size_t n);
    void (*silu_mul)(float *gate, const float *up, size_t n);
    void (*gelu_mul)(float *gate, const float *up, size_t n);
    void (*softcap)(float *x, float cap, size_t n);
    void (*rope)(float *x, const float *cs, uint32_t n_rot, bool neox);
    void (*turns)(float *cs, double pos, const double *freq, float scale, uint32_t n);
    uint32_t (*argmax)(const float *x, size_t n);
    double (*sum_exp)(const float *x, size_t n, float ref, float t);
    float (*max_of)(const float *x, size_t n); /* of what is not NaN; -inf if there is nothing */
    size_t (*between)(const float *x, size_t n, float lo, float hi, uint32_t *ids);
};

extern const vec_ops vec_generic;
#if HD_HAVE_AVX2
extern const vec_ops vec_avx2;
#endif
#if HD_HAVE_NEON
extern const vec_ops vec_neon;
#endif

#endif
