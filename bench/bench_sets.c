/* bench_sets.c - the matrix products of every kernel set this CPU has, against AVX2 in the same run, one thread.
 *
 *   bench_sets [-t TYPE] [-m TOKENS] [-r REPEATS] [-s SET]
 *
 * Sets take turns call by call over weights larger than the last cache; a ratio is that of the fast quartiles of thread CPU
 * time, above 1 where the set is faster than AVX2.  The first number is AVX2's GMAC/s, which moves with the neighbours;
 * the ratios move less.  Timed: mm_mul alone. */
#include "base/mem.h"
#include "kernels/mm_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 2048, COLS = 2048, COPIES = 16, MAX_SETS = 8, MAX_REPEATS = 200 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int cmp(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void run(const kernels **sets, int n_sets, tensor_type type, const uint32_t *ms, int n_ms, int repeats) {
    const tensor_type_info *info = tensor_type_get((uint32_t)type);
    size_t raw_bytes = (size_t)COLS / info->block_elems * info->block_bytes * ROWS;
    size_t bytes = (size_t)mm_packed_bytes(sets[0], type, ROWS, COLS);
    mm_weight w = {.type = type, .n_rows = ROWS, .n_cols = COLS};
    uint8_t *raw = hd_alloc(raw_bytes), *base = hd_alloc_aligned(64, bytes * COPIES);
    void *scratch = hd_alloc_aligned(64, mm_scratch_bytes());
    if (!raw || !base || !scratch) exit(1);
    for (size_t i = 0; i < raw_bytes; i++) raw[i] = (uint8_t)(0x24 + (i * 2654435761u >> 13 & 7)); /* plain numbers as scales */
    w.data = base;
    mm_pack(sets[0], &w, raw, 0, ROWS);
    for (size_t i = 1; i < COPIES; i++) memcpy(base + i * bytes, base, bytes);
    for (int j = 0; j < n_ms; j++) {
        uint32_t m = ms[j];
        static double t[MAX_SETS][MAX_REPEATS];
        float *x = hd_alloc((size_t)m * COLS * 4), *y = hd_alloc((size_t)m * ROWS * 4);
        void *a[MAX_SETS]; /* a set may have its own form of them */
        int at = 0;
        if (!x || !y) exit(1);
        for (size_t i = 0; i < (size_t)m * COLS; i++) x[i] = (float)(i * 2654435761u % 1000) * 1e-3f - 0.5f;
        for (int s = 0; s < n_sets; s++) {
            act_kind kind = mm_act_kind(sets[s], type);
            if (!(a[s] = hd_alloc_aligned(64, mm_act_bytes(sets[s], kind, COLS, m)))) exit(1);
            mm_act_pack(sets[s], kind, x, COLS, COLS, m, 0, m, a[s]);
        }
        for (int i = 0; i < repeats; i++)
            for (int s = 0; s < n_sets; s++, at++) {
                w.data = base + (size_t)at % COPIES * bytes;
                t[s][i] = now();
                mm_mul(sets[s], &w, a[s], m, y, ROWS, 0, ROWS, scratch);
                t[s][i] = now() - t[s][i];
            }
        for (int s = 0; s < n_sets; s++) qsort(t[s], (size_t)repeats, sizeof **t, cmp);
        printf("%-7s %4u tokens  %s %6.1f GMAC/s", info->name, m, kernels_name(sets[0]),
               (double)ROWS * COLS * m / t[0][repeats / 4] * 1e-9);
        for (int s = 1; s < n_sets; s++) printf("   %s %4.2f", kernels_name(sets[s]), t[0][repeats / 4] / t[s][repeats / 4]);
        printf("\n");
        fflush(stdout);
        hd_free(x);
        hd_free(y);
        for (int s = 0; s < n_sets; s++) hd_free_aligned(a[s]);
    }
    hd_free(raw);
    hd_free_aligned(base);
    hd_free_aligned(scratch);
}

int main(int argc, char **argv) {
    static const tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,   TENSOR_Q8_0,
                                        TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_K, TENSOR_Q5_K,   TENSOR_Q6_K,
                                        TENSOR_F16,  TENSOR_F32,  TENSOR_BF16, TENSOR_IQ4_NL, TENSOR_IQ4_XS};
    uint32_t ms[] = {1, 2, 4, 8, 16, 32, 128};
    int n_ms = sizeof ms / sizeof *ms, repeats = 15, n_sets = 0;
    const char *type = NULL, *only = NULL, *name;
    const kernels *sets[MAX_SETS];
    for (int i = 1; i + 1 < argc; i += 2) {
        int opt = argv[i][0] == '-' ? argv[i][1] : 0;
        if (opt == 't') type = argv[i + 1];
        else if (opt == 'm') ms[0] = (uint32_t)atoi(argv[i + 1]), n_ms = 1;
        else if (opt == 'r') repeats = atoi(argv[i + 1]);
        else if (opt == 's') only = argv[i + 1];
    }
    if (repeats < 1 || repeats > MAX_REPEATS) repeats = 15;
    if (!(sets[n_sets++] = kernels_get("avx2"))) return fprintf(stderr, "this CPU has not got AVX2\n"), 64;
    for (size_t i = 0; (name = kernels_built(i)) && n_sets < MAX_SETS; i++) {
        const kernels *k = kernels_get(name);
        if (k && k != sets[0] && strcmp(name, "generic") != 0 && (!only || !strcmp(name, only))) sets[n_sets++] = k;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!type || !strcmp(type, tensor_type_get((uint32_t)types[i])->name)) run(sets, n_sets, types[i], ms, n_ms, repeats);
    return 0;
}
