"""The store: what is kept between runs, under one folder: kernels, evidence, measurements, schedules, headers, models."""

from __future__ import annotations

import atexit
import functools
import json
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camshaft.errors import StoreError
from camshaft.settings import setting
from camshaft.store.counters import Counters
from camshaft.store.files import naming, private_folder
from camshaft.store.kernels import KernelCache
from camshaft.store.objects import Counts, ObjectStore
from camshaft.store.process_lock import Living, locked

DOCUMENTS_MAX_NBYTES = 64 << 20  # of each kind; one machine's evidence takes 0.2 MB
_KEYS_PART = 8  # of the bound, for first keys: 147 bytes each, beside objects of 1 to 20 kB


class DocumentStore:
    """JSON documents (dicts) by key, each an entry of an ObjectStore."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    def get(self, key: str) -> dict[str, Any] | None:
        """The document kept under the key, or None: there is none, or it was damaged and is now removed."""
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
        """Keeps the document. StoreError when it is no JSON or cannot be written."""
        try:
            data = json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise StoreError(f"a document that cannot be kept as JSON: {error}") from error
        self.objects.put(key, data)


@dataclass(frozen=True)
class Store:
    """Kernel objects, evidence of validations, measurements (timings, tuned parameters, the machine's roof), finished schedules
    of models' plans, what is known of their files' headers, and the folder of models. `kernels` finds objects by either of their
    keys; `objects` also keeps what has but one."""

    root: Path
    kernels: KernelCache
    evidence: DocumentStore
    measurements: DocumentStore
    schedules: ObjectStore
    headers: ObjectStore
    models_dir: Path
    living: Living
    counters: Counters

    @property
    def objects(self) -> ObjectStore:
        return self.kernels.objects

    @property
    def parts(self) -> dict[str, ObjectStore]:
        """The object stores by kind; the bounds of all are apart."""
        kernels = {"objects": self.kernels.objects, "keys": self.kernels.keys}
        documents = {"evidence": self.evidence.objects, "measurements": self.measurements.objects}
        return kernels | documents | {"schedules": self.schedules, "headers": self.headers}

    def make_models_dir(self) -> Path:
        """The folder of models, made if it is not there. StoreError when it cannot be."""
        with naming(self.models_dir, "the folder cannot be made"):
            self.models_dir.mkdir(parents=True, exist_ok=True)
        return self.models_dir

    def locked(self, what: str) -> AbstractContextManager[None]:
        """Holds a lock of that name against other processes that use the folder. StoreError when there can be none."""
        private_folder(self.living.folder)
        return locked(self.living.folder / f"{what}.lock")

    def settle(self) -> None:
        """Adds what this process counted to the file, and lists those stores that all processes together added much to.
        StoreError when the folder cannot be written."""
        taken = {kind: part.counts for kind, part in self.parts.items() if part.counts != Counts()}
        for kind in taken:
            self.parts[kind].counts = Counts()
        if not taken or not self.living.folder.is_dir():
            return
        totals = self.counters.add(taken)
        due = frozenset(kind for kind in taken if self.parts[kind].is_due(totals[kind].added_nbytes))
        for kind in taken:
            if kind in due:
                self.parts[kind].bound()
            elif taken[kind].added_nbytes:
                self.parts[kind].remove_stale()
        if due:
            self.counters.add(dict.fromkeys(due, Counts()), listed=due)

    def finish(self) -> None:
        """What is done when a process ends: counts are added to the file, the lease is given back. A process that ends without
        Python's own end calls it; errors are swallowed, since nobody is there to be told and only counts are lost."""
        with suppress(StoreError, OSError):
            self.settle()
        with suppress(OSError):
            self.living.oldest()  # removes what the dead left
        self.living.release()


@functools.cache
def _store(root: Path, max_nbytes: int) -> Store:
    state = root / "state"
    living = Living(state)

    def part(name: str, bound: int) -> ObjectStore:
        return ObjectStore(root / name, bound, begin=living.hold, living_since=living.oldest)

    made = Store(
        root,
        KernelCache(part("keys", max_nbytes // _KEYS_PART), part("objects", max_nbytes - max_nbytes // _KEYS_PART)),
        DocumentStore(part("evidence", DOCUMENTS_MAX_NBYTES)),
        DocumentStore(part("measurements", DOCUMENTS_MAX_NBYTES)),
        part("schedules", DOCUMENTS_MAX_NBYTES),
        part("headers", DOCUMENTS_MAX_NBYTES),
        root / "models",
        living,
        Counters(state),
    )
    atexit.register(_end, made, os.getpid())
    return made


def _end(made: Store, process: int) -> None:
    """At the end of a process, but not of one that it forked."""
    if os.getpid() == process:
        made.finish()


def store() -> Store:
    """The store under `settings().cache_dir`: one per folder, bound and process. Nothing is made before the first put."""
    root: Path = setting("cache_dir")  # every kernel that is loaded asks for these two, and none of the others
    return _store(root.absolute(), setting("cache_nbytes"))
