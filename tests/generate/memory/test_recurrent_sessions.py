"""Sessions of models with recurrent layers: their states go back, survive interrupts, and belong to one sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import ContextError, ModelError
from camshaft.generate.engine import slot_files
from camshaft.generate.engine.engine import Engine
from camshaft.generate.memory import checkpoints
from camshaft.generate.session import Session
from tests.generate.conftest import check_batch
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.quick import quick_of

GREEDY = Sampling(greedy=True)
NAME, CONTEXT = "lfm2", 96
NAMES = quick_of(
    ("lfm2", "qwen35", "mamba", "mamba2", "granitehybrid", "lfm2moe", "nemotron_h_moe", "falcon-h1", "jamba"), ("lfm2",)
)
# What single tokens and parts of a prompt may differ by.
CLOSE = 1e-3


@pytest.fixture(scope="module", params=NAMES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    path = tiny_model(request.param, tmp_path_factory.mktemp("tiny"))
    with LanguageModel(path, threads=1, context=CONTEXT, activations="f32", sessions=3) as lm:
        yield lm


@pytest.fixture
def lm(shared: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    monkeypatch.setattr(checkpoints, "APART", 4)
    return shared


@pytest.fixture
def runs(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The position of the first token of each run, and how many it had."""
    found: list[Any] = []
    run = lm.plans.run

    def counted(ids: Sequence[int], positions: Sequence[int], *rest: Any, **how: bool) -> Any:
        found.append((positions[0], len(ids)))
        return run(ids, positions, *rest, **how)

    monkeypatch.setattr(lm.plans, "run", counted)
    return found


def _close(came: Any, wanted: Any) -> None:
    np.testing.assert_allclose(came, wanted, atol=CLOSE)


# Tokens that the smallest of the vocabularies has too.
TOKENS = [token % 96 for token in tiny_logits(NAME)[0]]


@pytest.fixture(scope="module")
def wanted(shared: LanguageModel) -> np.ndarray:
    """The logits after each of TOKENS, computed at once."""
    return shared.logits(TOKENS)


@pytest.mark.parametrize(("kept", "again"), [(0, 0), (3, 0), (10, 10), (15, 10), (19, 19)])
def test_a_session_goes_back_to_any_token(lm: LanguageModel, runs: list[Any], kept: int, again: int) -> None:
    with lm.session() as session:
        session.process(TOKENS[:10])
        for token in TOKENS[9:0:-1]:
            session.process([token])
        tokens = session.tokens[:kept]
        session.rewind(kept)
        assert session.tokens == tokens
        assert session.position == again
        runs.clear()
        last = session.process([*TOKENS[kept:], TOKENS[0]])[0]
        assert runs[0][0] == again
    _close(last, lm.logits([*tokens, *TOKENS[kept:], TOKENS[0]])[-1])


def test_copies_of_a_session_go_on_each_in_its_way(lm: LanguageModel, wanted: np.ndarray) -> None:
    with lm.session() as session:
        session.process(TOKENS[:20])
        with session.copy() as other, other.copy() as third:
            _close(other.process(TOKENS[3:9])[0], lm_after(lm, [*TOKENS[:20], *TOKENS[3:9]], third))
            _close(session.process(TOKENS[20:])[0], wanted[-1])
            other.rewind(20)
            _close(other.process(TOKENS[20:])[0], wanted[-1])


def lm_after(lm: LanguageModel, tokens: Sequence[int], session: Session) -> np.ndarray:
    """The logits after tokens, in a session that has others."""
    session.rewind(0)
    last: np.ndarray = session.process(tokens)[0]
    return last


def test_no_session_goes_back_to_what_it_does_not_have(lm: LanguageModel) -> None:
    with lm.session() as session:
        for wrong in (1, -1, True, None):
            with pytest.raises(ContextError, match="wanted 0 to 0, the session's"):
                session.rewind(wrong)  # type: ignore[arg-type]


