"""Measurements: how long variants took at shapes on this machine, one document in the store.

Measured shapes are sites. A node has the site nearest to it in log space, all sizes counted, if no size is more than REACH times
off: with sites on a geometric ladder, the winner holds up to half-way between two. Only times of one site are compared.
"""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from math import log2
from pathlib import Path
from typing import Any

from camshaft.backends.registry import present_backend
from camshaft.errors import CamshaftError, StoreError
from camshaft.extent import Extent
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Values, values_of
from camshaft.ops.spec import bound
from camshaft.store.store import Store, store
from camshaft.validation.cases import VariantCase, all_cases, case_of, kinds_of, machine_key

REACH = 4.0


@dataclass(frozen=True)
class Measurement:
    """One variant with its values at one site. `key` is the claim's when it was measured: another one now means that the kernel
    changed. `work` is what times are scaled by for a neighbour: operations and bytes. `when` is in seconds of the epoch."""

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

    @property
    def id(self) -> str:
        """What a newer measurement replaces."""
        sizes = "x".join(map(str, self.sizes))
        return "|".join((self.op, self.variant, self.backend, self.values, self.form, sizes))


def form_of(node: NodeSpec) -> str:
    """What must be equal for times to be comparable: dtypes, ranks, which axes are Extents, attributes that are no sizes."""
    axes = ",".join("".join("e" if isinstance(d, Extent) else "n" for d in spec.shape) for spec in node.inputs)
    others = [f"{name}={value}" for name, value in sorted(node.attrs.items()) if isinstance(value, bool | str | tuple)]
    return " ".join((kinds_of(node), axes, *others))


def sizes_of(node: NodeSpec) -> tuple[int, ...]:
    """Every size: the inputs' axes, then the attributes that are whole numbers or Extents; Extents at their bounds."""
    attrs = [value for _, value in sorted(node.attrs.items()) if type(value) is int or isinstance(value, Extent)]
    return (*(size for spec in node.inputs for size in spec.bounds), *(bound(value) for value in attrs))


def work_of(op: Op, node: NodeSpec) -> float:
    """Operations and bytes."""
    return max(1.0, op.flops(node) + op.nbytes(node))


def measurement(op: Op, variant: KernelVariant, backend: str, node: NodeSpec, ns: float, threads: int) -> Measurement:
    """A time of now, ready to be kept."""
    case = case_of(op, variant, backend, node)
    site = form_of(node), sizes_of(node)
    work, now = work_of(op, node), time.time()
    return Measurement(op.name, variant.name, backend, case.values, *site, work, ns, case.key(), threads, now)


@dataclass(frozen=True)
class Kept:
    """How much is kept for this machine, and the time of the newest in seconds of the epoch."""

    n_measurements: int
    n_sites: int
    newest: float | None


Site = dict[tuple[str, str, str], Measurement]


