"""What the documents say of the tests is so."""

import re
import unittest

import harness

NAMED = re.compile(r"`((?:\w+/)?test_\w+):(\w+)`")


def names_of(file):
    """The tests of a file: of Python by their definition, of C by their entry in a table."""
    if file.suffix == ".py":
        return set(re.findall(r"\bdef (test_\w+)", file.read_text()))
    text = file.read_text()
    defined = set(re.findall(r"^static void (\w+)\(void \*\*", text, re.M))
    return {n for n in defined if len(re.findall(rf"\b{n}\b", text)) > 1}


def file_of(name):
    module, _, test = name.rpartition("/")
    if module == "web":
        return harness.ROOT / "tests/web" / f"{test}.py"
    if module:
        return harness.ROOT / "tests/unit" / module / f"{test}.c"
    return harness.ROOT / "tests/integration" / f"{test}.py"


class Tables(unittest.TestCase):
    def test_every_test_that_is_named_exists(self):
        text = (harness.ROOT / "docs/reliability.md").read_text()
        named = set(NAMED.findall(text))
        self.assertGreater(len(named), 60)
        missing = [f"{file}:{test}" for file, test in sorted(named)
                   if not file_of(file).exists() or test not in names_of(file_of(file))]
        self.assertEqual(missing, [])

    def test_no_report_is_left_out(self):
        text = (harness.ROOT / "docs/reliability.md").read_text()
        _, scorecard, others, family = re.split(r"^## ", text, flags=re.M)[:4]
        for part, n, test_column in ((scorecard, 25, 4), (others, 36, 2), (family, 46, 3)):
            rows = [line.strip("| ").split(" | ") for line in part.splitlines()
                    if line.startswith("| ")][1:]
            self.assertEqual(len(rows), n, part[:40])
            for row in rows:
                answer = " ".join(row[test_column:])
                self.assertTrue(NAMED.search(answer) or "can't apply:" in answer
                                or row[0] in ("9", "25"), row)
