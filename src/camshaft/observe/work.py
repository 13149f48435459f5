"""What a node costs at the active extents: bytes, operations, their kind, and which part of the model it is."""

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
from camshaft.plan.lowering.node_range import NodeRange

Active = Mapping[Extent, int]
_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True)
class Work:
    """What a node reads and writes (bytes), computes (operations of `kind`: int8, bf16 or f32), at these extents."""

    nbytes: float
    flops: float
    kind: str

    def least_ns(self, peak: MachinePeak) -> float:
        """No less time than this under that roof."""
        return peak.least_s(self.nbytes, {self.kind: self.flops}) * 1e9


def _at(value: Any, active: Active) -> Any:
    return active.get(value, value.bound) if isinstance(value, Extent) else value


def active_node(node: NodeSpec, active: Active) -> NodeSpec:
    """The node with every Extent at its active value: in shapes and in attributes."""

    def spec(s: TensorSpec) -> TensorSpec:
        return TensorSpec(tuple(_at(d, active) for d in s.shape), s.dtype, s.layout)

    attrs = {name: _at(value, active) for name, value in node.attrs.items()}
    return NodeSpec(tuple(map(spec, node.inputs)), tuple(map(spec, node.outputs)), attrs)


def work_of(origin: NodeRange, active: Active) -> Work:
    """The node's work by its op's own figures."""
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
    """('blk.3', 'attn_q') of a thunk 'blk.3.attn_q' or 'blk.3.attn_q/1'; a name without a number is both."""
    plain = name.split("/")[0]
    words = plain.split(".")
    at = next((i for i, word in enumerate(words) if _NUMBER.fullmatch(word)), None)
    if at is None or at + 1 == len(words):
        return plain, plain
    return ".".join(words[: at + 1]), ".".join(words[at + 1 :])
