"""Tool calls, reasoning and constrained output, through the official client.

The fake backend says whatever a grammar leaves it no choice about, so a grammar with one string in
it is a script for the model.
"""

import concurrent.futures
import json
import random
import re

import jsonschema
import openai

import harness
from fake_model import FakeModel, chat_ids
from test_openai import client

FAKE = FakeModel()
USER = [{"role": "user", "content": "Weather in Zürich?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 3}},
        "required": ["city", "days"], "additionalProperties": False}}}
MUSIC = {"type": "function", "function": {"name": "stop_music", "parameters": {
    "type": "object", "properties": {}, "additionalProperties": False}}}
ARGUMENTS = '{"city": "Zürich \\"HB\\"", "days": 2}'
CALL = '{"name": "get_weather", "arguments": ' + ARGUMENTS + "}"


def script(text):
    """A grammar that allows this text alone."""
    return "root ::= " + json.dumps(text, ensure_ascii=False)


class Spoken:
    """An answer, whole or streamed, in one form."""

    def __init__(self, answer):
        self.text, self.reasoning, self.calls, self.finish = "", "", [], None
        self.n_deltas = 0
        if hasattr(answer, "choices"):
            message = answer.choices[0].message
            self.text = message.content or ""
            self.reasoning = getattr(message, "reasoning_content", "") or ""
            self.calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
            self.ids = [c.id for c in message.tool_calls or []]
            self.finish = answer.choices[0].finish_reason
            return
        self.ids = []
        for chunk in answer:
            for choice in chunk.choices:
                self._delta(choice.delta)
                self.finish = choice.finish_reason or self.finish

    def _delta(self, delta):
        self.text += delta.content or ""
        self.reasoning += getattr(delta, "reasoning_content", "") or ""
        for call in delta.tool_calls or []:
            self.n_deltas += 1
            if call.index == len(self.calls):
                self.calls.append((call.function.name, ""))
                self.ids.append(call.id)
            name, arguments = self.calls[call.index]
            self.calls[call.index] = (name, arguments + (call.function.arguments or ""))


class Output(harness.SharedServer):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ai = client(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.ai.close()
        super().tearDownClass()

    def chat(self, stream=False, extra=None, **kw):
        return Spoken(self.ai.chat.completions.create(
            model="fake", messages=USER, stream=stream, extra_body=extra or {},
            **{"max_tokens": 600, "temperature": 0, **kw}))

    def said(self, text, **kw):
        """The same answer whole and streamed."""
        extra = {"grammar": script(text)}
        whole = self.chat(extra=extra, **kw)
        streamed = self.chat(extra=extra, stream=True, **kw)
        self.assertEqual((whole.text, whole.reasoning, whole.calls, whole.finish),
                         (streamed.text, streamed.reasoning, streamed.calls, streamed.finish))
        return streamed

    def refused(self, field, **body):
        body = {"messages": USER, "max_tokens": 50, **body}
        r = self.server.post("/v1/chat/completions", body)
        self.assertEqual((r.status, r.json["error"]["param"]), (400, field), r.text)
        return r.json["error"]["message"]


class Calls(Output):
    def test_a_call_with_text_before_it(self):
        a = self.said(f"Let me see.\n<tool_call>{CALL}</tool_call>", tools=[WEATHER])
        self.assertEqual(a.text, "Let me see.")
        self.assertEqual(a.calls, [("get_weather", ARGUMENTS)])
        self.assertEqual(a.finish, "tool_calls")
        self.assertTrue(a.ids[0].startswith("call_"))
        self.assertGreater(a.n_deltas, 10)  # the arguments came in pieces

    def test_several_calls(self):
        a = self.said(f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "stop_music", '
                      '"arguments": {}}</tool_call>', tools=[WEATHER, MUSIC])
        self.assertEqual(a.calls, [("get_weather", ARGUMENTS), ("stop_music", "{}")])
        self.assertEqual(len(set(a.ids)), 2)

    def test_bare_json_of_a_known_function_only(self):
        self.assertEqual(self.said(CALL, tools=[WEATHER]).calls, [("get_weather", ARGUMENTS)])
        other = self.said('{"name": "Bob", "arguments": {}}', tools=[WEATHER])
        self.assertEqual((other.text, other.finish), ('{"name": "Bob", "arguments": {}}', "stop"))

    def test_without_tools_it_is_text(self):
        text = f"<tool_call>{CALL}</tool_call>"
        self.assertEqual(self.said(text).text, text)
        self.assertEqual(self.said(text, tools=[WEATHER], tool_choice="none").text, text)

    def test_a_cut_call_has_what_there_was(self):
        a = self.chat(extra={"grammar": script(CALL)}, tools=[WEATHER], max_tokens=60)
        self.assertEqual(a.finish, "length")
        self.assertEqual(a.calls[0][0], "get_weather")
        self.assertTrue(ARGUMENTS.startswith(a.calls[0][1]))

    def test_reasoning(self):
        a = self.said("<think>\nHm, 1 < 2.\n</think>\n\nYes.")
        self.assertEqual((a.reasoning, a.text, a.finish), ("Hm, 1 < 2.", "Yes.", "stop"))
        a = self.said(f"<think>Look.</think>{CALL}", tools=[WEATHER])
        self.assertEqual((a.reasoning, a.calls), ("Look.", [("get_weather", ARGUMENTS)]))

    def test_required_and_named_calls_fit_their_schemas(self):
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            for seed in range(8):
                a = self.chat(stream=seed % 2 == 1, tools=[WEATHER, MUSIC], tool_choice=choice,
                              temperature=1, seed=seed, max_tokens=2000)
                self.assertEqual((a.finish, a.text), ("tool_calls", ""))
                for name, arguments in a.calls:
                    tool = {"get_weather": WEATHER, "stop_music": MUSIC}[name]
                    jsonschema.validate(json.loads(arguments), tool["function"]["parameters"])
                if choice != "required":
                    self.assertEqual([name for name, _ in a.calls], ["get_weather"])

    def test_one_call_where_not_parallel(self):
        for seed in range(6):
            a = self.chat(tools=[MUSIC], tool_choice="required", parallel_tool_calls=False,
                          temperature=1, seed=seed)
            self.assertEqual(len(a.calls), 1)

    def test_calls_and_results_in_the_history(self):
        messages = USER + [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "get_weather", "arguments": ARGUMENTS}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            {"role": "user", "content": "Thanks"}]
        r = self.ai.chat.completions.create(model="fake", messages=messages, tools=[WEATHER],
                                            max_tokens=5)
        self.assertEqual(r.choices[0].finish_reason, "length")

    def test_malformed_history_is_refused(self):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for calls in (1, {}, [1], [{}], [{"function": 1}], [{"function": {"name": 1}}],
                      [{**call, "function": {"name": "f", "arguments": 1}}], [{**call, "id": 1}]):
            self.refused("messages[1]", messages=USER + [
                {"role": "assistant", "content": "", "tool_calls": calls}])
        self.refused("messages[1]", messages=USER + [
            {"role": "tool", "content": "x", "tool_call_id": 1}])


