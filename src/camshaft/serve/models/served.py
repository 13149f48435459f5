"""Served: the model behind the HTTP interface, its name and its limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from camshaft.errors import ModelError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request_queue import QueueFullError
from camshaft.generate.tools.reasoning import Reasoning, reasoning_of
from camshaft.process import renewed
from camshaft.serve.requests.errors import HttpError

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.pooled.embedding_model import EmbeddingModel
    from camshaft.generate.pooled.reranker import Reranker
    from camshaft.generate.speech.speech_model import SpeechModel
    from camshaft.serve.models.drafts import DraftLease

T = TypeVar("T")
MOST_BODY_NBYTES = 8 << 20


@dataclass(frozen=True)
class _Pooled:
    """A model without an engine, its name, and the size of its file."""

    name: str
    model: Any
    nbytes: int = 0
    is_alive: bool = True
    shared_nbytes: Mapping[Hashable, int] = field(default_factory=dict)

    def start(self) -> None:
        """Nothing: it has no thread."""

    def close(self) -> None:
        """Release the model."""
        self.model.close()


@dataclass(frozen=True)
class Embedder(_Pooled):
    """A model that makes vectors of texts."""

    model: EmbeddingModel


@dataclass(frozen=True)
class Ranker(_Pooled):
    """A model that scores documents for a query."""

    model: Reranker


# Recordings that may wait for a speech model.
MOST_RECORDINGS = 16


@dataclass(frozen=True)
class Listener(_Pooled):
    """A model that turns speech into text, one recording at a time on a thread of its own: recordings take minutes."""

    model: SpeechModel
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "camshaft-speech"))
    _places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MOST_RECORDINGS))

    def __post_init__(self) -> None:
        renewed(self)

    def renew(self) -> None:
        """Have a thread of its own, in a forked child, and all places."""
        object.__setattr__(self, "_thread", ThreadPoolExecutor(1, "camshaft-speech"))
        object.__setattr__(self, "_places", threading.Semaphore(MOST_RECORDINGS))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do work on the thread when its turn comes. Raises QueueFullError if too many wait."""
        if not self._places.acquire(blocking=False):
            raise QueueFullError(f"{MOST_RECORDINGS} recordings wait already; try again later")
        future = self._thread.submit(work)
        future.add_done_callback(lambda done: self._places.release())
        return future

    def close(self) -> None:
        """End the thread after its recording, and release the model."""
        self._thread.shutdown(cancel_futures=True)
        super().close()


@dataclass(frozen=True)
class Served:
    """A model, the engine that runs it, and what the server needs to know of it. `created` is in seconds of Unix time.

    `aliases` are further names by which requests may call it; `slot_folder` has the files of saved slots; `draft` is the use
    of the model that drafts for the engine, and ends with it."""

    name: str
    engine: Engine
    most_body_nbytes: int = MOST_BODY_NBYTES
    created: int = field(default_factory=lambda: int(time.time()))
    embedder: Embedder | None = None
    aliases: frozenset[str] = frozenset()
    slot_folder: Path | None = None
    draft: DraftLease | None = None

    @property
    def nbytes(self) -> int:
        """The memory of the weights, of the cache of keys and values with every slot full, and of as many copies of states and
        windows as prompts may share."""
        return _nbytes(self.lm)

    @property
    def shared_nbytes(self) -> Mapping[Hashable, int]:
        """The same for the draft model, by a key that is equal for all models that share it."""
        return {} if self.draft is None else {self.draft.key: _nbytes(self.draft.lm)}

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken."""
        return self.engine.is_alive

    def start(self) -> None:
        """Begin the engine's thread."""
        self.engine.start()

    def close(self) -> None:
        """End the engine and release the model."""
        self.engine.close()
        self.lm.close()
        if self.draft is not None:
            self.draft.close()

    @property
    def lm(self) -> LanguageModel:
        """The model."""
        return self.engine.lm

    @cached_property
    def reasoning(self) -> Reasoning | None:
        """How the model thinks before its answers; None if its chat template has nothing of it."""
        try:
            return reasoning_of(self.lm.chat_template)
        except ModelError:  # without a template; chats are refused later
            return None

    def check_model(self, name: Any) -> None:
        """Raise HttpError if a request names another model."""
        if name is not None and name != self.name and name not in self.aliases:
            message = f"there is no model {str(name)[:100]!r}; this server has {self.name!r}"
            raise HttpError(404, message, code="model_not_found", param="model")

    @cached_property
    def most_text_nbytes(self) -> int:
        """Bytes of a text that cannot fit the context: it would need more tokens of the longest kind."""
        return self.lm.context * max(len(token.encode()) for token in self.lm.tokenizer.vocabulary.tokens)

    def check_text(self, text: str, param: str) -> None:
        """Raise HttpError for a text that cannot fit the context, before it is tokenized."""
        n = len(text.encode("utf-8", "surrogatepass"))
        if n > self.most_text_nbytes:
            message = f"'{param}' has {n:,} bytes, which cannot fit the context of {self.lm.context} tokens"
            raise HttpError(400, message, code="context_length_exceeded", param=param)


def _nbytes(lm: LanguageModel) -> int:
    """The memory of one model. Of experts in files it is that of those that are kept."""
    plan, cache = lm.describe_plan(), lm.plans.cache
    weights = plan.weights_nbytes - plan.mapped_nbytes + min(plan.resident_nbytes, plan.mapped_nbytes)
    return weights + cache.nbytes + (cache.prefixes.most_states_nbytes if cache.prefixes else 0)


def served_name(model: str) -> str:
    """The name under which a model is served: that of its file without the suffix, or its name in the catalogue."""
    name = PurePath(model.replace("\\", "/")).name
    return name.removesuffix(".gguf") or model
