"""A model of a server: how it is loaded, its state, and a request's lease of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from camshaft.errors import CamshaftError
from camshaft.generate.engine.request_queue import MAX_QUEUE
from camshaft.serve.requests.errors import HttpError

CHAT, EMBEDDING, RERANK, SPEECH = "chat", "embedding", "rerank", "speech"
_log = logging.getLogger("camshaft.serve")


class Loaded(Protocol):
    """A model in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes that only this model uses."""

    @property
    def shared_nbytes(self) -> Mapping[Hashable, int]:
        """Bytes that other models may share, by a key that is equal for all models that share them."""

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests."""

    def start(self) -> None:
        """Start its thread."""

    def close(self) -> None:
        """Stop its thread and free its memory."""


@dataclass(frozen=True)
class Card:
    """A model that can be loaded. `open` loads it, in any thread, and raises CamshaftError or OSError.

    nbytes: the memory it is expected to need until it has been loaded once: the size of its files.
    idle_s: seconds without requests after which it is unloaded; None: never.
    queue: how many requests may wait while it loads.
    base: the name of the model to which this one adds an adapter.
    shared_nbytes: as Loaded.shared_nbytes, expected like `nbytes`."""

    name: str
    open: Callable[[], Loaded]
    kind: str = CHAT
    aliases: frozenset[str] = frozenset()
    nbytes: int = 0
    idle_s: float | None = None
    base: str | None = None
    queue: int = MAX_QUEUE
    shared_nbytes: Mapping[Hashable, int] = field(default_factory=dict)


@dataclass
class Entry:
    """A model of the server with its state. `nbytes` and `shared_nbytes` are measured when it is loaded. `used` is the time at
    the end of its last request. `is_resident` is true from when it is opened until it is closed: its memory counts."""

    card: Card
    nbytes: int
    shared_nbytes: Mapping[Hashable, int]
    idle_s: float | None
    loaded: Loaded | None = None
    n_requests: int = 0
    used: float = 0.0
    is_resident: bool = False
    loading: asyncio.Task[None] | None = None
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def state(self) -> str:
        """'loaded', 'loading' or 'unloaded'."""
        return "loaded" if self.loaded is not None else "loading" if self.loading is not None else "unloaded"


def memory_of(entries: Iterable[Entry]) -> int:
    """Returns the bytes of several models; memory that they share counts once."""
    nbytes, shared = 0, dict[Hashable, int]()
    for entry in entries:
        nbytes += entry.nbytes
        for key, each in entry.shared_nbytes.items():  # until it is loaded, a model only knows its file's size
            shared[key] = max(each, shared.get(key, 0))
    return nbytes + sum(shared.values())


@dataclass
class Lease:
    """A request's use of a model until `release`, which may be called twice."""

    entry: Entry
    model: Any  # of the kind's class: Served, Embedder, Ranker or Listener
    _left: Callable[[], None]
    _is_over: bool = False

    def release(self) -> None:
        """End the use."""
        if not self._is_over:
            self._is_over = True
            self._left()


def load_error(card: Card, error: BaseException) -> BaseException:
    """Returns the error for a request whose model cannot be loaded."""
    what = f"the model {card.name!r} cannot be loaded"
    if isinstance(error, MemoryError):
        return HttpError(503, f"{what}: there is no memory", code="no_memory")
    if isinstance(error, CamshaftError | OSError):
        return HttpError(500, f"{what}: {error}", code="model_load_failed")
    if not isinstance(error, HttpError | asyncio.CancelledError):
        _log.error("loading %s failed", card.name, exc_info=error)
        return HttpError(500, f"{what}; the server's log says why", code="model_load_failed")
    return error


def megabytes(nbytes: int) -> str:
    """Formats a number of bytes: 1,234 MB."""
    return f"{nbytes / 1e6:,.0f} MB"


def twice_named(cards: Iterable[Card]) -> str | None:
    """Returns the first name that two models share, or None."""
    names = Counter(name for card in cards for name in (card.name, *card.aliases))
    return next((name for name, n in names.items() if n > 1), None)
