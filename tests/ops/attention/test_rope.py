"""rope_table against each scaling's own formula, and rope's algebra: positions add, norms stay."""

from __future__ import annotations

import math

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.errors import ShapeError
from camshaft.ops.op import Sample
from camshaft.ops.rope.rope import RopeScaling, rope_table
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of

OP = ops.get("rope")


def angles(table: np.ndarray, position: int = 1) -> np.ndarray:
    """The rotation per step of each pair, where the table's magnitude is taken out."""
    cos, sin = np.split(table[position].astype(np.float64), 2)
    return np.arctan2(sin, cos)


def run(x, positions, table, **attrs) -> np.ndarray:
    given = Sample("x", (x, np.array(positions, np.int32), table), attrs)
    return run_variant(OP.variants[0], node_of(OP, given), cpu_device(), given.inputs)[0]


def test_plain_table() -> None:
    table = rope_table(100, 8, 10000.0)
    assert table.shape == (100, 8)
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table[0], [1, 1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(table[99, :4], np.cos(99 * np.array([1, 0.1, 0.01, 0.001])), atol=1e-7)
    np.testing.assert_allclose(table[99, 4:], np.sin(99 * np.array([1, 0.1, 0.01, 0.001])), atol=1e-7)


def test_linear_divides_positions() -> None:
    stretched = rope_table(41, 64, 1e4, RopeScaling("linear", factor=4.0))
    np.testing.assert_allclose(stretched[::4], rope_table(11, 64, 1e4), atol=1e-7)


def test_ntk_keeps_the_fastest_and_stretches_the_slowest() -> None:
    plain, scaled = angles(rope_table(2, 64, 1e4)), angles(rope_table(2, 64, 1e4, RopeScaling("ntk", factor=8.0)))
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-6)
    np.testing.assert_allclose(scaled[-1], plain[-1] / 8, rtol=1e-6)
    raised = angles(rope_table(2, 64, 1e4 * 8.0 ** (64 / 62)))
    np.testing.assert_allclose(scaled, raised, rtol=1e-6)


def yarn_angle(theta: float, pair: int, n: int, factor: float, original: int) -> float:
    """llama.cpp's rope_yarn for one pair, spelled as it is there."""
    extrapolated = theta ** (-2 * pair / n)

    def corner(rotations: float) -> float:
        return n * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(0, math.floor(corner(32))), min(n - 1, math.ceil(corner(1)))
    mix = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
    return extrapolated / factor * (1 - mix) + extrapolated * mix


def test_yarn() -> None:
    table = rope_table(2, 64, 1e4, RopeScaling("yarn", factor=4.0, original_context=2048))
    wanted = [yarn_angle(1e4, i, 64, 4.0, 2048) for i in range(32)]
    np.testing.assert_allclose(angles(table), wanted, rtol=1e-6)
    magnitude = np.hypot(*np.split(table[1], 2))
    np.testing.assert_allclose(magnitude, 1 + 0.1 * math.log(4.0), rtol=1e-6)
    louder = rope_table(2, 64, 1e4, RopeScaling("yarn", factor=4.0, original_context=2048, attention_factor=0.5))
    np.testing.assert_allclose(louder, table / 2, rtol=1e-6)


def test_llama3_by_wavelength() -> None:
    scaling = RopeScaling("llama3", factor=8.0, original_context=8192, low_freq_factor=1.0, high_freq_factor=4.0)
    plain, scaled = angles(rope_table(2, 128, 5e5)), angles(rope_table(2, 128, 5e5, scaling))
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            wanted = before
        elif wavelength > 8192:
            wanted = before / 8
        else:
            smooth = (8192 / wavelength - 1) / 3
            wanted = (1 - smooth) * before / 8 + smooth * before
        assert math.isclose(after, wanted, rel_tol=1e-5)


def test_freq_factors_divide_frequencies_in_every_kind() -> None:
    factors = np.linspace(1, 8, 32).astype(np.float32)
    plain = angles(rope_table(2, 64, 1e4))
    np.testing.assert_allclose(
        angles(rope_table(2, 64, 1e4, RopeScaling(freq_factors=factors))), plain / factors, rtol=1e-6
    )
    both = rope_table(2, 64, 1e4, RopeScaling("linear", factor=2.0, freq_factors=factors))
    np.testing.assert_allclose(angles(both), plain / factors / 2, rtol=1e-6)


def test_far_positions_keep_their_angle() -> None:
    table = rope_table(131072, 2, 1e4)
    np.testing.assert_allclose(table[131071], [math.cos(131071), math.sin(131071)], atol=1e-7)


