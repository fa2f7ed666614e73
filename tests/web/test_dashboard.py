"""The dashboard over real servers: its numbers, names, keys, actions, and what it does when the
server goes away."""

import re
import subprocess
import sys
import tempfile
import time

import browser
import harness
from harness import wait_until
from remote import Remote
from test_workers import USER, config, section, wait_up, workers

HOSTILE = "<img src=x onerror=alert(1)>"
FIRST_PAINT_BYTES = 100_000


def number(text):
    return float(text.replace(",", "").replace("%", "").strip())


class Numbers(browser.PageTest):
    """A load that stands still: two run, three wait."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = harness.Server("--fake.step_ms", 20, "--engine.max_seqs", 2, "--fake.kv_blocks", 64)
        cls.load = browser.Load(cls.server)
        cls.load.add(5, max_tokens=500)

    @classmethod
    def tearDownClass(cls):
        cls.load.close()
        cls.server.wait_idle()
        cls.server.stop()

    def test_numbers_are_those_of_metrics(self):
        with self.visit(self.server) as v:
            v.wait_live()

            def agree():
                m = self.server.metrics()
                page = [number(v.text(s)) for s in ("#n-running", "#n-waiting", "#n-kv")]
                v.page.wait_for_timeout(50)
                return page == [m["num_requests_running"], m["num_requests_waiting"],
                                round(m["kv_cache_usage_perc"] * 100, 1)] and page
            page = wait_until("the page says what /metrics says", agree)
            self.assertEqual(page[:2], [2, 3])
            self.assertGreater(page[2], 0)
            # The lists are the same requests, and the picture has their steps.
            self.assertEqual(v.page.locator("#running > li").count(), 2)
            self.assertEqual(v.page.locator("#waiting > li").count(), 3)
            self.assertRegex(v.text("#waiting"), "no seat")
            v.page.click("#steps-table summary")
            v.page.wait_for_selector("#steps-table tbody tr")
            self.assertIn("Chat", v.text("#steps-table"))
            # The map's table counts the blocks that are held.
            v.page.click("#kv-pools summary")
            v.page.wait_for_selector("#kv-pools tbody tr")
            rows = v.page.evaluate("""[...document.querySelectorAll('#kv-pools tbody tr')].map((r) =>
                [...r.children].map((c) => c.innerText))""")
            self.assertEqual(sum(int(r[1]) for r in rows), 64)

    def test_first_paint_is_light(self):
        v = browser.Visit(self.server, None)
        cdp = v.context.new_cdp_session(v.page)
        cdp.send("Network.enable")
        sizes = []
        cdp.on("Network.loadingFinished", lambda e: sizes.append(e["encodedDataLength"]))
        v.page.goto(v.url + "/dashboard")
        v.wait_live()
        v.page.wait_for_selector("#lights li")
        paint = v.page.evaluate("performance.getEntriesByName('first-contentful-paint').length")
        v.close()
        self.assertEqual(paint, 1)
        print(f"     the dashboard transfers {sum(sizes)} bytes in {len(sizes)} files before its first data")
        self.assertLess(sum(sizes), FIRST_PAINT_BYTES)
        self.assertGreater(len(sizes), 5)

    def test_why_did_it_wait(self):
        with self.visit(self.server) as v:
            v.wait_live()
            v.page.click("#waiting button[data-act=why]")
            said = v.wait_text("dialog.story .lead", "waits|wait")
            self.assertIn("all seats were taken", said)
            self.assertIn("no seat", v.text("dialog.story .legend"))


class Names(browser.PageTest):
    """Whatever things are called: text."""

    def test_hostile_names_are_text(self):
        with harness.Server("--model-name", HOSTILE, "--fake.step_ms", 20) as server:
            with browser.Load(server) as load, self.visit(server) as v:
                load.add(1, user=HOSTILE)
                job = {"id": "b1", "status": "in_progress", "metadata": {"name": HOSTILE},
                       "request_counts": {"total": 3, "completed": 1, "failed": 0}}
                v.page.route("**/openapi.json", lambda r: r.fulfill(json={
                    "paths": {"/v1/batches": {}, "/v1/models": {}}}))
                v.page.route("**/v1/batches*", lambda r: r.fulfill(json={"data": [job]}))
                v.wait_live()
                v.wait_text("#running .who", "img")
                self.assertEqual(v.text("#running .who"), HOSTILE)
                v.page.check("input[name=kv-by][value=person]")
                v.wait_text("#kv-legend", "<img")
                v.view("people")
                v.wait_text("#people-rows", "<img")
                v.view("jobs")
                v.wait_text("#job-rows th", "<img")
                v.view("models")
                v.wait_text("#model-cards h3", "<img")
                v.view("settings")
                v.page.uncheck("#settings-live")
                v.wait_text("#option-list .fixed", "<img")
                self.assertEqual(v.page.locator("main img").count(), 0)
                self.assertEqual(v.dialogs, [])


class Machines(browser.PageTest):
    """Other machines: what the table says of them is what the server knows, whatever they say."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pc = Remote(["<img/src=x/onerror=alert(1)>"], gap_s=0.02)
        cls.nas = Remote(["big"])
        cls.server = harness.Server(*config(section("<img>", cls.pc, probe_ms=200),
                                            section("nas", cls.nas, timeout_ms=600000,
                                                    probe_ms=600000)))
        wait_up(cls.server, "<img>", "nas")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        for r in (cls.pc, cls.nas):
            r.__exit__()

    def wait_row(self, v, name, **cells):
        """Until all of these cells of that machine's row are as their patterns say."""
        v.page.wait_for_function(
            "([name, cells]) => [...document.querySelectorAll('#worker-rows tr')].some((r) =>"
            " r.querySelector('th').innerText === name && Object.entries(cells).every(([cell, p]) =>"
            " new RegExp(`^${p}$`).test(r.querySelector('.' + cell).innerText)))",
            arg=[name, cells])

    def test_the_table(self):
        ask = {"model": self.pc.models[0], "messages": USER}
        stream = self.server.stream("/v1/chat/completions", {**ask, "max_tokens": 1000})
        next(stream.events())
        self.server.ok("/v1/workers/nas/drain", {})
        with self.visit(self.server) as v:
            v.wait_live()
            v.view("models")
            self.wait_row(v, "this machine", state="there", running=r"0 of \d+", predicted="–")
            self.wait_row(v, "<img>", state="there", running="1 of 4", done="0",
                          predicted=r"[\d.]+ m?s")
            self.wait_row(v, "nas", state="finishing, then no more", running="0 of 4", predicted="–")
            # One goes away, the other fails in words that are no markup.
            stream.close()
            self.server.ok("/v1/chat/completions", {**ask, "max_tokens": 2})
            self.pc.kill()
            self.server.ok("/v1/workers/nas/resume", {})
            self.nas.mode, self.nas.says = "error", HOSTILE
            r = self.server.post("/v1/chat/completions", {"model": "big", "messages": USER})
            self.assertEqual(r.status, 503, r.body)
            self.assertEqual(workers(self.server)["nas"]["failure"], HOSTILE)
            self.wait_row(v, "<img>", state=r"does not answer \(it takes no connections\)",
                          running="0 of 4", done="1")
            self.wait_row(v, "nas", state=r"being asked \(<img src=x onerror=alert\(1\)>\)", faults="1")
            self.assertEqual(v.page.locator("main img").count(), 0)
            self.assertEqual(v.dialogs, [])


