"""An engine on the tiny model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from camshaft import LanguageModel
from camshaft.generate.engine.engine import Engine
from tests.generate.conftest import SESSIONS


@pytest.fixture
def engine(lm: LanguageModel) -> Iterator[Engine]:
    """An engine without a thread and without shared blocks of other tests."""
    cache = lm.plans.cache
    assert cache.n_free == SESSIONS
    if cache.prefixes is not None:
        cache._free_blocks += [cache.prefixes.evict() for _ in range(cache.prefixes.n_idle)]
    with Engine(lm) as made:
        yield made
    assert cache.n_free == SESSIONS
    assert cache.prefixes is None or cache.prefixes.n_idle == cache.prefixes.n_blocks
