"""Answers: from the engine's thread to the event loop, the updates of the requests behind one HTTP request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Request, Update
from camshaft.generate.generation import TokenLogprob
from camshaft.generate.options import GenerateOptions
from camshaft.generate.vision.tokens import ImageToken


@dataclass(frozen=True)
class Job:
    """A request to generate: token ids of prompts, and the options of each prompt's answers; `is_scored` and `priority` as
    `Engine.submit_all`."""

    prompts: Sequence[Sequence[int]]
    options: Sequence[GenerateOptions]
    is_scored: bool = False
    priority: int = 0

    @property
    def wanted(self) -> list[tuple[Sequence[int], GenerateOptions]]:
        """The prompt and the options of each answer."""
        return [(ids, options) for ids in self.prompts for options in self.options]

    @property
    def n_answers(self) -> int:
        """The number of answers: `options` for every prompt."""
        return len(self.prompts) * len(self.options)


@dataclass
class Answer:
    """One whole answer, once all its updates were added."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_string: str | None = None

    def add(self, update: Update) -> None:
        """Add what one token adds."""
        self.pieces.append(update.text)
        self.logprobs += update.logprobs
        self.finish_reason, self.stop_string = update.finish_reason, update.stop_string

    @property
    def text(self) -> str:
        """The text."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens, and the seconds from the start of the prompts to the first token and from there to the last one. A
    prompt with several answers counts once."""

    prompt: int
    cached: int
    generated: int
    prompt_s: float | None = None
    generated_s: float | None = None
    drafted: int = 0
    accepted: int = 0

    @property
    def timings(self) -> dict[str, Any]:
        """`timings` of llama.cpp's server; nothing where no seconds are known."""
        if self.prompt_s is None or self.generated_s is None:
            return {}
        timings: dict[str, Any] = {"cache_n": self.cached}
        for name, n, seconds in (
            ("prompt", self.prompt - self.cached, self.prompt_s),
            ("predicted", self.generated, self.generated_s),
        ):
            timings |= {
                f"{name}_n": n,
                f"{name}_ms": round(1e3 * seconds, 3),
                f"{name}_per_token_ms": round(1e3 * seconds / n, 3) if n else None,
                f"{name}_per_second": round(n / seconds, 3) if seconds else None,
            }
        if self.drafted:
            timings |= {"draft_n": self.drafted, "draft_n_accepted": self.accepted}
        return {"timings": timings}

    @property
    def json(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


def usage_of(requests: Sequence[Request], job: Job) -> Usage:
    """The usage so far of a job's requests, without seconds."""
    first = requests[:: len(job.options)]
    return Usage(
        sum(request.prompt_tokens for request in first),
        sum(request.cached_tokens for request in first),
        sum(request.generated_tokens for request in requests),
        drafted=sum(request.drafted for request in requests),
        accepted=sum(request.accepted for request in requests),
    )


def _end_of(request: Request) -> str:
    """The finish reason, 'cancelled' or 'error'."""
    reason = None if request.generation is None else request.generation.finish_reason
    return reason or ("cancelled" if request.is_cancelled else "error")


class Answers:
    """Submits a job and iterates over (index, update) until all its answers have ended. `cancel` ends them."""

    def __init__(self, engine: Engine, job: Job) -> None:
        """Raises what Engine.submit raises."""
        self._engine, self._job = engine, job
        self._loop = asyncio.get_running_loop()
        self._updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self._requests: list[Request] = engine.submit_all(
            [(ids, options, self._listener(i)) for i, (ids, options) in enumerate(job.wanted)],
            scored=job.is_scored,
            priority=job.priority,
        )
        self._n_open = job.n_answers

    def _listener(self, index: int) -> Any:
        def listen(update: Update) -> None:
            with suppress(RuntimeError):  # the loop is closed: there is no reader any more
                self._loop.call_soon_threadsafe(self._updates.put_nowait, (index, update))

        return listen

    @property
    def usage(self) -> Usage:
        """The usage of the answers, which have ended."""
        clocks = [request.clock for request in self._requests]
        begun, ended = min(clock.admitted for clock in clocks), max(clock.ended for clock in clocks)
        written = min((clock.first_token for clock in clocks if clock.first_token), default=ended)
        return replace(usage_of(self._requests, self._job), prompt_s=written - begun, generated_s=ended - written)

    def record(self, *, with_texts: bool) -> dict[str, Any]:
        """Returns the log record of the answers, finished or cancelled by a disconnect."""
        usage, clocks = usage_of(self._requests, self._job), [request.clock for request in self._requests]
        written = [clock.first_token - clock.queued for clock in clocks if clock.first_token]
        record: dict[str, Any] = {
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "generated_tokens": usage.generated,
            "first_token_seconds": round(min(written), 6) if written else None,
            "ended": [_end_of(request) for request in self._requests],
        }
        if with_texts:
            read = self._engine.lm.detokenize
            record["prompts"] = [read([i for i in ids if not isinstance(i, ImageToken)]) for ids in self._job.prompts]
            record["answers"] = [request.generation.text if request.generation else "" for request in self._requests]
        return record

    def __aiter__(self) -> AsyncIterator[tuple[int, Update]]:
        return self

    async def __anext__(self) -> tuple[int, Update]:
        """The next update. Raises the error of an answer that failed."""
        if not self._n_open:
            raise StopAsyncIteration
        index, update = await self._updates.get()
        self._n_open -= update.is_last
        if update.error is not None:
            raise update.error
        return index, update

    def cancel(self) -> None:
        """End the answers that are not complete; may be called twice."""
        for request in self._requests:
            if not request.clock.ended:
                self._engine.cancel(request)
