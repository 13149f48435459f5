"""Graphs of elementwise ops, computed node by node, before and after chains are made of them."""

from __future__ import annotations

import numpy as np

from camshaft.backends.registry import device as device_named
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.passes.chains import fuse_chains
from camshaft.validation.run import run_variant

RNG = np.random.default_rng(3)
Values = dict[Tensor, np.ndarray]


def computed(graph: Graph, inputs: dict[str, np.ndarray], backend: str = "simd") -> dict[str, np.ndarray]:
    """The graph's outputs, each node by its first variant, with nothing proved."""
    values: Values = {tensor: inputs[name] for name, tensor in graph.inputs.items()}
    for node in graph.nodes:
        given = tuple(_value(t, values) for t in node.inputs)
        made = run_variant(node.op.variants[0], node.spec, device_named(backend), given)
        values.update(zip(node.outputs, made, strict=True))
    return {name: _value(t, values) for name, t in graph.outputs.items()}


def _value(tensor: Tensor, values: Values) -> np.ndarray:
    if tensor.kind == "constant":
        return tensor.source.data().view(tensor.spec.dtype.numpy).reshape(tensor.spec.bounds)
    return values[tensor] if tensor in values else values[root(tensor)].reshape(tensor.spec.bounds)


def three(shape: tuple[int, ...] = (5, 67), dtype: str = "f32") -> tuple[Graph, list[Tensor]]:
    graph = Graph()
    return graph, [graph.input(name, shape, dtype) for name in "xyz"]


def draw(graph: Graph) -> dict[str, np.ndarray]:
    made = {}
    for name, tensor in graph.inputs.items():
        dtype, shape = tensor.spec.dtype.numpy, tensor.spec.bounds
        numbers = RNG.normal(size=shape) * (30 if dtype.kind in "iu" else 2)
        made[name] = (np.abs(numbers) if dtype.kind == "u" else numbers).astype(dtype)
    return made


def same_bits(graph: Graph, backend: str = "simd") -> Graph:
    """The fused graph, which gives what the other gives, to the bit."""
    fused, inputs = fuse_chains(graph), draw(graph)
    want, got = computed(graph, inputs, backend), computed(fused, inputs, backend)
    assert want.keys() == got.keys()
    for name in want:
        np.testing.assert_array_equal(want[name].reshape(-1).view(np.uint8), got[name].reshape(-1).view(np.uint8))
    return fused
