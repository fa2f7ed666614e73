"""A server with known delays: what a load generator says about it can be checked."""

import http.server
import json
import threading
import time


class Local(http.server.ThreadingHTTPServer):
    """A server of this process, until its `with` block ends."""

    daemon_threads = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class QuietHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass


class Stub(Local):
    """Chat streams of max_tokens tokens: the first after `first_s`, then one every `gap_s`.

    Between stall_from and stall_to (seconds after the first request) it does nothing at all.
    """

    request_queue_size = 256

    def __init__(self, first_s, gap_s, stall=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.first_s, self.gap_s, self.stall = first_s, gap_s, stall
        self.began = None
        self.lock = threading.Lock()
        self.seen = []  # (headers, body)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait(self, seconds):
        """Until so much later, and past a stall that it falls into."""
        end = time.monotonic() + seconds
        if self.stall and self.began:
            begin, stop = (self.began + t for t in self.stall)
            if begin <= end < stop:
                end = stop
        time.sleep(max(0.0, end - time.monotonic()))


class Handler(QuietHandler):
    def answer(self, status, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200, {"data": [{"id": "stub"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.answer(200, {"tokens": [0] * len(body["content"].split())})
            return
        with self.server.lock:
            self.server.seen.append((dict(self.headers), self.path, body))
            if self.server.began is None:
                self.server.began = time.monotonic()
        try:
            if self.path.endswith("/embeddings"):
                self.server.wait(self.server.first_s)
                self.answer(200, {"data": [], "usage": {"prompt_tokens": 12}})
            elif body.get("stream"):
                self.stream(body)
            else:
                self.server.wait(self.server.first_s)
                self.answer(200, {"choices": [{"message": {"content": "one two"}}],
                                  "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
        except (BrokenPipeError, ConnectionResetError):
            pass

    def event(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def stream(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.event(json.dumps({"choices": [{"delta": {"role": "assistant"}}]}))
        for i in range(body["max_tokens"]):
            self.server.wait(self.server.gap_s if i else self.server.first_s)
            self.event(json.dumps({"choices": [{"delta": {"content": f"w{i} "}}]}))
        self.event(json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]}))
        self.event(json.dumps({"choices": [], "usage": {
            "prompt_tokens": 7, "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 3}}}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
