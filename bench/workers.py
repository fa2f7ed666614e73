#!/usr/bin/env python3
"""A family's load over this machine and another one: gamasot in front of both, beside each alone and
beside a proxy that gives each of the two its turn.

    bench/workers.py [--dir build/workers] [--rounds 2] [--seconds 48] [--remote llama|gamasot]

Two engines, each one thread on a core of its own, stand for two machines: gamasot on core 0 is this
one, llama-server (-np 4) or a second gamasot on core 1 the other. The family's interactive requests
(household.py, at the pace of one core) come beside a backlog of background jobs, so many at a time
that neither engine is ever without. In each round:

    alone   the family and the backlog at the local engine; at the same time the other one has a
            backlog of its own, so that both cores are as busy as in the other runs
    both    the family and the backlog at gamasot, which has the other engine as a worker
    turns   the family and the backlog at a round-robin proxy over the same two engines

Each run takes less than a minute; runs that are in DIR already are not made again.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import pathlib
import random
import statistics
import tempfile
import threading
import time
import urllib.request

import household as h

COLUMNS = ("alone", "both", "turns")
INTERACTIVE = ("voice", "chat", "document", "utility")
# Lengths are an eighth, six times as many people come, time runs SPEED times as fast.
FAMILY = ("--scale", "6", "--tokens-scale", "0.125", "--no-embeddings")
SPEED = 15
SEATS = 4           # of the other engine
SLOT_CONTEXT = 4096
AT_ONCE = 32        # jobs of a backlog
WARM_S = 5          # is not counted
LOCAL_CORE, REMOTE_CORE = 0, 1


# ---- load ----------------------------------------------------------------------------------------


def backlog(seconds):
    """Requests of a trace: AT_ONCE chains, in each the next job is sent when one is done."""
    rng, jobs = random.Random(5), []
    for chain in range(AT_ONCE):
        for i in range(8 + seconds):
            jobs.append({
                "t": 0.1 * chain + i, "id": f"job-{chain}-{i}", "person": "house",
                "class": "background", "api": "chat", "prompt_tokens": rng.randint(80, 240),
                "prefix_tokens": 0, "shared_prefix": None, "max_tokens": rng.randint(40, 80),
                "stream": True, "texts": None, "cancel_after": None, "deadline": None,
                "conversation": None,
                "after": {"id": f"job-{chain}-{i - 1}", "think": 0} if i else None})
    return jobs


def make_traces(folder, seconds):
    """Two files: the family with a backlog, and a backlog alone."""
    family = folder / "family.jsonl"
    only = [x for name in INTERACTIVE for x in ("--only", name)]
    h.command("trace", "generate", "evening_peak", *FAMILY, *only, "--duration", seconds * SPEED,
              "--context", int(SLOT_CONTEXT * 0.9), "--out", family)
    jobs = "".join(json.dumps(j) + "\n" for j in backlog(seconds))
    (folder / "jobs.jsonl").write_text(jobs)
    (folder / "all.jsonl").write_text(family.read_text() + jobs)
    return folder / "all.jsonl", folder / "jobs.jsonl"


class Turns:
    """A proxy: each connection goes to the next engine, bytes in both directions as they come."""

    def __init__(self, ports):
        self.ports, self.next = ports, 0

    async def serve(self, reader, writer):
        self.next += 1
        there = await asyncio.open_connection("127.0.0.1",
                                              self.ports[self.next % len(self.ports)])
        ways = [asyncio.create_task(self.pump(*way))
                for way in ((reader, there[1]), (there[0], writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, there[1]):
            end.close()

    @staticmethod
    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(
            asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=256))
        self.port = self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.server.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


# ---- runs ----------------------------------------------------------------------------------------


def local(folder, *options):
    (folder / "local").mkdir(exist_ok=True)
    return h.Server(folder / "local", "gamasot", ("--threads", 1, "--model-name", "family", *options),
                    core=LOCAL_CORE)


def remote(folder, engine):
    (folder / "remote").mkdir(exist_ok=True)
    options = ("--threads", 1, "--model-name", "family", "--engine.max_seqs", SEATS)
    if engine == "llama":
        options = ("-t", 1, "-np", SEATS, "-c", SEATS * SLOT_CONTEXT, "--alias", "family")
    return h.Server(folder / "remote", engine, options, core=REMOTE_CORE)


def wait_up(url):
    for _ in range(600):
        with urllib.request.urlopen(f"{url}/v1/workers") as r:
            if all(w["state"] == "up" and w.get("models", ["family"]) == ["family"]
                   for w in json.load(r)["workers"] if w["kind"] == "remote"):
                return
        time.sleep(0.05)
    raise SystemExit("the worker does not come up")


def summary(result, seconds):
    """What the columns are made of: tokens of background work in the counted time, and of each
    interactive request class, first token (or how long it has been waited for) and verdict."""
    tokens, first = 0.0, []
    for r in result["requests"]:
        if r["class"] != "background":
            shown = r["first_s"] if r["first_s"] is not None else seconds
            if r["due_s"] < seconds and r["status"] != "cancelled":
                first.append(max(shown - r["due_s"], 0.0))
        elif r["first_s"] is not None:
            times, t = [r["first_s"]], r["first_s"]
            for gap in r["gaps_s"]:
                t += gap
                times.append(t)
            inside = sum(WARM_S <= t < seconds for t in times)
            tokens += r["output_tokens"] * inside / len(times)
            tokens += r["prompt_tokens"] * (WARM_S <= times[0] < seconds)
    groups = {k: v for k, v in result["summary"]["classes"].items() if k in INTERACTIVE}
    return {"background_tok_s": tokens / (seconds - WARM_S), "first_s": first,
            "errors": sum(r["status"] == "error" for r in result["requests"]),
            "judged": {k: g["slo_judged"] for k, g in groups.items()},
            "met": {k: round((g["slo_met"] or 0) * g["slo_judged"]) for k, g in groups.items()}}


def run(column, engine, seconds):
    """One run of one column."""
    def play(name, url, trace):
        (folder / name).mkdir(exist_ok=True)
        got = h.play(folder / name, url, trace, SPEED, seconds, more=("--warm-prefixes",))
        return summary(got, seconds)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        everything, jobs = make_traces(folder, seconds)
        stack.enter_context(h.quiet_machine())
        other = stack.enter_context(remote(folder, engine))
        options = ()
        if column == "both":
            conf = folder / "gamasot.conf"
            conf.write_text(f"[worker other]\nurl = {other.url}/v1\nmax_sequences = {SEATS}\n")
            options = ("--config", conf)
        here = stack.enter_context(local(folder, *options))
        if column == "both":
            wait_up(here.url)
            return play("client", here.url, everything)
        if column == "turns":
            proxy = stack.enter_context(Turns([here.port, other.port]))
            return play("client", f"http://127.0.0.1:{proxy.port}", everything)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            at_other = pool.submit(play, "client2", other.url, jobs)
            result = play("client", here.url, everything)
            return {**result, "other_tok_s": at_other.result()["background_tok_s"]}


# ---- report --------------------------------------------------------------------------------------


def share_met(runs, classes=INTERACTIVE):
    judged = sum(r["judged"].get(k, 0) for r in runs for k in classes)
    return sum(r["met"].get(k, 0) for r in runs for k in classes) / judged if judged else 1.0


def p95(runs):
    values = sorted(v for r in runs for v in r["first_s"])
    return values[(95 * len(values) - 1) // 100] if values else float("nan")


def report(runs, engine):
    alone, both, turns = (runs[c] for c in COLUMNS)
    rate = {c: statistics.median(r["background_tok_s"] for r in runs[c]) for c in COLUMNS}
    other = statistics.median(r["other_tok_s"] for r in alone)
    name = "llama-server" if engine == "llama" else "gamasot"
    shown = [k for k in INTERACTIVE if sum(r["judged"].get(k, 0) for r in alone)]
    print(f"\n| | local alone | {name} alone | gamasot over both | each in turn |\n"
          "|---|---|---|---|---|")
    for k in shown:
        print(f"| {k}: targets met | {share_met(alone, [k]):.1%} | | {share_met(both, [k]):.1%} "
              f"| {share_met(turns, [k]):.1%} |")
    print(f"| all of these: targets met | {share_met(alone):.1%} | | {share_met(both):.1%} "
          f"| {share_met(turns):.1%} |")
    print(f"| all of these: first token, p95 | {p95(alone):.2f} s | | {p95(both):.2f} s "
          f"| {p95(turns):.2f} s |")
    print(f"| background, tokens/s | {rate['alone']:.0f} | {other:.0f} | {rate['both']:.0f} "
          f"| {rate['turns']:.0f} |")
    n = [len(r["first_s"]) for r in both]
    print(f"\n{len(both)} rounds, {sum(n)} interactive requests in each column; errors: "
          + ", ".join(f"{c} {sum(r['errors'] for r in runs[c])}" for c in COLUMNS))
    lost = share_met(alone) - share_met(both)
    of_sum = rate["both"] / (rate["alone"] + other)
    late = p95(both) / p95(turns)
    verdicts = [(f"interactive targets met, both less alone: {-lost:+.1%} (owed: as good, within 1 %)",
                 lost <= 0.01),
                (f"background, both of the sum of each alone: {of_sum:.2f} (owed 0.9)",
                 of_sum >= 0.9),
                (f"first token p95, both of each in turn: {late:.2f} (owed at most 0.5)",
                 late <= 0.5)]
    for text, good in verdicts:
        print(f"- {text}: {'holds' if good else 'MISSED'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=h.ROOT / "build/workers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=48)
    parser.add_argument("--remote", choices=("llama", "gamasot"),
                        default="llama" if h.LLAMA.exists() else "gamasot")
    a = parser.parse_args()
    if a.seconds <= WARM_S:
        parser.error(f"--seconds must be more than {WARM_S}")
    results = h.Results(f"{a.dir}/results.jsonl")
    runs = {c: [] for c in COLUMNS}
    for k in range(a.rounds):
        for i in range(len(COLUMNS)):
            column = COLUMNS[(i + k) % len(COLUMNS)]
            runs[column].append(results.once(f"{a.remote} {a.seconds} {k} {column}",
                                             lambda c=column: run(c, a.remote, a.seconds)))
    report(runs, a.remote)


if __name__ == "__main__":
    main()
