"""resample: weighted sums along one axis, y[.., i, ..] = sum_t weights[i, t] x[.., first[i] + t, ..]; resize is built on it.

Positions before or after x are clamped to it, so nothing outside of x is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, f32, f64, i32, i64
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import rounded, same_dtype, widened
from camshaft.ops.kernels import blocks
from camshaft.ops.matmul.lanes import added
from camshaft.ops.movement.moved import axis_in, check_attributes
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.windows import expect_images

BLOCK, UNROLL = 1024, 8


@kernel
def weighted(
    k: Tracer, x: Array, starts: Array, weights: Array, out: Array, *, elements: int, results: int, taps: int, columns: int,
    block: int,
) -> None:  # fmt: skip
    # out[o, i, c] = sum_t weights[i, t] x[o, starts[i] + t, c]: lanes along c, or along i where there is one c
    outer, across = k.program(0), columns == 1
    row, first = (outer, k.program(2) * block) if across else (k.program(1), k.program(2) * block)
    stop = k.minimum(first + block, results if across else columns)
    sums = k.scratch(out.dtype, block)
    for c in k.lanes(first, stop):
        sums[c - first] = 0

    def start_of(i: Value) -> Value:
        return k.minimum(k.maximum(starts[i], 0), elements - taps).to(i64)

    def add(t: Value | int, n: int) -> None:
        for c in k.lanes(first, stop):
            i, total = (c if across else row), sums[c - first]
            for u in range(n):
                at = start_of(i) + (t + u)
                if across:
                    w, found = k.gather(weights, c * taps + (t + u)), k.gather(x, outer * elements + at)
                else:
                    w, found = weights[i * taps + (t + u)], x[(outer * elements + at) * columns + c]
                total = added(k, w, found, total)
            sums[c - first] = total

    full = taps // UNROLL * UNROLL
    for t in k.range(0, full, UNROLL):
        add(t, UNROLL)
    if full < taps:
        add(full, taps - full)
    for c in k.lanes(first, stop):
        out[outer * results + c if across else (outer * results + row) * columns + c] = sums[c - first]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, "resample", specs, "x, first and weights")
    x, first, weights = specs
    check_attributes("resample", attrs, "axis")
    same_dtype("resample", (x, weights), (f32, f64))
    expect_images("resample", (x,), (f32, f64), "of one axis or more", max(len(x.shape), 1))
    axis = axis_in("resample", x, attrs.get("axis", -1))
    fits = first.dtype == i32 and len(first.shape) == 1 and len(weights.shape) == 2 and 0 not in weights.bounds
    fits = fits and weights.shape[:1] == first.shape and weights.bounds[1] <= x.bounds[axis]
    ops.expect(fits, "resample", (first, weights), f"i32 [n] and weights [n, taps] of at most {x.bounds[axis]} taps")
    return (TensorSpec((*x.shape[:axis], first.shape[0], *x.shape[axis + 1 :]), x.dtype),)


def rows_of(x: ops.Array, first: ops.Array, taps: int, axis: int) -> ops.Array:
    """Returns the elements of each sum, with indexes clamped to x."""
    starts = np.clip(first, 0, x.shape[axis] - taps)
    return np.asarray(starts[:, None] + np.arange(taps))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, first, weights = inputs
    axis = attrs.get("axis", -1) % x.ndim
    seen = np.take(np.moveaxis(widened(x), axis, 0), rows_of(x, first, weights.shape[1], axis), 0)
    y = np.einsum("it,it...->i...", widened(weights), seen)
    return (rounded(np.moveaxis(y, 0, axis), as_dtype(x.dtype)),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, first, weights = node.inputs
    axis = node.attrs.get("axis", -1) % len(x.shape)
    outer, elements, columns = prod(x.bounds[:axis]), x.bounds[axis], prod(x.bounds[axis + 1 :])
    results = first.bounds[0]
    block = blocks.even_block(results if columns == 1 else columns, BLOCK)
    constants: dict[str, Constant] = {
        "elements": elements,
        "results": results,
        "taps": weights.bounds[1],
        "columns": columns,
        "block": block,
    }
    flat = [ops.read(0, shape=(prod(x.bounds),)), ops.read(1), ops.read(2, shape=(prod(weights.bounds),))]
    lines = (
        (ops.Cells(1), ops.Cells(results, per=block))
        if columns == 1
        else (ops.Cells(results), ops.Cells(columns, per=block))
    )
    out = ops.write(0, shape=(prod(node.outputs[0].bounds),))
    return ops.Build((ops.Launch(weighted, (*flat, out), (ops.Cells(outer), *lines), constants),))


def _decompose(f: Any, x: Any, first: Any, weights: Any, axis: int = -1) -> Any:
    axis %= x.ndim
    n, taps = first.shape[0], weights.shape[1]
    order = (axis, *(i for i in range(x.ndim) if i != axis))
    front = f.transpose(x, axes=order) if axis else x
    starts = f.minimum(f.maximum(first, np.int32(0)), np.int32(x.shape[axis] - taps))
    rows = starts.reshape((n, 1)) + np.arange(taps, dtype=np.int32)
    seen = f.gather(front, rows) * weights.reshape((n, taps, *(1,) * (x.ndim - 1)))
    y = f.sum(seen, axes=1)
    back = tuple(sorted(range(x.ndim), key=order.__getitem__))
    return f.transpose(y, axes=back) if axis else y


def _draw(shape: tuple[int, ...], dtype: DType = f32, seed: int = 51) -> ops.Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype.numpy)


def _samples() -> Iterable[ops.Sample]:
    for shape, taps, n, axis in (((5,), 2, 3, 0), ((3, 19), 4, 33, 1), ((2, 9, 17), 9, 5, 1)):
        first = np.random.default_rng(52).integers(-1, shape[axis] + 1, n).astype(np.int32)
        yield ops.Sample(f"{shape} on {axis}", (_draw(shape), first, _draw((n, taps))), {"axis": axis})
    first = np.array([0, 1, 2], np.int32)
    yield ops.Sample("of f64", (_draw((2, 5), f64), first, _draw((3, 2), f64)))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, first, weights = TensorSpec((2, 8), f32), TensorSpec((3,), i32), TensorSpec((3, 2), f32)
    yield ops.ErrorSample((x, first), {}, "wanted x, first and weights")
    yield ops.ErrorSample((x, first, weights), {"axis": 2}, "wanted an axis from -2 to 1")
    yield ops.ErrorSample((x, first, TensorSpec((3, 9), f32)), {}, "of at most 8 taps")
    yield ops.ErrorSample((x, first, TensorSpec((3, 2), f64)), {}, "wanted operands of one dtype")


OP = ops.Op(
    name="resample",
    formula="y[.., i, ..] = sum_t weights[i, t] x[.., first[i] + t, ..]",
    parameters=Parameters("x first weights", (Attribute("axis", "int", -1),)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("line_blocks", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12, "f64": 1e-29},
    flops=lambda node: 2.0 * prod(node.outputs[0].bounds) * node.inputs[2].bounds[1],
    decompose=_decompose,
)
