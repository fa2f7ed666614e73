"""Backends, memory and system calls that fail: one request at most pays for it, and never twice."""

import http.client
import json
import signal
import socket
import time
import unittest

import harness
from fake_model import FakeModel, chars
from harness import Server, in_parallel, wait_until

FAKE = FakeModel()
# A crash by one of these is a bug whatever failed before.
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}


class FailingSteps(unittest.TestCase):
    def test_a_failing_step(self):
        """Everything in it ends with an error; what comes next works."""
        with Server("--fake.step_ms", 20, "--fake.fail_at_step", 12) as server:
            def one(k):
                body = {"prompt": f"failing {k}", "max_tokens": 500, "temperature": 0}
                if k % 2:
                    got = server.collect("/v1/completions", body)
                    self.assertTrue(got.done)
                    self.assertEqual(got.text, FAKE.text(f"failing {k}", len(got.text)))
                    self.assertEqual(got.finish, {})
                    return got.error
                r = server.post("/v1/completions", body)
                self.assertEqual(r.status, 500)
                return r.json["error"]
            errors = in_parallel(6, [lambda k=k: one(k) for k in range(6)])
            for error in errors:
                self.assertEqual(error["type"], "server_error")
                self.assertTrue(error["message"])
            server.wait_idle()
            r = server.complete("afterwards", 30)
            self.assertEqual(r["choices"][0]["text"], FAKE.text("afterwards", 30))

    def test_a_failing_prefill_publishes_nothing(self):
        prompt = chars("poisoned ", 200)
        with Server("--fake.fail_at_step", 2) as server:
            self.assertEqual(server.post("/v1/completions", {"prompt": prompt}).status, 500)
            server.wait_idle()
            r = server.complete(prompt, 10)
            self.assertEqual(r["choices"][0]["text"], FAKE.text(prompt, 10))
            # The blocks of the first chunk were good; the second one failed.
            cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual((cached % 32, 0 < cached < 192), (0, True), cached)

    def test_a_failing_item(self):
        """One sequence fails; those beside it go on with the right text."""
        with Server("--fake.step_ms", 20, "--fake.fail_item_at_step", 12) as server:
            def one(k):
                got = server.collect("/v1/completions", {
                    "prompt": f"item {k}", "max_tokens": 60, "temperature": 0})
                self.assertTrue(got.done)
                self.assertEqual(got.text, FAKE.text(f"item {k}", len(got.text)))
                return got
            results = in_parallel(6, [lambda k=k: one(k) for k in range(6)])
            failed = [r for r in results if r.error]
            self.assertEqual(len(failed), 1)
            self.assertEqual(sorted(len(r.text) for r in results)[1:], [60] * 5)
            server.wait_idle()

    def test_a_failing_choice_ends_its_request(self):
        with Server("--fake.step_ms", 10, "--fake.fail_item_at_step", 10) as server:
            r = server.post("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 500})
            self.assertEqual(r.status, 500)
            server.wait_idle()

    def test_a_hanging_backend(self):
        server = Server("--fake.hang_at_step", 3, "--server.drain_timeout_ms", 1000,
                        "--engine.restart_ms", 0)
        try:
            s = server.socket()
            s.sendall(server.post_bytes("/v1/completions", {"prompt": "hangs", "max_tokens": 50,
                                                            "stream": True}))
            self.assertEqual(server.get("/health").status, 200)
            wait_until("/health to see it", lambda: server.get("/health").status == 503, 30)
            self.assertEqual(server.get("/health").json["status"], "stalled")
            self.assertEqual(server.get("/ready").status, 503)
            self.assertEqual(server.get("/metrics").status, 200)
            s.close()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait_exit(20), 0)
        finally:
            server.kill()

    def test_a_hanging_backend_and_a_second_signal(self):
        server = Server("--fake.hang_at_step", 3)
        try:
            s = server.socket()
            s.sendall(server.post_bytes("/v1/completions", {"prompt": "hangs", "max_tokens": 50}))
            server.wait_metric("num_requests_running", 1)
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGINT)
            self.assertIn(server.wait_exit(20), (0, 128 + signal.SIGINT, 128 + signal.SIGTERM))
            s.close()
        finally:
            server.kill()


