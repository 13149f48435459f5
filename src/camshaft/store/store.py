"""The on-disk store: compiled kernels, validation results, measurements, compiled plans, model headers, kept prompts, models."""

from __future__ import annotations

import atexit
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from camshaft.errors import StoreError
from camshaft.process import ForkLock
from camshaft.settings import setting
from camshaft.store.counters import Counters
from camshaft.store.files import private_folder
from camshaft.store.kernels import KernelCache
from camshaft.store.objects import Counts, ObjectStore
from camshaft.store.process_lock import ProcessLeases, locked

Row = TypeVar("Row")
Kind = TypeVar("Kind")
PROMPTS_MAX_NBYTES = 2 << 30  # a prompt of SmolLM2 takes 23 kB a token
DOCUMENTS_MAX_NBYTES = 64 << 20  # per kind; one machine's validation results take 0.2 MB
_KEYS_FRACTION = 8  # of the bound is for first keys: 147 bytes each, while objects take 1 to 20 kB


def row_as(kind: type[Row], row: object) -> Row | None:
    """A row of a stored document as a dataclass; None if another version of camshaft wrote it with other fields."""
    return kind(**row) if isinstance(row, dict) and row.keys() == _names(kind) else None  # type: ignore[arg-type]


@functools.cache
def _names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))


class DocumentStore:
    """JSON documents (dicts) by key, each an entry of an ObjectStore."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the document of the key, or None if it is missing or damaged; a damaged one is deleted."""
        data = self.objects.get(key)
        if data is None:
            return None
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        if isinstance(document, dict):
            return document
        self.objects.discard(key)
        return None

    def put(self, key: str, document: dict[str, Any]) -> None:
        """Store a document. Raises StoreError if it is not valid JSON or cannot be written."""
        try:
            data = json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise StoreError(f"a document cannot be stored as JSON: {error}") from error
        self.objects.put(key, data)


@dataclass(frozen=True)
class Store:
    """The parts of the store: compiled kernels, validation results (`evidence`), measurements (timings, tuned parameters, peak
    rates), compiled plans (`schedules`), model headers, kept prompts, models. `objects` also holds entries without a first
    key."""

    root: Path
    kernels: KernelCache
    evidence: DocumentStore
    measurements: DocumentStore
    schedules: ObjectStore
    headers: ObjectStore
    prompts: ObjectStore
    models_dir: Path
    leases: ProcessLeases
    counters: Counters

    @property
    def objects(self) -> ObjectStore:
        return self.kernels.objects

    @property
    def parts(self) -> dict[str, ObjectStore]:
        """The object stores by kind; each has its own bound."""
        kernels = {"objects": self.kernels.objects, "keys": self.kernels.keys}
        documents = {"evidence": self.evidence.objects, "measurements": self.measurements.objects}
        return kernels | documents | {"schedules": self.schedules, "headers": self.headers, "prompts": self.prompts}

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold the named lock against other processes that use the store, if it can be had (process_lock.py)."""
        with ExitStack() as stack:
            try:
                private_folder(self.leases.folder)
                stack.enter_context(locked(self.leases.folder / f"{what}.lock"))
            except StoreError as error:
                _warn_once(self.root, error)
            yield

    def go_on_without(self, error: StoreError) -> None:
        """Warn, once per process, that the folder cannot be used."""
        _warn_once(self.root, error)

    def flush_counters(self) -> None:
        """Add this process's counts to the file, and evict from stores to which all processes together added much. Raises
        StoreError if the folder cannot be written."""
        counts = {kind: part.counts for kind, part in self.parts.items() if part.counts != Counts()}
        for kind in counts:
            self.parts[kind].counts = Counts()
        if not counts or not self.leases.folder.is_dir():
            return
        totals = self.counters.add(counts)
        due = frozenset(kind for kind in counts if self.parts[kind].needs_listing(totals[kind].added_nbytes))
        for kind in counts:
            if kind in due:
                self.parts[kind].evict()
            elif counts[kind].added_nbytes:
                self.parts[kind].remove_unfinished()
        if due:
            self.counters.add(dict.fromkeys(due, Counts()), listed=due)

    def finish(self) -> None:
        """Flush the counters and release the lease at process exit. Called explicitly by processes that skip Python's exit
        handlers. Errors are ignored: only counts are lost, and there is no caller left to handle them."""
        with suppress(StoreError, OSError):
            self.flush_counters()
        with suppress(OSError):
            self.leases.oldest()  # deletes the leases of dead processes
        self.leases.release()


_warned: set[Path] = set()


def _warn_once(root: Path, error: StoreError) -> None:
    """Warn that a cache folder cannot be used, once per process."""
    if root not in _warned:
        _warned.add(root)
        hint = "" if "CAMSHAFT_CACHE_DIR" in str(error) else " (CAMSHAFT_CACHE_DIR moves the cache)"
        warnings.warn(f"going on without the cache: {error}{hint}", stacklevel=2)


@functools.cache
def _store(root: Path, max_nbytes: int) -> Store:
    state = root / "state"
    leases = ProcessLeases(state)

    def part(name: str, bound: int) -> ObjectStore:
        failed = functools.partial(_warn_once, root)
        return ObjectStore(root / name, bound, begin=leases.acquire, living_since=leases.oldest, failed=failed)

    created = Store(
        root,
        KernelCache(
            part("keys", max_nbytes // _KEYS_FRACTION), part("objects", max_nbytes - max_nbytes // _KEYS_FRACTION)
        ),
        DocumentStore(part("evidence", DOCUMENTS_MAX_NBYTES)),
        DocumentStore(part("measurements", DOCUMENTS_MAX_NBYTES)),
        part("schedules", DOCUMENTS_MAX_NBYTES),
        part("headers", DOCUMENTS_MAX_NBYTES),
        # A running process needs none of them again: all may be evicted.
        ObjectStore(
            root / "prompts", PROMPTS_MAX_NBYTES, begin=leases.acquire, failed=functools.partial(_warn_once, root)
        ),
        root / "models",
        leases,
        Counters(state),
    )
    atexit.register(_end, created, os.getpid())
    return created


def _end(created: Store, process: int) -> None:
    """Finish at the end of the process that created the store, not of a forked child."""
    if os.getpid() == process:
        created.finish()


def store() -> Store:
    """The store under `settings().cache_dir`; one per folder, bound and process. Creates no files before the first put."""
    root: Path = setting("cache_dir")  # single settings: every kernel load calls this
    return _store(root.absolute(), setting("cache_nbytes"))


_instances_lock = ForkLock()


def of_current_store(instances: dict[Path, Kind], make: Callable[[Store], Kind]) -> Kind:
    """The instance for the current store, made when it is first asked for: one per store and process."""
    current = store()
    with _instances_lock:
        found = instances.get(current.root)
        if found is None:
            found = instances[current.root] = make(current)
        return found
