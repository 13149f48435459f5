"""Values in LLVM IR: the rows of the instruction table, constants, variables and elements of vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from camshaft.dtypes import i64
from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context, Typed
from camshaft.emit.llvm.expanded import dots, expansions
from camshaft.emit.llvm.values import Affine, Rep, integer, literal, scalar_type, vector_type
from camshaft.lang import ir
from camshaft.lang.instructions import INSTRUCTIONS

# --- rows of the table -----------------------------------------------------------------------------------------------


def instruction(ctx: Context, value: ir.Value) -> Rep:
    """Lower an instruction by the target's column of the table."""
    typed, names = _operands(ctx, value)
    return Rep(_lowered(ctx, value, typed, names), typed.n)


def arithmetic(ctx: Context, value: ir.Value) -> Rep:
    """Lower an operation whose result is affine for affine operands."""
    return _affine(ctx, value) or instruction(ctx, value)


def division(ctx: Context, value: ir.Value) -> Rep:
    """Divide, with divisor 1 in inactive lanes: their divisor may be 0, and an integer division by 0 traps."""
    found = _affine(ctx, value)
    if found is not None:
        return found
    typed, names = _operands(ctx, value)
    if ctx.mask is not None and ctx.reps[value.args[1]].n and not value.width:
        typ, ones = typed.typ, ctx.splat("1", value.dtype, typed.n)
        names[1] = ctx.line(f"select {ctx.mask_type} {ctx.mask}, {typ} {names[1]}, {typ} {ones}")
    return Rep(_lowered(ctx, value, typed, names), typed.n)


def cast(ctx: Context, value: ir.Value) -> Rep:
    typed, (name,) = _operands(ctx, value)
    return Rep(expansions.cast(typed, name, value.dtype), typed.n)


def bitcast(ctx: Context, value: ir.Value) -> Rep:
    typed, (name,) = _operands(ctx, value)
    if scalar_type(value.args[0].dtype) == scalar_type(value.dtype):
        return Rep(name, typed.n)
    return Rep(typed.bitcast(name, value.dtype), typed.n)


def select(ctx: Context, value: ir.Value) -> Rep:
    condition, *chosen = reps = [ctx.reps[arg] for arg in value.args]
    n = ctx.width_of(reps)
    mask = f"<{n} x i1>" if condition.n > 1 else "i1"
    a, b = (f"{vector_type(value.dtype, n)} {ctx.as_vector(rep, value.dtype, n)}" for rep in chosen)
    return Rep(ctx.line(f"select {mask} {condition.name}, {a}, {b}"), n)


def _operands(ctx: Context, value: ir.Value) -> tuple[Typed, list[str]]:
    """The operands' names, all broadcast to the widest, and a writer for the first one's dtype."""
    reps = [ctx.reps[arg] for arg in value.args]
    n = ctx.width_of(reps)
    names = [ctx.as_vector(rep, arg.dtype, n) for rep, arg in zip(reps, value.args, strict=True)]
    return ctx.typed(value.args[0].dtype, n), names


def _affine(ctx: Context, value: ir.Value) -> Rep | None:
    if value.dtype != i64 or value.width:
        return None
    a, b = value.args
    return index.AFFINE_RULES[value.op](ctx, ctx.reps[a], ctx.reps[b])


def _lowered(ctx: Context, value: ir.Value, typed: Typed, names: list[str]) -> str:
    lowering = _cell(value.op, ctx.target.column, value.args[0].dtype.kind)
    if lowering.startswith("expand:"):
        name = lowering.removeprefix("expand:")
        known = _BY_OPERANDS.get(name)
        return known(typed, value, names) if known is not None else expansions.EXPANSIONS[name](typed, *names)
    if lowering.startswith("llvm."):
        return typed.call(lowering, *names)
    return typed.op(lowering.removesuffix(" contract") if value.attr == ir.EXACT else lowering, *names)


@cache
def _cell(op: str, column: str, kind: str) -> str:
    return str(INSTRUCTIONS[op].column(column)[kind])


def _dot4(t: Typed, value: ir.Value, names: list[str]) -> str:
    acc, a, b = names
    return dots.dot4(t, acc, a, b, small=_bytes_below_128(value.args[1]))


def _bytes_below_128(value: ir.Value) -> bool:
    """Return whether a word's bytes are known to be below 128, for example 4-bit codes after a mask or a table look-up."""
    if value.op == "byte_lookup":
        return all(word.op == "const" and not int(word.attr) & 0x80808080 for word in value.args[1:])
    return value.op == "and" and any(a.op == "const" and not int(a.attr) & 0x80808080 for a in value.args)


def _byte_lookup(t: Typed, value: ir.Value, names: list[str]) -> str:
    """Look up in a constant table by a shuffle if the target has one."""
    words, found = value.args[1:], None
    if all(word.op == "const" for word in words):
        found = dots.table_lookup(t, names[0], [int(word.attr) for word in words])
    return expansions.EXPANSIONS["byte_lookup"](t, *names) if found is None else found


# Expansions that use known properties of their operands.
_BY_OPERANDS: dict[str, Callable[[Typed, ir.Value, list[str]], str]] = {"dot4": _dot4, "byte_lookup": _byte_lookup}


# --- other values ----------------------------------------------------------------------------------------------------


def const(ctx: Context, value: ir.Value) -> Rep:
    return integer(int(value.attr)) if value.dtype == i64 else Rep(literal(value.attr, value.dtype))


def lane(ctx: Context, value: ir.Value) -> Rep:
    return integer(0) if ctx.lanes == 1 else Rep("", affine=Affine(integer(0), 1))


def var_get(ctx: Context, value: ir.Value) -> Rep:
    n = ctx.var_width(value.attr)
    return Rep(ctx.line(f"load {vector_type(value.dtype, n)}, ptr {ctx.slots[value.attr]}"), n)


def splat(ctx: Context, value: ir.Value) -> Rep:
    return Rep(ctx.splat(ctx.reps[value.args[0]].name, value.dtype, value.width), value.width)


def element(ctx: Context, value: ir.Value) -> Rep:
    (vector,) = value.args
    name = ctx.reps[vector].name
    if vector.width == 1:
        return Rep(name)
    return Rep(ctx.line(f"extractelement {vector_type(vector.dtype, vector.width)} {name}, i64 {value.attr}"))
