"""Undefined values: what a load of unwritten scratch yields.

Computing with them and dropping them in a select is allowed; storing them to an array or branching on them is an error. A kernel
may therefore load a whole vector of which only some elements were written, if it drops the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.lang import ir


@dataclass(frozen=True)
class Hole:
    """The undefined part of a value: `where` is a boolean, or one per element; `origin` describes its source."""

    where: Any
    origin: str

    def spread(self, size: int, places: Any) -> Hole:
        """Scatter this hole's elements to `places` of a vector of `size`."""
        where = np.zeros(size, np.bool_)
        where[places] = self.where
        return Hole(where, self.origin)

    def only(self, size: int, places: Any) -> Hole | None:
        """Return the hole's part at `places` (None: everywhere), or None if nothing there is undefined."""
        where = np.broadcast_to(self.where, (size,))
        return made(where if places is None else where[places], self.origin)


def made(where: Any, origin: str) -> Hole | None:
    """Return a Hole, or None if no element is undefined."""
    return Hole(where, origin) if np.any(where) else None


def of_result(value: ir.Value, holes: list[Hole | None], condition: Any) -> Hole | None:
    """Return the hole of a result from its operands' holes. `condition`: a select's first operand or a shuffle's lane."""
    origins = [h.origin for h in holes if h is not None]
    if not origins:
        return None
    parts: list[Any] = [np.False_ if h is None else h.where for h in holes]
    if value.op == "select":
        return made(parts[0] | np.where(condition, parts[1], parts[2]), origins[0])
    if value.op == "element":
        return made(parts[0][value.attr], origins[0])
    if value.op == "shuffle":
        return made(parts[0] if np.ndim(parts[0]) == 0 else parts[0][condition], origins[0])
    if value.op in ("reduce", "vector_sum", "vector_max", "scan", "subgroup_reduce"):
        return made(np.any(parts[0]), origins[0])
    where = parts[0]
    for part in parts[1:]:
        where = where | part
    return made(where, origins[0])
