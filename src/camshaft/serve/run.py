"""The server: a socket, and the HTTP application that answers on it until it is asked to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn

from camshaft.errors import SettingError, reason_of
from camshaft.serve.app import make_app
from camshaft.serve.connection import KEEP_OPEN_S, Connection, most_connections
from camshaft.serve.guard import Guard
from camshaft.serve.models.models import Models
from camshaft.serve.request_log import RequestLog

GRACE_S = 30  # how long answers in progress may take after the signal to stop
BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0 is any free one. Raises SettingError if that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise SettingError(f"host {host!r}, port {port}: {reason_of(error)}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise SettingError(f"cannot listen at host {host!r}, port {port}: {reason_of(error)}") from error
    return listening


def url_of(listening: socket.socket) -> str:
    """The address of a listening socket as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """A server that says when it takes requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def make_server(
    models: Models, guard: Guard, ready: Callable[[], None], log: RequestLog | None = None
) -> uvicorn.Server:
    """A server whose `run(sockets=[...])` serves until SIGINT, SIGTERM or `should_exit`, and calls `ready` when it has begun.

    Then it finishes answers in progress within GRACE_S; a second signal ends them at once."""
    config = uvicorn.Config(
        make_app(models, guard, log),
        log_config=None,
        access_log=False,
        # By a class, not by name: what else is installed changes nothing. There are no web sockets here.
        http=cast(Any, partial(Connection, idle={}, most=most_connections())),
        ws="none",
        timeout_keep_alive=int(KEEP_OPEN_S),
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    return _Server(config, ready)
