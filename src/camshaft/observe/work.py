"""The work of a node at the active extents: bytes, operations and their kind; the layer and part that a thunk belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import bf16
from camshaft.extent import Extent
from camshaft.formats.blocks import BlockFormat
from camshaft.observe.machine_peak import MachinePeak
from camshaft.ops.op import NodeSpec
from camshaft.ops.quantize.quantize_activations import LAYOUTS
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.node_thunks import NodeRange

Active = Mapping[Extent, int]
_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True)
class Work:
    """Bytes read and written, and operations of `kind` ('int8', 'bf16' or 'f32', the precision whose peak applies)."""

    nbytes: float
    flops: float
    kind: str

    def least_ns(self, peak: MachinePeak) -> float:
        """The minimum time in ns at these peak rates."""
        return peak.least_s(self.nbytes, {self.kind: self.flops}) * 1e9


def _at(value: Any, active: Active) -> Any:
    return active.get(value, value.bound) if isinstance(value, Extent) else value


def active_node(node: NodeSpec, active: Active) -> NodeSpec:
    """The node with every Extent in shapes and attributes replaced by its active value."""

    def spec(s: TensorSpec) -> TensorSpec:
        return TensorSpec(tuple(_at(d, active) for d in s.shape), s.dtype, s.layout)

    attrs = {name: _at(value, active) for name, value in node.attrs.items()}
    return NodeSpec(tuple(map(spec, node.inputs)), tuple(map(spec, node.outputs)), attrs)


def work_of(origin: NodeRange, active: Active) -> Work:
    """The node's work according to its op."""
    node = active_node(origin.node.spec, active)
    op = origin.node.op
    return Work(float(op.nbytes(node)), float(op.flops(node)), _kind(node))


def _kind(node: NodeSpec) -> str:
    if any(s.layout in LAYOUTS.values() for s in node.inputs) and any(
        isinstance(s.dtype, BlockFormat) for s in node.inputs
    ):
        return "int8"
    return "bf16" if any(s.dtype == bf16 for s in node.inputs) else "f32"


def layer_and_part(name: str) -> tuple[str, str]:
    """Split a thunk name: 'blk.3.attn_q/1' gives ('blk.3', 'attn_q'). A name without a number is both layer and part."""
    plain = name.split("/")[0]
    words = plain.split(".")
    at = next((i for i, word in enumerate(words) if _NUMBER.fullmatch(word)), None)
    if at is None or at + 1 == len(words):
        return plain, plain
    return ".".join(words[: at + 1]), ".".join(words[at + 1 :])
