"""Report the store's contents by kind, and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from camshaft.errors import SettingError
from camshaft.store.files import naming, remove_unfinished
from camshaft.store.objects import Counts
from camshaft.store.process_lock import LEASE_PREFIX
from camshaft.store.store import Store

KINDS = ("objects", "evidence", "measurements", "schedules", "headers", "prompts", "packed", "models")
REBUILT = KINDS[:7]  # rebuilt when needed; models have to be downloaded again
FILES = ("packed", "models")  # whose entries are files of any name
# The object stores of each kind.
_PARTS = {"objects": ("objects", "keys")} | {kind: (kind,) for kind in REBUILT[1:6]}


@dataclass(frozen=True)
class Usage:
    """The contents of one kind. `n_names` is the number of first keys of kernels; `max_nbytes` the bound, or None. Hits and
    misses are summed over all finished processes and this one; None for packed weights and models."""

    kind: str
    n_entries: int
    nbytes: int
    max_nbytes: int | None
    hits: int | None = None
    misses: int | None = None
    n_names: int | None = None


@dataclass(frozen=True)
class Cleared:
    """Entries of one kind that were deleted."""

    kind: str
    n_entries: int
    nbytes: int


def usage(store: Store) -> tuple[Usage, ...]:
    """The contents of every kind. Raises StoreError if a folder cannot be read."""
    totals = store.counters.read()
    return tuple(_files(store, kind) if kind in FILES else _usage(store, kind, totals) for kind in KINDS)


def n_processes(store: Store) -> int:
    """The number of processes that use the store; this one counts only after it has read from it."""
    store.leases.oldest()  # deletes the leases of dead processes
    return len(list(store.leases.folder.glob(LEASE_PREFIX + "*")))


def _usage(store: Store, kind: str, totals: dict[str, Counts]) -> Usage:
    parts = {name: list(store.parts[name].entries()) for name in _PARTS[kind]}
    here, counted = store.parts[kind], totals.get(kind, Counts())
    hits, misses = (a + b for a, b in zip(_pair(here.counts), _pair(counted), strict=True))
    nbytes = sum(entry.nbytes for entries in parts.values() for entry in entries)
    bound = sum(store.parts[name].max_nbytes for name in parts)
    names = len(parts["keys"]) if "keys" in parts else None
    return Usage(kind, len(parts[kind]), nbytes, bound, hits, misses, names)


def _pair(counts: Counts) -> tuple[int, int]:
    return counts.hits, counts.misses


def _files(store: Store, kind: str) -> Usage:
    files = _whole_files(store.root / kind)
    return Usage(kind, len(files), sum(path.stat().st_size for path in files), None)


def _whole_files(folder: Path) -> list[Path]:
    """All files below the folder, except those being written (a name, or a folder, that starts with a dot)."""
    with naming(folder, "the folder cannot be read"):
        paths = folder.rglob("*") if folder.is_dir() else ()
        return sorted(p for p in paths if p.is_file() and not any(s[0] == "." for s in p.relative_to(folder).parts))


def clear(store: Store, kinds: Sequence[str] = REBUILT) -> tuple[Cleared, ...]:
    """Delete all entries of these kinds and reset their counts. May be interrupted: the remaining entries stay valid.

    Other processes keep what they have loaded; files being written stay. Raises SettingError for an unknown kind before
    anything is deleted, StoreError if an entry cannot be deleted.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise SettingError(f"no kind {unknown[0]!r} in the cache; wanted some of {', '.join(KINDS)}")
    wanted = [kind for kind in KINDS if kind in kinds]
    removed = tuple(_clear_files(store, kind) if kind in FILES else _clear(store, kind) for kind in wanted)
    if store.leases.folder.is_dir():
        store.counters.reset(frozenset(part for kind in wanted for part in _PARTS.get(kind, ())))
    return removed


def _clear(store: Store, kind: str) -> Cleared:
    removed = {name: store.parts[name].clear() for name in reversed(_PARTS[kind])}
    return Cleared(kind, removed[kind][0], sum(nbytes for _, nbytes in removed.values()))


def _clear_files(store: Store, kind: str) -> Cleared:
    files, nbytes = _whole_files(store.root / kind), 0
    for folder in {path.parent for path in files} if kind == "packed" else ():
        remove_unfinished(folder)
    for path in files:
        size = path.stat().st_size
        with naming(path, "cannot be removed"), suppress(FileNotFoundError):  # another process removed it
            path.unlink()
            nbytes += size
    return Cleared(kind, len(files), nbytes)
