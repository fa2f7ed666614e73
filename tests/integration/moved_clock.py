"""The clocks of a server, moved while it runs (tests/faults/clock.c)."""

import os
import struct
import subprocess
import tempfile
import time

import harness

_library = []


def library():
    """Built once."""
    if not _library:
        path = str(harness.TMP / "clock.so")
        subprocess.run(["cc", "-std=gnu17", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", path,
                        harness.ROOT / "tests/faults/clock.c", "-ldl"], check=True)
        _library.append(path)
    return _library[0]


class MovedClock:
    """env: what the server is started with."""

    def __init__(self, monotonic_ns=0):
        fd, path = tempfile.mkstemp(prefix="moved-", dir=harness.TMP)
        os.close(fd)
        self.file = open(path, "r+b", buffering=0)
        self.file.write(struct.pack("=qq", 0, monotonic_ns))
        self.env = {"LD_PRELOAD": library(), "MOVED_BY": path}
        self.wall_s = 0

    def move(self, seconds):
        """The wall's clock is that far ahead of the true one, from now on."""
        self.wall_s = seconds
        self.file.seek(0)
        self.file.write(struct.pack("=q", seconds))

    def now(self):
        """What the server's wall shows."""
        return time.time() + self.wall_s
