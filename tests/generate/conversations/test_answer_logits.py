"""Logits of answers: log probabilities are their softmax, and NaN among them ends a generation by an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import LogitsError
from tests.generate.conftest import CONTEXT
from tests.generate.conversations.short_texts import GREEDY, HOW
from tests.support.models.files import changed_model


class NaN:
    """Puts a NaN into the logits of every run from the n-th on."""

    def __init__(self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
        self.left = n
        for name in ("run", "run_decode"):
            monkeypatch.setattr(lm.plans, name, self.wrapped(lm, getattr(lm.plans, name)))

    def wrapped(self, lm: LanguageModel, run: Any) -> Any:
        def spoiled(*given: Any, **how: bool) -> Any:
            result = run(*given, **how)
            self.left -= 1
            if self.left <= 0:
                assert isinstance(lm.plans.logits, np.ndarray)
                lm.plans.logits[0, 100] = np.nan
            return result

        return spoiled


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(), Sampling(temperature=0), Sampling(top_k=0, top_p=1, min_p=0, repeat_penalty=1.2)]
)
def test_nan_logits_end_a_generation_by_an_error(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    how: Any = HOW | {"sampling": sampling}
    with monkeypatch.context() as patch:
        NaN(lm, patch, 3)
        generation = lm.generate([5, 6, 7], **how)
        with pytest.raises(LogitsError, match=r"NaN logits for the token at position 5 \(after 2 generated tokens\)"):
            list(generation)
        assert (generation.tokens, generation.finish_reason) == (2, None)
    with monkeypatch.context() as patch:
        NaN(lm, patch, 1)
        with pytest.raises(LogitsError, match=r"prompt 0: .* position 3 \(after 0 generated tokens\)"):
            lm.generate_batch([[5, 6, 7], [8, 9]], **how).texts()
    with monkeypatch.context() as patch, lm.conversation(**how) as conversation:
        NaN(lm, patch, 2)
        with pytest.raises(LogitsError):
            list(conversation.say("ab"))
        assert conversation.messages == []


def test_a_model_with_nan_weights_gives_nan_logits_and_no_text(tiny_path: Any, tmp_path: Any) -> None:
    with LanguageModel(tiny_path, threads=1, context=CONTEXT, activations="f32") as whole:
        norm = np.full(whole.config.dim, np.nan, np.float32)
    path = changed_model("llama", tmp_path, tensors={"output_norm.weight": norm})
    with LanguageModel(path, threads=1, context=CONTEXT, activations="f32") as lm:
        assert np.isnan(lm.logits([5, 6])).all()
        for sampling in (GREEDY, Sampling()):
            with pytest.raises(LogitsError, match="position 2"):
                list(lm.generate([5, 6], sampling=sampling))


@pytest.mark.parametrize("n", [0, 1, 5, 10**6])
def test_logprobs_are_a_softmax_of_the_logits(lm: LanguageModel, n: int) -> None:
    how: Any = HOW | {"sampling": Sampling(seed=3, temperature=1.5, repeat_penalty=1.3), "logprobs": n}
    alone = lm.generate([5, 6, 7], **how)
    list(alone)
    batch = lm.generate_batch([[5, 6, 7], [9]], **how)
    batch.texts()
    logits = lm.logits([5, 6, 7, *alone.ids])[2:-1].astype(np.float64)
    truth = logits - logits.max(-1, keepdims=True)
    truth -= np.log(np.exp(truth).sum(-1, keepdims=True))
    for generation in (alone, batch.generations[0]):
        assert [each.id for each in generation.logprobs] == generation.ids == alone.ids
        for row, each in zip(truth, generation.logprobs, strict=True):
            assert each.logprob == pytest.approx(row[each.id], abs=1e-4)
            assert len(each.top) == min(n, len(row))
            assert [t.logprob for t in each.top] == pytest.approx(np.sort(row)[::-1][:n], abs=1e-4)
            assert {t.id: t.logprob for t in each.top} == pytest.approx({t.id: row[t.id] for t in each.top}, abs=1e-4)
            assert each.token == lm.tokenizer.spelling(each.id)
    silent = lm.generate([5], **HOW)
    list(silent)
    assert silent.logprobs == []
