"""Beam search over the values of tunables, by the ratio of a choice's time to the cost model's. Knows nothing of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from camshaft.errors import SettingError
from camshaft.ops.op import Values, values_text

# The ratio of each choice's time to the seed's, under 1 where it is faster; None for one that cannot be had.
Evaluate: TypeAlias = Callable[[Sequence[Values]], Sequence[float | None]]
Legal: TypeAlias = Callable[[Values], bool]


@dataclass(frozen=True)
class Found:
    """All values that were timed with their ratios to the seed's time, the best first, and how many choices were tried."""

    ranked: tuple[tuple[float, Values], ...]
    n_tried: int

    @property
    def values(self) -> Values:
        """The best values."""
        return self.ranked[0][1]


def beam_search(
    seed: Values, legal: Mapping[str, tuple[int, ...]], fits: Legal, evaluate: Evaluate, *, width: int, noise: float
) -> Found:
    """From the seed, in steps of one tunable to its next value that fits. The `width` best are kept; the search ends when a step
    gains no more than `noise` (0.02: 2%), or nothing is left to try."""
    if width < 1 or noise < 0:
        raise SettingError(
            f"beam search of width {width}, noise {noise}; wanted a width of 1 or more and noise of 0 or more"
        )
    ratios: dict[str, float | None] = {values_text(seed): 1.0}
    kept, best = [dict(seed)], 1.0
    spelled = {values_text(seed): dict(seed)}
    while True:
        fresh = {values_text(n): n for values in kept for n in neighbours(values, legal, fits)}
        fresh = {text: values for text, values in fresh.items() if text not in ratios}
        if not fresh:
            break
        ratios |= dict(zip(fresh, evaluate(list(fresh.values())), strict=True))
        spelled |= fresh
        timed = _ranked(ratios)
        kept = [spelled[text] for _, text in timed[:width]]
        if timed[0][0] * (1 + noise) > best:
            break
        best = timed[0][0]
    return Found(tuple((ratio, spelled[text]) for ratio, text in _ranked(ratios)), len(ratios) - 1)


def _ranked(ratios: Mapping[str, float | None]) -> list[tuple[float, str]]:
    return sorted((ratio, text) for text, ratio in ratios.items() if ratio is not None)


def neighbours(values: Values, legal: Mapping[str, tuple[int, ...]], fits: Legal) -> list[dict[str, int]]:
    """One tunable changed, either way, to the nearest value that fits with the others."""
    found = []
    for name, choices in legal.items():
        up = [c for c in choices if c > values[name]]
        down = [c for c in reversed(choices) if c < values[name]]
        for side in (up, down):
            changed = ({**values, name: choice} for choice in side)
            found += [c for c in (next((c for c in changed if fits(c)), None),) if c is not None]
    return found
