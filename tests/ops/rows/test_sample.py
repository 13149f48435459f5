"""sample: the sets that top_k, top_p and min_p keep, the distribution of the draws, and that nothing depends on the lanes."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.backends.cpu.device import cpu_device
from camshaft.lang.interpreter.interpret import interpret
from camshaft.ops.kernels.launch import signature
from camshaft.ops.op import Sample
from camshaft.ops.sample.sample import distribution, times
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of
from tests.ops.rows.draws import OP, chi_square, draw
from tests.support.quick import each_value, quick_of

SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (2.0, 12, 1.0, 0.0),
    (1.0, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.5, 30, 0.9, 0.05),
]


@pytest.mark.parametrize(("settings", "source"), each_value(SETTINGS, ["seeds", "steps", "high words"]))
def test_draws_follow_the_distribution(settings, source) -> None:
    n, draws = 50, 20_000
    logits = (2 * np.random.default_rng(1).normal(size=n)).astype(np.float32)
    seed = np.zeros((draws, 3), np.uint32)
    seed[:, {"seeds": 0, "high words": 1, "steps": 2}[source]] = np.arange(draws)
    tokens = draw(np.tile(logits, (draws, 1)), *settings, seed=seed)
    assert abs(chi_square(np.bincount(tokens, minlength=n), distribution(logits, *settings))) < 4


@pytest.mark.full
def test_draws_from_many_equal_tokens_are_even() -> None:
    n, draws = 4096, 4_000
    tokens = draw(np.zeros((draws, n)))
    assert abs(chi_square(np.bincount(tokens // 64, minlength=64), np.ones(64))) < 4
    assert abs(chi_square(np.bincount(tokens % 64, minlength=64), np.ones(64))) < 4


def test_draws_of_consecutive_steps_are_independent() -> None:
    draws = 40_000
    seed = np.zeros((draws, 3), np.uint32)
    seed[:, 2] = np.arange(draws)
    tokens = draw(np.zeros((draws, 8)), seed=seed)
    pairs = np.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64)
    assert abs(chi_square(pairs, np.ones(64))) < 4


def test_exponential_times_have_mean_and_variance_1() -> None:
    e = times(np.array([3, 0, 0], np.uint32), 200_000)
    assert abs(e.mean() - 1) < 0.01
    assert abs(e.var() - 1) < 0.03
    assert e.min() > 0


def _kept(logits, temperature, top_k, top_p, min_p) -> set[int]:
    """The set by definition: sort, cut, renormalize, cut, renormalize, cut."""
    x = logits.astype(np.float64) / temperature
    order = np.argsort(-x, kind="stable")
    if 0 < top_k < len(x):
        order = order[:top_k]
    p = np.exp(x[order] - x.max())
    p /= p.sum()
    if top_p < 1:
        n = int(np.searchsorted(np.cumsum(p), top_p)) + 1
        order, p = order[:n], p[:n] / p[:n].sum()
    return set(order[p >= min_p * p[0]].tolist())


@pytest.mark.parametrize("n", quick_of([7, 64, 65, 1000], [65]))
def test_the_sets_that_are_kept(n) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        logits = (3 * rng.normal(size=n)).astype(np.float32)
        top_k, top_p, min_p = (
            int(rng.integers(0, n + 2)),
            float(np.float32(rng.uniform(0.05, 1))),
            float(np.float32(rng.choice([0, 0.001, 0.1]))),
        )
        # so flat and so often drawn that each kept token comes up
        temperature = 20.0
        wanted = _kept(logits, temperature, top_k, top_p, min_p)
        assert set(np.flatnonzero(distribution(logits, temperature, top_k, top_p, min_p)).tolist()) == wanted
        tokens = draw(np.tile(logits, (40 * min(n, 100), 1)), temperature, top_k, top_p, min_p)
        assert set(tokens.tolist()) <= wanted
        if n <= 65:
            assert set(tokens.tolist()) == wanted


def test_only_the_last_token_of_a_cut_differs_from_one_over_it() -> None:
    logits = np.random.default_rng(5).permutation(300).astype(np.float32) / 100
    best = np.argsort(-logits)
    for k in (1, 2, 5, 40, 299):
        tokens = set(draw(np.tile(logits, (4000, 1)), 50.0, k).tolist())
        assert tokens == set(best[:k].tolist())


def test_ties_at_the_end_go_to_the_smaller_index() -> None:
    logits = np.zeros((2000, 40))
    logits[:, 30] = 1
    assert set(draw(logits, top_k=4).tolist()) == {30, 0, 1, 2}
    assert set(draw(np.zeros((2000, 40)), top_p=0.25).tolist()) == set(range(10))


@pytest.mark.parametrize("lanes", quick_of([1, 2, 4, 8, 32, 64], [8]))
def test_the_lane_width_changes_nothing(lanes) -> None:
    rng = np.random.default_rng(9)
    logits = (3 * rng.normal(size=(64, 333))).astype(np.float32)
    for settings in SETTINGS:
        np.testing.assert_array_equal(draw(logits, *settings, lanes=lanes), draw(logits, *settings))
    np.testing.assert_array_equal(draw(logits, 0.0, lanes=lanes), logits.argmax(-1))


def test_scalar_and_simd_draw_the_same() -> None:
    logits = (3 * np.random.default_rng(10).normal(size=(500, 130))).astype(np.float32)
    for settings in SETTINGS:
        np.testing.assert_array_equal(draw(logits, *settings, backend="scalar"), draw(logits, *settings))


@pytest.mark.parametrize("column", [0, 31, 32, 75, 76])
def test_a_row_with_a_nan_gives_no_token_and_others_are_as_before(column: int) -> None:
    x = np.random.default_rng(2).normal(size=(6, 77)).astype(np.float32)
    for settings in ((0.0,), (1.0,), (1.0, 5), (1.0, 0, 0.9), (1.0, 0, 1.0, 0.5)):
        wanted = draw(x, *settings)
        odd = x.copy()
        odd[1::2, column] = np.nan
        tokens = draw(odd, *settings)
        assert (tokens[1::2] == -1).all()
        np.testing.assert_array_equal(tokens[::2], wanted[::2])
    assert (draw(np.full((3, 20), np.nan)) == -1).all()


def test_infinite_logits() -> None:
    x = np.zeros((200, 20), np.float32)
    x[:, ::2], x[:, 1] = -np.inf, -np.inf
    allowed = set(range(3, 20, 2))
    for settings in ((1.0,), (1.0, 5), (1.0, 0, 0.9), (1.0, 0, 1.0, 0.5)):
        assert set(draw(x, *settings).tolist()) <= allowed
    assert (draw(x, 0.0) == 3).all()
    x[:, 7] = np.inf
    for settings in ((0.0,), (1.0,), (1.0, 5), (1.0, 0, 0.9), (1.0, 0, 1.0, 0.5)):
        assert (draw(x, *settings) == 7).all()
    assert (draw(np.full((3, 20), -np.inf), 0.0) == 0).all()
    tokens = draw(np.full((300, 20), -np.inf), 1.0)
    assert tokens.min() >= 0
    assert tokens.max() < 20


def test_extreme_settings_stay_inside_the_row() -> None:
    logits = (30 * np.random.default_rng(11).normal(size=(50, 77))).astype(np.float32)
    for temperature in (1e-45, 1e-30, 1e-6):
        np.testing.assert_array_equal(draw(logits, temperature), logits.argmax(-1))
    for settings in ((1.0, 1), (1.0, 0, 0.0), (1.0, 0, 1e-9), (1.0, 0, 1.0, 1.0), (1.0, 0, 1.0, 9.0), (np.nan,)):
        np.testing.assert_array_equal(draw(logits, *settings), logits.argmax(-1))
    for settings in ((1.0, 0, np.nan), (1.0, 0, 1.0, np.nan)):
        np.testing.assert_array_equal(draw(logits, *settings), draw(logits, 1.0))
    for settings in ((1e30,), (1e30, 2**31 - 1, 0.9999999, 1e-30), (1.0, -5, 2.0, -1.0)):
        tokens = draw(logits, *settings)
        assert 0 <= tokens.min() <= tokens.max() < 77


def test_a_vocabulary_of_the_most_tokens() -> None:
    logits = np.zeros((2, 1 << 18), np.float32)
    tokens = draw(logits, top_p=0.5)
    assert (tokens < 1 << 17).all()
    logits[1, -1] = 20.0
    assert draw(logits, top_k=3, top_p=0.9)[1] == (1 << 18) - 1


@pytest.mark.parametrize("lanes", quick_of([1, 4, 16], [4]))
def test_the_interpreter_draws_the_same(lanes) -> None:
    rows, n = len(SETTINGS) + 1, 70
    logits = (3 * np.random.default_rng(12).normal(size=(rows, n))).astype(np.float32)
    columns = np.array([*SETTINGS, (0.0, 0, 1.0, 0.0)]).T
    inputs = [logits, *(c.astype(t) for c, t in zip(columns, ("f4", "i4", "f4", "f4"), strict=True))]
    inputs.append(np.arange(3 * rows, dtype=np.uint32).reshape(rows, 3))
    node, device = node_of(OP, Sample("", tuple(inputs))), cpu_device("simd")
    build = OP.variants[0].build(node, device)
    made = signature(build.launches[0], node, build)
    traced = made.request(build.launches[0]).trace()
    out = np.full(rows, -1, np.int32)
    interpret(traced, [*inputs, np.zeros((rows, n), np.uint32), out], lanes=lanes, shuffle_seed=1)
    np.testing.assert_array_equal(out, run_variant(OP.variants[0], node, device, inputs)[0])
