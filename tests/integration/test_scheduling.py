"""What the scheduler says and takes: the queue, a request's story, settings while it runs."""

import harness
from harness import wait_until

SLOW = ("--fake.step_ms", 20)


def body(prompt, n, **more):
    return {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}


class Stories(harness.SharedServer):
    options = (*SLOW, "--engine.max_seqs", 2)

    def queue(self, user):
        r = self.server.get(f"/v1/queue?user={user}")
        self.assertEqual(r.status, 200, r.body)
        return r.json

    def start(self, user, prompt, n, cls=None):
        stream = self.server.stream("/v1/completions", body(prompt, n, user=user),
                                    headers={"X-Gamasot-Class": cls} if cls else None)
        self.assertEqual(stream.status, 200)
        return stream

    def end(self, *streams):
        for stream in streams:
            stream.close()
        self.server.wait_idle()

    def test_who_runs_and_who_waits(self):
        ann = [self.start("ann", f"ann {i}", 2000) for i in range(2)]
        ben = self.start("ben", "ben waits", 5, "voice")
        wait_until("three sequences", lambda: self.queue("ann")["running"] == 2)
        mine = self.queue("ann")
        self.assertEqual((mine["running"], mine["waiting"]), (2, 1))
        self.assertEqual([(s["state"], s["class"], s["index"]) for s in mine["own"]],
                         [("running", "chat", 0)] * 2)
        self.assertEqual({s["id"] for s in mine["own"]},
                         {s.headers["X-Request-Id"] for s in ann})
        self.assertEqual(mine["others"],
                         {"voice": {"running": 0, "waiting": 1, "waiting_for": {"seats": 1}}})
        his = self.queue("ben")
        self.assertEqual([(s["id"], s["state"], s["position"]) for s in his["own"]],
                         [(ben.headers["X-Request-Id"], "waiting", 1)])
        self.assertEqual(his["own"][0]["waiting_for"], "seats")
        self.assertIn("taken", his["own"][0]["why"])
        self.assertEqual(his["others"]["chat"]["running"], 2)
        self.assertEqual(self.queue("carl")["own"], [])
        self.end(*ann, ben)

    def test_the_story_of_a_request(self):
        ann = self.start("ann", "begins with ann", 60)
        ben = [self.start("ben", f"ben {i}", 3) for i in range(2)]
        path = f"/v1/requests/{ben[1].headers['X-Request-Id']}"
        living = self.server.get(path + "?user=ben").json
        self.assertEqual(living["id"], ben[1].headers["X-Request-Id"])
        self.assertIn(living["sequences"][0]["state"], ("waiting", "running", "done"))
        for stream in ben:
            self.assertEqual(len(list(stream.events())), 4)
        story = self.server.get(path + "?user=ben").json["sequences"]
        self.assertEqual(len(story), 1)
        story = story[0]
        self.assertEqual((story["state"], story["output_tokens"], story["chunks"]), ("done", 3, 1))
        self.assertEqual(story["steps"], 3)
        self.assertEqual(set(story["steps_with"]), {"chat"})
        self.assertGreater(story["steps_measured_ms"], 0)
        self.assertGreater(story["charged_ms"], 0)
        self.assertLessEqual(story["charged_ms"], story["steps_measured_ms"])
        self.assertLessEqual(story["queued_ms"], story["ttft_ms"])
        self.assertLessEqual(story["ttft_ms"], story["total_ms"])
        self.assertGreater(sum(story["wait_ms"].values()), 0)
        # Nobody else learns of it, and there is nothing to learn of what never was.
        self.assert_error(self.server.get(path + "?user=ann"), 404, "id")
        self.assert_error(self.server.get("/v1/requests/cmpl-0?user=ben"), 404, "id")
        self.end(ann, *ben)

    def test_a_cancelled_one_has_a_story_too(self):
        stream = self.start("ann", "goes away", 2000)
        request = stream.headers["X-Request-Id"]
        stream.close()
        self.server.wait_idle()
        story = self.server.get(f"/v1/requests/{request}?user=ann").json["sequences"][0]
        self.assertEqual(story["state"], "done")
        self.assertLess(story["output_tokens"], 2000)

    def test_headers_say_what_is_ahead(self):
        first = self.start("ann", "nobody is ahead", 2000)
        self.assertRegex(first.headers["X-Gamasot-Queue"], r"^ahead=0, cached_tokens=0(, |$)")
        others = [self.start("ann", f"{i} is ahead", 2000) for i in range(3)]
        wait_until("two that wait", lambda: self.queue("ann")["waiting"] == 2)
        last = self.start("ann", "two are ahead", 1)
        self.assertRegex(last.headers["X-Gamasot-Queue"], r"^ahead=2, ")
        self.assertRegex(last.headers["X-Gamasot-Queue"], r", predicted_ttft_ms=\d+$")
        self.end(first, *others, last)

    def test_timings_in_the_usage(self):
        r = self.server.ok("/v1/completions", {
            **body("a whole answer", 4, include_timings=True), "n": 2})
        timings = r["usage"]["timings"]
        self.assertEqual([(t["index"], t["output_tokens"], t["state"]) for t in timings],
                         [(0, 4, "done"), (1, 4, "done")])
        self.assertNotIn("timings", self.server.complete("without", 4)["usage"])
        c = self.server.collect("/v1/completions", body(
            "a stream", 4, stream_options={"include_timings": True}))
        self.assertEqual(c.usage["timings"][0]["output_tokens"], 4)
        # A stop string ends the text before the engine is told: the story waits for its end.
        text = self.server.complete("stops early", 40)["choices"][0]["text"]
        r = self.server.complete("stops early", 40, include_timings=True, stop=[text[3:6]])
        self.assertEqual(r["choices"][0]["text"], text[:text.index(text[3:6])])
        self.assertEqual(r["choices"][0]["finish_reason"], "stop")
        self.assertEqual(r["usage"]["timings"][0]["state"], "done")
        self.assert_error(self.server.post("/v1/completions", body("x", 1, stream_options={
            "include_timings": 1})), 400, "stream_options")


