"""What hostile pages, clients, requests and files can't do; secrets stay secret; walls stand."""

import itertools
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import unittest
import urllib.parse

import harness
import http_cases
from fake_model import FakeModel, ids
from harness import Server, in_parallel

FAKE = FakeModel()


def status_of(pid, name):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+)", text, re.M).group(1))


class Walls(unittest.TestCase):
    def test_the_server_is_walled_in(self):
        with Server() as server:
            refused = re.search(r"no walls around (.*)", server.log())
            if refused:
                self.skipTest(refused.group(0))
            for task in os.listdir(f"/proc/{server.process.pid}/task"):
                at = f"{server.process.pid}/task/{task}"
                self.assertEqual((status_of(at, "Seccomp"), status_of(at, "NoNewPrivs")), (2, 1))
            limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
            self.assertRegex(limits, r"Max core file size +1 +1 ")
            self.assertEqual(server.complete("within walls", 5)["choices"][0]["text"],
                             FAKE.text("within walls", 5))

    def test_the_unit_file_is_tight(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("there is no systemd-analyze")
        unit = harness.ROOT / "packaging/systemd/gamasot.service"
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", unit],
                              capture_output=True, text=True, timeout=60)
        level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
        self.assertTrue(level, done.stderr)
        self.assertLessEqual(float(level.group(1)), 2.0, done.stdout)

    def test_the_service_manager_waits_for_the_servers_own_watchdog(self):
        """A frozen engine is replaced three times before the server gives up: only what hangs
        longer than that is for the service manager."""
        status, out, err = harness.cli("config", "reference")
        self.assertEqual(status, 0, err)
        restart_ms = int(re.search(r"`engine.restart_ms` \| `(\d+)`", out).group(1))
        for name in ("gamasot.service", "gamasot-user.service"):
            unit = (harness.ROOT / "packaging/systemd" / name).read_text()
            minutes = int(re.search(r"^WatchdogSec=(\d+)min$", unit, re.M).group(1))
            self.assertGreater(minutes * 60_000, 4 * restart_ms, name)
            self.assertIn("\nType=notify\n", unit)

    def test_it_can_be_turned_off(self):
        with Server("--server.sandbox=false") as server:
            self.assertEqual(status_of(server.process.pid, "Seccomp"), 0)


class Browser(harness.SharedServer):
    """Requests as a page of somebody else's makes a browser send them."""

    options = ("--server.allowed_origins", "https://chat.home.example")

    def test_foreign_pages_change_nothing(self):
        hosts = ["localhost", "evil.example", "127.0.0.1.evil.example", "a.b.c.d.rebind.example"]
        origins = ["https://evil.example", "null", "http://localhost.evil.example", "http://evil.example:80",
                   "http://[::1].evil.example"]
        kinds = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                 "application/json"]
        calls = [("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}),
                 ("PATCH", "/v1/config", {"sched.background_paused": True}),
                 ("POST", "/v1/background/pause", {}), ("POST", "/v1/files", {}),
                 ("POST", "/api/generate", {"prompt": "x", "model": "fake"})]
        before = self.server.get("/v1/config").json, self.server.metrics()["prompt_tokens_total"]
        n = 0
        for host, origin, kind in itertools.product(hosts, origins, kinds):
            for method, path, body in calls:
                r = self.server.request(method, path, body, headers={
                    "Host": host, "Origin": origin, "Content-Type": kind})
                self.assertEqual(r.status, 403, (host, origin, kind, path))
                self.assertIsNone(r.headers["Access-Control-Allow-Origin"])
                n += 1
        # A plain form without an origin, as old browsers send it; and our own page.
        for kind in kinds:
            for method, path, body in calls:
                r = self.server.request(method, path, body, headers={
                    "Content-Type": kind, "Referer": "https://evil.example/page?x=http://localhost/"})
                self.assertEqual(r.status, 403, (kind, path))
        r = self.server.request("PATCH", "/v1/config", {}, headers={
            "Referer": f"http://127.0.0.1:{self.server.port}/dashboard"})
        self.assertEqual(r.status, 200, r.body)
        self.assertGreaterEqual(n, 60)
        after = self.server.get("/v1/config").json, self.server.metrics()["prompt_tokens_total"]
        self.assertEqual(before, after)

    def test_encoded_paths_reach_no_file(self):
        dots = ["..", "%2e%2e", "%252e%252e", "..%2f", "%c0%ae%c0%ae", "..;", ".%00.", "..\\", "%2e%2e%5c",
                "%uff0e%uff0e"]
        prefixes = ["/", "/v1/models/", "/v1/files/", "/static/", "/v1/batches/", "/api/blobs/sha256:"]
        targets = ["etc/passwd", "proc/self/environ"]
        n = 0
        for prefix, dot, target in itertools.product(prefixes, dots, targets):
            for path in (prefix + (dot + "/") * 8 + target, prefix + dot + "%2f" + target):
                raw = self.server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close"
                                      "\r\n\r\n".encode())
                status, body = http_cases.answers(raw)[0]
                self.assertIn(status, (400, 404, 405), path)
                self.assertNotIn(b"root:", body)
                self.assertNotIn(b"GAMASOT_", body)
                n += 1
        self.assertGreaterEqual(n, 100)
        for name in ("../../etc/passwd", "/etc/passwd", "..%2fx", "http://127.0.0.1/x", "fake/../fake"):
            r = self.server.post("/v1/completions", {"prompt": "x", "model": name})
            self.assert_error(r, 404, "model", "model_not_found")


