"""gamasot tune: the search on a simulated machine, and the best candidate on a real server."""

import json
import unittest

import harness
from harness import Server, cli, wait_until


def tune(*args, timeout_s=100):
    env = {"XDG_STATE_HOME": str(harness.TMP / "tune-state")}
    status, text, err = cli("tune", "--quiet", *args, env=env, timeout_s=timeout_s)
    if status != 0:
        raise AssertionError(f"tune: {status} {err}")
    return text


def evening(name="tune-evening.jsonl", *args):
    path = harness.TMP / name
    if cli("trace", "generate", "evening_peak", "--duration", "1800", "--out", str(path),
           *args)[0] != 0:
        raise AssertionError("trace generate")
    return str(path)


class Search(unittest.TestCase):
    def test_finds_and_explains(self):
        out, conf, page = (harness.TMP / n for n in ("tune.json", "tuned.conf", "tune.html"))
        # So many that they do stand in each other's way.
        trace = evening("tune-busy.jsonl", "--duration", "300", "--scale", "30",
                        "--no-embeddings", "--only", "chat", "--only", "voice")
        search = ("--trace", trace, "--device", "xeon2-1.5b", "--device", "desktop16-1.5b",
                  "--candidates", "8", "--rounds", "1", "--seeds", "1")
        text = tune(*search, "--out", str(out), "--config-out", str(conf), "--report", str(page))
        got = json.loads(out.read_text())
        self.assertIn("This machine carries", text)
        self.assertIn("with 90 % confidence", text)
        self.assertGreaterEqual(got["tokens_per_s"], got["default_tokens_per_s"])
        self.assertEqual(got["machine"], "desktop16-1.5b")  # a choice like any other
        chosen = got["curve"][got["chosen"]]
        self.assertTrue(chosen["holds"])
        self.assertAlmostEqual(chosen["load"], got["load"], places=6)
        self.assertFalse(got["curve"][-1]["holds"])
        self.assertIn(":", got["curve"][-1]["breaks"])
        self.assertEqual(got["unattainable"], [])
        # What is written is a configuration file, and only holds what differs.
        status, shown, err = cli("config", "show", "--config", str(conf))
        self.assertEqual((status, err), (0, ""))
        shown = json.loads(shown)
        for option, value in got["settings"].items():
            if isinstance(value, str):
                self.assertEqual(shown[option], value, option)
            else:
                self.assertAlmostEqual(float(shown[option]), value, places=6, msg=option)
        html = page.read_text()
        self.assertEqual(html.count("<svg"), 2)
        self.assertNotIn("<script", html)
        # The same again is the same.
        again = harness.TMP / "again.json"
        tune(*search, "--out", str(again))
        second = json.loads(again.read_text())
        self.assertEqual(second["settings"], got["settings"])
        # The server shows what was left in its state folder.
        state = harness.TMP / "tune-state/gamasot"
        with Server("--store.folder", state) as s:
            shown = s.get("/v1/tune")
            self.assertEqual(shown.status, 200, shown.body)
            self.assertEqual(shown.json["chosen"], second["chosen"])
            self.assertEqual(shown.json["live"]["on"], False)

    def test_what_can_not_be(self):
        """Sixteen thousand tokens within the target of a spoken request, on a small machine."""
        path = harness.TMP / "impossible.jsonl"
        path.write_text("".join(json.dumps(
            {"t": 60.0 * i, "id": f"r{i}", "person": "ana", "class": "voice", "api": "chat",
             "prompt_tokens": 16000, "max_tokens": 20}) + "\n" for i in range(5)))
        out = harness.TMP / "impossible.json"
        text = tune("--trace", str(path), "--device", "n100-135m", "--candidates", "8", "--seeds",
                    "1", "--no-state", "--out", str(out))
        self.assertIn("spoken requests can't be met on this machine", text)
        self.assertEqual(json.loads(out.read_text())["unattainable"], ["voice"])

    def test_wrong_input(self):
        path = evening()
        for args, word in ((("--device", "nothing"), "nothing"), (("--set", "no.such=1"), "no.such"),
                           (("--set", "x"), "OPTION=VALUE"),
                           (("--variant", "engine.threads=x"), "engine.threads")):
            status, _, err = cli("tune", "--trace", path, "--quiet", *args)
            self.assertEqual(status, 1, args)
            self.assertIn(word, err)
        self.assertEqual(cli("tune")[0], 2)


