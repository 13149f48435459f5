"""Index arithmetic in LLVM IR: affine analysis, so that x[row, c // 32] becomes scalars repeated, not a gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.values import Affine, Rep, common_multiple, integer
from camshaft.emit.llvm.vectors import by_lane, index_type
from camshaft.lang import ir

# --- any lanes -------------------------------------------------------------------------------------------------------


def linear(ctx: Context, array: ir.Array, indices: Sequence[ir.Value]) -> Rep:
    """The element offset of array[indices]; a Rep of `lanes` i64 where the lanes go anywhere."""
    total = integer(0)
    for index, stride in zip(indices, array.strides, strict=True):
        total = plus(ctx, total, times(ctx, ctx.reps[index], stride))
    return total


def plus(ctx: Context, a: Rep, b: Rep, sign: int = 1) -> Rep:
    """a + sign * b."""
    exact = add(ctx, a, b, sign)
    if exact is not None:
        return exact
    opcode, left, right = "add" if sign == 1 else "sub", by_lane(ctx, a), by_lane(ctx, b)
    return Rep(ctx.line(f"{opcode} nsw {index_type(ctx)} {left}, {right}"), ctx.lanes)


def times(ctx: Context, a: Rep, factor: int) -> Rep:
    exact = multiply(ctx, a, integer(factor))
    if exact is not None:
        return exact
    return Rep(ctx.line(f"mul nsw {index_type(ctx)} {by_lane(ctx, a)}, splat (i64 {factor})"), ctx.lanes)


# --- scalars ---------------------------------------------------------------------------------------------------------


def _scalar_add(ctx: Context, a: Rep, b: Rep, sign: int) -> Rep:
    if a.constant is not None and b.constant is not None:
        return integer(a.constant + sign * b.constant)
    if b.constant == 0:
        return a
    if a.constant == 0 and sign == 1:
        return b
    name = ctx.line(f"{'add' if sign == 1 else 'sub'} nsw i64 {a.name}, {b.name}")
    return Rep(name, multiple=common_multiple(a.multiple, b.multiple))


def _scalar_multiply(ctx: Context, a: Rep, b: Rep) -> Rep:
    if a.constant is not None and b.constant is not None:
        return integer(a.constant * b.constant)
    if b.constant == 1:
        return a
    return Rep(ctx.line(f"mul nsw i64 {a.name}, {b.name}"), multiple=a.multiple * b.multiple)


def _scalar_divide(ctx: Context, a: Rep, n: int) -> Rep:
    """Rounds down for negative numbers too: a shift for powers of two."""
    if a.constant is not None:
        return integer(a.constant // n)
    multiple = a.multiple // n if a.multiple % n == 0 else 1
    if n & (n - 1) == 0:
        return Rep(ctx.line(f"ashr i64 {a.name}, {n.bit_length() - 1}"), multiple=multiple)
    below = ctx.line(f"ashr i64 {ctx.line(f'srem i64 {a.name}, {n}')}, 63")
    return Rep(ctx.line(f"add nsw i64 {ctx.line(f'sdiv i64 {a.name}, {n}')}, {below}"), multiple=multiple)


def _scalar_remainder(ctx: Context, a: Rep, n: int) -> Rep:
    """Takes the sign of n."""
    if a.constant is not None:
        return integer(a.constant % n)
    if a.multiple % n == 0:
        return integer(0)
    if n & (n - 1) == 0:
        return Rep(ctx.line(f"and i64 {a.name}, {n - 1}"))
    rest = ctx.line(f"srem i64 {a.name}, {n}")
    below = ctx.line(f"ashr i64 {rest}, 63")
    return Rep(ctx.line(f"add nsw i64 {rest}, {ctx.line(f'and i64 {below}, {n}')}"))


# --- lanes in a pattern: None where it is lost -----------------------------------------------------------------------


def add(ctx: Context, a: Rep, b: Rep, sign: int = 1) -> Rep | None:
    """a + sign * b."""
    if a.affine is None and b.affine is None:
        return _scalar_add(ctx, a, b, sign) if a.is_scalar and b.is_scalar else None
    left, right = _pattern(a), _pattern(b)
    if left is None or right is None:
        return None
    if left.coefficient and right.coefficient and left.divisor != right.divisor:
        return None
    base = _scalar_add(ctx, left.base, right.base, sign)
    coefficient = left.coefficient + sign * right.coefficient
    divisor = left.divisor if left.coefficient else right.divisor
    return Rep("", affine=Affine(base, coefficient, divisor)) if coefficient else base


def _pattern(a: Rep) -> Affine | None:
    return a.affine or (Affine(a, 0) if a.is_scalar else None)


def subtract(ctx: Context, a: Rep, b: Rep) -> Rep | None:
    return add(ctx, a, b, -1)


def multiply(ctx: Context, a: Rep, b: Rep) -> Rep | None:
    """a * b; a product of two that vary, or by an unknown factor, has no pattern."""
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
    if n <= 0:
        return None
    if a.is_scalar:
        return _scalar_divide(ctx, a, n)
    base = _of_neighbours(a)
    if base is not None and n % ctx.lanes == 0 and base.multiple % ctx.lanes == 0:
        return _scalar_divide(ctx, base, n)
    if base is not None and ctx.lanes % n == 0 and base.multiple % n == 0:
        return Rep("", affine=Affine(_scalar_divide(ctx, base, n), 1, n))
    return None


def remainder(ctx: Context, a: Rep, b: Rep) -> Rep | None:
    """a % b for a constant b > 0."""
    n = b.constant or 0
    if n <= 0:
        return None
    if a.is_scalar:
        return _scalar_remainder(ctx, a, n)
    base = _of_neighbours(a)
    if base is not None and n % ctx.lanes == 0 and base.multiple % ctx.lanes == 0:
        return Rep("", affine=Affine(_scalar_remainder(ctx, base, n), 1))
    return None


def _of_neighbours(a: Rep) -> Rep | None:
    """The first lane's index, where each lane's is one more."""
    return a.affine.base if a.affine is not None and a.affine.is_contiguous else None


# The instructions that keep a pattern, of i64.
PATTERNS: dict[str, Callable[[Context, Rep, Rep], Rep | None]] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "floor_divide": divide,
    "remainder": remainder,
}
