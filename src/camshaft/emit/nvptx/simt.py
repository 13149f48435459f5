"""SimtContext: the LLVM IR of one thread of a workgroup while it is written. Machine: what depends on the GPU; NVVM: NVIDIA's.

A thread's code is that of a CPU with one lane, plus barriers and collectives of the workgroup. A second Machine, in
tests/support/, runs such code on any CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from camshaft.dtypes import DType, f16
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.control import branch
from camshaft.emit.llvm.values import Rep
from camshaft.lang import ir

# Threads that can exchange values directly.
WARP = 32
# Bytes. A device's `alignment` is larger.
ARRAY_ALIGNMENT = 16


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The instructions of a GPU for the threads of a workgroup.

    - `wait_for_all()`: a barrier of the workgroup, which orders its memory.
    - `shuffled(word, source)`: the i32 `word` of thread number `source` (i32) of this warp.
    - `multiplied(dtype, a, b, c)`: c (4 floats) + a (4 words) times b (2 words), one piece of a tile of the 16-bit float `dtype`:
      emit/nvptx/tiles.py.
    - `matrices(pointer, count, across)`: a word of each of 2 or 4 matrices of 8 x 8 in workgroup memory, the pair (lane / 4,
      2 (lane % 4)) of each, transposed first if `across`. `pointer`: this thread's row of 8; thread n gives row n % 8 of matrix
      n / 8.
    - `bits(x)`: the bits of the float `x` as i32.
    - `begin_copy(to, source, nbytes, present)`: starts to copy `present` (i32) of 4, 8 or 16 bytes from the device's memory to
      the workgroup's; the rest become zeros. `wait_for_copies(ahead)`: ends a group of copies and waits until at most the
      last `ahead` groups of this thread are under way.
    """

    wait_for_all: Callable[[SimtContext], None]
    shuffled: Callable[[SimtContext, str, str], str]
    multiplied: Callable[[SimtContext, DType, list[str], list[str], list[str]], list[str]]
    matrices: Callable[[SimtContext, str, int, bool], list[str]]
    bits: Callable[[SimtContext, str], str]
    begin_copy: Callable[[SimtContext, str, str, int, str], None]
    wait_for_copies: Callable[[SimtContext, int], None]


@dataclass(kw_only=True)
class SimtContext(Context):
    """`threads` of a workgroup. `exchange_nbytes`: bytes of workgroup memory through which collectives exchange values.

    `swizzled`: arrays in workgroup memory whose rows are kept in another order (swizzle.py).
    """

    machine: Machine
    threads: int
    exchange_nbytes: int = 0
    swizzled: frozenset[ir.Array] = frozenset()

    def alignment(self, array: ir.Array, at: Rep) -> int:
        # LLVM joins loads of neighbours to wide ones only where it knows this, and loses it when pointers become generic
        known = super().alignment(array, at)
        return gcd(known * at.multiple, ARRAY_ALIGNMENT) if array.scratch else known


def guarded(ctx: Context, conditions: list[str], body: Callable[[], None]) -> None:
    """if (all conditions (i1)) body()."""
    if not conditions:
        body()
        return
    condition = conditions[0]
    for other in conditions[1:]:
        condition = ctx.line(f"and i1 {condition}, {other}")
    branch(ctx, condition, ctx.label("when"), ctx.label("after"), body)


# --- NVIDIA's instructions, as LLVM's intrinsics ---------------------------------------------------------------------

_CONVERGENT = " #1"


def _wait_for_all(ctx: SimtContext) -> None:
    ctx.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ("i32", "0"), attributes=_CONVERGENT)


def _shuffled(ctx: SimtContext, word: str, source: str) -> str:
    mask = (1 << min(ctx.threads, WARP)) - 1
    arguments = [("i32", x) for x in (str(mask), word, source, "31")]
    return ctx.call("llvm.nvvm.shfl.sync.idx.i32", "i32", *arguments, attributes=_CONVERGENT)


def _multiplied(ctx: SimtContext, dtype: DType, a: list[str], b: list[str], c: list[str]) -> list[str]:
    is_f16 = dtype == f16  # LLVM takes pairs of f16 as vectors, pairs of bf16 as words
    name = f"llvm.nvvm.mma.m16n8k16.row.col.{'f32.f32' if is_f16 else 'bf16'}"
    typ, words = ("<2 x half>" if is_f16 else "i32"), [*a, *b]
    if is_f16:
        words = [ctx.line(f"bitcast i32 {x} to {typ}") for x in words]
    return _call_for_many(ctx, name, "float", 4, *((typ, x) for x in words), *(("float", x) for x in c))


def _matrices(ctx: SimtContext, pointer: str, count: int, across: bool) -> list[str]:
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if across else ''}.b16.p3"
    return _call_for_many(ctx, name, "i32", count, _in_space(ctx, pointer, 3))


def _call_for_many(ctx: SimtContext, name: str, typ: str, count: int, *arguments: tuple[str, str]) -> list[str]:
    """A call with `count` results of one type."""
    struct = f"{{{', '.join([typ] * count)}}}"
    found = ctx.call(name, struct, *arguments, attributes=_CONVERGENT)
    return [ctx.line(f"extractvalue {struct} {found}, {i}") for i in range(count)]


def _in_space(ctx: SimtContext, pointer: str, space: int) -> tuple[str, str]:
    """A generic pointer as an argument in the address space of the device (1) or the workgroup (3)."""
    typ = f"ptr addrspace({space})"
    return typ, ctx.line(f"addrspacecast ptr {pointer} to {typ}")


def _bits(ctx: SimtContext, x: str) -> str:
    # LLVM may store the low byte of a register that a float instruction wrote; ptxas 13.0 (and so drivers of CUDA 13.0) then
    # converts the float to u8 instead. It takes a moved register as it is, and the move costs nothing.
    return ctx.line(f'call i32 asm "mov.b32 $0, $1;", "=r,r"(float {x})')


def _begin_copy(ctx: SimtContext, to: str, source: str, nbytes: int, present: str) -> None:
    # 16 bytes can bypass the first-level cache (cg): each byte is read once
    name = f"llvm.nvvm.cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global.{nbytes}.s"
    ctx.call(name, "void", _in_space(ctx, to, 3), _in_space(ctx, source, 1), ("i32", present))


def _wait_for_copies(ctx: SimtContext, ahead: int) -> None:
    if ahead == 0:
        ctx.call("llvm.nvvm.cp.async.wait.all", "void")
        return
    ctx.call("llvm.nvvm.cp.async.commit.group", "void")
    ctx.call("llvm.nvvm.cp.async.wait.group", "void", ("i32", str(ahead)))


NVVM = Machine(
    wait_for_all=_wait_for_all,
    shuffled=_shuffled,
    multiplied=_multiplied,
    matrices=_matrices,
    bits=_bits,
    begin_copy=_begin_copy,
    wait_for_copies=_wait_for_copies,
)
