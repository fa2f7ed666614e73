"""The official Python client against the fake backend, whose every token is known beforehand."""

import math

import openai

import harness
from fake_model import IM_END, IM_START, FakeModel, chat_ids, ids

FAKE = FakeModel()
LN2 = math.log(2)


def client(server, key="none", **kw):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0,
                         timeout=60 * harness.SLOWNESS, **kw)


class OpenAiClient(harness.SharedServer):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ai = client(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.ai.close()
        super().tearDownClass()

    def chat(self, text="Hello", length=12, **kw):
        kw = {"temperature": 0, "max_tokens": length, **kw}
        return self.ai.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": text}], **kw)

    def complete(self, prompt, length=12, **kw):
        kw = {"temperature": 0, "max_tokens": length, **kw}
        return self.ai.completions.create(model="fake", prompt=prompt, **kw)

    def test_models(self):
        models = self.ai.models.list().data
        self.assertEqual([m.id for m in models], ["fake"])
        self.assertEqual(models[0].object, "model")

    def test_chat(self):
        prompt = chat_ids([{"role": "user", "content": "Hello"}])
        r = self.chat()
        self.assertEqual(r.choices[0].message.content, FAKE.text(prompt, 12))
        self.assertEqual(r.choices[0].message.role, "assistant")
        self.assertEqual(r.choices[0].finish_reason, "length")
        self.assertEqual(r.object, "chat.completion")
        self.assertTrue(r.id.startswith("chatcmpl-"))
        self.assertEqual((r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens),
                         (len(prompt), 12, len(prompt) + 12))

    def test_chat_with_system_history_and_parts(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b"}, {"role": "user", "content": "cd é 가마솥"}]
        want = FAKE.text(chat_ids(messages), 9)
        r = self.ai.chat.completions.create(model="fake", messages=messages, temperature=0,
                                            max_completion_tokens=9)
        self.assertEqual(r.choices[0].message.content, want)
        messages[3]["content"] = [{"type": "text", "text": "cd é "}, {"type": "text", "text": "가마솥"}]
        r = self.ai.chat.completions.create(model="fake", messages=messages, temperature=0,
                                            max_tokens=9)
        self.assertEqual(r.choices[0].message.content, want)

    def test_request_id(self):
        raw = self.ai.chat.completions.with_raw_response.create(
            model="fake", messages=[{"role": "user", "content": "id"}], max_tokens=1)
        self.assertEqual(raw.headers["x-request-id"], raw.parse().id)
        self.assertEqual(raw.headers["x-gamasot-class"], "chat")

    def test_stream(self):
        prompt = chat_ids([{"role": "user", "content": "Stream"}])
        chunks = list(self.chat("Stream", 20, stream=True))
        self.assertEqual({c.object for c in chunks}, {"chat.completion.chunk"})
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(text, FAKE.text(prompt, 20))
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason],
                         ["length"])
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")
        self.assertTrue(all(c.usage is None for c in chunks))

    def test_stream_include_usage(self):
        prompt = chat_ids([{"role": "user", "content": "Usage"}])
        chunks = list(self.chat("Usage", 7, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.prompt_tokens, len(prompt))
        self.assertEqual(chunks[-1].usage.completion_tokens, 7)
        self.assertEqual(chunks[-1].usage.total_tokens, len(prompt) + 7)
        self.assertLess(chunks[-1].usage.prompt_tokens_details.cached_tokens, len(prompt))
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_completion_string(self):
        r = self.complete("once upon")
        self.assertEqual(r.object, "text_completion")
        self.assertEqual(r.choices[0].text, FAKE.text("once upon", 12))
        self.assertEqual(r.usage.prompt_tokens, 9)

    def test_completion_default_is_16_tokens(self):
        r = self.ai.completions.create(model="fake", prompt="sixteen")
        self.assertEqual(r.usage.completion_tokens, 16)

    def test_completion_token_ids(self):
        prompt = [72, 105, IM_START, 300, 33]
        r = self.complete(prompt)
        self.assertEqual(r.choices[0].text, FAKE.text(prompt, 12))
        self.assertEqual(r.usage.prompt_tokens, 5)

    def test_completion_arrays(self):
        texts = ["first", "the second", "3"]
        r = self.complete(texts)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2])
        self.assertEqual([c.text for c in r.choices], [FAKE.text(t, 12) for t in texts])
        self.assertEqual(r.usage.prompt_tokens, sum(map(len, texts)))
        self.assertEqual(r.usage.completion_tokens, 36)
        r = self.complete([ids(t) for t in texts])
        self.assertEqual([c.text for c in r.choices], [FAKE.text(t, 12) for t in texts])

    def test_completion_echo(self):
        r = self.complete("echo é", echo=True)
        self.assertEqual(r.choices[0].text, "echo é" + FAKE.text("echo é", 12))
        r = self.complete(["ab", "cd"], echo=True, n=2, seed=3, temperature=1)
        self.assertEqual([c.text[:2] for c in r.choices], ["ab", "ab", "cd", "cd"])

    def test_completion_stream_of_array_with_n_and_echo(self):
        texts = {}
        for chunk in self.complete(["left", "right"], n=2, temperature=1, seed=5, echo=True,
                                   stream=True):
            for c in chunk.choices:
                texts[c.index] = texts.get(c.index, "") + c.text
        self.assertEqual(texts, {i: p + FAKE.text(p, 12, seed=5, choice=i % 2)
                                 for i, p in enumerate(["left", "left", "right", "right"])})

    def test_n(self):
        prompt = chat_ids([{"role": "user", "content": "several"}])
        r = self.chat("several", 10, temperature=0.7, seed=42, n=4)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2, 3])
        self.assertEqual([c.message.content for c in r.choices],
                         [FAKE.text(prompt, 10, 42, k) for k in range(4)])
        self.assertEqual(r.usage.completion_tokens, 40)
        self.assertEqual(r.usage.prompt_tokens, len(prompt))

    def test_many_choices_that_end_at_once(self):
        # Some end before the engine has heard of the last.
        for n in (1, 2):
            for stream in (False, True):
                for _ in range(15):
                    body = {"prompt": ["p%d" % i for i in range(20)], "max_tokens": n, "n": 3,
                            "temperature": 0}
                    if stream:
                        texts = self.server.collect("/v1/completions", body).texts
                    else:
                        r = self.server.ok("/v1/completions", body)
                        texts = {c["index"]: c["text"] for c in r["choices"]}
                        self.assertEqual(r["usage"]["completion_tokens"], 60 * n)
                    self.assertEqual(texts, {i: FAKE.text("p%d" % (i // 3), n) for i in range(60)})

    def test_seeds(self):
        prompt = chat_ids([{"role": "user", "content": "seed"}])
        first = self.chat("seed", 16, temperature=1, seed=7).choices[0].message.content
        self.assertEqual(first, FAKE.text(prompt, 16, 7))
        self.assertEqual(self.chat("seed", 16, temperature=1, seed=7).choices[0].message.content,
                         first)
        self.assertNotEqual(
            self.chat("seed", 16, temperature=1, seed=8).choices[0].message.content, first)
        # Without a seed each request draws its own.
        drawn = {self.chat("seed", 16, temperature=1).choices[0].message.content for _ in range(4)}
        self.assertEqual(len(drawn), 4)

    def test_chat_logprobs(self):
        r = self.chat("lp", 6, logprobs=True, top_logprobs=4)
        content = r.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in content), r.choices[0].message.content)
        for t in content:
            self.assertAlmostEqual(t.logprob, -LN2, 5)
            self.assertEqual(bytes(t.bytes).decode(), t.token)
            self.assertEqual(len(t.top_logprobs), 4)
            self.assertEqual(t.top_logprobs[0].token, t.token)
            for i, top in enumerate(t.top_logprobs):
                self.assertAlmostEqual(top.logprob, -LN2 * (i + 1), 5)
        r = self.chat("lp", 3, logprobs=True)
        self.assertEqual([t.top_logprobs for t in r.choices[0].logprobs.content], [[], [], []])
        self.assertIsNone(self.chat("lp", 3).choices[0].logprobs)

    def test_streamed_logprobs(self):
        tokens = []
        text = ""
        for c in self.chat("lp", 6, logprobs=True, top_logprobs=1, stream=True):
            text += c.choices[0].delta.content or ""
            if c.choices[0].logprobs:
                tokens += c.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in tokens), text)
        self.assertEqual(len(tokens), 6)

    def test_completion_logprobs(self):
        r = self.complete("né", 5, logprobs=3)
        lp = r.choices[0].logprobs
        self.assertEqual("".join(lp.tokens), r.choices[0].text)
        self.assertEqual(lp.text_offset, [0, 1, 2, 3, 4])
        self.assertTrue(all(abs(x + LN2) < 1e-5 for x in lp.token_logprobs))
        self.assertEqual([len(t) for t in lp.top_logprobs], [3] * 5)

    def test_max_tokens(self):
        for n in (1, 2, 31, 32, 33, 500):
            r = self.complete("limit", n)
            self.assertEqual(r.choices[0].text, FAKE.text("limit", n))
            self.assertEqual(r.usage.completion_tokens, n)

    def test_control_tokens_of_the_prompt_are_not_shown(self):
        r = self.complete([IM_START, 65, IM_END], 4, echo=True)
        self.assertEqual(r.choices[0].text, "A" + FAKE.text([IM_START, 65, IM_END], 4))

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.ai.chat.completions.create(model="gpt-99", messages=[
                {"role": "user", "content": "x"}])
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete("a" * 9000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertEqual(caught.exception.param, "prompt")

    def test_cancel_of_a_stream(self):
        stream = self.chat("cancel", 8000, stream=True)
        for i, _ in enumerate(stream):
            if i == 5:
                break
        stream.close()
        self.server.wait_idle()


class StopStrings(harness.SharedServer):
    def setUp(self):
        self.text = FAKE.text("stops", 60)

    def both(self, stop, n=60):
        body = {"prompt": "stops", "max_tokens": n, "temperature": 0, "stop": stop}
        whole = self.server.ok("/v1/completions", body)["choices"][0]
        streamed = self.server.collect("/v1/completions", body)
        self.assertEqual(streamed.text, whole["text"])
        self.assertEqual(streamed.finish[0], whole["finish_reason"])
        return whole["text"], whole["finish_reason"]

    def test_across_tokens(self):
        for at, length in ((10, 1), (10, 2), (17, 5), (3, 20), (0, 1), (0, 3), (59, 1), (55, 5)):
            stop = self.text[at:at + length]
            cut = self.text.index(stop)
            self.assertEqual(self.both(stop), (self.text[:cut], "stop"))

    def test_the_first_of_several(self):
        self.assertEqual(self.both([self.text[30:34], self.text[12:15], "@@"])[0],
                         self.text[:min(self.text.index(self.text[30:34]),
                                        self.text.index(self.text[12:15]))])

    def test_a_held_tail_comes_out_at_the_end(self):
        # All but the last character of the stop string is the text's own end.
        self.assertEqual(self.both(self.text[50:60] + "!"), (self.text, "length"))

    def test_what_only_begins_like_a_stop_string_is_kept(self):
        self.assertEqual(self.both(self.text[20:24] + "@"), (self.text, "length"))

    def test_no_stop(self):
        for stop in ("", [], [""], None):
            self.assertEqual(self.both(stop), (self.text, "length"))

    def test_usage_counts_what_was_generated(self):
        stop = self.text[20:22]
        r = self.server.complete("stops", 60, stop=stop)
        self.assertEqual(r["usage"]["completion_tokens"], self.text.index(stop) + 2)

    def test_a_stopped_choice_frees_its_sequence(self):
        self.server.complete("stops", 5000, stop=self.text[8:12])
        self.server.wait_idle()


class EndOfSequence(harness.SharedServer):
    options = ("--fake.eos_after", 10)

    def test_it_ends_by_itself(self):
        body = {"prompt": "ends", "max_tokens": 50, "temperature": 0}
        r = self.server.ok("/v1/completions", body)
        self.assertEqual(r["choices"][0]["text"], FAKE.text("ends", 9))
        self.assertEqual(r["choices"][0]["finish_reason"], "stop")
        self.assertEqual(r["usage"]["completion_tokens"], 10)
        s = self.server.collect("/v1/completions", body)
        self.assertEqual((s.text, s.finish[0]), (FAKE.text("ends", 9), "stop"))

    def test_max_tokens_comes_first(self):
        r = self.server.complete("ends", 5)
        self.assertEqual(r["choices"][0]["finish_reason"], "length")

    def test_ignore_eos(self):
        r = self.server.complete("ends", 50, ignore_eos=True)
        self.assertEqual(r["choices"][0]["text"], FAKE.text("ends", 50))
        self.assertEqual(r["choices"][0]["finish_reason"], "length")


class Keys(harness.SharedServer):
    options = ("--api-key", "first-key", "--api-key", "second-key")
    key = "first-key"

    def test_keys(self):
        for key in ("first-key", "second-key"):
            with client(self.server, key) as ai:
                self.assertEqual(ai.models.list().data[0].id, "fake")
        for key in ("wrong", "first-ke", "first-keyy", "first-key second-key", "-"):
            with client(self.server, key) as ai:
                with self.assertRaises(openai.AuthenticationError) as caught:
                    ai.models.list()
                self.assertEqual(caught.exception.code, "invalid_api_key")
                self.assertNotIn(key if len(key) > 3 else "first", str(caught.exception))

    def test_without_a_key(self):
        for path in ("/v1/models", "/metrics"):
            r = self.server.get(path, headers={"Authorization": ""})
            self.assert_error(r, 401, code="invalid_api_key")
            self.assertEqual(r.headers["WWW-Authenticate"], "Bearer")
        r = self.server.post("/v1/chat/completions", {}, headers={"Authorization": "Basic eDp5"})
        self.assert_error(r, 401)
        for path in ("/health", "/ready", "/"):
            self.assertEqual(self.server.get(path, headers={"Authorization": ""}).status, 200)

    def test_other_header(self):
        for key, status in (("second-key", 200), ("second", 401)):
            r = self.server.get("/v1/models", headers={"Authorization": "", "X-Api-Key": key})
            self.assertEqual(r.status, status)

    def test_keys_do_not_share_the_prefix_cache(self):
        prompt = "k" * 200
        bodies = [self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4,
                                                       "temperature": 0},
                                   headers={"Authorization": f"Bearer {key}"}).json
                  for key in ("first-key", "second-key", "first-key", "second-key")]
        cached = [b["usage"]["prompt_tokens_details"]["cached_tokens"] for b in bodies]
        self.assertEqual(cached, [0, 0, 192, 192])
        self.assertEqual(len({b["choices"][0]["text"] for b in bodies}), 1)
