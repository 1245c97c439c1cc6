/* test_attention.c - attention over pages: against naive double precision, and the same bits for every kernel set, page
 * size, chunk, group split and window, with everything that must not be read poisoned or absent. */
#include "base/mem.h"
#include "base/philox.h"
#include "kernels/kernels.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#ifdef TEST_FEW
enum { EVERY = 5 }; /* emulated processors are slow: one of so many cases */
#else
enum { EVERY = 1 };
#endif

static const kernels *set_generic, *set_fast; /* set_fast: the best there is, or NULL when that is generic */

static float rnd(uint32_t a, uint32_t b) { /* about normal */
    uint32_t ctr[4] = {a, b, 0, 0}, key[2] = {17, 5}, out[4];
    double s = 0;
    philox4x32(ctr, key, out);
    for (int j = 0; j < 4; j++) s += out[j] * 0x1p-32;
    return (float)((s - 2) * 1.7);
}
static float key_at(uint32_t pos, uint32_t d) { return rnd(pos, d); }
static float value_at(uint32_t pos, uint32_t d) { return rnd(pos, d + 10000); }
static float query_at(uint32_t pos, uint32_t h, uint32_t d) { return rnd(pos, 20000 + h * 600 + d); }

/* ---- what each scheme keeps, written down a second time ---- */

static uint32_t lesser(uint32_t a, uint32_t b) { return a < b ? a : b; }

static double half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return (double)half_to_float(h);
}

/* The value of dimension d of the position in `slot`, out of a K (or V) region as kv_int.h draws it. */
static double read_back(const kv_shape *s, const uint8_t *region, bool is_v, uint32_t slot, uint32_t d) {
    uint32_t hd = s->head_dim, pt = s->page_tokens, b = lesser(16, pt), chunk = d / 16, in_chunk = d % 16;
    uint32_t width = lesser(16, hd - chunk * 16), block = d / 32, in_block = d % 32, n_blocks = (hd + 31) / 32;
    size_t i = is_v ? (size_t)chunk * 16 * pt + slot * width + in_chunk : ((size_t)(slot / b) * hd + d) * b + slot % b;
    float x;
    uint32_t bits;
    switch (s->scheme) {
    case KV_F32: return memcpy(&x, region + 4 * i, 4), (double)x;
    case KV_F16: return half_at(region + 2 * i);
    case KV_BF16: return bits = (uint32_t)(region[2 * i] | region[2 * i + 1] << 8) << 16, memcpy(&x, &bits, 4), (double)x;
    default: break;
    }
    bool q8 = s->scheme == KV_Q8;
    if (is_v) {
        const uint8_t *at = region + (size_t)block * (q8 ? 34 : 18) * pt;
        double scale = half_at(at + 2 * slot);
        at += 2 * (size_t)pt + (chunk % 2) * (q8 ? 16 : 8) * (size_t)pt;
        if (q8) return scale * (int8_t)at[slot * width + in_chunk];
        return scale * ((at[slot * 8 + in_chunk % 8] >> in_chunk / 8 * 4 & 15) - 8);
    }
    const uint8_t *at = region + (size_t)(slot / b) * b * ((q8 ? hd : hd / 2) + 2 * n_blocks) + (size_t)block * (q8 ? 34 : 18) * b;
    uint32_t in = lesser(32, hd - block * 32);
    double scale = half_at(at + (size_t)(q8 ? in : in / 2) * b + 2 * (slot % b));
    if (q8) return scale * (int8_t)at[(size_t)in_block * b + slot % b];
    return scale * ((at[(size_t)in_block / 2 * b + slot % b] >> in_block % 2 * 4 & 15) - 8);
}