class Settings(harness.SharedServer):
    options = (*SLOW, "--class_chat.ttft_ms", 1500)

    def patch(self, changes):
        return self.server.request("PATCH", "/v1/config", changes)

    def options_now(self):
        return self.server.get("/v1/config").json["options"]

    def test_the_configuration_is_shown(self):
        config = self.server.get("/v1/config").json
        self.assertEqual(config["options"]["class_chat.ttft_ms"], 1500)
        self.assertEqual(config["options"]["class_voice.ttft_ms"], 700)
        self.assertIn("sched.background_floor", config["live"])
        self.assertNotIn("server.port", config["live"])

    def test_all_or_none(self):
        before = self.options_now()
        for changes, field, says in (
                ({"class_voice.tpot_ms": 90, "class_voice.tpot": 1}, "class_voice.tpot", "tpot_ms"),
                ({"class_voice.tpot_ms": 90, "server.port": 1}, "server.port", "start"),
                ({"class_voice.tpot_ms": 90, "class_chat.share": 2}, "class_chat.share", "0 to 1"),
                ({"class_voice.tpot_ms": 90, "class_chat.share": 0}, "class_chat.share", "bounds"),
                ({"class_voice.tpot_ms": 90, "class_chat.window_min_ms": 9},
                 "class_chat.window_max_ms", "bounds"),
                ({"class_voice.tpot_ms": 90, "sched.background_floor": 0.9},
                 "sched.background_floor", "bounds"),
                ({"class_voice.tpot_ms": -1}, "class_voice.tpot_ms", "0 to"),
                ({"class_voice.tpot_ms": 1.5}, "class_voice.tpot_ms", "whole"),
                ({"class_voice.tpot_ms": None}, "class_voice.tpot_ms", "number"),
                ({"class_voice.tpot_ms": [1]}, "class_voice.tpot_ms", "number"),
                ({"sched.safepoints": "perhaps"}, "sched.safepoints", "true or false")):
            with self.subTest(changes=changes):
                self.assert_error(self.patch(changes), 400, field, says=says)
                self.assertEqual(self.options_now(), before)
        r = self.patch({"class_voice.tpot_ms": 90, "class_voice.share": 0.7,
                        "sched.safepoints": False, "engine.prefill_chunk": 64})
        self.assertEqual(r.status, 200, r.body)
        after = {**before, "class_voice.tpot_ms": 90, "class_voice.share": 0.7,
                 "sched.safepoints": False, "engine.prefill_chunk": 64}
        self.assertEqual(r.json["options"], after)
        self.assertEqual(self.options_now(), after)
        back = {k: before[k] for k in after if after[k] != before[k]}
        self.assertEqual(self.patch(back).json["options"], before)

    def test_a_change_takes_effect(self):
        self.assertEqual(self.patch({"sched.background_paused": True}).status, 200)
        job = self.server.stream("/v1/completions", body("an index", 3),
                                 headers={"X-Gamasot-Class": "background"})
        wait = wait_until("a reason", lambda: self.server.get("/v1/queue").json["own"])
        self.assertEqual((wait[0]["state"], wait[0]["waiting_for"]), ("waiting", "schedule"))
        chat = self.server.complete("meanwhile", 3, ignore_eos=True)
        self.assertEqual(chat["usage"]["completion_tokens"], 3)
        self.assertEqual(self.server.get("/v1/queue").json["waiting"], 1)
        self.assertEqual(self.patch({"sched.background_paused": False}).status, 200)
        self.assertEqual(len(list(job.events())), 4)
        job.close()

    def test_chunks_follow(self):
        def chunks():
            r = self.server.complete("p" * 500, 1, include_timings=True,
                                     user=str(self.options_now()["engine.prefill_chunk"]))
            return r["usage"]["timings"][0]["chunks"]
        self.assertIn(chunks(), range(4, 16))
        self.assertEqual(self.patch({"engine.prefill_chunk": 32}).status, 200)
        self.assertGreaterEqual(chunks(), 16)
        self.assertEqual(self.patch({"engine.prefill_chunk": 128}).status, 200)

    def test_seats_of_a_class(self):
        self.assertEqual(self.patch({"class_utility.seats": 1}).status, 200)
        streams = [self.server.stream("/v1/completions", body(f"a title {i}", 2000),
                                      headers={"X-Gamasot-Class": "utility"}) for i in range(2)]
        waiting = wait_until("one that waits", lambda: [
            s for s in self.server.get("/v1/queue").json["own"] if s["state"] == "waiting"])
        self.assertEqual(waiting[0]["waiting_for"], "seats")
        self.assertEqual(self.patch({"class_utility.seats": 0}).status, 200)
        wait_until("both run", lambda: self.server.get("/v1/queue").json["running"] == 2)
        for stream in streams:
            stream.close()
        self.server.wait_idle()


