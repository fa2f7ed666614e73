"""Backups, restoring them, and the way back after an upgrade: with real archives and databases."""

import contextlib
import hashlib
import io
import os
import pathlib
import sqlite3
import tarfile
import threading
import unittest

import harness
from harness import Server
from test_batches import chat_line, client, jsonl, results, submit, upload, wait_over


class Home:
    """A state folder and a configuration of their own."""

    def __init__(self, name, config="[server]\nmax_queued = 77\n"):
        self.root = harness.TMP / f"backup-{name}"
        self.state = self.root / "state" / "gamasot"
        self.config = self.root / "config" / "gamasot" / "gamasot.conf"
        for folder in (self.state, self.config.parent):
            folder.mkdir(parents=True)
        if config:
            self.config.write_text(config)
        self.env = {"XDG_STATE_HOME": str(self.root / "state"),
                    "XDG_CONFIG_HOME": str(self.root / "config"),
                    "GAMASOT_SERVER_KEYS_FILE": "", "GAMASOT_STORE_FOLDER": ""}

    def cli(self, *args):
        return harness.cli(*args, env=self.env)

    def serve(self, **kw):
        return Server(env=self.env, **kw)

    def tree(self):
        """Every file and its hash, but for the lock and what SQLite keeps beside the database."""
        return {str(p.relative_to(self.root)): hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted(self.root.rglob("*"))
                if p.is_file() and not p.name.endswith((".lock", "-wal", "-shm"))}

    def sql(self, text):
        with contextlib.closing(sqlite3.connect(self.state / "gamasot.db")) as db, db:
            return db.execute(text).fetchall()


def members(path):
    with tarfile.open(path) as t:
        return {m.name: t.extractfile(m).read() for m in t.getmembers()}


def write_tar(path, files, links=()):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as t:
        for name, data in files.items():
            m = tarfile.TarInfo(name)
            m.size = len(data)
            t.addfile(m, io.BytesIO(data))
        for name, to in links:
            m = tarfile.TarInfo(name)
            m.type, m.linkname = tarfile.SYMTYPE, to
            t.addfile(m)


