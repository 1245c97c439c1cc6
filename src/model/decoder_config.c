/* decoder_config.c - the settings of a dense decoder, from the keys that all families share.
 *
 * Key names and their meaning follow the GGUF specification and the published converters; each value is checked before
 * anything is computed from it.  Rotary scaling rules (linear, llama3 through divisors, yarn) follow the formulas that the
 * transformers library documents for rope_scaling. */
#include "model/decoder.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool full_key(const gguf *g, const char *key, char dst[160]) {
    gguf_str arch;
    if (gguf_get_str(g, "general.architecture", &arch, NULL) || arch.n > 60) return false;
    return snprintf(dst, 160, "%.*s.%s", (int)arch.n, arch.s, key) < 160;
}

bool arch_has(const gguf *g, const char *key) {
    char k[160];
    return full_key(g, key, k) && gguf_has(g, k);
}

hd_status arch_uint(const gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t dflt, uint64_t *out,
                    hd_err *err) {
    char k[160];
    if (!full_key(g, key, k)) return hd_fail_field(err, HD_INVALID, "general.architecture", "missing or too long");
    if (!gguf_has(g, k)) return *out = dflt, HD_OK;
    return gguf_get_uint(g, k, min, max, out, err);
}

hd_status arch_f32(const gguf *g, const char *key, float dflt, float *out, hd_err *err) {
    char k[160];
    hd_status st;
    if (!full_key(g, key, k)) return hd_fail_field(err, HD_INVALID, "general.architecture", "missing or too long");
    if (!gguf_has(g, k)) return *out = dflt, HD_OK;
    if ((st = gguf_get_f32(g, k, out, err))) return st;
    if (!isfinite(*out)) return hd_fail_field(err, HD_INVALID, k, "key %s is not a finite number", k);
    return HD_OK;
}

/* A key the model cannot do without. */
static hd_status required(const gguf *g, const char *key, uint64_t max, uint32_t *out, hd_err *err) {
    char k[160];
    uint64_t v;
    hd_status st;
    if (!full_key(g, key, k)) return hd_fail_field(err, HD_INVALID, "general.architecture", "missing or too long");
    if (!gguf_has(g, k)) return hd_fail_field(err, HD_INVALID, k, "missing key %s", k);
    if ((st = gguf_get_uint(g, k, 1, max, &v, err))) return st;
    *out = (uint32_t)v;
    return HD_OK;
}

/* A scalar, or one number per layer that must then be the same for all. */
static hd_status per_layer(const gguf *g, const char *key, uint32_t n_layers, uint64_t max, uint64_t dflt, uint32_t *out,
                           hd_err *err) {
    char k[160];
    gguf_type elem;
    size_t n;
    uint64_t first = 0;
    hd_status st;
    if (!full_key(g, key, k)) return hd_fail_field(err, HD_INVALID, "general.architecture", "missing or too long");
    if (!gguf_has(g, k)) {
        if (!dflt) return hd_fail_field(err, HD_INVALID, k, "missing key %s", k);
        return *out = (uint32_t)dflt, HD_OK;
    }
    if ((st = gguf_arr_n(g, k, &elem, &n, err))) return st;
    if (n != 1 && n != n_layers)
        return hd_fail_field(err, HD_INVALID, k, "key %s has %zu entries for %u layers", k, n, n_layers);
    for (size_t i = 0; i < n; i++) {
        uint64_t v;
        if ((st = gguf_arr_uint(g, k, i, 1, max, &v, err))) return st;
        if (!i) first = v;
        if (v != first)
            return hd_fail_field(err, HD_UNSUPPORTED, k, "key %s differs between layers: %llu and %llu", k,
                                 (unsigned long long)first, (unsigned long long)v);
    }
    *out = (uint32_t)first;
    return HD_OK;
}

/* The ramp of yarn (Peng et al. 2023): 1 = keep the frequency, 0 = interpolate, for pair i. */
static double yarn_keep(uint32_t i, double lo, double hi) {
    double t = ((double)i - lo) / fmax(0.001, hi - lo);
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return 1 - t;
}

