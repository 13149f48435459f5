"""Sorts: rows of any length, every index once, one result on every backend, and NumPy's and torch's order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops, table
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype
from camshaft.extent import Extent
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.ops.kernels.launch import for_workers
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.sort.samples import odd_rows
from camshaft.ops.spec import TensorSpec
from camshaft.plan.compile import compile
from camshaft.selection.select import alternatives
from camshaft.validation.run import run_variant
from tests.support.quick import full
from tests.support.samples import check_bits


@pytest.mark.parametrize("dtype", [np.float32, full(np.int64)])
def test_a_long_row_has_numpys_stable_order(dtype):
    x = (np.random.default_rng(0).normal(size=70_001) * 1000).astype(dtype)
    x[::7] = x[0]
    np.testing.assert_array_equal(table().argsort(x), np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(table().sort(x), np.sort(x))


def test_rows_about_what_registers_hold_are_in_order():
    device, rng = cpu_device("simd"), np.random.default_rng(12)
    (variant,) = (v for v in ops.get("sort").variants if v.name == "partition")
    for n in (127, 128, 129, 208, 209, 256, 257, 416, 417, 500, 512, 513):
        x = np.round(rng.normal(size=(2, n)) * np.float32([[1e6], [3]])).astype(np.float32)
        spec = TensorSpec(x.shape, as_dtype("f32"))
        (found,) = run_variant(variant, NodeSpec((spec,), (spec,), {}), device, (x,), run_time_sizes=True)
        np.testing.assert_array_equal(found, np.sort(x, -1))


@pytest.mark.soak
def test_a_row_of_a_million_has_numpys_stable_order():
    x = np.random.default_rng(0).normal(size=1_000_003).astype(np.float32)
    np.testing.assert_array_equal(table().argsort(x), np.argsort(x, kind="stable"))
    values, places = table().top_k(x, k=len(x))
    np.testing.assert_array_equal(places, len(x) - 1 - np.argsort(x[::-1], kind="stable")[::-1])
    np.testing.assert_array_equal(values, x[places])


@pytest.mark.full
def test_every_index_comes_once_whatever_the_bits():
    x = (
        np.random.default_rng(1).integers(0, 2**32, (4, 300), np.uint32).view(np.float32)
    )  # NaNs with payloads among them
    for descending in (False, True):
        order = table().argsort(x, descending=descending)
        np.testing.assert_array_equal(np.sort(order, axis=-1), np.broadcast_to(np.arange(300), (4, 300)))


def test_a_sort_keeps_the_bits_of_zeros_and_subnormals():
    x = np.float32([0.0, -0.0, 1e-45, -1e-45, 0.0, -0.0])
    assert table().sort(x).tobytes() == np.float32([-1e-45, -0.0, -0.0, 0.0, 0.0, 1e-45]).tobytes()


def test_top_k_gives_the_bits_of_the_elements():
    x = odd_rows(np.random.default_rng(2))
    values, places = table().top_k(x, k=9)
    assert values.tobytes() == np.take_along_axis(x, places.astype(np.int64), -1).tobytes()


def test_any_view_is_sorted_along_any_axis():
    x = np.random.default_rng(3).integers(-9, 9, (6, 8, 10))[::2, ::-1].transpose(2, 0, 1)
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(table().sort(x, axis=axis), np.sort(x, axis))


@pytest.mark.parametrize(
    ("name", "attrs"), [full("sort", {}), full("argsort", {"descending": True}), ("top_k", {"k": 5})]
)
def test_all_variants_agree_to_the_bit_for_any_lanes(name, attrs):
    x = odd_rows(np.random.default_rng(4))
    op, specs = ops.get(name), (TensorSpec(x.shape, as_dtype(x.dtype)),)
    node = NodeSpec(specs, op.infer(specs, attrs), attrs)
    made = {
        tuple(y.tobytes() for y in run_variant(variant, node, cpu_device(backend), (x,)))
        for variant in op.variants
        for backend in {"scalar", "simd"} & variant.backends
    }
    assert len(made) == 1


def node_of(name, x, attrs):
    op, specs = ops.get(name), (TensorSpec(x.shape, as_dtype(x.dtype)),)
    return NodeSpec(specs, op.infer(specs, attrs), attrs)


def agrees_by_lane(name, x, attrs, device):
    (variant,) = (v for v in ops.get(name).variants if v.name == "lanes")
    node = node_of(name, x, attrs)
    assert variant.supports(node, device) is None
    for found, wanted in zip(
        run_variant(variant, node, device, (x,)), ops.get(name).reference((x,), attrs), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("lanes", [4, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2, 8, 16))])
@pytest.mark.parametrize(
    ("rows", "dim", "k"),
    [
        (5, 37, 20),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in ((5, 500, 300), (1, 1, 1), (17, 144, 16), (33, 300, 17), (3, 1100, 600))
        ),
    ],
)
def test_rows_in_lanes_of_any_number_are_sorted(lanes, rows, dim, k):
    device = replace(cpu_device(), lanes=lanes)
    x = np.random.default_rng(5).integers(-9, 9, (rows, dim)).astype(np.float32)
    agrees_by_lane("top_k", x, {"k": k}, device)
    agrees_by_lane("sort", x.T if rows > 1 else x, {"axis": 0}, device)


@pytest.mark.parametrize("largest", [True, full(False)])
def test_a_few_of_a_row_are_ranked_or_searched_for(largest):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(5, 3000)).astype(np.float32)  # few within the bound
    x[1], x[2, ::2], x[3, ::3], x[4] = 1.5, -np.inf, np.nan, np.round(x[4])  # many
    for k in (1, 40, 500):
        values, places = table().top_k(x, k=k, largest=largest)
        expected = ops.get("top_k").reference((x,), {"k": k, "largest": largest})
        np.testing.assert_array_equal(values, expected[0])
        np.testing.assert_array_equal(places, expected[1])


LONGER = [
    ("sort", {}, "f32", (3, 64 * 37 + 5), 4),
    ("sort", {"descending": True}, "f32", (1, 16_384), 8),
    ("sort", {}, "f16", (1, 49_152), 8),
    ("sort", {}, "f64", (2, 50_001), 8),
    ("sort", {}, "i64", (1, 5000), 16),
    ("sort", {}, "u64", (2, 1025), 4),
    ("sort", {}, "i8", (1, 40_000), 16),
    ("argsort", {}, "f32", (1, 50_001), 8),
    ("argsort", {"descending": True}, "bf16", (2, 3001), 16),
    ("argsort", {}, "i32", (1, 65), 4),
    ("argsort", {"descending": True}, "u8", (1, 16_384), 8),
]


@pytest.mark.parametrize(
    ("name", "attrs", "dtype", "shape", "lanes"),
    [
        ("sort", {}, "f32", (2, 4500), 8),
        ("argsort", {}, "f32", (2, 513), 4),
        *(pytest.param(*case, marks=pytest.mark.full) for case in LONGER),
    ],
)
def test_merged_runs_have_the_stable_order(name, attrs, dtype, shape, lanes):
    device, rng = replace(cpu_device(), lanes=lanes), np.random.default_rng(6)
    x = (rng.normal(size=shape) * 50).round().astype(as_dtype(dtype).numpy)
    if as_dtype(dtype).is_float:
        x[:, ::7], x[:, 1::11], x[:, 2::13], x[0, 3:5] = np.nan, np.inf, -np.inf, (-0.0, 0.0)
    (variant,) = (v for v in ops.get(name).variants if v.name == "merges")
    node = node_of(name, x, attrs)
    assert variant.supports(node, device) is None
    wanted = ops.get(name).reference((x,), attrs)
    for found, right in zip(run_variant(variant, node, device, (x,)), wanted, strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 70_000), (1, 1 << 22)])
def test_long_rows_are_split_at_pivots(shape, threads):
    if cpu_device().lanes < 16:
        pytest.skip("wants AVX-512")
    x = np.broadcast_to(np.float32(0), shape)
    with for_workers(threads):
        for name in ("sort", "argsort"):
            chosen = alternatives(ops.get(name), node_of(name, x, {}), "simd")[0][0].name
            assert chosen == ("partition" if threads == 1 else "buckets")


def hard_rows(rng, n):
    """Rows whose words are few, ordered, or crowded at an end, so that pivots from samples split them badly."""
    x = rng.normal(size=n)
    powers = np.ldexp(1.0, -(np.arange(n) % 120))
    crowded = np.where(np.arange(n) % 97 == 0, x, 1.0 + 1e-7 * np.arange(n))
    rows = [x, np.sort(x), -np.sort(x), np.full(n, 3.0), np.round(x), powers, crowded]
    rows.append(np.where(np.arange(n) % 3 == 0, np.nan, np.where(np.arange(n) % 2 == 0, -0.0, 0.0)))
    return np.stack(rows).astype(np.float32)


SPLIT = [
    ("sort", {}, "f32", 4097, 16),
    ("sort", {"descending": True}, "f32", 70_001, 8),
    ("sort", {}, "i64", 40_000, 16),
    ("sort", {}, "u64", 129, 16),
    ("argsort", {}, "f32", 4097, 8),
    ("argsort", {"descending": True}, "bf16", 3001, 16),
]
MORE_SPLIT = [
    ("sort", {}, "f64", 5000, 8),
    ("sort", {}, "i8", 3000, 16),
    ("argsort", {}, "f32", 70_001, 16),
    ("argsort", {}, "u8", 60_001, 16),
]


@pytest.mark.parametrize(
    ("name", "attrs", "dtype", "n", "lanes"),
    [
        ("sort", {}, "f32", 1500, 16),
        *(full(*case) for case in (("sort", {}, "f32", 1500, 8), ("argsort", {"to": "i64"}, "f32", 1500, 8), *SPLIT)),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE_SPLIT),
    ],
)
def test_rows_split_at_pivots_have_the_stable_order(name, attrs, dtype, n, lanes):
    device, rows = replace(cpu_device(), lanes=lanes), hard_rows(np.random.default_rng(8), n)
    numpy = as_dtype(dtype).numpy
    x = rows.astype(numpy) if as_dtype(dtype).is_float else np.nan_to_num(rows * 50).astype(np.int64).astype(numpy)
    node, wanted = node_of(name, x, attrs), ops.get(name).reference((x,), attrs)
    for variant in (v for v in ops.get(name).variants if v.name in ("partition", "buckets")):
        if variant.name == "buckets" and n < 256:
            assert variant.supports(node, device) is not None
            continue
        assert variant.supports(node, device) is None
        made = run_variant(variant, node, device, (x,), run_time_sizes=lanes == cpu_device().lanes)
        for found, right in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("variant", [full("partition"), "buckets"])
@pytest.mark.parametrize("dtype", [np.float32, full(np.float16), full(np.int64)])
@pytest.mark.full
def test_some_active_rows_are_split_at_pivots(variant, dtype):
    op, rows = ops.get("sort"), Extent("R", 5)
    (tried,) = (v for v in op.variants if v.name == variant)
    x = (np.random.default_rng(11).normal(size=(5, 600)) * 100).astype(dtype)
    specs = (TensorSpec((rows, 600), as_dtype(x.dtype)),)
    check_bits(op, tried, cpu_device("simd"), Sample("", (x,), {}, specs, {rows: 3}))


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_in_buckets_has_the_stable_order(threads):
    rng, graph = np.random.default_rng(9), Graph()
    x = np.concatenate([rng.normal(size=60_000), np.full(90_000, 0.5), rng.normal(size=60_001)]).astype(np.float32)
    given = graph.input("x", x.shape, "f32")
    graph.output("sorted", F.sort(given))
    graph.output("order", F.argsort(given))
    found = compile(graph, threads=threads).run(x=x)
    np.testing.assert_array_equal(found["sorted"], np.sort(x))
    np.testing.assert_array_equal(found["order"], np.argsort(x, kind="stable"))


@pytest.mark.parametrize(
    ("shape", "lanes"),
    [((1024, 32), True), ((1024, 128), True), ((64, 512), True), ((1, 20), False), ((1, 70_000), False)],
)
def test_many_short_rows_are_sorted_a_row_per_lane(shape, lanes):
    if cpu_device().lanes < 16:
        pytest.skip("wants AVX-512")
    x = np.broadcast_to(np.float32(0), shape)
    for name, attrs, others in (("sort", {}, ()), ("argsort", {}, ()), ("top_k", {"k": 9}, ("few",))):
        chosen = alternatives(ops.get(name), node_of(name, x, attrs), "simd")[0][0].name
        assert (chosen in ("lanes", *others)) == lanes or chosen in others, (name, chosen)


@pytest.mark.oracle
@pytest.mark.parametrize("descending", [False, True])
def test_references_agree_with_torch(descending):
    torch = pytest.importorskip("torch")
    for sample in ops.get("argsort").samples():
        (x,) = sample.inputs
        if x.dtype.name not in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "float16"):
            continue
        axis = sample.attrs["axis"]
        values, places = torch.sort(torch.from_numpy(x), dim=axis, descending=descending, stable=True)
        attrs = {"axis": axis, "descending": descending}
        np.testing.assert_array_equal(ops.get("argsort").reference((x,), attrs)[0], places)
        np.testing.assert_array_equal(ops.get("sort").reference((x,), attrs)[0], values)
        k = (x.shape[axis] + 1) // 2
        top = torch.topk(torch.from_numpy(x), k, axis, largest=descending).values
        np.testing.assert_array_equal(
            ops.get("top_k").reference((x,), {"k": k, "axis": axis, "largest": descending})[0], top
        )
