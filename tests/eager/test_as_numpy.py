"""Ops on arrays accept what NumPy's functions accept, and give the same dtypes, shapes and values: one generated table.

Every op that NumPy has, for every dtype, at ranks from 0 to 3 and without elements; then the ways to write a call.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import camshaft as cs
from camshaft import ops, table
from camshaft.errors import ArrayTypeError, CamshaftError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [BF16, *map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"))]
SHAPES = ((), (7,), (0,), (3, 1, 5), (2, 0, 3))
_SAME = "abs exp expm1 log log1p sqrt square reciprocal tanh tan sin cos isnan ceil trunc floor logical_not"
UNARY = {"negate": "negative", "round": "rint", **{name: name for name in _SAME.split()}}  # camshaft's name: NumPy's
_BINARY = """
add subtract multiply divide minimum maximum floor_divide remainder power equal not_equal less less_equal greater greater_equal
logical_and logical_or logical_xor
"""
BINARY = _BINARY.split()
# The stubs have the ops' own arguments.
CALLS: Any = cs
FOLDS = ["sum", "prod", "max", "min", "mean", "argmax", "argmin"]
TOLERANCE = {"f2": 2e-3, "f4": 2e-6, "f8": 1e-12}


def drawn(dtype: np.dtype, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Small numbers above 0, so that no op divides by 0 or overflows, and nothing is near a tie."""
    values = np.random.default_rng(seed).integers(1, 5, shape)
    return (values + 0.3 * (dtype.kind in "fV")).astype(dtype) if dtype.kind != "b" else values > 2


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result, or the error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError, IndexError, CamshaftError) as error:
            return error


def agree(got: Any, wanted: Any, what: str) -> None:
    if isinstance(wanted, Exception):
        assert isinstance(got, CamshaftError), f"{what}: gave {got!r}; NumPy raises {wanted!r}"
        return
    assert not isinstance(got, Exception), f"{what}: {got!r}; NumPy gives {np.asarray(wanted).dtype}"
    if isinstance(wanted, list | tuple):
        assert len(got) == len(wanted), what
        for one, other in zip(got, wanted, strict=True):
            agree(one, other, what)
        return
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), what
    tolerance = 2e-2 if got.dtype == BF16 else TOLERANCE.get(got.dtype.str[1:], 0)
    wide = (x.astype(np.float64) if x.dtype.kind in "fV" else x for x in (got, wanted))
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance, err_msg=what)


def with_dtypes(names: list[str], few: dict[str, str]) -> list:
    """Every name with every dtype; those of `few` in the quick run, a part behind `full`, all behind `soak`."""

    def marks(name: str, dtype: np.dtype) -> Any:
        if few.get(name) == dtype.str[1:]:
            return ()
        return pytest.mark.full if (names.index(name) + DTYPES.index(dtype)) % 13 == 0 else pytest.mark.soak

    return [pytest.param(n, d, id=f"{n}-{d}", marks=marks(n, d)) for n in names for d in DTYPES]


@pytest.mark.parametrize(("name", "dtype"), with_dtypes(list(UNARY), {"square": "i8", "isnan": "u2"}))
def test_functions(name: str, dtype: np.dtype) -> None:
    for shape in SHAPES:
        x = drawn(dtype, shape)
        agree(outcome(getattr(table(), name), x), outcome(getattr(np, UNARY[name]), x), f"{shape}")


@pytest.mark.parametrize(("name", "dtype"), with_dtypes(BINARY, {"add": "b1"}))
def test_functions_of_two(name: str, dtype: np.dtype) -> None:
    others = [dtype, np.dtype("f4")] if (name, dtype.kind) == ("add", "b") else DTYPES
    for other in others:
        for shape in SHAPES:
            pair = drawn(dtype, shape), drawn(other, shape[-1:], 1)
            got, wanted = (outcome(getattr(space, name), *pair) for space in (table(), np))
            if "exactly" in str(got):  # comparisons that NumPy does in a dtype that does not hold both
                continue
            agree(got, wanted, f"{shape} with {other}")


