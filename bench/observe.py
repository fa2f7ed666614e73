#!/usr/bin/env python3
"""What being looked at costs: tokens per second of a running server with the live view open and
/metrics scraped each second, by without. Rounds of both take turns; the median of the pairs' ratios
is printed with its 95 % bootstrap interval, and the exit status says whether that reaches 0.98.

    bench/observe.py --url http://127.0.0.1:11434 [--rounds 15] [--seconds 5] [--streams 4]
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
import urllib.parse


def connect(url):
    u = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(u.hostname, u.port, timeout=120)


def generated(url):
    c = connect(url)
    c.request("GET", "/metrics")
    lines = c.getresponse().read().decode().splitlines()
    c.close()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines
               if x.startswith("gamasot_generation_tokens_total"))


def stream(url, stop):
    """Keeps one answer coming until stop is set."""
    body = json.dumps({"prompt": "Tell a long story.", "max_tokens": 1024, "ignore_eos": True,
                       "stream": True, "temperature": 0})
    while not stop.is_set():
        c = connect(url)
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        r = c.getresponse()
        while not stop.is_set() and r.read1(65536):
            pass
        c.close()


def look(url, stop):
    """A dashboard: reads the live view to the end."""
    c = connect(url)
    c.request("GET", "/v1/live")
    r = c.getresponse()
    while not stop.is_set() and r.read1(1 << 20):
        pass
    c.close()


def scrape(url, stop):
    while not stop.wait(1.0):
        generated(url)


def measure(url, seconds, watched):
    stop = threading.Event()
    watchers = [threading.Thread(target=f, args=(url, stop)) for f in (look, scrape) if watched]
    for w in watchers:
        w.start()
    before, began = generated(url), time.monotonic()
    time.sleep(seconds)
    rate = (generated(url) - before) / (time.monotonic() - began)
    stop.set()
    for w in watchers:
        w.join()
    return rate


def main():
    parser = argparse.ArgumentParser(description="What dashboards and scrapes cost.")
    parser.add_argument("--url", default="http://127.0.0.1:11434")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=4)
    o = parser.parse_args()
    stop = threading.Event()
    streams = [threading.Thread(target=stream, args=(o.url, stop), daemon=True)
               for _ in range(o.streams)]
    for s in streams:
        s.start()
    time.sleep(2)
    rates = {False: [], True: []}
    for i in range(o.rounds):
        for watched in ((False, True) if i % 2 == 0 else (True, False)):
            rates[watched].append(measure(o.url, o.seconds, watched))
    stop.set()
    ratios = [w / a for w, a in zip(rates[True], rates[False])]
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    low, high = medians[50], medians[1949]
    print(f"tokens/s: {statistics.median(rates[False]):.1f} alone, "
          f"{statistics.median(rates[True]):.1f} watched; ratio of pairs "
          f"{statistics.median(ratios):.3f} (95 %: {low:.3f} to {high:.3f})")
    return 0 if high >= 0.98 else 1


if __name__ == "__main__":
    sys.exit(main())
