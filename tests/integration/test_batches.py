"""Files, batches and the hours of background, through OpenAI's own client and by hand."""

import contextlib
import io
import json
import os
import pathlib
import random
import sqlite3
import subprocess
import tempfile
import time
import unittest

import openai

import harness
from harness import Server, SharedServer, wait_until
from moved_clock import MovedClock

OVER = ("completed", "failed", "expired", "cancelled")


def client(server, key=None):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0,
                         api_key=key or server.key or "none")


def chat_line(i, **more):
    body = {"messages": [{"role": "user", "content": f"question {i}"}], "max_tokens": 4, **more}
    return {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/chat/completions",
            "body": body}


def jsonl(lines):
    return b"".join(json.dumps(x).encode() + b"\n" for x in lines)


def upload(c, data, name="in.jsonl"):
    return c.files.create(file=(name, io.BytesIO(data)), purpose="batch")


def submit(c, lines, endpoint="/v1/chat/completions", **more):
    data = lines if isinstance(lines, bytes) else jsonl(lines)
    return c.batches.create(input_file_id=upload(c, data).id, endpoint=endpoint,
                            completion_window=more.pop("window", "24h"), **more)


def wait_over(c, batch_id, timeout_s=60):
    def over():
        b = c.batches.retrieve(batch_id)
        return b if b.status in OVER else None
    return wait_until(f"{batch_id} is over", over, timeout_s)


def results(c, file_id):
    return [json.loads(line) for line in c.files.content(file_id).text.splitlines()]


def new_folder():
    return tempfile.mkdtemp(prefix="kept-", dir=harness.TMP)


def check_database(folder):
    with contextlib.closing(sqlite3.connect(os.path.join(folder, "gamasot.db"), timeout=20)) as db:
        return db.execute("PRAGMA integrity_check").fetchone()[0]


class Files(SharedServer):
    def setUp(self):
        self.c = client(self.server)

    def test_upload_list_content_delete(self):
        data = jsonl([chat_line(i) for i in range(3)])
        f = upload(self.c, data, "three.jsonl")
        self.assertEqual((f.object, f.bytes, f.filename, f.purpose, f.status),
                         ("file", len(data), "three.jsonl", "batch", "processed"))
        self.assertGreater(f.expires_at, f.created_at)
        self.assertEqual(self.c.files.retrieve(f.id), f)
        self.assertEqual(self.c.files.content(f.id).content, data)
        self.assertIn(f.id, [x.id for x in self.c.files.list()])
        self.assertIn(f.id, [x.id for x in self.c.files.list(purpose="batch", order="asc")])
        self.assertEqual(list(self.c.files.list(purpose="other")), [])
        gone = self.c.files.delete(f.id)
        self.assertTrue(gone.deleted)
        with self.assertRaises(openai.NotFoundError):
            self.c.files.retrieve(f.id)
        with self.assertRaises(openai.NotFoundError):
            self.c.files.content(f.id)

    def test_pages(self):
        mine = [upload(self.c, b"{}\n", f"{i}.jsonl").id for i in range(5)]
        page = self.c.files.list(limit=2, order="asc", after=mine[0])
        self.assertEqual([x.id for x in page.data], mine[1:3])
        self.assertTrue(page.has_more)
        self.assertEqual([x.id for x in self.c.files.list(limit=2, order="asc", after=mine[2])],
                         mine[3:])
        self.assert_error(self.server.get("/v1/files?limit=0"), 400, "limit")
        self.assert_error(self.server.get("/v1/files?order=up"), 400, "order")

    def test_a_large_one_streams_through(self):
        data = os.urandom(1 << 20) * 24
        before = self.server.rss_anon_kb()
        f = upload(self.c, data, "large.bin")
        self.assertEqual(f.bytes, len(data))
        if not harness.SANITIZED:
            self.assertLess(self.server.rss_anon_kb() - before, 12 << 10)
        self.assertEqual(self.c.files.content(f.id).content, data)
        self.c.files.delete(f.id)

    def test_an_empty_one(self):
        f = upload(self.c, b"", "empty.jsonl")
        self.assertEqual(f.bytes, 0)
        self.assertEqual(self.c.files.content(f.id).content, b"")

    def form(self, parts, boundary="XX", type_=None):
        body = b"".join(b"--XX\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" +
                        data + b"\r\n" for head, data in parts) + b"--XX--\r\n"
        return self.server.request("POST", "/v1/files", body, headers={
            "Content-Type": type_ or f"multipart/form-data; boundary={boundary}"})

    def test_bad_forms(self):
        file, purpose = ('name="file"; filename="a"', b"x"), ('name="purpose"', b"batch")
        self.assertEqual(self.form([file, purpose]).status, 200)
        self.assert_error(self.form([file]), 400, "purpose")
        self.assert_error(self.form([purpose]), 400, "file")
        self.assert_error(self.form([purpose, file, file]), 400, "file")
        self.assert_error(self.form([('name="purpose"', b"fine-tune"), file]), 400, "purpose")
        self.assert_error(self.form([purpose, file, ('name="expires_after[seconds]"', b"5")]), 400,
                          "expires_after")
        self.assert_error(self.form([purpose, ("filename=a", b"x")]), 400)
        self.assert_error(self.form([file, purpose], boundary="YY"), 400)
        self.assert_error(self.form([file, purpose], type_="application/json"), 415)
        self.assert_error(self.form([file, purpose], type_="multipart/form-data"), 415)
        self.assert_error(self.server.post("/v1/files", None), 400, "file")
        self.assert_error(self.server.request("PUT", "/v1/files"), 405)

    def test_names_that_are_paths(self):
        r = self.form([('name="file"; filename="../../../etc/x\\y"', b"x"),
                       ('name="purpose"', b"batch")])
        self.assertEqual(r.json["filename"], "y")
        for path in ("/v1/files/..", "/v1/files/..%2f..%2fgamasot.db", "/v1/files/file-zz"):
            self.assertEqual(self.server.get(path).status, 404)

    def test_a_client_that_leaves_leaves_nothing(self):
        with self.server.socket() as s:
            s.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n"
                      b"Content-Type: multipart/form-data; boundary=XX\r\n\r\n"
                      b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' +
                      b"x" * 1000000)
        folder = pathlib.Path(self.folder) / "files"
        wait_until("no half file", lambda: not list(folder.glob("*.tmp")))

    @classmethod
    def setUpClass(cls):
        cls.folder = new_folder()
        cls.server_env = {"GAMASOT_STORE_FOLDER": cls.folder}
        super().setUpClass()


