"""What the programs of a household send, in the form in which they send it (written down from their
sources and logs), and what they read in the answers."""

import json

import harness
from scripted import ScriptedServer

TURN_ON = {"name": "kitchen light", "domain": ["light"]}
HASS_RESULT = json.dumps({"speech": {}, "response_type": "action_done",
                          "data": {"success": [{"name": "Kitchen Light", "type": "entity"}]}})
TITLE = '{ "title": "🌧️ Rainy Days" }'
TAGS = '{ "tags": ["Weather", "General"] }'
FOLLOW_UPS = '{ "follow_ups": ["Will it stop?", "Do I need a coat?"] }'
STORY = "Rain falls because clouds are heavy. " * 40


def lines(response):
    return [json.loads(line) for line in response.text.splitlines()]


class HomeAssistant(ScriptedServer):
    """Its Ollama integration: always streams, one request for each round of tools."""

    rules = [["turn on the kitchen light",
              '<tool_call>{"name": "HassTurnOn", "arguments": ' + json.dumps(TURN_ON)
              + "}</tool_call>"],
             ["dim it and tell me the time",
              '<tool_call>{"name": "HassLightSet", "arguments": {"brightness": 20}}</tool_call>'
              '<tool_call>{"name": "HassGetTime", "arguments": {}}</tool_call>'],
             [HASS_RESULT, "Turned on the light."]]
    TOOLS = [{"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": properties, "required": []}}} for name, about, properties in (
            ("HassTurnOn", "Turns on a device", {
                "name": {"type": "string"}, "area": {"type": "string"},
                "domain": {"type": "array", "items": {"type": "string"}}}),
            ("HassLightSet", "Sets the brightness of a light", {
                "brightness": {"type": "integer", "minimum": 0, "maximum": 100}}),
            ("HassGetTime", "The time", {}))]

    def turn(self, messages):
        """One request; the reply put together as the integration does it."""
        r = self.server.post("/api/chat", {
            "model": "fake:latest", "messages": messages, "tools": self.TOOLS, "stream": True,
            "think": False, "options": {"num_ctx": 8192}, "keep_alive": "-1s"},
            headers={"User-Agent": "ollama-python/0.5.1 (x86_64 linux) Python/3.13",
                     "Accept": "application/json"})
        self.assertEqual(r.status, 200, r.body)
        content, calls, parts = "", [], lines(r)
        for part in parts:
            self.assertEqual(part["message"]["role"], "assistant")
            content += part["message"]["content"]
            calls += part["message"].get("tool_calls", [])
        self.assertEqual([p["done"] for p in parts], [False] * (len(parts) - 1) + [True])
        return content, calls

    def test_tool_loop(self):
        messages = [{"role": "system", "content": "You are a voice assistant. An overview of the "
                                                  "areas and the devices: ..."},
                    {"role": "user", "content": "turn on the kitchen light"}]
        for _ in range(10):
            content, calls = self.turn(messages)
            messages.append({"role": "assistant", "content": content, "tool_calls": [
                {"function": {"name": c["function"]["name"],
                              "arguments": c["function"]["arguments"]}} for c in calls]})
            if not calls:
                break
            messages += [{"role": "tool", "content": HASS_RESULT} for _ in calls]
        self.assertEqual([c["function"]["arguments"] for c in messages[2]["tool_calls"]], [TURN_ON])
        self.assertEqual([m["role"] for m in messages],
                         ["system", "user", "assistant", "tool", "assistant"])
        self.assertEqual(content, "Turned on the light.")

    def test_several_calls(self):
        _, calls = self.turn([{"role": "user", "content": "dim it and tell me the time"}])
        self.assertEqual([(c["function"]["name"], c["function"]["arguments"]) for c in calls],
                         [("HassLightSet", {"brightness": 20}), ("HassGetTime", {})])

    def test_set_up(self):
        self.assertEqual(self.server.get("/api/tags").json["models"][0]["model"], "fake:latest")

    def test_long_histories_fit_their_cap(self):
        history = [{"role": "system", "content": "S" * 6000}]
        for i in range(20):
            history += [{"role": "user", "content": f"{i} " + "u" * 200},
                        {"role": "assistant", "content": "a" * 200}]
        content, _ = self.turn(history + [{"role": "user", "content": "turn on the kitchen light"}])
        self.assertEqual(content, "")


