"""Evaluates a graph with its ops' references: float64 NumPy in each node, rounded to the node's dtypes between nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.extent import Extent
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.tensor import FileTensor
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.observe.rows import active_node
from camshaft.ops.op import NodeSpec, Op, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import error_between, specs_of, tolerance_of

Array = np.ndarray[Any, Any]
Active = Mapping[Extent, int]


def evaluated(graph: Graph, given: Mapping[str, Array], active: Active) -> dict[str, Array]:
    """The outputs by name, from inputs and states by name; arrays have the active sizes."""
    values = {tensor: given[name] for name, tensor in (graph.inputs | graph.states).items()}

    def value(tensor: Tensor) -> Array:
        base = root(tensor)
        if base.source is not None:
            spec = base.spec
            if isinstance(base.source, FileTensor) and isinstance(spec.dtype, BlockFormat):
                return base.source.dequantize()  # references take numbers for packed inputs
            return base.source.data().view(spec.parts[0].dtype.numpy).reshape(tensor.spec.bounds)
        found = values[base]
        if not tensor.spec.is_plain:
            return found
        dtype = tensor.spec.parts[0].dtype.numpy
        found = found if found.dtype == dtype else np.ascontiguousarray(found).reshape(-1).view(dtype)
        return found.reshape(_active(tensor.spec, active))

    for node in graph.nodes:
        now = active_node(node.spec, active)
        results = node.op.reference([value(t) for t in node.inputs], now.attrs)
        written = (*node.outputs, *(root(node.inputs[i]) for i in node.op.updates))
        for tensor, result in zip(written, results, strict=True):
            with np.errstate(all="ignore"):
                values[tensor] = _rounded(result, tensor.spec)
    return {name: value(tensor) for name, tensor in graph.outputs.items()}


def _active(spec: TensorSpec, active: Active) -> tuple[int, ...]:
    return tuple(active.get(d, d.bound) if isinstance(d, Extent) else d for d in spec.shape)


def _rounded(result: Array, spec: TensorSpec) -> Array:
    return result.astype(spec.parts[0].dtype.numpy) if spec.is_plain else result


def error_of(op: Op, sample: Sample, compute: Callable[[dict[str, Array]], Mapping[str, Array]]) -> float:
    """The greatest error of what `compute` makes of the sample's inputs, as a share of the op's tolerance.

    Arrays have the active sizes. Packed inputs are random numbers, which references take as well as bytes.
    """
    active = sample.extents
    attrs = {a.name: sample.attrs[a.name] for a in op.parameters.attributes if a.name in sample.attrs}
    node = NodeSpec(specs_of(sample), op.infer(specs_of(sample), sample.attrs), attrs)
    rng = np.random.default_rng(0)
    given = [
        _cut(a, s, active) if s.is_plain else rng.normal(size=_active(s, active))
        for a, s in zip(sample.inputs, node.inputs, strict=True)
    ]
    wanted = op.reference(given, active_node(node, active).attrs)
    made = compute({f"x{i}": a for i, a in enumerate(given)})
    worst = 0.0
    for i, (spec, want) in enumerate(zip(node.outputs, wanted, strict=True)):
        got, tolerance = made[f"y{i}"], tolerance_of(op, spec, want)
        if spec.layout.numbers is not None and got.dtype == np.uint8:
            got = spec.layout.numbers(got, replace(spec, shape=_active(spec, active)))
        error = error_between(got, want, tolerance)
        worst = max(worst, error / tolerance if tolerance else error)
    return worst


def _cut(array: Array, spec: TensorSpec, active: Active) -> Array:
    return array[tuple(slice(n) for n in _active(spec, active))] if active else array
