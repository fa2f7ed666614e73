"""
Requests at and beyond every bound, made from the OpenAPI document: no crash, no 5xx, errors in the
document's shape, memory flat, and streams beside them undisturbed.
"""

import contextlib
import copy
import json
import random
import threading

import jsonschema

import harness

N_SHORT, N_LONG = 4000, 20000
SEED = 7
BIG = 2**63
NUMBERS = [0, -1, 1, 2**31 - 1, 2**31, -2**31 - 1, BIG - 1, BIG, -BIG, -BIG - 1, 0.5, -0.0, 1e-320,
           1e308, 1e15, 3.0]
STRINGS = ["", " ", "x", "\u0000", "\ufffd", "가마솥", "\U0001f372", "a" * 127, "a" * 128, "b" * 5000,
           "<|im_start|>system", "../../etc/passwd", "http://127.0.0.1:1/x", "%s%n", "null", "-1",
           "\u202e", "{{ 7*7 }}", "' OR 1=1"]
OTHERS = [None, True, False, [], {}, [[]], [None], {"": None}, [1, "a", None, {}], {"a": {"b": []}},
          [{}] * 200, list(range(5000))]
RAW = [b"", b"{", b"null", b"[]", b'"x"', b'{"a":\xff}', b'{"a":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}",
       b'{"a":NaN}', b'{"a":1,"a":2}', b'{"a":1e999}', b"[" * 5000, b'{"a":' * 5000,
       b'{"a":' + b"9" * 5000 + b"}", b"{}" * 2, b"{'a':1}", b'{"a":[' + b"0," * 300000 + b"0]}",
       b'{"a":[' + b"[]," * 20000 + b"0]}", b'{"prompt":"' + b"x" * 200000 + b'","max_tokens":0}']


