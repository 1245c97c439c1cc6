/* model.h - a loaded model as the executor sees it: a vocabulary, a shape for its state, and one forward pass over a
 * step's segments.  The decoder families and the scripted model both stand behind this. */
#ifndef HD_MODEL_MODEL_H
#define HD_MODEL_MODEL_H

#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "text/template.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct model model;

typedef struct {
    const char *isa;     /* kernels_get name, NULL: best */
    unsigned n_threads;  /* for packing and computing; 0: by topology */
    bool vocab_only;     /* no weights: tokenize, detokenize, render, inspect */
    bool sizes_only;     /* everything that sizes depend on, checked as for running, but no weights and no threads: it cannot be
                          * planned or run, and weights that this machine cannot hold are no error */
    const char *pack_dir; /* packed weights are kept there and found again (model/pack.h); NULL: they are not */
    uint64_t pack_cap;    /* bytes of all files there; 0: 16 GiB */
    void (*progress)(void *ctx, const char *what, double share); /* may be NULL */
    void *progress_ctx;
} model_options;

/* MODEL: a GGUF file (any part of a split), or "script:FILE". */
hd_status model_open(model **out, const char *name, const model_options *opt, hd_err *err);
/* Waits for packed weights that are still being written (model_options.pack_dir). */
void model_close(model *m);
/* Hand the tokenizer to the caller, who frees it; the model may only be closed after that. */
tokenizer *model_take_tokenizer(model *m);

enum { MODEL_MAX_GROUPS = 2, MODEL_MAX_EOG = 16 };

/* Where the packed weights come from: packed from the model file, or found packed and mapped, or read into memory. */
typedef enum { WEIGHTS_PACKED, WEIGHTS_MAPPED, WEIGHTS_READ } weights_from;

/* State one row needs, per layer group (full attention; sliding window): see state/kv.h. */
typedef struct {
    uint32_t n_layers;  /* of this group */
    uint32_t n_kv_heads, head_dim;
    uint32_t window;    /* 0: none */
    uint32_t token_bytes; /* scripted model: accounted bytes per token instead of pages' own size; 0: real KV */
} kv_group_shape;

typedef struct {
    const char *name;           /* the file's base name without .gguf and split part */
    const char *arch;
    uint32_t n_vocab;           /* logits per position */
    uint32_t ctx_train;         /* the model's own context */
    uint32_t n_layers, width;
    uint64_t weight_bytes;      /* held in memory by the loaded model: packed matrices */
    uint64_t vector_bytes;      /* the same: norms and biases */
    uint64_t mapped_bytes;      /* read from the mapped file while running: the system may drop them */
    uint64_t file_bytes;        /* of all parts */
    weights_from weights;
    uint64_t n_params;
    uint32_t n_groups;
    kv_group_shape groups[MODEL_MAX_GROUPS];
    const tokenizer *tok;
    const chat_template *chat;  /* NULL: none */
    const char *chat_text;      /* its source, or NULL */
    const char *chat_error;     /* why the file's template cannot be used, or NULL */
    int32_t bos, eos;           /* -1: none */
    uint32_t n_eog;
    int32_t eog[MODEL_MAX_EOG]; /* ids that end a generation */
    const char *isa;            /* kernel path */
    unsigned n_threads;
    bool scripted;
    uint32_t pooling_type;      /* the file's way from hidden states to an embedding: 1 mean, 2 cls, 3 last; 0: it names none */
    /* sampling defaults of the file; NaN / UINT32_MAX where it has none */
    float temperature, top_p, min_p;
    uint32_t top_k;
} model_info;
const model_info *model_get(const model *m);

/* The largest logit of a position and its first id; NaN never wins, of nothing but NaN it is -inf and 0. */
typedef struct {
    float logit;
    uint32_t id;
} logit_best;

/* One segment of a step: n tokens of one row from position pos0 on.  Pages cover [0, pos0 + n) in each group (entries
 * behind a sliding window may be NULL). */