class Batches(SharedServer):
    def setUp(self):
        self.c = client(self.server)

    def test_from_end_to_end(self):
        b = submit(self.c, [chat_line(i) for i in range(40)], metadata={"for": "test"})
        self.assertIn(b.status, ("in_progress", "finalizing", "completed"))
        self.assertEqual((b.object, b.endpoint, b.completion_window, b.metadata, b.errors),
                         ("batch", "/v1/chat/completions", "24h", {"for": "test"}, None))
        self.assertEqual(b.expires_at - b.created_at, 86400)
        b = wait_over(self.c, b.id)
        self.assertEqual(b.status, "completed")
        counts = b.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (40, 40, 0))
        self.assertIsNone(b.error_file_id)
        out = results(self.c, b.output_file_id)
        self.assertEqual([x["custom_id"] for x in out], [f"line-{i}" for i in range(40)])
        for x in out:
            self.assertEqual((x["response"]["status_code"], x["error"]), (200, None))
            self.assertEqual(x["response"]["body"]["usage"]["completion_tokens"], 4)
            self.assertEqual(x["response"]["body"]["object"], "chat.completion")
        self.assertEqual(len({x["id"] for x in out}), 40)
        f = self.c.files.retrieve(b.output_file_id)
        self.assertEqual((f.purpose, f.filename), ("batch_output", f"{b.id}_output.jsonl"))
        self.assertIn(b.id, [x.id for x in self.c.batches.list()])
        with self.assertRaises(openai.ConflictError):
            self.c.batches.cancel(b.id)

    def test_the_same_answer_as_alone(self):
        body = {"prompt": "once upon", "max_tokens": 6, "temperature": 0}
        alone = self.server.ok("/v1/completions", body)
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
        b = wait_over(self.c, submit(self.c, [line], "/v1/completions").id)
        there = results(self.c, b.output_file_id)[0]["response"]["body"]
        self.assertEqual(there["choices"], alone["choices"])
        self.assertEqual(there["usage"]["total_tokens"], alone["usage"]["total_tokens"])

    def test_lines_that_fail_are_in_the_error_file(self):
        lines = [chat_line(0), chat_line(1, temperature=999), chat_line(2, model="nonesuch"),
                 chat_line(3)]
        b = wait_over(self.c, submit(self.c, lines).id)
        self.assertEqual((b.status, b.request_counts.completed, b.request_counts.failed),
                         ("completed", 2, 2))
        self.assertEqual([x["custom_id"] for x in results(self.c, b.output_file_id)],
                         ["line-0", "line-3"])
        errors = results(self.c, b.error_file_id)
        self.assertEqual([(x["custom_id"], x["response"]["status_code"],
                           x["response"]["body"]["error"]["param"]) for x in errors],
                         [("line-1", 400, "temperature"), ("line-2", 404, "model")])

    def test_a_file_that_is_wrong_fails_as_a_whole(self):
        good = chat_line(0)
        text = (jsonl([good, {**chat_line(1), "url": "/v1/completions"},
                       {**chat_line(2), "method": "GET"}, good, {"custom_id": "x"},
                       chat_line(3, stream=True), {**chat_line(4), "custom_id": ""}]) +
                b"not json\n\n" + b"[1]\n")
        b = submit(self.c, text)
        self.assertEqual(b.status, "failed")
        self.assertEqual([(e.line, e.code) for e in b.errors.data],
                         [(2, "mismatched_url"), (3, "invalid_method"), (4, "duplicate_custom_id"),
                          (5, "invalid_method"), (6, "invalid_request"),
                          (7, "missing_required_parameter"), (8, "invalid_json_line"),
                          (10, "invalid_json_line")])
        self.assertIsNone(b.output_file_id)
        for text, code in ((b"", "empty_file"), (b"\n \n", "empty_file")):
            b = submit(self.c, text)
            self.assertEqual((b.status, b.errors.data[0].code), ("failed", code))

    def test_requests_that_are_wrong(self):
        f = upload(self.c, jsonl([chat_line(0)])).id
        good = {"input_file_id": f, "endpoint": "/v1/chat/completions",
                "completion_window": "24h"}
        for change, param in (({"input_file_id": "x"}, "input_file_id"),
                              ({"input_file_id": None}, "input_file_id"),
                              ({"endpoint": "/v1/models"}, "endpoint"),
                              ({"endpoint": None}, "endpoint"),
                              ({"completion_window": "soon"}, "completion_window"),
                              ({"completion_window": "0h"}, "completion_window"),
                              ({"completion_window": "31d"}, "completion_window"),
                              ({"metadata": {"a": 1}}, "metadata"),
                              ({"metadata": []}, "metadata")):
            with self.subTest(change):
                self.assert_error(self.server.post("/v1/batches", {**good, **change}), 400, param)
        self.assert_error(self.server.post("/v1/batches", {
            **good, "input_file_id": "file-" + 24 * "0"}), 404, "input_file_id")
        self.assert_error(self.server.get("/v1/batches/batch_x"), 404, "batch_id")
        self.assert_error(self.server.post("/v1/batches/batch_x/cancel", None), 404, "batch_id")

    def test_pages(self):
        mine = [submit(self.c, [chat_line(0)]).id for _ in range(3)]
        page = self.c.batches.list(limit=1, after=mine[2])
        self.assertEqual([x.id for x in page.data], [mine[1]])
        self.assertTrue(page.has_more)
        for b in mine:
            wait_over(self.c, b)

    def test_embeddings_and_responses(self):
        for url, body in (("/v1/responses", {"input": "hello", "max_output_tokens": 4}),
                          ("/v1/embeddings", {"input": "hello"})):
            alone = self.server.post(url, body).status
            line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
            b = wait_over(self.c, submit(self.c, [line], url).id)
            self.assertEqual(b.request_counts.completed, int(alone == 200), url)


