"""Turns the samples of bench/compare.py into the tables of docs/performance.md."""
import platform
import random
import re
import statistics

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"

# Goals: (cells, {column: ratio}).
BIG = ("1.5b-q4_0", "1.5b-q4_k_m", "1b-q8_0")
GOALS = {
    "decode 1 @128": (3, 3, 2.5, 1.8),
    "decode 2 @128": (5, 4, 2.5, 2.5),
    "decode 4 @128": (6, 4.5, 2.5, 2.2),
    "decode 8 @128": (7, 5, 2, 3.5),
    "decode 16 @128": (8, 5.5, 2, 3.2),
    "decode 32 @128": (8, 5.5, 2, 3.2),
    "prefill 512": (6, 2.3, 1.1, 2.8),
    "prefill 2048": (6, 2.3, 1.4, 2.8),
}
OV = ("OpenVINO", "OpenVINO int4")


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def order(cell):
    test, n, *depth = cell.split()
    return (test != "decode", [int(d.lstrip("@")) for d in depth], int(n))


def medians(state, name):
    cells = state["models"].get(name, {}).get("cells", {})
    return {c: {e: statistics.median(v) for e, v in row.items()} for c, row in cells.items()}


def median_of(rows, key):
    values = [r[key] for r in rows if key in r]
    return statistics.median(values) if values else None


def label(cell):
    test, n, *depth = cell.split()
    if test == "prefill":
        return f"prefill {n}"
    return f"{n} stream{'' if n == '1' else 's'}" + (f", {depth[0]}" if depth != ["@128"] else "")


# ---- Shares of what the machine can do -----------------------------------------------------------

def shares(m, cell, rate):
    """(share of the read bandwidth or of the int8 peak, share of the linear-layer bound)."""
    gbs, gops = median_of(m["machine"], "read_gbs"), median_of(m["machine"], "int8_gops")
    if not gbs or "weights" not in m:
        return None, None
    test, n, *depth = cell.split()
    n = int(n)
    chain = median_of(m["chain"].get(str(n), []), "chain_ms")
    if test == "prefill":
        seconds = n / rate
        top = 2e-9 * m["weights"]["layer_params"] * n / seconds / gops
    else:
        seconds = n / rate
        tokens = n * (int(depth[0][1:]) + m["steps"] / 2)
        top = 1e-9 * (m["weights"]["weight_bytes"] + tokens * m["kv_bytes_per_token"]) / seconds / gbs
    return top, chain / 1e3 / seconds if chain else None


def percent(x):
    return "-" if x is None else f"{100 * x:.0f} %"


def ratio(row, other):
    return row["gamasot"] / other if other and "gamasot" in row else None


def figures(x):
    return "-" if x is None else f"{x:.2f}"


def rate(x):
    return "-" if x is None else f"{x:.0f}" if x >= 20 else f"{x:.1f}"


def model_table(state, name):
    m, table = state["models"][name], medians(state, name)
    peers = [e for e in ("llama.cpp", *OV) if any(e in r for r in table.values())]
    lines = [f"**{m['title']}**, tokens/s", "",
             "| | gamasot | " + "".join(f"{p} | ratio | " for p in peers) +
             "of the ceiling | of the linear layers' bound |",
             "|---|---|" + "---|---|" * len(peers) + "---|---|"]
    for cell in sorted(table, key=order):
        row = table[cell]
        mine = row.get("gamasot")
        parts = [label(cell), rate(mine)]
        for p in peers:
            parts += [rate(row.get(p)), figures(ratio(row, row.get(p)))]
        parts += map(percent, shares(m, cell, mine) if mine else (None, None))
        lines.append("| " + " | ".join(parts) + " |")
    return "\n".join(lines) + "\n"


# ---- Goals ---------------------------------------------------------------------------------------

def goal_rows(state):
    """Per cell: [(column, ratio or None, goal)]."""
    q4_1, q4_0 = medians(state, "smollm2"), medians(state, "smollm2-q4_0")
    for cell, (g1, g0, gov, gbig) in GOALS.items():
        row, row0 = q4_1.get(cell, {}), q4_0.get(cell, {})
        ov = max((row[e] for e in OV if e in row), default=None)
        out = [("SmolLM2 / llama.cpp Q4_1", ratio(row, row.get("llama.cpp")), g1),
               ("SmolLM2 / llama.cpp Q4_0", ratio(row, row0.get("llama.cpp")), g0),
               ("SmolLM2 Q4_0 / llama.cpp Q4_0", ratio(row0, row0.get("llama.cpp")), g0),
               ("SmolLM2 / better OpenVINO", ratio(row, ov), gov)]
        for name in BIG:
            big = medians(state, name).get(cell, {})
            title = state["models"].get(name, {}).get("title", name)
            out.append((title + " / llama.cpp", ratio(big, big.get("llama.cpp")), gbig))
        yield cell, out


