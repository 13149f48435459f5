"""concat and split along an axis, as copies of rows.

concat takes two or more tensors of one dtype; `sizes` of split are the sizes of the parts along `axis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, boolean, f16, f32, f64, i8, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, same_dtype
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.parameters import AXIS, Attribute, Parameters
from camshaft.ops.spec import Dim, TensorSpec


@kernel
def copy_rows(
    k: Tracer, x: Array, out: Array, *, middle: int, x_start: int, out_start: int, columns: int, block: int
) -> None:
    # out[r, out_start + c] = x[r, x_start + c]
    row, first = k.program(0) * middle + k.program(1), k.program(2) * block
    for c in k.lanes(first, k.minimum(first + block, columns)):
        out[row, c + out_start] = x[row, c + x_start]


def _axis(op: str, spec: TensorSpec, attrs: ops.Attrs, known: set[str]) -> int:
    unknown, rank, axis = set(attrs) - known, len(spec.shape), attrs.get("axis", 0)
    ops.expect(not unknown, op, f"attributes {sorted(unknown)}", " and ".join(sorted(known)))
    fits = isinstance(axis, int) and -rank <= axis < rank
    ops.expect(fits, op, f"axis {axis} of {spec}", f"an axis from {-rank} to {rank - 1}")
    found: int = axis % rank
    extents = [i for i, d in enumerate(spec.shape) if isinstance(d, Extent)]
    plain = 0 not in spec.bounds and (not extents or (extents == [0] and found > 0))
    ops.expect(plain, op, spec, "no empty axis, and an Extent only as the first axis and not as the given one")
    return found


def _with_axis(spec: TensorSpec, axis: int, size: int) -> TensorSpec:
    shape: tuple[Dim, ...] = (*spec.shape[:axis], size, *spec.shape[axis + 1 :])
    return TensorSpec(shape, spec.dtype)


def _copies(node: ops.NodeSpec, full: TensorSpec, parts: Sequence[TensorSpec], *, splits: bool) -> ops.Build:
    """Builds a copy per part, between it and where it starts in `full`, the joined tensor: rows of all axes from `axis` on."""
    axis = node.attrs.get("axis", 0) % len(full.shape)
    rows, middle, outer = prod(full.bounds[:axis]), prod(full.bounds[1:axis]), full.shape[0] if axis else 1
    widths = [prod(s.bounds[axis:]) for s in parts]
    whole = (ops.read if splits else ops.write)(0, shape=(rows, prod(full.bounds[axis:])))
    launches = []
    for i, (columns, start) in enumerate(zip(widths, accumulate(widths[:-1], initial=0), strict=True)):
        part = (ops.write if splits else ops.read)(i, shape=(rows, columns))
        (x, x_start), (out, out_start) = ((whole, start), (part, 0)) if splits else ((part, 0), (whole, start))
        block = blocks.even_block(columns)
        grid = ops.Cells(outer), ops.Cells(middle), ops.Cells(columns, per=block)
        constants = {"middle": middle, "x_start": x_start, "out_start": out_start, "columns": columns, "block": block}
        arrays = as_bits(x, full), as_bits(out, full)
        launches.append(ops.Launch(copy_rows, arrays, grid, constants, sizes=tuple(constants)))
    return ops.Build(tuple(launches))


def _infer_concat(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) > 1, "concat", specs, "two or more tensors")
    same_dtype("concat", specs, EVERY)
    axis = _axis("concat", specs[0], attrs, {"axis"})
    fits = all(
        len(s.shape) == len(specs[0].shape) and _with_axis(s, axis, 1) == _with_axis(specs[0], axis, 1) for s in specs
    )
    ops.expect(
        fits and all(0 not in s.bounds for s in specs), "concat", specs, f"shapes that differ only in axis {axis}"
    )
    for other in specs[1:]:  # where a tensor ends is the same in each run
        _axis("concat", other, attrs, {"axis"})
    return (_with_axis(specs[0], axis, sum(s.bounds[axis] for s in specs)),)


def _build_concat(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return _copies(node, node.outputs[0], node.inputs, splits=False)


def _concat_vjp(f: Any, dy: Any, y: Any, *tensors: Any, axis: int = 0) -> tuple[Any, ...]:
    return tuple(f.split(dy, sizes=tuple(x.shape[axis] for x in tensors), axis=axis))


def _infer_split(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "split", specs, "one tensor x")
    same_dtype("split", specs, EVERY)
    axis = _axis("split", specs[0], attrs, {"axis", "sizes"})
    sizes = tuple(attrs.get("sizes", ()))
    fits = all(isinstance(n, int) and n > 0 for n in sizes) and sum(sizes) == specs[0].shape[axis]
    ops.expect(fits, "split", f"sizes {sizes} of {specs[0]}", f"sizes above 0 whose sum is {specs[0].shape[axis]}")
    return tuple(_with_axis(specs[0], axis, n) for n in sizes)


def _build_split(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return _copies(node, node.inputs[0], node.outputs, splits=True)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
    return rng.integers(0, 100, shape).astype(dtype.numpy)


def _concat_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(19)
    shapes = (((3,), (17,)), ((2, 3), (2, 40), (2, 1)), ((2, 3, 5), (2, 4, 5)), ((1, 5), (1, 5)), ((2, 4099), (2, 9)))
    for given, axis in zip(shapes, (0, 1, 1, 0, -1), strict=True):
        yield ops.Sample(f"{given} along {axis}", tuple(_draw(rng, s) for s in given), {"axis": axis})
    for dtype in (f64, f16, i8, i64, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw(rng, (3, 5), dtype), _draw(rng, (3, 18), dtype)), {"axis": 1})
    tokens = Extent("tokens", 16)
    specs = TensorSpec((tokens, 2, 3), f32), TensorSpec((tokens, 2, 33), f32)
    yield ops.Sample("7 of 16", tuple(_draw(rng, s.bounds) for s in specs), {"axis": 2}, specs, {tokens: 7})


def _split_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(20)
    cases = (((20,), 0, (3, 17)), ((2, 44), 1, (3, 40, 1)), ((2, 7, 5), 1, (3, 4)), ((2, 4108), -1, (4099, 9)))
    for shape, axis, sizes in cases:
        yield ops.Sample(f"{shape} into {sizes}", (_draw(rng, shape),), {"axis": axis, "sizes": sizes})
    for dtype in (f64, f16, i8, i64, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw(rng, (3, 23), dtype),), {"axis": 1, "sizes": (5, 18)})
    tokens = Extent("tokens", 16)
    spec = TensorSpec((tokens, 2, 36), f32)
    attrs = {"axis": 2, "sizes": (3, 33)}
    yield ops.Sample("7 of 16", (_draw(rng, spec.bounds),), attrs, (spec,), {tokens: 7})


def _concat_errors() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x,), {}, "wanted two or more tensors")
    yield ops.ErrorSample((x, TensorSpec((3, 9), f32)), {}, "wanted shapes that differ only in axis 0")
    yield ops.ErrorSample((x, x), {"axis": 2}, "wanted an axis from -2 to 1")
    ragged = TensorSpec((2, Extent("columns", 8)), f32)
    yield ops.ErrorSample((x, ragged), {"axis": 1}, "an Extent only as the first axis and not as the given one")


def _split_errors() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor")
    yield ops.ErrorSample((x,), {"axis": 1, "sizes": (3, 4)}, "wanted sizes above 0 whose sum is 8")


def _split(f: Any, x: Any, sizes: Sequence[int], axis: int = 0) -> Any:
    axis %= x.ndim
    whole = (slice(None),) * axis
    return tuple(x[*whole, end - n : end] for n, end in zip(sizes, accumulate(sizes), strict=True))


def _concatenated(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return (np.concatenate(inputs, attrs.get("axis", 0)),)


def _parts(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    ends = list(accumulate(attrs["sizes"]))[:-1]
    return tuple(np.split(inputs[0], ends, attrs.get("axis", 0)))


OPS = {
    "concat": ops.Op(
        name="concat",
        formula="y = the tensors joined along an axis",
        parameters=Parameters("*tensors", (AXIS,)),
        infer=_infer_concat,
        reference=_concatenated,
        variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build_concat),),
        samples=_concat_samples,
        error_samples=_concat_errors,
        tolerance={"f32": 0.0, "f64": 0.0},
        vjp=_concat_vjp,
    ),
    "split": ops.Op(
        name="split",
        formula="y, z, .. = x split along an axis",
        parameters=Parameters("x", (Attribute("sizes", "tuple[int, ...]"), AXIS), results=None),
        infer=_infer_split,
        reference=_parts,
        variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build_split),),
        samples=_split_samples,
        error_samples=_split_errors,
        tolerance={"f32": 0.0, "f64": 0.0},
        decompose=_split,
        vjp=lambda f, dys, ys, x, sizes, axis=0: f.concat(*dys, axis=axis) if isinstance(dys, tuple) else dys,
    ),
}
