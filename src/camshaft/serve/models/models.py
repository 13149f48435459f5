"""Models: those that a server has, each loaded when a request names it, and unloaded when it is idle or memory is short."""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from camshaft.errors import CamshaftError
from camshaft.generate.engine.engine import MAX_QUEUE
from camshaft.serve.models.served import MOST_BODY_NBYTES
from camshaft.serve.requests.errors import HttpError

CHAT, EMBEDDING, RERANK, SPEECH = "chat", "embedding", "rerank", "speech"
WAIT_S = 60.0  # how long a request waits until models that others use leave memory for its own
_MOST_LISTED, _LONGEST_NAME = 8, 100
_NONE = {
    CHAT: "this server has no model that writes text",
    EMBEDDING: "this server makes no vectors of texts; start it with --embed MODEL",
    RERANK: "this server scores no documents; start it with --rerank MODEL",
    SPEECH: "this server transcribes no recordings; start it with --speech MODEL",
}
_FOR = {CHAT: "", EMBEDDING: " for vectors", RERANK: " for scores", SPEECH: " for recordings"}
_log = logging.getLogger("camshaft.serve")


class Loaded(Protocol):
    """A model in memory."""

    @property
    def nbytes(self) -> int:
        """Its memory."""

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
    base: the name of the model to which this one adds an adapter."""

    name: str
    open: Callable[[], Loaded]
    kind: str = CHAT
    aliases: frozenset[str] = frozenset()
    nbytes: int = 0
    idle_s: float | None = None
    base: str | None = None
    queue: int = MAX_QUEUE


@dataclass
class Entry:
    """A model of the server, and the state that it is in. `used` is the clock at the end of its last request; `is_held` says
    whether its memory counts: from before it is loaded until it is closed."""

    card: Card
    nbytes: int
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


class Models:
    """The models of a server by name; requests without a name get the first of its kind. Belongs to the event loop's thread.

    limit_nbytes: memory that all loaded models together may have; to load another one, those without requests are unloaded,
    the least recently used first.
    clock: the time in seconds, by which idle models are found."""

    def __init__(
        self,
        cards: Sequence[Card],
        *,
        limit_nbytes: int | None = None,
        wait_s: float = WAIT_S,
        most_body_nbytes: int = MOST_BODY_NBYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.entries = {card.name: Entry(card, card.nbytes, card.idle_s) for card in cards}
        self.limit_nbytes, self.most_body_nbytes = limit_nbytes, most_body_nbytes
        self.created = int(time.time())
        self.counts: Counter[str] = Counter()  # of loads, unloads and loads that failed
        self._wait_s, self._clock = wait_s, clock
        self._by_name = {
            name: entry for entry in self.entries.values() for name in (entry.card.name, *entry.card.aliases)
        }
        self._freed = asyncio.Event()
        self._opening = asyncio.Lock()  # one at a time: each uses all the cores

    def put(self, name: str, loaded: Loaded) -> None:
        """Have a model in memory; before the server starts."""
        entry = self.entries[name]
        entry.loaded, entry.nbytes, entry.is_held, entry.used = loaded, loaded.nbytes, True, self._clock()

    def in_memory(self) -> list[tuple[Entry, Loaded]]:
        """The models that are loaded."""
        return [(entry, entry.loaded) for entry in self.entries.values() if entry.loaded is not None]

    def find(self, name: str | None, kind: str | None = CHAT) -> Entry:
        """The model of a name, of one kind unless that is None. Raises HttpError, with the nearest name."""
        of_kind = [entry for entry in self.entries.values() if kind in (None, entry.card.kind)]
        if kind is not None and not of_kind:
            raise HttpError(404, _NONE[kind], code="model_not_found", param="model")
        found = of_kind[0] if name is None else self._by_name.get(name)
        if found is not None and found in of_kind:
            return found
        names = [entry.card.name for entry in of_kind]
        near = difflib.get_close_matches(
            str(name)[:_LONGEST_NAME], [n for n, e in self._by_name.items() if e in of_kind], 1, 0.5
        )
        nearest = f"the nearest is {near[0]!r}; " if near and len(names) > 1 else ""
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        listed = ", ".join(map(repr, names[:_MOST_LISTED])) + more
        message = (
            f"there is no model {str(name)[:_LONGEST_NAME]!r}{_FOR[kind or CHAT]}; {nearest}this server has {listed}"
        )
        raise HttpError(404, message, code="model_not_found", param="model")

    async def lease(self, name: str | None, kind: str | None = CHAT) -> Lease:
        """Use a model, after it has been loaded. Raises HttpError if there is none, or it cannot be loaded."""
        entry = self.find(name, kind)
        if entry.loaded is None and entry.n_requests >= entry.card.queue:
            message = f"{entry.n_requests} requests wait until the model is loaded; the limit is {entry.card.queue}"
            raise HttpError(429, message, code="queue_full")
        entry.n_requests += 1  # so that it is not unloaded
        try:
            async with entry.closing:
                pass
            if entry.loaded is None or not entry.loaded.is_alive:
                await self._ensure(entry)
            assert entry.loaded is not None
        except BaseException:
            self._left(entry)
            raise
        return Lease(entry, entry.loaded, partial(self._left, entry))

    def _left(self, entry: Entry) -> None:
        entry.n_requests -= 1
        entry.used = self._clock()
        self._freed.set()

    async def _ensure(self, entry: Entry) -> None:
        """Wait until a model is loaded, also if another request has begun that, or left."""
        if entry.loading is None:
            entry.loading = asyncio.ensure_future(self._load(entry))
            entry.loading.add_done_callback(lambda done: _ended(entry, done))
        await asyncio.shield(entry.loading)

    async def _load(self, entry: Entry) -> None:
        card, opened = entry.card, None
        if entry.loaded is not None:  # its engine has failed
            await self._close(entry)
        try:
            await self._make_room(entry)
            async with self._opening:
                opened = await asyncio.to_thread(card.open)
            entry.nbytes = opened.nbytes
            await self._make_room(entry)
            opened.start()
        except BaseException as error:
            entry.is_held = False
            self._freed.set()
            self.counts["failed"] += 1
            if opened is not None:
                await asyncio.to_thread(opened.close)
            raise _failed(card, error) from error
        entry.loaded = opened
        self.counts["loaded"] += 1

    async def _make_room(self, entry: Entry) -> None:
        """Unload others until a model fits the limit, and count it. Raises HttpError if it cannot, or others stay in use."""
        limit, name = self.limit_nbytes, entry.card.name
        if limit is not None and entry.nbytes > limit:
            message = f"the model {name!r} needs {_mb(entry.nbytes)}; the limit is {_mb(limit)}"
            raise HttpError(503, message, code="no_memory")
        until = asyncio.get_running_loop().time() + self._wait_s
        while limit is not None and entry.nbytes + self._held_beside(entry) > limit:
            if await self._unload_one(entry):
                continue
            self._freed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._freed.wait()
            except TimeoutError:
                message = f"there is no memory for {name!r} while other models have requests"
                raise HttpError(503, message, code="no_memory") from None
        entry.is_held = True

    def _held_beside(self, entry: Entry) -> int:
        return sum(each.nbytes for each in self.entries.values() if each.is_held and each is not entry)

    async def _unload_one(self, beside: Entry) -> bool:
        """Unload the least recently used model that has no requests; False if there is none."""
        idle = [each for each, _ in self.in_memory() if not each.n_requests and each is not beside]
        if idle:
            await self.unload(min(idle, key=lambda each: each.used))
        return bool(idle)

    async def unload(self, entry: Entry) -> None:
        """Release a model, unless it has requests."""
        async with entry.closing:
            if entry.loaded is not None and not entry.n_requests:
                await self._close(entry)

    async def _close(self, entry: Entry) -> None:
        loaded, entry.loaded = entry.loaded, None
        if loaded is not None:
            await asyncio.to_thread(loaded.close)
            entry.is_held = False
            self.counts["unloaded"] += 1
            self._freed.set()

    async def unload_idle(self) -> None:
        """Unload the models that were without requests for their `idle_s`."""
        now = self._clock()
        for entry, _ in self.in_memory():
            idle_s = entry.idle_s
            if idle_s is not None and not entry.n_requests and now - entry.used >= idle_s:
                await self.unload(entry)

    def left_s(self, entry: Entry) -> float | None:
        """The seconds until a model is unloaded if no request comes; None: never."""
        idle_s = entry.idle_s
        return None if idle_s is None else max(idle_s - (0 if entry.n_requests else self._clock() - entry.used), 0.0)

    def start(self) -> None:
        """Begin the threads of the models that are loaded."""
        for _, loaded in self.in_memory():
            loaded.start()

    def close(self) -> None:
        """Release all models; may be called twice, and from any thread after the event loop has ended."""
        for entry, loaded in self.in_memory():
            loaded.close()
            entry.loaded, entry.is_held = None, False


def _ended(entry: Entry, task: asyncio.Task[None]) -> None:
    entry.loading = None
    if not task.cancelled():
        task.exception()  # retrieved, also if nobody waits any more


def _failed(card: Card, error: BaseException) -> BaseException:
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


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


def twice_named(cards: Iterable[Card]) -> str | None:
    """The first name that two models have; None if there is none."""
    names = Counter(name for card in cards for name in (card.name, *card.aliases))
    return next((name for name, n in names.items() if n > 1), None)
