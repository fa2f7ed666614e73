"""What the programs of docs/guides send, as they send it: the guides say no more than is tried here."""

import asyncio
import json
import unittest

import ollama
import openai

import harness
from harness import ROOT, Server, SharedServer, cli

TURN_ON = {"type": "function", "function": {
    "name": "HassTurnOn", "description": "Turns on a device",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}}}
CLASSIFIED = {"type": "object", "required": ["title", "tags"], "properties": {
    "title": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}}
QUESTION = [{"role": "system", "content": "You are a voice assistant for Home Assistant."},
            {"role": "user", "content": "turn on the light"}]


class Requests(SharedServer):
    def setUp(self):
        self.model = self.server.get("/api/tags").json["models"][0]["name"]
        self.url = f"http://127.0.0.1:{self.server.port}"

    def lines(self, path, body):
        r = self.server.post(path, body)
        self.assertEqual(200, r.status, r.text)
        return [json.loads(line) for line in r.text.splitlines()]

    def test_home_assistant(self):
        """The library that its integration is made of, with the arguments that it gives."""
        async def talk():
            client = ollama.AsyncClient(host=self.url)
            names = [m.model for m in (await client.list()).models]
            stream = await client.chat(model=names[0], messages=QUESTION, tools=[TURN_ON], stream=True,
                                       keep_alive="-1s", options={"num_ctx": 8192, "num_predict": 8})
            return [part async for part in stream]
        parts = asyncio.run(talk())
        self.assertTrue(parts[-1].done)
        self.assertTrue("".join(p.message.content or "" for p in parts))

    def test_open_webui_as_ollama_and_as_openai(self):
        self.assertRegex(self.server.get("/api/version").json["version"], r"^\d+\.\d+")
        last = self.lines("/api/chat", {"model": self.model, "messages": QUESTION, "stream": True,
                                        "options": {"num_predict": 4}, "metadata": {"x": "y"}})[-1]
        self.assertTrue(last["done"])
        got = self.server.collect("/v1/chat/completions", {
            "model": self.model, "messages": QUESTION, "max_tokens": 4,
            "stream_options": {"include_usage": True}})
        self.assertEqual(4, got.usage["completion_tokens"])
        title = self.server.post("/v1/chat/completions", {
            "model": self.model, "max_tokens": 4, "stream": False, "messages": [
                {"role": "user", "content": "### Task:\nGenerate a concise title"}]})
        self.assertEqual("utility", title.headers["X-Gamasot-Class"])

    def test_continue(self):
        shown = self.server.ok("/api/show", {"name": self.model})
        self.assertIn("template", shown)
        chat = self.lines("/api/chat", {"model": self.model, "messages": QUESTION, "keep_alive": 1800,
                                        "options": {"num_predict": 4, "num_ctx": 4096}})
        self.assertTrue(chat[-1]["done"])
        # Completion while somebody types: the template of the model's family is the client's.
        fim = self.lines("/api/generate", {
            "model": self.model, "prompt": "<|fim_prefix|>def f(<|fim_suffix|>)<|fim_middle|>",
            "raw": True, "stream": True, "keep_alive": 1800,
            "options": {"num_predict": 4, "stop": ["<|endoftext|>"], "num_ctx": 4096}})
        self.assertTrue(fim[-1]["done"])

    def test_paperless_ngx(self):
        status = self.server.post("/api/chat", {
            "model": self.model, "stream": False, "messages": QUESTION, "format": CLASSIFIED,
            "options": {"num_ctx": 8192, "num_predict": 200}}).status
        forced = self.server.post("/v1/chat/completions", {
            "model": self.model, "messages": QUESTION, "max_tokens": 200,
            "tools": [{"type": "function", "function": {
                "name": "DocumentClassifierSchema", "parameters": CLASSIFIED}}],
            "tool_choice": {"type": "function", "function": {"name": "DocumentClassifierSchema"}}})
        # The made-up model ends no JSON by itself; that the shape is taken is what is asked here.
        self.assertEqual((200, 200), (status, forced.status), forced.text)

    def test_n8n(self):
        """Its nodes are LangChain's: OpenAI's and Ollama's."""
        from langchain_ollama import ChatOllama
        from langchain_openai import ChatOpenAI
        a = ChatOpenAI(base_url=f"{self.url}/v1", api_key="none", model=self.model, max_tokens=4)
        self.assertTrue(a.invoke("hello").content)
        b = ChatOllama(base_url=self.url, model=self.model, num_predict=4)
        self.assertTrue(b.invoke("hello").content)
        raw = self.server.ok("/v1/chat/completions", {
            "model": self.model, "messages": [{"role": "user", "content": "hello"}],
            "service_tier": "flex", "max_completion_tokens": 4})
        self.assertTrue(raw["choices"])


class OfTheHouse(unittest.TestCase):
    """The keys as the guides make them."""

    def test_keys_of_the_guides(self):
        folder = harness.TMP / "apps-state"
        env = {"GAMASOT_SERVER_KEYS_FILE": "", "XDG_STATE_HOME": str(folder)}

        def key(*args):
            status, out, err = cli("keys", "add", *args, env=env)
            self.assertEqual(0, status, err)
            return out.strip()

        home = key("ha", "--person", "house", "--class", "voice", "--address", "127.0.0.1")
        webui = key("webui", "--trusted-proxy")
        paper = key("paperless", "--person", "house", "--class", "background", "--classes",
                    "background")
        code = key("editor", "--class", "completion")
        body = {"messages": QUESTION, "max_tokens": 2}
        with Server(env=env) as s:
            def class_of(secret, **headers):
                r = s.post("/v1/chat/completions", body, headers={
                    **({"Authorization": f"Bearer {secret}"} if secret else {}), **headers})
                self.assertEqual(200, r.status, r.text)
                return r.headers["X-Gamasot-Class"]
            self.assertEqual("voice", class_of(None))  # Home Assistant: by its address
            self.assertEqual("voice", class_of(home))
            self.assertEqual("chat", class_of(webui, **{"X-OpenWebUI-User-Id": "mina"}))
            self.assertEqual("background", class_of(paper))
            self.assertEqual("completion", class_of(code))
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key=webui)
            self.assertTrue(client.models.list().data)
