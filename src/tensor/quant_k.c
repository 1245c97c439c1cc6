/* quant_k.c - f32 to the blocks whose scales are a choice: K types, IQ4_NL, IQ4_XS.
 *
 * The format says how a block is read; writing one is a search for the integers that make
 *
 *     sum over i of  w[i] * (x[i] - value read back)^2,      w[i] = rms of the block + |x[i]|
 *
 * small.  (Large weights move the output more than their share, so they count more; without that the error in this
 * sum would be a little smaller and perplexity a little worse.)  Three steps, all deterministic:
 *
 *   1. per sub-block: try some grids, round, solve for the best real scale (and minimum), keep the best;
 *   2. per block: choose the half-precision factors so that the largest scale (minimum) gets the largest integer, then
 *      for each sub-block the integer scale (and minimum) among the nearest that has the least error with everything
 *      rounded;
 *   3. solve for the best real factors given all integers, repeat the second half of 2 with them, keep the better. */
#include "tensor/quant_int.h"

#include <math.h>

/* --- grids --- */

/* What a quant can stand for: the whole numbers lo..hi, or the IQ4 values. */
typedef struct {
    float lo, hi;
    bool iq4;
} grid;

/* Nearest whole number in [lo, hi], ties to even; NaN gives lo.  Adding 1.5 * 2^23 leaves no bits for a fraction. */
static float near(float v, float lo, float hi) {
    float t = v > lo ? v < hi ? v : hi : lo;
    return t + 12582912.0f - 12582912.0f;
}

/* The sums over a sub-block are what takes the time, and no compiler may reorder them: so four run side by side,
 * element i in lane i % 4, the same on every machine. */
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

