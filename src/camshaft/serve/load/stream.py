"""An HTTP/1.1 client that reads server-sent events as they come. Standard library only; every request has its own connection."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from camshaft.errors import CamshaftError, SettingError

MOST_LINE_NBYTES = 16 << 20  # an event is a line; those of a whole answer's log probabilities are long
MOST_ERROR_CHARACTERS = 200
_PORTS = {"http": 80, "https": 443}


class AnswerError(CamshaftError):
    """A server's answer is an error, or not one of its API."""


@dataclass(frozen=True)
class Target:
    """A server: the address of its interface without a slash at the end, such as http://127.0.0.1:8080/v1, and an API key."""

    url: str
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in _PORTS and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            known = False
        if not known:
            raise SettingError(
                f"the address {self.url!r:.100} has no scheme and host; wanted http://HOST:PORT or https://HOST"
            )
        if not self.url.isascii() or any(c <= " " for c in self.url) or not (self.key or "").isprintable():
            raise SettingError(f"the address {self.url!r:.100} or its key has characters that HTTP does not take")

    def head(self, method: str, path: str, nbytes: int) -> bytes:
        """The head of a request."""
        parts = urlsplit(self.url)
        lines = [f"{method} {parts.path}{path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
        lines += ["Content-Type: application/json", f"Content-Length: {nbytes}", "Accept-Encoding: identity"]
        lines += [f"Authorization: Bearer {self.key}"] if self.key else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def target_of(url: str, key: str | None = None) -> Target:
    """The target of an address, with /v1 added unless it ends with it. Raises SettingError for an invalid address."""
    url = url.rstrip("/")
    return Target(url if url.endswith("/v1") else url + "/v1", key)


@asynccontextmanager
async def _asking(target: Target, method: str, path: str, body: Any) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yields the parts of the body of an answer with status 200. Raises AnswerError, OSError."""
    parts = urlsplit(target.url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or _PORTS[parts.scheme]
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context, limit=MOST_LINE_NBYTES)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(target.head(method, path, len(data)) + data)
        status, headers = await _head_of(reader)
        if status != 200:
            raise AnswerError(f"status {status}: {_error_text(await _all(_body(reader, headers)))}")
        yield _body(reader, headers)
    except (ValueError, asyncio.IncompleteReadError) as error:
        raise AnswerError(f"the answer is not HTTP: {str(error)[:MOST_ERROR_CHARACTERS]}") from None
    finally:
        writer.transport.abort()


async def _head_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    protocol, _, status = lines[0].partition(" ")
    if not protocol.startswith("HTTP/1."):
        raise ValueError(f"it begins with {lines[0][:60]!r}")
    pairs = [line.partition(":") for line in lines[1:] if line]
    return int(status[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """Yields the parts of a body: chunked, of a given length, or up to the end of the connection."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while n := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            yield (await reader.readexactly(n + 2))[:-2]
        return
    left = int(headers["content-length"]) if "content-length" in headers else None
    while left is None or left:
        part = await reader.read(65536 if left is None else min(left, 65536))
        if not part:
            if left:
                raise asyncio.IncompleteReadError(b"", left)
            return
        yield part
        left = None if left is None else left - len(part)


async def _all(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


def _error_text(data: bytes) -> str:
    """The message of an error's body."""
    text = data.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        text = error if isinstance(error, str) else str(error["message"])
    except (ValueError, KeyError, TypeError):
        pass
    return " ".join(text.split())[:MOST_ERROR_CHARACTERS] or "without a message"


async def get(target: Target, path: str) -> Any:
    """The JSON at a path. Raises AnswerError, OSError."""
    async with _asking(target, "GET", path, None) as parts:
        data = await _all(parts)
    try:
        return json.loads(data)
    except ValueError:
        raise AnswerError(f"{path} is not JSON: {_error_text(data)}") from None


async def post_stream(target: Target, path: str, body: Any) -> AsyncGenerator[Any, None]:
    """The JSON of each server-sent event up to the end mark. Raises AnswerError, also for an event that is an error; OSError."""
    async with _asking(target, "POST", path, body) as parts:
        rest = b""
        async for part in parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                name, _, data = line.partition(b":")
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                yield _event(data)
    raise AnswerError("the stream ended without its end mark")


def _event(data: bytes) -> Any:
    try:
        event = json.loads(data)
    except ValueError:
        raise AnswerError(f"an event is not JSON: {_error_text(data)}") from None
    if not isinstance(event, dict) or event.get("error"):
        raise AnswerError(f"an event is an error: {_error_text(data)}")
    return event
