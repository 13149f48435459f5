"""A budget of memory: the fewest layers are recomputed, the plan says what it holds, and no bit changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from camshaft import train
from camshaft.errors import PlanError
from camshaft.train import memory as training_memory
from camshaft.train.memory import anonymous_nbytes
from camshaft.train.tuning.finetuning import plan_finetune
from tests.support.fixtures import tiny_model
from tests.train.small import examples, flat, loss, parameters, same


class FakeStep:
    """A step whose plans hold `real` and are estimated at `estimated` bytes, less 10 for each layer."""

    def __init__(self, model: Any, estimated: int, real: int) -> None:
        self.model, self.estimated, self.real = model, estimated, real
        self.compiled: list[int] = []

    def estimated_nbytes(self) -> int:
        return self.estimated - 10 * self.model.recomputed

    def plans_of(self) -> int:
        self.compiled.append(self.model.recomputed)
        return self.real - 10 * self.model.recomputed

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("estimated", "real", "budget", "compiled"),
    [
        (200, 200, 200, [0]),
        (200, 200, 155, [5]),
        (180, 200, 155, [3, 5]),
        (150, 200, 125, [3, 7, 8]),
    ],
)
def test_the_fewest_layers_that_fit(
    estimated: int, real: int, budget: int, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_memory, "memory_by_kind", lambda nbytes: {"all": nbytes})
    model: Any = SimpleNamespace(recomputed=0, config=SimpleNamespace(n_layers=12))
    step: Any = FakeStep(model, estimated, real)
    training_memory.fit(model, step, (), budget)
    assert step.compiled == compiled
    assert real - 10 * model.recomputed <= budget
    with pytest.raises(PlanError, match=r"holds 0\.0 MB with all 12 layers recomputed; wanted at most 0\.0 MB"):
        training_memory.fit(model, step, (), real - 121)


@pytest.mark.full
def test_a_model_trains_with_the_same_bits_in_less_memory(tmp_path: Path) -> None:
    base, data = tiny_model("llama", tmp_path), tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps({"text": f"{i} words and more words" * 6}) for i in range(4)), "utf-8")
    plain = plan_finetune(base, data, options=train.FinetuneOptions(steps=2))
    assert (plain.program_nbytes is None) is (anonymous_nbytes() is None)
    budget = sum(plain.memory.values()) - 1
    written = []
    for memory, threads in ((None, 3), (budget, 1)):
        options = train.FinetuneOptions(steps=2, memory=memory)
        plan = plan_finetune(base, data, options=options)
        assert (plan.recomputed > 0) is (memory is not None)
        assert memory is None or sum(plan.memory.values()) <= memory
        out = tmp_path / f"{memory}.gguf"
        train.finetune(base, data, out, options=options, threads=threads)
        written.append(out.read_bytes())
    assert written[0] == written[1]
    with pytest.raises(PlanError, match=r"with all 2 layers recomputed; wanted at most 0\.0 MB"):
        plan_finetune(base, data, options=train.FinetuneOptions(steps=2, memory=100))


def test_estimates_follow_the_layers(tmp_path: Path) -> None:
    ids = np.ones((4, 64), np.int32)
    rows = np.zeros((4, 8), np.int32)
    with train.LoraModel(tiny_model("llama", tmp_path)) as model:
        step = train.Step(model.loss, model.adapters(), train.AdamW(), micro_batches=2)
        found = []
        for layers in range(model.config.n_layers + 1):
            model.recomputed = layers
            found.append(step.estimated_nbytes(ids, rows, rows))
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


def test_starts_are_not_held_once_a_plan_has_them() -> None:
    start = parameters()
    with train.Step(loss, start, train.SGD()) as step:
        first, *_ = flat(start)
        held = sys.getrefcount(first)
        step(*examples(4), lr=0.0)
        assert sys.getrefcount(first) < held
        assert same(step.parameters, start)
    assert same(step.parameters, start)
