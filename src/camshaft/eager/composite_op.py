"""CompositeOp: an op without kernels called on arrays, as the ops of its decomposition one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MethodType
from typing import Any, NoReturn

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.eager.moved_calls import NAMES, moved
from camshaft.eager.numpy_forms import attribute_key, attributes_of
from camshaft.eager.operands import as_kind, check_cast, kind_of, output
from camshaft.errors import BackendError, ShapeError, count
from camshaft.graph.arguments import given_form
from camshaft.graph.decompose import expand_composites
from camshaft.graph.graph import ArraySource, Graph, Tensor, root
from camshaft.ops.arguments import operand
from camshaft.ops.op import Op
from camshaft.ops.signatures import described

Array = np.ndarray[Any, Any]
# Expanded graphs that an op remembers; past them the oldest go.
MOST_REMEMBERED = 256


class CompositeOp:
    """An op on arrays. `part_of(name)` returns the function of another op; `call` is what a table returns."""

    __slots__ = ("_graphs", "_lock", "call", "op", "part_of")

    def __init__(self, op: Op, part_of: Callable[[str], Callable[..., Any]]) -> None:
        self.op, self.part_of = op, part_of
        self._graphs: dict[Hashable, Graph] = {}
        self._lock = threading.Lock()
        self.call = MethodType(described(CompositeOp.run, op), self)

    def __repr__(self) -> str:
        return f"<{self.op.name} by other ops>"

    def run(self, *inputs: Any, out: Any = None, **attrs: Any) -> Any:
        """The op's output on arrays, or a tuple of them; in `out`, an array or a tuple of one for each, where it is given.

        Results are ndarrays, or of the first DLPack kind among the inputs. ShapeError as the op's shape rule raises it.
        """
        asked = moved(self.op.name, inputs, attrs) if self.op.name in NAMES else None
        if asked is not None and asked.ready is not None:
            return asked.ready if out is None else self._written([asked.ready], out)
        if asked is not None:
            inputs, attrs = asked.inputs, dict(asked.attrs)
        arrays = [self._array(x) for x in inputs]
        results = evaluated(self._graph(arrays, attrs), arrays, self.part_of)
        if out is not None:
            return self._written(results, out)
        made = results[0] if len(results) == 1 else tuple(results)
        kind = kind_of(inputs)
        return made if kind is None else as_kind(kind, made)

    def choice(self, *inputs: Any, **attrs: Any) -> NoReturn:
        """BackendError: kernels are chosen for the parts alone."""
        arrays = [self._array(x) for x in inputs]
        parts = dict.fromkeys(node.op.name for node in self._graph(arrays, attrs).nodes)
        raise BackendError(
            f"choice: {self.op.name} has no kernel of its own; wanted one of its parts: {', '.join(parts)}"
        )

    def _array(self, value: Any) -> Array:
        array = np.asarray(operand(value, self.op.name))
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def _graph(self, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Graph:
        attrs = attributes_of(self.op.name, attrs, 0) if attrs else attrs
        key = tuple((a.shape, a.dtype) for a in arrays), attribute_key(attrs)
        found = self._graphs.get(key)
        if found is None:
            found = _traced(self.op, arrays, attrs)
            with self._lock:
                while len(self._graphs) >= MOST_REMEMBERED:
                    del self._graphs[next(iter(self._graphs))]
                self._graphs[key] = found
        return found

    def _written(self, results: Sequence[Array], out: Any) -> Any:
        targets = out if isinstance(out, tuple) else (out,)
        if len(targets) != len(results):
            raise ShapeError(f"{self.op.name}: got {count(len(targets), 'array')} in out; wanted {len(results)}")
        for result, target in zip(results, map(output, targets), strict=True):
            if target is None:
                continue
            if target.shape != result.shape:
                raise ShapeError(f"{self.op.name}: got an out of shape {target.shape}; wanted {result.shape}")
            check_cast(self.op.name, result.dtype, target.dtype)
            np.copyto(target, result, casting="same_kind")
        return targets[0] if len(targets) == 1 else out


def _traced(op: Op, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Graph:
    """The op on arrays of these shapes and dtypes as a graph of ops that have kernels: inputs x0, .., outputs y0, .."""
    graph = Graph()
    try:
        dtypes = [as_dtype(a.dtype) for a in arrays]
    except ShapeError as error:
        raise ShapeError(f"{op.name}: {error}") from None
    given = [graph.input(f"x{i}", a.shape, dtype) for i, (a, dtype) in enumerate(zip(arrays, dtypes, strict=True))]
    form = given_form(graph, op, given, attrs)
    for i, tensor in enumerate(form.finish(graph.apply(op, form.tensors, form.attrs))):
        graph.output(f"y{i}", tensor)
    return expand_composites(graph)


def _constant(tensor: Tensor) -> Array:
    assert tensor.source is not None
    if isinstance(tensor.source, ArraySource):
        return tensor.source.array
    return tensor.source.data().view(tensor.spec.parts[0].dtype.numpy)


def evaluated(graph: Graph, arrays: Sequence[Array], part_of: Callable[[str], Callable[..., Any]]) -> list[Array]:
    """The outputs of a graph of plain arrays, each node computed by the function of its op."""
    values: dict[Tensor, Array] = dict(zip(graph.inputs.values(), arrays, strict=True))

    def value(tensor: Tensor) -> Array:
        known = values.get(tensor)
        if known is not None:
            return known
        base = root(tensor)
        found = _constant(base) if base.source is not None else values[base]
        dtype = tensor.spec.parts[0].dtype.numpy
        found = found if found.dtype == dtype else np.ascontiguousarray(found).reshape(-1).view(dtype)
        return found.reshape(tensor.spec.bounds)

    for node in graph.nodes:
        made = part_of(node.op.name)(*map(value, node.inputs), **node.attrs)
        for tensor, found in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            # A function on arrays may have NumPy's dtype where the op has another: argmax gives int64.
            values[tensor] = np.asarray(found).astype(tensor.spec.parts[0].dtype.numpy, copy=False)
    return [np.array(value(t)) if root(t).kind == "input" else value(t) for t in graph.outputs.values()]
