/* bench_executor.c - what a step costs besides computing: 64 rows run, 1,000 requests wait, a scripted model, 2,000 steps.
 *
 *     cmake --build build --target bench_executor && build/bench_executor [ROWS [WAITING [SHARES]]]
 *
 * Prints the median and the 99th percentile of a turn (sweeping, admission, planning, pages, sampling of a tiny vocabulary,
 * publishing, the copy for those who look) less the time inside the model's forward pass. */
#include "base/mem.h"
#include "exec/engine.h"
#include "model/model_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2000, WARM = 200 };

static const model_ops *real_ops;
static uint64_t forward_ns;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static hd_status timed_forward(model *m, const step *st, uint32_t *bad, hd_err *err) {
    uint64_t t0 = now_ns();
    hd_status s = real_ops->forward(m, st, bad, err);
    forward_ns += now_ns() - t0;
    return s;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static const char script[] = "{\"vocab\":[\"<s>\",\"</s>\",\"a\",\"b\"],\"special\":{\"bos\":0,\"eos\":[1]},"
                                 "\"context\":100000,\"default\":{\"emit\":[2,3],\"then\":\"loop\"}}";
    uint32_t rows = argc > 1 ? (uint32_t)atoi(argv[1]) : 64, waiting = argc > 2 ? (uint32_t)atoi(argv[2]) : 1000;
    uint32_t shares = argc > 3 ? (uint32_t)atoi(argv[3]) : 1, n = rows + waiting;
    engine_options opt = {.max_rows = rows, .max_queued = waiting, .manual = true, .kv_budget_bytes = 1ull << 33};
    session **s = hd_calloc(n, sizeof *s);
    uint64_t *ns = hd_calloc(STEPS, sizeof *ns);
    int32_t prompt[] = {2, 3, 2};
    model_ops ops;
    model *m;
    engine *e;
    hd_err err;
    if (!s || !ns || script_open_memory(&m, script, sizeof script - 1, "bench", NULL, &err)) return 1;
    real_ops = m->ops;
    ops = *m->ops;
    ops.forward = timed_forward;
    m->ops = &ops;
    if (engine_open(&e, m, &opt, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        gen_request r = {.id = "", .prompt = prompt, .n_prompt = 3, .max_tokens = 90000};
        char key[32];
        snprintf(key, sizeof key, "user-%u", i % shares);
        r.share = key;
        sampling_defaults(&r.sampling);
        r.sampling.temperature = 0;
        if (engine_submit(e, &r, 1, NULL, NULL, &s[i], &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
    }
    for (int i = -WARM; i < STEPS; i++) {
        uint64_t t0 = now_ns();
        gen_event ev;
        forward_ns = 0;
        engine_turn(e);
        if (i >= 0) ns[i] = now_ns() - t0 - forward_ns;
        for (uint32_t j = 0; j < rows; j++)
            do session_next(s[j], &ev);
            while (ev.kind != EV_NONE);
    }
    qsort(ns, STEPS, sizeof *ns, by_value);
    printf("%u rows, %u waiting, %u shares: a step costs %.1f us at the median, %.1f us at 99 %%, without the forward pass "
           "(bound: %.0f us)\n",
           rows, waiting, shares, (double)ns[STEPS / 2] / 1e3, (double)ns[STEPS * 99 / 100] / 1e3, 20.0 + rows);
    for (uint32_t i = 0; i < n; i++) session_free(s[i]);
    engine_close(e);
    m->ops = real_ops;
    model_close(m);
    hd_free(s);
    hd_free(ns);
    return 0;
}
