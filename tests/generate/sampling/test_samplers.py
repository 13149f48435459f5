"""Every option of sampling, against llama.cpp's samplers written in NumPy; plans are computed by the references of their ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import SettingError
from camshaft.extent import Extent
from camshaft.generate.sampling.breakers import Breakers
from camshaft.generate.sampling.form import SamplingForm, form_of
from camshaft.generate.sampling.graph import sampling_graph
from camshaft.generate.sampling.sampler import Sampler, SamplerPlans, seed_words
from camshaft.graph.graph import Graph
from camshaft.ops.sample.sample import times
from camshaft.ops.sample.uniform import drawn
from tests.support.models.references.llama_samplers import probabilities, random_history, random_sampling
from tests.support.references import evaluated

VOCAB, CONTEXT, SEED = 60, 40, 3
INF = float("inf")
# (7, 8) and (7, 8, 9) are breakers of several tokens, 4 is one of its own.
LONG = Breakers(frozenset({4}), {7: ((8,), (8, 9))})
BREAKERS = ((4,), (7, 8), (7, 8, 9))


class ReferencePlan:
    """A plan whose runs are computed by the references of the graph's ops."""

    def __init__(self, graph: Graph, logits: np.ndarray) -> None:
        specs = {name: tensor.spec for name, tensor in graph.inputs.items()}
        self.inputs = {name: np.zeros(spec.bounds, spec.parts[0].dtype.numpy) for name, spec in specs.items()}
        self.inputs["logits"] = logits
        self.outputs: dict[str, np.ndarray] = {}
        self._graph, self._active = graph, dict[Extent, int]()
        self.bound = SimpleNamespace(run=self._run)

    def set_extent(self, extent: Extent, n: int) -> None:
        self._active[extent] = n

    def _run(self) -> None:
        n = next(iter(self._active.values()), 1)
        with np.errstate(all="ignore"):  # rows of samplers that another plan computes are 0
            self.outputs = evaluated(self._graph, {k: v[:n] for k, v in self.inputs.items()}, self._active)

    def close(self) -> None: ...


@pytest.fixture
def logits() -> np.ndarray:
    return (3 * np.random.default_rng(5).normal(size=(6, VOCAB))).astype(np.float32)


