/* bench_sampler.c - what choosing a token costs, for usual parameters, on real logits.
 *
 *   heddle logits MODEL --text "..." --out F; bench_sampler F VOCABULARY
 *
 * Of the last 8 positions in F, a row each: microseconds a row, the least of 30 rounds, one thread. */
#include "base/mem.h"
#include "decode/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 8, ROUNDS = 30 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static float *read_last(const char *path, size_t n) {
    FILE *f = fopen(path, "rb");
    float *x = malloc(ROWS * n * sizeof *x);
    if (!x || !f || fseek(f, -(long)(ROWS * n * sizeof *x), SEEK_END) || fread(x, sizeof *x, ROWS * n, f) != ROWS * n) {
        fprintf(stderr, "%s does not hold %d positions of %zu logits\n", path, ROWS, n);
        exit(1);
    }
    fclose(f);
    return x;
}

static double measure(const sampling_params *p, const float *logits, size_t n) {
    const kernels *k = kernels_get(NULL);
    float *x = malloc(ROWS * n * sizeof *x);
    void *work = hd_alloc_aligned(64, sampler_work_bytes(n));
    int32_t history[] = {1};
    double least = 1e9;
    sampler *s;
    hd_err err;
    if (!x || !work || sampler_open(&s, p, n, &err)) exit(1);
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(x, logits, ROWS * n * sizeof *x);
        double begin = now_us(), each;
        for (int r = 0; r < ROWS; r++) {
            sample_result out;
            if (sampler_sample(s, k, x + (size_t)r * n, n, history, 1, (uint64_t)(round * ROWS + r), NULL, 0, NULL, work, &out, &err)) exit(1);
        }
        each = (now_us() - begin) / ROWS;
        least = each < least ? each : least;
    }
    sampler_close(s);
    hd_free_aligned(work);
    free(x);
    return least;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        float temperature, top_p, min_p;
        uint32_t top_k, top_logprobs;
    } cases[] = {
        {"greedy, by the sampler", 0, 1, 0, 0, 0},
        {"temperature 1", 1, 1, 0, 0, 0},
        {"temperature 0.8", 0.8f, 1, 0, 0, 0},
        {"temperature 0.8, top_p 0.95", 0.8f, 0.95f, 0, 0, 0},
        {"temperature 0.8, top_k 40, top_p 0.95, min_p 0.05", 0.8f, 0.95f, 0.05f, 40, 0},
        {"the same, 5 logprobs", 0.8f, 0.95f, 0.05f, 40, 5},
    };
    size_t n = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (!n || n > 1 << 24) {
        fprintf(stderr, "bench_sampler LOGITS VOCABULARY\n");
        return 2;
    }
    float *logits = read_last(argv[1], n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sampling_params p;
        sampling_defaults(&p);
        p.temperature = cases[i].temperature;
        p.top_p = cases[i].top_p;
        p.min_p = cases[i].min_p;
        p.top_k = cases[i].top_k;
        p.logprobs = cases[i].top_logprobs > 0;
        p.n_top_logprobs = cases[i].top_logprobs;
        printf("%-52s %8.1f us a row\n", cases[i].name, measure(&p, logits, n));
    }
    free(logits);
    return 0;
}
