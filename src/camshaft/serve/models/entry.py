"""A model of a server: how it is loaded, the state that it is in, and its use by one request."""

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
        """The memory of its own."""

    @property
    def shared_nbytes(self) -> Mapping[Hashable, int]:
        """The memory that it may share with others, by what tells which ones."""

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests."""

    def start(self) -> None:
        """Begin its thread."""

    def close(self) -> None:
        """End its thread, and release it."""


@dataclass(frozen=True)
class Card:
    """A model that can be loaded. `open` loads it, in any thread, and raises CamshaftError or OSError.

    nbytes: the memory that it is taken to need until it was loaded once: the size of its files.
    idle_s: how long it may be without requests before it is unloaded; None: for ever.
    queue: how many requests may wait until it is loaded.
    base: the name of the model to which this one adds an adapter.
    shared_nbytes: as `nbytes`, of what it may share with others, by what tells which ones."""

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
    """A model of the server, and the state that it is in. `nbytes` and `shared_nbytes` are measured when it is loaded. `used` is
    the clock at the end of its last request; `is_held` says whether its memory counts: from when it is opened until it is
    closed."""

    card: Card
    nbytes: int
    shared_nbytes: Mapping[Hashable, int]
    idle_s: float | None
    loaded: Loaded | None = None
    n_requests: int = 0
    used: float = 0.0
    is_held: bool = False
    loading: asyncio.Task[None] | None = None
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def state(self) -> str:
        """'loaded', 'loading' or 'unloaded'."""
        return "loaded" if self.loaded is not None else "loading" if self.loading is not None else "unloaded"


def memory_of(entries: Iterable[Entry]) -> int:
    """The memory of models together, in bytes: what several share counts once."""
    nbytes, shared = 0, dict[Hashable, int]()
    for entry in entries:
        nbytes += entry.nbytes
        for key, each in entry.shared_nbytes.items():  # a model that is not loaded yet knows the size of the file alone
            shared[key] = max(each, shared.get(key, 0))
    return nbytes + sum(shared.values())


@dataclass
class Lease:
    """The use of a model by one request, until `release`, which may be called twice."""

    entry: Entry
    model: Any  # that of its kind: a Served, an Embedder or another one
    _left: Callable[[], None]
    _is_over: bool = False

    def release(self) -> None:
        """End the use."""
        if not self._is_over:
            self._is_over = True
            self._left()


def load_error(card: Card, error: BaseException) -> BaseException:
    """What a request gets whose model cannot be loaded."""
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
    """A number of bytes as people read it."""
    return f"{nbytes / 1e6:,.0f} MB"


def twice_named(cards: Iterable[Card]) -> str | None:
    """The first name that two models have; None if there is none."""
    names = Counter(name for card in cards for name in (card.name, *card.aliases))
    return next((name for name, n in names.items() if n > 1), None)
