"""Split GGUF files: opened by any part, read as one, refused in one line where a part is missing or of another model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from camshaft.errors import FormatError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.gguf.part_names import part_names
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.generate.stored.plan_cache import _model
from camshaft.models.files.contents import contents
from camshaft.models.files.quantize import quantize
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.split_files import split


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return tiny_model("llama", tmp_path)


@pytest.mark.parametrize("part", [0, 2])
def test_any_part_opens_the_whole_model(whole: Path, tmp_path: Path, part: int) -> None:
    paths = split(whole, tmp_path / "parts")
    with open_gguf(whole) as wanted, open_gguf(paths[part]) as file:
        assert list(file.tensors) == list(wanted.tensors)
        assert {key: file.metadata.raw(key) for key in file.metadata} == {
            key: wanted.metadata.raw(key) for key in wanted.metadata
        }
        for name, tensor in wanted.tensors.items():
            np.testing.assert_array_equal(file.tensors[name].data(), tensor.data())
        assert file.nbytes == sum(path.stat().st_size for path in paths)


def test_the_parts_of_another_writer(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2, small_first_shard=True)
    writer.add_context_length(7)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(32, i, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with open_gguf(tmp_path / "model-00003-of-00004.gguf") as file:
        assert [int(t.array()[0]) for t in file.tensors.values()] == list(range(5))
        assert file.metadata["llama.context_length"] == 7


def test_a_split_model_runs_and_its_plans_are_not_those_of_other_parts(whole: Path, tmp_path: Path) -> None:
    from camshaft import LanguageModel

    paths, others = split(whole, tmp_path / "three"), split(whole, tmp_path / "two", 2)
    tokens, wanted = tiny_logits("llama")
    with LanguageModel(paths[0], activations="f32") as lm:
        np.testing.assert_allclose(np.asarray(lm.logits(tokens)), wanted, atol=1e-3)
        lm.close()
    opened = [open_model_file(path) for path in (whole, paths[0], paths[1], others[0])]
    assert len({one.digest for one in opened}) == 3
    assert len({_model(one.file) for one in opened}) == 3
    for one in opened:
        one.file.close()


def test_quantize_reads_all_parts_and_writes_one_file(whole: Path, tmp_path: Path) -> None:
    paths = split(whole, tmp_path / "parts")
    result = quantize(paths[1], tmp_path / "from_parts.gguf", "Q8_0")
    quantize(whole, tmp_path / "from_whole.gguf", "Q8_0")
    assert (tmp_path / "from_parts.gguf").read_bytes() == (tmp_path / "from_whole.gguf").read_bytes()
    assert result.nbytes_before == sum(path.stat().st_size for path in paths)
    with pytest.raises(FormatError, match="is the source itself"):
        quantize(paths[0], paths[2], "Q8_0", force=True)


def test_show_tells_the_parts(whole: Path, tmp_path: Path) -> None:
    found = contents(split(whole, tmp_path / "parts")[0])
    assert found.container == "GGUF version 3, 3 parts"
    assert found.totals == contents(whole).totals


def _remove(parts: list[Path], other: list[Path]) -> None:
    parts[1].unlink()


def _remove_first(parts: list[Path], other: list[Path]) -> None:
    parts[0].unlink()


def _exchange(parts: list[Path], other: list[Path]) -> None:
    shutil.copy(parts[2], parts[1])


def _of_another(parts: list[Path], other: list[Path]) -> None:
    shutil.copy(other[1], parts[1])


FAULTS: dict[Callable[[list[Path], list[Path]], None], str] = {
    _remove: r"model-00002-of-00003\.gguf: is missing; it is part 2 of 3 of the model",
    _remove_first: r"model-00001-of-00003\.gguf: is missing; it is part 1 of 3",
    _exchange: "is part 3 of 3 with 21 tensors in all; wanted part 2 of 3 with 21, as",
    _of_another: "is part 2 of 3 with 28 tensors in all; wanted part 2 of 3 with 21",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__[1:])
def test_a_missing_or_foreign_part_is_one_line(fault: Callable[..., None], whole: Path, tmp_path: Path) -> None:
    parts = split(whole, tmp_path / "parts")
    fault(parts, split(tiny_model("gpt2", tmp_path), tmp_path / "other"))
    with pytest.raises(FormatError, match=FAULTS[fault]) as error:
        open_gguf(parts[2])
    assert "\n" not in str(error.value)


def test_a_renamed_part_is_told_the_names_it_needs(whole: Path, tmp_path: Path) -> None:
    part = split(whole, tmp_path / "parts")[0].rename(tmp_path / "model.gguf")
    with pytest.raises(FormatError, match=r"is part 1 of 3 .* wanted a name that ends with -00001-of-00003\.gguf"):
        open_gguf(part)


def test_numbers_that_lie_are_refused(whole: Path, tmp_path: Path) -> None:
    for lies, words in (
        ({"number": 9}, "split.no is 9 of 3 parts"),
        ({"n_tensors": 5}, "have 21 tensors; wanted 5"),
        ({"n_tensors": -7}, "'split.tensors.count' is -7"),
    ):
        with pytest.raises(FormatError, match=words):
            open_gguf(split(whole, tmp_path / "lies", **lies)[0])
    paths = split(whole, tmp_path / "twice", 2)
    shutil.copy(whole, paths[1])
    with pytest.raises(FormatError, match="is a whole file; wanted part 2 of 2"):
        open_gguf(paths[0])


def test_names_of_parts() -> None:
    assert part_names("a-00002-of-00002.gguf") == ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")
    for name in ("a.gguf", "a-00003-of-00002.gguf", "a-00000-of-00002.gguf", "a-1-of-2.gguf"):
        assert part_names(name) == (name,)
