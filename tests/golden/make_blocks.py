"""Make blocks.bin and quants.bin, the goldens of tests/test_tensor.c.

    pip install gguf==0.19.0 numpy        (MIT; its numpy code is the independent reader and writer of blocks)
    python3 tests/golden/make_blocks.py

blocks.bin: random blocks and the values they stand for.    quants.bin: values and the blocks they are written as.
Both are sequences of records, little-endian: u32 type id, u32 n_elems, u32 n_bytes, then
    blocks.bin: n_bytes of blocks, n_elems f32.             quants.bin: n_elems f32, n_bytes of blocks.
The K and IQ4 types have no writer in that package; their quality is tested against stored bounds instead.
"""
import os
import struct

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(20261130)

# Byte offsets of the half-precision fields, which must be finite: NaN bits are not compared.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: []}


def finite_halves(n):
    """Random bit patterns of all magnitudes and both signs: zeros, subnormals, the largest."""
    h = rng.integers(0, 0x7C00, n, dtype=np.uint16) | (rng.integers(0, 2, n, dtype=np.uint16) << 15)
    h[: n // 4] = (rng.standard_normal(n // 4) * 0.01).astype(np.float16).view(np.uint16)
    h[n // 4: n // 4 + 2] = rng.integers(0, 0x400, 2, dtype=np.uint16)
    return h


def blocks():
    with open(os.path.join(HERE, "blocks.bin"), "wb") as out:
        for t, halves in HALVES.items():
            elems, size = GGML_QUANT_SIZES[t]
            n = 24 if elems == 32 else 8
            b = rng.integers(0, 256, (n, size), dtype=np.uint8)
            for at in halves:
                b[:, at:at + 2] = finite_halves(n).view(np.uint8).reshape(n, 2)
            if t == T.MXFP4:
                b[:4, 0] = 0, 1, 2, 254
                b[b[:, 0] > 251, 0] = 251  # keep 6 * 2^(e-127) finite
            y = dequantize(b, t).astype(np.float32)
            out.write(struct.pack("<III", t, y.size, b.size) + b.tobytes() + y.tobytes())
        h = np.concatenate([finite_halves(500), np.arange(0, 0x7C00, 97, dtype=np.uint16),
                            np.array([0, 1, 0x3FF, 0x400, 0x8000, 0x8001, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00], np.uint16)])
        out.write(struct.pack("<III", T.F16, h.size, 2 * h.size) + h.tobytes())
        out.write(h.view(np.float16).astype(np.float32).tobytes())
        h = rng.integers(0, 0x7F80, 500, dtype=np.uint16) | (rng.integers(0, 2, 500, dtype=np.uint16) << 15)
        out.write(struct.pack("<III", T.BF16, h.size, 2 * h.size) + h.tobytes())
        out.write(dequantize(h.view(np.uint8), T.BF16).tobytes())


def rows():
    """Rows of 32 that meet the corners: zero, constant, one spike, equal extremes, one-sided, tiny, large."""
    x = rng.standard_normal((40, 32)).astype(np.float32)
    x[0] = 0
    x[1] = 0.37
    x[2] = -5
    x[3] = 0
    x[3, 17] = 1
    x[4, 3], x[4, 9] = 3, -3
    x[5, 3], x[5, 9] = -3, 3
    x[6] = np.abs(x[6])
    x[7] = -np.abs(x[7])
    x[8] *= np.float32(1e-5)
    x[9] *= np.float32(2000)
    x[10] = np.arange(32) - 16  # exact ties when rounded
    x[11] = (np.arange(32) - 16) / 2
    x[12] = np.arange(32) * 4.0
    x[13:20] *= np.exp(rng.standard_normal((7, 1)) * 3).astype(np.float32)
    return x


def quants():
    with open(os.path.join(HERE, "quants.bin"), "wb") as out:
        for t in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4):
            x = rows()
            b = quantize(x, t)
            out.write(struct.pack("<III", t, x.size, b.size) + x.tobytes() + b.tobytes())
        bits = rng.integers(0, 1 << 32, 1500, dtype=np.uint32)
        bits = bits[(bits & 0x7F800000) != 0x7F800000]
        near = np.array([0, 0x80000000, 1, 0x33000000, 0x33000001, 0x32FFFFFF, 0x337FFFFF, 0x33800000, 0x33C00000,
                         0x387FE000, 0x387FDFFF, 0x387FF000, 0x38800000, 0x477FE000, 0x477FEFFF, 0x477FF000,
                         0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x3F801000, 0x3F801001, 0x3F803000,
                         0x3F808000, 0x3F818000, 0x7F7F8000], np.uint32)
        halves = (rng.standard_normal(700) * np.exp(rng.standard_normal(700) * 4)).astype(np.float32).view(np.uint32)
        x = np.concatenate([bits, near, halves]).view(np.float32)
        with np.errstate(over="ignore"):
            h = x.astype(np.float16)
        out.write(struct.pack("<III", T.F16, x.size, 2 * x.size) + x.tobytes() + h.tobytes())
        out.write(struct.pack("<III", T.BF16, x.size, 2 * x.size) + x.tobytes())
        out.write(quantize(x.reshape(1, -1), T.BF16).tobytes())


if __name__ == "__main__":
    blocks()
    quants()
