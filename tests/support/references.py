"""Evaluates a graph with its ops' references: float64 NumPy in each node, rounded to the node's dtypes between nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.extent import Extent
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.observe.work import active_node
from camshaft.ops.op import Op, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import error_between, node_of, specs_of, tolerance_of

Array = np.ndarray[Any, Any]
Active = Mapping[Extent, int]


def graph_of(op: Op, sample: Sample) -> Graph:
    """A graph of one use of the op, with the sample's inputs as x0, x1, ... and y0, y1, ... as outputs."""
    graph = Graph()
    given = [graph.state(f"x{i}", spec) for i, spec in enumerate(specs_of(sample))]
    for i, tensor in enumerate(graph.apply(op, given, sample.attrs)):
        graph.output(f"y{i}", tensor)
    return graph


def evaluated(graph: Graph, given: Mapping[str, Array], active: Active) -> dict[str, Array]:
    """The outputs by name, from inputs and states by name; arrays have the active sizes."""
    values = {tensor: given[name] for name, tensor in (graph.inputs | graph.states).items()}

    def value(tensor: Tensor) -> Array:
        base = root(tensor)
        if base.source is not None:
            spec = base.spec
            return base.source.data().view(spec.parts[0].dtype.numpy).reshape(tensor.spec.bounds)
        found = values[base]
        return found.reshape(_active(tensor.spec, active)) if tensor.spec.is_plain else found

    for node in graph.nodes:
        now = active_node(node.spec, active)
        results = node.op.reference([value(t) for t in node.inputs], now.attrs)
        for tensor, result in zip(node.outputs, results, strict=True):
            with np.errstate(all="ignore"):
                values[tensor] = _rounded(result, tensor.spec)
    return {name: value(tensor) for name, tensor in graph.outputs.items()}


def _active(spec: TensorSpec, active: Active) -> tuple[int, ...]:
    return tuple(active.get(d, d.bound) if isinstance(d, Extent) else d for d in spec.shape)


def _rounded(result: Array, spec: TensorSpec) -> Array:
    return result.astype(spec.parts[0].dtype.numpy) if spec.is_plain else result


def error_of(op: Op, graph: Graph, sample: Sample, factor: float) -> float:
    """The greatest error of a graph's outputs against the op's reference, as a share of the op's tolerance times `factor`."""
    node = node_of(op, sample)
    given = [_cut(a, s, sample.extents) for a, s in zip(sample.inputs, node.inputs, strict=True)]
    wanted = op.reference(given, active_node(node, sample.extents).attrs)
    made = evaluated(graph, {f"x{i}": a for i, a in enumerate(given)}, sample.extents)
    worst = 0.0
    for i, (spec, want) in enumerate(zip(node.outputs, wanted, strict=True)):
        got = made[f"y{i}"]
        if not spec.is_plain:
            small = replace(spec, shape=_active(spec, sample.extents))
            assert spec.layout.numbers is not None
            got = spec.layout.numbers(got, small) if want.dtype.kind == "f" else got
        allowed = factor * tolerance_of(op, spec, want)
        error = error_between(got, want, allowed)
        worst = max(worst, error / allowed if allowed else error)
    return worst


def _cut(array: Array, spec: TensorSpec, active: Active) -> Array:
    return array[tuple(slice(n) for n in _active(spec, active))] if spec.is_plain and active else array


__all__: Sequence[str] = ("error_of", "evaluated", "graph_of")
