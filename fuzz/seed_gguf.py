"""Write small GGUF files into a folder, as seeds for fuzz_gguf: every value type, every tensor type, a split's keys.

    python3 fuzz/seed_gguf.py FOLDER
"""
import os
import struct
import sys

# type id: elements and bytes per block
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
         11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 24: (1, 1),
         25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2), 39: (32, 17)}
FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def text(s):
    return struct.pack("<Q", len(s)) + s


def scalar(t, v):
    return text(v) if t == 8 else struct.pack(FORMATS[t], v)


def value(name, t, v):
    return text(name) + struct.pack("<I", t) + scalar(t, v)


def array(name, t, vs):
    return text(name) + struct.pack("<IIQ", 9, t, len(vs)) + b"".join(scalar(t, v) for v in vs)


def file(keys, tensors=(), align=32, version=3):
    entries, data = b"", b""
    for name, t, dims in tensors:
        elems, size = TYPES[t]
        n = size
        for i, d in enumerate(dims):
            n *= d // elems if i == 0 else d
        data += b"\0" * (-len(data) % align)
        entries += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        entries += struct.pack("<IQ", t, len(data))
        data += bytes(i % 251 for i in range(n))
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + entries
    return head + b"\0" * (-len(head) % align) + data


SEEDS = {
    "empty": file([]),
    "scalars": file([value(b"k%d" % t, t, b"text" if t == 8 else 1) for t in (*FORMATS, 8)]),
    "arrays": file([array(b"a%d" % t, t, [b"", b"two"] if t == 8 else [0, 1, 1]) for t in (*FORMATS, 8)]),
    "types": file([], [(b"t%d" % t, t, (256,)) for t in TYPES]),
    "shapes": file([value(b"general.alignment", 4, 8)], [(b"a", 0, (3,)), (b"b", 2, (32, 3)), (b"c", 24, (5, 1, 2)),
                                                         (b"d", 14, (256, 1, 1, 2))], 8),
    "split": file([value(b"split.no", 2, 0), value(b"split.count", 2, 2), value(b"split.tensors.count", 5, 3)]),
    "joined": file([], [(b"a", 0, (8,))]) * 2,
    "version2": file([value(b"general.architecture", 8, b"llama")], [(b"a", 0, (8,))], version=2),
}

if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, data in SEEDS.items():
        with open(os.path.join(sys.argv[1], name), "wb") as f:
            f.write(data)
