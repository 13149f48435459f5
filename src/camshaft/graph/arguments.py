"""Converts the arguments of a graph op: arrays and numbers become constants, dtypes are promoted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft import ops
from camshaft.dtypes import as_dtype, bf16, f16, f32
from camshaft.errors import ArrayOverflowError, ShapeError
from camshaft.graph.tensor import Array, Tensor
from camshaft.ops.arguments import (
    ROW_OPS,
    WEAK,
    Dtype,
    Dtypes,
    common_dtype,
    operand,
    plain_attribute,
    product_dtypes,
    resolve,
    row_dtype,
)
from camshaft.ops.checks import COMPLEX, FLOATS
from camshaft.ops.movement.complex_moves import MOVES, moves_pairs
from camshaft.ops.op import Attrs, Op
from camshaft.ops.parameters import AXES
from camshaft.ops.spec import Dim, TensorSpec

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph

Given = Tensor | Array | int | float | complex
_ELEMENTWISE = frozenset(
    name for table in ("unary", "binary", "comparison", "activation") for name in ops.TABLES[f"elementwise.{table}"]
) | {"silu_multiply"}


@dataclass(frozen=True)
class Form:
    """An op's arguments and the conversion of its outputs: to the dtype `returned` (only f32 outputs if `halves`), the
    axes reordered by `axes`, and the shape `shape`; None leaves them unchanged. With `as_pairs` they are complex numbers."""

    graph: Graph
    tensors: tuple[Tensor, ...]
    attrs: Attrs
    returned: Dtype | None = None
    shape: tuple[Dim, ...] | None = None
    axes: tuple[int, ...] | None = None
    halves: bool = False
    as_pairs: bool = False

    def finish(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the outputs, converted."""
        if self.as_pairs:
            return tuple(self.graph.as_complex(y) for y in outputs)
        if self.returned is not None:
            changed = (not self.halves or y.dtype == f32 for y in outputs)
            pairs = zip(outputs, changed, strict=True)
            outputs = tuple(cast(self.graph, y, self.returned) if now else y for y, now in pairs)
        if self.axes is not None:
            outputs = tuple(_transposed(self.graph, y, self.axes) for y in outputs)
        return outputs if self.shape is None else tuple(self.graph.reshape(y, self.shape) for y in outputs)


def given_form(graph: Graph, op: Op, inputs: Sequence[Any], attrs: Attrs) -> Form:
    """Returns the form of a call. Raises ShapeError for an input that is not a tensor, array or number."""
    given = [_given(graph, op.name, x) for x in inputs]
    named = _attributes(op, attrs)
    if op.name == "matmul" and len(given) == 2 and not named.get("transpose_b"):
        return _product(graph, op, given, named)
    if op.name in _ELEMENTWISE and not _fits(op, given, named):
        dtypes, returned = resolve(op.name, tuple(_kind(x) for x in given), _accepting(op, named))
        typed = zip(given, dtypes, strict=True)
        tensors = tuple(_tensor(graph, f"{op.name}.{i}", x, d) for i, (x, d) in enumerate(typed))
        return Form(graph, tensors, named, _unless_same(op, tensors, named, returned))
    tensors = tuple(_tensor(graph, f"{op.name}.{i}", x) for i, x in enumerate(given))
    if op.name in MOVES and moves_pairs(op.name, [t.spec.dtype for t in tensors], COMPLEX):
        count, moved = MOVES[op.name]
        pairs = (*(graph.pairs(t) for t in tensors[:count]), *(tensors[count:] if count else ()))
        return Form(graph, pairs, moved(tensors[0].ndim, named), as_pairs=True)
    return _rows(graph, op, tensors, named) if op.name in ROW_OPS else _of_halves(graph, op, tensors, named)


def _rows(graph: Graph, op: Op, tensors: tuple[Tensor, ...], attrs: Attrs) -> Form:
    """A row-wise op along `axis`, the dtypes promoted as in a call on arrays."""
    rest = {name: value for name, value in attrs.items() if name != "axis"}
    differ = len({t.spec.dtype for t in tensors}) > 1 or (tensors and tensors[0].dtype not in FLOATS)
    if differ and not op.accepts(tuple(t.spec for t in tensors), rest):
        dtype = row_dtype([_plain(t) for t in tensors])
        tensors = tuple(cast(graph, t, dtype) for t in tensors)
    axis, n_axes = attrs.get("axis", -1), tensors[0].ndim if tensors else 0
    if axis in (-1, n_axes - 1) or not tensors:
        return Form(graph, tensors, rest)
    if not isinstance(axis, int) or isinstance(axis, bool) or not -n_axes <= axis < n_axes:
        raise ShapeError(f"{op.name}: got axis={axis!r:.60} of {tensors[0].spec}; wanted one of its axes")
    axes = (*(i for i in range(n_axes) if i != axis % n_axes), axis % n_axes)
    back = tuple(sorted(range(n_axes), key=axes.__getitem__))
    return Form(graph, (_transposed(graph, tensors[0], axes), *tensors[1:]), rest, axes=back)


