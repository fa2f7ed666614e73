"""gamasot sim: a household trace through the scheduler, from files to tables."""

import json
import pathlib
import subprocess
import sys
import unittest

import harness
from harness import cli

REPO = pathlib.Path(__file__).resolve().parents[2]


def trace(name, *args):
    path = harness.TMP / f"{name}.jsonl"
    subprocess.run([sys.executable, REPO / "bench/family/trace.py", name, "--out", path, *args],
                   check=True)
    return path


class Sim(unittest.TestCase):
    def test_an_evening(self):
        path, out = trace("evening_peak"), harness.TMP / "evening.json"
        device = REPO / "bench/devices/xeon2-135m.json"
        args = ("sim", "--trace", str(path), "--device", str(device), "--check", "--out", str(out))
        status, text, err = cli(*args)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("voice", text)
        got = json.loads(out.read_text())
        n = sum(k["requests"] for k in got["classes"].values())
        self.assertEqual(n, len(path.read_text().splitlines()))
        self.assertEqual(sum(k["refused"] for k in got["classes"].values()), 0)
        self.assertEqual(got["classes"]["chat"]["met"], got["classes"]["chat"]["judged"])
        self.assertLessEqual(got["classes"]["chat"]["gap_p99_s"], 0.105)
        self.assertLessEqual(got["cost_median_error"], 0.10)
        # The same seed decides the same; another one does not.
        self.assertEqual(cli(*args)[0], 0)
        self.assertEqual(json.loads(out.read_text())["decisions"], got["decisions"])
        self.assertEqual(cli(*args, "--seed", "2")[0], 0)
        self.assertNotEqual(json.loads(out.read_text())["decisions"], got["decisions"])

    def test_device_files_are_the_built_in_ones(self):
        for path in sorted((REPO / "bench/devices").glob("*.json")):
            status, text, _ = cli("sim", "--print-device", path.stem)
            self.assertEqual(status, 0)
            self.assertEqual(json.loads(text), json.loads(path.read_text()))

    def test_wrong_input(self):
        good = json.loads(trace("voice_over_document").read_text().splitlines()[0])
        bad = harness.TMP / "bad.jsonl"
        for change, word in (({"class": "loud"}, "class"), ({"person": None}, "person"),
                             ({"prompt_tokens": -1}, "prompt_tokens"),
                             ({"prompt_tokens": 1e99}, "prompt_tokens"),
                             ({"texts": 1000}, "texts"), ({"t": "x"}, '"t"'),
                             ({"after": {"id": "nobody"}}, "after")):
            with self.subTest(change=change):
                bad.write_text("\n" + json.dumps(good | change) + "\n")
                status, _, err = cli("sim", "--trace", str(bad))
                self.assertEqual(status, 1)
                self.assertIn("line 2", err)
                self.assertIn(word, err)
        bad.write_text("[1]\n")
        self.assertEqual(cli("sim", "--trace", str(bad))[0], 1)
        self.assertEqual(cli("sim", "--trace", "/nowhere.jsonl")[0], 1)
        self.assertEqual(cli("sim", "--trace", str(bad), "--device", str(bad))[0], 1)
        self.assertEqual(cli("sim")[0], 2)
        self.assertEqual(cli("sim", "--seed", "x")[0], 2)
        status, _, err = cli("sim", "--trace", str(bad), "--policy", "best")
        self.assertEqual(status, 1)
        self.assertIn("best", err)

    def test_the_table_of_the_docs(self):
        status, text, _ = cli("sim", "--rules")
        self.assertEqual(status, 0)
        rules = [line.split("|")[1].strip() for line in text.splitlines()[2:]]
        self.assertEqual(rules, ["class order", "horizon", "windows", "fairness", "reserve",
                                 "safepoints"])
        docs = (REPO / "docs/scheduling.md").read_text()
        for line in text.splitlines():
            self.assertIn(line.rsplit("|", 5)[0], docs)


if __name__ == "__main__":
    unittest.main()
