"""/v1/live: what happens now, for as many as look; each sees what is theirs to see."""

import json
import socket
import time
import unittest

import harness
from harness import wait_until

SLOW = ("--fake.step_ms", 10)


def body(prompt, n, **more):
    return {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}


class Viewer:
    """The events of one connection, by name."""

    def __init__(self, server, key=None):
        self.connection = server.connect()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.connection.request("GET", "/v1/live", headers=headers)
        self.response = self.connection.getresponse()
        self.status, self.headers = self.response.status, self.response.headers
        self.seen = {"hello": [], "models": [], "steps": [], "state": []}

    def one(self):
        lines = []
        while (line := self.response.readline()) != b"\n":
            if not line:
                raise EOFError
            lines.append(line.decode().rstrip("\n"))
        if len(lines) != 2 or not lines[0].startswith("event: ") or lines[1][:6] != "data: ":
            raise AssertionError(f"no event: {lines!r}")
        name, data = lines[0][7:], json.loads(lines[1][6:])
        self.seen[name].append(data)
        return name, data

    def next(self, name, fits=lambda d: True):
        while True:
            got, data = self.one()
            if got == name and fits(data):
                return data

    def close(self):
        self.response.close()
        self.connection.close()


class Live(harness.SharedServer):
    options = (*SLOW, "--engine.max_seqs", 4)

    def view(self):
        v = Viewer(self.server)
        self.addCleanup(v.close)
        self.assertEqual(v.status, 200)
        self.assertEqual(v.headers["Content-Type"], "text/event-stream")
        return v

    def start(self, user, prompt, n, cls=None):
        s = self.server.stream("/v1/completions", body(prompt, n, user=user),
                               headers={"X-Gamasot-Class": cls} if cls else None)
        self.addCleanup(s.close)
        self.assertEqual(s.status, 200)
        return s

    def test_hello(self):
        hello = self.view().next("hello")
        self.assertTrue(hello["admin"])
        self.assertEqual([c["name"] for c in hello["classes"]],
                         ["voice", "chat", "completion", "document", "utility", "background"])
        self.assertEqual(hello["classes"][0]["ttft_ms"], 700)
        self.assertEqual(hello["phases"], ["prefill", "decode", "embed"])
        self.assertGreater(hello["models"][0]["kv_blocks"], 0)
        self.assertLess(abs(hello["server"]["now_ms"] / 1000 - time.time()), 100)

    def test_steps_are_those_that_were_run(self):
        self.server.wait_idle()
        v = self.view()
        v.next("hello")
        before = self.server.metrics()
        chat = self.start("ann", "1 two three 4", 30)
        self.start("ben", "z" * 200, 12, "background")
        self.assertEqual(len(list(chat.events())), 31)
        self.server.wait_idle()
        last = int(self.server.metrics()["steps_total"])
        v.next("steps", lambda d: d["steps"] and d["steps"][-1]["n"] >= last)
        steps = [s for d in v.seen["steps"] for s in d["steps"]]
        self.assertEqual([s["n"] for s in steps],
                         list(range(int(before["steps_total"]) + 1, last + 1)))
        self.assertEqual(sum(d["lost"] for d in v.seen["steps"]), 0)
        tokens = {}
        for s in steps:
            self.assertAlmostEqual(sum(p["ms"] for p in s["parts"]), s["ms"], delta=0.02)
            self.assertGreaterEqual(s["ms"], 10)
            for p in s["parts"]:
                key = p["class"], p["phase"]
                tokens[key] = tokens.get(key, 0) + p["tokens"]
        self.assertEqual(tokens, {("chat", "prefill"): 13, ("chat", "decode"): 29,
                                  ("background", "prefill"): 200, ("background", "decode"): 11})
        self.assertTrue(any(s["limit_ms"] is not None for s in steps))

    def test_state_names_who_runs_and_who_waits(self):
        ann = [self.start("ann", f"ann's {i}", 2000) for i in range(3)]
        self.start("ben", "ben's", 2000)
        self.start("ben", "ben waits", 5)
        v = self.view()
        state = v.next("state", lambda d: len(d["running"]) == 4 and len(d["waiting"]) == 1)
        self.assertEqual({r["id"] for r in state["running"] if r["person"] == "ann"},
                         {s.headers["X-Request-Id"] for s in ann})
        self.assertEqual(state["waiting"][0]["person"], "ben")
        self.assertEqual(state["waiting"][0]["waiting_for"], "seats")
        self.assertEqual(state["waiting"][0]["model"], v.seen["hello"][0]["models"][0]["name"])
        chat = {c["name"]: c for c in state["classes"]}["chat"]
        self.assertEqual((chat["running"], chat["waiting"]), (4, 1))
        people = {p["name"]: p for p in state["people"]}
        self.assertEqual((people["ann"]["running"], people["ben"]["waiting"]), (3, 1))
        # The pool: every block once, and each sequence holds some.
        (kv,), owners = state["kv"], state["kv_owners"]
        blocks = {}
        for owner, n in kv["runs"]:
            blocks[owner] = blocks.get(owner, 0) + n
        self.assertEqual(sum(blocks.values()), kv["blocks"])
        of = {kind: sum(n for o, n in blocks.items() if owners[o]["kind"] == kind)
              for kind in ("free", "cached", "pinned", "seq")}
        self.assertEqual((of["free"], of["cached"], of["pinned"], of["seq"]),
                         (kv["free"], kv["cached"], kv["pinned"], kv["held"]))
        self.assertEqual({owners[o]["request"] for o in blocks if owners[o]["kind"] == "seq"},
                         {r["id"] for r in state["running"]})
        v.next("state", lambda d: d["throughput"]["decode_tps"] > 0)

    def test_viewers_are_bounded_and_come_and_go(self):
        views = [self.view() for _ in range(32)]
        r = self.server.get("/v1/live")
        self.assertEqual(r.status, 503)
        for v in views:
            v.next("state")
        for v in views:
            v.close()
        wait_until("no connections", lambda: self.server.metrics()["http_connections"] <= 1)
        self.view().next("state")

    def test_a_viewer_that_does_not_read_costs_nothing(self):
        rss = self.server.rss_anon_kb()
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            chat = self.start("ann", "beside a sleeper", 300)
            self.assertEqual(len(list(chat.events())), 301)
        self.assertLess(self.server.rss_anon_kb(), rss + 4096)


