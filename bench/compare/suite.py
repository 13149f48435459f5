"""Side, Task, Target, Stand: what is compared with what, on what order, and what is wanted of it. Tables of rows make these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OURS = "camshaft"


@dataclass(frozen=True)
class Side:
    """One side: its name in tables, the class that runs it ('module:Class' of sides/, or a file's), its arguments. `peer`: it
    runs in the Python that has the peers; `environment` is added to this process's."""

    name: str
    made_by: str
    given: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    peer: bool = True


@dataclass(frozen=True)
class Unit:
    """How an answer is shown: what a side gives (seconds, or bytes) as `scale` x amount / answer, or x answer / amount."""

    name: str
    scale: float
    rate: bool

    def of(self, answer: float, amount: float) -> float:
        return self.scale * (amount / answer if self.rate else answer / amount)


UNITS = {
    "tokens/s": Unit("tokens/s", 1.0, True),
    "GB/s": Unit("GB/s", 1e-9, True),
    "Gop/s": Unit("Gop/s", 1e-9, True),
    "GFLOP/s": Unit("GFLOP/s", 1e-9, True),
    "s": Unit("s", 1.0, False),
    "us": Unit("us", 1e6, False),
    "ns": Unit("ns", 1e9, False),
    "x file": Unit("x file", 1.0, False),
}


@dataclass(frozen=True)
class Target:
    """What is wanted, where it is: so many times the best peer, or certain peers (`against`), never under `floor`, such a share
    of the roof, such a figure in the task's unit (at least of a rate, at most of a time)."""

    ratio: float | None = None
    against: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None
    share: float | None = None
    figure: float | None = None


@dataclass(frozen=True)
class Task:
    """One row of the table. `amount` is what an order does (tokens, bytes, operations, thunks); `nbytes` and `ops` by kind are
    what the roof is asked for; `warm` is an order for the turns that do not count, where the task's own takes too long; rows of
    one `family` also have a geometric mean. `sides` names the ones that can do it, None all."""

    name: str
    order: Mapping[str, Any]
    unit: str
    amount: float
    target: Target = Target()
    nbytes: float = 0.0
    ops: Mapping[str, float] = field(default_factory=dict)
    warm: Mapping[str, Any] | None = None
    family: str = ""
    sides: tuple[str, ...] | None = None

    def takes(self, side: str) -> bool:
        return self.sides is None or side in self.sides


@dataclass(frozen=True)
class Suite:
    """Sides that are up together, and the tasks that they do by turns. `busy`: beside a process that keeps one core busy."""

    group: str
    threads: int
    sides: tuple[Side, ...]
    tasks: tuple[Task, ...]
    busy: bool = False
    pause_s: float = 0.1
