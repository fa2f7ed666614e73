"""The Ollama dialect, by hand and with Ollama's own Python client, against the fake backend, whose
every token is known beforehand."""

import datetime
import json
import re

import ollama

import harness
from fake_model import FakeModel, chat_ids, ids

FAKE = FakeModel()
USER = [{"role": "user", "content": "Hello"}]
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = 259, 260, 261
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def client(server, **kw):
    return ollama.Client(host=f"http://127.0.0.1:{server.port}", timeout=60 * harness.SLOWNESS,
                         **kw)


def lines(response):
    """The objects of an NDJSON answer; strict about its form."""
    assert response.body.endswith(b"\n"), response.body[-80:]
    return [json.loads(line) for line in response.body.decode().splitlines()]


class ByHand(harness.SharedServer):
    def generate(self, prompt="Hello", n=5, path="/api/generate", **fields):
        options = {"num_predict": n, "temperature": 0, **fields.pop("options", {})}
        return self.server.post(path, {"model": "fake", "prompt": prompt, "options": options,
                                       **fields})

    def chat(self, messages=None, n=5, **fields):
        return self.generate(None, n, "/api/chat", messages=messages or USER, **fields)

    def test_streams_lines_unless_told_otherwise(self):
        want = FAKE.text(chat_ids(USER), 5)
        r = self.chat()
        self.assertEqual(r.headers["Content-Type"], "application/x-ndjson")
        got = lines(r)
        self.assertEqual("".join(x["message"]["content"] for x in got), want)
        self.assertEqual([x["done"] for x in got], [False] * (len(got) - 1) + [True])
        for x in got:
            self.assertEqual(x["model"], "fake")
            self.assertEqual(x["message"]["role"], "assistant")
            self.assertRegex(x["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")
        for path, call in (("response", self.generate),):
            got = lines(call())
            self.assertEqual("".join(x[path] for x in got), want)
            self.assertNotIn("message", got[0])

    def test_the_last_object_counts_and_times(self):
        prompt = chat_ids(USER)
        for r in (lines(self.chat(n=7))[-1], self.chat(n=7, stream=False).json,
                  lines(self.generate(n=7))[-1], self.generate(n=7, stream=False).json):
            self.assertEqual((r["done"], r["done_reason"]), (True, "length"))
            self.assertEqual((r["prompt_eval_count"], r["eval_count"]), (len(prompt), 7))
            for name in TIMES:
                self.assertIsInstance(r[name], int)
                self.assertGreaterEqual(r[name], 0)
            parts = [r[name] for name in TIMES[1:]]
            self.assertGreater(r["total_duration"], 0)
            self.assertLessEqual(sum(parts), r["total_duration"])  # all are nanoseconds

    def test_not_streamed(self):
        r = self.chat(stream=False)
        self.assertIn("application/json", r.headers["Content-Type"])
        self.assertEqual(r.json["message"], {"role": "assistant",
                                             "content": FAKE.text(chat_ids(USER), 5)})
        self.assertEqual(self.generate(stream=False).json["response"],
                         FAKE.text(chat_ids(USER), 5))

    def test_system_and_raw_and_suffix(self):
        got = self.generate("a", system="Be brief.", stream=False).json["response"]
        self.assertEqual(got, FAKE.text(chat_ids([{"role": "system", "content": "Be brief."},
                                                  {"role": "user", "content": "a"}]), 5))
        self.assertEqual(self.generate("once upon", raw=True, stream=False).json["response"],
                         FAKE.text("once upon", 5))
        # With raw, control tokens may be spelt; without, they are the text of whoever wrote them.
        raw = self.generate("<|im_start|>x", raw=True, stream=False).json
        self.assertEqual(raw["response"], FAKE.text([257] + ids("x"), 5))
        self.assertEqual(raw["prompt_eval_count"], 2)
        self.assertGreater(self.generate("<|im_start|>x", stream=False).json["prompt_eval_count"],
                           len("<|im_start|>x"))
        middle = [FIM_PREFIX] + ids("def f(") + [FIM_SUFFIX] + ids("return x") + [FIM_MIDDLE]
        self.assertEqual(self.generate("def f(", suffix="return x", stream=False).json["response"],
                         FAKE.text(middle, 5))
        self.assertEqual(self.server.complete("def f(", 5, suffix="return x")["choices"][0]["text"],
                         FAKE.text(middle, 5))

    def test_raw_is_not_cut_at_sixteen_tokens(self):
        r = self.server.post("/api/generate", {"prompt": "go", "raw": True, "stream": False,
                                               "options": {"temperature": 0, "num_ctx": 100}})
        self.assertEqual(r.json["response"], FAKE.text("go", 98))
        self.assertEqual(r.json["done_reason"], "length")

    def test_options_reach_the_sampler(self):
        seeded = self.chat(stream=False, options={"temperature": 1, "seed": 7}).json
        self.assertEqual(seeded["message"]["content"], FAKE.text(chat_ids(USER), 5, 7))
        self.assertEqual(self.chat(stream=False, options={"temperature": 1, "seed": 7}).json
                         ["message"], seeded["message"])
        full = FAKE.text(chat_ids(USER), 30)
        r = self.chat(n=30, stream=False, options={"stop": [full[10:12]]}).json
        self.assertEqual(r["message"]["content"], full[:full.index(full[10:12])])
        self.assertEqual(r["done_reason"], "stop")
        # Those that concern loading, or that nobody knows, change nothing.
        r = self.chat(stream=False, options={"num_gpu": 99, "use_mlock": True, "num_thread": 64,
                                             "mirostat": 2, "what": {}, "num_keep": 4})
        self.assertEqual(r.json["message"]["content"], full[:5])
        # Without options the answers differ, as Ollama's default is no greedy one.
        body = {"messages": USER, "stream": False, "options": {"num_predict": 16}}
        drawn = {self.server.ok("/api/chat", body)["message"]["content"] for _ in range(4)}
        self.assertEqual(len(drawn), 4)

    def test_num_ctx_caps_one_request(self):
        n = len(chat_ids(USER))
        r = self.chat(n=500, stream=False, options={"num_ctx": n + 9}).json
        self.assertEqual((r["eval_count"], r["done_reason"]), (9, "length"))
        self.assertEqual(self.chat(n=50, stream=False).json["eval_count"], 50)
        for num_ctx in (1, 8):
            r = self.chat(stream=False, options={"num_ctx": num_ctx})
            self.assertEqual(r.status, 400)
            self.assertIn("num_ctx", r.json["error"])

    def test_wrong_fields_are_named(self):
        options = {"temperature": ["1", -1, True], "num_predict": ["5", 1.5, -3],
                   "num_ctx": [-1, "x"], "top_p": [2, []], "top_k": ["x"], "seed": ["x", 1.5],
                   "stop": [1, {}], "repeat_penalty": [0, "x"], "min_p": [7]}
        for name, values in options.items():
            for value in values:
                for call in (self.chat, self.generate):
                    r = call(options={name: value})
                    self.assertEqual(r.status, 400, (name, value))
                    self.assertEqual(list(r.json), ["error"])
                    self.assertIn(name, r.json["error"])
        for name, values in {"stream": [1, "no"], "options": [1, [], "x"], "keep_alive": [
                [], {}, "soon", "5 minutes", "5x", "-"], "format": [1, "xml", [], True],
                "think": [1, "very", []], "tools": [1, "x", {}], "model": [1, []]}.items():
            for value in values:
                for path, body in (("/api/chat", {"messages": USER}),
                                   ("/api/generate", {"prompt": "x"})):
                    r = self.server.post(path, {**body, name: value})
                    self.assertEqual(r.status, 400, (path, name, value))
                    self.assertIn(name, r.json["error"])
        for name in ("prompt", "system", "suffix", "template", "raw"):
            r = self.server.post("/api/generate", {"prompt": "x", name: 5})
            self.assertEqual(r.status, 400)
            self.assertIn(name, r.json["error"])

    def test_messages(self):
        for value, says in ((5, "messages"), ({}, "messages"), ([1], "messages[0]"),
                            ([{}], "messages[0]"), ([{"role": "im_end"}], "messages[0]"),
                            (USER + [{"role": "user", "content": 5}], "messages[1]"),
                            ([{"role": "assistant", "tool_calls": 5}], "tool_calls"),
                            ([{"role": "assistant", "tool_calls": [{}]}], "tool_calls"),
                            ([{"role": "assistant", "tool_calls": [
                                {"function": {"name": "f", "arguments": 7}}]}], "arguments")):
            r = self.server.post("/api/chat", {"messages": value})
            self.assertEqual(r.status, 400, value)
            self.assertIn(says, r.json["error"])

    def test_images_are_refused_by_name(self):
        message = {**USER[0], "images": ["iVBORw0KGgo="]}
        for r in (self.chat([message]), self.generate(images=["iVBORw0KGgo="])):
            self.assertEqual(r.status, 400)
            self.assertIn("fake", r.json["error"])
            self.assertIn("images", r.json["error"])
        self.assertEqual(self.chat([{**USER[0], "images": []}]).status, 200)
        self.assertEqual(self.chat([{**USER[0], "images": None}]).status, 200)

    def test_an_unknown_model(self):
        for path in ("/api/chat", "/api/generate", "/api/show"):
            r = self.server.post(path, {"model": "llama99:7b", "prompt": "x", "messages": USER})
            self.assertEqual(r.status, 404)
            self.assertIn("llama99:7b", r.json["error"])
        for model in ("fake", "fake:latest", "", None):
            self.assertEqual(self.chat(model=model).status, 200)

    def test_load_and_unload(self):
        for path, key in (("/api/generate", "response"), ("/api/chat", "message")):
            for keep_alive, reason in ((None, "load"), ("5m", "load"), (-1, "load"), ("-1s", "load"),
                                       ("1h30m", "load"), (300, "load"), ("10", "load"),
                                       (0, "unload"), ("0", "unload"), ("0s", "unload")):
                r = self.server.post(path, {"model": "fake:latest", "keep_alive": keep_alive})
                self.assertEqual(r.status, 200)
                self.assertEqual((r.json["done"], r.json["done_reason"]), (True, reason))
                self.assertEqual(r.json["model"], "fake:latest")
                self.assertIn(key, r.json)
        self.assertEqual(self.chat(keep_alive=0, stream=False).json["done_reason"], "length")
        self.assertEqual(self.server.get("/api/ps").json["models"][0]["name"], "fake:latest")

    def test_root(self):
        for method, accept, status in (("GET", "*/*", 200), ("HEAD", "*/*", 200), ("GET", None, 200),
                                       ("GET", "text/html,application/xhtml+xml", 302),
                                       ("HEAD", "text/html", 200), ("GET", "application/json", 200)):
            r = self.server.request(method, "/", headers={"Accept": accept} if accept else {})
            self.assertEqual(r.status, status, (method, accept))
            if status == 302:
                self.assertEqual(r.headers["Location"], "/dashboard")
            elif method == "GET":
                self.assertEqual(r.text, "Ollama is running")

    def test_bodies_of_curl_but_not_of_foreign_pages(self):
        body = {"messages": USER, "stream": False, "options": {"num_predict": 1}}
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self.assertEqual(self.server.post("/api/chat", body, headers=form).status, 200)
        for extra in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://localhost"},
                      {"Referer": "http://localhost/"}):
            self.assertEqual(self.server.post("/api/chat", body, headers={**form, **extra}).status,
                             415)
        r = self.server.post("/api/chat", body, headers={"Origin": "http://evil.example"})
        self.assertEqual(r.status, 403)
        self.assertEqual(self.server.post("/v1/chat/completions", body, headers=form).status, 415)

    def test_show_as_clients_read_it(self):
        r = self.server.ok("/api/show", {"model": "fake"})
        self.assertEqual(self.server.ok("/api/show", {"name": "fake:latest"}), r)
        parameters = {}
        for line in r["parameters"].split("\n"):  # as Continue does it
            key, value = re.match(r'^(\S+)\s+((?:".*")|\S+)$', line).groups()
            parameters.setdefault(key, []).append(value)
        self.assertEqual(parameters["num_ctx"], ["8192"])
        self.assertIn("<|im_end|>", [json.loads(s) for s in parameters["stop"]])
        self.assertIn(".Suffix", r["template"])
        self.assertIn("insert", r["capabilities"])
        self.assertIn("completion", r["capabilities"])
        self.assertEqual(r["model_info"]["general.architecture"], "fake")
        self.assertEqual(r["details"]["format"], "gguf")

    def test_an_end_in_the_middle_cancels(self):
        s = self.server.stream("/api/chat", {"messages": USER, "options": {"num_predict": 8000}})
        s.response.read1(10)
        s.close()
        self.server.wait_idle()


