"""Measure the machine's peak rates (memory reads, int8, bf16 and f32 operations) and cache them in the store.

`machine_peak()` reads the cache or measures; `stored_peak()` only reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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
from camshaft.settings import thread_count
from camshaft.store.digest import digest_of
from camshaft.store.store import row_as, store
from camshaft.validation.cases import machine_key

WIDTH = 16
CHAINS = 16  # independent accumulators: enough to hide the latency at two instructions per cycle
PIECE = 1024  # vectors per program: 64 KiB
STEPS = 20_000


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


@dataclass(frozen=True)
class MachinePeak:
    """Peak rates with `threads` threads: bytes read and operations per second (a multiply-add counts as two)."""

    threads: int
    read_bytes_per_s: float
    int8_ops_per_s: float
    bf16_ops_per_s: float
    f32_ops_per_s: float

    def best(self, other: MachinePeak) -> MachinePeak:
        """The higher value of each rate: disturbance only lowers a measurement."""
        return MachinePeak(
            *(max(mine, yours) for mine, yours in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def ops_per_s(self, kind: str) -> float:
        """The peak rate of 'int8', 'bf16' or 'f32'."""
        peak: float = vars(self)[f"{kind}_ops_per_s"]
        return peak

    def least_s(self, nbytes: float = 0.0, ops: Mapping[str, float] | None = None) -> float:
        """The roofline bound: the minimum seconds to read `nbytes` and do `ops` operations of each kind, overlapped."""
        computing = sum(n / self.ops_per_s(kind) for kind, n in (ops or {}).items())
        return max(nbytes / self.read_bytes_per_s, computing)


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
# (rate, step of `chains`, input dtype, input value, output dtype, operations per lane and step)
_RATES = (
    ("int8_ops_per_s", "dot4", u32, 1, i32, 8),
    ("bf16_ops_per_s", "dot2", u32, PAIR_OF_ONES, f32, 4),
    ("f32_ops_per_s", "fma", f32, 1, f32, 2),
)


def measure_reading(threads: int, nbytes: int = NBYTES) -> float:
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
        for _ in range(ROUNDS):
            for streams, plan in plans:
                started = time.perf_counter()
                plan.run()
                least = min(least, (time.perf_counter() - started) / (n // streams * streams))
    return big.nbytes / n / least


def measure(threads: int, nbytes: int = NBYTES) -> MachinePeak:
    """Measure the peak rates with `threads` threads, in about two seconds. `nbytes` is the size of the memory read."""
    rates = {}
    for rate, step, in_dtype, value, out_dtype, per_lane in _RATES:
        x, out = _ones(in_dtype, N_PROGRAMS, 2 * WIDTH), _ones(out_dtype, N_PROGRAMS, CHAINS * WIDTH)
        x[:] = value
        code = _compiled(chains, x, out, (in_dtype, out_dtype), N_PROGRAMS, step=step)
        work = float(per_lane * WIDTH * CHAINS * STEPS * N_PROGRAMS)
        rates[rate] = work / _seconds(code, (x, out), N_PROGRAMS, threads)
    return MachinePeak(threads, measure_reading(threads, nbytes), **rates)


def _key() -> str:
    return digest_of("machine peak", 4, machine_key())


def stored_peaks() -> tuple[MachinePeak, ...]:
    """The measured peaks of this machine, sorted by number of threads. Measures nothing."""
    rows = (store().evidence.get(_key()) or {}).get("peaks") or ()
    valid = [peak for row in rows if (peak := row_as(MachinePeak, row))]
    return tuple(sorted(valid, key=lambda r: r.threads))


def stored_peak(threads: int | None = None) -> MachinePeak | None:
    """The stored peak with `threads` threads (default: all), or None. Measures nothing."""
    wanted = thread_count(threads)
    return next((r for r in stored_peaks() if r.threads == wanted), None)


def machine_peak(threads: int | None = None, *, remeasure: bool = False) -> MachinePeak:
    """The peak with `threads` threads (default: all), measured and stored along with that of one thread if need be (5 s).

    `remeasure` measures again and stores the higher of the old and new rates.
    """
    wanted = thread_count(threads)
    known = {r.threads: r for r in stored_peaks()}
    if remeasure or wanted not in known:
        for n in {1, wanted}:
            if remeasure or n not in known:
                fresh = measure(n)
                known[n] = fresh.best(known[n]) if n in known else fresh
        store().evidence.put(_key(), {"peaks": [asdict(r) for r in known.values()]})
    return known[wanted]