def goals(state):
    rows = [(cell, out) for cell, out in goal_rows(state) if any(r for _, r, _ in out)]
    if not rows:
        return ""
    columns = [c for c, _, _ in rows[0][1]]
    lines = ["Ratios and, in brackets, their goals (**bold**: not reached):", "",
             "| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for cell, out in rows:
        parts = []
        for _, r, goal in out:
            text = f"{figures(r)} ({goal:g})"
            parts.append("-" if r is None else text if r >= goal else f"**{text}**")
        lines.append(f"| {label(cell)} | " + " | ".join(parts) + " |")
    return "\n".join(lines) + "\n"


def ceilings(state):
    """What is owed of the machine's own limits."""
    lines = []
    for name, m in state["models"].items():
        if not m["machine"] or "weights" not in m:
            continue
        gbs, gops = median_of(m["machine"], "read_gbs"), median_of(m["machine"], "int8_gops")
        parts = [m["title"], f"{gbs:.0f}", f"{gops:.0f}"]
        one = m["chain"].get("1")
        linear = m["weights"]["weight_bytes"] / median_of(one, "gemm_ms") / 1e6 / gbs if one else None
        table = medians(state, name)
        mine = table.get("decode 1 @128", {}).get("gamasot")
        parts += [percent(linear), percent(shares(m, "decode 1 @128", mine)[0] if mine else None)]
        long = m["chain"].get("512")
        linear = (2e-6 * m["weights"]["layer_params"] * 512 / median_of(long, "gemm_ms") / gops
                  if long else None)
        mine = table.get("prefill 512", {}).get("gamasot")
        parts += [percent(linear), percent(shares(m, "prefill 512", mine)[0] if mine else None)]
        bounds = [(shares(m, c, r["gamasot"])[1], c) for c, r in table.items()
                  if c.startswith("decode") and c.endswith("@128") and "gamasot" in r]
        worst = min(((b, c) for b, c in bounds if b is not None), default=None)
        parts.append(f"{worst[0]:.2f} ({label(worst[1])})" if worst else "-")
        sixteen = m["chain"].get("16")
        theirs = table.get("decode 1 @128", {}).get("llama.cpp")
        most = gbs * 1e9 / m["weights"]["weight_bytes"] / theirs if theirs else None
        parts.append(f"{median_of(sixteen, 'gemm_b_ms') / median_of(sixteen, 'gemm_ms'):.2f}, "
                     f"{median_of(sixteen, 'chain_ms') / median_of(sixteen, 'work_ms'):.2f}"
                     if sixteen and "work_ms" in sixteen[0] else "-")
        parts.append(figures(most))
        lines.append("| " + " | ".join(parts) + " |")
    if not lines:
        return ""
    return "\n".join([
        "Ceilings, measured between the other runs, and what is reached of them: reads at one stream, "
        "int8 operations in a prompt of 512 tokens (the linear layers' products alone, the whole "
        "step); the smallest share of the linear layers' bound (products, norms, quantisation, "
        "barriers) in decode; what barriers do to 16 rows (products alone; with norms and quantisation); "
        "and how far ahead of llama.cpp an engine could be at one stream that reads its weights at "
        "this speed and does nothing else.", "",
        "| | read GB/s | int8 GOP/s | read, linear | read, step | int8, linear | int8, step | "
        "bound / step | with / without barriers | ahead at most |",
        "|---|---|---|---|---|---|---|---|---|---|", *lines]) + "\n"


def markdown(state):
    rounds = max((len(v) for m in state["models"].values() for r in m["cells"].values()
                  for v in r.values()), default=0)
    text = (f"{state['cpu']}, {state['threads']} threads, medians of up to {rounds} interleaved rounds;"
            " decode rates are sums over all streams, each with a context of 128 tokens unless the"
            " row says otherwise.\n\n")
    parts = [goals(state), ceilings(state)]
    parts += [model_table(state, name) for name in state["models"] if state["models"][name]["cells"]]
    if state.get("disturbed"):
        parts.append(f"{state['disturbed']} of {len(state['done'])} pieces of this run were disturbed "
                     "by other programs three times over.\n")
    if state["left_out"]:
        parts.append("Left out because they were not there: " + ", ".join(state["left_out"]) + ".\n")
    return text + "\n".join(p for p in parts if p)


def write_docs(path, text):
    old = path.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{path} has no {BEGIN} ... {END}")
    new = re.sub(re.escape(BEGIN) + ".*" + re.escape(END),
                 lambda _: f"{BEGIN}\n{text}{END}", old, flags=re.S)
    path.write_text(new, encoding="utf-8")


# ---- Smoothness ----------------------------------------------------------------------------------

def smoothness(title, times, limit=1.03, draws=2000):
    """
    No number of streams may cost more than `limit` times what a larger number costs. For each, the
    larger number that is cheapest beside it, and the bootstrap interval (rounds drawn with
    replacement, the same ones for both) of the ratio of medians. A miss is a whole interval beyond.
    """
    rng = random.Random(7)
    counts = sorted(times)
    middle = {n: statistics.median(times[n]) for n in counts}
    lines = [f"{title}: step time in ms at 1 to {counts[-1]} streams, {len(times[counts[0]])} rounds:",
             "  " + " ".join(f"{n}:{middle[n]:.2f}" for n in counts)]
    missed = 0
    for i, n in enumerate(counts[:-1]):
        other = min(counts[i + 1:], key=lambda m: middle[m])
        if middle[n] / middle[other] <= limit:
            continue
        pairs = list(zip(times[n], times[other]))
        drawn = []
        for _ in range(draws):
            sample = rng.choices(pairs, k=len(pairs))
            drawn.append(statistics.median(p[0] for p in sample) /
                         statistics.median(p[1] for p in sample))
        drawn.sort()
        low, high = drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]
        beyond = low > limit
        missed += beyond
        lines.append(f"  {n} streams cost {middle[n] / middle[other]:.3f} x {other} streams "
                     f"(95 %: {low:.3f} .. {high:.3f}){': MISSED' if beyond else ''}")
    lines.append(f"  {missed} numbers of streams miss the limit of {limit}")
    return "\n".join(lines)
