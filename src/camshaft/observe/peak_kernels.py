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
from camshaft.emit.target import LEVELS
from camshaft.lang import Array as KernelArray
from camshaft.lang import CompileRequest, Constant, Kernel, Tracer, ir, kernel
from camshaft.observe.peak_arithmetic import (
    CHAINS,
    SLOTS,
    STEPS,
    TILE_DEPTH,
    TILE_STEPS,
    WIDTH,
    byte_chains,
    chains,
    tiles,
)
from camshaft.plan.buffers import Buffer, BufferUse, Lifetime
from camshaft.plan.memory.allocate import aligned_bytes, huge_pages
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import BoundSchedule, bind
from camshaft.plan.schedule import Programs, Thunk
from camshaft.selection.host_info import hardware, memory_nbytes

PIECE = 1024  # vectors per program: 64 KiB


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


NBYTES = 256 << 20  # much larger than the last-level cache of most machines
N_PROGRAMS = 32
REPEATS, LEAST_S = 5, 0.1
# (streams read concurrently, vectors to prefetch ahead)
_READ_PATTERNS, ROUNDS = ((1, 0), (1, 64), (2, 0), (4, 0)), 20
Array = np.ndarray[Any, Any]


def _least_seconds(call: Callable[[], object]) -> float:
    """The minimum time of at least REPEATS single calls in at least LEAST_S; a busy machine has quiet moments. The first call is
    a warm-up."""
    call()
    taken: list[float] = []
    while len(taken) < REPEATS or sum(taken) < LEAST_S:
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return min(taken)


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
    """A unit that multiplies: `kinds` are the kinds of products that kernels compute with it. `features` are those of CPUs that
    have it, `step` is the Tracer's method of a step in each lane, and `side` that of a tile, if it is a matrix unit. `words`:
    byte products that are added in 16 bits."""

    name: str
    kinds: tuple[str, ...]
    step: str
    side: int = 0
    features: frozenset[str] = frozenset()
    words: int = 1

    @property
    def operands(self) -> tuple[DType, int, DType]:
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
    # Codes of 4 bits alone, so it is not a peak of int8
    Unit("int4 in 16-bit sums", (), "dot4", features=frozenset({"avx2"}), words=8),
)


def units_here() -> tuple[Unit, ...]:
    """The units that this CPU has, and that the settings let kernels use."""
    features = cpu_device("simd").features
    apart = _makes_dots_of_several(features)
    return tuple(unit for unit in UNITS if unit.features <= features and (apart or unit.words == 1))


def _makes_dots_of_several(features: frozenset[str]) -> bool:
    """Whether an x86 CPU lacks an instruction for byte dot products."""
    return "sse4.1" in features and not features & {"avx512vnni", "avxvnni"}


def _registers(features: frozenset[str]) -> int:
    return max(level.registers for level in LEVELS.values() if level.features <= features)


def chains_of(words: int = 1) -> int:
    """Independent sums that fit this CPU's registers, CHAINS at most; with `words` products in 16 bits each."""
    device = cpu_device("simd")
    free = _registers(device.features) - 6
    return max(1, min(CHAINS, free * device.lanes // WIDTH // (1 if words == 1 else 2)))


def measure_unit(unit: Unit, threads: int) -> float:
    """Operations per second of a unit with `threads` threads; a multiply-add counts as two."""
    in_dtype, value, out_dtype = unit.operands
    constants: dict[str, Constant]
    if unit.side:
        rows, width = unit.side + SLOTS * TILE_DEPTH, max(SLOTS * TILE_DEPTH, unit.side)
        x = _ones(in_dtype, N_PROGRAMS * rows, width)
        out = _ones(out_dtype, N_PROGRAMS * unit.side, unit.side)
        source, constants = tiles, {"side": unit.side, "times": TILE_STEPS}
        work = unit.side**2 * TILE_DEPTH * TILE_STEPS * _PER_LANE[unit.step]
    else:
        sums = chains_of(unit.words)
        x, out = (
            _ones(in_dtype, N_PROGRAMS, (5 + sums * unit.words) * WIDTH),
            _ones(out_dtype, N_PROGRAMS, sums * WIDTH),
        )
        source, constants = chains, {"step": unit.step}
        if unit.step == "dot4" and _makes_dots_of_several(cpu_device("simd").features):
            source, constants = byte_chains, {"sums": sums, "words": unit.words, "times": STEPS}
        work = WIDTH * sums * unit.words * STEPS * _PER_LANE[unit.step]
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
