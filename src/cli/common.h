/* common.h - what the commands share: options, a loaded model with its engine, and collected answers. */
#ifndef HD_CLI_COMMON_H
#define HD_CLI_COMMON_H

#include "base/jsonw.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/opts.h"
#include "exec/engine.h"

#include <stdio.h>

/* Options of every command that loads a model. */
typedef struct {
    uint32_t threads, ctx, step_tokens, step_ms, max_rows, max_queued, default_max_tokens, page_tokens;
    bool usual_ctx;            /* ctx is the command's own default: less is no surprise */
    uint64_t kv_budget, pin_budget;
    uint64_t stuck_timeout_us; /* 0: the engine's own */
    const char *kv_type, *isa;
    const char *state_dir;     /* --state-dir: cached pages outlive the process there */
    const char *state_key;     /* --state-key-file: they are encrypted */
    uint64_t state_cap;        /* --state-cap: bytes of them */
    const char *pack_cache;    /* --pack-cache: a directory for packed weights, or "off"; NULL: STATE/packed with a state_dir */
    uint64_t pack_cap;         /* --pack-cap: bytes of them */
    bool no_cache;             /* --no-cache: every prompt is computed anew */
    const char *trace_path;    /* --trace: opened and closed with the model, unless trace is given */
    trace *trace;              /* borrowed */
} model_opts;
#define MODEL_OPT_DEFS(m)                                                                                              \
    {"--threads", OPT_UINT, &(m).threads, NULL}, {"--ctx", OPT_UINT, &(m).ctx, NULL},                                  \
        {"--kv-budget", OPT_BYTES, &(m).kv_budget, NULL}, {"--kv-type", OPT_STR, &(m).kv_type, NULL},                   \
        {"--step-tokens", OPT_COUNT, &(m).step_tokens, NULL}, {"--step-ms", OPT_COUNT, &(m).step_ms, NULL},              \
        {"--max-rows", OPT_COUNT, &(m).max_rows, NULL},                                                                 \
        {"--state-dir", OPT_STR, &(m).state_dir, NULL}, {"--state-cap", OPT_BYTES, &(m).state_cap, NULL},               \
        {"--state-key-file", OPT_STR, &(m).state_key, NULL}, {"--isa", OPT_STR, &(m).isa, NULL},                            \
        {"--pack-cache", OPT_STR, &(m).pack_cache, NULL}, {"--pack-cap", OPT_BYTES, &(m).pack_cap, NULL},               \
        {"--page-tokens", OPT_COUNT, &(m).page_tokens, NULL}, {"--no-cache", OPT_FLAG, &(m).no_cache, NULL}
/* The same for --help, behind the command's own. */
#define MODEL_OPTS_USAGE                                                                                               \
    "and the options of every command that loads a model: [--threads N] [--ctx N] [--kv-budget SIZE] [--kv-type T[,T]]\n" \
    "       [--step-tokens N] [--step-ms N] [--max-rows N] [--page-tokens N] [--no-cache] [--isa NAME] [--state-dir D]\n"  \
    "       [--state-cap SIZE] [--state-key-file F] [--pack-cache D|off] [--pack-cap SIZE]"
#define TRACE_OPT_DEF(m) {"--trace", OPT_STR, &(m).trace_path, NULL}

/* ---- a loaded model (loaded.c) ---- */
typedef struct {
    model *m;
    engine *e;
    store *store;
    trace *trace; /* NULL: none, or not ours */
    uint64_t load_us;
} loaded;
/* Where packed weights are kept by these options: into dst, or NULL for nowhere. */
enum { PACK_DIR_MAX = 4096 };
const char *pack_dir_take(const model_opts *o, char dst[PACK_DIR_MAX]);
/* The options as model and engine take them.  0, or EXIT_USAGE after a message. */
int model_opts_take(const model_opts *o, model_options *mo, engine_options *eo);
/* Prints the error and returns EXIT_FAILED or EXIT_USAGE.  with_engine false: only the model. */
int loaded_open(loaded *l, const char *name, const model_opts *o, bool with_engine);
void loaded_close(loaded *l);

/* ---- answers (collect.c) ---- */
typedef struct {
    int32_t id;
    float logprob;
    uint32_t n_top, top_at; /* into tops */
} collected_token;
typedef struct {
    collected_token *tokens;
    size_t n, cap;
    token_logprob *tops;
    size_t n_tops, cap_tops;
    hd_buf text;
    bool done;
    gen_event end;
} collected;
void collected_init(collected *c);
void collected_deinit(collected *c);
/* Take one event in.  True when it was the end. */
bool collected_add(collected *c, const gen_event *ev);

/* "1,2,3" or white-space separated; NULL after printing why. */
int32_t *parse_ids(const char *s, size_t *n);
uint64_t random_seed(void);
enum { SIZE_TEXT = 32 };
const char *size_text(uint64_t bytes, char out[SIZE_TEXT]); /* "93.8 MiB": all sizes that people read are in units of 1024 */
/* Print {"error":{"message","field"}} of a --json command. */
void print_json_error(const hd_err *err, uint64_t line);
bool stdout_ok(void); /* flush; false if a write failed */

#endif
