"""Log probabilities of a prompt's tokens: `echo` with `logprobs`, as harnesses that score texts ask for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.generate.engine.engine import Engine
from camshaft.serve.models.served import Served
from tests.serve.conftest import CONTEXT, client_of

IDS = [int(i) for i in np.random.default_rng(3).integers(5, 270, CONTEXT - 2)]


def wanted(lm: LanguageModel, ids: list[int]) -> list[float]:
    """The log probability of each token after the first, from the logits of the whole text."""
    logits = lm.logits(ids).astype(np.float64)
    peaks = logits.max(axis=1)
    sums = peaks + np.log(np.exp(logits - peaks[:, None]).sum(axis=1))
    return [float(logits[i, token] - sums[i]) for i, token in enumerate(ids[1:])]


def test_each_token_of_a_prompt_has_its_log_probability(client: Any, lm: LanguageModel) -> None:
    for ids in (IDS[:1], IDS[:2], IDS[:17], IDS[:33], IDS):
        for _ in range(2):  # the second time, its blocks are in the prefix cache
            body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
            choice = client.post("/v1/completions", json=body).json()["choices"][0]
            rows = choice["logprobs"]
            assert rows["tokens"][:-1] == [lm.tokenizer.spelling(i) for i in ids]
            assert rows["token_logprobs"][0] is rows["top_logprobs"][0] is None
            assert rows["token_logprobs"][1:-1] == pytest.approx(wanted(lm, ids), abs=1e-4)
            for own, top in zip(rows["token_logprobs"][1:], rows["top_logprobs"][1:], strict=True):
                assert own <= max(top.values())
            assert {len(column) for column in rows.values()} == {len(ids) + 1}
            assert rows["text_offset"][1] == len(rows["tokens"][0])
            assert choice["text"].startswith(lm.detokenize(ids))
    plain = client.post("/v1/completions", json=body | {"echo": False}).json()["choices"][0]["logprobs"]
    assert plain["token_logprobs"] == rows["token_logprobs"][-1:]


def test_an_end_token_is_scored_too(lm: LanguageModel) -> None:
    with client_of(Served("tiny", Engine(lm))) as client:
        end = next(iter(lm.tokenizer.eos_ids))
        body = {"prompt": [IDS[:9], IDS[:5]], "max_tokens": 4, "logprobs": 0, "logit_bias": {str(end): 1e6}}
        choices = client.post("/v1/completions", json=body | {"echo": True}).json()["choices"]
        assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [10, 6]
        assert {choice["finish_reason"] for choice in choices} == {"stop"}
        assert choices[0]["logprobs"]["tokens"][-1] == lm.tokenizer.spelling(end)
        assert client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["tokens"] == []


def test_scores_do_not_depend_on_neighbours(lm: LanguageModel) -> None:
    """More rows of logits are wanted than one run has."""

    def scores(prompts: list[list[int]]) -> list[Any]:
        with client_of(Served("tiny", Engine(lm, max_queue=64))) as client:
            body = {"prompt": prompts, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 2}
            return [choice["logprobs"] for choice in client.post("/v1/completions", json=body).json()["choices"]]

    prompts = [IDS[i : i + 20 + i] for i in range(8)]
    assert scores(prompts) == [scores([prompt])[0] for prompt in prompts]
