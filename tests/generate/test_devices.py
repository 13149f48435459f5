"""A language model on a fake device with its own memory: equal tokens, and the cache stays on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling, ops
from camshaft.errors import BackendError
from camshaft.generate.speculation.pace import RunCosts
from camshaft.plan.memory.device_memory import DeviceArray
from tests.support.devices.fake_device import FakeDevice, pass_for_null
from tests.support.fixtures import tiny_model
from tests.support.quick import full

PROMPT = [3, 5, 7, 11, 2]
CONTEXT = 64


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return pass_for_null(FakeDevice("null", backend="null"), monkeypatch)


def tokens(path: Path, backend: str | None, activations: str, sampling: Sampling) -> list[list[int]]:
    with LanguageModel(path, backend=backend, context=CONTEXT, activations=activations, threads=1) as lm:
        with lm.session() as first, lm.session() as second:
            one = first.generate(PROMPT, max_tokens=6, sampling=sampling, ignore_eos=True)
            two = second.generate(PROMPT[::-1], max_tokens=6, sampling=sampling, ignore_eos=True)
            for generation in (one, two):
                list(generation)
            again = first.generate([9], max_tokens=3, sampling=sampling, ignore_eos=True)
            list(again)
        return [one.ids, two.ids, again.ids]


GREEDY, DRAWN = Sampling(temperature=0.0), Sampling(temperature=0.8, seed=5, repeat_penalty=1.1)


@pytest.mark.parametrize(
    ("name", "sampling"), [full("llama", GREEDY), full("llama", DRAWN), full("qwen3", GREEDY), ("qwen3", DRAWN)]
)
@pytest.mark.full
def test_a_device_says_what_simd_says(fake: FakeDevice, name: str, sampling: Sampling, tmp_path: Path) -> None:
    path = tiny_model(name, tmp_path)
    assert tokens(path, "null", "f32", sampling) == tokens(path, "simd", "f32", sampling)
    assert fake.counts["submits"]
    assert fake.live_nbytes == 0, "a closed model holds nothing on its device"


def test_keys_values_and_logits_stay_on_the_device(fake: FakeDevice, tmp_path: Path) -> None:
    with LanguageModel(tiny_model("llama", tmp_path), backend="null", context=CONTEXT, activations="f32") as lm:
        states = lm.plans.cache.states
        away = {name for name, held in states.items() if isinstance(held, DeviceArray)}
        assert away == set(states) - {"block_table"}
        copies = {t.name for t in lm.plans.single.bound.schedule.thunks if t.kind == "copy"}
        assert copies == {f"{name} → null" for name in ("ids", "positions", "slots", "block_table")}
        assert all(t.device == "null" for t in lm.plans.prompt.bound.schedule.thunks)
        want = lm.logits(PROMPT)
        assert lm.describe_plan().weights_nbytes <= fake.live_nbytes
        with lm.session() as session:
            np.testing.assert_allclose(session.process(PROMPT), want[-1:], atol=1e-5)


def test_a_model_whose_device_cannot_update_the_cache_says_the_same(fake: FakeDevice, tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    with LanguageModel(path, backend="simd", context=CONTEXT, activations="f32") as lm:
        want = lm.logits(PROMPT)
    fake.without = frozenset(v.name for v in ops.get("kv_cache_update").variants)
    with LanguageModel(path, backend="null", context=CONTEXT, activations="f32") as lm:
        thunks = lm.plans.prompt.bound.schedule.thunks
        assert {t.device for t in thunks if t.op == "kv_cache_update"} == {"host"}
        assert {t.device for t in thunks if t.op == "attention"} == {"null"}
        copies = [t.name for t in thunks if t.kind == "copy"]
        assert copies.count("keys.0 → host") == copies.count("keys.0 → null") == 1
        np.testing.assert_allclose(np.concatenate([lm.logits(PROMPT[:3]), lm.logits(PROMPT)[3:]]), want, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["lfm2", "qwen35", "mamba"])
def test_states_go_back_and_are_copied_on_a_device(fake: FakeDevice, name: str, tmp_path: Path) -> None:
    path, ends = tiny_model(name, tmp_path), []
    for backend in ("simd", "null"):
        with LanguageModel(path, backend=backend, context=CONTEXT, activations="f32", threads=1) as lm:
            with lm.session() as session:
                session.process(PROMPT)
                session.process([4])
                session.rewind(len(PROMPT))
                with session.copy() as other:
                    ends.append([other.process([6, 8]), session.process([9])])
            states = {n: held for n, held in lm.plans.cache.states.items() if n.startswith(("conv", "state"))}
            assert all(isinstance(held, DeviceArray) == (backend == "null") for held in states.values())
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-4)


def test_a_device_too_small_for_the_cache_says_so(fake: FakeDevice, tmp_path: Path) -> None:
    fake.limits = {"alignment": 256, "unified": 0, "memory": 100_000}
    with pytest.raises(BackendError, match="no memory for"):
        LanguageModel(tiny_model("llama", tmp_path), backend="null", context=60_000, activations="f32")


@pytest.mark.full
def test_drafts_and_kept_prompts_on_a_device(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both read and write rows of a device's memory; a prompt kept on the host goes on there."""
    monkeypatch.setattr(RunCosts, "of", lambda self, rows: 1.0)
    path, prompt = tiny_model("llama", tmp_path), [*PROMPT * 14][:66]
    options = {"logit_bias": dict.fromkeys(PROMPT, 50), "temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    kept, found = tmp_path / "prompt", []
    for backend in ("simd", "null"):
        with LanguageModel(path, backend=backend, context=80, activations="f32", threads=1, sessions=1) as lm:
            for more in ({}, {"speculate": "ngram"}, {"prompt_cache": kept}):
                generation = lm.generate(prompt, **options, **more)
                list(generation)
                found.append((generation.ids, generation.kept_tokens))
                if generation.speculation is not None:
                    assert generation.speculation.drafted
            if backend == "null":
                kept.unlink()
                for n in (0, 64):
                    generation = lm.generate(prompt, **options, prompt_cache=kept)
                    list(generation)
                    assert generation.kept_tokens == n
    assert [ids for ids, _ in found] == [found[0][0]] * 6
    assert [n for _, n in found] == [0, 0, 0, 0, 0, 64]
