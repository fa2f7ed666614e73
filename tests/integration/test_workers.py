"""Other machines that answer, with a scripted one in their place (remote.py): the same as asking it
directly, in every dialect; and whatever it does, a clean end."""

import http.client
import json
import pathlib
import random
import signal
import socket
import tempfile
import threading
import time
import unittest

import harness
from harness import Server, SharedServer, limit, long_only, wait_until
from remote import Remote, vector
from scripted import TOOL

KEY = "key-of-the-worker"
USER = [{"role": "user", "content": "Say something."}]


def section(name, remote, **settings):
    lines = {"url": remote.url, "probe_ms": 1000, "timeout_ms": 1000 * harness.SLOWNESS, **settings}
    return f"[worker {name}]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items())


def config(*sections):
    path = harness.TMP / f"workers-{random.getrandbits(64):x}.conf"
    path.write_text("\n".join(sections))
    return ("--config", path)


def direct(remote, path, body):
    c = http.client.HTTPConnection("127.0.0.1", remote.port, timeout=20)
    c.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {remote.key}"})
    return json.loads(c.getresponse().read())


def workers(server):
    return {w["name"]: w for w in server.get("/v1/workers").json["workers"]}


def wait_up(server, *names):
    def up():
        now = workers(server)
        return all(now.get(n, {}).get("state") == "up" for n in names)
    wait_until(f"workers {names} up", up)


