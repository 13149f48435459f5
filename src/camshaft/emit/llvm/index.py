"""Index arithmetic in LLVM IR. It tracks affine indexes, so that x[row, c // 32] becomes repeated scalars, not a gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.values import Affine, Rep, integer
from camshaft.lang import ir

# --- any index -------------------------------------------------------------------------------------------------------


def linear(ctx: Context, array: ir.Array, indices: Sequence[ir.Value]) -> Rep:
    """The element offset of array[indices]; a vector of i64 if it is not affine in the lane."""
    total = integer(0)
    for index, stride in zip(indices, array.strides, strict=True):
        total = plus(ctx, total, times(ctx, ctx.reps[index], stride))
    return total


def plus(ctx: Context, a: Rep, b: Rep, sign: int = 1) -> Rep:
    """a + sign * b."""
    exact = add(ctx, a, b, sign)
    if exact is not None:
        return exact
    opcode, left, right = "add" if sign == 1 else "sub", ctx.index_vector(a), ctx.index_vector(b)
    return Rep(ctx.line(f"{opcode} nsw {ctx.index_type} {left}, {right}"), ctx.lanes)


def times(ctx: Context, a: Rep, factor: int) -> Rep:
    exact = multiply(ctx, a, integer(factor))
    if exact is not None:
        return exact
    return Rep(ctx.line(f"mul nsw {ctx.index_type} {ctx.index_vector(a)}, splat (i64 {factor})"), ctx.lanes)


# --- scalars ---------------------------------------------------------------------------------------------------------


def _scalar_add(ctx: Context, a: Rep, b: Rep, sign: int) -> Rep:
    if a.constant is not None and b.constant is not None:
        return integer(a.constant + sign * b.constant)
    if b.constant == 0:
        return a
    if a.constant == 0 and sign == 1:
        return b
    name = ctx.line(f"{'add' if sign == 1 else 'sub'} nsw i64 {a.name}, {b.name}")
    return Rep(name, multiple=gcd(a.multiple, b.multiple))


def _scalar_multiply(ctx: Context, a: Rep, b: Rep) -> Rep:
    if a.constant is not None and b.constant is not None:
        return integer(a.constant * b.constant)
    if b.constant == 1:
        return a
    return Rep(ctx.line(f"mul nsw i64 {a.name}, {b.name}"), multiple=a.multiple * b.multiple)


def _scalar_divide(ctx: Context, a: Rep, n: int) -> Rep:
    """a // n, rounded down for negative numbers too."""
    if a.constant is not None:
        return integer(a.constant // n)
    multiple = a.multiple // n if a.multiple % n == 0 else 1
    if n & (n - 1) == 0:
        return Rep(ctx.line(f"ashr i64 {a.name}, {n.bit_length() - 1}"), multiple=multiple)
    below = ctx.line(f"ashr i64 {ctx.line(f'srem i64 {a.name}, {n}')}, 63")
    return Rep(ctx.line(f"add nsw i64 {ctx.line(f'sdiv i64 {a.name}, {n}')}, {below}"), multiple=multiple)


def _scalar_remainder(ctx: Context, a: Rep, n: int) -> Rep:
    """a % n, with the sign of n."""
    if a.constant is not None:
        return integer(a.constant % n)
    if a.multiple % n == 0:
        return integer(0)
    if n & (n - 1) == 0:
        return Rep(ctx.line(f"and i64 {a.name}, {n - 1}"))
    rest = ctx.line(f"srem i64 {a.name}, {n}")
    below = ctx.line(f"ashr i64 {rest}, 63")
    return Rep(ctx.line(f"add nsw i64 {rest}, {ctx.line(f'and i64 {below}, {n}')}"))


# --- affine indexes: None if the result is not affine -----------------------------------------------------------------------


def add(ctx: Context, a: Rep, b: Rep, sign: int = 1) -> Rep | None:
    """a + sign * b."""
    if a.affine is None and b.affine is None:
        return _scalar_add(ctx, a, b, sign) if a.is_scalar and b.is_scalar else None
    left, right = _as_affine(a), _as_affine(b)
    if left is None or right is None:
        return None
    if left.coefficient and right.coefficient and left.divisor != right.divisor:
        return None
    base = _scalar_add(ctx, left.base, right.base, sign)
    coefficient = left.coefficient + sign * right.coefficient
    divisor = left.divisor if left.coefficient else right.divisor
    return Rep("", affine=Affine(base, coefficient, divisor)) if coefficient else base


def _as_affine(a: Rep) -> Affine | None:
    return a.affine or (Affine(a, 0) if a.is_scalar else None)


def subtract(ctx: Context, a: Rep, b: Rep) -> Rep | None:
    return add(ctx, a, b, -1)


def multiply(ctx: Context, a: Rep, b: Rep) -> Rep | None:
    """a * b. Only a product of two scalars, or with a constant, is affine."""
    if a.constant is not None and b.constant is None:
        a, b = b, a
    if a.affine is not None and b.constant is not None:
        base = _scalar_multiply(ctx, a.affine.base, b)
        coefficient = a.affine.coefficient * b.constant
        return Rep("", affine=Affine(base, coefficient, a.affine.divisor)) if coefficient else base
    return _scalar_multiply(ctx, a, b) if a.is_scalar and b.is_scalar else None


def divide(ctx: Context, a: Rep, b: Rep) -> Rep | None:
    """a // b for a constant b > 0, rounded down."""
    n = b.constant or 0
    if n > 0 and a.is_scalar:
        return _scalar_divide(ctx, a, n)
    base = _contiguous_base(a)
    if n <= 0 or base is None:
        return None
    if _is_one_block(ctx, base, n):
        return _scalar_divide(ctx, base, n)
    repeats = ctx.lanes % n == 0 and base.multiple % n == 0
    return Rep("", affine=Affine(_scalar_divide(ctx, base, n), 1, n)) if repeats else None


def remainder(ctx: Context, a: Rep, b: Rep) -> Rep | None:
    """a % b for a constant b > 0."""
    n = b.constant or 0
    if n > 0 and a.is_scalar:
        return _scalar_remainder(ctx, a, n)
    base = _contiguous_base(a)
    if n <= 0 or base is None or not _is_one_block(ctx, base, n):
        return None
    return Rep("", affine=Affine(_scalar_remainder(ctx, base, n), 1))


def _contiguous_base(a: Rep) -> Rep | None:
    """The first lane's index if the index grows by one from lane to lane."""
    return a.affine.base if a.affine is not None and a.affine.is_contiguous else None


def _is_one_block(ctx: Context, base: Rep, n: int) -> bool:
    """Whether the indexes of all lanes have the same quotient by n."""
    return n % ctx.lanes == 0 and base.multiple % ctx.lanes == 0


# Instructions on i64 whose result may be affine.
AFFINE_RULES: dict[str, Callable[[Context, Rep, Rep], Rep | None]] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "floor_divide": divide,
    "remainder": remainder,
}
