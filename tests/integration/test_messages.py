"""Anthropic's messages and OpenAI's responses with their own Python clients, and by hand."""

import anthropic
import openai

import harness
from fake_model import FakeModel, chat_ids

FAKE = FakeModel()
USER = [{"role": "user", "content": "Hello"}]


def prompt(*turns):
    return chat_ids([{"role": role, "content": content} for role, content in turns])


class Messages(harness.SharedServer):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ai = anthropic.Anthropic(base_url=f"http://127.0.0.1:{cls.server.port}", api_key="none",
                                     max_retries=0, timeout=60 * harness.SLOWNESS)

    @classmethod
    def tearDownClass(cls):
        cls.ai.close()
        super().tearDownClass()

    def create(self, messages=None, n=6, **kw):
        return self.ai.messages.create(model="fake", messages=messages or USER, max_tokens=n,
                                       extra_body={"temperature": 0}, **kw)

    def test_text(self):
        r = self.create(system="Be brief.")
        want = prompt(("system", "Be brief."), ("user", "Hello"))
        self.assertEqual([b.type for b in r.content], ["text"])
        self.assertEqual(r.content[0].text, FAKE.text(want, 6))
        self.assertEqual((r.role, r.type, r.model, r.stop_reason),
                         ("assistant", "message", "fake", "max_tokens"))
        self.assertTrue(r.id.startswith("msg_"))
        self.assertEqual(r.usage.input_tokens + r.usage.cache_read_input_tokens, len(want))
        self.assertEqual(r.usage.output_tokens, 6)

    def test_cached_tokens_are_counted_apart(self):
        text = "c" * 300
        n = len(prompt(("user", text)))
        for least, most in ((0, 20), (288, n - 1)):  # the beginning of other tests' prompts is there
            u = self.create([{"role": "user", "content": text}]).usage
            self.assertTrue(least <= u.cache_read_input_tokens <= most, u)
            self.assertEqual(u.input_tokens + u.cache_read_input_tokens, n)

    def test_blocks_become_messages(self):
        r = self.create([
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {
                "type": "ephemeral"}}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm",
                                               "signature": ""}, {"type": "text", "text": "c"}]},
            {"role": "user", "content": "d"}],
            system=[{"type": "text", "text": "S1 "}, {"type": "text", "text": "S2"}])
        self.assertEqual(r.content[0].text, FAKE.text(prompt(
            ("system", "S1 S2"), ("user", "ab"), ("assistant", "c"), ("user", "d")), 6))

    def test_results_of_tools_come_before_what_the_user_adds(self):
        r = self.create([
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "get",
                                               "input": {"city": "Seoul"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
                    {"type": "text", "text": "rain"}]},
                {"type": "text", "text": "and now?"}]}])
        self.assertEqual(r.content[0].text, FAKE.text(prompt(
            ("user", "weather?"), ("assistant", ""), ("tool", "rain"), ("user", "and now?")), 6))

    def test_stream(self):
        with self.ai.messages.stream(model="fake", messages=USER, max_tokens=20,
                                     extra_body={"temperature": 0}) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        self.assertEqual(final.content[0].text, FAKE.text(chat_ids(USER), 20))
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 20))
        raw = [k for k in kinds if k != "text"]  # which the client derives
        self.assertEqual(raw[:2], ["message_start", "content_block_start"])
        self.assertEqual(raw[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(set(raw[2:-3]), {"content_block_delta"})

    def test_stop_sequence(self):
        full = FAKE.text(chat_ids(USER), 40)
        stop = full[20:22]
        r = self.create(n=40, stop_sequences=["@@", stop])
        self.assertEqual(r.content[0].text, full[:full.index(stop)])
        self.assertEqual((r.stop_reason, r.stop_sequence), ("stop_sequence", stop))

    def test_count_tokens(self):
        r = self.ai.messages.count_tokens(model="fake", messages=USER, system="S")
        self.assertEqual(r.input_tokens, len(prompt(("system", "S"), ("user", "Hello"))))
        long = [{"role": "user", "content": "x" * 40000}]  # counted by a worker, beyond the context
        self.assertEqual(self.ai.messages.count_tokens(model="fake", messages=long).input_tokens,
                         len(prompt(("user", "x" * 40000))))

    def test_errors(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": "iVBORw0KGgo="}}
        for body, says in [
                ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
                ({"messages": []}, "messages"), ({"messages": 5}, "messages"),
                ({"messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
                ({"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
                ({"messages": [{"role": "user", "content": [image]}]}, "fake"),
                ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "tool_use"),
                ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "input"),
                ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
                 "tool_use_id"),
                ({"system": 5}, "system"), ({"tools": 5}, "tools"), ({"tools": [5]}, "tools[0]"),
                ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "web_search"),
                ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0]"),
                ({"tool_choice": {"type": "maybe"}}, "tool_choice"),
                ({"thinking": {"type": "much"}}, "thinking"), ({"temperature": "hot"}, "temperature"),
                ({"output_config": 5}, "output_config"),
                ({"output_config": {"format": {"type": "json_schema"}}}, "schema"),
                ({"stop_sequences": [5]}, "stop"), ({"stream": "yes"}, "stream")]:
            r = self.server.post("/v1/messages", {"max_tokens": 5, "messages": USER, **body})
            self.assertEqual(r.status, 400, body)
            self.assertEqual((r.json["type"], r.json["error"]["type"]),
                             ("error", "invalid_request_error"))
            self.assertIn(says, r.json["error"]["message"], body)
        with self.assertRaises(anthropic.NotFoundError):
            self.ai.messages.create(model="claude-99", messages=USER, max_tokens=5)

    def test_a_long_user_id_is_no_error(self):
        for user_id in ("u" * 500, "가" * 200, "short", ""):
            self.assertEqual(self.create(metadata={"user_id": user_id}).usage.output_tokens, 6)


class Keys(harness.SharedServer):
    options = ("--api-key", "the-key")
    key = "the-key"

    def test_the_header_of_this_dialect(self):
        for key, right in (("the-key", True), ("wrong", False)):
            with anthropic.Anthropic(base_url=f"http://127.0.0.1:{self.server.port}", api_key=key,
                                     max_retries=0) as ai:
                if right:
                    self.assertEqual(ai.messages.create(model="fake", messages=USER, max_tokens=3)
                                     .usage.output_tokens, 3)
                else:
                    with self.assertRaises(anthropic.AuthenticationError):
                        ai.messages.create(model="fake", messages=USER, max_tokens=3)


class FailingStep(harness.SharedServer):
    options = ("--fake.fail_at_step", 4)

    def test_an_error_event(self):
        text = self.server.post("/v1/messages", {"max_tokens": 50, "messages": USER,
                                                 "stream": True}).text
        self.assertIn("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"",
                      text)
        self.assertNotIn("message_stop", text)


class Responses(harness.SharedServer):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ai = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none",
                               max_retries=0, timeout=60 * harness.SLOWNESS)

    @classmethod
    def tearDownClass(cls):
        cls.ai.close()
        super().tearDownClass()

    def create(self, input_="Hello", n=6, **kw):
        return self.ai.responses.create(model="fake", input=input_, max_output_tokens=n,
                                        **{"temperature": 0, **kw})

    def test_text(self):
        r = self.create(instructions="Be brief.", metadata={"a": "b"}, store=True)
        want = prompt(("system", "Be brief."), ("user", "Hello"))
        self.assertEqual(r.output_text, FAKE.text(want, 6))
        self.assertEqual((r.object, r.status, r.incomplete_details.reason),
                         ("response", "incomplete", "max_output_tokens"))
        self.assertEqual((r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens),
                         (len(want), 6, len(want) + 6))
        self.assertEqual((r.instructions, r.metadata, r.store), ("Be brief.", {"a": "b"}, False))
        self.assertEqual([i.type for i in r.output], ["message"])
        self.assertTrue(r.id.startswith("resp_"))

    def test_items(self):
        r = self.create([
            {"role": "developer", "content": "D"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "b", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"role": "user", "content": "c"}])
        self.assertEqual(r.output_text, FAKE.text(prompt(
            ("developer", "D"), ("user", "a"), ("assistant", "b"), ("tool", "done"),
            ("user", "c")), 6))

    def test_its_own_output_can_be_sent_back(self):
        first = self.create("one")
        again = self.create([{"role": "user", "content": "one"}, *first.output,
                             {"role": "user", "content": "two"}])
        self.assertEqual(again.output_text, FAKE.text(prompt(
            ("user", "one"), ("assistant", first.output_text), ("user", "two")), 6))

    def test_stream(self):
        events = list(self.create(n=12, stream=True))
        kinds = [e.type for e in events]
        self.assertEqual(kinds[:4], ["response.created", "response.in_progress",
                                     "response.output_item.added", "response.content_part.added"])
        self.assertEqual(kinds[-4:], ["response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", "response.incomplete"])
        self.assertEqual(set(kinds[4:-4]), {"response.output_text.delta"})
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        want = FAKE.text(chat_ids(USER), 12)
        self.assertEqual("".join(e.delta for e in events if e.type.endswith("text.delta")), want)
        self.assertEqual(events[-4].text, want)
        final = events[-1].response
        self.assertEqual(final.output_text, want)
        self.assertEqual(final.output[0].id, events[2].item.id)
        self.assertEqual(final.usage.output_tokens, 12)

    def test_the_clients_own_collector(self):
        with self.ai.responses.stream(model="fake", input="Hello", max_output_tokens=9,
                                      temperature=0) as stream:
            for _ in stream:
                pass
            # The client collects completed answers only; this one was cut.
        self.assertEqual(self.create(n=9).output_text, FAKE.text(chat_ids(USER), 9))

    def test_errors(self):
        for body, param in [
                ({"previous_response_id": "resp_1"}, "previous_response_id"),
                ({"conversation": "conv_1"}, "conversation"), ({"background": True}, "background"),
                ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"),
                ({"input": [5]}, "input[0]"), ({"input": [{"role": "user"}]}, "input[0]"),
                ({"input": [{"role": "im_end", "content": "x"}]}, "input[0]"),
                ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
                ({"input": [{"type": "function_call"}]}, "input[0]"),
                ({"input": [{"type": "function_call_output"}]}, "input[0]"),
                ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
                ({"instructions": 5}, "instructions"), ({"tools": 5}, "tools"),
                ({"tools": [{"type": "web_search"}]}, "tools[0]"),
                ({"tools": [{"type": "function"}]}, "tools[0]"),
                ({"tool_choice": {"type": "mcp"}}, "tool_choice"), ({"text": 5}, "text"),
                ({"text": {"format": {"type": "xml"}}}, "text.format"),
                ({"temperature": "hot"}, "temperature"), ({"stream": 1}, "stream")]:
            r = self.server.post("/v1/responses", {"input": "x", **body})
            self.assert_error(r, 400, param)
        r = self.server.post("/v1/responses", {"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "http://x/y.png"}]}]})
        self.assert_error(r, 400, "input[0]", says="fake")

    def test_a_cancelled_stream_frees_its_sequence(self):
        for i, _ in enumerate(stream := self.create(n=8000, stream=True)):
            if i == 8:
                break
        stream.close()
        self.server.wait_idle()
