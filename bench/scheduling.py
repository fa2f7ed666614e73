#!/usr/bin/env python3
"""What the scheduler promises, on the real engine: scenarios of a home, and llama-server beside it.

    bench/scheduling.py run SCENARIO [--model smollm2] [--engine gamasot] [--rounds 3] --out FILE
    bench/scheduling.py table FILE...        # the tables of docs/scheduling.md, from those files
    bench/scheduling.py list

A run starts the server, plays the scenario some times and appends one JSON object to FILE: the
medians, each round's figures, and how the server was started. The client is one thread that speaks
plain HTTP, so that both servers see the same bytes at the same times. Needs nothing but Python.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "gamasot"
MODELS = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "1.5b": "random-1.5b-q4_0.gguf"}
WORDS = ("river stone garden window silver morning paper engine circle yellow market letter water "
         "winter summer bridge forest orange music dinner").split()
TPOT = {"voice": 0.045, "chat": 0.100}


def words(n, seed):
    """About n tokens that no cache has seen."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n))


def p(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def median(values):
    return statistics.median(values) if values else float("nan")


# ---- client --------------------------------------------------------------------------------------


class Answer:
    """One request: when it was sent, when each piece of text came, what it was told."""

    def __init__(self):
        self.sent = time.perf_counter()
        self.times, self.status, self.usage, self.headers = [], 0, {}, {}

    @property
    def ttft(self):
        return self.times[0] - self.sent if self.times else float("nan")

    @property
    def total(self):
        return self.ended - self.sent

    def gaps(self, begin=0.0, end=float("inf")):
        return [b - a for a, b in zip(self.times, self.times[1:]) if begin <= b and a <= end]


class Client:
    def __init__(self, port, prefix=""):
        self.port, self.prefix = port, prefix

    async def send(self, prompt, n, cls=None, user=None, answer=None, system=None, **more):
        """A streamed chat. answer is filled while it comes in, for whoever looks on."""
        a = answer or Answer()
        messages = [{"role": "user", "content": prompt}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        body = {"messages": messages, "max_tokens": n, "stream": True, "temperature": 0,
                "ignore_eos": True, "stream_options": {"include_usage": True}, **more}
        if user:
            body["user"] = user
        data = json.dumps(body).encode()
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                + (f"X-Gamasot-Class: {cls}\r\n" if cls else "") + "\r\n").encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        a.sent = time.perf_counter()
        writer.write(head + data)
        try:
            await self.read(reader, a)
        finally:
            a.ended = time.perf_counter()
            writer.close()
        return a

    async def texts(self, prompts, n, cls=None, user=None):
        """Several texts in one request, not streamed: how many prompt tokens they had."""
        data = json.dumps({"prompt": prompts, "max_tokens": n, "temperature": 0,
                           **({"user": user} if user else {})}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                + (f"X-Gamasot-Class: {cls}\r\n" if cls else "") + "\r\n").encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        writer.write(head + data)
        text = (await reader.read()).decode()
        writer.close()
        if not text.startswith("HTTP/1.1 200"):
            raise SystemExit(text[:300])
        usage = re.findall(r'"prompt_tokens": ?(\d+)', text)
        return sum(map(int, usage))

    async def read(self, reader, a):
        a.status = int((await reader.readline()).split()[1])
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, value = line.decode().split(":", 1)
            a.headers[name.lower()] = value.strip()
        rest = b""
        if a.status != 200:
            return
        while size := int((await reader.readline()) or b"0", 16):
            rest += await reader.readexactly(size)
            await reader.readline()
            now = time.perf_counter()
            *events, rest = rest.split(b"\n\n")
            for event in events:
                self.event(event, a, now)

    @staticmethod
    def event(event, a, now):
        if not event.startswith(b"data: {"):
            return
        event = json.loads(event[6:])
        a.usage = event.get("usage") or a.usage
        for choice in event.get("choices", ()):
            if choice["delta"].get("content"):
                a.times.append(now)


# ---- servers -------------------------------------------------------------------------------------


class Server:
    """A server process; its client is .client. Settings as in `engine` below."""

    def __init__(self, engine, model, options=()):
        self.engine, self.model = engine, model
        path = CACHE / "models" / MODELS[model]
        self.port = 18000 + os.getpid() % 2000
        self.log = tempfile.NamedTemporaryFile(prefix="sched-", suffix=".log", delete=False)
        if engine == "gamasot":
            build = os.environ.get("BUILD", ROOT / "build" / "release")
            command = [f"{build}/gamasot", "serve", "--port", str(self.port), "--model", str(path),
                       "--kv.memory_mb", "3000", "--server.max_connections_per_address", "1024",
                       *options]
            self.ready = "/ready"
        else:
            command = [str(CACHE / "peer/build/bin/llama-server"), "-m", str(path), "--port",
                       str(self.port), "-c", "40960", "-t", "2", "-np", "8", "--no-webui",
                       "--cache-ram", "0", *options]
            if engine == "llama.cpp-128":
                command += ["-b", "128", "-ub", "128"]
            self.ready = "/health"
        self.command = command
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.client = Client(self.port)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as r:
            return r.read().decode()

    def __enter__(self):
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                if self.get(self.ready):
                    return self
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.command}: see {self.log.name}")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()
        os.unlink(self.log.name)

    def metrics(self):
        out = {}
        if self.engine != "gamasot":
            return out
        for line in self.get("/metrics").splitlines():
            if not line.startswith("#") and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0].removeprefix("gamasot_")
                out[name] = out.get(name, 0.0) + float(value)
        return out

    def configure(self, changes):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/config", json.dumps(changes).encode(),
            {"Content-Type": "application/json"}, method="PATCH")
        urllib.request.urlopen(request, timeout=30).read()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


