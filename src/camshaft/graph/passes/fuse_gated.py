"""Makes gate, up and what is made of both one node (ops/quantized/gated_product.py)."""

from __future__ import annotations

from camshaft import ops
from camshaft.graph.graph import Graph, Node, Rewriter, Tensor, readers, root

FUSED = "gated_product"


def fuse_gated(graph: Graph) -> Graph:
    """Two quantized_matmuls of one q8 tensor with the silu_multiply_q8 that alone reads them, on one device, become one node
    where their weights are of one kind."""
    op = ops.get(FUSED)
    makers = {output: node for node in graph.nodes for output in node.outputs}
    reading, results = readers(graph), {root(t) for t in graph.outputs.values()}
    found: dict[Node, tuple[Tensor, Tensor, Tensor]] = {}
    for node in graph.nodes:
        products = _products(node, makers)
        if not products or any(len(reading[p.outputs[0]]) > 1 or p.outputs[0] in results for p in products):
            continue
        gate, up = products
        tensors = gate.inputs[0], gate.inputs[1], up.inputs[1]
        alike = gate.inputs[0] is up.inputs[0] and gate.device == up.device == node.device
        if alike and op.accepts(tuple(t.spec for t in tensors), {"sums": node.attrs["sums"]}):
            found[node] = tensors
    gone = {makers[t] for node in found for t in node.inputs}
    rewriter = Rewriter(graph)

    def place(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if node in gone:
            return inputs[:1]  # read by the fused node alone, which reads its inputs instead
        if node not in found:
            return None
        taken = tuple(rewriter.get(t) for t in found[node])
        return rewriter.new.apply(op, taken, {"sums": node.attrs["sums"]}, node.name)

    return rewriter.run(place)


def _products(node: Node, makers: dict[Tensor, Node]) -> list[Node]:
    """The two products that a silu_multiply_q8 reads, if it gives nothing but q8."""
    if node.op.name != "silu_multiply_q8" or node.attrs.get("floats"):
        return []
    found = [makers.get(t) for t in node.inputs]
    products = [n for n in found if n is not None and n.op.name == "quantized_matmul"]
    return products if len(products) == 2 and products[0] is not products[1] else []
