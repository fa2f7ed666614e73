#!/usr/bin/env python3
"""Makes tiny encoders with random weights, tiny-nomic-bert.gguf and tiny-cross-encoder.gguf, and
encoders.json: what a plain numpy forward pass in double precision makes of some token sequences.
Needs numpy.
"""

import array
import json
import math
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))
import gguf_write as gguf  # noqa: E402

EMBD, FF, LAYERS, HEADS, VOCAB, CONTEXT, SEP, EPS = 32, 64, 2, 2, 40, 128, 3, 1e-12
BASE = 1000.0


class Model:
    """Random tensors, rounded to what the file holds; written as they are drawn."""

    def __init__(self, arch, pooling, seed):
        self.rng = np.random.default_rng(seed)
        self.arch, self.t, self.file = arch, {}, gguf.Writer()
        f = self.file
        f.add("general.architecture", gguf.STRING, arch)
        for key, value in (("context_length", CONTEXT), ("embedding_length", EMBD),
                           ("feed_forward_length", FF), ("block_count", LAYERS),
                           ("attention.head_count", HEADS), ("pooling_type", pooling)):
            f.add(f"{arch}.{key}", gguf.U32, value)
        f.add(f"{arch}.attention.layer_norm_epsilon", gguf.F32_VALUE, EPS)
        f.add(f"{arch}.attention.causal", gguf.BOOL, False)
        f.add("tokenizer.ggml.model", gguf.STRING, "none")
        f.add("tokenizer.ggml.seperator_token_id", gguf.U32, SEP)

    def draw(self, name, *shape, around=0.0, scale=None):
        std = scale or (0.2 if len(shape) == 1 else 1.5 / math.sqrt(shape[-1]))
        x = (around + self.rng.standard_normal(shape) * std).astype(np.float32)
        kind = gguf.F32 if len(shape) == 1 else gguf.F16
        if kind == gguf.F16:
            x = x.astype(np.float16).astype(np.float32)
        self.file.tensor(name, list(shape), kind, array.array("f", x.ravel().tolist()))
        self.t[name] = x.astype(np.float64)

    def norm_tensors(self, name):
        self.draw(name + ".weight", EMBD, around=1.0)
        self.draw(name + ".bias", EMBD)

    def dense_tensors(self, name, rows, cols, bias=True):
        self.draw(name + ".weight", rows, cols)
        if bias:
            self.draw(name + ".bias", rows)

    # ---- The forward pass ----

    def norm(self, x, name):
        mean = x.mean(-1, keepdims=True)
        var = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + EPS) * self.t[name + ".weight"] + self.t[name + ".bias"]

    def dense(self, x, name):
        return x @ self.t[name + ".weight"].T + self.t.get(name + ".bias", 0.0)

    def attention(self, q, k, v):
        out = np.empty_like(q)
        for h in range(HEADS):
            c = slice(h * EMBD // HEADS, (h + 1) * EMBD // HEADS)
            s = q[:, c] @ k[:, c].T / math.sqrt(EMBD // HEADS)
            w = np.exp(s - s.max(-1, keepdims=True))
            out[:, c] = w / w.sum(-1, keepdims=True) @ v[:, c]
        return out

    def states(self, ids, types):
        x = self.t["token_embd.weight"][ids] + self.t["token_types.weight"][types]
        if "position_embd.weight" in self.t:
            x = x + self.t["position_embd.weight"][:len(ids)]
        x = self.norm(x, "token_embd_norm")
        for i in range(LAYERS):
            p = f"blk.{i}."
            x = self.norm(x + self.dense(self.attention(*self.qkv(x, p)), p + "attn_output"),
                          p + "attn_output_norm")
            x = self.norm(x + self.feed_forward(x, p), p + "layer_output_norm")
        return x


class NomicBert(Model):
    """Rotation, SwiGLU, one tensor for Q, K and V, no biases; the mean of all states."""

    def __init__(self, seed):
        super().__init__("nomic-bert", 1, seed)
        self.file.add("nomic-bert.rope.freq_base", gguf.F32_VALUE, BASE)
        self.draw("token_embd.weight", VOCAB, EMBD, scale=1.0)
        self.draw("token_types.weight", 2, EMBD, scale=0.5)
        self.norm_tensors("token_embd_norm")
        for i in range(LAYERS):
            self.dense_tensors(f"blk.{i}.attn_qkv", 3 * EMBD, EMBD, False)
            self.dense_tensors(f"blk.{i}.attn_output", EMBD, EMBD, False)
            self.norm_tensors(f"blk.{i}.attn_output_norm")
            self.dense_tensors(f"blk.{i}.ffn_gate", FF, EMBD, False)
            self.dense_tensors(f"blk.{i}.ffn_up", FF, EMBD, False)
            self.dense_tensors(f"blk.{i}.ffn_down", EMBD, FF, False)
            self.norm_tensors(f"blk.{i}.layer_output_norm")

    def rotate(self, x):
        hd = EMBD // HEADS
        angle = np.arange(len(x))[:, None] * BASE ** (-2.0 * np.arange(hd // 2) / hd)
        c, s, out = np.cos(angle), np.sin(angle), np.empty_like(x)
        for h in range(HEADS):
            a, b = (slice(h * hd + half * hd // 2, h * hd + (half + 1) * hd // 2) for half in (0, 1))
            out[:, a], out[:, b] = x[:, a] * c - x[:, b] * s, x[:, a] * s + x[:, b] * c
        return out

    def qkv(self, x, p):
        q, k, v = np.split(self.dense(x, p + "attn_qkv"), 3, axis=1)
        return self.rotate(q), self.rotate(k), v

    def feed_forward(self, x, p):
        gate = self.dense(x, p + "ffn_gate")
        return self.dense(gate / (1 + np.exp(-gate)) * self.dense(x, p + "ffn_up"), p + "ffn_down")

    def answer(self, ids):
        v = self.states(ids, [0] * len(ids)).mean(0)
        return (v / np.linalg.norm(v)).tolist()


class CrossEncoder(Model):
    """A BERT with biases that scores pairs [CLS] A [SEP] B [SEP]."""

    def __init__(self, seed):
        super().__init__("bert", 4, seed)
        self.draw("token_embd.weight", VOCAB, EMBD, scale=1.0)
        self.draw("token_types.weight", 2, EMBD, scale=0.5)
        self.draw("position_embd.weight", CONTEXT, EMBD, scale=0.5)
        self.norm_tensors("token_embd_norm")
        for i in range(LAYERS):
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                self.dense_tensors(f"blk.{i}.{name}", EMBD, EMBD)
            self.norm_tensors(f"blk.{i}.attn_output_norm")
            self.dense_tensors(f"blk.{i}.ffn_up", FF, EMBD)
            self.dense_tensors(f"blk.{i}.ffn_down", EMBD, FF)
            self.norm_tensors(f"blk.{i}.layer_output_norm")
        self.dense_tensors("cls", EMBD, EMBD)
        self.dense_tensors("cls.output", 1, EMBD)

    def qkv(self, x, p):
        return (self.dense(x, p + "attn_" + c) for c in "qkv")

    def feed_forward(self, x, p):
        up = self.dense(x, p + "ffn_up")
        return self.dense(0.5 * up * (1 + np.vectorize(math.erf)(up / math.sqrt(2))), p + "ffn_down")

    def answer(self, ids):
        ends = np.cumsum([t == SEP for t in ids])
        types = np.minimum(np.concatenate([[0], ends[:-1]]), 1)
        first = self.states(ids, types)[:1]
        return self.dense(np.tanh(self.dense(first, "cls")), "cls.output")[0].tolist()


def main():
    rng = np.random.default_rng(5)
    out = {}
    for file, model in (("tiny-nomic-bert.gguf", NomicBert(1)), ("tiny-cross-encoder.gguf", CrossEncoder(2))):
        model.file.write(HERE / file)
        cases = []
        for n in (2, 3, 5, 17, 31, 32, 33, 64, 97, 128):
            ids = rng.integers(4, VOCAB, n)
            ids[0], ids[-1], ids[n // 2] = 2, SEP, SEP
            cases.append({"ids": ids.tolist(), "vector": [round(v, 7) for v in model.answer(ids)]})
        out[file] = cases
    (HERE / "encoders.json").write_text(json.dumps(out) + "\n")


main()
