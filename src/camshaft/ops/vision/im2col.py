"""im2col: the patches of x [C, H, W] or [N, C, H, W] as rows, [.., patches, C p^2]. Bit for bit.

Elements of a patch are in the order channel, row, column. Patches are row-major, by default side by side (stride = patch), as a
vision transformer's; x may be padded with zeros. One strided copy of the padded x, whose steps overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, f32, f64, u8
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.strides import iteration, strides_of
from camshaft.ops.movement.moved import check_attributes
from camshaft.ops.movement.transpose import strided
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.windows import (
    DILATION,
    PADDING,
    Windows,
    expect_images,
    padded_array,
    padded_input,
    tap,
    views,
    windows_of,
)  # fmt: skip

_PATCH = Attribute("patch", "int | tuple[int, int]")
_STRIDE = Attribute("stride", "int | tuple[int, int] | None", None)


def _windows(x: Sequence[int], attrs: ops.Attrs) -> Windows:
    patch = attrs.get("patch")
    return windows_of("im2col", x[-2:], patch, {**attrs, "stride": attrs.get("stride") or patch})


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "im2col", specs, "one tensor x [C, H, W] or [N, C, H, W]")
    check_attributes("im2col", attrs, "patch stride padding dilation")
    expect_images("im2col", specs, EVERY, "[C, H, W] or [N, C, H, W]", 4 if len(specs[0].shape) == 4 else 3)
    x = specs[0]
    w = _windows(x.bounds, attrs)
    return (TensorSpec((*x.shape[:-3], prod(w.places), x.bounds[-3] * prod(w.kernel)), x.dtype),)


def _order(rank: int) -> tuple[int, ...]:
    """The axes of [.., C, i, j, r, s] as [.., i, j, C, r, s]."""
    lead = tuple(range(rank - 3))
    c = rank - 3
    return (*lead, c + 1, c + 2, c, c + 3, c + 4)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    w = _windows(x.shape, attrs)
    seen = np.transpose(views(padded_array(x, w), w), _order(x.ndim))
    shape = (*x.shape[:-3], prod(w.places), x.shape[-3] * prod(w.kernel))
    return (np.ascontiguousarray(seen).reshape(shape),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, out = node.inputs[0], node.outputs[0]
    w = _windows(x.bounds, node.attrs)
    launches, source, scratch = padded_input(x, w)
    channels, width = x.bounds[-3], w.padded[1]
    plane = w.padded[0] * width
    shape = (prod(x.bounds[:-3]), *w.places, channels, *w.kernel)
    steps = (w.stride[0] * width, w.stride[1]), (w.dilation[0] * width, w.dilation[1])
    full = TensorSpec(shape, x.dtype)
    over = iteration(shape, ((channels * plane, *steps[0], plane, *steps[1]), strides_of(full, shape)))
    arrays = as_bits(source, x), as_bits(ops.write(0, shape=(prod(shape),)), out)
    return ops.Build((*launches, strided(over, arrays)), scratch)


def _decompose(f: Any, x: Any, **attrs: Any) -> Any:
    """The elements of windows one after the other, joined, then turned."""
    w = _windows(x.shape, attrs)
    seen = f.pad(x, pad_width=(*((0, 0),) * (x.ndim - 2), *w.padding)) if w.is_padded else x
    parts = [tap(f, seen, w, at) for at in product(*map(range, w.kernel))]
    parts = [part.reshape((*part.shape, 1)) for part in parts]
    joined = parts[0] if len(parts) == 1 else f.concat(*parts, axis=x.ndim)
    turned = f.transpose(joined.reshape((*joined.shape[:-1], *w.kernel)), axes=_order(x.ndim))
    return turned.reshape((*x.shape[:-3], prod(w.places), x.shape[-3] * prod(w.kernel)))


def _samples() -> Iterable[ops.Sample]:
    cases: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
        ((3, 4, 6), {"patch": 2}),
        ((2, 5, 19), {"patch": 3, "stride": 1}),
        ((2, 2, 7, 9), {"patch": (3, 2), "stride": 2, "padding": 1, "dilation": (1, 2)}),
    )
    rng = np.random.default_rng(48)
    for shape, attrs in cases:
        yield ops.Sample(f"{shape} {attrs}", (rng.normal(size=shape).astype(np.float32),), attrs)
    for dtype in (f64, bf16, u8):
        x = rng.integers(0, 9, (3, 4, 6)).astype(dtype.numpy)
        yield ops.Sample(f"of {dtype.name}", (x,), {"patch": 2})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((3, 8, 8), f32)
    yield ops.ErrorSample((x, x), {"patch": 2}, "wanted one tensor x")
    yield ops.ErrorSample((x,), {}, "got kernel None; wanted an integer of 1 or more")
    yield ops.ErrorSample((x,), {"patch": 9}, "wanted no window larger than the padded x")
    yield ops.ErrorSample((TensorSpec((8, 8), f32),), {"patch": 2}, "C, H, W")


OP = ops.Op(
    name="im2col",
    formula="y[(i, j), (c, r, s)] = x[c, i stride + r dilation, j stride + s dilation]",
    parameters=Parameters("x", (_PATCH, _STRIDE, PADDING, DILATION)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("strided_copy", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    decompose=_decompose,
)
