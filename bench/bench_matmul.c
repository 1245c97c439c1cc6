/* bench_matmul.c - speed of the matrix products as shares of what this core can do, one thread.
 *
 *   bench_matmul [-p PATH] [-t TYPE] [-m M] [-k COLS] [-r REPEATS] [-n MIB]
 *
 * Each line alternates the kernel with two plain loops in the same process and takes the fast quartile of each, as
 * neighbours on a shared machine only ever add time; read the shares, absolute numbers move by a third:
 *   read   the weight bytes of the call read as 4 distant streams, from memory
 *   peak   the inner operation of the type's multiply-accumulate from registers: maddubs + paddw, madd + paddd, or fma
 * Timed: mm_mul alone, thread CPU time, weights from a buffer larger than the last cache.  Not timed: mm_act_pack,
 * printed apart as ns per value; packing as GB/s of GGUF bytes. */
#include "base/mem.h"
#include "kernels/meter.h"
#include "kernels/mm_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int cmp(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double quartile(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, cmp);
    return v[n / 4];
}

typedef struct {
    const kernels *k;
    size_t buffer;
    int repeats;
} config;

static const char *name_of(tensor_type t) { return tensor_type_get((uint32_t)t)->name; }

/* rows: of one call (one layer's matrix); the buffer holds many such matrices one after the other. */
static void run(const config *cfg, tensor_type type, uint32_t rows, uint32_t cols, const uint32_t *ms, int n_ms) {
    const tensor_type_info *info = tensor_type_get((uint32_t)type);
    size_t row_bytes = (size_t)(cols / info->block_elems) * info->block_bytes;
    size_t call_bytes = mm_group_bytes(type, cols) * (rows / 8);
    uint32_t copies = (uint32_t)(cfg->buffer / call_bytes) + 1;
    mm_weight w = {.type = type, .n_rows = rows, .n_cols = cols};
    uint8_t *base;
    uint8_t *raw = hd_alloc(row_bytes * rows);
    act_kind kind = mm_act_kind(cfg->k, type);
    meter_kind peak_kind = meter_of(kind);
    void *scratch = hd_alloc_aligned(64, mm_scratch_bytes());
    double pack;
    w.data = base = hd_alloc_aligned(2u << 20, call_bytes * copies);
    if (base) madvise(base, call_bytes * copies, MADV_HUGEPAGE); /* as a loaded model has it */
    if (!raw || !base || !scratch) exit(1);
    /* plain numbers in every scale field: denormals or infinities would be another benchmark */
    for (size_t i = 0; i < row_bytes * rows; i++) raw[i] = (uint8_t)(0x24 + (i * 2654435761u >> 13 & 7));
    mm_pack(cfg->k, &w, raw, 0, rows);
    pack = now();
    mm_pack(cfg->k, &w, raw, 0, rows);
    pack = (double)(row_bytes * rows) / (now() - pack) * 1e-9;
    for (uint32_t i = 1; i < copies; i++) memcpy(base + i * call_bytes, base, call_bytes);
    for (int j = 0; j < n_ms; j++) {
        uint32_t m = ms[j], at = 0;
        double t_k[64], t_r[64], g[64], gbs, gmac, read, peak, act;
        float *x = hd_alloc((size_t)m * cols * 4), *y = hd_alloc((size_t)m * rows * 4);
        void *a = hd_alloc_aligned(64, mm_act_bytes(cfg->k, kind, cols, m));
        if (!x || !y || !a) exit(1);
        memset(y, 0, (size_t)m * rows * 4);
        for (size_t i = 0; i < (size_t)m * cols; i++) /* a block in three has a value that stands out */
            x[i] = ((float)(i * 2654435761u % 1000) * 1e-3f - 0.5f) * (i % 97 ? 1 : 8);
        mm_act_pack(cfg->k, kind, x, cols, cols, m, 0, m, a);
        act = now();
        mm_act_pack(cfg->k, kind, x, cols, cols, m, 0, m, a);
        act = now() - act;
        for (int i = 0; i < cfg->repeats; i++) {
            uint32_t other = (at + copies / 2) % copies;
            t_r[i] = meter_read(base + other * call_bytes, call_bytes, CLOCK_THREAD_CPUTIME_ID);
            g[i] = 1 / meter_loop(peak_kind, CLOCK_THREAD_CPUTIME_ID);
            w.data = base + at * call_bytes;
            t_k[i] = now();
            mm_mul(cfg->k, &w, a, m, y, rows, 0, rows, scratch);
            t_k[i] = now() - t_k[i];
            at = (at + 1) % copies;
        }
        gbs = (double)call_bytes / quartile(t_k, cfg->repeats) * 1e-9;
        gmac = (double)rows * cols * m / quartile(t_k, cfg->repeats) * 1e-9;
        read = (double)call_bytes / quartile(t_r, cfg->repeats) * 1e-9;
        peak = 1 / quartile(g, cfg->repeats);
        printf("%-7s %6ux%-5u %4u  %7.1f GMAC/s = %4.2f of %4.0f   %6.1f GB/s = %4.2f of %5.1f   act %5.2f ns"
               "  pack %4.1f GB/s\n",
               name_of(type), rows, cols, m, gmac, gmac / peak, peak, gbs, gbs / read, read,
               act / ((double)m * cols) * 1e9, pack);
        fflush(stdout);
        hd_free(x);
        hd_free(y);
        hd_free_aligned(a);
    }
    hd_free(raw);
    hd_free_aligned(base);
    hd_free_aligned(scratch);
}

