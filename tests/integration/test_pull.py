"""Models from elsewhere: pulled, listed, copied, removed; whatever happens on the way."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import harness
from harness import SharedServer, cli, model_path, wait_until
from model_source import Source, gguf, sha256

KILLS = 20


def new_folder():
    return pathlib.Path(tempfile.mkdtemp(prefix="models-", dir=harness.TMP))


def hidden(folder):
    """What is there beside models: of each where it is from, and what a pull has not finished."""
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def seen(folder):
    """What a listing of the folder shows."""
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


class Pull(unittest.TestCase):
    """The command, which works without a server."""

    def setUp(self):
        self.source = Source()
        self.folder = new_folder()

    def tearDown(self):
        self.source.__exit__()

    def pull(self, what, *more, env=None):
        return cli("models", "pull", what, *more, *self.source.options(self.folder), env=env)

    def fails(self, what, *words, more=()):
        status, out, err = self.pull(what, *more)
        self.assertEqual((status, out), (1, ""), err)
        for word in words:
            self.assertIn(word, err)
        self.assertEqual(seen(self.folder), [])

    def test_sources(self):
        s, data = self.source, [gguf(2000, i) for i in range(6)]
        s.files["/x/Plain-1B-Q8_0.gguf"] = data[0]
        s.publish_hf("owner/repo", "sub/Hub-2B.gguf", data[1])
        s.publish_hf("owner/repo", "Old.gguf", data[2], rev="v1")
        s.publish("library/small", "latest", data[3])
        s.publish("me/other", "1b-q4_0", data[4])
        local = harness.TMP / "Local.gguf"
        local.write_bytes(data[5])
        for what, name, i in ((f"{s.url}/x/Plain-1B-Q8_0.gguf?a=1", "Plain-1B-Q8_0", 0),
                              ("hf:owner/repo/sub/Hub-2B.gguf", "Hub-2B", 1),
                              ("hf.co/owner/repo@v1/Old.gguf", "Old", 2),
                              ("small", "small", 3),
                              (f"{s.host}/me/other:1b-q4_0", f"{s.host}/me/other:1b-q4_0", 4),
                              (str(local), "Local", 5)):
            status, out, err = self.pull(what)
            self.assertEqual((status, out), (0, name + "\n"), err)
            file = name.replace("/", "%2F") + ".gguf"
            self.assertEqual((self.folder / file).read_bytes(), data[i], name)
        # Under another name, and over what is there.
        self.assertEqual(self.pull("small:latest", "--as", "mine:1b")[1], "mine:1b\n")
        self.assertEqual((self.folder / "mine:1b.gguf").read_bytes(), data[3])
        s.publish("library/small", "latest", data[0])
        self.assertEqual(self.pull("small")[0], 0)
        self.assertEqual((self.folder / "small.gguf").read_bytes(), data[0])
        self.assertEqual(hidden(self.folder), sorted(f".{n}.from" for n in seen(self.folder)))

        options = self.source.options(self.folder)
        status, out, _ = cli("models", "list", "--json", *options)
        listed = {m["name"]: m for m in json.loads(out)}
        self.assertEqual(status, 0)
        self.assertEqual(listed["Local"]["bytes"], len(data[5]))
        self.assertIn("Plain-1B-Q8_0", cli("models", "list", *options)[1])
        # By the names that Ollama's clients use.
        self.assertEqual(cli("models", "copy", "plain:1b", "second", *options)[0], 0)
        self.assertEqual((self.folder / "second.gguf").read_bytes(), data[0])
        self.assertEqual(cli("models", "copy", "Local", "second", *options)[0], 1)
        self.assertIn("llama", cli("models", "inspect", "plain", *options)[1])
        self.assertEqual(cli("models", "rm", "second", *options)[0], 0)
        status, _, err = cli("models", "rm", "second", *options)
        self.assertEqual(status, 1)
        self.assertIn("second", err)
        self.assertEqual(cli("models", "rm", "small", *options)[0], 0)
        self.assertNotIn(".small.gguf.from", hidden(self.folder))

    def test_what_is_here_already(self):
        s, data = self.source, [gguf(2000, i) for i in range(3)]
        s.files["/x/Plain-1B.gguf"] = data[0]
        s.publish_hf("owner/repo", "Hub-2B.gguf", data[1])
        s.publish("library/small", "latest", data[2])
        plain = f"{s.url}/x/Plain-1B.gguf"

        def again(what, name):
            """How many files come."""
            s.asked.clear()
            status, out, err = self.pull(what)
            self.assertEqual((status, out), (0, name + "\n"), err)
            n = sum(m == "GET" and "manifests" not in p for m, p, _ in s.asked)
            self.assertEqual("up to date" in err, n == 0, s.asked)
            return n

        cases = ((plain, "Plain-1B"), ("hf:owner/repo/Hub-2B.gguf", "Hub-2B"), ("small", "small"))
        for i, (what, name) in enumerate(cases):
            file = self.folder / f"{name}.gguf"
            self.assertGreater(again(what, name), 0)
            before = file.stat().st_mtime_ns
            self.assertEqual(again(what, name), 0)
            self.assertEqual(file.stat().st_mtime_ns, before)
            time.sleep(0.02)  # more than the resolution of the times of files
            # Another file of the same length by that name is not it; put back by hand, it is, if a
            # hash says so.
            file.write_bytes(gguf(2000, 9))
            self.assertGreater(again(what, name), 0)
            self.assertEqual(file.read_bytes(), data[i])
            file.write_bytes(data[i])
            self.assertEqual(again(what, name) > 0, i == 0)
            self.assertEqual(file.read_bytes(), data[i])
        # It has changed over there.
        s.files["/x/Plain-1B.gguf"] = gguf(2000, 8)
        self.assertGreater(again(plain, "Plain-1B"), 0)
        self.assertEqual((self.folder / "Plain-1B.gguf").read_bytes(), gguf(2000, 8))
        # Nobody says what it is: it comes again.
        s.no_etag = True
        self.assertGreater(again(plain, "Plain-1B"), 0)
        self.assertGreater(again(plain, "Plain-1B"), 0)
        # Whoever names its hash is told the same.
        s.asked.clear()
        status, _, err = self.pull("small", "--sha256", sha256(data[2]))
        self.assertEqual(status, 0, err)
        self.assertIn("up to date", err)
        # Of several files only the one that is missing.
        parts = [gguf(3000, i + 1, **{"split.no": i, "split.count": 2, "split.tensors.count": 2})
                 for i in range(2)]
        s.publish("library/big", "7b", *parts)
        self.assertEqual(again("big:7b", "big:7b"), 2)
        (self.folder / "big:7b-00002-of-00002.gguf").unlink()
        self.assertEqual(again("big:7b", "big:7b"), 1)
        self.assertEqual(again("big:7b", "big:7b"), 0)

    def test_several_files(self):
        parts = [gguf(3000, i + 1, **{"split.no": i, "split.count": 3, "split.tensors.count": 3})
                 for i in range(3)]
        for i, part in enumerate(parts):
            self.source.files[f"/m/big-{i + 1:05}-of-00003.gguf"] = part
        self.source.publish("library/big", "7b", *parts)
        options = self.source.options(self.folder)
        for what, name in ((f"{self.source.url}/m/big-00001-of-00003.gguf", "big"),
                           ("big:7b", "big:7b")):
            self.assertEqual(self.pull(what)[1], name + "\n")
            for i, part in enumerate(parts):
                file = self.folder / f"{name}-{i + 1:05}-of-00003.gguf"
                self.assertEqual(file.read_bytes(), part)
        listed = {m["name"]: m for m in json.loads(cli("models", "list", "--json", *options)[1])}
        self.assertLessEqual({"big", "big:7b"}, set(listed))
        self.assertEqual(listed["big"]["bytes"], sum(map(len, parts)))
        self.assertEqual(listed["big"]["parameters"], 9000)
        self.assertEqual(cli("models", "copy", "big", "two", *options)[0], 0)
        self.assertEqual(cli("models", "rm", "big", *options)[0], 0)
        self.assertEqual(len(seen(self.folder)), 6)
        # One of them is missing: none is seen.
        del self.source.files["/m/big-00002-of-00003.gguf"]
        self.folder = new_folder()
        self.fails(f"{self.source.url}/m/big-00001-of-00003.gguf", "no such file")

    def test_what_can_go_wrong(self):
        s, data = self.source, gguf(20000)
        s.files["/a.gguf"] = data
        s.publish("library/lies", "latest", data, digest="0" * 64)
        s.publish_hf("o/r", "lies.gguf", data, digest="1" * 64)
        s.files["/text.gguf"] = b"I am no model." * 100
        s.files["/v2/library/odd/manifests/latest"] = b"{"
        s.files["/v2/library/none/manifests/latest"] = b'{"layers":[]}'
        s.redirects["/away.gguf"] = f"http://localhost:{s.server_address[1]}/a.gguf"
        s.redirects["/loop.gguf"] = "/loop.gguf"
        s.redirects["/file.gguf"] = "file:///etc/passwd"
        self.fails("lies", "SHA-256", sha256(data), "0" * 64)
        self.fails("hf:o/r/lies.gguf", "1" * 64)
        self.fails(f"{s.url}/a.gguf", "2" * 64, more=("--sha256", "2" * 64))
        self.fails(f"{s.url}/a.gguf", "64 hexadecimal", more=("--sha256", "xyz"))
        self.fails(f"{s.url}/text.gguf", "no model", "GGUF")
        self.fails("odd", "no GGUF model")
        self.fails("none", "no GGUF model")
        self.fails("unknown:8b", "no model of that name")
        self.fails("hf:o/r/unknown.gguf", "no such file")
        self.fails(f"{s.url}/away.gguf", "models.hosts", "localhost")
        self.fails(f"{s.url}/loop.gguf", "redirects")
        self.fails(f"{s.url}/file.gguf", "file:///etc/passwd")
        self.fails("https://example.org/x.gguf", "models.hosts", "example.org")
        self.fails(f"http://user@{s.host}/a.gguf", "without a user")
        self.fails("/nowhere/x.gguf", "/nowhere/x.gguf")
        self.fails("../x", "x")
        self.fails("a/b/c/d", "[HOST/]")
        # Nothing of all that is left but what may be taken up again.
        rest = [n for n in os.listdir(self.folder) if not n.endswith((".part", ".from"))]
        self.assertEqual(rest, [])

    def test_a_full_disk(self):
        data = gguf(50000)
        self.source.files["/a.gguf"] = data
        # It is known before a byte is written,
        status, _, err = cli("models", "pull", f"{self.source.url}/a.gguf",
                             *self.source.options(self.folder), "--models.min_free_mb", "999999999")
        self.assertEqual(status, 1)
        self.assertIn("no room", err)
        # or it becomes full on the way.
        for fault in ("write:3:ENOSPC", "write:4:EIO"):
            status, _, err = self.pull(f"{self.source.url}/a.gguf", env={"GAMASOT_FAULT": fault})
            self.assertEqual(status, 1, err)
            self.assertIn("no space" if "ENOSPC" in fault else "input/output", err)
            self.assertEqual(seen(self.folder), [])
        self.assertEqual(self.pull(f"{self.source.url}/a.gguf")[0], 0)
        self.assertEqual((self.folder / "a.gguf").read_bytes(), data)

    def test_a_body_that_ends_early(self):
        data = gguf(100000)
        self.source.files["/a.gguf"] = data
        self.source.stop_at = 100000
        status, _, err = self.pull(f"{self.source.url}/a.gguf")
        self.assertEqual(status, 1)
        self.assertIn("127.0.0.1", err)
        self.assertEqual(seen(self.folder), [])
        ranges = {r for _, _, r in self.source.asked}
        self.assertIn("bytes=100000-", ranges)
        # The rest comes another time, and only the rest.
        self.source.stop_at = None
        self.source.asked.clear()
        self.assertEqual(self.pull(f"{self.source.url}/a.gguf")[0], 0)
        self.assertEqual([r for _, _, r in self.source.asked], ["bytes=100000-"])
        self.assertEqual((self.folder / "a.gguf").read_bytes(), data)

    def test_the_file_changes_between_two_tries(self):
        self.source.files["/a.gguf"] = gguf(100000, 1)
        self.source.stop_at = 100000
        self.assertEqual(self.pull(f"{self.source.url}/a.gguf")[0], 1)
        for n in (90000, 10000):  # of another size, and shorter than what is there
            self.source.files["/a.gguf"] = gguf(n, 2)
            self.source.stop_at = None
            self.assertEqual(self.pull(f"{self.source.url}/a.gguf")[0], 0)
            self.assertEqual((self.folder / "a.gguf").read_bytes(), gguf(n, 2))
            self.source.stop_at = 100000
            self.source.files["/a.gguf"] = gguf(100000, 3)
            self.pull(f"{self.source.url}/a.gguf")
        # Without an ETag and without a hash nobody knows what the bytes are of.
        self.source.no_etag = True
        self.folder = new_folder()
        self.assertEqual(self.pull(f"{self.source.url}/a.gguf")[0], 1)
        self.source.stop_at = None
        self.source.asked.clear()
        self.assertEqual(self.pull(f"{self.source.url}/a.gguf")[0], 0)
        self.assertEqual([r for _, _, r in self.source.asked], [None])

    def test_killed_at_random_moments(self):
        """Each try gets some of the file; it is never seen before it is whole."""
        data = gguf(600000, 7)
        self.source.publish("library/killed", "1b", data)
        self.source.files["/killed.gguf"] = data
        self.source.bytes_per_s = 20e6
        rng = random.Random(harness.seed(20))
        for what in ("killed:1b", f"{self.source.url}/killed.gguf"):
            target = self.folder / (what.split("/")[-1].removesuffix(".gguf") + ".gguf")
            for _ in range(KILLS // 2):
                p = subprocess.Popen([harness.GAMASOT, "models", "pull", what,
                                      *self.source.options(self.folder)],
                                     env=harness.clean_env(), cwd=harness.TMP,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(rng.uniform(0.005, 0.06) * harness.SLOWNESS)
                p.send_signal(signal.SIGKILL)
                p.wait()
                if target.exists():
                    self.assertEqual(target.read_bytes(), data)
                    target.unlink()
            self.assertEqual(self.pull(what)[0], 0)
            self.assertEqual(sha256(target.read_bytes()), sha256(data))
        self.assertTrue(any(r for _, _, r in self.source.asked), "nothing was taken up again")

    def test_one_at_a_time(self):
        self.source.files["/a.gguf"] = gguf(200000)
        self.source.bytes_per_s = 1e6
        command = [harness.GAMASOT, "models", "pull", f"{self.source.url}/a.gguf",
                   *self.source.options(self.folder)]
        with subprocess.Popen(command, env=harness.clean_env(), cwd=harness.TMP,
                              stdout=subprocess.DEVNULL) as first:
            wait_until("it has begun", lambda: self.source.asked)
            wait_until("its file", lambda: (self.folder / ".a.gguf.part").exists())
            self.fails(f"{self.source.url}/a.gguf", "already")
            first.kill()

    def test_a_server_that_fails_for_a_while(self):
        self.source.files["/a.gguf"] = gguf(1000)
        self.source.status = 401
        self.fails(f"{self.source.url}/a.gguf", "401")
        self.source.status = 400
        self.fails(f"{self.source.url}/a.gguf", "400")


class Https(unittest.TestCase):
    """Who a model comes from is known, or it does not come."""

    @classmethod
    def setUpClass(cls):
        cls.ca = harness.make_certificate("DNS:ca.example")
        cls.good = Source(harness.make_certificate("IP:127.0.0.1", cls.ca))
        cls.plain = Source()

    @classmethod
    def tearDownClass(cls):
        cls.good.__exit__()
        cls.plain.__exit__()

    def pull(self, source, what, *hosts, ca=None):
        self.folder = new_folder()
        return cli("models", "pull", what, *source.options(self.folder, *hosts),
                   env={"SSL_CERT_FILE": str((ca or self.ca)[0])})

    def test_verified(self):
        data = gguf(3000, 5)
        self.good.publish("library/safe", "1b", data)
        self.good.publish_hf("o/r", "Safe-2B.gguf", data)
        for what, name in (("safe:1b", "safe:1b"), (f"{self.good.host}/library/safe:1b", None),
                           ("hf:o/r/Safe-2B.gguf", "Safe-2B")):
            status, out, err = self.pull(self.good, what)
            self.assertEqual((status, out), (0, f"{name or what}\n"), err)
            (file,) = seen(self.folder)
            self.assertEqual((self.folder / file).read_bytes(), data)

    def test_not_verified(self):
        alone = harness.make_certificate("IP:127.0.0.1")
        other = harness.make_certificate("DNS:else.example", self.ca)
        for certificate, ca, word in ((alone, self.ca, "self-signed"),
                                      (other, self.ca, "does not match|no alternative"),
                                      (other, alone, "unable to get local issuer")):
            with Source(certificate) as source:
                source.publish("library/m", "latest", gguf())
                source.files["/m.gguf"] = gguf()
                for what in ("m", f"{source.url}/m.gguf"):
                    status, out, err = self.pull(source, what, ca=ca)
                    self.assertEqual((status, out), (1, ""))
                    self.assertRegex(err, f"127.0.0.1: .*({word}).*SSL_CERT_FILE")
                    self.assertEqual(seen(self.folder), [])
                    self.assertEqual(source.asked, [])

    def test_never_from_https_to_http(self):
        self.plain.files["/m.gguf"] = gguf()
        self.good.redirects["/m.gguf"] = f"{self.plain.url}/m.gguf"
        for host in (self.plain.host, self.plain.url):  # with it on the list, in both ways
            status, _, err = self.pull(self.good, f"{self.good.url}/m.gguf", host)
            self.assertEqual((status, seen(self.folder)), (1, []))
            self.assertRegex(err, "without encryption")
        self.assertEqual(self.plain.asked, [])


class Recommend(unittest.TestCase):
    def test_what_the_machine_can_carry(self):
        status, out, err = cli("models", "recommend", "--json")
        self.assertEqual(status, 0, err)
        said = json.loads(out)
        self.assertGreater(said["memory_gb_per_s"], 0)
        self.assertGreater(said["free_gb"], 0)
        rows = {(m["model"], m["quantization"]): m for m in said["models"]}
        small, large = rows["SmolLM2-135M", "Q8_0"], rows["Qwen3-14B", "Q8_0"]
        for use in ("voice", "chat"):
            for time in ("ttft_ms", "tpot_ms"):
                self.assertGreater(small[use][time], 0)
                self.assertGreater(large[use][time], 10 * small[use][time])
        self.assertAlmostEqual(large["memory_mb"] / 15700, 1, delta=0.05)  # 14.8e9 * 34 / 32
        self.assertFalse(large["voice"]["holds"] and not large["fits"])

    def test_how_fast_a_file_would_be(self):
        path = model_path()
        status, out, err = cli("models", "recommend", "--json", path)
        self.assertEqual(status, 0, err)
        (one,) = json.loads(out)["models"]
        size = os.path.getsize(path) / 1e6
        # The file, and the cache of one chat.
        self.assertGreater(one["memory_mb"], 0.95 * size)
        self.assertLess(one["memory_mb"], size + 60)
        self.assertGreater(one["chat"]["ttft_ms"], one["voice"]["ttft_ms"])
        status, out, err = cli("models", "recommend", "/nowhere/x.gguf")
        self.assertEqual((status, out.count("x.gguf")), (1, 0))
        self.assertIn("/nowhere/x.gguf", err)


class Served(SharedServer):
    """The same through a server, as Ollama's clients ask for it."""

    @classmethod
    def setUpClass(cls):
        cls.source = Source()
        cls.folder = new_folder()
        cls.options = (*cls.source.options(cls.folder), "--models.rescan_ms", "50",
                       "--models.pull=true")
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.source.__exit__()

    def tearDown(self):
        self.source.bytes_per_s = 0

    def names(self):
        return {m["name"] for m in self.server.get("/api/tags").json["models"]}

    def lines(self, what, **more):
        r = self.server.post("/api/pull", {"model": what, **more})
        return r.status, [json.loads(line) for line in r.text.splitlines()]

    def test_pull_list_copy_delete(self):
        data = gguf(300000, 3, **{"tokenizer.chat_template": "{{ tools }}", "llama.context_length": 777})
        self.source.publish("library/tiny", "1b", data)
        self.source.bytes_per_s = 2e6
        status, said = self.lines("tiny:1b")
        self.assertEqual(status, 200)
        self.assertEqual(said[0], {"status": "pulling manifest"})
        self.assertEqual([s["status"] for s in said[-3:]],
                         ["verifying sha256 digest", "writing manifest", "success"])
        digest = "sha256:" + sha256(data)
        parts = [s for s in said if "completed" in s]
        self.assertGreaterEqual(len(parts), 2)
        self.assertEqual({(s["status"], s["digest"], s["total"]) for s in parts},
                         {(f"pulling {sha256(data)[:12]}", digest, len(data))})
        done = [s["completed"] for s in parts]
        self.assertEqual(done, sorted(done))
        self.assertEqual(done[-1], len(data))
        # Once more: it is here.
        status, said = self.lines("tiny:1b")
        self.assertEqual([s["status"] for s in said], ["pulling manifest", f"pulling {sha256(data)[:12]}",
                                                       "up to date", "success"])
        # It is there, and what its file says is shown before it is in memory.
        self.assertIn("tiny:1b", self.names())
        shown = self.server.ok("/api/show", {"model": "tiny:1b"})
        self.assertIn("{{ tools }}", shown["template"])
        self.assertIn("tools", shown["capabilities"])
        self.assertEqual(shown["model_info"]["llama.context_length"], 777)
        one = self.server.get("/v1/models/tiny:1b").json
        self.assertEqual((one["state"], one["max_model_len"]), ("unloaded", 777))
        # A second name, and the end of the first.
        r = self.server.post("/api/copy", {"source": "tiny:1b", "destination": "second:latest"})
        self.assertEqual((r.status, r.body), (200, b""))
        self.assertIn("second:latest", self.names())
        self.assertEqual(self.server.post("/api/copy", {"source": "tiny:1b",
                                                        "destination": "second"}).status, 409)
        r = self.server.request("DELETE", "/api/delete", {"model": "tiny:1b"})
        self.assertEqual((r.status, r.body), (200, b""))
        self.assertNotIn("tiny:1b", self.names())
        self.assertEqual((self.folder / "second.gguf").read_bytes(), data)
        self.assertEqual(self.server.request("DELETE", "/api/delete",
                                             {"name": "second:latest"}).status, 200)
        self.assertEqual(self.server.request("DELETE", "/api/delete",
                                             {"model": "second"}).status, 404)
        self.assertEqual(self.server.get("/v1/models/second").status, 404)

    def test_not_as_a_stream(self):
        self.source.files["/Whole-3B.gguf"] = gguf()
        r = self.server.post("/api/pull", {"model": f"{self.source.url}/Whole-3B.gguf",
                                           "stream": False, "as": "whole"})
        self.assertEqual((r.status, r.json), (200, {"status": "success"}))
        self.assertIn("whole:latest", self.names())
        self.assertEqual(self.server.request("DELETE", "/api/delete", {"model": "whole"}).status, 200)

    def test_errors(self):
        self.source.publish("library/bad", "latest", gguf(), digest="3" * 64)
        self.source.redirects["/away.gguf"] = "http://localhost:1/a.gguf"
        for body, status, word in (
                ({"model": ""}, 400, "model"), ({}, 400, "model"), ({"model": 3}, 400, "model"),
                ({"model": "x", "stream": 1}, 400, "stream"),
                ({"model": "x", "sha256": "12"}, 400, "sha256"),
                ({"model": "a/b/c/d/e"}, 400, "a/b/c/d/e"),
                ({"model": "/etc/passwd.gguf"}, 403, "gamasot models pull FILE"),
                ({"model": "https://example.org/a.gguf", "stream": False}, 403, "example.org"),
                ({"model": f"{self.source.url}/away.gguf", "stream": False}, 403, "localhost"),
                ({"model": "unknown", "stream": False}, 404, "no model of that name"),
                ({"model": "bad", "stream": False}, 400, "SHA-256")):
            r = self.server.post("/api/pull", body)
            self.assertEqual(r.status, status, (body, r.text))
            self.assertIn(word, r.json["error"], body)
        self.assertEqual(seen(self.folder), [])
        for body in ({"model": "fake"}, {"model": 3}, {}):
            self.assertIn(self.server.request("DELETE", "/api/delete", body).status, (400, 403))
        self.assertEqual(self.server.post("/api/copy", {"source": "no", "destination": "x"}).status,
                         404)
        self.assertEqual(self.server.post("/api/copy", {"source": "fake", "destination": "x"}).status,
                         400)

    def test_two_look_on_and_one_leaves(self):
        self.source.files["/Two-1B.gguf"] = gguf(500000)
        self.source.bytes_per_s = 3e6
        body = {"model": f"{self.source.url}/Two-1B.gguf"}
        leaver = self.server.socket()
        leaver.sendall(self.server.post_bytes("/api/pull", body))
        wait_until("it has begun", lambda: ("GET", "/Two-1B.gguf", None) in self.source.asked)
        other = self.server.post("/api/pull", {**body, "sha256": "4" * 64})
        self.assertEqual(other.status, 409)
        with self.server.socket() as stayer:
            stayer.sendall(self.server.post_bytes("/api/pull", body))
            said = stayer.recv(65536)
            leaver.close()
            while b"success" not in said and (more := stayer.recv(65536)):
                said += more
        self.assertIn(b'{"status":"success"}', said)
        self.assertEqual(sum(p == "/Two-1B.gguf" for _, p, _ in self.source.asked), 1)
        self.server.request("DELETE", "/api/delete", {"model": "Two-1B"})

    def test_who_leaves_ends_it_and_comes_back(self):
        self.source.files["/Back-1B.gguf"] = gguf(500000)
        self.source.bytes_per_s = 2e6
        s = self.server.socket()
        s.sendall(self.server.post_bytes("/api/pull", {"model": f"{self.source.url}/Back-1B.gguf"}))
        part = self.folder / ".Back-1B.gguf.part"
        wait_until("some of it is here", lambda: part.exists() and part.stat().st_size > 100000)
        s.close()
        wait_until("it has ended", lambda: "failed name=Back-1B" in self.server.log())
        self.source.bytes_per_s = 0
        self.assertEqual(self.lines(f"{self.source.url}/Back-1B.gguf")[1][-1]["status"], "success")
        asked = [r for _, p, r in self.source.asked if p == "/Back-1B.gguf"]
        self.assertEqual(len(asked), 2)
        self.assertRegex(asked[1], r"^bytes=[1-9]\d+-$")
        self.server.request("DELETE", "/api/delete", {"model": "Back-1B"})

    def test_files_that_come_change_and_go(self):
        path = self.folder / "Hand-1B-Q4_0.gguf"
        path.write_bytes(gguf(100, **{"llama.context_length": 50}))
        wait_until("it is listed", lambda: "Hand-1B-Q4_0:latest" in self.names())
        self.assertEqual(self.server.get("/v1/models/hand:1b").json["max_model_len"], 50)
        tmp = self.folder / ".new"
        tmp.write_bytes(gguf(100, **{"llama.context_length": 60}))
        tmp.rename(path)
        wait_until("the new one", lambda: self.server.get(
            "/v1/models/Hand-1B-Q4_0").json["max_model_len"] == 60)

        def chat():
            return self.server.post("/v1/chat/completions", {
                "model": "hand:1b-q4_0", "max_tokens": 3,
                "messages": [{"role": "user", "content": "x"}]})

        def state():
            return self.server.get("/v1/models/Hand-1B-Q4_0").json["state"]
        self.assertEqual(chat().status, 200)
        self.assertEqual(state(), "ready")
        tmp.write_bytes(gguf(200, **{"llama.context_length": 70}))
        tmp.rename(path)
        wait_until("the old one is not kept", lambda: state() == "unloaded")
        self.assertEqual(chat().status, 200)
        path.unlink()
        wait_until("it has gone", lambda: "Hand-1B-Q4_0:latest" not in self.names())
        self.assertEqual(chat().status, 404)
        path.write_bytes(b"GGUF, but not really")
        wait_until("it is there again", lambda: "Hand-1B-Q4_0:latest" in self.names())
        path.unlink()
        wait_until("it has gone", lambda: "Hand-1B-Q4_0:latest" not in self.names())


