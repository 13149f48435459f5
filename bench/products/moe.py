"""Mixture-of-experts blocks (router, experts, weighted sum) beside ggml's on the same blocks, interleaved.

Run: python -m bench.products.moe [--formats Q4_K ...] [--size 2048x1024] [--experts 64] [--slots 8] [--tokens 1 512] [--threads
1 2] [--peer-python PYTHON | --no-peer] [--plain] [--processor-time] [--json FILE]. One token is computed for so many inputs
that the weights come from memory. ggml's stacks are repacked, as llama.cpp's loader does, or as in the file with --plain.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from bench.compare.suites.suite import OURS
from bench.products import beside_ggml
from camshaft.formats.blocks import BLOCK_FORMATS

PART_NBYTES = 1 << 22  # of random blocks; a stack is them over and over
FEW_TOKENS, COPIES = 8, 4


def orders(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """One per format and number of tokens, with the file of its blocks."""
    rng = np.random.default_rng(1)
    d, f = (int(size) for size in options.size.split("x"))
    for name in options.formats:
        row, path = BLOCK_FORMATS[name], folder / name
        count = PART_NBYTES // row.block_nbytes
        row.quantize(rng.standard_normal((count, row.block_size), np.float32) * np.float32(0.05)).tofile(path)
        sizes = {"d": d, "f": f, "experts": options.experts, "slots": options.slots}
        for n in options.tokens:
            yield {"format": name, "blocks": str(path), **sizes, "n": n, "copies": COPIES if n <= FEW_TOKENS else 1}


def row(order: dict[str, Any], threads: int, taken: dict[str, list[float]]) -> dict[str, Any]:
    """One block as a JSON row."""
    kind, n = BLOCK_FORMATS[order["format"]], order["n"]
    weights = 3.0 * order["d"] * order["f"]
    nbytes = weights * min(order["experts"], n * order["slots"]) / kind.block_size * kind.block_nbytes
    spent = {name: rows.Spread.of([s / order["copies"] for s in found]) for name, found in taken.items()}
    sizes = {name: order[name] for name in ("format", "d", "f", "experts", "slots", "n")}
    use = f"{order['slots']} of {order['experts']} {order['format']}, {n} tokens"
    what = {"bench": "moe", "op": "moe_experts", "use": use, **sizes, "threads": threads}
    return {
        **rows.compared(what, spent, OURS),
        "GB/s": {name: float(f"{nbytes / s.median / 1e9:.4g}") for name, s in spent.items()},
        "Gop/s": {name: float(f"{2 * weights * n * order['slots'] / s.median / 1e9:.4g}") for name, s in spent.items()},
    }


def measured(options: argparse.Namespace, threads: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Measure every block."""
    given = {"repack": not options.plain}
    with beside_ggml.processes(options, threads, "ours/moe:Blocks", "moe_ggml.py:Blocks", **given) as up:
        wanted = list(orders(options, folder))
        taken = beside_ggml.in_rounds(up, wanted, options.repeat)
    for order, found in zip(wanted, taken, strict=True):
        yield row(order, threads, found)


def line(r: dict[str, Any]) -> tuple[object, ...]:
    """A row for the table."""
    figures = (r[unit].get(name, "") for name in (OURS, "ggml") for unit in ("GB/s", "Gop/s"))
    return r["threads"], r["format"], r["n"], *figures, r["times"].get("ggml", "")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=["Q4_K"])
    parser.add_argument("--size", default="2048x1024", help="columns of x, and rows of an expert's gate")
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--plain", action="store_true", help="ggml's stacks as in the file, not repacked")
    beside_ggml.add_options(parser)
    made = beside_ggml.written(parser, measured)
    header = ("threads", "format", "tokens", "GB/s", "Gop/s", "ggml GB/s", "ggml Gop/s", "times ggml")
    print(rows.table(header, [line(r) for r in made]))


if __name__ == "__main__":
    main()
