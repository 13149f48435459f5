"""Atomics on elements of 32 bits in LLVM IR, lane by lane."""

from __future__ import annotations

from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.control import branch, counted_loop
from camshaft.emit.llvm.memory import pointer
from camshaft.emit.llvm.values import Rep, scalar_type, vector_type
from camshaft.emit.llvm.vectors import by_lane, index_type, mask_type, widened
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS, Atomic


def atomic(ctx: Context, value: ir.Value) -> Rep:
    """The old element; where it varies, that of each active lane (others have 0)."""
    array, kind = value.attr
    row = ATOMICS[kind]
    operands = [ctx.reps[v] for v in value.args[: row.operands]]
    at = index.linear(ctx, array, value.args[row.operands :])
    if ctx.lanes == 1 or value not in ctx.varying:
        return Rep(_one(ctx, row, array, at.name, [rep.name for rep in operands]))
    return _each(ctx, row, array, at, operands)


def _each(ctx: Context, row: Atomic, array: ir.Array, at: Rep, operands: list[Rep]) -> Rep:
    n, dtype = ctx.lanes, array.dtype
    element, typ = scalar_type(dtype), vector_type(dtype, n)
    slot = ctx.slot("old", typ, ", align 64")
    ctx.write(f"store {typ} zeroinitializer, ptr {slot}, align 64")
    places, values = by_lane(ctx, at), [widened(ctx, rep, dtype, n) for rep in operands]

    def lane(i: str) -> None:
        inside, done = ctx.label("atomic"), ctx.label("after")
        active = "true" if ctx.mask is None else ctx.line(f"extractelement {mask_type(ctx)} {ctx.mask}, i64 {i}")

        def change() -> None:
            place = ctx.line(f"extractelement {index_type(ctx)} {places}, i64 {i}")
            mine = [ctx.line(f"extractelement {typ} {v}, i64 {i}") for v in values]
            old = _one(ctx, row, array, place, mine)
            where = ctx.line(f"getelementptr inbounds {element}, ptr {slot}, i64 {i}")
            ctx.write(f"store {element} {old}, ptr {where}")

        branch(ctx, active, inside, done, change)

    counted_loop(ctx, "0", str(n), 1, lane)
    return Rep(ctx.line(f"load {typ}, ptr {slot}, align 64"), n)


def _one(ctx: Context, row: Atomic, array: ir.Array, place: str, operands: list[str]) -> str:
    """One atomic on one element: its old value."""
    opcode, dtype = row.llvm[array.dtype.kind], array.dtype
    if not isinstance(opcode, str):
        raise KernelError(f"kernel {ctx.name}: atomic_{row.name} of {dtype}: {opcode.reason}")
    address, typ = pointer(ctx, array, place), scalar_type(dtype)
    if opcode == "cmpxchg":
        values = ", ".join(f"{typ} {v}" for v in operands)
        pair = ctx.line(f"cmpxchg ptr {address}, {values} monotonic monotonic")
        return ctx.line(f"extractvalue {{ {typ}, i1 }} {pair}, 0")
    return ctx.line(f"atomicrmw {opcode} ptr {address}, {typ} {operands[0]} monotonic")
