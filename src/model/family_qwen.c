/* family_qwen.c - qwen2 (also 2.5): biases on q, k, v; qwen3: per-head norms of q and k instead, explicit head width.
 *
 * Published qwen2 files carry a sliding_window that the models do not use (use_sliding_window is false): it is ignored. */
#include "model/decoder.h"

static hd_status describe_qwen2(decoder_config *c, const gguf *g, hd_err *err) {
    (void)g, (void)err;
    c->rope_neox = true;
    return HD_OK;
}

static hd_status describe_qwen3(decoder_config *c, const gguf *g, hd_err *err) {
    c->qk_norm = true;
    return describe_qwen2(c, g, err);
}

const decoder_family family_qwen2 = {"qwen2", describe_qwen2};
const decoder_family family_qwen3 = {"qwen3", describe_qwen3};
