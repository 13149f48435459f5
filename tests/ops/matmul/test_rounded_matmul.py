"""Products in whole numbers: how near they are, that no sum passes 32 bits, what is not finite stays so, and the inner loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft import dtypes
from camshaft.backends.cpu.device import cpu_device
from camshaft.emit.llvm.module import emit
from camshaft.emit.target import LEVELS
from camshaft.extent import Extent
from camshaft.graph import functions
from camshaft.graph.graph import Graph
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import signature
from camshaft.ops.matmul.int16.kernels import BLOCK, LEAST, MOST, NORM
from camshaft.ops.matmul.int16.rounded_matmul import FEATURES, OP
from camshaft.ops.spec import TensorSpec
from camshaft.plan.compile import compile
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.compilers.assembly import instructions, loop_with, vector_stack_accesses
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.quick import quick_of

ATTRS = {"transpose_b": True}
VARIANT = next(v for v in OP.variants if v.name == "int16_gemm")
ZEN = replace(cpu_device("simd"), lanes=16, features=LEVELS["avx512-vnni"].features, architecture="x86_64")
here = pytest.mark.skipif(
    not cpu_device("simd").features >= FEATURES or cpu_device("simd").lanes < 16,
    reason="this CPU has no vpdpwssd",
)


def draw(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + k + n)
    return rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(n, k)).astype(np.float16)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    sample = ops.Sample("", (a, b), ATTRS)
    (found,) = run_variant(VARIANT, node_of(OP, sample), cpu_device("simd"), sample.inputs, sample.extents)
    return found


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64).T


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(((found - wanted) ** 2).mean() / (wanted**2).mean())


@here
@pytest.mark.parametrize(
    ("values", "shape"),
    quick_of(
        [
            ({"part": 128, "block": 32, "group": 64}, (65, 384, 67)),
            ({"rows": 7}, (50, 320, 257)),
            ({"rows": 4, "vectors": 3}, (65, 384, 67)),
            ({"part": 128, "block": 32, "group": 64}, (50, 320, 257)),
            ({"rows": 7}, (65, 384, 67)),
            ({"rows": 4, "vectors": 3}, (50, 320, 257)),
        ],
        [({"part": 128, "block": 32, "group": 64}, (65, 384, 67)), ({"rows": 4, "vectors": 3}, (50, 320, 257))],
    ),
)
def test_parts_blocks_and_groups_with_ragged_ends(shape, values) -> None:
    checked = check_sample(OP, VARIANT.with_values(values), cpu_device("simd"), ops.Sample("", draw(*shape), ATTRS))
    assert checked.max_error <= checked.tolerance


@here
def test_rounding_loses_less_than_activations_in_f16() -> None:
    a, b = draw(96, 576, 128)
    wanted = exact(a, b)
    assert error(product(a, b), wanted) < 0.3 * error(exact(a.astype(np.float16), b), wanted)


@here
@pytest.mark.parametrize("spikes", [0, 1, 2, 16, BLOCK])
def test_the_greatest_sums_fit(spikes: int) -> None:
    """Rows and columns that are parallel, for which a sum is the product of their roots of squares: equal numbers, and some of
    them much greater than the rest, of either sign."""
    a = np.full((1, 2 * BLOCK), 1e-3, np.float32)
    a[0, :spikes] = a[0, BLOCK : BLOCK + spikes] = 65504
    a[0, 1::3] *= -1
    rows, columns = np.concatenate([a, -a]), np.concatenate([a, -a]).astype(np.float16)
    np.testing.assert_allclose(product(rows, columns), exact(rows, columns), rtol=1e-3)


def test_by_reckoning_no_sum_passes_32_bits_and_no_number_16() -> None:
    rounding, lost = 0.5 * BLOCK**0.5, 1 + 2.0**-16
    assert (NORM * lost + rounding) * (MOST * lost + rounding) < 2**31 - 1
    assert MOST * lost + 0.5 < 2**15


@here
@pytest.mark.parametrize("scale", [1e-29, 1e-20, 1e20, 1e30])
def test_rows_of_any_size_are_as_near(scale: float) -> None:
    a, b = draw(7, 128, 33)
    wanted = exact(a, b)
    found = product((a * np.float32(scale)).astype(np.float32), b).astype(np.float64) / scale
    assert error(found, wanted) < 2e-8


@here
def test_a_block_of_next_to_nothing_is_0() -> None:
    a, b = draw(7, 128, 33)
    a[2] *= np.float32(LEAST / 1e6)
    a[4] = 0
    found = product(a, b)
    assert not found[[2, 4]].any()
    np.testing.assert_array_equal(product(a[:1], b)[0], found[0])


@here
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_reaches_all_sums_that_it_is_part_of(odd: float) -> None:
    a, b = draw(14, 128, 70)
    wanted = product(a, b)
    one, other = a.copy(), b.copy()
    one[3, 77], other[65, 5] = odd, odd
    found = product(one, b)
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(wanted, 3, 0))
    found = product(a, other)
    assert np.isnan(found[:, 65]).all()
    np.testing.assert_array_equal(np.delete(found, 65, 1), np.delete(wanted, 65, 1))


def test_results_are_equal_for_any_number_of_threads() -> None:
    a, b = draw(300, 640, 450)
    found = []
    for threads in (1, 2, 3):
        graph = Graph()
        left, right = graph.input("a", a.shape, "f32"), graph.input("b", b.shape, "f16")
        graph.output("y", functions.rounded_matmul(left, right, **ATTRS))
        with compile(graph, threads=threads, backend="simd") as plan:
            found.append(plan.run(a=a, b=b)["y"].tobytes())
    assert found[0] == found[1] == found[2]


def node_for(rows, k: int, n: int) -> ops.NodeSpec:
    specs = TensorSpec((rows, k), dtypes.f32), TensorSpec((n, k), dtypes.f16)
    return ops.NodeSpec(specs, OP.infer(specs, ATTRS), ATTRS)


@pytest.mark.parametrize("rows", [96, Extent("rows", 96)])
def test_the_inner_loop_is_24_of_the_instruction_and_spills_nothing(rows) -> None:
    node, target = node_for(rows, 128, 128), CrossTarget("x86_64-unknown-linux-gnu", "znver4", ZEN.features)
    build = VARIANT.build(node, ZEN)
    launch = build.launches[-1]
    made = signature(launch, node, build)
    traced = made.request(launch).trace()
    loop = loop_with(assembly_for(target, emit(traced, target.at(16), "kernel")), "vpdpwssd")
    assert instructions(loop)["vpdpwssd"] == 24
    assert not vector_stack_accesses(loop)


@pytest.mark.parametrize("level", ["sse4", "avx2", "avx-vnni", "avx512", "neon-bf16"])
def test_other_levels_multiply_in_f32(level: str) -> None:
    row, node = LEVELS[level], node_for(96, 128, 128)
    device = replace(ZEN, features=row.features, architecture=row.architecture, lanes=8 if level != "avx512" else 16)
    assert "vpdpwssd" in str(VARIANT.supports(node, device))
    others = [v for v in OP.variants if v is not VARIANT and "simd" in v.backends]
    assert any(v.supports(node, device) is None for v in others)


def test_depths_that_are_no_whole_blocks_are_refused() -> None:
    assert "multiple of 64" in str(VARIANT.supports(node_for(96, 96, 64), ZEN))
    assert VARIANT.supports(node_for(96, 128, 64), ZEN) is None
