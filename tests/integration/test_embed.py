"""Vectors and scores: client libraries over real sockets, `gamasot embed` and `summarize`; against
the fake backend, whose every vector is known beforehand."""

import base64
import json
import math
import pathlib
import random
import signal
import struct
import subprocess
import tempfile

import ollama
import openai

import harness
from fake_model import ids

N_EMBD = 16
TEXTS = ["Hello", "안녕하세요, 세계", "a" * 700, "The quick brown fox"]
_M = (1 << 64) - 1


def vector(prompt, n=N_EMBD):
    """What the fake backend makes of a prompt's ids: the mean of its tokens' numbers, length 1."""
    tokens = ids(prompt)
    total = [0.0] * N_EMBD
    for pos, token in enumerate(tokens):
        h = (token << 32) ^ pos
        for i in range(N_EMBD):
            h = (((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) + i) & _M
            h ^= h >> 27
            total[i] += struct.unpack("<i", struct.pack("<I", h & 0xffffffff))[0] / 2 ** 31
    length = math.sqrt(sum(x * x for x in total[:n]))
    return [x / length for x in total[:n]]


class Vectors(harness.SharedServer):
    def assert_vectors(self, got, want):
        self.assertEqual([len(v) for v in got], [len(v) for v in want])
        for g, w in zip(got, want):
            self.assertLess(max(abs(a - b) for a, b in zip(g, w)), 1e-5)


class Clients(Vectors):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    def test_openai(self):
        with openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0) as ai:
            for fmt in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
                r = ai.embeddings.create(model="fake", input=TEXTS, **fmt)
                got = [d.embedding for d in r.data]
                if fmt.get("encoding_format") == "base64":
                    got = [struct.unpack(f"<{N_EMBD}f", base64.b64decode(v)) for v in got]
                self.assert_vectors(got, [vector(t) for t in TEXTS])
                self.assertEqual([d.index for d in r.data], list(range(len(TEXTS))))
                self.assertEqual(r.usage.prompt_tokens, sum(len(ids(t)) for t in TEXTS))
            r = ai.embeddings.create(model="fake", input="Hello", dimensions=5, user="mina")
            self.assert_vectors([r.data[0].embedding], [vector("Hello", 5)])
            r = ai.embeddings.create(model="fake", input=[[1, 2], [3]])
            self.assert_vectors([d.embedding for d in r.data], [vector([1, 2]), vector([3])])
            with self.assertRaises(openai.BadRequestError) as e:
                ai.embeddings.create(model="fake", input="x" * 9000)
            self.assertEqual((e.exception.param, e.exception.code),
                             ("input", "context_length_exceeded"))
            self.assertIn("9000", e.exception.message)

    def test_ollama(self):
        c = ollama.Client(host=self.url)
        r = c.embed(model="fake", input=TEXTS)
        self.assert_vectors(r.embeddings, [vector(t) for t in TEXTS])
        self.assertGreater(r.total_duration, 0)
        self.assertEqual(r.prompt_eval_count, sum(len(ids(t)) for t in TEXTS))
        self.assert_vectors(c.embed(model="fake", input="Hello", dimensions=3).embeddings,
                            [vector("Hello", 3)])
        self.assert_vectors([c.embeddings(model="fake", prompt="Hello").embedding],
                            [vector("Hello")])
        long = "x" * 9000
        self.assert_vectors(c.embed(model="fake", input=long).embeddings, [vector("x" * 8192)])
        with self.assertRaises(ollama.ResponseError) as e:
            c.embed(model="fake", input=long, truncate=False)
        self.assertIn("9000", str(e.exception))
        self.assertIn("embedding", c.show("fake").capabilities)

    def test_langchain(self):
        from langchain_ollama import OllamaEmbeddings
        from langchain_openai import OpenAIEmbeddings
        for model in (OllamaEmbeddings(model="fake", base_url=self.url),
                      OpenAIEmbeddings(model="fake", base_url=self.url + "/v1", api_key="none",
                                       check_embedding_ctx_length=False)):
            with self.subTest(model=type(model).__name__):
                self.assert_vectors(model.embed_documents(TEXTS), [vector(t) for t in TEXTS])
                self.assert_vectors([model.embed_query("Hello")], [vector("Hello")])

    def test_class_and_story(self):
        r = self.server.post("/v1/embeddings", {"input": TEXTS})
        self.assertEqual(r.headers["X-Gamasot-Class"], "background")
        story = self.server.get(f"/v1/requests/{r.headers['X-Request-Id']}")
        self.assertEqual(story.status, 200)
        r = self.server.post("/v1/embeddings", {"input": TEXTS},
                             headers={"X-Gamasot-Class": "utility"})
        self.assertEqual(r.headers["X-Gamasot-Class"], "utility")

    def test_chat_with_an_encoder_says_what_is_wrong(self):
        with harness.Server("--fake.whole_prompts") as server:
            r = server.post("/v1/chat/completions",
                            {"messages": [{"role": "user", "content": "Hello"}]})
            self.assert_error(r, 400, "model", says="encoder")
            r = server.post("/v1/embeddings", {"input": "x" * 600})
            self.assert_error(r, 400, "input", "context_length_exceeded", "600")
            self.assertEqual(server.post("/v1/embeddings", {"input": "x" * 512}).status, 200)

    def test_rank(self):
        with harness.Server("--fake.rank") as server:
            documents = ["one", {"text": "two"}, "three"]
            r = server.ok("/v1/rerank", {"query": "q", "documents": documents, "top_n": 2,
                                         "return_documents": True})
            scores = [x["relevance_score"] for x in r["results"]]
            self.assertEqual(len(scores), 2)
            self.assertEqual(scores, sorted(scores, reverse=True))
            for x in r["results"]:
                self.assertEqual(x["document"]["text"], ["one", "two", "three"][x["index"]])
        self.assert_error(self.server.post("/v1/rerank", {"query": "q", "documents": ["a"]}), 400,
                          "model", says="rank")

    def test_a_crowd_of_requests_and_texts(self):
        def job(i):
            texts = [f"{i} {k} " * (k % 7 + 1) for k in range(100)]
            r = self.server.ok("/v1/embeddings", {"input": texts})
            return [(t, r["data"][k]["embedding"]) for k, t in enumerate(texts) if k % 33 == 0]
        for pairs in harness.in_parallel(8, [lambda i=i: job(i) for i in range(24)]):
            self.assert_vectors([v for _, v in pairs], [vector(t) for t, _ in pairs])


