"""How recurrent layers use earlier tokens: by the states of slots, which a run updates in place, or within whole sequences.

Both compute the same. Only the second has gradients: a state that is updated in place passes none on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import TokenBatch
from camshaft.models.blocks.transformer import LayerMemory, LayerState
from camshaft.models.blocks.whole import WholeRecurrence


class Recurrence(Protocol):
    """The recurrences of a layer, over rows of tokens; `state` names one of the layer's states, `name` the node."""

    def conv(
        self, x: Tensor, taps: Tensor, state: str, bias: Tensor | None = None, *, activation: str = "none", name: str
    ) -> Tensor:
        """act(sum_j taps[j] x[t + j - (J - 1)] + bias) of x [T, C] and taps [J, C]."""
        ...

    def short_conv(self, x: Tensor, taps: Tensor, *, name: str) -> Tensor:
        """c conv(b x) of b, c and x side by side, [T, 3 C]."""
        ...

    def gated_delta(self, *given: Tensor, groups: int, tiled: bool, name: str) -> Tensor:
        """The gated delta rule of qkv [T, 2 G K + H V], alpha, beta [T, H], a and dt [H], as gated_delta_slots."""
        ...

    def selective_scan(self, *given: Tensor, name: str) -> Tensor:
        """Mamba 1 of x, dt [T, C], b, c [T, N], a [N, C], d and bias [C], as selective_scan_slots."""
        ...

    def ssd(self, *given: Tensor, groups: int, name: str) -> Tensor:
        """Mamba 2 of xbc [T, H P + 2 G N], dt [T, H], a, d and bias [H], as ssd_slots."""
        ...

    def dplr(self, *given: Tensor, name: str) -> Tensor:
        """S = diag(exp(w)) S + outer(b, a.T S) + outer(k, v); o = r.T S, of r, w, k, v, a and b [T, H K]."""
        ...

    def rwkv6(self, *given: Tensor, name: str) -> Tensor:
        """o = r.T (S + diag(u) outer(k, v)); S = diag(exp(w)) S + outer(k, v), of r, w, k and v [T, H K] and u [H K]."""
        ...


@dataclass(frozen=True)
class SlotRecurrence:
    """The states of slots; `rows` has each slot's tokens."""

    states: LayerState
    rows: Tensor

    def conv(
        self, x: Tensor, taps: Tensor, state: str, bias: Tensor | None = None, *, activation: str = "none", name: str
    ) -> Tensor:
        """As Recurrence.conv."""
        more: Mapping[str, Any] = {} if activation == "none" else {"activation": activation}
        given = (x, taps, self.states[state], self.rows, *(() if bias is None else (bias,)))
        y: Tensor = F.conv_slots(*given, **more, name=name)
        return y

    def short_conv(self, x: Tensor, taps: Tensor, *, name: str) -> Tensor:
        """As Recurrence.short_conv."""
        y: Tensor = F.short_conv_slots(x, taps, self.states["conv"], self.rows, name=name)
        return y

    def gated_delta(self, *given: Tensor, groups: int, tiled: bool, name: str) -> Tensor:
        """As Recurrence.gated_delta."""
        return self._of_heads("gated_delta_slots", given, groups=groups, tiled=tiled, name=name)

    def selective_scan(self, *given: Tensor, name: str) -> Tensor:
        """As Recurrence.selective_scan."""
        return self._of_heads("selective_scan_slots", given, name=name)

    def ssd(self, *given: Tensor, groups: int, name: str) -> Tensor:
        """As Recurrence.ssd."""
        return self._of_heads("ssd_slots", given, groups=groups, name=name)

    def dplr(self, *given: Tensor, name: str) -> Tensor:
        """As Recurrence.dplr."""
        r, w, *others = given
        return self._of_heads("dplr_slots", (r, F.exp(w), *others), name=name)

    def rwkv6(self, *given: Tensor, name: str) -> Tensor:
        """As Recurrence.rwkv6."""
        r, w, *others = given
        return self._of_heads("rwkv6_slots", (r, F.exp(w), *others), name=name)

    def _of_heads(self, op: str, given: tuple[Tensor, ...], **attrs: Any) -> Tensor:
        y: Tensor = F.function(op)(*given, self.states["state"], self.rows, **attrs)
        return y


def recurrence_of(memory: LayerMemory, batch: TokenBatch) -> Recurrence:
    """Returns the recurrence for a layer's kind of state."""
    if isinstance(memory, WholeRecurrence):
        return memory
    assert isinstance(memory, Mapping)
    assert batch.slot_rows is not None
    return SlotRecurrence(memory, batch.slot_rows)
