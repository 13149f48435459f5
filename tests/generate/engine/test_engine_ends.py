"""How requests of the engine end: limits, cancellation, time, faults of one or of the engine itself."""

from __future__ import annotations

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import ContextError, LogitsError, ModelError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import TimeLimitError, Update
from camshaft.generate.engine.request_queue import QueueFullError
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.generate.engine.requests import PROMPTS, Told, alone, answer, finish, options


def test_ends_limits_and_errors(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(lm, max_queue=3, prefix_cache=False) as engine:
        assert engine.prefixes is None
        told = [Told() for _ in range(3)]
        engine.submit([5] * (CONTEXT - 2), options(9), told[0])
        engine.submit(PROMPTS[0], options(0), told[1])
        stop = alone(lm, PROMPTS[0], options())
        text = lm.detokenize(stop)
        engine.submit(PROMPTS[0], GenerateOptions(sampling=Sampling(greedy=True), stop=text[2:4]), told[2])
        with pytest.raises(QueueFullError, match="3 requests wait; the limit is 3"):
            engine.submit(PROMPTS[0], options(), Told())
        finish(engine)
        assert [t.reason for t in told] == ["length", "length", "stop"]
        assert [len(t.updates) for t in told[:2]] == [4, 1]
        assert told[2].text == text[:2]
        for ids, message in (([], "empty"), ([1] * 49, "49 tokens; the context is 48"), ([-1], "token id -1")):
            with pytest.raises(ContextError, match=message):
                engine.submit(ids, options(), Told())
        with pytest.raises(SettingError, match="max_queue=0"):
            Engine(lm, max_queue=0)
        last = Told()
        engine.submit(PROMPTS[0], options(), last)
        engine.step()
    assert isinstance(last.error, ModelError)
    with pytest.raises(ModelError, match="the engine is closed"):
        engine.submit(PROMPTS[0], options(), Told())


def test_an_answer_whose_time_is_over_ends_where_it_is(lm: LanguageModel) -> None:
    wanted, told = alone(lm, PROMPTS[0], options()), [Told() for _ in range(SESSIONS + 1)]
    with Engine(lm, time_limit_s=1000) as engine:
        requests = [engine.submit(PROMPTS[0], options(), each) for each in told]
        for _ in range(3):
            engine.step()
        assert all(request.deadline == request.clock.queued + 1000 for request in requests)
        requests[0].deadline = requests[-1].deadline = 0  # one that runs, and one that waits
        finish(engine)
        assert [each.reason for each in told] == ["length"] * SESSIONS + [None]
        assert answer(requests[0]) == wanted[: len(answer(requests[0]))] != wanted == answer(requests[1])
        assert told[0].text == lm.detokenize(answer(requests[0]))
        assert isinstance(told[-1].error, TimeLimitError)
        assert engine.statistics.ended == {"length": SESSIONS, "error": 1}


def test_a_fault_of_one_request_ends_no_other(
    lm: LanguageModel, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = lm.samplers.draw
    wanted = alone(lm, PROMPTS[1], options())

    def damaged(samplers: list[object], histories: list[list[int]]) -> list[int]:
        tokens = draw(samplers, histories)  # type: ignore[arg-type]
        return [-1 if ids[0] == 40 and len(ids) > 7 else t for ids, t in zip(histories, tokens, strict=True)]

    monkeypatch.setattr(lm.samplers, "draw", damaged)
    nan, good, deaf, cancelled = Told(), Told(), [], Told()

    def raises(update: Update) -> None:
        deaf.append(update)
        raise RuntimeError("no ears")

    engine.submit(PROMPTS[0], options(), nan)
    healthy = engine.submit(PROMPTS[1], options(), good)
    engine.submit(PROMPTS[2], options(), raises)
    given_up = engine.submit(PROMPTS[3], options(), cancelled)
    engine.step()
    engine.cancel(given_up)
    finish(engine)
    assert isinstance(nan.error, LogitsError)
    assert answer(healthy) == wanted
    assert len(deaf) == 1
    assert cancelled.reason is None
    assert engine.statistics.ended == {"error": 1, "length": 1, "cancelled": 2}


def test_an_engine_that_fails_ends_its_requests(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(lm) as engine:
        monkeypatch.setattr(engine, "_admit", lambda: 1 / 0)
        told = Told()
        engine.submit(PROMPTS[0], options(), told)
        engine.start()
        assert told.ended.wait(60)
        assert "division by zero" in str(told.error)
        with pytest.raises(ModelError, match="closed"):
            engine.submit(PROMPTS[0], options(), Told())
