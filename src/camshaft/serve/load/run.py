"""Sends a workload to a server and records the arrival of each token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from camshaft.errors import CamshaftError
from camshaft.serve.load.stream import AnswerError, Target, get, post_stream
from camshaft.serve.load.workload import Workload

TIMEOUT_S = 600.0
Step = Callable[[int, int], None]
"""Called with (requests that ended, requests)."""
_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass
class Record:
    """One request, in seconds of `time.perf_counter`: when it was sent, when each piece of its answer came, when it ended.

    `error` is the reason of a failure. Token counts are the server's; without them every piece counts as one token."""

    sent: float
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0

    @property
    def first_token_s(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0] - self.sent

    @property
    def between_tokens_s(self) -> float:
        """Mean seconds between tokens after the first; 0 for a single one."""
        n = self.answer_tokens - 1
        return (self.pieces[-1] - self.pieces[0]) / n if n > 0 else 0.0

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between pieces, each of which may have several tokens."""
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]

    @property
    def total_s(self) -> float:
        """Seconds to the end."""
        return self.ended - self.sent


async def first_model(target: Target) -> str:
    """The name of the first model that a server lists. Raises AnswerError."""
    try:
        listed = await get(target, "/models")
        return str(listed["data"][0]["id"])
    except OSError as error:
        raise AnswerError(f"{target.url}: {error}") from None
    except (KeyError, IndexError, TypeError):
        raise AnswerError(f"{target.url}/models lists no model") from None


async def ask(target: Target, workload: Workload, index: int, model: str, timeout_s: float = TIMEOUT_S) -> Record:
    """Send one request and record its answer; errors are in the record."""
    body = workload.body(index, model)
    record = Record(time.perf_counter())
    try:
        async with asyncio.timeout(timeout_s), aclosing(post_stream(target, workload.path, body)) as events:
            async for event in events:
                _take(record, event)
        if not record.pieces:
            record.error = "the answer has no text"
    except TimeoutError:
        record.error = f"no whole answer within {timeout_s:g} s"
    except (CamshaftError, OSError, UnicodeError) as error:
        record.error = str(error) or type(error).__name__
    record.ended = time.perf_counter()
    record.answer_tokens = record.answer_tokens or len(record.pieces)
    return record


def _take(record: Record, event: dict[str, Any]) -> None:
    """Add an event to the record. Raises AnswerError for an event of another form."""
    try:
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or any(delta.get(key) for key in _KEYS):
                record.pieces.append(time.perf_counter())
        usage = event.get("usage") or {}
        if usage:
            record.prompt_tokens, record.answer_tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
            record.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AnswerError("an event does not have the form of OpenAI's interface") from None


async def run_load(
    target: Target, workload: Workload, model: str, step: Step = lambda done, total: None, timeout_s: float = TIMEOUT_S
) -> list[Record]:
    """Send all requests of a workload and return their records, in the order of the requests."""
    records: list[Record | None] = [None] * workload.requests
    n_done = 0

    async def one(index: int) -> None:
        nonlocal n_done
        records[index] = await ask(target, workload, index, model, timeout_s)
        n_done += 1
        step(n_done, workload.requests)

    step(0, workload.requests)
    await (_by_clients(workload, one) if workload.rate is None else _by_arrivals(workload, one))
    return [record for record in records if record is not None]


async def _by_clients(workload: Workload, one: Callable[[int], Any]) -> None:
    assert workload.clients is not None
    coming = iter(range(workload.requests))

    async def client() -> None:
        for index in coming:  # shared by all clients
            await one(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(workload.clients, workload.requests)):
            group.create_task(client())


async def _by_arrivals(workload: Workload, one: Callable[[int], Any]) -> None:
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for index, after in enumerate(workload.arrivals()):
            await asyncio.sleep(max(0.0, begin + after - time.perf_counter()))
            group.create_task(one(index))
