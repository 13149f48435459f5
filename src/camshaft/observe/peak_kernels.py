"""The kernels that measure a machine's peak rates: each unit that may multiply, and reading and writing memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, cpu_device
from camshaft.dtypes import DType, f32, i32, u32
from camshaft.lang import Array as KernelArray
from camshaft.lang import CompileRequest, Constant, Kernel, Tracer, ir, kernel
from camshaft.plan.buffers import Buffer, BufferUse, Lifetime
from camshaft.plan.memory.allocate import aligned_bytes, huge_pages
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import BoundSchedule, bind
from camshaft.plan.schedule import Programs, Thunk
from camshaft.selection.host_info import hardware, memory_nbytes

WIDTH = 16
CHAINS = 16  # independent accumulators: enough to hide the latency at two instructions per cycle
PIECE = 1024  # vectors per program: 64 KiB
STEPS, TILE_STEPS = 20_000, 4_000
TILE_DEPTH, SLOTS = 16, 4  # words of k of one product; products with operands of their own


@kernel
def read_memory(k: Tracer, x: KernelArray, out: KernelArray, *, streams: int, ahead: int) -> None:
    # out[p] = xor of piece p and of the piece at the same position in each other stream, four vectors at a time
    p = k.program(0)
    pieces = [p + stream * (x.shape[0] // streams) for stream in range(streams)]
    sums = [k.var(k.splat(0, WIDTH, u32), u32) for _ in range(4)]
    for i in k.range(0, PIECE, 4):
        for piece in pieces:
            for j, total in enumerate(sums):
                if ahead:
                    k.prefetch(x, piece, i + (j + ahead), 0)
                total.set(total.value ^ k.load_vector(x, piece, i + j, 0, width=WIDTH))
    k.store_vector(out, sums[0].value ^ sums[1].value ^ sums[2].value ^ sums[3].value, p, 0)


@kernel
def write_memory(k: Tracer, x: KernelArray, out: KernelArray) -> None:
    # out[p] = x, a vector, all over piece p
    value = k.load_vector(x, 0, 0, width=WIDTH)
    for i in k.range(PIECE):
        k.store_vector(out, value, k.program(0), i, 0)


@kernel
def tiles(k: Tracer, x: KernelArray, out: KernelArray, *, side: int, times: int) -> None:
    # out = the sum of `times` products of words, rows of x by rows of x after them, in a tile of side x side: a matrix unit's
    # four tiles of sums, with operands from the first cache. A product is side x side x TILE_DEPTH words
    first = k.program(0) * (SLOTS * TILE_DEPTH + side)
    total = k.word_tile(side, side, out.dtype)
    for _ in k.range(times // SLOTS):
        for p in k.range(0, SLOTS * TILE_DEPTH, TILE_DEPTH):
            total.mma(x, (first, p), x, (first + side + p, 0), k=TILE_DEPTH)
    total.store(out, (k.program(0) * side, 0))


@kernel
def chains(k: Tracer, x: KernelArray, out: KernelArray, *, step: str) -> None:
    # out = out + x[first half] * x[second half], STEPS times in each of CHAINS sums. `step` is the Tracer's method: dot4 (int8),
    # dot2 (bf16) or fma (f32)
    p, dtype = k.program(0), out.dtype
    a, b = k.load_vector(x, p, 0, width=WIDTH), k.load_vector(x, p, WIDTH, width=WIDTH)
    sums = [k.var(k.splat(j if dtype == i32 else float(j), WIDTH, dtype), dtype) for j in range(CHAINS)]
    for _ in k.range(STEPS):
        for total in sums:
            total.set(getattr(k, step)(total.value, a, b))
    for j, total in enumerate(sums):
        k.store_vector(out, total.value, p, j * WIDTH)


NBYTES = 256 << 20  # much larger than the last-level cache of most machines
N_PROGRAMS = 32
REPEATS, LEAST_S = 5, 0.02
# (streams read concurrently, vectors to prefetch ahead)
_READ_PATTERNS, ROUNDS = ((1, 0), (1, 64), (2, 0), (4, 0)), 20
Array = np.ndarray[Any, Any]


def _least_seconds(call: Callable[[], object]) -> float:
    """The minimum over windows of the mean time of a call; a window takes at least LEAST_S. The first call is a warm-up."""
    call()
    started = time.perf_counter()
    call()
    calls = max(1, round(LEAST_S / max(time.perf_counter() - started, 1e-9)))
    means = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        means.append((time.perf_counter() - started) / calls)
    return min(means)


def _bound(code: CpuKernel, arrays: Sequence[Array], n_programs: int, threads: int) -> BoundSchedule:
    """A schedule with only this kernel."""
    buffers = [Buffer(f"array{i}", array.nbytes, Lifetime.IO) for i, array in enumerate(arrays)]
    uses = (BufferUse(buffers[0].slice(), "read"), BufferUse(buffers[1].slice(), "write"))
    args = tuple(buffer.slice() for buffer in buffers)
    thunk = Thunk(code.name, code.name, "machine_peak", "", "kernel", code, args, uses, Programs(n_programs))
    schedule, memory = make_schedule([thunk])
    return bind(schedule, memory, buffers=dict(zip(buffers, arrays, strict=True)), threads=threads)


def _seconds(code: CpuKernel, arrays: Sequence[Array], n_programs: int, threads: int) -> float:
    """The minimum time of one run of the kernel."""
    with _bound(code, arrays, n_programs, threads) as plan:
        return _least_seconds(plan.run)


def _ones(dtype: DType, *shape: int) -> Array:
    """A cache-line-aligned array of ones."""
    array = aligned_bytes(int(np.prod(shape)) * dtype.nbytes, 64).view(dtype.numpy).reshape(shape)
    array[:] = 1
    return array


def _compiled(
    source: Kernel, x: Array, out: Array, dtypes: tuple[DType, DType], n_programs: int, **constants: Constant
) -> CpuKernel:
    """Compile the kernel for this CPU."""
    arrays = (ir.ArrayParam("x", dtypes[0], x.shape), ir.ArrayParam("out", dtypes[1], out.shape, True))
    return cpu_device("simd").compile(CompileRequest(source, arrays, (), constants, (ir.GridDim(n_programs),)))


# a 32-bit word with two bf16 ones
PAIR_OF_ONES = 0x3F803F80
# Operations of a 32-bit lane and step: of bytes, of bf16, of f32.
_PER_LANE = {"dot4": 8, "dot2": 4, "fma": 2}


@dataclass(frozen=True)
class Unit:
    """What may multiply: `kinds` are those of products that kernels make with it. `features` are those of CPUs that have it,
    `step` is the Tracer's method of a step in each lane, and `side` that of a tile, if it is a matrix unit."""

    name: str
    kinds: tuple[str, ...]
    step: str
    side: int = 0
    features: frozenset[str] = frozenset()

    @property
    def words(self) -> tuple[DType, int, DType]:
        """The dtype and value of an operand, and the dtype of sums."""
        return {"dot4": (u32, 1, i32), "dot2": (u32, PAIR_OF_ONES, f32), "fma": (f32, 1, f32)}[self.step]