class OpenWebUi(ScriptedServer):
    """A chat through its Ollama side, then the tasks that it derives from each chat."""

    rules = [["Why does it rain?", STORY],
             ["### Task:\nGenerate a concise, 3-5 word title", TITLE],
             ["### Task:\nGenerate 1-3 broad tags", TAGS],
             ["### Task:\nSuggest 3-5 relevant follow-up questions", FOLLOW_UPS]]
    TASKS = [
        ("title_generation", "Generate a concise, 3-5 word title with an emoji summarizing the chat "
         "history.\n### Output:\nJSON format: { \"title\": \"your concise title here\" }", TITLE),
        ("tags_generation", "Generate 1-3 broad tags categorizing the main themes of the chat "
         "history.\n### Output:\nJSON format: { \"tags\": [\"tag1\", \"tag2\"] }", TAGS),
        ("follow_up_generation", "Suggest 3-5 relevant follow-up questions or prompts that the user "
         "might naturally ask next.\n### Output:\nJSON format: { \"follow_ups\": [\"Question 1?\"] }",
         FOLLOW_UPS)]

    def test_what_it_looks_at_first(self):
        self.assertEqual(self.server.get("/").text, "Ollama is running")
        version = self.server.get("/api/version").json["version"]
        self.assertGreaterEqual([int(x) for x in version.split(".")], [0, 6, 4])
        model = self.server.get("/api/tags").json["models"][0]
        for key in ("name", "model", "modified_at", "size", "digest", "details"):
            self.assertIn(key, model)
        self.assertIn("expires_at", self.server.get("/api/ps").json["models"][0])

    def test_chat(self):
        r = self.server.post("/api/chat", {
            "model": "fake:latest", "stream": True, "keep_alive": "5m",
            "messages": [{"role": "user", "content": "Why does it rain?"}],
            "options": {"temperature": 0.8, "num_predict": 4000}},
            headers={"X-OpenWebUI-User-Name": "Mina", "X-OpenWebUI-User-Id": "u-1"})
        self.assertEqual(r.headers["X-Gamasot-Class"], "chat")
        parts = lines(r)
        self.assertEqual("".join(p["message"]["content"] for p in parts), STORY)
        last = parts[-1]  # which it shows as tokens per second
        self.assertGreater(last["eval_duration"], 0)
        self.assertGreater(last["prompt_eval_duration"], 0)
        self.assertEqual(last["eval_count"], len(STORY.encode()) + 1)

    def test_tasks_are_utility_work_on_both_sides(self):
        history = "\n### Chat History:\n<chat_history>\nUSER: rain?\nASSISTANT: yes.\n</chat_history>"
        for task, words, answer in self.TASKS:
            message = {"role": "user", "content": f"### Task:\n{words}{history}"}
            r = self.server.post("/v1/chat/completions", {
                "model": "fake", "messages": [message], "stream": False,
                "max_completion_tokens": 1000, "metadata": {"task": task, "chat_id": "c"}})
            self.assertEqual(r.headers["X-Gamasot-Class"], "utility")
            self.assertEqual(r.json["choices"][0]["message"]["content"], answer)
            r = self.server.post("/api/chat", {"model": "fake:latest", "messages": [message],
                                               "stream": False, "options": {"num_predict": 1000}})
            self.assertEqual(r.headers["X-Gamasot-Class"], "utility")
            self.assertEqual(json.loads(r.json["message"]["content"]), json.loads(answer))


