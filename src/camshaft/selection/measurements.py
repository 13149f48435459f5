"""Stored kernel timings of this machine, by op and shape (a "site").

A node uses the times of the nearest measured site (selection/sites.py). Only times measured at the same site are compared.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from camshaft.backends.registry import present_backend
from camshaft.errors import CamshaftError, StoreError
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Values, values_of
from camshaft.process import ForkLock
from camshaft.selection.host_info import hardware
from camshaft.selection.sites import (
    Gain,
    Grid,
    Measurement,
    Site,
    Sizes,
    form_of,
    gain_at,
    grid_of,
    sizes_of,
    work_of,
)
from camshaft.store.files import digest_of
from camshaft.store.store import Store, of_current_store, row_as
from camshaft.validation.cases import VariantCase, all_cases, machine_key


@dataclass(frozen=True)
class MeasurementSummary:
    """How much is stored for this machine; `newest` is in seconds since the epoch. `gains`, largest first."""

    n_measurements: int
    n_sites: int
    newest: float | None
    gains: tuple[Gain, ...] = ()


class Measurements:
    """The measurements of this machine. Reads the document on first use; `add` merges rows of other processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, Measurement] | None = None
        self._sites: dict[tuple[str, str], dict[Sizes, Site]] = {}
        self._grids: dict[tuple[tuple[str, str], int], Grid] = {}
        self._document: dict[str, Any] | None = None  # as read, until an op that it measures is wanted
        self._ops: frozenset[str] | None = None
        self._last: tuple[str, NodeSpec, Site] | None = None  # a choice asks for one node's site many times
        self._lock = ForkLock()

    def ns(self, op: Op, case: VariantCase, node: NodeSpec) -> float | None:
        """Nanoseconds of a case at the node's site, scaled to the node's work, or None."""
        with self._lock:
            row = self._site(op, node).get((case.variant, case.backend, case.values))
            row = None if row is None else self._fresh(row, case)
        return None if row is None else row.ns * work_of(op, node) / row.work

    def values(self, op: Op, variant: KernelVariant, backend: str, node: NodeSpec) -> tuple[Values, ...]:
        """The values of a variant's tunables that were measured at the node's site and are legal."""
        with self._lock:
            texts = [v for name, where, v in self._site(op, node) if (name, where) == (variant.name, backend) and v]
        legal = {} if variant.tunables is None else variant.tunables.values
        measured = [values_of(text) for text in texts]
        return tuple(v for v in measured if all(value in legal.get(name, ()) for name, value in v.items()))

    def reaches(self, op: Op, node: NodeSpec) -> bool:
        """Whether the op was measured at a site within the node's reach."""
        with self._lock:
            return bool(self._site(op, node))

    def has(self, op: Op) -> bool:
        """Whether the op was measured at any site."""
        with self._lock:
            return self._measures(op)

    def at(self, op: Op, node: NodeSpec) -> tuple[Measurement, ...]:
        """The measurements at exactly the node's sizes."""
        with self._lock:
            self._load()
            return tuple(self._sites.get((op.name, form_of(node)), {}).get(sizes_of(node), {}).values())

    def summary(self) -> MeasurementSummary:
        """Count the stored measurements and sites."""
        with self._lock:
            rows = self._load().values()
            sites = {(m.op, m.form, m.sizes) for m in rows}
            found = (gain_at(site) for by_sizes in self._sites.values() for site in by_sizes.values())
            gains = sorted((gain for gain in found if gain is not None), key=lambda gain: -gain.times)
            return MeasurementSummary(len(rows), len(sites), max((m.when for m in rows), default=None), tuple(gains))

    def add(self, rows: Iterable[Measurement]) -> None:
        """Store measurements; each replaces an older one with its id. Raises StoreError if they cannot be written."""
        with self._exclusive():
            self._write(self._read() | {m.id: m for m in rows})

    def replace_site(self, op: Op, node: NodeSpec, rows: Iterable[Measurement]) -> None:
        """Replace all measurements of these backends at the node's sizes. Raises StoreError if they cannot be written."""
        with self._exclusive():
            fresh = {m.id: m for m in rows}
            backends = {m.backend for m in fresh.values()}
            dropped = {m.id for m in self.at(op, node) if m.backend in backends}
            self._write({id: m for id, m in self._read().items() if id not in dropped} | fresh)

    def drop(self, rows: Iterable[Measurement], reason: str) -> None:
        """Delete measurements, with a warning that gives the reason."""
        with self._lock:
            dropped = {m.id: m for m in rows}
            if not dropped:
                return
            first, more = next(iter(dropped.values())), len(dropped) - 1
            what = f"{first.op} {first.variant} {first.values}".rstrip() + (f" and {more} more" if more else "")
            try:
                with self._exclusive():
                    self._write({id: m for id, m in self._read().items() if id not in dropped})
            except StoreError as error:
                self._index({id: m for id, m in self._load().items() if id not in dropped})
                reason = f"{reason}; in this process only, since {error}"
            warnings.warn(f"dropped the stored measurement of {what}: {reason}", stacklevel=2)

    def drop_case(self, op: Op, case: VariantCase, node: NodeSpec, reason: str) -> None:
        """Delete a case's measurement at the node's site, with a warning."""
        with self._lock:
            row = self._site(op, node).get((case.variant, case.backend, case.values))
            self.drop([row] if row is not None else [], reason)

    def clear(self) -> int:
        """Delete all measurements and return how many there were."""
        with self._exclusive():
            n = len(self._read())
            if n:
                self._write({})
            return n

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock out other threads and processes from reading the document to writing it, so that no tuner's rows are lost."""
        with self._lock, self._store.locked("measurements"):
            yield

    def _fresh(self, row: Measurement, case: VariantCase) -> Measurement | None:
        if row.key == case.key():
            return row
        # A source change usually affects most kernels: drop every stale row now, so that a plan warns once.
        rows = self._load().values()
        backends = {m.backend for m in rows}
        known = {_place(c): c for backend in backends if _is_available(backend) for c in all_cases(backend)}
        known[_place(case)] = case
        self.drop([m for m in rows if m.key != _key_now(m, known)], "its kernel changed since; tune again")
        return None

    def _site(self, op: Op, node: NodeSpec) -> Site:
        """The measurements at the site nearest to the node, or {} if none is within reach."""
        if not self._measures(op):
            return {}
        self._load()
        if self._last is None or self._last[0] != op.name or self._last[1] is not node:
            self._last = op.name, node, self._nearest(op, node)
        return self._last[2]

    def _measures(self, op: Op) -> bool:
        """As `has`; for an op that was not measured, the document's rows are not checked: 20 microseconds each."""
        if self._ops is None:
            self._document = self._store.measurements.get(_document_key()) or {}
            self._ops = frozenset(str(row.get("op")) for row in _rows_of(self._document) if isinstance(row, dict))
        if op.name in self._ops:
            self._load()
        return op.name in self._ops

    def _nearest(self, op: Op, node: NodeSpec) -> Site:
        key, sizes = (op.name, form_of(node)), sizes_of(node)
        sites = self._sites.get(key)
        if not sites:
            return {}
        grid = self._grids.get((key, len(sizes)))
        if grid is None:
            grid = self._grids[key, len(sizes)] = grid_of(sites, len(sizes))
        found = grid.nearest(sizes)
        return {} if found is None else sites[found]

    def _load(self) -> dict[str, Measurement]:
        if self._rows is None:
            self._index(self._read() if self._document is None else _sound(self._document))
        assert self._rows is not None
        return self._rows

    def _index(self, rows: dict[str, Measurement]) -> None:
        self._rows, self._sites, self._grids, self._last, self._document = rows, {}, {}, None, None
        for m in rows.values():
            site = self._sites.setdefault((m.op, m.form), {}).setdefault(m.sizes, {})
            site[m.variant, m.backend, m.values] = m
        self._ops = frozenset(m.op for m in rows.values())

    def _write(self, rows: dict[str, Measurement]) -> None:
        self._store.measurements.put(_document_key(), {"measurements": [asdict(m) for m in rows.values()]})
        self._index(rows)

    def _read(self) -> dict[str, Measurement]:
        return _sound(self._store.measurements.get(_document_key()) or {})