class Slow(unittest.TestCase):
    """With a backend that takes its time."""

    options = ("--fake.step-ms", 20)

    def test_cancel_keeps_what_is_done(self):
        with Server(*self.options, "--background.max-lines", 2) as server:
            c = client(server)
            b = submit(c, [chat_line(i) for i in range(200)])
            wait_until("some are done", lambda: c.batches.retrieve(b.id).request_counts.completed)
            with self.assertRaises(openai.ConflictError):
                c.files.delete(b.input_file_id)
            self.assertIn(c.batches.cancel(b.id).status, ("cancelling", "cancelled"))
            b = wait_over(c, b.id)
            self.assertEqual(b.status, "cancelled")
            self.assertEqual(len(results(c, b.output_file_id)), b.request_counts.completed)
            self.assertLess(b.request_counts.completed, 200)
            c.files.delete(b.input_file_id)
            server.wait_idle()

    def test_never_many_at_once(self):
        with Server(*self.options, "--background.max-lines", 3) as server:
            c = client(server)
            b = submit(c, [chat_line(i) for i in range(60)])
            most = 0
            while c.batches.retrieve(b.id).status not in OVER:
                m = server.metrics()
                most = max(most, m["num_requests_running"] + m["num_requests_waiting"])
            self.assertGreater(most, 0)
            self.assertLessEqual(most, 3)

    def test_pause_and_resume_and_what_a_restart_remembers(self):
        env = {"GAMASOT_STORE_FOLDER": new_folder()}
        with Server(*self.options, env=env) as server:
            c = client(server)
            self.assertTrue(server.post("/v1/background/pause", None).json["paused"])
            b = submit(c, [chat_line(i) for i in range(5)])
            self.assertEqual(b.model_extra["gamasot"]["paused"], "paused")
            server.complete("chats go on", 2)
        with Server(*self.options, env=env) as server:
            c = client(server)
            wait_until("it is still paused", lambda: server.get("/v1/background").json["paused"])
            self.assertEqual(c.batches.retrieve(b.id).request_counts.completed, 0)
            self.assertFalse(server.post("/v1/background/resume", None).json["paused"])
            self.assertEqual(wait_over(c, b.id).status, "completed")

    def test_a_pause_before_the_store_is_open(self):
        """It stays, and is remembered; the last life's state comes too late."""
        for _ in range(4):
            env = {"GAMASOT_STORE_FOLDER": new_folder()}
            with Server(*self.options, ready=False, env=env) as server:
                self.assertTrue(server.post("/v1/background/pause", {}).json["paused"])
                wait_until("the store is open", lambda: server.get("/v1/files").status == 200)
                self.assertTrue(server.get("/v1/background").json["paused"])

    def test_outside_its_hours(self):
        # A window that is twelve hours away whatever the time is.
        hour = (time.localtime().tm_hour + 12) % 24
        with Server(*self.options, "--background.schedule", f"{hour:02}:00-{hour:02}:30") as server:
            c = client(server)
            hours = server.get("/v1/background").json
            self.assertEqual((hours["open"], hours["share"]), (False, 0))
            self.assertGreater(hours["opens_at"], time.time())
            b = submit(c, [chat_line(i) for i in range(5)], window="30m")
            self.assertEqual(b.model_extra["gamasot"]["paused"], "outside the schedule")
            self.assertIn("not be done in time", b.model_extra["gamasot"]["warning"])
            server.complete("chats go on", 2)
            self.assertEqual(c.batches.retrieve(b.id).request_counts.completed, 0)
            r = server.request("PATCH", "/v1/config", {"background.share_outside": 0.5})
            self.assertEqual(r.status, 200)
            self.assertEqual(wait_over(c, b.id).status, "completed")

    def test_a_class_outside_its_hours_is_background(self):
        hour = (time.localtime().tm_hour + 12) % 24
        with Server(*self.options, "--hours.document", f"{hour:02}:00-{hour:02}:30",
                    "--hours.voice", "00:00-24:00") as server:
            for asked, given in (("document", "background"), ("voice", "voice"), ("chat", "chat")):
                r = server.post("/v1/completions", {"prompt": "which one?", "max_tokens": 2},
                                headers={"X-Gamasot-Class": asked})
                self.assertEqual((r.status, r.headers["X-Gamasot-Class"]), (200, given))

    def test_the_window_is_over(self):
        env = {"GAMASOT_STORE_FOLDER": new_folder()}
        with Server(*self.options, env=env) as server:
            server.post("/v1/background/pause", None)
            b = submit(client(server), [chat_line(i) for i in range(3)], window="1m")
        # A minute of service goes by: the clock of service is what the database says.
        with sqlite3.connect(os.path.join(env["GAMASOT_STORE_FOLDER"], "gamasot.db")) as db:
            db.execute("UPDATE meta SET value = value + 60 WHERE name = 'service_s'")
        db.close()
        with Server(*self.options, env=env) as server:
            c = client(server)
            b = wait_over(c, b.id)
            self.assertEqual((b.status, b.request_counts.failed), ("expired", 3))
            errors = results(c, b.error_file_id)
            self.assertEqual([(x["custom_id"], x["response"], x["error"]["code"]) for x in errors],
                             [(f"line-{i}", None, "batch_expired") for i in range(3)])

    def test_a_schedule_that_is_none(self):
        for option, value in (("background.schedule", "at night"), ("hours.utility", "25:00-26:00"),
                              ("background.time_zone", "Mars/Olympus")):
            status, _, err = harness.cli("serve", "--backend", "fake", "--port", "0",
                                         "--" + option.replace("_", "-"), value)
            self.assertNotEqual(status, 0)
            self.assertIn(option, err)


