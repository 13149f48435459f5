"""KV cache pages: small until the tokens in use justify huge ones, with unchanged content."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.dtypes import f16
from camshaft.generate.memory import kv_cache
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.kv_cache import KVCache

CONTEXT, SLOTS = 8 * BLOCK_TOKENS, 4


@pytest.fixture
def made(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> tuple[KVCache, list[str]]:
    """A cache whose pages become huge with the fifth block that is held, and what says that they did."""
    said: list[str] = []

    def noted(nbytes: int) -> tuple[np.ndarray, Callable[[], None]]:
        return np.zeros(nbytes, np.uint8), lambda: said.append("huge")

    cache = KVCache(lm.config, CONTEXT, f16, SLOTS)
    monkeypatch.setattr(kv_cache, "late_huge_pages", noted)
    monkeypatch.setattr(kv_cache, "HUGE_FROM_NBYTES", 5 * cache.session_nbytes // cache.blocks_per_slot)
    assert cache.states
    return cache, said


def test_one_long_session_gets_huge_pages_once(made: tuple[KVCache, list[str]]) -> None:
    cache, said = made
    slot = cache.open_slot()
    cache.reserve(slot, 4 * BLOCK_TOKENS)
    assert said == []
    cache.reserve(slot, 4 * BLOCK_TOKENS + 1)
    cache.reserve(slot, CONTEXT)
    assert said == ["huge"]


def test_sessions_count_together_while_they_are_open(made: tuple[KVCache, list[str]]) -> None:
    cache, said = made
    first, second, third = (cache.open_slot() for _ in range(3))
    cache.reserve(first, 2 * BLOCK_TOKENS)
    cache.reserve(second, 2 * BLOCK_TOKENS)
    cache.close_slot(first)
    cache.reserve(third, 2 * BLOCK_TOKENS)
    assert said == []
    cache.reserve(second, 3 * BLOCK_TOKENS)
    assert said == ["huge"]


def test_a_closed_cache_holds_no_memory(made: tuple[KVCache, list[str]]) -> None:
    cache, _ = made
    cache.close()
    assert (cache._enlarge, cache.states) == (None, {})
