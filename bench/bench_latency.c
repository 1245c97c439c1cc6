/* bench_latency.c - what one request does to the gaps between the tokens of others.
 *
 *     cmake --build build --target bench_latency && build/bench_latency MODEL [PREFILL-TOKENS [THREADS]]
 *
 * 1. 16 requests decode; in every second round one of them is never read.  Ratio of the others' 99th percentile gaps, median
 *    of 7 alternations.
 * 2. 8 requests decode; a prompt of PREFILL-TOKENS (16,000) arrives.  The others' 99th percentile gap before and during,
 *    beside the longest step: what the step budget explains.
 * Gaps are seen by the readers, not by the engine. */
#include "base/clock.h"
#include "base/mem.h"
#include "exec/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALTERNATIONS = 7, MANY = 16, FEW = 8, TOKENS = 400, MAX_GAPS = 1 << 17 };

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool told;
} bell;
static bell the_bell = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};

static void ring(void *ctx) {
    (void)ctx;
    pthread_mutex_lock(&the_bell.mu);
    the_bell.told = true;
    pthread_cond_signal(&the_bell.cond);
    pthread_mutex_unlock(&the_bell.mu);
}

static void wait_for_bell(void) {
    pthread_mutex_lock(&the_bell.mu);
    while (!the_bell.told) pthread_cond_wait(&the_bell.cond, &the_bell.mu);
    the_bell.told = false;
    pthread_mutex_unlock(&the_bell.mu);
}

static uint64_t *gaps;
static size_t n_gaps;

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double quantile_ms(double q) {
    qsort(gaps, n_gaps, sizeof *gaps, by_value);
    return n_gaps ? (double)gaps[(size_t)((double)(n_gaps - 1) * q)] / 1000 : 0;
}

static session *start(engine *e, const int32_t *ids, size_t n, uint32_t max_tokens, uint64_t seed) {
    gen_request r = {.id = "", .prompt = ids, .n_prompt = n, .max_tokens = max_tokens, .ignore_eos = true};
    session *s = NULL;
    hd_err err;
    sampling_defaults(&r.sampling);
    r.sampling.seed = seed;
    if (engine_submit(e, &r, 1, ring, NULL, &s, &err)) fprintf(stderr, "%s\n", err.msg), exit(1);
    return s;
}

/* Read all but the first `stalled` until `until` of them are over; gaps are kept while watching. */
static void read_all(session **s, size_t n, size_t stalled, session *other, bool *other_begun) {
    uint64_t last[MANY] = {0};
    bool over[MANY] = {false};
    size_t left = n - stalled;
    bool other_over = !other;
    n_gaps = 0;
    while (left && !(other && other_over)) {
        wait_for_bell();
        for (size_t i = stalled; i < n; i++) {
            gen_event ev;
            while (!over[i] && (session_next(s[i], &ev), ev.kind != EV_NONE)) {
                uint64_t now = hd_now_us(&hd_clock_real);
                if (ev.kind == EV_DONE) over[i] = true, left--;
                if (ev.kind != EV_TOKEN) continue;
                if (last[i] && n_gaps < MAX_GAPS) gaps[n_gaps++] = now - last[i];
                last[i] = now;
            }
        }
        while (other) {
            gen_event ev;
            session_next(other, &ev);
            if (ev.kind == EV_NONE) break;
            if (ev.kind == EV_TOKEN) *other_begun = other_over = true; /* its prefill is over */
            if (ev.kind == EV_DONE) break;
        }
    }
}

static double round_of_16(engine *e, bool stall) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8};
    session *s[MANY];
    double p99;
    for (size_t i = 0; i < MANY; i++) s[i] = start(e, prompt, 8, TOKENS, i);
    read_all(s, MANY, stall, NULL, NULL);
    p99 = quantile_ms(0.99);
    for (size_t i = 0; i < MANY; i++) session_free(s[i]);
    while (!engine_idle(e)) {}
    return p99;
}

static int by_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    uint32_t n_long = argc > 2 ? (uint32_t)atoi(argv[2]) : 16000;
    model_options mo = {.n_threads = argc > 3 ? (unsigned)atoi(argv[3]) : 2};
    engine_options opt = {.max_rows = MANY, .kv_budget_bytes = 4ull << 30, .no_cache = true};
    double ratio[ALTERNATIONS];
    int32_t *ids = hd_calloc(n_long, sizeof *ids);
    model *m;
    engine *e;
    hd_err err;
    gaps = hd_calloc(MAX_GAPS, sizeof *gaps);
    if (argc < 2 || !gaps || !ids) {
        fprintf(stderr, "usage: bench_latency MODEL [PREFILL-TOKENS [THREADS]]\n");
        return 64;
    }
    if (model_open(&m, argv[1], &mo, &err) || engine_open(&e, m, &opt, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (int i = 0; i < ALTERNATIONS; i++) {
        double calm = round_of_16(e, false), stalled = round_of_16(e, true);
        ratio[i] = stalled / calm;
        printf("  16 readers: gap p99 %.2f ms; with one stalled, the 15 others: %.2f ms\n", calm, stalled);
    }
    qsort(ratio, ALTERNATIONS, sizeof *ratio, by_double);
    printf("a stalled reader among 16: ratio %.3f (median of %d alternations)\n", ratio[ALTERNATIONS / 2], ALTERNATIONS);
    if (n_long < model_get(m)->ctx_train) {
        static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8};
        session *s[FEW], *big;
        double before, during, during_max;
        bool begun = false;
        engine_view v = {0};
        for (uint32_t i = 0; i < n_long; i++) ids[i] = (int32_t)(i % 997) + 5;
        for (size_t i = 0; i < FEW; i++) s[i] = start(e, prompt, 8, 200, i);
        read_all(s, FEW, 0, NULL, NULL);
        before = quantile_ms(0.99);
        for (size_t i = 0; i < FEW; i++) session_free(s[i]);
        for (size_t i = 0; i < FEW; i++) s[i] = start(e, prompt, 8, 100000 < model_get(m)->ctx_train ? 100000 : 20000, i);
        big = start(e, ids, n_long, 1, 0);
        read_all(s, FEW, 0, big, &begun);
        during_max = quantile_ms(1);
        during = quantile_ms(0.99);
        engine_look(e, &v);
        printf("a prompt of %u tokens among 8 readers: gap p99 %.2f ms before, %.2f ms during (longest gap %.2f ms); the longest "
               "step took %.2f ms\n",
               n_long, before, during, during_max, v.step_ms_max);
        for (size_t i = 0; i < FEW; i++) session_free(s[i]);
        session_free(big);
    }
    engine_close(e);
    model_close(m);
    hd_free(gaps);
    hd_free(ids);
    return 0;
}
