"""Formula: an elementwise op as one row: name, formula, what computes it, its reference, dtypes. `op_of` makes the Op of a row.

Operands broadcast as NumPy's do and share one dtype: promoting is the caller's. Integers wrap; f16 and bf16 are computed in f32
and rounded once. The families of rows are unary.py, binary.py and comparison.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from camshaft.lang import ir
from camshaft.lang.kernel import Kernel
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.elementwise import broadcasting, formula_samples
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

FLOATS = (f32, f64, f16, bf16)
SIGNED = (i8, i16, i32, i64)
UNSIGNED = (u8, u16, u32, u64)
NUMBERS = (*FLOATS, *SIGNED, *UNSIGNED)
EVERY = (*NUMBERS, boolean)
# 16-bit results are compared with the rounded truth: an element in a few may be off by one place
TOLERANCE = {"f32": 1e-12, "f64": 1e-30, "f16": 1e-8, "bf16": 1e-6}
EXACT: Mapping[str, float] = {}


@dataclass(frozen=True)
class Formula:
    """An elementwise op. `compute(k, *values)` and `numpy(*arrays)` say the same thing; both take the `attrs` by keyword.

    `operands` names the operands, by default x, or a and b. The first `conditions` of them are booleans, the others of one of
    `dtypes`. `gives`: the result's dtype from the operands' and the attributes; None: as the operands. `draws`: what each operand
    is drawn with for samples (the last one repeats); `sampled`: their dtypes beside f32; `structure`: samples of all shapes too;
    or `samples` gives its own. `supports` as a variant's.
    """

    name: str
    text: str
    compute: Callable[..., ir.Value]
    numpy: Callable[..., Any]
    dtypes: tuple[DType, ...]
    arity: int = 2
    conditions: int = 0
    gives: Callable[[DType, ops.Attrs], DType] | None = None
    attrs: tuple[Attribute, ...] = ()
    operands: str = ""
    given: ops.Attrs = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=lambda: TOLERANCE)
    draws: tuple[formula_samples.Draw, ...] = ()
    sampled: tuple[DType, ...] = ()
    structure: bool = False
    supports: Callable[[ops.NodeSpec, ops.Target], str | None] = lambda node, target: None
    samples: Callable[[], Iterable[ops.Sample]] | None = None
    error_samples: Callable[[], Iterable[ops.ErrorSample]] | None = None
    flops: float = 1.0


def same_dtype(op: str, specs: Sequence[TensorSpec], dtypes: Sequence[DType]) -> DType:
    """The one dtype of all specs. ShapeError if it is none of `dtypes`, or they differ."""
    wanted = f"tensors of {', '.join(d.name for d in dtypes)}"
    for spec in specs:
        ops.expect(spec.is_plain and spec.dtype in dtypes, op, spec, wanted)
    names = {spec.dtype.name for spec in specs}
    ops.expect(len(names) == 1, op, tuple(specs), "operands of one dtype; cast them first")
    return as_dtype(specs[0].dtype)


def _infer(row: Formula, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == row.arity, row.name, specs, f"{row.arity} tensor{'s' if row.arity > 1 else ''}")
    known = [a.name for a in row.attrs]
    unknown = set(attrs) - set(known)
    ops.expect(not unknown, row.name, f"attributes {sorted(unknown)}", f"none but {known}")
    if row.conditions:
        same_dtype(row.name, specs[: row.conditions], (boolean,))
    dtype = same_dtype(row.name, specs[row.conditions :], row.dtypes)
    shape = broadcasting.broadcast(row.name, specs)
    return (TensorSpec(shape, row.gives(dtype, attrs) if row.gives else dtype),)


def widened(x: ops.Array) -> ops.Array:
    """Floats in a wider type, so that a reference is right to the last place; others as they are."""
    if x.dtype == np.float64:
        return x.astype(np.longdouble)
    return x.astype(np.float64) if as_dtype(x.dtype).is_float else x


def rounded(y: Any, dtype: DType) -> ops.Array:
    """A reference's result as it is compared: 16-bit floats rounded, f32 left wide, others of the dtype."""
    return np.asarray(y).astype(np.float64 if dtype == f32 else dtype.numpy)


