#!/usr/bin/env python3
"""The simulator against the real engine: three scenarios with SmolLM2, medians of three runs.

    bench/sim_agreement.py [--dir build/agreement] [--rounds 3] [--scenario NAME ...]

Prints the table of docs/tuning.md. Runs that are in DIR already are not made again. About 10
minutes. Each run is recorded by the server (record.enabled), and what it recorded is simulated on the
machine that it left in device.json when it ended: a household's own way from a trace to a setting.
"""

import argparse
import json
import shutil
import statistics

import household as h

METRICS = (("ttft_p50", "ttft_p50_s"), ("ttft_p95", "ttft_p95_s"), ("itl_p50", "gap_p50_s"),
           ("itl_p95", "gap_p95_s"), ("completion_p50", "total_p50_s"))
STREAMED = ("voice", "chat", "document")


def measure(folder, name):
    """A real run, and the same in the simulator."""
    scenario, recorded = h.SCENARIOS[name], folder / "recorded"
    shutil.rmtree(recorded, ignore_errors=True)
    recorded.mkdir()
    options = ["--record.enabled", "--record.folder", recorded, *scenario.get("server", [])]
    trace = h.make_trace(folder, name)
    with h.quiet_machine(), h.Server(folder, options=options) as server:
        got = h.play(folder, server.url, trace, scenario["speed"], limit_s=240)
    out = folder / "sim.json"
    h.command("sim", "--trace", next(recorded.glob("trace-*.jsonl")), "--device",
              folder / "state/gamasot/device.json", "--own-scopes", "--out", out)
    return {"real": got["summary"], "sim": json.loads(out.read_text()),
            "not_started": got["not_started"]}


def pairs(run):
    """(class, what, owed) -> simulated and measured"""
    sim, real = run["sim"], run["real"]
    for name, s in sim["classes"].items():
        r = real["classes"].get(name)
        for real_key, sim_key in METRICS:
            if r and (name in STREAMED) != (real_key == "completion_p50"):
                yield (name, real_key, 0.20), (s[sim_key], r[real_key])
    tokens = sum(s["tokens_out"] for s in sim["classes"].values()) / sim["seconds"]
    yield ("all", "output tok/s", 0.10), (tokens, real["totals"]["output_tok_s"])


def row(name, key, values):
    class_, what, owed = key
    sim, real = (statistics.median(v[i] for v in values) for i in (0, 1))
    scale, unit = (1, "") if "tok" in what else (1e3, " ms")
    return (f"| {name} | {class_} | {what} | {sim * scale:.3g}{unit} | {real * scale:.3g}{unit} | "
            f"{100 * (sim / real - 1):+.0f} % | {100 * owed:.0f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    h.add_options(parser, "agreement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", nargs="+", default=list(h.SCENARIOS))
    options = parser.parse_args()
    results = h.Results(f"{options.dir}/results.jsonl", options.most)
    folder = results.path.parent
    lines = ["| scenario | class | what | simulated | measured | difference | owed |",
             "|---|---|---|---|---|---|---|"]
    for name in options.scenario:
        runs = [results.once(f"{name} {i}", lambda n=name: measure(folder, n))
                for i in range(options.rounds)]
        found = {}
        for run in runs:
            for key, values in pairs(run):
                if None not in values and min(values) > 0:
                    found.setdefault(key, []).append(values)
        lines += [row(name, key, values) for key, values in found.items()]
        errors = sum(c["errors"] for r in runs for c in r["real"]["classes"].values())
        if errors:
            lines.append(f"| {name} | | errors in {len(runs)} runs: {errors} | | | | |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
