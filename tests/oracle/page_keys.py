"""The page keys that tests/test_store.c expects, by Python's hashlib from the definition in src/state/pagekey.h."""
import hashlib
import struct

key = hashlib.sha256(b"heddle page chain 1" + bytes(range(32))).digest()
print(key.hex())
for tokens in ([1, 2, -3], list(range(100))):
    key = hashlib.sha256(key + struct.pack("<I", len(tokens)) + struct.pack("<%di" % len(tokens), *tokens)).digest()
    print(key.hex())