class Same(SharedServer):
    """One worker, with a model that this machine has not."""

    @classmethod
    def setUpClass(cls):
        cls.remote = Remote(key=KEY)
        key = harness.TMP / "worker.key"
        key.write_text(KEY + "\n")
        cls.options = config(section("pc", cls.remote, key_file=key, price=0.5),
                             "[alias tutor]\nmodel = big\nclass = utility\n",
                             "[alias lost]\nmodel = nowhere\n")
        super().setUpClass()
        wait_up(cls.server, "pc")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.remote.kill()

    def setUp(self):
        self.remote.mode, self.remote.gap_s = "good", 0.0
        self.remote.seen.clear()

    def both(self, path, body):
        mine, theirs = self.server.ok(path, body), direct(self.remote, path, body)
        return mine, theirs

    def test_lists(self):
        ids = [m["id"] for m in self.server.get("/v1/models").json["data"]]
        self.assertIn("big", ids)
        self.assertEqual(self.server.get("/v1/models/big").json["id"], "big")
        self.assertIn("big:latest", [m["name"] for m in self.server.get("/api/tags").json["models"]])
        pc = workers(self.server)["pc"]
        self.assertEqual((pc["kind"], pc["dialect"], pc["models"]), ("remote", "vllm", ["big"]))
        self.assertEqual((pc["its_running"], pc["its_waiting"]), (2, 1))

    def test_alias(self):
        """It has its own name and class, and the worker hears of the model alone."""
        ids = [m["id"] for m in self.server.get("/v1/models").json["data"]]
        self.assertIn("tutor", ids)
        self.assertNotIn("lost", ids)
        self.assertEqual(self.server.get("/v1/models/tutor").json["id"], "tutor")
        self.assertIn("tutor:latest",
                      [m["name"] for m in self.server.get("/api/tags").json["models"]])
        r = self.server.post("/v1/chat/completions", {"model": "tutor", "messages": USER})
        self.assertEqual((r.status, r.json["model"]), (200, "tutor"), r.body)
        self.assertEqual(r.headers["X-Gamasot-Class"], "utility")
        self.assertEqual(self.remote.seen[0][2]["model"], "big")
        said = self.server.ok("/api/chat", {"model": "tutor", "messages": USER, "stream": False})
        self.assertEqual(said["model"], "tutor")
        self.assertEqual(self.server.get("/v1/models/lost").status, 404)
        r = self.server.post("/v1/chat/completions", {"model": "lost", "messages": USER})
        self.assert_error(r, 404, param="model")

    def test_chat(self):
        body = {"model": "big", "messages": USER, "max_tokens": 5}
        mine, theirs = self.both("/v1/chat/completions", body)
        self.assertEqual(mine["choices"][0]["message"]["content"],
                         theirs["choices"][0]["message"]["content"])
        self.assertEqual(mine["choices"][0]["finish_reason"], "length")
        self.assertEqual(mine["usage"], theirs["usage"])
        got = self.server.collect("/v1/chat/completions",
                                  {**body, "stream_options": {"include_usage": True}})
        self.assertEqual(got.text, theirs["choices"][0]["message"]["content"])
        self.assertEqual(got.deltas[0], 5)
        self.assertEqual(got.usage, theirs["usage"])
        self.assertTrue(got.done)

    def test_reasoning(self):
        body = {"model": "big", "messages": USER, "max_tokens": 2, "reasoning_effort": "low"}
        message = self.server.ok("/v1/chat/completions", body)["choices"][0]["message"]
        self.assertEqual(message["reasoning_content"], "Let me think.")
        self.assertEqual(message["content"], "The quick ")

    def test_tools(self):
        body = {"model": "big", "messages": USER, "tools": [TOOL]}
        mine, theirs = self.both("/v1/chat/completions", body)
        a, b = mine["choices"][0], theirs["choices"][0]
        self.assertEqual([c["function"] for c in a["message"]["tool_calls"]],
                         [c["function"] for c in b["message"]["tool_calls"]])
        self.assertEqual((a["finish_reason"], a["message"]["content"]), ("tool_calls", None))
        stream = self.server.stream("/v1/chat/completions", body)
        text = ""
        for event in stream.events():
            for call in event["choices"][0]["delta"].get("tool_calls", []):
                text += call["function"]["arguments"]
        stream.close()
        self.assertEqual(text, '{"city": "Seoul"}')
        # and back again: what the client sends of them arrives as it was
        call = a["message"]["tool_calls"][0]
        self.remote.seen.clear()
        self.server.ok("/v1/chat/completions", {**body, "messages": [
            *USER, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "12 degrees"}]})
        sent = self.remote.seen[0][2]["messages"]
        self.assertEqual(sent[1]["tool_calls"], [call])
        self.assertIsNone(sent[1]["content"])

    def test_completions(self):
        mine, theirs = self.both("/v1/completions", {"model": "big", "prompt": "x", "max_tokens": 4})
        self.assertEqual(mine["choices"][0]["text"], theirs["choices"][0]["text"])
        self.assertEqual(mine["usage"], theirs["usage"])
        self.remote.seen.clear()
        many = self.server.ok("/v1/completions", {"model": "big", "prompt": ["a", "b"], "n": 2,
                                                  "max_tokens": 3, "seed": 7})
        self.assertEqual([c["index"] for c in many["choices"]], [0, 1, 2, 3])
        asked = sorted((b["prompt"], b["seed"]) for _, _, b in self.remote.seen)
        self.assertEqual(asked, [("a", 7), ("a", 8), ("b", 7), ("b", 8)])

    def test_stop(self):
        # The scripted one knows no stop strings: they are looked for here, too.
        body = {"model": "big", "messages": USER, "stop": ["brown f"]}
        choice = self.server.ok("/v1/chat/completions", body)["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]),
                         ("The quick ", "stop"))

    def test_embeddings(self):
        texts = ["a" * i for i in range(1, 71)]
        mine, theirs = self.both("/v1/embeddings", {"model": "big", "input": texts})
        for a, b in zip(mine["data"], theirs["data"], strict=True):
            self.assertEqual(a["index"], b["index"])
            for x, y in zip(a["embedding"], b["embedding"], strict=True):
                self.assertAlmostEqual(x, y, places=6)
        self.assertEqual(mine["usage"], theirs["usage"])
        one = self.server.ok("/api/embed", {"model": "big", "input": "hello"})["embeddings"][0]
        for x, y in zip(one, vector("hello"), strict=True):
            self.assertAlmostEqual(x, y, places=6)

    def test_dialects(self):
        text = "The quick brown "
        said = self.server.ok("/api/chat", {"model": "big", "messages": USER, "stream": False,
                                            "options": {"num_predict": 3}})
        self.assertEqual((said["message"]["content"], said["eval_count"], said["prompt_eval_count"]),
                         (text, 3, 17))
        said = self.server.ok("/v1/messages", {"model": "big", "messages": USER, "max_tokens": 3})
        self.assertEqual(said["content"][0]["text"], text)
        self.assertEqual(said["usage"]["output_tokens"], 3)
        said = self.server.ok("/v1/responses", {"model": "big", "input": "hi", "max_output_tokens": 16})
        self.assertTrue(said["output"][0]["content"][0]["text"].startswith(text))
        self.assertEqual(said["usage"]["input_tokens"], 17)

    def test_what_is_sent(self):
        self.server.ok("/v1/chat/completions",
                       {"model": "big", "messages": USER, "user": "mina", "max_tokens": 1,
                        "metadata": {"a": "b"}, "temperature": 0.5},
                       headers={"Authorization": "Bearer client-secret", "X-Mine": "1"})
        _, headers, body = self.remote.seen[0]
        self.assertEqual(headers["authorization"], f"Bearer {KEY}")
        self.assertNotIn("x-mine", headers)
        self.assertNotIn("user", body)
        self.assertNotIn("metadata", body)
        self.assertEqual((body["model"], body["temperature"], body["stream"]), ("big", 0.5, True))

    def test_cancel(self):
        self.remote.gap_s = 0.05
        before = self.remote.closed
        stream = self.server.stream("/v1/chat/completions",
                                    {"model": "big", "messages": USER, "max_tokens": 2000})
        next(stream.events())
        self.assertEqual(workers(self.server)["pc"]["running"], 1)
        stream.close()
        wait_until("the worker to see it", lambda: self.remote.closed > before)
        wait_until("nothing there", lambda: workers(self.server)["pc"]["running"] == 0)

    def test_story(self):
        r = self.server.post("/v1/chat/completions", {"model": "big", "messages": USER})
        story = self.server.get(f"/v1/requests/{r.json['id']}").json["sequences"][0]
        self.assertEqual((story["worker"], story["state"], story["prompt_tokens"]), ("pc", "done", 17))
        self.assertIn("worker", story["placed"])
        m = self.server.metrics()
        self.assertGreater(m["worker_requests_total"], 0)
        self.assertGreater(m["worker_generation_tokens_total"], 0)
        self.assertGreaterEqual(m["worker_up"], 1)

    def test_live(self):
        self.remote.gap_s = 0.05
        stream = self.server.stream("/v1/chat/completions",
                                    {"model": "big", "messages": USER, "max_tokens": 2000})
        next(stream.events())
        live = self.server.connect()
        live.request("GET", "/v1/live")
        reply, text = live.getresponse(), b""
        while b"event: state" not in text or not text.endswith(b"\n\n"):
            text += reply.read1(65536)
        state = json.loads(text.split(b"event: state\ndata: ")[1].split(b"\n")[0])
        live.close()
        queue = self.server.get("/v1/queue").json
        stream.close()
        self.assertEqual([w["name"] for w in state["workers"]], ["local", "pc"])
        self.assertIn("pc", [x.get("worker") for x in state["running"]])
        self.assertEqual([x["worker"] for x in queue["own"]], ["pc"])

    def test_refused(self):
        refuse = {"model": "big", "messages": [{"role": "user", "content": "refuse"}]}
        self.assert_error(self.server.post("/v1/chat/completions", refuse), 400,
                          says="I do not like it")
        self.assertEqual(workers(self.server)["pc"]["state"], "up")
        for body, field in (({"messages": USER, "logprobs": True}, "logprobs"),
                            ({"messages": []}, "messages")):
            r = self.server.post("/v1/chat/completions", {"model": "big", **body})
            self.assert_error(r, 400, param=field)
        r = self.server.post("/v1/completions", {"model": "big", "prompt": [1, 2]})
        self.assert_error(r, 400, param="prompt")

    def test_local_beside_it(self):
        a = self.server.complete("Hello", 5)
        self.assertEqual(a["usage"]["completion_tokens"], 5)
        self.assertEqual(self.remote.seen, [])


