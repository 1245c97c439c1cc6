/* decoder_load.c - weights out of a GGUF into packed form, every tensor checked by name, type and shape.
 *
 * Matrices are packed one after another into one block of memory, each by all threads, a piece at a time, and the mapped pages
 * of a packed piece are given back at once: there is one copy, and a MiB per thread.  Where packed weights are kept on
 * disk (pack.h) they are looked for first.  The token embedding stays mapped: a step
 * reads only the rows it needs.  A tensor that the family does not use is refused: computing without it would give fluent nonsense. */
#include "model/decoder.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/topology.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

typedef struct {
    decoder *d;
    const model_options *opt;
    hd_err *err;
    bool *used;              /* [tensors of the file]: it found a place */
    uint64_t packed_bytes;   /* first pass: sum; second pass: cursor */
    uint64_t params, vector_bytes;
    bool place;              /* second pass */
    bool found;              /* they are packed already */
    XXH3_state_t *plan;      /* first pass: digest of what lies where */
} loader;

static const gguf_tensor *find(loader *l, const char *name) {
    const gguf_tensor *t = gguf_tensor_find(l->d->file, name);
    if (t) l->used[t - gguf_tensor_at(l->d->file, 0)] = true;
    return t;
}

static hd_status wrong_shape(loader *l, const gguf_tensor *t, const char *name, uint64_t cols, uint64_t rows) {
    return hd_fail_field(l->err, HD_INVALID, name, "tensor %s is %llu x %llu, expected %llu x %llu", name,
                         (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], (unsigned long long)cols,
                         (unsigned long long)rows);
}

enum { PIECE_BYTES = 1 << 20 }; /* of the file: few enough calls to the system, and little that is there twice */

typedef struct {
    decoder *d;
    mm_weight *w;
    const gguf_tensor *t;
    size_t row_bytes, step;
    pool_cursor next;
} pack_job;

static void pack_some(void *ctx, unsigned member, unsigned n) {
    pack_job *j = ctx;
    size_t b, e;
    (void)member, (void)n;
    while (pool_next(&j->next, j->step, &b, &e)) {
        size_t at = b * j->row_bytes, bytes = (e - b) * j->row_bytes;
        gguf_tensor_fetch(j->d->file, j->t, at, bytes);
        mm_pack(j->d->base.k, j->w, j->t->data, (uint32_t)b, (uint32_t)e);
        gguf_tensor_release(j->d->file, j->t, at, bytes);
    }
}

static void pack_all(decoder *d, mm_weight *w, const gguf_tensor *t) {
    pack_job j = {.d = d, .w = w, .t = t, .row_bytes = t->size_bytes / t->dims[1]};
    size_t share = w->n_rows / (4 * pool_size(d->base.pool));
    j.step = PIECE_BYTES / j.row_bytes;
    if (j.step > share) j.step = share; /* a small matrix is for all threads too */
    j.step = j.step < 64 ? 64 : j.step & ~(size_t)7;
    pool_cursor_init(&j.next, w->n_rows);
    pool_run(d->base.pool, pack_some, &j);
}

static void add_to_plan(loader *l, const char *name, const mm_weight *w, uint64_t bytes) {
    uint64_t where[5] = {(uint64_t)w->type, w->n_rows, w->n_cols, l->packed_bytes, bytes};
    XXH3_128bits_update(l->plan, name, strlen(name) + 1);
    XXH3_128bits_update(l->plan, where, sizeof where);
}