static v4 load4(const float *p) {
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static v4 all4(float f) { return (v4){f, f, f, f}; }
static float sum4(v4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }
static v4 pick4(i4 mask, v4 yes, v4 no) { return (v4)((mask & (i4)yes) | (~mask & (i4)no)); }

static v4 near4(v4 v, v4 lo, v4 hi) {
    v4 big = all4(12582912.0f), t = pick4(v > lo, pick4(v < hi, v, hi), lo);
    return t + big - big;
}

/* Of the IQ4 values: twice the midpoints between neighbours, and their distances. */
static const float steps[15] = {23, 21, 18, 16, 14, 13, 12, 11, 12, 12, 13, 15, 16, 20, 24};
static const float twice_mid[15] = {-231, -187, -148, -114, -84, -57, -32, -9, 14, 38, 63, 91, 122, 158, 202};

/* The number of midpoints below v, by halving.  NaN gives 0. */
static int near_iq4(float v) {
    float v2 = 2 * v;
    int i = v2 > twice_mid[7] ? 8 : 0;
    i += v2 > twice_mid[i + 3] ? 4 : 0;
    i += v2 > twice_mid[i + 1] ? 2 : 0;
    return i + (v2 > twice_mid[i]);
}

static float near_on(const grid *g, float v) {
    return g->iq4 ? (float)block_iq4_values[near_iq4(v)] : near(v, g->lo, g->hi);
}

static v4 near4_on(const grid *g, v4 v) {
    if (!g->iq4) return near4(v, all4(g->lo), all4(g->hi));
    /* A step up at each midpoint below v; no branches and no table look-ups. */
    v4 twice = v + v, value = all4((float)block_iq4_values[0]);
    for (int k = 0; k < 15; k++) value += (v4)((twice > all4(twice_mid[k])) & (i4)all4(steps[k]));
    return value;
}

/* The stored number of the grid point next to v. */
static uint8_t index_on(const grid *g, float v) {
    return (uint8_t)(g->iq4 ? near_iq4(v) : (int)(near(v, g->lo, g->hi) - g->lo));
}

static float inverse(float d) { return d != 0 ? 1 / d : 0; }

static void weights(const float *x, float *w, int n) {
    float sum = 0, rms;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    rms = sqrtf(sum / (float)n);
    for (int i = 0; i < n; i++) w[i] = rms + fabsf(x[i]);
}

/* --- x[i] = s * q[i] with q on a grid around zero --- */

/* Round x * inv to the grid; the best scale for these quants and how much of sum w x^2 it explains. */
static float explained(const grid *g, const float *x, const float *w, int n, float inv, float *s) {
    v4 sxq = all4(0), sqq = all4(0);
    float xq, qq;
    for (int i = 0; i < n; i += 4) {
        v4 xi = load4(x + i), q = near4_on(g, xi * inv), wq = load4(w + i) * q;
        sxq += wq * xi;
        sqq += wq * q;
    }
    xq = sum4(sxq), qq = sum4(sqq);
    *s = qq > 0 ? xq / qq : 0;
    return *s * xq;
}

static void try_inverse(const grid *g, const float *x, const float *w, int n, float inv, float *gain, float *best) {
    float s, got = explained(g, x, w, n, inv, &s);
    if (got > *gain) *gain = got, *best = s;
}

static float fit_scale(const grid *g, const float *x, const float *w, int n) {
    float extreme = 0, gain = 0, best = 0, before;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    if (!(fabsf(extreme) > 0)) return 0;
    /* The extreme on the grid's long end, or up to 12 % beside it; on coarse grids the other end may win. */
    for (int t = -8; t <= 8; t++) {
        float shift = 1 + 0.015f * (float)t;
        try_inverse(g, x, w, n, g->lo * shift / extreme, &gain, &best);
        if (g->hi < 16 || g->iq4) try_inverse(g, x, w, n, g->hi * shift / extreme, &gain, &best);
    }
    do {
        before = gain;
        try_inverse(g, x, w, n, inverse(best), &gain, &best);
    } while (gain > before * 1.0001f);
    return best;
}

static float scale_error(const grid *g, const float *x, const float *w, int n, float s) {
    float inv = inverse(s);
    v4 err = all4(0);
    for (int i = 0; i < n; i += 4) {
        v4 xi = load4(x + i), e = xi - s * near4_on(g, xi * inv);
        err += load4(w + i) * e * e;
    }
    return sum4(err);
}

/* A block of n_sub sub-blocks, value d * scale[k] * quant. */
typedef struct {
    uint16_t d;
    int8_t scale[16];
    uint8_t q[256]; /* as stored */
    float err;
} scaled;

/* Given d: the best integer scale of each sub-block among the three nearest. */
static void choose_scales(const grid *g, const float *x, const float *w, int n_sub, const float *want, int lo, int hi,
                          float d_real, scaled *out) {
    int n = 256 / n_sub;
    float d, inv;
    out->d = float_to_half(d_real);
    d = half_to_float(out->d);
    inv = inverse(d);
    out->err = 0;
    for (int k = 0; k < n_sub; k++) {
        int mid = (int)near(want[k] * inv, (float)lo, (float)hi);
        float least = INFINITY;
        out->scale[k] = (int8_t)mid;
        for (int c = mid - 1; c <= mid + 1; c++) {
            float e;
            if (c < lo || c > hi) continue;
            e = scale_error(g, x + n * k, w + n * k, n, d * (float)c);
            if (e < least) least = e, out->scale[k] = (int8_t)c;
        }
        out->err += least;
    }
}

static void fit_scaled(const grid *g, const float *x, int n_sub, int lo, int hi, scaled *out) {
    int n = 256 / n_sub;
    float w[256], want[16], extreme = 0, d, xv = 0, vv = 0;
    scaled again;
    weights(x, w, 256);
    for (int k = 0; k < n_sub; k++) {
        want[k] = fit_scale(g, x + n * k, w + n * k, n);
        if (fabsf(want[k]) > fabsf(extreme)) extreme = want[k];
    }
    choose_scales(g, x, w, n_sub, want, lo, hi, extreme / (float)lo, out);
    d = half_to_float(out->d);
    for (int i = 0; i < 256; i++) {
        float s = (float)out->scale[i / n], v = s * near_on(g, x[i] * inverse(d * s));
        xv += w[i] * x[i] * v;
        vv += w[i] * v * v;
    }
    if (vv > 0) {
        choose_scales(g, x, w, n_sub, want, lo, hi, xv / vv, &again);
        if (again.err < out->err) *out = again;
    }
    d = half_to_float(out->d);
    for (int i = 0; i < 256; i++) out->q[i] = index_on(g, x[i] * inverse(d * (float)out->scale[i / n]));
}

/* --- x[i] = s * q[i] - m with q in 0..top, s and m not negative --- */

typedef struct {
    float s, m;
} affine;

static float affine_error(const float *x, const float *w, int n, float top, affine a) {
    float inv = inverse(a.s);
    v4 err = all4(0), zero = all4(0), most = all4(top);
    for (int i = 0; i < n; i += 4) {
        v4 xi = load4(x + i), e = xi - (a.s * near4((xi + a.m) * inv, zero, most) - a.m);
        err += load4(w + i) * e * e;
    }
    return sum4(err);
}

/* Round with `a`, then the best real scale and minimum for these quants. */
static affine affine_solve(const float *x, const float *w, int n, float top, affine a) {
    v4 zero = all4(0), most = all4(top), vw = zero, vx = zero, vq = zero, vqq = zero, vxq = zero;
    float inv = inverse(a.s), sw, sx, sq, sqq, sxq, det;
    for (int i = 0; i < n; i += 4) {
        v4 xi = load4(x + i), wi = load4(w + i), q = near4((xi + a.m) * inv, zero, most), wq = wi * q;
        vw += wi;
        vx += wi * xi;
        vq += wq;
        vqq += wq * q;
        vxq += wq * xi;
    }
    sw = sum4(vw), sx = sum4(vx), sq = sum4(vq), sqq = sum4(vqq), sxq = sum4(vxq);
    det = sw * sqq - sq * sq;
    if (!(det > 0)) return a;
    a.s = (sw * sxq - sx * sq) / det;
    a.m = (sq * a.s - sx) / sw;
    if (a.m < 0) a = (affine){sqq > 0 ? sxq / sqq : 0, 0};
    if (a.s < 0) a.s = 0;
    return a;
}

static affine fit_affine(const float *x, const float *w, int n, float top) {
    float min = 0, max = x[0], least = INFINITY;
    affine best = {0, 0};
    for (int i = 0; i < n; i++) {
        if (x[i] < min) min = x[i];
        if (x[i] > max) max = x[i];
    }
    if (!(max > min)) return (affine){0, -min};
    /* Grids a little finer and up to a quarter coarser than the range: ends may be cut where few values lie. */
    for (int t = -2; t <= 12; t++) {
        affine a = {(max - min) * (1 - 0.02f * (float)t) / top, -min};
        for (int pass = 0; pass < 2; pass++) {
            float e;
            a = affine_solve(x, w, n, top, a);
            e = affine_error(x, w, n, top, a);
            if (!(e < least)) break;
            least = e, best = a;
        }
    }
    return best;
}

typedef struct {
    uint16_t d, dmin;
    uint8_t scale[16], min[16], q[256];
    float err;
} ranged;

/* Given the factors: the best integers of each sub-block among the nearest 3 x 3. */
static void choose_ranges(const float *x, const float *w, int n_sub, const affine *want, float top, int most,
                          affine factors, ranged *out) {
    int n = 256 / n_sub;
    float d, dmin;
    out->d = float_to_half(factors.s), out->dmin = float_to_half(factors.m);
    d = half_to_float(out->d), dmin = half_to_float(out->dmin);
    out->err = 0;
    for (int k = 0; k < n_sub; k++) {
        int s0 = (int)near(want[k].s * inverse(d), 0, (float)most),
            m0 = (int)near(want[k].m * inverse(dmin), 0, (float)most);
        float least = INFINITY;
        out->scale[k] = (uint8_t)s0, out->min[k] = (uint8_t)m0;
        for (int c = 0; c < 9; c++) {
            int s = s0 + c % 3 - 1, m = m0 + c / 3 - 1;
            float e;
            if (s < 0 || s > most || m < 0 || m > most) continue;
            e = affine_error(x + n * k, w + n * k, n, top, (affine){d * (float)s, dmin * (float)m});
            if (e < least) least = e, out->scale[k] = (uint8_t)s, out->min[k] = (uint8_t)m;
        }
        out->err += least;
    }
}

static affine range_of(const ranged *r, int k) {
    return (affine){half_to_float(r->d) * (float)r->scale[k], half_to_float(r->dmin) * (float)r->min[k]};
}

static void fit_ranged(const float *x, int n_sub, float top, int most, ranged *out) {
    int n = 256 / n_sub;
    float w[256], aa = 0, ab = 0, bb = 0, ax = 0, bx = 0, det;
    affine want[16], factors = {0, 0};
    ranged again;
    weights(x, w, 256);
    for (int k = 0; k < n_sub; k++) {
        want[k] = fit_affine(x + n * k, w + n * k, n, top);
        if (want[k].s > factors.s) factors.s = want[k].s;
        if (want[k].m > factors.m) factors.m = want[k].m;
    }
    factors.s /= (float)most, factors.m /= (float)most;
    choose_ranges(x, w, n_sub, want, top, most, factors, out);
    /* x = d * a - dmin * b with a = scale * quant, b = min */
    for (int i = 0; i < 256; i++) {
        affine r = range_of(out, i / n);
        float a = (float)out->scale[i / n] * near((x[i] + r.m) * inverse(r.s), 0, top), b = (float)out->min[i / n];
        aa += w[i] * a * a, ab += w[i] * a * b, bb += w[i] * b * b;
        ax += w[i] * a * x[i], bx += w[i] * b * x[i];
    }
    det = aa * bb - ab * ab;
    if (det > 0)
        factors = (affine){(ax * bb - bx * ab) / det, (ax * ab - bx * aa) / det};
    else
        factors = (affine){aa > 0 ? ax / aa : 0, 0};
    if (factors.s >= 0 && factors.m >= 0) {
        choose_ranges(x, w, n_sub, want, top, most, factors, &again);
        if (again.err < out->err) *out = again;
    }
    for (int i = 0; i < 256; i++) {
        affine r = range_of(out, i / n);
        out->q[i] = (uint8_t)near((x[i] + r.m) * inverse(r.s), 0, top);
    }
}

/* --- the blocks --- */

/* Two bits of element 128n + 32j + l at bit 2j of byte 32n + l. */
static void put_pairs(const uint8_t q[256], uint8_t b[64]) {
    memset(b, 0, 64);
    for (int e = 0; e < 256; e++) b[e / 128 * 32 + e % 32] |= (uint8_t)((q[e] & 3) << e / 32 % 4 * 2);
}

/* Sub-blocks 2c and 2c + 1 in the low and high halves of 32 bytes. */
static void put_nibbles(const uint8_t q[256], uint8_t b[128]) {
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 32; l++) b[32 * c + l] = (uint8_t)((q[64 * c + l] & 15) | (q[64 * c + 32 + l] & 15) << 4);
}

