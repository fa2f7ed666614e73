#!/usr/bin/env python3
"""The largest load at which all interactive targets hold, beside llama-server's best settings.

    bench/capacity.py [--dir build/capacity] [--scenario evening_peak] [--conf TUNED.conf]

gamasot's load is found by bisection over real runs of at most --limit seconds; load 1 is the speed of
household.py. llama-server's settings are then played at half of it and from there down or up. Runs that
are in DIR already are not made again. About 12 minutes.
"""

import argparse

import household as h

LLAMA_GRID = {
    "-np 4": ["-np", 4, "-c", 4 * 4096],
    "-np 8": ["-np", 8, "-c", 8 * 4096],
    "-np 4 -b 256 -ub 256": ["-np", 4, "-c", 4 * 4096, "-b", 256, "-ub", 256],
    "-np 4 -b 128 -ub 128": ["-np", 4, "-c", 4 * 4096, "-b", 128, "-ub", 128],
}


def bisect(results, folder, name, label, engine, args, limit_s, load, steps):
    """Largest load that holds and the smallest that does not: each run is kept under its own key."""
    speed = h.SCENARIOS[name]["speed"]
    trace = h.make_trace(folder, name)

    def holds(load):
        def run():
            with h.quiet_machine(), h.Server(folder, engine, args) as server:
                got = h.play(folder, server.url, trace, speed * load, limit_s / min(load, 1.0),
                             tell=engine == "gamasot")
            return {"holds": h.all_hold(got), "totals": got["summary"]["totals"],
                    "met": {k: g["slo_met"] for k, g in got["summary"]["classes"].items()}}
        return results.once(f"{name} {label} {load:.4f}", run)["holds"]

    low, high = 0.0, 8.0
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
    return low, high


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    h.add_options(parser, "capacity")
    parser.add_argument("--scenario", default="evening_peak", choices=list(h.SCENARIOS))
    parser.add_argument("--conf", help="settings that gamasot tune wrote")
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    results = h.Results(f"{options.dir}/results.jsonl", options.most)
    servers = [("gamasot, defaults", "gamasot", [])]
    if options.conf:
        servers.append(("gamasot, tuned", "gamasot", ["--config", options.conf]))
    if h.LLAMA.exists():
        servers += [(f"llama-server {k}", "llama", v) for k, v in LLAMA_GRID.items()]
    else:
        print(f"{h.LLAMA} is not there: bench/build-peer makes it")

    def largest(label, engine, args, load, steps):
        low, high = bisect(results, results.path.parent, options.scenario, label, engine, args,
                           options.limit, load, steps)
        rows.append(f"| {label} | {f'{low:.2f}' if low else f'below {high:.2f}'} |")
        return low, high

    rows = [f"| {options.scenario} | largest load |", "|---|---|"]
    ours = max(largest(*s, 1.0, options.steps)[0] for s in servers if s[1] == "gamasot")
    # Half of ours is what matters: what holds there is looked at more closely.
    theirs = [largest(*s, ours / 2, 2) for s in servers if s[1] == "llama"]
    print("\n" + "\n".join(rows))
    best = max((low for low, _ in theirs), default=0)
    if best:
        print(f"\nours / theirs {ours / best:.2f} (owed 2)")
    elif theirs:
        print(f"\nours / theirs more than {ours / max(high for _, high in theirs):.2f} (owed 2)")


if __name__ == "__main__":
    main()
