"""Read a file that test_gguf_write kept (see its head) with the gguf Python package and compare every value."""
import sys

import numpy as np
from gguf import GGUFReader

WANT = {"general.alignment": 64, "general.architecture": "llama", "u8": 255, "i8": -128, "u16": 65535, "i16": -32768,
        "u32": 2 ** 32 - 1, "i32": -2 ** 31, "u64": 2 ** 64 - 1, "i64": -2 ** 63, "f32": float(np.float32(0.1)),
        "f64": 0.1, "bool": True, "ints": [1, -2, 3], "bools": [True, False, True], "floats": [0.5, -1.25],
        "strs": ["a", "", "grüß"]}

r = GGUFReader(sys.argv[1])
got = {k: f.contents() for k, f in r.fields.items() if not k.startswith("GGUF.")}
assert got == WANT, got
vector, matrix = r.tensors
assert vector.name == "vector" and vector.data.tolist() == [1, 2, 3, 4, 5]
assert matrix.name == "matrix" and matrix.tensor_type.name == "Q8_0" and matrix.shape.tolist() == [32, 2]
assert matrix.data.reshape(-1).tolist()[2:34] == list(range(2, 34)) and matrix.data_offset % 64 == 0
print("equal")
