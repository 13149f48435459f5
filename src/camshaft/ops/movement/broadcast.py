"""broadcast_to, and what it serves: repeat, tile, repeat_tiled. Each is one strided copy of x, along some axes with stride 0."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, boolean, f16, f32, f64, i8, i64, u16
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.strides import iteration, strides_of
from camshaft.ops.movement.moved import axis_in, composite, expect_whole, one_tensor, whole
from camshaft.ops.movement.transpose import strided
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import Dim, TensorSpec

_SHAPE = Attribute("shape", "tuple[int | None, ...]")
_REPEATS, _REPS = Attribute("repeats", "int"), Attribute("reps", "int | tuple[int, ...]")
_HEADS = Attribute("heads", "int")


# --- broadcast_to --------------------------------------------------------------------------------------------------------
def _broadcast(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("broadcast_to", specs, attrs, "shape")
    given = attrs.get("shape")
    listed = isinstance(given, tuple) and all(size is None or whole(size, 1) for size in given)
    ops.expect(listed, "broadcast_to", f"shape {given}", "sizes of 1 or more, or None for x's own")
    assert isinstance(given, tuple)
    more = len(given) - len(x.shape)
    own = (*(None,) * more, *x.shape)
    shape: tuple[Dim | None, ...] = tuple(b if a is None else a for a, b in zip(given, own, strict=False))
    fits = more >= 0 and None not in shape and all(b in (None, 1, a) for a, b in zip(shape, own, strict=True))
    ops.expect(fits, "broadcast_to", f"shape {given} of {x}", "a shape to which x's broadcasts")
    return (TensorSpec(tuple(d for d in shape if d is not None), x.dtype),)


def _broadcast_reference(x: ops.Array, shape: tuple[int | None, ...]) -> ops.Array:
    own = (1,) * (len(shape) - x.ndim) + x.shape
    sizes = tuple(b if a is None else a for a, b in zip(shape, own, strict=True))
    return np.ascontiguousarray(np.broadcast_to(x, sizes)).reshape(sizes)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, out = node.inputs[0], node.outputs[0]
    over = iteration(out.shape, (strides_of(x, out.shape), strides_of(out, out.shape)))
    arrays = as_bits(ops.read(0, shape=(prod(x.bounds),)), x), as_bits(ops.write(0, shape=(prod(out.bounds),)), out)
    return ops.Build((strided(over, arrays),))


def _draw(shape: tuple[int, ...], dtype: DType = f32) -> ops.Array:
    drawn: ops.Array = np.random.default_rng(41).integers(0, 100, shape).astype(dtype.numpy)
    return drawn


def _broadcast_samples() -> Iterable[ops.Sample]:
    cases = (
        ((1,), (17,)),
        ((33,), (3, 33)),
        ((5, 1, 7), (5, 3, 7)),
        ((3, 1), (2, 3, 40)),
        ((4, 1, 33), (None, 2, None)),
    )
    for given, shape in cases:
        yield ops.Sample(f"{given} to {shape}", (_draw(given),), {"shape": shape})
    for dtype in (f64, f16, bf16, i8, i64, u16, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw((3, 1, 5), dtype),), {"shape": (3, 4, 5)})
    tokens = Extent("tokens", 16)
    spec = TensorSpec((tokens, 1, 9), f32)
    yield ops.Sample("7 of 16", (_draw(spec.bounds),), {"shape": (None, 3, None)}, (spec,), {tokens: 7})


def _broadcast_errors() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {"shape": (2, 8)}, "wanted one tensor")
    yield ops.ErrorSample((x,), {"shape": (3, 8)}, "wanted a shape to which")
    yield ops.ErrorSample((x,), {"shape": (8,)}, "wanted a shape to which")
    yield ops.ErrorSample((x,), {"shape": 8}, "wanted sizes of 1 or more")


# --- repeat, tile, repeat_tiled ------------------------------------------------------------------------------------------
def _repeat(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("repeat", specs, attrs, "repeats axis")
    n, axis = expect_whole("repeat", "repeats", attrs.get("repeats")), attrs.get("axis")
    if axis is None:
        fits = not any(isinstance(d, Extent) for d in x.shape)
        ops.expect(fits, "repeat", f"axis None of {x}", "an axis, as x has an Extent")
        return (TensorSpec((prod(x.bounds) * n,), x.dtype),)
    axis = axis_in("repeat", x, axis)
    return (TensorSpec((*x.shape[:axis], x.bounds[axis] * n, *x.shape[axis + 1 :]), x.dtype),)


def _tile(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("tile", specs, attrs, "reps")
    reps = attrs.get("reps")
    counts = reps if isinstance(reps, tuple) else (reps,)
    ops.expect(all(whole(n, 1) for n in counts), "tile", f"reps {reps}", "integers of 1 or more")
    counts, shape = _aligned(x.shape, counts)
    moves = any(isinstance(d, Extent) and n > 1 for d, n in zip(shape, counts, strict=True)) or (
        isinstance((x.shape or (1,))[0], Extent) and len(shape) > len(x.shape)
    )
    ops.expect(not moves, "tile", f"reps {reps} of {x}", "an Extent that is not repeated")
    return (TensorSpec(tuple(d if n == 1 else d * n for d, n in zip(shape, counts, strict=True)), x.dtype),)


def _aligned(shape: tuple[Dim, ...], counts: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Both with 1 in front where they are shorter than the other."""
    rank = max(len(shape), len(counts))
    return (1,) * (rank - len(counts)) + counts, (1,) * (rank - len(shape)) + tuple(shape)


