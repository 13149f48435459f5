"""Beam search over values of tunable parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from camshaft.errors import SettingError
from camshaft.ops.op import Values, values_text

# Returns the ratio of each choice's time to the seed's (below 1 is faster), or None for an impossible choice.
Evaluate: TypeAlias = Callable[[Sequence[Values]], Sequence[float | None]]
Legal: TypeAlias = Callable[[Values], bool]


@dataclass(frozen=True)
class SearchResult:
    """All timed values with their ratios to the seed's time, best first, and the number of choices tried."""

    ranked: tuple[tuple[float, Values], ...]
    n_tried: int

    @property
    def values(self) -> Values:
        """The best values."""
        return self.ranked[0][1]


def beam_search(
    seed: Values, legal: Mapping[str, tuple[int, ...]], fits: Legal, evaluate: Evaluate, *, width: int, noise: float
) -> SearchResult:
    """Search from the seed, changing one tunable by one legal step at a time, continuing from the `width` best. Ends when a
    step gains no more than `noise` (0.02: 2%), or when nothing is left to try."""
    if width < 1 or noise < 0:
        raise SettingError(
            f"beam search of width {width}, noise {noise}; wanted a width of 1 or more and noise of 0 or more"
        )
    ratios: dict[str, float | None] = {values_text(seed): 1.0}
    beam, best = [dict(seed)], 1.0
    choices = {values_text(seed): dict(seed)}
    while True:
        fresh = {values_text(n): n for values in beam for n in neighbours(values, legal, fits)}
        fresh = {text: values for text, values in fresh.items() if text not in ratios}
        if not fresh:
            break
        ratios |= dict(zip(fresh, evaluate(list(fresh.values())), strict=True))
        choices |= fresh
        timed = _ranked(ratios)
        beam = [choices[text] for _, text in timed[:width]]
        if timed[0][0] * (1 + noise) > best:
            break
        best = timed[0][0]
    return SearchResult(tuple((ratio, choices[text]) for ratio, text in _ranked(ratios)), len(ratios) - 1)


def _ranked(ratios: Mapping[str, float | None]) -> list[tuple[float, str]]:
    return sorted((ratio, text) for text, ratio in ratios.items() if ratio is not None)


def neighbours(values: Values, legal: Mapping[str, tuple[int, ...]], fits: Legal) -> list[dict[str, int]]:
    """Change one tunable, up or down, to the nearest value that fits with the others."""
    changes = []
    for name, choices in legal.items():
        up = [c for c in choices if c > values[name]]
        down = [c for c in reversed(choices) if c < values[name]]
        for direction in (up, down):
            changed = ({**values, name: choice} for choice in direction)
            changes += [c for c in (next((c for c in changed if fits(c)), None),) if c is not None]
    return changes
