"""Real engines as workers: through gamasot the same as asking them directly (./run check-long).

bench/build-peer makes them: llama-server from the sdist of a PyPI package, Ollama from its Go module,
vLLM from PyPI. A test that has to leave one out says why."""

import base64
import concurrent.futures
import contextlib
import json
import os
import struct
import subprocess
import unittest
import urllib.request

import harness
from harness import Server, free_port, limit, long_only, model_path, other_server
from test_peer import LLAMA_SERVER, PEER, llama_server
from test_workers import config, section, wait_up, workers

USER = [{"role": "user", "content": "Name three colours."}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
TEXTS = [f"Text number {i} is about {'rain ' * (i % 7 + 1)}" for i in range(40)]
BUILD_S = 1500


class Where:
    """What section() wants of a server."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/v1"


def build(name):
    """Makes the peer, or skips with the builder's last words."""
    done = subprocess.run(["sh", "bench/build-peer", name], cwd=harness.ROOT, capture_output=True,
                          text=True, timeout=BUILD_S, check=False)
    if done.returncode != 0:
        words = (done.stderr.strip() or "it ended without a word").splitlines()
        raise unittest.SkipTest(f"{name} can't be built here: {words[-1]}")


def direct(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as r:
        return json.load(r)


class Engine(unittest.TestCase):
    """What is compared; the engines are below."""

    @contextlib.contextmanager
    def behind(self, port, dialect, **settings):
        """gamasot, with the server at that port as its worker."""
        self.port = port
        with Server(*config(section("it", Where(port), answer_ms=300000, timeout_ms=20000,
                                    **settings))) as self.server:
            wait_up(self.server, "it")
            w = workers(self.server)["it"]
            self.assertEqual(w["dialect"], dialect)
            self.model = w["models"][0]
            yield
            self.server.wait_idle()

    def body(self, **more):
        return {"model": self.model, "messages": USER, "max_tokens": 24, "temperature": 0, **more}

    def both(self, path, body):
        """The first choice of each, here and there; usage is compared."""
        mine = self.server.ok(path, body, timeout_s=300)
        theirs = direct(self.port, path, body)
        for count in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(mine["usage"][count], theirs["usage"][count], (path, count))
        return mine["choices"][0], theirs["choices"][0]

    def chat(self):
        a, b = self.both("/v1/chat/completions", self.body())
        self.assertEqual((a["message"]["content"], a["finish_reason"]),
                         (b["message"]["content"], b["finish_reason"]))
        self.assertTrue(a["message"]["content"])
        a, b = self.both("/v1/completions", {"model": self.model, "prompt": "One, two, three,",
                                             "max_tokens": 12, "temperature": 0})
        self.assertEqual(a["text"], b["text"])

    def stream(self):
        got = self.server.collect("/v1/chat/completions", self.body(), timeout_s=300)
        want = direct(self.port, "/v1/chat/completions", self.body())["choices"][0]
        self.assertEqual((got.text, got.finish[0]),
                         (want["message"]["content"], want["finish_reason"]))
        self.assertGreater(got.deltas[0], 3)

    def tools(self):
        body = self.body(tools=[WEATHER], tool_choice="required", max_tokens=64)
        a, b = self.both("/v1/chat/completions", body)
        self.assertEqual(a["finish_reason"], b["finish_reason"])
        self.assertEqual([c["function"] for c in a["message"].get("tool_calls") or []],
                         [c["function"] for c in b["message"].get("tool_calls") or []])

    def cancel(self):
        """What is closed is given up there: the one seat that it has is free for the next."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for _ in range(3):
                stream = self.server.stream("/v1/chat/completions", self.body(max_tokens=900),
                                            timeout_s=300)
                next(stream.events())
                stream.close()
            after = pool.submit(self.server.ok, "/v1/chat/completions", self.body(max_tokens=2),
                                timeout_s=300)
            self.assertEqual(after.result()["usage"]["completion_tokens"], 2)

    def embeddings(self, places=6):
        """More texts than go in one request to a worker; as numbers and packed."""
        body = {"model": self.model, "input": TEXTS}
        theirs = direct(self.port, "/v1/embeddings", body)
        mine = self.server.ok("/v1/embeddings", body, timeout_s=300)
        packed = self.server.ok("/v1/embeddings", {**body, "encoding_format": "base64"},
                                timeout_s=300)
        self.assertEqual(mine["usage"]["prompt_tokens"], theirs["usage"]["prompt_tokens"])
        self.assertEqual(len(mine["data"]), len(TEXTS))
        for a, b, c in zip(mine["data"], theirs["data"], packed["data"], strict=True):
            self.assertEqual((a["index"], c["index"]), (b["index"], b["index"]))
            raw = base64.b64decode(c["embedding"])
            floats = struct.unpack(f"<{len(raw) // 4}f", raw)
            for x, y, z in zip(a["embedding"], b["embedding"], floats, strict=True):
                self.assertAlmostEqual(x, y, places=places)
                self.assertAlmostEqual(z, y, places=places)


class LlamaServer(Engine):
    def setUp(self):
        if not LLAMA_SERVER.exists():
            self.skipTest(f"{LLAMA_SERVER} is not there (bench/build-peer llama)")

    @long_only
    def test_answers(self):
        with llama_server(model_path()) as port, self.behind(port, "llama-server"):
            for what in (self.chat, self.stream, self.tools, self.cancel):
                what()

    @long_only
    def test_embeddings(self):
        with llama_server(model_path(), "--embeddings", "--pooling", "mean") as port, \
                self.behind(port, "llama-server"):
            self.embeddings()


class Ollama(Engine):
    """With a template that has tools, which the model's own has not."""

    MODELFILE = '''FROM {path}
TEMPLATE """{{{{ range .Messages }}}}<|im_start|>{{{{ .Role }}}}
{{{{ if $.Tools }}}}Tools: {{{{ $.Tools }}}}
Answer {{"name": NAME, "parameters": OBJECT}}.
{{{{ end }}}}{{{{ .Content }}}}{{{{ .ToolCalls }}}}<|im_end|>
{{{{ end }}}}<|im_start|>assistant
"""
'''

    @long_only
    @limit(BUILD_S + 300)
    def test_same(self):
        build("ollama")
        ollama, home = PEER / "ollama/ollama", harness.TMP / "ollama"
        home.mkdir()
        port = free_port()
        env = harness.clean_env({"OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_MODELS": str(home),
                                 "OLLAMA_NUM_PARALLEL": "1", "HOME": str(home)})
        (home / "Modelfile").write_text(self.MODELFILE.format(path=model_path()))
        with other_server("ollama", [ollama, "serve"], port, env=env):
            subprocess.run([ollama, "create", "smol", "-f", home / "Modelfile"], env=env, check=True,
                           capture_output=True)
            with self.behind(port, "ollama"):
                for what in (self.chat, self.stream, self.tools, self.cancel, self.embeddings):
                    what()


class Vllm(Engine):
    @long_only
    @limit(BUILD_S + 600)
    def test_same(self):
        build("vllm")
        venv, port = PEER / "vllm", free_port()
        env = harness.clean_env({"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1",
                                 "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
                                 "PATH": f"{venv}/bin:{os.environ['PATH']}"})
        # Its own command asks for a package by another name than vllm-cpu.
        command = [venv / "bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model",
                   venv / "model", "--served-model-name", "smol", "--port",
                   port, "--host", "127.0.0.1", "--max-model-len", 1024, "--max-num-seqs", 1,
                   "--enforce-eager"]
        tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        with other_server("vllm", [*command, *tools], port, env=env), self.behind(port, "vllm"):
            for what in (self.chat, self.stream, self.tools, self.cancel):
                what()
        pooling = ("--runner", "pooling")
        with other_server("vllm", [*command, *pooling], port, env=env), self.behind(port, "vllm"):
            self.embeddings()
