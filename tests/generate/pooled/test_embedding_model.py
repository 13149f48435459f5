"""Vectors of texts against frozen ones of transformers, for tiny random encoders, and of decoders by their last token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from camshaft import EmbeddingModel, LanguageModel, Reranker
from camshaft.cli.main import make_app
from camshaft.errors import ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.models.families import FAMILIES
from camshaft.models.t5 import t5
from camshaft.plan.cached.cached_plan import CachedPlan
from tests.support.fixtures import DATA, tiny_encoder, tiny_model
from tests.support.models.files import changed_model
from tests.support.models.references.reference_models import compute_by_references
from tests.support.quick import quick_of

ENCODERS = (
    *("bert", "nomic-bert", "modern-bert", "jina-bert-v3", "gemma-embedding", "t5encoder"),
    *("jina-bert-v2", "nomic-bert-moe"),  # transformers lacks these: computed in float64
)
# As scripts/oracles/encoders/tiny.py has them.
TEXTS = ["Hello world!", "The cat sat on the mat", "a", "unknown words, unknowningly sats on a b c the cat"]
TOLERANCE = 1e-5


def _wanted(name: str) -> np.ndarray:
    with np.load(DATA / "encoders" / f"{name}.npz") as saved:
        vectors: np.ndarray = saved["vectors"]
    return vectors


def _difference(name: str, folder: Path, **options: Any) -> float:
    with EmbeddingModel(tiny_encoder(name, folder), activations="f32", threads=1, **options) as model:
        return float(np.abs(model.embed(TEXTS) - _wanted(name)).max())


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For what is broken on purpose: such plans are not cached, since the key of a cached plan does not cover patches."""
    for name in ("get", "add"):
        monkeypatch.setattr(PlanCache, name, lambda *_: None)
    return monkeypatch


@pytest.mark.parametrize("name", quick_of(ENCODERS, ("bert", "modern-bert", "nomic-bert-moe")))
def test_vectors_are_those_of_transformers_however_many_run_together(name: str, tmp_path: Path) -> None:
    with EmbeddingModel(tiny_encoder(name, tmp_path), activations="f32", threads=1) as model:
        vectors = model.embed(TEXTS * 5)
        assert np.abs(vectors - np.tile(_wanted(name), (5, 1))).max() < TOLERANCE
        assert np.abs(model.embed(TEXTS[1]) - vectors[1]).max() < TOLERANCE
        assert model.embed([]).shape == (0, model.dim)
        assert np.linalg.norm(model.embed(TEXTS[0], normalize=False)) > 1.5


SEEDS = (4, 6, 7, 8, 9, 10)  # of ENCODERS in scripts/oracles/encoders/tiny.py that are not rerankers


