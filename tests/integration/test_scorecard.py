"""
The reliability scorecard: one class for each of its tests, under its number (docs/reliability.md says
what each demands and what was measured). Each prints its figures in a line that begins with its
number. Tests that live elsewhere are named in that table.
"""

import signal
import contextlib
import http.client
import os
import random
import re
import resource
import shutil
import socket
import sqlite3
import statistics
import tempfile
import threading
import time
import unittest

import harness
from fake_model import FakeModel
from harness import Server, figure, in_parallel, wait_until
from moved_clock import MovedClock

FAKE = FakeModel()


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p / 100))]


class Health07(unittest.TestCase):
    """Health tells the truth: of a frozen engine, of a failing step, during long work."""

    def test_a_frozen_engine(self):
        """503 within 5 s; the step's requests fail with a clear event, those that waited are
        answered as if nothing had happened."""
        options = ("--fake.step_ms", 5, "--fake.hang_at_step", 20, "--engine.restart_ms", 5000,
                   "--engine.max_seqs", 2)
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.addCleanup(manager.close)
        manager.bind(str(harness.TMP / "manager.sock"))

        def signs_of_life():
            """That the service manager has heard since it was asked last."""
            n = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    n += manager.recv(1024) == b"WATCHDOG=1"
            return n

        with Server(*options, env={"NOTIFY_SOCKET": manager.getsockname()}) as server:
            def one(k):
                return server.collect("/v1/completions", {
                    "prompt": f"frozen {k}", "max_tokens": 60, "temperature": 0})
            results = []
            run = threading.Thread(target=lambda: results.extend(
                in_parallel(6, [lambda k=k: one(k) for k in range(6)])))
            run.start()
            server.wait_metric("steps_total", 19)
            began = time.monotonic()
            wait_until("/health to see it", lambda: server.get("/health").status == 503)
            seen_s = time.monotonic() - began
            self.assertEqual(server.get("/health").json["status"], "stalled")
            self.assertEqual(server.get("/ready").status, 503)
            self.assertEqual(server.get("/metrics").status, 200)
            self.assertGreater(signs_of_life(), 0)
            while True:
                heard = signs_of_life()
                if server.get("/health").status == 200:
                    break
                self.assertEqual(heard, 0)
                time.sleep(0.02)
            wait_until("signs of life", signs_of_life)
            run.join(60)
            failed = [r for r in results if r.error]
            for r in failed:
                self.assertEqual(r.error["type"], "server_error")
                self.assertIn("stopped answering", r.error["message"])
                self.assertTrue(r.done)
            for k, r in enumerate(results):
                self.assertEqual(r.text, FAKE.text(f"frozen {k}", 60)[:len(r.text)])
            self.assertTrue(1 <= len(failed) <= 2, failed)  # those in the step
            self.assertEqual(sum(len(r.text) == 60 for r in results), 6 - len(failed))
            self.assertEqual(server.get("/health").status, 200)
            self.assertEqual(server.metrics()["engine_restarts_total"], 1)
            server.wait_idle()
            figure("7 frozen", health_503_s=seen_s, failed=len(failed), answered=6 - len(failed))
            self.assertLess(seen_s, 5 * harness.SLOWNESS)

    @harness.long_only
    def test_an_engine_that_freezes_again_and_again(self):
        """After three restarts nobody believes in it any more: all hear of it, the process ends."""
        server = Server("--fake.hang_at_step", 3, "--fake.hang_every", 2, "--engine.stall_ms", 100,
                        "--engine.restart_ms", 200)
        try:
            errors = []
            for k in range(4):
                got = server.collect("/v1/completions", {"prompt": f"again {k}", "max_tokens": 40})
                errors.append(got.error["message"])
            self.assertTrue(all("stopped answering" in e for e in errors[:3]), errors)
            self.assertIn("shutting down", errors[3])
            self.assertEqual(server.wait_exit(20), 70)
            self.assertIn("too often", server.log())
        finally:
            server.kill()