class Generator:
    def __init__(self, document, seed):
        self.document, self.rng = document, random.Random(seed)
        self.by_path = document["paths"]
        self.operations = [(path, method, op) for path, item in document["paths"].items()
                           for method, op in item.items()]
        self.with_body = [o for o in self.operations if "requestBody" in o[2]]

    def resolve(self, schema):
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def number(self, schema, kind):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and high is not None and self.rng.random() < 0.7:
            if kind == "integer":
                return int(self.rng.choice([low, high, min(low + 1, high)]))
            return self.rng.choice([low, high, (low + high) / 2])
        return self.rng.choice([0, 1, 2])

    def good(self, schema, depth=0):
        """Something that fits."""
        schema, rng = self.resolve(schema), self.rng
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.good(rng.choice(schema[key]), depth)
        kind = schema.get("type", "string")
        if isinstance(kind, list):
            kind = rng.choice(kind)
        if kind in ("integer", "number"):
            return self.number(schema, kind)
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "null":
            return None
        if kind == "array":
            n = max(schema.get("minItems", 0), rng.randint(0, 2)) if depth < 6 else 0
            return [self.good(schema.get("items", {}), depth + 1) for _ in range(n)]
        if kind == "object":
            return self.object(schema, depth)
        return rng.choice(["x", "word and word", "가마솥"])

    def object(self, schema, depth=0, share=0.3):
        required = schema.get("required", [])
        return {k: self.good(v, depth + 1) for k, v in schema.get("properties", {}).items()
                if k in required or (depth < 6 and self.rng.random() < share)}

    def bad(self, schema):
        """Something at or beyond a bound, or of another type."""
        schema, rng = self.resolve(schema), self.rng
        choices = [rng.choice(NUMBERS), rng.choice(STRINGS),
                   copy.deepcopy(rng.choice(OTHERS))]
        options = [self.resolve(s) for s in schema.get("anyOf", [schema])]
        for s in options:
            for bound, step in (("minimum", -1), ("maximum", 1)):
                if bound in s:
                    choices += [s[bound] + step, s[bound] * 2 + step]
            if "maxLength" in s:
                choices.append("y" * (s["maxLength"] + 1))
            if "maxItems" in s:
                choices.append([self.good(s.get("items", {})) for _ in range(s["maxItems"] + 1)])
        return rng.choice(choices)

    def poison(self, value):
        """Changes one place somewhere inside."""
        at, path = value, []
        while isinstance(at, (dict, list)) and at and self.rng.random() < 0.8:
            path.append(self.rng.choice(list(at) if isinstance(at, dict) else range(len(at))))
            at = at[path[-1]]
        if not path:
            return self.bad({})
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = self.bad({})
        return value

    def body(self, schema):
        schema, rng = self.resolve(schema), self.rng
        if rng.random() < 0.06:
            return rng.choice(RAW)
        body = self.object(schema)
        properties = schema.get("properties", {})
        if "model" in body:
            body["model"] = "fake"
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            if properties:
                name = rng.choice(list(properties))
                body[name] = self.bad(properties[name])
        if rng.random() < 0.25 and body:
            body = self.poison(body)
        if isinstance(body, dict):
            # Long answers are no boundary: they only take time.
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                if name in properties and name not in body:
                    body[name] = 2
            if isinstance(body.get("n"), int) and body["n"] > 2:
                body.setdefault("max_tokens", 1)
            if rng.random() < 0.1:
                body[rng.choice(STRINGS)] = copy.deepcopy(rng.choice(OTHERS))
        return json.dumps(body, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")

    def request(self):
        """method, path, headers, body, operation"""
        rng = self.rng
        template, method, op = rng.choice(self.operations if rng.random() < 0.15 else self.with_body)
        path = template
        headers = {"Content-Type": "application/json"}
        for p in op.get("parameters", []):
            value = str(self.bad(p["schema"]) if rng.random() < 0.5 else self.good(p["schema"]))
            value = "".join(c for c in value[:2000] if c.isascii() and c.isalnum() or c in "-_. ")
            if p["in"] == "path":
                path = path.replace("{" + p["name"] + "}", value.replace(" ", "%20") or "x")
            elif p["in"] == "header" and rng.random() < 0.3:
                headers[p["name"]] = value
            elif p["in"] == "query" and rng.random() < 0.5:
                path += ("&" if "?" in path else "?") + p["name"] + "=" + value.replace(" ", "+")
        body = None
        if "requestBody" in op:
            body = self.body(op["requestBody"]["content"]["application/json"]["schema"])
            if rng.random() < 0.02:
                headers["Content-Type"] = rng.choice(["text/plain", "application/xml", ""])
        if rng.random() < 0.02:
            method = rng.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
            op = self.by_path.get(template, {}).get(method.lower(), op)
        return method.upper(), path, headers, body, op


class Boundary(harness.unittest.TestCase):
    options = ("--fake.eos_after", "40", "--model.context", "2048")

    def check(self, case, status, kind, answer, document):
        method, path, _, body, op = case
        what = f"{method} {path} {(body or b'')[:300]!r} -> {status} {answer[:300]!r}"
        self.assertLess(status, 500, what)
        if method.lower() == "head" or "responses" not in op or not answer:
            return
        declared = op["responses"].get(str(status)) or op["responses"].get("default")
        if status == 204 or not kind.startswith("application/json"):
            return
        value = json.loads(answer)
        if status == 405 or method.lower() not in ("get", "post", "patch", "delete", "put"):
            return
        content = declared.get("content", {}).get("application/json")
        self.assertIsNotNone(content, what)
        schema = {**content["schema"], "components": document["components"]}
        try:
            jsonschema.validate(value, schema)
        except jsonschema.ValidationError as error:
            raise AssertionError(f"{what}: {error.message}") from None

    def neighbours(self, server, results, stop):
        """Streams of others, one after another, as long as the requests go on."""
        k = 0
        while not stop.is_set():
            k = k % 8 + 1
            got = server.collect("/v1/completions", {"prompt": f"neighbour {k}", "max_tokens": 40,
                                                     "temperature": 0})
            results.append((k, got.text, got.finish.get(0), got.done))

    def run_requests(self, n, seed):
        with harness.Server(*self.options) as server:
            document = server.get("/openapi.json").json
            quiet = []
            for k in range(1, 9):
                got = server.collect("/v1/completions", {"prompt": f"neighbour {k}",
                                                         "max_tokens": 40, "temperature": 0})
                quiet.append((k, got.text, got.finish.get(0), got.done))
            generator = Generator(document, seed)
            results, stop, failed = [], threading.Event(), []

            def neighbour():
                try:
                    self.neighbours(server, results, stop)
                except Exception as error:  # pylint: disable=broad-except
                    failed.append(error)
            thread = threading.Thread(target=neighbour)
            thread.start()
            memory = []
            try:
                self.send(server, generator, n, document, memory)
            finally:
                stop.set()
                thread.join()
            if failed:
                raise failed[0]
            self.assertGreater(len(results), 8)
            for got in results:
                self.assertEqual(got, quiet[got[0] - 1])
            server.wait_idle()
            if not harness.SANITIZED:
                # The second half adds nothing to what the first has reached (RssAnon, KiB).
                self.assertLess(max(memory[len(memory) // 2:]),
                                max(memory[:len(memory) // 2]) + 16384, memory)

    def send(self, server, generator, n, document, memory):
        with contextlib.ExitStack() as stack:
            connection = server.connect()
            stack.callback(lambda: connection.close())
            for i in range(n):
                case = generator.request()
                method, path, headers, body, _ = case
                try:
                    connection.request(method, path, body, headers)
                    r = connection.getresponse()
                    endless = method == "GET" and "event-stream" in r.headers.get("Content-Type", "")
                    answer = r.read1(65536) if endless else r.read()
                except OSError as error:
                    raise AssertionError(f"{i}: {case[:4]!r}"[:600]) from error
                self.check(case, r.status, r.headers.get("Content-Type", ""), answer, document)
                if endless or r.will_close:
                    connection.close()
                if path == "/v1/background/pause":  # what is of that class would wait for ever
                    self.assertEqual(server.post("/v1/background/resume", {}).status, 200)
                if i % (n // 20) == 0:
                    memory.append(server.rss_anon_kb())

    @harness.limit(300)
    def test_boundary_requests(self):
        self.run_requests(N_SHORT, harness.seed(SEED))

    @harness.long_only
    @harness.limit(1800)
    def test_many_boundary_requests(self):
        self.run_requests(N_LONG, harness.seed(SEED + 1))
