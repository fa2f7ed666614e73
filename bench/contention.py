#!/usr/bin/env python3
"""Does decoding collapse when cores are short? Rates in four situations, interleaved.

    bench/contention.py [--model FILE] [--decode 1,8,32] [--rounds 5]

    one core        the engine may use one core: one thread (what it takes by itself) and as many
                    threads as the machine has cores, beside one thread undisturbed
    busy core       another program spins on one of the cores; beside all threads undisturbed
    many threads    twice as many threads as cores; beside one thread per core

The fair share: on one core what one thread does there. Beside a busy core its thread gets half a
core, and every layer waits for the slower half, so half of the undisturbed rate. With too many
threads, all of it. Wanted are 0.8 of these.
"""
import argparse
import os
import statistics
import subprocess
import sys

import engines
from engines import ALL_MODELS, ROOT

WANTED = 0.8


def rates(a, threads, cores):
    """Tokens/s by number of streams, on the given cores."""
    cmd = ["taskset", "-c", engines.listed(cores), ROOT / "build/current/gamasot", "bench",
           "--engine", "--model", a.model, "--kv.memory_mb", engines.kv_mb(32, 192),
           "--decode", a.decode, "--prefill", "", "--steps", a.steps]
    if threads:
        cmd += ["--threads", threads]
    rows = engines.json_lines(engines.run(cmd))
    return {r["streams"]: r["tok_s"] for r in rows if r["test"] == "decode"}


def with_busy_core(core, work):
    busy = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"])
    try:
        return work()
    finally:
        busy.kill()
        busy.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default=ALL_MODELS["smollm2"].path)
    p.add_argument("--decode", default="1,8,32")
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    n, one = len(cores), cores[:1]
    if n < 2:
        raise SystemExit("needs two cores")
    cases = {
        "undisturbed, one thread": lambda: rates(a, 1, cores),
        "one core": lambda: rates(a, 0, one),
        f"one core, {n} threads": lambda: rates(a, n, one),
        "undisturbed": lambda: rates(a, n, cores),
        "busy core": lambda: with_busy_core(cores[0], lambda: rates(a, n, cores)),
        f"{2 * n} threads": lambda: rates(a, 2 * n, cores),
    }
    beside = {"one core": ("undisturbed, one thread", 1.0),
              f"one core, {n} threads": ("undisturbed, one thread", 1.0),
              "busy core": ("undisturbed", 0.5),
              f"{2 * n} threads": ("undisturbed", 1.0)}
    seen = {case: [] for case in cases}
    for _ in range(a.rounds):
        for case, work in cases.items():
            seen[case].append(work())
    streams = [int(x) for x in a.decode.split(",")]
    middle = {c: {s: statistics.median(r[s] for r in runs) for s in streams}
              for c, runs in seen.items()}
    print("| | " + " | ".join(f"{s} streams, tok/s | of the fair share" for s in streams) + " |")
    print("|---|" + "---|---|" * len(streams))
    bad = 0
    for case in cases:
        parts = []
        for s in streams:
            text = ""
            if case in beside:
                other, share = beside[case]
                got = middle[case][s] / (share * middle[other][s])
                bad += got < WANTED
                text = f"{got:.2f}" + ("" if got >= WANTED else " MISSED")
            parts += [f"{middle[case][s]:.0f}", text]
        print(f"| {case} | " + " | ".join(parts) + " |")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