class Ledger(unittest.TestCase):
    """What takes memory is accounted, bounded, and refused before somebody is killed for it."""

    def samples(self, server, name):
        """label set -> value"""
        out = {}
        for line in server.get("/metrics").text.splitlines():
            if line.startswith("gamasot_" + name + "{"):
                labels, value = line[len("gamasot_" + name) + 1:].rsplit("} ", 1)
                out[labels.removeprefix('kind="').removesuffix('"')] = float(value)
        return out

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's allocator does not tell what it holds")
    def test_it_sums_to_what_the_kernel_says(self):
        with Server("--model", harness.model_path(), backend="native") as server:
            for n in (10, 400):
                server.complete("word " * n, 8, user="one")
            server.ok("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "yes?"}], "max_tokens": 4,
                "response_format": {"type": "json_object"}})
            kinds = self.samples(server, "memory_bytes")
            limits = self.samples(server, "memory_limit_bytes")
            kernel = server.metrics()["memory_anonymous_bytes"]
            self.assertAlmostEqual(kernel, 1024 * server.rss_anon_kb(), delta=0.01 * kernel)
            ratio = sum(kinds.values()) / kernel
            figure("ledger", sum_by_kernel=ratio, kernel_mb=kernel / 2**20,
                   **{k: v / 2**20 for k, v in kinds.items()})
            self.assertTrue(0.95 < ratio < 1.05, (kinds, kernel))
            for kind in ("weights", "kv", "step", "grammars", "store", "connections"):
                self.assertTrue(0 < kinds[kind] <= limits[kind], (kind, kinds, limits))

    def test_little_memory_is_refused_work(self):
        with Server("--memory.reserve_mb", 16777216) as server:
            wait_until("it to be seen", lambda: server.metrics()["memory_low"] == 1)
            for path, body in (("/v1/completions", {"prompt": "x", "max_tokens": 1}),
                               ("/api/generate", {"model": "fake", "prompt": "x"}),
                               ("/v1/embeddings", {"input": "x"})):
                r = server.post(path, body)
                self.assertEqual(r.status, 503, r.body)
                self.assertIn("memory.reserve_mb", r.text)
                self.assertEqual(r.headers["Retry-After"], "5")
            self.assertEqual(server.get("/health").status, 200)  # a restart would not help


class CrossTalk02(unittest.TestCase):
    """8 keys at once, each with canaries of its own: nobody hears another's."""

    def test_canaries(self):
        n = 500 if harness.LONG else 12
        keys = [f"the-key-of-{k}" for k in range(8)]
        options = [o for k in keys for o in ("--api-key", k)]
        with Server(*options, "--fake.step_ms", 0, "--fake.kv_blocks", 16384, key=keys[0],
                    env={"GAMASOT_LOG_LEVEL": "debug"}) as server:
            # Not even a prefix is shared: what the one has asked is new to the other.
            common = "a prompt that all of them have " * 8
            found = []
            for key in keys:
                r = server.ok("/v1/completions", {"prompt": common, "max_tokens": 1},
                              headers={"Authorization": f"Bearer {key}"})
                found.append(r["usage"]["prompt_tokens_details"]["cached_tokens"])
            self.assertEqual(found, [0] * 8)
            seen = []  # of those who look on meanwhile, none of them an admin

            def one(k, i):
                canary = f"canary-{k}-{i}-" + "z" * (i % 40)
                headers = {"Authorization": f"Bearer {keys[k]}"}
                body = {"prompt": f"keep {canary} secret", "max_tokens": 4, "echo": True}
                if i % 2:
                    text = server.collect("/v1/completions", body, headers=headers).text
                else:
                    text = server.ok("/v1/completions", body, headers=headers)["choices"][0]["text"]
                self.assertEqual(re.findall(r"canary-\d+-\d+-", text), [f"canary-{k}-{i}-"])
                if i % 10 == 0:
                    other = {"Authorization": f"Bearer {keys[(k + 1) % 8]}"}
                    for path in ("/metrics", "/v1/queue", "/v1/history", "/v1/models"):
                        seen.append(server.get(path, headers=other).body)

            in_parallel(32, [lambda k=k, i=i: one(k, i) for i in range(n) for k in range(8)])
            seen.append(server.log().encode())
            self.assertEqual(sum(b"canary" in s for s in seen), 0)
            figure("2", requests=8 * n, foreign_canaries=0, looks=len(seen), cached_of_others=0)


def upload(server, name):
    """A file's id once it is kept, or None."""
    boundary = "xxBOUNDARYxx"
    data = "".join(f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"{extra}\r\n\r\n'
                   f"{value}\r\n" for field, extra, value in
                   (("purpose", "", "batch"), ("file", f'; filename="{name}"', "{}\n" * 200)))
    r = server.post("/v1/files", f"{data}--{boundary}--\r\n", timeout_s=10, headers={
        "Content-Type": f"multipart/form-data; boundary={boundary}"})
    return r.json["id"] if r.status == 200 else None


