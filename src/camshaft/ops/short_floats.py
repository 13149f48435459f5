"""Which results training may keep in 16 bits (graph/passes/short_floats.py), by ops that lose little by it.

Ops that are not here, such as sums, exponentials and losses, read and give f32, as in torch.autocast.
"""

from __future__ import annotations

_PRODUCTS = "matmul batch_invariant_matmul quantized_matmul affine_matmul minifloat_matmul conv1d conv2d"
_ROWS = "rms_norm layer_norm l2_norm norm_gate norm_add residual_norm embedding gather"
_ATTENTION = "scaled_dot_product_attention rope rope_multi rope_axial_2d rope_vision_2d head_norm_rope"
_FUNCTIONS = "silu gelu gelu_erf relu sigmoid silu_multiply gelu_multiply sigmoid_multiply"
# A result is as precise as the operands: where it must be f32, they are too.
_CARRIED = (
    "add subtract multiply divide negate tanh softcap dropout transpose slice concat split broadcast_to repeat copy"
)

CARRIED = frozenset(_CARRIED.split())
SHORT = frozenset(" ".join((_PRODUCTS, _ROWS, _ATTENTION, _FUNCTIONS)).split()) | CARRIED
