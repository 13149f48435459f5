"""Control flow in LLVM IR: blocks, variables, loops, branches and masks."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from camshaft.dtypes import i64
from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.values import Affine, Rep, integer, iota, vector_type
from camshaft.lang import ir


def write_block(ctx: Context, block: ir.Block) -> None:
    """Emit each item by its rule. A constant stays valid when a block is emitted again."""
    values, statements = ctx.rules.values, ctx.rules.statements
    for item in block.statements:
        if isinstance(item, ir.Value):
            if item.op != "const" or item not in ctx.reps:
                ctx.reps[item] = values[item.op](ctx, item)
        else:
            statements[type(item)](ctx, item)


def counted_loop(ctx: Context, start: str, stop: str, step: int, body: Callable[[str], None]) -> None:
    """for (i = start; i < stop; i += step) body(i)."""
    head, inside, done = ctx.label("head"), ctx.label("body"), ctx.label("done")
    slot = ctx.slot("counter", "i64")
    ctx.write(f"store i64 {start}, ptr {slot}")
    ctx.write(f"br label %{head}")
    ctx.open(head)
    counter = ctx.line(f"load i64, ptr {slot}")
    more = ctx.line(f"icmp slt i64 {counter}, {stop}")
    ctx.write(f"br i1 {more}, label %{inside}, label %{done}")
    ctx.open(inside)
    body(counter)
    ctx.write(f"store i64 {ctx.line(f'add nsw i64 {counter}, {step}')}, ptr {slot}")
    ctx.write(f"br label %{head}")
    ctx.open(done)


def branch(ctx: Context, condition: str, inside: str, done: str, body: Callable[[], None]) -> None:
    """if (condition) body(). `inside` and `done` are the labels of the body's block and of the next one."""
    ctx.write(f"br i1 {condition}, label %{inside}, label %{done}")
    ctx.open(inside)
    body()
    ctx.write(f"br label %{done}")
    ctx.open(done)


# --- variables -------------------------------------------------------------------------------------------------------


def var_new(ctx: Context, item: ir.VarNew) -> None:
    n, dtype = ctx.var_width(item.var), item.var.dtype
    typ = vector_type(dtype, n)
    ctx.slots[item.var] = slot = ctx.slot("var", typ)
    ctx.write(f"store {typ} {ctx.as_vector(ctx.reps[item.var.init], dtype, n)}, ptr {slot}")


def var_set(ctx: Context, item: ir.VarSet) -> None:
    n, slot = ctx.var_width(item.var), ctx.slots[item.var]
    typ, new = vector_type(item.var.dtype, n), ctx.as_vector(ctx.reps[item.value], item.var.dtype, n)
    if ctx.mask is not None and item.var in ctx.varying_vars:
        old = ctx.line(f"load {typ}, ptr {slot}")
        new = ctx.line(f"select {ctx.mask_type} {ctx.mask}, {typ} {new}, {typ} {old}")
    ctx.write(f"store {typ} {new}, ptr {slot}")


# --- loops -----------------------------------------------------------------------------------------------------------


def range_loop(ctx: Context, item: ir.Range) -> None:
    start, stop = ctx.reps[item.start], ctx.reps[item.stop]
    multiple = gcd(start.multiple, item.step)

    def body(counter: str) -> None:
        ctx.reps[item.index] = Rep(counter, multiple=multiple)
        write_block(ctx, item.body)

    counted_loop(ctx, start.name, stop.name, item.step, body)


def lanes_loop(ctx: Context, item: ir.Lanes) -> None:
    """Emit a loop over whole vectors, then the body again under a mask for the remaining lanes."""
    start, stop, width = ctx.reps[item.start], ctx.reps[item.stop], ctx.lanes
    if width == 1:
        counted_loop(ctx, start.name, stop.name, 1, lambda i: _lanes_body(ctx, item, Rep(i)))
        return
    length = index.plus(ctx, stop, start, -1)
    whole = _whole_lanes(ctx, length)
    end = index.plus(ctx, start, whole)
    multiple = gcd(start.multiple, width)
    if whole.constant != 0:
        counted_loop(ctx, start.name, end.name, width, lambda i: _lanes_body(ctx, item, Rep(i, multiple=multiple)))
    if length.constant is None or length.constant % width:
        _ragged_end(ctx, item, end, stop, multiple)


def _whole_lanes(ctx: Context, length: Rep) -> Rep:
    """length rounded down to whole vectors (0 for a negative length)."""
    if length.constant is not None:
        return integer(max(length.constant, 0) // ctx.lanes * ctx.lanes)
    positive = ctx.call("llvm.smax.i64", "i64", ("i64", length.name), ("i64", "0"))
    return Rep(ctx.line(f"and i64 {positive}, {-ctx.lanes}"), multiple=ctx.lanes)


def _ragged_end(ctx: Context, item: ir.Lanes, end: Rep, stop: Rep, multiple: int) -> None:
    """Emit the body again under the mask lane < stop - end."""
    tail, done = ctx.label("tail"), ctx.label("after")
    rest = ctx.line(f"icmp slt i64 {end.name}, {stop.name}")

    def body() -> None:
        left = ctx.line(f"sub nsw i64 {stop.name}, {end.name}")
        lanes = f"{ctx.index_type} {iota(ctx.lanes)}, {ctx.splat(left, i64, ctx.lanes)}"
        mask = _also_active(ctx, ctx.line(f"icmp ult {lanes}"))
        base = Rep(end.name, multiple=multiple, constant=end.constant)
        _masked(ctx, mask, ctx.mask is None, lambda: _lanes_body(ctx, item, base))

    branch(ctx, rest, tail, done, body)


def _lanes_body(ctx: Context, item: ir.Lanes, base: Rep) -> None:
    ctx.reps[item.index] = base if ctx.lanes == 1 else Rep("", affine=Affine(base, 1))
    write_block(ctx, item.body)


# --- branches --------------------------------------------------------------------------------------------------------


def when(ctx: Context, item: ir.When) -> None:
    """Emit a branch. For a varying condition it tests whether any lane is active, and the body runs under a mask."""
    condition = ctx.reps[item.condition]
    inside, done = ctx.label("when"), ctx.label("after")
    if condition.n == 0:
        branch(ctx, condition.name, inside, done, lambda: write_block(ctx, item.body))
        return
    mask = _also_active(ctx, condition.name)
    bits = ctx.line(f"bitcast {ctx.mask_type} {mask} to i{ctx.lanes}")
    some = ctx.line(f"icmp ne i{ctx.lanes} {bits}, 0")
    branch(ctx, some, inside, done, lambda: _masked(ctx, mask, False, lambda: write_block(ctx, item.body)))


def _also_active(ctx: Context, mask: str) -> str:
    """The lanes of a mask that are active already."""
    return mask if ctx.mask is None else ctx.line(f"and {ctx.mask_type} {ctx.mask}, {mask}")


def _masked(ctx: Context, mask: str, is_prefix: bool, body: Callable[[], None]) -> None:
    """Emit `body` under a mask."""
    outer = ctx.mask, ctx.mask_is_prefix
    ctx.mask, ctx.mask_is_prefix = mask, is_prefix
    body()
    ctx.mask, ctx.mask_is_prefix = outer


def barrier(ctx: Context, item: ir.Barrier) -> None:
    """Emit nothing: the lanes of a vector run in lockstep, so the memory order within a thread suffices."""
