#!/usr/bin/env python3
"""Seeds for fuzz_state: segments as docs/state.md draws them, with empty seals, which the fuzzer fills in.

seed_state.py DIR"""
import os
import struct
import sys


def block(number, n_tokens, groups):
    mask = sum(1 << g for g, n in enumerate(groups) if n)
    head = b"HKVB" + struct.pack("<I", number) + bytes([number + 1] * 32) + bytes(32) + bytes([7] * 32)
    head += struct.pack("<IIQQQQ", n_tokens, mask, groups[0], groups[1], 1000 * n_tokens, 0) + bytes(32)
    tokens = struct.pack("<%dI" % n_tokens, *range(n_tokens))
    entry = (bytes([number + 1] * 32), groups, 1000 * n_tokens, n_tokens, mask)
    return head + tokens + bytes(16) + bytes(i & 255 for i in range(sum(groups))), entry


def segment(shapes, flags=0):
    body, index = b"", b""
    for i, (n_tokens, groups) in enumerate(shapes):
        data, (key, sizes, value, n, mask) = block(i, n_tokens, groups)
        index += key + struct.pack("<QQQQIIQ", 128 + len(body), sizes[0], sizes[1], value, n, mask, 0)
        body += data
    size = 128 + len(body) + len(index) + 16
    head = b"HEDLKVS\n" + struct.pack("<II", 1, flags) + bytes(range(16)) + bytes(32) + bytes(16)
    head += struct.pack("<QQQII", size, 128 + len(body), 5000, len(shapes), 0) + bytes(16)
    return head + body + index + bytes(16)


shapes = [[(2, (10, 0))], [(4, (100, 30)), (4, (0, 50)), (1, (1, 0))], [(64, (200, 200))] * 3]
for i, s in enumerate(shapes):
    for what in (0, 1, 3, 7, 15):
        with open(os.path.join(sys.argv[1], "segment-%d-%d" % (i, what)), "wb") as f:
            f.write(bytes([what]) + segment(s))
for i, name in enumerate((b"00112233445566778899aabbccddeeff.kv", b"00112233445566778899aabbccddeeff.tmp")):
    with open(os.path.join(sys.argv[1], "name-%d" % i), "wb") as f:
        f.write(name)
