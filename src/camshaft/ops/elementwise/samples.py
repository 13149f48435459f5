"""Samples of elementwise ops and of chains: the distributions that operands are drawn from, shapes, special values, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from camshaft.dtypes import DType, boolean, f32, f64, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.kernels.blocks import BLOCK
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.ops.elementwise.frame import Formula

Draw: TypeAlias = "Callable[[np.random.Generator, DType, int], ops.Array]"  # a string: importing np.random takes 5 ms
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5)


def normal(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Normal floats around 0, small integers, booleans."""
    if dtype.is_float:
        return (3 * rng.normal(size=n)).astype(dtype.numpy)
    if dtype == boolean:
        return rng.integers(0, 2, n).astype(bool)
    low = -100 if dtype.kind == "i" else 0
    return rng.integers(low, 101, n).astype(dtype.numpy)


def full_range(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Integers over the whole range of the dtype, with its minimum and maximum; floats as `normal`."""
    if not dtype.is_integer:
        return normal(rng, dtype, n)
    info = np.iinfo(dtype.numpy)
    drawn = rng.integers(info.min, info.max, n, dtype.numpy, endpoint=True)
    drawn[:2] = (info.min, info.max)[: len(drawn)]
    return drawn


def small(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Integers from -4 (0 if unsigned) to 4; floats as `normal`."""
    if not dtype.is_integer:
        return normal(rng, dtype, n)
    return rng.integers(-4 if dtype.kind == "i" else 0, 5, n).astype(dtype.numpy)


def wide(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Integers over the whole range of the dtype; floats of which one in three is of any magnitude."""
    if dtype.is_integer:
        return full_range(rng, dtype, n)
    return np.where(np.arange(n) % 3 == 0, any_magnitude(rng, dtype, n), normal(rng, dtype, n)).astype(dtype.numpy)


def bases(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Small integers; positive floats, of which one in eight is negated."""
    if dtype.is_integer:
        return small(rng, dtype, n)
    drawn = positive(rng, dtype, n)
    return np.where(np.arange(n) % 8 == 0, -drawn, drawn).astype(dtype.numpy)


def powers(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Integers from -3 to 20 (exponents); of floats, every other one has a fraction."""
    integers = rng.integers(-3 if dtype.kind != "u" else 0, 21 if dtype.is_integer else 3, n)
    if dtype.is_integer:
        return integers.astype(dtype.numpy)
    return np.where(np.arange(n) % 2 == 0, integers, rng.normal(size=n)).astype(dtype.numpy)


def halves(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Multiples of a half."""
    return (rng.integers(-20, 21, n) / 2).astype(dtype.numpy)


def positive(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Positive floats over many orders of magnitude."""
    return np.exp(3 * rng.normal(size=n)).astype(dtype.numpy)


def any_magnitude(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Floats of both signs over all orders of magnitude."""
    most = {"f16": 10.0, "f64": 350.0}.get(dtype.name, 87.0)
    drawn: ops.Array = np.exp(rng.uniform(-3, most, n)) * rng.choice([-1, 1], n)
    return drawn.astype(dtype.numpy)


def between(low: float, high: float) -> Draw:
    """Floats evenly spaced from low to high, shuffled."""

    def draw(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
        return rng.permutation(np.linspace(low, high, n)).astype(dtype.numpy)

    return draw


def specials(arity: int, dtype: DType) -> list[ops.Array]:
    """Every combination of NaN, infinities, zeros and two numbers, an array for each operand."""
    grid = np.meshgrid(*[np.array(_SPECIAL)] * arity, indexing="ij")
    return [g.reshape(-1).astype(dtype.numpy) for g in grid]


def draw(row: Formula, rng: np.random.Generator, operand: int, dtype: DType, shape: tuple[int, ...]) -> ops.Array:
    """Operand number `operand` of that shape, drawn from the row's distribution."""
    if operand < row.conditions:
        return normal(rng, boolean, int(np.prod(shape))).reshape(shape)
    draws = row.draws or (full_range,)
    chosen = draws[min(operand - row.conditions, len(draws) - 1)]
    return chosen(rng, dtype, int(np.prod(shape))).reshape(shape)


# Shapes on both sides of a vector's and a block's width.
SHAPES: tuple[tuple[int, ...], ...] = (
    *((n,) for n in (1, 15, 16, 17, 33)),
    *((3, 5), (2, 3, 7), (2, BLOCK - 1), (1, BLOCK + 17), (3, 2 * BLOCK + 1)),
)
# Shapes of two operands: a repeated row, column or element, both repeated, rows longer than a block.
_BROADCASTS = (
    ((3, 5), (5,)),
    ((2, 3, 17), (3, 1)),
    ((4, 1, 33), (5, 1)),
    ((), (37,)),
    ((2, 3, 1, 7), (5, 1)),
    ((3, BLOCK + 17), (BLOCK + 17,)),
    ((2, BLOCK + 1), (2, 1)),
)


def first(row: Formula) -> tuple[tuple[DType, ...], ops.Attrs] | None:
    """The dtypes and attributes of the first of `samples`; drawing it takes 9 ms at first, to import numpy.random."""
    dtypes = (f32,) if f32 in row.dtypes else _others(row)
    values = dtypes[:1] * (row.arity - row.conditions)
    return ((boolean,) * row.conditions + values, row.given) if dtypes else None


def _others(row: Formula) -> tuple[DType, ...]:
    return row.sampled or tuple(d for d in (i32, f64) if d in row.dtypes)


def samples(row: Formula) -> Iterable[ops.Sample]:
    """Flat with special values; one of each sampled dtype; broadcast; where the row has `structure`, all shapes too."""
    rng = np.random.default_rng(len(row.name))
    n_values, given = row.arity - row.conditions, row.given
    if f32 in row.dtypes:
        odd = specials(n_values, f32)
        plain = [draw(row, rng, i, f32, (101,)) for i in range(row.arity)]
        tails = [normal(rng, boolean, len(odd[0])) for _ in range(row.conditions)] + odd
        joined = tuple(np.concatenate(pair) for pair in zip(plain, tails, strict=True))
        yield ops.Sample(f"{len(joined[0])} with special values", joined, given)
    for dtype in _others(row):
        arrays = tuple(draw(row, rng, i, dtype, (3, 37)) for i in range(row.arity))
        yield ops.Sample(f"3x37 of {dtype.name}", arrays, given)
    if row.arity > 1:
        shapes = ((2, 3, 17), (3, 1), (17,))
        arrays = tuple(draw(row, rng, i, row.dtypes[0], shapes[i]) for i in range(row.arity))
        yield ops.Sample("broadcast", arrays, given)
    if row.structure:
        yield from _structure(row, rng)
    if row.pairs is not None:
        yield from _complex_samples(row)


def _complex_samples(row: Formula) -> Iterable[ops.Sample]:
    rng = np.random.default_rng(len(row.name))
    for dtype, shapes in (("complex64", ((3, 19), (19,))), ("complex128", ((5,), ()))):
        drawn = [rng.normal(size=s) + 1j * rng.normal(size=s) for s in shapes[: row.arity]]
        yield ops.Sample(f"of {dtype}", tuple(np.asarray(x).astype(dtype) for x in drawn), row.given)


def _structure(row: Formula, rng: np.random.Generator) -> Iterable[ops.Sample]:
    for shape in SHAPES:
        arrays = tuple(draw(row, rng, i, f32, shape) for i in range(row.arity))
        yield ops.Sample("x".join(map(str, shape)), arrays, row.given)
    for first, second in _BROADCASTS if row.arity == 2 else ():
        for a, b in ((first, second), (second, first)):
            yield ops.Sample(f"{a} and {b}", (draw(row, rng, 0, f32, a), draw(row, rng, 1, f32, b)), row.given)
    yield from active_samples(row, rng)


def active_samples(row: Formula, rng: np.random.Generator) -> Iterable[ops.Sample]:
    """7 of at most 16 rows, or of at most 16 elements; in the second of two operands the rows' own shape, or one row."""
    tokens = Extent("tokens", 16)
    for columns in ((), (2, 33)):
        shape, bounds = (tokens, *columns), (16, *columns)
        for other in (bounds, bounds[1:])[: row.arity]:
            sizes = [bounds, *[other] * (row.arity - 1)]
            arrays = tuple(draw(row, rng, i, f32, s) for i, s in enumerate(sizes))
            dims = [shape if s == bounds else s for s in sizes]
            dtypes = [boolean] * row.conditions + [f32] * (row.arity - row.conditions)
            specs = tuple(TensorSpec(d, t) for d, t in zip(dims, dtypes, strict=True))
            yield ops.Sample(f"7 of {bounds} and {other}", arrays, row.given, specs, {tokens: 7})


def error_samples(row: Formula) -> Iterable[ops.ErrorSample]:
    """Another number of tensors, a dtype that the op does not take, shapes that do not broadcast, dtypes that differ."""
    first = row.dtypes[0]
    x = [TensorSpec((2, 8), boolean if i < row.conditions else first) for i in range(row.arity)]
    yield ops.ErrorSample((*x, x[-1]), row.given, f"wanted {row.arity} tensor")
    other = next((d for d in (boolean, i32, f32) if d not in row.dtypes), None)
    if other is not None:
        yield ops.ErrorSample((*x[:-1], TensorSpec((2, 8), other)), row.given, "wanted tensors of")
    if row.arity > 1:
        yield ops.ErrorSample((*x[:-1], TensorSpec((9,), first)), row.given, "that broadcast to one")
    second = next((d for d in row.dtypes if d != first), None)
    if row.arity - row.conditions > 1 and second is not None:
        yield ops.ErrorSample((*x[:-1], TensorSpec((2, 8), second)), row.given, "of one dtype; cast them first")
