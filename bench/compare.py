#!/usr/bin/env python3
"""Decode and prefill rates of gamasot beside llama.cpp and OpenVINO GenAI, interleaved in one run.

    make bench                                  # everything, some minutes
    bench/compare.py --rounds 3 --models smollm2 --decode 1,8 --prefill 512

The machines this runs on are shared: absolute numbers drift within minutes, so the three engines
take turns within each round, each cell's figure is the median over the rounds, and what is
reported first is the ratio. All use the same GGUF file and the same number of threads.

llama.cpp is built from the sdist that scripts/fetch-vocabs unpacks (bench/build-peer); OpenVINO
GenAI is the PyPI package in its own virtual environment. An absent peer is said and left out.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "gamasot"
PEER = CACHE / "peer"


def run(cmd, env=None, timeout=900):
    p = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=timeout,
                       env={**os.environ, **(env or {})})
    if p.returncode != 0:
        print(f"  failed ({p.returncode}): {' '.join(map(str, cmd))}\n{p.stderr[-500:]}", file=sys.stderr)
        return None
    return p.stdout


def json_lines(text):
    for line in (text or "").splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def ours(model, a):
    out = run([ROOT / "build/current/gamasot", "bench", "--engine", "--model", model,
               "--threads", a.threads, "--decode", a.decode, "--prefill", a.prefill,
               "--depth", a.depth, "--steps", a.steps, "--kv.memory_mb", a.kv_mb])
    cells = {}
    for r in json_lines(out):
        key = ("decode", r["streams"]) if r["test"] == "decode" else ("prefill", r["tokens"])
        cells[key] = r["tok_s"]
    return cells


def llama(model, a):
    exe = PEER / "build/bin"
    cells = {}
    if not (exe / "llama-batched-bench").exists():
        return None
    streams = max(map(int, a.decode.split(",")))
    ctx = streams * (int(a.depth) + int(a.steps) + 8)
    out = run([exe / "llama-batched-bench", "-m", model, "-c", ctx, "-b", 2048, "-ub", 512,
               "-npp", a.depth, "-ntg", a.steps, "-npl", a.decode, "-t", a.threads, "-fa", "1",
               "--output-format", "jsonl"])
    for r in json_lines(out):
        cells["decode", r["pl"]] = r["speed_tg"]
    out = run([exe / "llama-bench", "-m", model, "-t", a.threads, "-p", a.prefill, "-n", 0, "-r", 1,
               "-fa", "1", "-o", "jsonl"])
    for r in json_lines(out):
        cells["prefill", r["n_prompt"]] = r["avg_ts"]
    return cells


def openvino(model, a):
    python = PEER / "ov/bin/python"
    if not python.exists():
        return None
    out = run([python, ROOT / "bench/openvino_bench.py", model, "--threads", a.threads,
               "--decode", a.decode, "--prefill", a.prefill, "--depth", a.depth, "--steps", a.steps])
    return {(r["test"], r["n"]): r["tok_s"] for r in json_lines(out)}


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def models(a):
    smol = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    known = {
        "smollm2": ("SmolLM2 135M Q4_1", smol, ["gamasot", "llama.cpp", "OpenVINO"]),
        "smollm2-q4_0": ("SmolLM2 135M Q4_0", CACHE / "models/smollm2-q4_0.gguf", ["gamasot", "llama.cpp", "OpenVINO"]),
        "gemma3": ("Gemma 3 270M Q4_K_M", CACHE / "models/gemma-3-270m-q4_k_m.gguf", ["gamasot", "llama.cpp"]),
        "1.5b-q4_0": ("1.5B shape Q4_0", CACHE / "models/random-1.5b-q4_0.gguf", ["gamasot", "llama.cpp"]),
        "1.5b-q4_k_m": ("1.5B shape Q4_K_M", CACHE / "models/random-1.5b-q4_k_m.gguf", ["gamasot", "llama.cpp"]),
        "1b-q8_0": ("1B shape Q8_0", CACHE / "models/random-1b-q8_0.gguf", ["gamasot", "llama.cpp"]),
    }
    for name in a.models.split(","):
        title, path, engines = known[name]
        if path.exists():
            yield name, title, path, engines
        else:
            print(f"left out {title}: {path} is not there (bench/make-models)")


def measure(path, engines, a):
    table = {}
    for rnd in range(a.rounds):
        for name in engines:
            cells = {"gamasot": ours, "llama.cpp": llama, "OpenVINO": openvino}[name](path, a)
            if cells is None:
                if rnd == 0:
                    print(f"  left out {name}: not built (bench/build-peer)")
                continue
            for key, value in cells.items():
                table.setdefault(key, {}).setdefault(name, []).append(value)
        print(f"  round {rnd + 1} of {a.rounds} done", file=sys.stderr)
    return {k: {n: statistics.median(v) for n, v in row.items()} for k, row in table.items()}


def markdown(title, table, engines):
    peers = [e for e in engines[1:] if any(e in row for row in table.values())]
    lines = [f"**{title}**, tokens/s", "",
             "| | gamasot | " + " | ".join(f"{p} | ratio" for p in peers) + " |",
             "|---|---|" + "---|---|" * len(peers)]
    for (test, n), row in sorted(table.items()):
        mine = row.get("gamasot")
        label = f"{n} stream{'s' if n > 1 else ''}" if test == "decode" else f"prefill {n}"
        cells = []
        for p in peers:
            cells += [f"{row[p]:.0f}", f"{mine / row[p]:.2f}"] if p in row and mine else ["-", "-"]
        lines.append(f"| {label} | {mine:.0f} | " + " | ".join(cells) + " |" if mine else f"| {label} | - |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--models", default="smollm2,smollm2-q4_0,gemma3,1.5b-q4_0,1.5b-q4_k_m,1b-q8_0")
    p.add_argument("--decode", default="1,2,3,4,5,6,7,8,12,16,24,32")
    p.add_argument("--prefill", default="32,128,512,2048")
    p.add_argument("--depth", default="128", help="tokens each decoding stream has already")
    p.add_argument("--steps", default="32")
    p.add_argument("--threads", default=str(os.cpu_count()))
    p.add_argument("--kv-mb", default="2048")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--out", help="append the tables to this Markdown file")
    a = p.parse_args()
    text = f"{cpu_name()}, {a.threads} threads, contexts of {a.depth} tokens, medians of {a.rounds} interleaved rounds\n\n"
    for name, title, path, engines in models(a):
        print(title)
        text += markdown(title, measure(path, engines, a), engines) + "\n"
    print(text)
    if a.out:
        with open(a.out, "a") as f:
            f.write(text)


if __name__ == "__main__":
    main()