def _tiled(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = one_tensor("repeat_tiled", specs, attrs, "heads axis", 2)
    heads = expect_whole("repeat_tiled", "heads", attrs.get("heads"))
    axis = axis_in("repeat_tiled", x, attrs.get("axis", 1))
    own = x.bounds[axis]
    ops.expect(heads % own == 0, "repeat_tiled", f"heads {heads} of {own}", f"a multiple of {own}")
    return (TensorSpec((*x.shape[:axis], heads, *x.shape[axis + 1 :]), x.dtype),)


def _by_repeat(f: Any, x: Any, repeats: int, axis: int | None = None) -> Any:
    if axis is None:
        x, axis = x.reshape((prod(x.shape),)), 0
    axis %= x.ndim
    head, tail = x.shape[: axis + 1], x.shape[axis + 1 :]
    wide = f.broadcast_to(x.reshape((*head, 1, *tail)), shape=(*(None,) * len(head), repeats, *tail))
    return wide.reshape((*head[:-1], head[-1] * repeats, *tail))


def _by_tile(f: Any, x: Any, reps: int | tuple[int, ...]) -> Any:
    counts, shape = _aligned(x.shape, reps if isinstance(reps, tuple) else (reps,))
    split: list[Any] = []
    wide: list[Any] = []
    for n, size in zip(counts, shape, strict=True):
        split += [size] if n == 1 else [1, size]
        wide += [None] if n == 1 else [n, None]
    y = f.broadcast_to(x.reshape(tuple(split)), shape=tuple(wide))
    return y.reshape(tuple(d if n == 1 else d * n for d, n in zip(shape, counts, strict=True)))


def _by_tiled(f: Any, x: Any, heads: int, axis: int = 1) -> Any:
    axis %= x.ndim
    return f.tile(x, reps=tuple(heads // d if i == axis else 1 for i, d in enumerate(x.shape)))


def _tiled_reference(x: ops.Array, heads: int, axis: int = 1) -> ops.Array:
    y: ops.Array = np.take(x, np.arange(heads) % x.shape[axis], axis)
    return y


def _repeat_samples() -> Iterable[ops.Sample]:
    for shape, n, axis in (((5,), 3, 0), ((2, 3, 17), 2, 1), ((3, 7), 4, -1), ((2, 3), 2, None)):
        yield ops.Sample(f"{shape} by {n} on {axis}", (_draw(shape),), {"repeats": n, "axis": axis})
    for dtype in (f64, bf16, i8, i64, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw((3, 5), dtype),), {"repeats": 3, "axis": 1})
    tokens = Extent("tokens", 16)
    spec = TensorSpec((tokens, 3, 4), f32)
    yield ops.Sample("7 of 16", (_draw(spec.bounds),), {"repeats": 2, "axis": 1}, (spec,), {tokens: 7})


def _tile_samples() -> Iterable[ops.Sample]:
    for shape, reps in (((5,), 3), ((2, 3, 17), (2, 1, 3)), ((3, 7), (2, 1, 1)), ((2, 3), 1), ((2, 3, 4), 2)):
        yield ops.Sample(f"{shape} by {reps}", (_draw(shape),), {"reps": reps})
    for dtype in (f16, u16, boolean):
        yield ops.Sample(f"of {dtype.name}", (_draw((3, 5), dtype),), {"reps": (2, 3)})
    tokens = Extent("tokens", 16)
    spec = TensorSpec((tokens, 5), f32)
    yield ops.Sample("7 of 16", (_draw(spec.bounds),), {"reps": (1, 3)}, (spec,), {tokens: 7})


def _tiled_samples() -> Iterable[ops.Sample]:
    for shape, heads, axis in (((3, 2, 17), 6, 1), ((2, 3), 3, 1), ((2, 5, 3), 9, -1)):
        yield ops.Sample(f"{shape} to {heads} on {axis}", (_draw(shape),), {"heads": heads, "axis": axis})
    yield ops.Sample("of bf16", (_draw((2, 2, 9), bf16),), {"heads": 4})


def _repeat_errors() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {"repeats": 2}, "wanted one tensor")
    yield ops.ErrorSample((x,), {"repeats": 0}, "wanted an integer of 1 or more")
    yield ops.ErrorSample((x,), {"repeats": 2, "axis": 2}, "wanted an axis from -2 to 1")
    active = TensorSpec((Extent("n", 8), 3), f32)
    yield ops.ErrorSample((active,), {"repeats": 2}, "wanted an axis, as x has an Extent")
    yield ops.ErrorSample((active,), {"repeats": 2, "axis": 0}, "wanted an axis that is not an Extent")


def _tile_errors() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 8), f32),), {"reps": (2, -1)}, "wanted integers of 1 or more")
    yield ops.ErrorSample(
        (TensorSpec((Extent("n", 8), 3), f32),), {"reps": (2, 1)}, "wanted an Extent that is not repeated"
    )