class Backup(unittest.TestCase):
    """One household that has lived, and its backup; each test restores it into a house of its own."""

    @classmethod
    def setUpClass(cls):
        cls.old = Home("old")
        status, cls.key, err = cls.old.cli("keys", "add", "anna", "--admin")
        assert status == 0, err
        cls.key = cls.key.strip()
        (cls.old.state / "calibration-0123456789abcdef.txt").write_text("gamasot cost 1\n")
        cls.file = cls.old.root / "home.tar"
        with cls.old.serve(key=cls.key) as s:
            c = client(s)
            cls.kept = upload(c, b"what anna wrote\n", "note.txt").id
            cls.batch = wait_over(c, submit(c, [chat_line(i) for i in range(3)]).id)
            cls.answers = results(c, cls.batch.output_file_id)
            # Beside a running server, which has rows in its journal that are not in the file yet.
            status, cls.said, err = cls.old.cli("backup", str(cls.file))
            assert status == 0, err

    def restores(self, home, file, *says):
        status, out, err = home.cli("restore", str(file))
        self.assertEqual(status, 0, err)
        for word in says:
            self.assertIn(word, out)
        return out

    def refuses(self, home, file, *says):
        before = home.tree()
        status, out, err = home.cli("restore", str(file))
        self.assertEqual((status, out), (1, ""), err)
        for word in says:
            self.assertIn(word, err)
        self.assertEqual(home.tree(), before)
        self.assertEqual([], list(home.state.glob("restor*")))

    def test_what_is_in_it(self):
        self.assertRegex(self.said, r"^kept: database version \d+, \d+ files, [0-9.]+ MB, gamasot ")
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        self.assertEqual([], list(self.old.root.glob("*.part")))
        got = members(self.file)
        self.assertEqual(b"what anna wrote\n", got[f"files/{self.kept}"])
        self.assertEqual(self.old.config.read_bytes(), got["gamasot.conf"])
        self.assertEqual((self.old.state / "keys.json").read_bytes(), got["keys.json"])
        self.assertIn("state/calibration-0123456789abcdef.txt", got)
        self.assertNotIn(self.key.encode(), self.file.read_bytes())

    def test_a_new_house_has_it_all(self):
        home = Home("new", config=None)
        self.restores(home, self.file, "restored: database version")
        self.assertEqual(self.old.config.read_bytes(), home.config.read_bytes())
        self.assertTrue((home.state / "calibration-0123456789abcdef.txt").exists())
        self.assertEqual([], list(home.state.glob("*restor*")))
        with home.serve(key=self.key) as s:
            self.assertEqual(401, s.get("/v1/models", headers={"Authorization": "none"}).status)
            c = client(s)
            self.assertEqual(b"what anna wrote\n", c.files.content(self.kept).content)
            self.assertEqual(self.batch, c.batches.retrieve(self.batch.id))
            self.assertEqual(self.answers, results(c, self.batch.output_file_id))
            self.assertEqual("completed", wait_over(c, submit(c, [chat_line(9)]).id).status)

    def test_what_was_there_is_kept(self):
        home = Home("second")
        home.cli("keys", "add", "berta")
        with home.serve(key=home.cli("keys", "add", "carl")[1].strip()) as s:
            mine = upload(client(s), b"carl's\n").id
            self.assert_running_server_is_safe(home)
        out = self.restores(home, self.file, "what was there before is in ")
        before = pathlib.Path(out.split(" is in ")[1].strip())
        self.assertIn("berta", (before / "keys.json").read_text())
        self.assertEqual(b"carl's\n", (before / "files" / mine).read_bytes())
        self.assertTrue((before / "gamasot.db").exists())
        self.assertEqual("[server]\nmax_queued = 77\n", (before / "gamasot.conf").read_text())
        self.assertNotIn("berta", home.cli("keys", "list")[1])

    def assert_running_server_is_safe(self, home):
        self.refuses(home, self.file, "stop the server first", "another gamasot")

    def test_damaged_archives_change_nothing(self):
        home = Home("damaged")
        home.cli("keys", "add", "berta")
        good = members(self.file)
        bad = home.root.parent / "bad.tar"
        whole = self.file.read_bytes()
        for n in (0, 100, 511, 512, 700, 1500, len(whole) // 2, len(whole) - 1025):
            bad.write_bytes(whole[:n])
            with self.subTest(cut=n):
                self.refuses(home, bad, "gamasot: ")
        for at in (0, 150, 156, 257, 512 + 3):
            bad.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:])
            with self.subTest(flipped=at):
                self.refuses(home, bad, "gamasot: ")
        for name in ("../x", "/etc/x", "files/../../x", "files/file-", "files/file-0/x", "state/x",
                     "state/../keys.json", "gamasot.db-wal", "other", "files/"):
            write_tar(bad, {**good, name: b"x"})
            with self.subTest(name=name):
                self.refuses(home, bad, "is no part of a backup")
        write_tar(bad, good, links=[("state/tune.json", "/etc/passwd")])
        self.refuses(home, bad, "damaged")
        write_tar(bad, {k: v for k, v in good.items() if k != f"files/{self.kept}"})
        self.refuses(home, bad, "the backup is damaged", self.kept)
        write_tar(bad, {**good, f"files/{self.kept}": b"short"})
        self.refuses(home, bad, "the backup is damaged", self.kept)
        write_tar(bad, {**good, "gamasot.db": good["gamasot.db"][:-4096]})
        self.refuses(home, bad, "gamasot: ")
        write_tar(bad, {k: v for k, v in good.items() if k != "about.txt"})
        self.refuses(home, bad, "does not say what it is")
        bad.write_bytes(b"a text\n" * 200)
        self.refuses(home, bad, "is no backup")
        self.refuses(home, "/nowhere.tar", "/nowhere.tar: No such file")

    def test_what_a_newer_program_made_is_refused(self):
        home = Home("newer")
        good = members(self.file)
        bad = home.root.parent / "newer.tar"
        write_tar(bad, {**good, "about.txt": good["about.txt"].replace(b"form 1", b"form 2")})
        self.refuses(home, bad, "made by a newer gamasot (form 2, this one knows 1)")
        write_tar(bad, {**good, "keys.json": b'{"version": 2, "keys": []}'})
        self.refuses(home, bad, "written by a newer gamasot (version 2, this one knows 1)")
        db = home.root / "x.db"
        db.write_bytes(good["gamasot.db"])
        with contextlib.closing(sqlite3.connect(db)) as c:
            c.execute("PRAGMA user_version = 99")
        write_tar(bad, {**good, "gamasot.db": db.read_bytes()})
        self.refuses(home, bad, "written by a newer gamasot (version 99")

    def test_an_unfinished_restore_is_noticed_and_healed(self):
        home = Home("unfinished")
        (home.state / "restore.unfinished").write_text("")
        with home.serve(key="x") as s:
            r = s.get("/v1/files")
            self.assertEqual(503, r.status)
            self.assertIn("run gamasot restore again", r.text)
        self.restores(home, self.file)
        with home.serve(key=self.key) as s:
            self.assertEqual(200, s.get(f"/v1/files/{self.kept}").status)

    def test_it_is_consistent_while_files_come_and_go(self):
        home, stop = Home("busy"), threading.Event()
        with home.serve() as s:
            c = client(s)

            def churn():
                while not stop.is_set():
                    ids = [upload(c, os.urandom(300)).id for _ in range(3)]
                    for i in ids[:2]:
                        c.files.delete(i)

            worker = threading.Thread(target=churn)
            worker.start()
            try:
                for i in range(4):
                    status, _, err = home.cli("backup", str(home.root / f"{i}.tar"))
                    self.assertEqual(status, 0, err)
            finally:
                stop.set()
                worker.join()
        for i in range(4):
            self.restores(home, home.root / f"{i}.tar")

    def test_a_file_that_is_there_is_not_overwritten(self):
        before = self.file.read_bytes()
        status, _, err = self.old.cli("backup", str(self.file))
        self.assertEqual(status, 1)
        self.assertIn("is there already", err)
        self.assertEqual(before, self.file.read_bytes())
        self.assertEqual(2, self.old.cli("backup")[0])
        self.assertEqual(2, self.old.cli("restore", "a", "b")[0])

    def test_a_house_without_anything(self):
        home = Home("empty", config=None)
        file = home.root / "nothing.tar"
        self.assertEqual(0, home.cli("backup", str(file))[0])
        self.assertEqual(["about.txt"], list(members(file)))
        self.restores(home, file)


