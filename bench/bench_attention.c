/* bench_attention.c - attention of one thread against what the machine can do in the same minute.
 *
 *   bench_attention [generic|avx2|avx512] [decode|step|prefill|schemes|store] [head_dim group depth [scheme]]
 *
 * Decode: one query against pages laid out as a model lays them out ([layer][kv head][K | V] within a page), over enough
 * rows that nothing is left in caches.  Beside each figure stands a plain read of the same amount of memory by 4
 * streams.  Step: the same with the last position stored before, as a model does.  Bytes are those of positions seen.
 * Prefill: a segment of 256 queries at a depth; beside it f32 multiply-adds from registers.
 * Schemes: the other ways to keep K and V, each alternating with f16 over the same positions, as time of f16 / time of the
 * scheme; above 1 the scheme is faster.  Store: writing keys and values.
 * The timer is thread CPU time around attn_run alone; kernel and yardstick alternate, medians are shown. */
#include "base/mem.h"
#include "kernels/meter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 7, LAYERS = 4, PAGE_TOKENS = 64, FOOTPRINT_MB = 192 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static volatile float sink;

static double read_gb_s(const char *p, size_t bytes) {
    return (double)bytes * 1e-9 / meter_read(p, bytes, CLOCK_THREAD_CPUTIME_ID);
}

typedef struct {
    kv_shape shape;
    uint32_t heads, depth, rows, pages_per_row;
    size_t region, page_bytes, bytes;
    char *memory;
    void **pages;
} cache;

static float noise(uint32_t *x) { /* +-0.25 .. 0.5 */
    *x = *x * 1664525 + 1013904223;
    return (*x >> 31 ? -0.25f : 0.25f) * (1 + (float)(*x >> 8 & 0xffff) / 65536);
}

/* One layer and head of one page is stored as the model would; all others are copies of it. */
static void fill(const kernels *k, cache *c) {
    uint32_t x = 1;
    float key[512], value[512];
    for (uint32_t slot = 0; slot < PAGE_TOKENS; slot++) {
        for (uint32_t d = 0; d < c->shape.head_dim; d++) key[d] = noise(&x), value[d] = noise(&x);
        kv_store(k, &c->shape, c->memory, 0, c->region, slot, key, value);
    }
    for (size_t at = 2 * c->region; at < c->bytes; at += 2 * c->region) memcpy(c->memory + at, c->memory, 2 * c->region);
}

/* rows 0: as many as FOOTPRINT_MB takes. */
static cache cache_new(const kernels *k, kv_scheme scheme, uint32_t head_dim, uint32_t heads, uint32_t depth, uint32_t rows) {
    cache c = {.shape = {head_dim, PAGE_TOKENS, scheme}, .heads = heads, .depth = depth};
    c.region = kv_head_bytes(&c.shape);
    c.pages_per_row = (depth + PAGE_TOKENS - 1) / PAGE_TOKENS;
    c.page_bytes = c.region * 2 * heads * LAYERS;
    size_t row = c.page_bytes * c.pages_per_row;
    c.rows = rows ? rows : (uint32_t)(((size_t)FOOTPRINT_MB << 20) / row);
    if (!c.rows) c.rows = 1;
    c.bytes = row * c.rows;
    c.memory = hd_alloc_aligned(4096, c.bytes);
    c.pages = hd_calloc((size_t)c.rows * c.pages_per_row, sizeof *c.pages);
    if (!c.memory || !c.pages) exit(1);
    fill(k, &c);
    /* Pages of different rows interleave, as they do after some time of serving. */
    for (uint32_t r = 0; r < c.rows; r++)
        for (uint32_t i = 0; i < c.pages_per_row; i++)
            c.pages[r * c.pages_per_row + i] = c.memory + ((size_t)i * c.rows + r) * c.page_bytes;
    return c;
}

static void cache_free(cache *c) {
    hd_free_aligned(c->memory);
    hd_free(c->pages);
}

/* Item i: layer by layer, row by row, kv head by kv head. */
static attn_next item(const cache *c, uint32_t i) {
    uint32_t h = i % c->heads, r = i / c->heads % c->rows, layer = i / c->heads / c->rows;
    size_t off = (layer * c->heads + h) * 2 * c->region;
    return (attn_next){(const void *const *)c->pages + r * c->pages_per_row, off, off + c->region, c->depth - 1};
}