typedef struct {
    const int32_t *tokens;
    uint32_t n, pos0;
    void *const *pages[MODEL_MAX_GROUPS]; /* page tables by group */
    uint32_t first_logits;  /* logits are wanted for segment positions [first_logits, n); n = none */
    bool only_best;         /* of these positions nothing but `best` is wanted: their logits are not kept */
    uint32_t first_hidden;  /* hidden states (after the final norm) are wanted for segment positions
                             * [first_hidden, end_hidden) */
    uint32_t end_hidden;    /* 0: none; <= n */
    float *hidden;          /* out: [end_hidden - first_hidden][width], as `logits` */
    float *logits;          /* out: [n - first_logits][n_vocab] in the model's workspace, scratch until the next step; NULL
                             * with only_best */
    const logit_best *best; /* out: [n - first_logits], always */
    uint32_t n_prompt;      /* of the row: the scripted model counts its steps from there */
    const void *row_state;  /* scripted model: its rule for this row (model_row_open) */
} segment;

typedef struct {
    segment *segs;
    uint32_t n_segs, n_tokens; /* n_tokens = sum of n */
    const void *cancel;        /* reserved */
} step;

/* What steps may ask for: workspaces are allocated once for this and never grow. */
typedef struct {
    uint32_t max_tokens; /* of all segments together */
    uint32_t max_segs;
    uint32_t max_logits; /* positions that want logits */
    uint32_t max_hidden; /* positions that want hidden states; 0: none ever */
    uint32_t ctx;        /* positions of a row */
    uint32_t page_tokens;
    kv_scheme kv_type[MODEL_MAX_GROUPS]; /* of each group */
} step_limits;
/* HD_INVALID: it was opened without weights. */
hd_status model_plan(model *m, const step_limits *lim, hd_err *err);
/* No step for a while: hand the workspace's memory back to the system; the next step takes it again.  Executor thread. */
void model_rest(model *m);
/* 32 bytes that stand for everything that decides the bits of a page but tokens, KV schemes and page size: the model's
 * contents, and the version of our numerics.  Reads the whole file, unless its packed weights were found: they remember.
 * HD_NOMEM. */
hd_status model_identity(const model *m, uint8_t out[32], hd_err *err);
uint64_t model_workspace_bytes(const model *m, const step_limits *lim);
/* Bytes of one page of group g; 0 if the scheme is not one this model can use. */
uint64_t model_page_bytes(const model *m, uint32_t g, uint32_t page_tokens, kv_scheme scheme);

/* Run the step on the model's pool.  HD_FAILED: *bad_seg is the segment that failed, or n_segs if unknown.  Running the
 * same step again writes the same values.  Executor thread only. */
hd_status model_forward(model *m, const step *st, uint32_t *bad_seg, hd_err *err);

/* Run fn(ctx, member, i) for each i in [0, n), shared out among the model's compute threads, of which those with member < most
 * help.  Executor thread only, between steps. */
void model_share(model *m, size_t n, unsigned most, void (*fn)(void *ctx, unsigned member, size_t i), void *ctx);

/* What no step can do without: bytes of matrices as the file holds them, and products per token by the form of the
 * activations.  trunk: all layers; head: of a token that wants logits.  Zeros for the scripted model. */
typedef struct {
    uint64_t bytes, products[ACT_KINDS];
} model_cost;
void model_costs(const model *m, model_cost *trunk, model_cost *head);

/* Where the time of steps goes, in nanoseconds summed over all compute threads since model_time_steps(m, true); wall_ns is of
 * whole forward passes.  Off by default: it costs two looks at the clock a phase. */
typedef enum { STEP_MATRICES, STEP_HEAD, STEP_ATTENTION, STEP_VECTORS, STEP_WAITING, STEP_PARTS } step_part;
typedef struct {
    uint64_t ns[STEP_PARTS], wall_ns, n_steps;
} step_times;
void model_time_steps(model *m, bool on);               /* between steps */
void model_step_times(const model *m, step_times *out); /* any thread; zeros while it is off */

/* Per-row state of the scripted model (which rule matched); NULL for others.  prompt is borrowed for the call. */
hd_status model_row_open(model *m, const int32_t *prompt, size_t n_prompt, void **row_state, hd_err *err);
void model_row_close(model *m, void *row_state);
/* Wake a scripted model's sleep early (a cancel came).  Any thread. */
void model_interrupt(model *m);
const kernels *model_kernels(const model *m);

#endif
