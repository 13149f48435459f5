"""scatter_add and put: x with values added, or put, at indices along one axis.

y = x, then in the order of i: y[.., indices[.., i, ..], ..] += or = values[.., i, ..]. So of duplicates, put takes the last one,
and scatter_add adds them in that order: results are the same for any number of threads. A negative index counts from the end;
one that is out of bounds changes nothing. scatter_add of f16 and bf16 adds in f32 and rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, NUMBERS, rounded, widened
from camshaft.ops.index.gather import index_of
from camshaft.ops.index.take_along_axis import AXIS, expect_along
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import as_bits, is_short_float
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def scattered(
    k: Tracer, x: Array, indices: Array, values: Array, out: Array, *, adds: bool, limit: int, count: int, columns: int,
    block: int, steps: tuple[int, int, int],
) -> None:  # fmt: skip
    # out[o, :, c] = x[o, :, c]; out[o, indices[o, i, c], c] += or = values[o, i, c] for i = 0, 1, ..; a lane has its own columns
    outer, first = k.program(0), k.program(1) * block
    stop = k.minimum(first + block, columns)
    for i in k.range(limit):
        at = (outer * limit + i) * columns
        for c in k.lanes(first, stop):
            out[at + c] = x[at + c]
    for i in k.range(count):
        for c in k.lanes(first, stop):
            place = outer * steps[0] + i * steps[1]
            index = indices[place + c] if steps[2] == 1 else indices[place]
            value = values[(outer * count + i) * columns + c]
            _write(k, out, (*index_of(k, index, limit), outer * limit, columns, c), value, adds)


def _write(k: Tracer, out: Array, at: tuple[Value, Value, Value, int, Value], value: Value, adds: bool) -> None:
    index, inside, first, columns, c = at
    with k.when(inside):
        place = (first + index) * columns + c
        k.scatter(out, k.gather(out, place) + value if adds else value, place)


@kernel
def searched(
    k: Tracer, x: Array, indices: Array, values: Array, out: Array, *, adds: bool, limit: int, count: int, columns: int,
    block: int, steps: tuple[int, int, int],
) -> None:  # fmt: skip
    # as `scattered`; a program has one row of out and looks for its indices, in the same order
    outer, row, first = k.program(0), k.program(1), k.program(2) * block
    stop, start = k.minimum(first + block, columns), (outer * limit + row) * columns
    for c in k.lanes(first, stop):
        out[start + c] = x[start + c]
    for i in k.range(count):
        place, taken = outer * steps[0] + i * steps[1], (outer * count + i) * columns

        def add(c: Value, place: Value = taken) -> None:
            value = values[place + c]
            out[start + c] = out[start + c] + value if adds else value

        if steps[2] == 1:
            for c in k.lanes(first, stop):
                with k.when(index_of(k, indices[place + c], limit)[0] == row):
                    add(c)
        else:
            with k.when(index_of(k, indices[place], limit)[0] == row):
                for c in k.lanes(first, stop):
                    add(c)


@kernel
def converted(k: Tracer, x: Array, out: Array, *, n: int, block: int) -> None:
    # out = x in its dtype
    for i in k.elements(n, block):
        out[i] = x[i]


def _infer(name: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, name, specs, "x, indices and values")
    x, indices, values = specs
    axis = expect_along(name, x, indices, attrs)
    ops.expect(x.dtype in (NUMBERS if name == "scatter_add" else EVERY), name, x, "numbers to add to")
    fixed = not any(isinstance(d, Extent) for spec in specs for d in spec.shape)
    ops.expect(fixed, name, specs, "shapes without an Extent")
    wanted = (*x.shape[:axis], indices.shape[axis], *x.shape[axis + 1 :])
    fits = values.is_plain and values.dtype == x.dtype and values.shape == wanted
    ops.expect(fits, name, values, f"values of {x.dtype.name} {list(wanted)}")
    alone = tuple(d if i == axis else 1 for i, d in enumerate(wanted))
    ops.expect(indices.shape in (wanted, alone), name, indices, f"indices {list(wanted)} or {list(alone)}")
    return (x,)


def _reference(name: str, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, indices, values = inputs
    axis, dtype = attrs.get("axis", -1) % x.ndim, as_dtype(x.dtype)
    n = x.shape[axis]
    y = np.moveaxis(widened(x) if name == "scatter_add" else x, axis, 0).copy()
    rows = np.moveaxis(np.broadcast_to(indices, values.shape), axis, 0)
    new = np.moveaxis(values, axis, 0)
    others = np.indices(y.shape[1:], sparse=True)
    for row, value in zip(rows, new, strict=True):
        inside = (row >= -n) & (row < n)
        at = (np.where(inside, row, 0), *others)
        with np.errstate(over="ignore"):
            made = y[at] + value if name == "scatter_add" else value
        y[at] = np.where(inside, made, y[at])
    done = np.moveaxis(y, 0, axis)
    return (rounded(done, dtype) if name == "scatter_add" else np.ascontiguousarray(done),)


def _build(name: str, searches: bool, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, indices, values = node.inputs
    axis = node.attrs.get("axis", -1) % len(x.shape)
    limit, count, columns = x.bounds[axis], values.bounds[axis], prod(x.bounds[axis + 1 :])
    outer, n = prod(x.bounds[:axis]), prod(x.bounds)
    block = blocks.even_block(columns, 1024)
    steps = (count * columns, columns, 1) if indices.shape == values.shape else (0, 1, 0)
    sizes: dict[str, Constant] = {"limit": limit, "count": count, "columns": columns, "block": block}
    constants = {"adds": name == "scatter_add", "steps": steps, **sizes}
    flat = (
        ops.read(0, shape=(n,)),
        ops.read(1, shape=(prod(indices.bounds),)),
        ops.read(2, shape=(prod(values.bounds),)),
    )
    rows = (ops.Cells(limit),) if searches else ()
    grid, out = (ops.Cells(outer), *rows, ops.Cells(columns, per=block)), ops.write(0, shape=(n,))
    of_name = searched if searches else scattered
    if name == "put":
        arrays = as_bits(flat[0], x), flat[1], as_bits(flat[2], values), as_bits(out, x)
        return ops.Build((ops.Launch(of_name, arrays, grid, constants, sizes=tuple(sizes)),))
    if not is_short_float(x):
        return ops.Build((ops.Launch(of_name, (*flat, out), grid, constants, sizes=tuple(sizes)),))
    add = ops.Launch(of_name, (*flat, ops.scratch(0, "write", (n,))), grid, constants, sizes=tuple(sizes))
    whole = {"n": n, "block": blocks.BLOCK}
    cells = (ops.Cells(n, per=blocks.BLOCK),)
    back = ops.Launch(converted, (ops.scratch(0, "read", (n,)), out), cells, whole, sizes=("n",))
    return ops.Build((add, back), (TensorSpec((n,), f32),))


def _samples(name: str) -> Iterable[ops.Sample]:
    rng = np.random.default_rng(45)

    def draw(shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
        return (rng.normal(size=shape) if dtype.is_float else rng.integers(0, 50, shape)).astype(dtype.numpy)

    cases = (
        ((7,), (20,), 0),
        ((3, 4), (3, 9), 1),
        ((6, 17), (9, 17), 0),
        ((2, 5, 33), (2, 3, 33), 1),
        ((2, 5, 3), (1, 4, 1), 1),
    )
    for shape, given, axis in cases:
        n = shape[axis]
        values = (*shape[:axis], given[axis], *shape[axis + 1 :])
        rows = rng.integers(-n, n, given, dtype=np.int32)
        yield ops.Sample(f"{given} into {shape} on {axis}", (draw(shape), rows, draw(values)), {"axis": axis})
    bad = np.array([[0, -1, 4, 3, -4, -5, 2**31 - 1, -(2**31)]] * 2, np.int32)
    yield ops.Sample("out of bounds", (draw((2, 4)), bad, draw((2, 8))))
    for dtype in (f64, f16, bf16, i8, i64, *((boolean,) if name == "put" else ())):
        inputs = draw((2, 4), dtype), bad.astype(np.int64), draw((2, 8), dtype)
        yield ops.Sample(f"i64 indices of {dtype.name}", inputs, {"axis": 1})


def _error_samples(name: str) -> Iterable[ops.ErrorSample]:
    x, rows, values = TensorSpec((2, 8), f32), TensorSpec((2, 3), i32), TensorSpec((2, 3), f32)
    yield ops.ErrorSample((x, rows), {}, "wanted x, indices and values")
    yield ops.ErrorSample((x, rows, TensorSpec((2, 4), f32)), {}, "wanted values of f32")
    yield ops.ErrorSample((x, rows, TensorSpec((2, 3), i32)), {}, "wanted values of f32")
    yield ops.ErrorSample((x, TensorSpec((3, 1), i32), TensorSpec((3, 8), f32)), {"axis": 1}, "wanted values of")
    yield ops.ErrorSample((x, TensorSpec((1, 3), i32), TensorSpec((2, 3), f32)), {"axis": 0}, "wanted values of")
    yield ops.ErrorSample((x, values, values), {}, "wanted indices of i32 or i64")
    yield ops.ErrorSample((x, rows, values), {"axis": 3}, "wanted an axis from -2 to 1")


def _taken(f: Any, x: Any, indices: Any, axis: int) -> Any:
    """x at the indices; 0 at those out of bounds, which give NaN."""
    n = x.shape[axis]
    inside = f.logical_and(indices >= -n, indices < n)
    return f.where(inside, f.take_along_axis(x, f.where(inside, indices, 0), axis=axis), 0)


def _add_vjp(f: Any, dy: Any, y: Any, x: Any, indices: Any, values: Any, axis: int = -1) -> tuple[Any, None, Any]:
    return dy, None, _taken(f, dy, indices, axis)


def _put_vjp(f: Any, dy: Any, y: Any, x: Any, indices: Any, values: Any, axis: int = -1) -> tuple[Any, None, Any]:
    """dy to the value that was put last, and to x where none was."""
    count = values.shape[axis]
    number = np.arange(count, dtype=np.int32).reshape((count, *(1,) * (x.ndim - 1 - axis % x.ndim)))
    numbers = f.broadcast_to(x.graph.constant("number", number), shape=values.shape)
    none = f.broadcast_to(x.graph.constant("none", np.full((1,) * x.ndim, -1, np.int32)), shape=x.shape)
    last = f.put(none, indices, numbers, axis=axis)
    own = f.logical_and(f.equal(_taken(f, last, indices, axis), numbers), f.greater_equal(indices, -x.shape[axis]))
    own = f.logical_and(own, f.less(indices, x.shape[axis]))
    return f.where(last < 0, dy, 0), None, f.where(own, _taken(f, dy, indices, axis), 0)


def _op(name: str, formula: str, tolerance: dict[str, float], vjp: Callable[..., Any]) -> ops.Op:
    def cost(searches: bool, node: ops.NodeSpec, target: ops.Target) -> float:
        """A step of one row after the other waits for memory, 1.7 us on an H200; the rows of a search are side by side."""
        count = node.inputs[2].bounds[node.attrs.get("axis", -1)]
        return 10.0 * count if searches else 1000.0 * count

    return ops.Op(
        name=name,
        formula=formula,
        parameters=Parameters("x indices values", (AXIS,)),
        infer=partial(_infer, name),
        reference=partial(_reference, name),
        variants=(
            ops.KernelVariant("in_order", ops.EVERYWHERE, partial(_build, name, False), cost=partial(cost, False)),
            ops.KernelVariant("row_per_program", ops.GPUS, partial(_build, name, True), cost=partial(cost, True)),
        ),
        indexes={1: lambda node: node.inputs[0].bounds[node.attrs.get("axis", -1)]},
        samples=partial(_samples, name),
        error_samples=partial(_error_samples, name),
        tolerance=tolerance,
        vjp=vjp,
    )


OPS = {
    "scatter_add": _op(
        "scatter_add",
        "y = x, then y[.., indices[.., i, ..], ..] += values[.., i, ..]",
        {"f32": 1e-12, "f64": 1e-30, "f16": 1e-8, "bf16": 1e-6},
        _add_vjp,
    ),
    "put": _op(
        "put",
        "y = x, then y[.., indices[.., i, ..], ..] = values[.., i, ..], of duplicates the last",
        {"f32": 0.0},
        _put_vjp,
    ),
}
