"""Makes kernels move 16-bit floats as integers where an op does not compute with them.

A float loaded as f32 and rounded back loses the payload of a NaN, and on GPUs that flush them its subnormals.
"""

from __future__ import annotations

from dataclasses import replace

from camshaft.dtypes import DType, bf16, f16, u16
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

# The bits of a 16-bit NaN.
NAN_BITS = {f16: 0x7E00, bf16: 0x7FC0}


def is_short_float(spec: TensorSpec) -> bool:
    """Whether a tensor is of f16 or bf16."""
    return isinstance(spec.dtype, DType) and spec.dtype in NAN_BITS


def as_bits(operand: ops.Operand, spec: TensorSpec) -> ops.Operand:
    """The operand of this spec for a kernel that only moves elements: f16 and bf16 as u16."""
    return replace(operand, dtype=u16) if is_short_float(spec) else operand
