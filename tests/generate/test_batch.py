"""generate_batch: the text of each sequence as if alone, in fewer runs; slots, ends, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import ContextError, ModelError, SettingError
from camshaft.models.files.quantize import quantize
from tests.generate.conftest import CONTEXT, SESSIONS, alone, whole_text
from tests.support.fixtures import tiny_model

GREEDY = Sampling(greedy=True)
PROMPTS = [[40, 7, 81, 200, 13], [9, 9, 120], [33], [250, 18, 77, 5, 6, 31, 222], [101, 64]]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_each_says_what_it_says_alone(lm: LanguageModel, n: int) -> None:
    wanted = [alone(lm, prompt, 9) for prompt in PROMPTS[:n]]
    batch = lm.generate_batch(PROMPTS[:n], max_tokens=9, sampling=GREEDY, ignore_eos=True)
    texts = batch.texts()
    assert [g.ids for g in batch.generations] == wanted
    assert [g.finish_reason for g in batch.generations] == ["length"] * n
    assert texts == [whole_text(lm, ids) for ids in wanted]


def test_draws_follow_each_ones_own_seed_and_settings(lm: LanguageModel) -> None:
    kinds = [Sampling(seed=3), Sampling(seed=4, temperature=1.5, top_k=0), GREEDY, Sampling(seed=3, repeat_penalty=1.3)]
    prompts = [PROMPTS[0]] * 4
    wanted = [alone(lm, p, 8, s) for p, s in zip(prompts, kinds, strict=True)]
    batch = lm.generate_batch(prompts, [GenerateOptions(sampling=s) for s in kinds], max_tokens=8, ignore_eos=True)
    batch.texts()
    assert [g.ids for g in batch.generations] == wanted
    assert len({tuple(ids) for ids in wanted}) > 1


class Runs:
    """The sizes of a model's runs, by who was asked."""

    def __init__(self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decode_steps: list[int] = []
        self.others: list[int] = []
        run, decode = lm.plans.run, lm.plans.run_decode
        monkeypatch.setattr(
            lm.plans, "run", lambda ids, *rest, **how: (self.others.append(len(ids)), run(ids, *rest, **how))[1]
        )
        monkeypatch.setattr(
            lm.plans, "run_decode", lambda ids, *rest: (self.decode_steps.append(len(ids)), decode(ids, *rest))[1]
        )


def test_prompts_share_a_run_and_every_step_is_one(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(lm, monkeypatch)
    lm.generate_batch([PROMPTS[0], PROMPTS[1], PROMPTS[3]], max_tokens=6, sampling=GREEDY, ignore_eos=True).texts()
    assert runs.others == [5 + 3 + 7]
    assert runs.decode_steps == [3] * 5


def test_a_prompt_longer_than_a_run_goes_through_in_parts(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.generate.model_plans.PROMPT_TOKENS", 4)
    with LanguageModel(tiny_path, threads=1, context=CONTEXT, activations="f32", sessions=2) as lm:
        wanted = [alone(lm, prompt, 5) for prompt in (PROMPTS[3], PROMPTS[0])]
        runs = Runs(lm, monkeypatch)
        batch = lm.generate_batch([PROMPTS[3], PROMPTS[0]], max_tokens=5, sampling=GREEDY, ignore_eos=True)
        batch.texts()
        assert [g.ids for g in batch.generations] == wanted
        assert max(runs.others) == 4


def test_more_prompts_than_places_take_turns(lm: LanguageModel) -> None:
    assert len(PROMPTS) > SESSIONS
    wanted = [alone(lm, prompt, 9) for prompt in PROMPTS]
    batch = lm.generate_batch(PROMPTS * 2, max_tokens=9, sampling=GREEDY, ignore_eos=True)
    order = [i for i, _ in batch]
    assert {*order} == {*range(10)}
    assert order.index(9) > order.index(0)
    assert [g.ids for g in batch.generations] == wanted * 2


@pytest.mark.full
def test_quantized_models_draw_beside_others_what_they_draw_alone(tmp_path: Path) -> None:
    quantize(tiny_model("llama", tmp_path), tmp_path / "quantized.gguf", "Q8_0")
    with LanguageModel(tmp_path / "quantized.gguf", threads=1, context=32, sessions=20) as lm:
        prompts = [[40 + i, *PROMPTS[i % len(PROMPTS)]][i % 2 :] for i in range(25)]
        lone = [lm.generate(prompt, max_tokens=7, sampling=GREEDY, ignore_eos=True, logprobs=1) for prompt in prompts]
        for each in lone:
            list(each)
        batch = lm.generate_batch(prompts, max_tokens=7, sampling=GREEDY, ignore_eos=True, logprobs=1)
        batch.texts()
        assert [g.ids for g in batch.generations] == [g.ids for g in lone]
        if lm.plans.is_uneven:  # then what generates has runs of its own
            assert [g.logprobs for g in batch.generations] == [g.logprobs for g in lone]


def test_stop_strings_end_one_and_not_the_others(lm: LanguageModel) -> None:
    texts = lm.generate_batch(PROMPTS[:2], max_tokens=9, sampling=GREEDY, ignore_eos=True).texts()
    stop = next(texts[0][i : i + 2] for i in range(2, len(texts[0])) if texts[0][i : i + 2] not in texts[1])
    batch = lm.generate_batch(PROMPTS[:2], max_tokens=9, sampling=GREEDY, ignore_eos=True, stop=stop)
    assert batch.texts() == [texts[0][: texts[0].index(stop)], texts[1]]
    assert [g.finish_reason for g in batch.generations] == ["stop", "length"]


def test_an_end_token_ends_one(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = alone(lm, PROMPTS[0], 6)
    monkeypatch.setattr(lm.tokenizer, "eos_ids", frozenset({ids[2]}))
    batch = lm.generate_batch(PROMPTS[:1], max_tokens=6, sampling=GREEDY)
    batch.texts()
    assert batch.generations[0].ids == ids[:2]
    assert batch.generations[0].finish_reason == "stop"


def test_a_full_context_ends_one_for_its_length(lm: LanguageModel) -> None:
    batch = lm.generate_batch([[5] * (CONTEXT - 2), [6, 7]], max_tokens=9, sampling=GREEDY, ignore_eos=True)
    batch.texts()
    assert [g.tokens for g in batch.generations] == [3, 9]
    assert [g.finish_reason for g in batch.generations] == ["length", "length"]


def test_no_tokens_wanted_and_no_prompts(lm: LanguageModel) -> None:
    assert lm.generate_batch([]).texts() == []
    batch = lm.generate_batch(PROMPTS[:2], max_tokens=0)
    assert batch.texts() == ["", ""]
    assert [g.finish_reason for g in batch.generations] == ["length", "length"]


@pytest.fixture
def busy(lm: LanguageModel) -> Iterator[LanguageModel]:
    with lm.session(), lm.session(), lm.session():
        yield lm


def test_places_come_back_and_others_places_are_left_alone(lm: LanguageModel) -> None:
    with lm.session() as other:
        other.process(PROMPTS[0])
        before = other.position
        with lm.generate_batch(PROMPTS, max_tokens=9, sampling=GREEDY, ignore_eos=True) as batch:
            next(batch)
        assert other.position == before
        assert lm.plans.cache.n_free == SESSIONS - 1
        assert list(batch) == []
    assert [g.finish_reason for g in batch.generations if g.finish_reason] == []


def test_errors_are_one_line_each(lm: LanguageModel, busy: LanguageModel, tiny_path: Path) -> None:
    with pytest.raises(ContextError, match="all 3 sessions of this model are open"):
        busy.generate_batch(PROMPTS[:2]).texts()
    with pytest.raises(ContextError, match="prompt 1 is empty"):
        lm.generate_batch([[1], []])
    with pytest.raises(ContextError, match=f"prompt 0 has {CONTEXT + 1} tokens; the context is {CONTEXT}"):
        lm.generate_batch([[1] * (CONTEXT + 1)])
    with pytest.raises(ContextError, match="token id -1"):
        lm.generate_batch([[1], [-1]])
    with pytest.raises(SettingError, match="2 options for 1 prompts; wanted one, or one per prompt"):
        lm.generate_batch([[1]], [GenerateOptions(), GenerateOptions()])
    with pytest.raises(SettingError, match="max_tokens=-2: wanted a whole number"):
        lm.generate_batch([[1]], max_tokens=-2)
    with LanguageModel(tiny_path, threads=1, context=16, activations="f32") as other:
        batch = other.generate_batch([[1, 2]], max_tokens=4, ignore_eos=True)
        next(batch)
    with pytest.raises(ModelError, match="is closed"):
        list(batch)


def test_one_text_is_not_taken_for_a_list_of_letters(lm: LanguageModel) -> None:
    with pytest.raises(SettingError, match="prompts came as one text, 'Hello'; wanted a list of prompts"):
        lm.generate_batch("Hello")
