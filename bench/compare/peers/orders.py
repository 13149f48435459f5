"""What a language model is asked to measure, and the orders that every peer takes alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Orders(ABC):
    """Orders: {"prompt": ids}, optionally with "then": n tokens after it; {"last": True, "prompt": ids, "then": n}: the seconds
    of those n tokens; {"generate": n, "after": ids}; {"together": sequences, "generate": n, "after": ids}."""

    went_on_s: float | None = None  # of the tokens after the last prompt

    def seconds(self, order: dict[str, Any]) -> float:
        """Seconds of a prompt including the next token, or of n tokens (per sequence) extrapolated from all but the first."""
        if "last" in order:
            return self.last(order)
        if "together" in order:
            return self.together(order["together"], order["after"], order["generate"])
        if "generate" in order:
            return self.generated(order["after"], order["generate"])
        return self.prompt(order["prompt"], order.get("then"))

    def last(self, order: dict[str, Any]) -> float:
        """Seconds of generating after the last prompt; processes the prompt first if it was not the last order."""
        if self.went_on_s is None:
            self.prompt(order["prompt"], order["then"])
        seconds, self.went_on_s = self.went_on_s, None
        assert seconds is not None
        return seconds

    @abstractmethod
    def prompt(self, ids: list[int], then: int | None) -> float:
        """Seconds of a prompt including the next token. Sets `went_on_s` to those of `then` tokens after it, or None."""

    @abstractmethod
    def generated(self, ids: list[int], n: int) -> float:
        """Seconds of n tokens after a prompt."""

    @abstractmethod
    def together(self, sequences: int, ids: list[int], n: int) -> float:
        """Seconds of n tokens of each sequence."""
