#!/usr/bin/env python3
"""make_goldens.py - logits, and some hidden states, of the small random models from the transformers library, stored under
tests/golden/.

usage: make_goldens.py [VARIANT...]        needs numpy, gguf, torch (CPU is enough) and transformers >= 5

Each model is built by its transformers class from a config alone, filled from tiny_gen.py and run in float64 with eager
attention over whole sequences (norms, rotary tables and softmax are float32 inside the library).  What the conversion
to GGUF changes is undone here: llama's q and k rows go back to half-split order, gemma's norms lose their 1.
sqrt(hidden) of gemma is set to its bf16 value: that is what the library multiplies by when it runs these models in the
precision they are published in.  Also writes tiny.sums: "variant bytes fnv1a64" of the data section of each file.
"""
import os
import struct
import sys

import numpy as np
import torch
import transformers
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

import tiny_gen as tg

GOLDEN = os.path.join(tg.HERE, "..", "golden")
HIDDEN = ("llama", "qwen3", "gemma3")  # variants whose hidden states after the final norm are stored too


def rope_parameters(v):
    p = dict(rope_type="default", rope_theta=v.theta)
    if v.scaling == 1:
        p.update(rope_type="linear", factor=v.factor)
    elif v.scaling == 2:
        p.update(rope_type="yarn", factor=v.factor, original_max_position_embeddings=v.orig_ctx)
        if v.beta_fast:
            p.update(beta_fast=v.beta_fast, beta_slow=v.beta_slow)
    elif v.scaling == 3:
        p.update(rope_type="llama3", factor=v.factor, low_freq_factor=v.low, high_freq_factor=v.high,
                 original_max_position_embeddings=v.orig_ctx)
    return p


def build(v):
    common = dict(vocab_size=tg.VOCAB, hidden_size=v.hidden, intermediate_size=v.ffn, num_hidden_layers=v.layers,
                  num_attention_heads=v.heads, num_key_value_heads=v.kv_heads, head_dim=v.head_dim, rms_norm_eps=v.eps,
                  max_position_embeddings=512, tie_word_embeddings=bool(v.tied), pad_token_id=None, bos_token_id=317,
                  eos_token_id=318, attn_implementation="eager", rope_parameters=rope_parameters(v))
    if v.arch == "gemma3":
        common["rope_parameters"] = {
            "full_attention": rope_parameters(v),
            "sliding_attention": dict(rope_type="default", rope_theta=v.theta_swa or 10000.0)}
        cls = Gemma3ForCausalLM
        cfg = Gemma3TextConfig(**common, sliding_window=v.window, sliding_window_pattern=v.pattern or 6,
                               query_pre_attn_scalar=v.head_dim)
    elif v.arch == "qwen2":
        cls, cfg = Qwen2ForCausalLM, Qwen2Config(**common, use_sliding_window=False)
    elif v.arch == "qwen3":
        cls, cfg = Qwen3ForCausalLM, Qwen3Config(**common, attention_bias=False, use_sliding_window=False)
    elif v.window:
        cls, cfg = MistralForCausalLM, MistralConfig(**common, sliding_window=v.window)
    else:
        cls, cfg = LlamaForCausalLM, LlamaConfig(**common, attention_bias=bool(v.bias_qkv), mlp_bias=False)
    torch.manual_seed(0)
    return cls(cfg).double().eval()


ROLE = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
}


def hf_name(v, name):
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
           "output.weight": "lm_head.weight"}
    if name in top:
        return top[name]
    _, layer, role, kind = name.split(".")
    if v.arch == "gemma3":
        norms = {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
                 "post_ffw_norm": "post_feedforward_layernorm"}
    else:
        norms = {"ffn_norm": "post_attention_layernorm"}
    return f"model.layers.{layer}.{(norms | ROLE)[role]}.{kind}"


def half_split_rows(x, head_dim):
    """Adjacent-pair row order (2i, 2i+1) of each head back to (i, i + head_dim/2)."""
    heads = x.shape[0] // head_dim
    return x.reshape(heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)


def fill(model, v):
    state = {}
    for name, x in tg.weights(v).items():
        if name == "rope_freqs.weight":
            continue  # the library computes these from the config
        if v.arch == "llama" and ".attn_q." in name or v.arch == "llama" and ".attn_k." in name:
            x = half_split_rows(x, v.head_dim)
        if v.arch == "gemma3" and name.endswith("norm.weight"):
            x = x - 1
        state[hf_name(v, name)] = torch.from_numpy(np.ascontiguousarray(x))
    if v.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    if v.arch == "gemma3":
        embed = model.model.embed_tokens
        embed.embed_scale = torch.tensor(v.hidden ** 0.5).to(torch.bfloat16).double()


def logits(v):
    model = build(v)
    fill(model, v)
    out = []
    with torch.no_grad():
        for ids in tg.sequences(v):
            r = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
            out.append((ids, r.logits[0].numpy()))
    return out


def write_hidden(v):
    """The same sequences: what the head reads, as tiny_model.h says."""
    model = build(v)
    fill(model, v)
    with torch.no_grad(), open(os.path.join(GOLDEN, v.name + ".hidden"), "wb") as f:
        f.write(struct.pack("<4sII", b"HDH1", len(tg.sequences(v)), v.hidden))
        for ids in tg.sequences(v):
            r = model.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
            f.write(struct.pack("<I", len(ids)) + r.last_hidden_state[0].numpy().astype("<f4").tobytes())


def main():
    os.makedirs(GOLDEN, exist_ok=True)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    only = sys.argv[1:]
    sums = []
    for v in tg.variants():
        data = tg.data_section(v)
        sums.append(f"{v.name} {len(data)} {tg.fnv1a64(data):016x}\n")
        if only and v.name not in only:
            continue
        seqs = logits(v)
        with open(os.path.join(GOLDEN, v.name + ".logits"), "wb") as f:
            f.write(struct.pack("<4sII", b"HDG1", len(seqs), tg.VOCAB))
            for ids, y in seqs:
                f.write(struct.pack("<I", len(ids)) + ids.astype("<i4").tobytes() + y.astype("<f4").tobytes())
        if v.name in HIDDEN:
            write_hidden(v)
        last = seqs[0][1]
        print(f"{v.name:14} rms {np.sqrt((last ** 2).mean()):.3f} max {abs(last).max():.2f}", flush=True)
    with open(os.path.join(GOLDEN, "tiny.sums"), "w") as f:
        f.writelines(sums)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
