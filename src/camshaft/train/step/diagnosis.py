"""Which tensor of a step is the first that is not finite: loss and gradients once more, with the greatest of each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.node import Node
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.train.step.graphs import Recipe, draw_of, gradient_graph
from camshaft.train.step.tree import arrays_of

Array = np.ndarray[Any, Any]


def first_not_finite(
    recipe: Recipe, batch: Sequence[Any], compiled: Callable[[Graph], ExecutionPlan], draw: int = 0
) -> str:
    """Says which tensor of the step is the first with a NaN or, where none has one, with an infinity.

    Inputs and parameters come first, then the results of the loss in program order; then, if all of these are finite, those of
    its gradients. Infinities alone may be meant, as those of a mask are. `draw` as of `draw_of`.
    """
    graph, gradients = gradient_graph(recipe, batch)
    names = _named(graph, {t: name for name, t in gradients.items()})
    derived = {t for node in graph.derived for t in node.outputs}
    for i, tensor in enumerate(names):
        graph.output(f"greatest {i}", f.cast(f.max(f.abs(tensor), axes=None), to="f64"))
    with compiled(graph) as plan:
        made = plan.run(arrays_of(batch) | draw_of(recipe, draw))
        greatest = {text: float(made[f"greatest {i}"]) for i, text in enumerate(names.values())}
    forward = [names[t] for t in names if t not in derived]
    backward = [names[t] for t in names if t in derived]
    for texts in (forward, backward):
        for wrong, what in ((np.isnan, "a NaN"), (np.isinf, "an infinity")):
            found = next((text for text in texts if wrong(greatest[text])), None)
            if found is not None:
                return f"the first with {what} is {found}"
    return "no tensor of the step alone has a NaN or an infinity, but the sum of its gradients' squares does"


def _named(graph: Graph, gradients: dict[Tensor, str]) -> dict[Tensor, str]:
    """The tensors of floats in program order, with what a message calls each."""
    names = {t: f"the input {name}" for name, t in graph.inputs.items()}
    names |= {t: f"the parameter {name.removeprefix('parameters/')}" for name, t in graph.states.items()}
    for i, node in enumerate(graph.nodes):
        for tensor in node.outputs:
            names[tensor] = f"the gradient of {gradients[tensor]}" if tensor in gradients else _result(graph, i, node)
    return {t: text for t, text in names.items() if t.spec.is_plain and isinstance(t.dtype, DType) and t.dtype.is_float}


def _result(graph: Graph, index: int, node: Node) -> str:
    made = ", ".join(t.name for t in node.inputs[:3])
    where = "its gradients" if node in graph.derived else "the loss"
    return f"the result of {node.name} (node {index} of {where}: {node.op.name} of {made})"