def random_schema(rng, depth=0):
    kinds = ["integer", "number", "boolean", "string", "enum", "null", "const"]
    kinds += ["object", "array", "anyOf"] if depth < 3 else []
    kind = rng.choice(["object"] if depth == 0 else kinds)
    if kind == "object":
        names = rng.sample(["a", "b", "ü", "name", "x y", "tags"], rng.randint(1, 3))
        return {"type": "object", "properties": {n: random_schema(rng, depth + 1) for n in names},
                "required": rng.sample(names, rng.randint(0, len(names))),
                "additionalProperties": False}
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": low,
                "maxItems": low + rng.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, 3), random_schema(rng, 3)]}
    return {
        "integer": {"type": "integer", "minimum": -5, "maximum": rng.choice([7, 1000])},
        "number": {"type": "number", "minimum": 0, "exclusiveMaximum": 10},
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "const": {"const": rng.choice([1, "x", [True]])},
        "string": rng.choice([{"type": "string", "maxLength": 6},
                              {"type": "string", "pattern": "^[a-z]{1,3}-[0-9]+$", "maxLength": 9},
                              {"type": "string", "format": "date"}]),
        "enum": {"enum": ["red", 2, None]},
    }[kind]


class Constrained(Output):
    @harness.limit(240)
    def test_a_thousand_streams_with_eight_neighbours(self):
        """Every answer that was not cut fits its schema, and the neighbours say what they would."""
        rng = random.Random(7)
        schemas = [random_schema(rng) for _ in range(40)]
        for schema in schemas[::2]:  # half of them in one line, so that more come to their end
            schema["x-guidance"] = {"whitespace_flexible": False}
        results = {"stop": 0, "length": 0}

        def constrained(i):
            schema = schemas[i % len(schemas)]
            a = self.chat(stream=i % 4 != 0, temperature=1, seed=i, max_tokens=150,
                          response_format={"type": "json_schema", "json_schema": {
                              "name": "x", "schema": schema, "strict": True}})
            if a.finish == "stop":
                jsonschema.validate(json.loads(a.text), schema)
            return a.finish

        def neighbour(i):
            text = f"Neighbour {i}"
            want = FAKE.text(chat_ids([{"role": "user", "content": text}]), 400)
            for _ in range(3):
                r = self.ai.chat.completions.create(
                    model="fake", messages=[{"role": "user", "content": text}], temperature=0,
                    max_tokens=400)
                self.assertEqual(r.choices[0].message.content, want)

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            others = [pool.submit(neighbour, i) for i in range(8)]
            for finish in pool.map(constrained, range(1000)):
                results[finish] += 1
            for other in others:
                other.result()
        self.assertEqual(sum(results.values()), 1000)
        self.assertGreater(results["stop"], 300, results)
        self.server.wait_idle()

    def test_json_object_regex_and_grammars(self):
        for seed in range(5):
            a = self.chat(response_format={"type": "json_object"}, temperature=1, seed=seed,
                          max_tokens=300)
            self.assertTrue(a.text.lstrip().startswith("{"))
            if a.finish == "stop":
                self.assertIsInstance(json.loads(a.text), dict)
            a = self.chat(extra={"regex": "[a-c]{2,4}(-[0-9]{3})+!"}, temperature=1, seed=seed)
            if a.finish == "stop":
                self.assertRegex(a.text, r"\A[a-c]{2,4}(-[0-9]{3})+!\Z")
            a = self.chat(extra={"grammar": 'start: "(" start ")" | "x"'}, temperature=1, seed=seed)
            n = a.text.count("(")
            if a.finish == "stop":
                self.assertEqual(a.text, "(" * n + "x" + ")" * n)

    def test_choices_are_constrained_each(self):
        r = self.ai.chat.completions.create(
            model="fake", messages=USER, n=4, temperature=1, seed=3, max_tokens=40,
            extra_body={"regex": "[0-9]{12}"})
        texts = [c.message.content for c in r.choices]
        self.assertEqual(len(set(texts)), 4)
        for text in texts:
            self.assertRegex(text, r"\A[0-9]{12}\Z")

    def test_completions_too(self):
        r = self.ai.completions.create(model="fake", prompt=["a", "b"], max_tokens=20,
                                       extra_body={"regex": "[0-9]{5}"})
        for choice in r.choices:
            self.assertRegex(choice.text, r"\A[0-9]{5}\Z")

    def test_tools_or_the_answer(self):
        """With tool_choice auto a constrained answer may be a call instead."""
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                  "additionalProperties": False}
        seen = set()
        for seed in range(24):
            a = self.chat(tools=[MUSIC], temperature=1, seed=seed, response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
            seen.add(bool(a.calls))
            if not a.calls and a.finish == "stop":
                jsonschema.validate(json.loads(a.text), schema)
        self.assertEqual(seen, {True, False})

    def test_ends_where_the_grammar_does(self):
        a = self.chat(extra={"regex": "abc", "ignore_eos": True})
        self.assertEqual((a.text, a.finish), ("abc", "stop"))
        a = self.chat(extra={"regex": "abc"}, max_tokens=2)
        self.assertEqual((a.text, a.finish), ("ab", "length"))
        a = self.chat(extra={"regex": "abc"}, stop="c")
        self.assertEqual((a.text, a.finish), ("ab", "stop"))

    def test_errors_name_the_field(self):
        self.refused("regex", regex="(")
        self.refused("grammar", grammar="start: nothing")
        self.refused("response_format", response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "strange"}}})
        self.refused("response_format", response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"$ref": "http://example.com/x"}}})
        self.refused("tools", tool_choice="required", tools=[{"type": "function", "function": {
            "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "odd"}}}}}])

    def test_hostile_schemas_cost_the_sender_only(self):
        hostile = [{"regex": "(" + "a?" * 2000 + "){300}"}, {"regex": "(x+x+)+y" * 2000},
                   {"regex": "[" * 30000}, {"grammar": "start: " + "(" * 30000},
                   {"grammar": "start: start start | " + "start | " * 2000 + '"a"'},
                   {"grammar": "root ::= " + "[a-z]* " * 4000},
                   {"response_format": {"type": "json_object", "schema": {
                       "type": "string", "minLength": 10 ** 8, "maxLength": 10 ** 9}}},
                   {"response_format": {"type": "json_object", "schema": {
                       "allOf": [{"type": "string", "pattern": "a.*b.*c.*" * 20}] * 200}}}]
        want = FAKE.text(chat_ids([{"role": "user", "content": "Hi"}]), 300)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(self.server.post, "/v1/chat/completions",
                                   {"messages": USER, "max_tokens": 20, **h}) for h in hostile]
            r = self.server.ok("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Hi"}], "temperature": 0,
                "max_tokens": 300})
            self.assertEqual(r["choices"][0]["message"]["content"], want)
            for h, future in zip(hostile, futures):
                self.assertIn(future.result().status, (200, 400), h)
        self.assertEqual(self.chat(extra={"regex": "ab"}).text, "ab")

    @harness.long_only
    @harness.limit(900)
    def test_mutated_schemas_and_grammars(self):
        """Whatever is compiled: an answer or a 400 that names the field, and the server lives."""
        rng = random.Random(harness.seed(11))
        words = ['"type"', '"$ref"', '"#"', '"pattern"', "(a+)+", "{1,99999}", "[^", "\\\\p{L}", "allOf",
                 "start: start", "::=", "%json {", "%ignore", "null", "1e99", "-", "/", "|", "\\n"]
        seeds = [json.dumps(random_schema(rng)) for _ in range(40)]
        seeds += ['root ::= "a" [b-z]* | (root "x"){2,3}\n', 'start: A+\nA: /[a-z]+/ | "x" A?\n',
                  "(a|b)*c{2,9}[^x-z]?", "[0-9]+(\\.[0-9]{1,3})?"]

        def mutate(text):
            for _ in range(rng.randint(1, 6)):
                i, j = sorted(rng.randint(0, len(text)) for _ in range(2))
                text = rng.choice([text[:i] + text[j:], text[:j] + text[i:],
                                   text[:i] + rng.choice(words) + text[i:]])
            return text[:20000]

        def send(text):
            bodies = [{"regex": text}, {"grammar": text}]
            try:
                bodies = [{"response_format": {"type": "json_object", "schema": json.loads(text)}}]
            except ValueError:
                pass
            for body in bodies:
                r = self.server.post("/v1/chat/completions",
                                     {"messages": USER, "max_tokens": 12, **body})
                self.assertIn(r.status, (200, 400), (body, r.text))
                if r.status == 400:
                    self.assertIn(r.json["error"]["param"], (*body, "body"), body)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for _ in pool.map(send, [mutate(rng.choice(seeds)) for _ in range(4000)]):
                pass
        self.server.wait_idle()

    def test_streams_that_are_left(self):
        for _ in range(20):
            stream = self.server.stream("/v1/chat/completions", {
                "messages": USER, "max_tokens": 1000, "temperature": 1, "ignore_eos": True,
                "response_format": {"type": "json_object"}})
            next(stream.events())
            stream.close()
        self.server.wait_idle()


