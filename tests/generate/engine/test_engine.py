"""The engine: each request's tokens whatever runs beside it, priorities, and prompts that share a beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import CacheFullError, SettingError
from camshaft.generate.engine.engine import Engine
from tests.generate.conftest import CONTEXT, SESSIONS, whole_text
from tests.generate.engine.requests import PROMPTS, Told, alone, answer, finish, options
from tests.support.fixtures import tiny_model
from tests.support.models.files import require_default_model


def test_a_request_gets_its_own_tokens_beside_any_neighbours(lm: LanguageModel, engine: Engine) -> None:
    how = [options(seed=3, greedy=False), options(seed=4, greedy=False, temperature=1.5), options(6)]
    wanted = [[alone(lm, prompt, each) for each in how] for prompt in PROMPTS]
    engine._budget = 7
    first = [engine.submit(PROMPTS[3], how[0], Told())]
    for _ in range(3):
        engine.step()
    later = [(prompt, each, Told()) for prompt in PROMPTS for each in how]
    requests = first + engine.submit_all(later)
    finish(engine)
    assert [answer(r) for r in requests] == [wanted[3][0], *(ids for each in wanted for ids in each)]
    assert engine.statistics.ended == {"length": 16}
    assert engine.statistics.generated_tokens == 8 + 5 * (8 + 8 + 6)
    assert {told.reason for _, _, told in later} == {"length"}


def test_prompts_that_share_a_beginning_process_it_once(lm: LanguageModel, engine: Engine) -> None:
    assert engine.prefixes is not None
    common = list(range(100, 140))  # two whole blocks
    prompts = [[*common, 7], [*common, 8, 9], common[:32], [*common[:20], 5], common[:33]]
    wanted = [alone(lm, prompt, options(5)) for prompt in prompts]
    together = [engine.submit(prompt, options(5), Told()) for prompt in prompts]
    finish(engine)
    again = [engine.submit(prompt, options(5), Told()) for prompt in prompts]
    finish(engine)
    assert [answer(r) for r in together] == wanted
    assert [answer(r) for r in again] == wanted
    assert [r.cached_tokens for r in together] == [0, 32, 16, 16, 32]
    assert [r.cached_tokens for r in again] == [32, 32, 16, 16, 32]
    assert engine.statistics.cached_tokens == 96 + 128
    assert engine.prefixes.n_blocks == engine.prefixes.n_idle == 2


def test_the_least_recently_used_blocks_make_room(lm: LanguageModel, engine: Engine) -> None:
    assert engine.prefixes is not None
    blocks_in_all, before = len(lm.plans.cache._free_blocks), engine.prefixes.evictions
    prompts = [[(i * 31 + j) % 250 for j in range(40)] for i in range(8)]
    for prompt in prompts:
        engine.submit(prompt, options(1), Told())
        finish(engine)
    assert (engine.prefixes.n_blocks, engine.prefixes.evictions - before) == (8, 8)
    last, first = (engine.submit(prompts[i], options(1), Told()) for i in (-1, 0))
    finish(engine)
    assert (last.cached_tokens, first.cached_tokens) == (32, 0)
    assert len(lm.plans.cache._free_blocks) + engine.prefixes.n_idle == blocks_in_all
    with lm.session() as session:  # others get their memory too
        session.process(list(range(CONTEXT)))


def test_requests_give_way_where_the_cache_is_short_and_get_the_same_answers(
    lm: LanguageModel, tiny_path: Path
) -> None:
    how = [options(30, seed=i, greedy=False) for i in range(len(PROMPTS))]
    wanted = [alone(lm, prompt, each) for prompt, each in zip(PROMPTS, how, strict=True)]
    opened = {"threads": 1, "context": CONTEXT, "activations": "f32", "sessions": SESSIONS}
    with LanguageModel(tiny_path, **opened, cache_tokens=64) as small, Engine(small, prompt_budget=7) as engine:  # type: ignore[arg-type]
        cache = small.plans.cache
        assert cache.nbytes < lm.plans.cache.nbytes / 2
        told = [Told() for _ in PROMPTS]
        requests = [engine.submit(*each) for each in zip(PROMPTS, how, told, strict=True)]
        finish(engine)
        assert [answer(request) for request in requests] == wanted
        assert [each.text for each in told] == [whole_text(lm, ids) for ids in wanted]
        assert engine.statistics.preemptions > 0
        assert cache.n_available == cache.n_blocks
        with small.session() as session:
            session.process(PROMPTS[3])  # three of four blocks, which no request gets
            other, late = engine.submit(PROMPTS[0], options(1), Told()), Told()
            engine.submit(PROMPTS[3], how[0], late)
            finish(engine)
            assert len(answer(other)) == 1
            assert isinstance(late.error, CacheFullError)
            assert str(late.error).startswith("all 64 tokens of the cache are in use")
    with pytest.raises(SettingError, match="cache_tokens 47; wanted a whole number from the context, 48, up"):
        LanguageModel(tiny_path, **opened, cache_tokens=47)  # type: ignore[arg-type]


def test_a_thread_answers_and_logs_probabilities(lm: LanguageModel) -> None:
    with Engine(lm) as engine:
        engine.start()
        told = [Told() for _ in range(2 * SESSIONS)]
        how = GenerateOptions(max_tokens=3, sampling=Sampling(seed=1), ignore_eos=True, logprobs=2)
        for each in told:
            engine.submit(PROMPTS[0], how, each)
        assert all(each.ended.wait(60) for each in told)
        assert len({each.text for each in told}) == 1
        assert [len(update.logprobs[0].top) for update in told[0].updates] == [2, 2, 2]
        lone = Told()
        engine.submit(PROMPTS[0], how, lone)
        assert lone.ended.wait(60)
        assert lm.plans.is_uneven  # floats: plans of other sizes would round otherwise
        assert all(each.updates == lone.updates for each in told)
    assert not engine.is_alive


def test_requests_of_a_lower_number_go_first(engine: Engine) -> None:
    begun: list[int] = []

    def submit(priority: int) -> None:
        how = GenerateOptions(max_tokens=1, ignore_eos=True)
        engine.submit_all([(PROMPTS[0], how, lambda update: begun.append(priority))], priority=priority)

    for priority in (*[0] * SESSIONS, 5, -1, 5, -2, 0):
        submit(priority)
    while engine.n_waiting or engine.n_running:
        engine.step()
    assert begun == sorted(begun) == [-2, -1, *[0] * (SESSIONS + 1), 5, 5]


@pytest.mark.full
@pytest.mark.parametrize("name", ["mamba2", "qwen35"])
def test_recurrent_models_get_their_own_tokens_too(name: str, tmp_path: Path) -> None:
    with LanguageModel(tiny_model(name, tmp_path), context=CONTEXT, sessions=SESSIONS) as lm:
        wanted = [alone(lm, prompt, options(seed=i, greedy=False)) for i, prompt in enumerate(PROMPTS)]
        with Engine(lm, prompt_budget=7) as engine:
            requests = [engine.submit(p, options(seed=i, greedy=False), Told()) for i, p in enumerate(PROMPTS)]
            finish(engine)
        assert [answer(r) for r in requests] == wanted


@pytest.mark.full
def test_a_large_models_bits_do_not_depend_on_the_neighbours() -> None:
    """The plans for prompts and for generating round differently there, so a mixed run would show."""
    texts = [f"{i} rivers of the world, {'and their mills, ' * (i % 5)}in one sentence:" for i in range(18)]
    how = [options(4 + i % 3, seed=i, greedy=i % 3 == 0) for i in range(18)]
    with LanguageModel(require_default_model(), context=128, sessions=17) as lm, Engine(lm, prompt_budget=24) as engine:
        prompts = [lm.prompt_ids(text, raw=i % 2 == 0) for i, text in enumerate(texts)]
        wanted = [alone(lm, prompt, each) for prompt, each in zip(prompts, how, strict=True)]
        for _ in ("without", "with shared blocks"):
            requests = [engine.submit(prompt, each, Told()) for prompt, each in zip(prompts, how, strict=True)]
            finish(engine)
            assert [answer(r) for r in requests] == wanted
        assert sum(r.cached_tokens for r in requests) > 0
