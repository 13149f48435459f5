"""Checkpoints of models with adapters: of LoRA (Hu et al., 2021) y = x W^T + scale (x A^T) B^T, of DoRA times f by rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from camshaft.errors import ModelError, shortened
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.passes.recompute import unless_inside
from camshaft.graph.tensor import Tensor
from camshaft.models.adapters.adapter import Adapters, constant_name, factors_name
from camshaft.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class Change:
    """A [rank, k] and B [n, rank], or stacks of them for each expert, what their product is multiplied by, and how much of the
    whole change is added.

    `factors` gives f [n] of DoRA. In training the adapter may see x with dropout, `dropped(x)`."""

    a: Tensor
    b: Tensor
    scale: float
    strength: float = 1.0
    factors: Callable[[Checkpoint], Tensor] | None = None
    dropped: Callable[[Tensor], Tensor] | None = None


class AdaptedCheckpoint(Checkpoint):
    """The file's tensors as constants of a graph; to the product with a matrix are added those of its `changes`."""

    def __init__(
        self,
        tensors: Mapping[str, FileTensor],
        graph: Graph,
        changes: Mapping[str, Sequence[Change]],
        *,
        invariant: bool = False,
    ) -> None:
        super().__init__(tensors, graph, invariant=invariant)
        self._changes, self._unused = changes, dict.fromkeys(changes)

    def linear(self, x: Tensor, name: str, n: int, *, bias: bool = False) -> Tensor:
        own = self.own(name)
        changes = self._changes.get(own, ())
        factors = [None if c.factors is None else c.factors(self) for c in changes]
        rescaled = any(found is not None for found in factors)
        y = super().linear(x, name, n, bias=bias and not rescaled)
        if name != "token_embd":  # its rows are also the tokens' embeddings, which would stay as they are
            self._unused.pop(own, None)
        if rescaled:
            y = self._rescaled(x, y, name, n, changes, factors)
        for c, found in zip(changes, factors, strict=True):
            low = self._low(x, c, name)
            change = self.product(low * (c.strength * c.scale), c.b, f"{name}.lora_b")
            y = f.add(y, change if found is None else change * found, name=f"{name}.lora")
        return f.add(y, self.vector(f"{name}.bias", n), name=f"{name}.bias") if bias and rescaled else y

    def _rescaled(
        self, x: Tensor, y: Tensor, name: str, n: int, changes: Sequence[Change], factors: Sequence[Tensor | None]
    ) -> Tensor:
        """y = x W^T times the gain of DoRA. With dropout the part that it adds, (gain - 1) x W^T, sees the adapter's x."""
        gain, dropped = _gain(changes, factors), changes[0].dropped
        if dropped is None:
            return y * gain
        return y + super().linear(dropped(x), name, n) * (gain - 1.0)

    def _low(self, x: Tensor, change: Change, name: str) -> Tensor:
        """Returns x A^T. Gradients recompute the dropout of x, unless they recompute the whole layer."""
        if change.dropped is None:
            return self.product(x, change.a, f"{name}.lora_a")
        with unless_inside(self.graph):
            return self.product(change.dropped(x), change.a, f"{name}.lora_a")

    def changes(self, *names: str) -> bool:
        return any(self.own(name) in self._changes for name in names)

    def grouped(self, x: Tensor, name: str, shape: tuple[int, int, int], chosen: Tensor) -> Tensor:
        y, own = super().grouped(x, name, shape, chosen), self.own(name)
        self._unused.pop(own, None)
        for c in self._changes.get(own, ()):
            low = self.grouped_product(x if c.dropped is None else c.dropped(x), c.a, chosen, f"{name}.lora_a")
            change = self.grouped_product(low * (c.strength * c.scale), c.b, chosen, f"{name}.lora_b")
            y = f.add(y, change, name=f"{name}.lora")
        return y

    def check_used(self) -> None:
        """Raises ModelError for a changed matrix that is read otherwise than by products, as embeddings are."""
        if self._unused:
            names = shortened(", ".join(self._unused))
            raise ModelError(f"the adapter changes {names}, which not only products read; wanted matrices of layers")


def _gain(changes: Sequence[Change], factors: Sequence[Tensor | None]) -> Tensor:
    """Returns the factor of the product with W: 1 + the sum of strength (f - 1)."""
    (first, strength), *others = [
        (found, c.strength) for c, found in zip(changes, factors, strict=True) if found is not None
    ]
    gain = first if strength == 1.0 else (first - 1.0) * strength + 1.0
    for found, strength in others:
        gain = gain + (found - 1.0) * strength
    return gain


def checkpoint_of(adapters: Adapters, graph: Graph, *, invariant: bool = False) -> Checkpoint:
    """The model's tensors as constants of a graph, with the adapters' products; `invariant` as of Checkpoint."""
    plain = Checkpoint(adapters.tensors, graph, invariant=invariant)
    changes: dict[str, list[Change]] = {}
    for i, (adapter, strength) in enumerate(adapters.given):
        for name, pair in adapter.pairs.items():
            a, b = (plain.tensor(constant_name(i, t.name), *t.shape) for t in pair)
            factors = None
            if name in adapter.magnitudes:
                factors = _constant(constant_name(i, factors_name(name)), b.spec.bounds[0])
            changes.setdefault(name, []).append(Change(a, b, adapter.scales[name], strength, factors))
    return AdaptedCheckpoint(adapters.tensors, graph, changes, invariant=invariant) if changes else plain


def _constant(name: str, n: int) -> Callable[[Checkpoint], Tensor]:
    return lambda checkpoint: checkpoint.tensor(name, n)
