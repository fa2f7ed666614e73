"""Several models in one server: loaded when they are asked for, gone when they are not."""

import contextlib
import http.client
import io
import json
import math
import operator
import re
import subprocess
import tempfile
import threading
import unittest

import openai

import harness
from harness import Server, cli, limit, long_only, model_path, wait_until


def config(name, *sections, head=""):
    path = harness.TMP / f"{name}.conf"
    path.write_text(head + "".join(f"[model {n}]\n" + "".join(f"{k} = {v}\n" for k, v in s.items())
                                   for n, s in sections))
    return path


def fake(**more):
    return {"backend": "fake", "fake_first_token": 48, "fake_n_tokens": 10, **more}


def states(server):
    return {m["id"]: m["state"] for m in server.get("/v1/models").json["data"]}


def chat(server, model, n=6, **more):
    return server.post("/v1/chat/completions",
                       {"model": model, "max_tokens": n, "temperature": 0,
                        "messages": [{"role": "user", "content": "hello"}], **more})


def text(response):
    return response.json["choices"][0]["message"]["content"]


def running(server):
    return {m["model"].split(":")[0]: m for m in server.get("/api/ps").json["models"]}


def n_loads(server, name):
    return len(re.findall(rf"models: loading name={name}\b", server.log()))


class Models(unittest.TestCase):
    def test_a_model_is_loaded_when_it_is_asked_for(self):
        path = config("demand", ("digits", fake(context=500)),
                      ("letters", fake(fake_first_token=65, fake_n_tokens=26)))
        with Server("--config", path) as server:
            self.assertEqual(states(server),
                             {"fake": "ready", "digits": "unloaded", "letters": "unloaded"})
            self.assertRegex(text(chat(server, "fake")), r"^[a-z]{6}$")
            self.assertRegex(text(chat(server, "digits")), r"^[0-9]{6}$")
            self.assertRegex(text(chat(server, "letters:latest")), r"^[A-Z]{6}$")
            self.assertEqual(set(states(server).values()), {"ready"})
            self.assertEqual(set(running(server)), {"fake", "digits", "letters"})
            one = server.get("/v1/models/digits").json
            self.assertEqual((one["max_model_len"], one["state"]), (500, "ready"))
            self.assertEqual(chat(server, "nobody").status, 404)
            # Every dialect and every endpoint that needs a model finds it.
            said = server.ok("/api/chat", {"model": "letters", "stream": False,
                                           "options": {"num_predict": 4},
                                           "messages": [{"role": "user", "content": "x"}]})
            self.assertRegex(said["message"]["content"], r"^[A-Z]{4}$")
            self.assertEqual(server.ok("/tokenize", {"model": "digits", "content": "ab"})["tokens"],
                             [97, 98])
            self.assertEqual(server.post("/tokenize", {"model": "no", "content": "a"}).status, 404)
            self.assertIn(".Prompt", server.ok("/api/show", {"model": "letters"})["template"])

    def test_requests_for_a_loading_model_share_one_load(self):
        path = config("share", ("slow", fake(fake_load_ms=600)))
        with Server("--config", path) as server:
            got = []
            threads = [threading.Thread(target=lambda: got.append(chat(server, "slow")))
                       for _ in range(8)]
            for t in threads:
                t.start()
            wait_until("loading", lambda: states(server)["slow"] == "loading")
            shown = wait_until("progress", lambda: [
                m for m in server.get("/v1/models").json["data"] if m.get("progress", 0) > 0])
            self.assertLess(shown[0]["progress"], 1)
            for t in threads:
                t.join()
            self.assertEqual([r.status for r in got], [200] * 8)
            self.assertEqual(len({text(r) for r in got}), 1)
            self.assertEqual(n_loads(server, "slow"), 1)

    def test_streams_go_on_while_a_model_is_loaded(self):
        path = config("beside", ("slow", fake(fake_load_ms=1000)))
        with Server("--config", path, "--fake.step_ms", "4") as server:
            stream = server.stream("/v1/chat/completions", {
                "model": "fake", "stream": True, "max_tokens": 2000,
                "messages": [{"role": "user", "content": "x"}]})
            events = stream.events()
            next(events)
            seen = [0, False]

            def read():
                with contextlib.suppress(http.client.IncompleteRead, OSError):
                    for _ in events:
                        seen[0] += not seen[1]
            reader = threading.Thread(target=read)
            reader.start()
            self.assertEqual(chat(server, "slow", 1).status, 200)
            seen[1] = True
            stream.connection.sock.shutdown(2)
            reader.join()
            stream.close()
            # A second of steps of 4 ms; half of them on the slowest machine.
            self.assertGreater(seen[0], 100)
            server.wait_idle()

    def test_keep_alive(self):
        path = config("keep", ("short", fake(keep_alive_ms=700)), ("long", fake()))
        with Server("--config", path) as server:
            def generate(model, **more):
                return server.ok("/api/generate", {"model": model, "stream": False,
                                                   "options": {"num_predict": 2}, **more})
            chat(server, "short")
            self.assertIn("short", running(server))
            wait_until("its time is up", lambda: states(server)["short"] == "unloaded")
            # Loaded without a prompt, and sent away.
            self.assertEqual(generate("long")["done_reason"], "load")
            self.assertRegex(running(server)["long"]["expires_at"], r"^20[0-9]{2}-")
            generate("long", prompt="x", keep_alive=-1)
            self.assertRegex(running(server)["long"]["expires_at"], r"^2318-")
            self.assertEqual(generate("long", keep_alive=0)["done_reason"], "unload")
            wait_until("it has gone", lambda: states(server)["long"] == "unloaded")
            # Sending away what is not there loads nothing.
            loads = n_loads(server, "long")
            self.assertEqual(generate("long", keep_alive="0s")["done_reason"], "unload")
            self.assertEqual(n_loads(server, "long"), loads)
            generate("long", prompt="x", keep_alive="0")
            wait_until("it has gone again", lambda: states(server)["long"] == "unloaded")
            # The first one stays whatever is said.
            generate("fake", keep_alive=0)
            self.assertRegex(running(server)["fake"]["expires_at"], r"^2318-")
            bad = server.post("/api/generate", {"model": "fake", "prompt": "x", "keep_alive": "soon"})
            self.assertEqual(bad.status, 400)
            self.assertIn("keep_alive", bad.text)

    def test_what_is_idle_makes_room(self):
        path = config("room", ("a", fake(kv_memory_mb=100)), ("b", fake(kv_memory_mb=100)),
                      ("c", fake(kv_memory_mb=100)), ("pinned", fake(kv_memory_mb=50, pinned="true")),
                      ("huge", fake(kv_memory_mb=4000)),
                      head="[memory]\nbudget_mb = 350\n[kv]\nmemory_mb = 50\n")
        with Server("--config", path, "--fake.step_ms", "4") as server:
            wait_until("the pinned one", lambda: states(server)["pinned"] == "ready")
            chat(server, "a")
            chat(server, "b")
            chat(server, "a")
            self.assertEqual(chat(server, "c").status, 200)  # b was used least recently
            self.assertEqual(states(server), {"fake": "ready", "a": "ready", "b": "unloaded",
                                              "c": "ready", "pinned": "ready", "huge": "unloaded"})
            streams = [server.stream("/v1/chat/completions", {
                "model": m, "stream": True, "max_tokens": 5000,
                "messages": [{"role": "user", "content": "x"}]}) for m in "ac"]
            events = [s.events() for s in streams]
            for e in events:
                next(e)
            refused = chat(server, "b")
            self.assertEqual(refused.status, 503)
            self.assertIn("Retry-After", refused.headers)
            self.assertIn("100 MB", refused.json["error"]["message"])
            for e in events:  # nobody was disturbed
                next(e)
            streams[0].close()
            self.assertEqual(wait_until("room", lambda: [
                r for r in [chat(server, "b")] if r.status == 200])[0].status, 200)
            self.assertEqual(states(server)["a"], "unloaded")
            next(events[1])
            streams[1].close()
            self.assertEqual(chat(server, "huge").status, 503)
            server.wait_idle()

    def test_a_model_that_can_not_be_loaded_hurts_nobody(self):
        broken = harness.TMP / "broken.gguf"
        broken.write_bytes(b"GGUF" + b"\xff" * 100)
        path = config("broken", ("broken", {"backend": "native", "path": broken}),
                      ("missing", {"backend": "native", "path": "/nowhere/x.gguf"}))
        with Server("--config", path) as server:
            for name, word in (("broken", "version"), ("missing", "/nowhere/x.gguf")):
                for _ in range(2):
                    answer = chat(server, name)
                    self.assertEqual(answer.status, 503)
                    self.assertIn(name, answer.json["error"]["message"])
                    self.assertIn(word, answer.json["error"]["message"])
                self.assertEqual(n_loads(server, name), 2)
            self.assertEqual(chat(server, "fake").status, 200)
            self.assertEqual(states(server)["broken"], "unloaded")

    def test_the_client_goes_while_its_model_is_loaded(self):
        path = config("gone", ("slow", fake(fake_load_ms=500)))
        with Server("--config", path) as server:
            body = json.dumps({"model": "slow", "max_tokens": 3,
                               "messages": [{"role": "user", "content": "x"}]}).encode()
            sock = server.socket()
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                         b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                         % (len(body), body))
            wait_until("loading", lambda: states(server)["slow"] == "loading")
            sock.close()
            wait_until("it is there all the same", lambda: states(server)["slow"] == "ready")
            self.assertEqual(chat(server, "slow").status, 200)
            self.assertEqual(n_loads(server, "slow"), 1)
            server.wait_idle()

    def test_the_server_ends_while_a_model_is_loaded(self):
        path = config("ending", ("slow", fake(fake_load_ms=20000)))
        with Server("--config", path) as server:
            got = []
            thread = threading.Thread(target=lambda: got.append(chat(server, "slow")))
            thread.start()
            wait_until("loading", lambda: states(server)["slow"] == "loading")
            server.stop()
            thread.join()
            self.assertEqual(got[0].status, 503)

    def test_signs_of_life_while_a_model_is_loaded(self):
        path = config("alive", ("slow", fake(fake_load_ms=7000)),
                      ("bad", {"backend": "fake", "fake_load_ms": 6500, "fake_first_token": 511}))
        with Server("--config", path) as server:
            stream = server.stream("/v1/chat/completions", {
                "model": "slow", "stream": True, "max_tokens": 3,
                "messages": [{"role": "user", "content": "x"}]})
            said = harness.Collected(stream)
            self.assertGreaterEqual(stream.comments, 1)
            self.assertRegex(said.text, r"^[0-9]{3}$")
            self.assertTrue(said.done)
            # A failure after the head has gone out is an error event.
            failed = server.stream("/v1/chat/completions", {
                "model": "bad", "stream": True, "messages": [{"role": "user", "content": "x"}]})
            said = harness.Collected(failed)
            self.assertIn("bad", said.error["message"])

    @long_only
    @limit(120)
    def test_signs_of_life_of_a_whole_answer(self):
        path = config("whole", ("slow", fake(fake_load_ms=22000)))
        with Server("--config", path) as server:
            answer = server.post("/v1/chat/completions", {
                "model": "slow", "max_tokens": 3,
                "messages": [{"role": "user", "content": "x"}]}, timeout_s=60)
            self.assertEqual(answer.status, 200)
            self.assertTrue(answer.text.startswith(" "))
            self.assertRegex(text(answer), r"^[0-9]{3}$")

    def test_aliases_of_any_model(self):
        path = config("alias", ("digits", fake()))
        path.write_text(path.read_text() + "[alias counting]\nmodel = digits\nclass = voice\n"
                        "[alias plain]\nclass = chat\n[alias lost]\nmodel = nobody\n")
        with Server("--config", path) as server:
            self.assertEqual(set(states(server)), {"fake", "digits", "counting", "plain"})
            answer = chat(server, "counting")
            self.assertRegex(text(answer), r"^[0-9]{6}$")
            self.assertEqual(answer.headers["X-Gamasot-Class"], "voice")
            self.assertEqual(answer.json["model"], "counting")
            self.assertRegex(text(chat(server, "plain")), r"^[a-z]{6}$")
            self.assertEqual(chat(server, "lost").status, 404)

    def test_the_queue_names_the_model(self):
        path = config("queue", ("digits", fake(fake_step_ms=4)))
        with Server("--config", path, "--fake.step_ms", "4") as server:
            streams = [server.stream("/v1/chat/completions", {
                "model": m, "stream": True, "max_tokens": 5000, "user": "mina",
                "messages": [{"role": "user", "content": "x"}]}) for m in ("fake", "digits")]
            for s in streams:
                next(s.events())
            queue = server.get("/v1/queue?user=mina").json
            self.assertEqual({s["model"] for s in queue["own"]}, {"fake", "digits"})
            for s in streams:
                s.close()
            server.wait_idle()

    def test_a_batch_for_a_model_that_is_not_in_memory(self):
        path = config("batch", ("digits", fake(fake_load_ms=300)))
        lines = b"".join(json.dumps({
            "custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "digits", "max_tokens": 3,
                     "messages": [{"role": "user", "content": f"q{i}"}]}}).encode() + b"\n"
            for i in range(30))
        with Server("--config", path, "--store.folder",
                    tempfile.mkdtemp(dir=harness.TMP)) as server:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
            sent = client.files.create(file=("in.jsonl", io.BytesIO(lines)), purpose="batch")
            batch = client.batches.create(input_file_id=sent.id, completion_window="24h",
                                          endpoint="/v1/chat/completions")
            batch = wait_until("it is over", lambda: (
                b := client.batches.retrieve(batch.id)).status == "completed" and b)
            got = [json.loads(line) for line in
                   client.files.content(batch.output_file_id).text.splitlines()]
            self.assertEqual(len(got), 30)
            for line in got:
                self.assertRegex(text(harness.Response(
                    200, {}, json.dumps(line["response"]["body"]).encode())), r"^[0-9]{3}$")
            self.assertEqual(n_loads(server, "digits"), 1)

    def test_shared_prefixes_of_each_model(self):
        """Computed when a model comes, beside what runs; kept, and found by everybody."""
        home = "".join(chr(97 + i * i % 26) for i in range(1000))
        file = harness.TMP / "home-of-models.txt"
        file.write_text(home)
        path = config("prefixes", ("digits", fake()),
                      head=f"[prefix]\nfiles = {file}\n")
        with Server("--config", path) as server:
            def cached(model, user):
                r = chat(server, model, 2, user=user, messages=[
                    {"role": "system", "content": home}, {"role": "user", "content": "what?"}])
                self.assertEqual(r.status, 200, r.text)
                return r.json["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertGreaterEqual(cached("fake", "ann"), 1000 - 32)
            chat(server, "digits", 1)
            wait_until("it is computed", lambda: "shared prefix lane=1" in server.log())
            self.assertGreaterEqual(cached("digits", "ben"), 1000 - 32)
            server.wait_idle()
            # Gone and back: computed again.
            server.post("/api/generate", {"model": "digits", "keep_alive": 0})
            wait_until("it has gone", lambda: states(server)["digits"] == "unloaded")
            chat(server, "digits", 1)
            wait_until("it is computed again",
                       lambda: server.log().count("shared prefix lane=") >= 3)
            self.assertGreaterEqual(cached("digits", "carl"), 1000 - 32)

    def test_a_model_with_its_own_prefixes(self):
        homes = [c * 300 for c in "pq"]
        files = []
        for i, home in enumerate(homes):
            files.append(harness.TMP / f"own-prefix-{i}.txt")
            files[i].write_text(home)
        path = config("own-prefixes", ("digits", fake(pinned="true", prefix_files=files[1])),
                      ("none", fake(prefix_files="")), head=f"[prefix]\nfiles = {files[0]}\n")
        with Server("--config", path) as server:
            wait_until("it is computed", lambda: "shared prefix lane=1" in server.log())

            def cached(model, home, user):
                r = chat(server, model, 2, user=user, messages=[
                    {"role": "system", "content": home}, {"role": "user", "content": "what?"}])
                return r.json["usage"]["prompt_tokens_details"]["cached_tokens"]
            for model, user, want in (("fake", "ann", (True, False)), ("digits", "ben", (False, True)),
                                      ("none", "carl", (False, False))):
                self.assertEqual(tuple(cached(model, home, user) > 250 for home in homes), want)

    def test_metrics_name_the_model(self):
        path = config("metrics", ("digits", fake()))
        with Server("--config", path) as server:
            def of(name, model):
                found = re.findall(rf'^gamasot_{name}{{[^}}]*model="{model}"[^}}]*}} (\S+)$',
                                   server.get("/metrics").text, re.M)
                return sum(float(v) for v in found)
            self.assertNotIn('model="digits"', server.get("/metrics").text)
            chat(server, "fake", 3)
            chat(server, "digits", 7)
            chat(server, "digits", 7)
            server.wait_idle()
            # The first token of an answer comes with its prompt.
            for name, counts in (("generation_tokens_total", (2, 12)),
                                 ("request_generation_tokens_sum", (3, 14))):
                self.assertEqual((of(name, "fake"), of(name, "digits")), counts, name)
            server.post("/api/generate", {"model": "digits", "keep_alive": 0})
            wait_until("it has gone", lambda: states(server)["digits"] == "unloaded")
            self.assertEqual(of("request_generation_tokens_sum", "digits"), 14)
            self.assertEqual(of("kv_blocks", "digits"), 0)

    def test_background_of_one_model_beside_a_stream_of_another(self):
        """The stream's steps come between the layers of the other model's background."""
        path = config("layers", ("indexer", fake(fake_layers=50, fake_prefill_us=400)))
        with Server("--config", path, "--fake.step_ms", "2") as server:
            body = {"model": "indexer", "prompt": "word " * 400, "max_tokens": 2}
            chat(server, "indexer")
            done = threading.Event()
            index = threading.Thread(target=lambda: (server.post(
                "/v1/completions", body, headers={"X-Gamasot-Class": "background"}), done.set()))
            index.start()
            n = 0
            while not done.is_set():
                self.assertEqual(chat(server, "fake", 2).status, 200)
                n += 1
            index.join()
            # 0.8 s in steps of background: without giving way it would be two or three.
            self.assertGreater(n, 5)

    def test_sections_that_are_wrong(self):
        for body, words in (("[model x]\nbackend = fake\ncolour = 1\n", ["model x", "colour"]),
                            ("[model x]\nbackend = fake\ncontext = many\n", ["model x", "context"]),
                            ("[model a b]\nbackend = fake\n", ["a b"]),
                            ("[model ]\nbackend = fake\n", ["model"])):
            path = harness.TMP / "wrong-model.conf"
            path.write_text(body)
            status, _, err = cli("serve", "--backend", "fake", "--config", str(path))
            self.assertEqual(status, 2, err)
            for word in words:
                self.assertIn(word, err)
        path.write_text("[model nowhere]\nbackend = native\n")
        status, _, err = cli("serve", "--backend", "fake", "--port", "0", "--config", str(path))
        self.assertEqual(status, 1, err)
        self.assertIn("nowhere.gguf", err)


class RealModels(unittest.TestCase):
    @limit(240)
    def test_two_real_models(self):
        small, other = model_path("smollm2"), model_path("gemma3-270m")
        prompt = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
        options = ("--kv.memory_mb", "64", "--context", "1024")
        with Server("--model", other, *options, backend="native", check=False) as server:
            alone = server.ok("/v1/completions", prompt)["choices"][0]["text"]
        path = config("real", ("gemma", {"path": other, "context": 1024}))
        with Server("--model", small, "--config", path, *options, backend="native") as server:
            first = server.ok("/v1/completions", prompt)["choices"][0]["text"]
            got = {}

            def ask(model):
                got[model] = server.ok("/v1/completions", {"model": model, **prompt},
                                       timeout_s=120)["choices"][0]["text"]
            name = next(iter(states(server)))
            threads = [threading.Thread(target=ask, args=(m,)) for m in (name, "gemma")]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(got, {name: first, "gemma": alone})
            server.ok("/api/generate", {"model": "gemma", "keep_alive": 0})
            wait_until("it has gone", lambda: states(server)["gemma"] == "unloaded")
            self.assertEqual(server.ok("/v1/completions", prompt)["choices"][0]["text"], first)

    def test_vectors_from_a_model_made_for_text(self):
        texts = ["The cat sleeps.", "A cat is asleep.", "Taxes are due in May."]
        vectors = {}
        for pooling in ("mean", "last"):
            with Server("--model", model_path(), "--model.pooling", pooling, "--kv.memory_mb", "64",
                        "--context", "1024", backend="native") as server:
                def embed(given, server=server):
                    said = server.ok("/v1/embeddings", {"input": given}, timeout_s=120)
                    return [item["embedding"] for item in said["data"]]
                together = vectors[pooling] = embed(texts)
                for text, v in zip(texts, together):
                    self.assertEqual(len(v), 576)
                    self.assertAlmostEqual(sum(x * x for x in v), 1, places=4)
                    self.assertLess(max(abs(x - y) for x, y in zip(v, embed(text)[0])), 1e-4)
                server.complete("chats go on", 2)
        a, b, c = vectors["mean"]
        self.assertGreater(sum(map(operator.mul, a, b)), sum(map(operator.mul, a, c)))
        self.assertNotEqual(vectors["mean"], vectors["last"])

    @limit(240)
    def test_an_encoder_beside_a_chat(self):
        done = subprocess.run(["python3", "scripts/prepare-minilm"], cwd=harness.ROOT,
                              capture_output=True, timeout=240)
        if done.returncode != 0:
            raise unittest.SkipTest("MiniLM can't be fetched (scripts/prepare-minilm)")
        refs = [r for r in json.loads((harness.ROOT / "tests/refs/minilm.json").read_text())
                if r["text"]]
        path = config("encoder", ("minilm", {"path": done.stdout.decode().split()[0]}))
        options = ("--kv.memory_mb", "64", "--context", "1024")
        with Server("--model", model_path(), "--config", path, *options,
                    backend="native") as server:
            alone = server.complete("The capital of France is", 40)["choices"][0]["text"]
            got = {}
            chat = threading.Thread(target=lambda: got.update(
                chat=server.complete("The capital of France is", 40)["choices"][0]["text"]))
            chat.start()
            said = server.ok("/v1/embeddings", {"model": "minilm",
                                                "input": [r["text"] for r in refs]}, timeout_s=120)
            chat.join()
            self.assertEqual(got["chat"], alone)
            for item, ref in zip(said["data"], refs, strict=True):
                a, b = item["embedding"], ref["vector"]
                cosine = sum(x * y for x, y in zip(a, b)) / math.sqrt(
                    sum(x * x for x in a) * sum(y * y for y in b))
                self.assertGreaterEqual(cosine, 0.9995)
            refused = server.post("/v1/chat/completions", {
                "model": "minilm", "messages": [{"role": "user", "content": "x"}]})
            self.assertEqual(refused.status, 400)


if __name__ == "__main__":
    unittest.main()
