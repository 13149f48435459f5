"""The store: what is kept between runs, under one folder: kernel objects, evidence, measurements, models. Top of store/."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camshaft.errors import StoreError
from camshaft.settings import settings
from camshaft.store.files import naming
from camshaft.store.objects import ObjectStore

OBJECTS_MAX_NBYTES = 512 << 20
EVIDENCE_MAX_NBYTES = 64 << 20
MEASUREMENTS_MAX_NBYTES = 64 << 20


class DocumentStore:
    """JSON documents (dicts) by key, each an entry of an ObjectStore."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def get(self, key: str) -> dict[str, Any] | None:
        """The document kept under the key, or None: there is none, or it was damaged and is now removed."""
        data = self._objects.get(key)
        if data is None:
            return None
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        if isinstance(document, dict):
            return document
        self._objects.discard(key)
        return None

    def put(self, key: str, document: dict[str, Any]) -> None:
        """Keeps the document. StoreError when it is no JSON or cannot be written."""
        try:
            data = json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise StoreError(f"a document that cannot be kept as JSON: {error}") from error
        self._objects.put(key, data)


@dataclass(frozen=True)
class Store:
    """Kernel objects, evidence of validations, measurements (timings, tuned parameters, the machine's roof), and the folder of
    models."""

    root: Path
    objects: ObjectStore
    evidence: DocumentStore
    measurements: DocumentStore
    models_dir: Path

    def make_models_dir(self) -> Path:
        """The folder of models, made if it is not there. StoreError when it cannot be."""
        with naming(self.models_dir, "the folder cannot be made"):
            self.models_dir.mkdir(parents=True, exist_ok=True)
        return self.models_dir


@functools.cache
def _store(root: Path) -> Store:
    objects = ObjectStore(root / "objects", OBJECTS_MAX_NBYTES)
    evidence = DocumentStore(ObjectStore(root / "evidence", EVIDENCE_MAX_NBYTES))
    measurements = DocumentStore(ObjectStore(root / "measurements", MEASUREMENTS_MAX_NBYTES))
    return Store(root, objects, evidence, measurements, root / "models")


def store() -> Store:
    """The store under `settings().cache_dir`: one per folder and process. Nothing is made before the first put."""
    return _store(settings().cache_dir.absolute())
