"""Architectures without a reference file: random weights beside llama.cpp's server.

bench/build-peer makes the peer; ./run check-long does that before."""

import json
import os
import pathlib
import random
import statistics
import subprocess
import unittest
import urllib.request

import harness
from harness import Server, free_port, model_path, other_server

PEER = pathlib.Path(os.environ.get("XDG_CACHE_HOME",
                                   pathlib.Path.home() / ".cache")) / "gamasot/peer"
LLAMA_SERVER = PEER / "build/bin/llama-server"
GGUF_PYTHON = PEER / "gguf/bin/python"
# float32 weights: both compute in float32, keys and values are f16. q8_0: both quantise activations
# to 8 bits, each in its own groups, and random weights have no redundancy that would hide it.
BOUNDS = {"f32": (0.001, 0.006), "q8_0": (0.03, 0.15)}  # median and largest |logprob difference|
# With experts a token on the edge between two of them may go to another one.
BOUNDS_EXPERTS = {"f32": (0.001, 0.06), "q8_0": (0.03, 0.5)}
LENGTHS = (1, 2, 7, 31, 33, 64, 100, 257)


def llama_server(model, *options):
    port = free_port()
    return other_server("llama-server", [LLAMA_SERVER, "-m", model, "--port", port, "-c", 1024, "-np",
                                         1, "-t", 2, "--no-webui", *options], port, "/health")


def theirs(port, ids):
    """Text and logprob of the 40 likeliest next tokens."""
    body = {"prompt": ids, "n_predict": 1, "n_probs": 40, "temperature": 0, "cache_prompt": False}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as r:
        top = json.load(r)["completion_probabilities"][0]["top_logprobs"]
    return {t["token"]: t["logprob"] for t in top}


class Peer(unittest.TestCase):
    def compare(self, arch, bounds=BOUNDS):
        if not LLAMA_SERVER.exists() or not GGUF_PYTHON.exists():
            self.skipTest(f"{LLAMA_SERVER} is not there (bench/build-peer)")
        for kind in bounds:
            self.compare_kind(arch, kind, *bounds[kind])

    def compare_kind(self, arch, kind, typical, largest):
        path = str(harness.TMP / f"{arch}-{kind}.gguf")
        subprocess.run([str(GGUF_PYTHON), "scripts/mkgguf.py", "--shape", f"tiny-{arch}", "--type",
                        kind, "--vocab-from", model_path(), path], cwd=harness.ROOT, check=True)
        rng = random.Random(3)
        prompts = [[rng.randrange(20, 49000) for _ in range(n)] for n in LENGTHS]
        with llama_server(path) as port:
            want = [theirs(port, ids) for ids in prompts]
        diffs, best_elsewhere = [], 0
        with Server("--model", path, "--kv.memory_mb", 64, "--context", 1024, "--kv.type", "f16",
                    backend="native") as server:
            for ids, top in zip(prompts, want, strict=True):
                r = server.complete(ids, 1, logprobs=5)
                ours = r["choices"][0]["logprobs"]["top_logprobs"][0]
                ours = {t: p for t, p in ours.items() if "\ufffd" not in t}
                self.assertGreaterEqual(len(ours), 3)
                for text, logprob in ours.items():
                    # Beyond their 40 best: then it differs by more than the gap to the last.
                    diffs.append(abs(logprob - top.get(text, min(top.values()))))
                best = max(top, key=top.get)
                ours_best = max(ours, key=ours.get)
                best_elsewhere += top.get(ours_best, -99) < top[best] - largest
        os.unlink(path)
        median = statistics.median(diffs)
        print(f"{arch} {kind}: {len(diffs)} logprobs, median difference {median:.5f}, "
              f"largest {max(diffs):.5f}", flush=True)
        self.assertEqual(best_elsewhere, 0)
        self.assertLess(median, typical)
        self.assertLess(max(diffs), largest)

    @harness.long_only
    @harness.limit(600)
    def test_qwen2(self):
        self.compare("qwen2")

    @harness.long_only
    @harness.limit(600)
    def test_qwen3(self):
        self.compare("qwen3")

    @harness.long_only
    @harness.limit(600)
    def test_smollm3(self):
        self.compare("smollm3")

    @harness.long_only
    @harness.limit(600)
    def test_granite(self):
        self.compare("granite")

    @harness.long_only
    @harness.limit(600)
    def test_gemma2(self):
        self.compare("gemma2")

    @harness.long_only
    @harness.limit(600)
    def test_phi3(self):
        self.compare("phi3")

    @harness.long_only
    @harness.limit(600)
    def test_qwen3moe(self):
        self.compare("qwen3moe", BOUNDS_EXPERTS)
