#!/usr/bin/env python3
"""A running stream while a long document arrives: how long does it stand still?

    bench/gap.py http://127.0.0.1:11434 [--document-tokens 3000] [--rounds 3]

Measures the gaps between the tokens of a chat alone, then the same with a document's prompt coming
in, and the document's first token alone and beside the chat. Works with any server that speaks
OpenAI's API; each text is new, so no cache helps.
"""
import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse

WORDS = "river stone garden window silver morning paper engine circle yellow market letter".split()


def text(n_words, seed):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) + str(rng.randrange(10)) for _ in range(n_words))


def stream(url, prompt, max_tokens, times, cls=None):
    """Appends the arrival time of each piece of text to times; the first entry is the sending."""
    u = urllib.parse.urlparse(url)
    c = http.client.HTTPConnection(u.hostname, u.port, timeout=600)
    headers = {"Content-Type": "application/json"}
    if cls:
        headers["X-Gamasot-Class"] = cls
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens,
            "stream": True, "temperature": 0, "ignore_eos": True}
    times.append(time.perf_counter())
    c.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    r = c.getresponse()
    if r.status != 200:
        raise SystemExit(f"{r.status}: {r.read(300)}")
    for line in r:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
            if json.loads(line[6:])["choices"][0]["delta"].get("content"):
                times.append(time.perf_counter())
    c.close()


def gaps(times):
    return sorted(b - a for a, b in zip(times[1:], times[2:]))


def p99(values):
    return values[min(len(values) - 1, int(0.99 * len(values)))]


def one_round(url, words, seed, tokens):
    alone, beside, doc_alone, doc_beside = [], [], [], []
    stream(url, text(20, seed), tokens, alone)
    stream(url, text(words, seed + 1), 2, doc_alone)
    t = threading.Thread(target=stream, args=(url, text(20, seed + 2), tokens, beside))
    t.start()
    while len(beside) < 20:
        time.sleep(0.01)
    stream(url, text(words, seed + 3), 2, doc_beside)
    t.join()
    # Only the gaps while the document's prompt was being computed count.
    during = [b - a for a, b in zip(beside[1:], beside[2:]) if doc_beside[0] <= b <= doc_beside[1] + 0.05]
    return (p99(gaps(alone)), p99(sorted(during)), max(during),
            doc_alone[1] - doc_alone[0], doc_beside[1] - doc_beside[0])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("url")
    p.add_argument("--document-tokens", type=int, default=3000)
    p.add_argument("--tokens-per-word", type=float, default=2.0)
    p.add_argument("--stream-tokens", type=int, default=600)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    words = int(a.document_tokens / a.tokens_per_word)
    seed = random.randrange(10**9)
    rows = [one_round(a.url, words, seed + 10 * i, a.stream_tokens) for i in range(a.rounds)]
    alone, during, worst, doc_alone, doc_beside = (statistics.median(c) for c in zip(*rows))
    print(f"stream alone: p99 gap {1e3 * alone:.1f} ms")
    print(f"while the document is read: p99 gap {1e3 * during:.1f} ms, worst {1e3 * worst:.1f} ms")
    print(f"document's first token: alone {doc_alone:.2f} s, beside the stream {doc_beside:.2f} s "
          f"({doc_beside / doc_alone:.2f}x)")


if __name__ == "__main__":
    main()
