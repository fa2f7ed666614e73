"""What the benches of a household's load share: servers, runs that are kept, and one lock."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
GAMASOT = ROOT / "build/current/gamasot"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "gamasot"
LLAMA = CACHE / "peer/build/bin/llama-server"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 8192

# A minute or less of each: lengths are an eighth or a fifth, time runs faster, more people come than
# in one home, so that each class has requests enough. speed is the multiplier of load 1. What embeds
# is the chat's model: the simulated machine has one.
SCENARIOS = {
    "evening_peak": {"speed": 30, "args": ["--scale", "6", "--tokens-scale", "0.125", "--duration",
                                           "1400", "--no-embeddings"]},
    "voice_over_document": {"speed": 6, "args": ["--scale", "3", "--tokens-scale", "0.2",
                                                 "--duration", "300"]},
    "index_the_photos": {"speed": 12, "args": ["--scale", "6", "--tokens-scale", "0.125",
                                               "--duration", "500"],
                         "server": ["--model.pooling", "mean"]},
}


def model_path():
    for folder in (CACHE / "models", pathlib.Path(os.environ.get("GAMASOT_MODELS", "/nowhere"))):
        if (folder / MODEL).exists():
            return folder / MODEL
    return pathlib.Path(subprocess.run(["python3", ROOT / "scripts/fetch-model", "smollm2"],
                                       check=True, capture_output=True, text=True).stdout.strip())


@contextlib.contextmanager
def quiet_machine():
    """Nobody else measures meanwhile."""
    with open(pathlib.Path(tempfile.gettempdir()) / "gamasot-bench.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def command(*args, env=None, timeout=3600):
    done = subprocess.run([str(GAMASOT), *map(str, args)], capture_output=True, text=True,
                          timeout=timeout, env=env)
    if done.returncode != 0:
        raise SystemExit(f"gamasot {' '.join(map(str, args))}: {done.stderr.strip()}")
    return done.stdout


class Results:
    """One JSON object a line, under a key each: a bench that was stopped goes on where it was. most:
    after so many seconds no further run is begun (status 75), for machines that others want too."""

    def __init__(self, path, most=None):
        self.end = time.monotonic() + most if most else float("inf")
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.of = {r["key"]: r for r in map(json.loads, lines)}

    def once(self, key, make):
        if key not in self.of:
            if time.monotonic() > self.end:
                raise SystemExit(75)
            print(f"... {key}", flush=True)
            result = make()
            self.of[key] = {"key": key, **result}
            with self.path.open("a") as file:
                file.write(json.dumps(self.of[key]) + "\n")
        return self.of[key]


class Server:
    """gamasot or llama-server on a free port, ended with the block; on one core, if that is given."""

    def __init__(self, folder, engine="gamasot", options=(), core=None):
        self.folder, self.engine, self.options = pathlib.Path(folder), engine, options
        self.prefix = [] if core is None else ["taskset", "-c", core]

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        env = os.environ | {"XDG_STATE_HOME": str(self.folder / "state"),
                            "GAMASOT_SERVER_KEYS_FILE": str(self.folder / "no-keys.json")}
        if self.engine == "gamasot":
            args = [GAMASOT, "serve", "--port", "0", "--model", model_path(), "--model.context",
                    CONTEXT, *self.options]
        else:
            args = [LLAMA, "-m", model_path(), "--port", "18999", "-t", os.cpu_count(),
                    "--no-webui", *self.options]
        self.process = subprocess.Popen(list(map(str, self.prefix + args)), stdout=self.log,
                                        stderr=subprocess.STDOUT, env=env)
        end = time.monotonic() + 300
        while time.monotonic() < end and not self.ready():
            if self.process.poll() is not None:
                raise SystemExit(f"{self.engine} ended: {self.text()[-2000:]}")
            time.sleep(0.1)
        return self

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def ready(self):
        found = re.search(r"listening on http://\S*?:(\d+)\s", self.text())
        if self.engine == "gamasot" and not found:
            return False
        self.port = int(found.group(1)) if self.engine == "gamasot" else 18999
        path = "/ready" if self.engine == "gamasot" else "/health"
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}").status == 200
        except OSError:
            return False

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def make_trace(folder, name, *more, seed=1):
    path = pathlib.Path(folder) / f"{name}-{seed}{''.join(map(str, more))}.jsonl"
    if not path.exists():
        command("trace", "generate", name, *SCENARIOS[name]["args"], "--context",
                int(CONTEXT * 0.9), "--seed", seed, "--out", path, *more)
    return path


def play(folder, url, trace, speed, limit_s=120, tell=True, more=()):
    """The result of gamasot bench, as JSON."""
    out = pathlib.Path(folder) / "play.json"
    tell = ["--class-header", "X-Gamasot-Class", "--user"] if tell else []
    command("bench", "--url", url, "--trace", trace, "--speed", speed, "--ignore-eos", "--quiet",
            "--time-limit", limit_s, "--out", out, *tell, *more)
    return json.loads(out.read_text())


def add_options(parser, folder):
    parser.add_argument("--dir", default=ROOT / "build" / folder)
    parser.add_argument("--most", type=float, help="seconds after which no further run is begun")


def all_hold(result):
    """Every interactive class there was met its targets, 95 of 100."""
    for name, group in result["summary"]["classes"].items():
        if name != "background" and group["slo_judged"] and group["slo_met"] < 0.95:
            return False
    return result["not_started"] == 0
