"""Hits and misses of the store on this machine, by kind: added to one file when a process ends.

A process that is killed adds nothing: the figures are for people, and nothing is decided by them but when to list a store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from camshaft.store.files import atomic_file
from camshaft.store.objects import Counts
from camshaft.store.process_lock import locked

_FILE, _LOCK = "counters", "counters.lock"
Totals = dict[str, Counts]


@dataclass(frozen=True)
class Counters:
    """The counts in one folder, which must be there to add to them."""

    folder: Path

    def read(self) -> Totals:
        """The counts of all processes that ended, by kind; empty where there are none or the file is damaged."""
        try:
            rows = json.loads((self.folder / _FILE).read_bytes())
        except (OSError, ValueError):
            return {}
        rows = rows if isinstance(rows, dict) else {}
        return {str(kind): made for kind, row in rows.items() if (made := _counts(row))}

    def add(self, counts: Mapping[str, Counts], listed: frozenset[str] = frozenset()) -> Totals:
        """Adds what a process did, and gives the totals. Of the kinds that it `listed`, nothing is added since. StoreError."""
        with locked(self.folder / _LOCK):
            totals = self.read()
            for kind, done in counts.items():
                had = totals.get(kind, Counts())
                added = 0 if kind in listed else had.added_nbytes + done.added_nbytes
                totals[kind] = Counts(had.hits + done.hits, had.misses + done.misses, added)
            self._write(totals)
        return totals

    def forget(self, kinds: frozenset[str]) -> None:
        """Sets the counts of some kinds to nothing. StoreError when they cannot be written."""
        with locked(self.folder / _LOCK):
            self._write({kind: counts for kind, counts in self.read().items() if kind not in kinds})

    def _write(self, totals: Totals) -> None:
        with atomic_file(self.folder / _FILE) as file:
            file.write(json.dumps({kind: asdict(counts) for kind, counts in totals.items()}).encode())


def _counts(row: Any) -> Counts | None:
    """A row of the file; None for one that another version wrote otherwise."""
    if not isinstance(row, dict) or row.keys() != asdict(Counts()).keys():
        return None
    return Counts(**row) if all(type(value) is int for value in row.values()) else None
