"""Gives quantized weights the one packed layout that their GEMV, GEMM and embedding share. The last pass."""

from __future__ import annotations

from camshaft.formats.blocks import BlockFormat
from camshaft.graph.graph import Graph, Rewriter, Tensor
from camshaft.ops.quantized_matmul.packing import INTERLEAVED, interleaved
from camshaft.ops.spec import TensorSpec


class _Packing(Rewriter):
    def respec(self, tensor: Tensor) -> TensorSpec:
        spec = tensor.spec
        return interleaved(spec) if isinstance(spec.dtype, BlockFormat) and spec.layout is not INTERLEAVED else spec


def pack_weights(graph: Graph) -> Graph:
    """Constants in a block format become interleaved; the bytes are packed when the plan is bound."""
    return _Packing(graph).run(lambda node, inputs: None)
