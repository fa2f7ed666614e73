"""The engines that bench/compare.py sets side by side: each function runs one group of cells once
and returns {cell name: tokens/s}. Cells are named "decode 8 @128" and "prefill 512"."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "gamasot"
PEER = CACHE / "peer"
LLAMA = PEER / "build/bin"
OV_PYTHON = PEER / "ov/bin/python"
MODELS = CACHE / "models"


class Model:
    def __init__(self, name, title, file, engines, big=False, also=None):
        self.name, self.title, self.engines, self.big = name, title, engines, big
        self.path = MODELS / file
        self.also = also  # another model whose llama.cpp figures are set beside ours


ALL_MODELS = {m.name: m for m in (
    Model("smollm2", "SmolLM2 135M Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf",
          ["gamasot", "llama.cpp", "OpenVINO", "OpenVINO int4"], also="smollm2-q4_0"),
    Model("smollm2-q4_0", "SmolLM2 135M Q4_0", "smollm2-q4_0.gguf",
          ["gamasot", "llama.cpp", "OpenVINO"]),
    Model("gemma3", "Gemma 3 270M Q4_K_M", "gemma-3-270m-q4_k_m.gguf", ["gamasot", "llama.cpp"]),
    Model("1.5b-q4_0", "1.5B shape Q4_0", "random-1.5b-q4_0.gguf", ["gamasot", "llama.cpp"], True),
    Model("1.5b-q4_k_m", "1.5B shape Q4_K_M", "random-1.5b-q4_k_m.gguf", ["gamasot", "llama.cpp"],
          True),
    Model("1b-q8_0", "1B shape Q8_0", "random-1b-q8_0.gguf", ["gamasot", "llama.cpp"], True),
)}


class Group:
    """Cells that one process measures: decode at one depth, or prefill."""

    def __init__(self, test, counts, depth=0):
        self.test, self.counts, self.depth = test, counts, depth
        self.name = f"{test} {listed(counts)}" + (f" @{depth}" if test == "decode" else "")

    def cell(self, n):
        return f"decode {n} @{self.depth}" if self.test == "decode" else f"prefill {n}"


def run(cmd, timeout=3600):
    """Standard output, or None (said on stderr) when the command failed."""
    p = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=timeout)
    if p.returncode != 0:
        print(f"  failed ({p.returncode}): {' '.join(map(str, cmd))}\n{p.stderr[-500:]}",
              file=sys.stderr)
        return None
    return p.stdout


def json_lines(text):
    return [json.loads(line) for line in (text or "").splitlines() if line.startswith("{")]


def listed(numbers):
    return ",".join(map(str, numbers))


def kv_mb(streams, tokens):
    """Enough pages for that many tokens of the largest model here (32 KB each), and some more."""
    return 256 + streams * (tokens + 64) * 32 // 1024


def ours(model, group, a, steps, extra=()):
    streams = max(group.counts) if group.test == "decode" else 1
    tokens = group.depth + steps if group.test == "decode" else max(group.counts)
    out = run([ROOT / "build/current/gamasot", "bench", "--engine", "--model", model.path,
               "--threads", a.threads, "--kv.memory_mb", kv_mb(streams, tokens),
               "--decode", listed(group.counts) if group.test == "decode" else "",
               "--prefill", listed(group.counts) if group.test == "prefill" else "",
               "--depth", group.depth or 1, "--steps", steps, *extra])
    cells = {}
    for r in json_lines(out):
        if r["test"] == group.test:
            cells[group.cell(r.get("streams", r.get("tokens")))] = r["tok_s"]
        elif r["test"] == "model":
            cells["kv_bytes_per_token"] = r["kv_bytes_per_token"]
    return cells


def llama_decode(model, group, a, steps, counts, fa):
    streams = max(counts)
    # Prompts shared (-pps) but pages not (no -kvu): each stream gets a copy.
    out = run([LLAMA / "llama-batched-bench", "-m", model.path,
               "-c", streams * (group.depth + steps + 64), "-b", 2048, "-ub", 512,
               "-npp", group.depth, "-ntg", steps, "-npl", listed(counts), "-pps",
               "-t", a.threads, "-fa", fa, "--output-format", "jsonl"])
    return {r["pl"]: r["speed_tg"] for r in json_lines(out) if "pl" in r}


def llama_prefill(model, a, counts, fa, ub):
    """The first prompt is not counted: it touches the weights for the first time."""
    out = run([LLAMA / "llama-bench", "-m", model.path, "-t", a.threads, "-n", 0, "-r", 1,
               "--no-warmup", "-p", listed([33, *counts]), "-fa", fa, "-ub", ub, "-o", "jsonl"])
    return {r["n_prompt"]: r["avg_ts"] for r in json_lines(out) if r["n_prompt"] != 33}


def probe_llama(model, group, a):
    """The best setting of each cell: {cell: {"fa": 0 or 1, "ub": N}}. A long prompt of a slow
    model takes over what was best at the longest prompt that could be tried in a minute."""
    best = {}
    if group.test == "decode":
        rates = {fa: llama_decode(model, group, a, 6, group.counts, fa) for fa in (0, 1)}
        for n in group.counts:
            fa = max((0, 1), key=lambda f, n=n: rates[f].get(n, 0))
            best[group.cell(n)] = {"fa": fa}
        return best
    grid = [(fa, ub) for fa in (0, 1) for ub in (128, 512)]
    tried = {}
    for n in sorted(group.counts):
        rate = max((tried[k].get("rate", 0) for k in grid if k in tried), default=0)
        if rate == 0 or n * len(grid) / rate < 60:
            tried = {(fa, ub): {"rate": llama_prefill(model, a, [n], fa, ub).get(n, 0)}
                     for fa, ub in grid}
        fa, ub = max(grid, key=lambda k: tried[k]["rate"])
        best[group.cell(n)] = {"fa": fa, "ub": ub}
    return best


def llama(model, group, a, steps, settings):
    if not (LLAMA / "llama-batched-bench").exists():
        return None
    by_setting = {}
    for n in group.counts:
        s = settings.get(group.cell(n), {"fa": 1, "ub": 512})
        by_setting.setdefault((s["fa"], s.get("ub", 512)), []).append(n)
    cells = {}
    for (fa, ub), counts in by_setting.items():
        if group.test == "decode":
            rates = llama_decode(model, group, a, steps, counts, fa)
        else:
            rates = llama_prefill(model, a, counts, fa, ub)
        cells.update({group.cell(n): rate for n, rate in rates.items()})
    return cells


def openvino(path, group, a, steps):
    if not OV_PYTHON.exists() or not path.exists():
        return None
    decode = group.test == "decode"
    out = run([OV_PYTHON, ROOT / "bench/openvino_bench.py", path, "--threads", a.threads,
               "--decode", listed(group.counts) if decode else "",
               "--prefill", "" if decode else listed(group.counts),
               "--depth", group.depth or 1, "--steps", steps])
    return {group.cell(r["n"]): r["tok_s"] for r in json_lines(out)}


def run_engine(engine, model, group, a, steps, settings):
    """Cells of one engine, or None when the engine is not there."""
    if engine == "gamasot":
        return ours(model, group, a, steps)
    if engine == "llama.cpp":
        return llama(model, group, a, steps, settings)
    if engine == "OpenVINO":
        return openvino(model.path, group, a, steps)
    return openvino(MODELS / "smollm2-openvino-int4", group, a, steps)


def chain(model, a, counts, repeats, barriers):
    """Linear layers alone: (machine, weights, {m: row}); None when the bench is not built."""
    exe = ROOT / "build/current/bench/bench_chain"
    if not exe.exists():
        return None
    rows = json_lines(run([exe, "-t", a.threads, "-r", repeats, "-m", listed(counts),
                           *(["-b"] if barriers else []), model.path]))
    if not rows:
        return None
    return (next(r for r in rows if r["test"] == "machine"),
            next(r for r in rows if r["test"] == "weights"),
            {r["m"]: r for r in rows if r["test"] == "chain"})