def test_a_run_that_was_interrupted_is_not_counted_twice(
    lm: LanguageModel, wanted: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lm.plans.run

    def interrupted(*given: Any, **how: bool) -> Any:
        run(*given, **how)
        raise KeyboardInterrupt

    with lm.session() as session:
        session.process(TOKENS[:9])
        session.process(TOKENS[9:10])
        monkeypatch.setattr(lm.plans, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.process(TOKENS[10:20])
        monkeypatch.setattr(lm.plans, "run", run)
        assert session.tokens == TOKENS[:10]
        _close(session.process(TOKENS[10:])[0], wanted[-1])


def test_a_slot_forgets_its_last_sequence_even_its_nan(lm: LanguageModel, wanted: np.ndarray) -> None:
    names = [name for name in lm.plans.cache.states if name.startswith(("conv", "state"))]
    for name in names:
        lm.plans.cache.states[name][...] = np.nan
    _close(lm.logits(TOKENS), wanted)


def test_a_batch_says_what_each_prompt_says_alone(lm: LanguageModel) -> None:
    check_batch(lm, [TOKENS[:5], TOKENS[3:], TOKENS[::-1], TOKENS[7:9]], 8)


def test_an_engine_says_what_each_prompt_says_alone(lm: LanguageModel) -> None:
    prompts = [TOKENS[:20], TOKENS[:18], TOKENS[::-1], TOKENS[7:9]]
    options = GenerateOptions(max_tokens=6, sampling=GREEDY, ignore_eos=True)
    alone = [lm.generate(prompt, options) for prompt in prompts]
    for generation in alone:
        list(generation)
    with Engine(lm) as engine:
        requests = [engine.submit(prompt, options, lambda update: None) for prompt in prompts]
        for _ in range(100):
            engine.step()
        assert not engine.n_running
    assert [r.ids[r.prompt_tokens :] for r in requests] == [generation.ids for generation in alone]


def test_prompts_share_blocks_up_to_where_states_are_known(lm: LanguageModel, tmp_path: Path) -> None:
    options = GenerateOptions(max_tokens=4, sampling=GREEDY, ignore_eos=True, logprobs=2)
    drawn, ends = np.random.default_rng(0).integers(3, 90, 100).tolist(), lm.tokenizer.eos_ids
    tokens = [i for i in drawn if i not in ends]  # no messages, so only a prompt's end is a place to part
    prompts, others = (
        [[*first, *tokens[n : n + 20]] for n in (40, 50, 60)] for first in (tokens[:39], tokens[39:0:-1])
    )

    def answered(engine: Engine, *several: Sequence[int]) -> list[tuple[int, Any]]:
        told: list[list[Any]] = [[] for _ in several]
        requests = [engine.submit(ids, options, each.append) for ids, each in zip(several, told, strict=True)]
        while engine.n_waiting or engine.n_running:
            engine.step()
        return [(request.cached_tokens, each) for request, each in zip(requests, told, strict=True)]

    with Engine(lm, prefix_cache=False) as engine:
        alone, others_alone = ([answered(engine, ids)[0][1] for ids in several] for several in (prompts, others))
    with Engine(lm) as engine:
        assert engine.prefixes is not None
        # The second one shows where the prompts part, and the third one's end is that of its last whole block.
        for prompt, wanted, n in zip((*prompts, prompts[2]), (*alone, alone[2]), (0, 0, 32, 48), strict=True):
            assert answered(engine, prompt) == [(n, wanted)]
        slot = next(slot for slot, prompt in engine.last_prompts.items() if prompt == prompts[2])
        assert slot_files.save(engine, slot, tmp_path / "slot") == 48
        assert slot_files.erase(engine, slot) == 48
        assert slot_files.restore(engine, 0, tmp_path / "slot") == 48
        assert answered(engine, prompts[2]) == [(48, alone[2])]
        # Side by side, the first one ends a run where the others part from it.
        assert answered(engine, *others) == [(n, wanted) for n, wanted in zip((0, 32, 32), others_alone, strict=True)]
        most = engine.prefixes.most_states_nbytes
        assert 0 < engine.prefixes.states_nbytes <= most <= lm.plans.cache.n_slots * lm.plans.cache.state_nbytes


def test_rows_of_a_slot_must_lie_side_by_side(lm: LanguageModel) -> None:
    with pytest.raises(ModelError, match="side by side"):
        lm.plans.run(TOKENS[:4], [0, 0, 1, 1], [0, 1, 0, 1], [3])


def test_conversations_drop_turns_and_process_only_what_follows_a_copy(lm: LanguageModel, runs: list[Any]) -> None:
    words = "again and again, the same words as before"
    with lm.conversation(system="Be short.", max_tokens=6, sampling=GREEDY, ignore_eos=True) as talk:
        while not talk.dropped:
            before, n = list(talk.messages), len(runs)
            answer = talk.say(words)
            text = "".join(answer)
            if not talk.dropped:
                chat = [*before, {"role": "user", "content": words}]
                fresh = lm.generate(messages=chat, max_tokens=6, sampling=GREEDY, ignore_eos=True)
                assert text == "".join(fresh)
                assert len(before) == 1 or runs[n][0] > 0
        assert len(talk.messages) > 2


def test_copies_are_few_and_divide_no_short_prompt(lm: LanguageModel, runs: list[Any]) -> None:
    end = next(iter(lm.tokenizer.eos_ids))
    ids = [5, end, *TOKENS[:8], end, *TOKENS[:9], end, 7]
    ids = [i if i != end or at in (1, 10, 20) else 9 for at, i in enumerate(ids)]
    with lm.session() as session:
        list(session.generate(ids, max_tokens=1, sampling=GREEDY, ignore_eos=True))
        assert runs == [(0, 21), (21, 1)]
        states = session._states
        assert states is not None
        assert states.nbytes == 2 * lm.plans.cache.state_nbytes
        for n in range(6):
            session.process(TOKENS[n : n + 3])
        assert states.nbytes == checkpoints.MOST * lm.plans.cache.state_nbytes
        assert states.nearest(21) == 21


def test_a_prompt_of_one_generation_is_never_divided(lm: LanguageModel, runs: list[Any]) -> None:
    end = next(iter(lm.tokenizer.eos_ids))
    list(lm.generate([5, 6, 7, 8, end, 9, 9, 9, 9, 9, end, 3], max_tokens=1, sampling=GREEDY))
    assert runs == [(0, 12)]


def test_the_plan_says_what_states_take(lm: LanguageModel) -> None:
    shapes = [s.bounds[1:] for n, s in lm.plans.cache.specs.items() if n.startswith(("conv", "state"))]
    assert lm.describe_plan().state_nbytes == 4 * sum(int(np.prod(shape)) for shape in shapes) > 0


@pytest.mark.full
def test_a_cached_plan_gives_the_same(tmp_path: Path) -> None:
    path, origins, (tokens, logits) = tiny_model(NAME, tmp_path), [], tiny_logits(NAME)
    for _ in range(2):
        with LanguageModel(path, threads=1, context=48, activations="f32", sessions=2) as lm, lm.session() as session:
            _close(session.process(tokens)[0], logits[-1])
            origins.append(lm.plans.origins["prompt"])
    assert origins[-1] == "cached"
