"""The spec of a model of a server: how it is loaded, and the card that loads it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from camshaft.errors import ModelError, SettingError
from camshaft.generate.engine.draft_followers import MOST_DRAFTED, prepare
from camshaft.generate.engine.engine import MAX_QUEUE, Engine
from camshaft.generate.language_model import DEFAULT_SESSIONS, LanguageModel
from camshaft.generate.pooled.embedding_model import EmbeddingModel
from camshaft.generate.pooled.reranker import Reranker
from camshaft.generate.speculation.speculator import NGRAM, Speculate
from camshaft.generate.speech.speech_model import SpeechModel
from camshaft.models.files.pull import resolve_model
from camshaft.serve.models.entry import CHAT, EMBEDDING, RERANK, SPEECH, Card, Loaded, twice_named
from camshaft.serve.models.served import Embedder, Listener, Ranker, Served

# Options of a model that its draft model has too.
_OF_DRAFT = ("backend", "threads", "context", "activations", "kv_cache")


@dataclass(frozen=True)
class ModelSpec:
    """How to load a model, and under which names. `options` are those of its class."""

    model: str
    name: str
    aliases: frozenset[str] = frozenset()
    kind: str = CHAT
    options: Mapping[str, Any] = field(default_factory=dict)
    queue: int = MAX_QUEUE
    idle_s: float | None = None
    base: str | None = None
    preload: bool = False
    slot_folder: Path | None = None
    speculate: str | None = None  # 'ngram', or a model

    def open(self) -> Loaded:
        """Load the model. Raises what its class raises."""
        if self.kind == EMBEDDING:
            return Embedder(self.name, EmbeddingModel(self.model, **self.options), self.file_nbytes)
        if self.kind == RERANK:
            return Ranker(self.name, Reranker(self.model, **self.options), self.file_nbytes)
        if self.kind == SPEECH:
            return Listener(self.name, SpeechModel(self.model, **self.options), self.file_nbytes)
        with ExitStack() as opened:
            lm = opened.enter_context(LanguageModel(self.model, **self.options))
            drafts: Speculate | None = self.speculate
            draft = None
            if self.draft_model is not None:
                options = {name: self.options[name] for name in _OF_DRAFT if name in self.options}
                sessions = min(MOST_DRAFTED, self.options.get("sessions", DEFAULT_SESSIONS))
                drafts = draft = opened.enter_context(LanguageModel(self.draft_model, sessions=sessions, **options))
            engine = Engine(lm, max_queue=self.queue, speculate=drafts)
            if draft is not None:
                prepare(draft)
            opened.pop_all()
        return Served(self.name, engine, aliases=self.aliases, slot_folder=self.slot_folder, draft=draft)

    @property
    def draft_model(self) -> str | None:
        """The path or name of the model that drafts, if one does."""
        return None if self.speculate == NGRAM else self.speculate

    @property
    def file_nbytes(self) -> int:
        """The size of the model's file, of those of its adapters that are files, and of the draft model's."""
        files = [path for path, _ in self.options.get("adapters", ())]
        files += [self.options["mmproj"]] if "mmproj" in self.options else []
        models = [self.model] if self.draft_model is None else [self.model, self.draft_model]
        paths = [*map(resolve_model, models), *map(Path, files)]
        return sum(path.stat().st_size for path in paths)


def cards_of(specs: Sequence[ModelSpec]) -> list[Card]:
    """The cards of models, whose files are there. Raises ModelError for one that is not, SettingError for two of one name."""
    cards = []
    for spec in specs:
        for path, _ in spec.options.get("adapters", ()):
            if not os.path.exists(path):
                raise ModelError(f"no such adapter: {path}")
        if not os.path.exists(spec.options.get("mmproj", ".")):
            raise ModelError(f"no such vision file (mmproj): {spec.options['mmproj']}")
        card = Card(spec.name, spec.open, spec.kind, spec.aliases, spec.file_nbytes, spec.idle_s, spec.base, spec.queue)
        cards.append(card)
    name = twice_named(cards)
    if name is not None:
        raise SettingError(f"two models are named {name!r}; give one of them another name")
    return cards