# ---- scenarios: (server, seed) -> figures of one round --------------------------------------------


async def document(server, seed):
    """A chat streams while a document arrives: 3,000 tokens, with the 1.5B model 1,000."""
    c, n, n_stream = (server.client, 3000, 400) if server.model == "smollm2" else (
        server.client, 1000, 120)
    solo = await c.send(words(20, seed), 40, user="ann")
    alone = await c.send(words(n, seed + 1), 2, user="ben")
    stream = Answer()
    reading = asyncio.create_task(c.send(words(20, seed + 2), n_stream, user="ann", answer=stream))
    await until(lambda: len(stream.times) > 5)
    beside = await c.send(words(n, seed + 3), 2, user="ben")
    during = stream.gaps(beside.sent, beside.times[0])
    reading.cancel()
    return {"solo_gap_p99": p(solo.gaps(), .99), "gap_p99": p(during, .99), "gap_max": max(during),
            "stream_tokens_during": len(during),
            "document_alone": alone.ttft, "document_beside": beside.ttft,
            "prompt_tokens": alone.usage.get("prompt_tokens", 0)}


async def jobs(c, n_jobs, seed, stop, tokens, cls="background", n_prompt=200, n_out=200):
    """Keeps n_jobs requests open until stop is set; counts their text's pieces in tokens."""
    async def one(k):
        i = 0
        while not stop.is_set():
            a = Answer()
            tokens.append(a)
            await c.send(words(n_prompt, f"{seed} {k} {i}"), n_out, cls=cls, user="index", answer=a)
            i += 1
            if a.status != 200:
                await asyncio.sleep(0.5)
    return [asyncio.create_task(one(k)) for k in range(n_jobs)]


def n_tokens(answers, begin, end):
    return sum(begin <= t < end for a in answers for t in a.times)


async def rate_of(answers, seconds):
    at = time.perf_counter()
    await asyncio.sleep(seconds)
    return n_tokens(answers, at, at + seconds) / seconds


