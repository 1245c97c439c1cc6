#!/usr/bin/env python3
"""check_tiny.py - judges the stored goldens and the written GGUF files by two more implementations.

usage: HEDDLE_TINY_DIR=DIR build/test_tiny && check_tiny.py DIR [--no-peer] [--sensitivity]

1. A forward pass in plain float64 NumPy that knows GGUF files only (keys, tensors, adjacent-pair rope), read with the
   gguf package: it shares nothing with the transformers model that made the goldens except the random numbers.
2. llama-cpp-python (llama.cpp), if it is installed, on the same files.  It has no window for the llama architecture
   and multiplies gemma's embeddings by sqrt(hidden) without rounding, so some variants differ by design (printed).
--sensitivity runs pass 1 with one feature at a time done wrongly and prints how far the logits move: the distance that
a test of heddle's must stay below to notice that mistake.
"""
import os
import struct
import sys

import numpy as np

import tiny_gen as tg

GOLDEN = os.path.join(tg.HERE, "..", "golden")


def read_golden(name):
    b = open(os.path.join(GOLDEN, name + ".logits"), "rb").read()
    magic, n_seqs, vocab = struct.unpack_from("<4sII", b)
    assert magic == b"HDG1" and vocab == tg.VOCAB
    at, out = 12, []
    for _ in range(n_seqs):
        n = struct.unpack_from("<I", b, at)[0]
        ids = np.frombuffer(b, "<i4", n, at + 4)
        out.append((ids, np.frombuffer(b, "<f4", n * vocab, at + 4 + 4 * n).reshape(n, vocab)))
        at += 4 + 4 * n * (1 + vocab)
    assert at == len(b)
    return out


class Model:
    """A GGUF file as dictionaries: keys, float64 tensors."""

    def __init__(self, path):
        from gguf import GGUFReader, quants

        r = GGUFReader(path)
        self.keys = {k: f.contents() for k, f in r.fields.items() if not k.startswith(("tokenizer.", "GGUF."))}
        self.t = {}
        for t in r.tensors:
            x = quants.dequantize(t.data, t.tensor_type)
            self.t[t.name] = x.reshape([int(n) for n in t.shape[::-1]]).astype(np.float64)
        self.arch = self.keys["general.architecture"]

    def key(self, name, default=None):
        return self.keys.get(f"{self.arch}.{name}", default)


