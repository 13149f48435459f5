"""Fine-tuning of embedding models: their vectors are the model's, and similar texts come nearer to each other than others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import train
from camshaft.errors import CamshaftError
from camshaft.graph.graph import Graph
from camshaft.train.tuning.methods.vectors import VectorModel, contrastive_loss, read_similar
from tests.support.fixtures import DATA, tiny_encoder, tiny_model
from tests.support.quick import full
from tests.support.references import evaluated
from tests.train.by_references import by_references  # noqa: F401 - a fixture

Array = np.ndarray[Any, Any]
# As scripts/oracles/encoders/rows.py has them.
TEXTS = ["Hello world!", "The cat sat on the mat", "a", "unknown words, unknowningly sats on a b c the cat"]
LINES = [
    {"query": f"what is {w}", "positive": f"{w} is a thing", "negative": f"no {w}"} for w in ("tea", "ox", "ink", "oak")
]


def written(folder: Path, lines: list[Any]) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def vectors(model: VectorModel, texts: list[str], filling: int = 0) -> Array:
    """The vectors by references, with rows filled up by so many tokens."""
    tokens = [model.tokenizer.encode(text, parse_special=False) for text in texts]
    lengths = np.array(list(map(len, tokens)), np.int32)
    ids = np.zeros((len(texts), int(lengths.max()) + filling), np.int32)
    for row, text in zip(ids, tokens, strict=True):
        row[: len(text)] = text
    graph = Graph()
    given = graph.input("ids", ids.shape, "i32"), graph.input("lengths", lengths.shape, "i32")
    held = {name: graph.constant(name, a) for name, a in model.parameters().items()}
    graph.output("y", model.vectors(held, *given))
    return evaluated(graph, {"ids": ids, "lengths": lengths}, {})["y"]


@pytest.mark.parametrize("name", ["bert", "gemma-embedding", *map(full, ("nomic-bert", "modern-bert", "jina-bert-v3"))])
def test_vectors_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    with np.load(DATA / "encoders" / f"{name}.npz") as saved:
        wanted = saved["vectors"]
    with VectorModel(tiny_encoder(name, tmp_path)) as model:
        found = vectors(model, TEXTS, filling=3)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("name", ["bert", full("modern-bert")])
def test_queries_come_nearer_to_their_positives(name: str, tmp_path: Path) -> None:
    base, out = tiny_encoder(name, tmp_path), tmp_path / "tuned.gguf"
    data = written(tmp_path, LINES)
    options = train.FinetuneOptions(steps=3, batch=4, lr=1e-2, method="embedding", temperature=0.1, validate_every=3)
    done = train.finetune(base, data, out, options=options, validation=data)
    assert done.best_validation < 0.9 * done.first_loss
    gained = []
    for path in (base, out):
        with VectorModel(path) as model:
            q, p, n = (vectors(model, [line[kind] for line in LINES]) for kind in ("query", "positive", "negative"))
        gained.append(float(((q * p).sum(axis=1) - (q * n).sum(axis=1)).mean()))
    assert gained[1] > gained[0] + 0.05


def test_the_loss_is_that_of_the_formula(tmp_path: Path) -> None:
    base = tiny_encoder("bert", tmp_path)
    with VectorModel(base) as model:
        ids, lengths = read_similar(written(tmp_path, LINES), model, 64)
        assert ids.shape == (4, 3, 16)
        graph = Graph()
        held = {name: graph.constant(name, a) for name, a in model.parameters().items()}
        given = [graph.input(name, a.shape, "i32") for name, a in (("ids", ids), ("lengths", lengths))]
        graph.output("loss", contrastive_loss(model, 0.2)(held, *given))
        found = float(evaluated(graph, {"ids": ids, "lengths": lengths}, {})["loss"])
        q, p, n = (vectors(model, [line[kind] for line in LINES]) for kind in ("query", "positive", "negative"))
    scores = q.astype(np.float64) @ np.concatenate([p, n]).T / 0.2
    wanted = (np.log(np.exp(scores).sum(axis=1)) - np.diagonal(scores)).mean()
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"query": "a"}], "line 1: got .*; wanted query and positive, perhaps negative"),
        ([{"query": "a", "positive": ""}], "line 1: positive is ''; wanted a text"),
        ([{"query": "a", "positive": "b " * 90}], r"line 1: positive has \d+ tokens; wanted at most 20"),
        ([LINES[0], {"query": "a", "positive": "b"}], "line 2: has query, positive; wanted query, positive, negative"),
    ],
)
def test_lines_without_two_texts_are_refused(lines: list[Any], message: str, tmp_path: Path) -> None:
    with VectorModel(tiny_encoder("bert", tmp_path)) as model, pytest.raises(CamshaftError, match=message):
        read_similar(written(tmp_path, lines), model, 20)


def test_models_that_make_no_vectors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CamshaftError, match="the file's pooling is not given; wanted mean, cls, last: an embedding model"
    ):
        VectorModel(tiny_model("llama", tmp_path))
    with pytest.raises(CamshaftError, match="pooling is rank"):
        VectorModel(tiny_encoder("bert-rerank", tmp_path))
    with pytest.raises(CamshaftError, match="got temperature=0; wanted a finite number above 0"):
        train.FinetuneOptions(temperature=0, method="embedding")
