#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.h: the Unicode properties that WordPiece's text
normalisation needs, from Python's unicodedata.

usage: gen-unicode-tables.py > src/tokenizer/unicode_tables.h

Three sorted tables: classes (ranges of code points), lower-case mappings (ranges of equal
distance) and full canonical decompositions without Hangul, which is arithmetic.
"""
import sys
import unicodedata as u

LIMIT = 0x110000
SKIP = range(0xD800, 0xE000)


def char_class(cp):
    """What BERT's normaliser does with cp, by its general category."""
    cat = u.category(chr(cp))
    if cat == "Mn":
        return "MARK"
    if cat[0] == "P":
        return "PUNCT"
    if cat == "Zs":
        return "SPACE"
    if cat in ("Cc", "Cf", "Co"):
        return "CONTROL"
    return None


def runs(values):
    """[(first, last, value)] of equal neighbours; values yields (cp, value)."""
    out = []
    for cp, value in values:
        if out and out[-1][1] == cp - 1 and out[-1][2] == value:
            out[-1][1] = cp
        else:
            out.append([cp, cp, value])
    return out


def lower_runs():
    """[first, last, step, distance]: upper-case letters often alternate with lower-case ones."""
    out = []
    for cp in range(LIMIT):
        if cp in SKIP:
            continue
        low = chr(cp).lower()
        if len(low) != 1 or low == chr(cp):
            continue
        dist = ord(low) - cp
        if out and out[-1][3] == dist:
            first, last, step, _ = out[-1]
            gap = cp - last
            if gap <= 2 and (first == last or gap == step):
                out[-1][1], out[-1][2] = cp, gap
                continue
        out.append([cp, cp, 1, dist])
    return out


def decompositions():
    for cp in range(LIMIT):
        if cp in SKIP or 0xAC00 <= cp <= 0xD7A3:
            continue
        nfd = u.normalize("NFD", chr(cp))
        if nfd != chr(cp):
            yield cp, [ord(c) for c in nfd]


def rows(items, per_line):
    items = list(items)
    for i in range(0, len(items), per_line):
        print("    " + ", ".join(items[i:i + per_line]) + ",")


def main():
    classes = runs((cp, char_class(cp)) for cp in range(0x80, LIMIT)
                   if cp not in SKIP and char_class(cp))
    lower = lower_runs()
    decomp = list(decompositions())
    pool, at = [], {}
    for _, seq in decomp:
        if tuple(seq) not in at:
            at[tuple(seq)] = len(pool)
            pool += seq
    print(f"""/*
 * Written by scripts/gen-unicode-tables.py from Unicode {u.unidata_version}; do not edit.
 * Code points below 0x80 are not in class_ranges.
 */
#ifndef GS_TOKENIZER_UNICODE_TABLES_H
#define GS_TOKENIZER_UNICODE_TABLES_H

#include <stdint.h>

// clang-format off
enum {{ UC_NONE, UC_MARK, UC_PUNCT, UC_SPACE, UC_CONTROL }};

typedef struct uc_range {{
    uint32_t first, last;
    uint8_t cls;
}} uc_range;

typedef struct uc_lower {{
    uint32_t first, last;
    int32_t step, distance;
}} uc_lower;

typedef struct uc_decomp {{
    uint32_t cp;
    uint16_t at; /* in decomp_pool */
    uint8_t len;
}} uc_decomp;

static const uc_range class_ranges[] = {{""")
    rows((f"{{0x{a:x}, 0x{b:x}, UC_{c}}}" for a, b, c in classes), 3)
    print("};\n\nstatic const uc_lower lower_ranges[] = {")
    rows((f"{{0x{a:x}, 0x{b:x}, {s}, {d}}}" for a, b, s, d in lower), 4)
    print("};\n\nstatic const uint32_t decomp_pool[] = {")
    rows((f"0x{c:x}" for c in pool), 12)
    print("};\n\nstatic const uc_decomp decomps[] = {")
    rows((f"{{0x{cp:x}, {at[tuple(seq)]}, {len(seq)}}}" for cp, seq in decomp), 5)
    print("};\n// clang-format on\n\n#endif")
    assert len(pool) < 65536


if __name__ == "__main__":
    sys.exit(main())