@pytest.mark.parametrize(("name", "dtype"), with_dtypes(FOLDS, {"argmax": "f4"}))
def test_folds(name: str, dtype: np.dtype) -> None:
    for shape in SHAPES:
        x = drawn(dtype, shape)
        if dtype == BF16 and name == "mean":
            continue  # NumPy sums bf16 in bf16
        for axis in (None, 0, -1):
            got, wanted = (outcome(getattr(space, name), x, axis=axis) for space in (table(), np))
            if not shape and axis is not None:
                continue  # some of NumPy's functions take such an axis, others do not
            agree(got, wanted, f"{shape} over {axis}")


MOVES = {
    "copy": (lambda s, x: s.copy(x), lambda x: x.copy()),
    "cast": (lambda s, x: s.cast(x, "float64"), lambda x: x.astype("float64")),
    "transpose": (lambda s, x: s.transpose(x, tuple(range(x.ndim))[::-1]), np.transpose),
    "concat": (lambda s, x: s.concat([x, x.astype("f8")]), lambda x: np.concatenate([x, x.astype("f8")])),
    "split": (lambda s, x: s.split(x, 1), lambda x: np.split(x, 1)),
    "where": (lambda s, x: s.where(x > 2, x, x), lambda x: np.where(x > 2, x, x)),
    "gather": (lambda s, x: s.gather(x, np.array([[-1], [0]])), lambda x: x[np.array([[-1], [0]])]),
    "embedding": (lambda s, x: s.embedding([0, -1], x), lambda x: x[np.array([0, -1])]),
    "outer": (lambda s, x: s.outer(x, x), lambda x: np.outer(x, x)),
    "clip": (lambda s, x: s.clip(x, None, x), lambda x: np.minimum(x, x)),
    "sort": (lambda s, x: s.sort(x, 0), lambda x: np.sort(x, 0)),
    # np.argsort gives 0 for an array without axes, np.sort an error
    "argsort": (
        lambda s, x: s.argsort(x, 0, to="i64"),
        lambda x: (np.argsort if x.ndim else np.sort)(x, 0, kind="stable"),
    ),
    "cummax": (lambda s, x: s.cummax(x, 0), lambda x: greatest_so_far(x)),
}


def greatest_so_far(x: np.ndarray) -> np.ndarray:
    """As cummax, which takes numbers, and any array without elements."""
    if x.dtype == np.bool_ and x.size:
        raise TypeError("cummax of booleans")
    return np.maximum.accumulate(x, 0)


@pytest.mark.parametrize(
    ("name", "dtype"), with_dtypes(list(MOVES), {"gather": "i1", "concat": "u2", "transpose": "f4"})
)
def test_moves(name: str, dtype: np.dtype) -> None:
    ours, numpys = MOVES[name]
    for shape in SHAPES:
        x = drawn(dtype, shape)
        agree(outcome(ours, table(), x), outcome(numpys, x), f"{shape}")


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x.astype(np.float64))
    return (powers / powers.sum(axis, keepdims=True)).astype(x.dtype if x.dtype.kind in "fV" else np.float64)


@pytest.mark.parametrize(("name", "dtype"), with_dtypes(["softmax", "matmul"], {"softmax": "f8", "matmul": "u8"}))
def test_rows_and_products(name: str, dtype: np.dtype) -> None:
    for shape in SHAPES:
        x = drawn(dtype, shape)
        if name == "matmul" and len(shape) == 1 and dtype == BF16:
            continue  # NumPy gives f32 for two vectors
        if name == "matmul":
            wanted = outcome(np.matmul, x, np.swapaxes(x, -1, -2) if x.ndim > 1 else x)
            agree(outcome(table().matmul, x, np.swapaxes(x, -1, -2) if x.ndim > 1 else x), wanted, f"{shape}")
            continue
        for axis in range(x.ndim):
            agree(outcome(table().softmax, x, axis=axis), softmax(x, axis), f"{shape} over {axis}")


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4"])
def test_norms_along_an_axis(dtype: str) -> None:
    x, w, b = drawn(np.dtype(dtype), (3, 4, 5)), np.arange(4).astype(dtype), np.ones(4, dtype)
    wide = np.moveaxis(x.astype(np.float64), 1, -1)
    rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * w
    off = wide - wide.mean(-1, keepdims=True)
    layer = off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-5) * w + b
    returned = dtype if dtype[0] == "f" else "f8"
    agree(table().rms_norm(x, w, eps=1e-5, axis=1), np.moveaxis(rms, -1, 1).astype(returned), "rms_norm")
    agree(table().layer_norm(x, w, b, eps=1e-5, axis=1), np.moveaxis(layer, -1, 1).astype(returned), "layer_norm")