def rms(x, w, eps):
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def rope_table(m, n, hd, theta, scaled, wrong):
    """cos and sin [n, hd/2], attention factor included."""
    i = np.arange(hd // 2)
    f = theta ** (-2.0 * i / hd)
    mul = 1.0
    kind, s = m.key("rope.scaling.type", "none"), m.key("rope.scaling.factor", 1.0)
    if wrong == "scaling":
        scaled = False
    if scaled and kind == "linear":
        f = f / s
    elif scaled and kind == "yarn":
        orig = m.key("rope.scaling.original_context_length")
        corr = lambda r: hd * np.log(orig / (2 * np.pi * r)) / (2 * np.log(theta))
        lo = max(np.floor(corr(m.key("rope.scaling.yarn_beta_fast", 32.0))), 0)
        hi = min(np.ceil(corr(m.key("rope.scaling.yarn_beta_slow", 1.0))), hd - 1)
        keep = 1 - np.clip((i - lo) / max(0.001, hi - lo), 0, 1)
        f = (1 - keep) * f / s + keep * f
        mul = 1.0 if wrong == "yarn-factor" else 1 + 0.1 * np.log(s)
    if "rope_freqs.weight" in m.t and scaled:
        f = f / m.t["rope_freqs.weight"]
    a = np.arange(n)[:, None] * f
    return np.cos(a) * mul, np.sin(a) * mul


def rotate(x, table, pairs):
    """x [n, heads, hd]."""
    c, s = (t[:, None, :] for t in table)
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else np.split(x, 2, -1)
    ra, rb = a * c - b * s, a * s + b * c
    return np.stack([ra, rb], -1).reshape(x.shape) if pairs else np.concatenate([ra, rb], -1)


def forward(m, ids, wrong=None):
    k, t = m.key, m.t
    h, n, eps = k("embedding_length"), len(ids), k("attention.layer_norm_rms_epsilon")
    hq, hk = k("attention.head_count"), k("attention.head_count_kv")
    hd = k("attention.key_length", h // hq)
    gemma = m.arch == "gemma3"
    pairs = (m.arch == "llama") != (wrong == "pairing")
    window = 0 if wrong == "window" else k("attention.sliding_window", 0) + (wrong == "window+1")
    period = k("attention.sliding_window_pattern", 6) if gemma else 0
    base = k("rope.freq_base")
    x = t["token_embd.weight"][ids]
    if gemma:
        root = np.sqrt(h)
        if wrong != "sqrt-f32":  # to bf16
            u = np.float32(root).view(np.uint32)
            root = float(((u + 0x7FFF + (u >> 16 & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32))
        x = x * root
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    for il in range(k("block_count")):
        w = lambda role: t.get(f"blk.{il}.{role}")
        local = window and not (period and (il + 1) % period == 0)
        theta = base
        if gemma and local and wrong != "one-theta":
            theta = k("rope.freq_base_swa", 10000.0)
        table = rope_table(m, n, hd, theta, not (gemma and local), wrong)
        bias = lambda role: 0 if w(role) is None or wrong == "bias" else w(role)
        a = rms(x, w("attn_norm.weight"), eps)
        q = (a @ w("attn_q.weight").T + bias("attn_q.bias")).reshape(n, hq, hd)
        key = (a @ w("attn_k.weight").T + bias("attn_k.bias")).reshape(n, hk, hd)
        v = (a @ w("attn_v.weight").T + bias("attn_v.bias")).reshape(n, hk, hd)
        if w("attn_q_norm.weight") is not None and wrong != "qk-norm":
            q, key = rms(q, w("attn_q_norm.weight"), eps), rms(key, w("attn_k_norm.weight"), eps)
        q, key = rotate(q, table, pairs), rotate(key, table, pairs)
        key, v = (np.repeat(z, hq // hk, 1) for z in (key, v))
        s = np.einsum("ihd,jhd->hij", q, key) / np.sqrt(hd)
        s = np.where((j <= i) & (~np.bool_(local) | (i - j < window)), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        y = np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ w("attn_output.weight").T + bias("attn_output.bias")
        x = x + (rms(y, w("post_attention_norm.weight"), eps) if gemma and wrong != "sandwich" else y)
        f = rms(x, w("ffn_norm.weight"), eps)
        g, u = f @ w("ffn_gate.weight").T, f @ w("ffn_up.weight").T
        if gemma and wrong != "silu":
            g = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g ** 3)))
        else:
            g = g / (1 + np.exp(-g))
        y = (g * u) @ w("ffn_down.weight").T
        x = x + (rms(y, w("post_ffw_norm.weight"), eps) if gemma and wrong != "sandwich" else y)
    x = rms(x, t["output_norm.weight"], eps)
    return x @ t.get("output.weight", t["token_embd.weight"]).T


def peer_logits(path, ids, model):
    import llama_cpp

    # the peer takes yarn's betas from its caller and, for most architectures, not from the file: pass them on
    beta_fast, beta_slow = (model.key("rope.scaling.yarn_beta_" + k, -1.0) for k in ("fast", "slow"))
    m = llama_cpp.Llama(path, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=1, n_threads_batch=1, logits_all=True,
                        flash_attn=False, type_k=0, type_v=0, yarn_beta_fast=beta_fast,
                        yarn_beta_slow=beta_slow, verbose=False)
    m.eval(ids.tolist())
    return np.array(m.scores[:len(ids)], dtype=np.float64)


MISTAKES = ["pairing", "scaling", "yarn-factor", "window", "window+1", "one-theta", "bias", "qk-norm", "sandwich", "silu",
            "sqrt-f32"]


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    peer = "--no-peer" not in sys.argv
    if not args:
        sys.exit(__doc__)
    bad = 0
    for v in tg.variants():
        path = os.path.join(args[0], v.name + ".gguf")
        m = Model(path)
        golden = read_golden(v.name)
        naive = max(abs(forward(m, ids) - want).max() for ids, want in golden)
        bad += not naive < 2e-5
        line = f"{v.name:14} numpy {naive:.1e}{'' if naive < 2e-5 else ' WRONG'}"
        if peer:
            try:
                d = max(abs(peer_logits(path, ids, m) - want).max() for ids, want in golden)
                note = ""
                if v.arch == "llama" and v.window:
                    note = " (by design: no window there)"
                elif v.arch == "gemma3" and v.hidden == 96:
                    note = " (by design: sqrt not rounded)"
                line += f"   llama.cpp {d:.1e}{note}"
            except Exception as e:  # an older peer may refuse a file: say so, go on
                line += f"   llama.cpp: {type(e).__name__}: {e}"
        print(line, flush=True)
        if "--sensitivity" in sys.argv:
            ids, want = golden[0]
            moves = {w: abs(forward(m, ids, w) - want).max() for w in MISTAKES if v.window or w[:6] != "window"}
            print("    " + "  ".join(f"{w} {d:.2g}" for w, d in moves.items() if d > 2e-5))
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
