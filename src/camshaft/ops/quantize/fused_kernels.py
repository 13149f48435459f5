"""The kernels of norms and gated activations whose result is quantized in the same pass, and how they are launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.elementwise import activation
from camshaft.ops.kernels.blocks import row_lanes, row_threads
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.q8_blocks import (
    BLOCK,
    BLOCKS,
    ELEMENTS,
    VECTORS,
    Sums,
    loader,
    outs_of,
    span_of,
    store_blocks,
)

# Activations of gated products act(gate) * up, computed as the op of that name does.
ACTIVATIONS: dict[str, Callable[[Tracer, Value, Value], Value]] = {
    "silu": lambda k, gate, up: gate / (1.0 + k.exp(-gate)) * up,
    "gelu": lambda k, gate, up: activation.gelu(k, gate) * up,
}
SPAN = 16  # blocks per program of silu_multiply_q8 and gelu_multiply_q8, as in quantize_activations


@kernel
def norm_row(
    k: Tracer, *arrays: Array, dim: int, eps: float, offset: float, residual: bool, sums: Sums, floats: bool,
    mapping: str,
) -> None:  # fmt: skip
    # s = a or a + b; y[r, c] = s[r, c] / sqrt(mean_c(s[r]^2) + eps) * (w[c] + offset); blocks of 32 of y quantized
    terms, w = arrays[: 1 + residual], arrays[1 + residual]
    quantized, rest = outs_of(arrays[2 + residual :], sums)
    row, squares, load = k.program(0), k.accumulator("sum"), loader(k, mapping)
    for c in k.lanes(dim):
        value = terms[0][row, c] + terms[1][row, c] if residual else terms[0][row, c]
        if residual:
            rest[int(floats)][row, c] = value
        squares += value**2
    scale = k.rsqrt(k.lanes_sum(squares) / dim + eps)

    def y_at(c: Value) -> Value:
        found = [load(t, row, c) for t in terms]
        total = found[0] + found[1] if residual else found[0]
        factor = load(w, c) + offset if offset else load(w, c)
        return total * (k.splat(scale, 16) if mapping == VECTORS else scale) * factor

    store_blocks(k, y_at, row, (dim // BLOCK,), quantized, mapping, rest[0] if floats else None)


@kernel
def gated_blocks(
    k: Tracer, *arrays: Array, blocks: int, span: int, sums: Sums, floats: bool, mapping: str, act: str
) -> None:
    # y[r, c] = act(gate[r, c]) * up[r, c]; blocks of 32 of y quantized, `span` a program
    (gate, up), load = arrays[:2], loader(k, mapping)
    quantized, rest = outs_of(arrays[2:], sums)
    row = k.program(0)

    def y_at(c: Value) -> Value:
        return ACTIVATIONS[act](k, load(gate, row, c), load(up, row, c))

    store_blocks(k, y_at, row, span_of(k, blocks, span), quantized, mapping, rest[0] if floats else None)


def build(act: str, mapping: str, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, n_inputs = node.inputs[0], len(node.inputs)
    kinds = node.attrs["sums"]
    forms = len(kinds)
    arrays = [ops.read(i, shape=q8.flat(x) if len(x.shape) > 2 else None) for i in range(n_inputs)]
    arrays += [operand for i, kind in enumerate(kinds) for operand in q8.form_operands(i, x, kind)]
    arrays += [ops.write(i, shape=q8.flat(x)) for i in range(forms, len(node.outputs))]
    constants: dict[str, Constant] = {
        "sums": node.attrs["sums"],
        "floats": bool(node.attrs.get("floats", False)),
        "mapping": mapping,
    }
    if "eps" in node.attrs:
        dim, residual = x.bounds[1], n_inputs == 3
        constants |= {"dim": dim, "eps": node.attrs["eps"], "residual": residual}
        constants["offset"] = node.attrs.get("offset", 0.0)
        lanes = (row_threads if residual else row_lanes)(dim, target)  # the summation order of the unfused op
        return ops.Build((ops.Launch(norm_row, tuple(arrays), (ops.Cells(x.shape[0]),), constants, lanes=lanes),))
    blocks = q8.flat(x)[1] // BLOCK
    span = q8.span_for(mapping, target) or SPAN
    grid = ops.Cells(x.shape[0]), ops.Cells(blocks, span)
    constants |= {"blocks": blocks, "span": span, "act": act}
    return ops.Build((ops.Launch(gated_blocks, tuple(arrays), grid, constants),))


def cost_of(mapping: str) -> Any:
    # vectors on a CPU, an element per thread on a GPU
    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        each = {VECTORS: 4.0, BLOCKS: 0.4, ELEMENTS: 0.1} if has_threads(target) else {VECTORS: 0.4, BLOCKS: 4.0}
        return each[mapping] * float(np.prod(node.inputs[0].bounds))

    return cost
