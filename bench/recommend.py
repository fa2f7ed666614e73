"""`gamasot models recommend FILE...` beside what a server then shows.

    python3 bench/recommend.py [--build build/current] [--runs 5] MODEL.gguf...

For each model: the predicted first token and time per token of a spoken question and of a chat, and
the medians of real ones, one request at a time on an otherwise idle server: a conversation whose
beginning is in the prefix cache, and whose new part is as long as predicted for. Predictions are made
anew before each model's requests and their medians taken, so that both see the same machine. Prints a
table in Markdown; exits with 1 when one is off by more than 15 %.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 0.15
ANSWER = 64
USES = ("voice", "chat")


def predict(program, model):
    out = subprocess.run([program, "models", "recommend", "--json", model], check=True,
                         capture_output=True).stdout
    return json.loads(out)["models"][0]


class Server:
    def __init__(self, program, model, *options):
        self.state = tempfile.TemporaryDirectory()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--model", model, "--store.folder", self.state.name, *options],
            stdout=self.log, stderr=self.log)
        self.port = None

    def wait(self):
        while self.process.poll() is None:
            self.log.seek(0)
            text = self.log.read().decode(errors="replace")
            if not self.port and "listening on http://" in text:
                line = next(l for l in text.splitlines() if "listening on http://" in l)
                self.port = int(line.rsplit(":", 1)[1].split()[0])
            if self.port and self.call("GET", "/ready")[0] == 200:
                return
            time.sleep(0.05)
        raise SystemExit("the server ended: " + text)

    def call(self, method, path, body=None):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as c:
            c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read()

    def stream(self, prompt, n):
        """The first token's time and those after it, each, ms."""
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True,
                "ignore_eos": True}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as c:
            began = time.monotonic()
            c.request("POST", "/v1/completions", json.dumps(body),
                      {"Content-Type": "application/json"})
            r, first, rest = c.getresponse(), None, b""
            while data := r.read1(65536):
                *blocks, rest = (rest + data).split(b"\n\n")
                for block in blocks:
                    if block.startswith(b"data: {") and json.loads(block[6:])["choices"]:
                        last = time.monotonic()
                        first = first or last
            return (first - began) * 1e3, (last - first) * 1e3 / max(n - 1, 1)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(server, use, run):
    """A conversation of context - new tokens that is known, then its new part."""
    known = use["context_tokens"] - use["new_prompt_tokens"]
    prompt = [100 + (i * 7919 + 1) % 5000 for i in range(known)]
    server.stream(prompt, 1)
    more = [100 + (i * 104729 + run * 31 + 7) % 5000 for i in range(use["new_prompt_tokens"])]
    return server.stream(prompt + more, ANSWER)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/current")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    program = str(pathlib.Path(args.build) / "gamasot")
    print("| model | use | TTFT predicted | measured | off | TPOT predicted | measured | off |")
    print("|---|---|---|---|---|---|---|---|")
    bad = False
    for model in args.models:
        predicted = [predict(program, model) for _ in range(3)]
        server = Server(program, model)
        try:
            server.wait()
            seen = {u: [measure(server, predicted[0][u], r) for r in range(args.runs)]
                    for u in USES}
        finally:
            server.stop()
        for u in USES:
            cells = []
            for i, key in enumerate(("ttft_ms", "tpot_ms")):
                p = statistics.median(x[u][key] for x in predicted)
                m = statistics.median(x[i] for x in seen[u])
                bad |= abs(p / m - 1) > LIMIT
                cells.append(f"{p:.1f} ms | {m:.1f} ms | {p / m - 1:+.1%}")
            print(f"| {predicted[0]['model']} | {u} | {' | '.join(cells)} |", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
