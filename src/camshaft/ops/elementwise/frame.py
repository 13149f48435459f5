"""The frame of elementwise ops: an op is a Formula, `op_of` makes its Op, and chains (chain.py) share launch and kernel body.

Operands broadcast as in NumPy and have one dtype; promotion is the caller's. Integers wrap. f16 and bf16 are computed in f32 and
rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from camshaft.dtypes import PARTS, DType, as_dtype, boolean
from camshaft.extent import Extent
from camshaft.lang import Constant, Kernel, Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.checks import COMPLEX, in_f32, rounded, same_dtype, widened
from camshaft.ops.elementwise import samples
from camshaft.ops.elementwise.samples import Draw
from camshaft.ops.gradient import rule_in_f32
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.strides import SIZES, ProgramBlock, Strides, iteration, strides_of
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import Dim, TensorSpec

# 16-bit results are compared with the rounded reference: a few elements may differ by one unit in the last place.
TOLERANCE = {"f32": 1e-12, "f64": 1e-30, "f16": 1e-8, "bf16": 1e-6}
EXACT: Mapping[str, float] = {}
# Real and imaginary part.
Pair: TypeAlias = tuple[ir.Value, ir.Value]


@dataclass(frozen=True)
class Formula:
    """An elementwise op. `compute(k, *values)` is the kernel expression and `numpy(*arrays)` the reference; both take the `attrs`
    by keyword. Without `compute` it is a composite op, which has no kernel.

    `operands` names the operands, by default x, or a and b. The first `conditions` are booleans, the others of one of
    `dtypes`. `gives`: the result's dtype from the operands' and the attributes; None: the operands'. `given`: the attributes
    of samples. `draws`: the distribution of each operand in samples (the last one repeats); `sampled`: their dtypes besides
    f32; `structure`: samples of all shapes too. `samples` and `error_samples` replace all of these. `supports` as of a
    KernelVariant. `moves`: the kernel's attributes for a node that computes nothing, whose f16 and bf16 it takes as
    u16; else None. `flops` per element. `decompose`: as of an Op; without it the op is primitive (ops/primitives.py).
    `vjp`: as of an Op; 16-bit floats are f32 in it.
    `pairs(k, *values)` is `compute` where an operand or the result is complex: a complex value is (real, imaginary) part.
    """

    name: str
    text: str
    compute: Callable[..., ir.Value] | None
    numpy: Callable[..., Any]
    dtypes: tuple[DType, ...]
    arity: int = 2
    conditions: int = 0
    gives: Callable[[DType, ops.Attrs], DType] | None = None
    attrs: tuple[Attribute, ...] = ()
    operands: str = ""
    given: ops.Attrs = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=lambda: TOLERANCE)
    draws: tuple[Draw, ...] = ()
    sampled: tuple[DType, ...] = ()
    structure: bool = False
    supports: Callable[[ops.NodeSpec, ops.Target], str | None] = lambda node, target: None
    moves: Callable[[ops.NodeSpec], ops.Attrs | None] = lambda node: None
    samples: Callable[[], Iterable[ops.Sample]] | None = None
    error_samples: Callable[[], Iterable[ops.ErrorSample]] | None = None
    flops: float = 1.0
    decompose: Callable[..., Any] | None = None
    pairs: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | ops.NoGradient | None = None


def broadcast(op: str, specs: Sequence[TensorSpec]) -> tuple[Dim, ...]:
    """The shape that all specs broadcast to. ShapeError if they do not, if it is empty, or if another axis than its first is an
    Extent."""
    rank = max(len(s.shape) for s in specs)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        sizes = {s.shape[axis] for s in specs if len(s.shape) >= -axis} - {1}
        ops.expect(len(sizes) < 2, op, tuple(specs), "shapes that broadcast to one")
        result.append(sizes.pop() if sizes else 1)
    fits = not any(isinstance(d, Extent) for d in result[1:]) and 0 not in result
    ops.expect(fits, op, tuple(specs), "no empty axis, and an Extent only as the result's first axis")
    return tuple(result)


def _infer(row: Formula, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == row.arity, row.name, specs, f"{row.arity} tensor{'s' if row.arity > 1 else ''}")
    known = [a.name for a in row.attrs]
    unknown = set(attrs) - set(known)
    ops.expect(
        not unknown, row.name, f"attributes {', '.join(sorted(unknown))}", f"{', '.join(known) or 'no attributes'}"
    )
    if row.conditions:
        same_dtype(row.name, specs[: row.conditions], (boolean,))
    dtype = same_dtype(row.name, specs[row.conditions :], row.dtypes)
    shape = broadcast(row.name, specs)
    return (TensorSpec(shape, row.gives(dtype, attrs) if row.gives else dtype),)


def _reference(row: Formula, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    dtype = as_dtype(inputs[row.conditions].dtype)
    exact = dtype.name not in row.tolerance  # then f64 is rounded once, as in kernels, and not first to a longer double
    wide = [x if exact and x.dtype in (np.float64, np.complex128) else widened(x) for x in inputs]
    with np.errstate(all="ignore"):
        return (rounded(row.numpy(*wide, **attrs), row.gives(dtype, attrs) if row.gives else dtype),)


def over_elements(
    k: Tracer, operands: Sequence[Any], n_inputs: int, arrays: int, compute: Callable[[list[ir.Value]], Sequence[ir.Value]],
    *, columns: int, block: int, sizes: tuple[int, ...], strides: tuple[Strides, ...], streams: bool = False,
) -> None:  # fmt: skip
    """The body of every elementwise kernel: results = compute(inputs) for each element of the program's block. Of `operands`,
    `arrays` are arrays, inputs first; the number of columns may follow as a scalar."""
    program = ProgramBlock(k, columns, operands[arrays:], block, sizes, strides)
    for c in k.lanes(program.start, program.stop):
        values = compute([program.load(i, x, c) for i, x in enumerate(operands[:n_inputs])])
        for i, value in enumerate(values, n_inputs):
            program.store(i, operands[i], c, value, streams)


def kernel_of(row: Formula, compute: Callable[..., ir.Value], module: str) -> Kernel:
    """The kernel of a row, with its name. `module` is the one that defines the row."""

    def elements(
        k: Tracer, *operands: Any, arrays: int, columns: int, block: int, sizes: Any, strides: Any, **attrs: Any
    ) -> None:
        # out[i] = formula(x[i], y[i], ...)
        over_elements(
            k, operands, arrays - 1, arrays, lambda values: [compute(k, *values, **attrs)],
            columns=columns, block=block, sizes=sizes, strides=strides,
        )  # fmt: skip

    elements.__name__, elements.__module__ = row.name, module
    return Kernel(elements)


def launch(
    kernel: Kernel, node: ops.NodeSpec, constants: Mapping[str, Constant], lanes: int | None = None, moves: bool = False
) -> ops.Build:
    """One launch of an elementwise kernel over the node's flat inputs and outputs; `moves`: it takes f16 and bf16 as u16."""
    specs, shape = (*node.inputs, *node.outputs), node.outputs[0].shape
    over = iteration(shape, [strides_of(spec, shape) for spec in specs])
    reads = [ops.read(i, shape=(prod(spec.bounds),)) for i, spec in enumerate(node.inputs)]
    writes = [ops.write(i, shape=(prod(spec.bounds),)) for i, spec in enumerate(node.outputs)]
    arrays = tuple(as_bits(o, s) if moves else o for o, s in zip((*reads, *writes), specs, strict=True))
    given = {"arrays": len(specs), **over.constants, **constants}
    return ops.Build((ops.Launch(kernel, arrays, over.grid, given, over.extents, lanes, SIZES),))