/* x[0..n) by the signed Hadamard matrices of 32, 16 and 8 that q4 turns blocks by, in or back. */
static double turn_sign(uint32_t i) { return ((i & i >> 1) ^ (i >> 2 & i >> 3)) & 1 ? -1 : 1; }
static void turn(double *x, uint32_t n, bool in) {
    for (uint32_t at = 0, w; at < n; at += w) {
        double y[32];
        w = n - at >= 32 ? 32 : n - at >= 16 ? 16 : 8;
        for (uint32_t i = 0; i < w; i++) {
            y[i] = 0;
            for (uint32_t j = 0; j < w; j++) y[i] += x[at + j] * (__builtin_popcount(i & j) % 2 ? -1 : 1) * (in ? turn_sign(j) : turn_sign(i));
        }
        for (uint32_t i = 0; i < w; i++) x[at + i] = y[i] * (w == 32 ? in ? 0.125 : 0.25 : w == 16 ? 0.25 : in ? 0.25 : 0.5);
    }
}

/* All of a position's K or V, as an attention must see it. */
static void read_position(const kv_shape *s, const uint8_t *region, bool is_v, uint32_t slot, double *out) {
    for (uint32_t d = 0; d < s->head_dim; d++) out[d] = read_back(s, region, is_v, slot, d);
    if (s->scheme == KV_Q4) turn(out, s->head_dim, false);
}

/* The nearest number with so many significant bits, ties to even: f16 has 11, bf16 8, where nothing is denormal. */
static double nearest(double x, int bits) {
    int e;
    double m = frexp(x, &e);
    return ldexp(nearbyint(ldexp(m, bits)), e - bits);
}

static double cut(double x, double min, double max) { return fmax(min, fmin(max, x)); }

/* q8: the scale is the largest magnitude / 127 as f16, the integers are rounded by it. */
static void keep_q8(const float *x, uint32_t n, double *out) {
    float max = 0, d, inv;
    for (uint32_t i = 0; i < n; i++) max = fmaxf(max, fabsf(x[i]));
    d = (float)nearest((double)(max / 127), 11);
    inv = 1 / d;
    for (uint32_t i = 0; i < n; i++) out[i] = (double)d * cut(nearbyint((double)x[i] * (double)inv), -127, 127);
}

/* q4: of four steps the one that leaves the smallest squared error with its best factor. */
static void keep_q4(const float *x, uint32_t n, double *out) {
    static const double fractions[] = {-8, -8.6, -9.4, -7.4};
    double extreme = 0, least = INFINITY, d = 0;
    for (uint32_t i = 0; i < n; i++)
        if (fabs((double)x[i]) > fabs(extreme)) extreme = (double)x[i];
    for (int f = 0; f < 4; f++) {
        double xw = 0, ww = 0, err = 0;
        for (uint32_t i = 0; i < n; i++) {
            double w = cut(nearbyint((double)x[i] * fractions[f] / extreme), -8, 7);
            xw += (double)x[i] * w;
            ww += w * w;
        }
        for (uint32_t i = 0; i < n; i++) {
            double e = (double)x[i] - cut(nearbyint((double)x[i] * fractions[f] / extreme), -8, 7) * xw / ww;
            err += e * e;
        }
        if (err < least) least = err, d = xw / ww;
    }
    d = nearest(d, 11);
    for (uint32_t i = 0; i < n; i++) out[i] = d * cut(nearbyint((double)x[i] / d), -8, 7);
}

/* ---- a row's pages ---- */

typedef struct {
    kv_shape shape;
    size_t k_off, v_off, bytes;
    uint32_t n_pages;
    void **pages;
} row;

/* Positions [from, n) stored; pages wholly before `from` are absent; all other bytes are NaN. */
static row row_new(const kernels *k, kv_shape shape, uint32_t from, uint32_t n) {
    row r = {.shape = shape, .k_off = 64, .v_off = 128 + kv_head_bytes(&shape)};
    float key[512], value[512];
    r.bytes = r.v_off + kv_head_bytes(&shape) + 64;
    r.n_pages = (n + shape.page_tokens - 1) / shape.page_tokens;
    r.pages = hd_calloc(r.n_pages + 1, sizeof *r.pages);
    assert_non_null(r.pages);
    for (uint32_t i = from / shape.page_tokens; i < r.n_pages; i++) {
        assert_non_null(r.pages[i] = hd_alloc_aligned(64, r.bytes));
        memset(r.pages[i], 0xff, r.bytes);
    }
    for (uint32_t p = from; p < n; p++) {
        for (uint32_t d = 0; d < shape.head_dim; d++) {
            key[d] = key_at(p, d);
            value[d] = value_at(p, d);
        }
        kv_store(k, &shape, r.pages[p / shape.page_tokens], r.k_off, r.v_off, p % shape.page_tokens, key, value);
    }
    return r;
}

