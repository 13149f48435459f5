"""What each method of fine-tuning reads of a file, and its loss."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.text.chat import ChatTemplate
from camshaft.train.tuning.data.batches import HeldBatches, RowBatches, StreamedBatches
from camshaft.train.tuning.data.examples import Example, example_of, read_examples, read_pairs
from camshaft.train.tuning.data.rows import IGNORED, Rows, one_each, packed
from camshaft.train.tuning.methods.preference import dpo_loss, pair_rows, with_reference
from camshaft.train.tuning.methods.tuned import TunedModel
from camshaft.train.tuning.methods.vectors import VectorModel, contrastive_loss, read_similar
from camshaft.train.tuning.options import FinetuneOptions
from camshaft.train.validation import Validation

Array = np.ndarray[Any, Any]
Place = str | os.PathLike[str]


def loss_of(model: TunedModel, given: FinetuneOptions) -> Callable[..., Any]:
    """The loss of a method, of parameters and a batch of `batches_of`."""
    if isinstance(model, VectorModel):
        return contrastive_loss(model, _number(given, "temperature"))
    return dpo_loss(model, _number(given, "beta")) if given.method == "dpo" else model.loss


def _number(given: FinetuneOptions, name: str) -> float:
    value: float = getattr(given, name)
    return value


def batches_of(model: TunedModel, path: Place, given: FinetuneOptions, **where: Any) -> RowBatches:
    """The batches of a file. `where` has the backend and the threads, for a reference. FormatError for a wrong file."""
    order = given.batch, given.seed
    if isinstance(model, VectorModel):
        ids, lengths = read_similar(path, model, given.length)
        counts = lengths.sum(axis=1)
        return HeldBatches((ids, lengths), counts, counts, *order)
    if given.method == "dpo":
        rows = _rows(model, path, given, **where)
        return HeldBatches(rows.arrays, rows.counts, (rows.targets != IGNORED).sum(axis=(1, 2)), *order)
    template = _template(model)

    def parse(place: str, line: bytes) -> Example:
        return example_of(place, line, model.tokenizer, template, given.length)

    return StreamedBatches(path, parse, given.length if given.pack else None, *order)


def validation_of(model: TunedModel, path: Place, given: FinetuneOptions, steps: int, **where: Any) -> Validation:
    """The batches of a validation file in its order, weighted by their targets; the last is filled up with rows that do not
    count. Batches of pairs are weighted by pairs, and the last has fewer; of similar texts it is left out, as each is told from
    as many others, unless it is the only one."""
    size, every = given.batch // given.micro_batches, given.validate_every or max(steps // 20, 1)
    if isinstance(model, VectorModel):
        similar = read_similar(path, model, given.length)
        whole = len(similar[0]) - len(similar[0]) % size or len(similar[0])
        batches = [tuple(a[i : i + size] for a in similar) for i in range(0, whole, size)]
        return Validation(batches, every, given.patience)
    rows = _rows(model, path, given, **where)
    if given.method == "dpo":
        batches = [tuple(a[i : i + size] for a in rows.arrays) for i in range(0, len(rows.ids), size)]
        return Validation(batches, every, given.patience, [float(len(batch[0])) for batch in batches])
    more = -len(rows.ids) % size
    ids, at, targets, *others = (np.concatenate([a, np.repeat(a[-1:], more, axis=0)]) for a in rows.arrays)
    if more:
        targets[-more:] = IGNORED
    batches = [tuple(a[i : i + size] for a in (ids, at, targets, *others)) for i in range(0, len(ids), size)]
    weights = [float((batch[2] != IGNORED).sum()) for batch in batches]
    return Validation(batches, every, given.patience, weights)


def _template(model: TunedModel) -> Callable[[], ChatTemplate]:
    return functools.cache(lambda: ChatTemplate.from_gguf(model.file.metadata, model.tokenizer.vocabulary.tokens))


def _rows(model: TunedModel, path: Place, given: FinetuneOptions, **where: Any) -> Rows:
    """The rows of a file, in memory."""
    template = _template(model)
    if given.method == "dpo":
        pairs = read_pairs(path, model.tokenizer, template, given.length)
        return with_reference(model, pair_rows(pairs), given.batch // given.micro_batches, given.compute, **where)
    examples = read_examples(path, model.tokenizer, template, given.length)
    return packed(examples, given.length) if given.pack else one_each(examples)
