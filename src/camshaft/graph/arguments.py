"""Convert the arguments of a graph op to what the op takes: arrays and numbers to constants, dtypes promoted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.errors import ArrayOverflowError, PlanError, ShapeError, shortened
from camshaft.graph.tensor import Array, Tensor, root
from camshaft.ops.arguments import WEAK, Dtype, Dtypes, operand, product_dtypes, resolve
from camshaft.ops.op import Attrs, Op
from camshaft.ops.parameters import AXES
from camshaft.ops.spec import Dim, TensorSpec

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph

Given = Tensor | Array | int | float
_ELEMENTWISE = frozenset(
    name for table in ("unary", "binary", "comparison") for name in ops.TABLES[f"elementwise.{table}"]
)


@dataclass(frozen=True)
class Form:
    """An op's arguments, and the dtype (`returned`) and shape (`shape`) to convert its one output to (None: unchanged)."""

    graph: Graph
    tensors: tuple[Tensor, ...]
    attrs: Attrs
    returned: Dtype | None = None
    shape: tuple[Dim, ...] | None = None

    def finish(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the outputs, converted to the requested dtype and shape."""
        if self.returned is None and self.shape is None:
            return outputs
        made = outputs[0] if self.returned is None else cast(self.graph, outputs[0], self.returned)
        return (made if self.shape is None else self.graph.reshape(made, self.shape),)


def given_form(graph: Graph, op: Op, inputs: Sequence[Any], attrs: Attrs) -> Form:
    """Returns the form of a call. Raises ShapeError for an input that is not a tensor, array or number."""
    given = [_given(graph, op.name, x) for x in inputs]
    named = _axes_named(op, attrs)
    if op.name == "matmul" and len(given) == 2 and not named.get("transpose_b"):
        return _product(graph, op, given, named)
    if op.name in _ELEMENTWISE and not _fits(op, given, named):
        dtypes, returned = resolve(op.name, tuple(_kind(x) for x in given), _accepting(op, named))
        pairs = zip(given, dtypes, strict=True)
        tensors = tuple(_tensor(graph, f"{op.name}.{i}", x, d) for i, (x, d) in enumerate(pairs))
        return Form(graph, tensors, named, _unless_same(op, tensors, named, returned))
    return Form(graph, tuple(_tensor(graph, f"{op.name}.{i}", x) for i, x in enumerate(given)), named)


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


def _axes_named(op: Op, attrs: Attrs) -> Attrs:
    """Renames NumPy's `axis` to `axes` where the op has that attribute."""
    if "axis" not in attrs or AXES not in op.parameters.attributes:
        return attrs
    return {"axes" if name == "axis" else name: value for name, value in attrs.items()}


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
    except OverflowError as error:
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


def checked_name(what: str, name: object) -> str:
    """Returns a tensor's name. Raises ShapeError unless it is a text that is not empty."""
    if not isinstance(name, str) or not name:
        raise ShapeError(f"{what}: got the name {name!r:.80}; wanted a text that is not empty")
    return name


def checked_device(name: object) -> str | None:
    """Returns a device's name, or None. Raises ShapeError for another type."""
    if name is None or isinstance(name, str):
        return name
    raise ShapeError(f"graph: got the device {name!r:.80}; wanted its name, such as 'cpu', or None")


def checked_tensor(what: str, x: object) -> Tensor:
    """Raises ShapeError unless `x` is a tensor."""
    if not isinstance(x, Tensor):
        raise ShapeError(f"{what}: got {shortened(repr(x), 80)}; wanted tensors of this graph")
    return x


def near(op: object) -> str:
    """Returns the names of ops that are similar to an unknown one, as a hint."""
    found = get_close_matches(op, ops.NAMES, 3) if isinstance(op, str) else []
    return f"did you mean {' or '.join(found)}?" if found else f"wanted one of {', '.join(ops.NAMES)}"


def checked_list(graph: Graph, label: str, what: str, given: Sequence[Any], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Returns a list argument of a node as a tuple. Raises PlanError for a single item and for another graph's tensor."""
    wanted = " or names of nodes" if str in kinds else ""
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, kinds) for item in given):
        raise PlanError(f"graph: {label!r} got {what}={given!r}; wanted a list of tensors{wanted}")
    for item in given:
        if isinstance(item, Tensor) and item.graph is not graph:
            raise PlanError(f"graph: {label!r} got {what} {item!r} of another graph; wanted one of this")
    return tuple(given)


def views_of_memory(
    graph: Graph, label: str, specs: Sequence[TensorSpec], into: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Returns a node's outputs as views of the `into` memory. Raises ShapeError for other specs, PlanError for other kinds."""
    if [t.spec for t in into] != list(specs):
        came, wanted = (", ".join(map(str, found)) or "nothing" for found in ([t.spec for t in into], specs))
        raise ShapeError(f"{label}: got memory for {came}; wanted it for {wanted}")
    for tensor in into:
        if root(tensor).kind not in ("state", "buffer"):
            kind = root(tensor).kind
            raise PlanError(f"graph: {label!r} writes {tensor.name}; wanted a state or a buffer, no {kind}")
    return tuple(Tensor(t.spec, t.name, "view", base=t, graph=graph) for t in into)
