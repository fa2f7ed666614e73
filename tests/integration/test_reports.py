"""What others' servers were reported for (docs/reliability.md names the reports)."""

import os
import random
import subprocess
import tempfile
import threading
import time
import unittest

import harness
from fake_model import FakeModel, chars
from harness import Server, in_parallel, wait_until

FAKE = FakeModel()


class Requests(harness.SharedServer):
    options = ("--fake.step_ms", 0, "--context", 50000, "--fake.kv_blocks", 2000,
               "--engine.max_batch_tokens", 4096, "--engine.prefill_chunk", 4096,
               "--engine.max_seqs", 8)

    def goes_on(self):
        self.assertEqual(self.server.complete("goes on", 4)["choices"][0]["text"],
                         FAKE.text("goes on", 4))

    def test_an_empty_prompt_stops_nobody(self):
        for prompt in ("", [], [""], " ", "\n", "\u200b"):
            r = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
            self.assertIn(r.status, (200, 400), prompt)
            if r.status == 400:
                self.assertEqual(r.json["error"]["param"], "prompt")
            self.goes_on()
        for messages in ([], [{"role": "user", "content": ""}], [{"role": "user", "content": []}],
                         [{"role": "system", "content": ""}]):
            r = self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
            self.assertIn(r.status, (200, 400), messages)
            self.goes_on()

    def test_sizes_up_to_the_limit(self):
        for kib in (1, 7, 31, 50, 64, 65, 200, 1000, 4000):
            r = self.server.post("/v1/completions", {"prompt": "a" * (kib << 10), "max_tokens": 1})
            self.assertEqual(r.status, 200 if kib << 10 < 50000 else 400, kib)
        self.goes_on()

    def test_random_tokens_up_to_the_context(self):
        rng = random.Random(harness.seed(3))
        for n in (1, 33, 4097, 40960, 49998):
            prompt = [rng.randrange(256) for _ in range(n)]
            r = self.server.complete(prompt, 1, user=str(n))
            self.assertEqual(r["usage"]["prompt_tokens"], n)
        self.goes_on()

    def test_zero_tokens_with_echo(self):
        for n in (0, -1, 2**31, 2**63 - 1):
            for echo in (True, False):
                r = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": n, "echo": echo})
                self.assert_error(r, 400, "max_tokens")
        self.goes_on()

    def test_descriptions_are_only_text(self):
        """Of tools and schemas: whatever they say, the grammar is the same."""
        rng = random.Random(harness.seed(4))
        nasty = ['"', "\\", "\n", "*/", "(?<=", "[[", "{%", "{{", "<|", "\u0001", "\U0001f372", "#", "//", "%s"]
        for _ in range(40):
            text = "".join(rng.choice(nasty) for _ in range(rng.randint(1, 60)))
            schema = {"type": "object", "description": text, "properties": {
                "a": {"type": "integer", "description": text, "title": text}}}
            r = self.server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "x"}], "max_tokens": 2,
                "tools": [{"type": "function", "function": {
                    "name": "f", "description": text, "parameters": schema}}],
                "tool_choice": rng.choice(["auto", "required"])})
            self.assertIn(r.status, (200, 501), (text, r.body[:300]))  # 501: built without grammars
        self.goes_on()

    def test_abort_and_go_on(self):
        for k in range(1000 if harness.LONG else 100):
            s = self.server.socket()
            s.sendall(self.server.post_bytes("/v1/completions", {
                "prompt": f"abort {k}", "max_tokens": 4000, "stream": True}))
            if k % 2:
                s.recv(100)
            s.close()
            if k % 10 == 0:
                self.goes_on()
        self.server.wait_idle()

    def test_long_in_short_out_shares_its_steps(self):
        """Eight prompts of 2,000 tokens, 16 out: fewer steps together than one after another."""
        def steps(n_threads, tag):
            before = self.server.metrics()["steps_total"]
            in_parallel(n_threads, [lambda k=k: self.server.complete(
                chars(f"{tag} {k} ", 2000), 16, user=f"{tag}{k}") for k in range(8)])
            return self.server.metrics()["steps_total"] - before
        alone = steps(1, "alone")
        self.assertEqual(alone, 8 * 16)
        self.assertLess(steps(8, "beside"), alone)


