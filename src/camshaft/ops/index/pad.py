"""pad: x with elements before and after it along each axis, of a constant or from x itself. Bit for bit.

The modes are NumPy's: constant, edge (torch: replicate), reflect, symmetric and wrap (torch: circular). A negative width takes
elements away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i64, u16
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, Value, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.index.moved import one_tensor
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.strides import Strides, split_index
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

Pair = tuple[int, int]
_WIDTH = Attribute("pad_width", "int | tuple[int, int] | tuple[tuple[int, int], ...]")
_MODE, _VALUE = Attribute("mode", "str", "constant"), Attribute("constant_values", "float", 0)
# The same for indexes in NumPy and in kernels: `source(k, i, n)` is the element of an axis of n that place i shows.
_SAME_MODES = {"replicate": "edge", "circular": "wrap"}


class _NumPy:
    """The functions that `_SOURCES` takes of a tracer, on arrays."""

    minimum, maximum, select = staticmethod(np.minimum), staticmethod(np.maximum), staticmethod(np.where)


def _reflected(k: Any, i: Any, n: Any) -> Any:
    period = k.maximum(n * 2 - 2, 1)
    place = i % period
    return k.select(place < n, place, period - place)


def _symmetric(k: Any, i: Any, n: Any) -> Any:
    place = i % (n * 2)
    return k.select(place < n, place, n * 2 - 1 - place)


_SOURCES: dict[str, Callable[[Any, Any, Any], Any]] = {
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
    source = _SOURCES[mode]
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


def pairs_of(x: TensorSpec, given: Any) -> tuple[Pair, ...]:
    """The widths before and after each axis: one number for all, one pair for all, or a pair for each. ShapeError otherwise."""
    pairs = given
    if isinstance(given, int):
        pairs = ((given, given),) * len(x.shape)
    elif isinstance(given, tuple) and len(given) == 2 and all(isinstance(n, int) for n in given):
        pairs = (given,) * len(x.shape)
    listed = isinstance(pairs, tuple) and all(
        isinstance(p, tuple) and len(p) == 2 and all(isinstance(n, int) for n in p) for p in pairs
    )
    fits = listed and len(pairs) == len(x.shape)
    ops.expect(fits, "pad", f"pad_width {given} of {x}", "a number, a pair, or a pair of integers for each axis")
    return tuple(pairs)


def mode_of(attrs: ops.Attrs) -> str:
    """The mode in NumPy's words. ShapeError for none of the modes."""
    mode = attrs.get("mode", "constant")
    found = _SAME_MODES.get(mode, mode) if isinstance(mode, str) else ""
    ops.expect(found in _SOURCES, "pad", f"mode {mode!r}", ", ".join((*_SOURCES, *_SAME_MODES)))
    return found


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("pad", specs, attrs, "pad_width mode constant_values")
    mode_of(attrs)
    pairs, value = pairs_of(x, attrs.get("pad_width")), attrs.get("constant_values", 0)
    ops.expect(isinstance(value, (int, float)), "pad", f"constant_values {value!r}", "a number")
    still = all(pair == (0, 0) for pair, d in zip(pairs, x.shape, strict=True) if isinstance(d, Extent))
    sizes = [n + sum(pair) for n, pair in zip(x.bounds, pairs, strict=True)]
    ops.expect(still and all(n > 0 for n in sizes), "pad", f"{x} to {sizes}", "sizes above 0, an Extent's as it is")
    return (TensorSpec(tuple(d if isinstance(d, Extent) else n for d, n in zip(x.shape, sizes, strict=True)), x.dtype),)


