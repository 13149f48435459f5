"""Vectors of lanes and their masks in LLVM IR: scalars repeated, indexes spelled out, lanes chosen."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.dtypes import DType, i64
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.values import Rep, literal, scalar_type, vector_type
from camshaft.lang import ir


def mask_type(ctx: Context) -> str:
    return f"<{ctx.lanes} x i1>"


def index_type(ctx: Context) -> str:
    """Of an index by lane."""
    return f"<{ctx.lanes} x i64>"


def iota(n: int, dtype: DType = i64) -> str:
    """The constant 0, 1, ..., n - 1."""
    if n == 1:
        return literal(0, dtype)
    element = scalar_type(dtype)
    return "<" + ", ".join(f"{element} {literal(i, dtype)}" for i in range(n)) + ">"


def splat(ctx: Context, name: str, dtype: DType, n: int) -> str:
    """A scalar repeated n times."""
    element, vector = scalar_type(dtype), vector_type(dtype, n)
    if n <= 1:
        return name
    if not name.startswith("%"):
        return f"splat ({element} {name})"
    first = ctx.line(f"insertelement {vector} poison, {element} {name}, i64 0")
    return ctx.line(f"shufflevector {vector} {first}, {vector} poison, <{n} x i32> zeroinitializer")


def widened(ctx: Context, rep: Rep, dtype: DType, n: int) -> str:
    """The value's name as `n` elements: a scalar is repeated, a lane index is spelled out."""
    if rep.affine is not None:
        base = splat(ctx, rep.affine.base.name, i64, ctx.lanes)
        steps = [rep.affine.coefficient * (i // rep.affine.divisor) for i in range(ctx.lanes)]
        offsets = "<" + ", ".join(f"i64 {s}" for s in steps) + ">"
        return ctx.line(f"add nsw {index_type(ctx)} {base}, {offsets}")
    return rep.name if n <= 1 or rep.n else splat(ctx, rep.name, dtype, n)


def by_lane(ctx: Context, rep: Rep) -> str:
    """An index's name as an i64 for each lane."""
    return widened(ctx, rep, i64, ctx.lanes)


def first_lane(ctx: Context, rep: Rep) -> str:
    """The name of the first lane's i64."""
    if rep.affine is not None:
        return rep.affine.base.name
    return rep.name if rep.n <= 1 else ctx.line(f"extractelement {index_type(ctx)} {rep.name}, i64 0")


def var_width(ctx: Context, var: ir.Var) -> int:
    """Elements of a variable; 0: a scalar."""
    return var.width or (ctx.lanes if var in ctx.varying_vars and ctx.lanes > 1 else 0)


def width_of(ctx: Context, reps: Sequence[Rep]) -> int:
    """The common width of operands: that of the vectors among them."""
    return max((rep.n or (ctx.lanes if rep.affine is not None else 0) for rep in reps), default=0)


def shuffled(ctx: Context, typ: str, name: str, order: Sequence[int]) -> str:
    """The elements of a vector at the places `order`."""
    places = ", ".join(f"i32 {i}" for i in order)
    return ctx.line(f"shufflevector {typ} {name}, {typ} poison, <{len(order)} x i32> <{places}>")


# --- masks -----------------------------------------------------------------------------------------------------------


def active(ctx: Context) -> str:
    """The mask of active lanes as an operand."""
    return ctx.mask or "splat (i1 true)"


def mask_and(ctx: Context, mask: str) -> str:
    """The active lanes of a mask."""
    return mask if ctx.mask is None else ctx.line(f"and {mask_type(ctx)} {ctx.mask}, {mask}")


def count_mask(ctx: Context, count: Rep | None, n: int) -> str | None:
    """The lanes below `count` (none of them where it is negative)."""
    if count is None:
        return None
    return ctx.line(f"icmp slt {vector_type(i64, n)} {iota(n)}, {splat(ctx, count.name, i64, n)}")


def as_mask(ctx: Context, mask: str, n: int) -> str:
    """A mask as an operand: one of a single element is a scalar elsewhere."""
    return f"<{n} x i1> {mask if n > 1 else ctx.line(f'insertelement <1 x i1> poison, i1 {mask}, i64 0')}"


def group_mask(ctx: Context, mask: str, n: int, each: int) -> str:
    """Whether any lane of each group is active; of a ragged end's, the first is where any is."""
    starts = range(1 if ctx.mask_is_prefix else each)
    first, *rest = [shuffled(ctx, mask_type(ctx), mask, [i * each + start for i in range(n)]) for start in starts]
    for part in rest:
        first = ctx.line(f"or <{n} x i1> {first}, {part}")
    return first


def unknown_mask(ctx: Context, mask: str, n: int) -> str:
    """The mask by way of a register, so that LLVM never knows it. To store the first lane alone, of a vector whose elements
    were cut to fewer bits, LLVM 22 stores a whole element from before the cut with AVX-512: 4 bytes for an i8."""
    bits = ctx.line(f"bitcast <{n} x i1> {mask} to i{n}")
    wide = bits if n == 64 else ctx.line(f"zext i{n} {bits} to i64")
    hidden = ctx.line(f'call i64 asm "", "=r,0"(i64 {wide})')
    back = hidden if n == 64 else ctx.line(f"trunc i64 {hidden} to i{n}")
    return ctx.line(f"bitcast i{n} {back} to <{n} x i1>")
