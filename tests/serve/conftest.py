"""A server of a tiny model, without a network and on a socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

import pytest

from camshaft import LanguageModel, Reranker
from camshaft.generate.engine.engine import Engine
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.support.fixtures import tiny_model

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard
from camshaft.serve.models.entry import CHAT, EMBEDDING, RERANK, Card, Loaded
from camshaft.serve.models.models import Models
from camshaft.serve.models.served import Embedder, Ranker, Served
from camshaft.serve.run import listen, make_server, url_of

EVERYBODY = Guard()


@pytest.fixture(scope="session")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    path = tiny_model("llama", tmp_path_factory.mktemp("served"))
    with LanguageModel(path, threads=1, context=CONTEXT, activations="f32", sessions=SESSIONS) as model:
        yield model


@pytest.fixture(scope="session")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """The same model with room for what it is told of tools."""
    path = tiny_model("llama", tmp_path_factory.mktemp("roomy"))
    with LanguageModel(path, threads=1, context=1500, activations="f32", sessions=2) as model:
        yield model


@pytest.fixture
def roomy_client(roomy: LanguageModel) -> Iterator[TestClient]:
    with client_of(Served("tiny", Engine(roomy))) as made:
        yield made


class Kept(Served):
    """One whose model stays open for other tests."""

    def close(self) -> None:
        self.engine.close()


class KeptEmbedder(Embedder):
    """The same for vectors."""

    def close(self) -> None:
        pass


class KeptRanker(Ranker):
    """The same for scores."""

    def close(self) -> None:
        pass


def models_of(served: Served, ranker: Reranker | None = None) -> Models:
    """The models of a server that are loaded already."""
    kept: list[tuple[str, Loaded]] = [
        (CHAT, Kept(**{each.name: getattr(served, each.name) for each in fields(served)}))
    ]
    if served.embedder is not None:
        kept.append((EMBEDDING, KeptEmbedder(served.embedder.name, served.embedder.model)))
    if ranker is not None:
        kept.append((RERANK, KeptRanker("ranker", ranker)))
    cards = [Card(each.name, partial(lambda each: each, each), kind) for kind, each in kept]
    models = Models(cards, most_body_nbytes=served.most_body_nbytes)
    for card in cards:
        models.put(card.name, card.open())
    return models


def client_of(served: Served, guard: Guard = EVERYBODY, ranker: Reranker | None = None) -> TestClient:
    """A client to enter, whose exit closes the engine."""
    return TestClient(make_app(models_of(served, ranker), guard), base_url="http://localhost")


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """The address of a server on a socket."""
    begun = threading.Event()
    with listen("127.0.0.1", 0) as listening:
        server = make_server(models_of(served), EVERYBODY, begun.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        assert begun.wait(60)
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def served(lm: LanguageModel) -> Served:
    return Served("tiny", Engine(lm, max_queue=8), most_body_nbytes=20_000)


@pytest.fixture
def client(served: Served) -> Iterator[TestClient]:
    with client_of(served) as made:
        yield made
    assert served.lm.plans.cache.n_free == SESSIONS
