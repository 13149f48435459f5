"""flip, roll, tril, triu and spatial_merge_2x2: elements of x in another order, or zeros instead of some of them; and arange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, in_f32, rounded, same_dtype, widened
from camshaft.ops.movement.moved import axes_in, check_attributes, composite, expect_whole, one_tensor
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_AXIS = Attribute("axis", "int | tuple[int, ...] | None", None)
_SHIFT, _K = Attribute("shift", "int | tuple[int, ...]"), Attribute("k", "int", 0)
Axes = int | tuple[int, ...] | None


def _draw(shape: tuple[int, ...], dtype: Any = f32) -> ops.Array:
    return np.random.default_rng(42).integers(0, 100, shape).astype(dtype.numpy)


# --- flip and roll -------------------------------------------------------------------------------------------------------
def _flip(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("flip", specs, attrs, "axis")
    axes_in("flip", x, attrs.get("axis"))
    return (x,)


def _by_slice(f: Any, x: Any, axis: Axes = None) -> Any:
    axes = axes_in("flip", x.spec, axis)
    return x[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(x.ndim))]


def _roll(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("roll", specs, attrs, "shift axis")
    _shifts(x, attrs.get("shift"), attrs.get("axis"))
    return (x,)


def _shifts(x: TensorSpec, shift: Any, axis: Axes) -> list[int]:
    """The shift along each axis of x, or of the flat x. ShapeError where shifts and axes do not pair."""
    given = shift if isinstance(shift, tuple) else (shift,)
    ops.expect(all(isinstance(n, int) for n in given), "roll", f"shift {shift}", "integers")
    if axis is None:
        fits = not any(isinstance(d, Extent) for d in x.shape)
        ops.expect(fits, "roll", f"axis None of {x}", "an axis, as x has an Extent")
        return [sum(given)]
    named = axis if isinstance(axis, tuple) else (axis,)
    pairs = len(given) in (1, len(named)) or len(named) == 1
    pairs = pairs and min(len(given), len(named)) > 0
    ops.expect(pairs, "roll", f"shift {shift} along {axis}", "a shift for each axis")
    count = max(len(given), len(named))
    shifts = [0] * len(x.shape)
    for n, a in zip(given * (count // len(given)), named * (count // len(named)), strict=True):
        (found,) = axes_in("roll", x, a)
        shifts[found] += n
    return shifts


def _by_pad(f: Any, x: Any, shift: int | tuple[int, ...], axis: Axes = None) -> Any:
    flat = x.reshape((prod(x.shape),)) if axis is None else x
    shifts = [n % d if n else 0 for n, d in zip(_shifts(x.spec, shift, axis), flat.shape, strict=True)]
    rolled = f.pad(flat, pad_width=tuple((n, -n) for n in shifts), mode="wrap")
    return rolled.reshape(x.shape)


# --- tril and triu -------------------------------------------------------------------------------------------------------
def _triangle(name: str) -> Callable[..., tuple[TensorSpec, ...]]:
    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        x, k = one_tensor(name, specs, attrs, "k", 2), attrs.get("k", 0)
        ops.expect(isinstance(k, int), name, f"k {k}", "an integer, the number of a diagonal")
        ops.expect(not isinstance(x.shape[-2], Extent), name, x, "rows that are not Extents")
        return (x,)

    return infer


def _by_where(name: str) -> Callable[..., Any]:
    def decompose(f: Any, x: Any, k: int = 0) -> Any:
        # element [r, c] is on diagonal c - r
        graph, (rows, columns) = x.graph, x.spec.bounds[-2:]
        nearest = max(-rows, min(k, columns))  # beyond them no diagonal has an element
        down = graph.constant("rows", np.arange(x.shape[-2], dtype=np.int32)[:, None] + np.int32(nearest))
        across = graph.constant("columns", np.arange(x.shape[-1], dtype=np.int32))
        inside = f.less_equal(across, down) if name == "tril" else f.less_equal(down, across)
        return f.where(inside, x, np.zeros((), x.dtype.numpy))

    return decompose


# --- spatial_merge_2x2 ---------------------------------------------------------------------------------------------------
def _merge(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("spatial_merge_2x2", specs, attrs, "")
    fits = len(x.shape) == 3 and all(isinstance(d, int) and d % 2 == 0 for d in x.shape[:2])
    ops.expect(fits, "spatial_merge_2x2", x, "a tensor [ny, nx, C] with even ny and nx")
    ny, nx, c = x.bounds
    return (TensorSpec((ny * nx, c), x.dtype),)


def _merged(x: Any, transpose: Callable[..., Any]) -> Any:
    ny, nx, c = x.shape
    return transpose(x.reshape((ny // 2, 2, nx // 2, 2, c)), axes=(0, 2, 1, 3, 4)).reshape((ny * nx, c))


# --- arange --------------------------------------------------------------------------------------------------------------
def _arange(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "arange", specs, "start and step")
    check_attributes("arange", attrs, "size")
    dtype = same_dtype("arange", specs, NUMBERS)
    ops.expect(all(spec.shape == () for spec in specs), "arange", specs, "start and step without axes")
    return (TensorSpec((expect_whole("arange", "size", attrs.get("size")),), dtype),)


def _arange_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    start, step = map(widened, inputs)
    count = np.arange(attrs["size"]).astype(step.dtype)
    with np.errstate(over="ignore"):
        return (rounded(start + count * step, as_dtype(inputs[0].dtype)),)


def _by_count(f: Any, start: Any, step: Any, size: int) -> Any:
    return np.arange(size).astype(step.dtype.numpy) * step + start


def _arange_samples() -> Iterable[ops.Sample]:
    for dtype, start, step in ((f32, 0.5, 0.25), (i64, -3, 2), (i32, 7, -1), (f64, 0, 0.1), (f16, 1, 0.1)):
        pair = np.array(start, dtype.numpy), np.array(step, dtype.numpy)
        yield ops.Sample(f"of {dtype.name}", pair, {"size": 17})


def _arange_errors() -> Iterable[ops.ErrorSample]:
    x, n = TensorSpec((), f32), TensorSpec((), i64)
    yield ops.ErrorSample((x,), {"size": 3}, "wanted start and step")
    yield ops.ErrorSample((x, n), {"size": 3}, "wanted operands of one dtype")
    yield ops.ErrorSample((x, x), {}, "got size None; wanted an integer of 1 or more")
    yield ops.ErrorSample((x, TensorSpec((1,), f32)), {"size": 3}, "wanted start and step without axes")


# --- samples -------------------------------------------------------------------------------------------------------------
def _flip_samples() -> Iterable[ops.Sample]:
    for shape, axis in (((5,), None), ((2, 17), 1), ((3, 4, 5), (0, -1)), ((3, 4), None)):
        yield ops.Sample(f"{shape} on {axis}", (_draw(shape),), {"axis": axis})
    for dtype in (f64, bf16, i8, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw((3, 5), dtype),), {"axis": 1})
    tokens = Extent("tokens", 16)
    spec = TensorSpec((tokens, 5), f32)
    yield ops.Sample("7 of 16", (_draw(spec.bounds),), {"axis": 1}, (spec,), {tokens: 7})


def _roll_samples() -> Iterable[ops.Sample]:
    cases = (((5,), 2, None), ((3, 17), -4, 1), ((3, 4), 5, None), ((3, 4, 5), (1, -2), (0, 2)), ((4, 5), (1, 2), 0))
    for shape, shift, axis in cases:
        yield ops.Sample(f"{shape} by {shift} on {axis}", (_draw(shape),), {"shift": shift, "axis": axis})
    for dtype in (f16, i64, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw((3, 5), dtype),), {"shift": 2, "axis": 1})


def _triangle_samples() -> Iterable[ops.Sample]:
    for shape, k in (((3, 3), 0), ((5, 17), 2), ((2, 17, 5), -1), ((4, 3), 9)):
        yield ops.Sample(f"{shape} from {k}", (_draw(shape) - 50,), {"k": k})
    x = _draw((4, 5))
    x[0, 4], x[3, 0] = np.nan, np.inf
    yield ops.Sample("NaN and infinity", (x,))
    for dtype in (f64, bf16, i32, u8, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw((4, 5), dtype),), {"k": 1})


def _merge_samples() -> Iterable[ops.Sample]:
    yield ops.Sample("4x6 of 17", (_draw((4, 6, 17)),))
    yield ops.Sample("2x2 of 3, bf16", (_draw((2, 2, 3), bf16),))


def _flip_errors() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x,), {"axis": 2}, "wanted an axis from -2 to 1")
    yield ops.ErrorSample((x,), {"axis": (0, -2)}, "wanted each axis once")
    yield ops.ErrorSample((x,), {"axes": 0}, "got attributes axes; wanted axis")


def _roll_errors() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x,), {"shift": 1.5}, "wanted integers")
    yield ops.ErrorSample((x,), {"shift": (1, 2), "axis": (0, 1, 1)}, "wanted a shift for each axis")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8), 3), f32),), {"shift": 1}, "wanted an axis, as x has an Extent")


def _triangle_errors() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((8,), f32),), {}, "wanted a tensor with 2 or more axes")
    yield ops.ErrorSample((TensorSpec((8, 8), f32),), {"k": 0.5}, "wanted an integer, the number of a diagonal")


def _merge_errors() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((3, 4, 5), f32),), {}, "with even ny and nx")


OPS = {
    "flip": composite(
        "flip",
        "y = x with the order of its elements reversed along the axes, by default all",
        Parameters("x", (_AXIS,)),
        _flip,
        lambda x, axis=None: np.array(np.flip(x, axis), order="C"),
        _by_slice,
        _flip_samples,
        _flip_errors,
    ),
    "roll": composite(
        "roll",
        "y[.., i, ..] = x[.., (i - shift) mod n, ..]; without an axis of the flat x",
        Parameters("x", (_SHIFT, _AXIS)),
        _roll,
        lambda x, shift, axis=None: np.roll(x, shift, axis),
        _by_pad,
        _roll_samples,
        _roll_errors,
    ),
    **{
        name: composite(
            name,
            f"y[.., r, c] = x[.., r, c] where c - r {sign} k, else 0",
            Parameters("x", (_K,)),
            _triangle(name),
            numpy,
            _by_where(name),
            _triangle_samples,
            _triangle_errors,
        )
        for name, sign, numpy in (("tril", "<=", np.tril), ("triu", ">=", np.triu))
    },
    "arange": ops.Op(
        name="arange",
        formula="y[i] = start + i step, for `size` elements",
        parameters=Parameters("start step", (Attribute("size", "int"),)),
        infer=_arange,
        reference=_arange_reference,
        samples=_arange_samples,
        error_samples=_arange_errors,
        tolerance={"f32": 1e-12, "f64": 1e-30, "f16": 1e-8, "bf16": 1e-6},
        decompose=in_f32(_by_count),
    ),
    "spatial_merge_2x2": composite(
        "spatial_merge_2x2",
        "y [ny nx, C] = x [ny, nx, C], one 2 x 2 block after the other, row-major within each",
        Parameters("x"),
        _merge,
        lambda x: np.ascontiguousarray(_merged(x, np.transpose)),
        lambda f, x: _merged(x, f.transpose),
        _merge_samples,
        _merge_errors,
    ),
}
