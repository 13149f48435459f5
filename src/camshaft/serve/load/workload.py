"""The workload of a server benchmark: how many requests, when, and with which prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from camshaft.errors import SettingError

# Each is one token after a blank in the vocabularies of GPT-2, Llama 3, Qwen and SmolLM.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place "
    "case week company system program question work government number night point home water room mother area money story fact "
    "month lot right study book eye job word business issue side kind head house service friend father power hour game line end "
    "member law car city community name president team minute idea body information back parent face others level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force education"
)
WORDS = tuple(dict.fromkeys(_WORDS.split()))
MOST_WARM_UP = 16
# A chat of one message in place of a bare text.
PATHS = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True)
class Workload:
    """Requests that clients send to a server. Lengths are in words, each about a token.

    clients: how many ask at once, each the next request when it has its answer.
    rate: requests per second in place of clients; the times between them are drawn from an exponential distribution (Poisson
        arrivals), however long answers take.
    prompt_tokens: the length of a prompt, with the `shared_tokens` with which all of them begin.
    answer_tokens: the most tokens of an answer; the least too with `ignore_eos`, which not every server takes.
    chat: whether prompts are chats; else texts to continue.
    """

    requests: int
    clients: int | None = 1
    rate: float | None = None
    prompt_tokens: int = 256
    shared_tokens: int = 0
    answer_tokens: int = 64
    ignore_eos: bool = True
    chat: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.rate is None):
            raise SettingError(f"clients={self.clients} and rate={self.rate}; wanted one of them")
        for name in ("requests", "clients", "prompt_tokens", "answer_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name}={value}; wanted a whole number from 1 up")
        if self.rate is not None and not 0 < self.rate < 1e6:
            raise SettingError(f"rate={self.rate}; wanted a number of requests per second above 0")
        if not 0 <= self.shared_tokens <= self.prompt_tokens:
            raise SettingError(f"shared_tokens={self.shared_tokens}; wanted 0 to prompt_tokens={self.prompt_tokens}")

    @property
    def name(self) -> str:
        """How many ask, in words."""
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return "1 client" if self.clients == 1 else f"{self.clients} clients"

    def prompt(self, index: int) -> str:
        """The prompt of a request: words of the seed, then words of its own."""
        shared = random.Random(f"{self.seed} shared").choices(WORDS, k=self.shared_tokens)
        own = random.Random(f"{self.seed} {index}").choices(WORDS, k=self.prompt_tokens - self.shared_tokens)
        return " ".join([*shared, *own])

    def body(self, index: int, model: str) -> dict[str, Any]:
        """The body of a request, which the same index and seed always give."""
        text = self.prompt(index)
        asked = {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        how = {
            "max_tokens": self.answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {"model": model, **asked, **how} | ({"ignore_eos": True} if self.ignore_eos else {})

    def warm_up(self) -> Workload:
        """A load of as many clients, up to 16, with one request each and other prompts."""
        n = min(self.clients or 1, MOST_WARM_UP)
        return replace(self, requests=n, clients=n, rate=None, seed=-1 - self.seed)

    @property
    def path(self) -> str:
        """Where requests go."""
        return PATHS["chat" if self.chat else "completions"]

    def arrivals(self) -> list[float]:
        """With a rate, the seconds after the start at which each request is sent."""
        assert self.rate is not None
        drawn = random.Random(f"{self.seed} arrivals")
        return list(accumulate(drawn.expovariate(self.rate) for _ in range(self.requests)))