class Confirmed(unittest.TestCase):
    def load_on(self, step_ms, token_ms):
        """An evening of chats and voices, on a device with such steps."""
        device = harness.TMP / "fake-tune.json"
        device.write_text(json.dumps({
            "name": "fake",
            "knots_ms": {str(1 << i): step_ms + token_ms * (1 << i) for i in range(10)},
            "kv_blocks": 4096, "layers": 1, "block_tokens": 32, "max_seqs": 64,
            "max_batch_tokens": 512, "prefill_chunk": 128, "max_context": 8192}))
        trace = evening("tune-short.jsonl", "--tokens-scale", "0.1", "--no-embeddings", "--only",
                        "chat", "--only", "voice", "--scale", "4")
        return "--trace", trace, "--device", str(device)

    def test_on_a_real_server(self):
        out = harness.TMP / "confirmed.json"
        tune(*self.load_on(5, 0.1), "--candidates", "8", "--seeds", "1",
             "--no-state", "--out", str(out), "--confirm", "1", "--confirm-limit", "8", "--set",
             "model.backend=fake,fake.step_ms=5,fake.prefill_us=100,fake.token_us=100")
        got = json.loads(out.read_text())
        self.assertEqual(got["measured"][0]["load"], got["load"])
        self.assertEqual({m["candidate"] for m in got["measured"]}, {1})
        self.assertFalse(any(m["holds"] for m in got["measured"][:-1]))
        self.assertGreater(got["measured"][0]["output_tok_s"], 0)

    @harness.long_only
    def test_what_is_missed_is_tried_with_less(self):
        """A device that is said to be much faster than the server: reality decides."""
        out = harness.TMP / "less.json"
        said = tune(*self.load_on(0.2, 0.01), "--candidates", "0", "--rounds", "0", "--seeds", "1",
                    "--no-state", "--out", str(out), "--confirm", "1",
                    "--confirm-limit", "1", "--set",
                    "model.backend=fake,fake.step_ms=100,fake.prefill_us=500,fake.token_us=2000")
        got = json.loads(out.read_text())["measured"]
        self.assertEqual({m["candidate"] for m in got}, {1})
        self.assertFalse(got[0]["holds"])
        self.assertTrue(got[-1]["holds"] or len(got) == 4)
        for more, less in zip(got, got[1:]):
            self.assertAlmostEqual(less["load"] / more["load"], 0.75, delta=0.001)
        self.assertIn("every target held" if got[-1]["holds"] else "some target was still missed", said)


class Live(unittest.TestCase):
    def test_is_off_until_asked_for(self):
        with Server() as s:
            self.assertEqual((s.get("/v1/tune").json["curve"], s.get("/v1/tune").json["live"]["on"]),
                             ([], False))
            s.request("PATCH", "/v1/config", {"tune.live": True, "tune.interval_s": 1})
            wait_until("live tuning", lambda: s.get("/v1/tune").json["live"]["on"])
            self.assertEqual(s.metrics()["tune_live"], 1)

    def test_tries_and_takes_back(self):
        with Server("--tune.live=true", "--tune.interval_s=1", "--fake.step_ms=2") as s:
            def tried():
                for _ in range(3):
                    s.complete("hello", 3)
                m = s.metrics()
                return m["tune_kept_total"] + m["tune_reverted_total"] >= 1
            wait_until("a decision", tried, 40)
            got = s.get("/v1/tune").json["live"]
            self.assertTrue(got["on"])
            whats = [x["what"] for x in got["log"]]
            self.assertIn("try", whats)
            self.assertTrue({"keep", "revert"} & set(whats))
            for x in got["log"]:
                self.assertIn("predicted", x)
            # What it says is set is what is set; a person's word counts more.
            options = s.get("/v1/config").json["options"]
            live = s.get("/v1/tune").json["live"]["settings"]
            same = sum(abs(options[k] - v) < 1e-9 for k, v in live.items())
            self.assertGreaterEqual(same, len(live) - 1)  # one may move between the two questions
            s.request("PATCH", "/v1/config", {"tune.live": False})
            wait_until("the end of it", lambda: s.metrics()["tune_live"] == 0)


if __name__ == "__main__":
    unittest.main()
