"""The kernel of pad, and the modes: which element of an axis each place of the result shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, boolean, f16, i64
from camshaft.lang import Array, Constant, Tracer, Value, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.strides import Strides, split_index
from camshaft.ops.spec import TensorSpec

Pair = tuple[int, int]


class _NumPy:
    """The functions that `SOURCES` takes of a tracer, on arrays."""

    minimum, maximum, select = staticmethod(np.minimum), staticmethod(np.maximum), staticmethod(np.where)


def _reflected(k: Any, i: Any, n: Any) -> Any:
    period = k.maximum(n * 2 - 2, 1)
    place = i % period
    return k.select(place < n, place, period - place)


def _symmetric(k: Any, i: Any, n: Any) -> Any:
    place = i % (n * 2)
    return k.select(place < n, place, n * 2 - 1 - place)


# The same for indexes in NumPy and in kernels: `source(k, i, n)` is the element of an axis of n that place i shows.
SOURCES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "constant": lambda k, i, n: k.minimum(k.maximum(i, 0), n - 1),
    "edge": lambda k, i, n: k.minimum(k.maximum(i, 0), n - 1),
    "reflect": _reflected,
    "symmetric": _symmetric,
    "wrap": lambda k, i, n: i % n,
}


@kernel
def padded_rows(
    k: Tracer, x: Array, out: Array, *, mode: str, value: int | float, sizes: Strides, counts: Strides, befores: Strides,
    strides: Strides, columns: int, count: int, before: int, block: int,
) -> None:  # fmt: skip
    # out[i, c] = x[source(i - befores), source(c - before)]
    source = SOURCES[mode]
    index, base, inside = split_index(k.program(0), sizes), k.const(0, i64), None
    for i, n, skipped, stride in zip(index, counts, befores, strides, strict=True):
        place = i - skipped
        base = base + source(k, place, _index(k, n)) * stride
        within = (place >= 0) & (place < n)
        inside = within if inside is None else inside & within
    row, start = k.program(0) * columns, k.program(1) * block
    stop = k.minimum(start + block, columns)
    low, high = (k.minimum(k.maximum(edge, start), stop) for edge in (before, before + count))

    def fill(first: Value, last: Value) -> None:
        for c in k.lanes(first, last):
            out[row + c] = k.const(value, ir.arithmetic_dtype(out.dtype))

    def move() -> None:
        for c in k.lanes(low, high):
            out[row + c] = x[base - before + c]

    if mode != "constant":
        for first, last in ((start, low), (high, stop)):
            for c in k.lanes(first, last):
                out[row + c] = k.gather(x, base + source(k, c - before, _index(k, count)))
        move()
        return
    fill(start, low)
    fill(high, stop)
    if inside is None:
        move()
        return
    with k.when(inside):
        move()
    with k.when(inside ^ k.const(True, boolean)):
        fill(low, high)


def _index(k: Tracer, n: ir.Operand) -> Value:
    return n if isinstance(n, Value) else k.const(n, i64)


def indexes_of(mode: str, n: int, before: int, after: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which of the n elements of an axis each place shows; n itself where it is the constant."""
    places = np.arange(-before, n + after)
    found = SOURCES[mode](_NumPy, places, n)
    return np.where((places < 0) | (places >= n), n, found) if mode == "constant" else found


def bits_of(value: float, dtype: DType) -> int | float:
    """A constant as a kernel that moves elements of this dtype stores it: bits of 16-bit floats, integers of the others."""
    made = np.asarray(value).astype(dtype.numpy)
    if dtype in (f16, bf16):
        return int(made.view(np.uint16))
    return float(made) if dtype.is_float else int(made)


def pad_launch(
    x: TensorSpec, pairs: Sequence[Pair], mode: str, value: float, arrays: Sequence[ops.Operand]
) -> ops.Launch:
    """A launch that pads x. `arrays` are x and the result; axes that nothing changes are joined."""
    axes: list[tuple[int, int, int]] = []  # (elements of x, before, after)
    for n, pair in zip(x.bounds, pairs, strict=True):
        if axes and pair == axes[-1][1:] == (0, 0):
            axes[-1] = axes[-1][0] * n, 0, 0
        elif axes and pair == (0, 0):
            # a padded axis and the unchanged ones after it are one axis of longer steps, except for what maps indexes
            axes.append((n, 0, 0))
        else:
            axes.append((n, *pair))
    if mode == "constant" and len(axes) > 1 and axes[-1][1:] == (0, 0):
        (n, before, after), (inner, _, _) = axes[-2:]
        axes[-2:] = [(n * inner, before * inner, after * inner)]
    axes = axes or [(1, 0, 0)]
    *others, (count, before, after) = axes
    columns = before + count + after
    block = blocks.even_block(columns)
    sizes = tuple(b + n + a for n, b, a in others)
    constants: dict[str, Constant] = {
        "mode": mode,
        "value": bits_of(value, x.parts[0].dtype),
        "sizes": sizes,
        "counts": tuple(n for n, _, _ in others),
        "befores": tuple(b for _, b, _ in others),
        "strides": tuple(prod(n for n, _, _ in axes[i + 1 :]) for i in range(len(others))),
        "columns": columns,
        "count": count,
        "before": before,
        "block": block,
    }
    grid = ops.Cells(prod(sizes)), ops.Cells(columns, per=block)
    names = tuple(name for name in constants if name not in ("mode", "value"))
    return ops.Launch(padded_rows, tuple(arrays), grid, constants, sizes=names)
