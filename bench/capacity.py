#!/usr/bin/env python3
"""The largest load at which all interactive targets hold, beside llama-server's best settings.

    bench/capacity.py [--dir build/capacity] [--scenario evening_peak] [--conf TUNED.conf]

Each server's load is found by bisection over real runs of at most --limit seconds; load 1 is the
speed of household.py. Runs that are in DIR already are not made again. About 15 minutes.
"""

import argparse

import household as h

LLAMA_GRID = {
    "-np 4": ["-np", 4, "-c", 4 * 4096],
    "-np 8": ["-np", 8, "-c", 8 * 4096],
    "-np 4 -b 256 -ub 256": ["-np", 4, "-c", 4 * 4096, "-b", 256, "-ub", 256],
    "-np 4 -b 128 -ub 128": ["-np", 4, "-c", 4 * 4096, "-b", 128, "-ub", 128],
}


def bisect(results, folder, name, label, engine, args, limit_s, steps):
    """Largest load that holds, in half octaves: each run is kept under its own key."""
    speed = h.SCENARIOS[name]["speed"]
    trace = h.make_trace(folder, name)

    def holds(load):
        def run():
            with h.quiet_machine(), h.Server(folder, engine, args) as server:
                got = h.play(folder, server.url, trace, speed * load, limit_s,
                             tell=engine == "gamasot")
            return {"holds": h.all_hold(got), "totals": got["summary"]["totals"],
                    "met": {k: g["slo_met"] for k, g in got["summary"]["classes"].items()}}
        return results.once(f"{name} {label} {load:.4f}", run)["holds"]

    low, high = 0.0, 8.0
    load = 1.0
    for _ in range(steps):
        if holds(load):
            low = load
        else:
            high = load
        if low == 0.0:
            load = high / 2
        elif high == 8.0:
            load = low * 2
        else:
            load = (low * high) ** 0.5
        if load >= 8.0:
            break
    return low


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=h.ROOT / "build/capacity")
    parser.add_argument("--scenario", default="evening_peak", choices=list(h.SCENARIOS))
    parser.add_argument("--conf", help="settings that gamasot tune wrote")
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    results = h.Results(f"{options.dir}/results.jsonl")
    servers = [("gamasot, defaults", "gamasot", [])]
    if options.conf:
        servers.append(("gamasot, tuned", "gamasot", ["--config", options.conf]))
    if h.LLAMA.exists():
        servers += [(f"llama-server {k}", "llama", v) for k, v in LLAMA_GRID.items()]
    else:
        print(f"{h.LLAMA} is not there: bench/build-peer makes it")
    loads = [(label, bisect(results, results.path.parent, options.scenario, label, engine, args,
                            options.limit, options.steps)) for label, engine, args in servers]
    print(f"\n| {options.scenario} | largest load |\n|---|---|")
    for label, load in loads:
        print(f"| {label} | {load:.2f} |")
    ours = max((v for k, v in loads if k.startswith("gamasot")), default=0)
    theirs = max((v for k, v in loads if k.startswith("llama")), default=0)
    if theirs:
        print(f"\nours / theirs {ours / theirs:.2f} (owed 2)")


if __name__ == "__main__":
    main()
