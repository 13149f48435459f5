"""Learned scales of blocks: parts that sum up to the tensor, a loss that is a KL divergence, and a file of the same size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import train
from camshaft.errors import CamshaftError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.safetensors_folder import SafetensorsFolder
from camshaft.formats.tensor import FileTensor
from camshaft.graph.graph import Graph
from camshaft.models.convert.convert import convert
from camshaft.models.files.quantize import quantize
from camshaft.train.tuning.distillation import _windows
from camshaft.train.tuning.distilling.affine import affine_bits
from camshaft.train.tuning.distilling.blocks import BlockStudent, parts_of
from tests.support.fixtures import excerpt, tiny_model
from tests.support.models.hub_folders import hub_folder
from tests.support.quick import full
from tests.support.references import evaluated
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.tuning.test_lora import logits

Array = np.ndarray[Any, Any]
FORMATS = [name for name, row in BLOCK_FORMATS.items() if row.encode is not None and not row.is_plain]


@pytest.mark.parametrize("name", FORMATS)
def test_the_parts_of_a_tensor_sum_up_to_it_and_are_linear_in_their_fields(name: str) -> None:
    row = BLOCK_FORMATS[name]
    values = np.random.default_rng(0).normal(0.3, 1, (6, row.block_size)).astype(np.float32)
    data = row.quantize(values).reshape(-1)
    tensor = FileTensor("w", (2, 3 * row.block_size), row, data.nbytes, lambda: data, "x.gguf")
    parts = parts_of(tensor)
    if not parts:
        assert name in ("MXFP4", "NVFP4"), "whose scales are not f16"
        return
    assert len(parts) == (2 if {"m", "dmin"} & set(row.layout.fields or ()) else 1)  # type: ignore[union-attr]
    np.testing.assert_allclose(sum(p.dequantize() for p in parts.values()), tensor.dequantize(), atol=1e-6)
    records = row.records(data.reshape(-1, row.block_nbytes).copy())
    for field in parts:
        records[field] *= 2
    doubled = row.dequantize(records.view(np.uint8).reshape(-1, row.block_nbytes))
    np.testing.assert_allclose(doubled.reshape(tensor.shape), 2 * tensor.dequantize(), atol=1e-6)


def log_probabilities(path: Path, ids: Array) -> Array:
    with train.LoraModel(path) as model:
        scores = np.concatenate([logits(model, {}, row.tolist()) for row in ids]).astype(np.float64)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("file_type", [full("Q4_0"), "Q4_1"])
def test_the_loss_is_the_divergence_of_the_two_files(file_type: str, tmp_path: Path) -> None:
    base, small = tiny_model("llama", tmp_path), tmp_path / "small.gguf"
    quantize(base, small, file_type, pure=True)
    ids = np.random.default_rng(1).integers(5, 200, (2, 9)).astype(np.int32)

    with train.LoraModel(base) as full, open_gguf(small) as file:
        student = BlockStudent(full, file)
        rng = np.random.default_rng(2)
        drawn = {
            name: {field: rng.uniform(0.8, 1.2, a.shape).astype(np.float32) for field, a in fields.items()}
            for name, fields in student.factors().items()
        }
        assert {len(fields) for fields in drawn.values()} == {1 if file_type == "Q4_0" else 2}
        for factors, path in ((student.factors(), small), (drawn, tmp_path / "drawn.gguf")):
            graph = Graph()
            tensors = {
                name: {field: graph.constant(f"{name}.{field}", a) for field, a in fields.items()}
                for name, fields in factors.items()
            }
            graph.output("loss", student.loss(tensors, graph.input("ids", ids.shape, "i32")))
            found = float(evaluated(graph, {"ids": ids}, {})["loss"])
            if path != small:
                student.write(path, factors)
            p, q = log_probabilities(base, ids), log_probabilities(path, ids)
            # scales are f16 in the file
            assert found == pytest.approx(
                float((np.exp(p) * (p - q)).sum(axis=1).mean()), rel=1e-4 if path == small else 2e-2
            )


@pytest.mark.usefixtures("by_references")
def test_distilling_lowers_the_divergence_and_keeps_the_size(tmp_path: Path) -> None:
    base, text = tiny_model("llama", tmp_path), tmp_path / "text.txt"
    text.write_text(excerpt(), "utf-8")
    plain, out = tmp_path / "plain.gguf", tmp_path / "out.gguf"
    quantize(base, plain, "Q4_0")
    (tmp_path / ".distill-abcd1234").mkdir()  # a killed run's
    options = train.DistillOptions(steps=10, batch=2, length=12, lr=1e-2, held_out=2)
    seen: list[int] = []
    result = train.distill_quantize(base, out, "Q4_0", text, options=options, each=lambda p, n: seen.append(p.step))
    assert seen == list(range(1, 11))
    assert 0 < result.kl_after < 0.97 * result.kl_before
    assert out.stat().st_size == plain.stat().st_size == result.nbytes
    theirs, ours = gguf.GGUFReader(plain), gguf.GGUFReader(out)
    assert [(t.name, t.tensor_type) for t in theirs.tensors] == [(t.name, t.tensor_type) for t in ours.tensors]
    changed = {a.name for a, b in zip(theirs.tensors, ours.tensors, strict=True) if not np.array_equal(a.data, b.data)}
    assert changed
    assert all(name.startswith("blk.") and "norm" not in name for name in changed)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama.gguf", "out.gguf", "plain.gguf", "text.txt"]
    with pytest.raises(CamshaftError, match="exists already"):
        train.distill_quantize(base, out, "Q4_0", text)
    for given, message in (
        (text.with_name("none"), "none: cannot be read"),
        (plain, "plain.gguf: is not UTF-8: byte"),
    ):
        with pytest.raises(CamshaftError, match=message):
            train.distill_quantize(base, out, "Q4_0", given, force=True)
    text.write_text("too short", "utf-8")
    with pytest.raises(CamshaftError, match=r"has \d+ tokens; wanted 1290 or more for windows of 128"):
        train.distill_quantize(base, out, "Q4_0", text, force=True)
    text.write_text(excerpt(), "utf-8")
    with pytest.raises(CamshaftError, match="has no matrix of layers in blocks with a scale"):
        train.distill_quantize(base, out, "F16", text, force=True)
    with pytest.raises(CamshaftError, match="steps=0; wanted 1 or more"):
        train.DistillOptions(steps=0)


@pytest.mark.full
@pytest.mark.usefixtures("by_references")
def test_affine_weights_are_learned_and_the_folder_is_what_was_measured(tmp_path: Path) -> None:
    base, _ = hub_folder("llama", tmp_path)
    text, plain, out = tmp_path / "text.txt", tmp_path / "plain", tmp_path / "out"
    text.write_text(excerpt(), "utf-8")
    sizes: dict[str, Any] = {"batch": 4, "length": 12, "held_out": 2}
    options = train.DistillOptions(steps=15, lr=5e-3, **sizes)
    first = train.DistillOptions(steps=1, lr=0.0, **sizes)
    train.distill_quantize(base, plain, "affine3", text, options=first)
    result = train.distill_quantize(base, out, "AFFINE3", text, options=options)
    assert 0 < result.kl_after < 0.97 * result.kl_before
    assert {p.name: p.stat().st_size for p in plain.iterdir()} == {p.name: p.stat().st_size for p in out.iterdir()}
    with SafetensorsFolder(plain) as theirs, SafetensorsFolder(out) as ours:
        shapes = {name: (t.shape, t.format.name) for name, t in ours.tensors.items()}
        changed = {n for n, t in ours.tensors.items() if not np.array_equal(t.array(), theirs.tensors[n].array())}
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == ((64, 64 * 3 // 32), "U32")
    assert shapes["model.layers.0.self_attn.q_proj.scales"] == ((64, 2), "F16")
    assert {name.rpartition(".")[2] for name in changed} == {"scales", "biases"}
    assert all(".layers." in name and "norm" not in name for name in changed)
    assert json.loads((out / "config.json").read_text())["quantization"]["model.embed_tokens"]["bits"] == 8
    # the conversion to a GGUF file reads what was written, rows and all
    whole, small = tmp_path / "whole.gguf", tmp_path / "small.gguf"
    for folder, file in ((base, whole), (out, small)):
        convert(folder, file, "F32")
    with train.LoraModel(whole) as model:
        ids = np.concatenate(_windows(model, text, options)[1])
    p, q = (log_probabilities(path, ids) for path in (whole, small))
    assert float((np.exp(p) * (p - q)).sum(axis=1).mean()) == pytest.approx(result.kl_after, rel=2e-2)


def test_affine_types_want_a_folder_of_a_full_model(tmp_path: Path) -> None:
    assert [affine_bits(name) for name in ("AFFINE3", "affine8", "Q4_0")] == [3, 8, None]
    with pytest.raises(CamshaftError, match="no affine type 'AFFINE7'; wanted one of AFFINE2, "):
        affine_bits("AFFINE7")
    base, text, out = tiny_model("llama", tmp_path), tmp_path / "text.txt", tmp_path / "out"
    text.write_text(excerpt(), "utf-8")
    with pytest.raises(CamshaftError, match="is not a folder; wanted a model in Hugging Face's layout"):
        train.distill_quantize(base, out, "AFFINE3", text)
    with pytest.raises(CamshaftError, match="got pure for the type AFFINE3"):
        train.distill_quantize(base, out, "AFFINE3", text, pure=True)
    out.mkdir()
    (out / "config.json").write_text("{}")
    with pytest.raises(CamshaftError, match="out: exists already"):
        train.distill_quantize(base, out, "AFFINE3", text)
    with pytest.raises(CamshaftError, match="is a file; wanted a folder"):
        train.distill_quantize(base, text, "AFFINE3", text)


@pytest.mark.oracle
def test_llama_cpp_loads_a_distilled_model(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    base, text, out = tiny_model("llama", tmp_path), tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text(excerpt(), "utf-8")
    train.distill_quantize(base, out, "Q4_1", text, options=train.DistillOptions(steps=4, length=12, held_out=2))
    tokens = [5, 9, 77, 130, 6]
    theirs = llama_cpp.Llama(str(out), n_ctx=64, logits_all=True, n_gpu_layers=0, verbose=False)
    llama.on_a_new_thread(theirs.eval)(tokens)
    with train.LoraModel(out) as model:
        # llama.cpp rounds activations to 8 bits
        np.testing.assert_allclose(theirs.scores[: len(tokens)], logits(model, {}, tokens), atol=0.25)