static void row_free(row *r) {
    for (uint32_t i = 0; i < r->n_pages; i++) hd_free_aligned(r->pages[i]);
    hd_free(r->pages);
}

/* ---- a case: what is asked, answered in one call or in many ---- */

typedef struct {
    uint32_t head_dim, group, pos0, n_q, kv_end, window;
    float softcap;
    bool sinks;
    kv_scheme type;
} ask;

static const float sink_values[16] = {0.5f, -1, 2, 0, 1.5f, 3, -2, 0.25f, 1, 0.1f, 0.2f, 0.3f, 4, -4, 5, 0};

static uint32_t ask_end(const ask *a) { return a->kv_end ? a->kv_end : a->pos0 + a->n_q; }
static uint32_t ask_begin(const ask *a) { return a->window && a->pos0 >= a->window ? a->pos0 - a->window + 1 : 0; }

/* out[n_q][group][head_dim], asked in pieces of dq queries and dh heads. */
static float *answer(const kernels *k, const ask *a, uint32_t page_tokens, uint32_t dq, uint32_t dh) {
    kv_shape shape = {a->head_dim, page_tokens, a->type};
    row r = row_new(k, shape, ask_begin(a), ask_end(a));
    size_t stride = (size_t)a->group * a->head_dim, n = a->n_q * stride;
    float *q = hd_alloc_aligned(64, (n + stride) * sizeof *q), *out = hd_alloc_aligned(64, (n + 1) * sizeof *out);
    void *scratch = hd_alloc_aligned(64, attn_scratch_bytes(ask_end(a), a->group));
    assert_true(q && out && scratch);
    for (uint32_t i = 0; i < a->n_q; i++)
        for (uint32_t h = 0; h < a->group; h++)
            for (uint32_t d = 0; d < a->head_dim; d++)
                q[i * stride + h * a->head_dim + d] = query_at(a->pos0 + i, h, d);
    for (size_t i = 0; i < n; i++) out[i] = NAN;
    out[n] = 77;
    for (uint32_t i = 0; i < a->n_q; i += dq)
        for (uint32_t h = 0; h < a->group; h += dh) {
            memset(scratch, 0xff, attn_scratch_bytes(ask_end(a), a->group)); /* nothing may live there between calls */
            attn_job job = {
                .shape = shape,
                .pages = (const void *const *)r.pages,
                .k_off = r.k_off,
                .v_off = r.v_off,
                .n_group = a->group - h < dh ? a->group - h : dh,
                .q = q + i * stride + h * a->head_dim,
                .out = out + i * stride + h * a->head_dim,
                .ldq = stride,
                .ldout = stride,
                .pos0 = a->pos0 + i,
                .n_q = a->n_q - i < dq ? a->n_q - i : dq,
                .kv_end = a->kv_end,
                .window = a->window,
                .announced = i + h > 0,
                .scale = 1 / sqrtf((float)a->head_dim),
                .softcap = a->softcap,
                .sinks = a->sinks ? sink_values + h : NULL,
            };
            if (h + dh < a->group || i + dq < a->n_q) /* what comes next must not show either */
                job.next = (attn_next){job.pages, r.k_off, r.v_off, a->pos0 + i + (h + dh < a->group ? 0 : dq)};
            attn_run(k, &job, scratch);
        }
    assert_true(out[n] == 77);
    hd_free_aligned(scratch);
    hd_free_aligned(q);
    row_free(&r);
    return out;
}

