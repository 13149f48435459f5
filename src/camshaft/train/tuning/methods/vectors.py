"""Fine-tuning of embedding models by similar texts: InfoNCE (van den Oord et al., 2018) with the other texts of a batch.

loss = mean over i of -log(exp(s(q_i, p_i) / t) / sum over d of exp(s(q_i, d) / t))

where s is the cosine, q are queries, and d all positives p and, if there are some, negatives of the batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from camshaft.errors import FormatError, ModelError
from camshaft.formats.mapped import shown_value
from camshaft.graph import functions as f
from camshaft.graph.tensor import Tensor, graph_of
from camshaft.models.blocks.heads import read_dense
from camshaft.models.blocks.layer import TokenBatch
from camshaft.models.blocks.transformer import WholeSequences
from camshaft.models.decoder import hidden
from camshaft.models.families import FAMILIES
from camshaft.train.tuning.data.examples import object_of, read_lines
from camshaft.train.tuning.methods.full import FullModel

Array = np.ndarray[Any, Any]
POOLINGS = ("mean", "cls", "last")
_MULTIPLE = 16  # rows' lengths


class VectorModel(FullModel):
    """An embedding model whose tensors are learned, but for layers after the pooling.

    Raises ModelError as FullModel, and for a file that names no pooling."""

    def prepare(self) -> None:
        """Finds the pooling, and what is learned."""
        if self.config.pooling not in POOLINGS:
            found = self.config.pooling or "not given"
            raise ModelError(
                f"fine-tuning: the file's pooling is {found}; wanted {', '.join(POOLINGS)}: an embedding model"
            )
        self._layers = read_dense(self.file.tensors, self.config)
        super().prepare()

    def vectors(self, parameters: Any, ids: Tensor, lengths: Tensor) -> Tensor:
        """The vectors, of length 1, of texts `ids` [n, length], of which `lengths` [n] tokens are not filling: f32 [n, dim]."""
        graph, (n, length) = graph_of(ids), ids.spec.bounds
        is_encoder = FAMILIES[self.config.architecture].encoder
        is_text = f.less(np.arange(length, dtype=np.int32)[None], lengths.reshape((n, 1)))
        mask = f.broadcast_to(is_text.reshape((n, 1, 1, length)), shape=(n, 1, length, length)) if is_encoder else None
        places = graph.constant("positions", np.tile(np.arange(length, dtype=np.int32), n))
        ropes = self.rotations(graph, length)
        tokens = TokenBatch(ids.reshape((n * length,)), places, None, ropes, recomputed=self.recomputed)
        caches = [WholeSequences(length, mask, causal=not is_encoder)] * self.config.n_layers
        found = hidden(self.config, self.checkpoint(graph, parameters), tokens, caches)
        pooled = self._pooled(found.reshape((n, length, self.config.dim)), is_text, lengths)
        for layer in self._layers:
            pooled = f.matmul(pooled, np.asarray(layer.weight, np.float32), transpose_b=True) + layer.bias
        squares = f.sum(f.square(pooled), axes=-1, keepdims=True)
        made: Tensor = pooled * f.rsqrt(f.maximum(squares, 1e-24))
        return made

    def _pooled(self, x: Tensor, is_text: Tensor, lengths: Tensor) -> Tensor:
        n, length, dim = x.spec.bounds
        if self.config.pooling == "cls":
            first: Tensor = x[:, 0]
            return first
        if self.config.pooling == "mean":
            share = f.cast(is_text, to="f32") / f.cast(lengths, to="f32").reshape((n, 1))
            mean: Tensor = f.sum(x * share.reshape((n, length, 1)), axes=1)
            return mean
        rows = lengths - 1 + np.arange(n, dtype=np.int32) * np.int32(length)
        last: Tensor = f.gather(x.reshape((n * length, dim)), rows)
        return last


def contrastive_loss(model: VectorModel, temperature: float) -> Callable[..., Tensor]:
    """The loss of parameters and a batch: `ids` [n, 2 or 3, length] of query, positive and negative, and `lengths`."""

    def loss(parameters: Any, ids: Tensor, lengths: Tensor) -> Tensor:
        n, kinds, length = ids.spec.bounds
        by_kind = f.transpose(ids, axes=(1, 0, 2)).reshape((kinds * n, length))
        vectors = model.vectors(parameters, by_kind, f.transpose(lengths, axes=(1, 0)).reshape((kinds * n,)))
        scores = f.matmul(vectors[:n], vectors[n:], transpose_b=True) * (1.0 / temperature)
        made: Tensor = f.cross_entropy(scores, np.arange(n, dtype=np.int32))
        return made

    return loss


def read_similar(path: str | os.PathLike[str], model: VectorModel, length: int) -> tuple[Array, Array]:
    """The texts of a file as ids i32 [n, 2 or 3, most] and lengths i32 [n, 2 or 3]. A line is {"query": ..., "positive": ...},
    in all lines or in none with a "negative". FormatError, naming the line, for others and for texts that are empty or too
    long."""
    kinds: list[tuple[str, ...]] = []

    def texts(where: str, line: bytes) -> list[list[int]]:
        given = object_of(where, line)
        names = ("query", "positive", "negative")[: 3 if "negative" in given else 2]
        kinds.append(names)
        if not set(given) >= set(names):
            raise FormatError(f"{where}: got {shown_value(given)}; wanted query and positive, perhaps negative")
        if names != kinds[0]:
            raise FormatError(f"{where}: has {', '.join(names)}; wanted {', '.join(kinds[0])}, as the first line")
        return [_tokens(f"{where}: {name}", given, name, model, length) for name in names]

    found = read_lines(path, texts)
    lengths = np.array([[len(ids) for ids in row] for row in found], np.int32)
    most = -(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE
    most = min(most, model.config.context_length)
    filled = np.zeros((*lengths.shape, most), np.int32)
    for i, row in enumerate(found):
        for j, ids in enumerate(row):
            filled[i, j, : len(ids)] = ids
    return filled, lengths


def _tokens(where: str, given: Mapping[str, Any], name: str, model: VectorModel, length: int) -> list[int]:
    text = given[name]
    if not isinstance(text, str) or not text.strip():
        raise FormatError(f"{where} is {shown_value(text)}; wanted a text")
    ids = model.tokenizer.encode(text, parse_special=False)
    most = min(length, model.config.context_length)
    if len(ids) > most:
        raise FormatError(f"{where} has {len(ids)} tokens; wanted at most {most} (length=)")
    return ids
