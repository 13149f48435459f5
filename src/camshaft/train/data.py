"""Batches as a function of the step: the order follows from a seed, so a resumed run reads what an unbroken one would."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.errors import PlanError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Batches:
    """`size` examples at a time, in another order in each epoch.

    `examples` are arrays whose first axis counts examples, such as inputs and targets. The last examples of an epoch that fill
    no batch are left out; the next epoch has others. PlanError for arrays of different lengths and sizes that do not fit.
    """

    examples: tuple[Array, ...]
    size: int
    seed: int = 0
    _order: dict[int, Array] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        found = self.examples if isinstance(self.examples, (tuple, list)) else (self.examples,)
        arrays = tuple(np.asarray(a) for a in found)
        if not arrays or any(a.ndim < 1 or len(a) != len(arrays[0]) for a in arrays):
            shapes = ", ".join(str(list(a.shape)) for a in arrays) or "none"
            raise PlanError(f"Batches: got arrays {shapes}; wanted one or more with as many examples along axis 0")
        _check_size("Batches", self.size, self.seed, len(arrays[0]), "examples")
        object.__setattr__(self, "examples", arrays)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return len(self.examples[0]) // self.size

    def __call__(self, n: int) -> tuple[Array, ...]:
        """The batch of the step after `n` finished ones."""
        chosen = self.chosen(n)
        return tuple(a[chosen] for a in self.examples)

    def chosen(self, n: int) -> Array:
        """The indexes of the examples of that batch."""
        epoch, i = divmod(n, self.steps_per_epoch)
        if epoch not in self._order:
            self._order.clear()
            self._order[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.examples[0]))
        chosen: Array = self._order[epoch][i * self.size : (i + 1) * self.size]
        return chosen

    def __str__(self) -> str:
        return f"{self.size} of {len(self.examples[0])} examples, seed {self.seed}, {_digest(*self.examples)}"


@dataclass(frozen=True, eq=False)
class Windows:
    """`size` windows of `length` tokens from a text at random places, and the same windows one token later: (x, y).

    `ids` are the text's tokens, integers. PlanError for a text that is too short and sizes that do not fit.
    """

    ids: Array
    length: int
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise PlanError(f"Windows: got {ids.dtype} {list(ids.shape)}; wanted the tokens of a text, [n] integers")
        _check_size("Windows", self.length, self.seed, len(ids) - 1, "tokens before the last one")
        _check_size("Windows", self.size, self.seed, None, "windows")
        object.__setattr__(self, "ids", ids.astype(np.int32))

    def __call__(self, n: int) -> tuple[Array, Array]:
        """The batch of the step after `n` finished ones, [size, length] each."""
        starts = np.random.default_rng([self.seed, n]).integers(0, len(self.ids) - self.length, self.size)
        places = starts[:, None] + np.arange(self.length)
        return self.ids[places], self.ids[places + 1]

    def __str__(self) -> str:
        return f"{self.size} windows of {self.length} of {len(self.ids)} tokens, seed {self.seed}, {_digest(self.ids)}"


def _check_size(name: str, size: object, seed: object, most: int | None, what: str) -> None:
    if type(size) is not int or size < 1 or (most is not None and size > most):
        limit = f"1 to the {most} {what}" if most is not None else f"1 or more {what}"
        raise PlanError(f"{name}: got {size!r:.60}; wanted {limit}")
    if type(seed) is not int or seed < 0:
        raise PlanError(f"{name}: got the seed {seed!r:.60}; wanted an integer from 0 on")


def _digest(*arrays: Array) -> str:
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)
    return f"CRC-32 {value:08x}"