class Measurements:
    """The measurements of this machine. Reads its document when first asked; `add` merges what other processes wrote."""

    def __init__(self, kept: Store) -> None:
        self._store = kept
        self._rows: dict[str, Measurement] | None = None
        self._sites: dict[tuple[str, str], dict[tuple[int, ...], Site]] = {}
        self._lock = threading.RLock()

    def ns(self, op: Op, case: VariantCase, node: NodeSpec) -> float | None:
        """Nanoseconds of a claim at the node's site, scaled to the node's work; None where there is none."""
        with self._lock:
            found = self._site(op, node).get((case.variant, case.backend, case.values))
            found = None if found is None else self._fresh(found, case)
        return None if found is None else found.ns * work_of(op, node) / found.work

    def values(self, op: Op, variant: KernelVariant, backend: str, node: NodeSpec) -> tuple[Values, ...]:
        """The values of a variant's tunables that were measured at the node's site and are still legal."""
        with self._lock:
            texts = [v for name, where, v in self._site(op, node) if (name, where) == (variant.name, backend) and v]
        legal = {} if variant.tunables is None else variant.tunables.values
        found = [values_of(text) for text in texts]
        return tuple(v for v in found if all(value in legal.get(name, ()) for name, value in v.items()))

    def at(self, op: Op, node: NodeSpec) -> tuple[Measurement, ...]:
        """What was measured at exactly the node's sizes."""
        with self._lock:
            self._load()
            return tuple(self._sites.get((op.name, form_of(node)), {}).get(sizes_of(node), {}).values())

    def kept(self) -> Kept:
        """How much there is."""
        with self._lock:
            rows = self._load().values()
            sites = {(m.op, m.form, m.sizes) for m in rows}
            return Kept(len(rows), len(sites), max((m.when for m in rows), default=None))

    def add(self, made: Iterable[Measurement]) -> None:
        """Keeps measurements in place of older ones of their ids. StoreError when they cannot be written."""
        with self._alone():
            self._write(self._read() | {m.id: m for m in made})

    def replace_site(self, op: Op, node: NodeSpec, made: Iterable[Measurement]) -> None:
        """Keeps these as all that is known of their backends at the node's sizes. StoreError as above."""
        with self._alone():
            fresh = {m.id: m for m in made}
            backends = {m.backend for m in fresh.values()}
            gone = {m.id for m in self.at(op, node) if m.backend in backends}
            self._write({id: m for id, m in self._read().items() if id not in gone} | fresh)

    def drop(self, rows: Iterable[Measurement], reason: str) -> None:
        """Forgets measurements, with a warning that says why."""
        with self._lock:
            gone = {m.id: m for m in rows}
            if not gone:
                return
            first, more = next(iter(gone.values())), len(gone) - 1
            what = f"{first.op} {first.variant} {first.values}".rstrip() + (f" and {more} more" if more else "")
            try:
                with self._alone():
                    self._write({id: m for id, m in self._read().items() if id not in gone})
            except StoreError as error:
                self._index({id: m for id, m in self._load().items() if id not in gone})
                reason = f"{reason}; for this process alone: {error}"
            warnings.warn(f"the stored measurement of {what} dropped: {reason}", stacklevel=2)

    def drop_claim(self, op: Op, case: VariantCase, node: NodeSpec, reason: str) -> None:
        """Forgets what the node's site has of a claim, with a warning."""
        with self._lock:
            found = self._site(op, node).get((case.variant, case.backend, case.values))
            self.drop([found] if found is not None else [], reason)

    def clear(self) -> int:
        """Forgets all; how many there were."""
        with self._alone():
            n = len(self._read())
            if n:
                self._write({})
            return n

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """From reading the document to writing it nobody else may, in this process or another: two that tune keep both's rows."""
        with self._lock, self._store.locked("measurements"):
            yield

    def _fresh(self, found: Measurement, case: VariantCase) -> Measurement | None:
        if found.key == case.key():
            return found
        # What changed one kernel changed most: all are looked at now, so that a plan warns once.
        rows = self._load().values()
        known = {_place(c): c for backend in {m.backend for m in rows} if _is_here(backend) for c in all_cases(backend)}
        known[_place(case)] = case
        self.drop([m for m in rows if m.key != _key_now(m, known)], "its kernel changed since; tune again")
        return None

    def _site(self, op: Op, node: NodeSpec) -> Site:
        """What was measured nearest to the node, {} if all is out of reach."""
        self._load()
        sites = self._sites.get((op.name, form_of(node)))
        if not sites:
            return {}
        sizes = sizes_of(node)
        near = [(d, at) for at in sites if (d := _distance(sizes, at)) is not None]
        return sites[min(near)[1]] if near else {}

    def _load(self) -> dict[str, Measurement]:
        if self._rows is None:
            self._index(self._read())
        assert self._rows is not None
        return self._rows

    def _index(self, rows: dict[str, Measurement]) -> None:
        self._rows, self._sites = rows, {}
        for m in rows.values():
            site = self._sites.setdefault((m.op, m.form), {}).setdefault(m.sizes, {})
            site[m.variant, m.backend, m.values] = m

    def _write(self, rows: dict[str, Measurement]) -> None:
        self._store.measurements.put(_document_key(), {"measurements": [asdict(m) for m in rows.values()]})
        self._index(rows)

    def _read(self) -> dict[str, Measurement]:
        document = self._store.measurements.get(_document_key()) or {}
        rows = document.get("measurements")
        made = [m for row in rows if (m := _measurement(row))] if isinstance(rows, list) else []
        return {m.id: m for m in made}


def _place(found: VariantCase | Measurement) -> tuple[str, str, str]:
    return found.op, found.variant, found.backend


def _key_now(row: Measurement, known: Mapping[tuple[str, str, str], VariantCase]) -> str:
    """The key that a row would have if it were measured now; its own where nobody can say, as of a backend that is absent."""
    case = known.get(_place(row))
    return row.key if case is None else replace(case, kinds=row.form.split()[0], values=row.values).key()


def _is_here(backend: str) -> bool:
    try:
        present_backend(backend)
    except CamshaftError:
        return False
    return True


def _document_key() -> str:
    """Of the document of this machine; other measurements than of kernels have documents of their own."""
    return hashlib.sha256(f"kernels|{machine_key()}".encode()).hexdigest()


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float | None:
    """The squared distance in log space; None where a size is out of reach."""
    steps = (
        [abs(log2(max(x, 1) / max(y, 1))) for x, y in zip(a, b, strict=True)] if len(a) == len(b) else [log2(REACH) + 1]
    )
    return None if max(steps, default=0.0) > log2(REACH) else sum(step * step for step in steps)


def _measurement(row: Any) -> Measurement | None:
    """A row of the document; None for one that another version of camshaft wrote otherwise."""
    if not isinstance(row, dict) or set(row) != {f.name for f in fields(Measurement)}:
        return None
    return Measurement(**row | {"sizes": tuple(row["sizes"])})


_books: dict[Path, Measurements] = {}
_lock = threading.Lock()


def measurements() -> Measurements:
    """The measurements in the current store: one per folder and process."""
    kept = store()
    with _lock:
        return _books.setdefault(kept.root, Measurements(kept))