/* Against the softmax in double over what the pages hold. */
static void check_double(const ask *a, const float *out) {
    uint32_t end = ask_end(a), begin = ask_begin(a), hd = a->head_dim;
    double *k = hd_reallocarray(NULL, (size_t)end * hd, sizeof *k), *v = hd_reallocarray(NULL, (size_t)end * hd, sizeof *v);
    kv_shape shape = {hd, 32, a->type};
    row r = row_new(set_generic, shape, begin, end);
    assert_true(k && v);
    for (uint32_t j = begin; j < end; j++) {
        const uint8_t *page = r.pages[j / shape.page_tokens];
        read_position(&shape, page + r.k_off, false, j % shape.page_tokens, k + (size_t)j * hd);
        read_position(&shape, page + r.v_off, true, j % shape.page_tokens, v + (size_t)j * hd);
    }
    row_free(&r);
    for (uint32_t i = 0; i < a->n_q; i++)
        for (uint32_t h = 0; h < a->group; h++) {
            uint32_t p = a->pos0 + i, hi = a->kv_end ? a->kv_end : p + 1, lo = 0;
            static double w[5000];
            double want[512] = {0}, max = -INFINITY, sum = 0;
            if (a->window && p + 1 > a->window) lo = p + 1 - a->window;
            for (uint32_t j = lo; j < hi; j++) {
                double s = 0;
                for (uint32_t d = 0; d < hd; d++) s += (double)query_at(p, h, d) * k[(size_t)j * hd + d];
                s *= (double)(1 / sqrtf((float)hd));
                if (a->softcap > 0) s = (double)a->softcap * tanh(s / (double)a->softcap);
                w[j] = s;
                max = fmax(max, s);
            }
            if (a->sinks) max = fmax(max, (double)sink_values[h]);
            for (uint32_t j = lo; j < hi; j++) {
                sum += w[j] = exp(w[j] - max);
                for (uint32_t d = 0; d < hd; d++) want[d] += w[j] * v[(size_t)j * hd + d];
            }
            if (a->sinks) sum += exp((double)sink_values[h] - max);
            for (uint32_t d = 0; d < hd; d++) {
                double got = (double)out[(i * a->group + h) * hd + d], w_d = lo < hi ? want[d] / sum : 0;
                if (!(fabs(got - w_d) <= 2e-6))
                    fail_msg("%s hd %u group %u pos %u head %u dim %u: got %.9g, want %.9g", kv_scheme_name(a->type), hd,
                             a->group, p, h, d, got, w_d);
            }
        }
    hd_free(k);
    hd_free(v);
}

static void same(const ask *a, const float *x, const float *y, const char *what, uint32_t arg) {
    for (size_t i = 0; i < (size_t)a->n_q * a->group * a->head_dim; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0)
            fail_msg("%s %u: %s hd %u group %u pos0 %u n_q %u end %u window %u: element %zu is %.9g, was %.9g", what, arg,
                     kv_scheme_name(a->type), a->head_dim, a->group, a->pos0, a->n_q, a->kv_end, a->window, i,
                     (double)y[i], (double)x[i]);
}

