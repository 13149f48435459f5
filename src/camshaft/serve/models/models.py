"""Models: the models of a server, each loaded when a request names it and unloaded when idle or when memory is short."""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from camshaft.errors import SettingError
from camshaft.serve.models.entry import (
    CHAT,
    EMBEDDING,
    RERANK,
    SPEECH,
    Card,
    Entry,
    Lease,
    Loaded,
    load_error,
    megabytes,
    memory_of,
)
from camshaft.serve.models.served import MOST_BODY_NBYTES
from camshaft.serve.requests.errors import HttpError

WAIT_S = 60.0  # seconds that a request waits for models in use to leave memory for its own
_MOST_LISTED, _LONGEST_NAME = 8, 100
_NONE = {
    CHAT: "this server has no model that writes text",
    EMBEDDING: "this server makes no vectors of texts; start it with --embed MODEL",
    RERANK: "this server scores no documents; start it with --rerank MODEL",
    SPEECH: "this server transcribes no recordings; start it with --speech MODEL",
}
_FOR = {CHAT: "", EMBEDDING: " for vectors", RERANK: " for scores", SPEECH: " for recordings"}
_log = logging.getLogger("camshaft.serve")


class Models:
    """The models of a server by name; requests without a name get the first of the kind. Used only in the event loop's thread.

    limit_nbytes: memory for all loaded models together; to load one more, models without requests are unloaded,
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
        self.entries = {card.name: Entry(card, card.nbytes, card.shared_nbytes, card.idle_s) for card in cards}
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
        """Add a model that is loaded before the server starts. Beyond the limit, closes it and raises SettingError."""
        entry, limit = self.entries[name], self.limit_nbytes
        entry.nbytes, entry.shared_nbytes = loaded.nbytes, loaded.shared_nbytes
        needed = self._needed(entry)
        if limit is not None and needed > limit:
            loaded.close()
            raise SettingError(
                f"the models to load at the start, up to {name!r}, need {megabytes(needed)}; the limit is {megabytes(limit)}"
            )
        entry.loaded, entry.is_resident, entry.used = loaded, True, self._clock()

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
        """Wait until a model is loaded, even if the request that started the loading has left."""
        if entry.loading is None:
            entry.loading = asyncio.ensure_future(self._load(entry))
            entry.loading.add_done_callback(lambda done: _ended(entry, done))
        await asyncio.shield(entry.loading)

    async def _load(self, entry: Entry) -> None:
        opened = None
        if entry.loaded is not None:  # its engine has failed
            await self._close(entry)
        try:
            opened = await self._opened(entry)
            await self._make_room(entry, self._until())  # it may need more than its file
            opened.start()
        except BaseException as error:
            entry.is_resident = False
            self._freed.set()
            self.counts["failed"] += 1
            if opened is not None:
                await asyncio.to_thread(opened.close)
            raise load_error(entry.card, error) from error
        entry.loaded = opened
        self.counts["loaded"] += 1

    async def _opened(self, entry: Entry) -> Loaded:
        """Open a model once there is room. Its memory counts only from then on: otherwise two loading models would wait for each
        other's."""
        until = self._until()
        while True:
            await self._make_room(entry, until)
            async with self._opening:
                if not self._fits(entry):  # another model was opened meanwhile
                    continue
                entry.is_resident = True
                opened = await asyncio.to_thread(entry.card.open)
                entry.nbytes, entry.shared_nbytes = opened.nbytes, opened.shared_nbytes
                return opened

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._wait_s

    def _fits(self, entry: Entry) -> bool:
        return self.limit_nbytes is None or self._needed(entry) <= self.limit_nbytes

    async def _make_room(self, entry: Entry, until: float) -> None:
        """Unload others until a model fits the limit. Raises HttpError if it cannot, or others stay in use."""
        limit, name = self.limit_nbytes, entry.card.name
        alone = memory_of([entry])
        if limit is not None and alone > limit:
            message = f"the model {name!r} needs {megabytes(alone)}; the limit is {megabytes(limit)}"
            raise HttpError(503, message, code="no_memory")
        while not self._fits(entry):
            if await self._unload_one(entry):
                continue
            self._freed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._freed.wait()
            except TimeoutError:
                message = f"there is no memory for {name!r} while other models have requests"
                raise HttpError(503, message, code="no_memory") from None

    def _needed(self, entry: Entry) -> int:
        """The memory of a model and of the other resident ones."""
        return memory_of([entry, *(each for each in self.entries.values() if each.is_resident and each is not entry)])

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
        if loaded is None:
            return
        try:
            await asyncio.to_thread(loaded.close)
        except Exception:  # the request that waits for its memory must not fail for it
            _log.exception("closing %s failed", entry.card.name)
        entry.is_resident = False
        self.counts["unloaded"] += 1
        self._freed.set()

    async def unload_idle(self) -> None:
        """Unload the models that have had no requests for `idle_s`."""
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
        """Start the threads of the loaded models."""
        for _, loaded in self.in_memory():
            loaded.start()

    def close(self) -> None:
        """Release all models; may be called twice, and from any thread after the event loop has ended."""
        for entry, loaded in self.in_memory():
            loaded.close()
            entry.loaded, entry.is_resident = None, False


def _ended(entry: Entry, task: asyncio.Task[None]) -> None:
    entry.loading = None
    if not task.cancelled():
        task.exception()  # retrieved even if no request waits any more
