"""How the pages are served, their words, and what axe-core says of them."""

import contextlib
import gzip
import re
import subprocess
import sys
import unittest

import browser
import harness

SRC = harness.ROOT / "src/web"
LIBS = harness.ROOT / "build/web-libs"
VIEWS = ("now", "people", "targets", "jobs", "models", "settings")


class Served(harness.SharedServer):
    """Without a browser: headers, compression, caching."""

    options = ("--api-key", "secret")
    key = "secret"

    def ask(self, path, method="GET", headers=None):
        """Without the key."""
        with contextlib.closing(self.server.connect()) as c:
            c.request(method, path, headers=headers or {})
            r = c.getresponse()
            return harness.Response(r.status, r.headers, r.read())

    def paths(self):
        return ["/dashboard", "/chat", *(f"/web/{p.name}" for p in SRC.iterdir()
                                         if p.suffix in (".js", ".css", ".svg"))]

    def test_pages_need_no_key_and_say_what_they_may(self):
        for path in self.paths():
            with self.subTest(path=path):
                r = self.ask(path)
                self.assertEqual(r.status, 200)
                name = path.removeprefix("/web/") if path.startswith("/web/") else path[1:] + ".html"
                self.assertEqual(r.body, (SRC / name).read_bytes())
                self.assertIsNone(r.headers["Content-Encoding"])
                self.assertEqual(r.headers["X-Content-Type-Options"], "nosniff")
                self.assertEqual(r.headers["Referrer-Policy"], "no-referrer")
                policy = r.headers["Content-Security-Policy"]
                for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'",
                             "require-trusted-types-for 'script'"):
                    self.assertIn(part, policy)
                self.assertNotIn("unsafe", policy)

    def test_gzip_and_etag(self):
        for path in self.paths():
            with self.subTest(path=path):
                plain = self.ask(path)
                packed = self.ask(path, headers={"Accept-Encoding": "br, gzip"})
                self.assertEqual(packed.headers["Content-Encoding"], "gzip")
                self.assertEqual(gzip.decompress(packed.body), plain.body)
                self.assertEqual(packed.headers["Vary"], "Accept-Encoding")
                same = self.ask(path, headers={"If-None-Match": packed.headers["ETag"]})
                self.assertEqual((same.status, same.body), (304, b""))
                other = self.ask(path, headers={"If-None-Match": '"other"'})
                self.assertEqual(other.status, 200)
        refused = self.ask("/chat", headers={"Accept-Encoding": "gzip;q=0"})
        self.assertIsNone(refused.headers["Content-Encoding"])
        head = self.ask("/dashboard", "HEAD")
        self.assertEqual((head.status, head.body), (200, b""))

    def test_what_is_not_there(self):
        for path in ("/web/none.js", "/web/dashboard.html", "/web/..%2fdashboard", "/dashboard/"):
            self.assertEqual(self.ask(path).status, 404, path)
        self.assertEqual(self.ask("/dashboard", "POST").status, 405)
        self.assertEqual(self.ask("/v1/config").status, 401)

    def test_the_same_files_give_the_same_table(self):
        files = sorted([*SRC.glob("*.html"), *SRC.glob("*.js"), *LIBS.glob("*.js")])
        outs = [harness.TMP / f"files{i}.c" for i in range(2)]
        for out, order in zip(outs, (files, files[::-1])):
            subprocess.run([sys.executable, "scripts/embed-web", out, *order], cwd=harness.ROOT,
                           check=True)
        self.assertEqual(outs[0].read_bytes(), outs[1].read_bytes())


class Sources(unittest.TestCase):
    """No markup out of text, nothing inline, nothing from elsewhere."""

    def test_sources(self):
        for path in SRC.iterdir():
            text = path.read_text()
            with self.subTest(path=path.name):
                if path.suffix == ".html":
                    self.assertNotRegex(text, r"<script(?![^>]*\bsrc=)")
                    self.assertNotRegex(text, r"<style|\sstyle=|\son\w+=")
                if path.suffix in (".html", ".css", ".js"):
                    self.assertEqual([u for u in re.findall(r"https?://[^\s\"')]+", text)
                                      if "www.w3.org" not in u], [])
                if path.suffix == ".js":
                    self.assertNotRegex(text, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|"
                                              r"\beval\(|new Function")


