"""CompositeOp: an op without kernels called on arrays, as the ops of its decomposition one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.eager.numpy_calls.by_position import NAMES, moved
from camshaft.eager.numpy_forms import attributes_of
from camshaft.eager.operands import as_kind, check_cast, kind_of, output
from camshaft.errors import BackendError, ShapeError, count
from camshaft.graph.arguments import given_form
from camshaft.graph.graph import ArraySource, Graph, Tensor, root
from camshaft.graph.passes.decompose import expand_composites
from camshaft.ops.arguments import attribute_key, operand
from camshaft.ops.op import Op
from camshaft.ops.signatures import described

Array = np.ndarray[Any, Any]
# Programs that an op remembers; past them the oldest go.
MOST_REMEMBERED = 256


class CompositeOp:
    """An op on arrays. `part_of(name)` returns the function of another op; `call` is what a table returns."""

    __slots__ = ("_lock", "_programs", "call", "op", "part_of")

    def __init__(self, op: Op, part_of: Callable[[str], Callable[..., Any]]) -> None:
        self.op, self.part_of = op, part_of
        self._programs: dict[Hashable, Program] = {}
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
        results = self._program(arrays, attrs).run(arrays)
        if out is not None:
            return self._written(results, out)
        made = results[0] if len(results) == 1 else tuple(results)
        kind = None if all(type(x) is np.ndarray for x in inputs) else kind_of(inputs)
        return made if kind is None else as_kind(kind, made)

    def choice(self, *inputs: Any, **attrs: Any) -> NoReturn:
        """BackendError: kernels are chosen for the parts alone."""
        arrays = [self._array(x) for x in inputs]
        parts = dict.fromkeys(step.op for step in self._program(arrays, attrs).steps)
        raise BackendError(
            f"choice: {self.op.name} has no kernel of its own; wanted one of its parts: {', '.join(parts)}"
        )

    def _array(self, value: Any) -> Array:
        array = value if type(value) is np.ndarray else np.asarray(operand(value, self.op.name))
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def _program(self, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Program:
        attrs = attributes_of(self.op.name, attrs, 0) if attrs else attrs
        # a dtype's number takes 40 ns to hash, a dtype 300; those that share a number are not operands
        key = tuple([(a.shape, a.dtype.num) for a in arrays]), attribute_key(attrs) if attrs else ()
        found = self._programs.get(key)
        if found is None:
            found = program_of(_traced(self.op, arrays, attrs), self.part_of)
            with self._lock:
                while len(self._programs) >= MOST_REMEMBERED:
                    del self._programs[next(iter(self._programs))]
                self._programs[key] = found
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


class Read(NamedTuple):
    """The value in a slot; with a shape, as elements of the dtype, which are viewed in place or copied."""

    slot: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def of(self, values: Sequence[Array]) -> Array:
        """The value as it is read."""
        found = values[self.slot]
        return found if self.shape is None else _viewed(found, self.dtype, self.shape)


def _viewed(found: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if found.dtype is not dtype and found.dtype != dtype:
        found = np.ascontiguousarray(found).reshape(-1).view(dtype)
    return found if found.shape == shape else found.reshape(shape)


class Step(NamedTuple):
    """A call of an op's function. `writes`: the slots of its results, and their dtypes."""

    op: str
    function: Callable[..., Any]
    reads: tuple[Read, ...]
    attrs: Mapping[str, Any]
    writes: tuple[tuple[int, np.dtype[Any]], ...]


@dataclass(frozen=True)
class Program:
    """A graph of plain arrays as calls of its ops' functions. Values are in slots: the inputs, `constants`, then results."""

    constants: tuple[Array, ...]
    steps: tuple[Step, ...]
    # Whether an output is a copy: of an input, or a view of one.
    outputs: tuple[tuple[Read, bool], ...]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs."""
        values = [*arrays, *self.constants]
        for step in self.steps:
            made = step.function(*[read.of(values) for read in step.reads], **step.attrs)
            for (_, dtype), found in zip(step.writes, made if type(made) is tuple else (made,), strict=True):
                # A function on arrays may have NumPy's dtype where the op has another: argmax gives int64.
                same = type(found) is np.ndarray and found.dtype is dtype
                values.append(found if same else np.asarray(found).astype(dtype, copy=False))
        return [np.array(read.of(values)) if copied else read.of(values) for read, copied in self.outputs]


def program_of(graph: Graph, part_of: Callable[[str], Callable[..., Any]]) -> Program:
    """The program of a graph, each node computed by the function of its op."""
    tensors = [t for node in graph.nodes for t in node.inputs] + list(graph.outputs.values())
    constants = list(dict.fromkeys(t for t in tensors if root(t).source is not None))
    results = [t for node in graph.nodes for t in node.outputs]
    slots = {t: i for i, t in enumerate((*graph.inputs.values(), *constants, *results))}

    def read(tensor: Tensor) -> Read:
        dtype, base = tensor.spec.parts[0].dtype.numpy, slots.get(tensor)
        return Read(slots[root(tensor)], dtype, tensor.spec.bounds) if base is None else Read(base, dtype, None)

    steps = (
        Step(
            node.op.name,
            part_of(node.op.name),
            tuple(map(read, node.inputs)),
            node.attrs,
            tuple((slots[t], t.spec.parts[0].dtype.numpy) for t in node.outputs),
        )
        for node in graph.nodes
    )
    outputs = ((read(t), root(t).kind == "input") for t in graph.outputs.values())
    return Program(tuple(map(_constant, constants)), tuple(steps), tuple(outputs))


def _constant(tensor: Tensor) -> Array:
    source = root(tensor).source
    assert source is not None
    dtype = tensor.spec.parts[0].dtype.numpy
    found = (
        source.array if isinstance(source, ArraySource) else source.data().view(root(tensor).spec.parts[0].dtype.numpy)
    )
    return _viewed(found, dtype, tensor.spec.bounds)