class Persons(unittest.TestCase):
    def setUp(self):
        self.keys = os.path.join(new_folder(), "keys.json")
        self.env = {"GAMASOT_SERVER_KEYS_FILE": self.keys, "GAMASOT_STORE_FOLDER": new_folder()}
        self.key = {name: self.add(name, *more) for name, more in (
            ("mina", ()), ("jun", ()), ("boss", ("--admin",)))}

    def add(self, name, *more):
        status, out, err = harness.cli("keys", "add", name, *more, env=self.env)
        self.assertEqual(status, 0, err)
        return next(word for word in out.split() if word.startswith("gs-"))

    def test_others_see_nothing(self):
        with Server(env=self.env, key=self.key["mina"]) as server:
            mina, jun, boss = (client(server, self.key[n]) for n in ("mina", "jun", "boss"))
            b = wait_over(mina, submit(mina, [chat_line(0)]).id)
            for call in (lambda c: c.files.retrieve(b.input_file_id),
                         lambda c: c.files.content(b.output_file_id),
                         lambda c: c.files.delete(b.input_file_id),
                         lambda c: c.batches.retrieve(b.id), lambda c: c.batches.cancel(b.id),
                         lambda c: c.batches.create(input_file_id=b.input_file_id,
                                                    endpoint="/v1/chat/completions",
                                                    completion_window="24h")):
                with self.assertRaises(openai.NotFoundError):
                    call(jun)
            self.assertEqual(list(jun.files.list()), [])
            self.assertEqual(list(jun.batches.list()), [])
            self.assertEqual(list(boss.batches.list()), [])
            self.assertEqual(boss.batches.retrieve(b.id).id, b.id)
            everything = boss.batches.list(extra_query={"all": "true"})
            self.assertEqual([x.id for x in everything], [b.id])
            self.assertEqual(list(jun.batches.list(extra_query={"all": "true"})), [])
            with self.assertRaises(openai.AuthenticationError):
                client(server, "wrong").files.list()
            with self.assertRaises(openai.AuthenticationError):
                upload(client(server, "wrong"), b"x" * 100000)
            r = server.post("/v1/background/pause", None)
            self.assertEqual(r.status, 403)

    def test_jobs_in_the_live_view(self):
        from test_live import Viewer
        with Server("--fake.step_ms", 10, "--background.max-lines", 4, env=self.env,
                    key=self.key["mina"]) as server:
            mina, boss = client(server), client(server, self.key["boss"])
            long = {"max_tokens": 50, "ignore_eos": True}
            b = submit(mina, [chat_line(40, temperature=-1), *(chat_line(i, **long) for i in range(40))],
                       metadata={"name": 'letters "A"'})
            views = {name: Viewer(server, self.key[name]) for name in self.key}
            for name, v in views.items():
                self.addCleanup(v.close)
                if name == "jun":
                    self.assertEqual(v.next("state")["jobs"], [])
                    continue
                job = v.next("state", lambda d: not d["jobs"] or d["jobs"][0]["failed"])["jobs"][0]
                self.assertEqual({k: job[k] for k in ("id", "name", "person", "status", "total",
                                                      "failed", "schedule", "paused")},
                                 {"id": b.id, "name": 'letters "A"', "person": "mina",
                                  "status": "in_progress", "total": 41, "failed": 1,
                                  "schedule": None, "paused": None})
            going = views["mina"].next("state", lambda d: not d["jobs"] or d["jobs"][0]["rate"] > 0)
            self.assertGreater(going["jobs"][0]["eta_s"], 0)
            boss.post("/background/pause", cast_to=object)
            held = views["boss"].next("state", lambda d: d["jobs"] and d["jobs"][0]["paused"])["jobs"][0]
            self.assertEqual(held["paused"], "paused")
            mina.batches.cancel(b.id)
            views["mina"].next("state", lambda d: d["jobs"] == [])

    def test_quotas(self):
        with Server("--store.max-file-mb", 1, "--store.person-mb", 2, "--store.person-batches", 1,
                    "--store.max-lines", 3, env=self.env, key=self.key["mina"]) as server:
            mina, jun = client(server, self.key["mina"]), client(server, self.key["jun"])
            for size in ((1 << 20) + 1, (1 << 20) + 70000):
                with self.assertRaises(openai.APIStatusError) as e:
                    upload(mina, b"x" * size)
                self.assertEqual(e.exception.status_code, 413)
            full = [upload(mina, b"x" * (1 << 20)) for _ in range(2)]
            with self.assertRaises(openai.APIStatusError) as e:
                upload(mina, b"xy")
            self.assertEqual(e.exception.status_code, 413)
            self.assertIn("store.person_mb", str(e.exception))
            upload(jun, b"xy")
            for f in full:
                mina.files.delete(f.id)
            boss = client(server, self.key["boss"])
            boss.post("/background/pause", cast_to=object)
            first = submit(mina, [chat_line(i) for i in range(3)])
            with self.assertRaises(openai.RateLimitError):
                submit(mina, [chat_line(0)])
            submit(jun, [chat_line(0)])
            mina.batches.cancel(first.id)
            wait_over(mina, first.id)
            b = submit(mina, [chat_line(i) for i in range(4)])
            self.assertEqual((b.status, b.errors.data[0].code), ("failed", "too_many_lines"))

    def test_a_key_that_is_removed(self):
        with Server(env=self.env, key=self.key["boss"]) as server:
            server.post("/v1/background/pause", None)
            b = submit(client(server, self.key["jun"]), [chat_line(0)])
        status, _, err = harness.cli("keys", "revoke", "jun", env=self.env)
        self.assertEqual(status, 0, err)
        with Server(env=self.env, key=self.key["boss"]) as server:
            server.post("/v1/background/resume", None)
            c = client(server)
            b = wait_over(c, b.id)
            self.assertEqual((b.status, b.request_counts.failed), ("completed", 1))
            self.assertEqual(results(c, b.error_file_id)[0]["response"]["status_code"], 401)

    def test_hours_of_one_person(self):
        hour = (time.localtime().tm_hour + 12) % 24
        key = self.add("night", "--schedule", f"{hour:02}:00-{hour:02}:30")
        status, _, err = harness.cli("keys", "add", "x", "--schedule", "nonsense", env=self.env)
        self.assertNotEqual(status, 0)
        self.assertIn("--schedule: 'nonsense'", err)
        with Server(env=self.env, key=self.key["mina"]) as server:
            night, mina = client(server, key), client(server, self.key["mina"])
            b = submit(night, [chat_line(0)])
            self.assertEqual(b.model_extra["gamasot"]["paused"], "outside the person's schedule")
            wait_over(mina, submit(mina, [chat_line(0)]).id)
            self.assertEqual(night.batches.retrieve(b.id).request_counts.completed, 0)


