"""The spec of a model of a server: how it is loaded, and the card that loads it."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from camshaft.errors import ModelError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.preparation import prepare_draft
from camshaft.generate.engine.request_queue import MAX_QUEUE
from camshaft.generate.language_model import LanguageModel
from camshaft.generate.pooled.embedding_model import EmbeddingModel
from camshaft.generate.pooled.reranker import Reranker
from camshaft.generate.speculation.speculator import AUTO, NGRAM
from camshaft.generate.speech.speech_model import SpeechModel
from camshaft.models.files.pull import resolve_model
from camshaft.serve.models.drafts import SharedDrafts, draft_key
from camshaft.serve.models.entry import CHAT, EMBEDDING, RERANK, SPEECH, Card, Loaded, twice_named
from camshaft.serve.models.served import Embedder, Listener, Ranker, Served


@dataclass(frozen=True)
class ModelSpec:
    """How to load a model, and under which names. `options` are those of its class."""

    model: str
    name: str
    aliases: frozenset[str] = frozenset()
    kind: str = CHAT
    options: Mapping[str, Any] = field(default_factory=dict)
    queue: int = MAX_QUEUE
    time_limit_s: float = math.inf  # of an answer
    idle_s: float | None = None
    base: str | None = None
    preload: bool = False
    slot_folder: Path | None = None
    speculate: str | None = None  # 'auto', 'ngram', or a model

    def open(self, drafts: SharedDrafts | None = None) -> Loaded:
        """Load the model, with a draft model from `drafts` or one of its own. Raises what its class raises."""
        if self.kind == EMBEDDING:
            return Embedder(self.name, EmbeddingModel(self.model, **self.options), self.file_nbytes)
        if self.kind == RERANK:
            return Ranker(self.name, Reranker(self.model, **self.options), self.file_nbytes)
        if self.kind == SPEECH:
            return Listener(self.name, SpeechModel(self.model, **self.options), self.file_nbytes)
        with ExitStack() as opened:
            lm = opened.enter_context(LanguageModel(self.model, **self.options))
            draft = None
            if self.draft_model is not None:
                draft = opened.enter_context((drafts or SharedDrafts([self])).take(self))
            of = self.speculate if draft is None else draft.lm
            engine = Engine(lm, max_queue=self.queue, speculate=of, time_limit_s=self.time_limit_s, prepares=True)
            if draft is not None:
                prepare_draft(draft.lm)
            opened.pop_all()
        return Served(self.name, engine, aliases=self.aliases, slot_folder=self.slot_folder, draft=draft)

    @property
    def draft_model(self) -> str | None:
        """The path or name of the model that drafts, if one does."""
        return None if self.speculate in (AUTO, NGRAM) else self.speculate

    @property
    def file_nbytes(self) -> int:
        """The size of the model's file, and of those of its adapters that are files."""
        files = [path for path, _ in self.options.get("adapters", ())]
        files += [self.options["mmproj"]] if "mmproj" in self.options else []
        paths = [resolve_model(self.model), *map(Path, files)]
        return sum(path.stat().st_size for path in paths)

    @property
    def shared_nbytes(self) -> dict[Hashable, int]:
        """The size of the draft model's file, by a key that is equal for all models that share it."""
        return {} if self.draft_model is None else {draft_key(self): resolve_model(self.draft_model).stat().st_size}


def cards_of(specs: Sequence[ModelSpec]) -> list[Card]:
    """The cards of models, whose files are there. Raises ModelError for one that is not, SettingError for two of one name."""
    cards, drafts = [], SharedDrafts(specs)
    for spec in specs:
        for path, _ in spec.options.get("adapters", ()):
            if not os.path.exists(path):
                raise ModelError(f"no such adapter: {path}")
        if not os.path.exists(spec.options.get("mmproj", ".")):
            raise ModelError(f"no such vision file (mmproj): {spec.options['mmproj']}")
        opened, nbytes, shared = partial(spec.open, drafts), spec.file_nbytes, spec.shared_nbytes
        card = Card(spec.name, opened, spec.kind, spec.aliases, nbytes, spec.idle_s, spec.base, spec.queue, shared)
        cards.append(card)
    name = twice_named(cards)
    if name is not None:
        raise SettingError(f"two models are named {name!r}; give one of them another name")
    return cards