def indexes_of(mode: str, n: int, before: int, after: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which of the n elements of an axis each place shows; n itself where it is the constant."""
    places = np.arange(-before, n + after)
    found = _SOURCES[mode](_NumPy, places, n)
    return np.where((places < 0) | (places >= n), n, found) if mode == "constant" else found


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    y, mode = inputs[0], mode_of(attrs)
    pairs = pairs_of(TensorSpec(y.shape, as_dtype(y.dtype)), attrs["pad_width"])
    fill = np.asarray(attrs.get("constant_values", 0)).astype(y.dtype)
    for axis, pair in enumerate(pairs):
        if pair != (0, 0):
            wide = np.concatenate([y, np.full_like(np.take(y, [0], axis), fill)], axis)
            y = np.take(wide, indexes_of(mode, y.shape[axis], *pair), axis)
    return (np.ascontiguousarray(y).reshape(y.shape),)


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


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, out = node.inputs[0], node.outputs[0]
    pairs = pairs_of(x, node.attrs["pad_width"])
    arrays = as_bits(ops.read(0, shape=(prod(x.bounds),)), x), as_bits(ops.write(0, shape=(prod(out.bounds),)), out)
    value = node.attrs.get("constant_values", 0)
    return ops.Build((pad_launch(x, pairs, mode_of(node.attrs), value, arrays),))


def _decompose(f: Any, x: Any, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Any:
    """Gathers along each axis, of the elements and one more that is the constant."""
    found = mode_of({"mode": mode})
    for axis, pair in enumerate(pairs_of(x.spec, pad_width)):
        if pair == (0, 0):
            continue
        n, order = x.shape[axis], (axis, *(i for i in range(x.ndim) if i != axis))
        front = f.transpose(x, axes=order) if axis else x
        if found == "constant":
            fill = np.full((1, *front.shape[1:]), np.asarray(constant_values).astype(x.dtype.numpy))
            front = f.concat(front, fill, axis=0)
        rows = indexes_of(found, n, *pair).astype(np.int32)
        back = tuple(sorted(range(x.ndim), key=order.__getitem__))
        taken = f.gather(front, rows)
        x = f.transpose(taken, axes=back) if axis else taken
    return x


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(43)

    def draw(shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
        return rng.integers(1, 100, shape).astype(dtype.numpy)

    cases: tuple[tuple[tuple[int, ...], Any, str], ...] = (
        ((5,), 2, "constant"),
        ((3, 17), ((1, 0), (0, 2)), "constant"),
        ((2, 3, 5), ((0, 0), (1, 2), (0, 0)), "constant"),
        ((3, 17), (2, 1), "edge"),
        ((3, 5), ((7, 0), (0, 11)), "reflect"),
        ((1, 4), 3, "reflect"),
        ((3, 5), ((0, 7), (11, 0)), "symmetric"),
        ((2, 3, 5), ((0, 0), (4, 0), (0, 0)), "wrap"),
        ((3, 17), ((1, -1), (-5, 9)), "wrap"),
        ((4, 9), ((-1, 2), (3, -4)), "constant"),
    )
    for shape, width, mode in cases:
        yield ops.Sample(f"{shape} by {width} {mode}", (draw(shape),), {"pad_width": width, "mode": mode})
    for dtype, value in ((f64, -0.1), (f16, float("-inf")), (bf16, 0.1), (i8, -7), (i64, 9), (u16, 3), (boolean, 1)):
        attrs = {"pad_width": ((1, 0), (1, 2)), "constant_values": value}
        yield ops.Sample(f"{value} in {dtype.name}", (draw((3, 5), dtype),), attrs)
    least = {"pad_width": 1, "constant_values": float("-inf")}
    yield ops.Sample("-inf", (draw((2, 4100)),), least)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {"pad_width": 1}, "wanted one tensor")
    yield ops.ErrorSample((x,), {"pad_width": ((1, 2),)}, "a pair of integers for each axis")
    yield ops.ErrorSample((x,), {"pad_width": (-1, -1)}, "wanted sizes above 0")
    yield ops.ErrorSample((x,), {"pad_width": 1, "mode": "mirror"}, "got mode 'mirror'; wanted constant")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8), 3), f32),), {"pad_width": 1}, "an Extent's as it is")


OP = ops.Op(
    name="pad",
    formula="y[i, ..] = x[i - before, ..] where that is in x, else a constant or what `mode` takes of x",
    parameters=Parameters("x", (_WIDTH, _MODE, _VALUE)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    decompose=_decompose,
)
