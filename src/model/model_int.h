/* model_int.h - what stands behind model.h: the kinds of model and their table. */
#ifndef HD_MODEL_MODEL_INT_H
#define HD_MODEL_MODEL_INT_H

#include "model/model.h"

typedef struct {
    void (*close)(model *m);
    hd_status (*plan)(model *m, const step_limits *lim, hd_err *err);
    void (*rest)(model *m); /* NULL: nothing to give back */
    bool (*digest)(const model *m, uint8_t out[16]); /* of the file's contents */
    uint64_t (*workspace_bytes)(const model *m, const step_limits *lim);
    uint64_t (*page_bytes)(const model *m, uint32_t g, uint32_t page_tokens, kv_scheme scheme);
    hd_status (*forward)(model *m, const step *st, uint32_t *bad_seg, hd_err *err);
    hd_status (*row_open)(model *m, const int32_t *prompt, size_t n_prompt, void **row_state, hd_err *err);
    void (*row_close)(model *m, void *row_state);
    void (*interrupt)(model *m);
    void (*costs)(const model *m, model_cost *trunk, model_cost *head); /* NULL: none */
    void (*time_steps)(model *m, bool on);                              /* NULL: never timed */
    void (*step_times)(const model *m, step_times *out);
} model_ops;

/* First member of every kind. */
struct model {
    const model_ops *ops;
    model_info info;
    const kernels *k;
    pool *pool;
    tokenizer *tok;
    chat_template *chat;
    char *name, *arch, *chat_text, *chat_error; /* owned, behind info */
};

/* Frees what struct model owns; every kind calls it last. */
void model_base_deinit(model *m);
/* Take the vocabulary's and the template's facts into m->info; text may be NULL. A template that does not parse is kept
 * as chat_error: completions still work. */
hd_status model_base_text(model *m, tokenizer *tok, const char *chat_text, size_t n, hd_err *err);

hd_status decoder_open(model **out, const char *path, const model_options *opt, hd_err *err);
hd_status script_open(model **out, const char *path, const model_options *opt, hd_err *err);
hd_status script_open_memory(model **out, const char *json, size_t n, const char *name, const model_options *opt,
                             hd_err *err);

#endif
