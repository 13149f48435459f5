"""Small kernels in LLVM IR of the executor's entry ABI, and thunks made of them, for the tests of plan/."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from camshaft.backends.cpu.compile import NativeLibrary, compile_module, load_object
from camshaft.extent import Extent
from camshaft.plan.buffers import Buffer, BufferSlice, BufferUse, Lifetime
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import BoundSchedule, bind
from camshaft.plan.schedule import Programs, Thunk

# add: program p does out[16 p + i] = a[16 p + i] + b[i]; count: program p adds 1 to counts[p]; tick: each program adds 1
# to one total, atomically; extent: writes the extent's active value.
MODULE = """
define void @add(ptr %args, i64 %first, i64 %last) {
entry:
  %a = load ptr, ptr %args
  %b.at = getelementptr i64, ptr %args, i64 1
  %b = load ptr, ptr %b.at
  %out.at = getelementptr i64, ptr %args, i64 2
  %out = load ptr, ptr %out.at
  %y = load <16 x float>, ptr %b, align 4
  br label %head
head:
  %p = phi i64 [ %first, %entry ], [ %p.next, %body ]
  %more = icmp slt i64 %p, %last
  br i1 %more, label %body, label %done
body:
  %from = getelementptr <16 x float>, ptr %a, i64 %p
  %x = load <16 x float>, ptr %from, align 4
  %z = fadd <16 x float> %x, %y
  %to = getelementptr <16 x float>, ptr %out, i64 %p
  store <16 x float> %z, ptr %to, align 4
  %p.next = add i64 %p, 1
  br label %head
done:
  ret void
}
define void @count(ptr %args, i64 %first, i64 %last) {
entry:
  %counts = load ptr, ptr %args
  br label %head
head:
  %p = phi i64 [ %first, %entry ], [ %p.next, %body ]
  %more = icmp slt i64 %p, %last
  br i1 %more, label %body, label %done
body:
  %at = getelementptr i64, ptr %counts, i64 %p
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %p.next = add i64 %p, 1
  br label %head
done:
  ret void
}
define void @tick(ptr %args, i64 %first, i64 %last) {
  %total = load ptr, ptr %args
  %n = sub i64 %last, %first
  %old = atomicrmw add ptr %total, i64 %n monotonic
  ret void
}
define void @extent(ptr %args, i64 %first, i64 %last) {
  %out = load ptr, ptr %args
  %extent.at = getelementptr i64, ptr %args, i64 1
  %extent = load ptr, ptr %extent.at
  %value = load i64, ptr %extent
  store i64 %value, ptr %out
  ret void
}
"""


@dataclass(frozen=True)
class TestKernel:
    """A compiled kernel that keeps its code alive."""

    __test__ = False
    name: str
    address: int
    library: NativeLibrary


@functools.cache
def _library() -> NativeLibrary:
    return load_object(compile_module(MODULE))


@functools.cache
def kernel(name: str) -> TestKernel:
    """The kernel of this name in MODULE."""
    return TestKernel(name, _library().address(name), _library())


def buffer(name: str, nbytes: int, lifetime: Lifetime = Lifetime.TEMP) -> Buffer:
    """A buffer; TEMP unless said otherwise."""
    return Buffer(name, nbytes, lifetime)


def thunk(
    name: str,
    entry: object,
    args: tuple[BufferSlice | Extent, ...],
    reads: tuple[BufferSlice, ...] = (),
    writes: tuple[BufferSlice, ...] = (),
    programs: Programs | int = 1,
) -> Thunk:
    """A kernel thunk, or a host thunk when `entry` is a Python function; `entry` may name a kernel of MODULE."""
    uses = tuple(BufferUse(s, "read") for s in reads) + tuple(BufferUse(s, "write") for s in writes)
    count = Programs(programs) if isinstance(programs, int) else programs
    found = kernel(entry) if isinstance(entry, str) else entry
    kind = "kernel" if isinstance(found, TestKernel) else "host"
    return Thunk(name, "test", name, "a test", kind, found, args, uses, count)


def add(a: BufferSlice, b: BufferSlice, out: BufferSlice, name: str = "add") -> Thunk:
    """out = a + b over float32 rows of 16; b is one row."""
    return thunk(name, "add", (a, b, out), (a, b), (out,), out.nbytes // 64)


def chain(n_thunks: int, rows: int) -> tuple[list[Thunk], Buffer, Buffer, Buffer]:
    """x + step, n_thunks times, through temporaries; thunks and the buffers x, step and y."""
    x, y = buffer("x", rows * 64, Lifetime.IO), buffer("y", rows * 64, Lifetime.IO)
    step = buffer("step", 64, Lifetime.CONSTANT)
    links = [x, *(buffer(f"t{i}", rows * 64) for i in range(n_thunks - 1)), y]
    thunks = [add(links[i].slice(), step.slice(), links[i + 1].slice(), f"add{i}") for i in range(n_thunks)]
    return thunks, x, step, y


def chain_plan(n_thunks: int, rows: int, threads: int, seed: int = 0) -> tuple[BoundSchedule, np.ndarray, np.ndarray]:
    """A bound chain of adds, its output, and the output that is right."""
    thunks, x, step, y = chain(n_thunks, rows)
    schedule, memory = make_schedule(thunks)
    rng = np.random.default_rng(seed)
    first, plus = rng.random(rows * 16, np.float32), rng.random(16, np.float32)
    out = np.zeros(rows * 16, np.float32)
    wanted = first.reshape(rows, 16)
    for _ in range(n_thunks):
        wanted = wanted + plus
    aligned = {x: align(first), step: align(plus), y: align(out)}
    return bind(schedule, memory, buffers=aligned, threads=threads), aligned[y], wanted.reshape(-1)


def align(values: np.ndarray) -> np.ndarray:
    """A copy whose address is a multiple of 64."""
    whole = np.zeros(values.nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    copy = whole[start : start + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy
