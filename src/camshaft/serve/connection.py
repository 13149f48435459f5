"""Connections that end when their peers keep the server waiting: idle, with half a request, or without reading the answer."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

KEEP_OPEN_S = 30.0  # how long a connection may be without a whole head of a request
STALL_S = 60.0  # how long a peer may leave an answer unread, when no more of it fits between
MOST_CONNECTIONS = 4096
_OTHER_FILES = 128


def most_connections() -> int:
    """How many connections this process may have: MOST_CONNECTIONS, or fewer by its limit of open files."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft - _OTHER_FILES))


class Connection(H11Protocol):
    """uvicorn's connection with limits. `idle` has a server's connections without a request, the longest idle first.

    One more than `most` closes the first of them, or itself if all have requests, so that idle connections do not lock others
    out."""

    def __init__(self, *given: Any, idle: dict[Connection, None], most: int, **named: Any) -> None:
        super().__init__(*given, **named)
        self._idle, self._most = idle, most
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the connection, and wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            next(iter(self._idle), self)._give_way()
        if self in self.connections:
            self._begin_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._end_idle()
        self._end_stall()

    def data_received(self, data: bytes) -> None:
        """Read more of a request; its head ends the idle time."""
        super().data_received(data)
        if not self._is_idle:
            self._end_idle()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless its head is here."""
        super().on_response_complete()
        if self._is_idle and not self.transport.is_closing():
            self._begin_idle()

    def pause_writing(self) -> None:
        """Bound how long the peer leaves the answer unread."""
        super().pause_writing()
        self._end_stall()
        self._stall_timer = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer reads."""
        super().resume_writing()
        self._end_stall()

    def _give_way(self) -> None:
        """End at once; counted out before the transport says so, which is after further connections were made."""
        self._end_idle()
        self.connections.discard(self)
        self.transport.abort()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _begin_idle(self) -> None:
        self._end_idle()
        self._idle[self] = None
        self._head_timer = self.loop.call_later(KEEP_OPEN_S, self.transport.abort)

    def _end_idle(self) -> None:
        self._idle.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
