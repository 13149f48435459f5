"""Generation: the pieces of a text as they come, with stop strings, a finish reason and timings. Made by a Session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from camshaft.errors import SettingError
from camshaft.text.stream import Detokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class GenerationTimings:
    """Seconds to the first token (prompt processing included), and rates; a rate of nothing is 0."""

    first_token_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float


def check_max_tokens(max_tokens: int) -> None:
    """SettingError for what is no whole number from 0 up."""
    if not isinstance(max_tokens, int) or max_tokens < 0:
        raise SettingError(f"max_tokens {max_tokens!r}; wanted a whole number, 0 or more")


def stop_strings(stop: Sequence[str]) -> tuple[str, ...]:
    """One string or several, as several."""
    return (stop,) if isinstance(stop, str) else tuple(stop)


class StopStrings:
    """Lets text through up to the first stop string, holding back what may be the start of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop string came."""
        self._held += text
        found = min((i for s in self._stop if (i := self._held.find(s)) >= 0), default=-1)
        if found >= 0:
            return self._held[:found], True
        keep = max((n for s in self._stop for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def flush(self) -> str:
        """What was held back and turned out to be text."""
        held, self._held = self._held, ""
        return held


class Generation:
    """An iterator of text pieces. When it ends, `finish_reason` says why: 'stop' (an end token or a stop string) or 'length'.

    `tokens` counts what was generated, the end token not; `ids` are those tokens. One that is closed or fails before its end
    has no finish reason.
    """

    def __init__(
        self,
        prompt_tokens: int,
        next_token: Callable[[], int | None],
        detokenizer: Detokenizer,
        stop: Sequence[str],
        max_tokens: int,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.finish_reason: FinishReason | None = None
        self.ids: list[int] = []
        self._next_token: Callable[[], int | None] | None = next_token
        self._text, self._stop, self._max_tokens = detokenizer, StopStrings(stop), max_tokens
        self._ended = ended
        self._started = self._first = self._last = 0.0

    @property
    def tokens(self) -> int:
        """How many tokens were generated so far."""
        return len(self.ids)

    @property
    def timings(self) -> GenerationTimings:
        """Of what has happened so far."""
        first = self._first - self._started if self._first else 0.0
        later = self._last - self._first
        return GenerationTimings(
            first,
            self.prompt_tokens / first if first else 0.0,
            (self.tokens - 1) / later if self.tokens > 1 and later else 0.0,
        )

    @property
    def is_full(self) -> bool:
        """Whether it has as many tokens as it may."""
        return self.tokens >= self._max_tokens

    def begin(self) -> None:
        """Starts the clock, where that is before the first token is asked for."""
        self._started = time.perf_counter()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            while self._next_token is not None:
                piece = self.advance()
                if piece:
                    return piece
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """Ends the iteration here; closing twice is allowed."""
        ended, self._ended, self._next_token = self._ended, None, None
        if ended is not None:
            ended()

    def advance(self) -> str:
        """One token further: the text that it completes, which may be none; once it is over, always none."""
        if self._next_token is None:
            return ""
        self._started = self._started or time.perf_counter()
        token = None if self.is_full else self._next_token()
        now = time.perf_counter()
        self._first = self._first or now
        if token is None:
            return self.finish("length" if self.is_full else "stop")
        self.ids.append(token)
        self._last = now
        piece, stopped = self._stop.push(self._text.push(token))
        if stopped:
            self._end("stop")
        return piece

    def finish(self, reason: FinishReason) -> str:
        """Ends it for a reason: the text that was held back."""
        self._end(reason)
        rest, stopped = self._stop.push(self._text.flush())
        return rest if stopped else rest + self._stop.flush()

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.close()
