#!/usr/bin/env python3
"""OpenVINO's own int4 of a GGUF model, for bench/compare.py: IN.gguf OUT_DIR

OpenVINO GenAI reads the GGUF and saves it as its own model, whose weights have the file's blocks of
32. Here each weight is widened to float and compressed again the way NNCF does it: symmetric int4
in groups of 64, embeddings and output in int8. Runs in the peers' virtual environment.
"""
import os
import pathlib
import shutil
import sys
import tempfile

import nncf
import numpy as np
import openvino as ov
import openvino_genai as og
from openvino import opset13 as ops

WEIGHT_OPS = ("MatMul", "Gather")


def constant_only(node):
    if node.get_type_name() == "Constant":
        return True
    return node.get_input_size() > 0 and all(
        constant_only(node.input_value(i).get_node()) for i in range(node.get_input_size()))


def widen(model):
    """Every weight that is computed from constants becomes one float constant."""
    done = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() not in WEIGHT_OPS:
            continue
        for i in range(node.get_input_size()):
            source = node.input_value(i)
            root = source.get_node()
            if root.get_type_name() == "Constant" or not constant_only(root):
                continue
            key = root.get_friendly_name()
            if key not in done:
                part = ov.Model([ops.result(source)], [])
                value = ov.compile_model(part, "CPU")([])[0]
                done[key] = ops.constant(np.asarray(value, np.float32))
                done[key].set_friendly_name(key + ".wide")
            node.input(i).replace_source_output(done[key].output(0))
    return len(done)


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir=out.parent) as tmp:
        tmp = pathlib.Path(tmp)
        (tmp / "model.gguf").symlink_to(source.resolve())
        og.LLMPipeline(str(tmp / "model.gguf"), "CPU", enable_save_ov_model=True)
        (tmp / "model.gguf").unlink()
        model = ov.Core().read_model(tmp / "openvino_model.xml")
        n = widen(model)
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM,
                                      group_size=64, ratio=1.0)
        part = tmp / "int4"
        part.mkdir()
        ov.save_model(model, part / "openvino_model.xml")
        for f in tmp.glob("openvino_*tokenizer.*"):
            shutil.copy(f, part)
        shutil.rmtree(out, ignore_errors=True)
        os.rename(part, out)
    print(f"{out}: {n} weights")


if __name__ == "__main__":
    main()
