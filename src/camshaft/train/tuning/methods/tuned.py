"""A GGUF model as a training graph: its own decoder over whole sequences, with weights that a method of fine-tuning makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

import numpy as np

from camshaft.errors import ModelError
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor, graph_of
from camshaft.models.blocks.layer import TokenBatch
from camshaft.models.blocks.transformer import LayerMemory, SideBySide, WholeSequences
from camshaft.models.blocks.whole import WholeRecurrence
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import read_config
from camshaft.models.configs.recurrent import ATTENTION, BOTH, FEED_FORWARD
from camshaft.models.decoder import decoder
from camshaft.models.files.pull import resolve_model
from camshaft.models.rope_scaling import Rotations


class TunedModel(ABC):
    """A model and what of it is learned: what train.Step needs are `parameters()` and `loss`. A context manager.

    `path_or_name` is a .gguf file or a model's name. Gradients recompute the first `recomputed` layers, to save memory.
    `names` are those of the tensors, or of the matrices with adapters, that are learned.
    """

    names: tuple[str, ...]

    def __init__(self, path_or_name: str | Path) -> None:
        opened = open_model_file(resolve_model(str(path_or_name)))
        self.file, self.digest = opened.file, opened.base_digest
        try:
            self.tokenizer = opened.mapped_tokenizer()
            self.config = read_config(self.file.metadata)
            self.prepare()
        except BaseException:
            self.file.close()
            raise
        self._rotations: dict[tuple[str, int], Rotations] = {}
        self.recomputed = 0

    @abstractmethod
    def prepare(self) -> None:
        """Finds what is learned in the open file. Raises ModelError where the file does not have it."""

    @abstractmethod
    def parameters(self) -> Any:
        """What is learned, as it starts: arrays of f32 by name."""

    @abstractmethod
    def checkpoint(self, graph: Graph, parameters: Any, seed: Tensor | None = None) -> Checkpoint:
        """The file's tensors in a graph, with the parameters; `{}` gives the model as it is in the file. What the model drops in
        training it draws by the `seed`, as train.Step gives it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self.file.close()

    def loss(
        self,
        parameters: Any,
        ids: Tensor,
        rows: Tensor,
        targets: Tensor,
        positions: Tensor | None = None,
        *,
        seed: Tensor | None = None,
    ) -> Tensor:
        """The cross entropy of `targets` [batch, n], the tokens that should follow those at `rows` [batch, n] of `ids`
        [batch, length]; targets of -100 do not count. `positions` and `seed` as of `logits`."""
        batch, length = ids.spec.bounds
        starts = np.arange(batch, dtype=np.int32)[:, None] * np.int32(length)
        logits = self.logits(parameters, ids, (rows + starts).reshape((-1,)), positions, seed)
        loss: Tensor = f.cross_entropy(logits, targets.reshape((-1,)))
        return loss

    def logits(
        self,
        parameters: Any,
        ids: Tensor,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        """The logits of sequences `ids` [batch, length] at `rows` of all their tokens, by default all.

        `positions` [batch, length] are given where rows of `ids` hold several sequences: each starts at 0, and sees no other.
        With a `seed`, u32 [3], in steps of training, dropout is drawn by it."""
        graph, (batch, length) = graph_of(ids), ids.spec.bounds
        if length > self.config.context_length:
            most = self.config.context_length
            raise ModelError(f"fine-tuning: got sequences of {length} tokens; the model's context has {most}")
        if positions is None:
            places, attention = graph.constant("positions", np.tile(np.arange(length, dtype=np.int32), batch)), None
        else:
            places, attention = positions.reshape((batch * length,)), same_sequence(positions)
        ropes = self.rotations(graph, length)
        tokens = TokenBatch(ids.reshape((batch * length,)), places, rows, ropes, recomputed=self.recomputed)
        memory = self.memory(length, positions, attention)
        return decoder(self.config, self.checkpoint(graph, parameters, seed), tokens, memory)

    def memory(
        self, length: int, positions: Tensor | None = None, attention: Tensor | None = None
    ) -> list[LayerMemory]:
        """What each layer has of the tokens before: their sequence as a whole. Of packed rows the `positions` in sequences, and
        the mask of `attention`."""
        attends = WholeSequences(length, attention)
        if self.config.recurrent is None:
            return [attends] * self.config.n_layers
        recurs = WholeRecurrence(length, self.config.recurrent, positions)
        kinds: dict[str, LayerMemory] = {BOTH: SideBySide(attends, recurs), ATTENTION: attends, FEED_FORWARD: attends}
        return [kinds.get(layer.kind, recurs) for layer in self.config.layers]

    def rotations(self, graph: Graph, length: int) -> dict[str, Tensor]:
        """The tables of rotary embedding for sequences of `length` tokens, as constants."""
        names = dict.fromkeys(layer.rope for layer in self.config.layers if layer.rope)
        return {name: graph.constant(name, r, r.spec) for name in names if (r := self._rotation(name, length))}

    def _rotation(self, name: str, length: int) -> Rotations:
        key = name, length
        if key not in self._rotations:
            self._rotations[key] = Rotations(self.file.metadata, self.file.tensors, self.config, length, name)
        return self._rotations[key]


def same_sequence(positions: Tensor) -> Tensor:
    """Which tokens of packed rows [batch, length] are of one sequence, [batch, 1, length, length]; each starts at position 0."""
    batch, length = positions.spec.bounds
    numbers = f.cumsum(f.cast(f.equal(positions, 0), to="i32"), axis=1)
    same: Tensor = f.equal(numbers.reshape((batch, 1, length, 1)), numbers.reshape((batch, 1, 1, length)))
    return same
