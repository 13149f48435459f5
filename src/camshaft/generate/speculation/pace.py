"""Pace: the best length of drafts, from their acceptance rate and the cost of runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

MOST_ROWS = 8  # tokens of a run that checks drafts
# Seconds of a run by its number of tokens, relative to one token, before any were measured here: SmolLM2 in Q4_1 on two cores of
# Zen 4 had 1.1 to 1.2, 1.4 to 1.6 and 2.0. A run of other sizes is one of the next power of two.
_COSTS = {1: 1.0, 2: 1.2, 4: 1.5, 8: 2.1}
_REMEMBERED = 7  # runs of each size; the median counts
# Drafts are used if they promise this many times the tokens per second: their cost is measured with noise.
LEAST_GAIN = 1.05
_FORGETTING = 0.9  # the weight of past observations when a new one is added


class RunCosts:
    """Seconds of one model's runs by their number of tokens, as multiples of a run of one."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}  # cached: a step asks for several
        self._costs = dict(_COSTS)
        self._one: float | None = None  # seconds of a run of one, measured or by those of other sizes

    def add(self, rows: int, seconds: float) -> None:
        """Count a run. The first of a size is left out: it has loaded or compiled its plan."""
        size = _size(rows)
        if size not in self._seconds:
            self._seconds[size] = deque(maxlen=_REMEMBERED)
            return
        self._seconds[size].append(seconds)
        self._medians[size] = median(self._seconds[size])
        # If several texts are always generated at once, no run has one token.
        self._one = self._medians.get(1) or median(found / _COSTS[each] for each, found in self._medians.items())
        if self._one:
            self._costs |= {each: found / self._one for each, found in self._medians.items()}

    def of(self, rows: int) -> float:
        """The cost of a run of `rows` tokens."""
        return self._costs[_size(rows)]

    def in_runs(self, seconds: float) -> float | None:
        """Seconds as a multiple of a run of one token; None before any run was measured."""
        return seconds / self._one if self._one else None

    def seconds(self, rows: int) -> float | None:
        """The seconds of a run of `rows` tokens; None before one was measured."""
        return self._medians.get(_size(rows))


class Pace:
    """The lengths of drafts in one generation. `kinds` has the kinds of drafts with the acceptance rate of their first token, as
    assumed before any was observed."""

    def __init__(self, costs: RunCosts, kinds: dict[int | None, float]) -> None:
        self._costs = costs
        self._right = {kind: (2 * share, 2.0) for kind, share in kinds.items()}  # (right, all), older ones count less

    def saw(self, kind: int | None, right: bool) -> None:
        """Count a drafted token that was accepted or not, whether it was run or only compared."""
        n_right, n = self._right[kind]
        self._right[kind] = n_right * _FORGETTING + right, n * _FORGETTING + 1

    def share(self, kind: int | None) -> float:
        """The acceptance rate of drafts of a kind."""
        n_right, n = self._right[kind]
        return n_right / n

    def length(self, kind: int | None, most: int, known: int = 1, each: float = 0.0) -> int:
        """The number of drafted tokens, up to `most`, beside `known` others in the run; as `lengths`."""
        return lengths([(self.share(kind), most)], known, self._costs, each)[0]


def lengths(offers: Sequence[tuple[float, int]], rows: int, costs: RunCosts, each: float = 0.0) -> list[int]:
    """How many tokens to draft for each text of a run, so that all texts together get the most tokens per second; zeros
    where drafting does not pay.

    `offers` has each text's acceptance rate and maximum draft length. Without drafts the run has `rows`
    tokens and gives one for each text. `each` is what drafting a token costs, as a multiple of a run of one: texts are drafted
    side by side, so the longest draft counts."""
    found, expected = [0] * len(offers), float(len(offers))
    best, chosen = LEAST_GAIN * expected / costs.of(min(rows, MOST_ROWS)), found
    for n_rows in range(rows + 1, MOST_ROWS + 1):
        right = [share ** (n + 1) if n < most else 0.0 for (share, most), n in zip(offers, found, strict=True)]
        i = max(range(len(right)), key=right.__getitem__)
        if not right[i]:
            break
        found = [n + (at == i) for at, n in enumerate(found)]
        expected += right[i]
        rate = expected / (costs.of(n_rows) + max(found) * each)
        if rate > best:
            best, chosen = rate, found
    return chosen


def _size(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