class SeveralModels(unittest.TestCase):
    def test_each_has_its_name_its_steps_and_its_pool(self):
        path = harness.TMP / "live-models.conf"
        path.write_text("[model digits]\nbackend = fake\nfake_kv_blocks = 96\n")
        with harness.Server("--config", path, *SLOW) as server:
            v = Viewer(server)
            self.addCleanup(v.close)
            self.assertEqual([m["name"] for m in v.next("hello")["models"]], ["fake"])
            self.assertEqual([p["model"] for p in v.next("state")["kv"]], ["fake"])
            streams = {}
            for model in ("fake", "digits"):
                streams[model] = s = server.stream("/v1/completions", body(f"for {model}", 2000, model=model))
                self.addCleanup(s.close)
                self.assertEqual(s.status, 200)
            self.assertEqual([m["name"] for m in v.next("models")["models"]], ["fake", "digits"])
            state = v.next("state", lambda d: len(d["running"]) == 2 and len(d["kv"]) == 2)
            ids = {model: s.headers["X-Request-Id"] for model, s in streams.items()}
            self.assertEqual({r["model"]: r["id"] for r in state["running"]}, ids)
            owners = state["kv_owners"]
            for pool in state["kv"]:
                self.assertEqual(sum(n for _, n in pool["runs"]), pool["blocks"])
                held = [(owners[o]["request"], n) for o, n in pool["runs"] if owners[o]["kind"] == "seq"]
                self.assertEqual({request for request, _ in held}, {ids[pool["model"]]})
                self.assertEqual(sum(n for _, n in held), pool["held"])
            self.assertEqual(state["kv"][1]["blocks"], 96)
            seen = {s["model"] for d in v.seen["steps"] for s in d["steps"]}
            while seen != {"fake", "digits"}:
                seen |= {s["model"] for s in v.next("steps")["steps"]}
            server.post(f"/v1/requests/{ids['digits']}/cancel", None)
            wait_until("its request is over", lambda: [
                r["model"] for r in v.next("state")["running"]] == ["fake"])
            server.post("/api/generate", {"model": "digits", "keep_alive": 0})
            v.next("models", lambda d: [m["name"] for m in d["models"]] == ["fake"])
            self.assertEqual([p["model"] for p in v.next("state")["kv"]], ["fake"])
            server.post(f"/v1/requests/{ids['fake']}/cancel", None)


