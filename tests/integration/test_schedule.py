"""Continuous batching as clients see it. Counted in tokens and steps, never in seconds."""

import contextlib
import http.client
import json
import random
import socket
import threading

import harness
from fake_model import FakeModel, chars, chat_ids
from harness import in_parallel, wait_until

FAKE = FakeModel()


class Reader(threading.Thread):
    """Reads a stream and counts its tokens."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.n, self.text, self.finish = 0, "", None
        self.on_token = None
        self.error = None
        self.stopping = False

    def run(self):
        try:
            self.read()
        except (http.client.HTTPException, OSError, AttributeError):
            if not self.stopping:
                raise

    def stop(self):
        """The client goes away."""
        self.stopping = True
        self.stream.connection.sock.shutdown(socket.SHUT_RDWR)
        self.join(20 * harness.SLOWNESS)

    def read(self):
        stream = self.stream = self.server.stream("/v1/completions", self.body)
        for event in stream.events():
            if "error" in event:
                self.error = event["error"]
                continue
            for choice in event["choices"]:
                if choice["text"]:
                    self.text += choice["text"]
                    self.n += 1
                    if self.on_token:
                        self.on_token(self)
                self.finish = choice["finish_reason"] or self.finish
        self.done = stream.done
        stream.close()


class IterationLevel(harness.SharedServer):
    """Each step takes 50 ms and gives each stream a token: streams count steps for one another."""

    options = ("--fake.step_ms", 50)

    def body(self, prompt, n):
        return {"prompt": prompt, "max_tokens": n, "temperature": 0}

    def test_a_new_request_joins_the_running_batch(self):
        background = Reader(self.server, self.body("runs all along", 4000))
        background.start()
        wait_until("the running stream", lambda: background.n >= 3)
        waits = []
        for k in range(8):
            new = Reader(self.server, self.body(f"newcomer {k}", 2))
            seen = {}

            def first(reader, seen=seen):
                seen.setdefault("n", background.n)

            new.on_token = first
            # Right after a token of the running stream, so that no step ends before the request
            # has arrived.
            at = background.n
            wait_until("a token", lambda at=at: background.n > at)
            before = background.n
            new.start()
            new.join(60 * harness.SLOWNESS)
            waits.append(seen["n"] - before)
            self.assertEqual(new.text, FAKE.text(f"newcomer {k}", 2))
        # The step under way at arrival, then the one that it joined.
        self.assertLessEqual(sorted(waits)[len(waits) // 2], 2, waits)
        self.assertLessEqual(max(waits), 4, waits)
        text = background.text
        self.assertEqual(text, FAKE.text("runs all along", len(text)))
        self.assertTrue(background.is_alive())
        background.stop()

    def test_a_finished_one_leaves_at_once(self):
        long = Reader(self.server, self.body("the long one", 40))
        long.start()
        wait_until("the running stream", lambda: long.n >= 2)
        before = long.n
        short = self.server.complete("the short one", 5)
        waited = long.n - before
        self.assertEqual(short["choices"][0]["text"], FAKE.text("the short one", 5))
        self.assertLessEqual(waited, 9)  # of the 38 steps that the long one had left
        wait_until("its seat and blocks free", lambda:
                   self.server.metrics()["num_requests_running"] == 1, 20)
        self.assertTrue(long.is_alive())
        long.join(60 * harness.SLOWNESS)
        self.assertEqual(long.text, FAKE.text("the long one", 40))

    def test_a_long_prompt_does_not_stop_streams(self):
        long = Reader(self.server, self.body("reads on", 60))
        long.start()
        wait_until("the running stream", lambda: long.n >= 2)
        before = long.n
        prompt = chars("a long prompt ", 2560)  # 20 chunks of 128
        r = self.server.complete(prompt, 1)
        got = long.n - before
        self.assertEqual(r["choices"][0]["text"], FAKE.text(prompt, 1))
        self.assertGreaterEqual(got, 18)  # a token in each of those steps
        long.join(60 * harness.SLOWNESS)
        self.assertEqual(long.text, FAKE.text("reads on", 60))

    def test_steps_are_shared(self):
        before = self.server.metrics()["steps_total"]
        in_parallel(16, [lambda k=k: self.server.complete(f"shared {k}", 20) for k in range(16)])
        steps = self.server.metrics()["steps_total"] - before
        self.assertLess(steps, 60)  # one after another they would take 320


class ManyStreams(harness.SharedServer):
    options = ("--fake.step_ms", 0, "--engine.max_seqs", 64)

    def test_64_streams_of_mixed_lengths(self):
        rng = random.Random(64)
        lengths = [1, 2, 31, 32, 33, 2000] + [int(2000 ** rng.random()) for _ in range(56)] + [
            1999, 1500]
        prompts = [chars(f"stream {k} ", rng.choice((1, 10, 31, 32, 33, 400))) for k in range(64)]
        prompts[7] = prompts[5]  # the same twice at the same time

        def one(k):
            return self.server.collect("/v1/completions", {
                "prompt": prompts[k], "max_tokens": lengths[k], "temperature": 0,
                "stream_options": {"include_usage": True}}, timeout_s=100)

        results = in_parallel(64, [lambda k=k: one(k) for k in range(64)])
        for k, got in enumerate(results):
            self.assertEqual(got.text, FAKE.text(prompts[k], lengths[k]), k)
            self.assertEqual(got.finish, {0: "length"})
            self.assertTrue(got.done)
            self.assertEqual(got.usage["prompt_tokens"], len(prompts[k]))
            self.assertEqual(got.usage["completion_tokens"], lengths[k])
            self.assertEqual(got.usage["total_tokens"], len(prompts[k]) + lengths[k])
        self.server.wait_idle()


class FullQueue(harness.SharedServer):
    options = ("--fake.step_ms", 20, "--engine.max_seqs", 2, "--server.max_queued", 3)

    def test_429_with_retry_after(self):
        sockets = []
        body = {"prompt": "fills the queue", "max_tokens": 5000, "stream": True}
        for k in range(5):
            s = self.server.socket()
            s.sendall(self.server.post_bytes("/v1/completions", body))
            sockets.append(s)
            wait_until(f"{k + 1} sequences", lambda k=k: sum(
                self.server.metrics()[f"num_requests_{x}"] for x in ("running", "waiting")) == k + 1)
        for stream in (False, True):
            r = self.server.post("/v1/completions", {"prompt": "x", "stream": stream})
            error = self.assert_error(r, 429)
            self.assertEqual(error["type"], "rate_limit_error")
            self.assertGreaterEqual(int(r.headers["Retry-After"]), 1)
        # All choices of a request, or none.
        sockets.pop().close()
        wait_until("a free place", lambda: self.server.metrics()["num_requests_waiting"] == 2)
        r = self.server.post("/v1/completions", {"prompt": "x", "n": 3})
        self.assert_error(r, 429)
        wait_until("its places free", lambda: self.server.metrics()["num_requests_waiting"] == 2)
        for s in sockets:
            s.close()
        self.server.wait_idle()
        self.assertEqual(self.server.complete("goes on", 4)["choices"][0]["text"],
                         FAKE.text("goes on", 4))


class ConnectionLimits(harness.SharedServer):
    options = ("--server.max_connections", 8, "--server.max_connections_per_address", 4)

    def test_too_many_connections(self):
        open_ones = [self.server.socket() for _ in range(4)]
        for s in open_ones:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200 OK", s.recv(4096))
        with self.server.socket() as s:
            try:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = s.recv(4096)
            except ConnectionError:
                answer = b""
            self.assertNotIn(b"200 OK", answer)
        for s in open_ones:
            s.close()
        wait_until("room again", self.answers)

    def answers(self):
        try:
            return self.server.get("/health").status == 200
        except (ConnectionError, OSError):
            return False
        except Exception as error:  # http.client's own: the connection was closed
            return "RemoteDisconnected" in repr(error) and False


class LongPrompts(harness.SharedServer):
    """Bodies that are rendered and tokenised on a worker thread."""

    options = ("--fake.step_ms", 0, "--context", 65536, "--fake.kv_blocks", 6000,
               "--engine.max_batch_tokens", 4096, "--engine.prefill_chunk", 4096)

    def test_right_answers(self):
        prompts = [chars(f"book {k} ", 20000 + 3000 * k) for k in range(6)]

        def one(k):
            user = {"user": f"reader {k}"}
            if k % 2:
                r = self.server.complete(prompts[k], 8, **user)
                self.assertEqual(r["usage"]["prompt_tokens"], len(prompts[k]))
                return r["choices"][0]["text"], FAKE.text(prompts[k], 8)
            messages = [{"role": "user", "content": prompts[k]}]
            r = self.server.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 8,
                                                        "temperature": 0, **user})
            return r["choices"][0]["message"]["content"], FAKE.text(chat_ids(messages), 8)

        for got, want in in_parallel(3, [lambda k=k: one(k) for k in range(6)]):
            self.assertEqual(got, want)

    def test_clients_that_leave_meanwhile(self):
        data = self.server.post_bytes("/v1/completions", {"prompt": "x" * 60000, "max_tokens": 5})
        for k in range(30):
            with self.server.socket() as s:
                s.sendall(data)
                if k % 3 == 0:
                    s.shutdown(socket.SHUT_WR)
        self.server.wait_idle()
        self.assertEqual(self.server.complete("next", 4)["choices"][0]["text"],
                         FAKE.text("next", 4))

    def test_errors_of_the_worker(self):
        r = self.server.post("/v1/completions", {"prompt": "x" * 70000})
        self.assert_error(r, 400, "prompt", "context_length_exceeded")
        r = self.server.post("/v1/chat/completions", {"messages": [
            {"role": "user", "content": "x" * 30000}, {"role": "user", "content": 5}]})
        self.assert_error(r, 400, "messages[1].content")


class SignsOfLife(harness.SharedServer):
    options = ("--fake.step_ms", 200, "--engine.max_seqs", 1)

    @harness.long_only
    @harness.limit(180)
    def test_while_a_request_waits(self):
        """Clients give up on silent connections: comments in streams, white space elsewhere."""
        first = self.server.socket()
        first.sendall(self.server.post_bytes("/v1/completions", {
            "prompt": "holds the only seat", "max_tokens": 5000, "stream": True}))
        self.server.wait_metric("num_requests_running", 1)
        waiting = Reader(self.server, {"prompt": "waits", "max_tokens": 2, "temperature": 0})
        waiting.start()
        whole = self.server.socket(60)
        whole.sendall(self.server.post_bytes("/v1/completions", {
            "prompt": "waits too", "max_tokens": 2, "temperature": 0}))
        self.assertIn(b"200 OK", whole.recv(65536))
        wait_until("a comment", lambda: waiting.stream.comments > 0, 60)
        first.close()
        waiting.join(60 * harness.SLOWNESS)
        self.assertEqual(waiting.text, FAKE.text("waits", 2))
        answer = b""
        while b"\r\n0\r\n\r\n" not in answer:
            answer += whole.recv(65536)
        self.assertIn(FAKE.text("waits too", 2).encode(), answer)
        whole.close()


class SignsOfLife(harness.unittest.TestCase):
    """Who waits long hears something, in a form that its client takes for nothing."""

    @harness.limit(240)
    def test_waiting_requests_hear_something(self):
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(harness.Server("--engine.max_seqs", 1, "--fake.step_ms",
                                                        20, "--model.context", 4096))
            first = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 4000})
            stack.callback(first.close)
            server.wait_admitted(1)
            body = {"prompt": "x", "max_tokens": 3, "temperature": 0}
            chat = {"model": "fake", "messages": [{"role": "user", "content": "x"}],
                    "options": {"num_predict": 3, "temperature": 0}}
            sockets = {}
            for name, path, asked in (("sse", "/v1/completions", {**body, "stream": True}),
                                      ("json", "/v1/completions", body),
                                      ("ndjson", "/api/chat", chat)):
                sockets[name] = stack.enter_context(server.socket(timeout_s=120))
                sockets[name].sendall(server.post_bytes(path, asked))
            heard = dict.fromkeys(sockets, b"")

            def hear(wanted):
                for name, s in sockets.items():
                    s.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        heard[name] += s.recv(65536)
                return all(want in heard[name] for name, want in wanted.items())
            harness.wait_until("the stream's headers", lambda: hear({"sse": b"\r\n\r\n"}))
            self.assertNotIn(b"HTTP", heard["json"])
            harness.wait_until("a sign for each", lambda: hear(
                {"sse": b": waiting\n\n", "json": b"\r\n\r\n1\r\n \r\n",
                 "ndjson": b"\r\n\r\n1\r\n \r\n"}), timeout_s=90)
            first.close()
            harness.wait_until("the answers", lambda: hear(
                dict.fromkeys(sockets, b"0\r\n\r\n")), timeout_s=60)
            for name, text in heard.items():
                head, _, rest = text.partition(b"\r\n\r\n")
                self.assertIn(b" 200 ", head.split(b"\r\n")[0], name)
                out, at = b"", 0
                while True:
                    size, _, _ = rest[at:].partition(b"\r\n")
                    at += len(size) + 2
                    out += rest[at:at + int(size, 16)]
                    at += int(size, 16) + 2
                    if int(size, 16) == 0:
                        break
                if name == "sse":
                    self.assertTrue(out.endswith(b"data: [DONE]\n\n"))
                else:
                    self.assertTrue(out.startswith(b" "))
                    self.assertNotIn(b"\n ", out)
                    for line in out.decode().strip().split("\n"):
                        json.loads(line)
