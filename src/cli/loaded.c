/* loaded.c - a model and its engine from the common options; small helpers of the commands. */
#include "cli/common.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void show_progress(void *ctx, const char *what, double share) {
    int *last = ctx, now = (int)(share * 100);
    if (now == *last) return;
    *last = now;
    fprintf(stderr, "\r%s %3d %%", what, now);
    if (now >= 100) fprintf(stderr, "\r%*s\r", 40, "");
}

/* "T", or "T,T" for layers with full attention and layers with a sliding window. */
static bool kv_types_by_name(const char *name, engine_options *o) {
    size_t n = name ? strcspn(name, ",") : 0;
    if (!name) return true;
    return kv_scheme_by_name(name, n, &o->kv_type) &&
           (!name[n] || kv_scheme_by_name(name + n + 1, strlen(name + n + 1), &o->kv_type_sliding));
}

const char *pack_dir_take(const model_opts *o, char dst[PACK_DIR_MAX]) {
    if (o->pack_cache) return strcmp(o->pack_cache, "off") ? o->pack_cache : NULL;
    if (!o->state_dir || snprintf(dst, PACK_DIR_MAX, "%s/packed", o->state_dir) >= PACK_DIR_MAX) return NULL;
    return dst;
}

/* Whether this build has a kernel path of that name; NULL: none was asked for.  The CPU may still lack it. */
static bool known_isa(const char *name) {
    const char *built;
    for (size_t i = 0; name && (built = kernels_built(i)); i++)
        if (!strcmp(built, name)) return true;
    return !name;
}

int model_opts_take(const model_opts *o, model_options *mo, engine_options *eo) {
    *mo = (model_options){.isa = o->isa ? o->isa : getenv("HEDDLE_ISA"), .n_threads = o->threads};
    *eo = (engine_options){.max_rows = o->max_rows, .max_queued = o->max_queued, .step_tokens = o->step_tokens,
                           .step_target_us = o->step_ms * 1000ull,
                           .default_max_tokens = o->default_max_tokens, .kv_budget_bytes = o->kv_budget,
                           .pin_budget_bytes = o->pin_budget,
                           .page_tokens = o->page_tokens, .ctx = o->ctx, .stuck_timeout_us = o->stuck_timeout_us,
                           .no_cache = o->no_cache, .trace = o->trace};
    if (!known_isa(mo->isa)) {
        char built[KERNELS_LIST_MAX], here[KERNELS_LIST_MAX];
        kernels_list(built, false);
        kernels_list(here, true);
        fprintf(stderr, "heddle: %s must be one of %s (this CPU has %s), not '%.40s'\n", o->isa ? "--isa" : "$HEDDLE_ISA", built, here, mo->isa);
        return EXIT_USAGE;
    }
    if (!kv_types_by_name(o->kv_type, eo)) {
        fprintf(stderr, "heddle: --kv-type must be " KV_SCHEME_NAMES
                        ", or two of them with a comma: of full attention and of sliding windows\n");
        return EXIT_USAGE;
    }
    if (mo->n_threads > 256) {
        fprintf(stderr, "heddle: --threads must be at most 256\n");
        return EXIT_USAGE;
    }
    if (!o->state_dir && (o->state_key || o->state_cap)) {
        fprintf(stderr, "heddle: --state-key-file and --state-cap need a --state-dir\n");
        return EXIT_USAGE;
    }
    if (o->pack_cap && !o->state_dir && !o->pack_cache) {
        fprintf(stderr, "heddle: --pack-cap needs a --pack-cache or a --state-dir\n");
        return EXIT_USAGE;
    }
    return 0;
}

/* A context that is not the one asked for, or not the model's own, is said, as answers end where it does. */
static void tell_context(const loaded *l, const model_opts *o) {
    uint32_t own = model_get(l->m)->ctx_train, want = o->ctx && o->ctx < own ? o->ctx : own;
    char budget[SIZE_TEXT];
    engine_view v = {0};
    engine_look(l->e, &v);
    if (o->ctx > own && !o->usual_ctx) hd_log(HD_LOG_WARN, "the model's own context is %u tokens: no more of --ctx %u is used", own, o->ctx);
    if (v.ctx < want)
        hd_log(HD_LOG_WARN, "the context is %u tokens, not %u: --kv-budget (%s) holds no more for one request; --kv-type q8 or q4 takes less", v.ctx, want,
               size_text(v.kv_bytes_total, budget));
}

