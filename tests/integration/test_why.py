"""Why did I wait: the cause that is named is the one that was made to happen."""

import threading
import time

import harness
from harness import cli, wait_until


def body(prompt, n, **more):
    return {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}


class Base(harness.SharedServer):
    def start(self, user, prompt, n, cls=None):
        s = self.server.stream("/v1/completions", body(prompt, n, user=user),
                               headers={"X-Gamasot-Class": cls} if cls else None)
        self.addCleanup(s.close)
        self.assertEqual(s.status, 200)
        return s

    def story(self, stream):
        list(stream.events())
        r = self.server.get(f"/v1/requests/{stream.headers['X-Request-Id']}")
        self.assertEqual(r.status, 200, r.body)
        s = r.json["sequences"][0]
        # The picture is whole: from the arrival on, in order, to the end.
        at = [p["at_ms"] for p in s["timeline"]]
        self.assertEqual(at, sorted(at))
        self.assertEqual(s["timeline"][-1]["what"], "end")
        self.assertAlmostEqual(at[-1], s["total_ms"], delta=0.01)
        return s

    def what(self, story):
        return [p["what"] for p in story["timeline"]]

    def tearDown(self):
        self.server.wait_idle()


class Seats(Base):
    options = ("--fake.step_ms", 10, "--engine.max_seqs", 2)

    def test_seats(self):
        first = [self.start("ann", f"sits {i}", 40) for i in range(2)]
        s = self.story(self.start("ben", "waits for a seat", 3))
        self.assertIn("all seats for running sequences were taken", s["why"])
        self.assertIn("seats", self.what(s))
        self.assertEqual(self.what(s)[-3:], ["prefill", "decode", "end"])
        for f in first:
            list(f.events())

    def test_paused(self):
        stream = self.start("ann", "is paused", 5)
        path = f"/v1/requests/{stream.headers['X-Request-Id']}"
        if self.server.post(path + "/pause", None).status == 200:
            time.sleep(0.3)
            self.server.post(path + "/resume", None)
        self.assertIn("paused", self.what(self.story(stream)))

    def test_the_command(self):
        stream = self.start("ann", "to be told of", 6)
        list(stream.events())
        url = ("--url", f"http://127.0.0.1:{self.server.port}")
        status, out, err = cli("why", *url, stream.headers["X-Request-Id"])
        self.assertEqual(status, 0, err)
        lines = out.splitlines()
        self.assertRegex(lines[0], r"^chat, done: queued .*, first token after .*, ended after ")
        self.assertTrue(any(line.startswith("  prefill   |") and "#" in line for line in lines), out)
        self.assertTrue(any(line.startswith("  decode    |") and "=" in line for line in lines), out)
        self.assertRegex(out, r"steps took .*, predicted .* \([+-]\d+ %\)")
        self.assertRegex(lines[-1], r"^It took [\d.]+ m?s to its first token, \d+ % of it because ")
        status, out, err = cli("why", *url, "cmpl-never")
        self.assertEqual(status, 1)
        self.assertIn("There is no request 'cmpl-never'", err)
        status, _, err = cli("why", *url, "../x")
        self.assertIn("is no request's id", err)


class Prompts(Base):
    options = ("--fake.step_ms", 2, "--fake.prefill_us", 2000, "--engine.prefill_chunk", 64)

    def test_its_own_prompt(self):
        s = self.story(self.start("ann", "q" * 300, 2))
        self.assertIn("its own prompt of 300 tokens was computed", s["why"])
        self.assertEqual(self.what(s)[-2:], ["decode", "end"])

    def test_behind_another_prompt(self):
        first = self.start("ann", "w" * 500, 2, "chat")
        wait_until("it runs", lambda: self.server.get("/v1/queue?user=ann").json["running"] == 1)
        time.sleep(0.1)
        s = self.story(self.start("ann", "behind", 2, "chat"))
        self.assertRegex(s["why"], "another prompt was being computed|a step that had begun before|"
                                   "others' work")
        self.assertNotIn("its own prompt", s["why"])
        list(first.events())

    def test_relegated_says_so(self):
        """600 tokens of 2 ms are beyond voice's target of 0.7 s, whoever else is there."""
        s = self.story(self.start("ann", "e" * 600, 2, "voice"))
        self.assertTrue(s["relegated"])
        self.assertIn("would have missed its target even alone", s["why"])

    def test_a_more_urgent_class(self):
        first = self.start("ann", "r" * 400, 2, "voice")
        s = self.story(self.start("ben", "less urgent", 2, "document"))
        self.assertRegex(s["why"], "more urgent class|a step that had begun before|others' work")
        list(first.events())


class Room(Base):
    options = ("--fake.step_ms", 10, "--fake.kv_blocks", 64, "--engine.max_seqs", 32)

    def test_no_room(self):
        """Sequences that fill the pool, then one that does not fit beside them."""
        filling = [self.start("ann", f"{i}" * 800, 60) for i in range(2)]  # 54 of 64 blocks
        s = self.story(self.start("ann", "v" * 800, 3))
        self.assertIn("kv", self.what(s))
        self.assertIn("no room in the attention cache", s["why"])
        for f in filling:
            list(f.events())


class Window(Base):
    """Utility requests that come in bursts are held for company."""
    options = ("--fake.step_ms", 30)

    def test_a_window(self):
        ids = []

        def ask(i):
            s = self.server.stream("/v1/completions", body(f"burst {i}", 1, user="ann"),
                                   headers={"X-Gamasot-Class": "background"})
            list(s.events())
            ids.append(s.headers["X-Request-Id"])
            s.close()
        for _ in range(8):
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
            for t in threads:
                t.start()
                time.sleep(0.002)
            for t in threads:
                t.join()
            self.server.wait_idle()
        stories = [self.server.get(f"/v1/requests/{i}").json["sequences"][0] for i in ids]
        held = [s for s in stories if "window" in self.what(s)]
        m = self.server.metrics()
        self.assertEqual(len([s for s in stories if s["wait_ms"].get("window", 0) > 0]),
                         m["windows_held_total"])
        for s in held:
            if s["wait_ms"]["window"] > 0.6 * s["ttft_ms"]:
                self.assertIn("held for company", s["why"])
