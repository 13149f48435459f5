"""Choice: the variant chosen for a node, the reason, and the variants that lost."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.backends.device import Device
from camshaft.errors import count, shortened
from camshaft.ops.op import KernelVariant, Op


@dataclass(frozen=True)
class Loser:
    """A variant that was not chosen, and the reason."""

    variant: str
    backend: str
    reason: str
    ns: float | None = None  # None: it does not support the node


@dataclass(frozen=True)
class Choice:
    """The variant chosen for a node, its device, the reason, and the variants that lost.

    `ns` is its time, estimated unless `measured`; None if there was no choice. `refuted` says by how much a measurement
    contradicts the cost model, or is empty."""

    op: Op
    variant: KernelVariant
    backend: str
    device: Device
    reason: str
    losers: tuple[Loser, ...]
    ns: float | None = None
    measured: bool = False
    refuted: str = ""

    def __repr__(self) -> str:
        others = f"; {count(len(self.losers), 'other')}" if self.losers else ""
        return f"Choice({self.op.name}: {self.variant.label} on {self.backend}, {shortened(self.reason)}{others})"
