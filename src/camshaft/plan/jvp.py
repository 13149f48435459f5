"""camshaft.jvp: the value of a function of arrays and its derivative along a direction, by two sweeps of gradients.

g(u) = J^T u, the gradient with the cotangent u, is linear in u, so the gradient of sum(g(u) * t) by u is J t whatever u is
(Townsend, 2017). So every op with a `vjp` or a decomposition has it, and no op needs a second rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from camshaft.errors import PlanError, ShapeError
from camshaft.graph import functions
from camshaft.graph.gradients.gradient import gradients_of_several, needed
from camshaft.graph.gradients.parts import expect_floats, is_float
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.tensor import graph_of
from camshaft.ops.gradient import zeros
from camshaft.plan.jit import jit, leaves, paths, with_leaves


def jvp(
    function: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    backend: str | None = None,
    threads: int | None = None,
) -> tuple[Any, Any]:
    """Returns `function(*primals)` and its derivative where the arguments move along `tangents`: J t, in the result's form.

    `primals` are the arguments, in a tuple: arrays of floats, or dicts, lists, tuples and dataclasses of them; `tangents` have
    the same structure, shapes and dtypes. A result may be any structure of floats; numbers and None in it have the tangent None.

    A call with arrays traces and compiles the function, as a first call of camshaft.jit with this `backend` and `threads`. With
    tensors of a graph, nodes are added, which can be differentiated again: so a function of camshaft.jit that calls jvp is traced
    once per set of shapes and dtypes.

    Raises ShapeError and PlanError, naming the argument or result, for anything that is not a float and for tangents that do not
    fit; for ops see Graph.gradients.
    """
    if not callable(function):
        raise PlanError(f"jvp: got {function!r:.80}; wanted a function of arrays")
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise PlanError(f"jvp: got {name} {given!r:.80}; wanted a tuple with each argument")

    def both(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return _both(function, primals, tangents)

    found: tuple[Any, Any] = jit(both, backend=backend, threads=threads)(tuple(primals), tuple(tangents))
    return found


def _both(function: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The function's result on tensors, and the tangent of each tensor in it."""
    values, structure = leaves(primals)
    along, other = leaves(tangents)
    if structure != other or not values:
        raise PlanError(
            f"jvp: got {len(along)} tangents for {len(values)} primals; wanted the same structure of arrays"
        )
    for name, value in zip(paths(structure, "primals"), values, strict=True):
        if not isinstance(value, Tensor) or not is_float(value):
            raise ShapeError(f"jvp: {name} is {value!r:.80}; wanted an array of floats")
    for name, value in zip(paths(structure, "tangents"), along, strict=True):
        if not isinstance(value, Tensor):
            raise ShapeError(f"jvp: {name} is {value!r:.80}; wanted an array of floats")
    graph = graph_of(values[0])
    # Views, as the same tensor may be used in other ways too.
    wrt = [graph.reshape(v, v.shape) for v in values]
    result = function(*with_leaves(primals, iter(wrt)))
    found, shape = leaves(result)
    for name, leaf in zip(paths(shape, "result"), found, strict=True):
        fits = is_float(leaf) if isinstance(leaf, Tensor) else leaf is None or type(leaf) in (bool, int, float)
        if not fits:
            raise ShapeError(f"jvp: {name} is {leaf!r:.80}; wanted floats, as others have no derivative")
    results = [leaf for leaf in found if isinstance(leaf, Tensor)]
    moved = iter(directional(graph, results, wrt, along))
    return result, with_leaves(result, iter([next(moved) if isinstance(x, Tensor) else None for x in found]))


def directional(
    graph: Graph, results: Sequence[Tensor], wrt: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Adds the nodes of the derivative of each result where the tensors of `wrt` move along `tangents`, which have their specs.

    Raises ShapeError for other specs and what is not a float, PlanError as Graph.gradients does."""
    for tensor in (*results, *wrt, *tangents):
        expect_floats(graph, tensor)
    for tensor, tangent in zip(wrt, tangents, strict=True):
        if tensor.spec != tangent.spec:
            raise ShapeError(f"jvp: got the tangent {tangent.spec} of {tensor}; wanted one of {tensor.spec}")
    count = len(graph.nodes)
    try:
        with graph.on(None):
            # A view of each, as rules may use equal zeros for something else.
            cotangents = [graph.reshape(zeros(functions, r), r.shape) for r in results]
        pulled = gradients_of_several(graph, results, wrt, cotangents)
        found = gradients_of_several(graph, pulled, cotangents, tangents)
    except BaseException:
        del graph.nodes[count:]
        raise
    graph.nodes[count:] = needed(graph.nodes[count:], found)
    graph.derived.update(graph.nodes[count:])
    return found
