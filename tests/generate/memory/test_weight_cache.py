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
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.memory import packed_folder
from camshaft.graph.graph import Graph
from camshaft.models.files.quantize import quantize
from camshaft.ops.quantized.packed.packing import interleaved
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory import weight_cache
from camshaft.plan.memory.loading import Loading, Piece
from camshaft.plan.memory.weights import Weights
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


@pytest.mark.parametrize("name", ["q8.gguf", "of\ntwo lines.gguf"])
def test_all_paths_of_a_model_share_its_file(
    model: Path, packed: list[int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also paths that messages escape, and relative ones of a process that changes its folder."""
    named = model.rename(model.with_name(name))
    monkeypatch.chdir(model.parent)
    with LanguageModel(name, threads=1, context=64, activations="f32") as lm:
        monkeypatch.chdir("/")
        lm.logits(TOKENS)
    (file,) = files(model)
    assert (file.parent / "path").read_bytes() == os.fsencode(named)
    (link := model.with_name("link.gguf")).symlink_to(named)
    for path in (named, link):
        packed.clear()
        logits(path)
        assert max(packed) == 0
    assert files(model) == [file]
    logits(Path(shutil.copy(named, model.with_name("other.gguf"))))
    assert file in files(model)


def test_memory_whose_loading_failed_is_not_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gguf(model) as file:
        tensor = next(each for each in file.tensors.values() if each.format.name == "Q8_0")
        constant = Graph().constant(tensor.name, tensor, interleaved(TensorSpec(tensor.shape, tensor.format)))
        weights = Weights(cache=packed_folder.weight_cache(file))

        def lost(piece: Piece) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Piece, "load", lost)
            with pytest.raises(KeyboardInterrupt):
                weights.prepare([constant], 1)
        weights.prepare([], 1)
        weights.clear()
        assert files(model) == []


def test_no_thread_for_the_work_is_no_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name == "camshaft weights":
            raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    logits(model)
    assert files(model) == []


def test_files_that_killed_processes_left_go(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logits(model)
    (file,) = files(model)
    left = file.with_name(".unfinished-abcd1234")
    left.write_bytes(b"half")
    logits(model)  # which maps the file
    assert not left.exists()
    left.write_bytes(b"half")
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(file.parents[2]))
    clear(store(), ["packed"])
    assert list(file.parent.iterdir()) == []


def test_a_model_that_is_never_closed_has_its_file(model: Path) -> None:
    lm = LanguageModel(model, threads=1, context=64, activations="f32")
    lm.logits(TOKENS)
    weight_cache._close_all()  # as at the end of the process
    assert len(files(model)) == 1
    lm.close()
