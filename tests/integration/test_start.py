"""Starting: what is wrong is said in one sentence, with an exit status that scripts can use."""

import ctypes
import os
import pathlib
import signal
import socket
import struct
import time
import unittest

import harness
from harness import Server, cli, model_path


def slice_ns(thread):
    """sched_getattr(2): how long a thread runs before others have their turn; 0 before Linux 6.12."""
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    attributes = ctypes.create_string_buffer(48)
    if ctypes.CDLL(None).syscall(number, thread, attributes, 48, 0) != 0:
        raise OSError("sched_getattr")
    return struct.unpack("IIQiIQQQ", attributes.raw)[5]


class Start(unittest.TestCase):
    def fails(self, status, *args, says=(), env=None):
        got, out, err = cli(*args, env=env)
        self.assertEqual(got, status, err)
        self.assertEqual(out, "")
        for word in says:
            self.assertIn(word, err)
        self.assertLessEqual(len(err.strip().splitlines()), 4, err)

    def test_port_taken(self):
        with Server() as server:
            self.fails(1, "serve", "--backend", "fake", "--port", str(server.port),
                       says=["gamasot: ", str(server.port)])
            self.assertEqual(server.get("/health").status, 200)
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            self.fails(1, "serve", "--backend", "fake", "--port", port, says=[port])

    def test_the_port_is_free_again_at_once(self):
        with Server() as server:
            port = server.port
            server.complete("x", 3)
        with Server("--port", port) as again:
            self.assertEqual(again.port, port)

    def test_the_event_loop_wakes_soon(self):
        if slice_ns(os.getpid()) == 0:
            self.skipTest("this kernel knows no slices")
        with Server() as server:
            slices = {t: slice_ns(int(t)) for t in os.listdir(f"/proc/{server.process.pid}/task")}
            loop = slices.pop(str(server.process.pid))
            self.assertTrue(slices)
            self.assertTrue(all(loop < other for other in slices.values()), (loop, slices))

    def test_wrong_options(self):
        for args, words in (
                (("--server.prot", "1"), ["server.prot", "server.port"]),
                (("--portt", "1"), ["portt", "port"]),
                (("--fake.step_mss", "1"), ["fake.step_ms"]),
                (("--port", "70000"), ["port", "65535"]),
                (("--port", "x"), ["port"]),
                (("--port",), ["port"]),
                (("--backend", "gpu"), ["backend", "native", "fake"]),
                (("--log-level", "loud"), ["log", "debug"]),
                (("--kv.block_tokens", "33"), ["kv.block_tokens"]),
                (("stray",), ["stray"]),
                (("--config", "/nowhere/gamasot.conf"), ["/nowhere/gamasot.conf"])):
            with self.subTest(args=args):
                self.fails(2, "serve", *args, says=words)

    def test_wrong_file_and_environment(self):
        path = harness.TMP / "wrong.conf"
        for text, words in (("[server]\nprot = 1\n", ["prot", "port", "wrong.conf"]),
                            ("[sever]\nport = 1\n", ["sever"]),
                            ("[server]\nport = many\n", ["port"]),
                            ("port\n", ["wrong.conf"])):
            path.write_text(text)
            with self.subTest(text=text):
                self.fails(2, "serve", "--config", str(path), says=words)
        self.fails(2, "serve", env={"GAMASOT_SERVER_PROT": "1"}, says=["GAMASOT_SERVER_PROT"])
        self.fails(2, "serve", env={"GAMASOT_SERVER_PORT": "x"}, says=["GAMASOT_SERVER_PORT"])

    def test_order_of_places(self):
        path = harness.TMP / "places.conf"
        path.write_text("[model]\nname = from-file\nbackend = fake\n[fake]\nn_tokens = 5\n")
        with Server("--config", path) as s:
            self.assertEqual(s.get("/v1/models").json["data"][0]["id"], "from-file")
        with Server("--config", path, env={"GAMASOT_MODEL_NAME": "from-env"}) as s:
            self.assertEqual(s.get("/v1/models").json["data"][0]["id"], "from-env")
        with Server("--model-name", "from-flag", env={"GAMASOT_CONFIG": str(path),
                                                     "GAMASOT_MODEL_NAME": "from-env"}) as s:
            self.assertEqual(s.get("/v1/models").json["data"][0]["id"], "from-flag")

    def test_foreign_address_needs_keys(self):
        self.fails(2, "serve", "--backend", "fake", "--host", "0.0.0.0", says=["api_keys"])
        with Server("--host", "0.0.0.0", "--api-key", "k", key="k") as s:
            self.assertEqual(s.get("/v1/models").status, 200)

    def test_keys_from_a_file(self):
        path = harness.TMP / "keys"
        path.write_text("# keys of the house\nfirst\n\nsecond\n")
        path.chmod(0o600)
        with Server("--api-keys-file", path, key="second") as s:
            self.assertEqual(s.get("/v1/models").status, 200)
            s.key = "# keys of the house"
            self.assertEqual(s.get("/v1/models").status, 401)
            s.key = ""
            self.assertEqual(s.get("/v1/models").status, 401)

    def test_secrets_are_not_logged(self):
        with Server("--api-key", "very-secret-key", "--log-level", "debug",
                    key="very-secret-key") as s:
            s.complete("very-private-prompt", 5)
            s.get("/v1/models", headers={"Authorization": "Bearer wrong-secret-key"})
            for word in ("very-secret-key", "very-private-prompt", "wrong-secret-key"):
                self.assertNotIn(word, s.log())
        status, out, _ = cli("config", "show", "--api-key", "very-secret-key")
        self.assertEqual(status, 0)
        self.assertNotIn("very-secret-key", out)

    def test_help_and_version(self):
        for args in (("--help",), ("serve", "--help"), ("run", "--help"), ("--version",)):
            status, out, err = cli(*args)
            self.assertEqual((status, err), (0, ""))
            self.assertIn("gamasot", out)
        status, _, err = cli("srve")
        self.assertEqual(status, 2)
        self.assertIn("srve", err)


