"""What the documents say is there: links, anchors, commands, options, files."""

import json
import re
import subprocess
import unittest

import harness
from harness import ROOT, cli

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|[\s`/(])gamasot ([a-z]+)\b((?:[^\S\n]+[^\s`|#)]+)*)")
# A word of prose after "gamasot": "gamasot is ...". Whatever stands in code is a command.
CODE = re.compile(r"```.*?```|`[^`\n]+`|^(?: {4}|\t)[^\n]*$", re.S | re.M)


def documents():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).exists()]


def anchors(path):
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    out = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        out.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return out


class Links(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        n = 0
        for path in documents():
            for m in LINK.finditer(path.read_text()):
                target = m.group(1) or m.group(2)
                if re.match(r"[a-z]+:", target):
                    continue
                n += 1
                name, _, anchor = target.partition("#")
                there = (path.parent / name).resolve() if name else path
                with self.subTest(document=path.name, link=target):
                    self.assertTrue(there.exists(), "there is no such file")
                    self.assertTrue(there.is_relative_to(ROOT), "it leads out of the repository")
                    if anchor:
                        self.assertIn(anchor, anchors(there))
        self.assertGreater(n, 50)

    def test_every_document_can_be_reached(self):
        seen, todo = set(), [ROOT / "README.md", ROOT / "README.ko.md"]
        while todo:
            path = todo.pop()
            if path in seen:
                continue
            seen.add(path)
            for m in LINK.finditer(path.read_text()):
                name = (m.group(1) or "").partition("#")[0]
                if name.endswith(".md") and ":" not in name:
                    todo.append((path.parent / name).resolve())
        self.assertEqual(set(), {p for p in documents() if p.is_relative_to(ROOT / "docs")} - seen)


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = {c["name"] for c in json.loads(cli("config", "commands")[1])} | {"help"}
        cls.help = {c: cli(c, "--help")[1] for c in cls.commands - {"help"}}
        cls.options = json.loads(cli("config", "show")[1])

    def test_commands_and_their_flags_exist(self):
        n = 0
        for path in documents():
            for code in CODE.findall(path.read_text()):
                for m in COMMAND.finditer(code.strip("`")):
                    name, rest = m.group(1), m.group(2)
                    n += 1
                    with self.subTest(document=path.name, command=m.group(0).strip()):
                        self.assertIn(name, self.commands)
                        for flag in re.findall(r"(?<!\S)(--[a-z][\w.-]*)", rest):
                            if flag in ("--help", "--version") or name == "help":
                                continue
                            self.assertRegex(self.help[name], rf"{re.escape(flag)}(?![\w.-])")
        self.assertGreater(n, 40)

    def test_options_exist(self):
        sections = {name.split(".")[0] for name in self.options}
        named = re.compile(rf"`((?:{'|'.join(sorted(sections))})\.[a-z_]+)(?=[`\s=])")
        hidden = (ROOT / "src/config/options.h").read_text()
        n = 0
        for path in documents():
            for option in named.findall(path.read_text()):
                section, key = option.split(".")
                if key in ("c", "h", "html", "json", "md"):
                    continue  # a file's name
                n += 1
                with self.subTest(document=path.name, option=option):
                    self.assertTrue(option in self.options or
                                    re.search(rf"X\({section}, +{key},", hidden))
        self.assertGreater(n, 40)
