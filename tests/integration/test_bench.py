"""gamasot bench and gamasot trace: against a server of known delays, and beside drive.py."""

import json
import pathlib
import statistics
import subprocess
import sys
import unittest

import harness
from harness import Server, cli
from stub import Stub

REPO = pathlib.Path(__file__).resolve().parents[2]


def write_trace(name, requests):
    path = harness.TMP / name
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    return str(path)


def request(i, t, **more):
    return {"t": t, "id": f"r{i}", "person": "ana", "class": "chat", "api": "chat",
            "prompt_tokens": 20, "prefix_tokens": 0, "max_tokens": 6, "stream": True, **more}


def bench(url, trace, *args, timeout_s=90):
    out = harness.TMP / "bench.json"
    status, text, err = cli("bench", "--url", url, "--trace", trace, "--out", str(out), "--quiet",
                            *args, timeout_s=timeout_s)
    if status != 0:
        raise AssertionError(f"bench: {status} {err}")
    return json.loads(out.read_text()), text


class Honesty(unittest.TestCase):
    def within(self, got, want, share):
        self.assertLessEqual(abs(got / want - 1), share, (got, want))

    def test_known_delays_are_reported(self):
        # So long that this machine's own delays are lost in them.
        requests = [request(i, 0.11 * i) for i in range(40)]
        with Stub(first_s=1.6, gap_s=0.5) as stub:
            got, text = bench(stub.url, write_trace("known.jsonl", requests), "--ignore-eos")
        chat = got["summary"]["classes"]["chat"]
        for name, want in (("ttft_p50", 1.6), ("ttft_p95", 1.6), ("itl_p50", 0.5),
                           ("itl_p95", 0.5), ("tpot_p50", 0.5), ("completion_p50", 1.6 + 5 * 0.5)):
            self.within(chat[name], want, 0.02)
        self.assertEqual((chat["n"], chat["errors"]), (40, 0))
        self.assertEqual((chat["output_tokens"], chat["input_tokens"], chat["cached_tokens"]),
                         (240, 280, 120))
        self.assertIn("ttft_p95", chat["too_few_for"])
        self.assertIn("not enough samples for p99 of chat (40): 299 are needed", text)

    def test_a_stall_is_not_left_out(self):
        """Open loop: who comes during a stall of 5 s has waited, whatever the client did."""
        requests = [request(i, 0.1 * i, max_tokens=1) for i in range(80)]
        with Stub(first_s=0.05, gap_s=0.01, stall=(1.0, 6.0)) as stub:
            got, _ = bench(stub.url, write_trace("stall.jsonl", requests), "--no-warm-up")
        times = sorted(r["first_s"] - r["due_s"] for r in got["requests"])
        self.assertEqual(len(times), 80)
        # 50 of the 80 were due while nothing moved: 5 s down to 0 s, so the mean of those is 2.5.
        waited = [t for t in times if t > 0.2]
        self.assertGreaterEqual(len(waited), 46)
        self.within(sum(waited) / len(waited), 2.5, 0.1)
        self.within(got["summary"]["classes"]["chat"]["ttft_p95"], 5.0 - 0.1 * 4, 0.05)

    def test_the_same_as_drive_py(self):
        trace = str(harness.TMP / "both.jsonl")
        self.assertEqual(cli("trace", "generate", "evening_peak", "--tokens-scale", "0.1",
                             "--no-embeddings", "--only", "chat", "--only", "voice", "--only",
                             "utility", "--scale", "6", "--duration", "1200", "--out", trace)[0], 0)
        with Server("--fake.step_ms", 40) as s:
            url = f"http://127.0.0.1:{s.port}"
            ours, _ = bench(url, trace, "--speed", "300", "--ignore-eos", "--tokens-per-word", "5")
            out = harness.TMP / "drive.json"
            subprocess.run([sys.executable, REPO / "bench/family/drive.py", "--url", f"{url}/v1",
                            "--model", "fake", "--trace", trace, "--speed", "300", "--ignore-eos",
                            "--tokens-per-word", "5", "--out", out], check=True, timeout=110,
                           capture_output=True)
        theirs = json.loads(out.read_text())
        for name, a in ours["summary"]["classes"].items():
            b = theirs["summary"]["classes"][name]
            self.assertEqual((a["n"], a["errors"], a["output_tokens"]),
                             (b["n"], b["errors"], b["output_tokens"]))
            for key in ("ttft_p50", "tpot_p50", "completion_p50"):
                if b[key] is not None:
                    self.within(a[key], b[key], 0.25)
        # drive.py's own reader understands the result.
        done = subprocess.run([sys.executable, REPO / "bench/family/compare.py", out,
                               harness.TMP / "bench.json"], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        status, text, _ = cli("bench", "--compare", str(out), str(harness.TMP / "bench.json"),
                              "--html", str(harness.TMP / "compare.html"))
        self.assertEqual(status, 0)
        self.assertRegex(text, r"chat +TTFT p50 s +\d+\.\d+ +\d+\.\d+ +\d")


class Requests(unittest.TestCase):
    def test_what_is_sent(self):
        talk = {"id": "c", "turn": 0}
        requests = [
            request(1, 0, prefix_tokens=8, shared_prefix="app", conversation=talk),
            request(2, 0, after={"id": "r1", "think": 0.1}, conversation=talk | {"turn": 1},
                    prompt_tokens=40, prefix_tokens=26, shared_prefix="c"),
            request(3, 0, api="completions", stream=False, person="ben", **{"class": "utility"}),
            request(4, 0, api="embeddings", texts=3, max_tokens=0, **{"class": "background"}),
            request(5, 0.1, cancel_after=0.2, **{"class": "voice"}),
            request(6, 0.2, block_tokens=8, blocks=[5, 6]),
            request(7, 0.2, block_tokens=8, blocks=[5, 7]),
        ]
        html = harness.TMP / "report.html"
        with Stub(first_s=0.5, gap_s=0.01) as stub:
            got, _ = bench(f"{stub.url}/v1/", write_trace("sent.jsonl", requests), "--no-warm-up",
                           "--class-header", "X-Gamasot-Class", "--user", "--key-per-person",
                           "--html", str(html), "--target", "voice.ttft=0.1", "--salt", "5")
            seen = {}
            for headers, path, body in stub.seen:
                seen.setdefault((path, body.get("user")), []).append((headers, body))
        record = {r["id"]: r for r in got["requests"]}
        self.assertEqual(record["r5"]["status"], "cancelled")
        self.assertEqual({r["status"] for k, r in record.items() if k != "r5"}, {"ok"})
        self.assertGreaterEqual(record["r2"]["due_s"], record["r1"]["end_s"] + 0.099)
        self.assertEqual(record["r4"]["prompt_tokens"], 12)
        headers, body = seen["/v1/completions", "ben"][0]
        self.assertEqual(headers["Authorization"], "Bearer sk-family-ben")
        self.assertEqual(headers["X-Gamasot-Class"], "utility")
        self.assertEqual(len(body["prompt"].split()), 20)
        self.assertEqual(len(seen["/v1/embeddings", "ana"][0][1]["input"]), 3)
        chats = [body["messages"] for _, body in seen["/v1/chat/completions", "ana"]]
        second = next(m for m in chats if len(m) == 4)
        first = next(m for m in chats if len(m) == 2)
        self.assertEqual(second[:2], first)  # the real earlier messages, and what was answered
        self.assertEqual([m["role"] for m in second], ["system", "user", "assistant", "user"])
        self.assertEqual(second[2]["content"], "w0 w1 w2 w3 w4 w5 ")
        self.assertEqual(len(second[0]["content"].split()), 8)
        recorded = [m[0]["content"].split() for m in chats if len(m) == 1][1:]
        self.assertEqual(recorded[0][:8], recorded[1][:8])
        self.assertNotEqual(recorded[0][8:16], recorded[1][8:16])
        self.assertEqual(got["slo"]["voice"]["ttft"], 0.1)
        page = html.read_text()
        self.assertIn("<svg", page)
        self.assertNotIn("<script", page)
        self.assertNotRegex(page, r"https?://(?!127)")

    def test_what_fails_is_told(self):
        path = write_trace("one.jsonl", [request(1, 0)])
        status, _, err = cli("bench", "--url", "http://127.0.0.1:9", "--trace", path)
        self.assertEqual(status, 1)
        self.assertIn("does not answer", err)
        for url, word in (("https://x", "https"), ("ftp://x", "http://"), ("http://", "http://")):
            status, _, err = cli("bench", "--url", url, "--trace", path)
            self.assertNotEqual(status, 0)
            self.assertIn(word, err)
        self.assertEqual(cli("bench")[0], 2)
        self.assertEqual(cli("bench", "--speed", "x")[0], 2)
        with Server("--server.max_queued", 1, "--engine.max_seqs", 1, "--fake.step_ms", 30) as s:
            got, _ = bench(f"http://127.0.0.1:{s.port}", write_trace(
                "many.jsonl", [request(i, 0) for i in range(12)]), "--ignore-eos")
        statuses = [r["status"] for r in got["requests"]]
        self.assertIn("ok", statuses)
        self.assertIn("http", statuses)
        self.assertEqual({r["http_status"] for r in got["requests"] if r["status"] == "http"},
                         {429})

    def test_a_run_that_is_ended_early(self):
        requests = [request(1, 0, max_tokens=1000), request(2, 30)]
        with Stub(first_s=0.1, gap_s=0.05) as stub:
            got, text = bench(stub.url, write_trace("early.jsonl", requests), "--time-limit", "1")
        self.assertEqual([r["status"] for r in got["requests"]], ["unfinished"])
        self.assertEqual(got["not_started"], 1)
        self.assertIn("1 requests had not started", text)


class Traces(unittest.TestCase):
    def test_commands(self):
        out = harness.TMP / "t.jsonl"
        self.assertEqual(cli("trace", "generate", "voice_over_document", "--context", "2048",
                             "--out", str(out))[0], 0)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertTrue(all(r["prompt_tokens"] + r["max_tokens"] <= 2048 for r in lines))
        status, text, _ = cli("trace", "info", str(out))
        self.assertEqual(status, 0)
        self.assertIn(f"{len(lines)} requests", text)
        self.assertEqual(cli("sim", "--trace", str(out), "--device", "n100-135m")[0], 0)
        csv = harness.TMP / "azure.csv"
        csv.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,40,5\n")
        status, text, _ = cli("trace", "import", "azure", str(csv))
        self.assertEqual((status, json.loads(text)["prompt_tokens"]), (0, 40))
        self.assertEqual(cli("trace", "generate", "nothing")[0], 1)
        self.assertEqual(cli("trace")[0], 1)


class Engine(unittest.TestCase):
    def test_shares_of_the_ceilings(self):
        harness.model_path()  # is what the command finds by itself
        status, out, err = cli("bench", "--engine", "--decode", "1,3", "--prefill", "64", "--steps",
                               "4", "--model.context", "1024")
        self.assertEqual(status, 0, err)
        machine, prefill, one, three = map(json.loads, out.splitlines())
        # SmolLM2-135M: the matrices of its layers, and the embedding as output matrix
        layers, output = 106168320, 28311552
        if machine["int8_gops"] > 0:  # else this processor has no code path to measure
            for cell, s, ops in ((prefill, prefill["ms"], layers * 64 + output),
                                 (one, one["step_ms"], layers + output),
                                 (three, three["step_ms"], 3 * (layers + output))):
                got = cell["int8_share"] * machine["int8_gops"] * 1e9 * s / 1e3
                self.assertAlmostEqual(got / (2 * ops), 1, delta=0.03)
        read = one["read_share"] * machine["read_gbs"] * 1e9 * one["step_ms"] / 1e3
        # Q4_1 has 5 bits a weight, the output matrix 8.5; beside them the cache of 130 tokens
        want = layers * 5 / 8 + output * 8.5 / 8 + 130 * machine["kv_bytes_per_token"]
        self.assertAlmostEqual(read / want, 1, delta=0.05)
        self.assertNotIn("read_share", prefill)


class Recording(unittest.TestCase):
    def test_a_recorded_trace_is_played_again(self):
        folder = harness.TMP / "recorded"
        folder.mkdir()
        with Server("--record.enabled=true", "--record.folder", folder) as s:
            s.ok("/v1/completions", {"prompt": "the secret word is xylophone", "max_tokens": 40,
                                     "user": "mina", "ignore_eos": True})
            talk = [{"role": "user", "content": "xylophone " * 20}]
            answer = s.ok("/v1/chat/completions", {"messages": talk, "max_tokens": 64,
                                                   "user": "mina", "ignore_eos": True})
            talk += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
            s.ok("/v1/chat/completions", {"messages": talk, "max_tokens": 5, "user": "mina",
                                          "ignore_eos": True})
            stream = s.stream("/v1/chat/completions", {"messages": talk, "max_tokens": 3000,
                                                       "ignore_eos": True},
                              headers={"X-Gamasot-Class": "voice"})
            next(stream.events())
            stream.close()
            s.ok("/v1/embeddings", {"input": ["one text", "another text", "a third one"]})
            s.wait_idle()
        [path] = folder.iterdir()
        text = path.read_text()
        self.assertNotIn("xylophone", text)
        self.assertNotIn("mina", text)
        got = [json.loads(line) for line in text.splitlines()]
        texts = got.pop()
        self.assertEqual((texts["api"], texts["texts"]), ("embeddings", 3))
        self.assertEqual([r["class"] for r in got], ["chat", "chat", "chat", "voice"])
        self.assertEqual([r["api"] for r in got], ["completions"] + ["chat"] * 3)
        self.assertEqual([r["max_tokens"] for r in got], [40, 64, 5, 3000])
        self.assertEqual(got[2]["after"]["id"], got[1]["id"])
        self.assertEqual(got[2]["blocks"][:len(got[1]["blocks"]) - 1], got[1]["blocks"][:-1])
        self.assertGreater(got[3]["cancel_after"], 0)
        self.assertNotEqual(got[3]["person"], got[0]["person"])
        status, text, err = cli("sim", "--trace", str(path), "--device", "xeon2-135m")
        self.assertEqual((status, err), (0, ""))
        with Server() as s:
            played, _ = bench(f"http://127.0.0.1:{s.port}", str(path), "--ignore-eos")
        self.assertEqual([r["status"] for r in played["requests"]], ["ok"] * 3 + ["cancelled", "ok"])
        # The second turn finds what the first one left, by text made from the hashes alone.
        self.assertGreaterEqual(played["requests"][2]["cached_tokens"], 128)


class Agreement(unittest.TestCase):
    """The simulator against a server whose step times are known: the fake backend's."""

    STEP_MS, TOKEN_MS = 40, 0.2

    def device(self):
        path = harness.TMP / "fake-device.json"
        knots = {str(1 << i): self.STEP_MS + self.TOKEN_MS * (1 << i) for i in range(10)}
        path.write_text(json.dumps({
            "name": "fake", "knots_ms": knots, "kv_blocks": 4096, "layers": 1, "block_tokens": 32,
            "max_seqs": 64, "max_batch_tokens": 512, "prefill_chunk": 128, "max_context": 8192}))
        return str(path)

    def test_other_machines_take_part_in_a_simulation(self):
        trace = str(harness.TMP / "remotes.jsonl")
        self.assertEqual(cli("trace", "generate", "evening_peak", "--duration", "120", "--seed", "4",
                             "--out", trace)[0], 0)
        args = ("sim", "--trace", trace, "--device", "xeon2-135m", "--remotes")
        rc, out, _ = cli(*args, "xeon2-135m,n100-135m", "--check")
        self.assertEqual(rc, 0)
        for worker in ("local", "1-xeon2-135m", "2-n100-135m"):
            self.assertRegex(out, rf"(?m)^{worker} +\d+ requests, 0 faults")
        self.assertNotRegex(cli(*args, "xeon2-135m", "--round-robin")[1], "requests, 0 faults")
        self.assertEqual(cli(*args, "nowhere")[0], 1)

    def test_simulated_and_measured_times_agree(self):
        trace, out = str(harness.TMP / "agree.jsonl"), harness.TMP / "agree.json"
        self.assertEqual(cli("trace", "generate", "evening_peak", "--scale", "4", "--duration",
                             "500", "--tokens-scale", "0.25", "--no-embeddings", "--context",
                             "8000", "--seed", "4", "--out", trace)[0], 0)
        self.assertEqual(cli("sim", "--trace", trace, "--speed", "30", "--device", self.device(),
                             "--own-scopes", "--out", str(out))[0], 0)
        want, worst = json.loads(out.read_text()), {}
        us = int(1000 * self.TOKEN_MS)
        for _ in range(3):  # a busy machine may spoil a run, not three of them
            with Server("--fake.step_ms", self.STEP_MS, "--fake.token_us", us, "--fake.prefill_us",
                        us, "--fake.calibrated=true", check=False) as s:
                got, _ = bench(f"http://127.0.0.1:{s.port}", trace, "--speed", "30",
                               "--ignore-eos", "--class-header", "X-Gamasot-Class", "--user")
            worst = self.differences(want, got["summary"])
            middle = statistics.median(worst.values())
            if middle <= 0.1 and max(worst.values()) <= 0.3:
                break
        # A dozen requests of a class: where in a step they fall moves the class's median.
        self.assertLessEqual(middle, 0.1, worst)
        self.assertLessEqual(max(worst.values()), 0.3, worst)

    def differences(self, want, got):
        """What is streamed shows its first token and its gaps; of the rest only the end is seen."""
        out = {}
        for name, sim in want["classes"].items():
            real = got["classes"][name]
            pairs = {"completion_p50": sim["total_p50_s"]}
            if name in ("voice", "chat"):
                pairs |= {"ttft_p50": sim["ttft_p50_s"], "itl_p50": sim["gap_p50_s"]}
            for key, value in pairs.items():
                out[f"{name} {key}"] = abs(real[key] / value - 1)
        tokens = sum(k["tokens_out"] for k in want["classes"].values()) / want["seconds"]
        out["throughput"] = 2 * abs(got["totals"]["output_tok_s"] / tokens - 1)  # owed: 10 %
        return out


if __name__ == "__main__":
    unittest.main()
