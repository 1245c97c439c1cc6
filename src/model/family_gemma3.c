/* family_gemma3.c - gemma3 (text): sandwich norms, per-head q/k norms, GeGLU, scaled embeddings, five sliding layers to
 * one full one, and a rotary base of their own for the sliding layers, never scaled.
 *
 * The files hold the norm weights with the +1 already added.  Files often leave out the pattern and the local base: then
 * every sixth layer is full and the base is 10000, as in the published models.  The embedding factor sqrt(width) is
 * rounded to bf16 as the reference does in training (docs/models.md). */
#include "model/decoder.h"

#include <math.h>
#include <string.h>

static float to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u; /* nearest even */
    memcpy(&x, &u, sizeof x);
    return x;
}

/* sliding_window_pattern: a period (every n-th layer is full) or one flag per layer. */
static hd_status read_pattern(decoder_config *c, const gguf *g, hd_err *err) {
    const char *key = "gemma3.attention.sliding_window_pattern";
    uint64_t period = 6;
    if (gguf_has(g, key)) {
        gguf_type elem;
        size_t n;
        hd_status st = gguf_arr_n(g, key, &elem, &n, err);
        if (st) return st;
        if (n == c->n_layers && n > 1) {
            for (size_t i = 0; i < n; i++) {
                uint64_t v;
                if ((st = gguf_arr_uint(g, key, i, 0, 1, &v, err))) return st;
                c->sliding[i] = v != 0;
            }
            return HD_OK;
        }
        if ((st = gguf_get_uint(g, key, 1, UINT32_MAX, &period, err))) return st;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) c->sliding[i] = (i + 1) % period != 0;
    return HD_OK;
}

static hd_status describe(decoder_config *c, const gguf *g, hd_err *err) {
    uint64_t window;
    float base, local;
    hd_status st;
    c->rope_neox = c->qk_norm = c->sandwich = c->gelu = true;
    c->embed_scale = to_bf16(sqrtf((float)c->width));
    if ((st = arch_uint(g, "attention.sliding_window", 0, UINT32_MAX, 512, &window, err))) return st;
    if (window && (st = read_pattern(c, g, err))) return st;
    c->window = (uint32_t)window;
    if ((st = arch_f32(g, "final_logit_softcapping", 0, &c->final_softcap, err)) ||
        (st = arch_f32(g, "attn_logit_softcapping", 0, &c->attn_softcap, err)) ||
        (st = arch_f32(g, "attention.scale", c->score_scale, &c->score_scale, err)) ||
        (st = arch_f32(g, "rope.freq_base", 1000000, &base, err)) ||
        (st = arch_f32(g, "rope.freq_base_swa", 10000, &local, err)))
        return st;
    /* 27B divides by width / heads instead of the head width (query_pre_attn_scalar); its file has no key for it. */
    if (c->n_layers == 62 && c->n_head && !arch_has(g, "attention.scale"))
        c->score_scale = 1 / sqrtf((float)c->width / (float)c->n_head);
    c->n_ropes = 2;
    if ((st = decoder_rope_init(c, 0, g, base, true, err))) return st;
    return decoder_rope_init(c, 1, g, local, false, err);
}

const decoder_family family_gemma3 = {"gemma3", describe};