static const ask cases[] = {
    /* decode at several depths and groups */
    {.head_dim = 64, .group = 1, .pos0 = 0, .n_q = 1, .type = KV_F16},
    {.head_dim = 64, .group = 3, .pos0 = 255, .n_q = 1, .type = KV_F16},
    {.head_dim = 64, .group = 4, .pos0 = 700, .n_q = 1, .type = KV_F16},
    {.head_dim = 128, .group = 8, .pos0 = 515, .n_q = 1, .type = KV_F16},
    {.head_dim = 256, .group = 2, .pos0 = 300, .n_q = 1, .type = KV_F32},
    {.head_dim = 80, .group = 5, .pos0 = 97, .n_q = 1, .type = KV_F16},
    {.head_dim = 96, .group = 7, .pos0 = 31, .n_q = 2, .type = KV_F16},
    /* prefill and verify segments */
    {.head_dim = 64, .group = 3, .pos0 = 0, .n_q = 37, .type = KV_F16},
    {.head_dim = 64, .group = 4, .pos0 = 250, .n_q = 70, .type = KV_F16},
    {.head_dim = 128, .group = 1, .pos0 = 9, .n_q = 50, .type = KV_F32},
    {.head_dim = 512, .group = 2, .pos0 = 250, .n_q = 9, .type = KV_F16},
    {.head_dim = 64, .group = 16, .pos0 = 12, .n_q = 5, .type = KV_F16},
    /* head widths that leave half a vector */
    {.head_dim = 8, .group = 2, .pos0 = 40, .n_q = 3, .type = KV_F16},
    {.head_dim = 24, .group = 3, .pos0 = 250, .n_q = 13, .type = KV_F32},
    {.head_dim = 72, .group = 1, .pos0 = 20, .n_q = 8, .type = KV_F16},
    /* windows: shorter than the segment, across block ends, larger than the context */
    {.head_dim = 64, .group = 4, .pos0 = 600, .n_q = 40, .window = 33, .type = KV_F16},
    {.head_dim = 32, .group = 2, .pos0 = 500, .n_q = 30, .window = 300, .type = KV_F32},
    {.head_dim = 64, .group = 1, .pos0 = 900, .n_q = 1, .window = 512, .type = KV_F16},
    {.head_dim = 64, .group = 2, .pos0 = 70, .n_q = 5, .window = 1, .type = KV_F16},
    {.head_dim = 64, .group = 2, .pos0 = 70, .n_q = 5, .window = 4000, .type = KV_F16},
    /* bidirectional, with and without a window, also one that sees nothing */
    {.head_dim = 64, .group = 2, .pos0 = 0, .n_q = 45, .kv_end = 45, .type = KV_F16},
    {.head_dim = 64, .group = 3, .pos0 = 260, .n_q = 20, .kv_end = 280, .window = 100, .type = KV_F16},
    {.head_dim = 16, .group = 2, .pos0 = 30, .n_q = 10, .kv_end = 34, .window = 3, .type = KV_F16},
    /* softcap and sinks */
    {.head_dim = 64, .group = 2, .pos0 = 280, .n_q = 6, .softcap = 1.5f, .type = KV_F16},
    {.head_dim = 64, .group = 8, .pos0 = 300, .n_q = 3, .window = 128, .sinks = true, .type = KV_F16},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void against_double(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c += EVERY)
        for (int t = KV_F16; t < KV_SCHEMES; t++) {
            ask a = cases[c];
            if (t >= KV_BF16) a.type = (kv_scheme)t;
            else if (a.type != (kv_scheme)t) continue;
            float *out = answer(set_generic, &a, 64, a.n_q, a.group);
            check_double(&a, out);
            hd_free_aligned(out);
        }
}

static void sets_agree_and_nothing_else_matters(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES * 4; c += EVERY) {
        ask own = cases[c / 4], *a = &own;
        static const kv_scheme schemes[] = {KV_DEFAULT, KV_BF16, KV_Q8, KV_Q4};
        if (c % 4) own.type = schemes[c % 4];
        float *base = answer(set_generic, a, 64, a->n_q, a->group);
        for (int s = 0; s < 2; s++) {
            const kernels *k = s ? set_fast : set_generic;
            static const uint32_t page_sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
            static const uint32_t chunks[] = {1, 2, 3, 7, 16, 31};
            if (!k) continue;
            for (size_t i = 0; i < sizeof page_sizes / sizeof *page_sizes; i++) {
                if (!s && page_sizes[i] != 2 && page_sizes[i] != 128) continue; /* the plain one is slow */
                float *x = answer(k, a, page_sizes[i], a->n_q, a->group);
                same(a, base, x, "page size", page_sizes[i]);
                hd_free_aligned(x);
            }
            for (size_t i = 0; s && i < sizeof chunks / sizeof *chunks; i++) {
                if (chunks[i] >= a->n_q) continue;
                float *x = answer(k, a, i % 2 ? 64 : 16, chunks[i], a->group);
                same(a, base, x, "chunk", chunks[i]);
                hd_free_aligned(x);
            }
            for (uint32_t dh = 1; s && dh < a->group; dh += dh < 3 ? 1 : 3) {
                float *x = answer(k, a, 64, a->n_q, dh);
                same(a, base, x, "heads", dh);
                hd_free_aligned(x);
            }
        }
        hd_free_aligned(base);
    }
    assert_int_equal(hd_mem_live(), 0);
}