hd_status decoder_rope_init(decoder_config *c, uint32_t i, const gguf *g, double base, bool scaled, hd_err *err) {
    rope_table *r = &c->rope[i];
    uint32_t half = c->n_rot / 2;
    gguf_str type = {"none", 4};
    float factor = 1, attn_factor = 1, ext = 1, beta_fast = 32, beta_slow = 1;
    uint64_t orig = c->ctx;
    char k[160];
    hd_status st;
    bool yarn;
    if (!(base > 1 && base < 1e12)) return hd_fail_field(err, HD_INVALID, "rope.freq_base", "rope base %g is out of range", base);
    if (!(r->freq = hd_calloc(half, sizeof *r->freq))) return hd_fail(err, HD_NOMEM, "model: no memory");
    r->mscale = 1;
    for (uint32_t j = 0; j < half; j++) r->freq[j] = 1 / hd_pow(base, 2.0 * j / c->n_rot);
    if (!scaled) return HD_OK;
    if ((st = arch_f32(g, "rope.scaling.factor", 0, &factor, err))) return st;
    if (factor == 0 && (st = arch_f32(g, "rope.scale_linear", 1, &factor, err))) return st;
    if (factor <= 0) factor = 1;
    if (full_key(g, "rope.scaling.type", k) && gguf_has(g, k)) {
        if ((st = gguf_get_str(g, k, &type, err))) return st;
    } else if (factor != 1) {
        type = (gguf_str){"linear", 6}; /* a factor without a type means linear */
    }
    if (type.n == 4 && !memcmp(type.s, "none", 4)) return HD_OK;
    yarn = type.n == 4 && !memcmp(type.s, "yarn", 4);
    if (!yarn && !(type.n == 6 && !memcmp(type.s, "linear", 6)))
        return hd_fail_field(err, HD_UNSUPPORTED, k, "rope scaling '%.*s' is not supported", (int)(type.n < 40 ? type.n : 40),
                             type.s);
    if (!yarn) {
        for (uint32_t j = 0; j < half; j++) r->freq[j] /= factor;
        return HD_OK;
    }
    if ((st = arch_uint(g, "rope.scaling.original_context_length", 1, UINT32_MAX, orig, &orig, err)) ||
        (st = arch_f32(g, "rope.scaling.attn_factor", 1, &attn_factor, err)) ||
        (st = arch_f32(g, "rope.scaling.yarn_attn_factor", attn_factor, &attn_factor, err)) ||
        (st = arch_f32(g, "rope.scaling.yarn_ext_factor", 1, &ext, err)) ||
        (st = arch_f32(g, "rope.scaling.yarn_beta_fast", 32, &beta_fast, err)) ||
        (st = arch_f32(g, "rope.scaling.yarn_beta_slow", 1, &beta_slow, err)))
        return st;
    if (!(beta_fast > 0) || !(beta_slow > 0))
        return hd_fail_field(err, HD_INVALID, "rope.scaling.yarn_beta_fast", "yarn betas must be positive");
    {
        double scale = c->n_rot / (2 * hd_logd(base)), two_pi = 6.283185307179586;
        double lo = floor(scale * hd_logd((double)orig / (beta_fast * two_pi)));
        double hi = ceil(scale * hd_logd((double)orig / (beta_slow * two_pi)));
        lo = lo < 0 ? 0 : lo;
        hi = hi > c->n_rot - 1 ? c->n_rot - 1 : hi;
        for (uint32_t j = 0; j < half; j++) {
            double keep = yarn_keep(j, lo, hi) * ext;
            r->freq[j] = (1 - keep) * r->freq[j] / factor + keep * r->freq[j];
        }
        r->mscale = (float)(attn_factor * (1 + 0.1 * hd_logd(factor)));
    }
    return HD_OK;
}

static const decoder_family *const families[] = {&family_llama, &family_qwen2, &family_qwen3, &family_gemma3};

