"""A quantized model whose matrices' scales and biases have factors that are learned, beside the full model.

A matrix is a sum of parts, each linear in what it is multiplied by, group by group: of a scale, codes times it; of a bias or a
minimum, the same number for each of the group, or as many times as sub-scales say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor, graph_of
from camshaft.models.blocks.layer import TokenBatch
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.decoder import decoder
from camshaft.train.tuning.methods.lora import LoraModel

Array = np.ndarray[Any, Any]
Factors = Mapping[str, Mapping[str, Any]]
LEAST, MOST = 0.25, 4.0  # what a factor may be: beyond it codes and scale no longer fit each other


@dataclass(frozen=True)
class Part:
    """A part of a matrix [n, k] with a factor for each of its `shape` [n, groups], or with none. `numbers(graph)` are those of
    factors of 1: [n, groups, k / groups], or [n, groups, 1] where a group has one number."""

    shape: tuple[int, int] | None
    numbers: Callable[[Graph], Tensor]


Parts = Mapping[str, Mapping[str, Part]]
"""Parts by the name of the matrix and of what is learned."""


class Student(ABC):
    """The quantized model: `tensors` are all that are not learned, `parts` the others."""

    def __init__(self, full: LoraModel, tensors: Mapping[str, FileTensor], parts: Parts) -> None:
        self.full, self.tensors, self.parts = full, tensors, parts

    @abstractmethod
    def write(self, path: Path, factors: Factors) -> None:
        """Writes the model with its scales and biases multiplied. StoreError if it cannot be written."""

    def factors(self) -> dict[str, dict[str, Array]]:
        """Factors of 1 by matrix and part, f32 [n, groups]."""
        return {
            name: {field: np.ones(part.shape, np.float32) for field, part in parts.items() if part.shape is not None}
            for name, parts in self.parts.items()
        }

    def loss(self, factors: Factors, ids: Tensor) -> Tensor:
        """The mean over the tokens of `ids` [batch, length] of KL(full || quantized), in nats."""
        graph = graph_of(ids)
        wanted = f.log_softmax(self._logits(Checkpoint(self.full.file.tensors, graph), ids, 0))
        student = _Learned(self.tensors, graph, self.parts, factors)
        found = f.log_softmax(self._logits(student, ids, self.full.config.n_layers))
        divergence = f.sum(f.exp(wanted) * (wanted - found), axes=1)
        made: Tensor = f.mean(divergence)
        return made

    def _logits(self, checkpoint: Checkpoint, ids: Tensor, recomputed: int) -> Tensor:
        full, (batch, length) = self.full, ids.spec.bounds
        graph = graph_of(ids)
        positions = graph.constant("positions", np.tile(np.arange(length, dtype=np.int32), batch))
        ropes = full.rotations(graph, length)
        tokens = TokenBatch(ids.reshape((batch * length,)), positions, None, ropes, recomputed=recomputed)
        return decoder(full.config, checkpoint, tokens, full.memory(length))


class _Learned(Checkpoint):
    """The file's tensors, where matrices with factors are sums of their parts times these."""

    def __init__(self, tensors: Mapping[str, FileTensor], graph: Any, parts: Parts, factors: Factors) -> None:
        super().__init__(tensors, graph)
        self._parts, self._factors = parts, factors

    def linear(self, x: Tensor, name: str, n: int, *, bias: bool = False) -> Tensor:
        factors = self._factors.get(f"{name}.weight")
        if factors is None:
            return super().linear(x, name, n, bias=bias)
        weight: Tensor | None = None
        for field, part in self._parts[f"{name}.weight"].items():
            numbers = part.numbers(self.graph)
            if part.shape is not None:
                numbers = numbers * factors[field].reshape((*part.shape, 1))
            weight = numbers if weight is None else weight + numbers
        assert weight is not None
        y: Tensor = f.matmul(x, weight.reshape((n, -1)), transpose_b=True, name=name)
        return f.add(y, self.vector(f"{name}.bias", n), name=f"{name}.bias") if bias else y
