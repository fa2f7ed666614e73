"""The chat page: streams, stops, explains, keeps to itself, and takes nothing an answer says for
more than text."""

import re

import browser
import harness
import scripted
from harness import wait_until

EVIL = ("**bold** <img src=x onerror=alert(1)> <script>alert(2)</script>\n\n"
        "[click](javascript:alert(3)) [data](data:text/html,<script>alert(4)</script>) "
        "[good](https://example.org/) ![pic](http://example.org/spy.png)\n\n"
        "<iframe src='//example.org'></iframe><form action='//example.org'><input name=body></form>\n\n"
        "<svg><animate onbegin=alert(5) attributeName=x></svg> <a id=thread name=thread>x</a>\n\n"
        "<style>body{display:none}</style>\n\n```html\n<b>code</b>\n```\n\n# Head\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
RULES = [["be evil", EVIL], ["two words", "Two words."]]


def send(v, text):
    v.page.fill("#prompt", text)
    v.page.press("#prompt", "Enter")


class Chat(browser.PageTest, scripted.ScriptedServer):
    rules = RULES
    options = ("--fake.step_ms", 5)

    def chat(self, **options):
        return self.visit(self.server, "/chat", **options)

    def finished(self, v, n=1):
        v.page.wait_for_function(
            "(n) => document.querySelectorAll('.assistant').length >= n && document.querySelector('#stop').hidden",
            arg=n)

    def test_an_answer(self):
        with self.chat() as v:
            send(v, "greet me")
            v.wait_text(".assistant .text", "안녕")
            self.finished(v)
            foot = v.text(".assistant .foot")
            self.assertRegex(foot, r"first word after [\d.]+ m?s · [\d.,]+ tokens a second · \d+ tokens · served as Chat")
            v.page.click(".assistant .foot button")
            v.wait_text("dialog.story .lead", "first word|did not have to wait")
            v.page.keyboard.press("Escape")
            # The conversation goes on, and the model hears all of it.
            bodies = []
            v.page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
            send(v, "two words")
            self.finished(v, 2)
            self.assertEqual([m["role"] for m in bodies[0]["messages"]], ["user", "assistant", "user"])
            self.assertEqual(bodies[0]["messages"][1]["content"], scripted.PLAIN)

    def test_stop_frees_the_blocks_within_a_step(self):
        with harness.Server(*scripted.options(), "--fake.step_ms", 150) as server:
            with self.visit(server, "/chat") as v:
                send(v, "a long story")
                v.wait_text(".assistant .text", "word")
                before = server.metrics()
                self.assertGreater(before["kv_cache_usage_perc"], 0)
                v.page.click("#stop")
                wait_until("the blocks are free", lambda: server.metrics()["kv_cache_usage_perc"] == 0)
                after = server.metrics()
                # The step that was under way when it was clicked, and the one in which the click travels.
                self.assertLessEqual(after["steps_total"] - before["steps_total"], 3)
                self.assertEqual(after["num_requests_running"], 0)
                self.assertIn("Stopped.", v.wait_text(".assistant .foot", "Stopped"))
                self.assertIn("word", v.text(".assistant .text"))

    def test_an_answer_is_text_and_format_only(self):
        with self.chat() as v:
            send(v, "be evil")
            self.finished(v)
            text = v.wait_text(".assistant .text", "alert\\(1\\)")
            for part in ("<img src=x onerror=alert(1)>", "<script>alert(2)</script>", "<iframe", "<b>code</b>"):
                self.assertIn(part, text)
            inside = v.page.evaluate("""() => {
                const all = [...document.querySelectorAll('.assistant .text *')];
                return {tags: [...new Set(all.map((e) => e.tagName.toLowerCase()))],
                  handlers: all.flatMap((e) => [...e.attributes]).filter((a) => /^on|style|^id$|^name$/.test(a.name)).length,
                  links: all.filter((e) => e.href).map((e) => [e.href, e.rel, e.target])}; }""")
            for tag in ("img", "script", "iframe", "form", "input", "svg", "style"):
                self.assertNotIn(tag, inside["tags"])
            self.assertEqual(inside["handlers"], 0)
            self.assertEqual(inside["links"], [["https://example.org/", "noopener noreferrer nofollow", "_blank"]])
            self.assertIn("strong", inside["tags"])
            self.assertIn("table", inside["tags"])
            self.assertNotIn("h1", inside["tags"])
            self.assertEqual(v.dialogs, [])
            # What the reader wrote is no markdown at all.
            self.assertEqual(v.text(".user .text"), "be evil")

    def test_code_can_be_copied(self):
        with self.chat(permissions=["clipboard-read", "clipboard-write"]) as v:
            send(v, "be evil")
            self.finished(v)
            v.page.click(".copy")
            v.wait_text(".copy", "Copied")
            self.assertEqual(v.page.evaluate("navigator.clipboard.readText()").strip(), "<b>code</b>")

    def test_enter_of_an_input_method_sends_nothing(self):
        with self.chat(lang="ko-KR") as v:
            cdp = v.context.new_cdp_session(v.page)
            v.page.focus("#prompt")
            cdp.send("Input.imeSetComposition", {"text": "안녀", "selectionStart": 2, "selectionEnd": 2})
            cdp.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", "key": "Process", "code": "Enter",
                                                "windowsVirtualKeyCode": 229})
            v.page.evaluate("""() => document.querySelector('#prompt').dispatchEvent(
                new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))""")
            self.assertEqual(v.page.locator(".message").count(), 0)
            cdp.send("Input.insertText", {"text": "안녕"})
            v.page.keyboard.press("Shift+Enter")
            self.assertEqual(v.page.locator(".message").count(), 0)
            v.page.keyboard.press("Enter")
            v.page.wait_for_selector(".message.user")
            v.page.click("#stop")
            self.finished(v)

    def test_conversations_stay_in_the_browser(self):
        with self.chat() as v:
            send(v, "two words")
            self.finished(v)
            v.page.wait_for_function("() => localStorage.getItem('gamasot.chats')?.includes('Two words.')")
            v.page.reload()
            v.wait_text(".assistant .text", "Two words")
            with v.page.expect_download() as download:
                v.page.click("#export")
            self.assertIn("Two words.", open(download.value.path(), encoding="utf-8").read())
            v.page.click("#new")
            self.assertEqual(v.page.locator(".message").count(), 0)
            v.page.click("#delete-all")
            v.page.wait_for_function("() => localStorage.getItem('gamasot.chats') === null")
            self.assertEqual(len(v.dialogs), 1)
            self.assertEqual(v.page.locator("#list li").count(), 0)

    def test_choices_reach_the_server(self):
        with self.chat() as v:
            v.page.wait_for_selector("#model option", state="attached")
            v.page.click("#options summary")
            v.page.select_option("#class", "voice")
            v.page.fill("#person", "Mina")
            v.page.fill("#system", "Be brief.")
            seen = []
            v.page.on("request", lambda r: seen.append(r) if r.method == "POST" else None)
            send(v, "two words")
            self.finished(v)
            body = seen[0].post_data_json
            self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
            self.assertEqual(body["user"], "Mina")
            self.assertEqual(seen[0].headers["x-gamasot-class"], "voice")
            self.assertIn("served as Voice", v.text(".assistant .foot"))
            v.page.click(".assistant .foot button")  # her own request is found
            v.wait_text("dialog.story .facts", "Voice")

    def test_thoughts_are_put_aside(self):
        with self.chat() as v:
            send(v, "think first")
            self.finished(v)
            v.wait_text(".assistant .text", "안녕")
            self.assertNotIn(scripted.REASONING, v.text(".assistant .text"))
            v.page.click(".thoughts summary")
            self.assertIn(scripted.REASONING, v.text(".thoughts"))