class WithKeys(harness.SharedServer):
    options = (*SLOW, "--api-key", "one", "--api-key", "two")
    key = "one"

    def test_keys_are_persons(self):
        stream = self.server.stream("/v1/completions", body("mine", 2000))
        request = stream.headers["X-Request-Id"]
        other = {"Authorization": "Bearer two"}
        self.assertEqual(len(self.server.get("/v1/queue").json["own"]), 1)
        self.assertEqual(self.server.get("/v1/queue", headers=other).json["own"], [])
        self.assertEqual(self.server.get(f"/v1/requests/{request}").status, 200)
        self.assertEqual(self.server.get(f"/v1/requests/{request}", headers=other).status, 404)
        none = {"Authorization": "Bearer none"}
        for path in ("/v1/queue", f"/v1/requests/{request}", "/v1/config"):
            self.assertEqual(self.server.get(path, headers=none).status, 401)
        self.assertEqual(self.server.request("PATCH", "/v1/config", {}, headers=none).status, 401)
        self.assertNotIn("two", self.server.get("/v1/config").text)
        stream.close()


class Numbers(harness.SharedServer):
    options = ("--fake.step_ms", 40, "--fake.layers", 8)

    def test_safepoints_and_predictions_are_counted(self):
        job = self.server.stream("/v1/completions", body("an index", 400),
                                 headers={"X-Gamasot-Class": "background"})
        before = self.server.metrics()

        def suspended():
            self.server.complete("hello", 1)
            return self.server.metrics()["suspended_steps_total"] > before["suspended_steps_total"]
        wait_until("a step that gives way", suspended)
        # A step is counted once it is done, the first one perhaps only now.
        for name in ("background_seconds_total", "step_predicted_ratio_count"):
            wait_until(name, lambda name=name: self.server.metrics()[name] > 0)
        m = self.server.metrics()
        self.assertEqual(m["discarded_seconds_total"], 0)
        self.assertGreater(m["targets_total"], 0)
        text = self.server.get("/metrics").text
        count = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                 if line.startswith("gamasot_step_predicted_ratio_bucket")]
        self.assertEqual(count, sorted(count))
        self.assertEqual(count[-1], m["step_predicted_ratio_count"])
        job.close()


