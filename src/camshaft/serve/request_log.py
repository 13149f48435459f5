"""The log of requests: a JSON object a line when one has ended, without what prompts and answers say unless that is wanted."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from camshaft.errors import SettingError, reason_of

STDERR = Path("-")
_MOST_PATH = 200  # characters of an address
_log = logging.getLogger("camshaft.serve")


@dataclass(frozen=True)
class RequestLog:
    """Writes lines to a file; `with_texts`: also the texts of prompts and answers."""

    file: TextIO
    with_texts: bool = False

    def write(self, record: dict[str, Any]) -> None:
        """Write one line. If that fails, for example on a full disk, the error is logged and requests continue."""
        try:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        except OSError as error:
            _log.error("the log of requests cannot be written: %s", error)


@dataclass(frozen=True)
class LogPlace:
    """Where a log of requests is to be, and whether it has texts."""

    path: Path
    with_texts: bool = False


def open_log(place: LogPlace) -> RequestLog:
    """The log in a file, to which lines are added, or on standard error (`-`). Raises SettingError if it cannot be opened."""
    if place.path == STDERR:
        return RequestLog(sys.stderr, place.with_texts)
    try:
        number = os.open(place.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise SettingError(f"--log {place.path}: {reason_of(error)}") from error
    return RequestLog(open(number, "a", encoding="utf-8"), place.with_texts)


@contextmanager
def opened(place: LogPlace) -> Iterator[RequestLog]:
    """The log until the block ends. Raises as `open_log`."""
    log = open_log(place)
    try:
        yield log
    finally:
        if log.file is not sys.stderr:
            log.file.close()


class Logged:
    """The application; each of its requests is a line of the log once it has ended."""

    def __init__(self, app: ASGIApp, log: RequestLog) -> None:
        self._app, self._log = app, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        scope.setdefault("state", {})
        try:
            await self._app(scope, receive, noted)
        finally:
            self._log.write(self._record(scope, status, time.perf_counter() - begun))

    def _record(self, scope: Scope, status: int, seconds: float) -> dict[str, Any]:
        state: MutableMapping[str, Any] = scope["state"]
        record = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": scope["path"][:_MOST_PATH],
            "status": status,
            "seconds": round(seconds, 6),
        }
        if "code" in state:
            record["error"] = state["code"]
        if "entry" in state:
            record["model"] = state["entry"].card.name
        if "answers" in state:
            record |= state["answers"].record(with_texts=self._log.with_texts)
        return record
