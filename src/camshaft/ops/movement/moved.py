"""Shared by ops that only move elements: the check of their arguments, and the Op of a composite one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, same_dtype
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

Reference = Callable[..., ops.Array]


def one_tensor(op: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs, known: str, rank: int = 0) -> TensorSpec:
    """Returns the spec of the one input. ShapeError for another number of inputs, an attribute that is not `known`, a rank below
    `rank`, an empty axis, and an Extent that is not the first axis."""
    ops.expect(len(specs) == 1, op, specs, "one tensor x")
    check_attributes(op, attrs, known)
    same_dtype(op, specs, EVERY)
    (x,) = specs
    fits = 0 not in x.bounds and not any(isinstance(d, Extent) for d in x.shape[1:]) and len(x.shape) >= rank
    axes = f"{rank} or more axes, none of them empty" if rank else "no empty axis"
    ops.expect(fits, op, x, f"a tensor with {axes}, and an Extent only as its first axis")
    return x


def check_attributes(op: str, attrs: ops.Attrs, known: str) -> None:
    """ShapeError for an attribute that is not one of `known`."""
    unknown = set(attrs) - set(known.split())
    ops.expect(not unknown, op, f"attributes {', '.join(sorted(unknown))}", known.replace(" ", ", "))


def axis_in(op: str, x: TensorSpec, axis: object) -> int:
    """Returns an axis counted from the front. ShapeError unless it is one of x's, and no Extent."""
    rank = len(x.shape)
    fits = isinstance(axis, int) and not isinstance(axis, bool) and -rank <= axis < rank
    ops.expect(fits, op, f"axis {axis} of {x}", f"an axis from {-rank} to {rank - 1}")
    assert isinstance(axis, int)
    found = axis % rank
    ops.expect(not isinstance(x.shape[found], Extent), op, f"axis {axis} of {x}", "an axis that is not an Extent")
    return found


def axes_in(op: str, x: TensorSpec, axes: object) -> tuple[int, ...]:
    """Returns one axis or several, all for None, counted from the front. ShapeError as `axis_in`, and for one given twice."""
    if axes is None:
        return tuple(axis_in(op, x, axis) for axis in range(len(x.shape)))
    found = tuple(axis_in(op, x, axis) for axis in (axes if isinstance(axes, tuple) else (axes,)))
    ops.expect(len(set(found)) == len(found), op, f"axes {axes}", "each axis once")
    return found


def whole(value: object, least: int = 0) -> bool:
    """Whether a value is an integer, and `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def expect_whole(op: str, name: str, value: object, least: int = 1) -> int:
    """Returns an integer attribute. ShapeError for another type, and below `least`."""
    ops.expect(whole(value, least), op, f"{name} {value}", f"an integer of {least} or more")
    assert isinstance(value, int)
    return value


def composite(
    name: str,
    formula: str,
    parameters: Parameters,
    infer: Callable[[tuple[TensorSpec, ...], ops.Attrs], tuple[TensorSpec, ...]],
    reference: Reference,
    decompose: Callable[..., Any],
    samples: Callable[[], Iterable[ops.Sample]],
    error_samples: Callable[[], Iterable[ops.ErrorSample]],
) -> ops.Op:
    """An op of one result that moves elements and has no kernels. `reference(*arrays, **attrs)` is NumPy's."""
    return ops.Op(
        name=name,
        formula=formula,
        parameters=parameters,
        infer=infer,
        reference=lambda inputs, attrs: (reference(*inputs, **attrs),),
        samples=samples,
        error_samples=error_samples,
        tolerance={"f32": 0.0, "f64": 0.0},
        nbytes=lambda node: 2.0 * node.outputs[0].nbytes,
        decompose=decompose,
    )
