"""Tables of figures from the files of bench/results/: rows, numbers, ranges and shares as cells of Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@cache
def results(name: str) -> Any:
    """A file of bench/results/: a list of rows, or a document of the comparison."""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text("utf-8"))


def table(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def number(value: float) -> str:
    """At most four digits, without an exponent: 13580, 7704, 379.2, 0.3999."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def spread(found: dict[str, float], scale: float = 1) -> str:
    """Median and range: '980.1 (791.5 to 1024)'."""
    median, low, high = (number(found[key] * scale) for key in ("median", "min", "max"))
    return f"{median} ({low} to {high})"


def percent(share: float | None) -> str:
    """A share of the machine peak; empty where there is none."""
    return "" if share is None else f"{share:.0%}"


def machine(name: str) -> str:
    """The machine of a comparison, its commit and its measured peaks."""
    document = results(name)
    facts = document["machine"]
    virtual = ", virtual" if facts["virtual"] else ""
    cpu = f"{facts['cpu']} ({facts['llvm_cpu']}{virtual}), {facts['usable_cores']} of {facts['cores']} cores"
    software = f"{facts['system']}; Python {facts['python']}, LLVM {facts['llvm']}"
    facts_line = f"camshaft {document['source']}; {cpu}, {' '.join(facts['features'])}; {software}"
    kinds = ("read_bytes_per_s", "int8_ops_per_s", "bf16_ops_per_s", "f32_ops_per_s")
    lines = [[peak["threads"], *(number(peak[kind] / 1e9) for kind in kinds)] for peak in document["peaks"]]
    return f"{facts_line}.\n\n" + table(("threads", "read GB/s", "int8 Gop/s", "bf16 GFLOP/s", "f32 GFLOP/s"), lines)


def comparison(*groups: str, name: str = "compare") -> str:
    """The rows of some groups of a comparison, by threads, and the geometric means of their ratios."""
    header = ("threads", "what", "unit", "camshaft", "peers", "times the best peer", "of the machine peak")
    rows = sorted((row for row in results(name)["rows"] if row["group"] in groups), key=lambda row: int(row["threads"]))
    tables = [table(header, map(compared, rows))]
    means = sorted(
        (row for row in results(name)["means"] if row["group"] in groups), key=lambda row: int(row["threads"])
    )
    if means:
        lines = [
            (m["threads"], f"{m['n']} {m['family']}", m["ratio"], f"{m['ratio_min']} to {m['ratio_max']}")
            for m in means
        ]
        tables.append(table(("threads", "rows", "geometric mean of times the best peer", "range"), lines))
    return "\n\n".join(tables)


def compared(row: dict[str, Any]) -> tuple[object, ...]:
    """A row's cells: each side's median and range, and the ratio of the medians with the range of the rounds' ratios."""
    unit = row["unit"]
    peers = [f"{name} {spread(side[unit])}" for name, side in row["sides"].items() if name != "camshaft"]
    ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
    ours = spread(row["sides"]["camshaft"][unit])
    return row["threads"], row["name"], unit, ours, "; ".join(peers), ratio, percent(row.get("peak_share"))