def _rows_of(document: Mapping[str, Any]) -> list[Any]:
    rows = document.get("measurements")
    return rows if isinstance(rows, list) else []


def _sound(document: Mapping[str, Any]) -> dict[str, Measurement]:
    """The document's rows that may be used, by id."""
    known = [m for row in _rows_of(document) if (m := row_as(Measurement, row))]
    valid = [m for m in known if m.is_sound]
    return {m.id: m for m in (replace(m, sizes=tuple(m.sizes)) for m in valid)}


def _place(item: VariantCase | Measurement) -> tuple[str, str, str]:
    return item.op, item.variant, item.backend


def _key_now(row: Measurement, known: Mapping[tuple[str, str, str], VariantCase]) -> str:
    """The key that a row would have if measured now; its own key if unknown, for example on an absent backend."""
    case = known.get(_place(row))
    return row.key if case is None else replace(case, kinds=row.form.split()[0], values=row.values).key()


def _is_available(backend: str) -> bool:
    try:
        present_backend(backend)
    except CamshaftError:
        return False
    return True


@functools.cache
def _document_key() -> str:
    """The store key of this machine's kernel measurements. Machines that share a folder differ in CPU, caches or cores."""
    return digest_of("kernels", machine_key(), repr(hardware()))


_instances: dict[Path, Measurements] = {}


def measurements() -> Measurements:
    """The measurements in the current store; one object per store and process."""
    return of_current_store(_instances, Measurements)
