"""A scripted server in OpenAI's dialect that gamasot lends work to: good, slow, dead or hostile."""

import json
import socket
import ssl
import threading
import time

WORDS = "The quick brown fox jumps over the lazy dog and runs away from 안녕 \U0001f600 .".split(" ")


def vector(text):
    """Of length 1, another one for each length of text."""
    x = (len(text) % 100) / 100
    return [round(x, 6), round((1 - x * x) ** 0.5, 6)]


class Remote:
    """modes: what becomes of the next requests for answers, by their last message or `mode`."""

    def __init__(self, models=("big",), owned_by="vllm", mode="good", gap_s=0.0, tls=None, key=None):
        self.models, self.owned_by, self.mode, self.gap_s = list(models), owned_by, mode, gap_s
        self.key = key
        self.says = "broken " + "x" * 1000  # of the mode "error"
        self.seen = []     # (path, headers, body) of requests for answers
        self.probes = 0
        self.closed = 0    # answers whose client went away
        self.answered = [] # bodies that were answered to the end
        self.lock = threading.Lock()
        self.open = set()
        self.context = None
        if tls:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*tls)
        self.port = 0
        self.listen()

    def listen(self):
        self.down = False
        self.socket = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, args=(self.socket,), daemon=True).start()

    @property
    def url(self):
        return f"http{'s' if self.context else ''}://127.0.0.1:{self.port}/v1"

    def accept(self, listener):
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            with self.lock:
                if self.down:
                    c.close()
                    return
                self.open.add(c)
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def kill(self):
        """As the power switch: connections are reset, new ones refused."""
        with self.lock:
            self.down = True
            sockets = list(self.open)
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for c in sockets:
            try:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.down:
            self.kill()

    # ---- one connection

    def serve(self, raw):
        c = raw
        try:
            if self.context:
                c = self.context.wrap_socket(raw, server_side=True)
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.answer(c, *self.read(c))
        except (OSError, ValueError):
            with self.lock:
                self.closed += 1
        finally:
            with self.lock:
                self.open.discard(raw)
            c.close()

    @staticmethod
    def read(c):
        data = b""
        while b"\r\n\r\n" not in data:
            more = c.recv(65536)
            if not more:
                raise ValueError("nothing was asked")
            data += more
        head, body = data.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
        while len(body) < int(headers.get("content-length", 0)):
            body += c.recv(65536)
        return lines[0].split(" ")[1], headers, json.loads(body) if body else None

    def reply(self, c, status, body, kind="application/json", extra=""):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        c.sendall(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{extra}"
                  f"Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def answer(self, c, path, headers, body):
        if self.mode == "hang":
            c.settimeout(60)
            c.recv(1)
            raise OSError("it went away")
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            self.reply(c, 401, {"error": {"message": "no key"}})
        elif path == "/metrics":
            self.reply(c, 200, b"# HELP x\nvllm:num_requests_running{a=\"b\"} 2.0\n"
                               b"vllm:num_requests_waiting 1.0\n", "text/plain")
        elif path == "/v1/models":
            self.probes += 1
            self.reply(c, 200, {"object": "list", "data": [
                {"id": m, "object": "model", "owned_by": self.owned_by} for m in self.models]})
        else:
            with self.lock:
                self.seen.append((path, headers, body))
            self.handle(c, path, body)
            with self.lock:
                self.answered.append(body)

    def handle(self, c, path, body):
        messages = body.get("messages") or [{}]
        hostile = getattr(self, f"hostile_{self.mode.replace('-', '_')}", None)
        if hostile:
            hostile(c)
        elif messages[-1].get("content") == "refuse":
            self.reply(c, 400, {"error": {"message": "I do not like it"}})
        elif path == "/v1/embeddings":
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            self.reply(c, 200, {"object": "list", "model": body["model"], "data": [
                {"object": "embedding", "index": i, "embedding": vector(t)}
                for i, t in enumerate(texts)],
                "usage": {"prompt_tokens": 3 * len(texts), "total_tokens": 3 * len(texts)}})
        else:
            self.generate(c, path, body, messages)

    def generate(self, c, path, body, messages):
        n = body.get("max_tokens") or 12
        words = [w + " " for w in (WORDS * (1 + n // len(WORDS)))[:n]]
        calls = body.get("tools") and messages[-1].get("role") == "user"
        text = path == "/v1/completions"
        finish = "tool_calls" if calls else "length" if body.get("max_tokens") else "stop"
        usage = {"prompt_tokens": 17, "completion_tokens": len(words),
                 "total_tokens": 17 + len(words), "prompt_tokens_details": {"cached_tokens": 5}}
        parts = self.calls(body) if calls else [
            {"text": w} if text else {"delta": {"content": w}} for w in words]
        if body.get("reasoning_effort"):
            parts.insert(0, {"delta": {"reasoning_content": "Let me think."}})
        if not body.get("stream"):
            self.reply(c, 200, self.whole(body, parts, finish, usage, text))
            return
        self.begin(c)
        for p in parts:
            time.sleep(self.gap_s)
            self.event(c, {"model": body["model"], "choices": [
                {"index": 0, "finish_reason": None, **p}]})
        self.event(c, {"choices": [{"index": 0, "finish_reason": finish,
                                    **({"text": ""} if text else {"delta": {}})}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event(c, {"choices": [], "usage": usage})
        c.sendall(b"data: [DONE]\n\n")

    @staticmethod
    def calls(body):
        name = body["tools"][0]["function"]["name"]
        return [{"delta": {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": {
            "name": name, "arguments": ""}}]}},
            {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}},
            {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"Seoul"}'}}]}}]

    @staticmethod
    def whole(body, parts, finish, usage, text):
        if text:
            choice = {"text": "".join(p["text"] for p in parts)}
        else:
            message = {"role": "assistant", "content": None}
            for p in parts:
                d = p["delta"]
                if "content" in d:
                    message["content"] = (message["content"] or "") + d["content"]
                for call in d.get("tool_calls", []):
                    calls = message.setdefault("tool_calls", [])
                    if "name" in call["function"]:
                        calls.append({"id": "x", "type": "function", "function": {
                            "name": call["function"]["name"], "arguments": ""}})
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
            choice = {"message": message}
        return {"id": "r", "model": body["model"], "usage": usage, "choices": [
            {"index": 0, "finish_reason": finish, **choice}]}

    @staticmethod
    def begin(c, kind="text/event-stream; charset=utf-8"):
        c.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())

    @staticmethod
    def event(c, body):
        c.sendall(b"data: " + json.dumps(body).encode() + b"\n\n")

    # ---- what a hostile or broken one does, by `mode`

    def hostile_redirect(self, c):
        self.reply(c, 302, {}, extra=f"Location: {self.elsewhere}\r\n")

    def hostile_error(self, c):
        self.reply(c, 500, {"error": {"message": self.says}})

    def hostile_busy(self, c):
        self.reply(c, 429, {"error": "busy"}, extra="Retry-After: 1\r\n")

    def hostile_html(self, c):
        self.reply(c, 200, b"<html>hello</html>", "text/html")

    def hostile_json(self, c):
        self.reply(c, 200, {"choices": []})

    def hostile_garbage(self, c):
        self.begin(c)
        c.sendall(bytes(range(256)) * 8 + b"\n\ndata: {\"choices\": 3}\n\n")

    def hostile_no_http(self, c):
        c.sendall(b"220 mail.example ESMTP\r\n")

    def hostile_endless_line(self, c):
        self.begin(c)
        while True:
            c.sendall(b"data: " + b"x" * 65536)

    def hostile_endless_head(self, c):
        c.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            c.sendall(b"X-More: " + b"y" * 4096 + b"\r\n")

    def hostile_huge(self, c):
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while True:
            c.sendall(b": comment\n" * 4096)

    def hostile_cut(self, c):
        self.begin(c)
        self.event(c, {"choices": [{"delta": {"content": "Half an "}}]})

    def hostile_error_event(self, c):
        self.begin(c)
        self.event(c, {"choices": [{"delta": {"content": "Half an "}}]})
        self.event(c, {"error": {"message": "out of memory"}})

    def hostile_calls(self, c):
        self.begin(c)
        self.event(c, {"choices": [{"delta": {"tool_calls": [
            {"index": 7, "function": {"name": "f", "arguments": "{}"}}]}}]})

    def hostile_types(self, c):
        self.begin(c)
        self.event(c, {"choices": [{"delta": {"content": {"a": [1]}}}]})

    def hostile_reset(self, c):
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        c.close()
