"""Servers, HTTP clients and waiting for the integration tests."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GAMASOT = GAMASOT_FAULTS = None
LONG = False
VERBOSE = False
SANITIZED = COUNTED = False
SLOWNESS = 1  # hang limits are multiplied by it
_servers = set()
_tmp = tempfile.TemporaryDirectory(prefix="gamasot-test-")
TMP = pathlib.Path(_tmp.name)

SANITIZER_REPORT = re.compile(
    r"ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:|assertion failed|"
    r"invariant broken")


def setup(build_dir, long, verbose):
    global GAMASOT, GAMASOT_FAULTS, LONG, VERBOSE, SANITIZED, COUNTED, SLOWNESS
    build = pathlib.Path(build_dir).resolve()
    GAMASOT = str(build / "gamasot")
    GAMASOT_FAULTS = str(build / "gamasot-faults")  # the same with calls that can fail
    LONG, VERBOSE = long, verbose
    SANITIZED = bool(re.search(r"asan|tsan", build.name))
    COUNTED = build.name.startswith("coverage")
    SLOWNESS = 10 if SANITIZED or COUNTED else 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))


def seed(n):
    """Of a test's random numbers: its own, the same each day, or as GAMASOT_TEST_SEED asks for."""
    return int(os.environ.get("GAMASOT_TEST_SEED") or 0) * 1_000_003 + n


def monthly_seed():
    """Another one each month, so that what a short test draws from a long one's cases differs."""
    return seed(0) or int(time.strftime("%Y%m"))


def part(items):
    """All, or with GAMASOT_TEST_PART=K/N each N-th from the K-th on: a long test in pieces."""
    k, _, n = os.environ.get("GAMASOT_TEST_PART", "1/1").partition("/")
    return list(items)[int(k) - 1::int(n)]


def figure(number, **figures):
    """What was measured, for the scorecard of docs/reliability.md."""
    text = " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                    for k, v in figures.items())
    print(f"scorecard {number}: {text}", flush=True)


def long_only(test):
    test.long_only = True
    return test


def limit(seconds):
    def mark(test):
        test.limit_s = seconds
        return test
    return mark


def wait_until(what, condition, timeout_s=20):
    """Polls; the time-out is a hang limit."""
    end = time.monotonic() + timeout_s * SLOWNESS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s * SLOWNESS} s for: {what}")
        time.sleep(0.005)


def clean_env(extra=None):
    """No configuration of this user or machine gets in."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("GAMASOT_") and not k.endswith("_DIRECTORY")}
    env["XDG_CONFIG_HOME"] = str(TMP / "no-config")
    env["GAMASOT_SERVER_KEYS_FILE"] = str(TMP / "no-keys.json")
    env.update(extra or {})
    return env


def program(env):
    return GAMASOT_FAULTS if "GAMASOT_FAULT" in (env or {}) else GAMASOT


def cli(*args, env=None, timeout_s=60, stdin=None):
    """One command of gamasot to its end: (exit status, stdout, stderr)."""
    done = subprocess.run([program(env), *args], env=clean_env(env), capture_output=True, cwd=TMP,
                          timeout=timeout_s * SLOWNESS, stdin=stdin or subprocess.DEVNULL)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


_model_paths = {}


def model_path(name="smollm2"):
    """A real model (names of scripts/fetch-model), or the test is skipped."""
    if name not in _model_paths:
        done = subprocess.run(["python3", "scripts/fetch-model", name], cwd=ROOT,
                              capture_output=True, timeout=900)
        _model_paths[name] = done.stdout.decode().strip() if done.returncode == 0 else ""
    if not _model_paths[name]:
        raise unittest.SkipTest(f"{name} can't be fetched (scripts/fetch-model)")
    return _model_paths[name]


def make_certificate(name, ca=None):
    """(certificate, key) files for "DNS:..." or "IP:...", signed by ca's, or by itself."""
    stem = TMP / f"{name.replace('*', '_')}{'-by-' + ca[0].stem if ca else ''}"
    key, cert = stem.with_name(stem.name + ".key"), stem.with_name(stem.name + ".pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert, "-days",
                    "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={name}",
                    *(("-CA", ca[0], "-CAkey", ca[1]) if ca else ())],
                   check=True, capture_output=True)
    return cert, key


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode("utf-8")  # strict

    @property
    def json(self):
        return json.loads(self.text)


