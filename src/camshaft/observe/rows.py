"""Row: the profile of one thunk, or the sum over several by op, part or layer. Work: bytes and operations of a node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import bf16
from camshaft.extent import Extent
from camshaft.formats.blocks import BlockFormat
from camshaft.observe.machine_peak import MachinePeak
from camshaft.ops.op import NodeSpec
from camshaft.ops.quantize.quantize_activations import LAYOUTS, TILE_LAYOUT
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.node_thunks import NodeRange

Active = Mapping[Extent, int]
_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True)
class Row:
    """Times, work and rates of one thunk, or sums if `n_thunks` is more than 1.

    ns: from the first program's start to the last one's end; None if the device has no clock.
    busy_ns: the same, summed over the workers' own programs. waited_ns: workers' time at the wait before the thunk, summed.
    share: fraction of all workers' time. least_ns: minimum time at the machine's peak rates; None without a peak.

    A replicated thunk (`n_replicated` 1: every worker runs all programs) counts its bytes and operations once; `ns` is one
    worker's time, `busy_ns` and `share` include all workers.
    """

    name: str
    op: str
    variant: str
    device: str
    layer: str
    part: str
    n_thunks: int
    n_replicated: int
    n_waits: int
    ns: float | None
    busy_ns: float
    share: float
    waited_ns: float
    nbytes: float
    flops: float
    kind: str
    least_ns: float | None

    @property
    def gb_per_s(self) -> float | None:
        """Bytes per nanosecond."""
        return self.nbytes / self.ns if self.ns else None

    @property
    def gflop_per_s(self) -> float | None:
        """Operations per nanosecond."""
        return self.flops / self.ns if self.ns else None

    @property
    def peak_share(self) -> float | None:
        """The minimum time at the machine's peak rates, divided by the measured time; 1 is optimal."""
        return self.least_ns / self.ns if self.ns and self.least_ns is not None else None

    def report(self) -> dict[str, Any]:
        """All fields and rates, for JSON."""
        rates = {name: getattr(self, name) for name in ("gb_per_s", "gflop_per_s", "peak_share")}
        return vars(self) | rates


GROUPS: dict[str, Callable[[Row], str]] = {
    "op": lambda row: f"{row.op}/{row.variant}",
    "part": lambda row: row.part,
    "layer": lambda row: row.layer,
}


def grouped(rows: Iterable[Row], by: str) -> tuple[Row, ...]:
    """Sum rows by a key of GROUPS. Sorted by share of time, except layers, which keep their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(GROUPS[by](row), []).append(row)
    sums = [_sum(name, members) for name, members in groups.items()]
    return tuple(sums if by == "layer" else sorted(sums, key=lambda row: -row.share))


def _common(values: Iterable[str]) -> str:
    distinct = dict.fromkeys(values)
    return next(iter(distinct)) if len(distinct) == 1 else ""


def _total(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _sum(name: str, rows: list[Row]) -> Row:
    words = {field: _common(getattr(row, field) for row in rows) for field in _WORDS}
    sums = {field: sum(getattr(row, field) for row in rows) for field in _SUMS}
    known = {field: _total([getattr(row, field) for row in rows]) for field in ("ns", "least_ns")}
    return Row(**{"name": name, **words, **sums, **known})


_WORDS = ("op", "variant", "device", "layer", "part", "kind")
_SUMS = ("n_thunks", "n_replicated", "n_waits", "busy_ns", "share", "waited_ns", "nbytes", "flops")


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
    of_bf16 = any(s.dtype == bf16 or s.layout is TILE_LAYOUT for s in node.inputs)
    return "bf16" if of_bf16 or node.attrs.get("precision") == "bf16" else "f32"


def layer_and_part(name: str) -> tuple[str, str]:
    """Split a thunk name: 'blk.3.attn_q/1' gives ('blk.3', 'attn_q'). A name without a number is both layer and part."""
    plain = name.split("/")[0]
    words = plain.split(".")
    at = next((i for i, word in enumerate(words) if _NUMBER.fullmatch(word)), None)
    if at is None or at + 1 == len(words):
        return plain, plain
    return ".".join(words[: at + 1]), ".".join(words[at + 1 :])
