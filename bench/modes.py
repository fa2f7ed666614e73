#!/usr/bin/env python3
"""What each mode (sched.mode) does on a running server, and whether auto finds the best.

    bench/modes.py http://127.0.0.1:11434 [--rounds 3] [--seconds 20] [--out FILE]

Load mixes of clients that never stop; in each round every mode has its turn at each mix, in another
order, for some seconds each. Printed are medians over the rounds: prompt and output tokens by the
second of requests that met the server's targets for their class, as a part of the best forced mode;
the gaps between a chat's tokens; and which mode auto was in.
"""
import argparse
import json
import random
import statistics
import threading
import time
import urllib.request

from household import quiet_machine

MODES = ["mixed", "exclusive", "split", "auto"]
WORDS = "river stone garden window silver morning paper engine circle yellow market letter".split()
# class, clients, words of the prompt, tokens of the answer
MIXES = {
    "chats": [("chat", 6, 150, 100)],
    "voices": [("voice", 2, 30, 40), ("chat", 3, 150, 100)],
    "documents": [("document", 2, 1200, 100), ("chat", 3, 100, 150)],
    "batch": [("background", 4, 300, 80), ("chat", 2, 100, 150)],
    "streams": [("chat", 2, 60, 300), ("chat", 2, 600, 10)],
}


def call(url, method, path, body=None, headers=None):
    data = json.dumps(body).encode() if body is not None else None
    return urllib.request.urlopen(urllib.request.Request(
        url + path, data, {"Content-Type": "application/json", **(headers or {})}, method=method),
        timeout=600)


def targets_of(url):
    with call(url, "GET", "/v1/config") as r:
        options = json.load(r)
    options = options.get("options", options)

    def value(name):
        v = options.get(name)
        return (v.get("value") if isinstance(v, dict) else v) or 0
    return {c: (value(f"class_{c}.ttft_ms") / 1e3, value(f"class_{c}.tpot_ms") / 1e3)
            for c in ("voice", "chat", "document", "background")}


def one(url, cls, n_words, n_tokens, rng, stop):
    """(prompt tokens, times of the tokens, begin) or None when stopped on the way."""
    prompt = " ".join(rng.choice(WORDS) for _ in range(n_words))
    body = {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "stream": True,
            "temperature": 0, "stream_options": {"include_usage": True}}
    begin, times, n_prompt = time.perf_counter(), [], 0
    with call(url, "POST", "/v1/completions", body, {"X-Gamasot-Class": cls}) as answer:
        for line in answer:
            if stop.is_set():
                return None
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                times.append(time.perf_counter())
            if event.get("usage"):
                n_prompt = event["usage"]["prompt_tokens"]
    return n_prompt, times, begin


def client(url, spec, seed, stop, done):
    cls, _, n_words, n_tokens = spec
    rng = random.Random(seed)
    while not stop.is_set():
        result = one(url, cls, n_words, n_tokens, rng, stop)
        if result:
            done.append((cls, *result))


def is_good(target, times, begin):
    ttft, tpot = target
    if not times:
        return False
    late = ttft > 0 and times[0] - begin > ttft
    slow = tpot > 0 and len(times) > 1 and (times[-1] - times[0]) / (len(times) - 1) > tpot
    return not late and not slow


def play(a, targets, mix, mode, seed):
    call(a.url, "PATCH", "/v1/config", {"sched.mode": mode}).read()
    stop, done = threading.Event(), []
    threads = [threading.Thread(target=client, args=(a.url, spec, seed * 100 + 10 * i + k, stop, done))
               for i, spec in enumerate(MIXES[mix]) for k in range(spec[1])]
    for t in threads:
        t.start()
    time.sleep(2)
    begin = time.perf_counter()
    time.sleep(a.seconds)
    end = time.perf_counter()
    stop.set()
    for t in threads:
        t.join()
    tokens, gaps = 0, []
    for cls, n_prompt, times, began in done:
        if not times or not begin <= times[-1] <= end:
            continue
        if is_good(targets[cls], times, began):
            tokens += n_prompt + len(times)
        if cls == "chat":
            gaps += [y - x for x, y in zip(times, times[1:])]
    gaps.sort()
    with call(a.url, "GET", "/metrics") as r:
        now = [line for line in r.read().decode().splitlines()
               if line.startswith("gamasot_mode{") or line.startswith("gamasot_mode ")]
    return {"score": tokens / (end - begin), "gap_p99": gaps[int(0.99 * (len(gaps) - 1))] if gaps else 0,
            "now": int(float(now[0].split()[-1])) if now else 0}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("url")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--mixes", default=",".join(MIXES))
    p.add_argument("--out")
    a = p.parse_args()
    targets = targets_of(a.url)
    mixes = a.mixes.split(",")
    seen = {mix: {mode: [] for mode in MODES} for mix in mixes}
    with quiet_machine():
        for k in range(a.rounds):
            for mix in mixes:
                order = MODES[:]
                random.Random(k).shuffle(order)
                for mode in order:
                    seen[mix][mode].append(play(a, targets, mix, mode, k))
    call(a.url, "PATCH", "/v1/config", {"sched.mode": "auto"}).read()
    out = {}
    for mix in mixes:
        score = {m: statistics.median(r["score"] for r in seen[mix][m]) for m in MODES}
        gap = {m: statistics.median(r["gap_p99"] for r in seen[mix][m]) for m in MODES}
        best = max(score[m] for m in MODES if m != "auto")
        worst = min(score[m] for m in MODES if m != "auto")
        chosen = [MODES[r["now"] - 1] for r in seen[mix]["auto"]]
        out[mix] = {"score": score, "gap_p99_s": gap, "auto_of_best": score["auto"] / best if best else 0,
                    "auto_of_worst": score["auto"] / worst if worst else 0, "auto_was": chosen}
        print(f"{mix:10} " + " ".join(f"{m} {score[m]:7.1f} tok/s, p99 {1e3 * gap[m]:5.1f} ms;"
                                      for m in MODES))
        print(f"{'':10} auto has {out[mix]['auto_of_best']:.3f} of the best (wanted 0.97), "
              f"{out[mix]['auto_of_worst']:.3f} of the worst; it was in {', '.join(chosen)}")
    if a.out:
        with open(a.out, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
