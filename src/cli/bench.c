/* bench.c - speed of a model on this machine: reading a prompt, and decoding with 1..n rows together.
 *
 * Prefill: a prompt of P tokens, timed from admission to the end of reading (no token is sampled), after one that is not
 * timed: memory that is touched for the first time costs up to a tenth of it.  Decode: rows of
 * depth + 8 prompt tokens that ignore EOS; the time from when the last row begins to decode until the first one ends, so
 * that all rows were in every step that counts.  Greedy, as fast as the executor goes; loading is not included.
 * --roofline measures the machine's limits before and after each of these; --phases says where the threads' time went. */
#include "base/mem.h"
#include "cli/bench_limits.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] = "heddle bench MODEL [-p 512] [-n 128] [-b 1,2,4,8,16,32] [--depth N] [--temperature T] [--roofline]\n"
                            "       [--phases] [--json] [--trace FILE]\n" MODEL_OPTS_USAGE;

/* Ids that are ordinary text in every vocabulary we know, spread out so that no row equals another. */
static void fill_prompt(int32_t *ids, uint32_t n, uint32_t n_vocab, uint32_t salt) {
    uint32_t x = 2654435761u * (salt + 1);
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)(n_vocab / 8 + (x >> 8) % (n_vocab / 2 + 1));
    }
}

/* One figure, and what else is known about it. */
typedef struct {
    double tok_s, cpu_tok_s;      /* by the clock, and by the CPU time of the whole process */
    double limit_tok_s;           /* 0: not asked for */
    double parts[STEP_PARTS + 1]; /* --phases: shares of all threads' time; the last is outside the forward pass */
} figure;

/* Shares of what went by between two readings, which were wall_us apart. */
static void take_parts(const loaded *l, const step_times *before, uint64_t wall_us, figure *f) {
    step_times after;
    double threads = model_get(l->m)->n_threads, all = (double)wall_us * 1000 * threads;
    model_step_times(l->m, &after);
    if (!after.n_steps || all <= 0) return;
    for (int i = 0; i < STEP_PARTS; i++) f->parts[i] = (double)(after.ns[i] - before->ns[i]) / all;
    f->parts[STEP_PARTS] = 1 - (double)(after.wall_ns - before->wall_ns) * threads / all;
}

/* What a busy neighbour cannot take away: with one thread, the speed that an idle machine would show. */
static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int bench_prefill(loaded *l, uint32_t n, figure *f) {
    int32_t *ids = hd_reallocarray(NULL, n, sizeof *ids);
    gen_request r = {.id = "", .prompt = ids, .n_prompt = n, .max_tokens = 0};
    session *s;
    step_times before;
    gen_event ev;
    double cpu;
    hd_err err;
    int rc = 0;
    if (!ids) return EXIT_FAILED;
    fill_prompt(ids, n, model_get(l->m)->n_vocab, n);
    sampling_defaults(&r.sampling);
    model_step_times(l->m, &before);
    cpu = cpu_s();
    if (engine_submit(l->e, &r, 1, NULL, NULL, &s, &err)) {
        hd_free(ids);
        return fail_with(&err);
    }
    do session_wait(s, &ev, UINT64_MAX);
    while (ev.kind != EV_DONE);
    if (ev.finish == FINISH_FAILED) rc = fail_with(&ev.err);
    f->tok_s = n / ((double)ev.stats.prefill_us / 1e6);
    f->cpu_tok_s = n / (cpu_s() - cpu);
    take_parts(l, &before, ev.stats.prefill_us, f);
    session_free(s);
    hd_free(ids);
    return rc;
}

typedef struct {
    session *s;
    uint64_t n;
    bool done;
} stream;

static void on_event(void *ctx) { sem_post(ctx); }