@pytest.fixture
def plans(logits: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> SamplerPlans:
    def compiled(_: SamplerPlans, form: SamplingForm, rows: Any) -> ReferencePlan:
        return ReferencePlan(sampling_graph(form, rows, VOCAB), logits)

    monkeypatch.setattr(SamplerPlans, "_compile", compiled)
    cache: Any = SimpleNamespace(get=lambda *_: None, add=lambda *_: None)
    return SamplerPlans(logits, None, 1, cache)


def sampler_of(sampling: Sampling) -> Sampler:
    return Sampler(sampling, CONTEXT, LONG if sampling.has_dry else Breakers())


def expected(row: np.ndarray, s: Sampling, history: Sequence[int], step: int, mu: float | None = None) -> int:
    """The token that the draw of `sample` takes from llama.cpp's probabilities."""
    seed = np.array(seed_words(SEED, step), np.uint32)
    first = not (s.typical_p < 1 or s.xtc_probability > 0 or s.top_n_sigma > 0)
    chance = float(drawn(seed, 1)[0])
    p = probabilities(row, s, history, breakers=BREAKERS, chance=chance, mu=mu, temperature_first=first)
    with np.errstate(divide="ignore"):
        return int((times(seed, VOCAB) / p).argmin())


def test_rows_with_any_options_draw_llama_cpps_tokens(plans: SamplerPlans, logits: np.ndarray) -> None:
    """And alone the same as together."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        samplings = [random_sampling(rng, seed=SEED) for _ in range(len(logits))]
        histories = [random_history(rng, CONTEXT, BREAKERS) for _ in samplings]
        together = [sampler_of(s) for s in samplings]
        for step in range(2):
            wanted = [expected(*row, step) for row in zip(logits, samplings, histories, strict=True)]
            assert plans.draw(together, histories) == wanted
        assert plans.alone(sampler_of(samplings[0]))(histories[0]) == expected(logits[0], samplings[0], histories[0], 0)


def test_dry_goes_up_to_the_last_breaker(plans: SamplerPlans, logits: np.ndarray) -> None:
    """Of logits that are nearly equal, the penalties alone decide."""
    rng = np.random.default_rng(2)
    logits[:] = rng.normal(size=logits.shape) * 0.01 + np.isin(np.arange(VOCAB), (1, 2, 3, 4, 5, 7, 8, 9))
    for last_n in (-1, 11):
        sampling = Sampling(temperature=0, dry_multiplier=3, dry_allowed_length=1, dry_penalty_last_n=last_n)
        for _ in range(15):
            histories = [random_history(rng, CONTEXT, BREAKERS) for _ in logits]
            wanted = [expected(row, sampling, history, 0) for row, history in zip(logits, histories, strict=True)]
            assert plans.draw([sampler_of(sampling) for _ in logits], histories) == wanted


def test_mirostat_aims_at_a_surprise(plans: SamplerPlans, logits: np.ndarray) -> None:
    sampling = Sampling(seed=SEED, mirostat=2, mirostat_ent=2.5, mirostat_lr=0.3, temperature=1.5, logit_bias={3: 1.0})
    together, draw = [sampler_of(sampling), sampler_of(Sampling(greedy=True))], plans.alone(sampler_of(sampling))
    mu = 5.0
    for step in range(12):
        p = probabilities(logits[0], sampling, [], mu=mu)
        wanted = expected(logits[0], sampling, [], step, mu)
        assert draw([]) == wanted
        assert plans.draw(together, [[], []]) == [wanted, int(logits[1].argmax())]
        mu -= 0.3 * (-math.log2(p[wanted]) - 2.5)
    assert mu != 5.0


OFF = [
    {"xtc_threshold": 0.01, "dry_base": 3.0, "dry_sequence_breakers": (), "mirostat_ent": 1.0},
    {
        "typical_p": 1.0,
        "top_n_sigma": 0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
        "logit_bias": {},
        "mirostat": 0,
    },
    {"repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0, "repeat_last_n": 0},
    {"dry_multiplier": 1.0, "dry_penalty_last_n": 0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    {"temperature": 0.0, "mirostat": 2, "top_k": 3},
    {"greedy": True, "typical_p": 0.5, "xtc_probability": 1.0, "top_n_sigma": 1.0},
]


@pytest.mark.parametrize("given", OFF, ids=lambda given: " ".join(given))
def test_an_option_that_is_off_adds_nothing(given: dict[str, Any]) -> None:
    assert form_of(Sampling(**given), CONTEXT) == SamplingForm() == form_of(Sampling(), CONTEXT)


def ops_of(**given: Any) -> list[str]:
    return [node.op.name for node in sampling_graph(form_of(Sampling(**given), CONTEXT), 1, VOCAB).nodes]


def test_each_option_adds_its_ops_in_llama_cpps_order() -> None:
    assert ops_of() == ["sample"]
    assert ops_of(logit_bias={1: 1}, presence_penalty=1, frequency_penalty=1) == ["logit_bias", "sample"]
    penalties = {"logit_bias": {1: 1}, "repeat_penalty": 2, "presence_penalty": 1, "dry_multiplier": 1}
    penalized = ["logit_bias", "repeat_penalty", "logit_bias", "dry"]
    assert ops_of(**penalties) == [*penalized, "sample"]
    filtered = ["top_n_sigma", "top_k_top_p", "typical_p", "top_k_top_p", "xtc", "sample"]
    assert ops_of(**penalties, top_n_sigma=1, typical_p=0.5, xtc_probability=1) == penalized + filtered
    assert ops_of(xtc_probability=1) == ["top_k_top_p", "xtc", "sample"]
    assert ops_of(mirostat=2, logit_bias={1: 1}) == ["logit_bias", "divide", "mirostat", "softmax_sample"]


def test_few_plans_stay_in_memory(plans: SamplerPlans, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was closed is compiled again for those that still draw with it."""
    closed: list[ReferencePlan] = []
    monkeypatch.setattr(ReferencePlan, "close", lambda plan: closed.append(plan))
    monkeypatch.setattr("camshaft.generate.sampling.sampler.MOST_PLANS", 2)
    draw = plans.alone(sampler_of(Sampling(seed=SEED)))
    tokens = [draw([])]
    for n in (1, 2, 4):
        plans.alone(sampler_of(Sampling(logit_bias=dict.fromkeys(range(n), 1.0))))
    assert len(closed) == 2
    tokens.append(draw([]))
    assert (len(closed), len(plans._plans)) == (3, 2)
    assert tokens == [plans.alone(other)([]) for other in [sampler_of(Sampling(seed=SEED))] * 2]


def test_lists_have_few_lengths() -> None:
    biases = [form_of(Sampling(logit_bias=dict.fromkeys(range(n), 1.0)), CONTEXT).biased for n in (1, 3, 4, 5, 33)]
    assert biases == [1, 4, 4, 8, 64]
    everything = form_of(
        Sampling(repeat_penalty=2, repeat_last_n=-1, dry_multiplier=1, dry_penalty_last_n=10**9), CONTEXT
    )
    assert everything == SamplingForm(recent=64, repeated=64)
    assert form_of(Sampling(presence_penalty=1, logit_bias={1: 1}), CONTEXT) == SamplingForm(biased=64)


def test_a_nan_is_found_behind_every_filter(plans: SamplerPlans, logits: np.ndarray) -> None:
    logits[0, 7] = np.nan
    every = Sampling(typical_p=0.5, xtc_probability=1, top_n_sigma=1, dry_multiplier=1, presence_penalty=1)
    for sampling in (every, Sampling(mirostat=2), Sampling(logit_bias={7: -INF})):
        assert plans.alone(sampler_of(sampling))([1, 2, 1]) == -1


def test_options_are_keywords_of_a_call_and_ids_are_checked(lm: LanguageModel) -> None:
    given = GenerateOptions(max_tokens=4, ignore_eos=True)
    biased = lm.generate([5, 6], given, temperature=0, logit_bias={9: INF})
    assert (list(biased), biased.ids)[1] == [9, 9, 9, 9]
    assert given.merge({"seed": 3, "raw": True}) == GenerateOptions(
        max_tokens=4, ignore_eos=True, raw=True, sampling=Sampling(seed=3)
    )
    with pytest.raises(SettingError, match=r"logit_bias=\{9999: \.\.\.\}: wanted ids of tokens from 0 to "):
        lm.generate([5], logit_bias={3: 1, 9999: 1})
    with pytest.raises(SettingError, match="Sampling typical_p=2: wanted a number above 0 and up to 1"):
        lm.generate([5], typical_p=2)


def test_the_default_plan_has_one_thunk(lm: LanguageModel) -> None:
    with lm.samplers._compile(lm.sampler(Sampling()).form, 1) as plan:
        assert len(plan.bound.schedule.thunks) == 1


KINDS = {
    "default": {},
    "greedy": {"greedy": True},
    "typical": {"typical_p": 0.5},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.01},
    "sigma": {"top_n_sigma": 1.0},
    "penalties": {
        "repeat_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "logit_bias": {5: 2, 7: -INF},
    },
    "counts": {"frequency_penalty": 0.5, "repeat_last_n": 10},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
    "mirostat": {"mirostat": 2, "mirostat_ent": 3.0},
    "every": {
        "typical_p": 0.9,
        "top_n_sigma": 3.0,
        "xtc_probability": 0.5,
        "dry_multiplier": 1.0,
        "repeat_penalty": 1.1,
    },
}


