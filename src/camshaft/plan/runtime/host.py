"""Host thunks: Python functions called by the native executor; an exception is raised when the run ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import cast

from camshaft.extent import Extent
from camshaft.plan.memory.binding import BoundMemory
from camshaft.plan.runtime.workers import Runner, Words, calling
from camshaft.plan.schedule import BufferSlice, HostFunction, Thunk

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class HostCalls:
    """The callbacks of one plan, run by `runner`, and the `failures` that they raised since. `skip` is the word that makes the
    executor skip the rest."""

    def __init__(self, memory: BoundMemory, active: Callable[[Extent], int], runner: Runner, skip: Words) -> None:
        self._runner, self._memory = runner, memory
        self._active = active
        self._word = skip
        self.failures: list[BaseException] = []
        self._callbacks: list[object] = []

    def entry(self, thunk: Thunk) -> int:
        """The address of a native entry that calls the thunk's function with its arguments as bytes and integers."""
        function, active = cast(HostFunction, thunk.entry), self._active
        args = [_view(thunk, arg, self._memory) if isinstance(arg, BufferSlice) else arg for arg in thunk.args]

        def call(_args: int, _first: int, _last: int) -> None:
            calling.runners.append(self._runner)
            try:
                function(*(active(arg) if isinstance(arg, Extent) else arg for arg in args))
            except BaseException as error:
                self.failures.append(error)
                self._word[0] = 1
            finally:
                calling.runners.pop()

        callback = _ENTRY(call)
        self._callbacks.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        return address

    def raise_failure(self) -> None:
        """Raises the first exception of the run that ended, with a note for each other one; then there is none."""
        if not self.failures:
            return
        first, *others = self.failures
        self.forget()
        _add_notes(first, others)
        raise first

    def forget(self) -> None:
        """Nothing has failed."""
        self.failures.clear()
        self._word[0] = 0

    def close(self) -> None:
        """Drops the callbacks: no executor may be inside them any more."""
        self._callbacks.clear()
        self._memory = BoundMemory(self._memory.arena[:0], {}, {})


def _add_notes(error: BaseException, others: Sequence[BaseException]) -> None:
    for other in others:
        error.add_note(f"another host thunk of the same run failed too: {type(other).__name__}: {other}")


def _view(thunk: Thunk, piece: BufferSlice, memory: BoundMemory) -> memoryview:
    view = memory.bytes_of(piece).data
    return view if thunk.writes(piece) else view.toreadonly()
