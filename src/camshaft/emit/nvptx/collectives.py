"""Collectives of a workgroup in LLVM IR: through workgroup memory between warps, by shuffles within one.

A reduction has the order of the CPU's (the first half with the second until one is left), so it has the same bits: each thread
combines the elements of other warps in that order, then exchanges values within its warp. The operations commute, so all
threads get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from camshaft.dtypes import DType
from camshaft.emit.llvm.lanes import combine
from camshaft.emit.llvm.values import Rep, literal, memory_dtype, scalar_type
from camshaft.emit.nvptx.simt import WARP, SimtContext
from camshaft.lang import ir
from camshaft.lang.instructions import identity


def reduce(ctx: SimtContext, value: ir.Value) -> Rep:
    """Reduce lanes 0..n-1; all lanes get the result."""
    kind, n = value.attr
    x, dtype, within = ctx.reps[value.args[0]].name, value.dtype, min(n, WARP)
    own = "%lane" if n == ctx.threads <= WARP else ctx.line(f"and i64 %lane, {within - 1}")
    if ctx.threads > WARP:
        sources = [own] + [ctx.line(f"add nuw nsw i64 {own}, {start}") for start in range(WARP, n, WARP)]
        parts = _through_memory(ctx, x, dtype, sources)
    elif n < ctx.threads:
        parts = [_words_shuffled(ctx, x, dtype, _lane_in_warp(ctx, own))]
    else:
        parts = [x]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [combine(ctx, dtype, 0, kind, a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
    return Rep(_exchanged(ctx, parts[0], dtype, kind, within))


def _exchanged(ctx: SimtContext, x: str, dtype: DType, kind: str, n: int) -> str:
    """Combine n threads' values, each with that of the thread n/2, n/4, ..., 1 away."""
    stride = n // 2
    while stride:
        partner = _lane_in_warp(ctx, ctx.line(f"xor i64 {ctx.line('and i64 %lane, 31')}, {stride}"))
        x = combine(ctx, dtype, 0, kind, x, _words_shuffled(ctx, x, dtype, partner))
        stride //= 2
    return x


def broadcast(ctx: SimtContext, value: ir.Value) -> Rep:
    """The value of lane number `attr`, for all lanes."""
    return Rep(_from_lane(ctx, ctx.reps[value.args[0]].name, value.dtype, str(value.attr)))


def shuffle(ctx: SimtContext, value: ir.Value) -> Rep:
    """The value of the lane that the second operand (i64) gives: directly if that is known to be of the same warp."""
    x, source = (ctx.reps[arg].name for arg in value.args)
    if _stays_in_warp(value.args[1]):
        within = ctx.line(f"and i64 {source}, {WARP - 1}")
        return Rep(_words_shuffled(ctx, x, value.dtype, _lane_in_warp(ctx, within)))
    return Rep(_from_lane(ctx, x, value.dtype, source))


def _stays_in_warp(lane: ir.Value) -> bool:
    """Whether a lane number is known to be of the thread's own warp: its lane, or lane ^ n, as a butterfly has them."""
    if lane.op == "select":
        return all(_stays_in_warp(chosen) for chosen in lane.args[1:])
    if lane.op == "xor":
        own, n = lane.args
        return own.op == "lane" and n.op == "const" and 0 <= n.attr < WARP
    return lane.op == "lane"


def scan(ctx: SimtContext, value: ir.Value) -> Rep:
    """Combine each lane's value with those of the lanes below: 1 below, then 2, 4 and so on."""
    kind, exclusive = value.attr
    x, dtype = ctx.reps[value.args[0]].name, value.dtype
    start = literal(identity(kind, dtype.numpy), dtype)
    if exclusive:
        x = _from_below(ctx, x, dtype, 1, start)
    stride = 1
    while stride < ctx.threads:
        below = _from_below(ctx, x, dtype, stride, start)
        x = combine(ctx, dtype, 0, kind, below, x)
        stride *= 2
    return Rep(x)


