#!/usr/bin/env python3
"""A chat's gaps beside a backlog of embeddings of another model, and what the backlog gets.

    bench/embed_beside.py http://127.0.0.1:11434 [--embedding-model all-MiniLM-L6-v2.Q8_0] [--rounds 3]

Each round, for some seconds each: the chat alone, the backlog alone, both. Printed are medians over
the rounds: the 99th percentile of the chat's gaps, which may grow to max(1.2 times, 25 ms), and the
backlog's texts/s beside the part of its own rate that this bound leaves: in every such gap all but
the chat's own step.
"""
import argparse
import json
import random
import statistics
import threading
import time
import urllib.request

WORDS = "river stone garden window silver morning paper engine circle yellow market letter".split()


def request(url, path, body, cls=None):
    headers = {"Content-Type": "application/json"}
    if cls:
        headers["X-Gamasot-Class"] = cls
    return urllib.request.urlopen(
        urllib.request.Request(url + path, json.dumps(body).encode(), headers), timeout=600)


def chat(url, stop, times):
    body = {"prompt": "Tell a long story.", "max_tokens": 1500, "ignore_eos": True,
            "stream": True, "temperature": 0}
    while not stop.is_set():
        with request(url, "/v1/completions", body, "chat") as answer:
            times.append([])
            for line in answer:
                if stop.is_set():
                    return
                if line.startswith(b"data: {"):
                    times[-1].append(time.perf_counter())


def backlog(url, model, stop, done, seed):
    rng = random.Random(seed)
    while not stop.is_set():
        texts = [" ".join(rng.choice(WORDS) for _ in range(rng.randrange(50, 200)))
                 for _ in range(32)]
        with request(url, "/v1/embeddings", {"model": model, "input": texts}) as answer:
            answer.read()
        done.append((time.perf_counter(), len(texts)))


def run(a, with_chat, with_backlog, seed):
    """(99th percentile and median of the gaps, texts/s)"""
    stop, times, done = threading.Event(), [], []
    threads = [threading.Thread(target=chat, args=(a.url, stop, times))] if with_chat else []
    if with_backlog:
        threads += [threading.Thread(target=backlog, args=(a.url, a.embedding_model, stop, done,
                                                           seed + k)) for k in range(4)]
    for t in threads:
        t.start()
    time.sleep(2)
    begin = time.perf_counter()
    time.sleep(a.seconds)
    end = time.perf_counter()
    stop.set()
    for t in threads:
        t.join()
    gaps = sorted(y - x for stream in times for x, y in zip(stream, stream[1:])
                  if begin <= x and y <= end)
    texts = sum(n for at, n in done if begin <= at <= end) / (end - begin)
    if not gaps:
        return 0.0, 0.0, texts
    return gaps[int(0.99 * (len(gaps) - 1))], statistics.median(gaps), texts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("url")
    p.add_argument("--embedding-model", default="all-MiniLM-L6-v2.Q8_0")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=10)
    a = p.parse_args()
    request(a.url, "/v1/embeddings", {"model": a.embedding_model, "input": "load it"}).read()
    rounds = [(run(a, True, False, i), run(a, False, True, 100 * i), run(a, True, True, 1000 * i))
              for i in range(a.rounds)]
    (p99, step, _), (_, _, alone), (both, _, texts) = (
        [statistics.median(r[k][j] for r in rounds) for j in range(3)] for k in range(3))
    bound = max(1.2 * p99, 0.025)
    allowed = alone * (1 - step / bound)
    print(f"chat alone: gap p99 {1e3 * p99:.1f} ms, median {1e3 * step:.1f} ms; backlog alone "
          f"{alone:.1f} texts/s")
    print(f"both: gap p99 {1e3 * both:.1f} ms (bound {1e3 * bound:.1f}), backlog {texts:.1f} texts/s, "
          f"{texts / allowed:.2f} of the {allowed:.1f} that the bound leaves (wanted 0.9)")


if __name__ == "__main__":
    main()
