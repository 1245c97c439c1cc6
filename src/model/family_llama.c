/* family_llama.c - llama: Llama 1-3, Mistral, SmolLM2 and others with the same block.
 *
 * The converters reorder the query and key rows so that a rotation pair is adjacent.  Mistral 0.1 has a sliding window
 * in every layer.  Llama 3's frequency scaling arrives as the divisors in rope_freqs.weight, applied at load. */
#include "model/decoder.h"

static hd_status describe(decoder_config *c, const gguf *g, hd_err *err) {
    uint64_t window;
    hd_status st = arch_uint(g, "attention.sliding_window", 0, UINT32_MAX, 0, &window, err);
    if (st) return st;
    c->rope_neox = false;
    if (window && window < c->ctx) {
        c->window = (uint32_t)window;
        for (uint32_t i = 0; i < c->n_layers; i++) c->sliding[i] = true;
    }
    return HD_OK;
}

const decoder_family family_llama = {"llama", describe};