/* Seconds that one decode step of all rows takes; q serves as key and value where they are stored. */
static double decode_once(const kernels *k, const cache *c, uint32_t group, const float *q, float *out, void *scratch,
                          bool stores) {
    uint32_t ld = group * c->shape.head_dim, n = LAYERS * c->rows * c->heads;
    attn_job job = {.shape = c->shape, .n_group = group, .q = q, .out = out, .ldq = ld, .ldout = ld, .n_q = 1,
                    .scale = 1 / sqrtf((float)c->shape.head_dim)};
    double t = now();
    for (uint32_t i = 0; i < n; i++) {
        attn_next it = item(c, i);
        job.pages = it.pages;
        job.k_off = it.k_off;
        job.v_off = it.v_off;
        job.pos0 = it.pos;
        job.announced = i > 0;
        job.next = i + 1 < n ? item(c, i + 1) : (attn_next){.pages = NULL};
        if (stores)
            kv_store(k, &c->shape, c->pages[i / c->heads % c->rows * c->pages_per_row + it.pos / PAGE_TOKENS], it.k_off, it.v_off,
                     it.pos % PAGE_TOKENS, q, q);
        attn_run(k, &job, scratch);
        sink += out[0];
    }
    return now() - t;
}

static void decode(const kernels *k, kv_scheme scheme, uint32_t head_dim, uint32_t group, uint32_t depth, bool stores) {
    cache c = cache_new(k, scheme, head_dim, 4, depth, 0);
    float q[8 * 512], out[8 * 512];
    void *scratch = hd_alloc_aligned(64, attn_scratch_bytes(depth, group));
    double rate[REPEATS], read[REPEATS], share[REPEATS];
    const double seen = (double)c.bytes * depth / (c.pages_per_row * PAGE_TOKENS);
    for (uint32_t i = 0; i < group * head_dim; i++) q[i] = (float)(i % 7) * 0.1f - 0.3f;
    for (int n = 0; n < REPEATS; n++) {
        double t = decode_once(k, &c, group, q, out, scratch, stores);
        rate[n] = seen * 1e-9 / t;
        read[n] = read_gb_s(c.memory, c.bytes);
        share[n] = rate[n] / read[n];
    }
    printf("%s hd %3u group %u depth %5u: %5.1f GB/s of K and V, %.2f of a 4-stream read (%.1f)\n", stores ? "step    " : "decode  ",
           head_dim, group, depth, median(rate, REPEATS), median(share, REPEATS), median(read, REPEATS));
    hd_free_aligned(scratch);
    cache_free(&c);
}

enum { N_Q = 256 };

/* Seconds for 256 queries of one kv head behind `depth` positions. */
static double prefill_once(const kernels *k, const cache *c, uint32_t group, uint32_t depth, const float *q, float *out,
                           void *scratch) {
    size_t ld = (size_t)group * c->shape.head_dim;
    attn_job job = {.shape = c->shape, .pages = (const void *const *)c->pages, .v_off = c->region, .n_group = group, .q = q, .out = out,
                    .ldq = ld, .ldout = ld, .pos0 = depth, .n_q = N_Q, .scale = 1 / sqrtf((float)c->shape.head_dim)};
    double t = now();
    attn_run(k, &job, scratch);
    sink += out[0];
    return now() - t;
}

static void prefill(const kernels *k, uint32_t head_dim, uint32_t group, uint32_t depth) {
    cache c = cache_new(k, KV_F16, head_dim, 4, depth + N_Q, 0);
    size_t ld = (size_t)group * head_dim;
    float *q = hd_alloc_aligned(64, N_Q * ld * 4), *out = hd_alloc_aligned(64, N_Q * ld * 4);
    void *scratch = hd_alloc_aligned(64, attn_scratch_bytes(depth + N_Q, group));
    double rate[REPEATS], peak[REPEATS], share[REPEATS];
    if (!q || !out || !scratch) exit(1);
    for (size_t i = 0; i < N_Q * ld; i++) q[i] = (float)(i % 7) * 0.1f - 0.3f;
    for (int n = 0; n < REPEATS; n++) {
        double t = prefill_once(k, &c, group, depth, q, out, scratch);
        rate[n] = 2.0 * head_dim * group * N_Q * (depth + (N_Q + 1) / 2.0) / t * 1e-9;
        peak[n] = meter_loop(METER_F32, CLOCK_THREAD_CPUTIME_ID);
        share[n] = rate[n] / peak[n];
    }
    printf("prefill  hd %3u group %u depth %5u: %5.1f G multiply-adds/s, %.2f of f32 peak (%.1f)\n", head_dim, group, depth,
           median(rate, REPEATS), median(share, REPEATS), median(peak, REPEATS));
    hd_free_aligned(q);
    hd_free_aligned(out);
    hd_free_aligned(scratch);
    cache_free(&c);
}