/* First pass: check and count.  Second pass: pack. */
static hd_status matrix(loader *l, mm_weight *w, const char *name, uint32_t cols, uint32_t rows) {
    decoder *d = l->d;
    const gguf_tensor *t = find(l, name);
    uint64_t bytes;
    if (!t) return hd_fail_field(l->err, HD_INVALID, name, "missing tensor %s", name);
    /* Only the head may have rows that are not used: padding beyond the vocabulary. */
    if (t->n_dims > 2 || t->dims[0] != cols || t->dims[1] < rows || (t->dims[1] > rows && w != &d->head))
        return wrong_shape(l, t, name, cols, rows);
    if (!mm_supported(t->type))
        return hd_fail_field(l->err, HD_UNSUPPORTED, name, "tensor %s has a type that matrices cannot have", name);
    w->type = t->type;
    w->n_rows = rows;
    w->n_cols = cols;
    bytes = mm_packed_bytes(d->base.k, w->type, rows, cols);
    if (!hd_align_up(bytes, 64, &bytes)) return hd_fail_field(l->err, HD_INVALID, name, "tensor %s is too large", name);
    if (!l->place) {
        l->params += (uint64_t)rows * cols;
        add_to_plan(l, name, w, bytes);
        if (!hd_add(l->packed_bytes, bytes, &l->packed_bytes))
            return hd_fail_field(l->err, HD_INVALID, name, "the tensors are too large together");
        return HD_OK;
    }
    w->data = (uint8_t *)d->packed.data + l->packed_bytes;
    l->packed_bytes += bytes;
    if (l->found) return HD_OK;
    pack_all(d, w, t);
    if (l->opt->progress)
        l->opt->progress(l->opt->progress_ctx, "packing weights", (double)l->packed_bytes / (double)d->base.info.weight_bytes);
    return HD_OK;
}

/* A vector of n floats, in any type that holds real numbers.  Missing: HD_OK and NULL if optional. */
static hd_status vector(loader *l, float **out, const char *name, uint32_t n, bool optional) {
    const gguf_tensor *t = find(l, name);
    if (l->place) return HD_OK;
    if (!t) return optional ? HD_OK : hd_fail_field(l->err, HD_INVALID, name, "missing tensor %s", name);
    if (t->dims[0] != n || t->dims[1] != 1 || t->n_dims > 2) return wrong_shape(l, t, name, n, 1);
    l->params += n;
    l->vector_bytes += (uint64_t)n * sizeof **out;
    if (l->opt->sizes_only) return HD_OK;
    if (!(*out = hd_alloc((size_t)n * sizeof **out))) return hd_fail(l->err, HD_NOMEM, "model: no memory");
    if (!tensor_dequant_row(t->type, t->data, *out, n))
        return hd_fail_field(l->err, HD_INVALID, name, "tensor %s does not hold real numbers", name);
    return HD_OK;
}

static hd_status layer(loader *l, uint32_t i) {
    const decoder_config *c = &l->d->cfg;
    decoder_layer *y = &l->d->layers[i];
    uint32_t qw = c->n_head * c->head_dim, kw = c->n_kv * c->head_dim;
    const struct {
        float **out;
        const char *name;
        uint32_t n;
        bool wanted, optional;
    } vectors[] = {
        {&y->attn_norm, "attn_norm.weight", c->width, true, false},
        {&y->ffn_norm, "ffn_norm.weight", c->width, true, false},
        {&y->post_attn_norm, "post_attention_norm.weight", c->width, c->sandwich, false},
        {&y->post_ffn_norm, "post_ffw_norm.weight", c->width, c->sandwich, false},
        {&y->q_norm, "attn_q_norm.weight", c->head_dim, c->qk_norm, false},
        {&y->k_norm, "attn_k_norm.weight", c->head_dim, c->qk_norm, false},
        {&y->q_bias, "attn_q.bias", qw, true, true},
        {&y->k_bias, "attn_k.bias", kw, true, true},
        {&y->v_bias, "attn_v.bias", kw, true, true},
        {&y->o_bias, "attn_output.bias", c->width, true, true},
        {&y->gate_bias, "ffn_gate.bias", c->ff, true, true},
        {&y->up_bias, "ffn_up.bias", c->ff, true, true},
        {&y->down_bias, "ffn_down.bias", c->width, true, true},
    };
    const struct {
        mm_weight *w;
        const char *name;
        uint32_t cols, rows;
    } matrices[] = {
        {&y->q, "attn_q.weight", c->width, qw},      {&y->k, "attn_k.weight", c->width, kw},
        {&y->v, "attn_v.weight", c->width, kw},      {&y->o, "attn_output.weight", qw, c->width},
        {&y->gate, "ffn_gate.weight", c->width, c->ff}, {&y->up, "ffn_up.weight", c->width, c->ff},
        {&y->down, "ffn_down.weight", c->ff, c->width},
    };
    char name[64];
    hd_status st;
    for (size_t j = 0; j < sizeof vectors / sizeof *vectors; j++) {
        if (!vectors[j].wanted) continue;
        snprintf(name, sizeof name, "blk.%u.%s", i, vectors[j].name);
        if ((st = vector(l, vectors[j].out, name, vectors[j].n, vectors[j].optional))) return st;
    }
    for (size_t j = 0; j < sizeof matrices / sizeof *matrices; j++) {
        snprintf(name, sizeof name, "blk.%u.%s", i, matrices[j].name);
        if ((st = matrix(l, matrices[j].w, name, matrices[j].cols, matrices[j].rows))) return st;
    }
    return HD_OK;
}

