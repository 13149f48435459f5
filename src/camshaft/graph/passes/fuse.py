"""Finds the patterns that fused ops declare and puts the fused op in their place. The first pass."""

from __future__ import annotations

from camshaft import ops
from camshaft.graph.graph import Graph, Node, Rewriter, Tensor, readers
from camshaft.graph.passes.fuse_quantized import QUANTIZER
from camshaft.ops.op import Op


def fuse(graph: Graph) -> Graph:
    """A node of `first` whose result a node of `second` reads becomes one node of the op that declares (first, second).

    The fused op takes first's inputs, then second's others (constants), and gives second's output, then first's.
    """
    found = {op.pattern: op for op in ops.all_ops() if op.pattern is not None}
    fused = {pattern: op for pattern, op in found.items() if pattern[1] != QUANTIZER}  # those: fuse_quantized.py
    reading = readers(graph)
    rewriter = Rewriter(graph)

    def place(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        for reader in reading.get(node.outputs[0], []) if node.outputs else []:
            op = fused.get((node.op.name, reader.op.name))
            if op is not None and _matches(node, reader, op):
                others = tuple(rewriter.get(t) for t in reader.inputs[1:])
                results = rewriter.new.apply(op, (*inputs, *others), reader.attrs, reader.name)
                rewriter.map[reader.outputs[0]] = results[0]
                return (results[1],)
        return None

    return rewriter.run(place)


def _matches(node: Node, reader: Node, op: Op) -> bool:
    """The reader, on the same device, takes the result as its first input, its other inputs are constants, and the fused op
    takes the specs."""
    if node.device != reader.device:
        return False
    if reader.inputs[0] is not node.outputs[0] or any(t.kind != "constant" for t in reader.inputs[1:]):
        return False
    specs = tuple(t.spec for t in (*node.inputs, *reader.inputs[1:]))
    return op.accepts(specs, reader.attrs)