/* Random asks: the fast set against the definition. */
static void random_asks(void **state) {
    (void)state;
    if (!set_fast) {
        print_message("skipped: this CPU has no kernel set beside generic\n");
        skip();
    }
    for (uint32_t t = 0; t < 240 / EVERY; t++) {
        uint32_t ctr[4] = {t, 99, 0, 0}, key[2] = {1, 2}, r[4];
        philox4x32(ctr, key, r);
        ask a = {.head_dim = 8 * (1 + r[0] % 12), .group = 1 + r[0] / 16 % 9, .pos0 = r[1] % 700,
                 .n_q = 1 + r[2] % (t % 4 ? 4 : 60), .type = (kv_scheme)(KV_F16 + r[0] / 256 % (KV_SCHEMES - KV_F16))};
        if (r[3] / 2 % 3 == 0) a.window = 1 + r[3] / 8 % 400;
        if (r[3] / 2 % 5 == 0) a.kv_end = a.pos0 + r[3] / 16 % a.n_q + 1;
        if (r[3] / 2 % 7 == 0) a.softcap = 20;
        float *x = answer(set_generic, &a, 1u << r[3] / 64 % 8, a.n_q, a.group);
        float *y = answer(set_fast, &a, 1u << r[3] / 512 % 8, 1 + r[2] / 64 % a.n_q, 1 + r[2] / 8192 % a.group);
        same(&a, x, y, "random", t);
        hd_free_aligned(x);
        hd_free_aligned(y);
    }
}

/* What is stored of random keys and values, in every kind of page and by every set, against a second writing of the rules:
 * the same, but for q4, where f32 sums may pick another step of nearly the same error. */
static void schemes_keep_what_they_say(void **state) {
    const kernels *sets[] = {set_generic, set_fast};
    static const uint32_t head_dims[] = {8, 16, 24, 32, 40, 64, 72, 128};
    (void)state;
    for (int t = KV_F16; t < KV_SCHEMES; t++)
        for (size_t h = 0; h < sizeof head_dims / sizeof *head_dims; h++)
            for (uint32_t page_tokens = 1; page_tokens <= 128; page_tokens *= 2) {
                kv_shape shape = {head_dims[h], page_tokens, (kv_scheme)t};
                row r[2] = {row_new(set_generic, shape, 0, 70), row_new(sets[1] ? sets[1] : sets[0], shape, 0, 70)};
                for (uint32_t i = 0; i < r[0].n_pages; i++) assert_memory_equal(r[0].pages[i], r[1].pages[i], r[0].bytes);
                for (uint32_t p = 0; p < 70; p++)
                    for (int is_v = 0; is_v < 2; is_v++)
                        for (uint32_t d = 0; d < shape.head_dim; d += 32) {
                            const uint8_t *region = (const uint8_t *)r[0].pages[p / page_tokens] + (is_v ? r[0].v_off : r[0].k_off);
                            uint32_t n = lesser(32, shape.head_dim - d);
                            float x[32];
                            double want[32], err = 0, err_want = 0, size = 0;
                            for (uint32_t i = 0; i < n; i++) want[i] = is_v ? (double)value_at(p, d + i) : (double)key_at(p, d + i);
                            if (t == KV_Q4) turn(want, n, true);
                            for (uint32_t i = 0; i < n; i++) {
                                x[i] = (float)want[i];
                                want[i] = t == KV_F32 ? (double)x[i] : nearest((double)x[i], t == KV_F16 ? 11 : 8);
                            }
                            if (t == KV_Q8) keep_q8(x, n, want);
                            if (t == KV_Q4) keep_q4(x, n, want);
                            for (uint32_t i = 0; i < n; i++) {
                                double got = read_back(&shape, region, is_v, p % page_tokens, d + i);
                                if (t != KV_Q4) assert_true(got == want[i]);
                                err += (got - (double)x[i]) * (got - (double)x[i]);
                                size += (double)x[i] * (double)x[i];
                                err_want += (want[i] - (double)x[i]) * (want[i] - (double)x[i]);
                            }
                            if (t == KV_Q4) assert_true(err <= err_want * 1.01 + 1e-4 * size);
                        }
                row_free(&r[0]);
                row_free(&r[1]);
            }
}

