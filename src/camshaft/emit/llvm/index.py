"""Index arithmetic in the LLVM emitter: affine analysis, so that x[row, c // 32] becomes scalars repeated, not a gather."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.emit.llvm.values import Affine, Rep, common_multiple, integer

Line = Callable[[str], str]  # records an instruction and gives its name


def add(line: Line, a: Rep, b: Rep, sign: int = 1) -> Rep | None:
    """a + sign * b in i64, or None where the lanes' pattern is lost."""
    if a.affine is None and b.affine is None:
        return _scalar_add(line, a, b, sign) if a.is_scalar and b.is_scalar else None
    left, right = _pattern(a), _pattern(b)
    if left is None or right is None:
        return None
    if left.coefficient and right.coefficient and left.divisor != right.divisor:
        return None
    base = _scalar_add(line, left.base, right.base, sign)
    coefficient = left.coefficient + sign * right.coefficient
    divisor = left.divisor if left.coefficient else right.divisor
    return Rep("", affine=Affine(base, coefficient, divisor)) if coefficient else base


def _pattern(a: Rep) -> Affine | None:
    return a.affine or (Affine(a, 0) if a.is_scalar else None)


def _scalar_add(line: Line, a: Rep, b: Rep, sign: int) -> Rep:
    if a.constant is not None and b.constant is not None:
        return integer(a.constant + sign * b.constant)
    if b.constant == 0:
        return a
    if a.constant == 0 and sign == 1:
        return b
    name = line(f"{'add' if sign == 1 else 'sub'} nsw i64 {a.name}, {b.name}")
    return Rep(name, multiple=common_multiple(a.multiple, b.multiple))


def multiply(line: Line, a: Rep, b: Rep) -> Rep | None:
    """a * b in i64, or None where the lanes' pattern is lost (a product of two that vary, or by an unknown factor)."""
    if a.constant is not None and b.constant is None:
        a, b = b, a
    if a.affine is not None and b.constant is not None:
        base = multiply(line, a.affine.base, b)
        assert base is not None
        coefficient = a.affine.coefficient * b.constant
        return Rep("", affine=Affine(base, coefficient, a.affine.divisor)) if coefficient else base
    if not (a.is_scalar and b.is_scalar):
        return None
    if a.constant is not None and b.constant is not None:
        return integer(a.constant * b.constant)
    if b.constant == 1:
        return a
    return Rep(line(f"mul nsw i64 {a.name}, {b.name}"), multiple=a.multiple * b.multiple)


def divide(line: Line, lanes: int, a: Rep, n: int) -> Rep | None:
    """a // n for a constant n > 0, rounded down, or None where the lanes' pattern is lost."""
    if a.constant is not None:
        return integer(a.constant // n)
    if a.is_scalar:
        exact = a.multiple // n if a.multiple % n == 0 else 1
        return Rep(_floor_divide(line, a.name, n), multiple=exact)
    pattern = a.affine
    if pattern is None or pattern.coefficient != 1 or pattern.divisor != 1:
        return None
    base = pattern.base
    if n % lanes == 0 and base.multiple % lanes == 0:
        return divide(line, lanes, base, n)
    if lanes % n == 0 and base.multiple % n == 0:
        quotient = divide(line, lanes, base, n)
        assert quotient is not None
        return Rep("", affine=Affine(quotient, 1, n))
    return None


def _floor_divide(line: Line, a: str, n: int) -> str:
    """Rounds down for negative numbers too: a shift for powers of two."""
    if n & (n - 1) == 0:
        return line(f"ashr i64 {a}, {n.bit_length() - 1}")
    below = line(f"ashr i64 {line(f'srem i64 {a}, {n}')}, 63")
    return line(f"add nsw i64 {line(f'sdiv i64 {a}, {n}')}, {below}")


def _floor_remainder(line: Line, a: str, n: int) -> str:
    if n & (n - 1) == 0:
        return line(f"and i64 {a}, {n - 1}")
    rest = line(f"srem i64 {a}, {n}")
    below = line(f"ashr i64 {rest}, 63")
    return line(f"add nsw i64 {rest}, {line(f'and i64 {below}, {n}')}")


def remainder(line: Line, lanes: int, a: Rep, n: int) -> Rep | None:
    """a % n for a constant n > 0."""
    if a.constant is not None:
        return integer(a.constant % n)
    if a.is_scalar:
        return integer(0) if a.multiple % n == 0 else Rep(_floor_remainder(line, a.name, n))
    pattern = a.affine
    if pattern is None or pattern.coefficient != 1 or pattern.divisor != 1:
        return None
    if n % lanes == 0 and pattern.base.multiple % lanes == 0:
        base = remainder(line, lanes, pattern.base, n)
        assert base is not None
        return Rep("", affine=Affine(base, 1))
    return None
