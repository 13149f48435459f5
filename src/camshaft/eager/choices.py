"""Choices: which variant runs an op's calls on arrays, remembered by their dtypes and ranks."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import Any

from camshaft.backends.cpu.device import cpu_device
from camshaft.ops.kernels.launch import for_workers
from camshaft.ops.kernels.run_time_sizes import BACKENDS
from camshaft.ops.op import NodeSpec, Op
from camshaft.plan.hooks import hook
from camshaft.process import eager_threads
from camshaft.selection.choice import Choice
from camshaft.selection.measurements import measurements
from camshaft.selection.select import Measurements, alternatives, select
from camshaft.settings import setting
from camshaft.validation.cases import VariantCase, case_of
from camshaft.validation.proof import prove

# Calls, shapes or attributes that an op remembers: past them the oldest go, whose kernels come from the store when they are
# wanted again. What native calls point to stays.
MOST_REMEMBERED = 1024


def remember(known: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Adds an entry; a full table first drops its oldest eighth."""
    if len(known) >= MOST_REMEMBERED:
        for old in list(known)[: MOST_REMEMBERED // 8]:
            known.pop(old, None)
    known[key] = value


def anything(choice: Choice, node: NodeSpec) -> None:
    """Accepts every choice."""


def unmeasured(case: VariantCase, node: NodeSpec) -> None:
    """The measurements of an op that has none."""


def _kind(node: NodeSpec) -> Hashable:
    return tuple((spec.dtype, len(spec.shape)) for spec in node.inputs)


class Choices:
    """The variants that calls of an op run. Where nothing but one can do it, the choice for the first node of the same dtypes and
    ranks is that for all."""

    def __init__(
        self, op: Op, override: str | None, measurements: Measurements | None, check: Callable[[Choice, NodeSpec], None]
    ) -> None:
        self.op, self.override, self.measurements, self.check = op, override, measurements, check
        self._lock = threading.RLock()
        self._by_kind: dict[Hashable, Choice] = {}
        self._first: dict[Hashable, Choice | None] = {}
        self._proved: dict[VariantCase, bool] = {}
        self._several: set[Hashable] = set()

    def select(self, node: NodeSpec) -> Choice:
        """Returns the choice for a node under the current override and measurements: where nothing but one variant can do it, the
        choice for the first node of these dtypes and ranks."""
        kind = _kind(node)
        choice = self._by_kind.get(kind)
        if choice is None or choice.variant.supports(node, choice.device) is not None:
            choice = self._selected(node)
            if kind not in self._several:
                with self._lock:
                    if self._is_only(node):
                        remember(self._by_kind, kind, choice)
                    else:
                        self._several.add(kind)
        self.check(choice, node)
        return choice

    def _selected(self, node: NodeSpec) -> Choice:
        found = self.measurements
        if found is None and not measurements().has(self.op):
            found = unmeasured  # without it, every variant's measurements are looked up
        with for_workers(eager_threads()):
            choice = select(self.op, node, self.override, found)
        if self.measurements is None and len(choice.losers) > 0 and setting("measure"):
            hook("measure_at_exit")([hook("Used")(self.op, node, choice, self.override)])
        return choice

    def _is_only(self, node: NodeSpec) -> bool:
        measured = self.measurements is not None or measurements().has(self.op)
        return not measured and len(alternatives(self.op, node, self.override)) == 1

    def first_use(self, node: NodeSpec, choice: Choice | None = None) -> Choice | None:
        """The choice with the op's `first_use` for the chosen variant, where that is proved; without a choice, that for whichever
        variant of SIMD would be chosen."""
        variant = self.op.first_use(node, None if choice is None else choice.variant)
        backend = choice.backend if choice is not None else self.override or ""
        if variant is None or self.check is not anything or backend not in BACKENDS:
            return None
        case = case_of(self.op, variant, backend, node)
        if case not in self._proved:
            with self._lock:
                self._proved[case] = prove([case])[case].status == "proved"
        if not self._proved[case]:
            return None
        if choice is not None:
            return dataclasses.replace(choice, variant=variant)
        return Choice(self.op, variant, backend, cpu_device(backend), "the first calls of a shape", ())

    def only(self, node: NodeSpec) -> Choice | None:
        """The choice for every node of these dtypes and ranks, where there is one; else that of its first calls."""
        return None if self.check is not anything else self._by_kind.get(_kind(node)) or self._first_of(node)

    def _first_of(self, node: NodeSpec) -> Choice | None:
        kind = _kind(node)
        if kind not in self._first:
            self._first[kind] = self.first_use(node)
        return self._first[kind]