UNITS = (
    Unit("int8 dot products", ("int8",), "dot4"),
    Unit("int8 in AMX tiles", ("int8",), "dot4", 32, frozenset({"amx-tile", "amx-int8"})),
    Unit("int8 in NEON tiles", ("int8",), "dot4", 8, frozenset({"neon", "i8mm"})),
    Unit("bf16 dot products", ("bf16",), "dot2"),
    Unit("bf16 in AMX tiles", ("bf16",), "dot2", 32, frozenset({"amx-tile", "amx-bf16"})),
    Unit("bf16 in NEON tiles", ("bf16",), "dot2", 8, frozenset({"neon", "bf16"})),
    # bf16 too: where its dot products are slow, kernels widen it.
    Unit("f32 multiply-adds", ("f32", "bf16"), "fma"),
)


def units_here() -> tuple[Unit, ...]:
    """The units that this CPU has, and that the settings let kernels use."""
    return tuple(unit for unit in UNITS if unit.features <= cpu_device("simd").features)


def measure_unit(unit: Unit, threads: int) -> float:
    """Operations per second of a unit with `threads` threads; a multiply-add counts as two."""
    in_dtype, value, out_dtype = unit.words
    constants: dict[str, Constant]
    if unit.side:
        rows, width = unit.side + SLOTS * TILE_DEPTH, max(SLOTS * TILE_DEPTH, unit.side)
        x = _ones(in_dtype, N_PROGRAMS * rows, width)
        out = _ones(out_dtype, N_PROGRAMS * unit.side, unit.side)
        source, constants = tiles, {"side": unit.side, "times": TILE_STEPS}
        work = unit.side**2 * TILE_DEPTH * TILE_STEPS * _PER_LANE[unit.step]
    else:
        x, out = _ones(in_dtype, N_PROGRAMS, 2 * WIDTH), _ones(out_dtype, N_PROGRAMS, CHAINS * WIDTH)
        source, constants = chains, {"step": unit.step}
        work = WIDTH * CHAINS * STEPS * _PER_LANE[unit.step]
    x[:] = value
    code = _compiled(source, x, out, (in_dtype, out_dtype), N_PROGRAMS, **constants)
    return float(work) * N_PROGRAMS / _seconds(code, (x, out), N_PROGRAMS, threads)


