"""The first request after a start beside those after it.

    python3 bench/warm_start.py [--build build/current] [--starts 5] [--prefix-tokens 1000] MODEL.gguf

A home's instructions are a shared prefix (prefix.files), which a start computes, or reads from where an
earlier one has saved it: the two take turns. Each start is followed by a few requests that begin with the
instructions and then differ, one after another, each by another person. Prints how long the server took
to be ready, the first token's time of the first request and the median of the later ones, by starts;
exits with 1 when the median of their ratios is above 1.2 either way, or when a start that reads is not
ready sooner.
"""

import argparse
import http.client
import json
import pathlib
import statistics
import sys
import tempfile
import time

from household import quiet_machine
from recommend import Server

LIMIT = 1.2
LATER = 6


def chat_ttft(server, system, i):
    body = {"messages": [{"role": "system", "content": system},
                         {"role": "user", "content": f"Question {i}: which lights are on?"}],
            "max_tokens": 2, "temperature": 0, "stream": True, "user": f"person{i}"}
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    began = time.monotonic()
    c.request("POST", "/v1/chat/completions", json.dumps(body),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    rest = b""
    first = None
    while data := r.read1(65536):
        rest += data
        if first is None and b'"content":"' in rest.replace(b'"content":""', b""):
            first = time.monotonic() - began
    c.close()
    return first * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/current")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("model")
    args = parser.parse_args()
    program = str(pathlib.Path(args.build) / "gamasot")
    system = " ".join(f"Light {i} is in room {i % 9}." for i in range(args.prefix_tokens // 9))
    ratios, ready = {False: [], True: []}, {False: [], True: []}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file, \
            tempfile.TemporaryDirectory() as state, quiet_machine():
        file.write(system)
        file.flush()
        for start in range(2 * args.starts + 1):  # the first one fills the folder, and the caches
            saved = start % 2 == 0
            folder = ["--store.folder", state] if saved else ["--prefix.saved_mb", "0"]
            began = time.monotonic()
            server = Server(program, args.model, "--prefix-file", file.name, *folder)
            try:
                server.wait()
                ready_s = time.monotonic() - began
                times = [chat_ttft(server, system, i) for i in range(LATER + 1)]
            finally:
                server.stop()
            later = statistics.median(times[1:])
            how = "read" if saved and start else "computed"
            print(f"start {start}, {how}: ready after {ready_s:.2f} s, first {times[0]:.1f} ms, "
                  f"later {later:.1f} ms, {times[0] / later:.2f}x", flush=True)
            if start:
                ratios[saved].append(times[0] / later)
                ready[saved].append(ready_s)
    median = {k: statistics.median(v) for k, v in ratios.items()}
    took = {k: statistics.median(v) for k, v in ready.items()}
    print(f"median: computed {median[False]:.2f}x, read {median[True]:.2f}x (at most {LIMIT}x); "
          f"ready after {took[False]:.2f} s, {took[True]:.2f} s when read")
    sys.exit(max(median.values()) > LIMIT or took[True] > took[False])


if __name__ == "__main__":
    main()