@pytest.mark.parametrize("pairing", ["interleaved", "neox"])
def test_products_depend_on_the_distance_alone(pairing) -> None:
    rng, table = np.random.default_rng(0), rope_table(64, 32, 1e4)
    q, key = (rng.normal(size=(1, 32)).astype(np.float32) for _ in range(2))
    attrs = {"heads": 1, "head_dim": 32, "pairing": pairing}
    near = run(q, [7], table, **attrs) @ run(key, [3], table, **attrs).T
    far = run(q, [60], table, **attrs) @ run(key, [56], table, **attrs).T
    np.testing.assert_allclose(near, far, rtol=1e-4)
    assert math.isclose(float(np.linalg.norm(run(q, [9], table, **attrs))), float(np.linalg.norm(q)), rel_tol=1e-6)


def test_both_pairings_agree_after_a_permutation() -> None:
    x, table = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32), rope_table(8, 16, 1e4)
    halves = np.concatenate([np.arange(0, 16, 2), np.arange(1, 16, 2)])
    a = run(x, [3, 5], table, heads=1, head_dim=16, pairing="interleaved")
    b = run(x[:, halves], [3, 5], table, heads=1, head_dim=16, pairing="neox")
    np.testing.assert_allclose(a[:, halves], b, rtol=1e-6)


@pytest.mark.parametrize("pairing", ["interleaved", "neox"])
def test_the_negated_angle_turns_back(pairing) -> None:
    x, table = np.random.default_rng(1).normal(size=(2, 16)).astype(np.float32), rope_table(8, 12, 1e4)
    attrs = {"heads": 1, "head_dim": 16, "pairing": pairing}
    (there,) = OP.reference((x, np.array([3, 5]), table), attrs)
    (back,) = OP.reference((there, np.array([3, 5]), table), attrs | {"inverse": True})
    np.testing.assert_allclose(back, x, rtol=1e-6)


@pytest.mark.parametrize("positions", [[[0, 0, 9]], [[-9, 0, 0]]])
def test_a_position_that_is_no_row_of_the_table_gives_nan(positions) -> None:
    x, table = np.ones((1, 8), np.float32), rope_table(8, 6, 1e4)
    given = Sample("x", (x, np.array(positions, np.int32), table), {"heads": 1, "head_dim": 8, "sections": (1, 1, 1)})
    op = ops.get("rope_multi")
    (y,) = run_variant(op.variants[0], node_of(op, given), cpu_device(), given.inputs)
    assert np.isnan(y).all()


def test_longrope_and_dynamic_follow_the_context() -> None:
    short, long = np.full(4, 1.0), np.full(4, 8.0)
    scaling = RopeScaling("longrope", 4.0, 16, short_factors=short, long_factors=long)
    near, far = rope_table(16, 8, 1e4, scaling), rope_table(17, 8, 1e4, scaling)
    np.testing.assert_allclose(angles(far), angles(near) / 8, rtol=1e-5)
    assert math.isclose(float(np.hypot(near[1, 0], near[1, 4])), math.sqrt(1.5), rel_tol=1e-6)
    dynamic = RopeScaling("dynamic", 2.0, 16)
    np.testing.assert_array_equal(rope_table(16, 8, 1e4, dynamic), rope_table(16, 8, 1e4))
    np.testing.assert_allclose(
        angles(rope_table(32, 8, 1e4, dynamic)), angles(rope_table(2, 8, 1e4, RopeScaling("ntk", 3.0)))
    )


@pytest.mark.parametrize(
    ("dim", "scaling", "match"),
    [
        (7, RopeScaling(), "even rotary_dim"),
        (8, RopeScaling("longer"), "a kind of"),  # type: ignore[arg-type]
        (8, RopeScaling("linear", factor=0.0), "factor above 0"),
        (8, RopeScaling("yarn", factor=2.0), "original_context above 0 for yarn"),
        (8, RopeScaling("llama3", 8.0, 8192, low_freq_factor=4.0), "low_freq_factor < high_freq_factor"),
        (2, RopeScaling("ntk", factor=2.0), "above 2 for ntk"),
        (8, RopeScaling("longrope", 2.0, 16, short_factors=np.ones(4)), r"long_factors of shape \(\)"),
        (8, RopeScaling("dynamic", 0.5, 16), "a factor of at least 1 for dynamic"),
        (8, RopeScaling(freq_factors=np.ones(3)), r"freq_factors of shape \(3,\)"),
    ],
)
def test_wrong_scalings_are_refused(dim, scaling, match) -> None:
    with pytest.raises(ShapeError, match=match):
        rope_table(4, dim, 1e4, scaling)
