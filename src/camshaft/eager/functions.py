"""The ops as functions: camshaft.add(a, b) computes arrays immediately, or adds a node if an input is a graph tensor.

Calls of one or two plain inputs have functions of their own: 20 ns more than the table's; with `*inputs` it would be 290.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.eager.numpy_calls import by_position
from camshaft.eager.tables import table
from camshaft.errors import ArrayTypeError
from camshaft.graph import functions as of_graphs
from camshaft.graph.tensor import Tensor
from camshaft.ops.signatures import help_of_function, of_both
from camshaft.selection.override import get_backend_override

Function: TypeAlias = Callable[..., Any]
Calls: TypeAlias = dict[str | None, Function]


# Ops of one tensor whose attribute NumPy takes by position, its name and form; those of numpy_calls/by_position.py besides.
_BY_POSITION: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "transpose": ("axes", lambda axes: None if axes is None else tuple(axes)),
    "cast": ("to", lambda dtype: as_dtype(dtype).name),
    **dict.fromkeys(
        ("sum", "prod", "mean", "max", "min", "argmax", "argmin", "softmax", "log_softmax"), ("axis", lambda axis: axis)
    ),
}


def _by_name(name: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if name in by_position.NAMES:
        return by_position.named(name, tuple(inputs), attrs)
    if name not in _BY_POSITION or len(inputs) > 2:
        return inputs, attrs
    attribute, plain = _BY_POSITION[name]
    if len(inputs) == 2 and {attribute, "axes"} & set(attrs):
        raise ArrayTypeError(f"{name}: got {attribute} by position and by name; wanted one of the two")
    given = {attribute: inputs[1], **attrs} if len(inputs) == 2 else attrs
    return inputs[:1], {key: plain(value) if key == attribute else value for key, value in given.items()}


@functools.cache
def function(name: str) -> Function:
    """Returns the function of an op: for arrays and numbers that of the current override's table; with a graph tensor
    among its inputs that of graph/functions.py, which adds a node."""
    op, on_tensors = ops.get(name), of_graphs.function(name)
    calls: Calls = {}

    def apply(*inputs: Any, **attrs: Any) -> Any:
        if any(isinstance(x, Tensor) for x in inputs):
            tensors, given = _by_name(name, inputs, attrs)
            return on_tensors(*tensors, **given)
        if inputs and type(inputs[0]) in (list, tuple) and any(isinstance(x, Tensor) for x in inputs[0]):
            return on_tensors(*inputs[0], **attrs)
        override = get_backend_override()
        call = calls.get(override) or calls.setdefault(override, getattr(table(), name))
        return call(*inputs, **attrs)

    few = _OF_FEW.get(op.parameters.arity)
    made: Any = apply if few is None else few(calls, apply)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = help_of_function(op)
    made.__signature__ = of_both(name)
    return cast(Function, made)


_MISSING: Any = object()  # as a default, so that the op's own error names the missing argument


def _of_one(calls: Calls, whole: Function) -> Function:
    def apply(x: Any = _MISSING, /, *more: Any, **attrs: Any) -> Any:
        call = calls.get(get_backend_override())
        if call is None or more or attrs or type(x) is Tensor or x is _MISSING:
            return whole(*(() if x is _MISSING else (x, *more)), **attrs)
        return call(x)

    return apply


def _of_two(calls: Calls, whole: Function) -> Function:
    def apply(a: Any = _MISSING, b: Any = _MISSING, /, *more: Any, **attrs: Any) -> Any:
        call = calls.get(get_backend_override())
        if call is None or more or attrs or type(a) is Tensor or type(b) is Tensor or b is _MISSING:
            return whole(*(x for x in (a, b, *more) if x is not _MISSING), **attrs)
        return call(a, b)

    return apply


# By the number of an op's inputs.
_OF_FEW: dict[int | None, Callable[[Calls, Function], Function]] = {1: _of_one, 2: _of_two}
