"""Gives quantized weights the one packed layout that their GEMV, GEMM and embedding share. The last pass."""

from __future__ import annotations

from camshaft.formats.blocks import BlockFormat
from camshaft.graph.graph import Graph, Rewriter, Tensor, root
from camshaft.ops.quantized.packing import INTERLEAVED, interleaved
from camshaft.ops.spec import TensorSpec


class _Packing(Rewriter):
    def respec(self, tensor: Tensor) -> TensorSpec:
        return _packed(tensor.spec)


def _packed(spec: TensorSpec) -> TensorSpec:
    return interleaved(spec) if isinstance(spec.dtype, BlockFormat) and spec.layout is not INTERLEAVED else spec


def packed_constants(graph: Graph) -> list[Tensor]:
    """The constants that nodes of a graph read, in their order, as `pack_weights` will have them."""
    read = dict.fromkeys(root(t) for node in graph.nodes for t in node.inputs)
    found = []
    for tensor in read:
        if tensor.kind == "constant":
            assert tensor.source is not None
            found.append(Graph().constant(tensor.name, tensor.source, _packed(tensor.spec)))
    return found


def pack_weights(graph: Graph) -> Graph:
    """Constants in a block format become interleaved; the bytes are packed when the plan is bound."""
    return _Packing(graph).run(lambda node, inputs: None)
