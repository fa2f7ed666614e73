"""Shared prefixes that survive the server: saved, read back, noticed when they are damaged."""

import pathlib
import re
import tempfile
import unittest

import harness
from harness import Server, model_path, wait_until

HOME = " ".join(f"Lamp {i} hangs in room {i * i % 17} and its switch is {i * 3 % 11}."
                for i in range(16))
KIDS = " ".join(f"Story {i} is about {i * 5 % 13} bears." for i in range(30))


class Saved(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.state = pathlib.Path(tempfile.mkdtemp(prefix="saved-", dir=harness.TMP))
        cls.files = []
        for name, content in (("home.txt", HOME), ("kids.txt", KIDS)):
            path = cls.state / name
            path.write_text(content)
            cls.files.append(str(path))

    def start(self, *options, model=None, files=1):
        prefixes = [o for f in self.files[:files] for o in ("--prefix-file", f)]
        return Server("--model", model or model_path(), "--kv.memory_mb", 256, "--context", 2048,
                      *prefixes, *options, backend="native",
                      env={"GAMASOT_STORE_FOLDER": str(self.state)})

    def saved(self):
        return sorted((self.state / "prefixes").glob("*.kv"))

    def ask(self, server, home=HOME):
        r = server.ok("/v1/chat/completions", {
            "messages": [{"role": "system", "content": home},
                         {"role": "user", "content": "Where is lamp 3?"}],
            "max_tokens": 12, "temperature": 0, "logprobs": True})
        choice = r["choices"][0]
        return (r["usage"]["prompt_tokens_details"]["cached_tokens"], choice["message"]["content"],
                [t["logprob"] for t in choice["logprobs"]["content"]])

    def wait_saved(self, server, n=1):
        wait_until("it is written", lambda: len(re.findall(r"\bsaved file=", server.log())) >= n)

    @harness.limit(120)
    def test_a_restart_finds_what_was_computed(self):
        with self.start() as server:
            self.assertNotIn("saved=1", server.log())
            want = self.ask(server)
            self.wait_saved(server)
        self.assertGreater(want[0], 200)
        (file,) = self.saved()
        data = file.read_bytes()
        self.assertEqual(data[:8], b"GSPREFIX")
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        # Read, not computed: the same answer to the bit, and it says so.
        with self.start() as server:
            self.assertIn("saved=1", server.log())
            self.assertEqual(server.metrics()["prompt_tokens_total"], 0)
            self.assertEqual(self.ask(server), want)
            self.assertNotIn("no walls", server.log())
        # A flipped bit: computed anew, and written.
        file.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
        with self.start() as server:
            self.assertRegex(server.log(), "the saved one is not used file=.* why=its pages are")
            self.assertNotIn("saved=1", server.log())
            self.assertEqual(self.ask(server), want)
            self.wait_saved(server)
        self.assertEqual(file.read_bytes(), data)

    @harness.long_only
    @harness.limit(120)
    def test_the_space_is_bounded(self):
        """Two do not fit: the second takes the place of the first."""
        for file in self.saved():
            file.unlink()
        with self.start("--prefix.saved_mb", 10, files=2) as server:
            self.wait_saved(server, 2)
            self.assertIn("saved prefix removed", server.log())
        (file,) = self.saved()
        self.assertLess(file.stat().st_size, 10 << 20)

    def test_of_a_fake_model(self):
        state = pathlib.Path(tempfile.mkdtemp(prefix="saved-", dir=harness.TMP))
        file = harness.TMP / "fake-home.txt"
        file.write_text(HOME)
        options = ("--prefix-file", file, "--store.folder", state)
        # Off: nothing is written.
        with Server(*options, "--prefix.saved_mb", 0):
            pass
        self.assertFalse((state / "prefixes").exists())
        with Server(*options) as server:
            self.wait_saved(server)
        (saved,) = (state / "prefixes").glob("*.kv")
        for content, word in ((None, ""), (b"x", "1 bytes"), (b"", "0 bytes")):
            if content is not None:
                saved.write_bytes(content)
            with Server(*options) as server:
                self.assertEqual("saved=1" in server.log(), content is None)
                if content is not None:
                    self.assertIn(f"why=it has {word}", server.log())
                    self.wait_saved(server)
