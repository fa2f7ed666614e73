#!/usr/bin/env python3
"""The tuner's choice, run for real, beside a grid of 30 points and the shipped defaults.

    bench/tune_check.py [--dir build/tune] [--most S] [--scenario NAME ...] [--limit 60]

For each scenario: `gamasot tune`, then 30 points of a grid in the simulator, then on the real engine
the grid's best five, the tuner's choice and the defaults, each at the load it is said to carry and,
where a target is missed, at three quarters of it, and so on. All on the device as it was measured once.
Runs that are in DIR already are not made again. About 12 minutes a scenario.
"""

import argparse
import itertools
import json
import os
import shutil
import time

import household as h

GRID = {"engine.prefill_chunk": (32, 64, 128, 256, 512), "sched.background_gap_ms": (5, 15, 40),
        "class_document.quantum_ms": (50, 200)}
# Some ten requests of each class are too few: one that is late decides which setting is the best.
LONGER = {"evening_peak": 4200, "voice_over_document": 1500, "index_the_photos": 1000}


def tune(folder, trace, *args, sets=(), confirm_s=0):
    out = folder / "tune.json"
    confirm = ["--confirm", 1, "--confirm-limit", confirm_s] if confirm_s else []
    chosen = [x for s in (f"model.path={h.model_path()}", f"model.context={h.CONTEXT}", *sets)
              for x in ("--set", s)]
    env = os.environ | {"XDG_STATE_HOME": str(folder / "state"),
                        "GAMASOT_SERVER_KEYS_FILE": str(folder / "no-keys.json")}
    began = time.monotonic()
    h.command("tune", "--trace", trace, "--device", folder / "device.json",
              "--own-scopes", "--no-state", "--quiet", "--out", out, *chosen, *confirm, *args,
              env=env)
    return json.loads(out.read_text()) | {"wall_s": time.monotonic() - began}


def fixed(folder, trace, sets, confirm_s=0):
    """One candidate alone: what it carries in the simulator, and for real."""
    return tune(folder, trace, "--candidates", 0, "--rounds", 0, sets=sets, confirm_s=confirm_s)


def as_sets(settings):
    return [f"{k}={v}" for k, v in settings.items()]


def scenario(results, folder, name, limit_s):
    trace = h.make_trace(folder, name, "--duration", LONGER[name])

    def device():
        with h.quiet_machine(), h.Server(folder):
            shutil.copy(folder / "state/gamasot/device.json", folder / "device.json")
            return {}

    def measured(sets):
        with h.quiet_machine():
            return fixed(folder, trace, sets, limit_s)

    results.once(f"{name} device", device)
    found = results.once(f"{name} tuned", lambda: tune(folder, trace, "--config-out",
                                                       folder / f"{name}.conf", "--report",
                                                       folder / f"{name}.html"))
    points = [dict(zip(GRID, p)) for p in itertools.product(*GRID.values())]
    grid = [results.once(f"{name} grid {p}", lambda p=p: fixed(folder, trace, as_sets(p)))
            for p in points]
    order = sorted(range(len(grid)), key=lambda i: -grid[i]["tokens_per_s"])[:5]
    rows = [("defaults", results.once(f"{name} real defaults", lambda: measured([])))]
    rows.append(("tuner", results.once(f"{name} real tuner",
                                       lambda: measured(as_sets(found["settings"])))))
    for i in order:
        rows.append((f"grid {tuple(points[i].values())}",
                     results.once(f"{name} real {points[i]}",
                                  lambda i=i: measured(as_sets(points[i])))))
    print(f"\n{name}: tuner {found['seconds']:.1f} s for {found['candidates']} candidates; the grid "
          f"in simulation {sum(g['wall_s'] for g in grid):.1f} s, for real it would take "
          f"{30 * limit_s / 60:.0f} min\n\n"
          "| candidate | load, simulated | tokens/s | load, measured | output tok/s | in time | "
          "targets |\n|---|---|---|---|---|---|---|")
    for label, r in rows:
        m = r["measured"][-1] if r["measured"] else {"load": 0, "output_tok_s": 0, "met": 0,
                                                     "holds": False}
        print(f"| {label} | {r['load']:.2f} | {r['tokens_per_s']:.0f} | {m['load']:.2f} | "
              f"{m['output_tok_s']:.1f} | {100 * (m['met'] or 0):.1f} % | "
              f"{'held' if m['holds'] else 'missed'} |")
    best = max(g["tokens_per_s"] for g in grid)
    if best > 0 and found["default_tokens_per_s"] > 0:
        print(f"\ntuner / best of the grid {found['tokens_per_s'] / best:.2f} (owed 0.95); "
              f"tuner / defaults {found['tokens_per_s'] / found['default_tokens_per_s']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    h.add_options(parser, "tune")
    parser.add_argument("--scenario", nargs="+", default=["evening_peak", "voice_over_document"])
    parser.add_argument("--limit", type=float, default=60)
    options = parser.parse_args()
    results = h.Results(f"{options.dir}/results.jsonl", options.most)
    for name in options.scenario:
        scenario(results, results.path.parent, name, options.limit)


if __name__ == "__main__":
    main()
