"""Print the relative error that ggml's own writers reach on the values of test_tensor.c's quality test.

    python3 tests/golden/quality.py LIBGGML_BASE.so       (the shared library of a ggml or llama.cpp build; MIT)

The values are made as in the test: Box-Muller over Philox4x32-10, seed 7.  The blocks are read back with the gguf
package, so only the writing is ggml's.  The printed numbers are the `reference` column of the test.
"""
import ctypes
import sys

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

N = 64 * 256


def uniform(position):
    c = np.stack([position, np.zeros_like(position), np.zeros_like(position), np.zeros_like(position)]).astype(np.uint64)
    k0, k1, low = 7, 0, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = np.stack([p1 >> np.uint64(32) ^ c[1] ^ np.uint64(k0), p1 & low,
                      p0 >> np.uint64(32) ^ c[3] ^ np.uint64(k1), p0 & low])
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return ((c[0] << np.uint64(32) | c[1]) >> np.uint64(11)).astype(np.float64) * 2.0 ** -53


def values():
    i = np.arange(N, dtype=np.uint64)
    normal = np.sqrt(-2 * np.log(1 - uniform(2 * i))) * np.cos(6.283185307179586 * uniform(2 * i + np.uint64(1)))
    scale = np.float32(0.04) * (1 + np.float32(0.5) * (i // np.uint64(64) % np.uint64(4)).astype(np.float32))
    x = normal.astype(np.float32) * scale
    x[::97] *= 4
    return x


def main():
    lib = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                        ctypes.c_int64, ctypes.c_void_p]
    x = values() if len(sys.argv) < 3 else np.fromfile(sys.argv[2], np.float32)
    for t in (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS):
        elems, size = GGML_QUANT_SIZES[t]
        b = np.zeros(x.size // elems * size, np.uint8)
        lib.ggml_quantize_chunk(t, x.ctypes.data, b.ctypes.data, 0, x.size // 256, 256, None)
        e = dequantize(b, t).astype(np.float64) - x
        w = np.abs(x.reshape(-1, 256)).astype(np.float64)
        w += np.sqrt((w ** 2).mean(axis=1, keepdims=True))
        w = w.reshape(-1)
        print(f"{t.name:7} {np.sqrt((e ** 2).sum() / (x.astype(np.float64) ** 2).sum()):.6f}"
              f"   weighted {np.sqrt((w * e ** 2).sum() / (w * x.astype(np.float64) ** 2).sum()):.6f}")


if __name__ == "__main__":
    main()
