"""Clients that go away: everything they held is free again within one step, nobody else notices."""

import random
import socket
import struct
import threading
import time

import harness
from fake_model import FakeModel, chars
from harness import in_parallel, wait_until

FAKE = FakeModel()


class Cancel(harness.SharedServer):
    """Steps of 30 ms: what is seen to be free soon is free long before the work would have ended."""

    options = ("--fake.step_ms", 30, "--engine.max_seqs", 4, "--engine.prefill_chunk", 16)

    def body(self, prompt="cancel me", n=6000):
        return {"prompt": prompt, "max_tokens": n, "temperature": 0}

    def freed_within_a_step(self):
        """A step may be under way when the client goes, and one may end before we look."""
        steps = self.server.metrics()["steps_total"]
        self.server.wait_idle()
        self.assertLessEqual(self.server.metrics()["steps_total"] - steps, 4)

    def start(self, prompt="cancel me", stream=True):
        s = self.server.socket()
        body = {**self.body(prompt), "stream": stream}
        s.sendall(self.server.post_bytes("/v1/completions", body))
        return s

    def test_in_decode(self):
        for stream in (True, False):
            s = self.start(stream=stream)
            self.server.wait_metric("num_requests_running", 1)
            at = self.server.metrics()["generation_tokens_total"]
            self.server.wait_metric("generation_tokens_total", at + 3)
            s.close()
            self.freed_within_a_step()

    def test_in_prefill(self):
        for stream in (True, False):
            s = self.start(chars("prefill %d " % stream, 4000), stream)  # 250 steps
            self.server.wait_metric("kv_cache_usage_perc", 0.0001)
            s.close()
            self.freed_within_a_step()

    def test_queued(self):
        # Four seats, of which some may be kept for others.
        running = [self.start() for _ in range(4)]
        self.server.wait_admitted(4)
        before = self.server.metrics()["num_requests_running"]
        queued = [self.start(stream=k % 2 == 0) for k in range(5)]
        self.server.wait_admitted(9)
        self.server.wait_metric("num_requests_waiting", 5)
        for s in queued:
            s.close()
        self.server.wait_admitted(4)
        self.assertEqual(self.server.metrics()["num_requests_running"], before)
        for s in running:
            s.close()
        self.freed_within_a_step()

    def test_half_closed(self):
        for stream in (True, False):
            s = self.start(stream=stream)
            self.server.wait_metric("num_requests_running", 1)
            s.shutdown(socket.SHUT_WR)
            self.freed_within_a_step()
            s.close()

    def test_reset(self):
        s = self.start()
        self.server.wait_metric("num_requests_running", 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        self.freed_within_a_step()

    def test_all_choices_of_a_request(self):
        s = self.server.socket()
        body = {"prompt": ["a", "b"], "n": 3, "max_tokens": 6000, "stream": True}
        s.sendall(self.server.post_bytes("/v1/completions", body))
        self.server.wait_admitted(6)
        self.server.wait_metric("num_requests_waiting", 2)
        s.close()
        self.freed_within_a_step()

    def test_at_once(self):
        """Gone before the engine can have begun."""
        for k in range(20):
            self.start(stream=k % 2 == 0).close()
        self.server.wait_idle()

    def test_others_are_not_disturbed(self):
        prompts = [f"survivor {k} " + chars(f"{k}", 40 * k) for k in range(3)]
        stop = threading.Event()

        def disturb():
            rng = random.Random(harness.seed(1))
            while not stop.is_set():
                s = self.start(chars(f"noise {rng.random()}", rng.choice((5, 300))))
                time.sleep(rng.random() * 0.1)
                s.close()

        noise = threading.Thread(target=disturb, daemon=True)
        noise.start()
        try:
            texts = in_parallel(3, [
                lambda p=p: self.server.collect("/v1/completions", self.body(p, 60)).text
                for p in prompts])
        finally:
            stop.set()
            noise.join()
        self.assertEqual(texts, [FAKE.text(p, 60) for p in prompts])

    def test_a_reader_that_stops_is_no_burden(self):
        """Its answer waits in buffers; others go on."""
        s = self.start()
        self.assertEqual(self.server.complete("others", 5)["choices"][0]["text"],
                         FAKE.text("others", 5))
        s.close()
        self.freed_within_a_step()


class Storm(harness.SharedServer):
    """Thousands of requests, of which many are cut at a random moment."""

    options = ("--fake.step_ms", 0, "--fake.kv_blocks", 1024, "--engine.max_seqs", 16)

    def one(self, k):
        rng = random.Random(harness.seed(k))
        prompt = chars(f"storm {k % 40} ", rng.choice((3, 30, 300, 1500)))
        n = rng.choice((1, 2, 10, 50))
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "stream": rng.random() < 0.5}
        if rng.random() >= 0.3:
            if body["stream"]:
                got = self.server.collect("/v1/completions", body)
                text, finish = got.text, got.finish[0]
            else:
                choice = self.server.ok("/v1/completions", body)["choices"][0]
                text, finish = choice["text"], choice["finish_reason"]
            self.assertEqual((text, finish), (FAKE.text(prompt, n), "length"))
            return
        data = self.server.post_bytes("/v1/completions", {**body, "max_tokens": 500})
        with self.server.socket() as s:
            phase = rng.randrange(5)
            if phase == 0:
                data = data[:rng.randrange(len(data))]
            s.sendall(data)
            if phase == 2:
                s.recv(rng.choice((1, 100, 4000)))
            elif phase == 3:
                s.shutdown(socket.SHUT_WR)
                s.recv(1)
            elif phase == 4:
                time.sleep(rng.random() * 0.01)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def storm(self, requests):
        in_parallel(8, [lambda k=k: self.one(k) for k in range(200)])  # warm-up
        self.server.wait_idle()
        wait_until("no connections", lambda: self.server.metrics()["http_connections"] <= 1)
        fds, rss = self.server.n_fds(), self.server.rss_anon_kb()
        in_parallel(8, [lambda k=k: self.one(k) for k in range(requests)])
        self.server.wait_idle()
        wait_until(f"{fds} file descriptors again", lambda: self.server.n_fds() <= fds)
        growth = self.server.rss_anon_kb() - rss
        harness.figure("1", requests=requests, descriptors_more=0, blocks_held=0, grown_kb=growth)
        if not harness.SANITIZED:  # they keep freed memory
            self.assertLess(growth, 6 * 1024, "KiB of anonymous memory more than before")

    def test_storm(self):
        self.storm(2000)

    @harness.long_only
    @harness.limit(600)
    def test_long_storm(self):
        self.storm(4000 if harness.SANITIZED else 20000)


