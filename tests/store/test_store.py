"""The store: one per cache folder, documents, the folder of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.store.objects import ObjectStore
from camshaft.store.store import DocumentStore, store

KEY = "0123456789abcdef" * 4


@pytest.fixture
def documents(tmp_path: Path) -> DocumentStore:
    return DocumentStore(ObjectStore(tmp_path / "evidence", 1 << 20))


def test_the_cache_folder_of_the_moment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "a"))
    first = store()
    assert store() is first
    assert first.root == tmp_path / "a"
    assert not first.root.exists()
    first.objects.put(KEY, b"code")
    first.evidence.put(KEY, {"ok": True})
    first.measurements.put(KEY, {"ns": 5})
    assert (first.objects.get(KEY), first.evidence.get(KEY)) == (b"code", {"ok": True})
    assert first.measurements.get(KEY) == {"ns": 5}
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "b"))
    assert store().objects.get(KEY) is None


def test_the_folder_of_models_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    assert store().models_dir == tmp_path / "cache" / "models"
    assert not store().models_dir.exists()


def test_documents_come_back_as_they_were(documents: DocumentStore) -> None:
    document = {
        "max_error": 1.5e-7,
        "sample": "33 x 65",
        "time_ns": 12345678901234,
        "passed": True,
        "notes": ["ü", None],
    }
    documents.put(KEY, document)
    assert documents.get(KEY) == document
    assert documents.get("f" * 64) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"null", b"\xff"])
def test_what_is_no_document_is_removed(tmp_path: Path, data: bytes) -> None:
    objects = ObjectStore(tmp_path, 1 << 20)
    objects.put(KEY, data)
    assert DocumentStore(objects).get(KEY) is None
    assert objects.get(KEY) is None


@pytest.mark.parametrize("document", [{"x": object()}, {"x": float("nan")}])
def test_what_json_cannot_hold_is_refused(documents: DocumentStore, document: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="cannot be stored as JSON"):
        documents.put(KEY, document)
