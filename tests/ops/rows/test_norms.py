"""What the table test does not show of norms, softmax, activations and losses: fusions, long rows, masked rows, lost digits."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import f32
from camshaft.errors import ShapeError
from camshaft.graph.passes.rewrite import prepare
from camshaft.ops.op import Sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import check_sample

RNG = np.random.default_rng(11)


def test_an_offset_of_the_weights_survives_fusion() -> None:
    graph = cs.Graph()
    a, b = (graph.input(name, (3, 64), "f32") for name in "ab")
    w = graph.constant("w", RNG.normal(size=64).astype(np.float32))
    total = a + b
    graph.output("total", total)
    graph.output("y", cs.rms_norm(total, w, eps=1e-6, offset=1.0))
    (fused,) = prepare(graph, "f32").nodes
    assert (fused.op.name, fused.attrs["offset"]) == ("residual_norm", 1.0)


@pytest.mark.parametrize("mask", [np.zeros((3, 4), bool), np.full(4, -np.inf, np.float32)], ids=["boolean", "added"])
def test_a_row_that_is_masked_whole_gives_zeros(mask: np.ndarray) -> None:
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    (y,) = ops.get("scale_mask_softmax").reference((x, mask), {})
    assert not y.any()
    assert not cs.scale_mask_softmax(x, mask).any()


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("columns", [15, 255, 256, 576, 1000])
def test_a_rows_maximum_is_found_wherever_it_is_and_whatever_its_sign(op: str, columns: int) -> None:
    """Values so far apart that any other element in its place would overflow, or give a row of zeros."""
    x = np.linspace(-2e4, -1e3, 4 * columns, dtype=np.float32).reshape(4, columns)
    x[1] = np.where(np.arange(columns) % 2, -0.0, 0.0)
    x[2] += 3e4
    x[3, 3:] = -np.inf
    for shift in (0, 1, columns // 2, columns - 1):
        given = np.roll(x, shift, axis=1)
        checked = check_sample(ops.get(op), ops.get(op).variants[0], cpu_device("simd"), Sample("", (given,)))
        assert checked.max_error <= checked.tolerance


def test_16_bit_powers_of_a_softmax_are_rounded_once() -> None:
    x = RNG.normal(size=(2, 40)).astype(np.float16)
    powers = np.exp(x.astype(np.float64) - x.astype(np.float64).max(-1, keepdims=True))
    exact = powers / powers.sum(-1, keepdims=True)
    assert np.abs(cs.softmax(x) - exact).max() <= np.spacing(np.float16(exact.max())) / 2


def test_near_0_no_digits_are_lost() -> None:
    x = np.array([1e-30, -1e-10, 1e-4, 0.29, 0.31], np.float32)
    for name in ("log1p", "expm1"):
        exact = getattr(np, name)(x.astype(np.float64))
        np.testing.assert_allclose(getattr(cs, name)(x), exact, rtol=5e-7)


def test_a_step_of_adam_takes_its_rate_and_step_as_numbers() -> None:
    p, g = np.ones((2, 3), np.float32), np.full((2, 3), -4, np.float32)
    m, v = np.zeros_like(p), np.zeros_like(p)
    assert cs.adam_update(p, m, v, g, 0.25, 1) is None
    np.testing.assert_allclose(p, 1.25, rtol=1e-6)  # the first step is as long as the rate
    np.testing.assert_allclose([m[0, 0], v[0, 0]], [-0.4, 0.016], rtol=1e-6)


def test_adam_updates_the_states_of_a_plan() -> None:
    graph = cs.Graph()
    p, m, v = (graph.state(name, TensorSpec((5,), f32)) for name in "pmv")
    g, lr, step = graph.input("g", (5,), "f32"), graph.input("lr", (), "f32"), graph.input("step", (), "i32")
    graph.node("adam_update", p, m, v, g, lr, step)
    graph.output("y", p * 1)
    with cs.compile(graph, threads=1) as plan:
        for t in (1, 2):
            found = plan.run(g=np.ones(5, np.float32), lr=np.float32(0.5), step=np.int32(t))["y"]
            np.testing.assert_allclose(found, -0.5 * t, rtol=1e-5)


def test_a_target_that_is_no_class_gives_nan_and_an_ignored_one_0() -> None:
    x = RNG.normal(size=(4, 6)).astype(np.float32)
    losses = cs.cross_entropy(x, np.array([6, -1, -100, 5]), reduction="none")
    assert np.isnan(losses).tolist() == [True, True, False, False]
    assert losses[2] == 0
    assert np.isnan(cs.cross_entropy(x, np.full(4, -100)))


@pytest.mark.parametrize("groups", [True, 2.0, "2", 0, 3])
def test_groups_are_a_number_that_divides_the_channels(groups: object) -> None:
    x = TensorSpec((1, 4, 6), f32), TensorSpec((4,), f32), TensorSpec((4,), f32)
    with pytest.raises(ShapeError, match="wanted groups above 0 that divide the 4 channels"):
        ops.get("group_norm").infer(x, {"groups": groups})


def _long(n: int) -> list[tuple[str, Sample]]:
    x, z = (RNG.normal(size=(2, n)).astype(np.float32) for _ in range(2))
    w, channel = RNG.normal(size=n).astype(np.float32), np.ones(2, np.float32)
    return [
        ("l2_norm", Sample("long", (x,))),
        ("rms_norm", Sample("long", (x, w), {"eps": 1e-5})),
        ("layer_norm", Sample("long", (x + 50, w, w), {"eps": 1e-5})),
        ("softmax", Sample("long", (x,))),
        ("log_softmax", Sample("long", (x,))),
        ("norm_gate", Sample("long", (x, w, z), {"eps": 1e-5})),
        ("norm_add", Sample("long", (x, w, z), {"eps": 1e-5})),
        ("scale_mask_softmax", Sample("long", (x, z > 0), {"scale": 2.0})),
        ("group_norm", Sample("long", (x[None], channel, channel), {"groups": 1})),
        ("cross_entropy", Sample("long", (x, np.array([0, n - 1])))),
    ]


@pytest.mark.full
@pytest.mark.parametrize(("name", "sample"), _long(65536), ids=lambda v: v if isinstance(v, str) else "")
def test_rows_of_65536(name: str, sample: Sample) -> None:
    op = ops.get(name)
    for backend in ("simd", "scalar"):
        device = cpu_device(backend)
        # A lane adds its part of a row in order: the error of a sum grows with the part, the mean squared error with its square.
        bound = op.tolerance["f32"] * max(1, 16 / device.lanes) ** 2
        assert check_sample(op, op.variants[0], device, sample).max_error <= bound
