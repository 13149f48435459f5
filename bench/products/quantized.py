"""Quantized products of every block format: GB/s, Gop/s and shares of peak, with ggml on the same blocks, interleaved.

Run: python -m bench.products.quantized [--formats Q4_0 ...] [--shapes 4096x14336 ...] [--activations bf16] [--tokens 1 512]
[--threads 1 2] [--peer-python PYTHON | --no-peer] [--json FILE]. Weights of up to 64 tokens are so many copies that they come
from memory. The time of a product includes quantizing the activations, once for all copies.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from bench.compare.suites.suite import OURS
from bench.machine import peak
from bench.products import beside_ggml
from camshaft.formats.bits import Bytes
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.samples import random_blocks

FORMATS = [*PACKED_FORMATS, "F16", "BF16"]
SHAPE = "4096x14336"
PART_ROWS = 64  # rows that are quantized; a matrix is them over and over
COLD_NBYTES, FEW_TOKENS = 96 << 20, 64  # three times the last cache here
UNITS = {"F16": "f32", "BF16": "bf16"}


def orders(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """One per format, shape and number of tokens, with the file of its blocks."""
    rng = np.random.default_rng(1)
    for shape in options.shapes:
        m, k = (int(size) for size in shape.split("x"))
        for name in options.formats:
            row, path = BLOCK_FORMATS[name], folder / f"{name}.{k}"
            if k % row.block_size:
                continue
            _blocks(name, k, rng).tofile(path)
            nbytes = m * k // row.block_size * row.block_nbytes
            for n in options.tokens:
                copies = ceil(COLD_NBYTES / nbytes) if n <= FEW_TOKENS else 1
                yield {
                    "format": name,
                    "blocks": str(path),
                    "m": m,
                    "k": k,
                    "n": n,
                    "copies": copies,
                    "activations": options.activations,
                }


def _blocks(name: str, k: int, rng: np.random.Generator) -> Bytes:
    """Random numbers quantized, or random blocks of a format that camshaft does not write."""
    row = BLOCK_FORMATS[name]
    if row.encode is None:
        return random_blocks(name, PART_ROWS, k, seed=1)
    return row.quantize(rng.standard_normal((PART_ROWS * k // row.block_size, row.block_size), np.float32))


def row(order: dict[str, Any], threads: int, top: peak.MachinePeak, taken: dict[str, list[float]]) -> dict[str, Any]:
    """One product as a JSON row."""
    kind = BLOCK_FORMATS[order["format"]]
    m, k, n, copies = (order[name] for name in ("m", "k", "n", "copies"))
    nbytes, ops = m * k / kind.block_size * kind.block_nbytes, 2.0 * m * k * n
    spent = {name: rows.Spread.of([s / copies for s in found]) for name, found in taken.items()}
    least = top.least_s(0, {UNITS.get(order["format"], "int8"): ops})
    return {
        "bench": "quantized",
        **{name: order[name] for name in ("format", "m", "k", "n", "activations")},
        "threads": threads,
        "clock": rows.clock_name(),
        "ns": {name: s.map(lambda x: x * 1e9).rounded() for name, s in spent.items()},
        "GB/s": {name: float(f"{nbytes / s.median / 1e9:.4g}") for name, s in spent.items()},
        "Gop/s": {name: float(f"{ops / s.median / 1e9:.4g}") for name, s in spent.items()},
        "read_share": round(top.least_s(nbytes, {}) / spent[OURS].median, 3),
        "ops_share": round(least / spent[OURS].median, 3),
        "times_ggml": round(spent["ggml"].median / spent[OURS].median, 2) if "ggml" in spent else None,
    }


def measured(options: argparse.Namespace, threads: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Measure every product, after the machine's peak."""
    with beside_ggml.processes(options, threads, "ours/products:Products", "quantized_ggml.py:Blocks") as up:
        wanted, top = list(orders(options, folder)), peak.measure(threads)
        taken = beside_ggml.in_rounds(up, wanted, options.repeat)
    for order, found in zip(wanted, taken, strict=True):
        yield row(order, threads, top, found)


def line(r: dict[str, Any]) -> tuple[object, ...]:
    """A row for the table."""
    other = {unit: r[unit].get("ggml", "") for unit in ("GB/s", "Gop/s")}
    ours = f"{r['GB/s'][OURS]:.4g}", f"{r['read_share']:.0%}", f"{r['Gop/s'][OURS]:.4g}", f"{r['ops_share']:.0%}"
    return r["threads"], r["format"], f"{r['m']} x {r['k']}", r["n"], *ours, *other.values(), r["times_ggml"] or ""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--shapes", nargs="+", default=[SHAPE], help="rows x columns of the weights")
    parser.add_argument("--activations", choices=("q8", "bf16"), default="q8", help="bf16: of prompts, on AMX")
    beside_ggml.add_options(parser)
    made = beside_ggml.written(parser, measured)
    header = ("threads", "format", "weights", "tokens", "GB/s", "of peak", "Gop/s", "of peak")
    print(rows.table((*header, "ggml GB/s", "ggml Gop/s", "times ggml"), [line(r) for r in made]))


if __name__ == "__main__":
    main()
