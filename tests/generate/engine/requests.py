"""Prompts, what listeners of requests were told, and runs of an engine to its end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Request, Update

PROMPTS = [[40, 7, 81, 200, 13], [9, 9, 120], [33], list(range(30, 66)), [101, 64]]


@dataclass
class Told:
    """What a listener was told."""

    updates: list[Update] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, update: Update) -> None:
        assert not self.ended.is_set()
        self.updates.append(update)
        if update.is_last:
            self.ended.set()

    @property
    def text(self) -> str:
        return "".join(update.text for update in self.updates)

    @property
    def reason(self) -> str | None:
        return self.updates[-1].finish_reason if self.updates else None

    @property
    def error(self) -> Exception | None:
        return self.updates[-1].error if self.updates else None


def options(n: int = 8, **sampling: object) -> GenerateOptions:
    made = Sampling(**({"greedy": True} | sampling))  # type: ignore[arg-type]
    return GenerateOptions(max_tokens=n, sampling=made, ignore_eos=True)


def alone(lm: LanguageModel, prompt: list[int], how: GenerateOptions) -> list[int]:
    generation = lm.generate(prompt, how)
    list(generation)
    return generation.ids


def finish(engine: Engine) -> None:
    for _ in range(500):
        if not (engine.n_running or engine.n_waiting):
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def answer(request: Request) -> list[int]:
    return request.ids[request.prompt_tokens :]
