"""The time of a kernel at a site (an op and its sizes), and which of the measured sites is nearest to another.

The nearest is the one at the smallest distance in log space over all sizes, if no size differs by more than a factor of REACH.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log2
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from camshaft.extent import Extent
from camshaft.ops.op import KernelVariant, NodeSpec, Op
from camshaft.ops.spec import bound
from camshaft.validation.cases import case_of, kinds_of

REACH = 4.0
# Where sizes are smaller, a variant that was not measured may win at a neighbour: few were, at a `quick` site.
SMALL_SIZE = 256


@dataclass(frozen=True)
class Measurement:
    """The time of one variant with its values at one site. `key` is the case's digest when measured; another digest now means
    that the kernel changed. `work` (operations plus bytes) scales times to neighbours. `when` is in seconds since the epoch.
    `guess`: the cost model preferred it. `quick`: timed in the background, with few rivals (tune/measured_choice.py)."""

    op: str
    variant: str
    backend: str
    values: str
    form: str
    sizes: tuple[int, ...]
    work: float
    ns: float
    key: str
    threads: int
    when: float
    guess: bool = False
    quick: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether every field has its type and a value that a measurement can have: the row may come from a damaged file."""
        texts = (self.op, self.variant, self.backend, self.values, self.form, self.key)
        numbers = (self.work, self.ns, self.when)
        return (
            all(isinstance(text, str) for text in texts)
            and isinstance(self.sizes, list | tuple)
            and all(type(size) is int and size >= 0 for size in self.sizes)
            and all(type(x) in (int, float) and isfinite(x) and x >= 0 for x in numbers)
            and self.work > 0
            and type(self.threads) is int
            and type(self.guess) is type(self.quick) is bool
        )

    @property
    def id(self) -> str:
        """The identity under which a newer measurement replaces this one."""
        sizes = "x".join(map(str, self.sizes))
        return "|".join((self.op, self.variant, self.backend, self.values, self.form, sizes))


def form_of(node: NodeSpec) -> str:
    """Returns what nodes with comparable times have in common: dtypes, ranks, which axes are Extents, attributes that are not
    sizes, and which inputs are packed before a run."""
    axes = ",".join("".join("e" if isinstance(d, Extent) else "n" for d in spec.shape) for spec in node.inputs)
    others = [f"{name}={value}" for name, value in sorted(node.attrs.items()) if isinstance(value, bool | str | tuple)]
    packed = [f"packed={node.packed}"] if node.packed else []
    return " ".join((kinds_of(node), axes, *others, *packed))


def sizes_of(node: NodeSpec) -> tuple[int, ...]:
    """All sizes: the inputs' axes, then integer and Extent attributes; Extents at their bounds."""
    attrs = [value for _, value in sorted(node.attrs.items()) if type(value) is int or isinstance(value, Extent)]
    return (*(size for spec in node.inputs for size in spec.bounds), *(bound(value) for value in attrs))


def work_of(op: Op, node: NodeSpec) -> float:
    """Operations plus bytes moved."""
    return max(1.0, op.flops(node) + op.nbytes(node))


def measurement(
    op: Op,
    variant: KernelVariant,
    backend: str,
    node: NodeSpec,
    ns: float,
    threads: int,
    *,
    guess: bool = False,
    quick: bool = False,
) -> Measurement:
    """A Measurement taken now."""
    case = case_of(op, variant, backend, node)
    site = form_of(node), sizes_of(node)
    work, now = work_of(op, node), time.time()
    key = case.key()
    return Measurement(op.name, variant.name, backend, case.values, *site, work, ns, key, threads, now, guess, quick)


@dataclass(frozen=True)
class Gain:
    """A site where another variant than the cost model's choice won, `times` faster."""

    op: str
    sizes: tuple[int, ...]
    variant: str
    guess: str
    times: float


Site = dict[tuple[str, str, str], Measurement]
Sizes: TypeAlias = tuple[int, ...]
Array = np.ndarray[Any, Any]


def is_quick(site: Site) -> bool:
    return any(m.quick for m in site.values())


def gain_at(site: Site) -> Gain | None:
    """The gain at a site, or None if the cost model's choice won or is unknown."""
    guess, best = next((m for m in site.values() if m.guess), None), min(site.values(), key=lambda m: m.ns)
    if guess is None or guess.ns <= best.ns:
        return None
    label = f"{best.variant} {best.values}".rstrip()
    return Gain(best.op, best.sizes, label, guess.variant, guess.ns / max(best.ns, 1e-3))


class Grid(NamedTuple):
    """Sites in ascending order, their sizes [sites, sizes], and which of them are quick.

    Arrays, because a machine may have hundreds of sites, and an eager call of a new shape looks for the nearest."""

    sites: tuple[Sizes, ...]
    sizes: Array
    quick: Array

    def nearest(self, wanted: Sizes) -> Sizes | None:
        """The site at the smallest distance in log space, or None if at each some size is out of reach. Small sizes of a quick
        site must be equal."""
        if not self.sites:
            return None
        own = np.array(wanted, np.int64)
        steps = np.abs(np.log2(np.maximum(self.sizes, 1) / np.maximum(own, 1)))
        small = (self.sizes != own) & (np.minimum(self.sizes, own) < SMALL_SIZE)
        refused = (steps > log2(REACH)).any(1) | self.quick & small.any(1)
        distances = np.where(refused, np.inf, (steps * steps).sum(1))
        least = int(distances.argmin())
        return None if refused[least] else self.sites[least]


def grid_of(sites: Mapping[Sizes, Site], n_sizes: int) -> Grid:
    """The sites with `n_sizes` sizes."""
    chosen = tuple(sorted(at for at in sites if len(at) == n_sizes))
    sizes = np.array(chosen, np.int64).reshape(len(chosen), n_sizes)
    return Grid(chosen, sizes, np.array([is_quick(sites[at]) for at in chosen], bool))
