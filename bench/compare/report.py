"""Write results as Markdown: a table per group with spreads, ratios to the best peer, shares of peak, and targets."""

from __future__ import annotations

from typing import Any

from bench.compare.figures import facts_line, table
from bench.compare.suites.suite import OURS

HEADER = ("threads", "what", "camshaft", "peers", "times the best peer", "wanted", "of peak", "wanted", "met")
MEANS = ("threads", "geometric mean of", "times the best peer (least to most)", "wanted", "met")
PEAK_COLUMNS = ("threads", "read GB/s", "int8 Gop/s", "bf16 GFLOP/s", "f32 GFLOP/s")


def markdown_of(document: dict[str, Any]) -> str:
    """The machine and its peak rates, then all groups in the order of their first row."""
    parts = [f"camshaft {document['source']}; {facts_line(document['machine'])}"]
    if document["peaks"]:
        lines = [[r["threads"], *(f"{v / 1e9:.4g}" for n, v in r.items() if n != "threads")] for r in document["peaks"]]
        parts.append(table(PEAK_COLUMNS, lines))
    for group in dict.fromkeys(row["group"] for row in document["rows"]):
        rows = sorted((r for r in document["rows"] if r["group"] == group), key=lambda r: int(r["threads"]))
        parts.append(f"**{group}**")
        parts.append(table(HEADER, [line(row, document["rounds"]) for row in rows]))
        means = [mean_line(row) for row in document["means"] if row["group"] == group]
        parts += [table(MEANS, means)] if means else []
    parts += _absences(document["rows"])
    return "\n\n".join(parts) + "\n"


def line(row: dict[str, Any], usual: int | None = None) -> tuple[str, ...]:
    """A row's cells. Rows with more rounds than `usual`, because the first ones were noisy, state their number."""
    peers = [f"{name} {spread(peer, row['unit'])}" for name, peer in row["sides"].items() if name != OURS]
    peers += [f"{name}: absent" for name in row["absent"] if name != OURS]
    ours = spread(row["sides"][OURS], row["unit"]) if OURS in row["sides"] else "failed"
    ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})" if "ratio" in row else ""
    return (
        str(row["threads"]),
        row["name"] if usual is None or row["rounds"] <= usual else f"{row['name']} ({row['rounds']} rounds)",
        f"{ours} {row['unit']}",
        "; ".join(peers),
        ratio,
        wanted(row["target"], row["unit"]),
        f"{row['peak_share']:.0%}" if "peak_share" in row else "",
        f"{row['target']['share']:.0%}" if "share" in row["target"] else "",
        result(row["met"]),
    )


def spread(peer: dict[str, Any], unit: str) -> str:
    """Median and range, such as '980.1 (791.5 to 1024)'."""
    found = peer[unit]
    return f"{found['median']:.4g} ({found['min']:.4g} to {found['max']:.4g})"


def wanted(target: dict[str, Any], unit: str) -> str:
    """The targets for ratio and figure as text."""
    targets = [f"{target['ratio']:g}"] if "ratio" in target else []
    targets += [f"{name} {ratio:g}" for name, ratio in target.get("against", {}).items()]
    targets += [f"never under {target['floor']:g}"] if "floor" in target else []
    targets += [f"{target['figure']:g} {unit}"] if "figure" in target else []
    return ", ".join(targets)


def result(met: dict[str, bool]) -> str:
    """'yes', or the targets that were missed."""
    missed = [name for name, is_met in met.items() if not is_met]
    if not met:
        return ""
    return f"no: {', '.join(missed)}" if missed else "yes"


def mean_line(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a geometric mean."""
    ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
    met = {True: "yes", False: "no", None: ""}[row.get("met")]
    return str(row["threads"]), f"{row['n']} {row['family']}", ratio, f"{row.get('target', '')}", met


def _absences(rows: list[dict[str, Any]]) -> list[str]:
    """Each reason for an absent peer once, with the number of rows affected."""
    reasons: dict[tuple[str, str], int] = {}
    for row in rows:
        for name, reason in row["absent"].items():
            reasons[name, reason] = reasons.get((name, reason), 0) + 1
    lines = [f"- {name}, in {n} row{'s' * (n > 1)}: {reason}" for (name, reason), n in reasons.items()]
    return ["Absent:\n\n" + "\n".join(lines)] if lines else []