async def voice(server, seed, n=12):
    """Spoken commands on a warm prefix, on an idle machine and beside eight background jobs."""
    c, system = server.client, words(300, f"home {seed}")

    async def speak(name):
        out = []
        for i in range(n):
            out.append((await c.send(words(12, f"{seed} {name} {i}"), 12, cls="voice", user="ann",
                                     system=system)).ttft)
            await asyncio.sleep(0.25)
        return out

    await c.send("hello", 2, cls="voice", user="ann", system=system)
    idle = await speak("idle")
    stop, answers = asyncio.Event(), []
    # Long answers: no prompt of theirs is computed while they are counted.
    tasks = await jobs(c, 8, seed, stop, answers, n_prompt=60, n_out=2000)
    await until(lambda: sum(len(a.times) > 2 for a in answers) >= 8)
    # Before and after: their texts, and with them the attention's work, grow all the time.
    alone = [await rate_of(answers, 2)]
    before, at = server.metrics(), time.perf_counter()
    busy = await speak("busy")
    after, end = server.metrics(), time.perf_counter()
    alone.append(await rate_of(answers, 2))
    stop.set()
    for task in tasks:
        task.cancel()
    out = {"idle_ttft_p50": median(idle), "idle_ttft_p95": p(idle, .95),
           "busy_ttft_p50": median(busy), "busy_ttft_p95": p(busy, .95),
           "background_alone_tok_s": sum(alone) / 2,
           "background_beside_tok_s": n_tokens(answers, at, end) / (end - at)}
    if server.engine == "gamasot":
        share = {k: (after[k] - before[k]) / (end - at)
                 for k in ("busy_seconds_total", "background_seconds_total")}
        out["interactive_share"] = share["busy_seconds_total"] - share["background_seconds_total"]
        out["suspended"] = after["suspended_steps_total"] - before["suspended_steps_total"]
    return out


async def chat_behind(server, seed):
    """A short chat behind eight background jobs that have just been handed in."""
    c, stop, answers = server.client, asyncio.Event(), []
    tasks = await jobs(c, 16, seed, stop, answers, n_prompt=400)
    await asyncio.sleep(1.0)
    ttft = []
    for i in range(2):
        ttft.append((await c.send(words(20, f"{seed} chat {i}"), 8, user="ann")).ttft)
    stop.set()
    for task in tasks:
        task.cancel()
    return {"ttft_p50": median(ttft), "ttft_max": max(ttft)}


def allowed_prefill(server, bound):
    """Prompt tokens a second beside one stream, when no step may take longer than bound."""
    state = pathlib.Path(os.environ.get("XDG_STATE_HOME") or
                         pathlib.Path.home() / ".local/state") / "gamasot"
    texts = sorted(state.glob("calibration-*.txt"), key=lambda f: f.stat().st_mtime)
    log = pathlib.Path(server.log.name).read_text(errors="replace")
    name = re.search(r"serve: ready model=(.*?) load_ms", log)
    text = next(t for t in (f.read_text() for f in reversed(texts)) if f"id {name.group(1)} " in t)
    values = {k: float(v) for k, v in re.findall(r"^(\w+) ([0-9.e+-]+)$", text, re.M)}
    knots = [values[f"knot_{1 << i}"] for i in range(10)]

    def cost(n):
        at = max(i for i in range(len(knots)) if 1 << i <= n)
        if at == len(knots) - 1:
            f = knots[at] + (n - (1 << at)) * (knots[at] - knots[at - 1]) / (1 << (at - 1))
        else:
            f = knots[at] + (knots[at + 1] - knots[at]) * (n - (1 << at)) / (1 << at)
        return (f + 2 * values["logit"] + 2 * values["sample"] + values["fixed"]) / 1e9
    n = max((n for n in range(1, 513) if cost(n + 1) <= bound), default=1)
    return n / max(cost(n + 1), bound if n == 1 else 0)


