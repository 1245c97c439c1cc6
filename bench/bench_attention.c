/* bench_attention.c - attention of one thread against what the machine can do in the same minute.
 *
 *   bench_attention [generic|avx2] [decode|prefill] [head_dim group depth]
 *
 * Decode: one query against pages laid out as a model lays them out ([layer][kv head][K | V] within a page), over enough
 * rows that nothing is left in caches.  Beside each figure stands a plain read of the same amount of memory by 4
 * streams.  Prefill: a segment of 256 queries at a depth; beside it f32 multiply-adds from registers.
 * The timer is thread CPU time around attn_run alone; kernel and yardstick alternate, medians are shown. */
#include "base/mem.h"
#include "kernels/kernels.h"

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

typedef float vec8 __attribute__((vector_size(32)));

static double read_gb_s(const char *p, size_t bytes) {
    size_t quarter = bytes / 4 / 256 * 256;
    vec8 s[4] = {0};
    double t = now();
    for (size_t i = 0; i < quarter; i += 64)
        for (int k = 0; k < 4; k++) {
            const vec8 *v = (const vec8 *)(p + (size_t)k * quarter + i);
            s[k] += v[0];
            s[k] += v[1];
        }
    t = now() - t;
    for (int k = 0; k < 4; k++) sink += s[k][0];
    return (double)quarter * 4 / t * 1e-9;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma")))
#endif
static double fma_g_s(void) {
    enum { N = 2000000 };
    vec8 x, y;
    for (int j = 0; j < 8; j++) x[j] = 0.999f, y[j] = 1e-6f;
    vec8 a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, m = x, n = x; /* 10 chains cover the latency */
    double t = now();
    for (int i = 0; i < N; i++) {
#if defined(__x86_64__)
#define STEP(v) __asm__("vfmadd213ps %2, %1, %0" : "+x"(v) : "x"(x), "x"(y))
#else
#define STEP(v) v = v * x + y
#endif
        STEP(a); STEP(b); STEP(c); STEP(d); STEP(e); STEP(f); STEP(g); STEP(h); STEP(m); STEP(n);
    }
    t = now() - t;
    sink += a[0] + b[0] + c[0] + d[0] + e[0] + f[0] + g[0] + h[0] + m[0] + n[0];
    return N * 80.0 / t * 1e-9;
}

typedef struct {
    kv_shape shape;
    uint32_t heads, depth, rows, pages_per_row;
    size_t region, page_bytes, bytes;
    char *memory;
    const void **pages;
} cache;

static void fill(cache *c) {
    uint16_t *p = (uint16_t *)c->memory;
    uint32_t x = 1;
    for (size_t i = 0; i < c->bytes / 2; i++) {
        x = x * 1664525 + 1013904223;
        p[i] = (uint16_t)(0x3400 | (x >> 16 & 0x8000) | (x >> 9 & 0x3ff)); /* +-0.25 .. 0.5 */
    }
}

static cache cache_new(uint32_t head_dim, uint32_t heads, uint32_t depth) {
    cache c = {.shape = {head_dim, PAGE_TOKENS, TENSOR_F16}, .heads = heads, .depth = depth};
    c.region = kv_head_bytes(&c.shape);
    c.pages_per_row = (depth + PAGE_TOKENS - 1) / PAGE_TOKENS;
    c.page_bytes = c.region * 2 * heads * LAYERS;
    size_t row = c.page_bytes * c.pages_per_row;
    c.rows = (uint32_t)(((size_t)FOOTPRINT_MB << 20) / row);
    if (!c.rows) c.rows = 1;
    c.bytes = row * c.rows;
    c.memory = hd_alloc_aligned(4096, c.bytes);
    c.pages = hd_calloc((size_t)c.rows * c.pages_per_row, sizeof *c.pages);
    if (!c.memory || !c.pages) exit(1);
    fill(&c);
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

static void decode(const kernels *k, uint32_t head_dim, uint32_t group, uint32_t depth) {
    cache c = cache_new(head_dim, 4, depth);
    float q[8 * 512], out[8 * 512];
    void *scratch = hd_alloc_aligned(64, attn_scratch_bytes(depth, group));
    double rate[REPEATS], read[REPEATS], share[REPEATS];
    for (uint32_t i = 0; i < group * head_dim; i++) q[i] = (float)(i % 7) * 0.1f - 0.3f;
    for (int n = 0; n < REPEATS; n++) {
        double t = now();
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t r = 0; r < c.rows; r++)
                for (uint32_t h = 0; h < c.heads; h++) {
                    size_t off = (layer * c.heads + h) * 2 * c.region;
                    attn_job job = {.shape = c.shape, .pages = c.pages + r * c.pages_per_row, .k_off = off,
                                    .v_off = off + c.region, .n_group = group, .q = q, .out = out, .ldq = group * head_dim,
                                    .ldout = group * head_dim, .pos0 = depth - 1, .n_q = 1,
                                    .scale = 1 / sqrtf((float)head_dim),
                                    .k_next = h + 1 < c.heads ? off + 2 * c.region : 0};
                    attn_run(k, &job, scratch);
                    sink += out[0];
                }
        t = now() - t;
        rate[n] = (double)c.bytes * 1e-9 / t;
        read[n] = read_gb_s(c.memory, c.bytes);
        share[n] = rate[n] / read[n];
    }
    printf("decode   hd %3u group %u depth %5u: %5.1f GB/s of K and V, %.2f of a 4-stream read (%.1f)\n", head_dim, group,
           depth, median(rate, REPEATS), median(share, REPEATS), median(read, REPEATS));
    hd_free_aligned(scratch);
    cache_free(&c);
}

static void prefill(const kernels *k, uint32_t head_dim, uint32_t group, uint32_t depth) {
    enum { N_Q = 256 };
    cache c = cache_new(head_dim, 4, depth + N_Q);
    size_t ld = (size_t)group * head_dim;
    float *q = hd_alloc_aligned(64, N_Q * ld * 4), *out = hd_alloc_aligned(64, N_Q * ld * 4);
    void *scratch = hd_alloc_aligned(64, attn_scratch_bytes(depth + N_Q, group));
    double rate[REPEATS], peak[REPEATS], share[REPEATS];
    if (!q || !out || !scratch) exit(1);
    for (size_t i = 0; i < N_Q * ld; i++) q[i] = (float)(i % 7) * 0.1f - 0.3f;
    for (int n = 0; n < REPEATS; n++) {
        double t = now();
        attn_job job = {.shape = c.shape, .pages = c.pages, .v_off = c.region, .n_group = group, .q = q, .out = out,
                        .ldq = ld, .ldout = ld, .pos0 = depth, .n_q = N_Q, .scale = 1 / sqrtf((float)head_dim)};
        attn_run(k, &job, scratch);
        t = now() - t;
        rate[n] = 2.0 * head_dim * group * N_Q * (depth + (N_Q + 1) / 2.0) / t * 1e-9;
        peak[n] = fma_g_s();
        share[n] = rate[n] / peak[n];
        sink += out[0];
    }
    printf("prefill  hd %3u group %u depth %5u: %5.1f G multiply-adds/s, %.2f of f32 peak (%.1f)\n", head_dim, group, depth,
           median(rate, REPEATS), median(share, REPEATS), median(peak, REPEATS));
    hd_free_aligned(q);
    hd_free_aligned(out);
    hd_free_aligned(scratch);
    cache_free(&c);
}

int main(int argc, char **argv) {
    static const uint32_t dims[] = {64, 128, 256}, groups[] = {1, 3, 4, 8}, depths[] = {512, 2048, 8192};
    const kernels *k = kernels_get(argc > 1 ? argv[1] : NULL);
    if (!k) return 64;
    printf("kernels: %s\n", kernels_name(k));
    if (argc > 5) {
        uint32_t d = (uint32_t)atoi(argv[3]), g = (uint32_t)atoi(argv[4]), n = (uint32_t)atoi(argv[5]);
        if (d < 8 || d > 512 || d % 8 || g < 1 || g > 8 || n > 1u << 20) return 64;
        if (!strcmp(argv[2], "decode")) decode(k, d, g, n ? n : 1);
        else prefill(k, d, g, n);
        return 0;
    }
    if (argc < 3 || !strcmp(argv[2], "decode"))
        for (int d = 0; d < 3; d++)
            for (int g = 0; g < 4; g++)
                for (int n = 0; n < 3; n++) decode(k, dims[d], groups[g], depths[n]);
    if (argc < 3 || !strcmp(argv[2], "prefill"))
        for (int d = 0; d < 3; d++)
            for (int g = 0; g < 4; g++)
                for (int n = -1; n < 2; n++) prefill(k, dims[d], groups[g], n < 0 ? 0 : depths[n]);
    return 0;
}
