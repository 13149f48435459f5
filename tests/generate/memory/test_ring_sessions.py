"""Layers with a window keep a ring of keys: the same bits as with all keys, in memory that does not grow with the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.generate import model_plans
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Request
from camshaft.generate.memory import checkpoints, kv_cache
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS, Ring
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.references.reference_models import compute_by_references
from tests.support.quick import quick_of

NAME, CONTEXT, RUN = "gemma3", 192, 32
GREEDY = Sampling(greedy=True)
NAMES = quick_of(("gemma3", "gemma2", "gemma4", "gpt-oss", "cohere2", "phi3", "olmo3", "exaone4"), ("gemma3",))
# Four runs of tokens: the ring's rows are used twice.
# Tokens that the smallest of the vocabularies has too.
TOKENS = ([10 + token % 86 for token in tiny_logits(NAME)[0]] * 9)[:120]


@pytest.fixture(scope="module", params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(request.param, tmp_path_factory.mktemp("tiny"))


def _opened(path: Path, **options: Any) -> LanguageModel:
    return LanguageModel(path, threads=1, activations="f32", **({"context": CONTEXT, "sessions": 2} | options))


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[LanguageModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_plans, "PROMPT_TOKENS", RUN)
        opened = _opened(path)
    with opened:
        yield opened


@pytest.fixture
def lm(shared: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    monkeypatch.setattr(checkpoints, "APART", 4)
    return shared


@pytest.fixture(scope="module")
def whole(path: Path) -> Iterator[LanguageModel]:
    """The same model, where layers with windows keep all keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_plans, "PROMPT_TOKENS", RUN)
        patch.setattr(kv_cache, "ring_of", lambda *given: None)
        opened = _opened(path, sessions=3)
    with opened:
        yield opened


