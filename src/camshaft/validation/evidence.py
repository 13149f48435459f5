"""Validation results of this machine: a document in the store, cached in memory, summed up as BackendValidation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from camshaft.errors import shortened
from camshaft.process import ForkLock
from camshaft.store.store import Store, of_current_store, row_as
from camshaft.validation.cases import VariantCase, machine_key

# Results stored per subject under different digests, for several versions of camshaft on one machine.
GENERATIONS = 4
ATTEMPTS = 2
Status = Literal["proved", "failed", "absent"]


@dataclass(frozen=True)
class ValidationResult:
    """The result of validating one case.

    `reason` says why it failed or is absent. `max_error` is the normalized mean squared error seen in `sample`, None if not
    finite or nothing ran. `elapsed_s` is the time of all samples, including compilation. `kinds` and `values` are the case's,
    `digest` its key; a result with another digest is stale. `when` is in seconds since the epoch. `lasting` is False if
    something external ended the validation (out of memory, Ctrl-C); such a result is not stored. `died` is True for a hang or
    crash, which a busy or faulty machine may cause: another process tries again, until ATTEMPTS processes have seen it.
    """

    op: str
    variant: str
    backend: str
    status: Status
    reason: str | None = None
    max_error: float | None = None
    tolerance: float | None = None
    sample: str | None = None
    n_samples: int = 0
    elapsed_s: float = 0.0
    lasting: bool = True
    digest: str | None = None
    kinds: str | None = None
    values: str = ""
    when: float = 0.0
    died: bool = False
    attempts: int = 1

    @property
    def subject(self) -> tuple[str | None, ...]:
        """Identifies the case independently of its sources and the device's driver."""
        return self.op, self.variant, self.backend, self.kinds, self.values


@dataclass(frozen=True)
class BackendValidation:
    """The results of one backend. `status` is proved if at least one case is proved and none failed."""

    name: str
    status: Status
    reason: str | None
    n_proved: int
    n_failed: int
    n_absent: int
    results: tuple[ValidationResult, ...]

    def __repr__(self) -> str:
        counts = f"{self.n_proved} proved, {self.n_failed} failed, {self.n_absent} absent"
        return f"BackendValidation({self.name!r}: {self.status}, {counts}{f'; {shortened(self.reason)}' if self.reason else ''})"


def summary(name: str, results: Iterable[ValidationResult], absent: str | None) -> BackendValidation:
    """Sum up a backend's results; `absent` is the reason why it is unavailable, or None."""
    rows = tuple(results)
    counts = {s: sum(v.status == s for v in rows) for s in ("proved", "failed", "absent")}
    status: Status = "failed" if counts["failed"] else "proved" if counts["proved"] else "absent"
    failed = [f"{v.op} {v.variant}: {v.reason}" for v in rows if v.status == "failed"]
    reason = absent or ("; ".join(failed) or None) if status != "proved" else None
    return BackendValidation(name, status, reason, counts["proved"], counts["failed"], counts["absent"], rows)


class ValidationCache:
    """The validation results of this machine. Reads the document on first use; `add` merges results of other processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, ValidationResult] | None = None
        self._own: set[str] = set()  # keys of the results that this process has added
        self._used: set[str] = set()  # keys of the proofs that it was given or has added
        self._data: bytes | None = None  # the entry that `_stored` is of
        self._stored: dict[str, ValidationResult] = {}
        self._lock = ForkLock()

    def get(self, case: VariantCase) -> ValidationResult | None:
        """The result for a case with its present sources, or None. A proof on all samples is valid for any kinds."""
        with self._lock:
            if self._rows is None:
                self._rows = self._read()
            whole = self._valid(replace(case, kinds=None).key())
            if whole is not None and (case.kinds is None or whole.status == "proved"):
                return whole
            return self._valid(case.key())

    def attempts(self, case: VariantCase) -> int:
        """The number of processes that have seen this case hang or crash."""
        with self._lock:
            row = (self._rows or {}).get(case.key())
            return row.attempts if row is not None and row.died else 0

    def _valid(self, key: str) -> ValidationResult | None:
        row = (self._rows or {}).get(key)
        again = row is not None and row.died and row.attempts < ATTEMPTS and key not in self._own
        if row is None or again:
            return None
        if row.status == "proved":
            self._used.add(key)
        return row

    def results(self) -> tuple[ValidationResult, ...]:
        """Every stored result, including those of other source versions."""
        with self._lock:
            if self._rows is None:
                self._rows = self._read()
            return tuple(self._rows.values())

    def add(self, results: Mapping[VariantCase, ValidationResult]) -> None:
        """Store results. Raises StoreError if they cannot be written."""
        lasting = {case: result for case, result in results.items() if result.lasting}
        if not lasting:
            return
        with self._lock, self._store.locked("evidence"):
            self._own |= {case.key() for case in lasting}
            self._used |= {case.key() for case, result in lasting.items() if result.status == "proved"}
            self._rows = _recent(self._read() | (self._rows or {}) | {c.key(): v for c, v in lasting.items()})
            document = {"verdicts": {key: asdict(v) for key, v in self._rows.items()}}
            self._store.evidence.put(machine_key(), document)

    def is_stored(self) -> bool:
        """Whether the store still has every proof that this process used; another process may have removed some. Those of other
        sources count for nothing: newer ones take their place."""
        with self._lock:
            stored = {key for key, row in self._read().items() if row.status == "proved"}
            return self._used <= stored

    def _read(self) -> dict[str, ValidationResult]:
        """The stored rows, parsed anew only if the entry changed: it is read at each check of `is_stored`."""
        data = self._store.evidence.objects.get(machine_key())
        if data is None or data != self._data:
            document = self._store.evidence.get(machine_key()) or {}
            rows = document.get("verdicts")
            found = rows.items() if isinstance(rows, dict) else ()
            self._stored = {k: v for k, row in found if (v := row_as(ValidationResult, row))}
            self._data = data
        return self._stored


def _recent(rows: dict[str, ValidationResult]) -> dict[str, ValidationResult]:
    """The rows, with at most the GENERATIONS newest of each subject."""
    newest = sorted(rows, key=lambda key: rows[key].when, reverse=True)
    seen: Counter[tuple[str | None, ...]] = Counter()
    retained = set()
    for key in newest:
        seen[rows[key].subject] += 1
        if seen[rows[key].subject] <= GENERATIONS:
            retained.add(key)
    return {key: row for key, row in rows.items() if key in retained}


_caches: dict[Path, ValidationCache] = {}


def validation_cache() -> ValidationCache:
    """The cache for the current store; one per store and process."""
    return of_current_store(_caches, ValidationCache)