def _tiled_errors() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 3), f32),), {"heads": 4}, "got heads 4 of 3; wanted a multiple of 3")
    yield ops.ErrorSample((TensorSpec((3,), f32),), {"heads": 3}, "wanted a tensor with 2 or more axes")


OPS = {
    "broadcast_to": ops.Op(
        name="broadcast_to",
        formula="y = x, repeated along axes of size 1 and new ones in front",
        parameters=Parameters("x", (_SHAPE,)),
        infer=_broadcast,
        reference=lambda inputs, attrs: (_broadcast_reference(inputs[0], attrs["shape"]),),
        variants=(ops.KernelVariant("strided_copy", ops.EVERYWHERE, _build),),
        samples=_broadcast_samples,
        error_samples=_broadcast_errors,
        tolerance={"f32": 0.0, "f64": 0.0},
        vjp=lambda f, dy, y, x, shape: dy,
    ),
    "repeat": composite(
        "repeat",
        "y[.., i, ..] = x[.., floor(i / repeats), ..]; without an axis of the flat x",
        Parameters("x", (_REPEATS, Attribute("axis", "int | None", None))),
        _repeat,
        lambda x, repeats, axis=None: np.repeat(x, repeats, axis),
        _by_repeat,
        _repeat_samples,
        _repeat_errors,
    ),
    "tile": composite(
        "tile",
        "y[i, ..] = x[i mod n, ..]: x reps times along each axis",
        Parameters("x", (_REPS,)),
        _tile,
        lambda x, reps: np.tile(x, reps),
        _by_tile,
        _tile_samples,
        _tile_errors,
    ),
    "repeat_tiled": composite(
        "repeat_tiled",
        "y[t, h] = x[t, h mod n]: the n heads of x one after the other, `heads` in all",
        Parameters("x", (_HEADS, Attribute("axis", "int", 1))),
        _tiled,
        _tiled_reference,
        _by_tiled,
        _tiled_samples,
        _tiled_errors,
    ),
}
