"""Rewrite rules that round what products of many rows multiply (activation mode 'q8').

With bf16 weights, activations become bf16 once per tensor. A product of two bf16 numbers is exact in f32, and instructions
that multiply pairs of them do twice the work of f32's. llama.cpp rounds the same.

With f16 weights the product becomes rounded_matmul, whose kernels may round both operands to 16-bit integers: that loses less
than bf16 and still multiplies pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import bound

# Up to so many rows the weights' bandwidth limits a product, and f32 activations cost nothing (single tokens, logits).
FEW_ROWS = 64
# Ops that can store their first result rounded (attribute `to`).
MAKERS = ("rms_norm", "residual_norm", "silu_multiply")


def _is_linear(use: Use, dtype: DType) -> bool:
    """Whether a use multiplies many rows of f32 by weights [n, k] of a dtype."""
    if use.op.name != "matmul" or not use.attrs.get("transpose_b", False):
        return False
    x, w = use.inputs[0].spec, use.inputs[1].spec
    return bool(x.dtype == f32 and w.dtype == dtype and len(x.shape) == 2 and bound(x.shape[0]) > FEW_ROWS)


def _rounded_result(use: Use, uses: Uses) -> Match | None:
    """Makes an op store its first result as bf16 if only bf16 products on the same device read it."""
    y = use.outputs[0]
    readers = uses.readers(y)
    alone = all(_is_linear(n, bf16) and n.inputs[0] is y and n.device == use.device for n in readers)
    if not readers or not alone or uses.is_output(y):
        return None

    def build(new: Builder) -> Mapping[Any, Any]:
        made = new.apply(use.op, use.inputs, {**use.attrs, "to": "bf16"}, use.name)
        return dict(zip(use.outputs, made, strict=True))

    return Match(build)


def _rounded_activations(use: Use, uses: Uses) -> Match | None:
    """Makes matmul(x, w bf16) read x cast to bf16, with one cast per x and device."""
    if not _is_linear(use, bf16):
        return None
    x, w = use.inputs

    def build(new: Builder) -> Mapping[Any, Any]:
        (rounded,) = new.once("cast", (x,), {"to": "bf16"}, f"{x.name}.bf16")
        return dict(zip(use.outputs, new.apply(use.op, (rounded, w), use.attrs, use.name), strict=True))

    return Match(build)


def _integer_product(use: Use, uses: Uses) -> Match | None:
    """Replaces matmul(x, w f16) by rounded_matmul(x, w)."""
    if not _is_linear(use, f16) or "to" in use.attrs:
        return None

    def build(new: Builder) -> Mapping[Any, Any]:
        made = new.apply("rounded_matmul", use.inputs, use.attrs, use.name)
        return dict(zip(use.outputs, made, strict=True))

    return Match(build)


BF16_RULES = (
    Rule(Stage.ROUNDED_RESULT, MAKERS, _rounded_result),
    Rule(Stage.ROUND, ("matmul",), _rounded_activations),
)
F16_RULES = (Rule(Stage.ROUND, ("matmul",), _integer_product),)
