"""slice: y[i, ..] = x[start + i step, ..], each axis with its own numbers. Bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, boolean, f16, f32, f64, i8, i64, u16
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, same_dtype
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.strides import iteration, strides_of
from camshaft.ops.movement.transpose import strided
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import Dim, TensorSpec

_ATTRIBUTES = {"starts", "sizes", "steps"}
_STARTS, _SIZES = Attribute("starts", "tuple[int, ...]"), Attribute("sizes", "tuple[int | None, ...]")
_STEPS = Attribute("steps", "tuple[int, ...] | None", None)


def _cuts(x: TensorSpec, attrs: ops.Attrs) -> list[tuple[int, Dim, int]]:
    """(start, size, step) of each axis; a size of None is the whole axis. ShapeError where one leaves its axis."""
    ops.expect(set(attrs) <= _ATTRIBUTES, "slice", f"attributes {sorted(attrs)}", ", ".join(sorted(_ATTRIBUTES)))
    starts, sizes, steps = attrs.get("starts"), attrs.get("sizes"), attrs.get("steps") or (1,) * len(x.shape)
    rows: tuple[Any, ...] = (starts, sizes, steps)
    fits = all(isinstance(row, tuple) and len(row) == len(x.shape) for row in rows)
    ops.expect(fits, "slice", f"starts {starts}, sizes {sizes} and steps {steps} of {x}", "one of each for every axis")
    cuts: list[tuple[int, Dim, int]] = []
    for axis, (dim, start, size, step) in enumerate(zip(x.shape, *rows, strict=True)):
        came = f"start {start}, size {size} and step {step} for axis {axis} of {x}"
        whole = size is None and (start, step) == (0, 1)
        last = start if whole else start + (size - 1) * step
        inside = whole or (isinstance(dim, int) and size > 0 and step != 0 and 0 <= start < dim and 0 <= last < dim)
        ops.expect(inside, "slice", came, "elements of that axis, one or more; of an Extent all (0, None, 1)")
        cuts.append((0, dim, 1) if whole else (start, size, step))
    return cuts


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "slice", specs, "one tensor x")
    dtype, x = same_dtype("slice", specs, EVERY), specs[0]
    fits = 0 not in x.bounds and not any(isinstance(d, Extent) for d in x.shape[1:])
    ops.expect(fits, "slice", x, "no empty axis, and an Extent only as a first axis")
    return (TensorSpec(tuple(size for _, size, _ in _cuts(x, attrs)), dtype),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x = inputs[0]
    steps = attrs.get("steps") or (1,) * x.ndim
    for axis, (start, size, step) in enumerate(zip(attrs["starts"], attrs["sizes"], steps, strict=True)):
        if size is not None:
            x = np.take(x, start + step * np.arange(size), axis)
    return (np.array(x, order="C"),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, out = node.inputs[0], node.outputs[0]
    cuts = _cuts(x, node.attrs)
    own = [prod(x.bounds[axis + 1 :]) for axis in range(len(cuts))]
    taken = tuple(stride * step for stride, (_, _, step) in zip(own, cuts, strict=True))
    first = sum(start * stride for stride, (start, _, _) in zip(own, cuts, strict=True))
    over = iteration(out.shape, (taken, strides_of(out, out.shape)))
    arrays = as_bits(ops.read(0, shape=(prod(x.bounds),)), x), as_bits(ops.write(0, shape=(prod(out.bounds),)), out)
    return ops.Build((strided(over, arrays, first),))


def _vjp(f: Any, dy: Any, y: Any, x: Any, **attrs: Any) -> Any:
    """dy between zeros: before the first element, between two of a step, and after the last."""
    cuts: list[Any] = [
        (0, None, 1) if isinstance(size, Extent) else (start, size, step) for start, size, step in _cuts(x.spec, attrs)
    ]
    if any(step < 0 for *_, step in cuts):
        turns = [(size - 1, size, -1) if step < 0 else (0, None, 1) for _, size, step in cuts]
        dy = f.slice(dy, **_attributes(turns))
        cuts = [
            (start + (size - 1) * step, size, -step) if step < 0 else (start, size, step) for start, size, step in cuts
        ]
    for axis, (_, size, step) in enumerate(cuts):
        if step > 1:
            before, after = dy.shape[:axis], dy.shape[axis + 1 :]
            none = ((0, 0),) * len(before), ((0, 0),) * len(after)
            spaced = f.pad(
                dy.reshape((*before, size, 1, *after)), pad_width=(*none[0], (0, 0), (0, step - 1), *none[1])
            )
            whole = [(0, None, 1)] * x.ndim
            whole[axis] = (0, (size - 1) * step + 1, 1)
            dy = f.slice(spaced.reshape((*before, size * step, *after)), **_attributes(whole))
    widths = [
        (0, 0) if size is None else (start, x.shape[axis] - start - dy.shape[axis])
        for axis, (start, size, _) in enumerate(cuts)
    ]
    return f.pad(dy, pad_width=tuple(widths)) if any(map(any, widths)) else dy


def _attributes(cuts: list[Any]) -> ops.Attrs:
    return dict(zip(("starts", "sizes", "steps"), zip(*cuts, strict=True), strict=True))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(25)
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
        ((1,), (0,), (1,), (1,)),
        ((40,), (3,), (17,), (2,)),
        ((40,), (39,), (40,), (-1,)),
        ((9, 33), (2, 0), (5, 33), (1, 1)),
        ((9, 33), (8, 32), (3, 9), (-3, -4)),
        ((5, 7, 19), (1, 6, 2), (2, 4, 17), (3, -2, 1)),
        ((3, 4, 5, 6), (0, 1, 0, 5), (3, 2, 5, 1), (1, 2, 1, 1)),
        ((2, 4099), (1, 1), (1, 4098), (1, 1)),
    )
    for shape, starts, sizes, steps in cases:
        attrs = {"starts": starts, "sizes": sizes, "steps": steps}
        yield ops.Sample(f"{shape}: {attrs}", (rng.normal(size=shape).astype(np.float32),), attrs)
    attrs = {"starts": (1, 3), "sizes": (5, 15)}
    for dtype in (f64, f16, bf16, i8, i64, u16, boolean):
        yield ops.Sample(f"7x19 of {dtype.name}", (rng.integers(0, 100, (7, 19)).astype(dtype.numpy),), attrs)
    tokens = Extent("tokens", 16)
    x = rng.normal(size=(16, 5, 33)).astype(np.float32)
    spec = TensorSpec((tokens, 5, 33), f32)
    for inner in ((2, 31), (1, 1)):
        parts = {"starts": (0, 3, 2), "sizes": (None, *inner)}
        yield ops.Sample(f"{inner} of 7 of 16", (x,), parts, (spec,), {tokens: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    whole = {"starts": (0, 0), "sizes": (None, None)}
    yield ops.ErrorSample((x, x), whole, "wanted one tensor")
    yield ops.ErrorSample((x,), {"starts": (0,), "sizes": (1,)}, "wanted one of each for every axis")
    yield ops.ErrorSample((x,), {"starts": (0, 1), "sizes": (2, 8)}, "wanted elements of that axis")
    yield ops.ErrorSample((x,), {"starts": (0, 5), "sizes": (2, 4), "steps": (1, -2)}, "wanted elements of that axis")
    yield ops.ErrorSample(
        (TensorSpec((Extent("n", 8), 3), f32),), {"starts": (0, 0), "sizes": (2, 3)}, "of an Extent all"
    )


OP = ops.Op(
    name="slice",
    formula="y[i, ..] = x[start + i step, ..]",
    parameters=Parameters("x", (_STARTS, _SIZES, _STEPS)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("strided_copy", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0},
    nbytes=lambda node: 2.0 * node.outputs[0].nbytes,
    vjp=_vjp,
)
