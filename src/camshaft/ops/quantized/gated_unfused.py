"""gated_product as separate launches: both products by one of the variants of quantized_matmul, then the activation's op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from camshaft.ops import op as ops
from camshaft.ops.parameters import ACT
from camshaft.ops.quantize import fused_quantize
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.fused_kernels import ACTIVATIONS
from camshaft.ops.quantized import matmul

PRODUCT = matmul.OP
# The second op of the pair by activation.
SECOND = {act: fused_quantize.OPS[f"{act}_multiply_q8"] for act in ACTIVATIONS}
# Where the products may be of bf16: the mean squared error, normalized, after rounding to 8 bits.
COARSE = {layout.name: 1e-4 for layout in q8.FORMS.values()}


def product_node(node: ops.NodeSpec) -> ops.NodeSpec:
    """Returns the node of one of the two products."""
    specs = node.inputs[:2]
    return ops.NodeSpec(specs, PRODUCT.infer(specs, {}), {})


def second_op(attrs: ops.Attrs) -> ops.Op:
    """Returns the op of the activation."""
    return SECOND[attrs.get("act", ACT.default)]


def unfused(product: ops.KernelVariant) -> ops.KernelVariant:
    """Returns the variant with the launches of both products by one of theirs, then the activation's."""

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return product.supports(product_node(node), target)

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        y = float(prod(node.inputs[0].bounds[:1]) * node.inputs[1].bounds[0])
        return 2 * product.cost(product_node(node), target) + 0.6 * y + 500.0

    name, tolerance = f"unfused_{product.name}", COARSE if product.tolerance else {}
    return ops.KernelVariant(
        name, product.backends, partial(_build_unfused, product), supports, cost, tolerance=tolerance
    )


def _build_unfused(product: ops.KernelVariant, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds the two products and the activation's op as launches of one node."""
    spec = product_node(node)
    launches: list[ops.Launch | ops.NativeCall] = []
    made = product.build(spec, target)
    assert isinstance(made, ops.Build)
    for number in (0, 1):
        scratch = [2 + number * len(made.scratch) + i for i in range(len(made.scratch))]
        for launch in made.launches:
            arrays = tuple(_moved(operand, number, scratch) for operand in launch.arrays)
            launches.append(replace(launch, arrays=arrays))
    y = spec.outputs[0]
    second = ops.NodeSpec((y, y), node.outputs, {"sums": node.attrs["sums"], "floats": False})
    candidates = [v for v in second_op(node.attrs).variants if target.backend in v.backends]
    last = min(candidates, key=lambda v: v.cost(second, target)).build(second, target)
    assert isinstance(last, ops.Build)
    for launch in last.launches:
        arrays = tuple(ops.scratch(o.index, "read", o.shape) if o.kind == "input" else o for o in launch.arrays)
        launches.append(replace(launch, arrays=arrays))
    return ops.Build(tuple(launches), (y, y, *made.scratch, *made.scratch))


def _moved(operand: ops.Operand, number: int, scratch: Sequence[int]) -> ops.Operand:
    """Converts an operand of product `number` to an operand of the node."""
    if operand.kind == "output":
        return replace(operand, kind="scratch", index=number)
    if operand.kind == "scratch":
        return replace(operand, index=scratch[operand.index])
    return replace(operand, index=number + 1) if operand.index == 1 else operand