class FailingCalls(unittest.TestCase):
    """GAMASOT_FAULT makes the n-th call of a kind fail, wherever that is."""

    def torture(self, kind, numbers, served_at_least):
        served = 0
        for n in numbers:
            with self.subTest(fault=f"{kind}:{n}"):
                served += self.one_start(f"{kind}:{n}")
        self.assertGreaterEqual(served, served_at_least)

    def one_start(self, fault):
        """True if the server started. Its end may be an error, but never a crash."""
        try:
            server = Server(env={"GAMASOT_FAULT": fault}, ready=False)
        except AssertionError as error:  # it did not even listen
            self.assertIn("serve ended with", str(error))
            self.assert_said_why(str(error))
            return False
        try:
            wait_until("ready or ended", lambda: self.ended(server) or
                       self.answer(server, "GET", "/ready") is not None, 30)
            answers = [self.generate(server, stream=k % 3 == 1) for k in range(6)]
            if not self.ended(server):
                # One call failed, so one request at most did.
                self.assertGreaterEqual(sum(answers), 5, server.log()[-2000:])
                wait_until("everything free", lambda: self.idle(server))
                server.stop()
                return True
            status = server.wait_exit(20)
            self.assertNotIn(status, CRASHES, server.log()[-2000:])
            self.assertNotEqual(status, 0)
            self.assert_said_why(server.log())
            return False
        finally:
            server.kill()

    def ended(self, server):
        return server.process.poll() is not None or "could not be loaded" in server.log()

    def answer(self, server, method, path, body=None):
        """A 200 answer, or None for what may happen when a call fails: an error in the API's
        shape, or a closed connection."""
        try:
            r = server.request(method, path, body, timeout_s=20)
        except (http.client.HTTPException, ConnectionError):
            return None
        if r.status == 200:
            return r
        self.assertIn(r.status, (500, 503))
        if r.body:  # there may be no memory for it
            self.assertTrue(r.json["error"]["message"])
        return None

    def generate(self, server, stream):
        """True if it was answered; then the answer is right to the last byte."""
        prompts = ["x", chars("torture ", 300)]
        r = self.answer(server, "POST", "/v1/completions", {
            "prompt": prompts, "max_tokens": 5, "n": 2, "stop": ["!!"], "temperature": 0,
            "logprobs": 2, "stream": stream})
        if not r:
            return False
        if not stream:
            texts = {c["index"]: c["text"] for c in r.json["choices"]}
        else:
            texts = {}
            events = r.text.split("\n\n")
            self.assertEqual(events[-2:], ["data: [DONE]", ""])
            for event in events[:-2]:
                event = json.loads(event.removeprefix("data: "))
                if "error" in event:
                    return False
                c = event["choices"][0]
                texts[c["index"]] = texts.get(c["index"], "") + c["text"]
        self.assertEqual(texts, {i: FAKE.text(prompts[i // 2], 5) for i in range(4)})
        return True

    def idle(self, server):
        r = self.answer(server, "GET", "/metrics")
        if not r:
            return False
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                 "http_connections")
        for name in names:
            self.assertRegex(r.text, f"(?m)^gamasot_{name}[ {{]")  # a 200 answer is whole
        return all(line.endswith(" 0") for line in r.text.splitlines()
                   if line.startswith(tuple(f"gamasot_{n}{{" for n in names[:3])))

    def assert_said_why(self, log):
        self.assertNotRegex(log, r"ended with -\d+")
        self.assertRegex(log, r"gamasot: \w|error ")

    def test_allocations(self):
        first = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 26, 30]
        self.torture("alloc", first + list(range(34, 160, 5)), 5)

    def test_reads_writes_accepts(self):
        for kind in ("read", "accept", "mmap"):
            self.torture(kind, (1, 2, 3), 1)
        self.torture("write", (2, 3, 4), 1)  # the first writes the port that we need
        self.torture("thread", (1, 2, 4, 6), 1)
        self.torture("sqlite", (1, 2, 5, 20), 4)  # without its store it serves all the same

    @harness.long_only
    @harness.limit(1800)
    def test_every_allocation(self):
        self.torture("alloc", range(1, 400, 3 if harness.SANITIZED else 1), 50)

    def test_a_wrong_fault_is_told(self):
        for fault in ("nonsense", "alloc:0", "alloc", "alloc:x", "disk:1"):
            status, _, err = harness.cli("serve", env={"GAMASOT_FAULT": fault})
            self.assertEqual(status, 2)
            self.assertIn("GAMASOT_FAULT", err)


class Drain(unittest.TestCase):
    def start_streams(self, server, n, body):
        sockets = []
        for k in range(n):
            s = server.socket(60)
            s.sendall(server.post_bytes("/v1/completions", {**body, "prompt": f"drain {k}"}))
            sockets.append(s)
        return sockets

    def read_to_end(self, s):
        out = b""
        while chunk := s.recv(65536):
            out += chunk
        s.close()
        return out

    def dechunked(self, raw):
        head, _, rest = raw.partition(b"\r\n\r\n")
        self.assertIn(b"chunked", head)
        body = b""
        while True:
            size, _, rest = rest.partition(b"\r\n")
            n = int(size, 16)
            body, rest = body + rest[:n], rest[n + 2:]
            if n == 0:
                self.assertEqual(rest, b"")
                return body

    def test_sigterm_during_50_streams_and_a_long_prefill(self):
        with Server("--fake.step_ms", 20, "--server.drain_timeout_ms", 1000, "--engine.prefill_chunk",
                    16, "--fake.kv_blocks", 16384) as server:
            sockets = self.start_streams(server, 50, {"max_tokens": 3000, "stream": True})
            server.wait_admitted(50)
            prefill = server.socket(60)
            prefill.sendall(server.post_bytes("/v1/completions", {"prompt": "p" * 6000,
                                                                  "max_tokens": 10}))
            server.wait_admitted(51)
            signalled = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            for s in sockets:
                events = self.dechunked(self.read_to_end(s)).decode().split("\n\n")
                self.assertEqual(events[-2:], ["data: [DONE]", ""])
                error = json.loads(events[-3][6:])["error"]
                self.assertIn("shutting down", error["message"])
            answer = self.read_to_end(prefill)
            self.assertTrue(answer.startswith(b"HTTP/1.1 503 "), answer[:100])
            self.assertEqual(server.wait_exit(), 0)
            harness.figure("13", streams=len(sockets), with_an_end=len(sockets) + 1, status=0,
                           after_the_deadline_s=time.monotonic() - signalled - 1)

    def test_short_answers_are_finished(self):
        with Server("--fake.step_ms", 10) as server:
            sockets = self.start_streams(server, 5, {"max_tokens": 80, "stream": True,
                                                     "temperature": 0})
            server.wait_metric("num_requests_running", 5)
            server.process.send_signal(signal.SIGTERM)
            for k, s in enumerate(sockets):
                events = self.dechunked(self.read_to_end(s)).decode().split("\n\n")
                text = "".join(json.loads(e[6:])["choices"][0]["text"] for e in events[:-2])
                self.assertEqual(text, FAKE.text(f"drain {k}", 80))
            self.assertEqual(server.wait_exit(), 0)

    def test_no_new_work_while_draining(self):
        server = Server("--fake.step_ms", 20, "--server.drain_timeout_ms", 3000)
        try:
            idle = server.socket()
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200 OK", idle.recv(4096))
            running = self.start_streams(server, 1, {"max_tokens": 3000, "stream": True})[0]
            server.wait_metric("num_requests_running", 1)
            server.process.send_signal(signal.SIGTERM)
            wait_until("the drain", lambda: "draining" in server.log())
            with self.assertRaises(OSError):
                socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
            self.assertEqual(idle.recv(4096), b"")  # an idle connection is closed
            self.assertIn(b"[DONE]", self.read_to_end(running))
            self.assertEqual(server.wait_exit(), 0)
        finally:
            server.kill()

    def test_a_second_signal_ends_at_once(self):
        server = Server("--fake.step_ms", 20, "--server.drain_timeout_ms", 60000)
        try:
            s = self.start_streams(server, 1, {"max_tokens": 8000, "stream": True})[0]
            server.wait_metric("num_requests_running", 1)
            server.process.send_signal(signal.SIGTERM)
            wait_until("the drain", lambda: "draining" in server.log())
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait_exit(20), 128 + signal.SIGTERM)
            s.close()
        finally:
            server.kill()

    def test_sigint_too(self):
        server = Server()
        server.process.send_signal(signal.SIGINT)
        self.assertEqual(server.wait_exit(), 0)
