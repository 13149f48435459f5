"""Suites: the peers to compare, the tasks that each of them does, and the targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OURS = "camshaft"


@dataclass(frozen=True)
class Peer:
    """A library to measure, camshaft included: its name in tables, its class ('module:Class' in peers/, or a file), arguments,
    extra environment variables. `peer_python`: run it in the Python that has the peer libraries."""

    name: str
    made_by: str
    given: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    peer_python: bool = True


@dataclass(frozen=True)
class Unit:
    """Converts a result (seconds or a ratio): `scale` x amount / result for a rate, else `scale` x result / amount."""

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
    """Targets, each optional: ratio to the best peer, or to certain peers (`against`); minimum ratio (`floor`); share of the
    machine's peak; a figure in the task's unit (minimum for a rate, maximum for a time)."""

    ratio: float | None = None
    against: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None
    share: float | None = None
    figure: float | None = None


@dataclass(frozen=True)
class Task:
    """One row of the table. `amount` is the work of an order (tokens, bytes, operations, thunks); `nbytes` and `ops` by kind are
    its work for the share of peak; `warm` is a shorter order for the warm-up round; rows of one `family` get a geometric mean.
    `peers` names the peers that can do it (None: all)."""

    name: str
    order: Mapping[str, Any]
    unit: str
    amount: float
    target: Target = Target()
    nbytes: float = 0.0
    ops: Mapping[str, float] = field(default_factory=dict)
    warm: Mapping[str, Any] | None = None
    family: str = ""
    peers: tuple[str, ...] | None = None

    def takes(self, peer: str) -> bool:
        return self.peers is None or peer in self.peers


@dataclass(frozen=True)
class Suite:
    """Peers that run at the same time, and their tasks. `busy`: with another process that keeps one core busy."""

    group: str
    threads: int
    peers: tuple[Peer, ...]
    tasks: tuple[Task, ...]
    busy: bool = False
    pause_s: float = 0.1
