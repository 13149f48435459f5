"""Slots: which sequences have a place in the KV cache, and who gets the next one.

A generation waits for a slot while another thread's generation will free one; those that wait are served in order. A
conversation between two turns keeps its slot only until somebody else needs it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from camshaft.process import ForkLock, renewed

# Seconds after which one that waits looks again whether the threads that it waits for are still alive.
LOOK_AGAIN_S = 1.0


@dataclass(eq=False)
class _Waiter:
    """A thread that waits. Its ticket receives a slot, or None if the model is closed."""

    thread: int = field(default_factory=threading.get_ident)
    ticket: SimpleQueue[int | None] = field(default_factory=SimpleQueue)


class Slots:
    """The numbers 0 to n - 1, each free or taken. All methods may be called from any thread; `release` also from destructors,
    so it takes no lock: operations on lists, dicts, deques and simple queues are atomic."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._free = list(range(n - 1, -1, -1))
        self._waiting: deque[_Waiter] = deque()
        self._users: dict[int, int] = {}  # slot -> the thread that advances its generation
        self._kept: set[int] = set()  # slots of sessions, which only their owners close
        self._idle: dict[int, weakref.ref[Callable[[], None]]] = {}  # slot -> what frees it, idle for longest first
        self._entering = ForkLock()  # of two threads that begin to wait for each other, the second sees the first
        self.is_closed = False
        renewed(self)

    @property
    def n_free(self) -> int:
        """The number of free slots."""
        return len(self._free)

    def end_idle(self) -> bool:
        """Free the slots of idle conversations; whether all are free then."""
        while self._end_an_idle_one():
            pass
        return len(self._free) == self._n

    def take(self, *, wait: bool) -> int | None:
        """Take a slot, after those who wait already; None if there is none, or if the model is closed.

        With `wait`, wait as long as another thread will free one."""
        waiter = _Waiter()
        try:
            with self._entering:
                self._waiting.append(waiter)
                self._serve()
                if waiter.ticket.empty() and not (wait and self._will_free(waiter)):
                    self._withdraw(waiter)
                    return None
            while True:
                try:
                    return waiter.ticket.get(timeout=LOOK_AGAIN_S)
                except Empty:
                    if not self._will_free(waiter):
                        self._withdraw(waiter)
                        return None
        except BaseException:
            self._withdraw(waiter)
            raise

    def _will_free(self, waiter: _Waiter) -> bool:
        """Whether a slot is on its way to somebody, or its user is another thread that runs and does not wait itself."""
        alive = {thread.ident for thread in threading.enumerate()}
        runs = alive - {each.thread for each in list(self._waiting)} - {waiter.thread}
        users = (self._users.get(slot) for slot in range(self._n) if slot not in self._kept)
        return any(user is None or user in runs for user in users)

    def _withdraw(self, waiter: _Waiter) -> None:
        try:
            self._waiting.remove(waiter)
        except ValueError:  # it was served meanwhile
            with suppress(Empty):
                slot = waiter.ticket.get(timeout=LOOK_AGAIN_S)
                if slot is not None:
                    self.release(slot)

    def _serve(self) -> None:
        """Give free slots to those who wait, then those of idle conversations."""
        while self._waiting:
            slot = None
            try:
                slot = None if self.is_closed else self._free.pop()
            except IndexError:
                if self._end_an_idle_one():  # calls `release`
                    continue
                return
            try:
                waiter = self._waiting.popleft()
            except IndexError:
                if slot is not None:
                    self._free.append(slot)
                continue
            if slot is not None:
                self._users[slot] = waiter.thread
            waiter.ticket.put(slot)

    def _end_an_idle_one(self) -> bool:
        for slot in list(self._idle):
            found = self._idle.pop(slot, None)
            end = found() if found is not None else None
            if end is not None:
                end()
                return True
        return False

    def use(self, slot: int) -> None:
        """The calling thread advances a generation, which frees the slot at its end."""
        self._users[slot] = threading.get_ident()

    def keep(self, slot: int) -> None:
        """The slot's owner closes it later; this does not wait for that."""
        self._kept.add(slot)

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._users.pop(slot, None)
        self._idle.pop(slot, None)
        self._kept.discard(slot)
        self._free.append(slot)
        self._serve()

    def rest(self, slot: int, end: weakref.ref[Callable[[], None]]) -> None:
        """The slot is not in use; `end` frees it when somebody needs it."""
        self._users.pop(slot, None)
        self._idle[slot] = end
        self._serve()

    def wake(self, slot: int, end: weakref.ref[Callable[[], None]]) -> bool:
        """Use a resting slot again. False if somebody else has it now."""
        found = self._idle.pop(slot, None)
        if found is not None and found is not end:
            self._idle[slot] = found
        return found is end

    def close(self) -> None:
        """Let all who wait go without a slot."""
        self.is_closed = True
        self._serve()

    def renew(self) -> None:
        """Forget the threads of the parent, in a forked child."""
        self._waiting.clear()
