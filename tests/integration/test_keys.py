"""Who is who: gamasot keys, addresses, trusted proxies, aliases, classes and limits."""

import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import stat
import subprocess

import harness

PROMPT = "the same beginning of everything " * 8  # some KV blocks


class Keys(harness.unittest.TestCase):
    """Each test has its own state folder."""

    def setUp(self):
        self.state = harness.TMP / f"state-{self.id()}"
        self.state.mkdir()
        self.env = {"GAMASOT_SERVER_KEYS_FILE": "", "XDG_STATE_HOME": str(self.state)}
        self.path = self.state / "gamasot" / "keys.json"

    def run_keys(self, *args):
        return harness.cli("keys", *args, env=self.env)

    def add(self, name, *args):
        status, out, err = self.run_keys("add", name, *args)
        self.assertEqual(status, 0, err)
        self.assertRegex(out, r"^gs-[0-9a-f]{64}\n$")
        return out.strip()

    def serve(self, *options, **kw):
        return harness.Server(*options, env=self.env, **kw)

    def ask(self, server, headers=None, body=None, source=None, path="/v1/completions"):
        """Status, class that was given, cached tokens."""
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60,
                                       source_address=source and (source, 0))
        with contextlib.closing(c):
            body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0, **(body or {})}
            c.request("POST", path, json.dumps(body),
                      {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            answer = json.loads(r.read())
            cached = answer.get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens")
            return r.status, r.headers.get("X-Gamasot-Class"), cached

    # ---- the command

    def test_the_command(self):
        self.assertEqual(self.run_keys("list"), (0, "", ""))
        secret = self.add("ha", "--person", "house", "--class", "voice", "--address",
                          "192.168.1.20,fd00::/64", "--day-seconds", "600", "--admin")
        self.add("webui", "--trusted-proxy", "--weight", "2.5", "--classes", "chat,utility",
                 "--max-running=3", "--max-queued=4", "--cache-scope", "home")
        text = self.path.read_text()
        self.assertNotIn(secret, text)
        self.assertNotIn(secret[3:], text)
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        status, out, _ = self.run_keys("list")
        self.assertEqual(status, 0)
        lines = out.splitlines()
        self.assertEqual(len(lines), 3)
        for part in ("ha ", "house", "voice", "192.168.1.20,fd00::/64", "day-seconds=600", "admin"):
            self.assertIn(part, lines[1])
        for part in ("webui", "trusted-proxy", "may=chat,utility", "weight=2.5", "max-running=3",
                     "max-queued=4", "cache-scope=home"):
            self.assertIn(part, lines[2])
        self.assertNotIn(secret, out)
        self.assertEqual(self.run_keys("revoke", "ha")[0], 0)
        self.assertEqual(len(self.run_keys("list")[1].splitlines()), 2)
        for args, says in ((("revoke", "ha"), "no key 'ha'"), (("add", "webui"), "already"),
                           (("add", "a b"), "name"), (("add", "x" * 65), "name"),
                           (("add", "x", "--class", "best"), "best"),
                           (("add", "x", "--classes", "chat,best"), "best"),
                           (("add", "x", "--address", "1.2.3.4/40"), "1.2.3.4/40"),
                           (("add", "x", "--weight", "0"), "weight"),
                           (("add", "x", "--max-running", "-1"), "max-running"),
                           (("add", "x", "--person", "p" * 65), "person"),
                           (("add", "x", "--perzon", "p"), "person"),
                           (("add",), "add NAME"), ((), "add NAME"), (("list", "x"), "add NAME")):
            status, out, err = self.run_keys(*args)
            self.assertEqual((status, out), (2, ""), args)
            self.assertIn(says, err)
        self.assertEqual(len(self.run_keys("list")[1].splitlines()), 2)

    def test_many_at_the_same_time_lose_none(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: self.add(f"k{i}"), range(24)))
        self.assertEqual(len(json.loads(self.path.read_text())["keys"]), 24)

    def test_a_kill_leaves_a_whole_file(self):
        self.add("first")
        for i in range(25):
            p = subprocess.Popen([harness.GAMASOT, "keys", "add", f"k{i}"],
                                 env=harness.clean_env(self.env), stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(0.0005 * i)
            p.kill()
            said = p.communicate()[0].decode().strip()
            names = [k["name"] for k in json.loads(self.path.read_text())["keys"]]
            self.assertIn("first", names)
            if said:  # what was acknowledged is kept
                self.assertIn(f"k{i}", names)

    # ---- the server

    def test_keys_come_and_go_while_it_runs(self):
        with self.serve() as server:
            self.assertEqual(self.ask(server)[0], 200)
            secret = self.add("mina")
            bearer = {"Authorization": f"Bearer {secret}"}
            harness.wait_until("a key is needed", lambda: self.ask(server)[0] == 401)
            self.assertEqual(self.ask(server, bearer)[0], 200)
            self.assertEqual(self.ask(server, {"X-Api-Key": secret})[0], 200)
            basic = base64.b64encode(f"anybody:{secret}".encode()).decode()
            self.assertEqual(self.ask(server, {"Authorization": f"Basic {basic}"})[0], 200)
            self.assertEqual(server.get("/health").status, 200)
            self.assertEqual(server.get("/v1/models").status, 401)
            # A broken file changes nothing.
            good = self.path.read_bytes()
            self.path.write_bytes(b"{")
            harness.wait_until("the warning", lambda: "stay as they were" in server.log())
            self.assertEqual(self.ask(server, bearer)[0], 200)
            self.path.write_bytes(good)
            self.assertEqual(self.run_keys("revoke", "mina")[0], 0)
            harness.wait_until("the key is gone", lambda: self.ask(server, bearer)[0] == 401)
            # The last key is gone, and yet nobody gets in without one.
            self.assertEqual(self.ask(server)[0], 401)
            os.unlink(self.path)
            self.assertEqual(self.ask(server)[0], 401)
            self.assertNotIn(secret, server.log())

    def test_options_keys_still_work(self):
        secret = self.add("mina")
        with self.serve("--api-key", "old", key=secret) as server:
            for key in ("old", secret):
                self.assertEqual(self.ask(server, {"Authorization": f"Bearer {key}"})[0], 200)
            self.assertEqual(self.ask(server, {"Authorization": "Bearer no"})[0], 401)

    def test_other_addresses_need_keys(self):
        status, _, err = harness.cli("serve", "--backend", "fake", "--port", "0", "--host",
                                     "0.0.0.0", env=self.env)
        self.assertEqual(status, 2)
        self.assertIn("gamasot keys add", err)
        secret = self.add("x")
        with self.serve("--host", "0.0.0.0", key=secret) as server:
            self.assertEqual(server.get("/v1/models").status, 200)

    def test_a_broken_file_stops_the_start(self):
        self.path.parent.mkdir()
        self.path.write_text('{"keys":[{"name":"a","hash":"x"}]}')
        status, _, err = harness.cli("serve", "--backend", "fake", "--port", "0", env=self.env)
        self.assertEqual(status, 2)
        self.assertIn("keys.json", err)
        self.assertIn("hash", err)

    def test_an_address_is_enough(self):
        """As Home Assistant, which sends no key."""
        self.add("ha", "--address", "127.0.0.2,127.0.1.0/24", "--person", "house", "--class",
                 "voice")
        other = self.add("other")
        with self.serve(key=other) as server:
            self.assertEqual(self.ask(server, source="127.0.0.2")[:2], (200, "voice"))
            self.assertEqual(self.ask(server, source="127.0.1.77")[:2], (200, "voice"))
            # It may send a word in the key's place, as clients must.
            self.assertEqual(self.ask(server, {"Authorization": "Bearer ollama"},
                                      source="127.0.0.2")[:2], (200, "voice"))
            self.assertEqual(self.ask(server, source="127.0.0.3")[0], 401)
            # A real key counts before the address.
            self.assertEqual(self.ask(server, {"Authorization": f"Bearer {other}"},
                                      source="127.0.0.2")[:2], (200, "chat"))

    def test_classes(self):
        plain = self.add("plain")
        bot = self.add("bot", "--class", "background", "--classes", "background")
        ha = self.add("ha", "--class", "voice")
        cases = [(plain, {}, {}, "chat"),
                 (plain, {"X-Gamasot-Class": "voice"}, {}, "chat"),
                 (plain, {"X-Gamasot-Class": "utility"}, {}, "utility"),
                 (plain, {}, {"service_tier": "flex"}, "background"),
                 (plain, {}, {"service_tier": "priority"}, "chat"),
                 (plain, {"X-Gamasot-Class": "voice"}, {"service_tier": "flex"}, "background"),
                 (bot, {}, {}, "background"),
                 (bot, {"X-Gamasot-Class": "chat"}, {}, "background"),
                 (bot, {}, {"service_tier": "priority"}, "background"),
                 (ha, {}, {}, "voice"),
                 (ha, {}, {"service_tier": "auto"}, "voice"),
                 (ha, {}, {"service_tier": "default"}, "voice"),
                 (ha, {}, {"service_tier": "priority"}, "voice"),
                 (ha, {"X-Gamasot-Class": "chat"}, {}, "chat")]
        with self.serve(key=plain) as server:
            for key, headers, body, given in cases:
                with self.subTest(headers=headers, body=body, given=given):
                    headers = {"Authorization": f"Bearer {key}", **headers}
                    self.assertEqual(self.ask(server, headers, body)[:2], (200, given))

    def test_persons_and_scopes(self):
        a, b = self.add("a"), self.add("b")
        shared = [self.add(n, "--cache-scope", "home") for n in ("c", "d")]
        same = [self.add(n, "--person", "eva") for n in ("e", "f")]
        proxy = self.add("webui", "--trusted-proxy")
        with self.serve(key=a) as server:
            def cached(key, headers=None, **body):
                status, _, n = self.ask(server, {"Authorization": f"Bearer {key}",
                                                 **(headers or {})}, body)
                self.assertEqual(status, 200)
                return n
            self.assertEqual(cached(a), 0)
            self.assertGreater(cached(a, user="someone"), 100)  # stored, not used
            self.assertEqual(cached(b), 0)
            self.assertGreater(cached(b, {"X-OpenWebUI-User-Id": "1"}), 100)  # not trusted
            self.assertEqual(cached(shared[0]), 0)
            self.assertGreater(cached(shared[1]), 100)
            self.assertEqual(cached(same[0]), 0)
            self.assertGreater(cached(same[1]), 100)
            # Below a trusted proxy everybody is a person.
            mina = {"X-OpenWebUI-User-Id": "u-1", "X-OpenWebUI-User-Name": "Mina",
                    "X-OpenWebUI-User-Email": "m@home", "X-OpenWebUI-User-Role": "user"}
            jun = {**mina, "X-OpenWebUI-User-Id": "u-2"}
            self.assertEqual(cached(proxy, mina), 0)
            self.assertGreater(cached(proxy, mina), 100)
            self.assertEqual(cached(proxy, jun), 0)
            self.assertEqual(cached(proxy), 0)
            self.assertEqual(cached(proxy, user="libre-1"), 0)  # as LibreChat
            self.assertGreater(cached(proxy, user="libre-1"), 100)
            self.assertGreater(cached(proxy, {"X-Gamasot-User": "libre-1"}), 100)
            self.assertGreater(cached(proxy, mina, user="x"), 100)  # the header counts
            for key, headers, person in ((a, {}, "a"), (same[1], {}, "eva"), (proxy, {}, "webui"),
                                         (proxy, mina, "webui/Mina"), (a, mina, "a"),
                                         (proxy, {"X-Gamasot-User": "jo"}, "webui/jo")):
                r = server.get("/v1/queue", headers={"Authorization": f"Bearer {key}", **headers})
                self.assertEqual(r.json["person"], person)

    def test_queue_limit_of_a_person(self):
        few = self.add("few", "--max-running", "1", "--max-queued", "1")
        other = self.add("other")
        with self.serve("--fake.step_ms", "20", key=other) as server:
            headers = {"Authorization": f"Bearer {few}"}
            body = {"prompt": "x", "max_tokens": 4000}
            with contextlib.ExitStack() as stack:
                streams = []
                for _ in range(2):
                    streams.append(server.stream("/v1/completions", body, headers=headers))
                    stack.callback(streams[-1].close)
                    self.assertEqual(streams[-1].status, 200)
                server.wait_admitted(2)
                m = server.metrics()
                self.assertEqual((m["num_requests_running"], m["num_requests_waiting"]), (1, 1))
                r = server.post("/v1/completions", body, headers=headers)
                self.assertEqual(r.status, 429)
                self.assertGreaterEqual(int(r.headers["Retry-After"]), 1)
                self.assertEqual(self.ask(server, {"Authorization": f"Bearer {other}"})[0], 200)
            server.wait_idle()

    def test_admin(self):
        """The doors that take an admin's key say so in the document."""
        admin, plain = self.add("root", "--admin"), self.add("plain")
        with self.serve("--api-key", "old", "--models.pull", "--server.add-workers", key=admin) as server:
            doors = [(path, method) for path, item in
                     server.get("/openapi.json").json["paths"].items()
                     for method, operation in item.items() if operation.get("x-gamasot-admin")]
            self.assertIn(("/v1/config", "patch"), doors)
            for path, method in doors:
                for key in (plain, "old"):
                    r = server.request(method.upper(), path, "{}",
                                       headers={"Authorization": f"Bearer {key}"})
                    self.assertEqual(r.status, 403, path)
                r = server.request(method.upper(), path, "{}")
                self.assertNotIn(r.status, (401, 403), path)


class Aliases(harness.unittest.TestCase):
    def test_an_alias_is_a_name_with_a_class(self):
        conf = harness.TMP / "alias.conf"
        conf.write_text("[server]\nport = 0\n[alias home-voice]\nmodel = fake\nclass = voice\n"
                        "[alias plain]\nmodel =\n[alias other]\nmodel = llama\n")
        with harness.Server("--config", conf) as server:
            names = [m["id"] for m in server.get("/v1/models").json["data"]]
            self.assertEqual(names, ["fake", "home-voice", "plain"])
            names = [m["name"] for m in server.get("/api/tags").json["models"]]
            self.assertEqual(names, ["fake:latest", "home-voice:latest", "plain:latest"])
            harness.wait_until("the warning", lambda: "alias other: the model 'llama' is not "
                               "served here" in server.log())
            for name, given in (("home-voice", "voice"), ("home-voice:latest", "voice"),
                                ("plain", "chat"), ("fake", "chat"), ("fake:latest", "chat")):
                r = server.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})
                self.assertEqual(r.status, 200)
                self.assertEqual(r.headers["X-Gamasot-Class"], given)
                self.assertEqual(r.json["model"], name.removesuffix(":latest"))
                self.assertEqual(server.get(f"/v1/models/{name}").json["id"],
                                 name.removesuffix(":latest"))
            r = server.post("/v1/completions", {"model": "home-voice", "prompt": "x",
                                                "max_tokens": 1},
                            headers={"X-Gamasot-Class": "background"})
            self.assertEqual(r.headers["X-Gamasot-Class"], "background")
            for name in ("other", "home", "home-voice:x"):
                r = server.post("/v1/completions", {"model": name, "prompt": "x"})
                self.assertEqual(r.status, 404)
                self.assertEqual(server.get(f"/v1/models/{name}").status, 404)

    def test_wrong_aliases_stop_the_start(self):
        for text, says in (("[alias x]\nclass = best\n", "best"),
                           ("[alias x]\nmodell = y\n", "modell"),
                           ("[alias ]\nmodel = y\n", "alias"),
                           ("[alias a b]\nmodel = y\n", "a b"),
                           (f"[alias {'x' * 41}]\nmodel = y\n", "40"),
                           (f"[alias {'x' * 400}]\nmodel = y\n", "line"),
                           ("[aliass x]\nmodel = y\n", "aliass")):
            conf = harness.TMP / "bad-alias.conf"
            conf.write_text(text)
            status, _, err = harness.cli("serve", "--backend", "fake", "--port", "0", "--config",
                                         str(conf))
            self.assertEqual(status, 2, text)
            self.assertIn(says, err)
