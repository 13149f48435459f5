"""Evidence: what was proved on this machine, one document in the store that is read once; BackendValidation sums it up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from camshaft.store.store import Store, store
from camshaft.validation.cases import VariantCase, machine_key

# Verdicts on one subject under other digests that are kept: for versions of camshaft that take turns on a machine.
GENERATIONS = 4
Status = Literal["proved", "failed", "absent"]


@dataclass(frozen=True)
class ValidationResult:
    """What became of a claim. `reason` says why it failed or is absent; `max_error` (normalized mean squared; None where it is
    not finite or nothing ran) was seen in `sample`; `elapsed_s` is how long all samples took, compilation included.
    `kinds` and `values` are the claim's, `digest` stands for it with its sources and device (claims.py): evidence under another
    one says nothing. `when` is in seconds of the epoch.
    `lasting` is False where somebody else ended the proof (out of memory, Ctrl-C): nothing to keep.
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

    @property
    def subject(self) -> tuple[str | None, ...]:
        """What stays of the claim when its sources or the device's driver change."""
        return self.op, self.variant, self.backend, self.kinds, self.values


@dataclass(frozen=True)
class BackendValidation:
    """A backend's verdicts. `status` is proved when something was proved and nothing failed."""

    name: str
    status: Status
    reason: str | None
    n_proved: int
    n_failed: int
    n_absent: int
    results: tuple[ValidationResult, ...]


def summary(name: str, results: Iterable[ValidationResult], absent: str | None) -> BackendValidation:
    """The validation of a backend from its verdicts, or from why it is absent."""
    rows = tuple(results)
    counts = {s: sum(v.status == s for v in rows) for s in ("proved", "failed", "absent")}
    status: Status = "failed" if counts["failed"] else "proved" if counts["proved"] else "absent"
    failed = [f"{v.op} {v.variant}: {v.reason}" for v in rows if v.status == "failed"]
    reason = absent or ("; ".join(failed) or None) if status != "proved" else None
    return BackendValidation(name, status, reason, counts["proved"], counts["failed"], counts["absent"], rows)


class ValidationCache:
    """The verdicts of this machine. Reads its document when first asked; `add` keeps new ones and merges what other
    processes wrote meanwhile."""

    def __init__(self, kept: Store) -> None:
        self._store = kept
        self._rows: dict[str, ValidationResult] | None = None
        self._lock = threading.RLock()

    def get(self, case: VariantCase) -> ValidationResult | None:
        """The verdict on a claim as its sources are now, or None. What was proved on all samples holds for any kinds."""
        with self._lock:
            if self._rows is None:
                self._rows = self._read()
            whole = self._rows.get(replace(case, kinds=None).key())
            if whole is not None and (case.kinds is None or whole.status == "proved"):
                return whole
            return self._rows.get(case.key())

    def results(self) -> tuple[ValidationResult, ...]:
        """Every verdict that is kept, those on sources of another time too."""
        with self._lock:
            if self._rows is None:
                self._rows = self._read()
            return tuple(self._rows.values())

    def add(self, results: Mapping[VariantCase, ValidationResult]) -> None:
        """Keeps verdicts, in memory and in the store. StoreError when they cannot be written."""
        lasting = {case: result for case, result in results.items() if result.lasting}
        if not lasting:
            return
        with self._lock, self._store.locked("evidence"):
            self._rows = _recent(self._read() | (self._rows or {}) | {c.key(): v for c, v in lasting.items()})
            document = {"verdicts": {key: asdict(v) for key, v in self._rows.items()}}
            self._store.evidence.put(machine_key(), document)

    def is_kept(self) -> bool:
        """Whether all that this process knows to be proved is in the store now: another one may have removed it."""
        with self._lock:
            kept = {key for key, row in self._read().items() if row.status == "proved"}
            return all(key in kept for key, row in (self._rows or {}).items() if row.status == "proved")

    def _read(self) -> dict[str, ValidationResult]:
        document = self._store.evidence.get(machine_key()) or {}
        rows = document.get("verdicts")
        return {k: v for k, row in rows.items() if (v := _verdict(row))} if isinstance(rows, dict) else {}


def _recent(rows: dict[str, ValidationResult]) -> dict[str, ValidationResult]:
    """The rows but those that GENERATIONS newer ones of their subject stand beside."""
    newest = sorted(rows, key=lambda key: rows[key].when, reverse=True)
    seen: Counter[tuple[str | None, ...]] = Counter()
    kept = set()
    for key in newest:
        seen[rows[key].subject] += 1
        if seen[rows[key].subject] <= GENERATIONS:
            kept.add(key)
    return {key: row for key, row in rows.items() if key in kept}


def _verdict(row: Any) -> ValidationResult | None:
    """A row of the document; None for one that another version of camshaft wrote otherwise."""
    if not isinstance(row, dict) or set(row) != {f.name for f in fields(ValidationResult)}:
        return None
    return ValidationResult(**row)


_caches: dict[Path, ValidationCache] = {}
_lock = threading.Lock()


def validation_cache() -> ValidationCache:
    """The ledger of the current store: one per folder and process."""
    kept = store()
    with _lock:
        return _caches.setdefault(kept.root, ValidationCache(kept))