static hd_status pass(loader *l) {
    decoder *d = l->d;
    const decoder_config *c = &d->cfg;
    hd_status st;
    bool tied = !gguf_tensor_find(d->file, "output.weight");
    /* The embedding is read row by row from the mapping; tied, its packed copy is also the head. */
    if (!l->place) {
        const gguf_tensor *t = find(l, "token_embd.weight"); /* its presence was checked with the configuration */
        if (t->n_dims > 2 || t->dims[0] != c->width) return wrong_shape(l, t, "token_embd.weight", c->width, t->dims[1]);
        if (!mm_supported(t->type))
            return hd_fail_field(l->err, HD_UNSUPPORTED, "token_embd.weight", "tensor token_embd.weight has an unusable type");
        d->embed = t;
        if (!tied) l->params += t->dims[0] * t->dims[1];
    }
    if ((st = vector(l, &d->out_norm, "output_norm.weight", c->width, false))) return st;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if ((st = layer(l, i))) return st;
    return matrix(l, &d->head, tied ? "token_embd.weight" : "output.weight", c->width, d->base.info.n_vocab);
}

/* Llama 3's frequency scaling: rope_freqs.weight divides each frequency. */
static hd_status freq_divisors(loader *l) {
    decoder_config *c = &l->d->cfg;
    const gguf_tensor *t = find(l, "rope_freqs.weight");
    float *div;
    if (!t) return HD_OK;
    if (t->dims[0] != c->n_rot / 2 || t->n_dims > 2 || t->dims[1] != 1)
        return wrong_shape(l, t, "rope_freqs.weight", c->n_rot / 2, 1);
    if (!(div = hd_alloc(t->dims[0] * sizeof *div))) return hd_fail(l->err, HD_NOMEM, "model: no memory");
    if (!tensor_dequant_row(t->type, t->data, div, t->dims[0])) {
        hd_free(div);
        return hd_fail_field(l->err, HD_INVALID, "rope_freqs.weight", "tensor rope_freqs.weight does not hold numbers");
    }
    for (uint32_t j = 0; j < c->n_rot / 2; j++) {
        if (!(div[j] > 0)) {
            hd_free(div);
            return hd_fail_field(l->err, HD_INVALID, "rope_freqs.weight", "divisor %u is not positive", j);
        }
        c->rope[0].freq[j] /= div[j];
    }
    hd_free(div);
    return HD_OK;
}

