"""take_along_axis: y[.., i, ..] = x[.., indices[.., i, ..], ..] along one axis, the shapes broadcast as in NumPy. Bit for bit.

A negative index counts from the end. An index out of bounds reads nothing and gives NaN (0 for integers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f32, f64, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY
from camshaft.ops.index.gather import INDEXES, index_of, missing_of
from camshaft.ops.kernels.bits import NAN_BITS, as_bits
from camshaft.ops.kernels.strides import SIZES, ProgramBlock, Strides, is_zero, iteration, strides_of
from camshaft.ops.movement.moved import axis_in, check_attributes
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import Dim, TensorSpec

AXIS = Attribute("axis", "int", -1)


@kernel
def take_along(
    k: Tracer, x: Array, indices: Array, out: Array, *active: ir.Value, limit: int, step: int, missing: int, columns: int,
    block: int, sizes: Strides, strides: tuple[Strides, ...],
) -> None:  # fmt: skip
    # y[i] = x[i . strides + indices[i] step]
    program = ProgramBlock(k, columns, active, block, sizes, strides)
    alike = is_zero(strides[1][-1])  # one index for the whole block
    nothing = float("nan") if x.dtype.is_float else missing
    for c in k.lanes(program.start, program.stop):
        index, inside = index_of(k, program.load(1, indices, c), limit)
        index = k.minimum(k.maximum(index, 0), limit - 1)
        found = program.load(0, x, c, index * step) if alike else k.gather(x, program.place(0, c) + index * step)
        program.store(2, out, c, k.select(inside, found, k.const(nothing, ir.arithmetic_dtype(x.dtype))))


def expect_along(op: str, x: TensorSpec, indices: TensorSpec, attrs: ops.Attrs) -> int:
    """Returns the axis. ShapeError for other dtypes, an empty axis, and ranks that differ."""
    check_attributes(op, attrs, "axis")
    plain = x.is_plain and x.dtype in EVERY and 0 not in x.bounds
    ops.expect(plain and len(x.shape) > 0, op, x, "a tensor x with one axis or more, none of them empty")
    axis = axis_in(op, x, attrs.get("axis", -1))
    fits = indices.is_plain and indices.dtype in INDEXES and 0 not in indices.bounds
    fits = fits and len(indices.shape) == len(x.shape) and not isinstance(indices.shape[axis], Extent)
    ops.expect(fits, op, indices, f"indices of i32 or i64 with {len(x.shape)} axes, none of them empty")
    return axis


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "take_along_axis", specs, "x and indices")
    x, indices = specs
    axis = expect_along("take_along_axis", x, indices, attrs)
    shape: list[Dim] = []
    for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)):
        ops.expect(
            i == axis or 1 in (a, b) or a == b, "take_along_axis", specs, f"shapes that broadcast but for axis {axis}"
        )
        shape.append(b if i == axis or a == 1 else a)
    ops.expect(
        not any(isinstance(d, Extent) for d in shape[1:]), "take_along_axis", specs, "an Extent only as first axis"
    )
    return (TensorSpec(tuple(shape), x.dtype),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, indices = inputs
    axis = attrs.get("axis", -1) % x.ndim
    n = x.shape[axis]
    inside = (indices >= -n) & (indices < n)
    found = np.take_along_axis(x, np.where(inside, indices, 0), axis)
    return (np.where(inside, found, x.dtype.type(missing_of(as_dtype(x.dtype)))),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, indices, out = *node.inputs, node.outputs[0]
    axis = node.attrs.get("axis", -1) % len(x.shape)
    own = strides_of(x, (*out.shape[:axis], x.shape[axis], *out.shape[axis + 1 :]))
    fixed = (*own[:axis], 0, *own[axis + 1 :])
    over = iteration(out.shape, (fixed, strides_of(indices, out.shape), strides_of(out, out.shape)))
    flat = [(prod(spec.bounds),) for spec in (x, indices, out)]
    arrays = (
        as_bits(ops.read(0, shape=flat[0]), x),
        ops.read(1, shape=flat[1]),
        as_bits(ops.write(0, shape=flat[2]), out),
    )
    constants: dict[str, Constant] = {"limit": x.bounds[axis], "step": prod(x.bounds[axis + 1 :])}
    names = (*constants, *SIZES)
    constants |= {"missing": NAN_BITS.get(as_dtype(x.dtype), 0), **over.constants}
    return ops.Build((ops.Launch(take_along, arrays, over.grid, constants, over.extents, sizes=names),))


def _decompose(f: Any, x: Any, indices: Any, axis: int = -1) -> Any:
    """Gathers elements of the flat x; an index out of bounds stays out of bounds."""
    axis %= x.ndim
    shape, strides = list(x.shape), []
    for i in range(x.ndim):
        strides.append(prod(x.shape[i + 1 :]))
        shape[i] = indices.shape[i] if i == axis or shape[i] == 1 else shape[i]
    n, flat = x.shape[axis], prod(x.shape)
    index = f.cast(indices, to="i64")
    index = f.where(index < 0, index + n, index)
    place = index * strides[axis]
    for i, size in enumerate(shape):
        if i != axis and x.shape[i] > 1:
            place = place + (np.arange(size) * strides[i]).reshape(size, *(1,) * (x.ndim - i - 1))
    place = f.where(f.logical_and(index >= 0, index < n), place, np.int64(flat))
    if place.shape != tuple(shape):
        place = f.broadcast_to(place, shape=tuple(shape))
    return f.gather(x.reshape((flat,)), place)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(44)

    def draw(shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
        return rng.integers(0, 100, shape).astype(dtype.numpy)

    cases = (
        ((5,), (17,), 0),
        ((6, 17), (4, 17), 0),
        ((2, 5, 3), (2, 4, 3), 1),
        ((2, 5, 3), (1, 4, 1), 1),
        ((1, 5), (3, 2), -1),
    )
    for shape, taken, axis in cases:
        n = shape[axis]
        yield ops.Sample(
            f"{taken} of {shape} on {axis}", (draw(shape), rng.integers(-n, n, taken, dtype=np.int32)), {"axis": axis}
        )
    bad = np.array([[0, -1, 4, 3, -4, -5, 2**31 - 1, -(2**31)]] * 2, np.int32)
    for dtype in (f32, i32, bf16):
        yield ops.Sample(f"out of bounds, {dtype.name}", (draw((2, 4), dtype), bad))
    for dtype in (f64, boolean):
        yield ops.Sample(f"i64 indices of {dtype.name}", (draw((2, 4), dtype), bad.astype(np.int64)), {"axis": 1})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, rows = TensorSpec((2, 8), f32), TensorSpec((2, 3), i32)
    yield ops.ErrorSample((x,), {}, "wanted x and indices")
    yield ops.ErrorSample((x, TensorSpec((3,), i32)), {}, "wanted indices of i32 or i64 with 2 axes")
    yield ops.ErrorSample((x, x), {}, "wanted indices of i32 or i64")
    yield ops.ErrorSample((x, TensorSpec((3, 3), i64)), {"axis": 1}, "shapes that broadcast but for axis 1")
    yield ops.ErrorSample((x, rows), {"axis": 2}, "wanted an axis from -2 to 1")


OP = ops.Op(
    name="take_along_axis",
    formula="y[.., i, ..] = x[.., indices[.., i, ..], ..]",
    parameters=Parameters("x indices", (AXIS,)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("strided", ops.EVERYWHERE, _build),),
    indexes={1: lambda node: node.inputs[0].bounds[node.attrs.get("axis", -1)]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    decompose=_decompose,
)
