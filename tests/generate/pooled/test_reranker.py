"""Scores of pairs against frozen ones of transformers: a BERT reranker with types of tokens, and a decoder's yes and no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from camshaft import EmbeddingModel, Reranker
from camshaft.cli.main import make_app
from camshaft.errors import ContextError, ModelError, SettingError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.pooled.reranker import TEMPLATE, Pair
from tests.support.fixtures import DATA, tiny_encoder, tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.quick import quick_of

# As scripts/oracles/encoders/rows.py has them.
PAIRS = [("the cat", "The cat sat on the mat"), ("the cat", "Hello world!"), ("a", "b"), ("hello mat", "a b c " * 9)]
TOLERANCE = 2e-5
PROMPT = "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"


def _wanted(name: str = "bert-rerank") -> np.ndarray:
    with np.load(DATA / "encoders" / f"{name}.npz") as saved:
        scores: np.ndarray = saved["scores"]
    return scores


def _scores(path: Path) -> np.ndarray:
    with Reranker(path, activations="f32", threads=1) as model:
        return model.rank_pairs([model.pair(*pair) for pair in PAIRS], normalize=False)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder("bert-rerank", tmp_path_factory.mktemp("reranker"))


@pytest.mark.parametrize("name", quick_of(["bert-rerank", "xlm-r-rerank", "modern-bert-rerank"], ["xlm-r-rerank"]))
def test_scores_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    wanted, path = _wanted(name), tiny_encoder(name, tmp_path)
    with Reranker(path, activations="f32", threads=1) as model:
        logits = model.rank_pairs([model.pair(*pair) for pair in PAIRS], normalize=False)
        assert np.abs(logits - wanted).max() < TOLERANCE
        query, documents = PAIRS[0][0], [document for q, document in PAIRS if q == PAIRS[0][0]]
        np.testing.assert_array_equal(model.rank(query, iter(documents), normalize=False), logits[:2])
        np.testing.assert_allclose(model.rank(query, documents), 1 / (1 + np.exp(-logits[:2])), rtol=1e-6)
        assert model.rank("the cat", []).shape == (0,)
        many = model.rank_pairs([model.pair(*pair) for pair in PAIRS * 5], normalize=False)
        assert np.abs(many - np.tile(logits, 5)).max() < TOLERANCE
    assert wanted.std() > 0.2


@pytest.mark.parametrize("tensor", ["token_types.weight", "cls.weight", "cls.bias", "cls.output.weight"])
def test_a_wrong_tensor_shows(tensor: str, path: Path, tmp_path: Path) -> None:
    with open_gguf(path) as file:
        values = np.array(file.tensors[tensor].dequantize())[::-1]
    changed = changed_model(path, tmp_path, tensors={tensor: -values})
    assert np.abs(_scores(changed) - _wanted()).max() > 100 * TOLERANCE


def test_files_that_were_quantized_lack_axes_of_1(path: Path, tmp_path: Path) -> None:
    with open_gguf(path) as file:
        row = np.array(file.tensors["cls.output.weight"].dequantize())
    changed = changed_model(path, tmp_path, tensors={"cls.output.weight": row.reshape(-1)})
    np.testing.assert_array_equal(_scores(changed), _scores(path))


def test_texts_too_long_are_refused_or_cut(path: Path) -> None:
    with Reranker(path, activations="f32", threads=1, context=32) as model:
        long = "the cat " * 40
        with pytest.raises(ContextError, match="wanted at most 32"):
            model.rank("a", [long])
        cut = model.pair("a", long, truncate=True)
        assert (len(cut.ids), cut.n_first, cut.ids[-1]) == (32, 3, 3)
        assert model.rank("a", [long], truncate=True).shape == (1,)
        assert model.pair("a", "b", truncate=True) == model.pair("a", "b")
        with pytest.raises(ContextError, match="a query of 83 tokens with those around it; wanted less than 32"):
            model.rank(long, ["a"], truncate=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, ["a"]), "the query came as int"),
        (("a", [b"a"]), "a document came as bytes"),
        (("a", "b"), "documents came as str"),
    ],
)
def test_what_is_no_text_is_named(arguments: Any, words: str, path: Path) -> None:
    with Reranker(path, threads=1) as model, pytest.raises(SettingError, match=words):
        model.rank(*arguments)


HOSTILE: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...], str]] = [
    ({"bert.pooling_type": 2}, {}, (), "is not a reranker: its pooling is cls; wanted rank"),
    ({}, {"cls.weight": np.zeros((16, 8), np.float32)}, (), r"'cls.weight' has shape \[16, 8\]; wanted \[16, 16\]"),
    ({}, {"cls.bias": np.zeros(3, np.float32)}, (), r"'cls.bias' has shape \[3\]; wanted \[16\]"),
    ({}, {"cls.output.weight": np.zeros((3, 16), np.float32)}, ("cls.output.bias",), "tells 3 classes of texts apart"),
    ({}, {"cls.output.weight": np.zeros((2, 16), np.float32)}, ("cls.output.bias",), "tells 2 classes of texts apart"),
    ({}, {}, ("cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"), "has no tensor cls.weight or"),
    ({}, {}, ("cls.output.weight",), r"'cls.weight' has shape \[16, 16\]; wanted \[1, 16\]"),
    ({TEMPLATE: "no places"}, {}, (), "'no places'; wanted a text with {query} and {document}"),
    ({TEMPLATE: 7}, {}, (), "7; wanted a text with {query} and {document}"),
]


@pytest.mark.parametrize(("keys", "tensors", "drop", "words"), HOSTILE)
def test_a_file_that_cannot_rank_is_refused_in_a_line(
    keys: dict[str, Any], tensors: dict[str, Any], drop: tuple[str, ...], words: str, path: Path, tmp_path: Path
) -> None:
    changed = changed_model(path, tmp_path, keys=keys, tensors=tensors, drop_tensors=drop)
    with pytest.raises(ModelError, match=words) as caught, Reranker(changed, threads=1) as model:
        model.rank("a", ["b"])
    assert "\n" not in str(caught.value)


def test_a_reranker_makes_no_vectors_unless_told_how(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a reranker \(camshaft rerank, Reranker\); give pooling="):
        EmbeddingModel(path)
    with pytest.raises(ModelError, match="its pooling is not given; wanted rank"):
        Reranker(tiny_model("qwen3", tmp_path))


def _yes_or_no(folder: Path, yes: int, no: int) -> Path:
    """The tiny Qwen3 as a reranker, as llama.cpp's converter makes one of two rows of its output layer."""
    with open_gguf(tiny_model("qwen3", folder)) as file:
        head = np.array(file.tensors["token_embd.weight"].dequantize())
    keys = {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"], TEMPLATE: PROMPT}
    return changed_model("qwen3", folder, keys=keys, tensors={"cls.output.weight": head[[yes, no]]})


def test_a_decoder_answers_yes_or_no(tmp_path: Path) -> None:
    tokens, logits = tiny_logits("qwen3")
    with Reranker(_yes_or_no(tmp_path, 11, 40), activations="f32", threads=1) as model:
        difference = model.rank_pairs([Pair(tokens, 0)], normalize=False)[0]
        assert abs(difference - (logits[-1, 11] - logits[-1, 40])) < 1e-3
        probability = np.exp(logits[-1, [11, 40]] - logits[-1, [11, 40]].max())
        assert abs(model.rank_pairs([Pair(tokens, 0)])[0] - probability[0] / probability.sum()) < 1e-4


def test_the_template_of_a_decoder_has_both_texts_and_theirs_are_no_control_tokens(tmp_path: Path) -> None:
    with Reranker(_yes_or_no(tmp_path, 11, 40), activations="f32", threads=1) as model:
        wanted = PROMPT.replace("{query}", "the {document}").replace("\n<Document>: {document}", "\n<Document>: in")
        assert model.pair("the {document}", "in").ids == model.tokenizer.encode(wanted, add_special=False)
        ids = model.pair("a", "b<|im_end|>").ids
        assert ids.count(model.tokenizer.vocabulary.ids["<|im_end|>"]) == 1
        assert model.tokenizer.decode(ids, special=True) == PROMPT.replace("{query}", "a").replace(
            "{document}", "b<|im_end|>"
        )
        assert len(model.pair("a", "the " * 999, truncate=True).ids) <= model.context


@pytest.mark.oracle
def test_llama_cpp_reads_the_same_tokens_and_says_the_same(tmp_path: Path) -> None:
    llama = pytest.importorskip("scripts.oracles.llama", reason="llama-cpp-python is not installed")
    path = _yes_or_no(tmp_path, 11, 40)
    with Reranker(path, activations="f32", threads=1) as model:
        pairs = [model.pair(*pair) for pair in PAIRS]
        ours = model.rank_pairs(pairs)
    np.testing.assert_allclose(ours, llama.scores(path, [list(pair.ids) for pair in pairs]), atol=1e-4)
    vocabulary = llama.Vocabulary(path)
    filled = [PROMPT.replace("{query}", query).replace("{document}", document) for query, document in PAIRS]
    wanted = [vocabulary.tokenize(text.encode(), add_special=False, parse_special=True) for text in filled]
    assert [pair.ids for pair in pairs] == wanted


@pytest.mark.oracle
@pytest.mark.parametrize("seed", [2, 1002, 3, 1003, 5, 1005])
def test_transformers_still_says_the_same(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("transformers")
    from scripts.oracles.encoders import tiny as tiny_encoders

    tiny, path = tiny_encoders.ENCODERS[seed % 1000], tmp_path / "tiny.gguf"
    arrays, difference = tiny_encoders.written(tiny, seed, path)
    assert difference < tiny.agreement
    assert np.abs(_scores(path) - arrays["scores"]).max() < 10 * TOLERANCE
    if seed < 1000:
        assert np.abs(_wanted(tiny.name) - arrays["scores"]).max() < TOLERANCE


def test_the_command_prints_the_best_first(path: Path, tmp_path: Path) -> None:
    app, files = make_app(["rerank"]), []
    for i, document in enumerate(["Hello world!", "The cat sat on the mat"]):
        files.append(tmp_path / f"{i}.txt")
        files[-1].write_text(document)
    run = ["rerank", str(path), "the cat", "--threads", "1"]
    best = np.argsort(-_wanted()[[1, 0]])
    lines = CliRunner().invoke(app, [*run, *map(str, files)]).stdout.splitlines()
    assert [line.split("\t")[1] for line in lines] == [str(files[i]) for i in best]
    texts = ["--document", "Hello world!", "--document", "The cat sat on the mat", "--top-n", "1", "--json"]
    (found,) = json.loads(CliRunner().invoke(app, [*run, *texts]).stdout)["results"]
    assert (found["index"], found["document"]) == (best[0], ["Hello world!", "The cat sat on the mat"][best[0]])
    score = 1 / (1 + np.exp(-_wanted()[[1, 0]].max()))
    assert abs(found["relevance_score"] - score) < 0.02
    lines = CliRunner().invoke(app, [*run, "--no-normalize"], input="Hello world!\nThe cat sat on the mat\n").stdout
    assert abs(float(lines.splitlines()[0].split("\t")[0]) - _wanted()[:2].max()) < 0.1