class Kill03(unittest.TestCase):
    """kill -9 at random moments: what was acknowledged is there, the database whole, no lock left."""

    def one(self, env, rng, k, kept):
        """A life: files are uploaded, texts generated, then it is killed."""
        began = time.monotonic()
        s = Server("--fake.step_ms", 0, "--metrics.history_s", 1, env=env)
        try:
            ready_s = time.monotonic() - began
            have = {f["id"] for f in s.get("/v1/files?limit=10000").json["data"]}
            self.assertEqual(kept - have, set())  # acknowledged in an earlier life
            threading.Timer(rng.uniform(0.0, 0.08), s.process.kill).start()
            for i in range(1000):
                name = upload(s, f"{k}-{i}.jsonl")
                if name:
                    kept.add(name)
                s.post("/v1/completions", {"prompt": f"{k} {i}", "max_tokens": 2}, timeout_s=10)
        except (OSError, http.client.HTTPException, ValueError):
            pass  # it is dead
        finally:
            s.kill()
        return ready_s

    def test_kill_at_random_moments(self):
        n = 500 if harness.LONG else 6
        folder = tempfile.mkdtemp(prefix="killed-", dir=harness.TMP)
        env = {"GAMASOT_STORE_FOLDER": folder}
        rng, kept, ready = random.Random(harness.seed(3)), set(), []
        for k in range(n):
            ready.append(self.one(env, rng, k, kept))
            if len(kept) > 400:  # room: the quota is not what is tested
                kept.clear()
                shutil.rmtree(folder)
                os.mkdir(folder)
        with contextlib.closing(sqlite3.connect(os.path.join(folder, "gamasot.db"))) as db:
            self.assertEqual(db.execute("PRAGMA integrity_check").fetchone()[0], "ok")
        self.assertGreater(len(kept), 0)
        figure("3", kills=n, ready_s_max=max(ready), lost=0)
        self.assertLess(max(ready), (1 + 2) * harness.SLOWNESS * 3)



class Overload06(unittest.TestCase):
    """One key floods, another sends one request: it waits for a place, not for the flood."""

    def test_a_flood(self):
        seconds = 60 if harness.LONG else 1.2
        with Server("--api-key", "flood", "--api-key", "calm", "--fake.step_ms", 10,
                    "--engine.max_seqs", 4, "--server.max_queued", 24, key="flood") as server:
            body = {"max_tokens": 20, "temperature": 0}

            def timed(prompt, key):
                began = time.monotonic()
                r = server.post("/v1/completions", {**body, "prompt": prompt},
                                headers={"Authorization": f"Bearer {key}"}, timeout_s=120)
                return r, time.monotonic() - began

            alone = statistics.median(timed(f"alone {i}", "calm")[1] for i in range(3))
            end, answers, refused = time.monotonic() + seconds, [], []

            def flood(k):
                i = 0
                while time.monotonic() < end:
                    i += 1
                    r, took = timed(f"flood {k} {i}", "flood")
                    if r.status == 200:
                        answers.append(r.json["choices"][0]["text"] == FAKE.text(f"flood {k} {i}", 20))
                    else:
                        self.assertEqual(r.status, 429, r.body)
                        self.assertGreaterEqual(int(r.headers["Retry-After"]), 1)
                        refused.append(took)
                        time.sleep(0.02)

            threads = [threading.Thread(target=flood, args=(k,)) for k in range(60)]
            for t in threads:
                t.start()
            wait_until("the flood", lambda: refused)
            calm = []
            while time.monotonic() < end - 0.3:
                r, took = timed(f"calm {len(calm)}", "calm")
                self.assertEqual(r.status, 200, r.body)
                self.assertEqual(r.json["choices"][0]["text"], FAKE.text(f"calm {len(calm)}", 20))
                calm.append(took)
            for t in threads:
                t.join()
            self.assertTrue(answers and all(answers))  # accepted is answered, to the byte
            server.wait_idle()
            figure("6", refused=len(refused), accepted=len(answers), lost=0,
                   refused_ms_p50=1e3 * statistics.median(refused),
                   calm_by_alone=statistics.median(calm) / alone)
            self.assertLess(statistics.median(calm), 4 * alone)