def _reference(row: Formula, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    specs = tuple(TensorSpec(x.shape, as_dtype(x.dtype)) for x in inputs)
    (spec,) = _infer(row, specs, attrs)
    exact = not row.tolerance  # then f64 is rounded once, as kernels do: not to a longer double first
    wide = [x if exact and x.dtype == np.float64 else widened(x) for x in inputs]
    with np.errstate(all="ignore"):
        return (rounded(row.numpy(*wide, **attrs), as_dtype(spec.dtype)),)


def kernel_of(row: Formula, module: str) -> Kernel:
    """The kernel that walks a row's formula over its operands, named as the row. `module` is where the row is written."""

    def elements(
        k: Tracer, *operands: Any, arrays: int, columns: int, block: int, sizes: Any, steps: Any, **attrs: Any
    ) -> None:
        # out[i] = formula(x[i], y[i], ...)
        out: KernelArray = operands[arrays - 1]
        places = broadcasting.Places(k, columns or operands[arrays], block, sizes, steps)
        for c in k.lanes(places.start, places.stop):
            values = [places.load(i, x, c) for i, x in enumerate(operands[: arrays - 1])]
            places.store(arrays - 1, out, c, row.compute(k, *values, **attrs))

    elements.__name__, elements.__module__ = row.name, module
    return Kernel(elements)


def _lanes(row: Formula, node: ops.NodeSpec, target: ops.Target) -> int | None:
    """Half a vector of AVX-512 where the formula is one operation and the work is loads and stores: an add of a million f32 takes
    147 us then, with whole ones 152 (NumPy 158; Zen 4, one thread). None: the device's own."""
    words = all(spec.is_plain and as_dtype(spec.dtype).nbytes == 4 for spec in (*node.inputs, *node.outputs))
    return 8 if words and row.flops <= 1 and target.backend == "simd" and target.lanes == 16 else None


def _build(row: Formula, kernel: Kernel, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    out = node.outputs[0]
    specs = (*node.inputs, out)
    how = broadcasting.walk(out.shape, [broadcasting.steps_of(spec, out.shape) for spec in specs])
    reads = [ops.read(i, shape=(prod(spec.bounds),)) for i, spec in enumerate(node.inputs)]
    arrays = (*reads, ops.write(0, shape=(prod(out.bounds),)))
    constants = {"arrays": len(arrays), **how.constants, **node.attrs}
    return ops.Build((ops.Launch(kernel, arrays, how.grid, constants, how.extents, _lanes(row, node, target)),))


# Operands by their number, where a row does not name them.
_OPERANDS = {1: "x", 2: "a b"}


def op_of(row: Formula, module: str) -> ops.Op:
    """The Op of a row; `module` is the row's own."""
    kernel = kernel_of(row, module)

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        return _build(row, kernel, node, target)

    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        return _infer(row, specs, attrs)

    infer.__module__ = module  # where a child process finds the op of a row that is not camshaft's own
    return ops.Op(
        name=row.name,
        formula=row.text,
        infer=infer,
        reference=lambda inputs, attrs: _reference(row, inputs, attrs),
        variants=(
            ops.KernelVariant(
                "row_blocks", elementwise.BACKENDS, build, row.supports, tunables=elementwise.tunables(build)
            ),
        ),
        samples=row.samples or (lambda: formula_samples.samples(row)),
        error_samples=row.error_samples or (lambda: formula_samples.error_samples(row)),
        tolerance=row.tolerance,
        flops=lambda node: row.flops * prod(node.outputs[0].bounds),
        parameters=Parameters(row.operands or _OPERANDS[row.arity], row.attrs, out_by_position=True),
    )


def family(rows: Iterable[Formula], module: str) -> dict[str, ops.Op]:
    """The ops of a module's rows by name."""
    return {row.name: op_of(row, module) for row in rows}
