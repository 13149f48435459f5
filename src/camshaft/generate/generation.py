"""Generation: an iterator of text pieces with stop strings, a finish reason and timings."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from camshaft.errors import count, shortened
from camshaft.generate.options import GenerateOptions
from camshaft.text.tokenizer import Detokenizer

if TYPE_CHECKING:
    from camshaft.generate.speculation.speculator import Speculation
    from camshaft.generate.stored.prompt_cache import PromptCache

FinishReason = Literal["stop", "length"]


class Closing(ABC):
    """A context manager that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None:
        """Release what the object uses; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class GenerationTimings:
    """Seconds to the first token, prompt processing included, and token rates; 0 if nothing was measured."""

    first_token_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float


class StopStrings:
    """Pass text through up to the first stop string; buffer text that may be the start of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._buffer = ""
        self.found: str | None = None  # the one that was reached

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; return the text that is safe to show, and whether a stop string was reached."""
        self._buffer += text
        found = [(i, s) for s in self._stop if (i := self._buffer.find(s)) >= 0]
        if found:
            end, self.found = min(found)
            return self._buffer[:end], True
        keep = max((n for s in self._stop for n in range(1, len(s)) if self._buffer.endswith(s[:n])), default=0)
        shown, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        return shown, False

    def flush(self) -> str:
        """Return the buffered text at the end of the generation."""
        text, self._buffer = self._buffer, ""
        return text


@dataclass(frozen=True)
class TokenLogprob:
    """A token's id, its text, the natural logarithm of its probability, and the most probable tokens in its place.

    Probabilities are a softmax of the model's logits, before temperature, filters and penalties."""

    id: int
    token: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class Generation:
    """An iterator of text pieces. At its end `finish_reason` is 'stop' (end token or stop string) or 'length' (max_tokens or a
    full context). If closed early or after an error, it is None.

    `ids` are the generated tokens without the end token, `tokens` their number, `text` the pieces so far, and `logprobs` has an
    entry per token if the option of that name is set. Several threads may read one generation: each piece goes to one of them.
    """

    def __init__(
        self,
        prompt_tokens: int,
        next_token: Callable[[], int | FinishReason],
        detokenizer: Detokenizer,
        options: GenerateOptions,
        on_end: Callable[[Generation], None] | None = None,
        is_complete: Callable[[], bool] = lambda: False,
    ) -> None:
        """`next_token` returns a token, or the reason to end; `on_end` is called once, when the iteration has ended; a text that
        `is_complete` after a token ends with it."""
        self._on_end, self._is_complete = on_end, is_complete
        self.prompt_tokens = prompt_tokens
        self.finish_reason: FinishReason | None = None
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.kept: PromptCache | None = None  # where prompts are kept, if the option is set
        self.speculation: Speculation | None = None  # what drafts did, if the option is set
        self.text_is_exact = False  # whether `text` is that of all `ids`; false before the end
        self._next_token: Callable[[], int | FinishReason] | None = next_token
        self._detokenizer, self._stop = detokenizer, StopStrings(options.stop_strings)
        self._pieces: list[str] = []
        self._max_tokens = options.max_tokens
        self._reading = threading.RLock()
        self._started = self._first = self._last = 0.0

    def __repr__(self) -> str:
        state = "in progress" if self._next_token is not None else self.finish_reason or "closed"
        return f"Generation({shortened(self.text)!r}, {count(self.tokens, 'token')}, {state})"

    @property
    def tokens(self) -> int:
        """The number of tokens generated so far."""
        return len(self.ids)

    @property
    def kept_tokens(self) -> int:
        """The number of the prompt's tokens that were taken from a kept one."""
        return 0 if self.kept is None else self.kept.n_taken

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._stop.found

    @property
    def text(self) -> str:
        """All pieces so far."""
        return "".join(self._pieces)

    @property
    def timings(self) -> GenerationTimings:
        """The timings so far."""
        first = self._first - self._started if self._first else 0.0
        later = self._last - self._first
        return GenerationTimings(
            first,
            self.prompt_tokens / first if first else 0.0,
            (self.tokens - 1) / later if self.tokens > 1 and later else 0.0,
        )

    @property
    def is_full(self) -> bool:
        """Whether max_tokens are generated."""
        return 0 <= self._max_tokens <= self.tokens

    def begin(self) -> None:
        """Start the clock; by default it starts with the first token."""
        self._started = time.perf_counter()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._reading:
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
        """End the iteration; may be called twice."""
        on_end, self._on_end, self._next_token = self._on_end, None, None
        if on_end is not None:
            on_end(self)

    def __del__(self) -> None:
        self.close()

    def advance(self) -> str:
        """Generate one token and return the text that it completes, possibly empty; always empty after the end."""
        if self._next_token is None:
            return ""
        self._started = self._started or time.perf_counter()
        token = "length" if self.is_full else self._next_token()
        now = time.perf_counter()
        self._first = self._first or now
        if isinstance(token, str):
            return self.finish(token)
        self.ids.append(token)
        self._last = now
        piece, stopped = self._stop.push(self._detokenizer.push(token))
        self._pieces.append(piece)
        if stopped:
            self._end("stop")
        elif self._is_complete():
            piece += self.finish("stop")
        return piece

    def finish(self, reason: FinishReason) -> str:
        """End the generation and return the buffered text. A character that 'length' cuts is left out."""
        is_cut = self._detokenizer.is_inside_character
        piece, stopped = self._stop.push(self._detokenizer.flush() if reason == "stop" else "")
        piece = piece if stopped else piece + self._stop.flush()
        self._pieces.append(piece)
        self.text_is_exact = not (is_cut or stopped)
        self._end("stop" if stopped else reason)
        return piece

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.close()
