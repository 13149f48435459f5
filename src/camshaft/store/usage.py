"""What the store holds, by kind, and how to empty it: what `camshaft cache` shows and does. Beside store.py."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from camshaft.errors import SettingError
from camshaft.store.files import naming
from camshaft.store.objects import Counts
from camshaft.store.process_lock import LEASE_PREFIX
from camshaft.store.store import Store

KINDS = ("objects", "evidence", "measurements", "schedules", "headers", "models")
REBUILT = KINDS[:5]  # what camshaft makes again by itself; models are fetched
# Of which object stores a kind is made.
_PARTS = {"objects": ("objects", "keys")} | {kind: (kind,) for kind in REBUILT[1:]}


@dataclass(frozen=True)
class Usage:
    """One kind. `n_names` are the first keys that lead to objects; `max_nbytes` the bound, None where there is none. Hits and
    misses are those of all processes that ended on this machine; models are not counted (None)."""

    kind: str
    n_entries: int
    nbytes: int
    max_nbytes: int | None
    hits: int | None = None
    misses: int | None = None
    n_names: int | None = None


@dataclass(frozen=True)
class Cleared:
    """What was removed of a kind."""

    kind: str
    n_entries: int
    nbytes: int


def usage(kept: Store) -> tuple[Usage, ...]:
    """Every kind with what lies there now. StoreError when a folder cannot be read."""
    totals = kept.counters.read()
    return (*(_usage(kept, kind, totals) for kind in REBUILT), _models(kept.models_dir))


def n_living(kept: Store) -> int:
    """How many processes use the store now, this one not counted unless it has read from it."""
    kept.living.oldest()  # removes the leases of the dead
    return len(list(kept.living.folder.glob(LEASE_PREFIX + "*")))


def _usage(kept: Store, kind: str, totals: dict[str, Counts]) -> Usage:
    parts = {name: list(kept.parts[name].entries()) for name in _PARTS[kind]}
    here, counted = kept.parts[kind], totals.get(kind, Counts())
    hits, misses = (a + b for a, b in zip(_pair(here.counts), _pair(counted), strict=True))
    nbytes = sum(entry.nbytes for entries in parts.values() for entry in entries)
    bound = sum(kept.parts[name].max_nbytes for name in parts)
    names = len(parts["keys"]) if "keys" in parts else None
    return Usage(kind, len(parts[kind]), nbytes, bound, hits, misses, names)


def _pair(counts: Counts) -> tuple[int, int]:
    return counts.hits, counts.misses


def _models(folder: Path) -> Usage:
    files = _model_files(folder)
    return Usage("models", len(files), sum(path.stat().st_size for path in files), None)


def _model_files(folder: Path) -> list[Path]:
    """The files of pulled models, not those of a pull that is under way (in a folder with a dot)."""
    with naming(folder, "the folder cannot be read"):
        found = folder.rglob("*") if folder.is_dir() else ()
        return sorted(p for p in found if p.is_file() and not any(s[0] == "." for s in p.relative_to(folder).parts))


def clear(kept: Store, kinds: Sequence[str] = REBUILT) -> tuple[Cleared, ...]:
    """Removes all entries of these kinds and forgets their counts. It may be interrupted: what is left is whole.

    What other processes have loaded they keep, and what one is just writing stays. SettingError for an unknown kind, before
    anything is removed; StoreError when an entry cannot be removed.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise SettingError(f"no kind {unknown[0]!r} in the cache; wanted some of {', '.join(KINDS)}")
    wanted = [kind for kind in KINDS if kind in kinds]
    made = tuple(_clear_models(kept.models_dir) if kind == "models" else _clear(kept, kind) for kind in wanted)
    if kept.living.folder.is_dir():
        kept.counters.forget(frozenset(part for kind in wanted for part in _PARTS.get(kind, ())))
    return made


def _clear(kept: Store, kind: str) -> Cleared:
    removed = {name: kept.parts[name].clear() for name in reversed(_PARTS[kind])}
    return Cleared(kind, removed[kind][0], sum(nbytes for _, nbytes in removed.values()))


def _clear_models(folder: Path) -> Cleared:
    files, nbytes = _model_files(folder), 0
    for path in files:
        size = path.stat().st_size
        with naming(path, "a model cannot be removed"), suppress(FileNotFoundError):  # somebody else did
            path.unlink()
            nbytes += size
    return Cleared("models", len(files), nbytes)
