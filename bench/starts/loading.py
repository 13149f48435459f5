"""Benchmark loading: weight packing in GB/s of the file by format, and the peak memory of opening a model.

Run: python -m bench.starts.loading [MODEL ...] [--threads 1 2] [--mbytes 256] [--repeat 5] [--json FILE]. Packing reads a file
in the system's page cache and writes fresh memory; page faults and releasing pages are included. Memory is the peak of a
process that opens the model, minus that of one that imports camshaft and compiles a kernel.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from bench.compare.peers.ours.loading import measure_memory
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.mapped import MappedFile
from camshaft.formats.tensor import FileTensor
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.files.pull import resolve_model
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.packed.packing import interleaved
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory.weights import Weights

COLUMNS = 4096
ROWS = 4096  # of a tensor: about what a layer has


def constants(file: MappedFile, name: str) -> list[Tensor]:
    """The bytes of a file as weights of a block format, to be packed."""
    block, graph = BLOCK_FORMATS[name], Graph()
    nbytes = ROWS * block.row_nbytes(COLUMNS)
    made = []
    for i in range(file.size // nbytes):

        def read(offset: int = i * nbytes) -> Any:
            return file.view(offset, nbytes)

        source = FileTensor(f"w{i}", (ROWS, COLUMNS), block, nbytes, read, file.path, mapped=(file, i * nbytes))
        made.append(graph.constant(source.name, source, interleaved(TensorSpec(source.shape, block))))
    return made


def pack_seconds(file: MappedFile, name: str, threads: int) -> tuple[float, int]:
    """How long the file's bytes take as weights of that format, and how many bytes they are."""
    tensors, weights = constants(file, name), Weights()
    started = time.perf_counter()
    weights.prepare(tensors, threads)
    return time.perf_counter() - started, sum(t.source.nbytes for t in tensors if isinstance(t.source, FileTensor))


def measure_formats(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per format and number of threads."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        path.write_bytes(np.random.default_rng(1).bytes(options.mbytes << 20))
        file = MappedFile(path)
        for name in options.formats:
            pack_seconds(file, name, 1)  # compiles the kernel
            rounds = [(t, *pack_seconds(file, name, t)) for _ in range(options.repeat) for t in options.threads]
            made += [_row(name, threads, rounds) for threads in options.threads]
        file.close()
    return made


def _row(name: str, threads: int, rounds: Sequence[tuple[int, float, int]]) -> dict[str, Any]:
    spread = rows.Spread.of([nbytes / seconds / 1e9 for t, seconds, nbytes in rounds if t == threads])
    return {"bench": "loading", "op": "pack", "format": name, "threads": threads, "GB/s": spread.rounded()}


def report(packed: Sequence[dict[str, Any]], memory: Sequence[dict[str, Any]]) -> str:
    """The rows as tables."""
    lines = [
        (r["format"], r["threads"], *(f"{r['GB/s'][key]:.3g}" for key in ("median", "min", "max"))) for r in packed
    ]
    keys = ("file_nbytes", "weights_nbytes", "cache_nbytes", "arena_nbytes", "peak_nbytes")
    memory_lines = [(r["model"], *(f"{r[key] / 1e6:.1f}" for key in keys), f"{r['share']:.2f}") for r in memory]
    heads = (
        "model",
        "file, MB",
        "weights",
        "KV cache",
        "arena",
        "most, less camshaft's own",
        "share of file, cache, arena",
    )
    return "\n\n".join(
        [rows.table(("format", "threads", "GB/s of the file", "min", "max"), lines), rows.table(heads, memory_lines)]
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["smollm2"], help="names or paths of .gguf files")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--formats", nargs="*", default=list(PACKED_FORMATS))
    parser.add_argument("--mbytes", type=int, default=256, help="of a format's file")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    packed = measure_formats(options)
    paths = [str(resolve_model(m).resolve()) for m in options.models]
    for path in paths:
        measure_memory(path, max(options.threads))  # compiles and proves
    memory = [measure_memory(path, max(options.threads)) for path in paths]
    print(report(packed, memory))
    rows.write(options.json, [*packed, *memory])


if __name__ == "__main__":
    main()