class Actions(browser.PageTest):
    """What one may do about a request."""

    def test_pause_and_stop(self):
        with harness.Server("--fake.step_ms", 20, "--fake.kv_blocks", 256) as server:
            with browser.Load(server) as load, self.visit(server) as v:
                load.add(1, user="Mina")
                v.wait_live()
                v.page.click("#running button[data-act=pause]")
                v.wait_text(".request .what", "paused by hand")
                steps = server.metrics()["steps_total"]
                v.page.click(".request button[data-act=resume]")
                server.wait_metric("steps_total", steps + 3)
                v.wait_text("#running .what", "of at most")
                v.page.click("#running button[data-act=stop]")
                server.wait_idle()
                v.wait_text("#n-running", "^0$")
                self.assertIn("Nobody", v.text("#running + p"))


class Targets(browser.PageTest):
    """Distributions, the trade-off, the past, and settings that change."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = harness.Server("--fake.step_ms", 2)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_distributions_are_those_of_metrics(self):
        for _ in range(7):
            self.server.complete("a question", 5)
        text = self.server.get("/metrics").text
        count = int(re.search(r'time_to_first_token_seconds_count\{[^}]*class="chat"[^}]*\} (\d+)',
                              text).group(1))
        with self.visit(self.server) as v:
            v.wait_live()
            v.view("targets")
            label = "#target-classes article:has(.c-chat) .hist >> nth=0"
            v.page.wait_for_selector(label)
            said = v.page.get_attribute(label, "aria-label")
            self.assertEqual(said, f"{count} of {count} within 2 s")

    def test_the_trade_off_and_the_past(self):
        curve = [{"load": n, "tokens_per_s": 50 * n, "ttft_p95_ms": 100 * n * n, "itl_p95_ms": 20,
                  "holds": n < 4} for n in range(1, 6)]
        with self.visit(self.server, None) as v:
            v.page.route("**/openapi.json", lambda r: r.fulfill(json={"paths": {"/v1/tune": {}}}))
            v.page.route("**/v1/tune", lambda r: r.fulfill(json={"curve": curve, "chosen": 2}))
            v.page.goto(v.url + "/dashboard")
            v.wait_live()
            v.view("targets")
            v.page.wait_for_selector("#tune-chart canvas")
            v.page.click("#tune-table summary")
            self.assertEqual(v.page.locator("#tune-table tbody tr").count(), 5)
            self.assertIn("0.9 s", v.text("#tune-table"))

    def test_looking_back(self):
        env = {"GAMASOT_STORE_FOLDER": tempfile.mkdtemp(prefix="history-", dir=harness.TMP)}
        with harness.Server("--metrics.history-s", 1, "--fake.step_ms", 20, env=env) as server:
            def of_the_hour():
                now = int(time.time())
                rows = server.get(f"/v1/history?from={now - 3600}&to={now + 60}&step=3600").json["rows"]
                return [(c["name"], c["requests"], c["ttft_ms"]["p95"])
                        for r in rows for c in r["classes"]]
            for _ in range(3):
                server.complete("yesterday", 4)
            wait_until("it is kept", lambda: sum(n for _, n, _ in of_the_hour()) == 3)
            self.assertEqual({c for c, _, _ in of_the_hour()}, {"chat"})
            with self.visit(server) as v:
                v.wait_live()
                v.view("targets")
                v.page.wait_for_selector("#history-chart canvas")
                v.page.click("#history-table summary")
                head = v.page.locator("#history-table thead th").all_inner_texts()
                self.assertIn("chat", [h.lower() for h in head])
                first = v.page.locator("#history-table tbody tr >> nth=0").inner_text()
                self.assertRegex(first, r"\d+ ms")
                v.page.select_option("#history-range", "evening")
                v.wait_text("#history-none", "Nothing was recorded")
                self.assertTrue(v.page.is_hidden("#history-chart"))

    def test_a_setting_changes_at_once(self):
        with self.visit(self.server, allow="400") as v:
            v.wait_live()
            v.view("settings")
            field = "[data-name='class_voice.ttft_ms'] input"
            v.page.fill(field, "850")
            v.wait_text("#settings-count", "1")
            v.page.click("#settings-save")
            wait_until("the server has it", lambda: self.server.get("/v1/config").json["options"][
                "class_voice.ttft_ms"] == 850)
            # What the server refuses is said beside the field, and nothing has changed.
            v.page.fill("[data-name='class_voice.share'] input", "7")
            v.page.click("#settings-save")
            v.wait_text(".option[data-name='class_voice.share'] .problem", "share")
            v.page.click("#settings-reset")
            v.page.fill("#settings-find", "background floor")
            self.assertEqual(v.page.locator(".option:visible").count(), 1)

    def test_background_is_paused_from_the_page(self):
        with self.visit(self.server) as v:
            v.wait_live()
            v.view("jobs")
            v.page.click("#jobs-pause")
            wait_until("paused", lambda: self.server.get("/v1/background").json["paused"])
            v.wait_text("#jobs-pause", "go on")
            v.page.click("#jobs-pause")
            v.wait_text("#jobs-pause", "Pause")


class Keys(browser.PageTest):
    """Who may see what, and where the key goes."""

    def setUp(self):
        self.state = harness.TMP / f"web-{self.id()}"
        self.state.mkdir()
        self.env = {"GAMASOT_SERVER_KEYS_FILE": "", "XDG_STATE_HOME": str(self.state)}

    def key(self, *args):
        return harness.cli("keys", "add", *args, env=self.env)[1].strip()

    def test_the_page_asks_for_a_key(self):
        admin, mina, joon = self.key("boss", "--admin"), self.key("mina"), self.key("joon")
        with harness.Server("--fake.step_ms", 20, env=self.env, key=admin) as server:
            with browser.Load(server) as load, self.visit(server, allow="401") as v:
                load.add(1, headers={"Authorization": f"Bearer {mina}"})
                load.add(1, headers={"Authorization": f"Bearer {joon}"})
                v.page.fill("#key-input", "wrong")
                v.page.keyboard.press("Enter")
                v.wait_text("dialog.ask .bad", "does not know")
                v.page.fill("#key-input", mina)
                v.page.keyboard.press("Enter")
                v.wait_live()
                # Her own request in full, his without name and buttons.
                v.wait_text("#running", "mina")
                self.assertIn("own requests", v.text("#viewer-note"))
                self.assertEqual(v.page.locator("#running > li").count(), 2)
                self.assertNotIn("joon", v.page.content())
                self.assertEqual(v.page.locator("#running button[data-act=stop]:visible").count(), 1)
                v.view("people")
                v.wait_text("#people-rows", "mina")
                self.assertNotIn("joon", v.page.content())
                # An admin sees both.
                v.page.click("#viewer-key")
                v.page.fill("#key-input", admin)
                v.page.keyboard.press("Enter")
                v.wait_text("#people-rows", "joon")
                self.assertEqual([u for u in v.requests if admin in u or mina in u], [])
                self.assertIsNone(v.page.evaluate("localStorage.getItem('gamasot.key')"))
                self.assertEqual(v.page.evaluate("sessionStorage.getItem('gamasot.key')"), admin)
                # Kept only when that is asked for.
                v.page.click("#link")
                v.page.fill("#key-input", admin)
                v.page.check("dialog.ask input[type=checkbox]")
                v.page.keyboard.press("Enter")
                v.page.wait_for_function("() => localStorage.getItem('gamasot.key') !== null")


class Lost(browser.PageTest):
    def test_old_numbers_are_shown_as_old(self):
        first = harness.Server("--fake.step_ms", 20)
        try:
            with self.visit(first, allow="ERR_|Failed to load") as v:
                v.wait_live()
                port = first.port
                first.kill()
                v.page.wait_for_selector("#link[data-link=lost]")
                self.assertTrue(v.page.evaluate("document.body.classList.contains('stale')"))
                with harness.Server("--fake.step_ms", 20, "--port", port) as second:
                    self.assertEqual(second.port, port)
                    v.wait_live()
                    self.assertFalse(v.page.evaluate("document.body.classList.contains('stale')"))
        finally:
            first.kill()


class Family(browser.PageTest):
    """The real model under a household's load."""

    @harness.limit(240)
    def test_an_evening(self):
        model = harness.model_path()
        family = harness.ROOT / "bench/family"
        trace = harness.TMP / "evening.jsonl"
        subprocess.run([sys.executable, family / "trace.py", "evening_peak", "--seed", "3", "--scale",
                        "2", "--tokens-scale", "0.1", "--duration", "700", "--no-embeddings", "--out",
                        trace], check=True, timeout=60)
        with harness.Server("--model", model, backend="native",
                            check=False) as server:
            name = server.get("/v1/models").json["data"][0]["id"]
            with open(harness.TMP / "drive.log", "wb") as log:
                drive = subprocess.Popen(
                    [sys.executable, family / "drive.py", "--url", f"http://127.0.0.1:{server.port}/v1",
                     "--model", name, "--trace", trace, "--speed", "60", "--time-limit", "8",
                     "--ignore-eos", "--no-warm-up", "--class-header", "X-Gamasot-Class"],
                    stdout=log, stderr=log)
            try:
                with browser.Load(server) as load, self.visit(server) as v:
                    for who, cls in (("Grandma", "voice"), ("Mina", "chat"), ("Joon", "chat")):
                        load.add(1, prompt=f"Tell {who} a story", max_tokens=1500, user=who,
                                 headers={"X-Gamasot-Class": cls})
                    v.wait_live()
                    v.page.wait_for_function("() => document.querySelector('#steps').ariaValueMax > 100")
                    v.wait_text("#running", "Grandma")
                    self.compare(server, v)
                    self.pictures(v)
                    load.close()
                    drive.wait(60 * harness.SLOWNESS)
                    server.wait_idle()
                    v.view("now")
                    v.wait_text("#n-running", "^0$")
            finally:
                drive.kill()
                drive.wait()

    def compare(self, server, v):
        """Prompt and generated tokens as the steps' picture has them, against the counters."""
        def agree():
            m = server.metrics()
            return (number(v.text("#n-running")) == m["num_requests_running"]
                    and number(v.text("#n-waiting")) == m["num_requests_waiting"])
        wait_until("the page says what /metrics says", agree, 30)

    def pictures(self, v):
        v.shot("dashboard-light-en", full_page=True)
        v.page.select_option("#theme", "dark")
        v.page.select_option("#language", "ko")
        v.page.wait_for_timeout(300)
        v.shot("dashboard-dark-ko", full_page=True)
        for name in ("people", "targets", "jobs", "models"):
            v.view(name)
            v.page.wait_for_timeout(400)
            v.shot(f"{name}-dark-ko", full_page=True)
        v.page.select_option("#theme", "light")
        v.page.select_option("#language", "en")
        v.view("targets")
        v.page.wait_for_timeout(400)
        v.shot("targets-light-en", full_page=True)