@pytest.fixture
def runs(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The position of the first token of each run."""
    found: list[int] = []
    run = lm.plans.run

    def counted(ids: Sequence[int], positions: Sequence[int], *rest: Any, **how: bool) -> Any:
        found.append(positions[0])
        return run(ids, positions, *rest, **how)

    monkeypatch.setattr(lm.plans, "run", counted)
    return found


def _after(lm: LanguageModel, *parts: Sequence[int]) -> np.ndarray:
    """The logits after the tokens of the parts, each a run."""
    with lm.session() as session:
        return np.concatenate([session.process(part) for part in parts])


def test_a_ring_gives_the_bits_of_a_whole_cache(lm: LanguageModel, whole: LanguageModel) -> None:
    ring = lm.plans.cache.ring
    assert ring is not None
    assert whole.plans.cache.ring is None
    assert ring.rows < len(TOKENS)
    parts = [TOKENS[:7], TOKENS[7:50], *([token] for token in TOKENS[50:90]), TOKENS[90:]]
    assert np.array_equal(_after(lm, *parts), _after(whole, *parts))


def test_bytes_of_windows_do_not_grow_with_the_context(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by_references(monkeypatch)
    nbytes = {}
    for context in (2048, 8192):
        with _opened(path, context=context) as lm:
            cache = lm.plans.cache
            assert cache.ring is not None
            rows = -(-(cache.ring.window + model_plans.PROMPT_TOKENS) // BLOCK_TOKENS) * BLOCK_TOKENS
            per_token, windows = 0, 0
            for layer, options in enumerate(lm.plans.config.layers):
                sizes = lm.plans.config.of_layer(layer)
                one = 0 if options.shares >= 0 else 2 * 4 * sizes.n_kv_heads * sizes.head_dim
                per_token += 0 if options.window else one
                windows += one * rows if options.window else 0
            assert cache.ring_nbytes == windows > 0
            assert cache.session_nbytes == windows + per_token * context
            nbytes[context] = cache.ring_nbytes
    assert len({*nbytes.values()}) == 1


def test_a_session_goes_back_within_the_ring_without_a_run_and_farther_to_a_copy(
    lm: LanguageModel, whole: LanguageModel, runs: list[int]
) -> None:
    ring = lm.plans.cache.ring
    assert ring is not None
    with lm.session() as session, whole.session() as other:
        for each in (session, other):
            each.process(TOKENS[:30])
            for first in range(30, 120, 10):
                each.process(TOKENS[first : first + 10])
        near = 120 - ring.rows + ring.window
        session.rewind(near)
        assert session.position == near
        assert session._states is not None
        copy = session._states.nearest(near - ring.window)
        session.rewind(near - ring.window)
        assert session.position == copy < near - ring.window
        again = session.process(TOKENS[5:9])
        assert runs[-3:] == [copy, copy + RUN, near - ring.window]
        other.rewind(near - ring.window)
        np.testing.assert_allclose(again, other.process(TOKENS[5:9]), atol=1e-4)


def test_copies_of_a_session_and_interrupted_runs(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, run = _after(lm, TOKENS[:60], TOKENS[60:80])[-1], lm.plans.run

    def interrupted(*given: Any, **how: bool) -> Any:
        run(*given, **how)
        raise KeyboardInterrupt

    with lm.session() as session:
        session.process(TOKENS[:60])
        with session.copy() as other:
            other.process(TOKENS[3:33])
            monkeypatch.setattr(lm.plans, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.process(TOKENS[60:80])
            monkeypatch.setattr(lm.plans, "run", run)
            assert np.array_equal(session.process(TOKENS[60:80])[0], wanted)
            other.rewind(60)
            np.testing.assert_allclose(other.process(TOKENS[60:80])[0], wanted, atol=1e-4)


def test_a_kept_prompt_brings_its_windows(lm: LanguageModel, tmp_path: Path) -> None:
    ids, file = TOKENS[:100], tmp_path / "prompt"
    options = GenerateOptions(max_tokens=4, sampling=GREEDY, ignore_eos=True, prompt_cache=str(file))
    texts = []
    for wanted in (0, 100, 100):
        with lm.session() as session:
            generation = session.start([*ids, *TOKENS[3 : 3 + len(texts)], 5, 6][: 100 + bool(texts) * 8], options)
            texts.append(list(generation))
            assert generation.kept is not None
            assert generation.kept.n_taken == wanted
    fresh = lm.generate([*ids, TOKENS[3], 5, 6], max_tokens=4, sampling=GREEDY, ignore_eos=True)
    assert list(fresh) == texts[1]


def _answer(engine: Engine, ids: Sequence[int]) -> Request:
    options = GenerateOptions(max_tokens=4, sampling=GREEDY, ignore_eos=True)
    request = engine.submit(ids, options, lambda update: None)
    while not request.clock.ended:
        engine.step()
    return request


def test_prompts_share_blocks_up_to_where_windows_are_known(lm: LanguageModel) -> None:
    prompts = [[*TOKENS[:100], *TOKENS[n : n + 20]] for n in (7, 11, 13)]
    alone = [lm.generate(p, max_tokens=4, sampling=GREEDY, ignore_eos=True) for p in prompts]
    for generation in alone:
        list(generation)
    with Engine(lm) as engine:
        assert engine.prefixes is not None
        found = [_answer(engine, prompt) for prompt in (*prompts, prompts[2])]
        # The second one shows where the prompts part; the last one ends as the third one did.
        assert [r.cached_tokens for r in found] == [0, 0, 96, 112]
        assert [r.ids[120:] for r in found[:3]] == [generation.ids for generation in alone]
        cache, ring = lm.plans.cache, lm.plans.cache.ring
        assert ring is not None
        one = sum(cache.copied_nbytes.values())
        most = engine.prefixes.most_states_nbytes
        assert 0 < engine.prefixes.states_nbytes <= most <= max(one, 2 * cache.ring_nbytes)


def test_a_window_of_all_tokens_needs_no_ring(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by_references(monkeypatch)
    with _opened(path, context=64) as lm:
        assert lm.plans.cache.ring is None
        assert not lm.plans.cache.copied_nbytes


@pytest.mark.parametrize(("window", "run"), [(1, 1), (15, 16), (16, 16), (17, 32), (512, 512)])
def test_a_ring_has_the_window_of_each_token_of_a_run(window: int, run: int) -> None:
    ring = Ring(window, -(-(window + run) // BLOCK_TOKENS))
    for position in range(0, 3 * ring.rows, 7):
        first = ring.first(position)
        assert first >= position + run - ring.rows  # not overwritten by a run from `position` on
        blocks = ring.blocks_before(1, position)
        assert {1 * ring.n_blocks + n // BLOCK_TOKENS % ring.n_blocks for n in range(first, position)} <= {*blocks}


def test_drafts_leave_the_bits_of_single_tokens(lm: LanguageModel) -> None:
    assert lm.plans.is_uneven
    with lm.session() as session:
        session.process(TOKENS[:20])
        wanted = session.process(TOKENS[20:21])
        session.replace(TOKENS[:21])
        session.advance(TOKENS[21:24])
        np.testing.assert_array_equal(np.asarray(lm.plans.logits)[:1], np.asarray(wanted).reshape(1, -1))
