"""What this machine can do at most: memory read, 8-bit dot products, f32 multiply-adds; by kernels of the kernel language.

Run: python bench/roof.py [--threads 1 2] [--json FILE]. The other scripts take their share of the roof from here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rows

from camshaft.backends.cpu.device import CpuKernel, cpu_device
from camshaft.dtypes import f32, i32, u32
from camshaft.lang import ir
from camshaft.lang.kernel import Constant, Kernel, kernel
from camshaft.lang.tracer import Array, Tracer
from camshaft.plan.execute import bind
from camshaft.plan.memory import make_schedule
from camshaft.plan.schedule import Buffer, BufferUse, Lifetime, Programs, Thunk
from camshaft.plan.workers import aligned_bytes

WIDTH = 16
CHAINS = 16  # independent accumulators: enough to cover the latency of an instruction that starts twice a cycle
PIECE = 1024  # vectors that a program reads: 64 KiB
STEPS = 20_000
N_PROGRAMS = 64


@dataclass(frozen=True)
class Roof:
    """The most that was seen with so many threads: bytes, 8-bit operations and f32 operations per second."""

    threads: int
    read_bytes_per_s: float
    dot4_ops_per_s: float
    fma_ops_per_s: float

    def best(self, other: Roof) -> Roof:
        """The higher of two measurements, figure by figure: what disturbs one only lowers it."""
        return Roof(*(max(mine, yours) for mine, yours in zip(vars(self).values(), vars(other).values(), strict=True)))

    def least_s(self, nbytes: float = 0.0, dot4_ops: float = 0.0, f32_ops: float = 0.0) -> float:
        """No less time than this for so much reading and computing, side by side."""
        computing = dot4_ops / self.dot4_ops_per_s + f32_ops / self.fma_ops_per_s
        return max(nbytes / self.read_bytes_per_s, computing)


@kernel
def read_memory(k: Tracer, x: Array, out: Array, *, ahead: int) -> None:
    # out[p] = xor of the vectors of piece p
    p = k.program(0)
    sums = [k.var(k.splat(0, WIDTH, u32), u32) for _ in range(4)]
    for i in k.range(0, PIECE, 4):
        for j, total in enumerate(sums):
            if ahead:
                k.prefetch(x, p, i + (j + ahead), 0)
            total.set(total.value ^ k.load_vector(x, p, i + j, 0, width=WIDTH))
    k.store_vector(out, sums[0].value ^ sums[1].value ^ sums[2].value ^ sums[3].value, p, 0)


@kernel
def dot4_chains(k: Tracer, x: Array, out: Array) -> None:
    # CHAINS sums of products of 4 bytes
    p = k.program(0)
    a, b = k.load_vector(x, p, 0, width=WIDTH), k.load_vector(x, p, WIDTH, width=WIDTH)
    sums = [k.var(k.splat(j, WIDTH, i32), i32) for j in range(CHAINS)]
    for _ in k.range(STEPS):
        for total in sums:
            total.set(k.dot4(total.value, a, b))
    for j, total in enumerate(sums):
        k.store_vector(out, total.value, p, j * WIDTH)


@kernel
def fma_chains(k: Tracer, x: Array, out: Array) -> None:
    # CHAINS sums of f32 products
    p = k.program(0)
    a, b = k.load_vector(x, p, 0, width=WIDTH), k.load_vector(x, p, WIDTH, width=WIDTH)
    sums = [k.var(k.splat(float(j), WIDTH)) for j in range(CHAINS)]
    for _ in k.range(STEPS):
        for total in sums:
            total.set(k.fma(total.value, a, b))
    for j, total in enumerate(sums):
        k.store_vector(out, total.value, p, j * WIDTH)


def seconds(code: CpuKernel, arrays: Sequence[np.ndarray[Any, Any]], n_programs: int, threads: int) -> float:
    """The least time of a run of the kernel, alone in a schedule, over several repeats."""
    buffers = [Buffer(f"array{i}", array.nbytes, Lifetime.IO) for i, array in enumerate(arrays)]
    uses = (BufferUse(buffers[0].slice(), "read"), BufferUse(buffers[1].slice(), "write"))
    args = tuple(buffer.slice() for buffer in buffers)
    thunk = Thunk(code.name, code.name, "roof", "", "kernel", code, args, uses, Programs(n_programs))
    schedule, memory = make_schedule([thunk])
    with bind(schedule, memory, buffers=dict(zip(buffers, arrays, strict=True)), threads=threads) as plan:
        return rows.seconds_per_call(plan.run, repeats=9, least_s=0.03).min


def aligned(dtype: type[np.generic], *shape: int) -> np.ndarray[Any, Any]:
    """Memory that starts on a cache line, filled with ones."""
    array = aligned_bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize, 64).view(dtype).reshape(shape)
    array[:] = 1
    return array


def compiled(
    source: Kernel, x: ir.ArrayParam, out: ir.ArrayParam, constants: dict[str, Constant] | None = None
) -> CpuKernel:
    """The kernel for this CPU, a program per row of x."""
    return cpu_device("simd").compile(source, [x, out], (), constants or {}, (ir.GridDim(x.shape[0]),))


def measure(threads: int, nbytes: int = 256 << 20) -> Roof:
    """The roof with so many threads. Memory is read from `nbytes`, which should be many times the last cache."""
    n_pieces = nbytes // (PIECE * WIDTH * 4)
    big, sums = aligned(np.uint32, n_pieces, PIECE, WIDTH), aligned(np.uint32, n_pieces, WIDTH)
    x, out = ir.ArrayParam("x", u32, big.shape), ir.ArrayParam("out", u32, sums.shape, True)
    codes = [compiled(read_memory, x, out, {"ahead": ahead}) for ahead in (0, 32, 64)]
    reading = min(seconds(code, (big, sums), n_pieces, threads) for code in codes)
    operations = {}
    for source, given, dtype, numpy, per_lane in (
        (dot4_chains, u32, i32, (np.uint32, np.int32), 8),
        (fma_chains, f32, f32, (np.float32, np.float32), 2),
    ):
        small, results = aligned(numpy[0], N_PROGRAMS, 2 * WIDTH), aligned(numpy[1], N_PROGRAMS, CHAINS * WIDTH)
        code = compiled(
            source, ir.ArrayParam("x", given, small.shape), ir.ArrayParam("out", dtype, results.shape, True)
        )
        work = float(per_lane * WIDTH * CHAINS * STEPS * N_PROGRAMS)
        operations[source.name] = work / seconds(code, (small, results), N_PROGRAMS, threads)
    return Roof(threads, big.nbytes / reading, operations["dot4_chains"], operations["fma_chains"])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    roofs = [measure(threads) for threads in options.threads]
    lines = [
        (r.threads, *(f"{x / 1e9:.4g}" for x in (r.read_bytes_per_s, r.dot4_ops_per_s, r.fma_ops_per_s))) for r in roofs
    ]
    print(rows.table(("threads", "read GB/s", "8-bit dot Gop/s", "f32 GFLOP/s"), lines))
    rows.write(options.json, [{"bench": "roof", **vars(r)} for r in roofs])


if __name__ == "__main__":
    main()