async def embed(server, seed, n_jobs=300, n_prompt=40):
    """300 jobs of one output token at once (five requests of 60 texts), beside a chat stream."""
    c = server.client
    solo = await c.send(words(20, seed), 60, user="ann")
    stream = Answer()
    reading = asyncio.create_task(c.send(words(20, seed + 2), 2500, user="ann", answer=stream))
    await until(lambda: len(stream.times) > 5)
    at = time.perf_counter()
    done = await asyncio.gather(*(
        c.texts([words(n_prompt, f"{seed} {k} {i}") for i in range(n_jobs // 5)], 1,
                cls="background", user="index") for k in range(5)))
    end = time.perf_counter()
    during = stream.gaps(at, end)
    reading.cancel()
    out = {"solo_gap_p99": p(solo.gaps(), .99), "gap_p99": p(during, .99), "gap_max": max(during),
           "jobs_s": n_jobs / (end - at), "prefill_tok_s": sum(done) / (end - at)}
    if server.engine == "gamasot":
        bound = max(1.2 * out["solo_gap_p99"], 0.025)
        out["allowed_tok_s"] = allowed_prefill(server, bound)
    return out


async def script(server, seed, n_open=100):
    """One person's script has 100 requests open; another person asks once in a while."""
    c = server.client
    idle = [(await c.send(words(40, f"{seed} idle {i}"), 60, user="ann")).total for i in range(3)]
    stop, answers = asyncio.Event(), []
    tasks = await jobs(c, n_open, seed, stop, answers, cls=None, n_prompt=100, n_out=120)
    await asyncio.sleep(3.0)
    busy = []
    for i in range(3 if server.engine == "gamasot" else 1):  # there each takes half a minute
        busy.append((await c.send(words(40, f"{seed} busy {i}"), 60, user="ann")).total)
        await asyncio.sleep(0.5)
    stop.set()
    for task in tasks:
        task.cancel()
    return {"idle_total": median(idle), "busy_total": median(busy), "busy_max": max(busy)}


async def unattainable(server, seed, n=6):
    """Six spoken answers at once with 45 ms a token as target, and with what six streams allow."""
    c, out = server.client, {}
    for name in ("at_45_ms", "lifted"):
        at = time.perf_counter()
        done = await asyncio.gather(*(
            c.send(words(30, f"{seed} {name} {i}"), 40, cls="voice", user=f"p{i}")
            for i in range(n)))
        out[name + "_tok_s"] = sum(len(a.times) for a in done) / (time.perf_counter() - at)
        begin, end = max(a.times[0] for a in done), min(a.times[-1] for a in done)
        out[name + "_gap_p50"] = median([g for a in done for g in a.gaps(begin, end)])
        server.configure({"class_voice.tpot_ms": int(1.5e3 * out["at_45_ms_gap_p50"])})
    server.configure({"class_voice.tpot_ms": 45})
    return out


async def shared_prefix(server, seed):
    """Two persons speak on one home's instructions of 3,000 tokens, registered as shared."""
    c, system = server.client, pathlib.Path(server.prefix_file).read_text()
    out = {}
    for name, user in (("first", "ann"), ("second", f"ben {seed}")):
        a = await c.send(words(12, f"{seed} {name}"), 4, cls="voice", user=user, system=system)
        again = [await c.send(words(12, f"{seed} {name} {i}"), 4, cls="voice", user="ann",
                              system=system) for i in range(3)] if name == "first" else []
        out[name + "_ttft"] = a.ttft
        out[name + "_cached"] = a.usage["prompt_tokens_details"]["cached_tokens"]
        if again:
            out["first_warm_ttft"] = median([x.ttft for x in again])
        out["prompt_tokens"] = a.usage["prompt_tokens"]
    own = words(600, f"secret {seed}")
    cold = await c.send("x", 2, cls="voice", user="ann", system=own)
    other = await c.send("x", 2, cls="voice", user=f"carl {seed}", system=own)
    out["other_scope_cached"] = other.usage["prompt_tokens_details"]["cached_tokens"]
    out["cold_ttft"], out["other_scope_ttft"] = cold.ttft, other.ttft
    return out


async def mixed(server, seed, seconds=15):
    """All kinds of requests at once; the step-time model's error over the run."""
    c, rng, stop, answers = server.client, random.Random(seed), asyncio.Event(), []
    tasks = await jobs(c, 3, seed, stop, answers, n_prompt=150, n_out=80)
    end, i = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        i += 1
        kind = rng.random()
        if kind < 0.4:
            args = (12, 25, "voice")
        elif kind < 0.8:
            args = (rng.randrange(20, 200), 80, "chat")
        elif kind < 0.9:
            args = (1500, 30, "document")
        else:
            args = (60, 12, "utility")
        tasks.append(asyncio.create_task(
            c.send(words(args[0], f"{seed} {i}"), args[1], cls=args[2], user=f"p{i % 4}")))
        await asyncio.sleep(rng.expovariate(3.0 if server.model == "smollm2" else 0.8))
    m = server.metrics()
    stop.set()
    for task in tasks:
        task.cancel()
    return {"median_error": m["step_model_median_error"], "p95_error": m["step_model_p95_error"],
            "median_ratio": m["step_model_median_ratio"], "steps": m["steps_total"]}


SCENARIOS = {"document": document, "voice": voice, "chat_behind": chat_behind, "embed": embed,
             "script": script, "unattainable": unattainable, "shared_prefix": shared_prefix,
             "mixed": mixed}


# ---- tables ---------------------------------------------------------------------------------------

MARKS = ("<!-- bench/scheduling.py: begin -->", "<!-- bench/scheduling.py: end -->")


def read(files):
    """(scenario, model, engine) -> the medians over all rounds of all files."""
    rounds = {}
    for file in files:
        for line in pathlib.Path(file).read_text(encoding="utf-8").splitlines():
            r = json.loads(line)
            rounds.setdefault((r["scenario"], r["model"], r["engine"]), []).extend(r["rounds"])
    return {key: ({k: median([r[k] for r in rs]) for k in rs[0]}, len(rs))
            for key, rs in rounds.items()}


def ms(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


def promises(scenario, model, m):
    """Rows (what, measured, promised) of one scenario."""
    if scenario == "document":
        bound = max(TPOT["chat"], 2 * m["solo_gap_p99"])
        return [("gap p99 of a chat while a document arrives", ms(m["gap_p99"]),
                 f"{ms(bound)} (solo {ms(m['solo_gap_p99'])})", m["gap_p99"] <= bound),
                ("the document's first token, beside / alone",
                 f"{m['document_beside'] / m['document_alone']:.2f} "
                 f"({ms(m['document_beside'])})", "1.25",
                 m["document_beside"] <= 1.25 * m["document_alone"])]
    if scenario == "voice":
        part = m["background_beside_tok_s"] / (
            m["background_alone_tok_s"] * (1 - m["interactive_share"]))
        return [("voice TTFT p95 beside 8 background jobs / idle",
                 f"{m['busy_ttft_p95'] / m['idle_ttft_p95']:.2f} ({ms(m['busy_ttft_p95'])})",
                 "1.5", m["busy_ttft_p95"] <= 1.5 * m["idle_ttft_p95"]),
                ("background's throughput, of its part of the device", f"{part:.2f}", "0.90",
                 part >= 0.9)]
    if scenario == "embed":
        bound = max(1.2 * m["solo_gap_p99"], 0.025)
        part = m["prefill_tok_s"] / m["allowed_tok_s"]
        return [("gap p99 of a chat beside 300 prefill-only jobs", ms(m["gap_p99"]),
                 f"{ms(bound)}", m["gap_p99"] <= bound),
                ("their throughput, of what the model allows", f"{part:.2f} "
                 f"({m['prefill_tok_s']:.0f} of {m['allowed_tok_s']:.0f} tokens/s)", "0.90",
                 part >= 0.9)]
    if scenario == "shared_prefix":
        return [("second person's TTFT on the shared prefix / first's, warm",
                 f"{m['second_ttft'] / m['first_warm_ttft']:.2f} ({ms(m['second_ttft'])}; "
                 f"cold 600 tokens {ms(m['cold_ttft'])})", "1.2",
                 m["second_ttft"] <= 1.2 * m["first_warm_ttft"]),
                ("tokens found across persons in a prompt that is not shared",
                 f"{m['other_scope_cached']:.0f}", "0", m["other_scope_cached"] < 32)]
    if scenario == "unattainable":
        part = m["at_45_ms_tok_s"] / m["lifted_tok_s"]
        return [("throughput with a target out of reach / with one in reach", f"{part:.2f}",
                 "0.90", part >= 0.9)]
    if scenario == "script":
        part = m["busy_total"] / m["idle_total"]
        return [("one request beside a script with 100 open / alone",
                 f"{part:.2f} ({ms(m['busy_total'])})", "2", part <= 2)]
    if scenario == "mixed":
        return [("step-time model, median error", f"{100 * m['median_error']:.1f} %", "10 %",
                 m["median_error"] <= 0.1),
                ("step-time model, p95 error", f"{100 * m['p95_error']:.1f} %", "30 %",
                 m["p95_error"] <= 0.3)]
    return [("first token of a short chat behind background jobs", ms(m["ttft_p50"]), "1 s",
             m["ttft_p50"] <= 1)]


BESIDE = (("document", "gap_max", "a chat's worst gap while a document arrives"),
          ("document", "document_beside", "the document's first token"),
          ("voice", "busy_ttft_p50", "first token of a spoken command beside 8 background jobs"),
          ("chat_behind", "ttft_p50", "first token of a chat behind 16 background jobs"),
          ("script", "busy_total", "a short answer beside a script with 100 open requests"),
          ("embed", "gap_max", "a chat's worst gap beside 300 prefill-only jobs"))


def tables(files):
    have = read(files)
    out = ["| promise | model | measured | target | |", "|---|---|---|---|---|"]
    for (scenario, model, engine), (m, _) in have.items():
        if engine == "gamasot":
            out += [f"| {what} | {model} | {got} | {want} | {'yes' if ok else 'no'} |"
                    for what, got, want, ok in promises(scenario, model, m)]
    engines = [e for e in ("gamasot", "llama.cpp", "llama.cpp-128") if any(k[2] == e for k in have)]
    out += ["", "| seconds, median | model | " + " | ".join(engines) + " | ratio |",
            "|---" * (3 + len(engines)) + "|"]
    for scenario, key, what in BESIDE:
        for model in MODELS:
            got = [have.get((scenario, model, e), ({}, 0))[0].get(key) for e in engines]
            others = [v for v in got[1:] if v is not None]
            if got[0] is not None and others:
                cells = " | ".join("" if v is None else f"{v:.3f}" for v in got)
                out.append(f"| {what} | {model} | {cells} | {min(others) / got[0]:.1f}x |")
    return "\n".join(out)


def table(args):
    text = tables(args.files)
    print(text)
    if args.write:
        path = ROOT / "docs" / "scheduling.md"
        old = path.read_text(encoding="utf-8")
        begin, end = old.index(MARKS[0]) + len(MARKS[0]), old.index(MARKS[1])
        path.write_text(old[:begin] + "\n" + text + "\n" + old[end:], encoding="utf-8")


def run(args):
    rounds = []
    options = list(args.option)
    prefix = None
    if args.scenario == "shared_prefix":
        prefix = tempfile.NamedTemporaryFile("w", prefix="home-", suffix=".txt")
        prefix.write(words(3000, "home"))
        prefix.flush()
        options += ["--prefix.files", prefix.name]
    with Server(args.engine, args.model, options) as server:
        server.prefix_file = prefix.name if prefix else None
        asyncio.run(server.client.send("warm up", 8))
        for i in range(args.rounds):
            rounds.append(asyncio.run(SCENARIOS[args.scenario](server, args.seed + 1000 * i)))
            time.sleep(0.3)
    medians = {k: median([r[k] for r in rounds]) for k in rounds[0]}
    result = {"scenario": args.scenario, "model": args.model, "engine": args.engine,
              "options": args.option, "median": medians, "rounds": rounds}
    print(json.dumps({k: round(v, 4) for k, v in medians.items()}))
    if args.out:
        with open(args.out, "a", encoding="utf-8") as f:
            f.write(json.dumps(result) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    sub = parser.add_subparsers(dest="command", required=True)
    sub.add_parser("list")
    r = sub.add_parser("run")
    r.add_argument("scenario", choices=SCENARIOS)
    r.add_argument("--model", choices=MODELS, default="smollm2")
    r.add_argument("--engine", choices=("gamasot", "llama.cpp", "llama.cpp-128"), default="gamasot")
    r.add_argument("--rounds", type=int, default=3)
    r.add_argument("--seed", type=int, default=1)
    r.add_argument("--out")
    r.add_argument("--option", action="append", default=[], help="of the server, repeatable")
    t = sub.add_parser("table")
    t.add_argument("files", nargs="+")
    t.add_argument("--write", action="store_true", help="into docs/scheduling.md")
    args = parser.parse_args()
    if args.command == "list":
        for name, play in SCENARIOS.items():
            print(f"{name:14} {play.__doc__}")
    elif args.command == "table":
        table(args)
    else:
        run(args)


if __name__ == "__main__":
    sys.exit(main())
