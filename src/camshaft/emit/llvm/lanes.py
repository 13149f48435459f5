"""Exchange between lanes in LLVM IR: reductions, scans, shuffles. Lanes are elements of one vector, a subgroup is all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.dtypes import DType
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.memory import gather
from camshaft.emit.llvm.values import Rep, literal, scalar_type, vector_type
from camshaft.emit.llvm.vectors import index_type, shuffled, widened
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, identity


def combine(ctx: Context, dtype: DType, n: int, kind: str, a: str, b: str) -> str:
    """Two accumulators of a kind in one."""
    lowering, typed = INSTRUCTIONS[COMBINERS[kind]].llvm[dtype.kind], ctx.typed(dtype, n)
    return typed.call(lowering, a, b) if lowering.startswith("llvm.") else typed.op(lowering, a, b)


# --- reductions ------------------------------------------------------------------------------------------------------


def reduce(ctx: Context, value: ir.Value) -> Rep:
    """All lanes into one, by halving."""
    rep = ctx.reps[value.args[0]]
    if ctx.lanes == 1:
        return rep
    name = widened(ctx, rep, value.dtype, ctx.lanes)
    return _halve(ctx, name, value.dtype, ctx.lanes, value.attr)


def vector_reduce(ctx: Context, value: ir.Value) -> Rep:
    """An explicit vector into one element."""
    (vector,), kind = value.args, value.op.removeprefix("vector_")
    return _halve(ctx, ctx.reps[vector].name, value.dtype, vector.width, kind)


def _halve(ctx: Context, name: str, dtype: DType, n: int, kind: str) -> Rep:
    while n > 1:
        typ, half = vector_type(dtype, n), n // 2
        parts = [shuffled(ctx, typ, name, range(start, start + half)) for start in (0, half)]
        n = half
        if n == 1:
            parts = [ctx.line(f"extractelement <1 x {scalar_type(dtype)}> {p}, i64 0") for p in parts]
        name = combine(ctx, dtype, n, kind, *parts)
    return Rep(name)


# --- scans -----------------------------------------------------------------------------------------------------------


def scan(ctx: Context, value: ir.Value) -> Rep:
    """Lane i with i - 1, then with i - 2, i - 4 and so on; the identity comes in from below lane 0."""
    kind, exclusive = value.attr
    rep, n, dtype = ctx.reps[value.args[0]], ctx.lanes, value.dtype
    neutral = literal(identity(kind, dtype.numpy), dtype)
    if n == 1:
        return Rep(neutral) if exclusive else rep
    name = widened(ctx, rep, dtype, n)
    if exclusive:
        name = _moved_up(ctx, name, dtype, neutral, 1)
    step = 1
    while step < n:
        name = combine(ctx, dtype, n, kind, name, _moved_up(ctx, name, dtype, neutral, step))
        step *= 2
    return Rep(name, n)


def _moved_up(ctx: Context, name: str, dtype: DType, neutral: str, by: int) -> str:
    """Lane i gets lane i - by; the lowest get `neutral`."""
    n, typ = ctx.lanes, vector_type(dtype, ctx.lanes)
    order = ", ".join(f"i32 {i if i < by else n + i - by}" for i in range(n))
    fill = f"{typ} splat ({scalar_type(dtype)} {neutral})"
    return ctx.line(f"shufflevector {fill}, {typ} {name}, <{n} x i32> <{order}>")


# --- shuffles --------------------------------------------------------------------------------------------------------


def shuffle(ctx: Context, value: ir.Value) -> Rep:
    """A uniform lane extracts an element, a pattern known now shuffles the vector, others go through memory."""
    rep, n, dtype = ctx.reps[value.args[0]], ctx.lanes, value.dtype
    if n == 1 or rep.is_scalar:
        return rep
    lane, typ = ctx.reps[value.args[1]], vector_type(dtype, n)
    name = widened(ctx, rep, dtype, n)
    if lane.is_scalar:
        return Rep(ctx.line(f"extractelement {typ} {name}, i64 {lane.name}"))
    pattern = _pattern(value.args[1], n)
    if pattern is None:
        return Rep(_picked(ctx, name, dtype, widened(ctx, lane, value.args[1].dtype, n)), n)
    return Rep(shuffled(ctx, typ, name, np.broadcast_to(pattern, (n,)).tolist()), n)


def _picked(ctx: Context, name: str, dtype: DType, lanes: str) -> str:
    """Each lane's element of a vector that is put in memory for it."""
    typ = vector_type(dtype, ctx.lanes)
    slot = ctx.slot("shuffled", typ, ", align 64")
    ctx.write(f"store {typ} {name}, ptr {slot}, align 64")
    places = ctx.line(f"getelementptr inbounds {scalar_type(dtype)}, ptr {slot}, {index_type(ctx)} {lanes}")
    return gather(ctx, dtype, places, "splat (i1 true)", "poison")


def _pattern(value: ir.Value, lanes: int) -> Any:
    """A value's elements where they follow from the lane's number alone, or None."""
    if value.op == "lane":
        return np.arange(lanes, dtype=np.int64)
    if value.op in ("const", "lane_count"):
        return value.dtype.numpy.type(value.attr if value.op == "const" else lanes)
    row = INSTRUCTIONS.get(value.op)
    if row is None or row.result == "attr":
        return None
    args = [_pattern(arg, lanes) for arg in value.args]
    return None if any(a is None for a in args) else row.numpy(*args)
