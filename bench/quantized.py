"""Quantized products of every block format: GB/s, Gop/s and shares of peak, with ggml on the same blocks, interleaved.

Run: python -m bench.quantized [--formats Q4_0 ...] [--shapes 4096x14336 ...] [--tokens 1 512] [--threads 1 2] [--peer-python
PYTHON | --no-peer] [--json FILE]. Weights of up to 64 tokens are so many copies that they come from memory. The time of a product
includes quantizing the activations, once for all copies.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from bench import peak, rows
from bench.compare import peers as peer_modules
from bench.compare.process import PeerProcess
from bench.compare.suite import OURS, Peer
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
                yield {"format": name, "blocks": str(path), "m": m, "k": k, "n": n, "copies": copies}


def _blocks(name: str, k: int, rng: np.random.Generator) -> Bytes:
    """Random numbers quantized, or random blocks of a format that camshaft does not write."""
    row = BLOCK_FORMATS[name]
    if row.encode is None:
        return random_blocks(name, PART_ROWS, k, seed=1)
    return row.quantize(rng.standard_normal((PART_ROWS * k // row.block_size, row.block_size), np.float32))


def processes(options: argparse.Namespace, threads: int) -> dict[str, PeerProcess]:
    """Start the peers, by name."""
    given: dict[str, Any] = {"threads": threads}
    peers = {OURS: Peer(OURS, "ours_products:Products", given, peer_python=False)}
    if not options.no_peer:
        ggml = str(Path(peer_modules.__file__).with_name("ggml.py"))
        peers["ggml"] = Peer("ggml", f"{Path(__file__).with_name('quantized_ggml.py')}:Blocks", given | {"ggml": ggml})
    return {name: PeerProcess(peer, options.peer_python) for name, peer in peers.items()}


def row(order: dict[str, Any], threads: int, top: peak.MachinePeak, taken: dict[str, list[float]]) -> dict[str, Any]:
    """One product as a JSON row."""
    kind = BLOCK_FORMATS[order["format"]]
    m, k, n, copies = (order[name] for name in ("m", "k", "n", "copies"))
    nbytes, ops = m * k / kind.block_size * kind.block_nbytes, 2.0 * m * k * n
    spent = {name: rows.Spread.of([s / copies for s in found]) for name, found in taken.items()}
    least = top.least_s(0, {UNITS.get(order["format"], "int8"): ops})
    return {
        "bench": "quantized",
        **{name: order[name] for name in ("format", "m", "k", "n")},
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
    """Measure every product in interleaved rounds, after the machine's peak and a warm-up round."""
    up = processes(options, threads)
    try:
        wanted = list(orders(options, folder))
        taken: list[dict[str, list[float]]] = [{name: [] for name in up} for _ in wanted]
        top = peak.measure(threads)
        for round_ in range(-1, options.repeat):
            for order, found in zip(wanted, taken, strict=True):
                for name, process in up.items():
                    seconds = process.seconds(order)
                    if round_ >= 0:
                        found[name].append(seconds)
                require_equal(order, {name: process.check for name, process in up.items()})
        for order, found in zip(wanted, taken, strict=True):
            yield row(order, threads, top, found)
    finally:
        for process in up.values():
            process.close()


def require_equal(order: dict[str, Any], checks: dict[str, float | None]) -> None:
    """RuntimeError if the peers' results differ in mean magnitude by more than quantizing activations explains."""
    sizes = [size for size in checks.values() if size is not None]
    if max(sizes) > 1.02 * min(sizes):
        raise RuntimeError(f"the peers compute different products of {order}: {checks}")


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
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer-python", default="python", help="a Python that has llama-cpp-python")
    parser.add_argument("--no-peer", action="store_true", help="camshaft alone")
    parser.add_argument("--json", type=Path)
    rows.add_processor_time(parser)
    options = rows.with_clock(parser, parser.parse_args())
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = [r for threads in options.threads for r in measured(options, threads, Path(folder))]
    header = ("threads", "format", "weights", "tokens", "GB/s", "of peak", "Gop/s", "of peak")
    print(rows.table((*header, "ggml GB/s", "ggml Gop/s", "times ggml"), [line(r) for r in made]))
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