class FullDisk(unittest.TestCase):
    def test_the_cap_pauses_and_more_room_resumes(self):
        with Server("--fake.step-ms", 5) as server:
            c = client(server)
            ballast = upload(c, b"x" * (3 << 20))
            server.post("/v1/background/pause", None)
            b = submit(c, [chat_line(i) for i in range(20)])
            r = server.request("PATCH", "/v1/config", {"store.max_disk_mb": 2})
            self.assertEqual(r.status, 200, r.body)
            server.post("/v1/background/resume", None)
            wait_until("it says why it waits", lambda: c.batches.retrieve(b.id).model_extra[
                "gamasot"]["paused"] == "no space left on the disk")
            with self.assertRaises(openai.APIStatusError) as e:
                upload(c, b"x")
            self.assertEqual(e.exception.status_code, 507)
            self.assertEqual(server.complete("chats go on", 3)["usage"]["completion_tokens"], 3)
            c.files.delete(ballast.id)
            self.assertEqual(wait_over(c, b.id).status, "completed")

    def test_a_disk_that_is_full(self):
        folder = new_folder()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder],
                          capture_output=True).returncode != 0:
            self.skipTest("no right to mount a small file system")
        try:
            self.full_disk(folder)
        finally:
            subprocess.run(["umount", folder], check=True)

    def full_disk(self, folder):
        env = {"GAMASOT_STORE_FOLDER": folder}
        with Server("--store.min-free-mb", 0, "--fake.step-ms", 2, env=env) as server:
            c = client(server)
            server.post("/v1/background/pause", None)
            b = submit(c, [chat_line(i) for i in range(300)])
            ballast = os.path.join(folder, "ballast")
            fd = os.open(ballast, os.O_WRONLY | os.O_CREAT)
            try:
                while True:
                    os.write(fd, b"x" * 4096)
            except OSError:
                os.close(fd)
            server.post("/v1/background/resume", None)
            wait_until("it waits for room", lambda: "they wait" in server.log())
            self.assertEqual(server.complete("chats go on", 3)["usage"]["completion_tokens"], 3)
            os.unlink(ballast)
            b = wait_over(c, b.id)
            self.assertEqual((b.status, b.request_counts.completed), ("completed", 300))
            self.assertEqual(len(results(c, b.output_file_id)), 300)
        self.assertEqual(check_database(folder), "ok")


