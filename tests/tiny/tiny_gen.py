"""tiny_gen.py - the weights of the small random models, made the same way as tiny_model.c makes them.

tiny_model.h states the generator and the variants' fields; variants.def lists the variants.  Needs numpy, and gguf (its
dequantisers are the reference for the block formats).  make_goldens.py and check_tiny.py use this module.
"""
import os
import re

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = 320
M64 = (1 << 64) - 1
FIELDS = dict(hidden=0, layers=0, heads=0, kv_heads=0, head_dim=0, ffn=0, eps=0.0, theta=0.0, theta_swa=0.0, scaling=0,
              factor=0.0, low=0.0, high=0.0, beta_fast=0.0, beta_slow=0.0, orig_ctx=0, window=0, pattern=0, tied=0,
              bias_qkv=0, bias_o=0, qk_norm=0, wtype=0, etype=0, brief=0, seed=0)
ROPE = dict(TINY_ROPE_NONE=0, TINY_ROPE_LINEAR=1, TINY_ROPE_YARN=2, TINY_ROPE_LLAMA3=3)
F32, F16, BF16 = 0, 1, 30
# type id: elements, bytes, offset of the scale, offset of the minimum, size of the values for scale 1, minimum / scale
BLOCKS = {
    2: (32, 18, 0, -1, 4.6, 0), 3: (32, 20, 0, 2, 4.6, -7.5), 6: (32, 22, 0, -1, 9.2, 0), 7: (32, 24, 0, 2, 9.2, -15.5),
    8: (32, 34, 0, -1, 74, 0), 10: (256, 84, 80, 82, 13.9, 1.5), 11: (256, 110, 108, -1, 43, 0),
    12: (256, 144, 0, 2, 258, 7.5), 13: (256, 176, 0, 2, 527, 15.5), 14: (256, 210, 208, -1, 1369, 0),
    20: (32, 18, 0, -1, 67, 0), 23: (256, 136, 0, -1, 1240, 0), 39: (32, 17, -1, -1, 2.9, 0),
}


class Variant:
    def __init__(self, name, arch, fields):
        self.name, self.arch = name, arch
        for k, default in FIELDS.items():
            setattr(self, k, fields.pop(k, default))
        assert not fields, f"{name}: unknown fields {fields}"


def variants():
    text = open(os.path.join(HERE, "variants.def")).read()
    out = []
    for name, arch, rest in re.findall(r'^TINY\("([^"]+)", "([^"]+)", (.*)\)$', text, re.M):
        fields = {}
        for item in rest.split(", "):
            k, v = item.split(" = ")
            fields[k.lstrip(".")] = ROPE[v] if v in ROPE else float(v) if isinstance(FIELDS[k[1:]], float) else int(v)
        out.append(Variant(name, arch, fields))
    return out


