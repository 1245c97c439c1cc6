/* decoder.c - opening and closing a dense decoder. */
#include "model/decoder.h"
#include "base/mem.h"
#include "base/topology.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void decoder_close(model *m) {
    decoder *d = (decoder *)m;
    decoder_time_steps(m, false);
    decoder_space_free(d->space);
    for (uint32_t i = 0; d->layers && i < d->cfg.n_layers; i++) {
        decoder_layer *y = &d->layers[i];
        float *v[] = {y->attn_norm, y->ffn_norm, y->post_attn_norm, y->post_ffn_norm, y->q_norm, y->k_norm, y->q_bias,
                      y->k_bias, y->v_bias, y->o_bias, y->gate_bias, y->up_bias, y->down_bias};
        for (size_t j = 0; j < sizeof v / sizeof *v; j++) hd_free(v[j]);
    }
    hd_free(d->layers);
    hd_free(d->out_norm);
    (void)pack_writer_finish(d->packing); /* it said what went wrong */
    pack_free(&d->packed);
    decoder_config_deinit(&d->cfg);
    gguf_close(d->file);
    model_base_deinit(m);
    hd_free(d);
}

/* A packed file is found by the model file's mark and holds the digest: identity and weights are of the same file then. */
static bool decoder_digest(const model *m, uint8_t out[16]) {
    const decoder *d = (const decoder *)m;
    if (d->base.info.weights == WEIGHTS_PACKED) return gguf_digest(d->file, out);
    memcpy(out, d->packed.digest, sizeof d->packed.digest);
    return true;
}

static const model_ops decoder_ops = {
    .close = decoder_close,
    .plan = decoder_plan,
    .rest = decoder_rest,
    .digest = decoder_digest,
    .workspace_bytes = decoder_workspace_bytes,
    .page_bytes = decoder_page_bytes,
    .forward = decoder_forward,
    .costs = decoder_costs,
    .time_steps = decoder_time_steps,
    .step_times = decoder_step_times,
};

/* Layer groups: layers that see everything, then sliding ones; a model with one kind has one group. */
static void make_groups(decoder *d) {
    const decoder_config *c = &d->cfg;
    model_info *in = &d->base.info;
    uint32_t count[2] = {0, 0}, index[2] = {0, 0};
    for (uint32_t i = 0; i < c->n_layers; i++) count[c->sliding[i]]++;
    for (uint32_t kind = 0; kind < 2; kind++) {
        if (!count[kind]) continue;
        index[kind] = in->n_groups;
        in->groups[in->n_groups++] = (kv_group_shape){count[kind], c->n_kv, c->head_dim, kind ? c->window : 0, 0};
        count[kind] = 0;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        d->layer_group[i] = index[c->sliding[i]];
        d->layer_in_group[i] = count[c->sliding[i]]++;
    }
}

static hd_status sampling_hints(model_info *in, const gguf *g, hd_err *err) {
    const struct {
        const char *key;
        float *out;
    } keys[] = {{"general.sampling.temp", &in->temperature}, {"general.sampling.top_p", &in->top_p},
                {"general.sampling.min_p", &in->min_p}};
    uint64_t v;
    hd_status st;
    in->temperature = in->top_p = in->min_p = NAN;
    in->top_k = UINT32_MAX;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (gguf_has(g, keys[i].key) && (st = gguf_get_f32(g, keys[i].key, keys[i].out, err))) return st;
    if (!gguf_has(g, "general.sampling.top_k")) return HD_OK;
    if ((st = gguf_get_uint(g, "general.sampling.top_k", 0, UINT32_MAX - 1, &v, err))) return st;
    in->top_k = (uint32_t)v;
    return HD_OK;
}

/* The model is called by its file: without folder, ".gguf" and the part of a split.  general.name is for people and too
 * long and loose to be typed. */
static gguf_str file_name(const char *path) {
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    gguf_str s = {base, strlen(base)};
    unsigned part, parts;
    int used = 0;
    if (s.n > 5 && !strcmp(base + s.n - 5, ".gguf")) s.n -= 5;
    if (s.n > 15 && sscanf(base + s.n - 15, "-%5u-of-%5u%n", &part, &parts, &used) == 2 && used == 15) s.n -= 15;
    if (!s.n) s = (gguf_str){"model", 5};
    if (s.n > 255) s.n = 255;
    return s;
}