static hd_status read_common(decoder_config *c, const gguf *g, hd_err *err) {
    hd_status st;
    uint64_t v;
    const gguf_tensor *embed;
    if ((st = required(g, "embedding_length", DECODER_MAX_WIDTH, &c->width, err)) ||
        (st = required(g, "block_count", DECODER_MAX_LAYERS, &c->n_layers, err)) ||
        (st = required(g, "context_length", 1u << 28, &c->ctx, err)) ||
        (st = per_layer(g, "attention.head_count", c->n_layers, 4096, 0, &c->n_head, err)) ||
        (st = per_layer(g, "attention.head_count_kv", c->n_layers, 4096, c->n_head, &c->n_kv, err)) ||
        (st = per_layer(g, "feed_forward_length", c->n_layers, DECODER_MAX_WIDTH * 4u, 0, &c->ff, err)))
        return st;
    if (c->n_head % c->n_kv)
        return hd_fail_field(err, HD_INVALID, "attention.head_count_kv", "%u heads cannot share %u key/value heads",
                             c->n_head, c->n_kv);
    if ((st = arch_uint(g, "attention.key_length", 1, 4096, c->width / c->n_head, &v, err))) return st;
    c->head_dim = (uint32_t)v;
    if ((st = arch_uint(g, "attention.value_length", 1, 4096, c->head_dim, &v, err))) return st;
    if (v != c->head_dim)
        return hd_fail_field(err, HD_UNSUPPORTED, "attention.value_length", "key heads of %u and value heads of %llu",
                             c->head_dim, (unsigned long long)v);
    if (!c->head_dim || c->head_dim % 8 || c->head_dim > 512)
        return hd_fail_field(err, HD_UNSUPPORTED, "attention.key_length",
                             "a head width of %u (multiples of 8 up to 512 are supported)", c->head_dim);
    if ((st = arch_uint(g, "rope.dimension_count", 2, c->head_dim, c->head_dim, &v, err))) return st;
    if (v % 2) return hd_fail_field(err, HD_INVALID, "rope.dimension_count", "%llu is odd", (unsigned long long)v);
    c->n_rot = (uint32_t)v;
    if ((st = arch_f32(g, "attention.layer_norm_rms_epsilon", 1e-5f, &c->eps, err))) return st;
    if (!(c->eps > 0 && c->eps < 1))
        return hd_fail_field(err, HD_INVALID, "attention.layer_norm_rms_epsilon", "%g is out of range", c->eps);
    if ((st = arch_uint(g, "expert_count", 0, 1u << 20, 0, &v, err))) return st;
    if (v) return hd_fail_field(err, HD_UNSUPPORTED, "expert_count", "models with experts are not supported yet");
    if (!(embed = gguf_tensor_find(g, "token_embd.weight")))
        return hd_fail_field(err, HD_INVALID, "token_embd.weight", "missing tensor token_embd.weight");
    if (embed->dims[1] > DECODER_MAX_VOCAB)
        return hd_fail_field(err, HD_INVALID, "token_embd.weight", "%llu rows are too many",
                             (unsigned long long)embed->dims[1]);
    c->n_vocab = (uint32_t)embed->dims[1];
    c->embed_scale = 1;
    c->score_scale = 1 / sqrtf((float)c->head_dim);
    c->n_ropes = 1;
    if (!(c->sliding = hd_calloc(c->n_layers, sizeof *c->sliding))) return hd_fail(err, HD_NOMEM, "model: no memory");
    return HD_OK;
}

hd_status decoder_config_read(decoder_config *c, const gguf *g, hd_err *err) {
    gguf_str arch;
    hd_status st;
    float base;
    memset(c, 0, sizeof *c);
    if ((st = gguf_get_str(g, "general.architecture", &arch, err))) return st;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strlen(families[i]->arch) != arch.n || memcmp(families[i]->arch, arch.s, arch.n)) continue;
        if ((st = read_common(c, g, err)) || (st = families[i]->describe(c, g, err))) return st;
        if (c->rope[0].freq) return HD_OK;
        if ((st = arch_f32(g, "rope.freq_base", 10000, &base, err))) return st;
        return decoder_rope_init(c, 0, g, base, true, err);
    }
    return hd_fail_field(err, HD_UNSUPPORTED, "general.architecture",
                         "architecture '%.*s' is not supported (llama, qwen2, qwen3, gemma3 are)",
                         (int)(arch.n < 60 ? arch.n : 60), arch.s);
}

void decoder_config_deinit(decoder_config *c) {
    hd_free(c->sliding);
    for (int i = 0; i < 2; i++) hd_free(c->rope[i].freq);
    memset(c, 0, sizeof *c);
}
