"""pad: x with elements before and after it along each axis, of a constant or from x itself. Bit for bit.

The modes are NumPy's: constant, edge (torch: replicate), reflect, symmetric and wrap (torch: circular). A negative width takes
elements away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i64, u16
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.movement.moved import one_tensor
from camshaft.ops.movement.padded_rows import SOURCES, Pair, indexes_of, pad_launch
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_WIDTH = Attribute("pad_width", "int | tuple[int, int] | tuple[tuple[int, int], ...]")
_MODE, _VALUE = Attribute("mode", "str", "constant"), Attribute("constant_values", "float", 0)
# torch's names of modes
_SAME_MODES = {"replicate": "edge", "circular": "wrap"}


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
    ops.expect(found in SOURCES, "pad", f"mode {mode!r}", ", ".join((*SOURCES, *_SAME_MODES)))
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


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    y, mode = inputs[0], mode_of(attrs)
    pairs = pairs_of(TensorSpec(y.shape, as_dtype(y.dtype)), attrs["pad_width"])
    fill = np.asarray(attrs.get("constant_values", 0)).astype(y.dtype)
    for axis, pair in enumerate(pairs):
        if pair != (0, 0):
            wide = np.concatenate([y, np.full_like(np.take(y, [0], axis), fill)], axis)
            y = np.take(wide, indexes_of(mode, y.shape[axis], *pair), axis)
    return (np.ascontiguousarray(y).reshape(y.shape),)


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
