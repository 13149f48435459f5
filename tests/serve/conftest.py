"""A server of a tiny model, without a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from camshaft import LanguageModel
from camshaft.generate.engine.engine import Engine
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.support.fixtures import tiny_model

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard
from camshaft.serve.served import Served

EVERYBODY = Guard()


@pytest.fixture(scope="session")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    path = tiny_model("llama", tmp_path_factory.mktemp("served"))
    with LanguageModel(path, threads=1, context=CONTEXT, activations="f32", sessions=SESSIONS) as model:
        yield model


def client_of(served: Served, guard: Guard = EVERYBODY) -> TestClient:
    """A client to enter, whose exit closes the engine."""
    return TestClient(make_app(served, guard), base_url="http://localhost")


@pytest.fixture
def served(lm: LanguageModel) -> Served:
    return Served("tiny", Engine(lm, max_queue=8), most_body_nbytes=20_000)


@pytest.fixture
def client(served: Served) -> Iterator[TestClient]:
    with client_of(served) as made:
        yield made
    assert served.lm.plans.cache.n_free == SESSIONS