/* Count tokens that arrive between "all rows decode" and "the first row ends". */
static int bench_decode(loaded *l, uint32_t rows, uint32_t depth, uint32_t n, float temperature, figure *f) {
    stream *st = hd_calloc(rows, sizeof *st);
    session **ss = hd_calloc(rows, sizeof *ss);
    gen_request *rq = hd_calloc(rows, sizeof *rq);
    void **ctx = hd_calloc(rows, sizeof *ctx);
    int32_t *ids = hd_reallocarray(NULL, (size_t)rows * (depth + 8), sizeof *ids);
    uint64_t t0 = 0, t1 = 0, counted = 0;
    uint32_t begun = 0, ended = 0;
    step_times before = {0};
    double cpu = 0;
    sem_t ready;
    hd_err err;
    int rc = st && ss && rq && ctx && ids ? 0 : EXIT_FAILED;
    sem_init(&ready, 0, 0);
    for (uint32_t i = 0; !rc && i < rows; i++) {
        fill_prompt(ids + (size_t)i * (depth + 8), depth + 8, model_get(l->m)->n_vocab, i);
        rq[i] = (gen_request){.id = "", .prompt = ids + (size_t)i * (depth + 8), .n_prompt = depth + 8, .max_tokens = n + 1,
                              .ignore_eos = true};
        sampling_defaults(&rq[i].sampling);
        rq[i].sampling.temperature = temperature;
        ctx[i] = &ready;
    }
    if (!rc && engine_submit(l->e, rq, rows, on_event, ctx, ss, &err)) rc = fail_with(&err);
    while (!rc && ended < rows) {
        sem_wait(&ready);
        for (uint32_t i = 0; i < rows; i++) {
            gen_event ev;
            for (session_next(ss[i], &ev); ev.kind != EV_NONE; session_next(ss[i], &ev)) {
                if (ev.kind == EV_TOKEN && !st[i].n++ && ++begun == rows)
                    t0 = hd_now_us(&hd_clock_real), cpu = cpu_s(), model_step_times(l->m, &before);
                else if (ev.kind == EV_TOKEN && begun == rows && !ended) counted++;
                if (ev.kind == EV_DONE) {
                    if (!ended++) t1 = hd_now_us(&hd_clock_real), cpu = cpu_s() - cpu, take_parts(l, &before, t1 - t0, f);
                    if (ev.finish == FINISH_FAILED) rc = fail_with(&ev.err);
                }
            }
        }
    }
    if (!rc && (!t0 || t1 <= t0 || !counted)) {
        fprintf(stderr, "heddle: %u rows were never decoding together: -n %u is too short for prompts of %u tokens\n", rows, n,
                depth + 8);
        rc = EXIT_FAILED;
    }
    f->tok_s = rc ? 0 : (double)counted / ((double)(t1 - t0) / 1e6);
    f->cpu_tok_s = rc || cpu <= 0 ? 0 : (double)counted / cpu;
    for (uint32_t i = 0; ss && i < rows; i++) session_free(ss[i]);
    sem_destroy(&ready);
    hd_free(st);
    hd_free(ss);
    hd_free(rq);
    hd_free(ctx);
    hd_free(ids);
    return rc;
}

static uint64_t rss_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long long size, resident = 0;
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident * 4096;
}

enum { LIST_MAX = 16, LIST_VALUE_MAX = 4096 };

/* The numbers of an option, as "1,2,4"; none for "0".  False after a message. */
static bool parse_list(const char *option, const char *list, uint32_t v[LIST_MAX], size_t *n) {
    const char *s = list;
    *n = 0;
    if (!strcmp(list, "0")) return true;
    do {
        char *end;
        unsigned long x = strtoul(s, &end, 10);
        if (*s < '0' || *s > '9' || !x || x > LIST_VALUE_MAX || (*end && *end != ',') || *n == LIST_MAX) {
            fprintf(stderr, "heddle: %s takes up to %d numbers from 1 to %d with commas between, or 0 for none, not '%.100s'\n", option,
                    LIST_MAX, LIST_VALUE_MAX, list);
            return false;
        }
        v[(*n)++] = (uint32_t)x;
        s = *end ? end + 1 : end;
    } while (*s);
    return true;
}

/* Whether every run that the options ask for fits the context.  False after a message. */
static bool check_context(const loaded *l, const uint32_t *ps, size_t n_ps, size_t n_bs, uint32_t depth) {
    engine_view v;
    engine_look(l->e, &v);
    for (size_t i = 0; i < n_ps; i++)
        if (ps[i] > v.ctx) {
            fprintf(stderr, "heddle: -p %u is beyond the context of %u tokens (--ctx)\n", ps[i], v.ctx);
            return false;
        }
    if (n_bs && (uint64_t)depth + 8 >= v.ctx) {
        fprintf(stderr, "heddle: --depth %u is beyond the context of %u tokens (--ctx): each row starts with 8 more\n", depth, v.ctx);
        return false;
    }
    return true;
}

static const char *const part_names[STEP_PARTS + 1] = {"matrices", "head", "attention", "vectors", "waiting", "outside"};

static void report(const figure *f, bool phases, bool json, jsonw *w) {
    jsonw_key(w, "cpu_tok_s"), jsonw_num(w, f->cpu_tok_s);
    if (f->limit_tok_s > 0) {
        double share = f->tok_s / f->limit_tok_s;
        if (!json) printf("  %4.2f of the limit", share);
        jsonw_key(w, "share"), jsonw_num(w, share);
    }
    if (phases) {
        jsonw_key(w, "phases"), jsonw_obj(w);
        if (!json) printf("\n   ");
        for (int i = 0; i <= STEP_PARTS; i++) {
            if (!json) printf(" %s %.1f %%", part_names[i], 100 * f->parts[i]);
            jsonw_key(w, part_names[i]), jsonw_num(w, f->parts[i]);
        }
        jsonw_obj_end(w);
    }
    if (!json) printf("\n");
}

/* Bytes that a position keeps in each layer group, as the options say. */
static void kv_bytes(const loaded *l, const model_opts *o, uint64_t *out) {
    model_options mo;
    engine_options eo;
    if (model_opts_take(o, &mo, &eo)) return;
    for (uint32_t g = 0; g < model_get(l->m)->n_groups; g++) {
        kv_scheme scheme = model_get(l->m)->groups[g].window && eo.kv_type_sliding ? eo.kv_type_sliding : eo.kv_type;
        out[g] = model_page_bytes(l->m, g, 16, scheme ? scheme : KV_F16) / 16;
    }
}

