"""The first request after a start beside those after it.

    python3 bench/warm_start.py [--build build/current] [--starts 5] [--prefix-tokens 1000] MODEL.gguf

A home's instructions are a shared prefix (prefix.files). Each start of the server is followed by a few
requests that begin with them and then differ, one after another, each by another person. Prints the
first token's time of the first request and the median of the later ones, by starts; exits with 1 when
the median of their ratios is above 1.2.
"""

import argparse
import http.client
import json
import pathlib
import statistics
import sys
import tempfile
import time

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
    ratios = []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(system)
        file.flush()
        for start in range(args.starts):
            server = Server(program, args.model, "--prefix-file", file.name)
            try:
                server.wait()
                times = [chat_ttft(server, system, i) for i in range(LATER + 1)]
            finally:
                server.stop()
            later = statistics.median(times[1:])
            ratios.append(times[0] / later)
            print(f"start {start + 1}: first {times[0]:.1f} ms, later {later:.1f} ms, "
                  f"{ratios[-1]:.2f}x", flush=True)
    print(f"median {statistics.median(ratios):.2f}x (at most {LIMIT}x)")
    sys.exit(statistics.median(ratios) > LIMIT)


if __name__ == "__main__":
    main()
