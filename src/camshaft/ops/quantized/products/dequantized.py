"""quantized_matmul of many tokens of f32 on GPUs: weights dequantized into scratch, then multiplied by a kernel of matmul."""

from __future__ import annotations

from dataclasses import replace

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.matmul import made_weights
from camshaft.ops.matmul.tile import TILE
from camshaft.ops.quantized import dequantize
from camshaft.ops.quantized.products.kernels import is_q8, packed_only
from camshaft.ops.spec import TensorSpec

# Estimated so high that few tokens, which would read eight times the bytes of packed weights, do not get this variant.
NS_PER_WEIGHT = 0.2


def unpack(node: ops.NodeSpec, target: ops.Target) -> ops.Launch:
    """Returns the launch that dequantizes the weights, input 1 of the node, into scratch tensor 0."""
    w = node.inputs[1]
    weights = ops.NodeSpec((w,), (TensorSpec(w.shape, f32),), {})
    made = dequantize.OP.variants[0].build(weights, target)
    assert isinstance(made, ops.Build)
    (launch,) = made.launches
    assert isinstance(launch, ops.Launch)

    def moved(operand: ops.Operand) -> ops.Operand:
        is_out = operand.kind == "output"
        return replace(operand, kind="scratch") if is_out else replace(operand, index=1)

    return replace(launch, arrays=tuple(map(moved, launch.arrays)))


def _plain(node: ops.NodeSpec) -> ops.NodeSpec:
    """The node of matmul with dequantized weights, whose rows are its columns."""
    x, w = node.inputs
    return ops.NodeSpec((x, TensorSpec(w.shape, f32)), node.outputs, {"transpose_b": True})


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return "takes activations of f32" if is_q8(node.inputs[0]) else packed_only(node, target)


(VARIANT,) = made_weights.variants("dequantized", _plain, unpack, _supports, NS_PER_WEIGHT, (TILE,))