/* Tensors that carry nothing a pass needs: old files store the rotary angles again. */
static bool ignorable(gguf_str name) {
    static const char *const endings[] = {"attn_rot_embd", "rope_freqs", "rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (memmem(name.s, name.n, endings[i], strlen(endings[i]))) return true;
    return false;
}

static hd_status refuse_unused(loader *l) {
    const gguf *g = l->d->file;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        gguf_str n = gguf_tensor_at(g, i)->name;
        if (!l->used[i] && !ignorable(n))
            return hd_fail_field(l->err, HD_UNSUPPORTED, "tensors", "tensor %.*s is not part of architecture %s as heddle knows it",
                                 (int)n.n, n.s, l->d->base.info.arch);
    }
    return HD_OK;
}

/* What a packed file of this model must say.  False: the model file has no mark. */
static bool want_packed(const loader *l, pack_want *w) {
    decoder *d = l->d;
    if (!l->packed_bytes || !gguf_mark(d->file, w->mark)) return false;
    XXH128_canonicalFromHash((XXH128_canonical_t *)w->plan, XXH3_128bits_digest(l->plan));
    w->version = HD_PACK_VERSION;
    snprintf(w->layout, sizeof w->layout, "%s", mm_layout_name(d->base.k));
    w->bytes = l->packed_bytes;
    return true;
}

static bool find_packed(loader *l, const pack_want *w) {
    switch (pack_load(&l->d->packed, l->opt->pack_dir, w, l->d->base.pool)) {
    case PACK_MAPPED: l->d->base.info.weights = WEIGHTS_MAPPED; return true;
    case PACK_READ: l->d->base.info.weights = WEIGHTS_READ; return true;
    default: return false;
    }
}

static hd_status load(loader *l) {
    decoder *d = l->d;
    pack_want want = {.bytes = 0};
    hd_err *err = l->err, why;
    hd_status st;
    if (!(d->layers = hd_calloc(d->cfg.n_layers, sizeof *d->layers))) return hd_fail(err, HD_NOMEM, "model: no memory");
    if ((st = pass(l)) || (st = freq_divisors(l)) || (st = refuse_unused(l))) return st;
    d->base.info.n_params = l->params;
    d->base.info.weight_bytes = l->packed_bytes;
    d->base.info.vector_bytes = l->vector_bytes;
    d->base.info.mapped_bytes = d->embed->size_bytes;
    if (l->opt->sizes_only) return HD_OK;
    if (l->packed_bytes > hd_memory_limit())
        return hd_fail_field(err, HD_NEVER_FITS, "model", "the weights take %llu bytes, the machine allows %llu",
                             (unsigned long long)l->packed_bytes, (unsigned long long)hd_memory_limit());
    if (l->opt->pack_dir && want_packed(l, &want)) l->found = find_packed(l, &want);
    /* Asked before it is read: what is written to it from now on moves its times, which the writer looks at again. */
    if (!l->found && want.bytes && !gguf_settled(d->file)) {
        hd_log(HD_LOG_INFO, "pack cache: the model file was just changed, or is open for writing: its packed weights are kept at a later start");
        want.bytes = 0;
    }
    if (!l->found && (st = pack_alloc(&d->packed, l->packed_bytes, err))) return st;
    l->place = true;
    l->packed_bytes = 0;
    if ((st = pass(l))) return st;
    if (!l->found && want.bytes && pack_writer_start(&d->packing, l->opt->pack_dir, l->opt->pack_cap, &want, d->packed.data, d->file, &why))
        hd_log(HD_LOG_WARN, "%s", why.msg);
    return HD_OK;
}

hd_status decoder_load(decoder *d, const model_options *opt, hd_err *err) {
    loader l = {.d = d, .opt = opt, .err = err};
    hd_status st;
    if (!(l.used = hd_calloc(gguf_n_tensors(d->file), sizeof *l.used))) return hd_fail(err, HD_NOMEM, "model: no memory");
    if ((l.plan = XXH3_createState())) {
        XXH3_128bits_reset(l.plan);
        st = load(&l);
    } else {
        st = hd_fail(err, HD_NOMEM, "model: no memory");
    }
    XXH3_freeState(l.plan);
    hd_free(l.used);
    return st;
}