/* What is no file may have been meant as a name. */
static int no_model(const char *name, const hd_err *err) {
    fail_with(err);
    if (!strchr(name, '/') && !strstr(name, ".gguf") && strncmp(name, "script:", 7) && access(name, F_OK))
        fprintf(stderr, "heddle: MODEL is the path of a GGUF file; names of models are not known\n");
    return EXIT_FAILED;
}

int loaded_open(loaded *l, const char *name, const model_opts *o, bool with_engine) {
    int percent = -1, rc;
    char pack_dir[PACK_DIR_MAX];
    model_options mo;
    engine_options eo;
    uint64_t t0 = hd_now_us(&hd_clock_real);
    hd_err err;
    memset(l, 0, sizeof *l);
    if ((rc = model_opts_take(o, &mo, &eo))) return rc;
    if (o->trace_path && !o->trace) {
        if (trace_open(&l->trace, o->trace_path, 0, &err)) return fail_with(&err);
        eo.trace = l->trace;
    }
    mo.pack_dir = pack_dir_take(o, pack_dir);
    mo.pack_cap = o->pack_cap;
    /* The packed weights are met before the store makes its directory. */
    if (mo.pack_dir == pack_dir && mkdir(o->state_dir, 0700) && errno != EEXIST) mo.pack_dir = NULL; /* it will say why */
    if (isatty(STDERR_FILENO)) mo.progress = show_progress, mo.progress_ctx = &percent;
    if (model_open(&l->m, name, &mo, &err)) {
        loaded_close(l);
        return no_model(name, &err);
    }
    if (with_engine && o->state_dir) {
        store_opts so = {.dir = o->state_dir, .key_file = o->state_key, .cap_bytes = o->state_cap};
        if (store_open(&l->store, &so, &err)) {
            loaded_close(l);
            return fail_with(&err);
        }
        eo.store = l->store;
    }
    if (with_engine && engine_open(&l->e, l->m, &eo, &err)) {
        loaded_close(l);
        return fail_with(&err);
    }
    if (with_engine) tell_context(l, o);
    l->load_us = hd_now_us(&hd_clock_real) - t0;
    return 0;
}

void loaded_close(loaded *l) {
    engine_close(l->e); /* writes what is cached to the store */
    if (l->store) store_close(l->store);
    model_close(l->m);
    trace_close(l->trace);
    memset(l, 0, sizeof *l);
}

const char *size_text(uint64_t bytes, char out[SIZE_TEXT]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1024 && u < 4) v /= 1024, u++;
    snprintf(out, SIZE_TEXT, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return out;
}

int32_t *parse_ids(const char *s, size_t *n) {
    size_t cap = 0;
    int32_t *ids = NULL;
    *n = 0;
    for (;;) {
        char *end;
        long v;
        while (*s && strchr(" ,\t\r\n[]", *s)) s++;
        if (!*s) break;
        v = strtol(s, &end, 10);
        if (end == s || v < 0 || v > INT32_MAX || !hd_grow(&ids, &cap, *n + 1, sizeof *ids, 1u << 26)) {
            fprintf(stderr, "heddle: not a list of token ids at '%.20s'\n", s);
            hd_free(ids);
            return NULL;
        }
        ids[(*n)++] = (int32_t)v;
        s = end;
    }
    if (!ids) fprintf(stderr, "heddle: no token ids\n");
    return ids;
}

uint64_t random_seed(void) {
    uint64_t v;
    if (getrandom(&v, sizeof v, 0) != (ssize_t)sizeof v) v = hd_now_us(&hd_clock_real) * 0x9E3779B97F4A7C15u;
    return v >> 11; /* 53 bits: survives a trip through a JSON number */
}

void print_json_error(const hd_err *err, uint64_t line) {
    hd_buf b;
    jsonw w;
    buf_init(&b, 1 << 16);
    jsonw_init(&w, &b);
    jsonw_obj(&w);
    jsonw_key(&w, "error");
    jsonw_obj(&w);
    jsonw_key(&w, "message");
    jsonw_str(&w, err->msg);
    jsonw_key(&w, "type");
    jsonw_str(&w, hd_status_name(err->code));
    if (err->field[0]) {
        jsonw_key(&w, "param");
        jsonw_str(&w, err->field);
    }
    jsonw_obj_end(&w);
    if (line) {
        jsonw_key(&w, "line");
        jsonw_uint(&w, line);
    }
    jsonw_obj_end(&w);
    puts(buf_cstr(&b));
    buf_deinit(&b);
}

bool stdout_ok(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    fprintf(stderr, "heddle: cannot write the output: %s\n", strerror(errno));
    return false;
}
