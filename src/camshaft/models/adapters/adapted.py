"""Checkpoints of models with LoRA adapters (Hu et al., 2021): y = x W^T + scale (x A^T) B^T."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from camshaft.errors import ModelError, shortened
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor
from camshaft.models.adapters.adapter import Adapters, constant_name
from camshaft.models.checkpoint import Checkpoint

# A [rank, k], B [n, rank] and what their product is multiplied by.
Change = tuple[Tensor, Tensor, float]


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
        y = super().linear(x, name, n, bias=bias)
        if name != "token_embd":  # its rows are also the tokens' embeddings, which would stay as they are
            self._unused.pop(name, None)
        for a, b, scale in self._changes.get(name, ()):
            low = self.product(x, a, f"{name}.lora_a")
            change = self.product(low * scale, b, f"{name}.lora_b")
            y = f.add(y, change, name=f"{name}.lora")
        return y

    def check_used(self) -> None:
        """Raises ModelError for a changed matrix that is read otherwise than by products, as embeddings are."""
        if self._unused:
            names = shortened(", ".join(self._unused))
            raise ModelError(f"the adapter changes {names}, which not only products read; wanted matrices of layers")


def checkpoint_of(adapters: Adapters, graph: Graph, *, invariant: bool = False) -> Checkpoint:
    """The model's tensors as constants of a graph, with the adapters' products; `invariant` as of Checkpoint."""
    plain = Checkpoint(adapters.tensors, graph, invariant=invariant)
    changes: dict[str, list[Change]] = {}
    for i, (adapter, strength) in enumerate(adapters.given):
        for name, pair in adapter.pairs.items():
            a, b = (plain.tensor(constant_name(i, t), *t.shape) for t in pair)
            changes.setdefault(name, []).append((a, b, strength * adapter.scales[name]))
    return AdaptedCheckpoint(adapters.tensors, graph, changes, invariant=invariant) if changes else plain