static hd_status read_names(decoder *d, const char *path, hd_err *err) {
    model *m = &d->base;
    gguf_str s = file_name(path), arch;
    hd_status st;
    if ((st = gguf_get_str(d->file, "general.architecture", &arch, err))) return st;
    if (!(m->name = hd_strndup(s.s, s.n)) || !(m->arch = hd_strndup(arch.s, arch.n < 64 ? arch.n : 64)))
        return hd_fail(err, HD_NOMEM, "model: no memory");
    m->info.name = m->name;
    m->info.arch = m->arch;
    return HD_OK;
}

static hd_status read_text(decoder *d, hd_err *err) {
    tokenizer *tok;
    gguf_str chat = {NULL, 0};
    hd_status st = tokenizer_from_gguf(&tok, d->file, err);
    if (st) return st;
    if (gguf_has(d->file, "tokenizer.chat_template") &&
        (st = gguf_get_str(d->file, "tokenizer.chat_template", &chat, err))) {
        tokenizer_free(tok);
        return st;
    }
    return model_base_text(&d->base, tok, chat.s, chat.n, err);
}

static hd_status fill(decoder *d, const char *path, const model_options *opt, hd_err *err) {
    model_info *in = &d->base.info;
    hd_topology topo;
    hd_status st;
    uint64_t ctx = 0, pooling;
    if ((st = gguf_open(&d->file, path, err)) || (st = read_names(d, path, err)) || (st = read_text(d, err)) ||
        (st = sampling_hints(in, d->file, err)))
        return st;
    in->file_bytes = gguf_file_bytes(d->file);
    if (opt->vocab_only) {
        if ((st = arch_uint(d->file, "context_length", 0, 1u << 28, 0, &ctx, err))) return st;
        in->ctx_train = (uint32_t)ctx;
        in->n_vocab = (uint32_t)tokenizer_size(d->base.tok);
        return HD_OK;
    }
    if (!(d->base.k = kernels_get(opt->isa))) {
        char have[KERNELS_LIST_MAX];
        kernels_list(have, true);
        return hd_fail_field(err, HD_UNSUPPORTED, "isa", "this CPU has no kernel path '%.40s'; it has %s", opt->isa ? opt->isa : "", have);
    }
    in->isa = kernels_name(d->base.k);
    if ((st = decoder_config_read(&d->cfg, d->file, err))) return st;
    in->n_layers = d->cfg.n_layers;
    in->width = d->cfg.width;
    in->ctx_train = d->cfg.ctx;
    /* Rows of the head beyond the vocabulary are padding that must never be sampled. */
    in->n_vocab = d->cfg.n_vocab;
    if (tokenizer_size(d->base.tok) < in->n_vocab) in->n_vocab = (uint32_t)tokenizer_size(d->base.tok);
    if ((st = arch_uint(d->file, "pooling_type", 0, UINT32_MAX, 0, &pooling, err))) return st;
    in->pooling_type = pooling <= 3 ? (uint32_t)pooling : 0; /* 4, "rank", is of re-rankers and gives no vector */
    make_groups(d);
    hd_topology_get(&topo);
    in->n_threads = opt->n_threads ? opt->n_threads : topo.threads;
    if (!opt->sizes_only && (st = pool_new(&d->base.pool, in->n_threads, err))) return st;
    return decoder_load(d, opt, err);
}

hd_status decoder_open(model **out, const char *path, const model_options *opt, hd_err *err) {
    decoder *d = hd_calloc(1, sizeof *d);
    hd_status st;
    *out = NULL;
    if (!d) return hd_fail(err, HD_NOMEM, "model: no memory");
    d->base.ops = &decoder_ops;
    if ((st = fill(d, path, opt, err))) {
        decoder_close(&d->base);
        return st;
    }
    *out = &d->base;
    return HD_OK;
}