class Helper(unittest.TestCase):
    """The process that fetches: beside the server, within its own walls, gone with it."""

    def setUp(self):
        self.source = Source()
        self.folder = new_folder()
        self.keys = new_folder() / "keys.json"
        status, out, err = cli("keys", "add", "boss", "--admin", "--server.keys_file", self.keys)
        self.assertEqual(status, 0, err)
        self.key = out.strip()

    def tearDown(self):
        self.source.__exit__()

    def serve(self, *options):
        return harness.Server(*self.source.options(self.folder), *options, key=self.key,
                              env={"GAMASOT_SERVER_KEYS_FILE": str(self.keys)})

    def child(self, server):
        """Its pid, or None."""
        pid = server.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def status(self, pid):
        return dict(line.split(":\t", 1) for line in
                    pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)

    def pull(self, server, what):
        return server.post("/api/pull", {"model": what, "stream": False})

    def test_on_with_keys_and_gone_with_the_server(self):
        self.source.publish("library/m", "latest", gguf())
        with self.serve() as s:
            pid = self.child(s)
            said = self.status(pid)
            self.assertEqual((said["Name"], said["Threads"]), ("gs-puller", "1"))
            self.assertEqual(said["NoNewPrivs"], self.status(s.process.pid)["NoNewPrivs"])
            self.assertEqual(said["Seccomp"], self.status(s.process.pid)["Seccomp"])
            # It has nothing of the server's open but its channel and the log.
            self.assertLessEqual(len(os.listdir(f"/proc/{pid}/fd")), 4)
            self.assertEqual(self.pull(s, "m").json, {"status": "success"})
            wait_until("it waits", lambda: self.status(pid)["Threads"] == "1")
            s.kill()
            wait_until("it is gone", lambda: not pathlib.Path(f"/proc/{pid}").exists())
        with self.serve("--models.pull=false") as s:
            self.assertIsNone(self.child(s))
            self.assertEqual(self.pull(s, "m").status, 403)

    def test_its_end_is_told(self):
        self.source.files["/slow-1B.gguf"] = gguf(500000)
        self.source.bytes_per_s = 1e6
        with self.serve() as s:
            got = []
            t = threading.Thread(target=lambda: got.append(
                self.pull(s, f"{self.source.url}/slow-1B.gguf")))
            t.start()
            wait_until("it has begun", lambda: self.source.asked)
            os.kill(self.child(s), signal.SIGKILL)
            t.join()
            got.append(self.pull(s, f"{self.source.url}/slow-1B.gguf"))
            for r in got:
                self.assertEqual(r.status, 503)
                self.assertIn("has ended", r.json["error"])
            self.assertEqual(s.get("/health").status, 200)
            self.assertEqual(seen(self.folder), [])


