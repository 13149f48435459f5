"""Calls of new shapes compile nothing, give the bits of kernels for one shape, and those of one thread on several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from camshaft import DispatchTable, ops, table
from camshaft.backends.cpu.device import counts, cpu_device
from camshaft.eager import elementwise_call
from camshaft.eager.shapes import launches, runners
from camshaft.errors import ShapeError
from camshaft.ops.op import Sample
from camshaft.validation.validate import check_sample
from tests.support.how_to_validate import same_process
from tests.support.quick import quick_of

__all__ = ["same_process"]

Array = np.ndarray[Any, Any]
F32 = np.float32
RNG = np.random.default_rng(5)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No workers, who load code of their own."""
    for module in (runners, elementwise_call):
        monkeypatch.setattr(module, "eager_threads", lambda: 1)


def draw(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(F32)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def rms_norm(x: Array, w: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w


def layer_norm(x: Array, w: Array, b: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


# Inputs of an op from three random sizes; what NumPy computes; attributes; kernels at most: for short and long rows, or for
# tiles and few rows or columns, or for copies and strides.
Inputs = Callable[[int, int, int], tuple[Array, ...]]
CALLS: dict[str, tuple[str, Inputs, Callable[..., Array], Mapping[str, Any], int]] = {
    "softmax": ("softmax", lambda i, j, k: (draw(j, k),), softmax, {}, 2),
    "softmax of three axes": ("softmax", lambda i, j, k: (draw(i, j, k),), softmax, {}, 2),
    "rms_norm": ("rms_norm", lambda i, j, k: (draw(j, k), draw(k)), rms_norm, {"eps": 1e-5}, 2),
    "layer_norm": ("layer_norm", lambda i, j, k: (draw(j, k), draw(k), draw(k)), layer_norm, {"eps": 1e-5}, 2),
    "sum": ("sum", lambda i, j, k: (draw(j, k),), lambda x: x.sum(1), {"axes": 1}, 1),
    "sum over 0": ("sum", lambda i, j, k: (draw(j, k),), lambda x: x.sum(0), {"axes": 0}, 1),
    "sum over 0 and 2": ("sum", lambda i, j, k: (draw(i, j, k),), lambda x: x.sum((0, 2)), {"axes": (0, 2)}, 1),
    "mean": ("mean", lambda i, j, k: (draw(j, k),), lambda x: x.mean(1), {"axes": 1}, 1),
    "max": ("max", lambda i, j, k: (draw(j, k),), lambda x: x.max(1), {"axes": 1}, 1),
    "argmax": ("argmax", lambda i, j, k: (draw(j, k),), lambda x: x.argmax(1), {}, 1),
    "dot": ("dot", lambda i, j, k: (draw(k), draw(k)), np.dot, {}, 1),
    "add of a row": ("add", lambda i, j, k: (draw(j, k), draw(k)), np.add, {}, 1),
    "add of a column": ("add", lambda i, j, k: (draw(j, k), draw(j, 1)), np.add, {}, 1),
    "add of both": ("add", lambda i, j, k: (draw(j, 1), draw(1, k)), np.add, {}, 1),
    "product in three axes": ("multiply", lambda i, j, k: (draw(i, 1, k), draw(1, j, k)), np.multiply, {}, 1),
    "add of part of rows": ("add", lambda i, j, k: (draw(j, k + 3)[:, :k], draw(j, k)), np.add, {}, 2),
    "transpose": ("transpose", lambda i, j, k: (draw(j, k),), np.transpose, {}, 4),
    "concat": ("concat", lambda i, j, k: (draw(j, k), draw(j, i)), lambda *x: np.concatenate(x, 1), {"axis": 1}, 1),
    "outer": ("outer", lambda i, j, k: (draw(j), draw(k)), np.outer, {}, 1),
    "gather": (
        "gather",
        lambda i, j, k: (draw(j, k), RNG.integers(0, j, i, dtype=np.int32)),
        lambda x, rows: x[rows],
        {},
        1,
    ),
    "embedding": (
        "embedding",
        lambda i, j, k: (RNG.integers(0, j, i, dtype=np.int32), draw(j, k)),
        lambda ids, x: x[ids],
        {},
        1,
    ),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", quick_of(CALLS, [*CALLS][::2]))
def test_new_shapes_compile_nothing(name: str) -> None:
    op, inputs, wanted, attrs, most = CALLS[name]
    call = getattr(table(), op)
    call(*inputs(3, 4, 50), **attrs)  # what proves the op compiles too
    before = counts.compiled + counts.loaded
    for _ in range(50):
        given = inputs(*(int(n) for n in RNG.integers(2, (20, 60, 400))))
        want = wanted(*(x.astype(np.float64) if x.dtype == F32 else x for x in given))
        np.testing.assert_allclose(call(*given, **attrs), want, rtol=2e-5, atol=2e-6)
    assert counts.compiled + counts.loaded - before < most


@pytest.mark.usefixtures("alone")
def test_slices_of_new_shapes_compile_nothing() -> None:
    call = table().slice
    call(draw(20, 30), starts=(1, 2), sizes=(3, 4))
    before = counts.compiled + counts.loaded
    for _ in range(50):
        x, (i, j) = draw(*RNG.integers(20, 90, 2)), RNG.integers(0, 10, 2)
        rows, columns = (int(n) for n in RNG.integers(2, 10, 2))
        got = call(x, starts=(int(i), int(j)), sizes=(rows, columns))
        np.testing.assert_array_equal(got, x[i : i + rows, j : j + columns])
    assert counts.compiled + counts.loaded == before


def cases(columns: int) -> list[tuple[str, tuple[Array, ...], dict[str, Any]]]:
    n = columns
    made: list[tuple[str, tuple[Array, ...], dict[str, Any]]] = [
        ("softmax", (draw(3, n),), {}),
        ("rms_norm", (draw(3, n), draw(n)), {"eps": 1e-5}),
        ("rms_norm", (draw(3, n), draw(n)), {"eps": 1e-5, "to": "bf16"}),
        ("layer_norm", (draw(1, n), draw(n), draw(n)), {"eps": 1e-5}),
        ("layer_norm", (draw(3, n), draw(n), draw(n)), {"eps": 1e-5}),
        ("dot", (draw(n), draw(n)), {}),
        ("dot", (draw(n).astype(np.float64), draw(n).astype(np.float64)), {}),
        ("add", (draw(3, n), draw(n)), {}),
        ("multiply", (draw(n, 3), draw(n, 1)), {}),
        ("divide", (draw(3, 1, n), draw(1, 5, n)), {}),
        ("transpose", (draw(3, n),), {}),
        ("transpose", (draw(9, n),), {}),
        ("embedding", (np.array([2, 0], np.int32), draw(3, n)), {}),
    ]
    for op in ("sum", "mean", "max"):
        made += [
            (op, (draw(3, n),), {"axes": 1}),
            (op, (draw(n, 5),), {"axes": 0}),
            (op, (draw(3, n, 5),), {"axes": (0, 2)}),
        ]
    return made


@pytest.mark.parametrize("backend", ["simd", pytest.param("scalar", marks=pytest.mark.full)])
@pytest.mark.parametrize("columns", quick_of([1, 2, 15, 17, 33, 64, 65, 256, 257], [17]))
def test_bits_are_those_of_kernels_for_one_shape(columns: int, backend: str) -> None:
    device = cpu_device(backend)
    for name, inputs, attrs in cases(columns):
        op = ops.get(name)
        shapes = [x.shape for x in inputs]
        variant = next(v for v in op.variants if backend in v.backends)
        result = check_sample(op, variant, device, Sample(f"{shapes} {attrs}", inputs, attrs))  # compares both forms
        # The tolerance of bf16 is a mean over many elements; of a few, each may be off by half a unit in the last place.
        assert result.max_error <= (2.0**-16 if "to" in attrs else result.tolerance), (name, shapes)


def test_bits_are_those_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(t: DispatchTable) -> list[bytes]:
        x, w = np.linspace(-3, 5, 129 * 257, dtype=F32).reshape(129, 257), np.linspace(1, 2, 257, dtype=F32)
        calls = (
            t.softmax(x),
            t.sum(x, axis=0),
            t.sum(x, axis=1),
            t.rms_norm(x, w, eps=1e-5),
            t.add(x, w),
            t.transpose(x),
        )
        return [y.tobytes() for y in calls]

    alone = results(DispatchTable(None))
    for module in (runners, elementwise_call):
        monkeypatch.setattr(module, "SHARE_NS", 0.0)
    for module in (runners, elementwise_call, launches):
        monkeypatch.setattr(module, "eager_threads", lambda: 3)
    assert results(DispatchTable(None)) == alone


def test_views_are_read_where_they_are() -> None:
    """Above the size to which natively made copies go."""
    x, row = draw(3, 70, 300), draw(300)
    views: dict[str, Array] = {
        "part of rows": x[:, :, :256],
        "rows backwards": x[:, ::-1],
        "columns backwards": x[:, :, ::-1],
        "every second": x[:, ::2, ::2],
        "transposed": x.transpose(2, 0, 1),
        "in Fortran's order": np.asfortranarray(x),
        "a row for all": np.broadcast_to(row, x.shape),
        "a column for all": np.broadcast_to(x[:, :, :1], x.shape),
        "of one axis": x[1:2],
        "a part of a structure": np.zeros((70, 300), [("a", "i1"), ("b", F32)])["b"],
    }
    for name, view in views.items():
        others = (view.copy(), view[:1], view[..., :1], view)
        for other in others:
            for a, b in ((view, other), (other, view)):
                np.testing.assert_array_equal(table().subtract(a, b), a - b, err_msg=name)
                out = np.full_like(view.copy(), np.nan)
                assert table().subtract(a, b, out=out) is out
                np.testing.assert_array_equal(out, a - b, err_msg=name)


def test_an_output_that_overlaps_an_operand_is_as_numpys() -> None:
    x = draw(130, 300)
    for ours, theirs in ((x[1:], x[:-1]), (x[:, :-1], x[:, 1:]), (x[::-1], x), (x[:, 5:], x[:, 5:])):
        wanted, given = x.copy(), x.copy()
        place = [_same_view(given, x, v) for v in (ours, theirs)]
        place_wanted = [_same_view(wanted, x, v) for v in (ours, theirs)]
        np.add(place_wanted[1], place_wanted[1][:1], out=place_wanted[0])
        table().add(place[1], place[1][:1], out=place[0])
        np.testing.assert_array_equal(given, wanted)


def _same_view(base: Array, like: Array, view: Array) -> Array:
    """The view of `base` that `view` is of `like`."""
    start = view.__array_interface__["data"][0] - like.__array_interface__["data"][0]
    return np.ndarray(view.shape, view.dtype, base, start, view.strides)


def test_arrays_of_many_axes_have_sizes_enough() -> None:
    x = np.arange(2**22, dtype=F32).reshape((2,) * 22)
    axes = tuple(range(0, 22, 2)) + tuple(range(1, 22, 2))
    np.testing.assert_array_equal(table().transpose(x, axes=axes), x.transpose(axes))


def test_an_empty_axis_is_named_in_the_error() -> None:
    x = np.zeros((0, 3), F32)
    with pytest.raises(ShapeError, match="no empty axis"):
        table().residual_norm(x, x, np.ones(3, F32), eps=1e-5)
    with pytest.raises(ShapeError, match="out of bounds for axis 0 with size 0"):
        table().gather(x, np.zeros(1, np.int32))


def test_a_norm_by_channel_of_an_empty_batch_is_empty() -> None:
    x, w = np.zeros((0, 4, 3), F32), np.ones(4, F32)
    assert table().group_norm(x, w, w, groups=2).shape == table().layer_norm_2d(x, w, w).shape == x.shape
    with pytest.raises(ShapeError, match="groups above 0 that divide the 4 channels"):
        table().group_norm(x, w, w, groups=3)
    with pytest.raises(ShapeError, match=r"wanted w of f32\[4\]"):
        table().layer_norm_2d(x, w[:3], w)
