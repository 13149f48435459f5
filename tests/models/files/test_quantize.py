"""quantize(): formats per tensor as in llama.cpp, complete files, refusals."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from camshaft.cli.main import app
from camshaft.errors import CamshaftError, FormatError, StoreError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.files.chosen_formats import formats_of
from camshaft.models.files.quantization_mix import MIXES, is_quantized, mix_named
from camshaft.models.files.quantize import quantize
from camshaft.store.files import atomic_file
from tests.support.fixtures import DATA, tiny_model
from tests.support.models.files import require_default_model
from tests.support.models.sketches import SKETCHES, sketch
from tests.support.quick import full


@pytest.mark.parametrize("name", SKETCHES)
def test_tensors_get_the_types_that_llama_cpp_gives_them(name: str, tmp_path: Path) -> None:
    theirs = json.loads(gzip.decompress((DATA / "quantized" / "types.json.gz").read_bytes()))[name]
    assert {*theirs} == {*MIXES}
    with open_gguf(sketch(name, tmp_path)) as file:
        for mix, wanted in theirs.items():
            got = {tensor: row.name for tensor, row in formats_of(file, MIXES[mix]).items()}
            # Narrow rows of Q2_K and Q3_K: its Q4_0 is our IQ4_NL, which is as large and loses less.
            changed = {t: "IQ4_NL" for t, n in wanted.items() if n == "Q4_0" and mix.startswith(("Q2_K", "Q3_K"))}
            assert got == wanted | changed, mix


@pytest.mark.parametrize("file_type", [full("Q4_K_M"), full("Q5_0"), "BF16"])
def test_a_file_keeps_its_keys_and_its_tensors_order(file_type: str, tmp_path: Path) -> None:
    source, out, seen = sketch("shared", tmp_path), tmp_path / "out.gguf", []
    made = quantize(source, out, file_type, threads=2, progress=lambda done, total: seen.append((done, total)))
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(out)
    old = {k: f.contents() for k, f in before.fields.items() if not k.startswith("GGUF.")}
    new = {k: f.contents() for k, f in after.fields.items() if not k.startswith("GGUF.")}
    assert new == old | {"general.file_type": MIXES[file_type].file_type, "general.quantization_version": 2}
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    for x, y in zip(before.tensors, after.tensors, strict=True):
        row = BLOCK_FORMATS[y.tensor_type.name]
        wanted = row.quantize(np.asarray(x.data, np.float32).reshape(-1, row.block_size))
        np.testing.assert_array_equal(np.asarray(y.data).view(np.uint8).reshape(wanted.shape), wanted)
    assert made.nbytes == out.stat().st_size
    assert sum(made.n_tensors.values()) == len(after.tensors)
    assert seen[-1][0] == seen[-1][1] == sum(t.n_elements for t in before.tensors)


@pytest.mark.full
def test_pure_gives_every_matrix_one_format(tmp_path: Path) -> None:
    made = quantize(sketch("shared", tmp_path), tmp_path / "out.gguf", "q4_k_m", pure=True)
    assert {*made.n_tensors} == {"F32", "Q4_K"}


def test_the_same_type_again_changes_no_byte_of_the_tensors(tmp_path: Path) -> None:
    source = require_default_model()
    quantize(source, tmp_path / "again.gguf", "Q4_1")
    with open_gguf(source) as old, open_gguf(tmp_path / "again.gguf") as new:
        for name in ("blk.0.attn_q.weight", "output_norm.weight"):
            np.testing.assert_array_equal(old.tensors[name].data(), new.tensors[name].data())


@pytest.mark.full
def test_a_tiny_model_runs_in_its_new_type(tmp_path: Path) -> None:
    from camshaft import LanguageModel

    source = tiny_model("llama", tmp_path)
    quantize(source, tmp_path / "small.gguf", "Q8_0")
    with LanguageModel(source, activations="f32") as a, LanguageModel(tmp_path / "small.gguf", activations="f32") as b:
        x, y = (np.asarray(lm.logits([1, 2, 3, 4]))[-1] for lm in (a, b))
    assert np.corrcoef(x, y)[0, 1] > 0.999
    assert not np.array_equal(x, y)


def test_what_cannot_be_done_leaves_nothing_behind(tmp_path: Path) -> None:
    source = sketch("odd", tmp_path)
    with pytest.raises(FormatError, match="no file type 'Q9'; wanted one of F32, F16, BF16, Q8_0"):
        mix_named("Q9")
    with pytest.raises(FormatError, match="is the source itself"):
        quantize(source, source, "F16", force=True)
    with pytest.raises(StoreError, match=r"the folder .* does not exist"):
        quantize(source, tmp_path / "none" / "x.gguf", "F16")
    (tmp_path / "there.gguf").write_text("mine")
    with pytest.raises(StoreError, match="exists already; force=True replaces it"):
        quantize(source, tmp_path / "there.gguf", "F16")
    assert (tmp_path / "there.gguf").read_text() == "mine"


def test_a_value_that_no_block_holds_names_its_tensor_and_leaves_no_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bad.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.full((4, 32), np.nan, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CamshaftError, match=r"bad\.gguf: tensor 'token_embd\.weight': Q8_0 of a value that is infinite"
    ):
        quantize(tmp_path / "bad.gguf", tmp_path / "out.gguf", "Q8_0")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = sketch("narrow", tmp_path)
    with pytest.raises(SystemExit) as stopped:
        app(["quantize", str(source), str(tmp_path / "q.gguf"), "q4_k_m"], prog_name="camshaft")
    assert stopped.value.code in (0, None)
    assert "6 Q4_K, 66 Q5_0, 6 Q6_K, 7 Q8_0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("blk.0.time_mix_key.weight", (64, 64), True),
        ("blk.0.time_mix_decay_w1.weight", (64, 64), False),
        ("blk.0.time_mix_a2.weight", (64, 64), False),
        ("blk.0.time_mix_lerp_fused.weight", (6, 1, 1, 64), False),
        ("blk.0.channel_mix_lerp_k.weight", (1, 1, 64), False),
        ("blk.0.channel_mix_key.weight", (64, 64), True),
        ("blk.0.laurel_l.weight", (64, 64), False),
        ("altup_proj.weight", (3, 64, 64), False),
        ("mm.input_projection.weight", (64, 64), False),
        ("per_layer_model_proj.weight", (64, 64), False),
        ("blk.0.ssm_conv1d_q.weight", (1, 64, 1, 4), False),
        ("blk.0.ssm_f_a.weight", (64, 64), True),
    ],
)
def test_small_matrices_stay_as_they_are(name: str, shape: tuple[int, ...], wanted: bool) -> None:
    assert is_quantized(name, shape) == wanted


@pytest.mark.skipif(os.name == "nt", reason="files have no owner there; they go after a day")
def test_what_killed_processes_left_in_the_folder_is_removed(tmp_path: Path) -> None:
    source, (left, notes) = (
        tiny_model("llama", tmp_path),
        (tmp_path / f".unfinished-{name}" for name in ("abcd1234", "notes")),
    )
    left.write_bytes(b"half")
    notes.write_bytes(b"somebody's")
    with atomic_file(tmp_path / "another.gguf") as file:
        file.write(b"all")
        quantize(source, tmp_path / "out.gguf", "Q8_0", threads=1)
    assert (left.exists(), notes.exists(), (tmp_path / "another.gguf").read_bytes()) == (False, True, b"all")
