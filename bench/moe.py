#!/usr/bin/env python3
"""A mixture of experts beside llama.cpp: decoding one stream and eight, and a prompt.

    bench/moe.py [--rounds 5] [--type q4_0] [--threads N] [--model FILE]

The model has the shape of Qwen3-30B-A3B with 16 of its 48 layers and random weights, and is made when
it is not there (scripts/mkgguf.py; 6 GB in the cache). The engines take turns in each round; a cell's
figure is the median, and what counts is the ratio. llama.cpp runs with its best setting for each cell,
found first. --json: the figures as JSON on standard output. Needs bench/build-peer.
"""
import argparse
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import engines

SHAPE = "qwen3-30b-a3b-16l"
WANTED = 1.5  # of llama.cpp's rate
GROUPS = (engines.Group("decode", [1, 8], 128), engines.Group("prefill", [512]))


def make_model(kind):
    path = engines.MODELS / f"random-{SHAPE}-{kind}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        subprocess.run([str(engines.PEER / "gguf/bin/python"), "scripts/mkgguf.py", "--shape", SHAPE,
                        "--type", kind, "--vocab-from",
                        str(engines.MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"), str(part)],
                       cwd=engines.ROOT, check=True)
        part.rename(path)
    return path


def measure(model, a):
    """{cell: {engine: [rates]}}"""
    settings = {}
    for group in GROUPS:
        settings.update(engines.probe_llama(model, group, a))
    rates = {}
    for _ in range(a.rounds):
        for group in GROUPS:
            for engine in ("gamasot", "llama.cpp"):
                cells = engines.run_engine(engine, model, group, a, a.steps, settings)
                if not cells:
                    sys.exit(f"{engine} gave no figures")
                for cell in map(group.cell, group.counts):
                    rates.setdefault(cell, {}).setdefault(engine, []).append(cells[cell])
    return rates


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--type", choices=("q4_0", "q8_0"), default="q4_0")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--model", help="another file than the one that would be made")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    if not (engines.LLAMA / "llama-batched-bench").exists():
        sys.exit("llama.cpp is not there: bench/build-peer")
    model = engines.Model("moe", SHAPE, a.model or make_model(a.type).name,
                          ["gamasot", "llama.cpp"], big=True)
    with open(pathlib.Path(tempfile.gettempdir()) / "gamasot-bench.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rates = measure(model, a)
    if a.json:
        print(json.dumps(rates))
        return
    for cell, by_engine in rates.items():
        ours, theirs = (statistics.median(by_engine[e]) for e in ("gamasot", "llama.cpp"))
        print(f"{cell:14} gamasot {ours:8.1f} tokens/s   llama.cpp {theirs:8.1f}   "
              f"ratio {ours / theirs:.2f} (wanted {WANTED})")


main()