class Preempted(harness.unittest.TestCase):
    def test_the_same_text_when_kv_is_short(self):
        """A preempted sequence is computed again, its grammar is where it was."""
        def answer(i):
            r = s.ok("/v1/chat/completions", {
                "messages": [{"role": "user", "content": f"{i} " * (1 + 20 * (i % 7))}],
                "temperature": 0, "max_tokens": 400, "regex": "[a-f]{300}(-[0-9]+)+"})
            return r["choices"][0]["message"]["content"]
        with harness.Server("--fake.step_ms", 1, "--fake.kv_blocks", 40, "--engine.max_seqs", 8, "--sched.policy", "fcfs",
                            "--engine.prefill_chunk", 32) as s:
            alone = [answer(i) for i in range(12)]
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                together = list(pool.map(answer, range(12)))
            self.assertGreater(s.metrics()["num_preemptions_total"], 0)
            self.assertEqual(alone, together)
            for text in together:
                self.assertTrue(re.match(r"[a-f]{300}-[0-9]", text), text)


class RealModel(harness.unittest.TestCase):
    def test_schema_and_required_call(self):
        with harness.Server("--model", harness.model_path(), backend="native") as s:
            with client(s) as ai:
                schema = WEATHER["function"]["parameters"]
                for stream in (False, True):
                    a = Spoken(ai.chat.completions.create(
                        model="", messages=USER, max_tokens=120, temperature=0, stream=stream,
                        response_format={"type": "json_schema", "json_schema": {
                            "name": "weather", "schema": schema, "strict": True}}))
                    self.assertEqual(a.finish, "stop")
                    jsonschema.validate(json.loads(a.text), schema)
                    a = Spoken(ai.chat.completions.create(
                        model="", messages=USER, max_tokens=120, temperature=0, stream=stream,
                        tools=[WEATHER], tool_choice="required", parallel_tool_calls=False))
                    self.assertEqual((a.finish, a.calls[0][0]), ("tool_calls", "get_weather"))
                    jsonschema.validate(json.loads(a.calls[0][1]), schema)
                with self.assertRaises(openai.BadRequestError) as caught:
                    ai.chat.completions.create(model="", messages=USER,
                                               extra_body={"regex": "("})
                self.assertEqual(caught.exception.param, "regex")
