"""Directional derivatives (forward mode) by two sweeps of gradients.

g(u) = J^T u, the gradient with the cotangent u, is linear in u, so the gradient of sum(g(u) * t) by u is J t whatever u is
(Townsend, 2017). So every op with a `vjp` or a decomposition has it, and no op needs a second rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.errors import ShapeError
from camshaft.graph import functions
from camshaft.graph.gradients.gradient import gradients_of_several, needed
from camshaft.graph.gradients.parts import expect_floats
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor
from camshaft.ops.gradient import zeros


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
