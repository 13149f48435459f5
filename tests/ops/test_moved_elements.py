"""Ops that move elements: against NumPy, their order of writes, and arrays that are empty or not contiguous."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.dtypes import DTYPES, f32, i32
from camshaft.errors import CamshaftError, ShapeError
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.selection.select import select
from camshaft.validation.validate import check_sample
from tests.support.devices.simulated_gpu import SimulatedDevice

# The stubs have the ops' own arguments; NumPy's are taken besides.
CALLS: Any = cs
X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap", "constant"])
def test_pad_is_numpys(mode: str) -> None:
    for n in (1, 2, 5):
        x = np.arange(n * 2).reshape(n, 2)
        for widths in (((0, 3), (7, 0)), ((9, 1), (0, 0)), ((2, 2), (2, 2))):
            (y,) = ops.get("pad").reference([x], {"pad_width": widths, "mode": mode})
            np.testing.assert_array_equal(y, np.pad(x, widths, mode))  # type: ignore[call-overload]


def test_torchs_names_of_modes_are_the_same() -> None:
    infer, (x,) = ops.get("pad").reference, (X,)
    for name, same in (("replicate", "edge"), ("circular", "wrap")):
        one, two = (infer([x], {"pad_width": 2, "mode": mode})[0] for mode in (name, same))
        np.testing.assert_array_equal(one, two)


def test_the_last_of_duplicates_is_put() -> None:
    rows = np.array([1, 0, 1, 1], np.int32)
    made = cs.put(np.zeros(3, np.float32), rows, np.arange(4, dtype=np.float32))
    assert made.tolist() == [1, 3, 0]


def test_scatter_add_adds_in_the_order_of_the_indices() -> None:
    values = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    wanted = np.float32(0)
    for value in values:
        wanted = np.float32(wanted + value)
    made = cs.scatter_add(np.zeros(2, np.float32), np.zeros(4, np.int64), values)
    assert made.tolist() == [wanted, 0]


@pytest.mark.parametrize(
    ("name", "attrs"), [("transpose", {"axes": ()}), ("flip", {}), ("slice", {"starts": (), "sizes": ()})]
)
def test_references_keep_a_tensor_without_axes(name: str, attrs: dict[str, Any]) -> None:
    (y,) = ops.get(name).reference([np.array(3.0)], attrs)
    assert (y.shape, y.tolist()) == ((), 3.0)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_the_variants_of_scatter_add_give_the_same_bits(dtype: str) -> None:
    """Also for duplicates, negative indices and those out of bounds, where an axis in the middle is indexed."""
    rng, numpy = np.random.default_rng(3), DTYPES[dtype].numpy
    x, values = (rng.integers(-100, 100, (2, n, 3)).astype(numpy) / 7 for n in (4, 30))
    given = x.astype(numpy), rng.integers(-6, 7, (2, 30, 3)), values.astype(numpy)
    op, sample = ops.get("scatter_add"), Sample("duplicates", given, {"axis": 1})
    made = [check_sample(op, variant, SimulatedDevice(32), sample) for variant in op.variants]
    assert all(found.max_error <= found.tolerance for found in made)
    assert made[0].outputs[0].tobytes() == made[1].outputs[0].tobytes()


def test_rows_are_searched_where_that_is_less_work() -> None:
    """A search reads all indices for each row, so that of 10^6 rows and indices it is slower than one after the other."""
    op = ops.get("scatter_add")

    def variant(shape: tuple[int, ...], count: int, axis: int) -> str:
        indices, values = ((*shape[:axis], count, *(rest * (n - 1) + 1 for n in shape[axis + 1 :])) for rest in (0, 1))
        specs, attrs = (TensorSpec(shape, f32), TensorSpec(indices, i32), TensorSpec(values, f32)), {"axis": axis}
        return select(op, NodeSpec(specs, op.infer(specs, attrs), attrs), "null:ptx").variant.name

    assert variant((4096, 576), 4088, 0) == variant((7,), 20, 0) == "row_per_program"
    assert variant((1_000_000,), 1_000_000, 0) == variant((4096, 49152), 1, 1) == "in_order"
    assert variant((49152, 576), 4096, 0) == "in_order"


@pytest.mark.parametrize("name", ["take_along_axis", "put", "scatter_add", "one_hot"])
def test_a_plan_refuses_an_index_out_of_bounds(name: str) -> None:
    graph = cs.Graph()
    x, rows = graph.input("x", (4,), "f32"), graph.input("rows", (2,), "i32")
    given: dict[str, Any] = {
        "take_along_axis": lambda: cs.take_along_axis(x, rows),
        "put": lambda: cs.put(x, rows, x[:2]),
        "scatter_add": lambda: cs.scatter_add(x, rows, x[:2]),
        "one_hot": lambda: cs.one_hot(rows, num_classes=4),
    }
    graph.output("y", given[name]())
    zeros = np.zeros(4, np.float32)
    with cs.compile(graph, threads=1) as plan:
        plan.run(rows=np.array([0, 3], np.int32), x=zeros)
        with pytest.raises(CamshaftError, match="rows"):
            plan.run(rows=np.array([0, 4], np.int32), x=zeros)


def test_arrays_need_not_be_contiguous() -> None:
    x = X.T[::2, ::-1]
    np.testing.assert_array_equal(cs.pad(x, pad_width=1, mode="edge"), np.pad(x, 1, "edge"))
    np.testing.assert_array_equal(cs.tile(x, reps=(2, 1)), np.tile(x, (2, 1)))
    rows = np.array([[2, 0]] * 3, np.int64)[:, ::-1]
    np.testing.assert_array_equal(cs.take_along_axis(x, rows, axis=1), np.take_along_axis(x, rows, 1))


def test_numpys_arguments_by_position() -> None:
    np.testing.assert_array_equal(CALLS.flip(X, 0), np.flip(X, 0))
    np.testing.assert_array_equal(CALLS.roll(X, 2, 1), np.roll(X, 2, 1))
    np.testing.assert_array_equal(CALLS.repeat(X, 3, 1), np.repeat(X, 3, 1))
    np.testing.assert_array_equal(CALLS.repeat(X, 2), np.repeat(X, 2))
    np.testing.assert_array_equal(CALLS.tile(X, (2, 1)), np.tile(X, (2, 1)))
    np.testing.assert_array_equal(CALLS.tril(X, -1), np.tril(X, -1))
    np.testing.assert_array_equal(CALLS.tril(X, 2**31 - 1), X)
    np.testing.assert_array_equal(CALLS.triu(X, 1 << 40), np.zeros_like(X))
    np.testing.assert_array_equal(CALLS.pad(X, ((1, 0), (0, 2)), "wrap"), np.pad(X, ((1, 0), (0, 2)), "wrap"))
    np.testing.assert_array_equal(CALLS.broadcast_to(X[:1], (4, 6)), np.broadcast_to(X[:1], (4, 6)))
    rows = np.array([[1], [0], [2], [3]])
    np.testing.assert_array_equal(CALLS.take_along_axis(X, rows, 1), np.take_along_axis(X, rows, 1))


@pytest.mark.parametrize(
    ("name", "attrs"),
    [("flip", {}), ("roll", {"shift": 1}), ("tile", {"reps": 2}), ("repeat", {"repeats": 2, "axis": 1}), ("triu", {}),
     ("pad", {"pad_width": 1})],
)  # fmt: skip
def test_arrays_without_elements(name: str, attrs: dict[str, Any]) -> None:
    x = np.empty((0, 3), np.float32)
    np.testing.assert_array_equal(getattr(cs, name)(x, **attrs), getattr(np, name)(x, **attrs))


def test_what_leaves_nothing() -> None:
    assert CALLS.tile(X, 0).shape == (4, 0)
    assert CALLS.repeat(X, 0, 0).shape == (0, 6)
    none = np.empty((4, 0), np.int64)
    assert CALLS.take_along_axis(X, none, 1).shape == (4, 0)
    np.testing.assert_array_equal(CALLS.put(X, none, np.empty((4, 0), np.float32)), X)
    assert CALLS.one_hot(np.empty((0,), np.int64), num_classes=3).shape == (0, 3)


def test_wrong_arguments_name_the_op() -> None:
    with pytest.raises(ShapeError, match="tile"):
        CALLS.tile(X, -1)
    with pytest.raises(ShapeError, match="flip"):
        CALLS.flip(X, 2)