/* The others against f16: the same rows and positions, one after the other, in turns. */
static void schemes(const kernels *k, uint32_t head_dim, uint32_t group, uint32_t depth) {
    cache f16 = cache_new(k, KV_F16, head_dim, 4, depth + N_Q, 0);
    size_t n_floats = (size_t)N_Q * group * head_dim;
    float *q = hd_alloc_aligned(64, n_floats * 4), *out = hd_alloc_aligned(64, n_floats * 4);
    void *scratch = hd_alloc_aligned(64, attn_scratch_bytes(depth + N_Q, group));
    if (!q || !out || !scratch) exit(1);
    for (size_t i = 0; i < n_floats; i++) q[i] = (float)(i % 7) * 0.1f - 0.3f;
    printf("schemes  hd %3u group %u depth %5u:", head_dim, group, depth);
    for (int s = KV_F32; s < KV_SCHEMES; s++) {
        cache c = cache_new(k, (kv_scheme)s, head_dim, 4, depth + N_Q, f16.rows);
        double step[REPEATS], segment[REPEATS];
        c.depth = f16.depth = depth;
        for (int n = 0; n < REPEATS; n++) {
            step[n] = decode_once(k, &f16, group, q, out, scratch, false);
            step[n] /= decode_once(k, &c, group, q, out, scratch, false);
            segment[n] = prefill_once(k, &f16, group, depth, q, out, scratch);
            segment[n] /= prefill_once(k, &c, group, depth, q, out, scratch);
        }
        printf("  %s %.2f %.2f", kv_scheme_name((kv_scheme)s), median(step, REPEATS), median(segment, REPEATS));
        fflush(stdout);
        cache_free(&c);
    }
    printf("  (decode, 256 queries)\n");
    hd_free_aligned(q);
    hd_free_aligned(out);
    hd_free_aligned(scratch);
    cache_free(&f16);
}

/* Nanoseconds to store a value of a key or value. */
static void store(const kernels *k, uint32_t head_dim) {
    enum { TIMES = 2000 };
    float x[512];
    uint32_t seed = 7;
    for (uint32_t d = 0; d < head_dim; d++) x[d] = noise(&seed);
    printf("store    hd %3u:", head_dim);
    for (int s = KV_F16; s < KV_SCHEMES; s++) {
        kv_shape shape = {head_dim, PAGE_TOKENS, (kv_scheme)s};
        size_t region = kv_head_bytes(&shape);
        char *page = hd_alloc_aligned(64, 2 * region);
        double ns[REPEATS];
        if (!page) exit(1);
        for (int n = 0; n < REPEATS; n++) {
            double t = now();
            for (uint32_t i = 0; i < TIMES; i++) kv_store(k, &shape, page, 0, region, i % PAGE_TOKENS, x, x);
            ns[n] = (now() - t) * 1e9 / (2.0 * TIMES * head_dim);
        }
        printf("  %s %.2f", kv_scheme_name((kv_scheme)s), median(ns, REPEATS));
        hd_free_aligned(page);
    }
    printf("  ns a value\n");
}

int main(int argc, char **argv) {
    static const uint32_t dims[] = {64, 128, 256}, groups[] = {1, 3, 4, 8}, depths[] = {512, 2048, 8192};
    const kernels *k = kernels_get(argc > 1 ? argv[1] : NULL);
    if (!k) return 64;
    printf("kernels: %s\n", kernels_name(k));
    if (argc > 5) {
        uint32_t d = (uint32_t)atoi(argv[3]), g = (uint32_t)atoi(argv[4]), n = (uint32_t)atoi(argv[5]);
        kv_scheme scheme = KV_F16;
        if (argc > 6 && !kv_scheme_by_name(argv[6], strlen(argv[6]), &scheme)) return 64;
        if (d < 8 || d > 512 || d % 8 || g < 1 || g > 8 || n > 1u << 20) return 64;
        if (!strcmp(argv[2], "decode") || !strcmp(argv[2], "step")) decode(k, scheme, d, g, n ? n : 1, argv[2][0] == 's');
        else if (!strcmp(argv[2], "schemes")) schemes(k, d, g, n ? n : 1);
        else prefill(k, d, g, n);
        return 0;
    }
    if (argc < 3 || !strcmp(argv[2], "decode"))
        for (int d = 0; d < 3; d++)
            for (int g = 0; g < 4; g++)
                for (int n = 0; n < 3; n++) decode(k, KV_F16, dims[d], groups[g], depths[n], false);
    if (argc < 3 || !strcmp(argv[2], "schemes"))
        for (int d = 0; d < 3; d++)
            for (int g = 0; g < 4; g++) schemes(k, dims[d], groups[g], 8192);
    if (argc < 3 || !strcmp(argv[2], "store"))
        for (int d = 0; d < 3; d++) store(k, dims[d]);
    if (argc < 3 || !strcmp(argv[2], "prefill"))
        for (int d = 0; d < 3; d++)
            for (int g = 0; g < 4; g++)
                for (int n = -1; n < 2; n++) prefill(k, dims[d], groups[g], n < 0 ? 0 : depths[n]);
    return 0;
}