class Prompts10(harness.SharedServer):
    """At the context's edge, and far beyond it."""

    options = ("--model.context", 512, "--fake.step_ms", 0)

    def test_edges(self):
        for n, status in ((510, 200), (511, 200), (512, 400), (513, 400)):
            r = self.server.post("/v1/completions", {"prompt": "e" * n, "max_tokens": 5})
            self.assertEqual(r.status, status, (n, r.body[:200]))
        for prompt, status in (("m" * 1_000_000, 400), ("b" * (4 << 20), 413), ([97] * 1_000_000, 400)):
            r = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
            self.assertEqual(r.status, status, r.body[:200])
        self.assertEqual(self.server.complete("after", 3)["choices"][0]["text"], FAKE.text("after", 3))
        figure("10", edges=7, wrong=0)


class NoEnd12(harness.SharedServer):
    """A model that never ends by itself is ended by the limit or by the context."""

    options = ("--model.context", 256, "--fake.step_ms", 0)

    def test_the_limit_or_the_context(self):
        cases = [(n, limit) for n in (1, 31, 32, 33, 200, 254, 255)
                 for limit in (1, 2, 33, 254, 255, 256, 100_000, None)]

        def one(n, limit):
            body = {"prompt": "e" * n, "temperature": 0, **({"max_tokens": limit} if limit else {})}
            want = min(limit or 16, 256 - n)  # 16: what OpenAI gives where nothing is said
            whole = self.server.ok("/v1/completions", body)
            self.assertEqual(whole["usage"]["completion_tokens"], want, (n, limit))
            stream = self.server.collect("/v1/completions", body)
            choice = whole["choices"][0]
            for text, reason in ((choice["text"], choice["finish_reason"]),
                                 (stream.text, stream.finish[0])):
                self.assertEqual((text, reason), (FAKE.text("e" * n, want), "length"), (n, limit))
        in_parallel(8, [lambda c=c: one(*c) for c in cases])
        figure("12", cases=2 * len(cases), wrong=0)


