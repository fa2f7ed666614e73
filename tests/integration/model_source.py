"""A place where models come from: files by URL, repositories as Hugging Face has them, a registry
that speaks Ollama's protocol. It can be slow, break off, lie, and send elsewhere."""

import hashlib
import json
import random
import re
import ssl
import struct
import threading
import time

from stub import Local, QuietHandler

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CHUNK = 16384


def _key(name):
    return struct.pack("<Q", len(name)) + name.encode()


def gguf(n_floats=1000, seed=1, **keys):
    """A small GGUF file: one tensor of random bytes; keys are strings or numbers."""
    keys = {"general.architecture": "llama", **keys}
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys))
    for name, value in keys.items():
        if isinstance(value, str):
            data = value.encode()
            head += _key(name) + struct.pack("<IQ", 8, len(data)) + data
        else:
            head += _key(name) + struct.pack("<II", 4, value)
    head += _key(f"t{seed}") + struct.pack("<IQIQ", 1, n_floats, 0, 0)
    head += b"\0" * (-len(head) % 32)
    return head + random.Random(seed).randbytes(n_floats * 4)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Source(Local):
    def __init__(self, tls=None):
        """tls: files of a certificate and its key."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.tls = tls is not None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.files = {}     # path -> bytes
        self.redirects = {}  # path -> URL
        self.digests = {}   # path -> SHA-256 as Hugging Face tells it
        self.types = {}     # path -> Content-Type
        self.bytes_per_s = 0
        self.stop_at = None      # no file is sent beyond this byte
        self.no_etag = False
        self.status = None  # of everything
        self.asked = []     # (method, path, range)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def host(self):
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self):
        return f"http{'s' if self.tls else ''}://{self.host}"

    def options(self, folder, *more_hosts):
        return ["--models.folder", str(folder), "--models.min_free_mb", "0",
                "--models.retry_ms", "1",
                "--models.hosts", ",".join([self.host if self.tls else self.url, *more_hosts]),
                "--models.registry_url", self.url, "--models.hf_url", self.url]

    def publish(self, name, tag, *models, digest=None):
        """A model of the registry; several: it has several files."""
        layers = [{"mediaType": "application/vnd.ollama.image.license", "size": 3,
                   "digest": "sha256:" + sha256(b"MIT")}]
        for data in models:
            d = digest or sha256(data)
            self.files[f"/v2/{name}/blobs/sha256:{d}"] = data
            layers.append({"mediaType": "application/vnd.ollama.image.model", "size": len(data),
                           "digest": "sha256:" + d})
        path = f"/v2/{name}/manifests/{tag}"
        self.files[path] = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST,
                                       "layers": layers}).encode()
        self.types[path] = MANIFEST

    def publish_hf(self, repo, file, data, rev="main", digest=None):
        """Large files are elsewhere, and their first answer says what they are."""
        self.files[f"/cdn/{repo}/{file}"] = data
        path = f"/{repo}/resolve/{rev}/{file}"
        self.redirects[path] = f"/cdn/{repo}/{file}"
        self.digests[path] = digest or sha256(data)

    def handle_error(self, *_):
        """Clients that are killed are no news."""


class Handler(QuietHandler):
    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", headers.get("length", len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        s = self.server
        path = self.path.split("?")[0]
        s.asked.append((self.command, path, self.headers.get("Range")))
        if s.status:
            self.reply(s.status, b"no")
        elif path in s.redirects:
            more = {}
            if path in s.digests:
                more = {"X_Linked_Etag": f'"{s.digests[path]}"'}
            self.reply(302, b"elsewhere", Location=s.redirects[path], **more)
        elif path not in s.files:
            self.reply(404, b"no such file")
        elif s.types.get(path) == MANIFEST and MANIFEST not in self.headers.get("Accept", ""):
            self.reply(406, b"it is a manifest")
        else:
            self.send_file(path, s.files[path])

    def send_file(self, path, data):
        s = self.server
        etag = f'"{sha256(data)[:20]}"'
        begin, total = 0, len(data)
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        if wanted and (condition is None or condition == etag):
            begin = int(wanted[1])
            if begin >= total:
                self.reply(416, Content_Range=f"bytes */{total}")
                return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Type", s.types.get(path, "application/octet-stream"))
        self.send_header("Content-Length", str(total - begin))
        if not s.no_etag:
            self.send_header("ETag", etag)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = total if s.stop_at is None else min(total, s.stop_at)
        try:
            while begin < end:
                n = min(CHUNK, end - begin)
                self.wfile.write(data[begin:begin + n])
                begin += n
                if s.bytes_per_s:
                    time.sleep(n / s.bytes_per_s)
        except OSError:
            pass
        self.close_connection = begin < total
