"""A fake model with a script: what the clients' tests and the recorded requests of home programs
talk to. It thinks, calls tools and writes JSON as told, by what the prompt holds last."""

import json

import harness

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Seoul"}}</tool_call>'
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
REASONING = "They greet me."
PLAIN = "Hello! 안녕 \U0001f600"
WEATHER = "It rains in Seoul."
DOCUMENT = '{"title": "Rain", "tags": ["weather", "seoul"]}'

# After a result of a tool comes the answer, whatever was asked before it.
RULES = [
    ["weather in Seoul?", "Let me look. " + CALL],
    ["weather in both?", CALL + PARIS],
    ["rain, 12 degrees", WEATHER],
    ["as JSON", DOCUMENT],
    ["think first", f"<think>\n{REASONING}\n</think>\n\n{PLAIN}"],
    ["greet me", PLAIN],
    ["long story", "word " * 4000],
]
RESULT = "rain, 12 degrees"

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS,
                                         "description": "The weather in a city."}}
SCHEMA = {"type": "object", "required": ["title", "tags"], "additionalProperties": False,
          "properties": {"title": {"type": "string"},
                         "tags": {"type": "array", "items": {"type": "string"}}}}


def options(rules=None):
    path = harness.TMP / f"script-{abs(hash(json.dumps(rules)))}.json"
    path.write_text(json.dumps((rules or []) + RULES))
    return ("--fake.script", path, "--fake.template",
            harness.ROOT / "tests/integration/tools.jinja")


class ScriptedServer(harness.SharedServer):
    """One server for all tests of a class, with RULES and those of cls.rules before them."""

    rules = None

    @classmethod
    def setUpClass(cls):
        cls.options = (*cls.options, *options(cls.rules))
        super().setUpClass()
        cls.url = f"http://127.0.0.1:{cls.server.port}"
