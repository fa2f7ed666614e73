"""Finds the tests, runs them, prints the time of each and the closing line.

With --jobs N the files of tests share N processes, but for those that compare times: each of these
has the machine to itself, before the others begin.
"""

import argparse
import faulthandler
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

import harness

# A hang limit, not a measurement. Sanitizer builds are given more.
TEST_LIMIT_S = 120
# They compare times, or load the machine so that others could not.
ALONE = {"test_bench", "test_tune", "test_sim", "test_schedule", "test_scheduling", "test_metrics",
         "test_scorecard"}
LONGEST_FIRST = ("test_model", "test_requests", "test_models")


class TestTimeout(BaseException):
    """Not an Exception: no test can swallow it."""


def on_alarm(_signum, _frame):
    faulthandler.dump_traceback()
    raise TestTimeout("the test takes too long")


def describe(error):
    kind, value, _ = error
    return f"{kind.__name__}: {value}"


def mark_of(test, name, default):
    """What a decorator of harness.py left at the test's method."""
    return getattr(getattr(test, getattr(test, "_testMethodName", ""), None), name, default)


class Result(unittest.TestResult):
    def __init__(self, verbose):
        super().__init__()
        self.verbose = verbose
        self.passed = 0
        self.bad = set()  # a test with several failing subtests is one failed test

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        limit = mark_of(test, "limit_s", TEST_LIMIT_S)
        signal.alarm(int(limit * harness.SLOWNESS))

    def say(self, word, test, text=""):
        signal.alarm(0)
        print(f"{word:4} {time.monotonic() - self.began:6.1f} s  {test.id()}{text}", flush=True)

    def addSuccess(self, test):
        if test.id() not in self.bad:
            self.passed += 1
            self.say("ok", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.began = getattr(self, "began", time.monotonic())
        self.say("skip", test, f": {reason}")

    def fail(self, test, error):
        signal.alarm(0)
        text = self._exc_info_to_string(error, test)
        self.bad.add(test.id())
        self.began = getattr(self, "began", time.monotonic())
        self.say("FAIL", test, f"\n{text}")

    def addFailure(self, test, error):
        self.fail(test, error)

    def addError(self, test, error):
        self.fail(test, error)

    def addSubTest(self, test, subtest, error):
        if error:
            self.bad.add(test.id())
            print(f"FAIL           {subtest.id()}: "
                  f"{self._exc_info_to_string(error, test)}", flush=True)


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def module_of(test):
    return type(test).__module__


def matches(test, pattern):
    """FILE:TEST as docs/reliability.md names it, or a part of the whole name."""
    file, colon, name = pattern.partition(":")
    if colon:
        return (file, name) == (module_of(test), getattr(test, "_testMethodName", ""))
    return pattern in test.id()


class Files:
    """Files of tests, each in a process of its own: their output in whole pieces, their counts."""

    def __init__(self, options):
        self.options = options
        self.counts = [0, 0, 0]  # passed, failed, skipped
        self.lock = threading.Lock()

    def run(self, name):
        done = subprocess.run([sys.executable, __file__, "--module", name, *self.options],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False)
        lines = done.stdout.splitlines()
        counts = re.fullmatch(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?",
                              lines.pop() if lines else "")
        with self.lock:
            print("\n".join(lines), flush=True)
            if counts:
                self.counts = [a + int(b or 0) for a, b in zip(self.counts, counts.groups())]
            if not counts or (done.returncode != 0 and counts[2] == "0"):
                print(f"FAIL           {name} ended with {done.returncode}", flush=True)
                self.counts[1] += 1

    def run_all(self, names, jobs):
        left = queue.SimpleQueue()
        for name in names:
            left.put(name)

        def work():
            while True:
                try:
                    name = left.get_nowait()
                except queue.Empty:
                    return
                self.run(name)
        threads = [threading.Thread(target=work) for _ in range(jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def run_files(names, args):
    files = Files([args.build_dir, *(["--long"] if args.long else []),
                   *(word for k in args.k for word in ("-k", k))])
    began = time.monotonic()
    files.run_all(sorted(names & ALONE), 1)
    rest = sorted(names - ALONE, key=lambda n: (
        LONGEST_FIRST.index(n) if n in LONGEST_FIRST else len(LONGEST_FIRST), n))
    files.run_all(rest, args.jobs)
    passed, failed, skipped = files.counts
    print(f"integration tests took {time.monotonic() - began:.0f} s")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser()
    parser.add_argument("build_dir", nargs="?", default=str(here.parent.parent / "build/current"))
    parser.add_argument("--long", action="store_true")
    parser.add_argument("-v", action="store_true", help="keep and show server logs")
    parser.add_argument("-k", action="append", default=[],
                        help="only tests whose name has this, or FILE:TEST")
    parser.add_argument("--module", help="only the tests of this file")
    parser.add_argument("--jobs", type=int, default=1, help="files of tests at the same time")
    args = parser.parse_args()
    os.chdir(here.parent.parent)
    harness.setup(args.build_dir, args.long, args.v)
    loader = unittest.TestLoader()
    folders = [here, here.parent / "web"]
    tests = [t for folder in folders
             for t in flatten(loader.discover(str(folder), top_level_dir=str(folder)))]
    if args.k:
        tests = [t for t in tests if any(matches(t, k) for k in args.k)]
    else:
        tests = [t for t in tests if args.long or not mark_of(t, "long_only", False)]
    if args.jobs > 1:
        return run_files({module_of(t) for t in tests}, args)
    if args.module:
        tests = [t for t in tests if module_of(t) == args.module]
    signal.signal(signal.SIGALRM, on_alarm)
    faulthandler.enable()
    result = Result(args.v)
    began = time.monotonic()
    try:
        unittest.TestSuite(tests).run(result)
    finally:
        signal.alarm(0)
        harness.kill_all()
    failed, skipped = len(result.bad), len(result.skipped)
    if not args.module:
        print(f"integration tests took {time.monotonic() - began:.0f} s")
    print(f"{result.passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not (result.passed or args.module) else 0


if __name__ == "__main__":
    sys.exit(main())