def _from_below(ctx: SimtContext, x: str, dtype: DType, stride: int, start: str) -> str:
    """The value of the lane `stride` below, `start` if there is none."""
    outside = ctx.line(f"icmp slt i64 %lane, {stride}")
    source = ctx.line(f"select i1 {outside}, i64 %lane, i64 {ctx.line(f'sub nsw i64 %lane, {stride}')}")
    typ = scalar_type(dtype)
    return ctx.line(f"select i1 {outside}, {typ} {start}, {typ} {_from_lane(ctx, x, dtype, source)}")


def _from_lane(ctx: SimtContext, x: str, dtype: DType, source: str) -> str:
    if ctx.threads > WARP:
        return _through_memory(ctx, x, dtype, [source])[0]
    return _words_shuffled(ctx, x, dtype, _lane_in_warp(ctx, source))


def _through_memory(ctx: SimtContext, x: str, dtype: DType, sources: Sequence[str]) -> list[str]:
    """The values of the lanes `sources` (i64), through workgroup memory, which the next collective may use again."""
    typ, memory = scalar_type(dtype), scalar_type(memory_dtype(dtype))
    ctx.exchange_nbytes = max(ctx.exchange_nbytes, dtype.nbytes * ctx.threads)  # all collectives share it
    stored = ctx.line(f"zext i1 {x} to i8") if dtype.kind == "b" else x
    own = ctx.line(f"getelementptr inbounds {memory}, ptr %exchange, i64 %lane")
    ctx.write(f"store {memory} {stored}, ptr {own}, align {dtype.nbytes}")
    ctx.machine.wait_for_all(ctx)
    addresses = [ctx.line(f"getelementptr inbounds {memory}, ptr %exchange, i64 {source}") for source in sources]
    got = [ctx.line(f"load {memory}, ptr {address}, align {dtype.nbytes}") for address in addresses]
    ctx.machine.wait_for_all(ctx)
    return [ctx.line(f"trunc i8 {name} to {typ}") for name in got] if dtype.kind == "b" else got


# --- within a warp ---------------------------------------------------------------------------------------------------


def _words_shuffled(ctx: SimtContext, name: str, dtype: DType, source: str) -> str:
    """A value of any dtype from another thread of this warp, word by word."""
    if dtype.nbytes == 8:
        return _halves_shuffled(ctx, name, dtype, source)
    typ, bits, shuffled = scalar_type(dtype), "i1" if dtype.kind == "b" else f"i{dtype.bits}", ctx.machine.shuffled
    word = name if typ == bits else ctx.line(f"bitcast {typ} {name} to {bits}")
    word = word if bits == "i32" else ctx.line(f"zext {bits} {word} to i32")
    got = shuffled(ctx, word, source)
    got = got if bits == "i32" else ctx.line(f"trunc i32 {got} to {bits}")
    return got if typ == bits else ctx.line(f"bitcast {bits} {got} to {typ}")


def _halves_shuffled(ctx: SimtContext, name: str, dtype: DType, source: str) -> str:
    typ, shuffled = scalar_type(dtype), ctx.machine.shuffled
    whole = name if typ == "i64" else ctx.line(f"bitcast {typ} {name} to i64")
    low = shuffled(ctx, ctx.line(f"trunc i64 {whole} to i32"), source)
    high = shuffled(ctx, ctx.line(f"trunc i64 {ctx.line(f'lshr i64 {whole}, 32')} to i32"), source)
    upper = ctx.line(f"shl i64 {ctx.line(f'zext i32 {high} to i64')}, 32")
    joined = ctx.line(f"or i64 {upper}, {ctx.line(f'zext i32 {low} to i64')}")
    return joined if typ == "i64" else ctx.line(f"bitcast i64 {joined} to {typ}")


def _lane_in_warp(ctx: SimtContext, index: str) -> str:
    """An i64 lane index as the i32 that a shuffle takes."""
    return ctx.line(f"trunc i64 {index} to i32")


# The rules of collectives by the op of the value.
OPS: dict[str, Callable[[SimtContext, ir.Value], Rep]] = {
    "reduce": reduce,
    "broadcast": broadcast,
    "shuffle": shuffle,
    "scan": scan,
}
