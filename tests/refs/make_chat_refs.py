#!/usr/bin/env python3
"""Writes chat_templates.json: what Jinja2 makes of public chat templates.

Usage: make_chat_refs.py TEMPLATE_FOLDER OUTPUT.json      (needs the jinja2 package)

The environment is the one that transformers' apply_chat_template sets up: sandboxed, immutable,
trim_blocks, lstrip_blocks, loop controls, json.dumps without ASCII escapes, raise_exception,
strftime_now. The templates themselves are not stored, only their FNV-1a hash and, for each
case, the output's length and hash, or null where Jinja2 fails.
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW_S = 1735689600  # 2025-01-01 00:00 UTC

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place; <b>now</b> & 'later' in °C",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city"},
        "days": {"type": "integer", "enum": [1, 2, 3]},
        "share": {"type": "number", "default": 0.25}},
        "required": ["city"]}}}]
TALK = [{"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Hello, what's 2 + 2?"},
        {"role": "assistant", "content": "4."},
        {"role": "user", "content": "And \"3 + 3\"?\n"}]
CALL = [{"role": "user", "content": "Weather in Zürich?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call00001", "type": "function", "function": {
                "name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}]},
        {"role": "tool", "tool_call_id": "call00001", "name": "get_weather",
         "content": "{\"sky\": \"clear\", \"c\": 21.5}"},
        {"role": "user", "content": "Thanks. Tomorrow?"}]
CASES = {
    "talk": {"messages": TALK},
    "one": {"messages": [{"role": "user", "content": "  Ça va? 日本語 🙂 {{ x }} \t"}]},
    "stop": {"messages": TALK[:3], "add_generation_prompt": False},
    "tools": {"messages": TALK[:2], "tools": TOOLS},
    "call": {"messages": CALL, "tools": TOOLS},
    "plain": {"messages": TALK[1:2], "extra": {"enable_thinking": False, "custom": [1, 2.5, None]}},
}


def fnv1a(data):
    """64-bit FNV-1a, as 16 hex digits."""
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


class Generation(jinja2.ext.Extension):
    """{% generation %} marks training text; it prints what is inside."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    @staticmethod
    def _inside(caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.datetime.fromtimestamp(NOW_S, datetime.timezone.utc)
    env.globals["strftime_now"] = now.strftime
    return env


def render(source, case):
    template = environment().from_string(source)
    return template.render(
        messages=case["messages"], tools=case.get("tools"), documents=None,
        add_generation_prompt=case.get("add_generation_prompt", True),
        bos_token="<s>", eos_token="</s>", **case.get("extra", {}))


def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    result = {"source": f"jinja2 {jinja2.__version__}", "now_s": NOW_S, "cases": CASES,
              "templates": []}
    texts = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    for path in sorted(folder.glob("*.jinja")):
        # Bytes as they are: a checkout that changed line ends is another template.
        source = path.read_bytes().decode()
        row = {"name": path.name, "fnv1a": fnv1a(source.encode()), "out": {}}
        for name, case in CASES.items():
            try:
                text = render(source, case)
                row["out"][name] = [len(text.encode()), fnv1a(text.encode())]
            except Exception as e:  # any failure of a template: we must fail too
                text = f"ERROR {type(e).__name__}: {e}"
                row["out"][name] = None
            if texts:
                (texts / f"{path.name}.{name}.txt").write_bytes(text.encode())
        result["templates"].append(row)
    out.write_text(json.dumps(result, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
