"""Vectors over HTTP are those of the model, in OpenAI's shape and in Ollama's; what is wrong is refused by name."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from camshaft import EmbeddingModel
from camshaft.serve.models.served import Embedder, Served
from tests.serve.conftest import client_of
from tests.support.fixtures import tiny_encoder

TEXTS = ["Hello world!", "The cat sat on the mat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingModel]:
    with EmbeddingModel(
        tiny_encoder("bert", tmp_path_factory.mktemp("embedder")), threads=1, activations="f32"
    ) as made:
        yield made


@pytest.fixture
def client(served: Served, model: EmbeddingModel) -> Iterator[Any]:
    with client_of(replace(served, embedder=Embedder("bert", model))) as made:
        yield made


def test_openais_shape(client: Any, model: EmbeddingModel) -> None:
    wanted, ids = model.embed(TEXTS), [model.tokenize(text) for text in TEXTS]
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "bert"}).json()
    np.testing.assert_array_equal(np.array([row["embedding"] for row in answer["data"]], np.float32), wanted)
    assert [row["index"] for row in answer["data"]] == [0, 1]
    assert answer["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), sum(map(len, ids)))
    for given in (TEXTS[0], [TEXTS[0]], ids[0], [ids[0]]):
        body = {"input": given, "encoding_format": "base64", "dimensions": model.dim, "user": "me"}
        (row,) = client.post("/v1/embeddings", json=body).json()["data"]
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(row["embedding"]), "<f4"), wanted[0])
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["tiny", "bert"]
    assert client.get("/v1/models/bert").json()["max_model_len"] == model.context


def test_ollamas_shape_cuts_long_texts(client: Any, model: EmbeddingModel) -> None:
    answer = client.post("/api/embed", json={"model": "bert:latest", "input": [*TEXTS, "a " * 500]}).json()
    assert answer["prompt_eval_count"] == sum(len(model.tokenize(text)) for text in TEXTS) + model.context
    np.testing.assert_array_equal(np.array(answer["embeddings"][:2], np.float32), model.embed(TEXTS))
    longest = model.embed("a " * (model.context - 2))  # the closing token stays
    np.testing.assert_array_equal(np.array(answer["embeddings"][2], np.float32), longest)
    assert client.post("/api/embed", json={"model": "bert", "input": []}).json()["embeddings"] == []
    long = client.post("/api/embed", json={"model": "bert", "input": "a " * 500, "truncate": False})
    assert (long.status_code, "wanted at most" in long.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input": "a", "model": "tiny"}, 404, "there is no model 'tiny' for vectors; this server has 'bert'"),
        ({"input": []}, 400, "wanted a text, a list of token ids"),
        ({"input": [[]]}, 400, "wanted a text, a list of token ids"),
        ({"input": [9999]}, 400, "token id 9999; wanted a whole number"),
        ({"input": [-1]}, 400, "token id -1; wanted a whole number"),
        ({"input": "a " * 500}, 400, "a text of 502 tokens; wanted at most"),
        ({"input": ["a"] * 2049}, 400, "2049 texts in one request; wanted at most 2048"),
        ({"input": "a", "dimensions": 8}, 400, "'dimensions' other than 32, the model's, is not supported"),
        ({"input": "a", "encoding_format": "int8"}, 400, 'wanted "float" or "base64"'),
        ({"model": "bert"}, 400, "the field 'input' is missing"),
        ({"input": "a", "task": "query"}, 400, "the field 'task' is not supported"),
    ],
)
def test_what_is_wrong_is_named(client: Any, body: dict[str, Any], status: int, message: str) -> None:
    answer = client.post("/v1/embeddings", json=body)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text


def test_a_server_without_such_a_model_says_how_to_get_one(served: Served) -> None:
    with client_of(served) as client:
        answer = client.post("/v1/embeddings", json={"input": "a"})
        assert (answer.status_code, "--embed MODEL" in answer.text) == (404, True)