class Upgrade(unittest.TestCase):
    def lived(self, name):
        """A database of version 1, with a file in it."""
        home = Home(name)
        with home.serve() as s:
            kept = upload(client(s), jsonl([chat_line(1)])).id
        (version,), = home.sql("PRAGMA user_version")
        tables = [t for t, in home.sql("SELECT name FROM sqlite_master WHERE type = 'table'")
                  if t not in ("meta", "files", "batches", "lines") and "sqlite" not in t]
        for table in sorted(tables, key=len, reverse=True):
            home.sql(f"DROP TABLE {table}")
        home.sql("PRAGMA user_version = 1")
        return home, kept, version

    def test_forward_and_back(self):
        home, kept, newest = self.lived("upgrade")
        copy = home.state / "gamasot.db.version-1"
        with home.serve() as s:
            self.assertEqual(kept, client(s).files.retrieve(kept).id)
            after = upload(client(s), b"of the newer one\n").id
        self.assertEqual([(newest,)], home.sql("PRAGMA user_version"))
        self.assertTrue(copy.exists())
        self.assertEqual(0o600, os.stat(copy).st_mode & 0o777)
        with home.serve():
            pass  # nothing to bring up: the copy stays what it was
        status, out, err = home.cli("restore", str(copy))
        self.assertEqual(status, 0, err)
        self.assertIn("restored: database version 1", out)
        self.assertEqual([(1,)], home.sql("PRAGMA user_version"))
        self.assertEqual([(kept,)], home.sql("SELECT id FROM files"))
        self.assertTrue((home.state / "files" / kept).exists())
        with home.serve() as s:  # and forward again
            self.assertEqual(kept, client(s).files.retrieve(kept).id)
            self.assertEqual(404, s.get(f"/v1/files/{after}").status)

    def test_newer_state_is_refused(self):
        home = Home("too-new")
        with home.serve():
            pass
        home.sql("PRAGMA user_version = 99")
        with home.serve() as s:
            r = s.get("/v1/files")
            self.assertEqual(503, r.status)
            self.assertIn("written by a newer gamasot (version 99", r.text)
            self.assertEqual(1, len(s.complete("chats go on", 1)["choices"]))
        self.assertEqual([(99,)], home.sql("PRAGMA user_version"))
        status, _, err = home.cli("backup", str(home.root / "x.tar"))
        self.assertEqual(status, 1)
        self.assertIn("newer gamasot", err)
        keys = home.state / "keys.json"
        keys.write_text('{"version": 2, "keys": []}')
        for command in (("serve", "--port", "0", "--backend", "fake"), ("keys", "list"),
                        ("keys", "add", "anna")):
            status, _, err = home.cli(*command)
            self.assertEqual(status, 2)
            self.assertIn("written by a newer gamasot (version 2, this one knows 1)", err)
        self.assertEqual('{"version": 2, "keys": []}', keys.read_text())
