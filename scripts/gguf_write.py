"""Writes GGUF version 3 files with nothing but the standard library.

Tensors are given as array.array('f'); F16 and Q8_0 are made here, a row of the file at a time, as
llama.cpp's own quantiser rounds them.
"""

import array
import os
import struct

U32, I32, F32_VALUE, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
F32, F16, Q8_0 = 0, 1, 8
ALIGNMENT = 32


def _string(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _scalar(kind, value):
    if kind == STRING:
        return _string(value)
    return struct.pack({U32: "<I", I32: "<i", F32_VALUE: "<f", BOOL: "<?"}[kind], value)


def f16(values):
    return struct.pack(f"<{len(values)}e", *values)


def q8_0(values):
    """Blocks of 32: an f16 scale, 32 signed codes."""
    out = []
    for at in range(0, len(values), 32):
        block = values[at:at + 32]
        largest = max(max(block), -min(block))
        inverse = 127.0 / largest if largest else 0.0
        out.append(struct.pack("<e32b", largest / 127.0, *[round(x * inverse) for x in block]))
    return b"".join(out)


ENCODE = {F32: lambda values: values.tobytes(), F16: f16, Q8_0: q8_0}


class Writer:
    def __init__(self):
        self.values = []   # encoded key-value pairs
        self.tensors = []  # name, shape (outermost first), type, bytes

    def add(self, key, kind, value):
        self.values.append(_string(key) + struct.pack("<I", kind) + _scalar(kind, value))

    def add_array(self, key, kind, values):
        head = struct.pack("<IIQ", ARRAY, kind, len(values))
        self.values.append(_string(key) + head + b"".join(_scalar(kind, v) for v in values))

    def tensor(self, name, shape, kind, values):
        assert isinstance(values, array.array) and values.itemsize == 4
        self.tensors.append((name, shape, kind, ENCODE[kind](values)))

    def write(self, path):
        """Whole, under another name first: half a file never has the final name."""
        part = f"{path}.part"
        with open(part, "wb") as f:
            f.write(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.values)))
            f.write(b"".join(self.values))
            offset = 0
            for name, shape, kind, data in self.tensors:
                f.write(_string(name) + struct.pack("<I", len(shape)))
                f.write(struct.pack(f"<{len(shape)}Q", *reversed(shape)))
                f.write(struct.pack("<IQ", kind, offset))
                offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
            f.write(bytes(-f.tell() % ALIGNMENT))
            for *_, data in self.tensors:
                f.write(data + bytes(-len(data) % ALIGNMENT))
            f.flush()
            os.fsync(f.fileno())
        os.rename(part, path)