def _of_halves(graph: Graph, op: Op, tensors: tuple[Tensor, ...], attrs: Attrs) -> Form:
    """If an op does not take f16 and bf16 operands, they are converted to f32 and its f32 results to the common dtype of
    the operands' float dtypes, as in a call on arrays."""
    halves = [t.spec.is_plain and t.dtype in (f16, bf16) for t in tensors]
    if not any(halves) or op.updates or op.accepts(tuple(t.spec for t in tensors), attrs):
        return Form(graph, tensors, attrs)
    wide = [TensorSpec(t.shape, f32) if half else t.spec for t, half in zip(tensors, halves, strict=True)]
    if not op.accepts(tuple(wide), attrs):
        return Form(graph, tensors, attrs)
    returned = common_dtype([_plain(t) for t in tensors if t.spec.is_plain and t.dtype in FLOATS])
    cast_ = (cast(graph, t, f32.numpy) if half else t for t, half in zip(tensors, halves, strict=True))
    return Form(graph, tuple(cast_), attrs, returned, halves=True)


def _transposed(graph: Graph, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return graph.apply(ops.get("transpose"), (x,), {"axes": axes})[0]


def cast(graph: Graph, x: Tensor, dtype: Dtype) -> Tensor:
    """Returns the tensor converted to `dtype`."""
    to = as_dtype(dtype)
    return x if x.dtype == to else graph.apply(ops.get("cast"), (x,), {"to": to.name})[0]


def _given(graph: Graph, op: str, value: Any) -> Given:
    if isinstance(value, Tensor):
        if value.graph is not graph:
            raise ShapeError(f"{op}: got {value!r}; wanted tensors of this graph")
        return value
    found = operand(value, op)
    if not isinstance(found, WEAK) and found.dtype.hasobject:
        raise ShapeError(f"{op}: got {value!r}; wanted tensors, arrays and numbers")
    return found


def _attributes(op: Op, attrs: Attrs) -> Attrs:
    """Returns the attributes under the op's names: NumPy's `axis` is `axes` where it may be several. ArrayTypeError for
    unknown names and for values of another type."""
    if not attrs:
        return attrs
    several = AXES in op.parameters.attributes
    named = {
        "axes" if several and name == "axis" else name: plain_attribute(op.name, name, value)
        for name, value in attrs.items()
    }
    rows = op.name in ROW_OPS
    op.parameters.check(op.name, {name: value for name, value in named.items() if not rows or name != "axis"})
    return named


def _fits(op: Op, given: Sequence[Given], attrs: Attrs) -> bool:
    """Whether the op accepts these arguments without conversion."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    return len(tensors) == len(given) and op.accepts(tuple(t.spec for t in tensors), attrs)


def _kind(value: Given) -> Any:
    if isinstance(value, Tensor):
        return _plain(value)
    return type(value) if isinstance(value, WEAK) else value.dtype


def _plain(x: Tensor) -> Dtype:
    """Returns the dtype of a plain tensor's elements. Raises ShapeError for a blocked format."""
    if not x.spec.is_plain:
        raise ShapeError(f"got {x}; wanted a plain tensor")
    return x.spec.parts[0].dtype.numpy


def _accepting(op: Op, attrs: Attrs) -> Callable[[Dtypes], bool]:
    def accepts(dtypes: Dtypes) -> bool:
        try:
            specs = tuple(TensorSpec((1,), as_dtype(d)) for d in dtypes)
        except ShapeError:  # a dtype that camshaft does not support
            return False
        return op.accepts(specs, attrs)

    return accepts


def _unless_same(op: Op, tensors: Sequence[Tensor], attrs: Attrs, returned: Dtype | None) -> Dtype | None:
    """Returns `returned` if it differs from the op's own output dtype, else None."""
    if returned is None:
        return None
    (made,) = op.outputs(tuple(t.spec for t in tensors), attrs)
    return None if made.dtype == as_dtype(returned) else returned


def _tensor(graph: Graph, name: str, value: Given, dtype: Dtype | None = None) -> Tensor:
    """Returns the value as a tensor of `dtype` (default: its own). Raises ArrayOverflowError for a number out of range."""
    if isinstance(value, Tensor):
        return value if dtype is None else cast(graph, value, dtype)
    try:
        return graph.constant(name, np.asarray(value, dtype))
    except (OverflowError, TypeError) as error:  # TypeError: bf16 of an integer past 64 bits
        raise ArrayOverflowError(f"{name}: {error}") from error


def _product(graph: Graph, op: Op, given: Sequence[Given], attrs: Attrs) -> Form:
    """Applies NumPy's matmul rules: a 1-D operand becomes a one-row or one-column matrix and that axis is dropped from the
    result; dtypes that the op does not accept are promoted."""
    a, b = (_tensor(graph, f"matmul.{i}", x) for i, x in enumerate(given))
    returned, shape = None, None
    if a.ndim == 1 or b.ndim == 1:
        rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
        a = graph.reshape(a, (1, *a.shape)) if a.ndim == 1 else a
        b = graph.reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
        shape = (*(a if a.ndim > b.ndim else b).shape[:-2], *rows, *columns)
    if a.spec.is_plain and b.spec.is_plain and not op.accepts((a.spec, b.spec), attrs):
        computed, returned = product_dtypes(_plain(a), _plain(b))
        a, b = (x if computed is None else cast(graph, x, computed) for x in (a, b))
    return Form(graph, (a, b), attrs, returned, shape)
