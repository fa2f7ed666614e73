#!/usr/bin/env python3
"""The simulator against the real engine: three scenarios with SmolLM2, medians of three runs.

    bench/sim_agreement.py [--dir build/agreement] [--rounds 3] [--scenario NAME ...]

Prints the table of docs/tuning.md. Runs that are in DIR already are not made again. About 12
minutes. The simulated machine is device.json as the server measured it when it started.
"""

import argparse
import json
import statistics

import household as h

METRICS = (("ttft_p50", "ttft_p50_s"), ("ttft_p95", "ttft_p95_s"), ("itl_p50", "gap_p50_s"),
           ("itl_p95", "gap_p95_s"), ("completion_p50", "total_p50_s"))


def measure(folder, name, round_):
    trace = h.make_trace(folder, name)
    with h.quiet_machine(), h.Server(folder) as server:
        got = h.play(folder, server.url, trace, h.SCENARIOS[name]["speed"], limit_s=240)
    errors = sum(g["errors"] for g in got["summary"]["classes"].values())
    return {"classes": got["summary"]["classes"], "totals": got["summary"]["totals"],
            "errors": errors, "not_started": got["not_started"]}


def simulate(folder, name):
    out = folder / "sim.json"
    h.command("sim", "--trace", h.make_trace(folder, name), "--speed", h.SCENARIOS[name]["speed"],
              "--device", folder / "state/gamasot/device.json", "--own-scopes", "--out", out)
    return json.loads(out.read_text())


def rows(sim, runs):
    for name, s in sim["classes"].items():
        streamed = name in ("voice", "chat", "document")
        for real_key, sim_key in METRICS:
            if streamed == (real_key == "completion_p50"):
                continue
            got = [r["classes"][name][real_key] for r in runs if r["classes"].get(name)]
            got = [v for v in got if v is not None]
            if got and s[sim_key]:
                yield name, real_key, s[sim_key], statistics.median(got), 0.20
    tokens = sum(s["tokens_out"] for s in sim["classes"].values()) / sim["seconds"]
    yield ("all", "output tok/s", tokens,
           statistics.median(r["totals"]["output_tok_s"] for r in runs), 0.10)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=h.ROOT / "build/agreement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", nargs="+", default=list(h.SCENARIOS))
    options = parser.parse_args()
    results = h.Results(f"{options.dir}/results.jsonl")
    folder = results.path.parent
    print("| scenario | class | what | simulated | measured | difference | owed |\n"
          "|---|---|---|---|---|---|---|")
    lines = []
    for name in options.scenario:
        runs = [results.once(f"{name} {i}", lambda i=i, n=name: measure(folder, n, i))
                for i in range(options.rounds)]
        for class_, what, want, got, owed in rows(simulate(folder, name), runs):
            scale, unit = (1e3, "ms") if "itl" in what else (1, "s" if "tok" not in what else "")
            lines.append(f"| {name} | {class_} | {what} | {want * scale:.3g} {unit} | "
                         f"{got * scale:.3g} {unit} | {100 * (want / got - 1):+.0f} % | "
                         f"{100 * owed:.0f} % |")
        bad = [r for r in runs if r["errors"]]
        if bad:
            lines.append(f"| {name} | | errors in {len(bad)} runs: {bad[0]['errors']} | | | | |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