def text(n, seed):
    return "".join(chr(97 + (i * i + seed) % 26) for i in range(n))


class SharedPrefix(harness.SharedServer):
    """A home's instructions are computed once; nothing else crosses from one person to another."""

    home = text(1000, 1)

    @classmethod
    def setUpClass(cls):
        files = []
        for name, content in (("home.txt", cls.home + "\n"), ("kids.txt", text(600, 5)),
                              ("large.txt", text(40000, 9))):
            path = harness.TMP / name
            path.write_text(content)
            files += ["--prefix-file", path]
        cls.options = (*files, "--fake.kv_blocks", 600)
        super().setUpClass()

    def chat(self, user, system, question="what?"):
        r = self.server.ok("/v1/chat/completions", {
            "messages": [{"role": "system", "content": system},
                         {"role": "user", "content": question}],
            "max_tokens": 4, "temperature": 0, "user": user, "include_timings": True})
        return (r["usage"]["prompt_tokens_details"]["cached_tokens"],
                r["choices"][0]["message"]["content"], r["usage"]["timings"][0])

    def test_the_first_request_of_everybody_finds_it(self):
        texts = set()
        for user in ("ann", "ben", "carl"):
            cached, text_, _ = self.chat(user, self.home)
            self.assertGreaterEqual(cached, 1000 - 32)
            texts.add(text_)
        self.assertEqual(len(texts), 1)
        self.assertGreaterEqual(self.chat("dora", text(600, 5))[0], 600 - 32)

    def test_nothing_else_is_shared(self):
        secret = self.home + text(300, 77)
        first = self.chat("eve", secret)
        again = self.chat("eve", secret)
        other = self.chat("mallory", secret)
        self.assertLess(first[0], 1000 + 32)
        self.assertGreaterEqual(again[0], 1300)
        self.assertEqual(other[0], first[0])
        self.assertEqual(first[1], other[1])
        self.assertEqual(other[2]["steps"], first[2]["steps"])
        own = text(500, 3)
        self.assertEqual(self.chat("ann", own)[0], self.chat("ben", own)[0])
        self.assertLess(self.chat("carl", own)[0], 64)

    def test_what_is_pinned_is_bounded(self):
        m = self.server.metrics()
        self.assertGreater(m["kv_blocks_pinned"], (1000 + 600) // 32 - 2)
        self.assertLess(m["kv_blocks_pinned"], (1000 + 600) // 32 + 4)
        self.assertIn("the 3. does not fit prefix.pinned_share", self.server.log())

    def test_an_unreadable_file_is_named(self):
        status, _, err = harness.cli("serve", "--port", "0", "--backend", "fake",
                                     "--prefix-file", "/no/such/file", timeout_s=20)
        self.assertEqual(status, 1)
        self.assertIn("prefix.files: /no/such/file", err)
