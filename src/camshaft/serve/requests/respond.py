"""Answer an HTTP request with generated text: whole, or as a stream that a disconnected client ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from camshaft.errors import CamshaftError
from camshaft.generate.generation import TokenLogprob
from camshaft.serve.models.entry import CHAT, EMBEDDING, RERANK, SPEECH
from camshaft.serve.models.served import Served
from camshaft.serve.requests.answers import Answer, Answers, Job, Usage
from camshaft.serve.requests.errors import HttpError, http_error

T = TypeVar("T")
KEEP_ALIVE_S = 15.0
BODY_S = 60.0  # how long the body of a request may take to arrive
CLIENT_CLOSED = 499
BODIES_NBYTES = 256 << 20  # of all requests together
# Longer bodies are worked on one at a time, for each kind of model: tokenizing 250 KB takes 25 MB, and 8 MB 600 MB, which the C
# library keeps for each thread that did so.
LONG_NBYTES = 64 << 10
_LONG = {kind: ThreadPoolExecutor(1, f"camshaft-long-{kind}") for kind in (CHAT, EMBEDDING, RERANK, SPEECH)}
_log = logging.getLogger("camshaft.serve")


class Shape(Protocol):
    """How one interface writes answers. The methods for streams give what is sent, framed."""

    @property
    def media_type(self) -> str:
        """The Content-Type of a stream."""

    @property
    def keep_alive(self) -> bytes:
        """A message that clients ignore, sent after KEEP_ALIVE_S of silence; may be empty."""

    def begin(self) -> Iterable[bytes]:
        """Before the first text."""

    def piece(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """A piece of the answer `index`."""

    def end_answer(self, index: int, reason: str, stop: str | None) -> Iterable[bytes]:
        """The end of the answer `index`; `stop` is the stop string that was reached."""

    def end(self, usage: Usage) -> Iterable[bytes]:
        """The end of all answers."""

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """The end of a stream that failed after its beginning."""

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """All answers at once."""


@dataclass(frozen=True)
class Asked:
    """A request that was read: what to generate, and how its answer is written."""

    job: Job
    shape: Shape
    is_stream: bool


# Reads the body of a request, a JSON value; may take seconds. Raises HttpError.
Reader = Callable[[Any, Served], Asked]


class Json(JSONResponse):
    """A JSON answer; lone surrogates, which a request may have and UTF-8 has not, become question marks."""

    def render(self, content: Any) -> bytes:
        """The JSON text."""
        return compact(content)


def compact(value: Any) -> bytes:
    """A value as JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + compact(data) + b"\n\n"


class Stream(StreamingResponse):
    """A stream that calls `on_end` however it ends, also if its client is gone before it begins."""

    def __init__(self, parts: AsyncIterator[bytes], media_type: str, on_end: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(parts, media_type=media_type, headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def body_of(request: Request) -> Any:
    """The JSON value of the request's body."""
    return request.state.body


@dataclass
class BodyRoom:
    """The bytes of bodies that requests have in memory, those that wait too."""

    most_nbytes: int = BODIES_NBYTES
    nbytes: int = 0

    def take(self, nbytes: int) -> None:
        """Count some bytes more. Raises HttpError beyond the limit."""
        if self.nbytes + nbytes > self.most_nbytes:
            message = f"other requests have bodies of {self.nbytes:,} bytes in all; the limit is {self.most_nbytes:,}"
            raise HttpError(503, message, code="busy")
        self.nbytes += nbytes


@dataclass
class CountedBody:
    """The body of one request, counted until `release`."""

    room: BodyRoom
    nbytes: int = 0

    async def read(self, request: Request, most_nbytes: int) -> bytes:
        """The whole body. Raises HttpError if it is larger than `most_nbytes`, has no room, or does not arrive within BODY_S."""
        parts = []
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    if self.nbytes + len(part) > most_nbytes:
                        raise HttpError(413, f"the body has more than {most_nbytes:,} bytes", code="request_too_large")
                    self.room.take(len(part))
                    self.nbytes += len(part)
                    parts.append(part)
        except TimeoutError:
            raise HttpError(408, f"the body did not arrive within {BODY_S:g} s", code="request_timeout") from None
        return b"".join(parts)

    def release(self) -> None:
        """Count the body no more; may be called twice."""
        self.room.nbytes -= self.nbytes
        self.nbytes = 0


async def beside(request: Request, work: Callable[..., T], *given: Any) -> T:
    """Returns `work()`, run in a thread; requests with long bodies run one at a time."""
    if request.state.is_long:
        executor = _LONG[request.state.entry.card.kind]
        return await asyncio.get_running_loop().run_in_executor(executor, work, *given)
    return await run_in_threadpool(work, *given)


async def respond(request: Request, served: Served, read: Reader) -> Response:
    """Generate what a request asks for and send it. Raises HttpError if it is wrong, or the engine refuses its job."""
    asked = await beside(request, read, body_of(request), served)
    job, shape = asked.job, asked.shape
    try:
        answers = request.state.answers = Answers(served.engine, job)
    except CamshaftError as error:
        raise http_error(error) from None
    if asked.is_stream:
        return Stream(_parts(answers, shape), shape.media_type, answers.cancel)
    try:
        whole = await unless_disconnected(request, _collected(answers, job.n_answers))
    except CamshaftError as error:
        raise http_error(error) from None
    finally:
        answers.cancel()
    if whole is None:
        return Response(status_code=CLIENT_CLOSED)
    return Json(shape.whole(whole, answers.usage))


async def _collected(answers: Answers, n: int) -> list[Answer]:
    whole = [Answer() for _ in range(n)]
    async for index, update in answers:
        whole[index].add(update)
    return whole


async def unless_disconnected(request: Request, work: Any) -> Any:
    """The result of `work`, or None if the client disconnects before there is one."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _parts(answers: Answers, shape: Shape) -> AsyncIterator[bytes]:
    """Yields what a stream sends. Log probabilities of tokens without text yet go with the next text."""
    parts = [*shape.begin()]
    if parts:
        yield b"".join(parts)
    held: dict[int, list[TokenLogprob]] = {}
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                index, update = await anext(answers)
        except TimeoutError:
            if shape.keep_alive:
                yield shape.keep_alive
            continue
        except StopAsyncIteration:
            break
        except Exception as error:
            if not isinstance(error, CamshaftError):
                _log.error("a stream failed", exc_info=error)
            yield b"".join(shape.failed(http_error(error)))
            return
        logprobs = held.setdefault(index, [])
        logprobs += update.logprobs
        parts = []
        if update.text or (logprobs and update.is_last):
            parts += shape.piece(index, update.text, logprobs)
            logprobs.clear()
        if update.finish_reason is not None:
            parts += shape.end_answer(index, update.finish_reason, update.stop_string)
        if parts:
            yield b"".join(parts)
    yield b"".join(shape.end(answers.usage))