class Truncation(harness.SharedServer):
    def ask(self, messages, num_ctx, n=4):
        return self.server.post("/api/chat", {
            "messages": messages, "stream": False,
            "options": {"num_ctx": num_ctx, "num_predict": n, "temperature": 0}})

    def test_the_oldest_messages_go_and_the_system_message_stays(self):
        system = {"role": "system", "content": "House rules."}
        talk = [{"role": ("user", "assistant")[i % 2], "content": f"turn {i:02}"} for i in range(41)]
        for num_ctx in (150, 300, 900):
            r = self.ask([system] + talk, num_ctx).json
            # It begins with the user again, as templates want it.
            kept = next(k for k in range(0, len(talk), 2)
                        if len(chat_ids([system] + talk[k:])) <= num_ctx - 4)
            want = [system] + talk[kept:]
            self.assertEqual(r["prompt_eval_count"], len(chat_ids(want)))
            self.assertEqual(r["message"]["content"], FAKE.text(chat_ids(want), 4))

    def test_nothing_left_to_drop(self):
        r = self.ask([{"role": "user", "content": "x" * 400}], 256)
        self.assertEqual(r.status, 400)
        self.assertIn("num_ctx", r.json["error"])

    def test_the_other_dialect_does_not_drop(self):
        r = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "a" * 50}] * 4, "num_ctx": 100})
        self.assert_error(r, 400, "messages", code="context_length_exceeded")