class Words(browser.PageTest):
    """Both languages have all words, with the same places for values."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with harness.Server() as server:
            v = browser.Visit(server, "/chat")
            cls.words = v.page.evaluate("""async () => {
                const {languages} = await import('/web/text.js');
                return Object.fromEntries(Object.entries(languages).map(([k, l]) => [k, l.words])); }""")
            cls.filled = v.page.evaluate("""async () => {
                const {fill} = await import('/web/text.js');
                return ['엄마', '아들', '민준', '7', '2', 'Kim', 'Joe'].map((who) =>
                  fill('{who:이/가}|{who:은/는}|{who:으로/로}', {who})); }""")
            v.close()

    def test_all_words_in_all_languages(self):
        self.assertEqual(set(self.words), {"en", "ko"})
        en, ko = self.words["en"], self.words["ko"]
        self.assertEqual(list(en), list(ko))
        names = lambda text: sorted(set(re.findall(r"\{(\w+)", text)))  # noqa: E731
        for key in en:
            self.assertTrue(en[key].strip() and ko[key].strip(), key)
            self.assertEqual(names(en[key]), names(ko[key]), key)

    def test_every_word_that_is_asked_for_is_there(self):
        en = self.words["en"]
        for path in SRC.iterdir():
            if path.suffix not in (".js", ".html") or path.name == "text.js":
                continue
            text = path.read_text()
            asked = set(re.findall(r"data-t(?:-[\w-]+)?[\"']?[=:]\s*\"([\w.]+)\"", text))
            asked |= set(re.findall(r"\bt\(\"([\w.]+)\"", text))
            for key in asked:
                self.assertIn(key, en, path.name)

    def test_every_reason_of_the_scheduler_has_words(self):
        text = (harness.ROOT / "src/sched/explain.h").read_text()
        names = re.findall(r'X\([A-Z_]+, "(\w+)"', text.split("GS_WAIT_MAP(X)")[1].split("typedef")[0])
        self.assertIn("kv", names)
        for name in names:
            self.assertIn(f"why.{name}", self.words["en"])
            self.assertIn(f"reason.{name}", self.words["en"])

    def test_no_word_is_kept_for_nobody(self):
        text = "".join(p.read_text() for p in SRC.iterdir()
                       if p.suffix in (".js", ".html") and p.name != "text.js")
        # Some are put together: t(`why.${cause}`).
        stems = tuple(set(re.findall(r"[`\"]([\w.]+\.)\$\{", text)) | {"col."})
        for key in self.words["en"]:
            self.assertTrue(f'"{key}"' in text or key.startswith(stems), key)

    def test_particles(self):
        self.assertEqual(self.filled, ["엄마가|엄마는|엄마로", "아들이|아들은|아들로",
                                       "민준이|민준은|민준으로", "7이|7은|7로", "2가|2는|2로",
                                       "Kim이|Kim은|Kim로", "Joe가|Joe는|Joe로"])


class Accessible(browser.PageTest):
    """axe-core, both looks, every view; small screens; the keyboard alone."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = harness.Server("--fake.step_ms", 20, "--engine.max_seqs", 3)
        cls.load = browser.Load(cls.server)
        cls.load.add(5)

    @classmethod
    def tearDownClass(cls):
        cls.load.close()
        cls.server.wait_idle()
        cls.server.stop()

    def test_axe_finds_nothing_serious(self):
        # In the other look only colours are other ones.
        for theme, rules, views in (("light", None, VIEWS),
                                    ("dark", ["color-contrast"], ("now", "people", "targets", "settings"))):
            with self.visit(self.server, theme=theme, lang="ko-KR" if theme == "dark" else "en-US") as v:
                v.wait_live()
                for name in views:
                    v.view(name)
                    v.page.wait_for_timeout(200)
                    with self.subTest(view=name, theme=theme):
                        self.assertEqual(v.axe(rules), [])
                v.view("now")
                v.page.click("#running button[data-act=why]")
                v.page.wait_for_selector("dialog.story .story-bar")
                self.assertEqual(v.axe(rules), [])
            with self.visit(self.server, "/chat", theme=theme) as v:
                v.page.wait_for_selector("#model option", state="attached")
                v.page.click("#options summary")
                self.assertEqual(v.axe(rules), [])

    def test_a_phone_scrolls_one_way_only(self):
        with self.visit(self.server, width=360, height=740, lang="ko-KR") as v:
            v.wait_live()
            for name in VIEWS:
                v.view(name)
                width = v.page.evaluate("document.documentElement.scrollWidth")
                self.assertLessEqual(width, 360, name)
            v.view("now")
            v.shot("phone-ko", full_page=True)
        with self.visit(self.server, "/chat", width=360, height=740) as v:
            self.assertLessEqual(v.page.evaluate("document.documentElement.scrollWidth"), 360)

    def focused(self, v):
        return v.page.evaluate("document.activeElement.id || document.activeElement.hash || "
                               "document.activeElement.className")

    def test_the_keyboard_is_enough(self):
        with self.visit(self.server) as v:
            v.wait_live()
            v.wait_text("#steps-detail", ".")
            keys = v.page.keyboard
            keys.press("Tab")
            self.assertEqual(self.focused(v), "#main")  # the skip link
            seen = []
            while "steps" not in seen:
                keys.press("Tab")
                seen.append(self.focused(v))
                self.assertLess(len(seen), 40, seen)
            for link in ("#now", "#people", "#settings", "link", "language", "theme"):
                self.assertIn(link, seen)
            # The picture can be read step by step.
            v.page.wait_for_function("() => document.querySelector('#steps').ariaValueMax > 20")
            keys.press("ArrowLeft")
            first = v.page.get_attribute("#steps", "aria-valuetext")
            keys.press("ArrowLeft")
            second = v.page.get_attribute("#steps", "aria-valuetext")
            number = lambda text: int(re.search(r"Step (\d+)", text).group(1))  # noqa: E731
            self.assertEqual(number(first) - number(second), 1)
            self.assertEqual(v.text("#steps-detail"), second)
            keys.press("Escape")
            # A view by Enter, and the focus goes to it.
            v.page.focus("nav a[href='#people']")
            keys.press("Enter")
            v.page.wait_for_selector("#view-people:not([hidden])")
            self.assertEqual(self.focused(v), "main")
            # A dialog takes the focus, and Escape ends it.
            v.view("now")
            v.page.focus("#running button[data-act=why]")
            keys.press("Enter")
            v.page.wait_for_selector("dialog[open] .story-bar")
            keys.press("Escape")
            v.page.wait_for_selector("dialog", state="detached")

    def test_little_motion_where_it_is_not_wanted(self):
        with self.visit(self.server, reduced_motion="reduce") as v:
            v.wait_live()
            self.assertEqual(v.page.evaluate(
                "document.getAnimations().filter((a) => a.playState === 'running').length"), 0)

    def test_screen_readers_are_left_in_peace(self):
        """The live regions change seldom, whatever goes on."""
        with self.visit(self.server) as v:
            v.wait_live()
            n = v.page.evaluate("""() => new Promise((resolve) => {
                let n = 0;
                const watch = new MutationObserver(() => n++);
                for (const el of document.querySelectorAll('[role=status], [aria-live], [role=alert]'))
                  watch.observe(el, {childList: true, characterData: true, subtree: true});
                setTimeout(() => resolve(n), 3000); })""")
            self.assertLessEqual(n, 1)