class PrefixCache(harness.SharedServer):
    """Blocks of 32 tokens are published when they are full; a part of one can be reused too."""

    def run_one(self, prompt, n=20, **more):
        r = self.server.complete(prompt, n, **more)
        self.assertEqual(r["choices"][0]["text"], FAKE.text(prompt, n))
        self.assertEqual(r["usage"]["prompt_tokens"], len(prompt))
        return r["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_same_prompt(self):
        for length in (31, 32, 33, 64, 65, 100, 1000):
            prompt = chars(f"same {length} ", length)
            # Positions computed: the prompt and all but the last of 20 tokens.
            full = (length + 19) // 32 * 32
            user = f"same {length}"
            self.assertEqual(self.run_one(prompt, user=user), 0)
            for _ in range(2):
                self.assertEqual(self.run_one(prompt, user=user), min(full, length - 1), length)

    def test_common_beginning(self):
        base = chars("common beginning ", 640)
        self.run_one(base, 1, user="common")
        for common in (1, 5, 31, 32, 33, 63, 64, 100, 500, 639):
            prompt = base[:common] + "\x01" + chars(f"{common} ", 50)
            self.assertEqual(self.run_one(prompt, user="common"), common)

    def test_beginning_of_a_longer_one(self):
        base = chars("a longer one ", 320)
        self.run_one(base, 1, user="longer")
        for length in (2, 32, 33, 64, 100, 319):
            self.assertEqual(self.run_one(base[:length], user="longer"), length - 1)

    def test_next_turn_of_a_chat(self):
        messages = [{"role": "system", "content": chars("You are a pot. ", 200)},
                    {"role": "user", "content": "What do you cook?"}]
        body = {"temperature": 0, "max_tokens": 100, "user": "turns"}
        first = self.server.ok("/v1/chat/completions", {"messages": messages, **body})
        messages.append(first["choices"][0]["message"])
        messages.append({"role": "user", "content": "And then?"})
        second = self.server.ok("/v1/chat/completions", {"messages": messages, **body})
        computed = first["usage"]["total_tokens"] - 1
        self.assertEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"],
                         computed // 32 * 32)

    def test_streams_say_it_too(self):
        prompt = chars("stream usage ", 100)
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "user": "streams",
                "stream_options": {"include_usage": True}}
        cold = self.server.collect("/v1/completions", body)
        hit = self.server.collect("/v1/completions", body)
        self.assertEqual(cold.text, hit.text)
        self.assertEqual([c.usage["prompt_tokens_details"]["cached_tokens"] for c in (cold, hit)],
                         [0, 96])

    def test_users_do_not_share(self):
        prompt = "\x02" + chars("private ", 299)  # begins like no other test's
        self.assertEqual(self.run_one(prompt, user="ann"), 0)
        self.assertEqual(self.run_one(prompt, user="bob"), 0)
        self.assertEqual(self.run_one(prompt), 0)
        self.assertEqual(self.run_one(prompt, user="Ann"), 0)
        for who in ({"user": "ann"}, {"user": "bob"}, {}):
            self.assertEqual(self.run_one(prompt, **who), 288)

    def test_more_users_than_the_table_has_do_not_share(self):
        prompt = chars("crowd ", 70)
        for _ in range(2):
            for k in range(100):
                self.run_one(prompt, 1, user=f"crowd {k}")
        self.assertEqual(self.run_one(prompt, 1, user="one more"), 0)


