#!/usr/bin/env python3
"""dequantize.py - a GGUF file with every matrix turned into F32 by the gguf package's reference dequantisers.

usage: dequantize.py IN.gguf OUT.gguf

Same keys, same tensors, no rounding left in weights or (in an engine) activations: the exact model a quantised file
stands for, as the reference for logits_vs_peer.py and greedy_vs_peer.py --ref.
"""
import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    r = GGUFReader(sys.argv[1])
    w = GGUFWriter(sys.argv[2], r.fields["general.architecture"].contents())
    for k, f in r.fields.items():
        if k.startswith("GGUF.") or k == "general.architecture":
            continue
        value = 0 if k == "general.file_type" else f.contents()  # 0: all F32
        kind = f.types[0]
        w.add_key_value(k, value, kind, f.types[-1] if kind == GGUFValueType.ARRAY else None)
    for t in r.tensors:
        shape = [int(n) for n in t.shape[::-1]]
        w.add_tensor_info(t.name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for t in r.tensors:
        x = quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        w.write_tensor_data(x.reshape([int(n) for n in t.shape[::-1]]))
    w.close()


if __name__ == "__main__":
    main()