class Continue(ScriptedServer):
    """Autocompletion: looks the model up, then asks at every pause of typing and hangs up soon."""

    rules = [["def add(a, b):\n", "    return a + b\n" * 600]]

    def body(self, n=4096, **more):
        return {"model": "fake", "keep_alive": 1800, "stream": True, "options": {
            "temperature": 0.01, "num_predict": n, "num_ctx": 4096, "mirostat": None,
            "num_thread": None, "stop": ["<|endoftext|>", "/src/", "\n\n\n"]}, **more}

    def test_set_up(self):
        r = self.server.post("/api/show", {"name": "fake"}).json
        self.assertIn(".Suffix", r["template"])
        self.assertTrue(all(" " in line for line in r["parameters"].split("\n")))

    def test_a_completion(self):
        for more in ({"prompt": "def add(a, b):\n", "suffix": "\nprint(add(1, 2))", "raw": False},
                     {"prompt": "<|fim_prefix|>def add(a, b):\n<|fim_suffix|><|fim_middle|>",
                      "raw": True}):
            r = self.server.post("/api/generate", self.body(60, **more))
            self.assertEqual(r.status, 200)
            text = "".join(p["response"] for p in lines(r))
            self.assertTrue(text.startswith("    return a + b\n"), text[:60])

    def test_aborts(self):
        for i in range(20):
            c = self.server.connect()
            c.request("POST", "/api/generate", json.dumps(self.body(
                prompt=f"# {i}\n" * 300 + "def add(a, b):\n", suffix="\n", raw=False)),
                self.server.headers())
            if i % 2:
                c.getresponse().read1(1)  # some already show something
            c.close()
        self.server.wait_idle()


class Frigate(ScriptedServer):
    """Descriptions of camera events, without streaming. No model here takes pictures."""

    rules = [["Summarize the activity", "A person walked by."]]

    def test_all_of_it(self):
        self.assertEqual(self.server.get("/api/tags").json["models"][0]["model"], "fake:latest")
        self.assertEqual(self.server.post("/api/show", {"model": "fake"}).status, 200)
        body = {"model": "fake", "prompt": "Describe the person.", "stream": False,
                "images": ["/9j/4AAQSkZJRg=="], "keep_alive": "1h", "options": {}}
        r = self.server.post("/api/generate", body)
        self.assertEqual(r.status, 400)
        self.assertIn("'fake' takes no images", r.json["error"])
        r = self.server.post("/api/generate", {**body, "images": [], "format": "",
                                               "prompt": "Summarize the activity: 3 persons"})
        self.assertEqual(r.json["response"], "A person walked by.")
        self.assertTrue(r.json["done"])
        r = self.server.post("/api/chat", {"model": "fake", "stream": False, "tools": None,
                                           "messages": [{"role": "user",
                                                         "content": "Summarize the activity"}]})
        self.assertEqual(r.json["message"]["content"], "A person walked by.")


