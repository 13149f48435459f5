"""Row: what is known of one thunk, or of many together: by op, by part, by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """`ns` from the first program's start to the last one's end, `busy_ns` the same of every worker in sum, `waited_ns` what
    workers stood at the wait before it, in sum; `share` of all workers' time; None of `ns`: no clock told. `least_ns` is the time
    under the roof, None without one. A thunk that runs everywhere (`n_everywhere` 1) counts once, with its bytes and operations;
    its `ns` is one worker's, `busy_ns` and `share` are what all of them spent. Sums where `n_thunks` is more than 1."""

    name: str
    op: str
    variant: str
    device: str
    layer: str
    part: str
    n_thunks: int
    n_everywhere: int
    n_waits: int
    ns: float | None
    busy_ns: float
    share: float
    waited_ns: float
    nbytes: float
    flops: float
    kind: str
    least_ns: float | None

    @property
    def gb_per_s(self) -> float | None:
        """Bytes per nanosecond."""
        return self.nbytes / self.ns if self.ns else None

    @property
    def gflop_per_s(self) -> float | None:
        """Operations per nanosecond."""
        return self.flops / self.ns if self.ns else None

    @property
    def roof_share(self) -> float | None:
        """The least time over the time it took; 1 is as fast as this machine can."""
        return self.least_ns / self.ns if self.ns and self.least_ns is not None else None

    def report(self) -> dict[str, Any]:
        """All of it, for JSON."""
        rates = {name: getattr(self, name) for name in ("gb_per_s", "gflop_per_s", "roof_share")}
        return vars(self) | rates


GROUPS: dict[str, Callable[[Row], str]] = {
    "op": lambda row: f"{row.op}/{row.variant}",
    "part": lambda row: row.part,
    "layer": lambda row: row.layer,
}


def grouped(rows: Iterable[Row], by: str) -> tuple[Row, ...]:
    """Sums of rows by a key of GROUPS: the greatest share of time first, layers in their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(GROUPS[by](row), []).append(row)
    sums = [_sum(name, members) for name, members in groups.items()]
    return tuple(sums if by == "layer" else sorted(sums, key=lambda row: -row.share))


def _common(values: Iterable[str]) -> str:
    found = dict.fromkeys(values)
    return next(iter(found)) if len(found) == 1 else ""


def _total(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _sum(name: str, rows: list[Row]) -> Row:
    words = {field: _common(getattr(row, field) for row in rows) for field in _WORDS}
    sums = {field: sum(getattr(row, field) for row in rows) for field in _SUMS}
    known = {field: _total([getattr(row, field) for row in rows]) for field in ("ns", "least_ns")}
    return Row(**{"name": name, **words, **sums, **known})


_WORDS = ("op", "variant", "device", "layer", "part", "kind")
_SUMS = ("n_thunks", "n_everywhere", "n_waits", "busy_ns", "share", "waited_ns", "nbytes", "flops")
