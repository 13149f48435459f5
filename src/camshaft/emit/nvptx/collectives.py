"""Collectives of a workgroup in LLVM IR: through workgroup memory from warp to warp, by shuffles within one.

Used by emit/nvptx/simt.py. A reduction keeps the order of the CPU's (the first half with the second until one is left), so that
its bits are the same: across warps every thread combines the same elements in that order, then the warp does by exchanging
neighbours; the operations commute, so that all threads get the same bits and none has to send them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from camshaft.dtypes import DType
from camshaft.emit.llvm.values import Rep, literal, memory_dtype, scalar_type
from camshaft.lang import ir
from camshaft.lang.instructions import identity

if TYPE_CHECKING:
    from camshaft.emit.nvptx.simt import SimtEmitter

WARP = 32


def reduce(e: SimtEmitter, value: ir.Value) -> Rep:
    """Lanes 0..n-1 into one, for all lanes."""
    kind, n = value.attr
    x, dtype, within = e.reps[value.args[0]].name, value.dtype, min(n, WARP)
    own = "%lane" if n == e.simt.lanes <= WARP else e.line(f"and i64 %lane, {within - 1}")
    if e.crosses_warps:
        sources = [own] + [e.line(f"add nuw nsw i64 {own}, {start}") for start in range(WARP, n, WARP)]
        parts = passed(e, x, dtype, sources)
    elif n < e.simt.lanes:
        parts = [e.words_shuffled(x, dtype, e.place_in_warp(own))]
    else:
        parts = [x]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [e.combine(dtype, 0, kind, a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
    return Rep(_exchanged(e, parts[0], dtype, kind, within))


def _exchanged(e: SimtEmitter, x: str, dtype: DType, kind: str, n: int) -> str:
    """The n threads' values combined, each with that of the thread n/2, n/4, ..., 1 away."""
    stride = n // 2
    while stride:
        partner = e.place_in_warp(e.line(f"xor i64 {e.line('and i64 %lane, 31')}, {stride}"))
        x = e.combine(dtype, 0, kind, x, e.words_shuffled(x, dtype, partner))
        stride //= 2
    return x


def broadcast(e: SimtEmitter, value: ir.Value) -> Rep:
    """The value of lane number `attr`, for all."""
    return Rep(_taken(e, e.reps[value.args[0]].name, value.dtype, str(value.attr)))


def shuffle(e: SimtEmitter, value: ir.Value) -> Rep:
    """Each lane's value from the lane that its second operand (i64) names."""
    x, source = (e.reps[arg].name for arg in value.args)
    return Rep(_taken(e, x, value.dtype, source))


def scan(e: SimtEmitter, value: ir.Value) -> Rep:
    """Lane i's value with those of the lanes below it: with that of the lane 1 below, then 2, 4 and so on."""
    kind, exclusive = value.attr
    x, dtype = e.reps[value.args[0]].name, value.dtype
    nothing = literal(identity(kind, dtype.numpy), dtype)
    if exclusive:
        x = _from_below(e, x, dtype, 1, nothing)
    stride = 1
    while stride < e.simt.lanes:
        below = _from_below(e, x, dtype, stride, nothing)
        x = e.combine(dtype, 0, kind, below, x)
        stride *= 2
    return Rep(x)


def _from_below(e: SimtEmitter, x: str, dtype: DType, stride: int, nothing: str) -> str:
    """The value of the lane `stride` below, `nothing` where there is none."""
    outside = e.line(f"icmp slt i64 %lane, {stride}")
    source = e.line(f"select i1 {outside}, i64 %lane, i64 {e.line(f'sub nsw i64 %lane, {stride}')}")
    typ = scalar_type(dtype)
    return e.line(f"select i1 {outside}, {typ} {nothing}, {typ} {_taken(e, x, dtype, source)}")


def _taken(e: SimtEmitter, x: str, dtype: DType, source: str) -> str:
    if e.crosses_warps:
        return passed(e, x, dtype, [source])[0]
    return e.words_shuffled(x, dtype, e.place_in_warp(source))


def passed(e: SimtEmitter, x: str, dtype: DType, sources: Sequence[str]) -> list[str]:
    """The values of the lanes `sources` (i64), through workgroup memory, which is free for the next collective afterwards."""
    typ, memory = scalar_type(dtype), scalar_type(memory_dtype(dtype))
    area = e.exchange(dtype.nbytes)
    stored = e.line(f"zext i1 {x} to i8") if dtype.kind == "b" else x
    own = e.line(f"getelementptr inbounds {memory}, ptr {area}, i64 %lane")
    e.write(f"store {memory} {stored}, ptr {own}, align {dtype.nbytes}")
    e.wait_for_all()
    places = [e.line(f"getelementptr inbounds {memory}, ptr {area}, i64 {source}") for source in sources]
    got = [e.line(f"load {memory}, ptr {place}, align {dtype.nbytes}") for place in places]
    e.wait_for_all()
    return [e.line(f"trunc i8 {name} to {typ}") for name in got] if dtype.kind == "b" else got