/* Blocks of zeros, tiny and huge values, infinities and NaN: the same bytes from every set, and NaN or what the rules say. */
static void schemes_meet_odd_values(void **state) {
    const kernels *sets[] = {set_generic, set_fast};
    static const float odd[] = {0, -0.0f, 1e-45f, 1e-38f, 1e-20f, 1e-7f, 3e-6f, -1e-5f, 65504, -8e6f, 9e6f, 1e20f, -3e38f, INFINITY, -INFINITY,
                                NAN};
    (void)state;
    for (int t = KV_F16; t < KV_SCHEMES; t++)
        for (size_t o = 0; o < sizeof odd / sizeof *odd; o++)
            for (int alone = 0; alone < 2; alone++) {
                kv_shape shape = {64, 16, (kv_scheme)t};
                size_t half = kv_head_bytes(&shape);
                uint8_t *page[2];
                float x[64];
                for (int d = 0; d < 64; d++) x[d] = alone ? 0 : 0.01f * (float)(d - 30);
                x[5] = odd[o];
                for (int s = 0; s < 2; s++) {
                    assert_non_null(page[s] = hd_alloc_aligned(64, 2 * half));
                    memset(page[s], 0, 2 * half);
                    kv_store(sets[s] ? sets[s] : sets[0], &shape, page[s], 0, half, 3, x, x);
                }
                assert_memory_equal(page[0], page[1], 2 * half);
                for (int is_v = 0; is_v < 2; is_v++) {
                    double all[64];
                    read_position(&shape, page[0] + (is_v ? half : 0), is_v, 3, all);
                    for (uint32_t d = 0; d < 64; d++) {
                        double got = all[d], want = (double)x[d];
                        bool block = t == KV_Q8 || t == KV_Q4, beside = block ? d >= 32 : d != 5;
                        double most = t == KV_Q8 ? 65504.0 * 127 : t == KV_Q4 ? 65504.0 * 64 : t == KV_F16 ? 65504 : 3.39e38;
                        double mag = beside ? 0.34 : fmax(fabs((double)odd[o]), 0.34);
                        double share = t == KV_Q8 ? 254 : t == KV_Q4 ? 3 : t == KV_BF16 ? 256 : 2048;
                        if (!beside && !(fabs((double)odd[o]) <= most)) assert_false(isfinite(got));
                        else if (!(fabs(got - want) <= mag / share * 1.01 + 1e-7))
                            fail_msg("%s, %g among %s: dim %u is %g, not %g", kv_scheme_name(shape.scheme), (double)odd[o],
                                     alone ? "zeros" : "others", d, got, want);
                    }
                }
                hd_free_aligned(page[0]);
                hd_free_aligned(page[1]);
            }
}

static void stores_round_to_nearest_even(void **state) {
    (void)state;
    const kernels *sets[] = {set_generic, set_fast};
    static const float in[] = {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 1.0f + 0x1.01p-11f, 65519.0f, 65520.0f, -65520.0f,
                               0x1p-25f, 0x1.01p-25f, -0x1p-25f, 0x1p-14f - 0x1p-26f, INFINITY, 0x1p-24f, 3.140625f,
                               -0.0f, 1e-30f, -1.0f - 0x1p-11f};
    static const uint16_t want[] = {0x3c00, 0x3c02, 0x3c01, 0x7bff, 0x7c00, 0xfc00, 0x0000, 0x0001,
                                    0x8000, 0x0400, 0x7c00, 0x0001, 0x4248, 0x8000, 0x0000, 0xbc00};
    for (int s = 0; s < 2; s++)
        for (uint32_t page_tokens = 1; page_tokens <= 64; page_tokens *= 8) {
            if (!sets[s]) continue;
            kv_shape shape = {16, page_tokens, KV_F16};
            uint16_t *page = hd_alloc_aligned(64, 2 * kv_head_bytes(&shape));
            size_t v_off = kv_head_bytes(&shape);
            assert_non_null(page);
            memset(page, 0, 2 * kv_head_bytes(&shape));
            uint32_t slot = page_tokens - 1, b = page_tokens < 16 ? page_tokens : 16;
            kv_store(sets[s], &shape, page, 0, v_off, slot, in, in);
            for (uint32_t d = 0; d < 16; d++) {
                assert_int_equal(page[(slot / b * 16 + d) * b + slot % b], want[d]);
                assert_int_equal(page[v_off / 2 + slot * 16 + d], want[d]);
            }
            hd_free_aligned(page);
        }
}