# mode, whether something of an answer came before it
HOSTILE = [("redirect", False), ("error", False), ("html", False), ("json", False), ("garbage", False),
           ("no-http", False), ("endless-line", False), ("endless-head", False), ("huge", False),
           ("cut", True), ("error-event", True), ("calls", False), ("types", False), ("reset", False)]


class Hostile(SharedServer):
    """Each in turn is added, asked and removed while the server runs."""

    options = ("--server.add_workers=true",)

    def add(self, name, remote, **settings):
        body = {"name": name, "url": remote.url, "timeout_ms": 1000 * harness.SLOWNESS, **settings}
        self.server.ok("/v1/workers", body)
        wait_up(self.server, name)

    def remove(self, name):
        self.assertEqual(self.server.request("DELETE", f"/v1/workers/{name}").status, 200)
        wait_until("it is gone", lambda: name not in workers(self.server))

    def test_hostile(self):
        for mode, begun in HOSTILE:
            with self.subTest(mode), Remote([f"m-{mode}"]) as remote, Remote() as elsewhere:
                remote.elsewhere = elsewhere.url
                self.add("bad", remote)
                remote.mode = mode
                body = {"model": f"m-{mode}", "messages": USER, "max_tokens": 8}
                if begun:
                    got = self.server.collect("/v1/chat/completions", body)
                    self.assertEqual(got.text, "Half an ")
                    self.assertIn("bad", got.error["message"])
                else:
                    r = self.server.post("/v1/chat/completions", body)
                    self.assertEqual(r.status, 503, r.body)
                    self.assertIn("error", r.json)
                self.assertEqual(len(remote.seen), 1)
                self.assertEqual(elsewhere.probes + len(elsewhere.seen), 0)
                self.remove("bad")
        self.assertEqual(self.server.complete("Hello", 2)["usage"]["completion_tokens"], 2)

    def test_hostile_vectors(self):
        for mode in ("json", "html", "no-http", "endless-head"):
            with self.subTest(mode), Remote([f"v-{mode}"]) as remote:
                self.add("bad", remote)
                remote.mode = mode
                r = self.server.post("/v1/embeddings", {"model": f"v-{mode}", "input": "x"})
                self.assertEqual(r.status, 503, r.body)
                self.remove("bad")

    def test_hanging(self):
        """It takes connections and answers nothing: given up after its time, then left alone."""
        with Remote(["m-hang"]) as remote:
            self.add("bad", remote, probe_ms=200, answer_ms=500)
            remote.mode = "hang"
            body = {"model": "m-hang", "messages": USER}
            r = self.server.post("/v1/chat/completions", body)
            self.assertIn(r.status, (503, 504), r.body)
            wait_until("it is known", lambda: workers(self.server)["bad"]["state"] != "up")
            self.remove("bad")

    def test_bad_settings(self):
        for body, field in (({"name": "x"}, "url"), ({"name": "x y", "url": "http://a"}, "name"),
                            ({"name": "x", "url": "ftp://a"}, "url"),
                            ({"name": "x", "url": "http://u@h"}, "url"),
                            ({"name": "x", "url": "http://a", "classes": ["fast"]}, "classes"),
                            ({"name": "x", "url": "http://a", "schedule": "noon"}, "schedule"),
                            ({"name": "x", "url": "http://a", "wake_mac": "1:2"}, "wake_mac"),
                            ({"name": "x", "url": "http://a", "key_file": "/no/such"}, "key_file"),
                            ({"name": "x", "url": "http://a", "price": "dear"}, "price"),
                            ({"name": "x", "url": "http://a", "colour": "red"}, "colour")):
            with self.subTest(field):
                r = self.server.post("/v1/workers", body)
                self.assertIn(r.status, (400, 500), r.body)
                self.assertIn(field, r.json["error"]["message"])
        r = self.server.post("/v1/workers", {"name": "x", "url": "http://a", "power_on": "reboot"})
        self.assert_error(r, 403, param="power_on")
        self.assertEqual(self.server.request("DELETE", "/v1/workers/none").status, 404)
        self.assertEqual(workers(self.server), {})

    def test_command(self):
        with Remote(["m-cli"]) as remote:
            url = f"http://127.0.0.1:{self.server.port}"
            cli = lambda *args: harness.cli("workers", *args, "--url", url)
            code, out, err = cli("add", "pc", remote.url, "--class", "chat,background")
            self.assertEqual(code, 0, err)
            self.assertIn("pc", out)
            wait_up(self.server, "pc")
            self.assertEqual(workers(self.server)["pc"]["classes"], ["chat", "background"])
            self.assertEqual(cli("add", "pc", remote.url)[0], 1)
            self.assertEqual(cli("drain", "pc")[0], 0)
            self.assertEqual(workers(self.server)["pc"]["state"], "draining")
            self.assertEqual(cli("resume", "pc")[0], 0)
            self.server.ok("/v1/chat/completions", {"model": "m-cli", "messages": USER})
            self.assertEqual(cli("remove", "pc")[0], 0)
            wait_until("it is gone", lambda: not workers(self.server))
            self.assertIn("no workers", cli("list")[1])


