#!/usr/bin/env python3
"""What constrained output costs: time per step with and without, taken in turns.

Usage: constrained.py GAMASOT MODEL.gguf [ROUNDS]

Eight streams that are free, eight that fill a JSON schema; then eight free ones beside eight of
either kind, whose texts must not change. Steps are timed by the server's own counters.
"""
import concurrent.futures
import http.client
import json
import re
import statistics
import subprocess
import sys
import time

TOKENS = 24
SCHEMA = {"type": "object", "required": ["title", "lines"], "additionalProperties": False,
          "properties": {"title": {"type": "string"},
                         "lines": {"type": "array", "items": {"type": "string"}, "minItems": 500}}}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}


class Server:
    def __init__(self, program, model):
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--model", model, "--model.context", "1024"],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"listening on http://\S*?:(\d+)", line)
            if found:
                self.port = int(found.group(1))
            if "ready model=" in line:
                return
        sys.exit("the server did not start")

    def request(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        if r.status != 200:
            sys.exit(f"{path}: {r.status} {text}")
        return text

    def counters(self):
        text = self.request("GET", "/metrics")
        sums = {}
        for name in ("busy_seconds_total", "steps_total", "generation_tokens_total"):
            values = re.findall(rf"^gamasot_{name}\S* (\S+)$", text, re.M)
            sums[name] = sum(map(float, values))
        return sums

    def answer(self, i, more):
        body = {"prompt": f"Number {i}: ", "max_tokens": TOKENS, "temperature": 0, "seed": i,
                "ignore_eos": True, **more}
        return json.loads(self.request("POST", "/v1/completions", body))["choices"][0]["text"]


def batch(server, kinds):
    """ms per step, and the texts."""
    before = server.counters()
    with concurrent.futures.ThreadPoolExecutor(len(kinds)) as pool:
        texts = list(pool.map(lambda x: server.answer(*x), enumerate(kinds)))
    after = server.counters()
    took = after["busy_seconds_total"] - before["busy_seconds_total"]
    return took / (after["steps_total"] - before["steps_total"]) * 1e3, texts


def compare(server, name, a, b, rounds):
    batch(server, a), batch(server, b)  # both are warm: prompts cached, grammar compiled
    times, texts = ([], []), ([], [])
    for _ in range(rounds):
        for k, kinds in enumerate((a, b)):
            ms, said = batch(server, kinds)
            times[k].append(ms)
            texts[k].append(said)
    free, bound = map(statistics.median, times)
    print(f"{name}: {free:.2f} -> {bound:.2f} ms a step, {100 * (bound / free - 1):+.2f} % "
          f"(spread {min(times[0]):.2f}..{max(times[0]):.2f}, "
          f"{min(times[1]):.2f}..{max(times[1]):.2f})", flush=True)
    return texts


def main():
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    server = Server(sys.argv[1], sys.argv[2])
    began = time.monotonic()
    try:
        compare(server, "8 streams, all with a schema", [{}] * 8, [FORMAT] * 8, rounds)
        free, beside = compare(server, "8 free beside 8 with a schema", [{}] * 16,
                               [{}] * 8 + [FORMAT] * 8, max(1, rounds // 2))
        same = all(f[:8] == b[:8] for f, b in zip(free, beside))
        print(f"texts of the free ones: {'unchanged' if same else 'CHANGED'}")
        print(f"{time.monotonic() - began:.0f} s")
    finally:
        server.process.terminate()
        server.process.wait()


if __name__ == "__main__":
    main()
