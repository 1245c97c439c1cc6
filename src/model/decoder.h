/* decoder.h - the dense decoder: one transformer pass that the families describe by settings.
 *
 * decoder_config.c reads the settings all families share; family_*.c says what a family does otherwise;
 * decoder_load.c packs the weights; decoder_forward.c runs a step.  Read them in this order. */
#ifndef HD_MODEL_DECODER_H
#define HD_MODEL_DECODER_H

#include "format/gguf.h"
#include "model/model_int.h"
#include "model/pack.h"

enum { DECODER_MAX_LAYERS = 512, DECODER_MAX_WIDTH = 1 << 17, DECODER_MAX_VOCAB = 1 << 22 };

/* Frequencies of one rotary table: theta = position * freq[i], cos and sin times mscale. */
typedef struct {
    double *freq; /* n_rot / 2 */
    float mscale;
} rope_table;

typedef struct {
    uint32_t width, n_layers, n_head, n_kv, head_dim, ff, n_vocab, ctx, n_rot;
    float eps, embed_scale, score_scale, attn_softcap, final_softcap;
    bool rope_neox;   /* pairs (i, i + n_rot/2); else (2i, 2i+1) */
    bool qk_norm;     /* RMS norm of each query and key head before the rotation */
    bool sandwich;    /* norms after attention and feed-forward, before the residual sum */
    bool gelu;        /* GeGLU (tanh) instead of SwiGLU */
    uint32_t window;  /* of the sliding layers */
    bool *sliding;    /* [n_layers]: this layer sees `window` positions only */
    uint32_t n_ropes; /* 1, or 2: sliding layers use the second */
    rope_table rope[2];
} decoder_config;

typedef struct {
    float *attn_norm, *ffn_norm;            /* [width] */
    float *post_attn_norm, *post_ffn_norm;  /* [width], sandwich only */
    float *q_norm, *k_norm;                 /* [head_dim], qk_norm only */
    float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias; /* NULL: none */
    mm_weight q, k, v, o, gate, up, down;
} decoder_layer;

typedef struct forward_space forward_space; /* workspaces of a step, decoder_forward.c */

typedef struct {
    model base;
    gguf *file;
    decoder_config cfg;
    decoder_layer *layers;
    float *out_norm; /* [width] */
    mm_weight head;
    const gguf_tensor *embed; /* rows are read from the mapping */
    pack_block packed;        /* one block behind every mm_weight */
    pack_writer *packing;     /* writes it to disk; NULL: nobody does */
    uint32_t layer_group[DECODER_MAX_LAYERS], layer_in_group[DECODER_MAX_LAYERS];
    forward_space *space;
    struct step_clock *clock; /* NULL: steps are not timed */
} decoder;

/* One family: the architecture's name and what it changes in a config already filled with the common keys. */
typedef struct {
    const char *arch;
    hd_status (*describe)(decoder_config *c, const gguf *g, hd_err *err);
} decoder_family;
extern const decoder_family family_llama, family_qwen2, family_qwen3, family_gemma3;

/* Read settings; free with decoder_config_deinit, also after an error. */
hd_status decoder_config_read(decoder_config *c, const gguf *g, hd_err *err);
void decoder_config_deinit(decoder_config *c);
/* Helpers for families: fill c->rope[i] from a base and the file's scaling keys (or none). */
hd_status decoder_rope_init(decoder_config *c, uint32_t i, const gguf *g, double base, bool scaled, hd_err *err);
/* "{arch}.key" lookups. Missing: the default. */
hd_status arch_uint(const gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t dflt, uint64_t *out, hd_err *err);
hd_status arch_f32(const gguf *g, const char *key, float dflt, float *out, hd_err *err);
bool arch_has(const gguf *g, const char *key);

hd_status decoder_load(decoder *d, const model_options *opt, hd_err *err);

hd_status decoder_plan(model *m, const step_limits *lim, hd_err *err);
void decoder_rest(model *m);
uint64_t decoder_workspace_bytes(const model *m, const step_limits *lim);
uint64_t decoder_page_bytes(const model *m, uint32_t g, uint32_t page_tokens, kv_scheme scheme);
hd_status decoder_forward(model *m, const step *st, uint32_t *bad_seg, hd_err *err);
void decoder_costs(const model *m, model_cost *trunk, model_cost *head);
void decoder_time_steps(model *m, bool on);
void decoder_step_times(const model *m, step_times *out);
void decoder_space_free(forward_space *s);

#endif
