#!/usr/bin/env python3
"""Streams that begin with the same long prompt against streams with prompts of their own.

    bench/shared_prefix.py http://127.0.0.1:11434 [--words 1200] [--streams 2,4,8] [--rounds 5]

Prints the tokens per second of all streams together while all of them run, and the ratio shared /
own: the medians over interleaved rounds. A home assistant's instructions are such a shared prompt.
"""
import argparse
import json
import statistics
import threading
import time
import urllib.request

N_TOKENS = 120


def one(url, system, question, times):
    body = {"messages": [{"role": "system", "content": system},
                         {"role": "user", "content": question}],
            "max_tokens": N_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
    rq = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                {"Content-Type": "application/json", "X-Gamasot-Class": "chat"})
    with urllib.request.urlopen(rq, timeout=600) as answer:
        times += [time.perf_counter() for line in answer if line.startswith(b"data: {")]


def rate(url, n_streams, systems):
    """Tokens per second between the last stream's start and the first one's end."""
    times = [[] for _ in range(n_streams)]
    threads = [threading.Thread(target=one, args=(url, systems[i], f"Question {i}?", times[i]))
               for i in range(n_streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    begin, end = max(t[2] for t in times), min(t[-2] for t in times)
    return sum(begin <= x <= end for t in times for x in t) / (end - begin)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("url")
    p.add_argument("--words", type=int, default=1200, help="of the prompts; about three tokens each")
    p.add_argument("--streams", default="2,4,8")
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    texts = [" ".join(f"word{(i * 7 + k) % 97}" for k in range(a.words)) for i in range(9)]
    for n in [int(x) for x in a.streams.split(",")]:
        runs = []
        for system in texts[:n] + texts[8:]:  # into the prefix cache: only decoding counts
            one(a.url, system, "Question?", [])
        for _ in range(a.rounds):
            runs.append((rate(a.url, n, texts[:n]), rate(a.url, n, [texts[8]] * n)))
        own, shared = (statistics.median(r[i] for r in runs) for i in (0, 1))
        ratio = statistics.median(r[1] / r[0] for r in runs)
        print(f"{n} streams: own prompts {own:.0f} tokens/s, shared {shared:.0f}, ratio {ratio:.2f}",
              flush=True)


if __name__ == "__main__":
    main()