class SmallPool(harness.SharedServer):
    """Too few blocks for all: eviction and preemption must not change one byte."""

    options = ("--fake.step_ms", 0, "--fake.kv_blocks", 40, "--engine.max_seqs", 8,
               "--engine.prefill_chunk", 32)

    def test_texts_under_pressure(self):
        rng = random.Random(harness.seed(9))
        cases = [(chars(f"{rng.randrange(6)} pressure ", rng.randrange(1, 500)),
                  rng.choice((1, 20, 300))) for _ in range(150)]

        def one(prompt, n):
            r = self.server.complete(prompt, n)
            self.assertEqual(r["choices"][0]["text"], FAKE.text(prompt, n))
            self.assertEqual(r["usage"]["completion_tokens"], n)

        in_parallel(12, [lambda c=c: one(*c) for c in cases])
        self.assertGreater(self.server.metrics()["num_preemptions_total"], 0)

    def test_longer_than_the_pool(self):
        r = self.server.post("/v1/completions", {"prompt": "a" * 1300})
        self.assert_error(r, 400, "prompt")
        got = self.server.collect("/v1/completions", {"prompt": "a", "max_tokens": 5000,
                                                      "temperature": 0})
        self.assertEqual(got.error["type"], "server_error")
        self.assertEqual(got.text, FAKE.text("a", len(got.text)))
        self.assertGreater(len(got.text), 1200)


class NoPrefixCache(harness.SharedServer):
    options = ("--kv.prefix_cache=false",)

    def test_nothing_is_reused(self):
        texts = set()
        for _ in range(3):
            r = self.server.complete("z" * 100, 10)
            self.assertEqual(r["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            texts.add(r["choices"][0]["text"])
        self.assertEqual(texts, {FAKE.text("z" * 100, 10)})


