"""Samples of elementwise ops, drawn from their rows (formula.py): what each operand is drawn from, shapes, error samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from camshaft.dtypes import DType, boolean, f32, f64, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.ops.elementwise.formula import Formula

Draw: TypeAlias = "Callable[[np.random.Generator, DType, int], ops.Array]"  # a text: np.random takes 5 ms to import
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5)


def normal(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Floats about 0, small whole numbers, booleans."""
    if dtype.is_float:
        return (3 * rng.normal(size=n)).astype(dtype.numpy)
    if dtype == boolean:
        return rng.integers(0, 2, n).astype(bool)
    low = -100 if dtype.kind == "i" else 0
    return rng.integers(low, 101, n).astype(dtype.numpy)


def whole_range(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Integers from the least to the greatest, those two among them; floats as `normal`."""
    if not dtype.is_integer:
        return normal(rng, dtype, n)
    info = np.iinfo(dtype.numpy)
    drawn = rng.integers(info.min, info.max, n, dtype.numpy, endpoint=True)
    drawn[:2] = (info.min, info.max)[: len(drawn)]
    return drawn


def small(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Whole numbers about 0, which is among them, and -1; floats as `normal`."""
    if not dtype.is_integer:
        return normal(rng, dtype, n)
    return rng.integers(-4 if dtype.kind == "i" else 0, 5, n).astype(dtype.numpy)


def great(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Integers over their whole range; floats of which one in three is of any size."""
    if dtype.is_integer:
        return whole_range(rng, dtype, n)
    return np.where(np.arange(n) % 3 == 0, any_size(rng, dtype, n), normal(rng, dtype, n)).astype(dtype.numpy)


def bases(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Small whole numbers; floats of which one in eight is below 0."""
    if dtype.is_integer:
        return small(rng, dtype, n)
    drawn = positive(rng, dtype, n)
    return np.where(np.arange(n) % 8 == 0, -drawn, drawn).astype(dtype.numpy)


def powers(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Whole numbers from -3 to 20, every other of the floats with a fraction."""
    whole = rng.integers(-3 if dtype.kind != "u" else 0, 21 if dtype.is_integer else 3, n)
    if dtype.is_integer:
        return whole.astype(dtype.numpy)
    return np.where(np.arange(n) % 2 == 0, whole, rng.normal(size=n)).astype(dtype.numpy)


def halves(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Multiples of a half."""
    return (rng.integers(-20, 21, n) / 2).astype(dtype.numpy)


def positive(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Floats over many orders of magnitude."""
    return np.exp(3 * rng.normal(size=n)).astype(dtype.numpy)


def any_size(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
    """Floats of both signs over all orders of magnitude."""
    most = {"f16": 10.0, "f64": 350.0}.get(dtype.name, 87.0)
    drawn: ops.Array = np.exp(rng.uniform(-3, most, n)) * rng.choice([-1, 1], n)
    return drawn.astype(dtype.numpy)


def between(low: float, high: float) -> Draw:
    """Floats evenly from low to high, in a shuffled order."""

    def draw(rng: np.random.Generator, dtype: DType, n: int) -> ops.Array:
        return rng.permutation(np.linspace(low, high, n)).astype(dtype.numpy)

    return draw


def specials(arity: int, dtype: DType) -> list[ops.Array]:
    """Every combination of NaN, infinities and zeros, an array for each operand."""
    grid = np.meshgrid(*[np.array(_SPECIAL)] * arity, indexing="ij")
    return [g.reshape(-1).astype(dtype.numpy) for g in grid]


def draw(row: Formula, rng: np.random.Generator, operand: int, dtype: DType, shape: tuple[int, ...]) -> ops.Array:
    """An operand of that shape."""
    if operand < row.conditions:
        return normal(rng, boolean, int(np.prod(shape))).reshape(shape)
    draws = row.draws or (whole_range,)
    chosen = draws[min(operand - row.conditions, len(draws) - 1)]
    return chosen(rng, dtype, int(np.prod(shape))).reshape(shape)


# Shapes of the operands: one row to each, one element, a column, rows within blocks, both repeating
_BROADCASTS = (
    ((3, 5), (5,)),
    ((2, 3, 17), (3, 1)),
    ((4, 1, 33), (5, 1)),
    ((), (37,)),
    ((2, 3, 1, 7), (5, 1)),
    ((3, elementwise.BLOCK + 17), (elementwise.BLOCK + 17,)),
    ((2, elementwise.BLOCK + 1), (2, 1)),
)


def samples(row: Formula) -> Iterable[ops.Sample]:
    """A flat sample with all special values; one of each sampled dtype; where the row stands for the others, shapes too."""
    rng = np.random.default_rng(len(row.name))
    n_values, given = row.arity - row.conditions, row.given
    if f32 in row.dtypes:
        odd = specials(n_values, f32)
        plain = [draw(row, rng, i, f32, (101,)) for i in range(row.arity)]
        tails = [normal(rng, boolean, len(odd[0])) for _ in range(row.conditions)] + odd
        joined = tuple(np.concatenate(pair) for pair in zip(plain, tails, strict=True))
        yield ops.Sample(f"{len(joined[0])} with special values", joined, given)
    for dtype in row.sampled or tuple(d for d in (i32, f64) if d in row.dtypes):
        arrays = tuple(draw(row, rng, i, dtype, (3, 37)) for i in range(row.arity))
        yield ops.Sample(f"3x37 of {dtype.name}", arrays, given)
    if row.arity > 1:
        shapes = ((2, 3, 17), (3, 1), (17,))
        arrays = tuple(draw(row, rng, i, row.dtypes[0], shapes[i]) for i in range(row.arity))
        yield ops.Sample("broadcast", arrays, given)
    if row.structure:
        yield from _structure(row, rng)


def _structure(row: Formula, rng: np.random.Generator) -> Iterable[ops.Sample]:
    for shape in elementwise.sample_shapes():
        arrays = tuple(draw(row, rng, i, f32, shape) for i in range(row.arity))
        yield ops.Sample("x".join(map(str, shape)), arrays, row.given)
    for first, second in _BROADCASTS if row.arity == 2 else ():
        for a, b in ((first, second), (second, first)):
            yield ops.Sample(f"{a} and {b}", (draw(row, rng, 0, f32, a), draw(row, rng, 1, f32, b)), row.given)
    yield from _active(row, rng)


def _active(row: Formula, rng: np.random.Generator) -> Iterable[ops.Sample]:
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
