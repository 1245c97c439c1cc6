/* bench_kv.c - what each way to keep keys and values costs in quality, against f32.
 *
 *   bench_kv MODEL FILE CTX MAX-TOKENS T[,T]...          bench_kv model.gguf text.txt 2048 16384 f16 q8 q4 q8,q4
 *
 * The text is cut into pieces of CTX tokens (BOS first where the file says so).  The model runs once with f32 and once with
 * each T, in step, so that the logits of every position meet: mean KL divergence of f32 to T in nats, the largest of one
 * position, the share of positions with the same most likely token, and the perplexity over every position after the first
 * of a piece.  T,T: layers with full attention, layers with a sliding window. */
#include "base/mem.h"
#include "exec/engine.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 12 };

typedef struct {
    const char *name;
    model *m;
    engine *e;
    session *s;
    gen_event ev;
    double nll, kl, kl_max;
    size_t same_top;
} run;

static void die(const char *what, const hd_err *err) {
    fprintf(stderr, "bench_kv: %s: %s\n", what, err->msg);
    exit(1);
}

static void open_run(run *r, const char *path, const char *kv, uint32_t ctx) {
    model_options mo = {.n_threads = 2};
    engine_options eo = {.max_rows = 1, .ctx = ctx, .kv_budget_bytes = (uint64_t)1 << 30};
    size_t n = strcspn(kv, ",");
    hd_err err;
    r->name = kv;
    if (!kv_scheme_by_name(kv, n, &eo.kv_type) ||
        (kv[n] && !kv_scheme_by_name(kv + n + 1, strlen(kv + n + 1), &eo.kv_type_sliding))) {
        fprintf(stderr, "bench_kv: %s is not " KV_SCHEME_NAMES ", nor two of them\n", kv);
        exit(64);
    }
    if (model_open(&r->m, path, &mo, &err) || engine_open(&r->e, r->m, &eo, &err)) die(path, &err);
}

static double kl(const float *p, double lp, const float *q, double lq, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double a = (double)p[i] - lp;
        if (a > -60) sum += exp(a) * (a - ((double)q[i] - lq));
    }
    return sum;
}

/* The position that all runs stand at; next < 0: there is no token after it. */
static void compare(run *runs, int n, int32_t next) {
    const kernels *k = kernels_get(NULL);
    const float *ref = runs[0].ev.logits;
    uint32_t vocab = runs[0].ev.n_logits, top = vec_argmax(k, ref, vocab);
    double l0 = vec_logsumexp(k, ref, vocab);
    for (int i = 0; i < n; i++) {
        run *r = &runs[i];
        double l = vec_logsumexp(k, r->ev.logits, vocab), d = kl(ref, l0, r->ev.logits, l, vocab);
        r->kl += d;
        if (d > r->kl_max) r->kl_max = d;
        r->same_top += vec_argmax(k, r->ev.logits, vocab) == top;
        if (next >= 0) r->nll += l - (double)r->ev.logits[next];
    }
}

static void piece(run *runs, int n, const int32_t *ids, uint32_t n_ids) {
    gen_request q = {.id = "", .prompt = ids, .n_prompt = n_ids, .prompt_logits = true};
    hd_err err;
    sampling_defaults(&q.sampling);
    for (int i = 0; i < n; i++)
        if (engine_submit(runs[i].e, &q, 1, NULL, NULL, &runs[i].s, &err)) die(runs[i].name, &err);
    for (uint32_t p = 0; p < n_ids; p++) {
        for (int i = 0; i < n; i++) {
            do session_wait(runs[i].s, &runs[i].ev, UINT64_MAX);
            while (runs[i].ev.kind != EV_LOGITS && runs[i].ev.kind != EV_DONE);
            if (runs[i].ev.kind == EV_DONE) die(runs[i].name, &runs[i].ev.err);
        }
        compare(runs, n, p + 1 < n_ids ? ids[p + 1] : -1);
    }
    for (int i = 0; i < n; i++) session_free(runs[i].s);
}

int main(int argc, char **argv) {
    static run runs[MAX_RUNS];
    int n = argc - 4;
    uint32_t ctx = argc > 4 ? (uint32_t)atoi(argv[3]) : 0;
    size_t max = argc > 4 ? (size_t)atol(argv[4]) : 0, positions = 0, scored = 0;
    id_list ids;
    hd_err err;
    if (argc < 6 || n > MAX_RUNS || ctx < 2 || max < 2) {
        fprintf(stderr, "usage: bench_kv MODEL FILE CTX MAX-TOKENS T[,T]...\n");
        return 64;
    }
    FILE *f = fopen(argv[2], "rb");
    char *text = hd_alloc(8 << 20);
    size_t n_text = f && text ? fread(text, 1, 8 << 20, f) : 0;
    if (f) fclose(f);
    open_run(&runs[0], argv[1], "f32", ctx);
    for (int i = 1; i < n; i++) open_run(&runs[i], argv[1], argv[4 + i], ctx);
    const model_info *in = model_get(runs[0].m);
    id_list_init(&ids, 1u << 24);
    if (tokenizer_encode(in->tok, text, n_text, 0, &ids, &err)) die(argv[2], &err);
    if (ids.n > max) ids.n = max;
    bool bos = tokenizer_adds_bos(in->tok) && in->bos >= 0;
    int32_t *chunk = hd_reallocarray(NULL, ctx, sizeof *chunk);
    if (!chunk) return 1;
    for (size_t at = 0; at < ids.n; at += ctx - bos) {
        uint32_t len = ids.n - at < ctx - bos ? (uint32_t)(ids.n - at) : ctx - bos;
        if (bos) chunk[0] = in->bos;
        memcpy(chunk + bos, ids.ids + at, len * sizeof *chunk);
        len += bos;
        if (len < 2) break;
        piece(runs, n, chunk, len);
        positions += len;
        scored += len - 1;
    }
    printf("%s, %zu tokens in pieces of %u\n", in->name, positions, ctx);
    for (int i = 0; i < n; i++)
        printf("%-10s mean KL %.3e, largest %.3e, same top %.2f %%, perplexity %.4f\n", runs[i].name, runs[i].kl / (double)positions,
               runs[i].kl_max, 100.0 * (double)runs[i].same_top / (double)positions, exp(runs[i].nll / (double)scored));
    for (int i = 0; i < n; i++) {
        engine_close(runs[i].e);
        model_close(runs[i].m);
    }
    id_list_deinit(&ids);
    hd_free(chunk);
    hd_free(text);
    return 0;
}
