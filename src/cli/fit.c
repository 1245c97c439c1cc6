/* fit.c - `heddle fit MODEL`: what a model needs and what of it this machine holds, before it is loaded.
 *
 * The model is opened for its sizes: header and vocabulary are read, weights are not.  The numbers are those that loading,
 * planning and admission use themselves (model_options.sizes_only, exec/plan.h); only "program", what this process holds by
 * now and what its threads will, is an estimate.  What a server takes on top, at most and only while clients use it, is
 * told apart (serve/bounds.h): with --serving it is part of the verdict, without it the verdict says that it is not. */
#include "cli/common.h"

#include "base/mem.h"
#include "base/topology.h"
#include "exec/plan.h"
#include "model/pack.h"
#include "serve/bounds.h"

#include <string.h>

enum {
    THREAD_BYTES = 96 << 10, /* stack that a thread touches, and its share of the heap's slack */
    PROGRAM_BYTES = 2 << 20, /* what loading, planning and the first step leave in the heap */
    MAX_ADVICE = 6,
    ADVICE_BYTES = 96,
    MIB = 1 << 20
};

/* Options, and what they come to. */
typedef struct {
    engine_options opt; /* filled in; ctx: asked for, at most the model's own */
    engine_plan plan;
    uint32_t ctx;       /* effective: what the budget holds for one row; 0: not even 2 tokens */
    uint64_t workspace, tables, fixed; /* fixed: all but the budget, with --serving clients too */
} sized;

typedef struct {
    const model *m;
    const model_info *in;
    uint64_t limit, program, store;    /* store: the tier on disk, where there is one */
    uint64_t packed;                   /* bytes on disk of packed weights, where they are kept */
    server_options serve;
    server_needs serving;
    bool asked, own_budget, own_limit; /* --ctx or --rows; --kv-budget; --memory */
    bool serves;                       /* --serving: what clients may take counts */
    uint32_t want_ctx, rows, usual_rows;
    sized s;
    uint64_t need, left, default_budget;
    bool whole;             /* the budget and all else are within the limit */
    bool fits;
    char advice[MAX_ADVICE][ADVICE_BYTES];
    size_t n_advice;
} fit;

/* ---- working it out ---- */

