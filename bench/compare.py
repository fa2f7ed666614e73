#!/usr/bin/env python3
"""Decode and prefill rates of gamasot beside llama.cpp and OpenVINO GenAI, interleaved in one run.

    make bench                                   # everything; long (an hour and more)
    bench/compare.py --quick                     # the cells with a goal; some 10 minutes, and 5
                                                 # more when llama.cpp's settings are not known yet
    bench/compare.py --quick --models smollm2 --decode 1,8 --prefill 512 --rounds 5
    bench/compare.py --quick --budget 60 [--resume]   # stops after a minute, or after the piece of
                                                 # work that it is at (4 minutes at most); goes on
                                                 # where it was, also with other cells or models
    bench/compare.py --smooth                    # step time at every number of streams, 1 to 32

The machines this runs on are shared: absolute numbers drift within minutes, so within each round
the engines take turns on each group of cells, each figure is the median over the rounds (--quick:
two, one for big models), and what counts is the ratio. Same GGUF file (OpenVINO also: the same weights requantised its own way), same
number of threads. llama.cpp runs with its best setting for each cell (flash attention on or off,
-ub 128 or 512), found once and kept in build/bench/llama-settings.json (--probe: find again).
The machine's ceilings are measured in the same rounds. What ran while other programs took more than
a twentieth of the processors is done again, twice at most.

Results go to build/bench/compare.json; --write puts the tables into docs/performance.md. The
peers come from bench/build-peer, the models from bench/make-models; what is absent is left out,
which is said.
"""
import argparse
import copy
import json
import os
import pathlib
import random
import sys
import time

import engines
import report
from engines import ALL_MODELS, Group, ROOT

OUT = ROOT / "build/bench"
QUICK = {"decode": "1,2,4,8,16,32", "prefill": "512,2048", "contexts": "128"}
FULL = {"decode": "1,2,3,4,5,6,7,8,12,16,24,32", "prefill": "32,128,512,2048",
        "contexts": "128,1024,4096"}


FOREIGN = 0.05  # of all processors, what others may take while something is measured


def numbers(text):
    return [int(x) for x in text.split(",") if x]


def load(path, default):
    return json.loads(path.read_text()) if path.exists() else default


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1))
    part.replace(path)


def pieces(counts, depth):
    """Long contexts take minutes to compute: each number of streams is a piece of work by itself."""
    return [[n] for n in counts] if depth >= 1000 else [counts] if counts else []


def foreign_share(before):
    """Busy processor time since `before` that was not this program's, as a share of all cores."""
    busy, own, wall = (now - then for now, then in zip(cpu_times(), before))
    return (busy - own) / max(wall * os.cpu_count(), 1e-9)


def cpu_times():
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, _, _, irq, soft, steal = map(int, f.readline().split()[1:9])
    t = os.times()
    own = t.user + t.system + t.children_user + t.children_system
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK"), own, t.elapsed