X = drawn(np.dtype("f4"), (3, 4), 3)
MASK = X > 2
# a call in NumPy's words: (camshaft's, NumPy's)
WRITTEN = {
    "concat along an axis by position": (lambda s: s.concat([X, X], 1), lambda: np.concatenate([X, X], 1)),
    "concat of one": (lambda s: s.concat([X]), lambda: np.concatenate([X])),
    "concat of nothing": (lambda s: s.concat([]), lambda: np.concatenate([])),
    "concat of other ranks": (lambda s: s.concat([X, X[0]]), lambda: np.concatenate([X, X[0]])),
    "concat of all, flat": (lambda s: s.concat([X, X[0]], axis=None), lambda: np.concatenate([X, X[0]], None)),
    "concat with an empty one": (lambda s: s.concat([X, X[:0]]), lambda: np.concatenate([X, X[:0]])),
    "transpose to a list": (lambda s: s.transpose(X, [1, 0]), lambda: X.T),
    "transpose of an axis twice": (lambda s: s.transpose(X, (0, 0)), lambda: np.transpose(X, (0, 0))),
    "split along an axis": (lambda s: s.split(X, 2, axis=1), lambda: np.split(X, 2, 1)),
    "split at indexes": (lambda s: s.split(X, [1, 3]), lambda: np.split(X, [1, 3])),
    "split unevenly": (lambda s: s.split(X, 2), lambda: np.split(X, 2)),
    "sum by position": (lambda s: s.sum(X, 0), lambda: np.sum(X, 0)),
    "sum in a dtype": (lambda s: s.sum(X, axis=0, dtype="f8"), lambda: np.sum(X, axis=0, dtype="f8")),
    "sum where": (lambda s: s.sum(X, axis=0, where=MASK), lambda: np.sum(X, axis=0, where=MASK)),
    "mean where": (lambda s: s.mean(X, axis=1, where=MASK), lambda: np.mean(X, axis=1, where=MASK)),
    "max where": (lambda s: s.max(X, axis=1, where=MASK), lambda: np.max(X, axis=1, where=MASK)),
    "max from": (
        lambda s: s.max(X, axis=1, where=MASK, initial=0),
        lambda: np.max(X, axis=1, where=MASK, initial=0),
    ),
    "clip above": (lambda s: s.clip(X, None, 3), lambda: np.clip(X, None, 3)),
    "clip below": (lambda s: s.clip(X, 3, None), lambda: np.clip(X, 3, None)),
    "clip by name": (lambda s: s.clip(X, min=2, max=3), lambda: np.clip(X, min=2, max=3)),
    "cast to a type": (lambda s: s.cast(X, np.int8), lambda: X.astype(np.int8)),
    "where=": (
        lambda s: s.add(X, X, where=MASK, out=np.zeros((3, 4), "f4")),
        lambda: np.add(X, X, where=MASK, out=np.zeros((3, 4), "f4")),
    ),
    "bf16 beside integers": (
        lambda s: s.where(MASK, X.astype(BF16), X.astype("i4")),
        lambda: np.where(MASK, X.astype(BF16).astype("f8"), X.astype("i4")),
    ),
    "an index out of nothing": (lambda s: s.gather(X[:0], [0]), lambda: X[:0][[0]]),
    "an index that is not an integer": (lambda s: s.gather(X, [0.5]), lambda: X[[0.5]]),
}
QUICK = ("sum where", "where=", "concat of one", "split unevenly", "an index out of nothing")


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.full) for c in WRITTEN])
def test_calls_as_numpy_has_them(case: str) -> None:
    ours, numpys = WRITTEN[case]
    agree(outcome(ours, table()), outcome(numpys), case)


