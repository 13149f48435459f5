"""Collectives and atomics in LLVM IR. The lanes are the elements of one vector, and a subgroup is all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.dtypes import DType
from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.control import branch, counted_loop
from camshaft.emit.llvm.memory import gather, pointer
from camshaft.emit.llvm.values import Rep, literal, scalar_type, vector_type
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS, Atomic
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, identity


def combine(ctx: Context, dtype: DType, n: int, kind: str, a: str, b: str) -> str:
    """Combine two accumulators of a kind."""
    lowering, typed = INSTRUCTIONS[COMBINERS[kind]].llvm[dtype.kind], ctx.typed(dtype, n)
    return typed.call(lowering, a, b) if lowering.startswith("llvm.") else typed.op(lowering, a, b)


# --- reductions ------------------------------------------------------------------------------------------------------


def reduce(ctx: Context, value: ir.Value) -> Rep:
    """Reduce all lanes to one by halving."""
    rep = ctx.reps[value.args[0]]
    if ctx.lanes == 1:
        return rep
    name = ctx.as_vector(rep, value.dtype, ctx.lanes)
    return _halve(ctx, name, value.dtype, ctx.lanes, value.attr)


def vector_reduce(ctx: Context, value: ir.Value) -> Rep:
    """Reduce an explicit vector to one element."""
    (vector,), kind = value.args, value.op.removeprefix("vector_")
    return _halve(ctx, ctx.reps[vector].name, value.dtype, vector.width, kind)


def _halve(ctx: Context, name: str, dtype: DType, n: int, kind: str) -> Rep:
    while n > 1:
        typ, half = vector_type(dtype, n), n // 2
        parts = [ctx.shuffled(typ, name, range(start, start + half)) for start in (0, half)]
        n = half
        if n == 1:
            parts = [ctx.line(f"extractelement <1 x {scalar_type(dtype)}> {p}, i64 0") for p in parts]
        name = combine(ctx, dtype, n, kind, *parts)
    return Rep(name)


# --- scans -----------------------------------------------------------------------------------------------------------


def scan(ctx: Context, value: ir.Value) -> Rep:
    """Combine lane i with lane i - 1, then i - 2, i - 4 and so on; lanes below 0 have the identity."""
    kind, exclusive = value.attr
    rep, n, dtype = ctx.reps[value.args[0]], ctx.lanes, value.dtype
    start = literal(identity(kind, dtype.numpy), dtype)
    if n == 1:
        return Rep(start) if exclusive else rep
    name = ctx.as_vector(rep, dtype, n)
    if exclusive:
        name = _moved_up(ctx, name, dtype, start, 1)
    step = 1
    while step < n:
        name = combine(ctx, dtype, n, kind, name, _moved_up(ctx, name, dtype, start, step))
        step *= 2
    return Rep(name, n)


def _moved_up(ctx: Context, name: str, dtype: DType, start: str, by: int) -> str:
    """Lane i gets the value of lane i - by; the lowest lanes get `start`."""
    n = ctx.lanes
    order = [i if i < by else n + i - by for i in range(n)]
    return ctx.shuffled(vector_type(dtype, n), f"splat ({scalar_type(dtype)} {start})", order, name)


# --- shuffles --------------------------------------------------------------------------------------------------------


def shuffle(ctx: Context, value: ir.Value) -> Rep:
    """Extract an element for a uniform lane number, shuffle the vector by a constant pattern, or else go through memory."""
    rep, n, dtype = ctx.reps[value.args[0]], ctx.lanes, value.dtype
    if n == 1 or rep.is_scalar:
        return rep
    lane, typ = ctx.reps[value.args[1]], vector_type(dtype, n)
    name = ctx.as_vector(rep, dtype, n)
    if lane.is_scalar:
        return Rep(ctx.line(f"extractelement {typ} {name}, i64 {lane.name}"))
    pattern = _constant_pattern(value.args[1], n)
    if pattern is None:
        return Rep(_through_memory(ctx, name, dtype, ctx.as_vector(lane, value.args[1].dtype, n)), n)
    return Rep(ctx.shuffled(typ, name, np.broadcast_to(pattern, (n,)).tolist()), n)


def _through_memory(ctx: Context, name: str, dtype: DType, lanes: str) -> str:
    """Store a vector and gather the element `lanes` for each lane."""
    typ = vector_type(dtype, ctx.lanes)
    slot = ctx.slot("shuffled", typ, ", align 64")
    ctx.write(f"store {typ} {name}, ptr {slot}, align 64")
    addresses = ctx.line(f"getelementptr inbounds {scalar_type(dtype)}, ptr {slot}, {ctx.index_type} {lanes}")
    return gather(ctx, dtype, addresses, "splat (i1 true)", "poison")


def _constant_pattern(value: ir.Value, lanes: int) -> Any:
    """A value's elements if they depend on the lane's number alone, or None."""
    if value.op == "lane":
        return np.arange(lanes, dtype=np.int64)
    if value.op in ("const", "lane_count"):
        return value.dtype.numpy.type(value.attr if value.op == "const" else lanes)
    row = INSTRUCTIONS.get(value.op)
    if row is None or row.result == "attr":
        return None
    args = [_constant_pattern(arg, lanes) for arg in value.args]
    return None if any(a is None for a in args) else row.numpy(*args)


# --- atomics on elements of 32 bits ----------------------------------------------------------------------------------


def atomic(ctx: Context, value: ir.Value) -> Rep:
    """Change an element and return the old one. A varying atomic changes it lane by lane; inactive lanes get 0."""
    array, kind = value.attr
    row = ATOMICS[kind]
    operands = [ctx.reps[v] for v in value.args[: row.operands]]
    at = index.linear(ctx, array, value.args[row.operands :])
    if ctx.lanes == 1 or value not in ctx.varying:
        return Rep(_one_atomic(ctx, row, array, at.name, [rep.name for rep in operands]))
    return _atomic_per_lane(ctx, row, array, at, operands)


def _atomic_per_lane(ctx: Context, row: Atomic, array: ir.Array, at: Rep, operands: list[Rep]) -> Rep:
    n, dtype = ctx.lanes, array.dtype
    element, typ = scalar_type(dtype), vector_type(dtype, n)
    slot = ctx.slot("old", typ, ", align 64")
    ctx.write(f"store {typ} zeroinitializer, ptr {slot}, align 64")
    indexes, values = ctx.index_vector(at), [ctx.as_vector(rep, dtype, n) for rep in operands]

    def lane(i: str) -> None:
        inside, done = ctx.label("atomic"), ctx.label("after")
        active = "true" if ctx.mask is None else ctx.line(f"extractelement {ctx.mask_type} {ctx.mask}, i64 {i}")

        def change() -> None:
            at = ctx.line(f"extractelement {ctx.index_type} {indexes}, i64 {i}")
            own = [ctx.line(f"extractelement {typ} {v}, i64 {i}") for v in values]
            old = _one_atomic(ctx, row, array, at, own)
            result = ctx.line(f"getelementptr inbounds {element}, ptr {slot}, i64 {i}")
            ctx.write(f"store {element} {old}, ptr {result}")

        branch(ctx, active, inside, done, change)

    counted_loop(ctx, "0", str(n), 1, lane)
    return Rep(ctx.line(f"load {typ}, ptr {slot}, align 64"), n)


def _one_atomic(ctx: Context, row: Atomic, array: ir.Array, at: str, operands: list[str]) -> str:
    """Change one element and return the old one."""
    opcode, dtype = row.llvm[array.dtype.kind], array.dtype
    if not isinstance(opcode, str):
        raise KernelError(f"kernel {ctx.name}: atomic_{row.name} of {dtype}: {opcode.reason}")
    address, typ = pointer(ctx, array, at), scalar_type(dtype)
    if opcode == "cmpxchg":
        values = ", ".join(f"{typ} {v}" for v in operands)
        pair = ctx.line(f"cmpxchg ptr {address}, {values} monotonic monotonic")
        return ctx.line(f"extractvalue {{ {typ}, i1 }} {pair}, 0")
    return ctx.line(f"atomicrmw {opcode} ptr {address}, {typ} {operands[0]} monotonic")