class Trouble(browser.PageTest):
    """What goes wrong is said in plain words, and can be tried again."""

    def test_busy(self):
        with harness.Server("--fake.step_ms", 50, "--engine.max_seqs", 1, "--server.max_queued", 1) as server:
            with browser.Load(server) as load, self.visit(server, "/chat", allow="429") as v:
                load.add(2)
                server.wait_admitted(2)
                send(v, "hello")
                v.wait_text(".assistant .bad", r"busy. Try again in \d+ s")
                load.close()
                server.wait_idle()
                v.page.click(".assistant .foot button:has-text('Try again')")
                v.wait_text(".assistant .foot", "first word after")

    def test_a_slow_first_word_has_its_reason(self):
        with harness.Server("--fake.step_ms", 50, "--fake.eos_after", 5,
                            "--engine.max_seqs", 1) as server:
            with browser.Load(server) as load, self.visit(server, "/chat") as v:
                load.add(1, max_tokens=40)
                send(v, "hello")
                self.assertRegex(v.wait_text(".assistant .reason", "."), "all seats were taken")

    def test_a_server_that_dies(self):
        server = harness.Server("--fake.step_ms", 50)
        try:
            with self.visit(server, "/chat", allow="ERR_|Failed to load") as v:
                send(v, "hello")
                v.wait_text(".assistant .text", "\\w")
                server.kill()
                v.wait_text(".assistant .bad", "broke off")
                send(v, "again")
                v.wait_text(".assistant:last-of-type .bad", "reached")
        finally:
            server.kill()

    def test_a_key_is_asked_for(self):
        with harness.Server("--api-key", "sesame", key="sesame") as server:
            with self.visit(server, "/chat", allow="401") as v:
                v.page.fill("#key-input", "sesame")
                v.page.keyboard.press("Enter")
                v.page.wait_for_selector("#model option", state="attached")
                send(v, "hello")
                v.wait_text(".assistant .foot", "first word")
                self.assertEqual([u for u in v.requests if re.search("sesame", u)], [])
