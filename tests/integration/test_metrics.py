"""/metrics as others read it: promtool, an OpenMetrics parser, a client with its own clock."""

import bisect
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_0_0_4

import harness
from harness import cli, wait_until

REPO = pathlib.Path(harness.ROOT)
PACKAGING = REPO / "packaging"
OPEN = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
# vLLM's name, which promtool would rather not have for a histogram.
KNOWN = {'gamasot_iteration_tokens_total non-counter metrics should not have "_total" suffix'}
_promtool = []


def promtool(*args, **kw):
    if not _promtool:
        done = subprocess.run(["sh", "scripts/get-promtool", "build/promtool"], cwd=REPO,
                              capture_output=True, timeout=300)
        if done.returncode != 0:
            raise unittest.SkipTest(f"promtool can't be fetched: {done.stderr.decode()[-300:]}")
        _promtool.append(done.stdout.decode().strip())
    return subprocess.run([_promtool[0], *args], capture_output=True, timeout=120, **kw)


def families(text):
    return {f.name: f for f in text_0_0_4(text)}


class Forms(harness.SharedServer):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for i in range(3):
            cls.server.ok("/v1/completions", {"prompt": f"count {i}", "max_tokens": 5, "temperature": 0,
                                              "user": ('ann"\\', "ben", "carl")[i]})
        cls.server.post("/v1/completions", {"prompt": 7})

    def test_promtool_reads_it(self):
        done = promtool("check", "metrics", input=self.server.get("/metrics").body)
        said = {line for line in (done.stdout + done.stderr).decode().splitlines() if line}
        self.assertLessEqual(said, KNOWN)

    def test_both_forms_say_the_same(self):
        plain, om = self.server.get("/metrics"), self.server.get("/metrics", headers=OPEN)
        self.assertEqual(plain.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        self.assertEqual(om.headers["Content-Type"],
                         "application/openmetrics-text; version=1.0.0; charset=utf-8")
        a = {(s.name, *sorted(s.labels.items())): s.value
             for f in text_0_0_4(plain.text) for s in f.samples}
        fams = list(open_metrics(om.text))
        b = {(s.name, *sorted((k, str(float(v)) if k == "le" else v) for k, v in s.labels.items())): s.value
             for f in fams for s in f.samples}
        a = {(k[0], *((l, str(float(v)) if l == "le" else v) for l, v in k[1:])): v
             for k, v in a.items()}
        created = {k for k in b if k[0].endswith("_created")}
        self.assertGreater(len(created), 30)
        self.assertEqual(a.keys(), b.keys() - created)
        self.assertEqual({f.name: f.unit for f in fams}["gamasot_busy_seconds"], "seconds")
        for key in a:  # nothing is going on
            if "connections" not in key[0] and "_memory_" not in key[0]:
                self.assertEqual(a[key], b[key], key)

    def test_counts(self):
        f = families(self.server.get("/metrics").text)
        ttft = [s for s in f["gamasot_time_to_first_token_seconds"].samples if s.name.endswith("_count")]
        self.assertEqual({s.labels["person"]: s.value for s in ttft}, {'ann"\\': 1, "ben": 1, "carl": 1})
        codes = {s.labels["code"]: s.value for s in f["gamasot_requests"].samples}
        self.assertEqual(codes, {"200": 3, "400": 1})
        ends = {s.labels["finished_reason"]: s.value for s in f["gamasot_request_success"].samples}
        self.assertEqual(ends, {"length": 3})
        device = sum(s.value for s in f["gamasot_person_device_seconds"].samples)
        busy = f["gamasot_busy_seconds"].samples[0].value
        # Whole nanoseconds, but for how they are written.
        self.assertLessEqual(round(device * 1e9), round(busy * 1e9))
        self.assertGreater(device, 0.5 * busy)
        parts = sum(s.value for s in f["gamasot_step_part_seconds"].samples)
        self.assertAlmostEqual(parts, busy, places=6)

    def test_what_was_wasted(self):
        before = self.server.metrics()
        s = self.server.stream("/v1/completions", {"prompt": "left alone", "max_tokens": 3000,
                                                   "ignore_eos": True})
        next(s.events())
        s.close()
        self.server.wait_idle()
        after = self.server.metrics()
        self.assertGreaterEqual(after["wasted_tokens_total"], before.get("wasted_tokens_total", 0))
        gone = [s.value for s in families(self.server.get("/metrics").text)["gamasot_requests"].samples
                if s.labels["code"] == "499"]
        self.assertEqual(gone, [1])


class SeveralModels(unittest.TestCase):
    def test_each_has_its_label_and_the_sums_are_all(self):
        path = harness.TMP / "metrics-models.conf"
        path.write_text("[model digits]\nbackend = fake\nfake_kv_blocks = 96\n")
        with harness.Server("--config", path) as s:
            for model, n in (("fake", 3), ("digits", 7), ("digits", 5)):
                s.ok("/v1/completions", {"model": model, "prompt": model, "max_tokens": n,
                                         "ignore_eos": True})
            s.wait_idle()
            page = s.get("/metrics")
            done = promtool("check", "metrics", input=page.body)
            said = {line for line in (done.stdout + done.stderr).decode().splitlines() if line}
            self.assertLessEqual(said, KNOWN)
            list(open_metrics(s.get("/metrics", headers=OPEN).text))
            of = {}
            for f in text_0_0_4(page.text):
                for x in f.samples:
                    key = x.name.removeprefix("gamasot_"), x.labels.get("model")
                    of[key] = of.get(key, 0) + x.value
            for name, fake, digits in (("request_generation_tokens_sum", 3, 12),
                                       ("time_to_first_token_seconds_count", 1, 2),
                                       ("request_success_total", 1, 2), ("prompt_tokens_total", 4, 12),
                                       ("num_requests_running", 0, 0), ("num_requests_waiting", 0, 0)):
                self.assertEqual((of[name, "fake"], of[name, "digits"]), (fake, digits), name)
            self.assertEqual(of["kv_blocks", "digits"], 96)
            for name in ("kv_cache_usage_perc", "prefix_cache_queries_total", "num_preemptions_total",
                         "step_predicted_ratio_count", "step_model_median_error"):
                self.assertIn((name, "digits"), of)
            spent = sum(v for (name, _), v in of.items() if name == "step_part_seconds_total")
            busy = sum(v for (name, _), v in of.items() if name == "busy_seconds_total")
            self.assertAlmostEqual(spent, busy, places=6)


class Packaged(unittest.TestCase):
    def test_rules(self):
        folder = PACKAGING / "prometheus"
        done = promtool("check", "rules", "gamasot.rules.yml", cwd=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = promtool("test", "rules", "gamasot.rules.test.yml", cwd=folder)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr).decode()[-3000:])

    def test_every_metric_that_is_used_is_there(self):
        status, table, _ = cli("config", "metrics")
        self.assertEqual(status, 0)
        names = set(re.findall(r"`(gamasot_\w+)`", table))
        types = dict(re.findall(r"`(gamasot_\w+)` \| (\w+)", table))
        self.assertGreater(len(names), 40)
        used = {}
        for path in (PACKAGING / "grafana/gamasot.json", PACKAGING / "prometheus/gamasot.rules.yml",
                     PACKAGING / "prometheus/gamasot.rules.test.yml"):
            for name in re.findall(r"gamasot_\w+", path.read_text()):
                used[name] = path.name
        self.assertGreater(len(used), 20)
        for name, where in used.items():
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            known = name in names or (base in names and types[base] == "histogram")
            self.assertTrue(known, f"{name} of {where} is no metric")

    def test_the_dashboard_is_one(self):
        d = json.loads((PACKAGING / "grafana/gamasot.json").read_text())
        ids = [p["id"] for p in d["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        for p in d["panels"]:
            self.assertTrue(p["title"] and p["targets"])
            self.assertLessEqual(p["gridPos"]["x"] + p["gridPos"]["w"], 24)


class Access(unittest.TestCase):
    """Names of persons are for admins."""

    def test_keys(self):
        env = {"GAMASOT_SERVER_KEYS_FILE": str(harness.TMP / "metrics-keys.json")}
        keys = {}
        for name, *more in (("mum", "--admin"), ("ben",), ("eve",)):
            status, out, err = cli("keys", "add", name, *more, env=env)
            self.assertEqual(status, 0, err)
            keys[name] = re.search(r"gs-\w+|sk-\w+", out).group(0)
        with harness.Server("--fake.step_ms", 5, env=env, key=keys["mum"]) as s:
            def as_(name):
                return {"Authorization": f"Bearer {keys[name]}"}
            for name in ("ben", "eve"):
                s.ok("/v1/completions", {"prompt": f"secret of {name}", "max_tokens": 3},
                     headers=as_(name))
            admin, other = s.get("/metrics").text, s.get("/metrics", headers=as_("eve")).text
            self.assertIn('person="ben"', admin)
            self.assertNotIn("person=", other)
            self.assertNotIn("ben", other)
            self.assertEqual(s.request("GET", "/metrics", headers={"Authorization": ""}).status, 401)
            # The live view: everybody sees what runs, and names and ids of their own alone.
            from test_live import Viewer
            stream = s.stream("/v1/completions", {"prompt": "secret of ben", "max_tokens": 2000,
                                                  "ignore_eos": True}, headers=as_("ben"))
            mine = stream.headers["X-Request-Id"]
            seen = {}
            for name in ("mum", "ben", "eve"):
                v = Viewer(s, keys[name])
                state = v.next("state", lambda d: d["running"])
                seen[name] = json.dumps([v.seen["hello"], state])
                r = state["running"][0]
                told = name != "eve"
                self.assertEqual((r["id"], r["person"]), (mine, "ben") if told else (None, None))
                self.assertEqual(r["own"], name == "ben")
                self.assertEqual(v.seen["hello"][0]["admin"], name == "mum")
                people = {p["name"] for p in state["people"]}
                self.assertEqual(people - {"mum", "ben", "eve"}, set())
                self.assertEqual(people == {name}, name != "mum")
                v.close()
            for text in seen.values():
                self.assertNotIn("secret", text)
            self.assertNotIn("ben", seen["eve"])
            self.assertNotIn(mine, seen["eve"])
            # Acting on others' requests, and reading their story, takes an admin.
            path = f"/v1/requests/{mine}"
            for call in (lambda h: s.get(path, headers=h), lambda h: s.post(path + "/cancel", None, headers=h)):
                self.assertEqual(call(as_("eve")).status, 404)
                self.assertEqual(call(as_("mum")).status, 200)
            stream.close()


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


class OutsideClock(unittest.TestCase):
    """The histograms against the timings of a client of another make (bench/family/drive.py):
    p50 and p95 lie in the same bucket or the next one."""

    def replay(self, server, trace, speed, *options):
        out = harness.TMP / "drive-metrics.json"
        subprocess.run([sys.executable, REPO / "bench/family/drive.py", "--url",
                        f"http://127.0.0.1:{server.port}/v1", "--model",
                        server.get("/v1/models").json["data"][0]["id"], "--trace", trace, "--speed",
                        str(speed), "--ignore-eos", "--class-header", "X-Gamasot-Class",
                        "--no-warm-up", "--out", out, *options], check=True, timeout=110,
                       capture_output=True)
        return json.loads(out.read_text())["requests"]

    def agree(self, server, records):
        wait_until("idle", server.idle)
        f = families(server.get("/metrics").text)
        n_compared = 0
        for name, key in (("time_to_first_token", "ttft"), ("inter_token_latency", "itl")):
            counts = {}
            for s in f[f"gamasot_{name}_seconds"].samples:
                if s.name.endswith("_bucket"):
                    of = counts.setdefault(s.labels["class"], {})
                    of[float(s.labels["le"])] = of.get(float(s.labels["le"]), 0) + s.value
            for cls in ("chat", "voice"):
                done = [r for r in records if r["class"] == cls and r["status"] == "ok"]
                if key == "ttft":
                    client = [r["first_s"] - r["sent_s"] for r in done]
                else:
                    client = [g for r in done for g in r["gaps_s"]]
                bounds = sorted(counts[cls])
                n = counts[cls][bounds[-1]]
                self.assertGreaterEqual(len(client), 10, f"{cls} {key}")
                self.assertAlmostEqual(n, len(client), delta=0.1 * n, msg=f"{cls} {key}")
                for q in (0.5, 0.95):
                    ours = next(i for i, b in enumerate(bounds) if counts[cls][b] >= q * n)
                    theirs = bisect.bisect_left(bounds, quantile(client, q))
                    self.assertLessEqual(abs(ours - theirs), 1,
                                         f"{cls} {key} p{100 * q:g}: {bounds[ours]} for {quantile(client, q)}")
                    n_compared += 1
        self.assertEqual(n_compared, 8)

    def trace(self, *more):
        path = str(harness.TMP / "metrics-trace.jsonl")
        status, _, err = cli("trace", "generate", "evening_peak", "--no-embeddings", "--only", "chat",
                             "--only", "voice", "--out", path, *more)
        self.assertEqual(status, 0, err)
        return path

    def test_programmed_times(self):
        trace = self.trace("--tokens-scale", "0.1", "--scale", "12", "--duration", "1200")
        with harness.Server("--fake.step_ms", 30, "--fake.token_us", 300) as s:
            self.agree(s, self.replay(s, trace, 200, "--tokens-per-word", "5"))

    def test_the_real_model(self):
        trace = self.trace("--tokens-scale", "0.2", "--scale", "8", "--duration", "1200")
        # A thread for the model and one for the client: its own lag is to be small beside the times.
        with harness.Server("--model", harness.model_path(), "--engine.threads", 1, backend="native",
                            check=False) as s:
            self.agree(s, self.replay(s, trace, 50))


class History(unittest.TestCase):
    """Minutes of a second, in the store."""
    SHORT = ("--metrics.history_s", 1)
    assert_error = harness.SharedServer.assert_error

    def rows(self, server, query="", **kw):
        r = server.get(f"/v1/history{query}", **kw)
        self.assertEqual(r.status, 200, r.body)
        return r.json["rows"]

    def total(self, rows, cls, key):
        return sum(c[key] for r in rows for c in r["classes"] if c["name"] == cls)

    def counted(self, server, cls, n):
        def kept():
            rows = self.rows(server)
            return rows if self.total(rows, cls, "requests") >= n else None
        rows = wait_until("the minutes are kept", kept)
        self.assertEqual(self.total(rows, cls, "requests"), n)
        return rows

    def test_it_outlives_the_server(self):
        env = {"GAMASOT_STORE_FOLDER": tempfile.mkdtemp(prefix="history-", dir=harness.TMP)}
        slow = (*self.SHORT, "--fake.step_ms", 5)
        with harness.Server(*slow, env=env) as s:
            for i in range(4):
                s.complete(f"count {i}", 30, ignore_eos=True)
            s.ok("/v1/completions", {"prompt": "hello", "max_tokens": 5},
                 headers={"X-Gamasot-Class": "voice"})
            rows = self.counted(s, "chat", 4)
            self.assertEqual(self.total(rows, "chat", "output_tokens"), 120)
            self.assertEqual(sum(c["itl_ms"]["n"] for r in rows for c in r["classes"]
                                 if c["name"] == "chat"), 4 * 29)
            self.counted(s, "voice", 1)
            wait_until("a minute at rest", lambda: self.rows(s)[-1]["busy"] == 0)
            rows = self.rows(s)
            times = [r["t"] for r in rows]
            self.assertEqual(times, sorted(set(times)))
            self.assertGreater(sum(r["busy"] * r["seconds"] for r in rows), 0.5)  # 120 steps of 5 ms
            self.assertTrue(all(0 <= r["busy"] <= 1 and 0 <= r["kv"] <= 1 for r in rows), rows)
        with harness.Server(*self.SHORT, env=env) as s:
            s.complete("once more", 3, ignore_eos=True)
            rows = self.counted(s, "chat", 5)
            # The same in one row.
            to = rows[-1]["t"] + 3  # an hour in 1,500 rows: of 3 s
            one, = self.rows(s, f"?from={to - 3600}&to={to}&step=3600")
            chat, = [c for c in one["classes"] if c["name"] == "chat"]
            self.assertEqual((chat["requests"], chat["output_tokens"], chat["ttft_ms"]["n"]), (5, 123, 5))
            self.assertGreaterEqual(chat["itl_ms"]["p50"], 2.5)  # the bucket of 5 ms begins there
            self.assertLessEqual(chat["ttft_ms"]["p50"], chat["ttft_ms"]["p95"])

    def test_what_it_is_asked(self):
        with harness.Server(*self.SHORT) as s:
            for query, field in (("from=x", "from"), ("from=-1", "from"), ("from=10&to=10", "from"),
                                 ("from=99999999999999999999999999", "from"), ("to=0", "to"),
                                 ("to=1.5", "to"), ("step=0", "step"), ("step=2592001", "step"),
                                 ("from=0&to=150001&step=100", "step"), ("step=+60", "step")):
                self.assert_error(s.get(f"/v1/history?{query}"), 400, field)
            r = s.get("/v1/history?from=0&to=150000&step=100")
            self.assertEqual(r.json, {"from": 0, "to": 150000, "step": 100, "rows": []})
            self.assertGreaterEqual(s.get("/v1/history?from=0&to=150001").json["step"], 101)

    def test_without_a_folder_there_is_none(self):
        with harness.Server(*self.SHORT, env={"GAMASOT_STORE_FOLDER": "/proc/nowhere"}) as s:
            s.complete("hello", 3)
            self.assertEqual(self.rows(s), [])

    def test_it_takes_an_admin_where_keys_exist(self):
        keys = str(pathlib.Path(tempfile.mkdtemp(dir=harness.TMP)) / "keys.json")
        env = {"GAMASOT_SERVER_KEYS_FILE": keys}
        made = {}
        for name, *more in (("mum", "--admin"), ("ben",)):
            status, out, err = cli("keys", "add", name, *more, env=env)
            self.assertEqual(status, 0, err)
            made[name] = re.search(r"gs-\w+|sk-\w+", out).group(0)
        with harness.Server(env=env, key=made["mum"]) as s:
            self.rows(s)
            self.assertEqual(s.get("/v1/history", headers={
                "Authorization": f"Bearer {made['ben']}"}).status, 403)
            self.assertEqual(s.get("/v1/history", headers={"Authorization": "Bearer no"}).status, 401)


if __name__ == "__main__":
    unittest.main()
