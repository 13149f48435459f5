"""The frame of row-wise ops: shape rule, reference, launch and samples of an op that computes whole rows of its last axis.

x[..., c] is seen as [rows, c]: rows are numbered over all leading axes, of which the first may be an Extent, and a program
computes one row. Other inputs have x's shape ("rc"), one value per row ("r") or one per column ("c"); results have x's shape, or
one value per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, f16, f32
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Kernel, Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, in_f32, to_dtype
from camshaft.ops.kernels import blocks
from camshaft.ops.norm import samples
from camshaft.ops.parameters import ANY, REQUIRED
from camshaft.ops.spec import TensorSpec, bound


@dataclass(frozen=True)
class RowOp:
    """A row-wise op on f32, or on one of `dtypes`; `row_op` makes its Op.

    `inputs`: the axes of each by name, the first of them "rc". `numpy(*arrays, **attrs)` computes the results from float64 arrays
    that broadcast with x. `positive`: attributes that must be above 0, with the value that samples take; `finite`: those that may
    be any finite number. `to`: the first result may be rounded (to_dtype in ops/checks.py). `rank`: 2 where x must be
    [rows, columns]. `gives`: the axes of each result. `defaults`: those of the attributes.
    """

    name: str
    inputs: Mapping[str, str]
    numpy: Callable[..., Any]
    positive: Mapping[str, float] = field(default_factory=dict)
    to: bool = False
    rank: int | None = None
    gives: tuple[str, ...] = ("rc",)
    defaults: Mapping[str, float] = field(default_factory=dict)
    dtypes: tuple[DType, ...] = (f32,)
    finite: Mapping[str, float] = field(default_factory=dict)

    def given(self, attrs: ops.Attrs) -> dict[str, Any]:
        """The `positive` and `finite` attributes of a use of the op: those given, else their defaults."""
        known = {**self.defaults, **attrs}
        return {name: known[name] for name in (*self.positive, *self.finite) if name in known}


def row_op(
    *,
    name: str,
    formula: str,
    kernel: Kernel,
    inputs: Mapping[str, str],
    numpy: Callable[..., Any],
    positive: Mapping[str, float] | None = None,
    finite: Mapping[str, float] | None = None,
    to: bool = False,
    rank: int | None = None,
    gives: str = "rc",
    vectors: int = 4,
    sizes: tuple[str, ...] = (),
    dtypes: tuple[DType, ...] = (f32,),
    special: Callable[[], Iterable[ops.Sample]] = lambda: (),
    **fields: Any,
) -> ops.Op:
    """The Op of a row-wise kernel; the parameters of RowOp (`gives` as words: "rc r"), `vectors` and `sizes` (of
    `launch`), samples besides the common ones (`special`), and other fields of Op. ValueError for results of other axes, or a
    kernel without `inner` for any rank."""
    attributes, numbers = fields.get("parameters", ANY).attributes, {**(positive or {}), **(finite or {})}
    defaults = {a.name: a.default for a in attributes if a.name in numbers and a.default is not REQUIRED}
    row = RowOp(name, inputs, numpy, positive or {}, to, rank, tuple(gives.split()), defaults, dtypes, finite or {})
    if f16 in dtypes and fields.get("decompose") is not None:
        fields["decompose"] = in_f32(fields["decompose"])
    if not row.gives or not {*row.gives} <= {"rc", "r"}:
        raise ValueError(f"{name}: got results of {gives!r}; wanted rc or r for each")
    if rank is None and "inner" not in _constants_of(kernel):
        raise ValueError(f"{name}: its kernel takes no `inner`; wanted that, or rank=2")

    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        return results(row, specs, attrs)

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        return launch(row, kernel, node, target, vectors, sizes)

    infer.__module__ = kernel.function.__module__  # where a child process finds an op that is not camshaft's own
    return ops.Op(
        name=name,
        formula=formula,
        infer=infer,
        reference=lambda arrays, attrs: _reference(row, arrays, attrs),
        variants=(ops.KernelVariant(kernel.name, ops.EVERYWHERE, build, tunables=blocks.lane_tunables(build)),),
        samples=lambda: (*samples.samples(row), *special()),
        error_samples=lambda: samples.error_samples(row),
        **({"tolerance": {**(TO_TOLERANCE if to or f16 in dtypes else {"f32": 1e-12}), "f64": 1e-28}} | fields),
    )


def shape_of(axes: str, x: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of an input or result with these axes beside x's shape."""
    return {"rc": tuple(x), "r": tuple(x[:-1]), "c": tuple(x[-1:])}[axes]


