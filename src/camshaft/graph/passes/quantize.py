"""Quantizes activations once per tensor for all quantized_matmuls that read it (mode 'q8')."""

from __future__ import annotations

from camshaft import ops
from camshaft.graph.graph import Graph, Node, Rewriter, Tensor
from camshaft.ops.quantized.packing import packed_format


def quantize_activations(graph: Graph) -> Graph:
    """quantized_matmul(x, w) becomes quantized_matmul(quantize_activations(x), w): one of these per x, kind of
    sums and device."""
    rewriter, made = Rewriter(graph), dict[tuple[Tensor, tuple[int, int], str | None], Tensor]()

    def place(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if node.op.name != "quantized_matmul" or not inputs[0].spec.is_plain:
            return None
        x, kind = inputs[0], packed_format(inputs[1].spec).sums
        key = x, kind, node.device
        if key not in made:
            quantizer = ops.get("quantize_activations")
            (made[key],) = rewriter.new.apply(
                quantizer, (x,), dict(zip(("group", "zero"), kind, strict=True)), f"{x.name}.q8"
            )
        return rewriter.new.apply(node.op, (made[key], inputs[1]), node.attrs, node.name)

    return rewriter.run(place)