class Stream:
    """A server-sent event stream that is being read; strict about its form."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.status = response.status
        self.headers = response.headers
        self.rest = b""
        self.done = False  # [DONE] was seen
        self.comments = 0

    def events(self):
        while True:
            data = self.response.read1(65536)
            if not data:
                break
            blocks = (self.rest + data).split(b"\n\n")
            self.rest = blocks.pop()
            for block in blocks:
                text = block.decode("utf-8")
                if text.startswith(":"):
                    self.comments += 1
                    continue
                if not text.startswith("data: ") or "\n" in text:
                    raise AssertionError(f"not one data line: {text!r}")
                if self.done:
                    raise AssertionError(f"an event after [DONE]: {text!r}")
                if text == "data: [DONE]":
                    self.done = True
                else:
                    yield json.loads(text[6:])
        if self.rest:
            raise AssertionError(f"half an event at the end: {self.rest!r}")

    def close(self):
        self.response.close()
        self.connection.close()


class Collected:
    """What a whole stream said."""

    def __init__(self, stream):
        self.texts, self.finish, self.deltas = {}, {}, {}
        self.usage = self.error = None
        self.ids = set()
        for event in stream.events():
            if "error" in event:
                self.error = event["error"]
                continue
            self.ids.add(event["id"])
            self.usage = event.get("usage") or self.usage
            for choice in event["choices"]:
                i = choice["index"]
                if i in self.finish:
                    raise AssertionError(f"choice {i} goes on after its finish_reason")
                piece = (choice["delta"].get("content") if "delta" in choice else choice["text"])
                self.texts[i] = self.texts.get(i, "") + (piece or "")
                if piece:
                    self.deltas[i] = self.deltas.get(i, 0) + 1
                if choice["finish_reason"]:
                    self.finish[i] = choice["finish_reason"]
        self.done = stream.done

    @property
    def text(self):
        return self.texts.get(0, "")


class Server:
    """gamasot serve in a process of its own. Use with `with`: the end checks that it ended well."""

    def __init__(self, *options, backend="fake", env=None, ready=True, check=True, key=None):
        self.key = key
        self.ended = False
        log_fd, self.log_path = tempfile.mkstemp(prefix="server-", suffix=".log", dir=TMP)
        command = [program(env), "serve", "--port", "0"]
        if backend == "fake":
            command += ["--backend", "fake"]
        if check:
            command += ["--engine.check=true"]
        command += [str(o) for o in options]
        env = {"GAMASOT_STORE_FOLDER": tempfile.mkdtemp(prefix="store-", dir=TMP), **(env or {})}
        if SANITIZED and backend != "fake":  # a part of a step may take seconds there
            env["GAMASOT_ENGINE_RESTART_MS"] = "0"
        if COUNTED:  # gcov writes beside the objects when the process ends
            env["GAMASOT_SERVER_SANDBOX"] = "false"
        self.process = subprocess.Popen(command, env=clean_env(env), stdin=subprocess.DEVNULL,
                                        stdout=log_fd, stderr=log_fd, cwd=TMP)
        os.close(log_fd)
        _servers.add(self)
        self.port = int(wait_until("the port", self._find_port))
        if ready:
            self.wait_ready()

    def log(self):
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def _find_port(self):
        found = re.search(r"listening on http://\S*?:(\d+)\s", self.log())
        if not found and self.process.poll() is not None:
            raise AssertionError(f"serve ended with {self.process.returncode}: {self.log()}")
        return found and found.group(1)

    def wait_ready(self, timeout_s=60):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}: {self.log()}")
            return self.get("/ready").status == 200
        wait_until("/ready", ready, timeout_s)

    # ---- requests

    def headers(self, extra=None):
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        headers.update(extra or {})
        return headers

    def connect(self, timeout_s=30):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s * SLOWNESS)

    def request(self, method, path, body=None, headers=None, timeout_s=30):
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        with contextlib.closing(self.connect(timeout_s)) as c:
            c.request(method, path, body, self.headers(headers))
            r = c.getresponse()
            return Response(r.status, r.headers, r.read())

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def ok(self, path, body, **kw):
        r = self.post(path, body, **kw)
        if r.status != 200:
            raise AssertionError(f"{path}: {r.status} {r.body[:500]!r}")
        return r.json

    def stream(self, path, body, timeout_s=60, headers=None):
        c = self.connect(timeout_s)
        c.request("POST", path, json.dumps({**body, "stream": True}), self.headers(headers))
        return Stream(c, c.getresponse())

    def collect(self, path, body, **kw):
        stream = self.stream(path, body, **kw)
        try:
            if stream.status != 200:
                raise AssertionError(f"{stream.status} {stream.response.read()[:500]!r}")
            return Collected(stream)
        finally:
            stream.close()

    def complete(self, prompt, n, **more):
        return self.ok("/v1/completions",
                       {"prompt": prompt, "max_tokens": n, "temperature": 0, **more})

    def socket(self, timeout_s=30):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s * SLOWNESS)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def raw(self, data, timeout_s=30):
        """Sends bytes; everything that comes until the server closes."""
        with self.socket(timeout_s) as s:
            s.sendall(data)
            out = b""
            while chunk := s.recv(65536):
                out += chunk
            return out

    def post_bytes(self, path, body, headers=None):
        body = json.dumps(body).encode()
        head = {"Host": "localhost", **self.headers(headers), "Content-Length": len(body)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    # ---- what the server says and the system sees

    def metrics(self):
        """name -> sum over its label sets"""
        out = {}
        for line in self.get("/metrics").text.splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0].removeprefix("gamasot_")
            out[name] = out.get(name, 0.0) + float(value)
        return out

    def idle(self):
        m = self.metrics()
        return (m["num_requests_running"] == 0 and m["num_requests_waiting"] == 0
                and m["kv_cache_usage_perc"] == 0)

    def wait_idle(self, timeout_s=20):
        wait_until("nothing running, nothing waiting, no KV held", self.idle, timeout_s)

    def wait_metric(self, name, at_least, timeout_s=20):
        wait_until(f"{name} >= {at_least}", lambda: self.metrics()[name] >= at_least, timeout_s)

    def wait_admitted(self, n):
        """n sequences run or wait, some of each as the scheduler likes, and one runs at least."""
        def admitted():
            m = self.metrics()
            running = m["num_requests_running"]
            return running >= 1 and running + m["num_requests_waiting"] == n
        wait_until(f"{n} admitted sequences", admitted)

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss_anon_kb(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"RssAnon:\s+(\d+)", f.read()).group(1))

    def used_kb(self):
        """Anonymous memory without KV pages and step buffers: those are reserved from the start,
        and take memory when they are first written; mode split's only when auto chooses it."""
        kinds = re.findall(r'^gamasot_memory_bytes\{kind="(?:kv|step)"\} (\S+)$',
                           self.get("/metrics").text, re.MULTILINE)
        assert len(kinds) == 2
        return self.rss_anon_kb() - sum(map(float, kinds)) / 1024

    # ---- end

    def wait_exit(self, timeout_s=30):
        try:
            status = self.process.wait(timeout_s * SLOWNESS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"serve does not end: {self.log()[-2000:]}") from None
        self.ended = True
        _servers.discard(self)
        report = SANITIZER_REPORT.search(self.log())
        if report:
            raise AssertionError(f"{report.group(0)}\n{self.log()[-6000:]}")
        if VERBOSE:
            print(self.log())
        return status

    def stop(self, timeout_s=30):
        if not self.ended:
            self.process.send_signal(signal.SIGTERM)
            status = self.wait_exit(timeout_s)
            if status != 0:
                raise AssertionError(f"serve ended with {status}: {self.log()[-4000:]}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.ended = True
        _servers.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        if kind:
            self.kill()
            print(f"--- log of the server ---\n{self.log()[-3000:]}---", flush=True)
        else:
            self.stop()


def kill_all():
    for server in list(_servers):
        server.kill()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def other_server(name, command, port, path="/v1/models", env=None):
    """Somebody else's server at that port until the end of the block, from when path has an answer."""
    log = TMP / f"{name}.log"
    with open(log, "wb") as out, subprocess.Popen(list(map(str, command)), stdout=out, stderr=out,
                                                  env=env) as p:
        def answers():
            if p.poll() is not None:
                raise AssertionError(f"{name} ended: {log.read_text(errors='replace')[-3000:]}")
            with contextlib.suppress(OSError), contextlib.closing(
                    http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as c:
                c.request("GET", path)
                return c.getresponse().status == 200
            return False
        try:
            wait_until(name, answers, 300)
            yield port
        finally:
            p.terminate()


class SharedServer(unittest.TestCase):
    """One server for all tests of a class: cls.options."""

    options = ()
    key = None
    server_env = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options, key=cls.key, env=cls.server_env)

    @classmethod
    def tearDownClass(cls):
        cls.server.wait_idle()
        cls.server.stop()

    def assert_error(self, response, status, param=None, code=None, says=None):
        self.assertEqual(response.status, status, response.body[:500])
        self.assertEqual(response.headers["Content-Type"], "application/json")
        body = response.json
        self.assertEqual(list(body), ["error"])
        error = body["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertTrue(error["message"])
        self.assertEqual(error["param"], param, error)
        if code:
            self.assertEqual(error["code"], code)
        if says:
            self.assertIn(says, error["message"])
        return error


def in_parallel(n_threads, jobs):
    """Runs the jobs (functions) on some threads; results in order; the first error is raised."""
    jobs = list(jobs)
    results, errors = [None] * len(jobs), []
    todo = iter(range(len(jobs)))
    lock = threading.Lock()

    def work():
        while not errors:
            with lock:
                i = next(todo, None)
            if i is None:
                return
            try:
                results[i] = jobs[i]()
            except BaseException as error:  # pylint: disable=broad-except
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(n_threads, len(jobs)))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results
