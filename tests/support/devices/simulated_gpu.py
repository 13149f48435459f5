"""A GPU played by this CPU: the SIMT form of a kernel runs with one fiber per thread of a workgroup, switched at barriers.

The emitter is the one that writes PTX, but for its thread index, barrier, shuffle, products of matrices and copies in the
background, which here call the harness below. Between
two barriers the threads run one after the other in an order drawn anew each time, so a barrier that is missing shows in the
results; one that not all threads reach, and a shuffle from outside of the warp, end the process with a message.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from camshaft.backends.cpu.compile import host_target, load_object
from camshaft.emit.llvm.module import argument_lines, program_lines, size_lines, total_lines
from camshaft.emit.llvm.values import array_name, memory_dtype
from camshaft.emit.nvptx.module import MOST_SHARED_NBYTES, simt_form, thread
from camshaft.emit.nvptx.simt import Machine
from camshaft.emit.target import CpuTarget
from camshaft.lang import CompileRequest
from tests.support.compilers.emit_harness import compiled

HARNESS = Path(__file__).with_suffix(".c")


# The machine's first words.
WORDS = ("%shared.all", "%barrier", "%shuffle", "%multiply", "%matrices", "%copy", "%landed")


def _room(ctx, typ: str, count: int) -> list[str]:
    """Places on the stack, one after the other."""
    area = ctx.slot("room", f"[{count} x {typ}]", ", align 4")
    return [ctx.line(f"getelementptr {typ}, ptr {area}, i64 {i}") for i in range(count)]


def _multiplied(ctx, dtype, a: list[str], b: list[str], c: list[str]) -> list[str]:
    words, sums = _room(ctx, "i32", 6), _room(ctx, "float", 4)
    for typ, places, values in (("i32", words, [*a, *b]), ("float", sums, c)):
        for place, value in zip(places, values, strict=True):
            ctx.write(f"store {typ} {value}, ptr {place}")
    is_bf16 = int(dtype.name == "bf16")
    ctx.write(f"call void %multiply(ptr %machine, ptr {words[0]}, ptr {sums[0]}, i32 {is_bf16})")
    return [ctx.line(f"load float, ptr {place}") for place in sums]


def _matrices(ctx, pointer: str, count: int, across: bool) -> list[str]:
    words = _room(ctx, "i32", count)
    ctx.write(f"call void %matrices(ptr %machine, ptr {pointer}, ptr {words[0]}, i32 {count}, i32 {int(across)})")
    return [ctx.line(f"load i32, ptr {place}") for place in words]


def _begin_copy(ctx, to: str, source: str, nbytes: int, present: str) -> None:
    ctx.write(f"call void %copy(ptr %machine, ptr {to}, ptr {source}, i32 {nbytes}, i32 {present})")


# What depends on the machine are calls through its first words.
SIMULATED = Machine(
    wait_for_all=lambda ctx: ctx.write("call void %barrier(ptr %machine)"),
    shuffled=lambda ctx, word, source: ctx.line(f"call i32 %shuffle(ptr %machine, i32 {word}, i32 {source})"),
    multiplied=_multiplied,
    matrices=_matrices,
    bits=lambda ctx, x: ctx.line(f"bitcast float {x} to i32"),
    begin_copy=_begin_copy,
    wait_for_copies=lambda ctx, ahead: ctx.write(f"call void %landed(ptr %machine, i32 {ahead})"),
)


def emit(kernel, symbol: str) -> tuple[str, int]:
    """The LLVM module of `void symbol(args, linear, lane, machine)`, and the bytes of workgroup memory that it wants."""
    features = frozenset(f[1:] for f in host_target().features.split(",") if f.startswith("+"))
    body = thread(kernel, CpuTarget(platform.machine().lower(), 1, features), SIMULATED)
    lines = [f"define void @{symbol}(ptr %args, i64 %linear, i64 %lane, ptr %machine) {{", "entry:"]
    lines += [f"  {line}" for line in body.allocas]
    for i, name in enumerate(WORDS):
        lines += [f"  %word{i} = getelementptr i64, ptr %machine, i64 {i}", f"  {name} = load ptr, ptr %word{i}"]
    lines += argument_lines(kernel)
    offset = 0
    for name, nbytes in [
        *((array_name(a.name), prod(a.shape) * memory_dtype(a.dtype).nbytes) for a in kernel.shared),
        ("%exchange", body.exchange_nbytes),
    ]:
        lines.append(f"  {name} = getelementptr i8, ptr %shared.all, i64 {offset}")
        offset += -(-nbytes // 16) * 16
    found, sizes = size_lines(kernel.grid, kernel.scalars)
    product, total = total_lines(sizes)
    lines += [*found, *product, f"  %inside = icmp slt i64 %linear, {total}"]
    lines += ["  br i1 %inside, label %program, label %nothing", "program:", *program_lines(sizes, "%linear")]
    lines += [*body.lines, "  br label %nothing", "nothing:", "  ret void", "}"]
    return "\n".join([*lines, *sorted(body.declarations.values())]) + "\n", offset


@functools.cache
def harness():
    """`simulate` of the C file beside this one. RuntimeError where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the simulated GPU wants a C compiler")
    folder = Path(tempfile.mkdtemp(prefix="camshaft-simt-"))
    command = [
        compiler,
        "-O2",
        "-Wall",
        "-Werror",
        "-U_FORTIFY_SOURCE",
        "-shared",
        "-fPIC",
        str(HARNESS),
        "-o",
        "harness.so",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    library = ctypes.CDLL(str(folder / "harness.so"))
    shutil.rmtree(folder)
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    library.simulate.argtypes = [pointer, pointer, word, word, ctypes.c_int, word, ctypes.c_uint64]
    library.simulate.restype = word
    return library.simulate


@dataclass
class SimulatedKernel:
    """A kernel that runs workgroup after workgroup on this thread; called like a CPU's: (argument block, first, last).

    `bank_conflicts`: of the loads of matrices of the last call."""

    name: str
    lanes: int
    address: int
    shared_nbytes: int
    library: object = field(repr=False)
    seed: int = 1
    bank_conflicts: int = 0

    def __call__(self, args: int, first: int, last: int) -> None:
        self.bank_conflicts = harness()(self.address, args, first, last, self.lanes, self.shared_nbytes, self.seed)


def simulated(kernel, seed: int = 1) -> SimulatedKernel:
    """A SimtKernel made ready to run here."""
    text, nbytes = emit(kernel, "kernel")
    library = load_object(compiled(text, vectorize=False))
    return SimulatedKernel(kernel.name, kernel.lanes, library.address("kernel"), nbytes, library, seed)


_made: dict[tuple, SimulatedKernel] = {}


# The driver aligns to 256 bytes; 16 are what the widest access wants.
LIMITS = {"workgroup_memory": MOST_SHARED_NBYTES, "alignment": 16}


@dataclass(frozen=True)
class SimulatedDevice:
    """What validation/run.py wants of a device; `lanes` threads a workgroup, `seed` draws the order of threads."""

    lanes: int = 64
    seed: int = 1
    backend: str = "cuda"
    name: str = "simulated"
    features: frozenset[str] = frozenset()
    space: str = "host"
    limits: Mapping[str, int] = field(default_factory=lambda: dict(LIMITS))

    def compile(self, request: CompileRequest) -> SimulatedKernel:
        lanes = request.lanes or self.lanes
        key = (request.kernel, request.key(), lanes)
        if key not in _made:
            _made[key] = simulated(simt_form(request.trace(), lanes))
        found = _made[key]
        return SimulatedKernel(
            found.name, found.lanes, found.address, found.shared_nbytes, found.library, np.uint64(self.seed).item()
        )