void quant_q2_k(const float *x, uint8_t *b) {
    ranged r;
    fit_ranged(x, 16, 3, 15, &r);
    for (int k = 0; k < 16; k++) b[k] = (uint8_t)(r.scale[k] | r.min[k] << 4);
    put_pairs(r.q, b + 16);
    block_put_u16(b + 80, r.d);
    block_put_u16(b + 82, r.dmin);
}

void quant_q3_k(const float *x, uint8_t *b) {
    static const grid g = {-4, 3, false};
    uint8_t scale[16];
    scaled s;
    fit_scaled(&g, x, 16, -32, 31, &s);
    for (int k = 0; k < 16; k++) scale[k] = (uint8_t)(s.scale[k] + 32);
    memset(b, 0, 32);
    for (int e = 0; e < 256; e++) b[e % 32] |= (uint8_t)(s.q[e] >> 2 << e / 32);
    put_pairs(s.q, b + 32);
    block_q3_pack(b + 96, scale);
    block_put_u16(b + 108, s.d);
}

void quant_q4_k(const float *x, uint8_t *b) {
    ranged r;
    fit_ranged(x, 8, 15, 63, &r);
    block_put_u16(b, r.d);
    block_put_u16(b + 2, r.dmin);
    block_k4_pack(b + 4, r.scale, r.min);
    put_nibbles(r.q, b + 16);
}