def fnv1a64(data, h=0xCBF29CE484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & M64
    return h


def splitmix64(x):
    """x: array of uint64; wraps modulo 2^64 as intended."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def words(name, seed, index):
    base = np.uint64((fnv1a64(name.encode()) + seed) & M64)
    with np.errstate(over="ignore"):
        return splitmix64(base + index.astype(np.uint64))


def unit(w):
    return (w >> np.uint64(40)).astype(np.float64) / 8388608.0 - 1.0


def matrix_scale(name, fan_in):
    if name == "token_embd.weight":
        return np.sqrt(3.0) / 4
    s = np.sqrt(3.0 / fan_in)
    return 1.6 * s if name.endswith(("attn_q.weight", "attn_k.weight")) else s


def values(name, seed, shape):
    """float32 values before any conversion; shape is (cols,) or (rows, cols)."""
    n = int(np.prod(shape))
    offset, scale = 0.0, 0.1
    if name.endswith(("_q_norm.weight", "_k_norm.weight")):
        offset = 1.5
    elif name.endswith("norm.weight"):
        offset = 1.0
    elif not name.endswith(".bias"):
        scale = matrix_scale(name, shape[-1])
    u = unit(words(name, seed, np.arange(n)))
    return (offset + scale * u).astype(np.float32).reshape(shape)


def blocks(name, seed, shape, wtype):
    """Raw bytes [rows, row_bytes] of a matrix in a block format."""
    elems, size, d_at, min_at, rms, min_ratio = BLOCKS[wtype]
    rows, cols = shape
    n = rows * cols // elems
    b = np.arange(n, dtype=np.uint64) << np.uint64(16)
    out = (words(name, seed, b[:, None] + np.arange(size, dtype=np.uint64)) >> np.uint64(40)).astype(np.uint8)
    w = words(name, seed, b + np.uint64(0xFFFF))
    odd = (w & np.uint64(1)).astype(bool)
    if d_at < 0:
        out[:, 0] = (123 if name == "token_embd.weight" else 121) + odd
    else:
        d = matrix_scale(name, cols) / np.sqrt(3.0) / rms * (1 + 0.25 * unit(w))
        half = lambda x: x.astype(np.float32).astype("<f2").view(np.uint8).reshape(n, 2)
        if min_at >= 0:
            out[:, min_at:min_at + 2] = half(min_ratio * d)
        else:
            d = np.where(odd, -d, d)
        out[:, d_at:d_at + 2] = half(d)
    return out.reshape(rows, -1)


def rope_divisors(v):
    wave = 2 * np.pi * v.theta ** (2.0 * np.arange(v.head_dim // 2) / v.head_dim)
    t = (v.orig_ctx / wave - v.low) / (v.high - v.low)
    between = 1 / ((1 - t) / v.factor + t)
    return np.where(t >= 1, 1, np.where(t <= 0, v.factor, between)).astype(np.float32)


def tensor_list(v):
    """[(name, shape)] in file order."""
    h, q, kv = v.hidden, v.heads * v.head_dim, v.kv_heads * v.head_dim
    out = [("token_embd.weight", (VOCAB, h))]
    for i in range(v.layers):
        p = f"blk.{i}."
        out += [(p + "attn_norm.weight", (h,)), (p + "attn_q.weight", (q, h)), (p + "attn_k.weight", (kv, h)),
                (p + "attn_v.weight", (kv, h)), (p + "attn_output.weight", (h, q))]
        if v.bias_qkv:
            out += [(p + "attn_q.bias", (q,)), (p + "attn_k.bias", (kv,)), (p + "attn_v.bias", (kv,))]
        if v.bias_o:
            out += [(p + "attn_output.bias", (h,))]
        if v.qk_norm:
            out += [(p + "attn_q_norm.weight", (v.head_dim,)), (p + "attn_k_norm.weight", (v.head_dim,))]
        if v.arch == "gemma3":
            out += [(p + "post_attention_norm.weight", (h,)), (p + "post_ffw_norm.weight", (h,))]
        out += [(p + "ffn_norm.weight", (h,)), (p + "ffn_gate.weight", (v.ffn, h)), (p + "ffn_up.weight", (v.ffn, h)),
                (p + "ffn_down.weight", (h, v.ffn))]
    out.append(("output_norm.weight", (h,)))
    if not v.tied:
        out.append(("output.weight", (VOCAB, h)))
    if v.scaling == ROPE["TINY_ROPE_LLAMA3"]:
        out.append(("rope_freqs.weight", (v.head_dim // 2,)))
    return out


def matrix_type(v, name):
    return v.etype or v.wtype if name in ("token_embd.weight", "output.weight") else v.wtype


def raw(v, name, shape):
    """The bytes of a tensor as they lie in the file."""
    if name == "rope_freqs.weight":
        return rope_divisors(v).astype("<f4").tobytes()
    if len(shape) == 2 and v.wtype in BLOCKS:
        return blocks(name, v.seed, shape, matrix_type(v, name)).tobytes()
    x = values(name, v.seed, shape)
    if len(shape) == 1 or v.wtype == F32:
        return x.astype("<f4").tobytes()
    if v.wtype == F16:
        return x.astype("<f2").tobytes()
    assert v.wtype == BF16
    u = x.view(np.uint32)
    return ((u + np.uint32(0x7FFF) + (u >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype("<u2").tobytes()


def weights(v):
    """{name: float64 array} as the file's bytes mean them (GGUF names and layout)."""
    from gguf import GGMLQuantizationType, quants

    out = {}
    for name, shape in tensor_list(v):
        data = np.frombuffer(raw(v, name, shape), np.uint8)
        if len(shape) == 1 or v.wtype == F32:
            x = data.view("<f4")
        else:
            x = quants.dequantize(data.reshape(shape[0], -1), GGMLQuantizationType(matrix_type(v, name)))
        out[name] = x.reshape(shape).astype(np.float64)
    return out


def data_section(v):
    """All tensors, each padded to 32 bytes except the last."""
    parts, n = [], 0
    for name, shape in tensor_list(v):
        parts.append(bytes(-n % 32) + raw(v, name, shape))
        n += len(parts[-1])
    return b"".join(parts)


def sequences(v):
    """The token ids whose logits are stored: long enough for several blocks of 16 and for every window."""
    lengths = [21, 1] if v.brief else [70, 17, 1]
    return [(words(f"ids.{i}", v.seed, np.arange(n)) % np.uint64(317)).astype(np.int32) for i, n in enumerate(lengths)]