class Disk14(unittest.TestCase):
    """Nothing can be written any more, not even the log: chats go on, and it comes back by itself."""

    def test_no_byte_can_be_written(self):
        with Server("--fake.step_ms", 0) as server:
            pid = server.process.pid
            wait_until("the database is open", lambda: upload(server, "before.jsonl"))
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            for i in range(40):
                self.assertEqual(server.complete(f"full {i}", 3)["choices"][0]["text"],
                                 FAKE.text(f"full {i}", 3))
            self.assertIsNone(upload(server, "full.jsonl"))
            self.assertEqual(server.get("/health").status, 200)
            resource.prlimit(pid, resource.RLIMIT_FSIZE,
                             (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            size = len(server.log())
            began = time.monotonic()
            wait_until("files again", lambda: upload(server, "again.jsonl"))
            figure("14", chats=40, recovered_s=time.monotonic() - began, log_bytes=size)

    def test_failing_writes_of_the_database(self):
        with Server("--fake.step_ms", 0, "--metrics.history_s", 1,
                    env={"GAMASOT_FAULT": "sqlite:60:ENOSPC"}) as server:
            names = [upload(server, f"{i}.jsonl") for i in range(30)]
            self.assertGreaterEqual(sum(n is not None for n in names), 28)
            self.assertEqual(server.complete("goes on", 3)["choices"][0]["text"],
                             FAKE.text("goes on", 3))


class Readers18(unittest.TestCase):
    """Readers that take a byte a second: bounded buffers, and nobody else notices."""

    def start(self, server, n):
        sockets = []
        for k in range(n):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", server.port))
            s.sendall(server.post_bytes("/v1/completions", {
                "prompt": f"slow {k}", "max_tokens": 2000, "stream": True, "logprobs": 5}))
            sockets.append(s)
        server.wait_metric("num_requests_running", n // 2)
        return sockets

    def beside(self, server, sockets, n_bytes):
        """Median seconds of an answer of 50 tokens, while each of these reads so much of its own."""
        took = []
        for k in range(5):
            began = time.monotonic()
            text = server.complete(f"beside {k}", 50)["choices"][0]["text"]
            self.assertEqual(text, FAKE.text(f"beside {k}", 50))
            took.append(time.monotonic() - began)
            for s in sockets:
                s.recv(n_bytes)
        return statistics.median(took)

    def end(self, server, sockets):
        for s in sockets:
            s.close()
        server.wait_idle()
        wait_until("no connections", lambda: server.metrics()["http_connections"] <= 1)

    def test_slow_readers(self):
        n = 200 if harness.LONG else 50
        with Server("--fake.step_ms", 1, "--engine.max_seqs", 256, "--fake.kv_blocks", 65536,
                    "--server.max_connections_per_address", 1000) as server:
            server.complete("warm", 100)
            before = server.rss_anon_kb()
            quick = self.start(server, n)
            readers = self.beside(server, quick, 1 << 20)
            self.end(server, quick)
            slow = self.start(server, n)
            slow_readers = self.beside(server, slow, 1)
            each_kb = (server.rss_anon_kb() - before) / n
            self.end(server, slow)
            figure("18", readers=n, kb_each=each_kb, beside_by_quick_readers=slow_readers / readers)
            if not harness.SANITIZED:
                self.assertLess(each_kb, 1024 + 128)  # where a stream is cut: 16 times 64 KiB


class Idle19(unittest.TestCase):
    """Idle streams and slow heads: small, quiet, and a fresh request is served."""

    def cpu_s(self, pid):
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_idle_connections(self):
        n = 1000 if harness.LONG else 150
        with Server("--fake.step_ms", 0, "--server.max_connections_per_address", 3000,
                    "--server.max_connections", 3000, "--engine.max_seqs", 1,
                    "--server.max_queued", 3000, "--server.header_timeout_ms", 60000) as server:
            server.post("/v1/background/pause", {})

            def fresh(k):
                """Seconds of a request on a connection of its own."""
                began = time.monotonic()
                text = server.complete(f"fresh {k}", 3)["choices"][0]["text"]
                self.assertEqual(text, FAKE.text(f"fresh {k}", 3))
                return time.monotonic() - began

            alone = statistics.median(fresh(-1 - k) for k in range(9))
            before = server.rss_anon_kb()
            sockets = []
            for k in range(n):
                s = server.socket()
                s.sendall(server.post_bytes("/v1/completions", {
                    "prompt": f"idle {k}", "max_tokens": 5, "stream": True},
                    {"X-Gamasot-Class": "background"}))
                slow = server.socket()
                slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
                sockets += [s, slow]
            wait_until("all of them", lambda: server.metrics()["http_connections"] >= 2 * n)
            pid, looked = server.process.pid, time.monotonic()
            used = self.cpu_s(pid)
            time.sleep(5 if harness.LONG else 0.5)
            share = (self.cpu_s(pid) - used) / (time.monotonic() - looked)
            self.assertEqual(server.metrics()["num_requests_waiting"], n)
            grown_mb = (server.rss_anon_kb() - before) / 1024
            among = statistics.median(fresh(k) for k in range(9))
            figure("19", idle_streams=n, slow_heads=n, grown_mb=grown_mb, cpu=share,
                   fresh_by_alone=among / alone)
            if not harness.SANITIZED:
                self.assertLess(grown_mb, 32)
            if harness.LONG:
                self.assertLess(share, 0.03)
            for s in sockets:
                s.close()
            server.post("/v1/background/resume", {})
            server.wait_idle()


class Torture23(unittest.TestCase):
    """Each call of a kind fails once, in scenarios; in check some of them, drawn by the month."""

    KINDS = ("alloc", "read", "write", "accept", "mmap", "thread", "sqlite", "step")

    def scenario(self, server, k):
        """One of forty: dialect, stream, shape. Any answer will do but a wrong one."""
        text = f"scenario {k} " + "t" * (13 * k % 200)
        stream, shape = bool(k % 2), k // 2 % 4
        body = {"prompt": text, "max_tokens": 1 + k % 7, "temperature": 0, "stream": stream}
        if shape == 1:
            body.update(n=2, stop=["qq"], logprobs=2)
        path = "/v1/completions"
        if shape == 2:
            path, body = "/v1/chat/completions", {
                "messages": [{"role": "user", "content": text}], "max_tokens": 3, "stream": stream,
                **({"response_format": {"type": "json_object"}} if k % 3 == 0 else {})}
        if shape == 3:
            path, body = (("/api/generate", {"model": "fake", "prompt": text, "stream": stream}),
                          ("/v1/embeddings", {"input": [text, "x"]}),
                          ("/v1/messages", {"model": "fake", "max_tokens": 4, "stream": stream,
                                            "messages": [{"role": "user", "content": text}]}),
                          ("/tokenize", {"content": text}),
                          ("/v1/responses", {"input": text, "max_output_tokens": 3}))[k // 8 % 5]
        try:
            r = server.post(path, body, timeout_s=20)
        except (OSError, http.client.HTTPException):
            return
        self.assertIn(r.status, (200, 429, 500, 503, 507), (path, body, r.body[:300]))
        if r.status == 200 and path == "/v1/completions" and not stream and shape == 0:
            self.assertEqual(r.json["choices"][0]["text"], FAKE.text(text, 1 + k % 7))

    def one(self, fault, scenarios):
        try:
            server = Server("--fake.eos_after", 6, "--fake.step_ms", 0, ready=False,
                            env={"GAMASOT_FAULT": fault})
        except AssertionError as error:
            self.assertRegex(str(error), r"serve ended with [12]:", fault)
            return False
        try:
            def settled():
                if server.process.poll() is not None or "could not be loaded" in server.log():
                    return True
                with contextlib.suppress(OSError, http.client.HTTPException):
                    return server.get("/ready").status == 200
                return False
            wait_until("ready or ended", settled, 30)
            if server.process.poll() is not None or "could not be loaded" in server.log():
                self.assertIn(server.wait_exit(20), (1, 2), (fault, server.log()[-2000:]))
                return False
            for k in scenarios:
                self.scenario(server, k)
            failed = 0
            for prompt in ("afterwards", "and once more"):  # it may be the one's call that fails
                try:
                    got = server.complete(prompt, 5)["choices"][0]["text"]
                except (OSError, http.client.HTTPException, AssertionError):
                    failed += 1
                else:
                    self.assertEqual(got, FAKE.text(prompt, 5), fault)
            self.assertLess(failed, 2, (fault, server.log()[-2000:]))

            def idle():
                # It may be this one's call that fails: the answer is an error, not numbers.
                with contextlib.suppress(OSError, http.client.HTTPException, KeyError, ValueError):
                    return server.idle()
                return False
            wait_until("nothing running, nothing waiting, no KV held", idle)
            server.stop()
            return True
        finally:
            server.kill()

    def test_some_calls(self):
        seed = harness.monthly_seed()
        rng = random.Random(seed)
        faults = [f"{kind}:{rng.randrange(2, 200 if kind == 'alloc' else 30)}"
                  for kind in self.KINDS] + [f"alloc:{rng.randrange(150, 3000)}" for _ in range(4)]
        served = sum(self.one(f, rng.sample(range(40), 10)) for f in faults)
        figure("23", seed=seed, faults=len(faults), crashes=0, served=served)
        self.assertGreater(served, 4)

    @harness.long_only
    @harness.limit(3600)
    def test_every_call(self):
        faults = [("alloc", i) for i in [*range(1, 400), *range(400, 6000, 13)]]
        faults += [(kind, i) for kind in self.KINDS if kind != "alloc"
                   for i in range(2 if kind == "write" else 1, 120)]  # write:1 says the port
        faults = harness.part(faults)
        served = 0
        for kind, i in faults:
            with self.subTest(fault=f"{kind}:{i}"):
                served += self.one(f"{kind}:{i}", range(40) if i % 10 == 0 else range(i % 4, 40, 4))
        figure("23", faults=len(faults), crashes=0, served=served)
        self.assertGreater(served, len(faults) // 2)

    def test_random_faults_in_engine_and_scheduler(self):
        """Two stages: the seed says which seams are armed, then they answer rarely."""
        first = harness.monthly_seed()
        seeds = range(first, first + (40 if harness.LONG else 3))
        ended = failed = 0
        for seed in seeds:
            with Server("--fake.layers", 4, "--fake.step_ms", 1, "--engine.max_seqs", 6,
                        "--fake.kv_blocks", 96, env={"GAMASOT_FAULT": f"random:{seed}"}) as server:
                def one(i):
                    prompt = f"seam {i} " + "s" * (i * 31 % 300)
                    cls = ("chat", "background", "utility")[i % 3]
                    r = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 12,
                                                        "temperature": 0},
                                    headers={"X-Gamasot-Class": cls})
                    if r.status != 200:
                        self.assertIn(r.status, (429, 500, 503), (seed, r.body))
                        return 1
                    self.assertEqual(r.json["choices"][0]["text"], FAKE.text(prompt, 12), seed)
                    return 0
                results = in_parallel(8, [lambda i=i: one(i) for i in range(60)])
                server.wait_idle()
                ended, failed = ended + len(results), failed + sum(results)
        figure("23 seams", seeds=f"{seeds[0]}..{seeds[-1]}", ended=ended, failed=failed, wrong=0)


@unittest.skipIf(harness.SANITIZED, "a sanitizer's library must come first")
class Clock24(unittest.TestCase):
    """
    The wall's clock jumps while streams, slow senders, quotas and schedules go on, and the
    monotonic clock passes the end of 32 bits of milliseconds, as it does after 49 days. What is
    shown to people, and the hours of schedules, follow the wall; all that is measured does not.
    """

    HOURS = (12, 24, -12, 400 * 24, -400 * 24 - 12, 0)  # from noon: night, day, night ...

    def key(self, env, name, *more):
        status, out, err = harness.cli("keys", "add", name, *more, env=env)
        self.assertEqual(status, 0, err)
        return next(word for word in out.split() if word.startswith("gs-"))

    def wrapping(self, bits, seconds):
        """A clock whose milliseconds leave that many bits in so many seconds."""
        self.wraps_ns = time.monotonic_ns() + int(seconds * 1e9)
        return MovedClock(monotonic_ns=(1 << bits) * 1_000_000 - self.wraps_ns)

    def has_wrapped(self):
        return time.monotonic_ns() > self.wraps_ns

    def timed_out(self, server):
        """A body that does not come is given up, now as ever."""
        head, _, body = server.post_bytes("/v1/completions", {"prompt": "x"}).partition(b"\r\n\r\n")
        return b" 408 " in server.raw(head + b"\r\n\r\n" + body[:5])

    def test_clocks_jump(self):
        clock = self.wrapping(32, 1.5)
        env = {"GAMASOT_SERVER_KEYS_FILE": str(harness.TMP / "clock-keys.json")}
        rich, poor = self.key(env, "rich"), self.key(env, "poor", "--day-seconds", "1")
        noon_s = 43200 - int(time.time()) % 86400
        clock.move(noon_s)
        with Server("--fake.step_ms", 5, "--engine.max_seqs", 4, "--server.header_timeout_ms", 60000,
                    "--server.body_timeout_ms", 300, "--background.schedule", "22:00-07:00",
                    "--background.time_zone", "UTC", key=rich, env={**env, **clock.env}) as server:
            def ask_poor():
                r = server.post("/v1/completions", {"prompt": "poor", "max_tokens": 40},
                                headers={"Authorization": f"Bearer {poor}"})
                return None if r.status == 200 else r

            def refused(r):
                self.assertEqual(r.status, 429, r.body)
                self.assertIn("today", r.text)
                self.assertTrue(1 <= int(r.headers["Retry-After"]) <= 3600)

            def open_now():
                return not 7 <= time.gmtime(clock.now()).tm_hour < 22

            refused(wait_until("the day's device time is used up", ask_poor))
            texts = []
            streams = threading.Thread(target=lambda: texts.extend(in_parallel(6, [
                lambda k=k: server.collect("/v1/completions", {
                    "prompt": f"through time {k}", "max_tokens": 120, "temperature": 0}).text
                for k in range(6)])))  # four at a time, two wait
            streams.start()
            with server.socket() as slow, contextlib.closing(server.connect()) as idle:
                request = server.post_bytes("/v1/completions", {"prompt": "slow", "max_tokens": 3,
                                                              "temperature": 0})
                slow.sendall(request[:40])
                idle.request("GET", "/health")
                idle.getresponse().read()
                for hours in self.HOURS:
                    clock.move(noon_s + 3600 * hours)
                    wait_until("the schedule as the wall shows", lambda: server.get(
                        "/v1/background").json["open"] == open_now())
                    refused(ask_poor() or self.fail("a quota that came back"))
                    r = server.complete("rich", 2)
                    self.assertEqual(r["choices"][0]["text"], FAKE.text("rich", 2))
                    self.assertLess(abs(r["created"] - clock.now()), 60)
                    self.assertEqual(server.get("/health").status, 200)
                wait_until("32 bits of milliseconds are over", self.has_wrapped)
                slow.sendall(request[40:])
                self.assertIn(FAKE.text("slow", 3).encode(), slow.recv(65536))
                idle.request("GET", "/health")
                self.assertEqual(idle.getresponse().status, 200)
            streams.join()
            self.assertEqual(texts, [FAKE.text(f"through time {k}", 120) for k in range(6)])
            self.assertTrue(self.timed_out(server))
            self.assertEqual(server.metrics()["engine_restarts_total"], 0)
            figure("24", jumps=len(self.HOURS), streams=6, false_timeouts=0, quotas_lost=0)

    @harness.long_only
    def test_a_machine_that_sleeps(self):
        """Eight hours: the wall has moved, the process has stood still; that is no hang."""
        clock = self.wrapping(31, 2)
        with Server("--fake.step_ms", 5, "--engine.stall_ms", 1500, "--engine.restart_ms", 2000,
                    "--server.body_timeout_ms", 300, env=clock.env) as server:
            texts = []
            stream = threading.Thread(target=lambda: texts.append(server.collect(
                "/v1/completions", {"prompt": "sleeps", "max_tokens": 600, "temperature": 0}).text))
            stream.start()
            for hours in (8, 16):
                server.wait_metric("num_requests_running", 1)
                server.process.send_signal(signal.SIGSTOP)
                clock.move(3600 * hours)
                time.sleep(4)
                server.process.send_signal(signal.SIGCONT)
                self.assertEqual(server.get("/health").status, 200)
            stream.join()
            self.assertEqual(texts, [FAKE.text("sleeps", 600)])
            self.assertTrue(self.has_wrapped() and self.timed_out(server))
            self.assertEqual(server.metrics()["engine_restarts_total"], 0)


class Soak09(unittest.TestCase):
    """20 minutes that stand for a day: nothing grows, and nothing gets slower."""

    def soak(self, server, n, n_threads, one):
        took = [0.0] * n
        done = iter(range(n))
        lock, marks = threading.Lock(), []

        def look():
            return (server.used_kb(), server.n_fds(),
                    len(os.listdir(f"/proc/{server.process.pid}/task")))

        def work():
            while True:
                with lock:
                    i = next(done, None)
                    if i is not None and i % (n // 20) == 0:
                        marks.append(look())
                if i is None:
                    return
                began = time.monotonic()
                one(i)
                took[i] = time.monotonic() - began

        in_parallel(n_threads, [work] * n_threads)
        server.wait_idle()
        marks.append(look())
        tenth = n // 10
        first, last = (percentile(t, 99) for t in (took[tenth:2 * tenth], took[-tenth:]))
        # A fifth is warm-up, and 1,200 at least: until then tables still grow to their sizes.
        warm, end = marks[max(4, 20 * 1200 // n)], marks[-1]
        figure("9", requests=n, grown_kb=end[0] - warm[0], at_each_fifth_kb=",".join(
            str(m[0] - warm[0]) for m in marks[::4]), fds=f"{warm[1]}..{end[1]}",
               threads=f"{warm[2]}..{end[2]}", p99_first_ms=1e3 * first, p99_last_ms=1e3 * last,
               p99_ratio=last / first)
        self.assertLess(end[0] - warm[0], 1024)
        self.assertLessEqual(end[1], warm[1] + n_threads)
        self.assertEqual(end[2], warm[2])
        self.assertLess(last / first, float(os.environ.get("GAMASOT_SOAK_P99", 1.05)))

    @harness.long_only
    @harness.limit(2400)
    def test_200_000_prompts(self):
        with Server("--fake.step_ms", 0, "--fake.kv_blocks", 2048, "--engine.max_seqs", 16) as server:
            def one(i):
                prompt = f"{i} " + "u" * (i * 7 % 300)
                r = server.complete(prompt, 1 + i % 8)
                self.assertEqual(r["choices"][0]["text"], FAKE.text(prompt, 1 + i % 8))
            self.soak(server, int(os.environ.get("GAMASOT_SOAK_N", 200_000)), 8, one)

    @harness.long_only
    @harness.limit(2400)
    def test_3000_prompts_of_the_real_model(self):
        with Server("--model", harness.model_path(), "--kv.memory_mb", 64, backend="native") as server:
            def one(i):
                r = server.complete(f"Fact number {i}: the sea", 8)
                self.assertGreater(r["usage"]["completion_tokens"], 0)
            self.soak(server, 3000, 4, one)


class RealHang07(unittest.TestCase):
    @harness.long_only
    def test_the_real_backend_hangs(self):
        """Its kernel workers are replaced, and the model goes on where it was."""
        with Server("--model", harness.model_path(), "--engine.stall_ms", 1000, "--engine.restart_ms",
                    2000, backend="native", env={"GAMASOT_FAULT": "step:60:HANG"}) as server:
            expected = server.complete("The capital of France is", 8)["choices"][0]["text"]
            statuses = []
            for i in range(40):
                r = server.post("/v1/completions", {"prompt": f"{i} times", "max_tokens": 8})
                statuses.append(r.status)
                if r.status != 200:
                    self.assertIn("stopped answering", r.text)
                    break
            self.assertEqual(statuses.count(503), 1, statuses)
            self.assertEqual(server.complete("The capital of France is", 8)["choices"][0]["text"],
                             expected)
            self.assertEqual(server.metrics()["engine_restarts_total"], 1)