def pair_kernel_of(row: Formula, module: str) -> Kernel:
    """The kernel of a row for complex operands or results."""

    def elements(
        k: Tracer,
        *operands: Any,
        columns: int,
        block: int,
        sizes: Any,
        strides: Any,
        complexes: tuple[bool, ...],
        **attrs: Any,
    ) -> None:
        # out[i] = formula(x[i], y[i], ...), where complex numbers are neighbours
        program, last = ProgramBlock(k, columns, operands[len(complexes) :], block, sizes, strides), len(complexes) - 1
        assert row.pairs is not None
        for c in k.lanes(program.start, program.stop):
            values = []
            for i, (x, is_pair) in enumerate(zip(operands[:last], complexes, strict=False)):
                parts = [program.load(i, x, c, part) for part in range(2 if is_pair else 1)]
                values.append(tuple(parts) if is_pair else parts[0])
            made = row.pairs(k, *values, **attrs)
            if complexes[last]:
                for part in (0, 1):
                    program.scatter(last, operands[last], c, made[part], part)
            else:
                program.store(last, operands[last], c, made)

    elements.__name__, elements.__module__ = row.name, module
    return Kernel(elements)


def launch_pairs(kernel: Kernel, node: ops.NodeSpec) -> ops.Build:
    """One launch of a kernel of `pair_kernel_of`."""
    specs, shape = (*node.inputs, *node.outputs), node.outputs[0].shape
    complexes = tuple(spec.dtype in COMPLEX for spec in specs)
    strides = [
        tuple(s * (1 + pair) for s in strides_of(spec, shape)) for spec, pair in zip(specs, complexes, strict=True)
    ]
    over, last = iteration(shape, strides), len(specs) - 1
    arrays = []
    for i, (spec, pair) in enumerate(zip(specs, complexes, strict=True)):
        size = (prod(spec.bounds) * (1 + pair),)
        part = PARTS[as_dtype(spec.dtype)] if pair else None
        reads = ops.Operand("input", i, shape=size, dtype=part)
        arrays.append(ops.write(0, shape=size, dtype=part) if i == last else reads)
    given = {**over.constants, "complexes": complexes, **node.attrs}
    return ops.Build((ops.Launch(kernel, tuple(arrays), over.grid, given, over.extents),))


