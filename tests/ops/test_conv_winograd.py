"""conv2d by Winograd's products along the rows: its transforms, ragged sizes, refusals, where it is chosen; and even panels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import f32
from camshaft.graph import functions
from camshaft.graph.graph import Graph
from camshaft.ops.matmul.blocks.block_sizes import panels_of
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.conv.winograd_transforms import TRANSFORMS, Transform
from camshaft.plan.compile import compile
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.quick import full

OP = ops.get("conv2d")
VARIANTS = {v.name: v for v in OP.variants}
ZEN = replace(
    cpu_device("simd"), lanes=16, features=frozenset({"avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"})
)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def node(x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> NodeSpec:
    specs = TensorSpec(x, f32), TensorSpec(w, f32)
    return NodeSpec(specs, OP.infer(specs, attrs), attrs)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=lambda t: f"step {t.step}")
def test_the_matrices_make_the_sums_over_windows(transform: Transform) -> None:
    rng = np.random.default_rng(0)
    d, g = rng.integers(-9, 9, transform.seen), rng.integers(-9, 9, transform.taken)
    weights = np.array(transform.g) @ g
    shared = np.append(weights, [weights[-1]] * (transform.points - len(weights)))
    starts = transform.step * np.arange(transform.made)
    want = [d[i : i + transform.taken] @ g for i in starts]
    np.testing.assert_allclose(np.array(transform.a) @ (shared * (np.array(transform.b) @ d)), want, atol=1e-12)
    assert transform.points < transform.made * transform.taken


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 70, 9, 33), (13, 70, 3, 3), {"stride": 2, "padding": 1}),
        ((2, 6, 13, 17), (10, 3, 3, 3), {"stride": 2, "padding": 1, "groups": 2}),
        ((1, 2, 13, 19), (3, 2, 3, 2), {"stride": (2, 3), "padding": ((0, 1), (2, 1)), "dilation": (1, 2)}),
        full((1, 3, 18, 40), (5, 3, 3, 3), {"stride": (2, 1), "padding": (1, 2)}),
        full((1, 2, 17, 140), (7, 2, 3, 3), {"stride": (2, 2), "padding": (0, 21)}),
        full((1, 3, 9, 70), (5, 3, 3, 5), {"stride": (1, 2), "padding": (1, 2)}),
        full((1, 1, 3, 3), (1, 1, 3, 3), {"stride": 2}),
        full((1, 130, 31, 64), (50, 130, 3, 3), {"stride": 2, "padding": (2, 0)}),
        full((1, 5, 30, 31), (97, 5, 3, 3), {"padding": 1}),
        full((1, 5, 3, 200), (20, 5, 3, 1), {"stride": (2, 4)}),
    ],
)
def test_ragged_sizes_are_within_the_tolerance(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    checked = check_sample(OP, VARIANTS["winograd"], cpu_device("simd"), Sample("", (drawn(*x), drawn(*w)), attrs))
    assert checked.max_error <= checked.tolerance


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinity_and_nan_stay_in_their_windows() -> None:
    x, w = drawn(1, 3, 21, 40), np.abs(drawn(4, 3, 3, 3))
    x[0, 1, 5, 20], x[0, 2, 16, 3] = np.inf, np.nan
    given = node_of(OP, Sample("", (x, w), {"stride": 2, "padding": 1}))
    (want,) = OP.reference((x, w), given.attrs)
    (y,) = run_variant(VARIANTS["winograd"], given, cpu_device("simd"), (x, w), {})
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(want))
    np.testing.assert_array_equal(y[np.isinf(want)], want[np.isinf(want)])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("of_x", "of_w"), [(1e-40, 1.0), (1.0, 1e-40), (1e-20, 1e-20)])
def test_subnormal_results_are_a_few_steps_off_in_every_variant(stride: int, of_x: float, of_w: float) -> None:
    x, w = drawn(1, 8, 20, 20) * np.float32(of_x), drawn(16, 8, 3, 3) * np.float32(of_w)
    given = node_of(OP, Sample("", (x, w), {"stride": stride, "padding": 1}))
    (want,) = OP.reference((x, w), given.attrs)
    off = {}
    for name in ("direct", "winograd"):
        (y,) = run_variant(VARIANTS[name], given, cpu_device("simd"), (x, w), {})
        off[name] = np.abs(y - want).max() / np.finfo(np.float32).smallest_subnormal
    assert 1 < off["direct"] < 20  # beyond the op's tolerance already
    assert off["winograd"] < 20 * off["direct"]


@pytest.mark.parametrize(
    ("w", "attrs"),
    [
        ((4, 4, 3, 3), {"stride": 3}),
        ((4, 4, 3, 3), {"dilation": 2}),
        ((4, 4, 3, 3), {"stride": 2, "dilation": (2, 1)}),
        ((4, 4, 2, 3), {"stride": 2}),
        ((4, 4, 5, 5), {}),
    ],
)
def test_other_windows_are_refused(w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    assert "three rows" in str(VARIANTS["winograd"].supports(node((1, 4, 9, 9), w, **attrs), ZEN))


@pytest.mark.parametrize(
    ("channels", "size", "outputs", "chosen"),
    [(128, 56, 128, "winograd"), (64, 112, 64, "winograd"), (256, 28, 256, "by_outputs"), (256, 16, 512, "blocked")],
)
def test_windows_two_rows_apart_are_transformed_where_that_saves(
    channels: int, size: int, outputs: int, chosen: str
) -> None:
    given = node((1, channels, size, size), (outputs, channels, 3, 3), stride=2, padding=1)
    costs = {v.name: v.cost(given, ZEN) for v in OP.variants if v.supports is None or v.supports(given, ZEN) is None}
    assert min(costs, key=lambda name: costs[name]) == chosen


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        full((1, 40, 31, 33), (70, 40, 3, 3), {"stride": 2, "padding": 1}),
        ((1, 40, 15, 16), (150, 40, 1, 1), {}),
        ((1, 70, 14, 14), (64, 70, 1, 1), {}),
        ((1, 9, 20, 27), (40, 9, 5, 5), {"stride": 2}),
    ],
)
def test_results_are_equal_for_any_number_of_threads(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    image, weights, found = drawn(*x), drawn(*w), []
    for threads in (1, 2, 3):
        graph = Graph()
        graph.output("y", functions.conv2d(graph.input("x", x, "f32"), graph.constant("w", weights), **attrs))
        with compile(graph, threads=threads, backend="simd") as plan:
            found.append(plan.run(x=image)["y"].tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("rows_in_halves", [True, False])
@pytest.mark.parametrize("columns", [1, 17, 49, 80, 100, 208, 784, 810, 3136])
def test_panels_have_no_vector_outside_the_columns(columns: int, rows_in_halves: bool) -> None:
    panels = panels_of(columns, ZEN, rows_in_halves)
    total = -(-columns // 16)
    assert panels.total == total
    assert panels.count * (panels.vectors - 1) < total <= panels.count * panels.vectors


@pytest.mark.parametrize(
    ("x", "w"),
    [((1, 5, 1, 80), (300, 5, 1, 1)), ((1, 130, 9, 25), (20, 130, 1, 1)), full((2, 600, 15, 15), (130, 600, 1, 1))],
)
def test_even_panels_are_right_at_their_ends(x: tuple[int, ...], w: tuple[int, ...]) -> None:
    checked = check_sample(OP, VARIANTS["blocked"], cpu_device("simd"), Sample("", (drawn(*x), drawn(*w))))
    assert checked.max_error <= checked.tolerance
