"""LoRA (Hu et al., 2021) on a GGUF model: y = x W^T + (alpha / rank) (x A^T) B^T, where W stays as it is in the file.

The model's own decoder is the training graph. A quantized W is multiplied as it is, and unpacked for the gradient of x alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import numpy as np

from camshaft.errors import ModelError
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor, graph_of
from camshaft.models.adapters.adapted import AdaptedCheckpoint
from camshaft.models.blocks.transformer import TokenBatch, WholeSequences
from camshaft.models.config import read_config
from camshaft.models.decoder import decoder
from camshaft.models.families import family_name
from camshaft.models.files.pull import resolve_model
from camshaft.models.rope_scaling import Rotations
from camshaft.text.vocabulary import vocabulary_size

Array = np.ndarray[Any, Any]
Matrices = dict[str, dict[str, Any]]
# The matrices of a dense decoder, by their names in a block of the file.
TARGETS = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class LoraConfig:
    """`rank` and `alpha` of the adapters, the matrices that get one (patterns of names such as attn_q), the seed of A."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("attn_*", "ffn_*")
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise ModelError(f"LoRA: got rank={self.rank!r:.60}; wanted 1 or more")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)) or not 0 < self.alpha < 1e9:
            raise ModelError(f"LoRA: got alpha={self.alpha!r:.60}; wanted a number above 0")
        if not isinstance(self.targets, tuple) or not all(isinstance(t, str) for t in self.targets):
            raise ModelError(f"LoRA: got targets={self.targets!r:.60}; wanted patterns of {', '.join(TARGETS)}")
        if type(self.seed) is not int or self.seed < 0:
            raise ModelError(f"LoRA: got seed={self.seed!r:.60}; wanted 0 or more")

    @property
    def scale(self) -> float:
        """What the adapter's product is multiplied by."""
        return self.alpha / self.rank


class LoraModel:
    """A model with adapters: what train.Step needs to train them, which are `adapters()` and `loss`. A context manager.

    `path_or_name` is a .gguf file or a model's name. Gradients compute the first `recomputed` layers once more, to save memory.
    Raises ModelError for targets that the file does not have, a mixture of
    experts, and recurrent layers.
    """

    def __init__(self, path_or_name: str | Path, config: LoraConfig | None = None) -> None:
        self.lora = config or LoraConfig()
        opened = open_model_file(resolve_model(str(path_or_name)))
        self.file, self.digest = opened.file, opened.digest
        self.tokenizer = opened.tokenizer()
        try:
            architecture = family_name(self.file.metadata)
            self.config = read_config(self.file.metadata, architecture, vocabulary_size(self.file.metadata))
            if self.config.experts is not None:
                raise ModelError("LoRA: the file is a mixture of experts; wanted a dense model")
            if self.config.recurrent is not None:
                raise ModelError("LoRA: the file has recurrent layers; wanted a model of attention alone")
            self.names = _adapted(self.file.tensors, self.lora.targets)
        except BaseException:
            self.file.close()
            raise
        self._rotations: dict[tuple[str, int], Rotations] = {}
        self.recomputed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self.file.close()

    def adapters(self) -> Matrices:
        """New adapters by their matrices: `a` [rank, k] is drawn as the weights of a torch.nn.Linear, `b` [n, rank] is 0."""
        rng, made = np.random.default_rng(self.lora.seed), {}
        for name in self.names:
            n, k = self.file.tensors[f"{name}.weight"].shape
            a = rng.uniform(-(k**-0.5), k**-0.5, (self.lora.rank, k)).astype(np.float32)
            made[name] = {"a": a, "b": np.zeros((n, self.lora.rank), np.float32)}
        return made

    def loss(
        self,
        adapters: Mapping[str, Mapping[str, Tensor]],
        ids: Tensor,
        rows: Tensor,
        targets: Tensor,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The cross entropy of `targets` [batch, n], the tokens that should follow those at `rows` [batch, n] of `ids`
        [batch, length]; targets of -100 do not count. `positions` as of `logits`."""
        batch, length = ids.spec.bounds
        starts = np.arange(batch, dtype=np.int32)[:, None] * np.int32(length)
        logits = self.logits(adapters, ids, (rows + starts).reshape((-1,)), positions)
        loss: Tensor = f.cross_entropy(logits, targets.reshape((-1,)))
        return loss

    def logits(
        self,
        adapters: Mapping[str, Mapping[str, Tensor]],
        ids: Tensor,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The logits of sequences `ids` [batch, length] at `rows` of all their tokens, by default all.

        `positions` [batch, length] are given where rows of `ids` hold several sequences: each starts at 0, and sees no other."""
        graph, (batch, length) = graph_of(ids), ids.spec.bounds
        if length > self.config.context_length:
            raise ModelError(f"LoRA: got sequences of {length} tokens; wanted at most {self.config.context_length}")
        if positions is None:
            places, attention = graph.constant("positions", np.tile(np.arange(length, dtype=np.int32), batch)), None
        else:
            places, attention = positions.reshape((batch * length,)), same_sequence(positions)
        ropes = self.rotations(graph, length)
        tokens = TokenBatch(ids.reshape((batch * length,)), places, rows, ropes, recomputed=self.recomputed)
        changes = {name: [(pair["a"], pair["b"], self.lora.scale)] for name, pair in adapters.items()}
        checkpoint = AdaptedCheckpoint(self.file.tensors, graph, changes)
        caches = [WholeSequences(length, attention)] * self.config.n_layers
        return decoder(self.config, checkpoint, tokens, caches)

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


def _adapted(tensors: Mapping[str, Any], targets: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the matrices that get an adapter. ModelError for a pattern that none has."""
    every = re.compile(rf"(blk\.\d+\.({'|'.join(TARGETS)}))\.weight")
    found = [(match[1], match[2]) for name in tensors if (match := every.fullmatch(name))]
    for pattern in targets:
        if not any(fnmatchcase(short, pattern) for _, short in found):
            known = ", ".join(dict.fromkeys(short for _, short in found))
            raise ModelError(f"LoRA: got the target {pattern!r:.60}, which no matrix has; wanted patterns of {known}")
    return tuple(name for name, short in found if any(fnmatchcase(short, pattern) for pattern in targets))