class NoStore(unittest.TestCase):
    def test_chats_go_on_without_a_folder(self):
        env = {"GAMASOT_STORE_FOLDER": "/proc/nowhere"}
        with Server(env=env) as server:
            self.assertEqual(server.complete("hello", 3)["usage"]["completion_tokens"], 3)
            for path in ("/v1/files", "/v1/batches"):
                r = server.get(path)
                self.assertEqual(r.status, 503)
                self.assertIn("/proc/nowhere", r.json["error"]["message"])
            with self.assertRaises(openai.InternalServerError):
                upload(client(server), b"x")

    def test_a_database_that_is_damaged(self):
        folder = new_folder()
        with open(os.path.join(folder, "gamasot.db"), "wb") as f:
            f.write(b"x" * 8192)
        with Server(env={"GAMASOT_STORE_FOLDER": folder}) as server:
            wait_until("503", lambda: server.get("/v1/files").status == 503)
            server.complete("hello", 3)


@unittest.skipIf(harness.SANITIZED, "a sanitizer's library must come first")
class ClockThatIsSet(unittest.TestCase):
    def setUp(self):
        self.clock = MovedClock()
        self.move = self.clock.move
        self.env = {"GAMASOT_STORE_FOLDER": new_folder(), **self.clock.env}

    def test_nothing_is_lost_and_nothing_runs_twice(self):
        with Server("--fake.step-ms", 4, "--background.max-lines", 4, env=self.env) as server:
            c = client(server)
            kept = upload(c, b"kept").id
            b = submit(c, [chat_line(i) for i in range(200)], window="1h")
            for seconds in (-3600, 3600, 400 * 86400, -400 * 86400, 0):
                done = c.batches.retrieve(b.id).request_counts.completed
                self.move(seconds)
                wait_until("it goes on", lambda at=done: c.batches.retrieve(
                    b.id).request_counts.completed > at)
            self.assertEqual(c.files.content(kept).content, b"kept")
        self.move(-3600)  # over a restart, too
        with Server("--fake.step-ms", 4, env=self.env) as server:
            c = client(server)
            b = wait_over(c, b.id)
            self.assertEqual((b.status, b.request_counts.completed), ("completed", 200))
            self.assertEqual([x["custom_id"] for x in results(c, b.output_file_id)],
                             [f"line-{i}" for i in range(200)])
            self.assertEqual(c.files.content(kept).content, b"kept")

    def test_history_keeps_what_it_had(self):
        with Server("--metrics.history-s", 1, env=self.env) as server:
            now = int(time.time())

            def rows():
                return server.get(f"/v1/history?from={now - 60}&to={now + 600}&step=1").json["rows"]

            def ended():
                return sum(c["requests"] for r in rows() for c in r["classes"])
            wait_until("some minutes", lambda: len(rows()) >= 6)
            before = [r["t"] for r in rows()]
            self.move(-5)  # the minutes come once more
            self.assertEqual(server.complete("hello", 3)["usage"]["completion_tokens"], 3)
            wait_until("it is counted", ended)
            self.assertEqual(ended(), 1)
            after = [r["t"] for r in rows()]
            self.assertEqual(after, sorted(set(after)))
            self.assertLessEqual(set(before), set(after))
            at, = (r["t"] for r in rows() if r["classes"])
            self.assertLess(at, before[-1])

    def test_a_schedule_follows_the_wall(self):
        # 2026-01-15 12:00 UTC; at night it is 02:00 of the next day.
        noon = 1768478400 - int(time.time())
        self.move(noon)
        with Server("--background.schedule", "22:00-07:00", "--background.time-zone", "UTC",
                    "--fake.step-ms", 2, env=self.env) as server:
            c = client(server)
            hours = server.get("/v1/background").json
            self.assertEqual((hours["open"], hours["opens_at"]), (False, 1768514400))
            b = submit(c, [chat_line(i) for i in range(10)])
            self.assertIsNone(b.model_extra["gamasot"]["warning"])
            self.assertEqual(c.batches.retrieve(b.id).request_counts.completed, 0)
            self.move(noon + 14 * 3600)
            self.assertEqual(wait_over(c, b.id).status, "completed")
            self.assertEqual(server.get("/v1/background").json["closes_at"], 1768546800)
            self.move(noon)
            wait_until("it is closed", lambda: not server.get("/v1/background").json["open"])


