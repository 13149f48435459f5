"""Chains: elementwise ops that read each other's results as one op, whose kernel keeps intermediate values in registers.

graph/passes/chains.py finds them. The text of a chain (text.py) gives its kernel, from its parts' formulas, and its
reference, from theirs. Only inputs and results go through memory, and results are bit-equal to those of the parts one by one:
an intermediate value is rounded as a store would round it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from camshaft.dtypes import DType
from camshaft.lang import Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.elementwise import activation, binary, cast, comparison, frame, unary
from camshaft.ops.elementwise.chains import samples
from camshaft.ops.elementwise.chains.reference import Part, Tolerance, computed
from camshaft.ops.elementwise.chains.text import Chain, evaluated, parse
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.strides import Strides
from camshaft.ops.spec import TensorSpec

_TABLES = (unary, binary, comparison, activation)
_OPS: dict[str, ops.Op] = {cast.OP.name: cast.OP, **{name: op for table in _TABLES for name, op in table.OPS.items()}}
_ROWS = (*(row for table in _TABLES for row in table.ROWS if row.compute is not None), cast.ROW)
PARTS: dict[str, Part] = {row.name: Part(row, _OPS[row.name]) for row in _ROWS}


@kernel
def chained(
    k: Tracer, *operands: Any, arrays: int, columns: int, block: int, sizes: tuple[int, ...], strides: tuple[Strides, ...],
    chain: str, streams: bool,
) -> None:  # fmt: skip
    # results[i] = the chain's formulas over inputs[i], in order
    made = parse(chain)

    def compute(loaded: list[ir.Value]) -> list[ir.Value]:
        inputs = [_Typed(value, dtype) for value, dtype in zip(loaded, made.dtypes, strict=True)]
        values = evaluated(made, inputs, functools.partial(_step, k))
        return [values[result].value for result in made.results]

    frame.over_elements(
        k, operands, len(made.dtypes), arrays, compute,
        columns=columns, block=block, sizes=sizes, strides=strides, streams=streams,
    )  # fmt: skip


class _Typed(NamedTuple):
    """A value, and the dtype that it would have in memory."""

    value: ir.Value
    dtype: DType


def _step(k: Tracer, op: str, operands: list[_Typed], attrs: ops.Attrs) -> _Typed:
    """A step's value as its own kernel would have stored it and the next one loaded it."""
    row = PARTS[op].row
    dtype = operands[row.conditions].dtype
    gives = row.gives(dtype, attrs) if row.gives else dtype
    assert row.compute is not None, f"{op} has no kernel"
    value = row.compute(k, *(operand.value for operand in operands), **attrs)
    if value.dtype.is_float:
        value = k.rounded(value)  # else a product would be fused with the sum that reads it
    if ir.arithmetic_dtype(gives) != gives:
        value = value.to(gives).to(ir.arithmetic_dtype(gives))
    return _Typed(value, gives)


def specs_of(chain: Chain, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The spec of every step's value. ShapeError as from the parts."""
    return evaluated(chain, specs, lambda op, given, attrs: PARTS[op].op.infer(tuple(given), attrs)[0])


def _infer(name: str, chain: Chain, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = f"tensors of {', '.join(d.name for d in chain.dtypes)} and no attributes"
    ops.expect(tuple(spec.dtype for spec in specs) == chain.dtypes and not attrs, name, specs, wanted)
    found = specs_of(chain, specs)
    ops.expect(len({spec.shape for spec in found}) == 1, name, specs, "shapes that every step broadcasts to one")
    return tuple(found[i] for i in chain.results)


def _reference(chain: Chain, inputs: Sequence[ops.Array]) -> tuple[ops.Array, ...]:
    found = computed(chain, inputs, PARTS)
    return tuple(found[i] for i in chain.results)


def _supports(chain: Chain, node: ops.NodeSpec, target: ops.Target) -> str | None:
    """The first reason why the target cannot compute a part, or None."""
    specs = [*node.inputs, *specs_of(chain, node.inputs)]
    for i, step in enumerate(chain.steps):
        inputs, output = tuple(specs[o] for o in step.operands), (specs[len(node.inputs) + i],)
        reason = PARTS[step.op].row.supports(ops.NodeSpec(inputs, output, step.attrs), target)
        if reason is not None:
            return f"{step.op}: {reason}"
    return None


@functools.cache
def op_of(text: str) -> ops.Op:
    """The op of a chain's text, the same object for equal texts. ShapeError for a text that is not a chain."""
    chain = parse(text)
    unknown = sorted({step.op for step in chain.steps} - PARTS.keys())
    ops.expect(not unknown, "chain", ", ".join(unknown), "elementwise ops")

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        return frame.launch(chained, node, {"chain": chain.text, "streams": blocks.streams(node, target)})

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return _supports(chain, node, target)

    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        return _infer(text, chain, specs, attrs)

    flops = sum(PARTS[step.op].row.flops for step in chain.steps)
    return ops.Op(
        name=text,
        formula="; ".join(f"y{i}: {PARTS[step.op].row.text}" for i, step in enumerate(chain.steps)),
        infer=infer,
        reference=lambda inputs, attrs: _reference(chain, inputs),
        variants=(frame.variant(build, supports),),
        samples=lambda: samples.chain_samples(chain, PARTS),
        error_samples=lambda: samples.chain_error_samples(chain),
        tolerance=Tolerance(chain, PARTS),
        flops=lambda node: flops * prod(node.outputs[0].bounds),
        decompose=functools.partial(_decompose, chain),
    )


def _decompose(chain: Chain, f: Any, *tensors: Any) -> Any:
    found = evaluated(chain, tensors, lambda op, given, attrs: getattr(f, op)(*given, **attrs))
    results = tuple(found[i] for i in chain.results)
    return results if len(results) > 1 else results[0]


class _Ops(Mapping[str, ops.Op]):
    """The op of any chain by its text: a child process that validates a chain finds it here."""

    def __getitem__(self, name: str) -> ops.Op:
        return op_of(name)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


OPS = _Ops()