def results(row: RowOp, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    """The specs of the results. ShapeError for other inputs, or an attribute that is not above 0."""
    texts = {"rc": "[rows, d]" if row.rank else "[..., d]", "r": "[rows]" if row.rank else "[...]", "c": "[d]"}
    wanted = ", ".join(f"{name} {texts[axes]}" for name, axes in row.inputs.items())
    wanted += f" of {' or '.join(d.name for d in row.dtypes)}"
    ops.expect(len(specs) == len(row.inputs), row.name, specs, wanted)
    x = specs[0]
    fits = x.is_plain and x.dtype in row.dtypes and len(x.shape) == (row.rank or max(len(x.shape), 1))
    ops.expect(fits, row.name, x, wanted)
    ops.expect(0 not in x.bounds, row.name, x, "no empty axis")
    fixed = not any(isinstance(d, Extent) for d in (*x.shape[1:], x.shape[-1]))
    ops.expect(fixed, row.name, x, "an Extent as the first axis only, and not as the last")
    for (name, axes), spec in zip(row.inputs.items(), specs, strict=True):
        want = TensorSpec(shape_of(axes, x.shape), as_dtype(x.dtype))
        if spec != want:
            ops.expect(False, row.name, spec, f"{name} of {want}")
    for name in row.positive:
        value = row.given(attrs).get(name)
        ops.expect(
            value is not None and value > 0, row.name, f"no {name}" if value is None else value, f"{name} above 0"
        )
    for name in row.finite:
        value = row.given(attrs).get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        ops.expect(number, row.name, f"{name} {value!r}", f"{name}, a finite number")
    first, *others = (TensorSpec(shape_of(axes, x.shape), as_dtype(x.dtype)) for axes in row.gives)
    if x.dtype != f32:
        ops.expect("to" not in attrs, row.name, f"to {attrs.get('to')!r}", f"no `to` beside {x.dtype}")
        return (first, *others)
    return (to_dtype(row.name, first, attrs) if row.to else first, *others)


def _reference(row: RowOp, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    wide = [a.astype(np.longdouble if a.dtype == np.float64 else np.float64) for a in inputs]
    arrays = [a[..., None] if axes == "r" else a for a, axes in zip(wide, row.inputs.values(), strict=True)]
    with np.errstate(all="ignore"):
        found = row.numpy(*arrays, **row.given(attrs))
    made = found if isinstance(found, tuple) else (found,)
    plain = (np.asarray(y, np.float64) for y in made)
    return tuple(np.reshape(y, shape_of(axes, wide[0].shape)) for y, axes in zip(plain, row.gives, strict=True))


def _constants_of(kernel: Kernel) -> tuple[str, ...]:
    code = kernel.function.__code__
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def launch(
    row: RowOp, kernel: Kernel, node: ops.NodeSpec, target: ops.Target, vectors: int, sizes: tuple[str, ...]
) -> ops.Build:
    """One launch with a program per row, on a CPU with `vectors` at once where rows are long. `sizes`:
    ("dim",) if the kernel may take it at run time.

    The kernel takes the arrays of inputs and results, and those of these constants that it names: `dim`, the columns; `inner`,
    the rows of one index of the first axis; `streams`, whether to use nontemporal stores; `prefetch`, whether prefetches pay;
    and the attributes of `positive` and `finite`. A kernel without `inner` is for rank 2 only.
    """
    x = node.inputs[0]
    dim, rows, inner = x.bounds[-1], x.shape[0], prod(x.bounds[1:-1])
    if not isinstance(rows, Extent):
        rows, inner = prod(x.bounds[:-1]), 1
    flat = bound(rows) * inner, dim
    reads = [ops.read(i, shape=shape_of(axes, flat)) for i, axes in enumerate(row.inputs.values())]
    writes = [ops.write(i, shape=shape_of(axes, flat)) for i, axes in enumerate(row.gives)]
    streams = blocks.streams(node, target)
    known: dict[str, Constant] = {"dim": dim, "inner": inner, **row.given(node.attrs)}
    known |= {"streams": streams, "prefetch": target.backend == "simd"}
    named = _constants_of(kernel)
    grid = (ops.Cells(rows), ops.Cells(inner)) if "inner" in named else (ops.Cells(rows),)
    width = blocks.row_lanes(dim, target, vectors)
    constants = {name: known[name] for name in named}
    # Whether a row is whole cache lines decides how it is stored, if it is stored past the caches.
    at_run_time = () if streams else sizes
    return ops.Build((ops.Launch(kernel, (*reads, *writes), grid, constants, lanes=width, sizes=at_run_time),))


def sum_of_squares(k: Tracer, x: Array, row: ir.Value, dim: ir.Operand) -> ir.Value:
    """The sum of squares of a row, of 16-bit floats in f32."""
    squares = k.accumulator("sum", ir.arithmetic_dtype(x.dtype))
    for c in k.lanes(dim):
        squares.set(k.fma(x[row, c], x[row, c], squares.value))  # fused for every length of the row
    return k.lanes_sum(squares)


def inverse_rms(k: Tracer, x: Array, row: ir.Value, dim: ir.Operand, eps: float) -> ir.Value:
    """1 / sqrt(mean(x^2) + eps) of a row."""
    return k.rsqrt(sum_of_squares(k, x, row, dim) / k.number(dim, ir.arithmetic_dtype(x.dtype)) + eps)


def weight(w: Array, column: ir.Value, offset: float) -> ir.Value:
    """w[column] + offset."""
    return w[column] + offset if offset else w[column]