class First(unittest.TestCase):
    """The model that the server is started with, whose file changes and goes."""

    def chat(self, server, n=6):
        return server.post("/v1/chat/completions", {
            "max_tokens": n, "temperature": 0,
            "messages": [{"role": "user", "content": "Name three colours."}]})

    def names(self, server):
        return [m["id"] for m in server.get("/v1/models").json["data"]]

    def go_through(self, s, file):
        other = new_folder() / "first.gguf"
        want = self.chat(s).json["choices"]
        self.assertIn("first", self.names(s))
        # Changed: what runs goes on, then it is loaded anew.
        stream = s.stream("/v1/completions", {"prompt": "One, two,", "max_tokens": 200,
                                              "temperature": 0, "ignore_eos": True})
        os.utime(file)
        wait_until("it is seen", lambda: "changed name=first" in s.log())
        self.assertEqual(list(harness.Collected(stream).finish.values()), ["length"])
        stream.close()
        wait_until("it goes", lambda: "unloading name=first why=its file has changed" in s.log())
        self.assertEqual(self.chat(s).json["choices"], want)
        self.assertEqual(s.get("/v1/models/first").json["state"], "ready")
        # Gone, and back.
        file.rename(other)
        wait_until("it has gone", lambda: "first" not in self.names(s))
        self.assertEqual(self.chat(s).status, 404)
        self.assertEqual(s.get("/ready").status, 200)
        wait_until("its memory, too", lambda: s.log().count("unloading name=first") == 2)
        other.rename(file)
        wait_until("it is back", lambda: "first" in self.names(s))
        self.assertEqual(self.chat(s).json["choices"], want)

    def test_its_file_is_looked_at_as_all_others(self):
        file = new_folder() / "first.gguf"
        file.write_bytes(gguf())
        with harness.Server("--model", file, "--model-name", "first", "--models.rescan_ms", "50",
                            "--fake.threads", "2", "--fake.step_ms", "1") as s:
            self.go_through(s, file)

    @harness.long_only
    def test_of_a_real_model(self):
        def replace(data):
            tmp = file.with_name(".new")
            tmp.write_bytes(data)
            tmp.rename(file)
        file = new_folder() / "first.gguf"
        model = pathlib.Path(model_path()).read_bytes()
        options = ("--model", file, "--kv.memory_mb", 128, "--context", 1024, "--models.rescan_ms",
                   "50")
        file.write_bytes(model)
        with harness.Server(*options, "--models-dir", file.parent, backend="native") as s:
            self.go_through(s, file)
            # Another file in its place; and a broken one, which takes nobody down.
            replace(model)
            wait_until("it is seen", lambda: s.log().count("changed name=first") == 2)
            self.assertEqual(self.chat(s).status, 200)
            replace(b"GGUF, but not really")
            wait_until("it is seen", lambda: s.log().count("changed name=first") == 3)
            r = wait_until("it is refused", lambda: (a := self.chat(s)).status == 503 and a)
            self.assertIn("could not be loaded", r.json["error"]["message"])
        file.write_bytes(model)
        keys = new_folder() / "keys.json"  # whose folder may be read
        with harness.Server(*options, backend="native",
                            env={"GAMASOT_SERVER_KEYS_FILE": str(keys)}) as s:
            if "no walls" in s.log():
                self.skipTest("this kernel has no walls")
            replace(model)
            wait_until("it is seen", lambda: "changed name=first" in s.log())
            r = wait_until("it is refused", lambda: (a := self.chat(s)).status == 503 and a)
            self.assertIn("server.sandbox", r.json["error"]["message"])


class Admin(unittest.TestCase):
    def test_the_server_fetches_nothing_unless_it_may(self):
        with Source() as source, harness.Server(*source.options(new_folder())) as s:
            source.files["/a.gguf"] = gguf()
            r = s.post("/api/pull", {"model": f"{source.url}/a.gguf", "stream": False})
            self.assertEqual(r.status, 403)
            self.assertIn("models.pull", r.json["error"])
            self.assertEqual(source.asked, [])

    def test_only_an_admin_may(self):
        with harness.Server("--api-key", "sk-some-key-of-tests", key="sk-some-key-of-tests") as s:
            for method, path, body in (("POST", "/api/pull", {"model": "x"}),
                                       ("DELETE", "/api/delete", {"model": "x"}),
                                       ("POST", "/api/copy", {"source": "a", "destination": "b"})):
                self.assertEqual(s.request(method, path, body).status, 403, path)
