#!/usr/bin/env python3
"""Draws aggregate decode rate over the number of streams as an SVG from a table of compare.py.

    bench/plot-batching.py docs/performance.md "SmolLM2 135M Q4_1" > docs/img/batching.svg
"""
import math
import sys

COLOURS = ["#c2410c", "#64748b", "#2563eb"]


def read_table(path, title):
    """Engines in column order and {engine: [(streams, rate)]} of the table under **title**."""
    engines, rates, inside = [], {}, False
    for line in open(path, encoding="utf-8"):
        if line.startswith("**"):
            inside = line.startswith(f"**{title}**")
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if not inside or len(cells) < 2:
            continue
        if "gamasot" in cells:
            engines = cells
        elif "stream" in cells[0]:
            for name, cell in zip(engines[1:], cells[1:]):
                if name != "ratio" and cell not in ("", "-"):
                    rates.setdefault(name, []).append((int(cells[0].split()[0]), float(cell)))
    return rates


def main():
    rates = read_table(sys.argv[1], sys.argv[2])
    if not rates:
        raise SystemExit(f"no table **{sys.argv[2]}** in {sys.argv[1]}")
    w, h, left, right, top, bottom = 720, 400, 64, 130, 48, 48
    xs = sorted({n for series in rates.values() for n, _ in series})
    ymax = max(v for series in rates.values() for _, v in series) * 1.1
    step = 10 ** math.floor(math.log10(ymax)) / (2 if ymax < 4 * 10 ** math.floor(math.log10(ymax)) else 1)

    def px(n):
        return left + (w - left - right) * math.log2(n / xs[0]) / math.log2(xs[-1] / xs[0])

    def py(v):
        return h - bottom - (h - top - bottom) * v / ymax

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" '
           f'font-size="13"><rect width="{w}" height="{h}" fill="#fff"/>',
           f'<text x="{left}" y="24" font-size="16" font-weight="bold">Everybody\'s tokens per second, '
           f'{sys.argv[2]}, one CPU</text>']
    v = 0.0
    while v <= ymax:
        out.append(f'<line x1="{left}" x2="{w - right}" y1="{py(v):.1f}" y2="{py(v):.1f}" stroke="#e2e8f0"/>'
                   f'<text x="{left - 8}" y="{py(v) + 4:.1f}" text-anchor="end" fill="#475569">{v:.0f}</text>')
        v += step
    for n in xs:
        out.append(f'<text x="{px(n):.1f}" y="{h - bottom + 20}" text-anchor="middle" fill="#475569">{n}</text>')
    out.append(f'<text x="{(left + w - right) / 2}" y="{h - 8}" text-anchor="middle" fill="#475569">'
               'streams at the same time</text>')
    for colour, (name, series) in zip(COLOURS, rates.items()):
        points = " ".join(f"{px(n):.1f},{py(v):.1f}" for n, v in sorted(series))
        n, v = max(series)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        out += [f'<circle cx="{px(n_):.1f}" cy="{py(v_):.1f}" r="3.5" fill="{colour}"/>' for n_, v_ in series]
        out.append(f'<text x="{px(n) + 10:.1f}" y="{py(v) + 4:.1f}" fill="{colour}" font-weight="bold">{name}</text>')
    print("\n".join(out) + "\n</svg>")


if __name__ == "__main__":
    main()
