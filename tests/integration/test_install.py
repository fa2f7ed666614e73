"""The Debian package in a clean Debian 12: installs without a network and without a question, serves,
is upgraded, removed and purged. Long: it unpacks a whole system."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import unittest

import harness
from harness import ROOT, model_path, wait_until

# What a system has that has this package's dependencies, and systemd.
INCLUDED = ("systemd,init-system-helpers,adduser,libinih1,libjansson4,libpcre2-8-0,libsqlite3-0,"
            "libuv1,libxxhash0")
PORT = 21434
UNIT = "lib/systemd/system/gamasot.service"


def build(*args, **env):
    done = subprocess.run(["sh", "scripts/build-deb", *[str(a) for a in args]], cwd=ROOT, check=True,
                          capture_output=True, text=True,
                          env={**os.environ, "DEB_COMPRESSION": "none", **env})
    return pathlib.Path(done.stdout.strip())


def why_not():
    if harness.SANITIZED:
        return "a package is built from the release build"
    if os.geteuid() != 0:
        return "chroot and debootstrap need root"
    for program in ("debootstrap", "dpkg-shlibdeps", "unshare", "chroot"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return None


class Debian:
    """A system below a folder."""

    def __init__(self, root):
        self.root = root
        # A root that was made before saves its making: TEST_DEBIAN_ROOT.
        base = os.environ.get("TEST_DEBIAN_ROOT")
        make = (["cp", "-a", "--reflink=auto", base, root] if base else
                ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm", root])
        done = subprocess.run(make, capture_output=True, text=True, timeout=1500)
        if done.returncode != 0:
            raise unittest.SkipTest(f"no Debian 12 to be had: {done.stdout[-300:]}{done.stderr[-300:]}")

    def inside(self, *unshared, user, command):
        return [shutil.which("unshare"), *unshared, "--mount", "--propagation=private", "sh", "-c",
                'mount -t proc proc "$1/proc"; root=$1; user=$2; shift 2; '
                'exec chroot "--userspec=$user" "$root" "$@"', "sh", self.root, user, *command]

    def run(self, *command, fails=False, env=None):
        """Without a network, and with nobody to answer."""
        done = subprocess.run(self.inside("--net", user="root", command=command),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                                   **(env or {})})
        if (done.returncode != 0) != fails:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def install(self, *files):
        for file in files:
            shutil.copy(file, self.root / "tmp")
        out = self.run("dpkg", "-i", *[f"/tmp/{f.name}" for f in files])
        for file in files:
            (self.root / "tmp" / file.name).unlink()
        return out

    def files(self):
        """All of them with their contents' size, but what dpkg itself remembers."""
        out = {}
        for folder, _, names in os.walk(self.root):
            for name in [*names, ""]:
                path = pathlib.Path(folder, name)
                inside = str(path.relative_to(self.root))
                if not re.match(r"(proc|run|tmp|var/lib/dpkg|var/log|var/cache/ldconfig)(/|$)", inside):
                    out[inside] = path.lstat().st_size if name else 0
        return out

    def accounts(self):
        return [(self.root / "etc" / name).read_text() for name in ("passwd", "group")]

    @contextlib.contextmanager
    def service(self):
        """The unit's command as its user, with the folders that systemd would name to it. This
        system is not booted, so its sandbox is not there."""
        unit = (self.root / UNIT).read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.M).group(1).split()
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/var/lib/gamasot",
               "STATE_DIRECTORY": "/var/lib/gamasot", "CACHE_DIRECTORY": "/var/cache/gamasot",
               "CONFIGURATION_DIRECTORY": "/etc/gamasot", "GAMASOT_SERVER_PORT": str(PORT)}
        log = open(harness.TMP / "install-serve.log", "w+b")
        process = subprocess.Popen(self.inside(user="gamasot:gamasot", command=command), env=env,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            def ready():
                if process.poll() is not None:
                    log.seek(0)
                    raise AssertionError(log.read().decode())
                with contextlib.suppress(OSError):
                    return ask("GET", "/ready")[0] == 200
            wait_until("the service", ready, 120)
            yield
        finally:
            process.terminate()
            process.wait(60)
            log.close()


def ask(method, path, body=None, key=None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)) as c:
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        c.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body),
                  headers)
        r = c.getresponse()
        return r.status, json.loads(r.read() or b"null")


