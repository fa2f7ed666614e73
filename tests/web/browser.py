"""A real browser for the tests of the pages: Debian's Chromium, driven by Playwright."""

import atexit
import contextlib
import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from playwright.sync_api import sync_playwright

import harness

PAGES = ("dashboard", "chat")
SHOTS = harness.ROOT / "build" / "screenshots"
_state = {}


def chromium():
    """The one browser of this run; it ends with the process. Skips where there is none."""
    if "browser" not in _state:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        if not path:
            raise unittest.SkipTest("no browser can be installed (Debian's chromium)")
        atexit.register(close)
        _state["playwright"] = sync_playwright().start()
        _state["browser"] = _state["playwright"].chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
    return _state["browser"]


def close():
    if "browser" in _state:
        _state["browser"].close()
        _state["playwright"].stop()
        _state.clear()


@functools.cache
def axe_source():
    node = subprocess.run(["sh", "scripts/test-node", sys.executable], cwd=harness.ROOT,
                          capture_output=True, timeout=600, check=True).stdout.decode().split("\n")
    return (pathlib.Path(node[1]) / "node_modules/axe-core/axe.min.js").read_text()


class Visit:
    """One page in a context of its own (no cookies, no storage), and all that it did."""

    def __init__(self, server, path="/dashboard", *, lang="en-US", theme="light", width=1280,
                 height=900, key=None, **options):
        self.server = server
        self.url = f"http://127.0.0.1:{server.port}"
        self.context = chromium().new_context(locale=lang, color_scheme=theme, viewport={
            "width": width, "height": height}, **options)
        self.context.set_default_timeout(20_000 * harness.SLOWNESS)
        if key:
            self.context.add_init_script(
                f"sessionStorage.setItem('gamasot.key', {json.dumps(key)})")
        self.page = self.context.new_page()
        self.console, self.errors, self.requests, self.dialogs = [], [], [], []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("dialog", self._on_dialog)
        if path:
            self.page.goto(self.url + path)

    def _on_console(self, message):
        if message.type in ("error", "warning"):
            self.console.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.accept()

    def text(self, selector):
        return self.page.inner_text(selector)

    def wait_text(self, selector, pattern):
        """Until the element's text has the pattern; the text."""
        self.page.wait_for_function(
            "([s, p]) => [...document.querySelectorAll(s)].some((e) => new RegExp(p).test(e.innerText))",
            arg=[selector, pattern])
        return self.text(selector)

    def wait_live(self):
        self.page.wait_for_selector("#link[data-link=live]")

    def view(self, name):
        self.page.click(f"nav a[href='#{name}']")
        self.page.wait_for_selector(f"#view-{name}:not([hidden])")

    def shot(self, name, **options):
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", **options)

    def axe(self, rules=None):
        """Serious and critical findings of axe-core, in words; of these rules, or of all."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(axe_source())
        options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
        found = self.page.evaluate("(options) => axe.run(document, options)", options)
        return [f"{v['id']} ({v['impact']}): {n['html'][:160]} {n['failureSummary'][:200]}"
                for v in found["violations"] if v["impact"] in ("serious", "critical")
                for n in v["nodes"]]

    def outside(self):
        """Requests to anywhere but the server; blob: is the page's own export."""
        return [u for u in self.requests if not u.startswith((self.url + "/", "blob:"))]

    def close(self):
        self.context.close()


class PageTest(unittest.TestCase):
    """Visits are closed at the end, and must not have complained or called anybody."""

    @contextlib.contextmanager
    def visit(self, server, *args, allow=None, **options):
        v = Visit(server, *args, **options)
        try:
            yield v
            said = [c for c in v.console if not (allow and re.search(allow, c))]
            self.assertEqual(said, [], "console")
            self.assertEqual(v.errors, [], "errors of the page")
            self.assertEqual(v.outside(), [], "outside requests")
        finally:
            v.close()

    @classmethod
    def setUpClass(cls):
        chromium()  # skips the class where there is none
        super().setUpClass()


class Load:
    """Requests that go on until they are closed."""

    def __init__(self, server):
        self.server, self.streams = server, []

    def add(self, n=1, *, prompt="tell me", max_tokens=4000, headers=None, **body):
        for i in range(n):
            self.streams.append(self.server.stream("/v1/completions", {
                "prompt": f"{prompt} {i}", "max_tokens": max_tokens, "ignore_eos": True, **body},
                headers=headers))

    def close(self):
        for s in self.streams:
            s.close()
        self.streams = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