@pytest.mark.oracle
@pytest.mark.parametrize("seed", [0, 1, 1000, 1001, *SEEDS, *(1000 + seed for seed in SEEDS)])
def test_transformers_and_llama_cpp_still_say_the_same(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("transformers")
    from scripts.oracles import llama
    from scripts.oracles.encoders import tiny as tiny_encoders

    tiny, path = tiny_encoders.ENCODERS[seed % 1000], tmp_path / "tiny.gguf"
    arrays, difference = tiny_encoders.written(tiny, seed, path)
    tokens, wanted = llama.vectors(path, TEXTS)[0], arrays["vectors"]
    assert difference < tiny.agreement
    if seed < 1000:
        assert path.read_bytes() == tiny_encoder(tiny.name, tmp_path).read_bytes()
        assert np.abs(_wanted(tiny.name) - wanted).max() < TOLERANCE
    with EmbeddingModel(path, activations="f32", threads=1) as model:
        assert [model.tokenizer.encode(text) for text in TEXTS] == tokens
        assert np.abs(model.embed(TEXTS) - wanted).max() < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "field", "wrong"),
    [
        ("bert", "activation", "silu"),
        ("nomic-bert", "pairing", "interleaved"),
        ("nomic-bert", "activation", "gelu"),
        ("modern-bert", "pairing", "interleaved"),
        ("modern-bert", "activation", "silu"),
        ("modern-bert", "full_first", False),
        ("modern-bert", "window_rope", "same"),
        ("modern-bert", "windows", False),
        ("modern-bert", "encoder", False),
        ("jina-bert-v3", "embedding_norm", False),
        ("jina-bert-v3", "pairing", "interleaved"),
        ("jina-bert-v3", "activation", "silu"),
        ("gemma-embedding", "pairing", "interleaved"),
        ("gemma-embedding", "windows", False),
        ("gemma-embedding", "encoder", False),
        ("gemma-embedding", "norms", "pre"),
        ("gemma-embedding", "embedding_scale", ""),
        ("gemma-embedding", "activation", "silu"),
        ("t5encoder", "encoder", False),
        ("t5encoder", "score_scale", 0.0),
        ("jina-bert-v2", "alibi", False),
        ("jina-bert-v2", "activation", "silu"),
        ("nomic-bert-moe", "normalizes_experts", True),
        ("nomic-bert-moe", "pairing", "interleaved"),
        ("nomic-bert-moe", "activation", "silu"),
    ],
)
def test_a_wrong_row_shows(name: str, field: str, wrong: object, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setitem(FAMILIES, name, replace(FAMILIES[name], **{field: wrong}))  # type: ignore[arg-type]
    assert _difference(name, tmp_path) > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("modern-bert", "attention.sliding_window", 8),
        ("modern-bert", "attention.sliding_window_pattern", 2),
        ("modern-bert", "rope.freq_base_swa", 160000.0),
        ("gemma-embedding", "attention.sliding_window", 4),
        ("nomic-bert-moe", "expert_used_count", 1),
    ],
)
def test_a_wrong_key_shows(name: str, key: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by_references(monkeypatch)
    path = changed_model(tiny_encoder(name, tmp_path), tmp_path, keys={f"{name}.{key}": value})
    with EmbeddingModel(path, activations="f32", threads=1) as model:
        assert np.abs(model.embed(TEXTS) - _wanted(name)).max() > 100 * TOLERANCE


@pytest.mark.full
def test_other_buckets_of_distances_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(t5, "FARTHEST", 8)
    assert _difference("t5encoder", tmp_path) > 100 * TOLERANCE


def test_embedding_gemma_has_two_layers_after_pooling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by_references(monkeypatch)
    path, wanted = tiny_encoder("gemma-embedding", tmp_path), _wanted("gemma-embedding")
    plain = changed_model(path, tmp_path, drop_tensors=("dense_2.weight", "dense_3.weight"))
    with EmbeddingModel(plain, activations="f32", threads=1) as model:
        assert np.abs(model.embed(TEXTS) - wanted).max() > 0.1
    short = changed_model(path, tmp_path, drop_tensors=("dense_3.weight",))
    with EmbeddingModel(short, activations="f32", threads=1) as model:
        assert (model.dim, model.embed(TEXTS).shape) == (24, (4, 24))
    with pytest.raises(ModelError, match=r"gemma-embedding is an encoder.*EmbeddingModel"):
        LanguageModel(path)


@pytest.mark.full
@pytest.mark.parametrize(("name", "pooling"), [("bert", "mean"), ("bert", "last"), ("nomic-bert", "cls")])
def test_another_pooling_gives_other_vectors(name: str, pooling: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path, pooling=pooling) > 100 * TOLERANCE


def test_the_last_token_of_a_decoder_gives_its_logits(tmp_path: Path) -> None:
    path, text = tiny_model("qwen3", tmp_path), "the winding and"
    with pytest.raises(ModelError, match="names no pooling"):
        EmbeddingModel(path)
    with EmbeddingModel(path, activations="f32", threads=1, pooling="last", context=64) as model:
        vector = model.embed([text, "the"], normalize=False)[0]
    with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
        logits = lm.logits(lm.tokenize(text))[-1]
    with open_gguf(path) as file:
        head = file.tensors["token_embd.weight"].dequantize()
    assert np.abs(head @ vector - logits).max() < 1e-4


def test_files_of_newer_converters_keep_the_end_of_a_text(tmp_path: Path) -> None:
    """They say that pairs have no second [SEP]; a single text ends with one all the same, as in llama.cpp."""
    keys = {"tokenizer.ggml.add_sep_token": False, "tokenizer.ggml.eos_token_id": 3}
    path = changed_model(tiny_encoder("bert", tmp_path), tmp_path, keys=keys)
    with EmbeddingModel(path, activations="f32", threads=1) as model:
        assert model.tokenize("a") == [2, 7, 3]


def test_the_command_prints_a_line_or_an_object(tmp_path: Path) -> None:
    path, app = str(tiny_encoder("bert", tmp_path)), make_app(["embed"])
    result = CliRunner().invoke(app, ["embed", path, *TEXTS[:2], "--threads", "1"])
    lines = result.stdout.splitlines()
    assert np.abs(np.array([line.split() for line in lines], float) - _wanted("bert")[:2]).max() < 0.02
    result = CliRunner().invoke(app, ["embed", path, "--threads", "1", "--json"], input="\n".join(TEXTS))
    made = json.loads(result.stdout)
    assert (made["pooling"], len(made["vectors"])) == ("cls", 4)


def test_lines_of_stdin_end_at_line_feeds_only(tmp_path: Path) -> None:
    """A separator of Unicode inside a text makes no second vector, so that vectors stay beside the lines."""
    texts = ["a\u2028b", "", "\fc\x1cd", "e\x85"]
    path, app = str(tiny_encoder("bert", tmp_path)), make_app(["embed"])
    result = CliRunner().invoke(app, ["embed", path, "--threads", "1"], input="\n".join(texts) + "\n")
    with EmbeddingModel(path, threads=1) as model:
        wanted = model.embed(texts)
    np.testing.assert_allclose(np.loadtxt(result.stdout.splitlines()), wanted, atol=1e-6)


def test_stdin_that_is_no_utf8_is_refused_in_any_locale(tmp_path: Path) -> None:
    path, app = str(tiny_encoder("bert", tmp_path)), make_app(["embed"])
    result = CliRunner().invoke(app, ["embed", path, "--threads", "1"], input=b"cat\nabc \xff\n")
    assert (result.exit_code, result.stderr) == (2, "camshaft: stdin: is not UTF-8: byte 8 is wrong\n")


@pytest.mark.parametrize("name", ["bert", "gemma-embedding", "bert-rerank"])
def test_a_second_start_compiles_nothing_and_says_the_same(name: str, tmp_path: Path) -> None:
    """Of another file with the same header too: its types of tokens are in the plan in another form."""
    path, found = tiny_encoder(name, tmp_path), []

    def said(path: Path) -> tuple[np.ndarray, bool]:
        with Reranker(path, threads=1) if name == "bert-rerank" else EmbeddingModel(path, threads=1) as model:
            made = model.rank("the cat", TEXTS) if isinstance(model, Reranker) else model.embed(TEXTS)
            return made, isinstance(model._plan, CachedPlan)

    # What other tests prove meanwhile makes another key.
    while len(found) < 2 or (not found[-1][1] and len(found) < 9):
        found.append(said(path))
        np.testing.assert_array_equal(found[0][0], found[-1][0])
    assert found[-1][1]
    if name == "bert":
        with open_gguf(path) as file:
            types = np.array(file.tensors["token_types.weight"].dequantize())
        first, second = (
            said(changed_model(path, tmp_path, tensors={"token_types.weight": t})) for t in (types, -types)
        )
        assert np.abs(first[0] - second[0]).max() > 0.01
