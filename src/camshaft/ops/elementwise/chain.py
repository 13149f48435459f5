"""Chains: elementwise ops that read each other's results as one op, whose kernel holds every inner value in registers.

chains.py finds them. A chain's op is made of its spelling (chain_text.py) and of its parts' rows: one kernel
body of their formulas, a reference of their references. Memory is touched for inputs and results alone, and the results are
those of the parts one by one, bit for bit: an inner value is rounded as memory would round it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

from camshaft.dtypes import DType
from camshaft.lang import ir
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.elementwise import binary, broadcasting, cast, chain_samples, comparison, unary
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.elementwise.chain_text import Chain, parse
from camshaft.ops.elementwise.formula import Formula
from camshaft.ops.kernels import stores
from camshaft.ops.spec import TensorSpec

ROWS: dict[str, Formula] = {row.name: row for row in (*unary.ROWS, *binary.ROWS, *comparison.ROWS, cast.ROW)}
PARTS: dict[str, ops.Op] = {**unary.OPS, **binary.OPS, **comparison.OPS, cast.OP.name: cast.OP}
T = TypeVar("T")


def walked(chain: Chain, inputs: Sequence[T], step: Callable[[str, list[T], ops.Attrs], T]) -> list[T]:
    """Every step's value: `step(op, operands, attrs)` makes it of earlier ones."""
    values = list(inputs)
    for part in chain.steps:
        values.append(step(part.op, [values[i] for i in part.operands], part.attrs))
    return values[len(inputs) :]


@kernel
def chained(
    k: Tracer,
    *operands: Any,
    arrays: int,
    columns: int,
    block: int,
    sizes: tuple[int, ...],
    steps: Any,
    chain: str,
    streams: bool,
) -> None:
    # results[i] = the chain's formulas over inputs[i], in order
    made = parse(chain)
    n = len(made.dtypes)
    places = broadcasting.Places(k, columns or operands[arrays], block, sizes, steps)
    for c in k.lanes(places.start, places.stop):
        loaded = [_Held(places.load(i, x, c), x.dtype) for i, x in enumerate(operands[:n])]
        values = walked(made, loaded, functools.partial(_computed, k))
        for i, result in enumerate(made.results):
            out: KernelArray = operands[n + i]
            places.store(n + i, out, c, values[result].value, streams)


class _Held:
    """A value with the dtype that memory would hold it in."""

    def __init__(self, value: ir.Value, dtype: DType) -> None:
        self.value, self.dtype = value, dtype


def _computed(k: Tracer, op: str, operands: list[_Held], attrs: ops.Attrs) -> _Held:
    """A step's value as a kernel of its own would have left it in memory and the next one read it."""
    row = ROWS[op]
    dtype = operands[row.conditions].dtype
    gives = row.gives(dtype, attrs) if row.gives else dtype
    value = row.compute(k, *(held.value for held in operands), **attrs)
    if value.dtype.is_float:
        value = k.rounded(value)  # else a product would be fused with the sum that reads it
    if ir.arithmetic_dtype(gives) != gives:
        value = value.to(gives).to(ir.arithmetic_dtype(gives))
    return _Held(value, gives)


def specs_of(chain: Chain, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The spec of every step's value. ShapeError as the parts' own."""
    return walked(chain, specs, lambda op, given, attrs: PARTS[op].infer(tuple(given), attrs)[0])


def _infer(name: str, chain: Chain, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = f"tensors of {', '.join(d.name for d in chain.dtypes)} and no attributes"
    ops.expect(tuple(spec.dtype for spec in specs) == chain.dtypes and not attrs, name, specs, wanted)
    found = specs_of(chain, specs)
    ops.expect(len({spec.shape for spec in found}) == 1, name, specs, "shapes that every step broadcasts to one")
    return tuple(found[i] for i in chain.results)


def _reference(chain: Chain, inputs: Sequence[ops.Array]) -> tuple[ops.Array, ...]:
    found = chain_samples.computed(chain, inputs, PARTS)
    return tuple(found[i] for i in chain.results)


def _build(chain: Chain, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    specs, shape = (*node.inputs, *node.outputs), node.outputs[0].shape
    how = broadcasting.walk(shape, [broadcasting.steps_of(spec, shape) for spec in specs])
    reads = [ops.read(i, shape=(prod(spec.bounds),)) for i, spec in enumerate(node.inputs)]
    writes = [ops.write(i, shape=(prod(spec.bounds),)) for i, spec in enumerate(node.outputs)]
    constants = {"arrays": len(specs), **how.constants, "chain": chain.text, "streams": stores.pays(node, target)}
    return ops.Build((ops.Launch(chained, (*reads, *writes), how.grid, constants, how.extents),))


def _supports(chain: Chain, node: ops.NodeSpec, target: ops.Target) -> str | None:
    """The first reason of a part that cannot be had there."""
    specs = [*node.inputs, *specs_of(chain, node.inputs)]
    for i, step in enumerate(chain.steps):
        inputs, output = tuple(specs[o] for o in step.operands), (specs[len(node.inputs) + i],)
        reason = ROWS[step.op].supports(ops.NodeSpec(inputs, output, step.attrs), target)
        if reason is not None:
            return f"{step.op}: {reason}"
    return None


@functools.cache
def op_of(text: str) -> ops.Op:
    """The op of a chain by its spelling, one for the process. ShapeError for what is none."""
    chain = parse(text)
    unknown = sorted({step.op for step in chain.steps} - ROWS.keys())
    ops.expect(not unknown, "chain", ", ".join(unknown), "elementwise ops")

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        return _build(chain, node, target)

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return _supports(chain, node, target)

    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        return _infer(text, chain, specs, attrs)

    tunables = elementwise.tunables(build)
    flops = sum(ROWS[step.op].flops for step in chain.steps)
    return ops.Op(
        name=text,
        formula="; ".join(f"y{i}: {ROWS[step.op].text}" for i, step in enumerate(chain.steps)),
        infer=infer,
        reference=lambda inputs, attrs: _reference(chain, inputs),
        variants=(ops.KernelVariant("row_blocks", elementwise.BACKENDS, build, supports, tunables=tunables),),
        samples=lambda: chain_samples.samples(chain, PARTS, ROWS),
        error_samples=lambda: chain_samples.error_samples(chain),
        tolerance=chain_samples.Tolerance(chain, PARTS, ROWS),
        flops=lambda node: flops * prod(node.outputs[0].bounds),
        decompose=functools.partial(_decompose, chain),
    )


def _decompose(chain: Chain, functions: Any, tensors: Sequence[Any], attrs: ops.Attrs) -> Any:
    found = walked(chain, tensors, lambda op, given, given_attrs: getattr(functions, op)(*given, **given_attrs))
    results = tuple(found[i] for i in chain.results)
    return results if len(results) > 1 else results[0]


class _Ops(Mapping[str, ops.Op]):
    """The op of any spelling: a child process that proves a chain finds it here by its name."""

    def __getitem__(self, name: str) -> ops.Op:
        return op_of(name)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


OPS = _Ops()