void quant_q5_k(const float *x, uint8_t *b) {
    ranged r;
    fit_ranged(x, 8, 31, 63, &r);
    block_put_u16(b, r.d);
    block_put_u16(b + 2, r.dmin);
    block_k4_pack(b + 4, r.scale, r.min);
    memset(b + 16, 0, 32);
    for (int e = 0; e < 256; e++) b[16 + e % 32] |= (uint8_t)(r.q[e] >> 4 << e / 32);
    put_nibbles(r.q, b + 48);
}

void quant_q6_k(const float *x, uint8_t *b) {
    static const grid g = {-32, 31, false};
    scaled s;
    fit_scaled(&g, x, 16, -128, 127, &s);
    memset(b, 0, 192);
    for (int e = 0; e < 256; e++) {
        int n = e / 128, k = e / 32 % 4, l = e % 32;
        b[64 * n + 32 * (k % 2) + l] |= (uint8_t)((s.q[e] & 15) << k / 2 * 4);
        b[128 + 32 * n + l] |= (uint8_t)(s.q[e] >> 4 << 2 * k);
    }
    memcpy(b + 192, s.scale, 16);
    block_put_u16(b + 208, s.d);
}

static const grid iq4 = {-127, 113, true};

static void put_iq4(const uint8_t q[32], uint8_t b[16]) {
    for (int j = 0; j < 16; j++) b[j] = (uint8_t)(q[j] | q[j + 16] << 4);
}

void quant_iq4_nl(const float *x, uint8_t *b) {
    float w[32], inv;
    uint16_t d;
    uint8_t q[32];
    weights(x, w, 32);
    d = float_to_half(fit_scale(&iq4, x, w, 32));
    inv = inverse(half_to_float(d));
    for (int e = 0; e < 32; e++) q[e] = index_on(&iq4, x[e] * inv);
    block_put_u16(b, d);
    put_iq4(q, b + 2);
}

void quant_iq4_xs(const float *x, uint8_t *b) {
    uint16_t high = 0;
    scaled s;
    fit_scaled(&iq4, x, 8, -32, 31, &s);
    memset(b + 4, 0, 4);
    for (int k = 0; k < 8; k++) {
        int scale = s.scale[k] + 32;
        b[4 + k / 2] |= (uint8_t)((scale & 15) << k % 2 * 4);
        high = (uint16_t)(high | scale >> 4 << 2 * k);
        put_iq4(s.q + 32 * k, b + 8 + 16 * k);
    }
    block_put_u16(b, s.d);
    block_put_u16(b + 2, high);
}
