"""Real engines as workers: through gamasot the same as asking them directly (./run check-long).

llama-server comes from bench/build-peer. Ollama and vLLM take part where they are installed; a test that
leaves one out says so."""

import concurrent.futures
import json
import shutil
import subprocess
import unittest
import urllib.request

import harness
from harness import Server, long_only, model_path
from test_peer import LLAMA_SERVER, llama_server
from test_workers import config, section, wait_up, workers

USER = [{"role": "user", "content": "Name three colours."}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class Where:
    """What section() wants of a server."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/v1"


def direct(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as r:
        return json.load(r)


class LlamaServer(unittest.TestCase):
    @long_only
    def test_same(self):
        if not LLAMA_SERVER.exists():
            self.skipTest(f"{LLAMA_SERVER} is not there (bench/build-peer)")
        with llama_server(model_path()) as port:
            with Server(*config(section("llama", Where(port), answer_ms=60000))) as server:
                wait_up(server, "llama")
                w = workers(server)["llama"]
                self.assertEqual(w["dialect"], "llama-server")
                self.model = w["models"][0]
                self.chat(server, port)
                self.stream(server, port)
                self.tools(server, port)
                self.cancel(server)
                server.wait_idle()

    def body(self, **more):
        return {"model": self.model, "messages": USER, "max_tokens": 24, "temperature": 0, **more}

    def chat(self, server, port):
        mine = server.ok("/v1/chat/completions", self.body(), timeout_s=120)
        theirs = direct(port, "/v1/chat/completions", self.body())
        for what in ("message", "finish_reason"):
            a, b = mine["choices"][0][what], theirs["choices"][0][what]
            self.assertEqual(a["content"] if what == "message" else a,
                             b["content"] if what == "message" else b)
        for count in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(mine["usage"][count], theirs["usage"][count])
        text = {"model": self.model, "prompt": "One, two, three,", "max_tokens": 12, "temperature": 0}
        self.assertEqual(server.ok("/v1/completions", text, timeout_s=120)["choices"][0]["text"],
                         direct(port, "/v1/completions", text)["choices"][0]["text"])

    def stream(self, server, port):
        got = server.collect("/v1/chat/completions", self.body())
        want = direct(port, "/v1/chat/completions", self.body())["choices"][0]
        self.assertEqual((got.text, got.finish[0]),
                         (want["message"]["content"], want["finish_reason"]))

    def tools(self, server, port):
        body = self.body(tools=[WEATHER], tool_choice="required", max_tokens=64)
        mine = server.ok("/v1/chat/completions", body, timeout_s=120)["choices"][0]
        theirs = direct(port, "/v1/chat/completions", body)["choices"][0]
        self.assertEqual([c["function"] for c in mine["message"].get("tool_calls") or []],
                         [c["function"] for c in theirs["message"].get("tool_calls") or []])

    def cancel(self, server):
        """What is closed is given up there: the one slot that it has is free for the next."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for _ in range(3):
                stream = server.stream("/v1/chat/completions", self.body(max_tokens=900))
                next(stream.events())
                stream.close()
            after = pool.submit(server.ok, "/v1/chat/completions", self.body(max_tokens=2),
                                timeout_s=120)
            self.assertEqual(after.result()["usage"]["completion_tokens"], 2)


class Installed(unittest.TestCase):
    """Engines that this machine may have: recognised, listed."""

    @long_only
    def test_ollama(self):
        if not shutil.which("ollama"):
            self.skipTest("ollama is not installed")
        env = harness.clean_env({"OLLAMA_HOST": "127.0.0.1:18434"})
        with subprocess.Popen(["ollama", "serve"], env=env, stderr=subprocess.DEVNULL) as p:
            try:
                with Server(*config(section("ollama", Where(18434), dialect="ollama"))) as server:
                    wait_up(server, "ollama")
            finally:
                p.terminate()

    @long_only
    def test_vllm(self):
        if not shutil.which("vllm"):
            self.skipTest("vllm is not installed")
        command = ["vllm", "serve", "HuggingFaceTB/SmolLM2-135M-Instruct", "--port", "18435"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as p:
            try:
                with Server(*config(section("vllm", Where(18435)))) as server:
                    harness.wait_until("vllm", lambda: workers(server)["vllm"]["state"] == "up", 300)
                    self.assertEqual(workers(server)["vllm"]["dialect"], "vllm")
            finally:
                p.terminate()