class OllamaClient(harness.SharedServer):
    options = ("--fake.eos_after", 9)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ollama = client(cls.server)

    def test_chat(self):
        r = self.ollama.chat("fake", messages=USER, options={"temperature": 0})
        self.assertEqual(r.message.content, FAKE.text(chat_ids(USER), 8))
        self.assertEqual((r.done, r.done_reason, r.eval_count), (True, "stop", 9))
        self.assertIsNone(r.message.tool_calls)

    def test_chat_streamed(self):
        parts = list(self.ollama.chat("fake:latest", messages=USER, stream=True, think=False,
                                      keep_alive="-1s", options={"temperature": 0}))
        self.assertEqual("".join(p.message.content for p in parts), FAKE.text(chat_ids(USER), 8))
        self.assertEqual([p.done for p in parts], [False] * (len(parts) - 1) + [True])

    def test_generate(self):
        r = self.ollama.generate("fake", "Hello", options={"temperature": 0})
        self.assertEqual(r.response, FAKE.text(chat_ids(USER), 8))
        parts = list(self.ollama.generate("fake", "Hello", options={"temperature": 0}, stream=True))
        self.assertEqual("".join(p.response for p in parts), r.response)

    def test_models(self):
        listed = self.ollama.list().models
        self.assertEqual([m.model for m in listed], ["fake:latest"])
        self.assertIsInstance(listed[0].modified_at, datetime.datetime)
        self.assertEqual(listed[0].details.format, "gguf")
        running = self.ollama.ps().models
        self.assertEqual(running[0].model, "fake:latest")
        self.assertGreater(running[0].expires_at, datetime.datetime.now(datetime.timezone.utc))
        shown = self.ollama.show("fake")
        self.assertIn("insert", shown.capabilities)
        self.assertEqual(shown.modelinfo["general.architecture"], "fake")

    def test_errors(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.ollama.chat("nobody", messages=USER)
        self.assertEqual(caught.exception.status_code, 404)
        self.assertIn("nobody", caught.exception.error)
        with self.assertRaises(ollama.ResponseError) as caught:
            list(self.ollama.generate("fake", "x", options={"top_p": 5}, stream=True))
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("options.top_p", caught.exception.error)


class Errors(harness.SharedServer):
    options = ("--server.max_body_kb", 64)

    def test_each_dialect_has_its_own_shape(self):
        for method, path, status in (("GET", "/api/nothing", 404), ("POST", "/api/nothing", 404),
                                     ("GET", "/api/chat", 405)):
            r = self.server.request(method, path)
            self.assertEqual(r.status, status)
            self.assertEqual(set(r.json), {"error"})
            self.assertIsInstance(r.json["error"], str)
        r = self.server.get("/v1/messages/nothing")
        self.assertEqual((r.status, r.json["type"]), (404, "error"))
        self.assertEqual(r.json["error"]["type"], "not_found_error")
        self.assertIsInstance(self.server.get("/v1/nothing").json["error"]["message"], str)

    def test_also_what_the_http_server_refuses_by_itself(self):
        body = b" " * (65 << 10)
        for path, want in (("/api/chat", lambda e: isinstance(e["error"], str)),
                           ("/v1/messages", lambda e: e["error"]["type"] == "request_too_large"),
                           ("/v1/chat/completions", lambda e: "param" in e["error"])):
            r = self.server.post(path, body)
            self.assertEqual(r.status, 413)
            self.assertTrue(want(r.json), r.json)


class FailingStep(harness.SharedServer):
    options = ("--fake.fail_at_step", 4)

    def test_a_failure_in_a_stream_is_an_error_object(self):
        got = lines(self.server.post("/api/chat", {"messages": USER}))
        self.assertEqual(set(got[-1]), {"error"})
        self.assertTrue(all(not x["done"] for x in got[:-1]))


class Keys(harness.SharedServer):
    options = ("--api-key", "the-key")
    key = "the-key"

    def test_the_client_sends_the_key(self):
        with_key = client(self.server, headers={"Authorization": "Bearer the-key"})
        self.assertEqual(with_key.list().models[0].model, "fake:latest")
        for path in ("/api/tags", "/api/version"):
            r = self.server.get(path, headers={"Authorization": ""})
            self.assertEqual(r.status, 401)
            self.assertIsInstance(r.json["error"], str)
        self.assertEqual(self.server.get("/", headers={"Authorization": ""}).status, 200)
