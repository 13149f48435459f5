"""Lets an op quantize its own result where an op for both exists (ops/quantize/fused_quantize.py)."""

from __future__ import annotations

from camshaft import ops
from camshaft.graph.graph import Graph, Node, Rewriter, Tensor, readers, root
from camshaft.ops.quantize.quantize_activations import kind_of

QUANTIZER = "quantize_activations"


def fuse_quantized(graph: Graph) -> Graph:
    """rms_norm, residual_norm or silu_multiply with the quantize_activations that read its first result, on one device, become
    one node. It gives that result itself only if anybody else reads it."""
    fused = {op.pattern[0]: op for op in ops.all_ops() if op.pattern is not None and op.pattern[1] == QUANTIZER}
    reading, results = readers(graph), {root(t) for t in graph.outputs.values()}
    rewriter = Rewriter(graph)

    def place(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        op = fused.get(node.op.name)
        quantizers = [] if op is None else _quantizers(node, reading)
        if op is None or not quantizers:
            return None
        y = node.outputs[0]
        kinds = list(dict.fromkeys(kind_of(reader.attrs) for reader in quantizers))
        floats = y in results or len(quantizers) < len(reading[y])
        attrs = {**node.attrs, "sums": tuple(kinds), "floats": floats}
        if not op.accepts(tuple(t.spec for t in inputs), attrs):
            return None
        made = rewriter.new.apply(op, inputs, attrs, node.name)
        for reader in quantizers:
            rewriter.map[reader.outputs[0]] = made[kinds.index(kind_of(reader.attrs))]
        rest = made[len(kinds) :]
        return rest if floats else (made[0], *rest)  # where nobody reads y, it does not matter what stands for it

    return rewriter.run(place)


def _quantizers(node: Node, reading: dict[Tensor, list[Node]]) -> list[Node]:
    y = node.outputs[0]
    found = [reader for reader in reading.get(y, []) if reader.op.name == QUANTIZER]
    return [reader for reader in found if reader.inputs[0] is y and reader.device == node.device]
