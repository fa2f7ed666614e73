"""Client libraries that people already use, over real sockets: text, streams, tools, reasoning."""

import json
import os
import subprocess
import sys

import anthropic
import ollama
import openai

import harness
from scripted import (DOCUMENT, PARAMETERS, PLAIN, REASONING, RESULT, SCHEMA, TOOL, WEATHER,
                      ScriptedServer)

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false",
                  LITELLM_LOG="ERROR")
DOC = json.loads(DOCUMENT)
SEOUL, PARIS = {"city": "Seoul"}, {"city": "Paris"}


def user(text):
    return {"role": "user", "content": text}


class OpenAiPython(ScriptedServer):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ai = openai.OpenAI(base_url=cls.url + "/v1", api_key="none", max_retries=0,
                               timeout=60 * harness.SLOWNESS)

    @classmethod
    def tearDownClass(cls):
        cls.ai.close()
        super().tearDownClass()

    def create(self, messages, **kw):
        return self.ai.chat.completions.create(model="fake", messages=messages, **kw)

    def test_tool_loop(self):
        messages = [user("weather in Seoul?")]
        first = self.create(messages, tools=[TOOL]).choices[0]
        self.assertEqual((first.finish_reason, first.message.content.strip()),
                         ("tool_calls", "Let me look."))
        call = first.message.tool_calls[0]
        self.assertEqual((call.type, call.function.name, json.loads(call.function.arguments)),
                         ("function", "get_weather", SEOUL))
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        last = self.create(messages, tools=[TOOL]).choices[0]
        self.assertEqual((last.message.content, last.finish_reason), (WEATHER, "stop"))

    def test_tools_streamed(self):
        with self.ai.chat.completions.stream(model="fake", messages=[user("weather in both?")],
                                             tools=[TOOL]) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0]
        self.assertEqual(message.finish_reason, "tool_calls")
        self.assertEqual([(c.function.name, json.loads(c.function.arguments))
                          for c in message.message.tool_calls],
                         [("get_weather", SEOUL), ("get_weather", PARIS)])
        self.assertEqual(len({c.id for c in message.message.tool_calls}), 2)

    def test_reasoning(self):
        message = self.create([user("think first")]).choices[0].message
        self.assertEqual((message.reasoning_content.strip(), message.content.strip()),
                         (REASONING, PLAIN))
        parts = [c.choices[0].delta for c in self.create([user("think first")], stream=True)]
        self.assertEqual("".join(getattr(p, "reasoning_content", None) or "" for p in parts).strip(),
                         REASONING)
        self.assertEqual("".join(p.content or "" for p in parts).strip(), PLAIN)

    def test_responses_with_tools(self):
        tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS,
                "strict": False}
        items = [user("weather in Seoul?")]
        first = self.ai.responses.create(model="fake", input=items, tools=[tool])
        self.assertEqual([i.type for i in first.output], ["message", "function_call"])
        call = first.output[1]
        self.assertEqual((call.name, json.loads(call.arguments), call.status),
                         ("get_weather", SEOUL, "completed"))
        items += [*first.output, {"type": "function_call_output", "call_id": call.call_id,
                                  "output": RESULT}]
        last = self.ai.responses.create(model="fake", input=items, tools=[tool])
        self.assertEqual((last.output_text, last.status), (WEATHER, "completed"))

    def test_responses_streamed(self):
        tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS,
                "strict": False}
        with self.ai.responses.stream(model="fake", input="weather in both?",
                                      tools=[tool]) as stream:
            kinds = [e.type for e in stream]
            final = stream.get_final_response()
        self.assertEqual([json.loads(i.arguments) for i in final.output], [SEOUL, PARIS])
        self.assertEqual(kinds.count("response.function_call_arguments.done"), 2)
        with self.ai.responses.stream(model="fake", input="think first") as stream:
            kinds = [e.type for e in stream]
            final = stream.get_final_response()
        self.assertEqual([i.type for i in final.output], ["reasoning", "message"])
        self.assertEqual(final.output[0].content[0].text.strip(), REASONING)
        self.assertEqual(final.output_text.strip(), PLAIN)
        self.assertIn("response.reasoning_text.delta", kinds)