class CommandLine(SharedServer):
    options = ("--fake.step-ms", 2)

    def batch(self, *args):
        return harness.cli("batch", *args, "--url", f"http://127.0.0.1:{self.server.port}")

    def write(self, lines):
        path = os.path.join(new_folder(), "in.jsonl")
        with open(path, "wb") as f:
            f.write(lines if isinstance(lines, bytes) else jsonl(lines))
        return path

    def test_a_nights_work(self):
        status, out, err = self.batch("submit", self.write([chat_line(i) for i in range(20)] +
                                                           [chat_line(20, temperature=999)]))
        self.assertEqual(status, 0, err)
        name = out.split()[0]
        status, out, err = self.batch("wait", name)
        self.assertEqual(status, 0, err)
        self.assertIn("completed", out)
        self.assertIn("21 of 21 (1 failed)", out)
        folder = new_folder()
        to, errors = os.path.join(folder, "out"), os.path.join(folder, "errors")
        status, _, err = self.batch("results", name, "--out", to, "--errors", errors)
        self.assertEqual(status, 0, err)
        for path, want in ((to, [f"line-{i}" for i in range(20)]), (errors, ["line-20"])):
            with open(path, encoding="utf-8") as f:
                self.assertEqual([json.loads(x)["custom_id"] for x in f], want)
        status, out, err = self.batch("results", name)
        self.assertEqual((status, len(out.splitlines())), (0, 20))
        self.assertIn("1 lines failed", err)
        self.assertIn(name, self.batch("list")[1])
        self.assertIn(name, self.batch("status", name)[1])
        status, _, err = self.batch("cancel", name)
        self.assertEqual(status, 1)
        self.assertIn("over already", err)

    def test_what_is_wrong(self):
        for args, says in ((("submit", "/nowhere"), "/nowhere"),
                           (("submit",), "usage: gamasot batch submit FILE.jsonl"),
                           (("status", "batch_x"), "There is no batch 'batch_x'"),
                           (("dance",), "say what"), ((), "say what"),
                           (("submit", self.write(b"x")), "names no url"),
                           (("submit", self.write(jsonl([chat_line(0), chat_line(0)]))),
                            "line 2: Another line has this 'custom_id'.")):
            status, _, err = self.batch(*args)
            self.assertEqual(status, 1, args)
            self.assertIn(says, err)

    def test_pause_cancel_resume(self):
        self.assertIn("is paused", self.batch("pause")[1])
        name = self.batch("submit", self.write([chat_line(0)]))[1].split()[0]
        self.assertIn("waits: paused", self.batch("status", name)[1])
        self.assertEqual(self.batch("results", name)[0], 1)
        self.assertEqual(self.batch("cancel", name)[0], 0)
        self.assertIn("background runs", self.batch("resume")[1])
        status, out, _ = self.batch("wait", name)
        self.assertEqual((status, "cancelled" in out), (1, True))


