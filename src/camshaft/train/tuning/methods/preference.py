"""DPO (Rafailov et al., 2023): the chosen answer becomes likelier than the rejected one, relative to the model without adapters.

loss = mean over pairs of -log sigmoid(beta ((log p(chosen) - log r(chosen)) - (log p(rejected) - log r(rejected))))

where p are probabilities of whole answers with the adapters and r, the reference, without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor
from camshaft.plan.compile import compile
from camshaft.train.step.graphs import computed_in
from camshaft.train.tuning.data.examples import Example
from camshaft.train.tuning.data.rows import IGNORED, Rows, one_each
from camshaft.train.tuning.methods.tuned import TunedModel

Array = np.ndarray[Any, Any]
Adapters = Mapping[str, Mapping[str, Tensor]]


def dpo_loss(model: TunedModel, beta: float) -> Callable[..., Tensor]:
    """The loss of adapters and a batch of pairs: `ids` [n, 2, length], `rows` and `targets` [n, 2, m], `reference` [n, 2]."""

    def loss(
        adapters: Adapters, ids: Tensor, rows: Tensor, targets: Tensor, reference: Tensor, *, seed: Tensor | None = None
    ) -> Tensor:
        gained = _log_probabilities(model, adapters, ids, rows, targets, seed) - reference
        margin = (gained[:, 0] - gained[:, 1]) * beta
        made: Tensor = f.mean(f.softplus(-margin))
        return made

    return loss


def pair_rows(pairs: Sequence[tuple[Example, Example]]) -> Rows:
    """The rows of pairs, without their reference."""
    rows = one_each([example for pair in pairs for example in pair])
    ids, at, targets = (a.reshape(len(pairs), 2, -1) for a in rows.arrays)
    return Rows(ids, at, targets, rows.counts.reshape(-1, 2).sum(axis=1))


def with_reference(
    model: TunedModel,
    rows: Rows,
    size: int,
    compute: str = "f32",
    *,
    backend: str | None = None,
    threads: int | None = None,
) -> Rows:
    """The rows of pairs with their log probabilities in the model without adapters, computed `size` pairs at a time, and rounded
    as in steps that `compute` in that dtype."""
    n = len(rows.ids)
    size = min(size, n)
    graph = Graph()
    inputs = [
        graph.input(name, (size, *a.shape[1:]), "i32") for name, a in zip(["ids", "at", "to"], rows.arrays, strict=True)
    ]
    graph.output("log_probabilities", _log_probabilities(model, {}, *inputs))
    graph = computed_in(graph, compute)
    found = np.zeros((n, 2), np.float32)
    with compile(graph, backend=backend, threads=threads) as plan:
        for first in (min(i, n - size) for i in range(0, n, size)):
            given = dict(zip(graph.inputs, (a[first : first + size] for a in rows.arrays), strict=True))
            found[first : first + size] = plan.run(given)["log_probabilities"]
    return replace(rows, reference=found)


def _log_probabilities(
    model: TunedModel, adapters: Adapters, ids: Tensor, rows: Tensor, targets: Tensor, seed: Tensor | None = None
) -> Tensor:
    """The log probability of each answer, [n, 2]: the sum over its targets."""
    n, _, length = ids.spec.bounds
    starts = np.arange(2 * n, dtype=np.int32).reshape(n, 2, 1) * np.int32(length)
    logits = model.logits(adapters, ids.reshape((2 * n, length)), (rows + starts).reshape((-1,)), seed=seed)
    losses = f.cross_entropy(logits, targets.reshape((-1,)), ignore_index=IGNORED, reduction="none")
    made: Tensor = -f.sum(losses.reshape((n, 2, -1)), axes=2)
    return made
