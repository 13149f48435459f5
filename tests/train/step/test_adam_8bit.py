"""Moments of 8 bits: the map of bitsandbytes, nearest codes, and a curve beside that of f32 moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from camshaft.train.adam_8bit import BLOCK, values
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.small import examples, flat, loss, parameters, same

X, Y = examples()


def test_the_maps_are_those_of_bitsandbytes() -> None:
    for signed in (True, False):
        table = values(signed)
        assert (table.shape, table.dtype, len(set(table.tolist()))) == ((256,), np.float32, 256)
        assert (np.diff(table) > 0).all()
        assert table[-1] == 1.0
        assert table[0] == pytest.approx(-0.9929688 if signed else 0.0)
        # the values of a decade are ten times those of the one below, every second of them
        assert (table > 0.1).sum() == (65 if signed else 129)
        assert np.abs(table[table != 0]).min() == pytest.approx(5.5e-7 if signed else 3.25e-7)


def curve(optimizer: Any, steps: int, **options: Any) -> tuple[list[float], train.Step]:
    step = train.Step(loss, parameters(), optimizer, **options)
    data = train.Batches((X, Y), 8, 3)
    return [step(*data(n), lr=2e-3) for n in range(steps)], step


@pytest.mark.usefixtures("by_references")
def test_the_curve_follows_that_of_f32_moments_within_two_hundredths() -> None:
    wanted, exact = curve(train.AdamW(weight_decay=0.1), 60)
    found, step = curve(train.AdamW8bit(weight_decay=0.1), 60)
    assert wanted[-1] < 0.5 * wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=0.02)
    assert not same(step.parameters, exact.parameters)
    moments = [a for name, a in step.states.items() if name.startswith("optimizer/")]
    assert sum(a.nbytes for a in moments) < 2.2 * sum(a.nbytes for a in flat(step.parameters)) / 4
    states = step.states
    codes, scales = states["optimizer/layers.0.w/v"], states["optimizer/layers.0.w/v_scale"]
    v = values(False)[codes] * scales
    assert (codes.shape, codes.dtype) == ((20, BLOCK), np.uint8)
    error = np.abs(v.reshape(-1)[: 70 * 70].reshape(70, 70) - exact.states["optimizer/layers.0.w/v"])
    assert error.max() < 0.05 * exact.states["optimizer/layers.0.w/v"].max()


@pytest.mark.usefixtures("by_references")
def test_small_parameters_and_steps_that_are_refused_are_as_adamw_has_them() -> None:
    start = {"w": np.ones((8, 4), np.float32)}
    made = [train.Step(lambda p, x: cs.sum(cs.square(p["w"] * x)), start, o()) for o in (train.AdamW, train.AdamW8bit)]
    for step in made:
        for _ in range(3):
            step(np.float32(2.0) * np.ones(4, np.float32), lr=0.1)
    assert made[0].parameters["w"].tobytes() == made[1].parameters["w"].tobytes()
    _, step = curve(train.AdamW8bit(), 3)
    before = step.states
    with pytest.raises(cs.CamshaftError, match="step 4"):
        step(X[:8] * np.inf, Y[:8], lr=1e-3)
    assert all(a.tobytes() == before[name].tobytes() for name, a in step.states.items())


@pytest.mark.full
def test_plans_have_the_same_bits_for_any_number_of_threads() -> None:
    found = []
    for threads in (1, 5):
        losses, step = curve(train.AdamW8bit(), 4, threads=threads)
        found.append((losses, {name: a.tobytes() for name, a in step.states.items()}))
        step.close()
    assert found[0] == found[1]
    wanted, _ = curve(train.AdamW(), 4)
    np.testing.assert_allclose(found[0][0], wanted, rtol=0.02)