class Tls(SharedServer):
    @classmethod
    def setUpClass(cls):
        good, other = harness.make_certificate("IP:127.0.0.1"), harness.make_certificate("DNS:else.example")
        cls.remotes = [Remote(["m-good"], tls=good), Remote(["m-name"], tls=other),
                       Remote(["m-unknown"], tls=good)]
        cls.options = config(section("good", cls.remotes[0], ca_file=good[0]),
                             section("name", cls.remotes[1], ca_file=other[0]),
                             section("unknown", cls.remotes[2]))
        super().setUpClass()
        wait_up(cls.server, "good")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        for r in cls.remotes:
            r.kill()

    def test_verified(self):
        text = self.server.ok("/v1/chat/completions",
                              {"model": "m-good", "messages": USER, "max_tokens": 200})
        self.assertEqual(text["usage"]["completion_tokens"], 200)

    def test_not_verified(self):
        for name in ("name", "unknown"):
            wait_until("it was asked", lambda name=name: workers(self.server)[name]["failure"])
            w = workers(self.server)[name]
            self.assertIn("certificate", w["failure"])
            self.assertNotEqual(w["state"], "up")
            self.assertEqual(w["models"], [])


class Two(SharedServer):
    """Two with the same model: what one fails before its first token the other answers."""

    def setUp(self):
        self.remotes = [Remote(["twin"]), Remote(["twin"])]
        a, b = self.remotes
        self.server = Server(*config(section("a", a), section("b", b)))
        wait_up(self.server, "a", "b")

    def tearDown(self):
        self.server.wait_idle()
        self.server.stop()
        for r in self.remotes:
            r.__exit__()

    @classmethod
    def setUpClass(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        pass

    def test_one_is_broken(self):
        a, b = self.remotes
        a.mode = "error"
        for _ in range(4):
            self.assertTrue(self.server.ok("/v1/chat/completions",
                                           {"model": "twin", "messages": USER}))
        self.assertLessEqual(len(a.seen), 4)
        self.assertEqual(len(b.seen), 4)
        a.kill()
        self.server.ok("/v1/chat/completions", {"model": "twin", "messages": USER})

    def test_none_is_left(self):
        """Both are asked, and the client is told what the last one did."""
        for r in self.remotes:
            r.kill()
        r = self.server.post("/v1/chat/completions", {"model": "twin", "messages": USER})
        self.assert_error(r, 503, says="it takes no connections")
        now = workers(self.server)
        self.assertEqual([now[name]["faults"] for name in "ab"], [1, 1])

    def test_none_is_there(self):
        """Where nobody will be there in time, the client is told, with what keeps each."""
        body = {"model": "twin", "messages": USER}
        for name in "ab":
            self.server.ok(f"/v1/workers/{name}/drain", {})
        r = self.server.post("/v1/chat/completions", body)
        self.assert_error(r, 503, says="a gets no new work")
        self.assertIn("b gets no new work", r.json["error"]["message"])
        self.assertGreaterEqual(int(r.headers["Retry-After"]), 1)
        # streams, too: no headers have gone out that would have to be taken back
        r = self.server.post("/v1/chat/completions", {**body, "stream": True})
        self.assert_error(r, 503, says="reached")
        self.server.ok("/v1/workers/b/resume", {})
        self.server.ok("/v1/chat/completions", body)

    @long_only
    def test_all_are_dead(self):
        body = {"model": "twin", "messages": USER}
        for r in self.remotes:
            r.kill()
        self.server.post("/v1/chat/completions", body) # each has been tried
        r = self.server.post("/v1/chat/completions", body)
        self.assertIn("reached: a has failed", r.body.decode())
        self.assertIn("b has failed", r.body.decode())

    @long_only
    @limit(600)
    def test_kills_under_load(self):
        rng = random.Random(10)
        over = threading.Event()
        done = {"whole": 0, "cut": 0}
        lock = threading.Lock()
        for r in self.remotes:
            r.gap_s = 0.004

        def client(i):
            n = 0
            while not over.is_set():
                n += 1
                got = self.server.collect("/v1/chat/completions", {
                    "model": "twin", "max_tokens": 20,
                    "messages": [{"role": "user", "content": f"client {i} request {n}"}]})
                with lock:
                    if got.error:
                        # only what had begun may be cut
                        self.assertTrue(got.text, got.error)
                        done["cut"] += 1
                    else:
                        self.assertEqual(got.deltas[0], 20)
                        done["whole"] += 1

        def killer():
            for _ in range(100):
                time.sleep(rng.uniform(0.02, 0.3))
                r = rng.choice(self.remotes)
                r.kill()
                time.sleep(rng.uniform(0.0, 0.1))
                r.listen()
                name = "ab"[self.remotes.index(r)]
                other = "ba"[self.remotes.index(r)]
                wait_until("both are there", lambda n=(name, other): all(
                    workers(self.server)[x]["state"] == "up" for x in n), 90)
            over.set()

        harness.in_parallel(9, [killer, *(lambda i=i: client(i) for i in range(8))])
        self.assertGreater(done["whole"], 100)
        whole = [b["messages"][0]["content"] for r in self.remotes for b in r.answered]
        self.assertEqual(len(whole), len(set(whole)), "one was answered twice")
        self.server.wait_idle()
        self.assertEqual({w["running"] for w in workers(self.server).values()}, {0})


class Beside(SharedServer):
    """The same model here and there: who gets what."""

    @classmethod
    def setUpClass(cls):
        cls.remote = Remote(["fake"])
        cls.options = config(section("pc", cls.remote, prefers="background", price=0.25))
        super().setUpClass()
        cls.model = cls.server.get("/v1/models").json["data"][0]["id"]
        cls.remote.models = [cls.model]
        wait_until("the model is known",
                   lambda: cls.model in workers(cls.server).get("pc", {}).get("models", []))
        wait_up(cls.server, "pc")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.remote.kill()

    def ask(self, cls, n=4, **more):
        r = self.server.post("/v1/chat/completions",
                             {"model": self.model, "messages": USER, "max_tokens": n, **more},
                             headers={"X-Gamasot-Class": cls})
        self.assertEqual(r.status, 200, r.body)
        story = self.server.get(f"/v1/requests/{r.json['id']}").json["sequences"][0]
        return story.get("worker")

    def test_voice_stays(self):
        self.assertIsNone(self.ask("voice"))

    def test_background_goes(self):
        self.assertEqual(self.ask("background"), "pc")
        charged = workers(self.server)["pc"]["charged_s"]
        self.assertGreater(charged, 0)

    def test_what_only_this_machine_can(self):
        self.assertIsNone(self.ask("background", logprobs=True))

    def test_hung(self):
        """It accepts and answers nothing: voice does not notice, background comes back."""
        self.remote.mode = "hang"
        try:
            self.assertIsNone(self.ask("voice"))
            self.assertIsNone(self.ask("background"))
        finally:
            self.remote.mode = "good"
        wait_up(self.server, "pc")

    def test_embeddings_stay(self):
        r = self.server.post("/v1/embeddings", {"model": self.model, "input": "x"})
        self.assertIn(r.status, (200, 400), r.body)


class One(SharedServer):
    """A worker that runs one request at a time: what waits for it waits here."""

    @classmethod
    def setUpClass(cls):
        cls.remote = Remote(["solo"])
        cls.options = config(section("pc", cls.remote, max_sequences=1))
        super().setUpClass()
        wait_up(cls.server, "pc")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.remote.kill()

    def setUp(self):
        self.remote.gap_s = 0.05
        self.remote.seen.clear()
        self.remote.answered.clear()
        self.waiting = []

    @staticmethod
    def body(text, **more):
        return {"model": "solo", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more}

    def block(self):
        """Takes the worker's only seat; the one who frees it has to wait for those that waited."""
        stream = self.server.stream("/v1/chat/completions",
                                    self.body("block", user="zoe", max_tokens=2000))
        next(stream.events())
        return stream

    def unblock(self, stream):
        self.remote.gap_s = 0.0
        stream.close()

    def ask(self, text, **more):
        """In a thread of its own; back once it waits. Its id."""
        headers = more.pop("headers", None)
        before = {q["id"] for q in self.server.get("/v1/queue").json["own"]}
        t = threading.Thread(target=self.server.ok,
                             args=("/v1/chat/completions", self.body(text, **more)),
                             kwargs={"headers": headers})
        t.start()
        self.waiting.append(t)
        found = []

        def waits():
            found[:] = [q["id"] for q in self.server.get("/v1/queue").json["own"]
                        if q["id"] not in before]
            return found
        if "user" not in more:
            wait_until("it waits", waits)
        return found[0] if found else None

    def answered(self):
        for t in self.waiting:
            t.join()
        return [b["messages"][0]["content"] for _, _, b in self.remote.seen]

    def state(self, id_):
        return self.server.get(f"/v1/requests/{id_}").json["sequences"][0]

    def test_who_has_used_less_goes_first(self):
        """One account for each person: what this machine did for mina counts at the other one."""
        self.server.ok("/v1/completions", {"prompt": "x", "user": "mina", "max_tokens": 50})
        blocker = self.block()
        for n, who in enumerate(("mina", "bob"), 1):
            self.ask(f"of {who}", user=who)
            wait_until("it waits", lambda n=n: self.server.get("/v1/queue").json["waiting"] == n)
        self.server.get("/v1/queue") # the engine has answered what was asked before
        self.unblock(blocker)
        self.assertEqual(self.answered(), ["block", "of bob", "of mina"])

    def test_paused_while_it_waits(self):
        blocker = self.block()
        paused = self.ask("paused")
        self.server.ok(f"/v1/requests/{paused}/pause", {})
        self.ask("other")
        self.assertEqual((self.state(paused)["paused"], self.state(paused)["waiting_for"]),
                         (True, "paused"))
        self.unblock(blocker)
        self.waiting.pop().join()
        self.assertEqual(self.answered_now(), ["block", "other"])
        self.server.ok(f"/v1/requests/{paused}/resume", {})
        self.assertEqual(self.answered(), ["block", "other", "paused"])

    def answered_now(self):
        return [b["messages"][0]["content"] for _, _, b in self.remote.seen]

    def test_background_is_paused(self):
        self.server.ok("/v1/background/pause", {})
        wait_until("it is", lambda: self.server.get("/v1/background").json["paused"])
        background = self.ask("later", headers={"X-Gamasot-Class": "background"})
        self.server.ok("/v1/chat/completions", self.body("now"))
        self.assertTrue(self.state(background)["paused"])
        self.assertEqual(self.answered_now(), ["now"])
        self.server.ok("/v1/background/resume", {})
        self.assertEqual(self.answered(), ["now", "later"])

    def test_paused_while_it_is_answered(self):
        """The worker may go on to its end, but nothing of it comes before it goes on here."""
        stream = self.server.stream("/v1/chat/completions", self.body("slow", max_tokens=40))
        events = stream.events()
        next(events)
        id_ = self.server.get("/v1/queue").json["own"][0]["id"]
        self.server.ok(f"/v1/requests/{id_}/pause", {})
        self.remote.gap_s = 0.0
        wait_until("the worker to be done", lambda: self.remote.answered)
        self.assertEqual((self.state(id_)["state"], self.state(id_)["paused"]), ("running", True))
        self.assertLess(self.state(id_)["output_tokens"], 40)
        self.server.ok(f"/v1/requests/{id_}/resume", {})
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
        self.assertEqual(len(text.split()), 40)


class Reload(unittest.TestCase):
    """The configuration's workers change, and those added by command stay, over restarts, too."""

    @staticmethod
    def ask(server, model):
        return server.ok("/v1/chat/completions", {"model": model, "messages": USER, "max_tokens": 3})

    @staticmethod
    def begin(server, model, n):
        stream = server.stream("/v1/chat/completions",
                               {"model": model, "messages": USER, "max_tokens": n})
        events = stream.events()
        next(events)
        return events

    @staticmethod
    def finish(events):
        return len("".join(e["choices"][0]["delta"].get("content", "") for e in events).split())

    def reload(self, server, text):
        pathlib.Path(self.file).write_text(text)
        before = server.log().count("was read again")
        server.process.send_signal(signal.SIGHUP)
        wait_until("it was read", lambda: server.log().count("was read again") > before)

    def test_reload(self):
        with Remote(["m-a"], gap_s=0.02) as a, Remote(["m-b"]) as b, Remote(["m-c"]) as c:
            options = config(section("a", a, price=2), section("b", b))
            self.file = options[1]
            with Server(*options) as server:
                wait_up(server, "a", "b")
                self.assertEqual({workers(server)[n]["origin"] for n in "ab"}, {"file"})
                cut = self.begin(server, "m-a", 60)
                # changed, removed, added; what runs is not cut
                self.reload(server, section("a", a, price=3) + section("c", c))
                wait_up(server, "a", "c")
                self.assertEqual(workers(server)["a"]["price"], 3)
                self.assertNotIn("b", workers(server))
                self.ask(server, "m-c")
                self.assertEqual(server.post("/v1/chat/completions",
                                             {"model": "m-b", "messages": USER}).status, 404)
                # the same name is another machine
                self.reload(server, section("a", b) + section("c", c))
                wait_until("the other one", lambda: workers(server)["a"]["models"] == ["m-b"])
                self.ask(server, "m-b")
                # none at all; still what runs is not cut
                self.reload(server, "")
                self.assertEqual(set(workers(server)) - {"local"}, set())
                self.assertEqual(self.finish(cut), 60)
                wait_until("all are gone", lambda: workers(server) == {})

    def test_bad_files_change_nothing(self):
        with Remote(["m-a"]) as a:
            options = config(section("a", a))
            with Server(*options) as server:
                wait_up(server, "a")
                for text, says in (("[worker a]\nurl\n", ":2: neither"),
                                   ("[worker a]\nurl = http://x\ncolour = red\n", "colour"),
                                   (section("b", a) + "[worker c]\nprice = 1\n", "'url' is missing"),
                                   (section("b", a) + section("c", a, classes="fast"), "classes"),
                                   (section("b", a) + section("c", a, key_file="/no/such"), "key_file"),
                                   (section("a", a, power_on="reboot"), "power_on")):
                    with self.subTest(says):
                        pathlib.Path(options[1]).write_text(text)
                        r = server.post("/v1/workers/reload", {})
                        self.assertGreaterEqual(r.status, 400, r.body)
                        self.assertIn("Nothing was changed", r.json["error"]["message"])
                        self.assertIn(says, r.json["error"]["message"])
                        self.assertIn(says, server.log())
                        self.assertEqual(set(workers(server)) - {"local"}, {"a"})
                        self.ask(server, "m-a")
                pathlib.Path(options[1]).write_text(section("b", a))
                code, out, err = harness.cli("workers", "reload", "--url",
                                             f"http://127.0.0.1:{server.port}")
                self.assertEqual(code, 0, err)
                self.assertIn("b ", out)
                wait_up(server, "b")

    def test_added_by_command_stay(self):
        key = harness.TMP / "added.key"
        key.write_text(KEY + "\n")
        state = tempfile.mkdtemp(prefix="added-", dir=harness.TMP)
        with Remote(["m-a"], key=KEY) as a, Remote(["m-b"]) as b:
            options = ("--store.folder", state, "--server.add_workers=true", "--server.sandbox=false")
            cli = lambda server, *args: harness.cli("workers", *args, "--url",
                                                    f"http://127.0.0.1:{server.port}")
            with Server(*options) as server:
                self.assertEqual(cli(server, "add", "pc", a.url, "--key-file", str(key),
                                     "--class", "chat")[0], 0)
                self.assertEqual(cli(server, "add", "nuc", b.url)[0], 0)
                wait_up(server, "pc", "nuc")
            kept = (pathlib.Path(state) / "workers.json").read_text()
            self.assertIn(str(key), kept)
            self.assertNotIn(KEY, kept)
            with Server(*options) as server:
                wait_up(server, "pc", "nuc")
                self.assertEqual((workers(server)["pc"]["origin"], workers(server)["pc"]["classes"]),
                                 ("command", ["chat"]))
                self.assertIn("command", cli(server, "list")[1])
                self.ask(server, "m-a")
                self.assertEqual(cli(server, "remove", "nuc")[0], 0)
            # a key that has gone stops nobody, and is waited for
            key.unlink()
            with Server(*options) as server:
                self.assertEqual(set(workers(server)) - {"local"}, set())
                self.assertIn("key_file", server.log())
                self.assertEqual(cli(server, "add", "nuc", b.url)[0], 0)
            key.write_text(KEY + "\n")
            with Server(*options) as server:
                wait_up(server, "pc", "nuc")
                self.assertEqual(cli(server, "remove", "nuc")[0], 0)
            # the configuration's word goes before what was added
            with Server(*options, *config(section("pc", b))) as server:
                wait_up(server, "pc")
                self.assertEqual(workers(server)["pc"]["origin"], "file")
                self.assertEqual(workers(server)["pc"]["models"], ["m-b"])


class Cold(SharedServer):
    """A model that this machine would have to load, and another one has."""

    @classmethod
    def setUpClass(cls):
        cls.remote = Remote(["second", "known"])
        cls.options = config(section("pc", cls.remote),
                             "[model second]\nbackend = fake\nfake_load_ms = 300\n")
        super().setUpClass()
        wait_up(cls.server, "pc")
        for _ in range(3): # what it takes is learned
            cls.server.ok("/v1/chat/completions", {"model": "known", "messages": USER, "max_tokens": 4})

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.remote.kill()

    def setUp(self):
        self.remote.mode = "good"

    def state(self):
        models = {m["id"]: m for m in self.server.get("/v1/models").json["data"]}
        return models["second"]["state"]

    def unload(self):
        self.server.ok("/api/generate", {"model": "second", "keep_alive": 0})
        wait_until("it is not loaded", lambda: self.state() == "unloaded")

    def test_it_is_not_loaded_for_what_another_has(self):
        self.unload()
        self.remote.seen.clear()
        r = self.server.post("/v1/chat/completions",
                             {"model": "second", "messages": USER, "max_tokens": 5})
        self.assertEqual(r.status, 200, r.body)
        self.assertEqual(len(self.remote.seen), 1)
        got = self.server.collect("/v1/chat/completions",
                                  {"model": "second", "messages": USER, "max_tokens": 5})
        self.assertEqual(got.text, r.json["choices"][0]["message"]["content"])
        said = self.server.ok("/api/chat", {"model": "second", "messages": USER, "stream": False})
        self.assertEqual(said["model"], "second")
        self.assertEqual(len(self.remote.seen), 3)
        self.assertEqual(self.state(), "unloaded")

    def test_it_is_loaded_when_the_other_fails(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                self.unload()
                self.remote.mode = "error"
                r = self.server.post("/v1/chat/completions", {
                    "model": "second", "messages": USER, "max_tokens": 5, "stream": stream})
                self.assertEqual(r.status, 200, r.body)
                self.assertEqual(r.headers.get_all("X-Request-Id"), [r.headers["X-Request-Id"]])
                if not stream:
                    self.assertEqual(r.json["id"], r.headers["X-Request-Id"])
                    self.assertEqual(r.json["usage"]["completion_tokens"], 5)
                self.assertEqual(self.state(), "ready")
                self.remote.mode = "good"
                wait_up(self.server, "pc")

    def test_it_is_loaded_for_what_only_this_machine_can(self):
        body = {"model": "second", "prompt": "x", "max_tokens": 3}
        for more in ({"logprobs": 1}, {"n": 2}, {"prompt": [50, 51]}, {"prompt": ["a", "b"]}):
            with self.subTest(more):
                self.unload()
                self.remote.seen.clear()
                self.server.ok("/v1/completions", {**body, **more})
                self.assertEqual((self.remote.seen, self.state()), ([], "ready"))
        self.unload()
        self.server.ok("/api/generate", {"model": "second"}) # asks for nothing but that
        self.assertEqual(self.state(), "ready")

    def test_its_client_goes_away_while_it_is_loaded(self):
        self.unload()
        self.remote.mode = "error"
        s = self.server.socket()
        s.sendall(self.server.post_bytes("/v1/chat/completions", {"model": "second", "messages": USER}))
        wait_until("it is being loaded", lambda: self.state() in ("loading", "ready"))
        s.close()
        self.server.wait_idle()
        self.remote.mode = "good"
        wait_up(self.server, "pc")


class Closed(SharedServer):
    """Walls: without workers in the configuration none can be added."""

    def test_no_walls_to_climb(self):
        r = self.server.post("/v1/workers", {"name": "x", "url": "http://127.0.0.1:1"})
        self.assert_error(r, 403, says="add_workers")
        self.assertEqual(workers(self.server), {})


class Power(SharedServer):
    """A machine that is off is switched on when work waits for it."""

    def test_power_on(self):
        remote = Remote(["sleepy"])
        remote.kill()
        heard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        heard.bind(("127.0.0.1", 0))
        heard.listen()
        port = heard.getsockname()[1]
        command = f"/bin/bash -c 'echo on > /dev/tcp/127.0.0.1/{port}'"
        options = config(section("pc", remote, models="sleepy", power_on=command,
                                 wake_mac="01:23:45:67:89:ab"))
        with Server(*options) as server, heard:
            got = []
            asking = threading.Thread(target=lambda: got.append(server.post(
                "/v1/chat/completions", {"model": "sleepy", "messages": USER},
                headers={"X-Gamasot-Class": "background"}, timeout_s=60)))
            asking.start()
            heard.settimeout(30 * harness.SLOWNESS)
            heard.accept()[0].close()
            remote.listen()
            asking.join()
            self.assertEqual(got[0].status, 200, got[0].body)
        remote.kill()

    @classmethod
    def setUpClass(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        pass