class Install(unittest.TestCase):
    @harness.long_only
    @harness.limit(2400)
    def test_a_package_lives_and_leaves(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        packages = harness.TMP / "packages"
        old = build(harness.GAMASOT, packages, DEB_VERSION="0.0.9")
        new = build(harness.GAMASOT, packages)
        model = build("--model", model_path(), packages)
        debian = Debian(harness.TMP / "debian")
        before, accounts = debian.files(), debian.accounts()

        debian.install(old, model)
        self.assertIn("gamasot", debian.accounts()[0])
        wants = debian.root / "etc/systemd/system/multi-user.target.wants/gamasot.service"
        self.assertTrue(wants.is_symlink())
        verdict = debian.run("systemd-analyze", "verify", "--man=no", "gamasot.service")
        self.assertNotIn("gamasot", verdict)
        key, batch = self.live(debian)
        self.make_it_old(debian)
        config = debian.root / "etc/gamasot/gamasot.conf"
        config.write_text(config.read_text() + "\n[log]\nlevel = warn\n")

        debian.install(new)
        self.assertIn("level = warn", config.read_text())
        self.live_on(debian, key, batch)

        debian.run("dpkg", "--remove", "gamasot")
        self.assertFalse((debian.root / "usr/bin/gamasot").exists())
        self.assertTrue((debian.root / "var/lib/gamasot/keys.json").exists())
        self.assertTrue((debian.root / "var/lib/gamasot/gamasot.db").exists())
        debian.install(new)
        self.live_on(debian, key, batch)

        debian.run("dpkg", "--purge", "gamasot", "gamasot-model-smollm2")
        changed = {k for k, _ in before.items() ^ debian.files().items() if not self.rewritten(k)}
        self.assertEqual(set(), changed)
        self.assertEqual(accounts, debian.accounts())

    @staticmethod
    def rewritten(name):
        """Backups and counters of the account files, which each adduser rewrites."""
        return bool(re.fullmatch(r"etc/(passwd|group|shadow|gshadow|subuid|subgid)-?", name))

    def live(self, debian):
        """A key that root makes, a chat, a job."""
        with debian.service():
            # As documented: root, without saying where.
            key = debian.run("gamasot", "keys", "add", "anna", "--admin").splitlines()[0]
            keys = debian.root / "var/lib/gamasot/keys.json"
            self.assertEqual((debian.root / "var/lib/gamasot").stat().st_uid, keys.stat().st_uid)
            self.assertEqual(0o600, keys.stat().st_mode & 0o777)
            wait_until("the key counts", lambda: ask("GET", "/v1/models", key=key)[0] == 200
                       and ask("GET", "/v1/models")[0] == 401)
            status, answer = ask("POST", "/v1/chat/completions", key=key, body={
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "max_tokens": 16, "temperature": 0})
            self.assertEqual(200, status, answer)
            self.assertIn("Fran", answer["choices"][0]["message"]["content"])
            line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
                               "body": {"messages": [{"role": "user", "content": "Hello"}],
                                        "max_tokens": 4}})
            done = debian.root / "var/lib/gamasot/in.jsonl"
            done.write_text(line + "\n")
            batch = self.submit(key, done.read_bytes())
            done.unlink()
            wait_until("the job", lambda: ask("GET", f"/v1/batches/{batch}", key=key)[1]["status"]
                       == "completed", 60)
        return key, batch

    def submit(self, key, data):
        edge = "----edge"
        form = (f'--{edge}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{edge}'
                f'\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
                ).encode() + data + f"\r\n--{edge}--\r\n".encode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)) as c:
            c.request("POST", "/v1/files", form, {
                "Authorization": f"Bearer {key}",
                "Content-Type": f"multipart/form-data; boundary={edge}"})
            file = json.loads(c.getresponse().read())["id"]
        status, batch = ask("POST", "/v1/batches", key=key, body={
            "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"})
        self.assertEqual(200, status, batch)
        return batch["id"]

    def make_it_old(self, debian):
        """As the first version of the schema had it, so that the upgrade has something to do."""
        with contextlib.closing(sqlite3.connect(debian.root / "var/lib/gamasot/gamasot.db")) as db, db:
            tables = [t for t, in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in sorted(tables, key=len, reverse=True):
                if table not in ("meta", "files", "batches", "lines") and "sqlite" not in table:
                    db.execute(f"DROP TABLE {table}")
            db.execute("PRAGMA user_version = 1")

    def live_on(self, debian, key, batch):
        with debian.service():
            self.assertEqual(401, ask("GET", "/v1/models")[0])
            status, found = ask("GET", f"/v1/batches/{batch}", key=key)
            self.assertEqual((200, "completed"), (status, found.get("status")), found)
            self.assertTrue((debian.root / "var/lib/gamasot/gamasot.db.version-1").exists())