class Actions(harness.SharedServer):
    """Cancel, pause and resume: one's own, or anybody's for an admin."""
    options = (*SLOW, "--engine.max_seqs", 2, "--kv.memory_mb", 1)

    def start(self, user, prompt, n):
        s = self.server.stream("/v1/completions", body(prompt, n, user=user))
        self.addCleanup(s.close)
        self.assertEqual(s.status, 200)
        return s, f"/v1/requests/{s.headers['X-Request-Id']}"

    def act(self, path, what, user=None):
        return self.server.post(f"{path}/{what}" + (f"?user={user}" if user else ""), None)

    def tearDown(self):
        self.server.wait_idle()

    def test_cancel_ends_with_what_was_said(self):
        s, path = self.start("ann", "to be stopped", 1500)
        events = s.events()
        said = [next(events) for _ in range(5)]
        self.assert_error(self.act(path, "cancel", "ben"), 404, "id")
        r = self.act(path, "cancel", "ann")
        self.assertEqual((r.status, r.json["state"]), (200, "cancelled"))
        self.server.wait_idle()  # its blocks are free before it is read to the end
        rest = list(events)
        self.assertTrue(s.done)
        self.assertEqual(rest[-1]["choices"][0]["finish_reason"], "stop")
        self.assertLess(len(said) + len(rest), 1500)
        self.assert_error(self.act(path, "cancel", "ann"), 409, "id")
        self.assert_error(self.act("/v1/requests/cmpl-0", "cancel"), 404, "id")

    def test_a_waiting_one_can_be_cancelled(self):
        running = [self.start("ann", f"runs {i}", 1500) for i in range(2)]
        s, path = self.start("ben", "waits", 5)
        self.assertEqual(self.act(path, "cancel", "ben").status, 200)
        self.assertEqual(list(s.events())[-1]["choices"][0]["finish_reason"], "stop")
        for _, p in running:
            self.assertEqual(self.act(p, "cancel").status, 200)  # this machine is the admin

    def test_paused_it_keeps_its_blocks_and_goes_on(self):
        want = self.server.complete("pausing", 40, ignore_eos=True)["choices"][0]["text"]
        s, path = self.start("ann", "pausing", 40)
        events = s.events()
        text = "".join(next(events)["choices"][0]["text"] for _ in range(5))
        before = self.server.metrics()
        self.assert_error(self.act(path, "pause", "ben"), 404, "id")
        self.assertEqual(self.act(path, "pause", "ann").json["state"], "paused")
        self.assertEqual(self.act(path, "pause", "ann").status, 200)  # as often as one likes
        # Nothing moves: the engine rests. The step that was running may still have ended.
        at = self.server.metrics()["steps_total"]
        time.sleep(0.2)
        m = self.server.metrics()
        self.assertLessEqual(m["steps_total"], at + 1)
        self.assertGreater(m["kv_cache_usage_perc"], 0)
        story = self.server.get(path + "?user=ann").json["sequences"][0]
        self.assertEqual((story["paused"], story["waiting_for"]), (True, "paused"))
        self.assertEqual(self.act(path, "resume", "ann").json["state"], "resumed")
        text += "".join(e["choices"][0]["text"] for e in events)
        self.assertEqual(text, want)
        story = self.server.get(path + "?user=ann").json["sequences"][0]
        self.assertGreater(story["wait_ms"]["paused"], 150)
        self.assertEqual(story["preempted"], 0)
        self.assertGreaterEqual(m["num_preemptions_total"], before["num_preemptions_total"])

    def test_a_paused_one_gives_its_seat_and_starts_again(self):
        want = self.server.complete("gives way", 60, ignore_eos=True)["choices"][0]["text"]
        s, path = self.start("ann", "gives way", 60)
        events = s.events()
        text = next(events)["choices"][0]["text"]
        self.assertEqual(self.act(path, "pause").status, 200)
        others = [self.start("ben", f"others {i}", 10)[0] for i in range(4)]
        for o in others:
            self.assertEqual(len(list(o.events())), 11)  # two seats, and both are theirs
        self.assertEqual(self.act(path, "resume").status, 200)
        text += "".join(e["choices"][0]["text"] for e in events)
        self.assertEqual(text, want)
        self.assertEqual(self.server.get(path).json["sequences"][0]["preempted"], 1)

    def test_a_paused_one_whose_client_leaves_is_gone(self):
        s, path = self.start("ann", "paused and left", 1000)
        next(s.events())
        self.assertEqual(self.act(path, "pause").status, 200)
        s.close()
        self.server.wait_idle()


class Drain(unittest.TestCase):
    def test_an_open_view_does_not_hold_up_the_end(self):
        with harness.Server("--fake.step_ms", 5) as s:
            v = Viewer(s)
            v.next("state")
            s.process.terminate()
            with self.assertRaises(EOFError):
                while True:
                    v.one()
            v.close()
            self.assertEqual(s.process.wait(20), 0)
