"""camshaft.custom_vjp: a function of tensors with a gradient of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from camshaft.errors import PlanError, ShapeError
from camshaft.graph.arguments import given_form
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Array, Tensor, graph_of
from camshaft.ops.op import Attrs, Op
from camshaft.ops.spec import TensorSpec


def custom_vjp(function: Callable[..., Any] | None = None, backward: Callable[..., Any] | None = None) -> Any:
    """Returns `function` with the gradient that `backward` computes. Also a decorator: @custom_vjp(backward=rule).

    `function` takes tensors by position and returns one, or a tuple of them. `backward(dy, y, *inputs)` returns the gradient of
    each input, or None for zero; of one input alone or in a tuple. `y` is the function's result and `dy` its gradient, tuples
    where it returns one. A gradient may have the shape to which an input was broadcast. Both functions are made of ops, so the
    gradient can be differentiated again. Tensors that they use are arguments; arrays may be captured.

    Called with arrays alone, it is `function`. PlanError for anything that is not a function; ShapeError for results that are not
    tensors.
    """
    if function is None:
        return functools.partial(custom_vjp, backward=backward)
    if not callable(function) or not callable(backward):
        raise PlanError(f"custom_vjp: got {function!r:.60} and backward={backward!r:.60}; wanted two functions")
    forward, rule = function, backward
    op = _op(forward, rule)

    @functools.wraps(function, updated=())
    def apply(*inputs: Any) -> Any:
        first = next((x for x in inputs if isinstance(x, Tensor)), None)
        if first is None:
            return forward(*inputs)
        graph = graph_of(first)
        made = graph.apply(op, given_form(graph, op, inputs, {}).tensors, {})
        return made[0] if len(made) == 1 else made

    return apply


def _op(function: Callable[..., Any], backward: Callable[..., Any]) -> Op:
    """Returns a composite op whose decomposition is the function."""
    name = getattr(function, "__name__", "function")

    def infer(specs: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
        graph = Graph()
        return tuple(t.spec for t in _results(name, function, [_input(graph, i, s) for i, s in enumerate(specs)]))

    def no_reference(inputs: Sequence[Array], attrs: Attrs) -> NoReturn:
        raise ShapeError(f"{name}: a function with custom_vjp has no reference")

    return Op(
        name,
        f"{name}(inputs) by the caller",
        infer,
        no_reference,
        tuple,
        tuple,
        {},
        decompose=lambda f, *tensors: _results(name, function, tensors),
        vjp=lambda f, dy, y, *tensors: backward(dy, y, *tensors),
    )


def _input(graph: Graph, index: int, spec: TensorSpec) -> Tensor:
    name = f"x{index}"
    return graph.input(name, spec.shape, spec.dtype) if spec.is_plain else graph.state(name, spec)


def _results(name: str, function: Callable[..., Any], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    made = function(*tensors)
    found = made if isinstance(made, tuple) else (made,)
    for tensor in found:
        if not isinstance(tensor, Tensor) or tensor.graph is not tensors[0].graph:
            raise ShapeError(f"{name}: got the result {tensor!r:.80}; wanted tensors made of its arguments")
    return found
