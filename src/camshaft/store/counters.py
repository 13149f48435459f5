"""Hit and miss counts of the store by kind, summed over processes in one file.

A process adds its counts when it ends; a killed process adds none. The counts are informative, except that they decide when a
store is listed for eviction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from camshaft.store.entries import remove_entry
from camshaft.store.files import atomic_file, read_regular
from camshaft.store.objects import Counts
from camshaft.store.process_lock import locked

_FILE, _LOCK = "counters", "counters.lock"
Totals = dict[str, Counts]


@dataclass(frozen=True)
class Counters:
    """The counts in one folder, which must exist before adding to them."""

    folder: Path

    def read(self) -> Totals:
        """The summed counts by kind; empty if there are none or the file is damaged."""
        try:
            rows = json.loads(read_regular(self.folder / _FILE))
        except (OSError, ValueError, RecursionError):
            return {}
        rows = rows if isinstance(rows, dict) else {}
        return {str(kind): counts for kind, row in rows.items() if (counts := _counts(row))}

    def add(self, counts: Mapping[str, Counts], listed: frozenset[str] = frozenset()) -> Totals:
        """Add a process's counts and return the totals. The added bytes of the kinds in `listed` restart at zero. Raises
        StoreError."""
        with locked(self.folder / _LOCK):
            totals = self.read()
            for kind, new in counts.items():
                old = totals.get(kind, Counts())
                added = 0 if kind in listed else old.added_nbytes + new.added_nbytes
                totals[kind] = Counts(old.hits + new.hits, old.misses + new.misses, added)
            self._write(totals)
        return totals

    def reset(self, kinds: frozenset[str]) -> None:
        """Reset the counts of some kinds. Raises StoreError if the file cannot be written."""
        with locked(self.folder / _LOCK):
            self._write({kind: counts for kind, counts in self.read().items() if kind not in kinds})

    def _write(self, totals: Totals) -> None:
        path = self.folder / _FILE
        if path.is_dir():
            remove_entry(path, "a folder in the place of the counters")
        with atomic_file(path) as file:
            file.write(json.dumps({kind: asdict(counts) for kind, counts in totals.items()}).encode())


def _counts(row: Any) -> Counts | None:
    """A row of the file; None if another version wrote it with other fields."""
    if not isinstance(row, dict) or row.keys() != asdict(Counts()).keys():
        return None
    return Counts(**row) if all(type(value) is int for value in row.values()) else None
