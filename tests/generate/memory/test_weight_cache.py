"""Packed weights stay in the cache folder: a later start maps them, has the same logits, and moves them to huge pages."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.generate.memory import packed_folder
from camshaft.models.files.quantize import quantize
from camshaft.plan.memory import weight_cache
from camshaft.plan.memory.loading import Loading
from camshaft.settings import setting
from camshaft.store.store import store
from camshaft.store.usage import clear, usage
from tests.support.fixtures import tiny_logits, tiny_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a mapping replaces another one by Linux's calls")
TOKENS = tiny_logits("llama")[0]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model whose weights are packed; they are kept apart from those of other tests."""
    monkeypatch.setattr(
        packed_folder, "setting", lambda name: tmp_path / "cache" if name == "cache_dir" else setting(name)
    )
    monkeypatch.setenv("CAMSHAFT_KEEP_WEIGHTS", "1")
    monkeypatch.setattr(weight_cache, "LEAST_NBYTES", 1)
    monkeypatch.setattr(weight_cache, "PATIENCE_S", 0.0)
    quantize(tiny_model("llama", tmp_path), tmp_path / "q8.gguf", "Q8_0")
    return tmp_path / "q8.gguf"


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights each start packed."""
    found: list[int] = []
    begin = Loading.__init__

    def counted(self: Loading, todo: list) -> None:
        found.append(sum(piece.packing is not None for piece in todo))
        begin(self, todo)

    monkeypatch.setattr(Loading, "__init__", counted)
    return found


def at_rest() -> None:
    """Waits for the work in the background."""
    for thread in threading.enumerate():
        if thread.name == "camshaft weights":
            thread.join()


def logits(path: Path) -> np.ndarray:
    with LanguageModel(path, threads=2, context=64, activations="f32") as lm:
        before = lm.logits(TOKENS)
        at_rest()
        np.testing.assert_array_equal(lm.logits(TOKENS), before)
    return before


def files(path: Path) -> list[Path]:
    return sorted((path.parent / "cache" / "packed").glob("*/*.weights"))


def test_a_later_start_packs_nothing_and_has_the_same_logits(
    model: Path, packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logits(model)
    (file,) = files(model)
    assert max(packed) > 0
    packed.clear()
    np.testing.assert_array_equal(logits(model), first)
    assert max(packed) == 0
    assert files(model) == [file]
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(file.parents[2]))
    kinds = {row.kind: row for row in usage(store())}
    assert kinds["packed"].nbytes >= file.stat().st_size
    clear(store(), ["packed"])
    assert files(model) == []


def test_huge_pages_take_the_place_of_the_files_at_their_address(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logits(model)
    moved: list[tuple[int, bytes]] = []
    enlarge = weight_cache.WeightCache._enlarge

    def watched(self: weight_cache.WeightCache, memory: np.ndarray) -> None:
        before = memory.tobytes()
        assert _is_of_file(memory)
        enlarge(self, memory)
        assert not _is_of_file(memory)
        moved.append((memory.nbytes, memory.tobytes()))
        assert memory.tobytes() == before

    monkeypatch.setattr(weight_cache.WeightCache, "_enlarge", watched)
    logits(model)
    assert moved


def _is_of_file(memory: np.ndarray) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(text, 16) for text in line.split()[0].split("-"))
        if first <= memory.ctypes.data < last:
            return line.endswith(".weights")
    raise AssertionError("not mapped")


def test_a_file_that_is_cut_or_of_others_is_not_read(model: Path, packed: list[int]) -> None:
    first = logits(model)
    (file,) = files(model)
    for spoil in (lambda: os.truncate(file, file.stat().st_size - 64), lambda: file.chmod(0o666)):
        spoil()
        packed.clear()
        np.testing.assert_array_equal(logits(model), first)
        assert max(packed) > 0
        assert file.stat().st_mode & 0o777 == 0o600  # it was written anew


def test_weights_of_a_changed_or_missing_model_go(model: Path) -> None:
    logits(model)
    other = model.with_name("other.gguf")
    shutil.copy(model, other)
    logits(other)
    (of_model,) = {f for f in files(model) if (f.parent / "path").read_text() == str(model)}
    other.unlink()
    os.utime(model, ns=(1, 1))
    logits(model)
    (left,) = files(model)
    assert left.parent.name.split("-")[0] == of_model.parent.name.split("-")[0]
    assert left.parent != of_model.parent


def test_a_small_disk_or_the_setting_keeps_none(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(weight_cache, "MOST_OF_DISK", 1e-12)
        logits(model)
    monkeypatch.setenv("CAMSHAFT_KEEP_WEIGHTS", "0")
    logits(model)
    assert files(model) == []


def test_a_folder_that_cannot_be_written_is_one_warning(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model.parent / "cache").mkdir(exist_ok=True)
    (model.parent / "cache" / "packed").write_text("not a folder")
    warned: list[str] = []
    monkeypatch.setattr("camshaft.store.store.warnings.warn", lambda text, **_: warned.append(str(text)))
    logits(model)
    assert [text for text in warned if "packed" in text] == warned != []


def test_a_model_that_is_closed_at_once_waits_for_its_file_but_not_for_long(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LanguageModel(model, threads=1, context=64, activations="f32") as lm:
        lm.logits(TOKENS)
    (file,) = files(model)
    file.unlink()
    monkeypatch.setattr(weight_cache, "END_S", 0.0)
    wait, go_on = threading.Event(), weight_cache.WeightCache._go_on
    monkeypatch.setattr(weight_cache.WeightCache, "_go_on", lambda self: wait.wait() and go_on(self))
    with LanguageModel(model, threads=1, context=64, activations="f32") as lm:
        lm.logits(TOKENS)
    wait.set()
    at_rest()
    assert files(model) == []
    assert [path.name for path in file.parent.iterdir()] == ["path"]
