"""Finds the tests, runs them one after another, prints the time of each and the closing line."""

import argparse
import faulthandler
import os
import pathlib
import signal
import sys
import time
import unittest

import harness

# A hang limit, not a measurement. Sanitizer builds are given more.
TEST_LIMIT_S = 120


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


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser()
    parser.add_argument("build_dir", nargs="?", default=str(here.parent.parent / "build/current"))
    parser.add_argument("--long", action="store_true")
    parser.add_argument("-v", action="store_true", help="keep and show server logs")
    parser.add_argument("-k", action="append", default=[], help="only tests whose name has this")
    args = parser.parse_args()
    os.chdir(here.parent.parent)
    harness.setup(args.build_dir, args.long, args.v)
    loader = unittest.TestLoader()
    folders = [here, here.parent / "web"]
    tests = [t for folder in folders
             for t in flatten(loader.discover(str(folder), top_level_dir=str(folder)))]
    if args.k:
        tests = [t for t in tests if any(k in t.id() for k in args.k)]
    else:
        tests = [t for t in tests if args.long or not mark_of(t, "long_only", False)]
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
    print(f"integration tests took {time.monotonic() - began:.0f} s")
    print(f"{result.passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not result.passed else 0


if __name__ == "__main__":
    sys.exit(main())