def variant(
    build: Callable[[ops.NodeSpec, ops.Target], ops.Build],
    supports: Callable[[ops.NodeSpec, ops.Target], str | None],
) -> ops.KernelVariant:
    """The one variant of an elementwise op, for every target."""
    return ops.KernelVariant("row_blocks", ops.EVERYWHERE, build, supports, tunables=blocks.tunables(build))


def _lanes(row: Formula, node: ops.NodeSpec, target: ops.Target) -> int | None:
    """Half an AVX-512 vector where the formula is one operation on 32-bit elements: an add of a million f32 takes 147 us, with
    whole vectors 152 (NumPy 158; Zen 4, one thread). None: the device's own number."""
    narrow = all(spec.is_plain and as_dtype(spec.dtype).nbytes == 4 for spec in (*node.inputs, *node.outputs))
    return 8 if narrow and row.flops == 1 and target.backend == "simd" and target.lanes == 16 else None


# Names of the operands by their number, where a row has none.
_OPERANDS = {1: "x", 2: "a b"}


def op_of(row: Formula, module: str, **fields: Any) -> ops.Op:
    """The Op of a row, with other fields of Op; `module` is the one that defines the row."""
    kernel = None if row.compute is None else kernel_of(row, row.compute, module)
    pairs = pair_kernel_of(row, module)

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        if any(spec.dtype in COMPLEX for spec in (*node.inputs, *node.outputs)):
            return launch_pairs(pairs, node)
        assert kernel is not None
        moved = row.moves(node)
        attrs = node.attrs if moved is None else moved
        return launch(kernel, node, attrs, _lanes(row, node, target), moved is not None)

    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        return _infer(row, specs, attrs)

    infer.__module__ = module  # where a child process finds an op that is not camshaft's own
    return ops.Op(
        name=row.name,
        formula=row.text,
        parameters=Parameters(row.operands or _OPERANDS[row.arity], row.attrs, out_by_position=kernel is not None),
        infer=infer,
        reference=lambda inputs, attrs: _reference(row, inputs, attrs),
        variants=() if kernel is None else (variant(build, row.supports),),
        plain=None if row.samples else samples.first(row),
        samples=row.samples or (lambda: samples.samples(row)),
        error_samples=row.error_samples or (lambda: samples.error_samples(row)),
        tolerance=row.tolerance,
        flops=lambda node: row.flops * prod(node.outputs[0].bounds),
        decompose=in_f32(row.decompose) if row.decompose is not None and row.tolerance else row.decompose,
        vjp=rule_in_f32(row.vjp) if callable(row.vjp) else row.vjp,
        **fields,
    )


def family(rows: Iterable[Formula], module: str) -> dict[str, ops.Op]:
    """The ops of a module's rows by name."""
    return {row.name: op_of(row, module) for row in rows}