def beyond_caches() -> int:
    """Bytes of memory that no cache holds most of: three times the last one, but at most an eighth of the machine's memory."""
    last = max((size for size in hardware()[2] if size), default=0)
    memory = memory_nbytes()
    most = NBYTES if memory is None else max(NBYTES, memory // 8)
    return min(max(NBYTES, 3 * last), most)


def _rounds(nbytes: int) -> int:
    return max(5, ROUNDS * NBYTES // max(nbytes, NBYTES))


def measure_reading(threads: int, nbytes: int) -> float:
    """Measure the read bandwidth in bytes per second from memory in huge pages: the best single run over several patterns.

    The best run rather than a mean: on virtual machines the bandwidth varies with the load of other guests.
    """
    n = nbytes // (PIECE * WIDTH * 4)
    big = huge_pages(n * PIECE * WIDTH * 4).view(np.uint32).reshape(n, PIECE, WIDTH)
    big[:] = 1
    sums, least = _ones(u32, n, WIDTH), float("inf")
    with ExitStack() as stack:
        plans = []
        for streams, ahead in _READ_PATTERNS:
            code = _compiled(read_memory, big, sums, (u32, u32), n // streams, streams=streams, ahead=ahead)
            plans.append((streams, stack.enter_context(_bound(code, (big, sums), n // streams, threads))))
        for _ in range(_rounds(nbytes)):
            for streams, plan in plans:
                started = time.perf_counter()
                plan.run()
                least = min(least, (time.perf_counter() - started) / (n // streams * streams))
    return big.nbytes / n / least


def measure_writing(threads: int, nbytes: int) -> float:
    """Measure the write bandwidth in bytes per second, as `measure_reading`. Stores are those of kernels: a line is read before
    it is written over, which is not counted."""
    n = nbytes // (PIECE * WIDTH * 4)
    big = huge_pages(n * PIECE * WIDTH * 4).view(np.uint32).reshape(n, PIECE, WIDTH)
    code = _compiled(write_memory, _ones(u32, 1, WIDTH), big, (u32, u32), n)
    least = float("inf")
    with _bound(code, (_ones(u32, 1, WIDTH), big), n, threads) as plan:
        for _ in range(_rounds(nbytes) + 1):
            started = time.perf_counter()
            plan.run()
            least = min(least, time.perf_counter() - started)
    return big.nbytes / least