int main(int argc, char **argv) {
    static const struct {
        tensor_type type;
        uint32_t rows, cols;
    } cases[] = {{TENSOR_Q4_0, 2048, 2048},   {TENSOR_Q4_1, 2048, 2048},   {TENSOR_Q4_1, 1536, 576},
                 {TENSOR_Q5_0, 2048, 640},    {TENSOR_Q5_1, 2048, 2048},   {TENSOR_Q8_0, 2048, 2048},
                 {TENSOR_Q8_0, 49152, 576},   {TENSOR_Q4_K, 2048, 2048},   {TENSOR_Q5_K, 2048, 2048},
                 {TENSOR_Q6_K, 2048, 2048},   {TENSOR_Q2_K, 2048, 2048},   {TENSOR_Q3_K, 2048, 2048},
                 {TENSOR_IQ4_NL, 2048, 2048}, {TENSOR_IQ4_XS, 2048, 2048}, {TENSOR_F16, 2048, 1024},
                 {TENSOR_BF16, 2048, 1024},   {TENSOR_F32, 2048, 1024}};
    uint32_t ms[] = {1, 2, 3, 4, 8, 16, 32, 128}, cols = 0;
    const char *type = NULL, *path = NULL;
    int n_ms = sizeof ms / sizeof *ms;
    config cfg = {.buffer = 96u << 20, .repeats = 16};
    for (int i = 1; i + 1 < argc; i += 2) {
        int opt = argv[i][0] == '-' ? argv[i][1] : 0;
        if (opt == 'p')
            path = argv[i + 1];
        else if (opt == 't')
            type = argv[i + 1];
        else if (opt == 'm')
            ms[0] = (uint32_t)atoi(argv[i + 1]), n_ms = 1;
        else if (opt == 'k')
            cols = (uint32_t)atoi(argv[i + 1]);
        else if (opt == 'r')
            cfg.repeats = atoi(argv[i + 1]);
        else if (opt == 'n')
            cfg.buffer = (size_t)atoi(argv[i + 1]) << 20;
    }
    if (cfg.repeats < 1 || cfg.repeats > 64) cfg.repeats = 16;
    cfg.k = kernels_get(path);
    if (!cfg.k) return fprintf(stderr, "no path %s here\n", path), 64;
    printf(
        "path %s; one thread; rows x cols, tokens; share of the multiply-accumulate peak; share of a 4-stream read\n",
        kernels_name(cfg.k));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!type || !strcmp(type, name_of(cases[i].type)))
            run(&cfg, cases[i].type, cases[i].rows, cols ? cols : cases[i].cols, ms, n_ms);
    return 0;
}