/* NaN and infinite inputs give what they give, but end and touch nothing else. */
static void odd_numbers_do_no_harm(void **state) {
    (void)state;
    const kernels *sets[] = {set_generic, set_fast};
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    for (int s = 0; s < 2; s++)
        for (size_t o = 0; o < sizeof odd / sizeof *odd; o++) {
            if (!sets[s]) continue;
            kv_shape shape = {32, 16, KV_F32};
            float x[32], q[64], out[65];
            void *pages[3], *scratch = hd_alloc_aligned(64, attn_scratch_bytes(40, 2));
            for (int i = 0; i < 3; i++) assert_non_null(pages[i] = hd_alloc_aligned(64, 2 * kv_head_bytes(&shape)));
            for (uint32_t p = 0; p < 40; p++) {
                for (int d = 0; d < 32; d++) x[d] = p == 20 ? odd[o] : 0.5f;
                kv_store(sets[s], &shape, pages[p / 16], 0, kv_head_bytes(&shape), p % 16, x, x);
            }
            for (int d = 0; d < 64; d++) q[d] = d % 3 ? 0.25f : odd[o];
            out[64] = 5;
            attn_job job = {.shape = shape, .pages = (const void *const *)pages, .v_off = kv_head_bytes(&shape),
                            .n_group = 2, .q = q, .out = out, .ldq = 64, .ldout = 64, .pos0 = 39, .n_q = 1, .scale = 1};
            attn_run(sets[s], &job, scratch);
            assert_true(out[64] == 5);
            job.pos0 = 19; /* does not see it */
            for (int d = 0; d < 64; d++) q[d] = 0.25f;
            attn_run(sets[s], &job, scratch);
            for (int d = 0; d < 64; d++) assert_true(fabsf(out[d] - 0.5f) < 1e-6f);
            float many_q[12 * 64], many[12 * 64 + 1]; /* positions 14 to 25: those before 20 do not see it, their neighbours do */
            for (int d = 0; d < 12 * 64; d++) many_q[d] = 0.25f;
            many[12 * 64] = 5;
            job.pos0 = 14, job.n_q = 12, job.q = many_q, job.out = many;
            attn_run(sets[s], &job, scratch);
            assert_true(many[12 * 64] == 5);
            for (int d = 0; d < 6 * 64; d++) assert_true(fabsf(many[d] - 0.5f) < 1e-6f);
            for (int i = 0; i < 3; i++) hd_free_aligned(pages[i]);
            hd_free_aligned(scratch);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_double),
        cmocka_unit_test(sets_agree_and_nothing_else_matters),
        cmocka_unit_test(random_asks),
        cmocka_unit_test(schemes_keep_what_they_say),
        cmocka_unit_test(schemes_meet_odd_values),
        cmocka_unit_test(stores_round_to_nearest_even),
        cmocka_unit_test(odd_numbers_do_no_harm),
    };
    set_generic = kernels_get("generic");
    set_fast = kernels_get(NULL);
    if (set_fast == set_generic) set_fast = NULL;
    if (!set_fast) print_message("this machine's best kernels are the generic ones: nothing to compare them with\n");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    /* The loops of AVX2 are others than those of AVX-512, and a machine that has both never takes them. */
    const kernels *narrow = kernels_get("avx2");
    if (!narrow || narrow == set_fast) return failed;
    set_fast = narrow;
    const struct CMUnitTest avx2[] = {
        cmocka_unit_test(sets_agree_and_nothing_else_matters),
        cmocka_unit_test(random_asks),
        cmocka_unit_test(odd_numbers_do_no_harm),
    };
    return failed + cmocka_run_group_tests(avx2, NULL, NULL);
}
