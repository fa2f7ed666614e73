"""A real model, SmolLM2-135M-Instruct, through the whole of it: kernels, paged KV, batching."""

import json
import os
import random
import re
import threading
import unittest

import harness
from harness import Server, cli, in_parallel, model_path, wait_until

N_TOKENS = 48
MORE_PROMPTS = [
    "The capital of Korea is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "A list of five kinds of bread:\n1.",
    "Dear neighbours,\n\nNext Saturday we would like to",
    "Water boils at",
    "Der schnellste Weg nach Hause",
    "The recipe needs two eggs, a cup of flour and",
    "In 1969, the first",
    "Q: What is seven times eight?\nA:",
    "She opened the old iron pot and found",
]


def text_of(r):
    return r["choices"][0]["text"]


class Model(harness.SharedServer):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--model", model_path(), "--kv.memory_mb", 384, "--context", 4096,
                            backend="native")
        with open("tests/refs/smollm2_greedy.json", encoding="utf-8") as f:
            cases = json.load(f)["cases"]
        with open("tests/refs/ppl_text.txt", encoding="utf-8") as f:
            long_prompt = f.read(1500)
        cls.prompts = [c["prompt_tokens"] for c in cases] + MORE_PROMPTS + [long_prompt]
        assert len(cls.prompts) == 24
        cls.solo = None

    def greedy(self, k, user, n=N_TOKENS, **more):
        return self.server.complete(self.prompts[k], n, user=user, **more)

    def hold_background(self, held):
        r = self.server.request("PATCH", "/v1/config", {"sched.background_paused": held})
        self.assertEqual(r.status, 200)

    def solo_texts(self):
        """Each prompt alone, nothing cached: what all other ways are compared with."""
        cls = type(self)
        if cls.solo is None:
            cls.solo = [self.greedy(k, f"solo {k}") for k in range(24)]
            for r in cls.solo:
                self.assertEqual(r["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        return [text_of(r) for r in cls.solo]

    def assert_mostly_equal(self, got, want):
        same = sum(g == w for g, w in zip(got, want, strict=True))
        self.assertGreaterEqual(same, len(want) - 2, [(g, w) for g, w in zip(got, want) if g != w])

    @harness.limit(120)
    def test_every_mode_gives_the_same_tokens(self):
        """Prompts beside streams in one step, in turn, and at the same time on other cores."""
        picked = range(4, 24, 2)
        want = [text_of(self.greedy(k, f"mode alone {k}")) for k in picked]
        for mode in ("mixed", "exclusive", "split"):
            r = self.server.request("PATCH", "/v1/config", {"sched.mode": mode})
            self.assertEqual(r.status, 200)
            before = self.server.metrics().get("beside_steps_total", 0)
            got = in_parallel(4, [lambda k=k, m=mode: text_of(self.greedy(k, f"{m} {k}"))
                                  for k in picked])
            self.assert_mostly_equal(got, want)
            beside = self.server.metrics().get("beside_steps_total", 0) - before
            if mode != "split" or os.cpu_count() < 2:
                self.assertEqual(beside, 0)
            else:
                self.assertGreater(beside, 0)
        self.server.request("PATCH", "/v1/config", {"sched.mode": "auto"})

    @harness.limit(240)
    def test_batch_invariance(self):
        """Alone and among 39 others, of which 16 are long."""
        want = self.solo_texts()
        most = [0]
        stop = threading.Event()

        def watch():
            while not stop.wait(0.01):  # they are all there for a moment only
                most[0] = max(most[0], self.server.metrics()["num_requests_running"])

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        # Background, and held until all are there, however slowly this client starts them.
        flex = {"service_tier": "flex"}
        others = [lambda k=k: self.server.complete(f"{k} other things that {k} people say:",
                                                   2 * N_TOKENS, user="others", **flex)
                  for k in range(16)]
        jobs = [lambda k=k: self.greedy(k, f"batch {k}", **flex) for k in range(24)] + others

        def let_go():
            self.server.wait_metric("num_requests_waiting", 40, 60)
            self.hold_background(False)
        self.hold_background(True)
        results = in_parallel(41, [*jobs, let_go])
        stop.set()
        watcher.join()
        self.assertGreater(most[0], 24)  # they did run together
        self.assert_mostly_equal([text_of(r) for r in results[:24]], want)

    @harness.limit(240)
    def test_prefix_cache_hit_equals_cold_run(self):
        want = self.solo_texts()
        got = []
        for k in range(24):
            r = self.greedy(k, f"solo {k}")
            n = r["usage"]["prompt_tokens"]
            used = type(self).solo[k]["usage"]
            computed = used["prompt_tokens"] + used["completion_tokens"] - 1
            self.assertEqual(r["usage"]["prompt_tokens_details"]["cached_tokens"],
                             min(n - 1, computed // 32 * 32))
            got.append(text_of(r))
        self.assert_mostly_equal(got, want)

    @harness.limit(240)
    def test_64_streams_of_mixed_lengths(self):
        want = self.solo_texts()
        rng = random.Random(5)
        longest = 2000 if harness.LONG and not harness.SANITIZED else 300
        lengths = [1, 2, longest] + [max(1, int(longest ** rng.random())) for _ in range(61)]
        rng.shuffle(lengths)

        def one(k):
            return self.server.collect("/v1/completions", {
                "prompt": self.prompts[k % 24], "max_tokens": lengths[k], "temperature": 0,
                "ignore_eos": True, "user": f"stream {k}",
                "stream_options": {"include_usage": True}}, timeout_s=200)

        results = in_parallel(64, [lambda k=k: one(k) for k in range(64)])
        for k, got in enumerate(results):
            self.assertIsNone(got.error)
            self.assertTrue(got.done)
            self.assertEqual(got.finish, {0: "length"})
            self.assertEqual(got.usage["completion_tokens"], lengths[k])
        # Until the end of the shorter one; an answer that ended by itself says nothing beyond.
        pairs = []
        for k, got in enumerate(results):
            solo = want[k % 24]
            n = min(len(solo), len(got.text))
            pairs.append((got.text[:n], solo[:n]))
        same = sum(g == w for g, w in pairs)
        self.assertGreaterEqual(same, 59, [(g, w) for g, w in pairs if g != w])  # 22 of 24
        self.server.wait_idle()

    def test_chat_equals_gamasot_run(self):
        for question in ("What is the capital of France?", "Name three kinds of rice."):
            messages = [{"role": "user", "content": question}]
            body = {"messages": messages, "max_tokens": 32, "temperature": 0}
            r = self.server.ok("/v1/chat/completions", {**body, "user": question})
            answer = r["choices"][0]["message"]["content"]
            streamed = self.server.collect("/v1/chat/completions", {**body, "user": "stream"})
            self.assertEqual(streamed.text, answer)
            self.assertGreater(len(streamed.ids | {""}), 1)
            status, out, err = cli("run", "--model", model_path(), "--kv.memory_mb", "64",
                                   "--max-tokens", "32", question)
            self.assertEqual(status, 0, err)
            self.assertEqual(out.rstrip("\n"), answer.rstrip("\n"))

    def test_chat_uses_the_models_own_template(self):
        r = self.server.ok("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 1, "temperature": 0})
        self.assertEqual(r["usage"]["prompt_tokens"], 37)  # the reference's first case

    def test_first_tokens_and_logprobs_of_the_reference(self):
        with open("tests/refs/smollm2_greedy.json", encoding="utf-8") as f:
            cases = json.load(f)["cases"]
        for case in cases:
            r = self.server.complete(case["prompt_tokens"], 1, logprobs=5)
            logprob = r["choices"][0]["logprobs"]["token_logprobs"][0]
            best = case["steps"][0]["top"]
            self.assertLess(abs(logprob - best[0][1]), 0.3)
            if best[0][1] - best[1][1] > 0.3:
                got = self.server.ok("/tokenize", {"content": text_of(r)})["tokens"]
                self.assertEqual(got[:1], [best[0][0]], case["prompt"][-60:])

    def test_sampling(self):
        body = {"prompt": "Colours of the sea:", "max_tokens": 12, "temperature": 0.8}
        one = [text_of(self.server.ok("/v1/completions", {**body, "seed": 11})) for _ in range(2)]
        self.assertEqual(one[0], one[1])
        drawn = self.server.ok("/v1/completions", {**body, "n": 6})["choices"]
        self.assertGreater(len({c["text"] for c in drawn}), 2)
        greedy = text_of(self.server.complete(body["prompt"], 12))
        top_1 = text_of(self.server.ok("/v1/completions", {**body, "top_k": 1}))
        self.assertEqual(top_1, greedy)
        top_p = text_of(self.server.ok("/v1/completions", {**body, "top_p": 0.0001}))
        self.assertEqual(top_p, greedy)

    def test_logit_bias(self):
        first = self.server.complete("The capital of France is", 1)
        token = self.server.ok("/tokenize", {"content": text_of(first)})["tokens"][0]
        banned = self.server.complete("The capital of France is", 1, logit_bias={token: -100})
        self.assertNotEqual(text_of(banned), text_of(first))
        forced = self.server.complete("The capital of France is", 3, logit_bias={"260": 100})
        self.assertEqual(text_of(forced),
                         self.server.ok("/detokenize", {"tokens": [260] * 3})["content"])

    def test_stop_string(self):
        text = text_of(self.server.complete(MORE_PROMPTS[0], 40))
        stop = text[12:20]
        r = self.server.complete(MORE_PROMPTS[0], 40, stop=stop)
        self.assertEqual(text_of(r), text[:text.index(stop)])
        self.assertEqual(r["choices"][0]["finish_reason"], "stop")

    def test_emoji_and_scripts_stream_as_valid_text(self):
        body = {"prompt": "🍚🔥 가마솥 日本語 emoji: 🍲🍜🥘", "max_tokens": 60, "temperature": 0,
                "logit_bias": {}, "ignore_eos": True}
        whole = text_of(self.server.ok("/v1/completions", body))
        self.assertEqual(self.server.collect("/v1/completions", body).text, whole)

    def test_cancel_in_prefill_and_decode(self):
        with open("tests/refs/ppl_text.txt", encoding="utf-8") as f:
            text = f.read(12000)
        for prompt in (text, "short"):
            s = self.server.socket()
            s.sendall(self.server.post_bytes("/v1/completions", {
                "prompt": prompt, "max_tokens": 1000, "ignore_eos": True, "stream": True}))
            self.server.wait_metric("num_requests_running", 1)
            s.close()
            self.server.wait_idle()


PPL_TEXT = harness.ROOT / "tests/refs/ppl_text.txt"
WINDOWS = {  # tests/refs/README.md
    "smollm2": (22.98, 23.33),
    "gemma3-270m": (19.71, 19.98),
}


def perplexity(model, text=PPL_TEXT, *options, isa="", timeout_s=280):
    status, out, err = cli("perplexity", "--quiet", "--model", model, *options, str(text),
                           env={"GAMASOT_ISA": isa} if isa else None, timeout_s=timeout_s)
    if status != 0:
        raise AssertionError(err)
    return float(re.search(r"perplexity (\d+\.\d+)", out).group(1))


def instruction_sets():
    """Those that this machine can run, the chosen one first."""
    _, _, err = cli("perplexity", "--model", model_path(), str(PPL_TEXT),
                    env={"GAMASOT_ISA": "none such"})
    return re.search(r"possible: (.*)", err).group(1).strip().split(", ")


class Perplexity(unittest.TestCase):
    def check_window(self, name, *options, isa="", timeout_s=280):
        value = perplexity(model_path(name), PPL_TEXT, *options, isa=isa, timeout_s=timeout_s)
        low, high = WINDOWS[name]
        self.assertGreaterEqual(value, low, (options, isa))
        self.assertLessEqual(value, high, (options, isa))

    @harness.limit(300)
    def test_inside_the_window(self):
        """Every type of the attention cache."""
        for kv_type in ("f16", "bf16", "q8"):
            with self.subTest(kv_type=kv_type):
                self.check_window("smollm2", "--kv.type", kv_type)

    @harness.limit(300)
    def test_inside_the_window_gemma(self):
        for kv_type in ("bf16", "q8"):
            with self.subTest(kv_type=kv_type):
                self.check_window("gemma3-270m", "--kv.type", kv_type)

    def one_chunk(self):
        text = harness.TMP / "one_chunk.txt"
        text.write_text(PPL_TEXT.read_text(encoding="utf-8")[:2600], encoding="utf-8")
        return text

    @harness.limit(120)
    def test_every_instruction_set(self):
        """One chunk. Another order of summing moves codes of 8 bits: some tenths of a percent.
        Scalar code would take minutes; the unit tests and the long run below have it."""
        text = self.one_chunk()
        for name in WINDOWS:
            want = perplexity(model_path(name), text)
            for isa in instruction_sets():
                if isa != "scalar":
                    got = perplexity(model_path(name), text, isa=isa)
                    self.assertLess(abs(got / want - 1), 0.02, f"{name} {isa}")

    @harness.long_only
    @harness.limit(7200)
    def test_inside_the_window_on_every_instruction_set(self):
        if harness.SANITIZED:
            self.skipTest("scalar code under a sanitizer would take hours")
        for name in WINDOWS:
            for isa in instruction_sets():
                with self.subTest(model=name, isa=isa):
                    self.check_window(name, isa=isa, timeout_s=3000)

    @harness.limit(120)
    def test_number_of_threads_does_not_matter(self):
        text = self.one_chunk()
        for name in WINDOWS:
            want = perplexity(model_path(name), text, "--threads", "2")
            for threads in ("1", "3"):
                got = perplexity(model_path(name), text, "--threads", threads)
                self.assertLess(abs(got / want - 1), 1e-4, f"{name}, {threads} threads")


class Growth(unittest.TestCase):
    @harness.limit(300)
    def test_2000_requests(self):
        """A pool so small that the warm-up touches all of it."""
        with Server("--model", model_path(), "--kv.memory_mb", 32, "--context", 1024,
                    backend="native") as server:
            def one(k):
                r = server.ok("/v1/completions", {"prompt": [k % 40000 + 100, 260, 5000],
                                                  "max_tokens": 1 + k % 2, "seed": k})
                self.assertLessEqual(r["usage"]["completion_tokens"], 2)

            server.complete([k + 1000 for k in range(1000)], 2)
            in_parallel(8, [lambda k=k: one(k) for k in range(200)])
            server.wait_idle()
            wait_until("no connections", lambda: server.metrics()["http_connections"] <= 1)
            fds, used = server.n_fds(), server.used_kb()
            server.request("PATCH", "/v1/config", {"sched.mode": "split"})  # auto may choose it
            in_parallel(8, [lambda k=k: one(k) for k in range(400 if harness.SANITIZED else 2000)])
            server.wait_idle()
            wait_until(f"{fds} file descriptors again", lambda: server.n_fds() <= fds)
            if not harness.SANITIZED:
                self.assertLess(server.used_kb() - used, 6 * 1024)