class AnthropicPython(ScriptedServer):
    TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": PARAMETERS}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ai = anthropic.Anthropic(base_url=cls.url, api_key="none", max_retries=0,
                                     timeout=60 * harness.SLOWNESS)

    @classmethod
    def tearDownClass(cls):
        cls.ai.close()
        super().tearDownClass()

    def ask(self, messages, **kw):
        return self.ai.messages.create(model="fake", messages=messages, max_tokens=500, **kw)

    def test_tool_loop(self):
        messages = [user("weather in Seoul?")]
        first = self.ask(messages, tools=[self.TOOL])
        self.assertEqual([b.type for b in first.content], ["text", "tool_use"])
        self.assertEqual(first.stop_reason, "tool_use")
        call = first.content[1]
        self.assertEqual((call.name, call.input), ("get_weather", SEOUL))
        self.assertTrue(call.id.startswith("toolu_"))
        messages += [{"role": "assistant", "content": first.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                   "content": RESULT}]}]
        last = self.ask(messages, tools=[self.TOOL])
        self.assertEqual((last.content[0].text, last.stop_reason), (WEATHER, "end_turn"))

    def test_streamed(self):
        with self.ai.messages.stream(model="fake", messages=[user("weather in both?")],
                                     max_tokens=500, tools=[self.TOOL]) as stream:
            final = stream.get_final_message()
        self.assertEqual([b.input for b in final.content], [SEOUL, PARIS])
        with self.ai.messages.stream(model="fake", messages=[user("think first")],
                                     max_tokens=500) as stream:
            final = stream.get_final_message()
        self.assertEqual([b.type for b in final.content], ["thinking", "text"])
        self.assertEqual(final.content[0].thinking.strip(), REASONING)
        self.assertEqual(final.content[1].text.strip(), PLAIN)
        again = self.ask([user("think first"), {"role": "assistant", "content": final.content},
                          user("greet me")])
        self.assertEqual(again.content[0].text, PLAIN)


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: The city.
    """
    return RESULT if city == "Seoul" else "snow"


class OllamaPython(ScriptedServer):
    def setUp(self):
        self.ollama = ollama.Client(host=self.url, timeout=60 * harness.SLOWNESS)

    def test_tool_loop(self):
        # The client makes the tool's description out of the function.
        messages = [user("weather in Seoul?")]
        first = self.ollama.chat("fake", messages=messages, tools=[get_weather])
        self.assertEqual(first.message.content.strip(), "Let me look.")
        call = first.message.tool_calls[0].function
        self.assertEqual((call.name, call.arguments), ("get_weather", SEOUL))
        self.assertEqual(first.done_reason, "stop")
        messages += [first.message, {"role": "tool", "tool_name": call.name,
                                     "content": get_weather(**call.arguments)}]
        self.assertEqual(self.ollama.chat("fake", messages=messages, tools=[get_weather])
                         .message.content, WEATHER)

    def test_streamed(self):
        parts = list(self.ollama.chat("fake", messages=[user("weather in both?")],
                                      tools=[get_weather], stream=True))
        calls = [c.function for p in parts for c in p.message.tool_calls or []]
        self.assertEqual([c.arguments for c in calls], [SEOUL, PARIS])
        parts = list(self.ollama.chat("fake", messages=[user("think first")], think=True,
                                      stream=True))
        self.assertEqual("".join(p.message.thinking or "" for p in parts).strip(), REASONING)
        self.assertEqual("".join(p.message.content or "" for p in parts).strip(), PLAIN)
        r = self.ollama.generate("fake", "think first", think=True)
        self.assertEqual((r.thinking.strip(), r.response.strip()), (REASONING, PLAIN))

    def test_capabilities(self):
        self.assertIn("tools", self.ollama.show("fake").capabilities)
        self.assertIn(".Tools", self.ollama.show("fake").template)


class LangChain(ScriptedServer):
    def models(self):
        from langchain_ollama import ChatOllama
        from langchain_openai import ChatOpenAI
        yield ChatOllama(model="fake", base_url=self.url, temperature=0, num_ctx=4096)
        yield ChatOpenAI(model="fake", base_url=self.url + "/v1", api_key="none", max_retries=0)

    def test_text(self):
        for model in self.models():
            with self.subTest(model=type(model).__name__):
                self.assertEqual(model.invoke("greet me").content, PLAIN)
                parts = list(model.stream("greet me"))
                self.assertGreater(len(parts), 3)
                self.assertEqual("".join(p.content for p in parts), PLAIN)
                self.assertGreater(model.invoke("greet me").usage_metadata["output_tokens"], 5)

    def test_tool_loop(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        for model in self.models():
            with self.subTest(model=type(model).__name__):
                bound = model.bind_tools([TOOL])
                messages = [HumanMessage("weather in Seoul?")]
                first = bound.invoke(messages)
                self.assertEqual([(c["name"], c["args"]) for c in first.tool_calls],
                                 [("get_weather", SEOUL)])
                messages += [first, ToolMessage(RESULT, tool_call_id=first.tool_calls[0]["id"])]
                self.assertEqual(bound.invoke(messages).content, WEATHER)
                whole = None
                for part in bound.stream("weather in both?"):
                    whole = part if whole is None else whole + part
                self.assertEqual([c["args"] for c in whole.tool_calls], [SEOUL, PARIS])


class LiteLlm(ScriptedServer):
    def targets(self):
        import litellm
        litellm.suppress_debug_info = True
        yield litellm, {"model": "ollama_chat/fake", "api_base": self.url}
        yield litellm, {"model": "openai/fake", "api_base": self.url + "/v1", "api_key": "none"}

    def test_text(self):
        for lib, where in self.targets():
            with self.subTest(model=where["model"]):
                r = lib.completion(messages=[user("greet me")], **where)
                self.assertEqual(r.choices[0].message.content, PLAIN)
                parts = list(lib.completion(messages=[user("greet me")], stream=True, **where))
                self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts), PLAIN)

    def test_tools(self):
        for lib, where in self.targets():
            with self.subTest(model=where["model"]):
                messages = [user("weather in Seoul?")]
                first = lib.completion(messages=messages, tools=[TOOL], **where).choices[0].message
                self.assertEqual(json.loads(first.tool_calls[0].function.arguments), SEOUL)
                messages += [first.model_dump(exclude_none=True),
                             {"role": "tool", "tool_call_id": first.tool_calls[0].id,
                              "content": RESULT}]
                last = lib.completion(messages=messages, tools=[TOOL], **where)
                self.assertEqual(last.choices[0].message.content, WEATHER)


class Node(ScriptedServer):
    def test_openai_and_ollama(self):
        script = harness.ROOT / "scripts/test-node"
        where = subprocess.run(["sh", script, sys.executable], capture_output=True, text=True,
                               timeout=600, check=False)
        self.assertEqual(where.returncode, 0, where.stderr)
        node, modules = where.stdout.split()
        done = subprocess.run([node, os.path.join(modules, "clients.mjs"), self.url],
                              capture_output=True, text=True, timeout=100 * harness.SLOWNESS,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.split(), ["openai", "ollama"])


class Schemas(ScriptedServer):
    """Documents by a schema, through each client's own way of asking for one."""

    def assert_document(self, text):
        self.assertEqual(json.loads(text), DOC)

    def test_openai(self):
        form = {"type": "json_schema",
                "json_schema": {"name": "doc", "schema": SCHEMA, "strict": True}}
        with openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0) as ai:
            for response_format in (form, {"type": "json_object"}):
                r = ai.chat.completions.create(model="fake", messages=[user("as JSON")],
                                               response_format=response_format)
                self.assert_document(r.choices[0].message.content)
                self.assertEqual(r.choices[0].finish_reason, "stop")
                parts = ai.chat.completions.create(model="fake", messages=[user("as JSON")],
                                                   response_format=response_format, stream=True)
                self.assert_document("".join(p.choices[0].delta.content or "" for p in parts))
            r = ai.responses.create(model="fake", input="as JSON", text={
                "format": {"type": "json_schema", "name": "doc", "schema": SCHEMA}})
            self.assert_document(r.output_text)
            # Without a script for it, the fake model writes what the grammar leaves it.
            tools = [{**TOOL["function"], "type": "function", "strict": True}]
            r = ai.responses.create(model="fake", input="x", tools=tools, max_output_tokens=2000,
                                    tool_choice={"type": "function", "name": "get_weather"})
            self.assertEqual([i.name for i in r.output if i.type == "function_call"],
                             ["get_weather"])

    def test_anthropic(self):
        with anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0) as ai:
            r = ai.messages.create(
                model="fake", max_tokens=500, messages=[user("as JSON")],
                output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
            self.assert_document(r.content[0].text)
            tool = {"name": "get_weather", "input_schema": PARAMETERS}
            r = ai.messages.create(model="fake", max_tokens=2000, messages=[user("x")],
                                   tools=[tool], tool_choice={"type": "any"})
            self.assertEqual(r.content[0].name, "get_weather")

    def test_ollama(self):
        client = ollama.Client(host=self.url)
        for form in (SCHEMA, "json"):
            self.assert_document(client.chat("fake", messages=[user("as JSON")], format=form)
                            .message.content)
            parts = client.chat("fake", messages=[user("as JSON")], format=form, stream=True)
            self.assert_document("".join(p.message.content for p in parts))
            self.assert_document(client.generate("fake", "as JSON", format=form).response)

    def test_langchain(self):
        from langchain_ollama import ChatOllama
        from langchain_openai import ChatOpenAI
        for model in (ChatOllama(model="fake", base_url=self.url),
                      ChatOpenAI(model="fake", base_url=self.url + "/v1", api_key="none")):
            with self.subTest(model=type(model).__name__):
                form = {"title": "doc", "description": "A document.", **SCHEMA}
                bound = model.with_structured_output(form, method="json_schema")
                self.assertEqual(bound.invoke("as JSON"), DOC)
                self.assertEqual(list(bound.stream("as JSON"))[-1], DOC)

    def test_litellm(self):
        import litellm
        litellm.suppress_debug_info = True
        form = {"type": "json_schema",
                "json_schema": {"name": "doc", "schema": SCHEMA, "strict": True}}
        for where in ({"model": "ollama_chat/fake", "api_base": self.url},
                      {"model": "openai/fake", "api_base": self.url + "/v1", "api_key": "none"}):
            with self.subTest(model=where["model"]):
                r = litellm.completion(messages=[user("as JSON")], response_format=form, **where)
                self.assert_document(r.choices[0].message.content)

    def test_a_grammar_that_does_not_compile_names_the_dialects_field(self):
        bad = {"type": "object", "properties": {"a": {"type": "what"}}}
        for path, body, says in (
                ("/api/chat", {"format": bad}, "format"),
                ("/v1/responses", {"input": "x", "text": {"format": {
                    "type": "json_schema", "name": "x", "schema": bad}}}, "text.format"),
                ("/v1/messages", {"max_tokens": 9, "output_config": {"format": {
                    "type": "json_schema", "schema": bad}}}, "output_config.format")):
            r = self.server.post(path, {"messages": [user("x")], **body})
            self.assertEqual(r.status, 400, r.body)
            self.assertIn(says, r.text)
            self.assertNotIn("response_format", r.text)