/* Anonymous memory of this process. */
static uint64_t own_bytes(void) {
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[200];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

static server_needs serving_needs(const fit *f, const sized *s) {
    return server_plan(&f->serve, s->opt.max_rows, s->opt.max_queued, f->in->chat != NULL);
}

static hd_status size_up(const fit *f, const engine_options *want, sized *s, hd_err *err) {
    engine_options bounded;
    engine_plan plan;
    hd_status st;
    s->opt = *want;
    if ((st = engine_plan_make(&s->plan, &s->opt, f->m, f->limit, err))) return st;
    bounded = s->opt;
    plan = s->plan;
    s->ctx = engine_plan_bound(&plan, &bounded, NULL) ? 0 : bounded.ctx;
    s->workspace = model_workspace_bytes(f->m, &plan.lim);
    s->tables = engine_plan_tables_bytes(&plan, &bounded, f->in);
    s->fixed = f->in->weight_bytes + f->in->vector_bytes + s->workspace + s->tables + f->store + f->program;
    if (f->serves) s->fixed += serving_needs(f, s).total;
    return HD_OK;
}

static uint64_t times(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

static bool within(const fit *f, const sized *s) {
    return s->fixed <= f->limit && s->opt.kv_budget_bytes <= f->limit - s->fixed;
}

/* Do the wanted rows fit with these options? */
static bool holds(const fit *f, const sized *s) {
    return f->want_ctx <= f->in->ctx_train && within(f, s) &&
           times(engine_plan_row_bytes(&s->plan, s->opt.ctx), f->rows) <= s->opt.kv_budget_bytes;
}

static void add_advice(fit *f, const char *budget, const char *text) {
    if (f->n_advice < MAX_ADVICE) snprintf(f->advice[f->n_advice++], ADVICE_BYTES, "%s%s", budget, text);
}

/* What would make it fit, each for itself and tried out. */
static void advise(fit *f) {
    sized base = f->s, s;
    engine_options o;
    char budget[40] = "", text[ADVICE_BYTES];
    uint32_t ctx;
    uint64_t rows;
    if (!f->whole) { /* a smaller budget then, and the rest with that */
        o = f->s.opt;
        o.kv_budget_bytes = f->left / MIB * MIB;
        if (!o.kv_budget_bytes || size_up(f, &o, &base, NULL) || !within(f, &base)) return;
        snprintf(budget, sizeof budget, "--kv-budget %lluM", (unsigned long long)(o.kv_budget_bytes / MIB));
        if (holds(f, &base)) {
            add_advice(f, budget, "");
            return;
        }
        strcat(budget, " ");
    }
    if ((ctx = engine_plan_longest(&base.plan, base.opt.kv_budget_bytes, f->rows, base.opt.ctx)) && ctx < f->want_ctx) {
        snprintf(text, sizeof text, "--ctx %u", ctx);
        add_advice(f, budget, text);
    }
    for (kv_scheme k = KV_Q8; k <= KV_Q4; k++) {
        o = base.opt;
        o.kv_type = o.kv_type_sliding = k;
        if (size_up(f, &o, &s, NULL) || !holds(f, &s)) continue;
        snprintf(text, sizeof text, "--kv-type %s", kv_scheme_name(k));
        add_advice(f, budget, text);
    }
    rows = f->want_ctx <= f->in->ctx_train ? engine_plan_rows(&base.plan, base.opt.kv_budget_bytes, base.opt.ctx) : 0;
    if (rows && rows < f->rows) {
        snprintf(text, sizeof text, "--rows %llu", (unsigned long long)rows);
        add_advice(f, budget, text);
    }
    o = f->s.opt;
    if (!f->whole || f->need > UINT64_MAX - MIB) return;
    o.kv_budget_bytes = (f->need + MIB - 1) / MIB * MIB;
    if (o.kv_budget_bytes <= f->s.opt.kv_budget_bytes || size_up(f, &o, &s, NULL) || !holds(f, &s)) return;
    snprintf(text, sizeof text, "--kv-budget %lluM", (unsigned long long)(o.kv_budget_bytes / MIB));
    add_advice(f, "", text);
}

static hd_status work_out(fit *f, const engine_options *want, hd_err *err) {
    engine_options dflt = *want;
    sized s;
    hd_status st;
    if ((st = size_up(f, want, &f->s, err))) return st;
    dflt.kv_budget_bytes = 0;
    if ((st = size_up(f, &dflt, &s, err))) return st;
    f->serving = serving_needs(f, &f->s);
    f->default_budget = s.opt.kv_budget_bytes;
    if (!f->want_ctx) f->want_ctx = f->in->ctx_train;
    f->need = times(engine_plan_row_bytes(&f->s.plan, f->s.opt.ctx), f->rows);
    f->left = f->limit > f->s.fixed ? f->limit - f->s.fixed : 0;
    f->whole = within(f, &f->s);
    f->fits = holds(f, &f->s);
    if (!f->fits) advise(f);
    return HD_OK;
}

static const char *verdict(const fit *f) { return f->fits ? "fits" : f->n_advice ? "fits_with" : "does_not_fit"; }

/* Runs as asked: without a wish the engine takes the context that the budget holds by itself. */
static bool runs(const fit *f) { return f->fits || (!f->asked && f->whole && f->s.ctx); }

/* ---- telling it ---- */

static uint64_t token_bytes(const engine_plan *p, uint32_t g) {
    return (p->page_bytes[g] + p->page_tokens - 1) / p->page_tokens;
}

static void print_line(const char *what, uint64_t bytes, const char *note) {
    char size[32];
    printf("  %-16s %10s%s%s\n", what, size_text(bytes, size), *note ? "  " : "", note);
}

static void print_memory(const fit *f) {
    const model_info *in = f->in;
    const sized *s = &f->s;
    char note[160];
    printf("memory\n");
    print_line("file", in->file_bytes, "");
    snprintf(note, sizeof note, "packed for %s", in->isa);
    print_line("weights", in->weight_bytes, in->weight_bytes ? note : "");
    print_line("norms, biases", in->vector_bytes, "");
    snprintf(note, sizeof note, "%u tokens a step, %u rows", s->opt.step_tokens, s->opt.max_rows);
    print_line("workspace", s->workspace, note);
    print_line("tables", s->tables, "lists of pages, prefix tree, rows and their queues");
    if (f->store) print_line("disk tier", f->store, "its queue, and what it knows of files");
    snprintf(note, sizeof note, "vocabulary, %u threads; about", in->n_threads);
    print_line("program", f->program, note);
    if (f->serves) {
        print_line("connections", f->serving.connections, "of clients: --max-connections");
        print_line("bodies", f->serving.bodies, "as they arrive: --max-body");
        print_line("requests", f->serving.requests, "planned, waiting or running: --max-body, --max-queued");
        print_line("replies", f->serving.replies, "not yet taken: --max-replies");
        print_line("planners", f->serving.planners, "reading bodies: --max-body");
        if (f->serving.log) print_line("request log", f->serving.log, "of durable requests");
    }
    print_line("before KV", s->fixed, f->serves ? "with all that clients can take of a server" : "");
    print_line("limit", f->limit, f->own_limit ? "--memory" : "of this process: the machine's memory, or less by control group");
    print_line("left for KV", f->left, "at most");
    print_line("KV budget", s->opt.kv_budget_bytes, f->own_budget ? "--kv-budget" : "default: half of (limit - weights)");
    print_line("in all", s->fixed + s->opt.kv_budget_bytes, "");
    if (f->packed) print_line("packed file", f->packed, "on disk; its pages are the weights then, shared with other processes");
    if (in->mapped_bytes) print_line("mapped", in->mapped_bytes, "token embedding, read from the file; the system may drop it");
}

static void print_schemes(const fit *f) {
    char token[64], page[80], a[32], b[32], rows[16];
    snprintf(rows, sizeof rows, "%u", f->s.opt.ctx);
    printf("\nkeys and values, in pages of %u tokens%s\n", f->s.opt.page_tokens,
           f->s.plan.n_groups > 1 ? "; full attention + sliding window" : "");
    printf("  %-5s  %15s  %21s  %9s%-6s  %11s  %8s%s\n", "", "bytes per token", "page", "a row of ", rows, "longest row", "rows of ", rows);
    for (kv_scheme k = KV_DEFAULT + 1; k < KV_SCHEMES; k++) {
        engine_options o = f->s.opt;
        sized s;
        bool used = k == o.kv_type || k == o.kv_type_sliding;
        o.kv_type = o.kv_type_sliding = k;
        if (size_up(f, &o, &s, NULL)) continue;
        snprintf(token, sizeof token, "%llu", (unsigned long long)token_bytes(&s.plan, 0));
        snprintf(page, sizeof page, "%s", size_text(s.plan.page_stride[0], a));
        if (s.plan.n_groups > 1) {
            snprintf(token, sizeof token, "%llu + %llu", (unsigned long long)token_bytes(&s.plan, 0),
                     (unsigned long long)token_bytes(&s.plan, 1));
            snprintf(page, sizeof page, "%s + %s", size_text(s.plan.page_stride[0], a), size_text(s.plan.page_stride[1], b));
        }
        printf("  %-4s%s  %15s  %21s  %15s  %11u  %8llu\n", kv_scheme_name(k), used ? "*" : " ", token, page,
               size_text(engine_plan_row_bytes(&s.plan, s.opt.ctx), a), s.ctx,
               (unsigned long long)engine_plan_rows(&s.plan, s.opt.kv_budget_bytes, s.opt.ctx));
    }
    if (f->s.opt.kv_type != f->s.opt.kv_type_sliding)
        printf("  * as asked: %s for full attention, %s for windows: a row of %u takes %s, the longest has %u, %llu rows\n",
               kv_scheme_name(f->s.opt.kv_type), kv_scheme_name(f->s.opt.kv_type_sliding), f->s.opt.ctx,
               size_text(engine_plan_row_bytes(&f->s.plan, f->s.opt.ctx), a), f->s.ctx,
               (unsigned long long)engine_plan_rows(&f->s.plan, f->s.opt.kv_budget_bytes, f->s.opt.ctx));
}

/* Clients of a server can take more than is here, or not: said where the verdict does not count them. */
static void print_serving(const fit *f) {
    char a[32];
    uint64_t all = f->s.fixed + f->s.opt.kv_budget_bytes;
    if (f->serves || !runs(f)) return;
    printf("  not counted: what clients can take of a server at its limits, at most %s%s; --serving counts it\n", size_text(f->serving.total, a),
           f->limit - all < f->serving.total ? ", which is more than is left" : "");
}

static void print_verdict(const fit *f) {
    char a[32], b[32];
    printf("\n%u row%s of %u tokens: ", f->rows, f->rows == 1 ? "" : "s", f->want_ctx);
    if (f->fits) printf("fits");
    else if (f->n_advice) printf("fits with");
    else printf("does not fit");
    for (size_t i = 0; i < f->n_advice; i++) printf("%s %s", i ? ", or" : "", f->advice[i]);
    printf("\n");
    if (f->fits) {
        if (f->rows > f->usual_rows) printf("  so many at once need --max-rows %u\n", f->rows);
        print_serving(f);
        return;
    }
    if (f->want_ctx > f->in->ctx_train) printf("  the model's own context is %u\n", f->in->ctx_train);
    if (!f->whole) {
        printf("  %s before KV and the budget are more than the limit of %s\n", size_text(f->s.fixed, a), size_text(f->limit, b));
        if (f->serves) printf("  clients can take less of a server with a smaller --max-body, --max-replies or --max-connections\n");
    }
    else if (f->need > f->s.opt.kv_budget_bytes)
        printf("  keys and values take %s, the budget is %s\n", size_text(f->need, a), size_text(f->s.opt.kv_budget_bytes, b));
    if (runs(f)) printf("  without options it runs with a context of %u\n", f->s.ctx);
    else printf("  as asked it does not run\n");
    print_serving(f);
}

static void print_text(const fit *f) {
    const model_info *in = f->in;
    printf("%s: %s, %.1f million parameters, %u layers", in->name, in->arch, (double)in->n_params / 1e6, in->n_layers);
    for (uint32_t g = 0; g < in->n_groups; g++)
        if (in->groups[g].window) printf(" (%u with a window of %u)", in->groups[g].n_layers, in->groups[g].window);
    printf(", context %u\n\n", in->ctx_train);
    print_memory(f);
    print_schemes(f);
    print_verdict(f);
}

static void put_uint(jsonw *w, const char *key, uint64_t v) {
    jsonw_key(w, key);
    jsonw_uint(w, v);
}

static void put_str(jsonw *w, const char *key, const char *v) {
    jsonw_key(w, key);
    jsonw_str(w, v);
}

/* A row of the table. */
static void put_sized(jsonw *w, const sized *s) {
    jsonw_key(w, "bytes_per_token");
    jsonw_arr(w);
    for (uint32_t g = 0; g < s->plan.n_groups; g++) jsonw_uint(w, token_bytes(&s->plan, g));
    jsonw_arr_end(w);
    jsonw_key(w, "page_bytes");
    jsonw_arr(w);
    for (uint32_t g = 0; g < s->plan.n_groups; g++) jsonw_uint(w, s->plan.page_stride[g]);
    jsonw_arr_end(w);
    put_uint(w, "row_bytes", engine_plan_row_bytes(&s->plan, s->opt.ctx));
    put_uint(w, "largest_context", s->ctx);
    put_uint(w, "rows_that_fit", engine_plan_rows(&s->plan, s->opt.kv_budget_bytes, s->opt.ctx));
}

static void put_groups(jsonw *w, const model_info *in) {
    jsonw_key(w, "groups");
    jsonw_arr(w);
    for (uint32_t g = 0; g < in->n_groups; g++) {
        jsonw_obj(w);
        put_str(w, "kind", in->groups[g].window ? "sliding" : "full");
        put_uint(w, "layers", in->groups[g].n_layers);
        put_uint(w, "window", in->groups[g].window);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
}

static void put_schemes(jsonw *w, const fit *f) {
    jsonw_key(w, "schemes");
    jsonw_arr(w);
    for (kv_scheme k = KV_DEFAULT + 1; k < KV_SCHEMES; k++) {
        engine_options o = f->s.opt;
        sized s;
        o.kv_type = o.kv_type_sliding = k;
        if (size_up(f, &o, &s, NULL)) continue;
        jsonw_obj(w);
        put_str(w, "kv_type", kv_scheme_name(k));
        put_sized(w, &s);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
}

static int print_json(const fit *f) {
    const model_info *in = f->in;
    const struct {
        const char *key;
        uint64_t v;
    } numbers[] = {
        {"parameters", in->n_params}, {"layers", in->n_layers}, {"context_train", in->ctx_train}, {"file_bytes", in->file_bytes},
        {"weight_bytes", in->weight_bytes}, {"vector_bytes", in->vector_bytes}, {"mapped_bytes", in->mapped_bytes},
        {"workspace_bytes", f->s.workspace}, {"table_bytes", f->s.tables}, {"store_bytes", f->store}, {"packed_file_bytes", f->packed},
        {"program_bytes", f->program},
        {"fixed_bytes", f->s.fixed}, {"memory_limit_bytes", f->limit}, {"left_bytes", f->left},
        {"kv_budget_default_bytes", f->default_budget}, {"kv_budget_bytes", f->s.opt.kv_budget_bytes},
        {"total_bytes", f->s.fixed + f->s.opt.kv_budget_bytes}, {"serving_connection_bytes", f->serving.connections},
        {"serving_body_bytes", f->serving.bodies}, {"serving_request_bytes", f->serving.requests},
        {"serving_reply_bytes", f->serving.replies}, {"serving_planner_bytes", f->serving.planners},
        {"serving_log_bytes", f->serving.log}, {"serving_total_bytes", f->serving.total}, {"page_tokens", f->s.opt.page_tokens},
        {"step_tokens", f->s.opt.step_tokens}, {"max_rows", f->s.opt.max_rows}, {"threads", in->n_threads},
        {"context", f->want_ctx}, {"rows", f->rows}, {"needed_kv_bytes", f->need},
    };
    hd_buf b;
    jsonw w;
    int rc = 0;
    buf_init(&b, 1 << 20);
    jsonw_init(&w, &b);
    jsonw_obj(&w);
    put_str(&w, "model", in->name);
    put_str(&w, "arch", in->arch);
    put_str(&w, "isa", in->isa);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) put_uint(&w, numbers[i].key, numbers[i].v);
    put_groups(&w, in);
    put_schemes(&w, f);
    put_str(&w, "kv_type", kv_scheme_name(f->s.opt.kv_type));
    put_str(&w, "kv_type_sliding", kv_scheme_name(f->s.opt.kv_type_sliding));
    put_sized(&w, &f->s);
    put_str(&w, "verdict", verdict(f));
    jsonw_key(&w, "advice");
    jsonw_arr(&w);
    for (size_t i = 0; i < f->n_advice; i++) jsonw_str(&w, f->advice[i]);
    jsonw_arr_end(&w);
    jsonw_key(&w, "serving_counted");
    jsonw_bool(&w, f->serves);
    jsonw_key(&w, "runs");
    jsonw_bool(&w, runs(f));
    jsonw_obj_end(&w);
    if (b.failed) {
        fprintf(stderr, "heddle: no memory\n");
        rc = EXIT_FAILED;
    } else {
        puts(buf_cstr(&b));
    }
    buf_deinit(&b);
    return rc;
}

int cmd_fit(int argc, char **argv) {
    static const char usage[] = "heddle fit MODEL [--ctx N] [--rows N] [--kv-budget SIZE] [--kv-type T[,T]] [--step-tokens N] [--max-rows N] "
                                "[--page-tokens N] [--threads N] [--isa NAME] [--state-dir D] [--state-cap SIZE] [--pack-cache D|off] [--max-queued N] "
                                "[--max-body SIZE] [--max-replies SIZE] [--max-connections N] [--serving] [--memory SIZE] [--json]";
    model_opts mo = {0};
    model_options model_opt;
    engine_options eo;
    const char *args[1];
    bool json = false, packs;
    char pack_dir[PACK_DIR_MAX];
    size_t n_args;
    model *m = NULL;
    fit f = {0};
    uint64_t max_body = 0, max_replies = 0;
    hd_err err;
    int rc;
    const opt_def defs[] = {MODEL_OPT_DEFS(mo), {"--rows", OPT_COUNT, &f.rows, NULL}, {"--memory", OPT_BYTES, &f.limit, NULL},
                            {"--max-queued", OPT_COUNT, &mo.max_queued, NULL},
                            {"--default-max-tokens", OPT_COUNT, &mo.default_max_tokens, NULL}, {"--max-body", OPT_BYTES, &max_body, NULL},
                            {"--max-replies", OPT_BYTES, &max_replies, NULL},
                            {"--max-connections", OPT_COUNT, &f.serve.max_connections, NULL},
                            {"--serving", OPT_FLAG, &f.serves, NULL}, {"--json", OPT_FLAG, &json, NULL}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 1, &n_args, usage))) return rc;
    if (!n_args) {
        fprintf(stderr, "usage: %s\n", usage);
        return EXIT_USAGE;
    }
    if ((rc = model_opts_take(&mo, &model_opt, &eo))) return rc;
    f.asked = mo.ctx || f.rows;
    f.own_budget = mo.kv_budget != 0;
    f.want_ctx = mo.ctx;
    f.usual_rows = mo.max_rows ? mo.max_rows : 16;
    if (!f.rows) f.rows = 1;
    if (f.rows > 4096) {
        fprintf(stderr, "heddle: --rows must be at most 4096\n");
        return EXIT_USAGE;
    }
    eo.max_rows = f.rows > f.usual_rows ? f.rows : f.usual_rows;
    f.serve.max_body_bytes = max_body;
    f.serve.state_dir = mo.state_dir;
    f.serve.max_replies_bytes = max_replies;
    if (mo.state_dir) f.store = store_bytes(&(store_opts){.dir = mo.state_dir, .cap_bytes = mo.state_cap});
    packs = pack_dir_take(&mo, pack_dir) != NULL;
    if (!(f.own_limit = f.limit != 0)) f.limit = hd_memory_limit();
    model_opt.sizes_only = true;
    if (model_open(&m, args[0], &model_opt, &err)) return fail_with(&err);
    f.m = m;
    f.in = model_get(m);
    if (packs && f.in->weight_bytes) f.packed = pack_file_bytes(f.in->weight_bytes);
    f.program = own_bytes() + PROGRAM_BYTES + (f.in->n_threads + 1) * (uint64_t)THREAD_BYTES;
    if (work_out(&f, &eo, &err)) rc = fail_with(&err);
    else {
        if (json) rc = print_json(&f);
        else print_text(&f);
        if (!rc && !runs(&f)) rc = EXIT_FAILED;
    }
    model_close(m);
    return stdout_ok() ? rc : EXIT_FAILED;
}
