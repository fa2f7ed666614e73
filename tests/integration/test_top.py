"""gamasot top: one picture without a terminal, a live one with."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios

import harness
from harness import cli, wait_until


class Top(harness.SharedServer):
    options = ("--fake.step_ms", 20)

    def start(self, user, cls="chat"):
        s = self.server.stream("/v1/completions", {"prompt": f"{user} asks", "max_tokens": 3000,
                                                   "ignore_eos": True, "user": user},
                               headers={"X-Gamasot-Class": cls})
        self.addCleanup(s.close)
        return s

    def url(self):
        return f"http://127.0.0.1:{self.server.port}"

    def test_once(self):
        s = self.start("ann\x1b[2J")
        status, out, err = cli("top", "--url", self.url())
        self.assertEqual(status, 0, err)
        self.assertNotIn("\x1b", out)
        self.assertIn("1 running, 0 waiting", out)
        self.assertIn(s.headers["X-Request-Id"][:16], out)
        self.assertLessEqual(max(len(line) for line in out.splitlines()), 80)
        status, _, err = cli("top", "--url", "http://127.0.0.1:9")
        self.assertEqual(status, 1)
        self.assertTrue(err)

    def test_a_terminal(self):
        s = self.start("ann")
        main, sub = pty.openpty()
        fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = harness.clean_env({"NO_COLOR": "1", "TERM": "xterm"})
        p = subprocess.Popen([harness.GAMASOT, "top", "--url", self.url()], stdin=sub, stdout=sub,
                             stderr=sub, env=env, start_new_session=True)
        os.close(sub)
        seen = b""

        def has(what):
            nonlocal seen
            while select.select([main], [], [], 0)[0]:
                seen += os.read(main, 65536)
            return re.search(what, seen)
        try:
            wait_until("the request", lambda: has(s.headers["X-Request-Id"][:16].encode()))
            self.assertFalse(re.search(rb"\x1b\[[0-9]*m", seen))  # no colour was asked for
            fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
            p.send_signal(signal.SIGWINCH)
            seen = b""
            wait_until("it is drawn again", lambda: has(rb"\x1b\[H\x1b\[2J"))
            os.write(main, b"c")
            wait_until("the request is cancelled", self.server.idle)
            os.write(main, b"q")
            self.assertEqual(p.wait(20), 0)
        finally:
            p.kill()
            p.wait()
            os.close(main)
