"""The ops as functions: camshaft.add(a, b) computes on arrays at once, and adds a node where an input is a graph tensor.

A call of one or two plain inputs has its own function: 20 ns over the table's, where one of `*inputs` takes 290.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from camshaft import ops
from camshaft.eager.tables import table
from camshaft.graph import functions as of_graphs
from camshaft.graph.tensor import Tensor
from camshaft.ops.signatures import help_of_function, of_both
from camshaft.selection.override import get_backend_override

Function: TypeAlias = Callable[..., Any]
Calls: TypeAlias = dict[str | None, Function]


@functools.cache
def function(name: str) -> Function:
    """The function of an op: on arrays and numbers that of the current override's table; with a tensor of a graph
    among its inputs, which becomes a node's, that of graph/functions.py."""
    op, on_tensors = ops.get(name), of_graphs.function(name)
    calls: Calls = {}

    def apply(*inputs: Any, **attrs: Any) -> Any:
        if any(isinstance(x, Tensor) for x in inputs):
            return on_tensors(*inputs, **attrs)
        override = get_backend_override()
        call = calls.get(override) or calls.setdefault(override, getattr(table(), name))
        return call(*inputs, **attrs)

    few = _OF_FEW.get(op.parameters.arity)
    made: Any = apply if few is None else few(calls, apply)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = help_of_function(op)
    made.__signature__ = of_both(name)
    return cast(Function, made)


def _of_one(calls: Calls, whole: Function) -> Function:
    def apply(x: Any, /, *more: Any, **attrs: Any) -> Any:
        call = calls.get(get_backend_override())
        if call is None or more or attrs or type(x) is Tensor:
            return whole(x, *more, **attrs)
        return call(x)

    return apply


def _of_two(calls: Calls, whole: Function) -> Function:
    def apply(a: Any, b: Any, /, *more: Any, **attrs: Any) -> Any:
        call = calls.get(get_backend_override())
        if call is None or more or attrs or type(a) is Tensor or type(b) is Tensor:
            return whole(a, b, *more, **attrs)
        return call(a, b)

    return apply


# By the number of an op's inputs.
_OF_FEW: dict[int | None, Callable[[Calls, Function], Function]] = {1: _of_one, 2: _of_two}
