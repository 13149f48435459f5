"""@camshaft.jit: a function of arrays, traced once per set of shapes and dtypes into a graph and run as a plan."""

from __future__ import annotations

import array
import copy
import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError, ShapeError, count, shortened
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.arguments import operand
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.selection.override import get_backend_override

Array = np.ndarray[Any, Any]
_BUFFERS = (np.ndarray, np.generic, memoryview, bytearray, array.array)


def jit(function: Callable[..., Any] | None = None, *, backend: str | None = None, threads: int | None = None) -> Any:
    """Decorates a function of arrays that calls camshaft's ops, with `backend` and `threads` as in camshaft.compile.

    Arguments and results are arrays, or dicts, lists, tuples, named tuples and dataclasses of them. Arrays and NumPy
    scalars become graph inputs. Everything else (Python numbers, strings) is a constant of the trace: another value triggers a
    new trace. Arrays that the function captures are constants too. Results are NumPy arrays; Python numbers and None are
    returned unchanged. Called with tensors of a graph, the function adds its nodes to that graph. A method may be decorated: its
    object is an argument like any other, a constant unless it is a dataclass.

    Raises PlanError, naming the argument or result, for an unhashable constant and for a result that is not a tensor of the
    trace.
    """
    if function is None:
        return functools.partial(jit, backend=backend, threads=threads)
    if not callable(function):
        raise PlanError(f"jit: got {function!r:.80}; wanted a function of arrays")
    return functools.wraps(function, updated=())(_Jitted(function, backend, threads))


class _Output(str):
    """A result leaf that names an output of the plan."""


@dataclass(frozen=True)
class _Traced:
    """A plan, its input names in array order, and the result with `_Output`s in place of arrays."""

    plan: ExecutionPlan
    inputs: tuple[str, ...]
    result: Any
    leaves: tuple[Any, ...]


class _Jitted:
    """Caches one plan per signature. A lock serializes calls from several threads."""

    def __init__(self, function: Callable[..., Any], backend: str | None, threads: int | None) -> None:
        self._function, self._backend, self._threads = function, backend, threads
        self._traced: dict[Any, _Traced] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<{self._label}; {count(len(self._traced), 'plan')}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Returns the function bound to an object, as methods are; the object is a constant of the trace."""
        return self if instance is None else _Bound(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(sorted(kwargs.items()))
        values, structure = leaves((args, kwargs))
        if any(isinstance(v, Tensor) for v in values):
            return self._function(*args, **kwargs)
        values = [v if type(v) is np.ndarray else plain_array(v) for v in values]
        with self._lock:
            traced = self._for(args, kwargs, values, structure)
            given = (v for v in values if isinstance(v, np.ndarray))
            results = traced.plan.run(dict(zip(traced.inputs, given, strict=True)))
            made = [results[leaf] if isinstance(leaf, _Output) else leaf for leaf in traced.leaves]
        return with_leaves(traced.result, iter(made))

    def plan(self, *args: Any, **kwargs: Any) -> ExecutionPlan:
        """Returns the plan for these arguments; see plan.explain()."""
        kwargs = dict(sorted(kwargs.items()))
        values, structure = leaves((args, kwargs))
        values = [plain_array(v) for v in values]
        with self._lock:
            return self._for(args, kwargs, values, structure).plan

    def _for(self, args: Any, kwargs: Any, values: list[Any], structure: Hashable) -> _Traced:
        key = structure, tuple(map(_key, values)), get_backend_override()
        try:
            found = self._traced.get(key)
        except TypeError as error:
            raise self._unhashable(values, structure) from error
        if found is None:
            found = self._traced[key] = self._trace(args, kwargs, values, structure)
        return found

    def _trace(self, args: Any, kwargs: Any, values: list[Any], structure: Any) -> _Traced:
        graph = Graph()
        given = [
            _input(graph, self._label, name, value) if isinstance(value, np.ndarray) else value
            for name, value in zip(self._names(structure), values, strict=True)
        ]
        traced_args, traced_kwargs = with_leaves((args, kwargs), iter(given))
        result = self._function(*traced_args, **traced_kwargs)
        found, shape = leaves(result)
        made = [self._output(graph, name, leaf) for name, leaf in zip(paths(shape, "result"), found, strict=True)]
        if not graph.outputs:
            raise PlanError(f"{self._label}: result is {result!r}; wanted a tensor of the traced ops in it")
        plan = compile(graph, backend=self._backend, threads=self._threads)
        return _Traced(plan, tuple(graph.inputs), with_leaves(result, iter(made)), tuple(made))

    def _output(self, graph: Graph, name: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.graph is graph:
            graph.output(name, leaf)
            return _Output(name)
        if leaf is None or type(leaf) in (bool, int, float):
            return leaf
        raise PlanError(f"{self._label}: {name} is {leaf!r}; wanted a tensor of the traced ops")

    @property
    def _label(self) -> str:
        return f"jit of {getattr(self._function, '__name__', self._function)}"

    def _names(self, structure: Any) -> Iterator[str]:
        """Yields the leaves' paths, each starting with a parameter name."""
        (_, args), (_, kwargs) = structure[1]
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        positional = [p.name for p in inspect.signature(self._function).parameters.values() if p.kind in kinds]
        for i, (step, child) in enumerate(args[1]):
            yield from paths(child, positional[i] if i < len(positional) else f"arguments{step}")
        for step, child in kwargs[1]:
            yield from paths(child, step[2:-2])

    def _unhashable(self, values: list[Any], structure: Any) -> PlanError:
        for name, value in zip(self._names(structure), values, strict=True):
            try:
                hash(_key(value))
            except TypeError as error:
                return PlanError(f"{self._label}: {name}: {error}; wanted arrays, and constants that can be hashed")
        raise AssertionError("every leaf can be hashed")