class Pool(harness.SharedServer):
    options = ("--fake.step_ms", 1, "--fake.kv_blocks", 40, "--engine.max_seqs", 8)

    def test_two_prompts_of_more_than_half_the_pool(self):
        prompts = [chars(f"long {k} ", 800) for k in range(4)]  # of 1,280 tokens

        def one(prompt):
            self.assertEqual(self.server.complete(prompt, 30)["choices"][0]["text"],
                             FAKE.text(prompt, 30))
        in_parallel(4, [lambda p=p: one(p) for p in prompts * 2])


class Health(unittest.TestCase):
    def test_health_while_a_prompt_is_computed(self):
        # Eight steps, of 150 ms each; nothing may wait for the end of one.
        with Server("--fake.prefill_us", 300, "--engine.prefill_chunk", 512) as server:
            answer = threading.Thread(target=lambda: server.complete("p" * 4000, 1))
            answer.start()
            took = []
            server.wait_metric("num_requests_running", 1)
            while answer.is_alive():
                began = time.monotonic()
                self.assertEqual(server.get("/health").status, 200)
                took.append(time.monotonic() - began)
                time.sleep(0.02)
            harness.figure("7 in a prefill", asked=len(took), slowest_ms=1e3 * max(took))
            self.assertGreater(len(took), 8)  # more often than there were steps

    def test_a_thousand_streams_and_health(self):
        with Server("--fake.step_ms", 20, "--server.max_connections_per_address", 2000,
                    "--server.max_queued", 2000) as server:
            body = server.post_bytes("/v1/completions", {"prompt": "many", "max_tokens": 3000,
                                                         "stream": True})
            sockets = [server.socket() for _ in range(1000)]
            for s in sockets:
                s.sendall(body)
            server.wait_admitted(1000)
            for path in ("/health", "/ready", "/metrics", "/v1/models"):
                self.assertEqual(server.get(path).status, 200)
            for s in sockets:
                s.close()
            server.wait_idle()

    def test_healthy_while_the_queue_is_full(self):
        with Server("--fake.step_ms", 20, "--engine.max_seqs", 1, "--server.max_queued", 1) as server:
            body = server.post_bytes("/v1/completions", {"prompt": "full", "max_tokens": 5000})
            sockets = []
            for n in (1, 2):
                sockets.append(server.socket())
                sockets[-1].sendall(body)
                wait_until("it is in", lambda n=n: sum(
                    server.metrics()[f"num_requests_{x}"] for x in ("running", "waiting")) == n)
            self.assertEqual(server.post("/v1/completions", {"prompt": "x"}).status, 429)
            for path in ("/health", "/ready"):
                self.assertEqual(server.get(path).status, 200)
            for s in sockets:
                s.close()

    def test_ready_means_warm(self):
        """What the first request would have waited for has been done: its first step is no special one."""
        model = harness.model_path()
        with Server("--model", model, backend="native") as server:
            self.assertEqual(server.get("/ready").status, 200)
            steps = server.metrics()["steps_total"]
            server.complete("first", 1)
            first = server.metrics()["steps_total"] - steps
            server.complete("second one", 1)
            self.assertEqual(server.metrics()["steps_total"] - steps - first, first)
            log = server.log()
            self.assertIn("ready model=", log)

    def test_it_starts_on_a_full_disk(self):
        folder = tempfile.mkdtemp(prefix="full-", dir=harness.TMP)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder],
                          capture_output=True).returncode != 0:
            self.skipTest("no right to mount a small file system")
        try:
            with open(os.path.join(folder, "ballast"), "wb", 0) as f:
                try:
                    while True:
                        f.write(b"x" * 4096)
                except OSError:
                    pass
            with Server(env={"GAMASOT_STORE_FOLDER": folder}) as server:
                self.assertEqual(server.complete("on a full disk", 3)["choices"][0]["text"],
                                 FAKE.text("on a full disk", 3))
        finally:
            subprocess.run(["umount", folder], check=True)