class Run:
    """The run's state: what was measured so far, saved after each unit of work."""

    def __init__(self, a):
        self.a = a
        self.path = pathlib.Path(a.json)
        self.until = time.monotonic() + a.budget if a.budget else None
        self.settings_path = OUT / "llama-settings.json"
        self.settings = {} if a.probe and not a.resume else load(self.settings_path, {})
        self.state = load(self.path, None) if a.resume else None
        if self.state is None:
            self.path.unlink(missing_ok=True)
            self.state = {"done": [], "left_out": [], "models": {},
                          "cpu": report.cpu_name(), "threads": int(a.threads),
                          "contexts": numbers(a.contexts)}

    def model(self, name):
        return self.state["models"].setdefault(
            name, {"title": ALL_MODELS[name].title, "cells": {}, "chain": {}, "machine": []})

    def unit(self, name, work):
        """Does a piece of work once, also across --resume; ends the program past the budget."""
        if name in self.state["done"]:
            return
        if self.until and time.monotonic() > self.until:
            print(f"budget used up before {name}; go on with --resume", file=sys.stderr)
            sys.exit(3)
        began = time.monotonic()
        for attempt in range(3):
            kept, before = copy.deepcopy(self.state), cpu_times()
            work()
            foreign = foreign_share(before)
            if foreign < FOREIGN or attempt == 2 or self.until and time.monotonic() > self.until:
                break
            print(f"  {name}: others took {100 * foreign:.0f} % of the processors; once more",
                  file=sys.stderr, flush=True)
            self.state = kept
        if foreign >= FOREIGN:
            self.state["disturbed"] = self.state.get("disturbed", 0) + 1
        print(f"  {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        self.state["done"].append(name)
        save(self.path, self.state)

    def probe(self, model, group):
        key = f"{model.path.name} {model.path.stat().st_size} {self.a.threads}"
        mine = self.settings.setdefault(key, {})
        if all(group.cell(n) in mine for n in group.counts):
            return
        if not (engines.LLAMA / "llama-batched-bench").exists():
            return

        def work():
            mine.update(engines.probe_llama(model, group, self.a))
            save(self.settings_path, self.settings)
        self.unit(f"settings of {model.name} {group.name}", work)

    def measure(self, model, group, engine):
        steps = self.a.steps or (8 if model.big else 32)
        key = f"{model.path.name} {model.path.stat().st_size} {self.a.threads}"
        got = engines.run_engine(engine, model, group, self.a, steps, self.settings.get(key, {}))
        text = f"{engine} ({model.title})"
        if got is None:
            if text not in self.state["left_out"]:
                self.state["left_out"].append(text)
                print(f"  left out: {text} is not there (bench/build-peer, bench/make-models)")
            return
        if text in self.state["left_out"]:
            self.state["left_out"].remove(text)
        m = self.model(model.name)
        m["steps"] = steps
        m["kv_bytes_per_token"] = got.pop("kv_bytes_per_token", m.get("kv_bytes_per_token"))
        for cell, value in got.items():
            m["cells"].setdefault(cell, {}).setdefault(engine, []).append(value)

    def linear(self, model, counts, rnd):
        """Ceilings and the linear layers alone; the long prompt in the first round only."""
        rows = counts + ([512] if rnd == 0 and 512 in numbers(self.a.prefill) else [])
        got = engines.chain(model, self.a, rows, 3 if model.big else 9, not model.big)
        if got is None:
            return
        machine, weights, chain = got
        m = self.model(model.name)
        m["machine"].append(machine)
        m["weights"] = weights
        for n, row in chain.items():
            m["chain"].setdefault(str(n), []).append(row)

    def matrix(self, models):
        a = self.a
        groups = [Group("decode", counts, d) for d in numbers(a.contexts)
                  for counts in pieces(numbers(a.decode), d)]
        if numbers(a.prefill):
            groups.append(Group("prefill", numbers(a.prefill)))
        for rnd in range(a.rounds):
            for model in models:
                if rnd >= self.rounds_of(model):
                    continue
                if numbers(a.decode):
                    self.unit(f"{rnd} {model.name} linear layers {a.decode}",
                              lambda m=model, r=rnd: self.linear(m, numbers(a.decode), r))
                for group in groups:
                    if rnd > 0 and group.depth > 1000 and not a.deep_rounds:
                        continue
                    self.probe(model, group)
                    names = [e for e in model.engines if e in a.engines.split(",")]
                    for i in range(len(names)):
                        engine = names[(i + rnd) % len(names)]
                        self.unit(f"{rnd} {model.name} {group.name} {engine}",
                                  lambda m=model, g=group, e=engine: self.measure(m, g, e))

    def rounds_of(self, model):
        if not self.a.quick:
            return self.a.rounds
        return 1 if model.big else min(self.a.rounds, 2)


def smooth(models, a):
    """Step times of 1 to 32 streams in shuffled order, 15 rounds; see report.smoothness."""
    rng = random.Random(1)
    result = {}
    for model in models:
        times = {n: [] for n in range(1, 33)}
        for _ in range(a.smooth_rounds):
            order = list(times)
            rng.shuffle(order)
            out = engines.run([ROOT / "build/current/gamasot", "bench", "--engine", "--model",
                               model.path, "--threads", a.threads, "--kv.memory_mb",
                               engines.kv_mb(32, 160), "--decode", engines.listed(order),
                               "--prefill", "", "--depth", 128, "--steps", a.steps or 6])
            for r in engines.json_lines(out):
                if r["test"] == "decode":
                    times[r["streams"]].append(r["step_ms"])
        result[model.name] = times
        print(report.smoothness(model.title, times))
    save(OUT / "smooth.json", result)


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--models", default=",".join(ALL_MODELS))
    p.add_argument("--engines", default="gamasot,llama.cpp,OpenVINO,OpenVINO int4")
    p.add_argument("--quick", action="store_true", help="the cells that have a goal")
    p.add_argument("--decode", help="numbers of streams")
    p.add_argument("--prefill", help="prompt lengths")
    p.add_argument("--contexts", help="tokens each decoding stream has already")
    p.add_argument("--steps", type=int, default=0, help="decode steps per cell (32; big models 8)")
    p.add_argument("--threads", default=str(len(os.sched_getaffinity(0))))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--deep-rounds", action="store_true",
                   help="contexts over 1,000 tokens in every round, not only the first")
    p.add_argument("--probe", action="store_true", help="find llama.cpp's best settings again")
    p.add_argument("--budget", type=float, default=0, help="stop after so many seconds")
    p.add_argument("--resume", action="store_true", help="go on with the run in --json")
    p.add_argument("--json", default=str(OUT / "compare.json"))
    p.add_argument("--report", action="store_true", help="only print what --json holds")
    p.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    p.add_argument("--smooth", action="store_true", help="step time at every number of streams")
    p.add_argument("--smooth-rounds", type=int, default=15)
    a = p.parse_args()
    for name, value in (QUICK if a.quick else FULL).items():
        if getattr(a, name) is None:
            setattr(a, name, value)
    if a.smooth and a.models == p.get_default("models"):
        a.models = "smollm2"
    unknown = [m for m in a.models.split(",") if m not in ALL_MODELS]
    if unknown:
        p.error(f"--models: {unknown[0]} is not one of {', '.join(ALL_MODELS)}")
    if a.report:
        a.resume = True
    return a


def main():
    a = parse()
    models = []
    for name in a.models.split(","):
        if ALL_MODELS[name].path.exists():
            models.append(ALL_MODELS[name])
        else:
            print(f"left out {ALL_MODELS[name].title}: {ALL_MODELS[name].path} is not there "
                  "(bench/make-models)")
    if a.smooth:
        smooth(models, a)
        return
    r = Run(a)
    if not a.report:
        r.matrix(models)
    text = report.markdown(r.state)
    print(text)
    if a.write:
        report.write_docs(ROOT / "docs/performance.md", text)


if __name__ == "__main__":
    main()