class ModelFiles(unittest.TestCase):
    def bad(self, name, data, *words):
        path = harness.TMP / name
        path.write_bytes(data)
        status, _, err = cli("serve", "--model", str(path), "--port", "0")
        self.assertEqual(status, 1, err)
        for word in words:
            self.assertIn(word, err)
        status, _, err = cli("models", "inspect", str(path))
        self.assertEqual(status, 1, err)

    def test_no_such_file(self):
        status, _, err = cli("serve", "--model", "/nowhere/x.gguf", "--port", "0")
        self.assertEqual(status, 1)
        self.assertIn("/nowhere/x.gguf", err)

    def test_bad_files(self):
        self.bad("empty.gguf", b"", "empty.gguf")
        self.bad("text.gguf", b"I am no model.\n" * 100, "GGUF")
        self.bad("short.gguf", b"GGUF\3\0\0\0")
        self.bad("version.gguf", b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "99")
        self.bad("counts.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))

    def test_a_file_without_a_model(self):
        path = harness.TMP / "nothing.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
        status, _, err = cli("serve", "--model", str(path), "--port", "0")
        self.assertEqual(status, 1)
        self.assertIn("general.architecture", err)

    def test_a_cut_model(self):
        data = pathlib.Path(model_path()).read_bytes()
        self.bad("cut.gguf", data[:len(data) // 2], "cut.gguf")
        self.bad("cut-head.gguf", data[:5000])

    def test_an_unknown_architecture(self):
        data = pathlib.Path(model_path()).read_bytes()
        key = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5)
        self.assertIn(key + b"llama", data[:4096])
        path = harness.TMP / "other.gguf"
        path.write_bytes(data.replace(key + b"llama", key + b"lemma", 1))
        status, _, err = cli("serve", "--model", str(path), "--port", "0")
        self.assertEqual(status, 1)
        self.assertIn("lemma", err)
        path.unlink()

    def test_alive_while_loading(self):
        server = Server("--model", model_path(), "--kv.memory_mb", 64, backend="native",
                        ready=False, check=False)
        with server:
            seen = []
            end = time.monotonic() + 60 * harness.SLOWNESS
            while not seen or seen[-1] != 200:
                self.assertLess(time.monotonic(), end)
                self.assertEqual(server.get("/health").status, 200)
                r = server.get("/ready")
                seen.append(r.status)
                if r.status == 503:
                    self.assertTrue(r.headers["Retry-After"])
                    self.assertIn(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}
                                              ).status, (200, 503))
            if 503 not in seen:
                self.skipTest("the model was loaded before the first look")

    def test_sigterm_while_loading(self):
        server = Server("--model", model_path(), "--kv.memory_mb", 64, backend="native",
                        ready=False, check=False)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait_exit(), 0)

    def test_inspect(self):
        status, out, _ = cli("models", "inspect", model_path())
        self.assertEqual(status, 0)
        for word in ("llama", "Q4_1", "49152"):
            self.assertIn(word, out)




class ServiceManager(unittest.TestCase):
    def hear(self, manager):
        """The next thing that is not a sign of life: these come twice a second."""
        while (said := manager.recv(1024).decode()) == "WATCHDOG=1":
            pass
        return said

    def test_is_told_what_the_server_does(self):
        path = str(harness.TMP / "notify.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(20 * harness.SLOWNESS)
            with Server(env={"NOTIFY_SOCKET": path}) as s:
                said = [self.hear(manager) for _ in range(2)]
                self.assertEqual("STATUS=loading the model", said[0])
                self.assertRegex(said[1], rf"^READY=1\nSTATUS=serving \S+ on port {s.port}$")
                s.stop()
                self.assertRegex(self.hear(manager), r"^STOPPING=1\nSTATUS=")

    def test_hears_why_a_model_could_not_be_loaded(self):
        path = str(harness.TMP / "notify-bad.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(20 * harness.SLOWNESS)
            status, _, _ = cli("serve", "--port", "0", "--model", "/nowhere.gguf",
                               env={"NOTIFY_SOCKET": path})
            self.assertEqual(1, status)
            self.assertEqual("STATUS=loading the model", self.hear(manager))
            self.assertRegex(self.hear(manager),
                             r"^STATUS=the model could not be loaded: .*/nowhere\.gguf")
