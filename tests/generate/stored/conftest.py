"""A store with the kernels and plans of the tiny model in Q8_0."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from camshaft.lang.kernel import language_digest
from camshaft.models.files.quantize import quantize
from camshaft.store.store import Store, store
from tests.generate.stored.tiny_plans import said, started
from tests.support.compilers.stored import key_of, stored


@pytest.fixture(scope="module")
def path(tiny_path: Path) -> Path:
    """The tiny model in Q8_0, whose plans call no BLAS library."""
    made = tiny_path.with_name("quantized.gguf")
    quantize(tiny_path, made, "Q8_0", threads=1)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, path: Path) -> Path:
    """A store with the kernels and plans of the tiny model, made anew after any change of camshaft: LLVM takes 5 s."""
    made = tmp_path_factory.mktemp("kept")

    def archive() -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CAMSHAFT_CACHE_DIR", str(made))
            said(path)
            # Other tests of this process may have loaded the executor and kernels already, which then are in their store
            # only: a new process puts into this one what it lacks.
            started(path)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as file:
            for part in ("keys", "objects", "evidence"):
                file.add(made / part, part)
        return packed.getvalue()

    data = stored(key_of(language_digest("**/*.py"), path.read_bytes().hex(), "store of test_plan_cache"), archive)
    if not any(made.iterdir()):
        with tarfile.open(fileobj=io.BytesIO(data)) as file:
            file.extractall(made, filter="data")
    return made


def _listing(folder: Path) -> list[tuple[str, int]]:
    """The files of a store and when each was written, but for its state, which every process changes."""
    files = (file for part in sorted(folder.iterdir()) if part.name != "state" for file in part.rglob("*"))
    return sorted((str(file), file.stat().st_mtime_ns) for file in files if file.is_file())


@pytest.fixture(scope="module")
def whole() -> list[list[tuple[str, int]]]:
    """The store's files, last, when a model had said all of which it keeps the plans."""
    return []


@pytest.fixture
def kept(folder: Path, path: Path, whole: list[list[tuple[str, int]]], monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(folder))
    if whole[-1:] != [_listing(folder)]:  # what another test removed or changed is made again
        said(path)
        whole.append(_listing(folder))
    return store()