class Others(ScriptedServer):
    rules = [["Translate", "Regen"], ["invoice", "It is paid."]]

    def test_n8n(self):
        # LangChain for JavaScript, as its nodes use it: every option is sent.
        r = self.server.post("/v1/chat/completions", {
            "model": "fake", "temperature": 0.7, "top_p": 1, "frequency_penalty": 0,
            "presence_penalty": 0, "n": 1, "stream": False, "max_tokens": None, "logit_bias": None,
            "messages": [{"role": "user", "content": "Is the invoice paid?"}]}).json
        self.assertEqual(r["choices"][0]["message"]["content"], "It is paid.")
        self.assertEqual(r["choices"][0]["finish_reason"], "stop")
        r = self.server.post("/api/chat", {
            "model": "fake", "keep_alive": "5m", "stream": True, "format": None,
            "options": {"temperature": 0.7, "top_k": -1, "top_p": 1, "num_ctx": 2048,
                        "num_predict": -1, "repeat_penalty": 1, "use_mmap": True, "num_gpu": -1,
                        "stop": None, "penalize_newline": True},
            "messages": [{"role": "user", "content": "Is the invoice paid?"}]})
        self.assertEqual("".join(p["message"]["content"] for p in lines(r)), "It is paid.")

    def test_nextcloud(self):
        body = {"model": "fake", "max_tokens": 1000, "n": 1}
        headers = {"User-Agent": "Nextcloud OpenAI/LocalAI integration"}
        r = self.server.post("/v1/chat/completions", {**body, "messages": [
            {"role": "user", "content": "Translate: rain"}]}, headers=headers).json
        self.assertEqual(r["choices"][0]["message"]["content"], "Regen")
        self.assertEqual(r["usage"]["total_tokens"],
                         r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"])
        r = self.server.post("/v1/completions", {**body, "user": "mina", "prompt": "Translate"},
                             headers=headers).json
        self.assertEqual(r["choices"][0]["text"], "Regen")

    def test_karakeep_without_a_schema(self):
        r = self.server.post("/api/chat", {
            "model": "fake", "stream": True, "keep_alive": "5m",
            "options": {"num_ctx": 2048, "num_predict": 2048},
            "messages": [{"role": "user", "content": "Is the invoice paid?", "images": None}]})
        self.assertEqual("".join(p["message"]["content"] for p in lines(r)), "It is paid.")

    def test_librechat(self):
        # The title is asked for while the first answer still runs.
        def ask(stream):
            body = {"model": "fake", "user": "64f0c2aa", "stream": stream,
                    "messages": [{"role": "user", "content": "Is the invoice paid?"}]}
            if stream:
                return self.server.collect("/v1/chat/completions", body).text
            return self.server.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        self.assertEqual(harness.in_parallel(2, [lambda: ask(True), lambda: ask(False)]),
                         ["It is paid."] * 2)


class Documents(ScriptedServer):
    """Those that want a document by a schema."""

    CLASSIFIER = {"type": "object", "required": ["title", "tags", "correspondents"], "properties": {
        "title": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
        "correspondents": {"type": "array", "items": {"type": "string"}}}}
    FOUND = {"title": "Invoice 7", "tags": ["invoice"], "correspondents": ["ACME"]}
    TAGS = {"type": "object", "required": ["tags"], "properties": {
        "tags": {"type": "array", "items": {"type": "string"}}}}
    rules = [["Analyze the following document", json.dumps(FOUND)],
             ["read-it-later app", '{"tags": ["rain", "science"]}'],
             ["fill the classifier",
              '<tool_call>{"name": "DocumentClassifierSchema", "arguments": ' + json.dumps(FOUND)
              + "}</tool_call>"],
             ["Generate a sensor name", '{"name": "Rain", "unit": "mm"}']]

    def test_paperless_ngx_ollama(self):
        r = self.server.post("/api/chat", {
            "model": "fake", "stream": False, "keep_alive": None, "format": self.CLASSIFIER,
            "options": {"temperature": 0.75, "num_ctx": 3900},
            "messages": [{"role": "user", "content": "Analyze the following document: ..."}]}).json
        self.assertEqual(json.loads(r["message"]["content"]), self.FOUND)

    def test_paperless_ngx_openai(self):
        tool = {"type": "function", "function": {
            "name": "DocumentClassifierSchema", "description": "The result.",
            "parameters": self.CLASSIFIER}}
        for choice in ("required", {"type": "function", "function": {
                "name": "DocumentClassifierSchema"}}):
            r = self.server.ok("/v1/chat/completions", {
                "model": "fake", "stream": False, "temperature": 0.1, "tools": [tool],
                "tool_choice": choice, "parallel_tool_calls": False,
                "messages": [{"role": "user", "content": "fill the classifier"}]})
            call = r["choices"][0]["message"]["tool_calls"][0]["function"]
            self.assertEqual(call["name"], "DocumentClassifierSchema")
            self.assertEqual(set(self.FOUND) - set(json.loads(call["arguments"])), set())

    def test_karakeep(self):
        text = "You are a bot in a read-it-later app"
        for form in (self.TAGS, "json"):
            r = self.server.post("/api/chat", {
                "model": "fake", "format": form, "stream": True, "keep_alive": "5m",
                "options": {"num_ctx": 2048, "num_predict": 2048},
                "messages": [{"role": "user", "content": text}]})
            got = "".join(p["message"]["content"] for p in lines(r))
            self.assertEqual(json.loads(got), {"tags": ["rain", "science"]})
        for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {
                "name": "schema", "schema": self.TAGS, "strict": True}}):
            r = self.server.ok("/v1/chat/completions", {
                "model": "fake", "response_format": form, "max_tokens": 2048,
                "messages": [{"role": "user", "content": text}]})
            self.assertEqual(json.loads(r["choices"][0]["message"]["content"]),
                             {"tags": ["rain", "science"]})

    def test_home_assistants_ai_task(self):
        r = self.server.post("/api/chat", {
            "model": "fake:latest", "stream": True, "keep_alive": "-1s", "think": False,
            "options": {"num_ctx": 8192}, "format": {
                "type": "object", "required": ["name", "unit"],
                "properties": {"name": {"type": "string"}, "unit": {"type": "string"}}},
            "messages": [{"role": "user", "content": "Generate a sensor name"}]})
        self.assertEqual(json.loads("".join(p["message"]["content"] for p in lines(r))),
                         {"name": "Rain", "unit": "mm"})