int cmd_bench(int argc, char **argv) {
    model_opts mo = {.no_cache = true}; /* equal prompts are to be computed */
    const char *prefills = "512", *rows = "1,2,4,8,16,32", *args[1];
    float temperature = 0;
    uint32_t n = 128, depth = 0, ps[LIST_MAX], bs[LIST_MAX];
    size_t n_args, n_ps, n_bs;
    bool json = false, roofline = false, phases = false;
    uint64_t kv[MODEL_MAX_GROUPS] = {0}, rss;
    loaded l;
    limits lim = {0};
    hd_err err;
    hd_buf b;
    jsonw w;
    int rc;
    const opt_def defs[] = {MODEL_OPT_DEFS(mo), TRACE_OPT_DEF(mo), {"-p", OPT_STR, &prefills, NULL}, {"-n", OPT_COUNT, &n, NULL},
                            {"-b", OPT_STR, &rows, NULL}, {"--depth", OPT_UINT, &depth, NULL},
                            {"--temperature", OPT_FLOAT, &temperature, NULL}, {"--json", OPT_FLAG, &json, NULL},
                            {"--roofline", OPT_FLAG, &roofline, NULL}, {"--phases", OPT_FLAG, &phases, NULL}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 1, &n_args, usage))) return rc;
    if (!parse_list("-p", prefills, ps, &n_ps) || !parse_list("-b", rows, bs, &n_bs)) return EXIT_USAGE;
    if (n_args != 1) {
        fprintf(stderr, "usage: %s\n", usage);
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < n_bs; i++)
        if (bs[i] > mo.max_rows) mo.max_rows = bs[i];
    if ((rc = loaded_open(&l, args[0], &mo, true))) return rc;
    if (!check_context(&l, ps, n_ps, n_bs, depth)) {
        loaded_close(&l);
        return EXIT_FAILED;
    }
    kv_bytes(&l, &mo, kv);
    if (phases) model_time_steps(l.m, true);
    if (roofline && limits_open(&lim, l.m, &err)) {
        loaded_close(&l);
        return fail_with(&err);
    }
    buf_init(&b, 1 << 20);
    jsonw_init(&w, &b);
    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, model_get(l.m)->name);
    jsonw_key(&w, "threads"), jsonw_uint(&w, model_get(l.m)->n_threads);
    jsonw_key(&w, "isa"), jsonw_str(&w, model_get(l.m)->isa);
    jsonw_key(&w, "prefill"), jsonw_arr(&w);
    for (size_t i = 0; !rc && i < n_ps; i++) {
        figure f = {0}, warm = {0};
        if ((rc = bench_prefill(&l, ps[i], &warm))) break;
        limits_take(&lim);
        if ((rc = bench_prefill(&l, ps[i], &f))) break;
        if (roofline) f.limit_tok_s = limits_prompt(&lim, ps[i]);
        if (!json) printf("prefill %5u tokens  %9.1f tok/s", ps[i], f.tok_s);
        jsonw_obj(&w);
        jsonw_key(&w, "tokens"), jsonw_uint(&w, ps[i]);
        jsonw_key(&w, "tok_s"), jsonw_num(&w, f.tok_s);
        report(&f, phases, json, &w);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    jsonw_key(&w, "decode"), jsonw_arr(&w);
    for (size_t i = 0; !rc && i < n_bs; i++) {
        figure f = {0};
        limits_take(&lim);
        if ((rc = bench_decode(&l, bs[i], depth, n, temperature, &f))) break;
        if (roofline) f.limit_tok_s = limits_decode(&lim, bs[i], depth + 8 + n / 2, kv);
        if (!json) printf("decode %4u rows      %9.1f tok/s  at depth %u", bs[i], f.tok_s, depth);
        jsonw_obj(&w);
        jsonw_key(&w, "rows"), jsonw_uint(&w, bs[i]);
        jsonw_key(&w, "tok_s"), jsonw_num(&w, f.tok_s);
        jsonw_key(&w, "depth"), jsonw_uint(&w, depth);
        report(&f, phases, json, &w);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    if (roofline) {
        if (!rc && !json) limits_print(&lim);
        jsonw_key(&w, "roofline"), limits_write(&lim, &w);
    }
    rss = rss_bytes();
    jsonw_key(&w, "load_ms"), jsonw_num(&w, (double)l.load_us / 1000);
    jsonw_key(&w, "rss_bytes"), jsonw_uint(&w, rss - lim.bytes * model_get(l.m)->n_threads); /* without what was only read */
    jsonw_obj_end(&w);
    limits_close(&lim);
    if (!rc && json) puts(buf_cstr(&b));
    buf_deinit(&b);
    loaded_close(&l);
    return stdout_ok() ? rc : EXIT_FAILED;
}