@pytest.mark.parametrize(
    "call",
    [
        lambda t, x: t.transpose(x, 1.5),
        lambda t, x: t.transpose(x, (0, "1")),
        lambda t, x: t.transpose(x[:0], 1.5),
        lambda t, x: t.split(x, 1.5),
        lambda t, x: t.split(x, [1.5]),
        lambda t, x: t.sum(x, where=x),
        lambda t, x: t.mean(x, where=x.astype("i4")),
    ],
)
def test_what_is_no_integer_or_mask_is_refused(call: Any) -> None:
    with pytest.raises(ArrayTypeError):
        call(table(), drawn(np.dtype("f4"), (3, 4)))


@pytest.mark.parametrize("dtype", ["f4", "?"])
@pytest.mark.parametrize("name", ["take_along_axis", "put", "scatter_add", "one_hot"])
def test_indexes_that_are_no_integers_are_refused(name: str, dtype: str) -> None:
    x = np.ones((4, 4), dtype)
    given, attrs = {"take_along_axis": (2, {}), "one_hot": (1, {"num_classes": 4})}.get(name, (3, {}))
    with pytest.raises(ShapeError, match="i32 or i64"):
        getattr(table(), name)(*[x] * given, **attrs)


def test_an_axis_alone_and_an_initial_of_another_dtype() -> None:
    x = np.arange(5)
    assert np.array_equal(table().transpose(x, 0), x)
    assert table().sum(x, initial=5.5) == np.sum(x, initial=5.5)


def test_messages_have_the_callers_shapes() -> None:
    x = np.ones((2, 3), np.complex64)
    for call in (functools.partial(cs.softcap, np.ones((2, 3), "f4"), cap=0.0), functools.partial(cs.add, x, x)):
        assert "281474976710656" not in str(outcome(call))


BY_POSITION: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys((*FOLDS, "flip", "sort", "argsort", "cumsum", "softmax"), (0,)),
    "roll": (2, 1),
    "repeat": (2, 0),
    "tile": ((2, 1),),
    "pad": (((1, 0), (0, 2)),),
    "broadcast_to": ((2, 3, 4),),
    "take_along_axis": (np.zeros((1, 4), "i4"), 0),
}


def test_graphs_take_attributes_by_position() -> None:
    graph = cs.Graph()
    x = graph.input("x", (3, 4), "f4")
    for name, given in BY_POSITION.items():
        graph.output(name, getattr(cs, name)(x, *given))
    found = cs.compile(graph).run(x=X)
    for name, given in BY_POSITION.items():
        np.testing.assert_array_equal(found[name], getattr(cs, name)(X, *given), name)
    with pytest.raises(ArrayTypeError, match="got 3 arguments by position; wanted 1, then axis"):
        CALLS.sort(x, 0, 1)
    with pytest.raises(ArrayTypeError, match="got axis by position and by name"):
        CALLS.sum(x, 0, axis=1)


@pytest.mark.full
def test_graphs_take_the_same_words() -> None:
    graph = cs.Graph()
    x = graph.input("x", (3, 4), "f4")
    graph.output("y", cs.concat([cs.transpose(x, (1, 0)), cs.cast(x, "f4")[:, :3]], axis=0))
    got = cs.compile(graph).run(x=X)["y"]
    np.testing.assert_array_equal(got, np.concatenate([X.T, X[:, :3]]))


def test_the_table_has_every_op_of_numpy() -> None:
    known = {*UNARY, *BINARY, *FOLDS, *MOVES, "softmax", "matmul", "dot", "conj"}
    left = {name for name in ops.NAMES if isinstance(getattr(np, name, None), np.ufunc)} - known
    assert not left, f"ops that NumPy has as well: {left}"