class _Bound:
    """A jitted function with its first argument."""

    def __init__(self, jitted: _Jitted, instance: object) -> None:
        self.__func__, self.__self__ = jitted, instance
        functools.update_wrapper(self, jitted, updated=())

    def __repr__(self) -> str:
        return f"<{self.__func__!r} of {shortened(repr(self.__self__), 60)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> ExecutionPlan:
        """Returns the plan for these arguments; see plan.explain()."""
        return self.__func__.plan(self.__self__, *args, **kwargs)


def plain_array(value: Any) -> Any:
    """Converts an array of any library to an ndarray; returns other values unchanged."""
    kind = type(value)
    is_array = isinstance(value, _BUFFERS) or hasattr(kind, "__array__") or hasattr(kind, "__dlpack__")
    return np.asarray(operand(value)) if is_array else value


def _key(value: Any) -> Hashable:
    """Returns a leaf's part of the cache key; 1 differs from True, and 0.0 from -0.0."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return type(value), value.hex() if type(value) is float else value


def _input(graph: Graph, label: str, name: str, value: Array) -> Tensor:
    try:
        return graph.input(name, value.shape, as_dtype(value.dtype))
    except ShapeError as error:
        raise ShapeError(f"{label}: {name}: {error}") from error


# Trees: dicts, tuples, lists, named tuples and dataclasses of leaves.
# The children of a container with their path steps, and a function that makes a container of other children.
_Parts: TypeAlias = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]
# Types of most leaves, checked first.
_LEAVES = frozenset((np.ndarray, Tensor, int, float, bool, str, type(None)))


def leaves(tree: Any) -> tuple[list[Any], Hashable]:
    """Returns a tree's leaves in order, and its structure, which is equal for trees that differ only in their leaves."""
    found: list[Any] = []
    return found, _collect(tree, found)


def _collect(tree: Any, found: list[Any]) -> Hashable:
    parts = _parts(tree)
    if parts is None:
        found.append(tree)
        return None
    return type(tree), tuple((step, _collect(child, found)) for step, child in parts[0])


def paths(structure: Any, name: str) -> Iterator[str]:
    """Yields the path of each leaf in a tree of that name, such as `params['w'][0]`."""
    if structure is None:
        yield name
        return
    for step, child in structure[1]:
        yield from paths(child, f"{name}{step}")


def with_leaves(tree: Any, values: Iterator[Any]) -> Any:
    """Returns a tree of the same structure with other leaves."""
    parts = _parts(tree)
    if parts is None:
        return next(values)
    children, made = parts
    return made([with_leaves(child, values) for _, child in children])


def _parts(tree: Any) -> _Parts | None:
    """Returns None for a leaf."""
    if type(tree) in _LEAVES:
        return None
    if isinstance(tree, dict):
        return [(f"[{key!r}]", child) for key, child in tree.items()], lambda made: _dict(tree, made)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        named = zip(tree._fields, tree, strict=True)
        return [(f".{name}", child) for name, child in named], lambda made: type(tree)(*made)
    if isinstance(tree, (tuple, list)):
        return [(f"[{i}]", child) for i, child in enumerate(tree)], lambda made: type(tree)(made)
    if is_dataclass(tree) and not isinstance(tree, type):
        children = [(f".{field.name}", getattr(tree, field.name)) for field in fields(tree)]
        return children, lambda made: _dataclass(tree, made)
    return None


def _dict(tree: Any, made: list[Any]) -> Any:
    new = copy.copy(tree)
    new.update(zip(tree, made, strict=True))
    return new


def _dataclass(tree: Any, made: list[Any]) -> Any:
    """Copies a dataclass without its __init__, which may take other arguments. Returns `tree` itself if nothing changed."""
    named = {field.name: value for field, value in zip(fields(tree), made, strict=True)}
    if all(value is getattr(tree, name) for name, value in named.items()):
        return tree
    new = copy.copy(tree)
    for name, value in named.items():
        object.__setattr__(new, name, value)
    return new
