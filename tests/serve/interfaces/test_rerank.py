"""Scores over HTTP are those of the model, best first; what is wrong is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from camshaft import Reranker
from camshaft.serve.models.served import Served
from tests.serve.conftest import client_of
from tests.support.fixtures import tiny_encoder

DOCUMENTS = ["Hello world!", "The cat sat on the mat", "a"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reranker]:
    path = tiny_encoder("bert-rerank", tmp_path_factory.mktemp("ranker"))
    with Reranker(path, threads=1, activations="f32") as made:
        yield made


@pytest.fixture
def client(served: Served, model: Reranker) -> Iterator[Any]:
    with client_of(served, ranker=model) as made:
        yield made


@pytest.mark.parametrize("address", ["/v1/rerank", "/rerank"])
def test_the_best_come_first(address: str, client: Any, model: Reranker) -> None:
    scores = model.rank("the cat", DOCUMENTS).tolist()
    order = sorted(range(3), key=lambda i: -scores[i])
    answer = client.post(address, json={"query": "the cat", "documents": DOCUMENTS, "model": "ranker"}).json()
    assert answer["results"] == [{"index": i, "relevance_score": scores[i]} for i in order]
    n_tokens = sum(len(model.pair("the cat", document).ids) for document in DOCUMENTS)
    assert answer["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), n_tokens)
    wrapped = [{"text": document} for document in DOCUMENTS]
    body = {"query": "the cat", "documents": wrapped, "top_n": 2, "return_documents": True}
    found = client.post(address, json=body).json()["results"]
    assert [(row["index"], row["document"]["text"]) for row in found] == [(i, DOCUMENTS[i]) for i in order[:2]]
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["tiny", "ranker"]


def test_long_documents_are_cut_on_request(client: Any) -> None:
    body = {"query": "a", "documents": ["the cat " * 99]}
    answer = client.post("/v1/rerank", json=body)
    assert (answer.status_code, "wanted at most 64" in answer.json()["error"]["message"]) == (400, True)
    assert client.post("/v1/rerank", json=body | {"truncate": True}).json()["usage"]["total_tokens"] == 64


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"query": "a", "documents": ["b"], "model": "tiny"},
            404,
            "there is no model 'tiny' for scores; this server has",
        ),
        ({"documents": ["b"]}, 400, "the field 'query' is missing"),
        ({"query": "a"}, 400, "the field 'documents' is missing"),
        ({"query": "a", "documents": []}, 400, "wanted a list of texts"),
        ({"query": "a", "documents": "b"}, 400, "wanted a list of texts"),
        ({"query": "a", "documents": ["b", 3]}, 400, "wanted a list of texts"),
        ({"query": "a", "documents": [{"text": "b", "id": 1}]}, 400, "wanted a list of texts"),
        ({"query": ["a"], "documents": ["b"]}, 400, "wanted a text"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, 400, "a whole number from 1"),
        ({"query": "a", "documents": ["b"] * 2049}, 400, "2049 documents in one request; wanted at most 2048"),
        ({"query": "a", "documents": ["b"], "rank_fields": ["x"]}, 400, "the field 'rank_fields' is not supported"),
    ],
)
def test_what_is_wrong_is_named(client: Any, body: dict[str, Any], status: int, message: str) -> None:
    answer = client.post("/v1/rerank", json=body)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text


def test_a_server_without_a_reranker_says_so(served: Served) -> None:
    with client_of(served) as client:
        answer = client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert (answer.status_code, "--rerank MODEL" in answer.json()["error"]["message"]) == (404, True)