class Commands(Vectors):
    options = ("--fake.step_ms", "8", "--engine.max_seqs", "8")

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="gamasot-embed-"))
        self.addCleanup(subprocess.run, ["rm", "-rf", str(self.dir)], check=True)
        self.url = ("--url", f"http://127.0.0.1:{self.server.port}")

    def run_cli(self, *args, stdin=None):
        return subprocess.run([harness.GAMASOT, *map(str, args), *self.url], input=stdin or "",
                              env=harness.clean_env(), capture_output=True, text=True,
                              timeout=60 * harness.SLOWNESS)

    def start_cli(self, *args):
        return subprocess.Popen([harness.GAMASOT, *map(str, args), *self.url],
                                env=harness.clean_env(), stderr=subprocess.DEVNULL)

    def check_lines(self, path, texts):
        got = [json.loads(x) for x in path.read_text().splitlines()]
        self.assertEqual(sorted(x["index"] for x in got), list(range(len(texts))))
        for x in got[::max(1, len(got) // 20)]:
            self.assert_vectors([x["embedding"]], [vector(texts[x["index"]])])

    def test_embed_killed_at_any_moment(self):
        texts = [f"text number {i % 250}, {'x' * (i % 50)}" for i in range(500)]  # some come twice
        source, out = self.dir / "in.txt", self.dir / "out.jsonl"
        source.write_text("\n".join(texts) + "\n")
        rng, n_killed = random.Random(5), 0
        for _ in range(60):
            p = self.start_cli("embed", source, "--out", out)
            try:
                p.wait(rng.uniform(0.005, 0.15))
                break
            except subprocess.TimeoutExpired:
                p.send_signal(signal.SIGKILL)
                p.wait()
                n_killed += 1
        self.assertGreater(n_killed, 0)
        self.assertEqual(self.run_cli("embed", source, "--out", out).returncode, 0)
        self.check_lines(out, texts)
        before = out.read_bytes()
        done = self.run_cli("embed", source, "--out", out)
        self.assertIn("500 were done before", done.stderr)
        self.assertEqual(out.read_bytes(), before)
        source.write_text("\n".join(["a new one"] + texts) + "\n")
        self.assertIn("1 texts", self.run_cli("embed", source, "--out", out).stderr)
        self.assertEqual(out.read_bytes()[:len(before)], before)

    def test_embed_npy(self):
        texts = [f"row {i}" for i in range(150)]
        out = self.dir / "out.npy"
        (self.dir / "in.txt").write_text("\n".join(texts))
        for _ in range(2):
            done = self.run_cli("embed", self.dir / "in.txt", "--out", out, "--dimensions", 6)
            self.assertEqual(done.returncode, 0, done.stderr)
            data = out.read_bytes()
            self.assertEqual(data[:8], b"\x93NUMPY\x01\0")
            at = 10 + struct.unpack("<H", data[8:10])[0]
            self.assertEqual(at % 64, 0)
            head = eval(data[10:at])  # a dictionary, as the format says
            self.assertEqual(head, {"descr": "<f4", "fortran_order": False, "shape": (150, 6)})
            rows = list(struct.iter_unpack("<6f", data[at:]))
            self.assert_vectors(rows, [vector(t, 6) for t in texts])

    def test_embed_stdin_whole_files_and_mistakes(self):
        done = self.run_cli("embed", "-", stdin="Hello\n\nworld\n")
        got = [json.loads(x) for x in done.stdout.splitlines()]
        self.assertEqual([x["source"] for x in got], ["-:1", "-:3"])
        self.assert_vectors([x["embedding"] for x in got], [vector("Hello"), vector("world")])
        (self.dir / "a.txt").write_text("two\nlines\n")
        done = self.run_cli("embed", self.dir / "a.txt", "--whole-files")
        self.assert_vectors([json.loads(done.stdout)["embedding"]], [vector("two\nlines")])
        (self.dir / "other.jsonl").write_text("{}\n")
        (self.dir / "bad.txt").write_bytes(b"ok\n\xff\xfe\n")
        long = "x" * 9000
        for args, says, stdin in (
                (("embed",), "name files", None),
                (("embed", self.dir / "none"), "No such file", None),
                (("embed", self.dir / "bad.txt"), "bad.txt:2 is no UTF-8", None),
                (("embed", self.dir / "a.txt", "--out", self.dir / "other.jsonl"), "no line of", None),
                (("embed", self.dir / "a.txt", "--dimensions", "x"), "--dimensions", None),
                (("embed", self.dir / "a.txt", "--dimensions", "17"), "16", None),
                (("embed", self.dir / "a.txt", "--model", "other"), "does not exist", None),
                (("embed", "-", "--no-truncate"), "9000", long)):
            with self.subTest(args=args):
                done = self.run_cli(*args, stdin=stdin)
                self.assertEqual(done.returncode, 2)
                self.assertIn(says, done.stderr)

    def test_a_server_that_restarts_is_waited_for(self):
        texts = [f"text {i}" for i in range(400)]
        source, out = self.dir / "in.txt", self.dir / "out.jsonl"
        source.write_text("\n".join(texts))
        with harness.Server("--fake.step_ms", "20", "--engine.max_seqs", "8") as server:
            port = server.port
            p = subprocess.Popen([harness.GAMASOT, "embed", source, "--out", out, "--url",
                                  f"http://127.0.0.1:{port}"], env=harness.clean_env(),
                                 stderr=subprocess.DEVNULL)
            harness.wait_until("first lines", lambda: out.exists() and out.stat().st_size > 0)
            server.kill()
        with harness.Server("--server.port", str(port)):
            self.assertEqual(p.wait(60 * harness.SLOWNESS), 0)
        self.check_lines(out, texts)

    def test_summarize(self):
        docs, out = self.dir / "docs", self.dir / "out"
        for i in range(24):
            path = docs / ("sub" if i % 3 else "") / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"document {i} {{name}}")
        (docs / "binary.bin").write_bytes(b"a\0b")
        (docs / ".hidden").write_text("no")
        args = ("summarize", docs, "--out", out, "--max-tokens", 8)
        p = self.start_cli(*args)
        harness.wait_until("a summary", lambda: list(out.glob("**/*.md")))
        p.send_signal(signal.SIGKILL)
        p.wait()
        done = self.run_cli(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        made = {str(p.relative_to(out)) for p in out.glob("**/*") if p.is_file()}
        want = {f"{'sub/' if i % 3 else ''}{i}.txt.md" for i in range(24)}
        self.assertEqual(made, want | {".gamasot-summaries.jsonl"})
        for name in want:
            self.assertEqual(len((out / name).read_text()), 9, name)
        stamps = {n: (out / n).stat().st_mtime_ns for n in want}
        (docs / "0.txt").write_text("changed")
        self.assertIn("1 files", self.run_cli(*args).stderr)
        changed = {n for n in want if (out / n).stat().st_mtime_ns != stamps[n]}
        self.assertEqual(changed, {"0.txt.md"})
        (docs / "long.txt").write_text("y" * 9000)
        done = self.run_cli(*args)
        self.assertEqual(done.returncode, 2)
        self.assertIn("long.txt: ", done.stderr)
        template = self.dir / "prompt.txt"
        template.write_text("no mark")
        done = self.run_cli(*args, "--prompt", template)
        self.assertIn("{text}", done.stderr)
        template.write_text("{name}: {text}")
        (docs / "long.txt").unlink()
        self.assertIn("24 files", self.run_cli(*args, "--prompt", template).stderr)