class Bombs(harness.SharedServer):
    """Texts that are cheap to send and would be dear to read; someone beside goes on."""

    options = ("--fake.step_ms", 0)

    def deep(self, opening, closing, n=60000):
        return opening * n + closing * n

    def test_bombs(self):
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        bombs = [
            {"response_format": {"type": "grammar", "grammar": 'start: ' + self.deep("(", ")")}},
            {"grammar": "root ::= " + self.deep("(", ")") + ' "a"'},
            {"grammar": "root ::= a\na ::= b\nb ::= a"},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "string", "pattern": "^(a{1,1000}){1,1000000}$"}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "string", "pattern": "^" + "(" * 5000 + "a" + "+)" * 5000 + "$"}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "array", "minItems": 10**9, "items": {"type": "integer"}}}}},
        ]
        raw = [b'{"messages":' + b"[" * 10000, b'{"a":' * 60000,
               b'{"tools":' + b'[{"function":' * 3000 + b"1" + b"}]" * 3000 + b"}"]
        rss, took = self.server.rss_anon_kb(), []

        def send(body):
            began = time.monotonic()
            r = self.server.post("/v1/chat/completions", body)
            took.append(time.monotonic() - began)
            return r

        for bomb in bombs:
            r = send({**chat, **bomb})
            self.assertIn(r.status, (200, 400, 501), (r.body[:200], str(bomb)[:80]))
        for body in raw:
            self.assert_error(send(body), 400, "body")
        # Whoever comes next is served, and what the bombs took has been given back.
        self.assertEqual(self.server.complete("after the bombs", 3)["choices"][0]["text"],
                         FAKE.text("after the bombs", 3))
        grown_kb = self.server.rss_anon_kb() - rss
        harness.figure("15", bombs=len(took), slowest_ms=1e3 * max(took), grown_mb=grown_kb / 1024,
                       median_ms=1e3 * statistics.median(took))
        if not harness.SANITIZED:
            self.assertLess(grown_kb, 200 << 10)

    @harness.long_only
    @harness.limit(1200)
    def test_ten_thousand_schemas(self):
        """All of them new: the cache of compiled ones stays within memory.grammars_mb."""
        def grammars(name):
            return float(re.search(rf'^gamasot_memory_{name}{{kind="grammars"}} (\S+)',
                                   self.server.get("/metrics").text, re.M).group(1))

        def one(k):
            schema = {"type": "object", "required": [f"field_{k}"], "properties": {
                f"field_{k}": {"type": "string", "pattern": f"^[a-z]{{1,{1 + k % 40}}}{k}$"}}}
            r = self.server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "x"}], "max_tokens": 2,
                "response_format": {"type": "json_schema", "json_schema": {
                    "name": "x", "schema": schema}}})
            self.assertIn(r.status, (200, 501), r.body[:200])  # 501: built without grammars

        n, rss = 10_000, []
        for k in range(0, n, 500):
            in_parallel(4, [lambda i=i: one(i) for i in range(k, k + 500)])
            rss.append(self.server.rss_anon_kb())
        used = grammars("bytes")
        harness.figure("15 schemas", schemas=n, cache_mb=used / 2**20,
                       grown_mb_second_half=(rss[-1] - rss[len(rss) // 2]) / 1024)
        self.assertLessEqual(used, grammars("limit_bytes"))
        if not harness.SANITIZED:
            self.assertLess(rss[-1] - rss[len(rss) // 2], 16 << 10)


class Parsers(harness.SharedServer):
    """What is accepted, others read in the same way."""

    options = ("--server.header_timeout_ms", 300, "--server.body_timeout_ms", 300,
               "--server.keep_alive_ms", 300, "--server.max_connections_per_address", 2000)

    def accepted(self, data):
        """Requests that were answered, and not refused for their form."""
        try:
            got = self.server.raw(data)
        except ConnectionError:
            got = b""
        found = http_cases.answers(got)
        # What is refused for its form ends the connection: it can only be the last.
        if found and found[-1][0] in (400, 408, 413, 417, 431, 501, 505):
            found.pop()
        return found

    def same(self, data):
        ours = self.accepted(data)
        theirs = http_cases.read_by_h11(data)
        self.assertLessEqual(len(ours), len(theirs), data)
        for (status, body), (method, target, sent) in zip(ours, theirs):
            if target == "/tokenize" and method == "POST" and status == 200:
                self.assertEqual(json.loads(body)["tokens"], ids(json.loads(sent)["content"]), data)
        return len(ours)

    def test_as_strict_as_h11(self):
        cases = http_cases.cases() + list(http_cases.mutants(300, harness.seed(5)))
        n = in_parallel(64, [lambda c=c: self.same(c) for c in cases])
        # Both happen, or the comparison would say nothing.
        self.assertGreater(sum(x > 0 for x in n), 10)
        self.assertGreater(sum(x == 0 for x in n), 150)

    @harness.long_only
    @harness.limit(1800)
    def test_many_as_strict_as_h11(self):
        in_parallel(64, [lambda c=c: self.same(c) for c in http_cases.mutants(20000, harness.seed(6))])

    @harness.long_only
    @harness.limit(600)
    def test_as_strict_as_nginx(self):
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        if not os.path.exists(nginx):
            self.skipTest("nginx is not installed")
        folder = tempfile.mkdtemp(prefix="nginx-", dir=harness.TMP)
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        pathlib.Path(folder, "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off;\n"
            + "".join(f"{d}_temp_path {folder}/{d};" for d in
                      ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            + "client_header_timeout 1s; client_body_timeout 1s; keepalive_timeout 1s;\n"
            + f'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "x"; }} }} }}\n')
        process = subprocess.Popen([nginx, "-p", folder, "-e", "stderr", "-c", f"{folder}/nginx.conf"],
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

        def listens():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0
        harness.wait_until("nginx", listens)

        def its(data):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
                s.sendall(data)
                out = b""
                try:
                    while chunk := s.recv(65536):
                        out += chunk
                except ConnectionError:
                    pass
            return out.count(b"HTTP/1.1 200 OK")

        def same(data):
            self.assertLessEqual(len(self.accepted(data)), its(data), data)
        in_parallel(32, [lambda c=c: same(c) for c in http_cases.cases() + list(http_cases.mutants(1000, harness.seed(7)))])


def memory_holds(pid, needles):
    """Those of the needles that the process has anywhere in memory it can write."""
    found = set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, rights = line.split()[:2]
            low, high = (int(x, 16) for x in span.split("-"))
            if "rw" not in rights or "[v" in line:
                continue
            while low < high:
                n = min(high - low, 16 << 20)
                try:
                    mem.seek(low)
                    data = mem.read(n)
                except OSError:
                    break
                found |= {x for x in needles if x in data}
                low += n
    return found


class Secrets(unittest.TestCase):
    def test_no_secret_in_log_errors_or_memory(self):
        """Keys of the command line, the environment, a file and of requests, sent in all ways."""
        made = {name: f"sk-{name}-" + os.urandom(12).hex() for name in ("flag", "env", "file", "wrong")}
        folder = tempfile.mkdtemp(prefix="keys-", dir=harness.TMP)
        key_file = pathlib.Path(folder, "keys")
        key_file.write_text(f"# comment\n{made['file']}\n")
        key_file.chmod(0o600)
        keys_json = os.path.join(folder, "keys.json")
        code, out, err = harness.cli("keys", "add", "kim", env={"GAMASOT_SERVER_KEYS_FILE": keys_json})
        self.assertEqual(code, 0, err)
        made["made"] = re.search(r"gs-[0-9a-f]{64}", out).group(0)
        env = {"GAMASOT_SERVER_API_KEYS": made["env"], "GAMASOT_SERVER_API_KEYS_FILE": str(key_file),
               "GAMASOT_SERVER_KEYS_FILE": keys_json}
        with Server("--log-level", "debug", key=made["made"], env=env) as server:
            errors = ""
            for name, key in made.items():
                for headers in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
                    r = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1},
                                    headers={"Authorization": "", **headers})
                    self.assertEqual(r.status, 401 if name in ("wrong", "flag") else 200, name)
                    errors += r.text + str(r.headers)
            for evil in ("a\rSet-Cookie: x", "' OR 1=1 --", "\x1b[31m", "%0d%0aX: y", "x" * 3000):
                for header in ("Authorization", "X-Api-Key", "X-Gamasot-Class", "X-Gamasot-User", "Origin",
                               "User-Agent", "Accept"):
                    raw = server.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + header.encode()
                                     + b": " + evil.encode() + b"\r\nConnection: close\r\n\r\n")
                    errors += raw.decode(errors="replace")
                    self.assertLess(int(raw.split()[1]), 500)
            self.assertNotRegex(errors, r"0x[0-9a-f]{6,}|Set-Cookie")
            for key in made.values():
                self.assertNotIn(key, errors)
            try:
                held = memory_holds(server.process.pid, [k.encode() for k in made.values()])
            except PermissionError as error:
                self.skipTest(f"this kernel lets nobody look into the server's memory: {error}")
            if not harness.SANITIZED:  # quarantined memory is kept on purpose there
                self.assertEqual({n for n, k in made.items() if k.encode() in held}, set())
            self.assertNotIn(made["env"], pathlib.Path(
                f"/proc/{server.process.pid}/environ").read_text(errors="replace"))
        log = server.log()
        for key in made.values():
            self.assertNotIn(key, log)
        for line in log.splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\S+Z (debug|info|warn|error) \w+: ")
            self.assertNotIn("\x1b", line)