@pytest.mark.full
def test_compiled_plans_draw_alone_what_they_draw_together(lm: LanguageModel) -> None:
    """And what the references of their ops draw."""
    samplings = [Sampling(seed=SEED, **given) for given in KINDS.values()]  # type: ignore[arg-type]
    given = GenerateOptions(max_tokens=12, ignore_eos=True)
    prompt = [40, 7, 81, 200, 13]
    alone = [lm.generate(prompt, given, sampling=sampling) for sampling in samplings]
    for generation in alone:
        list(generation)
    each = [GenerateOptions(sampling=sampling) for sampling in samplings]
    batch = lm.generate_batch([prompt] * len(each), each, max_tokens=12, ignore_eos=True)
    batch.texts()
    assert [g.ids for g in batch.generations] == [g.ids for g in alone]
    for sampling, generation in zip(samplings, alone, strict=True):
        sampler, ids = lm.sampler(sampling), generation.ids
        logits = lm.logits([*prompt, *ids[:-1]])
        for i, token in enumerate(ids):
            row = logits[len(prompt) - 1 + i][None]
            plan: Any = ReferencePlan(sampling_graph(sampler.form, 1, logits.shape[1]), row)
            sampler.fill(plan, 0, [*prompt, *ids[:i]])
            plan.bound.run()
            assert sampler.drawn(plan, 0) == token
    lm.plans.logits[0, 7] = np.nan  # type: ignore[index]
    assert {lm.samplers.alone(lm.sampler(sampling))(prompt) for sampling in samplings} == {-1}