class Killed(unittest.TestCase):
    """kill -9 at any moment: each line once, and the database whole."""

    options = ("--fake.step-ms", 4, "--background.max-lines", 16)

    def run_and_kill(self, n_kills, n_lines, seed):
        rng = random.Random(seed)
        folder = new_folder()
        env = {"GAMASOT_STORE_FOLDER": folder}
        batch, slowest, seen, kills = None, 0.0, 0, 0
        rounds = []
        while True:
            if batch is not None and kills < n_kills and rng.random() < 0.15:
                server = Server(*self.options, env=env, check=False, ready=False)
                time.sleep(rng.uniform(0, 0.02))  # in the middle of opening
                server.kill()
                kills += 1
                self.assertEqual(check_database(folder), "ok")
                continue
            began = time.monotonic()
            server = Server(*self.options, env=env, check=False)
            c = client(server)
            if batch is None:
                batch = submit(c, [chat_line(i) for i in range(n_lines)])
                began = time.monotonic()
            wait_until("the store is open", lambda: server.get("/v1/batches").status == 200)
            ready_s = time.monotonic() - began
            if kills < n_kills:
                time.sleep(rng.uniform(0, 0.12))
            else:
                wait_over(c, batch.id, 120)
            b = c.batches.retrieve(batch.id)
            self.assertGreaterEqual(b.request_counts.completed, seen)
            seen = b.request_counts.completed
            if b.status in OVER:
                self.check_result(c, b, n_lines)
                rounds.append(seen)
                if kills >= n_kills:
                    server.stop()
                    break
                batch, seen = submit(c, [chat_line(i) for i in range(n_lines)]), 0
            server.kill()
            kills += 1
            slowest = max(slowest, ready_s)
            self.assertEqual(check_database(folder), "ok")
        print(f"{kills} kills over {len(rounds)} batches of {n_lines} lines; "
              f"slowest restart {slowest:.2f} s from start to an open store")

    def check_result(self, c, b, n_lines):
        self.assertEqual((b.status, b.request_counts.completed), ("completed", n_lines))
        out = results(c, b.output_file_id)
        self.assertEqual([x["custom_id"] for x in out], [f"line-{i}" for i in range(n_lines)])
        self.assertTrue(all(x["response"]["status_code"] == 200 for x in out))

    def test_fifteen_times(self):
        self.run_and_kill(15, 500, harness.seed(1))

    @harness.long_only
    @harness.limit(1800)
    def test_two_hundred_times(self):
        self.run_and_kill(200, 500, harness.seed(2))

    def test_ended_in_order(self):
        """SIGTERM in the middle: lines that ran are done again, and once."""
        env = {"GAMASOT_STORE_FOLDER": new_folder()}
        with Server(*self.options, env=env) as server:
            b = submit(client(server), [chat_line(i) for i in range(300)])
            wait_until("some are done", lambda: client(server).batches.retrieve(
                b.id).request_counts.completed > 20)
        with Server(*self.options, env=env) as server:
            c = client(server)
            self.check_result(c, wait_over(c, b.id), 300)
